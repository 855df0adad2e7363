"""The Collection service: takes privatised releases from sites, each exactly once, and nothing else.

An offer carries the signed statement; all that can be decided from it (signatures of the pinned keys, ids, plan,
wave) is decided before a byte of the bundle is taken. The bundle is streamed to ``staging/``, hashed, and only then
opened. A release whose bytes are what its site and approvers signed, but whose *content* breaks the plan, is kept in
``quarantine/`` with a typed reason that the site sees; analysts never see it.

A site is answered with an acceptance only when the bundle and its folder are flushed to disk and the transaction that
logs the release is committed. Between those two a crash may leave a bundle that no transaction names; `recover` puts
it back into staging, where the site's next offer finds it. So a release is acknowledged after it is safe, visible
when it is whole, and accepted once, however often it is sent.

A bundle is opened in a worker process of its own (`coordinator.services.workers`), with as much memory and time as its
size gives it, and never before the disk says that it will be. One that was open when the coordinator died is opened
once more with little room, and after that never again: no bundle stops the coordinator twice.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import functools
import hashlib
import logging
import math
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from coordinator.config import Quotas
from coordinator.services.analysts import Analysts
from coordinator.services.analysts_port import AnalystsProcess, AnalystsServer, analysts_server
from coordinator.services.authority import Authority, requested_key
from coordinator.services.clocks import SeenClocks
from coordinator.services.health import require_home, require_whole
from coordinator.services.membership import Members
from coordinator.services.quotas import CallRate, expire_refused, quota_uses, staged_files
from coordinator.services.tasks import READING, require_stated
from coordinator.services.workers import Busy, Ended, Failed, TaskLimits, Workers
from coordinator.store.log_watch import LogWatch
from coordinator.store.round_queue import RoundQueue
from coordinator.store.site_certificates import SiteCertificates
from coordinator.store.store import AcceptedRelease, RegisteredSite, Store
from shared.base.canonical import canonical_json, sha256_hex
from shared.base.failpoints import reach
from shared.base.keys import Envelope, write_private
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    IntegrityRefusal,
    LockedRefusal,
    NetworkRefusal,
    PlanChanged,
    PlanRefusal,
    RateRefusal,
    ReceiptRefusal,
    Refusal,
    ReplayRefusal,
    RoleRefusal,
    SchemaRefusal,
    StateRefusal,
    StorageRefusal,
    TooLarge,
)
from shared.plans.plan import StudyPlan
from shared.plans.standing import STANDING_TYPE, broken_limit, open_revocation, open_standing
from shared.privacy.stated import all_given, shown_epsilon, shown_price
from shared.releases.receipt import AGENT, STATEMENT_TYPE, Receipt, Statement, charged_training
from shared.wire.clocks import open_reading, unverified_reading, utc_now
from shared.wire.messages import COLLECTION, SERVICE
from shared.wire.signed_messages import (
    ANCHOR_TYPE,
    ENROLMENT_TYPE,
    WITHDRAWAL_TYPE,
    AnchorHead,
    EnrolmentRequest,
    Reply,
    Withdrawal,
    countersigned,
    require_countersigned,
)
from shared.wire.site_messages import (
    Acceptance,
    AnchorReceipt,
    Authorities,
    AuthoritiesRequest,
    Chunk,
    Enrolment,
    EnrolRequest,
    GapNoted,
    GapReport,
    Growth,
    GrowthRequest,
    Holdings,
    LogView,
    MembershipReply,
    MembershipRequest,
    Offered,
    OfferRequest,
    Renewed,
    Revoked,
    RoundAnswer,
    RoundReceipt,
    RoundReply,
    RoundRequest,
    SignedDocument,
    StudyRequest,
    WatchRequest,
    Withdrawn,
)
from shared.wire.transport import Call, CallLimits, Handler, Peer, RetryLater, Server

__all__ = ["CollectionService", "CoordinatorServer", "serve"]

MAX_BUNDLE = 256 << 20
CHECK = "coordinator.services.tasks:check_bundle"
TABLE_FACTOR = 2  # a table may take this many times the largest bundle when it is decoded
MEMORY_FACTOR = 6  # and the process that reads it this many times: the file, the table, and a copy to check
CPU, WALL = 60, 120.0  # seconds that it may take
QUEUE = 120.0  # seconds that a bundle waits for a process to read it
OPENINGS = 2  # how often a bundle is opened whose opening does not end
# The second time it has the room of a table of its own size, many times over: more is for tables that are packed well.
LITTLE, LITTLE_FACTOR = 256 << 20, 8
STAGED_PER_SITE = 8
RENEWALS_A_DAY = 12
STATEMENT_CAP = 64 << 10
UNFINISHED_DAYS = 30
DESCRIPTORS = 65_536
BLOCK = 1 << 20
_log = logging.getLogger("tributary.collect")


def utc_today() -> dt.date:
    """Today in UTC; the coordinator tells days only."""
    return utc_now().date()


class CollectionService:
    """The sites' service. One instance per home folder; safe for many threads.

    Args:
        home: the coordinator's home folder.
        store: its store.
        authority: its certificate authority.
        max_bundle: most bytes of one release.
        quotas: what one site may leave here.
        today: gives the UTC date.
        now: gives the time in UTC.
    """

    def __init__(
        self,
        *,
        home: Path,
        store: Store,
        authority: Authority,
        max_bundle: int = MAX_BUNDLE,
        quotas: Quotas | None = None,
        today: Callable[[], dt.date] = utc_today,
        now: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._store, self._authority, self._today, self._now = store, authority, today, now
        self.clocks = SeenClocks(store, authority.certificate)
        self.certificates = SiteCertificates(store)
        self._renewals = CallRate(RENEWALS_A_DAY / 86_400, RENEWALS_A_DAY, "a site may renew 12 times a day")
        self._disbelieved: dt.date | None = None
        self._quotas = mine = quotas or Quotas()
        self._calls = CallRate(mine.calls / 60, mine.calls // 2, f"a site may call {mine.calls} times a minute")
        words = f"a site may have {mine.anchor_calls} heads witnessed in a minute"
        self._heads = CallRate(mine.anchor_calls / 60, 2 * mine.anchor_calls, words)
        words = f"a site may have {mine.refused_a_day} releases refused in a day"
        self._refused = CallRate(mine.refused_a_day / 86_400, mine.refused_a_day, words)
        self._anchored: dict[str, int] | None = None  # bytes of each site's heads
        self._tended: dt.date | None = None
        self._max_bundle = max_bundle
        self._home = home
        self._boxes = RoundQueue(store)
        self._members = Members(store, authority.coordinator)
        self._watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
        self._bundles, self._staging, self._quarantine = store.bundles, home / "staging", home / "quarantine"
        for folder in (self._bundles, self._staging, self._quarantine):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _flush_folder(folder.parent)  # else a power cut may take the folder, with all that was flushed into it
        self._locks: WeakValueDictionary[str, _UploadLock] = WeakValueDictionary()
        self._locks_guard = threading.Lock()
        self._seen: set[str] = set()  # certificates whose arrival is on disk
        # Opening a bundle takes memory in proportion to its table; two at a time bound it.
        limits = TaskLimits(memory=MEMORY_FACTOR * max_bundle + (64 << 20), cpu=CPU, wall=WALL)
        self._opening = Workers(imports=READING, places=2, limits=limits, fresh=True)

    def start(self) -> None:
        """Begin what the first delivery would have to wait for, and sign the log as it is."""
        with suppress(StorageRefusal):  # a full disk: the next acceptance signs a head
            self._watch.publish(self._today())
        self._opening.start()

    def close(self) -> None:
        """End what was begun for deliveries."""
        self._opening.close()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """One function per method of the service."""
        return {
            "Enrol": self.enrol,
            "FetchPlan": self.fetch_plan,
            "Anchor": self.anchor,
            "Offer": self.offer,
            "Upload": self.upload,
            "Status": self.status,
            "Withdraw": self.withdraw,
            "RevokeStanding": self.revoke_standing,
            "Growth": self.growth,
            "Watch": self.watch,
            "ReportGap": self.report_gap,
            "NextRound": self.next_round,
            "UploadRound": self.upload_round,
            "Clock": self.clock,
            "Renew": self.renew,
            "Authorities": self.authorities,
            "Membership": self.membership,
        }

    def admit(self, peer: Peer) -> None:
        """Refuse a certificate that is revoked or an invitation that has served, before anything else of a call.

        Raises: CertificateRefusal, TokenRefusal.
        """
        if peer.role == "site":
            self._store.require_site(peer.site, peer.serial)
            self.certificates.require(peer, self._today())
        else:
            self._store.require_invited(peer.site)

    # -- joining ------------------------------------------------------------------------------------------------
    def enrol(self, call: Call, request: EnrolRequest) -> Enrolment:
        """Take a request to join, or say what became of it. Raises: RoleRefusal, TokenRefusal, SignatureRefusal, …"""
        if call.peer.role != "enrol":
            raise RoleRefusal("only an invitation's certificate may ask to join", given="a site's")
        self._calls.take(call.peer.site)
        envelope = _envelope(request.envelope)
        call.digest = envelope.digest
        enrolment = EnrolmentRequest.from_bytes(envelope.payload)
        # The key stands in the request itself: its signature shows possession. Trust comes from the lead, who
        # compares its fingerprint.
        envelope.require(ENROLMENT_TYPE, {enrolment.release_key.key_id: enrolment.release_key})
        requested_key(enrolment.csr_pem)
        site = self._store.enrol(
            token=request.token, site=call.peer.site, request=enrolment, digest=envelope.digest, today=self._today()
        )
        if site.state == "pending":
            return Enrolment(state="pending", fingerprint=site.fingerprint)
        if site.state == "accepted":
            if not site.certificate_pem:
                authority = self._in_force()
                self.clocks.verdict(self._now()).require()
                serial = self.certificates.first_serial(site.site)
                issued = authority.issue(site.csr_pem, site.site, serial=serial)
                site = self._store.set_certificate(site.site, site.csr_pem, issued)
            return Enrolment(state="accepted", certificate_pem=site.certificate_pem)
        return Enrolment(state="refused", reason=site.reason or site.state)

    def _site(self, call: Call) -> RegisteredSite:
        """The accepted site that calls. Raises: RoleRefusal (a bootstrap certificate), CertificateRefusal."""
        if call.peer.role != "site":
            raise RoleRefusal(
                "an invitation's certificate may only ask to join", given="another call", next_step="Join first."
            )
        self._calls.take(call.peer.site)
        site = self._store.require_site(call.peer.site, call.peer.serial)
        self._tend()
        if call.peer.serial not in self._seen:
            with suppress(StorageRefusal):  # a full disk: the next call tells it again
                self.certificates.arrived(call.peer, self._today())
                self._store.arrived(call.peer.site, call.peer.serial)
                self._seen.add(call.peer.serial)
        return self._members.in_force(site, self._today())

    def _invited(self, site: RegisteredSite, study: str) -> None:
        if study not in site.studies:
            raise RoleRefusal("the site must be invited to the study", given=study, next_step="Ask the study lead.")

    # -- plans, anchors, status ---------------------------------------------------------------------------------
    def fetch_plan(self, call: Call, request: StudyRequest) -> SignedDocument:
        """The newest signed plan of a study. Raises: PlanRefusal, RoleRefusal."""
        # Also of a study that it has left: what its ledger has lost is priced by that plan.
        self._members.require_known(self._site(call), request.study)
        envelope = self._store.plan(request.study).envelope
        call.digest = envelope.digest
        return SignedDocument(envelope=envelope.to_bytes())

    def anchor(self, call: Call, request: SignedDocument) -> AnchorReceipt:
        """Witness the head of a site's ledger. Raises: SignatureRefusal, ReplayRefusal, LedgerRefusal."""
        site = self._site(call)
        envelope = _envelope(request.envelope)
        call.digest = envelope.digest
        head = AnchorHead.from_bytes(envelope.require(ANCHOR_TYPE, {site.release_key.key_id: site.release_key}))
        if head.site != site.site:
            raise ReplayRefusal("a ledger head must be the calling site's", given="another site's")
        if self._anchored is None:
            self._anchored = self._store.anchor_bytes()
        size = len(request.envelope)
        if self._anchored.get(site.site, 0) + size > self._quotas.anchors:
            raise TooLarge(
                f"the heads of one site's ledger must take at most {self._quotas.anchors >> 20} MB",
                given="more",
                next_step="Ask the study lead: site_heads_mb in coordinator.toml.",
            )
        self._heads.take(site.site)
        reach("ingest.before_anchor")
        before = self._store.entries()
        receipt = self._store.add_anchor(head, envelope)
        if receipt.index >= before:  # else it was witnessed before
            self._anchored[site.site] = self._anchored.get(site.site, 0) + size
        reach("ingest.after_anchor")
        return self._signed_for(site, receipt)

    def status(self, call: Call, request: StudyRequest) -> Holdings:
        """Releases held of the calling site, each with the site's own signature as evidence."""
        site = self._site(call)
        self._members.require_known(site, request.study)
        anchored, envelope, reanchored = self._store.witnessed(site.site)
        return Holdings(
            holdings=self._store.holdings(request.study, site.site),
            anchored=None if anchored is None else self._signed_for(site, anchored),
            reanchored=reanchored,
            anchor=envelope,
            reminders=self._store.reminders(request.study, site.site),
        )

    def membership(self, call: Call, request: MembershipRequest) -> MembershipReply:
        """Take what the site has signed of its keys and approvers, and say what the leads have signed of the site.

        Raises: SignatureRefusal, ApprovalRefusal, ReplayRefusal, SchemaRefusal.
        """
        site = self._site(call)
        statements = map(_envelope, request.statements)
        return self._members.exchange(site, statements, self._members.leads(self._home), self._today())

    def growth(self, call: Call, request: GrowthRequest) -> Growth:
        """Proof that the log only grew between two sizes that sites have seen. Raises: ParameterError."""
        self._site(call)
        return Growth(proof=self._store.prove_growth(request.old_size, request.size))

    def clock(self, call: Call, request: SignedDocument) -> SignedDocument:
        """What this clock says, signed, for what the site's says; that is kept. Raises: SignatureRefusal, ….

        An invitation's certificate is answered too. Its key is not pinned yet, so that what it says is not kept.
        """
        envelope = _envelope(request.envelope)
        if call.peer.role == "site":
            site = self._site(call)
            question = open_reading(envelope, site.release_key)
        else:
            self._calls.take(call.peer.site)
            question = unverified_reading(envelope)
        if question.site != call.peer.site:
            raise ReplayRefusal("a clock's reading must be the calling site's", given="another site's")
        now = self._now()
        if call.peer.role == "site":
            seen = self.clocks.note(site.site, question.when, now)
            if seen.state == "wrong":
                _log.warning("the clock of %s is %s", seen.site, seen.words)
        return SignedDocument(envelope=question.answered(now).signed(self._authority.witness).to_bytes())

    def renew(self, call: Call, request: SignedDocument) -> Renewed:
        """The calling site's next certificate. Raises: see `SiteCertificates.renew`."""
        site = self._site(call)
        envelope = _envelope(request.envelope)
        call.digest = envelope.digest
        self._renewals.take(site.site)
        authority, verdict = self._in_force(), self.clocks.verdict(self._now())

        def issue(csr_pem: str, name: str, serial: int) -> str:
            verdict.require()
            return authority.issue(csr_pem, name, serial=serial)

        issued = self.certificates.renew(envelope, call.peer, site, issue=issue, today=self._today())
        return Renewed(certificate_pem=issued)

    def authorities(self, call: Call, request: AuthoritiesRequest) -> Authorities:
        """Every change of the certificate authority, as the older ones and the witness key have signed it."""
        self._site(call)
        return Authorities(statements=self._in_force().statements)

    def _in_force(self) -> Authority:
        """The authority that issues now: another may have followed since this began to serve."""
        found = self._authority.current()
        if found is not self._authority:
            self._authority = found
            self.clocks.follow(found.certificate)
        return found

    def may_issue(self) -> bool:
        """True if a certificate may be dated by this clock now; says so in the log, once a day, where it may not."""
        self._in_force()
        verdict, today = self.clocks.verdict(self._now()), self._today()
        if not verdict.believed and self._disbelieved != today:
            self._disbelieved = today
            _log.error("no certificate is issued or renewed: this clock says %s", verdict.why)
        return verdict.believed

    def watch(self, call: Call, request: WatchRequest) -> LogView:
        """The log's signed head, that it grew from sizes seen before, and entries of the calling site, proven.

        Raises: ParameterError (another site's entry).
        """
        return self._watch.view(request, self._today(), site=self._site(call).site)

    def report_gap(self, call: Call, request: GapReport) -> GapNoted:
        """Note what a site misses here of what this coordinator has acknowledged; it is taken again without asking
        anew what was decided then. Raises: SignatureRefusal (not this coordinator's word for this site), RoleRefusal.
        """
        site = self._site(call)
        self._invited(site, request.study)
        for one in request.lacking:
            require_countersigned(one, self._authority.witness.public, site.site)
        missing = self._watch.note_gap(site.site, request.study, request.lacking, self._today())
        if missing:
            logging.getLogger("tributary.collect").warning(
                "%s misses %d releases of %s that were acknowledged here: waves %s. They are taken again",
                site.site,
                len(missing),
                request.study,
                ", ".join(str(one.wave) for one in missing),
            )
        return GapNoted(lacking=len(missing))

    def _signed_for(self, site: RegisteredSite, reply: Reply) -> Reply:
        return countersigned(reply, self._authority.witness, site.site)

    # -- a training that the sites run together -------------------------------------------------------------------
    def next_round(self, call: Call, request: RoundRequest) -> RoundReply:
        """The calling site's current round of a training, or the finished flow that it names. Raises: RoleRefusal."""
        site = self._site(call)
        self._invited(site, request.study)
        return self._boxes.next(site, request.study, request.flow)

    def upload_round(self, call: Call, request: RoundAnswer) -> RoundReceipt:
        """Take a site's answer to a round, once. Raises: see `RoundQueue.answer`."""
        site = self._site(call)
        call.digest = sha256_hex(request.content)
        return self._boxes.answer(site, request)

    # -- withdrawal ---------------------------------------------------------------------------------------------
    def withdraw(self, call: Call, request: SignedDocument) -> Withdrawn:
        """Take a release back for its site: hidden first and for good, its bytes deleted after that.

        Raises: SignatureRefusal, ApprovalRefusal, ReplayRefusal, StateRefusal.
        """
        site = self._site(call)
        envelope = _envelope(request.envelope)
        withdrawal = Withdrawal.from_bytes(
            envelope.require(WITHDRAWAL_TYPE, {site.release_key.key_id: site.release_key})
        )
        call.digest = withdrawal.bundle_sha256
        if withdrawal.site != site.site:
            raise ReplayRefusal("a withdrawal must be of the calling site's release", given="another site's")
        if not envelope.verified_by({key.key_id: key for key in site.approvers.values()}):
            raise ApprovalRefusal(
                "a withdrawal must be signed by an approver of the site",
                given="the agent's signature only",
                next_step="Sign it with a key that was named when the site joined.",
            )
        part = self._part(site, withdrawal.bundle_sha256)
        with self._turn(part):  # no upload of the same bytes ends in between
            reach("withdraw.before_commit")
            stone = self._store.withdraw(withdrawal=withdrawal, envelope=envelope, today=self._today())
            reach("withdraw.after_commit")
            self._delete(withdrawal.bundle_sha256)
            reach("withdraw.deleted")
        return self._signed_for(site, stone.withdrawn)

    def revoke_standing(self, call: Call, request: SignedDocument) -> Revoked:
        """End a standing approval for its site, by the word of any of its approvers; again changes nothing.

        Raises: SignatureRefusal, ReplayRefusal, TooLarge.
        """
        site = self._site(call)
        envelope = _envelope(request.envelope)
        said = open_revocation(envelope, site.approvers)
        call.digest = said.standing
        if said.site != site.site:
            raise ReplayRefusal("a revocation must be of the calling site's standing approval", given="another site's")
        self._members.require_known(site, said.study)
        self._store.revoke_standing(site.site, said.standing, envelope, self._today())
        return Revoked(standing=said.standing)

    def _delete(self, digest: str) -> None:
        """Remove the bytes of a withdrawn release from everywhere, flushed."""
        for folder in (self._bundles, self._quarantine):
            path = folder / f"{digest}.zip"
            if path.exists():
                path.unlink()
                _flush_folder(folder)
        for kind in ("part", "json", "opened"):
            for path in self._staging.glob(f"*.{digest}.{kind}"):
                path.unlink(missing_ok=True)

    # -- offer --------------------------------------------------------------------------------------------------
    def offer(self, call: Call, request: OfferRequest) -> Offered:
        """Decide on a statement before its bundle is sent.

        Raises: SignatureRefusal, ApprovalRefusal, ReplayRefusal, PlanRefusal and its kinds, TooLarge, StorageRefusal;
        or the reason for which these bytes were quarantined before.
        """
        site = self._site(call)
        if max(len(request.envelope), len(request.standing or b"")) > STATEMENT_CAP:
            raise TooLarge(f"a signed statement must have at most {STATEMENT_CAP} bytes", given="more")
        envelope = _envelope(request.envelope)
        statement = self._signed(site, envelope)
        call.digest = statement.bundle_sha256
        known = self._answered(site, statement)
        if known is not None:
            return Offered(acceptance=self._signed_for(site, known))
        self._refused.require(site.site)
        standing = None if request.standing is None else _envelope(request.standing)
        self._planned(site, statement, envelope, standing)
        part = self._part(site, statement.bundle_sha256)
        with self._turn(part):
            # Another delivery of the same bytes may have ended while this one was being checked.
            known = self._answered(site, statement)
            if known is not None:
                return Offered(acceptance=self._signed_for(site, known))
            reach("ingest.before_staging")
            self._make_room(site, part, statement.bundle_bytes)
            lines = [one.to_bytes() for one in (envelope, standing) if one is not None]  # one line of JSON each
            write_private(part.with_suffix(".json"), b"\n".join(lines))
            reach("ingest.after_staging")
            return Offered(offset=min(_size(part), statement.bundle_bytes))

    def _signed(self, site: RegisteredSite, envelope: Envelope) -> Statement:
        """The statement, when this site's release key signed it and it is about this site and this coordinator."""
        release_key = {site.release_key.key_id: site.release_key}
        approvers = {key.key_id: key for key in site.approvers.values()}
        if not envelope.verified_by(release_key) and envelope.verified_by(approvers):
            raise RoleRefusal("a release must be signed by the site's release key", given="an approver's key only")
        statement = Statement.from_bytes(envelope.require(STATEMENT_TYPE, release_key))
        for name, expected in (("site", site.site), ("recipient", self._authority.coordinator)):
            if getattr(statement, name) != expected:
                raise ReplayRefusal(f"the statement's {name} must be this {name}", given="another")
        if statement.bundle_bytes > self._max_bundle:
            raise TooLarge(f"a bundle must have at most {self._max_bundle} bytes", given=f"{statement.bundle_bytes}")
        if statement.bundle_bytes < 1 or len(statement.bundle_sha256) != 64 or not statement.release_id.isalnum():
            raise SchemaRefusal("a statement must name a release id, and its bundle by size and SHA-256")
        return statement

    def _answered(self, site: RegisteredSite, statement: Statement) -> Acceptance | None:
        """The answer these bytes got before, if any. Raises: that answer, if it was a refusal of their content."""
        known = self._store.accepted(statement)
        if known is not None:
            return known
        for apart in self._store.quarantined(bundle_sha256=statement.bundle_sha256):
            if apart.site == site.site:
                raise apart.refusal
        return None

    def _planned(
        self, site: RegisteredSite, statement: Statement, envelope: Envelope, standing: Envelope | None
    ) -> StudyPlan:
        """The plan the statement acts upon: known, newest, in force, its wave open, its approvals given."""
        self._invited(site, statement.study)
        if self._acknowledged(statement):
            return self._as_acknowledged(site, statement, envelope, standing)
        newest = self._store.plan(statement.study).plan
        if statement.plan_hash != newest.hash or statement.plan_version != newest.version:
            known = {stored.plan.hash for stored in self._store.plans()}
            if statement.plan_hash in known:
                raise PlanChanged(
                    f"a release must follow plan version {newest.version}", given=f"version {statement.plan_version}"
                )
            raise PlanRefusal("a release must follow a plan that the coordinator knows", given="another hash")
        newest.require_current(self._today())
        wave = newest.wave(statement.wave)
        if self._today() + dt.timedelta(days=1) < wave.opens:  # a site's clock and zone may be a day ahead
            raise PlanRefusal("a wave must be open", given=f"wave {wave.number}, which opens on {wave.opens}")
        approvers = {key.key_id: key for key in site.approvers.values()}
        signers = envelope.verified_by(approvers)
        if newest.floors.approval == "before" and standing is None:
            raise ApprovalRefusal(
                "a release of this plan must be approved before it is drawn",
                given="no standing approval",
                next_step="Run site-agent standing add, then site-agent run.",
            )
        if standing is not None:
            signers |= {self._stands(site, statement, newest, standing)}
        # A deputy signs in the place of another approver: the two together are one.
        stands_in = self._members.stands_in(site.site)
        signed = {name for name, key in site.approvers.items() if key.key_id in signers}
        approved = len({stands_in.get(name, name) for name in signed})
        if newest.floors.author_apart and statement.author != AGENT:
            author = site.approvers.get(statement.author)
            if author is None or author.key_id in signers:
                raise ApprovalRefusal(
                    "whoever had the release made must be an approver of the site and must not approve it",
                    given=f"author {statement.author!r}",
                    next_step="Another approver of the site decides.",
                )
        if approved < newest.floors.approvals:
            raise ApprovalRefusal(
                f"a release must be signed by {newest.floors.approvals} approver(s) of the site",
                given=f"{approved}",
                next_step="Approve it (site-agent approve) with a key that was named when the site joined.",
            )
        return newest

    def _acknowledged(self, statement: Statement) -> bool:
        return self._watch.acknowledged(statement.site, statement.bundle_sha256)

    def _as_acknowledged(
        self, site: RegisteredSite, statement: Statement, envelope: Envelope, standing: Envelope | None
    ) -> StudyPlan:
        """The plan of a release that was accepted here before a backup was put back, which may be an older one now.

        Days, limits and budgets were held against it then. Raises: PlanRefusal, ApprovalRefusal.
        """
        plan = self._store.plan(statement.study, statement.plan_version).plan
        if plan.hash != statement.plan_hash:
            raise PlanRefusal(
                f"version {statement.plan_version} of the plan must be the one that the release was drawn under",
                given="another",
                next_step="The study lead signs that version again: coordinator plan sign.",
            )
        approvers = {key.key_id: key for key in site.approvers.values()}
        signers = envelope.verified_by(approvers)
        if standing is not None and standing.payload_type == STANDING_TYPE:
            signers |= standing.verified_by(approvers)
        if len(signers) < plan.floors.approvals:
            raise ApprovalRefusal(
                f"a release must be signed by {plan.floors.approvals} approver(s) of the site", given=f"{len(signers)}"
            )
        return plan

    def _stands(self, site: RegisteredSite, statement: Statement, plan: StudyPlan, envelope: Envelope) -> str:
        """Handle of the approver whose standing approval is good for this statement, as far as that says.

        Raises: SignatureRefusal, ReplayRefusal, ApprovalRefusal.
        """
        if not plan.floors.standing:
            raise _not_standing("the plan must allow a standing approval")
        standing = open_standing(envelope, site.approvers)
        if (standing.site, standing.study) != (site.site, statement.study):
            raise ReplayRefusal("a standing approval must be of the calling site and this study", given="another")
        if self._store.standing_revoked(site.site, envelope.digest):
            raise _not_standing("it must not have been revoked")
        limit = broken_limit(
            standing, plan_hash=statement.plan_hash, today=self._today(), epsilon=None, n=None, last_n=None
        )
        if limit:
            raise _not_standing(limit)
        return site.approvers[standing.approver].key_id

    def _require_size(self, site: RegisteredSite, receipt: Receipt, envelope: Envelope, plan: StudyPlan) -> None:
        """The limits of a standing approval that only the bundle shows. Raises: ApprovalRefusal.

        The content is whole and may still be approved by a person: it is not set apart.
        """
        approvers = {key.key_id: key for key in site.approvers.values()}
        earlier = [
            one
            for one in self._store.releases(receipt.study, site=site.site)
            if not one.withdrawn and one.envelope.verified_by(approvers)  # by hand: size must not creep wave by wave
        ]
        last = max(earlier, key=lambda one: one.log_index, default=None)
        ahead = plan.floors.approval == "before"
        standing = open_standing(envelope, site.approvers)
        limit = broken_limit(
            standing,
            plan_hash=receipt.plan_hash,
            today=self._today(),
            epsilon=math.inf if receipt.stated_epsilon is None else receipt.epsilon,
            n=None if ahead else receipt.n,
            last_n=None if last is None else last.n,
        )
        if not limit and receipt.agent_version != standing.agent_version:
            limit = "the agent's version must be the one it was signed for"
        if limit:
            raise _not_standing(limit)

    def _make_room(self, site: RegisteredSite, part: Path, size: int) -> None:
        """Refuse what the disk cannot hold; forget the oldest of a site's unfinished uploads."""
        free = shutil.disk_usage(self._staging).free
        if free < size + (64 << 20):
            raise _no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        others = [found for found in staged_files(self._home, site.site) if found[0].stem != part.stem]
        total = size + sum(taken for _, taken in others)
        for place, (path, taken) in enumerate(others):
            if len(others) - place < STAGED_PER_SITE and total <= self._quotas.staging:
                break
            path.with_suffix(".part").unlink(missing_ok=True)
            path.unlink(missing_ok=True)  # how often it was opened stays known
            total -= taken

    def _tend(self) -> None:
        """Once a day: delete what has expired, and say who is near a quota."""
        today = self._today()
        if self._tended == today:
            return
        self._tended = today
        try:
            self.tend()
        except (OSError, StorageRefusal) as error:
            _log.error("what has expired could not be deleted: %s", type(error).__name__)

    def tend(self) -> None:
        """Delete what has expired, by a clock that is believed; name in the log who is near a quota."""
        now, analysts = self._now().timestamp(), Analysts(self._store, self._quotas)
        if self.may_issue():
            gone = expire_refused(self._home, self._store, self._quotas, now)
            if gone:
                _log.info("%d refused bundles were deleted; their digests and reasons stay", gone)
            for path in self._staging.iterdir():
                old = now - path.stat().st_mtime > 86_400 * UNFINISHED_DAYS
                if old and path.suffix in (".json", ".part", ".opened"):
                    path.unlink(missing_ok=True)
            analysts.prune(self._today())
        for use in quota_uses(self._home, self._store, self._quotas, analysts.kept()):
            if use.near:
                _log.warning("near its quota: %s", use.words)

    # -- upload -------------------------------------------------------------------------------------------------
    def upload(self, call: Call, first: Chunk | None) -> Generator[None, Chunk | None, Acceptance]:
        """Take an offered bundle and answer when it is safe; it is sent each further chunk, and None at the end.

        Raises: StateRefusal (never offered), IntegrityRefusal (truncated, wrong place, other bytes), TooLarge,
        StorageRefusal; any refusal of `offer`; or the refusal for which the content was quarantined.
        """
        site = self._site(call)
        if first is None:
            raise IntegrityRefusal("an upload must carry the offered bytes", given="none")
        digest = call.digest = first.bundle_sha256
        part = self._part(site, digest)
        with self._turn(part):
            try:
                staged = [Envelope.from_bytes(line) for line in part.with_suffix(".json").read_bytes().split(b"\n")]
            except FileNotFoundError:
                return self._settled(site, digest)
            envelope, standing = staged[0], staged[1] if len(staged) > 1 else None
            # What the offer decided is decided again: hours may have passed, and a site may have been revoked.
            statement = self._signed(site, envelope)
            known = self._answered(site, statement)
            if known is not None:
                return self._signed_for(site, known)
            plan = self._planned(site, statement, envelope, standing)
            yield from self._receive(part, statement, first)

            def recheck(receipt: Receipt) -> None:
                now = self._site(call)
                self._signed(now, envelope)  # by the key that is in force where it is logged: the site may have another
                self._planned(now, statement, envelope, standing)
                if self._acknowledged(statement):
                    self._require_once(receipt, plan)
                    return
                self._require_history(receipt, plan)
                if standing is not None:
                    self._require_size(now, receipt, standing, plan)

            return self._signed_for(site, self._ingest(part, statement, envelope, standing, plan, recheck))

    def _settled(self, site: RegisteredSite, digest: str) -> Acceptance:
        """The answer for bytes that are no longer staged, because another call has brought them to an end."""
        release = self._store.by_bundle(digest)
        if release is not None and release.site == site.site and not release.withdrawn:
            return self._signed_for(site, release.acceptance)
        for apart in self._store.quarantined(bundle_sha256=digest):
            if apart.site == site.site:
                raise apart.refusal
        raise StateRefusal("a bundle must be offered before it is sent", given="one that was not")

    def _receive(self, part: Path, statement: Statement, first: Chunk) -> Generator[None, Chunk | None, None]:
        """Write the chunks to `part`, from a place that it already reaches, until it is whole and flushed."""
        chunk: Chunk | None = first
        total, place = statement.bundle_bytes, first.offset
        have = _size(part)
        if place > have:
            raise IntegrityRefusal(
                "an upload must go on where the last one stopped", given="a gap", next_step="Offer the release again."
            )
        try:
            with part.open("r+b" if part.exists() else "x+b") as out:
                out.truncate(place)
                out.seek(place)
                while chunk is not None:
                    if chunk.bundle_sha256 != statement.bundle_sha256 or chunk.offset != place:
                        raise IntegrityRefusal("the chunks of an upload must follow each other", given="a gap")
                    if place + len(chunk.data) > total:
                        raise TooLarge("a bundle must have the size that was signed", given="more bytes")
                    reach("ingest.before_chunk")
                    _write(out, chunk.data)
                    reach("ingest.after_chunk")
                    place += len(chunk.data)
                    chunk = yield
                if place < total:
                    raise IntegrityRefusal("an upload must carry the whole bundle", given=f"{place} of {total} bytes")
                out.flush()
                reach("ingest.before_flush")
                os.fsync(out.fileno())
                out.seek(0)
                digest = hashlib.file_digest(out, "sha256").hexdigest()
            reach("ingest.received")
        except TooLarge:
            part.unlink(missing_ok=True)
            raise
        except OSError as error:
            part.unlink(missing_ok=True)
            raise _no_room(error) from None
        if digest != statement.bundle_sha256:
            part.unlink(missing_ok=True)
            raise IntegrityRefusal("the bundle must be the one that was signed", given="other bytes")

    def _ingest(
        self,
        part: Path,
        statement: Statement,
        envelope: Envelope,
        standing: Envelope | None,
        plan: StudyPlan,
        recheck: Callable[[Receipt], None],
    ) -> Acceptance:
        """Open, check, move, flush, log, commit: in this order, so that no step shows what a later one might undo.

        Args:
            recheck: asks again within the commit: during an upload of an hour a site may have been revoked, its plan
                replaced, its standing approval ended, its budget spent by another release.
        """
        try:
            receipt = self._checked(part, statement, plan)
        except (NetworkRefusal, StateRefusal, StorageRefusal):  # of this coordinator, not of what was read
            raise
        except Refusal as refusal:
            self._set_apart(part, statement, envelope, refusal)
            raise
        path = self._bundles / f"{statement.bundle_sha256}.zip"
        try:
            reach("ingest.before_move")
            os.replace(part, path)
            reach("ingest.after_move")
            _flush_folder(self._bundles)
            _flush_folder(self._staging)
            reach("ingest.before_commit")
            acceptance = self._store.accept_release(
                statement=statement,
                envelope=envelope,
                receipt=receipt,
                today=self._today(),
                standing=standing,
                recheck=lambda: recheck(receipt),
                sign=self._watch.signer(self._today()),
            )
            reach("ingest.after_commit")
        except (Refusal, OSError) as error:
            # Whether the commit took place is for the database to say; a bundle that it names is never touched.
            if path.exists() and self._store.by_bundle(statement.bundle_sha256) is None:
                os.replace(path, part)
            if isinstance(error, OSError):
                raise _no_room(error) from None
            raise
        part.with_suffix(".json").unlink(missing_ok=True)
        reach("ingest.done")
        return acceptance

    def _checked(self, part: Path, statement: Statement, plan: StudyPlan) -> Receipt:
        """The receipt of a bundle whose content is what its statement and plan say. Raises: the refusal of it."""
        try:
            receipt = self._opened(part, statement, plan)
            require_stated(receipt, statement)
            if self._acknowledged(statement):
                self._require_once(receipt, plan)
            else:
                self._require_history(receipt, plan)
                self._require_trained(receipt, plan)
            return receipt
        except (Refusal, MemoryError, OSError):
            raise
        except Exception as error:
            # Content that breaks a reader in a way we did not foresee is content, not a fault of ours to repeat.
            what = str(error) if isinstance(error, Failed) else type(error).__name__
            _log.error("unexpected %s in a bundle", what)
            raise SchemaRefusal("a bundle's content must be readable", given="another form") from None

    def _opened(self, part: Path, statement: Statement, plan: StudyPlan) -> Receipt:
        """Open a bundle in a worker: with the usual room, and once more with little where that was not the end of it.

        Raises: the refusal of its content, TooLarge (more memory or time than any honest one takes); NetworkRefusal
        (the worker was ended from outside: the site sends again), StorageRefusal.
        """
        marker = part.with_suffix(".opened")  # a byte for each time that it was begun and not ended
        times = _size(marker)
        if times >= OPENINGS:
            raise TooLarge("a bundle must be opened to the end", given=f"{times} times that it was not")
        usual = self._opening.limits
        room = min(usual.memory, LITTLE + LITTLE_FACTOR * _size(part)) if times else usual.memory
        given = {
            "path": str(part),
            "cap": min(TABLE_FACTOR * self._max_bundle, room),
            "plan": canonical_json(plan.to_canonical()).decode(),
            "statement": statement.to_bytes().decode(),
        }

        def begun() -> None:
            with marker.open("ab") as out:
                out.write(b".")
                out.flush()
                os.fsync(out.fileno())
            _flush_folder(self._staging)
            reach("ingest.opening")

        try:
            reply = self._opening.run(
                CHECK,
                given,
                owner=statement.site,
                patience=QUEUE,
                begun=begun,
                limits=replace(usual, memory=room),
            )
        except Ended as ended:
            if not ended.limit and times + 1 < OPENINGS:
                raise NetworkRefusal(
                    "a bundle must be opened to the end", given="a process that was ended", next_step="Send it again."
                ) from None
            raise TooLarge(
                f"a bundle must be read within {room >> 20} MB of memory and {usual.cpu} s of computing", given="more"
            ) from None
        except Busy:
            raise NetworkRefusal("the coordinator must have a free place for a bundle", given="none") from None
        except (OSError, StorageRefusal) as error:
            marker.unlink(missing_ok=True)
            raise _no_room(error) if isinstance(error, OSError) else error from None
        marker.unlink(missing_ok=True)
        return Receipt.from_bytes(reply["receipt"].encode())

    def _require_trained(self, receipt: Receipt, plan: StudyPlan) -> None:
        """Hold what a receipt says of the training of its flow against that training. Raises: ReceiptRefusal.

        A flow that was not trained here has nothing to be held against. A site whose ledger began anew may have
        forgotten what it was charged for; its charge is counted there as a lost one.
        """
        flow = self._boxes.flow(plan.flow) if plan.flow else None
        if flow is None:
            return
        said = receipt.trained
        if not said:
            *_, begun_anew = self._store.witnessed(receipt.site)
            if flow.sites.get(receipt.site, {}).get("answered") and not begun_anew:
                raise ReceiptRefusal(
                    "a receipt of a site that trained the plan's flow must name its charge for that", given="none"
                )
            return
        for name in ("plan_hash", "rounds", "delta", "epsilon"):
            stated, true = said[name], getattr(flow, name)
            same = math.isclose(stated, true, rel_tol=1e-9) if isinstance(true, float) else stated == true
            if not same:
                raise ReceiptRefusal(f"a receipt's {name} of the training must be the training's", given="another")

    def _require_once(self, receipt: Receipt, plan: StudyPlan) -> None:
        """Hold a release that was acknowledged before a restore against what its site has delivered since, if it has.

        It was held against all others then, but not against these. The cap is the widest that any version gave: an
        honest ledger was within the one of its day. Raises: as `_require_history`.
        """
        if self._watch.went_on(receipt.site, receipt.study):
            versions = [stored.plan for stored in self._store.plans() if stored.plan.study == receipt.study]
            self._require_history(receipt, plan, cap=max(one.budget.epsilon for one in versions))

    def _require_history(self, receipt: Receipt, plan: StudyPlan, *, cap: float | None = None) -> None:
        """Hold a release against those that arrived here before. Raises: BudgetRefusal, ReceiptRefusal.

        Args:
            cap: ε; the plan's where none is given.

        Their total is a lower bound of what the site has charged (`least_total`): what it never sent is not known here.
        """
        from coordinator.answers.spending import least_total
        from shared.privacy import accountant as privacy
        from shared.releases.receipt import given, planned_event

        earlier = self._store.charged(receipt.study, receipt.site)
        earlier.pop(receipt.release_id, None)
        # Each version is looked up once, however many releases were drawn under it.
        numbers = {version for version, _ in earlier.values()}
        versions = {version: self._store.plan(receipt.study, version).plan for version in numbers}
        # Of what was set apart nobody here read the receipt: it may have been drawn through an earlier release's flow.
        charges = [
            (plan, privacy.from_canonical(receipt.event)),
            *(
                (
                    before,
                    privacy.from_canonical(release.receipt.event) if release else planned_event(before, reused=True),
                )
                for before, release in ((versions[version], release) for version, release in earlier.values())
            ),
        ]
        self._require_training_charged(receipt, plan, [release for _, release in earlier.values() if release])
        least, cap = least_total(charges, plan.budget.delta), plan.budget.epsilon if cap is None else cap
        if least > cap * (1 + 1e-9):
            condition = all_given((least, given(charged)) for charged, event in charges if privacy.guaranteed(event))
            raise BudgetRefusal(
                f"all that a site delivered must be within the plan's cap of ε = {shown_epsilon(cap)}",
                given=f"{shown_price(least, condition)} for {len(charges)} releases",
                next_step="The site's ledger may be an old copy: site-agent ledger recover.",
            )
        if len(receipt.previous) != 64 or set(receipt.previous) - set("0123456789abcdef"):
            raise ReceiptRefusal("a receipt's previous must be a SHA-256", given="another form")
        # Receipts of one ledger form a chain. Links that were never sent are missing here; a fork is not explained by
        # that, but by a ledger that the study lead has let begin anew since.
        forks = [
            release
            for _, release in earlier.values()
            if release is not None
            and release.receipt.previous == receipt.previous
            and release.log_index > self._store.began_anew(receipt.site)
        ]
        if forks:
            raise ReceiptRefusal(
                "a receipt must follow the site's last one",
                given="one that another release of the site follows already",
                next_step="The site's ledger may be an old copy: site-agent ledger recover.",
            )

    def _require_training_charged(self, receipt: Receipt, plan: StudyPlan, earlier: Sequence[AcceptedRelease]) -> None:
        """Hold a release that was charged without a training against the one that fitted its flow.

        Raises: StateRefusal (that release has not arrived here: nothing is wrong with these bytes), ReceiptRefusal.
        """
        training = charged_training(plan)
        if training is None or training in receipt.event.get("events", ()):
            return
        fitted = [release.receipt for release in earlier if release.release_id == receipt.flow_of]
        if not fitted:
            raise StateRefusal(
                "the release that was charged for the training of this one's flow must arrive before it",
                given="one that has not",
                next_step="Ask the site to deliver that release first.",
            )
        if not any(training in found.event.get("events", ()) for found in fitted):
            raise ReceiptRefusal(
                "a release that is not charged for the training of its flow must name the release that was",
                given="one that was not charged for this training",
            )

    def _set_apart(self, part: Path, statement: Statement, envelope: Envelope, refusal: Refusal) -> None:
        with suppress(RateRefusal):
            self._refused.take(statement.site)
        reach("ingest.before_quarantine")
        os.replace(part, self._quarantine / f"{statement.bundle_sha256}.zip")
        reach("ingest.quarantine_moved")
        _flush_folder(self._quarantine)
        self._store.quarantine(statement=statement, envelope=envelope, refusal=refusal, today=self._today())
        reach("ingest.quarantine_committed")
        part.with_suffix(".json").unlink(missing_ok=True)
        part.with_suffix(".opened").unlink(missing_ok=True)
        reach("ingest.quarantined")
        expire_refused(self._home, self._store, self._quotas)

    # -- staging ------------------------------------------------------------------------------------------------
    def _part(self, site: RegisteredSite, digest: str) -> Path:
        # The site's name is part of the file's: no site can touch what another one has staged.
        return self._staging / f"{site.site}.{digest}.part"

    def _turn(self, part: Path) -> _UploadLock:
        with self._locks_guard:
            return self._locks.setdefault(part.name, _UploadLock())

    def recover(self) -> int:
        """Bring the folders in line with the database after a crash; how many bundles went back to staging.

        A bundle that no transaction names was never acknowledged: it goes back to staging when its offer is there,
        else it is deleted. What is staged for a release that is settled is deleted.
        """
        withdrawn = {stone.bundle_sha256 for stone in self._store.withdrawals(distrusted=False)}
        for folder in (self._bundles, self._quarantine):
            for digest in sorted(withdrawn & {path.stem for path in folder.glob("*.zip")}):
                self._delete(digest)
        offers = {path.stem.split(".", 1)[1]: path for path in self._staging.glob("*.*.json")}
        moved = 0
        for folder in (self._bundles, self._quarantine):
            for path in folder.glob("*.zip"):
                if self._is_settled(path.stem):
                    continue
                reach("ingest.before_recovery")
                if path.stem in offers:
                    os.replace(path, offers[path.stem].with_suffix(".part"))
                    moved += 1
                else:
                    path.unlink()
                reach("ingest.recovered")
        for digest, path in offers.items():
            if self._is_settled(digest):
                path.with_suffix(".part").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        for path in self._staging.glob("*.opened"):
            if self._is_settled(path.stem.split(".", 1)[1]):
                path.unlink(missing_ok=True)
        for path in self._staging.glob("*.json.part"):  # a half-written offer
            path.unlink(missing_ok=True)
        return moved

    def _is_settled(self, digest: str) -> bool:
        return self._store.by_bundle(digest) is not None or bool(self._store.quarantined(bundle_sha256=digest))


