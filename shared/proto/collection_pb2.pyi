from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("token", "envelope")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    token: str
    envelope: bytes
    def __init__(self, token: _Optional[str] = ..., envelope: _Optional[bytes] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("pending", "accepted", "refused")
    class Pending(_message.Message):
        __slots__ = ("fingerprint",)
        FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
        fingerprint: str
        def __init__(self, fingerprint: _Optional[str] = ...) -> None: ...
    class Accepted(_message.Message):
        __slots__ = ("certificate_pem",)
        CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
        certificate_pem: str
        def __init__(self, certificate_pem: _Optional[str] = ...) -> None: ...
    class Refused(_message.Message):
        __slots__ = ("reason",)
        REASON_FIELD_NUMBER: _ClassVar[int]
        reason: str
        def __init__(self, reason: _Optional[str] = ...) -> None: ...
    PENDING_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    pending: EnrolReply.Pending
    accepted: EnrolReply.Accepted
    refused: EnrolReply.Refused
    def __init__(self, pending: _Optional[_Union[EnrolReply.Pending, _Mapping]] = ..., accepted: _Optional[_Union[EnrolReply.Accepted, _Mapping]] = ..., refused: _Optional[_Union[EnrolReply.Refused, _Mapping]] = ...) -> None: ...

class StudyRequest(_message.Message):
    __slots__ = ("study",)
    STUDY_FIELD_NUMBER: _ClassVar[int]
    study: str
    def __init__(self, study: _Optional[str] = ...) -> None: ...

class SignedDocument(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    def __init__(self, envelope: _Optional[bytes] = ...) -> None: ...

class AnchorReply(_message.Message):
    __slots__ = ("seq", "head", "index", "log_root", "signature")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_ROOT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    head: str
    index: int
    log_root: str
    signature: bytes
    def __init__(self, seq: _Optional[int] = ..., head: _Optional[str] = ..., index: _Optional[int] = ..., log_root: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("envelope", "standing")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    standing: bytes
    def __init__(self, envelope: _Optional[bytes] = ..., standing: _Optional[bytes] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("offset", "acceptance")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    acceptance: AcceptanceReply
    def __init__(self, offset: _Optional[int] = ..., acceptance: _Optional[_Union[AcceptanceReply, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("bundle_sha256", "offset", "data")
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    bundle_sha256: str
    offset: int
    data: bytes
    def __init__(self, bundle_sha256: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AcceptanceReply(_message.Message):
    __slots__ = ("study", "wave", "site", "release_id", "bundle_sha256", "log_index", "log_root", "accepted_day", "signature")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_ROOT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DAY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    study: str
    wave: int
    site: str
    release_id: str
    bundle_sha256: str
    log_index: int
    log_root: str
    accepted_day: str
    signature: bytes
    def __init__(self, study: _Optional[str] = ..., wave: _Optional[int] = ..., site: _Optional[str] = ..., release_id: _Optional[str] = ..., bundle_sha256: _Optional[str] = ..., log_index: _Optional[int] = ..., log_root: _Optional[str] = ..., accepted_day: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class WithdrawalReply(_message.Message):
    __slots__ = ("study", "wave", "site", "release_id", "bundle_sha256", "log_index", "log_root", "withdrawn_day", "signature")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_ROOT_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_DAY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    study: str
    wave: int
    site: str
    release_id: str
    bundle_sha256: str
    log_index: int
    log_root: str
    withdrawn_day: str
    signature: bytes
    def __init__(self, study: _Optional[str] = ..., wave: _Optional[int] = ..., site: _Optional[str] = ..., release_id: _Optional[str] = ..., bundle_sha256: _Optional[str] = ..., log_index: _Optional[int] = ..., log_root: _Optional[str] = ..., withdrawn_day: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RevocationReply(_message.Message):
    __slots__ = ("standing",)
    STANDING_FIELD_NUMBER: _ClassVar[int]
    standing: str
    def __init__(self, standing: _Optional[str] = ...) -> None: ...

class GrowthRequest(_message.Message):
    __slots__ = ("old_size", "size")
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    old_size: int
    size: int
    def __init__(self, old_size: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class GrowthReply(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, proof: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("sizes", "entries")
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    entries: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ..., entries: _Optional[_Iterable[int]] = ...) -> None: ...

class MerkleProof(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, parts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LoggedEntry(_message.Message):
    __slots__ = ("index", "entry", "proof")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    index: int
    entry: bytes
    proof: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, index: _Optional[int] = ..., entry: _Optional[bytes] = ..., proof: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogView(_message.Message):
    __slots__ = ("head", "growth", "entries", "restored")
    class Restoration(_message.Message):
        __slots__ = ("entry", "growth")
        ENTRY_FIELD_NUMBER: _ClassVar[int]
        GROWTH_FIELD_NUMBER: _ClassVar[int]
        entry: LoggedEntry
        growth: MerkleProof
        def __init__(self, entry: _Optional[_Union[LoggedEntry, _Mapping]] = ..., growth: _Optional[_Union[MerkleProof, _Mapping]] = ...) -> None: ...
    HEAD_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    head: bytes
    growth: _containers.RepeatedCompositeFieldContainer[MerkleProof]
    entries: _containers.RepeatedCompositeFieldContainer[LoggedEntry]
    restored: _containers.RepeatedCompositeFieldContainer[LogView.Restoration]
    def __init__(self, head: _Optional[bytes] = ..., growth: _Optional[_Iterable[_Union[MerkleProof, _Mapping]]] = ..., entries: _Optional[_Iterable[_Union[LoggedEntry, _Mapping]]] = ..., restored: _Optional[_Iterable[_Union[LogView.Restoration, _Mapping]]] = ...) -> None: ...

class GapReport(_message.Message):
    __slots__ = ("study", "lacking")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    study: str
    lacking: _containers.RepeatedCompositeFieldContainer[AcceptanceReply]
    def __init__(self, study: _Optional[str] = ..., lacking: _Optional[_Iterable[_Union[AcceptanceReply, _Mapping]]] = ...) -> None: ...

class GapNoted(_message.Message):
    __slots__ = ("lacking",)
    LACKING_FIELD_NUMBER: _ClassVar[int]
    lacking: int
    def __init__(self, lacking: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("holdings", "anchored", "reanchored", "anchor", "reminders")
    class Holding(_message.Message):
        __slots__ = ("study", "wave", "release_id", "state", "code", "reason", "log_index", "statement")
        STUDY_FIELD_NUMBER: _ClassVar[int]
        WAVE_FIELD_NUMBER: _ClassVar[int]
        RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        CODE_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
        STATEMENT_FIELD_NUMBER: _ClassVar[int]
        study: str
        wave: int
        release_id: str
        state: str
        code: str
        reason: str
        log_index: int
        statement: bytes
        def __init__(self, study: _Optional[str] = ..., wave: _Optional[int] = ..., release_id: _Optional[str] = ..., state: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., log_index: _Optional[int] = ..., statement: _Optional[bytes] = ...) -> None: ...
    class Reminder(_message.Message):
        __slots__ = ("wave", "day")
        WAVE_FIELD_NUMBER: _ClassVar[int]
        DAY_FIELD_NUMBER: _ClassVar[int]
        wave: int
        day: str
        def __init__(self, wave: _Optional[int] = ..., day: _Optional[str] = ...) -> None: ...
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    ANCHORED_FIELD_NUMBER: _ClassVar[int]
    REANCHORED_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    REMINDERS_FIELD_NUMBER: _ClassVar[int]
    holdings: _containers.RepeatedCompositeFieldContainer[StatusReply.Holding]
    anchored: AnchorReply
    reanchored: int
    anchor: bytes
    reminders: _containers.RepeatedCompositeFieldContainer[StatusReply.Reminder]
    def __init__(self, holdings: _Optional[_Iterable[_Union[StatusReply.Holding, _Mapping]]] = ..., anchored: _Optional[_Union[AnchorReply, _Mapping]] = ..., reanchored: _Optional[int] = ..., anchor: _Optional[bytes] = ..., reminders: _Optional[_Iterable[_Union[StatusReply.Reminder, _Mapping]]] = ...) -> None: ...

class RoundRequest(_message.Message):
    __slots__ = ("study", "flow")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    study: str
    flow: str
    def __init__(self, study: _Optional[str] = ..., flow: _Optional[str] = ...) -> None: ...

class RoundReply(_message.Message):
    __slots__ = ("envelope", "content")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    content: bytes
    def __init__(self, envelope: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class RoundAnswer(_message.Message):
    __slots__ = ("envelope", "content")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    content: bytes
    def __init__(self, envelope: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class RoundReceipt(_message.Message):
    __slots__ = ("study", "round", "answer")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    study: str
    round: int
    answer: str
    def __init__(self, study: _Optional[str] = ..., round: _Optional[int] = ..., answer: _Optional[str] = ...) -> None: ...

class RenewalReply(_message.Message):
    __slots__ = ("certificate_pem",)
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: str
    def __init__(self, certificate_pem: _Optional[str] = ...) -> None: ...

class AuthoritiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuthoritiesReply(_message.Message):
    __slots__ = ("statements",)
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    statements: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, statements: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MembershipRequest(_message.Message):
    __slots__ = ("statements",)
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    statements: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, statements: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MembershipReply(_message.Message):
    __slots__ = ("grants", "leads", "keys", "taken")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedScalarFieldContainer[bytes]
    leads: _containers.RepeatedScalarFieldContainer[bytes]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    taken: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, grants: _Optional[_Iterable[bytes]] = ..., leads: _Optional[_Iterable[bytes]] = ..., keys: _Optional[_Iterable[bytes]] = ..., taken: _Optional[_Iterable[str]] = ...) -> None: ...

class LimitsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LimitsReply(_message.Message):
    __slots__ = ("max_bundle", "max_table")
    MAX_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    MAX_TABLE_FIELD_NUMBER: _ClassVar[int]
    max_bundle: int
    max_table: int
    def __init__(self, max_bundle: _Optional[int] = ..., max_table: _Optional[int] = ...) -> None: ...
