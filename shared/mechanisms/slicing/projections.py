r"""From noisy projections to persons: deconvolved moments, and a mixture of products fitted to them. Free of budget.

The lines of a slicing release are undone as far as can be, :math:`(XU + V) U^+ = X + E`, where a row of E has the known
covariance :math:`N = \sigma^2 (U U^\top)^{-1}`. So the first and second moments of what was undone, the second less N,
are without bias those of the coded records: the share of every level, every two-way table, and the means, squares
and products of numbers.

The model that is fitted to them has H unseen classes, within which columns are independent:
:math:`\mu = \sum_h w_h p_h` and :math:`M = \sum_h w_h p_h p_h^\top` between different columns, in closed form. The fit
minimises squared distances in units of their standard errors, plus a prior that draws the classes together where noise
drowns what tells them apart: with little data or a small ε the columns become independent, never wild.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from shared.errors import EstimateRefusal, ParameterError
from shared.mechanisms.slicing.noise import Block, RowCode
from shared.plans.encoding import typed

__all__ = ["Mixture", "ProjectedMoments", "beyond_noise", "decoded", "fit", "margins_of", "moments", "of_rows"]

Array = NDArray[np.float64]

CLASSES = 6
_RIDGE, _RIDGE_OF_NUMBERS = 1.5, 0.35
"""Standard deviation of the prior of a class' deviation: of logits; of a number's atanh, whose bounds are far out."""
_USUAL = (0.06, 0.05)
"""Variance of a number within its class, and how far it may be from that: public bounds are about four deviations."""
_LEAST = 0.12
"""Least standard deviation of a number, of half the width of its bounds, where lines do not tell: it is said."""
_STEPS = 400


@dataclass(frozen=True, kw_only=True)
class ProjectedMoments:
    """Of coded records in units of a level, freed of the noise: (d,) means, (d, d) second moments.

    `noise` is the (d, d) covariance of what is left on a row, `n` how many rows there were; `parts` are the rows of
    each release, undone, and what is left on them.
    """

    mean: Array
    second: Array
    noise: Array
    n: int
    parts: tuple[tuple[Array, Array], ...]


def moments(code: RowCode, releases: Sequence[tuple[Array, Array]], sigma: float) -> ProjectedMoments:
    """The moments of all rows of several releases of different persons.

    Args:
        releases: (directions (d, m'), lines (n, m')) of each.
        sigma: of the noise on a line.
    Raises: EstimateRefusal (no rows, directions that leave out an entry).
    """
    parts = [_moments(directions, lines, sigma, code.unit) for directions, lines in releases if len(lines)]
    if not parts:
        raise EstimateRefusal("there must be released lines", given="none")
    n = sum(part.n for part in parts)
    share = [part.n / n for part in parts]
    return ProjectedMoments(
        mean=np.sum([s * part.mean for s, part in zip(share, parts, strict=True)], axis=0),
        second=np.sum([s * part.second for s, part in zip(share, parts, strict=True)], axis=0),
        noise=np.sum([s * part.noise for s, part in zip(share, parts, strict=True)], axis=0),
        n=n,
        parts=tuple(one for part in parts for one in part.parts),
    )


def _moments(directions: Array, lines: Array, sigma: float, unit: float) -> ProjectedMoments:
    gram = directions @ directions.T
    if np.linalg.cond(gram) > 1e10:
        raise EstimateRefusal("the directions must span the entries of a row", given="they do not")
    undone = np.asarray(np.linalg.solve(gram, directions @ lines.T).T, dtype=np.float64)
    free = lines.size - undone.size
    if free > 0:
        # What no row can explain is noise alone: lines of a plan version with another sigma show it here.
        left = float(((lines - undone @ directions) ** 2).sum()) / free / sigma**2
        if abs(left - 1) > 8 * math.sqrt(2 / free) + 1e-3:
            raise EstimateRefusal(
                "released lines must have the noise of the site's newest plan version",
                given=f"{left:.3g} of its variance",
            )
    noise = np.asarray(sigma**2 / unit**2 * np.linalg.inv(gram), dtype=np.float64)
    return of_rows(undone / unit, noise)


def of_rows(rows: Array, noise: Array) -> ProjectedMoments:
    """The moments of undone rows (n, d), of whose noise (d, d) is known."""
    second = rows.T @ rows / len(rows) - noise
    return ProjectedMoments(mean=rows.mean(axis=0), second=second, noise=noise, n=len(rows), parts=((rows, noise),))


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A fitted mixture of products.

    Args:
        weights: (H,) of the classes. means: (H, d) of a coded row in each. spread: (d,) of numbers within a class.
        doubt: (d,) relative standard error of the spread's square. least: (d,) the least that the spread may be.
        theta: the parameters, a start for a similar fit.
    """

    code: RowCode
    weights: Array
    means: Array
    spread: Array
    doubt: Array
    least: Array
    theta: Array

    def spread_of(self, block: Block) -> tuple[float, float]:
        """Standard deviation of a number over all classes, as it is and at the least, in half widths of its bounds."""
        gone = self.means[:, block.at + 1] if block.size == 2 else np.zeros(len(self.weights))
        here = self.weights * (1 - gone) / max(float(self.weights @ (1 - gone)), 1e-9)
        centre = self.means[:, block.at] / np.maximum(1 - gone, 1e-9)
        between = float(here @ centre**2) - float(here @ centre) ** 2
        guess, least = float(self.spread[block.at]), float(self.least[block.at])
        return math.sqrt(between + guess**2), math.sqrt(between + least**2)

    def rows(self, n: int, draws: np.random.Generator) -> tuple[Array, pd.DataFrame]:
        """((n, d) coded rows in units of a level, the same as a table of the dictionary)."""
        if n < 1:
            raise ParameterError("a synthetic table must have at least one row", given=f"{n}")
        classes = np.minimum((draws.random((n, 1)) > np.cumsum(self.weights)).sum(axis=1), len(self.weights) - 1)
        out = np.zeros((n, self.code.d))
        for block in self.code.blocks:
            own = self.means[classes][:, block.place]
            if block.numeric:
                gone = own[:, 1] if block.size == 2 else np.zeros(n)
                absent = draws.random(n) < gone
                centre = own[:, 0] / np.maximum(1 - gone, 1e-9)
                value = _folded(centre + self.spread[block.at] * draws.standard_normal(n))
                out[:, block.at] = np.where(absent, 0.0, value)
                if block.size == 2:
                    out[:, block.at + 1] = absent
            else:
                rising = np.cumsum(own, axis=1)
                level = np.minimum((draws.random((n, 1)) > rising).sum(axis=1), block.size - 1)
                out[np.arange(n), block.at + level] = 1
        return out, decoded(self.code, out)


