"""Calls that a courier brought from a site without a line, made here as if they had come over TLS; and the answers.

Who calls is found out from the certificate in the file, by the same rules as at the door. Each call then goes to the
same method of the same service. Making one again changes nothing, as over a line that broke before the answer: so a
post-box is written by making the calls of the site's newest file again, and is always as fresh as it can be.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.config import CoordinatorConfig
from coordinator.services.authority import Authority
from coordinator.services.collect.service import CollectionService
from coordinator.store.store import RegisteredSite, Store
from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import write_private
from shared.errors import NetworkRefusal, Refusal, StateRefusal, StorageRefusal
from shared.releases.courier import (
    TO_SITE,
    AnsweredCall,
    CarriedCall,
    CourierHeader,
    PostBox,
    SiteParcel,
    standing_calls,
)
from shared.wire import messages as wire
from shared.wire.certificates import require_issued_by
from shared.wire.clocks import utc_now
from shared.wire.message_limits import CHUNK_BYTES, SIZES_CAP
from shared.wire.site_messages import Chunk, Offered, SignedDocument, StudyRequest, WatchRequest
from shared.wire.transport import PATIENCE, Call, Peer, RetryLater, peer_of

__all__ = ["CourierDesk", "TakenParcel"]

KEPT_CAP = 64 << 20
UNCARRIED = ("Clock", "Limits", "NextRound", "UploadRound")


@dataclass(frozen=True, kw_only=True)
class TakenParcel:
    """Result of taking a site's file.

    Args:
        header: its first line.
        outcomes: (method, code of the refusal or blank) of each call.
        newest: True if the post-box answers this file from now on; False where a newer one was taken before it.
    """

    header: CourierHeader
    outcomes: tuple[tuple[str, str], ...]
    newest: bool


class CourierDesk:
    """Intake of the files that couriers bring to a coordinator, also while it serves.

    Args:
        config: the coordinator's settings.
        store: its store.
    """

    def __init__(self, config: CoordinatorConfig, store: Store) -> None:
        self._config, self._store = config, store
        self._authority = Authority.load(config.home)

    @contextmanager
    def _service(self) -> Iterator[CollectionService]:
        self._store.bundles.claim(self._authority.witness.public.hex)
        made = CollectionService(
            home=self._config.home,
            store=self._store,
            authority=self._authority,
            max_bundle=self._config.max_bundle,
            quotas=self._config.quotas,
        )
        made.start()
        try:
            yield made
        finally:
            made.close()

    def take(self, path: Path, *, dry_run: bool = False) -> TakenParcel:
        """Make the calls of a site's file, one after the other; one that is refused stops no other. Safe to repeat.

        Raises: as `SiteParcel.opened`; CertificateRefusal and TokenRefusal, as at the door. Then nothing was called.
        """
        here = self._authority
        opened = SiteParcel.opened(path, key=here.witness, coordinator=here.coordinator, room=self._config.home)
        with opened as parcel, self._service() as service:
            peer = self._admitted(service, parcel)
            if dry_run:
                return TakenParcel(
                    header=parcel.header, outcomes=tuple((one.method, "") for one in parcel.calls), newest=False
                )
            answers = [self._made(service, peer, one) for one in parcel.calls]
        kept = self._stored_body(peer.site)
        newest = parcel.header.number >= int(kept.get("number", 0))
        if newest:
            calls = [
                {"method": one.method, "message": base64.b64encode(one.message).decode(), "code": said.code}
                | ({"text": said.text} if said.code else {})
                for one, said in zip(parcel.calls, answers, strict=True)
            ]
            kept = {**kept, "number": parcel.header.number, "certificate": parcel.certificate_pem}
            self._keep(peer.site, {**kept, "seen": list(parcel.seen), "calls": calls})
        outcomes = tuple((one.method, said.code) for one, said in zip(parcel.calls, answers, strict=True))
        return TakenParcel(header=parcel.header, outcomes=outcomes, newest=newest)

    def post_box(self, site: str, out: Path, *, dry_run: bool = False) -> PostBox:
        """Write the answers for a site: to the calls of its newest file, and to those that every site makes.

        Raises: StateRefusal (no file of the site was taken, or `out` is there); CertificateRefusal (revoked).
        """
        kept = self._stored_body(site)
        if not kept.get("certificate"):
            raise StateRefusal(
                "a site's file must have been taken before there are answers for it",
                given=f"none of {site!r}",
                next_step="coordinator import FILE",
            )
        if out.exists():
            raise StateRefusal("a post-box's file must be new", given=f"{out}", next_step="Name another.")
        now = utc_now()
        number = max(int(time.time()), int(kept.get("post_box", 0)) + 1)
        with self._service() as service:
            peer = peer_of(str(kept["certificate"]).encode(), now)
            service.admit(peer)
            answers = self._answered(service, peer, kept)
        header = CourierHeader(to=TO_SITE, coordinator=self._authority.coordinator, site=site, number=number)
        box = PostBox(header=header, answers_to=int(kept["number"]), day=now.date().isoformat(), answers=answers)
        if not dry_run:
            box.write(out, key=self._authority.witness)
            self._keep(site, {**kept, "post_box": number})
        return box

    def _answered(self, service: CollectionService, peer: Peer, kept: dict[str, Any]) -> tuple[AnsweredCall, ...]:
        answers = []
        for one in kept["calls"]:
            call = CarriedCall(method=one["method"], message=base64.b64decode(one["message"]))
            said = self._made(service, peer, call)
            if call.method == "Offer" and not said.code and said.reply.acceptance is None:
                if not one["code"]:
                    continue  # its bytes are not here: the site will send them again
                said = AnsweredCall(call=call.digest, method=call.method, code=one["code"], text=one["text"])
            answers.append(said)
        if peer.role != "site":
            return (*answers, *self._plans(peer.site))
        known = self._registered(peer.site)
        studies = () if known is None else known.studies
        answers += [self._made(service, peer, one) for one in standing_calls(studies)]
        seen = {size for size in kept["seen"] if size <= self._store.entries()}
        for said in answers:
            reply = None if said.code else said.reply
            reply = reply.acceptance if isinstance(reply, Offered) else reply
            reply = getattr(reply, "anchored", None) or reply
            index = getattr(reply, "index", getattr(reply, "log_index", None))
            seen |= set() if index is None else {index + 1}
        sizes = sorted(seen)[-SIZES_CAP:]
        look = self._made(
            service, peer, CarriedCall(method="Watch", message=wire.encode(WatchRequest(sizes=tuple(sizes))))
        )
        called = ",".join(map(str, sizes))
        return (
            *answers,
            AnsweredCall(call=called, method="Watch", message=look.message, code=look.code, text=look.text),
        )

    def _plans(self, site: str) -> list[AnsweredCall]:
        """The plans of a site that has just been accepted; it shows its certificate with its next file."""
        known = self._registered(site)
        plans = []
        for study in known.studies if known is not None and known.state == "accepted" else ():
            call = CarriedCall(method="FetchPlan", message=wire.encode(StudyRequest(study=study)))
            document = SignedDocument(envelope=self._store.plan(study).envelope.to_bytes())
            plans.append(AnsweredCall(call=call.digest, method=call.method, message=wire.encode(document)))
        return plans

    def _registered(self, site: str) -> RegisteredSite | None:
        return next((one for one in self._store.sites() if one.site == site), None)

    def _admitted(self, service: CollectionService, parcel: SiteParcel) -> Peer:
        """Calling site, authenticated by its certificate. Raises: CertificateRefusal, TokenRefusal, ReplayRefusal."""
        here = self._authority
        peer = peer_of(parcel.certificate_pem.encode(), utc_now())
        require_issued_by(parcel.certificate_pem, [*here.before, here.ca_pem])
        parcel.header.require(to="coordinator", coordinator=here.coordinator, site=peer.site)
        service.admit(peer)
        return peer

    def _made(self, service: CollectionService, peer: Peer, call: CarriedCall) -> AnsweredCall:
        """One call, as the door would have it made."""
        digest, method = call.digest, call.method
        try:
            if call.method in UNCARRIED:
                raise NetworkRefusal("this call must come over a line", given="a courier")
            reply = self._patiently(lambda: service.handlers[call.method](Call(peer=peer), call.request))
            if call.bundle is not None and isinstance(reply, Offered) and reply.acceptance is None:
                reply = Offered(acceptance=self._patiently(lambda: _uploaded(service, peer, call, reply.offset)))
            return AnsweredCall(call=digest, method=method, message=wire.encode(reply))
        except StorageRefusal:  # this machine's own trouble: nothing is known about the call yet
            raise
        except Refusal as refusal:
            return AnsweredCall(call=digest, method=method, code=refusal.code, text=str(refusal))

    def _patiently(self, work: Any) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return work()
            except RetryLater as busy:
                if time.monotonic() > until:
                    raise busy.refusal from None
            time.sleep(0.1)

    # -- what is kept -------------------------------------------------------------------------------------------------
    def _path(self, site: str) -> Path:
        return self._config.home / "courier" / f"{site}.json"

    def _stored_body(self, site: str) -> dict[str, Any]:
        path = self._path(site) if site.replace("-", "").replace("_", "").isalnum() else None
        if path is None or not path.exists():
            return {}
        found: dict[str, Any] = parse_json(path.read_bytes(), cap=KEPT_CAP)
        return found

    def _keep(self, site: str, body: dict[str, Any]) -> None:
        self._path(site).parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._path(site), canonical_json(body))


def _uploaded(service: CollectionService, peer: Peer, call: CarriedCall, offset: int) -> Any:
    """Send an offered bundle from where the service has it; what it answers at the end."""
    assert call.bundle is not None
    from shared.base.keys import Envelope
    from shared.releases.statement import Statement

    digest = Statement.from_bytes(Envelope.from_bytes(call.request.envelope).payload).bundle_sha256
    total = call.bundle.stat().st_size
    place = min(offset, max(total - 1, 0)) // CHUNK_BYTES * CHUNK_BYTES
    with call.bundle.open("rb") as file:
        file.seek(place)
        first = Chunk(bundle_sha256=digest, offset=place, data=file.read(CHUNK_BYTES))
        steps = service.handlers["Upload"](Call(peer=peer), first)
        try:
            next(steps)
            while True:
                place = file.tell()
                data = file.read(CHUNK_BYTES)
                steps.send(Chunk(bundle_sha256=digest, offset=place, data=data) if data else None)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()
