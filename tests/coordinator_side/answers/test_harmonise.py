"""Transport maps between sites: their laws, what noise does to them, and the view that is never silent."""

from __future__ import annotations

import datetime as dt
import json
import ssl
from dataclasses import replace
from types import SimpleNamespace

import httpx
import numpy as np
import pandas as pd
import pytest
from stage.coordinator_side.analysis import Desk
from stage.coordinator_side.doors import installed, lacking

from coordinator import cli
from coordinator.analyst import commands as client
from coordinator.analyst.commands import connect
from coordinator.analyst.own.table import OwnTable
from coordinator.analyst.remote import HarmonisedResult
from coordinator.answers import harmonise, maps
from coordinator.answers.densities import Joint, Noisy, case_mix_warning, density_of, distance, on_simplex
from coordinator.answers.harmonise import Harmonisation, Known, densities, harmonised
from coordinator.answers.maps import (
    _COARSE,
    ColumnsMap,
    GridMap,
    Map,
    _by_kernels,
    _by_logarithms,
    require_told_apart,
)
from coordinator.answers.release_selection import holding
from coordinator.demo.catalogue import play_of
from coordinator.demo.play import DemoOptions, pooled_real
from coordinator.services.analysis import AnalysisService
from coordinator.services.analysts import Analyst
from coordinator.web.workbench.asked_elsewhere import copies
from shared.base.randomness import seeded_rng
from shared.errors import AccessRefusal, EstimateRefusal, ParameterError, SchemaRefusal, StoreAway
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.plans.plan import Budget, StudyPlan
from shared.wire.transport import Call
from tests.stage.coordinator_side.delivered import cohort, cohort_plan, deliver, join, take_back

EDGES = np.linspace(40.0, 700.0, 65)


def onto(to: str, column: str = "chol", **more) -> Harmonisation:
    return Harmonisation(column=column, to=to, **more)


def noisy(values: np.ndarray, epsilon: float, seed: int, edges: np.ndarray = EDGES) -> Noisy:
    """A density as a site would release it."""
    counts = np.histogram(values, edges)[0]
    scale = 2 / epsilon
    counts = counts + seeded_rng(seed).lattice_laplace_steps(scale, counts.shape, 1.0)
    return Noisy(counts=counts, edges=edges, persons=len(values), scale=scale)


def bent(values: np.ndarray) -> np.ndarray:
    """Another laboratory's scale: not affine."""
    return 40 + 660 * ((values - 40) / 660) ** 0.6


def stretched(values: np.ndarray) -> np.ndarray:
    """A laboratory that saturates; where most patients are, a unit of it is about half a unit."""
    return 40 + 660 * np.sin(np.pi / 2 * np.minimum(1.4 * (values - 40) / 660, 1.0))


