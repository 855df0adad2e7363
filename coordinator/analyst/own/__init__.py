"""Pooling of an analyst's own file without a server: estimates, counts, likelihoods, several coefficients."""
