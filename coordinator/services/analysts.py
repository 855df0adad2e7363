"""Analysts' tokens, stored answers, and the record of every question.

A token is 256 random bits with a public id in front. The store keeps its SHA-256 (such a token cannot be guessed, so
a slow hash would protect nothing), the day it expires, and the studies it is for. It is looked up by the id and
compared in constant time, so that neither the answer nor how long it took says how much of a guess was right.

An answer is kept under the hash of everything it depends on: which releases, which question, which plan, which code.
Two people who ask the same get the same bytes, and nothing but another release makes an answer a new one. That a
question was asked is a line of the record each time, whether it was answered or refused: how many looks were taken at
the data is what a reader of the paper must be able to count. A line is on disk before its answer leaves; lines that
wait for the disk at the same time are written together.

The record is for good; answers are not. They are kept for a time and up to a number of bytes
(`coordinator.services.quotas`), the oldest deleted first: the same question to the same releases gives the same answer
under the same id again.
"""

from __future__ import annotations

import datetime as dt
import hmac
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, Unpack, cast

import sqlalchemy as sa

from coordinator.config import Quotas
from coordinator.services.quotas import SHARE
from coordinator.store.engine import Writer
from coordinator.store.schema import analyst_tokens as _tokens
from coordinator.store.schema import answers as _answers
from coordinator.store.schema import answers_kept as _kept
from coordinator.store.schema import asked as _queries
from coordinator.store.schema import results
from coordinator.store.store import Store
from shared.base.canonical import canonical_json, sha256_hex
from shared.errors import AccessRefusal, ParameterError, StateRefusal
from shared.wire.transport import Peer

__all__ = ["ROLES", "Account", "Analyst", "Analysts", "QueryLine", "QueryWords"]

ROLES = ("analyst", "lead", "auditor")
DAYS = 365
OVERLAP = 30  # days
PAGE = 1000
T = TypeVar("T")
_NO_TOKEN = sha256_hex(b"")


@dataclass(frozen=True, kw_only=True)
class Analyst(Peer):
    """An analyst at the other end, by the token that was shown."""

    studies: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Account:
    """One token, without what is secret of it.

    Args:
        id: its public half.
        name: name of its holder.
        role: ``analyst`` asks; ``lead`` also sees downloads; ``auditor`` reads the record and asks nothing.
        studies: the studies it is for.
        expires: last day on which it is good.
        revoked: the day of its revocation.
    """

    id: str
    name: str
    role: str
    studies: tuple[str, ...]
    made: dt.date
    expires: dt.date
    revoked: dt.date | None = None

    def state(self, today: dt.date) -> str:
        """State of the token: ``in force``, ``expired`` or ``revoked``."""
        return "revoked" if self.revoked else "expired" if today > self.expires else "in force"


@dataclass(frozen=True, kw_only=True)
class QueryLine:
    """One line of the record.

    Args:
        number: its place; it only grows.
        kind: ``query``, ``refused``, or ``rows`` for a download.
        label: confirmatory or exploratory; blank for a download.
        planned: name of the planned analysis, or blank.
        question: as plain values (`coordinator.answers.queries.PooledAnswer.query`); if refused, as it was written.
        subject: the result's id; of a refused question its code, of a download the release's id.
    """

    number: int
    study: str
    analyst: str
    role: str
    day: str
    kind: str
    label: str
    planned: str
    question: Mapping[str, Any]
    subject: str


class QueryWords(TypedDict):
    """Fields of a line of the record, apart from the analyst and the day: see `QueryLine`."""

    kind: str
    label: str
    planned: str
    question: Mapping[str, Any]


def _new(
    name: str, studies: tuple[str, ...], role: str, days: int, today: dt.date
) -> tuple[Account, str, dict[str, Any]]:
    """An account with a token of its own, the token, and the account's row. Raises: ParameterError."""
    if not 1 <= days <= 3650:
        raise ParameterError("a token must last 1 to 3650 days", given=f"{days}")
    public, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    token = f"{public}.{secret}"
    ends = today + dt.timedelta(days=days)
    account = Account(id=public, name=name, role=role, studies=studies, made=today, expires=ends)
    values = {item: getattr(account, item) for item in ("id", "name", "role", "made", "expires", "revoked")}
    return account, token, {**values, "studies": json.dumps(studies), "token_sha256": sha256_hex(token.encode())}


