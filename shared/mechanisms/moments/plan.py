"""Mechanism spec of noisy moments: one outcome, its covariates, and all that is asked of them under one ε.

The released table has one line per figure, in whole steps of its block's grid. What it tells is read once
(`shared.mechanisms.moments.cohort`): the coefficients of the planned model come with the variance of patients and of
noise, any other question is put to synthetic rows. These hold what the generator's model holds, and the answer says so.

For rows the variance is found by drawing the noise again. Let f(θ, U) be the answer of a table drawn from parameters θ
by uniforms U, v its rows' own variance, and θ* the parameters that another draw of the release's noise gives. Over m
pairs of tables that share their uniforms,

.. math:: \\bar f = \\frac1m \\sum_k f(\\hat\\theta, U_k), \\qquad
          T = \\bar v \\, \\frac{rows}{persons} + \\frac{1}{m - 2} \\sum_k d_k^2 + \\frac{b}{m}, \\qquad
          d_k = f(\\theta^*_k, U_k) - f(\\hat\\theta, U_k)

with b the variance between the f(θ̂, U_k): what sampling patients makes uncertain, the noise of the release (m − 2 for
m, because m squares tell it), and the draw of the rows.

A smooth margin has next to nobody in far cells that noise drowns, and of a skewed column these make much of a mean.
Where a question reads such a column, the answer moves by s (f(θ', U) − f(θ̂, U)) and its variance grows by the square
of that difference: θ' has one standard deviation of the noise more persons there, s of which the histogram shows
(`shared.mechanisms.moments.histograms.Tail`), without bias and with a standard error of 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from shared.base.process import deferred
from shared.errors import EstimateRefusal, SchemaRefusal
from shared.estimands.answer import Estimand, Estimate, Origin
from shared.mechanisms.base import Facts, MechanismPlan, balanced, must
from shared.mechanisms.labelled import LabelledFigures, Layout, arrays_of
from shared.mechanisms.moments.cohort import Cohort, answer_from_rows, fit
from shared.mechanisms.moments.draw import moments
from shared.mechanisms.moments.factors import coded_dictionary, coded_names, factors_of, in_words
from shared.mechanisms.moments.figures import (
    BLOCKS,
    TAILED,
    cautions_of,
    names_of,
    planned_terms,
)
from shared.mechanisms.moments.histograms import Tail, beside_margin, coarse, hidden_tails, normal_beyond
from shared.mechanisms.moments.noise import Design, MomentsRelease, read
from shared.mechanisms.moments.spec import MOST_COVARIATES, MomentsSpec, event, sigma_of
from shared.mechanisms.moments.together import SiteEffects, SitePlace, effects_of, places
from shared.plans.dictionary import NUMERIC
from shared.privacy.accountant import Event

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.plans.plan import StudyPlan
    from shared.terminal import ChecklistLine
else:
    pd = deferred("pandas")

__all__ = ["COLUMNS", "MomentsPlan"]

COLUMNS = ("block", "figure", "value")
"""Of the released table: the block, the figure in words, its noisy value in whole steps of the block's grid."""
DRAWS, TAIL_DRAWS = 8, 2
"""Pairs of synthetic tables behind an answer that is not a planned coefficient; tables with a covariate's tail."""
MOST_ROWS = 10_000
"""Of one synthetic table; the rule is for any ratio of rows to persons."""
BOOTSTRAP = 40
_MODEL = (
    "The rows behind this answer are drawn from the planned outcome model and a Gaussian copula: where the patients "
    "are distributed otherwise, as in a long tail, it may be off by more than its interval holds."
)
_ALONE = "fit to the released moments, patients and noise to first order"
_BOOTSTRAPPED = (
    "fit to the released moments, bootstrap through the release (few events, or few records beside the noise)"
)
_TOGETHER = "one step from the effects that all sites have in common, patients and noise to first order"
_FILLED = 25.0
"""Persons of a site, in standard deviations of a histogram's cell, below which centre and spread are guesses."""
_SPREAD_OUT = "Plan its logarithm, which a mapping's formula makes, or bands, as a nominal column, or narrower bounds."
DOUBT = 2.0
"""An interval this many times as wide as the patients alone would make it is told of before it leaves."""


