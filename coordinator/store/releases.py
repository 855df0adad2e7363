"""Releases: accepted, quarantined, withdrawn. One becomes visible in the transaction that logs it.

A withdrawn release keeps its row, so that its id, its bytes and its place in the wave stay taken; no question sees it
again.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from coordinator.store import membership
from coordinator.store import schema as db
from coordinator.store.engine import Database, append_entry
from coordinator.store.rows import AcceptedRelease, Quarantined, ReleaseLine, Tombstone, envelope_of, receipt_of
from shared.base.canonical import parse_json
from shared.base.failpoints import reach
from shared.base.keys import Envelope
from shared.errors import Refusal, ReplayRefusal, StateRefusal, TooLarge
from shared.plans.plan import StudyPlan
from shared.wire.message_limits import HOLDINGS_CAP
from shared.wire.signed_messages import Withdrawal
from shared.wire.tree_heads import release_leaf

if TYPE_CHECKING:
    from shared.releases.receipt import Receipt
    from shared.releases.statement import Statement
    from shared.wire.site_messages import Acceptance, Holding

__all__ = [
    "REVOCATIONS_CAP",
    "accept_release",
    "accepted",
    "accepted_releases",
    "by_bundle",
    "charged",
    "forget_estimates",
    "holdings",
    "log_places",
    "logged_releases",
    "named",
    "quarantine",
    "quarantined",
    "release_lines",
    "release_of",
    "release_row",
    "releases_of",
    "require_kept",
    "revoke_standing",
    "select_releases",
    "select_tombstones",
    "standing_revoked",
    "tombstones",
    "uncompared",
    "withdraw",
    "withdrawals",
]

REVOCATIONS_CAP = 10_000
"""Most standing approvals that one site may end: what a site sends must not decide how much is kept."""

_PLACE = ("study", "wave", "site", "release_id", "bundle_sha256")
"""What tells one release from all others: its place in the wave, its id, its bytes."""
BATCH = 500  # bundles that one query names

DISTRUSTED = "distrusted"
"""In the place of a withdrawal's reason: the site did not take it back, its keys may have been in other hands."""
VISIBLE = db.withdrawals.c.day.is_(None) & membership.distrusted.c.day.is_(None)
VISIBLE &= db.releases.c.plan_hash.not_in(sa.select(db.deletions.c.plan_hash))


def accept_release(
    store: Database,
    *,
    statement: Statement,
    envelope: Envelope,
    receipt: Receipt,
    today: dt.date,
    standing: Envelope | None = None,
    recheck: Callable[[], None] = lambda: None,
    sign: Callable[[int, str], bytes] | None = None,
) -> Acceptance:
    """Log a verified release and make it visible, in one transaction. Its bundle is on disk already.

    Idempotent: the same statement again gives the acceptance it got.

    Args:
        recheck: asks once more, while nobody else can write, whatever was decided before the bundle had arrived.
        sign: signs the log's head, given its size and root: no reader sees a release before a signed head holds it.
    Raises: ReplayRefusal, when the release id, the bundle, or the site's place in the wave is taken by other bytes;
        any refusal of `recheck`.
    """

    def work(c: sa.Connection) -> Acceptance:
        known = _known(c, statement)
        if known is not None:
            return known.acceptance
        recheck()
        require_kept(c, plans=[statement.plan_hash])
        index, log_root = append_entry(c, release_leaf(envelope, statement.bundle_sha256, statement.site, standing))
        names = (*_PLACE, "plan_hash", "plan_version", "bundle_bytes")
        values: dict[str, Any] = {name: getattr(statement, name) for name in names}
        values |= {"n": receipt.n, "receipt": receipt.to_bytes(), "envelope": envelope.to_bytes()}
        values |= {"log_index": index, "log_root": log_root, "accepted_day": today.isoformat()}
        c.execute(db.releases.insert().values(**values))
        if sign is not None:
            head = {"size": index + 1, "root": log_root, "envelope": sign(index + 1, log_root)}
            c.execute(db.tree_heads.insert().values(**head))
        if standing is not None:
            values = {"release_id": statement.release_id, "standing": standing.to_bytes()}
            c.execute(db.standing.insert().values(**values))
        made = c.execute(select_releases().where(db.releases.c.release_id == statement.release_id)).one()
        return release_row(made).acceptance

    return store.write(work)


