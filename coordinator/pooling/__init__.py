"""Meta-analysis: fixed and random effects, heterogeneity, moderators, diagnostics, and the variance of a release."""

from typing import Literal, get_args

__all__ = ["METHODS", "TESTS", "Method", "Test"]

Method = Literal["FE", "DL", "HE", "HS", "HSk", "SJ", "ML", "REML", "EB", "PM", "PMM"]
"""Common effect, or an estimator of tau2: `coordinator.pooling.heterogeneity` has them, and commands name them."""
METHODS: tuple[str, ...] = get_args(Method)
Test = Literal["z", "t", "knha", "adhoc"]
"""Test on which the interval of a pooled result is based: see `coordinator.pooling.pool`."""
TESTS: tuple[str, ...] = get_args(Test)
