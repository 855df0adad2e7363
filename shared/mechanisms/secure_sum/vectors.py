r"""A site's contribution to a secure sum of one coefficient or several: one vector of influences per record.

With ψ the influences of the coefficients at a public place, a the site's weights, one for each coefficient, and M a
matrix that is the same for all sites, a record's vector is

.. math:: u = (M \, (a \circ \psi) - c) \, \min(1, A / |M (a \circ \psi) - c|),

with c a public point, which is the site's or 0, and its row is u with the products of its coordinates beside it,
:math:`(u, \; b \, u u')`, those off the diagonal once and times √2, b = 1 / (√2 A). No two rows are further
apart than 2 A, as u alone would be. For the squared distance is

.. math:: f(u, v) = |u - v|^2 + b^2 (|u|^4 - 2 (u'v)^2 + |v|^4),

whose second derivative in u is no less than 2 - 4 b² |v|² ≥ 0: it is convex in each, and largest where both have the
length A. There, with D = |u - v|², it is D (1 + b² (4 A² - D) / 2), which ascends until D = 1 / b² + 2 A² = 4 A², where
it is 4 A². So all products, which tell how much the records say of each coefficient, cost nothing beside the sum of u.

Of a coefficient of the planned model in fewer covariates, a subgroup or a window of time ψ is that of the variant's own
regression (`shared.mechanisms.secure_sum.variants`), 0 for whom it is not of.

M is of the coordinator's choice: it shares one noise out among the coefficients, and each is read from the sum of u by
its inverse. Whatever M, weights, c and place a coordinator sends, A is held by `VectorLook.rows`.

**About which point vectors are drawn in.** Influences are skewed, so that drawing in about 0 takes from one side, and
what a model expects of that is wrong where its tails are. The mean square of what is taken off is convex in c, and its
slope there is twice the mean of it: where least is taken off, nothing is expected to be taken (`VectorLook.centred`).
How many records there are is public, so that n c is added again without a price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.mechanisms.moments.influence import held
from shared.mechanisms.moments.together import SitePlace
from shared.mechanisms.secure_sum.influences import ModelAt, finite_or_nothing, seen
from shared.mechanisms.secure_sum.variants import Variant, VariantModel, fitted_variant

__all__ = [
    "MOST_COEFFICIENTS",
    "DrawnIn",
    "VectorBounds",
    "VectorLook",
    "coordinates",
    "products",
    "rows_of",
    "vector_look",
]

Array = NDArray[np.float64]

MOST_COEFFICIENTS = 10
_STEPS, _SETTLED = 20, 1e-3
"""Steps at most to the point about which least is taken off, and when it is near enough, in A: what is expected to be
taken off there is taken into account all the same."""


@dataclass(frozen=True, kw_only=True)
class VectorBounds:
    """The plan's.

    Args:
        columns: of the coefficients, among the covariates. units: of each covariate, for which its coefficient is told.
        reach: A, in no unit: M has it.
        centred: whether vectors may be drawn in about a point; else about 0.
        variants: of the planned model, each with one coefficient more.
    """

    columns: tuple[int, ...]
    units: tuple[float, ...]
    reach: float
    centred: bool = True
    variants: tuple[Variant, ...] = ()

    def __post_init__(self) -> None:
        listed = 0 < len(self.columns) == len(set(self.columns)) == len(self.units)
        listed = listed and self.coefficients <= MOST_COEFFICIENTS
        if not (listed and self.reach > 0 and min(self.columns) >= 0 and min(self.units) > 0):
            raise ParameterError(
                f"bounds must be of 1 to {MOST_COEFFICIENTS} coefficients, each once, and positive", given=repr(self)
            )

    @property
    def coefficients(self) -> int:
        """How many are summed: those of the planned model, then one of each variant."""
        return len(self.columns) + len(self.variants)

    @property
    def sensitivity(self) -> float:
        """Of a site's rows, in ℓ₂, when one record is replaced: 2 A."""
        return 2 * self.reach

    def allows(self, offset: Sequence[float]) -> bool:
        """True if vectors may be drawn in about c: what says nothing must be within A of it, or it moves the sum."""
        return not offset or (self.centred and math.hypot(*offset) <= self.reach * (1 + 1e-9))


