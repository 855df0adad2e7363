"""Answers: ``pool``, ``table-one``, ``figure``, ``harmonise``, ``synthetic``, ``results``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.analyst.options import (
    AsOf,
    Favours,
    FurtherOptions,
    PoolingOptions,
    Spending,
    Term,
    Wave,
    drawing_option,
    further_option,
    question_option,
)
from coordinator.analyst.table_one import By, Columns, TableOut
from coordinator.cli.options import DryRun, Study, app, require_study, today, verb
from coordinator.figures.options import FigureOptions
from coordinator.figures.style import check_file
from shared.errors import ParameterError, StateRefusal
from shared.privacy.stated import shown_price
from shared.releases.synthetic import DrawNumber, Draws, Out, Rows, run_synthesis
from shared.terminal import VerbAnswer, plain, table, write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console

    from coordinator.answers.queries import PooledAnswer
    from coordinator.store.store import SavedResult, Store
    from shared.plans.federated import FederatedFlow

__all__ = ["figure", "harmonise", "pool", "results", "synthetic", "table_one"]

Planned = Annotated[str, question_option("--estimand", help="Name of a planned analysis.")]
Formula = Annotated[str, question_option("--formula", help='A question, as in "cox(time, cvd) ~ sbp/10 + age".')]
Mods = Annotated[
    list[str] | None,
    further_option("--mods", help="Moderator: n, epsilon, posture, or a column of --facts; repeatable."),
]
Subgroup = Annotated[str, further_option("--subgroup", help="Pool each of its levels apart; as --mods.")]
Facts = Annotated[Path | None, further_option("--facts", help="Table of facts about the sites, with a column site.")]


@dataclass(frozen=True, kw_only=True)
class AskedOfTable(PoolingOptions):
    """One question of a study's table as of a wave, and how the sites' answers are pooled."""

    wave: Wave = 0
    as_of: AsOf = None
    combine: Annotated[
        bool,
        question_option(
            "--combine", help="Put all refreshes of a site together; se as if a person's waves said the same."
        ),
    ] = False
    estimand: Planned = ""
    formula: Formula = ""
    term: Term = ""


@verb(app, keeps=True, rich_help_panel="Answers")
def pool(
    store: Store,
    study: Study,
    question: AskedOfTable,
    further: FurtherOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Also write the sites' estimates (.csv, as analyst pool reads them) or the whole answer (.json).",
        ),
    ] = None,
    mods: Mods = None,
    subgroup: Subgroup = "",
    facts: Facts = None,
    perturbations: Annotated[
        int,
        further_option(
            "--again",
            help="Release rows whose flow is public so often again, to tell how far the records' own answer may be.",
        ),
    ] = 0,
    flow: Annotated[
        Path | None, further_option("--flow", help="The trained flow that the plan names, for --again.")
    ] = None,
) -> VerbAnswer:
    """Ask one question of a wave, site by site, and pool the answers. No site is contacted; it costs no ε."""
    from coordinator.pooling.further import analyses

    if perturbations and not 2 <= perturbations <= 1000:
        raise ParameterError("--again must be in 2..1000", given=f"{perturbations}")
    if out is not None and out.suffix.lower() not in (".csv", ".json"):
        raise ParameterError("the table must end in .csv or .json", given=repr(out.name))
    answer = _ask(store, study, question, perturbations=perturbations, trained=_trained(flow))
    before = _save(store, answer, "pool", figure=str(out or ""))
    by = _known(answer, [*(mods or []), *([subgroup] if subgroup else [])], facts)
    request = analyses.AnalysisRequest(
        mods={name: by[name] for name in mods or []},
        group=(subgroup, by[subgroup]) if subgroup else None,
        **asdict(further),
    )
    more = analyses.analyse(answer.result, request)
    data = {**answer.document, **more, "changed": _changed(before, answer)}
    if out is not None and out.suffix.lower() == ".json":
        import json as writer

        out.write_text(writer.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    elif out is not None:
        # Only the sites' own rows: a table that also held the pooled ones would be pooled with them.
        write_table(_estimates(answer), out)
    return VerbAnswer(
        data,
        lambda shown: _show_answer(shown, answer, data["changed"]),
        lambda shown: analyses.show(shown, answer.result, more),
    )


@dataclass(frozen=True, kw_only=True)
class TableOfWave(PoolingOptions):
    """A study's table as of a wave, and how the sites' numbers are pooled."""

    wave: Wave = 0
    as_of: AsOf = None


@verb(app, "table-one", keeps=True, rich_help_panel="Answers")
def table_one(
    store: Store, study: Study, columns: Columns, options: TableOfWave, by: By = "", out: TableOut = None
) -> VerbAnswer:
    """Table 1 by group and site: means, spreads, quartiles, shares, standardised differences, missing values."""
    from coordinator.analyst.table_one import TableOne, check_out, question_of

    if out is not None:
        check_out(out)
    answer = _ask(store, study, AskedOfTable(formula=question_of(columns, by), **asdict(options)))
    _save(store, answer, "table-one", figure=str(out or ""))
    found = TableOne({**answer.document, "asked": answer.query})
    if out is not None:
        found.write(out)
    return VerbAnswer(found.document, found.show)


@dataclass(frozen=True, kw_only=True)
class DrawnOptions:
    """Options of the figure of an answer."""

    title: Annotated[str, drawing_option("--title", help="Title; the question if left out.")] = ""
    kind: Annotated[
        str,
        drawing_option(
            "--kind",
            help="forest, leave-one-out, cumulative, funnel, baujat, influence, bubble, waves (estimate by wave), "
            "monitoring (the same, against boundaries that allow for all looks), km (survival curves), "
            "dose-response (a curve of the model) or budget (ε spent by wave; asks no question).",
        ),
    ] = "forest"
    subgroup: Subgroup = ""
    facts: Facts = None
    site: Annotated[list[str] | None, drawing_option("--site", help="Of km: only this site; repeat for several.")] = (
        None
    )
    favours: Favours = ""
    sort: Annotated[
        str, drawing_option("--sort", help="Rows by name, estimate, weight, arrival, or a column of --facts.")
    ] = ""
    mods: Annotated[str, drawing_option("--mods", help="Of a bubble plot: n, epsilon or a column of --facts.")] = ""
    contours: Annotated[bool, drawing_option("--contours", help="Of a funnel: shade by the p-value of a site.")] = False
    spending: Spending = "obrien-fleming"

    def draw(self, answer: PooledAnswer, path: Path) -> None:
        """Draw a forest plot or one of its companions of a pooled answer."""
        if self.kind == "dose-response":
            from coordinator.figures.dose_response import curve_figure, curve_of

            how = {"scale": answer.result.scale, "effect": answer.result.effect, "note": answer.caption}
            curve_figure(curve_of(answer.joint), **how, title=self.title or answer.title, path=path)
            return
        from coordinator.analyst.show import FigureContent, draw, sides

        by = [] if self.sort in ("", "name", "estimate", "weight") else [self.sort]
        names = [*([self.subgroup] if self.subgroup else []), *by, *([self.mods] if self.mods else [])]
        facts = _known(answer, names, self.facts)
        content = FigureContent(
            title=self.title or answer.title,
            note=answer.caption,
            columns=answer.columns,
            group=(self.subgroup, facts[self.subgroup]) if self.subgroup else None,
            favours=sides(self.favours),
            sort=self.sort,
            ranked=facts[self.sort] if by else None,
            contours=self.contours,
            moderator=(self.mods, facts[self.mods]) if self.mods else None,
        )
        draw(answer.result, self.kind, content, path=path)


@verb(app, rich_help_panel="Answers")
def figure(
    store: Store,
    study: Study,
    out: Annotated[
        Path,
        typer.Option("--out", help="Figure to write: .svg, .pdf, .png, .eps or .tif; a forest plot's numbers: .csv."),
    ],
    question: AskedOfTable,
    drawn: DrawnOptions,
    look: FigureOptions,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Draw the forest plot of a pooled answer, one of the figures beside it, survival curves, or the budget."""
    from coordinator.analyst.show import check_figure
    from coordinator.figures.companions import KINDS
    from coordinator.pooling.rows import require_known

    check_figure(out, drawn.kind)
    kinds = ("forest", *KINDS, "waves", "monitoring", "km", "dose-response", "budget")
    require_known(drawn.kind, kinds, "the figure")
    if (drawn.subgroup or drawn.favours) and drawn.kind != "forest":
        raise ParameterError("subgroups and favours must be of a forest plot", given=repr(drawn.kind))
    make = {"budget": _budget_figure, "km": _curves_figure}.get(drawn.kind, _answer_figure)
    with look.drawing():
        data = make(store, study, question, drawn, None if dry_run else out)
    made = {"figure": str(out), "kind": drawn.kind, "written": not dry_run}
    return VerbAnswer({**data, **made}, f"{'would write' if dry_run else 'wrote'} {out}")


