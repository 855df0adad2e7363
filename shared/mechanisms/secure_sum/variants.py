r"""The planned model otherwise: of fewer covariates, in a subgroup, or within a window of time, in the same sum.

No figure of a pilot is of such a variant, but the pilot's model is a law of everybody, and says what the variant's
regression would be there: with N(x, t) the events expected of a point x at t by that law, Y(x, t) who is at risk, and
the point within the subgroup and t within the window, the solution of Cox's score

.. math:: \sum_x \int z \, \{dN(x, t) - Y(x, t) e^{b'z} d\Lambda(t)\} = 0, \qquad
          d\Lambda(t) = \sum_x dN(x, t) \Big/ \sum_x Y(x, t) e^{b'z},

z the variant's covariates; of yes or no, the logistic regression's. At the coefficient that all sites are looked at
with, the others solve the same. A record's influence is the score of the variant's own model along the direction that
its other covariates do not move (`shared.mechanisms.moments.influence`), with the risk-set means and hazards of that
solution, and 0 outside the subgroup. At the variant's regression on the records influences sum to zero, whether or not
its model is true: what it leaves out may matter.

The pilot's own coefficient of a variant is that solution at the site's place, moved along its derivative to the site's
effects; it knows nothing of a subgroup that differs otherwise than in its covariates. That the sum tells.

Points of the law may be at two levels of a nominal column, or at the first too often (`factors.folded`); records are
not, and they alone are summed. With points that have one level each, by `factors.level_coefficients`, answers of levels
that lie apart in covariates and effect were as far from the records' as without: within a fifth of a standard error.

Source: D. Y. Lin, L. J. Wei (1989), J. Am. Stat. Assoc. 84, 1074.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import EstimateRefusal, ParameterError, PlanRefusal
from shared.estimands.floors import MIN_EVENTS
from shared.estimands.formulas import Node, QuestionRows, names, parse, values
from shared.estimands.questions import Estimand, parse_estimand
from shared.mechanisms.base import must
from shared.mechanisms.moments.copula import CUT
from shared.mechanisms.moments.factors import factor_of, folded
from shared.mechanisms.moments.figures import plain, terms_of
from shared.mechanisms.moments.influence import direction_of
from shared.mechanisms.moments.noise import Design
from shared.mechanisms.moments.outcomes import MOST_HAZARD, Binary, Survival
from shared.mechanisms.secure_sum.influences import ModelAt, model_at
from shared.plans.dictionary import NUMERIC

if TYPE_CHECKING:
    import pandas as pd

    from shared.mechanisms.moments.together import SitePlace

__all__ = [
    "Variant",
    "VariantFit",
    "VariantModel",
    "fitted_variant",
    "normal_window",
    "pilot_effects",
    "planned_variants",
]

special = deferred("scipy.special")

Array = NDArray[np.float64]

_STEPS, _SETTLED, _FARTHEST = 40, 1e-8, 1.0
"""Newton's steps at most, the step at which they end, and the longest one, in the linear predictor per scale."""
_RIDGE = 1e-6
"""Of the information's mean: where a subgroup has one value of a covariate its coefficient stays 0."""
_LEAST_SPREAD = 1e-2
"""Standard deviation of the direction, per scale, below which a covariate has one value in a subgroup."""
_UNKNOWN = 1e4
"""Variance, per scale, of a coefficient of which a site says nothing."""
_MOST_UNIT = 1e9
"""Units of a coefficient beyond which its variances are no numbers."""
_PERSONS = 4096
"""Made-up persons within the public bounds, of whom a subgroup must have some and not all."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A question other than the planned one whose first coefficient is summed, too.

    Args:
        question: as the plan has it. design: of the pilot, whose covariates it is of.
        column: of that coefficient, among the covariates. unit: for which the coefficient is told.
        columns: of all its covariates, `column` among them.
    """

    question: Estimand
    design: Design
    column: int
    unit: float
    columns: tuple[int, ...]

    @property
    def window(self) -> tuple[float, float]:
        """Times between which events are counted, of those who are at risk at the first."""
        start, stop = self.question.start, self.question.stop
        return 0.0 if start is None else start, math.inf if stop is None else stop

    def among(self, x: Array) -> NDArray[np.bool_]:
        """(n,) true for records of covariates (n, p) in the subgroup.

        Raises: EstimateRefusal, of a filter that no table of these columns can be filtered by, whatever its records.
        """
        if not self.question.subset:
            return np.ones(len(x), dtype=bool)
        return np.asarray(values(parse(self.question.subset), QuestionRows(_table(self.design, x))) == 1)

    def terms_in(self, question: Estimand) -> list[tuple[int, str, float]]:
        """(covariate, label, units per coefficient) of its term in a question that is this variant; else nothing."""
        mine, asked = self.question, normal_window(question, self.design)
        terms = terms_of(self.design, question) or []
        if {at for at, _, _ in terms} != set(self.columns) or _filter(asked) != _filter(mine):
            return []
        if replace(asked, terms=mine.terms, per=mine.per, subset=mine.subset) != mine:
            return []
        return [one for one in terms if one[0] == self.column]


