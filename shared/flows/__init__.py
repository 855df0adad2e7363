"""Bijections between latents and encoded records, and the public flow that a dictionary gives."""
