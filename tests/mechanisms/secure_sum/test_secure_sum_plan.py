"""The plan of a secure sum: what it refuses, what it charges, and what it says of who looks together."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from stage.hospital_side.pipeline import release, site, source  # noqa: F401
from stage.mechanisms.sums import hearts

from coordinator.planning.price import cost, prices
from coordinator.planning.review import review
from shared.errors import BudgetRefusal, ConfigRefusal, PlanRefusal
from shared.mechanisms.secure_sum.influences import Bounds
from shared.mechanisms.secure_sum.vectors import VectorBounds
from shared.plans.plan import StudyPlan
from shared.privacy.accountant import epsilon
from shared.privacy.composition import composed
from shared.privacy.gaussian import gaussian_epsilon
from shared.privacy.meaning import translate
from shared.privacy.stated import shown_epsilon
from shared.releases.receipt import ReceiptDraft, coverage, in_words, planned_event, write_receipt
from site_agent.config import SiteBudget
from site_agent.decide.plan_facts import _of_figures
from site_agent.show.verifier import VerifiedRelease, Wrong, who_looks

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"
SITES = {f"site-{k}": f"{k:064x}" for k in range(6)}
TOML = hearts(SITES, epsilon=1.0, budget=1.2)
TABLE = pd.DataFrame({"person": ["a"], "age": [50.0], "sbp": [120.0], "time": [1.0], "cvd": [0]})


def planned(sites=SITES):
    return StudyPlan.from_toml(hearts(sites, epsilon=1.0, budget=1.2))


def test_a_plan_is_the_same_read_back_and_the_order_in_which_sites_are_written_is_no_matter():
    plan = planned()
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert planned(sites=dict(reversed(SITES.items()))).hash == plan.hash
    assert plan.release.terms(plan).members == tuple(SITES.values())
    assert plan.release.terms(plan).plan == plan.hash


def test_a_plan_from_before_reads_its_pilots_as_it_was_signed():
    before = planned().to_canonical()
    del before["release"]["places"]
    read = StudyPlan.from_canonical(before)
    assert read.release.places == "apart"
    assert "places" not in read.to_canonical()["release"]
    assert isinstance(read.release.bounds(read), Bounds)
    assert read.release.terms(read).coordinates == 2
    assert planned().release.places == "together"
    assert isinstance(planned().release.bounds(planned()), VectorBounds)


def test_a_plan_holds_its_vectors_about_0_and_is_written_as_before_unless_it_asks_otherwise():
    plain = planned().to_canonical()
    assert planned().release.held == "zero"
    assert "held" not in plain["release"]
    asked = {**plain, "release": {**plain["release"], "held": "centred"}}
    assert StudyPlan.from_canonical(asked).to_canonical() == asked
    assert StudyPlan.from_canonical(plain).release.held == "zero"


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"coefficient": "weight"}, "coefficient must be one of"),
        ({"drop_outs": 3}, "K - 2 drop_outs must be more than colluders"),
        ({"colluders": 4}, "K - 2 drop_outs must be more than colluders"),
        ({"pilot": 0.95}, "leave each part"),
        ({"least": 9.0}, "least and release.most must be left out"),
        ({"least": 9.0, "places": "apart"}, "least must not be above"),
        ({"places": "near"}, "places must be together or apart"),
        ({"held": "near"}, "held must be centred or zero"),
        ({"held": "centred", "places": "apart"}, "centred must go with release.places"),
        ({"held": "centred", "epsilon": 0.99}, "centred must go with ε of 1 or more"),
        ({"reach": 0.0}, "reach must be positive"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"outcome": "linear"}, "survival or binary"),
    ],
)
def test_a_plan_that_no_sum_can_serve_is_refused_in_the_words_of_the_plan(more, rule):
    given = planned().to_canonical()
    with pytest.raises(PlanRefusal, match=rule):
        StudyPlan.from_canonical(given | {"release": given["release"] | more})


def test_too_few_sites_one_twice_and_a_key_that_is_none_are_refused():
    for sites in (dict(list(SITES.items())[:4]), SITES | {"site-1": SITES["site-2"]}, SITES | {"site-1": "ff"}):
        with pytest.raises(PlanRefusal):
            planned(sites=sites)


def test_a_second_wave_is_refused():
    given = planned().to_canonical()
    second = {"number": 2, "opens": "2027-01-01", "closes": "2029-01-01"}
    given["waves"] = [{**given["waves"][0], "closes": "2026-12-31"}, {**given["waves"][0], **second}]
    with pytest.raises(PlanRefusal, match="one wave"):
        StudyPlan.from_canonical(given)


def test_everything_is_charged_at_once_and_is_the_plan_s_epsilon():
    plan = planned()
    pilot, level, total = planned_event(plan).events
    mus = [event.mu**2 for event in (pilot, level, total)]
    assert 0.98 < epsilon(planned_event(plan), 1e-6) <= 1.0
    assert [mu / sum(mus) for mu in mus] == pytest.approx([0.6, 0.05, 0.35], abs=0.01)
    assert pilot == plan.release.first(1e-6).event(plan), "the pilot is drawn with the noise that is charged"
    assert total == plan.release.terms(plan).event(len(SITES) - 2), "with one lost and one that tells its noise"
    assert cost(plan).waves[0].affordable


def test_four_rows_say_who_looks_together_and_all_who_price_a_plan_show_them():
    plan = planned()
    rows = plan.release.seen_by(plan)
    assert list(rows) == [
        "the coordinator",
        "the coordinator and 1 site",
        "the coordinator and 3 sites",
        "the coordinator and all 5 others",
    ]
    alone, colluding, half, all_others = rows.values()
    assert alone < colluding < half < all_others
    assert colluding == epsilon(planned_event(plan), 1e-6)
    # By hand: with all others only the site's own share, of a fourth of the variance, is left.
    mus = [event.mu**2 for event in planned_event(plan).events]
    assert all_others == pytest.approx(gaussian_epsilon(math.sqrt(mus[0] + mus[1] + 4 * mus[2]), 1e-6))
    assert cost(plan).seen_by == rows
    told = coverage(plan)[0][0]
    assert all(who in told for who in rows)


@pytest.mark.parametrize(
    ("sites", "lost", "colluders", "shown", "signed"),
    [
        (12, 2, 0, [0, 6, 11], [0, 6, 11]),
        (12, 2, 1, [0, 1, 6, 11], [0, 1, 6, 11]),
        (12, 2, 6, [0, 6, 11], [0, 6, 11]),
        (12, 2, 7, [0, 6, 7, 11], [0, 7, 6, 11]),
        (5, 0, 3, [0, 2, 3, 4], [0, 3, 2, 4]),
    ],
)
def test_rows_ascend_by_how_many_look_and_a_receipt_has_them_as_it_was_signed(sites, lost, colluders, shown, signed):
    body = planned({f"site-{k:02}": f"{k:064x}" for k in range(sites)}).to_canonical()
    more = {"drop_outs": lost, "colluders": colluders}
    plan = StudyPlan.from_canonical(body | {"release": body["release"] | more})
    rows = plan.release.seen_by(plan)

    def who(count):
        others = f"all {count} others" if count == sites - 1 else f"{count} site{'s' if count > 1 else ''}"
        return f"the coordinator and {others}" if count else "the coordinator"

    assert list(rows) == [who(count) for count in shown]
    assert list(rows.values()) == sorted(rows.values())
    assert plan.release.most_seen(plan)[0] == who(sites - 1)
    said = coverage(plan)[0][0]
    places = [said.index(f"{who(count)}: ε = {shown_epsilon(rows[who(count)])}") for count in signed]
    assert places == sorted(places)


def test_a_plan_s_checklist_says_who_looks_and_whether_a_planned_analysis_is_the_sum_s():
    _, lines = review(TOML, today=dt.date(2026, 6, 1))
    named = {line.name: line for line in lines}
    assert all(f"{who}: ε" in named["who looks"].detail for who in planned().release.seen_by(planned()))
    assert named["secure sum"].state == "warn"
    assert "cox(time, cvd) ~ age + sbp" in named["secure sum"].fix
    asked = TOML.replace("[release]\n", '[estimands]\nmain = "cox(time, cvd) ~ sbp/10 + age"\n\n[release]\n')
    assert not {"secure sum", "interval"} & {line.name for line in review(asked, today=dt.date(2026, 6, 1))[1]}
    less = {line.name: line for line in review(hearts(SITES, epsilon=0.5, budget=1.2), today=dt.date(2026, 6, 1))[1]}
    assert less["interval"].state == "warn"
    assert "of few small hospitals is not always answered" in less["interval"].detail
    little = hearts(SITES, epsilon=0.2, budget=0.6)
    [doubt] = [line for line in review(little, today=dt.date(2026, 6, 1))[1] if line.name == "interval"]
    assert "No interval of a secure sum was tried at an ε below 0.25" in doubt.detail


def test_a_member_without_its_release_key_is_named_with_where_the_key_stands():
    wrong = TOML.replace(f"{1:064x}", "3c1a 3efb 00bf 5ecc f2aa 57c2 98d9 03f3")
    _, [line] = review(wrong, today=dt.date(2026, 6, 1))
    assert "the release key of site-1" in line.detail
    assert "coordinator sites --json" in line.fix
    assert "coordinator invite site-1 --study hearts --plan-later" in line.fix


def test_the_checklist_says_which_budget_a_sum_needs_and_speaks_of_no_weight_of_data():
    _, lines = review(hearts(SITES, epsilon=1.0, budget=1.0), today=dt.date(2026, 6, 1))
    [line] = [line for line in lines if line.name == "budget"]
    assert line.state == "fail"
    assert "release.w" not in line.fix
    needed = float(line.fix.split()[-1].rstrip("."))
    assert f"{needed:g} charged for all" in line.detail
    raised = hearts(SITES, epsilon=1.0, budget=needed + 0.01)
    assert {line.name: line.state for line in review(raised, today=dt.date(2026, 6, 1))[1]}["budget"] == "ok"


def test_the_price_list_has_the_plan_s_own_sum():
    listed = {price.name: price for price in prices(planned())}
    assert listed["secure sum"].epsilon == epsilon(planned_event(planned()), 1e-6)
    assert all(who in listed["secure sum"].covered for who in planned().release.seen_by(planned()))


def test_a_price_in_another_order_of_accounting_is_no_smaller():
    plan = planned()
    assert composed({planned_event(plan): 1}, 1e-6) >= epsilon(planned_event(plan), 1e-6) - 1e-9


# -- a site's own cap on whoever sees most ----------------------------------------------------------------------------
def test_a_site_s_cap_holds_the_worst_row_and_says_who_sees_it():
    plan = planned()
    worst = max(plan.release.seen_by(plan).values())
    assert 1.2 < worst < 3
    for cap in (None, worst, 5.0):
        SiteBudget(worst_epsilon=cap).require_worst(plan)
    with pytest.raises(BudgetRefusal, match="for the coordinator and all 5 others"):
        SiteBudget(worst_epsilon=worst - 0.01).require_worst(plan)
    for wrong in (0.0, -1.0, True, math.inf, "2"):
        with pytest.raises(ConfigRefusal, match="site_worst_epsilon"):
            SiteBudget(worst_epsilon=wrong)


def test_a_release_beyond_the_site_s_cap_is_refused_before_anything_is_charged_or_read(tmp_path, site):  # noqa: F811
    strict, day = replace(site, budget=SiteBudget(worst_epsilon=1.2)), dt.date(2026, 6, 1)
    with pytest.raises(BudgetRefusal, match="whoever sees most"):
        release(planned(), strict, source(tmp_path, TABLE), today=day)
    assert not site.ledger.holds()


def test_the_price_in_words_says_for_whom_it_holds_and_what_all_others_could_recognise():
    plan = planned()
    who, worst = plan.release.most_seen(plan)
    assert (who, epsilon(worst, 1e-6)) == list(plan.release.seen_by(plan).items())[-1]
    said = in_words(plan, planned_event(plan))
    assert "whatever the attacker knows but the other sites' noise. To the coordinator and all 5 others" in said
    assert said.endswith(translate(worst, delta=1e-6))


def test_a_steward_is_told_that_figures_leave_where_no_row_does():
    """Of every plan that is shipped: latent noise releases rows, GRAND persons drawn anew, and nothing else does."""
    for path in sorted(STUDIES.glob("*.toml")):
        plan = StudyPlan.from_toml(path.read_text(encoding="utf-8"))
        assert _of_figures(plan) == (plan.release.mechanism not in ("latent_noise", "grand")), path.name


def receipt_of(plan: StudyPlan) -> dict:
    draft = ReceiptDraft(wave=1, site="site-0", release_id="0" * 32, agent_version="0", n=3000, previous="0" * 64)
    return json.loads(write_receipt(plan, draft).to_bytes())


def stranger(receipt: dict) -> SimpleNamespace:
    """What a stranger's script knows of a release when it comes to its prices."""

    def must(holds, what):
        if not holds:
            raise Wrong(what)

    return SimpleNamespace(receipt=receipt, must=must)


