"""Run by the SuperLink: the coordinator on the same machine."""

from coordinator import runtime

app = runtime.app()
