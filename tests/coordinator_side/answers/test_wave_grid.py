"""Waves at the coordinator: a calendar is a draft, a closed wave never changes, and a question names its revision."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from stage.coordinator_side.delivered import (
    APPROVERS,
    TODAY,
    cohort,
    cohort_plan,
    quarantine,
    site_estimates,
    take_back,
)
from stage.coordinator_side.wave_grid import DAY, QUESTION, Study, monthly
from stage.processes.theatre import exit_code

import coordinator.cli as cli
from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.synthesis import synthesis
from coordinator.answers.waves import STATES, draft, grid, reminder, scheduled
from coordinator.cli import main
from coordinator.services.membership import Members
from coordinator.store import schema as db
from coordinator.store.site_certificates import SiteCertificates, _membership, _site, joined_days, new_serial
from coordinator.store.store import Store
from shared.base.canonical import parse_json
from shared.base.keys import Envelope, SigningKey
from shared.errors import EstimateRefusal, ParameterError, PlanRefusal, StateRefusal
from shared.estimands.effects import shown
from shared.membership.declined import DeclinedNotice
from shared.plans.plan import StudyPlan, Wave, sign_plan
from shared.wire.certificates import serial_of
from shared.wire.transport import Peer
from site_agent.egress import new_tls_identity

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def study(tmp_path, request):
    made = Study(tmp_path / "home", **getattr(request, "param", {}))
    yield made
    made.store.close()


def states(study, wave: int, today: dt.date) -> dict[str, str]:
    return {cell.site: cell.state for cell in grid(study.store, "cvd", today).waves[wave - 1].cells}


# -- the calendar -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("every", "days"),
    [
        ("month", ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"]),
        ("quarter", ["2026-01-31", "2026-04-30", "2026-07-31", "2026-10-31"]),
        ("week", ["2026-01-31", "2026-02-07", "2026-02-14", "2026-02-21"]),
        ("10 days", ["2026-01-31", "2026-02-10", "2026-02-20", "2026-03-02"]),
    ],
)
def test_a_calendar_follows_the_months_and_keeps_their_last_days(every, days):
    plan = dataclasses.replace(cohort_plan(), waves=monthly(2))
    new = scheduled(
        plan, every=every, count=4, window=5, start=dt.date(2026, 1, 31), quorum=3, today=dt.date(2026, 1, 5)
    )
    assert [str(wave.opens) for wave in new.waves[1:]] == days, "wave 1 has opened and stays; wave 2 is replaced"
    assert {(wave.closes - wave.opens).days for wave in new.waves[1:]} == {5}
    assert {wave.quorum for wave in new.waves} == {0, 3}
    assert (new.waves[0], new.version) == (plan.waves[0], 2)
    assert new.expires > new.waves[-1].closes


def test_a_calendar_that_cannot_be_is_refused():
    plan = dataclasses.replace(cohort_plan(), waves=monthly(2))
    good = {"every": "month", "count": 2, "window": 5, "today": TODAY}
    for wrong in ({"every": "now and then"}, {"every": "0 days"}, {"count": 0}, {"window": 0}):
        with pytest.raises(ParameterError):
            scheduled(plan, **{**good, **wrong})
    with pytest.raises(ParameterError):
        scheduled(plan, **good, start=dt.date(2025, 12, 1))
    with pytest.raises(PlanRefusal):
        Wave(number=1, opens=TODAY, closes=TODAY, quorum=-1)


def test_a_draft_reads_back_as_the_same_plan_for_every_shipped_study():
    from stage.coordinator_side.delivered import STUDIES

    for path in sorted(STUDIES.glob("*.toml")):
        plan = StudyPlan.from_toml(path.read_text())
        assert StudyPlan.from_toml(draft(plan)) == plan
    odd = dataclasses.replace(cohort_plan(), purpose='Quotes " and \\ and a line\nbreak, and \x7f.')
    assert StudyPlan.from_toml(draft(odd)).purpose == odd.purpose


# -- the grid -----------------------------------------------------------------------------------------------------
def test_the_grid_says_of_each_site_what_the_coordinator_holds(study):
    assert states(study, 1, TODAY) == dict.fromkeys(study.keys, "waiting")
    study.deliver("alpha", 1)
    quarantine(study.store, study.plan, "beta", study.keys["beta"], cohort(70, 1), wave=1)
    found = grid(study.store, "cvd", TODAY)
    assert states(study, 1, TODAY) == {"alpha": "delivered", "beta": "quarantined", "gamma": "waiting"}
    assert states(study, 2, TODAY) == dict.fromkeys(study.keys, "planned")
    line = found.waves[0]
    assert (line.state, line.delivered, line.missing, line.revision) == ("open", 1, ("beta", "gamma"), None)
    assert (found.waiting_days, found.waiting_wave) == (4, 1)
    assert grid(study.store, "cvd", dt.date(2026, 1, 12)).waves[0].state == "overdue"
    study.close(1)
    study.deliver("gamma", 1)
    assert states(study, 1, TODAY) == {"alpha": "delivered", "beta": "quarantined", "gamma": "late"}
    take_back(study.store, "alpha", study.keys["alpha"])
    assert states(study, 1, TODAY)["alpha"] == "withdrawn"
    assert grid(study.store, "cvd", TODAY).waiting_days is None
    take_back(study.store, "gamma", study.keys["gamma"])
    again = grid(study.store, "cvd", TODAY).waves[0]
    assert (again.missing, again.awaited) == (("alpha", "beta", "gamma"), ("beta",)), "what is taken back is for good"
    assert set(STATES) >= {cell.state for line in grid(study.store, "cvd", TODAY).waves for cell in line.cells}


def test_a_site_whose_steward_told_of_a_rejection_is_waited_for_no_more(study):
    def tell(wave: int, decision: str) -> None:
        said = DeclinedNotice(
            coordinator="tributary-hub",
            site="beta",
            study="cvd",
            wave=wave,
            release_id=f"{wave:032d}",
            decision=decision,
            reason="chol is in other units here",
            approver="steward",
        )
        site = next(one for one in study.store.sites() if one.site == "beta")
        signed = said.signed(APPROVERS[study.keys["beta"].public.key_id])
        Members(study.store, "tributary-hub").note_declined(site, signed, TODAY)

    tell(1, "send_back")
    assert states(study, 1, TODAY)["beta"] == "waiting", "it is drawn again"
    tell(1, "reject")
    assert states(study, 1, TODAY) == {"alpha": "waiting", "beta": "rejected", "gamma": "waiting"}
    assert grid(study.store, "cvd", TODAY).waves[0].awaited == ("alpha", "gamma")
    for site in ("alpha", "gamma"):
        study.deliver(site, 1)
    found = grid(study.store, "cvd", TODAY)
    assert (found.waiting_days, found.waves[0].missing) == (None, ("beta",))
    study.deliver("beta", 1)
    assert states(study, 1, TODAY)["beta"] == "delivered", "it was drawn again after all"


def test_a_site_that_takes_part_no_more_is_waited_for_no_more(study):
    study.deliver("alpha", 1)
    assert grid(study.store, "cvd", TODAY).waiting_for == ("beta", "gamma")
    quarantine(study.store, study.plan, "beta", study.keys["beta"], cohort(70, 1), wave=1)
    study.deliver("gamma", 1)
    study.store.revoke_site("gamma")
    found = grid(study.store, "cvd", TODAY)
    assert states(study, 1, TODAY)["gamma"] == "delivered", "what it sent stays"
    assert states(study, 2, TODAY)["gamma"] == "taken out"
    assert "gamma" not in grid(study.store, "cvd", dt.date(2026, 2, 5)).waves[1].missing
    assert "gamma" not in found.waiting_for


def joined(study, site: str, day: dt.date, *, serial: int = 0) -> str:
    """Have a site's first certificate be of that day."""
    csr = new_tls_identity(site)[1]
    noon = dt.datetime(day.year, day.month, day.day, 12, tzinfo=dt.UTC)
    pem = dataclasses.replace(study.authority, now=lambda: noon).issue(csr, site, serial=serial)
    where = db.sites.c.site == site
    study.store.write(lambda c: c.execute(db.sites.update().where(where).values(csr_pem=csr, certificate_pem=pem)))
    return pem


