"""Noisy densities as a plan prescribes them: which columns, how fine, and one ε for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared import privacy
from shared.dictionary import Column
from shared.errors import EstimateRefusal, ParameterError, PlanRefusal, SchemaRefusal
from shared.estimands import Estimand, Estimate
from shared.formulas import Node, parse
from shared.mechanisms.density import Densities, Grid, rounded_laplace_variance
from shared.prescriptions import Facts, Figures, must

if TYPE_CHECKING:
    from shared.plan import StudyPlan
    from shared.randomness import Noise

__all__ = ["COLUMNS", "DensitiesPlan", "level_for"]

COLUMNS = ("density", "cell", "count")
"""Of the released table: which density, which cell in words, the noisy count of persons."""
_FINEST = {1: 8, 2: 6, 3: 4}
_MOST_CELLS = 1 << 14
Floats = NDArray[np.float64]


def level_for(columns: int, persons: int, scale: float) -> int:
    """The level J of a grid, from what is public: 64 bins in one dimension, 8 or 16 a side in two, 8 in three.

    Args:
        columns: of the grid.
        persons: the size that the plan expects of a site's table.
        scale: b of the noise of each count, in persons.

    >>> level_for(1, 500, 20.0), level_for(2, 2000, 2.0), level_for(2, 20_000, 2.0), level_for(3, 20_000, 2.0)
    (6, 3, 4, 3)
    """
    if columns == 1:
        return 6
    # A grid's own nε is 2n/b; from 5,000 on the finer grid pays.
    return 4 if columns == 2 and 2 * persons >= 5000 * scale else 3


@dataclass(frozen=True, kw_only=True)
class DensitiesPlan(Figures):
    """Histograms of chosen columns, alone or two or three together, with Laplace noise: for transport maps.

    Args:
        densities: groups of one to three numeric columns.
        epsilon: pure ε of one release, for all groups together; each is given an equal part.
        persons: how many persons a site is expected to have. It chooses how fine a grid of two columns is, and
            nothing else: no site's own n decides, so that all sites release the same cells.
        alike: columns with a density of their own that every site measures in the same way, such as age: a difference
            in them is one of patients, and is what harmonising is warned of.
        level: J, 2^J bins a side, for every group; None lets `level_for` choose.
    """

    densities: Sequence[Sequence[str]]
    epsilon: float
    persons: int = 2000
    alike: Sequence[str] = ()
    level: int | None = None
    mechanism: Literal["densities"] = "densities"
    title: ClassVar[str] = "noisy densities"

    def __post_init__(self) -> None:
        must(
            isinstance(self.epsilon, int | float)
            and not isinstance(self.epsilon, bool)
            and 0 < self.epsilon < math.inf,
            "release.epsilon must be positive and finite",
            self.epsilon,
        )
        whole = isinstance(self.persons, int) and not isinstance(self.persons, bool)
        must(whole and self.persons >= 1, "release.persons must be at least 1", self.persons)
        groups = self.densities
        listed = isinstance(groups, Sequence) and not isinstance(groups, str) and bool(groups)
        listed = listed and all(isinstance(group, Sequence) and not isinstance(group, str) for group in groups)
        must(listed, 'release.densities must be groups of columns: [["chol"], ["sbp", "dbp"]]', "other")
        object.__setattr__(self, "densities", tuple(tuple(map(str, group)) for group in groups))
        object.__setattr__(self, "epsilon", float(self.epsilon))
        named = isinstance(self.alike, Sequence) and not isinstance(self.alike, str)
        named = named and all((name,) in self.densities for name in self.alike)
        must(named, "release.alike must name columns that have a density of their own", repr(self.alike)[:60])
        object.__setattr__(self, "alike", tuple(self.alike))
        if self.level is not None:
            finest = min(_FINEST.get(len(group), 1) for group in self.densities)
            whole = isinstance(self.level, int) and not isinstance(self.level, bool)
            must(whole and 2 <= self.level <= finest, f"release.level must be in 2..{finest}", self.level)

    def require(self, plan: StudyPlan) -> None:
        """Known numeric columns, and densities of a size that can be released."""
        super().require(plan)
        names = {column.name for column in plan.dictionary.released}
        unknown = sorted({name for group in self.densities for name in group} - names)
        must(not unknown, "release.densities must name columns of the dictionary", ", ".join(unknown))
        try:
            cells = self.mechanism_of(plan).cells
        except ParameterError as error:
            raise PlanRefusal(error.must, given=error.given, next_step=error.next_step or "Correct the plan.") from None
        must(cells <= _MOST_CELLS, f"release.densities must have at most {_MOST_CELLS} cells", cells)

    def mechanism_of(self, plan: StudyPlan) -> Densities:
        """The mechanism of a plan. Raises: ParameterError."""
        scale = self._scale(len(self.densities))
        grids = tuple(
            Grid(
                columns=tuple(plan.dictionary.column(name) for name in group),
                level=self.level or level_for(len(group), self.persons, scale),
            )
            for group in self.densities
        )
        return Densities(grids=grids, scale=scale)

    def _scale(self, grids: int) -> float:
        scale = privacy.calibrate(privacy.Laplace, self.epsilon, 0.0, sensitivity=1.0, coordinates=2 * grids).scale
        # Up to six digits, and one more step where a quotient's last digit would say more than was promised.
        digits = 5 - math.floor(math.log10(scale))
        steps = math.ceil(scale * 10.0**digits)
        while 2 * grids * (1.0 / (steps / 10.0**digits)) > self.epsilon:
            steps += 1
        return steps / 10.0**digits

    def event(self, plan: StudyPlan) -> privacy.Event:
        """One Laplace mechanism on all counts."""
        return self.mechanism_of(plan).event

    def facts(self, plan: StudyPlan) -> Facts:
        """The noise, and how much there is of it."""
        mechanism = self.mechanism_of(plan)
        return Facts(
            d=len({name for group in self.densities for name in group}),
            parameters={"scale": mechanism.scale, "densities": len(mechanism.grids), "cells": mechanism.cells},
            conditional_on="nothing: nothing was fitted on records",
            model="central",
        )

    def details(self, plan: StudyPlan) -> str:
        """Densities, cells and noise."""
        mechanism = self.mechanism_of(plan)
        spread = math.sqrt(rounded_laplace_variance(mechanism.scale))
        count = len(mechanism.grids)
        return f"{count} densit{'y' if count == 1 else 'ies'}, {mechanism.cells} counts, noise of {spread:.4g} persons"

    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The noisy counts, a line each."""
        mechanism = self.mechanism_of(plan)
        names, cells = _labels(mechanism)
        flat = np.concatenate(mechanism.release(records, rng)).astype(np.int64)
        return pd.DataFrame({"density": names, "cell": cells, "count": flat})

    def counts(self, plan: StudyPlan, table: pd.DataFrame) -> list[NDArray[np.int64]]:
        """The noisy counts of a released table, one (size,) array per grid, the cell of missing values last."""
        sizes = [grid.size for grid in self.mechanism_of(plan).grids]
        return np.split(table["count"].to_numpy(dtype=np.int64), np.cumsum(sizes)[:-1])

    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """Exactly the plan's densities and cells, in order; whole counts that n persons and this noise can give."""
        mechanism = self.mechanism_of(plan)
        if tuple(table.columns) != COLUMNS or len(table) != mechanism.cells:
            raise SchemaRefusal(
                f"released densities must have columns {', '.join(COLUMNS)} and {mechanism.cells} lines",
                given=f"{len(table)} lines",
            )
        if table["count"].dtype != np.dtype("int64"):
            raise SchemaRefusal("released counts must be whole numbers", given=f"{table['count'].dtype}")
        names, cells = _labels(mechanism)
        if table["density"].tolist() != names or table["cell"].tolist() != cells:
            raise SchemaRefusal("released densities must name the plan's densities and cells, in order", given="others")
        # A sum of noise as large as this has probability below e^-100, whoever drew it.
        reach = 120 * mechanism.scale + 1
        outside = int(((table["count"] < -reach) | (table["count"] > n + reach)).sum())
        far = sum(
            abs(int(counts.sum()) - n) > reach + 40 * mechanism.scale * math.sqrt(len(counts))
            for counts in self.counts(plan, table)
        )
        if outside or far:
            raise SchemaRefusal(
                "released counts must be possible for the persons and the noise of the plan",
                given=f"{outside} counts and {far} totals that are not",
            )

    def answer(
        self,
        plan: StudyPlan,
        tables: Sequence[tuple[pd.DataFrame, int]],
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **told: Any,
    ) -> list[Estimate]:
        """The mean of a column, or the share beyond a value, read off its density; nothing else is in one.

        Both are linear in the counts, so that the noise's part of the variance is known exactly. Within a bin the
        values are taken to be spread evenly: how much that can matter at most is a warning on the estimate.

        Raises: EstimateRefusal.
        """
        name, above = _asked(question)
        mechanism = self.mechanism_of(plan)
        # The grid with the fewest columns: the others' noise adds up over more cells.
        with_it = [i for i, grid in enumerate(mechanism.grids) if name in (column.name for column in grid.columns)]
        if not with_it:
            raise EstimateRefusal(f"the release must hold the density of {name}", given="none", next_step=_FOR)
        at = min(with_it, key=lambda i: len(mechanism.grids[i].columns))
        grid = mechanism.grids[at]
        counts = np.sum([self.counts(plan, table)[at] for table, _ in tables], axis=0).astype(np.float64)
        noise = len(tables) * rounded_laplace_variance(mechanism.scale)
        n = sum(persons for _, persons in tables)
        axis = next(i for i, column in enumerate(grid.columns) if column.name == name)
        edges = grid.edges[axis]
        score = _score(grid.columns[axis], edges, above)
        weight = np.broadcast_to(
            np.reshape(score, [-1 if i == axis else 1 for i in range(len(grid.shape))]), grid.shape
        ).ravel()
        cells = counts[: weight.size]
        # All n persons are somewhere, and n is public: only deviations from a fixed middle carry noise, and those who
        # lack the value are counted by one cell.
        middle = float(score.min() + score.max()) / 2
        present = n - counts[-1] if grid.missing else float(n)
        if present < 10:
            raise EstimateRefusal(
                f"{name} must have values that can be told from the noise",
                given=f"{present:.0f} persons",
                next_step=_FOR,
            )
        shift = float(((weight - middle) * cells).sum()) / present
        yi = middle + shift
        hidden = noise * (float(((weight - middle) ** 2).sum()) + (shift**2 if grid.missing else 0.0)) / present**2
        if above is None:
            widest = float(np.diff(edges).max())
            spread = float(((weight - yi) ** 2 * cells).sum()) / present
            spread = float(np.clip(spread, widest**2 / 12, (edges[-1] - edges[0]) ** 2 / 4))
            slack, stretch = widest / 2, 1.0
        else:
            rarer = min(yi, 1 - yi)
            if rarer * present < 1 or rarer**2 < 4 * hidden:
                raise EstimateRefusal(
                    "a share must be further from 0 and 1 than two standard deviations of the noise",
                    given=f"noise of standard deviation {math.sqrt(hidden):.2g}",
                )
            split = (weight > 0) & (weight < 1)
            slack = max(0.0, float((cells * np.maximum(weight, 1 - weight))[split].sum())) / present
            spread, stretch = yi * (1 - yi), 1 / (yi * (1 - yi)) ** 2
            yi = math.log(yi / (1 - yi))
        said = (
            f"read off bins: the {'mean' if above is None else 'share'} can be off by up to {slack:.2g} by them alone"
        )
        return [
            Estimate(
                term=question.labels[0],
                yi=yi,
                vi_sampling=stretch * spread / present,
                vi_privacy=stretch * hidden,
                n=round(present),
                n_missing=max(0, n - round(present)),
                scale=question.scale,
                how="linear in the noisy counts, whose noise is known",
                warnings=(said,) if slack else (),
                **told,
            )
        ]


