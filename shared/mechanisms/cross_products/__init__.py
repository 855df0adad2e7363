"""Noisy sums of squares and products of columns on the plan's own scales: linear models of small hospitals."""
