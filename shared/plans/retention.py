"""Retention of a study's releases after its end: fixed by the plan, and approved by its sites with it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from shared.errors import PlanRefusal

__all__ = ["Retention"]

MOST = 500
"""Most characters of `Retention.keep`, and of `Retention.readers`."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Until when releases are kept, for what, and who may read them.

    Args:
        until: last day; after it the coordinator deletes bundles and answers. Log and receipts stay.
        keep: what is kept, and for what.
        readers: who may read it until then.
    Raises: PlanRefusal, at construction.

    >>> Retention(until=dt.date(2031, 12, 31), keep="Releases, for checks.", readers="The study group.").readers
    'The study group.'
    """

    until: dt.date
    keep: str
    readers: str

    def __post_init__(self) -> None:
        if not isinstance(self.until, dt.date):
            raise PlanRefusal("retention.until must be a date", given=type(self.until).__name__)
        for name in ("keep", "readers"):
            text = getattr(self, name)
            if not (isinstance(text, str) and text.strip() and len(text) <= MOST):
                raise PlanRefusal(
                    f"retention.{name} must say something, in at most {MOST} letters",
                    given="blank text" if not text else "another form",
                    next_step=f'Add {name} = "…" under [retention].',
                )
