"""The sites' service: one method for each call that a site may make."""

from __future__ import annotations

import datetime as dt
import fcntl
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path

from coordinator.answers.reminders import remind_due
from coordinator.config import Quotas
from coordinator.services.analysts import Analysts
from coordinator.services.authority import Authority
from coordinator.services.clocks import SeenClocks
from coordinator.services.collect.ingest import MAX_BUNDLE, Ingest
from coordinator.services.collect.round_queue import RoundQueue
from coordinator.services.collect.staging import Staging, size_of
from coordinator.services.collect.statements import StatementRules, canonical_envelope
from coordinator.services.membership import Members
from coordinator.services.quotas import CallRate, delete_due, quota_uses
from coordinator.store.log_watch import LogWatch
from coordinator.store.site_certificates import SiteCertificates
from coordinator.store.store import RegisteredSite, Store
from shared.base.canonical import sha256_hex
from shared.base.failpoints import reach
from shared.base.keys import Envelope, write_private
from shared.errors import (
    ApprovalRefusal,
    IntegrityRefusal,
    Refusal,
    ReplayRefusal,
    RoleRefusal,
    StateRefusal,
    StorageRefusal,
    TooLarge,
)
from shared.plans.standing import open_revocation
from shared.releases.receipt import Receipt
from shared.wire.certificates import requested_key, require_issued_by
from shared.wire.clocks import open_reading, unverified_reading, utc_now
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
    CoordinatorLimits,
    Enrolment,
    EnrolRequest,
    GapNoted,
    GapReport,
    Growth,
    GrowthRequest,
    Holdings,
    LimitsRequest,
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
from shared.wire.transport import Call, Handler, Peer

__all__ = ["CollectionService", "utc_today"]

