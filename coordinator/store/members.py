"""Plans, and the sites that take part: invitations, requests to join, keys, certificates, revocations."""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from coordinator.store import membership
from coordinator.store import schema as db
from coordinator.store.engine import Database, append_entry, log_size
from coordinator.store.rows import KeyHistory, RegisteredSite, StoredPlan
from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, PublicKey
from shared.errors import (
    CertificateRefusal,
    PlanRefusal,
    PlanRollback,
    SignatureRefusal,
    StateRefusal,
    TokenRefusal,
    meant,
)
from shared.plans.invitation import Invitation
from shared.plans.plan import StudyPlan
from shared.wire.signed_messages import EnrolmentRequest

__all__ = [
    "UNKNOWN_PLAN",
    "accept_site",
    "add_invitation",
    "add_plan",
    "all_plans",
    "all_sites",
    "arrived",
    "caller",
    "enrol",
    "enrolment",
    "forget_certificate",
    "key_history",
    "members",
    "plan_of",
    "refuse_site",
    "require_invited",
    "require_site",
    "retire_keys",
    "revoke_site",
    "set_certificate",
    "stored_plan",
]

UNKNOWN_PLAN = "the plan must be known to the coordinator"
"""What must hold of a study or version that nobody has signed here."""


def add_plan(store: Database, envelope: Envelope, plan: StudyPlan) -> StoredPlan:
    """Keep a signed plan. The same plan again, or with more signatures, replaces its envelope.

    Raises: PlanRollback, when it is not newer than the newest; PlanRefusal, when its version is another plan;
        StateRefusal, when the study is over.
    """
    if envelope.digest != plan.hash:
        raise SignatureRefusal("the envelope must be the plan's", given="another payload")

    def work(c: sa.Connection) -> None:
        rows = c.execute(sa.select(db.plans.c.version, db.plans.c.hash).where(db.plans.c.study == plan.study)).all()
        known = {row.version: row.hash for row in rows}
        if known.get(plan.version) == plan.hash:
            where = (db.plans.c.study == plan.study) & (db.plans.c.version == plan.version)
            c.execute(db.plans.update().where(where).values(envelope=envelope.to_bytes()))
            return
        if plan.version in known:
            raise PlanRefusal(
                "a plan's version must name one plan",
                given=f"{plan.version} twice",
                next_step="Raise the version.",
            )
        if known and plan.version < max(known):
            raise PlanRollback(
                f"a new plan must be newer than version {max(known)}",
                given=f"{plan.version}",
                next_step="Raise the version.",
            )
        membership.require_open(c, plan.study)
        values = {"study": plan.study, "version": plan.version, "hash": plan.hash}
        c.execute(db.plans.insert().values(**values, envelope=envelope.to_bytes()))

    store.write(work)
    return StoredPlan(envelope=envelope, plan=plan)


def plan_of(store: Database, study: str, version: int | None = None) -> StoredPlan:
    """The plan of `study`; the newest version unless one is named. Raises: PlanRefusal."""
    query, given = (_NEWEST, {"study": study}) if version is None else (_VERSION, {"study": study, "version": version})
    row = store.read(lambda c: c.execute(query, given).first())
    if row is None:
        what = study if version is None else f"{study} version {version}"
        raise PlanRefusal(UNKNOWN_PLAN, given=what, next_step="Ask the study lead which studies there are.")
    return stored_plan(row.envelope)


def all_plans(store: Database) -> tuple[StoredPlan, ...]:
    """Every version of every plan, by study and version."""
    query = sa.select(db.plans.c.envelope).order_by(db.plans.c.study, db.plans.c.version)
    return tuple(stored_plan(row.envelope) for row in store.read(lambda c: c.execute(query).all()))


def add_invitation(store: Database, invitation: Invitation) -> None:
    """Keep the hash of an invitation's token, never the token."""
    values = {
        "token_sha256": invitation.token_sha256,
        "site": invitation.site,
        "studies": json.dumps(invitation.studies),
        "expires": invitation.expires,
    }
    store.write(lambda c: c.execute(db.invitations.insert().values(**values)))


