"""Fitting the laws of outcomes given everything else: `shared.flows.outcomes`.

Covariates enter each law in their own unit, next to unpenalised: its score equations then hold on the records, and what
a planned regression finds in rows drawn from it is what it finds in the records, but for noise. Whatever else a law
reads (normal scores, bends, squares, products) is taken in only where records ask for it: where its score statistic
exceeds log n by `CLEAR`, two terms at a time, `ROUNDS` times at most.

Deterministic: nothing is drawn. No guarantee covers what is fitted; on which records it may be fitted is
`site_agent.release.fitting`'s rule, as of the rest of the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shared.errors import TrainingRefusal
from shared.flows.outcomes import HazardLaw, LevelLaw, OutcomeInputs, TiltLaw, mean_exponential
from shared.flows.outcomes_last import OutcomesLast
from shared.plans.outcomes import PlannedOutcomes

__all__ = ["asked_products", "fit_laws", "laws_cost"]

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Law = LevelLaw | TiltLaw | HazardLaw

CLEAR = 2.0
"""By how much a term's statistic must exceed log n: at 1,000 records 8.9, three standard errors."""
ROUNDS = 8
"""Most times that terms are chosen and the law fitted again."""
_LINE, _EXTRA, _SHAPE = 0.05, 1.0, 0.05
"""Ridge on lines and indicators, on chosen terms, and on the baseline; in units of records."""
_STEEP = 20.0
"""Steepest baseline within a bin."""
_BENDS = (-1.0, 0.0, 1.0)
_HEAP, _HEAPED = 0.04, 0.05
"""Least share of records on one value for it to be a heap; and of all heaps for them to have cells of their own."""


def fit_laws(x: Array, planned: PlannedOutcomes) -> OutcomesLast:
    """The laws of a plan's outcomes, fitted to encoded records.

    Args:
        x: (n, d) encoded records.
        planned: which columns are outcomes, in which order, and what the columns are.
    Raises: TrainingRefusal, where an outcome is a function of the others.
    """
    covariates = [j for j in range(planned.d) if j not in planned.drawn]
    known, laws = list(covariates), []
    for group in planned.groups:
        inputs = _inputs(x, known, planned)
        law: Law
        if len(group) == 2:
            law = _hazard_law(x, group, inputs)
        elif group[0] in planned.levels:
            law = _level_law(x, group[0], planned.levels[group[0]], inputs)
        else:
            law = _tilt_law(x, group[0], inputs, planned)
        laws.append(law)
        known += group
    return OutcomesLast(d=planned.d, laws=tuple(laws))


def laws_cost(n: int, planned: PlannedOutcomes) -> tuple[float, float]:
    """What fitting laws to n records and putting them right takes at most: (seconds, megabytes)."""
    groups = len(planned.groups)
    # As measured for counts, the slowest, at 300 and 20,000 records; about a dozen tables of records by bins.
    return groups * (1.0 + 7e-4 * n), 8e-6 * 26 * (12 * n + 40_000) + 8e-6 * 4 * max(n, 7_500) * planned.d


# -- what is read ------------------------------------------------------------------------------------------------
def _inputs(x: Array, columns: Sequence[int], planned: PlannedOutcomes) -> OutcomeInputs:
    counts, gates, whole = [], [], []
    knots: list[tuple[Array, Array] | None] = []
    centre, scale = np.zeros(len(columns)), np.ones(len(columns))
    for k, j in enumerate(columns):
        count = planned.levels.get(j, 0)
        gate = planned.gates.get(j, -1)
        counts.append(count)
        gates.append(gate)
        whole.append(j in planned.whole)
        if count:
            knots.append(None)
            continue
        values = x[:, j] if gate < 0 else x[x[:, gate] < 1, j]
        values = np.floor(values) if whole[-1] else values
        if len(values) < 2 or values.std() == 0:
            middle = float(values[0]) if len(values) else 0.0
            centre[k] = middle
            knots.append((np.array([-1.0, 1.0]), np.array([middle - 1, middle + 1])))
            continue
        centre[k], scale[k] = values.mean(), values.std()
        knots.append(_scores(values))
    plain = OutcomeInputs(
        columns=tuple(columns),
        counts=tuple(counts),
        whole=tuple(whole),
        gates=tuple(gates),
        centre=centre,
        scale=scale,
        knots=tuple(knots),
        extras=np.zeros((0, 3)),
    )
    return replace(plain, extras=asked_products(plain, planned))


