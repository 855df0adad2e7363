"""Making a release, and looking at it: ``try``, ``release``, ``curve``, ``synthetic``, ``outbox``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import StateRefusal, UsageRefusal
from shared.privacy.stated import shown_epsilon, shown_price
from shared.releases.synthetic import DrawNumber, Draws, Out, Rows
from shared.terminal import VerbAnswer
from site_agent.cli.frame import Dry, Json, ReleaseId, Study, app, outbox_app, screen, verb
from site_agent.decide.plan_facts import approving, plan_changes, plan_facts
from site_agent.desk import agent_now, agent_version, today, working_site

if TYPE_CHECKING:
    from rich.console import Console

    from shared.plans.plan import StudyPlan
    from site_agent.decide.airlock.standing_approval import StandingUse
    from site_agent.desk import Desk
    from site_agent.release.pipeline.opened import SealedRelease
    from site_agent.release.pipeline.stages import Progress, RunEstimate

__all__ = ["curve", "outbox_figures", "outbox_list", "outbox_show", "release", "synthetic", "try_"]


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress | None]:
    """A progress bar with stage and time left on a terminal; one line per stage in a log; nothing with ``--json``."""
    from shared.terminal import console

    if quiet:
        yield None
        return
    out = console(stderr=True)
    if not out.is_terminal:
        last: list[str] = []

        def line(stage: Any, share: float, left: float | None) -> None:
            if last != [stage.value]:
                last[:] = [stage.value]
                out.print(f"{share:4.0%}  {stage.value}")

        yield line
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=36),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}", style="dim"),
        console=out,
        transient=True,
    ) as drawn:
        task = drawn.add_task("starting", total=1.0, left="")

        def move(stage: Any, share: float, left: float | None) -> None:
            drawn.update(task, description=stage.value, completed=share, left=_left(left))

        yield move


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


@verb(app, "try")
def try_(desk: Desk, study: Study, json: Json = False, dry_run: Dry = False) -> VerbAnswer:
    """Rehearse the whole release on made-up data: no record is read, it costs nothing, nothing is sent."""
    from site_agent.release.pipeline.rehearsal import rehearse

    plan = desk.plans.plan(study)
    folder = desk.home / "rehearsal" / study
    if dry_run:
        return VerbAnswer({"study": study, "folder": folder, "dry_run": True}, f"Would use {folder}.")
    with _bar(json) as progress:
        done = rehearse(
            plan=plan,
            folder=folder,
            name=desk.config.site,
            agent_version=agent_version(),
            floors=desk.config.floors,
            today=today(),
            progress=progress,
            home=desk.home,
        )
    refused = done.refused and {"code": done.refused.code, "must": done.refused.must, "given": done.refused.given}
    rows = 0 if done.release is None else len(done.release.table)
    answer = {"study": study, "folder": folder, "rows": rows, "cost": 0, "refused": None, "finding": refused}

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"Rehearsal of {study}", "made-up data, cost 0, nothing sent")
        if done.release is not None:
            what = "noisy figures of made-up rows" if done.release.holds_figures else "made-up rows"
            out.print(f"{rows} {what} went all the way to a sandbox outbox in {folder}.")
        if done.refused is not None:
            screens.note(out, f"On the made-up table a gate said no: {done.refused.must}, got {done.refused.given}.")
            out.print("That is about uniform made-up values, not about your patients.")
        out.print("It shows that the steps work here. It says nothing about how your table will fare.")
        screens.next_step(out, f"site-agent data check {study}", approving(plan))

    return VerbAnswer(answer, show)


@contextmanager
def _told_of_the_charge(desk: Desk, study: str, wave: int) -> Iterator[None]:
    """Say after Ctrl-C whether the wave is charged already, and that going on costs nothing more."""
    try:
        yield
    except KeyboardInterrupt:
        mine = [hold for hold in desk.ledger.holds(study) if hold.wave == wave and hold.phase in ("held", "sealed")]
        if mine:
            said = f"Stopped. Wave {wave} is charged ({shown_price(mine[-1].epsilon, mine[-1].given)})"
            said += f"; site-agent release {study} --wave {wave} goes on with it, and charges nothing more."
        else:
            said = "Stopped before anything was charged."
        typer.echo(said, err=True)
        raise


@verb(app, noted="release")
def release(
    desk: Desk,
    study: Study,
    wave: Annotated[
        int, typer.Option("--wave", help="Number of the planned wave; the one that is due if left out.")
    ] = 0,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="The approver who has it made.")] = None,
    json: Json = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Make the release of one wave, and hold it here for approval. Charged once; only a standing approval sends it."""
    from site_agent.decide.airlock import drawing
    from site_agent.release.pipeline import before_charge, stages
    from site_agent.show import screens

    now = agent_now()
    wanted = drawing.wanted(desk, study, wave=wave, by=by, now=now)
    plan, wave = wanted.plan, wanted.wave
    needs = stages.estimate(plan, wanted.source)
    if dry_run:
        warnings = before_charge.require_able(plan, wanted.source, working_site(desk, None))
        return _estimated(desk, plan, wave, needs, warnings)
    if by is not None:
        desk.approver(by)  # only who can open the key may be named as the author
    with _bar(json) as progress:
        drawn = drawing.draw(
            desk,
            wanted,
            now=now,
            progress=progress,
            around=lambda: _told_of_the_charge(desk, study, wave),
        )
    made, found, sent = drawn.made, drawn.standing, drawn.sent
    full = made.hold.release_id
    standing = {"used": found.used, "limit": found.limit}
    if plan.floors.approval == "before" and made.hold.state != "delivered":
        seen = {"release_id": full, "study": study, "wave": wave, "state": made.hold.state, "standing": standing}

        def unseen(out: Console) -> None:
            out.print(f"Drawn and sealed, {made.hold.state}: nobody is shown it before it is delivered. {found.limit}")
            screens.next_step(out, "site-agent run")

        return VerbAnswer({**seen, "accepted": sent}, unseen)

    return VerbAnswer(
        {**_described(made), "standing": standing, "accepted": sent},
        lambda out: _show_made(out, made, found, sent, rows=plan.release.draws_rows),
    )


