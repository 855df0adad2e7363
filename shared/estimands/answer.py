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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.formulas import (
    CATEGORY,
    Node,
    QuestionRows,
    is_logical,
    names,
    parse,
    right_side,
    values,
)
from shared.estimands.questions import INTERCEPT, MODELS, SURVIVAL, Estimand, Scale, parse_estimand, parse_formula
from shared.estimands.regression import RegressionFit, generalised, least_squares
from shared.estimands.survival import SurvivalCurve, cox, kaplan_meier, log_rank, restricted_mean

__all__ = [
    "MIN_EVENTS",
    "MIN_RESIDUAL_DF",
    "Estimand",
    "Estimate",
    "Scale",
    "estimate",
    "influence",
    "parse_estimand",
    "parse_formula",
    "survival_curves",
]

Array = NDArray[np.float64]
MIN_RESIDUAL_DF = 10
"""Fewer rows than parameters plus this, and no term of the model is reported: its variance would be a guess."""
MIN_EVENTS = 5
"""Fewer events than this, or than terms, and no term of a Cox model is reported."""

_MOST_COLUMNS = 200
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
        """How many times the table's own variance its rows' influences have; 1 where that is no more than by chance.

        Above 1 the rows vary more than the question's model says: counts with a long tail, effects that bend.
        """
        own = self.naive
        found = self.vi_sandwich / own if own and self.vi_sandwich else 1.0
        return found if found > _CHANCE else 1.0


# -- the answer ----------------------------------------------------------------------------------------------
_Answer = tuple[float, float] | str
"""Estimate and variance, or the reason for having none."""
_FAR = "no finite estimate at this site"
_CHANCE = 1.25
"""Ratio of a sandwich variance to the model's that some hundred rows may have though they follow the model."""
_HANGS = "its meaning hangs on excluded terms"


@dataclass(frozen=True)
class _Floors:
    residual_df: int
    events: int


@dataclass(kw_only=True)
class _Result:
    """Answers by label in the question's order, the names R prints, and the rows behind them."""

    answers: dict[str, _Answer]
    n: int
    missing: int = 0
    outside: int = 0
    r_names: dict[str, str] = field(default_factory=dict)
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    attrs: dict[str, float] = field(default_factory=dict)
    curves: dict[str, SurvivalCurve] = field(default_factory=dict)
    influence: dict[str, Array] = field(default_factory=dict)


