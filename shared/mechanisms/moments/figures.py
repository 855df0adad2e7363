"""The lines of a released moments table: block and words of every figure, the question whose terms they hold, and the
cautions that stand beside these."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

from shared.estimands.answer import Estimand
from shared.mechanisms.moments.factors import columns_of, factor_of, in_words
from shared.mechanisms.moments.noise import Design
from shared.plans.dictionary import NUMERIC, Column, Dictionary

__all__ = [
    "BLOCKS",
    "TAILED",
    "cautions_of",
    "names_of",
    "plain",
    "planned_terms",
    "terms_of",
]

BLOCKS = ("histogram", "moment", "product", "score")
_MODELS = {"survival": "cox", "binary": "logistic", "count": "poisson", "linear": "ols"}
_FEATURES = {
    "survival": ("event", "hazard lived through"),
    "binary": ("yes",),
    "count": ("count",),
    "linear": ("value",),
}

_UNDECLARED = (
    "The coefficient of {name} is not declared in the plan, so it rests on the whole planned model. Where groups of an "
    "outcome differ in spread, intervals of such coefficients were measured to hold the records' answer less often "
    "than they say, and nothing in a release tells where (docs/zoo.md, Declaring every coefficient). A plan "
    "whose release.declared names {name} asks the records for it, and so does a secure sum of it once it is opened."
)
_DENIED = (
    "The figures of {name} contradict each other under the planned model: its own score and its moment with the "
    "outcome, over all sites, are {far} apart per {units:g}, which patients and noise seldom do. So that model is not "
    "the records' there, as where an effect bends, {name} has a long tail or groups of the outcome differ in spread. "
    "The answer goes by the score; how far it is off, and which way, is not known: its interval allows for about as "
    "much in both directions. Plan {name} in bands or as its logarithm, or a mechanism that keeps rows, and see "
    "whether the answer stays."
)
_SKEWED = (
    "{name} is unlike a measurement with normal residuals: of a normal law with the mean and spread that its "
    "histograms show, {share:.0f} % would lie beyond its bounds, where nobody can be. So it has a long tail, a heap at "
    "a bound, or is spread over all of its range. Noisy histograms and bounded sums hold little of a tail, and effects "
    "on {name} may be off by more than their intervals say: with a tail, too near to none, in an interval narrower "
    "than the records' own. Plan it as a count, as its logarithm or in bands, or a mechanism that keeps rows."
)
TAILED = (
    "{name} is skewed, or has more persons far out than a smooth margin, and noise hides how many. The answer counts "
    "them as the noisy histogram shows them: a mean's interval has that noise, is wide for it and may lie beyond the "
    "bounds of {name}; another answer has it as far as the mean moves it, and may be off by more. A larger ε, or "
    "{name} in bands or as its logarithm, tells more."
)
_BEYOND = 0.05
"""Share of a normal law beyond the bounds from which a measurement is called skewed: as many as a 95 % interval leaves
out. Worlds that settings are chosen by are far above it, or have next to none."""


@lru_cache(maxsize=16)
def names_of(design: Design) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Block and words of every figure, in order."""
    spec = design.spec
    shown = [in_words(name, design.factors) for name in spec.covariates]
    words: list[list[str]] = [[], [], [], [in_words(name, design.factors) for name in spec.declared]]
    for name, column, edges in zip(shown, design.covariates, design.edges, strict=True):
        words[0] += _cells(name, column, edges)
    cells = _cells(design.response.name, design.response, design.outcome_edges)
    if spec.outcome == "survival":
        died = design.dictionary.column(spec.responses[1])
        # The histogram's first row is of those with the event.
        cells = [f"{cell}, {died.name} = {died.levels[level]}" for level in (1, 0) for cell in cells]
    words[0] += cells
    rows = (*_FEATURES[spec.outcome], "everybody")
    words[1] = [f"{row} × {name}" for row in rows for name in ("everybody", *shown)]
    words[2] = [f"{name} squared" for name in shown]
    words[2] += [f"{one} × {other}" for one, other in itertools.combinations(shown, 2)]
    blocks = [block for block, names in zip(BLOCKS, words, strict=True) for _ in names]
    return tuple(blocks), tuple(itertools.chain(*words))


