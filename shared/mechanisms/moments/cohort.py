r"""From one noisy moments release to a cohort: effects with honest variances, and synthetic rows. Free of budget.

The model and its solution stand in `shared.mechanisms.moments.copula`. With K = dθ/dM its derivative and V the known
covariance of the privacy noise,

.. math:: Var \hat\theta = K (C/n + V) K', \qquad C = \text{covariance of one record's part of the sums},

C from rows drawn from the model. The first part is the variance of sampling patients, the second that of the noise.
Where a site has few events, or few records beside the noise, the linearisation is too optimistic; there a parametric
bootstrap runs the whole release and fit again on synthetic tables.

**Nominal covariates.** Levels are binary columns to the model, and no correlations of latents make these exclude each
other: rows of the model would be at two levels, or at none, far too often, at any ε. So a row's other covariates are
drawn from the copula, its level by logits that are linear in them, and its outcome with that one level (`_Levels`). The
logits are those by which every level has its released share, and its released products with other covariates; the
effects those by which such rows have the released moments of the outcome, and the scores.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.estimands.answer import Estimate, Origin, estimate_drawn
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised, least_squares
from shared.estimands.questions import Estimand, Scale
from shared.mechanisms.moments.copula import (
    AnyScore,
    CopulaModel,
    CopulaParameters,
    doubted,
    observations,
    precisions,
)
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.factors import LEVELS_REACH, folded, level_chances, level_coefficients, with_levels
from shared.mechanisms.moments.histograms import Tail
from shared.mechanisms.moments.margins import Margin
from shared.mechanisms.moments.noise import Design, MomentsRelease
from shared.mechanisms.moments.outcomes import LinearOutcome
from shared.mechanisms.moments.spec import sigma_of
from shared.plans.encoding import Encoder, scaled

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = ["FEW_EVENTS", "Cohort", "answer_from_rows", "drawn", "fit"]

special = deferred("scipy.special")

Array = NDArray[np.float64]

FEW_EVENTS = 150
"""Below this many events the linearised variance is too small, and the release is bootstrapped."""
_DROWNED = 25.0
"""So it is with fewer records than this many standard deviations of the noise on a histogram's cell: then the
histograms, which everything is looked at through, are mostly noise, and to first order they count as known."""
_ROWS = 3000
_FEWER = 1024
"""Points of a refit in the bootstrap. What the coarser mean has wrong it has wrong alike in each, and not in their
spread."""
_TRIES, _WHOLE, _MET = 10, 2, 2e-4
"""Tables drawn until the regression on them gives the effects, those whose whole gap is stepped over, and how near is
near, per scale of a covariate. A few events more or less are as much as a small step moves, so that steps go to and fro
at a small site: the nearest table is kept."""

_DROWNED_TAIL = (
    "noise hides the far values of {}, of which this is made as well: one standard deviation of it moves this by more "
    "than an eighth of the column's range (ask the column in bands, plan it as its logarithm or within narrower "
    "bounds, or a larger ε)"
)


_PRIOR_LEVELS = 2.0
"""Standard deviation of the weak prior on how the log odds of a level change, per scale of a covariate."""
_ROUNDS, _NEAR = 12, 1e-4
"""Steps for the effects of rows with one level each, and how small the last is."""


# -- fitting -----------------------------------------------------------------------------------------------------


class _BootstrapNoise:
    """Noise on synthetic tables: repeatable and in floating point, hence good for a bootstrap and for no record."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def lattice_gaussian_steps(self, sigma: float, shape: int | tuple[int, ...], grid: float) -> Any:
        return np.rint(self.generator.normal(0.0, sigma / grid, shape)).astype(np.int64)


