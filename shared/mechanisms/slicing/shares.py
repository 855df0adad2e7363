r"""A mean, or a share of levels: the lines' own mean of entries, without a model.

The rows that were undone are :math:`X + E`, so that their mean of an entry is without bias that of the records,

.. math:: \bar x = \frac1n \sum_i (X + E)_i, \qquad
          \mathrm{Var} = \frac{1}{n} \left( \mathrm{Var}(x) + N \right),

and what a model adds could only be wrong: it draws a rare level towards none. Of a column's levels each row has one, so
that its entries sum to 1; undone ones do not, and what they are off by says something of the noise on each,

.. math:: x - N_b 1 \, \frac{1^\top x - 1}{1^\top N_b 1},

with N_b the part of N of these entries: of a yes or no it halves the noise's variance. A share is pooled on the logit
scale, whose curve would make a bias of noise: it is told by one straight step from a share that noise has been taken
out of,

.. math:: \mathrm{logit}(\hat p_k) \approx \mathrm{logit}(a_k) + \frac{\hat p_k - a_k}{a_k (1 - a_k)}, \qquad
          a_k = \bar p + \frac{\tau^2}{\tau^2 + v_k} (\hat p_k - \bar p),

where τ² is how much sites' shares differ beyond their noise. Where noise hides how sites differ, :math:`a_k = \bar p`
at all of them, and the mean of their logits may be further from 0 than that by what sites' differences make of the
curve, of which the upper limit of τ² is the most,

.. math:: b = \frac{|1 - 2 \bar p|}{2 \bar p^2 (1 - \bar p)^2} \, \tau_u^2, \qquad
          \tau_u^2 = \tau^2 + 1.645 \sqrt{\frac{2}{K - 1}} \, (\bar v + \tau^2),

which all sites are off by alike. Where noise hides how far p̄ is from 0 or 1, too, there is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.process import deferred
from shared.estimands.design import outcome_of
from shared.estimands.floors import MIN_EVENTS, MIN_RESIDUAL_DF, LeastRows, few
from shared.estimands.formulas import QuestionRows, parse
from shared.mechanisms.slicing.noise import Block, RowCode
from shared.mechanisms.slicing.projections import ProjectedMoments, beyond_noise
from shared.mechanisms.tables.one_step import STEP_ERROR
from shared.plans.dictionary import Column
from shared.plans.encoding import typed

if TYPE_CHECKING:
    import pandas as pd

    from shared.estimands.answer import Estimand, Estimate, Origin, Scale
else:
    pd = deferred("pandas")

__all__ = ["Share"]

Array = NDArray[np.float64]

_TOLD_APART = 2.0
"""Standard errors that a share must lie from 0 and from 1."""
_TWO_SIDED, _ONE_SIDED = 1.96, 1.645
"""Of a normal law: what is off by at most one half width of a 95 % interval; the upper limit of how sites differ."""
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
class _Curve:
    """What sites' differences make of the curve of logits.

    Args:
        most: b, by which the mean of sites' logits may be further from 0 than the logit of their mean share.
        warnings: sentences that stand beside an answer.
    """

    most: float = 0.0
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, mean: float, variances: Array, kept: Array) -> _Curve:
        """Of sites with this mean share, whose differences noise hides; `kept` as `beyond_noise` has it."""
        error = 1 / float((1 / variances).sum())
        usual, between = len(variances) * error, float(np.median(variances * kept / np.maximum(1 - kept, 1e-12)))
        limit = between + _ONE_SIDED * math.sqrt(2 / (len(variances) - 1)) * (usual + between)
        inside = mean * (1 - mean)
        most = abs(1 - 2 * mean) / (2 * inside**2) * limit
        if most / _TWO_SIDED < math.sqrt(error) / inside:
            return cls(most=most)
        side = "lower" if mean < 0.5 else "higher"
        said = (
            f"Noise hides how sites' shares differ: the mean of their logits may be up to {most:.2g} {side} than this."
        )
        return cls(most=most, warnings=(said,))


_NO_CURVE = _Curve()


@dataclass(frozen=True, kw_only=True)
class Share:
    """A question for the mean of a number, or for the mean over persons of a value that each level of a column has.

    Args:
        block: the column. values: of each level, 0 and 1 for a share; of a number 1. logit: a share, read on the logit
            scale.
    """

    question: Estimand
    block: Block
    values: tuple[float, ...]
    logit: bool

    @classmethod
    def of(cls, code: RowCode, question: Estimand) -> Share | None:
        """What a question asks of everybody in one column; None where it asks something else.

        Raises: EstimateRefusal, as `estimate`: a share of what is not 0 or 1, words where numbers must stand.
        """
        if question.kind not in ("mean", "proportion") or question.subset or question.weights:
            return None
        blocks = [block for block in code.blocks if block.column.name in question.columns]
        if len(blocks) != 1 or len(question.columns) != 1:
            return None
        [block], logit = blocks, question.kind == "proportion"
        if block.numeric:
            plain = not logit and parse(question.outcome).kind == "name"
            return cls(question=question, block=block, values=(1.0,), logit=False) if plain else None
        values = _values_of(block.column, question.outcome, binary=logit)
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            return None
        return cls(question=question, block=block, values=tuple(values.tolist()), logit=logit)

    def alone(self, found: ProjectedMoments, origin: Origin) -> Estimate:
        """Of one site."""
        seen = self._seen(found)
        return self._estimate(seen, seen.value, origin, self._refused([seen]))

    def together(
        self, sites: Mapping[str, ProjectedMoments], origins: Mapping[str, Origin]
    ) -> dict[str, list[Estimate]]:
        """Of each of several sites."""
        seen = {site: self._seen(found) for site, found in sites.items()}
        values, variances = (np.array([getattr(one, name) for one in seen.values()]) for name in ("value", "variance"))
        mean, kept = beyond_noise(values[:, None], variances[:, None])
        low, high = mean[0] / 10, 1 - (1 - mean[0]) / 10
        anchors = np.clip(mean[0] + kept[:, 0] * (values - mean[0]), low, high)
        refused, curve = self._refused(list(seen.values())), _NO_CURVE
        if refused and len(seen) > 1 and _apart(float(mean[0]), 1 / math.sqrt(float((1 / variances).sum()))):
            anchors, refused = np.full(len(seen), mean[0]), ""
            curve = _Curve.of(float(mean[0]), variances, kept[:, 0])
        return {
            site: [self._estimate(one, float(anchor), origins[site], refused, curve)]
            for (site, one), anchor in zip(seen.items(), anchors, strict=True)
        }

    def _seen(self, found: ProjectedMoments) -> _EntryMean:
        levels, absent = len(self.values), self.block.size > len(self.values)
        parts = [self._entries(rows, own) for rows, own in found.parts]
        mean = np.sum([rows.sum(axis=0) for rows, _ in parts], axis=0) / found.n
        missing = float(mean[levels]) if absent else 0.0
        here = max(1 - missing, 1 / found.n)
        along = np.array([*self.values, *[0.0] * absent]) / here
        value = float(along @ mean)
        if absent:
            along[levels] = value / here
        whole = sum(float(np.var(rows @ along, ddof=1)) * len(rows) for rows, _ in parts) / found.n**2
        noise = sum(float(along @ own @ along) * len(rows) for rows, own in parts) / found.n**2
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

    def _entries(self, rows: Array, noise: Array) -> tuple[Array, Array]:
        """The column's own entries of undone rows, and the noise's covariance on them; levels made to sum to 1."""
        at = self.block.place
        own, covariance = rows[:, at], noise[at, at]
        if self.block.numeric:
            return own, covariance
        each = covariance.sum(axis=1)
        apart = each / each.sum()
        return own - np.outer(own.sum(axis=1) - 1, apart), covariance - np.outer(apart, each)

    def _refused(self, seen: list[_EntryMean]) -> str:
        """Why a share cannot be read on the logit scale; blank where it can."""
        if not self.logit:
            return ""
        # Of half of the sites: where noise hides how theirs differ, nobody can tell each one's logit.
        weights = np.array([1 / one.variance for one in seen])
        mean = float(weights @ [one.value for one in seen] / weights.sum())
        if _apart(mean, float(np.median([math.sqrt(one.variance) for one in seen]))):
            return ""
        mine = parse(self.question.outcome).kind == "name"
        instead = f"mean({self.question.outcome})" if mine else "the mean of a 0/1 column of it that sites compute"
        return (
            f"noise hides how far sites' shares are from {round(min(max(mean, 0.0), 1.0))}, which logits need; "
            f"{instead} is pooled as it is"
        )

    def _estimate(
        self, seen: _EntryMean, anchor: float, origin: Origin, refused: str, curve: _Curve | None = None
    ) -> Estimate:
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
        curve = curve or _NO_CURVE
        return Estimate(
            yi=math.log(anchor / (1 - anchor)) + step,
            vi_sampling=seen.persons * slope**2,
            vi_naive=seen.persons * slope**2,
            vi_privacy=seen.noise * slope**2 + (STEP_ERROR * step) ** 2,
            vi_common=(curve.most / _TWO_SIDED) ** 2,
            scale=scale,
            how=_HOW,
            warnings=curve.warnings,
            **own,
        )


def _apart(share: float, error: float) -> bool:
    """True if a share is seen to be neither 0 nor 1."""
    return _TOLD_APART * error < min(share, 1 - share)


def _values_of(column: Column, outcome: str, *, binary: bool) -> Array:
    """(levels,) what an outcome is worth at each level of its column."""
    codes = np.arange(len(column.levels), dtype=np.float64)
    table = pd.DataFrame({column.name: typed(column, codes)})
    return outcome_of(QuestionRows(table), outcome, binary=binary)
