"""Options of every command that writes a figure: how large, for which journal, in which font, which axis."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer

from coordinator.figures.style import JOURNALS, FigureStyle, numbers, styled
from shared.errors import ParameterError

__all__ = ["FigureOptions"]

look_option = partial(typer.Option, rich_help_panel="The figure")


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Settings as of `coordinator.figures.style.FigureStyle`. Raises: ParameterError: ends that are not two numbers."""

    journal: Annotated[str, look_option(help=f"Size for a journal: {', '.join(JOURNALS)}.")] = ""
    width: Annotated[float | None, look_option(help="Width in mm; all is scaled.")] = None
    font: Annotated[str, look_option(help="A font of this machine, as in Arial.")] = ""
    dpi: Annotated[int | None, look_option(help="Of .png and .tif; 300.")] = None
    grey: Annotated[bool, look_option("--grey", help="In greys.")] = False
    outlines: Annotated[bool, look_option("--outlines", help="Letters as outlines, not as text.")] = False
    xlabel: Annotated[str, look_option(help="Label of the axis of effects.")] = ""
    xlim: Annotated[str, look_option(help="Its ends, as read: 0.5,4.")] = ""
    ticks: Annotated[str, look_option(help="Places of its labels: 0.5,1,2,4.")] = ""
    digits: Annotated[int | None, look_option(help="Decimals of the effects.")] = None

    def drawing(self) -> AbstractContextManager[FigureStyle]:
        """Context in which these settings are in force. Raises: ParameterError."""
        how, ends = asdict(self), numbers(self.xlim, "--xlim")
        if ends and len(ends) != 2:
            raise ParameterError("--xlim must be two numbers", given=f"{len(ends)}", next_step="As in 0.5,4.")
        changes = {name: value or None for name, value in how.items() if name not in ("journal", "digits")}
        changes |= {"digits": self.digits, "ticks": numbers(self.ticks, "--ticks") or None, "xlim": ends or None}
        return styled(journal=self.journal, **changes)
