"""Diagnostics: influence of single sites, funnel asymmetry, missing studies.

All functions take a `PooledResult` and refit its rows. The tests for asymmetry (Egger, Begg) and trim-and-fill say
little with few studies and mislead easily, so below ten rows they answer with the reason instead of a number; with
few hospitals that is the usual case. `least` lowers the bar for those who know why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coordinator.pooling.heterogeneity import Method, Test, estimate_tau2, fit
from coordinator.pooling.moderators import regress
from coordinator.pooling.pool import PooledResult, pool
from coordinator.pooling.subgroups import regressed
from shared.errors import ParameterError

__all__ = [
    "Asymmetry",
    "Baujat",
    "Influence",
    "Shrunken",
    "TrimFill",
    "baujat",
    "begg",
    "egger",
    "influence",
    "shrunken",
    "trim_and_fill",
]

Array = NDArray[np.float64]
_LEAST = 10
_FEW = "off below {least} studies: with so few it says little and misleads easily"


@dataclass(frozen=True, kw_only=True)
class Influence:
    """Leave-one-out diagnostics: every entry is K numbers, in the order of `labels`.

    Attributes:
        rstudent: the row's distance from the others' pooled effect, in standard errors.
        dffits: change of its fitted value, in standard errors.
        cook_d: squared change of the pooled effect, in squared standard errors.
        cov_r: the pooled variance without the row over that with it.
        tau2_del, QE_del: tau2 and Q of the others.
        hat, weight: leverage in [0, 1] and weight in percent.
        dfbeta: change of the pooled effect, in standard errors of the fit with the others' tau2.
        rstandard: its distance from the pooled effect of all, in standard errors.
        influential: metafor's rule: large dffits, Cook's distance, leverage or dfbeta.
        reason: reason why there are no numbers (fewer than three rows); every entry is then empty.
    Source: Viechtbauer and Cheung 2010, Research Synthesis Methods 1:112.
    """

    labels: tuple[str, ...]
    rstudent: tuple[float, ...] = ()
    dffits: tuple[float, ...] = ()
    cook_d: tuple[float, ...] = ()
    cov_r: tuple[float, ...] = ()
    tau2_del: tuple[float, ...] = ()
    QE_del: tuple[float, ...] = ()
    hat: tuple[float, ...] = ()
    weight: tuple[float, ...] = ()
    dfbeta: tuple[float, ...] = ()
    rstandard: tuple[float, ...] = ()
    influential: tuple[bool, ...] = ()
    reason: str = ""


def influence(result: PooledResult) -> Influence:
    """Leave each row out in turn, all at once.

    >>> found = influence(pool([0.1, 0.2, 0.15, 0.9], [0.01, 0.02, 0.01, 0.02], labels=["A", "B", "C", "D"]))
    >>> [label for label, flag in zip(found.labels, found.influential) if flag]
    ['D']
    """
    k = result.k
    if k < 3:
        return Influence(labels=result.labels, reason="needs at least three rows: without one, others must remain")
    y, v = np.array(result.yi), np.array(result.vi)
    others = np.array([[j for j in range(k) if j != i] for i in range(k)])
    y_del, v_del = y[others], v[others]
    tau2 = estimate_tau2(y_del, v_del, result.method)[0]
    model = fit(y_del, v_del, tau2)
    beta, var = model.beta[:, 0], model.vcov[:, 0, 0]
    q_del = fit(y_del, v_del).Q
    factor = np.ones(k)
    if result.test in ("knha", "adhoc"):
        factor = model.Q / (k - 2)
        if result.test == "adhoc":
            factor = np.maximum(1.0, factor)
        # Without width (residuals of rounding noise) there is nothing to compare with: the model's own is used.
        factor = np.where(factor * var <= (8 * np.finfo(float).eps * np.abs(y).max()) ** 2, 1.0, factor)
    plain, var = var, var * factor
    hat = np.array(result.weights) / 100
    change = result.beta - beta
    # The pooled variance over all rows, had tau2 been that of the others.
    with_all = factor / (1 / (v + tau2[:, None])).sum(axis=1)
    dffits = change / np.sqrt(factor * hat * (tau2 + v))
    cook = change**2 / result.se**2
    dfbeta = change / np.sqrt(with_all)
    # metafor scales the deleted residuals by the factor of the others, and these by none.
    residual_var = (result.tau2 + v) * _free(1 / (v + result.tau2))
    bound = 3 * math.sqrt(1 / (k - 1))
    flagged = (np.abs(dffits) > bound) | (special.chdtr(1, cook) > 0.5) | (hat > 3 / k) | (np.abs(dfbeta) > 1)
    return Influence(
        labels=result.labels,
        rstudent=_tuple((y - beta) / np.sqrt(factor * (v + tau2 + plain))),
        dffits=_tuple(dffits),
        cook_d=_tuple(cook),
        cov_r=_tuple(var / result.se**2),
        tau2_del=_tuple(tau2),
        QE_del=_tuple(q_del),
        hat=_tuple(hat),
        weight=result.weights,
        dfbeta=_tuple(dfbeta),
        rstandard=_tuple((y - result.beta) / np.sqrt(residual_var)),
        influential=tuple(flagged.tolist()),
    )


@dataclass(frozen=True)
class Baujat:
    """Per row: its share of Q, and its influence on the fixed- or random-effects mean (Baujat et al. 2002)."""

    labels: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]


def baujat(result: PooledResult) -> Baujat:
    """Coordinates of the Baujat plot: heterogeneity against influence; two rows at least, else empty."""
    k = result.k
    if k < 2:
        return Baujat(result.labels, (), ())
    y, v = np.array(result.yi), np.array(result.vi)
    others = np.array([[j for j in range(k) if j != i] for i in range(k)])
    tau2 = estimate_tau2(y[others], v[others], result.method)[0] if k > 2 else np.zeros(k)
    model = fit(y[others], v[others], tau2)
    share = (y - result.beta) ** 2 / (v + result.tau2)
    return Baujat(result.labels, _tuple(share), _tuple((result.beta - model.beta[:, 0]) ** 2 / model.vcov[:, 0, 0]))


@dataclass(frozen=True)
class Shrunken:
    """Best linear unbiased predictions of each row's own true effect (metafor's ``blup``)."""

    labels: tuple[str, ...]
    pred: tuple[float, ...]
    se: tuple[float, ...]
    pi_lb: tuple[float, ...]
    pi_ub: tuple[float, ...]


def shrunken(result: PooledResult) -> Shrunken:
    """Each row's effect drawn towards the pooled one, as far as its own error asks for (Raudenbush and Bryk 1985)."""
    y, v = np.array(result.yi), np.array(result.vi)
    weight = result.tau2 / (result.tau2 + v)
    pred = weight * y + (1 - weight) * result.beta
    se = np.sqrt(weight * v + (1 - weight) ** 2 * result.se**2)
    half = result.critical * se
    return Shrunken(result.labels, _tuple(pred), _tuple(se), _tuple(pred - half), _tuple(pred + half))


