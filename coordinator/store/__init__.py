"""The coordinator's store: plans, sites, anchors, releases, results, and the transparency log."""