def test_a_site_is_waited_for_since_it_joined_where_the_wave_had_opened_before(study):
    """It was counted from the wave's opening: the study waited a month for a hospital that came yesterday."""
    study.deliver("alpha", 1)
    opens, late = study.plan.waves[0].opens, dt.date(2026, 1, 25)
    joined(study, "gamma", opens + 20 * DAY)
    found = grid(study.store, "cvd", late)
    assert (found.waiting_days, found.waiting_for) == ((late - opens).days, ("beta",))
    assert found.waves[0].awaited == ("beta", "gamma"), "both can be reminded"
    study.deliver("beta", 1)
    found = grid(study.store, "cvd", late)
    assert (found.waiting_days, found.waiting_wave, found.waiting_for) == (4, 1, ("gamma",))
    joined(study, "gamma", opens - 5 * DAY)
    assert grid(study.store, "cvd", late).waiting_days == (late - opens).days, "it could have sent when it opened"


def test_a_site_joined_when_it_got_its_first_certificate_whatever_it_renewed_since(study):
    site = joined(study, "gamma", dt.date(2026, 1, 3), serial=1 << 70)
    day = dt.date(2026, 2, 20)
    known = {one.site: one for one in study.store.sites()}
    assert joined_days(study.store, [known["gamma"]]) == {"gamma": dt.date(2026, 1, 3)}
    csr = new_tls_identity("gamma")[1]
    first = study.store.enrolment("gamma")
    number = new_serial(study.store.read(lambda c: _membership(c, _site(c, "gamma"))))
    noon = dt.datetime(day.year, day.month, day.day, 12, tzinfo=dt.UTC)
    pem = dataclasses.replace(study.authority, now=lambda: noon).issue(csr, "gamma", serial=number)
    shown = Peer(role="site", site="gamma", serial=serial_of(pem), certificate_pem=pem)
    SiteCertificates(study.store).arrived(shown, day)
    now = study.store.enrolment("gamma")
    assert (now.certificate_pem, first.certificate_pem) == (pem, site)
    assert joined_days(study.store, [now, known["beta"]]) == {"gamma": dt.date(2026, 1, 3)}


