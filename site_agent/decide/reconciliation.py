"""Comparison of this site's delivered releases with the coordinator's account, and repairs that need no decision.

A coordinator restored from a backup does not know what it accepted since then; one that hides a row denies it. The
site has three records of its own: the ledger (what was delivered, in which order), ``acknowledged.jsonl`` (the
coordinator's signatures) and ``sealed/`` (the bytes). At each contact `compare` compares the coordinator's answer with
the first two, and `settle` repairs what needs no decision: it proves the ledger's head from the coordinator's current
one, and sends again the same sealed bytes and any withdrawal that the coordinator has lost. Nothing is drawn, signed by
a person or charged, and the ledger gets no entry, unless it was put back itself and has forgotten a delivery, or that a
withdrawal was buried. Once a day `watch` fetches the log's signed head, and proof that each release of this site stands
in it as this site signed it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shared.base.canonical import canonical_json, parse_json
from shared.errors import (
    ApprovalRefusal,
    AwaitsCourier,
    LedgerRefusal,
    LockedRefusal,
    NetworkRefusal,
    Refusal,
    RoleRefusal,
    UnknownMethod,
)

if TYPE_CHECKING:
    from pathlib import Path

    from shared.wire.site_messages import Acceptance, Holding, Holdings
    from site_agent.config import SiteConfig
    from site_agent.egress import AcknowledgedReplies, Egress
    from site_agent.ledger.book import Hold, Ledger
    from site_agent.release.outbox import Outbox

__all__ = [
    "Discrepancy",
    "Settled",
    "Witnesses",
    "compare",
    "heads_forgotten",
    "last_look",
    "looked",
    "noted",
    "sentence",
    "settle",
    "unacknowledged",
    "watch",
]

MISSING, SHOWN, HIDDEN, APART, UNKEPT, UNPROVEN, FORGOTTEN = (
    "missing at the coordinator",
    "withdrawn here, shown by the coordinator",
    "withdrawn by the coordinator, not here",
    "delivered by the ledger, quarantined by the coordinator",
    "its acknowledgement is not kept here",
    "not proven to stand in the coordinator's log",
    "accepted by the coordinator, not delivered by the ledger",
)
MENDED = (MISSING, SHOWN, UNKEPT, FORGOTTEN)
ARRIVED = (UNKEPT, FORGOTTEN)  # the coordinator has these: only its word is wanted
LOOK_FILE = "watch.json"


class Witnesses(Protocol):
    """The site's own records, which the coordinator's account is compared with (`site_agent.desk.Desk`)."""

    @property
    def home(self) -> Path: ...  # noqa: D102
    @property
    def config(self) -> SiteConfig: ...  # noqa: D102
    @property
    def ledger(self) -> Ledger: ...  # noqa: D102
    @property
    def outbox(self) -> Outbox: ...  # noqa: D102
    @property
    def replies(self) -> AcknowledgedReplies | None: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Discrepancy:
    """One release of which this site and the coordinator do not say the same.

    Args:
        what: one of the sentences above.
        why: what stood in the way of mending it; blank where nothing did, or nothing was tried.
    """

    study: str
    wave: int
    release_id: str
    what: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Outcome of `settle`.

    Args:
        mended, left: what was mended, and what was not.
        proven: whether the coordinator had forgotten heads.
        awaits: what a courier carries from now on, each with the refusal that says so.
    """

    mended: tuple[Discrepancy, ...]
    left: tuple[Discrepancy, ...]
    proven: bool = False
    awaits: tuple[tuple[Discrepancy, AwaitsCourier], ...] = ()

    def require_carried(self, *, but: Collection[str] = ()) -> None:
        """Refuse while something is with the courier, except for the kinds `but`. Raises: AwaitsCourier."""
        for one, refusal in self.awaits:
            if one.what not in but:
                raise refusal


# -- comparing ------------------------------------------------------------------------------------------------------
def compare(desk: Witnesses, study: str, answer: Holdings) -> tuple[Discrepancy, ...]:
    """Every release of a study of which the coordinator says something else than this site knows, in ledger order."""
    from site_agent.decide.recovery import own_releases

    there = {one.release_id: one for one in answer.holdings}
    kept = _stored_acceptances(desk)
    out = []
    acknowledged = {hold.release_id for hold in _settled(desk, study)}
    signed = {one.release_id: one for one, _ in own_releases(desk.ledger, study, answer)}
    for hold in desk.ledger.holds(study):
        held = there.get(hold.release_id)
        if hold.release_id not in acknowledged:
            what = _overlooked(hold, signed[hold.release_id]) if hold.release_id in signed else ""
        elif hold.state == "withdrawn":
            # What the coordinator never had, or does not have any more, is taken back all the same.
            what = SHOWN if held is not None and held.state == "accepted" else ""
        elif held is None:
            what = MISSING
        elif held.state != "accepted":
            what = HIDDEN if held.state == "withdrawn" else APART
        else:
            what = UNKEPT if kept is not None and hold.bundle_sha256 not in kept else ""
        if what:
            out.append(Discrepancy(study=study, wave=hold.wave, release_id=hold.release_id, what=what))
    return tuple(out)


