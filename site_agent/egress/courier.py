"""A site without a line: what it would ask is kept until a courier takes it, and answered from what one has brought.

It stands where the channel stands (`shared.wire.transport.Client`), below everything that decides, checks and signs:
the calls are the same messages, and the answers are verified by the same code. What has no answer yet is written down
and refused with `AwaitsCourier`; asked again after the answer has come, the same call returns it.
"""

from __future__ import annotations

import base64
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import Envelope, PublicKey, write_private
from shared.errors import AwaitsCourier, IntegrityRefusal, ReplayRefusal, StateRefusal, StorageRefusal, UnknownMethod
from shared.releases.courier import (
    TO_COORDINATOR,
    AnsweredCall,
    CarriedCall,
    CourierHeader,
    PostBox,
    SiteParcel,
    call_digest,
)
from shared.wire import messages as wire
from shared.wire.site_messages import (
    Acceptance,
    AnchorReceipt,
    Enrolment,
    LogView,
    Offered,
    OfferRequest,
    SignedDocument,
)
from shared.wire.tree_heads import said_head

if TYPE_CHECKING:
    from site_agent.ledger.book import AnchoredHead, Ledger

__all__ = ["CarriedWitness", "Courier", "TakenPostBox"]

KEPT_ANSWERS = 200
STATE_CAP = 64 << 20
UNCARRIED = {
    "Clock": "a clock's reading",
    "Limits": "the question how large a release may be",
    "NextRound": "a training in rounds",
    "UploadRound": "a training in rounds",
}
"""Methods whose answer is worth nothing once it has travelled, or that an older coordinator takes no file with."""


@dataclass(frozen=True, kw_only=True)
class TakenPostBox:
    """Answers to this site's calls that a post-box has brought.

    Args:
        number, day: of the post-box.
        answered: (method, refusal code or blank) of each call of this site that it answers.
        waiting: methods of the calls that have no answer yet.
        new: whether it was not taken before.
        heads: signed heads of the ledger that it acknowledges; `Egress.anchor` verifies and keeps each.
    """

    number: int
    day: str
    answered: tuple[tuple[str, str], ...]
    waiting: tuple[str, ...]
    new: bool
    heads: tuple[Envelope, ...] = ()


