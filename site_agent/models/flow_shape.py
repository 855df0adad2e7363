"""Parts of a flow that are fitted before the layers: margins, levels and strata of the columns, and whitening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shared.errors import TrainingRefusal
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.chain import Composed
from shared.flows.levels import LevelModel, Levels
from shared.flows.margins import Margins
from shared.flows.strata import Strata, StratumModel
from shared.plans.outcomes import PlannedOutcomes
from site_agent.models.flow_settings import FlowSettings

__all__ = ["level_model", "log_det_of", "shape_given", "shape_of", "whitening"]

Array = NDArray[np.float64]
Records = NDArray[np.floating[Any]]
_STRATUM = 30
"""Fewest records of a level that get a margin of their own."""
_APART = 0.25
"""Least Kolmogorov distance between a column within a level and outside it for the level to become a stratum."""
_NEWTON = 600
"""Most coefficients for which the matrix of second derivatives is formed."""
_AT_ONCE = 8192
_FEW = 25_000
"""Records that say where, of twice as many or more, the fit of a level's law begins."""


def whitening(y: Array) -> AffineAutoregressiveFlow:
    """The Gaussian of maximum likelihood, by Cholesky, with a ridge that only guards the arithmetic."""
    mean = y.mean(axis=0)
    spread = y.std(axis=0)
    covariance = np.atleast_2d(np.cov(y, rowvar=False, ddof=0))
    with np.errstate(all="ignore"):
        correlation = covariance / np.outer(spread, spread)
    if not np.isfinite(correlation).all() or np.linalg.eigvalsh(correlation)[0] < 1e-8:
        raise TrainingRefusal(
            "no column may be a function of the others",
            given="a singular covariance",
            next_step="Ask the study lead to drop a column that repeats another (a sum, a unit conversion, a copy).",
        )
    scale = np.linalg.cholesky(covariance + 1e-10 * np.diag(spread**2))
    return AffineAutoregressiveFlow(mean=mean, scale=np.tril(scale))


def log_det_of(part: Any, x: Array) -> Array:
    """log |det| of the inverse of one part at each record (n,)."""
    return np.asarray(part.inverse_with_log_det(x)[1])


def shape_of(
    x: Array,
    settings: FlowSettings,
    integers: tuple[int, ...],
    carried: int | None = None,
    outcomes: PlannedOutcomes | None = None,
) -> Composed:
    """Everything between the smooth space of the flow and the encoded records: levels, strata, margins.

    Outcomes that are drawn last are left as they are, and nothing reads them.

    Args:
        x: (n, d) encoded records.
        settings: how margins are made, and up to how many levels a column is modelled.
        integers: the dequantised columns: a whole number plus a uniform in [0, 1).
        carried: one of them that stays as it is, all others given it; None for none.
        outcomes: columns that are drawn last; None for none.
    """
    d = x.shape[1]
    apart = () if outcomes is None else outcomes.drawn
    integers = tuple(j for j in integers if j not in apart)
    if carried is not None:
        return shape_given(x, settings, integers, carried)
    if settings.margins == "none":
        return Composed(first=Levels(d=d, models=()), second=Margins(knots=(None,) * d))
    counts = {j: max(1, int(np.floor(x[:, j].max())) + 1) for j in integers}
    modelled = [j for j in integers if counts[j] <= settings.modelled_levels]
    stratified = _stratified(x, modelled, {j: counts[j] for j in modelled}, (*integers, *apart))
    knots: list[tuple[Array, Array] | None] = []
    for j in range(d):
        if j in modelled or j in stratified or j in apart:
            knots.append(None)
        elif j in counts:
            knots.append(_level_knots(x[:, j], counts[j]))
        else:
            knots.append(_score_knots(x[:, j]))
    margins = Margins(knots=tuple(knots))
    y = margins.inverse(x)
    smooth = [j for j in range(d) if j not in modelled and j not in stratified and j not in apart]
    models: list[LevelModel] = []
    # Rarest last: an event is drawn given everything else.
    for j in sorted(modelled, key=lambda j: (-_entropy(y[:, j]), j)):
        given = (*smooth, *(model.column for model in models))
        read = tuple(counts[c] if c in modelled else 0 for c in given)
        models.append(level_model(y, j, counts[j], given, read))
    strata = [_stratum_model(y, j, level, counts[level], tuple(smooth)) for j, level in stratified.items()]
    return Composed(
        first=Levels(d=d, models=tuple(models)),
        second=Composed(first=Strata(d=d, models=tuple(strata)), second=margins),
    )


