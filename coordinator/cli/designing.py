"""Drafting a plan, ``plan new`` and ``plan design``, and forecasting its next waves, ``wave forecast``."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.analyst.options import question_option
from coordinator.cli.options import DryRun, Json, PlanFile, Study, plan_app, today, verb, wave_app
from coordinator.cli.plan import known_here, plan_text, recipient, write_draft
from shared.errors import ParameterError, StateRefusal
from shared.privacy.stated import shown_column, shown_epsilon, shown_price
from shared.terminal import VerbAnswer, checklist, number, plain, tabled

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.planning.design import FrontierPoint, PlanDesign, Target
    from coordinator.planning.forecast import ForecastTerm
    from coordinator.store.store import Store
    from shared.plans.plan import StudyPlan

__all__ = ["plan_design", "plan_new", "wave_forecast"]

sites_option = partial(typer.Option, rich_help_panel="Sites")


@verb(plan_app, "new")
def plan_new(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="Short name of the study, a plain word.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY.toml if left out.")] = None,
    redcap: Annotated[Path | None, typer.Option(help="Its dictionary: a REDCap data dictionary, CSV.")] = None,
    codebook: Annotated[Path | None, typer.Option(help="Its dictionary: a codebook, CSV, Excel or DDI.")] = None,
    guide: Annotated[
        bool, typer.Option("--guide", help="Ask for it, one thing after the other, each checked.")
    ] = False,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write a commented study plan, with an example dictionary, REDCap's or a codebook's, or by question and answer."""
    from coordinator.planning.from_dictionary import template_of
    from coordinator.planning.template import template
    from shared.plans.codebook import from_codebook
    from shared.plans.redcap import from_redcap

    given = [name for name, one in (("--redcap", redcap), ("--codebook", codebook), ("--guide", guide)) if one]
    if len(given) > 1:
        raise ParameterError("a dictionary must come from one place", given=" and ".join(given))
    path = out or Path(f"{study}.toml")
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    if guide:
        return _guided(context, study, path, dry_run=dry_run)
    how: dict[str, Any] = {"coordinator": recipient(context) or "tributary-hub", "today": today(), "file": str(path)}
    text, left_out = template(study, **how), dict[str, str]()
    if redcap is not None or codebook is not None:
        read = from_codebook(codebook, name=study) if codebook else from_redcap(plan_text(redcap or path), name=study)
        text, left_out = template_of(read.dictionary, study, **how), dict(read.left_out)
    write_draft(text, path, dry_run=dry_run)

    return VerbAnswer(
        {"file": str(path), "study": study, "left_out": left_out, "written": not dry_run},
        f"{'would write' if dry_run else 'wrote'} {path}",
        *(f"left out  {name}: {why}" for name, why in left_out.items()),
        (f"next: edit it, then coordinator plan check {path}", "cyan"),
    )


