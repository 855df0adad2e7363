"""Conventions of both ends of the channel: names, caps, options, and the credentials that each shows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = [
    "CHANNEL_OPTIONS",
    "CODE_KEY",
    "MESSAGE_CAP",
    "SERVER_NAME",
    "TEXT_CAP",
    "TEXT_KEY",
    "TOKEN_FORM",
    "TOKEN_KEY",
    "Credentials",
    "carried",
    "load_grpc",
]

T = TypeVar("T")
SERVER_NAME = "tributary-coordinator"
MESSAGE_CAP = 5 << 20
TOKEN_KEY, TOKEN_FORM = "authorization", "Bearer "
TEXT_CAP = 2000
CODE_KEY, TEXT_KEY = "tributary-code", "tributary-message-bin"
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_CAP),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """TLS credentials of one end, and the authority that it trusts. PEM text; a secret never stands in a text form of
    this value.

    A client without a certificate shows its `token` instead.
    """

    ca_pem: str
    cert_pem: str = ""
    key_pem: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


async def carried(operation: Awaitable[T]) -> T:
    """Result of an operation on a call; it is cancelled, as the call is, where the caller has gone.

    At that moment gRPC cancels the call's task, and what is under way on it fails. Where a busy loop hears of both in
    one turn, `asyncio.wait_for` passes on the failure alone. A failure while the caller is there stays one.
    """
    import grpc

    try:
        return await operation
    except grpc.aio.InternalError:  # ExecuteBatchError, which has no public name
        await asyncio.sleep(0)  # the cancellation may be the loop's next turn
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise
        raise asyncio.CancelledError from None


def load_grpc() -> Any:
    """The library, told not to write its own diagnostics over a steward's screen: ours are the refusals."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    return grpc
