r"""The model behind a moments release, solved from its noisy sums: margins, a Gaussian copula, and an outcome.

Every covariate is the image of a normal latent through its own margin, the latents are correlated, and the outcome
follows its covariates as `shared.mechanisms.moments.outcomes` says (proportional hazards of event and censoring;
logistic; Poisson; linear). Its parameters θ are as many as the release's moments M:

    shift and stretch of each margin        ←  Σ u_j and Σ ⌊5U_j²/8⌋
    correlation of each pair                ←  Σ U_i U_j
    level and effects on each predictor     ←  Σ (feature of the outcome) ⊗ u

so fitting is solving M(θ) = M, softened by a weak prior that only matters where noise drowns a moment:

.. math:: \hat\theta = \arg\min (M - M(\theta))' V^{-1} (M - M(\theta)) + (\theta - \theta_0)' P (\theta - \theta_0)

with V the *known* covariance of the privacy noise. The margins and correlations are solved one by one, the effects by
Gauss-Newton, and one joint step on all of it gives both the solution and its derivative K = dθ/dM.

A declared coefficient has a score of its own: the sum of the records' influences on it at the pilot fit, cut
(`shared.mechanisms.moments.influence`). It joins M as one more moment, and the joint step is taken again. The site asks
for the same pilot before it draws the score (`shared.mechanisms.moments.draw`), so that both sides look at the same
place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import ParameterError
from shared.mechanisms.moments.influence import direction, efficient_cut, held, kept_share
from shared.mechanisms.moments.margins import Margin, product_moments
from shared.mechanisms.moments.noise import Design, Lens, MomentsRelease, read, score_reach
from shared.mechanisms.moments.outcomes import Count, LinearOutcome, Outcome, Survival
from shared.mechanisms.moments.spec import SQUARE, grids_of, sigma_of
from shared.plans.dictionary import NUMERIC

__all__ = [
    "CUT",
    "POINTS",
    "CopulaModel",
    "CopulaParameters",
    "FittedCopula",
    "Score",
    "complete",
    "doubted",
    "joint",
    "moved",
    "observations",
    "pilot",
    "precisions",
]

special = deferred("scipy.special")

Array = NDArray[np.float64]

POINTS, _COARSE = 4096, 1024
"""Points that stand for the covariates in a mean, and in a derivative, where a part in a hundred will do."""
CUT = 6.0
"""Covariates enter a linear predictor within this many scales."""
_PRIOR_SHIFT, _PRIOR_STRETCH, _PRIOR_Z, _PRIOR_LEVEL, _PRIOR_EFFECT = 0.5, 0.25, 0.5, 1.5, 0.7
"""Standard deviations of the weak prior; the effect's is per standard deviation of its covariate."""
_LEAST_EIGENVALUE = 0.05
_DOUBT = 0.1
"""Standard deviation of what the model may have wrong in an effect that a score tells, per scale of its covariate."""


@lru_cache(maxsize=8)
def _latents(p: int) -> Array:
    """Evenly spread standard normal points, the same everywhere."""
    from scipy.stats import qmc

    uniform = qmc.Sobol(p, seed=1).random(POINTS)
    out = special.ndtri(np.clip(uniform, 1e-7, 1 - 1e-7))
    out.setflags(write=False)
    return np.asarray(out)


@dataclass(frozen=True)
class CopulaParameters:
    """θ in its parts: (p,), (p,), (pairs,) Fisher's z, (predictors, 1 + p) per scale of the covariate."""

    shift: Array
    stretch: Array
    z: Array
    effects: Array

    @property
    def flat(self) -> Array:
        """All of θ as one vector."""
        return np.concatenate([self.shift, self.stretch, self.z, self.effects.ravel()])

    def like(self, flat: Array) -> CopulaParameters:
        """The reverse of `flat`: parameters of the same shapes."""
        p, pairs = len(self.shift), len(self.z)
        return CopulaParameters(
            flat[:p], flat[p : 2 * p], flat[2 * p : 2 * p + pairs], flat[2 * p + pairs :].reshape(self.effects.shape)
        )


