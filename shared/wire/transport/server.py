"""A running server: who calls, what a call may take, one line of the log per decision, and refusals as statuses."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import functools
import inspect
import logging
import math
import secrets
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shared import errors
from shared.base.at_rest import clear_pem
from shared.base.clock import utc_now
from shared.errors import (
    CertificateRefusal,
    NetworkRefusal,
    PolicyRefusal,
    Refusal,
    TooLarge,
)
from shared.wire import messages as wire
from shared.wire import protocol
from shared.wire.door import REQUEST, CallLimits, Decision, Door, GuardedConnection
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
    carried,
    load_grpc,
)
from shared.wire.transport.peer import Call, Peer, RetryLater, peer_of

__all__ = ["LONGEST_CALL", "PATIENCE", "Handler", "Identify", "PortSettings", "Server", "Service"]

# A call without a deadline, or with a longer one, would let a stalled peer hold its place for ever.
LONGEST_CALL = 3600.0
PATIENCE = 120.0  # seconds for which a handler that says `RetryLater` is run again
STOPPING = 60.0  # seconds beyond its grace in which what a server's threads have begun is awaited
RECHECK = 1.0  # seconds after which a stream's peer is looked up again
LEAST_COUNTED = 64 << 10  # a message counts as this many bytes at least: many small ones are work too
_log = logging.getLogger("tributary.transport")

SERVER_OPTIONS = [
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
    # A connection is made anew after an hour, with the certificates of that hour; a call that runs is let end.
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 3_600_000),
]


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
        (errors.UsageRefusal, grpc.StatusCode.FAILED_PRECONDITION),
        (PolicyRefusal, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.ApprovalRefusal, grpc.StatusCode.FAILED_PRECONDITION),
        (NetworkRefusal, grpc.StatusCode.UNAVAILABLE),
        (CertificateRefusal, grpc.StatusCode.UNAUTHENTICATED),
        (errors.IntegrityRefusal, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.DataRefusal, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        if isinstance(refusal, kind):
            return status
    return grpc.StatusCode.INTERNAL


Handler = Callable[[Call, Any], Any]
Identify = Callable[[str], Peer]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Service:
    """Methods offered at a port, their handlers, and the limits of one call.

    Args:
        name: full name of the service.
        methods: its methods (`shared.wire.messages.COLLECTION`).
        handlers: one function per method: ``(call, request) -> reply``. A streamed reply is an iterator. For a
            streamed request it is a generator: it is given the first message, sent each further one and None at the
            end, and returns the reply. A stream that breaks off raises a refusal in it, or looks like one that ends:
            whether it was whole is for the handler to say. All may raise refusals, and `RetryLater`;
            anything else becomes E_REFUSED.
        request_cap: most bytes of a message from a client; a longer one is refused before it is read.
        longest: most seconds that a call may ask for.
        waiting: most calls that may be in the making at once.
    """

    name: str
    methods: Mapping[str, wire.Method]
    handlers: Mapping[str, Handler]
    request_cap: int = MESSAGE_CAP
    longest: float = LONGEST_CALL
    waiting: int = 512


@dataclass(frozen=True, kw_only=True)
class PortSettings:
    """Settings of a port, the same for gRPC and HTTPS.

    Args:
        listen: ``host:port``; port 0 takes a free one.
        credentials: gives the server's credentials; asked again, so that a renewed certificate is used without a
            restart.
        workers: threads that answer.
        limits: what one address and one peer may take.
        observe: called with the outcome of each call, on the loop's thread.
    """

    listen: str
    credentials: Callable[[], Credentials]
    workers: int = 16
    limits: CallLimits = field(default_factory=CallLimits)
    observe: Callable[[Decision], None] | None = None


class Server:
    """A running server of one service.

    Who calls, and whether a whole message is there, is found out without a thread: holding a call open, or sending
    slowly, costs its peer one of its own places and nobody else's. A handler runs in a thread, from one message to
    the next, and one peer never has more than a quarter of them.

    Args:
        service: what may be called.
        settings: how its port is opened; the one that it got is `port`. Credentials are asked for at every connection.
        identify: says whose a token is, or refuses it. With it the port asks for no client certificate; without it
            every client must show one.
        admit: refuses a peer whose certificate is good but revoked or used up. Asked as soon as a call begins, before
            any of its message is read, and while a stream lasts; its connection is then closed.
    Raises: NetworkRefusal, when the port cannot be bound.
    """

    def __init__(
        self,
        service: Service,
        settings: PortSettings,
        *,
        identify: Identify | None = None,
        admit: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        load_grpc()
        self._loop = _loop()
        self._service, self._limits = service, settings.limits
        self._identify, self._admit, self._observe = identify, admit, settings.observe or (lambda _: None)
        self._share = max(1, settings.workers // 4)
        self._running = 0
        self._guests: dict[str, _Guest] = {}
        self._door = Door(settings.listen, settings.limits, self._loop)
        self.port: int = self._door.port
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="tributary")
        # Who calls is looked up in the store: by threads that no handler ever holds.
        self._porters = ThreadPoolExecutor(2, thread_name_prefix="tributary-porter")
        try:
            self._server = self._on_loop(self._started(settings.credentials))
        except BaseException:
            self._on_loop(self._door.close())
            self._pool.shutdown(wait=False)
            self._porters.shutdown(wait=False)
            raise

    def _on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        begun = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return begun.result(seconds)
        finally:
            begun.cancel()

    async def _started(self, credentials: Callable[[], Credentials]) -> Any:
        import grpc

        limits = self._limits
        options = [
            *CHANNEL_OPTIONS,
            *SERVER_OPTIONS,
            ("grpc.max_receive_message_length", self._service.request_cap),
            ("grpc.max_concurrent_streams", limits.streams),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.proving)),
        ]
        server = grpc.aio.server(options=options)
        calls = {
            # Each method is a pair of streams to gRPC: only so is a call ours before its message has come.
            name: grpc.stream_stream_rpc_method_handler(functools.partial(self._answer, name, method))
            for name, method in self._service.methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service.name, calls),))
        first = credentials()
        shown = [first]

        def configuration(given: Credentials) -> Any:
            pairs = [(clear_pem(given.key_pem, "server.pem").encode(), given.cert_pem.encode())]
            return grpc.ssl_server_certificate_configuration(pairs, root_certificates=given.ca_pem.encode())

        def renewed() -> Any:
            try:
                now = credentials()
                made = None if now == shown[0] else configuration(now)
            except Exception as error:
                _log.error("the server's certificate could not be read again: %s", type(error).__name__)
                return None
            shown[0] = now
            return made

        secure = grpc.dynamic_ssl_server_credentials(
            configuration(first), renewed, require_client_authentication=self._identify is None
        )
        server.add_secure_port(f"unix:{self._door.inner}", secure)
        await server.start()
        await self._door.open()
        return server

    @property
    def load(self) -> tuple[int, int]:
        """Connections now, and calls in the making."""
        return self._door.carried, self._running

    def answers(self, seconds: float = 2.0) -> bool:
        """True if the loop of all calls turns."""
        with suppress(TimeoutError):
            self._on_loop(asyncio.sleep(0), seconds)
            return True
        return False

    def stop(self, grace: float = 5.0) -> bool:
        """Take no new calls, let running ones end within `grace` seconds, then close.

        Returns: False if a handler was still at work `STOPPING` seconds later; its thread is left behind.
        """
        whole = True
        try:
            self._on_loop(self._stopped(grace), grace + STOPPING)
        except TimeoutError:
            whole = False
            left = sum(guest.steps for guest in self._guests.values())
            _log.error("the server was told to end, and %d calls are still worked on", left)
        for pool in (self._pool, self._porters):
            pool.shutdown(wait=whole, cancel_futures=not whole)
        return whole

    async def _stopped(self, grace: float) -> None:
        await self._door.shut()
        try:
            await self._server.stop(grace)
        finally:
            await self._door.close()
        while any(guest.steps for guest in self._guests.values()):  # what a thread has begun, it ends
            await asyncio.sleep(0.01)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- one call -------------------------------------------------------------------------------------------------
    async def _answer(self, name: str, method: wire.Method, _: Any, context: Any) -> None:
        """One method as gRPC wants it: bytes in, bytes out, refusals as statuses, one line in the log per decision."""
        connection, begun = self._door.find(context.peer()), self._loop.time()
        if connection is None:  # closed already
            raise asyncio.CancelledError
        REQUEST.set(secrets.token_hex(8))  # this task's own
        call: Call | None = None
        turn: _Turn | None = None
        gone = threading.Event()
        try:
            with connection.looked_up():
                peer = await self._known(context, connection)
            await carried(context.send_initial_metadata(((PROTOCOL_KEY, protocol.SPOKEN.text),)))
            require_common(context.invocation_metadata(), protocol.SPOKEN)
            call = Call(peer=peer, left=gone.is_set)
            guest = self._guest(peer)
            self._require_room(guest)
            connection.proved(guest.key)
            turn = _Turn(context=context, call=call, method=method, guest=guest, handler=self._service.handlers[name])
            with connection.at_work(), guest.at_work():
                self._running += 1
                try:
                    await self._handled(turn)
                finally:
                    self._running -= 1
            connection.forgive()
            self._decided(call, name, "ok", begun)
        except asyncio.CancelledError:
            gone.set()
            # Nobody is left to answer. One that leaves at once has had us work for nothing.
            if turn is None or not turn.worked or self._loop.time() - turn.begun < 1.0:
                connection.strike()
            if turn is not None and turn.worked:
                self._decided(call, name, NetworkRefusal.code, begun)
            else:
                self._log_refusal(connection, call, name, NetworkRefusal.code, begun)
            raise
        except Exception as caught:
            if isinstance(caught, Refusal):
                refusal: Refusal = caught
            else:
                _log.error("unexpected %s", type(caught).__name__)
                step = f"Ask the study lead to look at its log, for request {REQUEST.get()}."
                refusal = Refusal("The coordinator could not answer", next_step=step)
            code = refusal.code
            if turn is not None and turn.worked:
                self._decided(call, name, code, begun)
            else:
                self._log_refusal(connection, call, name, code, begun)
                ours = isinstance(refusal, errors.StorageRefusal)  # our own trouble is no fault of the caller's
                if not (ours or (isinstance(refusal, errors.RateRefusal) and connection.peer)):
                    connection.strike()
                if isinstance(refusal, (CertificateRefusal, errors.TokenRefusal)):
                    self._loop.call_later(1.0, connection.reset)
            context.set_trailing_metadata(((CODE_KEY, code), (TEXT_KEY, str(refusal.outside).encode()[:TEXT_CAP])))
            await carried(context.abort(_status(refusal), code))

    def _decided(self, call: Call | None, name: str, code: str, begun: float) -> None:
        """Tell, and write, what became of a call that was worked on."""
        site, digest = (call.peer.site, call.digest[:12]) if call is not None else ("-", "")
        now, taken = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), self._loop.time() - begun
        said = {"peer": site, "method": name, "code": code, "digest": digest, "seconds": round(taken, 4)}
        _log.info("%s %s %s %s %s", now, site, name, code, digest or "-", extra={"call": said})
        self._observe(Decision(method=name, code=code, seconds=taken))

    def _log_refusal(
        self, connection: GuardedConnection, call: Call | None, name: str, code: str, begun: float
    ) -> None:
        """A line for a call that came to nothing before it was worked on: of many alike, a few and their number."""
        self._observe(Decision(method=name, code=code, seconds=self._loop.time() - begun))
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        who = call.peer.site if call is not None else connection.address
        self._door.log_refusal("refused", who, name, code, text=f"{now} {who} {name} {code} -")

    async def _known(self, context: Any, connection: GuardedConnection) -> Peer:
        """Authenticated and admitted caller; the message is not read. Raises: the refusal of any other."""
        left = context.time_remaining()
        if left is None or not math.isfinite(left) or left > self._service.longest:
            raise NetworkRefusal(f"a call must have a deadline of at most {self._service.longest:g} seconds")
        proved = context.auth_context()
        if proved.get("ssl_tls_version", [b"TLSv1.3"]) != [b"TLSv1.3"]:
            raise CertificateRefusal("a connection must use TLS 1.3", given="an older version")
        if self._identify is not None:
            if not (connection.peer or self._door.may_guess(connection.address)):
                raise errors.RateRefusal(
                    "an address must not show many wrong tokens", given="too many", next_step="Try again in a minute."
                )
            try:
                return await self._by_porter(functools.partial(self._identify, _token(context)))
            except errors.AccessRefusal:
                self._door.guessed(connection.address)
                raise
        shown = proved.get("x509_pem_cert", [])
        if len(shown) != 1:
            raise CertificateRefusal("a client must show one certificate", given=f"{len(shown)}")
        peer = peer_of(shown[0], utc_now())
        # Until one was let in, a connection's calls are looked up one after the other: of one that is not, no other is.
        async with nullcontext() if connection.peer else connection.deciding:
            if connection.refusal is not None:
                raise connection.refusal
            try:
                await self._by_porter(functools.partial(self._admit, peer))
            except (CertificateRefusal, errors.TokenRefusal) as refusal:
                if not connection.peer:
                    connection.refusal = refusal
                    self._door.refused(connection.address)
                raise
        return peer

    async def _by_porter(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._porters, work)

    def _guest(self, peer: Peer) -> _Guest:
        key = f"{peer.role} {peer.site}" if self._identify is None else peer.serial
        if key not in self._guests:
            self._guests[key] = _Guest(key, self._share)
        return self._guests[key]

    def _require_room(self, guest: _Guest) -> None:
        if guest.calls >= self._limits.calls or self._running >= self._service.waiting:
            raise errors.RateRefusal(
                "the coordinator must have room for a call",
                given="too many at once" if guest.calls < self._limits.calls else "too many of this caller at once",
                next_step="Try again.",
            )

    # -- its messages ---------------------------------------------------------------------------------------------
    async def _handled(self, turn: _Turn) -> None:
        """Read the message, have the handler run, write what it returns."""
        turn.begun = self._loop.time()
        data = await self._message(turn, self._limits.first)
        if turn.method.stream:
            await self._write(turn, await self._taken(turn, data))
        elif turn.method.reply_stream:
            parts: Iterator[Any] = await self._worked(turn, lambda: iter(turn.handler(turn.call, turn.read(data))))
            try:
                while part := await self._worked(turn, lambda: _encoded(next(parts, None))):
                    await self._write(turn, part)
            finally:
                self._ended(turn, parts)
        else:
            await self._write(
                turn, await self._worked(turn, lambda: wire.encode(turn.handler(turn.call, turn.read(data))))
            )

    async def _message(self, turn: _Turn, seconds: float) -> bytes | None:
        """The next whole message, or None at the end. Raises: NetworkRefusal (none in time)."""
        import grpc

        wait = turn.guest.owed(self._loop.time())
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            data = await asyncio.wait_for(turn.context.read(), seconds)
        except TimeoutError:
            raise NetworkRefusal(
                "a whole message must arrive in time", given=f"none within {seconds:g} seconds", next_step="Try again."
            ) from None
        if data is grpc.aio.EOF:
            return None
        turn.guest.took(max(len(data), LEAST_COUNTED) / self._limits.bytes_per_second, self._loop.time())
        return bytes(data)

    async def _write(self, turn: _Turn, data: bytes) -> None:
        try:
            await carried(asyncio.wait_for(turn.context.write(data), self._limits.idle))
        except TimeoutError:
            raise NetworkRefusal("a reply must be taken in time", given="one that was not") from None

    async def _taken(self, turn: _Turn, data: bytes | None) -> bytes:
        """The reply to a stream whose first message is `data`: a thread works from each message to the next."""
        steps: Any = None
        checked = self._loop.time()

        def step(message: bytes | None) -> bytes | None:
            nonlocal steps
            given = None if message is None else turn.read(message)
            try:
                if steps is None:
                    steps = turn.handler(turn.call, given)
                    next(steps)
                else:
                    steps.send(given)
            except StopIteration as end:
                return wire.encode(end.value)
            except RetryLater:
                steps = None
                raise
            return None

        try:
            while (reply := await self._worked(turn, functools.partial(step, data))) is None:
                if data is None:
                    raise NetworkRefusal("a stream must be answered at its end", given="one that was not")
                data = await self._message(turn, self._limits.idle)
                if self._identify is None and self._loop.time() - checked > RECHECK:
                    checked = self._loop.time()
                    await self._by_porter(functools.partial(self._admit, turn.call.peer))
            return reply
        finally:
            self._ended(turn, steps)

    async def _worked(self, turn: _Turn, work: Callable[[], T]) -> T:
        """Result of `work`, run in a thread once this peer and the pool have one free; retried on `RetryLater`."""
        guest, wait, until = turn.guest, 0.05, self._loop.time() + PATIENCE
        turn.worked = True
        while True:
            await guest.places.acquire()
            try:
                turn.step = self._pool.submit(contextvars.copy_context().run, work)
            except BaseException:
                guest.places.release()
                raise
            guest.steps += 1
            turn.step.add_done_callback(lambda _: self._loop.call_soon_threadsafe(guest.freed))
            try:
                return await asyncio.wrap_future(turn.step)
            except RetryLater as busy:
                if self._loop.time() > until:
                    raise busy.refusal from None
            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)

    def _ended(self, turn: _Turn, steps: Any) -> None:
        """Close a generator once its last step is over, in a thread: it may hold files and locks."""
        if not isinstance(steps, Generator) or inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
            return
        guest = turn.guest
        guest.steps += 1  # `stop` waits for it

        def close() -> None:
            try:
                with suppress(Refusal, StopIteration):
                    steps.throw(NetworkRefusal("the connection must last", given="a broken one"))
                steps.close()
            except Exception as error:
                _log.error("unexpected %s", type(error).__name__)
            finally:  # whatever its clean-up does: `stop` waits for this
                self._loop.call_soon_threadsafe(guest.left)

        assert turn.step is not None
        turn.step.add_done_callback(lambda _: self._pool.submit(close))


class _Guest:
    """Current use of a server by one peer: calls, threads, and message rate."""

    def __init__(self, key: str, share: int) -> None:
        self.key, self.calls, self.steps = key, 0, 0
        self.places = asyncio.Semaphore(share)
        self._paid = 0.0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One call of the peer is in the making."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    def freed(self) -> None:
        """A thread has come back."""
        self.steps -= 1
        self.places.release()

    def left(self) -> None:
        """A broken call has been cleared away."""
        self.steps -= 1

    def took(self, seconds: float, now: float) -> None:
        """Count a message that took `seconds` of the peer's rate."""
        self._paid = max(self._paid, now - 1.0) + seconds  # a second's worth may come at once

    def owed(self, now: float) -> float:
        """Seconds until the next message is read."""
        return self._paid - now


@dataclass(kw_only=True)
class _Turn:
    """One call that was let in."""

    context: Any
    call: Call
    method: wire.Method
    guest: _Guest
    handler: Handler
    worked: bool = False
    begun: float = 0.0
    step: Future[Any] | None = None

    def read(self, data: bytes | None) -> Any:
        """The message. Raises: SchemaRefusal."""
        if data is None:
            if self.method.stream:
                return None
            raise errors.SchemaRefusal("a call must carry a message", given="none")
        return wire.decode(self.method.request, data)


def _encoded(part: Any) -> bytes | None:
    return None if part is None else wire.encode(part)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The one event loop of all servers of this process, on a thread of its own; it never ends.

    gRPC's asynchronous side reads one queue per process: two loops would wake each other up for nothing.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tributary-loop", daemon=True).start()
    return loop


def _token(context: Any) -> str:
    """The one bearer token that a call carries, or nothing."""
    shown = [value for key, value in context.invocation_metadata() if key == TOKEN_KEY]
    text = shown[0] if len(shown) == 1 and isinstance(shown[0], str) else ""
    return text.removeprefix(TOKEN_FORM) if text.startswith(TOKEN_FORM) else ""
