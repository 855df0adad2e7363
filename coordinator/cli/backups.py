"""Backups, versions, other databases: ``backup``, ``restore``, ``drill``, ``upgrade``, ``store copy|migrate``."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import (
    DateRead,
    DryRun,
    Json,
    app,
    labelled,
    lead_keys,
    open_store,
    store_app,
    today,
    verb,
)
from coordinator.config import FILE_NAME, STORE_VARIABLE, CoordinatorConfig
from shared import software_version
from shared.terminal import VerbAnswer, console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Archive = Annotated[Path, typer.Argument(metavar="FILE", help="What coordinator backup wrote.", dir_okay=False)]
As = Annotated[str, typer.Option("--as", metavar="LEAD", help="Who opens it: who led when it was made.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="That lead's key file, where the one that goes along is not to be used.")
]

__all__ = ["backup", "drill", "restore", "store_bundles", "store_copy", "store_migrate", "upgrade"]


@verb(app, rich_help_panel="Set up")
def backup(
    config: CoordinatorConfig,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the archive.", dir_okay=False)],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write one encrypted archive of this coordinator, also while it serves, and verify it.

    Whoever leads now can open it, and nobody else; all keys are in it.
    """
    from coordinator.services.backup import back_up
    from shared.base.archive import new_file

    with tempfile.TemporaryDirectory() as folder:
        new_file(out)
        place = Path(folder) / "trial" if dry_run else out
        leads = lead_keys(config)
        facts, header, size = back_up(config, place, leads=leads, software=software_version(), today=today())
    alone = sorted(header.recipients.keys() - header.locked.keys())
    answer = {
        "file": str(out),
        "entries": facts.size,
        "root": facts.root,
        "releases": facts.releases,
        "bytes": size,
        "for": sorted(header.recipients),
        "keys_apart": alone,
        "verified": True,
        "written": not dry_run,
    }

    did = "would write" if dry_run else "wrote and verified"
    root = facts.root if facts.size else "none yet"
    return VerbAnswer(
        answer,
        (f"{did} {out}: {facts.releases} releases, {facts.size} log entries", "bold"),
        labelled(("root", root), ("bytes", f"{size:,}"), ("opened by", ", ".join(sorted(header.recipients)))),
        (
            f"The key of {', '.join(alone)} has no passphrase: it opens this file, and is not beside it. Keep a "
            "copy of it apart.",
            "yellow",
        )
        if alone
        else None,
    )


@verb(app, rich_help_panel="Set up")
def restore(
    context: typer.Context,
    archive: Archive,
    name: As,
    key: KeyFile = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put what is in the home folder aside.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="What happened, for the log that everybody sees.")] = "",
    date: DateRead = None,
    dry_run: Annotated[bool, typer.Option("--check", "--dry-run", help="Verify it all; write nothing.")] = False,
) -> VerbAnswer:
    """Put a coordinator back from an archive; its log says so, and sites send again what came after it."""
    from coordinator.services.backup import restore as put_back
    from coordinator.services.clocks import restoration_day
    from shared.base.archive import recipient_key
    from shared.wire.clocks import utc_now

    home: Path = context.obj
    said = None if date is None else date.date()
    made = put_back(
        archive,
        home,
        key=recipient_key(archive, name, key),
        replace=replace,
        reason=reason,
        day=lambda clocks: restoration_day(clocks, utc_now(), said),
        dry_run=dry_run,
    )
    facts = made.facts
    answer = {
        "home": str(home),
        "coordinator": facts.coordinator,
        "day": facts.day,
        "entries": facts.size,
        "releases": facts.releases,
        "log_index": made.entry,
        "moved": made.moved,
        "restored": not dry_run,
    }

    did = "would restore" if dry_run else "restored"
    words = f"{facts.releases} releases, {facts.size} log entries, as of {facts.day}"
    return VerbAnswer(
        answer,
        (f"{did} {facts.coordinator} in {home}: {words}", "bold"),
        f"The former home is {made.moved}." if made.moved else None,
        f"Log entry {made.entry} says so. Sites send again what they delivered since, free of charge."
        if made.entry is not None
        else None,
        (
            "Decide again what was decided since: sites and tokens revoked, sites that joined, plans signed, waves "
            "closed, ledgers allowed to begin anew.",
            "yellow",
        ),
        ("next: coordinator serve, then coordinator sites", "cyan") if not dry_run else None,
    )


@verb(app, rich_help_panel="Set up")
def drill(context: typer.Context, archive: Archive, name: As, key: KeyFile = None) -> VerbAnswer:
    """Try a backup: put it back into a folder that is thrown away, and prove each part of it."""
    from coordinator.services.backup import drill as tried
    from shared.base.archive import recipient_key
    from shared.terminal import checklist

    lines, code = tried(archive, context.obj, key=recipient_key(archive, name, key))
    answer = {"file": str(archive), "parts": [asdict(line) for line in lines], "whole": not code}
    return VerbAnswer(answer, lambda shown: checklist(shown, lines), code=code)


