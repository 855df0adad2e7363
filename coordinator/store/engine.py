"""The coordinator's database by itself: reading, writing in one transaction, the log that grows with what is written.

Acknowledged means durable: SQLite runs with a write-ahead log and ``synchronous=FULL``.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from coordinator.store import schema as db
from coordinator.store.bundles import bundle_store
from coordinator.store.schema.homes import require_own
from coordinator.store.schema.revisions import HEAD, brought_up, revision_of
from shared.base.canonical import canonical_json
from shared.base.merkle.tree import MerkleTree, append, leaf_hash, peaks_root
from shared.errors import Refusal, StateRefusal, StorageRefusal, StoreAway

__all__ = ["BRIEFLY", "Database", "Reader", "Writer", "append_entry", "log_size", "opened", "storage_refusal"]

T = TypeVar("T")
_log = logging.getLogger("tributary.store")

LONGEST_WAIT = 30.0  # seconds for which a transaction waits for another's lock
RESTART = 20.0  # seconds for which a database server may be away before whoever calls is refused
CONNECTING = 10.0  # seconds for which one connection to a database server is tried: it may be one that says nothing
BRIEFLY = 4.0  # the same where a person waits at a command that only reads
ONE_WRITER = "SELECT pg_advisory_xact_lock(7236288)"
"""Taken first by whatever writes to PostgreSQL, until its transaction ends: what it then reads, nobody changes.

