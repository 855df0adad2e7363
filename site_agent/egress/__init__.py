"""The one door. Nothing else in the site's program opens a connection.

What passes here: a request to join, the question for a plan, the head of the ledger, a release that an approver has
signed over its exact bytes, the answer to one round of a training that an approved plan asks for, and looks at the
coordinator's log with what it has acknowledged and lost. The site dials
out, to one address, over mutual TLS with a pinned authority; one without a line keeps the same calls for a courier
(`courier`). Sending is safe to repeat: the door streams the sealed
file from disk, goes on from where the coordinator says it stopped, and never sends other bytes than those the envelope
names.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from shared.base.at_rest import pem_of
from shared.base.canonical import canonical_json
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import (
    ApprovalRefusal,
    AwaitsCourier,
    CertificateRefusal,
    IntegrityRefusal,
    NetworkRefusal,
    ParameterError,
    PausedRefusal,
    Refusal,
    StateRefusal,
    StorageRefusal,
    UnknownMethod,
)
from shared.plans.invitation import Invitation
from shared.wire.clocks import ClockOffset, ClockReading, utc_now
from shared.wire.message_limits import CHUNK_BYTES
from shared.wire.messages import COLLECTION, SERVICE
from shared.wire.rounds import Answered, RoundOrder, open_answer
from shared.wire.signed_messages import (
    ENROLMENT_TYPE,
    WITHDRAWAL_TYPE,
    AnchorHead,
    EnrolmentRequest,
    Reply,
    Withdrawal,
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
    Holding,
    Holdings,
    LimitsRequest,
    LoggedEntry,
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
from shared.wire.transport import Client, Credentials
from shared.wire.tree_heads import CheckedView
from site_agent.egress.courier import Courier
from site_agent.egress.pieces import FilePieces, file_pieces
from site_agent.egress.replies import AcknowledgedReplies
from site_agent.egress.sending import RetryPolicy, SendingRules, require_named

__all__ = ["AcknowledgedReplies", "Egress", "RetryPolicy", "SendingRules", "new_tls_identity"]

# Slowest link for which one upload call is given time: 64 kB/s, and never more than the server allows.
SLOWEST = 64_000
LONGEST = 3600.0
T = TypeVar("T")
_log = logging.getLogger("tributary.egress")


def new_tls_identity(site: str) -> tuple[str, str]:
    """A new TLS key and the request for its certificate: (key_pem, csr_pem). The key never leaves the site."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return pem_of(key).decode(), csr.public_bytes(serialization.Encoding.PEM).decode()


