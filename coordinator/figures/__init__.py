"""Figures: forest plots and their companions, curves over time, and the canvas they are drawn on."""
