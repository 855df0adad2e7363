"""What is printed as an ε is one: never below the true one, never without its condition, and none where none holds."""

from __future__ import annotations

import csv
import json
import re
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.browser.budget_page import budget_page, shown
from stage.coordinator_side.delivered import cohort as people
from stage.coordinator_side.delivered import cohort_plan, deliver, join, take_back
from stage.mechanisms.postures import TODAY, cohort, fitted, released, site, strange, study
from stage.plans.worded import study as worded

from coordinator.analyst.remote import Study
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import DeliveredSites, holding
from coordinator.answers.spending import spending
from coordinator.cli import main
from coordinator.config import CoordinatorConfig
from coordinator.demo import answers, catalogue, play, warm
from coordinator.planning.price import cost
from coordinator.planning.review import _price
from coordinator.services.analysis import AnalysisService
from coordinator.services.authority import Authority
from coordinator.services.documents import release_document
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import BudgetRefusal, PolicyRefusal, StateRefusal
from shared.mechanisms.latent_noise.plan import FITTED_ON_THE_ROWS, LatentNoisePlan, mechanism
from shared.plans.plan import Budget, StudyPlan, sign_plan
from shared.plans.standing import broken_limit
from shared.privacy import accountant as privacy
from shared.privacy.accountant import Gaussian, NoGuarantee
from shared.privacy.composition import least_total
from shared.privacy.stated import (
    FLOW,
    all_given,
    raised,
    shown_column,
    shown_delta,
    shown_epsilon,
    shown_price,
    shown_room,
)
from shared.releases.bundle import read_bundle
from shared.releases.receipt import Receipt, coverage, in_words, planned_event
from shared.terminal import console, plain
from site_agent.cli import books, calendar
from site_agent.config import SiteBudget, TableSource
from site_agent.decide.airlock.overview import totals
from site_agent.decide.plan_facts import _price as _price_of
from site_agent.decide.plan_facts import charged
from site_agent.desk import today
from site_agent.ledger.charge import Reservation
from site_agent.release.fitting import require_roles_kept
from site_agent.release.pipeline.making import make_release
from site_agent.show import screens

OPEN = "not bounded: the flow"
NOTHING = Gaussian(sigma=1.0, sensitivity=0.0)
NUMBER = re.compile(r"ε[^.;]{0,30}?\d")


def flow_alone(posture: str = "local", **changes) -> StudyPlan:
    """Rows from the flow alone."""
    return study(posture, release=LatentNoisePlan(w=0.0), **changes)


def as_before(receipt: Receipt) -> Receipt:
    """The receipt that an earlier version wrote for rows from a flow alone."""
    return replace(
        receipt,
        event=NOTHING.to_canonical(),
        epsilon=0.0,
        epsilon_pure=0.0,
        epsilon_paper=0.0,
        rdp=(0.0,) * privacy.ORDERS.size,
        translation="Given the flow, encoder, w and R, which this does not cover: At 1 % false alarms, at most 1 % of "
        "patients could be recognised, whatever the attacker knows.",
    )


# -- never below the true one -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("printed", "digits"), [(shown_epsilon, 4), (shown_delta, 3)])
@settings(max_examples=500, deadline=None)
@given(value=st.floats(min_value=1e-300, max_value=1e300) | st.floats(min_value=1e-3, max_value=1e3))
def test_a_printed_number_is_never_below_the_true_one_and_at_most_one_unit_of_its_last_place_above(
    printed, digits, value
):
    text = printed(value)
    assert float(text) >= value
    true, said = Decimal(repr(value)), Decimal(text)
    assert 0 <= said - true < Decimal(10) ** (true.adjusted() - digits + 1)
    assert said.as_tuple().exponent >= true.adjusted() - digits + 1 or "." not in text


@settings(max_examples=300, deadline=None)
@given(value=st.floats(min_value=1e-9, max_value=1e9))
def test_what_is_left_is_never_above_the_true_one(value):
    assert 0 <= Decimal(repr(value)) - Decimal(shown_room(value)) < Decimal(10) ** (Decimal(repr(value)).adjusted() - 3)


