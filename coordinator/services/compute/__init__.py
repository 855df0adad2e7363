"""Where answers are computed: worker processes under limits, fair between owners, here or on other machines."""
