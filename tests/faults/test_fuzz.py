"""A few of the cases that `faults.fuzz` makes by the million, in every run of the suite, others each day."""

from __future__ import annotations

import datetime as dt
import os

import pytest
from hurry import soak

from faults.fuzz import TARGETS, fuzz


@pytest.mark.fault("F12")
def test_no_parser_of_strangers_bytes_does_anything_but_read_or_refuse(tally):
    seed = int(os.environ.get("TRIBUTARY_PART") or dt.date.today().toordinal())
    print(f"seed {seed}: TRIBUTARY_PART={seed} repeats it")
    cases = soak(40, 40_000, usual=1000)
    wrong = {}
    for name, target in TARGETS.items():
        found = fuzz(target, seed=seed, cases=cases)
        tally(cases=found.cases)
        if found.wrong:
            wrong[name] = found.wrong
    assert wrong == {}
