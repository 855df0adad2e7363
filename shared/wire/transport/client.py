"""One end's calls to a server, and what a failed call means in our own refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared import errors
from shared.base.at_rest import clear_pem
from shared.errors import (
    CertificateRefusal,
    NetworkRefusal,
    Refusal,
    TooLarge,
    refusal_from_code,
)
from shared.wire import messages as wire
from shared.wire import protocol
from shared.wire.certificates import require_current
from shared.wire.protocol import PROTOCOL_KEY, require_common
from shared.wire.transport.ends import (
    CHANNEL_OPTIONS,
    CODE_KEY,
    MESSAGE_CAP,
    TEXT_CAP,
    TEXT_KEY,
    TOKEN_FORM,
    TOKEN_KEY,
    Credentials,
    load_grpc,
)

__all__ = ["Client"]


class Client:
    """One end's calls to a server. Connects at the first call, and again by itself after a loss.

    Args:
        address: ``host:port``.
        server_name: name that must stand in the server's certificate.
        credentials: what we show and whom we believe.
        service: full name of the service.
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
        grpc = load_grpc()
        if credentials.cert_pem:
            require_current(credentials.cert_pem, "this site's certificate")
        secure = grpc.ssl_channel_credentials(
            root_certificates=credentials.ca_pem.encode(),
            private_key=clear_pem(credentials.key_pem, "tls.pem").encode() or None,
            certificate_chain=credentials.cert_pem.encode() or None,
        )
        said = ((PROTOCOL_KEY, protocol.SPOKEN.text),)
        self._metadata = (*said, (TOKEN_KEY, TOKEN_FORM + credentials.token)) if credentials.token else said
        self._request_cap, self._asking = request_cap, bool(credentials.token)
        options = [
            *CHANNEL_OPTIONS,
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
            if method.reply_stream:
                reply = answered = self._calls[name](data, timeout=timeout, metadata=self._metadata)
            else:
                reply, answered = self._calls[name].with_call(data, timeout=timeout, metadata=self._metadata)
            require_common(answered.initial_metadata() or (), protocol.SPOKEN)
        except grpc.RpcError as error:
            if failed:
                raise failed[0] from None
            if CODE_KEY in dict(error.trailing_metadata() or ()):  # it was the coordinator that answered
                require_common(error.initial_metadata() or (), protocol.SPOKEN)
            raise _refusal(error, self._address, self._request_cap, asking=self._asking) from None
        except ValueError:
            raise NetworkRefusal("the channel must be open", given="a closed one") from None
        return self._parts(method, reply) if method.reply_stream else wire.decode(method.reply, reply)

    def _parts(self, method: wire.Method, reply: Any) -> Iterator[Any]:
        import grpc

        try:
            for data in reply:
                yield wire.decode(method.reply, data)
        except grpc.RpcError as error:
            raise _refusal(error, self._address, self._request_cap, asking=self._asking) from None

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refusal(error: Any, address: str, cap: int, *, asking: bool = False) -> Refusal:
    """Our refusal for a failed call: the other side's own if it sent one, else what the status means.

    Args:
        asking: it was an analyst's call, by a token: nothing was sealed, and no hospital's IT can help.
    """
    found = _meant(error, address, cap, asking)
    theirs = isinstance(found, errors.StorageRefusal)  # the coordinator's disk or database, not the caller's
    if theirs or (asking and isinstance(found, NetworkRefusal)):
        found.fixer = "whoever runs the coordinator" if theirs else "you, or whoever runs the coordinator"
    if theirs:
        kept = "Nothing is lost: ask again later" if asking else "Nothing is lost here: what was sealed is sent again"
        found.next_step = f"{kept}. Tell the study lead."
    return found


def _meant(error: Any, address: str, cap: int, asking: bool) -> Refusal:
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
            next_step="Check the clock and the certificates (doctor); re-enrol if this site was revoked. Where the "
            "lead says that the authority was replaced: site-agent renew --late.",
        )
    if status == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return TooLarge(f"a message must have at most {cap} bytes")
    if status == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.RateRefusal(
            "the coordinator must have room for a call", given="too many at once", next_step="Try again."
        )
    if status == grpc.StatusCode.DEADLINE_EXCEEDED:
        return NetworkRefusal("the coordinator must answer in time", given="no answer", next_step="Try again.")
    if status == grpc.StatusCode.UNIMPLEMENTED:
        return errors.UnknownMethod(
            "the coordinator must know this method", given="another version", next_step="Update both sides."
        )
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return NetworkRefusal(
            f"the coordinator at {address} must be reachable",
            given="no connection",
            next_step="Check your network and the address in the token's file, or ask whether it is running; ask again."
            if asking
            else "Check the address, the one outbound rule and the proxy; what was sealed is sent again.",
        )
    # Our servers say what they refuse; without a word of theirs it is the line that broke, or somebody on it.
    if status in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS):
        return NetworkRefusal(
            "the connection must last until the answer",
            given="one that broke in the middle",
            next_step="Try again; where it goes on, ask who runs the network whether a proxy changes what passes.",
        )
    return Refusal("the coordinator must answer as agreed", given=f"status {status.name}")