def _many(name: str) -> sa.BindParameter[Any]:
    return sa.bindparam(name, expanding=True)


# Asked in each delivery, and so written once: to write an SQL statement takes longer than to answer it.
_DELETED = sa.select(db.deletions.c.study).where(
    db.deletions.c.plan_hash.in_(_many("plans"))
    | db.deletions.c.plan_hash.in_(
        sa.select(db.releases.c.plan_hash).where(db.releases.c.bundle_sha256.in_(_many("bundles")))
    )
)
_ARRIVED = sa.select(db.quarantine.c.envelope).where(
    (db.quarantine.c.study == sa.bindparam("study")) & (db.quarantine.c.site == sa.bindparam("site"))
)
_TAKEN_BACK = sa.select(db.withdrawals.c.day).where(
    (db.withdrawals.c.release_id == sa.bindparam("release_id"))
    | (db.withdrawals.c.bundle_sha256 == sa.bindparam("bundle_sha256"))
)


def require_kept(c: sa.Connection, *, bundles: Collection[str] = (), plans: Collection[str] = ()) -> None:
    """Refuse what rests on bundles, or is of versions of plans (hashes), that were deleted. Raises: StateRefusal."""
    study = c.execute(_DELETED, {"bundles": list(bundles), "plans": list(plans)}).scalar()
    if study is not None:
        raise StateRefusal(
            "the retention of a study's releases must not be over",
            given=f"{study}, whose releases were deleted",
            next_step="Nothing more is taken or made of them; the coordinator's log says so.",
        )


def accepted(store: Database, statement: Statement) -> Acceptance | None:
    """The acceptance of exactly this statement, if there is one.

    Raises: ReplayRefusal, when its release id, bundle or place in the wave is taken by other bytes.
    """
    known = store.read(lambda c: _known(c, statement))
    return None if known is None else known.acceptance


def _known(c: sa.Connection, statement: Statement) -> AcceptedRelease | None:
    given = {name: getattr(statement, name) for name in _PLACE}
    if c.execute(_TAKEN_BACK, given).first() is not None:
        raise ReplayRefusal(
            "a release that was withdrawn must not come back",
            given="one that the site took back",
            next_step="A new release needs a new charge and another wave (site-agent history).",
        )
    found = [release_row(row) for row in c.execute(_taken_by(), given)]
    if not found:
        return None
    if len(found) == 1 and found[0].envelope.payload == statement.to_bytes():
        return found[0]
    raise ReplayRefusal(
        "a release must be new: its id, its bytes and the site's place in the wave",
        given="one that other bytes have taken",
        next_step="See site-agent history; a second release needs a second charge and another wave.",
    )


@functools.cache
def _taken_by() -> sa.Select[Any]:
    """The query for releases that have a statement's place in the wave, its id or its bundle."""
    same = {name: db.releases.c[name] == sa.bindparam(name) for name in ("study", "wave", "site")}
    other = {name: db.releases.c[name] == sa.bindparam(name) for name in ("release_id", "bundle_sha256")}
    return select_releases().where(sa.and_(*same.values()) | sa.or_(*other.values()))


def quarantine(
    store: Database, *, statement: Statement, envelope: Envelope, refusal: Refusal, today: dt.date
) -> Quarantined:
    """Remember a release whose content was refused; the same bytes again get the same answer.

    Args:
        statement, envelope: what the site signed, read and as it came. refusal: why it was refused. today: UTC.
    """

    def work(c: sa.Connection) -> None:
        where = db.quarantine.c.bundle_sha256 == statement.bundle_sha256
        if c.execute(sa.select(db.quarantine.c.code).where(where)).first() is None:
            values = {name: getattr(statement, name) for name in _PLACE}
            values |= {"code": refusal.code, "reason": str(refusal)}
            values |= {"envelope": envelope.to_bytes(), "day": today.isoformat()}
            c.execute(db.quarantine.insert().values(**values))

    store.write(work)
    return quarantined(store, bundle_sha256=statement.bundle_sha256)[0]