class _UploadLock:
    """A lock that nobody waits for in a thread: a stalled upload holds up the next one of its bytes, and no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RetryLater(
                NetworkRefusal("one upload of a bundle must end before the next", given="one that has not")
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _envelope(data: bytes) -> Envelope:
    """An envelope in its one form: base64 has several spellings of the same signature, and one is enough."""
    envelope = Envelope.from_bytes(data)
    if envelope.to_bytes() != data:
        raise SchemaRefusal("an envelope must be in canonical form", given="another form")
    return envelope


def _not_standing(limit: str) -> ApprovalRefusal:
    return ApprovalRefusal(
        "a standing approval must be good for the release",
        given=f"one that is not: {limit}",
        next_step="A person approves it at the site: site-agent approve.",
    )


def _write(out: BinaryIO, data: bytes) -> None:
    out.write(data)


def _no_room(error: OSError) -> StorageRefusal:
    return StorageRefusal(
        "the coordinator must be able to keep the bundle",
        given=error.strerror or "an error",
        next_step="Ask the study lead; the release stays sealed and can be sent later.",
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _flush_folder(folder: Path) -> None:
    """Flush a folder, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class CoordinatorServer:
    """A coordinator that serves; the only one on its home folder.

    Args:
        home: the home folder, with an authority in it (`Authority.create`).
        listen: ``host:port`` to bind; port 0 takes a free one, see `port`.
        url: database, if not SQLite in the home folder.
        max_bundle: most bytes of one release.
        quotas: what one site and one token may leave here.
        workers: threads that answer.
        today: gives the UTC date.
        now: gives the time in UTC.
        analysts: ``host:port`` to bind for analysts; blank answers none. See `analysts_port`.
        analysis: settings of `coordinator.services.analysis.AnalysisService`.
        limits: settings of `shared.wire.transport.CallLimits`, of either port.
        apart: whether analysts are answered by a process of their own.
    Raises: StateRefusal (not set up), LockedRefusal (another one serves), NetworkRefusal (the port is taken).
    """

    def __init__(
        self,
        home: Path,
        listen: str,
        *,
        url: str = "",
        max_bundle: int = MAX_BUNDLE,
        quotas: Quotas | None = None,
        workers: int = 16,
        today: Callable[[], dt.date] = utc_today,
        now: Callable[[], dt.datetime] = utc_now,
        analysts: str = "",
        analysis: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        apart: bool = False,
    ) -> None:
        authority = Authority.load(home, now=now)
        self._lock = (home / "server.lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise LockedRefusal("one coordinator must serve a home folder", given="a second one") from None
        self.store = Store.open(home, url)
        self.service = CollectionService(
            home=home,
            store=self.store,
            authority=authority,
            max_bundle=max_bundle,
            quotas=quotas,
            today=today,
            now=now,
        )
        credentials = functools.partial(authority.server, self.service.may_issue)
        try:
            require_whole(self.store)
            require_home(self.store, home)
            self.service.start()
            self.service.recover()
            self._server = Server(
                service=SERVICE,
                methods=COLLECTION,
                handlers=self.service.handlers,
                listen=listen,
                credentials=credentials,
                workers=workers,
                admit=self.service.admit,
                limits=CallLimits(**(limits or {})),
            )
            self.port = self._server.port
            self._analysis: AnalystsServer | AnalystsProcess | None = None
            settings: dict[str, Any] = {
                "workers": workers,
                "analysis": {**(analysis or {}), "quotas": asdict(quotas or Quotas())},
                "limits": dict(limits or {}),
            }
            try:
                if analysts and apart:
                    self._analysis = AnalystsProcess(home, analysts, url=url, **settings)
                elif analysts:
                    self._analysis = analysts_server(
                        self.store, analysts, credentials=credentials, today=today, **settings
                    )
            except BaseException:
                self._server.stop(0)
                raise
        except BaseException:
            self.service.close()
            self.store.close()
            self._lock.close()
            raise
        self.analysts_port = self._analysis.port if self._analysis is not None else 0

    def stop(self, grace: float = 5.0) -> None:
        """Let running calls end within `grace` seconds, then close everything."""
        if self._analysis is not None:
            self._analysis.stop(grace)
        self._server.stop(grace)
        self.service.close()
        self.store.close()
        self._lock.close()

    def __enter__(self) -> CoordinatorServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(0.5)


def serve(home: Path, address: str, *, ready: Callable[[int], None] = lambda port: None, **settings: Any) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        home: the coordinator's home folder.
        address: ``host:port`` to bind.
        ready: called with the port when calls are answered.
        settings: as of `CoordinatorServer`.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # A connection takes three descriptors: the usual soft limit of 1,024 is for programs that call select.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS:
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    stopping = {signal.SIGTERM, signal.SIGINT}
    # Read from a pipe that the signal writes to. A handler alone is not enough: when it is noted just before the main
    # thread goes to sleep on a lock, it runs only at the next signal, and the server would not end.
    wake, wake_up = os.pipe()
    os.set_blocking(wake_up, False)
    earlier = {number: signal.signal(number, lambda *_: None) for number in stopping}
    before = signal.set_wakeup_fd(wake_up)
    try:
        coordinator = CoordinatorServer(home, address, apart=True, **settings)
        try:
            ready(coordinator.port)
            while os.read(wake, 1)[0] not in stopping:
                pass
        finally:
            coordinator.stop()
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(wake_up)
