"""Generators: what a noisy release says about a site, as a model that can be drawn from. Free of budget."""