def quarantined(
    store: Database, *, bundle_sha256: str | None = None, study: str | None = None, site: str | None = None
) -> tuple[Quarantined, ...]:
    """Releases whose content was refused."""
    given = {"bundle_sha256": bundle_sha256, "study": study, "site": site}
    given = {name: value for name, value in given.items() if value is not None}
    query = _set_apart(tuple(given))
    return tuple(Quarantined(**row) for row in store.read(lambda c: c.execute(query, given).mappings().all()))


@functools.cache
def _set_apart(names: tuple[str, ...]) -> sa.Select[Any]:
    query = sa.select(*(db.quarantine.c[name] for name in Quarantined.__dataclass_fields__))
    query = query.where(*(db.quarantine.c[name] == sa.bindparam(name) for name in names))
    return query.order_by(db.quarantine.c.study, db.quarantine.c.wave, db.quarantine.c.site)


def accepted_releases(
    store: Database,
    study: str | None = None,
    wave: int | None = None,
    *,
    site: str | None = None,
    withdrawn: bool = False,
) -> tuple[AcceptedRelease, ...]:
    """Accepted releases, in the order of study, wave and site.

    Args: study, wave, site: of these alone; None: of all. withdrawn: whether those that were are among them.
    """
    given = {"study": study, "wave": wave, "site": site}
    given = {name: value for name, value in given.items() if value is not None}
    query = _accepted(tuple(given), withdrawn)
    return tuple(release_row(row) for row in store.read(lambda c: c.execute(query, given).all()))


@functools.cache
def _accepted(names: tuple[str, ...], withdrawn: bool) -> sa.Select[Any]:
    query = select_releases().where(*(db.releases.c[name] == sa.bindparam(name) for name in names))
    query = query if withdrawn else query.where(VISIBLE)
    return query.order_by(db.releases.c.study, db.releases.c.wave, db.releases.c.site)


def release_lines(store: Database, study: str, *, withdrawn: bool = False) -> tuple[ReleaseLine, ...]:
    """The same releases, their receipts unread, by wave and site: of tens of thousands in a fraction of a second."""
    query = _with_withdrawals(
        *(db.releases.c[name] for name in ReleaseLine.__dataclass_fields__ if name != "withdrawn")
    )
    query = query.where(db.releases.c.study == study).order_by(db.releases.c.wave, db.releases.c.site)
    if not withdrawn:
        query = query.where(VISIBLE)
    rows = store.read(lambda c: c.execute(query).mappings().all())
    return tuple(ReleaseLine(**{**row, "withdrawn": row["withdrawn"] or ""}) for row in rows)


def releases_of(store: Database, bundles: Iterable[str]) -> dict[str, AcceptedRelease]:
    """SHA-256 of a bundle to its accepted release, withdrawn or not, for those of `bundles` that have one."""
    return {row.bundle_sha256: release_row(row) for row in _of_bundles(store, select_releases(), bundles)}


def log_places(store: Database, bundles: Iterable[str]) -> dict[str, int]:
    """SHA-256 of a bundle to the place of its release in the log, withdrawn or not: as `releases_of`, nothing read."""
    places = sa.select(db.releases.c.bundle_sha256, db.releases.c.log_index)
    return {row.bundle_sha256: row.log_index for row in _of_bundles(store, places, bundles)}


def _of_bundles(store: Database, query: sa.Select[Any], bundles: Iterable[str]) -> Iterator[sa.Row[Any]]:
    """Rows of a query of releases that are of these bundles, each once, some hundred at a time."""
    asked = list(dict.fromkeys(bundles))
    for start in range(0, len(asked), BATCH):
        these = query.where(db.releases.c.bundle_sha256.in_(asked[start : start + BATCH]))
        yield from store.read(lambda c, these=these: c.execute(these).all())  # type: ignore[misc]


def logged_releases(
    store: Database,
    study: str,
    *,
    most: int = 0,
    after: int | None = None,
    newest: bool = False,
    site: str = "",
    wave: int = 0,
) -> tuple[AcceptedRelease, ...]:
    """Releases of a study in the order of the log, withdrawn ones included, page by page.

    Args:
        most: so many at most; 0 for all.
        after: beyond this place in the log; None from the end where the list begins.
        newest: from the newest to the oldest.
        site, wave: of these alone, where given.
    """
    place = db.releases.c.log_index
    query = select_releases().where(db.releases.c.study == study)
    query = query.order_by(place.desc() if newest else place)
    if after is not None:
        query = query.where(place < after if newest else place > after)
    if site:
        query = query.where(db.releases.c.site == site)
    if wave:
        query = query.where(db.releases.c.wave == wave)
    if most:
        query = query.limit(most)
    return tuple(release_row(row) for row in store.read(lambda c: c.execute(query).all()))


