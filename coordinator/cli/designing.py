"""A plan's design: ``plan design``, from the accuracy that is wanted to a plan to check."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import DryRun, Json, PlanFile, plan_app, verb
from coordinator.cli.plan import write_draft
from shared.errors import ParameterError, StateRefusal
from shared.privacy.stated import shown_epsilon
from shared.terminal import VerbAnswer, number, plain, tabled

if TYPE_CHECKING:
    from coordinator.planning.design import FrontierPoint, PlanDesign, Target
    from shared.plans.plan import StudyPlan

__all__ = ["plan_design"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is wanted, who brings it, and what it may cost."""

    question: Annotated[str, typer.Option("--question", help="A planned question; the first if left out.")] = ""
    term: Annotated[str, typer.Option("--term", help="Which of its terms; the first if left out.")] = ""
    half_width: Annotated[
        float | None, typer.Option("--half-width", help="Of the pooled interval; of a ratio a factor, as 1.25.")
    ] = None
    effect: Annotated[
        float | None, typer.Option("--effect", help="The true effect, in place of a half-width; of a ratio the ratio.")
    ] = None
    power: Annotated[float, typer.Option("--power", help="With --effect: how surely it is to be seen.")] = 0.8
    sites: Annotated[int | None, typer.Option("--sites", help="Sites; the plan's own expectation if left out.")] = None
    persons: Annotated[int | None, typer.Option("--persons", help="Persons of an average site, first wave.")] = None
    later: Annotated[int, typer.Option("--later", help="New persons of a site in each later wave.")] = 0
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
    return f"× {math.exp(half):.3g}" if scale == "log" else f"± {number(half)}"


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