def test_the_grid_asks_the_database_as_often_for_many_sites_as_for_few(tmp_path):
    import sqlalchemy as sa

    def asked(home: str, *sites: str) -> int:
        made, count = Study(tmp_path / home, sites=sites), [0]
        with closing(made.store):

            def counted(*_: object) -> None:
                count[0] += 1

            grid(made.store, "cvd", TODAY)  # what is read once for all
            sa.event.listen(made.store._engine, "before_cursor_execute", counted)
            grid(made.store, "cvd", dt.date(2026, 3, 1))
        return count[0]

    few, many = asked("few", "alpha"), asked("many", *(f"site{k}" for k in range(12)))
    assert few == many


def test_a_ledger_that_moved_since_the_last_delivery_is_a_guess_and_is_called_one(study):
    from stage.both_sides.service import anchor_head

    from shared.base.keys import Envelope

    envelope = Envelope.sign("x", b"y", [SigningKey.generate()])
    study.deliver("alpha", 1)
    study.store.add_anchor(anchor_head("beta", 3), envelope)
    assert states(study, 1, TODAY) == {"alpha": "delivered", "beta": "held?", "gamma": "waiting"}
    study.deliver("beta", 1)
    assert states(study, 2, dt.date(2026, 2, 1))["beta"] == "waiting", "that ledger moved before its delivery"


def test_a_reminder_is_a_text_for_the_lead_and_a_day_for_the_site(study):
    study.deliver("alpha", 1)
    line = grid(study.store, "cvd", TODAY).waves[0]
    text = reminder(study.plan, line, "beta", TODAY)
    assert "in 6 days" in text
    assert "Only you decide" in text
    study.store.remind("cvd", 1, ["beta", "gamma"], TODAY)
    study.store.remind("cvd", 1, ["beta"], TODAY + DAY)
    assert [(told.wave, told.day) for told in study.store.reminders("cvd", "beta")] == [(1, "2026-01-06")]
    assert study.store.reminders("cvd", "alpha") == ()
    study.deliver("beta", 1)
    assert study.store.reminders("cvd", "beta") == (), "who has delivered is not reminded"
    assert len(study.store.log()) == 2, "a reminder is no entry of the log"


