r"""From one table to one number per term and site: what an analyst may ask, and the estimate with its variance.

The question is a frozen `Estimand`, usually read from a short text, in either of two spellings::

    mean(sbp)   proportion(num > 0)   correlation(sbp, age)   two_by_two(died, measure = RR) ~ arm
    logistic(num > 0) ~ age/10 + sex   cox(years, died, subset = sex == 1) ~ sbp/10 * C(arm) + strata(centre)

    estimate(table, "cox", "Surv(years, died) ~ sbp/10 + age", term="age")      # as in R

`shared.estimands.formulas` reads both, and nothing in them is ever run as code.

A term that this table cannot support is **excluded by itself, with its reason**: its site keeps the other terms.
The decision behind that is what happens to the other terms of a logistic model when one separates the outcome,
say because every woman is a case. The supremum of the likelihood is then reached with that coefficient at
infinity, where the rows it determines have probability 1 and the others follow a *limiting conditional model*
(Geyer 2009): drop the determined rows, then every direction that the rest cannot see. Terms untouched by those
directions keep a finite estimate and an honest variance, and those are what we report. A Cox model treats a
two-valued column whose events all lie on one side in the same way; when its likelihood has no maximum for another
reason, no term of it is reported. Collinear terms are all excluded, not the
last one only: none of them is identified, and whichever stayed would mean something else than at another site.

Rows are complete cases: a row with a missing value in any column of the question is not used, and every answer says
how many rows were used, how many were left out for that, and how many lay outside the subset.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.columns import OF_A_COLUMN, compound_symmetry, correlation, crosstab, histogram, table_one
from shared.estimands.design import outcome_of
from shared.estimands.fits.cox import Fitting, alone
from shared.estimands.fits.survival import SurvivalCurve
from shared.estimands.floors import FAR, MIN_EVENTS, MIN_RESIDUAL_DF, Answer, LeastRows, QuestionResult
from shared.estimands.formulas import (
    QuestionRows,
    parse,
    values,
)
from shared.estimands.groups import group_answers
from shared.estimands.kinds import DESCRIBED, KINDS
from shared.estimands.models import model_answers
from shared.estimands.questions import INTERCEPT, MODELS, Estimand, Scale, parse_estimand, parse_formula
from shared.estimands.standardised import standardised_answers

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = [
    "MIN_EVENTS",
    "MIN_RESIDUAL_DF",
    "Estimand",
    "Estimate",
    "Origin",
    "Scale",
    "estimate",
    "estimate_drawn",
    "estimating",
    "influence",
    "influences",
    "parse_estimand",
    "parse_formula",
    "survival_curves",
]

Array = NDArray[np.float64]
_CHANCE = 1.25
"""Ratio of a sandwich variance to the model's that some hundred rows may have though they follow the model."""
_HINT = 'Write for example: estimate(table, "ols", "sbp ~ age").'


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One term at one site: the number, its variance in two parts, and where it came from.

    For a released table the parts are about the persons behind it, not about its rows: `coordinator.pooling.intervals`.

    Attributes:
        study, site, wave: origin.
        term: the term as written in the estimand; the same text at every site.
        yi: estimate on the analysis scale; None when the term is excluded.
        vi_sampling: variance from sampling patients, the fit of the flow included, squared units of yi; None when
            excluded.
        vi_privacy: variance added by the privacy mechanism's own draws.
        vi_common: variance of what every site's answer may be off by alike, as by a model that lacks something; in no
            vi, and no further site lowers it.
        vi_naive: what the table's own standard error says, as if its rows were patients; None where the table is one
            of patients, or the term is excluded.
        vi_sandwich: sum of squares of the influences of the table's rows: their variance whether or not they follow the
            model; None where the question has no influences.
        dispersion: of a count, how many times as much the table's rows vary about the model's means as a Poisson law
            does, alike for all terms; 1 for other outcomes, or where it is not known.
        correlations: of a model, with its other terms, by term: what pooling several together needs.
        how: the method by which the parts were found, in words; empty where vi_sampling is the table's own.
        attenuation: share of yi by which flows were measured to draw such an answer towards zero; in no variance.
        warnings: what the interval does not hold, in sentences.
        n: rows used.
        n_missing: rows left out for a missing value in a column of the question, or no weight, or the time window.
        n_outside: rows outside the subset.
        reason: why the term is excluded; empty otherwise.
        scale: how to read yi: ``log`` for ratios, ``logit`` for a proportion, ``fisher_z`` for a correlation.
        receipts: digests of the receipts of the releases used.
    Raises: ParameterError: a number that is not finite, a negative variance, an exclusion without a reason.

    >>> Estimate(study="s", site="A", wave=1, term="age", yi=0.2, vi_sampling=0.03, vi_privacy=0.01, n=90).vi
    0.04
    """

    study: str
    site: str
    wave: int
    term: str
    yi: float | None
    vi_sampling: float | None
    vi_privacy: float = 0.0
    n: int
    reason: str = ""
    scale: Scale = "identity"
    receipts: tuple[str, ...] = ()
    n_missing: int = 0
    n_outside: int = 0
    vi_naive: float | None = None
    how: str = ""
    attenuation: float = 0.0
    warnings: tuple[str, ...] = ()
    vi_common: float = 0.0
    vi_sandwich: float | None = None
    dispersion: float = 1.0
    correlations: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        where = f"estimate of {self.term!r} at {self.site!r}"
        if (self.yi is None) != (self.vi_sampling is None) or (self.yi is None) != bool(self.reason):
            raise ParameterError(f"{where} must have an estimate and a variance, or a reason for having neither")
        object.__setattr__(self, "warnings", tuple(self.warnings))
        for name in ("yi", "vi_sampling", "vi_privacy", "vi_naive", "vi_common", "vi_sandwich"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ParameterError(
                    f"{where}: {name} must be finite", given=f"{value}", next_step="Exclude the term with a reason."
                )
        parts = (self.vi_sampling, self.vi_privacy, self.vi_naive, self.vi_common, self.vi_sandwich)
        if min(part or 0.0 for part in parts) < 0:
            raise ParameterError(f"{where}: a variance must not be negative")
        if self.scale not in get_args(Scale):
            raise ParameterError(f"scale must be one of {', '.join(get_args(Scale))}", given=repr(self.scale))

    @property
    def vi(self) -> float | None:
        """Total variance: sampling plus privacy noise; None when excluded."""
        return None if self.vi_sampling is None else self.vi_sampling + self.vi_privacy

    @property
    def naive(self) -> float | None:
        """The variance of somebody who takes the rows for patients; None when excluded."""
        return self.vi_sampling if self.vi_naive is None else self.vi_naive

    @property
    def sandwich_ratio(self) -> float:
        """Ratio of the sandwich variance to the model's variance (`naive`); 1 where the excess may be chance.

        Above 1 the rows vary more than the model predicts: counts with a long tail, nonlinear effects.
        """
        own = self.naive
        found = self.vi_sandwich / own if own and self.vi_sandwich else 1.0
        return found if found > _CHANCE else 1.0


class Origin(TypedDict, total=False):
    """Provenance of a table, copied onto every `Estimate` that is made from it."""

    study: str
    site: str
    wave: int
    receipts: tuple[str, ...]


_NOWHERE: Origin = {"study": "", "site": "", "wave": 0, "receipts": ()}
_FLOORS = LeastRows(MIN_RESIDUAL_DF, MIN_EVENTS)


@overload
def estimate(
    table: pd.DataFrame | QuestionRows,
    question: Estimand,
    formula: None = None,
    *,
    levels: Mapping[str, Sequence[Any]] | None = ...,
    min_residual_df: int = ...,
    min_events: int = ...,
    **origin: Unpack[Origin],
) -> list[Estimate]: ...
@overload
def estimate(
    table: pd.DataFrame | QuestionRows, question: str, formula: str, *, term: str, **more: Any
) -> Estimate: ...
@overload
def estimate(
    table: pd.DataFrame | QuestionRows, question: str, formula: str, *, term: None = None, **more: Any
) -> pd.DataFrame: ...
def estimate(
    table: pd.DataFrame | QuestionRows,
    question: Estimand | str,
    formula: str | None = None,
    *,
    term: str | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    min_residual_df: int = MIN_RESIDUAL_DF,
    min_events: int = MIN_EVENTS,
    **more: Any,
) -> list[Estimate] | Estimate | pd.DataFrame:
    """Answer one question from one table: one estimate per term.

    Args:
        table: rows of one release; as `QuestionRows` when more questions are put to it. Rows with a missing value in a
            column of the question are not used.
        question: an `Estimand` (`parse_estimand` reads one from text), or a kind with a `formula` as in R.
        term: with a formula: the one term wanted, as the question writes it (``sbp/10``), as R prints it
            (``smokingformer``), or its column; for km and rmst without groups it may be left as ``""``.
        levels: column -> all its levels, the first being the reference. A categorical column brings its own;
            for any other a site would only know the levels it has, and references would differ between sites.
        min_residual_df, min_events: floors below which no number is given.
        more: study, site, wave and receipts (`Origin`), copied onto every estimate; and with a formula its options:
            weights, subset, ties, robust, measure, structure, start, stop, at, tau.
    Returns: for an `Estimand`, estimates in the order of its terms, without an intercept unless it is the only one;
        for a formula with `term`, that `Estimate`; without, a DataFrame with ``beta``, ``se``, ``n`` and ``reason``,
        indexed by the names R prints (for km: the curve with its risk table). Excluded terms have a reason and no
        number.
    Raises: ParameterError: a question outside the grammar, an unknown column or term in a formula; EstimateRefusal:
        words where numbers must stand, an outcome that must be 0 or 1 and is not: wrong at every site alike.

    >>> table = pd.DataFrame({"dose": np.arange(20.0), "arm": 1, "y": np.arange(20.0) ** 1.1})
    >>> rows = estimate(table, parse_estimand("ols(y) ~ dose + arm"), study="s", site="A", wave=1)
    >>> [(row.term, row.yi and round(row.yi, 2), row.reason) for row in rows]
    [('dose', 1.36, ''), ('arm', None, 'the column is constant at this site')]
    >>> estimate(table, "ols", "y ~ dose").beta.round(2).to_dict()
    {'(Intercept)': -0.72, 'dose': 1.36}
    """
    rows, floors = QuestionRows.of(table), LeastRows(min_residual_df, min_events)
    if isinstance(question, Estimand):
        if not more.keys() <= _NOWHERE.keys() or formula is not None or term is not None:
            given = ", ".join(more.keys() - _NOWHERE.keys()) or "a formula"
            raise ParameterError("an Estimand carries its own options", given=given)
        return alone(estimating(rows, question, levels, floors, **more))
    origin: dict[str, Any] = {name: more.pop(name, blank) for name, blank in _NOWHERE.items()}
    origin["receipts"] = tuple(origin["receipts"])
    if formula is None:
        raise ParameterError("a kind must come with a formula", given=repr(question), next_step=_HINT)
    estimand = parse_formula(question, formula, **more)
    _known(estimand, rows)
    result = alone(_answers(rows, estimand, dict(levels or {}), floors))
    if term is not None:
        label = _chosen(result, estimand, term)
        if "at" in KINDS[estimand.kind].must and estimand.at is None:
            raise ParameterError(f"{estimand.kind} must have a time to be one number", next_step="Give at=, a time.")
        return _estimate(result, estimand, label, **origin)
    return _frame(result, estimand)


def estimating(
    table: QuestionRows,
    question: Estimand,
    levels: Mapping[str, Sequence[Any]] | None = None,
    floors: LeastRows = _FLOORS,
    **origin: Unpack[Origin],
) -> Fitting[list[Estimate]]:
    """`estimate` of an `Estimand`, as work that waits for its fits.

    Args: as there; floors: below which no number is given.
    Raises: ParameterError (a question that needs a time, without one); EstimateRefusal, as there.
    """
    result = yield from _answers(table, question, dict(levels or {}), floors)
    if "at" in KINDS[question.kind].must and question.at is None:
        raise ParameterError(
            f"{question.kind} must have a time to be one number",
            next_step=f"Write {question.kind}(time, event, at = 5), the same at every site.",
        )
    shown = [one for one in result.answers if one.partition(" | ")[0] != INTERCEPT] or list(result.answers)
    whence: Any = {**_NOWHERE, **origin}
    whence["receipts"] = tuple(whence["receipts"])
    return [_estimate(result, question, label, **whence) for label in shown]


def _estimate(result: QuestionResult, estimand: Estimand, label: str, **origin: Unpack[Origin]) -> Estimate:
    """One term of an answered question, from the study, site, wave and receipts that `origin` names."""
    answer = _finite(result.answers[label])
    number, variance = (None, None) if isinstance(answer, str) else answer
    n, missing = result.counts.get(label, (result.n, result.missing))
    return Estimate(
        term=label,
        yi=number,
        vi_sampling=variance,
        vi_sandwich=_sandwich(result, label) if number is not None else None,
        dispersion=result.dispersion if math.isfinite(result.dispersion) else 1.0,
        n=n,
        n_missing=missing,
        n_outside=result.outside,
        reason=answer if isinstance(answer, str) else "",
        scale=result.scales.get(label, estimand.scale),
        correlations=result.correlations.get(label, {}) if number is not None else {},
        **origin,
    )


def estimate_drawn(
    table: pd.DataFrame,
    question: Estimand,
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    **origin: Unpack[Origin],
) -> list[Estimate]:
    """`estimate` of rows that a model of noisy figures drew, which say nothing of what none of them, or each, has.

    Half a row beside none is what sampling leaves open at a table of patients; here it is the model's doing.

    Args: as of `estimate`.
    """
    rows = estimate(table, question, levels=levels, **origin)
    halved = [question.kind in DESCRIBED and row.yi is not None and row.vi_sandwich is None for row in rows]
    why: dict[str, Any] = {"yi": None, "vi_sampling": None, "reason": "no drawn row has it, or every one has"}
    return [replace(row, **why) if half else row for row, half in zip(rows, halved, strict=True)]


def influence(
    table: pd.DataFrame | QuestionRows, question: Estimand, *, levels: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Array]:
    """Influence of each row of the table on each term of a model, to first order; 0 for unused rows.

    The sum of its squares is the term's sandwich variance. Kinds that are no models have none.

    Args:
        table: (n, …) rows of one release.
        question: as in `estimate`.
    Returns: label -> (n,), of the terms that the table supports.
    Raises: as `estimate`.
    """
    return alone(influences(QuestionRows.of(table), question, levels))


def influences(
    table: QuestionRows, question: Estimand, levels: Mapping[str, Sequence[Any]] | None = None
) -> Fitting[dict[str, Array]]:
    """`influence`, as work that waits for its fits."""
    found = yield from _answers(table, question, dict(levels or {}), _FLOORS)
    return {label: pushes for label, pushes in found.influence.items() if not isinstance(found.answers[label], str)}


def _sandwich(result: QuestionResult, label: str) -> float | None:
    pushes = result.influence.get(label)
    found = None if pushes is None else float(pushes @ pushes)
    return found if found is not None and math.isfinite(found) else None


def _finite(answer: Answer) -> Answer:
    if not isinstance(answer, str) and not (all(map(math.isfinite, answer)) and answer[1] > 0):
        return FAR
    return answer


def _known(estimand: Estimand, rows: QuestionRows) -> None:
    columns = list(rows.columns)
    for name in estimand.columns:
        if name not in rows:
            near = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
            raise ParameterError(
                "the table must have the column",
                given=repr(name),
                next_step=f"Nearest: {', '.join(near)}." if near else f"Columns: {', '.join(columns[:30])}.",
            )


def _chosen(result: QuestionResult, estimand: Estimand, term: str) -> str:
    """The answer that a term means: by its own text or R's name, or by its column when only one answer has it."""
    wanted = term.replace(" ", "")

    def spelled(*texts: str) -> bool:
        return wanted in [text.replace(" ", "") for text in texts]

    exact = [label for label in result.answers if spelled(label, result.r_names.get(label, ""))]
    near = [label for label in result.answers if spelled(label.split("/")[0], label.split("[")[0])]
    alone = list(result.answers) if len(result.answers) == 1 and spelled("", *estimand.columns) else []
    for found in (exact, near, alone):
        if len(found) == 1:
            return found[0]
    offered = [result.r_names.get(label, label) for label in result.answers]
    hint = difflib.get_close_matches(term, offered, n=3, cutoff=0.4) or offered
    must = "the term must be one of several" if near else "the term must be in the question"
    raise ParameterError(must, given=repr(term), next_step=f"Terms: {', '.join(hint)}.")


