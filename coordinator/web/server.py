"""The HTTPS port: uvicorn behind the same door that stands before gRPC, with the certificate that is in force.

The port belongs to `shared.wire.door.Door`, which counts and closes connections before anything is spent on them and
carries them, unread, to uvicorn's own socket in a folder of this user alone. TLS 1.3 ends in uvicorn.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
import os
import secrets
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.web.interface.api import Api
from coordinator.web.interface.places import Places
from coordinator.web.sign_in.device import DeviceSignIns
from coordinator.web.sign_in.kept import SignInStore
from coordinator.web.sign_in.provider import Provider
from coordinator.web.sign_in.sessions import BEARER, CONFIRM, Sessions
from coordinator.web.workbench.pages import Pages
from shared.errors import CertificateRefusal
from shared.wire.door import Door
from shared.wire.message_limits import ASKED_WAITING
from shared.wire.transport import Credentials, PortSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from coordinator.services.analysis import AnalysisService
    from coordinator.services.analysts import Analyst
    from coordinator.store.store import Store

__all__ = ["HEADERS", "WebServer"]

STOPPING = 60.0
HEADER_BYTES = 16 << 10
QUIET = 60.0  # seconds after a call in which the next must have come: uvicorn counts no more once it has a first byte
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "strict-transport-security": "max-age=31536000",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every response that does not set its own."""
T = TypeVar("T")
_log = logging.getLogger("tributary.analysts")


class WebServer:
    """A running HTTPS server.

    Args:
        service: the analysts' service. store: the coordinator's store. today: gives the UTC date.
        settings: settings of the port; the number that it got is `port`. `renew` loads the certificate again.
        person: makes the identity of who signed in by a provider.
        signing: settings of `coordinator.web.sign_in.provider.Provider`; None for tokens alone.
        house: gives this coordinator's fields of a token file, see `coordinator.web.sign_in.device`.
        first_code: SHA-256, hex, of the code by which the first token may be made in a browser; blank for none.
    Raises: NetworkRefusal (the port cannot be bound), CertificateRefusal (the certificate cannot be used).
    """

    def __init__(
        self,
        service: AnalysisService,
        store: Store,
        today: Callable[[], dt.date],
        settings: PortSettings,
        *,
        person: Callable[..., Analyst],
        signing: Mapping[str, Any] | None = None,
        house: Callable[[], Mapping[str, str]] = dict,
        first_code: str = "",
    ) -> None:
        self._credentials, self._shown = settings.credentials, settings.credentials()
        self._tls = _context(self._shown)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tributary-web-loop", daemon=True)
        self._thread.start()
        self._places = Places(settings.workers, ASKED_WAITING, settings.limits)
        kept = SignInStore(store)
        self._sessions, self._provider = Sessions(kept), Provider(kept=kept, **signing) if signing else None
        self._confirming: asyncio.Task[None] | None = None
        service.signed_in = functools.partial(_signed_in, self._sessions, person)
        door = None
        try:
            door = self._door = Door(settings.listen, settings.limits, self._loop)
            self.port: int = self._door.port
            self.api = Api(
                service,
                store,
                today=today,
                places=self._places,
                limits=settings.limits,
                device=DeviceSignIns(self._provider, self._sessions, house, kept),
                door=self._door,
                observe=settings.observe,
            )
            pages = Pages(self.api, self._sessions, person, self._provider, house=house, first_code=first_code)
            self._on_loop(self._start(application(self.api, pages)))
        except BaseException:
            if door is not None:
                self._on_loop(door.close())
            self._end(0)
            raise

    def _on_loop(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    async def _start(self, app: Starlette) -> None:
        inner = socket.socket(socket.AF_UNIX)
        inner.bind(str(self._door.inner))
        config = uvicorn.Config(
            app,
            http=_protocol(self._door),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what is to be logged, the application says: no trace of it holds what was asked
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_keep_alive=30,
        )
        config.load()
        config.ssl = self._tls
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[inner]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.005)
        await self._door.open()
        if self._provider is not None:
            self._confirming = asyncio.create_task(_confirming(self._sessions, self._provider))

    def forget(self) -> None:
        """Leave nothing in memory of what releases held until now."""
        self.api.derived.forget()

    def renew(self) -> None:
        """Load the present certificate, for new connections."""
        try:
            now = self._credentials()
            if now != self._shown:
                _load(self._tls, now)
                self._shown = now
        except Exception as error:
            _log.error("the web's certificate could not be read again: %s", type(error).__name__)

    def stop(self, grace: float = 5.0) -> None:
        """Take no new connections, let running calls end within `grace` seconds, then close."""

        async def stopped() -> None:
            await self._door.shut()
            await self.api.jobs.close()
            if self._confirming is not None:
                self._confirming.cancel()
            self._server.config.timeout_graceful_shutdown = max(1, int(grace))
            self._server.should_exit = True
            with suppress(asyncio.CancelledError):
                await self._serving
            await self._door.close()
            await asyncio.sleep(0.05)  # what was closed ends in the loop's next turns

        with suppress(TimeoutError):
            self._on_loop(stopped(), grace + STOPPING)
        self._end(grace)

    def _end(self, grace: float) -> None:
        self._places.close(wait=False)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(grace + STOPPING)
        if not self._thread.is_alive():
            self._loop.close()


