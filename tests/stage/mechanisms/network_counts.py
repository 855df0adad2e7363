"""A plan of capped counts, and networks to count."""

from __future__ import annotations

import numpy as np
import pandas as pd
from stage.mechanisms.contacts import contacts_plan

from shared.base.randomness import seeded_rng
from shared.mechanisms.grand.edges import NEIGHBOURS
from shared.mechanisms.network_counts.plan import NetworkCountsPlan
from shared.plans.plan import StudyPlan


def counting(**changes: object) -> StudyPlan:
    settings = {"epsilon": 3.0, "most_contacts": 40, "by": ("ward",), **changes}
    return contacts_plan(posture="private", release=NetworkCountsPlan(**settings))


def records(ties: np.ndarray, level: np.ndarray) -> pd.DataFrame:
    """A table with its edges, as a site reads it."""
    upper = np.triu(ties, 1)
    out = pd.DataFrame({"ward": np.asarray(level, dtype=float)})
    out[NEIGHBOURS] = [np.flatnonzero(row).astype(np.int32) for row in upper]
    return out


def drawn(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    upper = np.triu(rng.random((n, n)) < share, 1)
    return (upper | upper.T).astype(np.int64)


def measured(plan: StudyPlan, ties: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, ...]:
    return plan.release.measure(plan, records(ties, level), seeded_rng(0))
