"""Identifiability of a model on a table: confounded columns, and rows whose outcome is perfectly predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import ROWS

__all__ = ["determined", "independent", "unseen", "within_strata"]

Array = NDArray[np.float64]
_APART = 1.99
"""Below this sum of each column of a correlation matrix its least eigenvalue is above 0.01."""


def unseen(x: Array, constant: bool = True) -> list[list[int]]:
    """For each column of (n, p) x, the columns it is confounded with; empty when its coefficient is identified.

    That is so exactly when no vector of the null space of x, beside a constant if there is one, touches the column.
    """
    centre = x.mean(axis=0) if constant else np.zeros(x.shape[1])
    together = sum((_square(x[k : k + ROWS] - centre) for k in range(0, len(x), ROWS)), np.zeros((x.shape[1],) * 2))
    scale = np.sqrt(together.diagonal() / max(len(x), 1))
    if scale.all() and np.isfinite(together).all():  # squares may be beyond what a number holds
        # Squares lose half the digits, and few columns are near enough to each other for that to be too few.
        correlation = together / len(x) / (scale[:, None] * scale)
        # No eigenvalue is further from the 1 on the diagonal than the rest of a row adds up to (Gershgorin).
        apart = (np.abs(correlation).sum(axis=0) < _APART).all()
        if apart or np.linalg.eigvalsh(correlation)[:1].min(initial=1.0) > 1e-6:
            return [[] for _ in range(x.shape[1])]
    standard = (x - centre) / np.where(scale > 0, scale, 1.0)
    standard[:, scale <= 1e-12 * (np.abs(x).max(axis=0, initial=0.0) + 1e-300)] = 0.0
    standard = np.column_stack([np.full(len(x), float(constant)), standard])
    # The triangular factor has the singular values and right vectors of the whole, in p rows instead of n.
    standard = np.asarray(np.linalg.qr(standard, mode="r"), dtype=float)
    if len(standard) < standard.shape[1]:
        standard = np.vstack([standard, np.zeros((standard.shape[1] - len(standard), standard.shape[1]))])
    _, singular, right = np.linalg.svd(standard, full_matrices=False)
    null = right[singular <= 1e-9 * max(singular[0], 1e-300)][:, 1:]
    touched = np.abs(null) > 1e-6
    groups = []
    for j in range(x.shape[1]):
        joined = touched[touched[:, j]].any(axis=0) if touched[:, j].any() else np.zeros(x.shape[1], dtype=bool)
        groups.append([int(i) for i in np.flatnonzero(joined)])
    return groups


def _square(part: Array) -> Array:
    return part.T @ part


def independent(x: Array, first: Sequence[int], constant: bool) -> list[int]:
    """Columns of x, `first` among them, that span what x spans (beside a constant)."""
    chosen = list(first)
    for j in (j for j in range(x.shape[1]) if j not in first):
        if not any(unseen(x[:, [*chosen, j]], constant)):
            chosen.append(j)
    return sorted(chosen)


def determined(x: Array, y: Array, *, constant: bool, counts: bool) -> NDArray[np.bool_]:
    """Rows whose outcome some direction predicts without error: a logistic model's rows, a Poisson model's zeros.

    The linear programme of Konis (2007): among directions that contradict no row, the one that agrees most. In a
    Poisson model a direction contradicts no row when it is flat at positive counts and falls, or is flat, at zeros.
    """
    from scipy.optimize import linprog

    centre = x.mean(axis=0) if constant else np.zeros(x.shape[1])
    scale = np.sqrt(((x - centre) ** 2).mean(axis=0))
    standard = (x - centre) / np.where(scale > 0, scale, 1.0)
    if constant:
        standard = np.column_stack([np.ones(len(x)), standard])
    signed = np.where(counts, -1.0, 2 * y - 1)[:, None] * standard
    free: NDArray[np.bool_] = np.asarray(y == 0 if counts else np.ones(len(y)), dtype=bool)
    flat = {"A_eq": signed[~free], "b_eq": np.zeros(int((~free).sum()))} if counts and (~free).any() else {}
    found = linprog(
        -signed[free].sum(axis=0),
        A_ub=-signed[free],
        b_ub=np.zeros(int(free.sum())),
        bounds=(-1, 1),
        method="highs",
        **flat,
    )
    if found.status != 0:
        return np.zeros(len(x), dtype=bool)
    agrees: NDArray[np.bool_] = np.asarray(signed @ found.x > 1e-7, dtype=bool)
    return free & agrees


def within_strata(x: Array, strata: NDArray[np.int64]) -> Array:
    """x less its mean in each stratum: all that a partial likelihood sees of it."""
    if not strata.any():
        return x
    _, place = np.unique(strata, return_inverse=True)
    size = np.bincount(place)
    means = np.column_stack([np.bincount(place, weights=x[:, j]) / size for j in range(x.shape[1])])
    inside = x - means[place]
    # What centring leaves of a column that is constant within strata is rounding, not information.
    inside[np.abs(inside) <= 1e-11 * np.abs(x).max(axis=0, initial=0.0)] = 0.0
    return np.asarray(inside)
