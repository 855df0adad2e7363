r"""GRAND: the coordinates of each released node are privatised one node at a time, and their distribution stays.

A network's nodes are split, before anything is read, into hold-out nodes and nodes to be released. The *frame* is what
the model says of the hold-out nodes: an (m, p) table of latent positions and attributes. A released node's coordinates
(estimated from its own ties to the hold-out nodes alone) go one by one through

.. math:: \tilde Z_{il} = (F^l)^{-1} \circ G ( F^l(Z_{il}) + e_{il} ), \quad e_{il} \sim \mathrm{Lap}(b),

where :math:`F^l` is the distribution function of coordinate l given the earlier ones, taken from the frame, and G that
of a uniform value plus Lap(b). F Z is uniform, hence G(…) too: the released coordinates have the frame's law.

What it costs, exactly. F is in [0, 1] whatever the estimator, and depends on the frame alone, so replacing a node moves
each of p values by at most 1, and all of them at once can: pure ε is p / b, and that is attained. Hence **b = p / ε**.
The paper prints Lap(1/ε) on each coordinate, which costs pε; it stands here under a name that says so, to reproduce
tables with. α of the inner-product model and every attribute are coordinates and are counted.

How it is made safe: F(Z) is rounded to a grid of 2⁻²⁰ or finer, which contains 0 and 1 (no sensitivity is added), and
noise is drawn exactly on that grid. G and the inverse come after the noise. Conditional distribution functions are
those of the nearest 5 % of the frame (at least 20 nodes, at most 400; ℓ₁ on latent positions as they are and on
attributes in units of their spread in the frame, for years or days would else decide alone): unlike a kernel they never
divide zero by zero. They interpolate between middle ranks, so that F⁻¹(F(z)) = z and a tie is an interval's middle.
Outside the frame's range F is 0 or 1. Whether a coordinate is continuous is never read off its values: one tied pair
would then change the mechanism for everybody. Discrete attributes arrive with their declared kind's uniform noise
added.

Where a node has a label that is told first (`shared.mechanisms.grand.labels`), all this happens within it: F is that
of the frame's nodes of the true label, the inverse that of the released one's (:class:`Labelled`).

Source: Liu, Bi & Li, GRAND, eq. 7 and 8; the price is ours (Theorem 1 as printed there is false for p > 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.privacy.accountant import Laplace
from shared.privacy.grids import grid_for

__all__ = [
    "MODELS",
    "Labelled",
    "NodePrivate",
    "coordinates",
    "neighbours",
    "smoothed_uniform",
]

spatial = deferred("scipy.spatial")

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

MODELS = ("inner_product", "rdpg", "grdpg")
"""Latent space models whose coordinates can be counted before anything is fitted."""
_FINEST = 2.0**-20
_LEAST, _MOST, _SHARE = 20, 400, 0.05
_ROWS = 1 << 13
_FAR = 1e30


def coordinates(model: str, d: int, *, directed: bool = False, attributes: int = 0) -> int:
    """p: how many values of a node are privatised, which is what ε is divided by.

    Args:
        model: one of :data:`MODELS`; the inner-product model has a degree coordinate α beside its d.
        d: latent dimension.
        directed: a node then has a position as a source and one as a target.
        attributes: encoded columns of the node table.
    Raises: ParameterError.

    >>> coordinates("inner_product", 3), coordinates("rdpg", 3), coordinates("inner_product", 3, directed=True)
    (4, 3, 8)
    >>> coordinates("rdpg", 3, directed=True, attributes=2)
    8
    """
    if model not in MODELS:
        raise ParameterError(f"a latent space model must be one of {', '.join(MODELS)}", given=repr(model)[:40])
    for name, value, least in (("d", d, 1), ("attributes", attributes, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ParameterError(f"{name} must be a whole number of at least {least}", given=repr(value))
    return (d + (model == "inner_product")) * (2 if directed else 1) + attributes


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Labels that coordinates are privatised within; each of them at least one node of the frame has.

    Args:
        reference: (m,) of the hold-out nodes.
        own: (n,) true ones of the released nodes.
        released: (n,) their released ones.
    """

    reference: Codes
    own: Codes
    released: Codes


