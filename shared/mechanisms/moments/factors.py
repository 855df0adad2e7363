r"""Nominal covariates of a moments release: one binary column for each level but the first.

To the mechanism these are columns like others. That a record has one of a factor's columns at most makes no sum move
further, so what is charged holds for them too.

To the model of a release (`shared.mechanisms.moments.copula`) they would be columns with a latent each, and no
correlations of three latents or more make levels exclude each other: its points are at two levels, or at none, far too
often, at any ε. `LevelsModel` has the same parameters and points with one level each: other covariates are drawn from
the copula, then a level by logits that are linear in them, with several factors one after the other. The logits are
those by which level k has the share s_k and the products t_k with other covariates w that the parameters θ say,

.. math:: E[p_k(z; c) \, (1, w)] = (s_k, t_k)(\theta), \qquad p_k \propto e^{c_k'(1, z)}

so that a derivative through the points is, for whatever h hangs on covariates and levels,

.. math:: \frac{d}{d\theta} E[h] = E\Big[\sum_k p_k \, \partial_\theta h_k\Big]
          + E\Big[\sum_k \frac{\partial p_k}{\partial c} h_k\Big] \frac{dc}{d\theta}

with dc/dθ by the implicit function theorem: what the shares and products that θ asks for change by, less what they do
with the levels as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.mechanisms.moments.copula import (
    POINTS,
    AnyScore,
    CopulaModel,
    CopulaParameters,
    FittedCopula,
    complete,
    doubted,
    joint,
    observations,
    precisions,
)
from shared.mechanisms.moments.margins import Margin
from shared.mechanisms.moments.noise import Design, MomentsRelease
from shared.mechanisms.moments.outcomes import LinearOutcome
from shared.mechanisms.moments.spec import Factor
from shared.plans.dictionary import Column, Dictionary

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")
special = deferred("scipy.special")

__all__ = [
    "LEVELS_REACH",
    "LevelsModel",
    "coded_dictionary",
    "coded_names",
    "columns_of",
    "factor_of",
    "factors_of",
    "folded",
    "in_words",
    "level_chances",
    "level_coefficients",
    "level_curve",
    "with_levels",
]

Array = NDArray[np.float64]

_STEPS, _HALVES, _SETTLED, _FARTHEST, _LEAST_RIDGE = 60, 12, 1e-9, 3.0, 1e-12
"""Newton's steps for the coefficients of levels, how often one is halved, how near is near, the longest step, and what
holds a constant, so that levels nobody has can be solved for."""
LEVELS_REACH = 3.0
"""Covariates enter the log odds of a level within this many scales."""
_RIDGE, _LEAST_SHARE, _KNOWN = 1e-3, 1e-5, 8
"""How much holds a logit's slope to 0, per share of its level; the least share of a level; logits that are kept."""


def factors_of(covariates: Sequence[str], dictionary: Dictionary) -> tuple[Factor, ...]:
    """The nominal ones of the covariates; their binary columns have names that nothing else has."""
    known = {column.name: column for column in dictionary.columns}
    found = []
    for name in covariates:
        column = known.get(name)
        if column is not None and column.kind == "nominal":
            names = [f"{name}_{level}" for level in range(2, len(column.levels) + 1)]
            while taken := known.keys() & set(names):
                names = [f"{one}_" if one in taken else one for one in names]
            found.append(Factor(column=column, names=tuple(names)))
    return tuple(found)


def coded_names(names: Sequence[str], factors: Sequence[Factor]) -> tuple[str, ...]:
    """Names of columns, the binary ones in place of a nominal one."""
    by_name = {factor.column.name: factor.names for factor in factors}
    return tuple(one for name in names for one in by_name.get(name, (name,)))


def coded_dictionary(dictionary: Dictionary, factors: Sequence[Factor]) -> Dictionary:
    """The dictionary with the binary columns in place of the nominal ones."""
    columns = [
        column if one == column.name else Column(name=one, kind="binary", missing=column.missing)
        for column in dictionary.columns
        for one in coded_names((column.name,), factors)
    ]
    return replace(dictionary, columns=tuple(columns))


def factor_of(name: str, factors: Sequence[Factor]) -> Factor | None:
    """The factor that a binary column belongs to; None for any other column."""
    return next((factor for factor in factors if name in factor.names), None)


