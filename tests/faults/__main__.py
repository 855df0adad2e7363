"""Run every fault and say in one line what came of it: ``python -m tests.faults [--full] [F3 F9 ...]``.

``--full`` repeats each as often as is asked (hours); without it each runs as often as about twenty minutes allow, and
the file says how often that was. With names only these faults run, and the file is left alone.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import record
from tests.faults.catalogue import COUNTS, FAULTS, INVARIANTS

TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Counted:
    """What the tests of the wanted faults have counted so far, in one process or in all."""

    faults: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in (*FAULTS, *INVARIANTS)}
    )
    total: Counter[str] = field(default_factory=Counter)
    passed: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def __iadd__(self, other: Counted) -> Counted:
        for name, counts in other.faults.items():
            self.faults[name].update(counts)
        self.total.update(other.total)
        self.passed |= other.passed
        self.written |= other.written
        self.failed |= other.failed
        return self


class Collector:
    """A pytest plugin that runs every `jobs`-th of the tests that make the wanted faults, and keeps what they counted.

    Args:
        out: where it is kept after each test, so that a run that is stopped has told what it did.
    """

    def __init__(self, wanted: set[str], out: Path, *, full: bool, job: int, jobs: int) -> None:
        self.wanted, self.out, self.full, self.job, self.jobs = wanted, out, full, job, jobs
        self.counted = Counted()
        self.whole: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the wanted faults, and of a test with a short and a long form the one that was asked for."""
        kept = [item for item in items if self.wanted & faults_of(item)]
        other = {_bare(item) for item in kept if bool(item.get_closest_marker("soak")) is self.full}
        kept = [item for item in kept if bool(item.get_closest_marker("soak")) is self.full or _bare(item) not in other]
        items[:] = kept[self.job :: self.jobs]
        for item in items:
            for name in faults_of(item):
                self.counted.faults[name]["planned"] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's counts to its faults and to the total, once it is torn down: then they are complete."""
        named = dict(report.user_properties).get("faults", ())
        if report.failed:
            self.counted.failed.add(report.nodeid)
        if report.when == "call":
            if report.passed:
                self.whole.add(report.nodeid)
            for name in named:
                self.counted.faults[name].update(tests=1, tenths=round(10 * report.duration))
                self.counted.faults[name]["skipped"] += report.skipped
        if report.when == "teardown":
            if named and report.nodeid in self.whole:  # what a test that failed has counted is not to be relied on
                self._add(named, [value for name, value in report.user_properties if name == "tally"])
            self.out.write_bytes(pickle.dumps(self.counted))

    def _add(self, named: Iterable[str], said: Iterable[Mapping[str, Any]]) -> None:
        counts: dict[str, Any] = {name: value for one in said for name, value in one.items()}
        plain = {name: counts[name] for name in COUNTS if name in counts}
        self.counted.total.update(plain)
        self.counted.passed.update(counts.get("failpoints", ()))
        self.counted.written.update(counts.get("failpoints_written", ()))
        for name in named:
            self.counted.faults[name].update({"passed": 1, "cases": 1, **plain})


def faults_of(item: pytest.Item) -> set[str]:
    """The faults that a test makes."""
    return {str(name) for mark in item.iter_markers("fault") for name in mark.args}


def _bare(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def line(total: Counter[str], passed: int, written: int) -> str:
    """The line of a release.

    >>> line(Counter(sites=3, bundles=12), 7, 7)[:35]
    'sites 3, bundles 12, lost 0, duplic'
    """
    names = (
        "sites",
        "bundles",
        "lost",
        "duplicated",
        "offered",
        "accepted",
        "overspends",
        "second_draws",
        "canary_hits",
    )
    words = [f"{name.replace('_', ' ')} {total[name]:,}" for name in names]
    return ", ".join([*words, f"failpoints {passed}/{written}"])


def run(wanted: set[str], *, full: bool, jobs: int) -> Counted:
    """Run them in so many processes; one that is killed has counted what it did until then."""
    counted, options = Counted(), ["-m", "fault", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", str(TESTS)]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        children = {}
        for job in range(jobs):
            out = Path(folder) / f"{job}"
            child = os.fork()
            if not child:
                plugin = Collector(wanted, out, full=full, job=job, jobs=jobs)
                os._exit(int(pytest.main([*options, f"--basetemp={folder}/tests-{job}"], plugins=[plugin])))
            children[child] = out
        for child, out in children.items():
            os.waitpid(child, 0)
            if out.exists():
                counted += pickle.loads(out.read_bytes())  # noqa: S301  (our own, of a moment ago)
    return counted


def results_of(counted: Counted, wanted: set[str]) -> dict[str, Any]:
    """As the file has it."""
    faults = {}
    for name, fault in FAULTS.items():
        if name in wanted:
            counts = counted.faults[name]
            told = {key: counts[key] for key in ("tests", "skipped", *COUNTS) if counts[key]}
            told |= {"not_run": counts["planned"] - counts["tests"]} if counts["planned"] > counts["tests"] else {}
            held = bool(counts["passed"]) and counts["tests"] == counts["passed"] + counts["skipped"]
            held = held and "not_run" not in told
            faults[name] = {"what": fault.what, "asked": fault.asked, "held": held, "seconds": counts["tenths"] / 10}
            faults[name] |= told
    invariants = {
        name: {"what": one.what, "held": one.holds(counted.total)}
        | {count: counted.total[count] for count in (one.tried, *one.zero)}
        for name, one in INVARIANTS.items()
    }
    return {
        "line": line(counted.total, len(counted.passed), len(counted.written)),
        "faults": faults,
        "invariants": invariants,
        "failpoints": {"passed": len(counted.passed), "written": len(counted.written)},
        "failpoints_not_passed": sorted(counted.written - counted.passed),
        "failed": sorted(counted.failed),
    }


def main() -> int:
    """Run them; 0 where each fault was made and every invariant held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="F", help="only these faults")
    parser.add_argument("--full", action="store_true", help="as often as is asked")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    given = parser.parse_args()
    unknown = set(given.faults) - set(FAULTS) - set(INVARIANTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    os.environ["TRIBUTARY_FAULTS"] = "1"
    if given.full:
        os.environ["TRIBUTARY_SOAK"] = "1"
    wanted, started = set(given.faults) or {*FAULTS, *INVARIANTS}, time.monotonic()
    counted = run(wanted, full=given.full, jobs=given.jobs)
    results = results_of(counted, wanted)
    for name, fault in results["faults"].items():
        state = "held" if fault["held"] else "NOT RUN" if "not_run" in fault else "NOT HELD"
        print(f"{name:>4}  {state:8}  {fault.get('cases', 0):>7,} of {fault['asked']:>9,} asked  {fault['what']}")
    for name, one in results["invariants"].items():
        print(f"{name:>4}  {'held' if one['held'] else 'NOT HELD':8}  {one['what']}")
    for kind in ("failpoints_not_passed", "failed"):
        for name in results[kind]:
            print(f"{kind.replace('_', ' ')}: {name}")
    print(results["line"])
    if not given.faults:
        results |= {"full": given.full, "minutes": round((time.monotonic() - started) / 60, 1)}
        record.write("faults", results, seed=0, command="make faults" + (" FULL=1" if given.full else ""))
    held = all(one["held"] for one in results["faults"].values())
    return int(not held or bool(counted.failed) or not (given.faults or _hold(results)))


def _hold(results: Mapping[str, Any]) -> bool:
    return all(one["held"] for one in results["invariants"].values())


if __name__ == "__main__":
    sys.exit(main())