def _overlooked(hold: Hold, held: Holding) -> str:
    """What differs where the ledger says that a release never arrived, and the coordinator shows it as signed here."""
    from site_agent.ledger.holds import undelivered

    given = hold.withdrawal
    if given is not None:
        # Of what may have left, the coordinator is told apart from this (`taking_back.bury`).
        waits = hold.left and not given.settled
        return SHOWN if held.state == "accepted" and given.bundle_sha256 and not waits else ""
    # What stands approved is sent again, and acknowledged then.
    forgotten = undelivered(hold) and hold.state != "approved" and held.log_index is not None
    return FORGOTTEN if forgotten else ""


def unacknowledged(desk: Witnesses) -> tuple[Discrepancy, ...]:
    """Deliveries that the ledger notes and whose signed acknowledgement is not kept here: cut, or deleted."""
    kept = _stored_acceptances(desk)
    if kept is None:
        return ()
    return tuple(
        Discrepancy(study=hold.study, wave=hold.wave, release_id=hold.release_id, what=UNKEPT)
        for hold in _settled(desk)
        if hold.state == "delivered" and hold.bundle_sha256 not in kept
    )


def _settled(desk: Witnesses, study: str | None = None) -> list[Hold]:
    """Holds that the coordinator has acknowledged: delivered, or withdrawn since and buried there."""
    gone = desk.ledger.deleted()
    return [
        hold
        for hold in desk.ledger.holds(study)
        if (hold.bundle_sha256 or (hold.withdrawal and hold.withdrawal.bundle_sha256))
        and (
            # What was deleted on leaving cannot be sent again; its withdrawal can: the ledger alone signs it anew.
            (hold.state == "delivered" and hold.release_id not in gone)
            or (hold.state == "withdrawn" and hold.withdrawal and hold.withdrawal.settled)
        )
    ]


def _stored_acceptances(desk: Witnesses) -> Mapping[str, Acceptance] | None:
    """The last acceptance kept of each bundle, by digest; None where no coordinator's key is pinned."""
    replies = desk.replies
    return None if replies is None else {one.bundle_sha256: one for one in replies.acceptances()}


# -- mending --------------------------------------------------------------------------------------------------------
def settle(desk: Witnesses, egress: Egress, study: str, answer: Holdings) -> Settled:
    """Mend what the coordinator has forgotten of a study, free of charge; the caller holds the folder.

    The log is looked at first: whatever is sent by a log of another history has left before its answer is refused.

    Raises: NetworkRefusal, IntegrityRefusal (another history of the log), LedgerRefusal (this ledger is an old copy).
    """
    _require_one_history(desk, egress)
    proven = _prove_heads(desk, egress, answer)
    found = compare(desk, study, answer)
    missing = [one for one in found if one.what == MISSING]
    kept = _stored_acceptances(desk) or {}
    known = [kept[digest] for one in missing if (digest := desk.ledger.hold(one.release_id).bundle_sha256) in kept]
    if missing:
        # An older coordinator takes what it does not have as new; one that ended this site's part takes nothing more.
        with suppress(UnknownMethod, RoleRefusal):
            egress.report_gap(study, known)
    mended, left, awaits = list[Discrepancy](), list[Discrepancy](), list[tuple[Discrepancy, AwaitsCourier]]()
    # Withdrawals first, the last release's first: under ``frozen`` a later one holds the rows of an earlier one.
    for one in [one for one in reversed(found) if one.what == SHOWN] + [one for one in found if one.what != SHOWN]:
        if one.what not in MENDED:
            left.append(one)
            continue
        try:
            _mend(desk, egress, one, answer)
            mended.append(one)
        except AwaitsCourier as refusal:  # what is asked of one holds up no other
            awaits.append((one, refusal))
        except (NetworkRefusal, LockedRefusal):
            raise
        except Refusal as refusal:
            left.append(Discrepancy(**{**asdict(one), "why": str(refusal)}))
    before = last_look(desk).get("left", {})
    if before.get(study, []) != [asdict(one) for one in left]:
        _note(desk, left={**before, study: [asdict(one) for one in left]})
    return Settled(mended=tuple(mended), left=tuple(left), proven=proven, awaits=tuple(awaits))