@dataclass(frozen=True, kw_only=True)
class MomentsPlan(LabelledFigures):
    """Histograms, moments of outcome and covariates, products of covariates, and scores of declared coefficients.

    The arguments are those of `shared.mechanisms.moments.spec.MomentsSpec`; δ is the budget's. A plan that a lead
    writes without `declared` declares every covariate. `horizon` is the planned, public end of the study's follow-up.
    """

    epsilon: float
    outcome: Literal["survival", "binary", "count", "linear"]
    responses: Sequence[str]
    covariates: Sequence[str]
    exposures: Sequence[str] = ()
    declared: Sequence[str] = ()
    horizon: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    bins: int = 32
    time_bins: int = 16
    score_clip: float = 1.0
    sensitivity: Literal["joint", "blocks"] = "joint"
    margins: Literal["cells", "lognormal"] = "cells"
    score: Literal["influence", "residual"] = "influence"
    mechanism: Literal["moments"] = "moments"
    title: ClassVar[str] = "noisy moments"
    straight: ClassVar[bool] = True
    bundle_of: ClassVar[tuple[float, float]] = (0.008, 4e-5)
    before: ClassVar[Mapping[str, Any]] = {"sensitivity": "blocks", "margins": "lognormal", "score": "residual"}

    @property
    def unseen(self) -> str:
        """As of `MechanismPlan.unseen`."""
        return (
            "A bend or an interaction that the planned model lacks leaves no trace in the sums: no caution can tell "
            "such an answer from a right one, and no larger ε does. Intervals allow for a small one: where groups of "
            "an outcome differ in spread, that of a coefficient that is not declared is too sure. A declared "
            "coefficient is the regression's own all the same, the nearer the larger ε and the site: declare each one "
            "that will be read (docs/zoo.md). Many large sites share the model's error, which does not shrink with "
            "them: pooled intervals of about fifty hold too seldom. Effects on a measurement with a long tail "
            "are drawn towards none; those of a nominal column's levels have wide intervals where few persons or "
            "outcomes are at the first one."
        )

    @classmethod
    def today(cls, written: Mapping[str, Any]) -> dict[str, Any]:
        """As of `MechanismPlan`, and every coefficient declared: an undeclared one hangs on the whole planned model."""
        covariates = written.get("covariates")
        every = {} if "shares" in written or not isinstance(covariates, list) else {"declared": covariates}
        return super().today(written) | every

    def __post_init__(self) -> None:
        for name in ("responses", "covariates", "exposures", "declared"):
            value = getattr(self, name)
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            must(listed, f"release.{name} must be a list of columns", repr(value)[:60])
            object.__setattr__(self, name, tuple(value))
        must(
            isinstance(self.shares, Mapping),
            "release.shares must be a table of shares by block",
            repr(self.shares)[:60],
        )
        object.__setattr__(self, "shares", dict(self.shares))
        self.spec(1e-6)

    def spec(self, delta: float) -> MomentsSpec:
        """The mechanism's settings at a δ. Raises: PlanRefusal."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "mechanism"}
        given["shares"] = dict(self.shares) or None
        return MomentsSpec.from_canonical({**given, "delta": delta})

    def design(self, plan: StudyPlan) -> Design:
        """The settings beside the plan's dictionary, nominal covariates as binary ones. Raises: PlanRefusal."""
        spec, factors = self.spec(plan.budget.delta), factors_of(self.covariates, plan.dictionary)
        if not factors:
            return Design(spec=spec, dictionary=plan.dictionary)
        covariates = coded_names(spec.covariates, factors)
        must(
            len(covariates) <= MOST_COVARIATES,
            f"release.covariates must be {MOST_COVARIATES} at most, each level of a nominal one but its first counted",
            f"{len(covariates)}",
        )
        exposures, declared = (coded_names(names, factors) for names in (spec.exposures, spec.declared))
        spec = replace(spec, covariates=covariates, exposures=exposures, declared=declared)
        return Design(spec=spec, dictionary=coded_dictionary(plan.dictionary, factors), factors=factors)

    def require(self, plan: StudyPlan) -> None:
        """Every column has a role that its kind can play."""
        super().require(plan)
        self.design(plan)

    def plans(self, plan: StudyPlan, question: Estimand) -> bool:
        """True if a question is the planned model itself, whose coefficients the figures contain."""
        return self.planned_terms(plan, question) is not None

    def planned_terms(self, plan: StudyPlan, question: Estimand) -> list[tuple[int, str, float]] | None:
        """(place among the covariates, label, units) of each term of the planned model; None of another question."""
        return planned_terms(self.design(plan), question)

    def event(self, plan: StudyPlan) -> Event:
        """One Gaussian mechanism, or in plans from before one per block."""
        return event(self.design(plan).spec)

    def facts(self, plan: StudyPlan) -> Facts:
        """The noise of each block, in the unit of its sensitivity."""
        design = self.design(plan)
        blocks = BLOCKS if self.declared else BLOCKS[:3]
        noise = {f"sigma_{name}s": sigma_of(design.spec, k) for k, name in enumerate(blocks)}
        return Facts(
            d=len(plan.dictionary.released),
            parameters={**noise, "figures": len(names_of(design)[0])},
            conditional_on="nothing: nothing was fitted on records",
            model="central",
        )

    def details(self, plan: StudyPlan) -> str:
        """Outcome, covariates, number of figures and noise, in half a line."""
        design = self.design(plan)
        declared = f", {' and '.join(self.declared)} declared" if self.declared else ""
        return (
            f"{self.outcome} on {len(self.covariates)} covariates{declared}, {len(names_of(design)[0])} figures, "
            f"noise of {sigma_of(design.spec, 0):.4g} persons on each count"
        )

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """Checklist: a warning for each of `doubtful`, or that every coefficient is the regression's own."""
        from shared.terminal import ChecklistLine

        found = [ChecklistLine(name="declared", state="warn", detail=d, fix=fix) for d, fix in self.doubtful(plan)]
        return found or [ChecklistLine(name="declared", detail="every coefficient is the regression's own")]

    def doubtful(self, plan: StudyPlan) -> list[tuple[str, str]]:
        """Coefficients whose answers will be less certain than stated, and the remedy: (detail, fix) in words."""
        found = []
        without = ", ".join(name for name in self.covariates if name not in self.declared)
        if without:
            detail = (
                f"{without} not declared: where the planned model is wrong, as where groups of the outcome differ in "
                "spread, such an interval is too sure; its answer carries a caution, also where it is right"
            )
            fix = "Name in release.declared every covariate whose coefficient will be read; further ones cost little."
            found.append((detail, fix))
        columns = self.design(plan).covariates
        factors = ", ".join(c.name for c in columns if len(c.levels) > 2 and isinstance(c.levels[0], str))
        if factors:
            detail = (
                f"{factors} with named levels: a question about it has an effect per level, the planned model one per "
                "step, so its answers are made from rows drawn of the fit, and no interval of these is known to hold"
            )
            fix = 'Give it kind = "nominal", or its levels as numbers.'
            found.append((detail, fix))
        low = [c for c in columns if c.kind in NUMERIC and c.span[0] == 0]
        if near := ", ".join(c.name for c in low if c.kind != "integer" or c.span[1] >= self.bins):
            detail = (
                f"{near} from 0, with a histogram of {self.bins} cells: where seven in ten persons are in one, as who "
                "has none or next to nothing, no coefficient is answered, and that is seen once it is paid for"
            )
            found.append((detail, _SPREAD_OUT))
        if nominal := factors_of(self.covariates, plan.dictionary):
            detail = (
                f"{', '.join(one.column.name for one in nominal)} with a column of its own for each level but the "
                "first: where few persons have the first level, or the outcome is far rarer in it than in others, "
                "noise hides it and all effects have wide intervals (docs/choosing.md)"
            )
            fix = (
                "Write the level first that most persons are expected to have; where the outcome will be rare in it, "
                "another one."
            )
            found.append((detail, fix))
        response = plan.dictionary.column(self.responses[0])
        if self.outcome == "linear" and response.kind == "integer":
            detail = (
                f"{response.name} as a measurement: where whole numbers have a long tail, as days in hospital, effects "
                "were measured to be drawn towards none, in intervals that are too sure (docs/zoo.md)"
            )
            found.append((detail, 'Plan outcome = "count" for what counts from 0; scores without a tail are well.'))
        noise = sigma_of(self.design(plan).spec, 0)
        if self.outcome == "linear" and plan.expected is not None and plan.expected.persons < _FILLED * noise:
            detail = (
                f"{plan.expected.persons} persons expected at a site, with noise of {noise:.3g} on each cell of a "
                "histogram: of so few, intervals of a linear model were measured to be too narrow "
                "(docs/benchmarks/moments.md)"
            )
            found.append((detail, 'Take release.mechanism = "cross_products", which looks through no histogram.'))
        return found

    # -- the released table --------------------------------------------------------------------------------------
    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The noisy figures, a line each."""
        return self.lines(plan, moments(records, self.design(plan), rng))

    def lines(self, plan: StudyPlan, release: MomentsRelease) -> pd.DataFrame:
        """A release as the table that leaves; `release` reads it back."""
        return self.layout(plan).table((*release.histograms, release.moments, release.products, release.score))

    def layout(self, plan: StudyPlan) -> Layout:
        """Block and words of every figure."""
        blocks, figures = names_of(self.design(plan))
        return Layout(columns=COLUMNS, first=blocks, second=figures)

    def release(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> MomentsRelease:
        """The release that a table of lines holds. Raises: SchemaRefusal."""
        design = self.design(plan)
        p = design.p
        shapes: list[tuple[int, ...]] = [(len(edges) - 1,) for edges in design.edges]
        shapes += [design.outcome_shape, (design.features, 1 + p), (p * (p + 1) // 2,), (len(design.spec.declared),)]
        parts = arrays_of(table, shapes)
        given = MomentsRelease(
            n=n, histograms=tuple(parts[: p + 1]), moments=parts[p + 1], products=parts[p + 2], score=parts[p + 3]
        )
        return read(given.to_bytes(), design)

    def require_possible(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """As of `LabelledFigures`."""
        counts = self.release(plan, table, n).histograms
        below = sum(int((part < -12 * sigma_of(self.design(plan).spec, 0) - 1).sum()) for part in counts)
        if below:
            raise SchemaRefusal("counts must be possible for the noise of the plan", given=f"{below} are not")

    # -- what the figures tell -----------------------------------------------------------------------------------
    def cohort(self, plan: StudyPlan, table: pd.DataFrame, n: int, *, bootstrap: bool = True) -> Cohort:
        """The cohort of a release, the same at every call. Raises: EstimateRefusal."""
        return _fitted(self.release(plan, table, n).to_bytes(), self.design(plan), bootstrap)

    def places(
        self, plan: StudyPlan, tables: Sequence[tuple[pd.DataFrame, int]], *, alike: bool = False
    ) -> tuple[SitePlace, ...]:
        """Model and effects of each site, estimated jointly from these releases; the same at every call.

        Args:
            alike: as of `moments.together.places`.
        Raises: SchemaRefusal, and numpy.linalg.LinAlgError where the figures determine no effects.
        """
        releases = tuple(self.release(plan, table, n).to_bytes() for table, n in tables)
        return _placed(releases, self.design(plan), alike=alike, levels=False)

    def doubt(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> str:
        """Warning that a histogram hides a covariate, or that noise widens an interval `DOUBT` times; else empty."""
        unseen = coarse([(self.release(plan, table, n), self.design(plan))])
        if unseen:
            return f"The planned model will have no answer: its bounds are too wide for {unseen}."
        try:
            return _doubt(self.cohort(plan, table, n, bootstrap=False))
        except EstimateRefusal as refusal:
            return str(refusal)

    def synthetic(
        self,
        plan: StudyPlan,
        tables: Sequence[tuple[pd.DataFrame, int]],
        *,
        draws: int,
        rng: np.random.Generator,
        effects: Mapping[int, float] | None = None,
    ) -> list[pd.DataFrame]:
        """Tables of as many rows as there were persons, their effects calibrated to the released ones.

        Args:
            effects: of covariates, by their places and per unit, that are known better than from these figures.
        """
        cohorts = [self.cohort(plan, table, n, bootstrap=False) for table, n in tables]
        for column, effect in (effects or {}).items():
            cohorts = [cohort.with_effect(column, effect) for cohort in cohorts]
        return [_rows(cohorts, [rng] * len(cohorts), 1.0) for _ in range(draws)]

    def answer(
        self,
        plan: StudyPlan,
        tables: Sequence[tuple[pd.DataFrame, int]],
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """The planned model's coefficients from the fit, every other question from synthetic rows.

        Releases of different persons: coefficients are combined by inverse variance, rows are put together. Of several
        sites the coefficients are better told by `together`.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal: an interaction or a curve, of which the figures tell nothing; no synthetic table
            supports it.
        """
        design = self.design(plan)
        releases = tuple(self.release(plan, table, n).to_bytes() for table, n in tables)
        if planned_terms(design, question) is not None:
            _seen(releases, design)
            alone = [_fitted(data, design, True) for data in releases]
            how = _BOOTSTRAPPED if any(cohort.bootstrapped for cohort in alone) else _ALONE
            return _coefficients([effects_of(cohort) for cohort in alone], design, question, how, origin)
        self.require_shapes(question)
        persons, names = sum(n for _, n in tables), design.spec.covariates
        tails = {
            (j, at, which): tail
            for at, one in enumerate(_tails(releases, design))
            for j, several in one.items()
            for which, tail in enumerate(several)
            if names[j] in question.columns
        }
        unmoved = tuple(sorted({j for j, _, _ in tails}))
        steps = [(tail, _with_tail(releases, design, unmoved, *place)) for place, tail in tails.items()]
        warnings = (_MODEL, *(TAILED.format(name=names[j]) for j in unmoved))
        rows = answer_from_rows(_pairs(releases, design, unmoved), steps, persons, question, levels, origin, warnings)
        smooth = question.kind == "mean" and question.outcome not in {names[j] for j in unmoved}
        beside = beside_margin([read(data, design) for data in releases if smooth], design, question.outcome)
        return [row if row.yi is None else replace(row, vi_common=row.vi_common + beside) for row in rows]

    def together(
        self,
        plan: StudyPlan,
        sites: Mapping[str, Sequence[tuple[pd.DataFrame, int]]],
        question: Estimand,
        *,
        origins: Mapping[str, Origin],
    ) -> dict[str, list[Estimate]]:
        """The planned model's coefficients of all sites, looked at from the effects they have in common.

        A site that says it has more persons than all others together is read beside them, and they without it
        (`shared.mechanisms.base.balanced`): what it is to be looked at with is its own matter, and not theirs.
        """
        design = self.design(plan)
        if planned_terms(design, question) is None:
            return {}
        persons = {site: sum(n for _, n in tables) for site, tables in sites.items()}
        releases = {
            site: tuple(self.release(plan, table, n).to_bytes() for table, n in tables)
            for site, tables in sites.items()
        }
        kept = balanced(persons)
        found = _beside({site: releases[site] for site in kept}, design)
        for site in sites.keys() - kept:
            smaller = {other: releases[other] for other in sites if persons[other] <= persons[site]}
            try:
                found |= {site: _beside(smaller, design)[site]} if len(smaller) > 1 else {}
            except (EstimateRefusal, KeyError):  # it answers for itself, and says why not
                continue
        beyond = _beyond(tuple(data for site in kept for data in releases[site]), design)
        return {
            site: _coefficients(found[site], design, question, _TOGETHER, origins[site], beyond)
            for site in sites
            if site in found
        }


# -- answers -------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def _fitted(data: bytes, design: Design, bootstrap: bool) -> Cohort:
    try:
        # Simulation, not noise that protects anybody: the seed is the release itself, so an answer stays the same.
        rng = np.random.default_rng(_seed(data)) if bootstrap else None
        found = fit(read(data, design), design, rng=rng, bootstrap=BOOTSTRAP)
    except (np.linalg.LinAlgError, FloatingPointError) as error:
        raise EstimateRefusal("the figures must determine a cohort", given=type(error).__name__) from None
    if not np.isfinite([found.effects, np.diag(found.sampling), np.diag(found.privacy)]).all():
        raise EstimateRefusal("the figures must determine a cohort", given="no finite effect")
    return found


def _doubt(cohort: Cohort) -> str:
    spec = cohort.design.spec
    focus = spec.declared or spec.exposures or spec.covariates
    wider = np.sqrt(1 + np.diag(cohort.privacy) / np.diag(cohort.sampling))
    worst = max((float(wider[spec.covariates.index(name)]), name) for name in focus)
    if worst[0] <= DOUBT:
        return ""
    which = in_words(worst[1], cohort.design.factors)
    return (
        f"Too few persons for the plan's price: the noise makes the interval of {which} "
        f"{worst[0]:.1f} times as wide as the {cohort.n} persons alone would."
    )


def _seen(releases: Sequence[bytes], design: Design) -> list[tuple[MomentsRelease, Design]]:
    """The releases; refused where they do not show how a covariate of the planned model is spread."""
    given = [(read(data, design), design) for data in releases]
    if unseen := coarse(given):
        raise EstimateRefusal(
            "the histograms must show how the covariates of the planned model are spread",
            given=unseen,
            next_step=f"{_SPREAD_OUT} More bins help only where hospitals have thousands. Its coefficient and the "
            "others would be off by more than any interval.",
        )
    return given


@lru_cache(maxsize=8)
def _placed(releases: tuple[bytes, ...], design: Design, *, alike: bool, levels: bool) -> tuple[SitePlace, ...]:
    return places([(read(data, design), design) for data in releases], alike=alike, levels=levels)


@lru_cache(maxsize=8)
def _beyond(releases: tuple[bytes, ...], design: Design) -> float:
    return normal_beyond([read(data, design) for data in releases], design)


def _beside(releases: Mapping[str, Sequence[bytes]], design: Design) -> dict[str, list[SiteEffects]]:
    """Site to what its releases say, all looked at together; empty where the figures determine nothing."""
    if not releases:
        return {}
    owners, every = zip(*((site, one) for site, several in releases.items() for one in several), strict=True)
    _seen(every, design)
    try:
        effects = [place.effects for place in _placed(every, design, alike=True, levels=True)]
    except np.linalg.LinAlgError:
        return {}
    if not all(np.isfinite([one.effects, one.sampling, one.privacy, one.misfit]).all() for one in effects):
        return {}
    return {site: [one for owner, one in zip(owners, effects, strict=True) if owner == site] for site in releases}


def _coefficients(
    found: Sequence[SiteEffects],
    design: Design,
    question: Estimand,
    how: str,
    origin: Origin,
    beyond: float = 0.0,
) -> list[Estimate]:
    """The terms of one site's releases, which are of different persons: by inverse variance."""
    out, n, lost = [], sum(one.n for one in found), found[0].lost
    found = [one for one in found if not one.lost]
    for j, label, units in planned_terms(design, question) or ():
        if not found:
            nothing: dict[str, Any] = {"yi": None, "vi_sampling": None, "reason": lost}
            out.append(Estimate(term=label, n=n, scale=question.scale, **nothing, **origin))
            continue
        name = design.spec.covariates[j]
        sampling, privacy = np.array([(one.sampling[j], one.privacy[j]) for one in found]).T
        weights = 1 / (sampling + privacy)
        weights /= weights.sum()
        apart = float(found[0].apart[j])
        out.append(
            Estimate(
                term=label,
                yi=float(weights @ [one.effects[j] for one in found]) * units,
                vi_sampling=float(weights**2 @ sampling) * units**2,
                vi_privacy=float(weights**2 @ privacy) * units**2,
                vi_common=float(weights @ np.sqrt([one.common[j] for one in found])) ** 2 * units**2,
                n=sum(one.n for one in found),
                scale=question.scale,
                warnings=cautions_of(name, design, question, apart, units, beyond),
                how=how + (", releases by inverse variance" if len(found) > 1 else ""),
                **origin,
            )
        )
    return out


