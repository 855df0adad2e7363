"""Further analyses: subgroups and diagnostics of a result, few studies, counts, whole likelihoods, looks by wave."""
