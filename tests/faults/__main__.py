"""Run every fault and say in one line what came of it: ``python -m tests.faults [--full] [--minutes M] [F3 F9 ...]``.

``--full`` repeats each as often as is asked (hours); without it each runs as often as about twenty minutes allow, and
the file says how often that was. What each test counted is kept (``.faults/``), so that a run that is stopped, by
``--minutes`` or by hand, goes on where it was the next time, as long as no program and no test has changed meanwhile;
the file says what was not run. With names only these faults run, and the file is left alone (``--full`` writes another
one, ``faults_again.json``); what they counted goes into it by the next run without names, which begins nothing more
under ``--minutes 0``.

A fault is held where each of its tests ran and passed; of a full run it is also asked that they made no fewer cases
than `Fault.asked`. What is below is said in any run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.benchmarks import record
from tests.faults.catalogue import COUNTS, FAULTS, INVARIANTS

TESTS = Path(__file__).resolve().parents[1]
KEPT = TESTS.parent / ".faults"
Kept: TypeAlias = dict[str, dict[str, Any]]


@dataclass
class Counted:
    """What the tests of the wanted faults have counted, added up over what each process kept of each test."""

    faults: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in (*FAULTS, *INVARIANTS)}
    )
    total: Counter[str] = field(default_factory=Counter)
    passed: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, kept: Kept, planned: Mapping[str, list[str]]) -> Counted:
        """Add up what is kept of the planned tests (name to the faults that each makes)."""
        made = cls()
        for test, named in planned.items():
            one = kept.get(test)
            for name in named:
                made.faults[name]["planned"] += 1
                if one is not None:
                    made.faults[name].update(tests=1, tenths=one["tenths"], skipped=one["outcome"] == "skipped")
            if one is not None and one["outcome"] == "failed":
                made.failed.add(test)
            if one is not None and one["outcome"] == "passed":  # what a test that failed has counted is not relied on
                counts = one["counts"]
                plain = {name: counts[name] for name in COUNTS if name in counts}
                made.total.update(plain)
                made.passed.update(counts.get("failpoints", ()))
                made.written.update(counts.get("failpoints_written", ()))
                for name in named:
                    made.faults[name].update({"passed": 1, "cases": 1, **plain})
        return made


class Collector:
    """A pytest plugin that runs every `jobs`-th of the tests that make the wanted faults, and keeps what each counted.

    Args:
        out: where each test's counts are appended, once it is torn down: then they are complete.
        done: tests that are kept already, and do not run again.
        until: monotonic seconds after which no further test begins.
    """

    def __init__(
        self, wanted: set[str], out: Path, *, full: bool, job: int, jobs: int, done: Kept, until: float
    ) -> None:
        self.wanted, self.out, self.full, self.job, self.jobs = wanted, out, full, job, jobs
        self.done, self.until = done, until
        self.outcome, self.tenths, self.cpu = "", 0, 0.0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the wanted faults, and of a test with a short and a long form the one that was asked for."""
        kept = [item for item in items if self.wanted & faults_of(item)]
        other = {_bare(item) for item in kept if bool(item.get_closest_marker("soak")) is self.full}
        kept = [item for item in kept if bool(item.get_closest_marker("soak")) is self.full or _bare(item) not in other]
        if self.job == 0:
            planned = {item.nodeid: sorted(faults_of(item)) for item in kept}
            self.out.with_suffix(".planned").write_text(json.dumps(planned))
        self.cpu = _cpu()
        left = [item for item in kept if item.nodeid not in self.done][self.job :: self.jobs]
        items[:] = left if time.monotonic() < self.until else []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test counted."""
        if report.when == "setup":
            self.outcome, self.tenths = "", 0
        if report.failed or report.skipped or (report.when == "call" and not self.outcome):
            self.outcome = report.outcome
        self.tenths += round(10 * report.duration)
        if report.when == "teardown":
            said: list[Mapping[str, Any]] = [value for name, value in report.user_properties if name == "tally"]
            line = {
                "test": report.nodeid,
                "outcome": self.outcome,
                "tenths": self.tenths,
                "cpu_tenths": round(10 * (_cpu() - self.cpu)),
                "counts": {name: value for one in said for name, value in one.items()},
            }
            with self.out.open("a") as out:
                out.write(json.dumps(line) + "\n")
            self.cpu = _cpu()

    def pytest_runtest_logfinish(self) -> None:
        """Begin no further test once the time is over."""
        if time.monotonic() > self.until:
            pytest.exit("the time is over", returncode=0)


def _cpu() -> float:
    """Seconds of computing of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


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