class Courier:
    """The calls and answers of one site that has no line.

    Args:
        folder: ``courier/`` of the site's folder.
        seen: gives the size of the longest log that the coordinator has shown; 0 before the first.
    """

    def __init__(self, folder: Path, *, seen: int = 0) -> None:
        self.folder, self._seen = folder, seen

    # -- as the channel ---------------------------------------------------------------------------------------------
    def call(self, name: str, request: Any, *, timeout: float) -> Any:
        """The answer that a courier has brought; else the call is written down.

        Raises: AwaitsCourier; the coordinator's refusal, once; UnknownMethod, for what no courier carries.
        """
        if name in UNCARRIED:
            raise UnknownMethod(f"{UNCARRIED[name]} must have a line", given="a courier")
        if name == "Watch" and not request.entries:
            return self._watched(request)
        if name == "Upload":
            return self._spooled(request)
        message = wire.encode(request)
        digest = call_digest(name, message)
        with self._state() as state:
            found = state["answers"].get(digest)
            if found is not None:
                if "code" in found:  # told once: asked again, it is carried again
                    state["answers"].pop(digest)
                return _answer(digest, found).reply
            if name == "Offer":
                state["offered"] = _text(message)
                return Offered(offset=0)
            self._ask(state, name, message)
        raise _awaits()

    def ask_acknowledgement(self, offer: OfferRequest) -> None:
        """Write an offer down of which no bundle is carried: of a release that is there the answer acknowledges it.

        Raises: AwaitsCourier.
        """
        with self._state() as state:
            self._ask(state, "Offer", wire.encode(offer))
        raise _awaits()

    def close(self) -> None:
        """Nothing is open."""

    def _watched(self, request: Any) -> LogView:
        """The look at the log that came with the newest post-box, with the proofs that are asked for."""
        with self._state() as state:
            view, sizes = state.get("view"), state.get("view_sizes", [])
            if view is not None:
                found: LogView = wire.decode(LogView, base64.b64decode(view))
                head = said_head(Envelope.from_bytes(found.head).payload).size if found.head else 0
                if all(size in sizes or size == head for size in request.sizes):
                    proofs = dict(zip(sizes, found.growth, strict=False))
                    growth = tuple(proofs.get(size, ()) for size in request.sizes)
                    return LogView(head=found.head, growth=growth, restored=found.restored)
            state["sizes"] = sorted({*state.get("sizes", []), *request.sizes})
        raise _awaits()

    def _spooled(self, chunks: Iterator[Any]) -> Acceptance:
        """Copy an offered bundle, chunk by chunk as it would be sent, to where a courier's file is made from."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part, digest = self.folder / f"bundle.{os.getpid()}.part", sha256()
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        named = ""
        try:
            with os.fdopen(handle, "wb") as out:
                for chunk in chunks:
                    named = chunk.bundle_sha256
                    out.write(chunk.data)
                    digest.update(chunk.data)
                out.flush()
                os.fsync(out.fileno())
            if not named or digest.hexdigest() != named:
                raise IntegrityRefusal("the sealed bundle must be the one that was approved", given="other bytes")
            os.replace(part, self.folder / f"{named}.zip")
        except OSError as error:
            raise StorageRefusal("the bundle must be kept for the courier", given=error.strerror or "") from None
        finally:
            part.unlink(missing_ok=True)
        with self._state() as state:
            self._ask(state, "Offer", base64.b64decode(state.pop("offered")), bundle=named)
        raise _awaits()

    def _ask(self, state: dict[str, Any], name: str, message: bytes, bundle: str = "") -> None:
        asked = {"method": name, "message": _text(message), "bundle": bundle}
        if asked not in state["asked"]:
            state["asked"].append(asked)

    # -- with the courier -------------------------------------------------------------------------------------------
    def waiting(self) -> tuple[str, ...]:
        """Methods of the calls that have no answer yet, in the order in which they were made."""
        with self._state() as state:
            return tuple(str(one["method"]) for one in state["asked"])

    def last_day(self) -> str:
        """Day of the newest post-box that was taken, ISO date, UTC; blank before the first."""
        with self._state() as state:
            return str(state.get("post_box_day", ""))

    def offers(self) -> tuple[str, ...]:
        """SHA-256 of the bundles that wait to be carried."""
        with self._state() as state:
            return tuple(str(one["bundle"]) for one in state["asked"] if one["bundle"])

    @contextmanager
    def resting(self) -> Iterator[tuple[Path, ...]]:
        """The files of what is asked and answered; until the block ends no command changes or takes away one."""
        if not self.folder.is_dir():
            yield ()
            return
        with self._state(write=False) as state:
            names = ("state.json", *(f"{one['bundle']}.zip" for one in state["asked"] if one["bundle"]))
            yield tuple(path for name in names if (path := self.folder / name).exists())

    def restored(self) -> None:
        """Begin anew after a backup was put back: calls stay, and only a post-box that is made from now on counts.

        An answer from before may say of the ledger that nothing is missing, and not know what was charged since.
        """
        with self._state() as state:
            asked, exported = state["asked"], state.get("exported", 0)
            state.clear()
            state.update(asked=asked, answers={}, exported=exported, post_box=int(time.time()))

    def drop(self, bundle: str) -> None:
        """Carry a bundle no more: it may not leave any longer."""
        with self._state() as state:
            state["asked"] = [one for one in state["asked"] if one["bundle"] != bundle]
        (self.folder / f"{bundle}.zip").unlink(missing_ok=True)

    def export(
        self,
        out: Path,
        *,
        coordinator: str,
        site: str,
        identity: tuple[str, str],
        recipient: PublicKey,
        dry_run: bool = False,
    ) -> tuple[CourierHeader, tuple[CarriedCall, ...], int]:
        """Write every call that has no answer, for the coordinator; its header, its calls, its size.

        Each file holds all that the ones before it asked and nobody has answered: one that is lost is no harm.

        Args:
            identity: certificate and key, as PEM, that would be shown over TLS.
            recipient: the coordinator's pinned key.
        Raises: StateRefusal (the file is there already), StorageRefusal.
        """
        if out.exists():
            raise StateRefusal("a courier's file must be new", given=f"{out}", next_step="Name another.")
        with self._state() as state:
            number = max(int(time.time()), int(state.get("exported", 0)) + 1)
            calls = tuple(
                CarriedCall(
                    method=one["method"],
                    message=base64.b64decode(one["message"]),
                    bundle=self.folder / f"{one['bundle']}.zip" if one["bundle"] else None,
                )
                for one in state["asked"]
            )
            sizes = {size for size in (self._seen, *state.get("sizes", [])) if size > 0}
            header = CourierHeader(to=TO_COORDINATOR, coordinator=coordinator, site=site, number=number)
            parcel = SiteParcel(header=header, certificate_pem=identity[0], seen=tuple(sorted(sizes)), calls=calls)
            if dry_run:
                return header, calls, 0
            size = parcel.write(out, key_pem=identity[1], recipient=recipient)
            state["exported"] = number
        return header, calls, size

    def take(self, box: PostBox, *, dry_run: bool = False) -> TakenPostBox:
        """Keep the answers of a post-box, which was verified when it was read. Safe to repeat.

        Raises: ReplayRefusal (an older one than the newest that was taken).
        """
        number = box.header.number
        with self._state(write=not dry_run) as state:
            newest = int(state.get("post_box", 0))
            if number < newest:
                raise ReplayRefusal(
                    "a post-box must be newer than the one that was taken last",
                    given=f"number {number}, after {newest}",
                    next_step="Nothing is lost: each holds all that the ones before it answered.",
                )
            mine = {call_digest(one["method"], base64.b64decode(one["message"])): one for one in state["asked"]}
            answered, heads = [], []
            for one in box.answers:
                if one.method == "Watch":
                    self._keep_view(state, one)
                    continue
                asked_here = mine.get(one.call)
                if asked_here is not None and asked_here["method"] == one.method:
                    answered.append((one.method, one.code))
                    if one.method == "Anchor" and not one.code:
                        asked = SignedDocument, base64.b64decode(asked_here["message"])
                        heads.append(Envelope.from_bytes(wire.decode(*asked).envelope))
                    if not _pending(one):
                        self._forget(state, mine.pop(one.call))  # what all sites are told may answer it again
                state["answers"].pop(one.call, None)
                state["answers"][one.call] = _stored_form(one)
            state["answers"] = dict(list(state["answers"].items())[-KEPT_ANSWERS:])
            state["post_box"], state["post_box_day"] = number, box.day
            waiting = tuple(str(one["method"]) for one in state["asked"])
        said: dict[str, Any] = {"number": number, "day": box.day, "new": number > newest}
        return TakenPostBox(**said, answered=tuple(answered), waiting=waiting, heads=tuple(heads))

    def _keep_view(self, state: dict[str, Any], one: AnsweredCall) -> None:
        """A look at the log; its call says the sizes that it was asked for."""
        if not one.code:
            state["view"], state["sizes"] = _text(one.message), []
            sizes = [size for size in one.call.split(",") if size.isascii() and size.isdigit() and len(size) < 20]
            state["view_sizes"] = [int(size) for size in sizes]

    def _forget(self, state: dict[str, Any], asked: Mapping[str, Any]) -> None:
        state["asked"].remove(asked)
        if asked["bundle"]:
            (self.folder / f"{asked['bundle']}.zip").unlink(missing_ok=True)

    @contextmanager
    def _state(self, *, write: bool = True) -> Iterator[dict[str, Any]]:
        """Calls and answers in ``state.json``, under a lock; written back if changed, after an exception too."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / "state.json"
        with (self.folder / "lock").open("a") as among:
            fcntl.flock(among, fcntl.LOCK_EX)
            state = parse_json(path.read_bytes(), cap=STATE_CAP) if path.exists() else {"asked": [], "answers": {}}
            before = canonical_json(state)
            try:
                yield state
            finally:
                after = canonical_json(state)
                if write and after != before:
                    write_private(path, after)


