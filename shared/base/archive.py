"""A backup as one file: files with their digests, encrypted (age) to the keys of those who may put it back.

The first line says in the clear whose backup it is and for whom; each recipient's own key file goes along there as it
lies on the disk, encrypted under their passphrase, so that the file and a passphrase are enough. After it stands an age
stream, which needs nothing of this software: ``tail -n +2 FILE | age -d -i KEY | tar x``. Only keys in force are
recipients: a key that was retired before opens nothing.

A list of contents leads the stream, signed by the key of whoever is backed up. What was written is read back before it
is a backup: it is also encrypted to a key that is made for this and forgotten after it.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import io
import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shared.base.at_rest import machine_secret, relocked
from shared.base.canonical import canonical_json, parse_json
from shared.base.durable import fsync_folder, name_once, own_part
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, SigningKey, write_private
from shared.base.locked import is_locked
from shared.errors import ApprovalRefusal, IntegrityRefusal, SchemaRefusal, StateRefusal, StorageRefusal

__all__ = [
    "BACKUP_TYPE",
    "BackupHeader",
    "Contents",
    "header_for",
    "new_file",
    "read_archive",
    "read_header",
    "recipient_key",
    "sandbox",
    "sweep",
    "write_archive",
]

FORMAT = "tributary-backup/2"
BACKUP_TYPE = "application/vnd.tributary.backup+json"
CONTENTS = "contents.json"
HEADER_CAP = 1 << 20
BLOCK = 1 << 20
PLACING = "placing"


@dataclass(frozen=True, kw_only=True)
class BackupHeader:
    """First line of a backup, in clear: its origin, and who can open it.

    Args:
        side: ``coordinator`` or ``site``.
        name: the coordinator's or the site's id.
        day: ISO date, UTC.
        software: version that wrote it.
        recipients: public key, 64 hexadecimal digits, of each person who can open it, by name.
        locked: key file of a recipient as it lies on the disk, by name; of those who have a passphrase.
        keys: secret of this backup alone, encrypted (age) to the recipients, by which the keys are encrypted that a
            secret of the machine hid; blank where there are none.
    """

    side: str
    name: str
    day: str
    software: str
    recipients: Mapping[str, str]
    locked: Mapping[str, str]
    keys: str = ""

    def to_line(self) -> bytes:
        """The first line."""
        return canonical_json({"format": FORMAT, **asdict(self)}) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> BackupHeader:
        """Read it. Raises: SchemaRefusal."""
        try:
            body = parse_json(line.removesuffix(b"\n"), cap=HEADER_CAP)
        except SchemaRefusal:
            body = None
        if not isinstance(body, dict) or not str(body.get("format", "")).startswith("tributary-backup/"):
            older = b"manifest.json\0" in line
            raise SchemaRefusal(
                f"a backup must be of format {FORMAT}",
                given="tributary-backup/1, of version 0.2.0 or earlier" if older else "no backup",
                next_step="Restore it with the version that wrote it, then upgrade and back up again." if older else "",
            )
        if body.pop("format") != FORMAT:
            raise SchemaRefusal(
                f"a backup must be of format {FORMAT}", given="a newer one", next_step="Update this software first."
            )
        texts = all(isinstance(body.get(name), str) for name in ("side", "name", "day", "software", "keys"))
        people = all(
            isinstance(body.get(name), dict) and all(isinstance(value, str) for value in body[name].values())
            for name in ("recipients", "locked")
        )
        if body.keys() != {item.name for item in fields(cls)} or not (texts and people):
            raise SchemaRefusal("a backup's first line must have every field, each of its type", given="another form")
        for key in body["recipients"].values():
            PublicKey(key)
        return cls(**body)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Signed list of contents of a backup.

    Args:
        header: SHA-256 of the first line.
        facts: what else its side says of it, and holds it to when it is put back.
        files: name to SHA-256 and bytes.
    """

    header: str
    facts: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_envelope(cls, data: bytes, good_name: Callable[[str], bool]) -> tuple[Contents, Envelope]:
        """Read it; the signature is for whoever knows the key. Raises: SchemaRefusal."""
        envelope = Envelope.from_bytes(data)
        body = parse_json(envelope.payload, cap=64 << 20)
        whole = envelope.payload_type == BACKUP_TYPE and isinstance(body, dict)
        if not whole or body.keys() != {"header", "facts", "files"} or not isinstance(body["facts"], dict):
            raise SchemaRefusal("a backup must begin with its list of contents", given="another form")
        files = body["files"]
        if not isinstance(files, dict) or not all(
            good_name(name) and isinstance(one, dict) and one.keys() == {"sha256", "bytes"}
            for name, one in files.items()
        ):
            raise SchemaRefusal("a backup must hold the files of its side, and nothing else", given="others")
        return cls(**body), envelope


