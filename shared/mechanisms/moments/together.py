r"""The planned model's effects of every site from all sites' releases: no prior on them, and one place to look from.

A site's own fit (`shared.mechanisms.moments.copula`) holds a noisy solution with a weak prior, which draws effects
towards zero where noise is large: at every site alike, so that pooling makes it worse. And where its gain K is taken at
the noisy solution, an effect that noise made large is given a large variance, and a small weight. Here no site decides
alone where it is looked at. From a place β_k, with site k's own margins and level and the correlations of all, one
Newton step is taken without a prior on the effects but a weak one at the place itself (`_FAR`, left out here),

.. math:: \hat\theta_k = \theta_k(\beta_k) + K_k (M_k - M_k(\theta_k(\beta_k))), \qquad
          Var \hat\theta_k = K_k (C_k / n_k + V_k) K_k',

linear in the noise of M_k, so that its error has mean zero but for the second order; then the β_k are the θ_k drawn
towards their mean as far as their own errors reach (`shrunk`), and the steps are taken again from there. Where sites
are alike they are looked at from one place, and nonlinearity acts once, on what all noises together left over; where
they differ each is looked at from near its own effects, or it would be told too near to the others. A site alone keeps
its own fit: a step without a prior from there is wild where noise is large.

**Misfit.** The sums hold covariates cut at one scale, so their solution is the regression's only where the model is
right. Let the linear predictor have γ_ij z_i z_j more, a bend or an interaction that was not planned, z in standard
deviations. Both solutions move; to first order they move apart by

.. math:: D_{ij} = K \, \partial M / \partial \gamma_{ij}
          - E[w \, Z Z']^{-1} E[w \, Z \, z_i z_j], \qquad w = \text{information}, \; Z = (1, z).

The γ are taken to be independent with standard deviation `BEND`, and the same at every site: their part of the variance
is common to all sites, and no further site lowers it.

**Told twice.** A declared effect has two figures: its score, and its moment with the outcome. Where the model is right
they agree but for patients and noise. What is left of the moment after the step, over how fast the moment moves with
the effect, is how far apart they are; over all sites, by inverse variance, it shows a model that is wrong where no
effect alone can (`DENIED`). It does not tell which of the two is nearer, nor in which direction the answer is off.
What makes them differ moves the answer too, at every site alike: `SHARE` of the distance is taken for the standard
deviation of that, in the variance that is common to all sites.

**Rare levels.** A nominal covariate is looked at with one level a person (`shared.mechanisms.moments.factors`), and the
level of a site's outcome is that of the factor's first one. Where places move, it moves so that as many outcomes are
predicted as before (`_Site.carried`), and the prior at the place is four times as wide (`_FAR_OF_LEVELS`): where noise
leaves next to nothing of the outcomes at the first level, a narrower one held all effects at the common place, and
that at every site alike, which no variance had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.mechanisms.moments.cohort import Cohort, drawn
from shared.mechanisms.moments.copula import (
    CopulaModel,
    CopulaParameters,
    Score,
    complete,
    doubted,
    moved,
    observations,
    precisions,
)
from shared.mechanisms.moments.factors import LevelsModel, with_levels
from shared.mechanisms.moments.histograms import drawn_together
from shared.mechanisms.moments.margins import Margin, fitted_margin
from shared.mechanisms.moments.noise import Design, MomentsRelease, sigma_of
from shared.mechanisms.moments.outcomes import Count, LinearOutcome, Survival
from shared.plans.dictionary import NUMERIC, Column

__all__ = ["BEND", "DENIED", "SiteEffects", "SitePlace", "effects_of", "places", "shrunk"]

special = deferred("scipy.special")

Array = NDArray[np.float64]

BEND = 0.05
"""Standard deviation of a bend or an interaction, in the linear predictor, per squared standard deviation."""
DENIED = 3.0
"""Standard errors by which the two figures of a declared effect are apart, from which on the model is denied there."""
SHARE = 0.5
"""Of that distance, a standard deviation of the error: of a quarter, a half and the whole the one that was chosen
on the half of the zoo that settings are chosen by (decision 35)."""
_SEVERAL = 3
"""Sites from which on histograms are drawn together."""
_ROUNDS = 10
_CORRELATED, _WHOLE, _PART, _NEAR = 2, 4, 0.6, 0.05
"""Rounds in which correlations follow the steps, rounds after which places go this part of the way only, and errors of
a site that its last step may be from the one before for the rounds to end. A covariate of few values is a step
function of its latent, so that with each other correlation other points step, and with them the gain: steps of ten
covariates, some of them rare, went on by one to three errors a round. And from a place that is too far a step comes
back too far."""
_REACH = 0.5
"""Most that a place moves in a round, in the linear predictor, per scale of a covariate."""
_ROWS = 3000
_POINTS = 1024
_MOST_Z = 1.8
UNSETTLED = 1.5
"""Standard errors that the last step may be from the one before it."""
CONTRADICTED = 25.0
"""Squared standard errors that a covariate's sums may be from what its histogram makes of them, of the noise and of the
weak prior on how far they move it. Of 864 sites of the zoo the farthest was 10.6 away (docs/benchmarks/moments.md); one
in whose histogram noise had made a hump, so that the spread was eightfold, 40."""
_LOST = "its figures settle on no effects: each step from where the one before it led goes elsewhere"
_FAR = 3.0
"""Standard deviation of how far effects lie from the place, in the linear predictor per scale of a covariate: it says
next to nothing beside what a release says, and keeps a step within reach where a release says nothing."""
_FAR_OF_LEVELS = 12.0
"""The same at points with one level each: the module's text has why. Chosen where effects of six levels, few events at
the first, had root mean squares of 1.8 of their own errors with 3, and of 1.1 with 12."""


@dataclass(frozen=True, kw_only=True)
class SiteEffects:
    """A site's adjusted effects, per unit of each covariate.

    Args:
        n: public number of records.
        effects: (p,) log hazard ratio, log odds ratio, log rate ratio, slope.
        sampling, privacy: (p,) variances from sampling patients, from the noise.
        misfit: (p,) variance from what the model may lack, common to all sites.
        lost: why `effects` are no answer, "" where they are one: they are where the last of unlike steps happened to
            end, or seen through a histogram that the sums deny.
        apart: (p,) how far the two figures of a declared effect are apart over all sites, in units of the effect; 0
            where patients and noise may do that, or it is small beside the error of all sites' mean.
    """

    n: int
    effects: Array
    sampling: Array
    privacy: Array
    misfit: Array
    apart: Array
    lost: str = ""

    @property
    def common(self) -> Array:
        """(p,) variances from all that sites have in common, known or assumed."""
        return np.asarray(self.misfit + (SHARE * self.apart) ** 2)


def effects_of(cohort: Cohort) -> SiteEffects:
    """A site alone, by its own fit: the weak prior is in its effects, and what the model may lack in no variance."""
    sampling, privacy = np.diag(cohort.sampling), np.diag(cohort.privacy)
    nothing = np.zeros_like(privacy)
    return SiteEffects(
        n=cohort.n,
        effects=cohort.effects,
        sampling=sampling,
        privacy=privacy,
        misfit=nothing,
        apart=nothing,
    )


@dataclass(frozen=True, kw_only=True)
class SitePlace:
    """One site as all sites' releases have it: where a further figure of its records may look from.

    Args:
        model, theta: its own margins and level, effects drawn towards the others' as far as their errors reach.
    """

    model: CopulaModel
    theta: CopulaParameters
    effects: SiteEffects


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Solution of one step: slopes (predictors, p) per unit and their covariances, levels, correlations.

    left: what was observed less what the place predicts. slope: derivatives of what it predicts in the parameters.
    gain: of the solution in what was observed.
    patients: covariance of the moments by sampling.
    """

    slopes: Array
    sampling: Array
    privacy: Array
    levels: Array
    z: Array
    left: Array
    slope: Array
    gain: Array
    patients: Array


