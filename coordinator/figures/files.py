"""Files of figures: width, greys and format as the style asks, and the same bytes from the same figure."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from coordinator.figures.style import FONT, LEAST_LETTERS, check_file, style
from shared.errors import ParameterError
from shared.terminal import inert

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from coordinator.figures.style import SERIES, SMALL

__all__ = ["recolour", "resize", "save"]


def save(figure: Figure, path: str | Path, *, title: str = "", description: str = "") -> None:
    """Write a figure as its suffix says, in the style in force: the same figure gives the same bytes.

    Raises: ParameterError: another suffix, or a width at which its letters would be too small to print.
    """
    import matplotlib as mpl
    from matplotlib.text import Text

    target, how = Path(path), style()
    check_file(target)
    # XML has no place for control characters: one of them in a level, and nobody could open the figure.
    title, description = inert(title), inert(description)
    for text in figure.findobj(Text):
        text.set_text(inert(text.get_text()))
    kind = {"tif": "tiff"}.get(target.suffix.lower().lstrip("."), target.suffix.lower().lstrip("."))
    known: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Title": title or None, "Subject": description or None},
        "png": {"Software": None, "Title": title, "Description": description},
        "eps": {"Creator": "Tributary"},
    }
    if how.width is not None:
        resize(figure, how.width / 25.4)
    if how.grey or kind == "eps":
        recolour(figure, grey=how.grey, opaque=kind == "eps")
    stream = io.BytesIO()
    words = "path" if how.outlines else "none"
    # Unhinted, letters are as wide at any dpi as lines are broken for.
    with mpl.rc_context(
        {"svg.hashsalt": "tributary", "svg.fonttype": words, "pdf.fonttype": 42, "text.hinting": "none"}
    ):
        more: dict[str, Any] = (
            {"pil_kwargs": {"compression": "tiff_lzw"}} if kind == "tiff" else {"metadata": known[kind]}
        )
        figure.savefig(stream, format=kind, dpi=how.dpi, **more)
    content = stream.getvalue()
    if kind == "eps":
        content = re.sub(rb"%%CreationDate:[^\n]*\n", b"", content, count=1)
        content = re.sub(rb"%%Title:[^\n]*\n", b"", content, count=1)
    if kind == "svg":  # a screen reader reads title and desc only as the first children of the root
        drawn = content.decode()
        end = drawn.index(">", drawn.index("<svg"))
        said = f'\n <title id="title">{escape(title)}</title>\n <desc id="desc">{escape(description)}</desc>'
        head = drawn[:end] + ' role="img" aria-labelledby="title desc">'
        # Verdana is as wide as DejaVu Sans: where that is not installed, columns stay where they are.
        body = drawn[end + 1 :].replace(f"'{FONT}'", f"'{FONT}', Verdana, sans-serif")
        content = (head + said + body).encode()
    target.write_bytes(content)


def resize(figure: Figure, width: float) -> None:
    """Scale a figure to `width` inches, letters and lines with it. Raises: ParameterError: its letters are lost."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    wide, tall = figure.get_size_inches()
    factor = width / float(wide)
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    least = min((float(text.get_fontsize()) for text in texts), default=SMALL)
    if factor * least < LEAST_LETTERS:
        need = math.ceil(float(wide) * LEAST_LETTERS / least * 25.4)
        raise ParameterError(
            f"letters of a figure must have at least {LEAST_LETTERS:g} points",
            given=f"{factor * least:.1f} at {width * 25.4:.0f} mm",
            next_step=f"Give it {need} mm, or fewer columns.",
        )
    figure.set_size_inches(width, float(tall) * factor)
    for text in figure.findobj(Text):
        text.set_fontsize(float(text.get_fontsize()) * factor)
    for line in figure.findobj(Line2D):
        line.set_linewidth(line.get_linewidth() * factor)
        line.set_markersize(line.get_markersize() * factor)
        line.set_markeredgewidth(line.get_markeredgewidth() * factor)
    for patch in figure.findobj(Patch):
        patch.set_linewidth(patch.get_linewidth() * factor)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.labelpad *= factor
            for tick in axis.get_major_ticks():
                tick.set_pad(float(tick.get_pad() or 0.0) * factor)  # type: ignore[func-returns-value]


def _grey(red: float, green: float, blue: float) -> float:
    """Lightness of a colour in grey: of a series by its place, as their own lightnesses are alike; else its own."""
    import colorsys

    hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
    if saturation < 0.5:
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue
    known = [colorsys.rgb_to_hsv(*(int(own[i : i + 2], 16) / 255 for i in (1, 3, 5))) for own, _ in SERIES]
    apart = [min(abs(hue - own[0]), 1 - abs(hue - own[0])) for own in known]
    place = apart.index(min(apart))
    return min(0.75, (0.1, 0.45, 0.65, 0.3)[place] * value / known[place][2])


def recolour(figure: Figure, *, grey: bool, opaque: bool) -> None:
    """Turn a figure's colours into greys of the same lightness, and what is seen through into a colour of its own."""
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    def changed(colour: Any, alpha: float | None = None) -> Any:
        red, green, blue, own = to_rgba(colour)
        own = own if alpha is None else alpha * (own > 0)
        if grey:
            red = green = blue = _grey(red, green, blue)
        if opaque and 0 < own < 1:
            red, green, blue, own = *(1 - own + own * part for part in (red, green, blue)), 1.0
        return red, green, blue, own

    for text in figure.findobj(Text):
        text.set_color(changed(text.get_color()))
    for line in figure.findobj(Line2D):
        face, edge = line.get_markerfacecolor(), line.get_markeredgecolor()
        line.set_color(changed(line.get_color()))
        for put, given in ((line.set_markerfacecolor, face), (line.set_markeredgecolor, edge)):
            put(given if isinstance(given, str) and given in ("none", "None", "auto") else changed(given))
    for patch in figure.findobj(Patch):
        alpha = patch.get_alpha()
        face, edge = changed(patch.get_facecolor(), alpha), changed(patch.get_edgecolor(), alpha)
        if opaque:
            patch.set_alpha(None)
        patch.set_facecolor(face)
        patch.set_edgecolor(edge)
