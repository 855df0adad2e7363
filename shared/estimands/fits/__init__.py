"""Fits of models to columns of numbers: least squares, generalised linear and Cox models, curves of survival."""
