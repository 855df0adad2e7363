"""Answers: ``pool``, ``figure``, ``harmonise``, ``synthetic``, ``results``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import DryRun, Json, Study, app, open_store, require_study, today, verb
from coordinator.config import CoordinatorConfig
from coordinator.figures.options import produces
from coordinator.figures.style import check_file
from coordinator.pooling import METHODS
from shared.errors import ParameterError, StateRefusal
from shared.privacy.stated import shown_price
from shared.releases.synthetic import DrawNumber, Draws, Out, Rows, run_synthesis
from shared.terminal import VerbAnswer, emit, plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console

    from coordinator.answers.queries import PooledAnswer
    from coordinator.store.store import SavedResult, Store
    from shared.plans.federated import FederatedFlow

__all__ = ["figure", "harmonise", "pool", "results", "synthetic"]

Wave = Annotated[int, typer.Option("--wave", help="The table as of this wave; the newest if left out.")]
AsOf = Annotated[int | None, typer.Option("--as-of", help="Revision of a closed wave; all there is now if left out.")]
Combine = Annotated[
    bool, typer.Option("--combine", help="Put all refreshes of a site together: the same persons again, se too small.")
]
Planned = Annotated[str, typer.Option("--estimand", help="Name of a planned analysis.")]
Formula = Annotated[str, typer.Option("--formula", help='A question, as in "cox(time, cvd) ~ sbp/10 + age".')]
Term = Annotated[str, typer.Option("--term", help="Which term to pool; the first if left out.")]
Method = Annotated[str, typer.Option("--method", help=f"FE, or tau² by {', '.join(METHODS[1:])}.")]
Test = Annotated[str, typer.Option("--test", help="z, t, knha (Knapp-Hartung) or adhoc (never below the model).")]
Level = Annotated[float, typer.Option("--level", help="Coverage of every interval.")]
Mods = Annotated[
    list[str] | None, typer.Option("--mods", help="Moderator: n, epsilon, posture, or a column of --facts; repeatable.")
]
Subgroup = Annotated[str, typer.Option("--subgroup", help="Pool each of its levels apart; as --mods.")]
Facts = Annotated[Path | None, typer.Option("--facts", help="Table of facts about the sites, with a column site.")]
Bayes = Annotated[bool, typer.Option("--bayes", help="Also the posterior under a half-normal prior on τ.")]
Scale = Annotated[float, typer.Option("--scale", help="Scale of that prior; 0.5 suits log ratios.")]
Exact = Annotated[bool, typer.Option("--exact", help="Also intervals made for few studies.")]
Diagnostics = Annotated[bool, typer.Option("--diagnostics", help="Also leave-one-out, influence, asymmetry.")]
FigureKind = Annotated[
    str,
    typer.Option(
        "--kind",
        help="forest, leave-one-out, cumulative, funnel, baujat, influence, bubble, waves (estimate by wave), km "
        "(survival curves) or budget (ε spent by wave; asks no question).",
    ),
]


@verb(app, rich_help_panel="Answers")
def pool(
    context: typer.Context,
    study: Study,
    wave: Wave = 0,
    as_of: AsOf = None,
    combine: Combine = False,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
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
    bayes: Bayes = False,
    scale: Scale = 0.5,
    exact: Exact = False,
    diagnostics: Diagnostics = False,
    perturbations: Annotated[
        int,
        typer.Option(
            "--again",
            help="Release rows whose flow is public so often again, to tell how far the records' own answer may be.",
        ),
    ] = 0,
    flow: Annotated[
        Path | None, typer.Option("--flow", help="The trained flow that the plan names, for --again.")
    ] = None,
) -> VerbAnswer:
    """Ask one question of a wave, site by site, and pool the answers. No site is contacted; it costs no ε."""
    if perturbations and not 2 <= perturbations <= 1000:
        raise ParameterError("--again must be in 2..1000", given=f"{perturbations}")
    if out is not None and out.suffix.lower() not in (".csv", ".json"):
        raise ParameterError("the table must end in .csv or .json", given=repr(out.name))
    more = {"perturbations": perturbations, "trained": _trained(flow)}
    answer = _ask(context, study, wave, as_of, combine, estimand, formula, term, method, test, level, **more)
    before = _save(context, answer, "pool", figure=str(out or ""))
    further = _analyse(
        answer, mods or [], subgroup, facts, bayes=bayes, scale=scale, exact=exact, diagnostics=diagnostics
    )
    data = {**answer.document, **further, "changed": _changed(before, answer)}
    if out is not None and out.suffix.lower() == ".json":
        import json as writer

        out.write_text(writer.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    elif out is not None:
        # Only the sites' own rows: a table that also held the pooled ones would be pooled with them.
        _estimates(answer).to_csv(out, index=False)

    def show(shown: Console) -> None:
        from coordinator.pooling import analyses

        _show_answer(shown, answer, data["changed"])
        analyses.show(shown, answer.result, further)

    return VerbAnswer(data, show)


@app.command(rich_help_panel="Answers")
@produces
def figure(
    context: typer.Context,
    study: Study,
    out: Annotated[
        Path,
        typer.Option("--out", help="Figure to write: .svg, .pdf, .png, .eps or .tif; a forest plot's numbers: .csv."),
    ],
    wave: Wave = 0,
    as_of: AsOf = None,
    combine: Combine = False,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    title: Annotated[str, typer.Option("--title", help="Title; the question if left out.")] = "",
    kind: FigureKind = "forest",
    subgroup: Subgroup = "",
    facts: Facts = None,
    site: Annotated[list[str] | None, typer.Option("--site", help="Of km: only this site; repeat for several.")] = None,
    favours: Annotated[
        str, typer.Option("--favours", help='Sides of the null line: "Favours drug|Favours placebo".')
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", help="Rows by name, estimate, weight, arrival, or a column of --facts.")
    ] = "",
    mods: Annotated[str, typer.Option("--mods", help="Of a bubble plot: n, epsilon or a column of --facts.")] = "",
    contours: Annotated[bool, typer.Option("--contours", help="Of a funnel: shade by the p-value of a site.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Draw the forest plot of a pooled answer, one of the figures beside it, survival curves, or the budget."""
    from coordinator.analyst.show import check_figure
    from coordinator.figures.companions import KINDS

    check_figure(out, kind)

    kinds = ("forest", *KINDS, "waves", "km", "budget")
    if kind not in kinds:
        raise ParameterError(f"the figure must be one of {', '.join(kinds)}", given=repr(kind))
    path = None if dry_run else out
    made: dict[str, Any] = {"figure": str(out), "kind": kind, "written": not dry_run}
    words = f"{'would write' if dry_run else 'wrote'} {out}"
    if (subgroup or favours) and kind != "forest":
        raise ParameterError("subgroups and favours must be of a forest plot", given=repr(kind))
    if kind == "budget":
        from coordinator.answers.spending import spending

        with open_store(CoordinatorConfig.load(context.obj)) as store:
            require_study(store, study)
            budget = spending(store, study)
        budget.figure(path, title=title)
        emit({**plain(budget), **made}, as_json=json, show=lambda shown: shown.print(words))
        return
    if kind == "km":
        from coordinator.answers.curves import curves

        with open_store(CoordinatorConfig.load(context.obj)) as store:
            query = _one_question(store, study, estimand, formula)
            found = curves(store, study, wave, query, as_of=as_of, combine=combine, sites=site or (), level=level)
            found.figure(path, title=title)
            if not dry_run:
                how = {"wave": found.wave, "as_of": as_of, "combined": combine, "term": "curve", "level": level}
                store.save_result(
                    study=study,
                    wave=found.wave,
                    kind="km",
                    question={**how, "estimand": found.estimand, "sites": sorted(site or [])},
                    used=found.used,
                    numbers={"curves": len(found.curves)},
                    figure=str(out),
                    today=today(),
                )
        emit({**plain(found), **made}, as_json=json, show=lambda shown: shown.print(words))
        return
    answer = _ask(context, study, wave, as_of, combine, estimand, formula, term, method, test, level)
    before = None
    if kind == "waves":
        made["waves"] = _by_wave(context, answer, title or answer.title, path)
        before = None if dry_run else _save(context, answer, "figure", figure=str(out))
    elif not dry_run:
        from coordinator.analyst.show import draw, sides

        by = [] if sort in ("", "name", "estimate", "weight") else [sort]
        facts_of = _known(answer, [*([subgroup] if subgroup else []), *by, *([mods] if mods else [])], facts)
        draw(
            answer.result,
            kind,
            title=title or answer.title,
            note=answer.caption,
            columns=answer.columns,
            group=(subgroup, facts_of[subgroup]) if subgroup else None,
            favours=sides(favours),
            sort=sort,
            ranked=facts_of[sort] if by else None,
            contours=contours,
            moderator=(mods, facts_of[mods]) if mods else None,
            path=out,
        )
        before = _save(context, answer, "figure", figure=str(out))
    data = {**answer.document, "changed": _changed(before, answer), **made}
    emit(data, as_json=json, show=lambda shown: shown.print(words))