def fit(
    release: MomentsRelease,
    design: Design,
    *,
    rng: Noise | np.random.Generator | None = None,
    bootstrap: int = 40,
) -> Cohort:
    """Fit a cohort to a release.

    Args:
        rng: draws the parametric bootstrap (no guarantee rests on it); None: never bootstrap.
        bootstrap: synthetic releases where there are `few` patients.
    """
    fitted = with_levels(release, design)
    model, theta = fitted.model, fitted.theta
    # Public seed: these rows only stand for the model in an expectation.
    x, y = drawn(model, theta, np.random.default_rng(20260101).random((_ROWS, design.p + 3)))
    rows = model.rows(x, y, fitted.score)
    sampling = fitted.gain @ np.cov(rows.T) @ fitted.gain.T / release.n
    privacy = (fitted.gain * fitted.noise) @ fitted.gain.T
    index = slice(len(theta.flat) - theta.effects.size + 1, len(theta.flat) - theta.effects.size + 1 + design.p)
    unit = model.outcome.unit / model.lens.scale
    cohort = Cohort(
        design=design,
        n=release.n,
        model=model,
        theta=theta,
        sampling=sampling[index, index] * np.outer(unit, unit),
        privacy=privacy[index, index] * np.outer(unit, unit),
        wobble=fitted.gain * np.sqrt(fitted.noise),
        bootstrapped=0,
        figures=_Figures.of(release, model, theta, fitted.score) if design.factors else None,
    )
    if rng is None or not cohort.few:
        return cohort
    return cohort.bootstrap(rng, bootstrap)


# -- drawing -----------------------------------------------------------------------------------------------------
def drawn(model: CopulaModel, theta: CopulaParameters, uniforms: Array) -> tuple[Array, Array]:
    """Rows from the model: (n, p) and (n, 1 or 2). uniforms: (n, p + 3)."""
    inside = np.clip(uniforms, 1e-12, 1 - 1e-12)
    margins = [model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(model.p)]
    x = model.points(margins, theta.z, special.ndtri(inside[:, : model.p]))
    y = model.outcome.draw(model.predictor(theta.effects, x), inside[:, model.p :])
    return x, y


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """What rows with one level of each nominal column are drawn by: the released figures beside the fit.

    Args:
        observed, noise: (moments,) in the units of `CopulaModel.predict`, and standard deviations of their noise.
        counted, counts_noise: (p,) shares that histograms give of binary columns, and the standard deviation of theirs.
        wide: (p,) means of the covariates as block 3 has them, by the fit.
        binary: (p,) which covariates have two values.
        score: of the declared coefficients.
        n: number of records.
        known: covariates, by their places, whose effects these figures do not tell.
        widened: how many times the noise another draw has, by a bootstrap.
    """

    observed: Array
    noise: Array
    counted: Array
    counts_noise: float
    wide: Array
    binary: NDArray[np.bool_]
    score: AnyScore | None
    n: int
    known: tuple[int, ...] = ()
    widened: float = 1.0

    @classmethod
    def of(
        cls, release: MomentsRelease, model: CopulaModel, theta: CopulaParameters, score: AnyScore | None
    ) -> _Figures:
        """Of a release, and the fit to it."""
        observed, noise = observations(release, model.lens, score)
        tables = zip(release.histograms[: model.p], model.binary, strict=True)
        return cls(
            observed=observed,
            noise=np.sqrt(noise),
            counted=np.array([(1 + (table[1] - table[0]) / release.n) / 2 if two else 0.5 for table, two in tables]),
            counts_noise=sigma_of(model.design.spec, 0) / (math.sqrt(2) * release.n),
            wide=_wide_means(model, theta),
            binary=model.binary,
            score=score,
            n=release.n,
        )

    def redrawn(self, rng: np.random.Generator, noise: Array, wide: Array) -> _Figures:
        """These as another draw of the noise would have them: `noise` of the moments, in standard deviations of it."""
        counted = self.counted + self.widened * self.counts_noise * rng.standard_normal(len(self.counted))
        return replace(self, observed=self.observed + self.widened * self.noise * noise, counted=counted, wide=wide)

    @property
    def means(self) -> Array:
        """(p,) of the covariates as block 3 has them, in [-1, 1]."""
        p, weights = len(self.wide), (self.noise[: len(self.wide)] ** -2.0, (2 * self.counts_noise) ** -2.0)
        two = (weights[0] * self.observed[:p] + weights[1] * (2 * self.counted - 1)) / (weights[0] + weights[1])
        return np.where(self.binary, np.clip(two, -1, 1), self.wide)

    def shares(self, columns: Sequence[int]) -> Array:
        """Shares of the levels with these columns, positive and with something left for the first."""
        least = 0.5 / self.n
        found = np.clip((self.means[list(columns)] + 1) / 2, least, 1.0)
        return np.asarray(found * min(1.0, (1 - least) / float(found.sum())))

    def together(self, columns: Sequence[int], others: Sequence[int]) -> tuple[Array, Array]:
        """(levels, others) covariances of having a level and other covariates, and variances of their noise."""
        p, means = len(self.wide), self.means
        products, noise = np.zeros((p, p)), np.zeros((p, p))
        i, j = np.triu_indices(p, 1)
        pairs = slice(2 * p, 2 * p + len(i))
        products[i, j] = products[j, i] = self.observed[pairs]
        noise[i, j] = noise[j, i] = self.noise[pairs] ** 2
        at = np.ix_(list(columns), list(others))
        return (products[at] - np.outer(means[list(columns)], means[list(others)])) / 2, noise[at] / 4


