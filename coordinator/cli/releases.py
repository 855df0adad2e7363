"""Releases received: ``releases``, ``release show``; and the calendar of waves: ``wave schedule`` to ``reopen``."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import (
    DryRun,
    Study,
    app,
    release_app,
    require_study,
    show_facts,
    show_sentences,
    today,
    verb,
    wave_app,
)
from coordinator.config import CoordinatorConfig
from shared.base.clock import utc_now
from shared.errors import ParameterError, StateRefusal
from shared.privacy.stated import all_given, shown_price
from shared.terminal import VerbAnswer, checklist, plain, table, tabled

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.store.store import AcceptedRelease, Store
from coordinator.cli.plan import write_draft

__all__ = [
    "one_release",
    "release_show",
    "releases",
    "wave_close",
    "wave_remind",
    "wave_reopen",
    "wave_schedule",
    "wave_status",
]

ReleaseId = Annotated[str, typer.Argument(help="The release's id, or its first digits.")]


@verb(app, rich_help_panel="Releases")
def releases(
    store: Store,
    study: Annotated[str, typer.Option("--study", help="Only this study.")] = "",
    wave: Annotated[int | None, typer.Option("--wave", help="Only this wave.")] = None,
) -> VerbAnswer:
    """List what was accepted, and what was quarantined and why."""
    require_study(store, study)
    accepted = store.releases(study=study or None, wave=wave)
    kept_apart = [row for row in store.quarantined(study=study or None) if wave in (None, row.wave)]
    answer = {"accepted": [_release_data(row) for row in accepted], "quarantined": kept_apart}

    def show(out: Console) -> None:
        if not accepted and not kept_apart:
            out.print("No release has arrived yet.")
            return
        if accepted:
            rows = [[r.study, r.wave, r.site, r.release_id[:12], r.n, r.log_index, r.accepted_day] for r in accepted]
            heads = ["study", "wave", "site", "release", "n", "log", "accepted"]
            out.print(table(heads, rows, right=["wave", "n", "log"], title="Accepted"))
        if kept_apart:
            out.print()
            rows = [[q.study, q.wave, q.site, q.release_id[:12], q.code, q.reason] for q in kept_apart]
            heads = ["study", "wave", "site", "release", "code", "reason"]
            out.print(table(heads, rows, right=["wave"], title="Quarantined: kept, and read by nobody"))

    return VerbAnswer(answer, show)


@verb(release_app, "show")
def release_show(store: Store, release: ReleaseId) -> VerbAnswer:
    """Show one accepted release: its receipt in words."""
    from shared.privacy import accountant as privacy
    from shared.privacy.composition import least_total

    found = one_release(store, release)
    receipt = found.receipt
    arrived = [
        other
        for other in store.releases(found.study, site=found.site, withdrawn=True)
        if other.log_index <= found.log_index
    ]
    charges = [
        (store.plan(found.study, other.plan_version).plan, privacy.from_canonical(other.receipt.event))
        for other in arrived
    ]
    given = all_given((other.receipt.stated_epsilon, other.receipt.given_in_total) for other in arrived)
    together = least_total(charges, receipt.delta, together=True)
    note = ""
    if len(charges) > 1 and receipt.epsilon is not None:
        note = (
            f"Somebody in all {len(charges)} releases that had arrived by then would have spent ε "
            f"{shown_price(together, given)}. The site's ledger counts per person, and draws that never "
            "arrived as well; only the site can see it."
        )

    def show(out: Console) -> None:
        out.print(f"{found.study}, wave {found.wave}, {found.site}", style="bold")
        show_facts(
            out,
            ("release", found.release_id),
            ("bundle", found.bundle_sha256),
            ("accepted", f"{found.accepted_day}, log entry {found.log_index}"),
            ("plan", f"version {receipt.plan_version}, {receipt.plan_hash}"),
            ("rows", f"{receipt.n:,} persons, {receipt.d} encoded columns"),
            *([("hospitals", f"{receipt.hospitals} under one steward's agreement")] if receipt.hospitals else []),
            *([("mapping", f"{receipt.mapping}, a file of the site's")] if receipt.mapping else []),
            ("mechanism", f"{receipt.mechanism.replace('_', ' ')}, {_parameters(receipt.parameters)}"),
            ("posture", receipt.posture),
            *(
                [("this release", shown_price(None, receipt.given))]
                if receipt.stated_epsilon is None
                else [
                    ("this release", shown_price(receipt.epsilon, receipt.given, delta=receipt.delta)),
                    (
                        "at most",
                        f"ε {shown_price(receipt.study_epsilon, given)}, per person at this site, by the whole study "
                        f"under version {receipt.plan_version} of the plan",
                    ),
                ]
            ),
            *([("note", note)] if note else []),
            ("in words", receipt.stated_translation),
            ("neighbours", f"{receipt.neighbours.replace('_', ' ')}; unit {receipt.unit}"),
            ("given", receipt.conditional_on),
        )
        show_sentences(out, "covered:", receipt.covered, "green")
        show_sentences(out, "not covered:", receipt.not_covered, "yellow")

    return VerbAnswer({**_release_data(found), "receipt": receipt, "note": note}, show)


Number = Annotated[int, typer.Argument(help="The wave's number.")]


@verb(wave_app, "schedule")
def wave_schedule(
    config: CoordinatorConfig,
    store: Store,
    study: Study,
    every: Annotated[str, typer.Option("--every", help="month, quarter, week, or as in '10 days'.")],
    count: Annotated[int, typer.Option("--count", help="How many new waves.")],
    window: Annotated[int, typer.Option("--window", help="Days for which each stays open.")],
    start: Annotated[str, typer.Option("--start", help="Day on which the first opens, as in 2026-03-01.")] = "",
    quorum: Annotated[int, typer.Option("--quorum", help="Deliveries below which closing takes a reason.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY-vN.toml if left out.")] = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write a new draft version of the plan with a calendar. Nothing is sent: sign it, and each site approves it."""
    from coordinator.answers.waves import draft, scheduled
    from coordinator.planning.review import changes, review

    try:
        first = dt.date.fromisoformat(start) if start else None
    except ValueError:
        raise ParameterError("--start must be a date, as in 2026-03-01", given=repr(start)) from None
    last = store.plan(study).plan
    plan = scheduled(last, every=every, count=count, window=window, start=first, quorum=quorum, today=today())
    text = draft(plan)
    _, checks = review(text, today=today(), recipient=config.name, signed=lambda study: last)
    path = write_draft(text, out or Path(f"{study}-v{plan.version}.toml"), dry_run=dry_run)
    concerns = [check for check in checks if check.state != "ok"]
    answer = {
        "study": study,
        "version": plan.version,
        "file": str(path),
        "waves": plan.waves,
        "expires": plan.expires,
        "changes": changes(last, plan),
        "concerns": concerns,
        "written": not dry_run,
    }

    rows = [[wave.number, wave.opens, wave.closes, wave.quorum or None] for wave in plan.waves]
    return VerbAnswer(
        answer,
        f"{'would write' if dry_run else 'wrote'} {path}: {study}, version {plan.version}, a draft",
        tabled(["wave", "opens", "closes", "quorum"], rows, right=["wave", "quorum"]),
        lambda shown: checklist(shown, concerns),
        ("No site is told. Every site must approve the signed version before it acts on it.", "yellow"),
        (f"next: coordinator plan cost {path}, then plan sign {path}", "cyan"),
    )