def _require_one_history(desk: Witnesses, egress: Egress) -> None:
    """Refuse unless the log as it is now goes on from what was seen. Raises: IntegrityRefusal, NetworkRefusal."""
    replies = desk.replies
    if replies is not None:
        with suppress(AwaitsCourier):  # the next post-box brings the look; what is known here counts until then
            egress.watch()
        replies.require_one_history()


def _mend(desk: Witnesses, egress: Egress, one: Discrepancy, answer: Holdings) -> None:
    from site_agent.decide.recovery import own_releases

    outbox, ledger = desk.outbox, desk.ledger
    if one.what == SHOWN:
        stone = egress.withdraw(outbox.tombstone(one.release_id))
        ledger.tombstone(ledger.hold(one.release_id), log_index=stone.log_index)
        return
    if one.what == FORGOTTEN:
        places = {held.release_id: held.log_index for held, _ in own_releases(ledger, one.study, answer)}
        ledger.note_arrived({one.release_id: int(places[one.release_id] or 0)})
        kept = _stored_acceptances(desk)
        if kept is None or ledger.hold(one.release_id).bundle_sha256 in {"", *kept}:
            return
    hold = ledger.hold(one.release_id)
    if len(hold.approvals) < hold.approvals_needed:
        # The ledger was put back to before the approval: by its own word none of the bytes may leave.
        if one.what == MISSING:
            raise ApprovalRefusal(
                f"{hold.approvals_needed} registered approver(s) must have approved what is sent again",
                given="a ledger that was put back to before its approval",
                next_step="It cannot be sent again, and stays charged. Tell the study lead.",
            )
        egress.acceptance(outbox.statement(one.release_id))
        return
    approved = ledger.approved_plan(one.study)
    if one.what == MISSING and approved is not None and ledger.plan_revoked(one.study, approved[0]):
        # A newer plan forbids nothing here: the release was delivered under its own.
        ledger.require_plan(hold)
    egress.send(
        outbox.envelope(one.release_id), outbox.bundle(one.release_id), standing=outbox.standing(one.release_id)
    )


def heads_forgotten(desk: Witnesses, answer: Holdings) -> bool:
    """True if the coordinator's last head of this ledger is an earlier one than it has acknowledged."""
    last, heads = answer.anchored, _acknowledged_heads(desk)
    acknowledged = max((entry.seq for entry in desk.ledger.entries() if entry.hash in heads), default=0)
    if (last.seq if last is not None else 0) >= max(acknowledged, desk.ledger.anchored()):
        return False
    # An old copy of the ledger here is said by whoever would draw or send by it.
    return last is None or desk.ledger.holds_head(last)


def _acknowledged_heads(desk: Witnesses) -> dict[str, int]:
    """Every head of the ledger that the coordinator has acknowledged, with its entry's number."""
    replies = desk.replies
    said = () if replies is None else replies.replies()
    return {str(one["head"]): int(one["seq"]) for one in said if one["kind"] == "AnchorReceipt"}


def _prove_heads(desk: Witnesses, egress: Egress, answer: Holdings) -> bool:
    """Prove the ledger's head from the one that the coordinator has now, where it has forgotten later ones."""
    last = answer.anchored
    if not heads_forgotten(desk, answer):
        return False
    # What it has forgotten it cannot hold an old copy of the ledger to: its signatures that are kept here can.
    entries = desk.ledger.entries()
    here = {entry.hash for entry in entries}
    counted = max((int(entry.body["seq"]) for entry in entries if entry.kind == "recovered"), default=0)
    gone = [seq for head, seq in _acknowledged_heads(desk).items() if head not in here and seq > counted]
    if gone:
        raise LedgerRefusal(
            f"the ledger must hold entry {max(gone)}, which the coordinator has acknowledged",
            given="an old copy, at a coordinator that was put back as well",
            next_step="Restore a later copy of ledger.db and ledger.head. Nothing is sent; call the study lead.",
        )
    egress.anchor(desk.ledger.anchor_envelope(after=0 if last is None else last.seq))
    return True


