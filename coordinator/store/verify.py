"""The log held against the rows, each signature against the keys of its time; what a stranger may ask of a site."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from coordinator.store import membership
from coordinator.store import schema as db
from coordinator.store.engine import Database, append_entry, log_size
from coordinator.store.members import all_plans, enrolment, key_history
from coordinator.store.releases import accepted_releases, quarantined
from coordinator.store.rows import AcceptedRelease, LogEntry
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import Envelope
from shared.base.merkle.tree import append, leaf_hash, peaks_root
from shared.errors import IntegrityRefusal, SignatureRefusal
from shared.plans.standing import STANDING_TYPE
from shared.wire.certificates import LATE_TYPE, RENEWAL_TYPE
from shared.wire.signed_messages import ANCHOR_TYPE, WITHDRAWAL_TYPE, AnchorHead, Withdrawal

__all__ = [
    "SITE_LIST",
    "log_entries",
    "note_restoration",
    "require_as_signed",
    "site_list",
    "verify_log",
    "verify_signatures",
]

SITE_LIST = "tributary-site-list/1"


def site_list(store: Database, study: str, site: str, *, today: dt.date) -> dict[str, Any]:
    """Everything witnessed of a site's ledger, and everything that came from it in a study, as plain values.

    Heads are of the whole ledger, and say nothing of what stands in it. `studies` is how many the site was ever
    invited to: its ledger has no reason to be about more.

    Raises: StateRefusal (no such site).
    """
    enrolment(store, site)
    invited = store.read(lambda c: membership.ever_granted(c, site))
    witnessed = sa.select(db.anchors).where(db.anchors.c.site == site).order_by(db.anchors.c.log_index)
    anchors = store.read(lambda c: c.execute(witnessed).all())
    return {
        "format": SITE_LIST,
        "site": site,
        "study": study,
        "day": today.isoformat(),
        "size": store.read(log_size),
        "studies": len(invited),
        "anchors": [{"line": a.line, "seq": a.seq, "head": a.head, "log_index": a.log_index} for a in anchors],
        "releases": [
            {
                "release_id": one.release_id,
                "wave": one.wave,
                "bundle_sha256": one.bundle_sha256,
                "log_index": one.log_index,
                "accepted_day": one.accepted_day,
                "withdrawn": bool(one.withdrawn),
                "statement": one.envelope.to_bytes().decode(),
            }
            for one in accepted_releases(store, study, site=site, withdrawn=True)
        ],
        "quarantined": [
            {"release_id": one.release_id, "bundle_sha256": one.bundle_sha256}
            for one in quarantined(store, study=study, site=site)
        ],
    }


def log_entries(store: Database) -> tuple[LogEntry, ...]:
    """All entries of the log, in order."""
    query = sa.select(db.log.c.index, db.log.c.entry, db.log.c.root).order_by(db.log.c.index)
    return tuple(LogEntry(**row) for row in store.read(lambda c: c.execute(query).mappings().all()))


def note_restoration(store: Database, entry: Mapping[str, Any]) -> int:
    """Say in the log that it was taken up again from a backup (`shared.wire.tree_heads`); the entry's place."""

    def work(c: sa.Connection) -> int:
        index, _ = append_entry(c, entry)
        c.execute(db.restorations.insert().values(log_index=index, entry=canonical_json(entry)))
        return index

    return store.write(work)


