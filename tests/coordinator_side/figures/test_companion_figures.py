"""Funnel, refits, Baujat and influence: places and words are read from the figure, not from pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from coordinator.figures.companions import KINDS, draw, funnel, influence_panel, refits
from coordinator.pooling.diagnostics import baujat, influence, trim_and_fill
from coordinator.pooling.further.refits import cumulative, leave_one_out
from coordinator.pooling.pool import pool
from shared.errors import EstimateRefusal, ParameterError

CITIES = ["Aachen", "Bergen", "Coimbra", "Dijon", "Exeter", "Freiburg", "Gdańsk", "Halle", "Ithaca", "Jena", "Kiel"]


YEARS = ("year", {city: 1990 + 3 * i for i, city in enumerate(CITIES)})


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(4)
    vi = rng.uniform(0.01, 0.2, len(CITIES))
    yi = 0.3 + np.sqrt(vi) * np.abs(rng.normal(0, 1.5, len(CITIES)))
    return pool(yi, vi, labels=CITIES)


def marks(drawn):
    return {
        item.get_gid(): item for axes in drawn.figure.axes for item in (*axes.lines, *axes.patches) if item.get_gid()
    }


def texts(drawn):
    return [text.get_text() for axes in drawn.figure.axes for text in axes.texts]


@pytest.mark.parametrize(("kind", "refit"), [("leave-one-out", leave_one_out), ("cumulative", cumulative)])
def test_every_refit_stands_at_its_estimate(result, kind, refit):
    drawn = refits(result, kind)
    found = marks(drawn)
    for i, (label, row) in enumerate(refit(result)):
        assert found[f"refit-{i}"].get_xdata()[0] == row.beta
        low, high = found[f"refit-{i}-ci"].get_xdata()
        assert (low, high) == pytest.approx((row.ci_lb, row.ci_ub)) or f"refit-{i}-clipped" in found
        assert label in texts(drawn)
    assert found["random"].get_xy()[:, 0].max() == pytest.approx(result.ci_ub)


def test_the_funnel_has_a_point_for_every_site_and_the_mirror_images(result):
    filled = trim_and_fill(result)
    assert filled.k0 > 0
    found = marks(funnel(result, filled=filled))
    for i in range(result.k):
        assert found[f"site-{i}"].get_xydata()[0] == pytest.approx((result.yi[i], math.sqrt(result.vi[i])))
    for i in range(filled.k0):
        assert found[f"filled-{i}"].get_xydata()[0] == pytest.approx(
            (filled.filled_yi[i], math.sqrt(filled.filled_vi[i]))
        )
    corners = found["region"].get_xy()
    assert corners[:, 0].max() - result.fixed.beta == pytest.approx(1.959963984540054 * corners[:, 1].max())


def test_a_funnel_of_few_sites_says_why_nothing_is_filled(result):
    few = pool(result.yi[:5], result.vi[:5], labels=CITIES[:5])
    drawn = funnel(few, filled=trim_and_fill(few))
    assert "off below 10 studies" in " ".join(texts(drawn))
    assert not any(gid.startswith("filled") for gid in marks(drawn))


def test_influential_sites_differ_in_shape_and_are_named_in_the_words():
    odd = pool([0.1, 0.2, 0.15, 0.12, 1.4], [0.02, 0.03, 0.02, 0.03, 0.02], labels=CITIES[:5])
    flags = influence(odd).influential
    assert 0 < sum(flags) < 5
    drawn = influence_panel(odd)
    shapes = [marks(drawn)[f"cook_d-{i}"].get_marker() for i in range(5)]
    assert [shape == "D" for shape in shapes] == list(flags)
    assert f"Influential: {CITIES[4]}" in drawn.words


def test_the_baujat_plot_stands_where_the_diagnostics_say(result):
    drawn = draw("baujat", result)
    expected = baujat(result)
    for i in range(result.k):
        assert marks(drawn)[f"site-{i}"].get_xydata()[0] == pytest.approx((expected.x[i], expected.y[i]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_texts_of_a_page_overlap(result, kind):
    drawn = draw(kind, result, title="A long title of the figure", note="A note.", moderator=YEARS)
    renderer = drawn.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for axes in drawn.figure.axes for text in axes.texts if text.get_text()]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.padded(-1).overlaps(other.padded(-1))
    page = drawn.figure.bbox
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1 for box in boxes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_vector_has_words_and_is_the_same_each_time(result, kind, tmp_path):
    for name in ("one.svg", "two.svg"):
        drawn = draw(kind, result, path=tmp_path / name, moderator=YEARS)
    content = (tmp_path / "one.svg").read_text()
    assert content == (tmp_path / "two.svg").read_text()
    assert "<image" not in content
    assert 'role="img"' in content
    for city in CITIES:
        assert city in drawn.words
        assert city in content


def test_too_few_sites_and_unknown_kinds_are_refused():
    one = pool([0.1], [0.1])
    for kind in KINDS:
        with pytest.raises(EstimateRefusal, match="must have at least"):
            draw(kind, one)
    with pytest.raises(ParameterError, match="must be one of"):
        draw("pie", one)
    two = pool([0.1, 0.2], [0.1, 0.1])
    assert "Without one study" in draw("leave-one-out", two).words


def test_of_one_row_a_cumulative_figure_shows_no_heterogeneity():
    from coordinator.figures.companions import refits

    result = pool([0.2, 0.9, 0.1], [0.02, 0.03, 0.01], labels=["A", "B", "C"])
    drawn = refits(result, "cumulative")
    said = [text.get_text() for axes in drawn.figure.axes for text in axes.texts]
    assert said.count("–") == 2
    assert "Each row pools its study and all above it." in said
