"""A port for sites with few threads, and credentials of sites that no store knows."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from stage.both_sides.service import SMALL

from coordinator.services.authority import Authority
from shared.base.keys import SigningKey
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.plan import Budget, StudyPlan, Wave
from shared.wire import messages as wire
from shared.wire.site_messages import SignedDocument
from shared.wire.transport import Credentials, PortSettings, Server, Service
from site_agent.egress import new_tls_identity

ALWAYS = (dt.date(2000, 1, 1), dt.date(2999, 1, 1))
MINI = StudyPlan(
    study="mini",
    version=1,
    title="A small study",
    purpose="To test the door.",
    coordinator="hub",
    expires=ALWAYS[1],
    release=LatentNoisePlan(w=0.8),
    budget=Budget(epsilon=1e5),
    waves=(Wave(number=1, opens=ALWAYS[0], closes=ALWAYS[1]),),
    dictionary=SMALL,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("hub"), coordinator="hub", names=["127.0.0.1"])


@contextlib.contextmanager
def sites_port(authority, handlers, *, admit=lambda peer: None, **settings):
    """A port for sites with four threads."""
    table = {
        name: handlers.get(name, lambda call, request: SignedDocument(envelope=b"plan")) for name in wire.COLLECTION
    }
    port = PortSettings(listen="127.0.0.1:0", credentials=authority.server, **{"workers": 4, **settings})
    with Server(Service(name=wire.SERVICE, methods=wire.COLLECTION, handlers=table), port, admit=admit) as server:
        yield server


def named(authority: Authority, site: str, role: str = "site") -> Credentials:
    """Credentials of a site that is not in any store."""
    if role == "site":
        key, csr = new_tls_identity(site)
        return Credentials(ca_pem=authority.ca_pem, cert_pem=authority.issue(csr, site), key_pem=key)
    made = authority.invite(site, ["mini"], address="127.0.0.1:1", leads=[SigningKey.generate().public])
    return Credentials(ca_pem=authority.ca_pem, cert_pem=made.bootstrap_cert_pem, key_pem=made.bootstrap_key_pem)
