"""What `make test` repeats less often than `make soak`, or CI, so that nothing goes untried for long.

Kills, races and sweeps have many alike cases. The quick suite runs every k-th of them and another part each day; the
part of today is printed with a failure, and ``TRIBUTARY_PART`` repeats it anywhere. Of a parametrised test whose cases
are alike (seeds, places, hospitals of one kind), ``@pytest.mark.sampled(every=k)`` says so: where k shares no
factor with how many values a parameter has, every value has its turn each day, else in k days.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TURNS = 10
LONG = Path(__file__).with_name("long_tests.json")
"""The tests that take longest, all their cases together. Every run of CI tries them all; where somebody waits (`make
test` without ``CI``) they take turns, a part each day. Written by ``TRIBUTARY_LONG=1 CI=true make test``."""
SOON = 7.0


def noticed_edits() -> list[tuple[set[str], float]]:
    """Of each edit of `tests.mutations` the tests that noticed it when that was recorded, and in how many seconds."""
    file = LONG.parent / "benchmarks" / "results" / "mutations.json"
    rows = json.loads(file.read_text())["results"]["by"].values()
    return [({name.split("[")[0] for name in row["by"]}, row["seconds"]) for row in rows]


def taking_turns() -> set[str]:
    """The longest tests, but for those that alone are known to notice an edit, and noticed it within `SOON` seconds.

    These are tried every day: else half of the list's edits could stay for days.
    """
    long = {*json.loads(LONG.read_text())}
    return long.difference(*(names for names, seconds in noticed_edits() if names <= long and seconds <= SOON))


def soak(quick: int, full: int, usual: int = 0) -> int:
    """How often: `quick`, or `full` under TRIBUTARY_SOAK=1, or whatever number above 1 it holds.

    Args:
        usual: how often in ``make faults``; `quick` where it is left out.
    """
    asked = int(os.environ.get("TRIBUTARY_SOAK") or 0)
    if asked == 0 and os.environ.get("TRIBUTARY_FAULTS"):
        return usual or quick
    return quick if asked == 0 else full if asked == 1 else asked


def part_number() -> int:
    """Of today, or of the day that is to be repeated."""
    return int(os.environ.get("TRIBUTARY_PART") or dt.date.today().toordinal())


def seed_of_today(full: int) -> int:
    """Where chance chooses what is tried: another seed each day; `full` in the soak and in ``make faults``."""
    if os.environ.get("TRIBUTARY_SOAK") or os.environ.get("TRIBUTARY_FAULTS"):
        return full
    print(f"seed {part_number()}: TRIBUTARY_PART={part_number()} repeats it")
    return part_number()


def part_of_today(items: Sequence[T], every: int, *, say: bool = True) -> list[T]:
    """Every `every`-th item, from a start that moves by one each day; all of them in the soak and in ``make faults``.

    After as many days as there are parts it moves by one more: who runs on one day of the week tries all, too.

    >>> os.environ["TRIBUTARY_PART"] = "1"
    >>> part_of_today("abcdefg", 3, say=False)
    ['b', 'e']
    """
    if os.environ.get("TRIBUTARY_SOAK") or os.environ.get("TRIBUTARY_FAULTS"):
        return list(items)
    day = part_number()
    number = (day + day // every) % every
    if say:
        print(f"part {number} of {every}: TRIBUTARY_PART={number} repeats it")
    return list(items)[number::every]
