"""Estimands of one table: a frozen question, its checks, and its two spellings.

    cox(years, died, subset = sex == 1) ~ sbp/10 + C(arm)            the whole question in one text, as plans hold it
    "cox", "Surv(years, died) ~ sbp + age", subset="sex == 1"        a kind and a formula, as in R

Both become an `Estimand`, whose `str` is the first spelling in one form: equal questions have equal texts, which is
how a planned analysis is recognised. A question is checked when it is made, long before it meets a table.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from shared.base.canonical import is_number
from shared.errors import ParameterError
from shared.estimands.fits.accelerated import Law
from shared.estimands.fits.cox import Ties
from shared.estimands.fits.families import Robust
from shared.estimands.formulas import (
    BASES,
    LongRows,
    Node,
    RightSide,
    check_arithmetic,
    is_logical,
    names,
    parse,
    right_side,
)
from shared.estimands.kinds import CURVED, GROUPED, KINDS, LISTED, MODELS, OPTIONS, REPEATED, SURVIVAL, Kind, Scale
from shared.estimands.splines import basis_of, edges_of, edges_text, settled, steps_of, unsettled

if TYPE_CHECKING:
    from shared.plans.repeated_rows import RepeatedRows

__all__ = ["GROUPED", "INTERCEPT", "MODELS", "NETWORK", "SURVIVAL", "Estimand", "Kind", "Scale"]
__all__ += ["parse_estimand", "parse_formula"]

Measure = Literal["OR", "RR", "RD"]
Contrast = Literal["RD", "RR", "OR", "NNT", "slope"]

INTERCEPT = "intercept"
NETWORK: Mapping[str, str] = {
    "edge": "share of pairs that are connected",
    "v_shape": "share of the possible V-shapes (one person connected with two others) that are there",
    "triangle": "share of triples of which all three pairs are connected",
    "star3": "share of the possible 3-stars (one person connected with three others) that are there",
    "transitivity": "share of V-shapes that are closed to a triangle",
    "mean_degree": "mean number of connections of a person, in the whole network of a site",
    "degree_cv": "coefficient of variation of the number of connections, in the whole network of a site",
    "reciprocity": "share of edges that are returned, of a network with directions",
    "in_degree_cv": "coefficient of variation of the number of edges to a person, in the whole network of a site",
    "out_degree_cv": "coefficient of variation of the number of edges from a person, in the whole network of a site",
    "directed_transitivity": "share of paths from one person over another to a third that are also an edge",
    "assortativity": "correlation of an attribute across edges",
    "recovery": "agreement of the communities that clustering finds with an attribute's levels, above chance",
    "modularity": "share of edges within the communities that clustering finds, above what degrees alone give",
}
"""Network estimands, in words, for messages."""
ACROSS = ("assortativity", "recovery")
"""Those of a column, which stands after ~."""
_LIKE: Mapping[str, Kind] = {"gaussian": "ols", "binomial": "logistic", "poisson": "poisson"}
"""Family of a marginal regression to the kind of question whose coefficients it has."""
_BENT = tuple(f"{name}(" for name in BASES)
_HINT = "Write for example: logistic(died) ~ age/10 + C(smoking)."


@dataclass(frozen=True, kw_only=True)
class Estimand:
    """A question to one table.

    Attributes:
        kind: one of `KINDS`.
        terms: terms as in a formula: ``age``, ``C(arm)``, ``log(x)``, ``age:C(arm)``; the columns of a correlation;
            the one group column of a comparison; empty for an intercept only.
        outcome: column, or a comparison such as ``num > 0``; of ``network`` the statistic, one of `NETWORK`.
        duration, event: of a survival question; `event` may be a comparison.
        per: column -> units per coefficient: ``{"sbp": 10}`` reports the effect of ten units.
        strata: columns whose levels have baseline hazards of their own (cox, logrank).
        offset: arithmetic added to the linear predictor; empty without one.
        intercept: False for a model through the origin.
        subset: a filter; rows where it is false or missing are not asked.
        weights: column of case weights of a model.
        ties: ``efron`` (as R) or ``breslow``.
        robust: ``HC0`` to ``HC3`` for a sandwich variance; empty for the model's. Of a Cox model ``HC0`` alone.
        cluster: column whose equal values mark rows that are not independent: a sandwich variance of their sums.
        entry: of a Cox or flexible model the column of the time from which a row is at risk (left truncation).
        competing: column, or comparison, of an event after which this one cannot happen; a row with both has had
            this one first.
        transform: of time, by which a Schoenfeld test lets an effect change: ``log`` or ``identity``.
        dist: law of the times of an accelerated failure time model.
        df: degrees of freedom of a flexible parametric model's baseline, as text.
        measure: of a two-by-two table: ``OR``, ``RR`` or ``RD``.
        family, corstr: of a marginal regression (GEE) the outcome's law, and how a person's rows work together.
        repeated: which columns a person has several of, as `LongRows.read` takes it; blank where each row is its own,
            or where a plan will say it (`with_rows`).
        start, stop: time window of a Cox model: persons still at risk at `start`, events up to `stop`.
        by: column whose levels a Table 1 has apart; empty for one of all rows.
        breaks: edges of a histogram's bins, ``c(0, 5, 10)``, or how many there are between the public bounds.
        of: exposure of a standardised contrast: a column of its terms.
        contrast: of the standardised means: ``RD``, ``RR``, ``OR``, ``NNT``; ``slope`` for the average marginal effect.
        model: kind of the model that standardised means are predicted by.
        structure: ``cs`` for the one correlation of columns that share a variance (compound symmetry).
        at: time at which survival is reported. tau: horizon of a restricted mean; the share of a quantile regression.
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
    strata: tuple[str, ...] = ()
    offset: str = ""
    intercept: bool = True
    subset: str = ""
    weights: str = ""
    ties: Ties = "efron"
    robust: Robust = ""
    cluster: str = ""
    entry: str = ""
    competing: str = ""
    transform: Literal["log", "identity"] = "log"
    dist: Law = "weibull"
    df: str = "3"
    measure: Measure = "OR"
    start: float | None = None
    stop: float | None = None
    at: float | None = None
    tau: float | None = None
    structure: Literal["pearson", "cs"] = "pearson"
    by: str = ""
    breaks: str = "10"
    of: str = ""
    contrast: Contrast = "RD"
    model: Kind = "logistic"
    family: Literal["gaussian", "binomial", "poisson"] = "gaussian"
    corstr: Literal["exchangeable", "independence"] = "exchangeable"
    repeated: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(f"kind must be one of {', '.join(KINDS)}", given=repr(self.kind))
        object.__setattr__(self, "terms", tuple(self.terms))
        object.__setattr__(self, "per", {name: float(units) for name, units in self.per.items()})
        kind, survival = self.kind, self.kind in SURVIVAL
        complete = bool(self.duration and self.event) == survival
        if not complete or bool(self.outcome) != (not survival and kind not in LISTED):
            raise ParameterError(f"{kind} must name {KINDS[kind].needs}", next_step="See docs/estimands.md.")
        if kind in ("mean", "proportion") and self.terms:
            raise ParameterError(f"{kind} takes no terms", given=", ".join(self.terms))
        if kind == "correlation" and len(self.terms) < 2:
            raise ParameterError("correlation must name two columns", given=f"{len(self.terms)}")
        if kind == "correlation" and len(self.terms) > 2 and self.structure != "cs":
            raise ParameterError(
                "more than two columns must share one correlation",
                given=f"{len(self.terms)} columns",
                next_step="Write correlation(a, b, c, structure = cs).",
            )
        if kind in MODELS and kind != "standardised" and not (KINDS[kind].baseline or self.terms):
            raise ParameterError(f"{kind} must have at least one term", next_step="It has no intercept.")
        if (kind in GROUPED and len(self.terms) != 1) or (kind in CURVED and len(self.terms) > 1):
            raise ParameterError(f"{kind} must compare the groups of one column", given=f"{len(self.terms)} terms")
        if len(set(self.terms)) < len(self.terms):
            raise ParameterError("each term may stand once", given=", ".join(self.terms))
        if kind == "network" and parse(self.outcome).kind == "text":
            object.__setattr__(self, "outcome", str(parse(self.outcome).value))
        for text in filter(None, (self.outcome if kind != "network" else "", self.event, self.competing)):
            node = _side(text)
            if is_logical(node) and not (survival or self.binary):
                step = f"Write proportion({text})." if kind == "mean" else "Name a column of numbers."
                raise ParameterError(f"{kind} takes a column, not a comparison", given=text, next_step=step)
        for term in self.terms:
            _check_term(term, kind)
        self._check_described()
        for name in filter(None, (self.duration, self.weights, self.by, self.cluster, self.entry, *self.strata)):
            if parse(name).kind != "name":
                raise ParameterError("duration, entry, weights, by, cluster, strata must be columns", given=repr(name))
        for name, units in self.per.items():
            if name not in self.terms or kind not in MODELS:
                raise ParameterError("units can only be given for a numeric term of a model", given=repr(name))
            if not (math.isfinite(units) and units > 0):
                raise ParameterError(f"units of {name!r} must be positive", given=f"{units}")
        if kind == "network":
            self._check_network()
        self._check_options()

    def _check_described(self) -> None:
        if len(self.terms) != {"crosstab": 2, "histogram": 1}.get(self.kind, len(self.terms)):
            raise ParameterError(f"{self.kind} must name {KINDS[self.kind].needs}", given=f"{len(self.terms)} columns")
        if self.kind == "histogram":
            edges_of(self.breaks)
        if self.kind == "table_one" and not self.terms:
            raise ParameterError("table_one must name its columns", next_step="Write table_one(age, sex, by = arm).")

    def _check_network(self) -> None:
        if self.outcome not in NETWORK:
            near = difflib.get_close_matches(self.outcome, NETWORK, n=1)
            raise ParameterError(
                f"a network question must be about one of {', '.join(NETWORK)}",
                given=repr(self.outcome)[:60],
                next_step=f"Did you mean {near[0]!r}?" if near else "Write for example: network(triangle).",
            )
        across = self.outcome in ACROSS
        if len(self.terms) != across or (across and parse(self.terms[0]).kind != "name"):
            raise ParameterError(
                f"network({self.outcome}) must name one column after ~"
                if across
                else f"network takes no terms after ~ but for {' and '.join(ACROSS)}",
                given=", ".join(self.terms) or "none",
                next_step=f"Write for example: network({self.outcome if across else ACROSS[0]}) ~ ward.",
            )
        if self.subset:
            raise ParameterError("network takes no subset: a part of a network is another network", given=self.subset)

    def _check_options(self) -> None:
        if self.strata and self.kind not in ("cox", "schoenfeld", "logrank"):
            raise ParameterError(f"{self.kind} takes no strata()", given=", ".join(self.strata))
        if self.offset:
            check_arithmetic(parse(self.offset))
        apart = self.kind in ("finegray", "multinomial") and self.offset
        if apart or ((self.offset or not self.intercept) and self.kind not in MODELS):
            raise ParameterError(f"{self.kind} takes neither an offset nor - 1", given=str(self.offset or "- 1"))
        if self.subset:
            node = parse(self.subset)
            check_arithmetic(node)
            if not is_logical(node):
                raise ParameterError("a subset must be true or false for every row", given=repr(self.subset))
        for name, option in OPTIONS.items():
            value, default = getattr(self, name), option.default
            if value != default and name not in KINDS[self.kind].options:
                raise ParameterError(f"{self.kind} takes no {name}", given=f"{value}")
            if option.choices and value not in option.choices:
                choices = ", ".join(filter(None, option.choices))
                raise ParameterError(f"{name} must be one of {choices}", given=repr(value))
            if default is None and value is not None and not (math.isfinite(value) and value >= 0):
                raise ParameterError(f"{name} must be a time of at least 0", given=f"{value}")
        if self.kind == "cox" and self.robust not in ("", "HC0"):
            raise ParameterError("robust errors of a Cox model must be HC0", given=self.robust)
        if "competing" in KINDS[self.kind].must and not self.competing:
            raise ParameterError(
                f"{self.kind} must name the competing event",
                next_step=f"Write for example: {self.kind}(time, relapse, competing = died).",
            )
        if self.kind == "quantile" and not (self.tau and self.tau < 1):
            raise ParameterError(
                "quantile must have a share tau between 0 and 1",
                given=f"{self.tau}",
                next_step="Write quantile(sbp, tau = 0.5) ~ age for the median.",
            )
        if "tau" in KINDS[self.kind].must and not self.tau:
            raise ParameterError(
                f"{self.kind} must have a horizon tau > 0, the same at every site",
                next_step=f"Write {self.kind}(time, event, tau = 5).",
            )
        if self.kind == "standardised":
            self._check_standardised()
        if self.repeated:
            object.__setattr__(self, "repeated", LongRows.read(self.repeated).text)
            if self.cluster:
                raise ParameterError("repeated rows must be a person's, or a cluster's", given="both")
        if self.kind == "mixed" and self.robust not in ("", "HC0"):
            raise ParameterError("robust errors of a mixed model must be HC0", given=self.robust)
        if self.start is not None and self.stop is not None and self.start >= self.stop:
            raise ParameterError("start must be before stop", given=f"{self.start:g} and {self.stop:g}")

    def _check_standardised(self) -> None:
        inside = {name for term in self.terms for name in names(parse(term))}
        if self.of not in inside:
            raise ParameterError(
                "standardised must name its exposure, a column of its terms",
                given=repr(self.of) if self.of else "none",
                next_step="Write for example: standardised(died, of = arm) ~ arm + age.",
            )
        if self.contrast in ("OR", "NNT") and not self.binary:
            raise ParameterError(f"{self.contrast} must be of a model of risks", given=f"model = {self.model}")

    @property
    def like(self) -> Kind:
        """The kind whose coefficients it has: its own, or that of its model or family."""
        if self.kind in REPEATED:
            return _LIKE[self.family]
        return self.model if self.kind == "standardised" else self.kind

    @property
    def outcome_kind(self) -> str:
        """Required kind of the outcome (`QuestionKind.outcome`); ``event`` for survival; blank for an unknown kind."""
        kind = self.like
        return "event" if kind in SURVIVAL else KINDS[kind].outcome if kind in KINDS else ""

    @property
    def binary(self) -> bool:
        """True if its outcome is 0 or 1."""
        return self.outcome_kind == "binary"

    def with_knots(self, quantile: Callable[[str, Sequence[float]], Any]) -> Estimand:
        """The same question with the knots that its curves lack (`shared.estimands.splines.settled`)."""
        return replace(self, terms=settled(self.terms, quantile)) if unsettled(self.terms) else self

    def with_rows(self, plan: RepeatedRows | None) -> Estimand:
        """The same question with the columns that are repeated, where it needs them and a plan has them.

        Raises: ParameterError: its outcome is not one of them, or its visits are not the plan's.
        """
        if plan is not None and (long := self.long) and long.visit == plan.order and plan.visits:
            there = plan.visits[: long.rows]
            if long.levels != there:
                raise ParameterError(
                    f"{plan.order} must have the plan's levels, of which row k is the k-th",
                    given=long.text,
                    next_step=f"Write {replace(long, levels=there).text}, or leave repeated out.",
                )
        if plan is None or self.kind not in REPEATED or self.repeated or self.cluster:
            return self
        used = tuple(name for name in self.columns if name in plan.columns)
        if not set(names(parse(self.outcome))) & set(used):
            raise ParameterError(
                f"{self.kind} must have an outcome that is repeated",
                given=self.outcome,
                next_step=f"Repeated columns: {', '.join(plan.columns)}. Or name a cluster: cluster = COLUMN.",
            )
        visit = plan.order if plan.visits and plan.order in self.columns else ""
        return replace(
            self,
            repeated=LongRows(columns=used, rows=plan.rows, visit=visit, levels=plan.visits if visit else ()).text,
        )

    @property
    def long(self) -> LongRows | None:
        """The repeated columns of a person with several rows; None where the question names none."""
        return LongRows.read(self.repeated) if self.repeated else None

    def with_breaks(self, bounds: Callable[[str], tuple[float, float]]) -> Estimand:
        """The same question with the edges of its bins, where it says how many: between the bounds of its column."""
        if self.kind != "histogram" or edges_of(self.breaks):
            return self
        return replace(self, breaks=edges_text(edges_of(self.breaks, bounds(self.terms[0]))))

    @property
    def unsettled(self) -> bool:
        """True if a curve or a histogram of it would have other knots or bins at another site."""
        return unsettled(self.terms) or (self.kind == "histogram" and not edges_of(self.breaks))

    def __str__(self) -> str:
        if self.kind in LISTED:
            inside = list(self.terms)
        elif self.kind in SURVIVAL:
            inside = [self.duration, str(_side(self.event))]
        elif self.kind == "network":
            inside = [self.outcome]
        else:
            inside = [str(_side(self.outcome))]
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value != option.default:
                inside.append(f"{name} = {value if isinstance(value, str) else Node('number', float(value))}")
        if self.subset:
            inside.append(f"subset = {parse(self.subset)}")
        left = f"{self.kind}({', '.join(inside)})"
        right = [self.label(term) for term in self.terms]
        right += [f"strata({name})" for name in self.strata]
        right += [f"offset({self.offset})"] if self.offset else []
        if self.kind in ("mean", "proportion", *LISTED):
            return left
        if self.kind in (*CURVED, "network") and not right:
            return left
        return f"{left} ~ " + (" + ".join(right) or "1") + ("" if self.intercept else " - 1")

    def label(self, term: str) -> str:
        """The term as it stands in the text, with its units."""
        return f"{term}/{_shown(self.per[term])}" if term in self.per else term

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its answers, as far as they are known without a table (a column of levels has one for each)."""
        whole = self.kind in ("mean", "proportion", "correlation", "network")
        whole = whole or (self.kind in CURVED and not self.terms)
        if self.kind == "standardised":
            return (self.label(self.of),)
        return (str(self),) if whole else tuple(self.label(term) for term in self.terms) or (INTERCEPT,)

    @property
    def scale(self) -> Scale:
        """The scale of its estimates."""
        if self.kind == "two_by_two":
            return "identity" if self.measure == "RD" else "log"
        if self.kind == "standardised":
            return "log" if self.contrast in ("RR", "OR") else "identity"
        if self.kind in REPEATED:
            return KINDS[self.like].scale
        if self.kind == "network" and self.outcome in ("assortativity", "recovery", "modularity"):
            return "fisher_z" if self.outcome == "assortativity" else "identity"
        return KINDS[self.kind].scale

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns it reads off a table, each once: outcome first."""
        long = self.long
        if long is None:
            return self.row_columns
        return tuple(dict.fromkeys(one for name in self.row_columns for one in long.wide(name)))

    @cached_property
    def shapes(self) -> tuple[str, ...]:
        """Terms beyond straight effects: products, powers, curves, a column's further terms, changes with time.

        >>> parse_estimand("ols(sbp) ~ age/10 + I((age/10)^2) + sex + bmi").shapes
        ('I((age/10)^2)',)
        >>> parse_estimand("cox(years, died) ~ age + by_time(arm, c(2, 5)) + arm:sex + log(bmi)").shapes
        ('by_time(arm, c(2, 5))', 'arm:sex')
        """
        if self.kind == "schoenfeld":
            return self.terms
        found, straight = [], set[str]()
        for term in self.terms:
            of = tuple(names(parse(term)))
            product = len(of) > 1 and (":" in term or "*" in term)
            if product or "^" in term or term.startswith(_BENT) or straight & {*of}:
                found.append(term)
            else:
                straight |= {*of}
        return tuple(found)

    @cached_property
    def row_columns(self) -> tuple[str, ...]:
        """Columns it reads of one row, each once: outcome first; those of a table where none is repeated."""
        outcome = "" if self.kind == "network" else self.outcome
        pieces = (outcome, self.event, self.duration, self.competing, self.entry, *self.terms, *self.strata)
        texts = (text for text in (*pieces, self.offset, self.by, self.weights, self.cluster, self.subset) if text)
        return tuple(dict.fromkeys(name for text in texts for name in names(parse(text))))