def columns_of(term: str, factors: Sequence[Factor]) -> tuple[str, ...]:
    """Columns that a term of a question asks of: of a nominal one, ``stage`` or ``C(stage)``, all its binary ones.

    Levels that are numbers are a factor as ``C(stage)`` alone.
    """
    inside = term[2:-1] if term.startswith("C(") else term
    found = next((factor for factor in factors if factor.column.name == inside), None)
    if found is None or (inside == term and not isinstance(found.column.levels[0], str)):
        return (term,)
    return found.names


def in_words(name: str, factors: Sequence[Factor]) -> str:
    """A column in words: ``stage = II`` of a binary column that stands for a level, else its name."""
    factor = factor_of(name, factors)
    return f"{factor.column.name} = {factor.column.levels[1 + factor.names.index(name)]}" if factor else name


def folded(table: pd.DataFrame, factors: Sequence[Factor]) -> pd.DataFrame:
    """A table of rows with the nominal columns in place of their binary ones.

    Points of the planned model may be at several levels, and are put into one of them, by turns; then the first level
    has more than its share. Rows that are drawn have one level each (`shared.mechanisms.moments.cohort`).

    >>> stage = Factor(column=Column(name="s", kind="nominal", levels=("a", "b", "c")), names=("s_2", "s_3"))
    >>> list(folded(pd.DataFrame({"s_2": [0, 1, 1, 1], "s_3": [0, 0, 1, 1]}), (stage,))["s"])
    ['a', 'b', 'c', 'b']
    """
    if not factors:
        return table
    out: dict[str, pd.Series] = {}
    for name in map(str, table.columns):
        factor = factor_of(name, factors)
        if factor is None:
            out[name] = table[name]
        elif name == factor.names[0]:
            has = table[list(factor.names)].to_numpy(dtype=np.int64)
            count = len(factor.names)
            turns = 1 + (np.arange(count) + np.arange(len(has))[:, None]) % count
            level = np.where(has.any(axis=1), 1 + np.argmax(has * turns, axis=1), 0)
            levels = [factor.column.levels[k] for k in level]
            out[factor.column.name] = pd.Series(levels, index=table.index).astype(factor.column.dtype)
    return pd.DataFrame(out)


def level_chances(coefficients: Array, z: Array) -> Array:
    """(n, 1 + levels) probabilities of all levels given covariates (n, m), by the logits of all but the first.

    Args:
        coefficients: (levels, 1 + m), of a constant and of the covariates.
        z: (n, m).
    """
    logits = np.column_stack([np.zeros(len(z)), coefficients[:, 0] + z @ coefficients[:, 1:].T])
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def level_curve(chances: Array, one: Array, also: Array) -> Array:
    """(levels (1 + m), levels (1 + m)) derivatives of shares and products, in the coefficients of the logits.

    Args:
        chances: (n, levels) of all but the first.
        one, also: (n, 1 + m) a constant and covariates, as the logits and as the products have them.
    """
    levels, width = chances.shape[1], one.shape[1]
    curve = np.empty((levels * width, levels * width))
    for k in range(levels):
        for other in range(levels):
            weight = chances[:, k] * ((k == other) - chances[:, other]) / len(one)
            rows, columns = slice(k * width, (k + 1) * width), slice(other * width, (other + 1) * width)
            curve[rows, columns] = (also * weight[:, None]).T @ one
    return curve