class CopulaModel:
    """The moments that parameters predict, through one lens; `points` of the latents stand for the covariates.

    `margins` are what the covariates are taken to follow: the lens's own, or what more is known of them.
    """

    def __init__(self, design: Design, lens: Lens, points: int = POINTS) -> None:
        self.design, self.lens, self.p = design, lens, design.p
        self.outcome, self.margins = lens.outcome, lens.margins
        self.latents = _latents(self.p)[:points]
        self.counted: frozenset[int] = frozenset()  # covariates whose moments no model need come between
        self.coarse = self.latents[:_COARSE]
        self.binary = np.array([column.kind == "binary" for column in design.covariates])
        self.spans = [c.span if c.kind in NUMERIC else (0.0, len(c.levels) - 1.0) for c in design.covariates]

    def with_margin(self, j: int, margin: Margin) -> CopulaModel:
        """This model with another distribution of covariate j, behind the same lens."""
        other = copy.copy(self)
        other.margins = (*self.margins[:j], margin, *self.margins[j + 1 :])
        return other

    # -- covariates ------------------------------------------------------------------------------------------
    def margin(self, j: int, shift: float, stretch: float) -> Margin:
        """Margin of covariate j, shifted and stretched."""
        lens = self.lens
        return self.margins[j].moved(shift, stretch, float(lens.centre[j]), float(lens.scale[j]), self.spans[j])

    def _standard(self, j: int, margin: Margin) -> Array:
        return np.asarray((margin.values - self.lens.centre[j]) / self.lens.scale[j])

    def singles(self, j: int, margin: Margin) -> tuple[float, float]:
        """E clip(z, ±1) and E clip(z/cut, ±1)² of one covariate."""
        z, weights = self._standard(j, margin), margin.weights
        return float(weights @ np.clip(z, -1, 1)), float(weights @ np.clip(z / self.lens.cut[j], -1, 1) ** 2)

    def wide(self, j: int, margin: Margin) -> tuple[float, Array]:
        """E clip(z/cut, ±1) of covariate j, and its Hermite coefficients."""
        f = np.clip(self._standard(j, margin) / self.lens.cut[j], -1, 1)
        return float(margin.weights @ f), margin.hermite(f)

    def pairs(self, margins: list[Margin], rho: Array) -> tuple[Array, Array]:
        """Expected products of all pairs (i < j) under correlations `rho`, and their slopes."""
        found = [self.wide(j, margin) for j, margin in enumerate(margins)]
        means, coefficients = np.array([mean for mean, _ in found]), np.array([c for _, c in found])
        return product_moments(coefficients, means, rho)

    def points(self, margins: list[Margin], z: Array, latents: Array | None = None) -> Array:
        """(n, p) covariates at the latents, correlated by Fisher's z."""
        return self.copula_points(margins, z, latents)

    def copula_points(self, margins: list[Margin], z: Array, latents: Array | None = None) -> Array:
        """The same, each column the image of its latent."""
        g = (self.latents if latents is None else latents) @ _root(z, self.p).T
        return np.column_stack([margin.at(g[:, j]) for j, margin in enumerate(margins)])

    # -- outcome ---------------------------------------------------------------------------------------------
    def predictor(self, effects: Array, x: Array) -> Array:
        """(n, predictors)."""
        return _predictor(effects, self.lens, x)

    def block(self, effects: Array, x: Array, u: Array) -> Array:
        """(a, 1 + p) mean of features ⊗ u."""
        features = self.outcome.conditional(self.predictor(effects, x)) * self.lens.weights[:-1]
        return features.T @ u / len(x)

    def block_slope(self, effects: Array, x: Array, u: Array) -> tuple[Array, Array]:
        """The block, flat, and its derivative in the flat effects."""
        eta = self.predictor(effects, x)
        base = self.outcome.conditional(eta) * self.lens.weights[:-1]
        standard = np.column_stack([np.ones(len(x)), np.clip(self.lens.standard(x), -CUT, CUT)])
        slopes = []
        for q in range(eta.shape[1]):
            moved = eta.copy()
            moved[:, q] += 1e-5
            change = (self.outcome.conditional(moved) * self.lens.weights[:-1] - base) / 1e-5
            slopes.append([(u * one[:, None]).T @ standard / len(x) for one in change.T])
        slope = np.stack(slopes, axis=2)
        return (base.T @ u / len(x)).ravel(), slope.reshape(base.shape[1] * u.shape[1], -1)

    # -- everything ------------------------------------------------------------------------------------------
    def predict(self, theta: CopulaParameters, score: AnyScore | None, latents: Array | None = None) -> Array:
        """M(θ): every moment of the release, and the score where one is declared."""
        margins = [self.margin(j, theta.shift[j], theta.stretch[j]) for j in range(self.p)]
        singles = np.array([self.singles(j, margin) for j, margin in enumerate(margins)])
        products, _ = self.pairs(margins, np.tanh(theta.z))
        x = self.points(margins, theta.z, latents)
        parts = [singles.T.ravel(), products, self.block(theta.effects, x, self.lens.u(x)).ravel()]
        if score is not None:
            parts.append(score.expected(self.outcome, self.predictor(theta.effects, x), x))
        return np.concatenate(parts)

    def slope(self, theta: CopulaParameters, score: AnyScore | None) -> tuple[Array, Array]:
        """Prediction and its derivative, by the chain rule at fewer points.

        What a point adds to outcome and score hangs on its p covariates and its predictors alone, so it is looked at
        once for each of these, and not for each of the p (p + 3) / 2 parameters that move the covariates.
        """
        exact = self.predict(theta, score)
        first, covariates = 2 * self.p + len(theta.z), len(theta.flat) - theta.effects.size
        margins = [self.margin(j, theta.shift[j], theta.stretch[j]) for j in range(self.p)]
        x = self.points(margins, theta.z, self.coarse)
        out = np.zeros((len(exact), len(theta.flat)))
        self._covariate_slope(theta, margins, out)
        out[first:, :covariates] = self._outward_slope(theta, margins, x, score)
        out[first:, covariates:] = self.effect_slope(theta.effects, x, score)[1]
        return exact, out

    def effect_slope(self, effects: Array, x: Array, score: AnyScore | None) -> tuple[Array, Array]:
        """Moments of the outcome and scores at the points x, flat, and their derivative in the flat effects."""
        value, slope = self.block_slope(effects, x, self.lens.u(x))
        if score is None:
            return value, slope
        eta, standard = self.predictor(effects, x), np.clip(self.lens.standard(x), -CUT, CUT)
        base, *moved = score.each(self.outcome, [eta, *(eta + step for step in 1e-4 * np.eye(eta.shape[1]))], x)
        one = np.column_stack([np.ones(len(x)), standard])
        changes = [(there - base).T @ one / (1e-4 * len(x)) for there in moved]
        return np.concatenate([value, base.mean(axis=0)]), np.vstack([slope, np.hstack(changes)])

    def _covariate_slope(self, theta: CopulaParameters, margins: list[Margin], out: Array) -> None:
        """Derivatives of the moments of the covariates alone, into their rows of `out`."""
        p, rho, step = self.p, np.tanh(theta.z), 2e-3
        found = [self.wide(j, margin) for j, margin in enumerate(margins)]
        means, coefficients = np.array([mean for mean, _ in found]), np.array([c for _, c in found])
        products, along = product_moments(coefficients, means, rho)
        for k, (j, margin) in enumerate(self._moved(theta, np.full(p, step))):
            out[[j, p + j], k] = (np.array(self.singles(j, margin)) - self.singles(j, margins[j])) / step
            there, moved = means.copy(), coefficients.copy()
            there[j], moved[j] = self.wide(j, margin)
            out[2 * p : 2 * p + len(rho), k] = (product_moments(moved, there, rho)[0] - products) / step
        at = 2 * p + np.arange(len(rho))
        out[at, at] = along * (1 - rho**2)

    def _moved(self, theta: CopulaParameters, steps: Array) -> list[tuple[int, Margin]]:
        """Columns with their margins, each shifted by its step, then each stretched by it."""
        shifted = [(j, self.margin(j, theta.shift[j] + step, theta.stretch[j])) for j, step in enumerate(steps)]
        return shifted + [(j, self.margin(j, theta.shift[j], theta.stretch[j] + step)) for j, step in enumerate(steps)]

    def _each(self, effects: Array, x: Array, score: AnyScore | None) -> Array:
        """(m, moments of the outcome and scores) each point's part of their expectations."""
        eta = self.predictor(effects, x)
        features = self.outcome.conditional(eta) * self.lens.weights[:-1]
        block = (features[:, :, None] * self.lens.u(x)[:, None, :]).reshape(len(x), -1)
        return block if score is None else np.hstack([block, *score.each(self.outcome, [eta], x)])

    def _outward_slope(self, theta: CopulaParameters, margins: list[Margin], x: Array, score: AnyScore | None) -> Array:
        """(moments of the outcome and scores, parameters of the covariates) derivatives through the points x."""
        return self._changes(theta.effects, x, list(self._moves(theta, margins, x)), score)

    def _changes(self, effects: Array, x: Array, moves: Sequence[tuple[Array, float]], score: AnyScore | None) -> Array:
        """(moments of the outcome and scores, moves) what they change by, per step, where points x move.

        A step function of the latents has no derivative: points that step are looked at where they step to, and the
        step is one that some points notice.
        """
        coarse = np.array([not margin.smooth for margin in self.margins])
        here, scale, m = self._each(effects, x, score), self.lens.scale, len(x)
        inward = np.array([self._each(effects, x + by, score) - here for by in 1e-4 * np.diag(scale)]) / 1e-4
        inward = inward.reshape(self.p * m, -1)
        columns = []
        for moved, step in moves:
            stepped = (moved[:, coarse] != x[:, coarse]).any(axis=1)
            by = np.where(stepped[:, None], 0.0, (moved - x) / scale)
            change = by.T.ravel() @ inward
            if stepped.any():
                change = change + (self._each(effects, moved[stepped], score) - here[stepped]).sum(axis=0)
            columns.append(change / (step * m))
        return np.array(columns).T

    def _moves(self, theta: CopulaParameters, margins: list[Margin], x: Array) -> Iterator[tuple[Array, float]]:
        """Where the coarse points x move to with each parameter of the covariates, and its step."""
        coarse = np.array([not margin.smooth for margin in margins])
        latents, steps = self.coarse @ _root(theta.z, self.p).T, np.where(coarse, 0.08, 2e-3)
        for j, margin in self._moved(theta, steps):
            moved = x.copy()
            moved[:, j] = margin.at(latents[:, j])
            yield moved, steps[j]
        steps = np.where(np.logical_or.outer(coarse, coarse)[np.triu_indices(self.p, 1)], 0.08, 2e-3)
        for step, unit in zip(steps, np.eye(len(steps)), strict=True):
            yield self.copula_points(margins, theta.z + step * unit, self.coarse), step

    def rows(self, x: Array, y: Array, score: AnyScore | None) -> Array:
        """(n, moments) each record's part of the sums, in the units of `predict`."""
        lens = self.lens
        wide = lens.wide(x)
        i, j = np.triu_indices(self.p, 1)
        features = lens.outcome.features(y) * lens.weights[:-1]
        u = lens.u(x)
        block = (features[:, :, None] * u[:, None, :]).reshape(len(x), -1)
        parts = [np.clip(lens.standard(x), -1, 1), wide**2, wide[:, i] * wide[:, j], block]
        if score is not None:
            parts.append(score.rows(x, y))
        return np.column_stack(parts)


