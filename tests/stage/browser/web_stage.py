"""A coordinator that answers over HTTPS and gRPC, with releases in it: served once for all tests of the web."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from stage.both_sides.service import started
from stage.coordinator_side.delivered import cohort, cohort_plan, deliver, join

from coordinator.services.analysts import Analysts
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.plans.plan import sign_plan
from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE
from shared.wire.transport import SERVER_NAME, Client, Credentials

SITES = {"alpha": 500, "beta": 400, "gamma": 300}
OPEN = {'study = "cvd"': 'study = "lungs"', "row_download = false": "row_download = true"}
WEB = {"listen": "127.0.0.1:0", "certificate": "", "key": ""}
QUESTION = {"kind": "cox", "formula": "Surv(time, cvd) ~ sbp/10 + age/10"}


def slow(given):
    """A task that takes long, in place of an answer."""
    time.sleep(60)


class WebStage:
    """A coordinator's home, the plans and releases in it, and clients of its two ports."""

    def __init__(self, home: Path, url: str = ""):
        self.home, self.lead = home, SigningKey.generate()
        there = (home / "coordinator.toml").exists()
        names = ("127.0.0.1", "localhost")
        self.authority = (
            Authority.load(home) if there else Authority.create(home, coordinator="tributary-hub", names=names)
        )
        self.store = Store.open(home, url)
        self.analysts = Analysts(self.store)
        self.keys: dict[str, SigningKey] = {}

    def publish(self, plan, sites=SITES, prefix=""):
        """Sign a plan and deliver a release of it from each site."""
        self.store.add_plan(sign_plan(plan, [self.lead]), plan)
        for seed, (site, n) in enumerate(sites.items()):
            name = f"{prefix}{site}"
            invitation = self.authority.invite(
                name, [plan.study], address="localhost:1", leads=[self.lead.public], days=300
            )
            self.store.add_invitation(invitation)
            self.keys[name] = join(self.store, invitation)
            deliver(self.store, plan, name, self.keys[name], cohort(n, seed))

    def start(self, **settings):
        self.running = started(self.home, **{"analysts": "127.0.0.1:0", "web": WEB, **settings})
        self.url = f"https://127.0.0.1:{self.running.web_port}"
        self.tls = ssl.create_default_context(cadata=self.authority.ca_pem)
        return self

    def admit(self, name="ada", studies=("cvd",), role="analyst", days=30) -> str:
        """A new token."""
        today = dt.datetime.now(dt.UTC).date()
        return self.analysts.add(name, studies=studies, role=role, days=days, today=today)[1]

    def web(self, token="", **settings) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, verify=self.tls, timeout=90, headers=headers, **settings)

    def grpc(self, token) -> Client:
        return Client(
            address=f"127.0.0.1:{self.running.analysts_port}",
            server_name=SERVER_NAME,
            credentials=Credentials(ca_pem=self.authority.ca_pem, token=token),
            service=ANALYSIS_SERVICE,
            methods=ANALYSIS,
        )


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}$\\frac{$\u202e\x1b]0;x\x07"
ODD = {
    'study = "cvd"': 'study = "odd"',
    'title = "': f"title = {json.dumps(HOSTILE)}\n# ",
    'purpose = "': f"purpose = {json.dumps(HOSTILE)}\n# ",
    'label = "age at baseline"': f"label = {json.dumps(HOSTILE)}",
    'unit = "mg/dL"': f"unit = {json.dumps(HOSTILE)}",
    'label = "systolic blood pressure"': f"label = {json.dumps(HOSTILE)}",
    "w = 0.8  ": "w = 0.0  ",
}
"""Changes of the shipped study: texts of others that a page must show as letters; and releases that no ε is said of."""


def words(page: httpx.Response) -> str:
    """What a page says, without its mark-up."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def web_stage(home: Path) -> WebStage:
    """The shipped cohort study, and one whose rows may be downloaded."""
    stage = WebStage(home)
    stage.publish(cohort_plan())
    stage.publish(cohort_plan(**OPEN), prefix="lungs-")
    return stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory) -> Iterator[WebStage]:
    """Served once for all tests of the web."""
    stage = web_stage(tmp_path_factory.mktemp("web") / "hub")
    stage.publish(cohort_plan(**ODD), prefix="odd-")
    stage.start()
    yield stage
    stage.running.stop(1)
    stage.store.close()