def enrol(
    store: Database, *, token: str, site: str, request: EnrolmentRequest, digest: str, today: dt.date
) -> RegisteredSite:
    """Take a site's request to join: once per token; the same request again changes nothing.

    Args:
        token: the invitation's token.
        site: the site named by the bootstrap certificate.
        request: the request, its signature verified.
        digest: SHA-256 of the request's bytes: what the token is used for.
        today: UTC date.
    Raises: TokenRefusal (unknown, used, expired, of another site), StateRefusal (the site is accepted already).
    """
    token_sha256 = sha256_hex(token.encode())

    def work(c: sa.Connection) -> None:
        found = c.execute(sa.select(db.invitations).where(db.invitations.c.token_sha256 == token_sha256)).first()
        step = "Ask the study lead for a new one (coordinator invite)."
        if found is None or found.site != site or request.site != site:
            raise TokenRefusal("the token must be this site's", given="another", next_step=step)
        old = c.execute(sa.select(db.sites).where(db.sites.c.site == site)).first()
        if found.used_for is not None:
            if found.used_for != digest or old is None or old.request_sha256 != digest:
                raise TokenRefusal("a token must be used once", given="another request", next_step=step)
            return
        if today > found.expires:
            raise TokenRefusal("the token must not be expired", given=f"{found.expires}", next_step=step)
        if old is not None and old.state == "accepted":
            raise StateRefusal(
                "a site that takes part must be revoked before it joins anew",
                given="an accepted site",
                next_step="Ask the study lead (coordinator revoke, then invite).",
            )
        values = {
            "site": site,
            "state": "pending",
            "studies": json.dumps(membership.takes_part(c, site, json.loads(found.studies))),
            "request_sha256": digest,
            "csr_pem": request.csr_pem,
            "certificate_pem": "",
            "reason": "",
        }
        retire_keys(c, site)
        membership.begin_anew(c, site)
        if old is None:
            c.execute(db.sites.insert().values(**values))
        else:
            c.execute(db.sites.update().where(db.sites.c.site == site).values(**values))
        keys = [{"site": site, "role": "release", "name": "", "public_key": request.release_key.hex}]
        for name, key in request.approvers.items():
            keys.append({"site": site, "role": "approver", "name": name, "public_key": key.hex})
        c.execute(db.site_keys.insert(), keys)
        used = db.invitations.update().where(
            (db.invitations.c.token_sha256 == token_sha256) & db.invitations.c.used_for.is_(None)
        )
        if c.execute(used.values(used_for=digest)).rowcount != 1:
            raise TokenRefusal("a token must be used once", given="another request", next_step=step)

    store.write(work)
    return enrolment(store, site)


def enrolment(store: Database, site: str) -> RegisteredSite:
    """The site called `site`. Raises: StateRefusal, when it never asked to join."""
    for found in _sites(store, _NAMED, {"site": site}):
        return found
    known = [one.site for one in all_sites(store)]
    invited = sa.select(db.invitations.c.site).where(db.invitations.c.site == site).limit(1)
    if store.read(lambda c: c.execute(invited).first()):  # so its name is no slip of another's
        step = f"It runs site-agent join with its invitation. Sites that have asked: {', '.join(known) or 'none yet'}."
    else:
        step = meant(site, known, what="It runs site-agent join with its invitation. Sites that have asked")
    raise StateRefusal("the site must have asked to join", given=repr(site), next_step=step)


def all_sites(store: Database) -> tuple[RegisteredSite, ...]:
    """All sites, by name."""
    return _sites(store, sa.select(db.sites).order_by(db.sites.c.site), {})


# Asked in each call, and so written once: to write an SQL statement takes longer than to answer it.
_REVOKED = sa.exists().where(db.revoked.c.serial == sa.bindparam("serial"))
_CALLER = sa.select(db.sites, _REVOKED.label("gone")).where(db.sites.c.site == sa.bindparam("site"))
_NAMED = sa.select(db.sites).where(db.sites.c.site == sa.bindparam("site"))
_KEYS = sa.select(db.site_keys).where(db.site_keys.c.site.in_(sa.bindparam("sites", expanding=True)))
_NEWEST = sa.select(db.plans).where(db.plans.c.study == sa.bindparam("study")).order_by(db.plans.c.version.desc())
_NEWEST = _NEWEST.limit(1)
_VERSION = _NEWEST.where(db.plans.c.version == sa.bindparam("version"))


