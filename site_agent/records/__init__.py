"""The hospital's table: files, databases, contacts."""
