"""The append-only log: ``log``, ``log verify``, ``log proof``, ``log list``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.config import CoordinatorConfig
from shared.errors import IntegrityRefusal, ParameterError, SchemaRefusal
from shared.terminal import emit

if TYPE_CHECKING:
    from rich.console import Console

from coordinator.cli.options import DryRun, Json, Site, log_app, open_store, show_facts, today
from coordinator.cli.releases import one_release

__all__ = ["log", "log_list", "log_proof", "log_verify"]

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


@log_app.command("proof")
def log_proof(
    context: typer.Context,
    release: Annotated[str, typer.Argument(help="The release's id, or its first digits.")],
    json: Json = False,
) -> None:
    """Prove that one release stands in the log, in a form that anyone can verify (RFC 9162)."""
    from coordinator.store.log import leaf_hash, verify_inclusion

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