RENEWALS_A_DAY = 12
STATEMENT_CAP = 64 << 10
UNFINISHED_DAYS = 30
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
        quotas: quotas of one site.
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
        self._home = home
        self._boxes = RoundQueue(store)
        self._members = Members(store, authority.coordinator)
        self._watch = LogWatch(store, coordinator=authority.coordinator, key=authority.witness)
        self._staging = Staging(home, store, mine)
        self.recover = self._staging.recover
        self._rules = StatementRules(
            store, self._members, self._watch, coordinator=authority.coordinator, max_bundle=max_bundle, today=today
        )
        self._ingest = Ingest(
            store,
            self._staging,
            self._rules,
            self._watch,
            boxes=self._boxes,
            refused=self._refused,
            max_bundle=max_bundle,
            today=today,
        )
        self._seen: set[str] = set()  # certificates whose arrival is on disk

    def start(self) -> None:
        """Begin what the first delivery would have to wait for, and sign the log as it is."""
        with suppress(StorageRefusal):  # a full disk: the next acceptance signs a head
            self._members.note_replacements(self._authority.replaced)
            self._watch.publish(self._today())
        self._ingest.opening.start()

    def close(self) -> None:
        """End what was begun for deliveries."""
        self._ingest.opening.close()
        self._staging.close()

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
            "Limits": self.limits,
        }

    def admit(self, peer: Peer) -> None:
        """Refuse a certificate that is revoked or an invitation that has served, before anything else of a call.

        Raises: CertificateRefusal, TokenRefusal.
        """
        here = self._in_force()
        if peer.role == "site":
            if here.replaced:  # a connection from before a replacement goes on, and counts for nothing
                require_issued_by(peer.certificate_pem, [*here.before, here.ca_pem])
            self.certificates.require(peer, self._today())
        else:
            self._store.require_invited(peer.site)

    # -- joining ------------------------------------------------------------------------------------------------
    def enrol(self, call: Call, request: EnrolRequest) -> Enrolment:
        """Take a request to join, or say what became of it. Raises: RoleRefusal, TokenRefusal, SignatureRefusal, …"""
        if call.peer.role != "enrol":
            raise RoleRefusal("only an invitation's certificate may ask to join", given="a site's")
        self._calls.take(call.peer.site)
        envelope = canonical_envelope(request.envelope)
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
        site = self._in_force_now(call)
        self._tend()
        if call.peer.serial not in self._seen:
            with suppress(StorageRefusal):  # a full disk: the next call tells it again
                self.certificates.arrived(call.peer, self._today())
                self._store.arrived(call.peer.site, call.peer.serial)
                self._seen.add(call.peer.serial)
        return site

    def _in_force_now(self, call: Call) -> RegisteredSite:
        """The accepted site that calls, as it is now: nothing is written, so it may be asked for within a commit."""
        today, peer = self._today(), call.peer
        return self._store.read(
            lambda c: self._members.in_force(self._store.require_site(peer.site, peer.serial), today)
        )

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
        envelope = canonical_envelope(request.envelope)
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
        statements = map(canonical_envelope, request.statements)
        return self._members.exchange(site, statements, self._home, self._today())

    def limits(self, call: Call, request: LimitsRequest) -> CoordinatorLimits:
        """The largest release that is taken here, for a site to know before it charges one."""
        self._site(call)
        return self._ingest.limits

    def growth(self, call: Call, request: GrowthRequest) -> Growth:
        """Proof that the log only grew between two sizes that sites have seen. Raises: ParameterError."""
        self._site(call)
        return Growth(proof=self._store.prove_growth(request.old_size, request.size))

    def clock(self, call: Call, request: SignedDocument) -> SignedDocument:
        """Signed reading of this clock in reply to the site's own, which is stored. Raises: SignatureRefusal, ….

        A caller with an invitation's certificate is answered too; its key is not pinned yet, so its reading is not
        stored.
        """
        envelope = canonical_envelope(request.envelope)
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
        envelope = canonical_envelope(request.envelope)
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
            with suppress(StorageRefusal):  # a full disk: the next start says it
                self._members.note_replacements(found.replaced)
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
        self._rules.invited(site, request.study)
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
        self._rules.invited(site, request.study)
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
        envelope = canonical_envelope(request.envelope)
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
        part = self._staging.part_of(site, withdrawal.bundle_sha256)
        with self._staging.turn(part):  # no upload of the same bytes ends in between
            reach("withdraw.before_commit")
            stone = self._store.withdraw(withdrawal=withdrawal, envelope=envelope, today=self._today())
            reach("withdraw.after_commit")
            self._staging.delete(withdrawal.bundle_sha256)
            reach("withdraw.deleted")
        return self._signed_for(site, stone.withdrawn)

    def revoke_standing(self, call: Call, request: SignedDocument) -> Revoked:
        """End a standing approval for its site, by the word of any of its approvers; again changes nothing.

        Raises: SignatureRefusal, ReplayRefusal, TooLarge.
        """
        site = self._site(call)
        envelope = canonical_envelope(request.envelope)
        said = open_revocation(envelope, site.approvers)
        call.digest = said.standing
        if said.site != site.site:
            raise ReplayRefusal("a revocation must be of the calling site's standing approval", given="another site's")
        self._members.require_known(site, said.study)
        self._store.revoke_standing(site.site, said.standing, envelope, self._today())
        return Revoked(standing=said.standing)

    # -- offer --------------------------------------------------------------------------------------------------
    def offer(self, call: Call, request: OfferRequest) -> Offered:
        """Decide on a statement before its bundle is sent.

        Raises: SignatureRefusal, ApprovalRefusal, ReplayRefusal, PlanRefusal and its kinds, TooLarge, StorageRefusal;
        or the reason for which these bytes were quarantined before.
        """
        site = self._site(call)
        if max(len(request.envelope), len(request.standing or b"")) > STATEMENT_CAP:
            raise TooLarge(f"a signed statement must have at most {STATEMENT_CAP} bytes", given="more")
        envelope = canonical_envelope(request.envelope)
        statement = self._rules.signed(site, envelope)
        call.digest = statement.bundle_sha256

        def decided() -> Envelope | None:
            self._refused.require(site.site)
            standing = None if request.standing is None else canonical_envelope(request.standing)
            self._rules.planned(site, statement, envelope, standing)
            return standing

        known, standing = self._rules.answered_or(site, statement, decided)
        if known is not None:
            return Offered(acceptance=self._signed_for(site, known))
        part = self._staging.part_of(site, statement.bundle_sha256)
        with self._staging.turn(part):
            # Another delivery of the same bytes may have ended while this one was being checked.
            known, _ = self._rules.answered_or(site, statement, lambda: None)
            if known is not None:
                return Offered(acceptance=self._signed_for(site, known))
            reach("ingest.before_staging")
            self._staging.make_room(site, part, statement.bundle_bytes)
            lines = [one.to_bytes() for one in (envelope, standing) if one is not None]  # one line of JSON each
            write_private(part.with_suffix(".json"), b"\n".join(lines))
            reach("ingest.after_staging")
            return Offered(offset=min(size_of(part), statement.bundle_bytes))

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
            gone = self._staging.expire_refused(now)
            if gone:
                _log.info("%d refused bundles were deleted; their digests and reasons stay", gone)
            for path in self._staging.folder.iterdir():
                old = now - path.stat().st_mtime > 86_400 * UNFINISHED_DAYS
                if old and path.suffix in (".json", ".part", ".opened"):
                    path.unlink(missing_ok=True)
            analysts.prune(self._today())
            for study in delete_due(self._store, self._home, self._today()):
                _log.warning("the releases of %s were deleted: their retention is over", study)
        # Beside the calls: a mail server may be slow, and nobody waits for it.
        threading.Thread(target=self._remind, args=(self._today(),), daemon=True).start()
        for use in quota_uses(self._home, self._store, self._quotas, analysts.stored_bytes()):
            if use.near:
                _log.warning("near its quota: %s", use.words)

    def _remind(self, today: dt.date) -> None:
        try:
            with (self._home / "remind.lock").open("a") as among:  # two processes of one home remind once
                fcntl.flock(among, fcntl.LOCK_EX)
                remind_due(self._store, self._home, today)
        except Refusal as refusal:
            _log.warning("no reminder was sent: %s", refusal.code)

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
        part = self._staging.part_of(site, digest)
        with self._staging.turn(part):
            try:
                staged = [Envelope.from_bytes(line) for line in part.with_suffix(".json").read_bytes().split(b"\n")]
            except FileNotFoundError:
                return self._settled(site, digest)
            envelope, standing = staged[0], staged[1] if len(staged) > 1 else None
            # What the offer decided is decided again: hours may have passed, and a site may have been revoked.
            statement = self._rules.signed(site, envelope)
            known, plan = self._rules.answered_or(
                site, statement, lambda: self._rules.planned(site, statement, envelope, standing)
            )
            if known is not None:
                return self._signed_for(site, known)
            assert plan is not None
            yield from self._staging.receive(part, statement, first)

            def recheck(receipt: Receipt) -> None:
                now = self._in_force_now(call)
                # By the key that is in force where it is logged: the site may have another.
                self._rules.signed(now, envelope)
                self._rules.planned(now, statement, envelope, standing)
                if self._rules.acknowledged(statement):
                    self._ingest.require_once(receipt, plan)
                    return
                self._ingest.require_history(receipt, plan)
                if standing is not None:
                    self._rules.require_size(now, receipt, standing, plan)

            return self._signed_for(site, self._ingest.accept(part, statement, envelope, standing, plan, recheck))

    def _settled(self, site: RegisteredSite, digest: str) -> Acceptance:
        """The answer for bytes that are no longer staged, because another call has brought them to an end."""
        release = self._store.by_bundle(digest)
        if release is not None and release.site == site.site and not release.withdrawn:
            return self._signed_for(site, release.acceptance)
        for apart in self._store.quarantined(bundle_sha256=digest):
            if apart.site == site.site:
                raise apart.refusal
        raise StateRefusal("a bundle must be offered before it is sent", given="one that was not")