def level_coefficients(z: Array, wide: Array, shares: Array, products: Array, ridge: Array) -> Array:
    r"""(levels, 1 + m) logits under which all levels but the first have these shares, and products with covariates.

    By Newton's steps, halved where one leads further away, on :math:`E[p_k(z) (1, w)] + \Lambda_k c_k = t_k`: linear
    logits, as of covariates that are normal with one spread in every level, told by sums that were cut.

    Args:
        z: (n, m) points of the covariates, in scales.
        wide: (n, m) w, the same as the sums have them.
        shares: (levels,) positive, with a sum below 1.
        products: (levels, m) means of w where a row has the level, and of 0 where it has not.
        ridge: (levels, m) positive; how much holds a coefficient to 0, where no logits have such products.

    >>> z = np.array([[-1.0], [1.0]])
    >>> found = level_coefficients(z, z, np.array([0.4]), np.array([[0.2]]), np.array([[1e-9]]))
    >>> level_chances(found, z).round(3).tolist()
    [[0.8, 0.2], [0.4, 0.6]]
    """
    one, also = (np.column_stack([np.ones(len(z)), part]) for part in (z, wide))
    levels, width = len(shares), one.shape[1]
    target, held = np.column_stack([shares, products]), np.column_stack([np.full(levels, _LEAST_RIDGE), ridge])
    found = np.zeros((levels, width))
    found[:, 0] = np.log(shares / max(1 - float(shares.sum()), 1e-12))
    scale = 1 / np.column_stack([shares, np.outer(shares, np.maximum(wide.std(axis=0), 1e-6))])

    def gap(at: Array) -> tuple[Array, Array]:
        chances = level_chances(at, z)[:, 1:]
        return chances, chances.T @ also / len(z) - target + held * at

    chances, left = gap(found)
    for _ in range(_STEPS):
        size = float(np.square(left * scale).sum())
        if size < _SETTLED**2:
            break
        curve = np.diag(held.ravel()) + level_curve(chances, one, also)
        step = -np.linalg.solve(curve, left.ravel()).reshape(found.shape)
        step *= min(1.0, _FARTHEST / float(np.abs(step).max()))
        for _ in range(_HALVES):
            there = gap(found + step)
            if float(np.square(there[1] * scale).sum()) < size:
                break
            step = step / 2
        else:
            break
        found, (chances, left) = found + step, there
    # Where no logits have such products, those that come near have the shares all the same.
    for _ in range(_STEPS):
        chances = level_chances(found, z)[:, 1:]
        away = shares - chances.mean(axis=0)
        if float(np.abs(away).max()) < _SETTLED:
            break
        curve = np.diag(chances.mean(axis=0) + _LEAST_RIDGE) - chances.T @ chances / len(z)
        found[:, 0] += np.clip(np.linalg.solve(curve, away), -1, 1)
    return found


