"""Bijections in a row and beside each other, and how any of them is stored.

A sealed flow *is* one of these: plain arrays and numpy alone. Training lives at the site (`site_agent.models.flow`)
and needs torch; what it leaves behind can be stored without pickle, read anywhere, and run without torch.

A fitted flow is a chain, from latents to records:

    z ── AffineAutoregressiveFlow ──► v ── Levels ──► y ── Strata ──► s ── Margins ──► x

`Margins` undoes normal scores column by column. `Levels` gives each dequantised column (a code plus U(0, 1)) its own
law given the other columns, so that neither its frequencies nor its associations depend on how well an affine flow
draws a staircase; an affine flow alone moves a 4 % event to 10 %. `Strata` gives a column that is another one in
each level of a third (a time to event or to censoring) a margin and a regression per level. What is left to the flow
is smooth. Where a column is carried over as it is, every other column is another one in each of its levels, and the
flow stands `Beside` it.

`to_arrays` gives named arrays, `from_arrays` reads them and refuses what no fit could have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError, SchemaRefusal
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.base import Array, ArrayBijection, Arrays, Identity, StoredBijection, as_matrix
from shared.flows.levels import Levels
from shared.flows.margins import Margins
from shared.flows.outcomes_last import OutcomesLast
from shared.flows.strata import Strata

__all__ = ["Beside", "Composed", "from_arrays", "to_arrays"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Composed(ArrayBijection):
    """x = second(first(z)).

    >>> one = AffineAutoregressiveFlow(mean=np.array([1.0]), scale=np.array([[2.0]]))
    >>> Composed(first=one, second=one).forward(np.array([[1.0]]))
    array([[7.]])
    """

    kind: ClassVar[str] = "composed"
    first: StoredBijection
    second: StoredBijection

    def __post_init__(self) -> None:
        if self.first.d != self.second.d:
            raise ParameterError(
                "the two bijections must have as many columns", given=f"{self.first.d} and {self.second.d}"
            )

    @property
    def d(self) -> int:
        """Number of columns."""
        return self.first.d

    def forward(self, z: Array) -> Array:
        """x = second(first(z)), (n, d) to (n, d)."""
        return self.second.forward(self.first.forward(z))

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        y, outer = self.second.inverse_with_log_det(x)
        z, inner = self.first.inverse_with_log_det(y)
        return z, outer + inner

    def to_arrays(self) -> Arrays:
        """Both parts, each name with `first.` or `second.` before it."""
        return {
            f"{side}.{name}": value
            for side, part in (("first", self.first), ("second", self.second))
            for name, value in to_arrays(part).items()
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Composed:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if any(not name.startswith(("first.", "second.")) for name in arrays):
            raise SchemaRefusal("a chain must consist of a first and a second part")
        if max((name.count(".") for name in arrays), default=0) > 8:
            raise SchemaRefusal("a chain must not be nested deeper than 8")
        first, second = (
            from_arrays({n.removeprefix(side): a for n, a in arrays.items() if n.startswith(side)})
            for side in ("first.", "second.")
        )
        return cls(first=first, second=second)


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside(ArrayBijection):
    """A bijection of some columns, beside others that are left as they are: neither side reads the other.

    Args:
        columns: those that are left alone, ascending.
        inner: of all others, in their order.
    Raises: SchemaRefusal, if the columns are none, repeated or not there.

    >>> inner = AffineAutoregressiveFlow(mean=np.array([1.0]), scale=np.array([[2.0]]))
    >>> Beside(columns=(0,), inner=inner).forward(np.array([[5.0, 3.0]]))
    array([[5., 7.]])
    """

    kind: ClassVar[str] = "beside"
    columns: tuple[int, ...]
    inner: StoredBijection

    def __post_init__(self) -> None:
        columns = tuple(self.columns)
        if not columns or columns != tuple(sorted(set(columns))) or not 0 <= columns[0] <= columns[-1] < self.d:
            raise SchemaRefusal("columns that a flow leaves alone must be some of its columns", given=f"{columns}")

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.columns) + self.inner.d

    @property
    def others(self) -> list[int]:
        """The columns of the inner bijection."""
        return [j for j in range(self.d) if j not in self.columns]

    def forward(self, z: Array) -> Array:
        """x = f(z), (n, d) to (n, d)."""
        x = as_matrix(z, self.d)
        x[:, self.others] = self.inner.forward(x[:, self.others])
        return x

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        z = as_matrix(x, self.d)
        z[:, self.others], log_det = self.inner.inverse_with_log_det(z[:, self.others])
        return z, log_det

    def to_arrays(self) -> Arrays:
        """The columns, and the inner bijection with `inner.` before its names."""
        inner = {f"inner.{name}": value for name, value in to_arrays(self.inner).items()}
        return {"columns": np.array(self.columns, dtype=np.int64), **inner}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Beside:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        inner = {name.removeprefix("inner."): value for name, value in arrays.items() if name.startswith("inner.")}
        if set(arrays) - {f"inner.{name}" for name in inner} != {"columns"} or any(n.count("inner.") for n in inner):
            raise SchemaRefusal(
                "the arrays of a bijection of kind 'beside' must be its columns and one inner bijection"
            )
        columns = tuple(int(c) for c in np.asarray(arrays["columns"]).reshape(-1))
        return cls(columns=columns, inner=from_arrays(inner))


_KINDS: dict[str, type[Any]] = {
    c.kind: c for c in (Identity, AffineAutoregressiveFlow, Margins, Levels, Strata, OutcomesLast, Composed, Beside)
}
_CODES: list[str] = sorted(_KINDS)


def to_arrays(bijection: StoredBijection) -> Arrays:
    """Any bijection of this module as named arrays, ready for an npz file without pickle.

    >>> sorted(to_arrays(Identity(d=2)))
    ['d', 'kind']
    """
    return {"kind": np.frombuffer(bijection.kind.encode(), dtype=np.uint8), **bijection.to_arrays()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The reverse of `to_arrays`: the kind decides the class, and an unknown kind is refused.

    Raises: SchemaRefusal.

    >>> from_arrays(to_arrays(Identity(d=2)))
    Identity(d=2)
    """
    code = np.asarray(arrays.get("kind", np.zeros(0, dtype=np.uint8)))
    name = code.tobytes().decode("ascii", errors="replace") if code.dtype == np.uint8 and code.size < 64 else ""
    if name not in _KINDS:
        raise SchemaRefusal(f"the kind of a bijection must be one of {', '.join(_CODES)}")
    return _KINDS[name].from_arrays({key: value for key, value in arrays.items() if key != "kind"})
