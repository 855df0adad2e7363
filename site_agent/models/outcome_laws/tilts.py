"""A numeric outcome given the others: a density in bins that a regression on its value tilts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from shared.errors import TrainingRefusal
from shared.flows.cells import mean_exponential
from shared.flows.outcomes import OutcomeInputs, TiltLaw
from shared.plans.outcomes import PlannedOutcomes
from site_agent.models.outcome_laws.bins import HEAPED, bin_edges, counted_edges, heaps_of, most_bins
from site_agent.models.outcome_laws.terms import ROUNDS, Array, Codes, chosen_terms, least, ridge_of

__all__ = ["tilt_law"]

STEEP = 20.0
"""Steepest baseline within a bin."""


def tilt_law(x: Array, column: int, inputs: OutcomeInputs, planned: PlannedOutcomes) -> TiltLaw:
    """The law of a numeric outcome, with the terms that records ask for. Raises: TrainingRefusal."""
    gate = planned.gates.get(column, -1)
    rows = x if gate < 0 else x[x[:, gate] < 1]
    if len(rows) < 20:
        rows = x
    value, atoms = rows[:, column], inputs.all_atoms(rows)
    counted = column in planned.whole
    heaps = [] if counted else heaps_of(value)
    straight = not counted and sum(share for _, _, share in heaps) <= HEAPED
    shift, features = np.zeros(inputs.width), inputs.features(rows)
    if straight:
        for _ in range(ROUNDS):
            shift = _regression(features, value, inputs)
            rest = value - features @ shift
            _require_spread(rest, value)
            more = chosen_terms(inputs, atoms, [rest])
            if more is inputs:
                break
            inputs, features = more, more.features(rows)
        shift = _regression(features, value, inputs)
    start: Array | None = None
    for last in range(ROUNDS):
        rest = value - features @ shift if straight else value
        law, channels, start = _tilted(column, inputs, shift, rest, features, counted, heaps, start)
        more = chosen_terms(inputs, atoms, channels) if last < ROUNDS - 1 else inputs
        if more is inputs:
            return replace(law, blank=_blank(column, gate, planned))
        inputs, features = more, more.features(rows)
        shift = _regression(features, value, inputs) if straight else np.zeros(inputs.width)
    raise AssertionError("the last round returns")


def _blank(column: int, gate: int, planned: PlannedOutcomes) -> Array:
    """(gate, lower, upper): interval from which `shared.plans.encoding` draws the code of a missing value; or empty."""
    if gate < 0 or column not in planned.bounds:
        return np.zeros(0)
    low, high = planned.bounds[column]
    width = high - low
    return np.array([gate, low + 0.25 * width, low + 0.75 * width + (column in planned.whole)], dtype=np.float64)


def _require_spread(rest: Array, value: Array) -> None:
    if rest.std() <= 1e-5 * max(value.std(), 1e-12):
        raise TrainingRefusal(
            "no column may be a function of the others",
            given="an outcome that is",
            next_step="Ask the study lead to drop a column that repeats another (a sum, a unit conversion, a copy).",
        )


def _regression(features: Array, value: Array, inputs: OutcomeInputs) -> Array:
    ridge = np.concatenate([[0.0], ridge_of(inputs) * 0.02])
    return np.asarray(np.linalg.solve(features.T @ features + np.diag(ridge + 1e-9), features.T @ value))


class _TiltFit:
    """The law at these terms: its likelihood as a function of the log masses of the bins and the tilts.

    Args:
        shift: of the line that is taken off first. rest: what it leaves, (n,). features: (n, terms).
        counted: whether the outcome counts.
    """

    def __init__(
        self,
        inputs: OutcomeInputs,
        shift: Array,
        rest: Array,
        features: Array,
        counted: bool,
        heaps: Sequence[tuple[float, float, float]],
    ) -> None:
        bins = most_bins(len(rest))
        inner = counted_edges(rest, bins) if counted else bin_edges(rest, bins, [] if shift.any() else heaps)
        reach = float(np.ptp(rest)) or 1.0
        outer = np.floor(reach) + 1 if counted else reach
        self.edges = edges = np.concatenate([[inner[0] - outer], inner, [inner[-1] + outer]])
        self.cell = cell = np.clip(np.searchsorted(edges, rest, side="right") - 1, 1, len(edges) - 3)
        t = np.clip((rest - edges[cell]) / np.diff(edges)[cell], 0, 1)
        self.low, self.high = _shapes(edges, rest, counted, bool(shift.any()), heaps)
        self.far = self.high - self.low
        self.m, self.width = len(self.low), features.shape[1] - 1
        self.features, self.read = features, features[:, 1:]
        self.count = len(edges) - 1
        self.ridge = np.repeat(ridge_of(inputs)[:, None], self.m, axis=1)
        if self.m > 1:
            self.ridge[:, 1:] *= 4
        self.seen = self.low[:, cell] + self.far[:, cell] * t
        self.slope = np.where(counted & (np.diff(edges) == 1), 0.0, _slopes(cell, t, self.count))

    def split(self, flat: Array) -> tuple[Array, Array]:
        """Log masses of all bins, and tilts. Next to nothing lies beyond the outermost bin, wherever x tilts it to."""
        inside, beyond = flat[: self.count - 2], np.log(1e-5)
        base = np.concatenate([[inside[0] + beyond], inside, [inside[-1] + beyond]])
        return base, flat[self.count - 2 :].reshape(self.width, self.m)

    def moments(self, base: Array, theta: Array) -> tuple[Array, Array, Array]:
        """Log of the normaliser, masses, and the mean of each shape in each bin, (m, n, bins)."""
        steep = self.read @ theta
        first = steep @ self.low
        log_mean, middle = mean_exponential(steep @ self.far + self.slope)
        logs = base + first + log_mean
        top = logs.max(axis=1, keepdims=True)
        odds = np.exp(logs - top)
        total = odds.sum(axis=1)
        return np.log(total) + top[:, 0], odds / total[:, None], self.low[:, None, :] + self.far[:, None, :] * middle

    def parts(self, flat: Array) -> tuple[float, Array, Array]:
        """Penalised negative log-likelihood, gradient and curvature."""
        base, theta = self.split(flat)
        log_total, mass, means = self.moments(base, theta)
        value = base[self.cell] + ((self.read @ theta) * self.seen.T).sum(axis=1) - log_total
        expected = (means * mass).sum(axis=2)
        off = base[1:-1] - base[1:-1].mean()
        penalty = 0.5 * (self.ridge * theta**2).sum() + 0.5 * 1e-3 * (off**2).sum()
        by_base = (np.bincount(self.cell, minlength=self.count) - mass.sum(axis=0))[1:-1] - 1e-3 * off
        by_theta = self.read.T @ (self.seen - expected).T - self.ridge * theta
        own = mass[:, 1:-1]
        size = self.count - 2 + self.width * self.m
        curvature = np.zeros((size, size))
        curvature[: self.count - 2, : self.count - 2] = np.diag(own.sum(axis=0) + 1e-3) - own.T @ own
        away = means - expected[:, :, None]
        for a in range(self.m):
            at = self.count - 2 + np.arange(self.width) * self.m + a
            block = (own * away[a][:, 1:-1]).T @ self.read
            curvature[: self.count - 2, at] = block
            curvature[at, : self.count - 2] = block.T
            for b in range(a + 1):
                other = self.count - 2 + np.arange(self.width) * self.m + b
                both = (mass * away[a] * away[b]).sum(axis=1)
                # What varies within a bin counts too: by a twelfth of its width, squared.
                both = both + (mass * (self.far[a] * self.far[b] / 12)).sum(axis=1)
                block = self.read.T @ (self.read * both[:, None])
                curvature[np.ix_(at, other)] = block
                curvature[np.ix_(other, at)] = block.T
        curvature[self.count - 2 :, self.count - 2 :] += np.diag(self.ridge.ravel())
        return float(penalty - value.sum()), -np.concatenate([by_base, by_theta.ravel()]), curvature

    def start(self, earlier: Array | None) -> Array:
        """Starting values of the search: the estimates with fewer terms, or the log shares of the bins."""
        size = self.count - 2 + self.width * self.m
        if earlier is None or len(earlier) > size:
            base = np.log(np.bincount(self.cell, minlength=self.count)[1:-1] + 0.1) - np.log(len(self.cell))
            return np.concatenate([base, np.zeros(self.width * self.m)])
        return np.concatenate([earlier, np.zeros(size - len(earlier))])

    def turned(self, base: Array, theta: Array) -> tuple[Array, Array]:
        """A last turn of the value's own tilt, its constant included.

        Means within bins shift as the tilt does: this puts the sums that a regression solves for back to the records'.
        """
        whole = self.features
        for _ in range(20):
            _, mass, means = self.moments(base, theta)
            expected = (means[0] * mass).sum(axis=1)
            spread = (mass * ((means[0] - expected[:, None]) ** 2 + self.far[0] ** 2 / 12)).sum(axis=1)
            gradient = whole.T @ (self.seen[0] - expected) - np.append(0.0, self.ridge[:, 0] * theta[:, 0])
            curvature = whole.T @ (whole * spread[:, None]) + np.diag(np.append(1e-9, self.ridge[:, 0]))
            step = np.linalg.solve(curvature, gradient)
            step /= max(1.0, float(np.abs(step).max()))
            theta[:, 0] += step[1:]
            base = base + step[0] * self.low[0]
            self.slope = np.clip(self.slope + step[0] * self.far[0], -STEEP, STEEP)
            if np.abs(step).max() < 1e-6:
                break
        return base, theta


def _tilted(
    column: int,
    inputs: OutcomeInputs,
    shift: Array,
    rest: Array,
    features: Array,
    counted: bool,
    heaps: Sequence[tuple[float, float, float]],
    start: Array | None,
) -> tuple[TiltLaw, list[Array], Array]:
    """The law at these terms; residuals of what it predicts; and what the next fit may start from."""
    fit = _TiltFit(inputs, shift, rest, features, counted, heaps)
    flat = least(fit.parts, fit.start(start), "a numeric outcome")
    base, theta = fit.turned(*fit.split(flat.copy()))
    law = TiltLaw(
        column=column,
        inputs=inputs,
        shift=shift,
        edges=fit.edges,
        base=base,
        slope=fit.slope,
        low=fit.low,
        high=fit.high,
        coefficients=theta,
    )
    _, mass, means = fit.moments(base, theta)
    return law, list(fit.seen - (means * mass).sum(axis=2)), flat


def _slopes(cell: Codes, t: Array, count: int) -> Array:
    """Steepness in each bin under which records lie in it where they do on average."""
    held = np.bincount(cell, minlength=count)
    mean = np.bincount(cell, weights=t, minlength=count) / np.maximum(held, 1)
    mean = np.where(held > 0, (held * mean + 0.05) / (held + 0.1), 0.5)
    out = np.zeros(count)
    for _ in range(60):
        _, now = mean_exponential(out)
        out = np.clip(out + (mean - now) / np.maximum(now * (1 - now) / 3, 0.002), -STEEP, STEEP)
    return out


def _shapes(
    edges: Array, rest: Array, counted: bool, shifted: bool, heaps: Sequence[tuple[float, float, float]]
) -> tuple[Array, Array]:
    """(low, high), (m, bins): what tilts, at the ends of each bin: the value, its squared score, the largest heap."""
    lower, upper = edges[:-1].copy(), edges[1:].copy()
    if counted:
        # A value is what its code has below it, by a half on average; a cell of one number has that number throughout.
        alone = upper - lower == 1
        lower, upper = np.where(alone, lower, lower - 0.5), np.where(alone, lower, upper - 0.5)
    middle, spread = rest.mean(), rest.std() or 1.0
    if counted:
        middle = np.floor(rest).mean()
    inside = np.array([rest.min(), rest.max()])
    # Beyond what was seen the tilt stays what it was at the end: nothing extrapolates.
    ends = [np.clip(part, *inside) for part in (lower, upper)]
    value = [(part - middle) / spread for part in ends]
    ranked = np.sort(rest)
    square = []
    for part in ends:
        share = np.clip(np.searchsorted(ranked, part) / len(ranked), 0.01, 0.99)
        square.append(special.ndtri(share) ** 2 - 1)
    low, high = [value[0], square[0]], [value[1], square[1]]
    if counted and (np.floor(rest) == np.floor(rest).min()).mean() > HEAPED:
        at = (lower <= np.floor(rest).min()) & (edges[1:] > np.floor(rest).min())
        low.append(at.astype(float))
        high.append(at.astype(float))
    elif not shifted:
        for first, last, share in sorted(heaps, key=lambda heap: -heap[2])[:1]:
            at = (edges[:-1] <= first) & (edges[1:] >= last)
            low.append(at.astype(float) * (share > 0))
            high.append(at.astype(float) * (share > 0))
    return np.array(low), np.array(high)