# -- points with one level each ----------------------------------------------------------------------------------
class LevelsModel(CopulaModel):
    """The copula model with one level of every nominal column at each point: the module's text has the law."""

    def __init__(self, model: CopulaModel) -> None:
        vars(self).update(vars(model))
        names, p = self.design.spec.covariates, self.p
        self._owns = [[names.index(name) for name in factor.names] for factor in self.design.factors]
        self.counted = frozenset(itertools.chain(*self._owns))
        others = [j for j in range(p) if j not in self.counted]
        self._besides = [[*others, *itertools.chain(*self._owns[:k])] for k in range(len(self._owns))]
        self._levels = np.isin(np.arange(p), list(self.counted))
        i, j = np.triu_indices(p, 1)
        self._apart = self._levels[i] | self._levels[j]
        self._same = [
            (k, a, b)
            for k, (a, b) in enumerate(zip(i.tolist(), j.tolist(), strict=True))
            if any(a in own and b in own for own in self._owns)
        ]
        self._known: dict[bytes, list[Array]] = {}

    def pairs(self, margins: list[Margin], rho: Array) -> tuple[Array, Array]:
        """As of `CopulaModel`, and nobody at two levels of one column."""
        products, along = super().pairs(margins, rho)
        means = [self.wide(j, margin)[0] for j, margin in enumerate(margins)]
        for k, i, j in self._same:
            products[k], along[k] = -1 - means[i] - means[j], 0.0
        return products, along

    def points(self, margins: list[Margin], z: Array, latents: Array | None = None) -> Array:
        """As of `CopulaModel`: other covariates by the copula, then levels by their logits."""
        latents = self.latents if latents is None else latents
        found = self._logits(margins, z)
        x = self.copula_points(margins, self._between_others(z), latents)
        for k, logits in enumerate(found):
            self._put(x, k, logits, latents)
        return x

    def _between_others(self, z: Array) -> Array:
        return np.where(self._apart, 0.0, z)

    def _logits(self, margins: list[Margin], z: Array) -> list[Array]:
        """Of each factor (levels, 1 + others) the logits of its levels, in the order in which they are drawn."""
        key = b"".join([*(part.tobytes() for one in margins for part in (one.values, one.edges)), z.tobytes()])
        if (known := self._known.get(key)) is not None:
            return known
        out: list[Array] = []
        x = self.copula_points(margins, self._between_others(z), self.latents)
        for k, beside in enumerate(self._besides):
            wide = self.lens.wide(x)[:, beside]
            target = self._target(k, margins, z, wide.mean(axis=0))
            shares = target[:, 0]
            ridge = _RIDGE * np.repeat(shares[:, None], len(beside), axis=1)
            out.append(level_coefficients(self._seen(x, k), wide, shares, target[:, 1:], ridge))
            self._put(x, k, out[-1], self.latents)
        if len(self._known) >= _KNOWN:
            self._known = {}
        self._known[key] = out
        return out

    def _target(self, k: int, margins: list[Margin], z: Array, means: Array) -> Array:
        """(levels, 1 + others) shares of the levels of factor k, and products with what is beside it.

        Args:
            means: of what is beside it, at the points.
        """
        mean = np.array([self.wide(j, margin)[0] for j, margin in enumerate(margins)])
        products = np.zeros((self.p, self.p))
        i, j = np.triu_indices(self.p, 1)
        products[i, j] = products[j, i] = self.pairs(margins, np.tanh(z))[0]
        own, beside = self._owns[k], self._besides[k]
        apart = (products - np.outer(mean, mean))[np.ix_(own, beside)] / 2
        shares = np.maximum((mean[own] + 1) / 2, _LEAST_SHARE)
        shares = shares * min(1.0, (1 - _LEAST_SHARE) / float(shares.sum()))
        return np.column_stack([shares, apart + np.outer(shares, np.where(self._levels[beside], mean[beside], means))])

    def _seen(self, x: Array, k: int) -> Array:
        """(n, others) covariates as the logits of factor k have them."""
        return np.clip(self.lens.standard(x)[:, self._besides[k]], -LEVELS_REACH, LEVELS_REACH)

    def _put(self, x: Array, k: int, logits: Array, latents: Array) -> None:
        """Put each point of x into one level of factor k, by the latent of its first column."""
        own, chances = self._owns[k], level_chances(logits, self._seen(x, k))
        level = (special.ndtr(latents[:, own[0]])[:, None] > np.cumsum(chances, axis=1)[:, :-1]).sum(axis=1)
        x[:, own] = level[:, None] == 1 + np.arange(len(own))

    # -- derivatives -----------------------------------------------------------------------------------------
    def _covariate_slope(self, theta: CopulaParameters, margins: list[Margin], out: Array) -> None:
        super()._covariate_slope(theta, margins, out)
        for k, i, j in self._same:
            out[2 * self.p + k] = -out[i] - out[j]

    def _moves(self, theta: CopulaParameters, margins: list[Margin], x: Array) -> Iterator[tuple[Array, float]]:
        """As of `CopulaModel`, with levels as they are."""
        still = np.r_[self._levels, self._levels, self._apart]
        apart = replace(theta, z=self._between_others(theta.z))
        for stays, (moved, step) in zip(still, super()._moves(apart, margins, x), strict=True):
            moved[:, self._levels] = x[:, self._levels]
            yield (x if stays else moved), step

    def _outward_slope(self, theta: CopulaParameters, margins: list[Margin], x: Array, score: AnyScore | None) -> Array:
        found, moves = self._logits(margins, theta.z), list(self._moves(theta, margins, x))
        out = self._changes(theta.effects, x, moves, score)
        gaps = self._gaps(theta, margins, x, moves, found)
        for k, own in enumerate(self._owns):
            later, parts = range(k + 1, len(self._owns)), []
            for level in range(1 + len(own)):
                there = x.copy()
                there[:, own] = np.eye(1 + len(own))[level, 1:]
                for g in later:
                    self._put(there, g, found[g], self.coarse)
                parts.append(np.hstack([self._each(theta.effects, there, score), *self._products(there, later, found)]))
            chances, each = level_chances(found[k], self._seen(x, k)), np.stack(parts, axis=1)
            apart = each - np.einsum("nl,nlh->nh", chances, each)[:, None]
            one, also = (np.column_stack([np.ones(len(x)), part]) for part in (self._seen(x, k), self._wide(x, k)))
            along = np.einsum("nl,nlh,nj->hlj", chances[:, 1:], apart[:, 1:], one, optimize=True) / len(x)
            curve = level_curve(chances[:, 1:], one, also)
            curve += 1e-6 * np.trace(curve) / len(curve) * np.eye(len(curve))
            change = along.reshape(len(along), -1) @ np.linalg.solve(curve, gaps[k])
            out += change[: len(out)]
            # What is drawn later moves with this factor by itself.
            ends = np.cumsum([len(out), *(len(gaps[g]) for g in later)])
            for g, first, last in zip(later, ends, ends[1:], strict=False):
                gaps[g] = gaps[g] - change[first:last]
        return out

    def _wide(self, x: Array, k: int) -> Array:
        """(n, others) covariates as the products with levels of factor k have them."""
        return self.lens.wide(x)[:, self._besides[k]]

    def _products(self, x: Array, factors: Iterable[int], found: Sequence[Array]) -> list[Array]:
        """Of factors (n, targets) each point's part of their shares and products."""
        out = []
        for g in factors:
            chances = level_chances(found[g], self._seen(x, g))[:, 1:]
            also = np.column_stack([np.ones(len(x)), self._wide(x, g)])
            out.append((chances[:, :, None] * also[:, None, :]).reshape(len(x), -1))
        return out

    def _gaps(
        self,
        theta: CopulaParameters,
        margins: list[Margin],
        x: Array,
        moves: Sequence[tuple[Array, float]],
        found: Sequence[Array],
    ) -> list[Array]:
        """Of each factor (targets, parameters) what its logits have to make up for, per step.

        Args:
            theta: where. margins: there. x: coarse points there.
            moves: of these, by `_moves`, for each parameter of the covariates.
            found: logits there.
        """
        p, steps = self.p, np.array([step for _, step in moves])
        others: list[tuple[list[Margin], Array]] = [
            ([*margins[:j], margin, *margins[j + 1 :]], theta.z) for j, margin in self._moved(theta, steps[:p])
        ]
        others += [
            (margins, theta.z + step * unit) for step, unit in zip(steps[2 * p :], np.eye(len(theta.z)), strict=True)
        ]
        out = []
        for k, logits in enumerate(found):
            wide, chances = self._wide(x, k), level_chances(logits, self._seen(x, k))[:, 1:]
            here, columns = self._target(k, margins, theta.z, wide.mean(axis=0)), []
            for (there, z), (moved, step) in zip(others, moves, strict=True):
                also = self._wide(moved, k)
                gap = self._target(k, there, z, also.mean(axis=0)) - here
                gap[:, 1:] -= chances.T @ (also - wide) / len(x)
                columns.append(gap.ravel() / step)
            out.append(np.array(columns).T)
        return out