@dataclass(frozen=True, kw_only=True)
class _Doubts:
    """Of the effects that a step ended at, each (p,).

    misfit: variances from what the model may lack. twice: distances of the two figures of each effect; knows: their
    precisions, 0 where there is no score.
    """

    misfit: Array
    twice: Array
    knows: Array


class _Site:
    """One release, as it can be solved from anywhere."""

    def __init__(self, release: MomentsRelease, design: Design, *, levels: bool) -> None:
        fitted = (with_levels if levels else complete)(release, design)
        self.n, self.score = release.n, fitted.score
        # Its own copy: the outcome follows the effects it is looked at with.
        self.model = CopulaModel(design, fitted.model.lens)
        if levels and design.factors:
            self.model = LevelsModel(self.model)
        self.model.outcome = fitted.model.outcome
        self.theta = fitted.theta
        self.observed, self.noise = observations(release, self.model.lens, self.score)
        self.unit = self.model.outcome.unit / self.model.lens.scale
        self.shares, self.share_variances = self._shares(release)
        self._denied_by = self._away()

    def _shares(self, release: MomentsRelease) -> tuple[Array, Array]:
        """(binary covariates,) shares of those who have it, from histogram and moments, and their variances."""
        columns = np.flatnonzero(self.model.binary)
        counted = np.array([release.histograms[j][1] - release.histograms[j][0] for j in columns]) / release.n
        found = np.array([counted, self.observed[columns]])
        apart = 2 * sigma_of(self.model.design.spec, 0) ** 2 / self.n**2
        noise = np.array([np.full(len(columns), apart), self.noise[columns]])
        weights = 1 / noise
        share = ((weights * found).sum(axis=0) / weights.sum(axis=0) + 1) / 2
        own = np.clip(share, 1 / self.n, 1 - 1 / self.n)
        return share, 0.25 / weights.sum(axis=0) + own * (1 - own) / self.n

    def _away(self) -> Array:
        """(p,) how far the two sums of each numeric covariate are from its histogram: what is left, and was moved."""
        p, at, model = self.model.p, self.theta, self.model
        sums = [model.singles(j, model.margin(j, at.shift[j], at.stretch[j])) for j in range(p)]
        left = (self.observed[: 2 * p] - np.array(sums).T.ravel()) ** 2 / self.noise[: 2 * p]
        moved = precisions(model)[: 2 * p] * np.r_[at.shift, at.stretch] ** 2
        return np.where(model.binary, 0.0, (left + moved).reshape(2, p).sum(axis=0))

    def denied(self) -> float:
        """The farthest that the sums of a numeric covariate are from its histogram, in squared standard errors."""
        return float(self._denied_by.max())

    def contradicted(self) -> str:
        """Why its histograms and its sums cannot be of the same records, in words; "" where they can."""
        if self.denied() <= CONTRADICTED:
            return ""
        column = self.model.design.covariates[int(np.argmax(self._denied_by))].name
        return f"its histogram of {column} and its sums deny each other: noise may have made the spread there"

    def among(self, shares: Array) -> None:
        """Look at binary covariates that this share of the persons has."""
        shift = self.theta.shift.copy()
        least = 0.5 / self.n
        for j, share in zip(np.flatnonzero(self.model.binary), np.clip(shares, least, 1 - least), strict=True):
            # Its values are at -1 and 1, so that a unit of tilt is two of the log odds.
            shift[j] = np.clip((special.logit(share) - special.logit(self.model.margins[j].weights[1])) / 2, -8, 8)
        self.theta = replace(self.theta, shift=shift)

    def follow(self, margins: Sequence[Margin], total: float) -> None:
        """Take numeric covariates to follow these, moved as the site's own sums say; `total` as of `LinearOutcome`."""
        model, p = self.model, self.model.p
        model.margins = tuple(margins)
        if isinstance(model.outcome, LinearOutcome):
            model.outcome = replace(model.outcome, total=total)
        precision = precisions(model)
        shift, stretch = self.theta.shift.copy(), self.theta.stretch.copy()
        for j in np.flatnonzero(~model.binary).tolist():
            both = [j, p + j]
            shift[j], stretch[j] = moved(model, j, self.observed[both], self.noise[both], precision[both])
        self.theta = replace(self.theta, shift=shift, stretch=stretch)

    @property
    def far(self) -> float:
        """Standard deviation of the prior that lies at the place."""
        return _FAR_OF_LEVELS if isinstance(self.model, LevelsModel) else _FAR

    @property
    def slopes(self) -> Array:
        """(predictors, p) of its own fit, per unit."""
        return np.asarray(self.theta.effects[:, 1:] * self.unit)

    def step(self, uniforms: Array) -> _Step:
        """One Newton step from where `theta` is; the prior on the effects is weak and lies there."""
        model, at = self.model, self.theta
        value, slope = model.slope(at, self.score)
        effects, p = at.effects.size, model.p
        precision = precisions(model)
        away = np.r_[np.zeros(len(at.flat) - effects), np.full(effects, self.far**-2)]
        precision[-effects:] = away[-effects:]
        weighted = slope.T / doubted(model, slope, self.noise, self.score)
        hessian = weighted @ slope + np.diag(precision)
        gain = np.asarray(np.linalg.solve(hessian, weighted), dtype=np.float64)
        pulled = precision * np.r_[at.shift, at.stretch, np.zeros(len(at.z) + effects)]
        found = at.flat + gain @ (self.observed - value) - np.linalg.solve(hessian, pulled)
        x, y = drawn(model, at, uniforms)
        patients = np.cov(model.rows(x, y, self.score).T) / self.n
        sampling = gain @ patients @ gain.T
        inverse = np.linalg.inv(hessian)
        privacy = (gain * self.noise) @ gain.T + (inverse * away) @ inverse.T
        new = at.like(found)
        first = len(found) - effects
        index = np.delete(np.arange(first, len(found)), np.arange(0, effects, 1 + p))
        unit = np.tile(self.unit, len(at.effects))
        square = np.outer(unit, unit)
        return _Step(
            slopes=new.effects[:, 1:] * self.unit,
            sampling=sampling[np.ix_(index, index)] * square,
            privacy=privacy[np.ix_(index, index)] * square,
            levels=new.effects[:, 0],
            z=new.z,
            left=self.observed - value,
            slope=slope,
            gain=gain,
            patients=patients,
        )

    def next_level(self, step: _Step, slopes: Array, others: Array, part: float) -> Array:
        """(predictors,) level beside other slopes, after this part of the way from the place with these slopes."""
        level = self.theta.effects[:, 0]
        if not isinstance(self.model, LevelsModel):
            return np.asarray(level + part * np.clip(step.levels - level, -_REACH, _REACH))
        p, predictors, first = self.model.p, len(slopes), 2 * self.model.p + len(step.z)
        along = step.slope[first + (1 + p) * np.arange(predictors), -self.theta.effects.size :]
        along = along.reshape(predictors, predictors, 1 + p)
        # As many outcomes as the step has, to first order.
        missing = np.einsum("aqj,qj->a", along[:, :, 1:], (step.slopes - slopes) / self.unit)
        wanted = step.levels + np.linalg.solve(along[:, :, 0], missing)
        return self.carried(level + part * np.clip(wanted - level, -_REACH, _REACH), slopes, others)

    def carried(self, level: Array, slopes: Array, others: Array) -> Array:
        """(predictors,) levels at which other slopes have as many outcomes as these slopes have with a level."""
        model, at = self.model, self.theta
        margins = [model.margin(j, at.shift[j], at.stretch[j]) for j in range(model.p)]
        x = model.points(margins, at.z, model.coarse)
        before, eta = (model.predictor(np.column_stack([level, one / self.unit]), x) for one in (slopes, others))
        wanted, moved = model.outcome.conditional(before).mean(axis=0), np.zeros_like(level)
        for _ in range(8):
            here = model.outcome.conditional(eta + moved).mean(axis=0)
            there = [model.outcome.conditional(eta + moved + by).mean(axis=0) for by in 1e-4 * np.eye(len(level))]
            step = np.linalg.solve((np.array(there) - here).T / 1e-4, wanted - here)
            moved = moved + np.clip(step, -1, 1)
            if float(np.abs(step).max()) < 1e-4:
                break
        return np.asarray(level + moved)

    def doubts(self, step: _Step) -> _Doubts:
        """Variance from model misfit, and disagreement of the two figures, of each effect that a step ended at.

        `theta` must still be the point that the step was taken from.
        """
        p, first = self.model.p, step.slope.shape[1] - self.theta.effects.size
        twice, knows = self._twice(step)
        apart = self._apart(step.gain[first + 1 : first + 1 + p])
        return _Doubts(misfit=BEND**2 * np.square(apart).sum(axis=1) * self.unit**2, twice=twice, knows=knows)

    def _twice(self, step: _Step) -> tuple[Array, Array]:
        """Difference between each effect's moment and the one that its score predicts, per unit, and its precision."""
        p, slope, gain = self.model.p, step.slope, step.gain
        twice, knows = np.zeros(p), np.zeros(p)
        if not isinstance(self.score, Score):
            return twice, knows
        columns = np.array(self.score.columns)
        moments = 2 * p + p * (p - 1) // 2 + 1 + columns
        effects = slope.shape[1] - self.theta.effects.size + 1 + columns
        left = np.eye(len(slope))[moments] - slope[moments] @ gain
        moves = slope[moments, effects] / self.unit[columns]
        variances = np.einsum("im,mk,ik->i", left, step.patients + np.diag(self.noise), left)
        knows[columns] = moves**2 / np.maximum(variances, 1e-300)
        twice[columns] = left @ step.left / np.where(moves == 0, np.inf, moves)
        return twice, knows

    def _apart(self, gain: NDArray[Any]) -> Array:
        """(p, bends) how far a unit of each bend moves the effects from the regression's: D, per scale."""
        model, at = self.model, self.theta
        margins = [model.margin(j, at.shift[j], at.stretch[j]) for j in range(model.p)]
        x = model.points(margins, at.z, model.latents[:_POINTS])
        u, eta = model.lens.u(x), model.predictor(at.effects, x)
        spread = np.maximum(x.std(axis=0), 1e-9)
        z = np.clip((x - x.mean(axis=0)) / spread, -6, 6)
        i, j = np.triu_indices(model.p)
        # A two-valued column has no bend of its own.
        bends = np.array([(a != b) or not model.binary[a] for a, b in zip(i, j, strict=True)])
        bent = (z[:, i] * z[:, j])[:, bends]
        if not bent.size:
            return np.zeros((model.p, 0))
        weight = np.maximum(model.outcome.information(eta), 1e-12)
        one = np.column_stack([np.ones(len(x)), z])
        gram = (one * weight[:, None]).T @ one
        regressed = np.linalg.solve(gram + 1e-9 * np.trace(gram) * np.eye(len(gram)), (one * weight[:, None]).T @ bent)
        moved = self._along(model, eta, x, u).T @ bent / len(x)
        covariates = gain.shape[1] - len(moved)
        regressed_per_scale = regressed[1:] * (model.lens.scale / spread)[:, None]
        return np.asarray(gain[:, covariates:] @ moved - regressed_per_scale)

    def _along(self, model: CopulaModel, eta: Array, x: Array, u: Array) -> Array:
        """(points, moments of the outcome and scores): how fast each point's part moves with the first predictor."""
        etas = [eta + size * np.eye(1, eta.shape[1]) for size in (-1e-3, 1e-3)]
        below, above = (model.outcome.conditional(moved) * model.lens.weights[:-1] for moved in etas)
        parts = [((above - below)[:, :, None] * u[:, None, :]).reshape(len(x), -1)]
        if self.score is not None:
            before, after = self.score.each(model.outcome, etas, x)
            parts.append(after - before)
        return np.asarray(np.hstack(parts) / 2e-3)

    def place(self, slopes: Array, levels: Array, z: Array) -> None:
        """Look from these effects: slopes (predictors, p) per unit."""
        effects = np.column_stack([levels, slopes / self.unit])
        self.theta = CopulaParameters(self.theta.shift, self.theta.stretch, z, effects)
        model, everybody = self.model, self.model.lens.outcome
        margins = [model.margin(j, self.theta.shift[j], self.theta.stretch[j]) for j in range(model.p)]
        eta = model.predictor(effects, model.points(margins, z))
        if isinstance(everybody, Survival):
            model.outcome = everybody.among(eta, everybody)
        elif isinstance(everybody, Count):
            model.outcome = everybody.among(eta)
        elif isinstance(model.outcome, LinearOutcome):
            model.outcome = model.outcome.beside(eta)


