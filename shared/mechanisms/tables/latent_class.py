r"""From noisy contingency tables to persons: a mixture of products, fitted to all released counts. Free of budget.

Every person belongs to one of H unseen classes, and within a class the attributes are independent. So, with class
weights :math:`w_h` and profiles :math:`p_{ha}` over the cells of attribute *a*, the expected tables have closed forms,

.. math:: \mu_a = n \sum_h w_h \, p_{ha}, \qquad \mu_{ab} = n \sum_h w_h \, p_{ha} p_{hb}^{\top},

and nothing is sampled in the fit. It minimises the distance of released and expected counts in units of what is known
about their error, noise and sampling together, plus a weak prior that matters where noise drowns a cell:

.. math:: \tfrac12 \sum_{cells} \frac{(c - \mu)^2}{\sigma^2 + \hat\mu} + \text{prior}, \qquad
          \log p_{ha} = b_a + D_{ha} + const.

The prior holds the common profile *b* to a smooth curve where cells are neighbours (bins of a number, ordered levels),
and the classes' deviations *D* to moderate, smooth ones. The gradient is a matrix product, and L-BFGS ends in a
fraction of a second.

Before that, the counts are made **consistent**: every margin is the best combination of what all tables say of it, and
**not negative**: it is projected onto the counts that sum to *n*. From these margins come the weights, and a start:
classes spread along the leading directions of dependence. The tables themselves enter as they were released, unbiased:
the model is the projection, since its own tables are consistent and not negative.

Rows are drawn class first, then cells, then values. A number within its bin follows the straight line that its class'
histogram suggests there: a column has no steps, and the dependence between columns does not stop at the bins' edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from shared.errors import EstimateRefusal, ParameterError
from shared.mechanisms.moments.margins import project
from shared.mechanisms.tables.noise import Attribute, CountTables
from shared.plans.dictionary import NUMERIC, Dictionary
from shared.plans.encoding import typed

__all__ = ["CLASSES", "WEIGHT", "CountLoss", "LatentClasses", "consistent", "fit"]

Array = NDArray[np.float64]

CLASSES = 12
_RIDGE, _ROUGH, _CURVED, _LEVEL, WEIGHT = 3.0, 1.5, 0.7, 6.0, 1.5
"""Standard deviations of the prior: a deviation D, its step between neighbours, the second difference of the common
profile, the common profile itself, and the classes' log weights."""
_STEPS = 300
_RAKES = 20
_LEAST_SHARE = 1e-9
_IMPOSSIBLE = 0.1
"""Standard deviation, in persons, with which a structural zero is held to zero in the fit."""


