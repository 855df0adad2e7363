"""Which home folder a database elsewhere belongs to: a random id, in the home's ``home.id`` and in the database.

Bundles, keys and authority lie in the home: from another one a database would be changed in its own's name. A home
without an id that holds a bundle of the database's releases is that home, put back from a backup.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from coordinator.store import schema as db
from shared.base.keys import write_private
from shared.errors import StateRefusal

if TYPE_CHECKING:
    from coordinator.store.bundles import BundleStore

__all__ = ["claim", "lies_in", "require_own", "require_unused"]

FILE = "home.id"


def lies_in(url: sa.URL, home: Path) -> bool:
    """True for a database that lies in the home folder itself, which needs no id."""
    return url.get_backend_name() == "sqlite" and Path(url.database or "").parent.resolve() == home.resolve()


def claim(c: sa.Connection, url: sa.URL, home: Path, bundles: BundleStore) -> None:
    """Note a database elsewhere as this home's, within a transaction that writes. Raises: StateRefusal (another's)."""
    require_own(c, url, home, bundles)
    known = _known(c)
    mine = known or _mine(home) or secrets.token_hex(16)
    if not (home / FILE).exists():
        write_private(home / FILE, f"{mine}\n".encode())
    if not known:
        c.execute(db.home.insert().values(id=mine))


def require_own(c: sa.Connection, url: sa.URL, home: Path, bundles: BundleStore) -> None:
    """Refuse the database of another home, whatever its revision; nothing is written. Raises: StateRefusal."""
    if lies_in(url, home):
        return
    known, mine = _known(c), _mine(home)
    if not known or mine == known:
        return
    if mine or bundles.names().isdisjoint(c.execute(sa.select(db.releases.c.bundle_sha256)).scalars()):
        raise _refusal("the database of another home's")


def require_unused(c: sa.Connection, home: Path) -> None:
    """Refuse a database for a home that is being made, unless it is empty or its own. Raises: StateRefusal."""
    known = _known(c)
    if known and known == _mine(home):
        return  # of an init that was interrupted
    there = set(sa.inspect(c).get_table_names())
    filled = (db.log, db.plans, db.sites, db.invitations)
    if known or any(one.name in there and c.execute(sa.select(one).limit(1)).first() for one in filled):
        raise _refusal("one that another home has begun to fill")


def _refusal(given: str) -> StateRefusal:
    return StateRefusal(
        "a database must be used from its own home folder",
        given=given,
        next_step="Use that one (--home): its bundles/ and keys are there; to move it, copy all of it, home.id too. "
        "For this one name another database (TRIBUTARY_STORE, or store in coordinator.toml).",
    )


def _known(c: sa.Connection) -> str:
    """Id of the home that a database belongs to; blank if none has claimed it."""
    if not sa.inspect(c).has_table(db.home.name):
        return ""
    return str(c.execute(sa.select(db.home.c.id)).scalar() or "")


def _mine(home: Path) -> str:
    path = home / FILE
    return path.read_text().strip() if path.exists() else ""
