"""A backup of a site while its agent runs, its return, and what must be settled before a restored site spends again.

The ledger is copied as of one moment (SQLite's backup API), its head written from its last entry, then the files that
this copy names; they are written once and renamed into place, so that a hard link keeps each as it was. What was
gathered is verified like a stranger's record before it is an archive, encrypted to the approvers in force
(`shared.base.archive`). The table is not in it, nor are the keys of sealed embeddings: to delete such a key deletes
them wherever copies lie (`site_agent.release.embeddings`).

A ledger from a backup has forgotten what was charged since. So a restored home carries a mark, and while it does no
charge is made and nothing is drawn (`site_agent.ledger.files.require_settled`): `site_agent.decide.recovery` takes it
away, once the ledger was held against the last head that the coordinator has acknowledged.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.archive import BackupHeader, header_for, new_file, put_in_place, read_archive, sandbox, write_archive
from shared.base.canonical import canonical_json
from shared.base.failpoints import reach
from shared.base.keys import PublicKey, write_private
from shared.errors import IntegrityRefusal, Refusal, SchemaRefusal, StateRefusal, StorageRefusal
from shared.terminal import proven
from site_agent.config import FILE_NAME
from site_agent.desk import Desk, courier
from site_agent.ledger.files import RESTORED
from site_agent.ledger.persons import WITHDRAWN

if TYPE_CHECKING:
    from shared.base.keys import SigningKey
    from shared.terminal import ChecklistLine

__all__ = ["RestoredSite", "SiteBackupFacts", "back_up", "drill", "restore"]

_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
NAMES = re.compile(
    rf"site\.toml|ledger\.db|ledger\.head|paused|watch\.json|(acknowledged|refused)\.jsonl"
    rf"|(keys|certificates|plans|sealed|flows|mappings)(/{_PART}){{1,3}}"
    rf"|withdrawn/[0-9a-f]{{64}}\.json"
    rf"|courier/(state\.json|[0-9a-f]{{64}}\.zip)"
)
GROWING = ("acknowledged.jsonl", "refused.jsonl")
SETTINGS = ("keys", "certificates", "plans", "flows", "mappings")
KEPT_APART = re.compile(r"keys/frames/.*|.*\.part")
ATTEMPTS = 5  # a key that is changed while it is copied makes the copy begin anew


@dataclass(frozen=True, kw_only=True)
class SiteBackupFacts:
    """Facts about its site that a backup states.

    Args:
        site, coordinator: their ids.
        day: ISO date, UTC.
        release_key: public half of the agent's key.
        entries, head: number of the ledger's last entry, and its hash.
        budgets: ε that each study was charged, as stated (None where nothing bounds it).
    """

    site: str
    coordinator: str
    day: str
    release_key: str
    entries: int
    head: str
    budgets: Mapping[str, float | None]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> SiteBackupFacts:
        """Read it. Raises: SchemaRefusal."""
        whole = body.keys() == cls.__annotations__.keys() and isinstance(body["budgets"], dict)
        texts = all(isinstance(body.get(name), str) for name in ("site", "coordinator", "day", "release_key", "head"))
        if not whole or not texts or type(body["entries"]) is not int:
            raise SchemaRefusal("a site's backup must say what it is of, each fact of its type")
        return cls(**body)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the agent's key, as the study lead has it."""
        return PublicKey(self.release_key).fingerprint


@dataclass(frozen=True, kw_only=True)
class RestoredSite:
    """Outcome of a restore.

    Args:
        moved: where the former home is now; blank if there was none.
        unopened: studies whose network keeps a sealed embedding, which nothing here opens.
    """

    facts: SiteBackupFacts
    moved: str
    unopened: tuple[str, ...]


# -- out ------------------------------------------------------------------------------------------------------------
def back_up(desk: Desk, out: Path, *, software: str, today: dt.date) -> tuple[SiteBackupFacts, BackupHeader, int]:
    """Write an archive of a site, also while its agent runs, and verify what was written.

    Returns: what it says, for whom it is, and the bytes of its files.
    Raises: StateRefusal (the file is there already, nobody to encrypt it to), IntegrityRefusal (the site is not whole:
        a backup would only say so later), StorageRefusal.
    """
    new_file(out)
    people = _in_force(desk, today)
    header = header_for(
        side="site",
        name=desk.config.site,
        day=today.isoformat(),
        software=software,
        people=people,
        key_files={name: desk.config.approver_key(name) for name in people},
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, ATTEMPTS + 1):
            with tempfile.TemporaryDirectory(prefix=".backup-", dir=desk.home) as folder:
                try:
                    facts, sources = _gathered(Desk(desk.home), Path(folder), today)
                    made = write_archive(out, header, desk.release_key, asdict(facts), sources, scratch=Path(folder))
                    return facts, header, sum(int(one["bytes"]) for one in made.files.values())
                except (FileNotFoundError, _Moved, IntegrityRefusal):
                    if attempt == ATTEMPTS:
                        raise
    except _Moved:
        raise StateRefusal(
            "settings and keys must rest while they are copied", given="one change after another"
        ) from None
    except OSError as error:
        raise StorageRefusal("the backup must be writable", given=error.strerror or "an error") from None
    raise AssertionError("unreachable")