def decoded(code: RowCode, rows: Array) -> pd.DataFrame:
    """Coded rows, in units of a level, as a table of the dictionary. Raises: ParameterError (no row)."""
    if len(rows) < 1:
        raise ParameterError("a synthetic table must have at least one row", given=f"{len(rows)}")
    table = {}
    for block in code.blocks:
        own = rows[:, block.place]
        if block.numeric:
            lower, upper = block.column.span
            number = lower + (own[:, 0] + 1) / 2 * (upper - lower)
            if block.column.kind == "integer":
                number = np.round(number)
            canonical = np.where(own[:, 1] > 0.5, np.nan, number) if block.size == 2 else number
        else:
            level = own.argmax(axis=1)
            canonical = np.where(level == len(block.column.levels), np.nan, level)
        table[block.column.name] = typed(block.column, canonical)
    return pd.DataFrame(table)


def _folded(value: Array) -> Array:
    """Into [-1, 1], past a bound mirrored at it: no heap of values at the bounds."""
    return np.asarray(1 - np.abs((value + 1) % 4 - 2))


def fit(code: RowCode, found: ProjectedMoments, *, classes: int = CLASSES, start: Array | None = None) -> Mixture:
    """The mixture of products nearest to deconvolved moments; the same moments give the same mixture.

    Classes begin two by two at the ends of the directions along which the columns hang together most, in units of their
    standard errors. The distance has more than one hollow: from a start by chance, where noise is large, the two or
    three classes that it leaves can miss what the data say clearest.

    Args:
        start: parameters of a similar fit, for a quicker one.
    """
    problem = _ProjectionLoss(code, found, classes)
    theta = problem.start() if start is None else start
    steps = _STEPS if start is None else _STEPS // 4
    done = optimize.minimize(problem, theta, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 20})
    weights, means = problem.means(done.x)
    spread, doubt, least = np.zeros(code.d), np.zeros(code.d), np.ones(code.d)
    for block in code.blocks:
        if block.numeric:
            present = 1 - (means[:, block.at + 1] if block.size == 2 else np.zeros(classes))
            share = max(float(weights @ present), 1e-3)
            between = float(weights @ (means[:, block.at] ** 2 / np.maximum(present, 1e-3)))
            within = (float(found.second[block.at, block.at]) - between) / share
            # A variance is known worse than a mean: where noise drowns it, it is drawn to that of a usual number.
            own = float(found.noise[block.at, block.at]) + max(float(found.second[block.at, block.at]), 0.02)
            known, usual = found.n / (2 * own**2), 1 / _USUAL[1] ** 2
            within = (known * within + usual * _USUAL[0]) / (known + usual)
            within = min(max(within, 1e-3), 0.4)
            spread[block.at] = math.sqrt(within)
            unsure = 1 / math.sqrt(known + usual) / within
            doubt[block.at] = min(unsure, 1.0)
            least[block.at] = math.sqrt(max(within * (1 - 2 * unsure), min(_LEAST**2, within / 4)))
    return Mixture(code=code, weights=weights, means=means, spread=spread, doubt=doubt, least=least, theta=done.x)


