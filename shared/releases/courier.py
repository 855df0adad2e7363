"""A file that a courier carries where a site has no line: the calls it would make, or the coordinator's answers.

One container for both ways. Its first line is plain JSON and says for whom it is; then come a signed list and, one
after the other, the bytes that the list names by their SHA-256. To the coordinator the rest is encrypted to its pinned
key with age (https://age-encryption.org/v1), and the list is signed with the key of the certificate that
the site would show over TLS. Back to the site nothing is encrypted, and the list is signed by the pinned key.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from shared.base.archive import recipient_of
from shared.base.at_rest import private_key
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import (
    IntegrityRefusal,
    Refusal,
    ReplayRefusal,
    SchemaRefusal,
    SignatureRefusal,
    StorageRefusal,
    TooLarge,
    refusal_from_code,
)
from shared.plans.invitation import certificate_of, no_certificate
from shared.wire import messages as wire
from shared.wire.messages import COLLECTION
from shared.wire.site_messages import AuthoritiesRequest, MembershipRequest, StudyRequest

__all__ = ["AnsweredCall", "CarriedCall", "CourierHeader", "PostBox", "SiteParcel", "read_header", "standing_calls"]

FORMAT = "tributary-courier/1"
CALLS_TYPE = "application/vnd.tributary.courier-calls+json"
ANSWERS_TYPE = "application/vnd.tributary.courier-answers+json"
TO_COORDINATOR, TO_SITE = "coordinator", "site"
LINE_CAP = 1 << 20
CALL_CAP = 4 << 20
CALLS_CAP = 256
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class CourierHeader:
    """First line of a file, in clear: whoever carries it sees from whom and for whom it is, and no more.

    Args:
        to: ``coordinator`` or ``site``.
        coordinator, site: their ids.
        number: grows with each file of one sender.
    """

    to: str
    coordinator: str
    site: str
    number: int

    def to_bytes(self) -> bytes:
        """One line of canonical JSON."""
        return canonical_json({"format": FORMAT, **self.__dict__}) + b"\n"

    def require(self, *, to: str, coordinator: str, site: str = "") -> None:
        """Raises: ReplayRefusal, for a file to somebody else."""
        for what, mine, given in (
            ("go to this side", to, self.to),
            ("be of this coordinator", coordinator, self.coordinator),
            ("be of this site", site or self.site, self.site),
        ):
            if mine != given:
                raise ReplayRefusal(
                    f"a courier's file must {what} ({mine})",
                    given=given,
                    next_step="Nothing was taken. Carry it to where its first line says.",
                )


@dataclass(frozen=True, kw_only=True)
class CarriedCall:
    """One call of a site: the method, its message as it would cross the wire, and with an offer its bundle.

    Args:
        method: one of `shared.wire.messages.COLLECTION` that is not a stream.
        message: the encoded request.
        bundle: file of the offered bundle; None where there is none.
    """

    method: str
    message: bytes = field(repr=False)
    bundle: Path | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of method and message: by it an answer finds its call."""
        return call_digest(self.method, self.message)

    @property
    def request(self) -> Any:
        """The message. Raises: SchemaRefusal."""
        return wire.decode(COLLECTION[self.method].request, self.message)


@dataclass(frozen=True, kw_only=True)
class AnsweredCall:
    """Coordinator's answer to one call: a message, or the refusal that an online call would have received.

    Args:
        call: digest of the call (`CarriedCall.digest`).
        message: the encoded reply; blank for a refusal.
        code, text: of the refusal.
    """

    call: str
    method: str
    message: bytes = field(default=b"", repr=False)
    code: str = ""
    text: str = ""

    @property
    def reply(self) -> Any:
        """The reply. Raises: the coordinator's refusal, SchemaRefusal."""
        if self.code:
            raise refusal_from_code(self.code, "".join(one if one.isprintable() else " " for one in self.text[:2000]))
        return wire.decode(COLLECTION[self.method].reply, self.message)


def call_digest(method: str, message: bytes) -> str:
    """SHA-256 of method and message."""
    return sha256_hex(method.encode() + b"\n" + message)


