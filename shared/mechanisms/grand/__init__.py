"""GRAND: node-private networks."""