# -- closing ------------------------------------------------------------------------------------------------------
def test_a_closed_wave_names_who_was_missing_and_what_comes_later_makes_revisions(study):
    for site in ("alpha", "beta"):
        study.deliver(site, 1)
    closed = study.close(1)
    assert (closed.number, closed.cause, closed.missing) == (0, "closed", ("gamma",))
    entry = parse_json(study.store.log()[closed.log_index].entry)
    assert (entry["kind"], entry["missing"], len(entry["releases"])) == ("wave_closed", ["gamma"], 2)
    with pytest.raises(StateRefusal):
        study.close(1)
    study.deliver("gamma", 1)
    take_back(study.store, "beta", study.keys["beta"])
    record = study.store.wave_record("cvd", 1)
    told = [(revision.number, revision.cause, revision.site) for revision in record.revisions]
    assert told == [(0, "closed", ""), (1, "late", "gamma"), (2, "withdrawn", "beta")]
    assert (record.closed, record.revision) == (True, 2)
    assert study.store.wave_record("cvd", 2).revisions == ()
    assert study.store.verify_log() == 5
    assert study.store.verify_signatures() == 4


def test_a_reopened_wave_takes_deliveries_without_a_revision_until_it_is_closed_again(study):
    study.deliver("alpha", 1)
    with pytest.raises(StateRefusal):
        study.store.reopen_wave("cvd", 1, reason="too early", today=TODAY)
    study.close(1)
    with pytest.raises(ParameterError):
        study.store.reopen_wave("cvd", 1, reason=" ", today=TODAY)
    assert study.store.reopen_wave("cvd", 1, reason="gamma was ill", today=TODAY).revision is None
    study.deliver("gamma", 1)
    again = study.close(1)
    assert (again.number, again.missing) == (1, ("beta",))
    kinds = [parse_json(entry.entry)["kind"] for entry in study.store.log()]
    assert kinds == ["release", "wave_closed", "wave_reopened", "release", "wave_closed"]


@pytest.mark.parametrize("study", [{"quorum": 2}], indirect=True)
def test_a_wave_below_its_quorum_is_closed_only_with_a_reason(study):
    study.deliver("alpha", 1)
    with pytest.raises(StateRefusal, match="2 deliveries"):
        study.close(1, quorum=2)
    assert study.close(1, quorum=2, reason="two sites left").reason == "two sites left"
    assert parse_json(study.store.log()[-1].entry)["reason"] == "two sites left"


# -- the table as of wave k ---------------------------------------------------------------------------------------
RULES = [{"returning": rule} for rule in ("append", "frozen", "refresh")]


@pytest.mark.parametrize("study", RULES, indirect=True, ids=lambda rule: rule["returning"])
def test_the_table_as_of_a_wave_follows_the_plans_rule_for_returning_persons(study):
    for wave in (1, 2, 3):
        study.deliver("alpha", wave)
    study.deliver("beta", 1)
    waves = {"append": (1, 2), "frozen": (2,), "refresh": (2,)}[study.plan.returning]
    answer = ask(study.store, holding(study.store, "cvd", 2), QUESTION)
    alpha, beta = answer.estimates
    assert (alpha.yi, alpha.n) == study.alone("alpha", *waves)
    assert (beta.yi, beta.n) == study.alone("beta", 1), "a site with nothing newer stands with what it has"
    assert [(source.site, source.wave) for source in answer.sources] == [
        *(("alpha", wave) for wave in waves),
        ("beta", 1),
    ]
    releases = {release.release_id: release for release in study.store.releases("cvd")}
    for source in answer.sources:
        found = releases[source.release_id]
        assert (source.bundle_sha256, source.log_index) == (found.bundle_sha256, found.log_index)
    assert len(alpha.receipts) == len(waves)
    assert site_estimates(study.store, "cvd", 2, QUESTION) == list(answer.estimates)
    first = ask(study.store, holding(study.store, "cvd", 1), QUESTION)
    assert (first.estimates[0].yi, first.estimates[0].n) == study.alone("alpha", 1), "later waves change nothing"


def test_a_later_plan_version_may_change_the_rule_and_earlier_releases_keep_theirs(study):
    study.deliver("alpha", 1)
    study.deliver("alpha", 2)
    study.plan = dataclasses.replace(study.plan, version=2, returning="append")
    study.store.add_plan(sign_plan(study.plan, [study.lead]), study.plan)
    study.deliver("alpha", 3)
    (row,) = site_estimates(study.store, "cvd", 3, QUESTION)
    assert (row.yi, row.n) == study.alone("alpha", 2, 3)