def _predictor(effects: Array, lens: Lens, x: Array) -> Array:
    standard = np.clip(lens.standard(x), -CUT, CUT)
    return np.asarray(effects[:, 0] + standard @ effects[:, 1:].T)


def _root(z: Array, p: int) -> Array:
    """A root of the latent correlation matrix; moved to the nearest that is one, where noise made it none."""
    matrix = np.eye(p)
    i, j = np.triu_indices(p, 1)
    matrix[i, j] = matrix[j, i] = np.tanh(z)
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < _LEAST_EIGENVALUE:
        matrix = (vectors * np.maximum(values, _LEAST_EIGENVALUE)) @ vectors.T
        size = np.sqrt(np.diag(matrix))
        matrix = matrix / np.outer(size, size)
    return np.asarray(np.linalg.cholesky(matrix))


class Score:
    """Block 4's summand of a record: the influences of the declared coefficients at a pilot fit, clipped jointly.

    The influences stay those at the pilot fit when an expectation is taken under a law that has moved since.
    """

    def __init__(self, model: CopulaModel, theta: CopulaParameters, n: int) -> None:
        spec = model.design.spec
        self.lens, self.outcome, self.pilot = model.lens, model.outcome, theta.effects.copy()
        margins = [model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(model.p)]
        x = model.points(margins, theta.z, model.coarse)
        eta, standard = _predictor(self.pilot, self.lens, x), self._standard(x)
        self.columns = [spec.covariates.index(name) for name in spec.declared]
        directions = [direction(self.outcome, eta, standard, j) for j in self.columns]
        self._along = np.array([to.along / to.spread for to in directions])
        self._means = np.array([to.means / to.spread for to in directions])
        noise = sigma_of(spec, 3) / (grids_of(spec)[3] * score_reach(len(self.columns), spec.score) * math.sqrt(n))
        chance, cases = self.outcome.cases(eta)
        self.cut = efficient_cut(self._influences(cases, x), chance / len(x), noise, spec.score_clip)

    def _standard(self, x: Array) -> Array:
        return np.clip(self.lens.standard(x), -CUT, CUT)

    def _influences(self, y: Array, x: Array) -> Array:
        """(declared, …) of each record, in standard deviations of its direction."""
        eta, standard = _predictor(self.pilot, self.lens, x), self._standard(x)
        return self.outcome.influence(y, eta, self._along @ standard.T, self._means)

    def rows(self, x: Array, y: Array) -> Array:
        """(n, declared), each of length 1 at most."""
        return held(self._influences(y, x), self.cut).T / self.cut

    def each(self, law: Outcome, etas: Sequence[Array], x: Array) -> list[Array]:
        """(m, declared) expectations at the points x, where outcomes follow `law`, with each of linear predictors."""
        out: list[Array] = []
        before: Array | None = None
        for eta in etas:
            chance, cases = law.cases(eta)
            # What a record adds hangs on its outcome and covariates, and on no predictor of the law.
            if before is None or not np.array_equal(before, cases):
                influences = self._influences(cases, x)
                share, before = kept_share(influences, self.cut) / self.cut, cases
            out.append(np.einsum("dmc,mc->md", influences, share * chance))
        return out

    def expected(self, law: Outcome, eta: Array, x: Array) -> Array:
        """(declared,) mean over the points of `each`."""
        return np.asarray(self.each(law, [eta], x)[0].mean(axis=0))


