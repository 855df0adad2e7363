"""Server of a coordinator: its home folder locked, its ports bound, until it is stopped."""

from __future__ import annotations

import datetime as dt
import fcntl
import functools
import logging
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from coordinator.config import AnalysisSettings, LogSettings, Quotas
from coordinator.operations.logs import begin_log
from coordinator.services.analysts_port import AnalystsProcess, AnalystsServer, analysts_server
from coordinator.services.authority import Authority
from coordinator.services.collect.ingest import MAX_BUNDLE
from coordinator.services.collect.monitor import Monitor
from coordinator.services.collect.service import CollectionService, utc_today
from coordinator.services.health import require_home, require_whole
from coordinator.store.store import Store
from shared.base.archive import sweep
from shared.base.process import give_back
from shared.errors import (
    LockedRefusal,
)
from shared.wire.clocks import utc_now
from shared.wire.messages import COLLECTION, SERVICE
from shared.wire.transport import CallLimits, PortSettings, Server, Service

__all__ = ["CoordinatorServer", "ServerSettings", "serve"]

DESCRIPTORS = 65_536
TIDYING = 30  # seconds after which memory that deliveries have left is given back
STARTING = 60.0  # seconds for which one of several waits for the first, which looks after the folders


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a coordinator's server: its storage, its limits, and the ports beside that of its sites.

    Args:
        url: database, if not SQLite in the home folder; as it may hold a password, it is left out of the text form.
        bundles: object store of the bundles; blank if they are in a folder of the home folder.
        max_bundle: most bytes of one release.
        quotas: quotas of one site and of one token.
        workers: threads that answer.
        limits: limits on the calls of one address and of one peer, for either port.
        analysts: ``host:port`` to bind for analysts; blank answers none. See `analysts_port`.
        analysis: rate limits and resources of analysts' questions.
        web: settings of analysts' HTTPS server, as of `analysts_port.analysts_server`; None for no such server.
        health: ``host:port`` for health and metrics by HTTP; blank for none. See `monitor`.
        health_grpc: ``host:port`` for gRPC's health service; blank for none.
        log: settings of the log of each process.
    """

    url: str = field(default="", repr=False)
    bundles: str = ""
    max_bundle: int = MAX_BUNDLE
    quotas: Quotas = field(default_factory=Quotas)
    workers: int = 16
    limits: CallLimits = field(default_factory=CallLimits)
    analysts: str = ""
    analysis: AnalysisSettings = field(default_factory=AnalysisSettings)
    web: Mapping[str, Any] | None = None
    health: str = ""
    health_grpc: str = ""
    log: LogSettings = field(default_factory=LogSettings)


class CoordinatorServer:
    """A coordinator that serves; the only one on its home folder, but where the store is a database server's.

    Of several on one home each binds ports of its own, or has them on a machine of its own that sees the same folder.
    They share store, bundles and uploads under way; limits of rates and of connections hold for each by itself.

    Args:
        home: the home folder, with an authority in it (`Authority.create`).
        listen: ``host:port`` to bind; port 0 takes a free one, see `port`.
        settings: its storage, limits and further ports.
        apart: True if a process of their own answers analysts.
        today: gives the UTC date.
        now: gives the time in UTC.
    Raises: StateRefusal (not set up, or its bundles lie with another's), LockedRefusal (another one serves),
        NetworkRefusal (the port is taken).
    """

    def __init__(
        self,
        home: Path,
        listen: str,
        settings: ServerSettings | None = None,
        *,
        apart: bool = False,
        today: Callable[[], dt.date] = utc_today,
        now: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        mine = settings or ServerSettings()
        authority = Authority.load(home, now=now)
        with ExitStack() as undone:  # whatever was begun ends in the opposite order, here or in `stop`
            self._lock = undone.enter_context((home / "server.lock").open("a"))
            alone = _hold(self._lock, together=shareable(mine.url))
            if alone:
                sweep(home)
            self.store = undone.enter_context(closing(Store.open(home, mine.url, mine.bundles)))
            self.service = CollectionService(
                home=home,
                store=self.store,
                authority=authority,
                max_bundle=mine.max_bundle,
                quotas=mine.quotas,
                today=today,
                now=now,
            )
            undone.callback(lambda: self.service.close())
            require_whole(self.store)
            require_home(self.store, home, authority)
            self.monitor: Monitor | None = None
            answers = bool(mine.analysts or mine.web)
            if mine.health or mine.health_grpc:
                self.monitor = Monitor(home, self.store, authority, mine.quotas, analysts=answers and apart)
                undone.callback(self.monitor.close)
            self.service.start()
            if alone:  # else another process may have moved a bundle that it has not committed yet
                self.service.recover()
                if shareable(mine.url):
                    fcntl.flock(self._lock, fcntl.LOCK_SH)
            port = PortSettings(
                listen=listen,
                credentials=functools.partial(authority.server, self.service.may_issue),
                workers=mine.workers,
                limits=mine.limits,
                observe=self.monitor.observe if self.monitor else None,
            )
            service = Service(name=SERVICE, methods=COLLECTION, handlers=self.service.handlers)
            self._server = Server(service, port, admit=self.service.admit)
            with ExitStack() as begun:
                begun.callback(self._server.stop, 0)
                mine = replace(mine, web=mine.web and {**mine.web, "witness": authority.witness.public.hex})
                self._analysis: AnalystsServer | AnalystsProcess | None = None
                if answers and apart:
                    counted = self.monitor.folder if self.monitor else None
                    self._analysis = AnalystsProcess(home, mine.analysts, counted, **asdict(mine))
                elif answers:
                    self._analysis = analysts_server(
                        self.store,
                        replace(port, listen=mine.analysts, observe=None),
                        today=today,
                        analysis=mine.analysis,
                        quotas=mine.quotas,
                        web=mine.web,
                    )
                if self._analysis is not None:
                    begun.callback(self._analysis.stop, 0)
                if self.monitor is not None:
                    self.monitor.start(
                        self._server, mine.health, mine.health_grpc, answers_analysts=bool(mine.analysts)
                    )
                begun.pop_all()
            self._undone = undone.pop_all()
        self.port = self._server.port
        self.analysts_port = self._analysis.port if self._analysis is not None else 0
        self.web_port = self._analysis.web_port if self._analysis is not None else 0

    def drain(self) -> None:
        """Report to load balancers that calls are to be sent elsewhere; calls that still arrive are answered."""
        if self.monitor is not None:
            self.monitor.drain()

    def stop(self, grace: float = 5.0) -> bool:
        """Let running calls end within `grace` seconds, then close everything; False if one goes on all the same."""
        self.drain()
        with self._undone as last:
            if self._analysis is not None:
                last.callback(self._analysis.stop, grace)
            return self._server.stop(grace)

    def __enter__(self) -> CoordinatorServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0.5)


def shareable(url: str) -> bool:
    """True if several processes may serve a home folder whose store this is: a database server's."""
    return url.startswith("postgresql")


def _hold(lock: IO[str], *, together: bool) -> bool:
    """Hold a home folder; True if nobody else does, False if it is held together with others that serve it.

    Raises: LockedRefusal.
    """
    until = time.monotonic() + STARTING
    while True:
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH) if together else (fcntl.LOCK_EX,):
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
                return kind == fcntl.LOCK_EX
            except OSError:
                continue
        if not together or time.monotonic() > until:
            raise LockedRefusal(
                "one coordinator must serve a home folder",
                given="a second one",
                next_step="Several may where the store is PostgreSQL (store in coordinator.toml).",
            )
        time.sleep(0.1)  # the first one of several is starting


