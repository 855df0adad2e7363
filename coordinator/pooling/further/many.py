"""Many meta-analyses pooled in one call, as a simulation asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coordinator.pooling.heterogeneity import (
    Method,
    Test,
    fit,
    spread,
)
from coordinator.pooling.pool import Array
from coordinator.pooling.rows import (
    LARGEST_ESTIMATE,
    LARGEST_VARIANCE,
    SMALLEST_VARIANCE,
    check,
    ordinary,
    unlike,
)
from shared.errors import ParameterError

__all__ = ["ManyResults", "pool_many"]

_BLOCK = 1 << 15
"""Estimates pooled at once: what is made of them on the way stays in the cache."""
_COLUMNS = ("beta", "se", "zval", "pval", "ci_lb", "ci_ub", "tau2", "I2", "H2", "QE", "QEp", "s2w")


@dataclass(frozen=True, kw_only=True)
class ManyResults:
    """Results of B meta-analyses pooled in one call: each array is (B,), in the units and names of `PooledResult`.

    Attributes:
        k: rows used; rows without an estimate or a usable variance are left out of each.
        reasons: empty, or why a meta-analysis has no result; its numbers are then NaN.
    """

    method: Method
    test: Test
    level: float
    k: NDArray[np.int64]
    beta: Array
    se: Array
    zval: Array
    pval: Array
    ci_lb: Array
    ci_ub: Array
    tau2: Array
    I2: Array
    H2: Array
    QE: Array
    QEp: Array
    s2w: Array
    reasons: tuple[str, ...]


def pool_many(
    yi: ArrayLike, vi: ArrayLike, *, method: Method = "REML", test: Test = "adhoc", level: float = 0.95
) -> ManyResults:
    """Pool B meta-analyses at once: as `pool` on each, without the notes.

    Args:
        yi, vi: (B, K); NaN where a meta-analysis has fewer than K rows.
        method, test, level: as in `pool`. With one row the test is ``z``; where ``knha`` would have no width, its
            ad hoc floor is used.
    Raises: ParameterError: as `pool`, or another shape.

    >>> result = pool_many([[0.1, 0.3, 0.9], [0.2, 0.2, np.nan]], [[0.02, 0.03, 0.02], [0.1, 0.1, np.nan]])
    >>> result.beta.round(3).tolist(), result.k.tolist()
    ([0.436, 0.2], [3, 2])
    """
    check(method, test, level)
    y, v = np.asarray(yi, dtype=float), np.asarray(vi, dtype=float)
    if y.ndim != 2 or y.shape != v.shape:
        raise ParameterError("yi and vi must be tables of one shape (B, K)", given=f"{y.shape} and {v.shape}")
    k, columns = np.zeros(len(y), dtype=np.int64), {name: np.full(len(y), np.nan) for name in _COLUMNS}
    step = max(1, _BLOCK // max(1, y.shape[1]))
    for start in range(0, len(y), step):
        part = slice(start, start + step)
        k[part] = _block(y[part], v[part], method, test, level, {name: to[part] for name, to in columns.items()})
    reasons = ("",) * len(k) if k.all() else tuple("" if used else "no row can be used" for used in k.tolist())
    return ManyResults(method=method, test=test, level=level, k=k, reasons=reasons, **columns)


def _block(
    y: Array, v: Array, method: Method, test: Test, level: float, columns: dict[str, Array]
) -> NDArray[np.int64] | int:
    """Pool some, each from its usable rows, into their `columns`; how many rows each has."""
    if ordinary(y, v):
        for name, values in _many(y, v, method, test, level).items():
            columns[name][:] = values
        return y.shape[1]
    good = np.isfinite(y) & np.isfinite(v)
    with np.errstate(invalid="ignore"):
        good &= (v >= SMALLEST_VARIANCE) & (v <= LARGEST_VARIANCE) & (np.abs(y) <= LARGEST_ESTIMATE)
        good &= np.sqrt(np.maximum(v, 0)) > 8 * np.finfo(float).eps * np.abs(y)
    good &= ~unlike(y, v, good)
    count = good.sum(axis=1)
    order = np.argsort(~good, axis=1, kind="stable")  # usable rows first, in their order
    y, v = np.take_along_axis(y, order, 1), np.take_along_axis(v, order, 1)
    for k in np.unique(count):
        if k == 0:
            continue
        rows = np.flatnonzero(count == k)
        for name, values in _many(y[rows, :k], v[rows, :k], method, test, level).items():
            columns[name][rows] = values
    return count


def _many(y: Array, v: Array, method: Method, test: Test, level: float) -> dict[str, Array]:
    k, rows = v.shape[1], len(v)
    df, tail = k - 1, (1 - level) / 2
    tau2, q, typical = spread(y, v, method) if df else (np.zeros(rows), np.zeros(rows), v[:, 0])
    model = fit(y, v, tau2)
    beta, se = model.beta[:, 0], np.sqrt(model.vcov[:, 0, 0])
    s2w = model.Q / df if df else np.ones(rows)
    if test == "adhoc" and df:
        se = se * np.sqrt(np.maximum(s2w, 1.0))
    elif test == "knha" and df:
        noise = 8 * np.finfo(float).eps * np.abs(y).max(axis=1)
        se = se * np.sqrt(np.where(se * np.sqrt(s2w) <= noise, np.maximum(s2w, 1.0), s2w))
    normal = test == "z" or not df
    critical = -float(special.ndtri(tail) if normal else special.stdtrit(df, tail))
    zval = beta / se
    fe = method == "FE"
    # Sites that agree to the last digit have a Q next to nothing; I² is 0 there, however far the quotient goes.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.where(q > 0, np.maximum(0.0, 1 - df / q), 0.0) if fe else tau2 / (tau2 + typical)
    return {
        "beta": beta,
        "se": se,
        "zval": zval,
        "pval": 2 * (special.ndtr(-np.abs(zval)) if normal else special.stdtr(df, -np.abs(zval))),
        "ci_lb": beta - critical * se,
        "ci_ub": beta + critical * se,
        "tau2": tau2,
        "I2": 100 * share,
        "H2": (q / df if df else np.ones(rows)) if fe else tau2 / typical + 1,
        "QE": q,
        "QEp": special.chdtrc(df, q) if df else np.ones(rows),
        "s2w": s2w,
    }
