"""A backup of a coordinator that goes on serving, and its return: one archive, whose list of contents has every digest.

The database is copied as of one moment (SQLite's backup API; a copy of the file alone lacks what is in the write-ahead
log), then the files that this copy names. Before it is an archive the copy is read as a stranger would read it: every
entry, root, row and signature, and every bundle's digest. Uploads under way are left out: nobody was told that they are
safe. Private keys go along only if they lie encrypted on the disk; those that do not are named, and given back by hand.

What came after the backup is lost here, and not at the sites, which send it again. The log says so itself: its next
entry names the size and root that it goes on from (`shared.wire.tree_heads.RestoredLog`), so that whoever saw
more of it records a restore where it would otherwise have to record a fork.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.services.authority import Authority
from coordinator.services.clocks import SeenClocks
from coordinator.services.health import require_whole
from coordinator.services.quotas import delete_due
from coordinator.store.log_watch import LogWatch
from coordinator.store.store import Store
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.failpoints import reach
from shared.errors import IntegrityRefusal, LockedRefusal, SchemaRefusal, StateRefusal, StorageRefusal
from shared.wire.tree_heads import open_head

if TYPE_CHECKING:
    import datetime as dt

__all__ = ["BackupManifest", "RestoredHome", "back_up", "read_archive", "restore"]

FORMAT = "tributary-backup/1"
MANIFEST = "manifest.json"
NAMES = re.compile(
    r"coordinator\.toml|store\.db|(bundles|quarantine)/[0-9a-f]{64}\.zip|(ca|keys)/[A-Za-z0-9_.-]{1,128}"
)
LATER = re.compile(r"ca-[0-9]{1,3}\.(key|json)")
NEEDED = ("ca/ca.key", "ca/witness.pem")
ATTEMPTS = 5  # a release that is withdrawn while it is copied makes the copy begin anew
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class BackupManifest:
    """List of contents of an archive.

    Args:
        coordinator: its id.
        day: ISO date, UTC.
        size, root: of the log.
        head: the log's signed head, or blank where nothing is logged.
        witness: public key that signs heads and acknowledgements.
        releases: accepted releases whose bundles are here.
        files: name to SHA-256 and bytes.
        left_out: private keys that lie unencrypted on the disk.
    """

    coordinator: str
    day: str
    size: int
    root: str
    head: str
    witness: str
    releases: int
    files: Mapping[str, Mapping[str, Any]]
    left_out: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json({"format": FORMAT, **asdict(self), "left_out": list(self.left_out)})

    @classmethod
    def from_bytes(cls, data: bytes) -> BackupManifest:
        """Read it. Raises: SchemaRefusal."""
        body = parse_json(data)
        names = {item.name for item in fields(cls)}
        if not isinstance(body, dict) or body.get("format") != FORMAT or body.keys() - {"format"} != names:
            raise SchemaRefusal(f"a backup must have a list of contents of the form {FORMAT}", given="another")
        files = body["files"]
        good = isinstance(files, dict) and all(
            NAMES.fullmatch(name) and isinstance(one, dict) and one.keys() == {"sha256", "bytes"}
            for name, one in files.items()
        )
        if not good or not {FILE_NAME, "store.db", "ca/ca.pem"} <= files.keys():
            raise SchemaRefusal("a backup must hold a coordinator's files, and nothing else", given="others")
        texts = ("coordinator", "day", "root", "head", "witness")
        counts = all(type(body[name]) is int and body[name] >= 0 for name in ("size", "releases"))
        keys = isinstance(body["left_out"], list) and all(isinstance(name, str) for name in body["left_out"])
        if not (counts and keys and all(isinstance(body[name], str) for name in texts)):
            raise SchemaRefusal("a backup's list of contents must have every field, each of its type")
        return cls(**{**{name: body[name] for name in names}, "left_out": tuple(body["left_out"])})


@dataclass(frozen=True, kw_only=True)
class RestoredHome:
    """Outcome of a restore.

    Args:
        manifest: of the archive.
        entry: place in the log of the word that it was restored; None for a trial.
        moved: where the former home is now; blank where there was none.
        missing_keys: private keys that were not given back, and without which the coordinator serves all the same.
    """

    manifest: BackupManifest
    entry: int | None
    moved: str
    missing_keys: tuple[str, ...]


# -- out ------------------------------------------------------------------------------------------------------------
def back_up(config: CoordinatorConfig, out: Path, *, today: dt.date) -> BackupManifest:
    """Write an archive of a coordinator, also while it serves, and verify what was written.

    Raises: StateRefusal (the file is there already, or the store is a database server's), IntegrityRefusal (the
        coordinator is not whole: a backup would only say so later), StorageRefusal.
    """
    if out.exists():
        raise StateRefusal("a backup's file must be new", given=f"{out}", next_step="Name another.")
    _require_own_store(config)
    authority = Authority.load(config.home)
    part = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with (
            closing(Store.open(config.home, config.store)) as store,
            tempfile.TemporaryDirectory(prefix=".backup-", dir=out.parent) as folder,
        ):
            for attempt in range(1, ATTEMPTS + 1):
                copy = Path(folder) / f"{attempt}"
                copy.mkdir(mode=0o700)
                store.copy_to(copy / "store.db")
                reach("backup.copied")
                with closing(Store.open(copy)) as taken:
                    manifest, sources = _listed(config.home, copy, taken, authority, today)
                _one_file(copy / "store.db")
                try:
                    made = _written(part, manifest, sources)
                    break
                except FileNotFoundError as error:
                    if attempt == ATTEMPTS:
                        raise _lost_bundle(f"no {Path(str(error.filename)).name[:12]}") from None
        read_archive(part)
        os.replace(part, out)
    except OSError as error:
        raise StorageRefusal("the backup must be writable", given=error.strerror or "an error") from None
    finally:
        part.unlink(missing_ok=True)
    return made


def _listed(
    home: Path, copy: Path, taken: Store, authority: Authority, today: dt.date
) -> tuple[BackupManifest, dict[str, Path]]:
    """What goes into the archive, its database verified; digests are of the files when they are written."""
    require_whole(taken, thorough=True)
    size = taken.verify_log()
    taken.verify_signatures()
    watch = LogWatch(taken, coordinator=authority.coordinator, key=authority.witness)
    _, head = watch.head(today)
    releases = taken.releases()
    names = {f"bundles/{one.bundle_sha256}.zip" for one in releases}
    apart = (home / f"quarantine/{one.bundle_sha256}.zip" for one in taken.quarantined())
    names |= {f"quarantine/{path.name}" for path in apart if path.exists()}
    sources = {FILE_NAME: home / FILE_NAME, "store.db": copy / "store.db"} | {name: home / name for name in names}
    left_out = []
    for path in sorted(path for room in ("ca", "keys") for path in (home / room).glob("*") if path.is_file()):
        name = path.relative_to(home).as_posix()
        if b"PRIVATE KEY-----" in path.read_bytes() and b"ENCRYPTED PRIVATE KEY-----" not in path.read_bytes():
            left_out.append(name)
        elif NAMES.fullmatch(name) and not name.endswith(".part"):
            sources[name] = path
    manifest = BackupManifest(
        coordinator=authority.coordinator,
        day=today.isoformat(),
        size=size,
        root=taken.root(size),
        head=head.decode(),
        witness=authority.witness.public.hex,
        releases=len(releases),
        files={},
        left_out=tuple(left_out),
    )
    return manifest, sources


def _one_file(database: Path) -> None:
    """Fold a closed database's write-ahead log into its one file."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _written(part: Path, manifest: BackupManifest, sources: Mapping[str, Path]) -> BackupManifest:
    """Write the archive, its list of contents first, flushed. Raises: IntegrityRefusal (a bundle is another)."""
    digests: dict[str, dict[str, Any]] = {}
    for name, path in sorted(sources.items()):
        with path.open("rb") as source:
            digest = hashlib.file_digest(source, "sha256").hexdigest()
        if name.startswith("bundles/") and path.stem != digest:
            raise IntegrityRefusal(
                "an accepted bundle must be what was accepted", given=f"another for {path.stem[:12]}"
            )
        digests[name] = {"sha256": digest, "bytes": path.stat().st_size}
    made = BackupManifest(**{**{f.name: getattr(manifest, f.name) for f in fields(manifest)}, "files": digests})
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
        _add(archive, MANIFEST, made.to_bytes())
        for name, path in sorted(sources.items()):
            info = _info(name, digests[name]["bytes"])
            with path.open("rb") as source:
                archive.addfile(info, source)
        archive.close()
        file.flush()
        os.fsync(file.fileno())
    reach("backup.written")
    return made


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


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    import io

    archive.addfile(_info(name, len(data)), io.BytesIO(data))


