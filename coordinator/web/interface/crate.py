"""An answer with all that stands behind it in one file: a Research Object Crate (RO-Crate 1.1), zipped.

Source: RO-Crate Metadata Specification 1.1.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from shared.base.canonical import sha256_hex

__all__ = ["METADATA", "crate"]

METADATA = "ro-crate-metadata.json"
_KINDS = {"json": "application/json", "csv": "text/csv", "svg": "image/svg+xml", "txt": "text/plain"}
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same answer gives the same bytes


def crate(explained: Mapping[str, Any], words: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """The crate of an answer, as the bytes of a zip; the same for the same arguments.

    Args:
        explained: result of `AnalysisService.explain`: answer, releases with receipts, plan, who asked.
        words: the same answer as a person reads it.
        files: name to bytes of what else belongs to it: figures, tables.
    """
    answer = explained["answer"]
    held = {
        "answer.json": (_text(answer), "The answer as it was given: an estimate per site, and the pooled result."),
        "plan.json": (_text(explained["plan"]), "The study's plan that it rests on."),
        "releases.json": (_text(explained["releases"]), "The releases behind it, with their receipts."),
        "questions.json": (_text(explained["asked_by"]), "Lines of the record: who asked, when, and as what."),
        "methods.txt": ((" ".join(words["methods"]) + "\n").encode(), "A paragraph for a paper's methods section."),
    }
    held |= {name: (data, "Figure or table of the answer.") for name, data in files.items()}
    parts = [
        {
            "@id": name,
            "@type": "File",
            "name": name,
            "description": said,
            "encodingFormat": _KINDS[name.rpartition(".")[2]],
            "contentSize": str(len(data)),
            "sha256": sha256_hex(data),
        }
        for name, (data, said) in sorted(held.items())
    ]
    days = [line["day"] for line in explained["asked_by"]]
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": answer["title"],
        "description": f"{answer.get('caption', '')} {words['line']}.".strip(),
        "identifier": explained["result"],
        "datePublished": max(days, default="unknown"),
        "license": "No licence is granted by this file; see the study's plan for who may use the releases.",
        "mainEntity": {"@id": "answer.json"},
        "hasPart": [{"@id": part["@id"]} for part in parts],
        "mentions": [{"@id": "#computation"}],
    }
    about = {
        "@id": METADATA,
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    bundles = [f"urn:sha256:{one['bundle_sha256']}" for one in explained["releases"]]
    code = answer["provenance"]["code"]
    software = [
        {"@id": f"#{name}", "@type": "SoftwareApplication", "name": name, "softwareVersion": version}
        for name, version in sorted(code.items())
    ]
    action = {
        "@id": "#computation",
        "@type": "CreateAction",
        "name": answer["asked"]["estimand"],
        "instrument": [{"@id": one["@id"]} for one in software],
        "object": [{"@id": bundle} for bundle in bundles],
        "result": {"@id": "answer.json"},
    }
    origins = [
        {"@id": bundle, "@type": "CreativeWork", "name": f"Privatised release of {one['site']}, wave {one['wave']}"}
        for bundle, one in zip(bundles, explained["releases"], strict=True)
    ]
    graph = [about, root, *parts, action, *software, *origins]
    made = {METADATA: _text({"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph})}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (made | {name: data for name, (data, _) in sorted(held.items())}).items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()
