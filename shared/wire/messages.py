"""Everything that crosses the wire: one frozen value per message, and the only place that turns it into bytes.

The protocol buffers in `shared/proto` are the form other languages see. Inside the program a message is one of the
dataclasses below, checked when it is made. The wire is closed: a field that this version does not know, an outcome
that is not set, a text that is not what it should be, is refused; nothing that arrives picks which code runs.
`COLLECTION` (sites) and `ANALYSIS` (analysts) list the methods, from which `shared.wire.transport` builds both ends.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from shared.base.canonical import canonical_json, closed, parse_json
from shared.base.chain import LINKS_CAP, extend_head
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import CATALOGUE, SchemaRefusal, SignatureRefusal, TooLarge
from shared.proto import analysis_pb2 as analysis
from shared.proto import collection_pb2 as pb

__all__ = [
    "ANALYSIS",
    "ANALYSIS_SERVICE",
    "ANCHOR_TYPE",
    "CHUNK_BYTES",
    "COLLECTION",
    "ENROLMENT_TYPE",
    "FORMULA_CAP",
    "LABELS",
    "REASONS",
    "ROUND_CAP",
    "SERVICE",
    "WITHDRAWAL_TYPE",
    "Acceptance",
    "AnchorHead",
    "AnchorReceipt",
    "Authorities",
    "AuthoritiesRequest",
    "Chunk",
    "DescribeRequest",
    "Document",
    "EnrolRequest",
    "Enrolment",
    "EnrolmentRequest",
    "EntriesRequest",
    "ExplainRequest",
    "GapNoted",
    "GapReport",
    "Growth",
    "GrowthRequest",
    "Holding",
    "Holdings",
    "LogRequest",
    "LogView",
    "LoggedEntry",
    "MembershipReply",
    "MembershipRequest",
    "Method",
    "OfferRequest",
    "Offered",
    "QueryRequest",
    "ReleasesRequest",
    "Reminder",
    "Renewed",
    "Reply",
    "Restoration",
    "Revoked",
    "RoundAnswer",
    "RoundReceipt",
    "RoundReply",
    "RoundRequest",
    "RowsChunk",
    "RowsRequest",
    "SignedDocument",
    "StudiesRequest",
    "StudyRequest",
    "WatchRequest",
    "Withdrawal",
    "Withdrawn",
    "countersigned",
    "decode",
    "encode",
    "require_countersigned",
]

SERVICE = "tributary.collection.v1.Collection"
ANALYSIS_SERVICE = "tributary.analysis.v1.Analysis"
ANCHOR_TYPE = "application/vnd.tributary.anchor+json"
ENROLMENT_TYPE = "application/vnd.tributary.enrolment+json"
WITHDRAWAL_TYPE = "application/vnd.tributary.withdrawal+json"
REASONS = ("consent", "error", "policy", "other")
LABELS = ("confirmatory", "exploratory")
CHUNK_BYTES = 256 << 10
# Longer than any question that the grammar takes; what is longer still is refused before it is read.
FORMULA_CAP = 4096
SIGNED_CAP = 4 << 20
# Most bytes of a flow's weights in one round: with its envelope it must fit into one message.
ROUND_CAP = 4 << 20
# Most releases of one site in one study that an answer may name: more would not fit a message, and nobody has them.
HOLDINGS_CAP = 2048
# Most signed statements of one chain, and of one call.
STATEMENTS_CAP = 1000
# Most parts of a proof: one per doubling of the log.
PROOF_CAP = 128
# Most sizes of the log that one look at it may ask about.
SIZES_CAP = 64
HEX = frozenset("0123456789abcdef")
_ROUND_ENVELOPE = 16 << 10


def _must(holds: bool, rule: str) -> None:
    if not holds:
        raise SchemaRefusal(rule)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and HEX.issuperset(text)


def _is_day(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_word(text: str) -> bool:
    return 0 < len(text) <= 64 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _is_proof(proof: tuple[bytes, ...]) -> bool:
    return len(proof) <= PROOF_CAP and all(len(part) == 32 for part in proof)


# -- what is said -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class EnrolRequest:
    """A site asks to join: the invitation's token, and its request signed by its release key."""

    token: str = field(repr=False)
    envelope: bytes

    def __post_init__(self) -> None:
        _must(0 < len(self.token) <= 256 and self.token.isascii(), "a token must be short text")
        _must(0 < len(self.envelope) <= SIGNED_CAP, "an enrolment must carry a signed request")


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """State of a site's request to join.

    Args:
        state: ``pending`` until the lead has compared fingerprints, then ``accepted`` or ``refused``.
        fingerprint: of the release key as the coordinator received it (pending).
        certificate_pem: the site's certificate (accepted).
        reason: why not (refused).
    """

    state: Literal["pending", "accepted", "refused"]
    fingerprint: str = ""
    certificate_pem: str = field(default="", repr=False)
    reason: str = ""

    def __post_init__(self) -> None:
        outcomes = {"pending": self.fingerprint, "accepted": self.certificate_pem, "refused": self.reason}
        _must(
            self.state in outcomes and bool(outcomes[self.state]), "an enrolment must be pending, accepted or refused"
        )
        _must(sum(map(bool, outcomes.values())) == 1, "an enrolment must have one outcome")


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """A question about one study."""

    study: str

    def __post_init__(self) -> None:
        _must(_is_word(self.study), "a study must be a plain word")


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """Request for the current round of a study's training, or for the finished flow of that SHA-256."""

    study: str
    flow: str = ""

    def __post_init__(self) -> None:
        _must(_is_word(self.study), "a study must be a plain word")
        _must(not self.flow or _is_digest(self.flow), "a trained flow must be named by its SHA-256")