class ResidualScore:
    """Block 4's summand in earlier plans: the model's residual times the direction, each coefficient clipped alone."""

    def __init__(self, model: CopulaModel, theta: CopulaParameters) -> None:
        spec = model.design.spec
        self.model, self.pilot = model, theta.effects.copy()
        self.columns = [spec.covariates.index(name) for name in spec.declared]
        margins = [model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(model.p)]
        x = model.points(margins, theta.z)
        weight = np.maximum(model.outcome.information(model.predictor(self.pilot, x)), 1e-9)
        standard = np.clip(model.lens.standard(x), -CUT, CUT)
        self.directions: list[Array] = []
        spreads = []
        for j in self.columns:
            others = np.column_stack([np.ones(len(x)), np.delete(standard, j, axis=1)])
            gram = (others * weight[:, None]).T @ others
            ridge = 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram))
            coefficients = np.linalg.solve(gram + ridge, (others * weight[:, None]).T @ standard[:, j])
            along = np.insert(-coefficients[1:], j, 1.0)
            self.directions.append(np.append(-coefficients[0], along))
            left = standard[:, j] - others @ coefficients
            spreads.append(math.sqrt(max(float(weight @ left**2 / weight.sum()), 1e-6)))
        self.cut = spec.score_clip * np.array(spreads)

    def along(self, x: Array) -> Array:
        """(n, declared) clip(a(x) / c, ±1)."""
        standard = np.clip(self.model.lens.standard(x), -CUT, CUT)
        raw = np.column_stack([d[0] + standard @ d[1:] for d in self.directions])
        return np.clip(raw / self.cut, -1, 1)

    def rows(self, x: Array, y: Array) -> Array:
        """(n, declared), each in [-1, 1]."""
        residual = self.model.outcome.residual(y, self.model.predictor(self.pilot, x))
        return np.asarray(residual[:, None] * self.along(x))

    def each(self, law: Outcome, etas: Sequence[Array], x: Array) -> list[Array]:
        """(m, declared) expectations at the points x under each of linear predictors; of counts, under their law."""
        outcome = law if isinstance(law, Count) else self.model.outcome
        pilot, along = self.model.predictor(self.pilot, x), self.along(x)
        return [outcome.expected_residual(eta, pilot)[:, None] * along for eta in etas]

    def expected(self, law: Outcome, eta: Array, x: Array) -> Array:
        """(declared,) mean over the points of `each`."""
        return np.asarray(self.each(law, [eta], x)[0].mean(axis=0))


