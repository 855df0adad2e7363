"""The site's privacy ledger: what every release costs, charged before a record is read, and never taken back.

One SQLite file holds one append-only list of entries. Each entry's hash covers the one before it, and each head is
signed by the site's release key; everything else (what is held, sealed, delivered, burnt; what is spent; who approved
which bytes) is *derived* from that list by `_fold`, so there is no second truth that could disagree with the first.

A release is a *hold* (`site_agent.ledger.holds`) that moves one way::

    reserve ─► anchor ─► drawing ─► seal ─► hold ─► approve ─► commit
       │          │          │        │       ├─► send_back ─┘ (approve, or hold again)
       └──────────┴──────────┴────────┴───────┴─► burn | reject | withdraw ─► tombstone

A training that the sites run together is a hold as well: charged whole, then ``train`` binds its persons, and each
round is begun (``round``) and acknowledged by the coordinator (``witnessed``) before its noise exists, and sealed
(``answer``) before it leaves; ``trained`` ends it. A round that was begun and not sealed is given up: nobody can tell
whether its noise was drawn.

The charge counts from `reserve` on and stays, whatever becomes of the hold: nothing is refunded. `start_drawing`
works once per hold, and only after the coordinator has acknowledged the signed head: a charge buys one draw at most.
It binds the persons whom the release touches: a release of new persons touches nobody on an earlier list, so that the
total is that of the worst class of persons (`shared.privacy.composition`) and not of everybody. The lists lie beside
the sealed bytes, and a release of new persons is refused while one is missing or is not the one that was bound.

Three things find out a ledger that was edited or put back. The chain and its signatures: any edit. ``ledger.head``, a
second file with the signed head, written after each commit while the database is locked: a restored or deleted
database. The coordinator's anchor: both files restored together, at once or grown since; it carries the links since
the last anchor, so that the coordinator sees a head grow from the one it keeps. The head file may lag behind by a
crash, never lead. `count_lost` is the only way on for a ledger that was put back: it charges whatever may be missing.

Every entry holds 16 random bytes, its salt: the links that go to the coordinator as proof would otherwise let a name
or a time be guessed. It also carries the tags of the studies it is about, from which nobody can guess a study's name:
whoever is shown one study's entries sees that none of them was left out (`site_agent.show.export`). The time of an
entry is for people. Order is `seq`; no decision depends on a clock.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.chain import GENESIS, extend_head, head_fingerprint
from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, Signature, SigningKey
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    DifferencingRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    LockedRefusal,
    ParameterError,
    PausedRefusal,
    PlanChanged,
    PlanRollback,
    PolicyRefusal,
    Refusal,
    ReplayRefusal,
    RoundsRefusal,
    SchemaRefusal,
    StateRefusal,
    StorageRefusal,
    TooLarge,
)
from shared.privacy.composition import Charge, StudyCharges, site_total
from shared.privacy.stated import CHARGED_BEFORE, all_given, shown_delta, shown_epsilon, shown_price
from shared.wire.messages import ANCHOR_TYPE, AnchorHead
from site_agent.ledger.holds import (
    Approval,
    Entry,
    Hold,
    Lost,
    Phase,
    Round,
    SignedWithdrawal,
    Touches,
    curve_of,
    decision_message,
    fold,
    link_of,
    lost_bodies,
    price_of,
    require_word,
)
from site_agent.records.identifiers import NORMALISED

__all__ = [
    "HEAD_TYPE",
    "AnchoredHead",
    "Approval",
    "Entry",
    "Hold",
    "Ledger",
    "Lost",
    "Noted",
    "Round",
    "SignedWithdrawal",
    "Spent",
    "StatementLine",
    "StoredBundle",
    "Touches",
    "private_folder",
    "write_whole",
]

HEAD_TYPE = "application/vnd.tributary.ledger-head+json"
TAG_TYPE = "application/vnd.tributary.study-tag+json"
FORMAT = "tributary-ledger/3"
"""Since 3 every entry has tags. A ledger of 2 is read, and goes on with tags from its next entry."""
BUSY_SECONDS = 60.0
BODY_CAP = 1 << 20
"""Most bytes of an entry: what `parse_json` reads back."""
POPULATION = "population.json"
TRAINED = "trained.json"
WITHDRAWN = "withdrawn"
LIST_CAP = 256 << 20

_LISTS = {"persons": POPULATION, "trained": TRAINED}

_TABLE = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, "
    "previous TEXT NOT NULL, hash TEXT NOT NULL, signature BLOB NOT NULL)"
)
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
_SCHEMA = {"entries": _TABLE, **_TRIGGERS}
_WITNESSED = ("anchor", "witnessed")
"""Kinds of entry that name a head which the coordinator has acknowledged: of a reservation, of a round."""


class AnchoredHead(Protocol):
    """The coordinator's word that it has seen a head."""

    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def head(self) -> str: ...  # noqa: D102
    @property
    def index(self) -> int: ...  # noqa: D102


