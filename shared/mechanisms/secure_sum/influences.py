r"""What a site adds to a secure sum of one coefficient: bounded influences of its records, and their squares.

With ψ the efficient influence of the coefficient (`shared.mechanisms.moments.influence`) at a place that is public,
:math:`q = \max(-C, \min(C, \psi))`, and a the site's weight, a record's row is

.. math:: (a \, q, \; h \, a \, q^2), \qquad a C \le A, \quad C \le C_{max}, \quad h = \sqrt 2 / C_{max}.

Rows lie on a parabola, and no two are further apart than 2 A: their squared distance over a² is
:math:`(q - q')^2 (1 + h^2 (q + q')^2)`, which for h C ≤ √2 is largest at the ends. So the squares, which tell how much
the records say, cost nothing beside the sum of q. Whatever place, weight and cut a coordinator sends, A and C_max are
held by `SumLook.rows`.

The influence is insensitive to small errors of the place one by one, and not to two at once: risk-set means that are
off times a number of events that is off. A moments release tells effects and hardly how many events there are, so each
site tells that by itself, with noise of its own (`noisy_events`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.mechanisms.moments.copula import CUT
from shared.mechanisms.moments.influence import direction
from shared.mechanisms.moments.outcomes import Binary, Outcome, Survival
from shared.mechanisms.moments.together import SitePlace

__all__ = ["Bounds", "SumLook", "look", "noisy_events"]

Array = NDArray[np.float64]

_FEWEST_EVENTS, _MOST_EVENTS = 5.0, 0.97
"""Events that a site is taken to have at least, and the share of its records that have one at most."""
_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The plan's: in units of the coefficient's covariate, as influences are.

    Args:
        column: of the coefficient, among the covariates. unit: of the covariate, for which the coefficient is told.
        reach: A. least, most: of C. Where C would be below the least, the weight is made smaller instead.
    """

    column: int
    unit: float
    reach: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if not (0 < self.least <= self.most < math.inf and self.reach > 0 and self.unit > 0 and self.column >= 0):
            raise ParameterError("bounds must be positive, the least cut not above the most", given=repr(self))

    @property
    def sensitivity(self) -> float:
        """Of a site's rows, in ℓ₂, when one record is replaced: 2 A."""
        return 2 * self.reach

    @property
    def bend(self) -> float:
        """h."""
        return math.sqrt(2) / self.most


@dataclass(frozen=True, kw_only=True)
class SumLook:
    """Where one site's records are looked at from, and what the public model expects of them there.

    Args:
        n: public number of records. bounds: of the plan.
        outcome, centre, scale, effects: the public model. along: (p,) d, in the coefficient's unit.
        means: (intervals,) d'x̄.
        chance, psi: (points, cases) probabilities under the model, sum to the number of points; influences.
        weight: a. cut: C.
    """

    n: int
    bounds: Bounds
    outcome: Outcome
    centre: Array
    scale: Array
    effects: Array
    along: Array
    means: Array
    chance: Array
    psi: Array
    weight: float = 1.0
    cut: float = math.inf

    def weighing(self, weight: float) -> SumLook:
        """With a weight in (0, 1], and the cut that goes with it."""
        bounds = self.bounds
        cut = float(np.clip(bounds.reach / weight, bounds.least, bounds.most))
        return replace(self, weight=min(weight, bounds.reach / cut), cut=cut)

    def rows(self, x: Array, y: Array) -> Array:
        """(n, 2) what each record adds, of which no two are further apart than the bounds' sensitivity.

        Args:
            x: (n, p) covariates. y: (n, columns) outcomes.
        """
        standard = np.clip((x - self.centre) / self.scale, -CUT, CUT)
        eta = self.effects[:, 0] + standard @ self.effects[:, 1:].T
        found = self.outcome.influence(y, eta, (standard @ self.along)[None], self.means[None])[0]
        # Once more, here where records are: no coordinator's weight or cut may make a row longer.
        weight, most = min(max(self.weight, 0.0), 1.0), min(max(self.cut, 0.0), self.bounds.most)
        cut = min(most, self.bounds.reach / weight) if weight > 0 else 0.0
        q = np.clip(found, -cut, cut)
        return np.column_stack([weight * q, weight * self.bounds.bend * q**2])

    @property
    def precision(self) -> float:
        """n E[ψ²]: the precision that all of the site's records give the coefficient."""
        return self._mean(self.psi**2)

    @property
    def beyond(self) -> float:
        """n E[q - ψ]: what the cut takes from the sum, on average."""
        return self._mean(self._q - self.psi)

    @property
    def held(self) -> float:
        """n E[q²]."""
        return self._mean(self._q**2)

    @property
    def slope(self) -> float:
        """n E[q ψ]: how fast the sum of q falls with the coefficient."""
        return self._mean(self._q * self.psi)

    @property
    def _q(self) -> Array:
        return np.clip(self.psi, -self.cut, self.cut)

    def _mean(self, value: Array) -> float:
        return float((self.chance * value).sum()) * self.n / len(self.chance)


def look(place: SitePlace, coefficient: float, events: float, bounds: Bounds) -> SumLook:
    """The look of a site at a coefficient that all sites are looked at with, per unit of the bounds.

    Args:
        events: how many records have the outcome, as the site tells it.
    Raises: ParameterError, for an outcome that is neither survival nor yes or no.
    """
    model, theta, j = place.model, place.theta, bounds.column
    if not isinstance(model.outcome, Survival | Binary):
        raise ParameterError("a secure sum's outcome must be survival or yes or no", given="another")
    factor = float(model.lens.scale[j]) / bounds.unit
    margins = [model.margin(k, theta.shift[k], theta.stretch[k]) for k in range(model.p)]
    x = model.points(margins, theta.z)
    effects = theta.effects.copy()
    effects[0, 1 + j] = coefficient * factor
    n = place.effects.n
    share = float(np.clip(events, _FEWEST_EVENTS, _MOST_EVENTS * n)) / n
    effects[0, 0] += _level(model.outcome, model.predictor(effects, x), share - 0.5)
    eta, standard = model.predictor(effects, x), np.clip(model.lens.standard(x), -CUT, CUT)
    to = direction(model.outcome, eta, standard, j)
    along, means = to.along * factor, to.means * factor
    chance, cases = model.outcome.cases(eta)
    return SumLook(
        n=n,
        bounds=bounds,
        outcome=model.outcome,
        centre=model.lens.centre,
        scale=model.lens.scale,
        effects=effects,
        along=along,
        means=means,
        chance=chance,
        psi=model.outcome.influence(cases, eta, (standard @ along)[None], means[None])[0],
    )


def noisy_events(events: NDArray[np.float64], sigma: float, noise: Noise) -> int:
    """How many records have the outcome, with rounded normal noise; replacing a record moves the count by 1.

    Args:
        events: (n,) 0 or 1. sigma: of the noise, in records.
    """
    return int(events.sum()) + int(noise.lattice_gaussian_steps(sigma, 1, 1.0)[0])


def _level(outcome: Outcome, eta: Array, wanted: float) -> float:
    """By how much the first predictor has to move for the expected first feature to be `wanted`."""
    moved = 0.0
    for _ in range(_STEPS):
        there = eta.copy()
        there[:, 0] += moved
        here = float(outcome.conditional(there)[:, 0].mean())
        there[:, 0] += 1e-4
        slope = (float(outcome.conditional(there)[:, 0].mean()) - here) / 1e-4
        step = float(np.clip((wanted - here) / max(slope, 1e-9), -0.5, 0.5))
        moved += step
        if abs(step) < 1e-9:
            break
    return moved