@dataclass(frozen=True, kw_only=True)
class LatentClasses:
    """A fitted mixture of products.

    Args:
        attributes: of the tables it was fitted to.
        weights: (H,) of the classes, summing to 1.
        profiles: (H, d) probabilities, attribute after attribute, each attribute's summing to 1.
        n: persons behind the tables.
        theta: the parameters, a start for a fit to similar tables.
        zeros: places of two attributes to their cells that are never drawn.
    """

    attributes: tuple[Attribute, ...]
    weights: Array
    profiles: Array
    n: int
    theta: Array = field(repr=False)
    zeros: Mapping[tuple[int, int], NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    def profile(self, place: int) -> Array:
        """(H, cells) of one attribute."""
        at = _offsets(self.attributes)
        return self.profiles[:, at[place] : at[place + 1]]

    def expected(self, tables: CountTables) -> list[Array]:
        """Expected counts of n persons, one array per table."""
        out = []
        for table in tables.tables:
            first = self.weights[:, None] * self.profile(table.of[0])
            whole = first.sum(axis=0) if len(table.of) == 1 else first.T @ self.profile(table.of[1])
            out.append(self.n * whole)
        return out

    def among(self, margins: Sequence[Array], n: int) -> LatentClasses:
        """The nearest mixture of products with these margins, of n persons: what ties the columns stays as it is.

        Every cell's probability is multiplied by a factor of each attribute's cell, which leaves a mixture of
        products; the factors are found by iterative proportional fitting.
        """
        weights = self.weights
        profiles = [self.profile(a) for a in range(len(self.attributes))]
        for _ in range(_RAKES):
            for a, margin in enumerate(margins):
                wanted = np.maximum(margin, _LEAST_SHARE)
                profile = profiles[a] * (wanted / np.maximum(weights @ profiles[a], _LEAST_SHARE))
                inside = profile.sum(axis=1)
                profiles[a] = profile / inside[:, None]
                weights = weights * inside / (weights @ inside)
        return replace(self, weights=weights, profiles=np.concatenate(profiles, axis=1), n=n)

    def codes(self, n: int, draws: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) classes and (n, attributes) cells of n persons.

        The same draws give the same persons as far as two models agree: what differs between them is the models.
        """
        cumulative = [np.cumsum(self.profile(a), axis=1) for a in range(len(self.attributes))]
        out = np.empty((n, len(self.attributes)), dtype=np.int64)
        belong = np.empty(n, dtype=np.int64)
        open_ = np.arange(n)
        for _ in range(1000):
            uniforms = draws.random((len(open_), 1 + len(self.attributes)))
            classes = _cell(np.cumsum(self.weights)[None, :], uniforms[:, 0])
            belong[open_] = classes
            for a, rising in enumerate(cumulative):
                out[open_, a] = _cell(rising[classes], uniforms[:, 1 + a])
            impossible = np.zeros(len(open_), dtype=bool)
            for (one, other), cells in self.zeros.items():
                impossible |= cells[out[open_, one], out[open_, other]]
            open_ = open_[impossible]
            if not len(open_):
                return belong, out
        raise EstimateRefusal("the structural zeros must leave cells that the tables support", given="hardly any")

    def rows(self, n: int, dictionary: Dictionary, draws: np.random.Generator) -> pd.DataFrame:
        """A synthetic table of n persons with the dictionary's columns, types, levels and bounds."""
        if n < 1:
            raise ParameterError("a synthetic table must have at least one row", given=f"{n}")
        classes, codes = self.codes(n, draws)
        values: dict[str, Array] = {}
        for a, attribute in enumerate(self.attributes):
            values |= attribute.values(codes[:, a], draws, self.profile(a), classes)
        return pd.DataFrame({column.name: typed(column, values[column.name]) for column in dictionary.released})


def _cell(rising: Array, uniforms: Array) -> NDArray[np.int64]:
    """The cell where a cumulative row passes its uniform."""
    return np.minimum((uniforms[:, None] > rising).sum(axis=1), rising.shape[1] - 1).astype(np.int64)


def _offsets(attributes: Sequence[Attribute]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([attribute.size for attribute in attributes])]).astype(np.int64)


# -- before the fit --------------------------------------------------------------------------------------------
def consistent(tables: CountTables, counts: Sequence[NDArray[np.int64]], n: int) -> tuple[list[Array], list[Array]]:
    """(margins, tables): what all tables together say of each attribute, and every table with those margins.

    Each margin is the combination of its one-way table and the sums of its two-way tables with the smallest noise,
    projected onto the counts that are not negative and sum to n. A two-way table is moved, by as little as possible
    in ℓ₂, to have them; that keeps it unbiased, and its own cells may stay negative.
    """
    precision = np.zeros(len(tables.attributes))
    sums = [np.zeros(attribute.size) for attribute in tables.attributes]
    for table, count in zip(tables.tables, counts, strict=True):
        for axis, a in enumerate(table.of):
            others = count.size // count.shape[axis]
            precision[a] += 1 / others
            sums[a] += (count if count.ndim == 1 else count.sum(axis=1 - axis)) / others
    margins = [project(total / weight, n) for total, weight in zip(sums, precision, strict=True)]
    out = []
    for table, count in zip(tables.tables, counts, strict=True):
        if count.ndim == 1:
            out.append(margins[table.of[0]])
            continue
        rows, columns = margins[table.of[0]] - count.sum(axis=1), margins[table.of[1]] - count.sum(axis=0)
        k, m = count.shape
        moved = count + rows[:, None] / m + columns[None, :] / k - rows.sum() / (k * m)
        out.append(moved)
    return margins, out


