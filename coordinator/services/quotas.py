"""Quotas of one site and one token, in bytes, rates and days; who is near one; and the end of a study's retention.

Nothing that is acknowledged is ever dropped: accepted releases, witnessed heads, the log, and the record of questions
stay. The rest has quotas. The bytes of a refused bundle are deleted after a while, its digest and reason stay as
evidence; an answer can be computed again. Witnessed heads cannot be dropped: a site that fills its quota of them is
refused until the lead raises it. A site or token above `ALARM` of a quota is named in the log and by `coordinator
doctor`.

The retention is the study's own: a plan, which leads have signed and sites have approved, sets the day until which the
releases under it are kept. A later version may bring that day forward; it cannot put it off for releases that have
arrived. After it the coordinator deletes bundles, answers, results and what trainings sent, and a trained flow once no
kept plan goes on from it; after a restore from an older backup it does so again before it serves. Log, plans,
statements and receipts stay. The log's entry names each bundle by its SHA-256; with the signed head and an inclusion
proof it is the proof of deletion.
"""

from __future__ import annotations

import datetime as dt
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.store import membership as tables
from coordinator.store import schema as db
from coordinator.store.engine import append_entry
from coordinator.store.members import all_plans, plan_of
from coordinator.store.releases import forget_estimates
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.base.keys import Envelope
from shared.errors import RateRefusal, Refusal, StateRefusal
from shared.membership.study_ends import STUDY_END_TYPE, StudyEnd
from shared.plans.federated import PREFIX

if TYPE_CHECKING:
    from coordinator.config import Quotas
    from coordinator.store.engine import Database
    from coordinator.store.store import Store
    from shared.membership.leads import Leads
    from shared.plans.plan import StudyPlan
    from shared.releases.statement import Statement

__all__ = [
    "ALARM",
    "CallRate",
    "Deletion",
    "QuotaUse",
    "delete_due",
    "deleted",
    "end_of",
    "end_study",
    "erase",
    "expire_refused",
    "quota_uses",
    "refused_files",
    "staged_files",
]

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
    """Use of one quota.

    Args:
        who: a site, a token's name, or ``all``.
        what: kind of data that the quota is for.
        used, most: bytes used, and the quota in bytes.
    """

    who: str
    what: str
    used: int
    most: int

    @property
    def near(self) -> bool:
        """True if the use is `ALARM` of the quota or more."""
        return self.used >= ALARM * self.most

    @property
    def words(self) -> str:
        """The use in words: ``north: refused bundles, 830 of 1024 MB``."""
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
    """Use of every quota of each site and token.

    Args:
        answers: `Analysts.stored_bytes`.
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


# -- studies that are over -------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Deletion:
    """Releases of one version of a study's plan that were deleted.

    Args:
        until: last day of its retention, by the plan with the hash `plan_hash`.
        bundles: SHA-256 of every bundle that was there.
        answers: number of answers and results that were deleted with them.
        log_index: index of the log's entry that records it.
    """

    study: str
    day: str
    until: str
    plan_hash: str
    bundles: tuple[str, ...]
    answers: int
    log_index: int


def end_of(store: Database, study: str) -> StudyEnd | None:
    """The leads' word that a study is over; None while it is not."""
    query = sa.select(tables.study_ends.c.envelope).where(tables.study_ends.c.study == study)
    found = store.read(lambda c: c.execute(query).scalar())
    return None if found is None else StudyEnd.said(Envelope.from_bytes(found))


def end_study(store: Database, envelope: Envelope, leads: Leads, coordinator: str) -> int:
    """Take the leads' word that a study is over; again changes nothing. Its place in the log.

    Raises: SignatureRefusal, SchemaRefusal, StateRefusal (another word ended it), PlanRefusal (no such study).
    """
    said = StudyEnd.from_bytes(envelope.require(STUDY_END_TYPE, leads.trusted, threshold=leads.threshold))
    least = plan_of(store, said.study).plan.floors.leads
    if said.plan_hash not in {one.plan.hash for one in all_plans(store) if one.plan.study == said.study}:
        raise StateRefusal("the end of a study must name a version of its plan", given="another study's of that name")
    envelope.require(STUDY_END_TYPE, leads.trusted, threshold=max(least, leads.threshold))
    if said.coordinator != coordinator:
        raise StateRefusal("the end of a study must be of this coordinator", given="another's")

    def work(c: sa.Connection) -> int:
        known = c.execute(sa.select(tables.study_ends).where(tables.study_ends.c.study == said.study)).first()
        if known is not None and StudyEnd.said(Envelope.from_bytes(known.envelope)) == said:
            return int(known.log_index)
        tables.require_open(c, said.study)
        index, _ = append_entry(c, tables.end_leaf(said))
        c.execute(tables.study_ends.insert().values(study=said.study, envelope=envelope.to_bytes(), log_index=index))
        return index

    index = store.write(work)
    reach("retention.ended")
    return index