def _nobody(c: sa.Connection) -> bool:
    return c.execute(sa.select(_tokens.c.id).limit(1)).first() is None


class Analysts:
    """Tokens, answers and the record, in the coordinator's database.

    Args:
        store: the coordinator's store.
        quotas: quotas of stored answers.
    """

    def __init__(self, store: Store, quotas: Quotas | None = None) -> None:
        self._read, self._write = store.read, store.write
        self._together = _Together(self._write)
        self.quotas = quotas or Quotas()

    # -- tokens -------------------------------------------------------------------------------------------------
    def add(
        self,
        name: str,
        *,
        studies: Sequence[str],
        role: str = "analyst",
        days: int = DAYS,
        today: dt.date,
        first: bool = False,
    ) -> tuple[Account, str]:
        """A new token: its account, and the token itself, which nobody can read again.

        Args:
            first: only if there was never one before.
        Raises: ParameterError; StateRefusal (not the first).
        """
        plain = name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        if not (plain and len(name) <= 64):
            raise ParameterError("an analyst's name must be a plain word", given=repr(name[:64]))
        if role not in ROLES:
            raise ParameterError(f"a role must be one of {', '.join(ROLES)}", given=repr(role))
        if not studies:
            raise ParameterError("a token must be for a study", given="none", next_step="Name it with --study.")
        account, token, values = _new(name, tuple(dict.fromkeys(studies)), role, days, today)

        def work(c: sa.Connection) -> None:
            if first and not _nobody(c):
                raise StateRefusal(
                    "the first token must be made while there is none",
                    given="another",
                    next_step="Sign in with it, or have its holder make you one: coordinator analyst add.",
                )
            c.execute(_tokens.insert().values(**values))

        self._write(work)
        return account, token

    def nobody(self) -> bool:
        """True if no token was ever made."""
        return self._read(_nobody)

    def replaceable(self, name: str, *, today: dt.date) -> Account:
        """The one token in force of a name, or the one of an id. Raises: StateRefusal (none, or several)."""
        found = [one for one in self.accounts() if name in (one.name, one.id) and one.state(today) == "in force"]
        if len(found) != 1:
            raise StateRefusal(
                "one token in force must be named to be replaced",
                given=f"{len(found)} of {name!r}",
                next_step="Name it by its id: coordinator analyst list."
                if found
                else "One that expired or was revoked has no successor: coordinator analyst add makes a new one.",
            )
        return found[0]

    def replace(
        self,
        name: str,
        *,
        days: int = DAYS,
        overlap: int = 0,
        today: dt.date,
        hand_over: Callable[[Account, str], None] = lambda account, token: None,
    ) -> tuple[Account, Account, str]:
        """A new token in the place of one in force, for the same studies in the same role, in one transaction.

        Args:
            name: as of `replaceable`.
            days: for which the new one lasts.
            overlap: days for which the old one is still good, so that whatever uses it can be changed over; 0 takes it
                back at once. It never lasts longer than it did.
            hand_over: is given the new account and its token before the old one ends, and may refuse.
        Returns: the old account as it is now, the new one, and its token, which nobody can read again.
        Raises: as `replaceable`; ParameterError.
        """
        if not 0 <= overlap <= OVERLAP:
            raise ParameterError(f"a token that is replaced must last 0 to {OVERLAP} days more", given=f"{overlap}")
        old = self.replaceable(name, today=today)
        account, token, values = _new(old.name, old.studies, old.role, days, today)
        ends: dict[str, Any] = (
            {"expires": min(old.expires, today + dt.timedelta(days=overlap))} if overlap else {"revoked": today}
        )

        def work(c: sa.Connection) -> None:
            # By its day, too: another who replaced it meanwhile may have ended it sooner.
            where = (_tokens.c.id == old.id) & _tokens.c.revoked.is_(None) & (_tokens.c.expires == old.expires)
            if not c.execute(_tokens.update().where(where).values(**ends)).rowcount:
                raise StateRefusal(
                    "a token must be in force to be replaced", given="one that was revoked or replaced meanwhile"
                )
            c.execute(_tokens.insert().values(**values))

        hand_over(account, token)
        self._write(work)
        return replace(old, **ends), account, token

    def accounts(self) -> tuple[Account, ...]:
        """All tokens, by name and day."""
        query = sa.select(_tokens).order_by(_tokens.c.name, _tokens.c.made, _tokens.c.id)
        return tuple(_account(row) for row in self._read(lambda c: c.execute(query).all()))

    def revoke(self, name: str, *, today: dt.date) -> tuple[Account, ...]:
        """Take back every token of a name, or the one of an id; those it took back. Raises: StateRefusal (none)."""
        where = (_tokens.c.name == name) | (_tokens.c.id == name)
        found = [account for account in self.accounts() if name in (account.name, account.id) and not account.revoked]
        if not found:
            raise StateRefusal(
                "an analyst must hold a token to lose it", given=repr(name), next_step="See coordinator analyst list."
            )
        self._write(
            lambda c: c.execute(_tokens.update().where(where & _tokens.c.revoked.is_(None)).values(revoked=today))
        )
        return tuple(found)

    def identify(self, token: str, *, today: dt.date) -> Analyst:
        """The analyst of a token. Raises: AccessRefusal: one answer for unknown, expired and revoked alike."""
        public = token.partition(".")[0][:16]
        row = self._read(lambda c: c.execute(sa.select(_tokens).where(_tokens.c.id == public)).first())
        stored = row.token_sha256 if row is not None else _NO_TOKEN
        same = hmac.compare_digest(stored, sha256_hex(token.encode()))
        account = _account(row) if row is not None else None
        if account is None or not same or account.state(today) != "in force":
            raise AccessRefusal(
                "a call must carry a token that is in force",
                given="an unknown, expired or revoked one" if token else "none",
                next_step="Ask the study lead for a new one (coordinator analyst add).",
            )
        return Analyst(role=account.role, site=account.name, serial=account.id, studies=account.studies)

    # -- answers ------------------------------------------------------------------------------------------------
    def answer(self, study: str, result_id: str) -> bytes | None:
        """The answer that was given under this id in this study."""
        where = (_answers.c.result_id == result_id) & (_answers.c.study == study)
        found: bytes | None = self._read(lambda c: c.execute(sa.select(_answers.c.document).where(where)).scalar())
        return found

    def result_id(self, study: str, start: str) -> str | None:
        """The id in this study that begins so, if there is one and no other."""
        where = _answers.c.result_id.startswith(start, autoescape=True) & (_answers.c.study == study)
        rows = self._read(lambda c: c.execute(sa.select(_answers.c.result_id).where(where).limit(2)).all())
        return str(rows[0].result_id) if len(rows) == 1 else None

    def stored_bytes(self) -> dict[str, int]:
        """Name to the bytes of the answers for which it was the first to ask; blank is from before that was noted."""
        query = sa.select(_kept.c.analyst, sa.func.sum(_kept.c.bytes)).group_by(_kept.c.analyst)
        return {name: int(size) for name, size in self._read(lambda c: c.execute(query).all())}

    def prune(self, today: dt.date | None = None) -> int:
        """Delete the answers that are too many, the oldest first; how many. Lines of the record stay.

        Args:
            today: delete those that are too old on this day as well; of a clock that is believed.
        """
        return self._write(lambda c: _prune(c, self.quotas, today))

    # -- the record ---------------------------------------------------------------------------------------------
    def note(
        self,
        who: Analyst,
        *,
        study: str,
        kind: str,
        subject: str,
        question: Mapping[str, Any],
        label: str = "",
        planned: str = "",
        today: dt.date,
    ) -> None:
        """Add a line to the record. Durable when it returns; lines of several threads share a transaction.

        Args:
            who: asked.
            study, kind, subject, question, label, planned: as of `QueryLine`.
            today: day of the line, UTC.
        """
        values = {"study": study, "analyst": who.site, "role": who.role, "day": today.isoformat(), "kind": kind}
        values |= {"label": label, "planned": planned, "subject": subject}
        text = canonical_json(dict(question)).decode()
        self._together(lambda c: c.execute(_queries.insert().values(**values, question=text)))

    def give(
        self,
        who: Analyst,
        document: bytes,
        *,
        beside: Callable[[sa.Connection], object],
        study: str,
        subject: str,
        today: dt.date,
        **line: Unpack[QueryWords],
    ) -> bytes:
        """Keep an answer under its id (`subject`) with its line of the record, in one transaction.

        Args:
            beside: further writes of the same transaction.
            line: the rest of the line, as of `note`.
        Returns: the answer that stands, which is the first one under this id.
        """
        values = {"study": study, "analyst": who.site, "role": who.role, "day": today.isoformat(), "subject": subject}
        values |= {"kind": line["kind"], "label": line["label"], "planned": line["planned"]}
        text = canonical_json(dict(line["question"])).decode()

        def work(c: sa.Connection) -> bytes:
            known: bytes | None = c.execute(
                sa.select(_answers.c.document).where(_answers.c.result_id == subject)
            ).scalar()
            if known is None:
                row = {"result_id": subject, "study": study, "document": document, "day": today.isoformat()}
                c.execute(_answers.insert().values(**row))
                newest = sa.select(sa.func.max(results.c.id))
                before = c.execute(newest).scalar()
                beside(c)
                result = c.execute(newest).scalar()
                kept = {"result_id": subject, "analyst": who.site, "bytes": len(document), "day": row["day"]}
                c.execute(_kept.insert().values(**kept, result=None if result == before else result))
            c.execute(_queries.insert().values(**values, question=text))
            return document if known is None else known

        return self._together(work)

    def record(self, study: str, *, after: int = 0, subject: str = "") -> tuple[QueryLine, ...]:
        """At most `PAGE` lines of a study's record from after line `after`; of one result or release, if named."""
        query = sa.select(_queries).where((_queries.c.study == study) & (_queries.c.number > after))
        if subject:
            query = query.where(_queries.c.subject == subject)
        rows = self._read(lambda c: c.execute(query.order_by(_queries.c.number).limit(PAGE)).mappings().all())
        return tuple(QueryLine(**{**row, "question": json.loads(row["question"])}) for row in rows)


