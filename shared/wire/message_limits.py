"""The most that one message may hold, and the checks of form that messages share."""

from __future__ import annotations

from shared.errors import SchemaRefusal

__all__ = [
    "ASKED_CAP",
    "ASKED_LONGEST",
    "ASKED_WAITING",
    "CHUNK_BYTES",
    "FORMULA_CAP",
    "HOLDINGS_CAP",
    "LABELS",
    "OPENED_CAP",
    "PLACES",
    "PROOF_CAP",
    "RELEASES_CAP",
    "ROUND_CAP",
    "ROUND_ENVELOPE",
    "SIGNED_CAP",
    "SIZES_CAP",
    "STATEMENTS_CAP",
    "is_proof",
    "must",
]

LABELS = ("confirmatory", "exploratory")
# Entries of a log and lines of a record are numbered below this: a database's column of 32 bits is compared to no more.
PLACES = 1 << 31
CHUNK_BYTES = 256 << 10
# Longer than any question that the grammar takes; what is longer still is refused before it is read.
FORMULA_CAP = 4096
# Of an analyst's call: most bytes, most seconds, and most calls in the making at once.
ASKED_CAP, ASKED_LONGEST, ASKED_WAITING = 64 << 10, 300.0, 64
SIGNED_CAP = 4 << 20
# Most bytes of a flow's weights in one round: with its envelope it must fit into one message.
ROUND_CAP = 4 << 20
# Most bytes of what the sites of a secure sum opened.
OPENED_CAP = 4 << 20
# Most releases of one site in one study that an answer may name: more would not fit a message, and nobody has them.
HOLDINGS_CAP = 2048
# Most releases that one page of a list may be asked for.
RELEASES_CAP = 1000
# Most signed statements of one chain, and of one call.
STATEMENTS_CAP = 1000
# Most parts of a proof: one per doubling of the log.
PROOF_CAP = 128
# Most sizes of the log that one look at it may ask about.
SIZES_CAP = 64
ROUND_ENVELOPE = 16 << 10


def must(holds: bool, rule: str) -> None:
    """Raises: SchemaRefusal, naming the rule, unless it holds."""
    if not holds:
        raise SchemaRefusal(rule)


def is_proof(proof: tuple[bytes, ...]) -> bool:
    """True for the digests of a Merkle proof."""
    return len(proof) <= PROOF_CAP and all(len(part) == 32 for part in proof)
