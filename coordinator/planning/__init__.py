"""Plans before they are signed: their review and their faults, what they cost, and which attacks they would meet."""
