"""An analyst's questions as methods, one for each kind: its formula as in R, and how it is pooled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shared.errors import ParameterError
from shared.estimands.kinds import KINDS, OPTIONS

if TYPE_CHECKING:
    from coordinator.analyst.result import Result
    from coordinator.analyst.table_one import TableOne
    from shared.estimands.kinds import Kind

__all__ = ["LINKS", "Questions"]

LINKS: Mapping[str, Mapping[str, Kind]] = {
    "binomial": {"logit": "logistic", "probit": "probit", "cloglog": "cloglog", "log": "log_binomial"},
    "gaussian": {"identity": "ols"},
    "poisson": {"log": "poisson"},
    "quasipoisson": {"log": "quasipoisson"},
    "negbin": {"log": "negbin"},
    "Gamma": {"log": "gamma"},
}
"""Family and link, as R calls them, to the kind of question."""


def _asking(kind: Kind) -> Callable[..., Result]:
    """The method that asks a question of this kind: its formula or columns, and the settings of `query`."""
    known = KINDS[kind]

    def ask(study: Questions, *said: str, **how: Any) -> Result:
        named = (*said, *(how.pop(name) for name in (known.argument[0],) if name in how))
        if not named or (len(named) > 1 and known.shape != "columns"):
            raise ParameterError(f"{kind} must be given {known.needs}, in one text", given=f"{len(named)} texts")
        for option in known.must:
            if how.get(option) is None:
                raise ParameterError(f"{kind} must be given {option}=", given="none", next_step=OPTIONS[option].help)
        return study.query(kind, f"~ {' + '.join(named)}" if known.shape == "columns" else named[0], **how)

    ask.__name__, ask.__doc__ = kind, known.asks
    return ask


class Questions:
    """One method for each kind of question; a subclass implements `query`, which sends it."""

    @abstractmethod
    def query(self, kind: str, formula: str, *, term: str = "", **how: Any) -> Result:
        """Ask one question."""

    def planned(self, name: str, *, term: str = "", **how: Any) -> Result:
        """Ask a planned analysis by its name; the record says ``confirmatory`` unless `label` is given."""
        return self.query("", name, term=term, **{"label": "confirmatory", **how})

    def glm(self, formula: str, *, family: str = "binomial", link: str = "", term: str = "", **how: Any) -> Result:
        """A generalised linear model, by its family and link as R calls them.

        Args:
            family: gaussian, binomial, poisson, quasipoisson, negbin or Gamma.
            link: the family's first in `LINKS` if blank.
        """
        if family not in LINKS:
            raise ParameterError(f"family must be one of {', '.join(LINKS)}", given=repr(family))
        links = LINKS[family]
        if link and link not in links:
            raise ParameterError(f"link of {family} must be one of {', '.join(links)}", given=repr(link))
        return self.query(links[link or next(iter(links))], formula, term=term, **how)

    def table_one(self, *columns: str, by: str = "", **how: Any) -> TableOne:
        """Columns described by group and site: means, spreads, quartiles, shares, standardised differences, missing.

        Args:
            columns: such as ``"age", "sex"``. by: a column with levels.
            how: as of `query`.
        """
        return self._described("table_one", *columns, by=by, **how)

    def crosstab(self, column: str, by: str, **how: Any) -> TableOne:
        """Two columns with levels: the share of each level in each group, odds ratios, a test of independence."""
        return self._described("crosstab", column, by, **how)

    def histogram(self, column: str, *, breaks: int | Sequence[float] = 10, **how: Any) -> TableOne:
        """The share of rows in each bin of a column of numbers.

        Args:
            breaks: edges of the bins, or how many there are between the column's public bounds.
        """
        text = str(breaks) if isinstance(breaks, int) else f"c({', '.join(map(str, breaks))})"
        return self._described("histogram", column, breaks=text, **how)

    def _described(self, kind: str, *columns: str, **how: Any) -> TableOne:
        from coordinator.analyst.table_one import TableOne

        return TableOne(self.query(kind, f"~ {' + '.join(columns)}", **how).document)

    cox = _asking("cox")
    ols = _asking("ols")
    logistic = _asking("logistic")
    poisson = _asking("poisson")
    risk_ratio = _asking("risk_ratio")
    log_binomial = _asking("log_binomial")
    quasipoisson = _asking("quasipoisson")
    negbin = _asking("negbin")
    probit = _asking("probit")
    cloglog = _asking("cloglog")
    gamma = _asking("gamma")
    ordinal = _asking("ordinal")
    multinomial = _asking("multinomial")
    quantile = _asking("quantile")
    standardised = _asking("standardised")
    gee = _asking("gee")
    mixed = _asking("mixed")
    km = _asking("km")
    cumhaz = _asking("cumhaz")
    cuminc = _asking("cuminc")
    rmst = _asking("rmst")
    rmst_regression = _asking("rmst_regression")
    schoenfeld = _asking("schoenfeld")
    finegray = _asking("finegray")
    aft = _asking("aft")
    flexible = _asking("flexible")
    logrank = _asking("logrank")
    two_by_two = _asking("two_by_two")
    mean = _asking("mean")
    proportion = _asking("proportion")
    difference = _asking("difference")
    ratio = _asking("ratio")
    correlation = _asking("correlation")