async def _confirming(sessions: Sessions, provider: Provider) -> None:
    """Ask the provider again and again about those who are signed in by it."""
    while True:
        await asyncio.sleep(CONFIRM)
        try:
            await sessions.confirm(provider.confirmed, since=CONFIRM / 2)
        except Exception as error:  # whatever it says, it is asked again
            _log.error("sign-ins could not be confirmed: %s", type(error).__name__)


def _signed_in(sessions: Sessions, person: Callable[..., Analyst], token: str) -> Analyst | None:
    """Analyst of a program's session by the provider; None for any other token."""
    found = sessions.find(token, program=True) if token.startswith(BEARER) else None
    return None if found is None or found.person is None else found.person.peer(person)


def application(api: Api, pages: Pages) -> Starlette:
    """The application that answers."""
    app = Starlette(
        routes=[*pages.routes(), *api.routes()],
        middleware=[Middleware(_Counted), Middleware(_Headers)],
        exception_handlers={404: api.unknown, 405: api.wrong_verb},
    )
    app.router.redirect_slashes = False  # an address of another form is unknown, and no way to one that is not
    return app


class _Counted:
    """Has the door know while a connection's call is at work, to the last byte of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get("connection")
        with nullcontext() if connection is None else connection.at_work(quiet=QUIET):
            await self._app(scope, receive, send)


class _Headers:
    """Middleware that adds `HEADERS` to every response that lacks them, and says which is the connection's last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get("state", {}).get("connection")

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, text in HEADERS.items():
                    headers.setdefault(name, text)
                if connection is not None and connection.spent:  # else the next call would meet a reset
                    headers["connection"] = "close"
            await send(message)

        await self._app(scope, receive, marked)


def _protocol(door: Door) -> type[asyncio.Protocol]:
    """HTTP on connections that the door has carried: each call finds its connection by the name of its socket."""

    class CarriedHttp(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            name = transport.get_extra_info("peername")
            found = door.find(os.fsdecode(name) if isinstance(name, (str, bytes)) else "")
            self.app_state = {**self.app_state, "connection": found}

    return CarriedHttp


def _context(given: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    _load(context, given)
    return context


def _load(context: ssl.SSLContext, given: Credentials) -> None:
    """Use a certificate and its key. The key lies on no disk in the clear: the library takes files alone.

    Raises: CertificateRefusal, PassphraseRefusal.
    """
    from cryptography.hazmat.primitives import serialization as form

    from shared.base.at_rest import private_key

    once = secrets.token_hex(32).encode()
    try:
        key = private_key(given.key_pem.encode(), "the web's key")
        hidden = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(once))
        with tempfile.NamedTemporaryFile(prefix="tributary-web-") as file:
            file.write(given.cert_pem.encode() + b"\n" + hidden)
            file.flush()
            context.load_cert_chain(file.name, password=once)
    except (ValueError, ssl.SSLError):
        raise CertificateRefusal(
            "the web's certificate and key must be PEM, and belong together",
            given="others",
            next_step="See [web] in coordinator.toml.",
        ) from None
