"""Outcomes that are drawn last, from a law given every other column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.flows.base import BLOCK, Array, ArrayBijection, Arrays, as_matrix, require_arrays
from shared.flows.outcomes import HazardLaw, LevelLaw, OutcomeInputs, TiltLaw

__all__ = ["OutcomesLast"]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomesLast(ArrayBijection):
    """Outcomes by their laws given everything else: latents of their columns to values, all others left as they are.

    Args:
        laws: in the order in which outcomes are drawn (`shared.flows.outcomes`).
    Raises: SchemaRefusal, if a law reads an outcome that is not drawn before, or two laws draw one column.
    """

    kind: ClassVar[str] = "outcomes_last"
    d: int
    laws: tuple[LevelLaw | TiltLaw | HazardLaw, ...]

    def __post_init__(self) -> None:
        drawn = [column for law in self.laws for column in law.columns]
        if self.d < 1 or len(set(drawn)) != len(drawn) or any(not 0 <= c < self.d for c in drawn):
            raise SchemaRefusal("each outcome must have a column of its own, and one law")
        left = set(drawn)
        for law in self.laws:
            if any(not 0 <= c < self.d or c in left for c in law.inputs.reads):
                raise SchemaRefusal("an outcome's law must read covariates and earlier outcomes only")
            left -= set(law.columns)

    def forward(self, z: Array) -> Array:
        """Latents of the outcomes to values, (n, d) to (n, d)."""
        x = as_matrix(z, self.d)
        for start in range(0, len(x), BLOCK):
            part = x[start : start + BLOCK]
            for law in self.laws:
                law.draw(part)
        return x

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(latents of the outcomes, log |det|): (n, d) and (n,)."""
        x = as_matrix(x, self.d)
        z, log_det = x.copy(), np.zeros(len(x))
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            for law in self.laws:
                log_det[rows] += law.undraw(x[rows], z[rows])
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Per law its kind, what it reads and its figures."""
        out: Arrays = {
            "d": np.array(self.d, dtype=np.int64),
            "laws": np.array([law.kind for law in self.laws], dtype=np.int64),
        }
        for k, law in enumerate(self.laws):
            out |= {f"{name}{k}": value for name, value in (law.inputs.to_arrays() | law.to_arrays()).items()}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> OutcomesLast:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        kinds = [int(kind) for kind in np.asarray(arrays.get("laws", np.zeros(0))).reshape(-1)]
        if np.asarray(arrays.get("d", np.zeros(0))).size != 1 or len(kinds) > 4096 or not set(kinds) <= set(_LAWS):
            raise SchemaRefusal("outcomes must say how many columns there are, and of which kind their laws are")
        # Flows that were sealed before have no word of what stands in the place of a missing value.
        more = [
            [name for name in getattr(_LAWS[kind], "LATER", ()) if f"{name}{k}" in arrays]
            for k, kind in enumerate(kinds)
        ]
        parts = [(*OutcomeInputs.NAMES, *_LAWS[kind].NAMES, *also) for kind, also in zip(kinds, more, strict=True)]
        require_arrays(
            arrays, {"d", "laws"} | {f"{name}{k}" for k, names in enumerate(parts) for name in names}, cls.kind
        )
        laws = []
        for k, (kind, names) in enumerate(zip(kinds, parts, strict=True)):
            own = {name: arrays[f"{name}{k}"] for name in names}
            laws.append(_LAWS[kind].from_arrays(OutcomeInputs.from_arrays(own), own))
        return cls(d=int(np.asarray(arrays["d"]).reshape(-1)[0]), laws=tuple(laws))


_LAWS: dict[int, Any] = {law.kind: law for law in (LevelLaw, TiltLaw, HazardLaw)}