def standing_calls(studies: Sequence[str]) -> list[CarriedCall]:
    """Calls that every post-box answers unasked: plans and holdings of the studies, membership, authorities."""
    asked: list[tuple[str, Any]] = [("Membership", MembershipRequest()), ("Authorities", AuthoritiesRequest())]
    for study in studies:
        asked += [("FetchPlan", StudyRequest(study=study)), ("Status", StudyRequest(study=study))]
    return [CarriedCall(method=method, message=wire.encode(request)) for method, request in asked]


@dataclass(frozen=True, kw_only=True)
class SiteParcel:
    """A site's calls, for its coordinator.

    Args:
        certificate_pem: the certificate that the site, or an invitation, would show over TLS.
        seen: sizes of the coordinator's log from which the site wants to be shown that it only grew.
        calls: in the order in which they are to be made.
    """

    header: CourierHeader
    certificate_pem: str = field(repr=False)
    seen: tuple[int, ...] = ()
    calls: tuple[CarriedCall, ...] = ()

    def write(self, out: Path, *, key_pem: str, recipient: PublicKey) -> int:
        """Write it, whole or not at all; its size.

        Args:
            key_pem: the certificate's private key.
            recipient: the coordinator's pinned key.
        Raises: StorageRefusal.
        """
        listed = [
            {"method": one.method, "sha256": sha256_hex(one.message), "bytes": len(one.message), **_bundle(one.bundle)}
            for one in self.calls
        ]
        names = {"coordinator": self.header.coordinator, "site": self.header.site, "number": self.header.number}
        said = canonical_json({**names, "seen": list(self.seen), "calls": listed})
        key = private_key(key_pem.encode(), "tls.pem")
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SignatureRefusal("the key of a site's certificate must be of an elliptic curve", given="another")
        signature = key.sign(Envelope.encoding(CALLS_TYPE, said), ec.ECDSA(hashes.SHA256()))
        first = {"certificate": self.certificate_pem, "calls": said.decode(), "signature": _text(signature)}
        try:
            with tempfile.TemporaryFile(dir=out.parent) as plain:
                plain.write(canonical_json(first) + b"\n")
                for one in self.calls:
                    plain.write(one.message)
                    if one.bundle is not None:
                        with one.bundle.open("rb") as file:
                            shutil.copyfileobj(file, plain, BLOCK)
                plain.seek(0)
                return _written(out, self.header, plain, recipient)
        except OSError as error:
            raise _no_disk(error) from None

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, key: SigningKey, coordinator: str, room: Path) -> Iterator[SiteParcel]:
        """Read a site's file; its bundles lie in a folder of `room` until the block ends.

        Args:
            key: the coordinator's key, to which it was encrypted.
            room: a folder with as much free space as the file is long.
        Raises: ReplayRefusal (for somebody else), IntegrityRefusal (altered, cut), SignatureRefusal, SchemaRefusal,
            TooLarge. Whose the certificate is, and whether it counts, is for the caller to find out.
        """
        with path.open("rb") as file, tempfile.TemporaryDirectory(dir=room, prefix="courier-") as name:
            header = read_header(file)
            header.require(to=TO_COORDINATOR, coordinator=coordinator)
            with tempfile.TemporaryFile(dir=name) as plain:
                _decrypt(file, plain, key)
                plain.seek(0)
                yield _opened(header, plain, Path(name))


_CALL = {"method", "sha256", "bytes"}
_CALL_NAMES = (_CALL, _CALL | {"bundle_sha256", "bundle_bytes"})
_ANSWERED = ({"call", "method", "sha256", "bytes"}, {"call", "method", "code", "text"})
_CARRIED = [name for name, method in COLLECTION.items() if not method.stream]


