"""The analytic Gaussian mechanism (Balle & Wang 2018, Theorem 8): δ of ε, and ε of δ, in logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.privacy.compiled import special

__all__ = [
    "Floats",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_log_delta",
    "root",
]

Floats = NDArray[np.float64]
# -- one Gaussian ------------------------------------------------------------------------------------------
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def gaussian_log_delta(mu: Any, eps: Any) -> Floats:
    """log δ of a μ-Gaussian-DP mechanism, elementwise; μ > 0, ε ≥ 0.

    The textbook difference of two tails cancels. With Mills' ratio R(x) = Φ(−x)/φ(x) it is
    δ = φ(a) [R(a) − R(b)], a = ε/μ − μ/2, b = a + μ, and for small μ the bracket is ∫ₐᵇ (1 − x R(x)) dx.
    """
    mu, eps = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(eps, dtype=np.float64))
    a = eps / mu - mu / 2
    b = a + mu
    result = np.empty(mu.shape)
    far = a < -30  # the second tail is φ(a) R(b), below e^-450: leaving it out is an upper bound
    result[far] = special().log_ndtr(-a[far])
    small = ~far & (mu < 0.5)
    if small.any():
        x = (a + mu / 2)[small][:, None] + (mu / 2)[small][:, None] * _NODES
        # Far out 1 − x R(x) cancels; 1/x² is an upper bound there.
        slope = np.where(x > 1e3, np.maximum(x, 1e3) ** -2, 1 - x * _mills(x))
        result[small] = _log_density(a[small]) + np.log((mu / 2)[small] * (slope @ _WEIGHTS))
    plain = ~far & ~small
    with np.errstate(divide="ignore"):  # so far out that δ is 0 in doubles
        result[plain] = _log_density(a[plain]) + np.log(_mills(a[plain]) - _mills(b[plain]))
    return result


def _log_density(x: Floats) -> Floats:
    return -0.5 * x**2 - 0.5 * math.log(2 * math.pi)


def _mills(x: Floats) -> Floats:
    return math.sqrt(math.pi / 2) * special().erfcx(x / math.sqrt(2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    r"""The exact δ of a μ-Gaussian-DP mechanism at ε ≥ 0.

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^{\varepsilon} \Phi(-\mu/2 - \varepsilon/\mu)

    Source: Balle & Wang (2018), Theorem 8.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if not (mu >= 0 and epsilon >= 0):
        raise ParameterError("mu and epsilon must be at least 0", given=f"{mu!r} and {epsilon!r}")
    return 0.0 if mu == 0 else float(np.exp(gaussian_log_delta(mu, epsilon)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at `delta` of a Gaussian mechanism with sensitivity over σ = `mu`."""
    if mu == 0:
        return 0.0
    if delta == 0:
        return math.inf
    target = math.log(delta)
    if gaussian_log_delta(mu, 0.0) <= target:
        return 0.0
    # δ(ε) ≤ Φ(μ/2 − ε/μ) ≤ exp(−(ε/μ − μ/2)²/2), which gives the upper end of the bracket.
    top = mu * mu / 2 + mu * math.sqrt(-2 * target)
    return root(lambda eps: float(gaussian_log_delta(mu, eps)) - target, 0.0, top)


def root(f: Callable[[float], float], low: float, high: float) -> float:
    """Zero of a falling f, to the last digits; the end at which f is not positive is preferred."""
    while f(high) > 0:
        high += 0.01 * abs(high) + 1e-300
    return _brent(f, low, high)


def _brent(f: Callable[[float], float], low: float, high: float) -> float:
    """A zero of f between two ends at which it has different signs, to 1e-14 of its size. Raises: ArithmeticError.

    Brent (1973), *Algorithms for Minimization Without Derivatives*, ch. 4: a secant or an inverse quadratic through the
    last points where that shrinks the bracket fast enough, else a bisection. Written out since a price is asked for in
    every command, and `scipy.optimize` takes longer to import than all prices of a study take to compute.
    """
    before, best = low, high  # of the last two points; `best` has the smaller |f|
    f_before, f_best = f(before), f(best)
    if f_before == 0:
        return before
    if f_best != 0 and (f_before < 0) == (f_best < 0):
        raise ArithmeticError("a zero must lie between ends with different signs")
    other, f_other = before, f_before  # across the zero from `best`
    step = last = 0.0
    for _ in range(500):
        if (f_before < 0) != (f_best < 0):  # signs, because a product of small numbers is 0
            other, f_other = before, f_before
            step = last = best - before
        if abs(f_other) < abs(f_best):
            before, best, other = best, other, best
            f_before, f_best, f_other = f_best, f_other, f_best
        least = (1e-300 + 1e-14 * abs(best)) / 2
        half = (other - best) / 2
        if f_best == 0 or abs(half) < least:
            return best
        if abs(last) > least and abs(f_best) < abs(f_before):
            if before == other:
                trial = -f_best * (best - before) / (f_best - f_before)
            else:
                to_before = (f_before - f_best) / (before - best)
                to_other = (f_other - f_best) / (other - best)
                bend = to_other * to_before * (f_other - f_before)
                trial = -f_best * (f_other * to_other - f_before * to_before) / bend if bend else math.inf
            fast = 2 * abs(trial) < min(abs(last), 3 * abs(half) - least)
            last, step = (step, trial) if fast else (half, half)
        else:
            last = step = half
        before, f_before = best, f_best
        best += step if abs(step) > least else math.copysign(least, half)
        f_best = f(best)
    return best
