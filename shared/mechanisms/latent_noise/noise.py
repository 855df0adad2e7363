r"""Latent noise injection: each record becomes a blend of itself and fresh noise, in a flow's latent space.

The guarantee is that of a Gaussian mechanism, and four decisions make it a fact instead of an assumption.
Latents are clipped to a ball, so the sensitivity does not rest on how a trained flow behaves far out. The
blend is done on a grid, where the noise is sampled exactly. Signals are rounded *towards zero*, which never
lengthens a vector, so rounding adds nothing to the sensitivity. And the flow runs after the noise, so its
rounding errors are post-processing.

Three options stand beside the paper's release. `shrink` pulls latents beyond the radius *further in* than its sphere,
so that an unusual record no longer stands out by its length; the noise stays the same for everybody, so the bound does
too. `carried` columns are released as they are: of those nothing is promised, and the flow has to leave them alone.
`vary` lets the noise depend on the record, or on all of them: what the paper's discussion leaves open, and what no ε
that means anything holds for. It is there for those who release under no promise but would hide unusual records, or
keep moments; its event is `NoGuarantee`.

What is *not* covered: flow, w, radius and what is carried are taken as given. If they were fitted on the released
records, the receipt has to say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.flows.base import Bijection
from shared.privacy.accountant import Gaussian, NoGuarantee
from shared.privacy.compiled import special
from shared.privacy.grids import grid_for

__all__ = [
    "VARIED",
    "LatentNoise",
    "Vary",
    "default_radius",
    "kept_weight",
    "least_matched",
    "matched",
    "shrunk",
    "varied",
]

Array = NDArray[np.float64]
Vary = Literal["", "weight", "rotation", "matched"]
VARIED: tuple[str, ...] = get_args(Vary)[1:]
"""Kinds of noise that depends on the records: a weight per record, rotated directions, or preserved sample moments."""


INSIDE, INSIDE_SHRUNK = 0.99, 0.90
"""Share of standard normal latents that the default radius leaves as they are; and where those beyond are pulled in."""


def default_radius(d: int, *, inside: float = INSIDE) -> float:
    """The radius that holds a share of all standard normal latents, 99 %: the root of the χ²_d quantile.

    >>> round(default_radius(2), 3), round(default_radius(2, inside=INSIDE_SHRUNK), 3)
    (3.035, 2.146)
    """
    if isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 1:
        raise ParameterError("d must be a whole number of at least 1", given=repr(d))
    return float(np.sqrt(2 * special().gammaincinv(d / 2, inside)))


def shrunk(norm: Array, radius: float, shrink: float) -> Array:
    r"""Length of a latent's signal before √w: r up to R, and beyond it R (R/r)^{p−1}, never above R.

    .. math:: a(r) r, \quad a(r) = \min(1, (R/r)^p), \quad \sup_r a(r) r = R \quad \text{for } p \ge 1

    so that two signals differ by at most C = 2 sup a(r) r = 2R whatever p is: p = 1 is clipping to the sphere of radius
    R, and a larger p brings what lies far outside back towards the middle.

    Args:
        norm: (n, …) lengths, non-negative; infinite ones have the limit.

    >>> shrunk(np.array([1.0, 2.0, 4.0, np.inf]), 2.0, 1.0), shrunk(np.array([1.0, 2.0, 4.0, np.inf]), 2.0, 2.0)
    (array([1., 2., 2., 2.]), array([1., 2., 1., 0.]))
    """
    length = np.minimum(norm, radius)
    if shrink == 1:
        return length
    with np.errstate(all="ignore"):
        return np.asarray(np.where(norm > radius, radius * (radius / norm) ** (shrink - 1), length))


def varied(z: Array, noise: Array, *, w: float, radius: float, vary: str) -> Array:
    r"""Latents blended with noise that depends on them: (n, d) and (n, d) standard normal in, (n, d) out. No ε holds.

    ``weight``: beyond R a record keeps less of itself and gets more noise, :math:`w_i = w \min(1, (R/r_i)^4)`:

    .. math:: y_i = \sqrt{w_i} z_i + \sqrt{1 - w_i} Z_i

    ``rotation``: the length r stays, at most R, and the direction u is turned by the same law for everybody,

    .. math:: y_i = r_i v_i / |v_i|, \quad v_i = \sqrt{w d}\, u_i + \sqrt{1-w} Z_i

    so that standard normal latents give standard normal rows exactly. ``matched``: the paper's blend, with noise whose
    mean and covariance are such that the rows have the sample's own (`matched`), clipped to R.

    Args:
        z: latents, finite or infinite; a row with NaN is the centre.
    Raises: ParameterError: too few rows to match, or another `vary`.

    >>> far = np.array([[8.0, 0.0], [1.0, 0.0]])
    >>> varied(far, np.zeros((2, 2)), w=0.81, radius=2.0, vary="weight").round(2).tolist()
    [[0.45, 0.0], [0.9, 0.0]]
    >>> np.linalg.norm(varied(far, np.ones((2, 2)), w=0.5, radius=2.0, vary="rotation"), axis=1).round(6).tolist()
    [2.0, 1.0]
    """
    unit, norm = _polar(z)
    if vary == "weight":
        # √w_i r = √w r up to R and √w R²/r beyond it, which is also right where r is infinite.
        with np.errstate(all="ignore"):
            own = w * np.minimum(1.0, radius / norm) ** 4
            far = radius * (radius / norm)
        return np.asarray(unit * (np.where(norm > radius, far, norm) * math.sqrt(w)) + np.sqrt(1 - own) * noise)
    if vary == "rotation":
        v = math.sqrt(w * z.shape[1]) * unit + math.sqrt(1 - w) * noise
        length = np.sqrt((v**2).sum(axis=1, keepdims=True))
        return np.asarray(v * (np.minimum(norm, radius) / np.where(length > 0, length, 1.0)))
    if vary != "matched":
        raise ParameterError(f"vary must be one of {', '.join(VARIED)}", given=repr(vary)[:60])
    clipped = unit * np.minimum(norm, radius)
    return np.asarray(math.sqrt(w) * clipped + math.sqrt(1 - w) * matched(clipped, noise, w=w))


def least_matched(columns: int) -> int:
    """Fewest rows whose moments noise can be matched to: as many as it is uncorrelated with, and its own columns."""
    return 2 * columns + 2


def matched(z: Array, noise: Array, *, w: float) -> Array:
    r"""Noise (n, d) that √w z + √(1−w) noise has the mean and covariance of z with, exactly.

    Least squares takes everything out of the noise that goes with z; a linear map gives the rest the covariance of z,
    and a shift the mean, (1 − √w) / √(1−w) times that of z.

    Raises: ParameterError, below `least_matched` rows.

    >>> rng = np.random.default_rng(1)
    >>> z, fresh = rng.normal(size=(2, 40, 2))
    >>> y = 0.6 * z + 0.8 * matched(z, fresh, w=0.36)
    >>> np.allclose(y.mean(axis=0), z.mean(axis=0)), np.allclose(np.cov(y.T), np.cov(z.T))
    (True, True)
    """
    n, d = z.shape
    if n < least_matched(d):
        raise ParameterError(f"noise must have at least {least_matched(d)} rows to be matched to", given=f"{n}")
    design = np.column_stack([np.ones(n), z])
    rest = noise - design @ np.linalg.lstsq(design, noise, rcond=None)[0]
    centred = z - z.mean(axis=0)
    # A ridge that only guards the arithmetic: latents that do not vary are matched by noise that hardly does.
    guard = 1e-12 * np.eye(d)
    own, wanted = (np.linalg.cholesky(part.T @ part / n + guard) for part in (rest, centred))
    shift = (1 - math.sqrt(w)) / math.sqrt(1 - w) * z.mean(axis=0)
    return np.asarray(np.linalg.solve(own, rest.T).T @ wanted.T + shift)


@dataclass(frozen=True, kw_only=True)
class LatentNoise:
    r"""Blend each clipped latent with fresh Gaussian noise: (n, d) records in, (n, d) records out.

    .. math:: \tilde x_i = f( \sqrt{w} clip_R(f^{-1}(x_i)) + \sqrt{1-w} Z_i ), \quad Z_i \sim N(0, I_d)

    Args:
        flow: bijection x = f(z) between encoded records and latents, both (n, d) and dimensionless.
        w: weight of the data, in [0, 1); 0 is plain sampling from the flow.
        radius: R > 0. Latents are clipped to norm R, so two records differ by at most C = 2R.
        shrink: p, 1 to 8. Beyond R a latent's length becomes R (R/r)^{p−1}: see `shrunk`, and `restored` for what is
            done about the law of the rows. 1 clips.
        carried: columns of x that are released as they are. The flow must leave them alone, forward and back, whatever
            the others are; noise, radius and ε are of the other columns, between records alike in these.
        vary: blank, or how the noise depends on records (`varied`). Nothing is then promised of any row.
    Raises: ParameterError, at construction: w outside [0, 1), radius not positive and finite, shrink outside [1, 8],
        carried columns that are not there or leave none, another `vary` or one with shrink or carried columns, or a
        direction to turn of one column.
    Source: latent-noise-injection, eq. 12 and Theorem 2. The clipping is ours: it makes C a fact.

    Row i of the release comes from row i of the data and from fresh noise alone, so long as the flow treats
    rows one by one; the noise depends on the shape of x and on rng alone. The finest detail of a latent,
    below 1/1024 of the noise, is dropped.

    >>> from shared.flows.base import Identity
    >>> from shared.base.randomness import seeded_rng
    >>> mechanism = LatentNoise(flow=Identity(d=2), w=0.5, radius=2.0)
    >>> mechanism.release(np.zeros((3, 2)), seeded_rng(7)).shape
    (3, 2)
    >>> round(mechanism.event.sensitivity / mechanism.event.sigma, 12)        # C √(w / (1 − w))
    4.0
    """

    flow: Bijection
    w: float
    radius: float
    shrink: float = 1.0
    carried: tuple[int, ...] = ()
    vary: Vary = ""

    def __post_init__(self) -> None:
        for name in ("w", "radius", "shrink"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise ParameterError(f"{name} must be a number", given=type(value).__name__)
            object.__setattr__(self, name, float(value))
        if not 0 <= self.w < 1:
            raise ParameterError(
                "w must be in [0, 1)", given=repr(self.w), next_step="Lower w, or solve it from a target ε."
            )
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ParameterError(
                "radius must be positive and finite",
                given=repr(self.radius),
                next_step="Use default_radius(d).",
            )
        if not 1 <= self.shrink <= 8:
            raise ParameterError("shrink must be in [1, 8]", given=repr(self.shrink), next_step="Take 2, or leave it.")
        object.__setattr__(self, "carried", tuple(sorted(set(self.carried))))
        if any(not 0 <= j < self.flow.d for j in self.carried) or len(self.carried) == self.flow.d:
            raise ParameterError(
                "carried columns must be columns of the flow, and not all", given=f"{self.carried} of {self.flow.d}"
            )
        if self.vary and (self.vary not in VARIED or self.shrink != 1 or self.carried):
            raise ParameterError(
                f"vary must be one of {', '.join(VARIED)}, without shrink and carried columns",
                given=f"{self.vary!r:.60}, shrink {self.shrink:g}, {len(self.carried)} carried",
            )
        if self.vary == "rotation" and self.d < 2:
            raise ParameterError("vary = 'rotation' must have two columns to turn a direction in", given=f"{self.d}")
        # Beyond this the squared norm in grid steps could overflow, and nothing would be hidden anyway.
        if self._reach > 2.0**16 * self._sigma:
            raise ParameterError(
                "the noise must be visible beside the clipped latents",
                given=f"R √(w / (1 − w)) = {self._reach / self._sigma:.3g}",
                next_step="Lower w or the radius.",
            )

    @property
    def _sigma(self) -> float:
        return math.sqrt(1 - self.w)

    @property
    def _reach(self) -> float:
        """L = R √w, the largest norm a signal may have; the double itself is the bound that is enforced."""
        return self.radius * math.sqrt(self.w)

    @property
    def event(self) -> Gaussian | NoGuarantee:
        """Noise √(1 − w) on a signal of sensitivity 2R√w: known before anything runs. None that holds with `vary`."""
        return NoGuarantee() if self.vary else self.plain_event

    @property
    def plain_event(self) -> Gaussian:
        """The event of the same w and R where noise is the same for everybody."""
        return Gaussian(sigma=self._sigma, sensitivity=2 * self._reach)

    @property
    def d(self) -> int:
        """Columns that noise is added to."""
        return self.flow.d - len(self.carried)

    @property
    def beyond(self) -> float:
        """Share of standard normal latents that are meant to lie beyond R: 0 where it only clips."""
        if self.shrink <= 1 and self.vary != "weight":
            return 0.0
        from scipy.special import chdtrc

        return float(chdtrc(self.d, self.radius**2))

    def release(self, x: Array, rng: Noise) -> Array:
        """Privatise encoded records: (n, d) to (n, d), a new array.

        A latent that holds NaN (a record the flow cannot place) becomes the centre, 0. A latent with ±∞
        becomes the point of the clipping ball in that direction; where `shrink` is above 1, the centre. Both rules look
        at the one row alone.

        Raises: ParameterError, if x is not (n, d), or has too few rows for noise to be matched to.
        """
        placed = self._placed(x)
        if self.vary:
            return np.asarray(self.flow.forward(self._varied(placed, rng)), dtype=np.float64)
        grid = grid_for(self._sigma)
        steps = self._signal_steps(placed[:, self._noised], grid)
        steps += rng.lattice_gaussian_steps(self._sigma, steps.shape, grid)
        placed[:, self._noised] = self.restored(np.multiply(steps, grid, dtype=np.float64))
        return np.asarray(self.flow.forward(placed), dtype=np.float64)

    def latents(self, x: Array) -> Array:
        """f⁻¹ of encoded records without what is carried, (n, d): what is clipped, shrunk and noised."""
        return self._placed(x)[:, self._noised]

    def restored(self, y: Array) -> Array:
        """Noisy latents (n, d), stretched by a map of their length alone so that the rows keep the flow's law.

        Where latents are standard normal, y = √w a(|z|) z + √(1−w) Z is too short: pulling in takes spread away. Its
        direction is uniform and independent of its length, and the law of its length follows from w, R, p and d. So
        the increasing map of that law to χ_d gives back a standard normal, which is what a release that is not shrunk
        has. The map depends on parameters alone and comes after the noise: it is post-processing, and costs nothing.
        With p = 1 it is left out.
        """
        if self.shrink == 1 or self.w == 0:
            return y
        return _stretched(y, *_lengths(self.w, self.radius, self.shrink, y.shape[1]))

    def unrestored(self, y: Array) -> Array:
        """The reverse of `restored`: what an attacker does first."""
        if self.shrink == 1 or self.w == 0:
            return y
        short, long = _lengths(self.w, self.radius, self.shrink, y.shape[1])
        return _stretched(y, long, short)

    def _varied(self, z: Array, rng: Noise) -> Array:
        grid = grid_for(1.0)
        noise = np.multiply(rng.lattice_gaussian_steps(1.0, z.shape, grid), grid, dtype=np.float64)
        return varied(z, noise, w=self.w, radius=self.radius, vary=self.vary)

    def clipped_count(self, latents: Array) -> int:
        """Number of `latents` that are outside the ball, or NaN: not released, as it depends on the records."""
        return int(np.count_nonzero(~(_norms(latents) <= self.radius)))

    @property
    def _noised(self) -> Sequence[int]:
        return [j for j in range(self.flow.d) if j not in self.carried]

    def _placed(self, x: Array) -> Array:
        x = np.array(x, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != self.flow.d:
            raise ParameterError(f"records must be a matrix with {self.flow.d} columns", given=f"shape {x.shape}")
        # A warning about one record's overflow would be a data-dependent event outside the release.
        with np.errstate(all="ignore"):
            return np.array(self.flow.inverse(x), dtype=np.float64)

    def _signal_steps(self, z: Array, grid: float) -> NDArray[np.int64]:
        """√w a(|z|) z in grid steps, truncated towards zero; its norm is at most L / grid, exactly."""
        unit, norm = _polar(z)
        signal = unit * shrunk(norm, self.radius, self.shrink) * math.sqrt(self.w)
        steps = np.trunc(signal / grid).astype(np.int64)
        # The doubles above may overshoot the ball by their rounding error. The bound is enforced where it
        # can be checked exactly; a row outside it (by a step or two at most) gives up its longest coordinate
        # step by step.
        most = math.floor((Fraction(self._reach) / Fraction(grid)) ** 2)
        rows = np.flatnonzero((steps**2).sum(axis=1) > most)
        while rows.size:
            longest = np.abs(steps[rows]).argmax(axis=1)
            steps[rows, longest] -= np.sign(steps[rows, longest])
            rows = rows[(steps[rows] ** 2).sum(axis=1) > most]
        return steps


def _polar(z: Array) -> tuple[Array, Array]:
    """Directions (n, d), of length 1 or 0, and lengths (n, 1), which may be infinite. A row with NaN is the centre."""
    z = np.where(np.isnan(z).any(axis=1, keepdims=True), 0.0, z)
    with np.errstate(all="ignore"):
        largest = np.abs(z).max(axis=1, keepdims=True, initial=0.0)
        infinite = np.isinf(largest)
        # Dividing by the largest entry first: squares of large latents would overflow.
        unit = np.where(infinite, np.isinf(z) * np.sign(z), z / np.where(largest > 0, largest, 1.0))
        unit_norm = np.sqrt((unit**2).sum(axis=1, keepdims=True))
        return unit / np.where(unit_norm > 0, unit_norm, 1.0), largest * unit_norm


def _norms(z: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.sqrt((z**2).sum(axis=1))


# -- what shrinking does to lengths -------------------------------------------------------------------------------
@lru_cache(maxsize=32)
def _lengths(w: float, radius: float, shrink: float, d: int) -> tuple[Array, Array]:
    """Knots of the map of lengths |√w a(|z|) z + √(1−w) Z| to lengths of standard normal vectors, both increasing.

    Given |z| = r the length over √(1−w) is noncentral χ_d; it is averaged over 200 even quantiles of r.
    """
    from scipy.special import chdtri, chndtr

    variance = 1 - w
    r = np.sqrt(chdtri(d, 1 - (np.arange(200) + 0.5) / 200))
    far = w * shrunk(r, radius, shrink) ** 2 / variance
    most = math.sqrt(chdtri(d, 1e-7))
    low, high = 0.0, most
    while True:
        short = np.linspace(low, high, 121)[1:]
        below = chndtr(short[:, None] ** 2 / variance, float(d), far[None, :]).mean(axis=1)
        sure = (below > 1e-9) & (below < 1 - 1e-9)
        if np.count_nonzero(sure) >= 12 or high - low < 1e-12 * most:
            break
        # A law narrower than a few steps, of little noise: knots closer together, where it is.
        low = float(short[below <= 1e-9].max(initial=low))
        high = float(short[below >= 1 - 1e-9].min(initial=high))
    short, below = short[sure], below[sure]
    long = np.sqrt(chdtri(d, 1 - below))
    # From nothing to nothing, and beyond the last knot in proportion.
    return np.concatenate([[0.0], short]), np.concatenate([[0.0], long])


def _stretched(y: Array, start: Array, end: Array) -> Array:
    norm = np.sqrt((y**2).sum(axis=1, keepdims=True))
    factor = np.where(norm < start[-1], np.interp(norm, start, end), norm * (end[-1] / start[-1]))
    return np.asarray(y * (factor / np.where(norm > 0, norm, 1.0)))


@lru_cache(maxsize=32)
def kept_weight(w: float, radius: float, shrink: float, d: int, vary: str = "") -> float:
    """The weight of an unshrunk release whose rows tell as much of their records as these: at most w.

    The least of two: the square of the correlation of a released latent with its own (order 1), and the correlation of
    products of two latents (order 2, what a regression coefficient is made of). Standard normal latents, 2¹⁵ of them
    from a fixed seed. Rows with matched noise tell more than plain ones of the moments, and are taken for plain ones.

    Args:
        w: weight of the data, in [0, 1).
        radius: R, to which latents are clipped.
        shrink: as of `LatentNoise`; 1 for a plain clip.
        d: columns of the latents.
        vary: as of `LatentNoise`; blank for noise of one size.

    >>> kept_weight(0.8, 3.0, 1.0, 5), kept_weight(0.8, 3.04, 2.0, 5) < 0.8
    (0.8, True)
    """
    if (shrink == 1 and vary in ("", "matched")) or w == 0 or d < 1:
        return w
    rng = np.random.default_rng(20261121)
    z, fresh = rng.standard_normal((2, 1 << 15, d))
    if vary:
        y = varied(z, fresh, w=w, radius=radius, vary=vary)
    else:
        norm = np.sqrt((z**2).sum(axis=1, keepdims=True))
        y = math.sqrt(w) * z * (shrunk(norm, radius, shrink) / norm) + math.sqrt(1 - w) * fresh
        y = _stretched(y, *_lengths(w, radius, shrink, d))
    first = float((y * z).mean() / (z * z).mean())
    # Of products: with a traceless part of its own, a column's square is enough where there is one column.
    one, two = (z[:, 0] * z[:, 1], y[:, 0] * y[:, 1]) if d > 1 else (z[:, 0] ** 2 - 1, y[:, 0] ** 2 - 1)
    second = float((one * two).mean() / (one * one).mean())
    return max(0.0, min(w, first * first, second))
