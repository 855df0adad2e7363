"""Foundations: canonical JSON, hash chains, Merkle trees, keys, randomness, failpoints."""