@overload
def estimate(
    table: pd.DataFrame | QuestionRows,
    question: Estimand,
    formula: None = None,
    *,
    study: str = ...,
    site: str = ...,
    wave: int = ...,
    receipts: Sequence[str] = ...,
    vi_privacy: Mapping[str, float] | None = ...,
    levels: Mapping[str, Sequence[Any]] | None = ...,
    min_residual_df: int = ...,
    min_events: int = ...,
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
    study: str = "",
    site: str = "",
    wave: int = 0,
    receipts: Sequence[str] = (),
    vi_privacy: Mapping[str, float] | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
    min_residual_df: int = MIN_RESIDUAL_DF,
    min_events: int = MIN_EVENTS,
    **options: Any,
) -> list[Estimate] | Estimate | pd.DataFrame:
    """Answer one question from one table: one estimate per term.

    Args:
        table: rows of one release; as `QuestionRows` when more questions are put to it. Rows with a missing value in a
            column of the question are not used.
        question: an `Estimand` (`parse_estimand` reads one from text), or a kind with a `formula` as in R.
        term: with a formula: the one term wanted, as the question writes it (``sbp/10``), as R prints it
            (``smokingformer``), or its column; for km and rmst without groups it may be left as ``""``.
        study, site, wave, receipts: copied onto every estimate.
        vi_privacy: term -> variance of the privacy noise, where the mechanism states it.
        levels: column -> all its levels, the first being the reference. A categorical column brings its own;
            for any other a site would only know the levels it has, and references would differ between sites.
        min_residual_df, min_events: floors below which no number is given.
        options: with a formula: weights, subset, ties, robust, measure, structure, start, stop, at, tau.
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
    rows = QuestionRows.of(table)
    if isinstance(question, Estimand):
        if options or formula is not None or term is not None:
            raise ParameterError("an Estimand carries its own options", given=", ".join(options) or "a formula")
        estimand = question
    else:
        if formula is None:
            raise ParameterError("a kind must come with a formula", given=repr(question), next_step=_HINT)
        estimand = parse_formula(question, formula, **options)
        _known(estimand, rows)
    result = _answers(rows, estimand, dict(levels or {}), _Floors(min_residual_df, min_events))
    noise = dict(vi_privacy or {})

    def row(label: str) -> Estimate:
        answer = _finite(result.answers[label])
        number, variance = (None, None) if isinstance(answer, str) else answer
        return Estimate(
            study=study,
            site=site,
            wave=wave,
            term=label,
            yi=number,
            vi_sampling=variance,
            vi_privacy=noise.get(label, 0.0),
            vi_sandwich=_sandwich(result, label) if number is not None else None,
            n=result.n,
            n_missing=result.missing,
            n_outside=result.outside,
            reason=answer if isinstance(answer, str) else "",
            scale=estimand.scale,
            receipts=tuple(receipts),
        )

    if isinstance(question, Estimand):
        if question.kind == "km" and question.at is None:
            raise ParameterError(
                "km must have a time to be one number",
                next_step="Write km(time, event, at = 5), the same at every site.",
            )
        shown = [label for label in result.answers if label != INTERCEPT] or [INTERCEPT]
        return [row(label) for label in shown]
    if term is not None:
        label = _chosen(result, estimand, term)
        if estimand.kind == "km" and estimand.at is None:
            raise ParameterError("km must have a time to be one number", next_step="Give at=, a time.")
        return row(label)
    return _frame(result, estimand)


def influence(
    table: pd.DataFrame | QuestionRows, question: Estimand, *, levels: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Array]:
    """Influence of each row of the table on each term of a model, to first order; 0 for unused rows.

    The sum of its squares is the term's sandwich variance. Other kinds than ols, logistic, poisson and cox have none.

    Args:
        table: (n, …) rows of one release.
        question: as in `estimate`.
    Returns: label -> (n,), of the terms that the table supports.
    Raises: as `estimate`.
    """
    found = _answers(QuestionRows.of(table), question, dict(levels or {}), _Floors(MIN_RESIDUAL_DF, MIN_EVENTS))
    return {label: pushes for label, pushes in found.influence.items() if not isinstance(found.answers[label], str)}


def _sandwich(result: _Result, label: str) -> float | None:
    pushes = result.influence.get(label)
    found = None if pushes is None else float(pushes @ pushes)
    return found if found is not None and math.isfinite(found) else None


def _finite(answer: _Answer) -> _Answer:
    if not isinstance(answer, str) and not (all(map(math.isfinite, answer)) and answer[1] > 0):
        return _FAR
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


def _chosen(result: _Result, estimand: Estimand, term: str) -> str:
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


def _frame(result: _Result, estimand: Estimand) -> pd.DataFrame:
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
    result = _answers(QuestionRows(table), question, dict(levels or {}), _Floors(MIN_RESIDUAL_DF, MIN_EVENTS))
    if not result.curves:
        raise EstimateRefusal("a curve must have rows", given=str(next(iter(result.answers.values()), "none")))
    return result.curves


def _curves(result: _Result) -> pd.DataFrame:
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


def _answers(table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: _Floors) -> _Result:
    kind = estimand.kind
    if kind == "network":
        raise EstimateRefusal(
            "a network question must be asked of a study that releases networks", given="a table without edges"
        )
    labels = estimand.labels
    absent = [name for name in estimand.columns if name not in table]
    if absent:
        return _Result(answers=dict.fromkeys(labels, f"the release has no column {', '.join(absent)}"), n=0)
    outside = 0
    if estimand.subset:
        inside = values(parse(estimand.subset), table) == 1
        outside = int((~inside).sum())
        table = table.part(inside)
    else:
        inside = np.ones(len(table), dtype=bool)
    if kind in MODELS:
        result = _model(table, estimand, levels, floors)
    elif kind == "correlation":
        x = np.column_stack([table.numbers(name) for name in estimand.terms])
        x = x[np.isfinite(x).all(axis=1)]
        solve_ = _correlation if estimand.structure == "pearson" else _compound_symmetry
        result = _Result(
            answers={labels[0]: solve_(x, floors)}, n=len(x), r_names={labels[0]: ", ".join(estimand.terms)}
        )
    elif kind in ("mean", "proportion"):
        y = _outcome(table, estimand.outcome, binary=kind == "proportion")
        y = y[np.isfinite(y)]
        solve = _mean if kind == "mean" else _proportion
        result = _Result(answers={labels[0]: solve(y, floors)}, n=len(y), r_names={labels[0]: estimand.outcome})
    else:
        result = _groups(table, estimand, levels, floors)
    result.outside = outside
    result.missing = len(table) - result.n
    for label, pushes in result.influence.items():
        result.influence[label] = np.zeros(len(inside))
        result.influence[label][inside] = pushes
    return result


def _few(n: int, parameters: int, floors: _Floors) -> str:
    return f"{n} complete rows for {parameters} parameters: fewer than {floors.residual_df} residual degrees of freedom"


def _mean(x: Array, floors: _Floors) -> _Answer:
    if len(x) <= max(floors.residual_df, 1):
        return _few(len(x), 1, floors)
    if np.ptp(x) == 0:
        return "the column is constant at this site"
    return float(x.mean()), float(x.var(ddof=1) / len(x))


def _proportion(x: Array, floors: _Floors) -> _Answer:
    if len(x) <= floors.residual_df:
        return _few(len(x), 1, floors)
    cases, n = float(x.sum()), len(x)
    if cases in (0.0, float(n)):
        return "the proportion is 0 or 1 at this site: its logit is not finite"
    return math.log(cases / (n - cases)), 1 / cases + 1 / (n - cases)


def _correlation(x: Array, floors: _Floors) -> _Answer:
    if len(x) - 2 < max(floors.residual_df, 2):
        return _few(len(x), 2, floors)
    if (np.ptp(x, axis=0) == 0).any():
        return "a column is constant at this site"
    r = float(np.atleast_2d(np.corrcoef(x, rowvar=False))[0, 1])
    if 1 - abs(r) < 1e-12:
        return "the columns are collinear at this site"
    return math.atanh(r), 1 / (len(x) - 3)


def _compound_symmetry(x: Array, floors: _Floors) -> _Answer:
    """One correlation for all pairs of p columns of one common variance: mean covariance over mean variance.

    It is the maximum likelihood estimate under compound symmetry, with the variance
    2 (1−ρ)² (1+(p−1)ρ)² / (p (p−1) n) (Fisher 1925, as of an intraclass correlation), here of atanh ρ.
    """
    n, p = x.shape
    if n - 2 < max(floors.residual_df, 2):
        return _few(n, 2, floors)
    if (np.ptp(x, axis=0) == 0).any():
        return "a column is constant at this site"
    cov = np.atleast_2d(np.cov(x, rowvar=False))
    common = float(np.trace(cov)) / p
    rho = float(cov.sum() - np.trace(cov)) / (p * (p - 1)) / common
    if 1 - abs(rho) < 1e-12:
        return "the columns are collinear at this site"
    variance = 2 * (1 - rho) ** 2 * (1 + (p - 1) * rho) ** 2 / (p * (p - 1) * n)
    return math.atanh(rho), variance / (1 - rho**2) ** 2


# -- comparisons of groups -----------------------------------------------------------------------------------
def _groups(table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: _Floors) -> _Result:
    """Kinds that compare the groups of one column; the first level is the reference."""
    kind, survival = estimand.kind, estimand.kind in SURVIVAL
    y = _outcome(table, estimand.event if survival else estimand.outcome, binary=survival or kind == "two_by_two")
    duration = table.numbers(estimand.duration) if survival else np.zeros(len(table))
    strata, strata_used = _strata(table, estimand)
    if estimand.terms:
        term = estimand.terms[0]
        known, member = _membership(parse(term), table, levels)
        column = parse(term)
        text = str(column.parts[0]) if column.kind == "call" and column.value in CATEGORY else term
    else:
        term, text, known, member = str(estimand), "", [""], np.zeros(len(table), dtype=np.int64)
    used = np.isfinite(y) & np.isfinite(duration) & (member >= 0) & strata_used
    y, duration, member, strata = y[used], duration[used], member[used], strata[used]
    counts = np.bincount(member, minlength=len(known))
    result = _Result(answers={}, n=len(y))
    every = kind in ("km", "rmst")
    alone = every and not estimand.terms
    labels = [term] if alone else [f"{term}[{level}]" for level in known]
    for label, level in zip(labels, known, strict=True):
        prefix = str(column) if not alone else ""
        result.r_names[label] = "(Intercept)" if alone else f"{prefix}{'=' if kind == 'km' else ''}{level}"

    def excluded(reason: str) -> _Result:
        result.answers = dict.fromkeys((labels if kind == "km" or alone else labels[1:]) or [term], reason)
        return result

    if len(y) == 0:
        return excluded("no complete rows at this site")
    if len(known) < 2 and not alone and kind != "km":
        return excluded(f"{text} has fewer than two levels at this site")
    if survival and (duration < 0).any():
        return excluded(f"{int((duration < 0).sum())} durations are negative")
    if kind == "logrank":
        return _log_rank(result, labels, (duration, y, member, strata), excluded, floors)

    def summary(g: int) -> _Answer:
        mine = member == g
        if counts[g] == 0:
            return "the level has no rows at this site"
        if counts[g] <= max(floors.residual_df, 1):
            return f"{int(counts[g])} rows in a group: fewer than {floors.residual_df} residual degrees of freedom"
        if survival:
            return _survival_number(estimand, kaplan_meier(duration[mine], y[mine]), floors)
        return float(y[mine].mean()), float(y[mine].var(ddof=1) / counts[g])

    if kind == "km":
        for g, label in enumerate(labels):
            if counts[g]:
                result.curves[result.r_names[label] if not alone else ""] = kaplan_meier(
                    duration[member == g], y[member == g]
                )
            result.answers[label] = summary(g) if estimand.at is not None else "the question has no time"
            result.extra[label] = {"n": int(counts[g]), "events": int(y[member == g].sum())}
        return result
    first = summary(0)
    if alone:
        result.answers[term] = first
        return result
    if counts[0] == 0:
        return excluded(f"{text} has no rows at its reference level at this site")
    for g, label in enumerate(labels[1:], start=1):
        if kind == "two_by_two":
            result.answers[label], result.extra[label] = _two_by_two(estimand.measure, y, member, g, floors)
            continue
        other = summary(g)
        if isinstance(first, str) or isinstance(other, str):
            result.answers[label] = other if isinstance(other, str) else str(first)
        elif kind == "ratio":
            result.answers[label] = _ratio(first, other)
        else:
            result.answers[label] = (other[0] - first[0], other[1] + first[1])
            if kind != "rmst" and result.answers[label][1] == 0:
                result.answers[label] = "the column is constant at this site"
    return result


def _membership(
    node: Node, table: QuestionRows, levels: dict[str, Sequence[Any]]
) -> tuple[list[Any], NDArray[np.int64]]:
    """Levels of a group column, and each row's place among them; −1 where missing."""
    if node.kind == "call" and node.value in CATEGORY:
        node = node.parts[0]
    if node.kind == "name":
        column = table[str(node.value)]
        known = _levels(column, levels.get(str(node.value)))
        place = np.full(len(table), -1, dtype=np.int64)
        for k, level in enumerate(known):
            place[(column == level).to_numpy(dtype=bool, na_value=False)] = k
        return known, place
    number = values(node, table)
    if is_logical(node.parts[0] if node.kind == "call" else node):
        known = [0, 1]
    else:
        known = sorted({float(v) for v in number[np.isfinite(number)]})
    if len(known) > 50:
        raise EstimateRefusal("a group column must have few values", given=f"{len(known)} of {node}")
    place = np.full(len(table), -1, dtype=np.int64)
    for k, level in enumerate(known):
        place[number == level] = k
    return known, place