def _wide_means(model: CopulaModel, theta: CopulaParameters) -> Array:
    """(p,) means of the covariates as block 3 has them."""
    return np.array([model.wide(j, model.margin(j, theta.shift[j], theta.stretch[j]))[0] for j in range(model.p)])


class _Levels:
    """A cohort's rows, each with one level of every nominal column: the module's text has the law.

    Several nominal columns are drawn one after the other, each beside those before it.
    """

    def __init__(self, cohort: Cohort, figures: _Figures) -> None:
        self.model, self.theta = copy.copy(cohort.model), cohort.theta
        spec, theta, p = cohort.design.spec, cohort.theta, self.model.p
        self._columns = [[spec.covariates.index(name) for name in factor.names] for factor in cohort.design.factors]
        binary = list(itertools.chain(*self._columns))
        self._others = [j for j in range(p) if j not in binary]
        i, j = np.triu_indices(p, 1)
        self._z = np.where(np.isin(i, binary) | np.isin(j, binary), 0.0, theta.z)
        self._margins = [self.model.margin(j, theta.shift[j], theta.stretch[j]) for j in range(p)]
        self._coefficients: list[Array] = []
        latents = self.model.latents
        x = self.model.copula_points(self._margins, self._z, latents)
        beside = list(self._others)
        for own in self._columns:
            wide = self.model.lens.wide(x)[:, beside]
            shares, (apart, noise) = figures.shares(own), figures.together(own, beside)
            products = apart + np.outer(shares, wide.mean(axis=0))
            spread = np.outer(shares * (1 - shares), np.maximum(wide.var(axis=0), 1e-6))
            ridge = (noise / spread + 1 / figures.n) / _PRIOR_LEVELS**2
            found = level_coefficients(self._seen(x, beside), wide, shares, products, ridge)
            self._coefficients.append(found)
            self._put(x, own, found, beside, latents)
            beside += own
        self.effects = self._solved(x, figures)

    def _seen(self, x: Array, columns: Sequence[int]) -> Array:
        """(n, columns) covariates as the logits have them."""
        return np.clip(self.model.lens.standard(x)[:, list(columns)], -LEVELS_REACH, LEVELS_REACH)

    def _put(self, x: Array, own: Sequence[int], found: Array, beside: Sequence[int], latents: Array) -> None:
        """Put each row of x into one level of the factor with these columns, by the latent of its first one."""
        chances = level_chances(found, self._seen(x, beside))
        level = (special.ndtr(latents[:, own[0]])[:, None] > np.cumsum(chances, axis=1)[:, :-1]).sum(axis=1)
        x[:, list(own)] = level[:, None] == 1 + np.arange(len(own))

    def points(self, latents: Array) -> Array:
        """(n, p) covariates at the latents."""
        x, beside = self.model.copula_points(self._margins, self._z, latents), list(self._others)
        for own, found in zip(self._columns, self._coefficients, strict=True):
            self._put(x, own, found, beside, latents)
            beside += own
        return x

    def _solved(self, x: Array, figures: _Figures) -> Array:
        """(predictors, 1 + p) effects at which rows have the outcome's moments and scores, held by the prior."""
        model, effects = self.model, self.theta.effects.copy()
        first = len(figures.observed) - (model.lens.weights.size - 1) * (1 + model.p)
        first -= 0 if figures.score is None else len(figures.score.columns)
        target, precision = figures.observed[first:], precisions(model)[-effects.size :]
        free = np.ones(effects.shape, dtype=bool)
        free[0, [1 + k for k in figures.known]] = False
        for _ in range(_ROUNDS):
            if isinstance(model.outcome, LinearOutcome):
                model.outcome = model.outcome.beside(model.predictor(effects, x))
            value, slope = model.effect_slope(effects, x, figures.score)
            whole = np.zeros((len(figures.observed), len(self.theta.flat)))
            whole[first:, -effects.size :] = slope
            weights = 1 / doubted(model, whole, figures.noise**2, figures.score)[first:]
            slope, at = slope[:, free.ravel()], effects[free]
            weighted, own = slope.T * weights, precision[free.ravel()]
            step = np.linalg.solve(weighted @ slope + np.diag(own), weighted @ (target - value) - own * at)
            effects[free] += np.clip(step, -0.7, 0.7)
            if float(np.abs(step).max()) < _NEAR:
                break
        return effects

    def draw(self, effects: Array, uniforms: Array) -> tuple[Array, Array]:
        """Rows as of `drawn`, at these effects."""
        inside, p = np.clip(uniforms, 1e-12, 1 - 1e-12), self.model.p
        x = self.points(special.ndtri(inside[:, :p]))
        return x, self.model.outcome.draw(self.model.predictor(effects, x), inside[:, p:])


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """A site as its release tells it.

    Args:
        n: public number of records.
        sampling, privacy: (p, p) covariances of `effects`: from sampling patients, from the noise.
        wobble: (parameters, figures) what one standard deviation of each figure's noise moves the parameters by.
        bootstrapped: releases in the bootstrap behind the covariances; 0: the linearised formula.
        figures: what levels of nominal covariates are drawn by; None where there are none.
    """

    design: Design
    n: int
    model: CopulaModel
    theta: CopulaParameters
    sampling: Array
    privacy: Array
    wobble: Array
    bootstrapped: int
    figures: _Figures | None = None

    @property
    def effects(self) -> Array:
        """(p,) adjusted effects per unit of each covariate: log hazard ratio, log odds ratio, log rate ratio, slope."""
        return np.asarray(self.theta.effects[0, 1:] * self.model.outcome.unit / self.model.lens.scale)

    @cached_property
    def events(self) -> float:
        """Number of events (cases; else records) in the release."""
        outcome = self.model.outcome
        margins = [self.model.margin(j, self.theta.shift[j], self.theta.stretch[j]) for j in range(self.design.p)]
        x = self.model.points(margins, self.theta.z)
        mean = float(outcome.conditional(self.model.predictor(self.theta.effects, x))[:, 0].mean()) + 0.5
        if self.design.spec.outcome == "survival":
            return self.n * mean
        if self.design.spec.outcome == "binary":
            return self.n * min(mean, 1 - mean)
        return float(self.n)

    @property
    def few(self) -> bool:
        """True if there are too few patients for the linearised variance: few events, or few beside the noise."""
        return self.events < FEW_EVENTS or self.n < _DROWNED * sigma_of(self.design.spec, 0)

    def bootstrap(self, rng: Noise | np.random.Generator, times: int = 40) -> Cohort:
        """With covariances from `times` releases and fits of synthetic tables, never below the linearised ones.

        The spread is a median absolute deviation: a site far too small for its ε now and then sends a fit to the edge
        of the prior. Both parts keep their share of the whole.
        """
        source = cast(Noise, _BootstrapNoise(rng)) if isinstance(rng, np.random.Generator) else rng
        draws = np.random.default_rng(source.generator.integers(2**63))
        names = (*self.design.spec.covariates, *self.design.spec.responses)
        found = []
        for _ in range(times):
            x, y = drawn(self.model, self.theta, draws.random((self.n, self.design.p + 3)))
            table = pd.DataFrame(np.column_stack([x, y]), columns=list(names))
            redrawn = moments(table, self.design, source, points=_FEWER)
            refit = with_levels(redrawn, self.design, _FEWER)
            found.append(refit.theta.effects[0, 1:] * refit.model.outcome.unit / refit.model.lens.scale)
        effects = np.array(found)
        spread = 1.4826 * np.median(np.abs(effects - np.median(effects, axis=0)), axis=0)
        total = np.sqrt(np.diag(self.sampling + self.privacy))
        factor = np.maximum(spread / np.maximum(total, 1e-300), 1.0)
        stretch = np.outer(factor, factor)
        return replace(
            self,
            sampling=self.sampling * stretch,
            privacy=self.privacy * stretch,
            wobble=self.wobble * factor.max(),
            bootstrapped=times,
            figures=self.figures and replace(self.figures, widened=float(factor.max())),
        )

    def with_effect(self, column: int, effect: float) -> Cohort:
        """This cohort at another adjusted effect of one covariate, per unit of it."""
        effects = self.theta.effects.copy()
        effects[0, 1 + column] = effect / (self.model.outcome.unit / self.model.lens.scale)[column]
        figures = self.figures and replace(self.figures, known=(*self.figures.known, column))
        return replace(self, theta=replace(self.theta, effects=effects), figures=figures)

    def with_margins(self, margins: Mapping[int, Margin]) -> Cohort:
        """This cohort with other distributions of some covariates, by their places, which its sums do not move."""
        shift, stretch, model = self.theta.shift.copy(), self.theta.stretch.copy(), self.model
        for column, margin in margins.items():
            shift[column] = stretch[column] = 0.0
            model = model.with_margin(column, margin)
        return replace(self, model=model, theta=replace(self.theta, shift=shift, stretch=stretch))

    def redrawn(self, rng: np.random.Generator) -> Cohort:
        """This cohort with its parameters moved as another draw of the release's noise would have moved them."""
        noise = np.asarray(rng.standard_normal(self.wobble.shape[1]))
        theta = self.theta.like(self.theta.flat + self.wobble @ noise)
        if self.figures is None:
            return replace(self, theta=theta)
        return replace(self, theta=theta, figures=self.figures.redrawn(rng, noise, _wide_means(self.model, theta)))

    def estimates(self, *, study: str, site: str, wave: int, receipts: tuple[str, ...] = ()) -> tuple[Estimate, ...]:
        """One `Estimate` per covariate, with its total variance in its two parts."""
        scale: Scale = "identity" if self.design.spec.outcome == "linear" else "log"
        return tuple(
            Estimate(
                study=study,
                site=site,
                wave=wave,
                term=name,
                yi=float(self.effects[j]),
                vi_sampling=float(self.sampling[j, j]),
                vi_privacy=float(self.privacy[j, j]),
                n=self.n,
                scale=scale,
                receipts=receipts,
            )
            for j, name in enumerate(self.design.spec.covariates)
        )

    def rows(self, rng: np.random.Generator, *, n: int | None = None, calibrated: bool = True) -> pd.DataFrame:
        """Synthetic rows with the study's columns, types, levels and bounds.

        Args:
            n: how many; None: as many as there were records.
            calibrated: the effects behind the draw are moved until the same regression on the rows gives `effects`:
                it takes the sampling noise of the draw out of them.
        Raises: ParameterError, if n is not positive.
        """
        count = self.n if n is None else n
        if count < 1:
            raise ParameterError("a synthetic table must have at least one row", given=f"{count}")
        uniforms = rng.random((count, self.design.p + 3))
        levels, unit = self._levels, self.model.outcome.unit / self.model.lens.scale
        effects = self.theta.effects if levels is None else levels.effects
        wanted = self.effects if levels is None else effects[0, 1:] * unit

        def made(effects: Array) -> pd.DataFrame:
            if levels is not None:
                return self._decoded(*levels.draw(effects, uniforms))
            return self._decoded(*drawn(self.model, replace(self.theta, effects=effects), uniforms))

        table = made(effects)
        best, nearest = table, math.inf
        for done in range(_TRIES if calibrated else 0):
            found = self._refitted(table)
            if found is None:
                break
            gap = (wanted - found) / unit
            away = float(np.abs(gap).max())
            if away < nearest:
                best, nearest = table, away
            if nearest < _MET:
                break
            effects = effects.copy()
            effects[0, 1:] += np.clip(gap, -0.3, 0.3) * (1.0 if done < _WHOLE else 0.5)
            table = made(effects)
        return folded(best, self.design.factors)

    @cached_property
    def _levels(self) -> _Levels | None:
        return None if self.figures is None else _Levels(self, self.figures)

    def _decoded(self, x: Array, y: Array) -> pd.DataFrame:
        values = dict(zip((*self.design.spec.covariates, *self.design.spec.responses), (*x.T, *y.T), strict=True))
        encoder = Encoder(dictionary=self.design.dictionary)
        columns = []
        for column in self.design.dictionary.released:
            value = np.asarray(values[column.name], dtype=np.float64)
            if column.kind in ("continuous", "time"):
                lower, upper = column.span
                columns.append(scaled(column, np.clip((value - lower) / (upper - lower), 0, 1)))
            elif column.kind == "integer":
                columns.append(np.rint(value) - column.span[0] + 0.5)
            else:
                columns.append(np.rint(value) + 0.5)
        return encoder.decode(np.column_stack(columns))

    def _refitted(self, table: pd.DataFrame) -> Array | None:
        """The same regression on rows; None where it has no answer."""
        spec = self.design.spec
        checked = self.design.dictionary.check(self._with_person(table))
        x, y = self.design.matrices(checked)
        standard = (x - x.mean(axis=0)) / self.model.lens.scale
        if np.linalg.matrix_rank(standard) < self.design.p:
            return None
        if spec.outcome == "survival":
            found = cox(standard, SurvivalOutcome(time=y[:, 0], event=y[:, 1]))
            beta = found.beta
        else:
            with_one = np.column_stack([np.ones(len(x)), standard])
            ones = np.ones(len(x))
            if spec.outcome == "linear":
                found = least_squares(with_one, y[:, 0], ones)
            else:
                family = FAMILIES["logistic" if spec.outcome == "binary" else "poisson"]
                found = generalised(with_one, y[:, 0], family, ones, 0 * ones)
            beta = found.beta[1:]
        if not found.converged or not np.isfinite(beta).all():
            return None
        return np.asarray(beta / self.model.lens.scale)

    def _with_person(self, table: pd.DataFrame) -> pd.DataFrame:
        person = self.design.dictionary.person
        return table if person is None else table.assign(**{person: [str(k) for k in range(len(table))]})


