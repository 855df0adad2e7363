"""Mechanism spec of noisy tables: which tables, how many bins, and one price for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from shared.base.canonical import is_list
from shared.errors import EstimateRefusal, ParameterError, SchemaRefusal
from shared.mechanisms.base import Facts, ReleasedTables, by_plan, must
from shared.mechanisms.labelled import LabelledFigures, Layout, arrays_of
from shared.mechanisms.tables.noise import Attribute, CountTables, Zero, attributes, bin_edges, sensitivity
from shared.privacy import accountant as privacy
from shared.privacy import calibration

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.mechanisms.base import MechanismPlan
    from shared.mechanisms.tables.one_step import Released
    from shared.plans.plan import StudyPlan
    from shared.terminal import ChecklistLine

__all__ = ["COLUMNS", "TablesPlan"]

COLUMNS = ("table", "cell", "count")
"""Of the released table: which contingency table, which cell in words, the noisy count of persons."""


@dataclass(frozen=True, kw_only=True)
class TablesPlan(LabelledFigures):
    """All one-way tables, and the two-way tables that are named (or all of them), with Gaussian noise.

    Args:
        epsilon: ε of one release at the budget's δ; the noise is solved for.
        sigma: the noise's standard deviation in persons. Exactly one of `epsilon` and `sigma` is given.
        bins: of numeric columns, by name; others have 16.
        pairs: pairs of columns that are crossed; None for every pair. A time stands for itself and its event.
        zeros: what no person can be, two columns at a time: of each its levels, ``missing`` among them, or of a number
            the least and the largest value, whose bins count where they lie within. Public knowledge, never data.
    """

    epsilon: float | None = None
    sigma: float | None = None
    bins: Mapping[str, int] = field(default_factory=dict)
    pairs: Sequence[Sequence[str]] | None = None
    zeros: Sequence[Mapping[str, Sequence[Any]]] = ()
    mechanism: Literal["tables"] = "tables"
    title: ClassVar[str] = "noisy tables"

    @property
    def unseen(self) -> str:
        """As of `MechanismPlan.unseen`."""
        return (
            "A coefficient hangs on where persons lie within their bins, which no count shows: with more than 70 % of "
            "them in one bin it is not answered, below that it may be drawn towards zero by a little more than its "
            "interval allows. A hospital alone is drawn towards zero by the noise as well; several are read together "
            "and are not. Pooled intervals of about fifty large sites hold too seldom, and cautions stand there by "
            "right answers, too (docs/zoo.md)."
        )

    def __post_init__(self) -> None:
        given = [name for name in ("epsilon", "sigma") if getattr(self, name) is not None]
        must(len(given) == 1, "release must give either epsilon or sigma", " and ".join(given) or "neither")
        for name in given:
            value = getattr(self, name)
            must(0 < value < math.inf, f"release.{name} must be positive and finite", value)
        must(isinstance(self.bins, Mapping), "release.bins must be a table of numbers by column", repr(self.bins))
        object.__setattr__(self, "bins", dict(self.bins))
        if self.pairs is not None:
            pairs = is_list(self.pairs) and all(is_list(pair) and len(pair) == 2 for pair in self.pairs)
            must(pairs, "release.pairs must be pairs of columns", "other")
            object.__setattr__(self, "pairs", tuple(tuple(map(str, pair)) for pair in self.pairs))
        listed = is_list(self.zeros) and all(
            isinstance(one, Mapping) and len(one) == 2 and all(is_list(cells) and cells for cells in one.values())
            for one in self.zeros
        )
        must(listed, "release.zeros must each be of two columns, a list of what nobody has in both", "others")
        # Lists, as they come back from a plan's canonical form.
        plainly = tuple({str(name): list(cells) for name, cells in one.items()} for one in self.zeros)
        object.__setattr__(self, "zeros", plainly)

    def require(self, plan: StudyPlan) -> None:
        """Known columns, bins within reason, and tables of a size that can be released."""
        super().require(plan)
        names = {column.name for column in plan.dictionary.released}
        unknown = sorted(set(self.bins) - names)
        must(not unknown, "release.bins must name columns of the dictionary", ", ".join(unknown))
        with by_plan():
            self.tables(plan)

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """Checklist: how wide the bins of numbers are, by which a lead can tell where most persons will share one."""
        from shared.terminal import ChecklistLine

        wide = [
            f"{column.name} {width:.3g} {column.unit}".strip()
            for attribute in self.tables(plan).attributes
            for column, bins in zip(attribute.columns, attribute.bins, strict=True)
            if bins and ((width := float(np.diff(bin_edges(column, bins)).max())) > 1 or column.kind != "integer")
        ]
        if not wide:
            return []
        what = "where more than 70 % of a site's persons lie in one, no regression on the column is answered"
        return [ChecklistLine(name="bins", detail=f"{', '.join(wide)} each: {what}")]

    def tables(self, plan: StudyPlan) -> CountTables:
        """The mechanism of a plan. Raises: ParameterError."""
        found = attributes(plan.dictionary, self.bins)
        pairs = None if self.pairs is None else tuple(sorted(_pair(found, pair) for pair in self.pairs))
        count = len(found) + (len(found) * (len(found) - 1) // 2 if pairs is None else len(pairs))
        zeros = tuple(_zero(found, one) for one in self.zeros)
        return CountTables(
            attributes=found, pairs=pairs, sigma=self._sigma(sensitivity(count), plan.budget.delta), zeros=zeros
        )

    def _sigma(self, reach: float, delta: float) -> float:
        if self.sigma is not None:
            return self.sigma
        assert self.epsilon is not None
        sigma = calibration.calibrate(privacy.Gaussian, self.epsilon, delta, sensitivity=reach).sigma
        # Up to six digits: the same on machines whose last digits differ, and never less noise than was promised.
        digits = 5 - math.floor(math.log10(sigma))
        return math.ceil(sigma * 10.0**digits) / 10.0**digits

    def event(self, plan: StudyPlan) -> privacy.Event:
        """One Gaussian mechanism on all counts."""
        return self.tables(plan).event

    def facts(self, plan: StudyPlan) -> Facts:
        """The noise, and how much there is of it."""
        tables = self.tables(plan)
        return Facts(
            d=len(plan.dictionary.released),
            parameters={"sigma": tables.sigma, "tables": len(tables.tables), "cells": tables.cells},
            conditional_on="nothing: nothing was fitted on records",
            model="central",
        )

    def details(self, plan: StudyPlan) -> str:
        """Tables, cells and noise."""
        tables = self.tables(plan)
        words = f"{len(tables.tables)} tables, {tables.cells} counts, noise of {tables.sigma:.4g} persons on each"
        nowhere = sum(int(cells.sum()) for cells in tables.impossible.values())
        return words + (f", {nowhere} cells declared impossible" if nowhere else "")

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """As of `Aggregates`, and that cells declared impossible are released as 0."""
        out = super().covered(plan)
        if not self.zeros:
            return out
        return (
            *out,
            "Cells that the plan declares impossible are released as 0 whatever the records say, and nothing that "
            "leaves tells whether a record contradicts the plan there.",
        )

    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The noisy counts, a line each."""
        return self.layout(plan).table(self.tables(plan).release(records, rng))

    def layout(self, plan: StudyPlan) -> Layout:
        """Table and cell of every count."""
        mechanism = self.tables(plan)
        labels = [attribute.labels for attribute in mechanism.attributes]
        names: list[str] = []
        cells: list[str] = []
        for table in mechanism.tables:
            name = " × ".join(mechanism.attributes[i].name for i in table.of)
            here = ["".join(parts) for parts in labels[table.of[0]]]
            if len(table.of) == 2:
                here = [f"{one} × {other}" for one in here for other in labels[table.of[1]]]
            names += [name] * len(here)
            cells += here
        return Layout(columns=COLUMNS, first=names, second=cells)

    def counts(self, plan: StudyPlan, table: pd.DataFrame) -> list[Any]:
        """The noisy counts of a released table, one array per contingency table."""
        return arrays_of(table, [one.shape for one in self.tables(plan).tables])

    def released(self, plan: StudyPlan, tables: ReleasedTables) -> Released:
        """The counts of releases of different persons, added up. Raises: EstimateRefusal, if they count other cells."""
        from shared.mechanisms.tables.one_step import Released

        lines = self.layout(plan)
        for table, _ in tables:
            if table["table"].tolist() != lines.first or table["cell"].tolist() != lines.second:
                raise EstimateRefusal(
                    "a site's releases must count the cells of its newest plan version",
                    given="tables of an earlier version",
                )
        sums = [sum(parts) for parts in zip(*(self.counts(plan, table) for table, _ in tables), strict=True)]
        return Released(tables=self.tables(plan), counts=tuple(sums), n=sum(n for _, n in tables), releases=len(tables))

    def synthetic(
        self, plan: StudyPlan, tables: ReleasedTables, *, draws: int, rng: np.random.Generator
    ) -> list[pd.DataFrame]:
        """Rows of latent classes fitted to the counts: see `shared.mechanisms.tables.latent_class`."""
        from shared.mechanisms.tables.one_step import fitted, synthetic

        return synthetic(fitted(self.released(plan, tables)), plan.dictionary, draws=draws, rng=rng)

    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """The synthetic rows' answer and one step to the counts: see `shared.mechanisms.tables.one_step`.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal, as `estimate`, and where the bins hide the outcome of a model.
        """
        from shared.mechanisms.tables.one_step import answer, fitted

        released = self.released(plan, tables)
        return answer(released, fitted(released), plan.dictionary, question, levels=levels, **origin)

    def together(
        self, plan: StudyPlan, sites: Mapping[str, ReleasedTables], question: Estimand, *, origins: Mapping[str, Origin]
    ) -> dict[str, list[Estimate]]:
        """One model of all sites' counts, and a step to each one's own: see `shared.mechanisms.tables.together`."""
        from shared.mechanisms.tables.together import together

        if len(sites) < 2:
            return {}
        released = {site: self.released(plan, tables) for site, tables in sites.items()}
        levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
        return together(released, plan.dictionary, question, levels=levels, origins=origins)

    def doubt(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> str:
        """Warning that bins hide a column of a planned model, of which no coefficient will be told; else empty."""
        from shared.estimands.answer import parse_estimand
        from shared.estimands.questions import MODELS
        from shared.mechanisms.tables.coarse import MORE_BINS, coarse

        released = self.released(plan, [(table, n)])
        hidden = coarse(released.tables, released.counts, n, released.variance)
        asked: set[str] = set()
        for formula in plan.estimands.values():
            with suppress(ParameterError):  # an analysis in words
                question = parse_estimand(formula).with_rows(plan.dictionary.repeated)
                asked.update(question.columns if question.kind in MODELS else ())
        words = [f"{name}: {how}" for name, how in hidden.items() if name in asked]
        return f"A planned model will have no answer about {'; '.join(words)}. {MORE_BINS}" if words else ""

    def require_possible(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """As of `LabelledFigures`."""
        mechanism = self.tables(plan)
        nowhere = mechanism.impossible
        for one, count in zip(mechanism.tables, self.counts(plan, table), strict=True):
            if len(one.of) == 2 and one.of in nowhere and count[nowhere[one.of[0], one.of[1]]].any():
                raise SchemaRefusal("released counts must be 0 where the plan says nobody can be", given="others")
        reach = 40 * mechanism.sigma + 1  # no noise of this law in the life of the universe
        outside = int(((table["count"] < -reach) | (table["count"] > n + reach)).sum())
        if outside:
            raise SchemaRefusal(
                "released counts must be possible for the persons and the noise of the plan", given=f"{outside} are not"
            )


def _zero(found: tuple[Attribute, ...], declared: Mapping[str, Sequence[Any]]) -> Zero:
    low, high = _pair(found, tuple(declared))
    cells: dict[int, tuple[int, ...]] = {}
    for name, given in declared.items():
        place = next(i for i, one in enumerate(found) if name in (column.name for column in one.columns))
        cells[place] = found[place].within(name, given)
    return Zero(of=(low, high), rows=cells[low], columns=cells[high])


def _pair(found: tuple[Attribute, ...], pair: Sequence[str]) -> tuple[int, int]:
    places = []
    for name in pair:
        at = next((i for i, one in enumerate(found) if name in (column.name for column in one.columns)), None)
        if at is None:
            raise ParameterError("release.pairs and zeros must name columns of the dictionary", given=name)
        places.append(at)
    low, high = sorted(places)
    if low == high:
        raise ParameterError("release.pairs and zeros must be of different columns", given=" and ".join(pair))
    return low, high
