"""Books and switch: ``budget``, ``history``, ``pause``, ``resume``, ``audit``, ``page``, ``ledger``, ``ig-pack``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import UsageRefusal
from shared.privacy.stated import shown_epsilon, shown_price
from shared.terminal import ChecklistLine, VerbAnswer, checklist, emit, tabled
from site_agent.cli.frame import As, Dry, Home, Json, Reason, Study, app, audit_app, ledger_app, screen, verb
from site_agent.desk import agent_version, open_desk, today

if TYPE_CHECKING:
    from rich.console import Console

    from site_agent.desk import Desk


__all__ = ["audit_export", "audit_verify", "budget", "history", "ig_pack", "ledger_recover", "page", "pause", "resume"]


@verb(app)
def budget(
    desk: Desk, study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None
) -> VerbAnswer:
    """Like a bank statement: every charge, the total, the cap, and what no ε covers."""
    from site_agent.decide.airlock import overview

    lines = desk.ledger.statement(study)
    totals = overview.totals(desk, study)
    mine = desk.config.budget
    whole, given = desk.ledger.site_price(mine.delta)
    site = {"epsilon": whole, "epsilon_given": given, "delta": mine.delta, "cap": mine.epsilon}
    site |= {"worst_cap": mine.worst_epsilon}

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.budget(out, lines, totals)

        out.print()
        if whole is not None:
            capped = "" if mine.epsilon is None else f", of {shown_epsilon(mine.epsilon)}"
            out.print(f"All studies of this site together: {shown_price(whole, given, delta=mine.delta)}{capped},")
            out.print("for somebody who was charged most in each. " + (_NO_SITE_CAP if mine.epsilon is None else ""))
        if mine.worst_epsilon is not None:
            out.print(f"Whoever sees most of a secure sum: at most ε = {shown_epsilon(mine.worst_epsilon)}.")
        if apart := sum(total["open"] for total in totals):
            words = "; ".join(dict.fromkeys(total["open_words"] for total in totals if total["open_words"]))
            out.print(f"{apart} releases are in no total: {words}.")

    return VerbAnswer({"lines": lines, "totals": totals, "site": site}, show)


_NO_SITE_CAP = "No site budget is set (site_epsilon under [budget] in site.toml)."


@verb(app)
def history(
    desk: Desk, last: Annotated[int, typer.Option("--last", help="How many entries; 0 for all.")] = 30
) -> VerbAnswer:
    """Who did what, when, and what was refused: the ledger's entries, and the site's own log of refusals."""
    from site_agent.decide.airlock import overview

    entries = overview.history(desk)
    rows = entries[-last:] if last else entries

    refused = sum(row["kind"] == "refused" for row in entries)
    detail = f"{len(entries) - refused} entries, {refused} refused attempts; times are UTC, order is the number's"
    cells = [
        (
            r["seq"] or None,
            r["time"].replace("T", " ").rstrip("Z"),
            r["step"],
            r["release_id"][:8] or None,
            r["who"],
            r["reason"] or None,
        )
        for r in rows
    ]
    return VerbAnswer(
        {"entries": rows},
        screen.heading("History", detail),
        tabled(("no.", "time", "step", "release", "who", "reason"), cells, right=("no.",)),
    )


@verb(app, noted="pause")
def pause(
    desk: Desk,
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who stops it; signed if given.")] = None,
    reason: Reason = "",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Stop at once: nothing is drawn, approved or sent until `site-agent resume`. No network and no key are needed."""
    from site_agent.decide.airlock import switch
    from site_agent.decide.airlock.signing import Approver

    noted = True
    if not dry_run:
        noted = switch.pause(desk, reason, by=None if name is None else Approver.at(desk, name))
    paused = dry_run or desk.config.pause_file.exists()

    answer = {
        "site": desk.config.site,
        "paused": paused and not dry_run,
        "by": name,
        "noted": noted,
        "dry_run": dry_run,
    }
    return VerbAnswer(
        answer,
        screen.heading(
            f"Site {desk.config.site}", "dry run" if dry_run else "paused: nothing is drawn, approved or sent"
        ),
        screen.note("The pause holds, and the ledger could not note it. Run site-agent doctor.") if not noted else None,
        screen.next_step("site-agent resume --as NAME"),
    )


