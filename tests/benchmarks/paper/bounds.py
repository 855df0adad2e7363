"""Bounds as the source papers print them, to reproduce their tables and to compare ours with; none is ever charged."""

import math
from dataclasses import dataclass

import numpy as np

from shared.errors import ParameterError
from shared.mechanisms.densities.scaling import Basis
from shared.mechanisms.grand.noise import NodePrivate
from shared.privacy.accountant import ORDERS


@dataclass(frozen=True, kw_only=True)
class PaperModeAtPTimesEpsilon(NodePrivate):
    """The mechanism as the paper prints it, Lap(1/ε) on each coordinate: a node pays p times `epsilon`.

    There to reproduce tables with, and for nothing else.

    >>> from shared.privacy.accountant import pure_epsilon
    >>> paper = PaperModeAtPTimesEpsilon(epsilon=1.0, p=4)
    >>> paper.scale, paper.total, pure_epsilon(paper.event)
    (1.0, 4.0, 4.0)
    """

    @property
    def scale(self) -> float:
        """b = 1 / ε."""
        return 1 / self.epsilon

    @property
    def total(self) -> float:
        """pε: what a node really pays."""
        return self.p * self.epsilon


def theorem1_epsilon(*, d: int, slices: int, sigma: float, delta: float, distance: float = 1.0) -> float:
    r"""The paper's own value, for its tables; `event` is what a release is charged.

    .. math:: \varepsilon(\alpha) = \frac{m' \alpha D^2}{2 \sigma^2 (d - \gamma)}, \quad
              \gamma = D^2 (\alpha^2 - \alpha) / \sigma^2 < d; \qquad
              \varepsilon = \min_\alpha \varepsilon(\alpha) + \frac{\ln 1/\delta}{\alpha - 1}

    Source: Greenewald et al. (2024), Theorem 1, with rows of norm at most 1 and `distance` 1.

    >>> round(theorem1_epsilon(d=50, slices=1000, sigma=4.693, delta=1e-5), 2)
    5.1
    """
    if not (0 < delta < 1 and sigma > 0 and distance > 0):
        raise ParameterError("delta must be in (0, 1), sigma and distance positive", given=f"{delta!r}, {sigma!r}")
    alpha = np.unique(np.concatenate([ORDERS, 1 + np.geomspace(1e-3, 1e3, 4000)]))
    gamma = distance**2 * (alpha**2 - alpha) / sigma**2
    alpha = alpha[gamma < d]
    gamma = gamma[gamma < d]
    return float(
        np.min(slices * alpha * distance**2 / (2 * sigma**2 * (d - gamma)) + math.log(1 / delta) / (alpha - 1))
    )


def paper_sensitivity(basis: Basis, columns: int) -> float:
    """The bound of the paper, in the basis' own units: 2 (3N − 2)^d times the largest value to the power d."""
    return 2.0 * float((3 * basis.order - 2) * np.abs(basis.values).max()) ** columns
