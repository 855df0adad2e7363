"""Parsers of what a courier carries: a site's file at the coordinator, and a post-box at the site."""

from __future__ import annotations

import base64
import functools
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from stage.both_sides.service import Hub

from coordinator.config import CoordinatorConfig
from coordinator.services.collect import courier as desk
from coordinator.services.collect.service import CollectionService
from coordinator.store.store import Store
from faults.fuzz import Target
from shared.base.at_rest import private_key
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import Envelope
from shared.errors import Refusal, SchemaRefusal
from shared.releases import courier
from shared.wire import messages as wire
from shared.wire.signed_messages import Withdrawal
from shared.wire.site_messages import (
    EnrolRequest,
    GapReport,
    GrowthRequest,
    OfferRequest,
    SignedDocument,
    WatchRequest,
)
from shared.wire.tree_heads import TreeHead
from site_agent.egress.courier import Courier

__all__ = ["carried"]


def carried(folder: Path, hub: Hub, offered: Path, statement: Envelope) -> Iterator[Target]:
    """One target for each thing that is read of a courier's file.

    Args:
        folder: for what the targets write. hub: a coordinator that has accepted the site ``north``.
        offered, statement: a sealed bundle of that site, and its signed statement.
    """
    calls = _calls(hub, offered, statement)
    path = folder / "calls.courier"
    parcel = courier.SiteParcel(
        header=_header(hub, courier.TO_COORDINATOR),
        certificate_pem=hub.sites["north"].certificate,
        seen=(1, 3),
        calls=calls,
    )
    parcel.write(path, key_pem=hub.sites["north"].identity[0], recipient=hub.authority.witness.public)
    whole = path.read_bytes()
    first = whole.partition(b"\n")[0] + b"\n"
    with path.open("rb") as file, io.BytesIO() as out:
        courier.read_header(file)
        courier._decrypt(file, out, hub.authority.witness)
        plain = out.getvalue()
    yield Target("courier: first line", (first,), lambda data: courier.read_header(io.BytesIO(data)))
    yield Target("courier: file", (whole,), _file(folder, hub), "bytes")
    yield Target("courier: decrypted", (plain,), functools.partial(_decrypted, hub, folder), "bytes")
    yield Target("courier: list", _listed(plain), functools.partial(_resigned, hub, folder, plain))
    yield Target("courier: calls", _numbered(calls), _called(hub), "bytes")
    yield from _post_boxes(folder, hub, calls)


def _header(hub: Hub, to: str) -> courier.CourierHeader:
    return courier.CourierHeader(to=to, coordinator=hub.plan.coordinator, site="north", number=7)


def _calls(hub: Hub, offered: Path, statement: Envelope) -> tuple[courier.CarriedCall, ...]:
    """One call of each kind that a site may have carried, as an honest site makes it."""
    keys = hub.sites["north"]
    taken = Withdrawal(
        study=hub.plan.study,
        site="north",
        wave=1,
        release_id="ab" * 16,
        bundle_sha256="ab" * 32,
        reason_code="consent",
    ).sign([keys.release, keys.steward])
    asked: tuple[tuple[str, Any], ...] = (
        ("Enrol", EnrolRequest(token="t" * 43, envelope=statement.to_bytes())),
        ("Anchor", SignedDocument(envelope=hub.anchor("north", 2).to_bytes())),
        ("Withdraw", SignedDocument(envelope=taken.to_bytes())),
        ("Growth", GrowthRequest(old_size=1, size=1)),
        ("Watch", WatchRequest(sizes=(1,), entries=(0,))),
        ("ReportGap", GapReport(study=hub.plan.study, lacking=())),
    )
    made = [courier.CarriedCall(method=name, message=wire.encode(request)) for name, request in asked]
    offer = wire.encode(OfferRequest(envelope=statement.to_bytes()))
    made.append(courier.CarriedCall(method="Offer", message=offer, bundle=offered))
    return (*made, *courier.standing_calls([hub.plan.study]))


# -- at the coordinator ----------------------------------------------------------------------------------------------
def _file(folder: Path, hub: Hub) -> Callable[[bytes], object]:
    place = folder / "given.courier"

    def run(data: bytes) -> object:
        place.write_bytes(data)
        name = hub.plan.coordinator
        with courier.SiteParcel.opened(place, key=hub.authority.witness, coordinator=name, room=folder) as found:
            return found.header

    return run


def _decrypted(hub: Hub, folder: Path, data: bytes) -> object:
    """What was encrypted, by whoever has the coordinator's public key: everybody."""
    room = folder / "room"
    room.mkdir()
    try:
        found = courier._opened(_header(hub, courier.TO_COORDINATOR), io.BytesIO(data), room)
        desk.peer_of(found.certificate_pem.encode(), desk.utc_now())
        desk.require_issued_by(found.certificate_pem, [hub.authority.ca_pem])
        return found
    finally:
        shutil.rmtree(room)


def _listed(plain: bytes) -> tuple[bytes, ...]:
    return (parse_json(plain.partition(b"\n")[0], cap=courier.CALL_CAP)["calls"].encode(),)


