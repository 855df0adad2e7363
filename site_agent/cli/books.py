"""The books and the switch: ``budget``, ``history``, ``pause``, ``resume``, ``audit``, ``page``, ``ledger``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import UsageRefusal
from shared.privacy.stated import shown_epsilon, shown_price
from shared.terminal import emit
from site_agent.cli.frame import As, Dry, Home, Json, Reason, Study, app, audit_app, ledger_app
from site_agent.desk import agent_version, attempted, open_desk, today

if TYPE_CHECKING:
    from rich.console import Console

    from shared.terminal import ChecklistLine


__all__ = ["audit_export", "audit_verify", "budget", "history", "ledger_recover", "page", "pause", "resume"]


@app.command()
def budget(
    study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Like a bank statement: every charge, the total, the cap, and what no ε covers."""
    from site_agent.decide.airlock import overview

    desk = open_desk(home)
    lines = desk.ledger.statement(study)
    totals = overview.totals(desk, study)
    mine = desk.config.budget
    whole, given = desk.ledger.site_price(mine.delta)
    site = {"epsilon": whole, "epsilon_given": given, "delta": mine.delta, "cap": mine.epsilon}

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.budget(out, lines, totals)

        out.print()
        if whole is not None:
            capped = "" if mine.epsilon is None else f", of {shown_epsilon(mine.epsilon)}"
            out.print(f"All studies of this site together: {shown_price(whole, given, delta=mine.delta)}{capped},")
            out.print("for somebody who was charged most in each. " + (_NO_SITE_CAP if mine.epsilon is None else ""))
        if apart := sum(total["open"] for total in totals):
            words = "; ".join(dict.fromkeys(total["open_words"] for total in totals if total["open_words"]))
            out.print(f"{apart} releases are in no total: {words}.")

    emit({"lines": lines, "totals": totals, "site": site}, as_json=json, show=show)


_NO_SITE_CAP = "No site budget is set (site_epsilon under [budget] in site.toml)."


@app.command()
def history(
    last: Annotated[int, typer.Option("--last", help="How many entries; 0 for all.")] = 30,
    home: Home = None,
    json: Json = False,
) -> None:
    """Who did what, when, and what was refused: the ledger's entries, and the site's own log of refusals."""
    from site_agent.decide.airlock import overview

    desk = open_desk(home)
    entries = overview.history(desk)
    rows = entries[-last:] if last else entries

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        refused = sum(row["kind"] == "refused" for row in entries)
        detail = f"{len(entries) - refused} entries, {refused} refused attempts; times are UTC, order is the number's"
        screens.heading(out, "History", detail)
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
        out.print(table(("no.", "time", "step", "release", "who", "reason"), cells, right=("no.",)))

    emit({"entries": rows}, as_json=json, show=show)


