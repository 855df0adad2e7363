"""Stores and ledgers of the version before are read, changed and taken back, and lose nothing; of the next, refused.

``fixtures/home-0.2.0.tar.xz`` was made by the processes of 0.2.0 (commit 3c53b2e): a coordinator with two waves of one
site, and that site with a third wave approved and not delivered, and a fourth that waits for a person.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hurry import soak
from stage.both_sides.service import Hub
from stage.coordinator_side.collect import refused
from stage.hospital_side.recovery import PLAN
from stage.house.upgrade import FIXTURE, _ticks, postgres  # noqa: F401
from stage.processes.theatre import PASSPHRASE

from coordinator import cli
from coordinator.services.authority import Authority
from coordinator.services.collect.server import CoordinatorServer, ServerSettings
from coordinator.store import schema as db
from coordinator.store.engine import Database
from coordinator.store.schema.revisions import HEAD, _scripts, revision_of, taken_back
from coordinator.store.schema.tables_of_0001 import meta as tables_of_0001
from coordinator.store.store import Store
from shared.base.keys import write_private
from shared.errors import LedgerRefusal, NetworkRefusal, ParameterError, StateRefusal
from shared.wire import protocol
from shared.wire.protocol import SpokenVersions
from site_agent import cli as agent
from site_agent.desk import Desk
from site_agent.ledger import chain

ROOT = Path(__file__).parents[3]


@pytest.fixture
def homes(tmp_path):
    """The coordinator and the site of 0.2.0, as its processes left them."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "coordinator", tmp_path / "site"


@pytest.fixture
def database(request, homes):
    """URL of the store of 0.2.0, in SQLite and in PostgreSQL."""
    file = f"sqlite:///{homes[0] / 'store.db'}"
    if request.param == "sqlite":
        return file
    url = request.getfixturevalue("postgres")
    source, target = sa.create_engine(file), sa.create_engine(url)
    with source.connect() as old, target.begin() as new:
        new.execute(sa.text("DROP SCHEMA public CASCADE"))
        new.execute(sa.text("CREATE SCHEMA public"))
        tables_of_0001.create_all(new)
        for table in tables_of_0001.sorted_tables:
            rows = [dict(row) for row in old.execute(table.select()).mappings()]
            if rows:
                new.execute(table.insert(), rows)
    source.dispose()
    target.dispose()
    return url


both = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)


def rows(store, tables=tables_of_0001):
    """Everything that 0.2.0 knows; not which processes wrote last, which changes with each of them."""
    return {
        table.name: sorted(map(repr, store.read(lambda c, t=table: c.execute(t.select()).all())))
        for table in tables.sorted_tables
        if table.name != "writers"
    }


def described(connection):
    """What the tables of a store lack of those that this software reads."""
    return compare_metadata(MigrationContext.configure(connection), db.meta)


@pytest.mark.fault("F23")
@both
def test_a_store_of_the_version_before_goes_forth_and_back_and_forth_and_loses_nothing(database, homes, tally):
    engine = sa.create_engine(database)
    with engine.connect() as c:
        assert revision_of(c) == ""
        before = {t.name: sorted(map(repr, c.execute(t.select()).all())) for t in tables_of_0001.sorted_tables}
    engine.dispose()
    assert len(before["releases"]) == 2
    with closing(Store.open(homes[0], database)) as store:
        assert store.read(revision_of) == HEAD
        assert store.read(described) == []
        assert rows(store) == before
        assert store.verify_log()
        store.verify_signatures()
        assert len([store.table(one) for one in store.releases()]) == 2
        # What this version adds, and the one before does not look at, is there when this one comes back.
        added = {name: "x" for name in ("serial", "site", "membership", "state", "request", "csr_pem")}
        added |= {"certificate_pem": "x", "day": "2026-01-01", "good_until": ""}
        store.write(lambda c: c.execute(db.site_certificates.insert(), [added]))
        everything = rows(store, db.meta)
        refused(ParameterError, lambda: store.write(lambda c: taken_back(c, "0009")))
    rounds = soak(1, 8, usual=3)
    for _ in range(rounds):
        with closing(Store.open(homes[0], database)) as store:
            store.write(lambda c: taken_back(c, "0001"))
            assert (store.read(revision_of), rows(store)) == ("0001", before)
        with closing(Store.open(homes[0], database)) as store:
            assert (store.read(revision_of), rows(store, db.meta)) == (HEAD, everything)
    tally(cases=rounds, sites=1, bundles=2 * rounds, lost=0)