def new_file(path: Path) -> None:
    """Raises: StateRefusal, where the file is there already."""
    if path.exists():
        raise StateRefusal("a backup's file must be new", given=f"{path}", next_step="Name another.")


# -- keys ---------------------------------------------------------------------------------------------------------
def recipient_of(key: PublicKey) -> Any:
    """A signing key as a recipient of age, which takes an Ed25519 key of SSH for one."""
    import pyrage

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.hex))
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return pyrage.ssh.Recipient.from_str(public.public_bytes(*form).decode())


def header_for(
    *, side: str, name: str, day: str, software: str, people: Mapping[str, PublicKey], key_files: Mapping[str, Path]
) -> BackupHeader:
    """The first line of a backup for these people; a key file goes along only if a passphrase encrypts it.

    Args:
        side: whose folder it is of: ``site`` or ``coordinator``.
        name: of that site or coordinator.
        day: of the backup, as in 2026-06-01.
        software: the version that makes it.
        people: who can open it, each with the public key that it is encrypted to.
        key_files: where the key files of people lie; others than `people` are passed over.
    Raises: StateRefusal: nobody to encrypt it to.
    """
    if not people:
        raise StateRefusal("a backup must be for somebody", given="no key in force")
    locked = {}
    for person, path in key_files.items():
        if person in people and path.is_file() and is_locked(data := path.read_bytes()):
            locked[person] = base64.b64encode(data).decode()
    recipients = {person: key.hex for person, key in people.items()}
    return BackupHeader(side=side, name=name, day=day, software=software, recipients=recipients, locked=locked)


def recipient_key(archive: Path, name: str, path: Path | None) -> SigningKey:
    """The key of a recipient of a backup, opened with the passphrase: of a file of its own, or of the one in it.

    Raises: ApprovalRefusal (nobody it was encrypted to), StateRefusal (no key file), PassphraseRefusal,
        SchemaRefusal and StorageRefusal (as of `read_header`).
    """
    from shared.base.passphrases import opened

    header = read_header(archive)
    if name not in header.recipients:
        raise ApprovalRefusal(
            f"the backup of {header.day} must be opened by one of {', '.join(sorted(header.recipients))}",
            given=f"{name!r}: unknown, or retired before it was made",
            next_step="Name one of them with --as; where that key is kept apart, its file with --key.",
        )
    if path is not None:
        return opened(path, name) if is_locked(path.read_bytes()) else SigningKey.load(path)
    if name not in header.locked:
        raise StateRefusal(
            f"the key of {name} must be given", given="none in the backup", next_step="Name its file with --key."
        )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"{name}.pem"
        write_private(place, base64.b64decode(header.locked[name]))
        return opened(place, name)


# -- out ----------------------------------------------------------------------------------------------------------
def write_archive(
    path: Path,
    header: BackupHeader,
    signer: SigningKey,
    facts: Mapping[str, Any],
    sources: Mapping[str, Path | bytes],
    *,
    scratch: Path,
) -> Contents:
    """Write a backup and read it back; `path` is there whole, or not at all.

    Args:
        facts: see `Contents`.
        sources: name to bytes, or to a file that does not change.
        scratch: folder where these files lie unencrypted anyway.
    Raises: FileNotFoundError (a source has gone), IntegrityRefusal (what was written is not what was to be),
        StorageRefusal.
    """
    import pyrage

    people = [*map(recipient_of, map(PublicKey, header.recipients.values()))]
    header, sources = _of_no_machine(header, sources, people)
    digests = {}
    for name, source in sorted(sources.items()):
        if isinstance(source, bytes):
            digest, size = hashlib.sha256(source).hexdigest(), len(source)
        else:
            with source.open("rb") as file:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
        digests[name] = {"sha256": digest, "bytes": size}
    line = header.to_line()
    made = Contents(header=hashlib.sha256(line).hexdigest(), facts=facts, files=digests)
    listed = Envelope.sign(BACKUP_TYPE, canonical_json(asdict(made)), [signer]).to_bytes()
    once = pyrage.x25519.Identity.generate()
    part = path.with_name(path.name + ".part")
    try:
        with own_part(path) as (handle, _):
            try:
                with os.fdopen(handle, "wb", closefd=False) as file:
                    file.write(line)
                    with tempfile.TemporaryFile(dir=scratch) as plain:
                        _packed(plain, listed, sources)
                        plain.seek(0)
                        pyrage.encrypt_io(plain, file, [*people, once.to_public()])
                    file.flush()
                    os.fsync(handle)
                reach("backup.written")
                _read(part, once, None, lambda name: name in digests, scratch)
                name_once(part, path)
            finally:
                part.unlink(missing_ok=True)
        fsync_folder(path.parent)
    except (OSError, pyrage.EncryptError) as error:
        if isinstance(error, FileNotFoundError) and error.filename != str(part):
            raise
        raise StorageRefusal(
            "the backup must be writable",
            given=getattr(error, "strerror", "") or f"{error}",
            next_step="Free space where it is written; nothing was left there.",
        ) from None
    return made