def release_of(store: Database, release_id: str) -> AcceptedRelease:
    """The accepted release `release_id`. Raises: StateRefusal."""
    query = select_releases().where(db.releases.c.release_id == release_id)
    row = store.read(lambda c: c.execute(query).first())
    if row is None:
        raise StateRefusal("the release must have been accepted", given=repr(release_id))
    return release_row(row)


def by_bundle(store: Database, bundle_sha256: str) -> AcceptedRelease | None:
    """The accepted release that has this bundle, withdrawn or not."""
    return releases_of(store, [bundle_sha256]).get(bundle_sha256)


def named(store: Database, bundle_sha256: str) -> bool:
    """Whether a release has this bundle, once each transaction that was under way has ended."""
    asked = sa.select(db.releases.c.log_index).where(db.releases.c.bundle_sha256 == bundle_sha256)
    return (store.write if store.shared else store.read)(lambda c: c.execute(asked).first() is not None)


def holdings(store: Database, study: str, site: str) -> tuple[Holding, ...]:
    """Releases held, or once held, of a site in a study, each with the statement that the site signed."""
    from shared.wire.site_messages import Holding

    held = [
        Holding(
            study=r.study,
            wave=r.wave,
            release_id=r.release_id,
            state="withdrawn" if r.withdrawn not in ("", DISTRUSTED) else "accepted",
            log_index=r.log_index,
            statement=r.envelope.to_bytes(),
        )
        for r in accepted_releases(store, study, site=site, withdrawn=True)
    ]
    query = sa.select(db.quarantine).where((db.quarantine.c.study == study) & (db.quarantine.c.site == site))
    apart = [
        Holding(
            study=q.study,
            wave=q.wave,
            release_id=q.release_id,
            state="quarantined",
            code=q.code,
            reason=q.reason,
            statement=q.envelope,
        )
        for q in store.read(lambda c: c.execute(query.order_by(db.quarantine.c.wave)).all())
    ]
    return (*held, *apart)[-HOLDINGS_CAP:]


def uncompared(store: Database) -> dict[str, str]:
    """Bundle to site of each release from before the newest restoration that its site has not compared since.

    What was withdrawn after the backup is accepted again until its site says so once more.
    """
    last = store.read(lambda c: c.execute(sa.select(sa.func.max(db.restorations.c.log_index))).scalar())
    if last is None:
        return {}
    since = sa.select(db.comparisons.c.site, db.comparisons.c.study).where(db.comparisons.c.size > last)
    heard = {(row.site, row.study) for row in store.read(lambda c: c.execute(since).all())}
    return {
        release.bundle_sha256: release.site
        for release in accepted_releases(store)
        if release.log_index < last and (release.site, release.study) not in heard
    }


def charged(store: Database, study: str, site: str) -> dict[str, tuple[int, AcceptedRelease | None]]:
    """Every release that a site's ledger must have been charged for: id to (plan version, release if accepted).

    Accepted, withdrawn since, or quarantined: what arrived was drawn, whatever became of it.
    """
    out: dict[str, tuple[int, AcceptedRelease | None]] = {}
    given = {"study": study, "site": site}
    for envelope in store.read(lambda c: c.execute(_ARRIVED, given).scalars().all()):
        said = parse_json(Envelope.from_bytes(envelope).payload)
        out[said["release_id"]] = (said["plan_version"], None)
    for release in accepted_releases(store, study, site=site, withdrawn=True):
        out[release.release_id] = (release.plan_version, release)
    return out


