"""What the coordinator knows: plans, sites and their keys, anchors, accepted releases, the log.

One SQL database (SQLite in the home folder by default; the SQL is portable) and one folder of bundles named by their
digest. The rules that must never break are constraints of the database, not only of the code: one release per
(study, wave, site), one row per bundle, one entry per place in the log. A release becomes visible in the same
transaction that logs it, after its bytes are on disk; readers only ever see whole releases.

Acknowledged means durable: SQLite runs with a write-ahead log and ``synchronous=FULL``.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from coordinator.log import append, consistency_proof, inclusion_proof, leaf_hash, peaks_root
from shared.canonical import canonical_json, sha256_hex
from shared.chain import GENESIS, head_fingerprint, heads
from shared.errors import (
    CertificateRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    ParameterError,
    PlanRefusal,
    PlanRollback,
    Refusal,
    ReplayRefusal,
    SignatureRefusal,
    StateRefusal,
    StorageRefusal,
    TokenRefusal,
    refusal_from_code,
)
from shared.invitation import Invitation
from shared.keys import Envelope, PublicKey
from shared.plan import StudyPlan
from shared.wire import Acceptance, AnchorHead, AnchorReceipt, EnrolmentRequest, Holding

if TYPE_CHECKING:
    import pandas as pd

    from shared.release import Receipt, Statement

__all__ = ["LogEntry", "Quarantined", "Release", "Site", "Store", "StoredPlan"]

TABLE_CAP = 2 << 30
T = TypeVar("T")

_meta = sa.MetaData()
_digest, _word = sa.String(64), sa.String(64)
_plans = sa.Table(
    "plans",
    _meta,
    sa.Column("study", _word, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("hash", _digest, nullable=False, unique=True),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
)
_invitations = sa.Table(
    "invitations",
    _meta,
    sa.Column("token_sha256", _digest, primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("expires", sa.Date, nullable=False),
    sa.Column("used_for", _digest),
)
_sites = sa.Table(
    "sites",
    _meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("studies", sa.Text, nullable=False),
    sa.Column("request_sha256", _digest, nullable=False),
    sa.Column("csr_pem", sa.Text, nullable=False),
    sa.Column("certificate_pem", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)
_site_keys = sa.Table(
    "site_keys",
    _meta,
    sa.Column("site", _word, sa.ForeignKey("sites.site"), primary_key=True),
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("name", _word, primary_key=True),
    sa.Column("public_key", _digest, nullable=False),
    sa.UniqueConstraint("site", "public_key"),
)
_revoked = sa.Table(
    "revoked",
    _meta,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("site", _word, nullable=False),
    sa.Column("log_index", sa.Integer, nullable=False),
)
_log = sa.Table(
    "log",
    _meta,
    sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
    sa.Column("leaf", sa.LargeBinary(32), nullable=False),
    sa.Column("peaks", sa.LargeBinary, nullable=False),
    sa.Column("root", _digest, nullable=False),
)
_anchors = sa.Table(
    "anchors",
    _meta,
    # A ledger that begins anew uses its numbers again: the order of witnessing is the log's.
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), primary_key=True, autoincrement=False),
    sa.Column("site", _word, nullable=False, index=True),
    sa.Column("line", sa.Integer, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("head", _digest, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("site", "line", "seq"),
)
# What the lead has allowed and the site has not used yet: bound to the head that is left behind.
_reanchors = sa.Table(
    "reanchors",
    _meta,
    sa.Column("site", _word, primary_key=True),
    sa.Column("fingerprint", sa.String(32), nullable=False),
    sa.Column("left_index", sa.Integer, sa.ForeignKey("anchors.log_index"), nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False),
)
_releases = sa.Table(
    "releases",
    _meta,
    sa.Column("release_id", _word, primary_key=True),
    sa.Column("study", _word, nullable=False),
    sa.Column("plan_hash", _digest, sa.ForeignKey("plans.hash"), nullable=False),
    sa.Column("plan_version", sa.Integer, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", _word, sa.ForeignKey("sites.site"), nullable=False),
    sa.Column("bundle_sha256", _digest, nullable=False, unique=True),
    sa.Column("bundle_bytes", sa.BigInteger, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("receipt", sa.LargeBinary, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("log_index", sa.Integer, sa.ForeignKey("log.index"), nullable=False, unique=True),
    sa.Column("log_root", _digest, nullable=False),
    sa.Column("accepted_day", sa.String(10), nullable=False),
    sa.UniqueConstraint("study", "wave", "site"),
)
_quarantine = sa.Table(
    "quarantine",
    _meta,
    sa.Column("bundle_sha256", _digest, primary_key=True),
    sa.Column("release_id", _word, nullable=False),
    sa.Column("study", _word, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("site", _word, nullable=False),
    sa.Column("code", sa.String(32), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("day", sa.String(10), nullable=False),
)


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """One signed version of a study's plan."""

    envelope: Envelope
    plan: StudyPlan


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site and its pinned keys.

    Args:
        state: pending, accepted, refused or revoked.
        studies: studies it was invited to.
        release_key: the key that signs its ledger heads and releases.
        approvers: its approvers' keys, by name.
        certificate_pem: its client certificate, once issued.
        reason: why it was refused.
    """

    site: str
    state: str
    studies: tuple[str, ...]
    release_key: PublicKey
    approvers: Mapping[str, PublicKey]
    csr_pem: str = field(default="", repr=False)
    certificate_pem: str = field(default="", repr=False)
    reason: str = ""

    @property
    def fingerprint(self) -> str:
        """What lead and steward compare."""
        return self.release_key.fingerprint


@dataclass(frozen=True, kw_only=True)
class Release:
    """An accepted release; its table is in `Store.table`."""

    release_id: str
    study: str
    plan_hash: str
    plan_version: int
    wave: int
    site: str
    bundle_sha256: str
    bundle_bytes: int
    n: int
    receipt: Receipt
    envelope: Envelope
    log_index: int
    log_root: str
    accepted_day: str

    @property
    def acceptance(self) -> Acceptance:
        """What the site was answered, and is answered whenever it asks again."""
        return Acceptance(
            study=self.study,
            wave=self.wave,
            site=self.site,
            release_id=self.release_id,
            bundle_sha256=self.bundle_sha256,
            log_index=self.log_index,
            log_root=self.log_root,
            accepted_day=self.accepted_day,
        )


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A release with valid signatures and wrong content: kept apart, never shown to analysts."""

    bundle_sha256: str
    release_id: str
    study: str
    wave: int
    site: str
    code: str
    reason: str
    day: str

    @property
    def refusal(self) -> Refusal:
        """The refusal that the site was answered."""
        return refusal_from_code(self.code, self.reason)


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One leaf of the log."""

    index: int
    entry: bytes
    root: str


class Store:
    """The coordinator's memory. Safe for many threads, and for several processes on one database.

    Args:
        url: SQLAlchemy URL, e.g. ``sqlite:////srv/coordinator/store.db``.
        home: folder that holds ``bundles/``; for SQLite the database's own folder by default.
    Raises: StorageRefusal, when the database cannot be opened.
    """

    def __init__(self, url: str, home: Path | None = None) -> None:
        parsed = sa.make_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        if home is None:
            home = Path(parsed.database or "store.db").parent if sqlite else Path()
        self.bundles = home / "bundles"
        # One writer at a time within this process: cheaper than letting the database send losers back.
        self._writing = threading.Lock()
        options: dict[str, Any] = {"pool_size": 16, "max_overflow": 48}
        self._engine = sa.create_engine(url, **options)
        if sqlite:
            sa.event.listen(self._engine, "connect", _sqlite_connect)
            sa.event.listen(self._engine, "begin", _sqlite_begin)
        try:
            _meta.create_all(self._engine)
        except DBAPIError as error:
            raise _storage(error) from None

    @classmethod
    def open(cls, home: Path, url: str = "") -> Store:
        """The store of a home folder: SQLite in it, unless `url` names another database."""
        return cls(url or f"sqlite:///{home / 'store.db'}", home)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    # -- transactions -------------------------------------------------------------------------------------------
    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return work(connection)
        except DBAPIError as error:
            raise _storage(error) from None

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in one transaction; again from the start when another process was faster."""
        with self._writing:
            for attempt in range(20):
                try:
                    with self._engine.connect().execution_options(tributary_write=True) as connection:
                        with connection.begin():
                            done = work(connection)
                        return done
                except (IntegrityError, OperationalError) as error:
                    full = "full" in str(error.orig) or "readonly" in str(error.orig)
                    if attempt == 19 or full:
                        raise _storage(error) from None
                    time.sleep(0.01 * attempt)
                except DBAPIError as error:
                    raise _storage(error) from None
        raise AssertionError("unreachable")

    # -- plans --------------------------------------------------------------------------------------------------
    def add_plan(self, envelope: Envelope, plan: StudyPlan) -> StoredPlan:
        """Keep a signed plan. The same plan again, or with more signatures, replaces its envelope.

        Raises: PlanRollback, when it is not newer than the newest; PlanRefusal, when its version is another plan.
        """
        if envelope.digest != plan.hash:
            raise SignatureRefusal("the envelope must be the plan's", given="another payload")

        def work(c: sa.Connection) -> None:
            rows = c.execute(sa.select(_plans.c.version, _plans.c.hash).where(_plans.c.study == plan.study)).all()
            known = {row.version: row.hash for row in rows}
            if known.get(plan.version) == plan.hash:
                where = (_plans.c.study == plan.study) & (_plans.c.version == plan.version)
                c.execute(_plans.update().where(where).values(envelope=envelope.to_bytes()))
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
            values = {"study": plan.study, "version": plan.version, "hash": plan.hash}
            c.execute(_plans.insert().values(**values, envelope=envelope.to_bytes()))

        self._write(work)
        return StoredPlan(envelope=envelope, plan=plan)

    def plan(self, study: str, version: int | None = None) -> StoredPlan:
        """The plan of `study`; the newest version unless one is named. Raises: PlanRefusal."""
        query = sa.select(_plans).where(_plans.c.study == study).order_by(_plans.c.version.desc()).limit(1)
        if version is not None:
            query = query.where(_plans.c.version == version)
        row = self._read(lambda c: c.execute(query).first())
        if row is None:
            what = study if version is None else f"{study} version {version}"
            raise PlanRefusal(
                "the plan must be known to the coordinator", given=what, next_step="See coordinator plan."
            )
        envelope = Envelope.from_bytes(row.envelope)
        return StoredPlan(envelope=envelope, plan=StudyPlan.from_bytes(envelope.payload))

    def plans(self) -> tuple[StoredPlan, ...]:
        """Every version of every plan, by study and version."""
        query = sa.select(_plans.c.envelope).order_by(_plans.c.study, _plans.c.version)
        envelopes = [Envelope.from_bytes(row.envelope) for row in self._read(lambda c: c.execute(query).all())]
        return tuple(StoredPlan(envelope=item, plan=StudyPlan.from_bytes(item.payload)) for item in envelopes)

    # -- sites --------------------------------------------------------------------------------------------------
    def add_invitation(self, invitation: Invitation) -> None:
        """Keep the hash of an invitation's token, never the token."""
        values = {
            "token_sha256": invitation.token_sha256,
            "site": invitation.site,
            "studies": json.dumps(invitation.studies),
            "expires": invitation.expires,
        }
        self._write(lambda c: c.execute(_invitations.insert().values(**values)))

    def enrol(self, *, token: str, site: str, request: EnrolmentRequest, digest: str, today: dt.date) -> Site:
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
            found = c.execute(sa.select(_invitations).where(_invitations.c.token_sha256 == token_sha256)).first()
            step = "Ask the study lead for a new one (coordinator invite)."
            if found is None or found.site != site or request.site != site:
                raise TokenRefusal("the token must be this site's", given="another", next_step=step)
            old = c.execute(sa.select(_sites).where(_sites.c.site == site)).first()
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
                "studies": found.studies,
                "request_sha256": digest,
                "csr_pem": request.csr_pem,
                "certificate_pem": "",
                "reason": "",
            }
            c.execute(_site_keys.delete().where(_site_keys.c.site == site))
            if old is None:
                c.execute(_sites.insert().values(**values))
            else:
                c.execute(_sites.update().where(_sites.c.site == site).values(**values))
            keys = [{"site": site, "role": "release", "name": "", "public_key": request.release_key.hex}]
            for name, key in request.approvers.items():
                keys.append({"site": site, "role": "approver", "name": name, "public_key": key.hex})
            c.execute(_site_keys.insert(), keys)
            used = _invitations.update().where(
                (_invitations.c.token_sha256 == token_sha256) & _invitations.c.used_for.is_(None)
            )
            if c.execute(used.values(used_for=digest)).rowcount != 1:
                raise TokenRefusal("a token must be used once", given="another request", next_step=step)

        self._write(work)
        return self.enrolment(site)

    def enrolment(self, site: str) -> Site:
        """The site called `site`. Raises: StateRefusal, when it never asked to join."""
        for found in self._sites(_sites.c.site == site):
            return found
        raise StateRefusal(
            "the site must have asked to join",
            given=repr(site),
            next_step="It runs site-agent join with its invitation.",
        )

    def sites(self) -> tuple[Site, ...]:
        """All sites, by name."""
        return self._sites(sa.true())

    def _sites(self, where: sa.ColumnElement[bool]) -> tuple[Site, ...]:
        def work(c: sa.Connection) -> tuple[Site, ...]:
            rows = c.execute(sa.select(_sites).where(where).order_by(_sites.c.site)).all()
            keys = c.execute(sa.select(_site_keys).where(_site_keys.c.site.in_([row.site for row in rows]))).all()
            return tuple(_site(row, [key for key in keys if key.site == row.site]) for row in rows)

        return self._read(work)

    def accept_site(self, site: str, fingerprint: str) -> Site:
        """Let a pending site take part; its certificate is issued when it next asks.

        Args:
            fingerprint: of its release key, as the steward told the lead.
        Raises: StateRefusal (nothing pending), SignatureRefusal (another fingerprint: somebody else asked).
        """
        found = self.enrolment(site)
        given = fingerprint.replace(" ", "").lower()
        if given != found.fingerprint.replace(" ", ""):
            raise SignatureRefusal(
                "the fingerprint must be that of the site's release key",
                given="another",
                next_step="Ask the steward to read it out (site-agent status); if it differs, invite anew.",
            )
        if found.state not in ("pending", "accepted"):
            raise StateRefusal("a site must be pending to be accepted", given=found.state)
        where = (_sites.c.site == site) & (_sites.c.state == "pending")
        self._write(lambda c: c.execute(_sites.update().where(where).values(state="accepted")))
        return self.enrolment(site)

    def set_certificate(self, site: str, csr_pem: str, certificate_pem: str) -> Site:
        """Keep the certificate issued for an accepted site's request; the first one stands."""
        where = (_sites.c.site == site) & (_sites.c.state == "accepted") & (_sites.c.certificate_pem == "")
        where &= _sites.c.csr_pem == csr_pem
        self._write(lambda c: c.execute(_sites.update().where(where).values(certificate_pem=certificate_pem)))
        return self.enrolment(site)

    def refuse_site(self, site: str, reason: str) -> Site:
        """Turn a pending site away. Raises: StateRefusal."""
        if self.enrolment(site).state != "pending":
            raise StateRefusal("a site must be pending to be refused", given=self.enrolment(site).state)
        where = (_sites.c.site == site) & (_sites.c.state == "pending")
        values = {"state": "refused", "reason": reason or "refused by the study lead"}
        self._write(lambda c: c.execute(_sites.update().where(where).values(**values)))
        return self.enrolment(site)

    def revoke_site(self, site: str) -> Site:
        """End a site's access from this place of the log on; what it delivered before stays."""
        from cryptography import x509

        found = self.enrolment(site)

        def work(c: sa.Connection) -> None:
            c.execute(_sites.update().where(_sites.c.site == site).values(state="revoked", reason="revoked"))
            if found.certificate_pem:
                serial = f"{x509.load_pem_x509_certificate(found.certificate_pem.encode()).serial_number:x}"
                if c.execute(sa.select(_revoked.c.serial).where(_revoked.c.serial == serial)).first() is None:
                    index, _ = _append(c, {"kind": "revocation", "site": site, "serial": serial})
                    c.execute(_revoked.insert().values(serial=serial, site=site, log_index=index))

        self._write(work)
        return self.enrolment(site)

    def require_site(self, site: str, serial: str) -> Site:
        """The accepted site that a certificate names. Raises: CertificateRefusal (revoked, or not accepted)."""
        gone = self._read(lambda c: c.execute(sa.select(_revoked).where(_revoked.c.serial == serial)).first())
        found = self._sites(_sites.c.site == site)
        if gone is not None or not found or found[0].state != "accepted":
            raise CertificateRefusal(
                "the certificate must be of a site that takes part",
                given="a revoked or unknown one",
                next_step="Ask the study lead.",
            )
        return found[0]

    # -- anchors ------------------------------------------------------------------------------------------------
    def add_anchor(self, head: AnchorHead, envelope: Envelope) -> AnchorReceipt:
        """Witness a site's ledger head that grew from the last one witnessed; the same head again changes nothing.

        The links are folded from the head that is kept here, never from one the site names. A head that did not grow
        from it is taken only if the study lead has allowed exactly it (`allow_reanchor`).

        Raises: LedgerRefusal, when the ledger is older than what was witnessed, or has another history.
        """

        def work(c: sa.Connection) -> AnchorReceipt:
            last = c.execute(_newest_anchor(head.site)).first()
            if last is not None and (head.seq, head.head) == (last.seq, last.head):
                return AnchorReceipt(seq=last.seq, head=last.head, index=last.log_index)
            seq, digest, line = (0, GENESIS, 0) if last is None else (last.seq, last.head, last.line)
            leaf: dict[str, Any] = {"kind": "anchor"}
            if not head.extends(seq, digest):
                if last is None or not _allowed(c, head, last.log_index):
                    raise _not_grown(head, seq)
                c.execute(_reanchors.delete().where(_reanchors.c.site == head.site))
                leaf = {"kind": "reanchor", "left_seq": seq, "left_head": digest}
                line += 1
            index, _ = _append(c, {**leaf, "site": head.site, "seq": head.seq, "head": head.head})
            values = {"site": head.site, "line": line, "seq": head.seq, "head": head.head, "log_index": index}
            c.execute(_anchors.insert().values(**values, envelope=envelope.to_bytes()))
            return AnchorReceipt(seq=head.seq, head=head.head, index=index)

        return self._write(work)

    def anchor(self, site: str) -> AnchorReceipt | None:
        """The last witnessed head of a site's ledger."""
        row = self._read(lambda c: c.execute(_newest_anchor(site)).first())
        return None if row is None else AnchorReceipt(seq=row.seq, head=row.head, index=row.log_index)

    def reanchored(self, site: str) -> int:
        """How often a site's ledger was let begin anew."""
        row = self._read(lambda c: c.execute(_newest_anchor(site)).first())
        return 0 if row is None else int(row.line)

    def allow_reanchor(self, site: str, fingerprint: str) -> int:
        """Let a site's ledger go on once from a head that does not extend the witnessed one; its place in the log.

        Only a person may call this, after the steward has read the fingerprint out. The permission is for one head,
        holds until the site uses it, and is void once the site anchors anything else.

        Args:
            fingerprint: `shared.chain.head_fingerprint` of the site's ledger after ``site-agent ledger recover``.
        Raises: StateRefusal (nothing was ever witnessed), ParameterError.
        """
        wanted = "".join(fingerprint.lower().split())
        if len(wanted) != 32 or not set(wanted) <= set("0123456789abcdef"):
            raise ParameterError(
                "a ledger's fingerprint must be eight groups of four hexadecimal digits",
                given="another form",
                next_step="Ask the steward to read it out (site-agent ledger recover).",
            )

        def work(c: sa.Connection) -> int:
            last = c.execute(_newest_anchor(site)).first()
            if last is None:
                raise StateRefusal("a ledger must have been witnessed to begin anew", given=f"no anchor of {site!r}")
            leaf = {"kind": "reanchor_allowed", "site": site, "fingerprint": wanted, "left_seq": last.seq}
            index, _ = _append(c, {**leaf, "left_head": last.head})
            c.execute(_reanchors.delete().where(_reanchors.c.site == site))
            values = {"site": site, "fingerprint": wanted, "left_index": last.log_index, "log_index": index}
            c.execute(_reanchors.insert().values(**values))
            return index

        return self._write(work)

    # -- releases -----------------------------------------------------------------------------------------------
    def accept_release(
        self, *, statement: Statement, envelope: Envelope, receipt: Receipt, today: dt.date
    ) -> Acceptance:
        """Log a verified release and make it visible, in one transaction. Its bundle is on disk already.

        Idempotent: the same statement again gives the acceptance it got. Raises: ReplayRefusal, when the release id,
        the bundle, or the site's place in the wave is taken by other bytes.
        """

        def work(c: sa.Connection) -> Acceptance:
            known = self._known(c, statement)
            if known is not None:
                return known.acceptance
            leaf = {"kind": "release", "statement": envelope.digest, "bundle": statement.bundle_sha256}
            index, log_root = _append(c, {**leaf, "site": statement.site})
            c.execute(
                _releases.insert().values(
                    release_id=statement.release_id,
                    study=statement.study,
                    plan_hash=statement.plan_hash,
                    plan_version=statement.plan_version,
                    wave=statement.wave,
                    site=statement.site,
                    bundle_sha256=statement.bundle_sha256,
                    bundle_bytes=statement.bundle_bytes,
                    n=receipt.n,
                    receipt=receipt.to_bytes(),
                    envelope=envelope.to_bytes(),
                    log_index=index,
                    log_root=log_root,
                    accepted_day=today.isoformat(),
                )
            )
            made = c.execute(sa.select(_releases).where(_releases.c.release_id == statement.release_id)).one()
            return _release(made).acceptance

        return self._write(work)

    def accepted(self, statement: Statement) -> Acceptance | None:
        """The acceptance of exactly this statement, if there is one.

        Raises: ReplayRefusal, when its release id, bundle or place in the wave is taken by other bytes.
        """
        known = self._read(lambda c: self._known(c, statement))
        return None if known is None else known.acceptance

    @staticmethod
    def _known(c: sa.Connection, statement: Statement) -> Release | None:
        same_place = (
            (_releases.c.study == statement.study)
            & (_releases.c.wave == statement.wave)
            & (_releases.c.site == statement.site)
        )
        same = (_releases.c.release_id == statement.release_id) | (_releases.c.bundle_sha256 == statement.bundle_sha256)
        rows = c.execute(sa.select(_releases).where(same_place | same)).all()
        found = [_release(row) for row in rows]
        if not found:
            return None
        if len(found) == 1 and found[0].envelope.payload == statement.to_bytes():
            return found[0]
        raise ReplayRefusal(
            "a release must be new: its id, its bytes and the site's place in the wave",
            given="one that other bytes have taken",
            next_step="See site-agent history; a second release needs a second charge and another wave.",
        )

    def quarantine(self, *, statement: Statement, envelope: Envelope, refusal: Refusal, today: dt.date) -> Quarantined:
        """Remember a release whose content was refused; the same bytes again get the same answer."""

        def work(c: sa.Connection) -> None:
            where = _quarantine.c.bundle_sha256 == statement.bundle_sha256
            if c.execute(sa.select(_quarantine.c.code).where(where)).first() is None:
                c.execute(
                    _quarantine.insert().values(
                        bundle_sha256=statement.bundle_sha256,
                        release_id=statement.release_id,
                        study=statement.study,
                        wave=statement.wave,
                        site=statement.site,
                        code=refusal.code,
                        reason=str(refusal),
                        envelope=envelope.to_bytes(),
                        day=today.isoformat(),
                    )
                )

        self._write(work)
        found = self.quarantined(bundle_sha256=statement.bundle_sha256)
        return found[0]

    def quarantined(self, *, bundle_sha256: str | None = None, study: str | None = None) -> tuple[Quarantined, ...]:
        """Releases whose content was refused."""
        query = sa.select(*(_quarantine.c[name] for name in Quarantined.__dataclass_fields__))
        query = query.order_by(_quarantine.c.study, _quarantine.c.wave, _quarantine.c.site)
        if bundle_sha256 is not None:
            query = query.where(_quarantine.c.bundle_sha256 == bundle_sha256)
        if study is not None:
            query = query.where(_quarantine.c.study == study)
        return tuple(Quarantined(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    def releases(self, study: str | None = None, wave: int | None = None) -> tuple[Release, ...]:
        """Accepted releases, by study, wave and site."""
        query = sa.select(_releases).order_by(_releases.c.study, _releases.c.wave, _releases.c.site)
        if study is not None:
            query = query.where(_releases.c.study == study)
        if wave is not None:
            query = query.where(_releases.c.wave == wave)
        return tuple(_release(row) for row in self._read(lambda c: c.execute(query).all()))

    def release(self, release_id: str) -> Release:
        """The accepted release `release_id`. Raises: StateRefusal."""
        query = sa.select(_releases).where(_releases.c.release_id == release_id)
        row = self._read(lambda c: c.execute(query).first())
        if row is None:
            raise StateRefusal("the release must have been accepted", given=repr(release_id))
        return _release(row)

    def by_bundle(self, bundle_sha256: str) -> Release | None:
        """The accepted release that has this bundle."""
        query = sa.select(_releases).where(_releases.c.bundle_sha256 == bundle_sha256)
        row = self._read(lambda c: c.execute(query).first())
        return None if row is None else _release(row)

    def holdings(self, study: str, site: str) -> tuple[Holding, ...]:
        """What the coordinator holds of a site in a study, accepted and quarantined."""
        held = [
            Holding(
                study=r.study, wave=r.wave, release_id=r.release_id, state="accepted", code="", log_index=r.log_index
            )
            for r in self.releases(study)
            if r.site == site
        ]
        apart = [
            Holding(
                study=q.study,
                wave=q.wave,
                release_id=q.release_id,
                state="quarantined",
                code=q.code,
                reason=q.reason,
            )
            for q in self.quarantined(study=study)
            if q.site == site
        ]
        return (*held, *apart)

    def path(self, release: Release) -> Path:
        """The bundle's file."""
        return self.bundles / f"{release.bundle_sha256}.zip"

    def table(self, release: Release) -> pd.DataFrame:
        """A release's table, its bytes checked against the digest that was accepted. Raises: IntegrityRefusal."""
        from shared.release import read_bundle

        try:
            bundle = read_bundle(self.path(release), cap=TABLE_CAP)
        except OSError:
            raise IntegrityRefusal(
                "an accepted bundle must be on disk",
                given=f"none for {release.bundle_sha256[:12]}",
                next_step="Restore bundles/ from the backup (coordinator log).",
            ) from None
        if bundle.digest != release.bundle_sha256 or bundle.receipt != release.receipt:
            raise IntegrityRefusal(
                "a bundle must be the one that was accepted",
                given=f"another for {release.bundle_sha256[:12]}",
                next_step="Restore bundles/ from the backup (coordinator log).",
            )
        return bundle.table

    def tables(self, study: str, wave: int) -> Iterator[tuple[str, Receipt, pd.DataFrame]]:
        """(site, receipt, table) of every accepted release of a wave, one in memory at a time."""
        for release in self.releases(study, wave):
            yield release.site, release.receipt, self.table(release)

    # -- log ----------------------------------------------------------------------------------------------------
    def log(self) -> tuple[LogEntry, ...]:
        """All entries of the log, in order."""
        query = sa.select(_log.c.index, _log.c.entry, _log.c.root).order_by(_log.c.index)
        return tuple(LogEntry(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    def prove(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """Inclusion proof of entry `index` in the log of `size` entries (all, by default)."""
        return inclusion_proof(self._leaves()[:size], index)

    def prove_growth(self, size: int) -> tuple[bytes, ...]:
        """Proof that the log's first `size` entries are still its first."""
        return consistency_proof(self._leaves(), size)

    def verify_log(self) -> int:
        """Recompute every leaf and root, and hold every release and anchor against its entry; how many entries.

        Raises: IntegrityRefusal, naming the first place that does not agree.
        """
        peaks: tuple[bytes, ...] = ()
        entries = self.log()
        for expected, found in enumerate(entries):
            peaks = append(peaks, expected, leaf_hash(found.entry))
            if found.index != expected or peaks_root(peaks).hex() != found.root:
                raise IntegrityRefusal("the log must be whole", given=f"a break at entry {expected}")
        for release in self.releases():
            leaf = {
                "kind": "release",
                "statement": release.envelope.digest,
                "bundle": release.bundle_sha256,
                "site": release.site,
            }
            there = release.log_index < len(entries)
            if not there or entries[release.log_index].entry != canonical_json(leaf):
                raise IntegrityRefusal("a release must be in the log", given=f"another entry {release.log_index}")
        return len(entries)

    def _leaves(self) -> Sequence[bytes]:
        query = sa.select(_log.c.leaf).order_by(_log.c.index)
        return [row.leaf for row in self._read(lambda c: c.execute(query).all())]


def _append(c: sa.Connection, entry: Mapping[str, Any]) -> tuple[int, str]:
    """Add an entry to the log within a transaction; (index, root). Its index is unique, so nobody can fork it."""
    data = canonical_json(entry)
    newest = sa.select(_log.c.index.label("place"), _log.c.peaks).order_by(_log.c.index.desc()).limit(1)
    last = c.execute(newest).first()
    size = 0 if last is None else last.place + 1
    old = b"" if last is None else last.peaks
    leaf = leaf_hash(data)
    peaks = append([old[i : i + 32] for i in range(0, len(old), 32)], size, leaf)
    log_root = peaks_root(peaks).hex()
    c.execute(_log.insert().values(index=size, entry=data, leaf=leaf, peaks=b"".join(peaks), root=log_root))
    return size, log_root


def _newest_anchor(site: str) -> sa.Select[Any]:
    return sa.select(_anchors).where(_anchors.c.site == site).order_by(_anchors.c.log_index.desc()).limit(1)


def _allowed(c: sa.Connection, head: AnchorHead, left_index: int) -> bool:
    """Whether the lead has allowed a head that this chain passes, and the chain begins where it says.

    The site may have gone on since it read the fingerprint out, so the allowed head may lie within the links.
    """
    given = c.execute(sa.select(_reanchors).where(_reanchors.c.site == head.site)).first()
    if given is None or given.left_index != left_index:
        return False
    witnessed = sa.select(_anchors.c.head).where((_anchors.c.site == head.site) & (_anchors.c.seq == head.after))
    roots = [GENESIS] if head.after == 0 else [row.head for row in c.execute(witnessed)]
    for root in roots:
        passed = list(heads(root, head.links))
        prints = {head_fingerprint(digest).replace(" ", "") for digest in passed}
        if passed and passed[-1] == head.head and given.fingerprint in prints:
            return True
    return False


def _not_grown(head: AnchorHead, seq: int) -> LedgerRefusal:
    must = f"the ledger must go on from entry {seq}, which the coordinator has witnessed"
    if seq == 0:
        must = "the first anchor of a ledger must prove it from its first entry"
    if head.after > seq:
        return LedgerRefusal(
            must,
            given=f"a proof from entry {head.after} only",
            next_step="The coordinator's store may be an old copy: tell the study lead, then run "
            "site-agent ledger recover.",
        )
    given = f"entry {head.seq}, from before it" if head.seq < seq else "another history of it"
    return LedgerRefusal(
        must,
        given=given,
        next_step="The site's ledger is an old copy, or was edited. Run site-agent ledger recover.",
    )


def _site(row: Any, keys: Sequence[Any]) -> Site:
    return Site(
        site=row.site,
        state=row.state,
        studies=tuple(json.loads(row.studies)),
        release_key=next(PublicKey(key.public_key) for key in keys if key.role == "release"),
        approvers={key.name: PublicKey(key.public_key) for key in keys if key.role == "approver"},
        csr_pem=row.csr_pem,
        certificate_pem=row.certificate_pem,
        reason=row.reason,
    )


def _release(row: Any) -> Release:
    from shared.release import Receipt

    values = dict(row._mapping)
    values["receipt"] = Receipt.from_bytes(values["receipt"])
    values["envelope"] = Envelope.from_bytes(values["envelope"])
    return Release(**values)


def _sqlite_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions behind SQLAlchemy's back
    cursor = connection.cursor()
    for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: sa.Connection) -> None:
    # A writer that began as a reader could not wait for another writer: it would be sent away at once.
    writes = connection.get_execution_options().get("tributary_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _storage(error: DBAPIError) -> StorageRefusal:
    return StorageRefusal(
        "the coordinator's database must be readable and writable",
        given=type(error.orig).__name__,
        next_step="Check disk space and permissions of the coordinator's home folder.",
    )
