"""Plans of several waves, and sites that grow."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pandas as pd
from conftest import make_table

from shared.plans.plan import Wave
from site_agent.release import sealed_state

ALWAYS = {"opens": dt.date(2000, 1, 1), "closes": dt.date(2999, 1, 1)}


def several(plan, count=4, **other):
    calendar = tuple(Wave(number=k, **ALWAYS) for k in range(1, count + 1))
    return replace(plan, waves=calendar, **other)


def grown(*sizes: int) -> pd.DataFrame:
    return pd.concat([make_table(size, seed) for seed, size in enumerate(sizes, start=1)], ignore_index=True)


def fit_of(site, made) -> sealed_state.SealedFlow:
    return sealed_state.read_fit(site.ledger.folder(made.hold), made.hold)