def _budget_figure(
    store: Store, study: str, question: AskedOfTable, drawn: DrawnOptions, path: Path | None
) -> dict[str, Any]:
    from coordinator.answers.spending import spending

    store.plan(study)
    budget = spending(store, study)
    budget.figure(path, title=drawn.title)
    return dict(plain(budget))


def _curves_figure(
    store: Store, study: str, question: AskedOfTable, drawn: DrawnOptions, path: Path | None
) -> dict[str, Any]:
    from coordinator.answers.curves import curves
    from coordinator.store.rows import ResultDraft

    asked, sites = _one_question(store, study, question.estimand, question.formula), drawn.site or ()
    how: dict[str, Any] = {"as_of": question.as_of, "level": question.level}
    found = curves(store, study, question.wave, asked, combine=question.combine, sites=sites, **how)
    found.figure(path, title=drawn.title)
    if path is not None:
        how |= {"wave": found.wave, "combined": question.combine, "term": "curve"}
        store.save_result(
            ResultDraft(
                study=study,
                wave=found.wave,
                kind="km",
                question={**how, "estimand": found.estimand, "sites": sorted(sites)},
                used=found.used,
                numbers={"curves": len(found.curves)},
                figure=str(path),
            ),
            today=today(),
        )
    return dict(plain(found))


