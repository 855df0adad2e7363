"""``python -m site_agent.cli`` is ``site-agent``."""

from site_agent.cli import main

main()
