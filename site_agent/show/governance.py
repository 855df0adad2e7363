"""`site-agent ig-pack`: what an information governance team asks of a site, from its settings and plans in force."""

from __future__ import annotations

import datetime as dt
import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shared.mechanisms.kinds import KINDS
from shared.privacy.stated import shown_price
from shared.releases.governance import bill_of_materials, controls_page, host_of, in_table
from shared.terminal import inert

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan
    from site_agent.desk import Desk

__all__ = ["pack", "risk_appetite"]


def pack(desk: Desk, today: dt.date) -> dict[str, str | dict[str, Any]]:
    """The files of a pack, by name."""
    studies = [(study, desk.plans.plan(study)) for study in desk.plans.studies()]
    return {
        "data-flow.mmd": _flow(desk, [plan for _, plan in studies]),
        "ports.md": _ports(desk),
        "roles.md": _roles(desk),
        "retention.md": _retention([plan for _, plan in studies]),
        "dpia.md": _dpia(desk, [plan for _, plan in studies], today),
        "threat-model.md": _threats(desk),
        "controls.md": controls_page(),
        "sbom.cdx.json": bill_of_materials(),
        "risk-appetite.json": risk_appetite(desk, today),
    }


def risk_appetite(desk: Desk, today: dt.date) -> dict[str, Any]:
    """Risk appetite of this site (budgets, floors, mechanisms, studies) and its approvers.

    Schema: docs/schemas/risk-appetite.json.
    """
    from site_agent.config import Limits

    config, studies = desk.config, []
    for study in desk.plans.studies():
        plan = desk.plans.plan(study)
        approval = desk.plans.approval(study, plan.version)
        spent = desk.ledger.study_total(study, plan.budget.delta)
        studies.append(
            {
                "study": study,
                "plan_version": plan.version,
                "plan_hash": plan.hash,
                "mechanism": plan.release.mechanism,
                "posture": plan.posture,
                "epsilon_cap": plan.budget.epsilon,
                "delta": plan.budget.delta,
                "spent_epsilon": spent.stated,
                "epsilon_given": spent.given,
                "floors": asdict(Limits.of(plan.floors, config.floors)),
                "keep_until": None if plan.retention is None else plan.retention.until.isoformat(),
                "approved_by": [approval.approver] if approval and approval.plan_hash == plan.hash else [],
                "standing_approval": bool(desk.ledger.standing(study)),
            }
        )
    return {
        "format": "tributary-risk-appetite/1",
        "site": config.site,
        "day": today.isoformat(),
        "recipient": config.coordinator,
        "floors": asdict(config.floors),
        "budget": asdict(config.budget),
        "mechanisms": list(KINDS),
        "approvers": sorted(config.approvers),
        "leads_needed": config.threshold,
        "paused": desk.paused,
        "studies": studies,
    }


def _flow(desk: Desk, plans: list[StudyPlan]) -> str:
    """The data flow as a Mermaid diagram: what crosses the hospital's border, and by whose word."""
    config = desk.config
    address = re.sub(r"[^\w.:\[\]-]", " ", config.address)  # within a quoted label
    way = "files carried by a courier, encrypted" if config.courier else f"TLS 1.3, mutual, to {address}"
    lines = ["flowchart LR", f'  subgraph hospital["{config.site}: records stay here"]']
    for number, plan in enumerate(plans):
        table = f'    t{number}[("table of {plan.study}")] -->|read, by the approved plan| a{number}'
        lines += [
            table,
            f'    a{number}["agent: {plan.release.mechanism}, {plan.posture}"] -->|charged first| o{number}',
        ]
        lines += [f'    o{number}["sealed bytes, checks, audit"] -->|a person signs these bytes| d']
    lines += ['    d(["one way out"])', "  end", f'  d -->|"{way}"| c["coordinator {config.coordinator}"]']
    lines += [
        "  c -->|plans, acknowledgements| d",
        '  c -->|answers, released rows by the plan| r["analysts with a token"]',
    ]
    return "\n".join(lines)


def _ports(desk: Desk) -> str:
    from site_agent.show.network_path import proxy_for

    config = desk.config
    out = "none" if config.courier else config.address
    proxy = host_of(proxy_for(config.address, os.environ))
    how = "files are carried" if config.courier else f"gRPC, TLS 1.3{f', through the proxy {proxy}' if proxy else ''}"
    parts = [part for source in config.data.values() for part in (source, source.edges) if part and part.database]
    rows = [
        ("in", "none", "nothing listens on the network"),
        ("out", out, how),
        *(
            ("out", f"as {name} says", "the hospital's database, read only")
            for name in sorted({p.database for p in parts})
        ),
        ("this machine only", "127.0.0.1, while `site-agent page` runs", "the approvers' page; a token of one start"),
    ]
    return "\n".join(["# Ports", "", *in_table(("direction", "address", "what"), rows)])


