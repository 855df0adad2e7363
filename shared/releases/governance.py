"""Parts of an information governance pack that both sides write: controls, bill of materials, pages.

What stands in a pack is read from the settings and plans in force when it is written. Of a control it says what the
programs do, and as plainly what is left to the organisation: a pack accredits nobody.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from shared import DISTRIBUTION, software_version
from shared.base.canonical import canonical_json
from shared.errors import StateRefusal
from shared.terminal import inert

__all__ = ["CONTROLS", "SATRE", "bill_of_materials", "component", "controls_page", "host_of", "in_table", "write_pack"]

SATRE = "SATRE 2.0.0, https://satre-specification.readthedocs.io/en/v2.0.0/"
Met = Literal["met", "in part", "organisation"]

CONTROLS: Sequence[tuple[str, str, Met, str, str]] = (
    ("1.3.2", "data processing assessment", "in part", "dpia.md has the facts of each study", "the assessment itself"),
    ("1.3.5", "risk appetite is understood", "met", "risk-appetite.json, from the settings in force", "who reviews it"),
    (
        "1.4.4",
        "end of a project",
        "in part",
        "retention of the plan is enforced by deletion; the log stays",
        "archiving",
    ),
    (
        "1.4.6",
        "record of data assets",
        "in part",
        "tables by study, with the hash of each snapshot",
        "a site-wide record",
    ),
    ("3.1.05", "egress is approved", "met", "nothing leaves before a person has signed the exact bytes", ""),
    ("3.1.06", "egress by named people", "met", "registered approvers with keys of their own; roles.md", "naming them"),
    (
        "3.1.08",
        "record of data held",
        "in part",
        "the ledger names each release and its persons' number",
        "other copies",
    ),
    (
        "3.1.10",
        "proof of deletion",
        "in part",
        "tombstones in the log; deletion at the coordinator",
        "copies of analysts",
    ),
    (
        "3.1.12",
        "no unauthorised egress",
        "in part",
        "one outbound address, mutual TLS, no listener",
        "the firewall rule",
    ),
    ("3.3.02", "minimum necessary", "in part", "a plan fixes columns and bounds beforehand", "the judgement"),
    ("3.3.03", "outputs named at the outset", "met", "estimands, waves and mechanism stand in the signed plan", ""),
    ("3.3.04", "documented disclosure control", "met", "checks.json with each rule, threshold and outcome", ""),
    (
        "3.3.05",
        "assigned output checkers",
        "met",
        "approvers; author and approver apart where the floors ask",
        "training",
    ),
    ("3.3.06", "statistical basis", "met", "ε, δ and what they take as given, on every receipt", ""),
    ("3.3.07", "outputs not read by eye", "met", "bundles are tables in text forms; a trained flow has a receipt", ""),
    ("3.3.08", "automation with a human", "met", "a standing approval is signed by a person, within limits", ""),
    ("3.3.09", "machine-readable thresholds", "met", "checks.json and receipts have published JSON Schemas", ""),
    ("5.1.05", "decisions are portable", "met", "audit export, verified by a script of its own; RO-Crate", ""),
    ("5.1.06", "joining and leaving", "met", "invitation, revocation, rotation of keys; the log is kept", ""),
    ("5.3.01", "register of projects", "in part", "plans of the federation in one log", "the organisations' registers"),
    ("5.4.01", "common keys and PKI", "met", "one authority, pinned; changes are signed by leads", ""),
    ("5.4.02", "tested incident process", "in part", "faults and restores are rehearsed by commands", "people's drill"),
    ("5.4.04", "shared security logs", "in part", "one signed, append-only log that sites watch", "the hosts' logs"),
    ("5.6.01", "defined safe output", "met", "mechanism, ε and floors of the plan", ""),
)
"""Statement, what it asks in our words, how far the programs meet it, by what, and what is left to do."""


def bill_of_materials(name: str = DISTRIBUTION) -> dict[str, Any]:
    """Bill of materials (CycloneDX 1.6) of a distribution and all its installed dependencies.

    Extras are listed as far as they are installed. Raises: StateRefusal (the distribution is not installed).
    """
    try:
        main = distribution(name)
    except PackageNotFoundError:
        raise StateRefusal(
            "the program must be installed to list what it is made of",
            given=f"no distribution {name}",
            next_step="pip install it, from the wheelhouse for one.",
        ) from None
    found: dict[str, PackageMetadata] = {}
    edges: dict[str, list[str]] = {}
    waiting = [main]
    while waiting:
        here = waiting.pop()
        key = _named(here.metadata)
        if key in found:
            continue
        found[key], edges[key] = here.metadata, []
        for line in here.requires or ():
            try:
                part = distribution(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0])
            except PackageNotFoundError:
                continue
            edges[key].append(_named(part.metadata))
            waiting.append(part)
    components = [component(one) for key, one in sorted(found.items()) if key != _named(main.metadata)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, ' '.join(one['purl'] for one in components))}",
        "version": 1,
        "metadata": {"component": {**component(main.metadata), "type": "application"}},
        "components": components,
        "dependencies": [
            {"ref": _place(found[key]), "dependsOn": sorted({_place(found[to]) for to in edges[key]})}
            for key in sorted(found)
        ],
    }


def _named(metadata: PackageMetadata) -> str:
    return re.sub(r"[-_.]+", "-", metadata["Name"]).lower()


def _place(metadata: PackageMetadata) -> str:
    return f"pkg:pypi/{_named(metadata)}@{metadata['Version']}"


def component(metadata: PackageMetadata) -> dict[str, Any]:
    """A distribution as a library of CycloneDX, by its metadata; without a licence where they say none.

    The licence is the expression; else what stands in the field, unless that is a whole text, whose first line may be
    anything; else what the classifiers name.

    >>> from email import message_from_string
    >>> text = "Name: Part\\nVersion: 1\\nLicense: ====\\n  A text\\nClassifier: License :: OSI Approved :: MIT License"
    >>> component(message_from_string(text))["licenses"]
    [{'license': {'name': 'MIT License'}}]
    """
    place = _place(metadata)
    part: dict[str, Any] = {"type": "library", "bom-ref": place, "name": _named(metadata), "purl": place}
    part["version"] = metadata["Version"]
    found = _licences(metadata)
    return {**part, "licenses": found} if found else part


def _licences(metadata: PackageMetadata) -> list[dict[str, Any]]:
    expression, *_ = metadata.get_all("License-Expression", [""])
    if expression:
        return [{"expression": expression}]
    said, *_ = metadata.get_all("License", [""])
    lines = said.strip().splitlines()
    classes = metadata.get_all("Classifier", [])
    named = [one.rpartition(" :: ")[2] for one in classes if one.startswith("License :: ")]
    return [{"license": {"name": name[:100]}} for name in (named if named and len(lines) != 1 else lines[:1])]


def controls_page() -> str:
    """The control map as a page: what the programs do of each statement, and what is left."""
    states = [state for _, _, state, _, _ in CONTROLS]
    count = ", ".join(f"{states.count(one)} {one}" for one in ("met", "in part", "organisation") if one in states)
    rows = [
        (f"{number} {asks}", state, by, left or "nothing by the programs") for number, asks, state, by, left in CONTROLS
    ]
    return "\n".join(
        [
            "# Controls",
            "",
            f"Held against {SATRE}, by whoever wrote the programs and nobody else: {count}.",
            "Statements are named by number, in our words; the specification's own are what counts.",
            "Not assessed, and the organisation's in full: pillars 2 (computing technology) and 4 (supporting "
            "capabilities), and every statement of pillars 1, 3 and 5 that is not in this table.",
            "",
            *in_table(("statement", "state", "by what", "left to the organisation"), rows),
        ]
    )


def in_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a table in Markdown; what people typed breaks no cell."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[re.sub(r"[|<>`\r\n]+", " ", inert(str(cell))).replace("[", "\\[") for cell in row] for row in lines]
    return [f"| {' | '.join(row)} |" for row in cells]


def host_of(url: str) -> str:
    """The host and port of a URL, without a name and a password; blank where it names none.

    >>> host_of("https://agent:secret@proxy.example.org:3128/path")
    'proxy.example.org:3128'
    """
    found = re.match(r"[^/?#]*://(?:[^/?#]*@)?([^/?#]*)", url)
    return found[1] if found else ""


def write_pack(out: Path, files: Mapping[str, str | Mapping[str, Any]], *, about: str, day: dt.date) -> list[str]:
    """Write a pack into a new folder, with a page that says what it is; names of its files.

    Raises: StateRefusal (the folder holds something).
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StateRefusal("the folder of a pack must be new or empty", given=out.name, next_step="Name another.")
    out.mkdir(parents=True, exist_ok=True)
    index = [
        f"# {about}",
        "",
        f"Written on {day.isoformat()} by version {software_version()}, from the settings and plans in force then.",
        "It is for whoever assesses the processing. It decides nothing, and holds no record of a person.",
        "",
        *(f"- `{name}`" for name in sorted(files)),
    ]
    for name, content in {**files, "README.md": "\n".join(index)}.items():
        text = content if isinstance(content, str) else canonical_json(content).decode()
        (out / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return sorted([*files, "README.md"])
