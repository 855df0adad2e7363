"""Options of the commands that ask or pool, as the lead and analysts type them; each group is one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import typer

from coordinator.pooling import METHODS

__all__ = ["AsOf", "Favours", "FurtherOptions", "PoolingOptions", "Spending", "Term", "Wave", "as_verb"]

Method = TypeVar("Method", bound=Callable[..., Any])

Term = Annotated[str, typer.Option("--term", help="Which term to pool; the first if left out.")]
Wave = Annotated[int, typer.Option("--wave", help="The table as of this wave; the newest if left out.")]
AsOf = Annotated[int | None, typer.Option("--as-of", help="Revision of a closed wave; all there is now if left out.")]
Favours = Annotated[str, typer.Option("--favours", help='Sides of the null line: "Favours drug|Favours placebo".')]
Spending = Annotated[
    str, typer.Option("--spending", help="How the error rate is spent over the waves: obrien-fleming or pocock.")
]


@dataclass(frozen=True, kw_only=True)
class PoolingOptions:
    """How estimates are pooled."""

    method: Annotated[str, typer.Option("--method", help=f"FE, or tau² by {', '.join(METHODS[1:])}.")] = "REML"
    test: Annotated[
        str, typer.Option("--test", help="z, t, knha (Knapp-Hartung) or adhoc (never below the model).")
    ] = "adhoc"
    level: Annotated[float, typer.Option("--level", help="Coverage of every interval.")] = 0.95

    @property
    def how(self) -> dict[str, Any]:
        """As `coordinator.pooling.pool.pool` takes it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class FurtherOptions:
    """What else is asked of a pooled result (`coordinator.pooling.further.analyses`)."""

    bayes: Annotated[bool, typer.Option("--bayes", help="Also the posterior under a half-normal prior on τ.")] = False
    exact: Annotated[bool, typer.Option("--exact", help="Also intervals made for few studies.")] = False
    diagnostics: Annotated[bool, typer.Option("--diagnostics", help="Also leave-one-out, influence, asymmetry.")] = (
        False
    )
    scale: Annotated[float, typer.Option("--scale", help="Scale of that prior; 0.5 suits log ratios.")] = 0.5


def as_verb(method: Method) -> Method:
    """Mark a method of `coordinator.analyst.remote.Study` as a verb of the command line: its words and its options."""
    method.is_verb = True  # type: ignore[attr-defined]
    return method
