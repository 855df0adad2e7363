"""Tables of the simulations in sections 3.1.1 and 3.1.2 of the latent-noise-injection paper, as printed there."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def linear_studies(rng: np.random.Generator, studies: int = 10, *, copies: int = 1) -> list[Array]:
    """Section 3.1.2: K studies of X1 … X4 and Y, (n_k, 5) each, n_k uniform on 750 … 1000.

    With `copies` 2, (2 n_k, 5): the second half are other persons of the same study, for an attack to mistake.

    Y = β_0k + Σ β_jk X_j + ε, ε ~ N(0, 0.5); coefficients vary around (0, 1, 1, 1, 1) with variances 1e-4, but 5e-3
    for β_1k, and covariances 5e-5.
    """
    return [rows for _, rows in known_studies(rng, studies, copies=copies)]


def known_studies(rng: np.random.Generator, studies: int = 10, *, copies: int = 1) -> list[tuple[Array, Array]]:
    """`linear_studies` with what they were drawn from: (β_0k … β_4k, rows) of each."""
    covariance = np.full((5, 5), 5e-5) + np.diag([5e-5, 4.95e-3, 5e-5, 5e-5, 5e-5])
    out = []
    for _ in range(studies):
        n = int(rng.integers(750, 1001))
        beta = rng.multivariate_normal(np.array([0.0, 1, 1, 1, 1]), covariance)
        x = rng.standard_normal((copies * n, 4))
        y = beta[0] + x @ beta[1:] + rng.normal(0, math.sqrt(0.5), copies * n)
        out.append((beta, np.column_stack([x, y])))
    return out


def gaussian_table(rng: np.random.Generator, n: int, d: int = 5, rho: float = 0.9) -> Array:
    """Section 3.1.1: (n, d) from N(0, (1 − ρ) I + ρ 11ᵀ)."""
    return math.sqrt(1 - rho) * rng.standard_normal((n, d)) + math.sqrt(rho) * rng.standard_normal((n, 1))
