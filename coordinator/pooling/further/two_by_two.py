"""Counts in two groups, pooled as counts: Mantel-Haenszel and Peto, and effect sizes with the rule for zeros stated.

With rare events a log odds ratio and its variance are a poor summary of a table, and a table with a zero has none
without an invented half. Mantel-Haenszel and Peto pool the cells themselves, so a hospital without an event in one
arm still counts. Cells: ``ai`` events and ``bi`` none in the first group, ``ci`` and ``di`` in the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coordinator.pooling.rows import Excluded, Interval, check_level, require_known
from shared.errors import EstimateRefusal, ParameterError

__all__ = ["CountsResult", "EffectSizes", "Measure", "TwoByTwoTables", "effect_sizes", "mantel_haenszel", "peto"]

Array = NDArray[np.float64]
Measure = Literal["OR", "RR", "RD", "PETO", "AS"]
Rule = Literal["only0", "all", "if0all", "none"]


@dataclass(frozen=True, kw_only=True)
class TwoByTwoTables:
    """K tables of counts.

    Args:
        ai, bi: (K,) persons with and without the event in the first group; ci, di: in the second.
        labels: (K,) names.
    Raises: ParameterError: lengths that differ, or counts that are negative or not finite. Privatised counts need
        not be whole.

    >>> TwoByTwoTables(ai=[1], bi=[9], ci=[3], di=[7]).labels
    ('study 1',)
    """

    ai: ArrayLike
    bi: ArrayLike
    ci: ArrayLike
    di: ArrayLike
    labels: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("ai", "bi", "ci", "di"):
            try:
                cells = np.array(getattr(self, name), dtype=float)
            except (TypeError, ValueError):
                raise ParameterError(f"{name} must hold counts", given="something else") from None
            if cells.ndim != 1 or not (np.isfinite(cells) & (cells >= 0)).all():
                raise ParameterError(f"{name} must hold counts, finite and not negative", given="others")
            cells.setflags(write=False)
            object.__setattr__(self, name, cells)
        lengths = {len(getattr(self, name)) for name in ("ai", "bi", "ci", "di")}
        names = tuple(map(str, self.labels)) or tuple(f"study {i + 1}" for i in range(len(self.cells[0])))
        object.__setattr__(self, "labels", names)
        if len(lengths) > 1 or len(names) not in lengths:
            raise ParameterError("all four cells and the labels must have one length", given=f"{sorted(lengths)}")
        if not len(names):
            raise EstimateRefusal("there must be a table", given="none")

    @property
    def cells(self) -> tuple[Array, Array, Array, Array]:
        """The four cells, each (K,)."""
        return self.ai, self.bi, self.ci, self.di  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class EffectSizes:
    """One effect per table: (K,) yi and vi, NaN where there is none, with its reason in `excluded`."""

    measure: Measure
    labels: tuple[str, ...]
    yi: Array
    vi: Array
    excluded: tuple[Excluded, ...]
    rule: str


def effect_sizes(
    tables: TwoByTwoTables, measure: Measure = "OR", *, add: float = 0.5, to: Rule = "only0", drop00: bool = False
) -> EffectSizes:
    """Log odds ratio, log risk ratio, risk difference, Peto's log odds ratio or arcsine difference of each table.

    Args:
        tables: the counts.
        measure: OR, RR and PETO are logarithms; RD is a difference of shares; AS of arcsine square roots.
        add, to: number added to all four cells, and the tables it is added to: those with a zero (``only0``), all, all
            if one has a zero (``if0all``), or none. AS needs nothing added.
        drop00: leave out tables without an event, or with nothing else, in both groups.
    Raises: ParameterError: an unknown measure or rule, or a negative `add`.

    >>> found = effect_sizes(TwoByTwoTables(ai=[0, 5], bi=[20, 55], ci=[3, 9], di=[18, 49]))
    >>> found.yi.round(3).tolist(), found.rule
    ([-2.049, -0.703], '0.5 added to each cell of 1 table with a zero')
    """
    require_known(measure, get_args(Measure), "measure")
    require_known(to, get_args(Rule), "to")
    if not (math.isfinite(add) and add >= 0):
        raise ParameterError("add must not be negative", given=f"{add}")
    cells = np.stack(tables.cells)
    zero, empty = (cells == 0).any(axis=0), _double_zero(tables)
    touched = {"only0": zero, "all": np.ones_like(zero), "if0all": np.full_like(zero, zero.any()), "none": zero & False}
    raised = touched[to] & (measure != "AS")
    a, b, c, d = cells + add * raised
    yi, vi = _effects(a, b, c, d, measure)
    reasons = [""] * len(zero)
    for i in range(len(zero)):
        if drop00 and empty[i]:
            reasons[i] = "no events, or nothing else, in both groups"
        elif a[i] + b[i] == 0 or c[i] + d[i] == 0:
            reasons[i] = "a group is empty"
        elif not (math.isfinite(yi[i]) and math.isfinite(vi[i])):
            reasons[i] = "a zero leaves it without a finite effect"
        elif vi[i] <= 0:
            reasons[i] = "the variance is zero"
    bad = np.array([bool(reason) for reason in reasons])
    count = int(raised.sum())
    words = "table" if count == 1 else "tables"
    where = f"{words} with a zero" if to == "only0" else words
    return EffectSizes(
        measure=measure,
        labels=tuple(tables.labels),
        yi=np.where(bad & (np.array(reasons) != "the variance is zero"), np.nan, yi),
        vi=np.where(bad & (np.array(reasons) != "the variance is zero"), np.nan, vi),
        excluded=tuple(Excluded(tables.labels[i], reason) for i, reason in enumerate(reasons) if reason),
        rule=f"{add:g} added to each cell of {count} {where}" if count else "nothing added",
    )


@dataclass(frozen=True, kw_only=True)
class CountsResult:
    """A pooled effect of K tables; where there is none, `reason` says why and the numbers are None.

    Attributes:
        method: ``MH`` or ``Peto``; measure: OR, RR (both logarithms) or RD.
        beta, se, zval, pval, ci_lb, ci_ub: the common effect; intervals are normal.
        QE, QEp, I2: heterogeneity of the tables that have an effect of their own, `k_yi` in number.
        CMH, CMH_p: Cochran-Mantel-Haenszel test, with continuity correction (OR only).
        breslow_day, breslow_day_p, tarone, tarone_p: tests of one common odds ratio (OR only).
        notes: sentences a reader must see.
    """

    method: Literal["MH", "Peto"]
    measure: Literal["OR", "RR", "RD"]
    level: float
    k: int
    k_yi: int
    beta: float | None = None
    se: float | None = None
    zval: float | None = None
    pval: float | None = None
    ci_lb: float | None = None
    ci_ub: float | None = None
    QE: float | None = None
    QEp: float | None = None
    I2: float | None = None
    CMH: float | None = None
    CMH_p: float | None = None
    breslow_day: float | None = None
    breslow_day_p: float | None = None
    tarone: float | None = None
    tarone_p: float | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> Interval:
        """The confidence interval, or the reason for having none."""
        return Interval(self.ci_lb, self.ci_ub, self.reason)


def mantel_haenszel(
    tables: TwoByTwoTables, measure: Literal["OR", "RR", "RD"] = "OR", *, level: float = 0.95
) -> CountsResult:
    """Pool tables by Mantel-Haenszel weights; nothing is added to any cell.

    Raises: ParameterError: another measure, or level outside (0, 1).
    Source: Mantel and Haenszel 1959; Robins, Breslow and Greenland 1986 (variance of the log odds ratio); Greenland
        and Robins 1985 (risk ratio); Sato, Greenland and Robins 1989 (risk difference); Tarone 1985.

    >>> result = mantel_haenszel(TwoByTwoTables(ai=[4, 6], bi=[119, 300], ci=[11, 29], di=[128, 274]))
    >>> round(result.beta, 3), round(result.se, 3)
    (-1.422, 0.36)
    """
    require_known(measure, ("OR", "RR", "RD"), "measure")
    check_level(level)
    empty = _double_zero(tables)
    keep = ~empty if measure != "RD" else np.ones_like(empty)
    a, b, c, d = (cell[keep] for cell in tables.cells)
    n1, n2 = a + b, c + d
    n = n1 + n2
    with np.errstate(divide="ignore", invalid="ignore"):
        if measure == "OR":
            r, s = a * d / n, b * c / n
            p, q = (a + d) / n, (b + c) / n
            top, bottom = r.sum(), s.sum()
            beta = _log_ratio(top, bottom)
            var = 0.5 * ((p * r).sum() / top**2 + (p * s + q * r).sum() / (top * bottom) + (q * s).sum() / bottom**2)
        elif measure == "RR":
            top, bottom = (a * n2 / n).sum(), (c * n1 / n).sum()
            beta = _log_ratio(top, bottom)
            var = ((n1 * n2 * (a + c) - a * c * n) / n**2).sum() / (top * bottom)
        else:
            whole = (n1 * n2 / n).sum()
            beta = float(((a * n2 - c * n1) / n).sum() / whole)
            share1, share2 = n1 / n, n2 / n
            p = c * share1**2 - a * share2**2 + share1 * share2 * (n2 - n1) / 2
            q = (a * d / n + c * b / n) / 2
            var = (beta * p.sum() + q.sum()) / whole**2
    extra = _odds_tests(a, b, c, d, beta) if measure == "OR" else {}
    return _counts("MH", measure, tables, beta, float(var), level, extra, empty)


def peto(tables: TwoByTwoTables, *, level: float = 0.95) -> CountsResult:
    """Pool log odds ratios by Peto's one-step method: for rare events, groups of like size, and small effects.

    Raises: ParameterError: level outside (0, 1).
    Source: Yusuf, Peto, Lewis, Collins and Sleight 1985.

    >>> round(peto(TwoByTwoTables(ai=[4, 6], bi=[119, 300], ci=[11, 29], di=[128, 274])).beta, 3)
    -1.24
    """
    check_level(level)
    excess, var = _hypergeometric(*tables.cells)
    total = float(var.sum())
    beta = float(excess.sum()) / total if total > 0 else math.nan
    empty = _double_zero(tables)
    return _counts("Peto", "OR", tables, beta, 1 / total if total > 0 else math.nan, level, {}, empty)


# -- parts ---------------------------------------------------------------------------------------------------
def _counts(
    method: Literal["MH", "Peto"],
    measure: Literal["OR", "RR", "RD"],
    tables: TwoByTwoTables,
    beta: float,
    var: float,
    level: float,
    extra: dict[str, Any],
    empty: NDArray[np.bool_],
) -> CountsResult:
    # Peto's excess needs no half; the other effects of single tables do.
    if method == "Peto":
        each = effect_sizes(tables, "PETO", to="none", drop00=True)
    else:
        each = effect_sizes(tables, measure, drop00=True)
    there = np.isfinite(each.yi) & (np.nan_to_num(each.vi) > 0)
    notes = []
    if empty.any():
        names = ", ".join(label for label, none in zip(tables.labels, empty, strict=True) if none)
        said = "they say nothing about a ratio" if measure != "RD" else "they count as no difference"
        notes.append(f"No events, or nothing else, in both groups: {names}; {said}.")
    columns: dict[str, Any] = {
        "method": method,
        "measure": measure,
        "level": level,
        "k": len(tables.labels),
        "k_yi": int(there.sum()),
    }
    if not (math.isfinite(beta) and math.isfinite(var) and var > 0):
        reason = "no event in one of the groups at any site: the ratio is 0 or infinite"
        if measure == "RD":
            reason = "no variation at any site, or an empty group: no standard error"
        return CountsResult(reason=reason, notes=tuple(notes), **columns)
    se = math.sqrt(var)
    z, half = beta / se, -float(special.ndtri((1 - level) / 2)) * se
    q = float(((each.yi[there] - beta) ** 2 / each.vi[there]).sum())
    df = int(there.sum()) - 1
    return CountsResult(
        beta=beta,
        se=se,
        zval=z,
        pval=float(2 * special.ndtr(-abs(z))),
        ci_lb=beta - half,
        ci_ub=beta + half,
        QE=q,
        QEp=float(special.chdtrc(df, q)) if df > 0 else 1.0,
        I2=100 * max(0.0, 1 - df / q) if q > 0 and df > 0 else 0.0,
        notes=tuple(notes),
        **extra,
        **columns,
    )


def _effects(a: Array, b: Array, c: Array, d: Array, measure: Measure) -> tuple[Array, Array]:
    n1, n2 = a + b, c + d
    with np.errstate(divide="ignore", invalid="ignore"):
        if measure == "OR":
            return np.log(a) + np.log(d) - np.log(b) - np.log(c), 1 / a + 1 / b + 1 / c + 1 / d
        if measure == "RR":
            return np.log(a / n1) - np.log(c / n2), 1 / a - 1 / n1 + 1 / c - 1 / n2
        if measure == "RD":
            return a / n1 - c / n2, a * b / n1**3 + c * d / n2**3
        if measure == "PETO":
            excess, var = _hypergeometric(a, b, c, d)
            return excess / var, 1 / var
        return np.arcsin(np.sqrt(a / n1)) - np.arcsin(np.sqrt(c / n2)), 1 / (4 * n1) + 1 / (4 * n2)


def _hypergeometric(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array]:
    """Events beyond expectation in the first group, and their variance under no effect; 0 and 0 where no table is."""
    n1, n2, n = a + b, c + d, a + b + c + d
    safe = n > 1
    n_safe = np.where(safe, n, 2.0)
    expected = n1 * (a + c) / n_safe
    var = n1 * n2 * (a + c) * (b + d) / (n_safe**2 * (n_safe - 1))
    return np.where(safe, a - expected, 0.0), np.where(safe, var, 0.0)


def _odds_tests(a: Array, b: Array, c: Array, d: Array, log_or: float) -> dict[str, float]:
    """Cochran-Mantel-Haenszel, Breslow-Day and Tarone."""
    excess, var = _hypergeometric(a, b, c, d)
    found: dict[str, float] = {}
    if var.sum() > 0:
        cmh = max(0.0, abs(float(excess.sum())) - 0.5) ** 2 / float(var.sum())
        found |= {"CMH": cmh, "CMH_p": float(special.chdtrc(1, cmh))}
    k = len(a)
    if not math.isfinite(log_or) or k < 2:
        return found
    # Expected events under the common odds ratio: the root of a quadratic that lies inside the table.
    ratio = math.exp(log_or)
    n1, n2, events = a + b, c + d, a + c
    if abs(ratio - 1) < 1e-12:
        inside = n1 * events / (n1 + n2)
    else:
        first = 1 - ratio
        second = n2 - events + ratio * (n1 + events)
        root = np.sqrt(second**2 + 4 * first * ratio * n1 * events)
        inside = 2 * ratio * n1 * events / (second + root)  # the form that does not cancel
    parts = np.stack([inside, events - inside, n1 - inside, n2 - events + inside])
    if (parts <= 0).any():
        return found
    spread = 1 / (1 / parts).sum(axis=0)
    day = float(((a - inside) ** 2 / spread).sum())
    corrected = day - float((a - inside).sum()) ** 2 / float(spread.sum())
    found |= {"breslow_day": day, "breslow_day_p": float(special.chdtrc(k - 1, day))}
    return found | {"tarone": corrected, "tarone_p": float(special.chdtrc(k - 1, corrected))}


def _double_zero(tables: TwoByTwoTables) -> NDArray[np.bool_]:
    a, b, c, d = tables.cells
    return ((a == 0) & (c == 0)) | ((b == 0) & (d == 0))


def _log_ratio(top: float, bottom: float) -> float:
    return math.log(top / bottom) if top > 0 and bottom > 0 else math.nan
