"""The site's privacy ledger: what every release costs, charged before a record is read, and never taken back.

One SQLite file holds one append-only list of entries. Each entry's hash covers the one before it, and each head is
signed by the site's release key; everything else (what is held, sealed, delivered, burnt; what is spent; who approved
which bytes) is *derived* from that list (`site_agent.ledger.state`), so there is no second truth that could disagree
with the first.

A release is a *hold* (`site_agent.ledger.holds`) that moves one way::

    reserve ─► anchor ─► drawing ─► seal ─► hold ─► approve ─► commit
       │          │          │        │       ├─► send_back ─┘ (approve, or hold again)
       └──────────┴──────────┴────────┴───────┴─► burn | reject | withdraw ─► tombstone

A training that the sites run together is a hold as well: charged whole, then ``train`` binds its persons, and each
round is begun (``round``) and acknowledged by the coordinator (``witnessed``) before its noise exists, and sealed
(``answer``) before it leaves; ``trained`` ends it. A round that was begun and not sealed is given up: nobody can tell
whether its noise was drawn. Rounds may also follow the delivery of a release whose charge says so (a secure sum): each
goes on from the answer to the one before it, and from the second on they need the approvers' ``sum_consented``.

The charge counts from `reserve` on and stays, whatever becomes of the hold: nothing is refunded. `start_drawing`
works once per hold, and only after the coordinator has acknowledged the signed head: a charge buys one draw at most.
It binds the persons whom the release touches: a release of new persons touches nobody on an earlier list, so that the
total is that of the worst class of persons (`shared.privacy.composition`) and not of everybody. The lists lie beside
the sealed bytes, and a release of new persons is refused while one is missing or is not the one that was bound.

Three things find out a ledger that was edited or put back. The chain and its signatures: any edit. ``ledger.head``, a
second file with the signed head, written after each commit while the database is locked: a restored or deleted
database. The coordinator's anchor: both files restored together, at once or grown since; it carries the links since
the last anchor, so that the coordinator sees a head grow from the one it keeps. The head file may lag behind by a
crash, never lead. A third file, ``ledger.checked``, only saves time: the digest of the heads whose signatures were
verified when the ledger was last opened, signed, so that a command verifies only those that came since; `verify` looks
at everything. The chain is computed by each command all the same: a note that a thief of the release key signed must
not make true what no longer follows from the heads that the coordinator has witnessed.
`count_lost` is the only way on for a ledger that was put back: it charges whatever may be missing.

Every entry holds 16 random bytes, its salt: the links that go to the coordinator as proof would otherwise let a name
or a time be guessed. It also carries the tags of the studies it is about, from which nobody can guess a study's name:
whoever is shown one study's entries sees that none of them was left out (`site_agent.show.export`). The time of an
entry is for people. Order is `seq`; no decision depends on a clock.
"""

from __future__ import annotations

from pathlib import Path

from shared.base.canonical import sha256_hex
from shared.base.chain import GENESIS
from site_agent.ledger import anchors, charge, decisions, drawing, members
from site_agent.ledger import persons as touched
from site_agent.ledger.chain import Chain, reading, writing
from site_agent.ledger.charge import Reservation, Spent, StatementLine
from site_agent.ledger.decisions import StoredBundle
from site_agent.ledger.entries import HEAD_TYPE, AnchoredHead, Entry, tag_proof
from site_agent.ledger.holds import Approval, Hold, Lost, Round, SignedWithdrawal, Touches, folder_of
from site_agent.ledger.state import Book, Noted

__all__ = [
    "HEAD_TYPE",
    "AnchoredHead",
    "Approval",
    "Entry",
    "Hold",
    "Ledger",
    "Lost",
    "Noted",
    "Reservation",
    "Round",
    "SignedWithdrawal",
    "Spent",
    "StatementLine",
    "StoredBundle",
    "Touches",
]


def _holds(book: Book, study: str | None = None) -> list[Hold]:
    """All holds in order of reservation."""
    return [hold for hold in book.holds.values() if study is None or hold.study == study]


def _entries(book: Book) -> list[Entry]:
    """All entries from the first."""
    return list(book.entries)


def _last_receipt(book: Book, study: str) -> str:
    """SHA-256 of the receipt sealed last in this study, or 64 zeros: what the next receipt names as previous."""
    for entry in reversed(book.entries):
        if entry.kind == "seal" and book.holds[entry.body["release_id"]].study == study:
            return str(entry.body["receipt_sha256"]) or GENESIS
    return GENESIS


