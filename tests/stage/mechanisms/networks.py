"""Clusterings held against the labels that a network was made with."""

from __future__ import annotations

from itertools import permutations

import numpy as np


def agreement(labels, truth) -> float:
    """The share of nodes whose label is the true one, under the best matching of names."""
    names, known = np.unique(labels), np.unique(truth)
    most = max(len(names), len(known))
    ways = permutations([*known, *[-1] * (most - len(known))], len(names))
    return max(float(np.mean(np.array(way)[np.searchsorted(names, labels)] == truth)) for way in ways)


def arc_figures(arcs: np.ndarray) -> list[float]:
    """From a dense matrix, by counting."""
    n, count = len(arcs), arcs.sum()
    paths, closed = 0, 0
    for i, j in zip(*arcs.nonzero(), strict=True):
        ends = arcs[j].copy()
        ends[i] = 0
        paths += ends.sum()
        closed += (ends * arcs[i]).sum()
    spread = [arcs.sum(axis=axis).std() / arcs.sum(axis=axis).mean() for axis in (0, 1)]
    return [count / (n * (n - 1)), (arcs * arcs.T).sum() / count, *spread, closed / paths]
