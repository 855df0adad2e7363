"""The airlock's port: this machine's loopback address and no other, and the headers that keep every answer here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from shared.errors import UsageRefusal
from site_agent.show.page.access import Gate
from site_agent.show.page.frame import reader
from site_agent.show.page.pages import AirlockPages

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send

    from site_agent.desk import Desk

__all__ = ["LOOPBACK", "PageSettings", "prepare", "serve"]

LOOPBACK = ("127.0.0.1", "::1")
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: a browser would then send `Origin: null` with this page's own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class PageSettings(TypedDict):
    """Settings of the page's server: address, version of the agent, date, and announcements; see `prepare`."""

    listen: str
    port: int
    agent_version: str
    today: Callable[[], dt.date]
    announce: Callable[[str, str], None]


def prepare(
    open_desk: Callable[[], Desk],
    *,
    listen: str,
    port: int,
    agent_version: str,
    today: Callable[[], dt.date],
    announce: Callable[[str, str], None],
) -> tuple[uvicorn.Server, Any]:
    """A server, not yet running, and the bound socket it runs on: ``server.run(sockets=[socket])``.

    Args:
        listen: a loopback address.
        port: 0 takes a free one.
        announce: called with the address and each new password.
    Raises: UsageRefusal: not a loopback address, or the port is taken.
    """
    import uvicorn

    if listen not in LOOPBACK:
        raise UsageRefusal(
            "the page must be served to this machine only",
            given=repr(listen),
            next_step=f"--listen takes {' or '.join(LOOPBACK)}. From afar, use your hospital's remote desktop or ssh.",
        )
    settings = uvicorn.Config(
        "",
        host=listen,
        port=port,
        # Its own configuration would close the handlers of everything that logs in this process.
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=3,
    )
    try:
        bound = settings.bind_socket()
    except SystemExit:
        raise UsageRefusal("the port must be free", given=f"{port}", next_step="Name another with --port.") from None
    chosen = int(bound.getsockname()[1])
    shown = f"[{listen}]" if ":" in listen else listen
    gate = Gate(announce=lambda password: announce(f"http://{shown}:{chosen}/", password), port=chosen)
    hosts = (f"{shown}:{chosen}", f"localhost:{chosen}")
    pages = AirlockPages(open_desk, gate=gate, hosts=hosts, agent_version=agent_version, today=today)
    settings.app = Guard(pages.application(), hosts)
    return uvicorn.Server(settings), bound


def serve(open_desk: Callable[[], Desk], **settings: Unpack[PageSettings]) -> None:
    """Serve the pages until Ctrl-C; arguments and refusals are those of `prepare`."""
    server, bound = prepare(open_desk, **settings)
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()


class Guard:
    """Answers only to the names of this page, and gives every answer the headers that keep it here."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if Headers(scope=scope).get("host", "") not in self.hosts:
            said = reader(Request(scope))("This page has another name.")
            await PlainTextResponse(said, status_code=421)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)
