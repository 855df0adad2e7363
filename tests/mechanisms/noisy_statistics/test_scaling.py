"""Daubechies' scaling functions on [0, 1]: exact, orthonormal, polynomials, and what replacing a person can move."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from shared.base.randomness import seeded_rng
from shared.errors import ParameterError
from shared.mechanisms.densities.scaling import CELLS, Basis, Coefficients, diameter, filter_of
from shared.privacy import accountant as privacy
from shared.privacy.accountant import Laplace
from tests.benchmarks.paper.bounds import paper_sensitivity

MIDDLES = (np.arange(CELLS) + 0.5) / CELLS
EVERY = [(order, level) for order in (2, 3, 4) for level in range(2, 9) if 2**level >= 2 * order]
ALL = [(2, 2), (2, 3), (3, 3), (4, 3), (4, 5), (2, 6)]


@pytest.mark.parametrize(("order", "level"), ALL)
def test_the_functions_are_orthonormal_and_hold_every_polynomial_below_their_order(order, level):
    basis = Basis(order=order, level=level)
    assert np.abs(basis.gram - np.eye(2**level)).max() <= 1e-12
    # The same inner products from the values: sums over the cells' middles, by another way and so less exactly.
    assert np.abs(basis.values @ basis.values.T / CELLS - np.eye(2**level)).max() < 2e-3
    for degree in range(order):
        assert np.abs(basis.polynomial(degree) @ basis.values - MIDDLES**degree).max() <= 1e-12
    # Of the degree that they do not hold, they give another function.
    best = np.linalg.lstsq(basis.values.T, MIDDLES**order, rcond=None)[0]
    assert np.abs(best @ basis.values - MIDDLES**order).max() > 1e-9


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_filter_is_daubechies_own(order):
    h = filter_of(order)
    for shift in range(order):
        kept = h[: 2 * order - 2 * shift] @ h[2 * shift :]
        assert kept == pytest.approx(float(shift == 0), abs=1e-13)
    alternating = h * (-1.0) ** np.arange(2 * order)
    for degree in range(order):
        assert alternating @ np.arange(2.0 * order) ** degree == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("order", "level", "stated"), [(2, 2, 13.88), (2, 3, 19.63), (3, 3, 35.86), (4, 3, 61.47)], ids=str
)
def test_the_paper_s_sensitivities_come_out_as_printed(order, level, stated):
    """(3N − 2) times the largest value, as its Appendix D has them; their construction is numerical."""
    assert paper_sensitivity(Basis(order=order, level=level), 1) / 2 == pytest.approx(stated, rel=0.006)


@pytest.mark.parametrize(("columns", "least"), [(2, 6.7), (3, 17.0)])
def test_replacing_a_person_moves_no_sums_further_than_is_charged_which_is_a_part_of_the_paper_s_bound(columns, least):
    """A search for a violation: pairs of places climbed cell by cell, from many starts and from the worst places."""
    made = Coefficients(basis=Basis(order=2, level=2), columns=columns, scale=1e9)
    assert paper_sensitivity(made.basis, columns) / (made.sensitivity * made.step) >= least
    table = made.basis.table(made.bits).astype(np.float64)

    def product(cells: np.ndarray) -> np.ndarray:
        out = table[:, cells[0]]
        for cell in cells[1:]:
            out = np.multiply.outer(out, table[:, cell])
        return out

    rng = np.random.default_rng(4)
    worst = np.argsort(-np.abs(table).sum(axis=0))[:40]
    furthest = 0.0
    for start in range(30):
        pool = worst if start % 2 else np.arange(CELLS)
        one, other = rng.choice(pool, columns), rng.choice(pool, columns)
        reached = float(np.abs(product(one) - product(other)).sum())
        for side, axis in itertools.product((0, 1), range(columns)):
            at = (one, other)[side]
            rest = (other, one)[side]
            tried = np.concatenate([rng.integers(0, CELLS, 200), worst])
            for cell in tried:
                changed = at.copy()
                changed[axis] = cell
                moved = float(np.abs(product(changed) - product(rest)).sum())
                if moved > reached:
                    reached, at[axis] = moved, cell
        furthest = max(furthest, reached)
    assert furthest <= made.sensitivity
    assert furthest >= 0.95 * made.sensitivity, "the search is near enough to have found a violation"


@pytest.mark.parametrize(("order", "level"), [(2, 2), (3, 3), (4, 3)])
def test_the_diameter_of_one_column_is_that_of_all_pairs_of_cells(order, level):
    table = Basis(order=order, level=level).table(12)
    furthest = max(
        int(np.abs(table[:, start : start + 32, None] - table[:, None, start:]).sum(axis=0).max())
        for start in range(0, CELLS, 32)
    )
    assert diameter(table, 1) == furthest


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_no_two_persons_of_any_small_table_are_further_apart_than_its_diameter(columns):
    """All pairs of all products: tables of few functions and cells, of either sign, with zeros, alike and unlike."""
    exact = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cells = int(rng.integers(2, (40, 9, 5)[columns - 1]))
        table = rng.integers(-5, 6, (int(rng.integers(1, 4)), cells)) * rng.integers(0, 2, (1, cells))
        table[0, 0] = 5  # somebody moves something
        parts = table
        for _ in range(columns - 1):
            parts = np.einsum("ax,by->abxy", parts, table).reshape(len(parts) * len(table), -1)
        furthest = int(np.abs(parts[:, :, None] - parts[:, None, :]).sum(axis=0).max())
        stated, within = diameter(table, columns), int(np.abs(table).sum(axis=0).max()) ** (columns - 1)
        assert furthest <= stated <= max(2 * within * int(np.abs(table).sum(axis=0).max()), 1)
        exact += furthest == stated
        if stated == within * diameter(table, 1):
            assert furthest == stated, "where the bound is that of one column, it is reached"
    assert exact > 100


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize(("order", "level"), EVERY)
def test_two_persons_move_the_sums_exactly_as_far_as_is_charged_whatever_the_basis(order, level, columns):
    made = Coefficients(basis=Basis(order=order, level=level), columns=columns, scale=1e9)
    table = made.basis.table(made.bits)
    norms = np.abs(table).sum(axis=0)
    far = np.argsort(-norms)[: 500 if level < 5 else 40]
    _, one, other = max(
        (int(distances.max()), int(cell), int(distances.argmax()))
        for cell, distances in ((cell, np.abs(table[:, [cell]] - table).sum(axis=0)) for cell in far)
    )
    # They differ in one column; their other values are in the cell of the largest norm.
    places = np.full((2, columns), MIDDLES[norms.argmax()])
    places[:, 0] = MIDDLES[[one, other]]
    moved = int(np.abs(made.sums(places[:1]) - made.sums(places[1:])).sum())
    assert moved == made.sensitivity == made.event.sensitivity
    norm = replace(made, charge="norms").sensitivity
    assert norm == 2 * norms.max() ** columns
    assert 0.79 < moved / norm < 0.91


def test_the_sums_are_whole_exact_and_moved_by_one_person_as_the_event_says():
    made = Coefficients(basis=Basis(order=3, level=3), columns=2, scale=1e9)
    rng = np.random.default_rng(1)
    points = rng.random((500, 2))
    sums = made.sums(points)
    assert sums.dtype == np.int64
    table = made.basis.table(made.bits)
    cells = np.floor(points * CELLS).astype(int)
    np.testing.assert_array_equal(sums, np.einsum("in,jn->ij", table[:, cells[:, 0]], table[:, cells[:, 1]]))
    other = points.copy()
    other[0] = [0.0, 1.0]
    assert np.abs(made.sums(other) - sums).sum() <= made.event.sensitivity
    outside = np.array([[-3.0, 9.0]])
    np.testing.assert_array_equal(made.sums(outside), made.sums(np.array([[0.0, 1.0]])))
    assert privacy.pure_epsilon(Laplace(scale=2.0 * made.sensitivity, sensitivity=made.event.sensitivity)) == 0.5


def test_a_smooth_density_comes_back_from_its_coefficients():
    made = Coefficients(basis=Basis(order=2, level=3), columns=2, scale=2.0**28)
    rng = np.random.default_rng(2)
    points = rng.beta(3, 3, (60_000, 2))
    density = made.density(made.release(points, seeded_rng(3)), len(points), 64)
    at = (np.arange(64) + 0.5) / 64
    one = 30 * (at * (1 - at)) ** 2
    assert density.mean() == pytest.approx(1, abs=0.02)
    assert np.sqrt(np.mean((density - np.multiply.outer(one, one)) ** 2)) < 0.25


@pytest.mark.parametrize(
    "wrong", [{"order": 1, "level": 3}, {"order": 5, "level": 4}, {"order": 3, "level": 2}, {"order": 2, "level": 9}]
)
def test_an_order_or_level_that_cannot_be_is_refused(wrong):
    with pytest.raises(ParameterError):
        Basis(**wrong)


@pytest.mark.parametrize("columns", [0, 4])
def test_four_columns_are_refused_and_places_must_be_numbers(columns):
    basis = Basis(order=2, level=2)
    with pytest.raises(ParameterError, match="1 to 3 columns"):
        Coefficients(basis=basis, columns=columns, scale=1.0)
    made = Coefficients(basis=basis, columns=2, scale=1.0)
    for points in (np.ones((3, 3)), np.array([[0.5, math.nan]])):
        with pytest.raises(ParameterError, match="finite columns"):
            made.sums(points)
    with pytest.raises(ParameterError, match="scale"):
        Coefficients(basis=basis, columns=2, scale=0.0)
