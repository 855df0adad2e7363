"""Flower's messages as the two sides of a federated training use them, and all that is not Flower's public interface.

Flower (1.41, 1.42) is the engine of the training (`ClientApp`, `ServerApp`, `Grid`, strategies), not of releases.
Its public interface is `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.serverapp.strategy`. One thing needed
here is not in it: a message addressed outside of Flower's own runtime, which fills in run and sender from the process
that it has started. `addressed` does that through the ``metadata`` argument, which Flower marks as internal; the
contract is held by tests/mechanisms/joint_training/test_federation.py against the versions named above.

A vector of weights travels as one array. It is read by comparing its head with the one that such a vector must have,
and not by a parser: what a stranger's header claims about sizes is never believed.
"""

from __future__ import annotations

import io
import logging
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import sha256_hex
from shared.errors import Refusal, SchemaRefusal, TooLarge, refusal_from_code

if TYPE_CHECKING:
    from flwr.app import Array, Error, Message, RecordDict

__all__ = [
    "ARRAYS",
    "CONFIG",
    "METRICS",
    "WEIGHTS",
    "addressed",
    "carried",
    "carrying",
    "digest",
    "prepare",
    "refusal",
    "refused",
    "unanswered",
    "vector",
    "weights",
]

ROUND = "round"
ARRAYS, CONFIG, METRICS, WEIGHTS = "arrays", "config", "metrics", "weights"
"""Names of the records in a message, and of the one array in ``arrays``."""
ERROR = 1000
"""Added to a refusal's exit code: Flower's own error codes are small numbers."""
UNANSWERED = "E_REFUSED"
_LONGEST_REASON = 500
DAY = 86_400.0


@lru_cache(maxsize=1)
def prepare() -> None:
    """Before Flower's first import: no telemetry, no look for updates, and a log of warnings only."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    import flwr.app  # noqa: F401  (makes the logger)

    logging.getLogger("flwr").setLevel(logging.WARNING)


def addressed(
    content: RecordDict | Error,
    *,
    message_type: str,
    source: int,
    target: int,
    name: str = "",
    answers: str = "",
    group: str = "",
    ttl: float = DAY,
) -> Message:
    """A message as Flower's runtime would address it.

    Args:
        content: records, or an error.
        message_type: ``train``.
        source: node id of the sender, 0 for the coordinator; target: of the recipient.
        name: the message's own id.
        answers: id of the message that it answers.
        group: the round.
        ttl: seconds for which it is valid.
    """
    import time

    from flwr.app import Error, Message, Metadata

    metadata = Metadata(
        run_id=0,
        message_id=name,
        src_node_id=source,
        dst_node_id=target,
        reply_to_message_id=answers,
        group_id=group,
        created_at=time.time(),
        ttl=ttl,
        message_type=message_type,
    )
    # An answer to a message takes the sending task from it; outside of Flower's runtime there is none.
    part: dict[str, Any] = {"error": content} if isinstance(content, Error) else {"content": content}
    return Message(metadata=metadata, **part)  # type: ignore[call-overload, no-any-return]


# -- weights ------------------------------------------------------------------------------------------------------
def vector(weights: NDArray[np.float64]) -> Array:
    """One vector of doubles, as it travels."""
    from flwr.app import Array

    return Array(np.ascontiguousarray(weights, dtype="<f8"))


def weights(array: Array, length: int) -> NDArray[np.float64]:
    """The vector of `length` doubles in an array from a stranger.

    Raises: TooLarge, SchemaRefusal; nothing has been allocated then.
    """
    head = _head(length)
    size = len(head) + 8 * length
    if len(array.data) > size:
        raise TooLarge(f"the weights must be {size} bytes", given=f"{len(array.data)}")
    if len(array.data) != size or not array.data.startswith(head):
        raise SchemaRefusal(f"the weights must be one vector of {length} doubles", given="another array")
    return np.frombuffer(array.data, dtype="<f8", offset=len(head)).astype(np.float64)


@lru_cache(maxsize=16)
def _head(length: int) -> bytes:
    """The header that NumPy writes before the values of such a vector."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": (length,)})
    return out.getvalue()


def digest(weights: NDArray[np.float64]) -> str:
    """SHA-256 of a vector: how a question and its answer are told from others.

    >>> digest(np.zeros(2))[:8]
    '374708ff'
    """
    return sha256_hex(np.ascontiguousarray(weights, dtype="<f8").tobytes())


# -- what the deployment runtime carries -----------------------------------------------------------------------------
def carrying(envelope: bytes, content: bytes) -> RecordDict:
    """Signed bytes and what they are about, as the content of a message."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({ROUND: ConfigRecord({"envelope": envelope, "content": content})})


def carried(message: Message) -> tuple[bytes, bytes]:
    """The reverse, of a message from anybody: (envelope, content).

    Raises: SchemaRefusal, TooLarge; or the refusal that the message is.
    """
    if message.has_error():
        raise refusal(message.error)
    from shared.wire.message_limits import ROUND_CAP, SIGNED_CAP

    records = message.content
    said = records.config_records.get(ROUND)
    if set(records) != {ROUND} or said is None or set(said) != {"envelope", "content"}:
        raise SchemaRefusal("a message must carry an envelope and its content", given="something else")
    envelope, content = said["envelope"], said["content"]
    if not isinstance(envelope, bytes) or not isinstance(content, bytes):
        raise SchemaRefusal("a message must carry bytes", given="something else")
    if len(envelope) > SIGNED_CAP or len(content) > ROUND_CAP:
        raise TooLarge(f"a message must carry at most {ROUND_CAP} bytes", given=f"{len(content)}")
    return envelope, content


def unanswered() -> Error:
    """All that a site's part in the deployment runtime says where it has no signed answer: the same of every reason.

    A refusal's text has exact counts, names and totals; even which refusal it is can be a fact of records. None of it
    is signed, charged or approved, and the network keeps what it is told.
    """
    from flwr.app import Error

    return Error(code=ERROR, reason=UNANSWERED)


# -- refusals -----------------------------------------------------------------------------------------------------
def refused(error: Refusal) -> Error:
    """A refusal as Flower's error, between the parts of one process: its text is not for a network (`unanswered`)."""
    from flwr.app import Error

    return Error(code=ERROR + error.exit_code, reason=f"{error.code} {error}"[:_LONGEST_REASON])


def refusal(error: Error) -> Refusal:
    """The reverse, of an error that may have been written by anybody."""
    code, _, text = (error.reason or "").partition(" ")
    plain = "".join(c if c.isprintable() else " " for c in text[:_LONGEST_REASON]).strip()
    return refusal_from_code(code, plain or f"the site answered with Flower's error {error.code}")
