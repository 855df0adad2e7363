"""Published margins of patients like a study's, and tables simulated from them: the basis of a design, without records.

The tables follow the planned question's own model: covariates from a Gaussian copula with the published margins, the
outcome from the question's model with the assumed effects, at the published mean, share or event rate.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.plans.dictionary import NUMERIC, Column

if TYPE_CHECKING:
    import pandas as pd

    from shared.estimands.questions import Estimand
    from shared.plans.dictionary import Dictionary

__all__ = ["Published", "PublishedMargin", "made_up", "margins_template"]

Array = NDArray[np.float64]
_SKEWED = 2.5
"""A mean fewer of its SDs than this above the lower bound is that of a skewed column: a log-normal law."""
_SUM = 0.02
"""Published shares are rounded: they may sum to this much beside 1."""


@dataclass(frozen=True, kw_only=True)
class PublishedMargin:
    """Published figures of one column.

    Args:
        mean, sd: of a number; of a follow-up time the mean alone is used, and may be left out.
        shares: of the levels, in the dictionary's order.
        missing: share of patients whose value is missing; the other figures are of those who have one.
    """

    mean: float | None = None
    sd: float = 0.0
    shares: tuple[float, ...] = ()
    missing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Published:
    """Margins of the columns of a question, and what is assumed of its effects.

    Args:
        columns: column to its margin.
        effects: term, as the question writes it, to its coefficient on the analysis scale; 0 where not named.
        correlations: pairs of numeric or binary columns to the correlation of their normal scores.
        between: standard deviation of the true effect between sites, on the analysis scale.
    """

    columns: Mapping[str, PublishedMargin]
    effects: Mapping[str, float] = field(default_factory=dict)
    correlations: Mapping[tuple[str, str], float] = field(default_factory=dict)
    between: float = 0.0

    @classmethod
    def read(cls, text: str, question: Estimand, dictionary: Dictionary) -> Published:
        """Published figures from TOML, held against the dictionary.

        Raises: ParameterError: no TOML, an unknown name, a column of the question without a margin, a figure that the
            dictionary's bounds do not allow.

        >>> from shared.estimands.questions import parse_estimand
        >>> from shared.plans.dictionary import Column, Dictionary
        >>> columns = (Column(name="age", kind="integer", lower=18, upper=110), Column(name="died", kind="binary"))
        >>> found = Published.read(
        ...     "[columns.age]\\nmean = 62\\nsd = 13\\n[columns.died]\\nshare = 0.1\\n[effects]\\n'age/10' = 0.4",
        ...     parse_estimand("logistic(died) ~ age/10"), Dictionary(name="d", version=1, columns=columns))
        >>> found.columns["died"].shares, found.effects
        ((0.9, 0.1), {'age/10': 0.4})
        """
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _must("it must be TOML", f"{error}") from None
        _known(given, ("between", "columns", "effects", "correlations"), "the file")
        for name in ("columns", "effects", "correlations"):
            if not isinstance(given.setdefault(name, {}), dict):
                raise _must(f"[{name}] must be a table", type(given[name]).__name__)
        _known(given["columns"], dictionary.names, "[columns]")
        lacking = [name for name in question.columns if name not in given["columns"] and _needed(name, dictionary)]
        if lacking:
            raise _must(
                "published margins must be given of every column of the question",
                f"none of {', '.join(lacking)}",
                "coordinator plan design PLAN --template FILE writes what is needed, to be filled in.",
            )
        columns = {name: _margin(dictionary.column(name), body) for name, body in given["columns"].items()}
        effects = {name: _number(value, f"effect of {name}") for name, value in given["effects"].items()}
        heads = tuple(dict.fromkeys((*question.labels, *question.terms)))
        unknown = [name for name in effects if name not in heads and not any(name.startswith(f"{h}[") for h in heads)]
        if unknown:
            raise _must(
                "effects must be of terms as the question writes them", ", ".join(unknown), f"Terms: {', '.join(heads)}"
            )
        pairs = {
            _pair(name, columns): _number(r, f"correlation of {name}") for name, r in given["correlations"].items()
        }
        if any(abs(r) >= 1 for r in pairs.values()):
            raise _must("a correlation must be between -1 and 1", "one that is not")
        between = _number(given.get("between", 0.0), "between")
        if between < 0:
            raise _must("between must not be negative", f"{between:g}")
        return cls(columns=columns, effects=effects, correlations=pairs, between=between)


def _must(rule: str, given: str, step: str = "Correct the file of published margins.") -> ParameterError:
    return ParameterError(rule, given=given, next_step=step)


def _known(given: Mapping[str, Any], names: Any, where: str) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise _must(f"{where} must hold known names", ", ".join(unknown), f"Known: {', '.join(names)}.")


def _needed(name: str, dictionary: Dictionary) -> bool:
    return dictionary.column(name).kind != "time"


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        raise _must(f"{what} must be a number", f"{value!r}"[:60])
    return float(value)


def _pair(name: str, columns: Mapping[str, PublishedMargin]) -> tuple[str, str]:
    parts = tuple(part.strip() for part in name.split(","))
    if len(parts) != 2 or not set(parts) <= columns.keys():
        raise _must('[correlations] must name two columns with margins, as "age, sbp" = 0.2', repr(name)[:60])
    return parts[0], parts[1]


def _margin(column: Column, body: Any) -> PublishedMargin:
    where = f"[columns.{column.name}]"
    if not isinstance(body, dict):
        raise _must(f"{where} must be a table", type(body).__name__)
    missing = _number(body.get("missing", 0.0), f"{where} missing")
    if not 0 <= missing < 1:
        raise _must(f"{where} missing must be a share, 0 or more and below 1", f"{missing:g}")
    if missing and column.missing != "level":
        raise _must(
            f"{where} missing must be left out: the dictionary releases no missing value of this column",
            f"missing = {missing:g}, and {column.missing!r} in the dictionary",
            "Leave it out, and count as persons of a site those who have the value.",
        )
    if column.kind in NUMERIC:
        _known(body, ("mean", "sd", "missing"), where)
        mean, sd = _number(body.get("mean"), f"{where} mean"), _number(body.get("sd", 0.0), f"{where} sd")
        low, high = column.span
        if not low < mean < high or (column.kind != "time" and not 0 < sd <= (high - low) / 2):
            rule = (
                f"{where} mean must lie within the dictionary's bounds, sd be above 0 and at most half their distance"
            )
            raise _must(rule, f"mean {mean:g}, sd {sd:g}, bounds {low:g} to {high:g}")
        return PublishedMargin(mean=mean, sd=sd, missing=missing)
    _known(body, ("share", "shares", "missing"), where)
    count = len(column.levels)
    if "share" in body and count == 2:
        share = _number(body["share"], f"{where} share")
        shares: tuple[float, ...] = (1 - share, share)
    else:
        given = body.get("shares")
        if not isinstance(given, list) or len(given) != count:
            raise _must(f"{where} shares must be a list of {count}, by the dictionary's order of levels", "another")
        shares = tuple(_number(share, f"{where} shares") for share in given)
    if min(shares) <= 0 or abs(sum(shares) - 1) > _SUM:
        raise _must(f"{where} shares must be above 0 and sum to 1", f"a sum of {sum(shares):g}")
    return PublishedMargin(shares=tuple(share / sum(shares) for share in shares), missing=missing)


def margins_template(question: Estimand, dictionary: Dictionary) -> str:
    """A file of published margins to be filled in: every column of a question, nothing guessed."""
    lines = [
        "# What is published of such patients (a paper's Table 1, a registry's report): no record.",
        "# Lines that begin with # may stay out.",
        "",
        "# between = 0.1              # SD of the effect between sites, on the analysis scale; 0 if left out",
    ]
    for name in question.columns:
        column = dictionary.column(name)
        unit = f"  # {column.unit}" if column.unit else ""
        mark = "# " if column.kind == "time" else ""
        lines += ["", f"{mark}[columns.{name}]"]
        if column.kind in NUMERIC:
            lines += [f"{mark}mean = {unit}", *([f"sd = {unit}"] if column.kind != "time" else [])]
        elif len(column.levels) == 2:
            lines += [f"share =    # of {column.levels[1]}"]
        else:
            lines += [f"shares = []    # of {', '.join(map(str, column.levels))}"]
        if column.missing == "level":
            lines += [f"{mark}missing =   # share of patients without a value; the figures above are of the others"]
    lines += [
        "",
        "# [effects]                  # assumed, on the analysis scale (log odds ratios, log hazard ratios, …)",
    ]
    lines += [f'# "{label}" = 0.0' for label in question.labels if question.terms]
    lines += ["", "# [correlations]", '# "age, sbp" = 0.2']
    return "\n".join(lines) + "\n"


# -- made-up tables ----------------------------------------------------------------------------------------------
def made_up(
    published: Published, question: Estimand, dictionary: Dictionary, n: int, rng: np.random.Generator
) -> pd.DataFrame:
    """(n, …) a table of the question's columns that has the published margins and the assumed effects.

    The effects of this very table differ from the assumed ones by as much as they do between sites. Who lacks a value
    is drawn by lot: no paper tells more.

    Args:
        published: margins, correlations and effects.
        question: the question whose columns are simulated.
        n: rows.
    Raises: ParameterError: correlations that no columns can have together.
    """
    import pandas as pd

    from shared.estimands.formulas import names, parse

    outcomes = {question.duration} - {""}
    outcomes |= set(names(parse(question.event or question.outcome))) if question.event or question.outcome else set()
    covariates = [name for name in question.columns if name not in outcomes]
    latent = _latents(published, covariates, n, rng)
    made = {name: _drawn(dictionary.column(name), published.columns[name], z) for name, z in latent.items()}
    table = pd.DataFrame(made, index=range(n))
    table = table.astype({name: dictionary.column(name).dtype for name in table.columns})
    eta = _predictor(published, question, dictionary, table, rng)
    if question.duration:
        found = _follow_up(published, question, dictionary, eta, rng)
    else:
        found = {}
        for name in sorted(outcomes):
            column = dictionary.column(name)
            found[name] = _outcome(column, published.columns[name], eta, question.kind, rng)
    table = table.assign(**found)[[name for name in dictionary.names if name in question.columns]]
    for name in table.columns:
        if name in published.columns and published.columns[name].missing:
            table[name] = table[name].mask(rng.random(n) < published.columns[name].missing)
    return table.astype({name: dictionary.column(name).dtype for name in table.columns})


def _latents(published: Published, names: list[str], n: int, rng: np.random.Generator) -> dict[str, Array]:
    correlation = np.eye(len(names))
    for (one, other), r in published.correlations.items():
        if one in names and other in names:
            i, j = names.index(one), names.index(other)
            correlation[i, j] = correlation[j, i] = r
    try:
        root = np.linalg.cholesky(correlation)
    except np.linalg.LinAlgError:
        raise _must("the correlations must be ones that columns can have together", "others") from None
    return dict(zip(names, root @ rng.standard_normal((len(names), n)), strict=True))


def _drawn(column: Column, margin: PublishedMargin, z: Array) -> Any:
    if margin.shares:
        from scipy import special

        cuts = special.ndtri(np.cumsum(margin.shares)[:-1])
        return np.array(column.levels, dtype=object)[np.digitize(z, cuts)]
    assert margin.mean is not None
    low = column.span[0]
    if (margin.mean - low) / margin.sd < _SKEWED:
        spread = math.sqrt(math.log1p((margin.sd / (margin.mean - low)) ** 2))
        value = low + (margin.mean - low) * np.exp(spread * z - spread**2 / 2)
    else:
        value = margin.mean + margin.sd * z
    return _stored(column, value)


def _stored(column: Column, value: Array) -> Any:
    """Values as the column holds them: within its bounds, with its decimals."""
    low, high = column.span
    if column.kind == "integer":
        return np.clip(np.round(value), low, high).astype(np.int64)
    kept = value if column.decimals is None else np.round(value, column.decimals)
    return np.clip(kept, low, high)


def _predictor(
    published: Published, question: Estimand, dictionary: Dictionary, table: pd.DataFrame, rng: np.random.Generator
) -> Array:
    """(n,) the centred linear predictor of the assumed effects, those of one site."""
    from shared.estimands.design import design_of
    from shared.estimands.formulas import QuestionRows

    if not question.terms or not (published.effects or published.between):
        return np.zeros(len(table))
    levels: dict[str, Sequence[Any]] = {c.name: c.levels for c in dictionary.released if c.levels}
    design = design_of(QuestionRows(table), question, levels)
    eta = np.zeros(len(table))
    for label, column in zip(design.labels, design.columns, strict=True):
        base = label.split("[")[0]
        effect = published.effects.get(label, published.effects.get(base, 0.0))
        units = question.per.get(base.split("/")[0], 1.0)
        shift = effect + published.between * float(rng.standard_normal())
        eta += shift / units * np.nan_to_num(column - np.nanmean(column))
    return eta


def _at_share(eta: Array, share: float) -> float:
    """The intercept at which the mean of expit(intercept + eta) is `share`."""
    from scipy import special

    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if special.expit(middle + eta).mean() < share else (low, middle)
    return low


def _outcome(column: Column, margin: PublishedMargin, eta: Array, kind: str, rng: np.random.Generator) -> Any:
    from scipy import special

    n = len(eta)
    if margin.shares:
        if len(margin.shares) > 2:
            return _drawn(column, margin, rng.standard_normal(n) + eta)
        yes = rng.random(n) < special.expit(_at_share(eta, margin.shares[1]) + eta)
        return np.array(column.levels, dtype=object)[yes.astype(int)]
    assert margin.mean is not None
    if kind in ("poisson", "quasipoisson", "negbin"):
        mean = margin.mean * np.exp(eta) / np.exp(eta).mean()
        excess = (margin.sd**2 - margin.mean - mean.var()) / margin.mean**2
        mixed = mean * rng.gamma(1 / excess, excess, n) if excess > 1e-3 else mean
        return _stored(column, rng.poisson(mixed).astype(float))
    if kind == "gamma":
        shape = (margin.mean / margin.sd) ** 2
        return _stored(column, margin.mean * np.exp(eta) / np.exp(eta).mean() * rng.gamma(shape, 1 / shape, n))
    left = math.sqrt(max(margin.sd**2 - float(eta.var()), (margin.sd / 10) ** 2))
    return _stored(column, margin.mean + eta + left * rng.standard_normal(n))


def _follow_up(
    published: Published, question: Estimand, dictionary: Dictionary, eta: Array, rng: np.random.Generator
) -> dict[str, Any]:
    """Times and events: a constant hazard, entry spread over half the longest follow-up, the published share of events.

    A mean follow-up that is published shortens it.
    """
    n = len(eta)
    column, event = dictionary.column(question.duration), question.event.split()[0]
    longest = column.span[1]
    margin = published.columns.get(question.duration)
    if margin is not None and margin.mean is not None:
        longest = min(longest, margin.mean / 0.75)
    share = published.columns[event].shares[1]
    leaves = longest * (0.5 + 0.5 * rng.random(n))
    waits = rng.exponential(size=n) * np.exp(-eta)
    low, high = math.log(1e-9 / longest), math.log(1e6 / longest)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (waits * math.exp(-middle) <= leaves).mean() < share else (low, middle)
    fails = waits * math.exp(-low)
    least = 10.0 ** -(6 if column.decimals is None else column.decimals)
    time = _stored(column, np.maximum(np.minimum(fails, leaves), least))
    levels = np.array(dictionary.column(event).levels, dtype=object)
    return {question.duration: time, event: levels[(fails <= leaves).astype(int)]}
