"""`analyst`: ask the coordinator, or pool a table of yi and vi without a server; never a site.

With a token's file the verbs ask a study's accepted releases over the network: each is one call of
`coordinator.analyst.remote`, which is also the library (``from tributary_meta import connect``). Without
one, what an analyst holds in a spreadsheet (one estimate and its variance per study) becomes a pooled result, a forest
plot, or a description of what would be left out. The same pooling and the same figure answer the coordinator's own
questions, so a number printed here is the number printed there; `show_pooled` draws both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.analyst.own_table import OwnTable, counts, read_table
from coordinator.analyst.remote import HarmonisedResult, Result, Study, connect, write_table
from coordinator.analyst.show import check_figure, draw, p_shown, show_pooled, sides
from coordinator.figures.options import produces
from coordinator.pooling import METHODS
from shared.errors import ParameterError
from shared.estimands.kinds import KINDS, OPTIONS, QuestionKind
from shared.releases.synthetic import DrawNumber, Draws, Out, Rows, run_synthesis
from shared.terminal import application, emit, number, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from coordinator.analyst.remote import ResultTable

__all__ = ["app", "connect", "main", "read_table"]

TOKEN_VARIABLE = "TRIBUTARY_ANALYST_TOKEN"
TOKEN_FILE = "analyst.token.json"

app = application("Ask a coordinator's studies, or pool a table of your own. No site is contacted, no patient data.")

File = Annotated[Path, typer.Argument(help="Table with one row per study: .csv, .tsv or .parquet.")]
Yi = Annotated[str, typer.Option("--yi", help="Column of estimates (log scale for ratios).")]
Vi = Annotated[str, typer.Option("--vi", help="Column of their variances (squared standard errors).")]
Sei = Annotated[str, typer.Option("--sei", help="Column of their standard errors, in place of --vi.")]
Cells = Annotated[
    str, typer.Option("--cells", help="Four columns of 2×2 counts instead: ai,bi,ci,di (events, none; twice).")
]
Measure = Annotated[str, typer.Option("--measure", help="Of counts: OR, RR or RD.")]
Effect = Annotated[str, typer.Option("--effect", help='What the estimates are called, as in "Hazard ratio".')]
Labels = Annotated[str, typer.Option("--labels", help="Column that names the rows.")]
Method = Annotated[str, typer.Option("--method", help=f"FE, or tau² by {', '.join(METHODS[1:])}.")]
Test = Annotated[str, typer.Option("--test", help="z, t, knha (Knapp-Hartung) or adhoc (never below the model).")]
Level = Annotated[float, typer.Option("--level", help="Coverage of every interval.")]
Exp = Annotated[bool, typer.Option("--exp", help="The estimates are logarithms of ratios; a column scale says so too.")]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
Mods = Annotated[list[str] | None, typer.Option("--mods", help="A moderator of a meta-regression; repeat for several.")]
Subgroup = Annotated[str, typer.Option("--subgroup", help="Pool each of its levels apart, and compare them.")]
Favours = Annotated[str, typer.Option("--favours", help='Sides of the null line: "Favours drug|Favours placebo".')]
Sort = Annotated[str, typer.Option("--sort", help="Rows by name, estimate, weight, or a column such as year.")]
Contours = Annotated[bool, typer.Option("--contours", help="Of a funnel: shade by the p-value of a study.")]
Columns = Annotated[list[str] | None, typer.Option("--column", help="A column to show beside the rows; repeatable.")]
Bayes = Annotated[bool, typer.Option("--bayes", help="Also the posterior under a half-normal prior on τ.")]
Scale = Annotated[float, typer.Option("--scale", help="Scale of that prior; 0.5 suits log ratios.")]
Exact = Annotated[bool, typer.Option("--exact", help="Also intervals made for few studies.")]
Diagnostics = Annotated[bool, typer.Option("--diagnostics", help="Also leave-one-out, influence, asymmetry.")]
Kind = Annotated[
    str, typer.Option("--kind", help="forest, leave-one-out, cumulative, funnel, baujat, influence or bubble.")
]


# -- asking a coordinator -----------------------------------------------------------------------------------------
Token = Annotated[
    Path, typer.Option("--token", envvar=TOKEN_VARIABLE, help="The token's file, from coordinator analyst add.")
]
StudyName = Annotated[str, typer.Argument(help="The study.")]
Question = Annotated[str, typer.Argument(help='As in R: "Surv(time, event) ~ sbp + age", "died ~ age".')]
Term = Annotated[str, typer.Option("--term", help="Which term to pool; the first if left out.")]
Wave = Annotated[int, typer.Option("--wave", help="The table as of this wave; the newest if left out.")]
AsOf = Annotated[int | None, typer.Option("--as-of", help="Revision of a closed wave; all there is now if left out.")]
Label = Annotated[str, typer.Option("--label", help="confirmatory or exploratory; by the plan if left out.")]
Figure = Annotated[Path | None, typer.Option("--forest", help="Also draw the forest plot: .svg, .pdf or .png.")]
Subset = Annotated[str, typer.Option("--subset", help='Only rows for which this holds, as in "age >= 60".')]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask for no rows, write nothing.")]
ASK = "Ask a coordinator"


@app.command(rich_help_panel=ASK)
def studies(token: Token = Path(TOKEN_FILE), json: Json = False) -> None:
    """List the studies that the token is for."""
    with connect(token) as connection:
        _emit(connection.studies(), json)


@app.command(rich_help_panel=ASK)
def releases(study: StudyName, token: Token = Path(TOKEN_FILE), json: Json = False) -> None:
    """List a study's releases with their receipts; withdrawn ones are marked."""
    with connect(token) as connection:
        _emit(connection[study].releases(), json)


