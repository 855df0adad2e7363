"""`tributary demo`: the whole product on one machine, as separate processes, with real keys and real budgets.

A coordinator and one agent per hospital run on loopback and talk mutual TLS, exactly as they would across a city.
Everything goes through the command lines that people use; this module starts processes and reads their answers. What
only a demo may do is pool the *real* tables too, because here they are simulated (or public), so that the released
answer can be held against the true one.

The studies: ``cvd``, twelve simulated cohorts with the sizes, means, standard deviations and event rates of Table 3
of the Latent Noise Injection paper; ``cohorts``, the same tables released as noisy moments at a small ε, beside their
latent noise; ``heart``, the four hospitals of the UCI heart disease records (`--data`).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shared.errors import NetworkRefusal, ParameterError, StateRefusal, refusal_from_code
from shared.terminal import application, console, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.pooling import PooledResult
    from shared.estimands import Estimate
    from shared.plan import StudyPlan

__all__ = ["Demo", "app", "main"]

STUDIES = Path(__file__).resolve().parent.parent / "deploy" / "studies"
REAL, BASELINE = "real records", "released, w = 0"
FOCUS = {"cvd": ("sbp/10",), "cohorts": ("sbp/10",), "heart": ("age", "sex", "exang")}
"""The terms that each study is about; the others are adjusted for."""
STATE_MARK = "state"


@dataclass(kw_only=True)
class Demo:
    """A coordinator and its hospitals, under one folder.

    Args:
        out: where figures, tables and the state of all processes go.
        plan: path of the study plan (TOML).
        tables: hospital name to its CSV.
        workers: hospitals at work at the same time.
        epsilon: of the noisy moments, in place of the plan's.
        report: called with (steps done, all steps, what is happening).
    """

    out: Path
    plan: Path
    tables: Mapping[str, Path]
    workers: int = 2
    epsilon: float | None = None
    report: Callable[[int, int, str], None] = lambda done, steps, what: None
    done: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    passphrase: str = field(default_factory=lambda: secrets.token_urlsafe(12), init=False, repr=False)

    def __post_init__(self) -> None:
        self.state = self.out / STATE_MARK
        self.hub = self.state / "coordinator"
        self._counting = Lock()
        self.study, self.plans = _two_plans(self.plan.read_text(encoding="utf-8"), dt.date.today(), self.epsilon)

    # -- processes ------------------------------------------------------------------------------------------------
    def command(self, module: str, *arguments: str, home: Path | None = None) -> Any:
        """Run one command line to its end and return its JSON answer. Raises: the Refusal that it reported."""
        env = {**os.environ, "TRIBUTARY_PASSPHRASE": self.passphrase, "OMP_NUM_THREADS": "1"}
        if home is not None:
            env["TRIBUTARY_SITE_HOME"] = str(home)
        made = subprocess.run(
            [sys.executable, "-m", module, *arguments, "--json"],
            capture_output=True,
            text=True,
            env=env,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        answer = json.loads(made.stdout) if made.stdout.strip().startswith(("{", "[")) else {}
        if made.returncode:
            refused = answer.get("refused", {}) if isinstance(answer, dict) else {}
            given = f", got {refused['given']}" if refused.get("given") else ""
            text = f"{refused['must']}{given}. {refused['next_step']}" if refused else made.stderr[-600:]
            said = f"{module.split('.')[0].replace('_', '-')} {' '.join(arguments[:2])}"
            raise refusal_from_code(refused.get("code", "E_REFUSED"), f"{said}: {text.strip()}")
        return answer

    def coordinator(self, *arguments: str) -> Any:
        """One `coordinator` command."""
        return self.command("coordinator.cli", "--home", str(self.hub), *arguments)

    def agent(self, site: str, *arguments: str) -> Any:
        """One `site-agent` command at a hospital."""
        return self.command("site_agent.cli", *arguments, home=self.home(site))

    def home(self, site: str) -> Path:
        """The hospital's state folder."""
        return self.state / "hospitals" / site

    @contextmanager
    def serving(self, address: str) -> Iterator[None]:
        """The coordinator's server as a process of its own, stopped by its own id."""
        with (self.state / "coordinator.log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "--home", str(self.hub), "serve"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        try:
            _await(address, server)
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    # -- the story ------------------------------------------------------------------------------------------------
    def step(self, what: str) -> None:
        """Say that one more step is done."""
        with self._counting:
            self.done += 1
            self.report(self.done, self.steps, what)

    def run(self) -> None:
        """From nothing to every release of wave 1 accepted."""
        self.done, self.steps = 0, 3 + len(self.tables) * (2 + 2 * len(self.plans))
        self.report(0, self.steps, "setting up the coordinator")
        self.state.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.coordinator("init", "--address", address, "--listen", address)
        self.step("coordinator ready, keys made")
        for study, text in self.plans.items():
            path = self.state / f"{study}.toml"
            path.write_text(text, encoding="utf-8")
            self.coordinator("plan", "sign", str(path))
        self.step("plans signed by the lead")
        with self.serving(address), ThreadPoolExecutor(self.workers) as pool:
            self.step(f"coordinator serving on {address}")
            # The largest hospitals first: the last to finish decides when all are done.
            order = sorted(self.tables, key=lambda site: -self.tables[site].stat().st_size)
            futures = [pool.submit(self.hospital, site) for site in order]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def hospital(self, site: str) -> None:
        """One hospital: joins, approves the plans, releases, approves the exact bytes."""
        invitation = self.state / "invitations" / f"{site}.json"
        invitation.parent.mkdir(exist_ok=True)
        studies = [part for study in self.plans for part in ("--study", study)]
        self.coordinator("invite", site, *studies, "--out", str(invitation))
        made = self.agent(site, "init", "--invitation", str(invitation), "--approver", "steward")
        self.agent(site, "join")
        self.coordinator("accept", site, "--fingerprint", made["fingerprint"])
        self.agent(site, "join")
        self.step(f"{site}: joined")
        for study in self.plans:
            self.agent(site, "plan", "fetch", study)
            added = self.agent(site, "data", "add", str(self.tables[site]), "--as", study)
            if added["not_mapped"]:  # columns of the file that the study does not use
                self.agent(site, "data", "map", study, "--ignore-rest")
            open_questions = ["--understood", "local"] if 'posture = "local"' in self.plans[study] else []
            self.agent(site, "plan", "approve", study, "--as", "steward", *open_questions)
        self.step(f"{site}: table found, plans approved by the steward")
        for study in self.plans:
            self.report(self.done, self.steps, f"{site}: training, drawing once, attacking the draw ({study})")
            held = self.agent(site, "release", study, "--wave", "1")
            self.step(f"{site}: release of {study} waits in the outbox")
            ticks = [part for warning in held.get("warnings", []) for part in ("--tick", warning["name"])]
            self.agent(site, "approve", held["release_id"], "--as", "steward", *ticks)
            self.step(f"{site}: exact bytes approved and delivered ({study})")

    # -- the answer -----------------------------------------------------------------------------------------------
    def results(self) -> dict[str, Answer]:
        """Every planned question and focus term: pooled for real records, the release, and the w = 0 release."""
        from coordinator.config import Config
        from coordinator.queries import ask
        from coordinator.store import Store
        from shared.plan import StudyPlan
        from shared.prescriptions.latent_noise import mechanism

        plan, other = (StudyPlan.from_toml(text) for text in self.plans.values())
        label, beside = plan.release.title, BASELINE
        if plan.release.draws_rows:
            label = f"released, w = {mechanism(plan).w:.4g}"
        else:
            beside = f"latent noise, w = {mechanism(other).w:.4g}"
        answers: dict[str, Answer] = {}
        with closing(Store.open(self.hub, Config.load(self.hub).store)) as store:
            for name, formula in plan.estimands.items():
                for term in FOCUS.get(self.study, ("",)):
                    told = {study: ask(store, study, 1, formula, term=term) for study in self.plans}
                    sources = {source.site: source for source in told[self.study].sources}
                    others = {source.site: source.epsilon for source in told[other.study].sources}
                    key = f"{name}_{re.sub(r'[^a-z0-9]+', '', term)}" if len(FOCUS.get(self.study, ())) > 1 else name
                    answers[key] = Answer(
                        title=f"{plan.title}: {name}" + (f", {term}" if "_" in key else ""),
                        question=formula,
                        term=term,
                        arms={
                            label: told[self.study].result,
                            beside: told[other.study].result,
                            REAL: self._real(plan, formula, term),
                        },
                        epsilon={site: source.epsilon for site, source in sources.items()},
                        posture={site: source.posture for site, source in sources.items()},
                        others={} if beside == BASELINE else {beside: others},
                    )
        return answers

    def _real(self, plan: StudyPlan, formula: str, term: str) -> PooledResult:
        """Pool the real tables: possible here only because they are simulated or public."""
        import pandas as pd

        from coordinator.pooling import pool_estimates
        from shared.estimands import estimate, parse_estimand

        question = parse_estimand(formula)
        rows: list[Estimate] = []
        for site, path in sorted(self.tables.items()):
            source = pd.read_csv(path, dtype="string")
            known = [column.name for column in plan.dictionary.columns if column.name in source.columns]
            table = plan.dictionary.check(source[known])
            rows += estimate(table[list(plan.dictionary.names)], question, study=self.study, site=site, wave=1)
        return pool_estimates([row for row in rows if row.term == term])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, pooled three ways.

    Args:
        title, question, term: of the figure; the formula; what is pooled of it.
        arms: label to pooled result; the released one first.
        epsilon, posture: per site, of the released arm.
        others: per site, of an arm with a price of its own; each such study draws a figure per arm.
    """

    title: str
    question: str
    term: str
    arms: Mapping[str, PooledResult]
    epsilon: Mapping[str, float]
    posture: Mapping[str, str]
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def priced(self, label: str) -> Mapping[str, float]:
        """ε per site of an arm."""
        return self.others.get(label, self.epsilon)


def _two_plans(text: str, today: dt.date, epsilon: float | None = None) -> tuple[str, dict[str, str]]:
    """The study's plan with a calendar around today, and one for comparison.

    That is the same plan with w = 0; for noisy moments, latent noise as the paper sets it.
    """
    study = _setting(text, "study").strip('"')
    text = _around(text, today)
    if 'mechanism = "moments"' in text:
        if epsilon is not None:
            text = re.sub(r"^epsilon = \S+", f"epsilon = {float(epsilon)}", text, count=1, flags=re.MULTILINE)
        rows = _around((STUDIES / "cvd.toml").read_text(encoding="utf-8"), today)
        return study, {study: text, f"{study}-rows": rows.replace('study = "cvd"', f'study = "{study}-rows"', 1)}
    baseline = re.sub(r"^w = \S+", "w = 0.0", text, count=1, flags=re.MULTILINE)
    baseline = baseline.replace(f'study = "{study}"', f'study = "{study}-w0"', 1)
    return study, {study: text, f"{study}-w0": baseline}


def _around(text: str, today: dt.date) -> str:
    start, end = today.replace(month=1, day=1), today.replace(year=today.year + 1, month=12, day=31)
    for name, value in (("expires", end), ("opens", start), ("closes", end)):
        text = re.sub(rf"^{name} = \S+", f"{name} = {value}", text, flags=re.MULTILINE)
    return text


def _setting(text: str, name: str) -> str:
    found = re.search(rf"^{name} = (\S+)", text, flags=re.MULTILINE)
    if found is None:
        raise ParameterError(f"the plan must set {name} on a line of its own", given="none")
    return found[1]


def _await(address: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server accepts connections."""
    host, port = address.rsplit(":", 1)
    for _ in range(300):
        if server.poll() is not None:
            raise StateRefusal(
                "the coordinator must start", given=f"exit code {server.returncode}", next_step="See coordinator.log."
            )
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise NetworkRefusal("the coordinator must answer", given="no answer in 30 s", next_step="See coordinator.log.")


def write_answers(answers: Mapping[str, Answer], out: Path, study: str) -> None:
    """Figures (SVG, PDF, PNG), one table of all pooled values, and the same as JSON."""
    import pandas as pd

    from coordinator import figures
    from coordinator.client import pooled_data
    from shared.terminal import plain

    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    for key, answer in answers.items():
        first, *others = answer.arms
        ratio = answer.arms[first].scale == "log"
        unit = "Hazard ratio per 10 mmHg" if study in ("cvd", "cohorts") else f"Odds ratio, {answer.term}"
        given = "every record covered" if answer.others else "given the flow"
        for label in answer.arms if answer.others else ():
            figures.forest(
                answer.arms[label],
                title=f"{answer.title}: {label}",
                note=answer.question,
                xlabel=f"{unit} (log scale)" if ratio else unit,
                columns={} if label == REAL else {"ε": _words(answer.priced(label))},
                name=label,
                path=out / f"forest_{key}_{re.sub(r'[^a-z0-9]+', '_', label)}.svg",
            )
        for suffix in ("svg", "pdf", "png"):
            figures.forest(
                answer.arms[first],
                title=answer.title,
                note=f"{answer.question}; ε at the plan's δ, {given}. Real records: only in this demo.",
                xlabel=f"{unit} (log scale)" if ratio else unit,
                columns={
                    "Posture": dict(answer.posture),
                    "ε": _words(answer.epsilon),
                },
                name=first,
                compare={label: answer.arms[label] for label in others},
                path=out / f"forest_{key}.{suffix}",
            )
        document[key] = {"question": answer.question, "term": answer.term, "epsilon": dict(answer.epsilon)}
        document[key]["arms"] = {label: plain(pooled_data(result)) for label, result in answer.arms.items()}
        real = answer.arms[REAL]
        for label, result in answer.arms.items():
            rows.append(_row(key, label, result, real, answer.priced(label)))
    pd.DataFrame(rows).to_csv(out / "results.csv", index=False)
    (out / "results.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _words(epsilon: Mapping[str, float]) -> dict[str, str]:
    """ε per site as it is printed: whole from 10 upwards, two digits below."""
    return {site: f"{value:.0f}" if value >= 10 else f"{value:.2g}" for site, value in epsilon.items()}


def _row(
    key: str, label: str, result: PooledResult, real: PooledResult, epsilon: Mapping[str, float]
) -> dict[str, Any]:
    """One line of the table: the pooled ratio, its interval, its distance to the real one, and the price."""
    import math

    show: Callable[[float], float] = math.exp if result.scale == "log" else float
    costs = sorted(set(_words(epsilon).values()), key=float)
    cost = costs[0] if len(costs) == 1 else f"{costs[0]} to {costs[-1]}"
    return {
        "question": key,
        "tables": label,
        "sites": result.k,
        "estimate": round(show(result.beta), 4),
        "ci_lb": round(show(result.ci_lb), 4),
        "ci_ub": round(show(result.ci_ub), 4),
        "gap_to_real": round(show(result.beta) - show(real.beta), 4),
        "tau2": round(result.tau2, 5),
        "I2_percent": round(result.I2, 1),
        "epsilon_per_site": {REAL: "not private", BASELINE: "0"}.get(label, cost),
        "excluded": "; ".join(f"{row.label}: {row.reason}" for row in result.excluded),
    }


def simulate(folder: Path, seed: int, scale: float, sites: int | None) -> dict[str, Path]:
    """The twelve cohorts as CSV files, one per hospital; the first `sites` of them by size when given."""
    import numpy as np

    from shared.simulated import cvd_cohorts

    cohorts = cvd_cohorts(np.random.default_rng(seed), scale=scale)
    chosen = sorted(cohorts, key=lambda name: -len(cohorts[name]))[:sites]
    out: dict[str, Path] = {}
    for name in chosen:
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        cohorts[name].to_csv(path, index=False)
        out[name] = path
    return out


app = application("Tributary on one machine.", bare=True)


@app.callback()
def tributary() -> None:
    """Federated multi-site meta-analysis: see the demo, then `site-agent`, `coordinator` and `analyst`."""


@app.command()
def demo(
    study: Annotated[Literal["cvd", "cohorts", "heart"], typer.Option(help="Which study.")] = "cvd",
    data: Annotated[Path | None, typer.Option(help="Folder of the hospitals' CSV files (heart).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for figures and tables.")] = Path("demo-output"),
    seed: Annotated[int, typer.Option(help="Seed of the simulated cohorts.")] = 1,
    scale: Annotated[float, typer.Option(help="Share of the cohorts' published sizes.")] = 1.0,
    sites: Annotated[int | None, typer.Option(help="Only the largest so many cohorts.")] = None,
    workers: Annotated[int, typer.Option(help="Hospitals at work at the same time.")] = 2,
    epsilon: Annotated[float | None, typer.Option(help="ε of a release of noisy moments (cohorts).")] = None,
) -> None:
    """Run a study from the hospitals' tables to a forest plot: coordinator and agents as separate processes."""
    plan = STUDIES / f"{study}.toml"
    if not plan.is_file():
        raise StateRefusal(
            "the demo must run from a checkout", given="no deploy/studies", next_step="Clone the repository; make demo."
        )
    if epsilon is not None and study != "cohorts":
        raise ParameterError("--epsilon must come with --study cohorts", given=study)
    out.mkdir(parents=True, exist_ok=True)
    state = out / STATE_MARK
    if state.exists():
        shutil.rmtree(state)
    if study == "heart":
        if data is None or not data.is_dir():
            raise ParameterError("the heart study must be given its folder", given="none", next_step="Add --data DIR.")
        tables = {path.stem: path.resolve() for path in sorted(data.glob("*.csv"))}
    else:
        tables = simulate(state / "tables", seed, scale, sites)
    if not tables:
        raise ParameterError("there must be at least one hospital's table", given="none")
    started = time.monotonic()
    with _progress() as report:
        story = Demo(out=out, plan=plan, tables=tables, workers=workers, epsilon=epsilon, report=report)
        story.run()
        report(story.steps, story.steps, "asking the coordinator, drawing the figures")
        answers = story.results()
        write_answers(answers, out, study)
    _close(answers, out, time.monotonic() - started)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar with the stage and the time left; plain lines where there is no terminal."""
    screen = console()
    if not screen.is_terminal:
        begun, told = time.monotonic(), -1

        def line(done: int, steps: int, what: str) -> None:
            nonlocal told
            if done != told:
                told = done
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


def _told_of_rows(screen: Any) -> None:
    screen.print(
        "gap: to the real records. ε is exact for each released row given the flow; the flow itself was fitted "
        "on the same records and is not covered. At ε above 10 this is not a meaningful formal guarantee.",
        style="dim",
    )


def _close(answers: Mapping[str, Answer], out: Path, seconds: float) -> None:
    """The table of answers, and where to look."""
    from rich import box
    from rich.table import Table

    screen = console()
    table = Table(
        title="Pooled by random effects (REML, ad hoc Knapp-Hartung)", title_justify="left", box=box.SIMPLE_HEAD
    )
    for heading in ("question", "tables", "estimate", "95 % interval", "gap", "I²", "ε"):
        justify: Literal["left", "right"] = "left" if heading in ("question", "tables") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for key, answer in answers.items():
        for label, result in answer.arms.items():
            row = _row(key, label, result, answer.arms[REAL], answer.priced(label))
            table.add_row(
                key if label == next(iter(answer.arms)) else "",
                label,
                f"{row['estimate']:.3f}",
                f"{row['ci_lb']:.3f} to {row['ci_ub']:.3f}",
                "" if label == REAL else f"{row['gap_to_real']:+.3f}",
                f"{row['I2_percent']:.0f} %",
                row["epsilon_per_site"],
            )
        table.add_section()
    screen.print(table)
    if any(answer.others for answer in answers.values()):
        screen.print(
            "gap: to the real records. ε of the noisy moments covers every record and all that looked at it; ε of "
            "latent noise covers each released row given the flow, and not the flow.",
            style="dim",
        )
    else:
        _told_of_rows(screen)
    excluded = {f"{r.label}: {r.reason}" for a in answers.values() for arm in a.arms.values() for r in arm.excluded}
    for text in sorted(excluded):
        screen.print(f"excluded  {text}", style="dim", highlight=False)
    figures = sorted(path.name for path in out.glob("forest_*.svg"))
    screen.print(f"done in {seconds:.0f} s. Look at {out}/: {', '.join(figures)}, results.csv", highlight=False)


def main(argv: list[str] | None = None) -> None:
    """Entry point of ``tributary``."""
    raise SystemExit(run(app, name="tributary", argv=argv))


if __name__ == "__main__":
    main()
