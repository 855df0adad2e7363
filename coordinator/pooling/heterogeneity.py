"""The variance between sites, for many meta-analyses at once, with or without moderators.

Everything here takes arrays: y and v of shape (..., K), a design x of shape (..., K, p) or None for an intercept
alone. Callers hand in usable rows only (finite y, positive v); `coordinator.pooling.pool` sees to that. Four traps
shaped the code.

- Statsmodels and textbook code take Q as a difference of sums, which cancels when estimates share a large offset.
  Here the most precise row is subtracted first, and traces are sums of positive products.
- Iterations with an absolute stopping rule stop at their start on small scales. Here every problem is divided by its
  smallest variance, the root is bracketed, and refined to the last bits (Chandrupatla 1997).
- The likelihood of tau2 can have several maxima. A grid finds every fall of the score through 0 and the likelihood
  decides among them.
- One weight can be 10^12 times another. The trace of P is summed over pairs, so nothing is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coordinator.pooling import Method, Test

__all__ = [
    "Method",
    "Test",
    "WeightedFit",
    "estimate_tau2",
    "fit",
    "likelihood_interval",
    "q_profile",
    "se_tau2",
    "spread",
    "tau2_dl",
    "typical_v",
]

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

_MOMENTS = ("DL", "HE", "HS", "HSk", "SJ")
_CHUNK = 1 << 19  # elements of a grid held at once: it stays in the cache
_STEP = 1.35  # ratio of neighbouring grid points: the score bends on the scale of a factor e


class WeightedFit(NamedTuple):
    """Weighted least squares with weights 1 / (v + tau2): shapes (..., p), (..., p, p), (...,) and (..., K)."""

    beta: Array
    vcov: Array
    Q: Array
    hat: Array


class _Sums(NamedTuple):
    q: Array  # y'Py
    r: Array  # y'PPy
    trace: Array  # tr P
    log_det: Array  # log |X'WX|


def fit(y: Array, v: Array, tau2: Array | float = 0.0, x: Array | None = None) -> WeightedFit:
    """Coefficients, their covariance, the weighted residual sum of squares, and leverages.

    >>> fit(np.array([0.1, 0.5]), np.array([0.02, 0.02])).beta.round(6).tolist()
    [0.3]
    """
    origin, unit = _most_precise(y, v)
    centred = y - origin[..., None]
    w = unit[..., None] / (v + np.asarray(tau2)[..., None])
    if x is None:
        total = np.einsum("...k->...", w)
        mean = np.einsum("...k,...k->...", w, centred) / total
        centred -= mean[..., None]
        q = np.einsum("...k,...k,...k->...", w, centred, centred) / unit
        vcov = (unit / total)[..., None, None]
        return WeightedFit((origin + mean)[..., None], vcov, q, w / total[..., None])
    # The origin is only taken out where the intercept can give it back.
    shift = origin if _has_intercept(x) else np.zeros_like(origin)
    centred = y - shift[..., None]
    root = np.sqrt(w)
    basis, triangle = np.linalg.qr(root[..., None] * x)
    along = np.einsum("...kp,...k->...p", basis, root * centred)
    inverse = np.linalg.inv(triangle)
    beta = np.einsum("...pq,...q->...p", inverse, along)
    residual = root * centred - np.einsum("...kp,...p->...k", basis, along)
    beta[..., 0] += shift
    return WeightedFit(
        beta,
        np.einsum("...pr,...qr->...pq", inverse, inverse) * unit[..., None, None],
        (residual**2).sum(axis=-1) / unit,
        (basis**2).sum(axis=-1),
    )


def estimate_tau2(y: Array, v: Array, method: Method, x: Array | None = None) -> tuple[Array, Bools]:
    """The variance between sites, (...,), and whether its likelihood has more than one maximum, (...,).

    Args:
        y, v: (..., K) estimates and variances, K > p.
        method: as `coordinator.pooling.pool.pool` explains them.
        x: (..., K, p) design with full column rank, or None.

    >>> estimate_tau2(np.array([0.1, 0.3, 0.9]), np.array([0.02, 0.03, 0.02]), "REML")[0].round(4).item()
    0.1556
    """
    shape = v.shape[:-1]
    if method == "FE":
        return np.zeros(shape), np.zeros(shape, dtype=bool)
    flat_y, flat_v, flat_x, unit = _flat(y, v, x)
    found, several = _estimated(flat_y, flat_v, flat_x, method)
    return (found * unit).reshape(shape), several.reshape(shape)


def spread(y: Array, v: Array, method: Method) -> tuple[Array, Array, Array]:
    """tau2 as `estimate_tau2` has it, Q as `fit` and the typical variance as `typical_v`, (B,) each, read together.

    Args:
        y, v: (B, K) estimates and variances, K > 1.

    >>> y, v = np.array([[0.1, 0.3, 0.9]]), np.array([[0.02, 0.03, 0.02]])
    >>> [part.round(4).tolist() for part in spread(y, v, "DL")]
    [[0.1714], [17.0], [0.0229]]
    """
    flat_y, flat_v, _, unit = _flat(y, v, None)
    fixed = _sums(flat_y, flat_v, None)
    typical = (v.shape[-1] - 1) * unit / fixed.trace
    if method == "FE":
        return np.zeros(len(v)), fixed.q, typical
    return _estimated(flat_y, flat_v, None, method, fixed)[0] * unit, fixed.q, typical


def tau2_dl(yi: Array, vi: Array) -> Array:
    r"""DerSimonian-Laird variance between sites, for many meta-analyses at once.

    .. math:: \hat\tau^2 = \max\{0, (Q - (K-1)) / (\sum w_i - \sum w_i^2 / \sum w_i)\}, \quad w_i = 1/v_i

    Args:
        yi: (..., K) estimates, K >= 2.
        vi: (..., K) variances, positive.
    Returns: (...,) tau2, truncated at 0.
    Source: DerSimonian and Laird 1986, eq. 8.

    >>> tau2_dl(np.array([[0.1, 0.9], [0.4, 0.4]]), np.array([[0.02, 0.03], [0.02, 0.03]])).round(3).tolist()
    [0.295, 0.0]
    """
    return estimate_tau2(np.asarray(yi, dtype=float), np.asarray(vi, dtype=float), "DL")[0]


def typical_v(v: Array, x: Array | None = None) -> Array:
    """(...,) the typical within-site variance (K - p) / tr P of Higgins and Thompson 2002, eq. 9."""
    flat_y, flat_v, flat_x, unit = _flat(np.zeros_like(v), v, x)
    df = v.shape[-1] - (1 if x is None else x.shape[-1])
    return (df * unit / _sums(flat_y, flat_v, flat_x).trace).reshape(v.shape[:-1])


def q_profile(y: Array, v: Array, level: float, x: Array | None = None) -> tuple[Array, Array]:
    """Q-profile interval of tau2 (Viechtbauer 2007): lower and upper ends, (...,); both NaN where it is empty."""
    shape, df = v.shape[:-1], v.shape[-1] - (1 if x is None else x.shape[-1])
    flat_y, flat_v, flat_x, unit = _flat(y, v, x)
    upper, lower = (float(special.chdtri(df, tail)) for tail in ((1 - level) / 2, (1 + level) / 2))
    empty = _sums(flat_y, flat_v, flat_x).q < lower
    ends = [_solve_q(flat_y, flat_v, flat_x, np.full(len(flat_v), quantile)) for quantile in (upper, lower)]
    lb, ub = (np.where(empty, np.nan, end * unit).reshape(shape) for end in ends)
    return lb, ub


def likelihood_interval(y: Array, v: Array, tau2: float, method: Method, level: float) -> tuple[float, float]:
    """Profile-likelihood interval of tau2 for one meta-analysis.

    Ends are where the log-likelihood has fallen by half a chi-square quantile (Hardy and Thompson 1996).

    Args:
        y: (K,) estimates. v: (K,) their variances, in squared units of y.
        tau2: its estimate by `method`.
        method: ``ML`` or ``REML``.
        level: coverage, in (0, 1).
    Returns: both ends, in squared units of y; the lower one is 0 where no smaller tau2 is that unlikely.
    """
    flat_y, flat_v, _, unit = _flat(y, v, None)
    best = np.array([tau2 / unit[0]])
    floor = _log_likelihood(flat_y, flat_v, None, best, method)[0] - float(special.chdtri(1, 1 - level)) / 2

    def above(t: Array, part: NDArray[np.intp]) -> Array:
        repeat = np.zeros(len(t), dtype=np.intp)
        return _log_likelihood(flat_y[repeat], flat_v[repeat], None, t, method) - floor

    one = np.zeros(1, dtype=np.intp)
    high = best + flat_v.max()
    while above(high, one)[0] > 0:
        high = high * 4
    ub = _roots(above, best, high)[0]
    lb = 0.0 if above(np.zeros(1), one)[0] >= 0 else _roots(above, np.zeros(1), best)[0]
    return float(lb * unit[0]), float(ub * unit[0])


def se_tau2(y: Array, v: Array, tau2: Array, method: Method, x: Array | None = None) -> Array:
    """(...,) the standard error of tau2, by metafor's formula for each method; a large-sample figure.

    Args:
        y, v: (..., K) estimates and their variances.
        tau2: (...,) the estimate by `method`, in squared units of y.
        method: any but ``FE``.
        x: (..., K, p) design of a meta-regression; None for a mean alone.
    Source: Viechtbauer, Lopez-Lopez, Sanchez-Meca and Marin-Martinez 2015, Psychological Methods 20:360.
    """
    shape, k = v.shape[:-1], v.shape[-1]
    p = 1 if x is None else x.shape[-1]
    flat_y, flat_v, flat_x, unit = _flat(y, v, x)
    t = np.asarray(tau2, dtype=float).reshape(-1) / unit
    total = flat_v + t[:, None]
    if method in ("ML", "EB", "PM", "PMM"):
        w = 1 / total
        se = np.sqrt(2 / (w**2).sum(-1)) if method == "ML" else np.sqrt(2 * k**2 / (k - p)) / w.sum(-1)
    elif method == "REML":
        se = np.sqrt(2 / (_projection(1 / total, flat_x) ** 2).sum((-1, -2)))
    else:  # tau2 = c y'Py - constant, and var(y'Py) = 2 tr(PSPS)
        if method == "HE":
            w, scale = np.ones_like(flat_v), np.full(len(flat_v), 1 / (k - p))
        elif method == "SJ":
            crude = _sums(flat_y, np.ones_like(flat_v), None).q / k
            w, scale = 1 / (flat_v + crude[:, None]), crude / (k - p)
        else:
            w = 1 / flat_v
            sums = {"DL": _sums(flat_y, flat_v, flat_x).trace, "HS": w.sum(-1), "HSk": w.sum(-1) * (k - p) / k}
            scale = 1 / sums[method]
        se = scale * np.sqrt(2 * np.einsum("bij,bi,bj->b", _projection(w, flat_x) ** 2, total, total))
    return np.asarray(se * unit).reshape(shape)


# -- one problem, in units of its smallest variance ----------------------------------------------------------
def _most_precise(y: Array, v: Array) -> tuple[Array, Array]:
    """(...,) the estimate of the smallest variance, and that variance."""
    at = v.argmin(axis=-1)[..., None]
    return np.take_along_axis(y, at, axis=-1)[..., 0], np.take_along_axis(v, at, axis=-1)[..., 0]


def _has_intercept(x: Array) -> bool:
    return bool((x[..., 0] == 1).all())


def _flat(y: Array, v: Array, x: Array | None) -> tuple[Array, Array, Array | None, Array]:
    """(B, K) problems whose smallest variance is 1; (B,) the units to multiply tau2 by afterwards."""
    k = v.shape[-1]
    y, v = np.broadcast_arrays(y, v)
    shift, unit = _most_precise(y, v)
    if x is not None and not _has_intercept(x):
        shift = np.zeros_like(unit)
    scaled = (y - shift[..., None]) / np.sqrt(unit)[..., None]
    flat_x = None
    if x is not None:
        flat_x = np.broadcast_to(x, (*v.shape, x.shape[-1])).reshape(-1, k, x.shape[-1])
    return scaled.reshape(-1, k), (v / unit[..., None]).reshape(-1, k), flat_x, unit.ravel()


def _weights(v: Array, tau2: Array | float) -> Array:
    return 1 / v if isinstance(tau2, float) and tau2 == 0 else 1 / (v + np.asarray(tau2)[..., None])


def _sums(y: Array, v: Array, x: Array | None, tau2: Array | float = 0.0) -> _Sums:
    """Quadratic forms of P = W - WX(X'WX)^-1 X'W; y, v are (..., K) and tau2 (...,)."""
    w = _weights(v, tau2)
    if x is None:
        total = np.einsum("...k->...", w)
        residual = y - (np.einsum("...k,...k->...", w, y) / total)[..., None]
        weighted = w * residual
        pairs = np.einsum("...k,...k->...", w[..., 1:], np.cumsum(w[..., :-1], axis=-1))
        return _Sums(
            np.einsum("...k,...k->...", weighted, residual),
            np.einsum("...k,...k->...", weighted, weighted),
            2 * pairs / total,
            np.log(total),
        )
    root = np.sqrt(w)
    basis, triangle = np.linalg.qr(root[..., None] * x)
    scaled = root * y
    residual = scaled - np.einsum("...kp,...p->...k", basis, np.einsum("...kp,...k->...p", basis, scaled))
    free = np.clip(1 - (basis**2).sum(axis=-1), 0, None)
    determinant = np.abs(np.diagonal(triangle, axis1=-2, axis2=-1))
    return _Sums((residual**2).sum(-1), (w * residual**2).sum(-1), (w * free).sum(-1), 2 * np.log(determinant).sum(-1))


def _q(y: Array, v: Array, x: Array | None, tau2: Array | float = 0.0) -> Array:
    """(...,) y'Py alone."""
    if x is not None:
        return _sums(y, v, x, tau2).q
    w = _weights(v, tau2)
    residual = y - (np.einsum("...k,...k->...", w, y) / np.einsum("...k->...", w))[..., None]
    return np.asarray(np.einsum("...k,...k->...", w * residual, residual))


def _projection(w: Array, x: Array | None) -> Array:
    """(B, K, K) the matrix P itself; for standard errors only."""
    k = w.shape[-1]
    if x is None:
        total = w.sum(-1)[:, None, None]
        p = -w[:, :, None] * w[:, None, :] / total
        off = np.where(np.eye(k, dtype=bool), 0.0, -p)
        p[:, range(k), range(k)] = off.sum(-1)  # rows of P sum to 0, so no 1 - h is needed
        return p
    root = np.sqrt(w)
    basis = np.linalg.qr(root[..., None] * x)[0]
    return np.asarray((np.eye(k) - basis @ np.swapaxes(basis, -1, -2)) * root[:, :, None] * root[:, None, :])


def _estimated(y: Array, v: Array, x: Array | None, method: Method, fixed: _Sums | None = None) -> tuple[Array, Bools]:
    """(B,) tau2 and whether the likelihood has several maxima; `fixed`: the sums at tau2 = 0, if known."""
    rows, k = v.shape
    df, several = k - (1 if x is None else x.shape[-1]), np.zeros(rows, dtype=bool)
    if method in _MOMENTS:
        return _moment(y, v, x, method, df, fixed), several
    if method in ("PM", "EB", "PMM"):  # PM and EB have the same fixed point
        level = float(special.chdtri(df, 0.5)) if method == "PMM" else float(df)
        return _solve_q(y, v, x, np.full(rows, level)), several
    return _best_maximum(y, v, x, method)


def _moment(y: Array, v: Array, x: Array | None, method: Method, df: int, fixed: _Sums | None) -> Array:
    k = v.shape[-1]
    if method == "HE":  # unit weights: P V is the identity minus leverages
        ones = np.ones_like(v)
        hat = 1 / k if x is None else (np.linalg.qr(x)[0] ** 2).sum(-1)
        return np.maximum(0.0, (_sums(y, ones, x).q - ((1 - hat) * v).sum(-1)) / df)
    if method == "SJ":
        crude = _sums(y, np.ones_like(v), None).q / k  # metafor's start: the variance without moderators
        safe = np.where(crude > 0, crude, 1.0)
        return np.where(crude > 0, safe * _sums(y, v + safe[:, None], x).q / df, 0.0)
    sums = fixed or _sums(y, v, x)
    if method == "DL":
        return np.maximum(0.0, (sums.q - df) / sums.trace)
    inflated = sums.q * (k / df) if method == "HSk" else sums.q
    return np.maximum(0.0, (inflated - k) / (1 / v).sum(-1))


def _solve_q(y: Array, v: Array, x: Array | None, level: Array) -> Array:
    """Root of Q(tau2) = `level`, (B,), for the falling function Q; 0 where it starts below."""
    tau2 = np.zeros(len(v))
    rows = np.flatnonzero(_q(y, v, x) > level)
    if not len(rows):
        return tau2
    around = _q(y[rows], np.ones_like(v[rows]), x if x is None else x[rows])
    high = v[rows].max(-1) + 2 * around / level[rows]

    def excess(t: Array, part: NDArray[np.intp]) -> Array:
        chosen = rows[part]
        return _q(y[chosen], v[chosen], x if x is None else x[chosen], t) - level[chosen]

    tau2[rows] = _roots(excess, np.zeros(len(rows)), high)
    return tau2


def _log_likelihood(y: Array, v: Array, x: Array | None, tau2: Array, method: Method) -> Array:
    sums = _sums(y, v, x, tau2)
    restricted = sums.log_det if method == "REML" else 0.0
    return np.asarray(-0.5 * (np.log(v + tau2[:, None]).sum(-1) + restricted + sums.q))


def _best_maximum(y: Array, v: Array, x: Array | None, method: Method) -> tuple[Array, Bools]:
    """ML or REML. The score is positive where the likelihood rises.

    Beyond max v + 2 RSS every score is negative: y'PPy <= RSS / tau2^2, and tr P >= (K - p) / (max v + tau2).
    Below a thousandth of the smallest variance the score is flat. So all roots lie on the grid's span.
    """

    def score(t: Array, part: NDArray[np.intp]) -> Array:
        spread_x = x if x is None else x[part]
        if t.ndim == 1:
            return scores(y[part], v[part], spread_x, t)
        return scores(y[part, None], v[part, None], spread_x if spread_x is None else spread_x[:, None], t)

    def scores(ys: Array, vs: Array, xs: Array | None, t: Array) -> Array:
        sums = _sums(ys, vs, xs, t)
        return sums.r - (sums.trace if method == "REML" else (1 / (vs + t[..., None])).sum(-1))

    rows, k = v.shape
    low, high = 1e-3, v.max(-1) + 2 * _q(y, np.ones_like(v), x)
    points = int(min(240, math.ceil(math.log(float(high.max()) / low) / math.log(_STEP)))) + 1
    shape = np.linspace(0, 1, points)
    starts: list[NDArray[np.intp]] = []
    lows: list[Array] = []
    highs: list[Array] = []
    at_zero = np.zeros(rows, dtype=bool)
    width = 1 if x is None else x.shape[-1] + 1
    step = max(1, _CHUNK // (points * k * width))
    for begin in range(0, rows, step):
        part = np.arange(begin, min(begin + step, rows))
        grid = np.zeros((len(part), points + 1))
        grid[:, 1:] = low * (high[part, None] / low) ** shape
        value = score(grid, part)
        at_zero[part] = value[:, 0] <= 0
        which, where = np.nonzero((value[:, :-1] > 0) & (value[:, 1:] <= 0))
        starts.append(part[which])
        lows.append(grid[which, where])
        highs.append(grid[which, where + 1])
    owner = np.concatenate(starts)
    found = _roots(lambda t, part: score(t, owner[part]), np.concatenate(lows), np.concatenate(highs))
    tau2, count = np.zeros(rows), np.bincount(owner, minlength=rows) + at_zero
    single = count[owner] == 1
    tau2[owner[single]] = found[single]
    for row in np.flatnonzero(count > 1):
        maxima = np.concatenate([[0.0] if at_zero[row] else [], found[owner == row]])
        repeat = np.full(len(maxima), row)
        value = _log_likelihood(y[repeat], v[repeat], x if x is None else x[repeat], maxima, method)
        tau2[row] = maxima[value.argmax()]
    return tau2, count > 1


def _roots(function: Callable[[Array, NDArray[np.intp]], Array], low: Array, high: Array) -> Array:
    """Roots of many functions at once, each with a change of sign in [low, high]; to the last bits.

    `function(t, part)` gives the values at t of the functions numbered `part`. Chandrupatla 1997: inverse quadratic
    steps where they are safe, bisection where they are not.
    """
    part = np.arange(len(low))
    answer = np.array(high, dtype=float)
    a, b = np.array(high, dtype=float), np.array(low, dtype=float)
    fa, fb = function(a, part), function(b, part)
    c, fc = a, fa
    t = np.full(len(low), 0.5)
    for _ in range(400):
        new = a + t * (b - a)
        f = function(new, part)
        same = np.sign(f) == np.sign(fa)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = new, f
        better = np.abs(fa) < np.abs(fb)
        best = np.where(better, a, b)
        tolerance = 2 * np.finfo(float).eps * np.abs(best) + 1e-300
        gap = np.abs(b - a)
        done = (gap <= 2 * tolerance) | (np.where(better, fa, fb) == 0)
        answer[part[done]] = best[done]
        go = ~done
        if not go.any():
            break
        part, a, b, c, fa, fb, fc = (array[go] for array in (part, a, b, c, fa, fb, fc))
        tolerance, gap = tolerance[go], gap[go]
        with np.errstate(divide="ignore", invalid="ignore"):
            xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
            quadratic = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
            step = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        t = np.where(quadratic & np.isfinite(step), step, 0.5)
        edge = np.minimum(0.5, tolerance / gap)
        t = np.clip(t, edge, 1 - edge)
    else:
        answer[part] = b
    return answer
