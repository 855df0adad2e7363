"""Prometheus metrics of a coordinator: how much it does, how fast, and what it runs short of.

They say nothing of records, sites, studies or analysts. Every label has a fixed list of values that stands in the code
or in this version's tables (methods, codes of refusals, checks, quotas); what is not on it becomes ``other``.

The analysts' process counts in files of a folder that both processes know (the library's multiprocess mode, which the
variable `FOLDER` switches on before the library is imported), so that a count outlives a process that was killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import CATALOGUE
from shared.wire.door import Decision
from shared.wire.messages import ANALYSIS, COLLECTION

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["FOLDER", "LABELS", "CallMetrics", "Gauge", "allowed", "exposition", "registry_of"]

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
LABELS: Mapping[str, frozenset[str]] = {
    "method": frozenset({*COLLECTION, *ANALYSIS, "other"}),
    "code": frozenset({*CATALOGUE, "ok", "other"}),
    "check": frozenset({"serving", "store", "disk", "other"}),
    "port": frozenset({"sites", "analysts", "other"}),
    "certificate": frozenset({"server", "authority", "other"}),
    "quota": frozenset({"refused bundles", "bundles under way", "ledger heads", "answers", "other"}),
}
"""Label to each value it may have; beside them there are ``le`` (a bucket's bound) and ``version`` (ours)."""
SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0)
Gauge = tuple[str, str, Mapping[str, str], float]
"""Current value of a metric: name, help text, labels, value."""


def allowed(label: str, value: str) -> str:
    """A label's value, or ``other`` for one that is not on its list.

    >>> allowed("code", "E_SMALL_N"), allowed("code", "3 persons of north")
    ('E_SMALL_N', 'other')
    """
    return value if value in LABELS[label] else "other"


class CallMetrics:
    """Counts of the calls of one port.

    Args:
        whose: ``site`` or ``analyst``: part of the names.
        registry: the registry that they are added to.
    """

    def __init__(self, whose: str, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        self._calls = Counter(
            f"tributary_{whose}_calls",
            "Calls by method and by what became of them: ok, or the code of the refusal.",
            ("method", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            f"tributary_{whose}_call_duration_seconds",
            "Seconds from a call's arrival to its answer.",
            ("method",),
            registry=registry,
            buckets=SECONDS,
        )

    def observe(self, decision: Decision) -> None:
        """Count a call."""
        method = allowed("method", decision.method)
        self._calls.labels(method, allowed("code", decision.code)).inc()
        self._seconds.labels(method).observe(decision.seconds)


def registry_of(version: str, gauges: Callable[[], Iterable[Gauge]], folder: Path | None) -> CollectorRegistry:
    """A new registry for one coordinator.

    Args:
        version: of this software.
        gauges: called at every scrape.
        folder: folder of the counts of the analysts' process; None where there is none.
    """
    from prometheus_client import CollectorRegistry, Info, ProcessCollector
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    Info("tributary_build", "Version of this software.", registry=registry).info({"version": version})
    registry.register(_Now(gauges))
    if folder is not None:
        MultiProcessCollector(registry, path=f"{folder}")
    return registry


class _Now:
    """A collector of gauges, which are asked at every scrape."""

    def __init__(self, gauges: Callable[[], Iterable[Gauge]]) -> None:
        self._gauges, self._lock = gauges, threading.Lock()

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        found: dict[str, Any] = {}
        with self._lock:
            for name, words, labels, value in self._gauges():
                family = found.setdefault(name, GaugeMetricFamily(name, words, labels=list(labels)))
                family.add_metric([allowed(label, one) for label, one in labels.items()], value)
        yield from found.values()


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The metrics as text in the form that a scraper asks for, and its content type."""
    from prometheus_client.exposition import choose_encoder

    encoder, kind = choose_encoder(accept)
    return encoder(registry), kind