@dataclass(frozen=True)
class DrawnIn:
    """Expectations under a site's model, over all its records: q is ψ drawn in, c̃ is c in the unit of ψ.

    Args:
        slope: (coefficients,) n E[q ψ], how fast the sum falls with the coefficient. kept: n E[q²].
        squares: n E[(q - c̃)²], what the sum's products tell. beyond: n E[q - ψ], what drawing in takes from the sum.
    """

    slope: Array
    kept: Array
    squares: Array
    beyond: Array


@dataclass(frozen=True, kw_only=True)
class VectorLook(ModelAt):
    """Point at which one site's influences on several coefficients are evaluated, and the model's expectations there.

    Args:
        bounds: of the plan. along: (coefficients, p) d, each in its unit. means: (coefficients, intervals) d'x̄.
        psi: (coefficients, points, cases) influences.
        weights: (coefficients,) a. whitening: (coefficients, coefficients) M, the same at all sites.
        offset: (coefficients,) c, in the unit of M's vectors.
        models: of the variants, to which the last of the coefficients belong.
    """

    bounds: VectorBounds
    along: Array
    means: Array
    psi: Array
    weights: Array
    whitening: Array
    offset: Array
    models: tuple[VariantModel, ...] = ()

    def rows(self, x: Array, y: Array) -> Array:
        """(n, `coordinates`) what each record adds, of which no two are further apart than the bounds' sensitivity.

        Args:
            x: (n, p) covariates. y: (n, columns) outcomes.
        """
        own = len(self.bounds.columns)
        found = self.influences(x, y, self.along[:own], self.means[:own])
        further = zip(self.models, self.along[own:], self.means[own:], strict=True)
        found = np.vstack([found, *(model.influences(self, x, y, *to)[None] for model, *to in further)])
        vectors = finite_or_nothing(self.whitening @ (self.weights[:, None] * found)).T
        return rows_of(vectors - self.offset, self.bounds.reach)

    def gone(self, records: int) -> Array:
        """(records, `coordinates`) what records add that are there no more: as if they said nothing, whoever they were.

        n c is added again for all that the pilot had.
        """
        return rows_of(np.tile(-self.offset, (records, 1)), self.bounds.reach)

    @property
    def share(self) -> Array:
        """(points, cases) of each vector that is left when it is drawn in to A, of its distance to c."""
        white = np.tensordot(self.whitening * self.weights, self.psi, 1) - self.offset[:, None, None]
        return self._share(white)

    def _share(self, white: Array) -> Array:
        return np.minimum(1.0, self.bounds.reach / np.maximum(np.sqrt(np.square(white).sum(axis=0)), 1e-300))

    def centred(self) -> VectorLook:
        """With the c about which least is taken off under the model, in the mean square."""
        vectors = np.tensordot(self.whitening * self.weights, self.psi, 1)
        offset, reach = np.zeros(len(self.weights)), self.bounds.reach
        for _ in range(_STEPS):
            away = vectors - offset[:, None, None]
            off = 1 - self._share(away)
            # Newton's step for one coefficient; for several no longer than his.
            step = (self.chance * off * away).sum(axis=(1, 2)) / max(float(self.chance[off > 0].sum()), 1e-300)
            offset = held((offset + step)[:, None], reach)[:, 0]
            if float(np.abs(step).max()) <= _SETTLED * reach:
                break
        return replace(self, offset=offset)

    @property
    def precision(self) -> Array:
        """(coefficients,) n E[ψ²]: the precision that all of the site's records give each."""
        return self.expected(1.0)

    def expected(self, factor: Array | float) -> Array:
        """(coefficients,) n E[factor ψ²].

        Args:
            factor: (points, cases): `share`, for how fast a sum falls with its coefficient.
        """
        return self._all(self.chance * factor * self.psi**2)

    def drawn_in(self) -> DrawnIn:
        """What the model expects of the vectors as they are drawn in.

        Raises: numpy.linalg.LinAlgError, where M cannot be taken back.
        """
        share, chance, psi = self.share, self.chance, self.psi
        if not self.offset.any():
            kept = self.expected(share**2)
            return DrawnIn(self.expected(share), kept, kept, self._all(chance * (share - 1) * psi))
        centre = (np.linalg.solve(self.whitening, self.offset) / self.weights)[:, None, None]
        left = share * (psi - centre)
        q = centre + left
        return DrawnIn(*(self._all(chance * one) for one in (q * psi, q**2, left**2, q - psi)))

    def _all(self, values: Array) -> Array:
        """(coefficients,) of all records, of what (coefficients, points, cases) are for one."""
        return np.asarray(values.sum(axis=(1, 2)) * self.n / len(self.chance))


