"""Messages between a site and its coordinator: one frozen value each, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shared.base.canonical import is_day, is_digest, is_word
from shared.errors import CATALOGUE
from shared.wire.message_limits import (
    CHUNK_BYTES,
    HOLDINGS_CAP,
    ROUND_CAP,
    ROUND_ENVELOPE,
    SIGNED_CAP,
    SIZES_CAP,
    STATEMENTS_CAP,
    is_proof,
    must,
)

__all__ = [
    "Acceptance",
    "AnchorReceipt",
    "Authorities",
    "AuthoritiesRequest",
    "Chunk",
    "CoordinatorLimits",
    "EnrolRequest",
    "Enrolment",
    "GapNoted",
    "GapReport",
    "Growth",
    "GrowthRequest",
    "Holding",
    "Holdings",
    "LimitsRequest",
    "LogView",
    "LoggedEntry",
    "MembershipReply",
    "MembershipRequest",
    "OfferRequest",
    "Offered",
    "Reminder",
    "Renewed",
    "Restoration",
    "Revoked",
    "RoundAnswer",
    "RoundReceipt",
    "RoundReply",
    "RoundRequest",
    "SignedDocument",
    "StudyRequest",
    "WatchRequest",
    "Withdrawn",
]


# -- what is said -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class EnrolRequest:
    """A site asks to join: the invitation's token, and its request signed by its release key."""

    token: str = field(repr=False)
    envelope: bytes

    def __post_init__(self) -> None:
        must(0 < len(self.token) <= 256 and self.token.isascii(), "a token must be short text")
        must(0 < len(self.envelope) <= SIGNED_CAP, "an enrolment must carry a signed request")


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
        must(self.state in outcomes and bool(outcomes[self.state]), "an enrolment must be pending, accepted or refused")
        must(sum(map(bool, outcomes.values())) == 1, "an enrolment must have one outcome")


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """A question about one study."""

    study: str

    def __post_init__(self) -> None:
        must(is_word(self.study), "a study must be a plain word")


@dataclass(frozen=True, kw_only=True)
class RoundRequest:
    """Request for the current round of a study's training, or for the finished flow of that SHA-256."""

    study: str
    flow: str = ""

    def __post_init__(self) -> None:
        must(is_word(self.study), "a study must be a plain word")
        must(not self.flow or is_digest(self.flow), "a trained flow must be named by its SHA-256")


@dataclass(frozen=True, kw_only=True)
class SignedDocument:
    """An envelope's bytes (`shared.base.keys.Envelope`)."""

    envelope: bytes

    def __post_init__(self) -> None:
        must(0 < len(self.envelope) <= SIGNED_CAP, f"a signed document must have at most {SIGNED_CAP} bytes")


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """A site's next certificate."""

    certificate_pem: str

    def __post_init__(self) -> None:
        must(0 < len(self.certificate_pem) <= 1 << 14, "a renewal's answer must hold a certificate")


@dataclass(frozen=True, kw_only=True)
class AuthoritiesRequest:
    """Request for every change of the certificate authority."""


@dataclass(frozen=True, kw_only=True)
class Authorities:
    """Every change of the certificate authority, oldest first; each a signed `shared.wire.certificates` statement."""

    statements: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        must(len(self.statements) <= 64, "an authority must have changed at most 64 times")


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
        must(is_digest(self.head), "a ledger head must be a SHA-256")
        must(not self.log_root or is_digest(self.log_root), "a log's root must be a SHA-256")
        must(self.seq >= 0 and self.index >= 0, "seq and index must not be negative")


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
        must(is_day(self.accepted_day), "accepted_day must be an ISO date")
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
        must(is_day(self.withdrawn_day), "withdrawn_day must be an ISO date")
        _in_log(self)


@dataclass(frozen=True, kw_only=True)
class Revoked:
    """A standing approval is over: no offer may lean on it any more.

    Args:
        standing: SHA-256 of its document.
    """

    standing: str

    def __post_init__(self) -> None:
        must(is_digest(self.standing), "a revocation must name a standing approval by its SHA-256")


