"""A pooled coefficient of which no site's part is seen, in plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import special

from shared.estimands.effects import shown
from shared.estimands.questions import Scale

__all__ = ["SummedAnswer"]

_PARTS = ("noise", "cut", "pilots", "weights")


@dataclass(frozen=True, kw_only=True)
class SummedAnswer:
    """Answer of a secure sum for one coefficient. Forest plot, Q, I² and τ² beside it are the pilots'.

    Args:
        estimate: on the analysis scale, per unit of the bounds, or of the question (`per`).
        variance: total variance. noise: its part from the sum's noise. cut: its part from the clipping of influences.
        pilots: its part from the error of the noisy pilots in the point at which influences are evaluated.
        weights: expected squared error from weights that are not those of the records' own answer; with noise, cut and
            pilots it is the expected squared distance to that answer. This and `pilots` are 0 in answers of versions
            that did not state them.
        tau2: τ̄², the posterior mean of τ² given the pilots, which is in `variance`.
        sites: sites whose numbers are in the sum.
        level: coverage of the interval, Student's with one degree of freedom less than sites.
    """

    estimate: float
    variance: float
    noise: float
    cut: float
    tau2: float
    sites: tuple[str, ...]
    level: float = 0.95
    pilots: float = 0.0
    weights: float = 0.0

    @property
    def se(self) -> float:
        """Standard error."""
        return math.sqrt(self.variance)

    @property
    def zval(self) -> float:
        """The test statistic, of Student's t."""
        return self.estimate / self.se

    @property
    def pval(self) -> float:
        """Two-sided p-value of no effect."""
        return float(2 * special.stdtr(len(self.sites) - 1, -abs(self.zval)))

    @property
    def ci_lb(self) -> float:
        """Lower confidence limit."""
        return self.estimate - self._half

    @property
    def ci_ub(self) -> float:
        """Upper confidence limit."""
        return self.estimate + self._half

    @property
    def _half(self) -> float:
        return -float(special.stdtrit(len(self.sites) - 1, (1 - self.level) / 2)) * self.se

    @staticmethod
    def beside(notes: Sequence[str], cautions: Sequence[str]) -> tuple[str, ...]:
        """The releases' notes as they stand beside a sum: cautions among them are said to be of the releases.

        >>> SummedAnswer.beside(("With 4 sites τ² is approximate.", "It rests on a model."), ("It rests on a model.",))
        ('With 4 sites τ² is approximate.', 'Of the releases, not of the sum: It rests on a model.')
        """
        return tuple(f"Of the releases, not of the sum: {note}" if note in cautions else note for note in notes)

    def per(self, units: float) -> SummedAnswer:
        """The same for so many times the unit.

        >>> one = SummedAnswer(estimate=0.1, variance=0.04, noise=0.01, cut=0.0, tau2=0.02, sites=("a", "b", "c"))
        >>> one.per(10.0).estimate, round(one.per(10.0).se, 9), round(one.ci_ub - one.estimate, 2)
        (1.0, 2.0, 0.86)
        """
        parts = {name: getattr(self, name) * units**2 for name in ("variance", "tau2", *_PARTS)}
        return replace(self, estimate=self.estimate * units, **parts)

    def data(self, scale: Scale) -> dict[str, Any]:
        """Plain values for an answer's document, on the analysis scale and as they are read."""
        ends = {"estimate": self.estimate, "ci_lb": self.ci_lb, "ci_ub": self.ci_ub}
        return {
            "method": "secure sum",
            "test": "t",
            "beta": self.estimate,
            **{name: getattr(self, name) for name in ("se", "zval", "pval", "ci_lb", "ci_ub", "tau2", "variance")},
            **{name: getattr(self, name) for name in _PARTS},
            "sites": list(self.sites),
            "level": self.level,
            "shown": {name: shown(value, scale) for name, value in ends.items()},
        }

    @staticmethod
    def of(data: dict[str, Any]) -> SummedAnswer:
        """Answer from its plain values; the inverse of `data`."""
        names = ("variance", "noise", "cut", "tau2", "level")
        known = {name: data[name] for name in names} | {name: data.get(name, 0.0) for name in ("pilots", "weights")}
        return SummedAnswer(estimate=data["beta"], sites=tuple(data["sites"]), **known)