@dataclass(frozen=True, kw_only=True)
class Asymmetry:
    """A test for small-study effects; with a reason instead of numbers where it is off.

    Attributes:
        stat, df, pval: the statistic, its degrees of freedom (None: normal, or a rank test), the two-sided p-value.
        limit, limit_lb, limit_ub: the effect of an infinitely precise study and its interval; None for a rank test.
        coef, coef_se: intercept and slope, with standard errors.
        reason: reason why there are no numbers; blank where there are.
    """

    name: str
    stat: float | None = None
    df: int | None = None
    pval: float | None = None
    limit: float | None = None
    limit_lb: float | None = None
    limit_ub: float | None = None
    coef: tuple[float, ...] = ()
    coef_se: tuple[float, ...] = ()
    reason: str = ""


def egger(
    result: PooledResult,
    *,
    model: Literal["lm", "rma"] = "lm",
    predictor: Literal["sei", "vi"] = "sei",
    least: int = _LEAST,
) -> Asymmetry:
    """Regress the estimates on their standard errors: a slope says that small studies differ.

    What all rows may be off by alike is in the limit's standard error, and in the slope's as far as it differs by row.

    Args:
        result: with ``rma``, its method and test are kept.
        model: ``lm``: the classical test, residual variance estimated, t with K - 2 df; ``rma``: meta-regression.
        predictor: standard error or variance.
        least: rows below which the test is off.
    Source: Egger, Davey Smith, Schneider and Minder 1997, BMJ 315:629; Sterne et al. 2011, BMJ 343:d4002 (ten).
    """
    name = "Egger's regression test" if model == "lm" else "regression test (random effects)"
    v = np.array(result.vi)
    moderator = np.sqrt(v) if predictor == "sei" else v
    reason = _off(result, moderator, max(3, least))
    if reason:
        return Asymmetry(name=name, reason=reason)
    method: Method = "FE" if model == "lm" else result.method
    test: Test = "knha" if model == "lm" else result.test
    found = regressed(replace(result, method=method, test=test), {predictor: moderator.tolist()})
    if found.p < 2 or (model == "lm" and found.test != "knha"):
        return Asymmetry(name=name, reason="the estimates lie on a line: there is no error to test against")
    return Asymmetry(
        name=name,
        stat=found.zval[1],
        df=None if found.test == "z" else found.df,
        pval=found.pval[1],
        limit=found.beta[0],
        limit_lb=found.ci_lb[0],
        limit_ub=found.ci_ub[0],
        coef=found.beta,
        coef_se=found.se,
    )


