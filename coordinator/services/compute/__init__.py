"""Computation of answers: worker processes under limits, fair between owners, here or on other machines."""