def _of_no_machine(
    header: BackupHeader, sources: Mapping[str, Path | bytes], people: Sequence[Any]
) -> tuple[BackupHeader, dict[str, Path | bytes]]:
    """Keys that this machine's secret hides, hidden by one that the recipients can open: that machine may be lost."""
    import pyrage

    secret, once, out, hidden = machine_secret(), secrets.token_hex(32).encode(), dict(sources), False
    if secret is None:
        return header, out
    for name, source in sources.items():
        if name.startswith(("keys/", "ca/")):
            data = source if isinstance(source, bytes) else source.read_bytes()
            out[name] = own = relocked(data, secret, once)
            hidden |= own != data
    if hidden:
        header = replace(header, keys=base64.b64encode(pyrage.encrypt(once, people)).decode())
    return header, out


def _packed(out: IO[bytes], listed: bytes, sources: Mapping[str, Path | bytes]) -> None:
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, source in [(CONTENTS, listed), *sorted(sources.items())]:
            info = tarfile.TarInfo(name)
            info.mode = 0o600
            info.size = len(source) if isinstance(source, bytes) else source.stat().st_size
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as data:
                archive.addfile(info, data)


# -- back ---------------------------------------------------------------------------------------------------------
def read_header(path: Path) -> BackupHeader:
    """The first line of a backup. Raises: SchemaRefusal, StorageRefusal."""
    try:
        with path.open("rb") as file:
            return BackupHeader.from_line(file.readline(HEADER_CAP))
    except OSError as error:
        raise StorageRefusal("the backup must be readable", given=error.strerror or "an error") from None


def read_archive(
    path: Path, key: SigningKey, into: Path, good_name: Callable[[str], bool]
) -> tuple[BackupHeader, Contents, Envelope]:
    """Open a backup and hold every file against its list of contents; all are written to `into`.

    Args:
        good_name: whether a file of this name may be in it.
    Returns: first line, contents, and the contents as they were signed: the caller knows by whom.
    Raises: ApprovalRefusal (not one of those it was encrypted to), IntegrityRefusal (damaged, cut; it names the file),
        SchemaRefusal (no backup, another version's), StorageRefusal.
    """
    import pyrage

    header = read_header(path)
    if key.public.hex not in header.recipients.values():
        raise ApprovalRefusal(
            f"the backup of {header.day} must be opened by one of {', '.join(sorted(header.recipients))}",
            given="another key, or one that was retired before it was made",
            next_step="Name the file of that person's key with --key.",
        )
    identity = pyrage.ssh.Identity.from_buffer(key.openssh())
    contents, envelope = _read(path, identity, into, good_name, into)
    if header.keys:
        try:
            once = pyrage.decrypt(base64.b64decode(header.keys), [identity])
        except (pyrage.DecryptError, ValueError):
            raise not_whole("its first line") from None
        for name in contents.files:
            if name.startswith(("keys/", "ca/")):
                data = (into / name).read_bytes()
                if (own := relocked(data, once, machine_secret())) != data:
                    write_private(into / name, own)
    return header, contents, envelope


def _read(
    path: Path, identity: Any, into: Path | None, good_name: Callable[[str], bool], scratch: Path
) -> tuple[Contents, Envelope]:
    place, whole = "its beginning", True
    try:
        # Without a name, so that it is gone whenever this process is.
        with path.open("rb") as file, tempfile.TemporaryFile(dir=scratch) as plain:
            line = hashlib.sha256(file.readline(HEADER_CAP)).hexdigest()
            whole = _decrypted(file, plain, identity)
            plain.seek(0)
            with tarfile.open(fileobj=plain, mode="r:") as archive:
                first = archive.next()
                listed = archive.extractfile(first) if first is not None and first.name == CONTENTS else None
                if listed is None:
                    raise SchemaRefusal("a backup must begin with its list of contents", given="another file")
                contents, envelope = Contents.from_envelope(listed.read(), good_name)
                if contents.header != line:
                    raise not_whole("its first line")
                waiting = dict(contents.files)
                for member in iter(archive.next, None):
                    place = member.name
                    known = waiting.pop(member.name, None)
                    # A sparse one may write what fits on no disk, and only whoever is backed up has signed the size.
                    plain_file = member.isreg() and not member.issparse() and member.size == (known or {}).get("bytes")
                    source = archive.extractfile(member) if plain_file else None
                    if known is None or source is None or _taken(source, member.name, into) != known["sha256"]:
                        raise not_whole(member.name)
                if waiting or not whole:
                    raise not_whole(min(waiting, default="its end"))
    except (tarfile.TarError, EOFError):
        raise not_whole(place) from None
    except OSError as error:
        raise StorageRefusal("the backup must be readable", given=error.strerror or "an error") from None
    return contents, envelope


