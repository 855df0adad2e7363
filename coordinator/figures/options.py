"""Options of every command that writes a figure: how large, for which journal, in which font, which axis."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from coordinator.figures.style import JOURNALS, FigureStyle, numbers, styled
from shared.errors import ParameterError

__all__ = ["FigureOptions"]

PANEL = "The figure"


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Settings as of `coordinator.figures.style.FigureStyle`. Raises: ParameterError: ends that are not two numbers."""

    journal: Annotated[str, typer.Option(help=f"Size for a journal: {', '.join(JOURNALS)}.", rich_help_panel=PANEL)] = (
        ""
    )
    width: Annotated[float | None, typer.Option(help="Width in mm; all is scaled.", rich_help_panel=PANEL)] = None
    font: Annotated[str, typer.Option(help="A font of this machine, as in Arial.", rich_help_panel=PANEL)] = ""
    dpi: Annotated[int | None, typer.Option(help="Of .png and .tif; 300.", rich_help_panel=PANEL)] = None
    grey: Annotated[bool, typer.Option("--grey", help="In greys.", rich_help_panel=PANEL)] = False
    outlines: Annotated[
        bool, typer.Option("--outlines", help="Letters as outlines, not as text.", rich_help_panel=PANEL)
    ] = False
    xlabel: Annotated[str, typer.Option(help="Label of the axis of effects.", rich_help_panel=PANEL)] = ""
    xlim: Annotated[str, typer.Option(help="Its ends, as read: 0.5,4.", rich_help_panel=PANEL)] = ""
    ticks: Annotated[str, typer.Option(help="Places of its labels: 0.5,1,2,4.", rich_help_panel=PANEL)] = ""
    digits: Annotated[int | None, typer.Option(help="Decimals of the effects.", rich_help_panel=PANEL)] = None

    def drawing(self) -> AbstractContextManager[FigureStyle]:
        """These settings in force. Raises: ParameterError."""
        how, ends = asdict(self), numbers(self.xlim, "--xlim")
        if ends and len(ends) != 2:
            raise ParameterError("--xlim must be two numbers", given=f"{len(ends)}", next_step="As in 0.5,4.")
        changes = {name: value or None for name, value in how.items() if name not in ("journal", "digits")}
        changes |= {"digits": self.digits, "ticks": numbers(self.ticks, "--ticks") or None, "xlim": ends or None}
        return styled(journal=self.journal, **changes)
