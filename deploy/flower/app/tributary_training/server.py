"""Run by the SuperLink: the coordinator on the same machine."""

from coordinator.training import runtime

app = runtime.app()
