r"""From one table to one number per term and site: what an analyst may ask, and the estimate with its variance.

The question is a frozen `Estimand`, usually read from a short text::

    mean(sbp)   proportion(num > 0)   correlation(sbp, age)
    ols(sbp) ~ age + C(smoking)   logistic(num > 0) ~ age/10 + sex   cox(years, died) ~ sbp/10 + age

Names, comparisons with a number or a quoted level, ``C(name)`` for categories and ``name/10`` for a coefficient
per ten units are the whole language. It is read by the grammar below and never evaluated as code.

A term that this table cannot support is **excluded by itself, with its reason**: its site keeps the other terms.
The decision behind that is what happens to the other terms of a logistic model when one separates the outcome,
say because every woman is a case. The supremum of the likelihood is then reached with that coefficient at
infinity, where the rows it determines have probability 1 and the others follow a *limiting conditional model*
(Geyer 2009): drop the determined rows, then every direction that the rest cannot see. Terms untouched by those
directions keep a finite estimate and an honest variance, and those are what we report. A Cox model treats a
two-valued column whose events all lie on one side in the same way; when its likelihood has no maximum for another
reason, no term of it is reported. Collinear terms are all excluded, not the
last one only: none of them is identified, and whichever stayed would mean something else than at another site.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.errors import EstimateRefusal, ParameterError

__all__ = ["MIN_EVENTS", "MIN_RESIDUAL_DF", "Estimand", "Estimate", "Scale", "estimate", "parse_estimand"]

Array = NDArray[np.float64]
Kind = Literal["mean", "proportion", "correlation", "ols", "logistic", "cox"]
Scale = Literal["identity", "log", "logit", "fisher_z"]

MIN_RESIDUAL_DF = 10
"""Fewer rows than parameters plus this, and no term of the model is reported: its variance would be a guess."""
MIN_EVENTS = 5
"""Fewer events than this, or than terms, and no term of a Cox model is reported."""

_INTERCEPT = "intercept"
_SCALES: dict[str, Scale] = {"proportion": "logit", "correlation": "fisher_z", "logistic": "log", "cox": "log"}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One term at one site: the number, its variance in two parts, and where it came from.

    Attributes:
        study, site, wave: origin.
        term: the term as written in the estimand; the same text at every site.
        yi: estimate on the analysis scale; None when the term is excluded.
        vi_sampling: variance from sampling patients, squared units of yi; None when excluded.
        vi_privacy: variance added by the privacy mechanism.
        n: rows used.
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

    def __post_init__(self) -> None:
        where = f"estimate of {self.term!r} at {self.site!r}"
        if (self.yi is None) != (self.vi_sampling is None) or (self.yi is None) != bool(self.reason):
            raise ParameterError(f"{where} must have an estimate and a variance, or a reason for having neither")
        for name, value in (("yi", self.yi), ("vi_sampling", self.vi_sampling), ("vi_privacy", self.vi_privacy)):
            if value is not None and not math.isfinite(value):
                raise ParameterError(
                    f"{where}: {name} must be finite", given=f"{value}", next_step="Exclude the term with a reason."
                )
        if (self.vi_sampling is not None and self.vi_sampling < 0) or self.vi_privacy < 0:
            raise ParameterError(f"{where}: a variance must not be negative")
        if self.scale not in get_args(Scale):
            raise ParameterError(f"scale must be one of {', '.join(get_args(Scale))}", given=repr(self.scale))

    @property
    def vi(self) -> float | None:
        """Total variance: sampling plus privacy noise; None when excluded."""
        return None if self.vi_sampling is None else self.vi_sampling + self.vi_privacy


# -- the question --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Operand:
    """A column, or a comparison of a column with a number or a level."""

    name: str
    op: str = ""
    value: float | str = 0.0

    def __str__(self) -> str:
        if not self.op:
            return self.name
        return f"{self.name} {self.op} " + (f'"{self.value}"' if isinstance(self.value, str) else f"{self.value:g}")


@dataclass(frozen=True, kw_only=True)
class Estimand:
    """A question to one table.

    Attributes:
        kind: mean, proportion, correlation, ols, logistic or cox.
        terms: column names, or ``C(name)``; the two columns of a correlation; empty for an intercept only.
        outcome: column, or a comparison such as ``num > 0``.
        duration, event: of a Cox model; `event` may be a comparison.
        per: column -> units per coefficient: ``{"sbp": 10}`` reports the effect of ten units.
    Raises: ParameterError: parts that do not belong to the kind, or are missing.

    >>> str(Estimand(kind="cox", terms=("sbp", "age"), duration="years", event="died", per={"sbp": 10}))
    'cox(years, died) ~ sbp/10 + age'
    """

    kind: Kind
    terms: tuple[str, ...] = ()
    outcome: str = ""
    duration: str = ""
    event: str = ""
    per: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ParameterError(f"kind must be one of {', '.join(get_args(Kind))}", given=repr(self.kind))
        object.__setattr__(self, "terms", tuple(self.terms))
        object.__setattr__(self, "per", {name: float(units) for name, units in self.per.items()})
        cox, one_sided = self.kind == "cox", self.kind in ("mean", "proportion")
        if cox != bool(self.duration and self.event) or bool(self.outcome) != (not cox and self.kind != "correlation"):
            raise ParameterError(f"{self.kind} must name {_NEEDS[self.kind]}", next_step="See shared.estimands.")
        if one_sided and self.terms:
            raise ParameterError(f"{self.kind} takes no terms", given=", ".join(self.terms))
        if self.kind == "correlation" and len(self.terms) != 2:
            raise ParameterError("correlation must name two columns", given=f"{len(self.terms)}")
        if cox and not self.terms:
            raise ParameterError("cox must have at least one term", next_step="A Cox model has no intercept.")
        if len(set(self.terms)) < len(self.terms):
            raise ParameterError("each term may stand once", given=", ".join(self.terms))
        for text in filter(None, (self.outcome, self.event)):
            operand = _operand(text)
            if operand.op and self.kind not in ("proportion", "logistic", "cox"):
                raise ParameterError(f"{self.kind} takes a column, not a comparison", given=text)
        for term in self.terms:
            if not _TERM.fullmatch(term):
                raise ParameterError("a term must be a column or C(column)", given=repr(term))
        if self.duration and not _NAME.fullmatch(self.duration):
            raise ParameterError("duration must be a column", given=repr(self.duration))
        for name, units in self.per.items():
            if name not in self.terms or self.kind == "correlation":
                raise ParameterError("units can only be given for a numeric term of a model", given=repr(name))
            if not (math.isfinite(units) and units > 0):
                raise ParameterError(f"units of {name!r} must be positive", given=f"{units}")

    def __str__(self) -> str:
        if self.kind == "correlation":
            return f"correlation({', '.join(self.terms)})"
        if self.kind == "cox":
            left = f"cox({self.duration}, {_operand(self.event)})"
        else:
            left = f"{self.kind}({_operand(self.outcome)})"
        if self.kind in ("mean", "proportion"):
            return left
        return f"{left} ~ " + (" + ".join(self.label(term) for term in self.terms) or "1")

    def label(self, term: str) -> str:
        """The term as it stands in the text, with its units."""
        return f"{term}/{self.per[term]:g}" if term in self.per else term

    @property
    def scale(self) -> Scale:
        """The scale of its estimates."""
        return _SCALES.get(self.kind, "identity")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns it reads, each once: outcome first."""
        sides = [_operand(text).name for text in (self.outcome, self.event) if text]
        named = [*sides, *filter(None, [self.duration]), *(_plain(term) for term in self.terms)]
        return tuple(dict.fromkeys(named))