def _scores(values: Array) -> tuple[Array, Array]:
    """Normal scores at some n/20 of the values, 8 to 40."""
    value, count = np.unique(values, return_counts=True)
    middle = (np.cumsum(count) - 0.5 * count) / len(values)
    most = int(np.clip(len(values) // 20, 8, 40))
    grid = special.ndtr(np.linspace(special.ndtri(middle[0]), special.ndtri(middle[-1]), most))
    pick = np.unique(np.append(np.searchsorted(middle, grid).clip(0, value.size - 1), [0, value.size - 1]))
    scores, at = special.ndtri(middle[pick]), value[pick]
    keep = np.concatenate([[True], (np.diff(scores) > 1e-9) & (np.diff(at) > 0)])
    scores, at = scores[keep], at[keep]
    if len(at) < 2:
        return np.array([-1.0, 1.0]), np.array([at[0] - 1, at[0] + 1])
    return scores, at


def _starts(inputs: OutcomeInputs) -> dict[int, list[int]]:
    """Column to its atoms that are always terms."""
    out, at = {}, 0
    for column, count in zip(inputs.columns, inputs.counts, strict=True):
        size = count - 1 if count else 1
        out[column] = list(range(at, at + size))
        at += size
    return out


def asked_products(inputs: OutcomeInputs, planned: PlannedOutcomes) -> Array:
    """Products that a planned question names, in the columns' own units."""
    of = _starts(inputs)
    rows = [
        (a, b, 0.0)
        for one, other in planned.products
        if one in of and other in of
        for a in of[one]
        for b in of[other]
        if one != other or a == b
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _candidates(inputs: OutcomeInputs, atoms: Array) -> Array:
    """Terms that may be taken in: scores, bends of them, squares, products of scores and indicators."""
    base = inputs.base
    scores = list(range(base, inputs.atoms))
    numeric = [k for k, count in enumerate(inputs.counts) if not count]
    lines = [_starts(inputs)[inputs.columns[k]][0] for k in numeric]
    indicators = [a for a in range(base) if a not in lines]
    rows: list[tuple[float, float, float]] = []
    for a in scores:
        rows += [(a, -2, 0.0), *((a, -1, bend) for bend in _BENDS), (a, a, 0.0)]
    pieces = [*scores, *indicators]
    owner = {a: column for column, own in _starts(inputs).items() for a in own}
    owner |= {a: inputs.columns[k] for a, k in zip(scores, numeric, strict=True)}
    rows += [(a, b, 0.0) for i, a in enumerate(pieces) for b in pieces[i + 1 :] if owner[a] != owner[b]]
    there = {tuple(row) for row in inputs.extras.tolist()}
    rows = [row for row in rows if (float(row[0]), float(row[1]), float(row[2])) not in there]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _chosen(inputs: OutcomeInputs, atoms: Array, channels: Sequence[Array]) -> OutcomeInputs:
    """The same with the terms that the residuals ask for most, by score tests; itself where they ask for none.

    Args:
        channels: residuals (n,) of what the law predicts, each orthogonal to the features.
    """
    extras = _candidates(inputs, atoms)
    if not len(extras):
        return inputs
    features = np.hstack([np.ones((len(atoms), 1)), atoms[:, : inputs.base], inputs.made(atoms, inputs.extras)])
    terms = inputs.made(atoms, extras)
    best = np.zeros(len(extras))
    for residual in channels:
        weight = residual**2
        if weight.sum() == 0:
            continue
        gram = features.T @ (features * weight[:, None])
        gram += 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram))
        rest = terms - features @ np.linalg.solve(gram, features.T @ (terms * weight[:, None]))
        spread = (rest**2 * weight[:, None]).sum(axis=0)
        own = (terms**2 * weight[:, None]).sum(axis=0)
        # A term that the features already span has nothing left to say, and one that few records have is noise.
        evidence = np.where(
            spread > 1e-3 * own, (rest * residual[:, None]).sum(axis=0) ** 2 / np.maximum(spread, 1e-12), 0
        )
        best = np.maximum(best, evidence)
    support = (terms != 0).sum(axis=0)
    best[support < 10] = 0
    floor = np.log(len(atoms)) + CLEAR
    picked: list[int] = []
    for k in np.argsort(-best):
        if best[k] <= floor or len(picked) == 2:
            break
        like = [abs(np.corrcoef(terms[:, k], terms[:, other])[0, 1]) for other in picked]
        if max(like, default=0.0) < 0.6:
            picked.append(int(k))
    if not picked:
        return inputs
    return replace(inputs, extras=np.vstack([inputs.extras, extras[picked]]))


def _ridge(inputs: OutcomeInputs) -> Array:
    """Per feature but the intercept."""
    return np.array([_LINE] * inputs.base + [_EXTRA] * len(inputs.extras))


# -- levels ------------------------------------------------------------------------------------------------------
def _level_law(x: Array, column: int, levels: int, inputs: OutcomeInputs) -> LevelLaw:
    level = np.clip(np.floor(x[:, column]), 0, levels - 1).astype(np.int64)
    atoms = inputs.all_atoms(x)
    start: Array | None = None
    for _ in range(ROUNDS):
        features = inputs.features(x)
        law = LevelLaw(column=column, inputs=inputs, coefficients=_multinomial(features, level, levels, inputs, start))
        share = law.shares(x)
        channels = [(level == k) - share[:, k] for k in (range(1, 2) if levels == 2 else range(levels))]
        more = _chosen(inputs, atoms, channels)
        if more is inputs:
            break
        start = np.vstack([law.coefficients, np.zeros((more.width - inputs.width, levels))])
        inputs = more
    else:
        features = inputs.features(x)
        law = LevelLaw(column=column, inputs=inputs, coefficients=_multinomial(features, level, levels, inputs, start))
    return law


def _multinomial(features: Array, level: Codes, levels: int, inputs: OutcomeInputs, start: Array | None) -> Array:
    """Of the levels but the first; the ridge is on what is estimated, so the first is a reference by name alone."""
    n, width, free = len(features), features.shape[1], levels - 1
    ridge = np.repeat(np.concatenate([[1e-3], _ridge(inputs)])[:, None], free, axis=1)
    target = np.zeros((n, levels))
    target[np.arange(n), level] = 1.0
    if start is None:
        start = np.zeros((width, levels))
        start[0] = np.log((target.sum(axis=0) + 0.1) / (n + 0.1 * levels))
    start = start[:, 1:] - start[:, :1]

    def parts(flat: Array) -> tuple[float, Array, Array]:
        beta = flat.reshape(width, free)
        logits = np.hstack([np.zeros((n, 1)), features @ beta])
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        total = odds.sum(axis=1)
        share = odds / total[:, None]
        value = (np.log(total) - (logits * target).sum(axis=1)).sum() + 0.5 * (ridge * beta**2).sum()
        gradient = features.T @ (share - target)[:, 1:] + ridge * beta
        curvature = np.empty((width, free, width, free))
        for j in range(free):
            for k in range(j + 1):
                weight = share[:, j + 1] * ((j == k) - share[:, k + 1])
                curvature[:, j, :, k] = curvature[:, k, :, j] = features.T @ (features * weight[:, None])
        size = width * free
        return float(value), gradient.ravel(), curvature.reshape(size, size) + np.diag(ridge.ravel())

    found = _least(parts, start.ravel(), "a levelled outcome").reshape(width, free)
    return np.hstack([np.zeros((width, 1)), found])


Parts = Callable[[Array], tuple[float, Array, Array]]


def _least(parts: Parts, at: Array, what: str) -> Array:
    """The minimum of a function that is convex, or nearly: damped Newton steps."""
    # A step that is too long may overflow on its way to being halved.
    with np.errstate(all="ignore"):
        return _descended(parts, at, what)


def _descended(parts: Parts, at: Array, what: str) -> Array:
    value, gradient, curvature = parts(at)
    for _ in range(60):
        floor = 1e-9 * max(1.0, float(np.trace(curvature)) / len(at))
        try:
            step = np.linalg.solve(curvature + floor * np.eye(len(at)), gradient)
        except np.linalg.LinAlgError:
            step = gradient / max(float(np.abs(np.diag(curvature)).max()), 1e-9)
        fall = float(gradient @ step)
        if not np.isfinite(fall) or fall < 0:
            step, fall = gradient / max(float(np.abs(np.diag(curvature)).max()), 1e-9), float(gradient @ gradient)
        if fall < 1e-7:
            break
        size, moved = 1.0, False
        while size > 1e-5:
            now = parts(at - size * step)
            if np.isfinite(now[0]) and now[0] <= value - 1e-4 * size * fall:
                moved = True
                break
            size /= 3
        if not moved:
            break
        at, (value, gradient, curvature) = at - size * step, now
    if not np.isfinite(at).all() or not np.isfinite(value):
        raise TrainingRefusal(
            f"the law of {what} must have an estimate",
            given="none",
            next_step="Ask the study lead to merge rare levels, or to write outcomes = 'joint' under [training].",
        )
    return at


# -- numeric outcomes --------------------------------------------------------------------------------------------
def _tilt_law(x: Array, column: int, inputs: OutcomeInputs, planned: PlannedOutcomes) -> TiltLaw:
    gate = planned.gates.get(column, -1)
    rows = x if gate < 0 else x[x[:, gate] < 1]
    if len(rows) < 20:
        rows = x
    value, atoms = rows[:, column], inputs.all_atoms(rows)
    counted = column in planned.whole
    heaps = [] if counted else _heaps(value)
    straight = not counted and sum(share for _, _, share in heaps) <= _HEAPED
    shift, features = np.zeros(inputs.width), inputs.features(rows)
    if straight:
        for _ in range(ROUNDS):
            shift = _regression(features, value, inputs)
            rest = value - features @ shift
            _require_spread(rest, value)
            more = _chosen(inputs, atoms, [rest])
            if more is inputs:
                break
            inputs, features = more, more.features(rows)
        shift = _regression(features, value, inputs)
    start: Array | None = None
    for last in range(ROUNDS):
        rest = value - features @ shift if straight else value
        law, channels, start = _tilted(column, inputs, shift, rest, features, counted, heaps, start)
        more = _chosen(inputs, atoms, channels) if last < ROUNDS - 1 else inputs
        if more is inputs:
            return law
        inputs, features = more, more.features(rows)
        shift = _regression(features, value, inputs) if straight else np.zeros(inputs.width)
    raise AssertionError("the last round returns")


def _require_spread(rest: Array, value: Array) -> None:
    if rest.std() <= 1e-5 * max(value.std(), 1e-12):
        raise TrainingRefusal(
            "no column may be a function of the others",
            given="an outcome that is",
            next_step="Ask the study lead to drop a column that repeats another (a sum, a unit conversion, a copy).",
        )


def _regression(features: Array, value: Array, inputs: OutcomeInputs) -> Array:
    ridge = np.concatenate([[0.0], _ridge(inputs) * 0.02])
    return np.asarray(np.linalg.solve(features.T @ features + np.diag(ridge + 1e-9), features.T @ value))


def _heaps(value: Array) -> list[tuple[float, float, float]]:
    """(from, to, share) of values on which records heap, in order: stretches far denser than the whole."""
    ordered = np.sort(value)
    n = len(ordered)
    size = max(8, int(np.ceil(_HEAP * n)))
    if size >= n // 2:
        return []
    width = ordered[size - 1 :] - ordered[: n - size + 1]
    even = (ordered[int(0.95 * (n - 1))] - ordered[int(0.05 * (n - 1))]) / (0.9 * n) * size
    dense = width < 0.1 * max(even, 1e-12)
    out: list[tuple[float, float, float]] = []
    k = 0
    while k < len(dense):
        if not dense[k]:
            k += 1
            continue
        # As far as it stays dense, at least by records one apart.
        first, last = k, k + size - 1
        gap = 3 * width[k] / size + 0.02 * even / size
        while last + 1 < n and ordered[last + 1] - ordered[last] <= max(gap, 0.1 * even / size * 5):
            last += 1
        out.append((float(ordered[first]), float(ordered[last]), (last - first + 1) / n))
        k = last + 1
    return out


def _edges(value: Array, bins: int, heaps: Sequence[tuple[float, float, float]]) -> Array:
    """Edges of cells: of each heap, and between them of about equal shares of the records."""
    reach = float(np.ptp(value)) or 1.0
    tiny = 1e-6 * reach
    free = np.ones(len(value), dtype=bool)
    out: list[float] = [float(value.min()) - tiny, float(value.max()) + tiny]
    for low, high, _ in heaps:
        free &= (value < low) | (value > high)
        out += [low - tiny, high + tiny]
    if free.sum() >= 20:
        # Between two records: a value on an edge would be of either cell.
        ordered = np.sort(value[free])
        at = np.linspace(0, len(ordered), max(4, bins - len(heaps)) + 1)[1:-1].astype(np.int64)
        inner = (ordered[at - 1] + ordered[at]) / 2
        out += [float(e) for e in inner if not any(low - tiny <= e <= high + tiny for low, high, _ in heaps)]
    edges = np.unique(out)
    keep = [0]
    for k in range(1, len(edges)):
        if edges[k] - edges[keep[-1]] > tiny / 2:
            keep.append(k)
    return np.asarray(edges[keep])


def _bins(n: int) -> int:
    return int(np.clip(n // 40, 5, 24))


def _counted_edges(value: Array, bins: int) -> Array:
    """Edges of cells of whole numbers: each by itself while it is frequent, then together."""
    whole = np.floor(value)
    least = max(5.0, len(value) / (2 * bins))
    edges, held = [whole.min()], 0.0
    number, count = np.unique(whole, return_counts=True)
    for k, (one, some) in enumerate(zip(number, count, strict=True)):
        held += some
        if held >= least and (k + 1 < len(number)):
            edges.append(one + 1)
            held = 0.0
    return np.array([*edges, whole.max() + 1])


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
    n, bins = len(rest), _bins(len(rest))
    inner = _counted_edges(rest, bins) if counted else _edges(rest, bins, [] if shift.any() else heaps)
    reach = float(np.ptp(rest)) or 1.0
    outer = np.floor(reach) + 1 if counted else reach
    edges = np.concatenate([[inner[0] - outer], inner, [inner[-1] + outer]])
    cell = np.clip(np.searchsorted(edges, rest, side="right") - 1, 1, len(edges) - 3)
    t = np.clip((rest - edges[cell]) / np.diff(edges)[cell], 0, 1)
    low, high = _shapes(edges, rest, counted, bool(shift.any()), heaps)
    m, width, read = len(low), features.shape[1] - 1, features[:, 1:]
    count = len(edges) - 1
    ridge = np.repeat(_ridge(inputs)[:, None], m, axis=1)
    if m > 1:
        ridge[:, 1:] *= 4
    beyond = np.log(1e-5)

    def split(flat: Array) -> tuple[Array, Array]:
        # Beyond what was seen: next to nothing beside the outermost bin, wherever x tilts it to.
        inside = flat[: count - 2]
        base = np.concatenate([[inside[0] + beyond], inside, [inside[-1] + beyond]])
        return base, flat[count - 2 :].reshape(width, m)

    far = high - low
    seen = low[:, cell] + far[:, cell] * t
    slope = np.where(counted & (np.diff(edges) == 1), 0.0, _slopes(cell, t, count))

    def moments(base: Array, theta: Array) -> tuple[Array, Array, Array]:
        """Log of the normaliser, masses, and the mean of each shape in each bin, (m, n, bins)."""
        steep = read @ theta
        first = steep @ low
        log_mean, middle = mean_exponential(steep @ far + slope)
        logs = base + first + log_mean
        top = logs.max(axis=1, keepdims=True)
        odds = np.exp(logs - top)
        total = odds.sum(axis=1)
        return np.log(total) + top[:, 0], odds / total[:, None], low[:, None, :] + far[:, None, :] * middle

    def parts(flat: Array) -> tuple[float, Array, Array]:
        base, theta = split(flat)
        log_total, mass, means = moments(base, theta)
        value = base[cell] + ((read @ theta) * seen.T).sum(axis=1) - log_total
        expected = (means * mass).sum(axis=2)
        off = base[1:-1] - base[1:-1].mean()
        penalty = 0.5 * (ridge * theta**2).sum() + 0.5 * 1e-3 * (off**2).sum()
        by_base = (np.bincount(cell, minlength=count) - mass.sum(axis=0))[1:-1] - 1e-3 * off
        by_theta = read.T @ (seen - expected).T - ridge * theta
        own = mass[:, 1:-1]
        size = count - 2 + width * m
        curvature = np.zeros((size, size))
        curvature[: count - 2, : count - 2] = np.diag(own.sum(axis=0) + 1e-3) - own.T @ own
        away = means - expected[:, :, None]
        for a in range(m):
            at = count - 2 + np.arange(width) * m + a
            block = (own * away[a][:, 1:-1]).T @ read
            curvature[: count - 2, at] = block
            curvature[at, : count - 2] = block.T
            for b in range(a + 1):
                other = count - 2 + np.arange(width) * m + b
                both = (mass * away[a] * away[b]).sum(axis=1)
                # What varies within a bin counts too: by a twelfth of its width, squared.
                both = both + (mass * (far[a] * far[b] / 12)).sum(axis=1)
                block = read.T @ (read * both[:, None])
                curvature[np.ix_(at, other)] = block
                curvature[np.ix_(other, at)] = block.T
        curvature[count - 2 :, count - 2 :] += np.diag(ridge.ravel())
        return float(penalty - value.sum()), -np.concatenate([by_base, by_theta.ravel()]), curvature

    if start is None or len(start) > count - 2 + width * m:
        base = np.log(np.bincount(cell, minlength=count)[1:-1] + 0.1) - np.log(n)
        start = np.concatenate([base, np.zeros(width * m)])
    else:
        start = np.concatenate([start, np.zeros(count - 2 + width * m - len(start))])
    flat = _least(parts, start, "a numeric outcome")
    base, theta = split(flat.copy())
    # Means within bins shift as the tilt does: a last turn of the value's own tilt, its constant included, puts the
    # sums that a regression solves for back to the records'.
    whole = features
    for _ in range(20):
        _, mass, means = moments(base, theta)
        expected = (means[0] * mass).sum(axis=1)
        spread = (mass * ((means[0] - expected[:, None]) ** 2 + far[0] ** 2 / 12)).sum(axis=1)
        gradient = whole.T @ (seen[0] - expected) - np.append(0.0, ridge[:, 0] * theta[:, 0])
        curvature = whole.T @ (whole * spread[:, None]) + np.diag(np.append(1e-9, ridge[:, 0]))
        step = np.linalg.solve(curvature, gradient)
        step /= max(1.0, float(np.abs(step).max()))
        theta[:, 0] += step[1:]
        base = base + step[0] * low[0]
        slope = np.clip(slope + step[0] * far[0], -_STEEP, _STEEP)
        if np.abs(step).max() < 1e-6:
            break
    law = TiltLaw(
        column=column,
        inputs=inputs,
        shift=shift,
        edges=edges,
        base=base,
        slope=slope,
        low=low,
        high=high,
        coefficients=theta,
    )
    _, mass, means = moments(base, theta)
    return law, list(seen - (means * mass).sum(axis=2)), flat


def _slopes(cell: Codes, t: Array, count: int) -> Array:
    """Steepness in each bin under which records lie in it where they do on average."""
    held = np.bincount(cell, minlength=count)
    mean = np.bincount(cell, weights=t, minlength=count) / np.maximum(held, 1)
    mean = np.where(held > 0, (held * mean + 0.05) / (held + 0.1), 0.5)
    out = np.zeros(count)
    for _ in range(60):
        _, now = mean_exponential(out)
        out = np.clip(out + (mean - now) / np.maximum(now * (1 - now) / 3, 0.002), -_STEEP, _STEEP)
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
    if counted and (np.floor(rest) == np.floor(rest).min()).mean() > _HEAPED:
        at = (lower <= np.floor(rest).min()) & (edges[1:] > np.floor(rest).min())
        low.append(at.astype(float))
        high.append(at.astype(float))
    elif not shifted:
        for first, last, share in sorted(heaps, key=lambda heap: -heap[2])[:1]:
            at = (edges[:-1] <= first) & (edges[1:] >= last)
            low.append(at.astype(float) * (share > 0))
            high.append(at.astype(float) * (share > 0))
    return np.array(low), np.array(high)


# -- a time and its event ----------------------------------------------------------------------------------------
def _hazard_law(x: Array, group: Sequence[int], inputs: OutcomeInputs) -> HazardLaw:
    time, event = group
    value = x[:, time]
    happened = x[:, event] >= 1
    heaps = _heaps(value)
    inner = _edges(value, _bins(len(x)), heaps)
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
        rates, beta, start, left = _hazards(features, cell, part, happened, segments, timed, inputs, changed, start)
        if last == ROUNDS - 1:
            break
        more = _chosen(inputs, atoms, [part.sum(axis=1) for part in left])
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


def _hazards(
    features: Array,
    cell: Codes,
    part: Array,
    happened: NDArray[np.bool_],
    segments: Codes,
    timed: Codes,
    inputs: OutcomeInputs,
    changed: Sequence[int],
    start: dict[str, Array] | None,
) -> tuple[Array, Array, dict[str, Array], list[Array]]:
    """Maximum likelihood of competing hazards, grouped where bins are not timed.

    Returns: rates (2, bins); β (2, segments, features); where another fit may start; residuals, (n, bins) of each.
    """
    n, width, bins, count = *features.shape, len(segments), int(segments.max()) + 1
    rows = np.arange(n)
    at_risk = np.arange(bins)[None, :] <= cell[:, None]
    leaves = np.zeros((n, bins), dtype=bool)
    leaves[rows, cell] = True
    final = leaves[:, -1]
    known = timed[cell] == 1
    stays = at_risk & ~leaves
    ridge = _ridge(inputs)
    ends = [np.bincount(cell[happened == bool(j)], minlength=bins) for j in (0, 1)]
    exposed = at_risk.sum(axis=0)
    centre = [float(np.log((part.sum() + 0.5) / exposed.sum())) for part in ends]
    some = list(changed)

    def split(flat: Array) -> tuple[Array, Array, Array]:
        rates = flat[: 2 * bins].reshape(2, bins)
        beta = flat[2 * bins : 2 * bins + 2 * width].reshape(2, width)
        return rates, beta, flat[2 * bins + 2 * width :]

    def gradients(flat: Array) -> tuple[float, list[Array], list[list[Any]]]:
        """Log-likelihood, and by the log hazards its derivatives, (n, bins), and the negative second ones."""
        rates, beta, delta = split(flat)
        eta = features @ beta.T
        own = rates[1] + eta[:, 1:]
        if some:
            own = own + (features[:, some] @ delta)[:, None] * (segments == 1)
        logs = [np.clip(rates[0] + eta[:, :1], -30, 12), np.clip(own, -30, 12)]
        m = [np.exp(part) for part in logs]
        total = m[0] + m[1]
        left = total[rows, cell]
        mine = np.where(happened, logs[1][rows, cell], logs[0][rows, cell])
        value = -(total * stays).sum() + (mine - np.log(left)).sum()
        # Where a time in the bin is known, leaving at the part t adds log m_j - m t, else log m_j / m (1 - e^-m).
        value += np.where(known, np.log(left) - left * part, 0.0).sum()
        value += np.log(-np.expm1(-left[~final & ~known])).sum()
        # d log(1 - e^-m) / d m = 1 / (e^m - 1)
        grown = np.expm1(np.clip(left, 1e-12, 700))
        push = np.where(known, -part, np.where(final, 0.0, 1 / grown) - 1 / left)
        bend = np.where(known, 0.0, np.where(final, 0.0, -(1 + 1 / grown) / grown) + 1 / left**2)
        out: list[Array] = []
        second: list[list[Any]] = [[None, None], [None, None]]
        for j in (0, 1):
            mj = m[j][rows, cell]
            g = -m[j] * stays
            g[rows, cell] = mj * push + (happened == bool(j))
            out.append(g)
            for k in range(j + 1):
                h = m[j] * stays if j == k else np.zeros((n, bins))
                h[rows, cell] = -(mj * m[k][rows, cell] * bend + (mj * push if j == k else 0.0))
                second[j][k] = second[k][j] = h
        return float(value), out, second

    def parts(flat: Array) -> tuple[float, Array, Array]:
        rates, beta, delta = split(flat)
        value, by, second = gradients(flat)
        off = rates - np.array(centre)[:, None]
        penalty = 0.5 * _SHAPE * (off**2).sum() + 0.5 * (ridge * beta**2).sum() + 0.5 * _EXTRA * (delta**2).sum()
        g_rates = np.stack([part.sum(axis=0) for part in by]) - _SHAPE * off
        g_beta = np.stack([features.T @ part.sum(axis=1) for part in by]) - ridge * beta
        g_delta = np.zeros(0)
        late = segments == 1
        if some:
            g_delta = features[:, some].T @ by[1][:, late].sum(axis=1) - _EXTRA * delta
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
        penalties = np.concatenate([np.full(2 * bins, _SHAPE), ridge, ridge, np.full(len(some), _EXTRA)])
        curvature += np.diag(penalties)
        return penalty - value, -np.concatenate([g_rates.ravel(), g_beta.ravel(), g_delta]), curvature

    rates = np.stack([np.log((part + 0.1) / (exposed + 0.2)) for part in ends])
    beta, delta = np.zeros((2, width)), np.zeros(len(some))
    if start is not None:
        rates = start["rates"]
        beta[:, : start["beta"].shape[1]] = start["beta"]
        delta[: len(start["delta"])] = start["delta"]
    flat = _least(parts, np.concatenate([rates.ravel(), beta.ravel(), delta]), "a time")
    rates, beta, delta = split(flat)
    whole = np.repeat(beta[:, None, :], count, axis=1)
    if some:
        whole[1, 1, some] += delta
    return rates, whole, {"rates": rates, "beta": beta, "delta": delta}, gradients(flat)[1]
