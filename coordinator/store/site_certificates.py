"""Sites' certificates after the first: who is given the next one, and which of several are good.

The next certificate is issued over the one before, for a request that the site's release key signed. It is only issued
then; it counts once it is *shown*: from that call on the older one is good for `BOTH_GOOD_DAYS` more, and renews
nothing any more. So an answer that was lost costs nothing, and whoever stole an older certificate has a week.

Every number (serial) that was issued stands in a table, each with the membership that it is of: a site that was revoked
and joined anew does not get its old certificates back. A number also says by itself which membership that was, so that
a certificate that was issued after the backup of a restored coordinator is known again when it is shown.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from coordinator.store import schema as db
from coordinator.store.engine import append_entry
from coordinator.store.members import caller
from coordinator.store.membership import renewal_leaf, renewals
from coordinator.store.schema import site_certificates as issued
from coordinator.store.store import RegisteredSite, Store
from shared.base.canonical import sha256_hex
from shared.base.chain import GENESIS
from shared.base.failpoints import reach
from shared.base.keys import Envelope, SigningKey
from shared.errors import CertificateRefusal, LedgerRefusal, ReplayRefusal, SignatureRefusal, StateRefusal
from shared.plans.invitation import certificate_of
from shared.wire.certificates import (
    BOTH_GOOD_DAYS,
    LATE_TYPE,
    RENEWAL_TYPE,
    SITE_DAYS,
    CertificateLife,
    LateAnswer,
    RenewalRequest,
    request_fingerprint,
    require_issued_by,
    serial_of,
)
from shared.wire.transport import Peer

__all__ = ["SiteCertificates", "SiteOutlook", "issued_by", "joined_days", "new_serial", "outlook"]

Issue = Callable[[str, str, int], str]
"""Makes the certificate of a request (PEM), for a site, with a serial number."""


def _mark(membership: str) -> int:
    """The first 63 bits of a serial number: which membership it is of."""
    return int(sha256_hex(f"tributary membership {membership}".encode())[:16], 16) >> 2 | 1 << 62


def new_serial(membership: str) -> int:
    """A number for a certificate of this membership (SHA-256)."""
    return _mark(membership) << 96 | secrets.randbits(96)


def _goes_back_to(serial: str, membership: str) -> bool:
    return len(serial) == 40 and serial.startswith(f"{_mark(membership):x}")


def _refused(given: str, step: str = "Ask the study lead.") -> CertificateRefusal:
    return CertificateRefusal("the certificate must be of a site that takes part", given=given, next_step=step)


@dataclass(frozen=True, kw_only=True)
class LateRequest:
    """A request for a certificate that came by hand, its signature verified.

    Args:
        fingerprint: what the site's steward reads out.
        behind: whether the ledger that it speaks of is older than the one witnessed here.
    """

    request: RenewalRequest
    envelope: Envelope
    fingerprint: str
    behind: bool


class SiteCertificates:
    """Every certificate that sites were given here.

    Args:
        store: the coordinator's store.
    """

    def __init__(self, store: Store) -> None:
        self._read, self._write = store.read, store.write
        self._store = store

    # -- who may call -------------------------------------------------------------------------------------------
    def require(self, peer: Peer, today: dt.date) -> None:
        """Refuse a certificate that is revoked, that another has followed, or that its membership never had.

        Raises: CertificateRefusal.
        """

        def work(c: sa.Connection) -> tuple[sa.Row | None, sa.Row, str]:
            site = caller(c, peer.site, peer.serial)
            return _row(c, peer.serial), site, _membership(c, site)

        row, site, membership = self._read(work)
        if row is None:
            if not (_is_current(site, peer.serial) or _goes_back_to(peer.serial, membership)):
                raise _refused("one that this membership was never given")
            return
        if (row.site, row.membership) != (peer.site, membership):
            raise _refused("one of an earlier membership")
        if row.state == "replaced":
            raise _refused("one that was issued anew before it was shown")
        if row.good_until and today.isoformat() > row.good_until:
            step = (
                "Put back from a backup? site-agent renew --late. Else its keys are elsewhere too: call the study lead."
            )
            raise _refused(f"one that a newer one has followed; it was good until {row.good_until}", step)

    def arrived(self, peer: Peer, today: dt.date) -> None:
        """Note that a site has shown its certificate: from now on it is the site's; again changes nothing.

        Raises: StorageRefusal.
        """

        def settled(c: sa.Connection) -> bool:
            site, row = _site(c, peer.site), _row(c, peer.serial)
            return site is None or _is_current(site, peer.serial) or (row is not None and row.state != "issued")

        def work(c: sa.Connection) -> None:
            site, row = _site(c, peer.site), _row(c, peer.serial)
            if site is None or site.state != "accepted" or _is_current(site, peer.serial):
                return
            if row is None:
                # Issued after the backup that this database comes from. One that ends before the one known here is
                # no newer one: it is let in until then, and follows nothing.
                if not (peer.certificate_pem and _goes_back_to(peer.serial, _membership(c, site))):
                    return
                if not _lasts_longer(peer.certificate_pem, site.certificate_pem):
                    return
                pem, csr = peer.certificate_pem, site.csr_pem
                _keep(c, site, peer.serial, "shown", pem=pem, csr=csr, day=today)
            elif row.state == "issued" and row.membership == _membership(c, site):
                pem, csr = row.certificate_pem, row.csr_pem
                c.execute(issued.update().where(issued.c.serial == peer.serial).values(state="shown"))
            else:
                return
            _follow(c, site, today)
            values = {"certificate_pem": pem, "csr_pem": csr}
            c.execute(db.sites.update().where(db.sites.c.site == peer.site).values(**values))
            if c.execute(sa.select(db.arrived).where(db.arrived.c.serial == peer.serial)).first() is None:
                c.execute(db.arrived.insert().values(serial=peer.serial, site=peer.site))

        if not self._read(settled):
            reach("renewal.before_shown")
            self._write(work)
            reach("renewal.after_shown")

    def first_serial(self, site: str) -> int:
        """The number for the certificate that joining brings."""

        def work(c: sa.Connection) -> int:
            found = _site(c, site)
            return 0 if found is None else new_serial(_membership(c, found))

        return self._read(work)

    # -- the next one -------------------------------------------------------------------------------------------
    def renew(
        self,
        envelope: Envelope,
        peer: Peer,
        site: RegisteredSite,
        *,
        issue: Issue,
        today: dt.date,
    ) -> str:
        """The certificate that follows the one over which a site calls; the same request again, the same one.

        Args:
            envelope: a `RenewalRequest` under `RENEWAL_TYPE`.
            issue: makes a certificate; refuses where the clock that would date it is not believed.
        Raises: SignatureRefusal (not the site's release key), ReplayRefusal (another site's or certificate's, or a
            request that has served), LedgerRefusal (not the head witnessed last), CertificateRefusal (followed
            already, clock, authority's end, no request of a key).
        """
        payload = envelope.require(RENEWAL_TYPE, {site.release_key.key_id: site.release_key})
        request = RenewalRequest.from_bytes(payload)
        if (request.site, request.serial) != (peer.site, peer.serial):
            raise ReplayRefusal(
                "a renewal must be asked over the certificate that it names",
                given="a request for another",
                next_step="Nothing was issued. The agent asks anew at its next round.",
            )
        known = self._served(envelope.digest, site.site)
        if known is not None:
            return known
        witnessed = self._store.anchor(site.site)
        if (request.seq, request.head) != ((0, GENESIS) if witnessed is None else (witnessed.seq, witnessed.head)):
            raise LedgerRefusal(
                "a renewal must name the head of the ledger that was witnessed last",
                given=f"entry {request.seq}",
                next_step="The agent asks anew at its next round. If it is refused again: site-agent ledger recover.",
            )
        return self._issue(request, envelope, issue, today, over=peer.serial)

    def _served(self, digest: str, name: str) -> str | None:
        """The certificate that a request was given before. Raises: ReplayRefusal, where that one was replaced."""

        def work(c: sa.Connection) -> tuple[sa.Row | None, str]:
            found: sa.Row | None = c.execute(sa.select(issued).where(issued.c.request == digest)).first()
            site = _site(c, name)
            return found, "" if site is None else _membership(c, site)

        row, membership = self._read(work)
        if row is None:
            return None
        if row.membership != membership or row.state == "replaced":
            raise ReplayRefusal("a renewal's request must be new", given="one that has served", next_step="Ask anew.")
        return str(row.certificate_pem)

    def _forget(self, digest: str) -> None:
        """Have a request be answered anew: what it was given counts for nothing."""
        given = issued.update().where(issued.c.request == digest)
        self._write(lambda c: c.execute(given.values(state="replaced", request="")))

    def _issue(self, request: RenewalRequest, asked: Envelope, issue: Issue, today: dt.date, *, over: str) -> str:
        """Sign, log and keep a certificate, in the one transaction that sees the site taking part."""

        def work(c: sa.Connection) -> str:
            site = _site(c, request.site)
            if site is None or site.state != "accepted":
                raise _refused("one of a site that was revoked")
            if over and not _is_current(site, over):
                raise CertificateRefusal(
                    "a renewal must be asked over the site's newest certificate",
                    given="one that another has followed",
                    next_step="If this site never renewed it, tell the study lead at once: its keys are elsewhere too.",
                )
            pem = issue(request.csr_pem, request.site, new_serial(_membership(c, site)))
            waiting = (issued.c.site == request.site) & (issued.c.state == "issued")
            c.execute(issued.update().where(waiting).values(state="replaced"))
            _keep(c, site, serial_of(pem), "issued", pem=pem, csr=request.csr_pem, day=today, request=asked.digest)
            index, _ = append_entry(c, renewal_leaf(request.site, serial_of(pem), asked))
            values = {"site": request.site, "serial": serial_of(pem), "envelope": asked.to_bytes(), "log_index": index}
            c.execute(renewals.insert().values(**values))
            reach("renewal.before_commit")
            return pem

        pem = self._write(work)
        reach("renewal.after_commit")
        return pem

    # -- by hand ------------------------------------------------------------------------------------------------
    def late_request(self, data: bytes) -> LateRequest:
        """Open a request that came by hand. Raises: SignatureRefusal (not its site's key), StateRefusal, ….

        The site was away longer than its certificate lives, so that nothing but its release key speaks for it.
        """
        envelope = Envelope.from_bytes(data)
        request = RenewalRequest.from_bytes(envelope.payload)
        site = self._store.enrolment(request.site)
        envelope.require(LATE_TYPE, {site.release_key.key_id: site.release_key})
        if site.state != "accepted":
            raise StateRefusal(
                "a site must take part to be given its next certificate",
                given=f"a site that is {site.state}",
                next_step=f"Invite it anew: coordinator invite {site.site}.",
            )
        witnessed = self._store.anchor(site.site)
        seq, head = (0, GENESIS) if witnessed is None else (witnessed.seq, witnessed.head)
        behind = request.seq < seq or (request.seq == seq and request.head != head)
        return LateRequest(request=request, envelope=envelope, fingerprint=request_fingerprint(envelope), behind=behind)

    def answer_late(
        self,
        late: LateRequest,
        fingerprint: str,
        *,
        issue: Issue,
        statements: Sequence[bytes],
        believed: Sequence[str],
        witness: SigningKey,
        today: dt.date,
        dry_run: bool = False,
    ) -> Envelope | None:
        """The signed answer to a late request, if its fingerprint is what the steward read out; again, the same.

        Args:
            believed: the authorities whose certificates count; one that another issued is issued anew.
        Raises: SignatureRefusal (another fingerprint), CertificateRefusal, ReplayRefusal.
        """
        if "".join(fingerprint.lower().split()) != "".join(late.fingerprint.split()):
            raise SignatureRefusal(
                "the fingerprint must be that of the request",
                given="another",
                next_step="Ask the steward to read it out again; if it differs, somebody else made this request.",
            )
        pem = self._served(late.envelope.digest, late.request.site)
        if pem is not None and not issued_by(pem, believed):
            if not dry_run:
                self._forget(late.envelope.digest)
            pem = None
        if pem is None:
            if dry_run:
                return None
            pem = self._issue(late.request, late.envelope, issue, today, over="")
        answer = LateAnswer(
            site=late.request.site,
            request=late.envelope.digest,
            certificate_pem=pem,
            statements=tuple(one.decode() for one in statements),
        )
        return None if dry_run else answer.signed(witness)


def issued_by(pem: str, believed: Sequence[str]) -> bool:
    """True if one of these authorities has issued a certificate."""
    try:
        require_issued_by(pem, believed)
    except CertificateRefusal:
        return False
    return True


def joined_days(store: Store, sites: Sequence[RegisteredSite]) -> dict[str, dt.date]:
    """The day on which each site's present membership got its first certificate: from then on it could send.

    A certificate is valid from the beginning of its authority; when it was made follows from its end. Sites without a
    certificate are left out.
    """
    rows: dict[str, list[sa.Row]] = {}
    for row in store.read(lambda c: c.execute(sa.select(issued).where(issued.c.state == "shown")).all()):
        rows.setdefault(row.site, []).append(row)
    days = {}
    for one in sites:
        if one.certificate_pem:
            own = rows.get(one.site, [])
            now = {row.membership for row in own if row.serial == serial_of(one.certificate_pem)}
            every = [one.certificate_pem, *(row.certificate_pem for row in own if row.membership in now)]
            ends = min(certificate_of(pem).not_valid_after_utc for pem in every)
            days[one.site] = (ends - dt.timedelta(days=SITE_DAYS)).date()
    return days


# Asked in each call, and so written once.
_ISSUED = sa.select(issued).where(issued.c.serial == sa.bindparam("serial"))
_NAMED = sa.select(db.sites).where(db.sites.c.site == sa.bindparam("site"))
_USED = sa.select(db.invitations.c.token_sha256).where(db.invitations.c.site == sa.bindparam("site"))
_USED = _USED.where(db.invitations.c.used_for.is_not(None))


def _row(c: sa.Connection, serial: str) -> sa.Row | None:
    return c.execute(_ISSUED, {"serial": serial}).first()


def _site(c: sa.Connection, name: str) -> sa.Row | None:
    return c.execute(_NAMED, {"site": name}).first()


def _membership(c: sa.Connection, site: sa.Row) -> str:
    """What tells a site's present membership from an earlier one: its request to join, and every token it has used."""
    tokens = c.execute(_USED, {"site": site.site}).scalars()
    return sha256_hex(" ".join([site.request_sha256, *sorted(tokens)]).encode())


def _is_current(site: sa.Row, serial: str) -> bool:
    return bool(site.certificate_pem) and serial_of(site.certificate_pem) == serial


def _lasts_longer(one: str, other: str) -> bool:
    ends = [certificate_of(pem).not_valid_after_utc if pem else None for pem in (one, other)]
    return ends[1] is None or (ends[0] is not None and ends[0] > ends[1])


def _keep(
    c: sa.Connection, site: sa.Row, serial: str, state: str, *, pem: str, csr: str, day: dt.date, request: str = ""
) -> None:
    values = {"serial": serial, "site": site.site, "membership": _membership(c, site), "state": state}
    values |= {"request": request, "csr_pem": csr, "certificate_pem": pem, "day": day.isoformat(), "good_until": ""}
    c.execute(issued.insert().values(**values))


def _follow(c: sa.Connection, site: sa.Row, today: dt.date) -> None:
    """Have the certificate that a site had until now end within the week."""
    if not site.certificate_pem:
        return
    old = serial_of(site.certificate_pem)
    if _row(c, old) is None:
        _keep(c, site, old, "shown", pem=site.certificate_pem, csr=site.csr_pem, day=today)
    until = (today + dt.timedelta(days=BOTH_GOOD_DAYS)).isoformat()
    c.execute(issued.update().where(issued.c.serial == old).values(good_until=until))


# -- what is told before one ends ----------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class SiteOutlook:
    """One accepted site's certificate as it stands now.

    Args:
        life: None where the site has not fetched its first one.
    """

    site: str
    life: CertificateLife | None

    @property
    def warning(self) -> str:
        """Sentence for the study lead once the certificate ends soon or has ended; blank while renewal needs nobody."""
        if self.life is None or self.life.state in ("good", "due"):
            return ""
        return f"certificate of {self.site}: {self.life.words}"

    @property
    def mend(self) -> str:
        """Remedy that is shown with `warning`: who does what so that the site has a valid certificate."""
        if self.life is not None and self.life.state == "over":
            return f"{self.site} runs site-agent renew --late; you answer with coordinator renew-late {self.site}."
        return (
            f"Ask {self.site} whether its agent runs (site-agent run, of this version); site-agent renew says why not."
        )


def outlook(sites: Sequence[RegisteredSite], now: dt.datetime) -> tuple[SiteOutlook, ...]:
    """Outlook of every accepted site, sorted by name."""
    return tuple(
        SiteOutlook(site=one.site, life=CertificateLife.of(one.certificate_pem, now) if one.certificate_pem else None)
        for one in sites
        if one.state == "accepted"
    )
