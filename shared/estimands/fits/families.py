"""Generalised linear families: of each, its law and link as functions of the linear predictor. One record each.

All log-likelihoods are concave in the linear predictor η, so Newton's method (`shared.estimands.fits.regression`) finds
the one maximum or says that there is none. Covariances take the expected information, as R's `glm`; what a row moves
the coefficients by takes the observed one, which holds whether or not the rows follow the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAMILIES", "Family", "Robust", "negative_binomial"]

Array = NDArray[np.float64]
Robust = Literal["", "HC0", "HC1", "HC2", "HC3"]
_LARGE = 500.0
"""From here on e^u is taken for infinite."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A law of the outcome y given a linear predictor η; everything (n,) to (n,).

    Args:
        mean: η to the mean μ. slope: η to dμ/dη.
        at: (y, η) to each row's log-likelihood, up to what does not depend on η and −∞ outside the law, its derivative
            by η (the score), and minus its second (the observed information).
        expected: η to the mean of the observed information.
        start: (y, weights) to means to begin from. link: μ to η.
        flat: begin from one mean for all rows, where others may lie outside the law.
        edge: the end of its means that a separating term reaches: ``both`` 0 and 1, ``zero``, or none.
        dispersion: whether its variance has a free scale, which is Pearson's χ² over its degrees of freedom.
        robust: the variance that is taken where the question names none.
    """

    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    at: Callable[[Array, Array], tuple[Array, Array, Array]]
    expected: Callable[[Array], Array]
    start: Callable[[Array, Array], Array]
    link: Callable[[Array], Array]
    flat: bool = False
    edge: Literal["both", "zero", ""] = "zero"
    dispersion: bool = False
    robust: Robust = ""


def _shrunk(y: Array, weights: Array) -> Array:
    return np.asarray((weights * y + 0.5) / (weights + 1))


def _raised(y: Array, _: Array) -> Array:
    return y + 0.1


def _expit(eta: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-eta)))


def _expit_slope(eta: Array) -> Array:
    mu = _expit(eta)
    return mu * (1 - mu)


def _logistic(y: Array, eta: Array) -> tuple[Array, Array, Array]:
    """All of it by one exponential: of −|η|, which cannot overflow."""
    small = np.exp(-np.abs(eta))
    share = 1 / (1 + small)
    mu = np.where(eta < 0, small * share, share)
    return y * eta - np.maximum(eta, 0.0) - np.log1p(small), y - mu, small * share**2


def _poisson(y: Array, eta: Array) -> tuple[Array, Array, Array]:
    mu = np.exp(eta)
    return y * eta - mu, y - mu, mu


_LOGISTIC = Family(
    mean=_expit,
    slope=_expit_slope,
    at=_logistic,
    expected=_expit_slope,
    start=_shrunk,
    link=lambda mu: np.log(mu / (1 - mu)),
    edge="both",
)
_POISSON = Family(
    mean=np.exp,
    slope=np.exp,
    at=_poisson,
    expected=np.exp,
    start=_raised,
    link=np.log,
)


def _normal(eta: Array) -> Array:
    """Φ."""
    from scipy.special import ndtr

    return np.asarray(ndtr(eta))


def _log_normal(eta: Array) -> Array:
    """log Φ."""
    from scipy.special import log_ndtr

    return np.asarray(log_ndtr(eta))


def _quantile(mu: Array) -> Array:
    """The inverse of Φ."""
    from scipy.special import ndtri

    return np.asarray(ndtri(mu))


def _probit(y: Array, eta: Array) -> tuple[Array, Array, Array]:
    """Φ is even about 0, so an event at η is a non-event at −η."""
    signed = np.where(y > 0, eta, -eta)
    share = _log_normal(signed)
    ratio = np.exp(-(eta**2) / 2 - share) / math.sqrt(2 * math.pi)
    return share, np.where(y > 0, ratio, -ratio), ratio * (ratio + signed)


def _probit_expected(eta: Array) -> Array:
    """φ² / (Φ (1 − Φ))."""
    return np.asarray(np.exp(-(eta**2) - _log_normal(eta) - _log_normal(-eta)) / (2 * math.pi))


_PROBIT = Family(
    mean=_normal,
    slope=lambda eta: np.exp(-(eta**2) / 2) / math.sqrt(2 * math.pi),
    at=_probit,
    expected=_probit_expected,
    start=_shrunk,
    link=_quantile,
    edge="both",
)


def _by_hazard(eta: Array) -> tuple[Array, Array]:
    """u = e^η, and e^u − 1."""
    u = np.exp(eta)
    return u, np.where(u > _LARGE, np.inf, np.expm1(np.minimum(u, _LARGE)))


def _cloglog(y: Array, eta: Array) -> tuple[Array, Array, Array]:
    u, grown = _by_hazard(eta)
    ratio = u / grown
    bent = np.where(u > _LARGE, 0.0, ratio * (u * (grown + 1) / grown - 1))
    loglik = np.where(y > 0, np.log(-np.expm1(-u)), -u)
    return loglik, np.where(y > 0, ratio, -u), np.where(y > 0, bent, u)


def _cloglog_expected(eta: Array) -> Array:
    u, grown = _by_hazard(eta)
    return u**2 / grown


_CLOGLOG = Family(
    mean=lambda eta: -np.expm1(-np.exp(eta)),
    slope=lambda eta: np.exp(eta - np.exp(eta)),
    at=_cloglog,
    expected=_cloglog_expected,
    start=_shrunk,
    link=lambda mu: np.log(-np.log1p(-mu)),
    edge="both",
)


def _log_binomial(y: Array, eta: Array) -> tuple[Array, Array, Array]:
    mu, rest = np.exp(eta), np.expm1(eta)  # a mean, and it less 1
    inside = y * eta + (1 - y) * np.log1p(-np.exp(np.minimum(eta, 0.0)))
    return np.where(eta < 0, inside, -np.inf), y + (1 - y) * mu / rest, (1 - y) * mu / rest**2


_LOG_BINOMIAL = Family(
    mean=np.exp,
    slope=np.exp,
    at=_log_binomial,
    expected=lambda eta: np.exp(eta) / -np.expm1(eta),
    start=_shrunk,
    link=np.log,
    flat=True,
)


def _gamma(y: Array, eta: Array) -> tuple[Array, Array, Array]:
    ratio = y * np.exp(-eta)
    return -ratio - eta, ratio - 1, ratio


_GAMMA = Family(
    mean=np.exp,
    slope=np.exp,
    at=_gamma,
    expected=np.ones_like,
    start=lambda y, _: y,
    link=np.log,
    edge="",
    dispersion=True,
)


def negative_binomial(theta: float) -> Family:
    """Counts of variance μ + μ²/θ with a logarithmic link, R's `MASS::negative.binomial(theta, link = "log")`.

    >>> bool(np.isclose(negative_binomial(2.0).expected(np.zeros(1)), 2 / 3)[0])
    True
    """

    def at(y: Array, eta: Array) -> tuple[Array, Array, Array]:
        mu = np.exp(eta)
        total = theta + mu
        return y * eta - (y + theta) * np.log(total), theta * (y - mu) / total, (y + theta) * theta * mu / total**2

    return replace(_POISSON, at=at, expected=lambda eta: theta * np.exp(eta) / (theta + np.exp(eta)))


FAMILIES: Mapping[str, Family] = {
    "logistic": _LOGISTIC,
    "poisson": _POISSON,
    "quasipoisson": replace(_POISSON, dispersion=True),
    "negbin": _POISSON,
    "risk_ratio": replace(_POISSON, robust="HC0"),
    "log_binomial": _LOG_BINOMIAL,
    "probit": _PROBIT,
    "cloglog": _CLOGLOG,
    "gamma": _GAMMA,
}
"""Kind of question to its family; that of ``negbin`` is its limit, whose θ the rows do not tell from infinity."""
