"""Style of figures: file type, size, font, resolution, greys, axis and digits, and the requirements of journals.

A figure is drawn from its results alone, at a size that its words need; a style changes its appearance and none of its
content. A style is set around the drawing (`styled`), because it applies to every kind of figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.errors import ParameterError

__all__ = [
    "BAND",
    "BLUE",
    "COLOURS",
    "DASHES",
    "FILES",
    "FONT",
    "GAP",
    "GREY",
    "INK",
    "JOURNALS",
    "LANE",
    "MARGIN",
    "ORANGE",
    "PLOT",
    "ROW",
    "RULE",
    "SERIES",
    "SMALL",
    "TEXT",
    "TITLE",
    "FigureStyle",
    "check_file",
    "numbers",
    "style",
    "styled",
]


INK, GREY, RULE, BAND = "#1b1f24", "#667080", "#c9d0d8", "#f5f7f9"
SERIES = (("#0072B2", "s"), ("#D55E00", "o"), ("#009E73", "^"), ("#CC79A7", "D"))
# Lines: seven colours (Okabe and Ito's yellow is too faint on white) and four dashes, so that 28 lines all differ.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 2, 1.2, 2)))
TEXT, SMALL, TITLE = 9.0, 8.0, 12.0  # points
ROW, LANE, GAP, MARGIN = 0.27, 0.19, 0.24, 0.28  # inches
PLOT = 3.5
BLUE, ORANGE = SERIES[0][0], SERIES[1][0]

FONT = "DejaVu Sans"  # ships with matplotlib: the same outlines on every machine
FILES: tuple[str, ...] = (".svg", ".pdf", ".png", ".eps", ".tif", ".tiff")
"""Files that a figure can be written to."""
LEAST_LETTERS = 5.0
"""Points below which no journal prints letters."""


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """Settings of a figure's production; nothing set is the figure as it is drawn.

    Args:
        width: of the whole figure in mm; everything in it is scaled alike. None leaves the width that it needs.
        font: a font of this machine.
        dpi: of .png and .tif.
        grey: in greys; series still differ in shape and dashes.
        outlines: letters as outlines, which no reader's font can change, and nobody can edit or search.
        xlim: ends of the axis of effects, as they are read (1 is no effect of a ratio).
        ticks: places of its labels, likewise.
        xlabel: its label.
        digits: decimals of the effects.
    Raises: ParameterError, at construction.
    """

    width: float | None = None
    font: str = FONT
    dpi: int = 300
    grey: bool = False
    outlines: bool = False
    xlim: tuple[float, float] | None = None
    ticks: tuple[float, ...] = ()
    xlabel: str = ""
    digits: int | None = None

    def __post_init__(self) -> None:
        if self.width is not None and not 40 <= self.width <= 600:
            raise ParameterError("a figure's width must be 40 to 600 mm", given=f"{self.width:g}")
        if not 72 <= self.dpi <= 1200:
            raise ParameterError("dpi must be in 72..1200", given=f"{self.dpi}")
        if self.digits is not None and not 0 <= self.digits <= 8:
            raise ParameterError("digits must be in 0..8", given=f"{self.digits}")
        if self.xlim is not None and not self.xlim[0] < self.xlim[1]:
            raise ParameterError("the axis must end above where it begins", given=f"{self.xlim[0]:g}, {self.xlim[1]:g}")


JOURNALS: Mapping[str, FigureStyle] = {
    "nature": FigureStyle(width=183.0, dpi=300),
    "nature-column": FigureStyle(width=89.0, dpi=300),
    "science": FigureStyle(width=184.0, dpi=300),
    "elsevier": FigureStyle(width=190.0, dpi=500),
    "elsevier-column": FigureStyle(width=90.0, dpi=500),
    "plos": FigureStyle(width=190.5, dpi=300),
    "slide": FigureStyle(width=254.0, dpi=200),
}
"""Widths and resolutions that publishers ask for; check them against the journal's page before you send."""

_DRAWN = FigureStyle()
_STYLE: ContextVar[FigureStyle] = ContextVar("figure_style", default=_DRAWN)


def style() -> FigureStyle:
    """The settings in force where this is called."""
    return _STYLE.get()


@contextmanager
def styled(given: FigureStyle | None = None, *, journal: str = "", **changes: object) -> Iterator[FigureStyle]:
    """Draw with these settings: a style, or a journal's, and changes to it; those that are None change nothing.

    Raises: ParameterError: a journal or a font that is not known.

    >>> with styled(journal="nature-column", dpi=600) as now:
    ...     now.width, now.dpi, style() is now
    (89.0, 600, True)
    """
    if journal and journal not in JOURNALS:
        raise ParameterError(f"the journal must be one of {', '.join(JOURNALS)}", given=repr(journal))
    base = given or (JOURNALS[journal] if journal else FigureStyle())
    found = replace(base, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
    if found.font != FONT:
        _require_font(found.font)
    token = _STYLE.set(found)
    try:
        yield found
    finally:
        _STYLE.reset(token)


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers parted by commas; none of a blank. Raises: ParameterError.

    >>> numbers("0.5, 1,2", "--ticks")
    (0.5, 1.0, 2.0)
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise ParameterError(f"{option} must be numbers parted by commas", given=repr(text)) from None


def check_file(path: Path, *others: str) -> None:
    """Refuse a file that a figure cannot be written to. Raises: ParameterError."""
    if path.suffix.lower() not in (*FILES, *others):
        also = f"; the numbers of a forest plot: {', '.join(others)}" if others else ""
        raise ParameterError(
            f"a figure must end in {', '.join(FILES)}",
            given=repr(path.name),
            next_step=f"Journals take .pdf, .eps or .tif, pages .svg or .png{also}.",
        )


def _require_font(name: str) -> None:
    from matplotlib import font_manager

    try:
        font_manager.findfont(name, fallback_to_default=False)
    except ValueError:
        known = {font.name for font in font_manager.fontManager.ttflist}
        usual = [font for font in ("Arial", "Helvetica", "Liberation Sans", "Times New Roman", FONT) if font in known]
        raise ParameterError(
            "the font must be installed on this machine", given=repr(name), next_step=f"Here: {', '.join(usual)}."
        ) from None