_NEEDS = {
    "mean": "an outcome",
    "proportion": "an outcome",
    "correlation": "two columns",
    "ols": "an outcome and its terms",
    "logistic": "an outcome and its terms",
    "cox": "a duration and an event",
}
_NAME = re.compile(r"[^\W\d]\w*")
_TERM = re.compile(r"[^\W\d]\w*|C\([^\W\d]\w*\)")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_OPERAND = re.compile(rf"\s*([^\W\d]\w*)\s*(?:(==|!=|>=|<=|>|<)\s*(?:({_NUMBER})|\"([^\"]*)\"|'([^']*)'))?\s*")
_CALL = re.compile(r"\s*(\w+)\s*\((.*?)\)\s*(?:~(.*))?", re.DOTALL)
_RIGHT = re.compile(rf"\s*(?:C\(\s*([^\W\d]\w*)\s*\)|([^\W\d]\w*)\s*(?:/\s*({_NUMBER}))?)\s*")
_LONGEST = 2000


def parse_estimand(text: str) -> Estimand:
    """Read a question; `str` of the result gives it back in one spelling.

    Raises: ParameterError: anything outside the grammar of this module.

    >>> parse_estimand("logistic(num > 0) ~ age/10 + C(cp)")  # doctest: +NORMALIZE_WHITESPACE
    Estimand(kind='logistic', terms=('age', 'C(cp)'), outcome='num > 0', duration='', event='', per={'age': 10.0})
    """
    hint = "Write for example: logistic(died) ~ age/10 + C(smoking)."
    match = _CALL.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or match[1] not in get_args(Kind):
        raise ParameterError(
            f"an estimand must read kind(columns) or kind(columns) ~ terms, with kind one of {', '.join(_NEEDS)}",
            given=repr(text[:80]),
            next_step=hint,
        )
    kind, inside, right = match[1], match[2].split(","), match[3]
    wanted = 2 if kind in ("correlation", "cox") else 1
    if len(inside) != wanted:
        raise ParameterError(f"{kind} must name {_NEEDS[kind]} in its brackets", given=repr(match[2]), next_step=hint)
    operands = [str(_operand(part)) for part in inside]
    model = kind in ("ols", "logistic", "cox")
    if model != (right is not None):
        must = f"{kind} must have terms after ~" if model else f"{kind} takes no terms after ~"
        raise ParameterError(must, given=repr(text), next_step=hint)
    terms: list[str] = []
    per: dict[str, float] = {}
    for part in [] if right is None or right.strip() == "1" else right.split("+"):
        found = _RIGHT.fullmatch(part)
        if found is None:
            raise ParameterError(
                "a term must be a column, column/units or C(column)",
                given=repr(part.strip()),
                next_step="Interactions and functions are not part of the language.",
            )
        terms.append(f"C({found[1]})" if found[1] else found[2])
        if found[3]:
            per[found[2]] = float(found[3])
    if kind == "correlation":
        return Estimand(kind="correlation", terms=tuple(operands))
    if kind == "cox":
        return Estimand(kind="cox", terms=tuple(terms), duration=operands[0], event=operands[1], per=per)
    return Estimand(kind=kind, terms=tuple(terms), outcome=operands[0], per=per)  # type: ignore[arg-type]