def with_levels(release: MomentsRelease, design: Design, points: int = POINTS) -> FittedCopula:
    """As of `copula.complete`, at points with one level of each nominal column."""
    fitted = complete(release, design, points)
    if not design.factors:
        return fitted
    model, theta = LevelsModel(fitted.model), fitted.theta
    observed, noise = observations(release, model.lens, fitted.score)
    x = model.points([model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(model.p)], theta.z)
    effects, size = theta.effects, theta.effects.size
    precision = precisions(model)[-size:]
    for _ in range(_STEPS):
        if isinstance(model.outcome, LinearOutcome):
            model.outcome = model.outcome.beside(model.predictor(effects, x))
        value, slope = model.effect_slope(effects, x, fitted.score)
        whole = np.zeros((len(observed), len(theta.flat)))
        whole[-len(value) :, -size:] = slope
        weighted = slope.T / doubted(model, whole, noise, fitted.score)[-len(value) :]
        pull = weighted @ (observed[-len(value) :] - value) - precision * effects.ravel()
        step = np.linalg.solve(weighted @ slope + np.diag(precision), pull)
        effects = effects + np.clip(step, -0.7, 0.7).reshape(effects.shape)
        if float(np.abs(step).max()) < 1e-3:
            break
    return joint(replace(fitted, model=model, theta=replace(theta, effects=effects)), observed, 2)