@pytest.mark.fault("F23")
@both
def test_a_store_of_a_later_version_is_refused_and_left_as_it_is(database, homes):
    with closing(Store.open(homes[0], database)) as store:
        store.write(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '0999'")))
    said = refused(StateRefusal, lambda: Store.open(homes[0], database))
    assert ("0999" in said.given, "Update this software" in said.next_step) == (True, True)
    engine = sa.create_engine(database)
    with engine.connect() as c:
        assert revision_of(c) == "0999"
    engine.dispose()


def test_a_store_from_before_0_2_0_is_refused_by_name(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}")
    with engine.begin() as c:
        c.execute(sa.text("CREATE TABLE releases (bundle_sha256 TEXT PRIMARY KEY)"))
    engine.dispose()
    assert "0.2.0 or later" in str(refused(StateRefusal, lambda: Store.open(tmp_path)))


def test_revisions_from_nothing_are_the_tables_that_are_made_at_once(tmp_path):
    """On which a new store rests; and the newest revision is the one that the software asks for."""
    database = Database(f"sqlite:///{tmp_path / 'made.db'}")
    assert database.read(described) == []
    database.close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'grown.db'}")
    with engine.begin() as c:
        config, known = _scripts(c)
        command.upgrade(config, "head")
        assert (revision_of(c), described(c), HEAD in known) == (HEAD, [], True)
    engine.dispose()


def opening(home):
    return f"from pathlib import Path; from coordinator.store.store import Store; Store.open(Path({str(home)!r}))"


@pytest.mark.fault("F23")
def test_two_processes_that_open_an_old_store_bring_it_up_once(homes):
    running = [subprocess.Popen([sys.executable, "-c", opening(homes[0])], cwd=ROOT) for _ in range(3)]
    assert [one.wait(120) for one in running] == [0, 0, 0]
    with closing(Store.open(homes[0])) as store:
        assert (store.read(revision_of), store.read(described)) == (HEAD, [])


@pytest.mark.fault("F23")
@pytest.mark.parametrize("point", ["upgrade.before", "upgrade.after"])
def test_killed_while_it_is_brought_up_a_store_is_the_old_or_the_new_one(homes, point):
    env = {**os.environ, "TRIBUTARY_FAILPOINT": point}
    assert subprocess.run([sys.executable, "-c", opening(homes[0])], cwd=ROOT, env=env).returncode == -9
    with closing(Store.open(homes[0])) as store:
        assert (store.read(revision_of), len(store.releases()), store.verify_log() > 0) == (HEAD, 2, True)


