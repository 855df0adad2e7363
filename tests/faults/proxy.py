"""A network that drops, cuts, delays, repeats, cuts short and flips bits: a relay between a site and its coordinator.

What it does to a piece of traffic is a function of that piece, so that a test says exactly how it lies.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["LIES", "Proxy", "through"]

Lie = Callable[["Piece", random.Random], bytes]
"""What becomes of a piece of traffic; it raises `ConnectionError` to cut the connection."""
RATE = 0.05
"""Share of the pieces that are lied about: some ten make up a delivery."""


@dataclass(frozen=True)
class Piece:
    """Bytes on their way: from the site where `out`, after `before` others of this connection and direction."""

    data: bytes
    out: bool
    before: int


def _drop(piece: Piece, rng: random.Random) -> bytes:
    if not piece.before and rng.random() < 0.3:
        raise ConnectionError
    return piece.data


def _cut(piece: Piece, rng: random.Random) -> bytes:
    if piece.before > 3000 and rng.random() < RATE:
        raise ConnectionError
    return piece.data


def _shorten(piece: Piece, rng: random.Random) -> bytes:
    return piece.data[: len(piece.data) // 2] if piece.before > 3000 and rng.random() < RATE else piece.data


def _repeat(piece: Piece, rng: random.Random) -> bytes:
    return piece.data * 2 if piece.before > 3000 and rng.random() < RATE else piece.data


def _flip(piece: Piece, rng: random.Random) -> bytes:
    if rng.random() > RATE:
        return piece.data
    changed = bytearray(piece.data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _delay(piece: Piece, rng: random.Random) -> bytes:
    time.sleep(rng.uniform(0, 0.02))
    return piece.data


def _refuse(piece: Piece, rng: random.Random) -> bytes:
    """A proxy that wants a password first, in the clear."""
    return piece.data if piece.out else b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"


def _swallow(piece: Piece, rng: random.Random) -> bytes:
    return b""


LIES: dict[str, Lie] = {
    "drops connections": _drop,
    "cuts in the middle": _cut,
    "cuts pieces short": _shorten,
    "repeats pieces": _repeat,
    "flips bits": _flip,
    "is slow": _delay,
    "asks for a password": _refuse,
    "swallows everything": _swallow,
}


class Proxy:
    """A relay to a port of this machine.

    Args:
        target: the port.
        lie: what it does; None passes everything on.
        source: address of this machine that it dials from.
    """

    def __init__(self, target: int, lie: Lie | None, rng: random.Random, source: str = "127.0.0.1") -> None:
        self.target, self.lie, self._rng, self.source = target, lie, rng, source
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End it, with every connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end(*self._open)
        for thread in self._threads:
            thread.join(10)

    def _end(self, *lines: socket.socket) -> None:
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                site, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=10, source_address=(self.source, 0))
                far.settimeout(None)
            except OSError:
                site.close()
                continue
            self._open |= {site, far}
            for source, sink, out in ((site, far, True), (far, site, False)):
                thread = threading.Thread(target=self._pass, args=(source, sink, out))
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, out: bool) -> None:
        before = 0
        try:
            while data := source.recv(16_384):
                passed = data if self.lie is None else self.lie(Piece(data, out, before), self._rng)
                before += len(data)
                sink.sendall(passed)
        except OSError:
            pass
        finally:
            self._end(source, sink)
            self._open -= {source, sink}


@contextlib.contextmanager
def through(target: int, lie: Lie | None, seed: int, source: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy for as long as it is needed."""
    proxy = Proxy(target, lie, random.Random(seed), source)
    try:
        yield proxy
    finally:
        proxy.close()