@verb(wave_app, "status")
def wave_status(store: Store, study: Study) -> VerbAnswer:
    """Show each site in each wave: who has delivered, who is missing, how long the oldest wait has lasted."""
    from coordinator.answers.waves import STATES, grid
    from coordinator.store.site_certificates import outlook

    found = grid(store, study, today())
    ending = {one.site: one for one in outlook(store.sites(), utc_now()) if one.warning and one.site in found.sites}

    def show(out: Console) -> None:
        from rich.text import Text

        out.print(f"{study}, plan version {found.version}", style="bold")
        if not found.sites:
            out.print("No site takes part yet.")
        styles = {"delivered": "green", "late": "green", "quarantined": "red", "withdrawn": "red", "rejected": "red"}
        marks = {"missing": "bold red", "waiting": "yellow", "held?": "yellow", "planned": "dim"}
        heads = ["wave", "closes", "state", "delivered", *found.sites]
        rows: list[list[Any]] = []
        for line in found.waves:
            state = line.state if line.revision is None else f"closed, revision {line.revision}"
            asked = sum(cell.state != "taken out" for cell in line.cells)
            of = f"{line.delivered} of {asked}" + (f", quorum {line.quorum}" if line.quorum else "")
            cells = [
                Text(
                    cell.state if cell.revision is None else f"late, revision {cell.revision}",
                    style=styles.get(cell.state) or marks.get(cell.state, ""),
                )
                for cell in line.cells
            ]
            rows.append([line.number, line.closes, state, of, *cells])
        out.print(table(heads, rows, right=["wave"]))
        shown = {cell.state for line in found.waves for cell in line.cells}
        for state, words in STATES.items():
            if state in shown and state not in ("delivered", "planned"):
                out.print(f"  {state}: {words}", style="dim")
        if found.waiting_days is not None:
            waited, names = found.waiting_wave, ", ".join(found.waiting_for)
            out.print(f"The oldest wait: wave {waited}, {found.waiting_days} days, for {names}.", style="bold")
            out.print(f"next: coordinator wave remind {study} {waited}", style="cyan")
        for line in found.waves:
            if line.state == "overdue" and line.delivered and not line.missing:
                out.print(
                    f"Every site has delivered wave {line.number}. next: coordinator wave close {study} {line.number}"
                )
        for one in ending.values():
            out.print(f"{one.warning}. {one.mend}", style="bold red")

    warnings = {name: one.warning for name, one in ending.items()}
    return VerbAnswer({**plain(found), "states": STATES, "certificates": warnings}, show)


