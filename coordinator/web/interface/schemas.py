"""JSON Schemas of what the interface answers, by name: what a client may count on. More may stand there than is named.

`open_` objects hold names of the study (a site, a column, a digest) as their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.web.interface.jobs import ENDED
from shared.wire.message_limits import LABELS

__all__ = ["SCHEMAS"]

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
DAY: Schema = {"type": "string", "format": "date"}
ANY: Schema = {"type": "object"}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(said: str = "", optional: tuple[str, ...] = (), **parts: Schema) -> Schema:
    """An object whose parts are all there but the `optional` ones."""
    required = [name for name in parts if name not in optional]
    return {"type": "object", **({"description": said} if said else {}), "properties": parts, "required": required}


def _open(schema: Schema, said: str) -> Schema:
    return {"type": "object", "description": said, "additionalProperties": schema}


_INTERVAL = _object(lb=_or_null(NUMBER), ub=_or_null(NUMBER), reason=TEXT)
_TABLE: dict[str, Any] = {
    "heads": _list(TEXT),
    "worded": _list({"type": "string", "description": "Heads of words; the others hold numbers."}),
    "rows": _list(_list(_or_null(TEXT))),
}
_ON_SCALE = "On the scale of the analysis: `scale` log means the logarithm of a ratio. `shown` is as it is read."
_MORE = {**_or_null(COUNT), "description": "`after` of the next page; null on the last, and where all was asked for."}
SCHEMAS: Mapping[str, Schema] = {
    "Studies": _object(
        analyst=TEXT,
        role={"enum": ["analyst", "lead", "auditor"]},
        studies=_list(
            _object(
                study=TEXT,
                title=TEXT,
                purpose=TEXT,
                version=COUNT,
                plan_hash=DIGEST,
                posture=TEXT,
                returning=TEXT,
                waves=_list(COUNT),
                delivered=_list(COUNT),
                sites=_open(
                    _object(waves=_list(COUNT), n=_open(COUNT, "Wave to persons."), posture=TEXT),
                    "By name of the site.",
                ),
                last_day=_or_null(DAY),
                estimands=_open(TEXT, "Name of a planned analysis to its question."),
                row_download=FLAG,
                note=TEXT,
            )
        ),
        revocations=_list(_object("A site whose access ended at a place of the log.", site=TEXT, log_index=COUNT)),
        closings=_list(_object("A wave closed or opened again.", study=TEXT, wave=COUNT, closed=FLAG, log_index=COUNT)),
    ),
    "Dictionary": _object(
        study=TEXT,
        version=COUNT,
        columns=_list(
            _object(
                name=TEXT,
                kind=TEXT,
                label=TEXT,
                unit=TEXT,
                lower=_or_null(NUMBER),
                upper=_or_null(NUMBER),
                levels=_list({"type": ["string", "number", "boolean"]}),
                missing=TEXT,
                decimals=_or_null(COUNT),
                missing_share=_open(NUMBER, "Site to the share of its values that are missing."),
                lacking=_list(TEXT),
            )
        ),
    ),
    "Release": _object(
        release_id=TEXT,
        wave=COUNT,
        site=TEXT,
        n=COUNT,
        plan_version=COUNT,
        plan_hash=DIGEST,
        bundle_sha256=DIGEST,
        bundle_bytes=COUNT,
        log_index=COUNT,
        log_root=TEXT,
        accepted_day=DAY,
        withdrawn=TEXT,
        receipt=ANY,
        receipt_hash=DIGEST,
        epsilon=_or_null(NUMBER),
        epsilon_given=TEXT,
    ),
    "Releases": _object(
        study=TEXT,
        releases=_list(_ref("Release")),
        held=_open(_list(TEXT), "Site to the releases that its table is made of now."),
        plans=_open(ANY, "Version to the plan."),
        more=_MORE,
    ),
    "Proof": _object(
        "As RFC 9162 has it: a leaf is SHA-256 of a zero byte and the entry.",
        head={"type": "string", "description": "Envelope of the newest signed head of the log."},
        index=COUNT,
        entry={"type": "string", "description": "Canonical JSON: kind, bundle, site, statement."},
        proof=_list(DIGEST),
        growth=_list(DIGEST),
    ),
    "Check": _object(
        "A question in one spelling.",
        estimand=TEXT,
        planned={"type": "string", "description": "Name of the planned analysis that it is; blank for none."},
        label={"enum": list(LABELS)},
        kind=TEXT,
    ),
    "Pooled": _object(
        _ON_SCALE,
        beta=NUMBER,
        se=_or_null(NUMBER),
        ci_lb=_or_null(NUMBER),
        ci_ub=_or_null(NUMBER),
        pval=_or_null(NUMBER),
        zval=_or_null(NUMBER),
        tau2=_or_null(NUMBER),
        I2=_or_null(NUMBER),
        H2=_or_null(NUMBER),
        QE=_or_null(NUMBER),
        QEp=_or_null(NUMBER),
        method=TEXT,
        test=TEXT,
        shown=_object(estimate=NUMBER, ci_lb=_or_null(NUMBER), ci_ub=_or_null(NUMBER)),
    ),
    "Estimate": _object(
        "One site's. `yi` is null, with a reason, where a site could not answer. Variances are of its square scale.",
        site=TEXT,
        study=TEXT,
        wave=COUNT,
        term=TEXT,
        n=COUNT,
        scale=TEXT,
        yi=_or_null(NUMBER),
        vi_sampling=_or_null(NUMBER),
        vi_privacy=_or_null(NUMBER),
        vi_naive=_or_null(NUMBER),
        vi_common=_or_null(NUMBER),
        reason=TEXT,
    ),
    "Answer": _object(
        "An estimate per site and the pooled result. With a question that was harmonised, also the mapped answer.",
        ("curves", "table", "joint"),
        result={"type": "string", "description": "Its id: the hash of all that it depends on."},
        study=TEXT,
        wave=COUNT,
        title=TEXT,
        caption=TEXT,
        estimand=TEXT,
        effect=TEXT,
        scale=TEXT,
        term=TEXT,
        terms=_list(TEXT),
        level=NUMBER,
        k=COUNT,
        asked=ANY,
        planned=_or_null(TEXT),
        pooled=_ref("Pooled"),
        fixed=_ref("Pooled"),
        naive=_ref("Pooled"),
        prediction_interval=_INTERVAL,
        I2_interval=_INTERVAL,
        tau2_interval=_INTERVAL,
        estimates=_list(_ref("Estimate")),
        cautions=_list(TEXT),
        notes=_list(TEXT),
        excluded=_list(ANY),
        columns=_open(ANY, "A fact about the sites to its text for each of them."),
        provenance=_object(
            bundles=_open(TEXT, "SHA-256 of a bundle to its site."),
            rests_on=_open(TEXT, "The same of all that the id depends on."),
            receipts=_list(DIGEST),
            plan=_object(version=COUNT, hash=DIGEST),
            code=_open(TEXT, "Package to version."),
            log=ANY,
            optional=("log",),
        ),
        table={"type": "array", "items": ANY, "description": "Every term, each pooled by itself."},
        joint={
            "type": "array",
            "items": ANY,
            "description": "Of every term with several coefficients, these pooled together: beta, vcov, psi, the "
            "joint test, and each site's yi and cov; of an interaction the slopes of each column by the other.",
        },
        curves=_or_null({"type": "object", "description": "Of a km question: the curves at public times."}),
    ),
    "Looks": _object(
        "Each look is on the analysis scale; the table is as it is read.",
        **_TABLE,
        study=TEXT,
        title=TEXT,
        effect=TEXT,
        scale=TEXT,
        sentence=TEXT,
        alpha=NUMBER,
        spending=TEXT,
        stopped={"type": "string", "description": "The first look beyond its boundary; blank for none."},
        looks=_list(
            _object(
                label=TEXT,
                time=NUMBER,
                information=NUMBER,
                z=NUMBER,
                boundary=NUMBER,
                alpha_spent=NUMBER,
                nominal=NUMBER,
                beta=NUMBER,
                ci_lb=NUMBER,
                ci_ub=NUMBER,
                crossed=FLAG,
            )
        ),
        asked=ANY,
        results=_open(TEXT, "Wave to the id of its answer."),
        missing=_open(TEXT, "Wave to why it has no look."),
        notes=_list(TEXT),
    ),
    "Explanation": _object(
        result=TEXT,
        answer=_ref("Answer"),
        stale=_list({"type": "string", "description": "Why the same question has other releases behind it today."}),
        releases=_list(_ref("Release")),
        plan=ANY,
        asked_by=_list(_ref("Line")),
    ),
    "Words": _object(
        "Text in the order in which it is read; numbers off the analysis scale.",
        **_TABLE,
        line=TEXT,
        models=_list(_list(TEXT)),
        sentences=_list(TEXT),
        cautions=_list({"type": "string", "description": "To be read before any figure."}),
        notes=_list(TEXT),
        left_out=_list(TEXT),
        terms={"oneOf": [_object(**_TABLE, cautions=_list(TEXT)), {"type": "null"}]},
        sensitivity=_object(**_TABLE),
        mapped=_list(TEXT),
        described=_or_null(_object(**_TABLE, heading=TEXT, sentences=_list(TEXT), cautions=_list(TEXT))),
        methods=_list({"type": "string", "description": "Sentences for a paper's methods section."}),
    ),
    "AnswerSite": _object(
        reason={"type": "string", "description": "Why it has no estimate; blank where it has one."},
        facts=_list({**_list(TEXT), "description": "Name and words of a fact."}),
        without={**_object(**_TABLE), "type": ["object", "null"]},
        influence={**_object(**_TABLE), "type": ["object", "null"]},
        sentences=_list(TEXT),
        cautions=_list(TEXT),
    ),
    "Receipts": _object(
        study=TEXT,
        receipts=_list(
            _object(
                release_id=TEXT,
                site=TEXT,
                wave=COUNT,
                n=COUNT,
                log_index=COUNT,
                bundle_sha256=DIGEST,
                receipt_hash=DIGEST,
                accepted_day=DAY,
                withdrawn=TEXT,
                mechanism=TEXT,
                posture=TEXT,
                price=TEXT,
                translation=TEXT,
                covered=_list(TEXT),
                not_covered=_list(TEXT),
                since={
                    **_object(
                        "What changed since the site's newest release of an earlier wave; null of a first.",
                        wave=COUNT,
                        changes=_list({**_list(TEXT), "description": "A fact, what it was, and what it is."}),
                        covered=_list(TEXT),
                        no_longer_covered=_list(TEXT),
                        not_covered=_list(TEXT),
                        no_longer_open=_list(TEXT),
                    ),
                    "type": ["object", "null"],
                },
            )
        ),
        more=_MORE,
    ),
    "Waves": _object(
        study=TEXT,
        version=COUNT,
        today=DAY,
        sites=_list(TEXT),
        waves=_list(
            _object(
                number=COUNT,
                opens=DAY,
                closes=DAY,
                state={"enum": ["planned", "open", "overdue", "closed"]},
                quorum=COUNT,
                delivered=COUNT,
                revision=_or_null(COUNT),
                missing=_list(TEXT),
                cells=_list(_object(site=TEXT, state=TEXT, day=TEXT)),
            )
        ),
        waiting_days=_or_null({"type": "integer"}),
        waiting_wave=_or_null(COUNT),
        waiting_for=_list(TEXT),
        words=_open(TEXT, "State of a site in a wave to what it means."),
        of={**COUNT, "description": "Sites, on all pages."},
        pages=COUNT,
    ),
    "Sites": _object(
        study=TEXT,
        sites=_list(
            _object(
                site=TEXT,
                state={"enum": ["pending", "accepted", "refused", "revoked"]},
                fingerprint=TEXT,
                reason=TEXT,
                certificate_days=_or_null({"type": "integer"}),
                warning=TEXT,
                mend=TEXT,
                releases=COUNT,
                withdrawn=COUNT,
                quarantined=_list({"type": "string", "description": "Why each release was set aside, as a code."}),
                last_day=_or_null(DAY),
            )
        ),
        of=COUNT,
        pages=COUNT,
    ),
    "Budgets": _object(
        "Sites whose releases print alike are one course. What no total holds is under `open`, in words.",
        study=TEXT,
        version=COUNT,
        cap=NUMBER,
        delta=NUMBER,
        waves=_list(COUNT),
        courses=_list(
            _object(
                sites=_list(TEXT),
                spent=_list({"type": "array", "description": "Wave, and ε spent by then."}),
                planned=_list({"type": "array", "description": "Wave, and ε by then, to the first above the cap."}),
                given=TEXT,
                last_affordable={**_or_null(COUNT), "description": "Null where no further wave fits under the cap."},
            )
        ),
        open=_open(TEXT, "Site to what stands in place of its price."),
    ),
    "Line": _object(
        number=COUNT,
        study=TEXT,
        analyst=TEXT,
        role=TEXT,
        day=DAY,
        kind={"enum": ["query", "refused", "rows"]},
        label={"enum": ["", *LABELS]},
        planned=TEXT,
        question=ANY,
        subject=TEXT,
        stale=FLAG,
    ),
    "Log": _object(
        study=TEXT,
        lines=_list(_ref("Line")),
        next={**_or_null(COUNT), "description": "Give it as `after` for the next lines; null at the end."},
    ),
    "LogView": _object(
        "The signed head and proofs; hashes in hexadecimal digits.",
        head={"type": "string", "description": "The head's signed envelope, JSON; blank while nothing is logged."},
        growth=_list(_list(DIGEST)),
        entries=_list(_object(index=COUNT, entry=TEXT, proof=_list(DIGEST))),
        restored=_list(_object(entry=ANY, growth=_list(DIGEST))),
    ),
    "Entries": _object(head=TEXT, entries=_list(TEXT)),
    "Job": _object(
        optional=("result", "answer", "problem"),
        job=TEXT,
        study=TEXT,
        state={"enum": ["waiting", "computing", *ENDED]},
        seconds=NUMBER,
        result=TEXT,
        answer=_ref("Answer"),
        problem=_ref("Problem"),
    ),
    "SignIn": _object(
        "A sign-in that waits for a person. They open the address, and type or compare the code.",
        sign_in={"type": "string", "description": "Secret of whoever asks on."},
        user_code=TEXT,
        verification_uri=TEXT,
        verification_uri_complete={"type": "string", "description": "With the code in it; may be blank."},
        expires_in={"type": "number", "description": "Seconds."},
        interval={"type": "number", "description": "Seconds between two questions."},
    ),
    "Pass": _object(
        "A token's file, as `coordinator analyst add` writes it; the token is a secret.",
        address={"type": "string", "description": "host:port of gRPC; blank for none."},
        server_name=TEXT,
        ca_pem=TEXT,
        witness=TEXT,
        name=TEXT,
        role=TEXT,
        studies=_list(TEXT),
        expires=DAY,
        token=TEXT,
    ),
    "Problem": _object(
        "Why there is no answer (RFC 9457).",
        type={"type": "string", "format": "uri-reference"},
        title=TEXT,
        status=COUNT,
        detail=TEXT,
        code={"type": "string", "description": "Stable; the operators' manual lists them."},
        must={"type": "string", "description": "What must hold."},
        given={"type": "string", "description": "What was given."},
        next_step={"type": "string", "description": "What to do."},
    ),
}
