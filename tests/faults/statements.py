"""Parsers of signed statements on who takes part, and of the certificates that go with them."""

from __future__ import annotations

import base64
import dataclasses
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from stage.both_sides.service import Hub

from coordinator.services.authority import Authority, rotate
from faults.fuzz import Target
from shared.base.chain import GENESIS
from shared.base.keys import Envelope, SigningKey
from shared.membership.authorities import AuthorityReplacement, open_replacement
from shared.membership.declined import DECLINED_TYPE, DeclinedNotice, open_notice
from shared.membership.grants import Grant
from shared.membership.key_changes import KeyChange, SiteKeyring, open_key_change
from shared.membership.leads import LeadChange, Leads, open_lead_change
from shared.membership.statements import Chained
from shared.membership.study_ends import StudyEnd
from shared.wire.certificates import (
    AUTHORITY_TYPE,
    AuthorityStatement,
    CertificateLife,
    LateAnswer,
    RenewalRequest,
    requested_key,
    require_current,
    require_issued_by,
)
from shared.wire.clocks import utc_now
from shared.wire.transport import peer_of

__all__ = ["statements"]

FIRST: dict[str, Any] = {"number": 1, "previous": GENESIS, "day": "2026-01-05", "coordinator": "hub"}


def statements(folder: Path, hub: Hub, key: SigningKey) -> Iterator[Target]:
    """One target for each kind of statement.

    Args:
        folder: for an authority of their own. hub: a coordinator that has accepted the site ``north``.
        key: the stranger's, which is believed here: what is signed is read at all.
    """
    joining = SigningKey.generate()
    new = joining.public.hex
    ring = SiteKeyring(release=key.public, approvers={"ada": key.public}, deputies={})
    authority = Authority.create(folder / "authority", coordinator="hub", names=["127.0.0.1"])
    site = {"site": "north", "study": "mini"}
    grant = Grant(**FIRST, **site, granted=True)
    change = LeadChange(
        **FIRST,
        name="lind",
        before=(key.public.hex,),
        after=tuple(sorted((key.public.hex, new))),
        threshold_before=1,
        threshold=1,
    )
    words: dict[str, Any] = {**FIRST, "site": "north", "role": "approver", "action": "rotate", "name": "ada"}
    changed = KeyChange(**words, old=key.public.hex, new=new, seq=3, head="ab" * 32)
    absent = {"deputy_of": "ada", "until": "2026-02-01"}
    added = {**words, "action": "add", "name": "bo", **absent}
    deputy = KeyChange(**added, old="", new=new, seq=3, head="cd" * 32)
    over = StudyEnd(**FIRST, study="mini", plan_hash="ab" * 32, reason="done")
    other = AuthorityReplacement(**FIRST, before="ab cd", ca_pem=authority.ca_pem, reason="its key is in other hands")

    def said(kind: type[Chained], then: Callable[[Envelope], object] | None = None) -> Callable[[bytes], object]:
        """Read what the key signed; what is taken is written as it came, and `then` may open it."""

        def run(data: bytes) -> object:
            envelope = Envelope.sign(kind.TYPE, data, [key])
            value = kind.said(envelope)
            assert value.to_bytes() == data
            return value if then is None else then(envelope)

        return run

    def opened_leads(envelope: Envelope) -> object:
        both = Envelope.sign(LeadChange.TYPE, envelope.payload, [key, joining])
        return open_lead_change(both, leads=Leads(keys=(key.public.hex,), threshold=1), coordinator="hub")

    def opened_keys(envelope: Envelope) -> object:
        both = Envelope.sign(KeyChange.TYPE, envelope.payload, [key, joining])
        return open_key_change(both, ring, needed=1)

    def replaced(envelope: Envelope) -> object:
        both = Envelope.sign(AuthorityReplacement.TYPE, envelope.payload, [key, authority.witness])
        leads = Leads(keys=(key.public.hex,), threshold=1)
        return open_replacement(both, leads=leads, witness=authority.witness.public, coordinator="hub")

    yield Target("grant", (grant.to_bytes(),), said(Grant))
    yield Target("change of leads", (change.to_bytes(),), said(LeadChange, opened_leads))
    yield Target("change of keys", (changed.to_bytes(), deputy.to_bytes()), said(KeyChange, opened_keys))
    yield Target("end of a study", (over.to_bytes(),), said(StudyEnd))
    yield Target("another authority", (other.to_bytes(),), said(AuthorityReplacement, replaced))
    notice = DeclinedNotice(
        coordinator="hub", **site, wave=1, release_id="r", decision="reject", reason="too few", approver="ada"
    )

    def declined(data: bytes) -> object:
        envelope = Envelope.sign(DECLINED_TYPE, data, [key])
        return open_notice(envelope, {"ada": key.public}, coordinator="hub", site="north")

    yield Target("notice of a refusal", (notice.signed(key).payload,), declined)
    yield from _certificates(hub, authority)


def _certificates(hub: Hub, authority: Authority) -> Iterator[Target]:
    keys, witness = hub.sites["north"], authority.witness
    mine = _der(keys.certificate)

    def certificate(data: bytes) -> object:
        """As at the coordinator's import and at a site that is given its next one."""
        pem = _pem("CERTIFICATE", data)
        peer = peer_of(pem.encode(), utc_now())
        require_issued_by(pem, [hub.authority.ca_pem])
        require_current(pem, "a certificate")
        return peer, CertificateLife.of(pem, utc_now())

    yield Target("certificate", (mine,), certificate, "bytes")
    request = base64.b64decode("".join(keys.identity[1].split("-----")[2].split()))
    yield Target(
        "certificate request", (request,), lambda data: requested_key(_pem("CERTIFICATE REQUEST", data)), "bytes"
    )
    made, word = rotate(authority)
    assert word is not None

    def next_authority(data: bytes) -> object:
        signed = Envelope.sign(AUTHORITY_TYPE, data, [witness]).to_bytes()
        said = AuthorityStatement.opened(signed, witness.public)
        said.require_signed_by(authority.ca_pem)
        return said

    def its_certificate(data: bytes) -> object:
        said = dataclasses.replace(word, ca_pem=_pem("CERTIFICATE", data))
        said.require_signed_by(authority.ca_pem)
        return said

    yield Target("next authority", (word.signed(witness).payload,), next_authority)
    yield Target("next authority's certificate", (_der(made.ca_pem),), its_certificate, "bytes")
    asked = RenewalRequest(site="north", serial="ab", seq=3, head="ab" * 32, csr_pem=keys.identity[1], day="2026-01-05")
    yield Target("renewal", (asked.signed(keys.release).payload,), RenewalRequest.from_bytes)
    late = LateAnswer(site="north", request="ab" * 32, certificate_pem=keys.certificate, statements=("{}",))
    yield Target("late answer", (late.signed(witness).payload,), LateAnswer.from_bytes)


def _der(pem: str) -> bytes:
    return x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER)


def _pem(kind: str, der: bytes) -> str:
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""])
