"""Meta-analysis: fixed and random effects, heterogeneity, moderators, diagnostics, and the variance of a release."""
