"""The study plan: ``plan fetch``, ``show``, ``approve``, ``revoke``, and the facts that screen and page show."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import ApprovalRefusal, BudgetRefusal, StateRefusal
from shared.privacy.stated import all_given, shown_epsilon
from shared.terminal import emit
from site_agent.cli.frame import As, Dry, Home, Json, Reason, Study, plan_app
from site_agent.desk import Desk, agent_version, asked, attempted, desk, today

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from shared.plans.plan import StudyPlan
    from site_agent.release.pipeline import Release

__all__ = [
    "charged",
    "due_numbers",
    "plan_approve",
    "plan_changes",
    "plan_facts",
    "plan_fetch",
    "plan_revoke",
    "plan_show",
]


@plan_app.command("fetch")
@attempted("plan fetch")
def plan_fetch(
    study: Study,
    file: Annotated[Path | None, typer.Option("--file", help="A signed plan that came another way.")] = None,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Fetch the study's plan and verify who signed it. It is not approved by that."""
    from shared.base.keys import Envelope

    at = desk(home)
    if file is not None:
        envelope = Envelope.from_bytes(file.read_bytes())
    else:
        with at.egress() as egress:
            envelope = egress.fetch_plan(study)
    plan = at.plans.receive(study, envelope, today=today(), keep=not dry_run)

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"{plan.study}: {plan.title}", f"version {plan.version}, signed by the study lead")
        screens.settings(out, [("plan hash", plan.hash), ("expires", plan.expires)])
        screens.next_step(out, f"site-agent plan show {study}")

    emit({"study": study, "version": plan.version, "hash": plan.hash, "dry_run": dry_run}, as_json=json, show=show)


