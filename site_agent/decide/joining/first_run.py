"""The first run of a site: its folder and keys from an invitation, and the request that the study lead answers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.errors import CertificateRefusal, IntegrityRefusal, SchemaRefusal, StateRefusal, UsageRefusal

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    from shared.base.keys import SigningKey
    from shared.plans.invitation import Invitation
    from site_agent.config import SiteConfig
    from site_agent.desk import Desk

__all__ = ["JoiningState", "ask", "intended", "invitation_of", "make"]


@dataclass(frozen=True, kw_only=True)
class JoiningState:
    """State of a site's request to join its coordinator.

    Args:
        state: ``joined``, ``waiting`` for the study lead, or ``would ask`` of a dry run.
        fingerprint: of the site's release key; the lead accepts the site by it.
    """

    state: str
    fingerprint: str


def invitation_of(file: Path, today: dt.date) -> Invitation:
    """The invitation in a file. Raises: SchemaRefusal, StateRefusal (over), OSError."""
    from shared.plans.invitation import Invitation

    try:
        invited = Invitation.from_bytes(file.read_bytes())
    except SchemaRefusal as refusal:
        raise SchemaRefusal(refusal.must, given=f"{file.name}: {refusal.given}", next_step=refusal.next_step) from None
    invited.require_current(today)
    return invited


def intended(home: Path, invited: Invitation, approvers: Sequence[str], *, courier: bool = False) -> SiteConfig:
    """Settings of a site that is to be made in `home`. Raises: StateRefusal (there is one), UsageRefusal (names)."""
    from shared.base.canonical import is_word
    from shared.plans.invitation import plain_word_of
    from site_agent.config import SiteConfig

    _require_new(home)
    if not approvers:
        raise UsageRefusal(
            "a site must have at least one approver", given="none", next_step="Add --approver NAME, once per person."
        )
    odd = next((name for name in approvers if not is_word(name)), None)
    if odd is not None:
        raise UsageRefusal(
            "an approver's name must be a plain word: ASCII letters, digits, - and _, without spaces",
            given=repr(odd),
            next_step=f"For example --approver {plain_word_of(odd)}. It stands under every approval of that person.",
        )
    return SiteConfig(
        home=home,
        site=invited.site,
        coordinator=invited.coordinator,
        address=invited.address,
        server_name=invited.server_name,
        ca_fingerprint=invited.ca_fingerprint,
        leads=tuple(key.hex for key in invited.leads),
        threshold=invited.threshold,
        studies=invited.studies,
        approvers=dict.fromkeys(approvers, "00" * 32),
        leads_since=invited.leads_since,
        grants_since=invited.grants_since,
        courier=courier,
    )


def make(
    config: SiteConfig,
    invited: Invitation,
    *,
    opened: Callable[[Path, str], SigningKey],
    chosen: Callable[[str], str | None],
) -> str:
    """Make the keys, the ledger and the settings; returns the fingerprint of the release key.

    Args:
        opened: opens the key of an approver that an interrupted first run has made.
        chosen: the new passphrase of an approver. Raises: ParameterError (too short).
    """
    from site_agent.lock import StateLock

    # Asked for first: one that is too short leaves no half-made folder.
    there = {name: opened(path, name) for name in config.approvers if (path := config.approver_key(name)).exists()}
    new = {name: chosen(name) for name in config.approvers if name not in there}
    config.home.mkdir(parents=True, exist_ok=True)
    with StateLock(config.home):
        return _made_alone(config, invited, there, new)


def ask(desk: Desk, today: dt.date, *, dry_run: bool = False) -> JoiningState:
    """Ask the coordinator to accept this site, or fetch the certificate once the study lead has.

    Raises: CertificateRefusal (the lead refused, or another key), IntegrityRefusal (the coordinator has another key of
        this site), StateRefusal (no invitation), NetworkRefusal.
    """
    from shared.base.keys import PublicKey, write_private
    from shared.plans.invitation import Invitation
    from site_agent.desk import courier as carrier
    from site_agent.egress import Egress

    config = desk.config
    fingerprint = desk.release_key.public.fingerprint
    if config.certificate.exists():
        known = sorted({*config.studies, *desk.plans.studies()})
        if known and not dry_run:  # a certificate in the folder may have been revoked, or have expired
            with desk.egress() as egress:
                egress.status(known[0])
        return JoiningState(state="joined", fingerprint=fingerprint)
    if not config.invitation.exists():
        raise StateRefusal(
            "the invitation must be here until the site has joined", given="none", next_step="Ask for a new one."
        )
    if dry_run:
        return JoiningState(state="would ask", fingerprint=fingerprint)
    invited = Invitation.from_bytes(config.invitation.read_bytes())
    invited.require_current(today)
    approvers = {name: PublicKey(key) for name, key in config.approvers.items()}
    with Egress.from_invitation(invited, courier=carrier(config) if config.courier else None) as egress:
        answered = egress.enrol(
            token=invited.token,
            site=config.site,
            csr_pem=_csr(config).read_text(),
            signer=desk.release_key,
            approvers=approvers,
        )
    if answered.state == "refused":
        raise CertificateRefusal(
            "the study lead must accept this site",
            given=f"refused: {answered.reason}",
            next_step="Call the study lead.",
        )
    if answered.state == "accepted":
        _require_own_certificate(config, answered.certificate_pem)
        write_private(config.certificate, answered.certificate_pem.encode())
        # The token and the bootstrap key have done their work.
        config.invitation.unlink(missing_ok=True)
        return JoiningState(state="joined", fingerprint=fingerprint)
    if answered.fingerprint and answered.fingerprint != fingerprint:
        raise IntegrityRefusal(
            "the coordinator must have received this site's key",
            given="another fingerprint",
            next_step="Do not go on. Call the study lead.",
        )
    return JoiningState(state=answered.state, fingerprint=fingerprint)


# -- inside -----------------------------------------------------------------------------------------------------
def _require_new(place: Path) -> None:
    if (place / "site.toml").exists():
        raise StateRefusal(
            "the folder must not hold a site yet", given=f"{place}", next_step="Run site-agent status there."
        )


def _made_alone(
    config: SiteConfig, invited: Invitation, there: Mapping[str, SigningKey], new: Mapping[str, str | None]
) -> str:
    """As `make` says, where nobody else writes in the folder."""
    from shared.base.keys import SigningKey, write_private
    from site_agent.egress import new_tls_identity
    from site_agent.ledger.book import Ledger

    _require_new(config.home)
    # site.toml is written last: an interrupted init is simply run again, and finds the keys it made.
    key = SigningKey.load(config.release_key) if config.release_key.exists() else SigningKey.generate()
    if not config.release_key.exists():
        key.save(config.release_key, of_machine=True)
    approvers = {}
    for name in config.approvers:
        signer = there.get(name) or SigningKey.generate()
        if name in new:
            signer.save(config.approver_key(name), new[name], new=True)
        approvers[name] = signer.public.hex
    if not config.tls_key.exists():
        key_pem, csr_pem = new_tls_identity(config.site)
        write_private(_csr(config), csr_pem.encode())
        write_private(config.tls_key, key_pem.encode())
    if not config.snapshot_key.exists():
        if config.ledger.exists():
            raise IntegrityRefusal(
                "snapshot.key must stand beside the ledger",
                given="a ledger without it",
                next_step="Restore it from a backup: with another key every person would look new.",
            )
        write_private(config.snapshot_key, secrets.token_bytes(32))
    write_private(config.ca, invited.ca_pem.encode())
    write_private(config.ca.with_name("witness.pub"), f"{invited.witness.hex}\n".encode())
    write_private(config.invitation, invited.to_bytes())
    Ledger.create(config.ledger, key, site=config.site)
    replace(config, approvers=approvers).save()
    return key.public.fingerprint


def _csr(config: SiteConfig) -> Path:
    return config.home / "certificates" / "request.pem"


def _require_own_certificate(config: SiteConfig, pem: str) -> None:
    from cryptography import x509

    from shared.base.at_rest import private_key

    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        ours = private_key(config.tls_key.read_bytes(), config.tls_key.name).public_key()
    except ValueError:
        raise CertificateRefusal("the certificate must be readable", given="another text") from None
    if certificate.public_key() != ours:
        raise CertificateRefusal(
            "the certificate must be of this site's key", given="another key", next_step="Call the study lead."
        )
