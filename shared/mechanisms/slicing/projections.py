r"""From noisy projections to persons: deconvolved moments, and a mixture of products fitted to them. Free of budget.

The lines of a slicing release are undone as far as can be, :math:`(XU + V) U^+ = X + E`, where a row of E has the known
covariance :math:`N = \sigma^2 (U U^\top)^{-1}`. So the first and second moments of what was undone, the second less N,
are without bias those of the coded records: the share of every level, every two-way table, and the means, squares
and products of numbers.

The model that is fitted to them has H unseen classes, within which columns are independent:
:math:`\mu = \sum_h w_h p_h` and :math:`M = \sum_h w_h p_h p_h^\top` between different columns, in closed form. The fit
minimises squared distances in units of their standard errors, plus a prior that draws the classes together where noise
drowns what tells them apart: with little data or a small ε the columns become independent, never wild.

A prior that draws classes together draws every association towards none, and an answer from such rows with it. As with
noisy tables (`shared.mechanisms.tables.one_step`, whose rule this is) the answer is put right by one straight step:
with φ its influence function,

.. math:: \hat\theta = \theta(P) + \langle g, \; \bar f - f_P \rangle, \qquad
          \min_g \; s^2 \, E_P (\varphi - g \cdot f)^2 + g^\top S g

where f are the entries of the question's columns and their products, f̄ their means over the rows that were undone,
freed of the noise and so without bias, and S the covariance of these means, seen in the lines themselves. What noise
drowns of φ stays with the model, and s = 0.4 says how far that may be off.

For an answer without an influence function it is all done again on rows of the model: persons, noise, fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from shared.errors import EstimateRefusal, ParameterError
from shared.mechanisms.slicing.noise import Block, RowCode
from shared.mechanisms.tables.one_step import MODEL_ERROR, STEP_ERROR, UNSEEN_ERROR, hidden, influences
from shared.plans.encoding import typed

if TYPE_CHECKING:
    from shared.estimands.answer import Estimand, Estimate, Origin

__all__ = ["Mixture", "ProjectedMoments", "answer", "decoded", "fit", "moments", "together"]

Array = NDArray[np.float64]

CLASSES = 6
_RIDGE, _RIDGE_OF_NUMBERS = 1.5, 0.35
"""Standard deviation of the prior of a class' deviation: of logits; of a number's atanh, whose bounds are far out."""
_USUAL = (0.06, 0.05)
"""Variance of a number within its class, and how far it may be from that: public bounds are about four deviations."""
_STEPS = 400
DRAWS, REFITS = 5, 12
"""Synthetic tables of an answer, and how often it is found again from rows of the model."""
MOST_ROWS = 10_000
"""Of one synthetic table of several sites."""
_SEED = 20241019


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
    return _of_rows(undone / unit, noise)


def _of_rows(rows: Array, noise: Array) -> ProjectedMoments:
    second = rows.T @ rows / len(rows) - noise
    return ProjectedMoments(mean=rows.mean(axis=0), second=second, noise=noise, n=len(rows), parts=((rows, noise),))


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A fitted mixture of products.

    Args:
        weights: (H,) of the classes. means: (H, d) of a coded row in each. spread: (d,) of numbers within a class.
        doubt: (d,) relative standard error of the spread's square.
        theta: the parameters, a start for a similar fit.
    """

    code: RowCode
    weights: Array
    means: Array
    spread: Array
    doubt: Array
    theta: Array

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
    spread, doubt = np.zeros(code.d), np.zeros(code.d)
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
            doubt[block.at] = min(1 / math.sqrt(known + usual) / within, 1.0)
    return Mixture(code=code, weights=weights, means=means, spread=spread, doubt=doubt, theta=done.x)


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


