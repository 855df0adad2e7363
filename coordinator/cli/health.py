"""Health of the coordinator: ``doctor``, ``ig-pack``; readings of the clocks: ``clock``, ``confirm``, ``repair``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import DryRun, Json, app, clock_app, lead_keys, open_store, today, verb
from coordinator.config import CoordinatorConfig
from shared.errors import ParameterError, StoreAway
from shared.terminal import VerbAnswer, checklist, emit, table

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.store.store import Store

__all__ = ["clock", "clock_confirm", "clock_repair", "doctor", "ig_pack"]


@verb(app, rich_help_panel="Set up")
def doctor(config: CoordinatorConfig) -> VerbAnswer:
    """Look at everything that could stop the service: each line is green, or says how to mend it."""
    from coordinator.services.authority import Authority
    from coordinator.services.health import diagnose, without_store

    authority = Authority.load(config.home)
    try:
        with open_store(config, reads=True) as store:
            found, code = diagnose(config, authority, store)
    except StoreAway as refusal:
        found, code = without_store(config, authority, refusal)
    return VerbAnswer({"checks": found, "exit_code": code}, lambda out: checklist(out, found), code=code)


@verb(app, "ig-pack", rich_help_panel="Set up")
def ig_pack(
    config: CoordinatorConfig,
    store: Store,
    out: Annotated[Path, typer.Option("--out", help="A new folder.", file_okay=False)],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write what an information governance team asks for, from settings and plans: data flow, ports, roles, DPIA, …"""
    from coordinator.operations.governance import pack
    from coordinator.services.analysts import Analysts
    from shared.releases.governance import write_pack

    files = pack(config, store, lead_keys(config), Analysts(store).accounts())
    about = f"Information governance pack of coordinator {config.name}"
    names = sorted(files) if dry_run else write_pack(out, files, about=about, day=today())
    return VerbAnswer(
        {"out": str(out), "files": names, "written": not dry_run},
        (f"{'would write' if dry_run else 'wrote'} {len(names)} files into {out}", "bold"),
        "\n".join(f"  {name}" for name in names),
    )


@clock_app.callback(invoke_without_command=True)
def clock(context: typer.Context, json: Json = False) -> None:
    """Show what every site's signed reading says of this clock, whether it is believed, and what is dated wrongly."""
    if context.invoked_subcommand:
        return
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks
    from coordinator.services.health import misdated

    config = CoordinatorConfig.load(context.obj)
    with open_store(config, reads=True) as store:
        authority = Authority.load(config.home)
        clocks, now = SeenClocks(store, authority.certificate), authority.now()
        verdict, readings, wrong = clocks.verdict(now), clocks.readings(), misdated(authority, store)
    answer = {
        "now": now,
        "believed": verdict.believed,
        "why": verdict.why,
        "sites": [{"site": one.site, "offset": one.offset, "state": one.state, "day": one.day} for one in readings],
        "misdated": [{"whose": whose, "wrong": what} for whose, what in wrong],
    }

    def show(out: Console) -> None:
        state = "believed" if verdict.believed else "not believed: no certificate and no invitation is issued"
        out.print(f"{now:%Y-%m-%d %H:%M:%S} UTC, {state}", style="green" if verdict.believed else "bold red")
        out.print(f"  {verdict.why}")
        if readings:
            out.print(table(["site", "its clock", "read on"], [[one.site, one.words, one.day] for one in readings]))
        for whose, what in wrong:
            out.print(f"certificate of {whose}: {what}", style="yellow")
        if not verdict.believed:
            out.print(
                'next: set the clock (NTP), then coordinator clock confirm --utc "YYYY-MM-DD HH:MM"', style="cyan"
            )
        elif wrong:
            out.print("next: coordinator clock repair", style="cyan")

    emit(answer, as_json=json, show=show)


@verb(clock_app, "confirm")
def clock_confirm(
    config: CoordinatorConfig,
    store: Store,
    utc: Annotated[str, typer.Option("--utc", help="Date and time off another clock, in UTC: 2026-12-31 23:59.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Say that another clock, which is not this machine's, has this time: for a week this one is then believed."""
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks

    try:
        said = dt.datetime.fromisoformat(utc)
    except ValueError:
        step = "Read it off a clock that is not this machine's, in UTC."
        raise ParameterError(
            "--utc must be a date and a time, as 2026-12-31 23:59", given=repr(utc), next_step=step
        ) from None
    said = said.replace(tzinfo=dt.UTC) if said.tzinfo is None else said.astimezone(dt.UTC)
    authority = Authority.load(config.home)
    SeenClocks(store, authority.certificate).confirm(said, authority.now(), dry_run=dry_run)
    words = f"{'would confirm' if dry_run else 'confirmed'} this machine's clock, {authority.now():%Y-%m-%d %H:%M} UTC"
    return VerbAnswer({"confirmed": not dry_run, "now": authority.now()}, words)


@verb(clock_app, "repair")
def clock_repair(config: CoordinatorConfig, store: Store, dry_run: DryRun = False) -> VerbAnswer:
    """Make anew what a wrong clock has dated: the server's certificate, and sites' that they could not use yet."""
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks
    from coordinator.services.health import misdated, repair

    authority = Authority.load(config.home)
    wrong = misdated(authority, store)
    if wrong:
        SeenClocks(store, authority.certificate).verdict(authority.now()).require()
    done = []
    for whose, what in wrong:
        mended = repair(whose, authority, store, dry_run=dry_run)
        done.append({"whose": whose, "wrong": what, "made_anew": mended and not dry_run, "can_be": mended})

    def show(out: Console) -> None:
        if not done:
            out.print("Every certificate in use has the dates it should have.", style="green")
        for one in done:
            verb = "would be made anew" if dry_run else "made anew"
            after = verb if one["can_be"] else "its site has it in use: leave it, or revoke the site and invite it anew"
            out.print(f"certificate of {one['whose']}: {one['wrong']}; {after}")

    return VerbAnswer({"certificates": done, "dry_run": dry_run}, show)
