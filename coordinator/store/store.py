"""The coordinator's database: plans, sites and their keys, anchors, accepted releases, the log.

One SQL database (SQLite in the home folder by default; the SQL is portable) and the bundles, each named by its digest
(`coordinator.store.bundles`). The rules that must never break are constraints of the database, not only of the code:
one release per (study, wave, site), one row per bundle, one entry per place in the log. A release becomes visible in
the same transaction that logs it, after its bytes are durable; readers only ever see whole releases.

A withdrawn release keeps its row, so that its id, its bytes and its place in the wave stay taken; no question sees it
again. A wave that was closed is never changed: what arrives or is taken back afterwards makes a *revision* of it, and
a revision is nothing but a place in the log up to which one reads.

Acknowledged means durable: SQLite runs with a write-ahead log and ``synchronous=FULL``.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.store import anchors as _anchors
from coordinator.store import members as _members
from coordinator.store import releases as _releases
from coordinator.store import verify as _verify
from coordinator.store import waves as _waves
from coordinator.store.engine import Database
from coordinator.store.rows import (
    AcceptedRelease,
    LogEntry,
    Quarantined,
    RegisteredSite,
    ResultDraft,
    Revision,
    SavedResult,
    StoredPlan,
    Tombstone,
    WaveRecord,
)
from coordinator.store.waves import remember
from shared.errors import IntegrityRefusal, StateRefusal

if TYPE_CHECKING:
    import pandas as pd

    from shared.releases.receipt import Receipt

__all__ = [
    "AcceptedRelease",
    "LogEntry",
    "Quarantined",
    "RegisteredSite",
    "ResultDraft",
    "Revision",
    "SavedResult",
    "Store",
    "StoredPlan",
    "Tombstone",
    "WaveRecord",
    "remember",
]

TABLE_CAP = 2 << 30
TABLES_KEPT = 256 << 20


class Store(Database):
    """The coordinator's memory. Safe for many threads, and for several processes on one database.

    Args:
        url: SQLAlchemy URL, e.g. ``sqlite:////srv/coordinator/store.db``.
        home: the coordinator's home folder; for SQLite the database's own folder by default.
        bundles: where they are kept, as of `coordinator.store.bundles.bundle_store`.
        patience: seconds for which a server that is away is waited for; as long as its restart takes if left out.
        bring_up: have its tables brought to the form that this software reads; else only ask for its revision.
    Raises: StorageRefusal, when the database cannot be opened; StateRefusal, when it is another home's; ConfigRefusal.
    """

    def __init__(
        self,
        url: str,
        home: Path | None = None,
        bundles: str = "",
        *,
        patience: float | None = None,
        bring_up: bool = True,
    ) -> None:
        super().__init__(url, home, bundles, patience=patience, bring_up=bring_up)
        self._tables = TableCache()

    @classmethod
    def open(
        cls,
        home: Path,
        url: str = "",
        bundles: str = "",
        *,
        patience: float | None = None,
        bring_up: bool = True,
    ) -> Store:
        """The store of a home folder: SQLite and a folder in it, unless `url` and `bundles` name others.

        Args: as of the class.
        Raises: as the class.
        """
        return cls(url or f"sqlite:///{home / 'store.db'}", home, bundles, patience=patience, bring_up=bring_up)

    # -- members
    add_plan = _members.add_plan
    plan = _members.plan_of
    plans = _members.all_plans
    add_invitation = _members.add_invitation
    enrol = _members.enrol
    enrolment = _members.enrolment
    sites = _members.all_sites
    accept_site = _members.accept_site
    set_certificate = _members.set_certificate
    forget_certificate = _members.forget_certificate
    refuse_site = _members.refuse_site
    revoke_site = _members.revoke_site
    require_site = _members.require_site
    require_invited = _members.require_invited
    arrived = _members.arrived
    members = _members.members
    # -- anchors
    add_anchor = _anchors.add_anchor
    anchor = _anchors.last_anchor
    witnessed = _anchors.witnessed
    anchor_bytes = _anchors.anchor_bytes
    reanchored = _anchors.reanchored
    allow_reanchor = _anchors.allow_reanchor
    began_anew = _anchors.began_anew
    last_moved = _anchors.last_moved
    # -- releases
    accept_release = _releases.accept_release
    accepted = _releases.accepted
    quarantine = _releases.quarantine
    quarantined = _releases.quarantined
    releases = _releases.accepted_releases
    release_lines = _releases.release_lines
    logged_releases = _releases.logged_releases
    releases_of = _releases.releases_of
    log_places = _releases.log_places
    release = _releases.release_of
    by_bundle = _releases.by_bundle
    named = _releases.named
    holdings = _releases.holdings
    uncompared = _releases.uncompared
    charged = _releases.charged
    withdraw = _releases.withdraw
    revoke_standing = _releases.revoke_standing
    standing_revoked = _releases.standing_revoked
    withdrawals = _releases.withdrawals
    # -- waves
    wave_record = _waves.wave_record
    close_wave = _waves.close_wave
    reopen_wave = _waves.reopen_wave
    keep_opened = _waves.keep_opened
    opened_sum = _waves.opened_sum
    remind = _waves.remind
    reminders = _waves.reminders
    reminded = _waves.reminded
    rejected = _waves.rejected
    save_result = _waves.save_result
    results = _waves.results
    # -- verify
    site_list = _verify.site_list
    log = _verify.log_entries
    note_restoration = _verify.note_restoration
    verify_log = _verify.verify_log
    verify_signatures = _verify.verify_signatures

    # -- bundles
    def table(self, release: AcceptedRelease, *, withdrawn: Collection[str] | None = None) -> pd.DataFrame:
        """A release's table, its bytes checked against the digest that was accepted, once per time they are read.

        Args:
            withdrawn: digests that are withdrawn, of a caller who has just read them for many releases.
        Raises: StateRefusal (withdrawn), IntegrityRefusal.
        """
        if withdrawn is None:
            withdrawn = {stone.bundle_sha256 for stone in self.withdrawals(bundle_sha256=release.bundle_sha256)}
        if release.bundle_sha256 in withdrawn:
            self._tables.forget(release.bundle_sha256)
            raise StateRefusal("a release must not be withdrawn to be read", given="one that its site took back")
        # Ten questions that meet a cold table read it once: the others wait for the first.
        with self._tables.turn(release.bundle_sha256):
            return self._table(release)

    def check(self, release: AcceptedRelease, *, withdrawn: Collection[str], read: bool = True) -> None:
        """That a release's bundle is the accepted one: looked at only when its file was touched since it last was.

        Args:
            withdrawn: as of `table`.
            read: that its table is read for it, of a caller who needs that anyway; else its bytes have their digest.
        Raises: as `table`.
        """
        digest = release.bundle_sha256
        state = self.bundles.state(digest)
        if state is None or digest in withdrawn:
            self.table(release, withdrawn=withdrawn)
        elif not self._tables.checked(digest, state):
            if read or not self._has_digest(digest):
                self.table(release, withdrawn=withdrawn)
            else:
                self._tables.note(digest, state)

    def _has_digest(self, digest: str) -> bool:
        try:
            with self.bundles.read(digest) as path, path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
        except OSError:
            return False

    def _table(self, release: AcceptedRelease) -> pd.DataFrame:
        from shared.releases.bundle import read_bundle

        try:
            state = self.bundles.state(release.bundle_sha256)
            known = self._tables.get(release.bundle_sha256, state)
            if known is not None:
                return known
            with self.bundles.read(release.bundle_sha256) as path:
                bundle = read_bundle(path, cap=TABLE_CAP)
        except OSError:
            raise IntegrityRefusal(
                "an accepted bundle must be where bundles are kept",
                given=f"none for {release.bundle_sha256[:12]}",
                next_step="Restore it from the backup (coordinator log verify).",
            ) from None
        if bundle.digest != release.bundle_sha256 or bundle.receipt != release.receipt:
            raise IntegrityRefusal(
                "a bundle must be the one that was accepted",
                given=f"another for {release.bundle_sha256[:12]}",
                next_step="Restore it from the backup (coordinator log verify).",
            )
        return self._tables.keep(release.bundle_sha256, state, bundle.table)

    def tables(self, study: str, wave: int) -> Iterator[tuple[str, Receipt, pd.DataFrame]]:
        """(site, receipt, table) of every accepted release of a wave, one in memory at a time."""
        for release in self.releases(study, wave):
            yield release.site, release.receipt, self.table(release)


class TableCache:
    """Tables that were read lately and whose bundle has not been touched since, at most `TABLES_KEPT` bytes of them."""

    def __init__(store) -> None:
        store._tables: OrderedDict[str, tuple[Hashable, int, pd.DataFrame]] = OrderedDict()
        store._bytes = 0
        store._checked: dict[str, Hashable] = {}
        store._lock = threading.Lock()
        store._turns = tuple(threading.Lock() for _ in range(64))

    def turn(store, digest: str) -> threading.Lock:
        """Whoever holds it reads this bundle; a few others may have to wait with it."""
        return store._turns[int(digest[:8], 16) % len(store._turns)]

    def get(store, digest: str, state: Hashable) -> pd.DataFrame | None:
        with store._lock:
            found = store._tables.get(digest)
            if found is None or found[0] != state:
                return None
            store._tables.move_to_end(digest)
        return found[2].copy(deep=False)

    def keep(store, digest: str, state: Hashable, table: pd.DataFrame) -> pd.DataFrame:
        size = sum(column.memory_usage(index=False, deep=True) for _, column in table.items())
        with store._lock:
            store._drop(digest)
            store._checked[digest] = state
            store._tables[digest] = (state, size, table)
            store._bytes += size
            while store._bytes > TABLES_KEPT:
                store._drop(next(iter(store._tables)))
        return table.copy(deep=False)

    def note(store, digest: str, state: Hashable) -> None:
        """That a bundle was verified as the accepted one."""
        with store._lock:
            store._checked[digest] = state

    def checked(store, digest: str, state: Hashable) -> bool:
        """True if the bundle, unchanged since, was once verified as the accepted one."""
        with store._lock:
            return store._checked.get(digest) == state

    def forget(store, digest: str) -> None:
        with store._lock:
            store._checked.pop(digest, None)
            store._drop(digest)

    def _drop(store, digest: str) -> None:
        """Of the table alone, by who holds the lock."""
        store._bytes -= store._tables.pop(digest, (None, 0))[1]
