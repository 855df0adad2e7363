"""The channel to the coordinator: always TLS, always with a deadline. Sites show a certificate, analysts a token.

A server takes a table of methods (`shared.wire.messages`) and one function per method; a client has one call per
method. The bytes of a message are read and written by `shared.wire.messages`; here live sockets, certificates, sizes,
time, and the one mapping between our refusals and gRPC's statuses. A refusal keeps its type from one side to the
other. An unexpected
error becomes the plain code E_REFUSED: no trace, path or value of one side reaches the other.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from shared import errors
from shared.errors import (
    CertificateRefusal,
    IntegrityRefusal,
    NetworkRefusal,
    PolicyRefusal,
    Refusal,
    TooLarge,
    UsageRefusal,
    refusal_from_code,
)
from shared.wire import messages as wire

__all__ = ["SERVER_NAME", "Call", "Client", "Credentials", "Peer", "Server"]

SERVER_NAME = "tributary-coordinator"
MESSAGE_CAP = 5 << 20
TOKEN_KEY, TOKEN_FORM = "authorization", "Bearer "
TEXT_CAP = 2000
# A call without a deadline, or with a longer one, would let a stalled peer hold a thread for ever.
LONGEST_CALL = 3600.0
CODE_KEY, TEXT_KEY = "tributary-code", "tributary-message-bin"
_log = logging.getLogger("tributary.transport")

_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_CAP),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]
_SERVER_OPTIONS = [
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
    # Two servers on one port would share its connections without knowing of each other.
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What one end shows, and whom it believes. PEM text; a secret never stands in a text form of this value.

    A client without a certificate shows its `token` instead.
    """

    ca_pem: str
    cert_pem: str = ""
    key_pem: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Who is at the other end, by the certificate or token it proved to hold.

    Args:
        role: ``site`` or ``enrol``; of an analyst the token's role.
        site: the site's id; an analyst's name.
        serial: the certificate's serial number, hexadecimal; the token's id.
    """

    role: str
    site: str
    serial: str


def peer_of(certificate_pem: bytes, now: dt.datetime) -> Peer:
    """Read the peer's role from its certificate. Raises: CertificateRefusal."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound):
        raise CertificateRefusal("a client's certificate must name its site", given="none") from None
    parts = uris[0].split(":") if len(uris) == 1 else []
    if len(parts) != 3 or parts[0] != "tributary" or parts[1] not in ("site", "enrol"):
        raise CertificateRefusal("a client's certificate must name one site", given="another name")
    # TLS checked the dates when the connection was made; it may have lived on.
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise CertificateRefusal(
            "a certificate must be valid now",
            given="an expired one",
            next_step="Re-enrol the site, or set the clock.",
        )
    return Peer(role=parts[1], site=parts[2], serial=f"{certificate.serial_number:x}")


