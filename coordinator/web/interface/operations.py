"""The operations of the HTTPS interface, one record each: the routes and the OpenAPI document are made of these.

An operation is a method of `coordinator.services.analysis.AnalysisService` under an address. Its request is the value
that the method takes: what stands in braces in the path is read there, the rest from the query string, or from the
JSON body of a POST. Nothing is answered here that the service does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property
from typing import Any, get_type_hints

from shared.base.canonical import closed, is_word
from shared.errors import SchemaRefusal
from shared.wire.analyst_messages import (
    AnswerSiteRequest,
    BudgetsRequest,
    DescribeRequest,
    EntriesRequest,
    ExplainRequest,
    FigureRequest,
    LogRequest,
    LooksFigureRequest,
    LooksRequest,
    MonitorRequest,
    ProofRequest,
    QueryRequest,
    ReleasesRequest,
    RowsRequest,
    StudiesRequest,
    StudySitesRequest,
)
from shared.wire.message_limits import must
from shared.wire.site_messages import WatchRequest

__all__ = ["API", "FILES", "JOBS", "OPERATIONS", "SIGN_IN", "JobRequest", "Operation"]

API = "v1"


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A question that is being answered, by the id that it was given."""

    job: str

    def __post_init__(self) -> None:
        must(is_word(self.job), "a job's id must be a plain word")


@dataclass(frozen=True, kw_only=True)
class SignInRequest:
    """Request to sign in without a token, with an account at the provider."""


