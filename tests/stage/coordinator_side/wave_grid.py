"""A store with sites that deliver wave by wave, when they are told."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pandas as pd
from stage.coordinator_side.delivered import TODAY, cohort, cohort_plan, deliver, join

from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.estimands.answer import estimate, parse_estimand
from shared.plans.plan import Wave, sign_plan

QUESTION = "cox(time, cvd) ~ sbp/10"
DAY = dt.timedelta(days=1)


def monthly(count: int = 4, quorum: int = 0) -> tuple[Wave, ...]:
    opens = [dt.date(2026, 1, 1) + 30 * k * DAY for k in range(count)]
    return tuple(
        Wave(number=k, opens=day, closes=day + 10 * DAY, quorum=quorum) for k, day in enumerate(opens, start=1)
    )


class Study:
    """A store with sites that deliver when they are told."""

    def __init__(self, home, returning="refresh", sites=("alpha", "beta", "gamma"), quorum=0):
        self.home, self.lead = home, SigningKey.generate()
        self.plan = dataclasses.replace(cohort_plan(), returning=returning, waves=monthly(quorum=quorum))
        self.authority = authority = Authority.create(home, coordinator="tributary-hub", names=("localhost",))
        self.store = Store.open(home)
        self.store.add_plan(sign_plan(self.plan, [self.lead]), self.plan)
        self.keys, self.tables = {}, {}
        for site in sites:
            invitation = authority.invite(site, ["cvd"], address="localhost:1", leads=[self.lead.public], days=300)
            self.store.add_invitation(invitation)
            self.keys[site] = join(self.store, invitation)

    def deliver(self, site: str, wave: int, n: int = 300) -> str:
        seed = 100 * wave + sum(map(ord, site))
        self.tables[site, wave] = cohort(n + wave, seed)
        return deliver(self.store, self.plan, site, self.keys[site], self.tables[site, wave], wave=wave)

    def close(self, wave: int, **more):
        return self.store.close_wave("cvd", wave, expected=self.store.members("cvd"), today=TODAY, **more)

    def alone(self, site: str, *waves: int):
        table = pd.concat([self.tables[site, wave] for wave in waves], ignore_index=True)
        (row,) = estimate(table, parse_estimand(QUESTION), study="cvd", site=site, wave=waves[-1])
        return row.yi, row.n
