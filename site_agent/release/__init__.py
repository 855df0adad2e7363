"""From an approved plan and a table to sealed bytes: drawing, checks, attacks, the outbox, what later waves need."""