@dataclass(frozen=True, kw_only=True)
class NodePrivate:
    """Privatise nodes' coordinates at a total of ε for each node: Laplace noise of scale p / ε on each of p ranks.

    Args:
        epsilon: of one released node, all its coordinates together; replace-one node, pure.
        p: how many coordinates (:func:`coordinates`).
        attributes: how many of them, the last ones, are attributes, each in a unit of its own.
        fixed: the scale of the noise where a plan charges for more coordinates than are drawn; p / ε if None.
    Raises: ParameterError, at construction.

    >>> from shared.base.randomness import seeded_rng
    >>> mechanism = NodePrivate(epsilon=1.0, p=4)
    >>> mechanism.scale, mechanism.event.coordinates, mechanism.total
    (4.0, 4, 1.0)
    >>> frame = np.random.default_rng(1).normal(size=(50, 4))
    >>> noise = mechanism.noise(["ada", "ben"], seeded_rng(1))
    >>> mechanism.privatise(frame[:2], frame, noise).shape
    (2, 4)
    """

    epsilon: float
    p: int
    attributes: int = 0
    fixed: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, int | float | np.integer | np.floating):
            raise ParameterError("epsilon must be a number", given=type(self.epsilon).__name__)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ParameterError("epsilon must be positive and finite", given=repr(self.epsilon))
        if isinstance(self.p, bool) or not isinstance(self.p, int | np.integer) or not 1 <= self.p <= 1000:
            raise ParameterError("p must be a whole number in 1..1000", given=repr(self.p))
        if self.fixed is not None and not self.fixed * (1 + 1e-12) >= self.p / self.epsilon:
            raise ParameterError("a fixed scale must not be below p / epsilon", given=repr(self.fixed))
        if not 0 <= self.attributes <= self.p:
            raise ParameterError("attributes must be among the p coordinates", given=repr(self.attributes))
        if not 2.0**-10 <= self.scale / _FINEST <= 2.0**39:
            raise ParameterError(
                "the noise of each coordinate must be between 2^-30 and 2^19 of its range",
                given=f"{self.scale:.3g}",
                next_step="Choose another epsilon, or fewer coordinates.",
            )

    @property
    def scale(self) -> float:
        """b = p / ε, in the unit of F's range, rounded upwards: as exact fractions, p / b is at most ε."""
        if self.fixed is not None:
            return self.fixed
        scale = self.p / self.epsilon
        return scale if self.p <= Fraction(scale) * Fraction(self.epsilon) else math.nextafter(scale, math.inf)

    @property
    def total(self) -> float:
        """Pure ε of a node, all its coordinates together."""
        return self.epsilon

    @property
    def event(self) -> Laplace:
        """p values that may all move by 1, each with noise Lap(b): known before anything runs."""
        return Laplace(scale=self.scale, sensitivity=1.0, coordinates=self.p)

    @property
    def _grid(self) -> float:
        return min(grid_for(self.scale), _FINEST)

    def noise(self, names: Sequence[str], rng: Noise) -> Array:
        """Each named node's noise, (n, p), from a substream of its own: who else is in the list moves none of it.

        Raises: ParameterError, for a name that stands there twice: two nodes would share their noise.
        """
        out = np.empty((len(names), self.p))
        for row, own in zip(out, rng.named(names), strict=True):
            row[:] = own.lattice_laplace_steps(self.scale, self.p, self._grid) * self._grid
        return out

    def privatise(
        self,
        latents: Array,
        reference: Array,
        noise: Array,
        into: Array | None = None,
        labelled: Labelled | None = None,
    ) -> Array:
        """(n, p) coordinates of released nodes to (n, p) private ones.

        Row i of the result comes from row i of `latents` and of `noise` and from the frame, and from nothing else.

        Args:
            latents: (n, p), the nodes' own; a value that is not a number counts as 0.
            reference: (m, p), of the hold-out nodes, m ≥ 1; finite.
            noise: from :meth:`noise`.
            into: (m', p), another table of hold-out nodes that private ranks are placed in; the frame by default. A
                model that knows its estimation error gives positions without it.
            labelled: labels to privatise within; one and the same for all by default.
        Raises: ParameterError, for shapes that do not fit, a frame that is not finite, or a label that it lacks.
        """
        own, released = (None, None) if labelled is None else (labelled.own, labelled.released)
        within = None if labelled is None else labelled.reference
        ranks = self.ranks(latents, reference, noise, own, within)
        return self.placed(ranks, reference if into is None else into, released, within)

    def ranks(
        self, latents: Array, reference: Array, noise: Array, own: Codes | None = None, within: Codes | None = None
    ) -> Array:
        """v = G(F(Z) + e), (n, p) in [0, 1]: what is private; a later wave may place it in a newer frame for free.

        Args:
            latents: (n, p) Z, the coordinates of the nodes that are privatised.
            reference: (m, p) coordinates of the nodes held out, of which F is made.
            noise: (n, p) e, Laplace noise of scale `scale` on the mechanism's grid.
            own: of each node the number of its label, within whose reference F is taken; None without labels.
            within: the same of each node of the reference.
        Raises: ParameterError: shapes that do not fit.
        """
        reference, latents = self._with_reference(reference), np.asarray(latents, dtype=np.float64)
        if latents.ndim != 2 or latents.shape[1] != self.p or np.shape(noise) != latents.shape:
            raise ParameterError(
                f"coordinates and noise must be two matrices of {self.p} columns",
                given=f"shapes {latents.shape} and {np.shape(noise)}",
            )
        # Neither is searchable; what a node has instead depends on that node alone.
        latents = np.clip(np.where(np.isnan(latents), 0.0, latents), -_FAR, _FAR)
        grid, u = self._grid, np.empty_like(latents)
        for nodes, part in _parts(reference, own, within, len(latents)):
            units, given, found = self._units(part), latents[nodes], np.empty_like(latents[nodes])
            for c in range(self.p):
                for rows, near in _near(part, given, c, units):
                    found[rows, c] = _cdf(near, given[rows, c])
            u[nodes] = found
        # On the grid, 0 and 1 included: exact noise on it hides everything that the rounded rank could tell.
        return smoothed_uniform(np.round(u / grid) * grid + noise, self.scale)

    def placed(
        self, ranks: Array, reference: Array, released: Codes | None = None, within: Codes | None = None
    ) -> Array:
        """Ranks (n, p) in [0, 1] as coordinates in a frame: coordinate by coordinate, given the privatised ones."""
        reference, out = self._with_reference(reference), np.empty(np.shape(ranks))
        for nodes, part in _parts(reference, released, within, len(out)):
            units, given, found = self._units(part), ranks[nodes], np.empty_like(out[nodes])
            for c in range(self.p):
                for rows, near in _near(part, found, c, units):
                    found[rows, c] = _quantile(near, given[rows, c])
            out[nodes] = found
        return out

    def _units(self, reference: Array) -> Array:
        """(p,) what distances are measured in: 1 of the model's positions, the frame's own spread of an attribute."""
        units = np.ones(self.p)
        if self.attributes:
            spread = reference[:, -self.attributes :].std(axis=0)
            units[-self.attributes :] = np.where(spread > 0, spread, 1.0)
        return units

    def _with_reference(self, reference: Array) -> Array:
        reference = np.asarray(reference, dtype=np.float64)
        if (
            reference.ndim != 2
            or reference.shape[1] != self.p
            or not len(reference)
            or not np.isfinite(reference).all()
        ):
            raise ParameterError(
                f"a frame must hold at least one hold-out node, with {self.p} finite coordinates",
                given=f"shape {reference.shape}",
            )
        return reference


