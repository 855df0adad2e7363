"""Meta-analysis: fixed and random effects, heterogeneity, moderators, diagnostics, and the variance of a release."""

from typing import Literal, get_args

__all__ = ["METHODS", "Method"]

Method = Literal["FE", "DL", "HE", "HS", "HSk", "SJ", "ML", "REML", "EB", "PM", "PMM"]
"""Common effect, or an estimator of tau2: `coordinator.pooling.heterogeneity` has them, and commands name them."""
METHODS: tuple[str, ...] = get_args(Method)
