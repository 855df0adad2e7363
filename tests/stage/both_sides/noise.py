"""Noise that is too small, or too large."""

from __future__ import annotations

from typing import Any

from shared.base.randomness import seeded_rng


class Scaled:
    """A source whose noise is too small, or too large, by a factor."""

    def __init__(self, factor: float, seed: int) -> None:
        self.factor, self.inner = factor, seeded_rng(seed)

    def lattice_gaussian_steps(self, sigma: float, shape: Any, grid: float) -> Any:
        return self.inner.lattice_gaussian_steps(sigma * self.factor, shape, grid)

    def lattice_laplace_steps(self, scale: float, shape: Any, grid: float) -> Any:
        return self.inner.lattice_laplace_steps(scale * self.factor, shape, grid)

    def chosen(self, rate: float, count: int) -> Any:
        return self.inner.chosen(rate, count)

    def named(self, names: Any) -> list[Any]:
        sources = []
        for inner in self.inner.named(names):
            sources.append(Scaled(self.factor, 0))
            sources[-1].inner = inner
        return sources