def smoothed_uniform(t: Array, scale: float) -> Array:
    r"""G: the distribution function of U(0, 1) + Lap(b), at any t and for any b, without overflow.

    .. math:: G(t) = \tfrac b2 e^{t/b} (1 - e^{-1/b}),\ t < 0; \qquad
              t + \tfrac b2 (e^{-t/b} - e^{(t-1)/b}),\ 0 \le t \le 1; \qquad 1 - G(1 - t),\ t > 1

    >>> smoothed_uniform(np.array([-1e9, 0.5, 1e9]), 4.0).tolist()
    [0.0, 0.5, 1.0]
    """
    t = np.asarray(t, dtype=np.float64)
    # By symmetry the lower half decides; no exponent is then above 0, and nothing is ∞ · 0.
    low = np.minimum(t, 1 - t)
    outer = -0.5 * scale * np.exp(np.minimum(low, 0) / scale) * math.expm1(-1 / scale)
    inside = np.maximum(low, 0)
    # e^{-t/b} - e^{(t-1)/b} = 2 e^{-1/2b} sinh((1 - 2t) / 2b): as a difference it would cancel for large b.
    inner = inside - 0.5 * scale * np.exp(-inside / scale) * np.expm1((2 * inside - 1) / scale)
    value = np.clip(np.where(low < 0, outer, inner), 0, 0.5)
    return np.where(t <= 0.5, value, 1 - value)


