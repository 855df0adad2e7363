"""A backup of a coordinator that goes on serving, and its return: one archive, encrypted to the leads' keys.

The database is copied as of one moment (SQLite's backup API; a copy of the file alone lacks what is in the write-ahead
log), then the files that this copy names. Before it is an archive the copy is read as a stranger would read it: every
entry, root, row and signature, and every bundle's digest. Uploads under way are left out: nobody was told that they are
safe. All keys go along, the leads' own among them; who leads at that moment can open it (`shared.base.archive`).

What came after the backup is lost here, and not at the sites, which send it again. The log says so itself: its next
entry names the size and root that it goes on from (`shared.wire.tree_heads.RestoredLog`), so that whoever saw
more of it records a restore where it would otherwise have to record a fork.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.services.authority import Authority
from coordinator.services.clocks import SeenClocks
from coordinator.services.health import require_whole
from coordinator.services.quotas import delete_due, deleted
from coordinator.store.bundles import BundleStore, bundle_store
from coordinator.store.log_watch import LogWatch
from coordinator.store.store import Store
from shared.base.archive import BackupHeader, header_for, new_file, put_in_place, read_archive, sandbox, write_archive
from shared.base.failpoints import reach
from shared.base.keys import PublicKey
from shared.errors import IntegrityRefusal, LockedRefusal, Refusal, SchemaRefusal, StateRefusal, StorageRefusal
from shared.terminal import proven
from shared.wire.tree_heads import open_head

if TYPE_CHECKING:
    from shared.base.keys import SigningKey
    from shared.terminal import ChecklistLine

__all__ = ["BackupFacts", "RestoredHome", "back_up", "drill", "nobody_serves", "restore"]

NAMES = re.compile(
    r"(coordinator|notify)\.toml|store\.db|(bundles|quarantine)/[0-9a-f]{64}\.zip"
    r"|(ca|keys|keys/retired)/[A-Za-z0-9_.-]{1,128}"
)
LATER = re.compile(r"ca-[0-9]{1,3}\.(key|json)")
ATTEMPTS = 5  # a release that is withdrawn while it is copied makes the copy begin anew


@dataclass(frozen=True, kw_only=True)
class BackupFacts:
    """Facts of a backup about its coordinator.

    Args:
        coordinator: its id.
        day: ISO date, UTC.
        size, root: number of entries, and Merkle root, of the log.
        head: the log's signed head, or blank where nothing is logged.
        witness: public key that verifies heads and acknowledgements.
        releases: number of accepted releases, whose bundles are in the backup.
    """

    coordinator: str
    day: str
    size: int
    root: str
    head: str
    witness: str
    releases: int

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> BackupFacts:
        """Read it. Raises: SchemaRefusal."""
        known = cls.__annotations__
        if body.keys() != known.keys() or not all(
            type(body[name]).__name__ == kind and (kind == "str" or body[name] >= 0) for name, kind in known.items()
        ):
            raise SchemaRefusal("a coordinator's backup must say what it is of, each fact of its type")
        return cls(**body)


@dataclass(frozen=True, kw_only=True)
class RestoredHome:
    """Outcome of a restore.

    Args:
        facts: of the archive.
        entry: index in the log of the entry that records the restore; None for a trial.
        moved: present path of the former home; blank where there was none.
    """

    facts: BackupFacts
    entry: int | None
    moved: str


# -- out ------------------------------------------------------------------------------------------------------------
def back_up(
    config: CoordinatorConfig, out: Path, *, leads: Mapping[str, PublicKey], software: str, today: dt.date
) -> tuple[BackupFacts, BackupHeader, int]:
    """Write an archive of a coordinator, also while it serves, and verify what was written.

    Args:
        leads: current leads' keys, by name: they alone can open it.
        software: version of this software.
    Returns: its facts, its header (with the recipients), and the bytes of its files.
    Raises: StateRefusal (the file is there already, or the store is a database server's), IntegrityRefusal (the
        coordinator is not whole: a backup would only say so later), StorageRefusal.
    """
    new_file(out)
    _require_own_store(config)
    authority = Authority.load(config.home)
    key_files = {name: config.home / "keys" / f"{name}.pem" for name in leads}
    header = header_for(
        side="coordinator",
        name=authority.coordinator,
        day=today.isoformat(),
        software=software,
        people=leads,
        key_files=key_files,
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with (
            closing(Store.open(config.home, config.store, config.bundles)) as store,
            tempfile.TemporaryDirectory(prefix=".backup-", dir=config.home) as folder,
        ):
            for attempt in range(1, ATTEMPTS + 1):
                copy = Path(folder) / f"{attempt}"
                copy.mkdir(mode=0o700)
                store.copy_to(copy / "store.db")
                reach("backup.copied")
                try:
                    with closing(Store.open(copy)) as taken:
                        facts, sources = _listed(config.home, copy, taken, store.bundles, authority, today)
                    _one_file(copy / "store.db")
                    made = write_archive(out, header, authority.witness, asdict(facts), sources, scratch=copy)
                    break
                except FileNotFoundError as error:
                    if attempt == ATTEMPTS:
                        raise _lost_bundle(f"no {Path(str(error.filename)).name[:12]}") from None
            other = [name for name, one in made.files.items() if Path(name).stem != one["sha256"]]
            if any(name.startswith("bundles/") for name in other):
                out.unlink()
                raise _lost_bundle("another for " + Path(next(n for n in other if n[0] == "b")).stem[:12])
    except OSError as error:
        raise StorageRefusal("the backup must be writable", given=error.strerror or "an error") from None
    return facts, header, sum(int(one["bytes"]) for one in made.files.values())


def _listed(
    home: Path, copy: Path, taken: Store, bundles: BundleStore, authority: Authority, today: dt.date
) -> tuple[BackupFacts, dict[str, Path | bytes]]:
    """Facts and files of the archive, its database verified. Raises: FileNotFoundError (a bundle is not there)."""
    require_whole(taken, thorough=True)
    size = taken.verify_log()
    taken.verify_signatures()
    watch = LogWatch(taken, coordinator=authority.coordinator, key=authority.witness)
    _, head = watch.head(today)
    releases = taken.releases()
    sources: dict[str, Path | bytes] = {"store.db": copy / "store.db"}
    for digest in {one.bundle_sha256 for one in releases}:
        with bundles.read(digest) as path:
            # A copy that ends with the block is copied once more: to where the archive is made.
            kept = path if not bundles.place else Path(shutil.copyfile(path, copy / f"{digest}.zip"))
        sources[f"bundles/{digest}.zip"] = kept
    apart = (home / f"quarantine/{one.bundle_sha256}.zip" for one in taken.quarantined())
    sources |= {f"quarantine/{path.name}": path for path in apart if path.exists()}
    rooms = [path for room in ("ca", "keys", "keys/retired") for path in (home / room).glob("*") if path.is_file()]
    settings = [path for path in (home / FILE_NAME, home / "notify.toml") if path.exists()]
    for path in (*settings, *rooms):
        name = path.relative_to(home).as_posix()
        if NAMES.fullmatch(name) and not name.endswith((".part", ".lock")):
            sources[name] = path.read_bytes()
    facts = BackupFacts(
        coordinator=authority.coordinator,
        day=today.isoformat(),
        size=size,
        root=taken.root(size),
        head=head.decode(),
        witness=authority.witness.public.hex,
        releases=len(releases),
    )
    return facts, sources


def _one_file(database: Path) -> None:
    """Fold a closed database's write-ahead log into its one file."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _lost_bundle(given: str) -> IntegrityRefusal:
    return IntegrityRefusal(
        "every accepted bundle must be on disk as it was accepted",
        given=given,
        next_step="Nothing was written. See coordinator log verify; restore the bundle from an earlier backup.",
    )


