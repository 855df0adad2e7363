"""`coordinator ig-pack`: what an information governance team asks of a coordinator, from its settings and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.privacy.stated import shown_price
from shared.releases.governance import bill_of_materials, controls_page, in_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.config import CoordinatorConfig
    from coordinator.store.store import Store
    from shared.base.keys import PublicKey
    from shared.plans.plan import StudyPlan

__all__ = ["pack"]


def pack(config: CoordinatorConfig, store: Store, leads: Mapping[str, PublicKey]) -> dict[str, str | dict[str, Any]]:
    """The files of a pack, by name."""
    newest: dict[str, StudyPlan] = {}
    for stored in store.plans():
        if stored.plan.study not in newest or newest[stored.plan.study].version < stored.plan.version:
            newest[stored.plan.study] = stored.plan
    plans = [newest[study] for study in sorted(newest)]
    return {
        "data-flow.mmd": _flow(config, store, plans),
        "ports.md": _ports(config),
        "roles.md": _roles(store, leads),
        "retention.md": _retention(plans),
        "dpia.md": _dpia(plans),
        "threat-model.md": _threats(),
        "controls.md": controls_page(),
        "sbom.cdx.json": bill_of_materials(),
    }


def _flow(config: CoordinatorConfig, store: Store, plans: list[StudyPlan]) -> str:
    lines = ["flowchart LR"]
    for number, site in enumerate(one for one in store.sites() if one.state == "accepted"):
        studies = ", ".join(site.studies)
        lines += [f'  s{number}["{site.site}"] -->|"privatised releases of {studies}"| c["coordinator {config.name}"]']
    lines += ['  c --> l[("append-only log")]', '  c --> b[("bundles and database")]']
    for number, plan in enumerate(plans):
        rows = "answers and released rows" if plan.row_download else "answers"
        lines += [f'  c -->|"{plan.study}: {rows}"| a{number}["analysts with a token"]']
    return "\n".join(lines)


def _ports(config: CoordinatorConfig) -> str:
    given = [
        ("sites", getattr(config, "listen", ""), "gRPC, TLS 1.3, a certificate of each site"),
        ("analysts", getattr(config, "analysts", ""), "gRPC, TLS 1.3, a token"),
        ("health and metrics", getattr(config, "health", ""), "HTTP; names no site and no study"),
        ("gRPC health", getattr(config, "health_grpc", ""), "gRPC's health service"),
    ]
    rows = [(who, where, how) for who, where, how in given if where]
    text = ["# Ports", "", f"Sites dial {config.address}; nothing is dialled at a site.", ""]
    return "\n".join([*text, *in_table(("for", "listens on", "how"), rows)])


def _roles(store: Store, leads: Mapping[str, PublicKey]) -> str:
    rows = [("study lead", name, key.key_id) for name, key in sorted(leads.items())]
    rows += [(f"site, {one.state}", one.site, ", ".join(one.studies)) for one in store.sites()]
    return "\n".join(["# Roles", "", *in_table(("role", "who", "key, or studies"), rows)])


def _retention(plans: list[StudyPlan]) -> str:
    rows = [
        (plan.study, plan.retention.until, plan.retention.keep, plan.retention.readers)
        if plan.retention is not None
        else (plan.study, "the plan does not say", "", "")
        for plan in plans
    ]
    text = ["# Retention", "", "Deleted by the server after that day; digests and signatures stay in the log.", ""]
    return "\n".join([*text, *in_table(("study", "until", "for what", "read by"), rows)])


def _dpia(plans: list[StudyPlan]) -> str:
    lines = ["# Paragraphs for a data protection impact assessment", ""]
    lines += [
        "What arrives here has left a hospital by a signature there. Legal basis and balance are not said here.",
        "",
    ]
    for plan in plans:
        lines += [f"## {plan.study}: {' '.join(plan.title.split())}", "", f"Purpose: {' '.join(plan.purpose.split())}"]
        lines += [f"What arrives: {len(plan.waves)} wave(s) by {plan.release.mechanism}, posture {plan.posture}."]
        lines += [f"Cap for one person at one site: {shown_price(plan.budget.epsilon, '', delta=plan.budget.delta)}."]
        lines += [f"Released rows to analysts: {'yes' if plan.row_download else 'no'}.", ""]
    return "\n".join(lines if plans else [*lines, "No plan is signed yet."])


def _threats() -> str:
    rows = [
        (
            "a stranger at the ports",
            "certificates and tokens before anything is read; limits per caller",
            "floods of the line",
        ),
        (
            "a site that means ill",
            "its releases are checked by type, plan and signature; its weight is bounded",
            "that its records are true",
        ),
        ("an analyst", "answers by the plan, quotas, tokens that end", "what is copied from a screen"),
        ("the operator", "sites watch the log, and hold signed acknowledgements against it", "reads what has arrived"),
        ("a thief of a backup", "encrypted to the leads' keys", "a lead's key without a passphrase"),
    ]
    return "\n".join(["# Threats", "", *in_table(("who", "what holds", "what does not"), rows)])