def _cells(name: str, column: Column, edges: Any) -> list[str]:
    if column.kind not in NUMERIC:
        return [f"{name} = {level}" for level in column.levels]
    if column.kind == "integer" and edges[1] - edges[0] == 1 and edges[0] % 1 == 0.5:
        return [f"{name} {low + 0.5:g}" for low in edges[:-1]]
    return [f"{name} {low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges)]


def planned_terms(design: Design, question: Estimand) -> list[tuple[int, str, float]] | None:
    """(covariate, label, units per coefficient) of each term, where the question is the very model that was planned.

    None where it is another, of which the figures hold no coefficient.
    """
    spec = design.spec
    if question.kind != _MODELS[spec.outcome]:
        return None
    outcome = (question.duration, question.event) if spec.outcome == "survival" else (question.outcome,)
    if question != plain(question) or outcome != spec.responses:
        return None
    found = terms_of(design, question)
    if found is None or {at for at, _, _ in found} != set(range(design.p)):
        return None
    return found


def plain(question: Estimand, *options: str) -> Estimand:
    """The question without any option but these."""
    parts = ("kind", "terms", "outcome", "duration", "event", "per", *options)
    return Estimand(**{name: getattr(question, name) for name in parts})


def terms_of(design: Design, question: Estimand) -> list[tuple[int, str, float]] | None:
    """(covariate, label, units per coefficient) of each term of a question about some of the covariates.

    None where a term is none of them, or of another form than the planned model has it.
    """
    spec = design.spec
    columns = {term: columns_of(_of_two(term, design.dictionary), design.factors) for term in question.terms}
    if not set(itertools.chain(*columns.values())) <= set(spec.covariates):
        return None
    out = []
    for term in question.terms:
        if factor := factor_of(columns[term][0], design.factors):
            if term in question.per:
                return None
            for name, level in zip(factor.names, factor.column.levels[1:], strict=True):
                out.append((spec.covariates.index(name), f"{term}[{level}]", 1.0))
            continue
        column = design.dictionary.column(columns[term][0])
        label, units = question.label(term), question.per.get(term, 1.0)
        if column.kind not in NUMERIC:
            levels = column.levels
            if (
                column.name != term
            ):  # C(sex): a factor's one effect, from the first level to the second, is the column's
                if term in question.per:
                    return None
                label, units = f"{term}[{levels[1]}]", 1.0
            elif any(isinstance(level, str) for level in levels):
                if len(levels) > 2:
                    return None  # a factor with an effect per level is another model than a score per step
                label = f"{term}[{levels[1]}]"
            else:
                steps = {float(high) - float(low) for low, high in itertools.pairwise(levels)}
                if len(steps) > 1:
                    return None
                units /= steps.pop()
        out.append((spec.covariates.index(column.name), label, units))
    return out


def _of_two(term: str, dictionary: Dictionary) -> str:
    """The column of ``C(column)`` where it has two levels; any other term as it is."""
    inside = term[2:-1] if term.startswith("C(") else term
    column = next((column for column in dictionary.columns if column.name == inside), None)
    two = column is not None and column.kind not in NUMERIC and len(column.levels) == 2
    return inside if two else term


def cautions_of(
    name: str, design: Design, question: Estimand, apart: float, units: float, beyond: float
) -> tuple[str, ...]:
    """Cautions on a covariate's coefficient.

    Args:
        name: of the covariate's column.
        apart: how far its two figures differ, per unit; 0 where chance may do that.
        units: for which the coefficient is told.
        beyond: as of `histograms.normal_beyond`.
    """
    found = _of_coefficient(name, design, question, apart, units)
    if beyond >= _BEYOND:
        found += (_SKEWED.format(name=design.response.name, share=100 * beyond),)
    return found


def _of_coefficient(name: str, design: Design, question: Estimand, apart: float, units: float) -> tuple[str, ...]:
    """Where it is not declared, or its two figures differ."""
    factor = factor_of(name, design.factors)
    column = factor.column.name if factor else name
    if name not in design.spec.declared:
        return (_UNDECLARED.format(name=column),)
    if not apart:
        return ()
    size = abs(apart * units)
    far = f"a factor of {math.exp(min(size, 50)):.2f}" if question.scale == "log" else f"{size:.2g}"
    return (_DENIED.format(name=column, far=far, units=units),)
