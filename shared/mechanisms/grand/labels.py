r"""One label of a node, such as its community, told by a randomised response that keeps the labels' distribution.

Coordinates of a node are told as noisy ranks (`shared.mechanisms.grand.noise`), and a rank that moves by half of its
range carries a node from one community into another. A label is no place on a line, and is told better as what it is:

.. math:: \tilde g_i = g_i \ \text{with probability}\ \rho, \quad \text{else}\ j \ \text{with probability}\ \pi_j,

where :math:`\pi_j = c_j / m` are the shares of the labels among the m hold-out nodes. If the released nodes have these
shares, so have their released labels: :math:`\rho \pi_j + (1 - \rho) \pi_j = \pi_j`.

*What it costs, exactly.* Label j comes out of a node that has it with probability :math:`\rho + (1 - \rho) \pi_j`, and
of any other with :math:`(1 - \rho) \pi_j`. The largest ratio of two such probabilities over all j is that of the rarest
label, so that a node pays the pure

.. math:: \varepsilon_g = \max_j \log \frac{\rho + (1 - \rho) \pi_j}{(1 - \rho) \pi_j}
          = \log \Bigl( 1 + \frac{\rho}{(1 - \rho) \pi_{\min}} \Bigr),

and it is attained. ε is what the plan fixes and is charged; ρ follows from it and from the hold-out, which is in no
guarantee: :math:`\rho / (1 - \rho) \le (e^{\varepsilon_g} - 1) \pi_{\min}`.

*Beside coordinates, exactly.* The coordinates of node i are then privatised given the label: their ranks among the
hold-out nodes of its true label, noise Lap(b) on each, and the noisy ranks placed among those of its released label. Of
the node itself the first step reads (Z_i, g_i) and gives p values in [0, 1], whatever the label: replacing the node
moves each by at most 1, and p / b is the price of the noisy ranks *given any released label*, because neither ranks nor
their noise look at that. The pair (released label, noisy ranks) is two mechanisms with randomness of their own on one
node, and costs :math:`\varepsilon_g + p / b`; placing is a function of the pair and of the hold-out, and is free.

*How it is made safe.* ρ is a multiple of 2⁻⁵³, rounded down; whether a label is kept is decided by comparing 64 bits of
the node's own keystream with it, and the other label is that of a hold-out node drawn evenly, in whole numbers. All
probabilities are met exactly, and the inequality above holds of the fractions themselves. Both draws are made for every
node, kept or not. The rarest label decides ρ for all: who finds labels must not find one of a few hold-out nodes only
(:data:`LEAST_OF_A_LABEL`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError
from shared.privacy.accountant import RandomisedResponse

__all__ = ["LEAST_OF_A_LABEL", "LabelPrivate", "parted"]

Codes = NDArray[np.int64]

LEAST_OF_A_LABEL = 20
"""Hold-out nodes that a label of its own needs: as many as a conditional distribution function is made of."""
_SLACK = Fraction(1, 1 << 40)
"""Taken off e^ε − 1, so that no rounding of the exponential function makes the odds larger than e^ε."""
_FLAT = 350.0
"""From here on e^ε is no more looked at: a label that is kept with probability 1 − 2⁻⁵³ is kept."""


def parted(total: float, share: float) -> tuple[float, float]:
    """A total as a label's part and the rest's, which add up to it exactly: as fractions, and as rounded sums.

    The first is `share` of the total, cut to a multiple of the total's last place: the difference is then a number
    without rounding. Raises: ParameterError, unless 0 < share < 1 and both parts are positive.

    >>> parted(10.0, 0.5), sum(parted(0.3, 0.1)) == 0.3
    ((5.0, 5.0), True)
    """
    if not (isinstance(share, float) and 0 < share < 1):
        raise ParameterError("a label's share must lie strictly between 0 and 1", given=repr(share))
    unit = Fraction(math.ulp(total))
    part = float(math.floor(Fraction(total) * Fraction(share) / unit) * unit)
    if not 0 < part < total:
        raise ParameterError("a label and the coordinates must each be told at some price", given=repr(total))
    return part, total - part


@dataclass(frozen=True, kw_only=True)
class LabelPrivate:
    """Tell one label of each node at a pure ε, and keep the shares that the labels have in the hold-out.

    Args:
        epsilon: of one node's label, replacing the node.
        counts: hold-out nodes of each label, at least one each.
    Raises: ParameterError, at construction.

    >>> from shared.privacy.accountant import pure_epsilon
    >>> from shared.base.randomness import seeded_rng
    >>> mechanism = LabelPrivate(epsilon=5.0, counts=(100, 100, 100))
    >>> round(mechanism.truth(0), 3), pure_epsilon(mechanism.event)
    (0.987, 5.0)
    >>> mechanism.release(np.array([0, 1, 2]), ["ada", "ben", "cy"], seeded_rng(1)).shape
    (3,)
    """

    epsilon: float
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, bool) or not isinstance(self.epsilon, int | float | np.integer | np.floating):
            raise ParameterError("epsilon must be a number", given=type(self.epsilon).__name__)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ParameterError("epsilon must be positive and finite", given=repr(self.epsilon))
        counts = tuple(int(count) for count in self.counts)
        if not counts or min(counts) < 1 or sum(counts) > 1 << 40:
            raise ParameterError(
                "each label must have a hold-out node, or its odds would have no bound",
                given=f"{len(counts)} labels",
                next_step="Join labels that no hold-out node has with others before.",
            )
        object.__setattr__(self, "counts", counts)

    @property
    def keep_probability(self) -> Fraction:
        """ρ: with this probability the label is looked at; else it is a hold-out node's. A multiple of 2⁻⁵³."""
        odds = (1 - _SLACK) * Fraction(math.expm1(min(self.epsilon, _FLAT)))
        least = odds * Fraction(min(self.counts), sum(self.counts))
        return Fraction(math.floor(least / (1 + least) * (1 << 53)), 1 << 53)

    def probability(self, label: int, given: int) -> Fraction:
        """The exact probability that `label` is released of a node that has the label `given`."""
        other = (1 - self.keep_probability) * Fraction(self.counts[label], sum(self.counts))
        return other + (self.keep_probability if label == given else 0)

    def truth(self, label: int) -> float:
        """The probability that a node with this label is released with it."""
        return float(self.probability(label, label))

    @property
    def event(self) -> RandomisedResponse:
        """One report of the node's label, known before anything runs: the odds are at most e^ε, whatever the counts."""
        return RandomisedResponse(epsilon=self.epsilon)

    def release(self, labels: Codes, names: Sequence[str], rng: Noise) -> Codes:
        """(n,) released labels of (n,) true ones, each from its own label and a substream of its name alone.

        Raises: ParameterError, for a label that is none of the counts', or a name that stands there twice.
        """
        labels = np.asarray(labels, dtype=np.int64)
        if labels.shape != (len(names),) or (labels < 0).any() or (labels >= len(self.counts)).any():
            raise ParameterError(
                f"labels must be whole numbers in 0..{len(self.counts) - 1}, one for each name",
                given=f"{labels.size} labels, {len(names)} names",
            )
        keep_probability, ends, drawn = (
            float(self.keep_probability),
            np.cumsum(self.counts),
            np.empty((2, len(names)), dtype=np.int64),
        )
        for place, own in enumerate(rng.named(names)):
            drawn[0, place] = own.chosen(keep_probability, 1)[0]
            drawn[1, place] = own.uniform(int(ends[-1]), 1)[0]
        return np.where(drawn[0] == 1, labels, np.searchsorted(ends, drawn[1], side="right"))
