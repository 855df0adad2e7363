"""Rows for a flow, and whether two flows are the same."""

from __future__ import annotations

import numpy as np


def banana(n=1200, seed=1):
    """Two columns that no Gaussian copula fits."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    return np.column_stack([a, a**2 + 0.3 * rng.normal(size=n)])


def same(one, two):
    a, b = one.to_arrays(), two.to_arrays()
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