class StoredBundle(Protocol):
    """The coordinator's word that it has stored a bundle."""

    @property
    def release_id(self) -> str: ...  # noqa: D102
    @property
    def bundle_sha256(self) -> str: ...  # noqa: D102
    @property
    def log_index(self) -> int: ...  # noqa: D102
    @property
    def log_root(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a study, or the whole site, has been charged at one δ, for the persons who were charged most.

    Args:
        epsilon: the total that the cap is held against: Rényi curves added, or the pure sum where that is less.
        shown: the exact ε while there is one release, else `epsilon`.
        cap: the cap of the latest reservation; None before the first.
        releases: charges, burnt ones included.
        burnt: charges that bought nothing.
        open: releases without a formal guarantee: they are in no total.
        open_words: what people read in the place of their price; blank where there are none.
        given: what the total takes as given; blank for nothing.
    """

    study: str
    delta: float
    epsilon: float
    shown: float
    cap: float | None
    releases: int
    burnt: int
    open: int = 0
    open_words: str = ""
    given: str = ""

    @property
    def stated(self) -> float | None:
        """`epsilon` as people may be shown it: None where no charge is in it, for it would be 0."""
        return None if 0 < self.releases == self.open else self.epsilon


@dataclass(frozen=True, kw_only=True)
class StatementLine:
    """One charge as a bank statement prints it.

    Args:
        epsilon_given: what `epsilon` takes as given, or what nothing bounds; blank for nothing.
        total: the study's total at this line's δ up to this line, for the persons who were charged most; None on the
            line of a charge that is in no total.
        total_given: what `total` takes as given: all that any charge up to this line does.
        persons: how many persons it touches; None where that is not known. A release of everybody counts against
            everybody, however many it touched.
    """

    date: str
    study: str
    wave: int
    release_id: str
    what: str
    epsilon: float | None
    total: float | None
    cap: float
    delta: float
    state: Phase
    detail: str
    uncovered: tuple[str, ...]
    persons: int | None = None
    merged: tuple[int, ...] = ()
    epsilon_given: str = ""
    total_given: str = ""


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A standing approval in the ledger.

    Args:
        digest: of its document.
        envelope: the document, signed by the approver `name`.
        seq: its entry.
        revoked: by a person, with the plan's approval, or when the site left the study.
        revocation: what the person signed for the coordinator when it was revoked.
        acknowledged: whether the coordinator has acknowledged that.
    """

    digest: str
    study: str
    name: str
    envelope: Envelope
    seq: int
    revoked: bool = False
    revocation: Envelope | None = None
    acknowledged: bool = False


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter, whatever the umask, and still there after a power cut.

    Raises: OSError.
    """
    # mkdir gives its mode to the last folder only, and takes the umask's bits away from it.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    fsync_folder(path.parent)


def write_whole(path: Path, data: bytes, place: str) -> None:
    """Write `data` to `path`, whole or not at all, and still there after a power cut.

    Args:
        place: prefix of the failpoints passed on the way.
    Raises: StorageRefusal; an earlier file at `path` is then as it was, and no part is left behind.
    """
    part = path.with_name(path.name + ".part")
    try:
        reach(f"{place}.before_write")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            reach(f"{place}.before_fsync")
            os.fsync(out.fileno())
        reach(f"{place}.before_rename")
        os.replace(part, path)
        reach(f"{place}.after_rename")
        fsync_folder(path.parent)
        reach(f"{place}.after_fsync")
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise _storage(path.name, error) from error


def tag_proof(signer: SigningKey, site: str, study: str) -> bytes:
    """The signature behind a study's tag. Ed25519 is deterministic: the same each time, and nobody else can make it."""
    return signer.sign(Envelope.encoding(TAG_TYPE, canonical_json({"site": site, "study": study})))


def fsync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut. Raises: OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _storage(name: str, error: OSError) -> StorageRefusal:
    return StorageRefusal(
        f"{name} must be writable in the state folder",
        given=error.strerror or type(error).__name__,
        next_step="Free space, or restore write permission; then run the command again.",
    )


def _broken(must: str, given: str) -> LedgerRefusal:
    return LedgerRefusal(
        must,
        given=given,
        next_step="Nothing is released until this is explained: keep both files, and call the study lead.",
    )


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    """SQLite's errors, as refusals."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary code; the rest refines it.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise LockedRefusal(
                "the ledger must be free within a minute", given="a longer wait", next_step="Stop the other agent."
            ) from error
        if code in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_NOMEM,
        ):
            raise StorageRefusal(
                "ledger.db must be readable and writable in the state folder",
                given=str(error),
                next_step="Free space, or restore write permission; then run the command again.",
            ) from error
        raise _broken("ledger.db must be an intact ledger", str(error)) from error
    except UnicodeDecodeError as error:
        # A damaged schema makes SQLite's own message unreadable.
        raise _broken("ledger.db must be an intact ledger", "damaged text") from error


class Ledger:
    """The ledger in `path` (``ledger.db``, with ``ledger.head`` beside it), signed by the site's release key.

    Args:
        path: the database; `Ledger.create` makes it, once.
        signer: the site's release key.
        site: the site's id, which every anchor names.
    Raises: LedgerRefusal, if the ledger is missing, edited, truncated, restored, or another site's; StorageRefusal.

    An object keeps no connection and no copy of the entries: each call is one transaction, so threads and processes
    may share a ledger freely.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.create(Path(folder.name) / "ledger.db", SigningKey.generate(), site="north")
    >>> [entry.kind for entry in ledger.entries()]
    ['genesis']
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, signer: SigningKey, *, site: str) -> None:
        self.path, self.signer, self.site = path, signer, site
        self.head_path = path.with_name("ledger.head")
        if not path.exists():
            if self.head_path.exists():
                raise _broken("ledger.db must stand beside ledger.head", "ledger.head alone")
            raise _broken("the state folder must hold a ledger (site-agent init makes it)", "none")
        self.verify()
        if self._read_head() is None or self._lags():
            with self._transaction(write=True) as book:
                self._publish(book.connection)

    @classmethod
    def create(cls, path: Path, signer: SigningKey, *, site: str) -> Ledger:
        """Make the ledger of a new site, or open the one that is there.

        Raises: LedgerRefusal, if sealed releases or a head show that there was one; StorageRefusal.
        """
        if path.exists() or path.with_name("ledger.head").exists():
            return cls(path, signer, site=site)
        sealed = path.parent / "sealed"
        if sealed.is_dir() and any(sealed.iterdir()):
            raise _broken("sealed releases must have their ledger beside them", "no ledger")
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            private_folder(path.parent)
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with _storage_errors(), contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                reach("ledger.create.before_schema")
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA.values():
                    connection.execute(statement)
                book = _Book(connection, signer, site, [], path)
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
            raise _storage(path.name, error) from error
        finally:
            for remains in part.parent.glob(f"{part.name}*"):
                with contextlib.suppress(OSError):
                    remains.unlink()
        return cls(path, signer, site=site)

    # -- the life of one hold ---------------------------------------------------------------------------------------
    def reserve(
        self,
        *,
        study: str,
        plan_hash: str,
        wave: int,
        release_id: str,
        event: Mapping[str, Any],
        delta: float,
        cap_epsilon: float,
        touches: Touches = "everybody",
        uncovered: Sequence[str] = (),
        site_cap_epsilon: float | None = None,
        site_delta: float | None = None,
        carry: bool = False,
        rounds: int = 0,
    ) -> Hold:
        """Charge a release before anything reads records; or return the open hold of this study and wave.

        The total is that of the worst class of persons, whoever they will turn out to be: see
        `shared.privacy.composition`.

        Args:
            release_id: letters, digits, - and _, at most 64; never used before. When an open hold is returned it
                keeps its own.
            event: canonical form of a `shared.privacy.accountant` event.
            delta: the study's δ.
            cap_epsilon: most ε the study may be charged at `delta`.
            touches: ``new`` promises that nobody is touched whom a release of the study has touched before;
                `start_drawing` holds it to that.
            uncovered: what the guarantee leaves out, in words; listed on the statement, never added up.
            site_cap_epsilon: most ε that all studies of the site may be charged, or None.
            site_delta: the δ of that; `delta` where it is None.
            carry: take over the undrawn reservation of an earlier wave of the study, if there is one at the same
                price, instead of charging another.
            rounds: of a training that the sites run together, which has wave 0; `event` is then that of all of them.
        Raises: BudgetRefusal; StateRefusal (this wave is delivered, or is open under another plan or event);
            UnknownEvent; ParameterError; LedgerRefusal; StorageRefusal.
        """
        require_word(study, "study")
        require_word(release_id, "release_id")
        if not (isinstance(wave, int) and (wave == 0 if rounds else wave >= 1)):
            raise ParameterError("a wave's number must be at least 1, and a training has none", given=repr(wave))
        for given in (delta, delta if site_delta is None else site_delta):
            if not 0 < given < 1:
                raise ParameterError("delta must be in (0, 1)", given=repr(given))
        for cap in (cap_epsilon, site_cap_epsilon):
            if cap is not None and not (math.isfinite(cap) and cap >= 0):
                raise ParameterError("a cap on epsilon must be finite and at least 0", given=repr(cap))
        price = price_of(event, delta)
        canonical = price["event"]

        with self._transaction(write=True) as book:
            for hold in book.holds.values():
                if hold.rounds and rounds and (hold.study, hold.plan_hash) == (study, plan_hash):
                    if hold.phase != "burnt":
                        return hold
                elif not rounds and hold.study == study and hold.wave == wave and hold.phase != "burnt":
                    # What was drawn before the site had a cap goes its way; what was not must not be drawn under one.
                    if hold.state in ("reserved", "anchored"):
                        book.require_guarantee(hold.epsilon, hold.event, site_cap_epsilon)
                    return _resumed(hold, plan_hash=plan_hash, event=canonical, delta=delta)
            book.require_guarantee(price["epsilon"], canonical, site_cap_epsilon)
            if release_id in book.holds:
                raise StateRefusal("a release id must be new", given=release_id, next_step="Draw another id.")
            terms = {
                "wave": wave,
                "plan_hash": plan_hash,
                "cap_epsilon": cap_epsilon,
                "uncovered": list(uncovered),
            }
            waiting = book.waiting(study, wave, event=canonical, delta=delta, touches=touches) if carry else None
            if waiting is None:
                terms |= {"study": study, "release_id": release_id, "touches": touches, **price}
                terms |= {"rounds": rounds} if rounds else {}
                book.append("reserve", terms)
            else:
                release_id = waiting.release_id
                book.move(release_id, "carry", terms)
            # The transaction is given up, entry and all, when the total with it is too large.
            book.require_within(study, delta, cap_epsilon)
            if site_cap_epsilon is not None:
                book.require_within(None, delta if site_delta is None else site_delta, site_cap_epsilon)
            return book.holds[release_id]

    def anchor_payload(self) -> bytes:
        """The current head for the coordinator, with the links since the last anchor that the site knows of."""
        return self.anchor_envelope().payload

    def anchor_envelope(self, after: int | None = None) -> Envelope:
        """The current head and its proof, signed: what `Egress.anchor` sends.

        Args:
            after: prove it from this entry on; by default from the last anchored one.
        Raises: TooLarge, when more entries than `shared.base.chain.LINKS_CAP` lie between.
        """
        with self._transaction() as book:
            last = book.entries[-1]
            known = _anchored(book.entries) if after is None else after
            links = tuple(entry.link for entry in book.entries[known:])
            head = AnchorHead(site=self.site, seq=last.seq, head=last.hash, after=known, links=links)
            return Envelope.sign(ANCHOR_TYPE, head.to_bytes(), [self.signer])

    def anchored(self) -> int:
        """Number of the last entry that the coordinator has acknowledged, as far as this ledger knows; 0 for none."""
        with self._transaction() as book:
            return _anchored(book.entries)

    def links(self, after: int) -> list[str]:
        """Links of the entries after number `after`: with `extend_head`, proof that a head grew from an old one."""
        with self._transaction() as book:
            return [entry.link for entry in book.entries[after:]]

    def mark_anchored(self, hold: Hold, receipt: AnchoredHead) -> Hold:
        """Note that the coordinator has acknowledged a head that includes this reservation.

        Raises: LedgerRefusal, if the acknowledged head is not this ledger's, or is older than the reservation.
        """
        with self._transaction(write=True) as book:
            _require_receipt(book.entries, receipt)
            if receipt.seq < book.hold(hold.release_id).reserved_seq:
                raise _broken("the anchored head must include the reservation", f"entry {receipt.seq}")
            body = {"seq": receipt.seq, "head": receipt.head, "index": receipt.index}
            return book.move(hold.release_id, "anchor", body)

    def require_same_persons(self, hold: Hold, space: str, *, roles: bool = False) -> None:
        """Refuse to compare persons with those of earlier releases where they were told apart by something else.

        A release of everybody goes on all the same: it counts against everybody. Not where persons withdrew, because
        they could no longer be recognised; nor where some of them train and are never released.

        Args:
            space: by what persons are told apart now (`site_agent.records.table.person_space`).
            roles: whether the plan has persons who train and are never released (posture ``holdout``).
        Raises: DifferencingRefusal.
        """
        with self._transaction() as book:
            book.require_same_persons(book.hold(hold.release_id), space, roles)

    def still_present(self, hold: Hold, persons: Collection[str]) -> tuple[int, int]:
        """How many persons of the study's earlier releases a table has, and how many there are.

        Those count who were released or trained; not those who withdrew, nor of releases that never left.

        Args:
            persons: pseudonyms of everybody in the table.
        Raises: IntegrityRefusal (a list of persons is lost or was edited).
        """
        with self._transaction() as book:
            earlier = book.earlier(book.hold(hold.release_id))
        return len(earlier & set(persons)), len(earlier)

    def require_present(self, hold: Hold, persons: Collection[str], *, share: float, snapshot: str) -> None:
        """Refuse a table from which the persons of earlier releases have vanished: somebody rewrote identifiers, or
        has signed that these are other persons (`confirm_persons`).

        Args:
            persons: pseudonyms of everybody in the table.
            share: least share of the earlier persons.
            snapshot: keyed hash of the table, which a person's word must be about.
        Raises: DifferencingRefusal; IntegrityRefusal (a list of persons is lost or was edited).
        """
        there, earlier = self.still_present(hold, persons)
        known = self.hold(hold.release_id)
        if there < share * earlier and (known.confirmed, known.confirmed_table) != (hold.wave, snapshot):
            raise DifferencingRefusal(
                f"at least {100 * share:g} % of the persons of the study's earlier releases must still be in the table",
                given=f"{there} of {earlier}",
                next_step="The reservation is kept and nothing was drawn. Where identifiers were rewritten, map them "
                "back, or ask the study lead for a new study. Only where these are other persons: site-agent data "
                f"confirm-persons {hold.study} --as NAME --reason WHY.",
            )

    def confirm_persons(
        self,
        hold: Hold,
        *,
        there: int,
        earlier: int,
        snapshot: str,
        name: str,
        reason: str,
        key: SigningKey | None = None,
    ) -> Hold:
        """Note a person's word that a table without earlier persons holds others: for this wave and this table alone.

        Args:
            there, earlier: what `still_present` counted.
            snapshot: keyed hash of the table that was looked at.
            name: of the approver, whose `key` signs the entry.
            reason: why they are others, in a few words.
        Raises: ParameterError (no reason); StateRefusal, unless the reservation waits for its draw.
        """
        if not reason.strip():
            raise ParameterError("a reason must say something", given="blank text")
        with self._transaction(write=True) as book:
            wave = book.hold(hold.release_id).wave
            body = {"release_id": hold.release_id, "wave": wave, "name": name, "reason": reason}
            counted = {"present": there, "earlier": earlier, "snapshot": snapshot}
            book.append("persons_confirmed", body, person=key, record=counted)
            return book.holds[hold.release_id]

    def require_roles_kept(
        self, hold: Hold, persons: Collection[str], trained: Collection[str], *, flow_of: str = ""
    ) -> None:
        """Refuse to release who trained before, or to fit on who was released before: `start_drawing` asks it too.

        Args:
            persons: pseudonyms of those who would be drawn.
            trained: of those whom this release is fitted on; nobody where a sealed flow is used again.
            flow_of: the release whose flow that is; blank for none.
        Raises: PolicyRefusal; IntegrityRefusal (a list of persons is lost or was edited).
        """
        with self._transaction() as book:
            book.require_roles_kept(book.hold(hold.release_id), persons, trained, flow_of)

    def start_drawing(
        self,
        hold: Hold,
        persons: Collection[str] | None = None,
        *,
        space: str = "",
        trained: Collection[str] | None = None,
        flow_of: str = "",
    ) -> Hold:
        """The last step before noise is drawn; works once per hold, and binds whom the release touches.

        Args:
            persons: pseudonyms of those whose records enter the draw; None where they cannot be told apart.
            space: by what those are told apart (`site_agent.records.table.person_space`).
            trained: under ``holdout``, whom the release is fitted on: nobody where it uses a sealed flow again.
            flow_of: the release whose flow that is.
        Raises: PausedRefusal; ApprovalRefusal, PlanChanged (see `require_plan`); StateRefusal, unless the hold is
            anchored and nobody has started drawing; DifferencingRefusal, when a release of new persons holds one who
            was touched before; PolicyRefusal (see `require_roles_kept`); IntegrityRefusal (a list of persons is lost
            or was edited); StorageRefusal.
        """
        return self._start(hold, "drawing", persons, space, {}, trained, flow_of)

    def start_training(self, hold: Hold, persons: Collection[str] | None, *, space: str, snapshot: str) -> Hold:
        """Bind whom a training touches, before its first round; works once per hold.

        Args:
            persons, space: as of `start_drawing`.
            snapshot: keyed hash of the table: every round is of the same one.
        Raises: as of `start_drawing`.
        """
        return self._start(hold, "train", persons, space, {"snapshot": snapshot})

    def _start(
        self,
        hold: Hold,
        kind: str,
        persons: Collection[str] | None,
        space: str,
        record: Mapping[str, Any],
        trained: Collection[str] | None = None,
        flow_of: str = "",
    ) -> Hold:
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            book.require_running()
            book.require_plan(found)
            if found.state == "reserved":
                raise StateRefusal(
                    "a reservation must be anchored at the coordinator before noise is drawn",
                    given="no anchor",
                    next_step="Restore the connection to the coordinator; the reservation is kept.",
                )
            body: dict[str, Any] = {}
            record = dict(record)
            # Another state is refused by the fold, and must not have its list written over before.
            if persons is not None and found.state == "anchored":
                book.require_same_persons(found, space, trained is not None)
                if kind == "drawing":
                    book.require_roles_kept(found, persons, trained or (), flow_of)
                if found.touches == "new":
                    _require_new(len(set(persons) & book.taken(found)))
                lists = {"persons": persons} | ({} if trained is None else {"trained": trained})
                named = {name: canonical_json(sorted(set(given))) for name, given in lists.items()}
                body = {f"{name}_sha256": sha256_hex(data) for name, data in named.items()} | {"space": space}
                record |= {name: len(set(given)) for name, given in lists.items()}
                folder = self.folder(found)
                try:
                    private_folder(folder.parent)
                    private_folder(folder)
                except OSError as error:
                    raise _storage(f"the folder of release {found.release_id}", error) from error
                for name, data in named.items():
                    path = folder / _LISTS[name]
                    write_whole(path, data, f"ledger.{path.stem}")
            elif found.touches == "new" and found.state == "anchored":
                raise ParameterError("a release of new persons must name them", given="no list")
            return book.move(found.release_id, kind, body, record)

    def begin_round(self, hold: Hold, number: int, order: str) -> Hold:
        """The last step before a round's noise is drawn; works once per round, and never for one beyond the charge.

        Args:
            order: digest of what is asked, the global weights with it.
        Raises: RoundsRefusal; ReplayRefusal (a round begun before, or passed over); PausedRefusal; ApprovalRefusal,
            PlanChanged (see `require_plan`); StateRefusal.
        """
        _require_digest(order, "asked")
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            book.require_running()
            book.require_plan(found)
            if found.state == "training":
                if not 1 <= number <= found.rounds:
                    raise RoundsRefusal(
                        f"a training must have at most the {found.rounds} rounds that were charged",
                        given=f"round {number}",
                        next_step="Nothing was drawn. More rounds need a new version of the plan, and a new charge.",
                    )
                if number <= max(found.begun, default=0):
                    raise ReplayRefusal(
                        "rounds must be begun once each, and in turn",
                        given=f"round {number} after round {max(found.begun)}",
                        next_step="Nothing was drawn. Tell the study lead.",
                    )
            return book.move(hold.release_id, "round", {"number": number, "asked": order})

    def witness_round(self, hold: Hold, number: int, receipt: AnchoredHead) -> Hold:
        """Note that the coordinator has acknowledged a head in which a round is begun: only then is its noise drawn.

        An older acknowledgement, however genuine, is none of this round: with it, two copies of this folder could
        both draw the round, and the coordinator would have signed nothing that shows it.

        Raises: LedgerRefusal, if the acknowledged head is not this ledger's, or is older than the round; StateRefusal.
        """
        with self._transaction(write=True) as book:
            known = book.hold(hold.release_id).begun.get(number)
            if known is None:
                raise StateRefusal("a round must be begun before it is witnessed", given=f"round {number}")
            _require_receipt(book.entries, receipt)
            if receipt.seq < known.seq:
                raise _broken(f"the anchored head must include the beginning of round {number}", f"entry {receipt.seq}")
            body = {"number": number, "seq": receipt.seq, "head": receipt.head, "index": receipt.index}
            return book.move(hold.release_id, "witnessed", body)

    def seal_round(self, hold: Hold, number: int, answer_sha256: str) -> Hold:
        """Bind a round's answer, which is on disk; from here on it may leave, and no other one may.

        Raises: StateRefusal, where the round was not begun and witnessed, or has an answer already.
        """
        _require_digest(answer_sha256, "answer_sha256")
        with self._transaction(write=True) as book:
            body = {"number": number, "answer_sha256": answer_sha256}
            return book.move(hold.release_id, "answer", body)

    def sealed_round(self, plan_hash: str, number: int) -> str:
        """SHA-256 of the answer that was sealed for a round of a plan's training; blank where there is none."""
        with self._transaction() as book:
            for hold in book.holds.values():
                if hold.rounds and hold.plan_hash == plan_hash and number in hold.begun and hold.state == "training":
                    return hold.begun[number].answer
        return ""

    def end_training(self, hold: Hold, flow_sha256: str) -> Hold:
        """Note the flow that came of a training; the same again changes nothing. Raises: StateRefusal."""
        _require_digest(flow_sha256, "flow_sha256")
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            if found.state == "trained" and found.flow == flow_sha256:
                return found
            return book.move(hold.release_id, "trained", {"flow_sha256": flow_sha256})

    def folder(self, hold: Hold) -> Path:
        """Where the files of a release lie."""
        return _folder(self.path, hold)

    def persons(self, hold: Hold) -> frozenset[str] | None:
        """Pseudonyms that a release touches; None where nobody knows them, or not yet.

        Raises: IntegrityRefusal, when the list is lost or is not the one that was bound at its drawing.
        """
        with self._transaction() as book:
            return book.persons(book.hold(hold.release_id))

    def taken(self, hold: Hold) -> frozenset[str]:
        """Whom a release of new persons must not touch: see `shared.privacy.composition`. Raises: IntegrityRefusal."""
        with self._transaction() as book:
            return book.taken(book.hold(hold.release_id))

    def seal(
        self,
        hold: Hold,
        bundle_sha256: str,
        *,
        bundle_bytes: int = 0,
        receipt_sha256: str = "",
        plan_version: int = 0,
        recipient: str = "",
        approvals: int = 1,
        files: Mapping[str, str] | None = None,
        author: str = "agent",
        author_apart: bool = False,
    ) -> Hold:
        """Bind the bytes on disk to the charge; the same digest again changes nothing.

        Args:
            bundle_bytes, receipt_sha256, plan_version, recipient: what the release statement will say.
            approvals: approvers who must sign it.
            files: SHA-256 of each file that was put beside the bundle and stays here, by name.
            author: who had it made.
            author_apart: whether the author must not approve it.
        Raises: StateRefusal; IntegrityRefusal, for a second digest.
        """
        _require_digest(bundle_sha256, "bundle_sha256")
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            if found.bundle_sha256:
                _require_same_bundle(found, bundle_sha256)
                return found
            body = {
                "bundle_sha256": bundle_sha256,
                "bundle_bytes": bundle_bytes,
                "receipt_sha256": receipt_sha256,
                "plan_version": plan_version,
                "recipient": recipient,
                "approvals": approvals,
                "files": dict(files or {}),
                "author": author,
                "author_apart": author_apart,
            }
            return book.move(hold.release_id, "seal", body)

    def show(self, hold: Hold, documents: Mapping[str, str]) -> Hold:
        """Note that the sealed bytes are put before an approver, with these documents (name to SHA-256).

        Approvals given on other documents lapse.
        """
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            if found.state == "held" and dict(found.documents) == dict(documents):
                return found
            return book.move(hold.release_id, "hold", {"documents": dict(documents)})

    def approve(
        self, hold: Hold, *, name: str, key: PublicKey, signature: bytes, bundle_sha256: str, standing: str = ""
    ) -> Hold:
        """Note an approver's signature over the release statement of exactly these bytes.

        Args:
            standing: digest of the standing approval that stands in for the signature, which is empty then. A person's
                own signature takes its place later.
        Raises: StateRefusal; IntegrityRefusal (other bytes); ApprovalRefusal (this approver has already signed, or
        had the release made where the two must be different people, or the standing approval is not in force); and
        what `require_plan` raises.
        """
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            book.require_running()
            book.require_plan(found)
            _require_same_bundle(found, bundle_sha256)
            signed = [given for given in found.approvals if standing or not given.standing]
            if any(given.name == name or given.key == key for given in signed):
                raise ApprovalRefusal(
                    f"{found.approvals_needed} different approvers must sign", given=f"{name} a second time"
                )
            if found.author_apart and name == found.author:
                raise ApprovalRefusal(
                    "whoever had the release made must not approve it",
                    given=name,
                    next_step="Another approver decides.",
                )
            body = {"name": name, "key": key.hex, "signature": signature.hex(), "bundle_sha256": bundle_sha256}
            if standing:
                made = book.standing.get(standing)
                if made is None or made.revoked or (made.study, made.name) != (found.study, name) or signature:
                    raise ApprovalRefusal("a standing approval must be in force", given="one that is not")
                if any(given.standing for given in found.approvals):
                    raise ApprovalRefusal("a release must need one person at least", given="two standing approvals")
                body["standing"] = standing
            return book.move(hold.release_id, "approve", body)

    def reject(self, hold: Hold, reason: str, *, by: str, **signed: str) -> Hold:
        """A person declines the sealed bytes: they will never be sent, and stay paid for.

        Args:
            signed: key and signature of that person (`site_agent.release.outbox.Outbox.decline`).
        """
        return self._decide(hold, "reject", reason, by, signed)

    def send_back(self, hold: Hold, reason: str, *, by: str, **signed: str) -> Hold:
        """A person asks a question first: the bytes stay sealed, approvals given so far lapse. Args: as of `reject`."""
        return self._decide(hold, "send_back", reason, by, signed)

    def _decide(self, hold: Hold, kind: str, reason: str, by: str, signed: Mapping[str, str]) -> Hold:
        if not reason.strip():
            raise ParameterError("a reason must say something", given="blank text")
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            body = {"reason": reason, "by": by, "bundle_sha256": found.bundle_sha256, **signed}
            return book.move(hold.release_id, kind, body)

    def commit(self, hold: Hold, acceptance: StoredBundle) -> Hold:
        """Note that the coordinator has accepted the sealed bytes; the same acceptance again changes nothing.

        Raises: ApprovalRefusal (not approved); IntegrityRefusal (the acceptance is of other bytes); StateRefusal.
        """
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            if acceptance.release_id != found.release_id:
                raise IntegrityRefusal("an acceptance must be of this release", given="another release id")
            _require_same_bundle(found, acceptance.bundle_sha256)
            if found.state == "delivered":
                return found
            if found.state in ("sealed", "held", "sent_back"):
                raise ApprovalRefusal("a release must be approved before it is delivered", given=found.state)
            body = {
                "bundle_sha256": acceptance.bundle_sha256,
                "log_index": acceptance.log_index,
                "log_root": acceptance.log_root,
            }
            return book.move(hold.release_id, "commit", body)

    def burn(self, hold: Hold, reason: str) -> Hold:
        """Give up on a hold; its charge stays. A burnt hold stays burnt, by its first reason."""
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            if found.state in ("burnt", "rejected"):
                return found
            return book.move(hold.release_id, "burn", {"reason": reason})

    def withdraw(
        self, hold: Hold, *, name: str, key: PublicKey, signature: bytes, reason_code: str, reason: str
    ) -> Hold:
        """A person takes a release back, wherever it is: it is never sent from now on, and stays paid for.

        Args:
            signature: by `key`, over the withdrawal's payload.
            reason_code: what the coordinator is told.
            reason: in the person's words; it stays here.
        Raises: StateRefusal (burnt, rejected or withdrawn already).
        """
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            body = {
                "by": name,
                "key": key.hex,
                "signature": signature.hex(),
                "reason_code": reason_code,
                "reason": reason,
                "bundle_sha256": found.bundle_sha256,
            }
            return book.move(hold.release_id, "withdraw", body)

    def tombstone(self, hold: Hold, *, log_index: int | None) -> Hold:
        """Note that the coordinator has taken the release out of its readers' sight; again changes nothing.

        Args:
            log_index: place of the tombstone in its log; None where it says that it never had the release.
        """
        with self._transaction(write=True) as book:
            found = book.hold(hold.release_id)
            if found.withdrawal is None:
                raise StateRefusal("a release must be withdrawn before it has a tombstone", given=found.state)
            if found.withdrawal.settled:
                return found
            return book.move(hold.release_id, "tombstone", {"log_index": log_index})

    def recover(self) -> list[Hold]:
        """Settle what a crash left, on start, while the agent holds the state folder.

        A hold in `drawing` is burnt, also when a whole bundle file lies on disk: nobody can tell whether those bytes
        are the only ones drawn, and a wasted charge is the cheaper mistake. Everything else resumes as it is.

        Returns: the holds that are open now.
        """
        # Remains of a process killed in `create` or while it wrote the head; nothing reads them.
        remains = [*self.path.parent.glob("ledger.db.*.part*"), self.head_path.with_name("ledger.head.part")]
        for part in remains:
            with contextlib.suppress(FileNotFoundError):
                reach("ledger.recover.before_part")
                part.unlink()
        with self._transaction(write=True) as book:
            for hold in list(book.holds.values()):
                if hold.state == "drawing":
                    reach("ledger.recover.before_burn")
                    book.move(hold.release_id, "burn", {"reason": "the agent stopped between drawing and sealing"})
            return [hold for hold in book.holds.values() if hold.phase in ("held", "sealed")]

    # -- a ledger that was put back ---------------------------------------------------------------------------------
    def holds_head(self, receipt: AnchoredHead) -> bool:
        """Whether a witnessed head is one of this ledger's: nothing that was witnessed is missing here."""
        with self._transaction() as book:
            return _agrees(book.entries, receipt)

    def recoveries(self) -> int:
        """How often this ledger has counted lost charges."""
        with self._transaction() as book:
            return sum(entry.kind == "recovered" for entry in book.entries)

    def recovered(self, receipt: AnchoredHead) -> str:
        """Fingerprint of the head after `count_lost` settled this witnessed head; blank if it never did."""
        with self._transaction() as book:
            return _recovered(book.entries, receipt)

    def count_lost(self, receipt: AnchoredHead, lost: Sequence[Lost], *, accepted: Mapping[str, int]) -> str:
        """Charge what the coordinator has witnessed and this ledger has forgotten, at once; and once per `receipt`.

        No cap is asked: what may have been spent is spent, and a study beyond its cap releases nothing more. Every
        open hold is closed with its charge, because nobody can tell whether its draw was already made.

        Args:
            receipt: the head that the coordinator has witnessed.
            lost: the charges.
            accepted: place in the coordinator's log of each release, by id, that is known here as well and that the
                coordinator has accepted.
        Returns: fingerprint of the head after it, for the study lead to allow.
        Raises: StateRefusal, when nothing is missing; UnknownEvent; ParameterError; LedgerRefusal; StorageRefusal.
        """
        with self._transaction(write=True) as book:
            if _agrees(book.entries, receipt):
                raise StateRefusal("a ledger to recover must lack what was witnessed", given="all of it")
            done = _recovered(book.entries, receipt)
            if done:
                return done
            known = {name: at for name, at in accepted.items() if name in book.holds}
            # What would outgrow an entry stands in several, and each is of one study; the last one, which every study
            # may see, says that this head is settled.
            named = dict.fromkeys(one.study for one in lost)
            bodies = [body for study in named for body in lost_bodies([one for one in lost if one.study == study])]
            open_holds = [h.release_id for h in book.holds.values() if h.phase in ("held", "sealed")]
            body = {
                "seq": receipt.seq,
                "head": receipt.head,
                "after": _anchored(book.entries),
                "prices": [],
                "charges": [],
                "accepted": {name: at for name, at in known.items() if book.holds[name].state != "delivered"},
                "burnt": [name for name in open_holds if name not in known],
            }
            for more in bodies:
                book.append("lost", more)
            book.append("recovered", body)
            return head_fingerprint(book.entries[-1].hash)

    # -- plans ------------------------------------------------------------------------------------------------------
    def approve_plan(
        self, *, study: str, version: int, plan_hash: str, approver: str, envelope: Envelope | None = None
    ) -> None:
        """Remember an approved plan version, so that deleting its file does not forget it.

        Args:
            envelope: the signed approval; it stays here when the plan is approved again and its file is replaced.
        Raises: PlanRollback, PlanChanged.
        """
        require_word(study, "study")
        _require_digest(plan_hash, "plan_hash")
        body: dict[str, Any] = {"study": study, "version": version, "plan_hash": plan_hash, "name": approver}
        if envelope is not None:
            body["envelope"] = envelope.to_bytes().decode()
        with self._transaction(write=True) as book:
            before = book.plans.get(study)
            if before is not None and before[0] > version:
                raise PlanRollback(
                    "a plan must not be older than one approved here", given=f"version {version} after {before[0]}"
                )
            if before is not None and before[0] == version and before[1] != plan_hash:
                raise PlanChanged("a plan version must have one content", given=f"version {version} with another hash")
            book.append("plan_approved", body)

    def revoke_plan(
        self, *, study: str, version: int, plan_hash: str, approver: str, reason: str, key: SigningKey | None = None
    ) -> None:
        """Note that an approval is taken back; approving the same version again is possible.

        Args:
            key: of the person who decides; it signs the entry.
        Raises: StateRefusal, unless this version is approved.
        """
        body = {"study": study, "version": version, "plan_hash": plan_hash, "name": approver, "reason": reason}
        with self._transaction(write=True) as book:
            if book.plans.get(study) != (version, plan_hash) or study in book.revoked:
                raise StateRefusal("only an approved plan can be revoked", given=f"version {version}")
            book.append("plan_revoked", body, person=key)

    def plan_revoked(self, study: str, version: int) -> bool:
        """Whether the approval of this version was taken back, and not given again since."""
        with self._transaction() as book:
            return book.revoked.get(study) == version

    def require_plan(self, hold: Hold) -> None:
        """Refuse what is drawn, approved or sent while the plan of a release is not the one approved last here.

        `start_drawing` and `approve` ask it in their own transaction: a revocation stands before them or after them.
        What has no plan noted (a sandbox, a ledger by itself) is not refused.

        Raises: ApprovalRefusal (the approval was taken back), PlanChanged (another plan was approved since).
        """
        with self._transaction() as book:
            book.require_plan(book.hold(hold.release_id))

    # -- approvals given in advance ---------------------------------------------------------------------------------
    def add_standing(self, *, study: str, name: str, envelope: Envelope) -> Noted:
        """Note a signed standing approval (`shared.plans.standing`), the document itself included."""
        require_word(study, "study")
        text = envelope.to_bytes().decode()
        with self._transaction(write=True) as book:
            if envelope.digest not in book.standing:
                book.append("standing", {"study": study, "name": name, "standing": envelope.digest, "envelope": text})
            return book.standing[envelope.digest]

    def revoke_standing(
        self, digest: str, *, name: str, reason: str, key: SigningKey | None = None, envelope: Envelope | None = None
    ) -> Noted:
        """Note that a standing approval is taken back, for good. Raises: StateRefusal, unless it is in force.

        Args:
            key: of the person who decides; it signs the entry.
            envelope: the revocation for the coordinator (`shared.plans.standing.Revocation`), signed by the same
                person.
        """
        with self._transaction(write=True) as book:
            made = book.standing.get(digest)
            if made is None or made.revoked:
                raise StateRefusal(
                    "only a standing approval in force can be revoked",
                    given="one that is not",
                    next_step="See site-agent standing list.",
                )
            body = {"study": made.study, "name": name, "standing": digest, "reason": reason}
            if envelope is not None:
                body["envelope"] = envelope.to_bytes().decode()
            book.append("standing_revoked", body, person=key)
            return book.standing[digest]

    def standing_told(self, digest: str) -> None:
        """Note that the coordinator has acknowledged a revocation; again changes nothing."""
        with self._transaction(write=True) as book:
            made = book.standing[digest]
            if not made.acknowledged:
                book.append("standing_told", {"study": made.study, "standing": digest})

    def standing(self, study: str | None = None) -> tuple[Noted, ...]:
        """Every standing approval that was ever made, of one study or of all, oldest first."""
        with self._transaction() as book:
            return tuple(made for made in book.standing.values() if study in (None, made.study))

    # -- the switch ------------------------------------------------------------------------------------------------
    def pause(self, *, name: str, reason: str, key: SigningKey | None = None) -> None:
        """Note that the site was paused, by a person where one is named; again changes nothing."""
        with self._transaction(write=True) as book:
            if not book.paused:
                book.append("paused", {"name": name, "reason": reason}, person=key)

    def resume(self, *, name: str, reason: str, key: SigningKey | None = None) -> None:
        """Note that a pause has ended."""
        with self._transaction(write=True) as book:
            book.append("resumed", {"name": name, "reason": reason}, person=key)

    def paused(self) -> bool:
        """Whether the last word on it was a pause."""
        with self._transaction() as book:
            return book.paused

    def leave(
        self, *, study: str, name: str, deleted: Sequence[Mapping[str, Any]], key: SigningKey | None = None
    ) -> None:
        """Note what was deleted when the site left a study: release, file, SHA-256 and size of each."""
        require_word(study, "study")
        with self._transaction(write=True) as book:
            # The size of a list of persons tells how many they are.
            sizes = [item.get("bytes", 0) for item in deleted]
            gone = [{what: value for what, value in item.items() if what != "bytes"} for item in deleted]
            body = {"study": study, "name": name, "deleted": gone}
            book.append("left", body, person=key, record={"bytes": sizes})

    def deleted(self) -> frozenset[str]:
        """Releases whose files were deleted when the site left their study."""
        with self._transaction() as book:
            return frozenset(book.deleted)

    def approved_plan(self, study: str) -> tuple[int, str] | None:
        """(version, hash) of the highest plan version ever approved here; None for none."""
        with self._transaction() as book:
            return book.plans.get(study)

    # -- persons who withdrew ---------------------------------------------------------------------------------------
    def note_persons(
        self, study: str, persons: Collection[str], *, name: str = "", key: SigningKey | None = None
    ) -> int:
        """Note that persons withdrew from a study: pseudonyms in a file of the site, their number in the ledger.

        Args:
            name: of the approver who notes it, whose `key` signs the entry.
        Returns: how many were not noted before.
        Raises: IntegrityRefusal (the list is lost or was edited); StorageRefusal.
        """
        require_word(study, "study")
        with self._transaction(write=True) as book:
            before = book.withdrawn_from(study)
            everybody = before | set(persons)
            added = len(everybody) - len(before)
            if added:
                data = canonical_json(sorted(everybody))
                digest = sha256_hex(data)
                # Named by its content: a crash before the entry leaves a file that nothing names, and the old one.
                folder = self.path.parent / WITHDRAWN
                try:
                    private_folder(folder)
                except OSError as error:
                    raise _storage(folder.name, error) from error
                write_whole(folder / f"{digest}.json", data, "ledger.withdrawn")
                counted = {"added": added, "count": len(everybody)}
                body = {"study": study, "name": name, "sha256": digest}
                body |= {} if book.as_written(study) else {"identifiers": "normalised"}
                book.append("persons_withdrew", body, person=key, record=counted)
            return added

    def persons_withdrawn(self, study: str) -> frozenset[str]:
        """Pseudonyms of all who withdrew from a study. Raises: IntegrityRefusal."""
        with self._transaction() as book:
            return book.withdrawn_from(study)

    def as_written(self, study: str) -> bool:
        """Whether a study's pseudonyms are of identifiers as they are written, and not of normalised ones.

        So they are, for good, where the first were made before identifiers were normalised
        (`site_agent.records.identifiers`): otherwise everybody would look new.
        """
        with self._transaction() as book:
            return book.as_written(study)

    # -- reading ----------------------------------------------------------------------------------------------------
    def tag_proof(self, study: str) -> bytes:
        """Shows that `tag` is that of `study`: the site's signature whose SHA-256 it is."""
        return tag_proof(self.signer, self.site, study)

    def tag(self, study: str) -> str:
        """What marks an entry as being about `study`; of other studies than those that are told it tells nothing."""
        return sha256_hex(self.tag_proof(study))

    def hold(self, release_id: str) -> Hold:
        """The hold of a release. Raises: StateRefusal, if there is none."""
        with self._transaction() as book:
            return book.hold(release_id)

    def holds(self, study: str | None = None) -> list[Hold]:
        """All holds in order of reservation."""
        with self._transaction() as book:
            return [hold for hold in book.holds.values() if study is None or hold.study == study]

    def entries(self) -> list[Entry]:
        """All entries from the first."""
        with self._transaction() as book:
            return list(book.entries)

    def last_receipt(self, study: str) -> str:
        """SHA-256 of the receipt sealed last in this study, or 64 zeros: what the next receipt names as previous."""
        with self._transaction() as book:
            for entry in reversed(book.entries):
                if entry.kind == "seal" and book.holds[entry.body["release_id"]].study == study:
                    return str(entry.body["receipt_sha256"]) or GENESIS
        return GENESIS

    def study_total(self, study: str, delta: float) -> Spent:
        """What `study` has been charged so far, at `delta`: every hold counts, whatever its state.

        Raises: IntegrityRefusal, when a list of persons is lost or was edited.
        """
        with self._transaction() as book:
            found = book.of(study)
            total = shown = book.composition(study).total(delta)
        # Of a lost draw (wave 0) nobody knows which event it was: its curve is that of several.
        if len(found) == 1 and (found[0].wave or found[0].rounds):
            from shared.privacy import accountant as privacy

            shown = min(total, privacy.epsilon(privacy.from_canonical(found[0].event), delta))
        return Spent(
            study=study,
            delta=delta,
            epsilon=total,
            shown=shown,
            cap=found[-1].cap_epsilon if found else None,
            releases=len(found),
            burnt=sum(hold.phase == "burnt" for hold in found),
            open=sum(hold.epsilon is None for hold in found),
            open_words="; ".join(
                dict.fromkeys(shown_price(None, hold.given) for hold in found if hold.epsilon is None)
            ),
            given=_given(found),
        )

    def site_total(self, delta: float) -> float:
        """ε at `delta` of somebody in the worst class of every study. Raises: IntegrityRefusal."""
        with self._transaction() as book:
            return book.total(None, delta)

    def site_price(self, delta: float) -> tuple[float | None, str]:
        """The site's total as people may be shown it (`Spent.stated`), and what it takes as given."""
        with self._transaction() as book:
            holds = book.holds.values()
            total = book.total(None, delta)
        return None if holds and all(hold.epsilon is None for hold in holds) else total, _given(holds)

    def forecast(
        self, study: str, events: Sequence[Mapping[str, Any]], delta: float, *, touches: Touches
    ) -> tuple[float, ...]:
        """The study's total after each of further releases, drawn in their turn and charged as these events."""
        prices = {canonical_json(event): price_of(event, delta) for event in events}
        with self._transaction() as book:
            charges = list(book.composition(study).charges)
            trainings = frozenset(k for k, hold in enumerate(book.of(study)) if hold.rounds)
        beside = trainings if touches == "new" else None
        new = {
            of: Charge(rdp=curve_of(price), pure=price["epsilon_pure"], beside=beside) for of, price in prices.items()
        }
        ahead = StudyCharges([*charges, *(new[canonical_json(event)] for event in events)])
        return tuple(ahead.total(delta, len(charges) + k) for k in range(1, len(events) + 1))

    def statement(self, study: str | None = None) -> list[StatementLine]:
        """Every charge with the study's running total, in order of reservation. Raises: IntegrityRefusal."""
        lines: list[StatementLine] = []
        seen: dict[str, list[Hold]] = {}
        with self._transaction() as book:
            holds = [hold for hold in book.holds.values() if study is None or hold.study == study]
            composed = {name: book.composition(name) for name in dict.fromkeys(hold.study for hold in holds)}
        for hold in holds:
            upto = seen.setdefault(hold.study, [])
            upto.append(hold)
            lines.append(
                StatementLine(
                    date=hold.day,
                    study=hold.study,
                    wave=hold.wave,
                    release_id=hold.release_id,
                    what=str(hold.event["event"]),
                    epsilon=hold.epsilon,
                    total=None if hold.epsilon is None else composed[hold.study].total(hold.delta, len(upto)),
                    cap=hold.cap_epsilon,
                    delta=hold.delta,
                    state=hold.phase,
                    detail=f"taken back: {hold.reason}" if hold.state == "withdrawn" else hold.reason or hold.state,
                    uncovered=hold.uncovered,
                    persons=hold.persons,
                    merged=hold.merged,
                    epsilon_given=hold.given,
                    total_given="" if hold.epsilon is None else _given(upto),
                )
            )
        return lines

    def verify(self, receipt: AnchoredHead | None = None) -> int:
        """Check everything: database, schema, chain, every signature, states, second file, last anchor.

        Args:
            receipt: an acknowledgement kept elsewhere (by the coordinator); the last one in the ledger is always
                checked.
        Returns: number of entries.
        Raises: LedgerRefusal.
        """
        with self._transaction(cached=False) as book:
            report = [str(row[0]) for row in book.connection.execute("PRAGMA integrity_check(1)")]
            if report != ["ok"]:
                raise _broken("ledger.db must be an intact database", "a damaged page")
            found = dict(book.connection.execute("SELECT name, sql FROM sqlite_master"))
            if found != _SCHEMA:
                raise _broken("ledger.db must have the ledger's table and triggers", "another schema")
            for entry in book.entries:
                self._require_signed(entry)
                if entry.kind not in _WITNESSED:
                    continue
                seq = entry.body["seq"]
                if not 1 <= seq < entry.seq or book.entries[seq - 1].hash != entry.body["head"]:
                    raise _broken(f"entry {entry.seq} must name an anchored head of this ledger", "another head")
            if receipt is not None:
                _require_receipt(book.entries, receipt)
            return len(book.entries)

    # -- transactions -----------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False, cached: bool = True) -> Iterator[_Book]:
        # The head is read before the database, so that it never leads, whoever writes meanwhile.
        head = self._read_head()
        # mode=rw: a missing file is refused, where the default would quietly make an empty one.
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        with (
            _storage_errors(),
            contextlib.closing(
                sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
            ) as connection,
        ):
            connection.execute("PRAGMA synchronous = FULL")
            # Without it INSERT OR REPLACE deletes a row and passes by the trigger that forbids it.
            connection.execute("PRAGMA recursive_triggers = ON")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            book = _Book(connection, self.signer, self.site, _read(connection, cached), self.path, cached)
            self._require_head(book.entries, head)
            known = len(book.entries)
            yield book
            if len(book.entries) > known:
                reach("ledger.before_commit")
                connection.execute("COMMIT")
                reach("ledger.after_commit")
                # Locked again, so that a slower writer cannot put an older head over a newer one.
                connection.execute("BEGIN IMMEDIATE")
                self._publish(connection)
            connection.execute("ROLLBACK")

    def _publish(self, connection: sqlite3.Connection) -> None:
        last = connection.execute("SELECT seq, hash, signature FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        write_whole(self.head_path, self._envelope(*last).to_bytes(), "ledger.head")

    def _read_head(self) -> tuple[int, str] | None:
        try:
            data = self.head_path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage(self.head_path.name, error) from error
        try:
            payload = Envelope.from_bytes(data).require(HEAD_TYPE, {self.signer.public.key_id: self.signer.public})
            body = parse_json(payload)
            site, seq, head = body["site"], body["seq"], body["head"]
        except (Refusal, KeyError, TypeError):
            raise _broken("ledger.head must be a head signed by the site's release key", "something else") from None
        if site != self.site or not isinstance(seq, int) or not isinstance(head, str):
            raise _broken("ledger.head must be this site's", "another form")
        return seq, head

    def _lags(self) -> bool:
        with self._transaction() as book:
            head = self._read_head()
            return head is None or head[0] < len(book.entries)

    def _require_head(self, entries: Sequence[Entry], head: tuple[int, str] | None) -> None:
        if not entries:
            raise _broken("a ledger must begin with its genesis", "no entry")
        if entries[0].kind != "genesis" or entries[0].body.get("site") != self.site:
            raise _broken("the ledger must be this site's", "another site's")
        if entries[0].body.get("release_key") != self.signer.public.hex:
            raise _broken("the ledger must be signed by this release key", "another key")
        self._require_signed(entries[-1])
        if head is None:
            # Only a crash between the first commit and the first head file leaves this.
            if len(entries) > 1:
                raise _broken("ledger.head must stand beside ledger.db", "ledger.db alone")
            return
        seq, digest = head
        if not 1 <= seq <= len(entries):
            raise _broken(f"ledger.db must reach the {seq} entries of ledger.head", f"{len(entries)}: an old copy")
        if entries[seq - 1].hash != digest:
            raise _broken(f"ledger.db and ledger.head must agree on entry {seq}", "two histories")

    def _envelope(self, seq: int, head: str, signature: bytes) -> Envelope:
        payload = _head_payload(self.site, seq, head)
        signed = (Signature(self.signer.public.key_id, signature),)
        return Envelope(payload_type=HEAD_TYPE, payload=payload, signatures=signed)

    def _require_signed(self, entry: Entry) -> None:
        # Another type than an anchor's: a head without its proof must never pass for one.
        message = Envelope.encoding(HEAD_TYPE, _head_payload(self.site, entry.seq, entry.hash))
        if not self.signer.public.verifies(entry.signature, message):
            raise _broken(f"entry {entry.seq} must be signed by the site's release key", "a signature that is not")


_STATE = ("holds", "plans", "gone", "written", "revoked", "deleted", "standing", "paused")
_FOLDED: dict[str, tuple[int, dict[str, Any]]] = {}
"""Of the last few heads: the number of the entry, and what the ledger amounts to up to it."""
_MOST_FOLDED = 8


class _Book:
    """The entries inside one transaction, and what they amount to."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        signer: SigningKey,
        site: str,
        entries: list[Entry],
        path: Path,
        cached: bool = False,
    ) -> None:
        self.connection, self.signer, self.site, self.entries, self.path = connection, signer, site, entries, path
        self.holds: dict[str, Hold] = {}
        self.plans: dict[str, tuple[int, str]] = {}
        self.gone: dict[str, str] = {}
        self.written: set[str] = set()
        self.revoked: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.standing: dict[str, Noted] = {}
        self.paused = False
        done = self._remembered() if cached else 0
        for entry in entries[done:]:
            try:
                self._fold(entry)
            except (StateRefusal, KeyError, TypeError, ValueError, SchemaRefusal) as error:
                raise _broken(f"entry {entry.seq} must follow from those before it", type(error).__name__) from None
        if cached and done < len(entries):
            _FOLDED[entries[-1].hash] = (len(entries), self._state())
            while len(_FOLDED) > _MOST_FOLDED:
                _FOLDED.pop(next(iter(_FOLDED)), None)

    def _state(self) -> dict[str, Any]:
        """What the entries amount to, in containers of its own; what is in them never changes."""
        return {name: copy.copy(getattr(self, name)) for name in _STATE}

    def _remembered(self) -> int:
        """Take what the entries up to one of them amounted to before; the number of that entry.

        The chain has just been read: an entry's hash names all before it. Without this the ledger of a training of
        a thousand rounds is folded a thousand times.
        """
        reached = [
            known
            for digest, known in list(_FOLDED.items())
            if self.entries[known[0] - 1 : known[0]] and self.entries[known[0] - 1].hash == digest
        ]
        done, state = max(reached, key=lambda known: known[0], default=(0, {}))
        for name, value in state.items():
            setattr(self, name, copy.copy(value))
        return done

    def hold(self, release_id: str) -> Hold:
        try:
            return self.holds[release_id]
        except KeyError:
            raise StateRefusal(
                "the release must be in the ledger", given=release_id, next_step="See site-agent outbox list."
            ) from None

    def require_running(self) -> None:
        if self.paused:
            raise PausedRefusal(
                "this site must not be paused", given="a pause", next_step="Run site-agent resume when it may go on."
            )

    def require_plan(self, hold: Hold) -> None:
        if hold.study in self.revoked:
            raise ApprovalRefusal(
                "the plan must be approved at this site",
                given=f"version {self.revoked[hold.study]}, its approval taken back",
                next_step=f"Run site-agent plan show {hold.study}, then plan approve {hold.study} --as NAME.",
            )
        noted = self.plans.get(hold.study)
        if noted is not None and noted[1] != hold.plan_hash:
            raise PlanChanged(
                "a release must be of the plan that is approved now",
                given="a release of an earlier plan",
                next_step=f"Give it up with site-agent withdraw {hold.release_id[:8]} --as NAME --reason policy, and "
                "release again.",
            )

    def move(
        self, release_id: str, kind: str, body: Mapping[str, Any], record: Mapping[str, Any] | None = None
    ) -> Hold:
        self.hold(release_id)
        self.append(kind, {"release_id": release_id, **body}, record=record)
        return self.holds[release_id]

    def append(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        person: SigningKey | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an entry, signed by the site.

        Args:
            person: who decides, where it is a person's decision: their signature stands in the entry.
            record: what is told to nobody outside: counts of records.
        """
        seq = len(self.entries) + 1
        time = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {**body, "salt": secrets.token_hex(16), "tags": self._tags(body)}
        if record:
            body["kept"] = {**record, "salt": secrets.token_hex(16)}
        if person is not None:
            message = decision_message(self.site, kind, self.entries[-1].hash, body)
            body |= {"key": person.public.hex, "signature": person.sign(message).hex()}
        data = canonical_json(body)
        if len(data) > BODY_CAP:
            # Written, it could never be read again, and the ledger with it.
            raise TooLarge(
                f"an entry of the ledger must have at most {BODY_CAP} bytes",
                given=f"{len(data)}",
                next_step="Nothing was written. Shorten the reason, or report what was counted.",
            )
        previous = self.entries[-1].hash if self.entries else GENESIS
        head = extend_head(previous, [link_of(seq, time, kind, body)])
        signature = self.signer.sign(Envelope.encoding(HEAD_TYPE, _head_payload(self.site, seq, head)))
        entry = Entry(seq=seq, time=time, kind=kind, body=body, previous=previous, hash=head, signature=signature)
        # Folded first: what may not follow is refused before it is written.
        self._fold(entry)
        reach("ledger.before_insert")
        self.connection.execute(
            "INSERT INTO entries (seq, time, kind, body, previous, hash, signature) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (seq, time, kind, data, previous, head, signature),
        )
        reach("ledger.after_insert")
        self.entries.append(entry)

    def _tags(self, body: Mapping[str, Any]) -> list[str]:
        """Which studies an entry is about; none where it is about the whole site."""
        studies = (
            {str(body["study"])} if "study" in body else {str(charge["study"]) for charge in body.get("charges", ())}
        )
        if not studies and "release_id" in body:
            studies = {self.hold(body["release_id"]).study}
        return sorted(sha256_hex(tag_proof(self.signer, self.site, study)) for study in studies)

    def _fold(self, entry: Entry) -> None:
        if entry.kind == "plan_approved":
            self.plans[entry.body["study"]] = (int(entry.body["version"]), str(entry.body["plan_hash"]))
            self.revoked.pop(entry.body["study"], None)
        elif entry.kind == "persons_withdrew":
            self.gone[entry.body["study"]] = str(entry.body["sha256"])
            if "identifiers" not in entry.body:
                self.written.add(entry.body["study"])
        elif entry.kind == "plan_revoked":
            self.revoked[entry.body["study"]] = int(entry.body["version"])
            self._end_standing(entry.body["study"])
        elif entry.kind == "standing":
            body = entry.body
            self.standing[body["standing"]] = Noted(
                digest=body["standing"],
                study=body["study"],
                name=body["name"],
                envelope=Envelope.from_bytes(body["envelope"].encode()),
                seq=entry.seq,
            )
        elif entry.kind == "standing_revoked":
            made, text = self.standing[entry.body["standing"]], entry.body.get("envelope")
            signed = None if text is None else Envelope.from_bytes(text.encode())
            self.standing[made.digest] = replace(made, revoked=True, revocation=signed)
        elif entry.kind == "standing_told":
            made = self.standing[entry.body["standing"]]
            self.standing[made.digest] = replace(made, acknowledged=True)
        elif entry.kind in ("paused", "resumed"):
            self.paused = entry.kind == "paused"
        elif entry.kind == "left":
            self._end_standing(entry.body["study"])
            self.deleted |= {str(item["release_id"]) for item in entry.body["deleted"]}
        else:
            fold(self.holds, entry)

    def _end_standing(self, study: str) -> None:
        for made in self.standing.values():
            if made.study == study:
                self.standing[made.digest] = replace(made, revoked=True)

    # -- persons ----------------------------------------------------------------------------------------------------
    def of(self, study: str) -> list[Hold]:
        """Holds of a study in order of reservation."""
        return [hold for hold in self.holds.values() if hold.study == study]

    def waiting(
        self, study: str, wave: int, *, event: Mapping[str, Any], delta: float, touches: Touches
    ) -> Hold | None:
        """The last undrawn reservation of an earlier wave that was charged the same, for the same sort of persons."""
        found = [
            hold
            for hold in self.of(study)
            if hold.wave < wave
            and not hold.rounds
            and hold.state in ("reserved", "anchored")
            and (dict(hold.event), hold.delta, hold.touches) == (dict(event), delta, touches)
        ]
        return found[-1] if found else None

    def persons(self, hold: Hold) -> frozenset[str] | None:
        return self._bound(hold, POPULATION, hold.persons_sha256)

    def trained(self, hold: Hold) -> frozenset[str] | None:
        return self._bound(hold, TRAINED, hold.trained_sha256)

    def _bound(self, hold: Hold, name: str, digest: str) -> frozenset[str] | None:
        # A list that was deleted when the site left the study is not missing: its charge counts against everybody.
        if not digest or hold.release_id in self.deleted:
            return None
        # Told apart by something else than in the latest draw, the same person would look like two.
        if hold.space != next(other.space for other in reversed(self.of(hold.study)) if other.persons_sha256):
            return None
        return _listed(_folder(self.path, hold) / name, digest, f"the list of persons of release {hold.release_id[:8]}")

    def out(self, hold: Hold) -> list[Hold]:
        """The other releases of its study that have left, or still may."""
        return [
            other
            for other in self.of(hold.study)
            if other.release_id != hold.release_id
            and other.drawn
            and not other.rounds
            and (other.phase != "burnt" or other.left)
        ]

    def earlier(self, hold: Hold) -> frozenset[str]:
        lists = [persons for other in self.out(hold) for persons in (self.persons(other), self.trained(other))]
        return frozenset().union(*(some for some in lists if some)) - self.withdrawn_from(hold.study)

    def require_same_persons(self, hold: Hold, space: str, roles: bool) -> None:
        given = "another person column, mapping, file format or snapshot.key"
        out = self.out(hold)
        if (roles or any(other.trained_sha256 for other in out)) and any(other.space != space for other in out):
            raise DifferencingRefusal(
                "where some persons train and are never released, persons must be told apart as in the study's earlier "
                "releases",
                given=f"{given}, or a release whose persons the ledger has lost",
                next_step="Put it back as it was. Where it cannot be, ask the study lead for a new study: who has "
                "trained could not be told from who may be released.",
            )
        others = [other for other in self.of(hold.study) if other.space and other.space != space]
        if others and (hold.touches == "new" or self.gone.get(hold.study)):
            raise DifferencingRefusal(
                "persons must be told apart as in the study's earlier releases",
                given=given,
                next_step="Put it back as it was. Where it cannot be, a plan that refreshes counts its charges against "
                "everybody, but only while nobody has withdrawn.",
            )

    def require_roles_kept(self, hold: Hold, persons: Collection[str], trained: Collection[str], flow_of: str) -> None:
        # A flow may be of a release that was given up since. Of a ledger from before there is no list: who trained
        # follows from the pseudonym then, and `require_same_persons` holds these to be the same.
        others = {other.release_id: other for other in self.out(hold)} | (
            {flow_of: self.hold(flow_of)} if flow_of else {}
        )
        wrong = 0
        for other in others.values():
            wrong += len(set(persons) & (self.trained(other) or frozenset()))
            wrong += len(set(trained) & (self.persons(other) or frozenset())) if trained else 0
        if wrong:
            raise PolicyRefusal(
                "who trains and who is released must stay as it was in this study's earlier releases",
                given=f"{wrong} persons who would change",
                next_step="The reservation is kept and nothing was drawn. Ask the study lead for a new study.",
            )

    def as_written(self, study: str) -> bool:
        spaces = [hold.space for hold in self.of(study) if hold.space]
        return study in self.written or any(not space.startswith(NORMALISED) for space in spaces)

    def taken(self, hold: Hold) -> frozenset[str]:
        shared = self._beside(hold)
        found = [self.persons(other) for other in self.of(hold.study) if other.release_id not in shared]
        return frozenset().union(*(persons for persons in found if persons is not None))

    def withdrawn_from(self, study: str) -> frozenset[str]:
        digest = self.gone.get(study, "")
        path = self.path.parent / WITHDRAWN / f"{digest}.json"
        return _listed(path, digest, f"the list of persons who withdrew from {study}") if digest else frozenset()

    def _beside(self, hold: Hold) -> set[str]:
        """Whose persons a release of new persons may draw: of those burnt before it was reserved, and of trainings.

        Who trained is charged for it and was released by it to nobody.
        """
        return {
            other.release_id
            for other in self.of(hold.study)
            if other.persons_sha256 and (other.rounds or 0 < other.closed_seq < hold.reserved_seq)
        }

    def composition(self, study: str) -> StudyCharges:
        own = self.of(study)
        place = {hold.release_id: k for k, hold in enumerate(own)}
        charges = []
        for hold in own:
            # Of a charge against everybody the list narrows nothing: whoever is written otherwise is not on it twice.
            new = hold.touches == "new"
            persons = self.persons(hold) if new else None
            beside = frozenset(place[name] for name in self._beside(hold)) if new and not hold.drawn else None
            charges.append(Charge(rdp=hold.rdp, pure=hold.epsilon_pure, persons=persons, beside=beside))
        return StudyCharges(charges)

    def total(self, study: str | None, delta: float) -> float:
        """Of one study; or of all, for None."""
        if study is not None:
            return self.composition(study).total(delta)
        names = dict.fromkeys(hold.study for hold in self.holds.values())
        return site_total([self.composition(name) for name in names], delta)

    def require_guarantee(self, epsilon: float | None, event: Mapping[str, Any], site_cap: float | None) -> None:
        """Under a cap on all studies, that this release and all that are or may get out have a price."""
        if site_cap is None:
            return
        if epsilon is None:
            raise BudgetRefusal(
                "a release without a formal guarantee must not be made where a site has a budget over all studies",
                given="noise that depends on the records"
                if event == {"event": "no_guarantee"}
                else "rows from a flow alone that is fitted on their records (posture 'local', w = 0)",
                next_step="Ask the study lead for a plan whose releases have a price.",
            )
        # A lost or a rejected draw that nobody outside has seen is not among them; what was once sent stays.
        out = [
            hold
            for hold in self.holds.values()
            if hold.epsilon is None and (hold.left or (hold.drawn and hold.phase in ("held", "sealed")))
        ]
        if out:
            raise BudgetRefusal(
                "a budget over all studies must be one of everything that the site releases",
                given=f"{len(out)} releases without a formal guarantee, which no total holds",
                next_step="Leave [budget] out of site.toml; or withdraw those releases, if none was ever approved.",
            )

    def require_within(self, study: str | None, delta: float, cap: float) -> None:
        total = self.total(study, delta)
        # Written so that a total that is not a number is refused.
        if not total <= cap:
            raise BudgetRefusal(
                f"the total of the {'site' if study is None else f'study {study}'} must stay within its cap of "
                f"ε = {shown_epsilon(cap)} at δ = {shown_delta(delta)}",
                given=f"ε = {shown_epsilon(total)} with this release, for the persons charged most",
                next_step="See site-agent budget; a larger budget needs an amended plan."
                if study is not None
                else "See site-agent budget; the site's own cap stands in site.toml under [budget].",
            )


def _folder(ledger: Path, hold: Hold) -> Path:
    # Release ids in the ledger are plain words, so that none of them can lead out of the folder.
    return ledger.parent / "sealed" / hold.release_id


def _listed(path: Path, digest: str, what: str) -> frozenset[str]:
    """A list of pseudonyms, if it is the one that was bound. Raises: IntegrityRefusal, StorageRefusal."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise _storage(path.name, error) from error
    if sha256_hex(data) != digest:
        raise IntegrityRefusal(
            f"{what} must be the one that the ledger names",
            given="another list" if data else "no file",
            next_step=f"Restore {path.parent.name}/{path.name} from a backup: without it, who was charged is unknown.",
        )
    return frozenset(parse_json(data, cap=LIST_CAP))


def _require_new(repeated: int) -> None:
    if repeated:
        raise DifferencingRefusal(
            "a release of new persons must hold nobody whom an earlier release of the study has touched",
            given=f"{repeated} such persons",
            next_step="The reservation is kept. Report it: the agent leaves them out by itself.",
        )


def _anchored(entries: Sequence[Entry]) -> int:
    return next((int(entry.body["seq"]) for entry in reversed(entries) if entry.kind in _WITNESSED), 0)


def _agrees(entries: Sequence[Entry], receipt: AnchoredHead) -> bool:
    return 1 <= receipt.seq <= len(entries) and entries[receipt.seq - 1].hash == receipt.head


def _recovered(entries: Sequence[Entry], receipt: AnchoredHead) -> str:
    for entry in reversed(entries):
        if entry.kind == "recovered" and (entry.body["seq"], entry.body["head"]) == (receipt.seq, receipt.head):
            return head_fingerprint(entry.hash)
    return ""


def _head_payload(site: str, seq: int, head: str) -> bytes:
    return canonical_json({"site": site, "seq": seq, "head": head})


def _read(connection: sqlite3.Connection, cached: bool = True) -> list[Entry]:
    """All entries, the chain checked; each row anew unless it may be `cached`."""
    read: Callable[..., Entry] = _entry if cached else _entry.__wrapped__
    entries: list[Entry] = []
    previous = GENESIS
    rows = connection.execute("SELECT seq, time, kind, body, previous, hash, signature FROM entries ORDER BY seq")
    for number, row in enumerate(rows, start=1):
        entries.append(read(number, previous, *row))
        previous = entries[-1].hash
    return entries


# A ledger is read from its first entry to its last: one that is longer than this is read anew each time, all of it. So
# it is longer than any ledger grows; ten thousand entries take about 15 MB.
@lru_cache(maxsize=1 << 17, typed=True)
def _entry(
    number: int, previous: str, seq: int, time: str, kind: str, raw: bytes, before: str, digest: str, signature: bytes
) -> Entry:
    """One row, checked against the hash before it. A function of these bytes alone: they are not looked at twice.

    Whoever reads shares the one body, which therefore cannot be changed.
    """
    try:
        body = parse_json(bytes(raw))
        head = hashlib.sha256(bytes.fromhex(previous) + bytes.fromhex(link_of(seq, time, kind, body))).hexdigest()
        whole = canonical_json(body) == bytes(raw)
        signature = bytes(signature)
    except (Refusal, TypeError, ValueError):
        raise _broken(f"entry {number} must be readable", "damaged bytes") from None
    if seq != number or before != previous or digest != head or not whole:
        raise _broken(f"entry {number} must follow from the one before it", "another hash")
    return Entry(seq=seq, time=time, kind=kind, body=_frozen(body), previous=before, hash=digest, signature=signature)


def _unchangeable(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("what stands in the ledger cannot be changed")


class _FrozenDict(dict[str, Any]):
    """A dict for JSON, `==` and `|`, and a plain one once copied, that nobody changes."""

    __setitem__ = __delitem__ = __ior__ = _unchangeable
    clear = pop = popitem = setdefault = update = _unchangeable

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {name: copy.deepcopy(value, memo) for name, value in self.items()}


class _FrozenList(list[Any]):
    """The same of a list."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _unchangeable
    append = clear = extend = insert = pop = remove = reverse = sort = _unchangeable

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return _FrozenDict({name: _frozen(item) for name, item in value.items()})
    return _FrozenList(map(_frozen, value)) if isinstance(value, list) else value


def _given(holds: Iterable[Hold]) -> str:
    """What a total of these charges takes as given: all that any of them does.

    Not a flow whose training by several sites is among them: it was charged to everybody.
    """
    holds = tuple(holds)
    trained = {hold.study for hold in holds if hold.rounds}
    return all_given(
        (hold.epsilon, "" if hold.given_in_total == CHARGED_BEFORE and hold.study in trained else hold.given_in_total)
        for hold in holds
    )


def _resumed(hold: Hold, *, plan_hash: str, event: Mapping[str, Any], delta: float) -> Hold:
    if hold.state in ("delivered", "withdrawn"):
        raise StateRefusal(
            f"wave {hold.wave} of study {hold.study} must not be released yet",
            given=f"a {hold.state} release",
            next_step="See site-agent budget.",
        )
    if (hold.plan_hash, dict(hold.event), hold.delta) != (plan_hash, dict(event), delta):
        raise StateRefusal(
            f"the open reservation of wave {hold.wave} must be of the same plan and event",
            given="another plan, or another price",
            next_step=f"site-agent withdraw {hold.release_id[:8]} --as NAME --reason policy gives the earlier one up; "
            "its charge stays. Then release again.",
        )
    return hold


def _require_receipt(entries: Sequence[Entry], receipt: AnchoredHead) -> None:
    if not 1 <= receipt.seq <= len(entries):
        raise _broken(f"the ledger must reach the anchored entry {receipt.seq}", f"{len(entries)}: an old copy")
    if entries[receipt.seq - 1].hash != receipt.head:
        raise _broken(f"the ledger must agree with the anchor on entry {receipt.seq}", "two histories")


def _require_same_bundle(hold: Hold, bundle_sha256: str) -> None:
    if hold.bundle_sha256 != bundle_sha256:
        raise IntegrityRefusal(
            f"release {hold.release_id} must have the bytes that were sealed",
            given="other bytes" if hold.bundle_sha256 else "no seal",
            next_step="A second draw is a second charge: reject this one and release again.",
        )


def _require_digest(text: str, name: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ParameterError(f"{name} must be a SHA-256, 64 lower-case hexadecimal digits", given=repr(text)[:80])