def _answer_figure(
    store: Store, study: str, question: AskedOfTable, drawn: DrawnOptions, path: Path | None
) -> dict[str, Any]:
    answer = _ask(store, study, question)
    more = {}
    if drawn.kind in ("waves", "monitoring"):
        more[drawn.kind] = _by_wave(store, answer, drawn, path)
    elif path is not None:
        drawn.draw(answer, path)
    before = None if path is None else _save(store, answer, "figure", figure=str(path))
    return {**answer.document, "changed": _changed(before, answer), **more}


@verb(app, keeps=True, rich_help_panel="Answers")
def harmonise(
    store: Store,
    study: Study,
    column: Annotated[str, typer.Argument(help="What hospitals measure differently; chol,hdl: together.")],
    to: Annotated[str, typer.Option("--to", help="The site whose scale counts.")],
    pooling: PoolingOptions,
    wave: Wave = 0,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    densities: Annotated[
        str, typer.Option("--densities", help="Study of densities; STUDY-densities if left out.")
    ] = "",
    forest: Annotated[Path | None, typer.Option("--forest", help="Also draw all answers: .svg, .pdf or .png.")] = None,
) -> VerbAnswer:
    """Ask as released and with a column on one site's scale, side by side. No site is contacted; it costs no ε."""
    from coordinator.answers import harmonise as maps
    from coordinator.answers.release_selection import holding
    from coordinator.pooling.pool import Pooling
    from coordinator.store.rows import ResultDraft

    if forest is not None:
        check_file(forest)
    query = _one_question(store, study, estimand, formula)
    held = holding(store, study, wave)
    by = maps.Harmonisation(column=column, to=to, source=densities)
    seen = maps.harmonised(store, held, query, by, term=term, pooling=Pooling(**pooling.how))
    if forest is not None:
        seen.figure(forest)
    store.save_result(
        ResultDraft(
            study=study,
            wave=seen.answer.wave,
            kind="harmonised",
            question=seen.query,
            used={**seen.answer.used, **seen.used},
            numbers={**seen.answer.numbers, "harmonised": seen.harmonised.beta},
            figure=str(forest or ""),
        ),
        today=today(),
    )

    first, *more = seen.lines
    warned = (((line, "yellow") if line.startswith("warning") else line) for line in more)
    written = () if forest is None else (f"wrote {forest}",)
    return VerbAnswer(seen.document, (first, "bold"), *warned, *written)