def beyond_noise(values: Array, variances: Array) -> tuple[Array, Array]:
    """((j,) weighted means, (k, j) the share of each value's distance to it that is more than noise).

    By moments, each column alone (DerSimonian & Laird 1986).

    Args:
        values, variances: (k, j) of k sites.

    >>> mean, kept = beyond_noise(np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]]))
    >>> mean.tolist(), kept.tolist()
    ([1.0], [[0.5], [0.5]])
    """
    weights = 1 / variances
    total = weights.sum(axis=0)
    mean = (weights * values).sum(axis=0) / total
    q = (weights * (values - mean) ** 2).sum(axis=0)
    free = total - (weights**2).sum(axis=0) / total
    tau2 = np.maximum(q - (len(values) - 1), 0.0) / np.maximum(free, 1e-300)
    return mean, tau2 / (tau2 + variances)


def margins_of(
    model: Mixture, everybody: ProjectedMoments, sites: Mapping[str, ProjectedMoments]
) -> dict[str, Mixture]:
    """Site to the model with the site's own means and shares, as far as sites differ beyond their noise.

    Means of numbers are moved; shares are raked (iterative proportional fitting). How columns hang together stays.
    """
    own = [np.diag(one.noise) + np.clip(np.diag(one.second) - one.mean**2, 0.002, 1.0) for one in sites.values()]
    variances = np.array([v / one.n for v, one in zip(own, sites.values(), strict=True)])
    _, kept = beyond_noise(np.array([one.mean for one in sites.values()]), variances)
    at = model.weights @ model.means
    return {
        site: replace(model, means=_moved(model, at + kept[k] * (one.mean - everybody.mean)))
        for k, (site, one) in enumerate(sites.items())
    }


def _moved(model: Mixture, to: Array) -> Array:
    """(H, d) classes' means that have these means over all."""
    means, w = model.means.copy(), model.weights
    for block in model.code.blocks:
        at = block.at
        if not block.numeric:
            means[:, block.place] = _raked(means[:, block.place], w, to[block.place])
            continue
        gone = np.zeros(len(w))
        centre = means[:, at]
        if block.size == 2:
            centre = centre / np.maximum(1 - means[:, at + 1], 1e-9)
            both = np.column_stack([1 - means[:, at + 1], means[:, at + 1]])
            gone = _raked(both, w, np.array([1 - to[at + 1], to[at + 1]]))[:, 1]
            means[:, at + 1] = gone
        here = 1 - gone
        off = (to[at] - float(w @ (centre * here))) / max(float(w @ here), 1e-9)
        means[:, at] = np.clip(centre + off, -0.99, 0.99) * here
    return means


def _raked(shares: Array, weights: Array, to: Array) -> Array:
    """(H, L) shares of levels in each class that have these over all."""
    wanted = np.clip(to, 1e-4, 1.0)
    wanted, out = wanted / wanted.sum(), np.maximum(shares, 1e-12)
    for _ in range(60):
        out = out * (wanted / (weights @ out))
        out = out / out.sum(axis=1, keepdims=True)
    return np.asarray(out)