@dataclass(frozen=True, kw_only=True)
class VariantModel:
    """A variant's own regression at a site, as `ModelAt` has the planned one.

    Args:
        effects: (1 + p,) level and effects per scale, 0 for covariates that it does not have.
        cumulative: (intervals + 1,) baseline cumulative hazard; empty for an outcome of yes or no.
    """

    variant: Variant
    effects: Array
    cumulative: Array

    def influences(self, at: ModelAt, x: Array, y: Array, along: Array, means: Array) -> Array:
        """(n,) of records, or (n, cases) of cases (1, cases, columns) of each, 0 outside the subgroup and the window.

        Args:
            at: the planned model at the site. x: (n, p). y: (n, columns) outcomes.
            along: (p,) d. means: (intervals,) d'x̄.
        """
        outcome = at.outcome
        standard = np.clip((x - at.centre) / at.scale, -CUT, CUT)
        eta, own = (self.effects[0] + standard @ self.effects[1:])[:, None], (along @ standard.T)[None]
        if not isinstance(outcome, Survival):
            found = outcome.influence(y, eta, own, means[None])[0]
        else:
            outcome = replace(outcome, cumulative=self.cumulative)
            start, stop = self.variant.window
            time, event = y[..., 0], y[..., 1]
            # Hazards rise within the window alone.
            ended = np.stack([np.minimum(time, stop), np.where((start < time) & (time <= stop), event, 0.0)], axis=-1)
            found = outcome.influence(ended, eta, own, means[None])[0]
        return np.where(self.variant.among(x).reshape(-1, *[1] * (found.ndim - 1)), found, 0.0)


@dataclass(frozen=True, kw_only=True)
class VariantFit:
    """A variant's regression under the planned model's law at a site, and the direction of its coefficient.

    Args:
        model: the regression. coefficient: per unit.
        along: (p,) d, in the coefficient's unit. means: (intervals,) d'x̄. psi: (points, cases) influences.
        moved: (p,) derivative of the coefficient in the planned model's effects per scale.
    """

    model: VariantModel
    coefficient: float
    along: Array
    means: Array
    psi: Array
    moved: Array


@dataclass(frozen=True)
class _Law:
    """The planned model's expectations of points in the subgroup, within the window.

    Args:
        standard: (m, p). events: (m, intervals) expected, or (m, 1) chances of yes.
        risk: (m, intervals) who is at risk, times the baseline's rise; None for yes or no.
        level: of a logistic predictor; 0 for survival. present: (m,) 1 in the subgroup.
        last: interval of the window; None where there is no time.
    """

    standard: Array
    events: Array
    risk: Array | None
    level: float
    present: Array
    last: int | None = None

    @staticmethod
    def of(at: ModelAt, x: Array, variant: Variant) -> _Law:
        standard = np.clip((x - at.centre) / at.scale, -CUT, CUT)
        eta = at.effects[:, 0] + standard @ at.effects[:, 1:].T
        present = variant.among(x).astype(float)
        if not isinstance(at.outcome, Survival):
            assert isinstance(at.outcome, Binary)
            return _Law(
                standard, (at.outcome.conditional(eta) + 0.5) * present[:, None], None, at.outcome.level, present
            )
        (start, stop), edges = variant.window, at.outcome.edges
        within = ((edges[1:] + edges[:-1]) / 2 > start) & ((edges[1:] + edges[:-1]) / 2 < stop)
        events = at.outcome.intensity(eta) * present[:, None] * within
        risk = events / np.exp(np.clip(eta[:, :1], -MOST_HAZARD, MOST_HAZARD))
        last = int(np.flatnonzero(within).max(initial=-1))
        return _Law(standard, events, risk, 0.0, present, last if last >= 0 else None)

    def expected(self, effects: Array) -> tuple[Array, Array, Array]:
        """(m, 1 or intervals) events that a regression expects of each point, weights of its information, hazards."""
        eta = effects[0] + self.standard @ effects[1:]
        if self.risk is None:
            mean = self.present * special.expit(self.level + eta)
            return mean[:, None], (mean * (self.present - mean))[:, None], np.empty(0)
        charged = self.risk * np.exp(np.clip(eta, -MOST_HAZARD, MOST_HAZARD))[:, None]
        rise = self.events.sum(axis=0) / np.maximum(charged.sum(axis=0), 1e-300)
        return charged * rise, charged * rise, rise

    @property
    def fewest(self) -> float:
        """Events that are expected of the points, or of yes and no those that are fewer."""
        events = float(self.events.sum())
        return events if self.risk is not None else min(events, float(self.present.sum()) - events)

    def spread(self, weight: Array) -> Array:
        """(p, p) weighted covariance of the covariates, times the weights' sum, each interval about its own mean."""
        total = weight.sum(axis=0)
        means = weight.T @ self.standard
        square = (self.standard * weight.sum(axis=1)[:, None]).T @ self.standard
        return np.asarray(square - (means / np.maximum(total, 1e-300)[:, None]).T @ means)


