"""A coordinator with analysts: its studies, its tokens and its questions."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

import pytest
from stage.both_sides.service import started
from stage.coordinator_side.delivered import cohort, cohort_plan, deliver, join

from coordinator.analyst.commands import connect
from coordinator.analyst.remote import Pass
from coordinator.config import FILE_NAME, AnalysisSettings, CoordinatorConfig
from coordinator.services.analysts import Analysts
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.plans.plan import sign_plan
from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
from shared.wire.transport import SERVER_NAME, Client, Credentials

SITES = {"alpha": 500, "beta": 400, "gamma": 300}
ADJUSTED = "Surv(time, cvd) ~ sbp/10 + age/10"
OTHER = {'study = "cvd"': 'study = "lungs"', "row_download = false": "row_download = true"}


class Desk:
    """A coordinator that answers analysts, and the keys of the sites that delivered to it."""

    def __init__(self, home, bundles="", **settings):
        self.home, self.lead, self.bundles = home, SigningKey.generate(), bundles
        self.authority = Authority.create(home, coordinator="tributary-hub", names=("127.0.0.1",))
        self.store = Store.open(home, bundles=bundles)
        self.analysts = Analysts(self.store)
        self.keys: dict[str, SigningKey] = {}
        self.plans = {}
        self.analysis = AnalysisSettings(**settings)

    def publish(self, plan):
        self.plans[plan.study] = plan
        self.store.add_plan(sign_plan(plan, [self.lead]), plan)

    def add(self, study, site, table, wave=1):
        name = f"{study}-{site}" if study != "cvd" else site
        if name not in self.keys:
            invitation = self.authority.invite(name, [study], address="localhost:1", leads=[self.lead.public], days=300)
            self.store.add_invitation(invitation)
            self.keys[name] = join(self.store, invitation)
        return deliver(self.store, self.plans[study], name, self.keys[name], table, wave=wave)

    def start(self, **further):
        settings = {"analysts": "127.0.0.1:0", "analysis": self.analysis, "bundles": self.bundles}
        self.running = started(self.home, **settings | further)
        self.address = f"127.0.0.1:{self.running.analysts_port}"
        config = CoordinatorConfig(
            home=self.home, name="tributary-hub", address="127.0.0.1:8443", analysts=self.address, names=("127.0.0.1",)
        )
        (self.home / FILE_NAME).write_text(config.to_toml())
        return self

    def admit(self, name="ada", studies=("cvd",), role="analyst", today=None, days=30) -> Pass:
        today = today or dt.datetime.now(dt.UTC).date()
        account, token = self.analysts.add(name, studies=studies, role=role, days=days, today=today)
        return Pass(
            address=self.address,
            server_name=SERVER_NAME,
            ca_pem=self.authority.ca_pem,
            name=name,
            role=role,
            studies=tuple(studies),
            expires=account.expires.isoformat(),
            token=token,
        )

    def save(self, given: Pass) -> Path:
        path = self.home / f"{given.name}.token.json"
        given.save(path)
        return path

    def raw(self, token=""):
        """The bare channel, for what the client would never send."""
        return Client(
            address=self.address,
            server_name=SERVER_NAME,
            credentials=Credentials(ca_pem=self.authority.ca_pem, token=token),
            service=ANALYSIS_SERVICE,
            methods=ANALYSIS,
            request_cap=64 << 10,
        )

    def stop(self):
        self.running.stop(0)  # a second time changes nothing
        self.store.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory, database):
    made = Desk(tmp_path_factory.mktemp("hub"))
    made.publish(cohort_plan())
    made.publish(cohort_plan(**OTHER))
    for seed, (site, n) in enumerate(SITES.items()):
        made.add("cvd", site, cohort(n, seed))
    made.add("lungs", "north", cohort(200, 7))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def own(tmp_path):
    """A desk that a test may change; it starts it itself."""
    made = Desk(tmp_path / "hub", rate=60, burst=30)
    made.publish(cohort_plan())
    yield made
    made.stop()


@pytest.fixture
def study(desk):
    with connect(desk.admit()) as connection:
        yield connection["cvd"]


def asked_by(own, many, seconds=60.0):
    """Wait until so many questions are being answered (`workshop.slowly`); the processes that do."""
    until = time.monotonic() + seconds
    while len(found := sorted(own.home.glob("asked.*"))) < many:
        assert time.monotonic() < until, "nobody answers"
        time.sleep(0.02)
    return [int(path.name.split(".")[1]) for path in found]
