"""Alembic's revisions, one a file."""