@verb(app, noted="resume")
def resume(desk: Desk, name: As, reason: Reason = "", dry_run: Dry = False) -> VerbAnswer:
    """End a pause. Anybody may stop the site; an approver starts it again, and signs for it."""
    from site_agent.decide.airlock import switch
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    if not dry_run:
        switch.resume(desk, reason=reason, by=Approver.at(desk, name))

    return VerbAnswer(
        {"site": desk.config.site, "paused": desk.paused, "by": name, "dry_run": dry_run},
        screen.heading(f"Site {desk.config.site}", "dry run" if dry_run else f"running, by {name}"),
        screen.next_step("site-agent status"),
    )


@verb(audit_app, "export")
def audit_export(
    desk: Desk,
    study: Study,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="A new folder for the record.")],
) -> VerbAnswer:
    """The study's whole record in a folder that a stranger can check with one small script. No row is in it."""
    from site_agent.show.export import export

    answer = export(desk, study, out, agent_version=agent_version(), today=today())

    return VerbAnswer(
        answer,
        screen.heading(f"Audit record of {study}", f"{answer['files']} files in {out}"),
        screen.settings(
            [
                ("releases", answer["releases"]),
                ("ledger", f"{answer['entries']} entries; those of other studies as digests only"),
                ("head", answer["head"]),
                ("key of this site", answer["fingerprint"]),
            ]
        ),
        "No row is in it, and no count of records but the n of each receipt.",
        screen.next_step(f"python {out / 'verify.py'}", f"open {out / 'summary.html'}"),
    )


