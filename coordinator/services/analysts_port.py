"""The analysts' port in a process of its own: what its callers do to it, no site feels.

Beside the service the process has the store and the server's certificate. The authority's key, with which new
certificates are made, stays where the sites are answered. It takes its settings as one line of JSON on its standard
input, says there which port it got, and ends when that input ends: so it never outlives the coordinator it is part of.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.config import AnalysisSettings, Quotas
from coordinator.operations.logs import begin_log
from coordinator.operations.metrics import FOLDER, CallMetrics
from coordinator.services.analysis import AnalysisService
from coordinator.services.analysts import Analyst
from coordinator.services.authority import server_credentials
from coordinator.services.quotas import deleted
from coordinator.store.store import Store
from shared.base.clock import utc_now
from shared.errors import CertificateRefusal, ConfigRefusal, NetworkRefusal, Refusal, refusal_from_code, require
from shared.wire.door import Decision
from shared.wire.message_limits import ASKED_CAP, ASKED_LONGEST, ASKED_WAITING
from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
from shared.wire.transport import SERVER_NAME, CallLimits, Credentials, PortSettings, Server, Service

if TYPE_CHECKING:
    from coordinator.web.server import WebServer

__all__ = ["AnalystsProcess", "AnalystsServer", "analysts_server"]

# An analyst's message is small: whoever takes longer for it than this is not sending one.
FIRST = 10.0
LOOK = 20.0  # seconds after which what was deleted is in no memory
LONGEST_PAUSE = 60.0
START = 120.0  # seconds that the process may take to answer on its port
ENDING = 10.0  # and to end once it is told to
_log = logging.getLogger("tributary.analysts")


@dataclass(frozen=True, kw_only=True)
class AnalystsServer:
    """A server that answers analysts, with the processes in which it computes.

    Args:
        server: answers over gRPC. web: answers over HTTPS. Either may be None.
    """

    server: Server | None
    web: WebServer | None
    service: AnalysisService
    ended: threading.Event

    @property
    def port(self) -> int:
        """The port that it got for gRPC; 0 for none."""
        return self.server.port if self.server is not None else 0

    @property
    def web_port(self) -> int:
        """The port that it got for HTTPS; 0 for none."""
        return self.web.port if self.web is not None else 0

    def stop(self, grace: float = 5.0) -> None:
        """Let running calls end within `grace` seconds, then close everything."""
        self.ended.set()
        for server in (self.web, self.server):
            if server is not None:
                server.stop(grace)
        self.service.close()


def _watched(store: Store, service: AnalysisService, web: WebServer | None, known: int, ended: threading.Event) -> None:
    """Until `ended`, every `LOOK` seconds: load a renewed certificate, and forget what another process has deleted."""
    while not ended.wait(LOOK):
        if web is not None:
            web.renew()
        with suppress(Refusal):  # a store that cannot be read: a question says so
            if (now := len(deleted(store))) != known:
                known = now
                service.forget()
                if web is not None:
                    web.forget()


def analysts_server(
    store: Store,
    settings: PortSettings,
    *,
    today: Callable[[], dt.date],
    analysis: AnalysisSettings,
    quotas: Quotas,
    web: Mapping[str, Any] | None = None,
) -> AnalystsServer:
    """A server that answers analysts, by one service over gRPC, HTTPS or both.

    Args:
        store: the coordinator's store.
        settings: settings of its ports; ``listen`` is for gRPC, blank for none.
        today: gives the UTC date.
        analysis: rate limits and resources of questions.
        quotas: quotas of stored answers and sites' estimates.
        web: ``listen`` (``host:port`` to bind for HTTPS), and the files ``certificate`` and ``key``, blank for the
            coordinator's own; ``analysts`` (``host:port`` that gRPC is dialled at) and ``witness`` (the log's key), for
            who signs in from a notebook; ``first_code`` (SHA-256, hex, of the code for the first token); None for no
            HTTPS.
    Raises: NetworkRefusal (the port is taken); CertificateRefusal (one that cannot be used).
    """
    known = len(deleted(store))
    asked = AnalysisService(store, analysis, quotas=quotas, today=today)
    asked.start()
    limits = replace(settings.limits, first=min(settings.limits.first, FIRST))
    server, over_https, settings = None, None, replace(settings, limits=limits)
    try:
        if settings.listen:
            service = Service(
                name=ANALYSIS_SERVICE,
                methods=ANALYSIS,
                handlers=asked.handlers,
                request_cap=ASKED_CAP,
                longest=ASKED_LONGEST,
                waiting=ASKED_WAITING,
            )
            server = Server(service, settings, identify=asked.identify)
        if web:
            dialled = web.get("analysts") or (f"{settings.listen.rpartition(':')[0]}:{server.port}" if server else "")
            over_https = _web_server(asked, store, today, {**web, "analysts": dialled}, settings)
    except BaseException:
        if server is not None:
            server.stop(0)
        asked.close()
        raise
    ended = threading.Event()
    threading.Thread(target=_watched, args=(store, asked, over_https, known, ended), daemon=True).start()
    return AnalystsServer(server=server, web=over_https, service=asked, ended=ended)


def _web_server(
    service: AnalysisService,
    store: Store,
    today: Callable[[], dt.date],
    web: Mapping[str, Any],
    settings: PortSettings,
) -> WebServer:
    """The HTTPS server. Raises: PackageRefusal, NetworkRefusal, CertificateRefusal."""
    for name in ("starlette", "uvicorn", "jinja2"):
        require(name, part="coordinator")
    from coordinator.web.server import WebServer

    def own() -> Credentials:
        if not web["certificate"]:
            return settings.credentials()
        try:
            cert_pem, key_pem = (Path(web[name]).read_text(encoding="utf-8") for name in ("certificate", "key"))
        except (OSError, ValueError):
            raise CertificateRefusal(
                "the files of [web] must be readable", given="none", next_step="See [web] in coordinator.toml."
            ) from None
        return Credentials(ca_pem="", cert_pem=cert_pem, key_pem=key_pem)

    signing: dict[str, Any] | None = None
    if web.get("issuer"):
        require("httpx", "joserfc", part="coordinator")
        signing = {name: web[name] for name in ("issuer", "client_id", "role_claim", "studies_claim")}
        signing["redirect"] = f"https://{web['address']}/sign-in/back"
        if web["client_secret"]:
            try:
                signing["client_secret"] = Path(web["client_secret"]).read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                raise ConfigRefusal("the file of web.client_secret must be readable", given="none") from None

    def house() -> dict[str, str]:
        known = {"address": web["analysts"], "server_name": SERVER_NAME, "witness": web.get("witness", "")}
        return {**known, "ca_pem": settings.credentials().ca_pem}

    port, code = replace(settings, listen=web["listen"], credentials=own), web.get("first_code", "")
    return WebServer(service, store, today, port, person=Analyst, signing=signing, house=house, first_code=code)


class AnalystsProcess:
    """The process that answers analysts, as the coordinator sees it; started again when it ends by itself.

    Args:
        home: the coordinator's home folder.
        listen: ``host:port`` to bind.
        counted: folder in which it counts its calls, see `coordinator.operations.metrics`; None: nowhere.
        settings: those of `coordinator.services.collect.server.ServerSettings`, as plain values.
    Raises: NetworkRefusal (the port is taken); any refusal of the store.
    """

    def __init__(self, home: Path, listen: str, counted: Path | None = None, **settings: Any) -> None:
        self._environment = dict(os.environ) if counted is None else {**os.environ, FOLDER: f"{counted}"}
        given = {"home": os.fspath(home), "listen": listen, **settings}
        self._line = json.dumps(given)
        self._ended, self._guard = threading.Event(), threading.Lock()
        self._process, (self.port, self.web_port) = self._begin()
        if listen:
            given["listen"] = f"{listen.rpartition(':')[0]}:{self.port}"
        if given.get("web"):
            host = given["web"]["listen"].rpartition(":")[0]
            given["web"] = {**given["web"], "listen": f"{host}:{self.web_port}"}
        self._line = json.dumps(given)
        self._watch = threading.Thread(target=self._watched, name="tributary-analysts", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        """The process's number now."""
        return self._process.pid

    def _begin(self) -> tuple[subprocess.Popen[str], tuple[int, int]]:
        command = [sys.executable, "-c", f"import {__name__}; {__name__}.main()"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self._environment)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(self._line + "\n")
            process.stdin.flush()
            answered = wait([process.stdout.fileno()], START)
            said = json.loads(process.stdout.readline() or "{}") if answered else {}
        except BrokenPipeError:
            said = {}
        if "port" in said:
            return process, (int(said["port"]), int(said["web_port"]))
        _close(process)  # it ends with its input
        _ended(process, ENDING)
        if "refused" in said:
            raise refusal_from_code(said["refused"], said["text"])
        raise NetworkRefusal(
            "the analysts' port must be answered",
            given="a process that ended" if answered else f"one that said nothing in {START:g} seconds",
            next_step="See log.",
        )

    def _watched(self) -> None:
        pause = 1.0
        while True:
            code = str(self._process.wait())
            while True:
                if self._ended.wait(pause):
                    return
                _log.error("the analysts' process ended with %s; it is started again", code)
                pause = min(2 * pause, LONGEST_PAUSE)
                try:
                    begun, _ = self._begin()
                    with self._guard:
                        if self._ended.is_set():
                            begun.kill()
                        _close(self._process)
                        self._process = begun
                    break
                except (Refusal, OSError) as error:
                    code = error.code if isinstance(error, Refusal) else type(error).__name__

    def stop(self, grace: float = 5.0) -> None:
        """Let running calls end within `grace` seconds, then end the process."""
        with self._guard:
            self._ended.set()
            process = self._process
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(grace) + "\n")
            process.stdin.flush()
        _ended(process, grace + ENDING)
        self._watch.join(START + 2 * ENDING)  # it may be starting the next one
        _close(process)


