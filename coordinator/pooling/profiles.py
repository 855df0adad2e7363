"""Pool whole likelihoods where an estimate and its standard error would mislead: small counts, empty arms.

A site with no event in one arm has no finite log odds ratio, yet it says something about the effect. Its likelihood,
tabulated on a grid, says all of it. Under one common effect the sites' log-likelihoods are simply added; nothing is
approximated by a normal curve, and a site without a finite estimate takes part. The idea is EvidenceSynthesis'
(Schuemie et al. 2021). A profile computed from a privatised release costs nothing further; one computed from records
would have to be paid for like any other output.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from coordinator.pooling.few_studies import Summary
from coordinator.pooling.rows import Interval, check_level
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimate

__all__ = [
    "PooledProfile",
    "Profile",
    "ProfilePosterior",
    "counts_profile",
    "normal_profile",
    "pool_profiles",
    "pool_profiles_random",
]

Array = NDArray[np.float64]
_LEAST_POINTS = 5


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One site's log-likelihood of one parameter, on a grid.

    Args:
        site: its name.
        grid: (G,) increasing values of the parameter, at least five.
        log_likelihood: (G,) finite; a constant may be missing.
        n: records behind it.
        receipts: digests of the receipts of the releases used.
    Raises: ParameterError.

    >>> Profile(site="A", grid=[-2, -1, 0, 1, 2], log_likelihood=[-4, -1, 0, -1, -4], n=40).peak
    0.0
    """

    site: str
    grid: ArrayLike
    log_likelihood: ArrayLike
    n: int
    receipts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("grid", "log_likelihood"):
            try:
                values = np.array(getattr(self, name), dtype=float)
            except (TypeError, ValueError):
                raise ParameterError(f"{name} of {self.site!r} must hold numbers", given="something else") from None
            if values.ndim != 1 or not np.isfinite(values).all():
                raise ParameterError(f"{name} of {self.site!r} must be one row of finite numbers", given="others")
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        x, y = self.points
        if len(x) != len(y) or len(x) < _LEAST_POINTS or not (np.diff(x) > 0).all():
            raise ParameterError(
                f"the profile of {self.site!r} must have {_LEAST_POINTS} increasing points and a value for each",
                given=f"{len(x)} points and {len(y)} values",
            )

    @property
    def points(self) -> tuple[Array, Array]:
        """The grid and the values on it."""
        return self.grid, self.log_likelihood  # type: ignore[return-value]

    @property
    def peak(self) -> float:
        """The grid's best value."""
        x, y = self.points
        return float(x[y.argmax()])

    @property
    def curve(self) -> Callable[[Array], Array]:
        """The log-likelihood between the grid's points, by a cubic spline, its maximum on the grid at 0."""
        from scipy.interpolate import CubicSpline

        x, y = self.points
        return CubicSpline(x, y - y.max())  # type: ignore[no-any-return]


def normal_profile(estimate: Estimate, grid: ArrayLike) -> Profile:
    """The normal profile of an estimate: for sites that sent no more. Raises: EstimateRefusal: it has no number."""
    if estimate.yi is None or not estimate.vi:
        raise EstimateRefusal(
            f"{estimate.site} must have an estimate and a variance", given=estimate.reason or "a variance of zero"
        )
    x = np.asarray(grid, dtype=float)
    values = -0.5 * (x - estimate.yi) ** 2 / estimate.vi
    return Profile(site=estimate.site, grid=x, log_likelihood=values, n=estimate.n, receipts=estimate.receipts)


def counts_profile(site: str, ai: int, bi: int, ci: int, di: int, grid: ArrayLike) -> Profile:
    """The conditional likelihood of the log odds ratio of a 2x2 table, given both margins; zeros are no trouble.

    Args:
        site: its name.
        ai, bi, ci, di: events and none in the first group, then in the second.
        grid: (G,) log odds ratios.
    Raises: ParameterError: counts that are not whole or are negative.
    Source: Fisher's noncentral hypergeometric distribution (Breslow and Day 1980, section 4.2).

    >>> flat = counts_profile("A", 0, 50, 0, 50, np.linspace(-2, 2, 9))
    >>> bool(np.ptp(flat.log_likelihood) == 0)
    True
    """
    cells = (ai, bi, ci, di)
    if any(cell < 0 or cell != int(cell) for cell in cells):
        raise ParameterError(f"the table of {site!r} must hold whole counts", given="others")
    n1, n2, events = ai + bi, ci + di, ai + ci
    x = np.asarray(grid, dtype=float)
    possible = np.arange(max(0, events - n2), min(n1, events) + 1, dtype=float)
    ways = -special.betaln(possible + 1, n1 - possible + 1) - special.betaln(
        events - possible + 1, n2 - events + possible + 1
    )
    # Relative to the table seen, so that a table that allows nothing else is exactly flat.
    ways -= ways[int(ai - possible[0])]
    total = np.array([_log_sum(ways, possible - ai, value) for value in x])
    return Profile(site=site, grid=x, log_likelihood=-total, n=int(n1 + n2))