def _rows(cohorts: Sequence[Cohort], rngs: Sequence[np.random.Generator], share: float, **more: Any) -> pd.DataFrame:
    both = zip(cohorts, rngs, strict=True)
    made = [cohort.rows(rng, n=max(1, round(share * cohort.n)), **more) for cohort, rng in both]
    return made[0] if len(made) == 1 else pd.concat(made, ignore_index=True)


@lru_cache(maxsize=16)
def _tails(releases: tuple[bytes, ...], design: Design) -> tuple[dict[int, tuple[Tail, ...]], ...]:
    """Of each release: covariate, by its place, to what noise hides of its tails, in all releases or in none."""
    given = [read(data, design) for data in releases]
    tailed = [j for j in range(design.p) if any(hidden_tails(release, design, j) for release in given)]
    return tuple({j: hidden_tails(release, design, j, alike=True) for j in tailed} for release in given)


@lru_cache(maxsize=16)
def _pairs(
    releases: tuple[bytes, ...], design: Design, unmoved: tuple[int, ...] = ()
) -> tuple[tuple[pd.DataFrame, pd.DataFrame], ...]:
    """Pairs of synthetic tables that share their uniforms: as released, and with the noise drawn again.

    Args:
        unmoved: covariates, by their places, that are as their histograms alone have them.
    """
    seed = _seed(b"".join(releases))
    found = [_fitted(data, design, True) for data in releases]
    pairs = []
    for k in range(DRAWS):
        generator = np.random.default_rng([seed, k])
        both = (found, [cohort.redrawn(generator) for cohort in found])
        first, second = (_alike(_unmoved(one, releases, design, unmoved), releases, k) for one in both)
        pairs.append((first, second))
    return tuple(pairs)