class _Moved(Exception):
    """Something was changed while it was copied."""


def _in_force(desk: Desk, today: dt.date) -> dict[str, PublicKey]:
    """Names and keys of those who may approve here today: approvers, and deputies within their days."""
    found = {}
    for name, key in desk.config.approvers.items():
        with contextlib.suppress(Refusal):
            desk.require_in_time(name)
            found[name] = PublicKey(key)
    return found


def _gathered(desk: Desk, folder: Path, today: dt.date) -> tuple[SiteBackupFacts, dict[str, Path | bytes]]:
    """A copy of the home as of one moment, verified."""
    home = desk.home
    before = _settings(home)
    for path in before:
        _keep(home, path, folder)
    # Before the ledger: a head that waits to be carried must not be of entries that the copy lacks.
    with courier(desk.config).resting() as carried:
        for path in carried:
            _keep(home, path, folder)
    desk.ledger.copy_to(folder)
    reach("backup.copied")
    # A key is changed in the ledger first and on the disk after: both must be of the same moment.
    if _settings(home) != before:
        raise _Moved
    for name in (*GROWING, "paused", "watch.json"):
        if (home / name).exists():
            data = (home / name).read_bytes()
            write_private(folder / name, data[: data.rfind(b"\n") + 1] if name in GROWING else data)
    copied = Desk(folder)
    for hold in copied.ledger.holds():
        if hold.phase != "burnt" and (home / "sealed" / hold.release_id).is_dir():
            for path in (home / "sealed" / hold.release_id).iterdir():
                _keep(home, path, folder)
    for path in sorted((home / WITHDRAWN).glob("*.json")):
        _keep(home, path, folder)
    copied.ledger.withdrawals()  # each list that the ledger names must be there
    facts = _facts(copied, today.isoformat())
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "agent.lock")
    sources: dict[str, Path | bytes] = {path.relative_to(folder).as_posix(): path for path in files}
    return facts, {name: source for name, source in sources.items() if NAMES.fullmatch(name)}


def _settings(home: Path) -> dict[Path, int]:
    """Every file of settings and keys, with what tells a new one from the one before it."""
    found = [home / FILE_NAME, *(path for room in SETTINGS for path in (home / room).rglob("*") if path.is_file())]
    named = {path: path.relative_to(home).as_posix() for path in found}
    return {path: path.stat().st_ino for path, name in named.items() if not KEPT_APART.fullmatch(name)}


def _keep(home: Path, path: Path, folder: Path) -> None:
    """Keep a file as it is now: whoever writes another one renames it into place."""
    if KEPT_APART.fullmatch(path.relative_to(home).as_posix()):
        return
    place = folder / path.relative_to(home)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.link(path, place)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copy2(path, place)


def _facts(desk: Desk, day: str) -> SiteBackupFacts:
    """Facts for the backup of a site folder, after verifying it. Raises: IntegrityRefusal, LedgerRefusal,
    ApprovalRefusal."""
    from site_agent.decide.airlock import overview
    from site_agent.show import export

    export.verify(desk)
    last = desk.ledger.entries()[-1]
    return SiteBackupFacts(
        site=desk.config.site,
        coordinator=desk.config.coordinator,
        day=day,
        release_key=desk.release_key.public.hex,
        entries=last.seq,
        head=last.hash,
        budgets={str(one["study"]): one["epsilon"] for one in overview.totals(desk)},
    )