@dataclass(frozen=True, kw_only=True)
class SignedDocument:
    """An envelope's bytes (`shared.base.keys.Envelope`)."""

    envelope: bytes

    def __post_init__(self) -> None:
        _must(0 < len(self.envelope) <= SIGNED_CAP, f"a signed document must have at most {SIGNED_CAP} bytes")


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """A site's next certificate."""

    certificate_pem: str

    def __post_init__(self) -> None:
        _must(0 < len(self.certificate_pem) <= 1 << 14, "a renewal's answer must hold a certificate")


@dataclass(frozen=True, kw_only=True)
class AuthoritiesRequest:
    """Request for every change of the certificate authority."""


@dataclass(frozen=True, kw_only=True)
class Authorities:
    """Every change of the certificate authority, oldest first; each a signed `shared.wire.certificates` statement."""

    statements: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        _must(len(self.statements) <= 64, "an authority must have changed at most 64 times")


@dataclass(frozen=True, kw_only=True)
class AnchorReceipt:
    """The coordinator has witnessed the ledger's head `head` at entry `seq`; `index` is its place in the log.

    Args:
        log_root: the log's Merkle root when it held `index` + 1 entries.
        signature: the coordinator's over all of this (`countersigned`).
    """

    seq: int
    head: str
    index: int
    log_root: str = field(default="", compare=False)
    signature: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        _must(_is_digest(self.head), "a ledger head must be a SHA-256")
        _must(not self.log_root or _is_digest(self.log_root), "a log's root must be a SHA-256")
        _must(self.seq >= 0 and self.index >= 0, "seq and index must not be negative")


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The release is on the coordinator's disk for good, and in its log.

    Args:
        log_index: place of the acceptance in the coordinator's log.
        log_root: the log's Merkle root when it held `log_index` + 1 entries.
        accepted_day: ISO date, UTC; the hour is nobody's business.
        signature: the coordinator's over all of this (`countersigned`).
    """

    study: str
    wave: int
    site: str
    release_id: str
    bundle_sha256: str
    log_index: int
    log_root: str
    accepted_day: str
    signature: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        _must(_is_day(self.accepted_day), "accepted_day must be an ISO date")
        _in_log(self)


@dataclass(frozen=True, kw_only=True)
class Withdrawn:
    """The release is taken back: no reader sees it again; its digest and this entry stay in the log."""

    study: str
    wave: int
    site: str
    release_id: str
    bundle_sha256: str
    log_index: int
    log_root: str
    withdrawn_day: str
    signature: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        _must(_is_day(self.withdrawn_day), "withdrawn_day must be an ISO date")
        _in_log(self)


@dataclass(frozen=True, kw_only=True)
class Revoked:
    """A standing approval is over: no offer may lean on it any more.

    Args:
        standing: SHA-256 of its document.
    """

    standing: str

    def __post_init__(self) -> None:
        _must(_is_digest(self.standing), "a revocation must name a standing approval by its SHA-256")


def _in_log(value: Acceptance | Withdrawn) -> None:
    _must(_is_word(value.study) and _is_word(value.site), "study and site must be plain words")
    _must(0 < len(value.release_id) <= 64 and value.release_id.isascii(), "a release id must be short text")
    _must(_is_digest(value.bundle_sha256) and _is_digest(value.log_root), "digests must be SHA-256")
    _must(value.wave >= 1 and value.log_index >= 0, "wave and log index must be counts")


@dataclass(frozen=True, kw_only=True)
class OfferRequest:
    """A release is offered by its signed statement.

    Args:
        envelope: the statement, signed by the agent and the approvers.
        standing: a signed standing approval (`shared.plans.standing`) that stands in for one approver; None for none.
    """

    envelope: bytes
    standing: bytes | None = None

    def __post_init__(self) -> None:
        _must(0 < len(self.envelope) <= SIGNED_CAP, "an offer must carry a signed statement")
        _must(self.standing is None or 0 < len(self.standing) <= SIGNED_CAP, "a standing approval must be signed")


@dataclass(frozen=True, kw_only=True)
class Offered:
    """The answer to an offer: send from byte `offset`, or it is `acceptance` already."""

    offset: int = 0
    acceptance: Acceptance | None = None

    def __post_init__(self) -> None:
        _must(self.offset >= 0, "an offset must not be negative")
        _must(self.acceptance is None or self.offset == 0, "an accepted offer has no offset")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a bundle: `data` stands at byte `offset` of the file whose SHA-256 is `bundle_sha256`."""

    bundle_sha256: str
    offset: int
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _must(_is_digest(self.bundle_sha256), "a chunk must name its bundle's SHA-256")
        _must(0 < len(self.data) <= 4 * CHUNK_BYTES, f"a chunk must have 1 to {4 * CHUNK_BYTES} bytes")
        _must(0 <= self.offset < 1 << 48, "a chunk's offset must be a place in a file")


