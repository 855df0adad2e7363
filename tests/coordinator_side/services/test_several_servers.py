"""Several processes that serve one home folder, on one PostgreSQL: what one acknowledged is stored, whoever dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import sqlalchemy as sa
from stage.both_sides.service import Hub, small_table, started
from stage.coordinator_side.collect import plan
from stage.coordinator_side.several_servers import SITES, Processes, delivered, require_stored
from stage.processes.database_server import database_server

from coordinator.store import engine
from coordinator.store import schema as db
from coordinator.store.engine import Database, append_entry
from coordinator.store.verify import verify_log
from shared.errors import LockedRefusal, StorageRefusal
from shared.wire.site_messages import Acceptance

__all__ = ["plan"]  # the fixture


@pytest.fixture(scope="module")
def postgres():
    with database_server("several") as server:
        yield server


@pytest.fixture
def hub(tmp_path, plan, postgres):
    wiped = sa.create_engine(postgres.url)
    with wiped.begin() as c:
        c.execute(sa.text("DROP SCHEMA public CASCADE"))
        c.execute(sa.text("CREATE SCHEMA public"))
    wiped.dispose()
    made = Hub(tmp_path / "hub", plan, *SITES, url=postgres.url)
    yield made
    made.store.close()


def test_of_two_processes_under_load_one_is_killed_and_what_was_acknowledged_is_stored(hub):
    with Processes(hub, 2) as processes:
        (first, _), _ = processes
        heard, refused = delivered(
            hub, [port for _, port in processes], lambda count: os.kill(first, signal.SIGKILL) if count == 3 else None
        )
    assert "E_NETWORK" in refused, "nobody has noticed that it was killed"
    assert set(refused) <= {"E_NETWORK", "E_CERT"}  # a handshake that breaks off looks like either
    require_stored(hub, heard)


def test_a_database_that_crashes_in_the_middle_and_comes_back_is_waited_for(hub, postgres):
    def crash(count: int) -> None:
        if count == 3:
            postgres.stop()
            threading.Timer(1.0, postgres.start).start()

    with hub.serve() as server:
        heard, refused = delivered(hub, [server.port], crash)
        require_stored(hub, heard)
    assert refused == []


def test_the_same_release_sent_to_two_processes_at_once_is_taken_once(hub):
    sealed = hub.seal("north", table=small_table(4000))
    with Processes(hub, 2) as processes:

        def send(port: int) -> Acceptance:
            with hub.egress("north", address=f"127.0.0.1:{port}") as egress:
                return egress.send(sealed.envelope, sealed.path)

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(send, [port for _, port in processes])
    assert one.log_index == other.log_index
    assert [release.bundle_sha256 for release in hub.store.releases()] == [one.bundle_sha256]
    assert verify_log(hub.store) == hub.store.entries()


def test_what_a_transaction_reads_before_it_writes_is_still_so_when_it_commits(hub):
    """One process counts, as a budget is checked, and adds; another adds in between unless it is made to wait."""
    one, other = Database(hub.url, hub.home), Database(hub.url, hub.home)

    def work(c: sa.Connection, between: Callable[[], object] = lambda: None) -> int:
        seen = c.execute(sa.select(sa.func.count()).select_from(db.log)).scalar_one()
        between()
        index, _ = append_entry(c, {"kind": "test", "seen": seen})
        return seen - index

    with ThreadPoolExecutor(1) as pool:
        later = []

        def meanwhile() -> None:
            later.append(pool.submit(other.write, work))
            wait(later, timeout=0.5)

        assert one.write(lambda c: work(c, meanwhile)) == 0
        assert [found.result() for found in later] == [0]
    one.close()
    other.close()


def test_a_bundle_that_another_process_is_about_to_commit_is_not_taken_away(hub):
    """The folders are looked after by whoever starts alone; a second one that starts finds uploads under way."""
    with hub.serve():
        waiting = hub.home / "bundles" / f"{'a' * 64}.zip"
        waiting.write_bytes(b"moved, and not committed yet")
        offer = hub.home / "staging" / f"north.{'a' * 64}.json"
        offer.write_text("{}")
        with started(hub.home, url=hub.url):
            assert waiting.exists()
    with hub.serve():
        assert not waiting.exists(), "whoever starts alone puts back to its offer what nobody has committed"
        assert offer.with_suffix(".part").read_bytes() == b"moved, and not committed yet"


def test_only_a_database_server_may_be_served_by_several(tmp_path, plan):
    alone = Hub(tmp_path / "alone", plan, "north")
    with alone.serve(), pytest.raises(LockedRefusal, match="PostgreSQL"):
        started(alone.home)
    alone.store.close()


def test_a_database_that_stays_away_is_a_refusal_in_the_end(hub, postgres, monkeypatch):
    monkeypatch.setattr(engine, "RESTART", 0.3)
    postgres.stop()
    try:
        for ask in (hub.store.entries, lambda: hub.store.write(lambda c: append_entry(c, {"kind": "test"}))):
            with pytest.raises(StorageRefusal):
                ask()
    finally:
        postgres.start()
    assert hub.store.entries() >= 0