def chol(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(210 + 35 * shift, 35, n).clip(40, 700)


def told_apart(here, there, columns=("chol",)) -> bool:
    """False where a map between the two is refused."""
    try:
        require_told_apart(here, there, columns, "south and north")
    except EstimateRefusal:
        return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_a_map_between_units_of_which_one_lies_in_a_cell_is_refused_and_one_in_the_same_unit_is_not(seed):
    edges = np.linspace(1.0, 700.0, 65)
    here, there = (noisy(chol(3000, 10 * seed + k), 2.0, seed + k, edges) for k in (1, 2))
    assert told_apart(here, there)
    assert told_apart(noisy(bent(chol(3000, seed)), 2.0, seed, edges), there)
    assert told_apart(noisy(stretched(chol(3000, seed)), 2.0, seed, edges), there)
    other = noisy(chol(3000, seed) / 38.67, 2.0, seed, edges)
    # As it was: most of a unit is lost within the cell.
    assert Map(here, other).slope * 38.67 > 2.0
    for one, two in ((here, other), (other, here)):
        with pytest.raises(EstimateRefusal, match="different units") as caught:
            require_told_apart(one, two, ("chol",), "south and north")
        assert "between south and north" in str(caught.value)
    # Where both are narrow, a scale in three cells is alike at both; in one cell nothing of it is told.
    narrow = [noisy(chol(3000, seed + k) / 12, 2.0, seed + k, edges / 3) for k in (3, 4)]
    assert told_apart(*narrow)
    assert not told_apart(other, noisy(chol(3000, seed + 9) / 38.67, 2.0, seed + 9, edges))


def test_private_quantiles_follow_a_unit_and_are_not_refused(plan):
    made = way(plan, ["sbp"], basis="quantiles")
    rng = np.random.default_rng(1)
    mmhg, kpa = (seen_by(made, {"sbp": rng.normal(140, 18, 4000).clip(70, 270) / per + less}, 1) for per, less in UNITS)
    assert told_apart(mmhg, kpa, ("sbp",))
    assert Map(mmhg, kpa).slope == pytest.approx(1 / 7.5, rel=0.1)


UNITS = ((1.0, 0.0), (7.5, 70.0))


ODD = {
    "empty": np.zeros(64),
    "all negative": np.full(64, -40.0),
    "one atom": np.eye(64)[20] * 500,
    "two atoms": np.eye(64)[3] * 250 + np.eye(64)[60] * 250,
    "noise alone": np.random.default_rng(1).laplace(scale=200, size=64).round(),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("scale", [0.0, 2.0, 200.0])
def test_whatever_is_released_gives_a_density_and_increasing_maps_that_can_be_undone(name, scale):
    odd = Noisy(counts=ODD[name], edges=EDGES, persons=500, scale=scale)
    assert odd.shares.min() > 0
    assert odd.shares.sum() == pytest.approx(1, abs=1e-12)
    there = Map(odd, noisy(chol(500, 2), 1.0, 3))
    points = np.linspace(40, 700, 999)
    for one in (there, there.inverse):
        assert np.isfinite(one(points)).all()
        assert (np.diff(one(points)) > 0).all()
    # To 1e-10 of the range where a site meets itself; there and back through steep pieces loses more digits.
    assert np.abs(Map(odd, odd)(points) - points).max() <= 1e-10 * 660
    assert np.abs(there.inverse(there(points)) - points).max() <= 1e-6 * 660


def test_a_site_mapped_onto_itself_stays_where_it_is():
    for n in (50, 2000, 10**6):
        one = noisy(chol(n, 4), 1.0, 5)
        points = np.linspace(40, 700, 2001)
        assert np.abs(Map(one, one)(points) - points).max() <= 1e-10 * 660


def test_outside_values_are_counted_and_mapped_as_the_bounds_and_missing_ones_stay_missing():
    one = Map(noisy(chol(2000, 1), 1.0, 1), noisy(chol(2000, 2), 1.0, 2))
    values = np.array([0.0, 40.0, 700.0, 900.0, np.nan])
    mapped = one(values)
    np.testing.assert_array_equal(mapped[:4], [40, 40, 700, 700])
    assert np.isnan(mapped[4])
    assert one.outside(values) == 2


@pytest.mark.parametrize("distortion", [lambda v: 60 + 0.8 * v, bent], ids=["affine", "bent"])
def test_a_known_distortion_is_undone_the_better_the_more_there_is_of_n_and_epsilon(distortion):
    """Error of the map back to the true scale over the middle 90 %, in the column's standard deviations."""
    errors = []
    points = np.quantile(chol(100_000, 9), np.linspace(0.05, 0.95, 91))
    for n, epsilon in ((500, 0.5), (5000, 1.0), (200_000, 5.0)):
        here, there = [], []
        for seed in range(4):
            back = Map(noisy(distortion(chol(n, seed)), epsilon, seed), noisy(chol(n, 100 + seed), epsilon, 50 + seed))
            here.append(np.sqrt(np.mean((back(distortion(points)) - points) ** 2)) / 35)
            there.append(np.sqrt(np.mean((back.inverse(points) - distortion(points)) ** 2)) / 35)
        errors.append((np.mean(here), np.mean(there)))
    assert errors[0][0] > errors[1][0] > errors[2][0]
    assert max(errors[2]) < 0.05
    assert max(errors[1]) < 0.2


def test_shrinking_brings_the_density_nearer_to_the_truth_and_to_even_where_there_is_only_noise():
    sure = np.histogram(chol(2_000_000, 8), EDGES)[0] / 2_000_000
    gain = []
    for seed in range(20):
        one = noisy(chol(1000, seed), 1.0, seed)
        gain.append([((one.shares - sure) ** 2).sum(), ((one.counts / 1000 - sure) ** 2).sum()])
    shrunk, raw = np.mean(gain, axis=0)
    assert shrunk < 0.5 * raw
    lost = noisy(chol(50, 1), 0.01, 7)
    assert np.abs(lost.shares - 1 / 64).sum() < np.abs(lost.counts / 50 - 1 / 64).sum() / 50


def test_the_projection_is_the_nearest_probability():
    rng = np.random.default_rng(3)
    for values in rng.normal(scale=2, size=(20, 6)):
        best = on_simplex(values)
        others = rng.dirichlet(np.ones(6), 300)
        assert ((best - values) ** 2).sum() <= ((others - values) ** 2).sum(axis=1).min() + 1e-12


def test_the_bootstrap_s_band_is_as_wide_as_maps_really_vary():
    rng = np.random.default_rng(6)
    source, target = noisy(bent(chol(5000, 1)), 1.0, 1), noisy(chol(5000, 2), 1.0, 2)
    at = np.quantile(bent(chol(5000, 1)), [0.2, 0.5, 0.8])
    claimed = np.std([Map(source.redraw(rng), target.redraw(rng))(at) for _ in range(60)], axis=0)
    really = np.std(
        [Map(noisy(bent(chol(5000, s)), 1.0, s), noisy(chol(5000, 500 + s), 1.0, 900 + s))(at) for s in range(60)],
        axis=0,
    )
    assert (claimed / really > 0.6).all()
    assert (claimed / really < 1.7).all()


def test_a_warning_needs_patients_that_differ_and_says_which_column_shows_it():
    age = np.linspace(15, 110, 65)

    def site(shift: float, seed: int) -> dict[str, Noisy]:
        ages = np.random.default_rng(seed).normal(55 + 8 * shift, 8, 5000).clip(15, 110)
        return {"chol": noisy(bent(chol(5000, seed, shift)), 1.0, seed), "age": noisy(ages, 1.0, seed + 90, age)}

    mild = {"a": site(0.0, 1), "b": site(0.4, 2), "c": site(-0.4, 3)}
    assert case_mix_warning(mild, "chol", "a") == ()
    far = {**mild, "d": site(1.5, 4)}
    (said,) = case_mix_warning(far, "chol", "a")
    assert said.startswith("d and a lie 1.")
    assert "age is measured alike" in said
    # Without such a column the distortion itself looks the same as other patients, and the sentence says so.
    alone = {"a": {"chol": noisy(chol(5000, 1), 1.0, 1)}, "b": {"chol": far["b"]["chol"]}}
    (said,) = case_mix_warning(alone, "chol", "a")
    assert "no column that should not differ" in said
    assert distance(mild["a"]["age"], mild["a"]["age"]) == 0
    with pytest.raises(ParameterError, match="reference"):
        case_mix_warning(mild, "chol", "e")


def test_patients_who_spread_otherwise_are_warned_of_with_the_direction_and_the_size():
    age = np.linspace(15, 110, 65)

    def site(spread: float, seed: int) -> dict[str, Noisy]:
        ages = np.random.default_rng(seed).normal(55, 8 * spread, 2000).clip(15, 110)
        return {"chol": noisy(chol(2000, seed), 1.0, seed), "age": noisy(ages, 1.0, seed + 90, age)}

    reference = site(1.0, 1)
    for seed in range(2, 12):
        assert case_mix_warning({"a": reference, "b": site(1.0, seed)}, "chol", "a") == ()
    (said,) = case_mix_warning({"a": reference, "b": site(1.6, 2)}, "chol", "a")
    assert said.startswith("age is measured alike and spreads 1.")
    assert "times more at b than at a" in said
    assert "coefficient of it too large by about this factor, and one of it as the outcome too small" in said
    (said,) = case_mix_warning({"a": reference, "b": site(0.6, 2)}, "chol", "a")
    assert "times less at b than at a" in said
    assert "coefficient of it too small by about this factor, and one of it as the outcome too large" in said
    # A column that the laboratory may stretch says nothing of patients.
    alone = {"a": {"chol": reference["chol"]}, "b": {"chol": noisy(chol(2000, 3) * 1.6 - 126, 1.0, 3)}}
    assert not [one for one in case_mix_warning(alone, "chol", "a") if "spreads" in one]


def on_grid(points: np.ndarray, bins: int = 16) -> np.ndarray:
    return np.histogramdd(points, bins=[np.linspace(0, 1, bins + 1)] * points.shape[1])[0]


def joint(counts: np.ndarray, persons: float, scale: float = 2.0) -> Joint:
    edges = tuple(np.linspace(0, 1, bins + 1) for bins in counts.shape)
    return Joint(counts=counts, edges=edges, persons=persons, scale=scale)


def test_a_map_of_two_columns_leaves_a_site_on_itself_and_is_the_two_single_maps_where_the_columns_are_unrelated():
    rng = np.random.default_rng(2)
    here = np.stack([rng.beta(4, 4, 40_000), rng.beta(5, 4, 40_000)], axis=1)
    there = np.stack([0.2 + 0.7 * rng.beta(4, 4, 40_000), rng.beta(5, 4, 40_000) ** 0.7], axis=1)
    n = 40_000.0
    points = np.clip(here[:300], 0.15, 0.85)
    itself = GridMap(joint(on_grid(here), n), joint(on_grid(here), n))
    assert np.abs(itself(points) - points).max() <= 1e-10
    one = GridMap(joint(on_grid(here), n, 0.0), joint(on_grid(there), n, 0.0))(points)
    truth = np.stack([0.2 + 0.7 * points[:, 0], points[:, 1] ** 0.7], axis=1)
    assert np.sqrt(np.mean((one - truth) ** 2)) < 0.02
    noise = [seeded_rng(k).lattice_laplace_steps(2.0, (16, 16), 1.0) for k in (1, 2)]
    noised = GridMap(joint(on_grid(here) + noise[0], n), joint(on_grid(there) + noise[1], n))(points)
    assert np.sqrt(np.mean((noised - truth) ** 2)) < 0.03


@pytest.mark.parametrize("n", [1000, 20_000], ids=["coarse", "fine"])
@pytest.mark.parametrize("d", [2, 3])
def test_patients_far_apart_and_close_together_arrive_where_the_target_has_them(d, n):
    """Where a kernel is 0 at a mass the map comes of logarithms; a bin of an eighth is a part of what is left."""
    rng = np.random.default_rng(1)
    for near, far, spread in ((0.1, 0.9, 0.03), (0.2, 0.8, 0.05), (0.3, 0.6, 0.1)):
        here, there = (rng.normal(mean, spread, (n, d)).clip(0, 1) for mean in (near, far))
        moved = GridMap(joint(on_grid(here, 8), n, 0.0), joint(on_grid(there, 8), n, 0.0))(here)
        assert np.abs(moved.mean(axis=0) - there.mean(axis=0)).max() < 0.06
        assert moved.std() == pytest.approx(there.std(), rel=0.15)


def test_kernels_and_logarithms_give_one_map():
    rng = np.random.default_rng(4)
    a, b = (on_grid(rng.beta(3, shape, (5000, 2)), 32) + 1 for shape in (3, 4))
    found = [way(a / a.sum(), np.stack([b / b.sum()]), _COARSE[2]) for way in (_by_kernels, _by_logarithms)]
    assert np.abs(found[0] - found[1]).max() < 1e-9


def test_three_columns_and_odd_figures_give_finite_maps_and_four_columns_a_refusal():
    rng = np.random.default_rng(5)
    cube = on_grid(rng.beta(3, 4, (5000, 3)), 8)
    moved = GridMap(joint(cube, 5000.0), joint(np.full((8, 8, 8), -3.0), 50.0))(rng.random((50, 3)))
    assert np.isfinite(moved).all()
    assert (moved >= 0).all()
    for shape, words in (((8,), "two or three columns"), ((3, 3, 3, 3), "histogram")):
        with pytest.raises(ParameterError, match=words):
            joint(np.ones(shape), 81.0)


@pytest.mark.parametrize("name", ODD)
def test_odd_figures_of_two_columns_give_a_finite_map_within_the_square_and_leave_a_site_on_itself(name):
    odd = np.outer(ODD[name], ODD[name])[:8, :8] if "atom" not in name else ODD[name].reshape(8, 8)
    points = np.random.default_rng(1).random((200, 2))
    for persons, scale in ((50.0, 200.0), (500.0, 2.0)):  # the first as 50 persons at ε = 0.01
        moved = GridMap(joint(odd, persons, scale), joint(np.outer(np.arange(8.0), np.ones(8)), 500.0, scale))
        assert np.isfinite(moved(points)).all()
        assert moved(points).min() >= 0
        assert moved(points).max() <= 1
    itself = GridMap(joint(odd, 500.0), joint(odd, 500.0))
    assert np.abs(itself(points) - points).max() <= 1e-10


@pytest.mark.parametrize(
    "wrong",
    [{"counts": np.ones(1)}, {"counts": np.full(64, np.nan)}, {"edges": EDGES[::-1]}, {"scale": np.inf}],
)
def test_a_histogram_that_is_none_is_refused(wrong):
    with pytest.raises(ParameterError, match="histogram"):
        Noisy(**{"counts": np.ones(64), "edges": EDGES, "persons": 64, **wrong})


def test_a_column_that_nobody_has_is_refused():
    with pytest.raises(EstimateRefusal, match="somebody with a value"):
        Noisy(counts=np.ones(64), edges=EDGES, persons=-3.0)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Three sites with released rows, one of them with another assay, and a second study with their densities."""
    made = Desk(tmp_path_factory.mktemp("hub"))
    rows = cohort_plan(**{'"cox(time, cvd) ~ sbp/10 + age/10 + chol/40 + hdl/15"': '"ols(hdl) ~ chol/10"'})
    ways = {
        "cvd-densities": DensitiesPlan(densities=[["chol"], ["age"]], epsilon=2.0, alike=["age"]),
        "cvd-pair": DensitiesPlan(densities=[["chol", "hdl"], ["age"]], epsilon=4.0, alike=["age"], persons=3000),
        "cvd-quantiles": DensitiesPlan(densities=[["chol"], ["age"]], epsilon=2.0, alike=["age"], basis="quantiles"),
    }
    studies = {
        name: replace(
            rows,
            study=name,
            release=release,
            posture="private",
            training=replace(rows.training, outcomes="joint"),
            budget=Budget(epsilon=9.0),
            estimands={},
        )
        for name, release in ways.items()
    }
    for plan in (rows, *studies.values()):
        made.publish(plan)
    for seed, site in enumerate(("north", "south", "west", "east")):
        invitation = made.authority.invite(
            site, ["cvd", *studies], address="localhost:1", leads=[made.lead.public], days=9
        )
        made.store.add_invitation(invitation)
        key = made.keys[site] = join(made.store, invitation)
        table = cohort(3000, seed)
        rng = np.random.default_rng(seed)
        table["hdl"] = (50 + 0.1 * (table["chol"] - 210) + rng.normal(0, 6, len(table))).clip(5, 250)
        if site == "south":
            table["chol"] = stretched(table["chol"].to_numpy()).round(0)
        deliver(made.store, rows, site, key, table)
        if site == "east":  # never released a density
            continue
        records = table.assign(person=range(len(table)))
        for beside in studies.values():
            drawn = beside.release.draw(beside, beside.dictionary.check(records), seeded_rng(seed))
            beside.release.validate(beside, drawn, len(table))
            deliver(made.store, beside, site, key, drawn, n=len(table))
    yield made.start(web={"listen": "127.0.0.1:0", "certificate": "", "key": ""})
    made.stop()


@pytest.fixture(scope="module")
def hub(desk):
    return desk.store


@pytest.mark.parametrize(
    ("persons", "said"), [(True, r"of one \[release\] to be added up"), (False, "figures of the same persons")]
)
def test_densities_of_one_site_are_added_up_only_where_their_noise_is_the_same(persons, said, tmp_path):
    """A version of the plan from before the diameter was known has more noise than the next one, at the same ε.

    And only where they are of different persons, which nobody knows if the first version named none.
    """
    made = Desk(tmp_path / "hub")
    release = DensitiesPlan(densities=[["chol"]], epsilon=2.0, basis="daubechies2", sensitivity="norms")
    rows = cohort_plan()
    waves = tuple(replace(rows.waves[0], number=k) for k in (1, 2))
    budget = Budget(epsilon=9.0)
    joint = replace(rows.training, outcomes="joint")
    first = replace(rows, release=release, posture="private", training=joint, budget=budget, estimands={}, waves=waves)
    second = replace(first, version=2, release=replace(release, sensitivity="diameter"))
    if not persons:
        others = tuple(column for column in first.dictionary.columns if column.kind != "person")
        second = replace(first, version=2, returning="append")
        first = replace(first, dictionary=replace(first.dictionary, columns=others), returning="refresh")
    invitation = made.authority.invite("north", ["cvd"], address="localhost:1", leads=[made.lead.public], days=9)
    made.store.add_invitation(invitation)
    key = join(made.store, invitation)
    for wave, plan in enumerate((first, second), start=1):
        made.publish(plan)
        table = cohort(500, wave)
        given = table.assign(person=range(500))[[column.name for column in plan.dictionary.columns]]
        drawn = plan.release.draw(plan, plan.dictionary.check(given), seeded_rng(wave))
        deliver(made.store, plan, "north", key, drawn, wave=wave, n=500)
        if wave == 1:
            known, _ = densities(made.store, "cvd")
            assert set(known) == {"north"}
    with pytest.raises(EstimateRefusal, match=said):
        densities(made.store, "cvd")


def test_a_study_of_densities_is_described_without_rows_that_it_does_not_hold(hub):
    plan = hub.plan("cvd-densities").plan
    release = next(iter(hub.releases("cvd-densities")))
    with pytest.raises(EstimateRefusal, match="draw rows"):
        plan.release.synthetic(plan, [(hub.table(release), 3000)], draws=1, rng=np.random.default_rng(1))
    service = AnalysisService(hub, today=lambda: dt.date(2026, 1, 5))
    who = Analyst(role="analyst", site="ada", serial="1", studies=("cvd-densities",))
    shares = service._shares([release], who, Call(peer=who))
    service.close()
    assert shares == {release.bundle_sha256: {}}, "what is missing cannot be told column by column"


def test_all_rows_in_one_table_are_of_the_mapped_sites_and_say_which_scales_they_mix(hub, monkeypatch):
    def asked():
        return harmonised(hub, holding(hub, "cvd"), "ols(hdl) ~ chol/10", onto("north", draws=2), term="chol")

    plain = asked()
    assert "east" not in {row.site for row in plain.harmonised.estimates}, "it has no density"
    assert plain.raw.n == sum(row.n for row in plain.harmonised.estimates)
    slopes = {site: one.line.slope for site, one in plain.maps.items()}
    assert slopes["north"] == 1
    (far,) = (site for site, slope in slopes.items() if abs(np.log(slope)) > np.log(1.5))
    (said,) = (note for note in plain.notes if "mix scales" in note)
    assert f"densities 1 at {far} is about {slopes[far]:.3g} at north. Read" in said
    monkeypatch.setattr(maps, "APART", np.exp(abs(np.log(slopes[far]))) * 1.001)
    assert not any("mix scales" in note for note in asked().notes)


def test_the_view_shows_the_answer_raw_with_intercepts_and_harmonised_and_says_what_it_did(hub):
    seen = harmonised(hub, holding(hub, "cvd"), "ols(hdl) ~ chol/10", onto("north", draws=5), term="chol")
    slopes = {row.site: row.yi for row in seen.harmonised.estimates}
    assert slopes["south"] == pytest.approx(1.0, abs=0.12)
    crooked = {row.site: row.yi for row in seen.intercepts.estimates}
    assert abs(crooked["south"] - 1.0) > 0.2
    assert slopes["north"] == pytest.approx(crooked["north"], abs=1e-9)
    assert seen.raw.yi is not None
    assert abs(seen.raw.yi - 1) > 0.2
    assert seen.map_variance > 0
    without = replace(seen.harmonised, shared=0.0)
    assert seen.harmonised.se**2 - without.se**2 == pytest.approx(seen.map_variance)
    assert seen.harmonised.ci_lb < without.ci_lb < without.ci_ub < seen.harmonised.ci_ub
    assert seen.harmonised.fixed.se > without.fixed.se
    assert seen.site_map_variance["north"] == 0, "it is its own scale"
    assert seen.site_map_variance["south"] > 0
    assert [left.label for left in seen.harmonised.excluded] == ["east"]
    assert seen.warnings == ()
    text = "\n".join(seen.lines)
    for said in (
        "Coefficient of chol/10 in ols(hdl) ~ chol/10",
        "all rows in one table",
        "site by site",
        "harmonised",
        f"{100 * seen.map_variance / seen.harmonised.se**2:.0f} % of the variance of the harmonised one",
        "assumes that the sites' patients are alike",
        "age",
    ):
        assert said in text
    points, mapped, lower, upper = seen.bands["south"]["chol"]
    np.testing.assert_allclose(seen.maps["south"](points[:, None])[:, 0], mapped)
    inside = (lower <= mapped + 1e-6) & (mapped - 1e-6 <= upper)
    assert inside.mean() > 0.7


def over_https(desk, token, found) -> None:
    """The same question over HTTPS: the same answer, its words with those of the maps, and what is copied from it."""
    asked = {"formula": found.document["planned"], "harmonise": "chol,hdl", "to": "north", "densities": "cvd-pair"}
    address, tls = f"https://127.0.0.1:{desk.running.web_port}", ssl.create_default_context(cadata=token.ca_pem)
    bearer = {"authorization": f"Bearer {token.token}"}
    with httpx.Client(base_url=address, verify=tls, headers=bearer, timeout=90) as web:
        answered = web.post("/v1/studies/cvd/queries", json=asked)
        assert answered.json() == found.document
        place = f"/v1/studies/cvd/results/{found.id}"
        assert web.get(f"{place}/words").json()["mapped"] == found.mapping["lines"]
        assert "on the scale of north" in web.get(f"{place}/forest.svg").text
        refused = web.post("/v1/studies/cvd/queries", json={**asked, "to": ""})
        assert (refused.status_code, refused.json()["code"]) == (400, "E_SCHEMA")
    texts = dict(copies(found.document, "hub:1"))
    assert list(texts) == ["Python", "R", "command"]
    scope = {"study": SimpleNamespace(harmonise=lambda *words, **how: (words, how))}
    words, how = eval(texts["Python"].split("answer = ")[1].split("\n")[0], scope)
    assert (words, how["to"], how["formula"]) == (("chol,hdl",), "north", found.document["asked"]["estimand"])


def test_two_columns_are_mapped_together_with_a_band_and_a_variance_of_their_own(desk, tmp_path):
    dan = desk.admit("dan", studies=("cvd", "cvd-pair"))
    with connect(dan) as connection:
        found = connection["cvd"].harmonise(["chol", "hdl"], to="north", densities="cvd-pair")
        over_https(desk, dan, found)
        told = found.mapping
        assert told["column"] == "chol,hdl"
        slopes = {row["site"]: row["yi"] for row in told["estimates"]}
        crooked = {row["site"]: row["yi"] for row in found.document["estimates"]}
        assert slopes["north"] == pytest.approx(crooked["north"], abs=1e-6), "it is its own scale"
        assert abs(slopes["south"] - 1) < 0.6 * abs(crooked["south"] - 1)
        assert told["site_map_variance"]["north"] == 0
        assert told["site_map_variance"]["south"] > 0
        assert found.harmonised.se**2 == pytest.approx(
            replace(found.harmonised, shared=0.0).se ** 2 + told["map_variance"]
        )
        for name in ("chol", "hdl"):
            band = {key: np.array(values) for key, values in told["maps"]["south"][name].items()}
            assert (band["lower"] <= band["upper"]).all()
            assert np.mean((band["lower"] - 1e-6 <= band["mapped"]) & (band["mapped"] <= band["upper"] + 1e-6)) > 0.7
            itself = told["maps"]["north"][name]
            np.testing.assert_allclose(itself["mapped"], itself["value"], atol=1e-10 * 660)
        assert any("mapped together" in line for line in told["lines"])
        assert [one for one in told["warnings"] if one.startswith("The question is about nothing but chol and hdl")]
        assert "chol and hdl on the scale of north" in found.forest(tmp_path / "pair.svg").read_text()
        with pytest.raises(EstimateRefusal, match="density of chol and age"):
            connection["cvd"].harmonise("chol,age", to="north", formula="ols(hdl) ~ chol + age", densities="cvd-pair")
        with pytest.raises(ParameterError, match="different columns"):
            connection["cvd"].harmonise("chol,chol", to="north", formula="ols(hdl) ~ chol", densities="cvd-pair")


@pytest.mark.parametrize("columns", ["chol,hdl", "hdl,chol"])
def test_columns_are_mapped_together_in_whichever_order_a_question_has_them(hub, columns):
    by = onto("north", columns, source="cvd-pair", draws=2)
    seen = harmonised(hub, holding(hub, "cvd"), "ols(hdl) ~ chol/10", by, term="chol")
    assert {row.site for row in seen.harmonised.estimates} == {"north", "south", "west"}
    assert [one for one in seen.warnings if one.startswith("The question is about nothing but")]


def test_maps_of_private_quantiles_serve_the_same_view(hub):
    by = onto("north", source="cvd-quantiles", draws=3)
    seen = harmonised(hub, holding(hub, "cvd"), "ols(hdl) ~ chol/10", by, term="chol")
    slopes = {row.site: row.yi for row in seen.harmonised.estimates}
    assert slopes["south"] == pytest.approx(1.0, abs=0.15)
    assert seen.site_map_variance["south"] > 0
    assert seen.warnings == ()


def test_a_site_in_another_unit_is_left_out_with_the_reason_and_is_no_reference(hub, monkeypatch):
    edges = np.linspace(1.0, 700.0, 65)
    known = {
        site: Known(single={"chol": noisy(chol(3000, k) / per, 2.0, k, edges)}, joint={})
        for k, (site, per) in enumerate({"north": 1.0, "south": 38.67, "west": 1.0}.items())
    }
    monkeypatch.setattr("coordinator.answers.harmonise.densities", lambda *_: (known, ()))
    held, question = holding(hub, "cvd"), "ols(hdl) ~ chol/10"
    found = {row.site: row for row in harmonised(hub, held, question, onto("north", draws=2)).estimates}
    assert "different units" in found["south"].reason or "middle 80 %" in found["south"].reason
    assert found["south"].yi is None
    assert found["west"].yi is not None
    with pytest.raises(EstimateRefusal, match="different units"):
        harmonised(hub, held, question, onto("south", draws=2))


WAYS: dict[str, dict] = {
    "smooth": {"basis": "daubechies2"},
    "smoother": {"basis": "daubechies4"},
    "quantiles": {"basis": "quantiles"},
    "local": {"trust": "local", "epsilon": 6.0},
    "local, Laplace": {"trust": "local", "epsilon": 1.0},
}


def way(plan: StudyPlan, columns: list[str], **settings) -> StudyPlan:
    prescribed = DensitiesPlan(**{"densities": [columns], "epsilon": 2.0, "persons": 4000, **settings})
    return replace(plan, release=prescribed, posture="private", budget=Budget(epsilon=9.0))


def seen_by(made: StudyPlan, values: dict[str, np.ndarray], seed: int):
    """The density as a coordinator has it, of records that a site would check."""
    records = pd.DataFrame(values)
    [group] = made.release.groups(made)
    drawn = made.release.draw(made, records, seeded_rng(seed))
    made.release.validate(made, drawn, len(records))
    [figures] = made.release.figures(made, drawn)
    return density_of(group, [(figures, len(records))])


@pytest.mark.parametrize("name", WAYS)
def test_every_way_of_releasing_undoes_a_distortion_and_knows_how_well(plan, name):
    made = way(plan, ["sbp"], **WAYS[name])
    rng = np.random.default_rng(1)

    def site(seed, through=lambda v: v):
        return {"sbp": through(np.random.default_rng(seed).normal(140, 18, 4000).clip(70, 270))}

    def other(v):
        return 70 + 200 * ((v - 70) / 200) ** 0.7

    here, there = seen_by(made, site(1, other), 1), seen_by(made, site(2), 2)
    at = np.quantile(site(3)["sbp"], [0.15, 0.3, 0.5, 0.7, 0.85])
    limit = {"local, Laplace": 1.2, "local": 0.45}.get(name, 0.2)
    assert np.sqrt(np.mean((Map(here, there)(other(at)) - at) ** 2)) / 18 < limit
    again = [Map(here.redraw(rng), there.redraw(rng))(other(at)) for _ in range(9)]
    claimed = np.std(again, axis=0).mean()
    really = np.std(
        [Map(seen_by(made, site(k, other), k), seen_by(made, site(50 + k), 50 + k))(other(at)) for k in range(9)],
        axis=0,
    ).mean()
    assert 0.4 < claimed / really < 2.5
    points = np.linspace(70, 270, 999)
    assert np.abs(Map(here, here)(points) - points).max() <= 1e-10 * 200


ODDITIES = {
    "constant": lambda n: np.full(n, 140.0),
    "two atoms": lambda n: np.where(np.arange(n) % 2, 80.0, 260.0),
    "at the bounds": lambda n: np.where(np.arange(n) % 2, 70.0, 270.0),
}


@pytest.mark.parametrize("odd", ODDITIES)
@pytest.mark.parametrize("name", ["haar", *WAYS])
def test_odd_records_give_finite_maps_by_every_way_even_for_fifty_persons_at_a_hundredth_of_an_epsilon(plan, name, odd):
    for n, epsilon in ((50, 0.01), (400, 5.0)):
        made = way(plan, ["sbp"], **{**WAYS.get(name, {}), "epsilon": epsilon, "persons": n})
        both = [
            seen_by(made, {"sbp": values}, k) for k, values in enumerate((ODDITIES[odd](n), np.linspace(70, 270, n)))
        ]
        for here, there in (both, both[::-1]):
            mapped = Map(here, there)(np.linspace(60, 280, 300))
            assert np.isfinite(mapped).all()
            assert (np.diff(mapped) >= 0).all()
            assert mapped.min() >= 70 - 1e-9
            assert mapped.max() <= 270 + 1e-9
            assert np.isfinite(Map(here.redraw(np.random.default_rng(2)), there)(np.array([90.0]))).all()


@pytest.mark.parametrize("name", ["haar", "smooth", "local"])
@pytest.mark.parametrize("columns", [["sbp", "time"], ["sbp", "time", "visits"]], ids=len)
def test_odd_records_of_several_columns_give_finite_maps_within_the_bounds_and_none_of_themselves(plan, name, columns):
    for n, epsilon in ((50, 0.01), (400, 5.0)):
        made = way(plan, columns, **{**WAYS.get(name, {}), "epsilon": epsilon, "persons": n})
        rng = np.random.default_rng(3)
        one = {"sbp": np.full(n, 140.0), "time": np.where(np.arange(n) % 2, 0.0, 20.0), "visits": np.full(n, 3.0)}
        two = {"sbp": rng.uniform(70, 270, n), "time": rng.uniform(0, 20, n), "visits": rng.integers(0, 41, n) * 1.0}
        both = [seen_by(made, values, k) for k, values in enumerate((one, two))]
        values = np.stack([two[name_] for name_ in columns], axis=1)
        for here, there in (both, both[::-1]):
            mapped = ColumnsMap(here.redraw(rng), there)(values)
            assert np.isfinite(mapped).all()
            for i, edges in enumerate(there.edges):
                assert mapped[:, i].min() >= edges[0] - 1e-9
                assert mapped[:, i].max() <= edges[-1] + 1e-9
            assert np.abs(ColumnsMap(here, here)(values) - values).max() <= 1e-10 * 200
        gap = values.copy()
        gap[0, 0] = np.nan
        assert np.isnan(ColumnsMap(both[0], both[1])(gap)[0]).all()


def test_a_database_that_goes_meanwhile_is_no_reason_in_an_answer(monkeypatch):
    """Asked again the question may have its answer; in the document it would stand for good, with the place."""

    def away(*given, **named):
        raise StoreAway("the coordinator's database must be reached", given="no connection to db.internal:5432")

    monkeypatch.setattr(harmonise, "estimate", away)
    rows = {"a": pd.DataFrame({"sbp": [120.0, 130.0]})}
    with pytest.raises(StoreAway):
        harmonise._stacked(None, SimpleNamespace(study="cvd", wave=1), rows, None, "sbp", {})


def test_what_cannot_be_harmonised_is_refused_with_what_to_do(hub):
    held, question = holding(hub, "cvd"), "ols(hdl) ~ chol"
    with pytest.raises(EstimateRefusal, match="must have released a density of chol") as caught:
        harmonised(hub, held, question, onto("east", draws=2))
    assert "north, south, west" in str(caught.value)
    with pytest.raises(EstimateRefusal, match="must have released a density of hdl"):
        harmonised(hub, held, question, onto("north", "hdl", draws=2))
    with pytest.raises(ParameterError, match="about the mapped column"):
        harmonised(hub, held, "mean(hdl)", onto("north"))
    with pytest.raises(EstimateRefusal, match="must release densities"):
        densities(hub, "cvd")
    with pytest.raises(ParameterError, match="two draws"):
        harmonised(hub, held, "mean(chol)", onto("north", draws=1))
    for own in ("mean(chol)", "mean(chol, subset = chol > 150)"):  # mapped, it is the reference's at every site
        with pytest.raises(EstimateRefusal, match="reference's own"):
            harmonised(hub, held, own, onto("north", draws=2))


def test_an_exported_harmonised_answer_has_the_maps_error_and_is_pooled_again_with_it(desk, tmp_path):
    """Of its mapped estimates the file had the variances alone: pooled again, they were too sure by the maps' error."""
    how = {"method": "REML", "test": "adhoc", "level": 0.95}
    with connect(desk.admit("ines", studies=("cvd", "cvd-densities"))) as connection:
        found = connection["cvd"].harmonise("chol", to="north", formula="hdl ~ chol/10", kind="ols")
        path = found.export(tmp_path / "answer.csv")
        sent = json.loads(found.export(tmp_path / "answer.json").read_text())["harmonised"]
    mapped, variances = found.harmonised, found.mapping["site_map_variance"]
    table = pd.read_csv(path)
    assert table["vi_common_map"].tolist() == [found.mapping["map_variance"]] * len(table)
    assert {row["label"]: row["vi_map"] for row in sent["rows"]} == {name: variances[name] for name in mapped.labels}
    assert [*table["vi_common_harmonised"]] == [row["vi_common"] for row in found.mapping["estimates"]]
    again = OwnTable(file=path, yi="yi_harmonised", vi="vi_harmonised").pooled(**how)
    assert (again.beta, again.se) == pytest.approx((mapped.beta, mapped.se))
    assert mapped.se > 1.01 * replace(mapped, shared=0.0).se
    assert again.noise_share == pytest.approx(mapped.noise_share)
    assert set(found.warnings) <= set(again.doubts)
    released = OwnTable(file=path).pooled(**how)
    assert (released.beta, released.se) == pytest.approx((found.beta, found.se)), "a map is not in what was released"


IN_R = ("yi", "vi", "vi_common", "yi_harmonised", "vi_harmonised", "vi_common_harmonised", "vi_map", "vi_common_map")


def test_r_is_given_the_same_two_answers_and_prints_them_side_by_side(desk, tmp_path):
    if missing := lacking():
        pytest.skip(missing)
    token = desk.save(desk.admit("rosa", studies=("cvd", "cvd-densities", "cvd-pair")))
    library = tmp_path / "library"
    library.mkdir()
    run = installed(library)
    printed = run(
        f"""cvd <- study(connect("https://127.0.0.1:{desk.running.web_port}", {str(token)!r}), "cvd")
        one <- harmonise(cvd, "chol", to = "north", hdl ~ chol/10, kind = "ols")
        rows <- as.data.frame(one)
        digits <- function(x) cat(ifelse(is.na(x), "None", sprintf("%.17g", x)), "\\n")
        for (name in c({", ".join(map(json.dumps, IN_R))})) digits(rows[[name]])
        digits(tidy(one)$estimate)
        pair <- harmonise(cvd, c("chol", "hdl"), to = "north", "ols(hdl) ~ chol/10", densities = "cvd-pair")
        cat(pair$document$harmonised$column, class(pair), "\\n")
        print(one)"""
    )
    with connect(token) as connection:
        found = connection["cvd"].harmonise("chol", to="north", formula="hdl ~ chol/10", kind="ols")
    copied = dict(copies(found.document, f"127.0.0.1:{desk.running.web_port}"))["R"]
    copied = copied.replace("NAME.token.json", str(token)).removesuffix("answer")
    said = run(f"{copied}cat(class(answer)[1], sprintf('%.17g', unlist(answer$document$pooled[c('beta', 'se')])))")
    assert said.split()[0] == "tributary_harmonised"
    assert [float(word) for word in said.split()[1:]] == [found.document["pooled"][name] for name in ("beta", "se")]
    rows, lines = found.to_frame(), printed.splitlines()
    for name, line in zip(IN_R, lines, strict=False):
        own = rows["vi_sampling"] + rows["vi_privacy"] if name == "vi" else rows[name]
        expected = [None if pd.isna(value) else float(value) for value in own]
        assert [None if word == "None" else float(word) for word in line.split()] == expected, name
    lines = lines[len(IN_R) :]
    assert float(lines[0].split()[0]) == found.beta
    assert lines[1] == "chol,hdl tributary_harmonised tributary_answer "
    shown = "".join(lines[2:])
    for sentence in found.mapping["lines"]:
        assert "".join(sentence.split()) in "".join(shown.split()), sentence
    assert "as released" in shown


def test_service_client_and_command_line_give_the_same_three_answers_and_the_record_tells_of_them(
    desk, tmp_path, capsys
):
    token = desk.save(desk.admit("ada", studies=("cvd", "cvd-densities")))
    here = harmonised(desk.store, holding(desk.store, "cvd"), "adjusted", onto("north"))
    with connect(token) as connection:
        study = connection["cvd"]
        found = study.harmonise("chol", to="north")
        plain = study.query("", "adjusted")
        log = study.log()
        explained = study.explain(found.id)
        again = study.result(found.id)
        picture = found.forest(tmp_path / "three.svg").read_text()
    code = client.main(["harmonise", "cvd", "chol", "--to", "north", "--token", str(token), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 0
    lead = ["--home", str(desk.home), "harmonise", "cvd", "chol", "--to", "north", "--estimand", "adjusted"]
    assert cli.main([*lead, "--forest", str(tmp_path / "lead.svg"), "--json"]) == 0
    led = json.loads(capsys.readouterr().out)
    assert (tmp_path / "lead.svg").stat().st_size > 1000
    assert "harmonised" in {saved.kind for saved in desk.store.results("cvd")}
    told = json.loads(json.dumps(here.document["harmonised"]))
    for other in (found.mapping, said["harmonised"], again.mapping, led["harmonised"]):
        for name in ("pooled", "raw", "map_variance", "maps", "lines", "warnings", "site_map_variance", "excluded"):
            assert other[name] == told[name], name
    assert found.harmonised.ci_ub == here.harmonised.ci_ub
    assert found.beta == plain.beta == here.intercepts.beta
    assert found.raw == here.raw.yi
    assert plain.id != found.id == said["result"]
    assert isinstance(again, HarmonisedResult)
    line = next(row for row in log.document["lines"] if row["subject"] == found.id)
    assert (line["question"]["harmonised"], line["question"]["to"], line["stale"]) == ("chol", "north", False)
    assert len(explained.document["releases"]) == 4 + 3, "rows and densities"
    assert explained.stale == ()
    assert list(found.to_frame()["yi_harmonised"].notna()) == [False, True, True, True]
    for words in ("All rows in one table", "harmonised", "site by site", "Map SE", "east"):
        assert words in picture
    assert client.main(["harmonise", "cvd", "chol", "--to", "north", "--token", str(token)]) == 0
    shown = capsys.readouterr().out
    for words in ("as released", "all rows in one table", "site by site", "assumes that the sites' patients are alike"):
        assert words in " ".join(shown.split())


def test_a_token_for_the_rows_alone_sees_no_densities_and_a_question_must_be_named(desk):
    with connect(desk.admit("bea")) as connection:
        with pytest.raises(AccessRefusal, match="one that the token is for"):
            connection["cvd"].harmonise("chol", to="north")
        with pytest.raises(ParameterError, match="one planned analysis"):
            connection["cvd"].harmonise("age", to="north")
        with pytest.raises(SchemaRefusal, match="a column and a site"):
            connection["cvd"].query("", "adjusted", harmonise="chol")
        lines = connection["cvd"].log().document["lines"]
    assert lines[-1]["kind"] == "refused"
    assert lines[-1]["question"]["harmonised"] == "chol"


def test_a_withdrawn_density_makes_what_rested_on_it_stale(desk):
    with connect(desk.admit("cleo", studies=("cvd", "cvd-densities"))) as connection:
        study = connection["cvd"]
        found = study.harmonise("chol", to="north")
        take_back(desk.store, "west", desk.keys["west"], study="cvd-densities")
        (why,) = study.explain(found.id).stale
        assert "west has withdrawn" in why
        assert all(row["stale"] for row in study.log().document["lines"] if row["subject"] == found.id)
        after = study.harmonise("chol", to="north")
        assert after.id != found.id
        assert {row.label for row in after.harmonised.excluded} == {"east", "west"}


def test_the_demo_of_two_assays_has_plans_that_fit_its_tables_and_knows_the_truth(tmp_path):
    """The shipped plans take the simulated tables, whose slopes agree on one assay and do not on two."""
    play = play_of(DemoOptions(study="assay", scale=0.5))
    files = play.tables(tmp_path)
    plans = {name: StudyPlan.from_toml(text) for name, text in play.plans(dt.date.today()).items()}
    assert list(plans) == ["assay", "assay-densities"]
    assert plans["assay-densities"].release.alike == ("age",)
    [formula] = plans["assay"].estimands.values()
    slopes = []
    for tables in (files, play.truth):
        found = pooled_real(tables, plans["assay"], formula, "chol/40")
        slopes.append(dict(zip(found.labels, found.yi, strict=True)))
    two, one = slopes
    assert two["budapest"] < 0.75 * one["budapest"]
    assert one["cleveland"] == two["cleveland"]
    assert all(value == pytest.approx(6, abs=1.5) for value in one.values())
    records = pd.read_csv(files["budapest"])
    densities_plan = plans["assay-densities"]
    checked = densities_plan.dictionary.check(records[["person", "age", "chol"]].astype({"person": "string"}))
    assert densities_plan.release.groups(densities_plan)[0].grid.counts(checked).sum() == len(records)
