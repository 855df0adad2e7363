"""What strangers send and analysts ask runs in processes with limits: the server outlives it, and nobody waits."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stage.both_sides.service import Hub, small_table
from stage.coordinator_side.analysis import Desk, asked_by
from stage.coordinator_side.collect import Servers, refused
from stage.coordinator_side.delivered import cohort, cohort_plan
from stage.coordinator_side.sandbox import (
    BOMBS,
    MB,
    PLAN,
    claimed_columns,
    delivered_within,
    hub,  # noqa: F401
    long_words,
    parquet,
    resident,
    sealed_around,
)
from stage.processes import workshop

from coordinator.analyst.commands import connect
from coordinator.services import analysis
from coordinator.services.collect import ingest
from coordinator.services.compute import tasks, workers
from coordinator.services.compute.tasks import ANSWERING, READING
from coordinator.services.compute.workers import Busy, Ended, Failed, TaskLimits, Workers
from coordinator.services.documents import tried
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.errors import (
    CertificateRefusal,
    EstimateRefusal,
    IntegrityRefusal,
    NetworkRefusal,
    ParameterError,
    Refusal,
    SchemaRefusal,
    StoreAway,
    TooLarge,
)
from shared.releases import bundle as bundles
from shared.releases.table_file import read_table
from shared.wire.analyst_messages import QueryRequest

# -- bundles that are small and decode to much ------------------------------------------------------------------------


@pytest.mark.fault("F11", offered=1)
@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("honest_about_n", [True, False], ids=["n is the rows", "n is 60"])
@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_bundle_that_decodes_to_much_is_refused_before_it_is_decoded(hub, kind, honest_about_n):
    make, many = BOMBS[kind]
    table, rows = make(many)
    assert len(table) < 4 * MB
    sealed = sealed_around(hub, table, rows, n=rows if honest_about_n else 60)
    caught = delivered_within(hub, sealed, megabytes=64)
    assert type(caught) is SchemaRefusal, caught
    assert hub.contents() == {f"quarantine/{sealed.statement.bundle_sha256}.zip"}
    right = hub.seal("north", release_id="99" * 16)
    with hub.egress("north") as egress:
        assert egress.send(right.envelope, right.path).log_index == 0


def test_a_table_is_read_no_further_than_its_index_where_that_is_refused(hub, tmp_path, monkeypatch):
    """Also where nobody limits the process: the sites' own verbs read bundles too."""
    read = []
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: read.append(1))
    for kind, (make, many) in BOMBS.items():
        if kind not in ("a long word, repeated", "a long level, repeated"):
            table, rows = make(many)
            path = sealed_around(hub, table, rows, n=rows).path
            with pytest.raises(SchemaRefusal):
                bundles.read_bundle(path, cap=128 * MB, before=lambda r: PLAN.release.extent(PLAN, r.n))
    assert read == []


def test_no_room_is_made_for_what_an_index_only_claims_to_list(hub):
    """Also where nobody limits the process."""
    table, rows = claimed_columns(60)
    path = sealed_around(hub, table, rows, n=rows).path
    bundles.read_bundle(hub.seal("north").path, cap=MB)  # what it imports is not the table's
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    with pytest.raises(SchemaRefusal, match="readable"):
        bundles.read_bundle(path, cap=128 * MB)
    assert resident("VmHWM") - before < 64


def test_a_word_longer_than_the_plans_is_never_written_out(hub):
    """With no plan to compare it to, the rows times the longest word are held against the cap."""
    table, rows = long_words(400_000)
    path = sealed_around(hub, table, rows, n=rows).path
    bundles.read_bundle(hub.seal("north").path, cap=MB)  # what it imports is not the table's
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    with pytest.raises(SchemaRefusal, match="fit in memory"):
        bundles.read_bundle(path, cap=128 * MB)
    assert resident("VmHWM") - before < 64


@pytest.mark.fault("F11", offered=1)
@pytest.mark.parametrize("kind", ["words", "levels"])
def test_words_that_are_no_text_are_refused_where_the_table_is_read(kind):
    """A bundle of noisy tables with such a word was refused by whoever looked at it first, without a type."""
    written = [b"above", b"\xff\xfe", b"below"]
    ends = np.cumsum([0, *map(len, written)]).astype(np.int32)
    column = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(written))]
    )
    if kind == "levels":
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), column)
    data = parquet(pa.table({"cell": column}))
    with pytest.raises(SchemaRefusal, match="readable"):
        read_table(memoryview(data), ["cell"], 3, 1 << 20, None, lambda: None)


