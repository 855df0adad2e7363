"""Attacks we tried on a release, at the site, before anyone is asked to approve it."""
