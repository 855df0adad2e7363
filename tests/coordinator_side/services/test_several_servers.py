"""Several processes that serve one home folder, on one PostgreSQL: what one acknowledged is stored, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from urllib.error import HTTPError
from urllib.request import urlopen

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
from shared.errors import LockedRefusal, PlanRefusal, Refusal, StorageRefusal, StoreAway
from shared.wire.site_messages import Acceptance
from shared.wire.transport import CallLimits

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


def test_a_site_hears_that_the_database_is_away_also_where_the_door_closes_sooner_and_the_log_says_so(
    hub, postgres, monkeypatch, caplog
):
    """The door gives a connection less time here than the store waits: the answer comes all the same, typed."""
    monkeypatch.setattr(engine, "RESTART", 2.0)
    ask = {"attempts": 1, "timeout": 30.0}
    with hub.serve(limits=CallLimits(proving=1.0), health="127.0.0.1:0") as server:
        port = server.monitor.port
        postgres.stop()
        try:
            with hub.egress("north", **ask) as egress, pytest.raises(StoreAway) as told:
                egress.held(hub.plan.study)
            assert str(told.value) == "the coordinator's database must answer, got no connection to it."
            assert (told.value.code, told.value.exit_code) == ("E_STORE_AWAY", 20)
            assert told.value.next_step.startswith("Nothing is lost here")
            begun = time.monotonic()
            for site in SITES * 4:  # each is told at once: nobody waits behind the others
                with hub.egress(site, **ask) as egress, pytest.raises(StoreAway):
                    egress.held(hub.plan.study)
            assert time.monotonic() - begun < 5.0
            with hub.egress("north", **ask) as egress:
                for _ in range(40):  # our own trouble counts against nobody, and closes no connection
                    with pytest.raises(StoreAway):
                        egress.held(hub.plan.study)
            with pytest.raises(HTTPError) as unready:
                urlopen(f"http://127.0.0.1:{port}/readyz")
            assert json.loads(unready.value.read())["checks"]["store"] == "E_STORE_AWAY"
        finally:
            postgres.start()
        with hub.egress("north", timeout=30.0) as egress:
            assert egress.held(hub.plan.study).holdings == ()
    lines = [one.getMessage() for one in caplog.records if one.name == "tributary.store"]
    assert lines[0].startswith("the database does not answer: no connection to PostgreSQL at")
    assert lines[-1].startswith("the database answers again, after")


def test_of_an_outage_that_lasts_one_caller_at_a_time_tries_and_an_earlier_one_is_not_counted_on(monkeypatch):
    gone = engine._Absence("PostgreSQL at hub")
    assert not gone.lasts(0.0)
    assert [gone.seconds(now) for now in (100.0, 110.0, 119.0)] == [0.0, 10.0, 19.0]
    assert not gone.lasts(119.0)
    assert gone.seconds(121.0) == 21.0
    assert gone.lasts(122.0)
    gone.ended()
    assert not gone.lasts(122.0)
    assert gone.seconds(123.0) == 0.0
    assert gone.seconds(123.0 + engine.RESTART + engine.LONGEST_WAIT + 1) == 0.0, "nobody has asked for long"


def test_a_reading_whose_work_refuses_has_found_the_database_there_all_the_same(tmp_path):
    base = Database(f"sqlite:///{tmp_path / 'store.db'}", tmp_path)

    def refusing(refusal: Refusal) -> Callable[[sa.Connection], None]:
        def work(c: sa.Connection) -> None:
            raise refusal

        return work

    for refusal, lasts in ((StoreAway("the database must answer"), True), (PlanRefusal("no such study"), False)):
        now = time.monotonic()
        base._absence._since, base._absence._seen = now - engine.RESTART - 2.0, now
        with pytest.raises(type(refusal)):
            base.read(refusing(refusal))
        assert base._absence.lasts(now) == lasts
    base.close()


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