def begg(result: PooledResult, *, least: int = _LEAST) -> Asymmetry:
    """Rank correlation of standardised estimates with their variances: `stat` is Kendall's tau.

    Source: Begg and Mazumdar 1994, Biometrics 50:1088.
    """
    from scipy import stats

    name = "Begg and Mazumdar's rank test"
    v = np.array(result.vi)
    reason = _off(result, v, max(3, least))
    if reason:
        return Asymmetry(name=name, reason=reason)
    fixed = result.fixed
    star = (np.array(result.yi) - fixed.beta) / np.sqrt(v * _free(1 / v))
    found = stats.kendalltau(star, v)
    if not math.isfinite(found.statistic):
        return Asymmetry(name=name, reason="all estimates agree: they have no order")
    return Asymmetry(name=name, stat=float(found.statistic), pval=float(found.pvalue))


@dataclass(frozen=True, kw_only=True)
class TrimFill:
    """Trim-and-fill: number of missing studies, and the answer with them; a sensitivity analysis.

    Attributes:
        side: side of the funnel on which studies would be missing.
        k0, se_k0: their estimated number and its standard error; p_k0 is given by the estimator ``R0`` alone.
        filled_yi, filled_vi: mirror images of the most extreme rows.
        result: the refit with them; None when the method is off.
        reason: reason why it is off; blank where it is not.
    """

    side: Literal["left", "right"] | None = None
    k0: int | None = None
    se_k0: float | None = None
    p_k0: float | None = None
    filled_yi: tuple[float, ...] = ()
    filled_vi: tuple[float, ...] = ()
    result: PooledResult | None = None
    reason: str = ""


