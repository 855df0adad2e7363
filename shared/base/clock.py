"""The one place where our programs ask what time it is."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from shared.errors import UsageRefusal

__all__ = ["CLOCK_VARIABLE", "utc_now"]

CLOCK_VARIABLE = "TRIBUTARY_CLOCK"
"""Names a file of seconds that both sides' programs add to the machine's clock: for rehearsals of years. Who can set it
can set the clock; `doctor` says so on either side."""


def utc_now() -> dt.datetime:
    """Current time of this machine, in UTC, shifted by the seconds in the file that `CLOCK_VARIABLE` names, if any.

    Raises: UsageRefusal (it names no such file).
    """
    now, shifted = dt.datetime.now(dt.UTC), os.environ.get(CLOCK_VARIABLE)
    if not shifted:
        return now
    try:
        return now + dt.timedelta(seconds=float(Path(shifted).read_text()))
    except (OSError, ValueError, OverflowError):
        raise UsageRefusal(f"{CLOCK_VARIABLE} must name a file of seconds", given="another") from None