def _log_sum(ways: Array, apart: Array, slope: float) -> float:
    """log Σ exp(ways + slope · apart), for `ways` that are concave: of terms that count, which stand side by side.

    What is left out is below e^-60 of the largest term each: nothing, in doubles, of a million of them.
    """

    def term(k: int) -> float:
        return float(ways[k] + slope * apart[k])

    top = bisect.bisect_left(range(len(ways) - 1), True, key=lambda k: term(k + 1) <= term(k))
    least = term(top) - 60
    first = bisect.bisect_left(range(top), True, key=lambda k: term(k) >= least)
    last = bisect.bisect_left(range(top, len(ways)), True, key=lambda k: term(k) < least) + top
    return float(special.logsumexp(ways[first:last] + slope * apart[first:last]))


@dataclass(frozen=True, kw_only=True)
class PooledProfile:
    """Added log-likelihoods under one common effect.

    Attributes:
        sites: those that were added.
        beta: where the sum is highest; None, with `reason`, when it rises to an end of the grid.
        interval: where the sum is within half a chi-square quantile of its maximum; an end that lies beyond the grid
            is None with the reason.
        grid, log_likelihood: the sum, its maximum at 0.
        uninformative: sites whose curve is flat; they are added and change nothing.
        notes: sentences a reader must see.
    """

    sites: tuple[str, ...]
    level: float
    beta: float | None
    interval: Interval
    grid: tuple[float, ...]
    log_likelihood: tuple[float, ...]
    uninformative: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""


def pool_profiles(profiles: Sequence[Profile], *, level: float = 0.95) -> PooledProfile:
    """Add the log-likelihoods; the interval inverts the likelihood-ratio test.

    Args:
        profiles: one per site, of one parameter; grids may differ and are joined where they all reach.
        level: coverage.
    Raises: ParameterError: no profile, the same site twice, grids that do not overlap, or a level outside (0, 1).

    >>> grid = np.linspace(-4, 4, 161)
    >>> rows = [counts_profile("A", 0, 100, 4, 96, grid), counts_profile("B", 2, 98, 5, 95, grid)]
    >>> found = pool_profiles(rows)
    >>> round(found.beta, 1), found.interval.ub < 0.1
    (-1.5, True)
    """
    x, curves, notes = _joined(profiles, level)
    total = sum(curves[1:], start=curves[0])
    flat = tuple(
        row.site for row, curve in zip(profiles, curves, strict=True) if np.ptp(curve) <= 1e-9 * max(1, len(x))
    )
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(x, total)
    top = int(total.argmax())
    sites = tuple(row.site for row in profiles)
    common = {"sites": sites, "level": level, "grid": tuple(x.tolist()), "uninformative": flat}
    values = tuple((total - total.max()).tolist())
    if np.ptp(total) <= 1e-9:
        reason = "the likelihood is flat: no site says anything about the effect"
        nothing = Interval(None, None, reason)
        return PooledProfile(
            beta=None,
            interval=nothing,
            log_likelihood=values,
            notes=tuple(notes),
            reason=reason,
            **common,  # type: ignore[arg-type]
        )
    beta, reason, peak = None, "", float(total[top])
    if 0 < top < len(x) - 1:
        found = optimize.minimize_scalar(
            lambda t: -float(spline(t)), bounds=(x[top - 1], x[top + 1]), method="bounded", options={"xatol": 1e-10}
        )
        beta, peak = float(found.x), -float(found.fun)
    else:
        way = "lowest" if top == 0 else "highest"
        reason = f"the likelihood rises up to the grid's {way} value: there is no finite estimate on it"
    floor = peak - float(special.chdtri(1, 1 - level)) / 2
    above = np.flatnonzero(total > floor)
    inside = beta if beta is not None else float(x[top])
    lb = ub = None
    missing = []
    if len(above):
        first, last = int(above[0]), int(above[-1])
    else:  # so many events that the likelihood is narrower than the grid: both ends lie between two of its points
        first = int(np.searchsorted(x, inside))
        last = first - 1
    if first > 0 and spline(inside) > floor:
        lb = float(optimize.brentq(lambda t: float(spline(t)) - floor, x[first - 1], min(x[first], inside)))
    else:
        missing.append("lower")
    if last < len(x) - 1 and spline(inside) > floor:
        ub = float(optimize.brentq(lambda t: float(spline(t)) - floor, max(x[last], inside), x[last + 1]))
    else:
        missing.append("upper")
    words = f"the {' and the '.join(missing)} limit lies beyond the grid" if missing else ""
    return PooledProfile(
        beta=beta,
        interval=Interval(lb, ub, words),
        log_likelihood=values,
        notes=tuple(notes),
        reason=reason,
        **common,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, kw_only=True)
class ProfilePosterior:
    """Effects that vary between sites, from profiles: posterior of the mean and of tau, by quadrature.

    Attributes:
        sites, level: what was pooled.
        mu, tau: posterior of the mean effect and of the standard deviation between sites.
        prior: the priors, in words.
    """

    sites: tuple[str, ...]
    level: float
    mu: Summary
    tau: Summary
    prior: str
    notes: tuple[str, ...] = ()