@pytest.mark.parametrize("trick", ["deflated", "twice", "longer than the file", "comment", "outside"])
def test_an_archive_with_a_trick_is_refused(hub, trick):
    data = hub.seal("north").path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if trick == "deflated" else zipfile.ZIP_STORED) as made:
        for name, content in parts.items():
            made.writestr(f"../{name}" if trick == "outside" else name, content)
        if trick == "twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                made.writestr("table.parquet", b"\0" * (50 * MB))
        made.comment = b"x" if trick == "comment" else b""
    changed = out.getvalue()
    if trick == "longer than the file":  # the last size that the directory names
        size = len(parts["table.parquet"]).to_bytes(4, "little")
        changed = changed[: changed.rindex(size)] + b"\xf0\xff\xff\xff" + changed[changed.rindex(size) + 4 :]
    sealed = hub.seal("north", data=changed)
    assert isinstance(delivered_within(hub, sealed, megabytes=64), IntegrityRefusal)


# -- a process that ends ----------------------------------------------------------------------------------------------
def when(done, seconds=60.0):
    until = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < until, "in vain"
        time.sleep(0.01)
    return found


@pytest.mark.fault("F11", cases=2, offered=2)
def test_a_bundle_that_takes_more_than_its_process_has_is_refused_and_kept_apart(hub, monkeypatch):
    monkeypatch.setattr(ingest, "CHECK", "stage.processes.workshop:open_greedily")  # 600 MB, where 448 are given
    sealed = hub.seal("north")
    with hub.egress("north", sleep=lambda s: None) as egress:
        refusal = refused(TooLarge, lambda: egress.send(sealed.envelope, sealed.path))
        assert "448 MB of memory" in str(refusal)
        assert hub.contents() == {f"quarantine/{sealed.statement.bundle_sha256}.zip"}
        monkeypatch.setattr(ingest, "CHECK", "stage.processes.workshop:abort")
        broken = hub.seal("north", release_id="cd" * 16, table=small_table(seed=2))
        refused(TooLarge, lambda: egress.send(broken.envelope, broken.path))
        monkeypatch.undo()
        right = hub.seal("north", release_id="99" * 16, table=small_table(seed=3))
        assert egress.send(right.envelope, right.path).log_index == 0


@pytest.mark.fault("F11", offered=1)
def test_a_table_that_takes_more_than_its_process_has_is_refused_and_kept_apart(hub):
    """The reader's own limit, not its arithmetic: what no index tells meets it too."""
    usual = hub.running.service._ingest.opening.limits
    hub.running.service._ingest.opening.limits = TaskLimits(memory=18 * MB, cpu=usual.cpu, wall=usual.wall)
    sealed = hub.seal("north", table=small_table(1_000_000))
    with hub.egress("north", timeout=60.0, sleep=lambda s: None) as egress:
        refused(TooLarge, lambda: egress.send(sealed.envelope, sealed.path))
        assert hub.contents() == {f"quarantine/{sealed.statement.bundle_sha256}.zip"}
        hub.running.service._ingest.opening.limits = usual
        right = hub.seal("north", release_id="99" * 16, table=small_table(1_000_000, seed=3))
        assert egress.send(right.envelope, right.path).log_index == 0


def test_a_process_killed_while_it_reads_is_a_refusal_and_the_same_bundle_goes_through_afterwards(hub, monkeypatch):
    monkeypatch.setattr(ingest, "CHECK", "stage.processes.workshop:open_slowly")
    sealed, told = hub.seal("north"), hub.home / "opening"
    with ThreadPoolExecutor(1) as pool, hub.egress("north", attempts=1) as egress:
        sending = pool.submit(egress.send, sealed.envelope, sealed.path)
        os.kill(int(when(lambda: told.exists() and told.read_text())), signal.SIGKILL)
        with pytest.raises(NetworkRefusal, match="opened to the end"):
            sending.result(120)
        assert hub.store.quarantined() == ()
        acceptance = egress.send(sealed.envelope, sealed.path)
    assert acceptance.log_index == 0
    assert hub.contents() == {f"bundles/{sealed.statement.bundle_sha256}.zip"}