def _estimated(desk: Desk, plan: StudyPlan, wave: int, needs: RunEstimate, warnings: Sequence[str]) -> VerbAnswer:
    """Answer of a dry run: time, memory and privacy price of the release, and warnings of what may stop it."""
    from site_agent.release.pipeline import stages
    from site_agent.show import screens

    page = plan_facts(desk, plan, today())
    total = desk.ledger.study_total(plan.study, plan.budget.delta)
    answer = {
        "study": plan.study,
        "wave": wave,
        "estimate": needs,
        "warnings": list(warnings),
        "price": page["price"],
        "spent": total.stated,
        "epsilon_given": total.given,
        "dry_run": True,
    }

    def show_plan(out: Console) -> None:
        screens.heading(out, f"{plan.study}, wave {wave}", "dry run: rows were counted; nothing charged, drawn or sent")
        screens.settings(
            out,
            [
                ("rows", f"about {needs.n}"),
                ("takes", f"about {_left(needs.seconds).removesuffix(' left')} and {needs.memory_mb:.0f} MB"),
                ("bundle", f"about {needs.bundle_mb:.2g} MB"),
                (
                    "price",
                    shown_price(page["price"]["epsilon"], page["price"]["epsilon_given"], delta=plan.budget.delta),
                ),
                (
                    "spent so far",
                    f"ε = {shown_price(total.epsilon, total.given)}, of {shown_epsilon(plan.budget.epsilon)}",
                )
                if page["price"]["epsilon"] is not None
                else ("budget", "no total holds it"),
                ("stages", " → ".join(stage.value for stage in stages.weights_of(plan))),
            ],
        )
        for warning in warnings:
            screens.note(out, warning)

    return VerbAnswer(answer, show_plan)