def _in_log(value: Acceptance | Withdrawn) -> None:
    must(is_word(value.study) and is_word(value.site), "study and site must be plain words")
    must(0 < len(value.release_id) <= 64 and value.release_id.isascii(), "a release id must be short text")
    must(is_digest(value.bundle_sha256) and is_digest(value.log_root), "digests must be SHA-256")
    must(value.wave >= 1 and value.log_index >= 0, "wave and log index must be counts")


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
        must(0 < len(self.envelope) <= SIGNED_CAP, "an offer must carry a signed statement")
        must(self.standing is None or 0 < len(self.standing) <= SIGNED_CAP, "a standing approval must be signed")


@dataclass(frozen=True, kw_only=True)
class Offered:
    """The answer to an offer: send from byte `offset`, or it is `acceptance` already."""

    offset: int = 0
    acceptance: Acceptance | None = None

    def __post_init__(self) -> None:
        must(self.offset >= 0, "an offset must not be negative")
        must(self.acceptance is None or self.offset == 0, "an accepted offer has no offset")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a bundle: `data` stands at byte `offset` of the file whose SHA-256 is `bundle_sha256`."""

    bundle_sha256: str
    offset: int
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        must(is_digest(self.bundle_sha256), "a chunk must name its bundle's SHA-256")
        must(0 < len(self.data) <= 4 * CHUNK_BYTES, f"a chunk must have 1 to {4 * CHUNK_BYTES} bytes")
        must(0 <= self.offset < 1 << 48, "a chunk's offset must be a place in a file")


@dataclass(frozen=True, kw_only=True)
class GrowthRequest:
    """A question for proof that the log of `size` entries only appended to the one of `old_size`."""

    old_size: int
    size: int

    def __post_init__(self) -> None:
        must(0 < self.old_size <= self.size < 1 << 53, "a log must be asked about from an earlier size to a later one")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The proof (`shared.base.merkle.verify_consistency`)."""

    proof: tuple[bytes, ...]

    def __post_init__(self) -> None:
        must(is_proof(self.proof), "a proof must be a few SHA-256 digests")


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
        must(len(self.sizes) <= SIZES_CAP and len(self.entries) <= HOLDINGS_CAP, "a look at the log must be short")
        must(all(0 < size < 1 << 53 for size in self.sizes), "a log's size must be a count")
        must(all(0 <= index < 1 << 53 for index in self.entries), "a place in the log must be a number")


@dataclass(frozen=True, kw_only=True)
class LoggedEntry:
    """One entry of the log (canonical JSON), with the proof that it stands at `index` of the log of a head."""

    index: int
    entry: bytes
    proof: tuple[bytes, ...]

    def __post_init__(self) -> None:
        must(is_proof(self.proof), "a proof must be a few SHA-256 digests")
        must(self.index >= 0 and 0 < len(self.entry) <= SIGNED_CAP, "an entry of the log must be a short document")


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """An entry which says that the log was taken up again from a backup, and the proof that it grew from there."""

    entry: LoggedEntry
    growth: tuple[bytes, ...]

    def __post_init__(self) -> None:
        must(is_proof(self.growth), "a proof must be a few SHA-256 digests")


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
        must(len(self.head) <= SIGNED_CAP and len(self.growth) <= SIZES_CAP, "a look at the log must be short")
        must(all(map(is_proof, self.growth)), "a proof must be a few SHA-256 digests")
        must(len(self.entries) <= HOLDINGS_CAP and len(self.restored) <= 1000, "a look at the log must be short")