def test_a_fork_server_that_is_killed_is_started_again(hub):
    first, second = (hub.seal("north", wave=k, release_id=f"{k:02d}" * 16, table=small_table(seed=k)) for k in (1, 2))
    with hub.egress("north", timeout=60.0) as egress:
        egress.send(first.envelope, first.path)
        workers._fork_servers[hub.running.service._ingest.opening._imports].process.kill()
        assert egress.send(second.envelope, second.path).log_index == 1


def test_a_bundle_that_was_open_when_the_coordinator_died_has_little_room_the_next_time(hub, monkeypatch):
    monkeypatch.setattr(ingest, "LITTLE", 100 * MB)
    monkeypatch.setattr(ingest, "MEMORY_FACTOR", 50)
    sealed = hub.seal("north")
    part = hub.home / "staging" / f"north.{sealed.statement.bundle_sha256}.part"
    with hub.egress("north", sleep=lambda s: None) as egress:
        part.with_suffix(".opened").write_bytes(b".")
        monkeypatch.setattr(ingest, "CHECK", "stage.processes.workshop:open_greedily")
        refusal = refused(TooLarge, lambda: egress.send(sealed.envelope, sealed.path))
    assert "100 MB of memory" in str(refusal)
    assert hub.contents() == {f"quarantine/{sealed.statement.bundle_sha256}.zip"}


@pytest.mark.fault("F11", offered=1)
def test_no_bundle_stops_the_coordinator_a_third_time(tmp_path):
    """The coordinator dies each time that it opens the bundle; then it does not open it again, whoever sends it."""
    hub = Hub(tmp_path / "hub", PLAN, "north")
    sealed, answers = hub.seal("north"), []
    servers = Servers(hub)

    def deliver() -> None:
        with hub.egress("north", attempts=1, sleep=lambda s: None) as egress:
            try:
                answers.append(egress.send(sealed.envelope, sealed.path))
            except Refusal as refusal:
                answers.append(refusal)

    try:
        for _ in range(2):
            assert servers.run("ingest.opening", deliver) == "killed"
            assert isinstance(answers[-1], (NetworkRefusal, CertificateRefusal))
        for _ in range(2):
            assert servers.run("ingest.opening", deliver) == "ended", "it was opened again"
            assert isinstance(answers[-1], TooLarge), answers[-1]
    finally:
        servers.close()
    assert hub.contents() == {f"quarantine/{sealed.statement.bundle_sha256}.zip"}
    hub.store.close()


# -- a pool -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def pool():
    made = Workers(
        imports=("shared.base.canonical",), places=2, limits=TaskLimits(memory=256 * MB, cpu=5, wall=120.0), spares=1
    )
    yield made
    made.close()


def test_a_task_gives_plain_values_a_refusal_or_the_name_of_its_fault(pool):
    assert pool.run("stage.processes.workshop:echo", {"a": [1, "é", None, 0.1]}, owner="a") == {
        "a": [1, "é", None, 0.1]
    }
    with pytest.raises(ParameterError) as refusal:
        pool.run("stage.processes.workshop:refuse", {}, owner="a")
    assert str(refusal.value) == "w must be in [0, 1), got 1.2. Lower w."
    assert refusal.value.next_step == "Lower w."
    with pytest.raises(StoreAway, match="database must answer") as away:  # analysts hear it: not where the database is
        pool.run("stage.processes.workshop:away", {}, owner="a")
    assert "db.internal" not in str(away.value)
    with pytest.raises(StoreAway) as here:
        workshop.away({})
    said = tried(QueryRequest(study="cvd", formula="mean(sbp)"), here.value)["why"]
    assert said == "the coordinator's database must answer, got no connection to it."
    with pytest.raises(Failed, match="RuntimeError") as failed:
        pool.run("stage.processes.workshop:broken", {}, owner="a")
    assert "212" not in str(failed.value)


