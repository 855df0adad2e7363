"""What everything else stands on: canonical JSON, hash chains, Merkle trees, keys, randomness, failpoints."""
