"""An audit export as a Five Safes RO-Crate: who asked, who agreed, what was drawn, who let it out.

RO-Crate 1.1 with the terms of the profile 0.4 (https://w3id.org/5s-crate/0.4), whose words are for a workflow that a
requester has run: here the workflow is the release that the signed plan fixes, and each draw is one run of it. Times
are days, as the ledger tells them. What the profile knows and this record cannot say (funding, ORCIDs) is left out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json

if TYPE_CHECKING:
    from site_agent.desk import Desk

__all__ = ["PROFILE", "crate"]

PROFILE = "https://w3id.org/5s-crate/0.4"
TERMS = "https://w3id.org/shp#"
DONE, FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"
KINDS = {".json": "application/json", ".html": "text/html", ".py": "text/x-python"}


def crate(desk: Desk, study: str, names: Sequence[str], today: dt.date) -> bytes:
    """``ro-crate-metadata.json`` of an export's folder, so that other tools know what they hold."""
    site = f"#site-{desk.config.site}"
    plans = [name for name in names if name.startswith("plans/") and "approval" not in name]
    actions = [*_agreed(desk, study), *_drawn(desk, study), *_checked(desk, study)]
    people = sorted({one["agent"]["@id"] for one in actions if one["agent"]["@id"].startswith("#person-")})
    about = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": PROFILE},
        "name": f"Audit record of study {study} at site {desk.config.site}",
        "description": "Ledger, plans, approvals, receipts and checks of privatised releases. Holds no rows.",
        "datePublished": today.isoformat(),
        "license": "All rights stay with the site; the record is for who audits it.",
        "hasPart": [{"@id": name} for name in names],
        "mainEntity": {"@id": "#release-workflow"},
        "mentions": [{"@id": one["@id"]} for one in actions],
        "sourceOrganization": {"@id": f"#project-{study}"},
        "publisher": {"@id": site},
    }
    workflow = {
        "@id": "#release-workflow",
        "@type": "CreativeWork",
        "name": f"The privatised release that the signed plan of {study} fixes",
        "isBasedOn": [{"@id": name} for name in plans],
    }
    known = [
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Five Safes RO-Crate profile"},
        {"@id": f"#project-{study}", "@type": "Project", "name": study, "member": [{"@id": site}]},
        {"@id": site, "@type": "Organization", "name": desk.config.site},
        {"@id": "#agent", "@type": "SoftwareApplication", "name": "Tributary site agent", "provider": {"@id": site}},
        *({"@id": one, "@type": "Person", "name": one.removeprefix("#person-")} for one in people),
    ]
    parts = [{"@id": name, "@type": "File", "encodingFormat": KINDS[Path(name).suffix]} for name in names]
    graph = [about, root, workflow, *known, *actions, *parts]
    return canonical_json({"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph})


def _agreed(desk: Desk, study: str) -> list[dict[str, Any]]:
    """Sign-off of each approved version of the plan."""
    found = []
    for version in range(1, desk.plans.highest(study) + 1):
        given = desk.plans.approval(study, version)
        if given is not None:
            name = f"Sign-off of version {version} of the plan: approved"
            found.append(_assessed(f"#signoff-{version}", "SignOff", name, f"#person-{given.approver}", given.day))
    return found


def _drawn(desk: Desk, study: str) -> list[dict[str, Any]]:
    """Each release as a run of the workflow; its result is not in the crate, but its receipt is."""
    return [
        {
            "@id": f"#run-{hold.release_id}",
            "@type": "CreateAction",
            "name": f"Release {hold.release_id} of wave {hold.wave}: {hold.state}",
            "endTime": hold.day,
            "agent": {"@id": "#agent"},
            "instrument": {"@id": "#release-workflow"},
            "result": {"@id": f"releases/{hold.release_id}/receipt.json"},
            "actionStatus": FAILED if hold.state == "burnt" else DONE,
        }
        for hold in desk.ledger.holds(study)
        if hold.bundle_sha256
    ]


def _checked(desk: Desk, study: str) -> list[dict[str, Any]]:
    """The disclosure check of each release by each person who decided on it."""
    found = []
    for hold in desk.ledger.holds(study):
        for number, given in enumerate(hold.approvals if hold.bundle_sha256 else ()):
            how = "approved in advance, within limits" if given.standing else "approved"
            name = f"Disclosure check of release {hold.release_id}: {how}"
            identity = f"#disclosure-{hold.release_id}-{number + 1}"
            found.append(_assessed(identity, "DisclosureCheck", name, f"#person-{given.name}", hold.day))
    return found


def _assessed(identity: str, kind: str, name: str, agent: str, day: str) -> dict[str, Any]:
    return {
        "@id": identity,
        "@type": "AssessAction",
        "additionalType": {"@id": f"{TERMS}{kind}"},
        "name": name,
        "endTime": day,
        "object": {"@id": "./"},
        "instrument": {"@id": "#release-workflow"},
        "agent": {"@id": agent},
        "actionStatus": DONE,
    }
