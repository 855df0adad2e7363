"""The channel to the coordinator: always TLS, always with a deadline. Sites show a certificate, analysts a token.

A server takes a table of methods (`shared.wire.messages`) and one function per method; a client has one call per
method. The bytes of a message are read and written by `shared.wire.messages`; here live sockets, certificates, sizes,
time, and the one mapping between our refusals and gRPC's statuses. A refusal keeps its type from one side to the
other. An unexpected error becomes the plain code E_REFUSED: no trace, path or value of one side reaches the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.wire.door import CallLimits
from shared.wire.transport.ends import MESSAGE_CAP, SERVER_NAME, Credentials
from shared.wire.transport.peer import Call, Peer, RetryLater, peer_of

if TYPE_CHECKING:
    from shared.wire.transport.client import Client
    from shared.wire.transport.server import PATIENCE, Handler, PortSettings, Server, Service

__all__ = [
    "MESSAGE_CAP",
    "PATIENCE",
    "SERVER_NAME",
    "Call",
    "CallLimits",
    "Client",
    "Credentials",
    "Handler",
    "Peer",
    "PortSettings",
    "RetryLater",
    "Server",
    "Service",
    "peer_of",
]


def __getattr__(name: str) -> Any:
    # Commands that only name who called have no use for all messages, which come with either end.
    if name == "Client":
        from shared.wire.transport import client as end
    elif name in ("PATIENCE", "Handler", "PortSettings", "Server", "Service"):
        from shared.wire.transport import server as end  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(end, name)
