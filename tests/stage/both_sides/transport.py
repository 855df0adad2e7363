"""A coordinator's port with handlers that a test sets, and a site's client."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from coordinator.services.authority import Authority, _builder, _name
from shared.wire import messages as wire
from shared.wire.certificates import requested_key
from shared.wire.transport import Client, Credentials, Server
from site_agent.egress import new_tls_identity

SERVICE = wire.SERVICE


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("hub"), coordinator="hub", names=["127.0.0.1"])


def site_credentials(authority: Authority, ca_pem: str | None = None) -> Credentials:
    key, csr = new_tls_identity("north")
    return Credentials(ca_pem=ca_pem or authority.ca_pem, cert_pem=authority.issue(csr, "north"), key_pem=key)


def dated_credentials(authority: Authority, first: dt.timedelta, last: dt.timedelta) -> Credentials:
    """A site's certificate with other dates than an authority would give."""
    key, csr = new_tls_identity("north")
    now = dt.datetime.now(dt.UTC)
    uri = x509.UniformResourceIdentifier("tributary:site:north")
    builder = _builder(_name("north"), authority.certificate.subject, requested_key(csr), now + first, now + last)
    builder = builder.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    pem = builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    return Credentials(ca_pem=authority.ca_pem, cert_pem=pem, key_pem=key)


def client_of(server: Server, credentials: Credentials, name: str = "tributary-coordinator") -> Client:
    return Client(
        address=f"127.0.0.1:{server.port}",
        server_name=name,
        credentials=credentials,
        service=SERVICE,
        methods=wire.COLLECTION,
    )
