"""Simple slopes: the effect of one column of an interaction at values of the other (Aiken and West 1991)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator.pooling.multivariate import joint_rows, pool_joint
from shared.errors import EstimateRefusal
from shared.estimands.effects import effect_name, shown
from shared.estimands.formulas import names, parse, right_side
from shared.estimands.questions import MODELS

if TYPE_CHECKING:
    from coordinator.pooling.pool import Pooling
    from shared.estimands.answer import Estimate
    from shared.estimands.questions import Estimand
    from shared.plans.dictionary import Dictionary

__all__ = ["simple_slopes"]

_BETWEEN = re.compile(r":(?![^\[]*\])")
"""Separator of the two columns in an interaction's label: a colon outside the brackets of a level."""
_LEVEL = re.compile(r"\[([^\[\]]*)\]$")
_OTHERS = ("standardised", "schoenfeld", "multinomial")


def simple_slopes(
    estimates: Sequence[Estimate], question: Estimand, dictionary: Dictionary, pooling: Pooling
) -> list[dict[str, Any]]:
    """The effects of each column of an interaction at values of the other, pooled together.

    Of a column with levels at each of them; of another at a quarter, half and three quarters of its public bounds. A
    column that stands in two interactions has none: its effect would hang on a third column.

    Args:
        estimates: of all terms of the question at all sites.
    Returns: entries as of `joint_of_terms`, whose sentence has the slopes off the analysis scale; and ``slopes``: each
        with ``at`` (in words), ``estimate``, ``se``, ``ci_lb`` and ``ci_ub`` on it.
    """
    if question.kind not in MODELS or question.kind in _OTHERS:
        return []
    crossed = [tuple(map(str, right_side(parse(term)).terms[0])) for term in question.terms]
    often = Counter(name for pair in crossed if len(pair) > 1 for name in pair)
    labels = dict.fromkeys(row.term for row in estimates)
    out = []
    for pair in (pair for pair in crossed if len(pair) == 2 and all(often[name] == 1 for name in pair)):
        for of, by in (pair, pair[::-1]):
            if _coded_in_full(labels, of, dictionary):  # a level's effect is then the difference of two coefficients
                continue
            for main in (one for one in labels if _LEVEL.sub("", one) == of):
                beside = _beside(labels, main, by)
                places = _places(beside, by, dictionary)
                if places:
                    mine = [main, *beside]
                    out.append({"term": f"{main} by {by}", "terms": mine})
                    out[-1] |= _pooled(estimates, question, mine, places, pooling)
    return out


def _coded_in_full(labels: Mapping[str, None], of: str, dictionary: Dictionary) -> bool:
    """True if the reference level has a coefficient of its own, alone or in an interaction."""
    column = next((one for one in dictionary.columns if one.name in names(parse(of))), None)
    if column is None or not column.levels:
        return False
    parts = [part for label in labels for part in _BETWEEN.split(label) if _LEVEL.sub("", part) == of]
    return any(found is not None and found[1] == str(column.levels[0]) for found in map(_LEVEL.search, parts))


def _beside(labels: Mapping[str, None], own: str, by: str) -> list[str]:
    """Labels of the interaction of one coefficient with the other column."""
    parted = {label: _BETWEEN.split(label) for label in labels}
    return [
        label
        for label, parts in parted.items()
        if len(parts) == 2 and own in parts and _LEVEL.sub("", parts[1 - parts.index(own)]) == by
    ]


def _places(beside: Sequence[str], by: str, dictionary: Dictionary) -> dict[str, NDArray[np.float64]]:
    """Value of `by` in words, to the slope's contrast of the coefficients there; empty if the coding gives none."""
    column = next((one for one in dictionary.columns if one.name in names(parse(by))), None)
    if not beside or column is None:
        return {}
    found = [_LEVEL.search(part) for label in beside for part in _BETWEEN.split(label) if _LEVEL.sub("", part) == by]
    if all(found):
        levels = [str(one) for one in column.levels]
        named = [one[1] for one in found if one]
        if named != levels[1:]:
            return {}
        each = np.eye(len(levels))[1:]
        return {f"{column.name} = {level}": np.r_[1.0, each[:, k]] for k, level in enumerate(levels)}
    values: list[float] = [one for one in column.levels if isinstance(one, int | float)]
    if not column.levels and column.lower is not None and column.upper is not None:
        values = [column.lower + share * (column.upper - column.lower) for share in (0.25, 0.5, 0.75)]
    return {f"{by} = {at:g}": np.array([1.0, at]) for at in values} if by == column.name else {}


def _pooled(
    estimates: Sequence[Estimate],
    question: Estimand,
    mine: Sequence[str],
    places: Mapping[str, NDArray[np.float64]],
    pooling: Pooling,
) -> dict[str, Any]:
    rows, lost = joint_rows(estimates, mine)
    try:
        found = pool_joint(rows, mine, **pooling.how, excluded=lost)
    except EstimateRefusal as refusal:
        return {"reason": str(refusal)}
    slopes, said = [], []
    for at, contrast in places.items():
        y, se = float(contrast @ found.beta), float(contrast @ found.vcov @ contrast) ** 0.5
        ends = y - found.critical * se, y + found.critical * se
        slopes.append({"at": at, "estimate": y, "se": se, "ci_lb": ends[0], "ci_ub": ends[1]})
        middle, low, high = (f"{shown(one, question.scale):.4g}" for one in (y, *ends))
        said.append(f"at {at} {middle} ({low} to {high})")
    used = [{"label": row.label, "yi": row.yi, "cov": row.cov} for row in rows if row.label in found.labels]
    sentence = f"{effect_name(question).lower()} {'; '.join(said)}. No effect anywhere: {found.sentence}"
    return {**found.data, "reason": "", "sites": used, "slopes": slopes, "sentence": sentence}