def _levels(column: pd.Series, given: Sequence[Any] | None) -> list[Any]:
    if given is not None:
        return list(given)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return list(column.cat.categories)
    known = column.dropna().unique().tolist()
    known.sort(key=str if len({isinstance(level, str) for level in known}) > 1 else None)
    if len(known) > 50:
        raise EstimateRefusal(
            f"column {column.name!r} must have few levels to be a category",
            given=f"{len(known)} different values",
            next_step="Group its values first, or use it as a number.",
        )
    return known


def _ratio(first: tuple[float, float], other: tuple[float, float]) -> _Answer:
    if first[0] <= 0 or other[0] <= 0:
        return "a mean is not positive at this site: its logarithm is not finite"
    return math.log(other[0] / first[0]), first[1] / first[0] ** 2 + other[1] / other[0] ** 2


def _two_by_two(
    measure: str, y: Array, member: NDArray[np.int64], g: int, floors: _Floors
) -> tuple[_Answer, dict[str, float]]:
    """Odds ratio, risk ratio or risk difference of level g against the reference.

    As `metafor::escalc`: one half is added to all four cells when, and only when, one of them is 0.
    """
    a, b = float(y[member == g].sum()), float((1 - y[member == g]).sum())
    c, d = float(y[member == 0].sum()), float((1 - y[member == 0]).sum())
    cells = {"n": a + b + c + d, "a": a, "b": b, "c": c, "d": d, "added": 0.0}
    if a + b == 0:
        return "the level has no rows at this site", cells
    if a + b + c + d - 2 < floors.residual_df:
        return _few(int(a + b + c + d), 2, floors), cells
    if a + c == 0 or b + d == 0:
        return f"{'no' if a + c == 0 else 'only'} events in both groups: {_FAR}", cells
    if 0 in (a, b, c, d):
        a, b, c, d, cells["added"] = a + 0.5, b + 0.5, c + 0.5, d + 0.5, 0.5
    p, q = a / (a + b), c / (c + d)
    if measure == "OR":
        return (math.log(a * d / (b * c)), 1 / a + 1 / b + 1 / c + 1 / d), cells
    if measure == "RR":
        return (math.log(p / q), 1 / a - 1 / (a + b) + 1 / c - 1 / (c + d)), cells
    return (p - q, p * (1 - p) / (a + b) + q * (1 - q) / (c + d)), cells


