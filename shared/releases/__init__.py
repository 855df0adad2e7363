"""Everything that leaves a site: receipt, bundle and statement, and the synthetic tables made of it."""