@lru_cache(maxsize=16)
def planned_variants(texts: tuple[str, ...], design: Design, summed: tuple[str, ...]) -> tuple[Variant, ...]:
    """The variants that a plan names; kept, because every look asks for them.

    Args:
        texts: questions. design: of the pilot. summed: covariates whose coefficients the sum has under the whole model.
    Raises: PlanRefusal: a question of another outcome or kind, of other terms or options, the planned model itself,
        one twice, or one whose first term is not summed.
    """
    found = [_variant(text, design, summed) for text in texts]
    for k, one in enumerate(found):
        again = any(one.terms_in(other.question) and one.column == other.column for other in found[:k])
        must(not again, "release.variants must have each question once", str(one.question))
    return tuple(found)


def _variant(text: str, design: Design, summed: Sequence[str]) -> Variant:
    try:
        question = normal_window(parse_estimand(text), design)
    except ParameterError as refusal:
        raise PlanRefusal(f"a question of release.variants: {refusal.must}", given=refusal.given) from None
    spec, kind = design.spec, "cox" if design.spec.outcome == "survival" else "logistic"
    responses = (question.duration, question.event) if kind == "cox" else (question.outcome,)
    must(
        question == plain(question, "subset", "start", "stop")
        and question.kind == kind
        and responses == tuple(spec.responses),
        f"a question of release.variants must be {kind}({', '.join(spec.responses)}) with no option but subset, start "
        "and stop",
        text,
    )
    known = {factor.column.name for factor in design.factors} | {
        column.name for column in design.covariates if not factor_of(column.name, design.factors)
    }
    mine = set(question.columns) - {*spec.responses}
    mine |= set(names(parse(question.subset))) if question.subset else set()
    must(mine <= known, "columns of release.variants must be of release.covariates", ", ".join(sorted(mine - known)))
    terms = terms_of(design, question)
    must(
        bool(terms),
        "terms of release.variants must be release.covariates, as the planned model has them",
        " + ".join(question.terms) or "none",
    )
    assert terms
    column, _, unit = terms[0]
    must(
        spec.covariates[column] in summed,
        "the first term of a question of release.variants must be release.coefficient or of release.further",
        question.terms[0],
    )
    for _, _, per in terms:
        must(1 / _MOST_UNIT < per < _MOST_UNIT, f"units of release.variants must be below {_MOST_UNIT:g}", per)
    columns = tuple(sorted({at for at, _, _ in terms}))
    whole = len(columns) == design.p and not question.subset and question.start is None and question.stop is None
    must(not whole, "a question of release.variants must be another than the planned one", text)
    made = Variant(question=question, design=design, column=column, unit=unit, columns=columns)
    _require_window(made)
    _require_subgroup(made)
    return made


