"""Quantile regression: the line below which a given share of the outcomes lies (Koenker and Bassett 1978)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit

__all__ = ["quantile_regression"]

Array = NDArray[np.float64]
_WHOLE = 2000
"""Rows up to which all of them go into the linear programme at once."""
_ROOM = 10.0
"""Shares around the quantile that go into it of more rows, times (p / n)^¾: as a step of all rows errs."""


def quantile_regression(x: Array, y: Array, share: float) -> RegressionFit:
    r"""min over β of Σ ρ(y_i − x_i'β), ρ(u) = u (τ − 1{u < 0}), R's `quantreg::rq` with ``summary(se = "ker")``.

    Solved by its dual, a linear programme, since methods that only near the minimum differ in the fifth digit:

    .. math:: \max_a y'a, \quad X'a = (1 - \tau) X'1, \quad 0 \le a_i \le 1

    a_i is 1 above the line and 0 below, and between them on it, so a_i − (1 − τ) is the score of each row, which sums
    to 0 against every column. With f_i the density of residuals at 0, by a Gaussian kernel of the bandwidth of Hall
    and Sheather (1988), and D = Σ f_i x_i x_i', a row moves β by D⁻¹ x_i (a_i − (1 − τ)); the covariance is
    τ (1 − τ) D⁻¹ X'X D⁻¹ (Powell 1991).

    Args:
        x: (n, p) of full rank. y: (n,). share: τ, between 0 and 1.
    Returns: `converged` is False where no minimum was found, or so many rows lie on the line that there is no density.

    >>> fit = quantile_regression(np.ones((5, 1)), np.array([1.0, 2.0, 3.0, 4.0, 50.0]), 0.5)
    >>> fit.converged, fit.beta, fit.influence.round(2).ravel()
    (True, array([3.]), array([-0.84, -0.84,  0.  ,  0.84,  0.84]))
    """
    n, p = x.shape
    lost = RegressionFit(
        beta=np.full(p, np.nan),
        cov=np.full((p, p), np.nan),
        converged=False,
        fitted=np.zeros(n),
        loglik=-math.inf,
        influence=np.zeros((n, p)),
    )
    solved = _minimum(x, y, share)
    if solved is None:
        return lost
    beta, above = solved
    residual = y - x @ beta
    bread = _bread(x, residual, share)
    if bread is None:
        return lost
    return RegressionFit(
        beta=beta,
        cov=share * (1 - share) * (bread @ gram(x, np.ones(n)) @ bread),
        converged=True,
        fitted=x @ beta,
        loglik=-_loss(residual, share),
        influence=scaled_product(x, above - (1 - share), bread),
    )


def _loss(residual: Array, share: float) -> float:
    return float((residual * (share - (residual < 0))).sum())


def _bread(x: Array, residual: Array, share: float) -> Array | None:
    """D⁻¹; None where so many rows lie on the line that there is no density, or D is singular."""
    width = _bandwidth(residual, share)
    if width <= 0:
        return None
    density = np.exp(-((residual / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi))
    try:
        return np.asarray(np.linalg.inv(gram(x, density)), dtype=float)
    except np.linalg.LinAlgError:
        return None


def _bandwidth(residual: Array, share: float) -> float:
    """Hall and Sheather's, of shares, taken to the residuals as R's `summary.rq` does; 0 where half are one value."""
    from scipy.special import ndtri

    at = float(ndtri(share))
    peak = math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    wide = len(residual) ** (-1 / 3) * float(ndtri(0.975)) ** (2 / 3) * (1.5 * peak**2 / (2 * at**2 + 1)) ** (1 / 3)
    while share - wide < 0 or share + wide > 1:
        wide /= 2
    low, high = np.quantile(residual, (0.25, 0.75))
    spread = min(float(residual.std(ddof=1)), float(high - low) / 1.34)
    return float(ndtri(share + wide) - ndtri(share - wide)) * spread


def _minimum(x: Array, y: Array, share: float) -> tuple[Array, Array] | None:
    """β and a. Of many rows those far from a first line keep their side, which is checked (Portnoy, Koenker 1997)."""
    n, p = x.shape
    total = (1 - share) * x.sum(axis=0)
    near, above = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    first = _near_minimum(x, y, share) if n > _WHOLE else None
    if first is not None:
        residual = y - x @ first
        room = _ROOM * (p / n) ** 0.75
        low, high = np.quantile(residual, (max(share - room, 0.0), min(share + room, 1.0)))
        near, above = (residual >= low) & (residual <= high), residual > high
    while True:
        found = _programme(x[near], y[near], total - x[above].sum(axis=0))
        if found is None and near.all():
            return None
        if found is None:
            near, above = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
            continue
        beta, inside = found
        residual = y - x @ beta
        wrong = ~near & np.where(above, residual < 0, residual > 0)
        if not wrong.any():
            out = above.astype(np.float64)
            out[near] = inside
            return beta, out
        near, above = near | wrong, above & ~wrong


def _near_minimum(x: Array, y: Array, share: float) -> Array | None:
    """β of some of the rows, and from there steps of what all rows move it by, as long as they bring it nearer."""
    step = -(-len(y) // _WHOLE)
    found = _programme(x[::step], y[::step], (1 - share) * x[::step].sum(axis=0))
    if found is None:
        return None
    beta, residual = found[0], y - x @ found[0]
    reached = _loss(residual, share)
    for _ in range(4):
        bread = _bread(x, residual, share)
        if bread is None:
            break
        after = beta + bread @ (x.T @ (share - (residual < 0)))
        residual = y - x @ after
        before, reached = reached, _loss(residual, share)
        if not reached < before:
            break
        beta = after
    return beta


def _programme(x: Array, y: Array, total: Array) -> tuple[Array, Array] | None:
    from scipy.optimize import linprog

    found = linprog(-y, A_eq=x.T, b_eq=total, bounds=(0, 1), method="highs")
    return None if found.status != 0 else (-np.asarray(found.eqlin.marginals), np.asarray(found.x))
