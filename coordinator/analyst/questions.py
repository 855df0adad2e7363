"""An analyst's questions as methods, one for each kind: its formula as in R, and how it is pooled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.errors import ParameterError
from shared.estimands.kinds import KINDS, OPTIONS

if TYPE_CHECKING:
    from coordinator.analyst.result import Result
    from coordinator.analyst.table_one import TableOne
    from shared.estimands.kinds import Kind, QuestionKind

__all__ = ["LINKS", "KindMethods", "Questions", "with_kinds"]

A = TypeVar("A")
T = TypeVar("T")

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
    ask.__signature__ = Signature([*_parameters(known)], return_annotation="Result")  # type: ignore[attr-defined]
    return ask


def _parameters(known: QuestionKind) -> Iterator[Parameter]:
    """What `help` shows of a kind's method: its formula or columns, the options of the kind, the settings of all."""
    yield Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    several = known.shape == "columns"
    first = Parameter.VAR_POSITIONAL if several else Parameter.POSITIONAL_OR_KEYWORD
    yield Parameter(known.argument[0], first, annotation="str")
    for option in known.options:
        default = Parameter.empty if option in known.must else OPTIONS[option].default
        yield Parameter(option, Parameter.KEYWORD_ONLY, default=default)
    yield Parameter("term", Parameter.KEYWORD_ONLY, default="", annotation="str")
    yield Parameter("how", Parameter.VAR_KEYWORD, annotation="Any")


def with_kinds(asking: Callable[[Kind], Callable[..., Any]]) -> Callable[[type[T]], type[T]]:
    """Give a class a method for each kind of question for which it has written none: what `asking` makes."""

    def add(made: type[T]) -> type[T]:
        for kind, known in KINDS.items():
            if known.asks and not hasattr(made, kind):
                setattr(made, kind, asking(kind))
        return made

    return add


class KindMethods(Generic[A]):
    """What editors and type checkers know of the methods that `with_kinds` gives a class; each returns an `A`.

    A kind of question that is not listed here has its method all the same.
    """

    cox: Callable[..., A]
    ols: Callable[..., A]
    logistic: Callable[..., A]
    poisson: Callable[..., A]
    risk_ratio: Callable[..., A]
    log_binomial: Callable[..., A]
    quasipoisson: Callable[..., A]
    negbin: Callable[..., A]
    probit: Callable[..., A]
    cloglog: Callable[..., A]
    gamma: Callable[..., A]
    ordinal: Callable[..., A]
    multinomial: Callable[..., A]
    quantile: Callable[..., A]
    standardised: Callable[..., A]
    gee: Callable[..., A]
    mixed: Callable[..., A]
    km: Callable[..., A]
    cumhaz: Callable[..., A]
    cuminc: Callable[..., A]
    rmst: Callable[..., A]
    rmst_regression: Callable[..., A]
    schoenfeld: Callable[..., A]
    finegray: Callable[..., A]
    aft: Callable[..., A]
    flexible: Callable[..., A]
    logrank: Callable[..., A]
    two_by_two: Callable[..., A]
    mean: Callable[..., A]
    proportion: Callable[..., A]
    difference: Callable[..., A]
    ratio: Callable[..., A]
    correlation: Callable[..., A]


@with_kinds(_asking)
class Questions(KindMethods["Result"]):
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
        Raises: ParameterError (no such family, or no such link of it), and as of `query`.
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
