r"""The model of several sites that lie apart: how columns hang together is everybody's, each margin is its site's.

A model of the sum of sites' counts takes what lies between the sites for an association within them: where hospitals
that give more also see sicker patients, a slope of .5 within each of them may be one of −.2 over all. The sum is
therefore of as many mixtures of products as there are sites, of the same classes,

.. math:: \sum_k n_k \sum_h w_h \; p_{kh} p_{kh}^\top, \qquad p_{kh} \propto \exp(b_k + D_h),

with :math:`b_k` the site's own profile, which its one-way margins tell, and :math:`D_h` the classes' deviations, which
alone make an association and are fitted to all counts together. Of normal columns another :math:`b_k` is another
centre, and no other slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from shared.errors import EstimateRefusal
from shared.mechanisms.tables.latent_class import CLASSES, WEIGHT, CountLoss, LatentClasses, consistent
from shared.mechanisms.tables.one_step import Released

__all__ = ["between", "fitted_apart"]

Array = NDArray[np.float64]

_STEPS = 300


class _ApartLoss(CountLoss):
    """The loss of (H,) log weights, (K, d) the sites' profiles and (H, d) deviations, and its gradient."""

    def __init__(self, sites: Sequence[Released], everybody: Released, classes: int) -> None:
        noise = everybody.releases * everybody.tables.sigma**2
        super().__init__(everybody.tables, everybody.counts, everybody.n, noise, classes)
        self.share = np.array([one.n / everybody.n for one in sites])
        found = [consistent(one.tables, one.counts, one.n)[0] for one in sites]
        self.margins = np.array([np.concatenate(own) / one.n for own, one in zip(found, sites, strict=True)])
        n = np.array([[one.n] for one in sites])
        variance = np.array([[one.variance] for one in sites])
        self.margin_weight = n * n / (variance + n * self.margins)

    def parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """(H,) log weights, (K, d) profiles, (H, d) deviations."""
        h, d, k = self.h, self.d, len(self.share)
        return theta[:h], theta[h : h + k * d].reshape(k, d), theta[h + k * d :].reshape(h, d)

    def models(self, theta: Array) -> tuple[Array, Array]:
        """Weights (H,) and profiles (K, H, d)."""
        logs, own, deviations = self.parts(theta)
        w = np.exp(logs - logs.max())
        lifted = own[:, None, :] + deviations
        peaks = np.maximum.reduceat(lifted, self.at[:-1], axis=2)
        raised = np.exp(lifted - peaks[..., self.attribute])
        totals = np.add.reduceat(raised, self.at[:-1], axis=2)
        return w / w.sum(), raised / totals[..., self.attribute]

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Loss and gradient."""
        logs, own, deviations = self.parts(theta)
        w, p = self.models(theta)
        flat = p.reshape(-1, self.d)
        each = (self.share[:, None] * w).ravel()
        gap = flat.T @ (flat * each[:, None]) - self.target
        pull = self.weight * gap
        gap_one = np.tensordot(p, w, axes=(1, 0)) - self.margins
        pull_one = self.margin_weight * gap_one
        along = (flat @ pull).reshape(p.shape) * self.share[:, None, None]
        by_p = w[:, None] * (along + pull_one[:, None, :])
        by_w = 0.5 * (along * p).sum(axis=(0, 2)) + (p * pull_one[:, None, :]).sum(axis=(0, 2))
        inner = by_p * p
        by_lifted = inner - p * np.add.reduceat(inner, self.at[:-1], axis=2)[..., self.attribute]
        prior_d, prior_b = deviations @ self.deviation, own @ self.common
        loss = 0.25 * float(np.vdot(pull, gap)) + 0.5 * float(np.vdot(pull_one, gap_one))
        loss += 0.5 * (float(np.vdot(prior_d, deviations)) + float(np.vdot(prior_b, own)))
        loss += 0.5 * float(logs @ logs) / WEIGHT**2
        gradient = np.concatenate(
            [
                w * (by_w - w @ by_w) + logs / WEIGHT**2,
                (by_lifted.sum(axis=1) + prior_b).ravel(),
                (by_lifted.sum(axis=0) + prior_d).ravel(),
            ]
        )
        return loss, gradient

    def begin(self) -> Array:
        """Of what is within sites, as `CountLoss.start` of what is in all counts."""
        between = np.einsum("k,ki,kj->ij", self.share, self.margins, self.margins)
        first = self.start(between)
        own = np.log(np.maximum(self.margins, 1 / (20 * self.d)))
        return np.concatenate([first[: self.h], own.ravel(), first[self.h + self.d :]])


def fitted_apart(sites: Sequence[Released], everybody: Released) -> list[LatentClasses]:
    """A model of each site, whose classes hang columns together alike at all of them.

    Args:
        sites: what each released, of the same tables.
        everybody: their sum.
    Raises: EstimateRefusal (no optimum).
    """
    problem = _ApartLoss(sites, everybody, CLASSES)
    options = {"maxiter": _STEPS, "maxcor": 20, "ftol": 1e-9}
    found = optimize.minimize(problem, problem.begin(), jac=True, method="L-BFGS-B", options=options)
    if not (math.isfinite(found.fun) and np.isfinite(found.x).all()):
        raise EstimateRefusal("the latent classes must have a fit", given="no finite optimum")
    w, p = problem.models(found.x)
    logs, own, deviations = problem.parts(found.x)
    kinds: dict[str, Any] = {
        "attributes": everybody.tables.attributes,
        "weights": w,
        "zeros": everybody.tables.impossible,
    }
    return [
        LatentClasses(**kinds, profiles=p[k], n=one.n, theta=np.concatenate([logs, own[k], deviations.ravel()]))
        for k, one in enumerate(sites)
    ]


def between(sites: Sequence[Released], everybody: Released, names: Sequence[str]) -> float:
    """Largest correlation of two columns, or of levels of nominal ones, that lies between the sites alone.

    It is the covariance of sites' means over the standard deviations of all persons; 0 for less than two columns.

    Args:
        sites: what each released, of the same tables.
        everybody: their sum.
        names: of the columns.
    """
    share = np.array([one.n / everybody.n for one in sites])
    found = [consistent(one.tables, one.counts, one.n)[0] for one in sites]
    parts: list[Array] = []
    for a, attribute in enumerate(everybody.tables.attributes):
        margins = np.array([own[a] / one.n for own, one in zip(found, sites, strict=True)])
        for axis, column in enumerate(attribute.columns):
            if column.name not in names:
                continue
            others = tuple(1 + k for k in range(len(attribute.shape)) if k != axis)
            by_cell = margins.reshape(len(sites), *attribute.shape).sum(axis=others)
            if column.missing == "level":
                by_cell = by_cell[:, :-1] / np.maximum(by_cell[:, :-1].sum(axis=1, keepdims=True), 0.01)
            cells = by_cell.shape[1]
            scores = np.eye(cells) if column.kind == "nominal" else np.arange(cells)[:, None]
            means, whole = by_cell @ scores, share @ by_cell
            spread = np.sqrt(np.maximum(whole @ scores**2 - (whole @ scores) ** 2, 1e-4))
            parts.append((means - share @ means) / spread)
    pairs = [(one * share[:, None]).T @ other for k, one in enumerate(parts) for other in parts[k + 1 :]]
    return max((float(np.abs(pair).max()) for pair in pairs), default=0.0)
