"""The JSON Schemas of docs/schemas, written from the types that the programs read and write.

    python deploy/schemas.py [OUT]

One each of plan, receipt, statement, checks, and a site's risk appetite. They say what is written: nothing else is let
in, and what may be left out is named by the tests, which hold them against documents of every kind.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shared.mechanisms.kinds import KINDS, kind
from shared.plans import plan as plans
from shared.plans.dictionary import Column, Dictionary
from shared.plans.repeated_rows import RepeatedRows
from shared.releases.receipt import Receipt
from shared.releases.statement import Statement
from site_agent.config import Limits, SiteBudget, SiteFloors
from site_agent.release.checks import Check

ROOT = Path(__file__).resolve().parents[1]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
WORD: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
DAY: Schema = {"type": "string", "format": "date"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
ABSENT = {
    plans.StudyPlan: {"federated", "flow", "expected", "retention", "quasi_identifiers"},
    Receipt: {"trained", "hospitals", "mapping"},
    RepeatedRows: {"visits"},
}
"""Fields that are left out where they say nothing, so that what was signed before they came keeps its bytes."""


def schema_of(annotation: Any) -> Schema:
    """The schema of a type, as its values stand in canonical JSON."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return {}
    if annotation in PLAIN:
        return {"type": PLAIN[annotation]}
    if annotation is dt.date:
        return DAY
    if annotation is Dictionary:
        columns = {"type": "array", "items": object_of(Column)}
        properties = {"name": {"type": "string"}, "version": COUNT, "columns": columns}
        return closed({**properties, "repeated": object_of(RepeatedRows)}, optional={"repeated"})
    if annotation is plans.MechanismPlan:
        return {"oneOf": [mechanism_of(name) for name in KINDS]}
    if dataclasses.is_dataclass(annotation):
        return object_of(annotation)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(part) for part in parts]}
    if origin is tuple and parts[-1] is Ellipsis:
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": list(map(schema_of, parts)), "minItems": len(parts), "items": False}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(parts[1])}
    if origin is not None and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(parts[0])}
    raise TypeError(f"no schema for {annotation}")


def object_of(made: Any, **instead: Schema) -> Schema:
    """The schema of a dataclass; `instead` is said of a field in the place of its type's."""
    hints = get_type_hints(made)
    later = {*getattr(made, "later", ()), *getattr(made, "before", {}), *ABSENT.get(made, ())}
    if made is Column:  # what is at its default is left out
        later |= {item.name for item in dataclasses.fields(made) if item.default is not dataclasses.MISSING}
    names = [item.name for item in dataclasses.fields(made)]
    properties = {name: instead.get(name) or schema_of(hints[name]) for name in names}
    return closed(properties, optional=later)


def mechanism_of(name: str) -> Schema:
    """The schema of one mechanism's settings in a plan."""
    made = kind(name)
    found = object_of(made)
    found["properties"]["mechanism"] = {"const": name}
    found["required"] = sorted({*found["required"], "mechanism"} - {"zeros"})
    return found


def closed(properties: Mapping[str, Schema], *, optional: Any = ()) -> Schema:
    """An object with these properties and no other."""
    required = sorted(set(properties) - set(optional))
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def titled(name: str, title: str, body: Schema) -> Schema:
    """A schema with its dialect, id and title."""
    return {"$schema": DIALECT, "$id": f"urn:tributary:schema:{name}:1", "title": title, **body}


def appetite() -> Schema:
    """Schema of a site's risk appetite: its floors, mechanisms, caps and approvers (`site-agent ig-pack`)."""
    number = {"type": ["number", "null"]}
    words = {"type": "array", "items": {"type": "string"}}
    study = {
        "study": WORD,
        "plan_version": COUNT,
        "plan_hash": DIGEST,
        "mechanism": {"enum": list(KINDS)},
        "posture": {"enum": list(plans.POSTURES)},
        "epsilon_cap": {"type": "number", "exclusiveMinimum": 0},
        "delta": {"type": "number", "exclusiveMinimum": 0},
        "spent_epsilon": number,
        "epsilon_given": {"type": "string"},
        "floors": object_of(Limits),
        "keep_until": {"anyOf": [DAY, {"type": "null"}]},
        "approved_by": words,
        "standing_approval": {"type": "boolean"},
    }
    return closed(
        {
            "format": {"const": "tributary-risk-appetite/1"},
            "site": WORD,
            "day": DAY,
            "recipient": WORD,
            "floors": object_of(SiteFloors),
            "budget": object_of(SiteBudget),
            "mechanisms": {"type": "array", "items": {"enum": list(KINDS)}},
            "approvers": words,
            "leads_needed": COUNT,
            "paused": {"type": "boolean"},
            "studies": {"type": "array", "items": closed(study)},
        }
    )


def schemas() -> dict[str, Schema]:
    """Every published schema, by name."""
    digests = {name: DIGEST for name in ("plan_hash", "bundle_sha256", "receipt_sha256", "ledger_head")}
    words = {name: WORD for name in ("study", "site", "release_id", "recipient", "author")}
    counts = {name: COUNT for name in ("wave", "plan_version", "bundle_bytes")}
    statement = object_of(Statement, **digests, **words, **counts)
    curve = {"type": "array", "items": {"type": ["number", "null"]}}
    receipt = object_of(
        Receipt,
        **{name: DIGEST for name in ("plan_hash", "dictionary_hash")},
        **{name: WORD for name in ("study", "site", "release_id", "recipient")},
        **{name: COUNT for name in ("plan_version", "wave", "n", "drawn", "d", "hospitals")},
        rdp=curve,
    )
    content = closed(
        {
            "format": {"const": "tributary-checks/1"},
            "release_id": WORD,
            "bundle_sha256": DIGEST,
            "snapshot": {"type": "string"},
            "left_out": COUNT,
            "checks": {"type": "array", "items": object_of(Check)},
            "limits": closed({item.name: {"type": "number"} for item in dataclasses.fields(Limits)}),
            "versions": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    )
    checks = closed({"release_id": WORD, "bundle_sha256": DIGEST, "content": content})
    return {
        "plan": titled("plan", "A study plan, as leads sign it", object_of(plans.StudyPlan)),
        "receipt": titled("receipt", "The receipt in a bundle", receipt),
        "statement": titled("statement", "The statement over a bundle that agent and approvers sign", statement),
        "checks": titled("checks", "What an approver is shown of a release's checks; it stays at the site", checks),
        "risk-appetite": titled("risk-appetite", "What a site accepts, and who decides", appetite()),
    }


def main(out: Path) -> None:
    """Write them."""
    out.mkdir(parents=True, exist_ok=True)
    for name, body in schemas().items():
        (out / f"{name}.json").write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "schemas")
