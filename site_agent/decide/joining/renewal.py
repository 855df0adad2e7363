"""The site's next certificate, before anybody has to think of it.

From half of its life on the agent asks for the next one over its own connection: a new key, a request signed with the
release key, bound to the certificate in force and to the head of the ledger that the coordinator has just witnessed.
What comes is checked, shown to the coordinator once, and only then put in force; until the coordinator has seen it, the
one before is good, and for a week after that.

A site that was away longer than its certificate lives is renewed by hand (`ask_late`, `take_late`): a file to the study
lead, who compares its fingerprint on the telephone, and a file back. Ledger, keys and history stay as they are. The
same way, and no other, brings an authority that took the place of one whose key was in other hands: the leads have
signed it, and a person here has heard its fingerprint on the telephone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.base.keys import Envelope
from shared.errors import (
    CertificateRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    LockedRefusal,
    NetworkRefusal,
    Refusal,
    ReplayRefusal,
    StateRefusal,
    UnknownMethod,
)
from shared.membership.authorities import AUTHORITY_REPLACEMENT_TYPE, AuthorityReplacement, open_replacement
from shared.membership.leads import LEAD_CHANGE_TYPE, Leads
from shared.plans.invitation import certificate_fingerprint
from shared.wire.certificates import (
    AUTHORITY_TYPE,
    LATE_ANSWER_TYPE,
    CertificateLife,
    LateAnswer,
    RenewalRequest,
    authorities_from,
    request_fingerprint,
    serial_of,
)
from site_agent import identity
from site_agent.identity import WantedIdentity

if TYPE_CHECKING:
    import datetime as dt
    from contextlib import AbstractContextManager
    from pathlib import Path

    from shared.base.keys import SigningKey
    from site_agent.config import SiteConfig
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.ledger.book import Ledger

__all__ = [
    "RenewedIdentity",
    "ask_late",
    "due",
    "follow_authority",
    "follow_in_round",
    "in_round",
    "renew",
    "take_late",
]


T = TypeVar("T")


class RenewingSite(Protocol):
    """The parts of a site that a certificate renewal uses (`site_agent.desk.Desk`)."""

    @property
    def home(self) -> Path: ...
    @property
    def config(self) -> SiteConfig: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def release_key(self) -> SigningKey: ...
    @property
    def egress(self) -> Callable[..., AbstractContextManager[Egress]]: ...


@dataclass(frozen=True, kw_only=True)
class RenewedIdentity:
    """A certificate that was put in force: how long it lasts, and how long the one before would have."""

    life: CertificateLife
    before: CertificateLife


def due(config: SiteConfig, now: dt.datetime | None = None) -> str:
    """Why the next certificate is to be asked for now; blank if it is not, or cannot be over one that has ended.

    Raises: CertificateRefusal (not readable).
    """
    life = identity.certificate_life(config, now or utc_now())
    if life is None:
        return ""
    under_way = identity.renewals(config)
    if under_way.given is not None or (under_way.asked is not None and life.state != "over"):
        return "a renewal is under way"
    if life.due:
        return "" if life.state == "over" else life.words
    return "the coordinator's authority has changed" if identity.behind_authority(config) else ""


def renew(desk: RenewingSite, *, now: dt.datetime | None = None) -> RenewedIdentity:
    """Ask for the next certificate over the one in force, show it, and put it in force; safe to repeat.

    Raises: NetworkRefusal, LockedRefusal (somebody works in this folder), and the coordinator's refusal.
    """
    from site_agent.lock import StateLock

    config, now = desk.config, now or utc_now()
    with StateLock(desk.home):
        settled = identity.settle(config)
        before = identity.certificate_life(config, now)
        if before is None:
            raise StateRefusal("a site must have joined to renew", given="no certificate", next_step="site-agent join")
        if settled:
            return RenewedIdentity(life=before, before=before)
        given = identity.renewals(config).given
        if given is not None:
            # It may have been shown, and the answer lost: then it alone is good, and the one before renews nothing.
            with suppress(CertificateRefusal):
                return _shown(desk, given, before, now)
        return _shown(desk, _requested_identity(desk, now), before, now)


def _wanted(desk: RenewingSite, egress: Egress, now: dt.datetime) -> WantedIdentity:
    """A new identity, bound to the head that the coordinator witnesses now."""
    receipt = egress.anchor(desk.ledger.anchor_envelope())
    return _new_identity(desk, now, seq=receipt.seq, head=receipt.head)


def _new_identity(desk: RenewingSite, now: dt.datetime, *, seq: int, head: str, late: bool = False) -> WantedIdentity:
    """A new key, and the signed request for its certificate, bound to a head of the ledger."""
    from site_agent.egress import new_tls_identity

    key_pem, csr_pem = new_tls_identity(desk.config.site)
    request = RenewalRequest(
        site=desk.config.site,
        serial=serial_of(desk.config.certificate.read_text()),
        seq=seq,
        head=head,
        csr_pem=csr_pem,
        day=now.date().isoformat(),
    )
    signed = request.signed(desk.release_key, late=late)
    return WantedIdentity(key_pem=key_pem, request=signed.to_bytes().decode())


def _requested_identity(desk: RenewingSite, now: dt.datetime) -> WantedIdentity:
    """The next identity, as the coordinator has issued it, kept here."""
    config = desk.config
    under_way = identity.renewals(config)
    with desk.egress() as egress:
        with suppress(StateRefusal, UnknownMethod):
            # Nothing is dated by a clock that nobody else has seen lately: this site's is one that sees it.
            egress.clock(config.site, desk.release_key)
        follow_authority(desk, egress)  # what issues may be another by now than what is pinned here
        wanted = under_way.asked
        if wanted is None or wanted.renewal_request.serial != serial_of(config.certificate.read_text()):
            wanted = _wanted(desk, egress, now)
            under_way = replace(under_way, asked=wanted).keep(config)
        reach("renewal.before_ask")
        try:
            pem = egress.renew(wanted.envelope)
        except (LedgerRefusal, ReplayRefusal):
            # Asked before, and the ledger has gone on since, or another request was answered.
            if under_way.asked is None:
                raise
            wanted = _wanted(desk, egress, now)
            under_way = replace(under_way, asked=wanted).keep(config)
            pem = egress.renew(wanted.envelope)
        reach("renewal.after_ask")
        given = replace(wanted, certificate_pem=pem)
        identity.require_ours(config, given, identity.pinned(config), now)
        replace(under_way, asked=None, given=given).keep(config)
    return given


def _shown(desk: RenewingSite, given: WantedIdentity, before: CertificateLife, now: dt.datetime) -> RenewedIdentity:
    """Show an identity to the coordinator, which from then on counts it as the site's, and put it in force."""
    with desk.egress(cert_pem=given.certificate_pem, key_pem=given.key_pem) as egress:
        reach("renewal.before_show")
        egress.authorities()
        reach("renewal.after_show")
    identity.install(desk.config, given)
    return RenewedIdentity(life=CertificateLife.of(given.certificate_pem, now), before=before)