AnyScore = Score | ResidualScore


@dataclass(frozen=True, kw_only=True)
class FittedCopula:
    """Parameters that a release gives, and `gain`, their derivative in its figures, whose noise has these variances."""

    model: CopulaModel
    theta: CopulaParameters
    gain: Array
    noise: Array
    score: AnyScore | None


def observations(release: MomentsRelease, lens: Lens, scored: AnyScore | None) -> tuple[Array, Array]:
    """The moments in the units of `CopulaModel.predict`, and the variances of their noise."""
    spec, n, p = lens.design.spec, release.n, lens.design.p
    grids = grids_of(spec)
    block = release.moments / n
    block_sd = sigma_of(spec, 1) / (grids[1] * n)
    constant = lens.weights[-1] * lens.gains[1:]
    products = release.products * grids[2] / n
    product_sd = sigma_of(spec, 2) / n
    values = [block[-1, 1:] / constant, products[:p] / SQUARE, products[p:], block[:-1].ravel()]
    noise = [
        block_sd / constant,
        np.full(p, product_sd / SQUARE),
        np.full(len(products) - p, product_sd),
        np.full(block[:-1].size, block_sd),
    ]
    if scored is not None:
        reach = score_reach(len(release.score), spec.score)
        values.append(release.score / (reach * n))
        noise.append(np.full(len(release.score), sigma_of(spec, 3) / (grids[3] * reach * n)))
    return np.concatenate(values), np.concatenate(noise) ** 2