def _survival_number(estimand: Estimand, curve: SurvivalCurve, floors: _Floors) -> _Answer:
    if estimand.kind == "rmst":
        horizon = float(estimand.tau or 0)
        if curve.time[-1] < horizon and curve.survival[-1] > 0:
            return f"follow-up ends before {horizon:g} at this site"
        if curve.events[curve.time < horizon].sum() < max(floors.events, 1):
            return f"fewer than {max(floors.events, 1)} events before {horizon:g} at this site"
        return restricted_mean(curve, horizon)
    at = float(estimand.at or 0)
    if curve.time[-1] < at and curve.survival[-1] > 0:
        return f"follow-up ends before {at:g} at this site"
    survival, variance = curve.at(at)
    if survival in (0.0, 1.0):
        return f"survival at {at:g} is 0 or 1 at this site: its logit is not finite"
    if curve.events[curve.time <= at].sum() < floors.events:
        return f"fewer than {floors.events} events up to {at:g} at this site"
    return math.log(survival / (1 - survival)), variance / (1 - survival) ** 2


def _log_rank(
    result: _Result,
    labels: list[str],
    data: tuple[Array, Array, NDArray[np.int64], NDArray[np.int64]],
    excluded: Callable[[str], _Result],
    floors: _Floors,
) -> _Result:
    """The test, and for each level Peto's one-step log hazard ratio (O − E) / V against the other rows."""
    duration, y, member, strata = data
    if y.sum() < floors.events:
        return excluded(f"{int(y.sum())} events: too few")
    test = log_rank(duration, y, member, len(labels), strata)
    for g, label in enumerate(labels):
        result.extra[label] = {"n": test.n[g], "observed": test.observed[g], "expected": test.expected[g]}
        if g == 0:
            continue
        spread = float(test.covariance[g, g])
        difference = float(test.observed[g] - test.expected[g])
        result.answers[label] = (
            (difference / spread, 1 / spread) if spread > 1e-12 else "no event could tell the groups apart at this site"
        )
    result.attrs = {"chisq": test.chisq, "df": test.df, "p": test.p}
    return result


def _strata(table: QuestionRows, estimand: Estimand) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    if not estimand.strata:
        return np.zeros(len(table), dtype=np.int64), np.ones(len(table), dtype=bool)
    columns = pd.DataFrame({name: table[name] for name in estimand.strata})
    codes = columns.groupby(list(estimand.strata), observed=True, sort=True).ngroup()
    whole: NDArray[np.bool_] = np.asarray(columns.notna().all(axis=1), dtype=bool)
    return np.asarray(codes, dtype=np.int64), whole


# -- models --------------------------------------------------------------------------------------------------
@dataclass(kw_only=True)
class _Design:
    """Columns of the terms by label, the names R prints, and reasons better than what the algebra will find."""

    labels: list[str] = field(default_factory=list)
    columns: list[Array] = field(default_factory=list)
    r_names: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    levelled: set[str] = field(default_factory=set)
    broken: dict[str, NDArray[np.bool_]] = field(default_factory=dict)


_Piece = tuple[str, str, Array]
"""Label, name in R, column."""


