"""The door before a server's port: connections are counted, timed and closed here, before gRPC spends anything on them.

gRPC's Python server can neither close one connection nor count those of one address. So the port belongs to a door,
which carries bytes between each connection and gRPC's own socket, unread: TLS is gRPC's, end to end. That socket lies
in a folder of this user alone, and each connection reaches it under a name that is never used twice, by which a call
is found again here. A connection that has sent nothing costs one descriptor, and no more.

A connection has to prove itself: within `CallLimits.proving` a call of it must be let in (by certificate or token).
Where there is no room, one that has not yet is closed for the newcomer, the oldest of the address that holds most; so a
crowd of silent connections never keeps an honest one out. Next go those that were let in where anybody is, then those
that have no call at work; one that has is left alone. All of this runs on one event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from shared.base.process import owned_folder
from shared.errors import NetworkRefusal, Refusal

__all__ = ["REQUEST", "CallLimits", "Decision", "Door", "GuardedConnection", "RefusalLog", "bound_socket"]

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Random id of the call that is answered now, in its threads too; blank outside of one."""

# Descriptors that are left to everything else; a connection that is carried takes three.
SPARED, EACH = 256, 3
BACKLOG = 1024
CLOSING = 5.0
LOOKED_UP = 1.0  # seconds after which a connection is looked at again that could not be closed for our own slowness
_log = logging.getLogger("tributary.transport")


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """Limits of one port on connections, calls and rates, of strangers and of peers. A peer is a site, or a token.

    Args:
        connections: most connections at once.
        per_address: most of one address; of IPv6, of one /64.
        per_peer: most that one peer has proved to be its own; of more, the longest silent one is closed.
        opened: connections a second of one address that are carried to TLS, after as many at once as `per_address`; one
            whose certificate opens nothing counts as `streams`.
        proving: seconds in which a connection must have a call let in.
        strikes: calls refused, or broken off, before any work was done for them, after which a connection is closed.
        streams: most calls at once on one connection.
        calls: most calls at once of one peer.
        first: seconds for a call's first whole message.
        idle: seconds for each further message, and for a peer to take a part of a reply.
        bytes_per_second: what is read of one peer over time; a message counts as 64 kB at least. More is read later.
        guesses: wrong tokens a second of one address that are looked up, after ten times as many at once. While there
            are more, a connection of that address that has not proved itself is refused unheard.
    """

    connections: int = 512
    per_address: int = 128
    per_peer: int = 16
    opened: float = 32.0
    proving: float = 20.0
    strikes: int = 32
    streams: int = 16
    calls: int = 16
    first: float = 120.0
    idle: float = 120.0
    bytes_per_second: int = 32 << 20
    guesses: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Outcome of one call, without its content and without the caller.

    Args:
        code: ``ok``, or the code of the refusal.
        seconds: from its arrival to its answer.
    """

    method: str
    code: str
    seconds: float


class RefusalLog:
    """Lines of the log about refusals: the first few of a kind in a minute, and how many more there were."""

    def __init__(self, later: Callable[[float, Callable[[], None]], object], often: int = 5) -> None:
        self._later, self._often = later, often
        self._seen: Counter[tuple[str, ...]] = Counter()

    def __call__(self, *kind: str, text: str = "") -> None:
        """Write `text` (or the kind itself), unless this kind was written often enough in this minute."""
        if not self._seen:
            self._later(60.0, self.flush)
        if len(self._seen) > 1000:  # of so many kinds the numbers are enough
            kind = ("others",)
        self._seen[kind] += 1
        if self._seen[kind] <= self._often:
            _log.info("%s", text or " ".join(kind))

    def flush(self) -> None:
        """Write how many lines were left out, and begin anew."""
        for kind, times in self._seen.items():
            if times > self._often:
                _log.info("%s: %d more within a minute", " ".join(kind), times - self._often)
        self._seen.clear()


class GuardedConnection(asyncio.Protocol):
    """One connection from outside; on the loop's thread only."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._early: list[bytes] = []
        self._linking: asyncio.Task[None] | None = None
        self._outside: Any = None
        self._inside: Any = None
        self._over = False
        self._untaken: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self.address = "-"
        self.name = 0
        self.peer = ""
        self.named = False  # by a certificate or a token
        self.deciding = asyncio.Lock()  # held while it is looked up whether its certificate is let in
        self.refusal: Refusal | None = None  # of its certificate: no other call is looked up
        self.calls = 0
        self.asking = 0  # calls of which it is looked up who makes them
        self.strikes = 0
        self.last = 0.0

    # -- what asyncio calls ---------------------------------------------------------------------------------------
    def connection_made(self, transport: Any) -> None:
        """Take the connection in, or close it."""
        self._outside = transport
        self.address = _address(transport)
        self._door.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Carry bytes on; the first ones open the way to gRPC."""
        if self._over:
            return
        if self._inside is not None:
            self._inside.write(data)
            return
        self._early.append(data)
        self._outside.pause_reading()
        if self._linking is None:
            self._linking = self._door.loop.create_task(self._link())

    def eof_received(self) -> bool:
        """Carry the end on; an end before the beginning closes."""
        if self._inside is None or self._over:
            return False
        with suppress(OSError):
            self._inside.write_eof()
        return True

    def pause_writing(self) -> None:
        """The outside takes no more: gRPC waits, and not for ever."""
        self._untaken = self._door.loop.call_later(self._door.limits.idle, self._close, "it took nothing for too long")
        if self._inside is not None:
            self._inside.pause_reading()

    def resume_writing(self) -> None:
        """The outside takes more."""
        if self._untaken is not None:
            self._untaken.cancel()
        if self._inside is not None:
            self._inside.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other half."""
        for waiting in (self._linking, self._untaken, self._quiet):
            if waiting is not None:
                waiting.cancel()
        if self._inside is not None:
            self._inside.close()
        self._door.left(self)

    async def _link(self) -> None:
        try:
            await asyncio.sleep(self._door.turn(self.address))
            self.name, inner = await self._door.reach()
            self._inside, _ = await self._door.loop.create_unix_connection(
                lambda: _Inside(self, self._outside), sock=inner
            )
        except OSError as error:
            self._door.log_refusal("refused", self.address, f"no way to the server: {type(error).__name__}")
            self.reset()
            return
        self._door.names[self.name] = self
        for data in self._early:
            self._inside.write(data)
        self._early.clear()
        if not self._outside.is_closing():
            self._outside.resume_reading()

    def ended(self) -> None:
        """gRPC has closed its half: what it said last is delivered, and what still comes is let go by.

        Closing with bytes unread would reset the connection, and what was said (a certificate is not believed) be lost.
        """
        self._over = True
        if not self._outside.is_closing():
            if not self.peer:
                self._door.log_refusal("closed", self.address, "no handshake, or a certificate that is not believed")
            with suppress(OSError):  # the other side may be gone already
                self._outside.write_eof()
            self._outside.resume_reading()
        self._door.loop.call_later(CLOSING, self._outside.abort)

    # -- what the server says -------------------------------------------------------------------------------------
    def proved(self, peer: str, *, named: bool = True) -> None:
        """A call of `peer` was let in on this connection; `named`: by a certificate or a token, not as anybody is."""
        self.last = self._door.loop.time()
        if not self.peer or (named and not self.named):
            self.peer, self.named = peer, named
            self._door.proved(self)

    @contextmanager
    def at_work(self, quiet: float = 0.0) -> Iterator[None]:
        """A call is at work: meanwhile the connection is closed for nobody else.

        Args:
            quiet: seconds after the last call in which the next must have come, or it is closed; 0 for no such limit.
        """
        self.calls += 1
        if self._quiet is not None:
            self._quiet.cancel()
        try:
            yield
        finally:
            self.calls -= 1
            self.last = self._door.loop.time()
            if quiet and not self.calls:
                self._quiet = self._door.loop.call_later(quiet, self._close, "no further call came whole")

    @contextmanager
    def looked_up(self) -> Iterator[None]:
        """It is looked up who calls: that takes our own time, and the connection is not closed for it."""
        self.asking += 1
        try:
            yield
        finally:
            self.asking -= 1

    def strike(self) -> None:
        """A call was refused or broken off before anything was done for it; too many in a row end the connection."""
        self.strikes += 1
        if self.strikes == self._door.limits.strikes:
            self._door.log_refusal("closed", self.address, f"{self.strikes} calls in a row refused or broken off")
            # What was said last is still on its way.
            self._door.loop.call_later(0.2, self.reset)

    @property
    def spent(self) -> bool:
        """True if so many calls in a row were refused that the connection is closed; an answer can say so."""
        return self.strikes >= self._door.limits.strikes

    def forgive(self) -> None:
        """A call was answered."""
        self.strikes = 0

    def _close(self, why: str) -> None:
        self._door.log_refusal("closed", self.address, why)
        self.reset()

    def reset(self) -> None:
        """Close at once, and so that the other side sees it is no matter of certificates."""
        found = self._outside.get_extra_info("socket")
        if found is not None and not self._outside.is_closing():
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._outside.abort()


