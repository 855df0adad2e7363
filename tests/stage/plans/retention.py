"""A plan that says until when releases are kept."""

from __future__ import annotations

import dataclasses
import datetime as dt

from stage.hospital_side.recovery import PLAN

from shared.plans.retention import Retention

LAST = PLAN.expires
KEPT = Retention(until=LAST, keep="Releases and answers.", readers="The study group.")
ENDS = dataclasses.replace(PLAN, retention=KEPT)
AFTER, TODAY = LAST + dt.timedelta(days=1), dt.date(2026, 5, 1)
