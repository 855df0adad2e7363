"""From an approved plan and a table to sealed bytes: drawing, checks, attacks, and what stays for later waves."""
