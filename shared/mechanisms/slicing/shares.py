r"""A mean, or the share of a yes: the lines' own mean of an entry, without a model.

The rows that were undone are :math:`X + E`, so that their mean of an entry is without bias that of the records,

.. math:: \bar x = \frac1n \sum_i (X + E)_i, \qquad
          \mathrm{Var} = \frac{1}{n} \left( \mathrm{Var}(x) + N \right),

and what a model adds could only be wrong. A share is pooled on the logit scale, whose curve would make a bias of noise:
it is told by one straight step from a share that noise has been taken out of,

.. math:: \mathrm{logit}(\hat p_k) \approx \mathrm{logit}(a_k) + \frac{\hat p_k - a_k}{a_k (1 - a_k)}, \qquad
          a_k = \bar p + \frac{\tau^2}{\tau^2 + v_k} (\hat p_k - \bar p),

where τ² is how much sites' shares differ beyond their noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.estimands.floors import MIN_EVENTS, MIN_RESIDUAL_DF, LeastRows, few
from shared.mechanisms.slicing.noise import Block, RowCode
from shared.mechanisms.slicing.projections import ProjectedMoments, beyond_noise
from shared.mechanisms.tables.one_step import STEP_ERROR

if TYPE_CHECKING:
    from shared.estimands.answer import Estimand, Estimate, Origin, Scale

__all__ = ["Share"]

_TOLD_APART = 2.0
"""Standard errors of a site that a share must lie from 0 and from 1."""
_HOW = "mean of the released lines, whose noise is known"


@dataclass(frozen=True, kw_only=True)
class _EntryMean:
    """value: mean of an entry among those who have one. persons, noise: parts of its variance. n, missing: persons."""

    value: float
    persons: float
    noise: float
    n: int
    missing: int

    @property
    def variance(self) -> float:
        return self.persons + self.noise


@dataclass(frozen=True, kw_only=True)
class Share:
    """A question for the mean of one entry of a row.

    Args:
        block: the column. at: the entry. logit: a share, read on the logit scale.
    """

    question: Estimand
    block: Block
    at: int
    logit: bool

    @classmethod
    def of(cls, code: RowCode, question: Estimand) -> Share | None:
        """The entry whose mean a question asks for, of everybody; None where it asks something else."""
        if question.kind not in ("mean", "proportion") or question.subset or question.weights:
            return None
        for block in code.blocks:
            if block.column.name != question.outcome:
                continue
            if block.numeric:
                return (
                    cls(question=question, block=block, at=block.at, logit=False) if question.kind == "mean" else None
                )
            levels = block.column.levels
            if set(levels) == {0, 1}:
                logit = question.kind == "proportion"
                return cls(question=question, block=block, at=block.at + levels.index(1), logit=logit)
        return None

    def alone(self, found: ProjectedMoments, origin: Origin) -> Estimate:
        """Of one site."""
        seen = self._seen(found)
        return self._estimate(seen, seen.value, origin, self._refused([seen]))

    def together(
        self, sites: Mapping[str, ProjectedMoments], origins: Mapping[str, Origin]
    ) -> dict[str, list[Estimate]]:
        """Of each of several sites."""
        seen = {site: self._seen(found) for site, found in sites.items()}
        refused = self._refused(list(seen.values()))
        values, variances = (np.array([getattr(one, name) for one in seen.values()]) for name in ("value", "variance"))
        mean, kept = beyond_noise(values[:, None], variances[:, None])
        low, high = mean[0] / 10, 1 - (1 - mean[0]) / 10
        anchors = np.clip(mean[0] + kept[:, 0] * (values - mean[0]), low, high)
        return {
            site: [self._estimate(one, float(anchor), origins[site], refused)]
            for (site, one), anchor in zip(seen.items(), anchors, strict=True)
        }

    def _seen(self, found: ProjectedMoments) -> _EntryMean:
        levels = len(self.block.column.levels)
        gone = self.block.at + 1 if self.block.numeric else self.block.at + levels
        gone = gone if gone < self.block.at + self.block.size else -1
        missing = float(found.mean[gone]) if gone >= 0 else 0.0
        here = max(1 - missing, 1 / found.n)
        value = float(found.mean[self.at]) / here
        along = np.zeros(len(found.mean))
        along[self.at] = 1 / here
        if gone >= 0:
            along[gone] += value / here
        whole = sum(float(np.var(rows @ along, ddof=1)) * len(rows) for rows, _ in found.parts) / found.n**2
        noise = sum(float(along @ own @ along) * len(rows) for rows, own in found.parts) / found.n**2
        left_out = min(max(round(missing * found.n), 0), found.n)
        if self.block.numeric:
            low, high = self.block.column.span
            half = (high - low) / 2
            value, whole, noise = low + (value + 1) * half, whole * half**2, noise * half**2
        return _EntryMean(
            value=value,
            persons=max(whole - noise, 0.02 * noise / found.n, 1e-300),
            noise=noise,
            n=found.n - left_out,
            missing=left_out,
        )

    def _refused(self, seen: list[_EntryMean]) -> str:
        """Why a share cannot be read on the logit scale; blank where it can."""
        if not self.logit:
            return ""
        # Of half of the sites: where noise hides how theirs differ, nobody can tell the mean of their logits.
        weights = np.array([1 / one.variance for one in seen])
        mean = float(weights @ [one.value for one in seen] / weights.sum())
        if _TOLD_APART * float(np.median([math.sqrt(one.variance) for one in seen])) < min(mean, 1 - mean):
            return ""
        return (
            f"noise hides how far sites' shares are from {round(min(max(mean, 0.0), 1.0))}, which logits need; "
            f"mean({self.question.outcome}) is pooled as it is"
        )

    def _estimate(self, seen: _EntryMean, anchor: float, origin: Origin, refused: str) -> Estimate:
        from shared.estimands.answer import Estimate

        own: dict[str, Any] = {"term": self.question.labels[0], "n": seen.n, "n_missing": seen.missing, **origin}
        scale: Scale = "logit" if self.logit else "identity"
        if seen.n <= MIN_RESIDUAL_DF:
            refused = few(seen.n, 1, LeastRows(MIN_RESIDUAL_DF, MIN_EVENTS))
        if refused:
            return Estimate(yi=None, vi_sampling=None, reason=refused, scale=scale, **own)
        if not self.logit:
            return Estimate(
                yi=seen.value,
                vi_sampling=seen.persons,
                vi_naive=seen.persons,
                vi_privacy=seen.noise,
                scale=scale,
                how=_HOW,
                **own,
            )
        slope = 1 / (anchor * (1 - anchor))
        step = (seen.value - anchor) * slope
        return Estimate(
            yi=math.log(anchor / (1 - anchor)) + step,
            vi_sampling=seen.persons * slope**2,
            vi_naive=seen.persons * slope**2,
            vi_privacy=seen.noise * slope**2 + (STEP_ERROR * step) ** 2,
            scale=scale,
            how=_HOW,
            **own,
        )