def _require_window(variant: Variant) -> None:
    if variant.design.spec.outcome != "survival":
        return
    (start, stop), horizon = variant.window, variant.design.horizon
    must(
        start < horizon and (stop <= horizon or stop == math.inf),
        "a window of release.variants must be before the horizon",
        f"{start:g} to {stop:g}",
    )
    least = horizon / (2 * variant.design.spec.time_bins)
    must(
        min(stop, horizon) - start >= least,
        f"a window of release.variants must be {least:.3g} long or more: the pilots' hazards are no finer",
        f"{start:g} to {stop:g}",
    )


def _require_subgroup(variant: Variant) -> None:
    if not variant.question.subset:
        return
    x = _made_up(variant)
    try:
        inside = variant.among(x)
    except EstimateRefusal as refusal:
        raise PlanRefusal(f"a subset of release.variants: {refusal.must}", given=refusal.given) from None
    must(
        0 < int(np.count_nonzero(inside)) < _PERSONS,
        "a subset of release.variants must be some of the persons that the dictionary allows, and not all",
        f"{'all' if inside.all() else 'none'}: {variant.question.subset}",
    )


def _made_up(variant: Variant) -> Array:
    """(persons, p) persons of every kind that the dictionary allows: evenly spread, at its ends, about the filter."""
    design, rng = variant.design, np.random.default_rng(1)
    constants = _numbers(parse(variant.question.subset))
    x = np.empty((_PERSONS, design.p))
    for k, column in enumerate(design.covariates):
        if column.kind not in NUMERIC:
            x[:, k] = rng.integers(len(column.levels), size=_PERSONS)
            continue
        (low, high), even = column.span, rng.random(_PERSONS)
        near = [one + way * 1e-3 * (high - low) for one in constants if low <= one <= high for way in (-1, 1)]
        near += [one for one in constants if column.kind == "integer"]
        kinds = [even, even**8, 1 - even**8, (rng.choice(near or [low], _PERSONS) - low) / (high - low)]
        x[:, k] = np.clip(low + (high - low) * np.choose(rng.integers(4, size=_PERSONS), kinds), low, high)
    for factor in design.factors:
        level = rng.integers(1 + len(factor.names), size=_PERSONS)
        for k, name in enumerate(factor.names, start=1):
            x[:, design.spec.covariates.index(name)] = level == k
    return x


def _numbers(node: Node) -> list[float]:
    own = [float(node.value)] if node.kind == "number" else []
    return own + [one for part in node.parts for one in _numbers(part)]


def normal_window(question: Estimand, design: Design) -> Estimand:
    """The question without a window's start at 0, and its end at the horizon: these say nothing."""
    start = None if question.start == 0 else question.start
    ends = design.spec.outcome == "survival" and question.stop == design.horizon
    return replace(question, start=start, stop=None if ends else question.stop)


def _filter(question: Estimand) -> str:
    return str(parse(question.subset)) if question.subset else ""


def fitted_variant(
    at: ModelAt, x: Array, cases: Array, variant: Variant, coefficient: float | None = None
) -> VariantFit:
    """A variant's regression where outcomes of the points x follow the planned model.

    Args:
        at: the planned model at a site. x: (points, p) that stand for everybody. cases: (1, cases, columns) outcomes.
        coefficient: of the variant, per unit, at which the others are found; None finds it, too.
    Returns: along nothing, with influences of 0, where this law expects fewer events in the subgroup and the window
        than a regression is answered of, or all there have one value of the coefficient's covariate.
    """
    law, factor = _Law.of(at, x, variant), float(at.scale[variant.column]) / variant.unit
    effects = np.zeros(1 + at.scale.size)
    if law.fewest * at.n / len(x) < MIN_EVENTS:
        return _nothing(at, variant, coefficient or 0.0, (len(x), cases.shape[1]))
    if coefficient is not None:
        effects[1 + variant.column] = coefficient * factor
    effects = _solved(law, effects, [one for one in variant.columns if coefficient is None or one != variant.column])
    _, weight, rise = law.expected(effects)
    own = list(variant.columns)
    to = direction_of(weight, law.standard[:, own], own.index(variant.column))
    if to.spread < _LEAST_SPREAD:
        return _nothing(at, variant, coefficient or 0.0, (len(x), cases.shape[1]))
    along = np.zeros(at.scale.size)
    along[own] = to.along * factor
    spread = law.spread(weight)
    inner = spread[np.ix_(own, own)]
    moved = np.linalg.solve(inner + _ridge(inner), spread[own])[own.index(variant.column)]
    cumulative = np.empty(0)
    if isinstance(at.outcome, Survival):
        cumulative = np.r_[0.0, np.cumsum(rise * np.diff(at.outcome.cumulative))]
    means = to.means * factor
    if law.last is not None:
        # A time at an edge is of the interval that it begins: an event at the window's end has the mean before it.
        means[law.last + 1 :] = means[law.last]
    model = VariantModel(variant=variant, effects=effects, cumulative=cumulative)
    return VariantFit(
        model=model,
        coefficient=float(effects[1 + variant.column]) / factor,
        along=along,
        means=means,
        psi=model.influences(at, x, cases, along, means),
        moved=moved / factor,
    )