def _require_own_store(config: CoordinatorConfig) -> None:
    """Refuse a database that does not lie in the home folder. Raises: StateRefusal."""
    if config.store:
        raise StateRefusal(
            "the store must be the one in the home folder to be backed up or restored by this command",
            given="a database of its own (store in coordinator.toml, or TRIBUTARY_STORE)",
            next_step="Back that database up with its own tools first (pg_dump), then copy the home folder.",
        )


# -- back -----------------------------------------------------------------------------------------------------------
def restore(
    archive: Path,
    home: Path,
    *,
    key: SigningKey,
    replace: bool = False,
    reason: str = "",
    day: Callable[[SeenClocks], dt.date],
    dry_run: bool = False,
) -> RestoredHome:
    """Put a coordinator back from an archive, verified before it is in its place, and say so in its log.

    Args:
        key: of a lead who could open it when it was made.
        replace: put a home that holds something aside; nothing of it is deleted.
        reason: for the log.
        day: which day it is, given what the backup knows of clocks (`coordinator.services.clocks.restoration_day`).
    Raises: what `day` raises; StateRefusal (the home holds something, or another coordinator), ApprovalRefusal
        (another key), LockedRefusal (a coordinator serves there), IntegrityRefusal (archive, database or log are not
        whole), SchemaRefusal, StorageRefusal.
    """
    occupied = home.exists() and any(home.iterdir())
    if occupied and not (replace or dry_run):
        raise StateRefusal(
            "the home folder to restore to must be empty",
            given=f"{home}",
            next_step="Choose another --home, or add --replace: what is there is put aside.",
        )
    with nobody_serves(home, wanted=not dry_run), sandbox(home) as made:
        digest, files, facts = _opened(archive, key, made)
        authority = _authority(made, facts)
        if occupied:
            _require_same(home, facts)
            _later_authorities(home, made)
        if not (made / "ca" / "server.pem").exists():
            authority.renew_server(CoordinatorConfig.load(made).names)
        with closing(Store.open(made)) as store:
            _require_log(store, facts, files, authority)
            today = day(SeenClocks(store, authority.certificate))
            entry = None
            if not dry_run:
                watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
                said = {"archive": digest, "reason": reason}
                entry = watch.restore(said, today)
                # A backup is older than what was deleted since: it brings nothing back.
                delete_due(store, made, today, also=_deleted_there(home))
        _one_file(made / "store.db")
        if not dry_run:
            _put_bundles(made, authority)
        moved = "" if dry_run else put_in_place(made, home)
    return RestoredHome(facts=facts, entry=entry, moved=moved)


