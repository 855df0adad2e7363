"""The log as others watch it: signed heads, proofs, restorations, and what sites report as missing.

With the coordinator's key every look gets a head of the log as it is now. The process that answers analysts has no key:
there the newest stored head speaks, which an acceptance writes in its own transaction (`Store.accept_release`).
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.store import schema as db
from coordinator.store.store import Store
from shared.base.canonical import parse_json
from shared.base.keys import SigningKey
from shared.errors import ParameterError, StateRefusal
from shared.wire.tree_heads import RestoredLog, TreeHead

if TYPE_CHECKING:
    from shared.wire.site_messages import Acceptance, LoggedEntry, LogView, WatchRequest

__all__ = ["Comparison", "LogWatch", "LostRelease"]

PAGE = 2000


@dataclass(frozen=True, kw_only=True)
class LostRelease:
    """A release that was acknowledged here once and is missing: its site has shown the coordinator's own signature.

    Args:
        log_index: its place in the log as that was.
        day: on which the site told.
    """

    bundle_sha256: str
    release_id: str
    study: str
    wave: int
    site: str
    log_index: int
    day: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """When a site last compared its deliveries with the coordinator's, and how long the log was then."""

    site: str
    study: str
    size: int
    day: str


class LogWatch:
    """The log for those who watch it.

    Args:
        store: the coordinator's store.
        coordinator: its id.
        key: the key that signs heads; without one the newest stored head is shown.
    """

    def __init__(self, store: Store, *, coordinator: str = "", key: SigningKey | None = None) -> None:
        self._store, self._coordinator, self._key = store, coordinator, key
        self._read, self._write = store.read, store.write

    # -- heads ------------------------------------------------------------------------------------------------------
    def signer(self, today: dt.date) -> Callable[[int, str], bytes]:
        """Function that signs a head, given the log's size and root. Raises: StateRefusal (no key)."""
        key = self._key
        if key is None:
            raise StateRefusal("a head must be signed by the coordinator's key", given="no key")

        def sign(size: int, root: str) -> bytes:
            head = TreeHead(coordinator=self._coordinator, size=size, root=root, day=today.isoformat())
            return head.sign(key).to_bytes()

        return sign

    def head(self, today: dt.date) -> tuple[int, bytes]:
        """(size, envelope) of the newest head that can be shown; (0, nothing) while there is none."""
        if self._key is None:
            newest = sa.select(db.tree_heads).order_by(db.tree_heads.c.size.desc()).limit(1)
            row = self._read(lambda c: c.execute(newest).first())
            return (0, b"") if row is None else (int(row.size), bytes(row.envelope))
        row = self._read(lambda c: c.execute(_NEWEST).first())
        return (0, b"") if row is None else (row[0] + 1, self.signer(today)(row[0] + 1, row[1]))

    def publish(self, today: dt.date) -> tuple[int, bytes]:
        """Sign the log's head as it is now and keep it; (size, envelope)."""
        size, envelope = self.head(today)

        def work(c: sa.Connection) -> None:
            if c.execute(sa.select(db.tree_heads.c.size).where(db.tree_heads.c.size == size)).first() is None:
                root = c.execute(sa.select(db.log.c.root).where(db.log.c.index == size - 1)).scalar_one()
                c.execute(db.tree_heads.insert().values(size=size, root=root, envelope=envelope))

        if size:
            self._write(work)
        return size, envelope

    def ended(self, studies: Collection[str], sites: Collection[str] | None) -> dict[str, list[dict[str, Any]]]:
        """Which sites were revoked, and which waves closed and opened again, by the log's order, with their places.

        Args:
            studies: whose waves.
            sites: whose revocations; None for everybody's.
        """
        gone = sa.select(db.revoked.c.site, db.revoked.c.log_index).order_by(db.revoked.c.log_index)
        names = ("study", "wave", "kind", "log_index")
        waves = sa.select(*(db.wave_events.c[name] for name in names)).order_by(db.wave_events.c.log_index)
        rows = self._read(lambda c: (c.execute(gone).all(), c.execute(waves).all()))
        return {
            "revocations": [
                {"site": row.site, "log_index": row.log_index} for row in rows[0] if sites is None or row.site in sites
            ],
            "closings": [
                {"study": row.study, "wave": row.wave, "closed": row.kind == "wave_closed", "log_index": row.log_index}
                for row in rows[1]
                if row.study in studies
            ],
        }

    # -- looks ------------------------------------------------------------------------------------------------------
    def view(self, request: WatchRequest, today: dt.date, *, site: str | None = None) -> LogView:
        """The log as of the newest head, with what was asked of it.

        Args:
            site: whose entries may be shown; every one where it is None.
        Raises: ParameterError (an entry of another site).
        """
        return self._read(lambda c: self._view(request, today, site))

    def _view(self, request: WatchRequest, today: dt.date, site: str | None) -> LogView:
        from shared.wire.site_messages import LogView, Restoration

        size, head = self.head(today)
        if not size:
            return LogView()
        return LogView(
            head=head,
            growth=tuple(self._store.prove_growth(old, size) if old <= size else () for old in request.sizes),
            entries=tuple(self._own(self.logged(request.entries, size), site)),
            restored=tuple(
                Restoration(entry=one, growth=self._store.prove_growth(said.size, size) if said.size else ())
                for one, said in self._restored(size)
            ),
        )

    def _own(self, found: Sequence[LoggedEntry], site: str | None) -> Sequence[LoggedEntry]:
        if site is not None and any(parse_json(one.entry).get("site") != site for one in found):
            raise ParameterError("a site may ask for its own entries of the log", given="another site's")
        return found

    def logged(self, indices: Iterable[int], size: int) -> list[LoggedEntry]:
        """Entries of the log of `size` with their proofs; those that it has."""
        from shared.wire.site_messages import LoggedEntry

        wanted = sorted({index for index in indices if index < size})
        entries: dict[int, bytes] = {}
        for place in range(0, len(wanted), 500):  # an SQL statement has room for some hundred values
            query = sa.select(db.log.c.index, db.log.c.entry).where(db.log.c.index.in_(wanted[place : place + 500]))
            entries |= {row[0]: row[1] for row in self._read(functools.partial(_rows, query))}
        tree = self._store.tree(size)
        return [
            LoggedEntry(index=index, entry=entry, proof=tree.inclusion(index, size)) for index, entry in entries.items()
        ]

    def page(self, after: int, today: dt.date) -> tuple[bytes, list[str]]:
        """The newest head, and at most `PAGE` entries of its log from number `after`, as texts."""
        size, head = self.head(today)
        query = sa.select(db.log.c.entry).where((db.log.c.index >= after) & (db.log.c.index < min(size, after + PAGE)))
        rows = self._read(lambda c: c.execute(query.order_by(db.log.c.index)).scalars().all())
        return head, [bytes(entry).decode() for entry in rows]

    # -- a log that was put back ------------------------------------------------------------------------------------
    def restore(self, said: Mapping[str, Any], today: dt.date) -> int:
        """Say in the log that it was taken up again from a backup; the entry's place.

        Args:
            said: ``archive`` and ``reason``; ``size``, where the log had grown already before it was said.
        Raises: ParameterError (a size that the log does not have).
        """
        size = int(said.get("size", self._store.entries()))
        if not 0 <= size <= self._store.entries():
            raise ParameterError("the log must have been taken up at a size that it has", given=f"{size}")
        root = self._store.root(size)
        entry = RestoredLog(size=size, root=root, archive=said["archive"], reason=said["reason"], day=today.isoformat())
        index = self._store.note_restoration(entry.to_canonical())
        self.publish(today)
        return index

    def restorations(self) -> tuple[tuple[int, RestoredLog], ...]:
        """(place in the log, what it says) of each restoration, oldest first."""
        rows = self._read(lambda c: c.execute(sa.select(db.restorations).order_by(db.restorations.c.log_index)).all())
        return tuple((int(row.log_index), RestoredLog.from_entry(row.entry)) for row in rows)

    def _restored(self, size: int) -> list[tuple[LoggedEntry, RestoredLog]]:
        found = {index: said for index, said in self.restorations() if index < size}
        return [(one, found[one.index]) for one in self.logged(found, size)]

    # -- what sites report ------------------------------------------------------------------------------------------
    def note_gap(self, site: str, study: str, lacking: Iterable[Acceptance], today: dt.date) -> tuple[Acceptance, ...]:
        """Note which acknowledged releases a site misses here, and that it has compared; those that are missing.

        Args:
            lacking: verified: each is signed by this coordinator for this site.
        """
        place = (db.comparisons.c.site == site) & (db.comparisons.c.study == study)

        def work(c: sa.Connection) -> tuple[Acceptance, ...]:
            there = set(c.execute(sa.select(db.releases.c.bundle_sha256).where(db.releases.c.site == site)).scalars())
            missing = tuple(one for one in lacking if one.bundle_sha256 not in there)
            known = set(c.execute(sa.select(db.gaps.c.bundle_sha256).where(db.gaps.c.site == site)).scalars())
            for one in missing:
                if one.bundle_sha256 not in known:
                    names = ("bundle_sha256", "release_id", "study", "wave", "site", "log_index")
                    values = {name: getattr(one, name) for name in names}
                    c.execute(db.gaps.insert().values(**values, day=today.isoformat()))
            c.execute(db.comparisons.delete().where(place))
            size = c.execute(sa.select(sa.func.count()).select_from(db.log)).scalar_one()
            c.execute(db.comparisons.insert().values(site=site, study=study, size=size, day=today.isoformat()))
            return missing

        return self._write(work)

    def gaps(self, site: str | None = None) -> tuple[LostRelease, ...]:
        """Releases that were acknowledged once and are missing still, by study, wave and site."""
        query = sa.select(db.gaps).where(db.gaps.c.bundle_sha256.not_in(sa.select(db.releases.c.bundle_sha256)))
        query = query.order_by(db.gaps.c.study, db.gaps.c.wave, db.gaps.c.site)
        if site is not None:
            query = query.where(db.gaps.c.site == site)
        return tuple(LostRelease(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    def returned(self) -> dict[str, int]:
        """Number of releases of each site that were missing after a restore and have come again."""
        query = sa.select(db.gaps.c.site, sa.func.count()).group_by(db.gaps.c.site)
        query = query.where(db.gaps.c.bundle_sha256.in_(sa.select(db.releases.c.bundle_sha256)))
        return {row[0]: int(row[1]) for row in self._read(lambda c: c.execute(query).all())}

    def went_on(self, site: str, study: str) -> bool:
        """True if a site has delivered something since the first restoration that was not lost with it."""
        last = sa.select(sa.func.min(db.restorations.c.log_index)).scalar_subquery()
        query = sa.select(db.releases.c.log_index).where((db.releases.c.site == site) & (db.releases.c.study == study))
        query = query.where(db.releases.c.log_index > last)
        query = query.where(db.releases.c.bundle_sha256.not_in(sa.select(db.gaps.c.bundle_sha256)))
        return self._read(lambda c: c.execute(query).first()) is not None

    def acknowledged(self, site: str, bundle_sha256: str) -> bool:
        """True if a site has shown that these bytes were acknowledged here before they were lost."""
        asked = {"site": site, "bundle": bundle_sha256}
        return self._read(lambda c: c.execute(_GAP, asked).first()) is not None

    def comparisons(self) -> tuple[Comparison, ...]:
        """When each site last compared, by site and study."""
        query = sa.select(db.comparisons).order_by(db.comparisons.c.site, db.comparisons.c.study)
        return tuple(Comparison(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))


_NEWEST = sa.select(db.log.c.index, db.log.c.root).order_by(db.log.c.index.desc()).limit(1)
_GAP = sa.select(db.gaps.c.day).where(db.gaps.c.site == sa.bindparam("site"))
_GAP = _GAP.where(db.gaps.c.bundle_sha256 == sa.bindparam("bundle"))


def _rows(query: sa.Select[Any], c: sa.Connection) -> Sequence[Any]:
    return c.execute(query).all()