def shape_given(x: Array, settings: FlowSettings, integers: tuple[int, ...], carried: int) -> Composed:
    """The same, of all columns given one that stays as it is: strata of it first, then levels given it and the rest."""
    d = x.shape[1]
    counts = {j: max(1, int(np.floor(x[:, j].max())) + 1) for j in integers}
    modelled = [j for j in integers if counts[j] <= settings.modelled_levels and j != carried]
    smooth = [j for j in range(d) if j not in modelled and j != carried]
    # A column of many levels has its staircase taken away first; what is left is smooth, and another in each stratum.
    knots = tuple(_level_knots(x[:, j], counts[j]) if j in smooth and j in counts else None for j in range(d))
    margins = Margins(knots=knots)
    y = margins.inverse(x)
    strata = Strata(d=d, models=tuple(_stratum_model(y, j, carried, counts[carried], ()) for j in smooth))
    y = strata.inverse(y)
    models: list[LevelModel] = []
    for j in sorted(modelled, key=lambda j: (-_entropy(y[:, j]), j)):
        given = (*smooth, carried, *(model.column for model in models))
        read = tuple(counts[c] if c in (carried, *modelled) else 0 for c in given)
        models.append(level_model(y, j, counts[j], given, read))
    return Composed(first=Levels(d=d, models=tuple(models)), second=Composed(first=strata, second=margins))


def _stratified(x: Array, modelled: Sequence[int], counts: dict[int, int], integers: tuple[int, ...]) -> dict[int, int]:
    """Smooth column -> the levelled column that changes its law most, where one does: a time by its event."""
    out = {}
    for j in set(range(x.shape[1])) - set(integers):
        order = np.argsort(x[:, j], kind="stable") if modelled else ()
        far = {level: _apart(np.floor(x[order, level]), counts[level]) for level in modelled}
        if far and max(far.values()) > _APART:
            out[j] = max(far, key=lambda level: (far[level], -level))
    return dict(sorted(out.items()))


def _apart(level: Array, count: int) -> float:
    """Largest Kolmogorov distance of a column between one level and all others, from its records in their order."""
    most = 0.0
    for k in range(count):
        inside = level == k
        size = int(inside.sum())
        if min(size, inside.size - size) >= _STRATUM:
            distance = np.abs(np.cumsum(inside) / size - np.cumsum(~inside) / (inside.size - size)).max()
            most = max(most, float(distance))
    return most


def _stratum_model(y: Array, column: int, level_column: int, levels: int, given: tuple[int, ...]) -> StratumModel:
    """A margin per level and, where a level has records enough, a ridge regression of its score."""
    stratum = np.clip(np.floor(y[:, level_column]), 0, levels - 1).astype(np.int64)
    features = np.column_stack([np.ones(len(y)), y[:, list(given)]])
    knots: list[tuple[Array, Array]] = []
    coefficients, spread = np.zeros((levels, features.shape[1])), np.ones(levels)
    for k in range(levels):
        rows = stratum == k
        enough = int(rows.sum()) >= _STRATUM and np.unique(y[rows, column]).size >= 8
        knots.append(_score_knots(y[rows, column] if enough else y[:, column]))
        if enough:
            score = Margins(knots=(knots[-1],)).inverse(y[rows, column][:, None])[:, 0]
            gram = features[rows].T @ features[rows] + np.diag([0.0, *(4.0,) * len(given)])
            coefficients[k] = np.linalg.solve(gram, features[rows].T @ score)
            spread[k] = max(0.05, float((score - features[rows] @ coefficients[k]).std()))
        elif not given:
            # A stratum too small for a law of its own has the law of all, moved by as much as its records can say.
            score = Margins(knots=(knots[-1],)).inverse(y[rows, column][:, None])[:, 0]
            coefficients[k, 0] = score.sum() / (len(score) + _STRATUM)
    return StratumModel(
        column=column,
        level_column=level_column,
        given=given,
        knots=tuple(knots),
        coefficients=coefficients,
        spread=spread,
    )


