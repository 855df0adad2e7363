"""Numbers and words of figures: effects on their scale, intervals, p-values, models and heterogeneity, as printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.figures.style import style
from coordinator.pooling.pool import PooledResult
from coordinator.pooling.rows import Interval
from shared.estimands.effects import SCALES, shown

if TYPE_CHECKING:
    from shared.estimands.questions import Scale

__all__ = [
    "TESTS",
    "View",
    "heterogeneity_words",
    "interval_words",
    "model_name",
    "p_words",
    "signed",
    "significant",
    "view_of",
]

TESTS = {"z": "normal", "t": "t", "knha": "Knapp-Hartung", "adhoc": "Knapp-Hartung, ad hoc"}


@dataclass(frozen=True)
class View:
    """Display scale of numbers on the analysis scale."""

    show: Callable[[float], float]
    decimals: int
    null: float | None
    name: str
    scale: Scale = "identity"
    effect: str = "Estimate"
    ratio: bool = False

    def number(self, value: float) -> str:
        """A value of the analysis scale, as it is printed."""
        shown = self.show(value)
        if self.ratio:  # as many decimals everywhere, so that they stand under each other; beyond that nobody reads
            least = 10.0**-self.decimals
            if shown < least / 2:
                return f"<{least:.{self.decimals}f}"
            return ">10,000" if shown > 1e4 else f"{shown:,.{self.decimals}f}"
        return signed(shown, self.decimals)


def view_of(results: Sequence[PooledResult], ratio: bool | None, null: float | str | None) -> View:
    """Display scale of the results.

    Args:
        results: of one scale.
        ratio: show exp(yi); by default as the scale says.
        null: place of the line of no effect; None for none; ``auto``: 0, and none for a mean, a
            proportion or a network's density.
    """
    scale = results[0].scale
    if ratio is not None:
        scale = "log" if ratio else ("identity" if scale == "log" else scale)
    # A density of a network is pooled by its logarithm, and compares nothing with 1.
    density = scale == "log" and not replace(results[0], scale=scale).compares
    line: float | None
    if null == "auto":
        line = None if scale == "logit" or results[0].term.startswith("mean(") or density else 0.0
    else:
        line = null  # type: ignore[assignment]
    typical = float(np.median([math.sqrt(v) for row in results for v in row.vi]))
    usual = {"log": "Estimate" if density else "Ratio", "logit": "Proportion", "fisher_z": "Correlation"}
    effect = results[0].effect or usual.get(scale, "Estimate")
    name = style().xlabel or (f"{effect} ({SCALES[scale]} scale)" if SCALES[scale] else effect)

    def show(y: float) -> float:
        return shown(y, scale)

    middle = results[0].beta
    error = typical if scale == "identity" else (show(middle + typical) - show(middle - typical)) / 2
    digits = 1 if scale == "log" else 2  # of the typical standard error
    decimals = min(6, max(0 if scale == "identity" else 2, digits - 1 - math.floor(math.log10(max(error, 1e-9)))))
    decimals = decimals if style().digits is None else int(style().digits or 0)
    return View(show, decimals, line, name, scale, effect, ratio=scale == "log" and not density)


def signed(value: float, decimals: int) -> str:
    """A number with a true minus sign, and no minus before a zero."""
    if abs(value) >= 1e9:
        text = f"{value:.2e}"
    else:
        text = f"{value:,.{decimals}f}" if abs(value) >= 1e4 else f"{value:.{decimals}f}"
        if not text.strip("-0."):  # minus zero
            text = text.lstrip("-")
    return text.replace("-", "−")


def interval_words(interval: Interval, decimals: int) -> str:
    """An interval as ``low to high``, or ``empty``."""
    if interval.lb is None or interval.ub is None:
        return "empty"
    return f"{signed(interval.lb, decimals)} to {signed(interval.ub, decimals)}"


def p_words(value: float) -> str:
    """A p-value as journals print it."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"


def significant(value: float) -> str:
    """Three significant digits."""
    if value == 0:
        return "0"
    if 100 <= value < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-4 <= value < 100 else f"{value:.2e}".replace("-", "−")


def model_name(result: PooledResult) -> str:
    """Label of a model's diamond."""
    if result.method == "FE":
        return "Fixed effect (inverse variance)" + ("" if result.test == "z" else f", {TESTS[result.test]}")
    return f"Random effects ({result.method}, {TESTS[result.test]})"


def heterogeneity_words(result: PooledResult) -> str:
    """The heterogeneity line: τ² and I² with intervals, Q, df, p."""
    percent = f"{100 * result.level:g} % CI"
    q = f"Q = {result.QE:.2f}, df = {result.df}, {p_words(result.QEp)}"
    if result.method == "FE":
        return f"Heterogeneity: I² = {result.I2:.0f} %; {q}"
    interval, share = result.tau2_interval, result.I2_interval
    if interval.lb is None or interval.ub is None or share.lb is None or share.ub is None:
        return f"Heterogeneity: τ² = {significant(result.tau2)} ({percent} empty); I² = {result.I2:.0f} %; {q}"
    ends = f"{significant(interval.lb)} to {significant(interval.ub)}"
    return (
        f"Heterogeneity: τ² = {significant(result.tau2)} ({percent} {ends}); "
        f"I² = {result.I2:.0f} % ({share.lb:.0f} to {share.ub:.0f} %); {q}"
    )
