"""Heads of the sites' ledgers that the coordinator has witnessed, each grown from the one before or let begin anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.store import schema as db
from coordinator.store.engine import Database, append_entry
from shared.base.chain import GENESIS, head_fingerprint, heads
from shared.base.keys import Envelope
from shared.errors import LedgerRefusal, ParameterError, StateRefusal
from shared.wire.signed_messages import AnchorHead

if TYPE_CHECKING:
    from shared.wire.site_messages import AnchorReceipt

__all__ = [
    "add_anchor",
    "allow_reanchor",
    "anchor_bytes",
    "began_anew",
    "last_anchor",
    "last_moved",
    "reanchored",
    "witnessed",
]


def add_anchor(store: Database, head: AnchorHead, envelope: Envelope) -> AnchorReceipt:
    """Witness a site's ledger head that grew from the last one witnessed; the same head again changes nothing.

    The links are folded from the head that is kept here, never from one the site names. A head that did not grow
    from it is taken only if the study lead has allowed exactly it (`allow_reanchor`).

    Raises: LedgerRefusal, when the ledger is older than what was witnessed, or has another history.
    """
    from shared.wire.site_messages import AnchorReceipt

    def work(c: sa.Connection) -> AnchorReceipt:
        last = c.execute(_newest_anchor(head.site)).first()
        if last is not None and (head.seq, head.head) == (last.seq, last.head):
            return _anchor_receipt(c, last)
        seq, digest, line = (0, GENESIS, 0) if last is None else (last.seq, last.head, last.line)
        leaf: dict[str, Any] = {"kind": "anchor"}
        if not head.extends(seq, digest):
            if last is None or not _allowed(c, head, last.log_index):
                raise _not_grown(head, seq)
            c.execute(db.reanchors.delete().where(db.reanchors.c.site == head.site))
            leaf = {"kind": "reanchor", "left_seq": seq, "left_head": digest}
            line += 1
        index, log_root = append_entry(c, {**leaf, "site": head.site, "seq": head.seq, "head": head.head})
        values = {"site": head.site, "line": line, "seq": head.seq, "head": head.head, "log_index": index}
        c.execute(db.anchors.insert().values(**values, envelope=envelope.to_bytes()))
        return AnchorReceipt(seq=head.seq, head=head.head, index=index, log_root=log_root)

    return store.write(work)


def last_anchor(store: Database, site: str) -> AnchorReceipt | None:
    """The last witnessed head of a site's ledger."""
    return witnessed(store, site)[0]


def witnessed(store: Database, site: str) -> tuple[AnchorReceipt | None, bytes, int]:
    """The last witnessed head of a site's ledger, as the site signed it, and how often it was let begin anew."""

    def work(c: sa.Connection) -> tuple[AnchorReceipt | None, bytes, int]:
        row = c.execute(_newest_anchor(site)).first()
        return (None, b"", 0) if row is None else (_anchor_receipt(c, row), row.envelope, int(row.line))

    return store.read(work)


def anchor_bytes(store: Database) -> dict[str, int]:
    """Site to the bytes of its signed heads."""
    size = sa.func.sum(sa.func.length(db.anchors.c.envelope))
    query = sa.select(db.anchors.c.site, size).group_by(db.anchors.c.site)
    return {site: int(total) for site, total in store.read(lambda c: c.execute(query).all())}


def reanchored(store: Database, site: str) -> int:
    """Number of times that the lead let a site's ledger begin anew."""
    return witnessed(store, site)[2]


