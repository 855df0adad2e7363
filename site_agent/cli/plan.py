"""The study plan: ``plan fetch``, ``show``, ``approve``, ``revoke``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import StateRefusal
from shared.terminal import VerbAnswer
from site_agent.cli.frame import As, Dry, Json, Reason, Study, plan_app, screen, verb
from site_agent.decide.plan_facts import approving, due_numbers, looking_ahead, plan_facts
from site_agent.desk import agent_now, agent_version, confirmed, today

if TYPE_CHECKING:
    from site_agent.desk import Desk


__all__ = ["plan_approve", "plan_fetch", "plan_revoke", "plan_show"]


@verb(plan_app, "fetch", noted="plan fetch")
def plan_fetch(
    desk: Desk,
    study: Study,
    file: Annotated[Path | None, typer.Option("--file", help="A signed plan that came another way.")] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Fetch the study's plan and verify who signed it. It is not approved by that."""
    from shared.base.keys import Envelope
    from site_agent.decide.airlock.drawing import ask_limits

    if file is not None:
        envelope = Envelope.from_bytes(file.read_bytes())
    else:
        with desk.egress() as egress:
            envelope = egress.fetch_plan(study)
            if not dry_run:
                ask_limits(desk, egress)
    plan = desk.plans.receive(study, envelope, today=today(), keep=not dry_run)

    return VerbAnswer(
        {"study": study, "version": plan.version, "hash": plan.hash, "dry_run": dry_run},
        screen.heading(f"{plan.study}: {plan.title}", f"version {plan.version}, signed by the study lead"),
        screen.settings([("plan hash", plan.hash), ("expires", plan.expires)]),
        screen.next_step(f"site-agent plan show {study}"),
    )


@verb(plan_app, "show")
def plan_show(
    desk: Desk,
    study: Study,
    version: Annotated[int | None, typer.Option(help="Another version than the newest.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All that an approval agrees to, floors and hashes too.")
    ] = False,
) -> VerbAnswer:
    """One page: what leaves, how often, to whom, at which price, and what is not covered."""
    page = plan_facts(desk, desk.plans.plan(study, version), today())

    return VerbAnswer(
        page,
        screen.plan_page(page, full=full),
        screen.next_step(f"site-agent try {study}", approving(desk.plans.plan(study, version)))
        if not page["approved_by"]
        else None,
    )


@verb(plan_app, "approve", noted="plan approve")
def plan_approve(
    desk: Desk,
    study: Study,
    name: As,
    understood: Annotated[
        str,
        typer.Option("--understood", metavar="POSTURE", help="'local', 'holdout': I have read what is not covered."),
    ] = "",
    reason: Reason = "",
    json: Json = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Agree to exactly this plan, with this dictionary, run by this version of the agent."""
    from site_agent.decide.airlock import plan_approval
    from site_agent.decide.airlock.signing import Approver

    asking = plan_approval.plan_to_approve(desk, study, name=name, today=today())
    plan = asking.plan
    ticked = understood == plan.posture
    if not ticked and not json and sys.stdin.isatty():
        from shared.terminal import console
        from site_agent.show import screens

        screens.plan_page(console(stderr=True), asking.page, full=True)
        ticked = confirmed(f"Posture {plan.posture!r}: have you read what is not covered, and agree to it?")
    plan_approval.approve_plan(
        desk,
        asking,
        understood=ticked,
        by=Approver.at(desk, name),
        now=agent_now(),
        reason=reason,
        dry_run=dry_run,
    )
    answer = {
        "study": study,
        "version": plan.version,
        "plan_hash": plan.hash,
        "dictionary_hash": plan.dictionary.hash,
        "agent_version": agent_version(),
        "approver": name,
        "understood": asking.not_covered,
        "dry_run": dry_run,
    }

    detail = "dry run, not approved" if dry_run else f"approved by {name}"
    due = due_numbers(desk, plan, today())
    steps = [*looking_ahead(plan), f"site-agent release {study} --wave {due[0] if due else 1}"]
    if study not in desk.config.data:
        steps = [f"site-agent data add FILE --as {study}"]
    return VerbAnswer(
        answer,
        screen.heading(f"{study}, version {plan.version}", detail),
        screen.settings(
            [("plan", plan.hash), ("dictionary", plan.dictionary.hash), ("agent version", agent_version())]
        ),
        "Whatever of these three changes, the approval is void and you will be asked again.",
        screen.next_step(*steps),
    )


@verb(plan_app, "revoke", noted="plan revoke")
def plan_revoke(desk: Desk, study: Study, name: As, reason: Reason = "", dry_run: Dry = False) -> VerbAnswer:
    """Take the approval of the plan back: nothing more is made or sent under it. What has left has left."""
    from site_agent.decide.airlock import standing_approval, taking_back
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    plan = desk.plans.plan(study)
    if dry_run and desk.plans.approval(study, plan.version) is None:
        raise StateRefusal(
            "the plan must be approved here to be revoked", given=f"version {plan.version}, not approved"
        )
    if not dry_run:
        taking_back.revoke_plan(desk, study, reason=reason, by=Approver.at(desk, name))
        standing_approval.deliver_revocations(desk)

    detail = "dry run, nothing changed" if dry_run else f"approval revoked by {name}"
    return VerbAnswer(
        {"study": study, "version": plan.version, "plan_hash": plan.hash, "by": name, "dry_run": dry_run},
        screen.heading(f"{study}, version {plan.version}", detail),
        "Nothing is made or sent under this plan until somebody approves it again.",
        screen.next_step("site-agent outbox list", f"site-agent leave {study} --as {name}"),
    )
