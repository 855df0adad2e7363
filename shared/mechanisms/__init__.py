"""Pure release mechanisms: (records, parameters, rng) -> a new object, with the privacy event known beforehand."""
