"""The calendar: ``waves``, ``run``, and who leaves it, ``withdraw-person``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.base.clock import utc_now
from shared.errors import CATALOGUE, NetworkRefusal, Refusal, UsageRefusal
from shared.privacy.stated import shown_epsilon, shown_price
from shared.terminal import VerbAnswer
from site_agent.cli.frame import As, Dry, Home, Json, Study, app, verb
from site_agent.decide.plan_facts import burnt_numbers, charged, looking_ahead
from site_agent.desk import agent_now, open_desk, today, working_site

if TYPE_CHECKING:
    from rich.console import Console

    from site_agent.desk import Desk

__all__ = ["run_", "waves", "withdraw_person"]


@verb(app)
def waves(
    desk: Desk, study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None
) -> VerbAnswer:
    """The calendar: what is due, where each wave stands, what was charged, and the last wave the budget allows."""
    from dataclasses import asdict

    from shared.privacy.accountant import guaranteed
    from shared.releases.receipt import given, planned_event
    from site_agent.decide import waves as calendars

    day = today()
    studies: list[dict[str, Any]] = []
    for name in [study] if study else sorted({*desk.config.studies, *desk.plans.studies()}):
        if study is None and not desk.plans.highest(name):
            continue
        plan = desk.plans.plan(name)
        holds = desk.ledger.holds(name)
        lines = calendars.calendar(plan, holds, day)
        found = calendars.due(plan, holds, day)
        billed, promised = charged(desk, plan, today()), guaranteed(planned_event(plan))
        studies.append(
            {
                "study": name,
                "returning": plan.returning,
                "waves": [asdict(line) for line in lines],
                "due": None if found is None else found.number,
                "burnt": burnt_numbers(desk, plan, day),
                "spent": billed["epsilon"],
                "delta": plan.budget.delta,
                "cap": plan.budget.epsilon,
                "all_waves": billed["with_waves_to_come"] if promised else None,
                "all_waves_given": billed["total_given"],
                "last_affordable": billed["last_affordable"],
                "unaffordable": bool(billed["to_come"]) and billed["last_affordable"] is None,
                "epsilon_given": billed["epsilon_given"] if promised else given(plan),
                "promised": promised,
            }
        )

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        for one in studies:
            due = f"wave {one['due']} is due" if one["due"] else "nothing is due"
            screens.heading(
                out, f"Waves of {one['study']}", f"{due} on {day} (UTC) · returning persons: {plan_word(one)}"
            )
            cells = [
                (
                    line["number"],
                    line["opens"],
                    line["closes"],
                    line["state"] + (f" into wave {line['into']}" if line["into"] else ""),
                    line["release_id"][:8] or None,
                )
                for line in one["waves"]
            ]
            out.print(table(("wave", "opens", "closes", "state", "release"), cells, right=("wave",)))
            if not one["promised"]:
                out.print(f"Rows: {shown_price(None, one['epsilon_given'])}; no total holds them.")
            else:
                out.print(
                    f"Charged so far {shown_price(one['spent'], one['epsilon_given'], delta=one['delta'])}, of "
                    f"{shown_epsilon(one['cap'])}; with all waves to come "
                    f"{shown_price(one['all_waves'], one['all_waves_given'])}."
                )
            if one["promised"] and (one["last_affordable"] or one["unaffordable"]):
                out.print(_affords(one))
            _next(out, desk, one)

    def plan_word(one: dict[str, Any]) -> str:
        return {
            "append": "only new ones are drawn",
            "refresh": "all are drawn anew",
            "frozen": "earlier rows are copied",
        }[one["returning"]]

    return VerbAnswer({"today": day, "studies": studies}, show)


def _affords(one: dict[str, Any]) -> str:
    """How far the budget goes, in a sentence."""
    if one["last_affordable"]:
        return f"The budget allows the waves to come up to wave {one['last_affordable']}."
    return "The budget allows none of the waves to come: that needs an amended plan of the study lead."


def _next(out: Console, desk: Desk, one: dict[str, Any]) -> None:
    """Say what is to be done about a study's waves."""
    from site_agent.show import screens

    held = [f"outbox show {hold.release_id[:8]}" for hold in desk.ledger.holds(one["study"]) if hold.state == "held"]
    again = [f"site-agent release {one['study']} --wave {number}" for number in one["burnt"]]
    state = next((line["state"] for line in one["waves"] if line["number"] == one["due"]), "")
    if held:
        screens.next_step(out, *(f"site-agent {step}" for step in held))
    elif state == "due" and one["promised"] and one["unaffordable"]:
        screens.next_step(out, f"site-agent budget {one['study']}")
    elif one["due"]:
        screens.next_step(out, f"site-agent release {one['study']} --wave {one['due']}")
    elif again:
        out.print("Of a burnt draw nothing was sent, and its charge stays; another draw is another charge.")
        screens.next_step(out, *looking_ahead(desk.plans.plan(one["study"])), *again)
    else:
        screens.next_step(out, "nothing")


