"""``site-agent``: the data steward's commands, one room per group of verbs.

A command is one library call and one page of answer. Reading commands take ``--json``; whatever changes something
takes ``--dry-run``; a refusal becomes one panel and its exit code in one place (`shared.terminal.run`). Everything
but typer is imported inside the commands, so that ``--help`` is instant and asking for help touches nothing.
"""

from __future__ import annotations

from shared.terminal import run
from site_agent.cli.frame import app
from site_agent.desk import Desk, agent_version, open_desk, today

# The order in which --help lists the verbs is the order in which their rooms are imported.
# isort: off
from site_agent.cli import joining, renewing, data, plan, release, deciding, calendar, watching, federating
from site_agent.cli import people, books, backups
# isort: on

__all__ = ["ROOMS", "Desk", "agent_version", "app", "main", "open_desk", "today"]

ROOMS = (joining, renewing, data, plan, release, deciding, calendar, watching, federating, people, books, backups)
"""Modules of the commands; the first line of each names its verbs."""


def main(argv: list[str] | None = None) -> None:
    """Entry point of ``site-agent``."""
    raise SystemExit(run(app, name="site-agent", argv=argv))
