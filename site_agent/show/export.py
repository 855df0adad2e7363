"""`site-agent audit export`: the record of one study at this site, for a stranger who trusts neither us nor our code.

A folder of plain files: the whole ledger with its hashes and signatures, the signed plans and their approvals, and of
each sealed release its statement, receipt, checks (rule, threshold, outcome, tool versions), who decided what, and
whether it was taken back. ``manifest.json`` lists all of it under the site's signature, ``verify.py`` checks all of it
with Python's library and `cryptography`, ``summary.html`` says on one page what it amounts to.

No row is in it, released or real, and no count of records but the n of a receipt, which leaves with every release. Of
the checks it has ``outcomes.json``, written and bound when they were shown to the approver; where an entry counts
persons it has the digest. The attack audit's values stay where they are; the ledger keeps their digest.

Entries of the site's other studies are there as digests and tags: the chain holds, and nothing of them is told. No
entry of this study can be passed off as one of those, because each carries the tag of its study from the day it was
written (docs/decisions/0011).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import Envelope
from shared.errors import IntegrityRefusal, StateRefusal
from shared.terminal import inert
from site_agent.ledger.entries import signed_digest, signed_part
from site_agent.show.crate import crate

if TYPE_CHECKING:
    from site_agent.desk import Desk
    from site_agent.ledger.book import Entry, Hold

__all__ = ["EXPORT_TYPE", "export", "record", "verify"]

EXPORT_TYPE = "application/vnd.tributary.audit-export+json"
HERE = Path(__file__).parent
CHECKS_CAP = 256 << 20


def export(desk: Desk, study: str, out: Path, *, agent_version: str, today: dt.date) -> dict[str, Any]:
    """Write the record of `study` into the new folder `out`.

    Args:
        desk: the site's folder.
        study: one of this site's.
        out: a folder that is not there yet, or is empty.
        today: UTC date of the export.
    Returns: what the command answers: files, releases, entries, head, fingerprint of the site's key.
    Raises: StateRefusal (no such study, or `out` holds something); what `verify` raises: a record that does not
        verify here is not handed out.
    """
    found = verify(desk)
    if study not in desk.plans.studies() and not desk.ledger.holds(study):
        raise StateRefusal("the study must be one of this site's", given=repr(study), next_step="site-agent status")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StateRefusal("the folder of an export must be new or empty", given=out.name, next_step="Name another.")
    entries = desk.ledger.entries()
    holds = [hold for hold in desk.ledger.holds(study) if hold.bundle_sha256]
    files = {**record(desk, study), "verify.py": (HERE / "verifier.py").read_bytes()}
    files["summary.html"] = _summary(desk, study, holds, entries, _checks(files), today).encode()
    files["ro-crate-metadata.json"] = crate(desk, study, sorted(files), today)
    manifest = {
        "format": "tributary-audit-export/2",
        "site": desk.config.site,
        "study": study,
        "agent_version": agent_version,
        "day": today.isoformat(),
        "head": entries[-1].hash,
        "files": {name: sha256_hex(data) for name, data in files.items()},
    }
    files["manifest.json"] = Envelope.sign(EXPORT_TYPE, canonical_json(manifest), [desk.release_key]).to_bytes()
    out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {
        "study": study,
        "out": out,
        "files": len(files),
        "releases": len(holds),
        "entries": found["entries"],
        "head": entries[-1].hash,
        "fingerprint": desk.release_key.public.fingerprint,
    }


def verify(desk: Desk) -> dict[str, Any]:
    """Verify every entry, every signature of agent, lead and approvers, and every sealed bundle; how many there are.

    ``gated`` names the releases of earlier versions whose ε does not hold a gate that read records
    (`site_agent.decide.airlock.overview.gated`).

    Of each study it holds what an export of it would say against the script that a stranger is given: what he would
    find is found here first.

    Raises: LedgerRefusal, IntegrityRefusal, ApprovalRefusal: what is not as it was.
    """
    from site_agent.decide.airlock.overview import gated
    from site_agent.ledger.entries import SIGNED, decided_by
    from site_agent.show import verifier

    entries = desk.ledger.verify()
    decisions = 0
    for entry in desk.ledger.entries():
        # Entries from before there were tags were not signed by persons.
        if "tags" in entry.body and (entry.kind in SIGNED or (entry.kind == "paused" and "signature" in entry.body)):
            if not decided_by(desk.config.site, entry, desk.config.signers):
                raise IntegrityRefusal(
                    f"entry {entry.seq} ({entry.kind.replace('_', ' ')}) must be signed by the approver it names",
                    given="no such signature",
                    next_step="Keep the ledger as it is, and call the study lead.",
                )
            decisions += 1
    bundles = 0
    deleted = desk.ledger.deleted()
    for hold in desk.outbox.list():
        if hold.release_id not in deleted:
            desk.outbox.bundle(hold.release_id)
            bundles += 1
    approvals = 0
    for study in desk.plans.studies():
        for version in range(1, desk.plans.highest(study) + 1):
            approvals += desk.plans.approval(study, version) is not None
    signatures = 0
    for study in sorted({*desk.plans.studies(), *(hold.study for hold in desk.ledger.holds())}):
        files = record(desk, study)
        try:
            signatures += verifier.examine(files, study)["signatures"]
        except (verifier.Wrong, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            given = str(error) if isinstance(error, verifier.Wrong) else f"damaged ({type(error).__name__})"
            raise IntegrityRefusal(
                f"the record of study {study} must verify as a stranger would verify it",
                given=given,
                next_step="Nothing of it is handed out until this is explained: keep the state folder as it is.",
            ) from None
    head = desk.ledger.entries()[-1].hash
    gates = [hold.release_id for hold in desk.outbox.list() if hold.left and hold.release_id not in deleted]
    return {
        "entries": entries,
        "bundles": bundles,
        "plan_approvals": approvals,
        "decisions": decisions,
        "refused": len(desk.refusals.lines()),
        "signatures": signatures,
        "gated": [release_id for release_id in gates if gated(desk.outbox, release_id)],
        "head": head,
        "ok": True,
    }


def record(desk: Desk, study: str) -> dict[str, bytes]:
    """Evidence of a study, by file name: all of an export but its list, its script and its summary.

    Raises: StateRefusal, IntegrityRefusal, StorageRefusal: what is lost or not as it was.
    """
    holds = desk.ledger.holds()
    studies = {hold.release_id: hold.study for hold in holds}
    tag, since = desk.ledger.tag(study), desk.ledger.membership().tags[-1][0]
    files = {
        "ledger.json": canonical_json([_line(entry, tag, study, studies, since) for entry in desk.ledger.entries()]),
        "keys.json": canonical_json(_keys(desk, study)),
        "acknowledged.json": canonical_json(_acknowledged(desk, study)),
        **_plans(desk, study),
    }
    for hold in holds:
        if hold.study == study and hold.bundle_sha256:
            for name, data in _release(desk, hold).items():
                files[f"releases/{hold.release_id}/{name}"] = data
    return files


def _line(entry: Entry, tag: str, study: str, studies: Mapping[str, str], since: int = 1) -> dict[str, Any]:
    """An entry; of another study only what the chain needs, and its tags.

    Args:
        since: the first entry of which `tag` is the tag: what made it before is lost.
    """
    line: dict[str, Any] = {"seq": entry.seq, "hash": entry.hash, "signature": entry.signature.hex()}
    tags = entry.body.get("tags")
    if tags is None:
        if not _concerns(entry, study, studies):
            return {**line, "link": entry.link}
        return {**line, "time": entry.time, "kind": entry.kind, "body": dict(entry.body)}
    line["tags"] = tags
    mine = tag in tags if entry.seq >= since else _concerns(entry, study, studies)
    if tags and not mine:
        return {**line, "told": signed_digest(entry.time, entry.kind, entry.body)}
    return {**line, "time": entry.time, "kind": entry.kind, "body": signed_part(entry.body)}


def _concerns(entry: Entry, study: str, studies: Mapping[str, str]) -> bool:
    """True if an entry from before there were tags is about `study`."""
    body = entry.body
    if entry.kind in ("lost", "recovered"):
        return any(charge["study"] == study for charge in body["charges"])
    if "study" in body:
        return bool(body["study"] == study)
    return "release_id" not in body or studies[body["release_id"]] == study


def _acknowledged(desk: Desk, study: str) -> list[Any]:
    """Documents signed by the coordinator: ledger heads, its log's heads, this study's acceptances and withdrawals."""
    path = desk.home / "acknowledged.jsonl"
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    said = [parse_json(line) for line in lines if line.endswith(b"}")]
    return [one for one in said if one.get("study", study) == study]


def _keys(desk: Desk, study: str) -> dict[str, Any]:
    config = desk.config
    pinned = config.ca.with_name("witness.pub")
    return {
        "witness_key": pinned.read_text().strip() if pinned.exists() else "",
        "site": config.site,
        "study_tag": desk.ledger.tag_proof(study).hex(),
        "coordinator": config.coordinator,
        "ca_fingerprint": config.ca_fingerprint,
        "release_key": desk.release_key.public.hex,
        "tag_keys": _tag_keys(desk, study),
        "approvers": dict(config.approvers),
        "retired_approvers": {name: list(keys) for name, keys in config.retired_approvers.items()},
        "leads": {key.key_id: key.hex for key in config.pinned_leads.values()},
        "former_leads": {key.key_id: key.hex for key in config.every_lead.values() if key.hex not in config.leads},
        "threshold": config.threshold,
    }


def _tag_keys(desk: Desk, study: str) -> list[dict[str, Any]]:
    """Each key that made the tags of studies, since which entry, and its proof of this study's; of a lost one none."""
    ledger = desk.ledger
    return [
        {"from": seq, "key": key.hex, "proof": ledger.tag_proof(study).hex() if key == ledger.tagger.public else ""}
        for seq, key in ledger.membership().tags
    ]


