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
from shared.wire import analyst_messages as analyst
from shared.wire import site_messages as site

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
    site.EnrolRequest: pb.EnrolRequest,
    site.Enrolment: pb.EnrolReply,
    site.StudyRequest: pb.StudyRequest,
    site.RoundRequest: pb.RoundRequest,
    site.SignedDocument: pb.SignedDocument,
    site.AnchorReceipt: pb.AnchorReply,
    site.OfferRequest: pb.OfferRequest,
    site.Offered: pb.OfferReply,
    site.Chunk: pb.Chunk,
    site.Acceptance: pb.AcceptanceReply,
    site.Holding: pb.StatusReply.Holding,
    site.Reminder: pb.StatusReply.Reminder,
    site.Holdings: pb.StatusReply,
    site.Withdrawn: pb.WithdrawalReply,
    site.Revoked: pb.RevocationReply,
    site.GrowthRequest: pb.GrowthRequest,
    site.Growth: pb.GrowthReply,
    site.WatchRequest: pb.WatchRequest,
    site.LoggedEntry: pb.LoggedEntry,
    site.Restoration: pb.LogView.Restoration,
    site.LogView: pb.LogView,
    site.GapReport: pb.GapReport,
    site.GapNoted: pb.GapNoted,
    site.Renewed: pb.RenewalReply,
    site.AuthoritiesRequest: pb.AuthoritiesRequest,
    site.Authorities: pb.AuthoritiesReply,
    site.MembershipRequest: pb.MembershipRequest,
    site.MembershipReply: pb.MembershipReply,
    site.LimitsRequest: pb.LimitsRequest,
    site.CoordinatorLimits: pb.LimitsReply,
    site.RoundReply: pb.RoundReply,
    site.RoundAnswer: pb.RoundAnswer,
    site.RoundReceipt: pb.RoundReceipt,
    analyst.StudiesRequest: analysis.StudiesRequest,
    analyst.DescribeRequest: analysis.DescribeRequest,
    analyst.ReleasesRequest: analysis.ReleasesRequest,
    analyst.QueryRequest: analysis.QueryRequest,
    analyst.RowsRequest: analysis.RowsRequest,
    analyst.ExplainRequest: analysis.ExplainRequest,
    analyst.LogRequest: analysis.LogRequest,
    analyst.EntriesRequest: analysis.EntriesRequest,
    analyst.Document: analysis.Document,
    analyst.RowsChunk: analysis.RowsChunk,
}
"""A new message is a dataclass, a protocol buffer with fields of the same names, and a line here."""
_VALUES = {made.DESCRIPTOR.full_name: kind for kind, made in _MESSAGES.items()}


def _write(value: Any) -> Message:
    """The protocol buffer of a value, and of those in it; None is absence, a proof is its parts."""
    if isinstance(value, tuple):
        return pb.MerkleProof(parts=value)
    if isinstance(value, site.Enrolment | site.Offered):
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
    if kind in (site.Enrolment, site.Offered):
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
def _write_outcome(value: site.Enrolment | site.Offered) -> Message:
    if isinstance(value, site.Offered):
        if value.acceptance is not None:
            return pb.OfferReply(acceptance=_write(value.acceptance))
        return pb.OfferReply(offset=value.offset)
    if value.state == "pending":
        return pb.EnrolReply(pending=pb.EnrolReply.Pending(fingerprint=value.fingerprint))
    if value.state == "accepted":
        return pb.EnrolReply(accepted=pb.EnrolReply.Accepted(certificate_pem=value.certificate_pem))
    return pb.EnrolReply(refused=pb.EnrolReply.Refused(reason=value.reason))


def _read_outcome(message: Any) -> site.Enrolment | site.Offered:
    outcome = message.WhichOneof("outcome")
    if outcome == "offset":
        return site.Offered(offset=message.offset)
    if outcome == "acceptance":
        return site.Offered(acceptance=_read(message.acceptance))
    if outcome is not None:
        ((part, text),) = getattr(message, outcome).ListFields() or [(None, "")]
        return site.Enrolment(state=outcome, **({} if part is None else {part.name: text}))
    if isinstance(message, pb.OfferReply):
        raise SchemaRefusal("the answer to an offer must be an offset or an acceptance")
    raise SchemaRefusal("an enrolment must be pending, accepted or refused")


def encode(value: Any) -> bytes:
    """The bytes of a message.

    >>> decode(site.StudyRequest, encode(site.StudyRequest(study="heart")))
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
    "Enrol": Method(request=site.EnrolRequest, reply=site.Enrolment),
    "FetchPlan": Method(request=site.StudyRequest, reply=site.SignedDocument),
    "Anchor": Method(request=site.SignedDocument, reply=site.AnchorReceipt),
    "Offer": Method(request=site.OfferRequest, reply=site.Offered),
    "Upload": Method(request=site.Chunk, reply=site.Acceptance, stream=True),
    "Status": Method(request=site.StudyRequest, reply=site.Holdings),
    "Withdraw": Method(request=site.SignedDocument, reply=site.Withdrawn),
    "RevokeStanding": Method(request=site.SignedDocument, reply=site.Revoked),
    "Growth": Method(request=site.GrowthRequest, reply=site.Growth),
    "Watch": Method(request=site.WatchRequest, reply=site.LogView),
    "ReportGap": Method(request=site.GapReport, reply=site.GapNoted),
    "NextRound": Method(request=site.RoundRequest, reply=site.RoundReply),
    "UploadRound": Method(request=site.RoundAnswer, reply=site.RoundReceipt),
    "Clock": Method(request=site.SignedDocument, reply=site.SignedDocument),
    "Renew": Method(request=site.SignedDocument, reply=site.Renewed),
    "Authorities": Method(request=site.AuthoritiesRequest, reply=site.Authorities),
    "Membership": Method(request=site.MembershipRequest, reply=site.MembershipReply),
    "Limits": Method(request=site.LimitsRequest, reply=site.CoordinatorLimits),
}
ANALYSIS: Mapping[str, Method] = {
    "Studies": Method(request=analyst.StudiesRequest, reply=analyst.Document),
    "Describe": Method(request=analyst.DescribeRequest, reply=analyst.Document),
    "Releases": Method(request=analyst.ReleasesRequest, reply=analyst.Document),
    "Query": Method(request=analyst.QueryRequest, reply=analyst.Document),
    "Rows": Method(request=analyst.RowsRequest, reply=analyst.RowsChunk, reply_stream=True),
    "Explain": Method(request=analyst.ExplainRequest, reply=analyst.Document),
    "Log": Method(request=analyst.LogRequest, reply=analyst.Document),
    "Watch": Method(request=site.WatchRequest, reply=site.LogView),
    "Entries": Method(request=analyst.EntriesRequest, reply=analyst.Document),
}