def test_numbers_that_people_wrote_are_printed_as_they_wrote_them():
    assert [shown_epsilon(value) for value in (0.1, 1, 8.0, 400, 2.5, 0)] == ["0.1", "1", "8", "400", "2.5", "0"]
    assert [shown_delta(value) for value in (1e-6, 1.4e-6, 2e-5)] == ["1e-06", "1.4e-06", "2e-05"]
    assert [shown_epsilon(value) for value in (1.0491, 2.4491, float("inf"))] == ["1.05", "2.45", "∞"]


# -- rows from a flow alone, fitted on their records ------------------------------------------------------------
def test_a_record_moves_such_rows_and_nothing_that_is_printed_says_that_it_does_not(tmp_path):
    """Who sees only the table tells whether one record is in it: an ε of 0 beside that would say nobody can."""
    plan = flow_alone()
    one = strange(cohort(300), [7])
    tells = []
    for table in (cohort(300), one):
        m = fitted(plan, table).mechanism
        rows = m.release(m.flow.inverse(seeded_rng(3).generator.normal(size=(4000, mechanism(plan).d))), seeded_rng(4))
        tells.append(rows.min(axis=0)[1])
    assert tells[1] < tells[0] - 0.1  # the blood pressure of one person reaches where nobody else's does
    _, made = released(plan, tmp_path, one)
    for text in (made.receipt.to_bytes().decode(), shown(lambda out: screens.release_page(out, made))):
        assert not NUMBER.search(text), NUMBER.search(text)
        assert "whatever the attacker knows" not in text


def test_no_number_is_stated_for_them_anywhere_at_the_site(tmp_path):
    plan = flow_alone()
    at, made = released(plan, tmp_path, cohort(500))
    receipt = made.receipt
    assert receipt.event == {"event": "no_guarantee", "of": "flow"}
    assert (receipt.epsilon, receipt.epsilon_pure, receipt.epsilon_paper) == (None, None, None)
    assert (receipt.stated_epsilon, receipt.stated_study_epsilon, set(receipt.rdp)) == (None, None, {None})
    receipt.require_true(plan)
    (warned,) = [one for one in made.checks if one.name == "no-guarantee"]
    assert (warned.outcome, OPEN in warned.detail) == ("warning", True)
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt
    (total,) = totals(at, plan.study)
    assert (total["epsilon"], total["open"], total["open_words"]) == (None, 1, OPEN)
    (line,) = at.ledger.statement(plan.study)
    assert (line.epsilon, line.total, line.epsilon_given) == (None, None, FLOW)
    assert at.ledger.site_price(1e-6) == (None, "")
    at.ledger.verify()
    price = _price_of(plan, planned_event(plan))
    assert (price["epsilon"], price["all_waves"], price["epsilon_given"]) == (None, None, FLOW)
    for text in (
        shown(lambda out: screens.release_page(out, made)),
        shown(lambda out: screens.budget(out, at.ledger.statement(), totals(at, plan.study))),
        budget_page(at),
        screens.charged_words({"charged": {}, "price": price}),
    ):
        assert OPEN in text
        assert not re.search(r"ε = \d", text)
    said = " ".join([in_words(plan, planned_event(plan)), *coverage(plan)[0], *coverage(plan)[1]])
    assert not NUMBER.search(said)
    bundle = read_bundle(at.outbox.bundle(made.hold.release_id), cap=1 << 26)
    assert least_total([(plan, privacy.from_canonical(bundle.receipt.event))], plan.budget.delta) == 0.0


