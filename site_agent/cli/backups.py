"""Backups: ``backup``, ``restore``, ``drill``."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.terminal import emit
from site_agent.cli.frame import Dry, Home, Json, app
from site_agent.desk import agent_version, open_desk, today

if TYPE_CHECKING:
    from rich.console import Console

    from shared.base.keys import SigningKey

__all__ = ["backup", "drill", "restore"]

Archive = Annotated[Path, typer.Argument(metavar="FILE", help="What site-agent backup wrote.", dir_okay=False)]
By = Annotated[str, typer.Option("--as", metavar="NAME", help="Who opens it: who approved here when it was made.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Their key file, where the one that goes along is not to be used.")
]


@app.command()
def backup(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the archive.", dir_okay=False)],
    home: Home = None,
    dry_run: Dry = False,
    json: Json = False,
) -> None:
    """Write one encrypted archive of this site, also while its agent runs, and verify it. No table is in it."""
    from shared.base.archive import new_file
    from site_agent.decide.backup import back_up

    new_file(out)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "trial" if dry_run else out
        facts, header, size = back_up(open_desk(home), place, software=agent_version(), today=today())
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

    def show(page: Console) -> None:
        from site_agent.show import screens

        did = "would write" if dry_run else "wrote and verified"
        screens.heading(page, f"Site {facts.site}", f"{did} {out}")
        screens.settings(
            page,
            [
                ("ledger", f"{facts.entries} entries"),
                ("opened by", ", ".join(sorted(header.recipients))),
                ("key of this site", facts.fingerprint),
                ("bytes", f"{size:,}"),
            ],
        )
        page.print("The table is not in it, nor are the keys of sealed embeddings.")
        screens.next_step(page, f"site-agent drill {out} --as NAME")

    emit(answer, as_json=json, show=show)


def _opened_by(archive: Path, name: str, key: Path | None) -> SigningKey:
    from shared.base.archive import read_header, recipient_key

    return recipient_key(read_header(archive), name, key)


@app.command()
def restore(
    archive: Archive,
    name: By,
    key: KeyFile = None,
    fingerprint: Annotated[
        str, typer.Option("--fingerprint", help="Of the agent's key, as the study lead reads it out.")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Put what is in the home folder aside.")] = False,
    dry_run: Annotated[bool, typer.Option("--check", "--dry-run", help="Verify it all; write nothing.")] = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Put a site back from an archive. It spends nothing until `site-agent ledger recover` has settled its ledger."""
    from site_agent.decide.backup import restore as put_back

    place = open_desk(home).home
    opened = _opened_by(archive, name, key)
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
        "restored": not dry_run,
    }

    def show(page: Console) -> None:
        from site_agent.show import screens

        did = "would restore" if dry_run else "restored"
        screens.heading(page, f"Site {facts.site}", f"{did} as of {facts.day}: {facts.entries} entries of the ledger")
        if made.moved:
            page.print(f"The former home is {made.moved}.")
        if not dry_run:
            page.print("Nothing is charged or drawn before the ledger is held against what the coordinator has seen.")
            screens.next_step(page, "site-agent ledger recover", "site-agent doctor")

    emit(answer, as_json=json, show=show)


@app.command()
def drill(archive: Archive, name: By, key: KeyFile = None, home: Home = None, json: Json = False) -> None:
    """Try a backup: put it back into a folder that is thrown away, and prove each part of it."""
    from shared.terminal import checklist
    from site_agent.decide.backup import drill as tried

    lines, code = tried(archive, open_desk(home).home, key=_opened_by(archive, name, key))
    answer = {"file": str(archive), "parts": [asdict(line) for line in lines], "whole": not code}
    emit(answer, as_json=json, show=lambda page: checklist(page, lines))
    raise typer.Exit(code)
