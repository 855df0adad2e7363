"""Bins of a numeric outcome: between quantiles, with heaps (values that many records share) in cells of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from site_agent.models.outcome_laws.terms import Array

__all__ = ["HEAPED", "bin_edges", "counted_edges", "heaps_of", "most_bins"]

_HEAP, HEAPED = 0.04, 0.05
"""Least share of records on one value for it to be a heap; and of all heaps for them to have cells of their own."""


def heaps_of(value: Array) -> list[tuple[float, float, float]]:
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


def bin_edges(value: Array, bins: int, heaps: Sequence[tuple[float, float, float]]) -> Array:
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


def most_bins(n: int) -> int:
    """Bins for n records: forty in each, and from 5 to 24."""
    return int(np.clip(n // 40, 5, 24))


def counted_edges(value: Array, bins: int) -> Array:
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
