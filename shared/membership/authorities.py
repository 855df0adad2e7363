"""The leads' word that another certificate authority takes the place of one whose key is in other hands.

A planned change is signed by the older authority, and sites follow by themselves (`shared.wire.certificates`). Whoever
stole that key could sign the same. So here nothing that the older one signs counts: the leads sign, whose keys every
site has pinned apart from it, the coordinator's witness key signs, and at each site a person compares the new one's
fingerprint on the telephone. From then on the older one is believed nowhere, from whichever day its certificates are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from shared.base.canonical import is_word
from shared.base.keys import Envelope, PublicKey
from shared.errors import CertificateRefusal, ReplayRefusal, SignatureRefusal
from shared.membership.leads import Leads
from shared.membership.statements import Chained, must_be
from shared.plans.invitation import certificate_fingerprint, certificate_of, no_certificate

__all__ = ["AUTHORITY_REPLACEMENT_TYPE", "AuthorityReplacement", "open_replacement"]

AUTHORITY_REPLACEMENT_TYPE = "application/vnd.tributary.authority-replacement+json"
REASON_LETTERS = 500


@dataclass(frozen=True, kw_only=True)
class AuthorityReplacement(Chained):
    """Another authority takes the place of one that did not sign it.

    Args:
        number, previous: in the coordinator's own chain of them. A site does not ask for the next one: it may have
            missed some, and a coordinator that was put back from a backup may have forgotten some.
        before: fingerprint of the authority that is believed no more.
        ca_pem: certificate of the one that is believed instead, signed by itself.
        reason: the lead's words, for everybody who reads a site's record later.
    """

    TYPE: ClassVar[str] = AUTHORITY_REPLACEMENT_TYPE
    FORMAT: ClassVar[str] = "tributary-authority-replacement/1"
    WHAT: ClassVar[str] = "a replacement of the authority"

    coordinator: str
    before: str
    ca_pem: str
    reason: str

    def __post_init__(self) -> None:
        super().__post_init__()
        must_be(is_word(self.coordinator), "a replacement of the authority must name its coordinator")
        texts = all(isinstance(text, str) for text in (self.before, self.ca_pem, self.reason))
        must_be(texts and len(self.ca_pem) <= 8192, "a replacement of the authority must hold one certificate")
        must_be(
            0 < len(self.reason.strip()) <= REASON_LETTERS and self.reason.isprintable(),
            f"a replacement of the authority must have a reason of one line, at most {REASON_LETTERS} letters",
        )
        from cryptography import x509

        try:
            made = certificate_of(self.ca_pem)
            made.verify_directly_issued_by(made)
            whole = made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except no_certificate():
            whole = False
        if not whole:
            raise CertificateRefusal("another authority must show its own certificate", given="another text")
        must_be(self.after != self.before, "a replacement of the authority must name two")

    @property
    def after(self) -> str:
        """Fingerprint of the authority that is believed from now on: what two people compare aloud."""
        return certificate_fingerprint(self.ca_pem)


def open_replacement(
    envelope: Envelope, *, leads: Leads, witness: PublicKey, coordinator: str, gone: Collection[str] = ()
) -> AuthorityReplacement:
    """Replacement of an authority, signed by the coordinator and by at least the threshold of these leads.

    Args:
        gone: fingerprints of authorities that were replaced before: none of them may return.
    Raises: SignatureRefusal, SchemaRefusal, CertificateRefusal, ReplayRefusal. Signatures are verified before parsing.
    """
    envelope.require(AUTHORITY_REPLACEMENT_TYPE, {witness.key_id: witness})
    trusted = {name: key for name, key in leads.trusted.items() if key != witness}
    if len(envelope.verified_by(trusted)) < leads.threshold:
        raise SignatureRefusal(
            f"another authority must be signed by {leads.threshold} of the leads",
            given=f"{len(envelope.verified_by(trusted))}",
            next_step="Nothing was changed: the pinned one stays. Call the study lead.",
        )
    said = AuthorityReplacement.from_bytes(envelope.payload)
    if said.coordinator != coordinator:
        raise ReplayRefusal("another authority must be of this coordinator", given="another's")
    if said.after in gone:
        raise ReplayRefusal(
            "an authority that was replaced must not come back",
            given="one of before",
            next_step="Nothing was changed: the pinned one stays. Call the study lead: its key was in other hands.",
        )
    return said
