"""``python -m coordinator.cli`` is ``coordinator``."""

from coordinator.cli import main

raise SystemExit(main())
