"""Messages of a federated training: one signed order per round, one signed reply per site.

A round's question (`RoundOrder`) is signed by the coordinator's witness key, which every invitation pins, and names the
SHA-256 of the weights beside it: a site can show later what it was asked. An answer (`Answered`) is signed by the
site's release key and names the digest of the very question it answers, the global weights with it, so that it is
worth nothing in another round, training, study or site. Beside both lies the content in a form of its own: a line of
canonical JSON with the number of weights and a few named numbers, then the weights as plain little-endian floats.
Nothing here says what to run: numbers are all that a site is ever sent.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from shared.base.canonical import CanonicalForm, canonical_json, is_digest, parse_json, sha256_hex
from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import CATALOGUE, IntegrityRefusal, SchemaRefusal, TooLarge, TrainingRefusal
from shared.wire.message_limits import ROUND_CAP, must

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ANSWER_TYPE",
    "ORDER_TYPE",
    "PASSED_BY",
    "Answered",
    "RoundOrder",
    "node_id",
    "number_of",
    "open_answer",
    "open_order",
    "pack",
    "place_of",
    "require_content",
    "step_of",
    "unpack",
]

ORDER_TYPE = "application/vnd.tributary.round+json"
ANSWER_TYPE = "application/vnd.tributary.round-answer+json"
PASSED_BY = "a site must be among those with which the sum goes on"
"""What must hold of a site for the sum to ask it for more: the refusal of one that was left behind."""
FORMAT = b"tributary-weights/1\n"
HEADER_CAP = 4096
NUMBERS_CAP = 16
MOST_ROUNDS = 10_000
_SITES = 128
"""Most sites of one sum."""
MOST = 1 << 53
"""A count in a header is below it. JSON has integers that no double holds: turned into one, they are an error."""
_NUMBER = re.compile("[a-z][a-z0-9_-]{0,31}")
_WORD = re.compile("[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class RoundOrder(CanonicalForm):
    """The coordinator's order in a training or a sum: the weights of a round, the finished flow, a step of the sum.

    Args:
        kind: ``train`` asks for an answer; ``finished`` brings the flow, and `round` is then the last one; ``sum`` asks
            one site for its answer to one step of a secure sum, and `round` is `number_of` both.
        plan_hash: of the plan whose ``[federated]`` part it is, or whose sum.
        content_sha256, content_bytes: of what comes beside it.
    """

    WHAT = "a round"
    CAP = HEADER_CAP

    study: str
    plan_hash: str
    kind: Literal["train", "finished", "sum"]
    round: int
    content_sha256: str
    content_bytes: int

    def __post_init__(self) -> None:
        _must_name(self)
        must(self.kind in ("train", "finished", "sum"), "a round must be asked or finished")

    def sign(self, key: SigningKey) -> Envelope:
        """Envelope signed with the coordinator's key."""
        return Envelope.sign(ORDER_TYPE, self.to_bytes(), [key])

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes: what an answer names."""
        return sha256_hex(self.to_bytes())

    def answered(self, site: str, content: bytes, code: str = "") -> Answered:
        """A site's reply to it, with this content, or with the code of the refusal for which it gives none."""
        return Answered(
            study=self.study,
            plan_hash=self.plan_hash,
            site=site,
            round=self.round,
            asked=self.digest,
            content_sha256=sha256_hex(content),
            content_bytes=len(content),
            code=code,
        )


@dataclass(frozen=True, kw_only=True)
class Answered(CanonicalForm):
    """A site's reply to one round.

    Args:
        asked: digest of the question (`RoundOrder.digest`).
        code: blank with weights; else the code of the refusal for which the site gives none in this round.
        content_sha256, content_bytes: of the weights beside it.
    """

    WHAT = "a round"
    CAP = HEADER_CAP

    study: str
    plan_hash: str
    site: str
    round: int
    asked: str
    content_sha256: str
    content_bytes: int
    code: str = ""

    def __post_init__(self) -> None:
        _must_name(self)
        must(bool(_WORD.fullmatch(self.site)), "an answer must name its site")
        must(is_digest(self.asked), "an answer must name what was asked by its SHA-256")
        must(not self.code or self.code in CATALOGUE, "an answer without weights must have a known code")
        must(bool(self.code) == (self.content_bytes == 0), "an answer must have weights, or the code of a refusal")

    def sign(self, key: SigningKey) -> Envelope:
        """Envelope signed with the site's key."""
        return Envelope.sign(ANSWER_TYPE, self.to_bytes(), [key])


def _must_name(said: RoundOrder | Answered) -> None:
    texts = [getattr(said, item.name) for item in fields(said) if item.type == "str"]
    must(all(isinstance(text, str) for text in texts), "the texts of a round must be text")
    must(bool(_WORD.fullmatch(said.study)), "a round must name its study")
    digests = (said.plan_hash, said.content_sha256)
    must(all(map(is_digest, digests)), "a round must name plan and content by their SHA-256")
    counts = (said.round, said.content_bytes)
    must(all(type(count) is int for count in counts), "a round's number and size must be counts")
    must(1 <= said.round <= MOST_ROUNDS, f"a round's number must be in 1..{MOST_ROUNDS}")
    if not 0 <= said.content_bytes <= ROUND_CAP:
        raise TooLarge(f"a round's content must have at most {ROUND_CAP} bytes", given=f"{said.content_bytes}")


