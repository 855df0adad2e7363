"""Subgroups of sites, each pooled by itself, and a test of whether they differ; meta-regression of a pool's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from coordinator.pooling.cautions import in_common
from coordinator.pooling.heterogeneity import fit
from coordinator.pooling.moderators import RegressionResult, absent, regress
from coordinator.pooling.pool import PooledResult, pool
from shared.errors import ParameterError

__all__ = ["Subgroups", "regressed", "subgroups"]


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """Each group pooled by itself, and whether the groups differ.

    Attributes:
        groups: level -> its own result, with its own tau2.
        common: the groups with one tau2, as a meta-regression; its QM is the test of them that is told first. None when
            it cannot be fitted.
        Q_between: chi-square of the groups' pooled effects, with `df` degrees of freedom and p-value `p_between`: its
            p-value is too small where groups have few rows, each with a tau2 of its own.
        notes: sentences a reader must see.
    """

    groups: Mapping[str, PooledResult]
    Q_between: float
    df: int
    p_between: float
    common: RegressionResult | None
    notes: tuple[str, ...] = ()


def subgroups(result: PooledResult, group: Sequence[Any]) -> Subgroups:
    """Pool each group of rows, and test for a difference, with separate and with one common tau2.

    Args:
        result: its method, test and level are kept.
        group: (K,) level of each row used, or a mapping from the row's label to its level.
    Raises: ParameterError: another length.
    Source: Borenstein et al. 2009, chapter 19.

    >>> whole = pool([0.1, 0.2, 0.8, 0.9], [0.01] * 4, method="FE", test="z")
    >>> found = subgroups(whole, ["a", "a", "b", "b"])
    >>> [round(row.beta, 2) for row in found.groups.values()], round(found.Q_between, 1)
    ([0.15, 0.85], 49.0)
    """
    if isinstance(group, Mapping):
        group = [group.get(label) for label in result.labels]
    if len(group) != result.k:
        raise ParameterError("group must name every row used", given=f"{len(group)} for {result.k} rows")
    level_of = ["" if absent(level) else str(level) for level in group]
    levels = [level for level in dict.fromkeys(level_of) if level]
    if not levels:
        raise ParameterError("group must name a level for a row", given="none")
    notes = []
    unknown = [label for label, level in zip(result.labels, level_of, strict=True) if not level]
    if unknown:
        notes.append(f"Without a group, and left out: {', '.join(unknown)}.")
    beside = _beside(result)
    groups = {}
    for level in levels:
        rows = [i for i, own in enumerate(level_of) if own == level]
        estimates = tuple(result.estimates[i] for i in rows) if result.estimates else ()
        pooled = pool(
            [result.yi[i] for i in rows],
            [result.vi[i] for i in rows],
            method=result.method,
            test=result.test,
            level=result.level,
            labels=[result.labels[i] for i in rows],
        )
        alike = in_common(estimates, pooled.weights) + beside if estimates else result.shared
        groups[level] = replace(pooled, term=result.term, scale=result.scale, estimates=estimates, shared=alike)
    single = [level for level, row in groups.items() if row.k == 1]
    if single:
        notes.append(f"One row only, nothing pooled: {', '.join(single)}.")
    q, df = 0.0, len(levels) - 1
    if df:
        effects = np.array([row.beta for row in groups.values()])
        # What all rows may be off by alike moves no difference between them.
        q = float(fit(effects, np.array([row.se**2 - row.shared for row in groups.values()])).Q)
    else:
        notes.append("There is one group only: nothing to compare.")
    common = None
    known = [i for i, level in enumerate(level_of) if level]
    if df and (len(known) > len(levels) or result.method == "FE"):
        common = regressed(result, {"group": level_of}, known)
    elif df:
        notes.append("Every group has one row: one common τ² cannot be told from the groups.")
    p_between = float(special.chdtrc(df, q)) if df else 1.0
    return Subgroups(groups=groups, Q_between=q, df=df, p_between=p_between, common=common, notes=tuple(notes))


def regressed(
    result: PooledResult, mods: Mapping[str, Sequence[Any]], rows: Sequence[int] | None = None
) -> RegressionResult:
    """Meta-regression of a pool's rows under its settings, with what they may be off by alike in its covariance.

    Args:
        result: its method, test and level are kept.
        mods: name -> (K,) numbers or words, as of `coordinator.pooling.moderators.regress`.
        rows: positions of the rows to use; all if left out.
    Raises: ParameterError, EstimateRefusal, as `regress`.
    """
    chosen = list(range(result.k) if rows is None else rows)
    found = regress(
        [result.yi[i] for i in chosen],
        [result.vi[i] for i in chosen],
        {name: [values[i] for i in chosen] for name, values in mods.items()},
        method=result.method,
        test=result.test,
        level=result.level,
        labels=[result.labels[i] for i in chosen],
    )
    common = np.zeros((found.p, found.p))
    if result.estimates:
        # All rows are off in one direction, each by its own measure: the coefficients move by the fit of the measures.
        size = {label: row.vi_common**0.5 for label, row in zip(result.labels, result.estimates, strict=True)}
        off = np.array([size[label] for label in found.labels])
        moved = fit(off, np.array(found.vi), np.array(found.tau2), np.array(found.X)).beta
        common += np.outer(moved, moved)
    common[0, 0] += _beside(result)
    return replace(found, vcov_common=tuple(map(tuple, common.tolist()))) if common.any() else found


def _beside(result: PooledResult) -> float:
    """Variance in common beyond the estimates' own part, as a map's error: it is in every group, in no difference."""
    return max(0.0, result.shared - in_common(result.estimates, result.weights)) if result.estimates else result.shared
