"""Monitoring of a running coordinator: its readiness, its metrics, and the ports that serve them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from coordinator.operations.metrics import CallMetrics, Gauge, registry_of
from coordinator.operations.port import GrpcHealthPort, HttpPort, Readiness, application
from coordinator.services.analysts import Analysts
from coordinator.services.quotas import quota_uses
from shared import software_version
from shared.base.process import owned_folder
from shared.errors import Refusal, StorageRefusal
from shared.wire.messages import ANALYSIS_SERVICE, SERVICE

if TYPE_CHECKING:
    from coordinator.config import Quotas
    from coordinator.services.authority import Authority
    from coordinator.store.store import Store
    from shared.wire.transport import Server

__all__ = ["Monitor"]

LEAST_SPACE = 64 << 20  # bytes; with less, every offer is refused (`staging.make_room`)
QUOTAS_SECONDS = 60.0


class Monitor:
    """The health and the metrics of one coordinator.

    Args:
        home: its home folder.
        store: its store.
        authority: its certificate authority.
        quotas: quotas of one site and of one token.
        analysts: True if a process of its own answers analysts.
    """

    def __init__(self, home: Path, store: Store, authority: Authority, quotas: Quotas, *, analysts: bool) -> None:
        self._home, self._store, self._authority, self._quotas = home, store, authority, quotas
        self._counted: tuple[float, list[Gauge]] = (-QUOTAS_SECONDS, [])
        self._closing = ExitStack()
        self.folder = self._closing.enter_context(owned_folder("tributary-metrics")) if analysts else None
        self.registry = registry_of(software_version(), self._gauges, self.folder)
        self.observe = CallMetrics("site", self.registry).observe
        self.port = self.grpc_port = 0

    def start(self, server: Server, listen: str, listen_grpc: str, *, answers_analysts: bool) -> None:
        """Open the ports.

        Args:
            server: answers the sites.
            listen: ``host:port`` for HTTP; blank: none.
            listen_grpc: ``host:port`` for gRPC's health service; blank: none.
            answers_analysts: True if this coordinator answers analysts.
        Raises: NetworkRefusal, when a port cannot be bound.
        """
        self._server = server
        services = (SERVICE, *([ANALYSIS_SERVICE] if answers_analysts else []))
        watched = GrpcHealthPort(listen_grpc, services) if listen_grpc else None
        if watched is not None:
            self._closing.callback(watched.close)
            self.grpc_port = watched.port
        checks = {"store": self._store_answers, "disk": self._disk_has_room}
        self._readiness = Readiness(checks, watched.tell if watched else lambda ready: None)
        self._closing.callback(self._readiness.close)
        if listen:
            http = HttpPort(listen, application(server.answers, self._readiness, self.registry))
            self._closing.callback(http.close)
            self.port = http.port

    def drain(self) -> None:
        """Say from now on that calls are to be sent elsewhere."""
        self._readiness.drain()

    def close(self) -> None:
        """Answer no more."""
        self._closing.close()

    def _store_answers(self) -> None:
        self._store.read(lambda c: c.execute(sa.text("SELECT 1")).scalar())

    def _disk_has_room(self) -> None:
        try:
            free = shutil.disk_usage(self._home).free
        except OSError as error:
            raise StorageRefusal("the home folder must be readable", given=error.strerror or "no") from None
        if free < LEAST_SPACE:
            raise StorageRefusal("there must be room for a release", given=f"{free >> 20} MB")

    # -- what is true now -----------------------------------------------------------------------------------------
    def _gauges(self) -> Iterator[Gauge]:
        if self.port == 0:  # not yet asked by anybody
            return
        checks = self._readiness.checks
        well = float(set(checks.values()) == {"ok"})
        yield "tributary_ready", "1 if calls are to be sent here.", {}, well
        for name, said in checks.items():
            yield "tributary_check_ok", "1 if what readiness rests on is well.", {"check": name}, float(said == "ok")
        connections, calls = self._server.load
        yield "tributary_connections", "Connections of sites now.", {}, connections
        yield "tributary_calls_in_progress", "Calls of sites that are being answered now.", {}, calls
        with suppress(OSError):
            free = shutil.disk_usage(self._home).free
            yield "tributary_disk_free_bytes", "Bytes free in the home folder.", {}, free
        with suppress(Refusal):
            yield "tributary_log_entries", "Entries of the log.", {}, self._store.entries()
        words = "When a certificate ends, in seconds since 1970."
        name = "tributary_certificate_expiry_timestamp_seconds"
        with suppress(OSError, ValueError):
            shown = self._authority.server_certificate.not_valid_after_utc
            yield name, words, {"certificate": "server"}, shown.timestamp()
        yield name, words, {"certificate": "authority"}, self._authority.current().ends.timestamp()
        yield from self._quota_gauges()

    def _quota_gauges(self) -> list[Gauge]:
        """The largest share of each quota that anybody has; counted once a minute: it looks at every folder."""
        counted, found = self._counted
        if time.monotonic() - counted < QUOTAS_SECONDS:
            return found
        try:
            kept = Analysts(self._store, self._quotas).stored_bytes()
            uses = quota_uses(self._home, self._store, self._quotas, kept)
        except (Refusal, OSError):
            return found
        most: dict[str, float] = {}
        for use in uses:
            most[use.what] = max(most.get(use.what, 0.0), use.used / use.most)
        words = "Largest share of a quota that one site or token has."
        found = [("tributary_quota_used_ratio", words, {"quota": what}, share) for what, share in most.items()]
        self._counted = (time.monotonic(), found)
        return found
