"""A secure sum that was opened, through every message of its protocol."""

from __future__ import annotations

from stage.mechanisms.ring import Ring
from stage.mechanisms.sums import Parts

from shared.mechanisms.secure_sum.influences import level_of
from shared.mechanisms.secure_sum.messages import Lists
from shared.mechanisms.secure_sum.opened import OpenedSum, SumPart
from shared.mechanisms.secure_sum.sent_look import SentLook


def part_of(sigma, events=120.0, charges=100.0, **changed):
    """A survivor whose look is at the level that it told, with noise of that sigma."""
    given = {
        "start": 0.1,
        "level": level_of(events, charges, sigma),
        "weight": 0.4,
        "cut": 3.0,
        "centre": (60.0, 140.0),
        "scale": (10.0, 20.0),
        "effects": ((-1.0, 0.3, 0.2), (-2.0, 0.0, 0.0)),
        "along": (0.1, 0.5),
        "means": (0.2, 0.1),
        "edges": (0.0, 5.0, 20.0),
        "cumulative": (0.0, 0.1, 0.5),
        "base": 0.0,
    }
    return SumPart(look=SentLook(**(given | changed)), events=events, charges=charges)


def opened_over(plan, tables, keys, noise):
    """Pilots of these records, in the plan's order, the parts that each site added, and what was opened."""
    pilots = {
        at: (plan.release.draw(plan, plan.dictionary.check(table), noise), len(table))
        for at, table in enumerate(tables)
    }
    parts = Parts.of(plan, tables, pilots, noise)
    ring = Ring(plan.release.terms(plan), keys=keys, lost={})
    ring.values = dict(enumerate(parts.values))
    opened = parts.opened(plan, ring.until("opening").coordinator, {at: f"{at:064x}" for at in pilots})
    return pilots, parts, opened


def opened_by(ring, sigma):
    """Through every message of the protocol."""
    alive = ring.until("opening").coordinator.survivors().sites
    return OpenedSum(
        terms=ring.terms,
        pilots={k: f"{k:064x}" for k in range(len(ring.terms.members))},
        parts={k: part_of(sigma, events=100.0 + k) for k in alive},
        members=ring.sites[alive[0]]._members,
        signatures=ring.coordinator.agreement(Lists.SURVIVORS).signatures,
        total=tuple(float(one) for one in ring.coordinator.total()),
    )