def deleted(store: Database) -> tuple[Deletion, ...]:
    """Studies whose releases were deleted, in the order of the log."""
    rows = store.read(lambda c: c.execute(sa.select(db.deletions).order_by(db.deletions.c.log_index)).all())
    out = []
    for row in rows:
        body = dict(parse_json(row.entry))
        body.pop("kind")
        out.append(Deletion(**{**body, "bundles": tuple(body["bundles"])}, log_index=row.log_index))
    return tuple(out)


def delete_due(
    store: Database, home: Path, today: dt.date, *, dry_run: bool = False, also: Mapping[str, dt.date] | None = None
) -> tuple[str, ...]:
    """Delete what the newest plan of a study says is kept no longer; the studies. Bytes of an earlier call go as well.

    Args:
        home: the coordinator's folder, where bundles lie.
        today: by a clock that is believed.
        also: hash of a version of a plan to its last day, where these were deleted from what this store goes on from.
    """
    due = _due(store, today, also or {})
    studies = tuple(sorted({plan.study for plan, _ in due}))
    if dry_run:
        return studies
    for plan, until in due:
        _forget(store, plan, today=today, until=until)
    erase(store, home)
    return studies


def _due(store: Database, today: dt.date, also: Mapping[str, dt.date]) -> list[tuple[StudyPlan, dt.date]]:
    """Versions of plans whose releases are kept no longer, each with its last day.

    That is the day of the version that the sites approved when they drew, or of the newest one where that is earlier:
    a later version keeps nothing for longer than was said when it was given.
    """
    plans = [stored.plan for stored in all_plans(store)]
    newest = {plan.study: plan for plan in plans}
    gone = {one.plan_hash for one in deleted(store)}
    due = []
    for plan in plans:
        last = newest[plan.study]
        days = [one.retention.until for one in (plan, last) if one.retention is not None]
        if plan.hash in also:
            days.append(also[plan.hash])
        elif not days or today <= min(days):
            continue
        if plan.hash in gone:
            continue
        # Of an older version there is something to say only if there is something of it.
        if plan is last or store.read(lambda c, plan=plan: _bundles(c, plan) or _rounds(c, plan)):  # type: ignore[misc]
            due.append((plan, min(days)))
    return due


def _bundles(c: sa.Connection, plan: StudyPlan) -> set[str]:
    """SHA-256 of every bundle of a version of a plan that came, refused ones too."""
    own = sa.select(db.releases.c.bundle_sha256).where(db.releases.c.plan_hash == plan.hash)
    apart = c.execute(sa.select(db.quarantine).where(db.quarantine.c.study == plan.study)).all()
    refused = {row.bundle_sha256 for row in apart if _said(row.envelope).plan_hash == plan.hash}
    return {*c.execute(own).scalars(), *refused}


def _rounds(c: sa.Connection, plan: StudyPlan) -> list[int]:
    """Rounds of the training by a version of a plan, its flow included, by number."""
    return list(c.execute(sa.select(db.round_asked.c.number).where(db.round_asked.c.plan_hash == plan.hash)).scalars())