@verb(app, rich_help_panel="Answers")
def harmonise(
    store: Store,
    study: Study,
    column: Annotated[str, typer.Argument(help="What hospitals measure differently; chol,hdl: together.")],
    to: Annotated[str, typer.Option("--to", help="The site whose scale counts.")],
    wave: Wave = 0,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    densities: Annotated[
        str, typer.Option("--densities", help="Study of densities; STUDY-densities if left out.")
    ] = "",
    forest: Annotated[Path | None, typer.Option("--forest", help="Also draw all answers: .svg, .pdf or .png.")] = None,
) -> VerbAnswer:
    """Ask as released and with a column on one site's scale, side by side. No site is contacted; it costs no ε."""
    from coordinator.answers import harmonise as maps

    if forest is not None:
        check_file(forest)
    pooling: Any = {"term": term, "method": method, "test": test, "level": level}
    query = _one_question(store, study, estimand, formula)
    seen = maps.harmonised(store, study, column, to=to, estimand=query, source=densities, wave=wave, **pooling)
    if forest is not None:
        seen.figure(forest)
    store.save_result(
        study=study,
        wave=seen.answer.wave,
        kind="harmonised",
        question=seen.query,
        used={**seen.answer.used, **seen.used},
        numbers={**seen.answer.numbers, "harmonised": seen.harmonised.beta},
        figure=str(forest or ""),
        today=today(),
    )

    def show(out: Console) -> None:
        first, *more = seen.lines
        out.print(first, style="bold")
        for line in more:
            out.print(line, style="yellow" if line.startswith("warning") else None)

    return VerbAnswer(seen.document, show)


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