def shrunk(effects: Array, variances: Array) -> Array:
    r"""Effects of sites, each drawn towards what they have in common as far as its own error reaches.

    Per coefficient :math:`m + \tau^2 / (\tau^2 + v_k) (\theta_k - m)`, with DerSimonian and Laird's :math:`\tau^2`
    and the random-effects mean m. Source: R. DerSimonian, N. Laird (1986), Control. Clin. Trials 7, 177.

    Args:
        effects, variances: (sites, coefficients).

    >>> shrunk(np.array([[0.0], [0.2]]), np.array([[1.0], [1.0]])).ravel()
    array([0.1, 0.1])
    >>> shrunk(np.array([[0.0], [4.0]]), np.array([[1.0], [1.0]])).ravel().round(2)
    array([0.25, 3.75])
    """
    variances = np.maximum(variances, np.finfo(float).tiny ** 0.5)
    between = _between(effects, variances)
    weights = 1 / (variances + between)
    mean = (weights * effects).sum(axis=0) / weights.sum(axis=0)
    return np.asarray(mean + between / (between + variances) * (effects - mean))


def _between(effects: Array, variances: Array) -> Array:
    """DerSimonian and Laird's variance between sites, of each coefficient."""
    weights = 1 / variances
    mean = (weights * effects).sum(axis=0) / weights.sum(axis=0)
    excess = (weights * (effects - mean) ** 2).sum(axis=0) - (len(effects) - 1)
    scale = weights.sum(axis=0) - (weights**2).sum(axis=0) / weights.sum(axis=0)
    # Where one site weighs as much as all, nothing tells how they vary.
    differing = scale > 1e-9 * weights.sum(axis=0)
    return np.asarray(np.where(differing, np.maximum(0.0, excess / np.where(differing, scale, 1.0)), 0.0))