def _design(table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]]) -> _Design:
    design = _Design()
    terms = [right_side(parse(term)).terms[0] for term in estimand.terms]
    # R's rule: a factor loses its reference level in a term when the term without that factor is in the model too.
    present = {frozenset(map(str, term)) for term in terms}
    if estimand.intercept or estimand.kind == "cox":
        present.add(frozenset())
    for term, text in zip(terms, estimand.terms, strict=True):
        crossed: list[_Piece] = []
        for factor in term:
            rest = frozenset(map(str, term)) - {str(factor)}
            pieces = _factor(factor, table, levels, rest in present, design)
            if len(pieces) * max(len(crossed), 1) + len(design.labels) > _MOST_COLUMNS:
                raise ParameterError(
                    f"a model must have at most {_MOST_COLUMNS} coefficients",
                    given="more",
                    next_step="Cross columns with fewer levels.",
                )
            # The first factor's levels vary fastest, as in R.
            crossed = pieces if not crossed else [_cross(a, b) for b in pieces for a in crossed]
        if any(_is_levelled(factor, table) for factor in term) and len(term) == 1:
            present.add(frozenset())  # its full set of levels spans the constant
        for label, r_name, column in crossed:
            named = estimand.label(text) if label == text else label
            design.labels.append(named)
            design.columns.append(column)
            design.r_names[named] = named if label == text and text in estimand.per else r_name
    return design


def _cross(a: _Piece, b: _Piece) -> _Piece:
    return f"{a[0]}:{b[0]}", f"{a[1]}:{b[1]}", a[2] * b[2]


def _is_levelled(node: Node, table: QuestionRows) -> bool:
    if node.kind == "name":
        return table.is_category(str(node.value))
    return node.kind == "call" and node.value in CATEGORY


def _factor(
    node: Node, table: QuestionRows, levels: dict[str, Sequence[Any]], contrasts: bool, design: _Design
) -> list[_Piece]:
    text = str(node)
    if not _is_levelled(node, table):
        column = values(node, table)
        if node.kind != "name":
            whole: NDArray[np.bool_] = np.all(
                [np.isfinite(table.numbers(name)) for name in _numeric(node, table)], axis=0
            )
            design.broken[text] = whole & ~np.isfinite(column)
        truth = node.kind == "call" and node.value == "I" and is_logical(node.parts[0])
        return [(text, text + ("TRUE" if truth else ""), column)]
    name = str(node.value) if node.kind == "name" else str(node.parts[0])
    series = table[name]
    known = _levels(series, levels.get(name))
    missing = (series.isna() | ~series.isin(known)).to_numpy(dtype=bool)
    dummies = [np.where(missing, np.nan, (series == level).to_numpy(dtype=bool, na_value=False)) for level in known]
    pieces = [(f"{text}[{level}]", f"{text}{level}", dummy) for level, dummy in zip(known, dummies, strict=True)]
    design.levelled.update(piece[0] for piece in pieces)
    if not contrasts and known:
        return pieces
    shown = pieces[1:] or [(text, text, np.where(missing, np.nan, 0.0))]
    if len(known) < 2 or not np.nansum(dummies[0]):
        rule = "fewer than two levels" if len(known) < 2 else "no rows at its reference level"
        design.reasons.update(dict.fromkeys([piece[0] for piece in shown], f"{name} has {rule} at this site"))
    return shown


def _numeric(node: Node, table: QuestionRows) -> list[str]:
    """Columns of a piece of arithmetic that hold numbers (others are only compared with a level)."""
    return [name for name in names(node) if not table.is_category(name)]


def _outcome(table: QuestionRows, text: str, *, binary: bool) -> Array:
    node = parse(text)
    column = values(node, table)
    wrong = int((np.isfinite(column) & ~np.isin(column, (0.0, 1.0))).sum())
    if binary and wrong:
        raise EstimateRefusal(
            f"outcome {text!r} must be 0 or 1",
            given=f"{wrong} other values",
            next_step=f"Compare it with a number: {text} > 0.",
        )
    column = column.copy()
    column[~np.isfinite(column)] = np.nan
    return column


@dataclass(kw_only=True)
class _Data:
    """Complete rows of a model: x (n, p), the rest (n,); `place` is where each stands in the table."""

    x: Array
    y: Array
    duration: Array
    weights: Array
    offset: Array
    strata: NDArray[np.int64]
    place: NDArray[np.int64]

    def rows(self, keep: NDArray[np.bool_]) -> _Data:
        if keep.all():
            return self
        return _Data(
            x=self.x[keep],
            y=self.y[keep],
            duration=self.duration[keep],
            weights=self.weights[keep],
            offset=self.offset[keep],
            strata=self.strata[keep],
            place=self.place[keep],
        )


