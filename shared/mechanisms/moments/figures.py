"""The lines of a released moments table, in order: block and words of every figure."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

from shared.mechanisms.moments.factors import in_words
from shared.mechanisms.moments.noise import Design
from shared.plans.dictionary import NUMERIC, Column

__all__ = ["BLOCKS", "names_of"]

BLOCKS = ("histogram", "moment", "product", "score")
_FEATURES = {
    "survival": ("event", "hazard lived through"),
    "binary": ("yes",),
    "count": ("count",),
    "linear": ("value",),
}


@lru_cache(maxsize=16)
def names_of(design: Design) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Block and words of every figure, in order."""
    spec = design.spec
    shown = [in_words(name, design.factors) for name in spec.covariates]
    words: list[list[str]] = [[], [], [], [in_words(name, design.factors) for name in spec.declared]]
    for name, column, edges in zip(shown, design.covariates, design.edges, strict=True):
        words[0] += _cells(name, column, edges)
    cells = _cells(design.response.name, design.response, design.outcome_edges)
    if spec.outcome == "survival":
        died = design.dictionary.column(spec.responses[1])
        # The histogram's first row is of those with the event.
        cells = [f"{cell}, {died.name} = {died.levels[level]}" for level in (1, 0) for cell in cells]
    words[0] += cells
    rows = (*_FEATURES[spec.outcome], "everybody")
    words[1] = [f"{row} × {name}" for row in rows for name in ("everybody", *shown)]
    words[2] = [f"{name} squared" for name in shown]
    words[2] += [f"{one} × {other}" for one, other in itertools.combinations(shown, 2)]
    blocks = [block for block, names in zip(BLOCKS, words, strict=True) for _ in names]
    return tuple(blocks), tuple(itertools.chain(*words))


def _cells(name: str, column: Column, edges: Any) -> list[str]:
    if column.kind not in NUMERIC:
        return [f"{name} = {level}" for level in column.levels]
    if column.kind == "integer" and edges[1] - edges[0] == 1 and edges[0] % 1 == 0.5:
        return [f"{name} {low + 0.5:g}" for low in edges[:-1]]
    return [f"{name} {low:.6g} to {high:.6g}" for low, high in itertools.pairwise(edges)]