def _entropy(column: Array) -> float:
    share = np.unique(np.floor(column), return_counts=True)[1] / len(column)
    return round(float(-(share * np.log(share)).sum()), 12)


def _score_knots(column: Array) -> tuple[Array, Array]:
    """Normal scores of a smooth column at about n/20 of its values, 128 at most: more would copy records."""
    value, count = np.unique(column, return_counts=True)
    n = len(column)
    middle = (np.cumsum(count) - 0.5 * count) / n
    most = int(np.clip(n // 20, 8, 128))
    grid = special.ndtr(np.linspace(special.ndtri(middle[0]), special.ndtri(middle[-1]), most))
    even = np.linspace(middle[0], middle[-1], most)
    # Half the knots even in probability (the bulk), half even in score (the tails).
    pick = np.unique(np.searchsorted(middle, np.concatenate([grid[::2], even[::2]])).clip(0, value.size - 1))
    pick = np.unique(np.concatenate([[0], pick, [value.size - 1]]))
    scores, values = special.ndtri(middle[pick]), value[pick]
    # The tails go on with the slope of the whole half, not of the last two values: those may nearly be equal, and a
    # later record just outside would get a latent of thousands.
    centre = int(np.searchsorted(middle, 0.5).clip(1, value.size - 2)) if value.size > 2 else 0
    half, middle_score = value[centre], special.ndtri(middle[centre])
    reach = value[-1] - value[0]
    for end, sign in ((0, -1.0), (-1, 1.0)):
        slope = abs(scores[end] - middle_score) / max(abs(values[end] - half), 1e-3 * reach) or 1 / reach
        outer = (scores[end] + sign * slope * reach, values[end] + sign * reach)
        scores = np.concatenate([[outer[0]], scores] if sign < 0 else [scores, [outer[0]]])
        values = np.concatenate([[outer[1]], values] if sign < 0 else [values, [outer[1]]])
    keep = np.concatenate([[True], (np.diff(scores) > 1e-9) & (np.diff(values) > 0)])
    return scores[keep], values[keep]


def _level_knots(column: Array, count: int) -> tuple[Array, Array]:
    """Knots at every integer, so that each level keeps its frequency, and between them where the score curves."""
    level = np.clip(np.floor(column), 0, count - 1).astype(np.int64)
    mass = np.bincount(level, minlength=count) + 1e-6 * len(column) / count
    share = np.concatenate([[0.0], np.cumsum(mass) / mass.sum()])
    between = special.ndtr(np.linspace(-4.5, 4.5, 73))
    at = np.unique(np.concatenate([share[1:-1], between]))
    at = at[(at > 0) & (at < 1)]
    values = np.concatenate([[0.0], np.interp(at, share, np.arange(count + 1.0)), [float(count)]])
    # Beyond score ±8 there is nothing: every draw falls inside the levels.
    scores = np.concatenate([[-8.0], special.ndtri(at), [8.0]])
    keep = np.concatenate([[True], (np.diff(scores) > 1e-9) & (np.diff(values) > 1e-12)])
    keep[-1] = True
    # A level that these records lack goes on along a line of slope 1, not along the last, nearly vertical piece.
    scores = np.concatenate([[-9.0], scores[keep], [9.0]])
    return scores, np.concatenate([[-1.0], values[keep], [count + 1.0]])


def level_model(y: Array, column: int, levels: int, given: tuple[int, ...], counts: tuple[int, ...]) -> LevelModel:
    """Multinomial logistic regression with a small ridge: by Newton's steps, or by L-BFGS where those would be large.

    Lines are hardly penalised, so that the fitted law reproduces the sample's associations; hinges are, so that they
    bend only where records ask for it. Hinges are nearly collinear: L-BFGS needs hundreds of passes for what Newton
    does in ten.

    Args:
        y: (n, d) records with the smooth columns as the flow sees them.
        column: the column that is modelled; its level is the whole part.
        levels: how many it has.
        given: the columns that it reads.
        counts: of each of those its number of levels, 0 for a smooth one.
    Raises: TrainingRefusal: no finite coefficients.
    """
    if levels == 1:
        return LevelModel(column=column, given=(), counts=(), coefficients=np.zeros((1, 1)))
    n = len(y)
    features = LevelModel.features(y, given, counts)
    level = np.clip(np.floor(y[:, column]), 0, levels - 1).astype(np.int64)
    target = np.zeros((n, levels))
    target[np.arange(n), level] = 1.0
    penalty = [1e-3]
    for count in counts:
        penalty += [0.5] * (count - 1) if count else [0.1, *(1.0,) * len(LevelModel.HINGES)]
    ridge = np.array(penalty)[:, None] / n

    def loss(flat: Array) -> tuple[float, Array]:
        beta = flat.reshape(features.shape[1], levels)
        value, share = _shares(features, target, ridge, beta)
        return value, (features.T @ (share - target) / n + ridge * beta).ravel()

    first = np.zeros((features.shape[1], levels))
    first[0] = np.log((target.sum(axis=0) + 0.5) / (n + 0.5 * levels))
    if first.size <= _NEWTON:
        if n >= 2 * _FEW:  # a part of the records goes most of the way
            few = slice(None, None, n // _FEW)
            near = _newton(features[few], target[few], ridge, first)
            first = min(first, near, key=lambda beta: _shares(features, target, ridge, beta)[0])
        coefficients = _newton(features, target, ridge, first)
    else:
        from scipy import optimize

        found = optimize.minimize(
            loss, first.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-12, "gtol": 1e-7}
        )
        coefficients = found.x.reshape(first.shape)
    if not np.isfinite(coefficients).all():
        raise TrainingRefusal(
            "the law of a levelled column must have an estimate",
            given=f"none in column {column}",
            next_step="Ask the study lead to merge rare levels.",
        )
    return LevelModel(column=column, given=given, counts=counts, coefficients=coefficients)


def _shares(features: Array, target: Array, ridge: Array, beta: Array) -> tuple[float, Array]:
    """(penalised mean negative log-likelihood, shares of the levels)."""
    logits = features @ beta
    logits -= logits.max(axis=1, keepdims=True)
    odds = np.exp(logits)
    total = odds.sum(axis=1)
    value = (np.log(total) - (logits * target).sum(axis=1)).mean() + 0.5 * (ridge * beta**2).sum()
    return float(value), odds / total[:, None]


def _curvature(features: Array, share: Array) -> Array:
    """(levels, width, levels, width): second derivatives of the mean negative log-likelihood.

    The shares of a record add up to 1, so that the rows of its weights add up to 0: one product in two is enough.
    """
    n, levels = share.shape
    out = np.zeros((levels, features.shape[1], levels, features.shape[1]))
    for start in range(0, n, _AT_ONCE):
        part, of = features[start : start + _AT_ONCE], share[start : start + _AT_ONCE]
        for k in range(levels):
            for j in range(k):
                weighed = part * np.sqrt(of[:, k] * of[:, j] / n)[:, None]
                product = weighed.T @ weighed
                out[k, :, k, :] += product
                out[j, :, j, :] += product
                out[k, :, j, :] -= product
    for k in range(levels):
        for j in range(k):
            out[j, :, k, :] = out[k, :, j, :]
    return out


def _newton(features: Array, target: Array, ridge: Array, beta: Array) -> Array:
    """The minimum of a strictly convex loss, by damped Newton steps from `beta`."""
    n, levels = target.shape
    width = features.shape[1]
    value, share = _shares(features, target, ridge, beta)
    for _ in range(100):
        gradient = features.T @ (share - target) / n + ridge * beta
        curvature = _curvature(features, share)
        for k in range(levels):
            curvature[k, :, k, :] += np.diag(ridge[:, 0])
        step = np.linalg.solve(curvature.reshape(levels * width, -1), gradient.T.ravel()).reshape(levels, width).T
        fall = float((gradient * step).sum())
        if not fall > 1e-14:
            break
        size = 1.0
        while size > 1e-6:
            now, other = _shares(features, target, ridge, beta - size * step)
            if now <= value - 1e-4 * size * fall:
                break
            size /= 2
        else:
            break
        beta, value, share = beta - size * step, now, other
    return beta