def test_refreshes_are_put_together_only_when_that_is_asked_for(study):
    for wave in (1, 2):
        study.deliver("alpha", wave)
    together = ask(study.store, holding(study.store, "cvd", 2, combine=True), QUESTION)
    assert (together.estimates[0].yi, together.estimates[0].n) == study.alone("alpha", 1, 2)
    assert (together.combined, ask(study.store, holding(study.store, "cvd", 2), QUESTION).combined) == (True, False)
    # Twice the rows, the same persons: the rows' own variance is half of the persons'.
    (row,) = together.estimates
    assert row.vi_sampling == pytest.approx(2 * row.vi_naive, rel=0.1)
    assert any("persons may be in more than one" in warning for warning in row.warnings), "said before the number"
    assert not any(
        "in more than one" in warning
        for warning in ask(study.store, holding(study.store, "cvd", 2), QUESTION).estimates[0].warnings
    )


def test_waves_of_a_growing_hospital_are_not_held_surer_than_their_persons_could_be(study):
    for wave, n in ((1, 300), (2, 900)):
        study.deliver("alpha", wave, n)
    (row,) = ask(study.store, holding(study.store, "cvd", 2, combine=True), QUESTION).estimates
    n = row.n
    # As much as if the first wave's persons, a quarter of the rows, were among the second's.
    assert row.vi_sampling / row.vi_naive >= n * (4 * 301 + 601) / n**2 * 0.99


@pytest.mark.parametrize("study", [{"returning": "frozen"}], indirect=True)
def test_a_release_that_holds_the_earlier_rows_is_not_put_together_with_them(study):
    study.deliver("alpha", 1)
    assert ask(study.store, holding(study.store, "cvd", 1, combine=True), QUESTION).estimates[0].n == 301
    study.deliver("alpha", 2)
    with pytest.raises(ParameterError, match="must not hold one another's rows") as refused:
        ask(study.store, holding(study.store, "cvd", 2, combine=True), QUESTION)
    assert "without --combine" in str(refused.value)


def deliver_nameless_and_then_named(study, **changes):
    nameless = dataclasses.replace(
        study.plan.dictionary, columns=tuple(c for c in study.plan.dictionary.columns if c.kind != "person")
    )
    known, study.plan = (
        study.plan.dictionary,
        dataclasses.replace(study.plan, version=2, dictionary=nameless, **changes),
    )
    study.store.add_plan(sign_plan(study.plan, [study.lead]), study.plan)
    study.deliver("alpha", 1)
    study.plan = dataclasses.replace(study.plan, version=3, returning="append", dictionary=known)
    study.store.add_plan(sign_plan(study.plan, [study.lead]), study.plan)
    study.deliver("alpha", 2)


def test_new_persons_are_not_taken_for_others_where_no_earlier_wave_could_tell(study):
    deliver_nameless_and_then_named(study)
    (row,) = ask(study.store, holding(study.store, "cvd", 2), QUESTION).estimates
    assert (row.yi, row.n) == study.alone("alpha", 1, 2)
    assert row.vi_sampling == pytest.approx(2 * row.vi_naive, rel=0.1), "they may be the same persons"
    assert any("persons may be in more than one" in warning for warning in row.warnings)


def test_rows_are_not_drawn_of_figures_that_may_be_of_the_same_persons(study):
    deliver_nameless_and_then_named(study, row_download=True)
    with pytest.raises(EstimateRefusal, match="figures of the same persons must not be put together"):
        synthesis(study.store, "cvd", "alpha")


@pytest.mark.parametrize("study", RULES, indirect=True, ids=lambda rule: rule["returning"])
def test_survival_rows_say_at_which_wave_their_follow_up_ended(study):
    for wave in (1, 2):
        study.deliver("alpha", wave)
    told = [source.censoring for source in ask(study.store, holding(study.store, "cvd", 2), QUESTION).sources]
    expected = {
        "append": ["wave 1", "wave 2"],
        "frozen": ["each row at its own first wave, 1 to 2"],
        "refresh": ["wave 2"],
    }
    assert told == expected[study.plan.returning]
    assert {source.censoring for source in ask(study.store, holding(study.store, "cvd", 2), "mean(sbp)").sources} == {
        ""
    }