@dataclass(frozen=True, kw_only=True)
class GapReport:
    """Releases that the coordinator has acknowledged and does not name any more: its own signed words, sent back."""

    study: str
    lacking: tuple[Acceptance, ...]

    def __post_init__(self) -> None:
        must(is_word(self.study), "a study must be a plain word")
        must(len(self.lacking) <= HOLDINGS_CAP, f"a report must name at most {HOLDINGS_CAP} releases")
        must(all(one.study == self.study for one in self.lacking), "a report must be of one study")


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
        must(known, "a held release must be accepted, withdrawn or quarantined")
        must(
            (self.state == "quarantined") == (self.log_index is None),
            "accepted releases, and only they, are logged",
        )
        must(len(self.statement) <= SIGNED_CAP, "a signed statement must be short")
        must((self.state == "quarantined") == (self.code in CATALOGUE), "a quarantined release must have a known code")
        must(is_word(self.study) and 0 < len(self.release_id) <= 64, "a held release must be named")
        must(self.wave >= 1, "a wave must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Reminder:
    """The study lead reminded this site of a wave on `day` (ISO date, UTC). A word to people; nothing acts on it."""

    wave: int
    day: str

    def __post_init__(self) -> None:
        must(self.wave >= 1 and is_day(self.day), "a reminder must name a wave and an ISO date")


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
        must(self.reanchored == 0 or self.anchored is not None, "a ledger that began anew must have a witnessed head")
        must(len(self.holdings) <= HOLDINGS_CAP, f"an answer must name at most {HOLDINGS_CAP} releases")
        must(len(self.reminders) <= 1000 and len(self.anchor) <= SIGNED_CAP, "an answer must be short")


@dataclass(frozen=True, kw_only=True)
class MembershipRequest:
    """Signed statements (`shared.membership.statements`) that the coordinator may not have yet, oldest first."""

    statements: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "statements", tuple(self.statements))
        short = len(self.statements) <= STATEMENTS_CAP and sum(map(len, self.statements)) <= SIGNED_CAP
        must(short, f"at most {STATEMENTS_CAP} statements may be sent at once")


@dataclass(frozen=True, kw_only=True)
class MembershipReply:
    """Membership statements that the coordinator holds for the calling site, each an envelope's bytes, oldest first.

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
        must(all(len(one) <= STATEMENTS_CAP for one in lists), "an answer must be short")
        must(len(self.taken) <= STATEMENTS_CAP and all(map(is_digest, self.taken)), "statements are named by SHA-256")


@dataclass(frozen=True, kw_only=True)
class RoundReply:
    """The current round's order to a site (`shared.wire.rounds.RoundOrder`), signed; both parts are empty when it is
    nothing."""

    envelope: bytes = b""
    content: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        must(len(self.envelope) <= ROUND_ENVELOPE, "what a round asks must be a short signed document")
        must(len(self.content) <= ROUND_CAP, f"a round's content must have at most {ROUND_CAP} bytes")
        must(bool(self.envelope) or not self.content, "a round's content must come with its signed document")


@dataclass(frozen=True, kw_only=True)
class RoundAnswer:
    """A site's answer to one round (`shared.wire.rounds.Answered`), signed by its release key."""

    envelope: bytes
    content: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        must(0 < len(self.envelope) <= ROUND_ENVELOPE, "an answer to a round must be a short signed document")
        must(len(self.content) <= ROUND_CAP, f"a round's content must have at most {ROUND_CAP} bytes")


@dataclass(frozen=True, kw_only=True)
class RoundReceipt:
    """The coordinator has the answer on disk; `answer` is the SHA-256 of what the site signed."""

    study: str
    round: int
    answer: str

    def __post_init__(self) -> None:
        must(is_word(self.study) and self.round >= 1, "a receipt must name a study and a round")
        must(is_digest(self.answer), "a receipt must name the answer's SHA-256")


@dataclass(frozen=True, kw_only=True)
class LimitsRequest:
    """A question for `CoordinatorLimits`."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorLimits:
    """The largest release that a coordinator takes; the defaults are those of one that does not say.

    Args:
        max_bundle: most bytes of a bundle.
        max_table: most bytes of its table when it is opened.
    """

    max_bundle: int = 256 << 20
    max_table: int = 512 << 20

    def __post_init__(self) -> None:
        must(0 < self.max_bundle < 1 << 53, "a largest bundle must be a count of bytes")
        must(0 < self.max_table < 1 << 53, "a largest table must be a count of bytes")