# -- back -----------------------------------------------------------------------------------------------------------
def read_archive(path: Path, into: Path | None = None) -> BackupManifest:
    """Hold every file of an archive against its list of contents; written to `into`, if a folder is named.

    Raises: IntegrityRefusal, naming the file; SchemaRefusal (no backup); StorageRefusal.
    """
    try:
        with tarfile.open(path, mode="r:") as archive:
            first = archive.next()
            listed = archive.extractfile(first) if first is not None and first.name == MANIFEST else None
            if listed is None:
                raise SchemaRefusal("a backup must begin with its list of contents", given="another file")
            manifest = BackupManifest.from_bytes(listed.read())
            waiting = dict(manifest.files)
            for member in iter(archive.next, None):
                known = waiting.pop(member.name, None)
                source = archive.extractfile(member) if member.isfile() else None
                if known is None or source is None or _taken(source, member.name, into) != known["sha256"]:
                    raise _not_whole(member.name)
            if waiting:
                raise _not_whole(min(waiting))
    except (tarfile.TarError, EOFError):
        raise IntegrityRefusal("a backup must be a whole archive", given="one that cannot be read") from None
    except OSError as error:
        raise StorageRefusal("the backup must be readable", given=error.strerror or "an error") from None
    return manifest


def _not_whole(name: str) -> IntegrityRefusal:
    return IntegrityRefusal(
        "every file of a backup must be as its list of contents says",
        given=f"another {name}",
        next_step="Take another backup; this one is damaged.",
    )


