"""Answers of `analyst pool` and `tables` on likelihoods, several coefficients, and counts by their likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.analyst.own.table import OwnTable, read_table
from coordinator.analyst.own.together import TogetherOptions
from shared.terminal import VerbAnswer

if TYPE_CHECKING:
    from coordinator.pooling.further.two_by_two import TwoByTwoTables

__all__ = ["conditional", "likelihoods", "together"]


def likelihoods(own: OwnTable, *, level: float, bayes: bool, scale: float) -> VerbAnswer:
    """Likelihood profiles added, and with `bayes` effects that vary between them, under a prior of that scale."""
    from math import exp

    from coordinator.analyst.own.profiles import profiles_of, show_profiles
    from coordinator.pooling.further.profiles import pool_profiles, pool_profiles_random
    from shared.terminal import plain

    given = read_table(own.file)
    form, found, lost = profiles_of(given, own.names(given), own.labels)
    result = pool_profiles(found, level=level, excluded=lost)
    posterior = pool_profiles_random(found, scale=scale, level=level) if bayes else None
    data = {"form": form, "scale": "log", **plain(result)}
    if posterior is not None:
        data["bayes"] = plain(posterior)
    return VerbAnswer(data, lambda out: show_profiles(out, form, result, posterior, lambda x: f"{exp(x):.3f}"))


def together(own: OwnTable, options: TogetherOptions, *, method: str, test: Any, level: float) -> VerbAnswer:
    """Several coefficients of each study pooled together.

    Args:
        own: the table and its columns.
        options: which columns hold the coefficients and their covariance, and its form between studies.
        method, test, level: as of `coordinator.pooling.multivariate.pool_joint`.
    Raises: ParameterError: a column that is not there, a setting that is not known.
    """
    from coordinator.analyst.own.together import joint_rows_of, show_joint
    from coordinator.pooling.multivariate import pool_joint

    given = read_table(own.file)
    yi, vi = own.estimates(given, variances=options.rho is not None)
    rows, terms = joint_rows_of(given, own.named_by(given), yi, vi, options)
    found = pool_joint(
        rows,
        terms,
        method=method,
        structure=options.structure,  # type: ignore[arg-type]
        test=test,
        level=level,
    )
    scale, effect = own.scale(given)
    return VerbAnswer(
        {**found.data, "scale": scale, "effect": effect}, lambda out: show_joint(out, found, ratio=scale == "log")
    )


def conditional(tables: TwoByTwoTables, level: float) -> VerbAnswer:
    """The conditional likelihoods of 2×2 tables added: the exact counterpart of Mantel and Haenszel's odds ratio."""
    from math import exp

    import numpy as np

    from coordinator.analyst.own.profiles import show_profiles
    from coordinator.pooling.further.profiles import counts_profile, pool_profiles
    from shared.terminal import plain

    cells = np.array([tables.ai, tables.bi, tables.ci, tables.di], dtype=int).T
    rows = [counts_profile(label, *map(int, row)) for label, row in zip(tables.labels, cells, strict=True)]
    found = pool_profiles(rows, level=level)
    data = {"measure": "OR", "scale": "log", **plain(found)}
    return VerbAnswer(data, lambda out: show_profiles(out, "2×2, conditional", found, None, lambda x: f"{exp(x):.3f}"))