def neighbours(m: int) -> int:
    """Number of hold-out nodes behind a conditional distribution function: 5 % of m, at least 20, at most 400.

    >>> [neighbours(m) for m in (1, 20, 100, 2000, 10_000)]
    [1, 20, 20, 100, 400]
    """
    return min(m, max(_LEAST, min(_MOST, math.ceil(_SHARE * m))))


def _parts(reference: Array, labels: Codes | None, within: Codes | None, n: int) -> Iterator[tuple[Any, Array]]:
    """For each label, its nodes and its part of the frame; all of both where there are no labels."""
    if labels is None or within is None:
        yield slice(None), reference
        return
    labels, within = np.asarray(labels), np.asarray(within)
    if labels.shape != (n,) or within.shape != (len(reference),) or not np.isin(labels, within).all():
        raise ParameterError(
            "labels must be one of each node, and each of them must be some hold-out node's",
            given=f"{labels.size} labels of {n} nodes, {within.size} of {len(reference)} hold-out nodes",
        )
    for label in np.unique(labels):
        yield np.flatnonzero(labels == label), reference[within == label]


def _near(reference: Array, given: Array, c: int, units: Array) -> Iterator[tuple[slice, Array]]:
    """For each block of rows, its slice and the sorted values of coordinate c near the rows' earlier coordinates."""
    if c == 0:
        yield slice(None), np.sort(reference[:, 0])[None]
        return
    tree, k = spatial.cKDTree(reference[:, :c] / units[:c]), neighbours(len(reference))
    for start in range(0, len(given), _ROWS):
        rows = slice(start, start + _ROWS)
        _, found = tree.query(given[rows, :c] / units[:c], k=np.arange(1, k + 1), p=1)
        yield rows, np.sort(reference[found, c], axis=1)


def _cdf(near: Array, x: Array) -> Array:
    """Middle-rank distribution function, interpolated: sorted (n or 1, k) values at (n,) points, in [0, 1]."""
    k = near.shape[1]
    if len(near) == 1:
        below, upto = (np.searchsorted(near[0], x, side=side) for side in ("left", "right"))
        at = np.zeros(len(x), dtype=np.int64)
    else:
        below, upto = (near < x[:, None]).sum(axis=1), (near <= x[:, None]).sum(axis=1)
        at = np.arange(len(x))
    left, right = near[at, np.maximum(below - 1, 0)], near[at, np.minimum(below, k - 1)]
    gap = right - left
    between = np.clip((x - left) / np.where(gap > 0, gap, 1), 0, 1)
    rank = np.where(upto > below, (below + upto) / 2, below - 0.5 + between)
    # Outside, and only there, F is 0 or 1; a tie with the smallest or largest value is not outside.
    return np.where(upto == 0, 0.0, np.where(below == k, 1.0, rank / k))


def _quantile(near: Array, v: Array) -> Array:
    """The inverse of :func:`_cdf`: what lies below the first middle rank is the smallest value, and so on."""
    k = near.shape[1]
    h = np.clip(v * k - 0.5, 0, k - 1)
    low = np.floor(h).astype(np.int64)
    at = np.zeros(len(v), dtype=np.int64) if len(near) == 1 else np.arange(len(v))
    left, right = near[at, low], near[at, np.minimum(low + 1, k - 1)]
    return np.where(left == right, left, left + (h - low) * (right - left))
