"""Where a normal estimate misleads: few studies, small counts, whole likelihoods."""
