"""Waves and what was handed out of them: closings, revisions, reminders, results, opened sums.

A wave that was closed is never changed: what arrives or is taken back afterwards makes a *revision* of it, and a
revision is nothing but a place in the log up to which one reads.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.store import schema as db
from coordinator.store.engine import Database, append_entry
from coordinator.store.membership import declined as _declined
from coordinator.store.releases import VISIBLE, accepted_releases, require_kept, select_releases, tombstones
from coordinator.store.rows import ResultDraft, Revision, SavedResult, StoredSum, WaveRecord
from coordinator.store.schema import opened_sums as _sums
from shared.base.canonical import canonical_json, sha256_hex
from shared.base.failpoints import reach
from shared.errors import IntegrityRefusal, ParameterError, ReplayRefusal, StateRefusal

if TYPE_CHECKING:
    from shared.mechanisms.secure_sum.opened import OpenedSum
    from shared.wire.site_messages import Reminder

__all__ = [
    "close_wave",
    "keep_opened",
    "opened_sum",
    "rejected",
    "remember",
    "remind",
    "reminded",
    "reminders",
    "reopen_wave",
    "results",
    "save_result",
    "wave_record",
]


def wave_record(store: Database, study: str, wave: int) -> WaveRecord:
    """State and revisions of a wave, read from the log's order alone."""
    return store.read(lambda c: _wave_record(c, study, wave))


def close_wave(
    store: Database,
    study: str,
    wave: int,
    *,
    expected: Sequence[str],
    quorum: int = 0,
    reason: str = "",
    today: dt.date,
) -> Revision:
    """Close a wave, naming who is missing; what comes later makes a revision. It stands in the log for good.

    Args:
        expected: sites that were to deliver.
        quorum: fewest deliveries that need no reason.
        reason: why it is closed below its quorum, or before its deadline.
    Raises: StateRefusal (closed already, or below its quorum without a reason).
    """

    def work(c: sa.Connection) -> None:
        if _wave_record(c, study, wave).closed:
            raise StateRefusal("a wave must be open to be closed", given="a closed one", next_step="See wave status.")
        query = select_releases().where((db.releases.c.study == study) & (db.releases.c.wave == wave))
        rows = c.execute(query.where(VISIBLE).order_by(db.releases.c.log_index)).all()
        delivered = {row.site for row in rows}
        if len(delivered) < quorum and not reason.strip():
            raise StateRefusal(
                f"a wave must have {quorum} deliveries to be closed",
                given=f"{len(delivered)}",
                next_step="Remind the sites, or close it with --reason.",
            )
        missing = sorted(set(expected) - delivered)
        leaf = {"kind": "wave_closed", "study": study, "wave": wave, "missing": missing, "reason": reason}
        _wave_event(c, {**leaf, "releases": [row.bundle_sha256 for row in rows]}, today)

    store.write(work)
    reach("wave.closed")
    return wave_record(store, study, wave).revisions[-1]


def reopen_wave(store: Database, study: str, wave: int, *, reason: str, today: dt.date) -> WaveRecord:
    """Let a closed wave go on; its revisions so far stay what they are.

    Args:
        reason: stands in the log for good; must not be blank.
        today: day of the log's line, UTC.
    Raises: StateRefusal (an open wave), ParameterError (no reason).
    """
    if not reason.strip():
        raise ParameterError("a wave must be reopened with a reason", given="blank text")

    def work(c: sa.Connection) -> None:
        if not _wave_record(c, study, wave).closed:
            raise StateRefusal("a wave must be closed to be reopened", given="an open one")
        _wave_event(c, {"kind": "wave_reopened", "study": study, "wave": wave, "reason": reason}, today)

    store.write(work)
    reach("wave.reopened")
    return wave_record(store, study, wave)