def state_of_code(*, benchmarks: bool = False) -> str:
    """A digest of every program and test here: what was counted under another one is not counted again."""
    whole = hashlib.sha256()
    for folder in ("shared", "site_agent", "coordinator", "tests"):
        for path in sorted((TESTS.parent / folder).rglob("*.py")):
            if benchmarks or "benchmarks" not in path.parts:
                whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


def kept_in(out: Path) -> Kept:
    """The last line of each test in a file of `Collector`; one that failed is to run again."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {one["test"]: one for one in lines}


def run(wanted: set[str], *, full: bool, jobs: int, minutes: float) -> tuple[Counted, Kept]:
    """Run them in so many processes; what is kept of each test, added up."""
    options = ["-m", "fault", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", str(TESTS)]
    KEPT.mkdir(exist_ok=True)
    out = KEPT / f"{'full' if full else 'usual'}-{state_of_code()}.jsonl"
    done = {test: one for test, one in kept_in(out).items() if one["outcome"] != "failed"}
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        children = []
        for job in range(jobs):
            child = os.fork()
            if not child:
                plugin = Collector(wanted, out, full=full, job=job, jobs=jobs, done=done, until=until)
                code = int(pytest.main([*options, f"--basetemp={folder}/tests-{job}"], plugins=[plugin]))
                os._exit(code)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        planned = json.loads(out.with_suffix(".planned").read_text())
    kept = kept_in(out)
    return Counted.of(kept, planned), {test: kept[test] for test in planned if test in kept}


def results_of(counted: Counted, wanted: set[str], *, full: bool) -> dict[str, Any]:
    """As the file has it.

    >>> one = Counted.of({"t": {"outcome": "passed", "tenths": 9, "counts": {"cases": 19}}}, {"t": ["F23"]})
    >>> for full in (True, False):
    ...     fault = results_of(one, {"F23"}, full=full)["faults"]["F23"]
    ...     print(fault["held"], fault["below"])
    False 1
    True 1
    """
    faults = {}
    for name, fault in FAULTS.items():
        if name in wanted:
            counts = counted.faults[name]
            told = {key: counts[key] for key in ("tests", "skipped", *COUNTS) if counts[key]}
            told |= {"not_run": counts["planned"] - counts["tests"]} if counts["planned"] > counts["tests"] else {}
            held = bool(counts["passed"]) and counts["tests"] == counts["passed"] + counts["skipped"]
            told |= {"below": fault.asked - counts["cases"]} if counts["cases"] < fault.asked else {}
            held = held and "not_run" not in told and not (full and "below" in told)
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
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no further test after so many")
    given = parser.parse_args()
    unknown = set(given.faults) - set(FAULTS) - set(INVARIANTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    os.environ["TRIBUTARY_FAULTS"] = "1"
    if given.full:
        os.environ["TRIBUTARY_SOAK"] = "1"
    wanted = set(given.faults) or {*FAULTS, *INVARIANTS}
    counted, kept = run(wanted, full=given.full, jobs=given.jobs, minutes=given.minutes)
    results = results_of(counted, wanted, full=given.full)
    for name, fault in results["faults"].items():
        state = "held" if fault["held"] else "NOT RUN" if "not_run" in fault else "NOT HELD"
        below = f"  [{fault['below']:,} below what is asked]" if "below" in fault else ""
        print(
            f"{name:>4}  {state:8}  {fault.get('cases', 0):>7,} of {fault['asked']:>9,} asked  {fault['what']}{below}"
        )
    if given.faults:  # the others had no chance to fail
        results["invariants"] = {name: one for name, one in results["invariants"].items() if name in wanted}
    for name, one in results["invariants"].items():
        print(f"{name:>4}  {'held' if one['held'] else 'NOT HELD':8}  {one['what']}")
    for kind in ("failpoints_not_passed", "failed"):
        for name in results[kind]:
            print(f"{kind.replace('_', ' ')}: {name}")
    print(results["line"])
    if given.full or not given.faults:
        results |= {
            "full": given.full,
            "minutes": round(sum(one["tenths"] for one in kept.values()) / 600, 1),
            "cpu_minutes": round(sum(one["cpu_tenths"] for one in kept.values()) / 600, 1),
            "not_run": sum(fault.get("not_run", 0) for fault in results["faults"].values()),
            "below": [name for name, fault in results["faults"].items() if "below" in fault],
        }
        named = f"python -m tests.faults {' '.join(given.faults)} --full"
        command = named if given.faults else "make faults" + (" FULL=1" if given.full else "")
        record.write("faults_again" if given.faults else "faults", results, seed=0, command=command)
    held = all(one["held"] for one in results["faults"].values())
    return int(not held or bool(counted.failed) or not (given.faults or _hold(results)))


def _hold(results: Mapping[str, Any]) -> bool:
    return all(one["held"] for one in results["invariants"].values())


if __name__ == "__main__":
    sys.exit(main())