def test_no_number_is_stated_for_them_anywhere_at_the_coordinator(tmp_path, capsys):
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    lead, plan = SigningKey.generate(), cohort_plan(**{"w = 0.8  ": "w = 0.0  "})
    told = cost(plan)
    assert (told.epsilon, told.rows, told.paper, told.waves, told.epsilon_given) == (None, None, None, (), FLOW)
    (warned,) = [line for line in _price(plan) if line.name == "guarantee"]
    assert (warned.state, OPEN in warned.detail) == ("warn", True)
    path = tmp_path / "plan.toml"
    path.write_text((play.STUDIES / "cvd.toml").read_text().replace("w = 0.8  ", "w = 0.0  "))
    for verb in ("cost", "check", "prices"):
        assert main(["--home", str(tmp_path / "home"), "plan", verb, str(path)]) == 0
        assert OPEN in capsys.readouterr().out
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        for seed, name in enumerate(("north", "south")):
            invitation = authority.invite(name, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
            store.add_invitation(invitation)
            deliver(store, plan, name, join(store, invitation), people(300, seed))
        answer = ask(store, holding(store, "cvd", 1), "cox(time, cvd) ~ sbp/10")
        assert set(answer.columns["ε"].values()) == {OPEN}
        facts = AnalysisService._study(SimpleNamespace(_store=store, delivered=DeliveredSites(store)), "cvd")
        listed = [release_document(release) for release in store.releases("cvd")]
        with pytest.raises(StateRefusal, match=OPEN):
            spending(store, "cvd")
    assert {(one["epsilon"], one["epsilon_given"]) for one in listed} == {(None, FLOW)}
    prices = {source.site: source.price for source in answer.sources}
    line = answers.row("q", play.BASELINE, answer.result, answer.result, prices)
    assert (line["epsilon_per_site"], line["epsilon_given"]) == (OPEN, "")

    class Told(Study):
        def facts(self):
            return facts

    assert shown(Told(None, "cvd").show).count(OPEN) == 2


def test_the_demo_shows_them_without_a_number_and_the_others_with_their_condition(tmp_path, capsys, monkeypatch):
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    lead, plan = SigningKey.generate(), cohort_plan()
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        for seed, name in enumerate(("north", "south")):
            invitation = authority.invite(name, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
            store.add_invitation(invitation)
            deliver(store, plan, name, join(store, invitation), people(300, seed))
        told = ask(store, holding(store, "cvd", 1), "cox(time, cvd) ~ sbp/10")
    prices = {source.site: source.price for source in told.sources}
    number = shown_epsilon(cost(plan).epsilon)
    answer = play.DemoAnswer(
        title="cvd",
        question="cox(time, cvd) ~ sbp/10",
        term="sbp/10",
        arms={"released, w = 0.8": told.result, play.BASELINE: told.result, play.REAL: told.result},
        epsilon=prices,
        posture=dict.fromkeys(prices, "local"),
        others={play.BASELINE: dict.fromkeys(prices, (None, FLOW))},
    )
    shown_play = catalogue.play_of(play.DemoOptions(study="cvd"))
    with closing(warm.Aside(1)) as aside:
        answers.write({"unadjusted": answer}, shown_play, tmp_path, aside)
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["epsilon_per_site"], line["epsilon_given"]) for line in lines] == [
        (number, "the flow"),
        (OPEN, ""),
        ("not private", ""),
    ]
    found = json.loads((tmp_path / "results.json").read_text())["unadjusted"]
    assert found["epsilon_given"] == dict.fromkeys(prices, FLOW)
    drawn = " ".join(re.findall(r">([^<>]+)<", (tmp_path / "forest_unadjusted.svg").read_text()))
    assert "ε given the flow" in drawn
    assert f"ε at the plan's δ (released, w = 0.8), given the flow. released, w = 0: {OPEN}." in drawn
    answers.show({"unadjusted": answer}, shown_play, tmp_path, 1.0)
    said = capsys.readouterr().out
    table = said.split("gap: to the real records")[0]
    assert "ε given the flow" in re.sub(r"\s+", " ", table)
    assert number in table
    assert "not bounded" in table
    assert "…" not in table
    assert not re.search(r"\b0 *$", table, flags=re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "84")
    long = {**answer.arms, "noisy moments, pressure declared": told.result}
    others = {**answer.others, "noisy moments, pressure declared": prices}
    answers.show({"unadjusted": replace(answer, arms=long, others=others)}, shown_play, tmp_path, 1.0)
    narrow = capsys.readouterr().out.split("gap: to the real records")[0]
    assert number in narrow
    assert "…" not in narrow


