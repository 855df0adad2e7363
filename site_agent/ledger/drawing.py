"""The steps of a draw: anchored, begun once, its persons bound, sealed; of a training, and of a sum, round by round."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shared.base.failpoints import reach
from shared.base.keys import SigningKey
from shared.errors import IntegrityRefusal, ParameterError, ReplayRefusal, RoundsRefusal, StateRefusal
from shared.wire.rounds import step_of
from site_agent.ledger.entries import AnchoredHead, require_receipt
from site_agent.ledger.files import (
    broken,
    private_folder,
    require_digest,
    require_settled,
    storage_refusal,
    write_list,
)
from site_agent.ledger.holds import Hold, folder_of
from site_agent.ledger.persons import LISTS, require_new, require_roles_kept, require_same_persons, taken
from site_agent.ledger.state import Book

__all__ = [
    "SealTerms",
    "begin_round",
    "consent",
    "end_training",
    "mark_anchored",
    "recover",
    "require_same_bundle",
    "seal",
    "seal_round",
    "sealed_round",
    "start_drawing",
    "start_training",
    "witness_round",
]


def mark_anchored(book: Book, hold: Hold, receipt: AnchoredHead) -> Hold:
    """Note that the coordinator has acknowledged a head that includes this reservation.

    Raises: LedgerRefusal, if the acknowledged head is not this ledger's, or is older than the reservation.
    """
    require_receipt(book.entries, receipt)
    if receipt.seq < book.hold(hold.release_id).reserved_seq:
        raise broken("the anchored head must include the reservation", f"entry {receipt.seq}")
    body = {"seq": receipt.seq, "head": receipt.head, "index": receipt.index}
    return book.move(hold.release_id, "anchor", body)


def start_drawing(
    book: Book,
    hold: Hold,
    persons: Collection[str] | None = None,
    *,
    space: str = "",
    trained: Collection[str] | None = None,
    flow_of: str = "",
) -> Hold:
    """The last step before noise is drawn; works once per hold, and binds whom the release touches.

    Args:
        persons: pseudonyms of those whose records enter the draw; None where they cannot be told apart.
        space: by what those are told apart (`site_agent.records.table.person_space`).
        trained: under ``holdout``, whom the release is fitted on: nobody where it uses a sealed flow again.
        flow_of: the release whose flow that is.
    Raises: PausedRefusal; ApprovalRefusal, PlanChanged (see `require_plan`); StateRefusal, unless the hold is
        anchored and nobody has started drawing; DifferencingRefusal, when a release of new persons holds one who
        was touched before; PolicyRefusal (see `require_roles_kept`); IntegrityRefusal (a list of persons is lost
        or was edited); StorageRefusal.
    """
    return _start(book, hold, "drawing", persons, space, {}, trained, flow_of)


def start_training(book: Book, hold: Hold, persons: Collection[str] | None, *, space: str, snapshot: str) -> Hold:
    """Bind whom a training touches, before its first round; works once per hold.

    Args:
        persons, space: as of `start_drawing`.
        snapshot: keyed hash of the table: every round is of the same one.
    Raises: as of `start_drawing`.
    """
    return _start(book, hold, "train", persons, space, {"snapshot": snapshot})


def _start(
    book: Book,
    hold: Hold,
    kind: str,
    persons: Collection[str] | None,
    space: str,
    record: Mapping[str, Any],
    trained: Collection[str] | None = None,
    flow_of: str = "",
) -> Hold:
    found = book.hold(hold.release_id)
    require_settled(book.path)
    book.require_running()
    book.require_plan(found)
    if found.state == "reserved":
        raise StateRefusal(
            "a reservation must be anchored at the coordinator before noise is drawn",
            given="no anchor",
            next_step="Restore the connection to the coordinator; the reservation is kept.",
        )
    body: dict[str, Any] = {}
    record = dict(record)
    # Another state is refused by the fold, and must not have its list written over before.
    if persons is not None and found.state == "anchored":
        require_same_persons(book, found, space, roles=trained is not None)
        if kind == "drawing":
            require_roles_kept(book, found, persons, trained or (), flow_of=flow_of)
        if found.touches == "new":
            require_new(len(taken(book, found).intersection(persons)))
        lists = {"persons": persons} | ({} if trained is None else {"trained": trained})
        body = {"space": space}
        folder = folder_of(book.path, found)
        try:
            private_folder(folder.parent)
            private_folder(folder)
        except OSError as error:
            raise storage_refusal(f"the folder of release {found.release_id}", error) from error
        for name, given in lists.items():
            path = folder / LISTS[name]
            body[f"{name}_sha256"], record[name] = write_list(path, given, f"ledger.{path.stem}")
    elif found.touches == "new" and found.state == "anchored":
        raise ParameterError("a release of new persons must name them", given="no list")
    return book.move(found.release_id, kind, body, record)


@dataclass(frozen=True, kw_only=True)
class SealTerms:
    """Facts that the seal entry binds to the charge, beside the digest of the bundle.

    Args:
        bundle_bytes, receipt_sha256, plan_version, recipient: as the release statement will state them.
        approvals: number of approvers who must sign it.
        files: SHA-256 of each file that is stored beside the bundle and stays at the site, by name.
        author: who had it made.
        author_apart: whether the author must not approve it.
    """

    bundle_bytes: int = 0
    receipt_sha256: str = ""
    plan_version: int = 0
    recipient: str = ""
    approvals: int = 1
    files: Mapping[str, str] = field(default_factory=dict)
    author: str = "agent"
    author_apart: bool = False


_PLAIN = SealTerms()


def seal(book: Book, hold: Hold, bundle_sha256: str, terms: SealTerms = _PLAIN) -> Hold:
    """Bind the bytes on disk to the charge; the same digest again changes nothing.

    Raises: StateRefusal; IntegrityRefusal, for a second digest.
    """
    require_digest(bundle_sha256, "bundle_sha256")
    found = book.hold(hold.release_id)
    if found.bundle_sha256:
        require_same_bundle(found, bundle_sha256)
        return found
    return book.move(hold.release_id, "seal", {"bundle_sha256": bundle_sha256, **asdict(terms)})


def recover(book: Book) -> list[Hold]:
    """Settle what a crash left, on start, while the agent holds the state folder.

    A hold in `drawing` is burnt, also when a whole bundle file lies on disk: nobody can tell whether those bytes
    are the only ones drawn, and a wasted charge is the cheaper mistake. Everything else resumes as it is.

    Returns: the holds that are open now.
    """
    # Remains of a process killed in `create` or while it wrote the head; nothing reads them.
    remains = [*book.path.parent.glob("ledger.db.*.part*"), book.path.with_name("ledger.head.part")]
    for part in remains:
        with contextlib.suppress(FileNotFoundError):
            reach("ledger.recover.before_part")
            part.unlink()
    for hold in list(book.holds.values()):
        if hold.state == "drawing":
            reach("ledger.recover.before_burn")
            book.move(hold.release_id, "burn", {"reason": "the agent stopped between drawing and sealing"})
    return [hold for hold in book.holds.values() if hold.phase in ("held", "sealed")]


def begin_round(book: Book, hold: Hold, number: int, order: str) -> Hold:
    """The last step before a round's noise is drawn; works once per round, and never for one beyond the charge.

    Args:
        order: digest of what is asked, the global weights with it.
    Raises: RoundsRefusal; ReplayRefusal (a round begun before, or passed over); PausedRefusal; ApprovalRefusal,
        PlanChanged (see `require_plan`); StateRefusal.
    """
    require_digest(order, "asked")
    found = book.hold(hold.release_id)
    require_settled(book.path)
    book.require_running()
    book.require_plan(found)
    if found.state == "training" or found.follow:
        most = found.rounds or found.follow
        if not 1 <= number <= most:
            raise RoundsRefusal(
                f"there must be at most the {most} rounds that were charged",
                given=f"round {number}",
                next_step="Nothing was drawn. More rounds need a new version of the plan, and a new charge.",
            )
        if number <= max(found.begun, default=0):
            raise ReplayRefusal(
                "rounds must be begun once each, and in turn",
                given=f"round {number} after round {max(found.begun)}",
                next_step="Nothing was drawn. Tell the study lead.",
            )
    return book.move(hold.release_id, "round", {"number": number, "asked": order})


def witness_round(book: Book, hold: Hold, number: int, receipt: AnchoredHead) -> Hold:
    """Note that the coordinator has acknowledged a head in which a round is begun: only then is its noise drawn.

    An older acknowledgement, however genuine, is none of this round: with it, two copies of this folder could
    both draw the round, and the coordinator would have signed nothing that shows it.

    Raises: LedgerRefusal, if the acknowledged head is not this ledger's, or is older than the round; StateRefusal.
    """
    known = book.hold(hold.release_id).begun.get(number)
    if known is None:
        raise StateRefusal("a round must be begun before it is witnessed", given=f"round {number}")
    require_receipt(book.entries, receipt)
    if receipt.seq < known.seq:
        raise broken(f"the anchored head must include the beginning of round {number}", f"entry {receipt.seq}")
    body = {"number": number, "seq": receipt.seq, "head": receipt.head, "index": receipt.index}
    return book.move(hold.release_id, "witnessed", body)


def seal_round(book: Book, hold: Hold, number: int, answer_sha256: str) -> Hold:
    """Bind a round's answer, which is on disk; from here on it may leave, and no other one may.

    Raises: StateRefusal, where the round was not begun and witnessed, or has an answer already.
    """
    require_digest(answer_sha256, "answer_sha256")
    body = {"number": number, "answer_sha256": answer_sha256}
    return book.move(hold.release_id, "answer", body)


def sealed_round(book: Book, plan_hash: str, number: int) -> str:
    """SHA-256 of the answer that was sealed for a round of a plan's training, or sum; blank where there is none.

    Args:
        number: as the question has it (`shared.wire.rounds.number_of`, of a sum).
    """
    for hold in book.holds.values():
        begun = number if hold.rounds else step_of(number)
        going_on = hold.state == ("training" if hold.rounds else "delivered")
        if hold.plan_hash == plan_hash and going_on and begun in hold.begun:
            return hold.begun[begun].answer
    return ""


def consent(book: Book, hold: Hold, *, asked: str, document_sha256: str, name: str, key: SigningKey) -> Hold:
    """An approver's signature under what a delivered release is asked to give in the rounds from the second on.

    Args:
        asked: digest of the second round's question. document_sha256: of what the approver was shown.
        key: of the approver; it signs the entry.
    Raises: StateRefusal (not the time for it, or a second time); PausedRefusal; what `require_plan` raises.
    """
    require_digest(asked, "asked")
    require_digest(document_sha256, "document_sha256")
    book.require_running()
    book.require_plan(hold)
    body = {"release_id": hold.release_id, "asked": asked, "document_sha256": document_sha256, "name": name}
    book.append("sum_consented", body, person=key)
    return book.hold(hold.release_id)


def end_training(book: Book, hold: Hold, flow_sha256: str) -> Hold:
    """Note the flow that came of a training; the same again changes nothing. Raises: StateRefusal."""
    require_digest(flow_sha256, "flow_sha256")
    found = book.hold(hold.release_id)
    if found.state == "trained" and found.flow == flow_sha256:
        return found
    return book.move(hold.release_id, "trained", {"flow_sha256": flow_sha256})


def require_same_bundle(hold: Hold, bundle_sha256: str) -> None:
    """Refuse other bytes than those that were sealed. Raises: IntegrityRefusal."""
    if hold.bundle_sha256 != bundle_sha256:
        raise IntegrityRefusal(
            f"release {hold.release_id} must have the bytes that were sealed",
            given="other bytes" if hold.bundle_sha256 else "no seal",
            next_step="A second draw is a second charge: reject this one and release again.",
        )
