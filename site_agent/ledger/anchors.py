"""Heads of a ledger witnessed by the coordinator: proof that the head grew, and charges of a ledger restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared.base.canonical import canonical_json
from shared.base.chain import head_fingerprint
from shared.base.keys import Envelope
from shared.errors import StateRefusal
from shared.wire.signed_messages import ANCHOR_TYPE, AnchorHead
from site_agent.ledger.entries import AnchoredHead, agrees, last_witnessed, settled_by
from site_agent.ledger.holds import Lost, price_of, require_word, undelivered
from site_agent.ledger.state import Book

__all__ = [
    "anchor_envelope",
    "anchor_payload",
    "anchored",
    "count_lost",
    "holds_head",
    "links",
    "note_arrived",
    "recovered",
    "recoveries",
]

_LOST_BYTES = 1 << 18


def anchor_payload(book: Book) -> bytes:
    """The current head for the coordinator, with the links since the last anchor that the site knows of."""
    return anchor_envelope(book).payload


def anchor_envelope(book: Book, after: int | None = None) -> Envelope:
    """The current head and its proof, signed: what `Egress.anchor` sends.

    Args:
        after: prove it from this entry on; by default from the last anchored one.
    Raises: TooLarge, when more entries than `shared.base.chain.LINKS_CAP` lie between.
    """
    last = book.entries[-1]
    known = last_witnessed(book.entries) if after is None else after
    links = tuple(entry.link for entry in book.entries[known:])
    head = AnchorHead(site=book.site, seq=last.seq, head=last.hash, after=known, links=links)
    return Envelope.sign(ANCHOR_TYPE, head.to_bytes(), [book.signer])


def anchored(book: Book) -> int:
    """Number of the last entry that the coordinator has acknowledged, as far as this ledger knows; 0 for none."""
    return last_witnessed(book.entries)


def links(book: Book, after: int) -> list[str]:
    """Links of the entries after number `after`: with `extend_head`, proof that a head grew from an old one."""
    return [entry.link for entry in book.entries[after:]]


def holds_head(book: Book, receipt: AnchoredHead) -> bool:
    """True if a witnessed head is one of this ledger's entries: no witnessed entry is missing here."""
    return agrees(book.entries, receipt)


def recoveries(book: Book) -> int:
    """Number of times this ledger has counted lost charges."""
    return sum(entry.kind == "recovered" for entry in book.entries)


def recovered(book: Book, receipt: AnchoredHead) -> str:
    """Fingerprint of the head after `count_lost` settled this witnessed head; blank if it never did."""
    return settled_by(book.entries, receipt)


def count_lost(book: Book, receipt: AnchoredHead, lost: Sequence[Lost], *, accepted: Mapping[str, int]) -> str:
    """Charge what the coordinator has witnessed and this ledger has forgotten, at once; and once per `receipt`.

    No cap is asked: what may have been spent is spent, and a study beyond its cap releases nothing more. Every
    open hold is closed with its charge, because nobody can tell whether its draw was already made.

    Args:
        receipt: the head that the coordinator has witnessed.
        lost: the charges.
        accepted: place in the coordinator's log of each release, by id, that is known here as well and that the
            coordinator has accepted.
    Returns: fingerprint of the head after it, for the study lead to allow.
    Raises: StateRefusal, when nothing is missing; UnknownEvent; ParameterError; LedgerRefusal; StorageRefusal.
    """
    if agrees(book.entries, receipt):
        raise StateRefusal("a ledger to recover must lack what was witnessed", given="all of it")
    done = settled_by(book.entries, receipt)
    if done:
        return done
    known = {name: at for name, at in accepted.items() if name in book.holds}
    # What would outgrow an entry stands in several, and each is of one study; the last one, which every study
    # may see, says that this head is settled.
    named = dict.fromkeys(one.study for one in lost)
    bodies = [body for study in named for body in _lost_bodies([one for one in lost if one.study == study])]
    open_holds = [h.release_id for h in book.holds.values() if h.phase in ("held", "sealed")]
    body = {
        "seq": receipt.seq,
        "head": receipt.head,
        "after": last_witnessed(book.entries),
        "prices": [],
        "charges": [],
        "accepted": {name: at for name, at in known.items() if book.holds[name].state != "delivered"},
        "burnt": [name for name in open_holds if name not in known],
    }
    for more in bodies:
        book.append("lost", more)
    book.append("recovered", body)
    return head_fingerprint(book.entries[-1].hash)


def note_arrived(book: Book, places: Mapping[str, int]) -> None:
    """Note deliveries that this ledger has forgotten, each with its charge; what is delivered or taken back stays so.

    Args:
        places: place in the log of each release, by id, that the coordinator shows as this site signed it.
    Raises: LedgerRefusal; StorageRefusal.
    """
    unknown = {name: at for name, at in places.items() if name in book.holds and undelivered(book.holds[name])}
    for study in dict.fromkeys(book.holds[name].study for name in unknown):
        of_study = {name: at for name, at in unknown.items() if book.holds[name].study == study}
        book.append("lost", {"study": study, "prices": [], "charges": [], "accepted": of_study})


def _lost_bodies(lost: Sequence[Lost]) -> list[dict[str, Any]]:
    """Lost charges as bodies of entries, each far below what is read back; a price stands once in each."""
    bodies: list[dict[str, Any]] = []
    size = _LOST_BYTES
    for one in lost:
        require_word(one.study, "study")
        if one.release_id:
            require_word(one.release_id, "release_id")
        charge = {
            "study": one.study,
            "plan_hash": one.plan_hash,
            "cap_epsilon": one.cap_epsilon,
            "uncovered": list(one.uncovered),
            "count": one.count,
            "wave": one.wave,
            "release_id": one.release_id,
            "log_index": one.log_index,
        }
        price = price_of(one.event, one.delta, one.others)
        if size >= _LOST_BYTES:
            bodies.append({"prices": [], "charges": []})
            size = 0
        body = bodies[-1]
        if price not in body["prices"]:
            body["prices"].append(price)
            size += len(canonical_json(price))
        body["charges"].append({"price": body["prices"].index(price), **charge})
        size += len(canonical_json(charge))
    return bodies or [{"prices": [], "charges": []}]