@pytest.mark.parametrize(
    ("task", "limits", "why"),
    [
        ("hoard", TaskLimits(memory=256 * MB, cpu=5, wall=120.0), "memory"),
        ("spin", TaskLimits(memory=256 * MB, cpu=1, wall=300.0), "cpu"),
        ("sleep", TaskLimits(memory=256 * MB, cpu=5, wall=0.5), "wall"),
        ("abort", TaskLimits(memory=256 * MB, cpu=5, wall=120.0), "crashed"),
    ],
)
def test_a_task_ends_at_its_limits_and_the_next_one_works(pool, task, limits, why):
    with pytest.raises(Ended) as ended:
        pool.run(f"stage.processes.workshop:{task}", {}, owner="a", limits=limits)
    assert (ended.value.why, ended.value.limit) == (why, why != "wall"), "a slow machine is nobody's doing"
    assert pool.run("stage.processes.workshop:echo", {"a": 1}, owner="a") == {"a": 1}


def test_a_worker_goes_on_with_what_it_knows_unless_each_task_is_to_have_its_own(pool):
    assert [pool.run("stage.processes.workshop:counted", {}, owner="a") for _ in range(3)] == [1, 2, 3]
    fresh = Workers(imports=pool._imports, places=2, limits=pool.limits, fresh=True)
    assert [fresh.run("stage.processes.workshop:counted", {}, owner="a") for _ in range(3)] == [1, 1, 1]


def test_what_is_to_be_forgotten_is_in_no_worker_neither_idle_nor_at_work(pool, tmp_path):
    assert [pool.run("stage.processes.workshop:counted", {}, owner="a") for _ in range(2)] == [1, 2]
    pool.forget()
    assert pool.run("stage.processes.workshop:counted", {}, owner="a") == 1
    with ThreadPoolExecutor(1) as threads:
        at_work = {"until": str(tmp_path / "go"), "file": str(tmp_path / "pid")}
        long = threads.submit(pool.run, "stage.processes.workshop:sleep", at_work, owner="a")
        when(lambda: (tmp_path / "pid").exists())
        pool.forget()
        (tmp_path / "go").touch()
        long.result(60)
    assert pool.run("stage.processes.workshop:pid", {}, owner="a") != int((tmp_path / "pid").read_text())


def test_who_waits_for_a_place_waits_no_longer_than_told(pool, tmp_path):
    with ThreadPoolExecutor(1) as threads:
        ends = {"until": str(tmp_path / "go"), "seconds": 600}
        long = threads.submit(pool.run, "stage.processes.workshop:sleep", ends, owner="a")
        when(lambda: pool._running)
        with pytest.raises(Busy):
            pool.run("stage.processes.workshop:echo", {}, owner="a", patience=0.3)
        assert pool.run("stage.processes.workshop:echo", {"b": 1}, owner="b", patience=0.3) == {"b": 1}
        (tmp_path / "go").touch()
        long.result(120)


def test_one_owner_s_long_tasks_delay_that_owner_alone_and_several_owners_no_newcomer(pool, tmp_path):
    with ThreadPoolExecutor(8) as threads:
        ends = {"until": str(tmp_path / "go"), "seconds": 600}
        long = [threads.submit(pool.run, "stage.processes.workshop:sleep", ends, owner="a") for _ in range(3)]
        when(lambda: len(pool._running) == 1 and len(pool._waiting) == 2)
        pool.run("stage.processes.workshop:echo", {}, owner="b")
        assert not any(one.done() for one in long), "one place is always another's"
        long += [threads.submit(pool.run, "stage.processes.workshop:sleep", ends, owner="c")]
        when(lambda: sorted(pool._running) == ["a", "c"])
        pool.run("stage.processes.workshop:echo", {}, owner="b")
        assert not any(one.done() for one in long), "who runs nothing has a spare place after a while"
        (tmp_path / "go").touch()
        for one in long:
            one.result(120)
    assert pool._running == pool._waiting == []
    assert pool._served == {}


def test_waiting_owners_are_served_in_turn_and_not_by_how_much_they_ask(tmp_path):
    pool = Workers(
        imports=("shared.base.canonical",), places=1, limits=TaskLimits(memory=256 * MB, cpu=5, wall=120.0), fresh=True
    )
    order: list[str] = []

    def ask(owner: str) -> None:
        pool.run("stage.processes.workshop:echo", {}, owner=owner, begun=lambda: order.append(owner))

    with ThreadPoolExecutor(8) as threads:
        gate = {"until": str(tmp_path / "go"), "seconds": 30}
        first = threads.submit(pool.run, "stage.processes.workshop:sleep", gate, owner="greedy")
        when(lambda: pool._running)
        rest = []
        for number, owner in enumerate(["greedy"] * 4 + ["calm"] * 2, start=1):
            rest.append(threads.submit(ask, owner))
            when(lambda number=number: len(pool._waiting) == number)
        (tmp_path / "go").touch()
        for one in (first, *rest):
            one.result(120)
    assert order == ["calm", "greedy", "calm", "greedy", "greedy", "greedy"]