@app.command("run")
def run_(
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="MINUTES", min=0.01, help="Between two rounds.")] = 60.0,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Live by the calendar: make each wave that is due, send what people have approved, now or in advance.

    With --once it ends with the exit code of the first thing that failed (network, certificate, integrity or data): a
    timer must not take a site that is cut off for one that is well. What a rule or a person holds back is no failure.
    """
    import json as plain_json
    import time
    from dataclasses import asdict
    from functools import partial

    from shared.base.archive import sweep
    from shared.errors import LockedRefusal
    from site_agent.decide.attending import AttendEvent, attend
    from site_agent.decide.key_files import encrypt_keys

    failed: list[int] = []

    def say(event: AttendEvent) -> None:
        found = CATALOGUE.get(event.code, Refusal).exit_code
        if event.code and found >= NetworkRefusal.exit_code:
            failed.append(found)
        if json:
            typer.echo(plain_json.dumps(asdict(event), ensure_ascii=False))
            return
        stamp = utc_now().strftime("%Y-%m-%d %H:%M")
        where = " ".join(part for part in (event.study, f"wave {event.wave}" if event.wave else "") if part)
        typer.echo(f"{stamp}  {': '.join(part for part in (where, event.what) if part)}  {event.detail}".rstrip())

    def rest(until: float, paused: bool) -> None:
        # The file alone is asked each second: reading the ledger that often is work for nothing.
        pause = open_desk(home).config.pause_file
        while time.monotonic() < until and pause.exists() == paused:
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))

    with nullcontext() if once or dry_run else _ended_when_told():
        left = os.environ.pop(_RESTING, "")
        if left and not (once or dry_run):
            until, paused = left.split()
            rest(float(until), paused == "1")
        while True:
            # Opened anew each round: settings and plans may have changed since.
            desk = open_desk(home)
            was_paused = desk.config.pause_file.exists()
            if not dry_run:
                sweep(desk.home)
                with suppress(LockedRefusal):  # the next round does it
                    encrypt_keys(desk.config)
            attend(
                desk,
                site=partial(working_site, desk),
                now=agent_now(),
                say=say,
                dry_run=dry_run,
            )
            if once or dry_run:
                if failed:
                    raise typer.Exit(failed[0])
                return
            end = time.monotonic() + 60 * every
            _begin_anew(end, was_paused)
            rest(end, was_paused)


_RESTING = "TRIBUTARY_RESTING"
"""Until when, on the machine's clock, an agent that began anew waits; and whether it was paused."""


