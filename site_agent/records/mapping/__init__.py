"""Mapping of a hospital's own columns and values to those of the dictionary, without code."""