def _opened(header: CourierHeader, plain: IO[bytes], room: Path) -> SiteParcel:
    first = _line(plain, {"certificate", "calls", "signature"})
    said = str(first["calls"]).encode()
    try:
        public = certificate_of(str(first["certificate"])).public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError
        message = Envelope.encoding(CALLS_TYPE, said)
        public.verify(base64.b64decode(str(first["signature"])), message, ec.ECDSA(hashes.SHA256()))
    except no_certificate():
        raise SignatureRefusal(
            "a courier's file must be signed with the key of the certificate in it", given="another signature"
        ) from None
    body = _listed(said, {"coordinator", "site", "number", "seen", "calls"}, header)
    calls = []
    for place, one in enumerate(_list(body["calls"])):
        if not isinstance(one, dict) or set(one) not in _CALL_NAMES:
            raise SchemaRefusal("a call in a courier's file must have method, sha256 and bytes", given="another form")
        if one["method"] not in _CARRIED:
            raise SchemaRefusal("a courier's file must name methods that a site may call", given="another")
        message = _part(plain, one["sha256"], one["bytes"])
        bundle = None
        if "bundle_sha256" in one:
            bundle = room / f"{place}.zip"
            with bundle.open("xb") as out:
                _copied(plain, one["bundle_sha256"], one["bundle_bytes"], out)
        calls.append(CarriedCall(method=one["method"], message=message, bundle=bundle))
    _at_end(plain)
    seen = tuple(int(size) for size in _list(body["seen"]) if type(size) is int and size > 0)
    certificate = str(first["certificate"])
    return SiteParcel(header=header, certificate_pem=certificate, seen=seen, calls=tuple(calls))


@dataclass(frozen=True, kw_only=True)
class PostBox:
    """The coordinator's answers to one site.

    Args:
        answers_to: number of the newest of the site's files that had been taken; 0 for none.
        day: on which it was written, ISO date, UTC.
        answers: to the calls of that file, and to the standing ones.
    """

    header: CourierHeader
    answers_to: int
    day: str
    answers: tuple[AnsweredCall, ...] = ()

    def write(self, out: Path, *, key: SigningKey) -> int:
        """Write it, signed by the coordinator's key, whole or not at all; its size. Raises: StorageRefusal."""
        listed = [
            {"call": one.call, "method": one.method, "code": one.code, "text": one.text}
            if one.code
            else {"call": one.call, "method": one.method, "sha256": sha256_hex(one.message), "bytes": len(one.message)}
            for one in self.answers
        ]
        names = {"coordinator": self.header.coordinator, "site": self.header.site, "number": self.header.number}
        said = {**names, "answers_to": self.answers_to, "day": self.day, "answers": listed}
        first = Envelope.sign(ANSWERS_TYPE, canonical_json(said), [key]).to_bytes()
        parts = b"".join(one.message for one in self.answers if not one.code)
        return _written(out, self.header, io.BytesIO(first + b"\n" + parts), None)

    @classmethod
    def read(cls, path: Path, *, key: PublicKey, coordinator: str, site: str) -> PostBox:
        """Read the coordinator's file.

        Args:
            key: the coordinator's pinned key.
        Raises: ReplayRefusal (for somebody else), SignatureRefusal, IntegrityRefusal (altered, cut), SchemaRefusal.
        """
        with path.open("rb") as file:
            header = read_header(file)
            header.require(to=TO_SITE, coordinator=coordinator, site=site)
            line = file.readline(CALL_CAP)
            if not line.endswith(b"\n"):
                raise _not_whole()
            said = Envelope.from_bytes(line[:-1]).require(ANSWERS_TYPE, {key.key_id: key})
            body = _listed(said, {"coordinator", "site", "number", "answers_to", "day", "answers"}, header)
            answers = []
            for one in _list(body["answers"]):
                if not _is_answer(one):
                    raise SchemaRefusal("a post-box must answer methods that a site may call", given="another form")
                names = {"call": one["call"], "method": one["method"]}
                if "code" in one:
                    answers.append(AnsweredCall(**names, code=one["code"], text=one["text"]))
                else:
                    answers.append(AnsweredCall(**names, message=_part(file, one["sha256"], one["bytes"])))
            _at_end(file)
        day, number = body["day"], body["answers_to"]
        if not isinstance(day, str) or type(number) is not int:
            raise SchemaRefusal("a post-box must name its day, and the file that it answers", given="another form")
        return cls(header=header, answers_to=number, day=day, answers=tuple(answers))