def _plans(desk: Desk, study: str) -> dict[str, bytes]:
    folder = desk.plans.folder / study
    return {f"plans/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.json"))}


def _release(desk: Desk, hold: Hold) -> dict[str, bytes]:
    """Files of one release, without its rows. After leaving a study that is what the ledger knows."""
    import zipfile

    files = {"statement.json": desk.outbox.statement(hold.release_id).to_bytes()}
    if hold.withdrawal is not None:
        files["withdrawal.json"] = desk.outbox.tombstone(hold.release_id).to_bytes()
    if hold.release_id in desk.ledger.deleted():
        return files
    folder = desk.outbox.folder(hold.release_id)
    with zipfile.ZipFile(desk.outbox.bundle(hold.release_id)) as archive:
        files["receipt.json"] = archive.read("receipt.json")
    files |= {path.name: path.read_bytes() for path in sorted(folder.glob("decision-*.json"))}
    written = folder / "outcomes.json"
    if written.exists():
        files["outcomes.json"] = written.read_bytes()
    elif hold.documents and "outcomes.json" not in hold.documents:
        files["outcomes.json"] = _outcomes(folder, hold)
    return files


def _outcomes(folder: Path, hold: Hold) -> bytes:
    """Of a release that was held before outcomes were written: bound to the checks by their digest alone."""
    from site_agent.release.outbox import outcomes

    data, audit = ((folder / name).read_bytes() for name in ("checks.json", "audit.json"))
    content = outcomes(
        parse_json(data, cap=CHECKS_CAP)["content"], parse_json(audit, cap=CHECKS_CAP)["content"], sha256_hex(data)
    )
    return canonical_json({"release_id": hold.release_id, "bundle_sha256": hold.bundle_sha256, "content": content})


