"""Signs of the screens in letters that every terminal has: an old locale, a Windows pipe, a scheduler's log."""

from __future__ import annotations

import codecs
import io
import sys

__all__ = ["spell_out"]

_SPELLED = str.maketrans(
    {
        **{"ε": "eps", "δ": "delta", "τ": "tau", "σ": "sigma", "χ": "chi", "α": "alpha", "²": "^2", "∞": "inf"},
        **{"✓": "+", "✗": "x", "→": "->", "←": "<-", "·": "-", "…": "...", "×": "x", "±": "+/-", "√": "sqrt"},
        **{"–": "-", "—": "-", "−": "-", "‐": "-", "“": '"', "”": '"', "’": "'", "‘": "'", "„": '"', "\u00a0": " "},
        **{"─": "-", "━": "-", "│": "|", "┃": "|", "█": "#", "░": ".", "≥": ">=", "≤": "<=", "≠": "!=", "≈": "~"},
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼╞╡╪", "+"),
    }
)


def spell_out() -> None:
    """Let the screens be written whatever the encoding of the output: what it does not have is spelled, or a `?`."""
    codecs.register_error("tributary-spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="tributary-spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_SPELLED)
    return text.encode("ascii", "replace").decode(), error.end
