"""The slicing mechanism, and fits to its releases."""