@verb(wave_app, "remind")
def wave_remind(
    config: CoordinatorConfig,
    store: Store,
    study: Study,
    wave: Number,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for one text per site.")] = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write a text for each site that is missing, for you to send; the site also sees the day when it next asks."""
    from coordinator.answers.reminders import Notify, send
    from coordinator.answers.waves import grid, reminder

    notify = Notify.load(config.home)
    plan = store.plan(study).plan
    plan.wave(wave)
    line = next(line for line in grid(store, study, today()).waves if line.number == wave)
    if line.state == "planned":
        raise StateRefusal("a wave must be open to remind of it", given=f"wave {wave}, which opens {line.opens}")
    texts = {site: reminder(plan, line, site, today()) for site in line.awaited}
    if not dry_run:
        store.remind(study, wave, list(texts), today())
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for site, text in texts.items():
                (out / f"{study}-wave{wave}-{site}.txt").write_text(text, encoding="utf-8")
    sent = () if dry_run else send(notify, study, wave, texts)
    answer = {"study": study, "wave": wave, "texts": texts, "noted": not dry_run, "folder": str(out) if out else None}
    answer["sent"] = [asdict(one) for one in sent]

    def show(shown: Console) -> None:
        if not texts:
            shown.print(f"Nobody is awaited in wave {wave}.")
        for text in texts.values():
            shown.print(text)
        for one in sent:
            what = f"not sent to {one.site} by {one.way}: {one.failed}" if one.failed else f"sent to {one.site}"
            shown.print(f"{what} ({one.way})", style="red" if one.failed else "")
        if texts and not notify.configured:
            shown.print("The coordinator cannot call a site: send these, or write notify.toml.", style="yellow")

    return VerbAnswer(answer, show)


@verb(wave_app, "close")
def wave_close(
    store: Store,
    study: Study,
    wave: Number,
    reason: Annotated[str, typer.Option("--reason", help="Why, before the deadline or below the quorum.")] = "",
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Close a wave, naming who is missing. For good: what arrives later makes a revision."""
    from coordinator.answers.waves import grid

    planned = store.plan(study).plan.wave(wave)
    line = next(line for line in grid(store, study, today()).waves if line.number == wave)
    if today() <= planned.closes and line.missing and not reason.strip():
        raise StateRefusal(
            "a wave must have passed its deadline to be closed while a site is missing",
            given=f"{planned.closes}, with {len(line.missing)} missing",
            next_step="Wait, remind the sites, or give a --reason; it stands in the log.",
        )
    index, revision, missing = None, None, line.missing
    if not dry_run:
        members = store.members(study)
        closed = store.close_wave(study, wave, expected=members, quorum=planned.quorum, reason=reason, today=today())
        index, revision, missing = closed.log_index, closed.number, closed.missing
    answer = {
        "study": study,
        "wave": wave,
        "closed": not dry_run,
        "delivered": line.delivered,
        "missing": missing,
        "revision": revision,
        "log_index": index,
    }

    did = "would close" if dry_run else f"closed, revision {revision}, log entry {index}:"
    return VerbAnswer(
        answer,
        (f"{did} wave {wave} of {study} with {line.delivered} deliveries", "bold"),
        f"missing: {', '.join(missing) or 'nobody'}",
    )


@verb(wave_app, "reopen")
def wave_reopen(
    store: Store,
    study: Study,
    wave: Number,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the log.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Let a closed wave go on, with a reason. Its revisions so far stay what they are."""
    store.plan(study).plan.wave(wave)
    record = store.wave_record(study, wave)
    if dry_run and not record.closed:
        raise StateRefusal("a wave must be closed to be reopened", given="an open one")
    if not dry_run:
        record = store.reopen_wave(study, wave, reason=reason, today=today())
    revisions = len(record.revisions)
    answer = {"study": study, "wave": wave, "reopened": not dry_run, "revisions": revisions}
    words = f"{'would reopen' if dry_run else 'reopened'} wave {wave} of {study}; its {revisions} revisions stay"
    return VerbAnswer(answer, words)


def _release_data(release: AcceptedRelease) -> dict[str, Any]:
    names = ("release_id", "study", "wave", "site", "n", "plan_version", "bundle_sha256", "bundle_bytes")
    facts = {name: getattr(release, name) for name in (*names, "log_index", "log_root", "accepted_day")}
    receipt = release.receipt
    return {**facts, "epsilon": receipt.stated_epsilon, "epsilon_given": receipt.given, "posture": receipt.posture}


def one_release(store: Store, start: str) -> AcceptedRelease:
    """The accepted release whose id starts so. Raises: ParameterError, when none or several do."""
    found = [release for release in store.releases() if release.release_id.startswith(start)]
    if len(found) != 1:
        raise ParameterError(
            "the id must be that of one accepted release",
            given=f"{start!r}, which fits {len(found)}",
            next_step="See coordinator releases.",
        )
    return found[0]


def _parameters(parameters: Any) -> str:
    return ", ".join(f"{name} = {value:.4g}" for name, value in parameters.items())
