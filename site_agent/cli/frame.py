"""The frame of the command line: its groups of verbs, and the options that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.terminal import application

__all__ = [
    "As",
    "Dry",
    "Home",
    "Json",
    "Reason",
    "ReleaseId",
    "Study",
    "app",
    "approver_app",
    "audit_app",
    "data_app",
    "ledger_app",
    "outbox_app",
    "plan_app",
    "standing_app",
]

app = application(
    "The hospital's agent: it trains here, asks a person, and sends privatised rows. Nothing else leaves."
)
data_app = application("The study's table: where it lies, and which column is which.")
plan_app = application("The study plan: what leaves, how often, to whom, at which price.")
outbox_app = application("Sealed releases that wait for a person.")
ledger_app = application("The book of charges: is it whole, and what to do when it was put back.")
audit_app = application("The whole record of this site: is it true, and a copy that a stranger can check.")
approver_app = application("Who approves at this site: others join and leave by the signatures of those who do.")
standing_app = application("Approvals that a person signs once, in advance, for releases within limits.")

app.add_typer(data_app, name="data")
app.add_typer(plan_app, name="plan")
app.add_typer(outbox_app, name="outbox")
app.add_typer(approver_app, name="approver")
app.add_typer(standing_app, name="standing")
app.add_typer(ledger_app, name="ledger")
app.add_typer(audit_app, name="audit")

Home = Annotated[Path | None, typer.Option("--home", help="The site's folder; TRIBUTARY_SITE_HOME, or ./site-home.")]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing, send nothing.")]
Study = Annotated[str, typer.Argument(help="Name of the study.")]
ReleaseId = Annotated[str, typer.Argument(metavar="ID", help="Release id, or its first characters.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="The approver who decides.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, in a few words; kept in the ledger.")]
