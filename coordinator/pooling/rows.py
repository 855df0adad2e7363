"""Preparation of every pooling: the usable rows, the excluded ones with a reason, and the checks of its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordinator.pooling.heterogeneity import Method, Test
from shared.errors import EstimateRefusal, ParameterError, meant

__all__ = [
    "LARGEST_ESTIMATE",
    "LARGEST_VARIANCE",
    "SMALLEST_VARIANCE",
    "UNLIKE",
    "Excluded",
    "Interval",
    "by_reason",
    "check",
    "check_level",
    "nothing_left",
    "ordinary",
    "reason_out",
    "require_known",
    "unlike",
    "usable",
]

Array = NDArray[np.float64]
# Outside this range squares and inverses of the weights would overflow; no effect measure lives there.
LARGEST_ESTIMATE, SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e50, 1e-100, 1e100
# Rows so unlike in size cannot be held in one sum: the median standard error tells which of them are the odd ones.
_FARTHEST, _MOST_UNLIKE = 1e12, 1e8
_ROUNDING = 8 * float(np.finfo(float).eps)
UNLIKE = "its scale is beyond any that the other sites have: check its unit"
_LEAST_LEVEL = 0.5


@dataclass(frozen=True)
class Interval:
    """A confidence or prediction interval; when it is empty or undefined both ends are None and `reason` says why.

    >>> Interval(0.1, 0.4).empty, Interval(None, None, "needs two sites").empty
    (False, True)
    """

    lb: float | None
    ub: float | None
    reason: str = ""

    @property
    def empty(self) -> bool:
        """True if there is no interval to show."""
        return self.lb is None or self.ub is None

    def map(self, function: Callable[[float], float]) -> Interval:
        """Both ends through an increasing function; an empty interval stays empty."""
        if self.lb is None or self.ub is None:
            return self
        return Interval(function(self.lb), function(self.ub), self.reason)


@dataclass(frozen=True)
class Excluded:
    """A row that was not pooled, and why."""

    label: str
    reason: str


def check(method: str, test: str, level: float) -> None:
    """Refuse an unknown method or test, or a level outside [0.5, 1), with a ParameterError."""
    require_known(method, get_args(Method), "method")
    require_known(test, get_args(Test), "test")
    check_level(level)


def require_known(given: str, known: Collection[str], what: str) -> None:
    """Refuse a name that is none of these, with the nearest of them. Raises: ParameterError."""
    if given not in known:
        must = f"{what} must be one of {', '.join(known)}"
        raise ParameterError(must, given=repr(given), next_step=meant(given, known))


def check_level(level: float) -> None:
    """Refuse a coverage outside [0.5, 1) with a ParameterError."""
    if not 0 < level < 1:
        raise ParameterError("level must be in (0, 1)", given=f"{level}", next_step="A 95 % interval is 0.95.")
    if level < _LEAST_LEVEL:  # far below, an interval has no width that a number could show
        raise ParameterError(
            f"level must be at least {_LEAST_LEVEL}", given=f"{level}", next_step="A 95 % interval is 0.95."
        )


def usable(
    yi: ArrayLike | Sequence[float | None], vi: ArrayLike | Sequence[float | None], labels: Sequence[str] | None
) -> tuple[list[int], list[str], Array, Array, tuple[Excluded, ...]]:
    """Positions of the rows that can be pooled, all names, estimates and variances, and the others with reasons.

    Raises: ParameterError: lengths that differ, or no numbers; EstimateRefusal: no row can be used.
    """
    estimates, variances = _vector(yi, "yi"), _vector(vi, "vi")
    if len(estimates) != len(variances):
        raise ParameterError("yi and vi must have the same length", given=f"{len(estimates)} and {len(variances)}")
    names = [f"study {i + 1}" for i in range(len(estimates))] if labels is None else [str(name) for name in labels]
    if len(names) != len(estimates):
        raise ParameterError("labels must name every row", given=f"{len(names)} labels for {len(estimates)} rows")
    reasons = [reason_out(y, v) for y, v in zip(estimates, variances, strict=True)]
    sound = np.array([not reason for reason in reasons], dtype=bool)
    if sound.sum() > 1:
        odd = unlike(estimates[None], variances[None], sound[None])[0]
        reasons = [UNLIKE if apart else reason for apart, reason in zip(odd, reasons, strict=True)]
    keep = [i for i, reason in enumerate(reasons) if not reason]
    excluded = tuple(Excluded(names[i], reason) for i, reason in enumerate(reasons) if reason)
    if not keep:
        raise nothing_left(excluded)
    return keep, names, estimates, variances, excluded


def reason_out(y: float | None, v: float | None) -> str:
    """Reason why a row cannot be pooled; empty when it can."""
    if y is None or math.isnan(y):
        return "the estimate is missing"
    if math.isinf(y):
        return "no finite estimate at this site"
    if v is None or math.isnan(v) or math.isinf(v):
        return "the variance is missing or infinite"
    if v <= 0:
        return "the variance is negative" if v < 0 else "the variance is zero"
    if abs(y) > LARGEST_ESTIMATE or not SMALLEST_VARIANCE <= v <= LARGEST_VARIANCE:
        return "the estimate or its variance is beyond any effect measure"
    if math.sqrt(v) <= _ROUNDING * abs(y):
        return "the standard error is below the rounding error of the estimate"
    return ""


def ordinary(y: Array, v: Array) -> bool:
    """True if the extremes of y and v show that every row of many tables (B, K) is usable; sufficient, not necessary.

    >>> ordinary(np.ones((1, 2)), np.ones((1, 2))), ordinary(np.ones((1, 2)), np.array([[np.nan, 1]]))
    (True, False)
    """
    if not y.size:
        return False
    # A missing value makes a figure NaN, and every comparison with it is false.
    reach, least, most = float(max(y.max(), -y.min())), float(v.min()), float(v.max())
    known = reach <= LARGEST_ESTIMATE and least >= SMALLEST_VARIANCE and most <= LARGEST_VARIANCE
    if not known:
        return False
    small, large = math.sqrt(least), math.sqrt(most)
    alike = large <= _MOST_UNLIKE * small and reach <= _FARTHEST / 2 * small
    return alike and small > _ROUNDING * reach


def unlike(y: Array, v: Array, good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(B, K) which of the `good` rows are of another order of magnitude than the median of theirs.

    Of two rows the smaller one is the median: what a site reports in another unit by mistake is rarely too small.
    """
    out = np.zeros(good.shape, dtype=bool)
    size = np.sqrt(np.where(good, v, np.nan))
    place = np.where(good, y, np.nan)
    with np.errstate(invalid="ignore"):
        top, bottom = np.where(good, size, 0.0).max(-1, initial=0), np.where(good, size, np.inf).min(-1, initial=np.inf)
        reach = np.where(good, np.abs(y), 0.0).max(-1, initial=0)
        checked = np.flatnonzero(
            (good.sum(-1) > 1) & ((top > _MOST_UNLIKE * bottom) | (reach > _FARTHEST / 2 * bottom))
        )
        if not len(checked):
            return out
        middle = (good[checked].sum(-1) - 1) // 2
        each = np.arange(len(checked))
        usual = np.sort(size[checked], axis=-1)[each, middle][:, None]
        centre = np.sort(place[checked], axis=-1)[each, middle][:, None]
        off = (size[checked] > _MOST_UNLIKE * usual) | (size[checked] * _MOST_UNLIKE < usual)
        off |= np.abs(place[checked] - centre) > _FARTHEST * usual
    out[checked] = off & good[checked]
    return out


def by_reason(reasons: Mapping[str, str]) -> str:
    """Labels and why each is left out, those of one reason together.

    >>> by_reason({"north": "no rows", "south": "separates", "east": "no rows"})
    'north, east: no rows; south: separates'
    """
    together: dict[str, list[str]] = {}
    for label, reason in reasons.items():
        together.setdefault(reason, []).append(label)
    return "; ".join(f"{', '.join(labels)}: {reason}" for reason, labels in together.items())


def nothing_left(excluded: tuple[Excluded, ...]) -> EstimateRefusal:
    """The refusal where no row can be used, with the reason of each."""
    listed = by_reason({row.label: row.reason for row in excluded}) or "no rows"
    return EstimateRefusal(
        "at least one site must have a usable estimate",
        given=listed,
        next_step="By each site's reason: ask another question, or wait for more releases.",
    )


def _vector(values: ArrayLike | Sequence[float | None], name: str) -> Array:
    try:
        vector = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ParameterError(f"{name} must hold numbers", given="something else") from None
    if vector.ndim != 1:
        raise ParameterError(f"{name} must have one dimension", given=f"shape {vector.shape}")
    return vector