def _taken(source: IO[bytes], name: str, into: Path | None) -> str:
    """SHA-256 of one file of the archive, which is copied on the way where a folder is named."""
    digest = hashlib.sha256()
    if into is None:
        while block := source.read(BLOCK):
            digest.update(block)
        return digest.hexdigest()
    place = into / name
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while block := source.read(BLOCK):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def restore(
    archive: Path,
    home: Path,
    *,
    keys: Path | None = None,
    replace: bool = False,
    reason: str = "",
    day: Callable[[SeenClocks], dt.date],
    dry_run: bool = False,
) -> RestoredHome:
    """Put a coordinator back from an archive, verified before it is in its place, and say so in its log.

    Args:
        keys: a folder with the private keys that the archive leaves out (a copy of ``ca/``, or of a home).
        replace: put a home that holds something aside; nothing of it is deleted.
        reason: for the log.
        day: which day it is, given what the backup knows of clocks (`coordinator.services.clocks.restoration_day`).
    Raises: what `day` raises; StateRefusal (the home holds something; keys are missing), LockedRefusal (a coordinator
        serves there), IntegrityRefusal (archive, database or log are not whole; other keys), StorageRefusal.
    """
    occupied = home.exists() and any(home.iterdir())
    if occupied and not replace:
        raise StateRefusal(
            "the home folder to restore to must be empty",
            given=f"{home}",
            next_step="Choose another --home, or add --replace: what is there is put aside, and its keys are used.",
        )
    with _nobody_serves(home), tempfile.TemporaryDirectory(prefix=".restore-", dir=_parent(home)) as folder:
        made = Path(folder) / "home"
        made.mkdir(mode=0o700)
        manifest = read_archive(archive, made)
        missing = _give_keys(manifest, made, keys if keys is not None else home if occupied else None)
        config = CoordinatorConfig.load(made)
        _require_own_store(config)
        authority = Authority.load(made)
        if authority.witness.public.hex != manifest.witness:
            raise IntegrityRefusal(
                "the key that signs acknowledgements must be the one of the backup",
                given="another",
                next_step="Give the folder with the right ca/witness.pem: sites have pinned its public half.",
            )
        if not (made / "ca" / "server.pem").exists():
            authority.renew_server(config.names)
        entry = _taken_up(made, manifest, authority, reason, day, dry_run)
        _one_file(made / "store.db")
        moved = ""
        if not dry_run:
            moved = _in_place(made, home, occupied)
    return RestoredHome(manifest=manifest, entry=entry, moved=moved, missing_keys=missing)