def drill(archive: Path, home: Path, *, key: SigningKey) -> tuple[list[ChecklistLine], int]:
    """Put a backup back into a folder that is thrown away, and prove each part of it.

    Args:
        home: home folder of the coordinator, if it serves here: its log must extend the backup's.
    Returns: a line for each part up to the first that is not whole, and 0 or that one's exit code.
    """
    with sandbox(home) as made:
        files: Mapping[str, Any] = {}
        facts: BackupFacts

        def opened() -> str:
            nonlocal files, facts
            _, files, facts = _opened(archive, key, made)
            return f"{len(files)} files of {facts.day}, each as it was written"

        def keys() -> str:
            authority = _authority(made, facts)
            return f"the authority and the key {authority.witness.public.key_id} that sites have pinned"

        def log() -> str:
            with closing(Store.open(made)) as store:
                _require_log(store, facts, files, _authority(made, facts))
            return f"{facts.size} entries, each root, row and signature; {facts.releases} bundles"

        def heads() -> str:
            with closing(Store.open(made)) as store:
                known = {site.site: store.anchor(site.site) for site in store.sites()}
                return f"last acknowledged ledger heads of {sum(map(bool, known.values()))} of {len(known)} sites"

        def served() -> str:
            if not (home / "store.db").exists():
                return "none at this home: not compared"
            with closing(Store.open(home)) as store:
                if store.entries() < facts.size or (facts.size and store.root(facts.size) != facts.root):
                    raise IntegrityRefusal(
                        "the log that is served must go on from the backup's", given="another history"
                    )
                return f"goes on from the backup, {store.entries() - facts.size} entries since"

        return proven(
            {"archive": opened, "keys": keys, "log and bundles": log, "heads": heads, "log that is served": served}
        )


