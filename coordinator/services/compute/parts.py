"""A question of many rows in parts: several workers ask its sites, and one puts together what they answered.

A question goes to one worker, which asks its sites in turn: of 500 sites with 200,000 rows each that takes minutes,
however many workers there are. Where each site answers for itself, as released rows do, its sites are dealt out to as
many workers as whoever asks may hold at once. Each leaves its sites' estimates in the store
(`coordinator.services.compute.kept_estimates`), and the question, which is then asked as ever, finds them there. So an
answer is the same to the last bit; and a part that is ended, refused or has found no place leaves its sites to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shared.mechanisms.base import Answering

if TYPE_CHECKING:
    from coordinator.answers.release_selection import ReleaseSelection
    from shared.estimands.questions import Estimand
    from shared.plans.plan import StudyPlan

__all__ = ["PART", "dealt", "work_out"]

PART = 1.0
"""Seconds of computing from which on a further worker is given a part."""
SITE, ROW = 3e-3, 5e-7
"""Seconds of computing that a site takes, and a row of it, about: a Cox model (tests/benchmarks/results/scale.json)."""
_KEPT = 1000  # bytes that a site's estimates take in the store, at most nearly always


def dealt(
    plan: StudyPlan, question: Estimand, held: ReleaseSelection, *, workers: int, room: int
) -> list[tuple[str, ...]]:
    """The sites of each part, about alike in rows; none where a question is better asked whole.

    Args:
        workers: number of workers that may compute it at once.
        room: bytes of estimates that the store may keep.
    """
    whole = isinstance(plan.release, Answering) or question.unsettled or room < 8 * _KEPT * len(held.parts)
    takes = {site: SITE + ROW * sum(one.receipt.n for one in releases) for site, releases in held.parts.items()}
    count = min(workers, int(sum(takes.values()) / PART), len(takes))
    if whole or count < 2:
        return []
    return deal(takes, count)


def deal(takes: Mapping[str, float], count: int) -> list[tuple[str, ...]]:
    """Sites in so many parts, the longest first, each to the part that has least.

    >>> deal({"a": 5.0, "b": 3.0, "c": 2.0, "d": 1.0}, 2)
    [('a', 'd'), ('b', 'c')]
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    load = [0.0] * count
    for site in sorted(takes, key=lambda one: (-takes[one], one)):
        least = load.index(min(load))
        parts[least].append(site)
        load[least] += takes[site]
    return [tuple(part) for part in parts]


def work_out(given: Mapping[str, Any]) -> None:
    """Work out what some of a question's sites answer, and leave it in the store: a worker's task.

    Args:
        given: of `coordinator.services.compute.tasks.answer`, and ``sites``.
    """
    from dataclasses import replace

    from coordinator.answers.site_answers import answers_of_sites
    from coordinator.services.compute.tasks import held_of, opened_of
    from shared.errors import Refusal
    from shared.estimands.questions import parse_estimand

    store, cache, _ = opened_of(given)
    held, sites = held_of(store, given["study"], given["held"]), given["sites"]
    parts, behind = ({site: named[site] for site in sites} for named in (held.parts, held.behind))
    with suppress(Refusal):  # the question says it
        question = parse_estimand(given["estimand"])
        answers_of_sites(store, replace(held, parts=parts, behind=behind), question, cache)
