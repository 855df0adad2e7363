"""A store in another database: SQLite to PostgreSQL and back, the same to the last row, killed or not."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import closing
from hashlib import sha256

import pytest
import sqlalchemy as sa
from stage.both_sides.service import Hub, anchor_head, small_table
from stage.coordinator_side.mini_store import TODAY, plan, put
from stage.hospital_side.ledger import forked

from coordinator.cli import main
from coordinator.config import STORE_VARIABLE, CoordinatorConfig
from coordinator.operations.migration import copied
from coordinator.store import schema as db
from coordinator.store.store import Store
from shared.errors import IntegrityRefusal, ParameterError, StateRefusal, StorageRefusal
from shared.wire.signed_messages import Withdrawal

__all__ = ["plan"]  # the fixture


@pytest.fixture
def url(postgres, request):
    """An empty database of the test's own."""
    return postgres.database("moved_" + sha256(request.node.nodeid.encode()).hexdigest()[:20])


@pytest.fixture
def hub(tmp_path, plan):
    """A store with something in most kinds of table, and bundles."""
    made = Hub(tmp_path / "hub", plan, "north", "south")
    (made.home / "bundles").mkdir()
    for wave in (1, 2):
        put(made, made.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave)))
    gone = made.seal("south", release_id="cd" * 16)
    put(made, gone)
    said = {name: getattr(gone.statement, name) for name in ("study", "site", "wave", "release_id", "bundle_sha256")}
    back = Withdrawal(**said, reason_code="consent")
    keys = made.sites["south"]
    made.store.withdraw(withdrawal=back, envelope=back.sign([keys.release, keys.steward]), today=TODAY)
    made.store.add_anchor(anchor_head("north", 1), made.anchor("north", 1))
    made.store.close_wave("mini", 1, expected=["north"], reason="late – ünd 𝛆", today=TODAY)
    for day in ("2026-01-01", "2026-01-02"):
        made.store.write(lambda c, day=day: c.execute(db.clock_words.insert().values(day=day)))
    yield made
    made.store.close()


def rows(store):
    """Everything that is to be the same."""
    tables = [table for table in db.meta.sorted_tables if table is not db.writers]
    return {t.name: sorted(map(repr, store.read(lambda c, t=t: c.execute(t.select()).all()))) for t in tables}


def tables_of(url):
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def test_a_store_goes_to_postgresql_and_back_grows_in_both_and_is_the_same_to_the_last_row(hub, url, tmp_path):
    told = []
    made = copied(hub.store, url, progress=lambda *step: told.append(step))
    assert (made.written, made.there, made.bundles, made.entries) == (True, False, 2, hub.store.entries())
    assert {stage for stage, *_ in told} == {"bundles read", "rows copied"}
    assert told[-1][1] == told[-1][2] == sum(made.rows.values())
    with closing(Store.open(hub.home, url)) as there:
        assert rows(there) == rows(hub.store)
        assert there.root(made.entries) == hub.store.root(made.entries) == made.root
        assert [len(there.table(one)) for one in there.releases()] == [60, 60]
        # It goes on where it was: the next entry of the log, and the next number of a row.
        put(hub, hub.seal("north", wave=3, release_id="ef" * 16, table=small_table(seed=3)), there)
        there.write(lambda c: c.execute(db.clock_words.insert().values(day="2026-01-03")))
        assert there.read(lambda c: c.execute(sa.select(sa.func.max(db.clock_words.c.number))).scalar()) == 3
        assert there.verify_log() == made.entries + 1
        again = f"sqlite:///{tmp_path / 'again.db'}"
        back = copied(there, again)
        with closing(Store.open(hub.home, again)) as here:
            assert rows(here) == rows(there)
            put(hub, hub.seal("north", wave=4, release_id="fe" * 16, table=small_table(seed=4)), here)
            assert here.verify_log() == back.entries + 1


def test_a_copy_that_is_there_is_found_and_another_store_is_left_alone(hub, url, tmp_path, plan):
    copied(hub.store, url)
    again = copied(hub.store, url)
    assert (again.written, again.there) == (False, True)
    hub.store.add_anchor(anchor_head("north", 2), hub.anchor("north", 2))
    with pytest.raises(StateRefusal, match="must be empty") as caught:
        copied(hub.store, url)
    assert caught.value.given == f"{hub.store.entries() - 1} log entries"
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with engine.begin() as c:
        c.exec_driver_sql("CREATE TABLE patients (name TEXT)")
    with pytest.raises(StateRefusal, match="1 other tables"):
        copied(hub.store, f"{engine.url}")
    engine.dispose()
    with pytest.raises(ParameterError):
        copied(hub.store, hub.store.place[0])