def test_a_flow_that_was_fitted_on_nobody_released_keeps_its_true_zero():
    for posture in ("public", "holdout"):
        plan = flow_alone(posture)
        assert planned_event(plan).sensitivity == 0
        assert cost(plan).epsilon == 0
        assert in_words(plan, planned_event(plan)).endswith(
            "at most 1 % of patients could be recognised, whatever the attacker knows."
        )
        assert _price_of(plan, planned_event(plan))["epsilon_given"] == ""


# -- what ledgers, caps and budgets do with them ----------------------------------------------------------------
def test_a_site_with_a_budget_over_all_studies_refuses_them_before_anything_is_drawn(tmp_path):
    cohort(500).to_csv(tmp_path / "cohort.csv", index=False)
    at = replace(site(tmp_path), budget=SiteBudget(epsilon=100.0))
    source = TableSource(path=tmp_path / "cohort.csv")
    with pytest.raises(BudgetRefusal, match="budget over all studies") as refused:
        make_release(plan=flow_alone(), wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))
    assert "w = 0" in str(refused.value.given)
    assert not at.ledger.holds()


def test_no_study_holds_them_beside_releases_that_have_a_price(tmp_path):
    _, made = released(flow_alone(), tmp_path, cohort(500))
    for before in (made.receipt, as_before(made.receipt)):
        require_roles_kept(flow_alone(), [before])
        with pytest.raises(PolicyRefusal, match="with a formal guarantee and without one"):
            require_roles_kept(study("local"), [before])


def test_no_standing_approval_is_good_for_them():
    limits = SimpleNamespace(plan_hash="a", until="2999-01-01", max_epsilon=1e9, n=100)
    broken = broken_limit(limits, plan_hash="a", today=TODAY, epsilon=float("inf"), n=100, last_n=100)
    assert "has no price" in broken
    floors = replace(study("local").floors, standing=True)
    assert [line.state for line in _price(flow_alone(floors=floors)) if line.name == "standing"] == ["fail"]


# -- what earlier versions wrote --------------------------------------------------------------------------------
def test_a_receipt_of_an_earlier_version_is_read_as_it_was_signed_and_shown_without_its_zero(tmp_path):
    _, made = released(flow_alone(), tmp_path, cohort(500))
    old = as_before(made.receipt)
    data = old.to_bytes()
    assert json.loads(data)["epsilon"] == 0.0
    again = Receipt.from_bytes(data)
    assert (again.to_bytes(), again.stated_epsilon, again.stated_study_epsilon) == (data, None, None)
    text = shown(lambda out: screens.release_page(out, replace(made, receipt=again)))
    assert OPEN in text
    assert "whatever the attacker knows" not in text
    # Without a flow that was fitted on the rows a zero is one.
    assert replace(old, posture="public").stated_epsilon == 0.0


def test_a_ledger_of_an_earlier_version_is_read_as_it_was_signed_and_shown_without_its_zero(tmp_path):
    at = site(tmp_path)
    terms = {"plan_hash": "a" * 64, "wave": 1, "event": NOTHING.to_canonical(), "delta": 1e-6, "cap_epsilon": 20.0}
    bound = "and what they carry about a person is not bounded by this ε."
    at.ledger.reserve(
        Reservation(
            study="old", release_id="b" * 32, uncovered=[f"{FITTED_ON_THE_ROWS} (posture 'local'), {bound}"], **terms
        )
    )
    at.ledger.reserve(Reservation(study="public", release_id="c" * 32, **terms))
    at.ledger.verify()
    assert [entry.body["epsilon"] for entry in at.ledger.entries() if entry.kind == "reserve"] == [0.0, 0.0]
    assert [(line.epsilon, line.total) for line in at.ledger.statement()] == [(None, None), (0.0, 0.0)]
    assert [total["epsilon"] for total in totals(at)] == [None, 0.0]
    text = shown(lambda out: screens.budget(out, at.ledger.statement(), totals(at)))
    assert OPEN in text
    assert "ε = 0, of 20" in text  # of the other one