def _show_made(
    out: Console, made: SealedRelease, found: StandingUse, sent: Mapping[str, Any] | None, *, rows: bool
) -> None:
    """A release that is sealed now, whether it has gone out, and what its approver can do."""
    from site_agent.show import screens

    screens.release_page(out, made)
    out.print()
    short = made.hold.release_id[:8]
    if sent is not None:
        out.print(f"Approved by the standing approval of {found.used}, and sent: every limit of it holds.")
        out.print(f"The coordinator accepted it as entry {sent['log_index']} of its log.")
        screens.next_step(out, "site-agent budget")
        return
    if found.used:
        out.print(f"Approved by the standing approval of {found.used}; another person must approve it as well.")
    if found.limit:
        out.print(f"The standing approval was not used: {found.limit}.")
    out.print("It is held here. Nothing has been sent. Approving sends these bytes; another draw is another charge.")
    screens.next_step(
        out,
        f"site-agent outbox show {short}",
        *([f"site-agent outbox figures {short}"] if rows else []),
        f"site-agent approve {short} --as NAME{''.join(f' --tick {c.name}' for c in made.warnings)}",
        f"site-agent reject {short} --as NAME --reason …",
    )


MADE_UP_ROWS = 600


@verb(app)
def curve(
    desk: Desk,
    study: Study,
    made_up: Annotated[
        bool, typer.Option("--made-up", help="On a table made from the dictionary; no plan need be approved.")
    ] = False,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE.svg", help="A name in the site folder's figures; .svg, .png or .pdf.")
    ] = "",
    json: Json = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """True price, attacks and planned estimates against w. Its draws are outside the ledger, forgotten, and never sent.

    It fits one flow and draws from it many times, here, in memory. What is kept is the curve: aggregates, in a file
    that only its owner can read. On real records it needs the approved plan: choosing w by it is a look at the data.
    """
    from shared.base.randomness import secure_rng
    from shared.plans.encoding import Encoder
    from site_agent.records import table as records
    from site_agent.records.mapping.repeated import one_row_each
    from site_agent.release.pipeline import rehearsal
    from site_agent.show.curve import DRAWS, GRID, price_curve, require_allowed

    name = out or f"curve-{study}{'-made-up' if made_up else ''}.svg"
    path = _figure_path(desk.home, name)
    if made_up:
        plan = desk.plans.plan(study)
        rows = MADE_UP_ROWS
    else:
        desk.require_running()
        plan, _ = desk.plans.approved(study, agent_now())
        require_allowed(plan, made_up=False)
        rows = records.count(desk.config.source(study))
    d = Encoder(dictionary=plan.dictionary).d
    if dry_run:
        answer = {
            "study": study,
            "rows": rows,
            "columns": d,
            "weights": GRID,
            "draws": DRAWS,
            "file": path,
            "dry_run": True,
        }
        return VerbAnswer(
            answer,
            f"Would fit one flow on about {rows} rows, draw {DRAWS} times at {len(GRID)} weights, and write {path}.",
        )
    rng = secure_rng()
    with _bar(json) as progress:
        if made_up:
            made = one_row_each(rehearsal.made_up_table(plan, rows, rng), plan.dictionary)
            table = plan.dictionary.check(made)
        else:
            table = records.read(
                desk.config.source(study),
                plan.dictionary,
                key=desk.snapshot_key(study),
                as_written=desk.ledger.as_written(study),
            ).table
        drawn = price_curve(plan=plan, table=table, rng=rng, made_up=made_up, progress=progress)
    _write_figures({path: ("curve", drawn)})

    return VerbAnswer(
        {**drawn.to_canonical(), "sentences": drawn.sentences(), "file": path, "dry_run": False},
        screen.curve_page(drawn),
        f"Drawn in {path}, which only its owner can read.",
        screen.next_step(f"site-agent plan show {study}"),
    )