def test_a_task_whose_caller_leaves_is_ended_and_frees_its_place(pool, tmp_path):
    gone, told = threading.Event(), tmp_path / "pid"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(
            pool.run, "stage.processes.workshop:sleep", {"file": str(told)}, owner="a", left=gone.is_set
        )
        number = int(when(lambda: told.exists() and told.read_text()))
        gone.set()
        with pytest.raises(Ended, match="left"):
            asked.result(5)
    assert not Path(f"/proc/{number}").exists(), "the process is gone, and nobody's zombie"
    assert pool._running == []


def test_what_workers_are_forked_from_has_read_a_bundle_of_its_own_or_goes_on_without(monkeypatch, tmp_path):
    read, whole = [], tasks.check_bundle
    monkeypatch.setattr(tasks, "check_bundle", lambda given: read.append(whole(given)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tasks.read_own()
    assert [parse_json(reply["receipt"].encode())["study"] for reply in read] == ["own"]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    tasks.read_own()
    assert len(read) == 1


@pytest.mark.parametrize("imports", [READING, ANSWERING], ids=["reading", "answering"])
def test_workers_are_forked_from_one_thread_with_what_they_need(imports):
    pool = Workers(imports=imports, places=1, limits=TaskLimits(memory=256 * MB, cpu=5, wall=120.0))
    assert pool.run("stage.processes.workshop:echo", {"a": 1}, owner="a") == {"a": 1}
    fork_server = workers._fork_servers[imports].process.pid
    assert len(os.listdir(f"/proc/{fork_server}/task")) == 1
    pool.close()


def test_a_bundle_is_read_with_nothing_left_to_import(hub, tmp_path):
    """Each is read in a new process: what its reading imports would be imported for every one."""
    sealed = hub.seal("north")
    given = {"path": str(sealed.path), "cap": MB, "plan": PLAN.canonical.decode()}
    given["statement"] = sealed.statement.to_bytes().decode()
    script = (
        "import importlib, json, sys\n"
        "for module, _, first in (name.partition(':') for name in json.loads(sys.argv[1])):\n"
        "    found = importlib.import_module(module)\n"
        "    if first == 'special':  # `read_own` would read what is to be read here\n"
        "        found.special()\n"
        "before = set(sys.modules)\n"
        "from coordinator.services.compute.tasks import check_bundle\n"
        "check_bundle(json.loads(sys.argv[2]))\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    command = [sys.executable, "-c", script, json.dumps(READING), json.dumps(given)]
    assert json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout) == []


def test_workers_end_with_the_process_that_has_them(tmp_path):
    """Also where it is killed: nothing computes on for nobody."""
    program = """
from coordinator.services.compute.workers import TaskLimits, Workers
import sys
pool = Workers(imports=("shared.base.canonical",), places=1, limits=TaskLimits(memory=1 << 28, cpu=60, wall=60.0))
pool.run("stage.processes.workshop:sleep", {"file": sys.argv[1]}, owner="a")
"""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]),
    }
    told = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", program, str(told)], env=env) as server:
        number = int(when(lambda: told.exists() and told.read_text()))
        server.kill()
    when(lambda: not Path(f"/proc/{number}").exists())


# -- questions --------------------------------------------------------------------------------------------------------
@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path / "hub", cpu=20)
    made.publish(cohort_plan())
    made.add("cvd", "alpha", cohort(300, 1))
    made.start()
    yield made
    made.stop()