def withdraw(store: Database, *, withdrawal: Withdrawal, envelope: Envelope, today: dt.date) -> Tombstone:
    """Log that a site took a release back, and hide it from every reader, in one transaction.

    Idempotent: the first withdrawal of a release stands. The caller deletes the bytes afterwards, never before.

    Raises: StateRefusal (no such release of this site has arrived, or a later one under ``frozen`` still holds its
        rows), ReplayRefusal (it has other bytes, or another place).
    """

    def work(c: sa.Connection) -> None:
        if c.execute(select_tombstones().where(db.withdrawals.c.bundle_sha256 == withdrawal.bundle_sha256)).first():
            return
        places = []
        for table in (db.releases, db.quarantine):
            query = sa.select(*(table.c[name] for name in _PLACE)).where(table.c.release_id == withdrawal.release_id)
            places += [dict(row) for row in c.execute(query).mappings() if row["site"] == withdrawal.site]
        if not places:
            raise StateRefusal(
                "a release must have arrived to be withdrawn",
                given="one that the coordinator does not have",
                next_step="Reject it in the outbox: it was never sent.",
            )
        if {name: getattr(withdrawal, name) for name in places[0]} not in places:
            raise ReplayRefusal("a withdrawal must name the release's study, wave and bytes", given="others")
        _require_no_copies(c, withdrawal)
        leaf = {"kind": "withdrawal", "statement": envelope.digest, "bundle": withdrawal.bundle_sha256}
        index, log_root = append_entry(c, {**leaf, "site": withdrawal.site})
        values = {item: getattr(withdrawal, item) for item in withdrawal.__dataclass_fields__}
        values |= {"log_index": index, "log_root": log_root, "day": today.isoformat()}
        c.execute(db.withdrawals.insert().values(**values, envelope=envelope.to_bytes()))
        forget_estimates(c, db.kept_questions.c.study == withdrawal.study, site=withdrawal.site)

    store.write(work)
    (stone,) = withdrawals(store, bundle_sha256=withdrawal.bundle_sha256, distrusted=False)
    if stone.site != withdrawal.site:
        raise ReplayRefusal("a withdrawal must be of the calling site's release", given="another site's")
    return stone


def forget_estimates(c: sa.Connection, which: sa.ColumnElement[bool], *, site: str = "") -> None:
    """Let go of what is kept of questions, within a transaction; of `site` alone, and of all together, where given."""
    kept, questions = db.kept_estimates, db.kept_questions
    of_these = kept.c.question.in_(sa.select(questions.c.question).where(which))
    c.execute(kept.delete().where(of_these & kept.c.site.in_([site, ""]) if site else of_these))
    if not site:
        c.execute(questions.delete().where(which))


def revoke_standing(store: Database, site: str, standing: str, envelope: Envelope, today: dt.date) -> None:
    """Note that a standing approval of a site is over, for good; again changes nothing.

    Args:
        standing: digest of its document.
    Raises: TooLarge, beyond `REVOCATIONS_CAP` of one site.
    """

    def work(c: sa.Connection) -> None:
        own = sa.select(db.revocations.c.standing).where(db.revocations.c.site == site)
        known = set(c.execute(own).scalars())
        if standing in known:
            return
        if len(known) >= REVOCATIONS_CAP:
            raise TooLarge(f"a site may revoke at most {REVOCATIONS_CAP} standing approvals", given=f"{len(known)}")
        values = {"site": site, "standing": standing, "envelope": envelope.to_bytes(), "day": today.isoformat()}
        c.execute(db.revocations.insert().values(**values))

    store.write(work)
    reach("standing.revoked")


def standing_revoked(store: Database, site: str, standing: str) -> bool:
    """True if a site has reported the end of a standing approval."""
    query = sa.select(db.revocations.c.day).where(db.revocations.c.site == site, db.revocations.c.standing == standing)
    return store.read(lambda c: c.execute(query).first()) is not None


def withdrawals(
    store: Database, study: str | None = None, *, bundle_sha256: str | None = None, distrusted: bool = True
) -> tuple[Tombstone, ...]:
    """Releases that were withdrawn, in the order of the log.

    Args:
        distrusted: name those as well that nobody relies on since their site was revoked from a day on: no question
            sees them either, and their bytes are kept as evidence.
    """
    return store.read(lambda c: tombstones(c, study, bundle_sha256=bundle_sha256, distrusted=distrusted))