class _ProjectionLoss:
    """Distance and gradient at θ: (H,) log weights, (d,) a common profile and (H, d) the classes' deviations."""

    def __init__(self, code: RowCode, found: ProjectedMoments, classes: int) -> None:
        self.blocks: tuple[Block, ...] = code.blocks
        self.d, self.h, self.found = code.d, classes, found
        own = np.diag(found.noise) + np.clip(np.diag(found.second), 0.02, 1.0)
        self.mean_weight = found.n / own
        self.weight = found.n / np.outer(own, own)
        self.second = found.second.copy()
        self.ridge = np.full(self.d, _RIDGE)
        for block in self.blocks:
            self.weight[block.place, block.place] = 0  # entries of one column say nothing of dependence
            if block.numeric:
                # But classes must not stand further apart than the number varies, less what is usual within them.
                at = block.at
                self.second[at, at] -= _USUAL[0]
                self.weight[at, at] = 2 / (_USUAL[1] ** 2 + 2 * own[at] ** 2 / found.n)
                self.ridge[at] = _RIDGE_OF_NUMBERS
        # Entries lie block by block: all of them at once, and then numbers, whose block is no choice between levels.
        sizes = [block.size for block in self.blocks]
        self.first = np.array([block.at for block in self.blocks])
        self.block = np.repeat(np.arange(len(sizes)), sizes)
        self.plain = np.array([block.at for block in self.blocks if block.numeric and block.size == 1], dtype=np.int64)
        self.gone = np.array([block.at + 1 for block in self.blocks if block.numeric and block.size == 2], dtype=int)

    def start(self) -> Array:
        profile = np.zeros(self.d)
        for block in self.blocks:
            mean = self.found.mean[block.place]
            if block.numeric:
                gone = min(max(float(mean[1]), 0.01), 0.9) if block.size == 2 else 0.0
                profile[block.at] = math.atanh(min(max(float(mean[0]) / (1 - gone), -0.95), 0.95))
                if block.size == 2:
                    profile[block.at + 1] = math.log(gone / (1 - gone))
            else:
                profile[block.place] = np.log(np.clip(mean, 0.01, 1.0))
        apart = (self.found.second - np.outer(self.found.mean, self.found.mean)) * np.sqrt(self.weight)
        for block in self.blocks:
            apart[block.place, block.place] = 0  # within a column there is no dependence to follow
        along = np.linalg.eigh(apart)[1][:, ::-1].T[: self.h // 2]
        deviations = np.zeros((self.h, self.d))
        ends = self.ridge * along / np.abs(along).max(axis=1, keepdims=True)
        deviations[0 : 2 * len(ends) : 2], deviations[1 : 2 * len(ends) : 2] = ends, -ends
        return np.concatenate([np.zeros(self.h), profile, deviations.ravel()])

    def means(self, theta: Array) -> tuple[Array, Array]:
        weights = np.exp(theta[: self.h] - theta[: self.h].max())
        logits = theta[self.h : self.h + self.d] + theta[self.h + self.d :].reshape(self.h, self.d)
        rising = np.exp(logits - np.maximum.reduceat(logits, self.first, axis=1)[:, self.block])
        means = np.asarray(rising / np.add.reduceat(rising, self.first, axis=1)[:, self.block], dtype=np.float64)
        means[:, self.plain] = np.tanh(logits[:, self.plain])
        means[:, self.gone] = 0.5 * (1 + np.tanh(logits[:, self.gone] / 2))
        means[:, self.gone - 1] = np.tanh(logits[:, self.gone - 1]) * (1 - means[:, self.gone])
        return weights / weights.sum(), means

    def __call__(self, theta: Array) -> tuple[float, Array]:
        w, p = self.means(theta)
        off = w @ p - self.found.mean
        pull = self.mean_weight * off
        apart = (p * w[:, None]).T @ p - self.second
        push = self.weight * apart
        deviations = theta[self.h + self.d :].reshape(self.h, self.d)
        loss = 0.5 * off @ pull + 0.25 * float((apart * push).sum())
        loss += 0.5 * float(((deviations / self.ridge) ** 2).sum()) + 0.5 * float((theta[: self.h] ** 2).sum())
        through = p @ push
        by_weight = p @ pull + 0.5 * (through * p).sum(axis=1)
        by_mean = w[:, None] * (pull + through)
        own = p * by_mean
        by_logit = own - p * np.add.reduceat(own, self.first, axis=1)[:, self.block]
        by_logit[:, self.plain] = (1 - p[:, self.plain] ** 2) * by_mean[:, self.plain]
        gone, here = p[:, self.gone], 1 - p[:, self.gone]
        centre, push = p[:, self.gone - 1] / np.maximum(here, 1e-12), by_mean[:, self.gone - 1]
        by_logit[:, self.gone - 1] = (1 - centre**2) * here * push
        by_logit[:, self.gone] = gone * here * (by_mean[:, self.gone] - centre * push)
        gradient = np.concatenate(
            [
                w * (by_weight - w @ by_weight) + theta[: self.h],
                by_logit.sum(axis=0),
                (by_logit + deviations / self.ridge**2).ravel(),
            ]
        )
        return float(loss), gradient
