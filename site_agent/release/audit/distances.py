"""Attacks by the distance to released rows: membership, and whether the nearest row is a person's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.spatial import cKDTree

from site_agent.release.audit.rates import Array, Rate, auc_of

__all__ = ["linkage", "membership_auc", "standardising", "twins", "whitening"]


def membership_auc(inside: Array, outside: Array, release: Array) -> Rate:
    """AUC of "the nearest released row is nearer for records the flow was fitted on", ties one half.

    Args:
        inside: (n1, d) records the flow was fitted on; outside: (n0, d) records held back; release: (n1, d).
    Returns: the AUC with DeLong's interval; chance is 0.5.
    Source: latent-noise-injection, eq. 24-25; DeLong, DeLong and Clarke-Pearson (1988).

    >>> rng = np.random.default_rng(1)
    >>> a, b = rng.normal(size=(300, 2)), rng.normal(size=(100, 2))
    >>> membership_auc(a, b, a).value
    1.0
    """
    tree = cKDTree(release)
    return auc_of(-tree.query(inside)[0], -tree.query(outside)[0])


def linkage(x: Array, released: Array) -> NDArray[np.bool_]:
    """For each record: is its nearest released row its own? Ties count for the attacker.

    Args:
        x, released: (n, d), row i of one belonging to row i of the other.
    """
    nearest = cKDTree(released).query(x)[0]
    own = np.linalg.norm(x - released, axis=1)
    return np.asarray(own <= nearest * (1 + 1e-12))


def twins(x: Array, released: Array, ranked: NDArray[np.int_]) -> tuple[float, float]:
    """Twin probability (eq. 22) and median rank (eq. 26) of the records at `ranked`."""
    own = np.linalg.norm(x[ranked] - released[ranked], axis=1)
    closer = cKDTree(x).query_ball_point(x[ranked], np.nextafter(own, 0), return_length=True) - 1  # not oneself
    closer = np.maximum(closer, 0)
    return float(closer.mean() / (len(x) - 1)), float(np.median(closer))


def whitening(x: Array) -> Any:
    """Map to coordinates in which x has unit covariance; a ridge keeps a constant column harmless."""
    mean = x.mean(axis=0)
    covariance = np.atleast_2d(np.cov(x, rowvar=False, bias=True))
    scale = np.where(np.diag(covariance) > 0, np.diag(covariance), 1.0)
    factor = np.linalg.cholesky(covariance + np.diag(1e-9 * scale))
    return lambda values: solve_triangular(factor, (values - mean).T, lower=True).T


def standardising(x: Array) -> Any:
    """Map to coordinates in which each column of x has mean 0 and variance 1; a constant one stays 0."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return lambda values: (values - mean) / scale