def _resigned(hub: Hub, folder: Path, plain: bytes, said: bytes) -> object:
    """Another list of calls before the same messages, signed as the site signs."""
    key = private_key(hub.sites["north"].identity[0].encode(), "tls.pem")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    line, _, parts = plain.partition(b"\n")
    try:
        text = said.decode()
    except UnicodeDecodeError:
        raise SchemaRefusal("a text must be UTF-8") from None
    signature = key.sign(Envelope.encoding(courier.CALLS_TYPE, said), ec.ECDSA(hashes.SHA256()))
    first = {**parse_json(line, cap=courier.CALL_CAP), "calls": text, "signature": base64.b64encode(signature).decode()}
    return _decrypted(hub, folder, canonical_json(first) + b"\n" + parts)


def _numbered(calls: tuple[courier.CarriedCall, ...]) -> tuple[bytes, ...]:
    """Each message behind the place of its method."""
    methods = list(wire.COLLECTION)
    return tuple(bytes([methods.index(one.method)]) + one.message for one in calls)


def _called(hub: Hub) -> Callable[[bytes], object]:
    """Make one call at the service, as the import does; whoever is at fault, the answer is one that can be written."""

    @functools.cache
    def opened() -> tuple[desk.CourierDesk, CollectionService, Any]:
        config = CoordinatorConfig(home=hub.home, name=hub.plan.coordinator, address="hub.example.org:8443")
        store = Store.open(hub.home)
        service = CollectionService(home=hub.home, store=store, authority=hub.authority, max_bundle=1 << 20)
        made = desk.CourierDesk(config, store)
        pem = hub.sites["north"].certificate.encode()
        return made, service, desk.peer_of(pem, desk.utc_now())

    def run(data: bytes) -> object:
        methods = list(wire.COLLECTION)
        name = methods[data[0] % len(methods)] if data else methods[0]
        made, service, peer = opened()
        answered = made._made(service, peer, courier.CarriedCall(method=name, message=data[1:]))
        assert answered.code or answered.reply is not None
        return answered

    return run


# -- at the site -----------------------------------------------------------------------------------------------------
def _post_boxes(folder: Path, hub: Hub, calls: tuple[courier.CarriedCall, ...]) -> Iterator[Target]:
    key, name = hub.authority.witness, hub.plan.coordinator
    head = TreeHead(coordinator=name, size=3, root="ab" * 32, day="2026-01-05").sign(key)
    view = wire.encode(wire.COLLECTION["Watch"].reply(head=head.to_bytes(), growth=((b"a" * 32,), ())))
    growth = wire.encode(wire.COLLECTION["Growth"].reply(proof=(b"a" * 32,)))
    asked = {one.method: one for one in calls if one.method in ("Growth", "Watch", "Offer", "Anchor")}
    calls = tuple(asked.values())
    answers = (
        courier.AnsweredCall(call=asked["Growth"].digest, method="Growth", message=growth),
        courier.AnsweredCall(call=asked["Offer"].digest, method="Offer", code="E_SCHEMA", text="another form"),
        courier.AnsweredCall(call="1,3", method="Watch", message=view),
    )
    box = courier.PostBox(header=_header(hub, courier.TO_SITE), answers_to=6, day="2026-01-05", answers=answers)
    place = folder / "post-box.courier"
    box.write(place, key=key)
    whole = place.read_bytes()
    header, said, parts = _parts(whole)
    taken = _taken(folder / "site", calls)

    def read(data: bytes) -> object:
        place.write_bytes(data)
        return taken(courier.PostBox.read(place, key=key.public, coordinator=name, site="north"))

    def listed(data: bytes) -> object:
        line = Envelope.sign(courier.ANSWERS_TYPE, data, [key]).to_bytes()
        return read(header + line + b"\n" + parts)

    def message(data: bytes) -> object:
        """Another answer to one of the calls, under its true digest."""
        one = calls[data[0] % len(calls)] if data else calls[0]
        body = {"call": one.digest, "method": one.method, "sha256": sha256_hex(data[1:]), "bytes": len(data) - 1}
        body |= {"call": "1,3"} if one.method == "Watch" else {}
        return read(_signed(header, {**said, "answers": [body] if data else []}, key) + data[1:])

    kinds = [one.method for one in calls]
    seeds = (bytes([kinds.index("Growth")]) + growth, bytes([kinds.index("Watch")]) + view)
    yield Target("post-box: file", (whole,), read, "bytes")
    yield Target("post-box: list", (canonical_json(said),), listed)
    yield Target("post-box: answers", seeds, message, "bytes")


def _parts(whole: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    header, line, parts = whole.split(b"\n", 2)
    return header + b"\n", parse_json(Envelope.from_bytes(line).payload), parts


def _signed(header: bytes, said: dict[str, Any], key: Any) -> bytes:
    return header + Envelope.sign(courier.ANSWERS_TYPE, canonical_json(said), [key]).to_bytes() + b"\n"


def _taken(home: Path, calls: tuple[courier.CarriedCall, ...]) -> Callable[[courier.PostBox], object]:
    """Take a post-box where these calls wait, and have every call answered from it."""
    asked = [
        {"method": one.method, "message": base64.b64encode(one.message).decode(), "bundle": ""}
        for one in calls
        if one.method != "Watch"
    ]
    state = canonical_json({"asked": asked, "answers": {}})

    def run(box: courier.PostBox) -> object:
        home.mkdir(exist_ok=True)
        (home / "state.json").write_bytes(state)
        site = Courier(home)
        found = site.take(box)
        for one in calls:
            request = WatchRequest(sizes=(1,)) if one.method == "Watch" else one.request
            try:
                site.call(one.method, request, timeout=1.0)
            except Refusal:
                continue  # the others are answered all the same
        return found

    return run
