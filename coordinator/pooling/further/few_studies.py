"""Answers for a handful of sites: an exact interval, Henmi and Copas' interval, and a Bayesian posterior.

With three hospitals the usual intervals rest on approximations that few studies do not support. Three ways out, each
beside the usual result and never instead of it. `exact_interval` inverts a test whose critical value is simulated
under the least favourable variance between sites, so its coverage is guaranteed under the normal model. `henmi_copas`
keeps the fixed-effect weights, which small-study bias moves least, with an interval that allows for heterogeneity.
`bayes` says openly what is assumed about the heterogeneity (a half-normal prior on tau) and integrates it out by
quadrature: no chains, the same digits each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, optimize, special

from coordinator.pooling.heterogeneity import fit, q_profile, tau2_dl
from coordinator.pooling.pool import PooledResult
from coordinator.pooling.rows import Interval
from shared.errors import EstimateRefusal, ParameterError

__all__ = ["ExactInterval", "HenmiCopas", "Posterior", "Summary", "bayes", "exact_interval", "henmi_copas"]

Array = NDArray[np.float64]


# -- an exact interval -----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class ExactInterval:
    """An interval with guaranteed coverage under the normal model with known variances.

    Attributes:
        beta: DerSimonian-Laird estimate, the centre.
        interval: the interval; empty with a reason for one site.
        critical: half its width in ad hoc Knapp-Hartung standard errors.
        least_favourable_tau2: the variance between sites that asked for the widest interval.
        draws: simulations per variance; the Monte Carlo error of the coverage is about sqrt(0.05 / draws).
    """

    beta: float
    interval: Interval
    critical: float
    least_favourable_tau2: float
    draws: int


def exact_interval(result: PooledResult, rng: np.random.Generator, *, draws: int = 10_000) -> ExactInterval:
    r"""Invert the ad hoc Knapp-Hartung test, its critical value simulated, not looked up.

    For y ~ N(mu, diag(v) + tau2 I) the statistic T = \|b - mu\| / se (b and se by DerSimonian-Laird, se with the ad hoc
    floor) does not depend on mu, so its quantile q(tau2) can be simulated for the very variances at hand. tau2 runs
    over a 99.9 % Q-profile set, and the largest quantile at level 1 - alpha + 0.001 is taken (Berger and Boos 1994):
    then P(miss) <= alpha whatever tau2 is.

    Args:
        result: its rows and level are used.
        rng: the randomness of the simulation; the same state gives the same interval.
        draws: simulations per value of tau2.
    Raises: ParameterError: fewer than 1,000 draws, or a level above 0.99.
    Source: test inversion as in Michael, Thornton, Xie and Tian 2019, Biometrics 75:485; nuisance parameter by Berger
        and Boos 1994, JASA 89:1012.

    >>> from coordinator.pooling.pool import pool
    >>> found = exact_interval(pool([0.1, 0.3, 0.5], [0.02, 0.03, 0.04]), np.random.default_rng(1))
    >>> found.interval.lb < 0.1 < 0.5 < found.interval.ub
    True
    """
    apart = 0.001  # the part of alpha spent on the set of tau2
    if draws < 1000:
        raise ParameterError("draws must be at least 1000", given=f"{draws}")
    if 1 - result.level <= 2 * apart:
        raise ParameterError("an exact interval must have a level below 0.998", given=f"{result.level}")
    _require_apart(result)
    y, v = np.array(result.yi), np.array(result.vi)
    k = len(y)
    if k == 1:
        return ExactInterval(
            beta=result.beta,
            interval=Interval(None, None, "needs at least two sites"),
            critical=0.0,
            least_favourable_tau2=0.0,
            draws=0,
        )
    lb, ub = (float(end) for end in q_profile(y, v, 1 - apart))
    candidates = np.array([0.0])
    if not math.isnan(ub):
        spread = np.geomspace(max(lb, 1e-2 * v.min()), max(ub, 2e-2 * v.min()), 24)
        candidates = np.concatenate([[lb], spread])
    noise = rng.standard_normal((draws, k))
    rank = min(draws, math.ceil((draws + 1) * (result.level + apart))) - 1
    quantiles = []
    for tau2 in candidates:
        centre, se = _adhoc(noise * np.sqrt(v + tau2), v)
        quantiles.append(float(np.partition(np.abs(centre) / se, rank)[rank]))
    worst = int(np.argmax(quantiles))
    beta, error = (float(value) for value in _adhoc(y, v))
    half = quantiles[worst] * error
    return ExactInterval(
        beta=beta,
        interval=Interval(beta - half, beta + half),
        critical=quantiles[worst],
        least_favourable_tau2=float(candidates[worst]),
        draws=draws,
    )


def _require_apart(result: PooledResult) -> None:
    if result.shared:
        raise EstimateRefusal(
            "rows for this interval must have no variance in common",
            given="rows that may be off at every site alike (the planned model, or a map onto one scale)",
            next_step="Use the pooled interval: it holds that variance.",
        )


def _adhoc(y: Array, v: Array) -> tuple[Array, Array]:
    v = np.broadcast_to(v, y.shape)
    model = fit(y, v, tau2_dl(y, v))
    floor = np.maximum(1.0, model.Q / (y.shape[-1] - 1))
    return model.beta[..., 0], np.sqrt(model.vcov[..., 0, 0] * floor)


# -- Henmi and Copas -------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class HenmiCopas:
    """Fixed-effect estimate with an interval that allows for heterogeneity (tau2 by DerSimonian-Laird)."""

    beta: float
    se: float
    tau2: float
    interval: Interval


def henmi_copas(result: PooledResult) -> HenmiCopas:
    """The interval of Henmi and Copas 2010 (Statistics in Medicine 29:2969), robust to small-study bias.

    Needs two rows; with fewer, or where the equation has no root, the interval is empty with the reason.
    """
    _require_apart(result)
    y, v = np.array(result.yi), np.array(result.vi)
    k = len(y)
    unit = float(v.min())
    w = unit / v
    w1 = float(w.sum())
    w2, w3, w4 = (float((w**power).sum()) / w1 for power in (2, 3, 4))
    beta = float(fit(y, v).beta[0])
    if k < 2:
        nothing = Interval(None, None, "needs at least two sites")
        return HenmiCopas(beta=beta, se=math.sqrt(unit / w1), tau2=0.0, interval=nothing)
    tau2 = float(tau2_dl(y, v)) / unit
    vr = 1 + tau2 * w2
    sdr = math.sqrt(vr)
    se = math.sqrt(vr / w1 * unit)

    def expected(r: Array) -> Array:
        return (k - 1) + tau2 * (w1 - w2) + tau2**2 * (r**2 / vr**2 - 1 / vr) * (w3 - w2**2)

    def variance(r: Array) -> Array:
        bend = r**2 / vr**2 - 1 / vr
        return (
            2 * (k - 1)
            + 4 * tau2 * (w1 - w2)
            + 2 * tau2**2 * (w1 * w2 - 2 * w3 + w2**2)
            + 4 * tau2**2 * bend * (w3 - w2**2)
            + 4 * tau2**3 * bend * (w4 - 2 * w2 * w3 + w2**3)
            + 2 * tau2**4 * (1 / vr**2 - 2 * r**2 / vr**3) * (w3 - w2**2) ** 2
        )

    def tail(x: float) -> float:
        def integrand(r: float) -> float:
            at = np.asarray(sdr * r)
            mean, var = float(expected(at)), float(variance(at))
            edge = (w1 / w2 - 1) * ((r / x) ** 2 - 1) + (k - 1)
            if edge <= 0 or var <= 0:
                return 0.0
            return float(special.gammainc(mean**2 / var, edge * mean / var)) * math.exp(-r * r / 2)

        area = integrate.quad(integrand, x, x + 14, epsabs=1e-13, epsrel=1e-11, limit=400)[0]
        return float(area) / math.sqrt(2 * math.pi) - (1 - result.level) / 2

    try:
        u = sdr * float(optimize.brentq(tail, 1e-3, 20, xtol=1e-13, rtol=1e-14))
    except ValueError:
        nothing = Interval(None, None, "the equation of its critical value has no root for these variances")
        return HenmiCopas(beta=beta, se=se, tau2=tau2 * unit, interval=nothing)
    half = u * se
    return HenmiCopas(beta=beta, se=se, tau2=tau2 * unit, interval=Interval(beta - half, beta + half))


# -- Bayes -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Summary:
    """A posterior distribution in five numbers; the interval is central."""

    mean: float
    sd: float
    median: float
    lb: float
    ub: float


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The normal-normal model with a half-normal prior on tau, integrated.

    Attributes:
        labels: the K rows.
        scale: of the half-normal prior on tau, in units of yi.
        prior_mean, prior_sd: of the normal prior on mu; prior_sd None is a flat one.
        level: of every interval.
        mu: the mean effect; tau: the standard deviation between sites; prediction: a new site's true effect.
        effects: each row's own true effect, drawn towards mu.
        shrinkage: per row, the share of its own estimate in the mean of its effect, between 0 and 1.
        positive: posterior probability that mu is above 0.
        notes: sentences a reader must see.
    """

    labels: tuple[str, ...]
    scale: float
    prior_mean: float
    prior_sd: float | None
    level: float
    mu: Summary
    tau: Summary
    prediction: Summary
    effects: tuple[Summary, ...]
    shrinkage: tuple[float, ...]
    positive: float
    notes: tuple[str, ...] = ()


