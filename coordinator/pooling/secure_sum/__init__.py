"""The pooled answer of a secure sum: where it looks from, its weights, and what is read from it once it is opened."""