def _how(
    study: StudyName,
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    wave: Wave = 0,
    as_of: AsOf = None,
    subset: Subset = "",
    label: Label = "",
    forest: Figure = None,
    subgroup: Annotated[
        str, typer.Option("--subgroup", help="posture, or a column with levels: each pooled apart, and compared.")
    ] = "",
    bayes: Bayes = False,
    exact: Exact = False,
    diagnostics: Diagnostics = False,
    token: Token = Path(TOKEN_FILE),
    json: Json = False,
) -> dict[str, Any]:
    """Arguments common to all questions, as `coordinator.analyst.remote.Study.query` takes it."""
    how = {"term": term, "method": method, "test": test, "level": level, "wave": wave, "as_of": as_of, "label": label}
    return how | ({"subset": subset} if subset else {})


def _asks(verb: Callable[..., Result]) -> Callable[..., None]:
    """Make a verb of a function that asks: its own arguments, and those of `_how`, which stand in one place."""
    own = list(signature(verb, eval_str=True).parameters.values())[1:-1]  # not the study, not **how
    study, *every = signature(_how, eval_str=True).parameters.values()
    shown = [item.replace(kind=Parameter.KEYWORD_ONLY) for item in (study, *own, *every)]

    @wraps(verb)
    def command(**given: Any) -> None:
        mine = {item.name: given.pop(item.name) for item in own}
        with connect(given["token"]) as connection:
            more = {name: given[name] for name in ("bayes", "exact", "diagnostics")} | {"subgroups": given["subgroup"]}
            _answered(verb(connection[given["study"]], **mine, **_how(**given)), given["forest"], given["json"], more)

    command.__annotations__ = {item.name: item.annotation for item in shown}
    command.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    return command


@app.command(rich_help_panel=ASK)
@_asks
def query(
    study: Study,
    question: Annotated[str, typer.Argument(help="Name of a planned analysis, or the whole question.")],
    **how: Any,
) -> Result:
    """Ask a planned analysis by its name, or any question: an estimate per site, and the pooled result."""
    return study.query("", question, **how)


@app.command(rich_help_panel=ASK)
@_asks
def glm(
    study: Study,
    formula: Question,
    family: Annotated[str, typer.Option("--family", help="gaussian, binomial or poisson.")] = "binomial",
    **how: Any,
) -> Result:
    """A generalised linear model at every site, pooled: "died ~ age + C(sex)"."""
    return study.glm(formula, family=family, **how)


@app.command(rich_help_panel=ASK)
@_asks
def km(
    study: Study,
    formula: Question,
    at: Annotated[float, typer.Option("--at", help="The time, the same at every site.")],
    curve: Annotated[Path | None, typer.Option("--curve", help="Also draw the curves: .svg, .pdf or .png.")] = None,
    **how: Any,
) -> Result:
    """Kaplan-Meier at every site, pooled: the share without the event at a time: "Surv(time, event) ~ 1"."""
    result = study.km(formula, at=at, **how)
    if curve is not None:
        result.curve(curve)
    return result