class CarriedWitness:
    """Has ledger heads witnessed by courier.

    The head with the reservation must have been acknowledged before anything is read. Those right before the draw and
    of the *drawing* entry go out with the next file: nobody could wait for a courier in the middle of a draw. So a
    folder that was copied in between could draw a second time; the coordinator witnesses one line only, and refuses
    what the other one made.

    Args:
        door: the site's connection, whose `anchor` asks the coordinator.
        ledger: the site's.
    """

    def __init__(self, door: Any, ledger: Ledger) -> None:
        self._door, self._ledger = door, ledger

    def anchor(self, envelope: Envelope) -> AnchoredHead:
        """As of `site_agent.release.site.HeadWitness`. Raises: AwaitsCourier."""
        from shared.wire.signed_messages import AnchorHead

        try:
            receipt: AnchoredHead = self._door.anchor(envelope)
            return receipt
        except AwaitsCourier:
            if any(hold.state == "reserved" for hold in self._ledger.holds()):
                raise
            shown = AnchorHead.from_bytes(envelope.payload)
            return AnchorReceipt(seq=shown.seq, head=shown.head, index=0, log_root="")


def _pending(one: AnsweredCall) -> bool:
    """True for an answer that is still to come: the lead has not accepted the site yet."""
    reply = one.reply if one.method == "Enrol" and not one.code else None
    return isinstance(reply, Enrolment) and reply.state == "pending"


def _stored_form(one: AnsweredCall) -> dict[str, str]:
    body = {"method": one.method, "message": _text(one.message), "code": one.code, "text": one.text}
    return {name: value for name, value in body.items() if value or name == "method"}


def _answer(digest: str, found: Mapping[str, str]) -> AnsweredCall:
    message = base64.b64decode(found.get("message", ""))
    return AnsweredCall(
        call=digest, method=found["method"], message=message, code=found.get("code", ""), text=found.get("text", "")
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _awaits() -> AwaitsCourier:
    return AwaitsCourier(
        "the coordinator must have answered by courier",
        given="no answer yet",
        next_step="site-agent outbox export FILE; when its post-box has come back: site-agent outbox import FILE, and "
        "run this again.",
    )
