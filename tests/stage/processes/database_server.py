"""A PostgreSQL server of the tests' own, on a socket, that can be stopped and started; and stores that lie in it."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from stage.processes.stopping import stopped


@dataclass(frozen=True)
class DatabaseServer:
    tools: Path
    folder: Path
    who: dict[str, int] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    listen: str = ""

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://hub@/postgres?host={self.folder}"

    def database(self, name: str, *, like: str = "template1") -> str:
        """The URL of a database of that name; one that is not there is made, as a copy of `like`."""
        import psycopg

        if not (self.folder / ".s.PGSQL.5432").exists():
            self.start()  # a test that stopped it has failed on its way
        mine = f"host={self.folder} user=hub dbname=postgres"
        with suppress(psycopg.errors.DuplicateDatabase), psycopg.connect(mine, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{like}"')
        return f"postgresql+psycopg://hub@/{name}?host={self.folder}"

    def run(self, tool: str, *argv: str | Path) -> None:
        words, who = [self.tools / tool, *argv], self.who
        if self.inside and who:  # only root enters a namespace: it is left behind there
            ids = [f"--reuid={who['user']}", f"--regid={who['group']}", "--clear-groups"]
            words, who = [*self.inside, "setpriv", *ids, *words], {}
        subprocess.run(words, check=True, capture_output=True, cwd=self.folder, **who)

    def start(self) -> None:
        options = f"-c listen_addresses='{self.listen}' -k {self.folder} -c fsync=off"
        self.run("pg_ctl", "-D", self.folder / "data", "-o", options, "-l", self.folder / "log", "-w", "start")

    def end(self) -> None:
        """Stop it if it runs."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()

    def stop(self) -> None:
        """As a crash of its processes: every connection breaks in the middle of what it does."""
        self.run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")


def installed() -> tuple[Path, dict[str, int]]:
    """The folder of PostgreSQL's programs, and whom they run as where we are root; skips where there are none."""
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        pytest.skip("PostgreSQL is not installed")
    try:
        user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    except KeyError:
        pytest.skip("PostgreSQL refuses to run as root, and has no user here")
    return Path(found).resolve().parent, {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}


@contextmanager
def database_server(
    name: str, inside: tuple[str, ...] = (), listen: str = "", peer: str = "", place: Path = Path("/tmp")
) -> Iterator[DatabaseServer]:
    """A running server; the test is skipped where there is none to run.

    Args:
        name: part of its folder's.
        inside: the words before its commands that enter a network namespace.
        listen: the address at which it answers beside its socket; blank: none.
        peer: the one other address that it answers.
        place: where its folder lies; a socket's path must be short, and its user must get there.
    """
    tools, who = installed()
    folder = place / f"pg-{name}-{os.getpid()}"
    folder.mkdir(mode=0o700)
    if who:
        os.chown(folder, who["user"], who["group"])
    server = DatabaseServer(tools, folder, who, inside, listen)
    try:
        server.run("initdb", "-D", folder / "data", "-A", "trust", "-U", "hub", "--no-sync")
        if peer:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {peer}/32 trust\n")
        with stopped(server.end):
            server.start()
            yield server
    finally:
        shutil.rmtree(folder)


@contextmanager
def stores_as_they_are() -> Iterator[None]:
    """Undo `stores_in` for one test: a fixture of its module may still stand, and processes of its own know nothing."""
    from coordinator.store.store import Store

    there = Store.__dict__["open"]
    Store.open = getattr(there.__func__, "elsewhere", there)
    try:
        yield
    finally:
        Store.open = there


@contextmanager
def stores_in(server: DatabaseServer) -> Iterator[None]:
    """Let every store that is opened without naming its database lie in this server, each home in one of its own."""
    from coordinator.store.store import Store

    first, made = Store.__dict__["open"], dict[str, str]()
    Store(server.database("empty_store"), server.folder).close()  # its tables are made once, and copied

    def opened(cls: type[Store], home: Path, url: str = "", bundles: str = "", **how: float) -> Store:
        name = "home_" + hashlib.sha256(f"{home.resolve()}".encode()).hexdigest()[:24]  # the same in a forked process
        if not url and name not in made:
            made[name] = server.database(name, like="empty_store")
        return first.__func__(cls, home, url or made[name], bundles, **how)

    opened.elsewhere = first
    Store.open = classmethod(opened)
    try:
        yield
    finally:
        Store.open = first