def _decrypted(file: IO[bytes], plain: IO[bytes], identity: Any) -> bool:
    """Decrypt what follows; False where it is damaged, after what stands before that. Raises: OSError."""
    import pyrage

    try:
        pyrage.decrypt_io(file, plain, [identity])
    except pyrage.DecryptError:
        return False
    except OSError as error:
        if error.errno is not None:  # age's own have none
            raise
        return False
    return True


def not_whole(name: str) -> IntegrityRefusal:
    """The refusal for a backup that is damaged at this file."""
    return IntegrityRefusal(
        "every file of a backup must be as its list of contents says",
        given=f"another {name}",
        next_step="Take another backup; this one is damaged.",
    )


def _taken(source: IO[bytes], name: str, into: Path | None) -> str:
    """SHA-256 of one file of the archive, which is copied on the way where a folder is named."""
    if into is None:
        return hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
    digest, place = hashlib.sha256(), into / name
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while block := source.read(BLOCK):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


@contextlib.contextmanager
def sandbox(home: Path) -> Iterator[Path]:
    """A folder beside a home, which is gone after it."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        sweep(home)
        with contextlib.ExitStack() as open_:
            with _held(home.parent):  # nobody sweeps between the two
                folder = open_.enter_context(tempfile.TemporaryDirectory(prefix=_prefix(home), dir=home.parent))
                open_.enter_context(_held(Path(folder)))
            made = Path(folder) / "home"
            made.mkdir(mode=0o700)
            yield made
    except OSError as error:
        raise StorageRefusal("the home folder's place must be writable", given=error.strerror or "an error") from None


def sweep(home: Path) -> None:
    """Take away what a restore of this home that was killed has left beside it: it holds keys.

    Where it was killed after the new home had its name, the former one is put aside. A restore that runs is let alone.
    """
    with contextlib.suppress(OSError), _held(home.parent):
        for folder in home.parent.glob(f"{glob.escape(_prefix(home))}*"):
            with contextlib.suppress(BlockingIOError), _held(folder, wait=False):
                inner, noted = folder / "home", folder / PLACING
                if noted.exists() and inner.exists() and noted.read_text() != f"{inner.stat().st_ino}":
                    os.rename(inner, _aside(home))
                    fsync_folder(home.parent)
                shutil.rmtree(folder)


@contextlib.contextmanager
def _held(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder against others who hold it. Raises: BlockingIOError, where it is held and not waited for."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def _prefix(home: Path) -> str:
    return f".{home.name}.restore-"


def _aside(home: Path) -> Path:
    number = 1
    while (aside := home.with_name(f"{home.name}.before-restore-{number}")).exists():
        number += 1
    return aside


def put_in_place(made: Path, home: Path) -> str:
    """Give a folder that is whole the name `home`; what was there is put aside. Returns: where; blank if nothing was.

    A kill leaves the old folder there or the new one, and deletes neither.
    """
    moved = ""
    try:
        if home.exists() and any(home.iterdir()):
            aside = _aside(home)
            moved = str(aside)
            # So that whoever finds the two knows which of them has its name already (`sweep`).
            write_private(made.parent / PLACING, f"{made.stat().st_ino}".encode())
            reach("restore.before_place")
            _exchange(made, home)
            reach("restore.placed")
            os.rename(made, aside)
        else:
            if home.exists():
                home.rmdir()
            reach("restore.before_place")
            os.rename(made, home)
        fsync_folder(home.parent)
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EXDEV):
            raise StorageRefusal(
                "the home folder must be no mount point: it takes its name when all of it is there",
                given=f"{home}",
                next_step=f"Nothing was changed. Restore into a folder below it, as --home {home / 'home'}, and name "
                "that folder from then on.",
            ) from None
        raise StorageRefusal("the home folder must be writable", given=error.strerror or "an error") from None
    return moved


def _exchange(one: Path, other: Path) -> None:
    """Two folders change names in one step, which Python has no call for. Raises: OSError."""
    at_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    library = ctypes.CDLL(None, use_errno=True)
    done = library.renameat2(at_folder, os.fsencode(one), at_folder, os.fsencode(other), exchange)
    if done:
        raise OSError(code := ctypes.get_errno(), os.strerror(code))