def _opened(archive: Path, key: SigningKey, made: Path) -> tuple[str, Mapping[str, Any], BackupFacts]:
    """Open an archive into a folder; digest of its contents, its files, its facts."""
    header, contents, envelope = read_archive(archive, key, made, lambda name: bool(NAMES.fullmatch(name)))
    if header.side != "coordinator":
        raise SchemaRefusal(
            "the backup must be a coordinator's", given=f"a {header.side}'s", next_step="site-agent restore takes it."
        )
    facts = BackupFacts.of(contents.facts)
    whole = {FILE_NAME, "store.db", "ca/ca.pem"} <= contents.files.keys() and header.name == facts.coordinator
    if not whole or not envelope.verified_by({(signer := PublicKey(facts.witness)).key_id: signer}):
        raise IntegrityRefusal("a backup must hold a coordinator's files, signed by its key", given="others")
    return envelope.digest, contents.files, facts


def _authority(made: Path, facts: BackupFacts) -> Authority:
    _require_own_store(CoordinatorConfig.load(made))
    authority = Authority.load(made)
    if authority.witness.public.hex != facts.witness or authority.coordinator != facts.coordinator:
        raise IntegrityRefusal("the key that signs acknowledgements must be the one of the backup", given="another")
    return authority


def _require_log(store: Store, facts: BackupFacts, files: Mapping[str, Any], authority: Authority) -> None:
    """Verify the database as a stranger would."""
    require_whole(store, thorough=True)
    size = store.verify_log()
    store.verify_signatures()
    whole = (size, store.root(size)) == (facts.size, facts.root)
    if size and whole:
        head = open_head(facts.head.encode(), authority.witness.public)
        whole = (head.size, head.root) == (size, facts.root)
    have = {name for name in files if name.startswith("bundles/")}
    if not whole or have != {f"bundles/{one.bundle_sha256}.zip" for one in store.releases()}:
        raise IntegrityRefusal("a backup must hold the log and the bundles that it names", given="others")


def _put_bundles(made: Path, authority: Authority) -> None:
    """Move a restored home's bundles to the object store that its settings name, if they do.

    Raises: StorageRefusal; StateRefusal (another coordinator's place).
    """
    there = bundle_store(CoordinatorConfig.load(made).bundles, made)
    there.claim(authority.witness.public.hex)
    for path in sorted((made / "bundles").glob("*.zip")) if there.place else ():
        there.put(path.stem, path)
        path.unlink()


def _require_same(home: Path, facts: BackupFacts) -> None:
    """Refuse to replace another coordinator. Raises: IntegrityRefusal."""
    try:
        there = Authority.load(home)
    except Refusal:  # what is there cannot be read: it is put aside all the same
        return
    if (there.coordinator, there.witness.public.hex) != (facts.coordinator, facts.witness):
        raise IntegrityRefusal(
            "a coordinator must be replaced by its own backup",
            given=f"{there.coordinator} there, {facts.coordinator} in the backup",
            next_step="Choose another --home.",
        )


def _deleted_there(home: Path) -> dict[str, dt.date]:
    """Hashes of plans whose releases were deleted at the home that is replaced, with their last day."""
    if not (home / "store.db").exists():
        return {}
    with suppress(Refusal), closing(Store.open(home)) as store:
        store.verify_log()
        return {one.plan_hash: dt.date.fromisoformat(one.until) for one in deleted(store)}
    return {}  # what is there cannot be read: it is put aside all the same


def _later_authorities(home: Path, made: Path) -> None:
    """Authorities that have followed since the archive was written: sites have certificates of them."""
    for path in sorted((home / "ca").glob("ca-*")):
        place = made / "ca" / path.name
        if LATER.fullmatch(path.name) and not place.exists():
            shutil.copyfile(path, place)
            place.chmod(0o600)


@contextmanager
def nobody_serves(home: Path, *, wanted: bool = True) -> Iterator[None]:
    """Refuse a home at which a coordinator serves, where that is asked, and let none begin. Raises: LockedRefusal."""
    place = home / "server.lock"
    if not (wanted and place.exists()):
        yield
        return
    with place.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedRefusal(
                "no coordinator must serve the home folder meanwhile",
                given="one that does",
                next_step="Stop it first.",
            ) from None
        yield
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
