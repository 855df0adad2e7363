"""A coordinator that is not well: a damaged database, a database of another home; and what says so."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from contextlib import closing

import pytest
from stage.both_sides.service import SMALL, Hub, started

from coordinator import cli
from coordinator.config import CoordinatorConfig
from coordinator.services.at_home import open_home
from coordinator.store import schema as db
from coordinator.store.schema.revisions import HEAD, revision_of
from coordinator.store.store import Store
from shared.errors import IntegrityRefusal, StateRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave


@pytest.fixture
def hub(tmp_path):
    always = dt.date(2000, 1, 1), dt.date(2999, 1, 1)
    study = StudyPlan(
        study="small",
        version=1,
        title="A small study",
        purpose="To be damaged.",
        coordinator="hub",
        expires=always[1],
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=1e9),
        waves=tuple(Wave(number=k, opens=always[0], closes=always[1]) for k in range(1, 31)),
        dictionary=SMALL,
        returning="refresh",
    )
    made = Hub(tmp_path / "hub", study, "north")
    config = CoordinatorConfig(home=made.home, name="hub", address="127.0.0.1:8443")
    (made.home / "coordinator.toml").write_text(config.to_toml())
    yield made
    made.store.close()


def deliver(hub: Hub, *waves: int, **settings) -> None:
    with hub.serve(**settings), hub.egress("north") as egress:
        for wave in waves:
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:032x}")
            egress.send(sealed.envelope, sealed.path)


def said(capsys, hub: Hub, *words: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = cli.main(["--home", str(hub.home), *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def damaged(hub: Hub, table: str) -> None:
    """Write over the last page of a table."""
    hub.store.close()
    path = hub.home / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT pageno FROM dbstat WHERE name = ? ORDER BY pageno DESC"
        try:
            page = connection.execute(query, (table,)).fetchone()[0]
        except sqlite3.OperationalError:
            page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    connection.close()
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)


def test_a_damaged_database_is_not_served_and_every_look_at_it_says_that_it_is_damaged(hub, capsys):
    deliver(hub, 1, 2)
    assert not (hub.home / "home.id").exists(), "a database in its home needs none"
    assert said(capsys, hub, "doctor")[0] == 0
    assert said(capsys, hub, "log", "verify")[0] == 0
    damaged(hub, "anchors")
    with pytest.raises(IntegrityRefusal, match="database must be whole"):
        started(hub.home)
    code, answer = said(capsys, hub, "log", "verify")
    assert code == 30
    assert "database must be whole" in answer["refused"]["must"]
    assert "backup" in answer["refused"]["next_step"]
    code, answer = said(capsys, hub, "doctor")
    assert code == 30
    assert next(line["name"] for line in answer["checks"] if line["state"] == "fail") == "database"


def test_a_document_that_was_damaged_within_its_page_is_told_as_that(hub, capsys):
    deliver(hub, 1)
    with sqlite3.connect(hub.home / "store.db") as connection:
        connection.execute("UPDATE releases SET envelope = x'00'")
    connection.close()
    code, answer = said(capsys, hub, "log", "verify")
    assert code == 30
    assert answer["refused"]["must"] == "every document in the database must be as it was written"
    assert "backup" in answer["refused"]["next_step"]


def test_one_database_is_served_from_one_home(tmp_path, hub):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    hub.store.close()
    (hub.home / "store.db").rename(tmp_path / "shared.db")
    hub.store = Store.open(hub.home, url)
    deliver(hub, 1, url=url)
    other = Hub(tmp_path / "other", hub.plan)
    other.store.close()
    with pytest.raises(StateRefusal, match="used from its own home folder"):
        started(other.home, url=url)
    assert not (other.home / "home.id").exists()
    deliver(hub, 2, url=url)
    (hub.home / "home.id").unlink()  # put back from a backup that did not have it: its bundles tell
    deliver(hub, 3, url=url)
    assert (hub.home / "home.id").exists()


def test_no_command_of_a_second_home_reads_or_changes_the_first_ones_database(tmp_path, hub, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    hub.store.close()
    (hub.home / "store.db").rename(tmp_path / "shared.db")
    hub.store = Store.open(hub.home, url)
    deliver(hub, 1, url=url)
    second, third = tmp_path / "second", tmp_path / "third"
    assert cli.main(["--home", str(second), "init", "--name", "second"]) == 0
    monkeypatch.setenv("TRIBUTARY_STORE", url)
    entries = hub.store.entries()
    for words in (("wave", "close", "small", "1", "--reason", "test"), ("log", "head"), ("sites",), ("doctor",)):
        capsys.readouterr()
        assert cli.main(["--home", str(second), *words, "--json"]) == 2, words
        refusal = json.loads(capsys.readouterr().out)["refused"]
        assert (refusal["code"], refusal["given"]) == ("E_STATE", "the database of another home's"), words
    assert cli.main(["--home", str(second), "upgrade", "--to", "0001"]) == 2
    with pytest.raises(StateRefusal, match="its own home folder"):
        open_home(second, name="ada")
    for words in ((), ("--dry-run",)):
        assert cli.main(["--home", str(third), "init", "--name", "third", *words]) == 2
        assert not third.exists()
    assert hub.store.entries() == entries
    assert (hub.store.read(revision_of), (second / "home.id").exists()) == (HEAD, False)
    assert said(capsys, hub, "wave", "close", "small", "1", "--reason", "test")[0] == 0


def test_doctor_of_a_coordinator_whose_database_is_away_says_so_and_looks_at_the_rest(hub, capsys, monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("TRIBUTARY_STORE", "postgresql+psycopg://hub:geheim@127.0.0.1:1/heart")
    monkeypatch.setattr("coordinator.store.engine.BRIEFLY", 0.3)
    code, answer = said(capsys, hub, "doctor")
    (line,) = (one for one in answer["checks"] if one["name"] == "database")
    assert (code, line["state"]) == (20, "fail")
    assert "no connection to PostgreSQL at 127.0.0.1:1, database heart" in line["detail"]
    assert {"authority", "keys at rest", "disk"} <= {one["name"] for one in answer["checks"]}
    assert "geheim" not in json.dumps(answer)


def test_a_new_home_claims_its_database_and_takes_none_that_another_fills(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_STORE", f"sqlite:///{tmp_path / 'shared.db'}")
    first, second = tmp_path / "first", tmp_path / "second"
    assert cli.main(["--home", str(first), "init", "--dry-run"]) == 0
    assert not (tmp_path / "shared.db").exists()
    assert cli.main(["--home", str(first), "init"]) == 0
    assert cli.main(["--home", str(second), "init"]) == 2, "before anything is in it"
    (first / "coordinator.toml").unlink()
    assert cli.main(["--home", str(first), "init"]) == 0, "one that was interrupted goes on"
    with closing(Store.open(first, f"sqlite:///{tmp_path / 'shared.db'}")) as store:
        store.write(lambda c: c.execute(db.home.delete()))  # one of an earlier version, which was never served
        assert cli.main(["--home", str(second), "init", "--dry-run"]) == 0
        store.note_restoration({"type": "restoration"})
    capsys.readouterr()
    assert cli.main(["--home", str(second), "init"]) == 2
    assert "another home has begun to fill" in capsys.readouterr().err
    assert not second.exists()