def _operand(text: str) -> _Operand:
    match = _OPERAND.fullmatch(text)
    if match is None:
        raise ParameterError(
            "an outcome must be a column, or a column compared with a number or a quoted level", given=repr(text)
        )
    if match[2] is None:
        return _Operand(match[1])
    level = match[4] if match[4] is not None else match[5]
    if level is not None and match[2] not in ("==", "!="):
        raise ParameterError("a level can only be compared with == or !=", given=repr(text))
    return _Operand(match[1], match[2], float(match[3]) if level is None else level)


def _plain(term: str) -> str:
    return term[2:-1] if term.endswith(")") else term


# -- the answer ----------------------------------------------------------------------------------------------
_Answer = tuple[float, float] | str
"""Estimate and variance, or the reason for having none."""
_FAR = "no finite estimate at this site"


def estimate(
    table: pd.DataFrame,
    estimand: Estimand,
    *,
    study: str,
    site: str,
    wave: int,
    receipts: Sequence[str] = (),
    vi_privacy: Mapping[str, float] | None = None,
    levels: Mapping[str, Sequence[Any]] | None = None,
) -> list[Estimate]:
    """Answer one question from one table: one estimate per term, no intercept unless it is the only term.

    Args:
        table: rows of one release. Rows with a missing value in a column of the estimand are not used.
        estimand: the question; `parse_estimand` reads one from text.
        study, site, wave, receipts: copied onto every estimate.
        vi_privacy: term -> variance of the privacy noise, where the mechanism states it.
        levels: column -> all its levels, the first being the reference. A categorical column brings its own;
            for any other a site would only know the levels it has, and references would differ between sites.
    Returns: estimates in the order of the terms; excluded ones have no number but a reason.
    Raises: EstimateRefusal: a column of words stands in the model without C(), or an outcome that must be 0 or 1
        holds other numbers: the question is wrong at every site alike.

    >>> table = pd.DataFrame({"dose": np.arange(20.0), "arm": 1, "y": np.arange(20.0) ** 1.1})
    >>> rows = estimate(table, parse_estimand("ols(y) ~ dose + arm"), study="s", site="A", wave=1)
    >>> [(row.term, row.yi and round(row.yi, 2), row.reason) for row in rows]
    [('dose', 1.36, ''), ('arm', None, 'the column is constant at this site')]
    """
    answers, n = _answers(table, estimand, dict(levels or {}))
    noise = dict(vi_privacy or {})
    rows = []
    for term, answer in answers.items():
        if not isinstance(answer, str) and not (all(map(math.isfinite, answer)) and answer[1] > 0):
            answer = _FAR
        number, variance = (None, None) if isinstance(answer, str) else answer
        rows.append(
            Estimate(
                study=study,
                site=site,
                wave=wave,
                term=term,
                yi=number,
                vi_sampling=variance,
                vi_privacy=noise.get(term, 0.0),
                n=n,
                reason=answer if isinstance(answer, str) else "",
                scale=estimand.scale,
                receipts=tuple(receipts),
            )
        )
    return rows