def follow_authority(desk: RenewingSite, egress: Egress, *, dry_run: bool = False) -> int:
    """Pin the authorities that the coordinator's own ones have signed since; how many are new.

    Raises: CertificateRefusal (one that they have not signed), SignatureRefusal, NetworkRefusal.
    """
    try:
        statements = egress.authorities()
    except UnknownMethod:  # an earlier version: its authority has not changed
        return 0
    return len(identity.pin(desk.config, statements, dry_run=dry_run))


def in_round(
    desk: RenewingSite,
    event: Callable[..., T],
    *,
    say: Callable[[T], None],
    refused: Callable[..., None],
    dry_run: bool,
) -> None:
    """A step of the agent's round: renew where it is time; else say nothing.

    Args:
        event: makes what is said, of a study (none), what happened and a detail.
        say: hears it.
        refused: told the study (none), what was not done, and the refusal.
    """
    try:
        why = due(desk.config)
        if why and dry_run:
            say(event(study="", what="would renew its certificate", detail=why))
        elif why:
            until = f"until {renew(desk).life.ends:%Y-%m-%d}"
            say(event(study="", what="renewed its certificate", detail=until))
    except UnknownMethod as refusal:  # an earlier version
        refused("", "certificate not renewed", refusal)
    except (NetworkRefusal, LockedRefusal):
        return  # the round itself says that nobody answers; whoever works here is waited for
    except Refusal as refusal:
        refused("", "certificate not renewed", refusal)


