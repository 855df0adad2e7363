"""What sites say of their clocks, and a judgement of them."""

from __future__ import annotations

import datetime as dt

from coordinator.services.clocks import SiteClock, judge

NOW = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def seen(site: str, offset: float, days: int = 0) -> SiteClock:
    return SiteClock(site=site, offset=offset, day=NOW.date() - days * DAY)


def judged(*readings: SiteClock, now=NOW, vouched=NOW - 400 * DAY, word=None):
    valid = NOW - 400 * DAY, NOW + 3000 * DAY
    return judge(now, readings, vouched=vouched.date(), word=word and word.date(), valid=valid)