def _verb(kind: str, known: QuestionKind) -> Callable[..., Result]:
    """The function behind a verb that asks one kind of question: its argument and options, from the kind's record."""
    name, words = known.argument

    def verb(study: Study, **given: Any) -> Result:
        said = given.pop(name)
        return getattr(study, kind)(*(said if known.shape == "columns" else [said]), **given)  # type: ignore[no-any-return]

    place, last = Parameter.POSITIONAL_OR_KEYWORD, Parameter("how", Parameter.VAR_KEYWORD, annotation=Any)
    shown = [Parameter("study", place, annotation=Study)]
    text = typer.Argument(help=words)
    asked = Annotated[list[str], text] if known.shape == "columns" else Annotated[str, text]
    shown.append(Parameter(name, place, annotation=asked))
    for option in known.verb_options:
        default = Parameter.empty if option in known.must else OPTIONS[option].default
        given = typer.Option(f"--{option}", help=OPTIONS[option].help)
        annotation = Annotated[str, given] if OPTIONS[option].choices else Annotated[float, given]
        shown.append(Parameter(option, Parameter.KEYWORD_ONLY, annotation=annotation, default=default))
    verb.__name__, verb.__doc__ = kind, known.asks
    verb.__signature__ = Signature([*shown, last])  # type: ignore[attr-defined]
    return verb


for _kind, _record in KINDS.items():
    if _record.asks and _kind != "km":  # which draws its curves, too
        app.command(_kind.replace("_", "-"), rich_help_panel=ASK)(_asks(_verb(_kind, _record)))


@app.command(rich_help_panel=ASK)
@_asks
def harmonise(
    study: Study,
    column: Annotated[str, typer.Argument(help="What hospitals measure differently; chol,hdl: together.")],
    to: Annotated[str, typer.Option("--to", help="The site whose scale counts.")],
    question: Annotated[
        str, typer.Option("--question", help="As of query; the one planned analysis with the column if left out.")
    ] = "",
    densities: Annotated[
        str, typer.Option("--densities", help="Study of densities; STUDY-densities if left out.")
    ] = "",
    **how: Any,
) -> Result:
    """Ask as released and with a column on one site's scale, side by side; nothing is spent, nothing is hidden."""
    return study.harmonise(column, to=to, formula=question, densities=densities, **how)