def _answers(
    table: pd.DataFrame, estimand: Estimand, levels: dict[str, Sequence[Any]]
) -> tuple[dict[str, _Answer], int]:
    single = estimand.kind in ("mean", "proportion", "correlation")
    names = [str(estimand)] if single else [estimand.label(term) for term in estimand.terms] or [_INTERCEPT]
    absent = [name for name in estimand.columns if name not in table.columns]
    if absent:
        return dict.fromkeys(names, f"the release has no column {', '.join(absent)}"), 0
    if estimand.kind == "correlation":
        x, y = (_numbers(table[name]) for name in estimand.terms)
        used = np.isfinite(x) & np.isfinite(y)
        return {names[0]: _correlation(x[used], y[used])}, int(used.sum())
    if estimand.kind in ("mean", "proportion"):
        values = _outcome(table, _operand(estimand.outcome), binary=estimand.kind == "proportion")
        values = values[np.isfinite(values)]
        solve = _mean if estimand.kind == "mean" else _proportion
        return {names[0]: solve(values)}, len(values)
    return _model(table, estimand, levels)


def _mean(x: Array) -> _Answer:
    if len(x) <= MIN_RESIDUAL_DF:
        return _few(len(x), 1)
    if np.ptp(x) == 0:
        return "the column is constant at this site"
    return float(x.mean()), float(x.var(ddof=1) / len(x))


def _proportion(x: Array) -> _Answer:
    if len(x) <= MIN_RESIDUAL_DF:
        return _few(len(x), 1)
    cases, n = float(x.sum()), len(x)
    if cases in (0.0, float(n)):
        return "the proportion is 0 or 1 at this site: its logit is not finite"
    return math.log(cases / (n - cases)), 1 / cases + 1 / (n - cases)


def _correlation(x: Array, y: Array) -> _Answer:
    if len(x) - 2 < MIN_RESIDUAL_DF:
        return _few(len(x), 2)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return "a column is constant at this site"
    r = float(np.corrcoef(x, y)[0, 1])
    if 1 - abs(r) < 1e-12:
        return "the columns are collinear at this site"
    return math.atanh(r), 1 / (len(x) - 3)


def _few(n: int, parameters: int) -> str:
    return f"{n} complete rows for {parameters} parameters: fewer than {MIN_RESIDUAL_DF} residual degrees of freedom"