def answer(
    code: RowCode,
    found: ProjectedMoments,
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    draws: int = DRAWS,
    **origin: Unpack[Origin],
) -> list[Estimate]:
    """One estimate per term: the mean of m synthetic tables' answers, and one step from there to the lines' moments.

    As in `shared.mechanisms.tables.one_step`, with v̄ the mean variance that tables of n rows claim:

        vi_sampling = v̄ + E(φ − g·f)² / (m n)
        vi_privacy  = gᵀSg − Var(g·f) / n + s² E(φ₂ − g·f)² + 0.05² E(φ − φ₂)² + (step · b)²

    where b² is 1/9 and the doubt about the spread of the question's numbers, and φ₂ what entries and their products
    can follow of φ. What scatters gᵀSg are persons and noise together: the persons' part of it is in v̄ already.

    Args:
        draws: m, at least 5.
        levels: as of `estimate`. origin: its study, site, wave and receipts.
    Raises: ParameterError (m < 5); EstimateRefusal, as `estimate`.
    """
    from shared.estimands.answer import estimate_drawn

    if draws < 5:
        raise ParameterError("draws must be at least 5 to be combined", given=f"{draws}")
    model, rng = fit(code, found), np.random.default_rng(_SEED)
    drawn = [model.rows(found.n, rng) for _ in range(draws)]
    tables = [table for _, table in drawn]
    each = [estimate_drawn(table, question, levels=levels, **origin) for table in tables]
    pushes = influences(question, tables, each[0], levels)
    step = _ProjectionStep(model, found, question, np.concatenate([coded for coded, _ in drawn])) if pushes else None
    refits = [] if pushes else _refits(code, found, model, question, rng, levels=levels, **origin)
    out = []
    for k, row in enumerate(each[0]):
        same, repeated = (
            [one for one in (next((r for r in many if r.term == row.term), None) for many in sets) if one is not None]
            for sets in (each, refits)
        )
        values = [one.yi for one in same if one.yi is not None]
        scatter = [one.yi for one in repeated if one.yi is not None]
        if len(values) < draws or len(scatter) < len(refits):
            reason = f"the term is in {len(values) + len(scatter)} of {draws + len(refits)} synthetic tables only"
            out.append(replace(row, yi=None, vi_sampling=None, vi_privacy=0.0, reason=row.reason or reason))
            continue
        naive = float(np.mean([one.vi_sampling for one in same if one.vi_sampling is not None]))
        point = float(np.mean(values))
        warnings = ["What a mixture of products cannot say of how columns depend is in no variance."]
        if step is not None:
            moved = step(pushes[k])
            point, sampling, privacy = point + moved.by, naive + moved.drawing, moved.privacy
            warnings = ["Of how three or more columns depend together, only a small error is in the interval."]
            warnings += hidden(moved.drowned, sampling + privacy)
            how = f"{draws} synthetic tables and one step to the lines' moments; noise seen, model error allowed for"
        else:
            whole = (
                float(np.var(scatter, ddof=1)) * (REFITS + 1) / (REFITS - 1)
            )  # a dozen repetitions know it that well
            sampling, privacy = naive, max(whole - 2 * naive, 0.0) + naive / draws
            how = f"{draws} synthetic tables; persons, noise and fit done again {REFITS} times"
        out.append(
            replace(
                row,
                yi=point,
                vi_sampling=sampling,
                vi_privacy=privacy,
                vi_naive=naive,
                how=how,
                warnings=tuple(warnings),
                correlations={},  # what its noise has in common between terms is not known
            )
        )
    return out


def together(
    code: RowCode,
    sites: Mapping[str, ProjectedMoments],
    everybody: ProjectedMoments,
    question: Estimand,
    *,
    levels: Mapping[str, Any],
    origins: Mapping[str, Origin],
) -> dict[str, list[Estimate]]:
    """Site to one estimate per term, from one model of all sites' lines; empty without an influence function.

    As in `shared.mechanisms.tables.together`: g is one function for all sites, damped as far as the noise of all lines
    together asks, and what the model lacks it lacks at every site,

        vi_privacy = gᵀS_k g − Var(g·f) / n_k + ((step_k − step) · b)²
        vi_common  = s² E(φ₂ − g·f)² + 0.05² E(φ − φ₂)² + (step · b)²

    where step is the mean over persons of the sites' step_k.

    Args:
        sites: what each released. everybody: the same of all of them.
        levels: as of `estimate`. origins: site to study, site, wave and receipts.
    Raises: EstimateRefusal, as `estimate`.
    """
    from shared.estimands.answer import estimate_drawn

    model, rng = fit(code, everybody), np.random.default_rng(_SEED)
    drawn = [model.rows(min(everybody.n, MOST_ROWS), rng) for _ in range(DRAWS)]
    tables = [table for _, table in drawn]
    each = [estimate_drawn(table, question, levels=levels, **next(iter(origins.values()))) for table in tables]
    pushes = influences(question, tables, each[0], levels)
    if not pushes:
        return {}
    step = _ProjectionStep(model, everybody, question, np.concatenate([coded for coded, _ in drawn]))
    moves, gaps = [step(push) for push in pushes], {site: step.gap(found) for site, found in sites.items()}
    out: dict[str, list[Estimate]] = {site: [] for site in sites}
    for row, move in zip(each[0], moves, strict=True):
        same = [one for many in each for one in many if one.term == row.term and one.yi is not None]
        naive = float(np.mean([one.vi_sampling for one in same if one.vi_sampling is not None] or [0.0]))
        lacking = move.drowned + move.beyond + (step.straight * move.by) ** 2
        for site, (gap, scatter) in gaps.items():
            n, own = sites[site].n, replace(row, **origins[site])
            if len(same) < DRAWS:
                reason = row.reason or f"the term is in {len(same)} of {DRAWS} synthetic tables only"
                out[site].append(replace(own, yi=None, vi_sampling=None, vi_privacy=0.0, reason=reason))
                continue
            fewer = len(tables[0]) / n  # times the rows that this site has
            by, patients = float(move.g @ gap), naive * fewer
            seen = max(float(move.g @ scatter @ move.g) - move.persons / n, 0.0)
            sampling, privacy = patients + move.drawing, seen + (step.straight * (by - move.by)) ** 2
            warnings = ["Of how three or more columns depend together, only a small error is in the interval."]
            out[site].append(
                replace(
                    own,
                    yi=float(np.mean([one.yi for one in same])) + by,
                    vi_sampling=sampling,
                    vi_privacy=privacy,
                    vi_common=lacking,
                    vi_naive=patients,
                    vi_sandwich=None if own.vi_sandwich is None else own.vi_sandwich * fewer,
                    how=f"{DRAWS} synthetic tables of all sites' lines and one step to the site's; noise seen",
                    warnings=(*warnings, *hidden(move.drowned, sampling + privacy + lacking)),
                    correlations={},
                    n=round(own.n / fewer),
                    n_missing=round(own.n_missing / fewer),
                    n_outside=round(own.n_outside / fewer),
                )
            )
    return out


