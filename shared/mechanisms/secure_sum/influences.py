r"""A site's contribution to a secure sum of one coefficient: bounded influences of its records, and their squares.

With ψ the efficient influence of the coefficient (`shared.mechanisms.moments.influence`) at a place that is public,
:math:`q = \max(-C, \min(C, \psi))`, and a the site's weight, a record's row is

.. math:: (a \, q, \; h \, a \, q^2), \qquad a C \le A, \quad C \le C_{max}, \quad h = \sqrt 2 / C_{max}.

Rows lie on a parabola, and no two are further apart than 2 A: their squared distance over a² is
:math:`(q - q')^2 (1 + h^2 (q + q')^2)`, which for h C ≤ √2 is largest at the ends. So the squares, which estimate the
information in the records, add nothing to the sensitivity of the sum of q. Whatever place, weight and cut a coordinator
sends, `SumLook.rows` enforces A and C_max.

The influence is insensitive to a small error in any one part of the place, but not to the product of two: that of the
risk-set means times that of the level. A moments release determines effects well, but hardly the level: the number of
events expected of the site's records. So each site sends its observed and its expected events, with noise of its own
(`noisy_level`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.mechanisms.moments.copula import CUT
from shared.mechanisms.moments.influence import direction
from shared.mechanisms.moments.outcomes import Binary, Outcome, Survival
from shared.mechanisms.moments.together import SitePlace

__all__ = [
    "Bounds",
    "ModelAt",
    "Seen",
    "SumLook",
    "finite_or_nothing",
    "level_of",
    "look",
    "model_at",
    "noisy_level",
    "seen",
]

Array = NDArray[np.float64]

_FEWEST = 5.0
"""Events, and charges, that a site is taken to have at least."""
_MOST_LEVEL = math.log(20)
_GRID = 2.0**-10
"""Of charges, in events: 0 and 1 are on it, so that rounding moves no record further."""


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
class ModelAt:
    """The public model of one site at a place: of one coefficient as of several.

    Args:
        n: public number of records. outcome, centre, scale, effects: the model.
        chance: (points, cases) probabilities under it, which sum to the number of points.
    """

    n: int
    outcome: Outcome
    centre: Array
    scale: Array
    effects: Array
    chance: Array

    def influences(self, x: Array, y: Array, along: Array, means: Array) -> Array:
        """(directions, n) of records.

        Args:
            x: (n, p) covariates. y: (n, columns) outcomes. along: (directions, p) d. means: (directions, intervals).
        """
        standard = np.clip((x - self.centre) / self.scale, -CUT, CUT)
        eta = self.effects[:, 0] + standard @ self.effects[:, 1:].T
        return self.outcome.influence(y, eta, along @ standard.T, means)

    def level(self, x: Array, y: Array) -> Array:
        """(n, 2) whether each record had its event, and the events it was expected to have, until these are one.

        Later events are not counted, as what would be expected until then is not: at the level that is true both sum to
        the same, where many are expected to have more than one event, too. At most 1 each.
        """
        standard = np.clip((x - self.centre) / self.scale, -CUT, CUT)
        eta = self.effects[:, 0] + standard @ self.effects[:, 1:].T
        intervals = len(self.outcome.edges) - 1 if isinstance(self.outcome, Survival) else 1
        left = self.outcome.influence(y, eta, np.ones((1, len(x))), np.zeros((1, intervals)))[0]
        expected = finite_or_nothing(y[:, -1] - left)
        return np.column_stack([y[:, -1] * (expected <= 1.0), np.clip(expected, 0.0, 1.0)])


@dataclass(frozen=True, kw_only=True)
class SumLook(ModelAt):
    """Point at which the influences of one site's records are evaluated, and the public model's expectations there.

    Args:
        bounds: of the plan. along: (p,) d, in the coefficient's unit. means: (intervals,) d'x̄.
        psi: (points, cases) influences.
        weight: a. cut: C.
    """

    bounds: Bounds
    along: Array
    means: Array
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
        found = finite_or_nothing(self.influences(x, y, self.along[None], self.means[None])[0])
        # Once more, here where records are: no coordinator's weight or cut may make a row longer.
        weight, most = min(max(self.weight, 0.0), 1.0), min(max(self.cut, 0.0), self.bounds.most)
        cut = min(most, self.bounds.reach / weight) if weight > 0 else 0.0
        q = np.clip(found, -cut, cut)
        return np.column_stack([weight * q, weight * self.bounds.bend * q**2])

    def gone(self, records: int) -> Array:
        """(records, 2) what records add that are there no more: nothing."""
        return np.zeros((records, 2))

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


@dataclass(frozen=True)
class Seen:
    """A site's model at a place, looked at along several coefficients.

    Args:
        model: without directions. along: (coefficients, p). means: (coefficients, intervals).
        psi: (coefficients, points, cases). points: (points, p) of the covariates. cases: (1, cases, columns).
    """

    model: ModelAt
    along: Array
    means: Array
    psi: Array
    points: Array
    cases: Array


def seen(place: SitePlace, at: Mapping[int, float], units: Sequence[float], level: float) -> Seen:
    """A site at the coefficients that all sites are looked at with.

    Args:
        at: covariate's place to its coefficient, per unit. units: of each, in the same order.
        level: what is added to the place's linear predictor: 0, or `level_of`.
    Raises: ParameterError, for an outcome that is neither survival nor yes or no.
    """
    model = place.model
    factors = [float(model.lens.scale[j]) / unit for j, unit in zip(at, units, strict=True)]
    effects = place.theta.effects.copy()
    for (j, coefficient), factor in zip(at.items(), factors, strict=True):
        effects[0, 1 + j] = coefficient * factor
    effects[0, 0] += level
    found, x, cases = model_at(place, effects)
    eta, standard = model.predictor(effects, x), np.clip(model.lens.standard(x), -CUT, CUT)
    to = [direction(model.outcome, eta, standard, j) for j in at]
    along = np.array([one.along * factor for one, factor in zip(to, factors, strict=True)])
    means = np.array([one.means * factor for one, factor in zip(to, factors, strict=True)])
    return Seen(found, along, means, model.outcome.influence(cases, eta, along @ standard.T, means), x, cases)


def model_at(place: SitePlace, effects: Array) -> tuple[ModelAt, Array, Array]:
    """The model of a site with these effects, (points, p) that stand for everybody, and the outcomes of its `chance`.

    Args:
        effects: (predictors, 1 + p).
    Raises: ParameterError, for an outcome that is neither survival nor yes or no.
    """
    model, theta = place.model, place.theta
    if not isinstance(model.outcome, Survival | Binary):
        raise ParameterError("a secure sum's outcome must be survival or yes or no", given="another")
    margins = [model.margin(k, theta.shift[k], theta.stretch[k]) for k in range(model.p)]
    x = model.points(margins, theta.z)
    chance, cases = model.outcome.cases(model.predictor(effects, x))
    found = ModelAt(
        n=place.effects.n,
        outcome=model.outcome,
        centre=model.lens.centre,
        scale=model.lens.scale,
        effects=effects,
        chance=chance,
    )
    return found, x, cases


def look(place: SitePlace, coefficient: float, level: float, bounds: Bounds) -> SumLook:
    """The look of a site at a coefficient that all sites are looked at with, per unit of the bounds.

    Args and Raises: as of `seen`.
    """
    found = seen(place, {bounds.column: coefficient}, [bounds.unit], level)
    return SumLook(**vars(found.model), bounds=bounds, along=found.along[0], means=found.means[0], psi=found.psi[0])


def finite_or_nothing(values: Array) -> Array:
    """(..., n) values of records, 0 where any of a record's is not finite: to refuse it would tell of the record.

    >>> finite_or_nothing(np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.inf]]))
    array([[1., 0., 0.],
           [4., 0., 0.]])
    """
    finite = np.isfinite(values)
    return np.where(finite if values.ndim == 1 else finite.all(axis=0), values, 0.0)


def noisy_level(at: ModelAt, x: Array, y: Array, sigma: float, noise: Noise) -> tuple[float, float]:
    """Events of a site's records, and events that were expected of them, each with rounded normal noise.

    Replacing a record moves the two by √2 at most, in ℓ₂ (`ModelAt.level`).

    Args:
        at: the look at level 0. sigma: of the noise on each, in events.
    """
    steps = np.rint(at.level(x, y) / _GRID).astype(np.int64).sum(axis=0) + noise.lattice_gaussian_steps(sigma, 2, _GRID)
    return float(steps[0] * _GRID), float(steps[1] * _GRID)


def level_of(events: float, charges: float, sigma: float) -> float:
    """The logarithm of events over charges, drawn towards 0 where the noise on them is large.

    >>> round(level_of(400.0, 200.0, 0.0), 3), round(level_of(80.0, 40.0, 40.0), 3), level_of(-50.0, -90.0, 40.0)
    (0.693, 0.405, 0.0)
    """
    ratio = (max(events, _FEWEST) + sigma) / (max(charges, _FEWEST) + sigma)
    return float(np.clip(math.log(ratio), -_MOST_LEVEL, _MOST_LEVEL))