So several coordinators may serve one database. As in SQLite, whatever is checked within a transaction (one release for
each place, a budget, the log's last entry) is still so when it commits.
"""
WRITERS_KEPT = 31  # days for which a writer's last transaction is known


class Reader(Protocol):
    """Runs a function on a connection, and gives what it gives; of a `Writer`, in one transaction."""

    def __call__(self, work: Callable[[sa.Connection], T], /) -> T: ...  # noqa: D102


Writer = Reader


class _Absence:
    """How long a database server has been away, as all of its callers together have found. Safe for many threads.

    Args:
        place: where the server is, for the log.
    """

    def __init__(self, place: str) -> None:
        self._place, self._guard = place, threading.Lock()
        self._since = self._seen = -math.inf
        self.trying = threading.Lock()
        """Held by whoever tries to connect to a server of which all know that it is away."""

    def seconds(self, now: float) -> float:
        """Seconds since the server went, of which a caller has found at `now` that it is away."""
        with self._guard:
            if now - self._seen > RESTART + LONGEST_WAIT:  # nobody has asked meanwhile: it may have been there
                self._since = now
                if _log.hasHandlers():  # of a command the refusal says it
                    _log.error("the database does not answer: no connection to %s", self._place)
            self._seen = now
            return now - self._since

    def lasts(self, now: float) -> bool:
        """True if it is known that the server is away, and not for a restart only."""
        return self._seen - self._since > RESTART and now - self._seen <= RESTART + LONGEST_WAIT

    def ended(self) -> None:
        """The server has answered."""
        if self._seen > -math.inf:
            with self._guard:
                seen, self._seen = self._seen, -math.inf  # first: `lasts` reads both without the guard
                if seen > -math.inf and _log.hasHandlers():
                    _log.warning("the database answers again, after %.0f seconds", seen - self._since)
                self._since = -math.inf


class Database:
    """One SQL database and the bundles beside it. Safe for many threads, and for several processes.

    Args: as of `coordinator.store.store.Store`.
    Raises: StorageRefusal, when the database cannot be opened; StateRefusal, when it is of another version, or is
        another home's.
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
        parsed, given = sa.make_url(url), home
        sqlite = parsed.get_backend_name() == "sqlite"
        if home is None:
            home = Path(parsed.database or "store.db").parent if sqlite else Path()
        self.home, self.bundles = home, bundle_store(bundles, home)
        # One writer at a time within this process: cheaper than letting the database send losers back.
        self._writing = threading.Lock()
        self._writer, self._number = secrets.token_hex(16), 0
        self._nodes, self._growing = MerkleTree(), threading.Lock()
        self._held = threading.local()
        self._absence = _Absence(_place(parsed))
        self.shared = parsed.get_backend_name() == "postgresql"
        self._engine = opened(url, LONGEST_WAIT if patience is None else patience)

        def found(c: sa.Connection) -> str:
            if given is not None:
                require_own(c, parsed, given, self.bundles)  # before anything in it is changed
            return revision_of(c)

        # Asked as a reader first: whoever only reads must not wait for a writer.
        try:
            if self._read(found, RESTART if patience is None else patience) != HEAD and bring_up:
                self.write(lambda c: brought_up(c, db.meta))
        except Refusal:
            self.close()
            raise

    @property
    def place(self) -> tuple[str, str, str]:
        """What another process of this coordinator opens it by, in order; the database's URL may hold a password."""
        return self._engine.url.render_as_string(hide_password=False), str(self.home), self.bundles.place

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def damage(self, *, thorough: bool = False) -> str:
        """What SQLite finds wrong with its file; blank if nothing, or if the database is another.

        Args:
            thorough: hold indexes against their tables too.
        """
        if self._engine.dialect.name != "sqlite":
            return ""
        pragma = f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)"
        try:
            said = self.read(lambda c: str(c.exec_driver_sql(pragma).scalar()))
        except StorageRefusal as refusal:
            return refusal.given
        return "" if said == "ok" else said.splitlines()[0][:200]

    def read(self, work: Callable[[sa.Connection], T], *, apart: bool = False) -> T:
        """Run `work` on a connection that shows the database as it is at one moment, and return its result.

        `work` is run again if the database server was restarted meanwhile. A call of `read` within `work` uses the same
        connection and so sees the same moment; within `write` it sees what that transaction has written so far.

        Args:
            apart: True to take a connection of its own within another call: it sees only what is committed.
        Raises: StorageRefusal.
        """
        held: sa.Connection | None = getattr(self._held, "connection", None)
        if held is not None and not apart:
            return work(held)
        return self._read(work, RESTART)

    def _read(self, work: Callable[[sa.Connection], T], patience: float) -> T:
        """`read` on a connection of its own, again until the server has been away for so many seconds.

        Counted from when the server went, not from this call: of an outage that lasts, whoever asks later is refused
        at once, and waits in no queue behind others that wait.
        """
        one_moment = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True} if self.shared else {}
        while True:
            try:
                with self._connected().execution_options(**one_moment) as connection, self._holding(connection):
                    done = work(connection)
                self._absence.ended()
                return done
            except Refusal as refusal:
                if not isinstance(refusal, StoreAway):  # of what it has read; an idle connection alone proves nothing
                    self._absence.ended()
                raise
            except DBAPIError as error:
                if not _away(error) or self._absence.seconds(time.monotonic()) > patience:
                    raise storage_refusal(error, self._engine.url) from None
                time.sleep(0.2)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in one transaction that may write, and return its result.

        `work` is run again from the start if another process committed first, or if the server was away. If the answer
        to a commit was lost, the database is asked whether the commit took place, so that nothing is done twice.

        Raises: StorageRefusal; RuntimeError when called within another `write`, which would wait for itself for ever.
        """
        if getattr(self._held, "writes", False):
            raise RuntimeError("a transaction that writes must not be asked for within another")
        with self._writing:
            begun, asked = time.monotonic(), False
            self._number += 1
            for attempt in itertools.count():
                try:
                    with self._connected().execution_options(tributary_write=True) as connection:
                        with connection.begin():
                            if self.shared:
                                connection.exec_driver_sql(ONE_WRITER)  # a commit under way has ended now
                                self._absence.ended()
                            if not (asked and self._noted(connection) == self._number):
                                with self._holding(connection, writes=True):
                                    done = work(connection)
                                if self.shared:
                                    self._note(connection)
                            asked = self.shared
                        return done
                except (IntegrityError, OperationalError) as error:
                    full = "full" in str(error.orig) or "readonly" in str(error.orig)
                    now = time.monotonic()
                    away, waited = _away(error), now - begun
                    waited = self._absence.seconds(now) if away else waited
                    if full or (waited > RESTART if away else attempt >= 19 or waited > LONGEST_WAIT):
                        raise storage_refusal(error, self._engine.url) from None
                    time.sleep(0.2 if away else 0.01 * attempt)
                except DBAPIError as error:
                    raise storage_refusal(error) from None
        raise AssertionError("unreachable")

    def _connected(self) -> sa.Connection:
        """A connection; of a server that has been away for long, one caller at a time tries for one.

        Raises: StoreAway, to the others, at once: a machine that says nothing would have each wait in turn.
        """
        if not self._absence.lasts(time.monotonic()):
            return self._engine.connect()
        if not self._absence.trying.acquire(blocking=False):
            raise _gone(self._engine.url)
        try:
            return self._engine.connect()
        finally:
            self._absence.trying.release()

    @contextmanager
    def _holding(self, connection: sa.Connection, *, writes: bool = False) -> Iterator[None]:
        before = getattr(self._held, "connection", None), getattr(self._held, "writes", False)
        self._held.connection, self._held.writes = connection, writes or before[1]
        try:
            yield
        finally:
            self._held.connection, self._held.writes = before

    def _noted(self, c: sa.Connection) -> int | None:
        """Number of this process's last transaction that took place."""
        return c.execute(sa.select(db.writers.c.number).where(db.writers.c.writer == self._writer)).scalar()

    def _note(self, c: sa.Connection) -> None:
        """Note the number of the transaction in itself. (The server's own ids are given again after a crash.)"""
        mine = db.writers.update().where(db.writers.c.writer == self._writer)
        if not c.execute(mine.values(number=self._number)).rowcount:
            today = dt.datetime.now(dt.UTC).date()
            old = (today - dt.timedelta(days=WRITERS_KEPT)).isoformat()
            c.execute(db.writers.delete().where(db.writers.c.day < old))
            values = {"writer": self._writer, "number": self._number, "day": today.isoformat()}
            c.execute(db.writers.insert().values(values))

    def entries(self) -> int:
        """Number of entries in the log: releases, withdrawals and closings of waves change only together with it."""
        return self.read(log_size)

    def root(self, size: int) -> str:
        """Root of the log's first `size` entries."""
        return self.tree(size).root(size).hex()

    def copy_to(self, path: Path) -> None:
        """Write the database to a new file, whole and as of one moment, while others write on.

        Raises: StateRefusal (not SQLite: a database server has tools of its own), StorageRefusal.
        """
        import sqlite3

        if self._engine.dialect.name != "sqlite":
            raise StateRefusal(
                "the store must be SQLite to be copied by this command",
                given=self._engine.dialect.name,
                next_step="Back a database server up with its own tools (pg_dump), and the home folder beside it.",
            )
        raw = self._engine.raw_connection()
        try:
            target = sqlite3.connect(path)
            try:
                raw.driver_connection.backup(target)  # type: ignore[union-attr]
                target.execute("PRAGMA journal_mode=DELETE")  # one file, complete by itself
            finally:
                target.close()
        except sqlite3.Error as error:
            raise StorageRefusal("the copy of the database must be writable", given=f"{error}") from None
        finally:
            raw.close()

    def checkpoint(self) -> None:
        """Fold SQLite's write-ahead log into the database, so that what was overwritten is in neither."""
        if self._engine.dialect.name == "sqlite":
            with self._writing, self._engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def prove(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """Inclusion proof of entry `index` in the log of `size` entries (all, by default). Raises: ParameterError."""
        tree = self.tree(size)
        return tree.inclusion(index, tree.size if size is None else size)

    def prove_growth(self, size: int, later: int | None = None) -> tuple[bytes, ...]:
        """Proof that the log's first `size` entries are still the first of its `later` ones (all, by default).

        Raises: ParameterError.
        """
        tree = self.tree(later)
        return tree.growth(size, tree.size if later is None else later)

    def tree(self, size: int | None = None) -> MerkleTree:
        """The log's tree as of now: what was read once is not read again, because entries are only ever added.

        Args:
            size: entries that it must have, of a log that has them; with these nothing is read.
        """
        with self._growing:
            if size is not None and size <= self._nodes.size:
                return self._nodes
            query = sa.select(db.log.c.leaf).where(db.log.c.index >= self._nodes.size).order_by(db.log.c.index)
            # An entry that is not committed yet may never be.
            for leaf in self.read(lambda c: c.execute(query).scalars().all(), apart=True):
                self._nodes.append(leaf)
        return self._nodes


def opened(url: str, patience: float = LONGEST_WAIT) -> sa.Engine:
    """A database as this software uses it; nothing is asked of it yet.

    Args:
        url: of SQLite or PostgreSQL.
        patience: seconds for which a connection is waited for.
    """
    parsed = sa.make_url(url)
    options: dict[str, Any] = {"pool_size": 16, "max_overflow": 48}
    if parsed.get_backend_name() == "postgresql":
        # Whatever the server's default is. Under a level above this one a writer would read as of before its turn.
        options["isolation_level"] = "READ COMMITTED"
        if "options" not in parsed.query:
            # As SQLite (`db.sqlite_connect`): nobody waits for ever, for a lock or for a server that has gone silent.
            most = int(1000 * LONGEST_WAIT)
            options["connect_args"] = {
                "connect_timeout": int(min(patience, CONNECTING)),
                "tcp_user_timeout": most,
                "options": f"-c lock_timeout={most}",
            }
    engine = sa.create_engine(url, **options)
    if parsed.get_backend_name() == "sqlite":
        sa.event.listen(engine, "connect", db.sqlite_connect)
        sa.event.listen(engine, "begin", db.sqlite_begin)
    return engine


def _away(error: DBAPIError) -> bool:
    """True if it is a database server that was gone: stopped, starting, or cut off in the middle.

    No state was told (no connection), or one of SQLSTATE's classes 08 (connection) and 57P (the operator's).
    """
    state = getattr(error.orig, "sqlstate", "")  # SQLite's errors have none
    return isinstance(error, OperationalError) and (state is None or state.startswith(("08", "57P")))


def append_entry(c: sa.Connection, entry: Mapping[str, Any]) -> tuple[int, str]:
    """Add an entry to the log within a transaction; (index, root). Its index is unique, so nobody can fork it."""
    data = canonical_json(entry)
    newest = sa.select(db.log.c.index.label("place"), db.log.c.peaks).order_by(db.log.c.index.desc()).limit(1)
    last = c.execute(newest).first()
    size = 0 if last is None else last.place + 1
    old = b"" if last is None else last.peaks
    leaf = leaf_hash(data)
    peaks = append([old[i : i + 32] for i in range(0, len(old), 32)], size, leaf)
    log_root = peaks_root(peaks).hex()
    c.execute(db.log.insert().values(index=size, entry=data, leaf=leaf, peaks=b"".join(peaks), root=log_root))
    return size, log_root


def log_size(c: sa.Connection) -> int:
    """Number of entries in the log, within a transaction."""
    newest = c.execute(sa.select(sa.func.max(db.log.c.index))).scalar()
    return 0 if newest is None else int(newest) + 1


def storage_refusal(error: DBAPIError, url: sa.URL | None = None) -> StorageRefusal:
    """The refusal for what the database could not do.

    Args:
        url: of the database; of one at a server that gives no connection its place is said, and never a password.
    """
    if url is not None and url.get_backend_name() == "postgresql" and _away(error):
        return _gone(url)
    if "malformed" in str(error.orig) or "not a database" in str(error.orig):
        return StorageRefusal(
            "the coordinator's database must be whole",
            given="a damaged file",
            next_step="Stop the server and restore the database from a backup (see coordinator doctor).",
        )
    return StorageRefusal(
        "the coordinator's database must be readable and writable",
        given=type(error.orig).__name__,
        next_step="Check disk space and permissions of the coordinator's home folder.",
    )


def _gone(url: sa.URL) -> StoreAway:
    """The refusal of whoever needs a database whose server is away; its place is for the coordinator's own people."""
    refusal = StoreAway(
        "the coordinator's database must be reached",
        given=f"no connection to {_place(url)}",
        next_step="See that its server runs, that its address and password are right, and that it has a free "
        "connection; then try again.",
    )
    refusal.place = _place(url)
    return refusal


def _place(url: sa.URL) -> str:
    """Where a database at a server is: its name, and the hosts or sockets, without user and password."""
    said = url.query.get("host", ())  # several hosts, or a socket's folder
    hosts = [said] if isinstance(said, str) else [*said]
    at = ", ".join(([f"{url.host}:{url.port}" if url.port else url.host] if url.host else []) + hosts)
    return f"PostgreSQL at {at or 'its usual place'}, database {url.database or 'of the usual name'}"