@dataclass(frozen=True, kw_only=True)
class _ProjectionMove:
    """by: the step. drawing: what the draw of rows adds to the variance of patients. The rest is privacy's variance.

    seen: what scatters the lines' moments, noise and persons, less the persons' part. drowned: the model's error where
    noise hides it. beyond: the same past pairs of entries. bent: of the step, which is straight.
    g: (features,) the function that is followed. persons: its variance.
    """

    by: float
    drawing: float
    seen: float
    drowned: float
    beyond: float
    bent: float
    g: Array
    persons: float

    @property
    def privacy(self) -> float:
        return self.seen + self.drowned + self.beyond + self.bent


class _ProjectionStep:
    """From an influence function on synthetic rows to a step: of one question, for all its terms.

    Args:
        coded: (rows, d) of all synthetic tables, in order.
    """

    def __init__(self, model: Mixture, found: ProjectedMoments, question: Estimand, coded: Array) -> None:
        blocks = [block for block in model.code.blocks if block.column.name in question.columns]
        # An answer per unit of a number is as wrong as the model's spread of that number, however straight the step.
        self.straight = math.hypot(STEP_ERROR, max((float(model.doubt[block.at]) for block in blocks), default=0.0))
        self._entries = [i for block in blocks for i in range(block.at, block.at + block.size)]
        own = [k for k, block in enumerate(blocks) for _ in range(block.size)]
        number = [block.numeric and i == block.at for block in blocks for i in range(block.at, block.at + block.size)]
        # Within a levelled column a product of two entries is 0 or the entry itself.
        pairs = [
            (i, j) for i in range(len(own)) for j in range(i, len(own)) if own[i] != own[j] or (i == j and number[i])
        ]
        self._left, self._right = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
        features = self._features(coded)
        self._centred = features - features.mean(axis=0)
        self._square = self._centred.T @ self._centred / len(coded)
        self._rows, self._n, self._mean = len(coded), found.n, features.mean(axis=0)
        self._gap, self._scatter = self.gap(found)

    def gap(self, found: ProjectedMoments) -> tuple[Array, Array]:
        """Mean features of released lines less those of the model's rows, and the covariance of that mean."""
        total, scatter = np.zeros_like(self._mean), np.zeros_like(self._square)
        for rows, noise in found.parts:
            seen = self._features(rows, noise)
            total += seen.sum(axis=0)
            scatter += np.cov(seen, rowvar=False, ddof=1).reshape(scatter.shape) * len(rows)
        return total / found.n - self._mean, scatter / found.n**2

    def _features(self, rows: Array, noise: Array | None = None) -> Array:
        """Entries and their products, the latter less what noise adds to them on average."""
        entries = rows[:, self._entries]
        products = entries[:, self._left] * entries[:, self._right]
        if noise is not None:
            products -= noise[np.ix_(self._entries, self._entries)][self._left, self._right]
        return np.concatenate([entries, products], axis=1)

    def __call__(self, phi: Array) -> _ProjectionMove:
        along = self._centred.T @ phi / self._rows
        g = np.linalg.solve(self._square + self._scatter / MODEL_ERROR**2, along)
        reach = self._centred @ np.linalg.lstsq(self._square, along, rcond=1e-10)[0]
        near = self._centred @ g
        by, persons = float(g @ self._gap), float(near @ near) / self._rows
        seen = float(g @ self._scatter @ g) - persons / self._n
        return _ProjectionMove(
            by=by,
            drawing=float(((phi - near) ** 2).mean()) / self._rows,
            seen=max(seen, 0.0),
            drowned=MODEL_ERROR**2 * float(((reach - near) ** 2).mean()),
            beyond=UNSEEN_ERROR**2 * float(((phi - reach) ** 2).mean()),
            bent=(self.straight * by) ** 2,
            g=g,
            persons=persons,
        )


def _refits(
    code: RowCode,
    found: ProjectedMoments,
    model: Mixture,
    question: Estimand,
    rng: np.random.Generator,
    *,
    levels: Mapping[str, Any],
    **origin: Unpack[Origin],
) -> list[list[Estimate]]:
    """The answers of `REFITS` repetitions of all that happened, on rows of the model."""
    from shared.estimands.answer import estimate_drawn

    root = np.linalg.cholesky(found.noise)
    out = []
    for _ in range(REFITS):
        rows, _ = model.rows(found.n, rng)
        drawn = _of_rows(rows + rng.standard_normal(rows.shape) @ root.T, found.noise)
        other = fit(code, drawn, start=model.theta)
        out.append(estimate_drawn(other.rows(found.n, rng)[1], question, levels=levels, **origin))
    return out
