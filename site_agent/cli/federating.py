"""A training that the sites run together: ``federate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.privacy.stated import shown_price
from shared.terminal import VerbAnswer, plain
from site_agent.cli.frame import Dry, Study, app, screen, verb
from site_agent.desk import agent_version, today, working_site

if TYPE_CHECKING:
    from rich.console import Console

    from site_agent.desk import Desk

__all__ = ["federate"]


@verb(app, noted="federate")
def federate(
    desk: Desk,
    study: Study,
    wait: Annotated[
        float, typer.Option("--wait", metavar="MINUTES", min=0.0, help="How long to wait for the next round.")
    ] = 0.0,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Take part in the training that the approved plan asks for. All its rounds are charged before the first."""
    from dataclasses import asdict

    from site_agent.show import screens
    from site_agent.training import rounds
    from site_agent.training.part import part

    plan, approval = desk.plans.approved(study, agent_version=agent_version(), today=today())
    done: list[tuple[str, int]] = []
    fetched = False
    if plan.flow:
        if not dry_run:
            with desk.locked(), desk.egress() as egress:
                fetched = rounds.fetch(plan, egress, desk.home)
        facts: dict[str, Any] = {"study": study, "flow": plan.flow, "fetched": fetched, "dry_run": dry_run}

        def show_flow(out: Console) -> None:
            screens.heading(out, study, "the flow of its plan was trained before")
            out.print(f"{plan.flow[:26]}… {'was fetched' if fetched else 'is here' if not dry_run else 'is named'}.")

        return VerbAnswer(facts, show_flow)
    part(desk.ledger, plan)
    desk.require_running()
    source = desk.config.source(study)
    if not dry_run:
        with desk.egress() as egress:
            rounds.take_part(
                plan=plan,
                source=source,
                site=working_site(desk, egress),
                door=egress,
                home=desk.home,
                today=today(),
                locked=desk.locked,
                wait=60 * wait,
                progress=lambda what, round_: done.append((what, round_)),
            )
    own = part(desk.ledger, plan, approval.approver)
    answer = {**plain(asdict(own)), "done": done, "dry_run": dry_run}

    detail = "dry run: nothing asked, charged or sent" if dry_run else own.state
    return VerbAnswer(
        answer,
        screen.heading(f"{study}: a flow trained by all sites", detail),
        screen.settings(
            [
                ("price", f"{shown_price(own.epsilon, delta=own.delta)}, for everybody in the table, once"),
                ("approved by", own.approver),
                ("charged", own.day or "not yet"),
                ("answered", f"{len(own.answered)} of {own.rounds} rounds"),
                *([("given up", ", ".join(map(str, own.given_up)))] if own.given_up else []),
                *([("flow", own.flow)] if own.flow else []),
            ]
        ),
        screen.next_step("site-agent budget" if own.flow else f"site-agent federate {study} --wait 60"),
    )
