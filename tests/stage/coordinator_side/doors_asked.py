"""Questions as each door asks them, and the house that answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from stage.coordinator_side.doors import House

from shared.estimands.kinds import KINDS
from shared.estimands.questions import parse_formula


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question as each door asks it.

    Args:
        r: a call of the package. formula, options: the same for the verb `kind` of Python and the command line.
    """

    r: str
    kind: str
    formula: str
    options: Mapping[str, Any] = field(default_factory=dict)
    study: str = "cvd"

    @property
    def text(self) -> str:
        """The whole question in one spelling."""
        return self.formula if not self.kind else str(parse_formula(self.kind, self.formula, **self.options))

    @property
    def argv(self) -> list[str]:
        """The command, by its own verb where that has the options."""
        named = self.kind and KINDS[self.kind].shape != "statistic"
        if not named or not set(self.options) <= {*KINDS[self.kind].verb_options, "subset"}:
            return ["query", self.study, self.text]
        said = self.formula.removeprefix("~ ").split(" + ") if KINDS[self.kind].shape == "columns" else [self.formula]
        options = [word for name, value in self.options.items() for word in (f"--{name}", f"{value}")]
        return [self.kind.replace("_", "-"), self.study, *said, *options]


QUESTIONS = (
    Question(r="mean(cvd, ~ sbp)", kind="mean", formula="sbp"),
    Question(r="difference(cvd, sbp ~ arm)", kind="difference", formula="sbp ~ arm"),
    Question(r="ratio(cvd, chol ~ arm)", kind="ratio", formula="chol ~ arm"),
    Question(r="proportion(cvd, ~ sbp > 140)", kind="proportion", formula="sbp > 140"),
    Question(r="two_by_two(cvd, cvd ~ arm)", kind="two_by_two", formula="cvd ~ arm"),
    Question(
        r="two_by_two(cvd, cvd ~ arm, measure = 'RD', subset = ~ smoking %in% c('never', 'former'))",
        kind="two_by_two",
        formula="cvd ~ arm",
        options={"measure": "RD", "subset": "smoking == 'never' | smoking == 'former'"},
    ),
    Question(r="correlation(cvd, ~ sbp + age)", kind="correlation", formula="~ sbp + age"),
    Question(
        r="correlation(cvd, ~ sbp + age + chol, structure = 'cs')",
        kind="correlation",
        formula="~ sbp + age + chol",
        options={"structure": "cs"},
    ),
    Question(
        r="linear(cvd, sbp ~ age/10 + factor(smoking), robust = 'HC3')",
        kind="ols",
        formula="sbp ~ age/10 + factor(smoking)",
        options={"robust": "HC3"},
    ),
    Question(
        r="logistic(cvd, cvd ~ age/10 + as.factor(smoking))", kind="logistic", formula="cvd ~ age/10 + factor(smoking)"
    ),
    Question(
        r="poisson(cvd, visits ~ age + offset(log(time)))", kind="poisson", formula="visits ~ age + offset(log(time))"
    ),
    Question(r="risk_ratio(cvd, cvd ~ age/10)", kind="risk_ratio", formula="cvd ~ age/10"),
    Question(r="log_binomial(cvd, cvd ~ arm)", kind="log_binomial", formula="cvd ~ arm"),
    Question(r="quasipoisson(cvd, visits ~ arm)", kind="quasipoisson", formula="visits ~ arm"),
    Question(r="negbin(cvd, visits ~ arm)", kind="negbin", formula="visits ~ arm"),
    Question(r="probit(cvd, cvd ~ age/10)", kind="probit", formula="cvd ~ age/10"),
    Question(r="cloglog(cvd, cvd ~ age/10)", kind="cloglog", formula="cvd ~ age/10"),
    Question(r="gamma(cvd, I(chol) ~ arm)", kind="gamma", formula="I(chol) ~ arm"),
    Question(r="ordinal(cvd, smoking ~ age/10)", kind="ordinal", formula="smoking ~ age/10"),
    Question(r="multinomial(cvd, smoking ~ age/10)", kind="multinomial", formula="smoking ~ age/10"),
    Question(
        r="gee(cvd, sbp ~ age/10, corstr = 'independence', cluster = 'chol')",
        kind="gee",
        formula="sbp ~ age/10",
        options={"corstr": "independence", "cluster": "chol"},
    ),
    Question(
        r='gee(cvd, cvd ~ age/10, family = "binomial", cluster = "chol")',
        kind="gee",
        formula="cvd ~ age/10",
        options={"family": "binomial", "cluster": "chol"},
    ),
    Question(
        r='mixed(cvd, sbp ~ age/10, cluster = "chol")',
        kind="mixed",
        formula="sbp ~ age/10",
        options={"cluster": "chol"},
    ),
    Question(r="quantile(cvd, sbp ~ age/10, tau = 0.9)", kind="quantile", formula="sbp ~ age/10", options={"tau": 0.9}),
    Question(
        r="ask(cvd, cvd ~ ns(age, df = 2) + arm, 'logistic')", kind="logistic", formula="cvd ~ ns(age, df = 2) + arm"
    ),
    Question(
        r="cox(cvd, Surv(time, cvd) ~ by_time(arm, c(5, 10)) + poly(age, 2, raw = TRUE), cluster = 'visits')",
        kind="cox",
        formula="Surv(time, cvd) ~ by_time(arm, c(5, 10)) + poly(age, 2, raw = TRUE)",
        options={"cluster": "visits"},
    ),
    Question(
        r="standardised(cvd, cvd ~ arm + age, of = ~ arm, contrast = 'RR')",
        kind="standardised",
        formula="cvd ~ arm + age",
        options={"of": "arm", "contrast": "RR"},
    ),
    Question(
        r="cox(cvd, Surv(event = cvd == 1, time) ~ sbp/10 + strata(arm), ties = 'breslow', start = 1, stop = 9)",
        kind="cox",
        formula="Surv(time, cvd == 1) ~ sbp/10 + strata(arm)",
        options={"ties": "breslow", "start": 1.0, "stop": 9.0},
    ),
    Question(
        r="cox(cvd, Surv(time, cvd) ~ I((sbp - 130)/10) + age:arm + age)",
        kind="cox",
        formula="Surv(time, cvd) ~ I((sbp - 130)/10) + age:arm + age",
    ),
    Question(
        r="km(cvd, Surv(time, cvd) ~ arm, at = 5)", kind="km", formula="Surv(time, cvd) ~ arm", options={"at": 5.0}
    ),
    Question(
        r="cumhaz(cvd, Surv(time, cvd) ~ arm, at = 5)",
        kind="cumhaz",
        formula="Surv(time, cvd) ~ arm",
        options={"at": 5.0},
    ),
    Question(
        r="cuminc(cvd, Surv(time, cvd) ~ arm, competing = ~ visits > 3, at = 5)",
        kind="cuminc",
        formula="Surv(time, cvd) ~ arm",
        options={"competing": "visits > 3", "at": 5.0},
    ),
    Question(
        r="rmst(cvd, Surv(time, cvd) ~ arm, tau = 8)",
        kind="rmst",
        formula="Surv(time, cvd) ~ arm",
        options={"tau": 8.0},
    ),
    Question(
        r="rmst_regression(cvd, Surv(time, cvd) ~ arm + age, tau = 8)",
        kind="rmst_regression",
        formula="Surv(time, cvd) ~ arm + age",
        options={"tau": 8.0},
    ),
    Question(
        r="schoenfeld(cvd, Surv(time, cvd) ~ arm + age, transform = 'identity')",
        kind="schoenfeld",
        formula="Surv(time, cvd) ~ arm + age",
        options={"transform": "identity"},
    ),
    Question(
        r="finegray(cvd, Surv(time, cvd) ~ arm + age, competing = 'visits > 3')",
        kind="finegray",
        formula="Surv(time, cvd) ~ arm + age",
        options={"competing": "visits > 3"},
    ),
    Question(
        r="aft(cvd, Surv(time, cvd) ~ arm + age, dist = 'lognormal')",
        kind="aft",
        formula="Surv(time, cvd) ~ arm + age",
        options={"dist": "lognormal"},
    ),
    Question(
        r="flexible(cvd, Surv(time, cvd) ~ arm + age, df = 2)",
        kind="flexible",
        formula="Surv(time, cvd) ~ arm + age",
        options={"df": "2"},
    ),
    Question(
        r="logrank(cvd, Surv(time, cvd) ~ arm + strata(smoking))",
        kind="logrank",
        formula="Surv(time, cvd) ~ arm + strata(smoking)",
    ),
    Question(
        r="linear(cvd, sbp ~ bs(age, knots = 55, degree = 2) + arm)",
        kind="ols",
        formula="sbp ~ bs(age, knots = 55, degree = 2) + arm",
    ),
    Question(
        r="linear(cvd, sbp ~ age/10, weights = 'hdl')", kind="ols", formula="sbp ~ age/10", options={"weights": "hdl"}
    ),
    Question(
        r="cox(cvd, Surv(visits, time, cvd) ~ sbp/10)",
        kind="cox",
        formula="Surv(time, cvd) ~ sbp/10",
        options={"entry": "visits"},
    ),
    Question(
        r="standardised(cvd, visits ~ arm + age, of = 'arm', model = 'poisson')",
        kind="standardised",
        formula="visits ~ arm + age",
        options={"of": "arm", "model": "poisson"},
    ),
    Question(r="planned(cvd, 'adjusted')", kind="", formula="adjusted"),
)
TABLES = (
    Question(
        r="table_one(cvd, ~ age + smoking, by = 'arm')",
        kind="table_one",
        formula="~ age + smoking",
        options={"by": "arm"},
    ),
    Question(r="crosstab(cvd, ~ smoking + arm)", kind="crosstab", formula="~ smoking + arm"),
    Question(r="histogram(cvd, ~ age, breaks = 6)", kind="histogram", formula="~ age", options={"breaks": "6"}),
)
"""Questions whose answer is a table of cells."""


NETWORKS = (Question(r="network(contacts, ~ edge)", kind="network", formula="edge", study="contacts"),)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    made = House(tmp_path_factory.mktemp("doors") / "hub")
    yield made
    made.running.stop(1)