def _model(table: QuestionRows, estimand: Estimand, levels: dict[str, Sequence[Any]], floors: _Floors) -> _Result:
    kind, is_cox = estimand.kind, estimand.kind == "cox"
    constant = estimand.intercept and not is_cox
    y = _outcome(table, estimand.event if is_cox else estimand.outcome, binary=kind in ("logistic", "cox"))
    if kind == "poisson" and (y < 0).any():
        raise EstimateRefusal(
            f"outcome {estimand.outcome!r} must be a count", given=f"{int((y < 0).sum())} negative values"
        )
    duration = table.numbers(estimand.duration) if is_cox else np.ones(len(table))
    design = _design(table, estimand, levels)
    strata, used = _strata(table, estimand)
    data = _Data(
        x=np.column_stack([*design.columns, np.zeros((len(table), 0))]),
        y=y,
        duration=duration,
        weights=table.numbers(estimand.weights) if estimand.weights else np.ones(len(table)),
        offset=values(parse(estimand.offset), table) if estimand.offset else np.zeros(len(table)),
        strata=strata,
        place=np.arange(len(table)),
    )
    others = np.isfinite(y) & np.isfinite(duration) & np.isfinite(data.weights) & used
    if estimand.offset:
        node = parse(estimand.offset)
        whole: NDArray[np.bool_] = np.all([np.isfinite(table.numbers(name)) for name in _numeric(node, table)], axis=0)
        design.broken[f"offset({estimand.offset})"] = whole & ~np.isfinite(data.offset)
    broken = {text: int((bad & others).sum()) for text, bad in design.broken.items() if (bad & others).any()}
    data = data.rows(others & np.isfinite(data.x).all(axis=1) & np.isfinite(data.offset))
    labels = design.labels
    shown = ([INTERCEPT] if constant else []) + labels
    result = _Result(answers={}, n=len(data.y), r_names={INTERCEPT: "(Intercept)", **design.r_names})

    def all_for(reason: str) -> _Result:
        result.answers = {label: design.reasons.get(label, reason) for label in shown}
        return result

    if broken:
        return all_for("; ".join(f"{text} is not finite in {count} rows" for text, count in broken.items()))
    if len(data.y) == 0:
        return all_for("no complete rows at this site")
    if is_cox and (data.duration < 0).any():
        return all_for(f"{int((data.duration < 0).sum())} durations are negative")
    if (data.weights < 0).any():
        return all_for(f"{int((data.weights < 0).sum())} weights are negative")
    data = data.rows(data.weights > 0)
    if is_cox:
        data = _window(data, estimand)
    result.n = n = len(data.y)
    if n == 0:
        return all_for("no rows with a weight, or in the time window, at this site")
    alive = []
    for j, label in enumerate(labels):
        if np.ptp(data.x[:, j]) == 0 and (constant or is_cox or data.x[0, j] == 0):
            empty_level = label in design.levelled and data.x[0, j] == 0
            default = "the level has no rows at this site" if empty_level else "the column is constant at this site"
            result.answers[label] = design.reasons.get(label, default)
            if constant and data.x[0, j] != 0:
                result.answers[INTERCEPT] = _HANGS
        else:
            alive.append(j)
    parameters = len(alive) + constant
    if n - parameters < max(floors.residual_df, 1):
        return all_for(_few(n, parameters, floors))
    if is_cox and data.y.sum() < max(floors.events, len(alive), 1):
        return all_for(f"{int(data.y.sum())} events for {len(alive)} terms: too few")
    if not is_cox and np.ptp(data.y) == 0:
        return all_for("the outcome is constant at this site")
    data.x = data.x[:, alive]
    names_ = [labels[j] for j in alive]
    solve = {"ols": _ols, "logistic": _logistic, "poisson": _logistic, "cox": _cox}[kind]
    moved: dict[str, Array] = {}
    fitted = solve(names_, data, estimand, floors, moved) if names_ or constant else {}
    for label in shown:
        if label not in result.answers:
            answer = fitted[label]
            result.answers[label] = design.reasons.get(label, answer) if isinstance(answer, str) else answer
    for term, units in estimand.per.items():
        label = estimand.label(term)
        answer = result.answers[label]
        if not isinstance(answer, str):
            result.answers[label] = (answer[0] * units, answer[1] * units**2)
    scale_of = {estimand.label(term): units for term, units in estimand.per.items()}
    for label, (place, pushes) in moved.items():
        result.influence[label] = np.zeros(len(table))
        result.influence[label][place.astype(np.int64)] = pushes * scale_of.get(label, 1.0)
    result.answers = {label: result.answers[label] for label in shown}
    if is_cox:
        result.attrs = {"events": int(data.y.sum())}
    return result


def _window(data: _Data, estimand: Estimand) -> _Data:
    """Persons still at risk just after `start`, followed until `stop`: everyone enters together, so rows are enough."""
    if estimand.start is not None:
        data = data.rows(data.duration > estimand.start)
    if estimand.stop is not None:
        data.y = np.where(data.duration > estimand.stop, 0.0, data.y)
        data.duration = np.minimum(data.duration, estimand.stop)
    return data


# -- which terms the table supports --------------------------------------------------------------------------
def _unseen(x: Array, constant: bool = True) -> list[list[int]]:
    """For each column of (n, p) x, the columns it is confounded with; empty when its coefficient is identified.

    That is so exactly when no vector of the null space of x, beside a constant if there is one, touches the column.
    """
    centre = x.mean(axis=0) if constant else np.zeros(x.shape[1])
    apart = x - centre
    scale = np.sqrt((apart**2).mean(axis=0))
    standard = apart / np.where(scale > 0, scale, 1.0)
    if scale.all():
        # Squares lose half the digits, and few columns are near enough to each other for that to be too few.
        together = standard.T @ standard / len(x)
        if np.linalg.eigvalsh(together)[:1].min(initial=1.0) > 1e-6:
            return [[] for _ in range(x.shape[1])]
    standard[:, scale <= 1e-12 * (np.abs(x).max(axis=0, initial=0.0) + 1e-300)] = 0.0
    standard = np.column_stack([np.full(len(x), float(constant)), standard])
    # The triangular factor has the singular values and right vectors of the whole, in p rows instead of n.
    standard = np.asarray(np.linalg.qr(standard, mode="r"), dtype=float)
    if len(standard) < standard.shape[1]:
        standard = np.vstack([standard, np.zeros((standard.shape[1] - len(standard), standard.shape[1]))])
    _, singular, right = np.linalg.svd(standard, full_matrices=False)
    null = right[singular <= 1e-9 * max(singular[0], 1e-300)][:, 1:]
    touched = np.abs(null) > 1e-6
    groups = []
    for j in range(x.shape[1]):
        joined = touched[touched[:, j]].any(axis=0) if touched[:, j].any() else np.zeros(x.shape[1], dtype=bool)
        groups.append([int(i) for i in np.flatnonzero(joined)])
    return groups


