"""Charges derived from the ledger's entries: the persons that each may touch, and its state.

A `Hold` is one charge. Nothing here is stored: `fold` derives every hold from the entries, one by one, and refuses an
entry that is invalid at its place. The persons whom a release touches are recorded three times, each time more exactly:
at *reserve* it is everybody, or the persons no earlier release has touched; the *drawing* entry binds the list of
pseudonyms by its digest and count, before any noise exists; the *seal* entry binds the files that map each released
row to its person, and the flow that drew it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from shared.base.chain import LINKS_CAP
from shared.base.keys import PublicKey
from shared.errors import ParameterError, StateRefusal
from shared.mechanisms.latent_noise.plan import CARRIED, CHARGED_EARLIER, FITTED_ON_THE_ROWS, TRAINED_APART
from shared.privacy.stated import CHARGED_BEFORE, FLOW
from site_agent.ledger.entries import Curve, Entry, orders

__all__ = [
    "LOST_CAP",
    "Approval",
    "Hold",
    "Lost",
    "Round",
    "SignedWithdrawal",
    "Touches",
    "curve_of",
    "fold",
    "folder_of",
    "price_of",
    "require_word",
    "undelivered",
]

LOST_CAP = LINKS_CAP
"""Most charges in one `Lost`: a number that came over the wire must not decide how many holds are made."""
Touches = Literal["everybody", "new"]
State = Literal[
    "reserved",
    "anchored",
    "drawing",
    "training",
    "sealed",
    "held",
    "sent_back",
    "approved",
    "delivered",
    "trained",
    "withdrawn",
    "burnt",
    "rejected",
]
_VARIED = {"event": "no_guarantee"}
_CONSENTED = 2
"""The first of the rounds that follow a delivery for which approvers must have signed."""
Phase = Literal["held", "sealed", "delivered", "burnt"]

# Each kind of entry: the states it may follow, and the state it leads to.
_MOVES: dict[str, tuple[frozenset[State], State]] = {
    "anchor": (frozenset({"reserved", "anchored"}), "anchored"),
    # The reservation of a wave that has to wait, taken over by a later wave.
    "carry": (frozenset({"reserved", "anchored"}), "anchored"),
    # A person's word that a table without earlier persons holds others, for this wave alone.
    "persons_confirmed": (frozenset({"reserved", "anchored"}), "anchored"),
    "drawing": (frozenset({"anchored"}), "drawing"),
    # A training that the sites run together: charged whole, then round by round, each begun once and answered once.
    "train": (frozenset({"anchored"}), "training"),
    # Also what follows a delivery under the same charge.
    **dict.fromkeys(("round", "witnessed", "answer"), (frozenset({"training", "delivered"}), "training")),
    "sum_consented": (frozenset({"delivered"}), "delivered"),
    "trained": (frozenset({"training"}), "trained"),
    "seal": (frozenset({"drawing"}), "sealed"),
    "hold": (frozenset({"sealed", "held", "sent_back"}), "held"),
    "send_back": (frozenset({"held", "sent_back"}), "sent_back"),
    # Also of what stands approved in advance, when the coordinator would not take that: a person signs in its place.
    "approve": (frozenset({"held", "sent_back", "approved"}), "held"),
    "commit": (frozenset({"approved"}), "delivered"),
    # Once approved the bytes may already have left, so there is nothing left to reject; burning says only that the
    # site gives up on it, for instance after the coordinator quarantined it.
    "reject": (frozenset({"sealed", "held", "sent_back"}), "rejected"),
    "burn": (
        frozenset({"reserved", "anchored", "drawing", "training", "sealed", "held", "sent_back", "approved"}),
        "burnt",
    ),
    # A person takes it back, wherever it is; what may have left needs a tombstone at the coordinator as well.
    "withdraw": (
        frozenset({"reserved", "anchored", "training", "sealed", "held", "sent_back", "approved", "delivered"}),
        "burnt",
    ),
    "tombstone": (frozenset({"withdrawn", "burnt"}), "withdrawn"),
}


@dataclass(frozen=True, kw_only=True)
class Approval:
    """One approver's signature over the release statement, or the standing approval that stands in for it.

    Args:
        signature: empty where a standing approval was used.
        standing: digest of its document; blank where the person signed these bytes.
    """

    name: str
    key: PublicKey
    signature: bytes
    standing: str = ""


@dataclass(frozen=True, kw_only=True)
class SignedWithdrawal:
    """One approver's signature under the taking back of a release.

    Args:
        reason_code: from the fixed list that the coordinator is told.
        bundle_sha256: of the bytes that were taken back, by which the coordinator knows them; blank for none.
        settled: whether the coordinator has been told, or never had the release.
        log_index: place of the tombstone in the coordinator's log; None where it never had the release.
    """

    name: str
    key: PublicKey
    signature: bytes
    reason_code: str
    bundle_sha256: str = ""
    settled: bool = False
    log_index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a training, or of what follows a delivery, that was begun here.

    Args:
        asked: digest of the question (`shared.wire.rounds.RoundOrder.digest`), the global weights with it.
        answer: SHA-256 of the answer's content, once it is sealed; blank where the round was begun and nothing sealed.
        seq: number of the entry that began it.
        witnessed: whether the coordinator has acknowledged a head with that entry: before it nothing is sealed.
    """

    asked: str
    answer: str = ""
    seq: int = 0
    witnessed: bool = False