def follow_in_round(
    desk: RenewingSite,
    egress: Egress,
    event: Callable[..., T],
    *,
    say: Callable[[T], None],
    refused: Callable[..., None],
    dry_run: bool,
) -> None:
    """A step of the agent's round: `follow_authority`.

    Args:
        desk: the site's folder.
        egress: its open connection.
        event: makes what `say` hears, as `site_agent.decide.attending.AttendEvent` does.
        say: hears that an authority was pinned, or would be.
        refused: hears of a refusal, as `site_agent.decide.attending.AgentRound.refused` does.
        dry_run: pin nothing.
    Raises: NetworkRefusal.
    """
    try:
        new = follow_authority(desk, egress, dry_run=dry_run)
    except NetworkRefusal:
        raise
    except Refusal as refusal:
        refused("", "authority not followed", refusal)
        return
    if new:
        what = f"{'would pin' if dry_run else 'pinned'} the coordinator's new authority"
        say(event(study="", what=what, detail="the one that was pinned before has signed it"))


# -- another authority -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class _Other:
    """An authority that took the pinned one's place, as signed, and the changes of leads that lead to its signers."""

    said: AuthorityReplacement
    envelope: Envelope
    changes: Sequence[Envelope]


def _other_authority(desk: Desk, shown: Sequence[Envelope], fingerprint: str) -> _Other | None:
    """The authority that a person here may pin without the word of the pinned one; None where none is shown.

    Nothing that the pinned one signs counts for it: the leads have signed, changes of leads included that this site has
    not seen, and the fingerprint is the one that the study lead has read out.
    """
    from site_agent.decide import membership

    config, heard = desk.config, "".join(fingerprint.lower().split())
    replaced = [one for one in shown if one.payload_type == AUTHORITY_REPLACEMENT_TYPE]
    if not replaced:
        if heard not in ("", "".join(config.ca_fingerprint.split())):
            raise _not_heard("an answer that knows of no other than the pinned one")
        return None
    changes = membership.lead_news(desk, [one for one in shown if one.payload_type == LEAD_CHANGE_TYPE])
    leads, known = membership.own_leads(desk), desk.ledger.membership().authorities
    if changes:
        leads = Leads(keys=changes[-1][0].after, threshold=changes[-1][0].threshold)
    said = open_replacement(
        replaced[-1],
        leads=leads,
        witness=identity.witness_key(config),
        coordinator=config.coordinator,
        # The last one is no past one: a crash may have come before it was pinned.
        gone={*(one.before for one, _ in known), *(one.after for one, _ in known[:-1])},
    )
    if said.after == config.ca_fingerprint == certificate_fingerprint(config.ca.read_text()):
        return None
    if heard != "".join(said.after.split()):
        raise _not_heard("another fingerprint" if heard else "no fingerprint")
    return _Other(said=said, envelope=replaced[-1], changes=[envelope for _, envelope in changes])


def _not_heard(given: str) -> StateRefusal:
    return StateRefusal(
        "the coordinator's authority must be the one that the study lead reads out",
        given=given,
        next_step="Nothing was changed. Call the study lead at a number that you know, and add --authority "
        '"FINGERPRINT" as you hear it. If it differs, the file is somebody else\'s, or an old one: tell the lead.',
    )


