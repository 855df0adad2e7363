"""``coordinator``: the study lead's command line, one room per group of verbs.

Each verb is one library call and a way of showing its answer. Verbs that read take ``--json``; verbs that change
something take ``--dry-run`` as well. Everything heavy is imported inside the verb that needs it, so that help is
instant. There is no verb that starts work at a site or sends one code: a site acts on a plan its steward approved.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.cli.options import app
from shared.terminal import run

# The order in which --help lists the verbs is the order in which their rooms are imported.
# isort: off
from coordinator.cli import (
    setting_up,
    backups,
    health,
    renewing,
    plan,
    designing,
    sites,
    membership,
    releases,
    answers,
    federating,
    log,
)
# isort: on

__all__ = ["ROOMS", "app", "main"]

ROOMS = (setting_up, backups, health, renewing, plan, designing, sites, membership, releases, answers, federating, log)
"""Modules of the commands, in the order of ``--help``; the first line of each names its verbs."""


def main(argv: Sequence[str] | None = None) -> int:
    """The `coordinator` command; returns its exit code."""
    return run(app, name="coordinator", argv=argv)
