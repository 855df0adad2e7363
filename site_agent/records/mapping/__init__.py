"""How a hospital's own columns and values become those of the dictionary, without code."""
