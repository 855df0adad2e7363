"""The ledger as two files: an append-only SQLite table, and the signed head beside it; one transaction at a time.

`Chain` makes the ledger, opens it, and finds out one that was edited or put back; `reading` and `writing` turn what is
asked of a `site_agent.ledger.state.Book` into what is asked of the ledger, in one transaction.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from shared.base.canonical import canonical_json, parse_json
from shared.base.chain import GENESIS
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.base.keys import Envelope, Signature, SigningKey
from shared.base.process import uncollected
from shared.errors import LedgerRefusal, Refusal
from site_agent.ledger.entries import (
    HEAD_TYPE,
    TABLE,
    WITNESSED,
    AnchoredHead,
    CheckedSignatures,
    Entry,
    head_payload,
    read_entries,
    read_rows,
    require_receipt,
)
from site_agent.ledger.files import broken, private_folder, storage_errors, storage_refusal, write_whole
from site_agent.ledger.state import Book

__all__ = ["Chain", "reading", "writing"]

FORMAT = "tributary-ledger/3"
"""Since 3 every entry has tags. A ledger of 2 is read, and goes on with tags from its next entry."""
READ_FORMATS = ("tributary-ledger/2", FORMAT)
BUSY_SECONDS = 60.0
CHECKED_TYPE = "application/vnd.tributary.ledger-checked+json"
CHECK_EVERY = 32
"""From how many new entries on the signatures of a ledger that is opened are noted as verified up to its end."""
_TRIGGERS = {
    "entries_append": (
        "CREATE TRIGGER entries_append BEFORE INSERT ON entries WHEN "
        "NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entries) OR NEW.previous IS NOT "
        f"coalesce((SELECT hash FROM entries ORDER BY seq DESC LIMIT 1), '{GENESIS}') "
        "BEGIN SELECT RAISE(ABORT, 'the ledger only grows at its end'); END"
    ),
    "entries_no_update": (
        "CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    ),
    "entries_no_delete": (
        "CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    ),
}
SCHEMA = {"entries": TABLE, **_TRIGGERS}

P = ParamSpec("P")
R = TypeVar("R")


class Chain:
    """The ledger's two files, signed by the site's release key; what is asked of them: `site_agent.ledger.book.Ledger`.

    Args: as of `site_agent.ledger.book.Ledger`.
    Raises: LedgerRefusal, if the ledger is missing, edited, truncated, restored, or another site's; StorageRefusal.
    """

    keyless = False
    """True if the private key that signed the last entry is lost."""

    def __init__(self, path: Path, signer: SigningKey, *, site: str, tagger: SigningKey | None = None) -> None:
        self.path, self.signer, self.site = path, signer, site
        self.tagger = tagger or signer
        self.head_path, self.checked_path = path.with_name("ledger.head"), path.with_name("ledger.checked")
        if not path.exists():
            if self.head_path.exists():
                raise broken("ledger.db must stand beside ledger.head", "ledger.head alone")
            raise broken("the state folder must hold a ledger (site-agent init makes it)", "none")
        with self.transaction() as book:
            self._require_whole(book)
            noted = self._read_checked()
            checked = noted.entries if noted.covers(book.entries) else 0
            for entry in book.entries[checked:]:
                self._require_signed(book, entry)
            head = self._read_head()
            lags = head is None or self._opened(book, head)[0] < len(book.entries)
            if len(book.entries) >= checked + CHECK_EVERY:
                self._note_checked(CheckedSignatures.of(book.entries))
        if lags:
            with self.transaction(write=True) as book:
                self._publish(book.connection)

    @classmethod
    def without_key(cls, path: Path, signer: SigningKey, *, site: str, tagger: SigningKey | None = None) -> Self:
        """The ledger of a site whose release key is lost: nothing but a change to the key `signer` can follow.

        Raises: as `Ledger`; the entries are verified under the keys that signed them.
        """
        made = cls.__new__(cls)
        made.path, made.signer, made.site, made.tagger = path, signer, site, tagger or signer
        made.head_path, made.checked_path = path.with_name("ledger.head"), path.with_name("ledger.checked")
        made.keyless = True
        made.verify()
        return made

    @classmethod
    def create(cls, path: Path, signer: SigningKey, *, site: str) -> Self:
        """Make the ledger of a new site, or open the one that is there.

        Raises: LedgerRefusal, if sealed releases or a head show that there was one; StorageRefusal.
        """
        if path.exists() or path.with_name("ledger.head").exists():
            return cls(path, signer, site=site)
        sealed = path.parent / "sealed"
        if sealed.is_dir() and any(sealed.iterdir()):
            raise broken("sealed releases must have their ledger beside them", "no ledger")
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            private_folder(path.parent)
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with storage_errors(), contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                reach("ledger.create.before_schema")
                connection.execute("BEGIN IMMEDIATE")
                for statement in SCHEMA.values():
                    connection.execute(statement)
                book = Book(connection, signer, site, [], path)
                book.append("genesis", {"site": site, "release_key": signer.public.hex, "format": FORMAT})
                connection.execute("COMMIT")
                # Last, or the genesis might still be in the part's own log when the file gets its name.
                connection.execute("PRAGMA journal_mode = WAL")
            reach("ledger.create.before_link")
            # A link fails where a rename would silently replace the ledger of whoever was faster.
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            reach("ledger.create.after_link")
            part.unlink()
            fsync_folder(path.parent)
        except OSError as error:
            raise storage_refusal(path.name, error) from error
        finally:
            for remains in part.parent.glob(f"{part.name}*"):
                with contextlib.suppress(OSError):
                    remains.unlink()
        return cls(path, signer, site=site)

    def verify(self, receipt: AnchoredHead | None = None) -> int:
        """Check everything: database, schema, chain, every signature, states, second file, last anchor.

        Args:
            receipt: an acknowledgement kept elsewhere (by the coordinator); the last one in the ledger is always
                checked.
        Returns: number of entries.
        Raises: LedgerRefusal.
        """
        with self.transaction(cached=False) as book:
            self._require_whole(book)
            for entry in book.entries:
                self._require_signed(book, entry)
            if receipt is not None:
                require_receipt(book.entries, receipt)
            return len(book.entries)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False, cached: bool = True) -> Iterator[Book]:
        """One transaction, given up whole where anything in it is refused. Raises: LedgerRefusal, StorageRefusal."""
        # The head is read before the database, so that it never leads, whoever writes meanwhile.
        head = self._read_head()
        # mode=rw: a missing file is refused, where the default would quietly make an empty one.
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        with (
            storage_errors(),
            contextlib.closing(
                sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
            ) as connection,
        ):
            connection.execute("PRAGMA synchronous = FULL")
            # Without it INSERT OR REPLACE deletes a row and passes by the trigger that forbids it.
            connection.execute("PRAGMA recursive_triggers = ON")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            with uncollected():
                entries = read_entries(read_rows(connection, cached), cached)
                book = Book(connection, self.signer, self.site, entries, self.path, cached, tagger=self.tagger)
            self._require_head(book, head)
            known = len(book.entries)
            yield book
            if len(book.entries) > known:
                reach("ledger.before_commit")
                connection.execute("COMMIT")
                reach("ledger.after_commit")
                self.signer, self.tagger = book.signer, book.tagger
                # Locked again, so that a slower writer cannot put an older head over a newer one.
                connection.execute("BEGIN IMMEDIATE")
                self._publish(connection)
            connection.execute("ROLLBACK")

    def copy_to(self, folder: Path) -> None:
        """Write both files into a folder, as of one moment, while others write on. Raises: StorageRefusal."""
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        with (
            storage_errors(),
            contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as source,
            contextlib.closing(sqlite3.connect(folder / self.path.name, isolation_level=None)) as target,
        ):
            source.backup(target)
            last = target.execute("SELECT seq, hash, signature FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        (folder / self.path.name).chmod(0o600)
        write_whole(folder / self.head_path.name, self._envelope(*last).to_bytes(), "ledger.head")

    def _publish(self, connection: sqlite3.Connection) -> None:
        last = connection.execute("SELECT seq, hash, signature FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        write_whole(self.head_path, self._envelope(*last).to_bytes(), "ledger.head")

    def _read_head(self) -> Envelope | None:
        try:
            data = self.head_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_refusal(self.head_path.name, error) from error
        try:
            return Envelope.from_bytes(data)
        except Refusal:
            raise broken("ledger.head must be a head signed by the site's release key", "something else") from None

    def _read_checked(self) -> CheckedSignatures:
        """The entries whose signatures were verified before, if this site's key says so; none where it is amiss."""
        try:
            envelope = Envelope.from_bytes(self.checked_path.read_bytes())
            body = parse_json(envelope.require(CHECKED_TYPE, {self.signer.public.key_id: self.signer.public}))
            if body["site"] == self.site:
                return CheckedSignatures(entries=int(body["entries"]), sha256=str(body["sha256"]))
        except (OSError, Refusal, KeyError, TypeError, ValueError):
            pass
        return CheckedSignatures()

    def _note_checked(self, checked: CheckedSignatures) -> None:
        payload = canonical_json({"site": self.site, "entries": checked.entries, "sha256": checked.sha256})
        # It saves time and nothing else: half of it, or none where there is no room, is no note.
        with contextlib.suppress(OSError):
            self.checked_path.write_bytes(Envelope.sign(CHECKED_TYPE, payload, [self.signer]).to_bytes())

    def _opened(self, book: Book, head: Envelope) -> tuple[int, str]:
        """(number, hash) of the entry that a head file names, if a release key of this ledger has signed it.

        The file may lag behind a change of the key. Raises: LedgerRefusal.
        """
        keys = {key.key_id: key for _, key in book.membership.release}
        try:
            body = parse_json(head.require(HEAD_TYPE, keys))
            site, seq, digest = body["site"], body["seq"], body["head"]
        except (Refusal, KeyError, TypeError):
            raise broken("ledger.head must be a head signed by the site's release key", "something else") from None
        if site != self.site or not isinstance(seq, int) or not isinstance(digest, str):
            raise broken("ledger.head must be this site's", "another form")
        return seq, digest

    def _require_whole(self, book: Book) -> None:
        """Refuse a damaged database, another schema, an anchor of another head."""
        report = [str(row[0]) for row in book.connection.execute("PRAGMA integrity_check(1)")]
        if report != ["ok"]:
            raise broken("ledger.db must be an intact database", "a damaged page")
        found = dict(book.connection.execute("SELECT name, sql FROM main.sqlite_master"))
        if found != SCHEMA:
            raise broken("ledger.db must have the ledger's table and triggers", "another schema")
        for entry in book.entries:
            if entry.kind not in WITNESSED:
                continue
            seq = entry.body["seq"]
            if not 1 <= seq < entry.seq or book.entries[seq - 1].hash != entry.body["head"]:
                raise broken(f"entry {entry.seq} must name an anchored head of this ledger", "another head")

    def _require_head(self, book: Book, envelope: Envelope | None) -> None:
        entries = book.entries
        if not entries:
            raise broken("a ledger must begin with its genesis", "no entry")
        if entries[0].kind != "genesis" or entries[0].body.get("site") != self.site:
            raise broken("the ledger must be this site's", "another site's")
        if entries[0].body.get("format") not in READ_FORMATS:
            raise LedgerRefusal(
                f"a ledger must be of a form that this version reads ({', '.join(READ_FORMATS)})",
                given=f"{entries[0].body.get('format')}"[:64],
                next_step="It is of another version of the agent: install that one. Nothing was changed.",
            )
        if book.membership.current != self.signer.public and not self.keyless:
            raise broken("the ledger must be signed by this release key", "another key")
        self._require_signed(book, entries[-1])
        if envelope is None:
            # Only a crash between the first commit and the first head file leaves this.
            if len(entries) > 1:
                raise broken("ledger.head must stand beside ledger.db", "ledger.db alone")
            return
        seq, digest = self._opened(book, envelope)
        if not 1 <= seq <= len(entries):
            raise broken(f"ledger.db must reach the {seq} entries of ledger.head", f"{len(entries)}: an old copy")
        if entries[seq - 1].hash != digest:
            raise broken(f"ledger.db and ledger.head must agree on entry {seq}", "two histories")

    def _envelope(self, seq: int, head: str, signature: bytes) -> Envelope:
        payload = head_payload(self.site, seq, head)
        signed = (Signature(self.signer.public.key_id, signature),)
        return Envelope(payload_type=HEAD_TYPE, payload=payload, signatures=signed)

    def _require_signed(self, book: Book, entry: Entry) -> None:
        # Another type than an anchor's: a head without its proof must never pass for one.
        message = Envelope.encoding(HEAD_TYPE, head_payload(self.site, entry.seq, entry.hash))
        if not book.membership.signer_of(entry.seq).verifies(entry.signature, message):
            raise broken(f"entry {entry.seq} must be signed by the site's release key", "a signature that is not")


def reading(verb: Callable[Concatenate[Book, P], R]) -> Callable[Concatenate[Chain, P], R]:
    """Make a function of a `Book` a method of the ledger: it runs in one transaction that writes nothing."""

    @functools.wraps(verb)
    def read(ledger: Chain, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with ledger.transaction() as book:
            return verb(book, *args, **kwargs)

    return read


def writing(verb: Callable[Concatenate[Book, P], R]) -> Callable[Concatenate[Chain, P], R]:
    """The same for a function that may append entries: all are committed together, or none is."""

    @functools.wraps(verb)
    def done(ledger: Chain, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with ledger.transaction(write=True) as book:
            return verb(book, *args, **kwargs)

    return done