class _Inside(asyncio.Protocol):
    """The half of a connection that ends in gRPC."""

    def __init__(self, connection: GuardedConnection, outside: Any) -> None:
        self._connection, self._outside = connection, outside

    def connection_made(self, transport: Any) -> None:
        if self._outside.is_closing():
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._outside.write(data)

    def pause_writing(self) -> None:
        self._outside.pause_reading()

    def resume_writing(self) -> None:
        if not self._outside.is_closing():
            self._outside.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.ended()


class Door:
    """A port that is open to the network, and the socket behind it; make it, then `open` it on its loop.

    Args:
        listen: ``host:port``; port 0 takes a free one, see `port`.
        limits: what one address, and all, may take.
        loop: the event loop that carries.
    Raises: NetworkRefusal, when the port cannot be bound.
    """

    def __init__(self, listen: str, limits: CallLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits, self.loop = limits, loop
        self.log_refusal = RefusalLog(loop.call_later)
        self.names: dict[int, GuardedConnection] = {}
        self._all: dict[GuardedConnection, None] = {}
        self._unproved: dict[GuardedConnection, asyncio.TimerHandle] = {}  # oldest first
        self._turns: dict[str, float] = {}
        self._guesses: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._listener: asyncio.Server | None = None
        self._socket = bound_socket(listen)
        self.port: int = self._socket.getsockname()[1]
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.room = limits.connections
        if soft != resource.RLIM_INFINITY and EACH * limits.connections + SPARED > soft:
            self.room = max(1, (soft - SPARED) // EACH)
            _log.warning("room for %d connections only, with a limit of %d open files", self.room, soft)
        self._owned = ExitStack()
        self._folder = self._owned.enter_context(owned_folder("tributary-door"))  # for its owner alone
        self.inner = self._folder / "server"

    async def open(self) -> None:
        """Begin to take connections."""
        self._listener = await self.loop.create_server(
            lambda: GuardedConnection(self), sock=self._socket, backlog=BACKLOG
        )

    async def shut(self) -> None:
        """Take no new connections; those that are there go on."""
        if self._listener is not None:
            self._listener.close()
        self._socket.close()

    async def close(self) -> None:
        """Close every connection."""
        await self.shut()
        for connection in list(self._all):
            connection._outside.close()
        await asyncio.sleep(0)
        self.log_refusal.flush()
        self._owned.close()

    @property
    def carried(self) -> int:
        """Number of connections that are here now."""
        return len(self._all)

    def find(self, peer: str) -> GuardedConnection | None:
        """The connection of a call, by what gRPC calls its peer."""
        number = peer.rpartition("/")[2]
        return self.names.get(int(number)) if number.isdigit() else None

    async def reach(self) -> tuple[int, socket.socket]:
        """A new way to gRPC: (its name, the connected socket)."""
        number = next(self._numbers)
        path = self._folder / str(number)
        inner = socket.socket(socket.AF_UNIX)
        try:
            inner.setblocking(False)
            inner.bind(str(path))
            await self.loop.sock_connect(inner, str(self.inner))
        except BaseException:
            inner.close()
            raise
        finally:
            path.unlink(missing_ok=True)  # the name lives on in the socket
        return number, inner

    def turn(self, address: str) -> float:
        """Seconds until another connection of this address is carried to TLS."""
        return max(0.0, self._took(address, 1) - self.loop.time())

    def refused(self, address: str) -> None:
        """Count a certificate that opens nothing: with its calls it costs more than a handshake that fails."""
        self._took(address, self.limits.streams)

    def _took(self, address: str, turns: int) -> float:
        now, each = self.loop.time(), 1 / self.limits.opened
        if len(self._turns) > 10_000:
            self._turns = {known: due for known, due in self._turns.items() if due > now}
        free = now - each * self.limits.per_address
        self._turns[address] = max(free, self._turns.get(address, 0.0)) + each * turns
        return self._turns[address]

    def guessed(self, address: str) -> None:
        """Count a wrong token of an address."""
        now, each = self.loop.time(), 1 / self.limits.guesses
        if len(self._guesses) > 10_000:
            self._guesses = {known: due for known, due in self._guesses.items() if due > now}
        self._guesses[address] = max(now - 10.0, self._guesses.get(address, 0.0)) + each

    def may_guess(self, address: str) -> bool:
        """True if a token of this address is looked up now."""
        return self._guesses.get(address, 0.0) <= self.loop.time()

    # -- what connections say ---------------------------------------------------------------------------------------
    def arrived(self, connection: GuardedConnection) -> None:
        """Take a connection in; where there is no room, close one that has not proved itself, or this one."""
        connection.last = self.loop.time()
        here = [known for known in self._unproved if known.address == connection.address]
        if sum(known.address == connection.address for known in self._all) >= self.limits.per_address:
            gone, why = (here[0] if here else connection), "its address has as many as it may"
        elif len(self._all) >= self.room:
            most = Counter(known.address for known in self._unproved).most_common(1)
            silent = [known for known in self._all if known.peer and not known.calls]
            if most:
                gone = next(known for known in self._unproved if known.address == most[0][0])
            else:
                gone = min(silent, key=lambda known: (known.named, known.last), default=connection)
            why = "there are as many as there may be"
        else:
            gone, why = None, ""
        if gone is not None:
            self.log_refusal("closed", gone.address, f"a connection without a call: {why}")
            gone.reset()
            self.left(gone)
        if gone is not connection:
            self._all[connection] = None
            self._unproved[connection] = self.loop.call_later(self.limits.proving, self._late, connection)

    def _late(self, connection: GuardedConnection) -> None:
        if connection.asking:  # whoever calls must hear that the store is away, and not that the line is
            self._unproved[connection] = self.loop.call_later(LOOKED_UP, self._late, connection)
            return
        self.log_refusal("closed", connection.address, f"no call was let in within {self.limits.proving:g} seconds")
        connection.reset()

    def proved(self, connection: GuardedConnection) -> None:
        """A peer has shown that the connection is its own."""
        timer = self._unproved.pop(connection, None)
        if timer is not None:
            timer.cancel()
        own = [known for known in self._all if known.peer == connection.peer]
        if len(own) > self.limits.per_peer:
            idle = [known for known in own if not known.calls]
            gone = min(idle or own, key=lambda known: known.last)
            self.log_refusal("closed", gone.address, "its peer has as many connections as it may")
            gone.reset()

    def left(self, connection: GuardedConnection) -> None:
        """Forget a connection."""
        self._all.pop(connection, None)
        self.names.pop(connection.name, None)
        timer = self._unproved.pop(connection, None)
        if timer is not None:
            timer.cancel()


def bound_socket(listen: str) -> socket.socket:
    """A listening socket. Raises: NetworkRefusal."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        family, _, _, _, place = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=1)[0]
        both = family == socket.AF_INET6 and host in ("", "::") and socket.has_dualstack_ipv6()
        made = socket.create_server(place[:2], family=family, backlog=BACKLOG, dualstack_ipv6=both)
        # Accepted connections inherit it: else the end of an answer waits 40 ms for the reader to have acknowledged.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except (OSError, ValueError, OverflowError):
        raise NetworkRefusal(
            "the server's port must be free",
            given=f"{listen}, which is in use or not ours",
            next_step="End what uses it, or choose another port in coordinator.toml (`listen` is that of the sites: "
            "the address and invitations change with it).",
        ) from None


def _address(transport: Any) -> str:
    """Address that a connection is counted under: an IPv4 address, or a /64 of IPv6, as one host has all of it."""
    shown = transport.get_extra_info("peername")
    try:
        found = ipaddress.ip_address(shown[0].partition("%")[0])
    except (ValueError, TypeError, IndexError):
        return "-"
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    return f"{found}" if found.version == 4 else f"{ipaddress.ip_network((int(found), 64), strict=False)}"
