"""Prediction, without records, of draws that a site's linkage attack may refuse after they have been charged.

Under posture ``local`` a site checks each release of latent noise against the plan's floors once it is drawn and
charged. The share of rows linked to their own record depends largely on w and the number of columns alone: it is
simulated here with normal latents.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.terminal import ChecklistLine

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan

__all__ = ["attack_line", "linked"]

MOST = 1000
"""Persons simulated at most; more persons are linked somewhat less often."""
DRAWS = 2
FARTHEST = 0.05
"""Share of records with the largest latent norm, which have a limit of their own."""


def linked(w: float, d: int, n: int) -> tuple[float, float]:
    """Share of n independent normal records of d columns whose nearest released row is their own, at weight w.

    Returns: the share of all, and that of the 5 % farthest from the centre; the same at each call.
    Source: latent-noise-injection, eq. 2: a released latent is √w z + √(1 − w) ξ.

    >>> all_, far = linked(0.8, 8, 800)
    >>> round(all_, 1), round(far, 1)
    (0.6, 1.0)
    >>> linked(0.0, 8, 800)[0] < 0.01
    True
    """
    import numpy as np

    rng = np.random.default_rng(0)  # of no record: it prices nothing and protects nobody
    shares = []
    for _ in range(DRAWS):
        z, noise = rng.standard_normal((2, n, d))
        released = w**0.5 * z + (1 - w) ** 0.5 * noise
        own = ((released**2).sum(axis=1) - 2 * z @ released.T).argmin(axis=1) == np.arange(n)
        norms = (z**2).sum(axis=1)
        far = np.sort(norms)[math.ceil((n - 1) * (1 - FARTHEST))]  # np.quantile of it loads masked arrays
        shares.append((own.mean(), own[norms >= far].mean()))
    everybody, farthest = np.mean(shares, axis=0)
    return float(everybody), float(farthest)


def attack_line(plan: StudyPlan, w: float | None, d: int) -> list[ChecklistLine]:
    """A warning where normal records would be linked more often than the plan's floors allow; else nothing.

    Args:
        w: the weight of the planned mechanism; None where it has none. d: its encoded columns.
    """
    if plan.posture != "local" or not plan.release.draws_rows or w is None:
        return []
    n = min(MOST, MOST if plan.expected is None else max(plan.expected.persons, plan.floors.persons))
    limits = plan.floors.own_row_linkage, plan.floors.extreme_linkage

    def passes(tried: tuple[float, float]) -> bool:
        return all(share <= limit for share, limit in zip(tried, limits, strict=True))

    everybody, farthest = linked(w, d, n)
    if passes((everybody, farthest)):
        return []
    low, high = 0, 20  # in twentieths; shares grow with w
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle / 20 < w and passes(linked(middle / 20, d, n)) else (low, middle)
    fix = "Lower release.w" + (f" (to about {low / 20:g} with these columns)" if low else "")
    return [
        ChecklistLine(
            name="attacks",
            state="warn",
            detail=f"a site's attacks may refuse a draw after its charge: at w = {w:g} and {d} encoded columns, of "
            f"{n:,} normal records {everybody:.0%} are linked to their own row (allowed {limits[0]:.0%}), "
            f"{farthest:.0%} of the farthest 5 % (allowed {limits[1]:.0%})",
            fix=f"{fix}, release fewer columns, or choose another mechanism "
            "(docs/choosing.md). A steward sees it on real records: site-agent curve.",
        )
    ]
