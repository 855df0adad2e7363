"""The append-only log: ``log``, ``log verify``, ``head``, ``restored``, ``proof``, ``list``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import DateRead, DryRun, Json, Site, Study, labelled, log_app, open_store, today, verb
from coordinator.config import CoordinatorConfig
from shared.errors import IntegrityRefusal, ParameterError, SchemaRefusal, StateRefusal
from shared.terminal import VerbAnswer, emit

if TYPE_CHECKING:
    from coordinator.store.store import Store

from coordinator.cli.releases import ReleaseId, one_release

__all__ = ["log", "log_head", "log_list", "log_proof", "log_restored", "log_verify"]

SITE_LIST_TYPE = "application/vnd.tributary.site-list+json"


@log_app.callback(invoke_without_command=True)
def log(context: typer.Context, json: Json = False) -> None:
    """Check the whole log, and show its size and root, which a site may keep and hold the coordinator to."""
    if context.invoked_subcommand:
        return
    with open_store(CoordinatorConfig.load(context.obj), reads=True) as store:
        view = log_verify(store)
    emit(view.data, as_json=json, show=view.show)


@verb(log_app, "verify")
def log_verify(store: Store) -> VerbAnswer:
    """Check every entry, root, release, anchor, withdrawal and closing, and every signature that is stored."""
    from coordinator.services.health import require_whole

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

    return VerbAnswer(
        answer,
        (f"{size} entries; every entry, release, anchor and root agrees", "green"),
        (f"{signed} signed documents; every signature is of its site's keys of that time", "green"),
        labelled(("root", head or "none yet")),
    )


@verb(log_app, "head")
def log_head(
    config: CoordinatorConfig,
    store: Store,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="File to write it to, for all to see.")
    ] = None,
    note: Annotated[bool, typer.Option("--note", help="As a signed note, for tools of transparency logs.")] = False,
) -> VerbAnswer:
    """Sign the log's size and root as they are now: a file for a web page, by which sites and analysts cross-check."""
    from coordinator.services.authority import Authority
    from coordinator.store.log_watch import LogWatch
    from shared.base.keys import write_private
    from shared.wire.tree_heads import checkpoint_note, note_verifier, open_head

    authority = Authority.load(config.home)
    watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
    size, envelope = watch.head(today())
    if not size:
        raise StateRefusal("the log must have an entry to have a head", given="none yet")
    head = open_head(envelope, authority.witness.public)
    checkpoint = checkpoint_note(head, authority.witness)
    if out is not None:
        write_private(out, checkpoint.encode() if note else envelope + b"\n")
        out.chmod(0o644)
    answer = {"size": size, "root": head.root, "day": head.day, "head": envelope.decode(), "out": str(out or "")}
    answer |= {"note": checkpoint, "note_key": note_verifier(authority.coordinator, authority.witness.public)}

    return VerbAnswer(
        answer,
        (f"{size} entries, as of {head.day}", "bold"),
        labelled(("root", head.root), ("signed by", authority.witness.public.fingerprint)),
        f"wrote {out}: sites check it with site-agent log --against, analysts with analyst log-check --against"
        if out is not None and not note
        else None,
        "--out FILE writes the note, --json prints it" if note and out is None else None,
        f"its verifiers' key: {answer['note_key']}" if note else None,
    )


@verb(log_app, "restored")
def log_restored(
    config: CoordinatorConfig,
    store: Store,
    reason: Annotated[str, typer.Option("--reason", help="What happened, for the log that everybody sees.")],
    size: Annotated[
        int | None, typer.Option("--size", min=0, help="Entries that it was put back to; all that it has if left out.")
    ] = None,
    date: DateRead = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Say in the log that the home was put back by other means than coordinator restore, as a machine's snapshot.

    Sites that saw more of the log then record a restore, and send again what was lost, instead of refusing a fork.
    """
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks, restoration_day
    from coordinator.store.log_watch import LogWatch

    authority = Authority.load(config.home)
    if not reason.strip():
        raise ParameterError("a restore must be told with a reason", given="blank text")
    entries = store.verify_log()
    watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
    said = {"archive": "", "reason": reason, **({} if size is None else {"size": size})}
    if size is not None and size > entries:
        raise ParameterError("the log must have so many entries", given=f"{size} of {entries}")
    clocks = SeenClocks(store, authority.certificate)
    day = restoration_day(clocks, authority.now(), None if date is None else date.date())
    index = None if dry_run else watch.restore(said, day)
    answer = {"size": entries if size is None else size, "log_index": index, "written": not dry_run}

    did = "would say" if dry_run else f"log entry {index} says"
    return VerbAnswer(
        answer,
        f"{did} that the log was taken up again at {answer['size']} entries",
        ("next: coordinator serve, then coordinator sites", "cyan"),
    )


@verb(log_app, "proof")
def log_proof(store: Store, release: ReleaseId) -> VerbAnswer:
    """Prove that one release stands in the log, in a form that anyone can verify (RFC 9162)."""
    from shared.base.merkle.tree import leaf_hash, verify_inclusion

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

    where = f"entry {found.log_index} of {len(entries)}, numbered from 0"
    return VerbAnswer(
        answer,
        (f"{found.study}, wave {found.wave}, {found.site}: {where}; the proof verifies", "green"),
        labelled(
            ("entry", entry.decode()), ("leaf", leaf.hex()), *(("proof", part.hex()) for part in path), ("root", head)
        ),
    )


@verb(log_app, "list")
def log_list(
    config: CoordinatorConfig,
    store: Store,
    site: Site,
    study: Study,
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="A new file for the signed list.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Sign what was witnessed and accepted of a site, for a stranger who checks the site's audit export (verify.py)."""
    from coordinator.services.authority import Authority
    from shared.base.canonical import canonical_json
    from shared.base.keys import Envelope, write_private

    if out.exists():
        raise ParameterError("the file must be new", given=f"{out}", next_step="Name another.")
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

    words = f"{'would write' if dry_run else 'wrote'} {out}: {len(body['anchors'])} heads of {site}'s ledger"
    return VerbAnswer(
        answer,
        f"{words} and {len(body['releases'])} releases of {study}, as of {body['size']} log entries",
        labelled(("signed by", key.public.fingerprint)),
        (f"next: python verify.py --coordinator-list {out.name}", "cyan"),
    )