def keep_opened(store: Database, study: str, opened: OpenedSum, *, today: dt.date) -> None:
    """Keep what the sites of a plan opened together, once; it stands in the log. The same again changes nothing.

    Raises: ReplayRefusal, where another opening is kept; StateRefusal, where the plan's releases were deleted.
    """
    document = opened.to_bytes()
    leaf = {"study": study, "plan_hash": opened.terms.plan, "sha256": sha256_hex(document), "day": today.isoformat()}

    def work(c: sa.Connection) -> None:
        known = c.execute(sa.select(_sums.c.sha256).where(_sums.c.plan_hash == leaf["plan_hash"])).first()
        if known is not None and known.sha256 != leaf["sha256"]:
            raise ReplayRefusal("a sum must be opened once", given="another opening")
        if known is None:
            require_kept(c, plans=[opened.terms.plan])
            index, _ = append_entry(c, {"kind": "sum_opened", **leaf})
            c.execute(_sums.insert().values(**leaf, document=document, log_index=index))
            reach("sum.before_opened")

    store.write(work)
    reach("sum.after_opened")


def opened_sum(store: Database, plan_hash: str) -> StoredSum | None:
    """What the sites of a plan opened together; None before, and once the study's releases are deleted.

    Raises: IntegrityRefusal (other bytes than were kept), SchemaRefusal.
    """
    from shared.mechanisms.secure_sum.opened import OpenedSum

    row = store.read(lambda c: c.execute(sa.select(_sums).where(_sums.c.plan_hash == plan_hash)).first())
    if row is None or not row.document:
        return None
    if sha256_hex(bytes(row.document)) != row.sha256:
        raise IntegrityRefusal("an opened sum must be the one that was logged", given="other bytes")
    document = OpenedSum.from_bytes(bytes(row.document))
    return StoredSum(document=document, sha256=row.sha256, day=row.day, log_index=row.log_index)


def remind(store: Database, study: str, wave: int, sites: Sequence[str], today: dt.date) -> None:
    """Note that these sites were reminded of a wave; they see the day when they next ask.

    Args:
        sites: names of those that were reminded. today: the day they see, UTC.
    """

    def work(c: sa.Connection) -> None:
        for site in sites:
            place = {"study": study, "wave": wave, "site": site}
            where = sa.and_(*(db.reminders.c[name] == value for name, value in place.items()))
            if not c.execute(db.reminders.update().where(where).values(day=today.isoformat())).rowcount:
                c.execute(db.reminders.insert().values(**place, day=today.isoformat()))

    store.write(work)
    reach("wave.reminded")


def reminders(store: Database, study: str, site: str) -> tuple[Reminder, ...]:
    """Waves that a site was reminded of and has not delivered."""
    from shared.wire.site_messages import Reminder

    delivered = {release.wave for release in accepted_releases(store, study, site=site, withdrawn=True)}
    days = reminded(store, study)
    found = sorted((wave, day) for (wave, known), day in days.items() if known == site and wave not in delivered)
    return tuple(Reminder(wave=wave, day=day) for wave, day in found)


def reminded(store: Database, study: str) -> dict[tuple[int, str], str]:
    """(wave, site) to the day on which the site was last reminded of it."""
    query = sa.select(db.reminders).where(db.reminders.c.study == study)
    return {(row.wave, row.site): row.day for row in store.read(lambda c: c.execute(query).all())}


def rejected(store: Database, study: str) -> dict[tuple[int, str], str]:
    """(wave, site) to the day on which a person there told that they had rejected its release."""
    query = sa.select(_declined).where((_declined.c.study == study) & (_declined.c.decision == "reject"))
    return {(row.wave, row.site): row.day for row in store.read(lambda c: c.execute(query).all())}


def save_result(store: Database, draft: ResultDraft, *, today: dt.date) -> SavedResult | None:
    """Remember a result; the same one again is remembered once.

    Returns: the last result to the same question, if it was another one.
    """
    last = store.write(lambda c: remember(c, draft, today=today))
    reach("result.saved")
    return last if last is not None and (last.used != dict(draft.used) or last.numbers != dict(draft.numbers)) else None


