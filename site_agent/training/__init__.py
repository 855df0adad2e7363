"""The site's part in training one flow with others."""
