"""Sites' estimates in the store: what one process has worked out, no other works out again, nor the next after a start.

A row is one site's answer to one question, under two hashes. That of the question holds the plan, whose levels it is
put with, the question in one spelling, and the code that answers, as the id of a whole answer does
(`coordinator.services.analysis`); that of the place holds the bundles and receipts the site's table is made of. Method,
test, level and wave are in neither: another pooling, and a wave in which one more site has delivered, find the rest.

What is read back is what was worked out, to the last bit. A row that does not hold its own hash is not believed, and is
made again. Rows of a site go in the transaction that takes a release of it back, those of a study with its retention.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from coordinator.store.engine import Database
from coordinator.store.releases import forget_estimates, require_kept, tombstones
from coordinator.store.schema import kept_estimates as _estimates
from coordinator.store.schema import kept_questions as _questions
from shared.base.canonical import canonical_json
from shared.base.clock import utc_now
from shared.errors import StateRefusal, StorageRefusal
from shared.estimands.answer import Estimate
from shared.releases.synthetic import versions

__all__ = ["KeptEstimates", "estimates_of", "packed"]

ROW, QUESTION = 100, 200
"""Bytes that a row and a question take beside the estimates, about."""
_SEAL = 16  # bytes of a row's own hash
Place = tuple[str, ...]
"""Site (blank for several together), and what names its table."""


def packed(rows: Sequence[Estimate]) -> bytes:
    """One site's answer as bytes, numbers to the last bit."""
    said = json.dumps([vars(row) for row in rows], separators=(",", ":"), default=lambda number: number.item())
    return zlib.compress(said.encode(), 1)


def estimates_of(data: bytes) -> list[Estimate]:
    """Estimates from their bytes; the inverse of `packed`.

    >>> row = Estimate(study="s", site="A", wave=1, term="age", yi=0.1 + 0.2, vi_sampling=0.03, n=90)
    >>> estimates_of(packed([row])) == [row]
    True
    """
    return [Estimate(**{**row, "receipts": tuple(row["receipts"])}) for row in json.loads(zlib.decompress(data))]


class KeptEstimates:
    """Estimates in the coordinator's database: of all questions at most so many bytes.

    For those that are too many, questions go whole: those that nobody has asked for the longest, of one day by lot.
    So a round of more questions than there is room for finds some of them each time it comes round.

    Args:
        most: bytes.
    """

    def __init__(self, store: Database, most: int) -> None:
        self._store, self.most = store, most
        self.damaged = 0
        """Rows that were found damaged."""

    def of(self, about: Sequence[str], places: Collection[Place]) -> dict[Place, list[Estimate]]:
        """Stored estimates of a question at these places, in one read; damaged ones are counted and left out."""
        question, today = _hash(*about, versions()), utc_now().date().isoformat()
        query = sa.select(_questions.c.day, _estimates.c.place, _estimates.c.estimates)
        query = query.join(_estimates, _estimates.c.question == _questions.c.question)
        rows = self._store.read(lambda c: c.execute(query.where(_questions.c.question == question)).all())
        wanted, found = {_hash(*place): place for place in places} if rows else {}, {}
        for _, place, data in rows:
            if place not in wanted:
                continue
            try:
                found[wanted[place]] = _unsealed(question, place, data)
            except (ValueError, TypeError):
                self.damaged += 1
        if any(day < today for day, _, _ in rows):
            asked = _questions.update().where(_questions.c.question == question).values(day=today)
            with suppress(StorageRefusal):
                self._store.write(lambda c: c.execute(asked))
        return found

    def add(
        self, about: Sequence[str], study: str, made: Mapping[Place, Sequence[Estimate]], used: Collection[str]
    ) -> None:
        """Keep answers to a question, unless what they rest on was taken back or deleted meanwhile.

        Where the database cannot write, nothing is kept, and nobody is the worse for it.

        Args:
            used: bundles that they rest on.
        """
        question, today = _hash(*about, versions()), utc_now().date().isoformat()
        rows = {}
        for (site, *table), estimates in made.items():
            place = _hash(site, *table)
            sealed = _sealed(question, place, packed(estimates))
            rows[place] = {"question": question, "place": place, "site": site, "estimates": sealed}
        size = sum(ROW + len(row["estimates"]) for row in rows.values())
        if not rows or size > self.most // 8:
            return

        def work(c: sa.Connection) -> None:
            require_kept(c, bundles=used)
            if not {stone.bundle_sha256 for stone in tombstones(c, study)}.isdisjoint(used):
                return
            own = _questions.c.question == question
            known = c.execute(sa.select(_questions.c.bytes).where(own)).scalar()
            if known is None:
                known = QUESTION
                c.execute(_questions.insert().values(question=question, study=study, bytes=known, day=today))
            there = c.execute(sa.select(_estimates.c.place).where(_estimates.c.question == question)).scalars()
            # Damaged, or another process was faster: once each, and a little is counted twice.
            for place in rows.keys() & set(there):
                c.execute(_estimates.delete().where(_estimates.c.question == question, _estimates.c.place == place))
            c.execute(_estimates.insert(), list(rows.values()))
            c.execute(_questions.update().where(own).values(bytes=known + size, day=today))
            self._make_room(c, question)

        with suppress(StorageRefusal, StateRefusal):
            self._store.write(work)

    def _make_room(self, c: sa.Connection, question: bytes) -> None:
        """Let go of other questions than this one until an eighth is free, where there are too many."""
        total = c.execute(sa.select(sa.func.sum(_questions.c.bytes))).scalar_one()
        if total <= self.most:
            return
        others = sa.select(_questions.c.question, _questions.c.bytes).where(_questions.c.question != question)
        for row in c.execute(others.order_by(_questions.c.day, _questions.c.question)).all():
            if total <= self.most - self.most // 8:
                break
            total -= row.bytes
            forget_estimates(c, _questions.c.question == row.question)


def _hash(*parts: Any) -> bytes:
    return hashlib.sha256(canonical_json(parts)).digest()


def _sealed(question: bytes, place: bytes, data: bytes) -> bytes:
    return hashlib.sha256(question + place + data).digest()[:_SEAL] + data


def _unsealed(question: bytes, place: bytes, data: bytes) -> list[Estimate]:
    """Raises: ValueError (not what was kept there), TypeError (by code of another day that has the same version)."""
    if _sealed(question, place, data[_SEAL:]) != data:
        raise ValueError("not what was kept")
    return estimates_of(data[_SEAL:])