def _roles(desk: Desk) -> str:
    config = desk.config
    rows = [("approver", name, key[:16]) for name, key in sorted(config.approvers.items())]
    rows += [("study lead, pinned", key.fingerprint, key.key_id) for key in config.pinned_leads.values()]
    rows += [("agent's release key", config.site, desk.release_key.public.key_id)]
    text = [
        "# Roles",
        "",
        f"A plan needs {config.threshold} signature(s) of the leads below, and an approval of this site.",
        "A release needs the approvals that its plan and the site's floors ask for, whichever is more.",
        "The coordinator receives, and can neither start work here nor send code.",
        "",
    ]
    return "\n".join([*text, *in_table(("role", "who", "key"), rows)])


def _retention(plans: list[StudyPlan]) -> str:
    rows = [
        (plan.study, plan.retention.until, plan.retention.keep, plan.retention.readers)
        if plan.retention is not None
        else (plan.study, "the plan does not say", "", "")
        for plan in plans
    ]
    text = [
        "# Retention",
        "",
        "Releases are deleted at the coordinator after the day of the plan; their digests stay in its log.",
        "Here the sealed bytes, and who was charged, are kept as long as later waves and the budget need them.",
        "",
    ]
    return "\n".join([*text, *in_table(("study", "until", "for what", "read by"), rows)])


def _dpia(desk: Desk, plans: list[StudyPlan], today: dt.date) -> str:
    from site_agent.decide.plan_facts import plan_facts

    lines = ["# Paragraphs for a data protection impact assessment", ""]
    lines += ["From the signed plans. Necessity, legal basis and the balance are for whoever assesses.", ""]
    for plan in plans:
        facts = plan_facts(desk, plan, today)
        price = facts["price"]
        lines += [f"## {plan.study}: {_plain(plan.title)}", ""]
        lines += [
            f"Purpose: {_plain(plan.purpose)}",
            f"Whose records: {_plain(plan.eligibility) or 'the plan does not say'}",
        ]
        lines += [f"Columns: {', '.join(column['name'] for column in facts['columns']) or 'none; a network'}."]
        lines += [
            f"Recipient: {plan.coordinator}, and no other. Afterwards: {_plain(facts['afterwards']).rstrip('.')}."
        ]
        lines += [
            f"What leaves: {len(plan.waves)} planned release(s) by {plan.release.mechanism}, posture {plan.posture}."
        ]
        stated = shown_price(price["epsilon"], price["epsilon_given"], delta=plan.budget.delta)
        lines += [f"Price of one release: {stated}. {_plain(price['translation'])}"]
        lines += [
            f"Cap of the study for one person: {shown_price(plan.budget.epsilon, '', delta=plan.budget.delta)}.",
            "",
        ]
        lines += ["Risks that remain, as the plan says them:", ""]
        keys = facts["keys"]["said"] if facts["keys"] else []
        lines += [f"- {_plain(line)}" for line in (*facts["not_covered"], *keys)] or ["- none is named"]
        lines += [""]
    return "\n".join(lines if plans else [*lines, "No plan is here yet."])


def _threats(desk: Desk) -> str:
    way = (
        "A courier can lose a file; what goes to the coordinator is encrypted, and altered files are refused."
        if desk.config.courier
        else "A stranger on the line sees address and volume; TLS is mutual and the authority is pinned."
    )
    rows = [
        ("a stranger on the way", way, "that this site takes part, when, and how much"),
        (
            "the coordinator",
            "it gets what a person signed, and its log is held against what was seen",
            "what the ε of a release allows to be learnt",
        ),
        (
            "an approver",
            "signs exact bytes; several, and another than the author, where the floors ask",
            "a person who signs without looking",
        ),
        ("root on this machine", "approvers' keys open by a passphrase only", "reads the records anyway"),
        ("the study lead", "changes nothing here without an approval of this site", "asks for more than is wise"),
        ("whoever supplies the software", "sbom.cdx.json, hashes, a reproducible wheel", "a program that was replaced"),
    ]
    return "\n".join(["# Threats", "", *in_table(("who", "what holds", "what does not"), rows)])


def _plain(text: str) -> str:
    """Text of others in a page of Markdown, as letters: no mark-up of HTML, no link."""
    return re.sub(r"[\\`<\[]", r"\\\g<0>", inert(" ".join(str(text).split())))