def _prune(c: sa.Connection, quotas: Quotas, today: dt.date | None) -> int:
    # Answers of an earlier version are nobody's.
    new = sa.select(_answers.c.result_id, sa.literal(""), sa.func.length(_answers.c.document), _answers.c.day)
    new = new.where(_answers.c.result_id.not_in(sa.select(_kept.c.result_id))).order_by(_answers.c.day)
    c.execute(_kept.insert().from_select(["result_id", "analyst", "bytes", "day"], new))
    rows = c.execute(sa.select(_kept).order_by(_kept.c.number)).all()
    first = "" if today is None else (today - dt.timedelta(days=quotas.answer_days)).isoformat()
    own: Counter[str] = Counter()
    for row in rows:
        own[row.analyst] += row.bytes
    total, gone = sum(own.values()), []
    for row in rows:
        if row.day < first or own[row.analyst] > quotas.answers // SHARE or total > quotas.answers:
            gone.append(row)
            own[row.analyst] -= row.bytes
            total -= row.bytes
    for start in range(0, len(gone), 500):
        part = gone[start : start + 500]
        for table, column, name in (
            (results, results.c.id, "result"),
            (_answers, _answers.c.result_id, "result_id"),
            (_kept, _kept.c.result_id, "result_id"),
        ):
            c.execute(table.delete().where(column.in_([getattr(row, name) for row in part])))
    return len(gone)