def test_a_trial_writes_nothing_and_finds_what_would_stop_the_copy(hub, url):
    assert copied(hub.store, url, dry_run=True).written is False
    assert tables_of(url) == []
    [one, _] = hub.store.releases()
    path = hub.store.bundles.file(one.bundle_sha256)
    data = path.read_bytes()
    for change, given in ((lambda: path.write_bytes(data[:-1]), "another"), (path.unlink, "none")):
        change()
        for dry_run in (True, False):
            with pytest.raises(IntegrityRefusal, match="before it is copied") as caught:
                copied(hub.store, url, dry_run=dry_run)
            assert caught.value.given.startswith(given)
    assert tables_of(url) == []


def test_a_value_that_the_other_database_cannot_hold_is_a_refusal_and_nothing_is_left(hub, url):
    """SQLite keeps a zero character and any length; PostgreSQL does not."""
    hub.store.write(lambda c: c.execute(db.reminders.insert().values(study="m\0", wave=1, site="x", day="2026-01-01")))
    with pytest.raises(StorageRefusal):
        copied(hub.store, url)
    assert tables_of(url) == []


@pytest.mark.fault("F23")
@pytest.mark.parametrize("point", ["migration.written", "migration.before_commit", "migration.committed"])
@pytest.mark.parametrize("way", ["postgresql", "sqlite"])
def test_killed_on_its_way_a_copy_is_not_there_or_whole_and_is_made_by_the_same_call(
    hub, request, tmp_path, point, way
):
    url = request.getfixturevalue("url") if way == "postgresql" else f"sqlite:///{tmp_path / 'copy.db'}"
    hub.store.close()

    def die():
        os.environ["TRIBUTARY_FAILPOINT"] = point
        copied(Store.open(hub.home), url)

    assert forked(die) == -9
    assert bool(tables_of(url)) == (point == "migration.committed")
    made = copied(hub.store, url)
    assert made.there == (point == "migration.committed")
    with closing(Store.open(hub.home, url)) as there:
        assert rows(there) == rows(hub.store)


@pytest.fixture
def said(capsys):
    """Runs a verb; its answer as JSON."""

    def work(home, *argv):
        capsys.readouterr()
        main(["--home", f"{home}", *argv, "--json"])
        out = json.loads(capsys.readouterr().out)
        return out.get("refused", out)

    return work


def test_init_honours_a_database_and_migrate_moves_there_and_back(tmp_path, url, postgres, said, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "correct horse battery")
    home = tmp_path / "hub"
    said(home, "init", "--name", "hub", "--address", "localhost:1", "--store", url)
    assert not (home / "store.db").exists()
    assert CoordinatorConfig.load(home).store == url
    assert "log" in tables_of(url)
    moved = said(home, "store", "migrate", "sqlite")
    assert (moved["written"], moved["switched"], CoordinatorConfig.load(home).store) == (True, True, "")
    assert (home / "store.db").exists()
    other = postgres.database("moved_again_" + sha256(url.encode()).hexdigest()[:16])
    assert said(home, "store", "migrate", other, "--dry-run")["written"] is False
    assert said(home, "store", "copy", other)["switched"] is False
    assert CoordinatorConfig.load(home).store == ""
    back = said(home, "store", "migrate", other)
    assert (back["there"], back["aside"], CoordinatorConfig.load(home).store) == (True, "store.before-1.db", other)
    assert not (home / "store.db").exists(), "nobody goes on in it who forgets the setting"
    said(home, "log", "verify")
    for url in ("mysql://x:secret@y/z", "nonsense secret"):
        refused = said(home, "store", "copy", url)
        assert (refused["code"], "secret" in str(refused)) == ("E_PARAMETER", False)


def test_killed_when_the_settings_name_the_copy_they_name_a_whole_one(tmp_path, url, said, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "correct horse battery")
    home = tmp_path / "hub"
    said(home, "init", "--name", "hub", "--address", "localhost:1")

    def die():
        os.environ["TRIBUTARY_FAILPOINT"] = "migration.switched"
        main(["--home", f"{home}", "store", "migrate", url, "--json"])

    assert forked(die) == -9
    assert CoordinatorConfig.load(home).store == url
    assert said(home, "log", "verify")["verified"]


def test_init_uses_the_database_that_the_environment_names_and_writes_it_nowhere(tmp_path, url, said, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "correct horse battery")
    monkeypatch.setenv(STORE_VARIABLE, url)
    said(tmp_path / "hub", "init", "--name", "hub", "--address", "localhost:1")
    assert "log" in tables_of(url)
    assert not (tmp_path / "hub" / "store.db").exists()
    assert "postgresql+" not in (tmp_path / "hub" / "coordinator.toml").read_text()


def test_no_store_is_copied_while_a_coordinator_serves(tmp_path, url, said, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "correct horse battery")
    home = tmp_path / "hub"
    said(home, "init", "--name", "hub", "--address", "localhost:1")
    with (home / "server.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        refused = said(home, "store", "migrate", url)
    assert refused["code"] == "E_LOCKED"
    assert tables_of(url) == []