@dataclass(frozen=True, kw_only=True)
class GrowthRequest:
    """A question for proof that the log of `size` entries only appended to the one of `old_size`."""

    old_size: int
    size: int

    def __post_init__(self) -> None:
        _must(0 < self.old_size <= self.size < 1 << 53, "a log must be asked about from an earlier size to a later one")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The proof (`shared.base.merkle.verify_consistency`)."""

    proof: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _must(_is_proof(self.proof), "a proof must be a few SHA-256 digests")


@dataclass(frozen=True, kw_only=True)
class WatchRequest:
    """A look at the coordinator's log.

    Args:
        sizes: of the log as seen before; the answer proves that it only grew from each.
        entries: places in the log whose entries are to be shown and proven. A site may name its own.
    """

    sizes: tuple[int, ...] = ()
    entries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _must(len(self.sizes) <= SIZES_CAP and len(self.entries) <= HOLDINGS_CAP, "a look at the log must be short")
        _must(all(0 < size < 1 << 53 for size in self.sizes), "a log's size must be a count")
        _must(all(0 <= index < 1 << 53 for index in self.entries), "a place in the log must be a number")


@dataclass(frozen=True, kw_only=True)
class LoggedEntry:
    """One entry of the log (canonical JSON), with the proof that it stands at `index` of the log of a head."""

    index: int
    entry: bytes
    proof: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _must(_is_proof(self.proof), "a proof must be a few SHA-256 digests")
        _must(self.index >= 0 and 0 < len(self.entry) <= SIGNED_CAP, "an entry of the log must be a short document")


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """An entry which says that the log was taken up again from a backup, and the proof that it grew from there."""

    entry: LoggedEntry
    growth: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _must(_is_proof(self.growth), "a proof must be a few SHA-256 digests")


@dataclass(frozen=True, kw_only=True)
class LogView:
    """The log as of one signed head (`shared.wire.tree_heads`).

    Args:
        head: the head's envelope; empty while nothing is logged.
        growth: a proof for each size that was asked about; empty for a size that the log does not have.
        entries: those asked for that the log has.
        restored: every time that the log was taken up again from a backup, oldest first.
    """

    head: bytes = b""
    growth: tuple[tuple[bytes, ...], ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    restored: tuple[Restoration, ...] = ()

    def __post_init__(self) -> None:
        _must(len(self.head) <= SIGNED_CAP and len(self.growth) <= SIZES_CAP, "a look at the log must be short")
        _must(all(map(_is_proof, self.growth)), "a proof must be a few SHA-256 digests")
        _must(len(self.entries) <= HOLDINGS_CAP and len(self.restored) <= 1000, "a look at the log must be short")


@dataclass(frozen=True, kw_only=True)
class GapReport:
    """Releases that the coordinator has acknowledged and does not name any more: its own signed words, sent back."""

    study: str
    lacking: tuple[Acceptance, ...]

    def __post_init__(self) -> None:
        _must(_is_word(self.study), "a study must be a plain word")
        _must(len(self.lacking) <= HOLDINGS_CAP, f"a report must name at most {HOLDINGS_CAP} releases")
        _must(all(one.study == self.study for one in self.lacking), "a report must be of one study")


@dataclass(frozen=True, kw_only=True)
class GapNoted:
    """The coordinator has noted a report; `lacking` releases of it are still missing there."""

    lacking: int


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One release that the coordinator holds of a site: accepted, withdrawn since, or quarantined with the reason.

    Args:
        log_index: place of the acceptance in the log; None for a quarantined release.
        statement: the statement that the site itself signed (an envelope's bytes): the coordinator's word alone is
            no proof that there was such a release.
    """

    study: str
    wave: int
    release_id: str
    state: Literal["accepted", "withdrawn", "quarantined"]
    code: str = ""
    reason: str = ""
    log_index: int | None = None
    statement: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        known = self.state in ("accepted", "withdrawn", "quarantined")
        _must(known, "a held release must be accepted, withdrawn or quarantined")
        _must(
            (self.state == "quarantined") == (self.log_index is None),
            "accepted releases, and only they, are logged",
        )
        _must(len(self.statement) <= SIGNED_CAP, "a signed statement must be short")
        _must((self.state == "quarantined") == (self.code in CATALOGUE), "a quarantined release must have a known code")
        _must(_is_word(self.study) and 0 < len(self.release_id) <= 64, "a held release must be named")
        _must(self.wave >= 1, "a wave must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Reminder:
    """The study lead reminded this site of a wave on `day` (ISO date, UTC). A word to people; nothing acts on it."""

    wave: int
    day: str

    def __post_init__(self) -> None:
        _must(self.wave >= 1 and _is_day(self.day), "a reminder must name a wave and an ISO date")


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """A site's releases at the coordinator, in one study, and the last witnessed entry of its ledger.

    Args:
        anchored: the last head witnessed; None before the first.
        reanchored: how often the study lead has let the ledger begin anew from an older head.
        anchor: the head that `anchored` is of, as the site itself signed it (an envelope's bytes).
        reminders: waves that the study lead reminds of.
    """

    holdings: tuple[Holding, ...] = ()
    anchored: AnchorReceipt | None = None
    reanchored: int = 0
    anchor: bytes = field(default=b"", repr=False, compare=False)
    reminders: tuple[Reminder, ...] = ()

    def __post_init__(self) -> None:
        _must(self.reanchored == 0 or self.anchored is not None, "a ledger that began anew must have a witnessed head")
        _must(len(self.holdings) <= HOLDINGS_CAP, f"an answer must name at most {HOLDINGS_CAP} releases")
        _must(len(self.reminders) <= 1000 and len(self.anchor) <= SIGNED_CAP, "an answer must be short")


@dataclass(frozen=True, kw_only=True)
class MembershipRequest:
    """Signed statements (`shared.membership.statements`) that the coordinator may not have yet, oldest first."""

    statements: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "statements", tuple(self.statements))
        short = len(self.statements) <= STATEMENTS_CAP and sum(map(len, self.statements)) <= SIGNED_CAP
        _must(short, f"at most {STATEMENTS_CAP} statements may be sent at once")


