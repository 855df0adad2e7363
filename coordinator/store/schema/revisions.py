"""Which form the coordinator's tables have, and how one becomes the next: Alembic's revisions, in ``versions``.

A store says its revision in ``alembic_version``. One from before there were revisions is told by its tables. Changes
are additions: an older version of this software does not look at what was added, so that a store goes back to it by its
revision alone, and loses nothing that either of them knows.

To change a table: change it in `coordinator.store.schema`, add a revision that does the same, and put its name into
`HEAD`; ``tests/coordinator_side/store/test_upgrade.py`` holds the three together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from shared.base.failpoints import reach
from shared.errors import ParameterError, StateRefusal

__all__ = ["HEAD", "brought_up", "known_revision", "require_revision", "revision_of", "taken_back"]

HEAD = "0003"
"""Revision of the tables that this version reads."""
_LOCK = 0x7472_6962  # of PostgreSQL: two processes that open one store at once


def revision_of(c: sa.Connection) -> str:
    """Revision that a store says it has; blank if it says none."""
    if not sa.inspect(c).has_table("alembic_version"):
        return ""
    return str(c.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() or "")


def brought_up(c: sa.Connection, meta: sa.MetaData) -> None:
    """Bring a store to `HEAD`, within the caller's transaction; one without tables gets all of them.

    Args:
        meta: the tables of `HEAD`.
    Raises: StateRefusal (of a later version than this software, or of an earlier one than 0.2.0).
    """
    if c.dialect.name == "postgresql":
        c.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    said = revision_of(c)
    if said == HEAD:
        return
    found = known_revision(c)
    if not found:
        meta.create_all(c)  # Alembic's own way to a new store, without reading its revisions
        c.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        c.execute(sa.text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
        return
    from alembic import command

    config, _ = _scripts(c)
    if not said:
        from coordinator.store.schema.tables_of_0001 import meta as first

        first.create_all(c)  # what was added on the way to 0.2.0
        command.stamp(config, found)
    reach("upgrade.before")
    command.upgrade(config, "head")
    reach("upgrade.after")


def known_revision(c: sa.Connection) -> str:
    """Revision of a store as it is, which this software can bring up; blank without tables. Nothing is written.

    Raises: StateRefusal (of a later version than this software, or of an earlier one than 0.2.0).
    """
    found = revision_of(c)
    if not found:
        return _told_by_tables(c) if sa.inspect(c).has_table("releases") else ""
    if found != HEAD and found not in _scripts(c)[1]:
        raise StateRefusal(
            "the store must be of a version that this software knows",
            given=f"revision {found}, of a later one",
            next_step=f"Update this software. To go back to it: coordinator upgrade --to {HEAD}, by the later one.",
        )
    return found


def require_revision(c: sa.Connection, revision: str) -> None:
    """Refuse a revision that this software does not know. Raises: ParameterError."""
    known = _scripts(c)[1]
    if revision not in known:
        raise ParameterError(f"a revision must be one of {', '.join(sorted(known))}", given=repr(revision))


def taken_back(c: sa.Connection, revision: str) -> None:
    """Take a store back to an earlier revision, for an earlier version of this software. Raises: ParameterError."""
    from alembic import command

    require_revision(c, revision)
    command.downgrade(_scripts(c)[0], revision)


def _scripts(c: sa.Connection) -> tuple[Any, set[str]]:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = c
    return config, {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}


def _told_by_tables(c: sa.Connection) -> str:
    """Revision of a store that was made before there were revisions. Raises: StateRefusal (before 0.2.0)."""
    from coordinator.store.schema.tables_of_0001 import meta

    look = sa.inspect(c)
    have = {name: {column["name"] for column in look.get_columns(name)} for name in look.get_table_names()}
    lack = [t.name for t in meta.sorted_tables if t.name in have and not set(t.columns.keys()) <= have[t.name]]
    if lack:
        raise StateRefusal(
            "the store must be of version 0.2.0 or later",
            given=f"an earlier one: another {lack[0]}",
            next_step="Restore it with the version that wrote it; this software cannot read it.",
        )
    return "0001"  # what later revisions add, they add where it is not there