def places(
    releases: Sequence[tuple[MomentsRelease, Design]], *, alike: bool = False, levels: bool = False
) -> tuple[SitePlace, ...]:
    """Effects of every site, each looked at from its own as far as they stand out of its error, else from the mean.

    Args:
        releases: of different persons, each with the plan it was drawn under: the same outcome and covariates.
        alike: take columns to follow what all sites' histograms say of them, as far as sites are alike.
        levels: take each person to have one level of a nominal column. Places from which a secure sum starts do not, so
            that a sum that was opened is read again as it was.
    Returns: of each site its effects, and the model at the effects that it and all others tell.
    Raises: numpy.linalg.LinAlgError, where the figures determine no effects.
    """
    sites = [_Site(release, design, levels=levels) for release, design in releases]
    why = [site.contradicted() for site in sites]
    # Public seed: these rows only stand for the model in an expectation.
    uniforms = np.random.default_rng(20260101).random((_ROWS, sites[0].model.p + 3))
    # Figures that deny each other may be sure of anything: nobody is looked at from them.
    if alike:
        kept = [k for k, one in enumerate(why) if not one]
        _follow([sites[k] for k in kept], [releases[k] for k in kept])
    good = [site for site, one in zip(sites, why, strict=True) if not one]
    placed = iter(_settled(good or sites, uniforms))
    out = [next(placed) if not (one and good) else _alone(site, uniforms) for site, one in zip(sites, why, strict=True)]
    return tuple(
        replace(place, effects=replace(place.effects, lost=one or place.effects.lost))
        for place, one in zip(out, why, strict=True)
    )


