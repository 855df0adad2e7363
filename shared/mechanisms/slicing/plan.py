"""Mechanism spec of slicing: how many directions, and one price for a line of noisy sums per row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from shared.base.canonical import is_number, is_whole
from shared.base.process import deferred
from shared.errors import EstimateRefusal, SchemaRefusal
from shared.mechanisms.base import (
    Aggregates,
    Effort,
    Extent,
    Facts,
    ReleasedTables,
    balanced,
    by_plan,
    must,
    unit,
    widest,
)
from shared.mechanisms.slicing.noise import RowCode, SlicingMechanism, noise_for
from shared.privacy import accountant as privacy

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.mechanisms.slicing.projections import ProjectedMoments
    from shared.plans.plan import StudyPlan
else:
    pd = deferred("pandas")

__all__ = ["DIRECTION", "PROJECTION", "SlicingPlan"]

DIRECTION, PROJECTION = "direction", "projection"
"""Kinds of released line: a row of U, or the noisy sums of one record."""
MOST_SLICES = 4095
"""A released table has at most 4096 columns."""
MOST_EPSILON = 50.0


@dataclass(frozen=True, kw_only=True)
class SlicingPlan(Aggregates):
    """Every row through random directions, with Gaussian noise on each sum.

    Args:
        epsilon: ε of one release at the budget's δ, in (0, 50]; the noise is solved for.
        sigma: the noise's standard deviation. Exactly one of `epsilon` and `sigma` is given.
        slices: how many directions; None for eight per entry of a coded row, below which moments lose much.
    """

    epsilon: float | None = None
    sigma: float | None = None
    slices: int | None = None
    mechanism: Literal["slicing"] = "slicing"
    title: ClassVar[str] = "slicing"
    straight: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given = [name for name in ("epsilon", "sigma") if getattr(self, name) is not None]
        must(len(given) == 1, "release must give either epsilon or sigma", " and ".join(given) or "neither")
        most = {"epsilon": MOST_EPSILON, "sigma": math.inf}
        for name in given:
            value = getattr(self, name)
            number = is_number(value) and math.isfinite(value)
            must(
                number and 0 < value <= most[name],
                f"release.{name} must be a number in (0, {most[name]:g}]",
                repr(value)[:40],
            )
        if self.slices is not None:
            must(
                is_whole(self.slices) and 1 <= self.slices <= MOST_SLICES,
                f"release.slices must be a whole number in 1..{MOST_SLICES}",
                repr(self.slices)[:40],
            )

    def require(self, plan: StudyPlan) -> None:
        """Rows that can be coded, and at least as many directions as a row has entries."""
        super().require(plan)
        with by_plan():
            self.slicing(plan)

    def code(self, plan: StudyPlan) -> RowCode:
        """Encoding of records as rows of norm at most 1."""
        return RowCode(dictionary=plan.dictionary)

    def slicing(self, plan: StudyPlan) -> SlicingMechanism:
        """The mechanism of a plan. Raises: ParameterError."""
        code = self.code(plan)
        d, distance = code.d, code.distance
        slices = min(8 * d, MOST_SLICES) if self.slices is None else self.slices
        SlicingMechanism(d=d, slices=slices, sigma=1.0, distance=distance)  # before a price is solved for
        sigma = self.sigma
        if sigma is None:
            assert self.epsilon is not None
            sigma = noise_for(self.epsilon, plan.budget.delta, d=d, slices=slices, distance=distance)
        return SlicingMechanism(d=d, slices=slices, sigma=sigma, distance=distance)

    def event(self, plan: StudyPlan) -> privacy.Event:
        """Slicing, with the rounding of its directions."""
        return self.slicing(plan).event

    def facts(self, plan: StudyPlan) -> Facts:
        """The noise, the directions, and how far apart two rows can be."""
        slicing = self.slicing(plan)
        return Facts(
            d=slicing.d,
            parameters={"sigma": slicing.sigma, "slices": slicing.slices, "distance": slicing.distance},
            conditional_on="nothing: nothing was fitted on records",
            model="local",
        )

    def row_noise(self, plan: StudyPlan) -> float:
        """Noise standard deviation of a level's indicator (0 or 1), as recovered from a record's lines."""
        slicing = self.slicing(plan)
        # (XU + V) U⁺: V spread over m' directions, of which the longest eigenvalues of U Uᵀ are about m'/d.
        return slicing.sigma * math.sqrt(slicing.d / slicing.slices) / self.code(plan).unit

    def details(self, plan: StudyPlan) -> str:
        """Directions and noise."""
        slicing = self.slicing(plan)
        return (
            f"{slicing.slices} directions of {slicing.d} entries, noise of {slicing.sigma:.4g} on each sum: about "
            f"{self.row_noise(plan):.2g} on a level that is 0 or 1"
        )

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """As of `Aggregates`, and that a line is of one row."""
        whose = "person" if unit(plan) == "patient" else "row"
        return (
            *super().covered(plan),
            f"Each released line is of one {whose}: sums of the coded record with noise on each, in no order. Undone "
            f"as far as can be, it is the record with noise of about {self.row_noise(plan):.2g} on every level that "
            "is 0 or 1. Nobody outside, the coordinator included, holds anything of a record but that.",
        )

    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The directions, then a line per record, in an order that says nothing.

        The table is made once, and a block of records at a time: of half a million lines it is most of a gigabyte.
        """
        slicing, code = self.slicing(plan), self.code(plan)
        directions = slicing.directions(rng)
        # A column's numbers lie together, as a file has them: nothing on the way to it is a second table.
        values = np.empty((slicing.slices, slicing.d + len(records))).T
        values[: slicing.d] = np.multiply(directions, slicing.direction_step, dtype=np.float64)
        lines = values[slicing.d :]
        for at in range(0, len(records), slicing.block):
            rows = code.encode(records.iloc[at : at + slicing.block])
            lines[at : at + len(rows)] = slicing.lines(rows, directions, rng)
        order = rng.generator.permutation(len(lines))
        for column in lines.T:
            column[:] = column[order]
        table = pd.DataFrame(values, columns=list(_columns(slicing.slices)), copy=False)
        table.insert(0, "line", [DIRECTION] * slicing.d + [PROJECTION] * len(lines))
        return table

    def projections(self, plan: StudyPlan, table: pd.DataFrame) -> tuple[Any, Any]:
        """((d, slices) directions, (n, slices) noisy sums) of a released table."""
        values = table.iloc[:, 1:].to_numpy(dtype=np.float64)
        d = self.code(plan).d
        return values[:d], values[d:]

    def synthetic(
        self, plan: StudyPlan, tables: ReleasedTables, *, draws: int, rng: np.random.Generator
    ) -> list[pd.DataFrame]:
        """Rows of a mixture of products fitted to the lines' moments: see `shared.mechanisms.slicing.projections`."""
        from shared.mechanisms.slicing.projections import fit

        found = self._moments(plan, tables)
        model = fit(self.code(plan), found)
        return [model.rows(found.n, rng)[1] for _ in range(draws)]

    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """Five synthetic tables' answers together: see `shared.mechanisms.slicing.answers`.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal: an interaction or a curve; lines hold how two columns go together, and no more.
        """
        from shared.mechanisms.slicing.answers import answer

        self.require_shapes(question)
        return answer(self.code(plan), self._moments(plan, tables), question, levels=levels, **origin)

    def together(
        self, plan: StudyPlan, sites: Mapping[str, ReleasedTables], question: Estimand, *, origins: Mapping[str, Origin]
    ) -> dict[str, list[Estimate]]:
        """One model of all sites' lines, and a step to each one's own: see `shared.mechanisms.slicing.answers`.

        A site with more persons than all others together is not in it (`shared.mechanisms.base.balanced`).
        """
        from shared.mechanisms.slicing.answers import together

        self.require_shapes(question)
        chosen = balanced({site: sum(n for _, n in tables) for site, tables in sites.items()})
        if not chosen:
            return {}
        everybody = self._moments(plan, [one for site in chosen for one in sites[site]])
        found = {site: self._moments(plan, sites[site]) for site in chosen}
        levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
        return together(self.code(plan), found, everybody, question, levels=levels, origins=origins)

    def _moments(self, plan: StudyPlan, tables: ReleasedTables) -> ProjectedMoments:
        from shared.mechanisms.slicing.projections import moments

        return moments(self.code(plan), self._releases(plan, tables), self.slicing(plan).sigma)

    def _releases(self, plan: StudyPlan, tables: ReleasedTables) -> list[tuple[Any, Any]]:
        slicing = self.slicing(plan)
        for table, _ in tables:
            if table.shape[1] != slicing.slices + 1 or int((table["line"] == DIRECTION).sum()) != slicing.d:
                raise EstimateRefusal(
                    "a site's releases must be projections as its newest plan version has them",
                    given="those of an earlier version",
                )
        return [self.projections(plan, table) for table, _ in tables]

    def extent(self, plan: StudyPlan, n: int) -> Extent:
        """A line per direction, and one per person."""
        slicing = self.slicing(plan)
        texts = {"line": widest((DIRECTION, PROJECTION))}
        return Extent(rows=slicing.d + n, texts=texts, numbers=slicing.slices)

    def effort(self, plan: StudyPlan, n: int, d: int) -> Effort:
        """As of `MechanismPlan`."""
        numbers = n * self.slicing(plan).slices
        return Effort(
            seconds=2.0 + 7.5e-7 * numbers, memory_mb=230 + 1.05e-5 * numbers, bundle_mb=0.4 + 2.1e-6 * numbers
        )

    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """Exactly the plan's directions and n lines: numbers on their grids that this noise can give."""
        slicing = self.slicing(plan)
        names = ("line", *_columns(slicing.slices))
        if tuple(table.columns) != names or len(table) != slicing.d + n:
            raise SchemaRefusal(
                f"released projections must have columns line, p1 to p{slicing.slices} and {slicing.d} + {n} lines",
                given=f"{len(table.columns)} columns, {len(table)} lines",
            )
        if table["line"].tolist() != [DIRECTION] * slicing.d + [PROJECTION] * n:
            raise SchemaRefusal(
                f"released projections must be {slicing.d} directions and then {n} lines", given="another order"
            )
        if any(dtype != np.dtype("float64") for dtype in table.dtypes.iloc[1:]):
            raise SchemaRefusal("released projections must be numbers", given="other columns")
        # No normal deviate of forty standard deviations in the life of the universe; a row adds at most U's own length.
        finite, on_grid, outside = True, True, 0
        for name in names[1:]:  # one after the other: a second table would be in memory else
            values = table[name].to_numpy()
            directions, lines = values[: slicing.d], values[slicing.d :]
            finite = finite and bool(np.isfinite(values).all())
            long = math.sqrt(float((directions**2).sum()))
            outside += int((np.abs(directions) > 40 / math.sqrt(slicing.d)).sum())
            outside += int((np.abs(lines) > 40 * slicing.sigma + long + 1).sum())
            for part, step in ((directions, slicing.direction_step), (lines, slicing.grid)):
                on_grid = on_grid and np.array_equal(np.rint(part / step) * step, part)
        if not finite:
            raise SchemaRefusal("released projections must be finite", given="others")
        if outside:
            raise SchemaRefusal(
                "released projections must be possible for the rows and the noise of the plan",
                given=f"{outside} are not",
            )
        if not on_grid:
            raise SchemaRefusal("released projections must lie on the grid of their noise", given="others")


def _columns(slices: int) -> tuple[str, ...]:
    return tuple(f"p{i + 1}" for i in range(slices))
