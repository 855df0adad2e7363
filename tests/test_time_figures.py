"""Kaplan–Meier with its risk table: places, counts and words are read from the figure, not from pixels."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from delivered import cohort, cohort_plan, deliver, join

from coordinator.authority import Authority
from coordinator.curves import curves
from coordinator.store import Store
from coordinator.time_figures import MOST_CURVES, km_figure
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands import estimate
from shared.keys import SigningKey
from shared.plan import sign_plan
from shared.survival import GridCurve, kaplan_meier, public_times

TIMES = public_times(25.0)


def rows(n, seed=1, rate=0.05):
    rng = np.random.default_rng(seed)
    event, left = rng.exponential(1 / rate, n), rng.uniform(5, 25, n)
    return np.minimum(event, left), (event <= left).astype(float)


def curve(n=300, label="Aachen", seed=1, level=0.95):
    return kaplan_meier(*rows(n, seed)).read_off(TIMES, label=label, level=level)


def few(time, event, label="few"):
    return kaplan_meier(np.array(time, dtype=float), np.array(event, dtype=float)).read_off(TIMES, label=label)


def marks(drawn):
    return {
        item.get_gid(): item
        for axes in drawn.figure.axes
        for item in (*axes.lines, *axes.patches, *axes.texts)
        if item.get_gid()
    }


def texts(drawn):
    return [text.get_text() for axes in drawn.figure.axes for text in axes.texts if text.get_text()]


def boxes(drawn):
    """Every text of the page, the labels of the axes among them, with its box."""
    drawn.figure.draw_without_rendering()  # the axis' label finds its place when it is drawn
    renderer = drawn.figure.canvas.get_renderer()
    page, plot = drawn.figure.axes[:2]
    found = [*page.texts, *plot.texts, *plot.get_xticklabels(), *plot.get_yticklabels()]
    found += [plot.xaxis.label, plot.yaxis.label]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in found if text.get_text()]


def assert_tidy(drawn):
    page = drawn.figure.bbox
    for (one, a), (other, b) in itertools.combinations(boxes(drawn), 2):
        assert not a.padded(-0.5).overlaps(b.padded(-0.5)), (one, other)
    for text, box in boxes(drawn):
        assert page.containsx(box.x0), text
        assert page.containsx(box.x1), text
        assert page.containsy(box.y0), text
        assert page.containsy(box.y1), text
    assert min(text.get_fontsize() for axes in drawn.figure.axes for text in axes.texts) >= 8


# -- the curve at public times ------------------------------------------------------------------------------------
def test_public_times_are_round_and_never_more_than_asked_for():
    for upper in (0.003, 1, 7, 20, 25, 99.9, 365, 3653, 1e7):
        for most in (1, 6, 100):
            times = public_times(upper, most=most)
            assert times[0] == 0
            assert len(times) <= most + 1
            assert upper <= times[-1] < upper + times[1] * (1 + 1e-9)
            assert (
                float(f"{times[1]:.0e}") == times[1]
                or round(times[1] / 10 ** math.floor(math.log10(times[1])), 9) == 2.5
            )
    with pytest.raises(ParameterError, match="positive and finite"):
        public_times(math.inf)


def test_a_curve_read_off_has_the_values_of_the_whole_curve_and_the_counts_of_the_rows():
    time, event = rows(200)
    whole = kaplan_meier(time, event)
    read = whole.read_off(TIMES)
    for k, at in enumerate(TIMES):
        assert read.at_risk[k] == int((time >= at).sum())
        assert read.events[k] == int(event[time <= at].sum())
        if read.survival[k] is None:
            assert at > time.max()
        else:
            assert read.survival[k] == whole.at(at)[0]


def test_its_limits_are_those_of_the_question_about_that_time():
    time, event = rows(200)
    read = kaplan_meier(time, event).read_off(TIMES, level=0.9)
    k = TIMES.index(5.0)
    row = estimate(pd.DataFrame({"t": time, "e": event}), "km", "Surv(t, e) ~ 1", at=5.0, term="")
    half = 1.6448536269514722 * math.sqrt(row.vi_sampling)
    ends = [1 / (1 + math.exp(-x)) for x in (row.yi - half, row.yi + half)]
    assert (read.lower[k], read.upper[k]) == pytest.approx(ends)


def test_curves_without_events_with_one_and_with_nothing_else():
    censored = few([3, 4, 5], [0, 0, 0])
    assert {value for value in censored.survival if value is not None} == {1.0}
    assert set(censored.lower) == {None}
    assert censored.survival[TIMES.index(5.0)] == 1.0
    assert censored.survival[TIMES.index(5.25)] is None
    one = few([3, 4, 5, 9], [0, 1, 0, 0])
    assert one.survival[TIMES.index(3.75)] == 1.0
    assert one.survival[TIMES.index(4.0)] == pytest.approx(2 / 3)
    every = few([3, 4, 5.1], [1, 1, 1])
    assert every.survival[TIMES.index(5.25)] == 0.0
    assert every.survival[TIMES.index(5.5)] is None
    nobody = kaplan_meier(np.empty(0), np.empty(0)).read_off(TIMES)
    assert (nobody.n, set(nobody.survival)) == (0, {None})


def test_a_curve_is_read_off_at_times_that_rise_from_0_and_its_parts_are_of_one_length():
    whole = kaplan_meier(*rows(30))
    for times in ([0.0], [1.0, 2.0], [0.0, 2.0, 2.0]):
        with pytest.raises(ParameterError, match="rise from 0"):
            whole.read_off(times)
    with pytest.raises(ParameterError, match="level"):
        whole.read_off(TIMES, level=1.0)
    with pytest.raises(ParameterError, match="as long as its times"):
        GridCurve(label="", level=0.95, time=(0, 1), survival=(1,), lower=(), upper=(), at_risk=(), events=())


# -- Kaplan–Meier -------------------------------------------------------------------------------------------------
def test_every_step_stands_at_a_public_time_and_has_the_curve_s_value():
    read = curve()
    drawn = km_figure([read])
    x, y = marks(drawn)["curve-0"].get_data()
    assert set(x) <= set(TIMES)
    assert (x[0], y[0]) == (0, 1)
    for k, at in enumerate(TIMES):
        if read.survival[k] is not None:
            assert y[np.flatnonzero(np.asarray(x) <= at)[-1]] == read.survival[k]
    corners = marks(drawn)["band-0"].get_xy()
    assert corners[:, 1].min() == min(low for low in read.lower if low is not None)


def test_numbers_at_risk_stand_under_their_ticks_and_count_the_rows():
    time, _ = rows(1200)
    drawn = km_figure([curve(1200), curve(80, "Bergen", 2)])
    axes = drawn.figure.axes[1]
    found = marks(drawn)
    ticks = [float(place) for place in axes.get_xticks()]
    assert len(ticks) >= 4
    for at in ticks:
        text = found[f"risk-0-{TIMES.index(at)}"]
        assert text.get_text() == f"{int((time >= at).sum()):,}"
        under = axes.transData.transform((at, 0))[0]
        box = text.get_window_extent(drawn.figure.canvas.get_renderer())
        assert (box.x0 + box.x1) / 2 == pytest.approx(under, abs=1.0)  # a pixel
        assert found[f"risk-1-{TIMES.index(at)}"].get_position()[1] > text.get_position()[1]
    assert sum(gid.startswith("risk-0-") for gid in found) == len(ticks)


def test_the_file_grows_with_the_grid_and_not_with_the_rows(tmp_path):
    sizes = []
    for n in (500, 50_000):
        path = tmp_path / f"{n}.svg"
        km_figure([curve(n)], path=path)
        content = path.read_text()
        sizes.append(len(content))
        path_of_curve = re.search(r'<g id="curve-0">\s*<path d="([^"]*)"', content)[1]
        assert len(re.findall("[ML]", path_of_curve)) <= 2 * len(TIMES)
        assert "<image" not in content
        time, event = rows(n)
        assert len(np.unique(time[event == 1])) > (100 if n == 500 else 10_000)
    assert sizes[1] < 1.3 * sizes[0]


@pytest.mark.parametrize(
    "curves",
    [
        [few([3, 4, 5], [0, 0, 0], "all censored"), few([3, 4, 9], [0, 1, 0], "one event")],
        [few([3, 4, 5], [1, 1, 1], "all with the event")],
        [few([0.1, 0.1], [0, 1], "shorter than a step"), curve()],
        [curve(30_000, "University Hospital of the Northern Isles and the Outer Skerries"), curve(40, "B", 2)],
        [curve(90 + i, f"Cohort {i}", i) for i in range(12)],
    ],
    ids=["censored", "events", "short", "long", "twelve"],
)
def test_nothing_overlaps_is_cut_or_tiny(curves):
    drawn = km_figure(
        curves, title="A title", note="A note.", bands=True, left_out={"Zürich": "the release has no column arm"}
    )
    assert_tidy(drawn)
    assert "Left out: Zürich (the release has no column arm)." in texts(drawn)
    assert all(one.label in drawn.words for one in curves)


def test_curves_that_say_little_are_named():
    drawn = km_figure([few([3, 4, 5], [0, 0, 0], "A"), few([0.1, 0.2], [1, 0], "B"), curve()])
    assert "A: no event." in texts(drawn)
    assert "B: no row is followed beyond 0.25." in texts(drawn)


def test_sixteen_curves_differ_in_colour_or_dashes():
    lines = marks(km_figure([curve(40, f"{i}", i) for i in range(MOST_CURVES)]))
    looks = {
        (lines[f"curve-{i}"].get_color(), str(lines[f"curve-{i}"]._unscaled_dash_pattern)) for i in range(MOST_CURVES)
    }
    assert len(looks) == MOST_CURVES


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(EstimateRefusal, match="must have a curve"):
        km_figure([])
    with pytest.raises(ParameterError, match="at most 16 curves"):
        km_figure([curve()] * 17)
    with pytest.raises(ParameterError, match="same times"):
        km_figure([curve(), kaplan_meier(*rows(30)).read_off((0.0, 1.0))])


# -- from the store -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """(store, plan, tables): two sites of the cohort study; the first one delivered two waves."""
    home = tmp_path_factory.mktemp("hub")
    lead = SigningKey.generate()
    authority = Authority.create(home, coordinator="tributary-hub", names=("localhost",))
    store = Store.open(home)
    plan = cohort_plan()
    store.add_plan(sign_plan(plan, [lead]), plan)
    tables = {}
    for seed, site in enumerate(("north", "south")):
        invitation = authority.invite(site, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
        store.add_invitation(invitation)
        key = join(store, invitation)
        for wave in (1, 2) if site == "north" else (1,):
            tables[site, wave] = cohort(200 + wave, seed + 10 * wave)
            deliver(store, plan, site, key, tables[site, wave], wave=wave)
    yield store, plan, tables
    store.close()


def test_the_curves_of_a_wave_are_those_of_the_releases_it_holds(filled):
    store, _, tables = filled
    found = curves(store, "cvd", 2, "km(time, cvd, at = 5) ~ 1")
    assert found.estimand == "km(time, cvd)"
    assert [one.label for one in found.curves] == ["north", "south"]
    both = pd.concat([tables["north", 1], tables["north", 2]])  # the study appends: wave 2 adds rows to wave 1
    for one, table in zip(found.curves, (both, tables["south", 1]), strict=True):
        whole = kaplan_meier(table["time"].to_numpy(float), table["cvd"].to_numpy(float))
        assert one == whole.read_off(public_times(45.0), label=one.label)
    assert curves(store, "cvd", 1, "km(time, cvd) ~ 1").curves[0].n == 201
    drawn = found.figure()
    assert drawn.figure.axes[1].get_xlabel() == "Time to first event or end of follow-up (years)"
    assert drawn.figure.axes[1].get_ylabel() == "Share without cardiovascular event"
    assert_tidy(drawn)


def test_a_curve_of_each_group_is_named_after_site_and_group(filled):
    found = curves(filled[0], "cvd", 1, "km(time, cvd) ~ C(cvd)", sites=["south"])
    assert [one.label for one in found.curves] == ["south, C(cvd)=0", "south, C(cvd)=1"]
    assert sum(one.n for one in found.curves) == 201


def test_a_site_without_rows_for_the_question_is_left_out_with_the_reason(filled):
    store, _, tables = filled
    oldest = max(tables["north", 1]["age"].max(), tables["south", 1]["age"].max())
    only = "north" if tables["north", 1]["age"].max() == oldest else "south"
    found = curves(store, "cvd", 1, f"km(time, cvd, subset = age >= {oldest}) ~ 1")
    assert [one.label for one in found.curves] == [only]
    (left,) = found.left_out.items()
    assert left[0] != only
    assert "no complete rows" in left[1]
    with pytest.raises(EstimateRefusal, match="a site must have a curve"):
        curves(store, "cvd", 1, "km(time, cvd, subset = age > 109) ~ 1")


def test_a_question_that_is_no_curve_and_an_unknown_name_are_refused_with_what_to_do(filled):
    store = filled[0]
    with pytest.raises(ParameterError, match="asked by km"):
        curves(store, "cvd", 1, "unadjusted")
    with pytest.raises(ParameterError, match="must have the column"):
        curves(store, "cvd", 1, "km(time, cvd) ~ arm")
    with pytest.raises(ParameterError, match="release in this wave") as caught:
        curves(store, "cvd", 1, "km(time, cvd) ~ 1", sites=["east"])
    assert "north, south" in caught.value.next_step