def _sites(store: Database, query: sa.Select[Any], given: dict[str, str]) -> tuple[RegisteredSite, ...]:
    def work(c: sa.Connection) -> tuple[RegisteredSite, ...]:
        rows = c.execute(query, given).all()
        keys: dict[str, list[Any]] = {row.site: [] for row in rows}
        for key in c.execute(_KEYS, {"sites": list(keys)}):
            keys[key.site].append(key)
        return tuple(_site(row, keys[row.site]) for row in rows)

    return store.read(work)


def accept_site(store: Database, site: str, fingerprint: str) -> RegisteredSite:
    """Let a pending site take part; its certificate is issued when it next asks.

    Args:
        fingerprint: of its release key, as the steward told the lead.
    Raises: StateRefusal (nothing pending), SignatureRefusal (another fingerprint: somebody else asked).
    """
    found = enrolment(store, site)
    given = fingerprint.replace(" ", "").lower()
    if given != found.fingerprint.replace(" ", ""):
        raise SignatureRefusal(
            "the fingerprint must be that of the site's release key",
            given="another",
            next_step="Ask the steward to read it out (site-agent status); if it differs, invite anew.",
        )
    if found.state not in ("pending", "accepted"):
        raise StateRefusal("a site must be pending to be accepted", given=found.state)
    where = (db.sites.c.site == site) & (db.sites.c.state == "pending")
    store.write(lambda c: c.execute(db.sites.update().where(where).values(state="accepted")))
    return enrolment(store, site)


def set_certificate(store: Database, site: str, csr_pem: str, certificate_pem: str) -> RegisteredSite:
    """Keep the certificate issued for an accepted site's request; the first one stands."""
    where = (db.sites.c.site == site) & (db.sites.c.state == "accepted") & (db.sites.c.certificate_pem == "")
    where &= db.sites.c.csr_pem == csr_pem
    store.write(lambda c: c.execute(db.sites.update().where(where).values(certificate_pem=certificate_pem)))
    return enrolment(store, site)


def forget_certificate(store: Database, site: str, *, dry_run: bool = False) -> bool:
    """Have the certificate of an accepted site issued anew when it asks; False if it has shown the one it has."""
    found = enrolment(store, site)
    shown = sa.select(db.arrived).where(db.arrived.c.serial == _serial(found.certificate_pem))
    if found.state != "accepted" or store.read(lambda c: c.execute(shown).first()) is not None:
        return False
    where = (db.sites.c.site == site) & (db.sites.c.certificate_pem == found.certificate_pem)
    if not dry_run:
        store.write(lambda c: c.execute(db.sites.update().where(where).values(certificate_pem="")))
    return True


def refuse_site(store: Database, site: str, reason: str) -> RegisteredSite:
    """Turn a pending site away. Raises: StateRefusal."""
    if enrolment(store, site).state != "pending":
        raise StateRefusal("a site must be pending to be refused", given=enrolment(store, site).state)
    where = (db.sites.c.site == site) & (db.sites.c.state == "pending")
    values = {"state": "refused", "reason": reason or "refused by the study lead"}
    store.write(lambda c: c.execute(db.sites.update().where(where).values(**values)))
    return enrolment(store, site)


def revoke_site(store: Database, site: str) -> RegisteredSite:
    """End a site's access from this place of the log on; what it delivered before stays."""
    found = enrolment(store, site)

    def work(c: sa.Connection) -> None:
        c.execute(db.sites.update().where(db.sites.c.site == site).values(state="revoked", reason="revoked"))
        if found.certificate_pem:
            serial = _serial(found.certificate_pem)
            if c.execute(sa.select(db.revoked.c.serial).where(db.revoked.c.serial == serial)).first() is None:
                index, _ = append_entry(c, {"kind": "revocation", "site": site, "serial": serial})
                c.execute(db.revoked.insert().values(serial=serial, site=site, log_index=index))

    store.write(work)
    return enrolment(store, site)


def require_site(store: Database, site: str, serial: str) -> RegisteredSite:
    """The accepted site that a certificate names. Raises: CertificateRefusal (revoked, or not accepted)."""

    def work(c: sa.Connection) -> RegisteredSite:
        row = caller(c, site, serial)
        return _site(row, c.execute(_KEYS, {"sites": [site]}).all())

    return store.read(work)