@dataclass(frozen=True, kw_only=True)
class SignedInRequest:
    """A sign-in that was begun, and may have ended.

    Args:
        sign_in: the secret that was given at its beginning.
    """

    sign_in: str

    def __post_init__(self) -> None:
        must(is_word(self.sign_in), "sign_in must be as it was given")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation.

    Args:
        name: its name in the OpenAPI document; of `OPERATIONS` also that of the method of the service, or of
            `coordinator.web.interface.beside`, which answers it.
        verb, path: as in HTTP; what stands in braces is a field of the request.
        summary: its result, in a sentence.
        request: the class of its request.
        reply: name of the schema of its answer, or the media type of a file.
        gives: more media types, by the suffix that asks for them.
        open: True where no token is shown, since it is about getting one.
    """

    name: str
    verb: str = "GET"
    path: str
    summary: str
    request: type
    reply: str
    gives: Mapping[str, str] | None = None
    open: bool = False

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """Fields of the request that stand in the path."""
        return tuple(field.name for field in fields(self.request) if f"{{{field.name}}}" in self.path)

    @cached_property
    def elsewhere(self) -> Mapping[str, tuple[Field[Any], Any]]:
        """The other fields, by name, each with its type."""
        hints = get_type_hints(self.request)
        return {
            field.name: (field, hints[field.name]) for field in fields(self.request) if field.name not in self.in_path
        }

    @property
    def stream(self) -> bool:
        """True where the answer is a file, in pieces."""
        return "/" in self.reply

    def read(self, path: Mapping[str, str], query: Mapping[str, str], body: Any = None) -> Any:
        """The request that was made.

        Args:
            path: values of the fields in braces. query: the query string. body: the JSON body of a POST.
        Raises: SchemaRefusal: a field nobody reads, one that lacks, or one of another type.
        """
        if self.verb == "POST":
            if query:
                raise SchemaRefusal("a POST must hold its settings in its body", given="a query string")
            if not isinstance(body, Mapping):
                raise SchemaRefusal("the body must be a JSON object", given=type(body).__name__)
            given: Mapping[str, Any] = body
        else:
            given = {name: _from_text(name, text, self.elsewhere) for name, text in query.items()}
        closed(given, self.elsewhere, where="a request", refusal=SchemaRefusal)
        for name, (field, kind) in self.elsewhere.items():
            if name in given:
                _require_type(name, given[name], kind)
            elif field.default is MISSING and field.default_factory is MISSING:
                raise SchemaRefusal(f"a request must set {name}", given="none")
        return self.request(**{name: path[name] for name in self.in_path}, **given)


def _from_text(name: str, text: str, known: Mapping[str, tuple[Field[Any], Any]]) -> Any:
    kind = known[name][1] if name in known else str
    if kind in (int, int | None):
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise SchemaRefusal(f"{name} must be a whole number", given=repr(text[:40]))
        return int(text)
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind == tuple[int, ...]:
        return tuple(
            _from_text("number", one, {"number": (known[name][0], int)}) for one in filter(None, text.split(","))
        )
    return text


_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    int | None: ((int, type(None)), "a whole number or null"),
    Mapping[str, str]: ((dict,), "an object of texts"),
    tuple[int, ...]: ((tuple,), "whole numbers"),
}


def _require_type(name: str, value: Any, kind: Any) -> None:
    allowed, words = _TYPES[kind]
    good = isinstance(value, allowed) and (kind is bool or not isinstance(value, bool))
    if good and kind == Mapping[str, str]:
        good = all(isinstance(one, str) for one in value.values())
    if not good:
        raise SchemaRefusal(f"{name} must be {words}", given=type(value).__name__)


_STUDY = f"/{API}/studies/{{study}}"
ZIP = "application/zip"
PARQUET = "application/vnd.apache.parquet"
FILES: Mapping[str, str] = {"svg": "image/svg+xml", "pdf": "application/pdf", "png": "image/png", "csv": "text/csv"}
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="studies",
        path=f"/{API}/studies",
        summary="The studies that the token is for: sites, waves, persons, postures, planned analyses.",
        request=StudiesRequest,
        reply="Studies",
    ),
    Operation(
        name="describe",
        path=f"{_STUDY}/dictionary",
        summary="The dictionary, or one column of it: meaning, unit, and the share of missing values per site.",
        request=DescribeRequest,
        reply="Dictionary",
    ),
    Operation(
        name="releases",
        path=f"{_STUDY}/releases",
        summary="Releases of a study with their receipts, all or page by page; withdrawn ones are marked.",
        request=ReleasesRequest,
        reply="Releases",
    ),
    Operation(
        name="rows",
        path=f"{_STUDY}/releases/{{release_id}}/rows",
        summary="The privatised rows of one release as Parquet, where the plan lets analysts have them; recorded.",
        request=RowsRequest,
        reply=PARQUET,
    ),
    Operation(
        name="proof",
        path=f"{_STUDY}/releases/{{release_id}}/proof",
        summary="A release's entry in the log, and the hashes that lead from it to the root of the newest signed head.",
        request=ProofRequest,
        reply="Proof",
    ),
    Operation(
        name="check",
        verb="POST",
        path=f"{_STUDY}/checks",
        summary="A question in one spelling, without asking it: no table is read and no line is written.",
        request=QueryRequest,
        reply="Check",
    ),
    Operation(
        name="query",
        verb="POST",
        path=f"{_STUDY}/queries",
        summary="One question: an estimate per site, and the pooled result. It stands in the study's record.",
        request=QueryRequest,
        reply="Answer",
    ),
    Operation(
        name="monitor",
        verb="POST",
        path=f"{_STUDY}/looks",
        summary="One question as of each wave, against boundaries for all looks; every wave's stands in the record.",
        request=MonitorRequest,
        reply="Looks",
    ),
    Operation(
        name="looks",
        path=f"{_STUDY}/looks",
        summary="Answers given as of several waves, against the same boundaries; nothing is asked.",
        request=LooksRequest,
        reply="Looks",
    ),
    Operation(
        name="looks_figure",
        path=f"{_STUDY}/looks.{{suffix}}",
        summary="The same, drawn: each z against its boundary, over the time of the plan.",
        request=LooksFigureRequest,
        reply=FILES["svg"],
        gives={name: FILES[name] for name in ("svg", "pdf", "png")},
    ),
    Operation(
        name="explain",
        path=f"{_STUDY}/results/{{result_id}}",
        summary="All that stands behind a result: releases, receipts, plan, code, who asked, and whether it is stale.",
        request=ExplainRequest,
        reply="Explanation",
    ),
    Operation(
        name="crate",
        path=f"{_STUDY}/results/{{result_id}}/crate.zip",
        summary="A result with all that stands behind it, as a Research Object Crate (RO-Crate 1.1).",
        request=ExplainRequest,
        reply=ZIP,
    ),
    Operation(
        name="figure",
        path=f"{_STUDY}/results/{{result_id}}/{{kind}}.{{suffix}}",
        summary="A figure of a result: forest, one of its companions (funnel, leave-one-out …), curve; or its table.",
        request=FigureRequest,
        reply=FILES["svg"],
        gives=FILES,
    ),
    Operation(
        name="words",
        path=f"{_STUDY}/results/{{result_id}}/words",
        summary="A result as a person reads it: tables of text, sentences, cautions.",
        request=ExplainRequest,
        reply="Words",
    ),
    Operation(
        name="site",
        path=f"{_STUDY}/results/{{result_id}}/sites/{{site}}",
        summary="One site of a result: its estimate in its parts, its influence, and the others pooled without it.",
        request=AnswerSiteRequest,
        reply="AnswerSite",
    ),
    Operation(
        name="receipts",
        path=f"{_STUDY}/receipts",
        summary="Releases with their receipts in words, in the order of the log; all or page by page.",
        request=ReleasesRequest,
        reply="Receipts",
    ),
    Operation(
        name="waves",
        path=f"{_STUDY}/waves",
        summary="Who has delivered in which wave; all sites or page by page.",
        request=StudySitesRequest,
        reply="Waves",
    ),
    Operation(
        name="sites",
        path=f"{_STUDY}/sites",
        summary="For leads: the sites of a study, their keys and certificates, and what arrived from each.",
        request=StudySitesRequest,
        reply="Sites",
    ),
    Operation(
        name="budgets",
        path=f"{_STUDY}/budgets",
        summary="What the releases have spent of the plan's ε, wave by wave, and the last wave that it allows.",
        request=BudgetsRequest,
        reply="Budgets",
    ),
    Operation(
        name="log",
        path=f"{_STUDY}/log",
        summary="The record of a study: every question in order, answered or refused.",
        request=LogRequest,
        reply="Log",
    ),
    Operation(
        name="watch",
        path=f"/{API}/log",
        summary="The log of what was accepted: its signed head, with proof that it grew from sizes seen before.",
        request=WatchRequest,
        reply="LogView",
    ),
    Operation(
        name="entries",
        path=f"/{API}/log/entries",
        summary="The log's entries in order, for leads and auditors.",
        request=EntriesRequest,
        reply="Entries",
    ),
)
JOBS: tuple[Operation, ...] = (
    Operation(
        name="begin",
        verb="POST",
        path=f"{_STUDY}/jobs",
        summary="Ask a question that may take long: its job, at once. The question stands in the study's record.",
        request=QueryRequest,
        reply="Job",
    ),
    Operation(
        name="job",
        path=f"/{API}/jobs/{{job}}",
        summary="How far a job is, and its answer or its refusal once there is one.",
        request=JobRequest,
        reply="Job",
    ),
    Operation(
        name="events",
        path=f"/{API}/jobs/{{job}}/events",
        summary="The same as server-sent events, one for each change of its state, until it has ended.",
        request=JobRequest,
        reply="text/event-stream",
    ),
    Operation(
        name="cancel",
        verb="DELETE",
        path=f"/{API}/jobs/{{job}}",
        summary="End a job; what was asked stays in the record.",
        request=JobRequest,
        reply="Job",
    ),
)
SIGN_IN: tuple[Operation, ...] = (
    Operation(
        name="sign_in",
        verb="POST",
        path=f"/{API}/sign-in",
        summary="Begin a sign-in by the hospital's provider without a browser: a code to type there (RFC 8628).",
        request=SignInRequest,
        reply="SignIn",
        open=True,
    ),
    Operation(
        name="signed_in",
        verb="POST",
        path=f"/{API}/sign-in/ask",
        summary="What a token's file holds, once the person has signed in; 202 while they have not.",
        request=SignedInRequest,
        reply="Pass",
        open=True,
    ),
)
