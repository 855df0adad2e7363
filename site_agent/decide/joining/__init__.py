"""Becoming a site of a coordinator, and staying one: the first run, the request to join, the next certificates."""
