"""The append-only log: ``log``, ``log verify``, ``head``, ``restored``, ``proof``, ``list``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.config import CoordinatorConfig
from shared.errors import IntegrityRefusal, ParameterError, SchemaRefusal, StateRefusal
from shared.terminal import emit

if TYPE_CHECKING:
    from rich.console import Console

from coordinator.cli.options import DateRead, DryRun, Json, Site, log_app, open_store, show_facts, today
from coordinator.cli.releases import one_release

__all__ = ["log", "log_head", "log_list", "log_proof", "log_restored", "log_verify"]

SITE_LIST_TYPE = "application/vnd.tributary.site-list+json"


@log_app.callback(invoke_without_command=True)
def log(context: typer.Context, json: Json = False) -> None:
    """Check the whole log, and show its size and root, which a site may keep and hold the coordinator to."""
    if context.invoked_subcommand:
        return
    _verify(context, json)


@log_app.command("verify")
def log_verify(context: typer.Context, json: Json = False) -> None:
    """Check every entry, root, release, anchor, withdrawal and closing, and every signature that is stored."""
    _verify(context, json)


def _verify(context: typer.Context, json: bool) -> None:
    from coordinator.services.health import require_whole

    with open_store(CoordinatorConfig.load(context.obj)) as store:
        require_whole(store, thorough=True)
        try:
            size = store.verify_log()
            signed = store.verify_signatures()
        except SchemaRefusal as refusal:
            raise IntegrityRefusal(
                "every document in the database must be as it was written",
                given=f"one that is not ({refusal.must})",
                next_step="Restore the database from a backup.",
            ) from None
        entries = store.log()
    head = entries[-1].root if entries else None
    answer = {"size": size, "signed": signed, "root": head, "verified": True}

    def show(out: Console) -> None:
        out.print(f"{size} entries; every entry, release, anchor and root agrees", style="green")
        out.print(f"{signed} signed documents; every signature is of its site's keys of that time", style="green")
        show_facts(out, ("root", head or "none yet"))

    emit(answer, as_json=json, show=show)


@log_app.command("head")
def log_head(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="File to write it to, for all to see.")
    ] = None,
    json: Json = False,
) -> None:
    """Sign the log's size and root as they are now: a file for a web page, by which sites and analysts cross-check."""
    from coordinator.services.authority import Authority
    from coordinator.store.log_watch import LogWatch
    from shared.base.keys import write_private
    from shared.wire.tree_heads import open_head

    config = CoordinatorConfig.load(context.obj)
    authority = Authority.load(config.home)
    with open_store(config) as store:
        watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
        size, envelope = watch.head(today())
    if not size:
        raise StateRefusal("the log must have an entry to have a head", given="none yet")
    if out is not None:
        write_private(out, envelope + b"\n")
        out.chmod(0o644)
    head = open_head(envelope, authority.witness.public)
    answer = {"size": size, "root": head.root, "day": head.day, "head": envelope.decode(), "out": str(out or "")}

    def show(shown: Console) -> None:
        shown.print(f"{size} entries, as of {head.day}", style="bold")
        show_facts(shown, ("root", head.root), ("signed by", authority.witness.public.fingerprint))
        if out is not None:
            shown.print(
                f"wrote {out}: sites check it with site-agent log --against, analysts with analyst log-check --against"
            )

    emit(answer, as_json=json, show=show)


