"""Noisy moments of outcome and covariates, and the cohort that they describe."""