def _checks(files: Mapping[str, bytes]) -> dict[str, list[dict[str, Any]]]:
    """Outcome of each check of each release."""
    return {
        name.split("/")[1]: parse_json(data)["content"]["checks"]
        for name, data in files.items()
        if name.endswith("/outcomes.json")
    }


def _summary(
    desk: Desk,
    study: str,
    holds: list[Hold],
    entries: list[Entry],
    checks: Mapping[str, list[dict[str, Any]]],
    today: dt.date,
) -> str:
    """One page for people, with its style inside: it must read well on any machine."""
    import jinja2

    from shared.privacy import stated
    from site_agent.decide.airlock import overview
    from site_agent.decide.plan_facts import plan_facts

    versions = [plan for plan in desk.plans.filed(study)]
    approvals = [
        {**dict(entry.body), "day": entry.time[:10], "kind": entry.kind}
        for entry in entries
        if entry.kind in ("plan_approved", "plan_revoked") and entry.body["study"] == study
    ]
    delivered = {e.body["release_id"]: e for e in entries if e.kind == "commit"}
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "page" / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=inert,
    )
    pages.globals["stated"] = stated
    return pages.get_template("summary.html").render(
        site=desk.config.site,
        study=study,
        day=today.isoformat(),
        plan=plan_facts(desk, versions[-1], today) if versions else None,
        approvals=approvals,
        holds=holds,
        checks=checks,
        charges=desk.ledger.statement(study),
        delivered=delivered,
        totals=overview.totals(desk, study),
        entries=len(entries),
        head=entries[-1].hash,
        fingerprint=desk.release_key.public.fingerprint,
        leads=[key.fingerprint for key in desk.config.every_lead.values()],
        style=jinja2.utils.markupsafe.Markup((HERE / "page" / "templates" / "style.css").read_text(encoding="utf-8")),
    )
