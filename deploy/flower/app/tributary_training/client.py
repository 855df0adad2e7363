"""Run by the SuperNode of a hospital: its own site agent."""

from site_agent.training import runtime

app = runtime.app()
