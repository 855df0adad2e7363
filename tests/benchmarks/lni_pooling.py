"""The one pooling both simulations share, written out so that a benchmark rests on the mechanism alone."""

import numpy as np


def dersimonian_laird(pairs) -> tuple[float, float]:
    """Random-effects mean and standard error from (estimate, variance) pairs (paper, eq. 10)."""
    y, v = np.array(pairs).T
    weight = 1 / v
    fixed = (weight * y).sum() / weight.sum()
    q = (weight * (y - fixed) ** 2).sum()
    tau2 = max(0.0, (q - (len(y) - 1)) / (weight.sum() - (weight**2).sum() / weight.sum()))
    weight = 1 / (v + tau2)
    return float((weight * y).sum() / weight.sum()), float(weight.sum() ** -0.5)