def bayes(
    result: PooledResult, *, scale: float = 0.5, prior_mean: float = 0.0, prior_sd: float | None = None
) -> Posterior:
    """Posterior of mu, tau, a new site and every site's own effect.

    Given tau everything is normal; tau is integrated out on Gauss-Legendre panels, spaced evenly in log tau so that a
    posterior that hugs 0 is resolved as well as a wide one.

    Args:
        result: its rows and level are used.
        scale: of the half-normal prior on tau; 0.5 is usual for log ratios and must be chosen for anything else.
        prior_mean, prior_sd: normal prior on mu; None is flat.
    Raises: ParameterError: a scale or prior_sd that is not positive and finite.
    Source: Roever 2020, Journal of Statistical Software 93(6); Roever et al. 2021, Research Synthesis Methods 12:448.

    >>> from coordinator.pooling.pool import pool
    >>> found = bayes(pool([0.1, 0.3, 0.5], [0.02, 0.03, 0.04]))
    >>> round(found.mu.mean, 3), found.mu.lb < 0.2 < found.mu.ub
    (0.278, True)
    """
    for name, value in (("scale", scale), ("prior_sd", 1.0 if prior_sd is None else prior_sd)):
        if not (math.isfinite(value) and value > 0):
            raise ParameterError(f"{name} must be positive and finite", given=f"{value}")
    if not math.isfinite(prior_mean):
        raise ParameterError("prior_mean must be finite", given=f"{prior_mean}")
    _require_apart(result)
    y, v = np.array(result.yi), np.array(result.vi)
    origin = float(y[v.argmin()])
    y, centre = y - origin, prior_mean - origin
    precision = 0.0 if prior_sd is None else prior_sd**-2

    def given_tau(tau: Array) -> tuple[Array, Array, Array]:
        """Log posterior density of tau up to a constant, mean and variance of mu given tau."""
        w = 1 / (v + tau[:, None] ** 2)
        total = w.sum(axis=1) + precision
        mean = (w @ y + precision * centre) / total
        misfit = (w * (y - mean[:, None]) ** 2).sum(axis=1) + precision * (mean - centre) ** 2
        density = 0.5 * (np.log(w).sum(axis=1) - np.log(total) - misfit) - 0.5 * (tau / scale) ** 2
        return density, mean, 1 / total

    tau, weight = _nodes(lambda t: given_tau(t)[0], scale, math.sqrt(float(v.min())))
    _, mean, var = given_tau(tau)
    level = result.level
    # A site's effect given tau: its own estimate and mu, weighted by precision; mu's uncertainty is carried along.
    own = tau[:, None] ** 2 / (v + tau[:, None] ** 2)
    effect_mean = own * y + (1 - own) * mean[:, None]
    effect_var = own * v + (1 - own) ** 2 * var[:, None]
    ends = np.concatenate([[0.0], np.cumsum(weight)])
    cuts = [float(np.interp(p, ends[1:] - weight / 2, tau)) for p in (0.5, (1 - level) / 2, (1 + level) / 2)]
    tau_mean = float(weight @ tau)
    notes = []
    if result.scale not in ("log", "logit") and scale == 0.5:
        notes.append("The prior's scale 0.5 is meant for log ratios: choose one in the units of this estimate.")
    if len(y) < 3:
        notes.append("With fewer than three sites the posterior of τ is nearly its prior.")
    return Posterior(
        labels=result.labels,
        scale=scale,
        prior_mean=prior_mean,
        prior_sd=prior_sd,
        level=level,
        mu=_mixture(weight, mean, var, level, origin),
        tau=Summary(
            mean=tau_mean,
            sd=math.sqrt(max(0.0, float(weight @ (tau - tau_mean) ** 2))),
            median=cuts[0],
            lb=cuts[1],
            ub=cuts[2],
        ),
        prediction=_mixture(weight, mean, var + tau**2, level, origin),
        effects=tuple(_mixture(weight, effect_mean[:, i], effect_var[:, i], level, origin) for i in range(len(y))),
        shrinkage=tuple((weight @ own).tolist()),
        positive=float(weight @ special.ndtr((mean + origin) / np.sqrt(var))),
        notes=tuple(notes),
    )