def _frame(result: QuestionResult, estimand: Estimand) -> pd.DataFrame:
    if estimand.kind == "km" and estimand.at is None:
        frame = _curves(result)
    else:
        rows = []
        for label, given in result.answers.items():
            answer = _finite(given)
            beta, variance = (math.nan, math.nan) if isinstance(answer, str) else answer
            entry: dict[str, Any] = {"beta": beta, "se": math.sqrt(variance), "n": result.n}
            entry |= result.extra.get(label, {})
            rows.append({**entry, "reason": answer if isinstance(answer, str) else ""})
        index = pd.Index([result.r_names.get(label, label) for label in result.answers], name="term")
        frame = pd.DataFrame(rows, index=index)
    counts = {"n": result.n, "n_missing": result.missing, "n_outside": result.outside, "scale": estimand.scale}
    frame.attrs.update({"question": str(estimand), **counts, **result.attrs})
    return frame


def survival_curves(
    table: pd.DataFrame, question: Estimand, levels: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, SurvivalCurve]:
    """The whole Kaplan–Meier curve of each group of a ``km`` question; one without a name where it has no groups.

    Args:
        table, question, levels: as in `estimate`; the question's time, if any, is not used.
    Returns: by the group's name as R prints it (``arm=drug``); a group without rows has no curve.
    Raises: ParameterError: another kind of question; EstimateRefusal: no curve, with the reason.
    """
    if question.kind != "km":
        raise ParameterError("a curve must be asked by km", given=str(question))
    result = alone(_answers(QuestionRows(table), question, dict(levels or {}), _FLOORS))
    if not result.curves:
        raise EstimateRefusal("a curve must have rows", given=str(next(iter(result.answers.values()), "none")))
    return result.curves


