"""Models trained on a site's own records; nothing here leaves the site."""
