"""Everything that crosses the wire, by service and by kind, and the only place that turns it into bytes.

The protocol buffers in `shared/proto` are the form other languages see. Inside the program a message is one of the
frozen values of `site_messages` and `analyst_messages`, checked when it is made. The wire is closed: a field that this
version does not know, an outcome that is not set, a text that is not what it should be, is refused; nothing that
arrives picks which code runs. `COLLECTION` (sites) and `ANALYSIS` (analysts) list the methods, from which
`shared.wire.transport` builds both ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from shared.errors import SchemaRefusal
from shared.proto import analysis_pb2 as analysis
from shared.proto import collection_pb2 as pb
from shared.wire.analyst_messages import (
    DescribeRequest,
    Document,
    EntriesRequest,
    ExplainRequest,
    LogRequest,
    QueryRequest,
    ReleasesRequest,
    RowsChunk,
    RowsRequest,
    StudiesRequest,
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
    Reminder,
    Renewed,
    Restoration,
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

__all__ = [
    "ANALYSIS",
    "ANALYSIS_SERVICE",
    "COLLECTION",
    "SERVICE",
    "Method",
    "decode",
    "encode",
]

SERVICE = "tributary.collection.v1.Collection"
ANALYSIS_SERVICE = "tributary.analysis.v1.Analysis"
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
    LimitsRequest: pb.LimitsRequest,
    CoordinatorLimits: pb.LimitsReply,
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
    "Limits": Method(request=LimitsRequest, reply=CoordinatorLimits),
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