def pool_profiles_random(
    profiles: Sequence[Profile], *, scale: float = 0.5, prior_sd: float = 2.0, level: float = 0.95
) -> ProfilePosterior:
    """Random effects from profiles: mu ~ N(0, prior_sd), tau ~ half-normal(scale), each site's effect integrated out.

    Args:
        profiles: as in `pool_profiles`; effects are confined to the range where all grids reach.
        scale, prior_sd: of the priors; EvidenceSynthesis' defaults.
        level: coverage of the central intervals.
    Raises: ParameterError: as `pool_profiles`, or a scale that is not positive.
    """
    for name, value in (("scale", scale), ("prior_sd", prior_sd)):
        if not (math.isfinite(value) and value > 0):
            raise ParameterError(f"{name} must be positive and finite", given=f"{value}")
    x, curves, notes = _joined(profiles, level)
    fine = np.linspace(x[0], x[-1], 1601)
    from scipy.interpolate import CubicSpline

    splines = [CubicSpline(x, curve) for curve in curves]
    likelihood = np.exp(np.stack([spline(fine) for spline in splines]))  # (sites, 1601), at most about 1
    step = fine[1] - fine[0]
    mu = fine[::4]
    at, area = np.polynomial.legendre.leggauss(48)
    tau = 2.5 * scale * (at + 1)  # to five scales, beyond which the prior has 6e-7 of its mass
    log_weight = np.log(area) - 0.5 * (tau / scale) ** 2
    normal_at, normal_area = np.polynomial.hermite_e.hermegauss(25)
    log_post = np.empty((len(tau), len(mu)))
    for j, spread in enumerate(tau):
        if spread > 4 * step:
            kernel = np.exp(-0.5 * ((mu[:, None] - fine) / spread) ** 2) * (step / (spread * math.sqrt(2 * math.pi)))
            inside = kernel @ likelihood.T
        else:  # the kernel is narrower than the grid can show, and the curve is smooth there
            places = np.clip(mu[:, None] + spread * normal_at, x[0], x[-1])
            share = normal_area / normal_area.sum()
            inside = np.stack([np.exp(spline(places)) @ share for spline in splines], axis=1)
        log_post[j] = np.log(np.maximum(inside, 1e-300)).sum(axis=1) - 0.5 * (mu / prior_sd) ** 2 + log_weight[j]
    post = np.exp(log_post - log_post.max())
    post /= post.sum()
    if post[:, [0, -1]].sum() > 1e-6:
        notes.append("The posterior of the mean reaches an end of the grid: it is cut there.")
    return ProfilePosterior(
        sites=tuple(row.site for row in profiles),
        level=level,
        mu=_summary(mu, post.sum(axis=0), level),
        tau=_summary(tau, post.sum(axis=1), level),
        prior=f"mean ~ normal(0, {prior_sd:g}), τ ~ half-normal({scale:g})",
        notes=tuple(notes),
    )


# -- parts ---------------------------------------------------------------------------------------------------
def _joined(profiles: Sequence[Profile], level: float) -> tuple[Array, list[Array], list[str]]:
    """One grid over the range that all share, every curve on it with its maximum at 0, and notes."""
    check_level(level)
    if not profiles:
        raise ParameterError("there must be a profile", given="none")
    names = [row.site for row in profiles]
    if len(set(names)) < len(names):
        raise ParameterError(
            "each site may have one profile",
            given=", ".join(sorted({name for name in names if names.count(name) > 1})),
            next_step="Adding one site's persons twice would understate the error.",
        )
    low = max(row.points[0][0] for row in profiles)
    high = min(row.points[0][-1] for row in profiles)
    if not low < high:
        raise ParameterError("the grids of all sites must overlap", given="grids that do not")
    joined = np.unique(np.concatenate([row.points[0] for row in profiles]))
    joined = joined[(joined >= low) & (joined <= high)]
    # Points that differ in rounding alone would make the spline wild.
    keep = np.concatenate([[True], np.diff(joined) > 1e-9 * (high - low)])
    x = joined[keep]
    if len(x) < 201:
        x = np.linspace(low, high, 201)
    curves, notes = [], []
    for row in profiles:
        curve = np.asarray(row.curve(x))
        curves.append(curve - curve.max())
    if len(profiles) == 1:
        notes.append(f"Only {names[0]} has a profile: nothing was pooled, this is its own result.")
    return x, curves, notes


def _summary(at: Array, weight: Array, level: float) -> Summary:
    mean = float(weight @ at)
    middle = np.cumsum(weight) - weight / 2
    cuts = [float(np.interp(p, middle, at)) for p in (0.5, (1 - level) / 2, (1 + level) / 2)]
    sd = math.sqrt(float(weight @ (at - mean) ** 2))
    return Summary(mean=mean, sd=sd, median=cuts[0], lb=cuts[1], ub=cuts[2])