def _independent(x: Array, first: Sequence[int], constant: bool) -> list[int]:
    """Columns of x, `first` among them, that span what x spans (beside a constant)."""
    chosen = list(first)
    for j in (j for j in range(x.shape[1]) if j not in first):
        if not any(_unseen(x[:, [*chosen, j]], constant)):
            chosen.append(j)
    return sorted(chosen)


class _NoMaximum(Exception):
    """The likelihood has no maximum that could be found."""


def _fit(
    names_: list[str],
    x: Array,
    why: Callable[[int, list[int]], str],
    run: Callable[[Array], RegressionFit],
    *,
    constant: bool,
    moved: dict[str, Array],
    place: NDArray[np.int64],
    seen: Array | None = None,
    groups: list[list[int]] | None = None,
) -> dict[str, _Answer]:
    """Fit the identified columns, the span of the others kept as nuisance; `why` words the exclusion of a column.

    Args:
        run: fits a matrix whose columns are centred (with a constant) and scaled, the constant first if there is one.
        moved: takes each label's (2, n): where its rows stand in the table, and what each moves the estimate by.
        place: where the rows of x stand in the table.
        seen: what the likelihood sees of x, where that is less (a Cox model within strata).
        groups: `_unseen` of that, where the caller knows it already.
    """
    look = x if seen is None else seen
    see_constant = constant or seen is not None
    groups = _unseen(look, see_constant) if groups is None else groups
    answers: dict[str, _Answer] = {names_[j]: why(j, group) for j, group in enumerate(groups) if group}
    supported = [j for j, group in enumerate(groups) if not group]
    basis = _independent(look, supported, see_constant)
    # Centred and scaled columns: a blood pressure in mmHg and a rate per day fit equally well.
    chosen = x if len(basis) == x.shape[1] else x[:, basis]
    centre = chosen.mean(axis=0) if see_constant else np.zeros(len(basis))
    standard = chosen - centre
    scale = np.sqrt((standard**2).mean(axis=0))
    standard /= scale
    fit = run(np.column_stack([np.ones(len(x)), standard]) if constant else standard)
    back = np.diag(1 / scale)
    if constant:
        back = np.block([[np.ones((1, 1)), -(centre / scale)[None, :]], [np.zeros((len(basis), 1)), back]])
    beta, variance = back @ fit.beta, np.diag(back @ fit.cov @ back.T)
    pushes = fit.influence @ back.T
    for position, j in enumerate(basis, start=int(constant)):
        if j in supported:
            answers[names_[j]] = (float(beta[position]), float(variance[position]))
            moved[names_[j]] = np.stack([place, pushes[:, position]])
    if constant:
        whole = len(supported) == x.shape[1]
        answers[INTERCEPT] = (float(beta[0]), float(variance[0])) if whole else _HANGS
        moved[INTERCEPT] = np.stack([place, pushes[:, 0]])
    return answers


def _confounded(names_: list[str]) -> Callable[[int, list[int]], str]:
    def why(j: int, group: list[int]) -> str:
        others = ", ".join(names_[i] for i in group if i != j)
        return f"collinear with {others} at this site" if others else "the column is constant at this site"

    return why


def _ols(names_: list[str], data: _Data, estimand: Estimand, _: _Floors, moved: dict[str, Array]) -> dict[str, _Answer]:
    constant = estimand.intercept
    y = data.y - data.offset
    spread = float(y.std()) or 1.0
    exact = False

    def run(matrix: Array) -> RegressionFit:
        nonlocal exact
        fit = least_squares(matrix, y / spread, data.weights, estimand.robust)
        exact = -fit.loglik <= 1e-18 * float(data.weights.sum())
        return replace(fit, beta=fit.beta * spread, cov=fit.cov * spread**2, influence=fit.influence * spread)

    answers = _fit(names_, data.x, _confounded(names_), run, constant=constant, moved=moved, place=data.place)
    if exact:
        return dict.fromkeys([*names_, INTERCEPT], "the terms determine the outcome: there is no residual variance")
    return answers


def _determined(x: Array, y: Array, *, constant: bool, counts: bool) -> NDArray[np.bool_]:
    """Rows whose outcome some direction predicts without error: a logistic model's rows, a Poisson model's zeros.

    The linear programme of Konis (2007): among directions that contradict no row, the one that agrees most. In a
    Poisson model a direction contradicts no row when it is flat at positive counts and falls, or is flat, at zeros.
    """
    from scipy.optimize import linprog

    centre = x.mean(axis=0) if constant else np.zeros(x.shape[1])
    scale = np.sqrt(((x - centre) ** 2).mean(axis=0))
    standard = (x - centre) / np.where(scale > 0, scale, 1.0)
    if constant:
        standard = np.column_stack([np.ones(len(x)), standard])
    signed = np.where(counts, -1.0, 2 * y - 1)[:, None] * standard
    free: NDArray[np.bool_] = np.asarray(y == 0 if counts else np.ones(len(y)), dtype=bool)
    flat = {"A_eq": signed[~free], "b_eq": np.zeros(int((~free).sum()))} if counts and (~free).any() else {}
    found = linprog(
        -signed[free].sum(axis=0),
        A_ub=-signed[free],
        b_ub=np.zeros(int(free.sum())),
        bounds=(-1, 1),
        method="highs",
        **flat,
    )
    if found.status != 0:
        return np.zeros(len(x), dtype=bool)
    agrees: NDArray[np.bool_] = np.asarray(signed @ found.x > 1e-7, dtype=bool)
    return free & agrees