class Egress:
    """A site's connection to its coordinator.

    Args:
        address: ``host:port`` of the coordinator.
        server_name: name in the server's certificate.
        credentials: the pinned authority, and this site's certificate with its key (or an invitation's bootstrap
            certificate, which may only `enrol`).
        retries: how long an answer is waited for, and how often a call is made.
        rules: what is asked before anything is sent.
        witness: checks and keeps what the coordinator acknowledges; without one its word is taken.
        courier: carries the calls of a site that has no line; nothing is dialled then, and each is made once.
        first: signed changes of this site's keys that the coordinator may not know: shown before anything else is
            asked, because what else is signed here is signed by those keys.
    Raises: CertificateRefusal, when the certificate is expired.
    """

    def __init__(
        self,
        *,
        address: str,
        server_name: str,
        credentials: Credentials,
        retries: RetryPolicy | None = None,
        rules: SendingRules | None = None,
        witness: AcknowledgedReplies | None = None,
        first: Sequence[Envelope] = (),
        courier: Courier | None = None,
    ) -> None:
        self._first = tuple(first)
        self._retries, self._rules = retries or RetryPolicy(), rules or SendingRules()
        self._witness = witness
        self._watched: bool | None = None  # whether the coordinator shows its log; not known before the first look
        if courier is not None:
            self._retries = replace(self._retries, attempts=1)
        self._client: Client | Courier = courier or Client(
            address=address, server_name=server_name, credentials=credentials, service=SERVICE, methods=COLLECTION
        )

    @classmethod
    def from_invitation(
        cls, invitation: Invitation, *, witness: AcknowledgedReplies | None = None, courier: Courier | None = None
    ) -> Egress:
        """The connection that may ask to join, and nothing else."""
        shown = Credentials(
            ca_pem=invitation.ca_pem, cert_pem=invitation.bootstrap_cert_pem, key_pem=invitation.bootstrap_key_pem
        )
        address, name = invitation.address, invitation.server_name
        return cls(address=address, server_name=name, credentials=shown, witness=witness, courier=courier)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Egress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enrol(
        self, *, token: str, site: str, csr_pem: str, signer: SigningKey, approvers: Mapping[str, PublicKey]
    ) -> Enrolment:
        """Ask to join, or what became of it; asking again with the same things is safe.

        Args:
            token: the invitation's.
            site: this site's id.
            csr_pem: certificate request from `new_tls_identity`.
            signer: the release key. It signs the request, so that the fingerprint which steward and lead compare
                vouches for everything in it.
            approvers: public keys by name.
        """
        request = EnrolmentRequest(site=site, csr_pem=csr_pem, release_key=signer.public, approvers=approvers)
        envelope = Envelope.sign(ENROLMENT_TYPE, canonical_json(request.to_canonical()), [signer])
        return self._ask("Enrol", EnrolRequest(token=token, envelope=envelope.to_bytes()))

    def fetch_plan(self, study: str) -> Envelope:
        """The newest signed plan of `study`; open it with `shared.plans.plan.open_plan` and the pinned leads."""
        return Envelope.from_bytes(self._ask("FetchPlan", StudyRequest(study=study)).envelope)

    def anchor(self, envelope: Envelope) -> AnchorReceipt:
        """Have the signed head of the ledger witnessed.

        Raises: LedgerRefusal (it did not grow from the last one); IntegrityRefusal (what was acknowledged is another
            head, as an older one would be: the draw that follows would then have no witness).
        """
        receipt: AnchorReceipt = self._retried(
            lambda: self._ask("Anchor", SignedDocument(envelope=envelope.to_bytes()))
        )
        self._witnessed(receipt)
        shown = AnchorHead.from_bytes(envelope.payload)
        if (receipt.seq, receipt.head) != (shown.seq, shown.head):
            raise IntegrityRefusal(
                "the coordinator must acknowledge the very head that it was shown",
                given=f"entry {receipt.seq} for {shown.seq}",
                next_step="Nothing is drawn or sent. Call the study lead; acknowledged.jsonl holds the answer.",
            )
        return receipt

    def status(self, study: str) -> tuple[Holding, ...]:
        """The coordinator's holdings of this site in `study`."""
        return tuple(self.holdings(study).holdings)

    def witnessed(self, study: str) -> AnchorReceipt | None:
        """The last head of this site's ledger that the coordinator has witnessed; asked as a member of `study`."""
        return self.held(study).anchored

    def held(self, study: str) -> Holdings:
        """All that the coordinator says of this site in `study`, asked for again where the connection is lost."""
        answer: Holdings = self._retried(lambda: self.holdings(study))
        return answer

    def holdings(self, study: str) -> Holdings:
        """All that the coordinator says of this site in `study`, with the site's own signed documents as proof."""
        answer: Holdings = self._ask("Status", StudyRequest(study=study))
        return answer

    def limits(self) -> CoordinatorLimits:
        """The largest release that the coordinator takes. Raises: UnknownMethod (an earlier version, a courier)."""
        return self._ask("Limits", LimitsRequest())

    def clock(self, site: str, key: SigningKey, now: Callable[[], dt.datetime] = utc_now) -> ClockOffset:
        """Offset of this machine's clock from the coordinator's signed reading; the call sends this machine's time.

        Args:
            key: this site's release key.
        Raises: StateRefusal (no coordinator's key is pinned), SignatureRefusal, NetworkRefusal.
        """
        if self._witness is None:
            raise StateRefusal("a clock must be compared under the coordinator's pinned key", given="no pinned key")
        asked = now()
        question = ClockReading.question(site, asked)
        reply: SignedDocument = self._ask("Clock", SignedDocument(envelope=question.signed(key).to_bytes()))
        answered = now()
        reading = self._witness.reading(Envelope.from_bytes(reply.envelope), question)
        return ClockOffset.between(asked, reading.when, answered)

    def membership(self, statements: Sequence[Envelope] = ()) -> MembershipReply:
        """Show what this site has signed of its keys and approvers; what the leads have signed of the site.

        Nothing of the answer is believed here: each statement is for the caller to verify. Safe to repeat.
        Raises: the coordinator's refusal; UnknownMethod (an earlier version); NetworkRefusal.
        """
        given = MembershipRequest(statements=tuple(one.to_bytes() for one in statements))
        reply: MembershipReply = self._retried(lambda: self._ask("Membership", given))
        return reply

    def withdraw(self, envelope: Envelope) -> Withdrawn:
        """Take a delivered release back; safe to repeat.

        Args:
            envelope: a `shared.wire.signed_messages.Withdrawal`, signed by the agent and an approver.
        Raises: ApprovalRefusal (one signature), the coordinator's refusal, or NetworkRefusal.
        """
        if envelope.payload_type != WITHDRAWAL_TYPE:
            raise ParameterError("the envelope must be over a withdrawal", given="another type")
        withdrawal = Withdrawal.from_bytes(envelope.payload)
        if len({signature.key_id for signature in envelope.signatures}) < 2:
            raise ApprovalRefusal("a withdrawal must be signed by the agent and an approver", given="one signature")
        document = SignedDocument(envelope=envelope.to_bytes())
        done: Withdrawn = self._retried(lambda: self._ask("Withdraw", document))
        for name in ("study", "wave", "site", "release_id", "bundle_sha256"):
            if getattr(done, name) != getattr(withdrawal, name):
                raise IntegrityRefusal(f"the answer must name this release's {name}", given="another")
        _log.info("withdrew release %s digest %s", withdrawal.release_id, withdrawal.bundle_sha256[:12])
        return self._witnessed(done)

    def renew(self, envelope: Envelope) -> str:
        """This site's next certificate (PEM), for a `shared.wire.certificates.RenewalRequest`; safe to repeat.

        Raises: the coordinator's refusal, NetworkRefusal.
        """
        answer: Renewed = self._retried(lambda: self._ask("Renew", SignedDocument(envelope=envelope.to_bytes())))
        return answer.certificate_pem

    def authorities(self) -> tuple[bytes, ...]:
        """Every change of the coordinator's authority, as signed; to be held against the pinned one."""
        answer: Authorities = self._retried(lambda: self._ask("Authorities", AuthoritiesRequest()))
        return answer.statements

    def revoke_standing(self, envelope: Envelope) -> None:
        """Tell the coordinator that a standing approval is over; safe to repeat.

        Args:
            envelope: a `shared.plans.standing.Revocation`, signed by the approver it names.
        Raises: the coordinator's refusal, IntegrityRefusal (it names another), or NetworkRefusal.
        """
        from shared.plans.standing import Revocation

        said = Revocation.from_bytes(envelope.payload)
        document = SignedDocument(envelope=envelope.to_bytes())
        done: Revoked = self._ask("RevokeStanding", document)  # once: the next round tells what this one could not
        if done.standing != said.standing:
            raise IntegrityRefusal("the answer must name this standing approval", given="another")
        _log.info("revoked standing approval %s", said.standing[:12])

    def next_round(self, study: str, flow: str = "") -> tuple[RoundOrder, bytes] | None:
        """The current round's order to this site, verified, with its content; None where there is none.

        Args:
            flow: SHA-256 of a finished flow; then that one, whatever else is asked now.
        Raises: SignatureRefusal, IntegrityRefusal, SchemaRefusal, TooLarge; StateRefusal, where no coordinator's key
        is pinned; NetworkRefusal.
        """
        reply: RoundReply = self._ask("NextRound", RoundRequest(study=study, flow=flow))
        if not reply.envelope:
            return None
        found = self.round_order(reply)
        if found[0].study != study:
            raise IntegrityRefusal("a round must be of the study that was asked about", given="another")
        return found

    def round_order(self, reply: RoundReply) -> tuple[RoundOrder, bytes]:
        """A question of a training, by whatever way it came, if the pinned coordinator signed it.

        Raises: SignatureRefusal, IntegrityRefusal, SchemaRefusal, TooLarge, StateRefusal.
        """
        if self._witness is None:
            raise StateRefusal(
                "a training must come from the coordinator whose key is pinned",
                given="no pinned key",
                next_step="Ask the study lead for a new invitation, and join again.",
            )
        return self._witness.opened(reply), reply.content

    def answer_round(self, answer: Envelope, content: bytes, key: PublicKey) -> RoundReceipt:
        """Send the answer to one round; safe to repeat, and never with other bytes than those that were signed.

        Args:
            answer: a `shared.wire.rounds.Answered`, signed by the release key.
            key: that key.
        Raises: PausedRefusal; what `allowed` raises; the coordinator's refusal; NetworkRefusal.
        """
        said, given = self.leaving(answer, content, key)

        def deliver() -> RoundReceipt:
            self._require_running(0, len(content))
            reach("federate.before_send")
            receipt: RoundReceipt = self._ask("UploadRound", given)
            reach("federate.after_send")
            return receipt

        receipt = self._retried(deliver)
        if (receipt.study, receipt.round, receipt.answer) != (said.study, said.round, answer.digest):
            raise IntegrityRefusal("the receipt must be of this answer", given="of another")
        _log.info("answered round %d of %s digest %s", said.round, said.study, said.content_sha256[:12])
        return receipt

    def leaving(self, answer: Envelope, content: bytes, key: PublicKey) -> tuple[Answered, RoundAnswer]:
        """An answer as it may leave, by this door or by another carrier: signed, and named by the ledger.

        Raises: PausedRefusal, SignatureRefusal, IntegrityRefusal (also while the log has an unexplained fork).
        """
        self._require_one_history()
        data = answer.to_bytes()
        said = open_answer(data, content, key)
        sealed = self._rules.sealed
        if content and sealed is not None and sealed(said.plan_hash, said.round) != said.content_sha256:
            raise IntegrityRefusal(
                "what leaves in a round must be the answer that the ledger names",
                given="other bytes",
                next_step="Nothing was sent. Call the study lead.",
            )
        self._require_running(0, len(content))
        return said, RoundAnswer(envelope=data, content=content)

    def _witnessed(self, reply: Reply) -> Reply:
        if self._witness is None:
            return reply

        def grew(old: int, new: int) -> Sequence[bytes]:
            try:
                answer: Growth = self._retried(lambda: self._ask("Growth", GrowthRequest(old_size=old, size=new)))
            except ParameterError:  # it says that its log is shorter than it has signed: no proof
                return ()
            return answer.proof

        return self._witness.keep(reply, grew, self._look)

    def watch(self) -> CheckedView | None:
        """The log as it is now, checked against all that this site has seen of it.

        None where no key is pinned, or the coordinator is of a version that shows no signed head.
        Raises: SignatureRefusal, IntegrityRefusal (another history), NetworkRefusal.
        """
        return None if self._witness is None else self._witness.watch(self._look)

    def logged(self, entries: Sequence[int]) -> tuple[CheckedView, tuple[LoggedEntry, ...]] | None:
        """Entries of this site in the log, with a look whose head they are proven against; None as of `watch`."""
        if self._witness is None or self._watched is False:
            return None
        view: LogView = self._ask("Watch", WatchRequest(entries=tuple(entries)))
        if not view.head:
            return None
        return self._witness.checked(view), view.entries

    def one_log_with(self, head: bytes) -> int:
        """Hold a signed head that somebody else was shown against the log as this site sees it; how long that was.

        Raises: SignatureRefusal (not the pinned coordinator's), IntegrityRefusal (another history), NetworkRefusal.
        """
        if self._witness is None:
            raise StateRefusal("the coordinator's key must be pinned to check a head", given="no pinned key")
        return self._witness.one_log_with(head, self._look)

    def report_gap(self, study: str, lacking: Sequence[Acceptance]) -> int:
        """Tell the coordinator which releases it has acknowledged and does not name; how many it lacks still.

        Raises: the coordinator's refusal, NetworkRefusal.
        """
        noted: GapNoted = self._ask("ReportGap", GapReport(study=study, lacking=tuple(lacking)))
        return noted.lacking

    def _look(self, sizes: Sequence[int]) -> LogView | None:
        """A look at the log with a proof from each size; None of a coordinator that does not know the method."""
        if self._watched is False:
            return None
        try:
            view: LogView = self._retried(lambda: self._ask("Watch", WatchRequest(sizes=tuple(sizes))))
        except UnknownMethod:
            self._watched = False
            return None
        self._watched = True
        return view

    def send(
        self,
        envelope: Envelope,
        bundle: Path,
        progress: Callable[[int, int], None] | None = None,
        *,
        standing: Envelope | None = None,
    ) -> Acceptance:
        """Deliver an approved release; returns when the coordinator has it on disk for good.

        Args:
            envelope: the statement over the bundle, signed by the agent and its approvers.
            bundle: the sealed file.
            progress: called with (bytes sent, bytes in all).
            standing: a standing approval that stands in for one approver's signature.
        Raises: ApprovalRefusal (no approver's signature), IntegrityRefusal (the file is not the one that was
            signed; the log has an unexplained fork), PausedRefusal (what was sent stays where it is; the next call
            goes on from there), the coordinator's refusal, or NetworkRefusal when it could not be reached.
        """
        from shared.releases.statement import STATEMENT_TYPE, Statement

        if envelope.payload_type != STATEMENT_TYPE:
            raise ParameterError("the envelope must be over a release statement", given="another type")
        statement = Statement.from_bytes(envelope.payload)
        if len({signature.key_id for signature in envelope.signatures}) < 2 and standing is None:
            raise ApprovalRefusal(
                "a release must be signed by the agent and an approver",
                given="one signature",
                next_step="Approve it.",
            )
        self._require_one_history()
        pieces = file_pieces(bundle)
        digest, total = pieces.digest, pieces.total
        if (digest, total) != (statement.bundle_sha256, statement.bundle_bytes):
            raise IntegrityRefusal(
                "the sealed bundle must be the one that was approved",
                given="other bytes",
                next_step="Restore the sealed folder; it is never made again.",
            )
        report = progress or (lambda sent, whole: None)
        acceptance: Acceptance = self._retried(lambda: self._deliver(envelope, standing, bundle, pieces, report))
        self._witnessed(require_named(acceptance, envelope))
        report(total, total)
        _log.info("delivered release %s digest %s", statement.release_id, digest[:12])
        return acceptance

    def acceptance(self, envelope: Envelope) -> Acceptance:
        """The acknowledgement of a release that the coordinator has, asked for by its statement; none of it is sent.

        Raises: StateRefusal (it has none); the coordinator's refusal; NetworkRefusal (of a courier, until it is back).
        """
        offer = OfferRequest(envelope=envelope.to_bytes())
        offered: Offered = self._retried(lambda: self._ask("Offer", offer))
        if offered.acceptance is None and isinstance(self._client, Courier):
            self._client.ask_acknowledgement(offer)
        if offered.acceptance is None:
            raise StateRefusal("the coordinator must acknowledge a release that it has", given="no acknowledgement")
        return self._witnessed(require_named(offered.acceptance, envelope))

    def _deliver(
        self,
        envelope: Envelope,
        standing: Envelope | None,
        bundle: Path,
        pieces: FilePieces,
        progress: Callable[[int, int], None],
    ) -> Acceptance:
        """One attempt: offer, then send what is missing, each piece only if it is the one that was hashed."""
        digest, total = pieces.digest, pieces.total
        changed: list[int] = []
        self._require_running(0, total)
        reach("egress.before_offer")
        beside = None if standing is None else standing.to_bytes()
        offered: Offered = self._ask("Offer", OfferRequest(envelope=envelope.to_bytes(), standing=beside))
        reach("egress.after_offer")
        if offered.acceptance is not None:
            return offered.acceptance
        if offered.offset > total:
            raise IntegrityRefusal("the coordinator must not hold more than was sent", given="a longer file")
        progress(offered.offset, total)

        def chunks() -> Iterator[Chunk]:
            # A whole file on the other side still needs one chunk, to say which bundle it is about. From the start of
            # a piece: what is sent twice is at most one of them.
            place = min(offered.offset, total - 1) // CHUNK_BYTES * CHUNK_BYTES
            with bundle.open("rb") as file:
                file.seek(place)
                while data := file.read(CHUNK_BYTES):
                    if pieces.digests[place // CHUNK_BYTES : place // CHUNK_BYTES + 1] != [sha256(data).digest()]:
                        changed.append(place)
                        return
                    self._require_running(place, total)
                    yield Chunk(bundle_sha256=digest, offset=place, data=data)
                    reach("egress.chunk")
                    place += len(data)
                    progress(place, total)

        timeout = min(max(self._retries.timeout, (total - offered.offset) / SLOWEST), LONGEST)
        try:
            acceptance: Acceptance = self._client.call("Upload", chunks(), timeout=timeout)
        except Refusal:
            if changed:
                raise StorageRefusal(
                    "the sealed bundle must not change while it is sent",
                    given="other bytes than those that were approved; they were not sent",
                    next_step="Restore the sealed folder; it is never made again.",
                ) from None
            raise
        reach("egress.after_upload")
        return acceptance

    def _require_one_history(self) -> None:
        if self._witness is not None:
            self._witness.require_one_history()

    def _require_running(self, sent: int, total: int) -> None:
        if self._rules.paused():
            raise PausedRefusal(
                "this site must not be paused to send",
                given=f"a pause, with {sent:,} of {total:,} bytes sent",
                next_step="After site-agent resume --as NAME, approve it again: the same bytes are sent on from there.",
            )
        self._rules.allowed()

    def _ask(self, method: str, request: Any) -> Any:
        if self._first and method != "Membership":
            shown, self._first = self._first, ()
            with suppress(UnknownMethod, AwaitsCourier):  # a courier's file has it before what follows
                self._ask("Membership", MembershipRequest(statements=tuple(one.to_bytes() for one in shown)))
        try:
            return self._client.call(method, request, timeout=self._retries.timeout)
        except Refusal as refusal:
            _log.info("%s: %s", method, refusal.code)  # whoever asked is told by the refusal itself
            raise

    def _retried(self, work: Callable[[], T]) -> T:
        """Do `work` until it is done or refused for good; only a lost connection is tried often, with back-off."""
        wait = 0.2
        last: Refusal = StateRefusal("an attempt must be allowed", given=f"{self._retries.attempts}")
        for attempt in range(1, self._retries.attempts + 1):
            try:
                return work()
            except UnknownMethod:
                raise
            except NetworkRefusal as refusal:
                last = refusal
            except IntegrityRefusal as refusal:
                # The half that was there may have been damaged by a power cut; the coordinator has dropped it.
                if type(refusal) is not IntegrityRefusal or attempt > 1:
                    raise
                last = refusal
            except CertificateRefusal as refusal:
                # A server that is going down also closes connections before they are ready.
                if attempt > 2:
                    raise
                last = refusal
            if attempt < self._retries.attempts:
                self._retries.sleep(wait)
                wait = min(2 * wait, 10.0)
        raise last
