"""A time and its event given the others: competing hazards on the public grid of bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.flows.outcomes import HazardLaw, OutcomeInputs
from site_agent.models.outcome_laws.bins import bin_edges, heaps_of, most_bins
from site_agent.models.outcome_laws.terms import (
    CLEAR,
    EXTRA,
    ROUNDS,
    SHAPE,
    Array,
    Codes,
    chosen_terms,
    least,
    ridge_of,
)

__all__ = ["hazard_law"]


def hazard_law(x: Array, group: Sequence[int], inputs: OutcomeInputs) -> HazardLaw:
    """The law of a time and its event, with the terms that records ask for. Raises: TrainingRefusal."""
    time, event = group
    value = x[:, time]
    happened = x[:, event] >= 1
    heaps = heaps_of(value)
    inner = bin_edges(value, most_bins(len(x)), heaps)
    reach = float(np.ptp(value)) or 1.0
    edges = np.concatenate([[inner[0] - reach], inner, [inner[-1] + reach]])
    cell = np.clip(np.searchsorted(inner, value, side="right") - 1, 0, len(inner) - 2)
    bins = len(inner) - 1
    part = np.clip((value - inner[cell]) / np.diff(inner)[cell], 0, 1)
    middle = (inner[1:] + inner[:-1]) / 2
    timed = np.array([not any(low <= at <= high for low, high, _ in heaps) for at in middle]).astype(np.int64)
    timed[-1] = 0
    own = np.sort(cell[happened])
    late = int(own[len(own) // 2]) + 1 if len(own) >= 40 else bins
    segments = (np.arange(bins) >= late).astype(np.int64) if 0 < late < bins else np.zeros(bins, dtype=np.int64)
    atoms = inputs.all_atoms(x)
    changed: list[int] = []
    start: dict[str, Array] | None = None
    for last in range(ROUNDS):
        features = inputs.features(x)[:, 1:]
        fit = _HazardFit(features, cell, part, happened, segments, timed, inputs, changed)
        rates, beta, start, left = _hazards(fit, start)
        if last == ROUNDS - 1:
            break
        more = chosen_terms(inputs, atoms, [part.sum(axis=1) for part in left])
        before = len(changed)
        if segments.any():
            # Whether a coefficient of the event becomes another one in the later half of the events.
            later = left[1][:, segments == 1].sum(axis=1)
            evidence = (features * later[:, None]).sum(axis=0) ** 2 / np.maximum(
                (features**2 * later[:, None] ** 2).sum(0), 1e-9
            )
            evidence[changed] = 0
            if evidence.size and evidence.max() > np.log(len(x)) + CLEAR:
                changed = [*changed, int(evidence.argmax())]
        if more is inputs and len(changed) == before:
            break
        inputs = more
    outer = np.full((2, 1), np.log(1e-6 / 2))
    return HazardLaw(
        time=time,
        event=event,
        inputs=inputs,
        edges=edges,
        rates=np.hstack([outer, rates, rates[:, -1:]]),
        segments=np.concatenate([[0], segments, segments[-1:]]),
        timed=np.concatenate([[0], timed, [0]]),
        coefficients=beta,
    )


class _HazardFit:
    """Competing hazards, grouped where bins are not timed: their likelihood in log rates, β and later changes of β.

    Args:
        features: (n, terms). cell, part: bin of each time and how far in it. happened: the event rather than its end
            otherwise. segments: of each bin. timed: bins within which times are known. changed: terms whose coefficient
            of the event becomes another one in the later segment.
    """

    def __init__(
        self,
        features: Array,
        cell: Codes,
        part: Array,
        happened: NDArray[np.bool_],
        segments: Codes,
        timed: Codes,
        inputs: OutcomeInputs,
        changed: Sequence[int],
    ) -> None:
        self.features, self.cell, self.part, self.happened, self.segments = features, cell, part, happened, segments
        self.n, self.width, self.bins, self.some = *features.shape, len(segments), list(changed)
        self.rows = np.arange(self.n)
        at_risk = np.arange(self.bins)[None, :] <= cell[:, None]
        leaves = np.zeros((self.n, self.bins), dtype=bool)
        leaves[self.rows, cell] = True
        self.final, self.known, self.stays = leaves[:, -1], timed[cell] == 1, at_risk & ~leaves
        self.ridge = ridge_of(inputs)
        self.ends = [np.bincount(cell[happened == bool(j)], minlength=self.bins) for j in (0, 1)]
        self.exposed = at_risk.sum(axis=0)
        self.centre = [float(np.log((ended.sum() + 0.5) / self.exposed.sum())) for ended in self.ends]

    def split(self, flat: Array) -> tuple[Array, Array, Array]:
        """Log rates (2, bins), β (2, features), later changes."""
        rates = flat[: 2 * self.bins].reshape(2, self.bins)
        beta = flat[2 * self.bins : 2 * self.bins + 2 * self.width].reshape(2, self.width)
        return rates, beta, flat[2 * self.bins + 2 * self.width :]

    def gradients(self, flat: Array) -> tuple[float, list[Array], list[list[Any]]]:
        """Log-likelihood, and by the log hazards its derivatives, (n, bins), and the negative second ones."""
        rates, beta, delta = self.split(flat)
        eta = self.features @ beta.T
        own = rates[1] + eta[:, 1:]
        if self.some:
            own = own + (self.features[:, self.some] @ delta)[:, None] * (self.segments == 1)
        logs = [np.clip(rates[0] + eta[:, :1], -30, 12), np.clip(own, -30, 12)]
        m = [np.exp(log) for log in logs]
        total = m[0] + m[1]
        left = total[self.rows, self.cell]
        mine = np.where(self.happened, logs[1][self.rows, self.cell], logs[0][self.rows, self.cell])
        value = -(total * self.stays).sum() + (mine - np.log(left)).sum()
        # Where a time in the bin is known, leaving at the part t adds log m_j - m t, else log m_j / m (1 - e^-m).
        value += np.where(self.known, np.log(left) - left * self.part, 0.0).sum()
        value += np.log(-np.expm1(-left[~self.final & ~self.known])).sum()
        # d log(1 - e^-m) / d m = 1 / (e^m - 1)
        grown = np.expm1(np.clip(left, 1e-12, 700))
        push = np.where(self.known, -self.part, np.where(self.final, 0.0, 1 / grown) - 1 / left)
        bend = np.where(self.known, 0.0, np.where(self.final, 0.0, -(1 + 1 / grown) / grown) + 1 / left**2)
        out: list[Array] = []
        second: list[list[Any]] = [[None, None], [None, None]]
        for j in (0, 1):
            mj = m[j][self.rows, self.cell]
            g = -m[j] * self.stays
            g[self.rows, self.cell] = mj * push + (self.happened == bool(j))
            out.append(g)
            for k in range(j + 1):
                h = m[j] * self.stays if j == k else np.zeros((self.n, self.bins))
                h[self.rows, self.cell] = -(mj * m[k][self.rows, self.cell] * bend + (mj * push if j == k else 0.0))
                second[j][k] = second[k][j] = h
        return float(value), out, second

    def parts(self, flat: Array) -> tuple[float, Array, Array]:
        """Penalised negative log-likelihood, gradient and curvature."""
        rates, beta, delta = self.split(flat)
        value, by, second = self.gradients(flat)
        off = rates - np.array(self.centre)[:, None]
        penalty = 0.5 * SHAPE * (off**2).sum() + 0.5 * (self.ridge * beta**2).sum() + 0.5 * EXTRA * (delta**2).sum()
        g_rates = np.stack([one.sum(axis=0) for one in by]) - SHAPE * off
        g_beta = np.stack([self.features.T @ one.sum(axis=1) for one in by]) - self.ridge * beta
        g_delta = np.zeros(0)
        late = self.segments == 1
        if self.some:
            g_delta = self.features[:, self.some].T @ by[1][:, late].sum(axis=1) - EXTRA * delta
        curvature = self._curvature(second, late)
        later = np.full(len(self.some), EXTRA)
        penalties = np.concatenate([np.full(2 * self.bins, SHAPE), self.ridge, self.ridge, later])
        curvature += np.diag(penalties)
        return penalty - value, -np.concatenate([g_rates.ravel(), g_beta.ravel(), g_delta]), curvature

    def _curvature(self, second: list[list[Any]], late: NDArray[np.bool_]) -> Array:
        """Negative second derivatives of the log-likelihood by rates, β and later changes."""
        features, bins, width, some = self.features, self.bins, self.width, self.some
        size = 2 * bins + 2 * width + len(some)
        curvature = np.zeros((size, size))
        at_delta = 2 * bins + 2 * width + np.arange(len(some))
        for j in (0, 1):
            at_rate, at_beta = j * bins + np.arange(bins), 2 * bins + j * width + np.arange(width)
            for k in (0, 1):
                other_rate, other_beta = k * bins + np.arange(bins), 2 * bins + k * width + np.arange(width)
                h = second[j][k]
                curvature[at_rate, other_rate] += h.sum(axis=0)
                cross = h.T @ features
                curvature[np.ix_(at_rate, other_beta)] += cross
                curvature[np.ix_(other_beta, at_rate)] += cross.T
                curvature[np.ix_(at_beta, other_beta)] += features.T @ (features * h.sum(axis=1)[:, None])
            if some:
                h = second[j][1] * late
                read = features[:, some]
                for at, block in ((at_rate, h.T @ read), (at_beta, features.T @ (read * h.sum(axis=1)[:, None]))):
                    curvature[np.ix_(at, at_delta)] += block
                    curvature[np.ix_(at_delta, at)] += block.T
        if some:
            h = (second[1][1] * late).sum(axis=1)
            read = features[:, some]
            curvature[np.ix_(at_delta, at_delta)] += read.T @ (read * h[:, None])
        return curvature

    def start(self, earlier: dict[str, Array] | None) -> Array:
        """Starting values of the search: the estimates with fewer terms, or the crude rates without any term."""
        rates = np.stack([np.log((ended + 0.1) / (self.exposed + 0.2)) for ended in self.ends])
        beta, delta = np.zeros((2, self.width)), np.zeros(len(self.some))
        if earlier is not None:
            rates = earlier["rates"]
            beta[:, : earlier["beta"].shape[1]] = earlier["beta"]
            delta[: len(earlier["delta"])] = earlier["delta"]
        return np.concatenate([rates.ravel(), beta.ravel(), delta])


def _hazards(fit: _HazardFit, start: dict[str, Array] | None) -> tuple[Array, Array, dict[str, Array], list[Array]]:
    """Maximum likelihood.

    Returns: rates (2, bins); β (2, segments, features); where another fit may start; residuals, (n, bins) of each.
    """
    flat = least(fit.parts, fit.start(start), "a time")
    rates, beta, delta = fit.split(flat)
    whole = np.repeat(beta[:, None, :], int(fit.segments.max()) + 1, axis=1)
    if fit.some:
        whole[1, 1, fit.some] += delta
    return rates, whole, {"rates": rates, "beta": beta, "delta": delta}, fit.gradients(flat)[1]