def test_a_wave_nobody_delivered_is_not_answered_with_an_earlier_one(study):
    study.deliver("alpha", 1)
    with pytest.raises(EstimateRefusal, match="wave 2"):
        ask(study.store, holding(study.store, "cvd", 2), QUESTION)
    take_back(study.store, "alpha", study.keys["alpha"])
    with pytest.raises(EstimateRefusal, match="1 withdrawn"):
        ask(study.store, holding(study.store, "cvd", 1), QUESTION)


def test_an_answer_as_of_a_revision_stays_what_it_was(study):
    for site in ("alpha", "beta"):
        study.deliver(site, 1)
    with pytest.raises(ParameterError, match="not been closed"):
        ask(study.store, holding(study.store, "cvd", 1, as_of=0), QUESTION)
    study.close(1)
    before = ask(study.store, holding(study.store, "cvd", 1, as_of=0), QUESTION)
    assert (before.revisions, before.result.k) == ({1: 0}, 2)
    study.deliver("gamma", 1)
    study.deliver("alpha", 2)
    assert ask(study.store, holding(study.store, "cvd", 1, as_of=0), QUESTION) == before
    now = ask(study.store, holding(study.store, "cvd", 1), QUESTION)
    assert (now.revisions, now.result.k, now.as_of) == ({1: 1}, 3, None)
    assert ask(study.store, holding(study.store, "cvd", 1, as_of=1), QUESTION).result == now.result
    with pytest.raises(ParameterError, match="0 to 1"):
        ask(study.store, holding(study.store, "cvd", 1, as_of=2), QUESTION)
    later = ask(study.store, holding(study.store, "cvd", 2), QUESTION)
    assert later.revisions == {1: 1, 2: None}


def test_what_was_withdrawn_is_in_no_answer_not_even_an_earlier_revisions(study):
    for site in study.keys:
        study.deliver(site, 1)
    study.close(1)
    digest = take_back(study.store, "beta", study.keys["beta"])
    for as_of in (0, 1, None):
        answer = ask(study.store, holding(study.store, "cvd", 1, as_of=as_of), QUESTION)
        assert answer.result.labels == ("alpha", "gamma")
        assert digest not in answer.used
        assert [stone.site for stone in answer.withdrawn] == ["beta"]


