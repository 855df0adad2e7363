"""Answers of one column, or of several without a model: means, shares, correlations."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shared.estimands.floors import Answer, LeastRows, few

__all__ = ["OF_A_COLUMN", "compound_symmetry", "correlation", "mean", "proportion"]

Array = NDArray[np.float64]


def mean(x: Array, floors: LeastRows) -> Answer:
    """Mean of a column (n,), and its variance; a reason where there are too few."""
    if len(x) <= max(floors.residual_df, 1):
        return few(len(x), 1, floors)
    if np.ptp(x) == 0:
        return "the column is constant at this site"
    return float(x.mean()), float(x.var(ddof=1) / len(x))


def proportion(x: Array, floors: LeastRows) -> Answer:
    """Log odds of a share (n,), and their variance."""
    if len(x) <= floors.residual_df:
        return few(len(x), 1, floors)
    cases, n = float(x.sum()), len(x)
    if cases in (0.0, float(n)):
        return "the proportion is 0 or 1 at this site: its logit is not finite"
    return math.log(cases / (n - cases)), 1 / cases + 1 / (n - cases)


OF_A_COLUMN = {"mean": mean, "proportion": proportion}
"""Kind of a question about one column to its solver."""


def correlation(x: Array, floors: LeastRows) -> Answer:
    """Fisher's z of two columns (n, 2), and its variance."""
    if len(x) - 2 < max(floors.residual_df, 2):
        return few(len(x), 2, floors)
    if (np.ptp(x, axis=0) == 0).any():
        return "a column is constant at this site"
    r = float(np.atleast_2d(np.corrcoef(x, rowvar=False))[0, 1])
    if 1 - abs(r) < 1e-12:
        return "the columns are collinear at this site"
    return math.atanh(r), 1 / (len(x) - 3)


def compound_symmetry(x: Array, floors: LeastRows) -> Answer:
    """One correlation for all pairs of p columns of one common variance: mean covariance over mean variance.

    It is the maximum likelihood estimate under compound symmetry, with the variance
    2 (1−ρ)² (1+(p−1)ρ)² / (p (p−1) n) (Fisher 1925, as of an intraclass correlation), here of atanh ρ.
    """
    n, p = x.shape
    if n - 2 < max(floors.residual_df, 2):
        return few(n, 2, floors)
    if (np.ptp(x, axis=0) == 0).any():
        return "a column is constant at this site"
    cov = np.atleast_2d(np.cov(x, rowvar=False))
    common = float(np.trace(cov)) / p
    rho = float(cov.sum() - np.trace(cov)) / (p * (p - 1)) / common
    if 1 - abs(rho) < 1e-12:
        return "the columns are collinear at this site"
    variance = 2 * (1 - rho) ** 2 * (1 + (p - 1) * rho) ** 2 / (p * (p - 1) * n)
    return math.atanh(rho), variance / (1 - rho**2) ** 2
