"""``python -m coordinator.demo``: the same as ``tributary``."""

from coordinator.demo import main

main()
