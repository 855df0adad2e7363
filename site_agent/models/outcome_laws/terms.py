"""Terms of the other columns in an outcome's law, selected by the records, and the law's penalised maximum.

Linear terms and indicators are always in a law. Further terms (normal scores, bends, squares, products) enter only
where their score statistic exceeds log n by `CLEAR`, two terms at a time, in at most `ROUNDS` rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shared.errors import TrainingRefusal
from shared.flows.outcomes import OutcomeInputs
from shared.plans.outcomes import PlannedOutcomes

__all__ = [
    "AT_ONCE",
    "CLEAR",
    "EXTRA",
    "LINE",
    "ROUNDS",
    "SHAPE",
    "Array",
    "Codes",
    "Parts",
    "asked_products",
    "chosen_terms",
    "inputs_of",
    "least",
    "ridge_of",
    "widths",
]

Array: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
Parts: TypeAlias = Callable[[Array], tuple[float, Array, Array]]
"""Value, gradient and curvature of what is made least, at a point."""

CLEAR = 2.0
"""By how much a term's statistic must exceed log n: at 1,000 records 8.9, three standard errors."""
AT_ONCE = 50_000
"""Rows by which candidate terms are computed at once."""
ROUNDS = 8
"""Most times that terms are chosen and the law fitted again."""
LINE, EXTRA, SHAPE = 0.05, 1.0, 0.05
"""Ridge on lines and indicators, on chosen terms, and on the baseline; in units of records."""
_BENDS = (-1.0, 0.0, 1.0)


def inputs_of(x: Array, columns: Sequence[int], planned: PlannedOutcomes) -> OutcomeInputs:
    """Inputs of a law from these columns: indicators of levels, linear terms, and the knots of normal scores."""
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
    """Products and curves that a planned question names, in the columns' own units; and of what leaves a record out.

    The others' effects among those who are left out are not theirs among those who are read: without terms of their
    own, a confounder that is missing would be in the effects of all.
    """
    of = _starts(inputs)
    rows = [
        (a, b, 0.0)
        for one, other in planned.products
        if one in of and other in of
        for a in of[one]
        for b in of[other]
        if one != other or a == b
    ]
    for a in (of[column][0] for column in planned.curves if column in of):
        rows += [(a, a, 0.0), *((a, -1, bend) for bend in _BENDS)]
    for gate, other in planned.left_out:
        if gate in of and other in of:
            rows += [(min(of[gate][-1], b), max(of[gate][-1], b), 0.0) for b in of[other]]
    rows = list(dict.fromkeys(rows))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _candidates(inputs: OutcomeInputs) -> Array:
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


def widths(known: Sequence[int], planned: PlannedOutcomes) -> tuple[int, int]:
    """Terms that a law of these columns always has, and most that may be taken in."""
    numbers = sum(j not in planned.levels for j in known)
    pieces = numbers + sum(planned.levels[j] - 1 for j in known if j in planned.levels)
    return pieces, (len(_BENDS) + 2) * numbers + pieces * (pieces - 1) // 2


def chosen_terms(inputs: OutcomeInputs, atoms: Array, channels: Sequence[Array]) -> OutcomeInputs:
    """The same with the terms that the residuals ask for most, by score tests; itself where they ask for none.

    Args:
        channels: residuals (n,) of what the law predicts, each orthogonal to the features.
    """
    extras = _candidates(inputs)
    if not len(extras):
        return inputs
    best = _evidence(inputs, atoms, extras, channels)
    floor = np.log(len(atoms)) + CLEAR
    picked: list[int] = []
    for k in np.argsort(-best):
        if best[k] <= floor or len(picked) == 2:
            break
        like = [abs(np.corrcoef(*inputs.made(atoms, extras[[k, other]]).T)[0, 1]) for other in picked]
        if max(like, default=0.0) < 0.6:
            picked.append(int(k))
    if not picked:
        return inputs
    return replace(inputs, extras=np.vstack([inputs.extras, extras[picked]]))


def _evidence(inputs: OutcomeInputs, atoms: Array, extras: Array, channels: Sequence[Array]) -> Array:
    """The largest score statistic of each term over the channels; 0 where too few records have it.

    Of large tables some rows at a time: there may be hundreds of terms.
    """
    features = np.hstack([np.ones((len(atoms), 1)), atoms[:, : inputs.base], inputs.made(atoms, inputs.extras)])
    parts = [slice(first, first + AT_ONCE) for first in range(0, len(atoms), AT_ONCE)]
    residuals = [residual[:, None] for residual in channels if (residual**2).sum() > 0]

    @lru_cache(maxsize=1)  # a table of one part is made once
    def terms(k: int) -> Array:
        return inputs.made(atoms[parts[k]], extras)

    shape = (len(residuals), features.shape[1])
    grams, crossed = np.zeros((*shape, shape[1])), np.zeros((*shape, len(extras)))
    for k, part in enumerate(parts):
        for c, residual in enumerate(residuals):
            weight = residual[part] ** 2
            grams[c] += features[part].T @ (features[part] * weight)
            crossed[c] += features[part].T @ (terms(k) * weight)
    for c, gram in enumerate(grams):
        crossed[c] = np.linalg.solve(gram + 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram)), crossed[c])
    support, (score, spread, own) = np.zeros(len(extras)), np.zeros((3, len(residuals), len(extras)))
    for k, part in enumerate(parts):
        support += (terms(k) != 0).sum(axis=0)
        for c, residual in enumerate(residuals):
            weight = residual[part] ** 2
            rest = terms(k) - features[part] @ crossed[c]
            score[c] += (rest * residual[part]).sum(axis=0)
            spread[c] += (rest**2 * weight).sum(axis=0)
            own[c] += (terms(k) ** 2 * weight).sum(axis=0)
    # A term that the features already span has nothing left to say, and one that few records have is noise.
    found = np.where(spread > 1e-3 * own, score**2 / np.maximum(spread, 1e-12), 0)
    return np.where(support < 10, 0, found.max(axis=0, initial=0))


def ridge_of(inputs: OutcomeInputs) -> Array:
    """Per feature but the intercept."""
    return np.array([LINE] * inputs.base + [EXTRA] * len(inputs.extras))


def least(parts: Parts, at: Array, what: str) -> Array:
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