@verb(app)
def synthetic(
    desk: Desk,
    release: Annotated[str, typer.Argument(metavar="ID|STUDY", help="A release's id, or a study: its newest release.")],
    out: Out,
    rows: Rows = 0,
    m: Draws = 1,
    draw: DrawNumber = 0,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Draw synthetic rows from a sealed release of noisy figures: no record is read, it costs nothing, nothing is sent.

    What is fitted are the very bytes that leave or have left, so that whoever receives them can do the same.
    """
    from shared.releases.synthetic import Synthesis, run_synthesis
    from site_agent.decide.airlock import approval

    sealed = [hold for hold in desk.outbox.list() if hold.study == release]
    named = sealed or [desk.outbox.get(desk.release_id(release))]
    standing = [hold for hold in named if hold.state not in ("burnt", "rejected", "withdrawn")]
    if not standing:
        raise StateRefusal(
            "rows must be drawn from a release that was neither burnt, nor rejected, nor withdrawn",
            given=f"{named[-1].release_id[:8]}, which is {named[-1].state}",
            next_step="See site-agent outbox list, and name one that stands.",
        )
    made = approval.shown(desk, standing[-1].release_id)
    plan = desk.plans.plan(made.hold.study, made.receipt.plan_version)
    used = {
        "release_id": made.hold.release_id,
        "bundle_sha256": made.hold.bundle_sha256,
        "receipt": made.receipt.hash,
    }
    about = {"study": made.hold.study, "site": desk.config.site, "wave": made.hold.wave, "releases": [used]}
    planned = Synthesis(plan, [(made.table, made.receipt.n)], about=about, number=draw, rows=rows, draws=m)
    return run_synthesis(
        planned,
        out,
        dry_run=dry_run,
        note="The ledger did not move. The rows are here and nowhere else: nobody has approved that they leave.",
    )


def _figure_path(home: Path, name: str) -> Path:
    """Path of a figure of this site: within its folder, whatever the name says."""
    folder = (home / "figures").resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(home.resolve()):
        raise UsageRefusal(
            "a figure drawn from records must stay in the site's folder",
            given="a path outside",
            next_step="Give a name.",
        )
    if path.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise UsageRefusal("a figure must end in .svg, .png or .pdf", given=repr(path.name), next_step="Name it so.")
    return path


def _write_figures(figures: dict[Path, tuple[str, Any]]) -> None:
    """Draw and write, readable by the owner alone."""
    from shared.base.keys import write_private
    from site_agent.show.figures import curve_figure, figure_bytes

    for path, (kind, what) in figures.items():
        figure = curve_figure(what) if kind == "curve" else what
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, figure_bytes(figure, path.suffix.lower().lstrip(".")))


def _described(made: Any) -> dict[str, Any]:
    hold, receipt = made.hold, made.receipt
    return {
        "release_id": hold.release_id,
        "study": hold.study,
        "wave": hold.wave,
        "state": hold.state,
        "rows": len(made.table),
        "columns": list(made.table.columns),
        "bundle_sha256": hold.bundle_sha256,
        "bundle_bytes": hold.bundle_bytes,
        "recipient": receipt.recipient,
        "epsilon": receipt.stated_epsilon,
        "epsilon_given": receipt.given,
        "delta": receipt.delta,
        "study_epsilon": receipt.stated_study_epsilon,
        "translation": receipt.stated_translation,
        "not_covered": receipt.not_covered,
        "checks": made.checks,
        "warnings": [{"name": check.name, "detail": check.detail} for check in made.warnings],
        "audit": made.audit,
        "approvals": [approval.name for approval in hold.approvals],
        "approvals_needed": hold.approvals_needed,
        "author": hold.author,
    }


@verb(outbox_app, "list")
def outbox_list(desk: Desk) -> VerbAnswer:
    """Every sealed release and its state."""
    rows = [
        {
            "release_id": hold.release_id,
            "study": hold.study,
            "wave": hold.wave,
            "state": hold.state,
            "approvals": len(hold.approvals),
            "approvals_needed": hold.approvals_needed,
            "epsilon": hold.epsilon,
            "epsilon_given": hold.given,
            "day": hold.day,
            "reason": hold.reason,
        }
        for hold in desk.outbox.list()
    ]

    waiting = [str(row["release_id"]) for row in rows if row["state"] in ("held", "sent_back", "approved")]
    return VerbAnswer(
        {"releases": rows},
        screen.heading("Outbox"),
        screen.outbox(rows),
        screen.next_step(f"site-agent outbox show {waiting[0][:8]}") if waiting else None,
    )


@verb(outbox_app, "show")
def outbox_show(
    desk: Desk,
    release_id: ReleaseId,
    rows: Annotated[int, typer.Option("--rows", min=0, help="How many rows to show.")] = 8,
) -> VerbAnswer:
    """The exact rows that would leave, with size, checks, audit, price, and what changed in the plan."""
    from site_agent.decide.airlock import approval, overview
    from site_agent.show import screens

    made = approval.shown(desk, desk.release_id(release_id))
    changes = plan_changes(desk, made)
    earlier = overview.compare(desk, made)
    answer = {
        **_described(made),
        "plan_changes": changes,
        "earlier": earlier,
        "first_rows": _rows(made.table, rows),
    }

    def show(out: Console) -> None:
        screens.release_page(out, made, changes=changes, earlier=earlier, rows=rows)
        short = made.hold.release_id[:8]
        if made.hold.state in ("held", "sent_back"):
            plan = desk.plans.plan(made.hold.study, made.receipt.plan_version)
            screens.next_step(
                out,
                *([f"site-agent outbox figures {short}"] if plan.release.draws_rows else []),
                f"site-agent approve {short} --as NAME{''.join(f' --tick {c.name}' for c in made.warnings)}",
                f"site-agent send-back {short} --as NAME --reason …",
                f"site-agent reject {short} --as NAME --reason …",
            )
        elif made.hold.state == "approved":
            screens.next_step(out, f"site-agent approve {short} --as NAME        (sends the same bytes again)")

    return VerbAnswer(answer, show)


@verb(outbox_app, "figures")
def outbox_figures(
    desk: Desk,
    release_id: ReleaseId,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A folder; figures/ID in the site's folder without it.")
    ] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Draw for the approver: released columns beside the real ones, and what the attack achieved. They stay here."""
    from site_agent.decide.airlock import approval
    from site_agent.release.audit.report import AuditReport
    from site_agent.show import preview, screens

    full = desk.release_id(release_id)
    made = approval.shown(desk, full)
    plan = desk.plans.plan(made.hold.study, made.receipt.plan_version)
    folder = (out or desk.home / "figures" / full[:8]).expanduser().absolute()
    title = f"{made.hold.study}, wave {made.hold.wave}"
    audited = AuditReport.from_canonical(made.audit) if "membership" in made.audit else None
    real = preview.real_rows(desk, made, plan)
    drawn: dict[Path, tuple[str, Any]] = {}
    alternatives: list[str] = []
    planned: tuple[preview.PlannedTerm, ...] = ()
    if not real.same:
        alternatives.append("The table has changed since this release was drawn; the real columns are those of today.")
    if plan.release.draws_rows:
        planned = preview.planned_terms(plan, real.table, made.table)
    if not dry_run:
        from site_agent.show.figures import attack_figure, margins_figure

        names = list(plan.dictionary.names)
        if names:
            drawn[folder / "columns.svg"] = (
                "columns",
                margins_figure(real.table, made.table[names], plan.dictionary, title=f"{title}: released columns"),
            )
        else:
            alternatives.append("This release has no columns to draw: it is a network of persons without attributes.")
        if audited is not None and audited.likelihood is not None:
            drawn[folder / "attack.svg"] = (
                "attack",
                attack_figure(audited.likelihood, title=f"{title}: an attack we tried", detail="others may do better"),
            )
        _write_figures(drawn)
    if audited is None or audited.likelihood is None:
        alternatives.append("This release has no attack to draw.")
    files = sorted(drawn)

    def show(out: Console) -> None:
        screens.heading(out, title, "dry run, nothing written" if dry_run else f"release {full[:8]}")
        for path in files:
            out.print(str(path), soft_wrap=True)
        for line in alternatives:
            screens.note(out, line)
        screens.planned(out, planned)
        out.print("Drawn from records: only the owner of these files can read them, and they stay here.")
        screens.next_step(out, f"site-agent outbox show {full[:8]}")

    return VerbAnswer(
        {
            "release_id": full,
            "files": files,
            "folder": folder,
            "planned": planned,
            "notes": alternatives,
            "dry_run": dry_run,
        },
        show,
    )


def _rows(table: Any, rows: int) -> list[dict[str, Any]]:
    import json

    found: list[dict[str, Any]] = json.loads(table.head(rows).to_json(orient="records"))
    return found