@lru_cache(maxsize=256)
def _shown(number: float) -> str:
    return str(Node("number", number))


def _side(text: str) -> Node:
    """An outcome: a column, a comparison, or arithmetic on columns."""
    node = parse(text)
    check_arithmetic(node)
    if not any(True for _ in names(node)):
        raise ParameterError("an outcome must be a column, or a column compared with a number or a quoted level")
    return node


def _check_term(text: str, kind: str) -> None:
    node = parse(text)
    if kind in LISTED and node.kind != "name":
        raise ParameterError(f"{kind} must be of columns", given=repr(text))
    found = right_side(node)
    for factor in (factor for term in found.terms for factor in term):
        basis_of(factor)
        if steps_of(factor) is not None and (kind != "cox" or len(found.terms[0]) > 1):
            raise ParameterError("by_time must be a term of a Cox model, by itself", given=repr(text))
    if len(found.terms) != 1 or found.per or found.strata or found.offset is not None or not found.intercept:
        raise ParameterError("a term must be a column, C(column), a function of columns or a:b", given=repr(text))


def parse_estimand(text: str) -> Estimand:
    """Read a question; `str` of the result gives it back in one spelling.

    Raises: ParameterError: anything outside the grammar.

    >>> parse_estimand("logistic(num > 0, subset = age >= 60) ~ age/10 + C(cp)").terms
    ('age', 'C(cp)')
    """
    node = parse(text)
    left, right = node.parts if (node.kind, node.value) == ("binary", "~") else (node, None)
    if left.kind != "call" or left.value not in KINDS:
        raise ParameterError(
            f"an estimand must read kind(columns) or kind(columns) ~ terms, with kind one of {', '.join(KINDS)}",
            given=repr(text[:80]),
            next_step=_HINT,
        )
    kind = left.value
    free = len(left.parts) - len(left.keys)
    inside, options = left.parts[:free], dict(zip(left.keys, left.parts[free:], strict=True))
    if len(options) < len(left.keys):
        raise ParameterError("each option may stand once", given=", ".join(left.keys))
    if len(inside) == 1 and (inside[0].kind, inside[0].value) == ("binary", "~") and right is None:
        return _formula(kind, inside[0], options)
    wanted = 2 if kind in SURVIVAL else 1
    least = {"correlation": 2, "table_one": 1, "crosstab": 2, "histogram": 1}.get(kind)
    if len(inside) != wanted if least is None else len(inside) < least:
        raise ParameterError(
            f"{kind} must name {KINDS[kind].needs} in its brackets", given=repr(str(left)[:80]), next_step=_HINT
        )
    needs_terms = kind in MODELS or kind in GROUPED
    takes_terms = needs_terms or kind in (*CURVED, "network")
    if (needs_terms and right is None) or (right is not None and not takes_terms):
        must = f"{kind} must have terms after ~" if needs_terms else f"{kind} takes no terms after ~"
        raise ParameterError(must, given=repr(text[:80]), next_step=_HINT)
    return _question(kind, inside, right, options)


