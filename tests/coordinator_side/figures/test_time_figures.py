"""Kaplan–Meier with its risk table: places, counts and words are read from the figure, not from pixels."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.coordinator_side.delivered import cohort, cohort_plan, deliver, join

from coordinator.answers.curves import curves, pooled_curve
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.spending import BudgetReport, Spending, _planned, spending
from coordinator.figures.over_time import MOST_CURVES, km_figure, waves_figure
from coordinator.figures.style import COLOURS, DASHES, SERIES
from coordinator.planning.price import cost
from coordinator.pooling.pool import pool_estimates
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.errors import EstimateRefusal, ParameterError, StateRefusal
from shared.estimands.answer import Estimate, estimate
from shared.estimands.fits.survival import GridCurve, kaplan_meier, public_times
from shared.plans.plan import Wave, sign_plan
from shared.releases.receipt import planned_events

TIMES = public_times(25.0)
WAVES, DAY = (1, 2, 3, 4), dt.date(2026, 1, 1)


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
    found = [*page.texts, *plot.texts, *plot.get_xticklabels(), plot.xaxis.label, plot.yaxis.label]
    low, high = sorted(plot.get_ylim())  # matplotlib also keeps labels beyond the axis, and does not draw them
    found += [label for label in plot.get_yticklabels() if low <= label.get_position()[1] <= high]
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


def test_of_more_sites_than_can_be_told_apart_the_pooled_curve_is_drawn_and_the_figure_says_so():
    curves = [curve(40, f"{i}", i) for i in range(MOST_CURVES + 1)]
    whole = pooled_curve(curves, label="pooled")
    drawn = km_figure(curves, pooled=[whole], title="A title")
    assert_tidy(drawn)
    assert sorted(name for name in marks(drawn) if name.startswith("curve-")) == ["curve-0"]
    assert "The curves of the sites, 17 of them, are not drawn: nobody could tell them apart." in texts(drawn)
    assert f"{whole.at_risk[0]:,}" in texts(drawn)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(EstimateRefusal, match="must have a curve"):
        km_figure([])
    with pytest.raises(ParameterError, match="at most 16 curves"):
        km_figure([curve()] * 17)
    with pytest.raises(ParameterError, match="same times"):
        km_figure([curve(), kaplan_meier(*rows(30)).read_off((0.0, 1.0))])


# -- wave by wave -------------------------------------------------------------------------------------------------
def wave(k, wave=1):
    rng = np.random.default_rng(k)
    rows = [
        Estimate(
            study="s", site=f"site {i}", wave=wave, term="sbp/10", scale="log", n=900, vi_sampling=0.02, yi=rng.normal()
        )
        for i in range(k)
    ]
    return pool_estimates(rows)


def test_the_estimate_of_each_wave_stands_at_its_pooled_value_in_the_order_of_waves():
    found = {3: wave(4), 1: wave(1), 2: wave(3)}
    drawn = waves_figure(found, missing={4: "no site has released"}, title="A title", note="A note.")
    marked = marks(drawn)
    for i, number in enumerate((1, 2)):
        assert marked[f"refit-{i}"].get_xdata()[0] == found[number].beta
    assert found[3].beta in marked["random"].get_xy()[:, 0]
    assert marked["refit-0"].get_ydata()[0] < marked["refit-1"].get_ydata()[0] < marked["random"].get_xy()[0, 1]
    said = texts(drawn)
    for expected in ("Wave 1", "Wave 3, the newest", "2,700", "Wave 1: one site, nothing was pooled."):
        assert expected in said
    assert "Wave 4: no site has released." in said
    assert any("not independent" in line and "looked 3 times" in line for line in said)
    assert_tidy(drawn)


def test_one_wave_is_not_called_several_looks_and_no_wave_is_refused():
    drawn = waves_figure({1: wave(4)})
    assert not any("looked" in line for line in texts(drawn))
    with pytest.raises(EstimateRefusal, match="a wave with a result"):
        waves_figure({})


# -- the budget ---------------------------------------------------------------------------------------------------
def course(sites, spent, planned=()):
    return Spending(sites=sites, spent=tuple(spent), planned=tuple(planned))


def budget(*courses, cap=8.0, waves=(1, 2, 3, 4)):
    return BudgetReport(study="stroke", version=2, cap=cap, delta=1e-6, waves=waves, courses=courses)


def test_spent_and_planned_stand_at_their_waves_and_what_is_left_under_them():
    north = course(("north",), [(1, 2.3), (3, 3.4)], [(4, 4.3)])
    south = course(tuple(f"site {i}" for i in range(9)), [(1, 4.2), (2, 6.5)], [(3, 8.3)])
    drawn = budget(north, south).figure()
    found = marks(drawn)
    for i, one in enumerate((north, south)):
        x, y = found[f"spent-{i}"].get_data()
        assert list(zip(np.round(x).astype(int), y, strict=True)) == [(0, 0.0), *one.spent]
        x, y = found[f"planned-{i}"].get_data()
        assert list(zip(np.round(x).astype(int), y, strict=True)) == [one.spent[-1], *one.planned]
    assert found["spent-0"].get_linestyle() == "-" != found["planned-0"].get_linestyle()
    assert found["spent-0"].get_marker() != found["spent-1"].get_marker()
    assert set(found["cap"].get_ydata()) == {8.0}
    axes = drawn.figure.axes[1]
    assert axes.get_ylim()[1] > 8.3
    left = {gid: item.get_text() for gid, item in found.items() if gid.startswith("left-")}
    assert [left[f"left-0-{k}"] for k in (0, 1, 2, 3)] == ["8", "5.7", "5.7", "4.6"]
    assert left["left-0-4"] == left["left-1-3"] == ""
    for k in range(5):
        box = found[f"left-0-{k}"].get_window_extent(drawn.figure.canvas.get_renderer())
        if left[f"left-0-{k}"]:
            assert (box.x0 + box.x1) / 2 == pytest.approx(axes.transData.transform((k, 0))[0], abs=1.0)
    assert any(line.startswith("Wave 3 does not fit: 9 sites") for line in texts(drawn))
    assert "north: 2.3 after wave 1, 3.4 after wave 3" in drawn.words
    assert_tidy(drawn)


def test_a_budget_of_many_waves_and_one_of_one_wave_are_tidy():
    many = [(k, 0.1 * k) for k in range(1, 25)]
    assert_tidy(budget(course(("a",), many), cap=20.0, waves=tuple(range(1, 49))).figure())
    assert_tidy(budget(course(("a", "b"), [(1, 218.0)]), cap=600.0, waves=(1,)).figure())
    with pytest.raises(ParameterError, match="at most 16 courses"):
        budget(*[course((f"{i}",), [(1, 0.1 * i)]) for i in range(17)]).figure()


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
        assert one == whole.read_off(public_times(45.0), label=one.label, inflation=2.0)  # posture local: 2 - w^k
    assert curves(store, "cvd", 1, "km(time, cvd) ~ 1").curves[0].n == 201
    drawn = found.figure()
    assert drawn.figure.axes[1].get_xlabel() == "Time to first event or end of follow-up (years)"
    assert drawn.figure.axes[1].get_ylabel() == "Share without cardiovascular event"
    assert_tidy(drawn)


def test_the_limits_of_a_curve_hold_what_those_of_the_question_about_one_time_hold(filled):
    store, _, _ = filled
    found = curves(store, "cvd", 1, "km(time, cvd) ~ 1", level=0.9)
    k = found.curves[0].time.index(9.0)
    for row, one in zip(
        ask(store, holding(store, "cvd", 1), "km(time, cvd, at = 9)").estimates, found.curves, strict=True
    ):
        half = 1.6448536269514722 * math.sqrt(row.vi)
        ends = [1 / (1 + math.exp(-x)) for x in (row.yi - half, row.yi + half)]
        assert (one.lower[k], one.upper[k]) == pytest.approx(ends)
        assert row.vi == pytest.approx(2 * row.vi_naive)
    assert "2 times the variance that the rows claim" in " ".join(texts(found.figure()))


def test_the_pooled_curve_passes_through_the_answers_about_single_times(filled):
    store, _, _ = filled
    found = curves(store, "cvd", 1, "km(time, cvd) ~ 1")
    (pooled,) = found.pooled
    assert pooled.at_risk[0] == sum(one.n for one in found.curves)
    for time in (6.0, 9.0, 15.0):
        k = pooled.time.index(time)
        asked = ask(store, holding(store, "cvd", 1), f"km(time, cvd, at = {time:g})").result
        held = (pooled.survival[k], pooled.lower[k], pooled.upper[k])
        assert held == pytest.approx([1 / (1 + math.exp(-x)) for x in (asked.beta, asked.ci_lb, asked.ci_ub)], rel=1e-9)
    drawn = found.figure()
    assert {"curve-2", "band-2"} <= set(marks(drawn))
    assert "band-0" not in marks(drawn), "beside the pooled interval those of the sites are asked for"
    assert_tidy(drawn)


def test_a_pooled_curve_counts_sites_without_events_never_rises_and_ends_with_the_first_follow_up():
    early = few([1.0, 2.0, 9.0, 9.0], [1, 1, 0, 0], "early")
    late = few([3.0, 4.0, 6.0, 6.0], [0, 0, 1, 0], "late")
    pooled = pooled_curve([early, late], label="pooled")
    at = dict(zip(pooled.time, pooled.survival, strict=True))
    apart = dict(zip(early.time, early.survival, strict=True))
    assert apart[2.5] < at[2.5] < 1, "late has no event until then, and counts"
    assert at[6.0] is not None
    assert at[6.25] is None, "nobody is followed at late"
    known = [share for share in pooled.survival if share is not None]
    assert known == sorted(known, reverse=True)
    with pytest.raises(EstimateRefusal, match="two curves"):
        pooled_curve([early], label="pooled")


def test_curves_that_claim_a_thousandth_of_their_variance_are_pooled_with_all_of_it():
    curve = kaplan_meier(*rows(400, rate=3.0))
    wild = curve.read_off(TIMES, label="wild", inflation=2000.0)
    assert max(high for high in wild.upper if high is not None) == 1.0
    pooled = pooled_curve([wild, wild], label="pooled")
    lone = pooled_curve([curve.read_off(TIMES, label="a")] * 2, label="pooled")
    k = next(k for k, low in enumerate(pooled.lower) if low is not None)
    assert pooled.upper[k] - pooled.lower[k] > lone.upper[k] - lone.lower[k]


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


def test_what_was_spent_is_the_price_of_what_arrived_and_further_waves_cost_what_the_plan_says(filled):
    store, plan, _ = filled
    found = spending(store, "cvd")
    # The study appends: nobody is in two of them.
    once = pytest.approx(cost(plan).waves[0].total, rel=1e-8)
    arrived = {(r.site, r.wave): once for r in store.releases("cvd")}
    assert {(site, wave): e for one in found.courses for site in one.sites for wave, e in one.spent} == arrived
    assert (found.cap, found.delta, found.waves) == (plan.budget.epsilon, plan.budget.delta, (1, 2))
    (south,) = [one for one in found.courses if one.sites == ("south",)]
    assert [number for number, _ in south.planned] == [2]
    # The study appends: a further wave is of others, and costs nobody more than one charge.
    assert south.planned[0][1] == once
    (north,) = [one for one in found.courses if one.sites == ("north",)]
    assert north.planned == ()
    other = replace(plan, study="other")
    store.add_plan(sign_plan(other, [SigningKey.generate()]), other)
    with pytest.raises(StateRefusal, match="accepted release"):
        spending(store, "other")


@pytest.mark.parametrize("charged", [1, 2, 3])
def test_under_refresh_a_further_wave_costs_what_plan_cost_says_for_one_wave_more(charged):
    waves = tuple(Wave(number=k, opens=DAY, closes=DAY) for k in WAVES)
    plan = replace(cohort_plan(), returning="refresh", waves=waves)
    price = cost(plan, waves=8)
    totals, further = [wave.total for wave in price.waves], [k for k in WAVES if k > charged]
    shown = [k for k in further if k == further[0] or totals[k - 2] <= price.cap]  # up to the first that does not fit
    arrived = [(plan, event) for event in planned_events(plan, charged)]
    planned = _planned(plan, arrived, after=charged)
    assert [wave for wave, _ in planned] == shown
    assert [total for _, total in planned] == pytest.approx([totals[k - 1] for k in shown], rel=1e-9)


def test_a_question_that_is_no_curve_and_an_unknown_name_are_refused_with_what_to_do(filled):
    store = filled[0]
    with pytest.raises(ParameterError, match="asked by km"):
        curves(store, "cvd", 1, "unadjusted")
    with pytest.raises(ParameterError, match="must have the column"):
        curves(store, "cvd", 1, "km(time, cvd) ~ arm")
    with pytest.raises(ParameterError, match="release in this wave") as caught:
        curves(store, "cvd", 1, "km(time, cvd) ~ 1", sites=["east"])
    assert "north, south" in caught.value.next_step


# -- the palette --------------------------------------------------------------------------------------------------
SIGHT = {  # Machado, Oliveira and Fernandes 2009, severity 1
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def seen(colour, sight):
    """CIE Lab of a colour as somebody sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(SIGHT[sight] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_series_are_told_apart_by_people_who_see_two_primaries_and_stand_out_from_white(sight):
    for (one, _), (other, _) in itertools.combinations(SERIES, 2):
        assert np.linalg.norm(seen(one, sight) - seen(other, sight)) > 10, (one, other)
    for i, j in itertools.combinations(range(len(COLOURS)), 2):
        apart = np.linalg.norm(seen(COLOURS[i], sight) - seen(COLOURS[j], sight))
        assert apart > 10 or (apart > 5 and DASHES[i % 4] != DASHES[j % 4]), (COLOURS[i], COLOURS[j])
    for colour in COLOURS:
        assert np.linalg.norm(seen(colour, sight) - seen("#ffffff", sight)) > 30


def test_an_axis_begins_where_something_happens_and_says_so():
    late = few([*range(12, 24), *[24] * 20], [1] * 12 + [0] * 20)
    drawn = km_figure([late])
    low, high = drawn.figure.axes[1].get_xlim()
    assert 0 < low < 12 < high
    assert f"The axis begins at {low:g}: no event was before." in texts(drawn)
    assert marks(drawn)["curve-0"].get_xdata().min() == low
    assert_tidy(drawn)
    early = km_figure([few([1, 2, 3, 20], [1, 1, 1, 0])])
    assert early.figure.axes[1].get_xlim()[0] == 0


def test_what_is_spent_stays_a_level_also_after_one_wave():
    drawn = budget(course(("Aachen",), [(1, 2.0)]), waves=(1,)).figure()
    line = marks(drawn)["spent-0"]
    assert line.get_xdata()[-1] > 1
    assert line.get_ydata()[-1] == line.get_ydata()[-2] == 2.0
    assert_tidy(drawn)