@app.command(rich_help_panel=ASK)
@produces
def export(
    study: StudyName,
    subject: Annotated[str, typer.Argument(help="The id of a result, or of a release.")],
    out: Annotated[Path, typer.Option("--out", help="A table, .json or a figure; rows: .csv or .parquet.")],
    kind: Annotated[str, typer.Option("--kind", help="Of a figure: as of analyst forest, or curve.")] = "forest",
    subgroup: Annotated[str, typer.Option("--subgroup", help="Of a forest plot: posture; its levels apart.")] = "",
    favours: Favours = "",
    token: Token = Path(TOKEN_FILE),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a result as a table, JSON or a forest plot; or a release's rows, where the plan lets analysts have them."""
    with connect(token) as connection:
        mine = connection[study]
        if any(row["release_id"] == subject for row in mine.releases()):
            _rows(mine, subject, out, dry_run, json)
            return
        found = mine.result(subject)
        if subgroup or favours:
            check_figure(out, kind)
            if kind == "curve":
                raise ParameterError("subgroups and favours must be of a forest plot", given=repr(kind))
            if not dry_run:
                found.forest(out, kind, subgroups=subgroup, favours=sides(favours))
        elif not dry_run:
            found.export(out, kind)
    made = {"file": str(out), "result": found.id, "written": not dry_run}
    words = f"{'would write' if dry_run else 'wrote'} {out}: result {found.id}"
    emit(made, as_json=json, show=lambda shown: shown.print(words))


@app.command(rich_help_panel=ASK)
def explain(
    study: StudyName,
    result: Annotated[str, typer.Argument(help="The result's id.")],
    token: Token = Path(TOKEN_FILE),
    json: Json = False,
) -> None:
    """Say what a result rests on: bundles, receipts, plan, code, who asked; and whether it is stale."""
    with connect(token) as connection:
        found = connection[study].explain(result)
        emit(found.document, as_json=json, show=found.show)


@app.command(rich_help_panel=ASK)
def log(study: StudyName, token: Token = Path(TOKEN_FILE), json: Json = False) -> None:
    """The multiplicity record: every question to a study, by anyone, answered or refused."""
    with connect(token) as connection:
        _emit(connection[study].log(), json)


@app.command("log-check", rich_help_panel=ASK)
def log_check(
    against: Annotated[
        Path | None,
        typer.Option("--against", exists=True, dir_okay=False, help="A signed head that somebody else was shown."),
    ] = None,
    all_entries: Annotated[
        bool, typer.Option("--all", help="Read every entry (lead, auditor): what it names and no study shows.")
    ] = False,
    token: Token = Path(TOKEN_FILE),
    json: Json = False,
) -> None:
    """Check the coordinator's log: that it only grew since it was last seen, and is the one that others see."""
    from shared.errors import IntegrityRefusal
    from shared.terminal import plain

    with connect(token) as connection:
        followed = connection.require_followed()
        other = None if against is None else followed.require_one_log_with(against.read_bytes().strip())
        head = followed.follow().head
        found = connection.audit_log() if all_entries else None
    answer = {
        "size": head.size,
        "root": head.root,
        "day": head.day,
        "against": None if other is None else other.size,
        "audit": None if found is None else plain(found),
    }

    def show(out: Console) -> None:
        out.print(f"{head.size} entries, as of {head.day}; it only grew since it was last seen", style="bold")
        out.print(f"root {head.root}", style="dim")
        if other is not None:
            out.print(f"It is the log of {other.size} entries that {against} is of.")
        if found is not None:
            out.print(f"{found.releases} accepted releases in it.")
            for place, site in found.hidden:
                out.print(f"entry {place}: a release of {site} that no study of this token shows", style="red")
            for place, site in found.undone:
                out.print(
                    f"entry {place}: a withdrawal by {site} of a release that is shown as if it stood", style="red"
                )

    emit(answer, as_json=json, show=show)
    if found is not None and (found.undone or found.hidden):
        raise typer.Exit(IntegrityRefusal.exit_code)


@app.command(rich_help_panel=ASK)
def rows(
    study: StudyName,
    release: Annotated[str, typer.Argument(help="The release's id.")],
    out: Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet.")],
    token: Token = Path(TOKEN_FILE),
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Download one release's privatised rows, where the plan lets analysts have them; it is recorded."""
    with connect(token) as connection:
        _rows(connection[study], release, out, dry_run, json)


@app.command(rich_help_panel=ASK)
def synthetic(
    study: StudyName,
    site: Annotated[str, typer.Option("--site", help="Whose figures.")],
    out: Out,
    rows: Rows = 0,
    m: Draws = 1,
    draw: DrawNumber = 0,
    token: Token = Path(TOKEN_FILE),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Fetch the figures, which is recorded; fit and write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw synthetic rows on this machine from a site's noisy figures, where the plan lets analysts have them.

    The figures are fetched once, and the download is recorded. Fitting costs no ε and asks nobody.
    """
    with connect(token) as connection:
        planned = connection[study].synthetic(site, number=draw, rows=rows, draws=m)
        view = run_synthesis(planned, out, dry_run=dry_run)
    emit(view.data, as_json=json, show=view.show)


def _rows(study: Study, release: str, out: Path, dry_run: bool, json: bool) -> None:
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise ParameterError("the table must end in .csv or .parquet", given=repr(out.name))
    count = None
    if not dry_run:
        found = study.rows(release)
        count = len(found)
        write_table(found, out)
    words = f"{'would write' if dry_run else f'wrote {count} privatised rows, not patient records, to'} {out}"
    made = {"file": str(out), "release": release, "rows": count, "written": not dry_run}
    emit(made, as_json=json, show=lambda shown: shown.print(words))


def _answered(result: Result, forest: Path | None, json: bool, more: Mapping[str, Any]) -> None:
    apart, more = more["subgroups"], dict(more)
    levels = result.by(apart) if apart and apart not in result.document["columns"] else None
    if levels is not None:
        more["subgroups"] = ""
    if forest is not None:
        result.forest(forest, subgroups=more["subgroups"])
    further = result.further(**more) if any(more.values()) else None

    def show(out: Console) -> None:
        if isinstance(result, HarmonisedResult):  # it shows its three answers itself
            result.show(out)
        else:
            result.show_whole(out)
        if further is not None:
            further.show(out)
        if levels is not None:
            out.print()
            levels.show(out)

    by = {} if levels is None else {"levels": levels.document}
    emit({**result.document, **(further.document if further else {}), **by}, as_json=json, show=show)


def _emit(found: ResultTable, json: bool) -> None:
    emit(found.document, as_json=json, show=found.show)


# -- pooling a table ----------------------------------------------------------------------------------------------
@app.command()
def describe(
    subject: Annotated[str, typer.Argument(help="A study, or a table: .csv, .tsv or .parquet.")],
    column: Annotated[str, typer.Argument(help="Of a study: one column.")] = "",
    yi: Yi = "yi",
    vi: Vi = "vi",
    labels: Labels = "",
    token: Token = Path(TOKEN_FILE),
    json: Json = False,
) -> None:
    """Show a study's dictionary with missing shares, or say what a table holds that could be pooled."""
    if not Path(subject).suffix:
        with connect(token) as connection:
            _emit(connection[subject].dictionary(column), json)
        return
    import numpy as np

    file = Path(subject)

    given = read_table(file)
    names = [str(name) for name in given.columns]
    answer: dict[str, Any] = {"file": file.name, "rows": len(given), "columns": names}
    if {yi, vi} <= set(names):
        pooled = OwnTable(file=file, yi=yi, vi=vi, labels=labels).pooled(method="FE", test="z", level=0.95)
        answer["usable"] = pooled.k
        answer["excluded"] = pooled.excluded
        answer["yi"] = {"least": float(np.min(pooled.yi)), "most": float(np.max(pooled.yi))}
        answer["se"] = {"least": float(np.min(pooled.vi)) ** 0.5, "most": float(np.max(pooled.vi)) ** 0.5}

    def show(out: Console) -> None:
        out.print(f"{file.name}: {len(given)} rows; columns {', '.join(names)}")
        if "usable" not in answer:
            out.print(f"No columns {yi!r} and {vi!r}. Name yours with --yi and --vi.", style="cyan")
            return
        out.print(f"{answer['usable']} rows can be pooled.")
        for what, label in (("yi", "estimates"), ("se", "standard errors")):
            out.print(f"  {label:16} {number(answer[what]['least'])} to {number(answer[what]['most'])}")
        for row in answer["excluded"]:
            out.print(f"  left out: {row.label}: {row.reason}", style="yellow")

    emit(answer, as_json=json, show=show)


@app.command()
def pool(
    file: File,
    yi: Yi = "yi",
    vi: Vi = "vi",
    sei: Sei = "",
    cells: Cells = "",
    measure: Measure = "OR",
    labels: Labels = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    exp: Exp = False,
    effect: Effect = "",
    mods: Mods = None,
    subgroup: Subgroup = "",
    bayes: Bayes = False,
    scale: Scale = 0.5,
    exact: Exact = False,
    diagnostics: Diagnostics = False,
    json: Json = False,
) -> None:
    """Pool: fixed effect and random effects, heterogeneity, prediction interval, and what was left out."""
    from coordinator.pooling import analyses
    from coordinator.pooling.pool import pooled_data

    own = OwnTable(
        file=file, yi=yi, vi=vi, sei=sei, cells=cells, measure=measure, labels=labels, exp=exp, effect=effect
    )
    result = own.pooled(method=method, test=test, level=level)
    facts = own.facts([*(mods or []), *([subgroup] if subgroup else [])])
    request = analyses.AnalysisRequest(
        mods={name: facts[name] for name in mods or []},
        group=(subgroup, facts[subgroup]) if subgroup else None,
        bayes=bayes,
        scale=scale,
        exact=exact,
        diagnostics=diagnostics,
    )
    answers = analyses.analyse(result, request)

    def show(out: Console) -> None:
        show_pooled(out, result)
        analyses.show(out, result, answers)

    emit({**pooled_data(result), **answers}, as_json=json, show=show)


@app.command()
def tables(
    file: File,
    measure: Annotated[str, typer.Option("--measure", help="OR, RR or RD.")] = "OR",
    method: Annotated[str, typer.Option("--method", help="MH (Mantel-Haenszel) or Peto (odds ratio only).")] = "MH",
    cells: Annotated[str, typer.Option("--cells", help="Columns: events, none; the same in the second group.")] = (
        "ai,bi,ci,di"
    ),
    labels: Labels = "",
    level: Level = 0.95,
    json: Json = False,
) -> None:
    """Pool 2×2 tables of counts; nothing is added to a zero. Rows and random effects: `analyst pool --cells`."""
    from coordinator.pooling.two_by_two import mantel_haenszel, peto

    given = read_table(file)
    found = counts(given, cells, OwnTable(file=file, labels=labels).names(given))
    if method not in ("MH", "Peto"):
        raise ParameterError("method must be one of MH, Peto", given=repr(method))
    if method == "Peto" and measure != "OR":
        raise ParameterError("Peto's method must have the measure OR", given=measure)
    result = peto(found, level=level) if method == "Peto" else mantel_haenszel(found, measure, level=level)  # type: ignore[arg-type]

    def show(out: Console) -> None:
        from math import exp

        if result.beta is None or result.ci_lb is None or result.ci_ub is None:
            out.print(result.reason, style="yellow")
        else:
            back = exp if measure != "RD" else float
            ends = f"{number(back(result.ci_lb))} to {number(back(result.ci_ub))}"
            effect = f"{result.measure} {number(back(result.beta))}"
            out.print(f"{effect} ({100 * level:g} % CI {ends}), p {p_shown(result.pval or 0.0)}", style="bold")
            out.print(f"{result.k} tables; Q {result.QE:.2f}, p {p_shown(result.QEp or 0.0)}, I² {result.I2:.0f} %")
        for note in result.notes:
            out.print(f"note  {note}", style="dim")

    emit(result, as_json=json, show=show)


@app.command()
@produces
def forest(
    file: File,
    out: Annotated[
        Path, typer.Option("--out", help="Figure to write: .svg, .pdf, .png, .eps or .tif; its numbers: .csv.")
    ],
    yi: Yi = "yi",
    vi: Vi = "vi",
    sei: Sei = "",
    cells: Cells = "",
    measure: Measure = "OR",
    labels: Labels = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    exp: Exp = False,
    effect: Effect = "",
    title: Annotated[str, typer.Option("--title", help="Title of the figure.")] = "",
    kind: Kind = "forest",
    subgroup: Subgroup = "",
    favours: Favours = "",
    sort: Sort = "",
    column: Columns = None,
    mods: Annotated[str, typer.Option("--mods", help="Of a bubble plot: the column of the moderator.")] = "",
    contours: Contours = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Pool, but write no file.")] = False,
    json: Json = False,
) -> None:
    """Draw the forest plot of a table, or one of the figures beside it."""
    own = OwnTable(
        file=file, yi=yi, vi=vi, sei=sei, cells=cells, measure=measure, labels=labels, exp=exp, effect=effect
    )
    result = own.pooled(method=method, test=test, level=level)
    written = {"figure": str(out), "kind": kind, "rows": result.k, "written": not dry_run}
    check_figure(out, kind)
    by = [] if sort in ("", "name", "estimate", "weight") else [sort]
    facts = own.facts([*([subgroup] if subgroup else []), *(column or []), *by, *([mods] if mods else [])])
    more: dict[str, Any] = {"favours": sides(favours), "sort": sort, "contours": contours}
    more["group"] = (subgroup, facts[subgroup]) if subgroup else None
    more["ranked"] = facts[sort] if by else None
    more["moderator"] = (mods, facts[mods]) if mods else None
    more["columns"] = {name: {row: str(value) for row, value in facts[name].items()} for name in column or []}
    draw(result, kind, title=title, path=None if dry_run else out, **more)
    emit(written, as_json=json, show=lambda shown: shown.print(f"{'would write' if dry_run else 'wrote'} {out}"))


def main(argv: Sequence[str] | None = None) -> int:
    """The `analyst` command; returns its exit code."""
    return run(app, name="analyst", argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