class CountLoss:
    """The loss of parameters and its gradient.

    θ is the (H,) log weights, the (d,) common profile and the (H, d) deviations, one after the other.
    """

    def __init__(
        self,
        tables: CountTables,
        counts: Sequence[NDArray[np.int64]],
        n: int,
        variance: float,
        classes: int,
    ) -> None:
        self.at = _offsets(tables.attributes)
        self.d, self.h = int(self.at[-1]), classes
        self.attribute = np.repeat(np.arange(len(tables.attributes)), np.diff(self.at))
        margins, _ = consistent(tables, counts, n)
        self.margin = np.concatenate(margins) / n
        self.target, self.weight = np.zeros((self.d, self.d)), np.zeros((self.d, self.d))
        self.one, self.one_weight = np.zeros(self.d), np.zeros(self.d)
        for table, count in zip(tables.tables, counts, strict=True):
            first = slice(self.at[table.of[0]], self.at[table.of[0] + 1])
            if len(table.of) == 1:
                self.one[first] = count / n
                self.one_weight[first] = n * n / (variance + n * self.margin[first])
                continue
            second = slice(self.at[table.of[1]], self.at[table.of[1] + 1])
            likely = n * np.outer(self.margin[first], self.margin[second])
            self._put(first, second, count / n, n * n / (variance + likely))
        for of, cells in tables.impossible.items():
            first, second = (slice(self.at[a], self.at[a + 1]) for a in of)
            target = np.where(cells, 0.0, self.target[first, second])
            weight = np.where(cells, (n / _IMPOSSIBLE) ** 2, self.weight[first, second])
            self._put(first, second, target, weight)
        steps, bends = _neighbours(tables.attributes)
        self.deviation = np.eye(self.d) / _RIDGE**2 + steps.T @ steps / _ROUGH**2
        self.common = np.eye(self.d) / _LEVEL**2 + bends.T @ bends / _CURVED**2

    def _put(self, first: slice, second: slice, target: Array, weight: Array) -> None:
        self.target[first, second], self.target[second, first] = target, target.T
        self.weight[first, second], self.weight[second, first] = weight, weight.T

    def split(self, theta: Array) -> tuple[Array, Array, Array]:
        """(H,) log weights, (d,) common profile, (H, d) deviations."""
        h, d = self.h, self.d
        return theta[:h], theta[h : h + d], theta[h + d :].reshape(h, d)

    def model(self, theta: Array) -> tuple[Array, Array]:
        """Weights (H,) and profiles (H, d)."""
        logs, common, deviations = self.split(theta)
        w = np.exp(logs - logs.max())
        lifted = common + deviations
        peaks = np.maximum.reduceat(lifted, self.at[:-1], axis=1)
        raised = np.exp(lifted - peaks[:, self.attribute])
        totals = np.add.reduceat(raised, self.at[:-1], axis=1)
        return w / w.sum(), raised / totals[:, self.attribute]

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Loss and gradient."""
        logs, common, deviations = self.split(theta)
        w, p = self.model(theta)
        gap = p.T @ (p * w[:, None]) - self.target
        pull = self.weight * gap
        gap_one = w @ p - self.one
        pull_one = self.one_weight * gap_one
        loss = 0.25 * float(np.vdot(pull, gap)) + 0.5 * float(pull_one @ gap_one)
        along = p @ pull  # (H, d)
        by_p = w[:, None] * (along + pull_one)
        by_w = 0.5 * (along * p).sum(axis=1) + p @ pull_one
        inner = by_p * p
        by_lifted = inner - p * np.add.reduceat(inner, self.at[:-1], axis=1)[:, self.attribute]
        prior_d, prior_b = deviations @ self.deviation, self.common @ common
        loss += 0.5 * (float(np.vdot(prior_d, deviations)) + float(prior_b @ common) + float(logs @ logs) / WEIGHT**2)
        gradient = np.concatenate(
            [
                w * (by_w - w @ by_w) + logs / WEIGHT**2,
                by_lifted.sum(axis=0) + prior_b,
                (by_lifted + prior_d).ravel(),
            ]
        )
        return loss, gradient

    def start(self, apart: Array | None = None) -> Array:
        """Classes spread along the leading directions in which the released tables depart from independence.

        Args:
            apart: (d, d) what the tables would be without an association; the products of the margins if left out.
        """
        apart = np.outer(self.margin, self.margin) if apart is None else apart
        rng = np.random.default_rng(0)  # public: where the search begins
        scale = np.sqrt(np.maximum(self.margin, 1 / (4 * self.d)))
        departure = np.where(self.weight > 0, self.target - apart, 0.0)
        values, vectors = np.linalg.eigh(departure / np.outer(scale, scale))
        leading = min(4, self.h - 1)
        loads = np.sqrt(np.maximum(values[-leading:], 0.01)) * vectors[:, -leading:] / scale[:, None] if leading else 0
        spread = rng.standard_normal((self.h, leading))
        spread -= spread.mean(axis=0)
        deviations = np.clip(spread @ np.transpose(loads), -1.5, 1.5) if leading else np.zeros((1, self.d))
        common = np.log(np.maximum(self.margin, 1 / (20 * self.d)))
        return np.concatenate([np.zeros(self.h), common, np.ravel(deviations)])


def _neighbours(attributes: Sequence[Attribute]) -> tuple[Array, Array]:
    """First and second differences between neighbouring cells, as matrices on all cells."""
    at = _offsets(attributes)
    steps, bends = [], []
    for a, attribute in enumerate(attributes):
        place = at[a] + np.arange(attribute.size).reshape(attribute.shape)
        for axis, column in enumerate(attribute.columns):
            if column.kind not in NUMERIC and column.kind != "ordered":
                continue
            line = np.moveaxis(place, axis, -1)
            if column.missing == "level":
                line = line[..., :-1]
            steps += [(one, other) for one, other in zip(line[..., :-1].flat, line[..., 1:].flat, strict=True)]
            bends += list(zip(line[..., :-2].flat, line[..., 1:-1].flat, line[..., 2:].flat, strict=True))
    first, second = np.zeros((len(steps), at[-1])), np.zeros((len(bends), at[-1]))
    for k, (one, other) in enumerate(steps):
        first[k, one], first[k, other] = -1, 1
    for k, (one, middle, other) in enumerate(bends):
        second[k, one], second[k, middle], second[k, other] = 1, -2, 1
    return first, second


def fit(
    tables: CountTables,
    counts: Sequence[NDArray[np.int64]],
    n: int,
    *,
    releases: int = 1,
    classes: int = CLASSES,
    start: Array | None = None,
) -> LatentClasses:
    """The mixture of products whose expected tables are nearest to the released ones.

    Args:
        tables: what was released, and with how much noise each time.
        counts: one array per table; of several releases of different persons, their sums.
        n: persons behind them.
        releases: how many releases were added up: the variances of their noise add.
        classes: H.
        zeros: structural zeros.
        start: `theta` of a fit to similar tables with as many classes.
    Raises: ParameterError (n, classes or releases below 1); EstimateRefusal (no optimum).
    """
    if min(n, classes, releases) < 1:
        raise ParameterError("n, classes and releases must be at least 1", given=f"{n}, {classes}, {releases}")
    variance = releases * tables.sigma**2
    problem = CountLoss(tables, counts, n, variance, classes)
    begin = problem.start() if start is None else start
    found = optimize.minimize(
        problem, begin, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "maxcor": 20, "ftol": 1e-9}
    )
    if not (math.isfinite(found.fun) and np.isfinite(found.x).all()):
        raise EstimateRefusal("the latent classes must have a fit", given="no finite optimum")
    w, p = problem.model(found.x)
    return LatentClasses(
        attributes=tables.attributes, weights=w, profiles=p, n=n, theta=found.x, zeros=tables.impossible
    )
