"""Interface of the bijections between encoded records and latents, and the identity.

Each treats rows one by one and has a closed array form.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError, SchemaRefusal

__all__ = [
    "BLOCK",
    "HALF_LOG_2PI",
    "Array",
    "ArrayBijection",
    "Arrays",
    "Bijection",
    "Identity",
    "StoredBijection",
    "as_matrix",
    "frozen_array",
    "require_arrays",
]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
BLOCK = 1024
"""Rows at a time: bounds the memory of a pass through the networks."""
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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


@runtime_checkable
class StoredBijection(Bijection, Protocol):
    """A bijection that can also be chained and stored."""

    kind: ClassVar[str]

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        ...

    def to_arrays(self) -> Arrays:
        """Named arrays, which `from_arrays` of the class reads."""
        ...


class ArrayBijection(ABC):
    """A bijection given by `forward` and `inverse_with_log_det`: the rest follows from these."""

    @abstractmethod
    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""

    def inverse(self, x: Array) -> Array:
        """z = f⁻¹(x), (n, d) to (n, d), a new array."""
        return self.inverse_with_log_det(x)[0]

    def log_prob(self, x: Array) -> Array:
        """log N(f⁻¹(x); 0, I) + log |det ∂f⁻¹/∂x|, (n,), in nats."""
        z, log_det = self.inverse_with_log_det(x)
        return -0.5 * (z**2).sum(axis=1) - z.shape[1] * HALF_LOG_2PI + log_det


def as_matrix(x: Array, d: int) -> Array:
    """A copy of `x` as (n, d) floats. Raises: ParameterError (another shape)."""
    x = np.array(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != d:
        raise ParameterError(f"records must be a matrix with {d} columns", given=f"shape {x.shape}")
    return x


def frozen_array(value: Any, name: str, ndim: int) -> Array:
    """A read-only copy of `value` with that many axes. Raises: SchemaRefusal (not so, or not finite)."""
    out = np.array(value, dtype=np.float64)
    if out.ndim != ndim or not np.isfinite(out).all():
        raise SchemaRefusal(f"{name} must be {ndim}-dimensional and finite", given=f"shape {out.shape}")
    out.setflags(write=False)
    return out


@dataclass(frozen=True, kw_only=True)
class Identity(ArrayBijection):
    """The bijection that changes nothing: x = z.

    >>> Identity(d=2).forward(np.ones((1, 2)))
    array([[1., 1.]])
    """

    kind: ClassVar[str] = "identity"
    d: int

    def forward(self, z: Array) -> Array:
        """x = z."""
        return as_matrix(z, self.d)

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(x, 0)."""
        z = as_matrix(x, self.d)
        return z, np.zeros(len(z))

    def to_arrays(self) -> Arrays:
        """The number of columns."""
        return {"d": np.array(self.d, dtype=np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Identity:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        require_arrays(arrays, {"d"}, cls.kind)
        d = int(np.asarray(arrays["d"]).reshape(-1)[0]) if np.asarray(arrays["d"]).size == 1 else 0
        if d < 1:
            raise SchemaRefusal("a bijection must have at least one column")
        return cls(d=d)


def require_arrays(arrays: Mapping[str, NDArray[Any]], names: set[str], kind: str) -> None:
    """Raises: SchemaRefusal, unless the arrays of a bijection of this kind have exactly these names."""
    if set(arrays) != names:
        raise SchemaRefusal(f"the arrays of a bijection of kind '{kind}' must be exactly {', '.join(sorted(names))}")
