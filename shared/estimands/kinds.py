"""The kinds of question, one record each: the grammar, the analyst's methods and the verbs are made of these.

A new kind of question is a record here, its name in `Kind`, and its solver in `shared.estimands.columns`, or in
`shared.estimands.models` where it is a regression; a generalised linear model has its family as a record of
`shared.estimands.fits.families` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CURVED",
    "DESCRIBED",
    "GROUPED",
    "KINDS",
    "LISTED",
    "MODELS",
    "OPTIONS",
    "REPEATED",
    "SURVIVAL",
    "TERMWISE",
    "Kind",
    "QuestionKind",
]
__all__ += ["QuestionOption", "Scale"]

Kind = Literal[
    "mean",
    "difference",
    "ratio",
    "proportion",
    "two_by_two",
    "correlation",
    "table_one",
    "crosstab",
    "histogram",
    "ols",
    "logistic",
    "poisson",
    "risk_ratio",
    "log_binomial",
    "quasipoisson",
    "negbin",
    "probit",
    "cloglog",
    "gamma",
    "ordinal",
    "multinomial",
    "quantile",
    "standardised",
    "gee",
    "mixed",
    "cox",
    "km",
    "cumhaz",
    "cuminc",
    "rmst",
    "rmst_regression",
    "schoenfeld",
    "finegray",
    "aft",
    "flexible",
    "logrank",
    "network",
]
Scale = Literal["identity", "log", "logit", "fisher_z"]
_OUTCOME, _GROUPS = "an outcome", "an outcome and a group column"
_TERMS, _SURVIVAL = "an outcome and its terms", "a duration and an event"


@dataclass(frozen=True, kw_only=True)
class QuestionOption:
    """An option of some kinds of question: its default (None: a number that may be left out), choices, and a help."""

    default: str | None = None
    choices: tuple[str, ...] = ()
    help: str = ""


OPTIONS: Mapping[str, QuestionOption] = {
    "weights": QuestionOption(default=""),
    "ties": QuestionOption(default="efron", choices=("efron", "breslow")),
    "robust": QuestionOption(default="", choices=("", "HC0", "HC1", "HC2", "HC3")),
    "cluster": QuestionOption(default="", help="A column whose equal values mark rows that are not independent."),
    "entry": QuestionOption(default=""),
    "competing": QuestionOption(
        default="", help='What ends a follow-up before the event can: died, status == "dead", cause >= 2.'
    ),
    "measure": QuestionOption(default="OR", choices=("OR", "RR", "RD"), help="OR, RR or RD."),
    "by": QuestionOption(default="", help="A column with levels: each of them apart, and compared with the first."),
    "breaks": QuestionOption(
        default="10", help="Edges of bins, c(18, 40, 65, 90); or how many between the column's public bounds."
    ),
    "of": QuestionOption(default="", help="The exposure: one of the formula's columns."),
    "contrast": QuestionOption(
        default="RD",
        choices=("RD", "RR", "OR", "NNT", "slope"),
        help="RD, RR, OR or NNT of standardised means, or slope: the average marginal effect.",
    ),
    "model": QuestionOption(
        default="logistic",
        choices=(
            "logistic",
            "probit",
            "cloglog",
            "risk_ratio",
            "log_binomial",
            "poisson",
            "quasipoisson",
            "negbin",
            "gamma",
            "ols",
        ),
        help="The outcome's model: logistic, poisson, ols or another generalised linear kind.",
    ),
    "family": QuestionOption(
        default="gaussian",
        choices=("gaussian", "binomial", "poisson"),
        help="gaussian, binomial (log odds) or poisson (log rates).",
    ),
    "corstr": QuestionOption(
        default="exchangeable",
        choices=("exchangeable", "independence"),
        help="How alike a person's rows work: exchangeable, or independence.",
    ),
    "repeated": QuestionOption(default="", help="Which columns are repeated; left out, as the study's plan has it."),
    "start": QuestionOption(),
    "stop": QuestionOption(),
    "at": QuestionOption(help="The time, the same at every site."),
    "transform": QuestionOption(
        default="log", choices=("log", "identity"), help="Of time, by which an effect may change: log or identity."
    ),
    "dist": QuestionOption(
        default="weibull",
        choices=("weibull", "exponential", "lognormal", "loglogistic"),
        help="The law of times: weibull, exponential, lognormal or loglogistic.",
    ),
    "df": QuestionOption(
        default="3", choices=("1", "2", "3", "4", "5"), help="Degrees of freedom of the baseline: 1 (Weibull) to 5."
    ),
    "tau": QuestionOption(help="Until this time, the same at every site; of a quantile regression which, as 0.5."),
    "structure": QuestionOption(
        default="pearson", choices=("pearson", "cs"), help="pearson, or cs: one correlation of all, of equal variance."
    ),
}


@dataclass(frozen=True, kw_only=True)
class QuestionKind:
    """Properties of one kind of question.

    Args:
        needs: columns or terms that the question must name, in words.
        effect: effect measure of its estimates; blank where the question itself determines it.
        scale: on which they are pooled, where no option changes it.
        shape: data that it reads: one ``column``, ``columns``, the ``groups`` of one column, the terms of a ``model``,
            a network's ``statistic``.
        survival: its outcome is a time and an event.
        outcome: required outcome: any ``number``, ``binary`` (0 or 1, or a comparison), a ``count`` of at least 0,
            ``positive``, or a column with ``ordered`` levels, or with ``levels`` in no order.
        baseline: name of its intercept; blank where it has none.
        options: those of `OPTIONS` that it takes; those in `verb_options` are the verb's, too.
        asks: description of the question for analysts, a sentence; blank where there is no verb of its own.
        argument: name of the verb's argument, and its description.
        must: options that are required.
    """

    needs: str
    effect: str = ""
    scale: Scale = "identity"
    shape: Literal["column", "columns", "groups", "model", "statistic"] = "column"
    survival: bool = False
    outcome: Literal["number", "binary", "count", "positive", "ordered", "levels"] = "number"
    baseline: str = ""
    options: tuple[str, ...] = ()
    asks: str = ""
    argument: tuple[str, str] = ("formula", 'As in R: "Surv(time, event) ~ sbp + age", "died ~ age".')
    verb_options: tuple[str, ...] = ()
    must: tuple[str, ...] = ()


def _model(
    effect: str,
    baseline: str,
    asks: str,
    *,
    outcome: Literal["binary", "count", "positive"],
    scale: Scale = "log",
) -> QuestionKind:
    """A generalised linear model, whose family `shared.estimands.fits.families` holds."""
    return QuestionKind(
        needs=_TERMS,
        effect=effect,
        baseline=baseline,
        scale=scale,
        shape="model",
        outcome=outcome,
        options=("weights", "robust", "cluster"),
        asks=asks,
    )


KINDS: Mapping[Kind, QuestionKind] = {
    "mean": QuestionKind(
        needs=_OUTCOME,
        effect="Mean",
        asks="Mean of a column at every site, pooled.",
        argument=("column", 'A column, as in "sbp".'),
    ),
    "difference": QuestionKind(
        needs=_GROUPS,
        effect="Mean difference",
        shape="groups",
        asks='Difference of means to the first group at every site, pooled: "sbp ~ arm".',
    ),
    "ratio": QuestionKind(
        needs=_GROUPS,
        effect="Ratio of means",
        scale="log",
        shape="groups",
        asks='Ratio of means to the first group at every site, pooled: "sbp ~ arm".',
    ),
    "proportion": QuestionKind(
        needs=_OUTCOME,
        effect="Proportion",
        scale="logit",
        outcome="binary",
        asks="Share of rows for which something holds at every site, pooled on the logit scale.",
        argument=("outcome", 'What holds or not, as in "sbp > 140".'),
    ),
    "two_by_two": QuestionKind(
        needs=_GROUPS,
        outcome="binary",
        shape="groups",
        options=("measure",),
        asks='Two groups and an outcome at every site, pooled: "died ~ arm".',
        verb_options=("measure",),
    ),
    "correlation": QuestionKind(
        needs="two columns",
        effect="Correlation",
        scale="fisher_z",
        shape="columns",
        options=("structure",),
        asks="Correlation at every site, pooled on Fisher's scale.",
        argument=("columns", "Two columns; more with --structure cs."),
        verb_options=("structure",),
    ),
    "table_one": QuestionKind(
        needs="its columns",
        effect="Table 1",
        shape="columns",
        options=("by",),
        argument=("columns", "Columns, as in age sex sbp."),
        verb_options=("by",),
    ),
    "crosstab": QuestionKind(
        needs="two columns with levels",
        effect="Cross-table",
        shape="columns",
        asks="Two columns with levels at every site, pooled: shares in each group, odds ratios, test of independence.",
        argument=("columns", "Two columns with levels: what is counted, and the groups."),
    ),
    "histogram": QuestionKind(
        needs="a column of numbers",
        effect="Share",
        scale="logit",
        shape="columns",
        options=("breaks",),
        asks="Histogram of a column at every site, pooled: the share in each bin.",
        argument=("columns", "A column of numbers."),
        verb_options=("breaks",),
    ),
    "ols": QuestionKind(
        needs=_TERMS,
        effect="Coefficient",
        baseline="Intercept",
        shape="model",
        options=("weights", "robust", "cluster"),
        asks='Linear regression at every site, pooled: "sbp ~ age + C(sex)".',
    ),
    "logistic": _model(
        "Odds ratio",
        "Odds",
        'Logistic regression at every site, pooled as log odds ratios: "died ~ age".',
        outcome="binary",
    ),
    "poisson": _model(
        "Rate ratio",
        "Rate",
        'Poisson regression at every site, pooled as log rate ratios: "count ~ age + offset(log(years))".',
        outcome="count",
    ),
    "risk_ratio": _model(
        "Risk ratio",
        "Risk",
        'Risk ratios by modified Poisson regression, with a robust variance, at every site, pooled: "died ~ age".',
        outcome="binary",
    ),
    "log_binomial": _model(
        "Risk ratio",
        "Risk",
        'Risk ratios by binomial regression with a log link at every site, pooled: "died ~ age".',
        outcome="binary",
    ),
    "quasipoisson": _model(
        "Rate ratio",
        "Rate",
        'Poisson regression with a free dispersion at every site, pooled as log rate ratios: "count ~ age".',
        outcome="count",
    ),
    "negbin": _model(
        "Rate ratio",
        "Rate",
        'Negative binomial regression at every site, pooled as log rate ratios: "count ~ age".',
        outcome="count",
    ),
    "probit": _model(
        "Probit coefficient",
        "Probit",
        'Probit regression at every site, pooled as coefficients: "died ~ age".',
        outcome="binary",
        scale="identity",
    ),
    "cloglog": _model(
        "Hazard ratio",
        "Cumulative hazard",
        'Complementary log-log regression (hazards of an equal follow-up) at every site, pooled: "died ~ age".',
        outcome="binary",
    ),
    "gamma": _model(
        "Ratio of means",
        "Mean",
        'Gamma regression with a log link at every site, pooled as log ratios of means: "cost ~ age".',
        outcome="positive",
    ),
    "ordinal": QuestionKind(
        needs=_TERMS,
        effect="Odds ratio",
        scale="log",
        shape="model",
        outcome="ordered",
        options=("weights", "cluster"),
        asks='Proportional odds of an ordered outcome at every site, pooled as log odds ratios: "stage ~ age".',
    ),
    "multinomial": QuestionKind(
        needs=_TERMS,
        effect="Relative odds ratio",
        baseline="Relative odds",
        scale="log",
        shape="model",
        outcome="levels",
        options=("weights", "cluster"),
        asks="Multinomial logistic regression at every site, pooled as log odds ratios of each level against the "
        'first: "stage ~ age".',
    ),
    "quantile": QuestionKind(
        needs=_TERMS,
        effect="Difference of quantiles",
        baseline="Quantile",
        shape="model",
        options=("tau", "cluster"),
        asks='Quantile regression at every site, pooled as coefficients: "sbp ~ age", of the median with tau = 0.5.',
        verb_options=("tau",),
        must=("tau",),
    ),
    "standardised": QuestionKind(
        needs=_TERMS,
        shape="model",
        options=("of", "contrast", "model", "weights"),
        asks='Standardised risk or mean difference (g-computation) at every site, pooled: "died ~ arm + age + sex".',
        verb_options=("of", "contrast", "model"),
        must=("of",),
    ),
    "gee": QuestionKind(
        needs=_TERMS,
        effect="Coefficient",
        baseline="Intercept",
        shape="model",
        options=("family", "corstr", "cluster", "repeated"),
        asks='Marginal regression of repeated rows (GEE) at every site, pooled: "sbp ~ visit + arm".',
        verb_options=("family", "corstr", "cluster"),
    ),
    "mixed": QuestionKind(
        needs=_TERMS,
        effect="Coefficient",
        baseline="Intercept",
        shape="model",
        options=("robust", "cluster", "repeated"),
        verb_options=("cluster",),
        asks="Linear regression of repeated rows with an intercept for each person at every site, pooled: "
        '"sbp ~ visit + arm".',
    ),
    "cox": QuestionKind(
        needs=_SURVIVAL,
        effect="Hazard ratio",
        scale="log",
        shape="model",
        survival=True,
        options=("weights", "ties", "start", "stop", "entry", "robust", "cluster"),
        asks='Cox regression at every site, pooled: "Surv(time, event) ~ sbp + age".',
    ),
    "km": QuestionKind(
        needs=_SURVIVAL,
        effect="Survival",
        scale="logit",
        survival=True,
        options=("at",),
        asks='Kaplan-Meier at every site, pooled: the share without the event at a time: "Surv(time, event) ~ 1".',
        verb_options=("at",),
        must=("at",),
    ),
    "cumhaz": QuestionKind(
        needs=_SURVIVAL,
        effect="Cumulative hazard",
        scale="log",
        survival=True,
        options=("at",),
        asks='Nelson-Aalen at every site, pooled: the cumulative hazard up to a time: "Surv(time, event) ~ arm".',
        verb_options=("at",),
        must=("at",),
    ),
    "cuminc": QuestionKind(
        needs=_SURVIVAL,
        effect="Cumulative incidence",
        scale="logit",
        survival=True,
        options=("competing", "at"),
        asks="Aalen-Johansen at every site, pooled: the share with the event by a time beside competing ones: "
        '"Surv(time, event) ~ arm".',
        verb_options=("competing", "at"),
        must=("competing", "at"),
    ),
    "rmst": QuestionKind(
        needs=_SURVIVAL,
        effect="Restricted mean survival time",
        survival=True,
        options=("tau",),
        asks='Restricted mean survival time at every site, pooled: "Surv(time, event) ~ arm".',
        verb_options=("tau",),
        must=("tau",),
    ),
    "rmst_regression": QuestionKind(
        needs=_SURVIVAL,
        effect="Difference in restricted mean survival time",
        baseline="Restricted mean survival time",
        shape="model",
        survival=True,
        options=("tau", "cluster"),
        asks='Regression of the restricted mean survival time at every site, pooled: "Surv(time, event) ~ arm + age".',
        verb_options=("tau",),
        must=("tau",),
    ),
    "schoenfeld": QuestionKind(
        needs=_SURVIVAL,
        shape="model",
        survival=True,
        options=("weights", "ties", "entry", "transform"),
        asks="Test of proportional hazards (Schoenfeld residuals) at every site, pooled as the change of a log hazard "
        'ratio with time: "Surv(time, event) ~ arm + age".',
        verb_options=("transform",),
    ),
    "finegray": QuestionKind(
        needs=_SURVIVAL,
        effect="Subdistribution hazard ratio",
        scale="log",
        shape="model",
        survival=True,
        options=("competing", "cluster"),
        asks='Fine-Gray regression at every site, pooled: cumulative incidence beside competing events: "Surv(time, '
        'event) ~ arm + age".',
        verb_options=("competing",),
        must=("competing",),
    ),
    "aft": QuestionKind(
        needs=_SURVIVAL,
        effect="Time ratio",
        baseline="Time",
        scale="log",
        shape="model",
        survival=True,
        options=("weights", "dist", "cluster"),
        asks='Accelerated failure time (Weibull) at every site, pooled as log time ratios: "Surv(time, event) ~ age".',
        verb_options=("dist",),
    ),
    "flexible": QuestionKind(
        needs=_SURVIVAL,
        effect="Hazard ratio",
        scale="log",
        shape="model",
        survival=True,
        options=("weights", "entry", "df", "cluster"),
        asks="Flexible parametric survival (Royston and Parmar) at every site, pooled as log hazard ratios: "
        '"Surv(time, event) ~ arm + age".',
        verb_options=("df",),
    ),
    "logrank": QuestionKind(
        needs=_SURVIVAL,
        effect="Hazard ratio",
        scale="log",
        shape="groups",
        survival=True,
        asks='Log-rank comparison at every site, pooled as log hazard ratios: "Surv(time, event) ~ arm".',
    ),
    "network": QuestionKind(needs="what to ask of the network", scale="log", shape="statistic"),
}
SURVIVAL = tuple(name for name, kind in KINDS.items() if kind.survival)
MODELS = tuple(name for name, kind in KINDS.items() if kind.shape == "model")
LISTED = tuple(name for name, kind in KINDS.items() if kind.shape == "columns")
REPEATED = tuple(name for name, kind in KINDS.items() if "repeated" in kind.options)
"""Models of several rows of a person."""
CURVED = tuple(name for name, kind in KINDS.items() if kind.survival and kind.shape == "column")
"""Kinds that are read off a curve of all rows, or of each group."""
DESCRIBED = ("table_one", "crosstab", "histogram")
"""Kinds whose answer is a table of cells, of which no one number is the answer."""
TERMWISE = (*MODELS, *DESCRIBED, "cumhaz", "cuminc")
"""Kinds whose rows have an influence on each of several answers."""
GROUPED = tuple(name for name, kind in KINDS.items() if kind.shape == "groups")
