"""A coordinator's store in another database: every table in one transaction, held against what it was copied from.

Bundles stay where they are, by their digests; before anything is written, each is read, and the log verified.
Whoever is killed on the way has an empty database or a whole copy, and makes the same call again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.store import membership
from coordinator.store import schema as db
from coordinator.store.bundles import BundleStore, bundle_store
from coordinator.store.engine import opened, storage_refusal
from coordinator.store.schema.revisions import brought_up
from coordinator.store.store import Store
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.base.keys import write_private
from shared.errors import IntegrityRefusal, ParameterError, StateRefusal, StorageRefusal

__all__ = ["StoreCopy", "copied", "put_elsewhere", "require_url", "set_setting", "switched"]

BLOCK = 200  # rows read and written together
KEPT_APART = {db.writers.name}  # of the processes that write to a database, not of what they write
assert membership.grants.metadata is db.meta  # its tables are among those that are copied


@dataclass(frozen=True, kw_only=True)
class StoreCopy:
    """Result of copying a store, or of a trial.

    Args:
        source, target: URLs without their passwords.
        rows: number of rows of each table.
        entries, root: number of entries, and Merkle root, of the log.
        bundles: accepted bundles, each read and of its digest.
        written: False if nothing was written: a trial, or the copy was there already.
        there: True if the target held the whole copy before.
    """

    source: str
    target: str
    rows: dict[str, int]
    entries: int
    root: str
    bundles: int
    written: bool
    there: bool


def copied(
    store: Store, url: str, *, dry_run: bool = False, progress: Callable[[str, int, int], None] = lambda *_: None
) -> StoreCopy:
    """Copy a store into another database, which must be empty or hold the same already.

    Nobody may write to the store meanwhile: what comes after its copy was begun is not in it.

    Args:
        store: the one that is copied; its home folder stays where it is.
        url: of the other database.
        dry_run: verify the store, and look whether the target is empty.
        progress: called with (part, amount done, total amount).
    Raises: ParameterError (the same database), StateRefusal (the target holds something else), IntegrityRefusal (the
        store, a bundle or the copy is not whole), StorageRefusal (the target is away, or cannot hold a value).
    """
    before, after = sa.make_url(store.place[0]), sa.make_url(url)
    if before == after:
        raise ParameterError("a store must be copied to another database", given="its own")
    entries, root, bundles = _verified(store, progress)
    engine = opened(url)
    try:
        sums = store.read(lambda c: {table.name: _sum(c, table) for table in _tables()})
        there = _holds(engine, after, sums)
        if not (there or dry_run):
            store.read(lambda c: _write(c, engine, sums, progress))
            reach("migration.committed")
    except DBAPIError as error:
        raise storage_refusal(error) from None
    finally:
        engine.dispose()
    if not dry_run:
        _, home, place = store.place
        with closing(Store(url, Path(home), place)) as copy:
            if (copy.verify_log(), copy.root(entries)) != (entries, root):
                raise IntegrityRefusal("the copy's log must be the store's", given="another")
            copy.verify_signatures()
    return StoreCopy(
        source=before.render_as_string(),
        target=after.render_as_string(),
        rows={name: count for name, (count, _) in sums.items()},
        entries=entries,
        root=root,
        bundles=bundles,
        written=not (there or dry_run),
        there=there,
    )


def _tables() -> list[sa.Table]:
    return [table for table in db.meta.sorted_tables if table.name not in KEPT_APART]


def _verified(store: Store, progress: Callable[[str, int, int], None]) -> tuple[int, str, int]:
    """Entries and root of a log that is whole, and how many bundles are there as they were accepted."""
    entries = store.verify_log()
    store.verify_signatures()
    releases = store.releases()
    for place, release in enumerate(releases):
        progress("bundles read", place, len(releases))
        with _whole(store.bundles, release.bundle_sha256):
            pass
    return entries, store.root(entries), len(releases)


@contextmanager
def _whole(bundles: BundleStore, digest: str) -> Iterator[Path]:
    """A bundle's file, its bytes those of its digest. Raises: IntegrityRefusal, StorageRefusal."""
    with ExitStack() as read:
        given = "none"
        with suppress(FileNotFoundError):
            path = read.enter_context(bundles.read(digest))
            with path.open("rb") as file:
                given = "" if hashlib.file_digest(file, "sha256").hexdigest() == digest else "another"
        if given:
            raise IntegrityRefusal(
                "every accepted bundle must be where bundles are kept before it is copied",
                given=f"{given} for {digest[:12]}",
                next_step="Restore it from the backup (coordinator log verify).",
            )
        yield path