def serve(
    home: Path,
    address: str,
    settings: ServerSettings | None = None,
    *,
    ready: Callable[[int], None] = lambda port: None,
    watched: Callable[[int], None] = lambda port: None,
    drain: float = 0.0,
    grace: float = 5.0,
) -> None:
    """Serve until SIGTERM or SIGINT: then be ready no more, let running calls end, and return.

    Args:
        home: the coordinator's home folder.
        address: ``host:port`` to bind.
        settings: its storage, limits and further ports.
        ready: called with the port when calls are answered.
        watched: called with the port for health and metrics, if there is one.
        drain: seconds for which new calls are still taken after the signal, until whoever sends them has noticed.
        grace: seconds that running calls then have; a call that is cut off is made again by the agent.
    """
    mine = settings or ServerSettings()
    begin_log(asdict(mine.log))
    # A connection takes three descriptors: the usual soft limit of 1,024 is for programs that call select.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS:
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    stopping = {signal.SIGTERM, signal.SIGINT}
    # Read from a pipe that the signal writes to. A handler alone is not enough: when it is noted just before the main
    # thread goes to sleep on a lock, it runs only at the next signal, and the server would not end.
    wake, wake_up = os.pipe()
    os.set_blocking(wake_up, False)
    signals = select.poll()
    signals.register(wake, select.POLLIN)
    earlier = {number: signal.signal(number, lambda *_: None) for number in stopping}
    before = signal.set_wakeup_fd(wake_up)
    try:
        coordinator = CoordinatorServer(home, address, mine, apart=True)
        try:
            ready(coordinator.port)
            if coordinator.monitor is not None and coordinator.monitor.port:
                watched(coordinator.monitor.port)
            while not (signals.poll(1000 * TIDYING) and os.read(wake, 1)[0] in stopping):
                give_back()
            coordinator.drain()
            time.sleep(drain)
        finally:
            whole = coordinator.stop(grace)
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(wake_up)
    if not whole:  # the interpreter would wait for a thread that does not come back
        logging.shutdown()
        os._exit(1)