def caller(c: sa.Connection, site: str, serial: str) -> sa.Row:
    """The row of the accepted site that a certificate names. Raises: CertificateRefusal (revoked, or not accepted)."""
    row = c.execute(_CALLER, {"site": site, "serial": serial}).first()
    if row is None or row.gone or row.state != "accepted":
        raise CertificateRefusal(
            "the certificate must be of a site that takes part",
            given="a revoked or unknown one",
            next_step="Ask the study lead.",
        )
    return row


def require_invited(store: Database, site: str) -> None:
    """Nothing, while an invitation of the site still has something to ask.

    An invitation has served when the site has shown the certificate that it brought, or was revoked. Which of
    several it was is not known here: while a newer one is open, the older one's certificate may knock as well.
    Raises: TokenRefusal.
    """

    def work(c: sa.Connection) -> bool:
        unused = db.invitations.c.used_for.is_(None)
        if c.execute(sa.select(db.invitations).where((db.invitations.c.site == site) & unused)).first():
            return True
        found = c.execute(sa.select(db.sites).where(db.sites.c.site == site)).first()
        if found is None or found.state == "revoked":
            return False
        if not found.certificate_pem:
            return True
        serial = _serial(found.certificate_pem)
        return c.execute(sa.select(db.arrived).where(db.arrived.c.serial == serial)).first() is None

    if not store.read(work):
        raise TokenRefusal(
            "an invitation must still be open",
            given="one that has served",
            next_step="Ask the study lead for a new one (coordinator invite).",
        )


def arrived(store: Database, site: str, serial: str) -> None:
    """Remember that a site has shown its certificate; again changes nothing."""
    shown = sa.select(db.arrived).where(db.arrived.c.serial == serial)
    if store.read(lambda c: c.execute(shown).first()) is None:

        def work(c: sa.Connection) -> None:
            if c.execute(shown).first() is None:
                c.execute(db.arrived.insert().values(serial=serial, site=site))

        store.write(work)


def members(store: Database, study: str) -> tuple[str, ...]:
    """Sites that take part in a study, by name."""
    return tuple(site.site for site in all_sites(store) if site.state == "accepted" and study in site.studies)


def _serial(certificate_pem: str) -> str:
    """A certificate's serial number, hexadecimal."""
    from cryptography import x509

    return f"{x509.load_pem_x509_certificate(certificate_pem.encode()).serial_number:x}"


# Read once: nobody changes a signed plan or a receipt, and every question reads them for every release.
@functools.lru_cache(maxsize=64)
def stored_plan(data: bytes) -> StoredPlan:
    """A signed plan, read from its envelope once."""
    envelope = Envelope.from_bytes(data)
    return StoredPlan(envelope=envelope, plan=StudyPlan.from_bytes(envelope.payload))


def retire_keys(c: sa.Connection, site: str) -> None:
    """Move a site's keys aside: what they signed so far stays signed, and they sign nothing more."""
    until = log_size(c)
    for row in c.execute(sa.select(db.site_keys).where(db.site_keys.c.site == site)).mappings().all():
        there = sa.and_(
            *(db.retired.c[name] == row[name] for name in ("site", "role", "name")), db.retired.c.until == until
        )
        if c.execute(sa.select(db.retired.c.site).where(there)).first() is None:
            c.execute(db.retired.insert().values(**row, until=until))
    c.execute(db.site_keys.delete().where(db.site_keys.c.site == site))


def key_history(c: sa.Connection) -> KeyHistory:
    """Every site's keys, and until which place in the log they were in force."""
    now = [(r.site, None, r.role, PublicKey(r.public_key)) for r in c.execute(sa.select(db.site_keys))]
    then = [(r.site, r.until, r.role, PublicKey(r.public_key)) for r in c.execute(sa.select(db.retired))]
    return KeyHistory((*now, *then))


def _site(row: Any, keys: Sequence[Any]) -> RegisteredSite:
    return RegisteredSite(
        site=row.site,
        state=row.state,
        studies=tuple(json.loads(row.studies)),
        release_key=next(PublicKey(key.public_key) for key in keys if key.role == "release"),
        approvers={key.name: PublicKey(key.public_key) for key in keys if key.role == "approver"},
        csr_pem=row.csr_pem,
        certificate_pem=row.certificate_pem,
        reason=row.reason,
    )