def _follow(sites: Sequence[_Site], releases: Sequence[tuple[MomentsRelease, Design]]) -> None:
    """Numeric columns as these sites' histograms have them together, where there are several on the same cells."""
    designs = [design for _, design in releases]
    edges = [(*design.edges, design.outcome_edges) for design in designs]
    same = (np.array_equal(a, b) for one in edges for a, b in zip(one, edges[0], strict=True))
    if len(sites) < _SEVERAL or not all(same):
        return
    first, n = designs[0], [release.n for release, _ in releases]
    sigmas = [sigma_of(design.spec, 0) for design in designs]

    def drawn_of(place: int, column: Column) -> list[Margin]:
        found = np.array([np.asarray(release.histograms[place], dtype=float).ravel() for release, _ in releases])
        counts, left = drawn_together(found, n, sigmas)
        shape = first.spec.margins
        return [
            fitted_margin(one, size, float(sigma), edges[0][place], column, shape)
            for one, size, sigma in zip(counts, n, left, strict=True)
        ]

    numeric = [j for j, column in enumerate(first.covariates) if column.kind in NUMERIC]
    margins = {j: drawn_of(j, first.covariates[j]) for j in numeric}
    linear = isinstance(sites[0].model.outcome, LinearOutcome)
    outcomes = drawn_of(len(first.covariates), first.response) if linear else [None] * len(sites)
    for k, (site, outcome) in enumerate(zip(sites, outcomes, strict=True)):
        own = [margins[j][k] if j in margins else margin for j, margin in enumerate(site.model.lens.margins)]
        site.follow(own, 1.0 if outcome is None else outcome.sd / site.model.outcome.unit)