def open_order(envelope: bytes, content: bytes, witness: PublicKey) -> RoundOrder:
    """Verify an order: signed by the pinned coordinator, over the content that it names.

    Raises: SignatureRefusal, SchemaRefusal, TooLarge, IntegrityRefusal.
    """
    signed = Envelope.from_bytes(envelope)
    said = RoundOrder.from_bytes(signed.require(ORDER_TYPE, {witness.key_id: witness}))
    require_content(said, content)
    return said


def open_answer(envelope: bytes, content: bytes, release_key: PublicKey) -> Answered:
    """Verify a site's reply: signed by the site, over the content that it names. Raises: as of `open_order`."""
    signed = Envelope.from_bytes(envelope)
    said = Answered.from_bytes(signed.require(ANSWER_TYPE, {release_key.key_id: release_key}))
    require_content(said, content)
    return said


def require_content(said: RoundOrder | Answered, content: bytes) -> None:
    """Refuse other bytes than those that were signed. Raises: IntegrityRefusal."""
    if (len(content), sha256_hex(content)) != (said.content_bytes, said.content_sha256):
        raise IntegrityRefusal("the content of a round must be the one that was signed", given="other bytes")


def number_of(step: int, place: int) -> int:
    """The number of a sum's order: of its step, from 1 on, and of the site at that place among its members.

    >>> number_of(5, 0), step_of(number_of(5, 127)), number_of(5, 127) < number_of(6, 0)
    (641, 5, True)
    """
    return _SITES * step + place + 1


def step_of(number: int) -> int:
    """The step of a sum that an order has by its number."""
    return (number - 1) // _SITES


def place_of(number: int) -> int:
    """The place of the site that is asked, by the order's number."""
    return (number - 1) % _SITES


def node_id(release_key: PublicKey) -> int:
    """The number by which Flower knows a site: 63 bits of the SHA-256 of its release key, the same for ever."""
    return int.from_bytes(hashlib.sha256(release_key.hex.encode()).digest()[:8], "big") >> 1


def pack(weights: NDArray[np.floating[Any]], numbers: Mapping[str, float]) -> bytes:
    """Weights and a few named numbers as plain bytes.

    Raises: TrainingRefusal, where a weight is not finite; TooLarge.

    >>> import numpy as np
    >>> weights, numbers = unpack(pack(np.array([1.5, -2.0]), {"steps": 4}))
    >>> weights.tolist(), numbers
    ([1.5, -2.0], {'steps': 4})
    """
    import numpy as np

    kind = "<f4" if weights.dtype == np.float32 else "<f8"
    flat = np.ascontiguousarray(weights, dtype=kind)
    if flat.ndim != 1 or not flat.size:
        raise SchemaRefusal("a flow's weights must be one list of numbers", given=f"{flat.ndim} dimensions")
    if not np.isfinite(flat).all():
        raise TrainingRefusal("every weight must be a finite number", given="one that is not")
    header = canonical_json({"dtype": kind, "count": int(flat.size), "numbers": dict(numbers)})
    packed = FORMAT + header + b"\n" + flat.tobytes()
    if len(packed) > ROUND_CAP:
        raise TooLarge(
            f"a flow's weights must have at most {ROUND_CAP} bytes",
            given=f"{len(packed)}",
            next_step="Plan fewer or smaller layers under [training].",
        )
    return packed


def unpack(content: bytes) -> tuple[NDArray[np.floating[Any]], dict[str, float]]:
    """The reverse of `pack`: (weights, numbers). What is claimed is compared with what is there before it is made.

    Weights that are not finite are read: whoever sent them is told so by name. Raises: SchemaRefusal, TooLarge.
    """
    import numpy as np

    if len(content) > ROUND_CAP:
        raise TooLarge(f"a flow's weights must have at most {ROUND_CAP} bytes", given=f"{len(content)}")
    end = content.find(b"\n", len(FORMAT), len(FORMAT) + HEADER_CAP)
    must(content.startswith(FORMAT) and end > 0, "a round's content must be weights in the agreed form")
    text = content[len(FORMAT) : end]
    said = parse_json(text, cap=HEADER_CAP)
    whole = isinstance(said, dict) and said.keys() == {"dtype", "count", "numbers"}
    must(whole and said["dtype"] in ("<f4", "<f8"), "weights must be described by type, count and numbers")
    numbers, count = said["numbers"], said["count"]
    must(isinstance(numbers, dict) and len(numbers) <= NUMBERS_CAP, f"at most {NUMBERS_CAP} numbers may come along")
    must(all(map(_plain, numbers.values())), f"what comes along must be finite numbers, counts below {MOST}")
    must(all(map(_NUMBER.fullmatch, numbers)), "what comes along must be named numbers")
    start = end + 1
    width = int(said["dtype"][-1])
    if type(count) is not int or count < 1 or count * width != len(content) - start:
        raise SchemaRefusal("as many weights must come as are claimed", given="another number of bytes")
    return np.frombuffer(content, dtype=said["dtype"], offset=start).astype(said["dtype"][1:]), numbers


def _plain(value: object) -> bool:
    """True if this is a finite number, and a count that a double holds exactly."""
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and abs(value) < MOST