def _model(table: pd.DataFrame, estimand: Estimand, levels: dict[str, Sequence[Any]]) -> tuple[dict[str, _Answer], int]:
    cox = estimand.kind == "cox"
    left = _operand(estimand.event if cox else estimand.outcome)
    y = _outcome(table, left, binary=estimand.kind != "ols")
    duration = _numbers(table[estimand.duration]) if cox else np.ones(len(table))
    labels, columns, reasons = _design(table, estimand, levels)
    x = np.column_stack([*columns, np.zeros((len(table), 0))])
    used = np.isfinite(x).all(axis=1) & np.isfinite(y) & np.isfinite(duration)
    x, y, duration = x[used], y[used], duration[used]
    n = len(y)

    def all_for(reason: str) -> tuple[dict[str, _Answer], int]:
        return {label: reasons.get(label, reason) for label in labels or [_INTERCEPT]}, n

    if n == 0:
        return all_for("no complete rows at this site")
    if cox and (duration < 0).any():
        return all_for(f"{int((duration < 0).sum())} durations are negative")
    answers: dict[str, _Answer] = {}
    alive = []
    for j, label in enumerate(labels):
        if np.ptp(x[:, j]) == 0:
            empty_level = "[" in label and x[0, j] == 0
            default = "the level has no rows at this site" if empty_level else "the column is constant at this site"
            answers[label] = reasons.get(label, default)
        else:
            alive.append(j)
    parameters = len(alive) + (not cox)
    if n - parameters < MIN_RESIDUAL_DF:
        return all_for(_few(n, parameters))
    if cox and y.sum() < max(MIN_EVENTS, len(alive)):
        return all_for(f"{int(y.sum())} events for {len(alive)} terms: too few")
    if not cox and np.ptp(y) == 0:
        return all_for("the outcome is constant at this site")
    names = [labels[j] for j in alive]
    solve = {"ols": _ols, "logistic": _logistic, "cox": _cox}[estimand.kind]
    fitted = solve(names, x[:, alive], y, duration) if names or not cox else {}
    for label in labels:
        if label not in answers:
            answers[label] = fitted[label]
            if isinstance(answers[label], str):
                answers[label] = reasons.get(label, fitted[label])
    if not labels:
        answers[_INTERCEPT] = fitted[_INTERCEPT]
    for term, units in estimand.per.items():
        label = estimand.label(term)
        answer = answers[label]
        if not isinstance(answer, str):
            answers[label] = (answer[0] * units, answer[1] * units**2)
    return {label: answers[label] for label in labels or [_INTERCEPT]}, n


def _design(
    table: pd.DataFrame, estimand: Estimand, levels: dict[str, Sequence[Any]]
) -> tuple[list[str], list[Array], dict[str, str]]:
    """Labels and columns of the terms, and reasons that are better than what the algebra will find."""
    labels: list[str] = []
    columns: list[Array] = []
    reasons: dict[str, str] = {}
    for term in estimand.terms:
        values = table[_plain(term)]
        if term == _plain(term):
            labels.append(estimand.label(term))
            columns.append(_numbers(values))
            continue
        known = levels.get(_plain(term))
        if known is None:
            is_category = isinstance(values.dtype, pd.CategoricalDtype)
            known = list(values.cat.categories) if is_category else sorted(values.dropna().unique().tolist())
        missing = (values.isna() | ~values.isin(known)).to_numpy(dtype=bool)
        dummies = [np.where(missing, np.nan, (values == level).to_numpy(dtype=bool, na_value=False)) for level in known]
        named = [f"{term}[{level}]" for level in known[1:]] or [term]
        if len(known) < 2 or not np.nansum(dummies[0]):
            rule = "fewer than two levels" if len(known) < 2 else "no rows at its reference level"
            reasons.update(dict.fromkeys(named, f"{_plain(term)} has {rule} at this site"))
        labels += named
        columns += dummies[1:] or [np.where(missing, np.nan, 0.0)]
    return labels, columns, reasons


def _numbers(values: pd.Series) -> Array:
    """(n,) float64, NaN where missing or infinite; ordered levels that are numbers count as numbers."""
    category = values.dtype if isinstance(values.dtype, pd.CategoricalDtype) else None
    if category is not None and category.ordered and pd.api.types.is_numeric_dtype(category.categories):
        values = values.astype(category.categories.dtype if values.notna().all() else "float64")
    elif category is not None or (not pd.api.types.is_numeric_dtype(values) and values.notna().any()):
        raise EstimateRefusal(
            f"column {values.name!r} must hold numbers",
            given=f"{values.dtype}",
            next_step=f'Write C({values.name}), or compare it with a level: {values.name} == "level".',
        )
    numbers = values.astype("Float64").to_numpy(dtype=float, na_value=np.nan).copy()
    numbers[~np.isfinite(numbers)] = np.nan
    return np.asarray(numbers)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def _outcome(table: pd.DataFrame, operand: _Operand, *, binary: bool) -> Array:
    values = table[operand.name]
    category = values.dtype if isinstance(values.dtype, pd.CategoricalDtype) else None
    if isinstance(operand.value, str):
        if category is not None and operand.value not in [str(level) for level in category.categories]:
            raise EstimateRefusal(
                f"column {operand.name!r} must have the level it is compared with",
                given=repr(operand.value),
                next_step=f"Its levels are {', '.join(str(level) for level in category.categories)}.",
            )
        same = (values.astype("string") == operand.value).fillna(False).to_numpy(dtype=float)
        return np.where(values.isna().to_numpy(), np.nan, same if operand.op == "==" else 1 - same)
    if operand.op and category is not None and pd.api.types.is_numeric_dtype(category.categories):
        values = values.astype("float64")
    numbers = _numbers(values)
    if operand.op:
        return np.where(np.isnan(numbers), np.nan, _COMPARE[operand.op](numbers, operand.value).astype(float))
    wrong = int((np.isfinite(numbers) & ~np.isin(numbers, (0.0, 1.0))).sum())
    if binary and wrong:
        raise EstimateRefusal(
            f"outcome {operand.name!r} must be 0 or 1",
            given=f"{wrong} other values",
            next_step=f"Compare it with a number: {operand.name} > 0.",
        )
    return numbers


