"""Options of every command that writes a figure: how large, for which journal, in which font, which axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from coordinator.figures.style import JOURNALS, numbers, styled
from shared.errors import ParameterError

__all__ = ["produces"]

PANEL = "The figure"


def _options(
    journal: Annotated[
        str, typer.Option(help=f"Size for a journal: {', '.join(JOURNALS)}.", rich_help_panel=PANEL)
    ] = "",
    width: Annotated[float | None, typer.Option(help="Width in mm; all is scaled.", rich_help_panel=PANEL)] = None,
    font: Annotated[str, typer.Option(help="A font of this machine, as in Arial.", rich_help_panel=PANEL)] = "",
    dpi: Annotated[int | None, typer.Option(help="Of .png and .tif; 300.", rich_help_panel=PANEL)] = None,
    grey: Annotated[bool, typer.Option("--grey", help="In greys.", rich_help_panel=PANEL)] = False,
    outlines: Annotated[
        bool, typer.Option("--outlines", help="Letters as outlines, not as text.", rich_help_panel=PANEL)
    ] = False,
    xlabel: Annotated[str, typer.Option(help="Label of the axis of effects.", rich_help_panel=PANEL)] = "",
    xlim: Annotated[str, typer.Option(help="Its ends, as read: 0.5,4.", rich_help_panel=PANEL)] = "",
    ticks: Annotated[str, typer.Option(help="Places of its labels: 0.5,1,2,4.", rich_help_panel=PANEL)] = "",
    digits: Annotated[int | None, typer.Option(help="Decimals of the effects.", rich_help_panel=PANEL)] = None,
) -> None:
    """Settings as of `coordinator.figures.style.FigureStyle`."""


def produces(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a figure's production; it is run with them in force."""
    own = list(signature(command, eval_str=True).parameters.values())
    more = [
        item.replace(kind=Parameter.KEYWORD_ONLY) for item in signature(_options, eval_str=True).parameters.values()
    ]

    @wraps(command)
    def run(*args: Any, **given: Any) -> None:
        how = {item.name: given.pop(item.name) for item in more}
        ends = numbers(how.pop("xlim"), "--xlim")
        if ends and len(ends) != 2:
            raise ParameterError("--xlim must be two numbers", given=f"{len(ends)}", next_step="As in 0.5,4.")
        changes = {name: value or None for name, value in how.items() if name not in ("journal", "digits")}
        changes |= {"digits": how["digits"], "ticks": numbers(how["ticks"], "--ticks") or None, "xlim": ends or None}
        with styled(journal=how["journal"], **changes):
            command(*args, **given)

    run.__signature__ = Signature([*(item.replace(kind=Parameter.KEYWORD_ONLY) for item in own), *more])  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in (*own, *more)}
    return run