def _ask(
    context: typer.Context,
    study: str,
    wave: int,
    as_of: int | None,
    combine: bool,
    estimand: str,
    formula: str,
    term: str,
    method: Any,
    test: Any,
    level: float,
    **more: Any,
) -> PooledAnswer:
    from dataclasses import replace

    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import newest, uncompared

    with open_store(CoordinatorConfig.load(context.obj)) as store:
        require_study(store, study)
        query = _one_question(store, study, estimand, formula)
        how = {"term": term, "method": method, "test": test, "level": level}
        answer = ask(store, study, wave or newest(store, study), query, as_of=as_of, combine=combine, **how, **more)
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


def _by_wave(context: typer.Context, answer: PooledAnswer, title: str, path: Path | None) -> dict[str, dict[str, Any]]:
    """Ask the same of every wave up to the answer's, and draw it; the pooled figures by wave."""
    from coordinator.answers.queries import ask
    from coordinator.figures.over_time import waves_figure
    from shared.errors import EstimateRefusal

    result = answer.result
    how = {"term": answer.term, "method": result.method, "test": result.test, "level": result.level}
    found, missing = {answer.wave: answer}, {}
    with open_store(CoordinatorConfig.load(context.obj)) as store:
        for wave in store.plan(answer.study).plan.waves:
            if wave.number >= answer.wave:
                continue
            try:
                options: Any = {"combine": answer.combined, **how}
                found[wave.number] = ask(store, answer.study, wave.number, answer.estimand, **options)
            except EstimateRefusal as refusal:
                missing[wave.number] = str(refusal).rstrip(".")
    waves_figure(
        {wave: one.result for wave, one in found.items()},
        missing=missing,
        title=title,
        note=answer.caption,
        path=path,
    )
    return {str(wave): {"sites": one.result.k, **one.numbers} for wave, one in sorted(found.items())}


def _save(context: typer.Context, answer: PooledAnswer, kind: str, *, figure: str) -> SavedResult | None:
    """Remember what is handed out; the last answer to the same question, when it was another one."""
    with open_store(CoordinatorConfig.load(context.obj)) as store:
        return store.save_result(
            study=answer.study,
            wave=answer.wave,
            kind=kind,
            question=answer.query,
            used=answer.used,
            numbers=answer.numbers,
            figure=figure,
            today=today(),
        )


def _changed(before: SavedResult | None, answer: PooledAnswer) -> list[str]:
    """Differences from the last answer to the same question, in sentences."""
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
        out.append(f"The pooled estimate was {then:.4g} and is {now:.4g}.")
    return [f"Since the answer of {before.day}:", *out] if out else []


def _analyse(
    answer: PooledAnswer, mods: list[str], subgroup: str, facts: Path | None, **options: Any
) -> dict[str, Any]:
    """The further questions of a pooled answer."""
    from coordinator.pooling import analyses

    by_label = _known(answer, [*mods, *([subgroup] if subgroup else [])], facts)
    request = analyses.AnalysisRequest(
        mods={name: by_label[name] for name in mods},
        group=(subgroup, by_label[subgroup]) if subgroup else None,
        **options,
    )
    return analyses.analyse(answer.result, request)


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

    names = ["site", "study", "wave", "term", "n", "scale", "yi"]
    names += ["vi", "vi_sampling", "vi_privacy", "vi_naive", "vi_common", "reason"]
    table = pd.DataFrame(
        [{name: getattr(row, name) for name in names} for row in answer.estimates], columns=list(names)
    )
    return table.assign(effect=answer.result.effect)


def _show_answer(out: Console, answer: PooledAnswer, changed: Sequence[str] = ()) -> None:
    from coordinator.analyst.show import show_pooled, show_terms

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
        show_terms(out, answer.table, result.level)