# -- the verbs ----------------------------------------------------------------------------------------------------
@pytest.fixture
def verbs(study, monkeypatch, capsys):
    """`coordinator --json` on this study's home, on a day of the test's choosing: (exit code, answer)."""
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "a passphrase")
    (study.home / "coordinator.toml").write_text('name = "tributary-hub"\naddress = "localhost:8443"\n')

    def call(*argv, today: dt.date = TODAY):
        for room in cli.ROOMS:
            monkeypatch.setattr(room, "today", lambda: today, raising=False)
        code = main(["--home", str(study.home), *map(str, argv), "--json"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if shown.out.strip() else {}

    return call


def test_a_calendar_is_written_as_a_draft_and_published_to_nobody(study, verbs, tmp_path):
    out = tmp_path / "next.toml"
    argv = ("wave", "schedule", "cvd", "--every", "quarter", "--count", 2, "--window", 10, "--quorum", 2, "--out", out)
    code, answer = verbs(*argv, "--dry-run")
    assert (code, answer["written"], out.exists()) == (0, False, False)
    code, answer = verbs(*argv)
    assert (code, answer["version"], len(answer["waves"])) == (0, 2, 3)
    plan = StudyPlan.from_toml(out.read_text())
    assert [wave.quorum for wave in plan.waves] == [0, 2, 2]
    assert study.store.plan("cvd").plan.version == 1, "nothing is published before it is signed"
    assert any("budget" in check["name"] for check in answer["concerns"]), "three refreshes are too dear"
    assert verbs(*argv)[0] == 2
    assert verbs(*argv[:-2], "--out", tmp_path / "x.toml", "--start", "soon")[0] == 2


def test_the_lead_closes_after_the_deadline_or_gives_a_reason(study, verbs):
    study.deliver("alpha", 1)
    code, answer = verbs("wave", "status", "cvd")
    assert (code, answer["waves"][0]["missing"], answer["waiting_days"]) == (0, ["beta", "gamma"], 4)
    assert verbs("wave", "close", "cvd", 1)[0] == 2
    late = dt.date(2026, 1, 20)
    code, answer = verbs("wave", "close", "cvd", 1, "--dry-run", today=late)
    assert (code, answer["closed"], study.store.wave_record("cvd", 1).closed) == (0, False, False)
    code, answer = verbs("wave", "close", "cvd", 1, today=late)
    assert (answer["closed"], answer["missing"], answer["revision"]) == (True, ["beta", "gamma"], 0)
    assert verbs("wave", "close", "cvd", 1, today=late)[0] == 2
    study.deliver("beta", 1)
    code, answer = verbs("pool", "cvd", "--wave", 1, "--formula", QUESTION)
    assert answer["revisions"] == {"1": 1}
    assert verbs("pool", "cvd", "--wave", 1, "--as-of", 0, "--formula", QUESTION)[1]["k"] == 1
    assert verbs("wave", "reopen", "cvd", 1, "--reason", "gamma asked", "--dry-run")[1]["reopened"] is False
    assert verbs("wave", "reopen", "cvd", 1, "--reason", "gamma asked")[1]["revisions"] == 2
    assert verbs("wave", "reopen", "cvd", 1, "--reason", "again")[0] == 2
    assert verbs("wave", "close", "cvd", 9)[0] == 10


def test_reminders_are_texts_for_the_lead_to_send(study, verbs, tmp_path):
    study.deliver("alpha", 1)
    code, answer = verbs("wave", "remind", "cvd", 1, "--out", tmp_path / "mail", "--dry-run")
    assert (code, set(answer["texts"])) == (0, {"beta", "gamma"})
    assert study.store.reminders("cvd", "beta") == ()
    verbs("wave", "remind", "cvd", 1, "--out", tmp_path / "mail")
    assert sorted(path.name for path in (tmp_path / "mail").iterdir()) == [
        "cvd-wave1-beta.txt",
        "cvd-wave1-gamma.txt",
    ]
    assert [told.day for told in study.store.reminders("cvd", "beta")] == ["2026-01-05"]
    assert verbs("wave", "remind", "cvd", 3)[0] == 2


def test_results_that_rest_on_a_withdrawn_release_are_stale_and_asked_again_say_what_changed(study, verbs, tmp_path):
    for site in study.keys:
        study.deliver(site, 1)
    figure = tmp_path / "forest.svg"
    asked = ("--wave", 1, "--formula", QUESTION)
    first = verbs("pool", "cvd", *asked)[1]
    assert first["changed"] == []
    verbs("pool", "cvd", *asked)
    verbs("figure", "cvd", *asked, "--out", figure)
    verbs("figure", "cvd", *asked, "--out", figure, "--dry-run")
    code, answer = verbs("results")
    assert (code, [(row["kind"], row["stale"]) for row in answer]) == (0, [("pool", False), ("figure", False)])
    assert verbs("results", "--stale") == (0, [])
    digest = take_back(study.store, "beta", study.keys["beta"])
    stale = verbs("results", "--stale")[1]
    assert [(row["kind"], row["withdrawn"]) for row in stale] == [("pool", [digest]), ("figure", [digest])]
    again = verbs("pool", "cvd", *asked)[1]
    assert again["withdrawn"][0]["site"] == "beta"
    text = " ".join(again["changed"])
    assert "beta has withdrawn a release" in text
    was, is_ = (shown(one["pooled"]["beta"], "log") for one in (first, again))
    assert f"The pooled estimate (hazard ratio) was {was:.4g} and is {is_:.4g}." in text
    assert verbs("pool", "cvd", *asked)[1]["changed"] == []
    assert [row["stale"] for row in verbs("results")[1]] == [True, True, False]


def test_a_wave_that_everybody_has_delivered_is_to_be_closed_once_its_deadline_is_over(
    study, verbs, capsys, monkeypatch
):
    for site in study.keys:
        study.deliver(site, 1)
    assert verbs("wave", "status", "cvd")[1]["waves"][0]["missing"] == []
    argv, closing = ["--home", str(study.home), "wave", "status", "cvd"], "next: coordinator wave close cvd 1"
    assert main(argv) == 0
    assert closing not in capsys.readouterr().out
    monkeypatch.setattr("coordinator.cli.releases.today", lambda: dt.date(2026, 1, 20))
    assert main(argv) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Every site has delivered wave 1. {closing}" in shown


def test_the_screens_of_waves_and_results_fit_and_are_in_words(study, verbs, capsys):
    study.deliver("alpha", 1)
    study.close(1)
    study.deliver("beta", 1)
    verbs("pool", "cvd", "--wave", 1, "--formula", QUESTION)
    take_back(study.store, "beta", study.keys["beta"])
    for argv, words in (
        (["wave", "status", "cvd"], ("closed, revision 2", "withdrawn", "missing", "taken back by its site")),
        (["results"], ("stale: beta withdrew",)),
        (["pool", "cvd", "--wave", "1", "--formula", QUESTION], ("as of revision 2", "Not in it: the release of beta")),
        (["log", "verify"], ("4 entries", "3 signed documents")),
    ):
        assert main(["--home", str(study.home), *argv]) == 0
        shown = capsys.readouterr().out
        for word in words:
            assert word in " ".join(shown.split()), (argv, word, shown)


@pytest.mark.parametrize("place", ["wave.before_event", "wave.before_commit", "wave.closed"])
def test_a_lead_killed_while_closing_a_wave_closes_it_once(study, verbs, place):
    study.deliver("alpha", 1)
    argv = ("--home", study.home, "wave", "close", "cvd", 1, "--reason", "test")
    assert exit_code("coordinator.cli", *argv, place=place) == -signal.SIGKILL
    closed = study.store.wave_record("cvd", 1).closed
    assert closed == (place == "wave.closed")
    assert verbs("wave", "close", "cvd", 1, "--reason", "test")[0] == (2 if closed else 0)
    assert len(study.store.wave_record("cvd", 1).revisions) == 1
    assert study.store.verify_log() == 2


@pytest.mark.parametrize("place", ["wave.reopened", "wave.reminded", "result.saved"])
def test_a_lead_killed_after_a_note_finds_it_once_when_the_verb_is_run_again(study, verbs, place):
    study.deliver("alpha", 1)
    study.deliver("beta", 1)
    argv = {
        "wave.reopened": ("wave", "reopen", "cvd", "1", "--reason", "gamma asked"),
        "wave.reminded": ("wave", "remind", "cvd", "1"),
        "result.saved": ("pool", "cvd", "--wave", "1", "--formula", "mean(sbp)"),
    }[place]
    if place == "wave.reopened":
        study.close(1)
    assert exit_code("coordinator.cli", "--home", study.home, *argv, place=place) == -signal.SIGKILL
    code, _ = verbs(*argv)
    assert code == (2 if place == "wave.reopened" else 0), "reopened already"
    kinds = [parse_json(entry.entry)["kind"] for entry in study.store.log()]
    assert kinds.count("wave_reopened") == (place == "wave.reopened")
    assert len(study.store.reminders("cvd", "gamma")) == (place == "wave.reminded")
    assert len(study.store.results()) == (place == "result.saved")


def test_the_end_of_a_standing_approval_is_kept_when_the_coordinator_dies_before_it_can_say_so(study):
    said = study.home / "said"
    said.write_bytes(Envelope.sign("application/json", b"{}", [study.keys["alpha"]]).to_bytes())
    step = ("steps", "end standing approval", study.home, said)
    assert not study.store.standing_revoked("alpha", "ab" * 32)
    assert exit_code(*step, place="standing.revoked") == -signal.SIGKILL
    assert study.store.standing_revoked("alpha", "ab" * 32)
    assert exit_code(*step) == 0, "again changes nothing"


def test_a_reader_sees_a_wave_before_or_after_a_withdrawal_and_nothing_between(study):
    for site in study.keys:
        study.deliver(site, 1)
    with closing(Store.open(study.home)) as reader:
        seen = [ask(reader, holding(reader, "cvd", 1), "mean(sbp)").result.k]
        take_back(study.store, "beta", study.keys["beta"])
        seen.append(ask(reader, holding(reader, "cvd", 1), "mean(sbp)").result.k)
    assert seen == [3, 2]
    assert np.isfinite(ask(study.store, holding(study.store, "cvd", 1), "mean(sbp)").result.beta)
