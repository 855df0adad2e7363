"""The coordinator's database: plans, sites and their keys, anchors, accepted releases, the log.

One SQL database (SQLite in the home folder by default; the SQL is portable) and one folder of bundles named by their
digest. The rules that must never break are constraints of the database, not only of the code: one release per
(study, wave, site), one row per bundle, one entry per place in the log. A release becomes visible in the same
transaction that logs it, after its bytes are on disk; readers only ever see whole releases.

A withdrawn release keeps its row, so that its id, its bytes and its place in the wave stay taken; no question sees it
again. A wave that was closed is never changed: what arrives or is taken back afterwards makes a *revision* of it, and
a revision is nothing but a place in the log up to which one reads.

Acknowledged means durable: SQLite runs with a write-ahead log and ``synchronous=FULL``.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from coordinator.store import schema as db
from coordinator.store.log import MerkleTree, append, leaf_hash, peaks_root
from coordinator.store.rows import (
    AcceptedRelease,
    KeyHistory,
    LogEntry,
    Quarantined,
    RegisteredSite,
    Revision,
    SavedResult,
    StoredPlan,
    Tombstone,
    WaveRecord,
)
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.chain import GENESIS, head_fingerprint, heads
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey
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
    TooLarge,
)
from shared.plans.invitation import Invitation
from shared.plans.plan import StudyPlan
from shared.plans.standing import STANDING_TYPE
from shared.wire.messages import (
    ANCHOR_TYPE,
    HOLDINGS_CAP,
    WITHDRAWAL_TYPE,
    Acceptance,
    AnchorHead,
    AnchorReceipt,
    EnrolmentRequest,
    Holding,
    Reminder,
    Withdrawal,
)
from shared.wire.tree_heads import release_leaf

if TYPE_CHECKING:
    import pandas as pd

    from shared.releases.receipt import Receipt, Statement

__all__ = [
    "AcceptedRelease",
    "LogEntry",
    "Quarantined",
    "RegisteredSite",
    "Revision",
    "SavedResult",
    "Store",
    "StoredPlan",
    "Tombstone",
    "WaveRecord",
    "remember",
]

SITE_LIST = "tributary-site-list/1"
TABLE_CAP = 2 << 30
TABLES_KEPT = 256 << 20
REVOCATIONS_CAP = 10_000
"""Most standing approvals that one site may end: what a site sends must not decide how much is kept."""
UNKNOWN_PLAN = "the plan must be known to the coordinator"
"""What must hold of a study or version that nobody has signed here."""
T = TypeVar("T")


class Reader(Protocol):
    """Runs a function on a connection, and gives what it gives; of a `Writer`, in one transaction."""

    def __call__(self, work: Callable[[sa.Connection], T], /) -> T: ...


Writer = Reader


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
        self._tables = _Tables()
        self._nodes, self._growing = MerkleTree(), threading.Lock()
        options: dict[str, Any] = {"pool_size": 16, "max_overflow": 48}
        self._engine = sa.create_engine(url, **options)
        if sqlite:
            sa.event.listen(self._engine, "connect", db.sqlite_connect)
            sa.event.listen(self._engine, "begin", db.sqlite_begin)
        try:
            db.meta.create_all(self._engine)
        except DBAPIError as error:
            raise _storage(error) from None

    @classmethod
    def open(cls, home: Path, url: str = "") -> Store:
        """The store of a home folder: SQLite in it, unless `url` names another database."""
        return cls(url or f"sqlite:///{home / 'store.db'}", home)

    @property
    def place(self) -> tuple[str, str]:
        """Database URL and home folder, for another process of this coordinator; the URL may hold a password."""
        return self._engine.url.render_as_string(hide_password=False), str(self.bundles.parent)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def damage(self, *, thorough: bool = False) -> str:
        """What SQLite finds wrong with its file; blank if nothing, or if the database is another.

        Args:
            thorough: hold indexes against their tables too.
        """
        if self._engine.dialect.name != "sqlite":
            return ""
        pragma = f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)"
        try:
            said = self._read(lambda c: str(c.exec_driver_sql(pragma).scalar()))
        except StorageRefusal as refusal:
            return refusal.given
        return "" if said == "ok" else said.splitlines()[0][:200]

    # -- transactions -------------------------------------------------------------------------------------------
    def extended(self, tables: sa.MetaData) -> tuple[Reader, Writer]:
        """Make further tables in this database; how to read, and how to write in one transaction.

        Raises: StorageRefusal.
        """
        try:
            tables.create_all(self._engine)
        except DBAPIError as error:
            raise _storage(error) from None
        return self._read, self._write

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
            values = {"study": plan.study, "version": plan.version, "hash": plan.hash}
            c.execute(db.plans.insert().values(**values, envelope=envelope.to_bytes()))

        self._write(work)
        return StoredPlan(envelope=envelope, plan=plan)

    def plan(self, study: str, version: int | None = None) -> StoredPlan:
        """The plan of `study`; the newest version unless one is named. Raises: PlanRefusal."""
        query = sa.select(db.plans).where(db.plans.c.study == study).order_by(db.plans.c.version.desc()).limit(1)
        if version is not None:
            query = query.where(db.plans.c.version == version)
        row = self._read(lambda c: c.execute(query).first())
        if row is None:
            what = study if version is None else f"{study} version {version}"
            raise PlanRefusal(UNKNOWN_PLAN, given=what, next_step="Ask the study lead which studies there are.")
        return _stored(row.envelope)

    def plans(self) -> tuple[StoredPlan, ...]:
        """Every version of every plan, by study and version."""
        query = sa.select(db.plans.c.envelope).order_by(db.plans.c.study, db.plans.c.version)
        return tuple(_stored(row.envelope) for row in self._read(lambda c: c.execute(query).all()))

    # -- sites --------------------------------------------------------------------------------------------------
    def add_invitation(self, invitation: Invitation) -> None:
        """Keep the hash of an invitation's token, never the token."""
        values = {
            "token_sha256": invitation.token_sha256,
            "site": invitation.site,
            "studies": json.dumps(invitation.studies),
            "expires": invitation.expires,
        }
        self._write(lambda c: c.execute(db.invitations.insert().values(**values)))

    def enrol(self, *, token: str, site: str, request: EnrolmentRequest, digest: str, today: dt.date) -> RegisteredSite:
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
                "studies": found.studies,
                "request_sha256": digest,
                "csr_pem": request.csr_pem,
                "certificate_pem": "",
                "reason": "",
            }
            _retire_keys(c, site)
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

        self._write(work)
        return self.enrolment(site)

    def enrolment(self, site: str) -> RegisteredSite:
        """The site called `site`. Raises: StateRefusal, when it never asked to join."""
        for found in self._sites(db.sites.c.site == site):
            return found
        raise StateRefusal(
            "the site must have asked to join",
            given=repr(site),
            next_step="It runs site-agent join with its invitation.",
        )

    def sites(self) -> tuple[RegisteredSite, ...]:
        """All sites, by name."""
        return self._sites(sa.true())

    def _sites(self, where: sa.ColumnElement[bool]) -> tuple[RegisteredSite, ...]:
        def work(c: sa.Connection) -> tuple[RegisteredSite, ...]:
            rows = c.execute(sa.select(db.sites).where(where).order_by(db.sites.c.site)).all()
            keys = c.execute(sa.select(db.site_keys).where(db.site_keys.c.site.in_([row.site for row in rows]))).all()
            return tuple(_site(row, [key for key in keys if key.site == row.site]) for row in rows)

        return self._read(work)

    def accept_site(self, site: str, fingerprint: str) -> RegisteredSite:
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
        where = (db.sites.c.site == site) & (db.sites.c.state == "pending")
        self._write(lambda c: c.execute(db.sites.update().where(where).values(state="accepted")))
        return self.enrolment(site)

    def set_certificate(self, site: str, csr_pem: str, certificate_pem: str) -> RegisteredSite:
        """Keep the certificate issued for an accepted site's request; the first one stands."""
        where = (db.sites.c.site == site) & (db.sites.c.state == "accepted") & (db.sites.c.certificate_pem == "")
        where &= db.sites.c.csr_pem == csr_pem
        self._write(lambda c: c.execute(db.sites.update().where(where).values(certificate_pem=certificate_pem)))
        return self.enrolment(site)

    def forget_certificate(self, site: str, *, dry_run: bool = False) -> bool:
        """Have the certificate of an accepted site issued anew when it asks; False if it has shown the one it has."""
        found = self.enrolment(site)
        shown = sa.select(db.arrived).where(db.arrived.c.serial == _serial(found.certificate_pem))
        if found.state != "accepted" or self._read(lambda c: c.execute(shown).first()) is not None:
            return False
        where = (db.sites.c.site == site) & (db.sites.c.certificate_pem == found.certificate_pem)
        if not dry_run:
            self._write(lambda c: c.execute(db.sites.update().where(where).values(certificate_pem="")))
        return True

    def refuse_site(self, site: str, reason: str) -> RegisteredSite:
        """Turn a pending site away. Raises: StateRefusal."""
        if self.enrolment(site).state != "pending":
            raise StateRefusal("a site must be pending to be refused", given=self.enrolment(site).state)
        where = (db.sites.c.site == site) & (db.sites.c.state == "pending")
        values = {"state": "refused", "reason": reason or "refused by the study lead"}
        self._write(lambda c: c.execute(db.sites.update().where(where).values(**values)))
        return self.enrolment(site)

    def revoke_site(self, site: str) -> RegisteredSite:
        """End a site's access from this place of the log on; what it delivered before stays."""
        found = self.enrolment(site)

        def work(c: sa.Connection) -> None:
            c.execute(db.sites.update().where(db.sites.c.site == site).values(state="revoked", reason="revoked"))
            if found.certificate_pem:
                serial = _serial(found.certificate_pem)
                if c.execute(sa.select(db.revoked.c.serial).where(db.revoked.c.serial == serial)).first() is None:
                    index, _ = _append(c, {"kind": "revocation", "site": site, "serial": serial})
                    c.execute(db.revoked.insert().values(serial=serial, site=site, log_index=index))

        self._write(work)
        return self.enrolment(site)

    def require_site(self, site: str, serial: str) -> RegisteredSite:
        """The accepted site that a certificate names. Raises: CertificateRefusal (revoked, or not accepted)."""
        revoked = self._read(lambda c: c.execute(sa.select(db.revoked).where(db.revoked.c.serial == serial)).first())
        found = self._sites(db.sites.c.site == site)
        if revoked is not None or not found or found[0].state != "accepted":
            raise CertificateRefusal(
                "the certificate must be of a site that takes part",
                given="a revoked or unknown one",
                next_step="Ask the study lead.",
            )
        return found[0]

    def require_invited(self, site: str) -> None:
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

        if not self._read(work):
            raise TokenRefusal(
                "an invitation must still be open",
                given="one that has served",
                next_step="Ask the study lead for a new one (coordinator invite).",
            )

    def arrived(self, site: str, serial: str) -> None:
        """Remember that a site has shown its certificate; again changes nothing."""
        shown = sa.select(db.arrived).where(db.arrived.c.serial == serial)
        if self._read(lambda c: c.execute(shown).first()) is None:

            def work(c: sa.Connection) -> None:
                if c.execute(shown).first() is None:
                    c.execute(db.arrived.insert().values(serial=serial, site=site))

            self._write(work)

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
                return _anchor_receipt(c, last)
            seq, digest, line = (0, GENESIS, 0) if last is None else (last.seq, last.head, last.line)
            leaf: dict[str, Any] = {"kind": "anchor"}
            if not head.extends(seq, digest):
                if last is None or not _allowed(c, head, last.log_index):
                    raise _not_grown(head, seq)
                c.execute(db.reanchors.delete().where(db.reanchors.c.site == head.site))
                leaf = {"kind": "reanchor", "left_seq": seq, "left_head": digest}
                line += 1
            index, log_root = _append(c, {**leaf, "site": head.site, "seq": head.seq, "head": head.head})
            values = {"site": head.site, "line": line, "seq": head.seq, "head": head.head, "log_index": index}
            c.execute(db.anchors.insert().values(**values, envelope=envelope.to_bytes()))
            return AnchorReceipt(seq=head.seq, head=head.head, index=index, log_root=log_root)

        return self._write(work)

    def anchor(self, site: str) -> AnchorReceipt | None:
        """The last witnessed head of a site's ledger."""
        return self.witnessed(site)[0]

    def witnessed(self, site: str) -> tuple[AnchorReceipt | None, bytes, int]:
        """The last witnessed head of a site's ledger, as the site signed it, and how often it was let begin anew."""

        def work(c: sa.Connection) -> tuple[AnchorReceipt | None, bytes, int]:
            row = c.execute(_newest_anchor(site)).first()
            return (None, b"", 0) if row is None else (_anchor_receipt(c, row), row.envelope, int(row.line))

        return self._read(work)

    def anchor_bytes(self) -> dict[str, int]:
        """Site to the bytes of its signed heads."""
        size = sa.func.sum(sa.func.length(db.anchors.c.envelope))
        query = sa.select(db.anchors.c.site, size).group_by(db.anchors.c.site)
        return {site: int(total) for site, total in self._read(lambda c: c.execute(query).all())}

    def reanchored(self, site: str) -> int:
        """Number of times that the lead let a site's ledger begin anew."""
        return self.witnessed(site)[2]

    def allow_reanchor(self, site: str, fingerprint: str) -> int:
        """Let a site's ledger go on once from a head that does not extend the witnessed one; its place in the log.

        Only a person may call this, after the steward has read the fingerprint out. The permission is for one head,
        holds until the site uses it, and is void once the site anchors anything else.

        Args:
            fingerprint: `shared.base.chain.head_fingerprint` of the site's ledger after ``site-agent ledger recover``.
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
            c.execute(db.reanchors.delete().where(db.reanchors.c.site == site))
            values = {"site": site, "fingerprint": wanted, "left_index": last.log_index, "log_index": index}
            c.execute(db.reanchors.insert().values(**values))
            return index

        return self._write(work)

    # -- releases -----------------------------------------------------------------------------------------------
    def accept_release(
        self,
        *,
        statement: Statement,
        envelope: Envelope,
        receipt: Receipt,
        today: dt.date,
        standing: Envelope | None = None,
        recheck: Callable[[], None] = lambda: None,
        sign: Callable[[int, str], bytes] | None = None,
    ) -> Acceptance:
        """Log a verified release and make it visible, in one transaction. Its bundle is on disk already.

        Idempotent: the same statement again gives the acceptance it got.

        Args:
            recheck: asks once more, while nobody else can write, whatever was decided before the bundle had arrived.
            sign: signs the log's head, given its size and root: no reader sees a release before a signed head holds it.
        Raises: ReplayRefusal, when the release id, the bundle, or the site's place in the wave is taken by other bytes;
            any refusal of `recheck`.
        """

        def work(c: sa.Connection) -> Acceptance:
            known = self._known(c, statement)
            if known is not None:
                return known.acceptance
            recheck()
            index, log_root = _append(c, release_leaf(envelope, statement.bundle_sha256, statement.site, standing))
            c.execute(
                db.releases.insert().values(
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
            if sign is not None:
                head = {"size": index + 1, "root": log_root, "envelope": sign(index + 1, log_root)}
                c.execute(db.tree_heads.insert().values(**head))
            if standing is not None:
                values = {"release_id": statement.release_id, "standing": standing.to_bytes()}
                c.execute(db.standing.insert().values(**values))
            made = c.execute(_select_releases().where(db.releases.c.release_id == statement.release_id)).one()
            return _release(made).acceptance

        return self._write(work)

    def accepted(self, statement: Statement) -> Acceptance | None:
        """The acceptance of exactly this statement, if there is one.

        Raises: ReplayRefusal, when its release id, bundle or place in the wave is taken by other bytes.
        """
        known = self._read(lambda c: self._known(c, statement))
        return None if known is None else known.acceptance

    @staticmethod
    def _known(c: sa.Connection, statement: Statement) -> AcceptedRelease | None:
        same_place = (
            (db.releases.c.study == statement.study)
            & (db.releases.c.wave == statement.wave)
            & (db.releases.c.site == statement.site)
        )
        same = (db.releases.c.release_id == statement.release_id) | (
            db.releases.c.bundle_sha256 == statement.bundle_sha256
        )
        withdrawn = (db.withdrawals.c.release_id == statement.release_id) | (
            db.withdrawals.c.bundle_sha256 == statement.bundle_sha256
        )
        if c.execute(sa.select(db.withdrawals.c.day).where(withdrawn)).first() is not None:
            raise ReplayRefusal(
                "a release that was withdrawn must not come back",
                given="one that the site took back",
                next_step="A new release needs a new charge and another wave (site-agent history).",
            )
        rows = c.execute(_select_releases().where(same_place | same)).all()
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
            where = db.quarantine.c.bundle_sha256 == statement.bundle_sha256
            if c.execute(sa.select(db.quarantine.c.code).where(where)).first() is None:
                c.execute(
                    db.quarantine.insert().values(
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

    def quarantined(
        self, *, bundle_sha256: str | None = None, study: str | None = None, site: str | None = None
    ) -> tuple[Quarantined, ...]:
        """Releases whose content was refused."""
        query = sa.select(*(db.quarantine.c[name] for name in Quarantined.__dataclass_fields__))
        if site is not None:
            query = query.where(db.quarantine.c.site == site)
        query = query.order_by(db.quarantine.c.study, db.quarantine.c.wave, db.quarantine.c.site)
        if bundle_sha256 is not None:
            query = query.where(db.quarantine.c.bundle_sha256 == bundle_sha256)
        if study is not None:
            query = query.where(db.quarantine.c.study == study)
        return tuple(Quarantined(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    def releases(
        self,
        study: str | None = None,
        wave: int | None = None,
        *,
        site: str | None = None,
        withdrawn: bool = False,
    ) -> tuple[AcceptedRelease, ...]:
        """Accepted releases, by study, wave and site; those that were withdrawn only if `withdrawn`."""
        query = _select_releases().order_by(db.releases.c.study, db.releases.c.wave, db.releases.c.site)
        for column, value in ((db.releases.c.study, study), (db.releases.c.wave, wave), (db.releases.c.site, site)):
            if value is not None:
                query = query.where(column == value)
        if not withdrawn:
            query = query.where(db.withdrawals.c.day.is_(None))
        return tuple(_release(row) for row in self._read(lambda c: c.execute(query).all()))

    def release(self, release_id: str) -> AcceptedRelease:
        """The accepted release `release_id`. Raises: StateRefusal."""
        query = _select_releases().where(db.releases.c.release_id == release_id)
        row = self._read(lambda c: c.execute(query).first())
        if row is None:
            raise StateRefusal("the release must have been accepted", given=repr(release_id))
        return _release(row)

    def by_bundle(self, bundle_sha256: str) -> AcceptedRelease | None:
        """The accepted release that has this bundle, withdrawn or not."""
        query = _select_releases().where(db.releases.c.bundle_sha256 == bundle_sha256)
        row = self._read(lambda c: c.execute(query).first())
        return None if row is None else _release(row)

    def holdings(self, study: str, site: str) -> tuple[Holding, ...]:
        """Releases held, or once held, of a site in a study, each with the statement that the site signed."""
        held = [
            Holding(
                study=r.study,
                wave=r.wave,
                release_id=r.release_id,
                state="withdrawn" if r.withdrawn else "accepted",
                log_index=r.log_index,
                statement=r.envelope.to_bytes(),
            )
            for r in self.releases(study, site=site, withdrawn=True)
        ]
        query = sa.select(db.quarantine).where((db.quarantine.c.study == study) & (db.quarantine.c.site == site))
        apart = [
            Holding(
                study=q.study,
                wave=q.wave,
                release_id=q.release_id,
                state="quarantined",
                code=q.code,
                reason=q.reason,
                statement=q.envelope,
            )
            for q in self._read(lambda c: c.execute(query.order_by(db.quarantine.c.wave)).all())
        ]
        return (*held, *apart)[-HOLDINGS_CAP:]

    def uncompared(self) -> dict[str, str]:
        """Bundle to site of each release from before the newest restoration that its site has not compared since.

        What was withdrawn after the backup is accepted again until its site says so once more.
        """
        last = self._read(lambda c: c.execute(sa.select(sa.func.max(db.restorations.c.log_index))).scalar())
        if last is None:
            return {}
        since = sa.select(db.comparisons.c.site, db.comparisons.c.study).where(db.comparisons.c.size > last)
        heard = {(row.site, row.study) for row in self._read(lambda c: c.execute(since).all())}
        return {
            release.bundle_sha256: release.site
            for release in self.releases()
            if release.log_index < last and (release.site, release.study) not in heard
        }

    def charged(self, study: str, site: str) -> dict[str, tuple[int, AcceptedRelease | None]]:
        """Every release that a site's ledger must have been charged for: id to (plan version, release if accepted).

        Accepted, withdrawn since, or quarantined: what arrived was drawn, whatever became of it.
        """
        query = sa.select(db.quarantine.c.envelope).where(
            (db.quarantine.c.study == study) & (db.quarantine.c.site == site)
        )
        out: dict[str, tuple[int, AcceptedRelease | None]] = {}
        for row in self._read(lambda c: c.execute(query).all()):
            said = parse_json(Envelope.from_bytes(row.envelope).payload)
            out[said["release_id"]] = (said["plan_version"], None)
        for release in self.releases(study, site=site, withdrawn=True):
            out[release.release_id] = (release.plan_version, release)
        return out

    def began_anew(self, site: str) -> int:
        """Place in the log at which a site's ledger was last let begin anew; -1 if it never was."""
        own = sa.select(sa.func.min(db.anchors.c.log_index)).where(
            (db.anchors.c.site == site) & (db.anchors.c.line > 0)
        )
        line = self.reanchored(site)
        found = self._read(lambda c: c.execute(own.where(db.anchors.c.line == line)).scalar())
        return -1 if found is None else int(found)

    # -- withdrawals --------------------------------------------------------------------------------------------
    def withdraw(self, *, withdrawal: Withdrawal, envelope: Envelope, today: dt.date) -> Tombstone:
        """Log that a site took a release back, and hide it from every reader, in one transaction.

        Idempotent: the first withdrawal of a release stands. The caller deletes the bytes afterwards, never before.

        Raises: StateRefusal (no such release of this site has arrived, or a later one under ``frozen`` still holds its
            rows), ReplayRefusal (it has other bytes, or another place).
        """

        def work(c: sa.Connection) -> None:
            if c.execute(
                _select_tombstones().where(db.withdrawals.c.bundle_sha256 == withdrawal.bundle_sha256)
            ).first():
                return
            places = []
            for table in (db.releases, db.quarantine):
                names = ("study", "site", "wave", "release_id", "bundle_sha256")
                query = sa.select(*(table.c[name] for name in names)).where(table.c.release_id == withdrawal.release_id)
                places += [dict(row) for row in c.execute(query).mappings() if row["site"] == withdrawal.site]
            if not places:
                raise StateRefusal(
                    "a release must have arrived to be withdrawn",
                    given="one that the coordinator does not have",
                    next_step="Reject it in the outbox: it was never sent.",
                )
            if {name: getattr(withdrawal, name) for name in places[0]} not in places:
                raise ReplayRefusal("a withdrawal must name the release's study, wave and bytes", given="others")
            _require_no_copies(c, withdrawal)
            leaf = {"kind": "withdrawal", "statement": envelope.digest, "bundle": withdrawal.bundle_sha256}
            index, log_root = _append(c, {**leaf, "site": withdrawal.site})
            values = {item: getattr(withdrawal, item) for item in withdrawal.__dataclass_fields__}
            values |= {"log_index": index, "log_root": log_root, "day": today.isoformat()}
            c.execute(db.withdrawals.insert().values(**values, envelope=envelope.to_bytes()))

        self._write(work)
        (stone,) = self.withdrawals(bundle_sha256=withdrawal.bundle_sha256)
        if stone.site != withdrawal.site:
            raise ReplayRefusal("a withdrawal must be of the calling site's release", given="another site's")
        return stone

    def revoke_standing(self, site: str, standing: str, envelope: Envelope, today: dt.date) -> None:
        """Note that a standing approval of a site is over, for good; again changes nothing.

        Args:
            standing: digest of its document.
        Raises: TooLarge, beyond `REVOCATIONS_CAP` of one site.
        """

        def work(c: sa.Connection) -> None:
            own = sa.select(db.revocations.c.standing).where(db.revocations.c.site == site)
            known = set(c.execute(own).scalars())
            if standing in known:
                return
            if len(known) >= REVOCATIONS_CAP:
                raise TooLarge(f"a site may revoke at most {REVOCATIONS_CAP} standing approvals", given=f"{len(known)}")
            values = {"site": site, "standing": standing, "envelope": envelope.to_bytes(), "day": today.isoformat()}
            c.execute(db.revocations.insert().values(**values))

        self._write(work)
        reach("standing.revoked")

    def standing_revoked(self, site: str, standing: str) -> bool:
        """True if a site has reported the end of a standing approval."""
        query = sa.select(db.revocations.c.day).where(
            db.revocations.c.site == site, db.revocations.c.standing == standing
        )
        return self._read(lambda c: c.execute(query).first()) is not None

    def withdrawals(self, study: str | None = None, *, bundle_sha256: str | None = None) -> tuple[Tombstone, ...]:
        """Releases that were withdrawn, in the order of the log."""
        query = _select_tombstones().order_by(db.withdrawals.c.log_index)
        if study is not None:
            query = query.where(db.withdrawals.c.study == study)
        if bundle_sha256 is not None:
            query = query.where(db.withdrawals.c.bundle_sha256 == bundle_sha256)
        return tuple(Tombstone(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    # -- waves --------------------------------------------------------------------------------------------------
    def members(self, study: str) -> tuple[str, ...]:
        """Sites that take part in a study, by name."""
        return tuple(site.site for site in self.sites() if site.state == "accepted" and study in site.studies)

    def wave_record(self, study: str, wave: int) -> WaveRecord:
        """State and revisions of a wave, read from the log's order alone."""
        return self._read(lambda c: _wave_record(c, study, wave))

    def close_wave(
        self, study: str, wave: int, *, expected: Sequence[str], quorum: int = 0, reason: str = "", today: dt.date
    ) -> Revision:
        """Close a wave, naming who is missing; what comes later makes a revision. It stands in the log for good.

        Args:
            expected: sites that were to deliver.
            quorum: fewest deliveries that need no reason.
            reason: why it is closed below its quorum, or before its deadline.
        Raises: StateRefusal (closed already, or below its quorum without a reason).
        """

        def work(c: sa.Connection) -> None:
            if _wave_record(c, study, wave).closed:
                raise StateRefusal(
                    "a wave must be open to be closed", given="a closed one", next_step="See wave status."
                )
            query = _select_releases().where((db.releases.c.study == study) & (db.releases.c.wave == wave))
            rows = c.execute(query.where(db.withdrawals.c.day.is_(None)).order_by(db.releases.c.log_index)).all()
            delivered = {row.site for row in rows}
            if len(delivered) < quorum and not reason.strip():
                raise StateRefusal(
                    f"a wave must have {quorum} deliveries to be closed",
                    given=f"{len(delivered)}",
                    next_step="Remind the sites, or close it with --reason.",
                )
            missing = sorted(set(expected) - delivered)
            leaf = {"kind": "wave_closed", "study": study, "wave": wave, "missing": missing, "reason": reason}
            _wave_event(c, {**leaf, "releases": [row.bundle_sha256 for row in rows]}, today)

        self._write(work)
        reach("wave.closed")
        return self.wave_record(study, wave).revisions[-1]

    def reopen_wave(self, study: str, wave: int, *, reason: str, today: dt.date) -> WaveRecord:
        """Let a closed wave go on; its revisions so far stay what they are. Raises: StateRefusal, ParameterError."""
        if not reason.strip():
            raise ParameterError("a wave must be reopened with a reason", given="blank text")

        def work(c: sa.Connection) -> None:
            if not _wave_record(c, study, wave).closed:
                raise StateRefusal("a wave must be closed to be reopened", given="an open one")
            _wave_event(c, {"kind": "wave_reopened", "study": study, "wave": wave, "reason": reason}, today)

        self._write(work)
        reach("wave.reopened")
        return self.wave_record(study, wave)

    def remind(self, study: str, wave: int, sites: Sequence[str], today: dt.date) -> None:
        """Note that these sites were reminded of a wave; they see the day when they next ask."""

        def work(c: sa.Connection) -> None:
            for site in sites:
                place = {"study": study, "wave": wave, "site": site}
                where = sa.and_(*(db.reminders.c[name] == value for name, value in place.items()))
                if not c.execute(db.reminders.update().where(where).values(day=today.isoformat())).rowcount:
                    c.execute(db.reminders.insert().values(**place, day=today.isoformat()))

        self._write(work)
        reach("wave.reminded")

    def reminders(self, study: str, site: str) -> tuple[Reminder, ...]:
        """Waves that a site was reminded of and has not delivered."""
        delivered = {release.wave for release in self.releases(study, site=site, withdrawn=True)}
        days = self.reminded(study)
        found = sorted((wave, day) for (wave, known), day in days.items() if known == site and wave not in delivered)
        return tuple(Reminder(wave=wave, day=day) for wave, day in found)

    def reminded(self, study: str) -> dict[tuple[int, str], str]:
        """(wave, site) to the day on which the site was last reminded of it."""
        query = sa.select(db.reminders).where(db.reminders.c.study == study)
        return {(row.wave, row.site): row.day for row in self._read(lambda c: c.execute(query).all())}

    def last_moved(self) -> dict[str, int]:
        """Site to the place in the log at which its ledger was last witnessed."""
        query = sa.select(db.anchors.c.site, sa.func.max(db.anchors.c.log_index)).group_by(db.anchors.c.site)
        return {site: int(place) for site, place in self._read(lambda c: c.execute(query).all())}

    # -- what was handed out ------------------------------------------------------------------------------------
    def save_result(
        self,
        *,
        study: str,
        wave: int,
        kind: str,
        question: Mapping[str, Any],
        used: Mapping[str, str],
        numbers: Mapping[str, Any],
        figure: str = "",
        today: dt.date,
    ) -> SavedResult | None:
        """Remember a result; the same one again is remembered once.

        Returns: the last result to the same question, if it was another one.
        """
        last = self._write(
            lambda c: remember(
                c,
                study=study,
                wave=wave,
                kind=kind,
                question=question,
                used=used,
                numbers=numbers,
                figure=figure,
                today=today,
            )
        )
        reach("result.saved")
        return last if last is not None and (last.used != dict(used) or last.numbers != dict(numbers)) else None

    def results(self, study: str | None = None) -> tuple[SavedResult, ...]:
        """Results that were handed out, oldest first; stale ones name what was withdrawn since."""
        query = sa.select(db.results).order_by(db.results.c.id)
        if study is not None:
            query = query.where(db.results.c.study == study)

        def work(c: sa.Connection) -> tuple[SavedResult, ...]:
            withdrawn = {row.bundle_sha256 for row in c.execute(sa.select(db.withdrawals.c.bundle_sha256))}
            return tuple(_result(row, withdrawn) for row in c.execute(query).mappings())

        return self._read(work)

    # -- bundles ------------------------------------------------------------------------------------------------
    def path(self, release: AcceptedRelease) -> Path:
        """The bundle's file."""
        return self.bundles / f"{release.bundle_sha256}.zip"

    def table(self, release: AcceptedRelease, *, withdrawn: Collection[str] | None = None) -> pd.DataFrame:
        """A release's table, its bytes checked against the digest that was accepted, once per time they are read.

        Args:
            withdrawn: digests that are withdrawn, of a caller who has just read them for many releases.
        Raises: StateRefusal (withdrawn), IntegrityRefusal.
        """
        if withdrawn is None:
            withdrawn = {stone.bundle_sha256 for stone in self.withdrawals(bundle_sha256=release.bundle_sha256)}
        if release.bundle_sha256 in withdrawn:
            self._tables.forget(release.bundle_sha256)
            raise StateRefusal("a release must not be withdrawn to be read", given="one that its site took back")
        # Ten questions that meet a cold table read it once: the others wait for the first.
        with self._tables.turn(release.bundle_sha256):
            return self._table(release)

    def check(self, release: AcceptedRelease, *, withdrawn: Collection[str]) -> None:
        """That a release's bundle is the accepted one: read again only when its file was touched since it last was.

        Args, Raises: as `table`.
        """
        try:
            file = self.path(release).stat()
        except OSError:
            file = None
        if file is None or release.bundle_sha256 in withdrawn or not self._tables.checked(release.bundle_sha256, file):
            self.table(release, withdrawn=withdrawn)

    def _table(self, release: AcceptedRelease) -> pd.DataFrame:
        from shared.releases.receipt import read_bundle

        try:
            file = self.path(release).stat()
            known = self._tables.get(release.bundle_sha256, file)
            if known is not None:
                return known
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
        return self._tables.keep(release.bundle_sha256, file, bundle.table)

    def tables(self, study: str, wave: int) -> Iterator[tuple[str, Receipt, pd.DataFrame]]:
        """(site, receipt, table) of every accepted release of a wave, one in memory at a time."""
        for release in self.releases(study, wave):
            yield release.site, release.receipt, self.table(release)

    # -- what a stranger may hold a site to ---------------------------------------------------------------------
    def site_list(self, study: str, site: str, *, today: dt.date) -> dict[str, Any]:
        """Everything witnessed of a site's ledger, and everything that came from it in a study, as plain values.

        Heads are of the whole ledger, and say nothing of what stands in it. `studies` is how many the site was ever
        invited to: its ledger has no reason to be about more.

        Raises: StateRefusal (no such site).
        """
        self.enrolment(site)
        query = sa.select(db.invitations.c.studies).where(db.invitations.c.site == site)
        invited = {name for row in self._read(lambda c: c.execute(query).all()) for name in json.loads(row.studies)}
        heads = sa.select(db.anchors).where(db.anchors.c.site == site).order_by(db.anchors.c.log_index)
        anchors = self._read(lambda c: c.execute(heads).all())
        return {
            "format": SITE_LIST,
            "site": site,
            "study": study,
            "day": today.isoformat(),
            "size": self._read(_size),
            "studies": len(invited),
            "anchors": [{"line": a.line, "seq": a.seq, "head": a.head, "log_index": a.log_index} for a in anchors],
            "releases": [
                {
                    "release_id": one.release_id,
                    "wave": one.wave,
                    "bundle_sha256": one.bundle_sha256,
                    "log_index": one.log_index,
                    "accepted_day": one.accepted_day,
                    "withdrawn": bool(one.withdrawn),
                    "statement": one.envelope.to_bytes().decode(),
                }
                for one in self.releases(study, site=site, withdrawn=True)
            ],
            "quarantined": [
                {"release_id": one.release_id, "bundle_sha256": one.bundle_sha256}
                for one in self.quarantined(study=study, site=site)
            ],
        }

    # -- log ----------------------------------------------------------------------------------------------------
    def entries(self) -> int:
        """Number of entries in the log: releases, withdrawals and closings of waves change only together with it."""
        return self._read(_size)

    def log(self) -> tuple[LogEntry, ...]:
        """All entries of the log, in order."""
        query = sa.select(db.log.c.index, db.log.c.entry, db.log.c.root).order_by(db.log.c.index)
        return tuple(LogEntry(**row) for row in self._read(lambda c: c.execute(query).mappings().all()))

    def root(self, size: int) -> str:
        """Root of the log's first `size` entries."""
        return self._tree().root(size).hex()

    def note_restoration(self, entry: Mapping[str, Any]) -> int:
        """Say in the log that it was taken up again from a backup (`shared.wire.tree_heads`); the entry's place."""

        def work(c: sa.Connection) -> int:
            index, _ = _append(c, entry)
            c.execute(db.restorations.insert().values(log_index=index, entry=canonical_json(entry)))
            return index

        return self._write(work)

    def copy_to(self, path: Path) -> None:
        """Write the database to a new file, whole and as of one moment, while others write on.

        Raises: StateRefusal (not SQLite: a database server has tools of its own), StorageRefusal.
        """
        import sqlite3

        if self._engine.dialect.name != "sqlite":
            raise StateRefusal(
                "the store must be SQLite to be copied by this command",
                given=self._engine.dialect.name,
                next_step="Back a database server up with its own tools (pg_dump), and the home folder beside it.",
            )
        raw = self._engine.raw_connection()
        try:
            target = sqlite3.connect(path)
            try:
                raw.driver_connection.backup(target)  # type: ignore[union-attr]
                target.execute("PRAGMA journal_mode=DELETE")  # one file, complete by itself
            finally:
                target.close()
        except sqlite3.Error as error:
            raise StorageRefusal("the copy of the database must be writable", given=f"{error}") from None
        finally:
            raw.close()

    def prove(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """Inclusion proof of entry `index` in the log of `size` entries (all, by default). Raises: ParameterError."""
        tree = self._tree()
        return tree.inclusion(index, tree.size if size is None else size)

    def prove_growth(self, size: int, later: int | None = None) -> tuple[bytes, ...]:
        """Proof that the log's first `size` entries are still the first of its `later` ones (all, by default).

        Raises: ParameterError.
        """
        tree = self._tree()
        return tree.growth(size, tree.size if later is None else later)

    def verify_log(self) -> int:
        """Recompute every leaf and root, and hold rows and entries against each other; how many entries.

        Each release, anchor, withdrawal, revocation and closing of a wave has its entry, and each entry has what it is
        about: a row that somebody hid is missed here.

        Raises: IntegrityRefusal, naming the first place that does not agree.
        """
        peaks: tuple[bytes, ...] = ()
        entries = self.log()
        for expected, found in enumerate(entries):
            peaks = append(peaks, expected, leaf_hash(found.entry))
            if found.index != expected or peaks_root(peaks).hex() != found.root:
                raise IntegrityRefusal("the log must be whole", given=f"a break at entry {expected}")

        about = set[int]()

        def must(index: int, what: str, *leaves: Mapping[str, Any], root: str = "") -> None:
            about.add(index)
            there = entries[index] if index < len(entries) else LogEntry(index=index, entry=b"", root="")
            if there.entry not in [canonical_json(leaf) for leaf in leaves] or root not in ("", there.root):
                raise IntegrityRefusal(f"{what} must be in the log", given=f"another entry {index}")

        for release in self.releases(withdrawn=True):
            must(release.log_index, "a release", release.leaf, root=release.log_root)
            _require_as_signed(release)
        last: dict[str, Any] = {}
        for row in self._read(lambda c: c.execute(sa.select(db.anchors).order_by(db.anchors.c.log_index)).all()):
            leaf = {"site": row.site, "seq": row.seq, "head": row.head}
            before = last.get(row.site)
            left = {} if before is None else {"left_seq": before.seq, "left_head": before.head}
            must(row.log_index, "an anchor", {"kind": "anchor", **leaf}, {"kind": "reanchor", **left, **leaf})
            last[row.site] = row
        for row in self._read(lambda c: c.execute(sa.select(db.withdrawals)).all()):
            leaf = {"kind": "withdrawal", "statement": Envelope.from_bytes(row.envelope).digest}
            must(
                row.log_index,
                "a withdrawal",
                {**leaf, "bundle": row.bundle_sha256, "site": row.site},
                root=row.log_root,
            )
            said = Withdrawal.from_bytes(Envelope.from_bytes(row.envelope).payload)
            if any(getattr(row, name) != getattr(said, name) for name in said.__dataclass_fields__):
                raise IntegrityRefusal(
                    "a withdrawal must be kept as its site signed it", given=f"another row for entry {row.log_index}"
                )
        for row in self._read(lambda c: c.execute(sa.select(db.revoked)).all()):
            must(row.log_index, "a revocation", {"kind": "revocation", "site": row.site, "serial": row.serial})
        for row in self._read(lambda c: c.execute(sa.select(db.wave_events)).all()):
            about.add(row.log_index)
            there = parse_json(entries[row.log_index].entry) if row.log_index < len(entries) else {}
            names = ("kind", "study", "wave", "reason", "day")
            same = all(there.get(name) == getattr(row, name) for name in names)
            if not same or there.get("missing", []) != json.loads(row.missing):
                raise IntegrityRefusal("a wave's closing must be in the log", given=f"another entry {row.log_index}")
        for row in self._read(lambda c: c.execute(sa.select(db.restorations)).all()):
            must(row.log_index, "a restoration", parse_json(row.entry))
        for row in self._read(lambda c: c.execute(sa.select(db.tree_heads)).all()):
            if not 0 < row.size <= len(entries) or entries[row.size - 1].root != row.root:
                raise IntegrityRefusal("a signed head must be of this log", given=f"another root of {row.size} entries")
        for found in entries:
            # What a site may begin anew from is overwritten by the next such word; its entry stays.
            kind = parse_json(found.entry).get("kind")
            if found.index not in about and kind != "reanchor_allowed":
                raise IntegrityRefusal(
                    "every entry of the log must have what it is about",
                    given=f"entry {found.index}, {kind}, and no such {kind} in the database",
                    next_step="Restore the database from a backup: something that was logged has been removed from it.",
                )
        return len(entries)

    def verify_signatures(self) -> int:
        """Check every stored signature of a site against the keys that were in force at its place in the log.

        Returns: how many documents (anchors, releases, withdrawals) verify. Raises: SignatureRefusal, naming the
            first that does not.
        """
        keys = self._read(_key_history)
        count = 0

        def must(holds: bool, what: str, index: int) -> None:
            nonlocal count
            count += 1
            if not holds:
                raise SignatureRefusal(
                    f"{what} in the log must be signed by its site's keys of that time", given=f"entry {index}"
                )

        for row in self._read(lambda c: c.execute(sa.select(db.anchors)).all()):
            envelope = Envelope.from_bytes(row.envelope)
            release, _ = keys.at(row.site, row.log_index)
            good = bool(envelope.verified_by(release)) and envelope.payload_type == ANCHOR_TYPE
            if good:
                head = AnchorHead.from_bytes(envelope.payload)
                good = (head.site, head.seq, head.head) == (row.site, row.seq, row.head)
            must(good, "an anchor", row.log_index)
        approvals = {stored.plan.hash: stored.plan.floors.approvals for stored in self.plans()}
        for found in self.releases(withdrawn=True):
            release, approvers = keys.at(found.site, found.log_index)
            signers = found.envelope.verified_by(approvers)
            if found.standing is not None and found.standing.payload_type == STANDING_TYPE:
                signers |= found.standing.verified_by(approvers)
            enough = len(signers) >= approvals.get(found.plan_hash, 1)
            must(bool(found.envelope.verified_by(release)) and enough, "a release", found.log_index)
        for row in self._read(lambda c: c.execute(sa.select(db.withdrawals)).all()):
            envelope = Envelope.from_bytes(row.envelope)
            release, approvers = keys.at(row.site, row.log_index)
            signed = bool(envelope.verified_by(release)) and bool(envelope.verified_by(approvers))
            must(signed and envelope.payload_type == WITHDRAWAL_TYPE, "a withdrawal", row.log_index)
        return count

    def _tree(self) -> MerkleTree:
        """The log's tree as of now: what was read once is not read again, because entries are only ever added."""
        with self._growing:
            query = sa.select(db.log.c.leaf).where(db.log.c.index >= self._nodes.size).order_by(db.log.c.index)
            for leaf in self._read(lambda c: c.execute(query).scalars().all()):
                self._nodes.append(leaf)
        return self._nodes


class _Tables:
    """Tables that were read lately and whose file has not been touched since, at most `TABLES_KEPT` bytes of them."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, tuple[tuple[int, ...], int, pd.DataFrame]] = OrderedDict()
        self._checked: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._turns = tuple(threading.Lock() for _ in range(64))

    def turn(self, digest: str) -> threading.Lock:
        """Whoever holds it reads this bundle; a few others may have to wait with it."""
        return self._turns[int(digest[:8], 16) % len(self._turns)]

    def get(self, digest: str, file: os.stat_result) -> pd.DataFrame | None:
        with self._lock:
            found = self._tables.get(digest)
            if found is None or found[0] != _touched(file):
                return None
            self._tables.move_to_end(digest)
        return found[2].copy(deep=False)

    def keep(self, digest: str, file: os.stat_result, table: pd.DataFrame) -> pd.DataFrame:
        size = int(table.memory_usage(deep=True).sum())
        with self._lock:
            self._checked[digest] = _touched(file)
            self._tables[digest] = (_touched(file), size, table)
            while sum(size for _, size, _ in self._tables.values()) > TABLES_KEPT:
                self._tables.popitem(last=False)
        return table.copy(deep=False)

    def checked(self, digest: str, file: os.stat_result) -> bool:
        """True if the file, unchanged since, was once verified as the accepted one."""
        with self._lock:
            return self._checked.get(digest) == _touched(file)

    def forget(self, digest: str) -> None:
        with self._lock:
            self._checked.pop(digest, None)
            self._tables.pop(digest, None)


def _serial(certificate_pem: str) -> str:
    """A certificate's serial number, hexadecimal."""
    from cryptography import x509

    return f"{x509.load_pem_x509_certificate(certificate_pem.encode()).serial_number:x}"


def _touched(file: os.stat_result) -> tuple[int, ...]:
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


# Read once: nobody changes a signed plan or a receipt, and every question reads them for every release.
@functools.lru_cache(maxsize=64)
def _stored(data: bytes) -> StoredPlan:
    envelope = Envelope.from_bytes(data)
    return StoredPlan(envelope=envelope, plan=StudyPlan.from_bytes(envelope.payload))


@functools.lru_cache(maxsize=8192)
def _receipt(data: bytes) -> Receipt:
    from shared.releases.receipt import Receipt

    return Receipt.from_bytes(data)


@functools.lru_cache(maxsize=8192)
def _envelope(data: bytes) -> Envelope:
    return Envelope.from_bytes(data)


def remember(
    c: sa.Connection,
    *,
    study: str,
    wave: int,
    kind: str,
    question: Mapping[str, Any],
    used: Mapping[str, str],
    numbers: Mapping[str, Any],
    figure: str = "",
    today: dt.date,
) -> SavedResult | None:
    """`Store.save_result` within a transaction; the last result to the same question, whatever it says."""
    query = canonical_json(dict(question)).decode()
    body = {"kind": kind, "question": query, "used": dict(used), "numbers": dict(numbers), "figure": figure}
    content = sha256_hex(canonical_json(body))
    same = (db.results.c.study == study) & (db.results.c.question == query)
    last = c.execute(sa.select(db.results).where(same).order_by(db.results.c.id.desc()).limit(1)).mappings().first()
    if c.execute(sa.select(db.results.c.id).where(db.results.c.content == content)).first() is None:
        values = {"study": study, "wave": wave, "kind": kind, "question": query, "figure": figure}
        texts = {"used": canonical_json(dict(used)).decode(), "numbers": canonical_json(dict(numbers)).decode()}
        c.execute(db.results.insert().values(content=content, day=today.isoformat(), **values, **texts))
    return None if last is None else _result(last, set())


def _result(row: sa.RowMapping, withdrawn: set[str]) -> SavedResult:
    values = {name: row[name] for name in ("id", "study", "wave", "kind", "figure", "day")}
    texts = {name: json.loads(row[name]) for name in ("question", "used", "numbers")}
    return SavedResult(**values, **texts, withdrawn=tuple(sorted(set(texts["used"]) & withdrawn)))


def _append(c: sa.Connection, entry: Mapping[str, Any]) -> tuple[int, str]:
    """Add an entry to the log within a transaction; (index, root). Its index is unique, so nobody can fork it."""
    data = canonical_json(entry)
    newest = sa.select(db.log.c.index.label("place"), db.log.c.peaks).order_by(db.log.c.index.desc()).limit(1)
    last = c.execute(newest).first()
    size = 0 if last is None else last.place + 1
    old = b"" if last is None else last.peaks
    leaf = leaf_hash(data)
    peaks = append([old[i : i + 32] for i in range(0, len(old), 32)], size, leaf)
    log_root = peaks_root(peaks).hex()
    c.execute(db.log.insert().values(index=size, entry=data, leaf=leaf, peaks=b"".join(peaks), root=log_root))
    return size, log_root


def _size(c: sa.Connection) -> int:
    newest = c.execute(sa.select(sa.func.max(db.log.c.index))).scalar()
    return 0 if newest is None else int(newest) + 1


def _retire_keys(c: sa.Connection, site: str) -> None:
    """Move a site's keys aside: what they signed so far stays signed, and they sign nothing more."""
    until = _size(c)
    for row in c.execute(sa.select(db.site_keys).where(db.site_keys.c.site == site)).mappings().all():
        there = sa.and_(
            *(db.retired.c[name] == row[name] for name in ("site", "role", "name")), db.retired.c.until == until
        )
        if c.execute(sa.select(db.retired.c.site).where(there)).first() is None:
            c.execute(db.retired.insert().values(**row, until=until))
    c.execute(db.site_keys.delete().where(db.site_keys.c.site == site))


def _key_history(c: sa.Connection) -> KeyHistory:
    now = [(r.site, None, r.role, PublicKey(r.public_key)) for r in c.execute(sa.select(db.site_keys))]
    then = [(r.site, r.until, r.role, PublicKey(r.public_key)) for r in c.execute(sa.select(db.retired))]
    return KeyHistory((*now, *then))


def _select_releases() -> sa.Select[Any]:
    joined = db.releases.outerjoin(db.withdrawals, db.releases.c.bundle_sha256 == db.withdrawals.c.bundle_sha256)
    joined = joined.outerjoin(db.standing, db.releases.c.release_id == db.standing.c.release_id)
    withdrawn = db.withdrawals.c.reason_code.label("withdrawn")
    return sa.select(*db.releases.c, withdrawn, db.standing.c.standing).select_from(joined)


def _require_no_copies(c: sa.Connection, withdrawal: Withdrawal) -> None:
    """Refuse to hide a release whose rows stay readable in a later one. Raises: StateRefusal.

    A release under ``frozen`` copies the rows of the one before. Hiding those as well would need statements that
    their site has not signed; so it takes them back first, the latest before the others.
    """
    withdrawn = set(c.execute(sa.select(db.withdrawals.c.bundle_sha256)).scalars())
    copies: dict[str, int] = {}
    for table in (db.releases, db.quarantine):
        own = (table.c.study == withdrawal.study) & (table.c.site == withdrawal.site)
        for row in c.execute(sa.select(table).where(own & (table.c.wave > withdrawal.wave))):
            said = parse_json(Envelope.from_bytes(row.envelope).payload)
            where = (db.plans.c.study == row.study) & (db.plans.c.version == said["plan_version"])
            plan = StudyPlan.from_bytes(
                Envelope.from_bytes(c.execute(sa.select(db.plans.c.envelope).where(where)).scalar_one()).payload
            )
            if plan.returning == "frozen" and row.bundle_sha256 not in withdrawn:
                copies[row.release_id] = row.wave
    if copies:
        latest = sorted(copies.items(), key=lambda item: -item[1])
        raise StateRefusal(
            "a release must be taken back after those that hold its rows",
            given=", ".join(f"wave {wave} ({release_id[:8]})" for release_id, wave in latest),
            next_step="Take these back first, the latest before the others: each copies the rows of the one before.",
        )


def _require_as_signed(release: AcceptedRelease) -> None:
    """Hold a release's row against the statement that its site signed: another study or wave would hide it there."""
    said = parse_json(release.envelope.payload)
    names = ("study", "wave", "site", "release_id", "bundle_sha256", "bundle_bytes", "plan_hash", "plan_version")
    same = all(getattr(release, name) == said[name] for name in names)
    if not same or release.receipt.hash != said["receipt_sha256"] or release.receipt.n != release.n:
        raise IntegrityRefusal(
            "a release must be kept as its site signed it", given=f"another row for entry {release.log_index}"
        )


def _select_tombstones() -> sa.Select[Any]:
    return sa.select(*(db.withdrawals.c[name] for name in Tombstone.__dataclass_fields__))


def _wave_event(c: sa.Connection, leaf: Mapping[str, Any], today: dt.date) -> None:
    reach("wave.before_event")
    index, _ = _append(c, {**leaf, "day": today.isoformat()})
    values = {name: leaf[name] for name in ("kind", "study", "wave", "reason")}
    missing = json.dumps(leaf.get("missing", []))
    c.execute(db.wave_events.insert().values(log_index=index, day=today.isoformat(), missing=missing, **values))
    reach("wave.before_commit")


def _wave_record(c: sa.Connection, study: str, wave: int) -> WaveRecord:
    here = (db.wave_events.c.study == study) & (db.wave_events.c.wave == wave)
    steps: list[tuple[int, str, Any]] = [
        (row.log_index, row.kind, row) for row in c.execute(sa.select(db.wave_events).where(here))
    ]
    if steps:
        place = (db.releases.c.study == study) & (db.releases.c.wave == wave)
        arrived = c.execute(_select_releases().where(place)).all()
        steps += [(row.log_index, "late", row) for row in arrived]
        accepted = {row.bundle_sha256 for row in arrived}
        withdrawn = c.execute(
            _select_tombstones().where((db.withdrawals.c.study == study) & (db.withdrawals.c.wave == wave))
        )
        steps += [(row.log_index, "withdrawn", row) for row in withdrawn if row.bundle_sha256 in accepted]
    closed, revisions = False, list[Revision]()
    for index, kind, row in sorted(steps, key=lambda step: step[0]):
        if kind == "wave_reopened":
            closed = False
        elif kind == "wave_closed":
            closed, closing = True, {"cause": "closed", "missing": tuple(json.loads(row.missing)), "reason": row.reason}
            revisions.append(Revision(number=len(revisions), log_index=index, day=row.day, **closing))
        elif closed:
            day = row.accepted_day if kind == "late" else row.day
            revisions.append(Revision(number=len(revisions), log_index=index, cause=kind, site=row.site, day=day))
    return WaveRecord(study=study, wave=wave, closed=closed, revisions=tuple(revisions))


def _anchor_receipt(c: sa.Connection, row: Any) -> AnchorReceipt:
    log_root = c.execute(sa.select(db.log.c.root).where(db.log.c.index == row.log_index)).scalar_one()
    return AnchorReceipt(seq=row.seq, head=row.head, index=row.log_index, log_root=log_root)


def _newest_anchor(site: str) -> sa.Select[Any]:
    return sa.select(db.anchors).where(db.anchors.c.site == site).order_by(db.anchors.c.log_index.desc()).limit(1)


def _allowed(c: sa.Connection, head: AnchorHead, left_index: int) -> bool:
    """True if the lead has allowed a head that this chain passes, and the chain begins where it says.

    The site may have gone on since it read the fingerprint out, so the allowed head may lie within the links.
    """
    given = c.execute(sa.select(db.reanchors).where(db.reanchors.c.site == head.site)).first()
    if given is None or given.left_index != left_index:
        return False
    witnessed = sa.select(db.anchors.c.head).where((db.anchors.c.site == head.site) & (db.anchors.c.seq == head.after))
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
            next_step="The coordinator's store may be an old copy: tell the study lead, then run site-agent resend.",
        )
    given = f"entry {head.seq}, from before it" if head.seq < seq else "another history of it"
    return LedgerRefusal(
        must,
        given=given,
        next_step="The site's ledger is an old copy, or was edited. Run site-agent ledger recover.",
    )


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


def _release(row: Any) -> AcceptedRelease:
    values = dict(row._mapping)
    values["receipt"] = _receipt(values["receipt"])
    values["envelope"] = _envelope(values["envelope"])
    values["withdrawn"] = values["withdrawn"] or ""
    values["standing"] = None if values["standing"] is None else Envelope.from_bytes(values["standing"])
    return AcceptedRelease(**values)


def _storage(error: DBAPIError) -> StorageRefusal:
    if "malformed" in str(error.orig) or "not a database" in str(error.orig):
        return StorageRefusal(
            "the coordinator's database must be whole",
            given="a damaged file",
            next_step="Stop the server and restore the database from a backup (see coordinator doctor).",
        )
    return StorageRefusal(
        "the coordinator's database must be readable and writable",
        given=type(error.orig).__name__,
        next_step="Check disk space and permissions of the coordinator's home folder.",
    )
