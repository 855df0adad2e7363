"""Run every benchmark, every long count or every load as one command: ``python -m tests.benchmarks.whole bench``.

What makes a committed figure is the command that its file names; tests with long counts are steps of ``soak``, file by
file. Each step is a process of its own. What it took is kept in ``results/whole_<list>.json`` with a digest of the code
that it ran: a run that is stopped, by ``--minutes`` or by hand, goes on with the steps that this code has not run, and
with those first that were never run. Where a step fails the others go on, and the exit status is 1.

Side by side (``--jobs 2``) the lists end sooner, and the seconds that benchmarks measure are longer: for long counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.benchmarks import record, worlds
from tests.faults.__main__ import state_of_code

ROOT = Path(__file__).resolve().parents[2]
SOAK = re.compile(r"front|coverage|interval_coverage|honest|honest_\w+|secure_sum|secure_sum_\w+")
LOAD = re.compile(r"newcomer|load|analysis_load|many_releases|idle_agent|slow_line")
"""Benchmarks of these two lists; all others are of ``bench``."""
NEEDED = {
    "federated": "flwr",
    "flower_runtime": "flwr",
    "grand_speed": "igraph",
    "page_times": "chromium",
    "tables_mst": "jax",
    "transport_ott": "ott",
    "estimand_speed": "Rscript",
    "load": "initdb",
}
"""A package or program without which one is left out, which is said."""
HALF = {"zoo": "tuning", "zoo_moments": "tuning", "equal_rows": "reporting"}
"""The half of the worlds that one runs where its command names none. Without a table of them it would write fewer."""
ENDING = 30.0
"""Seconds that a step has to stop what it has started, before its group of processes is killed."""
LONG_TESTS = ("-m", "soak or sampled", "-p", "no:cacheprovider")
FUZZ = "tests.faults.fuzz --cases 16000"


@dataclass(frozen=True)
class Step:
    """One command of a list.

    Args:
        name: as it is shown and kept. words: what Python is given. soak: true where tests take their long counts.
    """

    name: str
    words: tuple[str, ...]
    soak: bool = False


def steps(which: str) -> list[Step]:
    """The steps of a list.

    >>> "load 200 --waves 12 --cut .05 --name load_waves" in [step.name for step in steps("load")]
    True
    """
    named = [one for one in recorded() if _list_of(one) == which]
    benchmarks = [Step(one, ("-m", f"tests.benchmarks.{one.split()[0]}", *shlex.split(one)[1:])) for one in named]
    if which != "soak":
        return benchmarks
    files = [Step(name, ("-m", "pytest", *LONG_TESTS, name), soak=True) for name in _files_of_long_tests()]
    return [*files, Step(FUZZ, ("-m", *shlex.split(FUZZ))), *benchmarks]


def recorded() -> list[str]:
    """The commands that made the committed figures, without the folders that they went on in."""
    given = [
        json.loads(path.read_text(encoding="utf-8"))["command"] for path in sorted(record.COMMITTED.glob("*.json"))
    ]
    found = [re.fullmatch(r"python -m tests\.benchmarks\.(.*)", one) for one in given]
    return [re.sub(r" --folder \S+", "", one[1]) for one in found if one]


def _list_of(command: str) -> str:
    name = command.split()[0]
    return "soak" if SOAK.fullmatch(name) else "load" if LOAD.fullmatch(name) else "bench"


def _files_of_long_tests() -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", *LONG_TESTS, "tests"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=_environment(True))
    return sorted({line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line})


def lacks(step: Step) -> str:
    """The package, program or folder of tables that a step needs and that is not here; empty where it can run."""
    needed = NEEDED.get(step.name.split()[0], "")
    if needed and not shutil.which(needed) and not find_spec(needed):
        return needed
    return ", ".join(dict.fromkeys(filter(None, map(worlds.lacking, worlds_of(step)))))


def worlds_of(step: Step) -> tuple[str, ...]:
    """Worlds whose tables a step reads.

    >>> worlds_of(Step("zoo --worlds pay,heart --draws 3", ()))
    ('pay', 'heart')
    """
    from tests.benchmarks.worlds import unseen
    from tests.benchmarks.zoo_heart import WORLD

    name, *words = shlex.split(step.name)
    usual = {"zoo_heart": (WORLD,), "zoo_unseen": tuple(unseen.NAMES)}
    if name not in (*HALF, *usual):
        return ()
    parser = argparse.ArgumentParser()
    parser.add_argument("--half", default=HALF.get(name))
    parser.add_argument("--worlds", default="")
    given, _ = parser.parse_known_args(words)
    if given.worlds:
        return tuple(given.worlds.split(","))
    return usual.get(name) or (worlds.TUNING if given.half == "tuning" else worlds.REPORTING)


def _environment(soak: bool) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths, **({"TRIBUTARY_SOAK": "1"} if soak else {})}


@dataclass
class Whole:
    """What is kept of a list's steps, and those that run now.

    Args:
        which: the list. kept: step to what it took. code: a digest of what runs now.
        running: process id to the step, its process, when it began, and the code that it runs.
    """

    which: str
    kept: dict[str, dict[str, Any]]
    code: str
    running: dict[int, tuple[Step, subprocess.Popen[bytes], float, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, which: str) -> Whole:
        """As the last run left it."""
        path = record.RESULTS / f"whole_{which}.json"
        kept = json.loads(path.read_text())["results"]["steps"] if path.exists() else {}
        return cls(which, kept, state_of_code(benchmarks=True))

    def left(self, wanted: list[Step]) -> list[Step]:
        """Those that this code has not run without a failure, those that were never run first."""
        mine = [one for one in wanted if (self.kept.get(one.name) or {}).get("code") != self.code]
        failed = [one for one in wanted if one not in mine and self.kept[one.name]["status"]]
        return sorted(mine, key=lambda one: one.name in self.kept) + failed

    def begin(self, step: Step) -> None:
        """Start it, in a group of processes of its own."""
        print(f"== {step.name}", flush=True)
        begun, code = time.monotonic(), state_of_code(benchmarks=True)
        # Nothing that takes time before it is noted: whoever stops the runner meanwhile would leave it running.
        process = subprocess.Popen(
            [sys.executable, *step.words],
            cwd=ROOT,
            env=_environment(step.soak),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.running[process.pid] = (step, process, begun, code)

    def end(self, wanted: list[Step]) -> None:
        """Wait for the next that ends, and keep what it took."""
        # One at a time: who is waited for and not looked at is lost.
        while not (found := next((one for pid in self.running if (one := os.wait4(pid, os.WNOHANG))[0]), None)):
            time.sleep(0.1)
        pid, status, used = found
        step, process, begun, code = self.running.pop(pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.kept[step.name] = {
            "code": code,
            "cpu_s": round(used.ru_utime + used.ru_stime),
            "status": process.returncode,
            "wall_s": round(time.monotonic() - begun),
        }
        self.write(wanted)

    def write(self, wanted: list[Step]) -> None:
        """Into the list's file."""
        record.write(f"whole_{self.which}", self.results(wanted), seed=0, command=f"make {self.which}")

    def results(self, wanted: list[Step]) -> Mapping[str, Any]:
        """What each step took when it ran last, and all of them together."""
        kept = {one.name: self.kept[one.name] for one in wanted if one.name in self.kept}
        return {
            "steps": kept,
            "asked": len(wanted),
            "ran": len(kept),
            "of_one_code": sum(one["code"] == self.code for one in kept.values()),
            "failed": sorted(name for name, one in kept.items() if one["status"]),
            "hours": round(sum(one["wall_s"] for one in kept.values()) / 3600, 2),
            "cpu_hours": round(sum(one["cpu_s"] for one in kept.values()) / 3600, 2),
        }

    def run(self, wanted: list[Step], jobs: int, minutes: float) -> None:
        """Run what is left, so many at once, and begin nothing more after so many minutes."""
        queue, until = self.left([one for one in wanted if not lacks(one)]), time.monotonic() + 60 * minutes
        try:
            while (queue and time.monotonic() < until) or self.running:
                while queue and len(self.running) < jobs and time.monotonic() < until:
                    self.begin(queue.pop(0))
                if self.running:
                    self.end(wanted)
        finally:
            for pid in self.running:
                with suppress(OSError):
                    # What it has started in other groups, a database for one, only it can stop. Not by `terminate`,
                    # which waits for one that has just ended: as long as nobody does, nobody else has its number.
                    os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + ENDING
            for pid, (_, process, *_) in self.running.items():
                with suppress(OSError):  # whatever became of it, the next is ended too
                    _await_end(pid, until)
                    os.killpg(pid, signal.SIGKILL)
                process.wait()


def _await_end(pid: int, until: float) -> None:
    """Return when a child has ended or the time is over; it is looked at and not waited for."""
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) and time.monotonic() < until:
        time.sleep(0.05)


def main() -> int:
    """Run them; 1 where one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.whole", description=__doc__)
    parser.add_argument("which", choices=("bench", "soak", "load"))
    parser.add_argument("--jobs", type=int, default=1, help="steps side by side")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no further step after so many")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    whole, wanted = Whole.read(given.which), steps(given.which)
    for step in filter(lacks, wanted):
        print(f"left out: {step.name} needs {lacks(step)}")
    whole.run(wanted, given.jobs, given.minutes)
    found = whole.results(wanted)
    for name in found["failed"]:
        print(f"failed: {name}")
    print(f"{found['of_one_code']} of {found['asked']} steps have run with this code; all took {found['hours']} hours")
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