def _curves(result: QuestionResult) -> pd.DataFrame:
    """Every curve with its risk table; the 95 % limits are R's default, on the log scale and capped at 1."""
    parts = []
    for label, curve in result.curves.items():
        with np.errstate(all="ignore"):
            width = 1.959963984540054 * np.sqrt(curve.log_variance)
            lower, upper = curve.survival * np.exp(-width), np.minimum(curve.survival * np.exp(width), 1.0)
        ended = curve.survival <= 0
        parts.append(
            pd.DataFrame(
                {
                    "group": label,
                    "n_risk": curve.at_risk,
                    "n_event": curve.events,
                    "n_censor": curve.censored,
                    "beta": curve.survival,
                    "se": curve.se,
                    "lower": np.where(ended, np.nan, lower),
                    "upper": np.where(ended, np.nan, upper),
                },
                index=pd.Index(curve.time, name="time"),
            )
        )
    if not parts:
        names_ = ["group", "n_risk", "n_event", "n_censor", "beta", "se", "lower", "upper"]
        return pd.DataFrame(columns=names_, index=pd.Index([], name="time"))
    return pd.concat(parts)


def _answers(
    table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: LeastRows
) -> Fitting[QuestionResult]:
    kind = estimand.kind
    if kind == "network":
        raise EstimateRefusal(
            "a network question must be asked of a study that releases networks", given="a table without edges"
        )
    labels = estimand.labels
    absent = [name for name in estimand.columns if name not in table]
    if absent:
        return QuestionResult(answers=dict.fromkeys(labels, f"the release has no column {', '.join(absent)}"), n=0)
    outside, whole, people = 0, table, None
    if (long := estimand.long) is not None:
        table, people, levels = long.of(table, estimand.row_columns, levels)
    if estimand.subset:
        inside = values(parse(estimand.subset), table) == 1
        outside = int((~inside).sum())
        table = table.part(inside)
    else:
        inside = np.ones(len(table), dtype=bool)
    if kind == "standardised":
        # The same curve whatever the exposure is set to.
        estimand = estimand.with_knots(lambda name, shares: np.nanquantile(table.numbers(name), shares))
        result = standardised_answers(table, estimand, levels, floors)
    elif kind in MODELS:
        whose = None if people is None else people[inside]
        result = yield from model_answers(table, estimand, levels, floors, whose)
    elif kind == "table_one":
        result = table_one(table, estimand, levels, floors)
    elif kind == "crosstab":
        result = crosstab(table, estimand, levels, floors)
    elif kind == "histogram":
        result = histogram(table, estimand, floors)
    elif kind == "correlation":
        x = np.column_stack([table.numbers(name) for name in estimand.terms])
        x = x[np.isfinite(x).all(axis=1)]
        solve_ = correlation if estimand.structure == "pearson" else compound_symmetry
        result = QuestionResult(
            answers={labels[0]: solve_(x, floors)}, n=len(x), r_names={labels[0]: ", ".join(estimand.terms)}
        )
    elif kind in OF_A_COLUMN:
        y = outcome_of(table, estimand.outcome, binary=kind == "proportion")
        y = y[np.isfinite(y)]
        found = OF_A_COLUMN[kind](y, floors)
        result = QuestionResult(answers={labels[0]: found}, n=len(y), r_names={labels[0]: estimand.outcome})
    else:
        result = group_answers(table, estimand, levels, floors)
    result.outside = outside
    result.missing = len(table) - result.n
    for label, pushes in result.influence.items():
        result.influence[label] = np.zeros(len(inside))
        result.influence[label][inside] = pushes
    return result if people is None else _by_person(result, people, inside, len(whole))


def _by_person(
    result: QuestionResult, people: NDArray[np.int64], inside: NDArray[np.bool_], persons: int
) -> QuestionResult:
    """An answer of rows as one of the persons whose rows they are, (rows,) places in a table of so many."""
    used = people[inside][result.used] if result.used is not None else people[:0]
    there = len(np.unique(people[inside]))
    result.attrs["rows"] = len(used)
    result.n, result.outside = len(np.unique(used)), len(np.unique(people)) - there
    result.missing = persons - result.outside - result.n
    for label, pushes in result.influence.items():
        result.influence[label] = np.asarray(np.bincount(people, pushes, minlength=persons), dtype=float)
    return result


"""Label, name in R, column."""