def precisions(model: CopulaModel) -> Array:
    """Precisions of the weak prior, flat; its means are 0."""
    p = model.p
    # A binary column is in units of half its difference, not of its standard deviation.
    spread = np.array([max(m.sd, 1e-9) / s for m, s in zip(model.margins, model.lens.scale, strict=True)])
    tilt = np.array([1.0 if margin.smooth else 4.0 for margin in model.margins])
    effects = np.tile(np.r_[_PRIOR_LEVEL**-2, (np.clip(spread, 0.1, 2) / _PRIOR_EFFECT) ** 2], model.outcome.predictors)
    return np.concatenate(
        [
            (_PRIOR_SHIFT * tilt) ** -2.0,
            (_PRIOR_STRETCH * tilt) ** -2.0,
            np.full(p * (p - 1) // 2, _PRIOR_Z**-2),
            effects,
        ]
    )


def _solve(release: MomentsRelease, design: Design, points: int) -> FittedCopula:
    """Blocks 1 to 3: margins and correlations one by one, effects by Gauss-Newton, then one joint step."""
    model = CopulaModel(design, design.lens(release), points)
    observed, noise = observations(release, model.lens, None)
    precision, p = precisions(model), design.p
    pairs = p * (p - 1) // 2
    shift, stretch = np.zeros(p), np.zeros(p)
    for j in range(p):
        shift[j], stretch[j] = moved(model, j, observed[[j, p + j]], noise[[j, p + j]], precision[[j, p + j]])
    margins = [model.margin(j, shift[j], stretch[j]) for j in range(p)]
    z, target, variance = np.zeros(pairs), observed[2 * p : 2 * p + pairs], noise[2 * p : 2 * p + pairs]
    for _ in range(8):
        rho = np.tanh(z)
        value, slope = model.pairs(margins, rho)
        slope = slope * (1 - rho**2)
        step = slope * (target - value) / variance - z * _PRIOR_Z**-2
        z = np.clip(z + np.clip(step / (slope**2 / variance + _PRIOR_Z**-2), -0.5, 0.5), -1.8, 1.8)
    x = model.points(margins, z)
    u = model.lens.u(x)
    effects = np.zeros((model.outcome.predictors, 1 + p))
    inner, inner_noise, prior = observed[2 * p + pairs :], noise[2 * p + pairs :], precision[2 * p + pairs :]
    for _ in range(8):
        value, slope = model.block_slope(effects, x, u)
        step = _step(slope, inner - value, inner_noise, prior, effects.ravel(), 0.7)
        effects = effects + step.reshape(effects.shape)
        if isinstance(model.outcome, LinearOutcome):
            model.outcome = model.outcome.beside(model.predictor(effects, x))
        everybody = model.lens.outcome
        if isinstance(model.outcome, Survival) and isinstance(everybody, Survival):
            # Noise makes effects larger than they are; what it may have added to them thins nobody out.
            noisy = np.diag(np.linalg.inv((slope.T / inner_noise) @ slope + np.diag(prior))).reshape(effects.shape)
            sure = effects * np.maximum(1 - noisy / np.maximum(effects**2, 1e-12), 0.0)
            model.outcome = model.outcome.among(model.predictor(sure, x), everybody)
        if float(np.abs(step).max()) < 1e-3:
            break
    theta = CopulaParameters(shift, stretch, z, effects)
    return joint(FittedCopula(model=model, theta=theta, gain=np.empty(0), noise=noise, score=None), observed, 1)


def doubted(model: CopulaModel, slope: Array, noise: Array, score: AnyScore | None) -> Array:
    """Variances by which figures are weighed: of a coefficient with a score, the moment counts as far as the model.

    The score is the regression's own, the moment of outcome and covariate is read through the model of everything.
    """
    if not isinstance(score, Score):
        return noise
    p, out = model.p, noise.copy()
    first, effects = 2 * p + p * (p - 1) // 2, slope.shape[1] - model.outcome.predictors * (1 + p)
    for j in [j for j in score.columns if j not in model.counted]:
        out[first + 1 + j] += (slope[first + 1 + j, effects + 1 + j] * _DOUBT) ** 2
    return out


def joint(start: FittedCopula, observed: Array, steps: int) -> FittedCopula:
    """All parameters after so many joint steps towards what was observed, held by the weak prior."""
    model, theta, noise, score = start.model, start.theta, start.noise, start.score
    precision, gain = precisions(model), start.gain
    for _ in range(steps):
        value, slope = model.slope(theta, score)
        weighted = slope.T / doubted(model, slope, noise, score)
        hessian = weighted @ slope + np.diag(precision)
        gain = np.asarray(np.linalg.solve(hessian, weighted), dtype=float)
        step = gain @ (observed - value) - np.linalg.solve(hessian, precision * theta.flat)
        theta = theta.like(theta.flat + np.clip(step, -0.4, 0.4))
    return replace(start, theta=theta, gain=gain)


def _step(slope: Array, residual: Array, noise: Array, precision: Array, at: Array, most: float) -> Array:
    weighted = slope.T / noise
    step = np.linalg.solve(weighted @ slope + np.diag(precision), weighted @ residual - precision * at)
    return np.clip(step, -most, most)


def moved(model: CopulaModel, j: int, target: Array, noise: Array, precision: Array) -> tuple[float, float]:
    """(shift, stretch) of a column's margin that its two sums ask for, held by the prior.

    Args:
        model: before the column is moved.
        j: the column.
        target: (2,) what the model's two sums of the column are to be.
        noise: (2,) variances of these.
        precision: (2,) of the prior of shift and stretch, whose means are 0.
    """
    at = np.zeros(2)
    for _ in range(6):
        value = np.array(model.singles(j, model.margin(j, at[0], at[1])))
        slope = np.empty((2, 2))
        for k in range(2):
            there = at + 1e-3 * np.eye(2)[k]
            slope[:, k] = (np.array(model.singles(j, model.margin(j, there[0], there[1]))) - value) / 1e-3
        step = _step(slope, target - value, noise, precision, at, 0.4)
        at = at + step
        if float(np.abs(step).max()) < 1e-5:
            break
    return float(at[0]), float(at[1])


@lru_cache(maxsize=2)
def _solved(blocks: bytes, design: Design, points: int) -> tuple[FittedCopula, AnyScore | None]:
    """Blocks 1 to 3 and where block 4 looks; kept, because a site asks for it and then fits the same release."""
    release = read(blocks, design)
    fitted = _solve(release, design, points)
    if not design.spec.declared:
        return fitted, None
    if design.spec.score == "residual":
        return fitted, ResidualScore(fitted.model, fitted.theta)
    return fitted, Score(fitted.model, fitted.theta, release.n)


def _first_blocks(release: MomentsRelease) -> bytes:
    return replace(release, score=np.zeros_like(release.score)).to_bytes()


def pilot(release: MomentsRelease, design: Design, points: int = POINTS) -> AnyScore:
    """Score of the declared coefficients at the pilot estimate: a function of blocks 1 to 3 alone.

    Raises: ParameterError, if no coefficient is declared.
    """
    score = _solved(_first_blocks(release), design, points)[1]
    if score is None:
        raise ParameterError("a coefficient must be declared to have a score")
    return score


def complete(release: MomentsRelease, design: Design, points: int = POINTS) -> FittedCopula:
    """The parameters that all blocks give, the score among them where one is declared."""
    fitted, score = _solved(_first_blocks(release), design, points)
    if score is None:
        return fitted
    observed, noise = observations(release, fitted.model.lens, score)
    return joint(replace(fitted, noise=noise, score=score), observed, 2)