@verb(app, rich_help_panel="Set up")
def upgrade(
    config: CoordinatorConfig,
    to: Annotated[
        str, typer.Option("--to", metavar="REVISION", help="Back to this one, for an earlier version of the software.")
    ] = "",
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Bring the store to the form that this version reads, as any other verb does; or take it back. Nothing is lost.

    It is taken back while no coordinator serves it.
    """
    from contextlib import closing

    from coordinator.services.backup import nobody_serves
    from coordinator.store.schema.revisions import HEAD, known_revision, require_revision, taken_back
    from coordinator.store.store import Store

    after = to or HEAD
    with (
        nobody_serves(config.home, wanted=bool(to)),
        closing(Store.open(config.home, config.store, config.bundles, bring_up=not dry_run)) as store,
    ):
        if to:
            store.read(lambda c: require_revision(c, to))
        if to and not dry_run:
            store.write(lambda c: taken_back(c, to))
        now = store.read(known_revision)
    answer = {"revision": now, "software": HEAD, "after": after, "dry_run": dry_run}
    words = f"the store is of revision {now or 'none yet'}; this software reads {HEAD}"
    if dry_run and now != after:
        words += f"; it would be {'taken back' if to and to < now else 'brought'} to {after}"
    return VerbAnswer(
        answer,
        (words, "bold"),
        ("Install the earlier version before anything else: this one brings it up again.", "cyan")
        if after != HEAD
        else None,
    )


Target = Annotated[
    str,
    typer.Argument(metavar="URL", help="The other database, for example postgresql+psycopg://…; sqlite: in the home."),
]


@verb(store_app, "copy")
def store_copy(config: CoordinatorConfig, url: Target, dry_run: DryRun = False, json: Json = False) -> VerbAnswer:
    """Copy the store into an empty database, verified; settings stay as they are. The coordinator must not serve."""
    return _copied(config, url, switch=False, dry_run=dry_run, quiet=json)


@verb(store_app, "migrate")
def store_migrate(config: CoordinatorConfig, url: Target, dry_run: DryRun = False, json: Json = False) -> VerbAnswer:
    """Copy the store as ``store copy`` does, and have the settings name the copy from now on."""
    return _copied(config, url, switch=True, dry_run=dry_run, quiet=json)


@verb(store_app, "bundles")
def store_bundles(
    config: CoordinatorConfig,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="s3://bucket/prefix of an object store, or folder: one of the home.")
    ],
    dry_run: DryRun = False,
    json: Json = False,
) -> VerbAnswer:
    """Copy accepted bundles to an object store or back, each verified; settings name it. No coordinator must serve."""
    from coordinator.operations.migration import put_elsewhere, set_setting
    from coordinator.services.authority import Authority
    from coordinator.services.backup import nobody_serves

    place = "" if place == "folder" else place
    before, after = (one or f"{config.home / 'bundles'}" for one in (config.bundles, place))
    with nobody_serves(config.home), open_store(config) as store, _bar(json) as show:
        owner = Authority.load(config.home).witness.public.hex
        bundles, copied = put_elsewhere(store, place, owner=owner, dry_run=dry_run, progress=show)
        if not dry_run:
            set_setting(config, "bundles", place)
    answer = {"source": before, "target": after, "bundles": bundles, "copied": copied, "dry_run": dry_run}
    did = "would copy" if dry_run else "copied and verified"
    return VerbAnswer(
        answer,
        (f"{did}: {copied} of {bundles} bundles", "bold"),
        labelled(("from", before), ("to", after)),
        (
            f"{before} keeps its copies. No study's retention reaches them: delete them once a backup is made.",
            "yellow",
        )
        if not dry_run
        else None,
    )


def _copied(config: CoordinatorConfig, url: str, *, switch: bool, dry_run: bool, quiet: bool) -> VerbAnswer:
    from coordinator.operations.migration import copied, require_url, switched
    from coordinator.services.backup import nobody_serves

    own = f"sqlite:///{config.home / 'store.db'}"
    url = require_url(own if url == "sqlite" else url)
    with nobody_serves(config.home):
        with open_store(config) as store, _bar(quiet) as show:
            made = copied(store, url, dry_run=dry_run, progress=show)
        aside = switched(config, "" if url == own else url) if switch and not dry_run else ""
    answer = {**asdict(made), "switched": switch and not dry_run, "aside": aside, "dry_run": dry_run}
    did = "would copy" if dry_run else "found there already" if made.there else "copied and verified"
    return VerbAnswer(
        answer,
        (f"{did}: {sum(made.rows.values()):,} rows of {len(made.rows)} tables, {made.entries} log entries", "bold"),
        labelled(
            ("from", made.source),
            ("to", made.target),
            ("root", made.root if made.entries else "none yet"),
            (
                "bundles",
                f"{made.bundles} read, each of its digest; they stay in {config.bundles or config.home / 'bundles'}",
            ),
        ),
        f"{FILE_NAME} names the copy now." if answer["switched"] else None,
        f"The file it was copied from is {aside} now." if aside else None,
        (
            f"{STORE_VARIABLE} is set here, and wins over {FILE_NAME}: change it too, or servers go on in the old.",
            "yellow",
        )
        if answer["switched"] and os.environ.get(STORE_VARIABLE)
        else None,
        ("Let nothing write to the old database any more: two stores that both grow are a forked log.", "yellow")
        if not dry_run
        else None,
    )


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on a terminal; a line for each stage in a log; nothing with ``--json``."""
    out, stages = console(stderr=True), dict[str, Any]()
    if quiet or not out.is_terminal:

        def line(stage: str, done: int, of: int) -> None:
            if not quiet and stages.setdefault(stage, done) == done:
                out.print(f"{stage}: {of:,}")

        yield line
        return
    from rich.progress import Progress

    with Progress(console=out, transient=True) as drawn:

        def move(stage: str, done: int, of: int) -> None:
            if stage not in stages:
                stages[stage] = drawn.add_task(stage)
            drawn.update(stages[stage], completed=done, total=of)

        yield move