def coordinates(coefficients: int) -> int:
    """Numbers that are summed: of the vector, and of the products of its coordinates.

    >>> coordinates(2), coordinates(10)
    (5, 65)
    """
    return coefficients + coefficients * (coefficients + 1) // 2


def rows_of(vectors: Array, reach: float) -> Array:
    """(n, `coordinates`) rows of vectors of any length, no two further apart than twice the reach.

    Args:
        vectors: (n, coefficients).

    >>> rows_of(np.array([[3.0, 4.0], [0.0, 0.5]]), 1.0).round(3)
    array([[0.6  , 0.8  , 0.255, 0.48 , 0.453],
           [0.   , 0.5  , 0.   , 0.   , 0.177]])
    """
    u = held(vectors.T, reach).T
    i, j = np.triu_indices(u.shape[1])
    return np.hstack([u, u[:, i] * u[:, j] * _bend(i, j, reach)])


def products(numbers: Array, coefficients: int, reach: float) -> Array:
    """(coefficients, coefficients) Σ u u' of a sum of rows.

    >>> products(rows_of(np.array([[0.6, 0.8]]), 2.0)[0], 2, 2.0).round(2)
    array([[0.36, 0.48],
           [0.48, 0.64]])
    """
    i, j = np.triu_indices(coefficients)
    found = np.zeros((coefficients, coefficients))
    found[i, j] = found[j, i] = numbers[coefficients:] / _bend(i, j, reach)
    return found


def vector_look(place: SitePlace, start: Sequence[float], level: float, bounds: VectorBounds) -> VectorLook:
    """The look of a site at the coefficients that all sites are looked at with, each per unit of the bounds.

    Its weights and M are 1, and c is 0, until they are known. Args and Raises: as of `influences.seen`.
    """
    own, several = len(bounds.columns), bounds.coefficients
    found = seen(place, dict(zip(bounds.columns, start[:own], strict=True)), bounds.units, level)
    further = [
        fitted_variant(found.model, found.points, found.cases, variant, coefficient)
        for variant, coefficient in zip(bounds.variants, start[own:], strict=True)
    ]
    return VectorLook(
        **vars(found.model),
        bounds=bounds,
        along=np.array([*found.along, *(one.along for one in further)]),
        means=np.array([*found.means, *(one.means for one in further)]),
        psi=np.array([*found.psi, *(one.psi for one in further)]) if further else found.psi,
        models=tuple(one.model for one in further),
        weights=np.ones(several),
        whitening=np.eye(several),
        offset=np.zeros(several),
    )


def _bend(i: NDArray[np.int64], j: NDArray[np.int64], reach: float) -> Array:
    return np.where(i == j, 1.0, math.sqrt(2)) / (math.sqrt(2) * reach)
