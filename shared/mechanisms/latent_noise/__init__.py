"""Latent Noise Injection."""
