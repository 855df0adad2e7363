"""Extracts from standard data models, as ordinary sources of a table."""