def trim_and_fill(
    result: PooledResult, *, estimator: Literal["L0", "R0", "Q0"] = "L0", least: int = _LEAST
) -> TrimFill:
    """Trim the extreme side until the funnel is symmetric, then put the trimmed rows and their mirror images back.

    Source: Duval and Tweedie 2000, Biometrics 56:455 and JASA 95:89.
    Raises: ParameterError: another estimator.
    """
    if estimator not in ("L0", "R0", "Q0"):
        raise ParameterError("estimator must be one of L0, R0, Q0", given=repr(estimator))
    v_all = np.array(result.vi)
    reason = _off(result, v_all, max(3, least))
    if reason:
        return TrimFill(reason=reason)
    slope = regress(result.yi, result.vi, {"sei": np.sqrt(v_all).tolist()}, method=result.method, test="z")
    side: Literal["left", "right"] = "right" if slope.p > 1 and slope.beta[1] < 0 else "left"
    flip = -1.0 if side == "right" else 1.0
    order = np.argsort(flip * np.array(result.yi), kind="stable")
    y, v = flip * np.array(result.yi)[order], v_all[order]
    k, k0 = result.k, 0
    raw = 0.0
    for _ in range(100):
        untrimmed = slice(0, k - k0)
        tau2 = float(estimate_tau2(y[untrimmed], v[untrimmed], result.method)[0]) if k - k0 > 1 else 0.0
        centre = float(fit(y[untrimmed], v[untrimmed], np.array(tau2)).beta[0])
        away = y - centre
        rank = np.empty(k)
        rank[np.argsort(np.abs(away), kind="stable")] = np.arange(1, k + 1)
        raw = _missing(np.sign(away) * rank, k, estimator)
        previous, k0 = k0, min(round(max(0.0, raw)), k - 2)
        if k0 == previous:
            break
    else:
        return TrimFill(side=side, reason="the number of missing studies does not settle")
    mirrored = 2 * centre - y[k - k0 :]
    filled_y, filled_v = flip * mirrored, v[k - k0 :]
    labels = [*result.labels, *(f"filled {i + 1}" for i in range(k0))]
    refit = pool(
        [*result.yi, *filled_y.tolist()],
        [*result.vi, *filled_v.tolist()],
        method=result.method,
        test=result.test,
        level=result.level,
        labels=labels,
    )
    return TrimFill(
        side=side,
        k0=k0,
        se_k0=_missing_se(raw, k, estimator),
        p_k0=0.5 ** (k0 + 1) if estimator == "R0" else None,
        filled_yi=_tuple(filled_y),
        filled_vi=_tuple(filled_v),
        result=replace(refit, term=result.term, scale=result.scale, shared=result.shared),
    )


# -- parts ---------------------------------------------------------------------------------------------------
def _off(result: PooledResult, precision: Array, least: int) -> str:
    if result.k < least:
        return _FEW.format(least=least)
    if np.ptp(precision) <= 1e-12 * np.abs(precision).max():
        return "all studies are equally precise: there are no small ones to compare"
    return ""


def _free(w: Array) -> Array:
    """1 - w / sum w, for each weight, without the subtraction that cancels for a dominant one."""
    before = np.concatenate([[0.0], np.cumsum(w)[:-1]])
    after = np.concatenate([np.cumsum(w[::-1])[::-1][1:], [0.0]])
    return np.asarray((before + after) / w.sum())


def _missing(signed: Array, k: int, estimator: str) -> float:
    positive = float(signed[signed > 0].sum())
    if estimator == "R0":
        negative = signed[signed < 0]
        return float(k - (-negative).max() - 1) if len(negative) else float(k - 1)
    if estimator == "L0":
        return (4 * positive - k * (k + 1)) / (2 * k - 1)
    return k - 0.5 - math.sqrt(max(0.0, 2 * k**2 - 4 * positive + 0.25))


def _missing_se(k0: float, k: int, estimator: str) -> float | None:
    """The published formulas; None where the variance they give is not positive, far outside their range."""
    if estimator == "R0":
        return math.sqrt(2 * max(0.0, k0) + 2)
    var = k * (k + 1) * (2 * k + 1) + 10 * k0**3 + 27 * k0**2 + 17 * k0
    var = (var - 18 * k * k0**2 - 18 * k * k0 + 6 * k**2 * k0) / 24
    if var <= 0:
        return None
    if estimator == "L0":
        return 4 * math.sqrt(var) / (2 * k - 1)
    scale = (k - 0.5) ** 2 - k0 * (2 * k - k0 - 1)
    return 2 * math.sqrt(var / scale) if scale > 0 else None


def _tuple(values: Array) -> tuple[float, ...]:
    return tuple(np.asarray(values, dtype=float).tolist())
