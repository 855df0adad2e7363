r"""Effects at which sites' synthetic rows answer as a secure sum does, in the mean and in its interval.

A site's pilot has its effect with a variance V_i, of patients and of noise, where its own patients alone would leave
v_i. With θ and τ̄² the sum's, (b_i - θ) / √(V_i + τ̄²) is standard normal, and the records' own estimates were spread by
v_i + τ̄². So rows are drawn at

.. math:: m_i = \theta + c + f \, \frac{b_i - \theta}{\sqrt{V_i + \bar\tau^2}} \sqrt{v_i + \bar\tau^2},

c such that random effects of (m_i, v_i) pool to θ, and f such that their Knapp-Hartung interval is as wide as the
sum's: whoever runs the planned regression on each site's rows, and pools, has the sum's answer with what noise did to
it in the interval. Nothing here sees a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize

from coordinator.pooling.pool import PooledResult, pool
from shared.errors import EstimateRefusal

if TYPE_CHECKING:
    from shared.estimands.questions import Estimand
    from shared.plans.plan import StudyPlan

__all__ = ["as_the_sum", "row_effects"]

_MOST_SPREAD, _FURTHEST = 8.0, 1e6
_RULE = "The rows of all sites, each asked the planned question, pool to the secure sum's answer and interval."


def row_effects(answer: PooledResult) -> dict[str, float]:
    """Site to the coefficient behind its rows, on the scale and per the unit of the answer.

    Args:
        answer: the planned question's, with `estimates` of the sites' pilots and with `summed`.
    Raises: EstimateRefusal: no sum, or fewer than two sites.
    """
    total = answer.summed
    if total is None or answer.k < 2:
        raise EstimateRefusal("rows that answer as a sum must be of several sites, with an opened sum", given="none")
    patients = {one.site: one.vi_sampling for one in answer.estimates if one.vi_sampling}
    own = [min(patients.get(site, vi), vi) for site, vi in zip(answer.labels, answer.vi, strict=True)]
    spread = np.sqrt((np.array(own) + total.tau2) / (np.array(answer.vi) + total.tau2))
    apart = (np.array(answer.yi) - total.estimate) * spread
    wanted = total.ci_ub - total.ci_lb

    def wider(share: float) -> float:
        found = _pooled(_centred(total.estimate, share * apart, own), own, total.level)
        return found.ci_ub - found.ci_lb - wanted

    share = 0.0 if wider(0.0) >= 0 else _MOST_SPREAD
    while share and wider(share) < 0 and share < _FURTHEST:  # pilots that agree by chance
        share *= 2
    if share and wider(share) > 0:
        share = float(optimize.brentq(wider, 0.0, share, xtol=1e-6))
    return dict(zip(answer.labels, _centred(total.estimate, share * apart, own), strict=True))


def as_the_sum(
    plan: StudyPlan, site: str, about: dict[str, Any], answered: Callable[[Estimand, str], PooledResult]
) -> dict[str, Any]:
    """Of a `Synthesis`: what it is of, and how it draws where the sites' secure sum is opened.

    Args:
        about: of the site's releases.
        answered: the planned question's answer, for one of its terms.
    """
    from shared.mechanisms.secure_sum.plan import SecureSumPlan

    if not isinstance(plan.release, SecureSumPlan):
        return {"about": about}
    question = plan.release.question(plan)
    said, effects = [], {}
    for term, of in plan.release.summed_terms(plan, question).items():
        result = answered(question, term)
        if result.summed is None or site not in result.labels:
            continue
        found = row_effects(result)[site]
        said.append({"term": term, "pooled": result.summed.estimate, "site": found, "rule": _RULE})
        effects[of.column] = found / of.units
    if not said:
        return {"about": about | {"effect": "of the site's pilot: the secure sum does not answer here"}}
    drawn = partial(plan.release.synthetic, effects=effects)
    # Of one coefficient as it always was said.
    return {"about": about | ({"effect": said[0]} if len(said) == 1 else {"effects": said}), "drawn": drawn}


def _centred(mean: float, apart: Sequence[float] | np.ndarray, own: Sequence[float]) -> list[float]:
    """Effects so far apart of which random effects are this mean: weights do not follow a shift of all."""
    off = _pooled(list(apart), own, 0.95).beta
    return [float(one) - off + mean for one in apart]


def _pooled(effects: Sequence[float], own: Sequence[float], level: float) -> PooledResult:
    return pool(list(effects), list(own), method="REML", test="adhoc", level=level)
