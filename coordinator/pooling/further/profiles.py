"""Pool whole likelihoods where an estimate and its standard error would mislead: small counts, empty arms.

A site with no event in one arm has no finite log odds ratio, yet it says something about the effect. Its likelihood
says all of it. Under one common effect the sites' log-likelihoods are simply added; nothing is approximated by a normal
curve, and a site without a finite estimate takes part. A profile of a privatised release would take its rows for
patients, so none is made of one; these are of counts, or of what other programs wrote.

Source: M. J. Schuemie et al. (2022), Combining Cox regressions across a heterogeneous distributed research network
facing small and zero counts, Statistical Methods in Medical Research 31:438; the forms are those of its program,
EvidenceSynthesis.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from coordinator.pooling.further.few_studies import Summary
from coordinator.pooling.rows import Excluded, Interval, check_level
from shared.errors import ParameterError

__all__ = ["PooledProfile", "Profile", "ProfilePosterior", "counts_profile", "custom_profile", "grid_profile"]
__all__ += ["normal_profile", "pool_profiles", "pool_profiles_random", "skew_normal_profile"]

Array = NDArray[np.float64]
_LEAST_POINTS = 5
_FARTHEST = 10.0
"""Largest |log ratio| at which a likelihood given by a formula is evaluated, the same as in EvidenceSynthesis."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One site's log-likelihood of one parameter, up to a constant.

    Args:
        label: the site.
        curve: (…,) values of the parameter to the log-likelihood there.
        points: (G,) increasing values from the least to the largest that the curve is of, closer where it bends more.
    """

    label: str
    curve: Callable[[Array], Array]
    points: Array


def grid_profile(label: str, at: ArrayLike, value: ArrayLike, derivative: ArrayLike | None = None) -> Profile:
    """Profile from a log-likelihood at points: a cubic spline through them, or a Hermite spline with its slopes.

    Args:
        label: the site.
        at: (G,) values of the parameter, in any order. value: (G,) the log-likelihood; not finite where it is unknown.
        derivative: (G,) its slopes.
    Raises: ParameterError: a point twice, fewer than five known ones (two with slopes), an unknown one between others.

    >>> found = grid_profile("A", [-2, -1, 0, 1, 2], [-4, -1, 0, -1, -4])
    >>> float(found.curve(np.array(0.5)))
    -0.25
    """
    from scipy.interpolate import CubicHermiteSpline, CubicSpline

    columns = [np.asarray(one, dtype=float) for one in (at, value, *([] if derivative is None else [derivative]))]
    table = np.stack(columns, axis=1)
    table = table[np.argsort(table[:, 0], kind="stable")]
    known = np.flatnonzero(np.isfinite(table).all(axis=1))
    least = _LEAST_POINTS if derivative is None else 2
    if len(known) < least:
        given = f"{len(known)}"
        raise ParameterError(f"the profile of {label!r} must have {least} points with a value", given=given)
    table = table[known[0] : known[-1] + 1]
    if len(known) < len(table):
        raise ParameterError(
            f"the profile of {label!r} must have a value at each point between two others", given="none"
        )
    x = table[:, 0]
    if not (np.diff(x) > 0).all():
        raise ParameterError(f"the profile of {label!r} must have each point once", given="one twice")
    y = table[:, 1] - table[:, 1].max()
    curve = CubicSpline(x, y) if derivative is None else CubicHermiteSpline(x, y, table[:, 2])
    return Profile(label=label, curve=curve, points=x)


def normal_profile(label: str, mean: float, se: float) -> Profile:
    """The likelihood that an estimate and its standard error stand for. Raises: ParameterError."""
    _positive(label, "standard error", se)
    return Profile(label=label, curve=lambda x: -0.5 * ((x - mean) / se) ** 2, points=_around(mean, se))


def custom_profile(label: str, mu: float, sigma: float, gamma: float) -> Profile:
    r"""EvidenceSynthesis' own form for a Cox model: :math:`-e^{γ(x-μ)} (x-μ)^2 / (2σ^2)`. Raises: ParameterError."""
    _positive(label, "sigma", sigma)

    def curve(x: Array) -> Array:
        apart = x - mu
        return np.asarray(-np.exp(np.minimum(gamma * apart, 500.0)) * (apart / sigma) ** 2 / 2)

    return Profile(label=label, curve=curve, points=_around(mu, sigma))


