"""`coordinator ig-pack`: what an information governance team asks of a coordinator, from its settings and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import make_url

from shared.privacy.stated import shown_price
from shared.releases.governance import bill_of_materials, controls_page, host_of, in_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.config import CoordinatorConfig
    from coordinator.services.analysts import Account
    from coordinator.store.store import Store
    from shared.base.keys import PublicKey
    from shared.plans.plan import StudyPlan

__all__ = ["pack"]


def pack(
    config: CoordinatorConfig, store: Store, leads: Mapping[str, PublicKey], accounts: Sequence[Account]
) -> dict[str, str | dict[str, Any]]:
    """The files of a pack, by name; `accounts` are the tokens of analysts."""
    newest: dict[str, StudyPlan] = {}
    for stored in store.plans():
        if stored.plan.study not in newest or newest[stored.plan.study].version < stored.plan.version:
            newest[stored.plan.study] = stored.plan
    plans = [newest[study] for study in sorted(newest)]
    return {
        "data-flow.mmd": _flow(config, store, plans),
        "ports.md": _ports(config, store),
        "roles.md": _roles(store, leads, accounts),
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
    lines += ['  c --> l[("append-only log")]', f'  c --> d[("database{_at(_database(store.place[0]))}")]']
    lines += [f'  c --> b[("accepted bundles{_at(_objects(config.bundles))}")]']
    if config.compute:
        lines += [
            f'  c -->|"questions"| w["cluster{_at(host_of(config.compute))}"]',
            "  b --> w",
            '  w -->|"answers"| c',
        ]
    for number, plan in enumerate(plans):
        rows = "answers and released rows" if plan.row_download else "answers"
        lines += [f'  c -->|"{plan.study}: {rows}"| a{number}["analysts with a token"]']
    return "\n".join(lines)


def _ports(config: CoordinatorConfig, store: Store) -> str:
    """Table of listening and dialled ports, in Markdown: hosts and ports only, as addresses may hold a secret."""
    from coordinator.answers.reminders import Notify

    web, notify = config.web_settings or {}, Notify.load(config.home)
    given = [
        ("in", "sites", config.listen, "gRPC, TLS 1.3, a certificate of each site"),
        ("in", "analysts", config.analysts_listen, "gRPC, TLS 1.3, a token"),
        ("in", "analysts", web.get("listen", ""), "HTTPS, a token or a sign-in"),
        ("in", "health and metrics", config.health, "HTTP; names no site and no study"),
        ("in", "gRPC health", config.health_grpc, "gRPC's health service"),
        ("out", "the database", _database(store.place[0]), "SQL; all but the bundles"),
        ("out", "the object store", _objects(config.bundles), "HTTPS; accepted bundles"),
        ("out", "the cluster that computes answers", host_of(config.compute), "TLS; questions and their answers"),
        ("out", "the provider that people sign in by", host_of(web.get("issuer", "")), "HTTPS"),
        ("out", "the mail server", notify.smtp, "reminders of waves"),
        ("out", "the webhook", host_of(notify.webhook), "reminders of waves"),
    ]
    rows = [row for row in given if row[2]]
    text = ["# Ports", "", f"Sites dial {config.address}; nothing is dialled at a site.", ""]
    return "\n".join([*text, *in_table(("direction", "for", "address", "how"), rows)])


def _at(place: str) -> str:
    return f": {place}" if place else ""


def _database(url: str) -> str:
    """The host and port of a database server, or the folder of its socket; blank for a file."""
    place = make_url(url)
    if place.get_backend_name() == "sqlite":
        return ""
    asked = place.query.get("host", ())
    several = (asked,) if isinstance(asked, str) else asked
    return ", ".join([f"{place.host}:{place.port or 5432}"] if place.host else several) or "this machine"


def _objects(bundles: str) -> str:
    from coordinator.store.bundles.objects import ObjectPlace

    return (host_of(ObjectPlace.of(bundles).endpoint) or "as the environment says, or Amazon's own") if bundles else ""


def _roles(store: Store, leads: Mapping[str, PublicKey], accounts: Sequence[Account]) -> str:
    rows = [("study lead", name, key.key_id) for name, key in sorted(leads.items())]
    rows += [(f"site, {one.state}", one.site, ", ".join(one.studies)) for one in store.sites()]
    rows += [
        (f"{one.role}, until {one.expires}", one.name, ", ".join(one.studies))
        for one in accounts
        if one.revoked is None
    ]
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
        lines += [f"Columns: {', '.join(plan.dictionary.names) or 'none; a network'}."]
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
