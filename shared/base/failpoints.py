"""Places at which a test may kill the process.

Every step that writes, renames or sends names itself with `reach`. In production this is a dictionary look-up; when
``TRIBUTARY_FAILPOINT`` names the place (``seal.before_rename``, or ``upload.chunk:3`` for the third time it is
reached), the process kills itself with SIGKILL: no handler runs, nothing is flushed, as in a power cut.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

__all__ = ["reach"]

_seen: Counter[str] = Counter()


def reach(name: str) -> None:
    """Say that the step `name` is reached; die here if a test asked for it."""
    wanted = os.environ.get("TRIBUTARY_FAILPOINT")
    if not wanted:
        return
    place, _, count = wanted.partition(":")
    if place == name:
        _seen[name] += 1
        if _seen[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
