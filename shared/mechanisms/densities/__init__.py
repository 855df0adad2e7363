"""Noisy densities: histograms, smooth functions, quantiles, local reports."""