@dataclass(frozen=True, kw_only=True)
class MembershipReply:
    """What the coordinator has of the calling site, each an envelope's bytes, oldest first.

    Args:
        grants: of further studies, and their ends (`shared.membership.grants`).
        leads: changes of its leads (`shared.membership.leads`).
        keys: changes of the site's keys that are in force there (`shared.membership.key_changes`).
        taken: SHA-256 of each statement of the request that waits for the study lead.
    """

    grants: tuple[bytes, ...] = ()
    leads: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()
    taken: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("grants", "leads", "keys", "taken"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        lists = (self.grants, self.leads, self.keys)
        _must(all(len(one) <= STATEMENTS_CAP for one in lists), "an answer must be short")
        _must(len(self.taken) <= STATEMENTS_CAP and all(map(_is_digest, self.taken)), "statements are named by SHA-256")


@dataclass(frozen=True, kw_only=True)
class RoundReply:
    """The current round's order to a site (`shared.wire.rounds.RoundOrder`), signed; both parts are empty when it is
    nothing."""

    envelope: bytes = b""
    content: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _must(len(self.envelope) <= _ROUND_ENVELOPE, "what a round asks must be a short signed document")
        _must(len(self.content) <= ROUND_CAP, f"a round's content must have at most {ROUND_CAP} bytes")
        _must(bool(self.envelope) or not self.content, "a round's content must come with its signed document")


@dataclass(frozen=True, kw_only=True)
class RoundAnswer:
    """A site's answer to one round (`shared.wire.rounds.Answered`), signed by its release key."""

    envelope: bytes
    content: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _must(0 < len(self.envelope) <= _ROUND_ENVELOPE, "an answer to a round must be a short signed document")
        _must(len(self.content) <= ROUND_CAP, f"a round's content must have at most {ROUND_CAP} bytes")


@dataclass(frozen=True, kw_only=True)
class RoundReceipt:
    """The coordinator has the answer on disk; `answer` is the SHA-256 of what the site signed."""

    study: str
    round: int
    answer: str

    def __post_init__(self) -> None:
        _must(_is_word(self.study) and self.round >= 1, "a receipt must name a study and a round")
        _must(_is_digest(self.answer), "a receipt must name the answer's SHA-256")


# -- what analysts say ------------------------------------------------------------------------------------------
def _must_be_study(study: str) -> None:
    _must(_is_word(study), "a study must be a plain word")


@dataclass(frozen=True, kw_only=True)
class StudiesRequest:
    """Request for the studies of the caller's token."""


@dataclass(frozen=True, kw_only=True)
class DescribeRequest:
    """The dictionary of a study, or one column of it."""

    study: str
    column: str = ""

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        _must(len(self.column) <= 256, "a column's name must be short")


@dataclass(frozen=True, kw_only=True)
class ReleasesRequest:
    """The releases of a study."""

    study: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)