def _logistic(
    names_: list[str], data: _Data, estimand: Estimand, floors: _Floors, moved: dict[str, Array]
) -> dict[str, _Answer]:
    """Logistic and Poisson models."""
    constant, counts = estimand.intercept, estimand.kind == "poisson"
    sure = False

    def run(rows: NDArray[np.bool_]) -> Callable[[Array], RegressionFit]:
        def fit(matrix: Array) -> RegressionFit:
            nonlocal sure
            family: Any = "poisson" if counts else "binomial"
            part = data.rows(rows)
            out = generalised(matrix, part.y, family, part.weights, part.offset, estimand.robust)
            edge = out.fitted.min() if counts else np.minimum(out.fitted, 1 - out.fitted).min()
            sure = bool(out.converged and edge > 1e-6)
            if not out.converged and rows is not every:
                raise _NoMaximum
            converged.append(out.converged)
            return out

        return fit

    every = np.ones(len(data.y), dtype=bool)
    rows = every
    converged: list[bool] = []
    before = _unseen(data.x, constant)
    why = _confounded(names_)
    answers = _fit(names_, data.x, why, run(rows), constant=constant, moved=moved, place=data.place, groups=before)
    nowhere = f"the likelihood has no maximum: {_FAR}"
    if not sure and names_:  # fitted means at the edge: perhaps separation, perhaps only strong effects
        rows = every.copy()
        while rows.any():
            determined = _determined(data.x[rows], data.y[rows], constant=constant, counts=counts)
            if not determined.any():
                break
            rows[np.flatnonzero(rows)[determined]] = False
        if not rows.all():
            separated = f"separates the outcome: {_FAR}"
            lost = sum(bool(group) for group in _unseen(data.x[rows], constant)) if rows.any() else 0
            left = int(rows.sum()) - (data.x.shape[1] + constant - lost if rows.any() else 0)
            if left < max(floors.residual_df, 1):
                return dict.fromkeys([*names_, INTERCEPT], f"the terms together separate the outcome: {_FAR}")

            def word(j: int, group: list[int]) -> str:
                return why(j, before[j]) if before[j] else separated

            moved.clear()
            try:
                part = data.place[rows]
                return _fit(names_, data.x[rows], word, run(rows), constant=constant, moved=moved, place=part)
            except _NoMaximum:
                return dict.fromkeys([*names_, INTERCEPT], nowhere)
    if not converged[-1]:
        return {
            name: answers[name] if before_ else nowhere
            for name, before_ in zip([*names_, INTERCEPT], [*before, []], strict=True)
        }
    return answers


def _cox(
    names_: list[str], data: _Data, estimand: Estimand, floors: _Floors, moved: dict[str, Array]
) -> dict[str, _Answer]:
    x, y = data.x, data.y
    rows, separated = np.ones(len(y), dtype=bool), set[int]()
    found = True
    while found:  # a level without events: its rows leave every risk set in the limit
        found = False
        for j in (j for j in range(x.shape[1]) if j not in separated):
            column = x[:, j] if rows.all() else x[rows, j]
            distinct = column.min(initial=np.inf), column.max(initial=-np.inf)
            two = distinct[0] < distinct[1] and bool(((column == distinct[0]) | (column == distinct[1])).all())
            events = [int(y[rows & (x[:, j] == value)].sum()) for value in distinct] if two else []
            if 0 in events:
                rows &= x[:, j] != distinct[events.index(0)]
                separated.add(j)
                found = True
    part = data.rows(rows)

    def run(standard: Array) -> RegressionFit:
        fit = cox(
            standard,
            part.duration,
            part.y,
            ties=estimand.ties,
            strata=part.strata,
            weights=part.weights,
            offset=part.offset - part.offset.mean(),
        )
        if not fit.converged or float(np.ptp(fit.fitted)) > 50:
            raise _NoMaximum
        return fit

    seen, before = _within(part.x, part.strata), _unseen(_within(x, data.strata))
    why = _confounded(names_)

    def exclusion(j: int, group: list[int]) -> str:
        if before[j]:
            inside = estimand.strata and before[j] == [j]
            return "the column is constant within every stratum" if inside else why(j, before[j])
        return f"all events lie on one side: {_FAR}" if j in separated else why(j, group)

    groups = before if rows.all() else _unseen(seen)
    if all(groups):
        return {name: exclusion(j, groups[j]) for j, name in enumerate(names_)}
    try:
        more: dict[str, Any] = {"moved": moved, "place": part.place, "seen": seen, "groups": groups}
        return _fit(names_, part.x, exclusion, run, constant=False, **more)
    except _NoMaximum:
        return dict.fromkeys(names_, f"the partial likelihood has no maximum: {_FAR}")


def _within(x: Array, strata: NDArray[np.int64]) -> Array:
    """x less its mean in each stratum: all that a partial likelihood sees of it."""
    if not strata.any():
        return x
    _, place = np.unique(strata, return_inverse=True)
    size = np.bincount(place)
    means = np.column_stack([np.bincount(place, weights=x[:, j]) / size for j in range(x.shape[1])])
    inside = x - means[place]
    # What centring leaves of a column that is constant within strata is rounding, not information.
    inside[np.abs(inside) <= 1e-11 * np.abs(x).max(axis=0, initial=0.0)] = 0.0
    return np.asarray(inside)