_FOR = "Densities answer mean(x) and proportion(x > value), and map one hospital's column to another's."


def _asked(question: Estimand) -> tuple[str, tuple[str, float] | None]:
    """The column; and of a share, the comparison. Raises: EstimateRefusal."""
    if question.kind in ("mean", "proportion") and not question.subset:
        node = parse(question.outcome)
        if question.kind == "mean" and node.kind == "name":
            return str(node.value), None
        if question.kind == "proportion" and node.kind == "binary" and node.value in (">", ">=", "<", "<="):
            left, right = node.parts
            value = _number(right)
            if left.kind == "name" and value is not None:
                return str(left.value), (str(node.value), value)
    raise EstimateRefusal("the question must be one that a density answers", given=str(question), next_step=_FOR)


def _number(node: Node) -> float | None:
    if node.kind == "number":
        return float(node.value)
    if node.kind == "unary" and node.value == "-" and node.parts[0].kind == "number":
        return -float(node.parts[0].value)
    return None


def _score(column: Column, edges: Floats, above: tuple[str, float] | None) -> Floats:
    """What a person of each bin adds: its middle, or the part of the bin that the comparison takes."""
    low, high = edges[:-1], edges[1:]
    if above is None:
        return np.asarray((low + high) / 2)
    how, value = above
    if column.kind == "integer":  # whole numbers lie in the middle of their bins: move the cut between two of them
        value = math.floor(value) + 0.5 if how in (">", "<=") else math.ceil(value) - 0.5
    share = np.clip((high - value) / (high - low), 0.0, 1.0)
    return np.asarray(share if how in (">", ">=") else 1 - share)


def _labels(mechanism: Densities) -> tuple[list[str], list[str]]:
    names: list[str] = []
    cells: list[str] = []
    for grid in mechanism.grids:
        names += [grid.name] * grid.size
        cells += grid.labels
    return names, cells
