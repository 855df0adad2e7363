"""Options of the commands that ask or pool, as the lead and analysts type them; each group is one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from coordinator.pooling import METHODS

__all__ = [
    "AsOf",
    "Favours",
    "FurtherOptions",
    "PoolingOptions",
    "QuestionOptions",
    "Spending",
    "Term",
    "Wave",
    "as_verb",
    "drawing_option",
    "further_option",
    "pooling_option",
    "question_option",
]

Method = TypeVar("Method", bound=Callable[..., Any])

# The lists under which ``--help`` shows options, the same words at every command.
question_option = partial(typer.Option, rich_help_panel="The question")
pooling_option = partial(typer.Option, rich_help_panel="Pooling")
further_option = partial(typer.Option, rich_help_panel="Further analyses")
drawing_option = partial(typer.Option, rich_help_panel="What is drawn")

Term = Annotated[str, question_option("--term", help="Which term to pool; the first if left out.")]
Wave = Annotated[int, question_option("--wave", help="The table as of this wave; the newest if left out.")]
AsOf = Annotated[
    int | None, question_option("--as-of", help="Revision of a closed wave; all there is now if left out.")
]
Favours = Annotated[str, drawing_option("--favours", help='Sides of the null line: "Favours drug|Favours placebo".')]
Spending = Annotated[
    str, further_option("--spending", help="How the error rate is spent over the waves: obrien-fleming or pocock.")
]
Bayes = Annotated[bool, further_option("--bayes", help="Also the posterior under a half-normal prior on τ.")]
Exact = Annotated[bool, further_option("--exact", help="Also intervals made for few studies.")]
Diagnostics = Annotated[bool, further_option("--diagnostics", help="Also leave-one-out, influence, asymmetry.")]


@dataclass(frozen=True, kw_only=True)
class PoolingOptions:
    """Options of the pooling of estimates: the estimator of τ², the test and the coverage of intervals."""

    method: Annotated[str, pooling_option("--method", help=f"FE, or tau² by {', '.join(METHODS[1:])}.")] = "REML"
    test: Annotated[
        str, pooling_option("--test", help="z, t, knha (Knapp-Hartung) or adhoc (never below the model).")
    ] = "adhoc"
    level: Annotated[float, pooling_option("--level", help="Coverage of every interval.")] = 0.95

    @property
    def how(self) -> dict[str, Any]:
        """Keyword arguments of `coordinator.pooling.pool.pool` and `coordinator.pooling.pool.Pooling`."""
        return {"method": self.method, "test": self.test, "level": self.level}


@dataclass(frozen=True, kw_only=True)
class FurtherOptions:
    """Options of further analyses of a pooled result (`coordinator.pooling.further.analyses`)."""

    bayes: Bayes = False
    exact: Exact = False
    diagnostics: Diagnostics = False
    scale: Annotated[float, further_option("--scale", help="Scale of that prior; 0.5 suits log ratios.")] = 0.5


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(PoolingOptions):
    """Options of every question."""

    term: Term = ""
    wave: Wave = 0
    as_of: AsOf = None
    subset: Annotated[str, question_option("--subset", help='Only rows for which this holds, as in "age >= 60".')] = ""
    label: Annotated[str, question_option("--label", help="confirmatory or exploratory; by the plan if left out.")] = ""
    forest: Annotated[Path | None, typer.Option("--forest", help="Also draw the forest plot: .svg, .pdf or .png.")] = (
        None
    )
    subgroup: Annotated[
        str, further_option("--subgroup", help="posture, or a column with levels: each pooled apart, and compared.")
    ] = ""
    bayes: Bayes = False
    exact: Exact = False
    diagnostics: Diagnostics = False

    @property
    def query_arguments(self) -> dict[str, Any]:
        """Keyword arguments of `coordinator.analyst.remote.Study.query`."""
        names = ("term", "method", "test", "level", "wave", "as_of", "label", *(["subset"] if self.subset else []))
        return {name: getattr(self, name) for name in names}


def as_verb(method: Method) -> Method:
    """Mark a method of `coordinator.analyst.remote.Study` as a verb of the command line: its words and its options."""
    method.is_verb = True  # type: ignore[attr-defined]
    return method