def _alone(site: _Site, uniforms: Array) -> SitePlace:
    """A site where it is by itself."""
    step = site.step(uniforms)
    return _place(site, step, site.doubts(step), apart=np.zeros(site.model.p))


def _place(site: _Site, step: _Step, doubts: _Doubts, *, apart: Array, lost: str = "") -> SitePlace:
    p = site.model.p
    effects = SiteEffects(
        n=site.n,
        effects=step.slopes[0],
        sampling=np.diag(step.sampling)[:p],
        privacy=np.diag(step.privacy)[:p],
        misfit=doubts.misfit,
        apart=apart,
        lost=lost,
    )
    return SitePlace(model=site.model, theta=site.theta, effects=effects)


def _settled(sites: Sequence[_Site], uniforms: Array) -> list[SitePlace]:
    """Step of all sites together until their answers agree with the ones before."""
    p = sites[0].model.p
    share = np.array([site.n for site in sites], dtype=float)
    share /= share.sum()
    slopes = np.tensordot(share, [site.slopes for site in sites], 1)
    z = np.tensordot(share, [site.theta.z for site in sites], 1)
    levels = [site.theta.effects[:, 0] for site in sites]
    found_at = np.broadcast_to(slopes, (len(sites), *slopes.shape))
    if len(sites[0].shares):
        # A coefficient is a sum over a share: where noise makes a small share smaller, its error is not of mean zero.
        shares = shrunk(np.array([site.shares for site in sites]), np.array([site.share_variances for site in sites]))
        for site, own in zip(sites, shares, strict=True):
            site.among(own)
    levels = [
        site.carried(level, site.slopes, slopes) if isinstance(site.model, LevelsModel) else level
        for site, level in zip(sites, levels, strict=True)
    ]
    reach = _REACH * np.mean([site.unit for site in sites], axis=0)
    found = np.array([site.slopes.ravel() for site in sites])
    for done in range(_ROUNDS):
        before, part = found, 1.0 if done < _WHOLE else _PART
        for site, place, level in zip(sites, found_at, levels, strict=True):
            site.place(place, level, z)
        steps = [site.step(uniforms) for site in sites]
        found = np.array([step.slopes.ravel() for step in steps])
        variances = np.array([np.diag(step.sampling + step.privacy) for step in steps])
        # Where a place says little, a step from it is wild, and the next place would be wilder.
        moved = shrunk(found, variances).reshape(len(sites), *slopes.shape) - found_at
        before_at, found_at = found_at, found_at + part * np.clip(moved, -reach, reach)
        if done < _CORRELATED:
            z = np.clip(np.tensordot(share, [step.z for step in steps], 1), -_MOST_Z, _MOST_Z)
        levels = [
            site.next_level(step, was, now, part)
            for site, step, was, now in zip(sites, steps, before_at, found_at, strict=True)
        ]
        away = np.abs(found - before) / np.sqrt(variances)
        if done >= _CORRELATED and away.max() < _NEAR:
            break
    lost = ["" if far <= UNSETTLED else _LOST for far in away.max(axis=1)]
    ended = [(step, site.doubts(step)) for site, step in zip(sites, steps, strict=True)]
    apart = _denied([one for one, why in zip(ended, lost, strict=True) if not why] or ended, p)
    out = []
    for site, (step, doubts), slope, level, why in zip(sites, ended, found_at, levels, lost, strict=True):
        site.place(slope, level, z)
        out.append(_place(site, step, doubts, apart=apart, lost=why))
    return out


def _denied(ended: Sequence[tuple[_Step, _Doubts]], p: int) -> Array:
    """(p,) how far the two figures of each effect are apart over all sites; 0 where that says nothing."""
    knows = np.array([doubts.knows for _, doubts in ended])
    known = np.maximum(knows.sum(axis=0), 1e-300)
    apart = (knows * np.array([doubts.twice for _, doubts in ended])).sum(axis=0) / known
    variances = np.array([np.diag(step.sampling + step.privacy)[:p] for step, _ in ended])
    mean = 1 / (1 / variances).sum(axis=0) + np.mean([doubts.misfit for _, doubts in ended], axis=0)
    return np.where((np.abs(apart) >= DENIED / np.sqrt(known)) & (apart**2 >= mean), apart, 0.0)