@contextmanager
def _ended_when_told() -> Iterator[None]:
    """Have SIGTERM end this process with 0, also as the first of a container, which the kernel would shield from it.

    A round that it breaks off is taken up by the next one, as after any other end.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begin_anew(until: float, paused: bool) -> None:
    """Put a fresh process in the place of this one, under its id, if a round has loaded what waiting does not need.

    It holds no lock and no connection between two rounds, and opens everything anew for each.
    """
    if not {"pandas", "scipy"} & sys.modules.keys() or Path(sys.argv[0]).name not in ("site-agent", "__main__.py"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[_RESTING] = f"{until} {int(paused)}"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # one that comes meanwhile is for the fresh process
    try:
        with suppress(OSError):  # then this process waits
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    del os.environ[_RESTING]


@verb(app, "withdraw-person", noted="withdraw-person")
def withdraw_person(
    desk: Desk,
    study: Study,
    id_file: Annotated[
        Path, typer.Option("--id-file", exists=True, dir_okay=False, help="Identifiers as in the table, one a line.")
    ],
    name: As,
    by_lot: Annotated[
        bool,
        typer.Option("--by-lot", help="Let others, drawn by lot, leave with them for good, so that no wave waits."),
    ] = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Note that persons withdrew their consent: they are drawn no more, and leave the table as the plan allows."""
    from site_agent.config import Limits
    from site_agent.decide import waves
    from site_agent.decide.airlock import person_changes, tables
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    plan = desk.plans.plan(study)
    if plan.dictionary.person is None:
        raise UsageRefusal("the study must have a person column", given="none", next_step="Call the study lead.")
    lines = _identifiers(desk, study, id_file)
    persons = set(lines)
    noted = desk.ledger.persons_withdrawn(study)
    added = len(persons - noted)
    lot: frozenset[str] = frozenset()
    if by_lot and plan.returning != "append":  # an append takes nobody out of the table, and waits for nobody
        floors = Limits.of(plan.floors, desk.config.floors)
        lot = waves.by_lot(desk.ledger, study, persons | noted, others=floors.difference, floor=floors.persons)
    if not dry_run:
        gone = person_changes.consent_withdrawn(desk, study, persons | lot, by=Approver.at(desk, name))
        added = gone - len(lot)
    released = {
        person for hold in desk.ledger.holds(study) if hold.may_be_out for person in desk.ledger.persons(hold) or ()
    }
    there = tables.persons(desk, study)
    nowhere = sorted(lines[person] for person in persons - released - (there or set()))
    elsewhere = [other for other in desk.plans.studies() if other != study]
    answer = {
        "study": study,
        "given": len(persons),
        "added": added,
        "released_before": len(persons & released),
        "in_table": None if there is None else len(persons & there),
        "lines_of_nobody": nowhere,
        "by_lot": len(lot),
        "by": name,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent.show import screens

        noted_by = f"{added} noted, signed by {name}"
        screens.heading(out, f"Withdrawn from {study}", "dry run, nothing noted" if dry_run else noted_by)
        out.print(f"{answer['given']} identifiers, {answer['released_before']} of them in an earlier release.")
        _say_nowhere(out, nowhere, read=there is not None)
        if elsewhere:
            out.print(f"In other studies here they stay until it is noted there too: {', '.join(elsewhere)}.")
        out.print("They are kept as pseudonyms only, and are drawn in no later wave.")
        if plan.returning == "append":
            out.print("Waves of this plan only add persons: what was released of somebody stays in the answers.")
        else:
            out.print(
                "Whoever was released leaves the table with a later wave, and only together with at least 10 others."
            )
        out.print("What was delivered already: site-agent withdraw, with the lead.")
        if lot:
            out.print(f"{len(lot)} others, drawn by lot, leave with them and stay away: the next wave need not wait.")
        elif plan.returning != "append" and not by_lot:
            out.print("Until so many leave, a wave waits. With --by-lot others leave with them, and it does not.")
        screens.next_step(out, f"site-agent waves {study}")

    return VerbAnswer(answer, show)


def _identifiers(desk: Desk, study: str, file: Path) -> dict[str, int]:
    """Pseudonym of each identifier in a file to the first line that has it. Raises: UsageRefusal."""
    from site_agent.records.identifiers import normalised
    from site_agent.records.pseudonyms import pseudonym

    try:
        written = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        step = "Save it as text in UTF-8, with one identifier in each line."
        rule = "the file of identifiers must be UTF-8"
        raise UsageRefusal(rule, given="another encoding", next_step=step) from None
    key, as_written = desk.snapshot_key(study), desk.ledger.as_written(study)
    found: dict[str, int] = {}
    for place, one in enumerate(written, start=1):
        if one:
            found.setdefault(pseudonym(one if as_written else normalised(one), key=key), place)
    if not found:
        raise UsageRefusal("the file must hold at least one identifier", given="none")
    return found


def _say_nowhere(out: Console, lines: list[int], *, read: bool) -> None:
    """Which lines are of nobody who is known: written otherwise than in the table, they would withdraw nobody."""
    if not lines:
        return
    which = ", ".join(map(str, lines[:20])) + (", …" if len(lines) > 20 else "")
    where = "in no release and not in the table as it is now" if read else "in no release, and the table cannot be read"
    out.print(f"{len(lines)} of them are {where}: line {which} of the file.", style="bold yellow")
    out.print("Are they written as in the table, without a header, quotes or separators? If not, run this again.")