class _Together:
    """Writes of many threads in one transaction: one wait for the disk, however many write at once.

    Each call returns when its own work is durable. If the transaction fails, each is done again by itself, so that
    one that cannot be written takes no other down.
    """

    def __init__(self, write: Writer) -> None:
        self._write = write
        self._guard, self._busy = threading.Lock(), threading.Lock()
        self._waiting: list[_Job] = []

    def __call__(self, work: Callable[[sa.Connection], T]) -> T:
        job = _Job(work)
        with self._guard:
            self._waiting.append(job)
        with self._busy:
            if not job.done:  # nobody who was here before has taken it along
                with self._guard:
                    jobs, self._waiting = self._waiting, []
                self._run(jobs)
        if job.failed is not None:
            raise job.failed
        return cast("T", job.given)

    def _run(self, jobs: list[_Job]) -> None:
        try:
            given = self._write(lambda c: [job.work(c) for job in jobs])
            for job, value in zip(jobs, given, strict=True):
                job.given, job.done = value, True
            return
        except Exception as failed:
            if len(jobs) == 1:
                jobs[0].failed, jobs[0].done = failed, True
                return
        for job in jobs:
            self._run([job])


class _Job:
    def __init__(self, work: Callable[[sa.Connection], object]) -> None:
        self.work, self.done = work, False
        self.given: object = None
        self.failed: Exception | None = None


def _account(row: Any) -> Account:
    values = {name: getattr(row, name) for name in ("id", "name", "role", "made", "expires", "revoked")}
    return Account(studies=tuple(json.loads(row.studies)), **values)