def _taken_up(
    made: Path,
    manifest: BackupManifest,
    authority: Authority,
    reason: str,
    day: Callable[[SeenClocks], dt.date],
    dry_run: bool,
) -> int | None:
    """Verify the database, and write into its log that it goes on from here; the entry's place."""
    with closing(Store.open(made)) as store:
        require_whole(store, thorough=True)
        size = store.verify_log()
        store.verify_signatures()
        whole = (size, store.root(size)) == (manifest.size, manifest.root)
        if size and whole:
            head = open_head(manifest.head.encode(), authority.witness.public)
            whole = (head.size, head.root) == (size, manifest.root)
        have = {name for name in manifest.files if name.startswith("bundles/")}
        if not whole or have != {f"bundles/{one.bundle_sha256}.zip" for one in store.releases()}:
            raise IntegrityRefusal("a backup must hold the log and the bundles that it names", given="others")
        today = day(SeenClocks(store, authority.certificate))
        if dry_run:
            return None
        watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
        said = {"archive": sha256_hex(manifest.to_bytes()), "reason": reason}
        entry = watch.restore(said, today)
        delete_due(store, made, today)  # a backup is older than what was deleted since: it brings nothing back
        return entry


def _give_keys(manifest: BackupManifest, made: Path, keys: Path | None) -> tuple[str, ...]:
    """Copy the keys that the archive leaves out from where they are kept; those that were not found."""
    missing = []
    for name in manifest.left_out:
        if not NAMES.fullmatch(name):
            raise SchemaRefusal("a backup must name a coordinator's keys", given="another file")
        found = [] if keys is None else [keys / name, keys / Path(name).name]
        source = next((path for path in found if path.is_file()), None)
        if source is None:
            missing.append(name)
            continue
        place = made / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        place.chmod(0o600)
    # Authorities that have followed since the archive was written: sites have certificates of them.
    for path in [] if keys is None else sorted({*keys.glob("ca-*"), *(keys / "ca").glob("ca-*")}):
        place = made / "ca" / path.name
        if LATER.fullmatch(path.name) and not place.exists():
            shutil.copyfile(path, place)
            place.chmod(0o600)
    needed = [name for name in missing if name in NEEDED or LATER.fullmatch(Path(name).name)]
    if needed:
        raise StateRefusal(
            "the keys that the backup leaves out must be given back",
            given=f"no {' and no '.join(needed)}",
            next_step="Name the folder that holds a copy of ca/ with --keys.",
        )
    return tuple(name for name in missing if name != "ca/server.pem")


def _in_place(made: Path, home: Path, occupied: bool) -> str:
    moved = ""
    try:
        if occupied:
            number = 1
            while (aside := home.with_name(f"{home.name}.before-restore-{number}")).exists():
                number += 1
            os.rename(home, aside)
            moved = str(aside)
        elif home.exists():
            home.rmdir()
        reach("restore.before_place")
        os.rename(made, home)
        handle = os.open(home.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        where = f"; the former home is {moved}" if moved else ""
        raise StorageRefusal("the home folder must be writable", given=f"{error.strerror}{where}") from None
    return moved


def _parent(home: Path) -> Path:
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageRefusal("the home folder's place must be writable", given=error.strerror or "an error") from None
    return home.parent


@contextmanager
def _nobody_serves(home: Path) -> Iterator[None]:
    """Refuse a home at which a coordinator serves. Raises: LockedRefusal."""
    place = home / "server.lock"
    if not place.exists():
        yield
        return
    with place.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedRefusal(
                "no coordinator must serve the home folder that is replaced",
                given="one that does",
                next_step="Stop it first.",
            ) from None
        yield
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