@dataclass(frozen=True, kw_only=True)
class QueryRequest:
    """One question to the accepted releases of a study.

    Args:
        study: the study.
        kind: what to estimate, as in ``cox``; empty when `formula` is the whole question or a planned analysis' name.
        formula: as in ``Surv(time, event) ~ sbp + age``.
        options: further parts of the question, name to text.
        term: which term to pool; the first when empty.
        method, test, level: of the pooling.
        wave: the table as of this wave; 0 for the newest that has a release.
        as_of: a revision of the wave.
        combine: put all refreshes of a site together.
        label: one of `LABELS`; empty for what the plan says of the question: confirmatory if it stands there.
        harmonise: a column, or several parted by commas, to be mapped onto the scale of the site `to`, beside the
            answer as it stands; or empty.
        densities: the study that the maps are made of; the one beside the study when empty.
    """

    study: str
    formula: str
    kind: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    term: str = ""
    method: str = "REML"
    test: str = "adhoc"
    level: float = 0.95
    wave: int = 0
    as_of: int | None = None
    combine: bool = False
    label: str = ""
    harmonise: str = ""
    to: str = ""
    densities: str = ""

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        if self.densities:
            _must_be_study(self.densities)
        _must(bool(self.harmonise) == bool(self.to), "harmonising must name a column and a site")
        _must(bool(self.harmonise) or not self.densities, "a study of densities must come with a column to map")
        if len(self.formula) > FORMULA_CAP:
            raise TooLarge(f"a formula must have at most {FORMULA_CAP} letters", given=f"{len(self.formula)}")
        _must(bool(self.formula.strip()), "a question must have a formula, or the name of a planned analysis")
        _must(not self.kind or _is_word(self.kind), "the kind of a question must be a plain word")
        short = all(_is_word(name) and len(text) <= FORMULA_CAP for name, text in self.options.items())
        _must(len(self.options) <= 16 and short, "the options of a question must be few and short")
        for name in ("term", "method", "test", "harmonise", "to"):
            _must(len(getattr(self, name)) <= 256, f"a {name} must be short")
        _must(0 < self.level < 1, "a level must lie in (0, 1)")
        _must(0 <= self.wave < 1 << 31 and (self.as_of is None or 0 <= self.as_of < 1 << 31), "a wave is a number")
        _must(self.label in ("", *LABELS), f"a label must be one of {', '.join(LABELS)}")


@dataclass(frozen=True, kw_only=True)
class RowsRequest:
    """The rows of one release."""

    study: str
    release_id: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        _must(0 < len(self.release_id) <= 64 and self.release_id.isalnum(), "a release id must be a plain word")


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """Request for the provenance of a result."""

    study: str
    result_id: str

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        _must(0 < len(self.result_id) <= 64 and self.result_id.isalnum(), "a result id must be a plain word")


@dataclass(frozen=True, kw_only=True)
class LogRequest:
    """The record of questions of a study, from after line `after`."""

    study: str
    after: int = 0

    def __post_init__(self) -> None:
        _must_be_study(self.study)
        _must(0 <= self.after < 1 << 62, "a line of the record is a number")


@dataclass(frozen=True, kw_only=True)
class EntriesRequest:
    """Entries of the coordinator's log, from the one numbered `after`."""

    after: int = 0

    def __post_init__(self) -> None:
        _must(0 <= self.after < 1 << 53, "a place in the log must be a number")


@dataclass(frozen=True, kw_only=True)
class Document:
    """An answer: canonical JSON."""

    json: bytes


@dataclass(frozen=True, kw_only=True)
class RowsChunk:
    """A piece of a Parquet file."""

    data: bytes


# -- what is signed ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class AnchorHead:
    """Payload of an anchor (`ANCHOR_TYPE`): where the site's ledger stands, and the proof that it got there.

    Args:
        seq: number of the last entry.
        head: its hash.
        after: the last entry that the site knows to be witnessed; 0 for none.
        links: of the entries `after` + 1 to `seq` (`shared.base.chain`).
    """

    site: str
    seq: int
    head: str
    after: int
    links: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        for value in (self.seq, self.after):
            _must(isinstance(value, int) and not isinstance(value, bool), "an anchor's numbers must be whole")
        _must(0 <= self.after <= self.seq < 1 << 53, "an anchor's seq must be a count, and not before what it is after")
        _must(isinstance(self.head, str) and _is_digest(self.head), "an anchor's head must be a SHA-256")
        _must(isinstance(self.site, str) and _is_word(self.site), "an anchor's site must be a plain word")
        if self.seq - self.after > LINKS_CAP:
            raise TooLarge(
                f"a ledger must grow by at most {LINKS_CAP} entries between two anchors",
                given=f"{self.seq - self.after}",
                next_step="Call the study lead: the site's ledger begins anew under another name.",
            )
        _must(len(self.links) == self.seq - self.after, "an anchor must have one link per entry since the last one")
        _must(all(isinstance(link, str) and _is_digest(link) for link in self.links), "a link must be a SHA-256")

    def extends(self, seq: int, head: str) -> bool:
        """True if this ledger continues entry `seq` with the hash `head`."""
        return self.after <= seq < self.seq and extend_head(head, self.links[seq - self.after :]) == self.head

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        body = {"site": self.site, "seq": self.seq, "head": self.head, "after": self.after, "links": list(self.links)}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> AnchorHead:
        """Read a verified payload. Raises: SchemaRefusal, TooLarge."""
        body = parse_json(data)
        known = {"site", "seq", "head", "after", "links"}
        _must(isinstance(body, dict) and body.keys() == known, "an anchor must have site, seq, head, after and links")
        _must(isinstance(body["links"], list), "an anchor's links must be a list")
        return cls(**{**body, "links": tuple(body["links"])})