@dataclass(frozen=True, kw_only=True)
class Hold:
    """One charge and what became of it.

    Args:
        event: canonical form of the privacy event that was charged.
        epsilon: exact ε of this release alone, at `delta`; None where it has no guarantee, and is in no total. So it
            is too where an entry of an earlier version says 0 of rows from a flow alone, fitted on their records.
        epsilon_pure: its pure ε, or None.
        rdp: its Rényi curve on the fixed orders, ∞ where undefined.
        uncovered: what the guarantee leaves out, in words.
        touches: against whom it counts: everybody, or the persons that no earlier release of the study has touched.
        day: UTC date of the reservation, for people.
        reserved_seq: number of the entry that charged it.
        closed_seq: number of the entry that burnt or rejected it; 0 while it is neither.
        confirmed: the wave for which a person has signed that its table, from which earlier persons have vanished, is
            of others; 0 for none.
        merged: earlier waves whose reservation this was, until it was carried over to `wave`.
        drawn: whether noise was, or may have been, drawn.
        persons_sha256: digest of ``population.json``, the pseudonyms it touches; blank while, or where, unknown.
        persons: how many those are; None while, or where, unknown.
        trained_sha256: digest of ``trained.json``, the pseudonyms that it was fitted on and does not release (posture
            ``holdout``); blank elsewhere, and in ledgers from before it was bound.
        space: by what persons were told apart (`site_agent.records.table.person_space`); blank while, or where,
            unknown.
        sealed_head: hash of the seal entry; the release statement names it.
        files: SHA-256 of each site-only file that was sealed with the bundle.
        documents: SHA-256 of each site-only document that the approver was shown.
        author: the approver who had it made, or ``agent`` where the calendar did.
        author_apart: whether the author must not approve it.
        left: whether it was ever approved, so that its bytes may have left.
        withdrawal: who took it back, and why.
        rounds: of a training that the sites run together, how many were charged; 0 for a release. A training has no
            wave: it is charged for everybody in the table, whatever is released later.
        follow: rounds that follow its delivery under the same charge, each of which goes on from the one before it:
            1 is drawn as the release is, those from 2 on need the consent of as many approvers as the release did.
        begun: of `rounds` or `follow`, those that were begun, by number.
        consent: digest of the question of round 2 to which they consented; blank where nobody has.
        consents: who did.
        snapshot: keyed hash of the table that trains; blank while unknown.
        flow: SHA-256 of the flow that came of it; blank before.
    """

    study: str
    plan_hash: str
    wave: int
    release_id: str
    event: Mapping[str, Any]
    delta: float
    cap_epsilon: float
    epsilon: float | None
    epsilon_pure: float | None
    rdp: tuple[float, ...] = field(repr=False)
    uncovered: tuple[str, ...]
    day: str
    reserved_seq: int
    touches: Touches = "everybody"
    closed_seq: int = 0
    confirmed: int = 0
    confirmed_table: str = ""
    merged: tuple[int, ...] = ()
    drawn: bool = False
    persons_sha256: str = ""
    persons: int | None = None
    trained_sha256: str = ""
    space: str = ""
    state: State = "reserved"
    bundle_sha256: str = ""
    bundle_bytes: int = 0
    receipt_sha256: str = ""
    plan_version: int = 0
    recipient: str = ""
    approvals_needed: int = 1
    sealed_head: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)
    approvals: tuple[Approval, ...] = ()
    reason: str = ""
    log_index: int | None = None
    author: str = "agent"
    author_apart: bool = False
    left: bool = False
    withdrawal: SignedWithdrawal | None = None
    rounds: int = 0
    follow: int = 0
    begun: Mapping[int, Round] = field(default_factory=dict)
    consent: str = ""
    consents: tuple[str, ...] = ()
    snapshot: str = ""
    flow: str = ""

    @property
    def given(self) -> str:
        """Condition under which its ε holds, or what is unbounded if it has no ε (`shared.privacy.stated`)."""
        if any(line.startswith((TRAINED_APART, CHARGED_EARLIER)) for line in self.uncovered):
            return CHARGED_BEFORE
        local = any(line.startswith(FITTED_ON_THE_ROWS) for line in self.uncovered)
        if not local or dict(self.event) == _VARIED:
            return ""
        carried = [found[1] for line in self.uncovered if (found := CARRIED.match(line))]
        return f"{FLOW} and the true {carried[0]}" if carried else FLOW

    @property
    def given_in_total(self) -> str:
        """Condition under which its share of the study's total ε holds; blank if that includes its flow's training."""
        return "" if any(line.startswith(CHARGED_EARLIER) for line in self.uncovered) else self.given

    @property
    def phase(self) -> Phase:
        """The state as a bank statement tells it."""
        if self.state in ("reserved", "anchored", "drawing", "training"):
            return "held"
        if self.state in ("burnt", "rejected"):
            return "burnt"
        return "delivered" if self.state in ("delivered", "trained", "withdrawn") else "sealed"

    @property
    def may_be_out(self) -> bool:
        """True if its rows have left the site, may have, or still may: burning an approved release recalls nothing."""
        return bool(self.bundle_sha256) and (self.phase != "burnt" or self.left)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Charges that a restored ledger no longer knows, at the full price of `event`.

    Args:
        others: events that each may have been instead, where nobody knows; no order is then charged less than any.
        count: how many; at most `LOST_CAP`, further ones stand as another `Lost`.
        wave: of a release that the coordinator holds; 0 where nobody knows.
        release_id: the same; blank where nobody knows, or where `count` is not 1.
        log_index: place of its acceptance in the coordinator's log; None unless it was accepted.
    """

    study: str
    plan_hash: str
    event: Mapping[str, Any]
    delta: float
    cap_epsilon: float
    uncovered: tuple[str, ...] = ()
    others: tuple[Mapping[str, Any], ...] = ()
    count: int = 1
    wave: int = 0
    release_id: str = ""
    log_index: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= LOST_CAP or (self.release_id and self.count != 1):
            raise ParameterError(
                f"a lost charge must be counted at most {LOST_CAP} times, and a named one once", given=f"{self.count}"
            )


def price_of(event: Mapping[str, Any], delta: float, others: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Price of an event, in the form of a ledger entry. Raises: UnknownEvent.

    Args:
        others: further events, if it is unknown which one took place: the price is then the largest Rényi ε at each
            order, the largest pure ε if all have one, and the largest ε at `delta`, which bound each of them. An event
            without a guarantee adds nothing to the first two, and makes the ε null.
    """
    import numpy as np

    from shared.privacy import accountant as privacy

    events = [privacy.from_canonical(one) for one in (event, *others)]
    # What a total holds of it: nothing of a release without a guarantee, and all of what it may have been instead.
    summed = [one for one in events if privacy.guaranteed(one)]
    pure = [privacy.pure_epsilon(one) for one in summed]
    curve = np.max([np.zeros(privacy.ORDERS.size), *(privacy.rdp(one) for one in summed)], axis=0)
    price = {
        "event": events[0].to_canonical(),
        "delta": delta,
        "epsilon": _stated(max(privacy.epsilon(one, delta) for one in events)),
        "epsilon_pure": None if None in pure else max((one for one in pure if one is not None), default=0.0),
        "rdp": [float(value) if math.isfinite(value) else None for value in curve],
    }
    return {**price, "others": [one.to_canonical() for one in events[1:]]} if others else price