def _pin_other(desk: Desk, other: _Other) -> SiteConfig:
    """Note it in the ledger, where every later export shows it, and believe it alone; after a crash, again."""
    from site_agent.decide import membership

    membership.settle_leads(desk)
    for envelope in other.changes:
        desk.ledger.note_leads(envelope)
    membership.settle_leads(desk)
    desk.ledger.note_authority(other.envelope)
    reach("authority.noted")
    identity.pin_other(desk.config, other.said.ca_pem)
    desk.forget()
    return desk.config


# -- by hand ------------------------------------------------------------------------------------------------------
def ask_late(desk: RenewingSite, *, now: dt.datetime | None = None, dry_run: bool = False) -> tuple[bytes, str]:
    """The request for a certificate that goes to the study lead by hand, and its fingerprint; again, the same one.

    Raises: StateRefusal (never joined), LockedRefusal.
    """
    from site_agent.lock import StateLock

    config, now = desk.config, now or utc_now()
    if not config.certificate.exists():
        raise StateRefusal("a site must have joined to renew", given="no certificate", next_step="site-agent join")
    with StateLock(desk.home):
        under_way = identity.renewals(config)
        late = under_way.late
        if late is None or late.renewal_request.serial != serial_of(config.certificate.read_text()):
            last = desk.ledger.entries()[-1]
            late = _new_identity(desk, now, seq=last.seq, head=last.hash, late=True)
            if not dry_run:
                replace(under_way, late=late).keep(config)
    return late.request.encode(), request_fingerprint(late.envelope)


def take_late(desk: Desk, answer: bytes, *, authority: str = "", dry_run: bool = False) -> CertificateLife:
    """Put in force what the study lead has answered to `ask_late`; how long it lasts.

    Args:
        authority: fingerprint of the coordinator's authority, as the study lead reads it out; asked for where another
            took the place of the pinned one without its word.
    Raises: SignatureRefusal (not the pinned coordinator's, or leads'), IntegrityRefusal (an answer to another request),
        CertificateRefusal (another key's or site's, or of an authority that the pinned one does not lead to),
        StateRefusal (another authority, and not the one that was read out).
    """
    from site_agent.lock import StateLock

    config, now = desk.config, utc_now()
    with StateLock(desk.home):
        late = identity.renewals(config).late
        if late is None:
            raise StateRefusal(
                "a late renewal must be asked for before it is taken",
                given="no request of this folder",
                next_step="Run site-agent renew --late --out FILE.",
            )
        witness = identity.witness_key(config)
        envelope = Envelope.from_bytes(answer)
        said = LateAnswer.from_bytes(envelope.require(LATE_ANSWER_TYPE, {witness.key_id: witness}))
        if (said.site, said.request) != (config.site, late.envelope.digest):
            raise IntegrityRefusal(
                "the answer must be to this site's own request",
                given="one to another",
                next_step="Give the lead the file that site-agent renew --late --out wrote last.",
            )
        given = replace(late, certificate_pem=said.certificate_pem)
        shown = [Envelope.from_bytes(one.encode()) for one in said.statements]
        statements = [one.to_bytes() for one in shown if one.payload_type == AUTHORITY_TYPE]
        other = _other_authority(desk, shown, authority)
        if other is None:
            chain = (*identity.pinned(config), *identity.pin(config, statements, dry_run=True))
        else:
            chain = authorities_from(other.said.ca_pem, statements, witness)
        identity.require_ours(config, given, chain, now)
        if not dry_run:
            if other is not None:
                config = _pin_other(desk, other)
            identity.pin(config, statements)
            replace(identity.renewals(config), given=given).keep(config)
            identity.install(config, given)
    return CertificateLife.of(given.certificate_pem, now)
