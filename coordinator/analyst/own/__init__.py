"""What an analyst holds in a file, pooled without a server: estimates, counts, likelihoods, several coefficients."""