# -- answers -----------------------------------------------------------------------------------------------------
def answer_from_rows(
    pairs: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
    steps: Sequence[tuple[Tail, Sequence[pd.DataFrame]]],
    persons: int,
    question: Estimand,
    levels: Mapping[str, Any],
    origin: Origin,
    warnings: tuple[str, ...],
) -> list[Estimate]:
    """An answer of synthetic rows, term by term, by the rule of `shared.mechanisms.moments.plan`.

    Args:
        pairs: tables that share their uniforms: as released, and with the noise drawn again.
        steps: each tail that noise hides, and tables after one step of it, by the uniforms of the first pairs.
        persons: at the site. question: what is asked.
        levels: of the columns that have some. origin: of the estimates. warnings: that each of them carries.
    """

    def rows_of(table: pd.DataFrame) -> dict[str, Estimate]:
        return {row.term: row for row in estimate_drawn(table, question, levels=levels, **origin)}

    found = [tuple(map(rows_of, pair)) for pair in pairs]
    moved_by = [[rows_of(table) for table in tables] for _, tables in steps]
    out = []
    for term, first in found[0][0].items():
        drawn = [(one.get(term), other.get(term)) for one, other in found]
        both = [(a, b) for a, b in drawn if a is not None and b is not None and a.yi is not None and b.yi is not None]
        after = [one.get(term) for several in moved_by for one in several]
        if len(both) < len(found) or any(one is None or one.yi is None for one in after):
            rows = [row for row in (*itertools.chain(*drawn), *after) if row is not None]
            lost = next((row.reason for row in rows if row.reason), "no such term")
            lacking = len(found) - len(both) + sum(one is None or one.yi is None for one in after)
            tables = "synthetic tables" if steps else "pairs of synthetic tables"
            reason = f"{lacking} of {len(found) + len(after)} {tables} do not support it: {lost}"
            out.append(replace(first, yi=None, vi_sampling=None, n=persons, reason=reason))
            continue
        values = np.array([(a.yi, b.yi) for a, b in both], dtype=float)
        own = float(np.mean([a.vi_sampling for a, _ in both]))
        m = len(both)
        moved = float(np.square(values[:, 1] - values[:, 0]).sum()) / (m - 2)
        between = float(values[:, 0].var(ddof=1)) / m
        at = [np.mean([one[term].yi for one in several]) for several in moved_by]
        step = np.array([end - values[: len(several), 0].mean() for end, several in zip(at, moved_by, strict=True)])
        hidden = [
            tail
            for tail, far in zip((tail for tail, _ in steps), step, strict=True)
            if abs(far) > tail.most and term.startswith(f"mean({tail.column.name})")
        ]
        if hidden:
            reason = _DROWNED_TAIL.format(" and ".join(dict.fromkeys(tail.column.name for tail in hidden)))
            out.append(replace(first, yi=None, vi_sampling=None, n=persons, reason=reason))
            continue
        out.append(
            replace(
                first,
                yi=float(values[:, 0].mean() + step @ [tail.seen for tail, _ in steps]),
                vi_sampling=own * len(pairs[0][0]) / persons,
                vi_privacy=moved + between + float(step @ step),
                vi_common=_common_variance([tail for tail, _ in steps], step),
                vi_naive=own,
                n=persons,
                how=f"{m} pairs of synthetic tables, as released and with the noise drawn again",
                warnings=warnings,
            )
        )
    return out


def _common_variance(tails: Sequence[Tail], step: Array) -> float:
    """Variance of what sites, and the releases of one, may be off by alike: where in their cells persons are."""
    apart: dict[tuple[str, int], float] = {}
    for tail, far in zip(tails, np.abs(step), strict=True):
        release = tail.column.name, id(tail.share)  # either side of one says the same of its cells
        apart[release] = max(apart.get(release, 0.0), float(far) * tail.inside)
    columns = {name for name, _ in apart}
    return float(sum(sum(one for (name, _), one in apart.items() if name == column) ** 2 for column in columns))