@plan_app.command("show")
def plan_show(
    study: Study,
    version: Annotated[int | None, typer.Option(help="Another version than the newest.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """One page: what leaves, how often, to whom, at which price, and what is not covered."""
    at = desk(home)
    page = plan_facts(at, at.plans.plan(study, version))

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.plan_page(out, page)
        if not page["approved_by"]:
            screens.next_step(out, f"site-agent try {study}", f"site-agent plan approve {study} --as NAME")

    emit(page, as_json=json, show=show)


def plan_facts(at: Desk, plan: StudyPlan) -> dict[str, Any]:
    """Everything a steward agrees to, as plain values."""
    from dataclasses import asdict

    from shared.releases.receipt import coverage, planned_event
    from shared.terminal import plain
    from site_agent.config import Limits
    from site_agent.decide.plans import difference

    event = planned_event(plan)
    approval = at.plans.approval(plan.study, plan.version)
    before = at.plans.last_approved(plan.study)
    covered, not_covered = coverage(plan)
    columns = []
    for column in plan.dictionary.released:
        if column.levels:
            values = " · ".join(map(str, column.levels))
        else:
            values = f"{column.span[0]:g} to {column.span[1]:g} {column.unit}".rstrip()
        columns.append({"name": column.name, "kind": column.kind, "values": values, "missing": column.missing})
    page: dict[str, Any] = plain(
        {
            "study": plan.study,
            "version": plan.version,
            "title": plan.title,
            "purpose": plan.purpose,
            "hash": plan.hash,
            "dictionary_hash": plan.dictionary.hash,
            "recipient": plan.coordinator,
            "expires": plan.expires,
            "eligibility": plan.eligibility,
            "row_download": plan.row_download,
            "waves": [asdict(wave) for wave in plan.waves],
            "price": _price(plan, event),
            "training": _training(plan),
            "flow": plan.flow,
            "charged": charged(at, plan),
            "posture": plan.posture,
            "covered": covered,
            "not_covered": not_covered,
            "columns": columns,
            "floors": asdict(Limits.of(plan.floors, at.config.floors)),
            "approval": plan.floors.approval,
            "approved_by": approval.approver if approval and approval.plan_hash == plan.hash else None,
            "changes": difference(before, plan) if before is not None and before.hash != plan.hash else [],
        }
    )
    return page


def _price(plan: StudyPlan, event: Any) -> dict[str, Any]:
    from shared.privacy import accountant as privacy
    from shared.releases.receipt import given, in_words, planned_events
    from site_agent.decide.waves import cost

    delta, cap = plan.budget.delta, plan.budget.epsilon
    planned, promised = cost(plan, planned_events(plan)), privacy.guaranteed(event)
    return {
        "epsilon": float(privacy.epsilon(event, delta)) if promised else None,
        "epsilon_given": given(plan),
        "delta": delta,
        "all_waves": planned.totals[-1] if promised else None,
        "cap": cap,
        "affordable": planned.affordable,
        "translation": in_words(plan, event),
    }


def _training(plan: StudyPlan) -> dict[str, Any] | None:
    """A training that the sites run together: what a steward agrees to with the plan."""
    if plan.federated is None:
        return None
    from site_agent.training.rounds import uncovered

    return {
        "rounds": plan.federated.rounds,
        "steps": plan.federated.steps,
        "quorum": plan.federated.quorum,
        "epsilon": plan.federated.epsilon(plan.budget.delta),
        "not_covered": uncovered(plan),
    }


def charged(at: Desk, plan: StudyPlan) -> dict[str, Any]:
    """What the study was charged already, by whatever version, and with the waves of this plan that are to come."""
    from shared.releases.receipt import given
    from site_agent.decide.waves import calendar

    lines = calendar(plan, at.ledger.holds(plan.study), today())
    ahead = [line.number for line in lines if line.state in ("due", "not yet open")]
    totals = _ahead(at, plan, ahead)
    so_far = at.ledger.study_total(plan.study, plan.budget.delta)
    within = [number for number, total in zip(ahead, totals, strict=True) if total <= plan.budget.epsilon]
    return {
        "epsilon": so_far.stated,
        "epsilon_given": so_far.given,
        "to_come": ahead,
        "with_waves_to_come": totals[-1] if totals else so_far.epsilon,
        "total_given": all_given([(so_far.epsilon, so_far.given), *((total, given(plan)) for total in totals)]),
        "last_affordable": within[-1] if within else None,
    }


def _ahead(at: Desk, plan: StudyPlan, numbers: Sequence[int]) -> tuple[float, ...]:
    """The study's totals after each of these waves, all that is under way having been delivered."""
    from shared.releases.receipt import planned_event, refits
    from site_agent.release.pipeline import touches

    mine = at.ledger.holds(plan.study)
    fitted = any(hold.phase != "burnt" and hold.state != "withdrawn" and not hold.rounds for hold in mine)
    events = []
    for number in numbers:
        events.append(planned_event(plan, reused=fitted and not refits(plan, plan.wave(number))).to_canonical())
        fitted = True
    return at.ledger.forecast(plan.study, events, plan.budget.delta, touches=touches(plan))


def due_numbers(at: Desk, plan: StudyPlan, day: dt.date) -> list[int]:
    """Number of the wave to work on, if there is one."""
    from site_agent.decide.waves import due

    found = due(plan, at.ledger.holds(plan.study), day)
    return [] if found is None else [found.number]


def plan_changes(at: Desk, made: Release) -> list[tuple[str, str, str]]:
    """What the newest plan says otherwise than the plan of a release."""
    from site_agent.decide.plans import difference

    now = at.plans.plan(made.hold.study)
    if now.hash == made.hold.plan_hash:
        return []
    return list(difference(at.plans.plan(made.hold.study, made.receipt.plan_version), now))


@plan_app.command("approve")
@attempted("plan approve")
def plan_approve(
    study: Study,
    name: As,
    understood: Annotated[
        str,
        typer.Option("--understood", metavar="POSTURE", help="'local', 'holdout': I have read what is not covered."),
    ] = "",
    reason: Reason = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Agree to exactly this plan, with this dictionary, run by this version of the agent."""
    from shared.releases.receipt import LEAVES_PERSONS_OPEN, coverage

    at = desk(home)
    at.config.approver_key(name)
    plan = at.plans.plan(study)
    page = plan_facts(at, plan)
    if page["price"]["affordable"] == 0:
        raise BudgetRefusal(
            f"the plan's first wave must fit its own cap of ε = {shown_epsilon(plan.budget.epsilon)}",
            given=f"ε = {shown_epsilon(page['price']['epsilon'])}",
            next_step="Ask the study lead for an amended plan.",
        )
    ticked = understood == plan.posture
    if not ticked and not json and sys.stdin.isatty():
        from shared.terminal import console
        from site_agent.show import screens

        screens.plan_page(console(stderr=True), page)
        ticked = asked(f"Posture {plan.posture!r}: have you read what is not covered, and agree to it?")
    if plan.posture in LEAVES_PERSONS_OPEN and not ticked:
        raise ApprovalRefusal(
            f"posture {plan.posture!r} must be approved with a tick on what is not covered",
            given="no tick",
            next_step=f"Read site-agent plan show {study}, then add --understood {plan.posture}.",
        )
    if not dry_run:
        at.plans.approve(
            plan,
            name=name,
            key=at.approver(name),
            agent_version=agent_version(),
            understood=coverage(plan)[1],
            today=today(),
            reason=reason,
        )
    answer = {
        "study": study,
        "version": plan.version,
        "plan_hash": plan.hash,
        "dictionary_hash": plan.dictionary.hash,
        "agent_version": agent_version(),
        "approver": name,
        "understood": coverage(plan)[1],
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent.show import screens

        detail = "dry run, not approved" if dry_run else f"approved by {name}"
        screens.heading(out, f"{study}, version {plan.version}", detail)
        screens.settings(
            out, [("plan", plan.hash), ("dictionary", plan.dictionary.hash), ("agent version", agent_version())]
        )
        out.print("Whatever of these three changes, the approval is void and you will be asked again.")
        due = due_numbers(at, plan, today())
        screens.next_step(out, f"site-agent release {study} --wave {due[0] if due else 1}")

    emit(answer, as_json=json, show=show)


@plan_app.command("revoke")
@attempted("plan revoke")
def plan_revoke(
    study: Study, name: As, reason: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False
) -> None:
    """Take the approval of the plan back: nothing more is made or sent under it. What has left has left."""
    from site_agent.decide import airlock

    at = desk(home)
    at.config.approver_key(name)
    plan = at.plans.plan(study)
    if dry_run and at.plans.approval(study, plan.version) is None:
        raise StateRefusal(
            "the plan must be approved here to be revoked", given=f"version {plan.version}, not approved"
        )
    if not dry_run:
        airlock.revoke_plan(at, study, name=name, reason=reason, open_key=lambda: at.approver(name))
        airlock.told(at)

    def show(out: Console) -> None:
        from site_agent.show import screens

        detail = "dry run, nothing changed" if dry_run else f"approval revoked by {name}"
        screens.heading(out, f"{study}, version {plan.version}", detail)
        out.print("Nothing is made or sent under this plan until somebody approves it again.")
        screens.next_step(out, "site-agent outbox list", f"site-agent leave {study} --as {name}")

    emit(
        {"study": study, "version": plan.version, "plan_hash": plan.hash, "by": name, "dry_run": dry_run},
        as_json=json,
        show=show,
    )