@log_app.command("restored")
def log_restored(
    context: typer.Context,
    reason: Annotated[str, typer.Option("--reason", help="What happened, for the log that everybody sees.")],
    size: Annotated[
        int | None, typer.Option("--size", min=0, help="Entries that it was put back to; all that it has if left out.")
    ] = None,
    date: DateRead = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Say in the log that the home was put back by other means than coordinator restore, as a machine's snapshot.

    Sites that saw more of the log then record a restore, and send again what was lost, instead of refusing a fork.
    """
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks, restoration_day
    from coordinator.store.log_watch import LogWatch

    config = CoordinatorConfig.load(context.obj)
    authority = Authority.load(config.home)
    if not reason.strip():
        raise ParameterError("a restore must be told with a reason", given="blank text")
    with open_store(config) as store:
        entries = store.verify_log()
        watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
        said = {"archive": "", "reason": reason, **({} if size is None else {"size": size})}
        if size is not None and size > entries:
            raise ParameterError("the log must have so many entries", given=f"{size} of {entries}")
        clocks = SeenClocks(store, authority.certificate)
        day = restoration_day(clocks, authority.now(), None if date is None else date.date())
        index = None if dry_run else watch.restore(said, day)
    answer = {"size": entries if size is None else size, "log_index": index, "written": not dry_run}

    def show(shown: Console) -> None:
        did = "would say" if dry_run else f"log entry {index} says"
        shown.print(f"{did} that the log was taken up again at {answer['size']} entries")
        shown.print("next: coordinator serve, then coordinator sites", style="cyan")

    emit(answer, as_json=json, show=show)


@log_app.command("proof")
def log_proof(
    context: typer.Context,
    release: Annotated[str, typer.Argument(help="The release's id, or its first digits.")],
    json: Json = False,
) -> None:
    """Prove that one release stands in the log, in a form that anyone can verify (RFC 9162)."""
    from shared.base.merkle_tree import leaf_hash, verify_inclusion

    with open_store(CoordinatorConfig.load(context.obj)) as store:
        found = one_release(store, release)
        entries = store.log()
        path = store.prove(found.log_index, len(entries))
    entry, head = entries[found.log_index].entry, entries[-1].root
    leaf = leaf_hash(entry)
    if not verify_inclusion(leaf, found.log_index, len(entries), path, bytes.fromhex(head)):
        raise IntegrityRefusal("the log must prove its releases", given="a proof that does not verify")
    answer = {
        "release_id": found.release_id,
        "index": found.log_index,
        "size": len(entries),
        "entry": entry.decode(),
        "leaf": leaf,
        "proof": path,
        "root": head,
        "verified": True,
    }

    def show(out: Console) -> None:
        where = f"entry {found.log_index} of {len(entries)}, numbered from 0"
        out.print(f"{found.study}, wave {found.wave}, {found.site}: {where}; the proof verifies", style="green")
        show_facts(
            out,
            ("entry", entry.decode()),
            ("leaf", leaf.hex()),
            *(("proof", part.hex()) for part in path),
            ("root", head),
        )

    emit(answer, as_json=json, show=show)


@log_app.command("list")
def log_list(
    context: typer.Context,
    site: Site,
    study: Annotated[str, typer.Argument(help="The study.")],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="A new file for the signed list.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Sign what was witnessed and accepted of a site, for a stranger who checks the site's audit export (verify.py)."""
    from coordinator.services.authority import Authority
    from shared.base.canonical import canonical_json
    from shared.base.keys import Envelope, write_private

    config = CoordinatorConfig.load(context.obj)
    if out.exists():
        raise ParameterError("the file must be new", given=f"{out}", next_step="Name another.")
    with open_store(config) as store:
        store.verify_log()
        body = store.site_list(study, site, today=today())
    key = Authority.load(config.home).witness
    if not dry_run:
        write_private(out, Envelope.sign(SITE_LIST_TYPE, canonical_json(body), [key]).to_bytes())
    answer = {
        "out": str(out),
        "anchors": len(body["anchors"]),
        "releases": len(body["releases"]),
        "size": body["size"],
        "fingerprint": key.public.fingerprint,
        "written": not dry_run,
    }

    def show(shown: Console) -> None:
        words = f"{'would write' if dry_run else 'wrote'} {out}: {len(body['anchors'])} heads of {site}'s ledger"
        shown.print(f"{words} and {len(body['releases'])} releases of {study}, as of {body['size']} log entries")
        show_facts(shown, ("signed by", key.public.fingerprint))
        shown.print(f"next: python verify.py --coordinator-list {out.name}", style="cyan")

    emit(answer, as_json=json, show=show)
