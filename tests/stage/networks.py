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
