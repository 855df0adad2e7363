"""Cautions on a pooled estimate: what its interval does not hold, or holds only by a guess, each once for the pool.

A caution says which coefficient, how much, which way where that is known, and what may be done; it stands beside few
answers that are right (docs/zoo.md says how many). Whatever is true of most answers, or of a limit in the number of
sites, is a note and no caution.

* Warnings of the sites' estimates: a posture whose flow saw no record, a curve that only a flow can draw.
* Rows that deny the question's model: their influences vary `DENIED` times as much as its standard error says, as in
  counts with a long tail. What chance does to such an answer is in the interval, with the rows' own spread; but a few
  rows decide it, and these are what a flow draws worst. Of all that released rows tell, this told answers outside their
  intervals from others best (chosen on the half of the hard worlds that settings are chosen by).
* A bias that flows were measured to have and that was counted into the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from coordinator.pooling.pool import PooledResult
    from shared.estimands.answer import Estimate

__all__ = ["DENIED", "denial", "doubts", "drawn_in", "in_common", "lacking"]

DENIED = 1.25
"""Mean over the pool of sandwich over model variance from which rows are said to deny the model."""
_MUCH = 0.5
"""A bias of so many standard errors is told of: left out of a 95 % interval it would bring it below 92 %."""


def in_common(estimates: Sequence[Estimate], weights: Sequence[float]) -> float:
    """Variance of a weighted mean from what all estimates may be off by alike: (Σ w √vi_common)², w in percent."""
    return float(np.array(weights) / 100 @ [row.vi_common**0.5 for row in estimates]) ** 2


def doubts(result: PooledResult, estimates: Sequence[Estimate]) -> list[str]:
    """The cautions of a pooled estimate.

    Args:
        result: the pool.
        estimates: of all sites that were given one, those it does not use among them.
    """
    said: dict[str, list[str]] = {}
    for row in estimates:
        for sentence in row.warnings:
            said.setdefault(sentence, []).append(row.site)
    found = [s if len(who) == len(estimates) else f"{', '.join(who)}: {s}" for s, who in said.items()]
    if (ratio := denial(result)) >= DENIED:
        found.append(_denied(result, ratio))
    if lost := drawn_in(result):
        found.append(_drawn_in(result, lost))
    return found


def denial(result: PooledResult) -> float:
    """How many times as much a pooled coefficient varies over the released rows as its model says; 1 where unknown."""
    rows = [(row.vi_sandwich or row.vi_naive) / row.vi_naive if row.vi_naive else 1.0 for row in result.estimates]
    return float(np.array(result.weights) / 100 @ rows)


def drawn_in(result: PooledResult) -> float:
    """The known bias of a pool's flows; 0 where it is too small beside the standard error to cost an interval much.

    Left out of an interval it would make it known to be false.
    """
    weights = np.array(result.weights) / 100
    lost = float(weights @ [row.attenuation * (row.yi or 0.0) for row in result.estimates])
    return lost if abs(lost) > _MUCH * result.se_model else 0.0


def _denied(result: PooledResult, ratio: float) -> str:
    return (
        f"The released rows deny the model behind {result.term}: it varies over them {ratio:.1f} times as much as the "
        "model says, as it does where a few rows decide it. The release's noise is counted so; how far such rows are "
        "from the records is not known, in either direction. Ask again with a bounded or logarithmic covariate, or "
        "another model of the outcome, and see whether the answer stays."
    )


def _drawn_in(result: PooledResult, lost: float) -> str:
    far = f"a factor of {math.exp(abs(lost)):.3f}" if result.scale == "log" else f"{abs(lost):.2g}"
    return (
        f"Flows that draw an event together with its covariates were measured to draw such an answer towards zero: "
        f"{result.term} by about {far}, which its interval holds in both directions. A plan with outcomes drawn "
        'last (training.outcomes = "last") does not.'
    )


def lacking(result: PooledResult) -> str:
    """Note that what a model may lack, and not what was sampled or noised, sets an interval's width; "" where not."""
    if in_common(result.estimates, result.weights) <= result.se**2 / 2:
        return ""
    half = result.critical * math.sqrt(result.shared)
    far = f"by a factor of up to {math.exp(half):.2f}" if result.scale == "log" else f"by up to {half:.2g}"
    return (
        f"The interval of {result.term} is mostly doubt about the planned model: a bend or an interaction that it "
        f"lacks may move the coefficient {far} at every site alike, in either direction. More sites or a larger "
        "epsilon do not narrow it; declaring the coefficient in the next plan, or a mechanism that keeps rows, does."
    )