@verb(app, rich_help_panel="Answers")
def synthetic(
    store: Store,
    study: Study,
    site: Annotated[str, typer.Option("--site", help="Whose figures.")],
    out: Out,
    wave: Annotated[int, typer.Option("--wave", help="As of this wave; the newest if left out.")] = 0,
    rows: Rows = 0,
    m: Draws = 1,
    draw: DrawNumber = 0,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Draw synthetic rows from a site's noisy figures, where the plan lets rows leave. It costs no ε."""
    from coordinator.answers.synthesis import synthesis

    planned = synthesis(store, study, site, wave=wave, number=draw, rows=rows, draws=m)
    return run_synthesis(planned, out, dry_run=dry_run)


@verb(app, rich_help_panel="Answers")
def results(
    store: Store,
    study: Annotated[str, typer.Option("--study", help="Only this study.")] = "",
    stale: Annotated[bool, typer.Option("--stale", help="Only those that rest on a withdrawn release.")] = False,
) -> VerbAnswer:
    """List the pooled answers and figures that were handed out, and which of them are stale."""
    require_study(store, study)
    found = [saved for saved in store.results(study or None) if saved.withdrawn or not stale]
    answer = [{**plain(saved), "stale": bool(saved.withdrawn)} for saved in found]

    def show(out: Console) -> None:
        from rich.text import Text

        if not found:
            out.print("No stale result." if stale else "No result was handed out yet.")
            return
        rows = []
        for saved in found:
            withdrawn = ", ".join(sorted({saved.used[digest] for digest in saved.withdrawn}))
            state = (
                Text(f"stale: {withdrawn} withdrew", style="bold red") if withdrawn else Text("in force", style="green")
            )
            revision = saved.question["as_of"]
            wave = f"{saved.wave}" + ("" if revision is None else f" rev. {revision}")
            query = f"{saved.question['term']} in {saved.question['estimand']}"
            rows.append([saved.id, saved.study, wave, query, saved.kind, saved.figure or None, saved.day, state])
        out.print(table(["no", "study", "wave", "question", "kind", "file", "day", "state"], rows, right=["no"]))
        if any(saved.withdrawn for saved in found):
            out.print("Ask a stale question again: the answer says what changed.", style="cyan")

    return VerbAnswer(answer, show)


def _ask(store: Store, study: str, asked: AskedOfTable, **more: Any) -> PooledAnswer:
    from dataclasses import replace

    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import holding, uncompared
    from coordinator.pooling.pool import Pooling

    store.plan(study)
    query = _one_question(store, study, asked.estimand, asked.formula)
    held = holding(store, study, asked.wave, as_of=asked.as_of, combine=asked.combine)
    answer = ask(store, held, query, term=asked.term, pooling=Pooling(**asked.how), **more)
    return replace(answer, uncompared=uncompared(store, answer.used))


def _trained(path: Path | None) -> FederatedFlow | None:
    """The document of a trained flow. Raises: StateRefusal (no such file), SchemaRefusal."""
    from shared.plans.federated import FederatedFlow

    if path is None:
        return None
    if not path.is_file():
        raise StateRefusal("the trained flow must be a file", given=f"{path}", next_step="See coordinator federate.")
    return FederatedFlow.from_bytes(path.read_bytes())


def _one_question(store: Store, study: str, estimand: str, formula: str) -> str:
    if bool(estimand) == bool(formula):
        plan = store.plan(study).plan
        raise ParameterError(
            "one of --estimand and --formula must be given",
            given="both" if estimand else "neither",
            next_step=f"Planned: {', '.join(plan.estimands) or 'none'}.",
        )
    return estimand or formula


def _by_wave(store: Store, answer: PooledAnswer, drawn: DrawnOptions, path: Path | None) -> dict[str, Any]:
    """Ask the same of every wave up to the answer's, and draw it: the pooled figures by wave, or the looks."""
    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import holding
    from coordinator.pooling.pool import Pooling
    from shared.errors import EstimateRefusal

    result, plan, title = answer.result, store.plan(answer.study).plan, drawn.title or answer.title
    pooling = Pooling(method=result.method, test=result.test, level=result.level)
    found, missing = {answer.wave: answer}, {}
    for wave in plan.waves:
        if wave.number >= answer.wave:
            continue
        try:
            held = holding(store, answer.study, wave.number, combine=answer.combined)
            found[wave.number] = ask(store, held, answer.estimand, term=answer.term, pooling=pooling)
        except EstimateRefusal as refusal:
            missing[wave.number] = str(refusal).rstrip(".")
    if drawn.kind == "monitoring":
        from coordinator.figures.monitoring import monitoring_figure
        from coordinator.pooling.further.sequential import monitored

        last = max(wave.number for wave in plan.waves)
        looks = [(f"wave {wave}", wave / last, one.result) for wave, one in sorted(found.items())]
        seen = monitored(looks, spending=drawn.spending, independent=plan.returning == "append")  # type: ignore[arg-type]
        monitoring_figure(seen, title=title, note=answer.caption, path=path)
        return {**plain(seen), "sentence": seen.sentence, "missing": {str(wave): why for wave, why in missing.items()}}
    from coordinator.figures.over_time import waves_figure

    waves_figure(
        {wave: one.result for wave, one in found.items()},
        missing=missing,
        title=title,
        note=answer.caption,
        path=path,
    )
    return {str(wave): {"sites": one.result.k, **one.numbers} for wave, one in sorted(found.items())}


def _save(store: Store, answer: PooledAnswer, kind: str, *, figure: str) -> SavedResult | None:
    """Remember what is handed out; the last answer to the same question, when it was another one."""
    from coordinator.store.rows import ResultDraft

    return store.save_result(
        ResultDraft(
            study=answer.study,
            wave=answer.wave,
            kind=kind,
            question=answer.query,
            used=answer.used,
            numbers=answer.numbers,
            figure=figure,
        ),
        today=today(),
    )


def _changed(before: SavedResult | None, answer: PooledAnswer) -> list[str]:
    """Differences from the last answer to the same question, in sentences."""
    from shared.estimands.effects import shown

    if before is None:
        return []
    withdrawn = {stone.bundle_sha256 for stone in answer.withdrawn}
    left = {digest: site for digest, site in before.used.items() if digest not in answer.used}
    out = [f"{site} has withdrawn a release." for digest, site in left.items() if digest in withdrawn]
    out += [
        f"A release of {site} was replaced by a later one." for digest, site in left.items() if digest not in withdrawn
    ]
    out += [f"New: a release of {site}." for digest, site in answer.used.items() if digest not in before.used]
    then, now = before.numbers["beta"], answer.numbers["beta"]
    if then != now:
        was, is_ = (shown(value, answer.result.scale) for value in (then, now))
        what = f"{answer.result.effect[:1].lower()}{answer.result.effect[1:]}" or "estimate"
        out.append(f"The pooled estimate ({what}) was {was:.4g} and is {is_:.4g}.")
    return [f"Since the answer of {before.day}:", *out] if out else []


def _known(answer: PooledAnswer, names: Sequence[str], facts: Path | None) -> dict[str, dict[str, Any]]:
    """Facts about the sites, by label: those of their releases, or of a table of the lead's. Raises: ParameterError."""
    known: dict[str, dict[str, Any]] = {
        name: {source.site: getattr(source, name) for source in answer.sources} for name in ("n", "epsilon", "posture")
    }
    known["arrival"] = {source.site: source.log_index for source in answer.sources}
    if facts is not None:
        from coordinator.analyst.commands import read_table

        given = read_table(facts)
        if "site" not in given.columns or given["site"].duplicated().any():
            raise ParameterError("the facts must have a column site, each site once", given=facts.name)
        for name in given.columns.drop("site"):
            rows = zip(given["site"], given[name].tolist(), strict=True)
            known[str(name)] = {str(site): value for site, value in rows if value == value and value is not None}
    for name in names:
        if name not in known:
            raise ParameterError(
                "a moderator must be a fact about the sites", given=repr(name), next_step=f"Known: {', '.join(known)}."
            )
    sites = dict(zip(answer.result.labels, (row.site for row in answer.result.estimates), strict=True))
    return {name: {label: values.get(site) for label, site in sites.items()} for name, values in known.items()}


def _estimates(answer: PooledAnswer) -> pd.DataFrame:
    """One row per site for a spreadsheet or `analyst pool`: yi and vi on the scale of the analysis."""
    import pandas as pd

    from coordinator.pooling.cautions import beside_each

    names = ["site", "study", "wave", "term", "n", "scale", "yi"]
    names += ["vi", "vi_sampling", "vi_privacy", "vi_naive", "vi_common", "attenuation", "reason"]
    table = pd.DataFrame(
        [{name: getattr(row, name) for name in names} for row in answer.estimates], columns=list(names)
    )
    said = beside_each([row.warnings for row in answer.estimates], answer.result.doubts)
    return table.assign(effect=answer.result.effect, cautions=said)


def _show_answer(out: Console, answer: PooledAnswer, changed: Sequence[str] = ()) -> None:
    from coordinator.analyst.show import joint_lines, show_pooled, show_terms

    result = answer.result
    out.print(answer.title, style="bold")
    out.print(answer.caption, style="dim")
    out.print()
    for line in changed:
        out.print(line, style="yellow")
    for stone in answer.withdrawn:
        out.print(
            f"Not in it: the release of {stone.site} in wave {stone.wave}, withdrawn {stone.day}.", style="yellow"
        )
    censored = sorted({source.censoring for source in answer.sources if source.censoring})
    if len(censored) > 1 or any("each row" in words for words in censored):
        out.print(f"Follow-up ends at different waves: {'; '.join(censored)}.", style="yellow")
    n = {"n": {row.site: f"{row.n:,}" for row in answer.estimates if row.yi is not None}}
    show_pooled(out, result, extra={**n, **answer.columns})
    highest, given = max(
        ((source.epsilon, source.epsilon_given) for source in answer.sources if source.epsilon is not None),
        default=(0.0, ""),
    )
    for words in sorted({shown_price(*source.price) for source in answer.sources if source.epsilon is None}):
        open_ = sorted({source.site for source in answer.sources if shown_price(*source.price) == words})
        out.print(f"note  The rows of {', '.join(open_)}: {words}.", style="dim")
    several = sorted({f"{source.site}: {source.hospitals}" for source in answer.sources if source.hospitals})
    if several:
        out.print(f"note  Hospitals behind one site, under one steward: {', '.join(several)}.", style="dim")
    if highest > 10:
        out.print(
            f"note  ε {shown_price(highest, given)} is not a meaningful formal guarantee for the persons behind these "
            "rows.",
            style="dim",
        )
    for sentence in answer.cautions:
        out.print(f"note  {sentence}", style="dim")
    if len(answer.terms) > 1:
        out.print()
        joint = joint_lines({"joint": answer.joint})
        show_terms(out, answer.table, result.level, said=result.doubts, joint=joint)