@app.command()
@attempted("pause")
def pause(
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who stops it; signed if given.")] = None,
    reason: Reason = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Stop at once: nothing is drawn, approved or sent until `site-agent resume`. No network and no key are needed."""
    from site_agent.decide.airlock import switch

    desk = open_desk(home)
    noted = True
    if not dry_run:
        open_key = None if name is None else lambda: desk.approver(name)
        noted = switch.pause(desk, reason, name=name or "", open_key=open_key)
    paused = dry_run or desk.config.pause_file.exists()

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(
            out, f"Site {desk.config.site}", "dry run" if dry_run else "paused: nothing is drawn, approved or sent"
        )
        if not noted:
            screens.note(out, "The pause holds, and the ledger could not note it. Run site-agent doctor.")
        screens.next_step(out, "site-agent resume --as NAME")

    answer = {
        "site": desk.config.site,
        "paused": paused and not dry_run,
        "by": name,
        "noted": noted,
        "dry_run": dry_run,
    }
    emit(answer, as_json=json, show=show)


@app.command()
@attempted("resume")
def resume(name: As, reason: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """End a pause. Anybody may stop the site; an approver starts it again, and signs for it."""
    from site_agent.decide.airlock import switch

    desk = open_desk(home)
    desk.config.approver_key(name)
    if not dry_run:
        switch.resume(desk, name=name, reason=reason, open_key=lambda: desk.approver(name))

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"Site {desk.config.site}", "dry run" if dry_run else f"running, by {name}")
        screens.next_step(out, "site-agent status")

    emit({"site": desk.config.site, "paused": desk.paused, "by": name, "dry_run": dry_run}, as_json=json, show=show)


@audit_app.command("export")
def audit_export(
    study: Study,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="A new folder for the record.")],
    home: Home = None,
    json: Json = False,
) -> None:
    """The study's whole record in a folder that a stranger can check with one small script. No row is in it."""
    from site_agent.show.export import export

    answer = export(open_desk(home), study, out, agent_version=agent_version(), today=today())

    def show(page: Console) -> None:
        from site_agent.show import screens

        screens.heading(page, f"Audit record of {study}", f"{answer['files']} files in {out}")
        screens.settings(
            page,
            [
                ("releases", answer["releases"]),
                ("ledger", f"{answer['entries']} entries; those of other studies as digests only"),
                ("head", answer["head"]),
                ("key of this site", answer["fingerprint"]),
            ],
        )
        page.print("No row is in it, and no count of records but the n of each receipt.")
        screens.next_step(page, f"python {out / 'verify.py'}", f"open {out / 'summary.html'}")

    emit(answer, as_json=json, show=show)


@app.command()
def page(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8777,
    listen: Annotated[str, typer.Option("--listen", help="A loopback address; no other is served.")] = "127.0.0.1",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """The airlock in a browser on this machine: read, approve, reject, see the budget, pause. Ctrl-C ends it."""
    from site_agent.show.page import LOOPBACK, serve

    place = open_desk(home).home
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


@app.command("audit-verify", hidden=True)  # its name before `audit` had verbs
@audit_app.command("verify")
@ledger_app.command("verify")
def audit_verify(home: Home = None, json: Json = False) -> None:
    """Verify every entry, sealed bundle, plan approval and decision of this site, each with its signature."""
    from site_agent.show import export

    answer = export.verify(open_desk(home))

    def show(out: Console) -> None:
        from shared.terminal import ChecklistLine, checklist
        from site_agent.show import screens

        screens.heading(out, "Audit")
        checklist(
            out,
            [
                ChecklistLine(name="ledger", detail=f"{answer['entries']} entries, each chained and signed"),
                ChecklistLine(name="sealed bundles", detail=f"{answer['bundles']}, each the bytes that were sealed"),
                ChecklistLine(name="plan approvals", detail=f"{answer['plan_approvals']}, each signed by its approver"),
                ChecklistLine(
                    name="decisions", detail=f"{answer['signatures']}, each signed by its person over its bytes"
                ),
                ChecklistLine(name="other decisions", detail=f"{answer['decisions']}, each signed by whom it names"),
                ChecklistLine(name="refused attempts", detail=f"{answer['refused']}, each line chained and signed"),
                *_gated(answer["gated"]),
                ChecklistLine(name="head", detail=answer["head"]),
            ],
        )

    emit(answer, as_json=json, show=show)


def _gated(releases: Sequence[str]) -> list[ChecklistLine]:
    """A line on releases of earlier versions whose stated ε does not hold the gate that selected them."""
    from shared.terminal import ChecklistLine

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


@ledger_app.command("recover")
@attempted("ledger recover")
def ledger_recover(home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """After a restored backup: count as spent whatever may be missing, and show what the study lead must allow."""
    from site_agent.decide import keys
    from site_agent.decide.recovery import recover, survey
    from site_agent.lock import StateLock

    desk = open_desk(home)
    if not dry_run and desk.config.certificate.exists():
        with StateLock(desk.home):
            keys.adopt_forgotten(desk)
    with StateLock(desk.home), desk.egress() as egress:
        asked = (desk.ledger, desk.plans, egress, desk.config.studies)
        found = survey(*asked) if dry_run else recover(*asked, desk.replies)
    seq = found.witnessed.seq if found.witnessed else 0
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
        "fingerprint": found.fingerprint,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        screens.heading(out, "Ledger", "dry run, nothing counted" if dry_run else found.state)
        if found.state == "whole":
            out.print("Nothing that the coordinator has witnessed is missing here.")
            screens.next_step(out, "site-agent ledger verify")
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

    emit(answer, as_json=json, show=show)
