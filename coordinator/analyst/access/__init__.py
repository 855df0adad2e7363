"""How an analyst is let in: the token's file, a sign-in without one, and the coordinator's log as it was seen."""
