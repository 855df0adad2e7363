"""Who is let in by a browser or a notebook: sessions, and sign-in by a hospital's own provider."""