def _status(refusal: Refusal) -> Any:
    """gRPC's status for a refusal: for tools that know no better; our own side reads the code."""
    import grpc

    if isinstance(refusal, (errors.StorageRefusal, TooLarge, errors.RateRefusal)):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(refusal, errors.ReplayRefusal):
        return grpc.StatusCode.ALREADY_EXISTS
    if isinstance(refusal, errors.RoleRefusal):
        return grpc.StatusCode.PERMISSION_DENIED
    for kind, status in (
        (UsageRefusal, grpc.StatusCode.FAILED_PRECONDITION),
        (PolicyRefusal, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.ApprovalRefusal, grpc.StatusCode.FAILED_PRECONDITION),
        (NetworkRefusal, grpc.StatusCode.UNAVAILABLE),
        (CertificateRefusal, grpc.StatusCode.UNAUTHENTICATED),
        (IntegrityRefusal, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.DataRefusal, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        if isinstance(refusal, kind):
            return status
    return grpc.StatusCode.INTERNAL


@dataclass(kw_only=True)
class Call:
    """One call in the making: who calls, and what it is about (a digest, set by the handler, for the log's line).

    `left` says whether whoever called has gone, or the deadline has passed: what is still computed is for nobody.
    """

    peer: Peer
    digest: str = ""
    left: Callable[[], bool] = lambda: False


Handler = Callable[[Call, Any], Any]
Identify = Callable[[str], Peer]


class Server:
    """A running server of one service.

    Args:
        service: full name of the service.
        methods: its methods (`shared.wire.messages.COLLECTION`).
        handlers: one function per method: ``(call, request) -> reply``; what is streamed is an iterator. They may
            raise refusals; anything else becomes E_REFUSED.
        listen: ``host:port``; port 0 takes a free one, see `port`.
        credentials: gives the server's credentials; asked again at every connection, so that a renewed certificate
            is used without a restart.
        workers: threads that answer.
        identify: says whose a token is, or refuses it. With it the port asks for no client certificate; without it
            every client must show one.
        request_cap: most bytes of a message from a client; a longer one is refused before it is read.
        longest: most seconds that a call may ask for.
        waiting: most calls that may be in the making, those that wait for a thread included; None for any number.
    Raises: NetworkRefusal, when the port cannot be bound.
    """

    def __init__(
        self,
        *,
        service: str,
        methods: Mapping[str, wire.Method],
        handlers: Mapping[str, Handler],
        listen: str,
        credentials: Callable[[], Credentials],
        workers: int = 16,
        identify: Identify | None = None,
        request_cap: int = MESSAGE_CAP,
        longest: float = LONGEST_CALL,
        waiting: int | None = None,
    ) -> None:
        grpc = _grpc()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tributary")
        options = [*_OPTIONS, *_SERVER_OPTIONS, ("grpc.max_receive_message_length", request_cap)]
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=waiting)
        calls = {name: _rpc(name, method, handlers[name], identify, longest) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, calls),))
        first = credentials()
        shown = [first]

        def configuration(given: Credentials) -> Any:
            pairs = [(given.key_pem.encode(), given.cert_pem.encode())]
            return grpc.ssl_server_certificate_configuration(pairs, root_certificates=given.ca_pem.encode())

        def renewed() -> Any:
            try:
                now = credentials()
            except Exception as error:
                _log.error("the server's certificate could not be read again: %s", type(error).__name__)
                return None
            if now == shown[0]:
                return None
            shown[0] = now
            return configuration(now)

        secure = grpc.dynamic_ssl_server_credentials(
            configuration(first), renewed, require_client_authentication=identify is None
        )
        try:
            self.port: int = self._server.add_secure_port(listen, secure)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._pool.shutdown(wait=False)
            raise NetworkRefusal(
                "the server's port must be free",
                given=f"{listen}, which is in use or not ours",
                next_step="See listen.",
            )
        self._server.start()

    def stop(self, grace: float = 5.0) -> None:
        """Take no new calls, let running ones end within `grace` seconds, then close."""
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _rpc(name: str, method: wire.Method, handler: Handler, identify: Identify | None, longest: float) -> Any:
    """One method as gRPC wants it: bytes in, bytes out, refusals as statuses, one line in the log per decision."""
    import grpc

    def decided(call: Call | None, code: str) -> None:
        site, digest = (call.peer.site, call.digest[:12]) if call is not None else ("-", "")
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        _log.info("%s %s %s %s %s", now, site, name, code, digest or "-")

    def begun(context: Any) -> Call:
        left = context.time_remaining()
        if left is None or not math.isfinite(left) or left > longest:
            raise NetworkRefusal(f"a call must have a deadline of at most {longest:g} seconds")
        if identify is not None:
            return Call(peer=identify(_token(context)), left=lambda: not context.is_active())
        shown = context.auth_context().get("x509_pem_cert", [])
        if len(shown) != 1:
            raise CertificateRefusal("a client must show one certificate", given=f"{len(shown)}")
        return Call(peer=peer_of(shown[0], dt.datetime.now(dt.UTC)), left=lambda: not context.is_active())

    def end(call: Call | None, caught: Exception, context: Any) -> None:
        if isinstance(caught, Refusal):
            refusal: Refusal = caught
        elif isinstance(caught, grpc.RpcError):
            # The peer went away in the middle of its stream; nobody is left to answer.
            refusal = NetworkRefusal("the connection must last", given="a broken one")
        else:
            _log.error("unexpected %s", type(caught).__name__)
            refusal = Refusal("The coordinator could not answer", next_step="Ask the study lead to look at its log.")
        code = refusal.code
        decided(call, code)
        context.set_trailing_metadata(((CODE_KEY, code), (TEXT_KEY, str(refusal).encode()[:TEXT_CAP])))
        context.abort(_status(refusal), code)

    def answer(given: Any, context: Any) -> bytes:
        call: Call | None = None
        try:
            call = begun(context)
            if method.stream:
                request: Any = (wire.decode(method.request, data) for data in given)
            else:
                request = wire.decode(method.request, given)
            reply = wire.encode(handler(call, request))
            decided(call, "ok")
            return reply
        except Exception as caught:
            end(call, caught, context)
        raise AssertionError("abort always raises")

    def stream(given: bytes, context: Any) -> Iterator[bytes]:
        call: Call | None = None
        try:
            call = begun(context)
            for part in handler(call, wire.decode(method.request, given)):
                yield wire.encode(part)
            decided(call, "ok")
        except Exception as caught:
            end(call, caught, context)

    if method.reply_stream:
        return grpc.unary_stream_rpc_method_handler(stream)
    kind = grpc.stream_unary_rpc_method_handler if method.stream else grpc.unary_unary_rpc_method_handler
    return kind(answer)


