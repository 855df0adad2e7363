"""Backups: ``backup``, ``restore``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import DateRead, DryRun, Json, app, show_facts, today
from coordinator.config import CoordinatorConfig
from shared.errors import StateRefusal
from shared.terminal import emit

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["backup", "restore"]


@app.command(rich_help_panel="Set up")
def backup(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the archive.", dir_okay=False)],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write one archive of this coordinator, also while it serves, and verify it.

    Private keys that lie unencrypted on the disk are not in it: keep a copy of ca/ apart, once.
    """
    from coordinator.services.backup import back_up

    config = CoordinatorConfig.load(context.obj)
    if dry_run:
        import tempfile

        if out.exists():
            raise StateRefusal("a backup's file must be new", given=f"{out}", next_step="Name another.")
        with tempfile.TemporaryDirectory() as folder:
            made = back_up(config, Path(folder) / "backup.tar", today=today())
    else:
        made = back_up(config, out, today=today())
    answer = {
        "file": str(out),
        "entries": made.size,
        "root": made.root,
        "releases": made.releases,
        "files": len(made.files),
        "bytes": sum(int(one["bytes"]) for one in made.files.values()),
        "left_out": made.left_out,
        "verified": True,
        "written": not dry_run,
    }

    def show(shown: Console) -> None:
        did = "would write" if dry_run else "wrote and verified"
        shown.print(f"{did} {out}: {made.releases} releases, {made.size} log entries", style="bold")
        show_facts(shown, ("root", made.root if made.size else "none yet"), ("bytes", f"{answer['bytes']:,}"))
        if made.left_out:
            shown.print(
                f"Not in it, because they lie unencrypted: {', '.join(made.left_out)}. "
                "Keep a copy of them apart, once: the coordinator cannot be restored without.",
                style="yellow",
            )

    emit(answer, as_json=json, show=show)


@app.command(rich_help_panel="Set up")
def restore(
    context: typer.Context,
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="What coordinator backup wrote.", dir_okay=False)],
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder with the keys that it leaves out: a copy of ca/.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put what is in the home folder aside, and use its keys.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="What happened, for the log that everybody sees.")] = "",
    date: DateRead = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Put a coordinator back from an archive; its log says so, and sites send again what came after it."""
    from coordinator.services.backup import restore as put_back
    from coordinator.services.clocks import restoration_day
    from shared.wire.clocks import utc_now

    home: Path = context.obj
    said = None if date is None else date.date()
    made = put_back(
        archive,
        home,
        keys=keys,
        replace=replace,
        reason=reason,
        day=lambda clocks: restoration_day(clocks, utc_now(), said),
        dry_run=dry_run,
    )
    manifest = made.manifest
    answer = {
        "home": str(home),
        "coordinator": manifest.coordinator,
        "day": manifest.day,
        "entries": manifest.size,
        "releases": manifest.releases,
        "log_index": made.entry,
        "moved": made.moved,
        "missing_keys": made.missing_keys,
        "restored": not dry_run,
    }

    def show(shown: Console) -> None:
        did = "would restore" if dry_run else "restored"
        words = f"{manifest.releases} releases, {manifest.size} log entries, as of {manifest.day}"
        shown.print(f"{did} {manifest.coordinator} in {home}: {words}", style="bold")
        if made.moved:
            shown.print(f"The former home is {made.moved}.")
        if made.missing_keys:
            shown.print(f"Not given back: {', '.join(made.missing_keys)}.", style="yellow")
        if made.entry is not None:
            shown.print(f"Log entry {made.entry} says so. Sites send again what they delivered since, free of charge.")
        shown.print(
            "Decide again what was decided since: sites and tokens revoked, sites that joined, plans signed, waves "
            "closed, ledgers allowed to begin anew.",
            style="yellow",
        )
        if not dry_run:
            shown.print("next: coordinator serve, then coordinator sites", style="cyan")

    emit(answer, as_json=json, show=show)