class Ledger(Chain):
    """The ledger in `path` (``ledger.db``, with ``ledger.head`` beside it), signed by the site's release key.

    What is asked of it stands in the modules beside this one, as functions of a `site_agent.ledger.state.Book`; here
    they are bound, each to one transaction that reads or writes.

    Args:
        path: the database; `Ledger.create` makes it, once.
        signer: the site's release key.
        site: the site's id, which every anchor names.
    Raises: LedgerRefusal, if the ledger is missing, edited, truncated, restored, or another site's; StorageRefusal.

    An object keeps no connection and no copy of the entries: each call is one transaction, so threads and processes
    may share a ledger freely.

    >>> import tempfile
    >>> from shared.base.keys import SigningKey
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.create(Path(folder.name) / "ledger.db", SigningKey.generate(), site="north")
    >>> [entry.kind for entry in ledger.entries()]
    ['genesis']
    >>> folder.cleanup()
    """

    # -- what it holds
    hold = reading(Book.hold)
    holds = reading(_holds)
    entries = reading(_entries)
    last_receipt = reading(_last_receipt)
    # -- what was charged
    reserve = charge.reserve
    study_total = reading(charge.study_total)
    site_total = reading(charge.site_total)
    site_price = reading(charge.site_price)
    forecast = reading(charge.forecast)
    statement = reading(charge.statement)
    # -- what the coordinator has witnessed
    anchor_payload = reading(anchors.anchor_payload)
    anchor_envelope = reading(anchors.anchor_envelope)
    anchored = reading(anchors.anchored)
    links = reading(anchors.links)
    mark_anchored = writing(drawing.mark_anchored)
    holds_head = reading(anchors.holds_head)
    recoveries = reading(anchors.recoveries)
    recovered = reading(anchors.recovered)
    count_lost = writing(anchors.count_lost)
    note_arrived = writing(anchors.note_arrived)
    # -- whom a release touches
    persons = reading(touched.persons_of)
    taken = reading(touched.taken)
    require_same_persons = reading(touched.require_same_persons)
    require_roles_kept = reading(touched.require_roles_kept)
    still_present = reading(touched.still_present)
    require_present = reading(touched.require_present)
    confirm_persons = writing(touched.confirm_persons)
    note_persons = writing(touched.note_persons)
    persons_withdrawn = reading(touched.persons_withdrawn)
    withdrawals = reading(touched.withdrawals)
    as_written = reading(touched.as_written)
    # -- a draw, and a training round by round
    start_drawing = writing(drawing.start_drawing)
    start_training = writing(drawing.start_training)
    begin_round = writing(drawing.begin_round)
    witness_round = writing(drawing.witness_round)
    seal_round = writing(drawing.seal_round)
    consent = writing(drawing.consent)
    sealed_round = reading(drawing.sealed_round)
    end_training = writing(drawing.end_training)
    seal = writing(drawing.seal)
    recover = writing(drawing.recover)
    # -- what persons decide on a release
    show = writing(decisions.show)
    approve = writing(decisions.approve)
    reject = writing(decisions.reject)
    send_back = writing(decisions.send_back)
    commit = writing(decisions.commit)
    burn = writing(decisions.burn)
    withdraw = writing(decisions.withdraw)
    tombstone = writing(decisions.tombstone)
    # -- on a plan, on approvals in advance, on the site
    approve_plan = writing(decisions.approve_plan)
    revoke_plan = writing(decisions.revoke_plan)
    plan_revoked = reading(decisions.plan_revoked)
    approved_plan = reading(decisions.approved_plan)
    in_force = reading(decisions.in_force)
    left_study = reading(decisions.left_study)
    require_plan = reading(Book.require_plan)
    add_standing = writing(decisions.add_standing)
    revoke_standing = writing(decisions.revoke_standing)
    standing_told = writing(decisions.standing_told)
    standing = reading(decisions.standing)
    pause = writing(decisions.pause)
    resume = writing(decisions.resume)
    paused = reading(decisions.paused)
    leave = writing(decisions.leave)
    deleted = reading(decisions.deleted)

    # -- who takes part
    membership = reading(members.membership)
    note_authority = writing(members.note_authority)
    note_grant = writing(members.note_grant)
    note_leads = writing(members.note_leads)
    keys_told = writing(members.keys_told)
    change_keys = writing(members.change_keys)
    forgotten_keys = writing(members.forgotten_keys)
    snapshot_marks = reading(members.snapshot_marks)
    tell_apart = writing(members.tell_apart)
    told_apart = reading(members.told_apart)

    def folder(self, hold: Hold) -> Path:
        """Folder of a release's files."""
        return folder_of(self.path, hold)

    def tag_proof(self, study: str) -> bytes:
        """Shows that `tag` is that of `study`: the site's signature whose SHA-256 it is."""
        return tag_proof(self.tagger, self.site, study)

    def tag(self, study: str) -> str:
        """Tag that marks an entry as being about `study`; without `tag_proof` it does not reveal which study."""
        return sha256_hex(self.tag_proof(study))