# -- which terms the table supports --------------------------------------------------------------------------
def _unseen(x: Array) -> list[list[int]]:
    """For each column of (n, p) x, the columns it is confounded with given an intercept; empty when it is identified.

    A coefficient is identified exactly when no vector of the null space of [1, x] touches it.
    """
    scale = x.std(axis=0)
    standard = np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)])
    standard[:, 1:][:, scale <= 1e-12 * (np.abs(x).max(axis=0, initial=0.0) + 1e-300)] = 0.0
    if len(standard) < standard.shape[1]:
        standard = np.vstack([standard, np.zeros((standard.shape[1] - len(standard), standard.shape[1]))])
    _, singular, right = np.linalg.svd(standard, full_matrices=False)
    null = right[singular <= 1e-9 * singular[0]][:, 1:]
    touched = np.abs(null) > 1e-6
    groups = []
    for j in range(x.shape[1]):
        together = touched[touched[:, j]].any(axis=0) if touched[:, j].any() else np.zeros(x.shape[1], dtype=bool)
        groups.append([int(i) for i in np.flatnonzero(together)])
    return groups


def _independent(x: Array, first: Sequence[int]) -> list[int]:
    """Columns of x, `first` among them, that span what x spans beside an intercept."""
    chosen = list(first)
    for j in (j for j in range(x.shape[1]) if j not in first):
        if not any(_unseen(x[:, [*chosen, j]])):
            chosen.append(j)
    return sorted(chosen)


def _fit(
    names: list[str],
    x: Array,
    why: Callable[[int, list[int]], str],
    run: Callable[[Array], tuple[Array, Array]],
) -> dict[str, _Answer]:
    """Fit the identified columns, the span of the others kept as nuisance; `why` words the exclusion of a column."""
    groups = _unseen(x)
    answers: dict[str, _Answer] = {names[j]: why(j, group) for j, group in enumerate(groups) if group}
    kept = [j for j, group in enumerate(groups) if not group]
    basis = _independent(x, kept)
    centre, scale = x[:, basis].mean(axis=0), x[:, basis].std(axis=0)
    # Centred and scaled columns: a blood pressure in mmHg and a rate per day fit equally well.
    beta, variance = run((x[:, basis] - centre) / scale)
    for position, j in enumerate(basis):
        if j in kept:
            answers[names[j]] = (
                float(beta[position] / scale[position]),
                float(variance[position] / scale[position] ** 2),
            )
    return answers


def _confounded(names: list[str]) -> Callable[[int, list[int]], str]:
    def why(j: int, group: list[int]) -> str:
        others = ", ".join(names[i] for i in group if i != j)
        return f"collinear with {others} at this site" if others else "the column is constant at this site"

    return why


def _ols(names: list[str], x: Array, y: Array, _: Array) -> dict[str, _Answer]:
    import statsmodels.api as sm

    spread = float(y.std())
    result: Any = None

    def run(standard: Array) -> tuple[Array, Array]:
        nonlocal result
        result = sm.OLS((y - y.mean()) / spread, np.column_stack([np.ones(len(y)), standard])).fit()
        return result.params[1:] * spread, np.diag(result.cov_params())[1:] * spread**2

    answers = _fit(names, x, _confounded(names), run)
    if result.ssr <= 1e-18 * len(y):
        return dict.fromkeys([*names, _INTERCEPT], "the terms determine the outcome: there is no residual variance")
    if not names:
        answers[_INTERCEPT] = (float(y.mean()), float(y.var(ddof=1) / len(y)))
    return answers


