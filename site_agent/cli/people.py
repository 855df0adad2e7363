"""Who takes part here: ``grants``; whose persons are whose, ``data apart``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shared.terminal import emit
from site_agent.cli.frame import As, Dry, Home, Json, Reason, Study, app, data_app
from site_agent.desk import attempted, open_desk

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["data_apart", "grants"]


@app.command()
@attempted("grants")
def grants(home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """Ask which studies the leads have let this site into since it joined, and note them. Nothing acts by it."""
    from site_agent.decide import membership

    desk = open_desk(home)
    with desk.egress() as egress:
        news = membership.look(desk, egress, dry_run=dry_run)
    known = desk.ledger.membership()
    rows = [
        {"number": said.number, "study": said.study, "granted": said.granted, "day": said.day}
        for said, _ in known.grants
    ]
    answer = {
        "studies": list(desk.config.studies),
        "grants": rows,
        "new": {"granted": news.granted, "ungranted": news.ungranted, "leads": news.leads},
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        screens.heading(out, "Studies", ", ".join(desk.config.studies) or "none")
        if rows:
            cells = [(row["number"], row["study"], "in" if row["granted"] else "out", row["day"]) for row in rows]
            out.print(table(("number", "study", "let", "day"), cells, right=("number",)))
        for study in news.granted:
            screens.note(
                out, f"The study lead has let this site into {study}. Nothing happens before you approve its plan."
            )
        for study in news.ungranted:
            screens.note(out, f"The study lead has taken this site out of {study}: nothing more is made or sent of it.")
        screens.next_step(out, *(f"site-agent plan fetch {study}" for study in news.granted), "site-agent status")

    emit(answer, as_json=json, show=show)


@data_app.command("apart")
@attempted("data apart")
def data_apart(
    study: Study,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The other study.")],
    name: As,
    reason: Reason = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Sign that two studies are about different people. Without it they count as the same, whatever they are called."""
    from site_agent.decide import approvers

    desk = open_desk(home)
    desk.config.approver_key(name)
    before, after = approvers.tell_apart(
        desk, study, other, name=name, reason=reason, open_key=lambda: desk.approver(name), dry_run=dry_run
    )
    answer = {"study": study, "other": other, "by": name, "total_before": before, "total": after, "dry_run": dry_run}

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"{study} and {other}", "dry run, not signed" if dry_run else f"told apart by {name}")
        out.print(
            "From now on nobody is taken to be in both: their charges are not added up, and their releases not held"
        )
        out.print("against each other. It cannot be taken back: what was allowed by it has left.")
        screens.next_step(out, "site-agent budget")

    emit(answer, as_json=json, show=show)