def pilot_effects(place: SitePlace, variants: Sequence[Variant]) -> list[tuple[float, float]]:
    """Of each variant's coefficient what a site's pilot makes of it, per unit: estimate and variance.

    The variance has the noise of the planned model's effects, the patients of the subgroup, and that by chance their
    own effect is another than everybody's: a regression of a part of the patients is from the one of all by the
    difference of their variances. Where nobody is, it is too large to say anything.
    """
    if not variants:
        return []
    model, points, cases = model_at(place, place.theta.effects)
    own = place.effects
    away = own.effects * model.scale - place.theta.effects[0, 1:]
    out = []
    for variant in variants:
        fit = fitted_variant(model, points, cases, variant)
        moved = fit.moved * model.scale
        known = model.n / len(points) * float((model.chance * fit.psi**2).sum())
        unknown = _UNKNOWN * (variant.unit / float(model.scale[variant.column])) ** 2
        patients, sampled = min(1 / max(known, 1e-300), unknown), float(moved**2 @ own.sampling)
        variance = float(moved**2 @ own.privacy) + patients + max(patients - sampled, 0.0)
        out.append((fit.coefficient + float(fit.moved @ away), variance))
    return out


def _nothing(at: ModelAt, variant: Variant, coefficient: float, shape: tuple[int, int]) -> VariantFit:
    """Of a site where nobody is in the subgroup: all its influences are 0."""
    edges = len(at.outcome.edges) if isinstance(at.outcome, Survival) else 0
    intervals = max(edges - 1, 1)
    return VariantFit(
        model=VariantModel(variant=variant, effects=np.zeros(1 + at.scale.size), cumulative=np.zeros(edges)),
        coefficient=coefficient,
        along=np.zeros(at.scale.size),
        means=np.zeros(intervals),
        psi=np.zeros(shape),
        moved=np.zeros(at.scale.size),
    )


def _solved(law: _Law, effects: Array, free: Sequence[int]) -> Array:
    """Effects at which the scores of the free covariates, and of a logistic level, are 0: by Newton's steps."""
    places = np.array([1 + one for one in free] if law.risk is not None else [0, *(1 + one for one in free)], dtype=int)
    one = np.column_stack([np.ones(len(law.standard)), law.standard])[:, places]
    effects = effects.copy()
    for _ in range(_STEPS if len(places) else 0):
        expected, weight, _ = law.expected(effects)
        if law.risk is None:
            information = (one * weight).T @ one
        else:
            information = law.spread(weight)[np.ix_(places - 1, places - 1)]
        score = one.T @ (law.events - expected).sum(axis=1)
        step = np.linalg.solve(information + _ridge(information), score)
        effects[places] += np.clip(step, -_FARTHEST, _FARTHEST)
        if float(np.abs(step).max()) < _SETTLED:
            break
    return effects


def _ridge(square: Array) -> Array:
    """Added to a matrix, so that what says nothing of a covariate leaves its coefficient at 0."""
    return np.asarray((_RIDGE * np.trace(square) / len(square) + 1e-300) * np.eye(len(square)))


def _table(design: Design, x: Array) -> pd.DataFrame:
    """Covariates as a table has them: levels by their names, a nominal column in place of its binary ones."""
    import pandas as pd

    columns = {}
    for column, value in zip(design.covariates, x.T, strict=True):
        if column.kind in NUMERIC or factor_of(column.name, design.factors):
            columns[column.name] = value if column.kind == "continuous" else np.rint(value)
        else:
            code = np.clip(np.rint(value), 0, len(column.levels) - 1).astype(int)
            columns[column.name] = pd.Series([column.levels[k] for k in code]).astype(column.dtype)
    return folded(pd.DataFrame(columns), design.factors)
