"""What the coordinator keeps: plans, sites, anchors, releases, results, and the transparency log."""
