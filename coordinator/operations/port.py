"""Two small ports for machines that watch: ``/healthz``, ``/readyz``, ``/metrics`` by HTTP, and gRPC's health service.

Both are plain and answer everybody who reaches them, with words that say nothing of records, sites or studies. They
are for this machine, or for the network of a cluster; neither shows a certificate, because no probe of Kubernetes and
few load balancers could show one back. The sites' port stays as it is: it answers nobody without a certificate.

Alive means that calls can be answered at all; whoever finds it untrue starts the service again. Ready means that calls
are to be sent here. A coordinator that was told to end, or whose store or disk fails, is alive and not ready.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from coordinator.operations.metrics import exposition
from shared.errors import NetworkRefusal, Refusal
from shared.wire.door import bound_socket

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["GrpcHealthPort", "HttpPort", "Readiness", "application"]

LOOK = 1.0  # seconds between two looks at what readiness rests on
STALE = 10.0  # seconds after which a look that has not come back counts as a failure
_log = logging.getLogger("tributary.operations")


class Readiness:
    """Readiness to take calls, checked once a second by a thread of its own, so that a probe costs nothing.

    Args:
        checks: name to a function that returns, or raises a refusal.
        changed: called with the readiness at the beginning, and at each change.
    """

    def __init__(
        self, checks: Mapping[str, Callable[[], object]], changed: Callable[[bool], None] = lambda ready: None
    ) -> None:
        self._checks, self._changed = checks, changed
        self._found: dict[str, str] = {}
        self._looked, self._draining, self._ended = 0.0, False, threading.Event()
        self._look()
        self._said = self.ready
        changed(self._said)
        threading.Thread(target=self._looking, name="tributary-readiness", daemon=True).start()

    def _look(self) -> None:
        found = {}
        for name, check in self._checks.items():
            try:
                check()
                found[name] = "ok"
            except Refusal as refusal:
                found[name] = refusal.code
        self._found, self._looked = found, time.monotonic()

    def _looking(self) -> None:
        while not self._ended.wait(LOOK):
            self._look()
            self._tell()

    def _tell(self) -> None:
        ready = self.ready
        if ready != self._said:
            self._said = ready
            level = logging.INFO if self._draining else logging.WARNING
            _log.log(level, "ready again" if ready else f"not ready: {self._words()}")
            self._changed(ready)

    def _words(self) -> str:
        return ", ".join(f"{name} {said}" for name, said in self.checks.items() if said != "ok")

    @property
    def checks(self) -> dict[str, str]:
        """Name of each check to ``ok`` or what is wrong: the code of a refusal, ``late``, ``draining``."""
        late = time.monotonic() - self._looked > STALE
        found = dict.fromkeys(self._found, "late") if late else self._found
        return {"serving": "draining" if self._draining else "ok", **found}

    @property
    def ready(self) -> bool:
        """True if every check is well."""
        return set(self.checks.values()) == {"ok"}

    def drain(self) -> None:
        """Become not ready, for good."""
        self._draining = True
        self._tell()

    def close(self) -> None:
        """Stop the checks."""
        self._ended.set()


def application(alive: Callable[[], bool], readiness: Readiness, registry: CollectorRegistry) -> Starlette:
    """HTTP application of the health port: ``/healthz``, ``/readyz`` and ``/metrics``.

    Args:
        alive: returns True if calls can be answered at all.
        readiness: readiness to take calls.
        registry: the metrics.
    """
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    # Plain functions: each runs in a thread, so that a store that is slow to be counted holds up no probe.
    def healthz(request: Request) -> Response:
        well = alive()
        return JSONResponse({"alive": well}, 200 if well else 503)

    def readyz(request: Request) -> Response:
        checks = readiness.checks
        well = set(checks.values()) == {"ok"}
        return JSONResponse({"ready": well, "checks": checks}, 200 if well else 503)

    def metrics(request: Request) -> Response:
        body, kind = exposition(registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind, "cache-control": "no-store"})

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)])


class HttpPort:
    """The HTTP port, answered by a thread of its own.

    Args:
        listen: ``host:port``; port 0 takes a free one, see `port`.
        app: `application`.
    Raises: NetworkRefusal, when the port cannot be bound.
    """

    def __init__(self, listen: str, app: Starlette) -> None:
        import uvicorn

        self._bound = bound_socket(listen)
        self.port = int(self._bound.getsockname()[1])
        settings = uvicorn.Config(
            app,
            log_config=None,  # its own would close the handlers of everything that logs in this process
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            ws="none",
            limit_concurrency=64,
            timeout_graceful_shutdown=3,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._bound]}, name="tributary-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.should_exit = True
        self._thread.join(10.0)
        self._bound.close()


class GrpcHealthPort:
    """gRPC's standard health service (``grpc.health.v1.Health``) on a plain port, for its probes and balancers.

    Args:
        listen: ``host:port``; port 0 takes a free one, see `port`.
        services: full names of the services that it speaks for; the empty name speaks for all.
    Raises: NetworkRefusal, when the port cannot be bound.
    """

    def __init__(self, listen: str, services: tuple[str, ...]) -> None:
        import grpc
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        self._status, self._names = health_pb2.HealthCheckResponse, ("", *services)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="tributary-health")
        # A call that watches holds no thread (the servicer's default), but a place: sixteen are enough for probes.
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=16)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.tell(False)
        try:
            self.port = int(self._server.add_insecure_port(listen))
        except RuntimeError:
            self._pool.shutdown(wait=False)
            raise NetworkRefusal(
                "the port for gRPC's health service must be free",
                given=listen,
                next_step="See health_grpc in coordinator.toml.",
            ) from None
        self._server.start()

    def tell(self, ready: bool) -> None:
        """Report the readiness to clients that ask or watch."""
        for name in self._names:
            self._health.set(name, self._status.SERVING if ready else self._status.NOT_SERVING)

    def close(self) -> None:
        """Answer no more."""
        self._server.stop(1.0).wait()
        self._pool.shutdown(wait=False)