@pytest.mark.fault("F23", cases=2, bundles=4, sites=1)
def test_a_site_with_a_full_queue_is_read_goes_on_and_is_charged_nothing_anew(homes, tmp_path, monkeypatch, capsys):
    """Both sides are updated with releases between seal and delivery: each arrives, once, as it was sealed."""
    hub, home = homes
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
    monkeypatch.setenv("TRIBUTARY_SITE_HOME", str(home))

    def run(*argv):
        with pytest.raises(SystemExit) as ended:
            agent.main([*map(str, argv), "--json"])
        out = capsys.readouterr().out
        assert not ended.value.code, out
        return json.loads(out)

    spent = run("budget")["totals"]
    assert (spent[0]["releases"], round(spent[0]["epsilon"], 6)) == (4, 501.953048)
    assert [one["state"] for one in run("outbox", "list")["releases"]] == ["delivered", "delivered", "approved", "held"]
    assert run("ledger", "verify")["ok"]
    entries = len(Desk(home).ledger.entries())
    sealed = {path.parent.name: path.read_bytes() for path in home.glob("sealed/*/bundle.zip")}
    # A certificate lives for a year, and this test longer: the authority of that day gives them anew.
    authority = Authority.load(hub)
    authority.renew_server(["127.0.0.1"])
    request = (home / "certificates" / "request.pem").read_text()
    given = authority.issue(request, "north")
    write_private(home / "certificates" / "site.pem", given.encode())
    with closing(Store.open(hub)) as store:
        store.write(lambda c: c.execute(db.sites.update().values(certificate_pem=given)))
    with CoordinatorServer(hub, "127.0.0.1:0") as server:
        text = (home / "site.toml").read_text()
        (home / "site.toml").write_text(text.replace(Desk(home).config.address, f"127.0.0.1:{server.port}"))
        for one in run("outbox", "list")["releases"][2:]:
            run("approve", one["release_id"], "--as", "steward", *_ticks(home, one["release_id"]))
        assert [one["state"] for one in run("outbox", "list")["releases"]] == ["delivered"] * 4
        assert run("status")["discrepancies"] == []
    assert run("budget")["totals"] == spent
    assert len(Desk(home).ledger.entries()) > entries
    assert run("ledger", "verify")["ok"]
    with closing(Store.open(hub)) as store:
        assert [one.wave for one in store.releases()] == [1, 2, 3, 4]
        assert {(hub / "bundles" / f"{one.bundle_sha256}.zip").read_bytes() for one in store.releases()} == set(
            sealed.values()
        )
        store.verify_log()
    # Back to the version before: its own tables, and nothing of the queue is lost.
    assert cli.main(["--home", str(hub), "upgrade", "--to", "0001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revision"] == "0001"


@both
def test_a_trial_of_an_upgrade_leaves_the_store_as_it_is_and_says_what_would_be(database, homes, capsys, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_STORE", database)

    def said(*words):
        capsys.readouterr()
        code = cli.main(["--home", str(homes[0]), "upgrade", *words, "--json"])
        answer = json.loads(capsys.readouterr().out)
        return code, answer.get("revision"), answer.get("after")

    engine = sa.create_engine(database)
    with engine.connect() as c:
        tables = set(sa.inspect(c).get_table_names())
    for _ in range(2):
        assert said("--dry-run") == (0, "0001", HEAD)
    assert said("--to", "0009", "--dry-run")[0] == 2
    with engine.connect() as c:
        assert (revision_of(c), set(sa.inspect(c).get_table_names())) == ("", tables)
    assert said() == (0, HEAD, HEAD)
    capsys.readouterr()
    assert cli.main(["--home", str(homes[0]), "upgrade", "--to", "0001", "--dry-run"]) == 0
    assert "it would be taken back to 0001" in " ".join(capsys.readouterr().out.split())
    assert said("--to", "0001", "--dry-run") == (0, HEAD, "0001")
    with CoordinatorServer(homes[0], "127.0.0.1:0", ServerSettings(url=database)):
        assert said("--to", "0001")[0] == 30, "another process would work on in it"
        assert said("--dry-run") == (0, HEAD, HEAD)
    with engine.connect() as c:
        assert revision_of(c) == HEAD
    assert said("--to", "0001") == (0, "0001", "0001")
    engine.dispose()


def test_a_ledger_of_a_form_that_this_version_does_not_know_is_refused(tmp_path, monkeypatch):
    hub = Hub(tmp_path / "hub", PLAN, "north")
    hub.store.close()
    key = hub.sites["north"].release
    from site_agent.ledger.book import Ledger

    with pytest.MonkeyPatch.context() as later:
        later.setattr(chain, "FORMAT", "tributary-ledger/4")
        later.setattr(chain, "READ_FORMATS", ("tributary-ledger/3", "tributary-ledger/4"))
        Ledger.create(tmp_path / "ledger.db", key, site="north")
    said = refused(LedgerRefusal, lambda: Ledger(tmp_path / "ledger.db", key, site="north"))
    assert (said.given, "install" in said.next_step) == ("tributary-ledger/4", True)


@pytest.mark.fault("F23", cases=4)
def test_sides_of_different_versions_work_together_or_both_say_what_to_do(tmp_path, monkeypatch):
    hub = Hub(tmp_path / "hub", PLAN, "north")
    server = hub.serve()
    try:
        monkeypatch.setattr(protocol, "SPOKEN", SpokenVersions(1, 3))
        with hub.egress("north") as door:
            assert door.held("mini").holdings == (), "an agent of a later version that still speaks the older one"
        seen = []
        judged = protocol.require_common

        def noted(metadata, here):
            seen.append(SpokenVersions.of(metadata))
            # The server of this process is of the version before, whatever the agent is.
            judged(metadata, here if len(seen) % 2 == 0 else SpokenVersions(1, 1))

        for end in ("client", "server"):
            monkeypatch.setattr(f"shared.wire.transport.{end}.require_common", noted)
        monkeypatch.setattr(protocol, "SPOKEN", SpokenVersions(2, 3))
        with hub.egress("north", attempts=1) as door:
            said = refused(NetworkRefusal, lambda: door.held("mini"))
        assert "protocol" in str(said)
    finally:
        server.stop(0)
        hub.store.close()
    for there, older in ((SpokenVersions(1, 1), "the other side"), (SpokenVersions(4, 5), "this side")):
        metadata = [("x", "y"), (protocol.PROTOCOL_KEY, there.text)]
        said = refused(NetworkRefusal, lambda m=metadata: judged(m, SpokenVersions(2, 3)))
        assert said.next_step.startswith(f"Update {older}: install the newer version")
    # 0.2.0 says nothing, and what cannot be read is nothing.
    for metadata in ((), ((protocol.PROTOCOL_KEY, "9" * 40),), ((protocol.PROTOCOL_KEY, b"1-1"),)):
        assert SpokenVersions.of(metadata) == SpokenVersions(1, 1)


def test_the_wheel_carries_the_revisions(tmp_path):
    from setuptools import find_packages

    found = find_packages(str(ROOT), include=["coordinator*"])
    assert {"coordinator.store.schema", "coordinator.store.schema.versions"} <= set(found)
