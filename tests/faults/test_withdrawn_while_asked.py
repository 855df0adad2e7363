"""Releases are withdrawn while analysts ask: the next answer is without them, and what rested on them is stale."""

from __future__ import annotations

import threading
import time

import pytest
from hurry import soak
from stage.coordinator_side.analysis import own
from stage.coordinator_side.delivered import cohort, take_back

from coordinator.analyst.remote import connect
from shared.errors import Refusal

__all__ = ["own"]  # the fixture
QUESTION = ("", "mean(sbp)")
TURNS = 10
"""Withdrawals under one account: each takes five requests, of the sixty that an account may make in a minute."""


@pytest.mark.fault("F24")
def test_no_answer_that_begins_after_a_withdrawal_rests_on_what_was_withdrawn(own, tally):
    turns = soak(1, 100, usual=10)
    for seed, site in enumerate(("alpha", "beta")):
        own.add("cvd", site, cohort(120, seed))
    own.start()
    over, answers, refused = threading.Event(), [], []

    def ask(name: str) -> None:
        with connect(own.admit(name)) as connection:
            study = connection["cvd"]
            while not over.is_set():
                begun = time.monotonic()
                try:
                    answer = study.query(*QUESTION)
                    rows = [row["site"] for row in answer.document["estimates"] if row["yi"] is not None]
                    answers.append((begun, answer.document["k"], set(rows)))
                except Refusal as refusal:
                    refused.append(refusal.code)

    askers = [threading.Thread(target=ask, args=(name,)) for name in ("ben", "cleo")]
    withdrawn, slowest = {}, 0.0
    for asker in askers:
        asker.start()
    try:
        for first in range(0, turns, TURNS):
            with connect(own.admit(f"ada{first}")) as connection:
                study = connection["cvd"]
                for turn in range(first, min(turns, first + TURNS)):
                    site = f"site{turn}"
                    own.add("cvd", site, cohort(120, 10 + turn))
                    answer = study.query(*QUESTION)
                    assert answer.document["k"] == 3
                    digest = take_back(own.store, site, own.keys[site])
                    begun = withdrawn[site] = time.monotonic()
                    found = answer.explain()
                    slowest = max(slowest, time.monotonic() - begun)
                    assert found.stale == (f"{site} has withdrawn its release of wave 1",)
                    assert study.query(*QUESTION).document["k"] == 2
                    assert digest not in {release.bundle_sha256 for release in own.store.releases("cvd")}
    finally:
        over.set()
        for asker in askers:
            asker.join()
    late = [site for begun, _, sites in answers for site in sites if withdrawn.get(site, begun) < begun]
    assert late == []
    assert all(k == len(sites) in (2, 3) for _, k, sites in answers), "never half of it"
    assert set(refused) <= {"E_RATE"}
    assert answers
    print(f"{len(answers)} answers meanwhile, stale after {slowest:.2f} s at most")
    tally(cases=turns, sites=turns + 2, bundles=turns + 2, reads=len(answers), half_reads=0)