def _stated(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def curve_of(price: Mapping[str, Any]) -> tuple[float, ...]:
    """The Rényi curve of a price (`price_of`), ∞ where undefined."""
    curve = price["rdp"]
    return curve.orders if isinstance(curve, Curve) else _curve(tuple(curve))


_curve = lru_cache(maxsize=64)(orders)


def fold(holds: dict[str, Hold], entry: Entry) -> None:
    """Bring `holds` from before `entry` to after it. Raises: StateRefusal, if the entry may not stand here."""
    body = entry.body
    if entry.kind == "genesis":
        if entry.seq != 1:
            raise StateRefusal("a ledger must have one genesis", given=f"another at {entry.seq}")
        return
    if entry.kind == "reserve":
        holds[body["release_id"]] = _new_hold(body, entry, release_id=body["release_id"])
        return
    if entry.kind in ("lost", "recovered"):
        _fold_lost(holds, entry)
        return
    if entry.kind not in _MOVES:
        raise StateRefusal("an entry must be of a known kind", given=repr(entry.kind))
    hold = holds[body["release_id"]]
    allowed, following = _MOVES[entry.kind]
    if hold.state not in allowed:
        raise StateRefusal(
            f"a release must be {' or '.join(sorted(allowed))} for the step '{entry.kind}'",
            given=hold.state,
            next_step="See site-agent outbox show." if hold.bundle_sha256 else "See site-agent budget.",
        )
    if (hold.rounds and entry.kind in ("carry", "persons_confirmed", "drawing")) or (
        entry.kind == "train" and not hold.rounds
    ):
        raise StateRefusal("a training must be drawn round by round, and a release at once", given=entry.kind)
    change: dict[str, Any] = {"state": following}
    if following in ("burnt", "rejected") and not hold.closed_seq:
        change["closed_seq"] = entry.seq
    change |= _CHANGES[entry.kind](hold, entry)
    if "begun" in change and hold.state == "delivered" and not hold.follow:
        raise StateRefusal("rounds must follow a release whose charge has them", given="one without")
    made = object.__new__(Hold)  # `replace` asks each field by its name: a third of the time of opening a long ledger
    made.__dict__.update(hold.__dict__, **change)
    holds[hold.release_id] = _honest(made)


# -- what each kind of entry changes of its hold -------------------------------------------------------------------
def _carry(hold: Hold, entry: Entry) -> dict[str, Any]:
    body = entry.body
    terms = {name: body[name] for name in ("wave", "plan_hash", "cap_epsilon")}
    return terms | {"uncovered": tuple(body["uncovered"]), "merged": (*hold.merged, hold.wave), "state": hold.state}


def _confirm(hold: Hold, entry: Entry) -> dict[str, Any]:
    body = entry.body
    if body["wave"] != hold.wave:
        raise StateRefusal("persons must be confirmed for the wave that is reserved", given=f"wave {body['wave']}")
    table = str(body.get("kept", {}).get("snapshot", ""))
    return {"confirmed": hold.wave, "confirmed_table": table, "state": hold.state}


def _draw(hold: Hold, entry: Entry) -> dict[str, Any]:
    body, record = entry.body, entry.body.get("kept", entry.body)
    bound = {name: body.get(name, "") for name in ("persons_sha256", "trained_sha256", "space")}
    return bound | {"drawn": True, "persons": record.get("persons"), "snapshot": record.get("snapshot", "")}


def _seal(hold: Hold, entry: Entry) -> dict[str, Any]:
    body = entry.body
    said = {name: body[name] for name in ("bundle_sha256", "bundle_bytes", "receipt_sha256", "plan_version")}
    said |= {"recipient": body["recipient"], "approvals_needed": body["approvals"], "sealed_head": entry.hash}
    said |= {"files": body.get("files", {}), "author": body.get("author", "agent")}
    return said | {"author_apart": body.get("author_apart", False)}


def _approve(hold: Hold, entry: Entry) -> dict[str, Any]:
    body = entry.body
    given = Approval(
        name=body["name"],
        key=PublicKey(body["key"]),
        signature=bytes.fromhex(body["signature"]),
        standing=body.get("standing", ""),
    )
    if hold.state == "approved" and (given.standing or not any(one.standing for one in hold.approvals)):
        raise StateRefusal("an approved release must need no further approval", given=hold.state)
    # A person takes the place of a standing approval: of their own, or of one that was enough and did not serve.
    over = not given.standing and hold.state == "approved"
    remaining = (one for one in hold.approvals if not (one.standing and (over or one.name == given.name)))
    approvals = (*remaining, given)
    enough = {"state": "approved", "left": True} if len(approvals) >= hold.approvals_needed else {}
    return {"approvals": approvals, "reason": "", **enough}


def _withdraw(hold: Hold, entry: Entry) -> dict[str, Any]:
    body = entry.body
    signed = SignedWithdrawal(
        name=body["by"],
        key=PublicKey(body["key"]),
        signature=bytes.fromhex(body["signature"]),
        reason_code=body["reason_code"],
        bundle_sha256=body.get("bundle_sha256", ""),
    )
    seen = {"state": "withdrawn"} if hold.state == "delivered" else {}
    return {"reason": body["reason"], "withdrawal": signed, **seen}


def _tombstone(hold: Hold, entry: Entry) -> dict[str, Any]:
    if hold.withdrawal is None:
        raise StateRefusal("a tombstone must follow a withdrawal", given="none")
    index = entry.body["log_index"]
    never = {"state": hold.state} if index is None else {}
    return {"withdrawal": replace(hold.withdrawal, settled=True, log_index=index), **never}


_CHANGES: dict[str, Callable[[Hold, Entry], dict[str, Any]]] = {
    "anchor": lambda hold, entry: {},
    "carry": _carry,
    "persons_confirmed": _confirm,
    "drawing": _draw,
    "train": _draw,
    **dict.fromkeys(
        ("round", "witnessed", "answer"), lambda hold, entry: {"begun": _begun(hold, entry), "state": hold.state}
    ),
    "sum_consented": lambda hold, entry: _consented(hold, entry),
    "trained": lambda hold, entry: {"flow": entry.body["flow_sha256"]},
    "seal": _seal,
    "hold": lambda hold, entry: {"documents": entry.body["documents"], "approvals": (), "reason": ""},
    "send_back": lambda hold, entry: {"reason": entry.body["reason"], "approvals": ()},
    "approve": _approve,
    "commit": lambda hold, entry: {"log_index": entry.body["log_index"]},
    "reject": lambda hold, entry: {"reason": entry.body["reason"], "approvals": ()},
    "burn": lambda hold, entry: {"reason": entry.body["reason"]},
    "withdraw": _withdraw,
    "tombstone": _tombstone,
}


def _begun(hold: Hold, entry: Entry) -> dict[int, Round]:
    return {**hold.begun, entry.body["number"]: _rounded(hold, entry)}


def _rounded(hold: Hold, entry: Entry) -> Round:
    """A round after its entry: begun in its turn and within what was charged, then witnessed, then sealed once."""
    body = entry.body
    number, known = body["number"], hold.begun.get(body["number"])
    if entry.kind == "witnessed":
        if known is None or known.answer or body["seq"] < known.seq:
            raise StateRefusal("a round must be witnessed after it was begun, and before its answer", given=f"{number}")
        return replace(known, witnessed=True)
    if entry.kind == "answer":
        if known is None or known.answer or not known.witnessed:
            raise StateRefusal("a round must be begun and witnessed before its answer, and have one", given=f"{number}")
        return replace(known, answer=body["answer_sha256"])
    if number <= max(hold.begun, default=0):
        raise StateRefusal("rounds must be begun once each, and in turn", given=f"round {number}")
    most = hold.rounds or hold.follow
    if number > most:
        raise StateRefusal(f"there must be at most the {most} rounds that were charged", given=f"{number}")
    if hold.follow and number > 1 and not hold.begun.get(number - 1, Round(asked="")).answer:
        raise StateRefusal(
            f"round {number} must follow an answer to round {number - 1}",
            given="none",
            next_step="This site is no part of the sum any more. Its charge stays.",
        )
    if hold.follow and number == _CONSENTED:
        agreed = len(hold.consents) if hold.consent == body["asked"] else 0
        if agreed < hold.approvals_needed:
            raise StateRefusal(
                f"{hold.approvals_needed} approvers must consent to this very question",
                given=f"{agreed}",
                next_step=f"An approver reads site-agent consent {hold.study} --as NAME --dry-run.",
            )
    return Round(asked=body["asked"], seq=entry.seq)


def _consented(hold: Hold, entry: Entry) -> dict[str, Any]:
    """Another approver's consent to the question of round 2; those to another question lapse."""
    body = entry.body
    before = hold.consents if hold.consent == body["asked"] else ()
    if not hold.follow or _CONSENTED in hold.begun or not hold.begun.get(1, Round(asked="")).answer:
        raise StateRefusal("consent must come after round 1 is answered, and before round 2 is begun", given="another")
    if body["name"] in before:
        raise StateRefusal("different approvers must consent", given=f"{body['name']} a second time")
    return {"consent": body["asked"], "consents": (*before, body["name"])}


def _fold_lost(holds: dict[str, Hold], entry: Entry) -> None:
    body = entry.body
    for number, charge in enumerate(body["charges"]):
        at = charge["log_index"]
        made = replace(
            _new_hold({**body["prices"][charge["price"]], **charge}, entry, release_id=charge["release_id"]),
            state="burnt" if at is None else "delivered",
            log_index=at,
            drawn=True,
            left=at is not None,
            closed_seq=entry.seq if at is None else 0,
            reason="counted when the ledger was put back",
        )
        for k in range(charge["count"]):
            name = charge["release_id"] or f"recovered-{entry.seq}-{number}-{k}"
            if name in holds:
                raise StateRefusal("a lost release must be one the ledger lacks", given=name)
            holds[name] = replace(made, release_id=name)
    for name, at in body.get("accepted", {}).items():
        holds[name] = replace(_forgotten(holds[name]), state="delivered", closed_seq=0, log_index=at, left=True)
    for name in body.get("burnt", ()):
        reason = "open when the ledger was put back"
        holds[name] = replace(_forgotten(holds[name]), state="burnt", closed_seq=entry.seq, reason=reason)


def undelivered(hold: Hold) -> bool:
    """True if by these entries a release never arrived, and no person has taken it back."""
    return hold.phase != "delivered" and hold.withdrawal is None


def _forgotten(hold: Hold) -> Hold:
    """An undrawn hold of a ledger that was put back: it may have been drawn since, and nobody knows of whom."""
    return hold if hold.drawn else replace(hold, drawn=True, touches="everybody")


def _new_hold(body: Mapping[str, Any], entry: Entry, *, release_id: str) -> Hold:
    made = Hold(
        study=body["study"],
        plan_hash=body["plan_hash"],
        wave=body["wave"],
        release_id=release_id,
        event=body["event"],
        delta=body["delta"],
        cap_epsilon=body["cap_epsilon"],
        epsilon=body["epsilon"],
        epsilon_pure=body["epsilon_pure"],
        rdp=curve_of(body),
        uncovered=tuple(body["uncovered"]),
        touches=body.get("touches", "everybody"),
        day=entry.time[:10],
        reserved_seq=entry.seq,
        rounds=body.get("rounds", 0),
        follow=body.get("follow", 0),
    )
    return _honest(made)


def _honest(hold: Hold) -> Hold:
    """Without the 0 that an earlier version charged for rows from a flow alone; its curve is 0 at every order too."""
    return replace(hold, epsilon=None) if hold.epsilon == 0 and hold.given == FLOW else hold


def require_word(text: str, name: str) -> None:
    """Refuse a name that is not a plain word. Raises: ParameterError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", text):
        raise ParameterError(f"{name} must be a plain word (letters, digits, - and _)", given=repr(text)[:80])


def folder_of(ledger: Path, hold: Hold) -> Path:
    """Folder of a release's files, beside the ledger at this path."""
    # Release ids in the ledger are plain words, so that none of them can lead out of the folder.
    return ledger.parent / "sealed" / hold.release_id
