"""Counts of a network's edges, paths and triangles, capped so that one person moves them by little."""
