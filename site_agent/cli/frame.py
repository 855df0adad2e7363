"""The frame of the command line: its groups of verbs, the options that verbs share, and the parts of their screens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.terminal import VerbAnswer, application, command
from site_agent.desk import Desk, attempted, open_desk

if TYPE_CHECKING:
    from rich.console import Console

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
    "screen",
    "standing_app",
    "verb",
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

_last = Parameter.KEYWORD_ONLY
SHARED = (
    Parameter("home", _last, default=None, annotation=Home),
    Parameter("json", _last, default=False, annotation=Json),
    Parameter("dry_run", _last, default=False, annotation=Dry),
)


@contextmanager
def _at_desk(said: Mapping[str, Any], asked: Collection[str]) -> Iterator[dict[str, Any]]:
    yield {"desk": open_desk(said["home"])} if "desk" in asked else {}


def verb(
    group: typer.Typer, name: str | None = None, *, noted: str = "", **listed: Any
) -> Callable[[Callable[..., VerbAnswer]], Callable[..., VerbAnswer]]:
    """Register a verb: it has ``--home`` and ``--json``, works at the desk if it asks for one, and gives its answer.

    Args:
        name: as it is typed; the function's where left out.
        noted: the name under which a refusal stands in the site's log; blank for what changes nothing.
        listed: as `typer.Typer.command` takes it.
    """

    def register(function: Callable[..., VerbAnswer]) -> Callable[..., VerbAnswer]:
        made = command(function, SHARED, {"Desk": Desk}, _at_desk)
        group.command(name, **listed)(attempted(noted)(made) if noted else made)
        return function

    return register


class _Screens:
    """The functions of `site_agent.show.screens` as parts of a screen; it is imported when somebody reads one."""

    def __getattr__(self, name: str) -> Callable[..., Callable[[Console], None]]:
        def part(*given: Any, **how: Any) -> Callable[[Console], None]:
            def draw(out: Console) -> None:
                from site_agent.show import screens

                getattr(screens, name)(out, *given, **how)

            return draw

        return part


screen = _Screens()