def results(store: Database, study: str | None = None) -> tuple[SavedResult, ...]:
    """Results that were handed out, oldest first; stale ones name what was withdrawn since."""
    query = sa.select(db.results).order_by(db.results.c.id)
    if study is not None:
        query = query.where(db.results.c.study == study)

    def work(c: sa.Connection) -> tuple[SavedResult, ...]:
        withdrawn = {stone.bundle_sha256 for stone in tombstones(c)}
        return tuple(_result(row, withdrawn) for row in c.execute(query).mappings())

    return store.read(work)


def remember(c: sa.Connection, draft: ResultDraft, *, today: dt.date) -> SavedResult | None:
    """`Store.save_result` within a transaction; the last result to the same question, whatever it says.

    Raises: StateRefusal, where a release that it is made of was deleted meanwhile.
    """
    require_kept(c, bundles=draft.used)
    query = canonical_json(dict(draft.question)).decode()
    used, numbers = dict(draft.used), dict(draft.numbers)
    body = {"kind": draft.kind, "question": query, "used": used, "numbers": numbers, "figure": draft.figure}
    content = sha256_hex(canonical_json(body))
    same = (db.results.c.study == draft.study) & (db.results.c.question == query)
    last = c.execute(sa.select(db.results).where(same).order_by(db.results.c.id.desc()).limit(1)).mappings().first()
    if c.execute(sa.select(db.results.c.id).where(db.results.c.content == content)).first() is None:
        values = {"study": draft.study, "wave": draft.wave, "kind": draft.kind, "question": query}
        texts = {"used": canonical_json(used).decode(), "numbers": canonical_json(numbers).decode()}
        values |= {"figure": draft.figure, "day": today.isoformat()}
        c.execute(db.results.insert().values(content=content, **values, **texts))
    return None if last is None else _result(last, set())


def _result(row: sa.RowMapping, withdrawn: set[str]) -> SavedResult:
    values = {name: row[name] for name in ("id", "study", "wave", "kind", "figure", "day")}
    texts = {name: json.loads(row[name]) for name in ("question", "used", "numbers")}
    return SavedResult(**values, **texts, withdrawn=tuple(sorted(set(texts["used"]) & withdrawn)))


def _wave_event(c: sa.Connection, leaf: Mapping[str, Any], today: dt.date) -> None:
    reach("wave.before_event")
    index, _ = append_entry(c, {**leaf, "day": today.isoformat()})
    values = {name: leaf[name] for name in ("kind", "study", "wave", "reason")}
    missing = json.dumps(leaf.get("missing", []))
    c.execute(db.wave_events.insert().values(log_index=index, day=today.isoformat(), missing=missing, **values))
    reach("wave.before_commit")


def _wave_record(c: sa.Connection, study: str, wave: int) -> WaveRecord:
    here = (db.wave_events.c.study == study) & (db.wave_events.c.wave == wave)
    steps: list[tuple[int, str, Any]] = [
        (row.log_index, row.kind, row) for row in c.execute(sa.select(db.wave_events).where(here))
    ]
    if steps:
        place = (db.releases.c.study == study) & (db.releases.c.wave == wave)
        arrived = c.execute(select_releases().where(place)).all()
        steps += [(row.log_index, "late", row) for row in arrived]
        accepted = {row.bundle_sha256 for row in arrived}
        gone = [stone for stone in tombstones(c, study) if stone.wave == wave and stone.bundle_sha256 in accepted]
        steps += [(stone.log_index, "withdrawn", stone) for stone in gone]
    closed, revisions = False, list[Revision]()
    for index, kind, row in sorted(steps, key=lambda step: step[0]):
        if kind == "wave_reopened":
            closed = False
        elif kind == "wave_closed":
            closed, closing = True, {"cause": "closed", "missing": tuple(json.loads(row.missing)), "reason": row.reason}
            revisions.append(Revision(number=len(revisions), log_index=index, day=row.day, **closing))
        elif closed:
            day = row.accepted_day if kind == "late" else row.day
            revisions.append(Revision(number=len(revisions), log_index=index, cause=kind, site=row.site, day=day))
    return WaveRecord(study=study, wave=wave, closed=closed, revisions=tuple(revisions))
