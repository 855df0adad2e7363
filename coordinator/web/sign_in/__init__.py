"""Sign-in by a browser or a notebook: sessions, and identity by a hospital's own provider."""