@lru_cache(maxsize=16)
def _with_tail(
    releases: tuple[bytes, ...], design: Design, unmoved: tuple[int, ...], column: int, at: int, which: int
) -> tuple[pd.DataFrame, ...]:
    """The first tables of the first pairs, with what noise may hide of a covariate's tail in one of the releases."""
    tail = _tails(releases, design)[at][column][which]
    found = _unmoved([_fitted(data, design, True) for data in releases], releases, design, unmoved)
    found[at] = found[at].with_margins({column: tail.margin()})
    return tuple(_alike(found, releases, k) for k in range(TAIL_DRAWS))


def _unmoved(
    cohorts: Sequence[Cohort], releases: tuple[bytes, ...], design: Design, columns: Sequence[int]
) -> list[Cohort]:
    """Cohorts of releases with some covariates as their histograms alone have them."""
    tails = _tails(releases, design)
    margins = [{j: one[j][0].margin(0) for j in columns if one[j]} for one in tails]
    return [cohort.with_margins(own) for cohort, own in zip(cohorts, margins, strict=True)]


def _alike(cohorts: Sequence[Cohort], releases: tuple[bytes, ...], draw: int) -> pd.DataFrame:
    """Rows of cohorts by the uniforms of one draw, which are of the releases."""
    share, start = min(1.0, MOST_ROWS / sum(cohort.n for cohort in cohorts)), _seed(b"".join(releases))
    rngs = [np.random.default_rng([start, draw, i]) for i in range(len(cohorts))]
    return _rows(cohorts, rngs, share, calibrated=False)


def _seed(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
