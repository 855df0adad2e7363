"""Noisy one- and two-way tables, and answers from them."""
