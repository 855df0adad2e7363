from shared.proto import collection_pb2 as _collection_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class StudiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("study", "column")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    study: str
    column: str
    def __init__(self, study: _Optional[str] = ..., column: _Optional[str] = ...) -> None: ...

class ReleasesRequest(_message.Message):
    __slots__ = ("study", "most", "after", "newest", "site", "wave")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    study: str
    most: int
    after: int
    newest: bool
    site: str
    wave: int
    def __init__(self, study: _Optional[str] = ..., most: _Optional[int] = ..., after: _Optional[int] = ..., newest: _Optional[bool] = ..., site: _Optional[str] = ..., wave: _Optional[int] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("study", "kind", "formula", "options", "term", "method", "test", "level", "wave", "as_of", "combine", "label", "harmonise", "to", "densities")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STUDY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    COMBINE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    HARMONISE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    DENSITIES_FIELD_NUMBER: _ClassVar[int]
    study: str
    kind: str
    formula: str
    options: _containers.ScalarMap[str, str]
    term: str
    method: str
    test: str
    level: float
    wave: int
    as_of: int
    combine: bool
    label: str
    harmonise: str
    to: str
    densities: str
    def __init__(self, study: _Optional[str] = ..., kind: _Optional[str] = ..., formula: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., term: _Optional[str] = ..., method: _Optional[str] = ..., test: _Optional[str] = ..., level: _Optional[float] = ..., wave: _Optional[int] = ..., as_of: _Optional[int] = ..., combine: _Optional[bool] = ..., label: _Optional[str] = ..., harmonise: _Optional[str] = ..., to: _Optional[str] = ..., densities: _Optional[str] = ...) -> None: ...

class RowsRequest(_message.Message):
    __slots__ = ("study", "release_id")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    study: str
    release_id: str
    def __init__(self, study: _Optional[str] = ..., release_id: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("study", "result_id")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    RESULT_ID_FIELD_NUMBER: _ClassVar[int]
    study: str
    result_id: str
    def __init__(self, study: _Optional[str] = ..., result_id: _Optional[str] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("study", "after")
    STUDY_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    study: str
    after: int
    def __init__(self, study: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class EntriesRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class Document(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class RowsChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