@pytest.mark.parametrize(("sites", "drop_outs", "colluders"), [(5, 1, 0), (5, 1, 1), (6, 0, 2), (12, 2, 1), (50, 5, 3)])
def test_a_stranger_s_script_works_out_every_row_of_the_price_from_the_charged_event(sites, drop_outs, colluders):
    names = {f"site-{k}": f"{k:064x}" for k in range(sites)}
    plan = planned(names)
    plan = replace(plan, release=replace(plan.release, drop_outs=drop_outs, colluders=colluders))
    receipt, release = receipt_of(plan), plan.to_canonical()["release"]
    rows = {row.colluders: row.epsilon for row in plan.release._rows(plan)}
    assert who_looks(release, receipt["event"], receipt["delta"]) == pytest.approx(rows, rel=1e-9)
    VerifiedRelease.sum_prices(stranger(receipt), release)


def test_a_stranger_s_script_follows_a_plan_from_before():
    before = planned().to_canonical()
    del before["release"]["places"]
    plan = StudyPlan.from_canonical(before)
    VerifiedRelease.sum_prices(stranger(receipt_of(plan)), plan.to_canonical()["release"])


def test_a_stranger_s_script_finds_a_price_that_is_not_its_event_s():
    plan = planned()
    release = plan.to_canonical()["release"]
    quiet = receipt_of(plan)
    quiet["event"]["events"][-1]["sigma"] /= 2
    with pytest.raises(Wrong, match="its ε must be that of its event"):
        VerifiedRelease.sum_prices(stranger(quiet), release)
    for row in plan.release._rows(plan):
        stated = f"ε = {shown_epsilon(row.epsilon)}"
        for lie in ("ε = 0.1", f"ε = {shown_epsilon(1.01 * row.epsilon)}"):
            false = receipt_of(plan)
            (text,) = false["covered"]
            assert text.count(stated) == 1
            false["covered"] = [text.replace(stated, lie)]
            with pytest.raises(Wrong, match="must state ε for the coordinator"):
                VerifiedRelease.sum_prices(stranger(false), release)