def test_a_guarantee_of_an_unknown_kind_is_refused():
    assert privacy.from_canonical({"event": "no_guarantee"}) == NoGuarantee()
    assert NoGuarantee().to_canonical() == {"event": "no_guarantee"}
    with pytest.raises(PolicyRefusal, match="known to this version"):
        privacy.from_canonical({"event": "no_guarantee", "of": "moon"})


# -- never without its condition --------------------------------------------------------------------------------
def test_a_price_given_the_flow_stands_nowhere_without_saying_so(tmp_path):
    plan = study("local")
    at, made = released(plan, tmp_path, cohort(500))
    price = _price_of(plan, planned_event(plan))
    page = {"charged": {"with_waves_to_come": 1.0, "total_given": FLOW, "to_come": []}, "price": price}
    screen = shown(lambda out: screens.budget(out, at.ledger.statement(), totals(at, plan.study)))
    assert "charge ε given the flow" in screen
    assert "total ε (RDP) given the flow" in screen
    for text in (
        shown(lambda out: screens.release_page(out, made)),
        screen,
        budget_page(at),
        screens.charged_words(page),
    ):
        for number in re.findall(r"ε = \d[^;|·\n]*", text):
            assert "given the flow" in number, number
    assert totals(at, plan.study)[0]["epsilon_given"] == FLOW


@pytest.mark.parametrize("posture", ["local", "holdout", "public", "private"])
def test_what_an_attacker_may_know_is_said_where_the_price_is_conditional(posture):
    words = in_words(worded(posture), planned_event(worded(posture)))
    assert ("whatever the attacker knows" in words) == (posture != "local")
    if posture == "local":
        assert "by an attacker who holds the flow and every other record, and learns nothing" in words


def test_a_condition_that_all_of_a_column_have_stands_in_its_heading():
    assert shown_price(2.0, FLOW) == "2 given the flow"
    assert shown_price(None, FLOW) == OPEN
    assert shown_column({"a": (2.0, FLOW), "b": (None, FLOW)}) == ("ε given the flow", {"a": "2", "b": OPEN})
    assert shown_column({"a": (2.0, FLOW), "b": (3.0, "")}) == ("ε", {"a": "2 given the flow", "b": "3"})
    assert raised("posture", {"a": "local"}) == ("posture", {"a": "local"})