def tombstones(
    c: sa.Connection, study: str | None = None, *, bundle_sha256: str | None = None, distrusted: bool = True
) -> tuple[Tombstone, ...]:
    """The same within a transaction."""
    found = [dict(row) for row in c.execute(select_tombstones()).mappings()]
    if distrusted:
        taken = {row["bundle_sha256"] for row in found}
        names = ("release_id", "study", "wave")
        also = membership.distrusted
        query = sa.select(*also.c, *(db.releases.c[name] for name in names), db.log.c.root)
        query = query.join(db.releases, also.c.bundle_sha256 == db.releases.c.bundle_sha256)
        query = query.join(db.log, also.c.log_index == db.log.c.index)
        for row in c.execute(query).mappings():
            if row["bundle_sha256"] not in taken:
                kept = {name: row[name] for name in (*names, "bundle_sha256", "site", "log_index", "day")}
                found.append({**kept, "log_root": row["root"], "reason_code": DISTRUSTED})
    return tuple(
        Tombstone(**row)
        for row in sorted(found, key=lambda row: int(row["log_index"]))
        if study in (None, row["study"]) and bundle_sha256 in (None, row["bundle_sha256"])
    )


@functools.cache
def select_releases() -> sa.Select[Any]:
    """The query for releases, each with its withdrawal and its standing approval."""
    standing = db.releases.c.release_id == db.standing.c.release_id
    query = _with_withdrawals(*db.releases.c).outerjoin(db.standing, standing)
    return query.add_columns(db.standing.c.standing)


def _with_withdrawals(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    joined = db.releases.outerjoin(db.withdrawals, db.releases.c.bundle_sha256 == db.withdrawals.c.bundle_sha256)
    own = membership.distrusted.c.bundle_sha256 == db.releases.c.bundle_sha256
    joined = joined.outerjoin(membership.distrusted, own)
    since = sa.case((membership.distrusted.c.day.is_not(None), DISTRUSTED), else_=None)
    withdrawn = sa.func.coalesce(db.withdrawals.c.reason_code, since).label("withdrawn")
    return sa.select(*columns, withdrawn).select_from(joined)


def select_tombstones() -> sa.Select[Any]:
    """The query for withdrawals."""
    return sa.select(*(db.withdrawals.c[name] for name in Tombstone.__dataclass_fields__))


def _require_no_copies(c: sa.Connection, withdrawal: Withdrawal) -> None:
    """Refuse to hide a release whose rows stay readable in a later one. Raises: StateRefusal.

    A release under ``frozen`` copies the rows of the one before. Hiding those as well would need statements that
    their site has not signed; so it takes them back first, the latest before the others.
    """
    withdrawn = set(c.execute(sa.select(db.withdrawals.c.bundle_sha256)).scalars())
    copies: dict[str, int] = {}
    for table in (db.releases, db.quarantine):
        own = (table.c.study == withdrawal.study) & (table.c.site == withdrawal.site)
        for row in c.execute(sa.select(table).where(own & (table.c.wave > withdrawal.wave))):
            said = parse_json(Envelope.from_bytes(row.envelope).payload)
            where = (db.plans.c.study == row.study) & (db.plans.c.version == said["plan_version"])
            plan = StudyPlan.from_bytes(
                Envelope.from_bytes(c.execute(sa.select(db.plans.c.envelope).where(where)).scalar_one()).payload
            )
            if plan.returning == "frozen" and row.bundle_sha256 not in withdrawn:
                copies[row.release_id] = row.wave
    if copies:
        latest = sorted(copies.items(), key=lambda item: -item[1])
        raise StateRefusal(
            "a release must be taken back after those that hold its rows",
            given=", ".join(f"wave {wave} ({release_id[:8]})" for release_id, wave in latest),
            next_step="Take these back first, the latest before the others: each copies the rows of the one before.",
        )


def release_row(row: Any) -> AcceptedRelease:
    """A row of `select_releases`, read."""
    values = dict(row._mapping)
    values["receipt"] = receipt_of(values["receipt"])
    values["envelope"] = envelope_of(values["envelope"])
    values["withdrawn"] = values["withdrawn"] or ""
    values["standing"] = None if values["standing"] is None else Envelope.from_bytes(values["standing"])
    return AcceptedRelease(**values)