@dataclass(frozen=True, kw_only=True)
class EnrolmentRequest:
    """Payload of an enrolment (`ENROLMENT_TYPE`), signed by `release_key` itself.

    The signature shows that whoever sends it holds the release key, so the one fingerprint that the lead compares
    vouches for the certificate request and for the approvers' keys too.
    """

    site: str
    csr_pem: str
    release_key: PublicKey
    approvers: Mapping[str, PublicKey]

    def __post_init__(self) -> None:
        _must(_is_word(self.site), "a site must be a plain word")
        _must(1 <= len(self.approvers) <= 16, "an enrolment must name 1 to 16 approvers")
        _must(all(0 < len(name) <= 64 and name.isprintable() for name in self.approvers), "approvers must have names")
        keys = [self.release_key.hex, *(key.hex for key in self.approvers.values())]
        _must(len(set(keys)) == len(keys), "the release key and the approvers' keys must all differ")

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        return {
            "site": self.site,
            "csr_pem": self.csr_pem,
            "release_key": self.release_key.hex,
            "approvers": {name: key.hex for name, key in self.approvers.items()},
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> EnrolmentRequest:
        """Read a payload. Raises: SchemaRefusal."""
        body = parse_json(data, cap=64 << 10)
        _must(isinstance(body, dict), "an enrolment must be a JSON object")
        known = {"site", "csr_pem", "release_key", "approvers"}
        closed(body, known, where="an enrolment", refusal=SchemaRefusal)
        texts = [body.get("site"), body.get("csr_pem"), body.get("release_key")]
        named = body.get("approvers")
        _must(all(isinstance(text, str) for text in texts) and isinstance(named, dict), "an enrolment must be complete")
        _must(all(isinstance(key, str) for key in named.values()), "an approver's key must be text")
        return cls(
            site=body["site"],
            csr_pem=body["csr_pem"],
            release_key=PublicKey(body["release_key"]),
            approvers={name: PublicKey(key) for name, key in named.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Withdrawal:
    """Payload of a withdrawal (`WITHDRAWAL_TYPE`), signed by the site's release key and one of its approvers.

    Args:
        reason_code: one of `REASONS`; the reason itself stays at the site.
    """

    study: str
    site: str
    wave: int
    release_id: str
    bundle_sha256: str
    reason_code: str

    def __post_init__(self) -> None:
        texts = (self.study, self.site, self.release_id, self.bundle_sha256, self.reason_code)
        _must(all(isinstance(text, str) for text in texts), "a withdrawal's ids must be text")
        _must(all(map(_is_word, texts[:3])), "study, site and release id must be plain words")
        _must(_is_digest(self.bundle_sha256), "a withdrawal must name its bundle's SHA-256")
        # A site's part in a training has no wave; its withdrawal stays at the site.
        _must(type(self.wave) is int and 0 <= self.wave < 1 << 31, "a withdrawal's wave must be a count")
        _must(self.reason_code in REASONS, f"a withdrawal's reason must be one of {', '.join(REASONS)}")

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json({item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Withdrawal:
        """Read a verified payload. Raises: SchemaRefusal."""
        body = parse_json(data, cap=64 << 10)
        known = {item.name for item in fields(cls)}
        _must(isinstance(body, dict) and body.keys() == known, f"a withdrawal must have {', '.join(sorted(known))}")
        read = cls(**body)
        _must(read.to_bytes() == data, "a withdrawal must be in canonical form")
        return read

    def sign(self, keys: list[SigningKey]) -> Envelope:
        """Sign as the agent (and an approver, see `Envelope.also_signed`)."""
        return Envelope.sign(WITHDRAWAL_TYPE, self.to_bytes(), keys)


# -- what the coordinator signs -------------------------------------------------------------------------------------
Reply = TypeVar("Reply", AnchorReceipt, Acceptance, Withdrawn)


def _countersigned_bytes(reply: AnchorReceipt | Acceptance | Withdrawn, site: str) -> bytes:
    kind = {AnchorReceipt: "anchor-receipt", Acceptance: "acceptance", Withdrawn: "withdrawn"}[type(reply)]
    body = {item.name: getattr(reply, item.name) for item in fields(reply) if item.name != "signature"}
    return Envelope.encoding(f"application/vnd.tributary.{kind}+json", canonical_json({**body, "site": site}))


def countersigned(reply: Reply, key: SigningKey, site: str) -> Reply:
    """The reply with the coordinator's signature, for one site: what it cannot deny later.

    >>> key, receipt = SigningKey.generate(), AnchorReceipt(seq=3, head="a" * 64, index=0, log_root="b" * 64)
    >>> require_countersigned(countersigned(receipt, key, "north"), key.public, "north")
    """
    return replace(reply, signature=key.sign(_countersigned_bytes(reply, site)))


def require_countersigned(reply: AnchorReceipt | Acceptance | Withdrawn, key: PublicKey, site: str) -> None:
    """Refuse a reply that the pinned coordinator's key did not sign for this site. Raises: SignatureRefusal."""
    if not key.verifies(reply.signature, _countersigned_bytes(reply, site)):
        raise SignatureRefusal(
            "the coordinator's answer must be signed by the key in the invitation",
            given="none or another signature",
            next_step="Call the study lead before anything else is sent.",
        )


# -- to and from protocol buffers: fields of one name on both sides ------------------------------------------------
_MESSAGES: Mapping[type, type[Message]] = {
    EnrolRequest: pb.EnrolRequest,
    Enrolment: pb.EnrolReply,
    StudyRequest: pb.StudyRequest,
    RoundRequest: pb.RoundRequest,
    SignedDocument: pb.SignedDocument,
    AnchorReceipt: pb.AnchorReply,
    OfferRequest: pb.OfferRequest,
    Offered: pb.OfferReply,
    Chunk: pb.Chunk,
    Acceptance: pb.AcceptanceReply,
    Holding: pb.StatusReply.Holding,
    Reminder: pb.StatusReply.Reminder,
    Holdings: pb.StatusReply,
    Withdrawn: pb.WithdrawalReply,
    Revoked: pb.RevocationReply,
    GrowthRequest: pb.GrowthRequest,
    Growth: pb.GrowthReply,
    WatchRequest: pb.WatchRequest,
    LoggedEntry: pb.LoggedEntry,
    Restoration: pb.LogView.Restoration,
    LogView: pb.LogView,
    GapReport: pb.GapReport,
    GapNoted: pb.GapNoted,
    Renewed: pb.RenewalReply,
    AuthoritiesRequest: pb.AuthoritiesRequest,
    Authorities: pb.AuthoritiesReply,
    MembershipRequest: pb.MembershipRequest,
    MembershipReply: pb.MembershipReply,
    RoundReply: pb.RoundReply,
    RoundAnswer: pb.RoundAnswer,
    RoundReceipt: pb.RoundReceipt,
    StudiesRequest: analysis.StudiesRequest,
    DescribeRequest: analysis.DescribeRequest,
    ReleasesRequest: analysis.ReleasesRequest,
    QueryRequest: analysis.QueryRequest,
    RowsRequest: analysis.RowsRequest,
    ExplainRequest: analysis.ExplainRequest,
    LogRequest: analysis.LogRequest,
    EntriesRequest: analysis.EntriesRequest,
    Document: analysis.Document,
    RowsChunk: analysis.RowsChunk,
}
"""A new message is a dataclass, a protocol buffer with fields of the same names, and a line here."""
_VALUES = {made.DESCRIPTOR.full_name: kind for kind, made in _MESSAGES.items()}


def _write(value: Any) -> Message:
    """The protocol buffer of a value, and of those in it; None is absence, a proof is its parts."""
    if isinstance(value, tuple):
        return pb.MerkleProof(parts=value)
    if isinstance(value, Enrolment | Offered):
        return _write_outcome(value)
    made = _MESSAGES[type(value)]
    given: dict[str, Any] = {}
    for part in made.DESCRIPTOR.fields:
        item = getattr(value, part.name)
        if item is not None and part.message_type is not None and not isinstance(item, Mapping):
            item = [_write(one) for one in item] if part.is_repeated else _write(item)
        given[part.name] = item
    return made(**{name: item for name, item in given.items() if item is not None})


def _read(message: Any) -> Any:
    """The value in a protocol buffer. Raises: SchemaRefusal."""
    if isinstance(message, pb.MerkleProof):
        return tuple(message.parts)
    kind = _VALUES[message.DESCRIPTOR.full_name]
    if kind in (Enrolment, Offered):
        return _read_outcome(message)
    given: dict[str, Any] = {}
    for part in fields(kind):
        described = message.DESCRIPTOR.fields_by_name[part.name]
        absent = described.has_presence and not message.HasField(part.name)
        if absent and part.default is not MISSING:
            continue
        item = getattr(message, part.name)
        if isinstance(item, Mapping):
            item = dict(item)
        elif described.is_repeated:
            item = tuple(item if described.message_type is None else map(_read, item))
        elif described.message_type is not None:
            item = _read(item)
        given[part.name] = item
    return kind(**given)


# Two answers are one of several things, which the wire keeps apart and the value holds side by side.
def _write_outcome(value: Enrolment | Offered) -> Message:
    if isinstance(value, Offered):
        if value.acceptance is not None:
            return pb.OfferReply(acceptance=_write(value.acceptance))
        return pb.OfferReply(offset=value.offset)
    if value.state == "pending":
        return pb.EnrolReply(pending=pb.EnrolReply.Pending(fingerprint=value.fingerprint))
    if value.state == "accepted":
        return pb.EnrolReply(accepted=pb.EnrolReply.Accepted(certificate_pem=value.certificate_pem))
    return pb.EnrolReply(refused=pb.EnrolReply.Refused(reason=value.reason))


def _read_outcome(message: Any) -> Enrolment | Offered:
    outcome = message.WhichOneof("outcome")
    if outcome == "offset":
        return Offered(offset=message.offset)
    if outcome == "acceptance":
        return Offered(acceptance=_read(message.acceptance))
    if outcome is not None:
        ((part, text),) = getattr(message, outcome).ListFields() or [(None, "")]
        return Enrolment(state=outcome, **({} if part is None else {part.name: text}))
    if isinstance(message, pb.OfferReply):
        raise SchemaRefusal("the answer to an offer must be an offset or an acceptance")
    raise SchemaRefusal("an enrolment must be pending, accepted or refused")


def encode(value: Any) -> bytes:
    """The bytes of a message.

    >>> decode(StudyRequest, encode(StudyRequest(study="heart")))
    StudyRequest(study='heart')
    """
    return _write(value).SerializeToString(deterministic=True)


def decode(kind: type, data: bytes) -> Any:
    """The value of class `kind` in `data`. Raises: SchemaRefusal: not that message, or a field nobody reads."""
    message_kind = _MESSAGES[kind]
    try:
        message = message_kind.FromString(data)
    except DecodeError:
        raise SchemaRefusal("the message must be a protocol buffer of its method") from None
    _closed(message)
    return _read(message)


def _closed(message: Message) -> None:
    """Refuse fields that this version does not know, at every depth."""
    if len(UnknownFieldSet(message)):
        raise SchemaRefusal(
            "a message must hold known fields only",
            given="another",
            next_step="Update both sides to the same version.",
        )
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None and not descriptor.message_type.GetOptions().map_entry:
            for part in value if descriptor.is_repeated else [value]:
                _closed(part)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of a service: what it takes, what it gives, and which of the two is a stream."""

    request: type
    reply: type
    stream: bool = False
    reply_stream: bool = False


COLLECTION: Mapping[str, Method] = {
    "Enrol": Method(request=EnrolRequest, reply=Enrolment),
    "FetchPlan": Method(request=StudyRequest, reply=SignedDocument),
    "Anchor": Method(request=SignedDocument, reply=AnchorReceipt),
    "Offer": Method(request=OfferRequest, reply=Offered),
    "Upload": Method(request=Chunk, reply=Acceptance, stream=True),
    "Status": Method(request=StudyRequest, reply=Holdings),
    "Withdraw": Method(request=SignedDocument, reply=Withdrawn),
    "RevokeStanding": Method(request=SignedDocument, reply=Revoked),
    "Growth": Method(request=GrowthRequest, reply=Growth),
    "Watch": Method(request=WatchRequest, reply=LogView),
    "ReportGap": Method(request=GapReport, reply=GapNoted),
    "NextRound": Method(request=RoundRequest, reply=RoundReply),
    "UploadRound": Method(request=RoundAnswer, reply=RoundReceipt),
    "Clock": Method(request=SignedDocument, reply=SignedDocument),
    "Renew": Method(request=SignedDocument, reply=Renewed),
    "Authorities": Method(request=AuthoritiesRequest, reply=Authorities),
    "Membership": Method(request=MembershipRequest, reply=MembershipReply),
}

ANALYSIS: Mapping[str, Method] = {
    "Studies": Method(request=StudiesRequest, reply=Document),
    "Describe": Method(request=DescribeRequest, reply=Document),
    "Releases": Method(request=ReleasesRequest, reply=Document),
    "Query": Method(request=QueryRequest, reply=Document),
    "Rows": Method(request=RowsRequest, reply=RowsChunk, reply_stream=True),
    "Explain": Method(request=ExplainRequest, reply=Document),
    "Log": Method(request=LogRequest, reply=Document),
    "Watch": Method(request=WatchRequest, reply=LogView),
    "Entries": Method(request=EntriesRequest, reply=Document),
}
