"""Documents for analysts and the record: a release, a refused question, and a hash that names an answer's bundles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.store.rows import AcceptedRelease, Remembered
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.errors import (
    Refusal,
)
from shared.terminal import plain
from shared.wire.analyst_messages import (
    Document,
    QueryRequest,
)
from shared.wire.transport import MESSAGE_CAP

__all__ = ["FORMULA_LETTERS", "GivenAnswer", "document_of", "known_answers", "release_document", "set_hash", "tried"]

ANSWERS_KNOWN = 1024

FORMULA_LETTERS = 512  # letters of a refused formula that the record keeps


def tried(request: QueryRequest, refusal: Refusal) -> dict[str, Any]:
    """A refused question for the record: as it was written, cut where it is longer than a person would read."""
    how = {name: getattr(request, name) for name in ("kind", "term", "method", "test", "wave", "as_of")}
    if request.harmonise:
        how |= {"harmonised": request.harmonise, "to": request.to, "densities": request.densities}
    options = {name[:FORMULA_LETTERS]: value[:FORMULA_LETTERS] for name, value in sorted(request.options.items())[:8]}
    return {
        **how,
        "formula": request.formula[:FORMULA_LETTERS],
        "options": options,
        "why": str(refusal.outside)[:FORMULA_LETTERS],
    }


def set_hash(used: Mapping[str, str]) -> str:
    """One name for a set of bundles."""
    return sha256_hex(canonical_json(sorted(used)))[:16]


def document_of(document: Mapping[str, Any]) -> Document:
    """A reply of plain values, in canonical JSON."""
    return Document(json=canonical_json(plain(document)))


def release_document(release: AcceptedRelease) -> dict[str, Any]:
    """A release as the log has it, with its receipt and what it gives."""
    names = ("release_id", "wave", "site", "n", "plan_version", "plan_hash", "bundle_sha256", "bundle_bytes")
    more = ("log_index", "log_root", "accepted_day", "withdrawn", "receipt")
    document = {name: getattr(release, name) for name in (*names, *more)} | {"receipt_hash": release.receipt.hash}
    return document | {"epsilon": release.receipt.stated_epsilon, "epsilon_given": release.receipt.given}


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenAnswer:
    """What the record says of an answer that was given, and whether the log's proofs of its releases stand in it.

    Args:
        question: with its number. planned: name of the planned analysis, or blank.
    """

    question: Mapping[str, Any]
    planned: str
    proven: bool

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> GivenAnswer:
        """That of a document."""
        answer = document.get("summed", document["pooled"])
        question = {**document["asked"], "beta": answer["beta"]}
        return cls(question=question, planned=document["planned"] or "", proven="log" in document["provenance"])


def known_answers() -> Remembered[GivenAnswer]:
    """A memory of what is said of answers, by their bytes: half a megabyte to be read where sites are hundreds."""
    return Remembered(lambda data: GivenAnswer.of(parse_json(data, cap=MESSAGE_CAP)), ANSWERS_KNOWN)
