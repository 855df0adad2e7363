"""The OpenAPI 3.1 document of the interface, made from its operations and the schemas of its answers."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any

from coordinator.web.interface.operations import API, JOBS, OPERATIONS, SIGN_IN, Operation
from coordinator.web.interface.problems import PROBLEM
from coordinator.web.interface.schemas import SCHEMAS
from shared import software_version
from shared.wire.analyst_messages import FIGURE_FILES
from shared.wire.message_limits import FORMULA_CAP, LABELS

__all__ = ["document"]

_TYPES: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    int | None: {"type": ["integer", "null"], "minimum": 0},
    Mapping[str, str]: {"type": "object", "additionalProperties": {"type": "string"}},
    tuple[int, ...]: {"type": "array", "items": {"type": "integer", "minimum": 1}},
}
_BOUNDS: Mapping[str, dict[str, Any]] = {
    "formula": {"minLength": 1, "maxLength": FORMULA_CAP},
    "level": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "label": {"enum": ["", *LABELS]},
    "study": {"pattern": "^[A-Za-z0-9_-]{1,64}$"},
    "suffix": {"enum": list(FIGURE_FILES)},
    "options": {"maxProperties": 16},
    "page": {"minimum": 1},
}
_PROBLEMS = {
    "400": "The request does not have its form, or the client is of another version.",
    "401": "No token, or one that is not in force.",
    "403": "The study, the role or the plan does not allow it.",
    "404": "There is no such thing.",
    "413": "The request is too large.",
    "422": "The question cannot be asked or answered so.",
    "429": "Too many calls; see Retry-After.",
    "503": "It could not be answered now; see Retry-After.",
}


@functools.cache
def document() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for one in (*OPERATIONS, *JOBS, *SIGN_IN):
        paths.setdefault(one.path, {})[one.verb.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tributary: the analysts' service",
            "version": software_version(),
            "description": "Pooled answers from privatised releases. No call reaches a hospital. A refusal is a "
            "problem document (RFC 9457). Fields are only ever added within a version: ignore those you do not know.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token in the file that coordinator analyst add wrote, or of a sign-in.",
                }
            },
            "responses": {
                status: {
                    "description": said,
                    "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
                for status, said in _PROBLEMS.items()
            },
        },
        "x-api": API,
    }


def _operation(one: Operation) -> dict[str, Any]:
    words = _words(one.request)
    made: dict[str, Any] = {"operationId": one.name, "summary": one.summary, "responses": _responses(one)}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {**_TYPES[str], **_BOUNDS.get(name, {})}}
        for name in one.in_path
    ]
    if one.open:
        made["security"] = []
    if one.verb == "POST":
        parts = {name: _schema(name, *found, words) for name, found in one.elsewhere.items()}
        body = {"type": "object", "properties": parts, "required": _required(one), "additionalProperties": False}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    else:
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in _required(one),
                **({"style": "form", "explode": False} if found[1] == tuple[int, ...] else {}),
                "schema": _schema(name, *found, words),
            }
            for name, found in one.elsewhere.items()
            if (one.name, name) != ("watch", "entries")  # refused over this port: they come with an answer
        ]
    return {**made, **({"parameters": parameters} if parameters else {})}


def _responses(one: Operation) -> dict[str, Any]:
    if one.stream:
        content: dict[str, Any] = {kind: {} for kind in (one.gives or {"": one.reply}).values()}
    else:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{one.reply}"}}}
    good = "202" if one.name == "begin" else "200"
    refused = {status: {"$ref": f"#/components/responses/{status}"} for status in _PROBLEMS}
    waiting = {"202": {"description": "Nobody has signed in yet."}} if one.name == "signed_in" else {}
    return {good: {"description": one.summary, "content": content}, **waiting, **refused}


def _required(one: Operation) -> list[str]:
    return [
        name
        for name, (field, _) in one.elsewhere.items()
        if field.default is MISSING and field.default_factory is MISSING
    ]


def _schema(name: str, field: Field[Any], kind: Any, words: Mapping[str, str]) -> dict[str, Any]:
    made = {**_TYPES[kind], **_BOUNDS.get(name, {})}
    if field.default is not MISSING and field.default != ():
        made["default"] = field.default
    if name in words:
        made["description"] = words[name]
    return made


def _words(kind: type) -> dict[str, str]:
    """Field of a class to its description, from the Args of the class's docstring.

    >>> from shared.wire.analyst_messages import QueryRequest
    >>> _words(QueryRequest)["term"]
    'which term to pool; the first when empty.'
    """
    args = inspect.getdoc(kind) or ""
    found: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}([\w, ]+): ((?:.+\n?)(?: {8}.+\n?)*)", args.partition("Args:\n")[2], re.M):
        found |= dict.fromkeys((name.strip() for name in names.split(",")), " ".join(text.split()))
    return found