def _nodes(log_density: Callable[[Array], Array], scale: float, error: float) -> tuple[Array, Array]:
    """(M,) values of tau and their posterior probabilities."""
    search = np.concatenate([[0.0], np.geomspace(min(scale, error) * 1e-4, 40 * scale, 4000)])
    height = log_density(search)
    # What counts is mass: density times the width that a point stands for.
    mass = height + np.log(np.maximum(search, search[1]))
    inside = np.flatnonzero(mass > mass.max() - 46)  # e^-46 is 1e-20
    low, high = search[max(inside[0] - 1, 0)], search[min(inside[-1] + 1, len(search) - 1)]
    start = max(low, search[1])
    panels = max(24, math.ceil(12 * math.log10(high / start)))
    edges = np.geomspace(start, high, panels + 1)
    if low < start:
        edges = np.concatenate([[0.0], edges])
    # A peak far from 0 is narrower than a panel of a fixed ratio: the span around it is cut evenly too.
    edges = np.unique(np.concatenate([edges, np.linspace(low, high, 25)]))
    at, area = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges)[:, None] / 2
    tau = ((edges[:-1] + edges[1:])[:, None] / 2 + half * at).ravel()
    density = log_density(tau)
    weight = np.exp(density - density.max()) * (half * area).ravel()
    return tau, weight / weight.sum()


def _mixture(weight: Array, mean: Array, var: Array, level: float, origin: float) -> Summary:
    """Summary of a mixture of normals: moments in closed form, quantiles by a bracketing root."""
    sd = np.sqrt(var)
    centre = float(weight @ mean)
    spread = math.sqrt(float(weight @ (var + (mean - centre) ** 2)))
    heavy = weight > 1e-18
    low, high = float((mean - 40 * sd)[heavy].min()), float((mean + 40 * sd)[heavy].max())

    def quantile(p: float) -> float:
        return float(
            optimize.brentq(lambda x: float(weight @ special.ndtr((x - mean) / sd)) - p, low, high, rtol=1e-13)
        )

    median, lb, ub = (quantile(p) + origin for p in (0.5, (1 - level) / 2, (1 + level) / 2))
    return Summary(mean=centre + origin, sd=spread, median=median, lb=lb, ub=ub)