def _token(context: Any) -> str:
    """The one bearer token that a call carries, or nothing."""
    shown = [value for key, value in context.invocation_metadata() if key == TOKEN_KEY]
    text = shown[0] if len(shown) == 1 and isinstance(shown[0], str) else ""
    return text.removeprefix(TOKEN_FORM) if text.startswith(TOKEN_FORM) else ""


class Client:
    """One end's calls to a server. Connects at the first call, and again by itself after a loss.

    Args:
        address: ``host:port``.
        server_name: name that must stand in the server's certificate.
        credentials: what we show and whom we believe.
        service: full name of the service.
        methods: its methods.
        request_cap: most bytes of a message that the server takes.
    Raises: CertificateRefusal, when our own certificate is expired or not yet valid.
    """

    def __init__(
        self,
        *,
        address: str,
        server_name: str,
        credentials: Credentials,
        service: str,
        methods: Mapping[str, wire.Method],
        request_cap: int = MESSAGE_CAP,
    ) -> None:
        grpc = _grpc()
        if credentials.cert_pem:
            _require_current(credentials.cert_pem, "this site's certificate")
        secure = grpc.ssl_channel_credentials(
            root_certificates=credentials.ca_pem.encode(),
            private_key=credentials.key_pem.encode() or None,
            certificate_chain=credentials.cert_pem.encode() or None,
        )
        self._metadata = ((TOKEN_KEY, TOKEN_FORM + credentials.token),) if credentials.token else ()
        self._request_cap = request_cap
        options = [
            *_OPTIONS,
            ("grpc.max_receive_message_length", MESSAGE_CAP),
            ("grpc.ssl_target_name_override", server_name),
            # Retrying is our own affair: it must resend the same bytes from the right place, or not at all.
            ("grpc.enable_retries", 0),
            # Our own pool of connections, so that a second client in this process never rides on another identity.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 5_000),
        ]
        self._address = address
        self._channel = grpc.secure_channel(address, secure, options=options)
        self._methods = methods
        # Without serialisers the channel carries bytes; what they mean is `shared.wire.messages`'s affair.
        kinds: dict[tuple[bool, bool], Any] = {
            (False, False): self._channel.unary_unary,
            (True, False): self._channel.stream_unary,
            (False, True): self._channel.unary_stream,
        }
        self._calls = {
            name: kinds[method.stream, method.reply_stream](f"/{service}/{name}") for name, method in methods.items()
        }

    def call(self, name: str, request: Any, *, timeout: float) -> Any:
        """Call `name`; what is streamed is an iterator of messages.

        Raises: the refusal the other side raised; NetworkRefusal or CertificateRefusal when it could not be asked.
        """
        import grpc

        method = self._methods[name]
        failed: list[Exception] = []

        def encoded(items: Iterator[Any]) -> Iterator[bytes]:
            # gRPC swallows what a request iterator raises; keep it, to raise it here. It also writes it to its log,
            # so it is given an error that says nothing.
            try:
                for item in items:
                    yield wire.encode(item)
            except Exception as error:
                failed.append(error)
            if failed:
                raise RuntimeError("the stream was ended")

        data = encoded(iter(request)) if method.stream else wire.encode(request)
        try:
            reply = self._calls[name](data, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            if failed:
                raise failed[0] from None
            raise _refusal(error, self._address, self._request_cap) from None
        except ValueError:
            raise NetworkRefusal("the channel must be open", given="a closed one") from None
        return self._parts(method, reply) if method.reply_stream else wire.decode(method.reply, reply)

    def _parts(self, method: wire.Method, reply: Any) -> Iterator[Any]:
        import grpc

        try:
            for data in reply:
                yield wire.decode(method.reply, data)
        except grpc.RpcError as error:
            raise _refusal(error, self._address, self._request_cap) from None

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _grpc() -> Any:
    """The library, told not to write its own diagnostics over a steward's screen: ours are the refusals."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    return grpc


def _require_current(pem: str, whose: str) -> None:
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise CertificateRefusal(f"{whose} must be readable", given="another text") from None
    now = dt.datetime.now(dt.UTC)
    if now > certificate.not_valid_after_utc:
        raise CertificateRefusal(
            f"{whose} must not be expired",
            given=f"last day {certificate.not_valid_after_utc.date()}",
            next_step="Ask the study lead for a new invitation, or set the clock.",
        )
    if now < certificate.not_valid_before_utc:
        raise CertificateRefusal(
            f"{whose} must be valid already",
            given=f"first day {certificate.not_valid_before_utc.date()}",
            next_step="Set the clock.",
        )


def _refusal(error: Any, address: str, cap: int) -> Refusal:
    """Our refusal for a failed call: the other side's own if it sent one, else what the status means."""
    import grpc

    sent = {key: value for key, value in (error.trailing_metadata() or ()) if key in (CODE_KEY, TEXT_KEY)}
    if CODE_KEY in sent:
        raw = sent.get(TEXT_KEY, b"")
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        # It will stand on a steward's screen: no control characters, no flood.
        shown = "".join(letter if letter.isprintable() else " " for letter in text[:TEXT_CAP])
        return refusal_from_code(str(sent[CODE_KEY]), shown)
    status, details = error.code(), (error.details() or "").lower()
    # A server that does not believe our certificate closes the connection before it is ready.
    turned_away = "failed to connect" in details and "socket closed" in details
    words = ("ssl", "tls handshake", "certificate", "hostname verification")
    if status == grpc.StatusCode.UNAVAILABLE and (turned_away or any(word in details for word in words)):
        return CertificateRefusal(
            "both ends must hold valid certificates of the study's authority",
            given="a TLS handshake that failed",
            next_step="Check the clock and the certificates (doctor); re-enrol if this site was revoked.",
        )
    if status == grpc.StatusCode.RESOURCE_EXHAUSTED and "concurrent" in details:
        return errors.RateRefusal(
            "the coordinator must have room for a call", given="too many at once", next_step="Try again."
        )
    if status == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return TooLarge(f"a message must have at most {cap} bytes")
    if status == grpc.StatusCode.DEADLINE_EXCEEDED:
        return NetworkRefusal("the coordinator must answer in time", given="no answer", next_step="Try again.")
    if status == grpc.StatusCode.UNIMPLEMENTED:
        return NetworkRefusal(
            "the coordinator must know this method", given="another version", next_step="Update both sides."
        )
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return NetworkRefusal(
            f"the coordinator at {address} must be reachable",
            given="no connection",
            next_step="Check the address, the one outbound rule and the proxy; what was sealed is sent again.",
        )
    return Refusal("the coordinator must answer as agreed", given=f"status {status.name}")