def put_elsewhere(
    store: Store,
    place: str,
    *,
    owner: str,
    dry_run: bool = False,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[int, int]:
    """Copy every accepted bundle to another place, each read before and after; what was copied from stays as it is.

    Nobody may serve the store meanwhile.

    Args:
        place: as of `coordinator.store.bundles.bundle_store`.
        owner: mark of the owner of that place, as of `coordinator.store.bundles.BundleStore.claim`.
        dry_run: read them, and look which are there already.
        progress: as of `copied`.
    Returns: how many accepted bundles there are, and how many of them were copied, or would be.
    Raises: ParameterError (the same place), StateRefusal (another coordinator's), IntegrityRefusal (a bundle is not
        whole), StorageRefusal, ConfigRefusal.
    """
    home = Path(store.place[1])
    if place == store.bundles.place:
        raise ParameterError("bundles must be copied to another place", given="the one where they are")
    there = bundle_store(place, home)
    there.claim(owner, dry_run=dry_run)
    if not dry_run:
        there.try_out()
        (home / "bundles").mkdir(mode=0o700, exist_ok=True)
    digests = sorted({release.bundle_sha256 for release in store.releases()})
    lacking = set(digests) - there.names()
    for number, digest in enumerate(digests):
        progress("bundles copied", number, len(digests))
        with _whole(store.bundles, digest) as path:
            if digest in lacking and not dry_run:
                part = home / f".{digest}.copied"
                try:
                    shutil.copyfile(path, part)
                    with part.open("rb") as file:
                        os.fsync(file.fileno())
                    there.put(digest, part)
                except OSError as error:
                    raise StorageRefusal("a bundle must be copied", given=error.strerror or "an error") from None
                finally:
                    part.unlink(missing_ok=True)
        if not dry_run:
            with _whole(there, digest):
                pass
    return len(digests), len(lacking)


def _holds(engine: sa.Engine, url: sa.URL, sums: dict[str, tuple[int, int]]) -> bool:
    """True if a database holds this store, False if it is empty. Raises: StateRefusal (it holds something else)."""
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return False
    with engine.connect() as c:
        names = set(sa.inspect(c).get_table_names())
        if not names:
            return False
        if {table.name for table in _tables()} <= names and all(_sum(c, t) == sums[t.name] for t in _tables()):
            return True
        held = (
            f"{c.execute(sa.select(sa.func.count()).select_from(db.log)).scalar()} log entries"
            if "log" in names
            else ""
        )
    raise StateRefusal(
        "the database that a store is copied to must be empty, or hold this store",
        given=held or f"{len(names)} other tables",
        next_step="Name another one (createdb), or put that one aside; nothing was written.",
    )


def _write(
    source: sa.Connection,
    engine: sa.Engine,
    sums: dict[str, tuple[int, int]],
    progress: Callable[[str, int, int], None],
) -> None:
    """Make the tables and fill them, in one transaction that ends only where the copy is the store's."""
    total, done = sum(count for count, _ in sums.values()), 0
    with engine.connect().execution_options(tributary_write=True) as target, target.begin():
        brought_up(target, db.meta)
        for table in _tables():
            for rows in _blocks(source, table):
                target.execute(table.insert(), rows)
                done += len(rows)
                progress("rows copied", done, total)
            _count_on(target, table)
        reach("migration.written")
        for table in _tables():
            if _sum(target, table) != sums[table.name]:
                raise IntegrityRefusal(
                    "a copied table must hold what the store's does",
                    given=f"another {table.name}",
                    next_step="Nothing was written. See that nothing else writes to either database, and try again.",
                )
        reach("migration.before_commit")


def _blocks(c: sa.Connection, table: sa.Table) -> Iterator[list[dict[str, Any]]]:
    """A table's rows, a block at a time."""
    found = c.execution_options(yield_per=BLOCK).execute(table.select()).mappings()
    for block in found.partitions():
        yield [dict(row) for row in block]


def _sum(c: sa.Connection, table: sa.Table) -> tuple[int, int]:
    """Number of rows of a table, and the sum of their SHA-256 mod 2²⁵⁶, which does not depend on their order."""
    count = total = 0
    for rows in _blocks(c, table):
        count += len(rows)
        for row in rows:
            text = repr([row[column.name] for column in table.columns])
            total += int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    return count, total % 2**256


def _count_on(c: sa.Connection, table: sa.Table) -> None:
    """Let PostgreSQL number new rows after those that were copied, as SQLite does by itself."""
    column = table.autoincrement_column
    if c.dialect.name != "postgresql" or column is None:
        return
    sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
    largest = c.execute(sa.select(sa.func.max(column))).scalar()
    if largest is not None and c.execute(sa.select(sequence)).scalar():
        c.execute(sa.select(sa.func.setval(sequence, largest)))


def require_url(url: str) -> str:
    """A URL of SQLite or PostgreSQL. Raises: ParameterError, without the URL: it may hold a password."""
    try:
        kind = sa.make_url(url).get_backend_name()
    except sa.exc.ArgumentError:
        kind = "another form"
    if kind not in ("sqlite", "postgresql"):
        raise ParameterError(
            "a store must be copied to a URL of SQLite or PostgreSQL",
            given=f"{kind} (not shown: it may hold a password)",
            next_step="For example postgresql+psycopg://tributary@localhost/tributary, its password in a pgpass file.",
        )
    return url


def set_setting(config: CoordinatorConfig, key: str, value: str) -> None:
    """Have the settings' file say another text for a key, and else what it says."""
    path = config.home / FILE_NAME
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    text, count = re.subn(rf"(?m)^{key}\s*=.*$", lambda _: line, path.read_text(encoding="utf-8"), count=1)
    write_private(path, (text if count else f"{line}\n{text}").encode())


def switched(config: CoordinatorConfig, url: str) -> str:
    """Have the settings name another store; the name that a SQLite file of the home folder has from then on, or blank.

    The file is put aside, so that nobody who forgets the setting goes on in it: two stores that grow are a forked log.
    """
    set_setting(config, "store", url)
    reach("migration.switched")
    old = config.home / "store.db"
    if not url or not old.exists():
        return ""
    number = next(k for k in itertools.count(1) if not (config.home / f"store.before-{k}.db").exists())
    aside = config.home / f"store.before-{number}.db"
    os.replace(old, aside)
    fsync_folder(config.home)
    return aside.name