def verify_log(store: Database) -> int:
    """Recompute every leaf and root, and hold rows and entries against each other; how many entries.

    Each release, anchor, withdrawal, revocation and closing of a wave has its entry, and each entry has what it is
    about: a row that somebody hid is missed here.

    Raises: IntegrityRefusal, naming the first place that does not agree.
    """
    peaks: tuple[bytes, ...] = ()
    entries = log_entries(store)
    for expected, found in enumerate(entries):
        peaks = append(peaks, expected, leaf_hash(found.entry))
        if found.index != expected or peaks_root(peaks).hex() != found.root:
            raise IntegrityRefusal("the log must be whole", given=f"a break at entry {expected}")

    about = set[int]()

    def must(index: int, what: str, *leaves: Mapping[str, Any], root: str = "") -> None:
        about.add(index)
        there = entries[index] if index < len(entries) else LogEntry(index=index, entry=b"", root="")
        if there.entry not in [canonical_json(leaf) for leaf in leaves] or root not in ("", there.root):
            raise IntegrityRefusal(f"{what} must be in the log", given=f"another entry {index}")

    for release in accepted_releases(store, withdrawn=True):
        must(release.log_index, "a release", release.leaf, root=release.log_root)
        require_as_signed(release)
    last: dict[str, Any] = {}
    for row in store.read(lambda c: c.execute(sa.select(db.anchors).order_by(db.anchors.c.log_index)).all()):
        leaf = {"site": row.site, "seq": row.seq, "head": row.head}
        before = last.get(row.site)
        left = {} if before is None else {"left_seq": before.seq, "left_head": before.head}
        must(row.log_index, "an anchor", {"kind": "anchor", **leaf}, {"kind": "reanchor", **left, **leaf})
        last[row.site] = row
    for row in store.read(lambda c: c.execute(sa.select(db.withdrawals)).all()):
        leaf = {"kind": "withdrawal", "statement": Envelope.from_bytes(row.envelope).digest}
        must(
            row.log_index,
            "a withdrawal",
            {**leaf, "bundle": row.bundle_sha256, "site": row.site},
            root=row.log_root,
        )
        said = Withdrawal.from_bytes(Envelope.from_bytes(row.envelope).payload)
        if any(getattr(row, name) != getattr(said, name) for name in said.__dataclass_fields__):
            raise IntegrityRefusal(
                "a withdrawal must be kept as its site signed it", given=f"another row for entry {row.log_index}"
            )
    for row in store.read(lambda c: c.execute(sa.select(db.revoked)).all()):
        must(row.log_index, "a revocation", {"kind": "revocation", "site": row.site, "serial": row.serial})
    for row in store.read(lambda c: c.execute(sa.select(db.wave_events)).all()):
        about.add(row.log_index)
        there = parse_json(entries[row.log_index].entry) if row.log_index < len(entries) else {}
        names = ("kind", "study", "wave", "reason", "day")
        same = all(there.get(name) == getattr(row, name) for name in names)
        if not same or there.get("missing", []) != json.loads(row.missing):
            raise IntegrityRefusal("a wave's closing must be in the log", given=f"another entry {row.log_index}")
    for row in store.read(lambda c: c.execute(sa.select(db.opened_sums)).all()):
        leaf = {name: getattr(row, name) for name in ("study", "plan_hash", "sha256", "day")}
        must(row.log_index, "an opened sum", {"kind": "sum_opened", **leaf})
        if row.document and sha256_hex(bytes(row.document)) != row.sha256:
            raise IntegrityRefusal(
                "an opened sum must be the one that was logged", given=f"other bytes for {row.log_index}"
            )
    for row in store.read(lambda c: c.execute(sa.select(db.restorations)).all()):
        must(row.log_index, "a restoration", parse_json(row.entry))
    for index, entry in store.read(membership.logged).items():
        must(index, "who takes part, and which study is over", parse_json(entry))
    for row in store.read(lambda c: c.execute(sa.select(db.tree_heads)).all()):
        if not 0 < row.size <= len(entries) or entries[row.size - 1].root != row.root:
            raise IntegrityRefusal("a signed head must be of this log", given=f"another root of {row.size} entries")
    for found in entries:
        # What a site may begin anew from is overwritten by the next such word; its entry stays.
        kind = parse_json(found.entry).get("kind")
        if found.index not in about and kind != "reanchor_allowed":
            raise IntegrityRefusal(
                "every entry of the log must have what it is about",
                given=f"entry {found.index}, {kind}, and no such {kind} in the database",
                next_step="Restore the database from a backup: something that was logged has been removed from it.",
            )
    return len(entries)


def verify_signatures(store: Database) -> int:
    """Check every stored signature of a site against the keys that were in force at its place in the log.

    Returns: how many documents (anchors, releases, withdrawals, renewals) verify. Raises: SignatureRefusal, naming the
        first that does not.
    """
    keys = store.read(key_history)
    count = 0

    def must(holds: bool, what: str, index: int) -> None:
        nonlocal count
        count += 1
        if not holds:
            raise SignatureRefusal(
                f"{what} in the log must be signed by its site's keys of that time", given=f"entry {index}"
            )

    for row in store.read(lambda c: c.execute(sa.select(db.anchors)).all()):
        envelope = Envelope.from_bytes(row.envelope)
        release, _ = keys.at(row.site, row.log_index)
        good = bool(envelope.verified_by(release)) and envelope.payload_type == ANCHOR_TYPE
        if good:
            head = AnchorHead.from_bytes(envelope.payload)
            good = (head.site, head.seq, head.head) == (row.site, row.seq, row.head)
        must(good, "an anchor", row.log_index)
    approvals = {stored.plan.hash: stored.plan.floors.approvals for stored in all_plans(store)}
    for found in accepted_releases(store, withdrawn=True):
        release, approvers = keys.at(found.site, found.log_index)
        signers = found.envelope.verified_by(approvers)
        if found.standing is not None and found.standing.payload_type == STANDING_TYPE:
            signers |= found.standing.verified_by(approvers)
        enough = len(signers) >= approvals.get(found.plan_hash, 1)
        must(bool(found.envelope.verified_by(release)) and enough, "a release", found.log_index)
    for row in store.read(lambda c: c.execute(sa.select(db.withdrawals)).all()):
        envelope = Envelope.from_bytes(row.envelope)
        release, approvers = keys.at(row.site, row.log_index)
        signed = bool(envelope.verified_by(release)) and bool(envelope.verified_by(approvers))
        must(signed and envelope.payload_type == WITHDRAWAL_TYPE, "a withdrawal", row.log_index)
    for row in store.read(lambda c: c.execute(sa.select(membership.renewals)).all()):
        envelope = Envelope.from_bytes(row.envelope)
        signed = bool(envelope.verified_by(keys.at(row.site, row.log_index)[0]))
        must(signed and envelope.payload_type in (RENEWAL_TYPE, LATE_TYPE), "a renewal", row.log_index)
    return count


def require_as_signed(release: AcceptedRelease) -> None:
    """Hold a release's row against the statement that its site signed: another study or wave would hide it there."""
    said = parse_json(release.envelope.payload)
    names = ("study", "wave", "site", "release_id", "bundle_sha256", "bundle_bytes", "plan_hash", "plan_version")
    same = all(getattr(release, name) == said[name] for name in names)
    if not same or release.receipt.hash != said["receipt_sha256"] or release.receipt.n != release.n:
        raise IntegrityRefusal(
            "a release must be kept as its site signed it", given=f"another row for entry {release.log_index}"
        )
