"""What PostgreSQL may do to the store that SQLite does not: other isolation, answers that are lost, its end."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
import sqlalchemy as sa
from hurry import part_of_today
from stage.both_sides.service import Hub, small_table
from stage.coordinator_side.collect import failpoints, plan

from coordinator.services.collect import ingest, service, staging
from coordinator.store import schema as db
from coordinator.store.bundles import folder
from coordinator.store.engine import Database, append_entry
from coordinator.store.verify import verify_log
from shared.wire.site_messages import Acceptance

__all__ = ["plan"]  # the fixture


@pytest.fixture
def url(postgres, request):
    """An empty database of the test's own."""
    return postgres.database("own_" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20])


@pytest.fixture
def base(url, tmp_path):
    made = Database(url, tmp_path)
    yield made
    made.close()


def told(url: str, order: str) -> None:
    """Tell a database how to treat everybody who comes from now on."""
    engine = sa.create_engine(url)
    with engine.begin() as c:
        c.exec_driver_sql(f'ALTER DATABASE "{engine.url.database}" {order}')
    engine.dispose()


def entries(c: sa.Connection) -> int:
    return c.execute(sa.select(sa.func.count()).select_from(db.log)).scalar_one()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_whatever_isolation_its_administrator_chose_a_writer_sees_what_the_one_before_wrote(url, tmp_path, level):
    """A budget, a quota, one head for each site: read first, then written. What stood before the wait is too old."""
    told(url, f"SET default_transaction_isolation = '{level}'")
    begun, seen = threading.Event(), []

    def first(c: sa.Connection) -> None:
        begun.set()
        while not c.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar():
            pass  # until the other waits for its turn
        c.execute(db.clock_words.insert().values(day="2026-01-01"))

    def second(c: sa.Connection) -> None:
        seen.append(c.execute(sa.select(sa.func.count()).select_from(db.clock_words)).scalar_one())

    with (
        closing(Database(url, tmp_path)) as one,
        closing(Database(url, tmp_path)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        writing = pool.submit(one.write, first)
        assert begun.wait(30)
        other.write(second)
        writing.result()
    assert seen[-1] == 1, "decided on what another had changed"
    assert len(seen) == 1


def test_a_reader_sees_one_moment_however_often_it_asks_within_one_reading(base, url, tmp_path):
    """As in SQLite: the log and its rows are read after each other, and must be of one moment."""

    def work(c: sa.Connection) -> tuple[int, int]:
        before = entries(c)
        other.write(lambda c: append_entry(c, {"kind": "test"}))
        return before, entries(c)

    with closing(Database(url, tmp_path)) as other:
        assert base.read(work) == (0, 0)
    assert base.entries() == 1


def test_an_answer_to_a_commit_that_is_lost_is_asked_for_and_nothing_is_done_twice(base, monkeypatch):
    """The server commits, and the line breaks before it has said so: what is no repetition would be done again."""
    commit, lost = base._engine.dialect.do_commit, []

    def broken(connection: psycopg.Connection) -> None:
        commit(connection)
        if len(lost) < 3:
            lost.append(connection)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(base._engine.dialect, "do_commit", broken)
    numbers = [base.write(lambda c: append_entry(c, {"kind": "test"}))[0] for _ in range(4)]
    assert (numbers, base.entries(), len(lost)) == ([0, 1, 2, 3], 4, 3)


def test_a_transaction_that_ended_with_its_server_is_begun_again(base, postgres, monkeypatch):
    """The server dies with the commit before it, or after it: either way there is one entry."""
    commit, when, starts = base._engine.dialect.do_commit, ["before", "after"], list[threading.Timer]()

    def crash(connection: psycopg.Connection) -> None:
        moment = when.pop() if when else ""
        if moment == "after":
            commit(connection)
        if moment:
            for start in starts:  # it answers before the one who starts it has heard so
                start.join()
            postgres.stop()
            starts.append(threading.Timer(0.3, postgres.start))
            starts[-1].start()
        commit(connection)

    monkeypatch.setattr(base._engine.dialect, "do_commit", crash)
    for number in range(3):
        assert base.write(lambda c: append_entry(c, {"kind": "test"}))[0] == number
    assert base.entries() == 3
    for start in starts:
        start.join()


def test_a_server_that_has_no_connection_left_is_waited_for(url, tmp_path, postgres):
    """Each process keeps a few connections; together they may be more than the server gives."""
    Database(url, tmp_path).close()
    engine = sa.create_engine(url)
    with engine.begin() as c:
        c.exec_driver_sql("CREATE ROLE few LOGIN CONNECTION LIMIT 2")
        c.exec_driver_sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO few")
    mine = url.replace("hub@", "few@")
    with (
        closing(Database(mine, tmp_path)) as one,
        closing(Database(mine, tmp_path)) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        work = [pool.submit((one, other)[k % 2].write, lambda c: append_entry(c, {"kind": "test"})) for k in range(16)]
        threading.Timer(0.5, one.close).start()  # gives back what it keeps
        assert sorted(one.result()[0] for one in work) == list(range(16))
    with engine.begin() as c:
        c.exec_driver_sql("DROP OWNED BY few")
        c.exec_driver_sql("DROP ROLE few")
    engine.dispose()


@pytest.mark.fault("F2")
@pytest.mark.sampled
def test_a_database_that_dies_at_any_step_of_an_ingest_loses_nothing(url, tmp_path, plan, postgres, monkeypatch, tally):
    """It is killed, and comes back after a third of a second: the site hears an acceptance, not a refusal."""
    hub = Hub(tmp_path / "hub", plan, "north", url=url)
    where, hit = [""], []

    def reach(name: str) -> None:
        if name == where[0]:
            where[0] = ""
            hit.append(name)
            postgres.stop()
            threading.Timer(0.3, postgres.start).start()

    for room in (ingest, staging, service, folder):
        monkeypatch.setattr(room, "reach", reach)
    places = [p for p in part_of_today(failpoints(), 5) if "quarantine" not in p and "recover" not in p]
    heard: list[Acceptance] = []
    with hub.serve(), hub.egress("north") as egress:
        for wave, place in enumerate(places, start=1):
            where[0] = place
            egress.anchor(hub.anchor("north", wave))
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave))
            heard.append(egress.send(sealed.envelope, sealed.path))
    assert hit == places
    assert [release.acceptance for release in hub.store.releases()] == heard
    assert verify_log(hub.store) == 2 * len(places)
    tally(cases=len(places), bundles=len(places), sites=1, lost=0, duplicated=0)
    hub.store.close()
