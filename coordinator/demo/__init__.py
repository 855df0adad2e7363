"""`tributary demo`: the whole product on one machine, as separate processes, with real keys and real budgets.

A coordinator and one agent per hospital run on loopback and talk mutual TLS, exactly as they would across a city
(`stage`). What only a demo may do is pool the *real* tables too, because here they are simulated (or public), so that
the released answer can be held against the true one. What is shown is a `play.Play`, one per study; `answers` draws it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.demo.catalogue import PLAYS, play_of
from coordinator.demo.play import STUDIES, DemoOptions
from coordinator.demo.stage import STATE_MARK, DemoStage
from coordinator.demo.warm import Aside, launcher
from shared.base.process import keep_freed
from shared.errors import ParameterError, StateRefusal, require
from shared.terminal import application, console, emit, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

__all__ = ["app", "main"]

app = application("Tributary on one machine.", bare=True)


@app.callback()
def tributary() -> None:
    """Federated multi-site meta-analysis: see the demo, then `site-agent`, `coordinator` and `analyst`."""


@app.command()
def demo(
    study: Annotated[str, typer.Option(help=f"Which study: {', '.join(PLAYS)}.")] = "cvd",
    data: Annotated[Path | None, typer.Option(help="Folder of the hospitals' CSV files (heart).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and tables.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option(help="Seed of the simulated tables.")] = 1,
    scale: Annotated[float, typer.Option(help="Share of the simulated tables' sizes.")] = 1.0,
    sites: Annotated[int | None, typer.Option(help="Only the largest so many hospitals.")] = None,
    workers: Annotated[int, typer.Option(help="Hospitals at work at the same time.")] = 2,
    epsilon: Annotated[float | None, typer.Option(help="ε of a release of noisy moments (cohorts).")] = None,
) -> None:
    """Run a study from the hospitals' tables to a forest plot: coordinator and agents as separate processes."""
    require("grpc", "sqlalchemy", "pyarrow", "matplotlib", "starlette", part="site,coordinator")
    options = DemoOptions(study=study, seed=seed, scale=scale, sites=sites, data=data, epsilon=epsilon)
    shown = play_of(options)
    require(*shown.needs, part="site,coordinator")
    if epsilon is not None and study != "cohorts":
        raise ParameterError("--epsilon must come with --study cohorts", given=study)
    keep_freed()
    out.mkdir(parents=True, exist_ok=True)
    state = out / STATE_MARK
    if state.exists():
        shutil.rmtree(state)
    started = time.monotonic()
    # It imports what the commands are made of while this process makes the tables.
    with _progress() as report, closing(launcher({**os.environ, "OMP_NUM_THREADS": "1"})) as commands:
        tables = shown.tables(state / "tables")
        if not tables:
            raise ParameterError("there must be at least one hospital's table", given="none")
        # It imports while the coordinator is set up, one command after another: there is a core to spare.
        with closing(Aside(workers)) as aside:
            stage = DemoStage(
                out=out, launcher=commands, aside=aside, play=shown, tables=tables, workers=workers, report=report
            )
            stage.run()
            report(stage.steps, stage.steps, "asking the coordinator, drawing the figures")
            from coordinator.demo import answers

            found = shown.answers(stage)
            answers.write(found, shown, out, aside)
    answers.show(found, shown, out, time.monotonic() - started)


@app.command()
def example(
    study: Annotated[str, typer.Argument(help="Name of a shipped plan.")] = "first",
    out: Annotated[Path, typer.Option(help="Folder to write into.", file_okay=False)] = Path("."),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> None:
    """Write a shipped plan, and made-up tables of its hospitals, to go through a study by hand."""
    shipped = {path.stem: path for path in sorted(STUDIES.glob("*.toml"))}
    if study not in shipped:
        raise ParameterError(f"the study must be one of {', '.join(shipped)}", given=repr(study)[:40])
    shown = play_of(DemoOptions(study=study)) if study in PLAYS and study != "heart" else None
    with tempfile.TemporaryDirectory() as folder:
        made = list(shown.tables(Path(folder)).values()) if shown and shown.shipped in ("", study) else []
        files = {f"{study}.toml": shipped[study].read_bytes()}
        files |= {path.name: path.read_bytes() for table in made for path in sorted(table.parent.glob("*.csv"))}
    there = [name for name in files if (out / name).exists()]
    if there:
        raise StateRefusal("no file may be overwritten", given=", ".join(there), next_step="Take an empty folder.")
    if not dry_run:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)

    def show(screen: Console) -> None:
        for name in files:
            screen.print(f"{'would write' if dry_run else 'wrote'} {out / name}")
        screen.print(f"next: coordinator plan check {out / f'{study}.toml'}", style="cyan")

    emit({"study": study, "files": sorted(files), "written": not dry_run}, as_json=json, show=show)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar with the stage and the time left; plain lines where there is no terminal."""
    screen = console()
    if not screen.is_terminal:
        begun, reported = time.monotonic(), -1

        def line(done: int, steps: int, what: str) -> None:
            nonlocal reported
            if done != reported:
                reported = done
                screen.print(f"{time.monotonic() - begun:5.0f} s  {done:3d}/{steps}  {what}", highlight=False)

        yield line
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("[bold]tributary[/]"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=screen,
    ) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, steps, what: bar.update(task, completed=done, total=steps, description=what)


def main(argv: list[str] | None = None) -> None:
    """Entry point of ``tributary``."""
    raise SystemExit(run(app, name="tributary", argv=argv))


if __name__ == "__main__":
    main()
