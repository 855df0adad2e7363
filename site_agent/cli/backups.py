"""Backups: ``backup``, ``restore``, ``drill``."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.terminal import VerbAnswer
from site_agent.cli.frame import Dry, app, screen, verb
from site_agent.desk import agent_version, today

if TYPE_CHECKING:
    from site_agent.desk import Desk

__all__ = ["backup", "drill", "restore"]

Archive = Annotated[Path, typer.Argument(metavar="FILE", help="What site-agent backup wrote.", dir_okay=False)]
By = Annotated[str, typer.Option("--as", metavar="NAME", help="Who opens it: who approved here when it was made.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Their key file, where the one that goes along is not to be used.")
]


@verb(app)
def backup(
    desk: Desk,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the archive.", dir_okay=False)],
    dry_run: Dry = False,
) -> VerbAnswer:
    """Write one encrypted archive of this site, also while its agent runs, and verify it. No table is in it."""
    from shared.base.archive import new_file
    from site_agent.decide.backup import back_up

    new_file(out)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "trial" if dry_run else out
        facts, header, size = back_up(desk, place, software=agent_version(), today=today())
    answer = {
        "file": str(out),
        "site": facts.site,
        "entries": facts.entries,
        "head": facts.head,
        "budgets": facts.budgets,
        "fingerprint": facts.fingerprint,
        "bytes": size,
        "for": sorted(header.recipients),
        "verified": True,
        "written": not dry_run,
    }

    did = "would write" if dry_run else "wrote and verified"
    return VerbAnswer(
        answer,
        screen.heading(f"Site {facts.site}", f"{did} {out}"),
        screen.settings(
            [
                ("ledger", f"{facts.entries} entries"),
                ("opened by", ", ".join(sorted(header.recipients))),
                ("key of this site", facts.fingerprint),
                ("bytes", f"{size:,}"),
            ]
        ),
        "The table is not in it, nor are the keys of sealed embeddings.",
        screen.next_step(f"site-agent drill {out} --as NAME"),
    )


@verb(app)
def restore(
    desk: Desk,
    archive: Archive,
    name: By,
    key: KeyFile = None,
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="Of the agent's key, as the study lead reads it out.")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Put what is in the home folder aside.")] = False,
    dry_run: Annotated[bool, typer.Option("--check", "--dry-run", help="Verify it all; write nothing.")] = False,
) -> VerbAnswer:
    """Put a site back from an archive. It spends nothing until `site-agent ledger recover` has settled its ledger."""
    from shared.base.archive import recipient_key
    from site_agent.decide.backup import restore as put_back

    place = desk.home
    opened = recipient_key(archive, name, key)
    made = put_back(archive, place, key=opened, fingerprint=fingerprint, replace=replace, dry_run=dry_run)
    facts = made.facts
    answer = {
        "home": str(place),
        "site": facts.site,
        "day": facts.day,
        "entries": facts.entries,
        "budgets": facts.budgets,
        "fingerprint": facts.fingerprint,
        "moved": made.moved,
        "unopened": made.unopened,
        "restored": not dry_run,
    }

    did = "would restore" if dry_run else "restored"
    return VerbAnswer(
        answer,
        screen.heading(f"Site {facts.site}", f"{did} as of {facts.day}: {facts.entries} entries of the ledger"),
        f"The former home is {made.moved}." if made.moved else None,
        f"Sealed embeddings of {', '.join(made.unopened)} stay closed: their keys are in no backup. No further "
        "wave of such a network is made before keys/frames is put back from the former home or a copy."
        if made.unopened
        else None,
        "Nothing is charged or drawn before the ledger is held against what the coordinator has seen."
        if not dry_run
        else None,
        screen.next_step("site-agent ledger recover", "site-agent doctor") if not dry_run else None,
    )


@verb(app)
def drill(desk: Desk, archive: Archive, name: By, key: KeyFile = None) -> VerbAnswer:
    """Try a backup: put it back into a folder that is thrown away, and prove each part of it."""
    from shared.base.archive import recipient_key
    from shared.terminal import checklist
    from site_agent.decide.backup import drill as tried

    lines, code = tried(archive, desk.home, key=recipient_key(archive, name, key))
    answer = {"file": str(archive), "parts": [asdict(line) for line in lines], "whole": not code}
    return VerbAnswer(answer, lambda page: checklist(page, lines), code=code)