def allow_reanchor(store: Database, site: str, fingerprint: str) -> int:
    """Let a site's ledger go on once from a head that does not extend the witnessed one; its place in the log.

    Only a person may call this, after the steward has read the fingerprint out. The permission is for one head,
    holds until the site uses it, and is void once the site anchors anything else.

    Args:
        fingerprint: `shared.base.chain.head_fingerprint` of the site's ledger after ``site-agent ledger recover``.
    Raises: StateRefusal (nothing was ever witnessed), ParameterError.
    """
    wanted = "".join(fingerprint.lower().split())
    if len(wanted) != 32 or not set(wanted) <= set("0123456789abcdef"):
        raise ParameterError(
            "a ledger's fingerprint must be eight groups of four hexadecimal digits",
            given="another form",
            next_step="Ask the steward to read it out (site-agent ledger recover).",
        )

    def work(c: sa.Connection) -> int:
        last = c.execute(_newest_anchor(site)).first()
        if last is None:
            raise StateRefusal("a ledger must have been witnessed to begin anew", given=f"no anchor of {site!r}")
        leaf = {"kind": "reanchor_allowed", "site": site, "fingerprint": wanted, "left_seq": last.seq}
        index, _ = append_entry(c, {**leaf, "left_head": last.head})
        c.execute(db.reanchors.delete().where(db.reanchors.c.site == site))
        values = {"site": site, "fingerprint": wanted, "left_index": last.log_index, "log_index": index}
        c.execute(db.reanchors.insert().values(**values))
        return index

    return store.write(work)


def began_anew(store: Database, site: str) -> int:
    """Place in the log at which a site's ledger was last let begin anew; -1 if it never was."""
    own = sa.select(sa.func.min(db.anchors.c.log_index)).where((db.anchors.c.site == site) & (db.anchors.c.line > 0))
    line = reanchored(store, site)
    found = store.read(lambda c: c.execute(own.where(db.anchors.c.line == line)).scalar())
    return -1 if found is None else int(found)


def last_moved(store: Database) -> dict[str, int]:
    """Site to the place in the log at which its ledger was last witnessed."""
    query = sa.select(db.anchors.c.site, sa.func.max(db.anchors.c.log_index)).group_by(db.anchors.c.site)
    return {site: int(place) for site, place in store.read(lambda c: c.execute(query).all())}


def _anchor_receipt(c: sa.Connection, row: Any) -> AnchorReceipt:
    from shared.wire.site_messages import AnchorReceipt

    log_root = c.execute(sa.select(db.log.c.root).where(db.log.c.index == row.log_index)).scalar_one()
    return AnchorReceipt(seq=row.seq, head=row.head, index=row.log_index, log_root=log_root)


def _newest_anchor(site: str) -> sa.Select[Any]:
    return sa.select(db.anchors).where(db.anchors.c.site == site).order_by(db.anchors.c.log_index.desc()).limit(1)


def _allowed(c: sa.Connection, head: AnchorHead, left_index: int) -> bool:
    """True if the lead has allowed a head that this chain passes, and the chain begins where it says.

    The site may have gone on since it read the fingerprint out, so the allowed head may lie within the links.
    """
    given = c.execute(sa.select(db.reanchors).where(db.reanchors.c.site == head.site)).first()
    if given is None or given.left_index != left_index:
        return False
    witnessed = sa.select(db.anchors.c.head).where((db.anchors.c.site == head.site) & (db.anchors.c.seq == head.after))
    roots = [GENESIS] if head.after == 0 else [row.head for row in c.execute(witnessed)]
    for root in roots:
        passed = list(heads(root, head.links))
        prints = {head_fingerprint(digest).replace(" ", "") for digest in passed}
        if passed and passed[-1] == head.head and given.fingerprint in prints:
            return True
    return False


def _not_grown(head: AnchorHead, seq: int) -> LedgerRefusal:
    must = f"the ledger must go on from entry {seq}, which the coordinator has witnessed"
    if seq == 0:
        must = "the first anchor of a ledger must prove it from its first entry"
    if head.after > seq:
        return LedgerRefusal(
            must,
            given=f"a proof from entry {head.after} only",
            next_step="The coordinator's store may be an old copy: tell the study lead, then run site-agent resend.",
        )
    given = f"entry {head.seq}, from before it" if head.seq < seq else "another history of it"
    return LedgerRefusal(
        must,
        given=given,
        next_step="The site's ledger is an old copy, or was edited. Run site-agent ledger recover.",
    )