def skew_normal_profile(label: str, mu: float, sigma: float, alpha: float) -> Profile:
    r"""A skew-normal curve: :math:`log φ(z) + log Φ(α z)`, z = (x - μ) / σ (Azzalini 2013). Raises: ParameterError."""
    _positive(label, "sigma", sigma)

    def curve(x: Array) -> Array:
        z = (x - mu) / sigma
        return np.asarray(-0.5 * z**2 + special.log_ndtr(alpha * z))

    return Profile(label=label, curve=curve, points=_around(mu, sigma))


def _positive(label: str, what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ParameterError(f"the {what} of {label!r} must be positive and finite", given=f"{value:g}")


def _around(mean: float, spread: float) -> Array:
    """Points of a formula: over the whole reach, and closely around where it is highest."""
    if not math.isfinite(mean) or abs(mean) > _FARTHEST:
        raise ParameterError(f"a likelihood must be highest within {_FARTHEST:g} of 0", given=f"{mean:g}")
    near = mean + spread * np.linspace(-8, 8, 161)
    wide = np.linspace(-_FARTHEST, _FARTHEST, 401)
    return np.unique(np.concatenate([wide, near[np.abs(near) <= _FARTHEST]]))


def counts_profile(label: str, ai: int, bi: int, ci: int, di: int) -> Profile:
    """The conditional likelihood of the log odds ratio of a 2x2 table, given both margins; zeros are no trouble.

    Args:
        label: the site.
        ai, bi, ci, di: events and none in the first group, then in the second.
    Raises: ParameterError: counts that are not whole or are negative.
    Source: Fisher's noncentral hypergeometric distribution (Breslow and Day 1980, section 4.2).

    >>> flat = counts_profile("A", 0, 50, 0, 50)
    >>> bool(np.ptp(flat.curve(np.linspace(-2, 2, 9))) == 0)
    True
    """
    cells = (ai, bi, ci, di)
    if any(cell < 0 or cell != int(cell) for cell in cells):
        raise ParameterError(f"the table of {label!r} must hold whole counts", given="others")
    n1, n2, events = ai + bi, ci + di, ai + ci
    possible = np.arange(max(0, events - n2), min(n1, events) + 1, dtype=float)
    ways = -special.betaln(possible + 1, n1 - possible + 1) - special.betaln(
        events - possible + 1, n2 - events + possible + 1
    )
    # Relative to the table seen, so that a table that allows nothing else is exactly flat.
    ways -= ways[int(ai - possible[0])]

    def curve(x: Array) -> Array:
        at = np.asarray(x, dtype=float)
        return -np.array([_log_sum(ways, possible - ai, value) for value in at.ravel()]).reshape(at.shape)

    return Profile(label=label, curve=curve, points=np.linspace(-_FARTHEST, _FARTHEST, 401))


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
        labels: the sites that were added.
        beta: argmax of the sum; None, with `reason`, if the sum rises to an end of the range that all curves cover.
        interval: set on which the sum is within half a chi-square quantile of its maximum; an end beyond the curves
            is None with the reason.
        QE, df, QEp: twice the sum of the sites' own maxima less the sum's maximum, its degrees of freedom and p: the
            likelihood-ratio test of one effect; None where a site has no maximum of its own.
        own: argmax of each site's own curve; None where it rises to an end.
        uninformative: sites whose curve is flat; they are added and change nothing.
        excluded: sites without a usable curve.
        notes: sentences a reader must see.
    """

    labels: tuple[str, ...]
    level: float
    beta: float | None
    interval: Interval
    own: tuple[float | None, ...]
    QE: float | None = None
    df: int = 0
    QEp: float | None = None
    uninformative: tuple[str, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""


def pool_profiles(
    profiles: Sequence[Profile], *, level: float = 0.95, excluded: Sequence[Excluded] = ()
) -> PooledProfile:
    """Add the log-likelihoods; the interval inverts the likelihood-ratio test.

    Args:
        profiles: one per site, of one parameter; they are added where all of them reach.
        level: coverage. excluded: sites without a profile.
    Raises: ParameterError: no profile, the same site twice, profiles that do not overlap, or a level outside (0, 1).

    >>> found = pool_profiles([counts_profile("A", 0, 100, 4, 96), counts_profile("B", 2, 98, 5, 95)])
    >>> round(found.beta, 2), round(found.interval.lb, 2), round(found.interval.ub, 2), found.own[0]
    (-1.54, -3.42, -0.17, None)
    """
    x, notes = _joined(profiles, level)
    each = np.stack([np.asarray(row.curve(x)) for row in profiles])
    spread = np.ptp(each, axis=1)
    flat = tuple(row.label for row, wide in zip(profiles, spread, strict=True) if wide <= 1e-9)
    total = each.sum(axis=0)
    common = {
        "labels": tuple(row.label for row in profiles),
        "level": level,
        "uninformative": flat,
        "excluded": tuple(excluded),
        "notes": tuple(notes),
    }
    if np.ptp(total) <= 1e-9:
        reason = "the likelihood is flat: no site says anything about the effect"
        own: tuple[float | None, ...] = (None,) * len(profiles)
        return PooledProfile(beta=None, interval=Interval(None, None, reason), own=own, reason=reason, **common)  # type: ignore[arg-type]

    added = _at_one(*profiles)
    beta, peak, reason = _highest(added, x, total)
    floor = peak - float(special.chdtri(1, 1 - level)) / 2
    lb, ub = _crossing(added, x, total, beta, floor)
    missing = [name for name, end in (("lower", lb), ("upper", ub)) if end is None]
    words = f"the {' and the '.join(missing)} limit lies beyond the curves" if missing else ""
    alone = [_highest(_at_one(row), x, y) for row, y in zip(profiles, each, strict=True)]
    q = None if reason or any(why for _, _, why in alone) else max(2 * (sum(top for _, top, _ in alone) - peak), 0.0)
    df = len(profiles) - 1
    return PooledProfile(
        beta=None if reason else beta,
        interval=Interval(lb, ub, words),
        own=tuple(None if why else at for at, _, why in alone),
        QE=q,
        df=df,
        QEp=None if q is None else float(special.chdtrc(df, q)) if df else 1.0,
        reason=reason,
        **common,  # type: ignore[arg-type]
    )


def _at_one(*profiles: Profile) -> Callable[[float], float]:
    """Their sum at one value."""
    return lambda t: sum(float(row.curve(np.array(t))) for row in profiles)


def _highest(curve: Callable[[float], float], x: Array, y: Array) -> tuple[float, float, str]:
    """Argmax and maximum of a curve with values y at x, and the reason why that is no maximum (blank if it is)."""
    top = int(y.argmax())
    if top in (0, len(x) - 1):
        way = "lowest" if top == 0 else "highest"
        why = f"the likelihood rises up to the {way} value of the curves: there is no finite estimate on them"
        return float(x[top]), float(y[top]), why
    found = optimize.minimize_scalar(
        lambda t: -curve(t), bounds=(x[top - 1], x[top + 1]), method="bounded", options={"xatol": 1e-10}
    )
    return float(found.x), -float(found.fun), ""


def _crossing(
    curve: Callable[[float], float], x: Array, y: Array, inside: float, floor: float
) -> tuple[float | None, float | None]:
    """The outermost points between which a curve is above `floor`; None where it is so up to the end."""
    above = [inside, *x[y > floor]]
    ends: list[float | None] = []
    for inner, beyond in ((min(above), x[x < min(above)][-1:]), (max(above), x[x > max(above)][:1])):
        # At the end of the curves, or rising towards it, nothing beyond is known.
        known = len(beyond) and curve(inner) > floor
        ends.append(float(optimize.brentq(lambda t: curve(t) - floor, inner, beyond[0], xtol=1e-12)) if known else None)
    return ends[0], ends[1]


@dataclass(frozen=True, kw_only=True)
class ProfilePosterior:
    """Effects that vary between sites, from profiles: posterior of the mean and of tau, by quadrature.

    Attributes:
        labels, level: the sites, and the coverage of the intervals.
        mu, tau: posterior of the mean effect and of the standard deviation between sites.
        prior: the priors, in words.
    """

    labels: tuple[str, ...]
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
        profiles: as in `pool_profiles`; effects are confined to where all of them reach.
        scale, prior_sd: of the priors; EvidenceSynthesis' defaults.
        level: coverage of the central intervals.
    Raises: ParameterError: as `pool_profiles`, or a scale that is not positive.
    """
    for name, value in (("scale", scale), ("prior_sd", prior_sd)):
        if not (math.isfinite(value) and value > 0):
            raise ParameterError(f"{name} must be positive and finite", given=f"{value}")
    x, notes = _joined(profiles, level)
    fine = np.linspace(x[0], x[-1], 1601)
    highest = [float(np.max(row.curve(x))) for row in profiles]

    def each(at: Array) -> Array:
        """(sites, …) likelihoods, about 1 at most."""
        return np.exp(np.stack([row.curve(at) - top for row, top in zip(profiles, highest, strict=True)]))

    likelihood = each(fine)
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
            inside = (each(places) @ share).T
        log_post[j] = np.log(np.maximum(inside, 1e-300)).sum(axis=1) - 0.5 * (mu / prior_sd) ** 2 + log_weight[j]
    post = np.exp(log_post - log_post.max())
    post /= post.sum()
    if post[:, [0, -1]].sum() > 1e-6:
        notes.append("The posterior of the mean reaches an end of the grid: it is cut there.")
    return ProfilePosterior(
        labels=tuple(row.label for row in profiles),
        level=level,
        mu=_summary(mu, post.sum(axis=0), level),
        tau=_summary(tau, post.sum(axis=1), level),
        prior=f"mean ~ normal(0, {prior_sd:g}), τ ~ half-normal({scale:g})",
        notes=tuple(notes),
    )


def _joined(profiles: Sequence[Profile], level: float) -> tuple[Array, list[str]]:
    """The points of all curves that lie where all of them reach, and notes."""
    check_level(level)
    if not profiles:
        raise ParameterError("there must be a profile", given="none")
    names = [row.label for row in profiles]
    if len(set(names)) < len(names):
        raise ParameterError(
            "each site may have one profile",
            given=", ".join(sorted({name for name in names if names.count(name) > 1})),
            next_step="Adding one site's persons twice would understate the error.",
        )
    low, high = max(row.points[0] for row in profiles), min(row.points[-1] for row in profiles)
    if not low < high:
        raise ParameterError("the profiles of all sites must overlap", given="profiles that do not")
    joined = np.unique(np.concatenate([np.linspace(low, high, 201), *(row.points for row in profiles)]))
    # Points that differ in rounding alone would hide a maximum that lies beyond both.
    joined = joined[np.concatenate([[True], np.diff(joined) > 1e-9 * (high - low)])]
    notes = [f"Only {names[0]} has a profile: nothing was pooled, this is its own result."] if len(names) == 1 else []
    return joined[(joined >= low) & (joined <= high)], notes


def _summary(at: Array, weight: Array, level: float) -> Summary:
    mean = float(weight @ at)
    middle = np.cumsum(weight) - weight / 2
    cuts = [float(np.interp(p, middle, at)) for p in (0.5, (1 - level) / 2, (1 + level) / 2)]
    sd = math.sqrt(float(weight @ (at - mean) ** 2))
    return Summary(mean=mean, sd=sd, median=cuts[0], lb=cuts[1], ub=cuts[2])