def _guided(context: typer.Context, study: str, path: Path, *, dry_run: bool) -> VerbAnswer:
    """A plan by question and answer, on standard error, and what review says of it."""
    from coordinator.planning.interview import interview
    from coordinator.planning.plan_form import first_form, judged
    from shared.terminal import ChecklistLine
    from shared.terminal.prompts import terminal_prompt

    form = {**first_form(coordinator=recipient(context), today=today()), "study": study}
    filled = interview(form, terminal_prompt, lambda text: typer.secho(f"\n{text}", bold=True, err=True))
    found = judged({"form": filled, "today": f"{today()}", "known": known_here(context, study).to_plain()})
    write_draft(found["toml"], path, dry_run=dry_run)
    lines = [ChecklistLine(**line) for line in found["checks"]]
    last = found["waves"][-1]["total"] if found["waves"] else None

    def show(out: Console) -> None:
        out.print(f"{'would write' if dry_run else 'wrote'} {path}")
        checklist(out, [line for line in lines if line.state != "ok"])
        if last is not None:
            out.print(f"All waves together charge a person {shown_price(last, found['given'], delta=found['delta'])}.")
            out.print(f"One wave: {found['translation']}")
        step = f"coordinator plan sign {path}" if found["ok"] else f"edit it, then coordinator plan check {path}"
        out.print(f"next: {step}", style="cyan")

    facts = {
        "file": str(path),
        "study": study,
        "written": not dry_run,
        "ok": found["ok"],
        "epsilon": last,
        "epsilon_given": found["given"],
    }
    return VerbAnswer({**facts, "checks": [asdict(line) for line in lines]}, show)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options of a design: the question and its precision or power, the sites and their persons, the largest ε."""

    question: Annotated[str, question_option("--question", help="A planned question; the first if left out.")] = ""
    term: Annotated[str, question_option("--term", help="Which of its terms; the first if left out.")] = ""
    half_width: Annotated[
        float | None, question_option("--half-width", help="Of the pooled interval; of a ratio a factor, as 1.25.")
    ] = None
    effect: Annotated[
        float | None,
        question_option("--effect", help="The true effect, in place of a half-width; of a ratio the ratio."),
    ] = None
    power: Annotated[float, question_option("--power", help="With --effect: how surely it is to be seen.")] = 0.8
    sites: Annotated[int | None, sites_option("--sites", help="Sites; the plan's own expectation if left out.")] = None
    persons: Annotated[int | None, sites_option("--persons", help="Persons of an average site, first wave.")] = None
    later: Annotated[int, sites_option("--later", help="New persons of a site in each later wave.")] = 0
    most: Annotated[
        float | None, typer.Option("--most-epsilon", help="The largest ε of a person; the plan's if left out.")
    ] = None
    covered: Annotated[
        str, typer.Option("--covered", help="What ε covers at least: everyone, released or given_flow.")
    ] = "everyone"


@verb(plan_app, "design")
def plan_design(
    file: PlanFile,
    wanted: Wanted,
    margins: Annotated[Path | None, typer.Option("--margins", help="Published means, SDs and shares, TOML.")] = None,
    template: Annotated[
        Path | None, typer.Option("--template", help="Write the file of margins to be filled in, and stop.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the recommended plan to this new file.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the frontier: .svg, .pdf or .png.")] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="File of what was simulated; beside the plan if left out.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Time to refine the first answer; 0 for none.")] = 110.0,
    dry_run: DryRun = False,
    json: Json = False,
) -> VerbAnswer:
    """From the accuracy wanted to a plan: the least ε, over mechanisms and waves, predicted from published margins."""
    from coordinator.planning.design import Simulations, designed, written
    from coordinator.planning.published import Published, margins_template
    from shared.estimands.questions import parse_estimand
    from shared.plans.plan import StudyPlan

    plan = StudyPlan.from_toml(file.read_text(encoding="utf-8"))
    name = wanted.question or next(iter(plan.estimands), "")
    if name not in plan.estimands:
        given, known = name or "none", ", ".join(plan.estimands) or "none"
        raise ParameterError("the question must be planned", given=given, next_step=f"Planned: {known}.")
    question = parse_estimand(plan.estimands[name])
    if template is not None:
        write_draft(margins_template(question, plan.dictionary), template, dry_run=dry_run)
        did = f"{'would write' if dry_run else 'wrote'} {template}"
        again = f"next: fill it in, then coordinator plan design {file} --margins {template} --half-width …"
        return VerbAnswer({"file": str(template), "written": not dry_run}, did, (again, "cyan"))
    if margins is None:
        step = f"coordinator plan design {file} --template margins.toml writes what is needed, to be filled in."
        raise ParameterError("published margins must be given", given="no --margins", next_step=step)
    target = _target(wanted, plan, name, question.scale)
    published = Published.read(margins.read_text(encoding="utf-8"), question, plan.dictionary)
    for path in (out, picture):
        if path is not None and path.exists():
            raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another.")

    def tell(words: str) -> None:
        if not json:
            sys.stderr.write(f"{words}\n")

    def first(found: PlanDesign) -> None:
        taken = found.recommended
        words = (
            "no way to release reaches it" if taken is None else f"ε {shown_epsilon(taken.total)} by {taken.setting}"
        )
        tell(f"first answer: {words}; refining …" if seconds > 0 else f"first answer: {words}")

    kept = Simulations(None if dry_run else cache or file.with_name(f"{file.stem}.design.jsonl"))
    found = designed(plan, target, published, known=kept, seconds=seconds, first=first, progress=tell)
    made = None
    if found.recommended is not None and out is not None:
        from coordinator.answers.waves import draft

        made = write_draft(draft(written(plan, target, found.recommended)), out, dry_run=dry_run)
    if picture is not None and not dry_run:
        from coordinator.figures.frontier import frontier_figure

        frontier_figure(found, path=picture)
    data = {**plain(found), "file": None if made is None else str(made), "written": made is not None and not dry_run}
    return VerbAnswer(data, *_screen(found, target, file, made))


def _target(wanted: Wanted, plan: StudyPlan, name: str, scale: str) -> Target:
    from coordinator.planning.design import Target

    sites = wanted.sites or (plan.expected.sites if plan.expected else None)
    persons = wanted.persons or (plan.expected.persons if plan.expected else None)
    if sites is None or persons is None:
        rule = "a design must know how many sites of how many persons are expected"
        raise ParameterError(rule, given="not said", next_step="Give --sites and --persons, or [expected] in the plan.")
    if wanted.covered not in ("everyone", "released", "given_flow"):
        raise ParameterError("covered must be everyone, released or given_flow", given=repr(wanted.covered)[:40])
    return Target(
        question=name,
        term=wanted.term,
        half_width=_analysis(wanted.half_width, "half-width", scale),
        effect=_analysis(wanted.effect, "effect", scale),
        power=wanted.power,
        sites=sites,
        persons=persons,
        later=wanted.later,
        most=wanted.most or plan.budget.epsilon,
        covered=wanted.covered,  # type: ignore[arg-type]
    )


def _analysis(value: float | None, what: str, scale: str) -> float | None:
    """A figure of the command line on the scale of the analysis: of a ratio its logarithm."""
    if value is None or scale != "log":
        return value
    if value <= 0 or (what == "half-width" and value <= 1):
        must = "above 1: from a 1.25th to 1.25 times the estimate, say" if what == "half-width" else "a ratio above 0"
        raise ParameterError(f"the {what} of a ratio must be a factor {must}", given=f"{value:g}")
    return math.log(value)


def _shown(half: float, scale: str) -> str:
    return f"× {math.exp(half):.4g}" if scale == "log" else f"± {number(half)}"


def _screen(found: PlanDesign, target: Target, file: Path, made: Path | None) -> list[Any]:
    from coordinator.figures.frontier import NAMES

    def row(name: str, point: FrontierPoint) -> list[Any]:
        power = "" if point.power is None else f"{point.power:.0%}"
        return [NAMES[name], shown_epsilon(point.total), _shown(point.half_width, found.scale), power, point.covered]

    parts: list[Any] = [
        (f"{found.study}: {found.question}, {found.term}", "bold"),
        f"wanted {_shown(found.wanted, found.scale)} from {found.sites} sites of {found.persons:,}"
        + (f", {found.waves} waves" if found.waves > 1 else "")
        + f"; {'refined' if found.stage == 'refined' else 'a first'} answer, predicted from published margins",
        "",
    ]
    rows = [row(name, point) for name, point in found.least.items()]
    if rows:
        heads = ["the least ε by", "ε, all waves", "half-width", "power", "what ε covers"]
        parts.append(tabled(heads, rows, right=["ε, all waves", "half-width", "power"]))
    parts += [(f"{NAMES.get(name, name)}: {why}", "dim") for name, why in found.without.items()]
    taken = found.recommended
    if taken is None:
        least = (
            ""
            if found.best is None
            else f" The records themselves, pooled, would give {_shown(found.best, found.scale)}."
        )
        parts.append(
            (
                f"No way to release that covers enough reaches it at ε {shown_epsilon(target.most)}.{least}",
                "bold yellow",
            )
        )
        parts.append(("next: more sites or persons, a wider interval, --covered released, or a larger ε", "cyan"))
        return parts
    wave = f", reached with wave {taken.wave}" if found.waves > 1 else ""
    parts.append((f"take {NAMES[taken.setting]} at ε {shown_epsilon(taken.epsilon)} a release{wave}", "bold green"))
    also = [f"{at} {_shown(h, found.scale)}" for at, h in found.others.items() if h is not None]
    if also:
        parts.append(f"its other answers: {'; '.join(also)}")
    if made is not None:
        parts.append((f"next: coordinator plan check {made}", "cyan"))
    else:
        parts.append((f"next: coordinator plan design {file} … --out PLAN.toml writes the plan", "cyan"))
    return parts


@verb(wave_app, "forecast")
def wave_forecast(
    store: Store,
    study: Study,
    question: Annotated[str, typer.Option("--question", help="A planned question; all of them if left out.")] = "",
    half_width: Annotated[
        float | None,
        typer.Option("--half-width", help="Wanted, with --question: of a ratio a factor, as 1.25."),
    ] = None,
    later: Annotated[
        float | None,
        typer.Option("--later", help="New persons of a site in each wave; what waves so far brought if left out."),
    ] = None,
) -> VerbAnswer:
    """How narrow the next waves will make the planned intervals, from released figures alone."""
    from coordinator.planning.forecast import forecast
    from shared.estimands.questions import parse_estimand

    wanted = None
    if half_width is not None:
        planned = store.plan(study).plan.estimands
        if question not in planned:
            rule = "a half-width must be wanted of one planned question"
            raise ParameterError(rule, given=question or "no --question", next_step=f"Planned: {', '.join(planned)}.")
        wanted = _analysis(half_width, "half-width", parse_estimand(planned[question]).scale)
    found = forecast(store, study, later=later, question=question, wanted=wanted)
    source = "as the waves so far have brought" if found.measured else "as given"
    parts: list[Any] = [
        (f"{study}, after wave {found.wave}: {found.persons:,} persons", "bold"),
        f"{number(found.later)} new persons of an average site are released in each wave, {source}; sites differ as "
        "they do now",
    ]
    for one in found.terms:
        parts += ["", *_ahead(one, wanted, found.epsilon_given)]
    return VerbAnswer(plain(found), *parts)


def _ahead(one: ForecastTerm, wanted: float | None, given: str) -> list[Any]:
    """Terminal output for one term; the second half-width is left out if sites do not seem to differ."""
    name = f"{one.question}, {one.term}" if one.term else one.question
    if one.why:
        return [(name, "bold"), (f"no forecast: {one.why}", "dim")]
    prices = {f"{wave.number}": (wave.total, given) for wave in one.waves if wave.total is not None}
    charged, cells = shown_column(prices, "ε charged by then")
    rows: list[list[Any]] = [["now", "", "", _shown(one.now, one.scale), "", ""]]
    for wave in one.waves:
        halves = [_shown(half, one.scale) for half in (wave.half_width, wave.alike)]
        rows.append([wave.number, wave.opens, f"{wave.persons:,}", *halves, cells.get(f"{wave.number}", "–")])
    heads = ["wave", "opens", "persons", "half-width", "if sites were alike", charged]
    differ = any(row[3] != row[4] for row in rows[1:])
    if not differ:
        heads, rows = [heads[k] for k in (0, 1, 2, 3, 5)], [[row[k] for k in (0, 1, 2, 3, 5)] for row in rows]
    parts: list[Any] = [
        (f"{name}; {one.sites} sites", "bold"),
        tabled(heads, rows, right=["wave", *heads[2:]]),
        (
            f"no number of persons of these sites goes below {_shown(one.least, one.scale)}"
            if one.least
            else "the sites do not seem to differ: each further person narrows it"
            if one.sites > 1
            else "one site tells nothing of how far sites differ",
            "dim",
        ),
    ]
    if wanted is not None and one.now <= wanted:
        parts.append((f"{_shown(wanted, one.scale)} is reached already", "bold green"))
    elif wanted is not None and one.reached:
        parts.append((f"{_shown(wanted, one.scale)} is reached with wave {one.reached}", "bold green"))
    elif wanted is not None:
        parts.append((f"{_shown(wanted, one.scale)} is not reached by the planned waves", "bold yellow"))
    return parts
