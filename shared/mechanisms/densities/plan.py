"""Mechanism spec of noisy densities: which columns, how fine, in which way, and one ε for all of them.

``basis`` says what of a density leaves: counts of a histogram (``haar``), sums of smooth scaling functions
(``daubechies2`` to ``daubechies4``), or private ``quantiles`` of single columns. ``trust`` says how the hospital's own
agent, which is trusted with the records in either case, draws the noise: on the sums (``central``), or on every record
by itself before anything is added up, as if each had reported for itself (``local``: far more noise). ε is the total
over all groups of columns in every case; each group is given an equal part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import is_list, is_number, is_whole
from shared.errors import EstimateRefusal, ParameterError, SchemaRefusal
from shared.estimands.formulas import Node, parse
from shared.mechanisms.base import Facts, ReleasedTables, by_plan, must, unit
from shared.mechanisms.densities.groups import Counted, Cuts, Group, Histogram, Reports, Smooth, basis_of, bounds
from shared.mechanisms.densities.local import LEAST, MOST, LocalCounts, better
from shared.mechanisms.densities.noise import Grid
from shared.mechanisms.densities.quantiles import Quantiles
from shared.mechanisms.densities.scaling import Coefficients, Sensitivity
from shared.mechanisms.labelled import LabelledFigures, Layout, arrays_of
from shared.plans.dictionary import Column
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from shared.privacy.stated import shown_epsilon

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.plans.plan import StudyPlan

__all__ = ["BASES", "DensitiesPlan", "level_for", "together"]

Basis = Literal["haar", "daubechies2", "daubechies3", "daubechies4", "quantiles"]
BASES: tuple[str, ...] = get_args(Basis)
_COLUMNS = {"haar": ("density", "cell", "count"), "quantiles": ("density", "share", "border")}
_SMOOTH = ("density", "function", "sum")
"""Of the released table: which density, which figure of it in words, the noisy whole figure."""
_FINEST = {1: 8, 2: 6, 3: 4}
_MOST_CELLS = 1 << 14
_MOST_EVENTS = 64
Floats = NDArray[np.float64]


def level_for(columns: int, persons: int, scale: float, *, basis: str = "haar", trust: str = "central") -> int:
    """The level of a density, from what is public and never from the data.

    Of a histogram J, 2^J bins a side: 64 bins in one dimension, 8 or 16 a side in two, 8 in three; fewer where every
    record is noised by itself. Of smooth functions J, as few as their order allows in two and three dimensions. Of
    quantiles the depth of the tree.

    Args:
        persons: the size that the plan expects of a site's table.
        scale: b of Laplace noise on a histogram's counts at the group's part of ε, in persons: 2 / ε.

    >>> level_for(1, 500, 20.0), level_for(2, 2000, 2.0), level_for(2, 20_000, 2.0), level_for(3, 20_000, 2.0)
    (6, 3, 4, 3)
    >>> [level_for(1, n, 2.0, basis="quantiles") for n in (1000, 10_000, 100_000)]
    [4, 5, 6]
    >>> level_for(1, 20_000, 2.0, trust="local"), level_for(2, 20_000, 2.0, basis="daubechies3")
    (4, 3)
    """
    effective = 2 * persons / scale  # a group's own nε
    if basis == "quantiles":
        return 4 if effective < 5000 else 5 if effective < 50_000 else 6
    if basis != "haar":
        lowest = 2 if basis == "daubechies2" else 3
        return 4 if columns == 1 else lowest
    if trust == "local":
        # Noise of n reports in place of one: √n ε in place of nε.
        fine = effective >= 500 * math.sqrt(persons)
        return {1: 5 if fine else 4, 2: 3 if fine else 2}.get(columns, 2)
    if columns == 1:
        return 6
    # From nε = 5,000 on the finer grid pays.
    return 4 if columns == 2 and 2 * persons >= 5000 * scale else 3


@dataclass(frozen=True, kw_only=True)
class DensitiesPlan(LabelledFigures):
    """Densities of chosen columns, alone or two or three together: for transport maps.

    Args:
        densities: groups of one to three numeric columns; of quantiles, single columns.
        epsilon: pure ε of one release, for all groups together; each is given an equal part.
        persons: how many persons a site is expected to have. It chooses how fine a density is (`level_for`), and
            nothing else: no site's own n decides, so that all sites release the same cells.
        alike: columns with a density of their own that every site measures in the same way, such as age: a difference
            in them is one of patients, and is what harmonising is warned of.
        level: J, 2^J bins or functions a side, or the depth of a tree of quantiles, for every group; None lets
            `level_for` choose.
        bounds: column to public bounds of its density, within those of the dictionary: values beyond count at the
            bound, and the hospital's approver is told how many records have such.
        basis: ``haar``, ``daubechies2`` to ``daubechies4``, or ``quantiles``.
        trust: ``central``, or ``local`` for histograms whose every record is noised by itself: by Laplace noise or
            randomised response, whichever has less noise at this ε and number of cells.
        sensitivity: how far replacing a person is taken to move the sums of smooth functions: their exact
            ``diameter``, or in plans from before it was known the ``norms`` of two persons' parts, which is further.
    """

    densities: Sequence[Sequence[str]]
    epsilon: float
    persons: int = 2000
    alike: Sequence[str] = ()
    level: int | None = None
    basis: Basis = "haar"
    trust: Literal["central", "local"] = "central"
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    sensitivity: Sensitivity = "diameter"
    mechanism: Literal["densities"] = "densities"
    title: ClassVar[str] = "noisy densities"
    bundle_of: ClassVar[tuple[float, float]] = (0.009, 1.5e-5)
    later: ClassVar[tuple[str, ...]] = ("basis", "bounds", "trust")
    before: ClassVar[Mapping[str, Any]] = {"sensitivity": "norms"}

    def __post_init__(self) -> None:
        positive = is_number(self.epsilon) and 0 < self.epsilon < math.inf
        must(positive, "release.epsilon must be positive and finite", self.epsilon)
        must(is_whole(self.persons) and self.persons >= 1, "release.persons must be at least 1", self.persons)
        groups = self.densities
        listed = is_list(groups) and bool(groups) and all(map(is_list, groups))
        must(listed, 'release.densities must be groups of columns: [["chol"], ["sbp", "dbp"]]', "other")
        object.__setattr__(self, "densities", tuple(tuple(map(str, group)) for group in groups))
        object.__setattr__(self, "epsilon", float(self.epsilon))
        named = is_list(self.alike) and all((name,) in self.densities for name in self.alike)
        must(named, "release.alike must name columns that have a density of their own", repr(self.alike)[:60])
        object.__setattr__(self, "alike", tuple(self.alike))
        must(self.basis in BASES, f"release.basis must be one of {', '.join(BASES)}", repr(self.basis)[:60])
        must(self.trust in ("central", "local"), "release.trust must be central or local", repr(self.trust)[:60])
        must(
            self.trust == "central" or self.basis == "haar",
            "release.trust 'local' must come with basis 'haar': only cells can be reported record by record",
            repr(self.basis),
            'Write basis = "haar", or trust = "central".',
        )
        known = self.sensitivity in get_args(Sensitivity)
        must(known, "release.sensitivity must be diameter or norms", repr(self.sensitivity)[:60])
        if not self.basis.startswith("daubechies"):
            # Of all others there is one sensitivity, and no word of it in a plan.
            object.__setattr__(self, "sensitivity", "norms")
        parts = len(self.densities)
        must(
            self.trust == "central" or LEAST * parts <= self.epsilon <= MOST * parts,
            f"release.epsilon with trust 'local' must give each density {LEAST:g} to {MOST:g}",
            f"{shown_epsilon(self.epsilon)} for {parts}",
        )
        most = max(map(len, self.densities))
        must(
            self.basis != "quantiles" or most <= 1,
            "release.basis 'quantiles' must be of single columns: there are no quantiles of several together",
            f"{most} columns in a group",
            'Split the group, or write basis = "haar".',
        )
        used = {name for group in self.densities for name in group}
        must(
            isinstance(self.bounds, Mapping)
            and set(self.bounds) <= used
            and all(_is_pair(pair) for pair in self.bounds.values()),
            "release.bounds must give a lower and a higher number for columns that have a density",
            repr(self.bounds)[:60],
        )
        object.__setattr__(self, "bounds", {name: tuple(map(float, pair)) for name, pair in self.bounds.items()})
        if self.level is not None:
            finest = min(_FINEST.get(len(group), 1) for group in self.densities)
            whole = is_whole(self.level) and 2 <= self.level <= finest
            must(whole, f"release.level must be in 2..{finest}", self.level)

    def require(self, plan: StudyPlan) -> None:
        """Known numeric columns, and densities of a size that can be released."""
        super().require(plan)
        names = {column.name for column in plan.dictionary.released}
        unknown = sorted({name for group in self.densities for name in group} - names)
        must(not unknown, "release.densities must name columns of the dictionary", ", ".join(unknown))
        for name, (low, high) in self.bounds.items():
            column = plan.dictionary.column(name)
            numeric = column.lower is not None and column.upper is not None
            must(
                numeric and column.span[0] <= low and high <= column.span[1],
                f"release.bounds of {name} must lie within the dictionary's",
                f"{low:g} to {high:g}",
            )
        if self.basis != "haar":
            gaps = {
                name for group in self.densities for name in group if plan.dictionary.column(name).missing == "level"
            }
            must(
                not gaps,
                f"release.basis {self.basis!r} must be of columns without missing values: only a histogram counts them",
                ", ".join(sorted(gaps)),
                'Write basis = "haar", or leave incomplete records out by missing = "complete_case".',
            )
        with by_plan():
            groups = self.groups(plan)
        figures = sum(len(group.labels) for group in groups)
        must(figures <= _MOST_CELLS, f"release.densities must have at most {_MOST_CELLS} cells", figures)

    def groups(self, plan: StudyPlan) -> tuple[Group, ...]:
        """The groups of columns that are released, each with its noise. Raises: ParameterError."""
        columns = [tuple(self._column(plan, name) for name in group) for group in self.densities]
        for one in columns:
            Grid(columns=one, level=1)  # how many columns, and of which kind
        if len(set(self.densities)) < len(columns):
            raise ParameterError("densities must be of different columns", given="the same group twice")
        part = self.epsilon / len(columns)
        while True:
            found = tuple(self._group(one, part) for one in columns)
            # A quotient's last digit may say more than was promised: then a little less for each.
            if (privacy.pure_epsilon(together(found)) or 0.0) <= self.epsilon:
                return found
            part *= 1 - 2e-6

    def _column(self, plan: StudyPlan, name: str) -> Column:
        column = plan.dictionary.column(name)
        if name not in self.bounds:
            return column
        low, high = self.bounds[name]
        # Follow-up starts at 0 in a dictionary; here it is a number like others.
        kind = "continuous" if column.kind == "time" else column.kind
        return replace(column, kind=kind, event="", lower=low, upper=high)

    def clipped(self, plan: StudyPlan, records: pd.DataFrame) -> int | None:
        """Records with a value beyond `bounds`."""
        if not self.bounds:
            return None
        beyond = [(records[name] < low) | (records[name] > high) for name, (low, high) in self.bounds.items()]
        return int(np.any(beyond, axis=0).sum())

    def _group(self, columns: tuple[Column, ...], part: float) -> Group:
        unit_ = _coarser(calibration.calibrate(privacy.Laplace, part, 0.0, sensitivity=1.0, coordinates=2).scale)
        level = self.level or level_for(len(columns), self.persons, unit_, basis=self.basis, trust=self.trust)
        if self.basis == "quantiles":
            return Cuts(of=columns[0], tree=Quantiles(lower=0.0, upper=1.0, depth=level, epsilon=part))
        if self.basis != "haar":
            basis = basis_of(int(self.basis[-1]), level)
            mechanism = Coefficients(basis=basis, columns=len(columns), scale=1.0, charge=self.sensitivity)
            moved = float(mechanism.sensitivity)
            noise = calibration.calibrate(privacy.Laplace, part, 0.0, sensitivity=moved).scale
            return Smooth(of=columns, coefficients=replace(mechanism, scale=_coarser(noise)))
        grid = Grid(columns=columns, level=level)
        if self.trust == "local":
            return Reports(grid=grid, local=LocalCounts(grid=grid, epsilon=part, how=better(part, grid.size)))
        return Histogram(grid=grid, scale=unit_)

    def event(self, plan: StudyPlan) -> privacy.Event:
        """One mechanism for all groups: everybody is in each of them."""
        return together(self.groups(plan))

    def facts(self, plan: StudyPlan) -> Facts:
        """The noise, and how much there is of it."""
        groups = self.groups(plan)
        parameters: dict[str, float] = {"densities": len(groups), "cells": sum(len(group.labels) for group in groups)}
        if self.basis == "haar" and self.trust == "central":
            parameters["scale"] = next(group.scale for group in groups if isinstance(group, Histogram))
        if self.basis == "quantiles":
            parameters["depth"] = next(group.tree.depth for group in groups if isinstance(group, Cuts))
        if self.basis.startswith("daubechies"):
            parameters["order"] = int(self.basis[-1])
        return Facts(
            d=len({name for group in self.densities for name in group}),
            parameters=parameters,
            conditional_on="nothing: nothing was fitted on records",
            model=self.trust,
        )

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Everybody; and who has to be trusted, or what was chosen, where that is special."""
        more = []
        if self.trust == "local":
            more.append(
                f"Every {'record' if unit(plan) == 'patient' else 'row'} is noised by itself before anything is added "
                "up, as if each had reported for itself: the promise holds for each report alone. The hospital's "
                "agent, which draws the reports and adds them, is trusted with the records as always."
            )
        if self.basis == "quantiles":
            more.append(
                "Each quantile is chosen among 4,096 borders with odds that fall with the persons it is off by: "
                "replacing a person moves the choices of two branches, and both are in the price."
            )
        if self.basis.startswith("daubechies"):
            more.append(
                "The sums are of smooth functions that overlap: by how much one person can move all of them together "
                "is a finite maximum, which was computed exactly and is in the price."
            )
        return (*super().covered(plan), *more)

    def details(self, plan: StudyPlan) -> str:
        """Densities, cells and noise."""
        groups = self.groups(plan)
        figures = sum(len(group.labels) for group in groups)
        what = {"haar": "counts" if self.trust == "central" else "counts of reports", "quantiles": "borders"}
        said = dict.fromkeys(group.noise for group in groups)
        count = f"{len(groups)} densit{'y' if len(groups) == 1 else 'ies'}"
        return f"{count}, {figures} {what.get(self.basis, 'sums')}, {'; '.join(said)}"

    def layout(self, plan: StudyPlan) -> Layout:
        """Density of every figure, and its cell, function or share."""
        groups = self.groups(plan)
        return Layout(
            columns=_COLUMNS.get(self.basis, _SMOOTH),
            first=[group.name for group in groups for _ in group.labels],
            second=[label for group in groups for label in group.labels],
        )

    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The noisy figures, a line each."""
        return self.layout(plan).table([group.draw(records, rng) for group in self.groups(plan)])

    def figures(self, plan: StudyPlan, table: pd.DataFrame) -> list[NDArray[np.int64]]:
        """The noisy figures of a released table, one array per group; of a histogram the missing values' cell last."""
        return arrays_of(table, [(len(group.labels),) for group in self.groups(plan)])

    def require_possible(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """As of `LabelledFigures`."""
        wrong = [
            group.name
            for group, figures in zip(self.groups(plan), self.figures(plan, table), strict=True)
            if not group.possible(figures, n)
        ]
        if wrong:
            raise SchemaRefusal(
                "released figures must be possible for the persons and the noise of the plan", given=", ".join(wrong)
            )

    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """The mean of a column, or the share beyond a value, read off its density; nothing else is in one.

        Both are linear in the counts, so that the noise's part of the variance is known exactly. Within a bin the
        values are taken to be spread evenly: how much that can matter at most is a warning on the estimate. Smooth
        functions hold a mean exactly, and no share.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal.
        """
        name, above = _column_and_bound(question)
        groups = self.groups(plan)
        # The group with the fewest columns: the others' noise adds up over more cells.
        with_it = [i for i, group in enumerate(groups) if name in (column.name for column in group.columns)]
        if not with_it:
            raise EstimateRefusal(f"the release must hold the density of {name}", given="none", next_step=_FOR)
        at = min(with_it, key=lambda i: len(groups[i].columns))
        group = groups[at]
        figures = [(self.figures(plan, table)[at], persons) for table, persons in tables]
        if isinstance(group, Smooth):
            found = _smooth_mean(group, figures, name, question, origin)
            return [replace(found, warnings=(_AT_BOUNDS.format(name=name),)) if name in self.bounds else found]
        if not isinstance(group, Counted):
            raise EstimateRefusal(
                "quantiles must be asked for no mean and no share: they are for maps",
                given=str(question),
                next_step="Harmonise by them, or plan a histogram.",
            )
        bounded = (_AT_BOUNDS.format(name=name),) if name in self.bounds else ()
        return [_binned(group, figures, (name, above), question, bounded, origin)]


def _binned(
    group: Counted,
    figures: Sequence[tuple[Any, int]],
    asked: tuple[str, tuple[str, float] | None],
    question: Estimand,
    bounded: tuple[str, ...],
    origin: Origin,
) -> Estimate:
    """The mean of a column, or the share beyond a value, of noisy counts.

    Args:
        figures: each table's, with its persons.
        asked: the column, and the value where a share is asked for.
        bounded: what is said of values at the column's bounds.
    Raises: EstimateRefusal.
    """
    (name, above), n = asked, sum(persons for _, persons in figures)
    grid = group.grid
    counts = np.sum([group.counts(one, persons) for one, persons in figures], axis=0)
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
    moves = np.append(weight - middle, [shift] * grid.missing) / present
    hidden = sum(group.variance(moves, one, persons) for one, persons in figures)
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
    said = f"read off bins: the {'mean' if above is None else 'share'} can be off by up to {slack:.2g} by them alone"
    from shared.estimands.answer import Estimate

    return Estimate(
        term=question.labels[0],
        yi=yi,
        vi_sampling=stretch * spread / present,
        vi_privacy=stretch * hidden,
        n=round(present),
        n_missing=max(0, n - round(present)),
        scale=question.scale,
        how="linear in the noisy counts, whose noise is known",
        warnings=(*((said,) if slack else ()), *bounded),
        **origin,
    )


def _is_pair(given: object) -> bool:
    if not is_list(given) or len(given) != 2:
        return False
    return all(is_number(one) and math.isfinite(one) for one in given) and bool(given[0] < given[1])


def together(groups: Sequence[Group]) -> privacy.Event:
    """One event for all groups, whose figures are of the same persons. Raises: ParameterError: too many for one."""
    events: list[privacy.Event] = []
    for group in groups:
        event = group.event
        events += event.events if isinstance(event, privacy.Composition) else [event]
    first, *more = events
    if isinstance(first, privacy.Laplace):
        alike = [one for one in more if isinstance(one, privacy.Laplace)]
        if all((one.scale, one.sensitivity) == (first.scale, first.sensitivity) for one in alike) and alike == more:
            return replace(first, coordinates=first.coordinates + sum(one.coordinates for one in alike))
    if not more:
        return first
    if len(events) > _MOST_EVENTS:
        raise ParameterError(
            f"a release must be of at most {_MOST_EVENTS} draws",
            given=f"{len(events)}",
            next_step="Plan fewer densities, or quantiles of a lower level.",
        )
    return privacy.Composition(events=tuple(events))


def _coarser(scale: float) -> float:
    """Up to six digits: short in a receipt, and never less noise."""
    digits = 5 - math.floor(math.log10(scale))
    up, down = 10.0 ** max(digits, 0), 10.0 ** max(-digits, 0)
    return math.ceil(scale * up / down) * down / up


def _smooth_mean(
    group: Smooth,
    figures: Sequence[tuple[NDArray[np.int64], int]],
    name: str,
    question: Estimand,
    origin: Origin,
) -> Estimate:
    if question.kind != "mean":
        raise EstimateRefusal(
            "smooth densities must be asked for a mean: a share has an edge, which they do not follow",
            given=str(question),
            next_step='Plan basis = "haar" for shares.',
        )
    n = sum(persons for _, persons in figures)
    parts = [(*group.mean(one, persons, name), persons / n) for one, persons in figures]
    axis = next(i for i, column in enumerate(group.columns) if column.name == name)
    total = np.sum([one for one, _ in figures], axis=0)
    bins = 32
    density = group.coefficients.density(
        total.reshape((2**group.coefficients.basis.level,) * len(group.columns)), n, bins
    )
    shares = np.maximum(density.sum(axis=tuple(i for i in range(density.ndim) if i != axis)), 0.0)
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(bins, 1 / bins)
    lower, upper = bounds(group.columns[axis])
    middles = lower + (upper - lower) * (np.arange(bins) + 0.5) / bins
    spread = float(shares @ (middles - float(shares @ middles)) ** 2) + ((upper - lower) / bins) ** 2 / 12
    from shared.estimands.answer import Estimate

    return Estimate(
        term=question.labels[0],
        yi=sum(weight * value for value, _, weight in parts),
        vi_sampling=spread / n,
        vi_privacy=sum(weight**2 * variance for _, variance, weight in parts),
        n=n,
        n_missing=0,
        scale=question.scale,
        how="linear in the noisy sums, whose noise is known",
        **origin,
    )


_AT_BOUNDS = "values of {name} beyond the bounds of its density count at the bound"
_FOR = "Densities answer mean(x) and proportion(x > value), and map one hospital's column to another's."


def _column_and_bound(question: Estimand) -> tuple[str, tuple[str, float] | None]:
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
    """Score of a person in each bin: its middle, or the part of the bin for which the comparison holds."""
    low, high = edges[:-1], edges[1:]
    if above is None:
        return np.asarray((low + high) / 2)
    how, value = above
    if column.kind == "integer":  # whole numbers lie in the middle of their bins: move the cut between two of them
        value = math.floor(value) + 0.5 if how in (">", "<=") else math.ceil(value) - 0.5
    share = np.clip((high - value) / (high - low), 0.0, 1.0)
    return np.asarray(share if how in (">", ">=") else 1 - share)
