"""Membership that lasts: certificates and authorities that follow one another, and what is told before one ends."""