def test_a_question_is_ended_when_its_analyst_leaves_and_another_has_its_place(desk, monkeypatch):
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
    with desk.raw(desk.admit("ada").token) as line, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(line.call, "Query", QueryRequest(study="cvd", formula="mean(sbp)"), timeout=300)
        [number] = asked_by(desk, 1)
        line.close()
        assert asked.exception(120) is not None
    when(lambda: not Path(f"/proc/{number}").exists())
    when(lambda: desk.running._analysis.service._engine.here._running == [])
    monkeypatch.undo()
    with connect(desk.admit("ada")) as connection:
        assert connection["cvd"].mean("sbp").document["k"] == 1


def test_a_process_killed_while_it_answers_is_a_refusal_and_the_next_question_is_answered(desk, monkeypatch):
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
    with connect(desk.admit()) as connection, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(connection["cvd"].mean, "sbp")
        [number] = asked_by(desk, 1)
        os.kill(number, signal.SIGKILL)
        with pytest.raises(NetworkRefusal, match="computed to the end"):
            asked.result(120)
        monkeypatch.undo()
        assert connection["cvd"].mean("sbp").document["k"] == 1


@pytest.mark.fault("F21")
def test_a_dear_question_makes_no_other_analyst_wait(desk, monkeypatch):
    with connect(desk.admit("ben")) as second:
        second["cvd"].mean("age")  # a worker that has read the table
        monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
        with ThreadPoolExecutor(4) as threads:
            lines = [desk.raw(desk.admit("ada").token) for _ in range(2)]
            tokens = desk.admit("cy").token
            lines.append(desk.raw(tokens))
            dear = [
                threads.submit(line.call, "Query", QueryRequest(study="cvd", formula=f"mean({name})"), timeout=300)
                for line, name in zip(lines, ("sbp", "chol", "hdl"), strict=True)
            ]
            asked_by(desk, 2)
            monkeypatch.setattr(analysis, "ANSWER", "coordinator.services.compute.tasks:answer")
            second["cvd"].correlation("age", "sbp")
            waited_for = [one.done() for one in dear]
            (desk.home / "go").touch()
            for one in dear:
                one.result(300)
            for line in lines:
                line.close()
    assert waited_for == [False] * 3


@pytest.mark.fault("F21")
def test_a_question_beyond_its_limits_is_a_typed_refusal_and_stands_in_the_record(desk, monkeypatch):
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:hoard")
    desk.running._analysis.service._engine.here.limits = TaskLimits(memory=256 * MB, cpu=20, wall=60.0)
    with connect(desk.admit()) as connection:
        mine = connection["cvd"]
        with pytest.raises(EstimateRefusal, match="256 MB of memory and 20 s"):
            mine.mean("sbp")
        assert mine.log().counts["refused"] == 1
        monkeypatch.undo()
        assert mine.mean("sbp").document["k"] == 1


def test_the_server_reads_no_table_itself(desk, monkeypatch):
    """What it answers comes from its workers: its own copy of the store has read nothing."""
    with connect(desk.admit()) as connection:
        mine = connection["cvd"]
        mine.km("Surv(time, cvd) ~ 1", at=5.0)
        mine.dictionary("sbp")
    assert len(desk.running.store._tables._tables) == 0


def test_an_answer_rests_on_the_releases_its_id_was_made_of(desk, monkeypatch):
    """A release that arrives while a question waits is in the next answer, not in this one."""
    monkeypatch.setattr(analysis, "ANSWER", "stage.processes.workshop:slowly")
    with desk.raw(desk.admit().token) as line, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(line.call, "Query", QueryRequest(study="cvd", formula="mean(sbp)"), timeout=60)
        asked_by(desk, 1)
        desk.add("cvd", "beta", cohort(300, 2))
        (desk.home / "go").touch()
        told = asked.result(60).json
    assert b'"k":1' in told
    monkeypatch.undo()
    with connect(desk.admit()) as connection:
        assert connection["cvd"].mean("sbp").document["k"] == 2


def test_a_table_of_its_own_making_reads_back_as_it_was(hub):
    """Missing values, words that no row has, whole numbers: the bounds take nothing from an honest table."""
    table = small_table(300)
    sealed = hub.seal("north", table=table)
    with hub.egress("north") as egress:
        egress.send(sealed.envelope, sealed.path)
    pd.testing.assert_frame_equal(hub.store.table(hub.store.releases()[0]), table)
    assert canonical_json(PLAN.dictionary.widths) == b'{"sex":6}'
    assert sha256_hex(sealed.path.read_bytes()) == sealed.statement.bundle_sha256