def main() -> None:
    """Run the process: read settings from the first line of stdin, answer, and end with its next line or its end."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the coordinator, which tells this process
        signal.signal(number, signal.SIG_IGN)
    given = json.loads(sys.stdin.readline())
    home = Path(given["home"])
    try:
        begin_log(given.get("log", {}))
        store = Store.open(home, given["url"], given["bundles"])
        settings = PortSettings(
            listen=given["listen"],
            credentials=lambda: server_credentials(home),
            workers=given["workers"],
            limits=CallLimits(**given["limits"]),
            observe=_counting(),
        )
        server = analysts_server(
            store,
            settings,
            today=lambda: utc_now().date(),
            analysis=AnalysisSettings(**given["analysis"]),
            quotas=Quotas(**given["quotas"]),
            web=given.get("web"),
        )
    except Refusal as refusal:
        _say({"refused": refusal.code, "text": str(refusal)})
        return
    _say({"port": server.port, "web_port": server.web_port})
    grace = sys.stdin.readline()
    if grace:  # else the coordinator is gone, and its next one will want the port
        server.stop(float(grace))
        store.close()
    os._exit(0)


def _counting() -> Callable[[Decision], None] | None:
    """Counter of a server's calls; None where no metrics are collected."""
    if FOLDER not in os.environ:
        return None
    from prometheus_client import CollectorRegistry

    return CallMetrics("analyst", CollectorRegistry()).observe


def _ended(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait for a process to end; end it where it does not."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close(process: subprocess.Popen[str]) -> None:
    """Close the pipes of a process that has ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _say(what: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