def parse_formula(kind: str, formula: str, **options: Any) -> Estimand:
    """Read a question written as in R: the kind apart, and one formula.

    Args:
        formula: ``y ~ a + b``, ``Surv(time, event) ~ a``; ``y`` or ``y ~ 1`` for mean and proportion; ``~ a + b`` or
            ``a ~ b`` for a correlation; ``y ~ arm`` for a comparison.
        options: as `Estimand`'s: subset, weights, ties, robust, measure, start, stop, at, tau; None is not given.
    Raises: ParameterError.

    >>> str(parse_formula("cox", "Surv(years, died) ~ age", subset="sex == 1"))
    'cox(years, died, subset = sex == 1) ~ age'
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        raise ParameterError(
            f"kind must be one of {', '.join(KINDS)}",
            given=repr(kind),
            next_step=f"Did you mean {near[0]!r}?" if near else "",
        )
    given = {}
    for name, value in options.items():
        if value not in (None, ""):
            given[name] = Node("number", float(value)) if is_number(value) else parse(str(value))
    return _formula(kind, parse(formula), given)


def _formula(kind: str, node: Node, options: Mapping[str, Node]) -> Estimand:
    left, right = node.parts if (node.kind, node.value) == ("binary", "~") else (node, None)
    if left == Node("number", 1.0) and right is not None and kind in ("mean", "proportion", *LISTED):
        left, right = right, None  # ~ x
    if kind in LISTED:
        both = left if right is None else Node("binary", "+", (left, right))
        found = right_side(both)
        return _question(kind, tuple(term[0] for term in found.terms), None, options)
    if kind in SURVIVAL:
        truncated = "entry" in KINDS[kind].options and len(left.parts) == 3 and "entry" not in options
        if left.kind != "call" or left.value != "Surv" or not (len(left.parts) == 2 or truncated) or left.keys:
            raise ParameterError(
                f"{kind} must have Surv(time, event) before ~",
                given=repr(str(left)[:60]),
                next_step="Write for example: Surv(time, died) ~ age.",
            )
        more = {"entry": left.parts[0]} if truncated else {}
        return _question(kind, left.parts[-2:], right, {**options, **more})
    if right is not None and kind in ("mean", "proportion") and right == Node("number", 1.0):
        right = None
    return _question(kind, (left,), right, options)


def _question(kind: Any, left: Sequence[Node], right: Node | None, options: Mapping[str, Node]) -> Estimand:
    side = RightSide(terms=(), per={}, intercept=True, strata=(), offset=None)
    if right is not None:
        side = right_side(right)
    parts: dict[str, Any] = {}
    for name, node in options.items():
        if name not in ("subset", *KINDS[kind].options):
            allowed = ", ".join(("subset", *KINDS[kind].options))
            raise ParameterError(f"{kind} takes the options {allowed}", given=repr(name))
        if name in ("start", "stop", "at", "tau"):
            if node.kind != "number":
                raise ParameterError(f"{name} must be a number", given=repr(str(node)[:40]))
            parts[name] = node.value
        else:
            parts[name] = str(node)
    terms = tuple(":".join(map(str, term)) for term in side.terms)
    parts |= {"per": side.per, "strata": side.strata, "intercept": side.intercept}
    parts["offset"] = "" if side.offset is None else str(side.offset)
    if kind in LISTED:
        return Estimand(kind=kind, terms=tuple(map(str, left)), **parts)
    if kind in SURVIVAL:
        return Estimand(kind=kind, terms=terms, duration=str(left[0]), event=str(left[1]), **parts)
    return Estimand(kind=kind, terms=terms, outcome=str(left[0]), **parts)
