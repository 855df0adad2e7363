"""How long somebody waits for `make test`: ``python -m tests.benchmarks.suite_time``.

Wall and CPU seconds of the whole command, today's part of the tests that take turns (tests/conftest.py), and the load
of the machine before it began: it says something of two idle cores alone.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import time
from pathlib import Path

from tests.benchmarks import record
from tests.hurry import noticed_edits, part_number, taking_turns

ROOT = Path(__file__).resolve().parents[2]


def power() -> dict[str, int]:
    """How many edits `tests.mutations` has, and how many were noticed first by a test that is tried every day."""
    noticed, turns = noticed_edits(), taking_turns()
    return {"edits": len(noticed), "noticed_each_day": sum(not names <= turns for names, _ in noticed)}


def main() -> None:
    """Run it, and write the JSON."""
    before, begun = os.getloadavg()[0], time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "TRIBUTARY_SOAK")}
    ran = subprocess.run(["make", "test"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    wall = time.monotonic() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    counted = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)\b", ran.stdout[-500:])}
    print(ran.stdout[-500:], ran.stderr[-500:])
    if ran.returncode or not counted.get("passed"):
        raise SystemExit("the suite did not pass: nothing is written")
    found = {"cpu_s": round(used.ru_utime + used.ru_stime), "load_average_before": before, "wall_s": round(wall)}
    record.write("suite_time", found | counted | power() | {"part": part_number()}, seed=0)


if __name__ == "__main__":
    main()
