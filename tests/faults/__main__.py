"""Run every fault and say in one line what came of it: ``python -m tests.faults [--full] [F3 F9 ...]``.

``--full`` repeats each as often as is asked (hours); without it each runs as often as about twenty minutes allow, and
the file says how often that was. With names only these faults run, and the file is left alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import record
from tests.faults.catalogue import COUNTS, FAULTS, INVARIANTS

TESTS = Path(__file__).resolve().parents[1]


class Collected:
    """A pytest plugin that keeps what the tests of the wanted faults counted."""

    def __init__(self, wanted: set[str], *, full: bool) -> None:
        self.wanted, self.full = wanted, full
        self.faults: dict[str, Counter[str]] = {name: Counter() for name in (*FAULTS, *INVARIANTS)}
        self.total: Counter[str] = Counter()
        self.passed: set[str] = set()
        self.written: set[str] = set()
        self.failed: list[str] = []
        self.whole: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the wanted faults, and of a test with a short and a long form the one that was asked for."""
        kept = [item for item in items if self.wanted & faults_of(item)]
        other = {_bare(item) for item in kept if bool(item.get_closest_marker("soak")) is self.full}
        items[:] = [
            item for item in kept if bool(item.get_closest_marker("soak")) is self.full or _bare(item) not in other
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's counts to its faults and to the total."""
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when != "teardown":
            if report.when == "call":
                if report.passed:
                    self.whole.add(report.nodeid)
                for name in dict(report.user_properties).get("faults", ()):
                    self.faults[name].update(tests=1, seconds_tenths=round(10 * report.duration))
                    self.faults[name]["failed"] += report.failed
                    self.faults[name]["skipped"] += report.skipped
            return
        said = [value for name, value in report.user_properties if name == "tally"]
        named = dict(report.user_properties).get("faults", ())
        counts: dict[str, Any] = {name: value for one in said for name, value in one.items()}
        if named and report.nodeid in self.whole:  # what a test that failed has counted is not to be relied on
            plain = {name: counts[name] for name in COUNTS if name in counts}
            self.total.update(plain)
            self.passed.update(counts.get("failpoints", ()))
            self.written.update(counts.get("failpoints_written", ()))
            for name in named:
                self.faults[name].update({"cases": 1, **plain})


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


def main() -> int:
    """Run them; 0 where each fault was made and every invariant held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="F", help="only these faults")
    parser.add_argument("--full", action="store_true", help="as often as is asked")
    given = parser.parse_args()
    unknown = set(given.faults) - set(FAULTS) - set(INVARIANTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    os.environ["TRIBUTARY_FAULTS"] = "1"
    if given.full:
        os.environ["TRIBUTARY_SOAK"] = "1"
    collected = Collected(set(given.faults) or {*FAULTS, *INVARIANTS}, full=given.full)
    started = time.monotonic()
    options = ["-m", "fault", "-p", "no:cacheprovider", "-p", "no:xdist", str(TESTS)]
    code = int(pytest.main(options, plugins=[collected]))
    results = {
        "line": line(collected.total, len(collected.passed), len(collected.written)),
        "full": given.full,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "faults": {
            name: {
                "what": fault.what,
                "asked": fault.asked,
                "held": bool(counts["tests"] > counts["skipped"]) and not counts["failed"],
                "seconds": counts.pop("seconds_tenths", 0) / 10,
                **{key: value for key, value in sorted(counts.items()) if value},
            }
            for name, fault in FAULTS.items()
            if name in collected.wanted
            for counts in [collected.faults[name]]
        },
        "invariants": {
            name: {
                "what": one.what,
                "held": one.holds(collected.total),
                **{k: collected.total[k] for k in (one.tried, *one.zero)},
            }
            for name, one in INVARIANTS.items()
        },
        "failpoints": {"passed": len(collected.passed), "written": len(collected.written)},
        "failed": sorted(set(collected.failed)),
    }
    for name, fault in results["faults"].items():
        state = "held" if fault["held"] else "NOT HELD"
        print(f"{name:>4}  {state:8}  {fault.get('cases', 0):>7,} of {fault['asked']:>9,} asked  {fault['what']}")
    for name, one in results["invariants"].items():
        print(f"{name:>4}  {'held' if one['held'] else 'NOT HELD':8}  {one['what']}")
    for name in sorted(collected.written - collected.passed):
        print(f"failpoint never passed: {name}")
    print(results["line"])
    if not given.faults:
        record.write("faults", results, seed=0, command="make faults" + (" FULL=1" if given.full else ""))
    whole = all(one["held"] for one in (*results["faults"].values(), *results["invariants"].values()))
    return code or int(not (whole or given.faults))


if __name__ == "__main__":
    sys.exit(main())
