"""One noise for all sites: a sum of which nobody sees a part, by pairwise masks and shares of secrets."""