def test_the_price_list_and_the_costs_name_the_condition(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    path.write_text((play.STUDIES / "cvd.toml").read_text())
    for verb in ("cost", "check", "prices"):
        assert main(["--home", str(tmp_path / "home"), "plan", verb, str(path)]) == 0
        out = re.sub(r"\s+", " ", capsys.readouterr().out)
        assert "given the flow" in out
        for number in re.findall(r"\bε \d+\.\d+ [^:]{0,90}", out):
            assert "given the flow" in number or "is not a meaningful" in number, number


def test_analysts_see_the_condition_beside_every_number(tmp_path):
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    lead, plan = SigningKey.generate(), cohort_plan()
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        invitation = authority.invite("north", ["cvd"], address="localhost:1", leads=[lead.public], days=300)
        store.add_invitation(invitation)
        deliver(store, plan, "north", join(store, invitation), people(300, 1))
        facts = AnalysisService._study(SimpleNamespace(_store=store, delivered=DeliveredSites(store)), "cvd")
        told = plain({"releases": [{**release_document(one), "withdrawn": None} for one in store.releases("cvd")]})
        answer = ask(store, holding(store, "cvd", 1), "cox(time, cvd) ~ sbp/10")
        figure = spending(store, "cvd").figure()
    assert facts["sites"]["north"]["epsilon_given"] == FLOW
    assert answer.columns["ε"]["north"].endswith(" given the flow")

    class Told(Study):
        def facts(self):
            return facts

    told_study = Told(SimpleNamespace(ask=lambda *_: told, releases=lambda *_, **__: told), "cvd")
    assert "ε at most given the flow" in re.sub(r"\s+", " ", shown(told_study.show))
    notebook = told_study.releases()._repr_html_()
    assert re.search(r"<td>\d+(\.\d+)? given the flow</td>", notebook)
    assert "ε spent, given the flow" in {axes.get_ylabel() for axes in figure.figure.axes}


# -- of a total: the condition of every price in it ---------------------------------------------------------------
def mixed_ledger(tmp_path, *, waves: int = 2) -> tuple[SimpleNamespace, StudyPlan]:
    """A site that has drawn wave 1 under posture local, and its plan's second version, which is public."""
    at, plan = site(tmp_path), study("local")
    first = plan.waves[0]
    later = study(
        "public",
        version=2,
        returning="refresh",
        budget=Budget(epsilon=1000.0),
        waves=(first, *(replace(first, number=k, refit=True) for k in range(2, waves + 1))),
    )
    for wave, one in ((1, plan), (2, later))[:waves]:
        at.ledger.reserve(
            Reservation(
                study=plan.study,
                plan_hash=one.hash,
                wave=wave,
                release_id=f"{wave}" * 32,
                event=planned_event(one).to_canonical(),
                delta=plan.budget.delta,
                cap_epsilon=later.budget.epsilon,
                uncovered=coverage(one)[1],
            )
        )
    return at, later


def test_a_running_total_has_the_condition_of_every_charge_in_it(tmp_path):
    """Wave 1 given the flow, wave 2 whatever the flow was: what both cost together holds given the flow alone."""
    at, plan = mixed_ledger(tmp_path)
    first, second = at.ledger.statement(plan.study)
    assert [(line.epsilon_given, line.total_given) for line in (first, second)] == [(FLOW, FLOW), ("", FLOW)]
    assert second.total > max(first.total, second.epsilon)
    both = shown_epsilon(second.total)
    screen = shown(lambda out: screens.budget(out, [first, second], totals(at, plan.study)))
    assert re.search(r"total ε \(RDP\) given the flow", screen)
    assert f"{shown_epsilon(first.epsilon)} given the flow" in screen  # charges differ: each says it
    (line,) = [row for row in screen.splitlines() if second.release_id[:8] in row]
    assert (both in line, "given" in line) == (True, False)
    assert f"{both} given the flow" in budget_page(at)
    assert not re.search(rf"{re.escape(both)}(?! given the flow)", budget_page(at))
    told = SimpleNamespace(ledger=at.ledger, config=SimpleNamespace(budget=SiteBudget()))
    lines = plain(books.budget(told).data)["lines"]
    assert [(one["epsilon_given"], one["total_given"]) for one in lines] == [(FLOW, FLOW), ("", FLOW)]


def test_a_charge_without_a_condition_gets_none_from_those_after_it_or_of_another_study(tmp_path):
    at = site(tmp_path)
    local, public = coverage(study("local"))[1], coverage(study("public"))[1]
    terms = {"plan_hash": "a" * 64, "event": Gaussian(sigma=1.0, sensitivity=1.0).to_canonical(), "delta": 1e-6}
    for k, (name, wave, open_) in enumerate((("a", 1, public), ("b", 1, local), ("a", 2, local), ("b", 2, public))):
        at.ledger.reserve(
            Reservation(study=name, wave=wave, release_id=f"{k}" * 32, uncovered=open_, cap_epsilon=1e3, **terms)
        )
    assert [line.total_given for line in at.ledger.statement()] == ["", FLOW, FLOW, FLOW]


def test_what_a_plan_costs_with_earlier_versions_has_their_condition(tmp_path, capsys):
    at, plan = mixed_ledger(tmp_path, waves=1)
    plan = replace(plan, waves=(plan.waves[0], replace(plan.waves[0], number=2, refit=True)))
    price = _price_of(plan, planned_event(plan))
    found = charged(at, plan, today())
    assert (price["epsilon_given"], found["to_come"], found["total_given"]) == ("", [2], FLOW)
    words = screens.charged_words({"charged": found, "price": price})
    assert words.startswith(f"ε = {shown_epsilon(found['with_waves_to_come'])} given the flow, of 1000")
    # And the other way round: nothing was charged, and the plan is local.
    ahead = charged(site(tmp_path / "other"), study("local"), today())
    assert (ahead["epsilon_given"], ahead["to_come"], ahead["total_given"]) == ("", [1], FLOW)
    told = SimpleNamespace(ledger=at.ledger, plans=SimpleNamespace(plan=lambda name: plan))
    calendar.waves(told, plan.study).show(console())
    total = shown_epsilon(found["with_waves_to_come"])
    assert f"with all waves to come {total} given the flow." in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_at_the_coordinator_a_sum_has_the_condition_of_every_release_in_it(tmp_path, capsys):
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    config = CoordinatorConfig(home=tmp_path, name="tributary-hub", address="localhost:1", names=("localhost",))
    (tmp_path / "coordinator.toml").write_text(config.to_toml())
    lead, plan = SigningKey.generate(), cohort_plan()
    plan = replace(plan, training=replace(plan.training, outcomes="joint"))
    later = replace(plan, version=2, posture="public")
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        store.add_plan(sign_plan(later, [lead]), later)
        invitation = authority.invite("north", ["cvd"], address="localhost:1", leads=[lead.public], days=300)
        store.add_invitation(invitation)
        key = join(store, invitation)
        deliver(store, plan, "north", key, people(300, 1))
        newest = deliver(store, later, "north", key, people(310, 2), wave=2)
        for back in (False, True):
            if back:
                take_back(store, "north", key)
            facts = AnalysisService._study(SimpleNamespace(_store=store, delivered=DeliveredSites(store)), "cvd")[
                "sites"
            ]["north"]
            assert (facts["posture"], facts["epsilon_given"]) == ("public", FLOW)
        (course,) = spending(store, "cvd").courses
        assert course.given == FLOW
    assert main(["--home", str(tmp_path), "release", "show", newest]) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    together = re.search(r"all 2 releases that had arrived by then would have spent ε (\S+ given the flow)\.", said)
    assert together, said
    cap = shown_epsilon(later.budget.epsilon)
    assert f"ε {cap} given the flow, per person at this site, by the whole study under version 2 of the plan" in said
    assert re.search(r"this release ε = \S+ at δ = \S+ at most", said), "this one holds whatever the flow was"


def test_further_waves_of_a_plan_have_its_condition_after_releases_without_one(tmp_path):
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    lead, later = SigningKey.generate(), cohort_plan()
    later = replace(later, training=replace(later.training, outcomes="joint"))
    plan, later = replace(later, posture="public"), replace(later, version=2)
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        invitation = authority.invite("north", ["cvd"], address="localhost:1", leads=[lead.public], days=300)
        store.add_invitation(invitation)
        deliver(store, plan, "north", join(store, invitation), people(300, 1))
        (before,) = spending(store, "cvd").courses
        store.add_plan(sign_plan(later, [lead]), later)
        (after,) = spending(store, "cvd").courses
    assert before.planned
    assert after.planned
    assert (before.given, after.given) == ("", FLOW)


def test_a_total_takes_as_given_what_any_price_in_it_does():
    assert all_given([(2.0, ""), (3.0, FLOW), (4.0, FLOW)]) == FLOW
    assert all_given([(2.0, ""), (None, FLOW)]) == ""
    assert all_given([]) == ""
