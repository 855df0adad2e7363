"""Certificates and invitations: who may connect, as what, and for how long."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.services.authority import Authority
from shared.base.keys import SigningKey
from shared.errors import CertificateRefusal, ParameterError, SchemaRefusal, StateRefusal, TokenRefusal
from shared.plans.invitation import Invitation, certificate_fingerprint
from shared.wire.certificates import requested_key
from shared.wire.transport import peer_of
from site_agent.egress import new_tls_identity

LEAD = SigningKey.generate().public
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("hub"), coordinator="hub", names=["127.0.0.1", "hub.example.org"])


@pytest.fixture(scope="module")
def invitation(authority) -> Invitation:
    return authority.invite("north", ["heart"], 14, address="hub.example.org:8443", leads=[LEAD])


def names_of(pem: str) -> x509.SubjectAlternativeName:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_an_authority_is_read_back_and_made_once(authority):
    again = Authority.load(authority.folder.parent)
    assert again.coordinator == "hub"
    assert again.fingerprint == authority.fingerprint
    with pytest.raises(StateRefusal):
        Authority.create(authority.folder.parent, coordinator="hub")


def test_a_home_without_an_authority_says_what_to_do(tmp_path):
    with pytest.raises(StateRefusal, match="coordinator init"):
        Authority.load(tmp_path)
    with pytest.raises(ParameterError):
        Authority.create(tmp_path, coordinator="no spaces")


def test_private_keys_are_readable_by_their_owner_only_and_never_shown(authority):
    for path in authority.folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
    assert "PRIVATE" not in repr(authority)
    assert "PRIVATE" not in repr(authority.server())


def test_the_server_certificate_names_its_addresses_and_the_pinned_name(authority):
    names = names_of(authority.server().cert_pem)
    assert names.get_values_for_type(x509.DNSName) == ["tributary-coordinator", "hub.example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_a_server_certificate_near_its_end_is_renewed_under_the_same_names(authority, monkeypatch):
    before = authority.server()
    monkeypatch.setattr("coordinator.services.authority.RENEW_DAYS", 400)
    after = authority.server()
    assert after.cert_pem != before.cert_pem
    assert names_of(after.cert_pem) == names_of(before.cert_pem)


def test_a_site_certificate_names_the_site_whatever_its_request_says(authority):
    _, csr = new_tls_identity("somebody-else")
    peer = peer_of(authority.issue(csr, "north").encode(), NOW)
    assert (peer.role, peer.site) == ("site", "north")


BROKEN = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"


@pytest.mark.parametrize("csr", ["", "nonsense", BROKEN])
def test_what_is_not_a_request_is_refused(csr):
    with pytest.raises(CertificateRefusal):
        requested_key(csr)


def test_a_request_signed_by_another_key_or_of_another_kind_is_refused():
    _, csr = new_tls_identity("north")
    request = x509.load_pem_x509_csr(csr.encode())
    der = bytearray(request.public_bytes(Encoding.DER))
    der[-1] ^= 1
    body = base64.encodebytes(bytes(der)).decode()
    with pytest.raises(CertificateRefusal):
        requested_key(f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n")
    builder = x509.CertificateSigningRequestBuilder().subject_name(request.subject)
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(CertificateRefusal):
            requested_key(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode())


def test_a_bootstrap_certificate_may_enrol_and_ends_with_its_invitation(invitation):
    peer = peer_of(invitation.bootstrap_cert_pem.encode(), NOW)
    assert (peer.role, peer.site) == ("enrol", "north")
    certificate = x509.load_pem_x509_certificate(invitation.bootstrap_cert_pem.encode())
    assert certificate.not_valid_after_utc.date() == invitation.expires + dt.timedelta(days=1)
    with pytest.raises(CertificateRefusal):
        peer_of(invitation.bootstrap_cert_pem.encode(), NOW + dt.timedelta(days=16))


@pytest.mark.fault("F14")
def test_a_certificate_that_names_no_site_or_several_is_nobody(authority):
    with pytest.raises(CertificateRefusal):
        peer_of(authority.ca_pem.encode(), NOW)
    with pytest.raises(CertificateRefusal):
        peer_of(authority.server().cert_pem.encode(), NOW)
    _, csr = new_tls_identity("x")
    for names in (["tributary:root:x"], ["tributary:site:x", "tributary:site:y"], ["https://x"]):
        uris = [x509.UniformResourceIdentifier(name) for name in names]
        usage = x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH
        pem = authority._leaf(requested_key(csr), common="x", names=uris, usage=usage, days=1)
        with pytest.raises(CertificateRefusal):
            peer_of(pem.encode(), NOW)


def test_an_invitation_survives_its_file_and_shows_no_secret(invitation):
    assert Invitation.from_bytes(invitation.to_bytes()) == invitation
    shown = repr(invitation)
    assert invitation.token not in shown
    assert "PRIVATE" not in shown
    assert invitation.ca_fingerprint == certificate_fingerprint(invitation.ca_pem)


def test_two_invitations_have_different_tokens(authority, invitation):
    assert authority.invite("north", ["heart"], address="x:1", leads=[LEAD]).token != invitation.token


@pytest.mark.fault("F14")
def test_an_expired_invitation_is_refused(invitation):
    invitation.require_current(invitation.expires)
    with pytest.raises(TokenRefusal, match="coordinator invite"):
        invitation.require_current(invitation.expires + dt.timedelta(days=1))


@pytest.mark.fault("F10")
@pytest.mark.parametrize(
    "change",
    [
        {"ca_fingerprint": "0000"},
        {"token": "short"},
        {"threshold": 2},
        {"threshold": True},
        {"studies": []},
        {"studies": "heart"},
        {"site": "../north"},
        {"leads": ["xyz"]},
        {"expires": "soon"},
        {"format": "tributary-invitation/2"},
        {"extra": 1},
        {"ca_pem": "nonsense"},
    ],
)
def test_a_changed_invitation_is_refused(invitation, change):
    body = {**json.loads(invitation.to_bytes()), **change}
    with pytest.raises((SchemaRefusal, CertificateRefusal)):
        Invitation.from_bytes(json.dumps(body).encode())


def test_an_invitation_pins_its_authority(tmp_path, invitation):
    other = Authority.create(tmp_path, coordinator="hub")
    with pytest.raises(SchemaRefusal, match="fingerprint"):
        dataclasses.replace(invitation, ca_pem=other.ca_pem)


def test_a_lost_witness_key_is_missed_and_no_other_takes_its_place(tmp_path):
    """Sites have pinned it: a new one would sign what all of them take for another coordinator's word."""
    made = Authority.create(tmp_path, coordinator="hub")
    (tmp_path / "ca" / "witness.pem").rename(tmp_path / "apart")
    with pytest.raises(StateRefusal, match=r"no witness\.pem"):
        Authority.load(tmp_path)
    assert not (tmp_path / "ca" / "witness.pem").exists()
    (tmp_path / "apart").rename(tmp_path / "ca" / "witness.pem")
    assert Authority.load(tmp_path).witness.public == made.witness.public
