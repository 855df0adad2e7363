"""Bijections between encoded records and latents, from plain arrays and numpy alone.

Training lives at the site (`site_agent.models.flow`) and needs torch; what it leaves behind is arrays. This module
is what a sealed flow *is*: it can be stored without pickle, read anywhere, and run without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bijection", "Identity"]

Array = NDArray[np.float64]


@runtime_checkable
class Bijection(Protocol):
    """x = f(z): latents z and encoded records x, both (n, d), dimensionless."""

    @property
    def d(self) -> int:
        """Number of columns."""
        ...

    def forward(self, z: Array) -> Array:
        """x = f(z), (n, d) to (n, d)."""
        ...

    def inverse(self, x: Array) -> Array:
        """z = f⁻¹(x), (n, d) to (n, d)."""
        ...

    def log_prob(self, x: Array) -> Array:
        """log N(f⁻¹(x); 0, I) + log |det ∂f⁻¹/∂x|, (n,), in nats."""
        ...


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The bijection that changes nothing: x = z.

    >>> Identity(d=2).forward(np.ones((1, 2)))
    array([[1., 1.]])
    """

    d: int

    def forward(self, z: Array) -> Array:
        """x = z."""
        return np.array(z, dtype=np.float64)

    def inverse(self, x: Array) -> Array:
        """z = x."""
        return np.array(x, dtype=np.float64)

    def log_prob(self, x: Array) -> Array:
        """Standard normal log-density, (n,)."""
        x = np.asarray(x, dtype=np.float64)
        return -0.5 * (x**2).sum(axis=1) - 0.5 * self.d * np.log(2 * np.pi)