def _forget_rounds(c: sa.Connection, plan: StudyPlan, plans: Sequence[StudyPlan]) -> None:
    """Let go of what a training or a sum asked and was answered, and of each flow that no kept plan goes on from.

    Args:
        plans: every plan that is here.
    """
    asked = db.round_asked
    c.execute(db.opened_sums.update().where(db.opened_sums.c.plan_hash == plan.hash).values(document=b""))
    rounds = sa.select(asked.c.number).where(asked.c.plan_hash == plan.hash)
    c.execute(db.round_of.update().where(db.round_of.c.asked.in_(rounds)).values(content=b""))
    c.execute(asked.update().where((asked.c.plan_hash == plan.hash) & (asked.c.kind != "finished")).values(content=b""))
    gone = {plan.hash, *c.execute(sa.select(db.deletions.c.plan_hash)).scalars()}
    used = {one.flow for one in plans if one.hash not in gone}
    flows = (asked.c.kind == "finished") & asked.c.plan_hash.in_(gone)
    for row in c.execute(sa.select(asked.c.number, asked.c.content).where(flows)).all():
        if PREFIX + sha256_hex(bytes(row.content)) not in used:
            c.execute(asked.update().where(asked.c.number == row.number).values(content=b""))


def _said(envelope: bytes) -> Statement:
    from shared.releases.statement import Statement

    return Statement.from_bytes(Envelope.from_bytes(envelope).payload)


def _forget(store: Database, plan: StudyPlan, *, today: dt.date, until: dt.date) -> None:
    """Say in the log what goes, and let the database forget it; the files go afterwards, never before.

    Every answer of the study goes, because it may rest on what is deleted; from the rest it can be computed again.
    """
    study = plan.study
    plans = [stored.plan for stored in all_plans(store)]

    def work(c: sa.Connection) -> None:
        if c.execute(sa.select(db.deletions.c.study).where(db.deletions.c.plan_hash == plan.hash)).first() is not None:
            return  # another process was faster
        if c.dialect.name == "sqlite":
            c.exec_driver_sql("PRAGMA secure_delete=ON")  # a freed page is overwritten, not only forgotten
        names = _bundles(c, plan)
        own = [row.result_id for row in c.execute(sa.select(db.answers.c.result_id).where(db.answers.c.study == study))]
        for start in range(0, len(own), 500):
            part = own[start : start + 500]
            c.execute(db.answers_kept.delete().where(db.answers_kept.c.result_id.in_(part)))
        results = c.execute(db.results.delete().where(db.results.c.study == study)).rowcount
        c.execute(db.answers.delete().where(db.answers.c.study == study))
        forget_estimates(c, db.kept_questions.c.study == study)
        _forget_rounds(c, plan, plans)
        body: dict[str, Any] = {
            "kind": "study_deleted",
            "study": study,
            "day": today.isoformat(),
            "until": until.isoformat(),
        }
        body |= {"plan_hash": plan.hash, "bundles": sorted(names), "answers": len(own) + results}
        index, _ = append_entry(c, body)
        values = {"plan_hash": plan.hash, "study": study, "entry": canonical_json(body), "log_index": index}
        c.execute(db.deletions.insert().values(values))
        reach("retention.before_commit")

    store.write(work)
    reach("retention.logged")


def erase(store: Database, home: Path) -> int:
    """Remove the bytes of everything that was deleted, wherever they lie; how many files. Safe to repeat."""
    count = 0
    gone = {one.plan_hash for one in deleted(store)}
    # A site may send the bytes of one study as a release of another: what is kept there stays.
    kept = store.read(lambda c: c.execute(sa.select(db.releases.c.bundle_sha256, db.releases.c.plan_hash)).all())
    names = {digest for one in deleted(store) for digest in one.bundles}
    names -= {row.bundle_sha256 for row in kept if row.plan_hash not in gone}
    for offer in (home / "staging").glob("*.json"):
        with suppress(Refusal, OSError):  # one that another process has brought to its end, or that is torn
            said = _said(offer.read_bytes().split(b"\n")[0])
            names |= {said.bundle_sha256} if said.plan_hash in gone else set()
    if gone:  # what a backup that was killed has left: a copy of the database as it was
        for folder in home.glob(".backup-*"):
            if time.time() - folder.stat().st_mtime > 86_400:
                shutil.rmtree(folder, ignore_errors=True)
    count += sum(store.bundles.delete(digest) for digest in names & store.bundles.names()) if names else 0
    for folder in (home / "quarantine", home / "staging"):
        found = [path for path in folder.glob("*") if names & set(path.name.split("."))] if folder.is_dir() else []
        for path in found:
            path.unlink(missing_ok=True)
            count += 1
        if found:
            fsync_folder(folder)
    reach("retention.erased")
    if names:
        store.checkpoint()
    return count
