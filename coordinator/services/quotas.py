"""What one site and one token may leave here: bytes, rates, days; and who is near a bound.

Nothing that is acknowledged is ever dropped: accepted releases, witnessed heads, the log, and the record of questions
stay. What is bounded is the rest. Refused bytes are evidence for a while, and then their digest and reason are; an
answer can be computed again. Witnessed heads cannot be dropped, so that a site that fills its share of them is refused
until the lead widens it. Whoever comes within `ALARM` of a bound is named in the log and by `coordinator doctor`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import RateRefusal

if TYPE_CHECKING:
    from coordinator.config import Quotas
    from coordinator.store.store import Store

__all__ = ["ALARM", "CallRate", "QuotaUse", "expire_refused", "quota_uses", "refused_files", "staged_files"]

ALARM = 0.8
SHARE = 4  # of all answers that are kept, one token may have a quarter


class CallRate:
    """A bucket of permissions per caller that fills at a steady rate.

    Args:
        per_second: permissions that come in a second; 0 for no limit.
        burst: permissions that a bucket holds.
        what: says who may do what how often, for the refusal.
        clock: gives seconds that only grow.

    >>> now = [0.0]
    >>> rate = CallRate(1.0, 2, "a token may ask 60 times a minute", lambda: now[0])
    >>> rate.take("a"), rate.take("a")
    (None, None)
    >>> rate.take("a")
    Traceback (most recent call last):
    shared.errors.RateRefusal: a token may ask 60 times a minute, got more. Wait a little.
    >>> now[0] = 1.0
    >>> rate.take("a")
    """

    def __init__(self, per_second: float, burst: int, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst, self._what, self._clock = per_second, burst, what, clock
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, who: str) -> None:
        """Take one permission. Raises: RateRefusal, when there is none."""
        if not self._per_second:
            return
        with self._lock:
            left, now = self._now(who)
            self._left[who] = (left - (left >= 1), now)
        if left < 1:
            raise RateRefusal(self._what, given="more", next_step="Wait a little.")

    def require(self, who: str) -> None:
        """Raises: RateRefusal, when there is no permission now; takes none."""
        with self._lock:
            left, _ = self._now(who)
        if self._per_second and left < 1:
            raise RateRefusal(self._what, given="more", next_step="Wait a little.")

    def _now(self, who: str) -> tuple[float, float]:
        now = self._clock()
        left, then = self._left.get(who, (float(self._burst), now))
        return min(float(self._burst), left + (now - then) * self._per_second), now


@dataclass(frozen=True, kw_only=True)
class QuotaUse:
    """How much somebody has of what they may have.

    Args:
        who: a site, a token's name, or ``all``.
        what: of what.
        used, most: bytes.
    """

    who: str
    what: str
    used: int
    most: int

    @property
    def near(self) -> bool:
        """True if it is time to say so."""
        return self.used >= ALARM * self.most

    @property
    def words(self) -> str:
        """As people read it: ``north: refused bundles, 830 of 1024 MB``."""
        return f"{self.who}: {self.what}, {self.used / (1 << 20):.4g} of {self.most / (1 << 20):.4g} MB"


def staged_files(home: Path, site: str) -> list[tuple[Path, int]]:
    """A site's bundles under way, oldest first: (the offer's file, bytes of it and of what has come)."""
    found = sorted((home / "staging").glob(f"{site}.*.json"), key=lambda path: path.stat().st_mtime)
    return [(path, path.stat().st_size + _size(path.with_suffix(".part"))) for path in found]


def refused_files(home: Path, store: Store) -> dict[str, list[tuple[Path, int]]]:
    """Site to its refused bundles whose bytes are still here, oldest first, with their sizes."""
    owner = {apart.bundle_sha256: apart.site for apart in store.quarantined()}
    found: dict[str, list[tuple[Path, int]]] = {}
    for path in sorted((home / "quarantine").glob("*.zip"), key=lambda path: path.stat().st_mtime):
        if path.stem in owner:
            found.setdefault(owner[path.stem], []).append((path, path.stat().st_size))
    return found


def expire_refused(home: Path, store: Store, quotas: Quotas, now: float | None = None) -> int:
    """Delete refused bytes that are too many; how many bundles went. What is known of them stays.

    Args:
        now: delete those that are too old as well; seconds since 1970, of a clock that is believed.
    """
    gone = 0
    for files in refused_files(home, store).values():
        total = sum(size for _, size in files)
        for path, size in files:
            old = now is not None and now - path.stat().st_mtime > 86_400 * quotas.quarantine_days
            if old or total > quotas.quarantine:
                path.unlink(missing_ok=True)
                total, gone = total - size, gone + 1
    return gone


def quota_uses(home: Path, store: Store, quotas: Quotas, answers: Mapping[str, int]) -> tuple[QuotaUse, ...]:
    """What every site and token has, of what they may have.

    Args:
        answers: `Analysts.kept`.
    """
    refused, anchors = refused_files(home, store), store.anchor_bytes()
    uses = []
    for site in (site.site for site in store.sites()):
        apart = sum(size for _, size in refused.get(site, []))
        staged = sum(size for _, size in staged_files(home, site))
        uses.append(QuotaUse(who=site, what="refused bundles", used=apart, most=quotas.quarantine))
        uses.append(QuotaUse(who=site, what="bundles under way", used=staged, most=quotas.staging))
        uses.append(QuotaUse(who=site, what="ledger heads", used=anchors.get(site, 0), most=quotas.anchors))
    uses.append(QuotaUse(who="all", what="answers", used=sum(answers.values()), most=quotas.answers))
    for name, size in answers.items():
        uses.append(QuotaUse(who=name, what="answers", used=size, most=quotas.answers // SHARE))
    return tuple(uses)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
