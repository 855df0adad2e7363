"""What a newcomer waits for: wall and CPU of the demos of `tributary`, and of each verb.

Run: ``python -m tests.benchmarks.demo_time``, on an idle machine; the load before stands there. Each demo is the
installed program, whole, in a process of its own; its CPU seconds are those of all its processes, the coordinator's
server and the warm process among them. Each runs `RUNS` times: told is the run in the middle, and how long the fastest
and the slowest took.

With ``cvd cohorts --name demo_time_cohorts`` it is that of the cohorts, as many releases and a secure sum, for which no
time was asked: they run in turn, and what counts is how many times as long the second takes. Beside the seconds stands
what a guess at a passphrase takes, by which machines, and one machine's hours, differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import record
from tests.benchmarks.startup import guess
from tests.stage.processes.stopping import started

RUNS = record.sized(3, 1)
BARS: dict[str, float] = record.sized({"cvd": 30.0, "first": 10.0}, {"first": 10.0})
"""Seconds of the wall clock, on two idle cores."""


def verb(module: str, argv: list[str]) -> str:
    """The program and the words of a command line that say what is done.

    >>> verb("site_agent.cli", ["plan", "fetch", "cvd", "--json"])
    'site-agent plan fetch'
    >>> verb("coordinator.cli", ["--home", "/x", "invite", "north", "--out", "y"])
    'coordinator invite'
    """
    words = argv[2:] if argv[0] == "--home" else argv
    said = words[: 2 if words[0] in ("plan", "data", "release") else 1]
    return " ".join([module.partition(".")[0].replace("_", "-"), *said])


def one(study: str, out: Path) -> None:
    """Run the demo in this process, and write what its commands took; never returns."""
    from coordinator import demo
    from coordinator.demo.warm import EndedCommand, Warm

    took: dict[str, list[float]] = defaultdict(list)

    class Counted(Warm):
        def run(self, module: str, argv: Any, env: Any, *, at: str = "") -> EndedCommand:
            ended = super().run(module, argv, env, at=at)
            took[verb(module, list(argv))].append(ended.cpu or 0.0)
            return ended

    demo.launcher = Counted
    try:
        demo.main(["demo", "--study", study, "--out", str(out)])
    finally:
        found = {name: {"commands": len(cpu), "cpu_s": round(sum(cpu), 2)} for name, cpu in sorted(took.items())}
        (out / "verbs.json").write_text(json.dumps(found))


def measured(study: str) -> dict[str, Any]:
    """Wall and CPU seconds of one demo."""
    with tempfile.TemporaryDirectory() as name:
        out, load, begun = Path(name) / "out", os.getloadavg()[0], time.monotonic()
        argv = [sys.executable, "-m", "tests.benchmarks.demo_time", "one", study, str(out)]
        with started(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as child:
            text = child.stdout.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        if status:
            raise SystemExit(text)
        # Seconds after which a line of progress was told: where the time goes.
        steps = [(float(at), int(done), int(of)) for at, done, of in re.findall(r"^ *(\d+) s +(\d+)/(\d+)", text, re.M)]
        verbs = json.loads((out / "verbs.json").read_text())
        return {
            "wall_s": round(wall, 1),
            "cpu_s": round(used.ru_utime + used.ru_stime, 1),
            "of_it_kernel_s": round(used.ru_stime, 1),
            "load_before": round(load, 2),
            "last_step_s": steps[-1][0],
            **({"bar_s": BARS[study], "within": wall <= BARS[study]} if study in BARS else {}),
            "commands": sum(one["commands"] for one in verbs.values()),
            "verbs": verbs,
        }


def middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The run in the middle by the wall clock, and what the fastest and the slowest took."""
    runs = sorted(found, key=lambda one: float(one["wall_s"]))
    ends = {"fastest_s": runs[0]["wall_s"], "slowest_s": runs[-1]["wall_s"], "runs": RUNS}
    return runs[RUNS // 2] | ends


def main() -> None:
    """Measure and write."""
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], Path(sys.argv[3]))
        return
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("studies", nargs="*", default=list(BARS))
    asked.add_argument("--name", default="demo_time")
    given = asked.parse_args()
    turns = [{study: measured(study) for study in given.studies} for _ in range(RUNS)]
    results: dict[str, Any] = {study: middle([turn[study] for turn in turns]) for study in given.studies}
    for study, found in results.items():
        print(study, {name: value for name, value in found.items() if name != "verbs"})
        for name, took in sorted(found["verbs"].items(), key=lambda item: -item[1]["cpu_s"]):
            print(f"  {name:28s} {took['commands']:3d} {took['cpu_s']:7.2f} s")
    first, *others = given.studies
    for study in others:
        over = {kind: [turn[study][kind] / turn[first][kind] for turn in turns] for kind in ("wall_s", "cpu_s")}
        results[study]["times_the_first"] = {kind: round(median(of), 2) for kind, of in over.items()}
        print(study, "over", first, results[study]["times_the_first"])
    record.write(given.name, results | {"guess_cpu_s": round(guess(), 3)}, seed=1)


if __name__ == "__main__":
    main()