# -- the log --------------------------------------------------------------------------------------------------------
def watch(desk: Witnesses, egress: Egress, answers: Mapping[str, Holdings], today: dt.date) -> tuple[Discrepancy, ...]:
    """Look at the log: it only grew, and each own release stands in it as this site signed it. Kept for `last_look`.

    Args:
        answers: the coordinator's word of each study: it names the places in the log.
    Returns: the releases that are not proven; nothing where the coordinator shows no log.
    Raises: IntegrityRefusal (another history), SignatureRefusal, NetworkRefusal.
    """
    replies = desk.replies
    if replies is None:
        return ()
    checked = egress.watch()
    if checked is None:
        return ()
    found = tuple(one for study, answer in answers.items() for one in _unproven(desk, egress, study, answer))
    for study in answers:  # the coordinator hears that this site has looked, and what it misses is known there already
        egress.report_gap(study, ())
    # Every one, also where this site had seen no more of the log: what is revoked makes no entry of it.
    restored = replies.restored()
    if restored > last_look(desk).get("restored", 0):
        _tell_again(desk, egress)
    seen = {"size": checked.head.size, "root": checked.head.root, "restored": restored}
    _note(desk, day=today.isoformat(), unproven=[asdict(one) for one in found], **seen)
    return found


def _unproven(desk: Witnesses, egress: Egress, study: str, answer: Holdings) -> list[Discrepancy]:
    """Accepted releases whose entry the coordinator cannot prove, or that is not what this site signed."""
    from shared.wire.tree_heads import release_leaf

    places = {one.release_id: one.log_index for one in answer.holdings if one.log_index is not None}
    holds = [hold for hold in _settled(desk, study) if hold.state == "delivered" and hold.release_id in places]
    if not holds:
        return []
    try:
        found = egress.logged([places[hold.release_id] for hold in holds])
    except (UnknownMethod, NetworkRefusal):
        raise
    except Refusal:  # it says that these entries are another site's
        found = None
    proven = {}
    if found is not None:
        checked, entries = found
        proven = {one.index: one.entry for one in entries if checked.holds(one)}
    out = []
    for hold in holds:
        leaf = release_leaf(
            desk.outbox.statement(hold.release_id),
            hold.bundle_sha256,
            desk.config.site,
            desk.outbox.standing(hold.release_id),
        )
        if proven.get(places[hold.release_id]) != canonical_json(leaf):
            out.append(Discrepancy(study=study, wave=hold.wave, release_id=hold.release_id, what=UNPROVEN))
    return out


def _tell_again(desk: Witnesses, egress: Egress) -> None:
    """Tell a restored coordinator once more of every standing approval that is over; safe to repeat."""
    for noted in desk.ledger.standing():
        if noted.revocation is not None and noted.acknowledged:
            egress.revoke_standing(noted.revocation)


def _note(desk: Witnesses, **seen: Any) -> None:
    from shared.base.keys import write_private

    write_private(desk.home / LOOK_FILE, canonical_json({**last_look(desk), **seen}))


def noted(desk: Witnesses) -> tuple[Discrepancy, ...]:
    """Differences known without a call: deliveries whose acknowledgement is missing, and those found last time."""
    said = last_look(desk)
    found = {one.release_id: one for one in unacknowledged(desk)}
    with suppress(TypeError, KeyError, AttributeError):  # a file that somebody edited says nothing
        left = [one for ones in said.get("left", {}).values() for one in ones]
        found |= {one["release_id"]: Discrepancy(**one) for one in (*left, *said.get("unproven", ()))}
    return tuple(found.values())


def looked(desk: Witnesses, today: dt.date) -> bool:
    """True if the log was looked at today, has no unexplained fork, and has not said since that it was put back."""
    last, replies = last_look(desk), desk.replies
    if replies is not None and replies.forks():
        return False
    restored = 0 if replies is None else replies.restored()
    return last.get("day") == today.isoformat() and last.get("restored") == restored


def last_look(desk: Witnesses) -> dict[str, Any]:
    """Day, size and root of the last look at the log, what it did not prove, and what comparing left; may be empty."""
    path = desk.home / LOOK_FILE
    try:
        said = parse_json(path.read_bytes())
    except (OSError, Refusal):
        return {}
    return said if isinstance(said, dict) else {}


def sentence(found: Iterable[Discrepancy]) -> str:
    """Discrepancies in one line: what, and which waves."""
    by_what: dict[str, list[Discrepancy]] = {}
    for one in found:
        by_what.setdefault(one.what, []).append(one)
    return "; ".join(
        f"{len(ones)} release{'s' if len(ones) > 1 else ''} of {', '.join(sorted({one.study for one in ones}))} "
        f"(wave {', '.join(str(one.wave) for one in ones)}): {what}"
        for what, ones in by_what.items()
    )