def _determined(x: Array, y: Array) -> NDArray[np.bool_]:
    """Rows of a logistic model whose outcome some direction predicts without error, and that direction with them.

    The linear programme of Konis (2007): among directions that contradict no row, the one that agrees most.
    """
    from scipy.optimize import linprog

    standard = (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    signed = (2 * y - 1)[:, None] * np.column_stack([np.ones(len(x)), standard])
    found = linprog(-signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(x)), bounds=(-1, 1), method="highs")
    if found.status != 0:
        return np.zeros(len(x), dtype=bool)
    return np.asarray(signed @ found.x > 1e-7)


def _logistic(names: list[str], x: Array, y: Array, _: Array) -> dict[str, _Answer]:
    import statsmodels.api as sm

    sure, intercept = False, (math.nan, math.nan)

    def run(rows: NDArray[np.bool_]) -> Callable[[Array], tuple[Array, Array]]:
        def fit(standard: Array) -> tuple[Array, Array]:
            nonlocal sure, intercept
            model = sm.GLM(y[rows], np.column_stack([np.ones(rows.sum()), standard]), family=sm.families.Binomial())
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # separation is settled by the linear programme, not by a warning
                result = model.fit(tol=1e-12, maxiter=100)
            sure = bool(result.converged and np.minimum(result.mu, 1 - result.mu).min() > 1e-6)
            beta, variance = np.asarray(result.params), np.diag(np.asarray(result.cov_params()))
            intercept = (float(beta[0]), float(variance[0]))
            return beta[1:], variance[1:]

        return fit

    rows = np.ones(len(y), dtype=bool)
    before = _unseen(x)
    why = _confounded(names)
    answers = _fit(names, x, why, run(rows))
    if not sure and names:  # fitted probabilities at 0 or 1: perhaps separation, perhaps only strong effects
        while rows.any() and (gone := _determined(x[rows], y[rows])).any():
            rows[np.flatnonzero(rows)[gone]] = False
        if not rows.all():
            separated = f"separates the outcome: {_FAR}"
            left = rows.sum() - (x.shape[1] + 1 - sum(bool(group) for group in _unseen(x[rows])) if rows.any() else 0)
            if left < MIN_RESIDUAL_DF:
                return dict.fromkeys(names, f"the terms together separate the outcome: {_FAR}")
            answers = _fit(names, x[rows], lambda j, g: why(j, before[j]) if before[j] else separated, run(rows))
    if not names:
        answers[_INTERCEPT] = intercept
    return answers


def _cox(names: list[str], x: Array, y: Array, duration: Array) -> dict[str, _Answer]:
    from statsmodels.duration.hazard_regression import PHReg

    rows, separated = np.ones(len(y), dtype=bool), set[int]()
    found = True
    while found:  # a level without events: its rows leave every risk set in the limit
        found = False
        for j in (j for j in range(x.shape[1]) if j not in separated):
            values = np.unique(x[rows, j])
            events = [int(y[rows & (x[:, j] == value)].sum()) for value in values] if len(values) == 2 else []
            if 0 in events:
                rows &= x[:, j] != values[events.index(0)]
                separated.add(j)
                found = True
    fitted = x[rows]
    largest = 0.0
    reach = np.zeros(0)

    def run(standard: Array) -> tuple[Array, Array]:
        nonlocal largest, reach
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a flat likelihood is recognised below by how far the fit ran
            result = PHReg(duration[rows], standard, status=y[rows], ties="breslow").fit(disp=0)
        beta = np.asarray(result.params, dtype=float)
        reach = np.abs(beta) * np.ptp(standard, axis=0)
        largest = float(np.ptp(standard @ beta)) if len(beta) else 0.0
        return beta, np.diag(np.asarray(result.cov_params(), dtype=float))

    before = _unseen(x)
    why = _confounded(names)

    def exclusion(j: int, group: list[int]) -> str:
        if before[j]:
            return why(j, before[j])
        return f"all events lie on one side: {_FAR}" if j in separated else why(j, group)

    if all(_unseen(fitted)[j] for j in range(x.shape[1])):
        return {name: exclusion(j, [j]) for j, name in enumerate(names)}
    try:
        answers = _fit(names, fitted, exclusion, run)
    except (np.linalg.LinAlgError, ValueError):
        return dict.fromkeys(names, f"the partial likelihood has no maximum: {_FAR}")
    if not math.isfinite(largest) or largest > 50:
        return dict.fromkeys(names, f"the partial likelihood has no maximum: {_FAR}")
    return answers
