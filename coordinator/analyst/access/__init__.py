"""Access of an analyst: the token file, sign-in without one, and verification of the coordinator's log."""