# -- back -----------------------------------------------------------------------------------------------------------
def restore(
    archive: Path,
    home: Path,
    *,
    key: SigningKey,
    fingerprint: str = "",
    replace: bool = False,
    dry_run: bool = False,
) -> RestoredSite:
    """Put a site back from an archive, verified before it is in its place; it spends nothing until it is settled.

    Args:
        key: of an approver who could open it when it was made.
        fingerprint: of the agent's key, as the study lead read it out; asked for where no home of this site is there
            to hold the backup against.
        replace: put a home that holds something aside; nothing of it is deleted.
    Raises: StateRefusal (the home holds something; no fingerprint), ApprovalRefusal (another key), LockedRefusal (an
        agent runs there), IntegrityRefusal (archive or site are not whole, or another's), SchemaRefusal,
        StorageRefusal.
    """
    from site_agent.lock import StateLock
    from site_agent.release.embeddings import EMBEDDING

    occupied = home.exists() and any(home.iterdir())
    if occupied and not (replace or dry_run):
        raise StateRefusal(
            "the home folder to restore to must be empty",
            given=f"{home}",
            next_step="Choose another --home, or add --replace: what is there is put aside.",
        )
    idle = StateLock(home) if occupied and not dry_run else contextlib.nullcontext()
    with idle, sandbox(home) as made:
        facts, digest = _opened(archive, key, made)
        if _facts(Desk(made), facts.day) != facts:
            raise IntegrityRefusal("a backup must hold the ledger and the budgets that it names", given="others")
        known = _first_key(home) if occupied else ""
        if known and known != _first_key(made):
            raise IntegrityRefusal(
                "a site must be replaced by its own backup", given="another site's", next_step="Choose another --home."
            )
        if not (dry_run or known) and fingerprint.split() != facts.fingerprint.split():
            raise StateRefusal(
                "the agent's key in a backup must be the one that the study lead knows",
                given="another fingerprint" if fingerprint else "no fingerprint",
                next_step="Nothing was restored. Call the study lead at a number that you know: the lead reads it out "
                '(coordinator sites shows it), and you add --fingerprint "FINGERPRINT" as you hear it. If it differs, '
                "the file is another site's, or older than the key.",
            )
        replies = Desk(made).replies
        mark = {"archive": digest, "day": facts.day, "restored": 0 if replies is None else replies.restored()}
        write_private(made / RESTORED, canonical_json(mark))
        if Desk(made).config.courier:
            courier(Desk(made).config).restored()
        (made / "agent.lock").unlink(missing_ok=True)
        unopened = tuple(sorted({hold.study for hold in Desk(made).ledger.holds() if EMBEDDING in hold.files}))
        moved = "" if dry_run else put_in_place(made, home)
    return RestoredSite(facts=facts, moved=moved, unopened=unopened)


def drill(archive: Path, home: Path, *, key: SigningKey) -> tuple[list[ChecklistLine], int]:
    """Put a backup back into a folder that is thrown away, and prove each part of it.

    Args:
        home: where the site lives, if it does: its ledger must go on from the backup's, and have spent no less.
    Returns: a line for each part up to the first that is not whole, and 0 or that one's exit code.
    """
    from site_agent.decide.airlock import overview
    from site_agent.show import export

    with sandbox(home) as made:
        facts: SiteBackupFacts
        desk = Desk(made)

        def opened() -> str:
            nonlocal facts
            facts, _ = _opened(archive, key, made)
            return f"of {facts.day}, each file as it was written"

        def ledger() -> str:
            last = desk.ledger.entries()[desk.ledger.verify() - 1]
            if (last.seq, last.hash) != (facts.entries, facts.head):
                raise IntegrityRefusal("the ledger must end with the head that the backup names", given="another")
            left = f", {gone} persons withdrew" if (gone := desk.ledger.withdrawals()) else ""
            return f"{last.seq} entries, each chained and signed{left}; nothing is charged before it is settled"

        def outbox() -> str:
            found = export.verify(desk)
            return f"{found['bundles']} sealed bundles, {found['signatures']} signatures"

        def budgets() -> str:
            found = {str(one["study"]): one["epsilon"] for one in overview.totals(desk)}
            if found != facts.budgets:
                raise IntegrityRefusal("what each study was charged must be what the backup names", given="other sums")
            return f"{len(found)} studies, each charged what it was"

        def lived_in() -> str:
            if not (home / "ledger.db").exists():
                return "none at this home: not compared"
            live = Desk(home).ledger.entries()
            if len(live) < facts.entries or live[facts.entries - 1].hash != facts.head:
                raise IntegrityRefusal("the ledger in use must go on from the backup's", given="another history")
            return f"goes on from the backup, {len(live) - facts.entries} entries since: a restore would count them"

        return proven(
            {"archive": opened, "ledger": ledger, "outbox": outbox, "budgets": budgets, "ledger in use": lived_in}
        )


def _opened(archive: Path, key: SigningKey, made: Path) -> tuple[SiteBackupFacts, str]:
    """Open an archive into a folder; what it says, and the digest of its contents."""
    header, contents, envelope = read_archive(
        archive, key, made, lambda name: bool(NAMES.fullmatch(name)) and not KEPT_APART.fullmatch(name)
    )
    if header.side != "site":
        raise SchemaRefusal("the backup must be a site's", given=f"a {header.side}'s")
    facts = SiteBackupFacts.of(contents.facts)
    signer = PublicKey(facts.release_key)
    whole = {FILE_NAME, "ledger.db", "ledger.head"} <= contents.files.keys() and header.name == facts.site
    if not whole or not envelope.verified_by({signer.key_id: signer}):
        raise IntegrityRefusal("a backup must hold a site's files, signed by its key", given="others")
    desk = Desk(made)
    named = (desk.config.site, desk.config.coordinator, desk.release_key.public.hex)
    if named != (facts.site, facts.coordinator, facts.release_key):
        raise IntegrityRefusal("a backup must be of the site and study that it names", given="another's")
    return facts, envelope.digest


def _first_key(home: Path) -> str:
    """The key with which the ledger of a home begins, which no later change of keys alters; blank without one."""
    with contextlib.suppress(Refusal, OSError):
        return str(Desk(home).ledger.entries()[0].body["release_key"])
    return ""