@app.command()
def page(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8777,
    listen: Annotated[str, typer.Option("--listen", help="A loopback address; no other is served.")] = "127.0.0.1",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """The airlock in a browser on this machine: read, approve, reject, see the budget, pause. Ctrl-C ends it."""
    from site_agent.show.page.serving import LOOPBACK, serve

    place = open_desk(home).home
    if (place / "site.toml").exists():
        open_desk(place).ledger.entries()
    if dry_run:
        if listen not in LOOPBACK:
            raise UsageRefusal("the page must be served to this machine only", given=repr(listen))
        emit(
            {"listen": listen, "port": port, "dry_run": True}, as_json=json, show=lambda out: out.print("Would serve.")
        )
        return

    def announce(address: str, password: str) -> None:
        def show(out: Console) -> None:
            from site_agent.show import screens

            screens.settings(out, [("open", address), ("password", password)])
            out.print("It works once. Nobody but you should see this terminal. Ctrl-C ends the page.")

        emit({"address": address, "password": password}, as_json=json, show=show)
        sys.stdout.flush()

    serve(
        lambda: open_desk(place),
        listen=listen,
        port=port,
        agent_version=agent_version(),
        today=today,
        announce=announce,
    )


@verb(app, "audit-verify", hidden=True)  # its name before `audit` had verbs
@verb(audit_app, "verify")
@verb(ledger_app, "verify")
def audit_verify(desk: Desk) -> VerbAnswer:
    """Verify every entry, sealed bundle, plan approval and decision of this site, each with its signature."""
    from site_agent.show import export

    answer = export.verify(desk)

    lines = [
        ChecklistLine(name="ledger", detail=f"{answer['entries']} entries, each chained and signed"),
        ChecklistLine(name="sealed bundles", detail=f"{answer['bundles']}, each the bytes that were sealed"),
        ChecklistLine(name="plan approvals", detail=f"{answer['plan_approvals']}, each signed by its approver"),
        ChecklistLine(name="decisions", detail=f"{answer['signatures']}, each signed by its person over its bytes"),
        ChecklistLine(name="other decisions", detail=f"{answer['decisions']}, each signed by whom it names"),
        ChecklistLine(name="refused attempts", detail=f"{answer['refused']}, each line chained and signed"),
        *_gated(answer["gated"]),
        ChecklistLine(name="head", detail=answer["head"]),
    ]
    return VerbAnswer(answer, screen.heading("Audit"), lambda out: checklist(out, lines))


def _gated(releases: Sequence[str]) -> list[ChecklistLine]:
    """A line on releases of earlier versions whose stated ε does not hold the gate that selected them."""
    if not releases:
        return []
    named = ", ".join(release_id[:8] for release_id in releases)
    return [
        ChecklistLine(
            name="gates outside ε",
            state="warn",
            detail=f"{named}: of an earlier version, which refused tables by what it found in records",
            fix="What their receipts state holds before that selection: docs/privacy.md, question 16.",
        )
    ]


@verb(ledger_app, "recover", noted="ledger recover")
def ledger_recover(desk: Desk, dry_run: Dry = False) -> VerbAnswer:
    """After a restored backup: count as spent whatever may be missing, and show what the study lead must allow."""
    from site_agent.decide import keys
    from site_agent.decide.recovery import recover, survey
    from site_agent.lock import StateLock

    if not dry_run and desk.config.certificate.exists():
        with StateLock(desk.home):
            keys.adopt_forgotten(desk)
    with StateLock(desk.home), desk.egress() as egress:
        asked = (desk.ledger, desk.plans, egress, desk.config.studies)
        found = survey(*asked) if dry_run else recover(*asked, desk.replies)
    seq = found.witnessed.seq if found.witnessed else 0
    delivered = [release_id for release_id, _ in found.accepted]
    answer = {
        "site": desk.config.site,
        "state": found.state,
        "witnessed": seq,
        "known": found.known,
        "missing": found.missing,
        "unknown_draws": found.unknown,
        "charges": [
            {"study": one.study, "count": one.count, "wave": one.wave or None, "release_id": one.release_id or None}
            for one in found.lost
        ],
        "plan_versions": {study: list(versions) for study, versions in found.priced.items()},
        "delivered": delivered,
        "fingerprint": found.fingerprint,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        screens.heading(out, "Ledger", "dry run, nothing counted" if dry_run else found.state)
        if found.state == "whole":
            out.print("Nothing that the coordinator has witnessed is missing here.")
            for release_id in delivered:
                done = "would be noted" if dry_run else "is noted"
                out.print(f"Release {release_id[:8]}: the coordinator has accepted it; it {done} as delivered.")
            screens.next_step(out, "site-agent resend" if delivered and not dry_run else "site-agent ledger verify")
            return
        if found.missing:
            out.print(
                f"The coordinator has witnessed entry {seq}; here entry {found.known} is the last one it acknowledged. "
                f"The {found.missing} between them can hold {found.unknown} draws beyond the releases it received."
            )
        if found.lost:
            rows = [
                (one.study, one.count, one.wave or None, one.release_id[:8] or "nobody knows which")
                for one in found.lost
            ]
            out.print(table(("charged to study", "times", "wave", "release"), rows, right=("times", "wave")))
            out.print("A named release at the price of its own plan, every other at the dearest of all versions known:")
            for study, versions in found.priced.items():
                out.print(f"  {study}: version {', '.join(map(str, versions))}")
            out.print("If the study lead has signed another version, stop and call: it may be dearer.")
            out.print("Whatever was open here is closed, its charge kept.")
            out.print(
                "Whom they drew nobody knows: each counts against everybody, and an append may draw them once more."
            )
        if found.state == "done":
            screens.next_step(out, "site-agent budget", "site-agent ledger verify")
        elif found.fingerprint:
            screens.settings(out, [("fingerprint", found.fingerprint)])
            out.print("Read the fingerprint to the study lead on the telephone. Until the lead allows it")
            out.print(f'(coordinator reanchor {desk.config.site} --fingerprint "…") nothing can be released.')
            screens.next_step(out, "site-agent ledger recover", "site-agent budget")
        else:
            screens.next_step(out, "site-agent ledger recover")

    return VerbAnswer(answer, show)


@verb(app, "ig-pack")
def ig_pack(
    desk: Desk,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.", file_okay=False)],
    dry_run: Dry = False,
) -> VerbAnswer:
    """Write what an information governance team asks for, from settings and plans: data flow, roles, DPIA, SBOM, …"""
    from shared.releases.governance import write_pack
    from site_agent.show.governance import pack

    files = pack(desk, today())
    about = f"Information governance pack of site {desk.config.site}"
    names = sorted(files) if dry_run else write_pack(out, files, about=about, day=today())
    return VerbAnswer(
        {"out": out, "files": names, "dry_run": dry_run},
        screen.heading(about, "dry run, nothing written" if dry_run else f"{len(names)} files in {out}"),
        "\n".join(f"  {name}" for name in names),
    )