def read_header(file: IO[bytes]) -> CourierHeader:
    """The first line of a courier's file. Raises: SchemaRefusal."""
    line = file.readline(LINE_CAP)
    try:
        body = parse_json(line, cap=LINE_CAP)
        names = set(CourierHeader.__dataclass_fields__)
        if body.pop("format") != FORMAT or set(body) != names or type(body["number"]) is not int:
            raise ValueError
        return CourierHeader(**body)
    except (Refusal, ValueError, TypeError, KeyError, AttributeError):
        raise SchemaRefusal(
            f"a courier's file must begin with its line of {FORMAT}",
            given="another",
            next_step="Give what site-agent outbox export or coordinator post-box wrote.",
        ) from None


# -- parts ----------------------------------------------------------------------------------------------------------
def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bundle(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    with path.open("rb") as file:
        return {"bundle_sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bundle_bytes": path.stat().st_size}


def _written(out: Path, header: CourierHeader, plain: IO[bytes], recipient: PublicKey | None) -> int:
    import pyrage

    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("xb") as file:
            part.chmod(0o600)
            file.write(header.to_bytes())
            if recipient is None:
                shutil.copyfileobj(plain, file, BLOCK)
            else:
                pyrage.encrypt_io(plain, file, [recipient_of(recipient)])
            size = file.tell()
        part.rename(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _no_disk(error) from None
    return size


def _decrypt(file: IO[bytes], plain: IO[bytes], key: SigningKey) -> None:
    import pyrage

    try:
        pyrage.decrypt_io(file, plain, [pyrage.ssh.Identity.from_buffer(key.openssh())])
    except (pyrage.DecryptError, OSError, ValueError):
        raise _not_whole() from None


def _line(file: IO[bytes], names: set[str]) -> Mapping[str, Any]:
    line = file.readline(CALL_CAP)
    if not line.endswith(b"\n"):
        raise _not_whole()
    return _named(line[:-1], names)


def _named(data: bytes, names: set[str]) -> Mapping[str, Any]:
    body = parse_json(data, cap=CALL_CAP)
    if not isinstance(body, dict) or set(body) != names:
        raise SchemaRefusal(f"a courier's list must have {', '.join(sorted(names))}", given="another form")
    return body


def _listed(said: bytes, names: set[str], header: CourierHeader) -> Mapping[str, Any]:
    body = _named(said, names)
    if any(body[name] != getattr(header, name) for name in ("coordinator", "site", "number")):
        raise _not_whole()
    return body


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > CALLS_CAP:
        raise SchemaRefusal(f"a courier's file must have at most {CALLS_CAP} parts", given="another form")
    return value


def _is_answer(one: Any) -> bool:
    """True for an answer in a post-box's list; size and digest are held against its bytes as these are read."""
    if not isinstance(one, dict) or set(one) not in _ANSWERED:
        return False
    return all(isinstance(one[name], str) for name in set(one) - {"bytes"}) and one["method"] in COLLECTION


def _part(file: IO[bytes], digest: Any, size: Any) -> bytes:
    if type(size) is not int or not 0 <= size <= CALL_CAP:
        raise TooLarge(f"a message in a courier's file must have at most {CALL_CAP} bytes")
    out = io.BytesIO()
    _copied(file, digest, size, out)
    return out.getvalue()


def _copied(file: IO[bytes], digest: Any, size: Any, out: IO[bytes]) -> None:
    if type(size) is not int or size < 0:
        raise _not_whole()
    whole, left = hashlib.sha256(), size
    while left:
        block = file.read(min(left, BLOCK))
        if not block:
            raise _not_whole()
        whole.update(block)
        out.write(block)
        left -= len(block)
    if whole.hexdigest() != digest:
        raise _not_whole()


def _at_end(file: IO[bytes]) -> None:
    if file.read(1):
        raise _not_whole()


def _not_whole() -> IntegrityRefusal:
    return IntegrityRefusal(
        "a courier's file must arrive whole and as it was written",
        given="other bytes",
        next_step="Nothing of it was taken. Have it copied or written again.",
    )


def _no_disk(error: OSError) -> StorageRefusal:
    return StorageRefusal(
        "a courier's file must be writable where it is wanted",
        given=error.strerror or "an error",
        next_step="Name another place, or a new file.",
    )
