"""Ports of loopback that nobody has."""

from __future__ import annotations

import socket
from contextlib import ExitStack

__all__ = ["free_port", "free_ports"]


def free_ports(number: int) -> list[int]:
    """So many, each another."""
    with ExitStack() as held:
        lines = [held.enter_context(socket.socket()) for _ in range(number)]
        for line in lines:
            line.bind(("127.0.0.1", 0))
        return [line.getsockname()[1] for line in lines]


def free_port() -> int:
    """One."""
    return free_ports(1)[0]
