"""`analyst`: ask the coordinator, or pool a table of yi and vi without a server; never a site.

With a token's file the verbs ask a study's accepted releases over the network: each is one call of
`coordinator.analyst.remote`, which is also the library (``from tributary_meta import connect``). Without
one, what an analyst holds in a spreadsheet (one estimate and its variance per study) becomes a pooled result, a forest
plot, or a description of what would be left out. The same pooling and the same figure answer the coordinator's own
questions, so a number printed here is the number printed there; `show_pooled` draws both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.analyst.options import (
    Favours,
    FurtherOptions,
    PoolingOptions,
    QuestionOptions,
    Spending,
    Term,
    drawing_option,
    further_option,
)
from coordinator.analyst.own.answers import conditional, likelihoods
from coordinator.analyst.own.answers import together as pooled_together
from coordinator.analyst.own.table import OwnTable, counts, read_table, table_option
from coordinator.analyst.own.together import TogetherOptions
from coordinator.analyst.remote import Connection, HarmonisedResult, Result, Study, connect, write_table
from coordinator.analyst.show import FigureContent, check_figure, draw, show_pooled, sides
from coordinator.analyst.table_one import By, Columns, TableOut, described
from coordinator.figures.options import FigureOptions
from shared.errors import ParameterError
from shared.estimands.kinds import DESCRIBED, KINDS, OPTIONS, QuestionKind
from shared.releases.synthetic import DrawNumber, Draws, Out, Rows, run_synthesis
from shared.terminal import VerbAnswer, application, command, number, p_shown, plain, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from coordinator.analyst.remote import Explanation, ResultTable

__all__ = ["app", "connect", "main", "read_table"]

TOKEN_VARIABLE = "TRIBUTARY_ANALYST_TOKEN"
TOKEN_FILE = "analyst.token.json"
ASK = "Ask a coordinator"

app = application("Ask a coordinator's studies, or pool a table of your own. No site is contacted, no patient data.")

Mods = Annotated[
    list[str] | None, further_option("--mods", help="A moderator of a meta-regression; repeat for several.")
]
Subgroup = Annotated[str, further_option("--subgroup", help="Pool each of its levels apart, and compare them.")]
Profiles = Annotated[
    bool, table_option("--profiles", help="The table holds likelihoods, as EvidenceSynthesis writes them: add them.")
]
Token = Annotated[
    Path, typer.Option("--token", envvar=TOKEN_VARIABLE, help="The token's file, from coordinator analyst add.")
]
StudyName = Annotated[str, typer.Argument(help="The study.")]
Question = Annotated[str, typer.Argument(help='As in R: "Surv(time, event) ~ sbp + age", "died ~ age".')]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask for no rows, write nothing.")]

_last = Parameter.KEYWORD_ONLY
SHARED = (
    Parameter("dry_run", _last, default=False, annotation=DryRun),
    Parameter("json", _last, default=False, annotation=Annotated[bool, typer.Option("--json", help="Answer as JSON.")]),
)
ASKING = (Parameter("token", _last, default=Path(TOKEN_FILE), annotation=Token), *SHARED)


@contextmanager
def _connected(said: Mapping[str, Any], asked: Collection[str]) -> Iterator[dict[str, Any]]:
    if "connection" not in asked:
        yield {}
        return
    with connect(said["token"]) as connection:
        yield {"connection": connection}


def verb(name: str | None = None) -> Callable[[Callable[..., VerbAnswer]], Callable[..., VerbAnswer]]:
    """Register a verb: it has ``--json``, and ``--token`` if it works with a connection, and returns its answer."""

    def register(function: Callable[..., VerbAnswer]) -> Callable[..., VerbAnswer]:
        asks = "connection" in function.__annotations__
        made = command(function, ASKING if asks else SHARED, {"Connection": Connection}, _connected)
        listed: dict[str, Any] = {"rich_help_panel": ASK} if asks else {}
        app.command(name, **listed)(made)
        return function

    return register


# -- asking a coordinator -----------------------------------------------------------------------------------------
@verb()
def studies(connection: Connection) -> VerbAnswer:
    """List the studies that the token is for."""
    return _shown(connection.studies())


def _of_study(method: Callable[..., Any]) -> Callable[..., VerbAnswer]:
    """The verb that a method of `Study` is: its options, and what it returns shown."""

    def ask_study(connection: Connection, study: str, **given: Any) -> VerbAnswer:
        return _shown(getattr(connection[study], method.__name__)(**given))

    own = list(signature(method, eval_str=True).parameters.values())[1:]
    first = [Parameter("connection", _last, annotation=Connection), Parameter("study", _last, annotation=StudyName)]
    ask_study.__name__, ask_study.__doc__ = method.__name__, method.__doc__
    ask_study.__signature__ = Signature(  # type: ignore[attr-defined]
        [*first, *(item.replace(kind=_last) for item in own)]
    )
    return ask_study


for _method in vars(Study).values():
    if getattr(_method, "is_verb", False):
        verb(_method.__name__.replace("_", "-"))(_of_study(_method))


@verb()
def query(
    connection: Connection,
    study: StudyName,
    question: Annotated[str, typer.Argument(help="Name of a planned analysis, or the whole question.")],
    options: QuestionOptions,
) -> VerbAnswer:
    """Ask a planned analysis by its name, or any question: an estimate per site, and the pooled result."""
    return _answered(connection[study].query("", question, **options.query_arguments), options)


@verb()
def glm(
    connection: Connection,
    study: StudyName,
    formula: Question,
    options: QuestionOptions,
    family: Annotated[
        str, typer.Option("--family", help="gaussian, binomial, poisson, quasipoisson, negbin or Gamma.")
    ] = "binomial",
    link: Annotated[str, typer.Option("--link", help="Of binomial: logit, probit, cloglog or log.")] = "",
) -> VerbAnswer:
    """A generalised linear model at every site, pooled: "died ~ age + C(sex)"."""
    return _answered(connection[study].glm(formula, family=family, link=link, **options.query_arguments), options)


@verb()
def km(
    connection: Connection,
    study: StudyName,
    formula: Question,
    options: QuestionOptions,
    at: Annotated[float, typer.Option("--at", help="The time, the same at every site.")],
    curve: Annotated[Path | None, typer.Option("--curve", help="Also draw the curves: .svg, .pdf or .png.")] = None,
) -> VerbAnswer:
    """Kaplan-Meier at every site, pooled: the share without the event at a time: "Surv(time, event) ~ 1"."""
    result = connection[study].km(formula, at=at, **options.query_arguments)
    if curve is not None:
        result.curve(curve)
    return _answered(result, options)


def _asks(kind: str, known: QuestionKind) -> Callable[..., VerbAnswer]:
    """The verb that asks one kind of question: its argument and options, from the kind's record."""
    name, words = known.argument

    def ask_study(connection: Connection, study: str, options: QuestionOptions, **given: Any) -> VerbAnswer:
        said = given.pop(name)
        if kind in DESCRIBED:
            return VerbAnswer(*described(connection[study], kind, said, **given, **options.query_arguments))
        ask = getattr(connection[study], kind)
        return _answered(
            ask(*(said if known.shape == "columns" else [said]), **given, **options.query_arguments), options
        )

    text = typer.Argument(help=words)
    takes: dict[str, Any] = {"connection": Connection, "study": StudyName}
    takes[name] = Annotated[list[str], text] if known.shape == "columns" else Annotated[str, text]
    shown = [Parameter(one, _last, annotation=of) for one, of in takes.items()]
    for option in known.verb_options:
        default = Parameter.empty if option in known.must else OPTIONS[option].default
        given = typer.Option(f"--{option}", help=OPTIONS[option].help)
        annotation = Annotated[float, given] if OPTIONS[option].default is None else Annotated[str, given]
        shown.append(Parameter(option, _last, annotation=annotation, default=default))
    if kind in DESCRIBED:
        shown.append(Parameter("out", _last, annotation=TableOut, default=None))
    ask_study.__name__, ask_study.__doc__ = kind, known.asks
    ask_study.__signature__ = Signature(  # type: ignore[attr-defined]
        [*shown, Parameter("options", _last, annotation=QuestionOptions)]
    )
    return ask_study


for _kind, _record in KINDS.items():
    if _record.asks and _kind != "km":  # which draws its curves, too
        verb(_kind.replace("_", "-"))(_asks(_kind, _record))


@verb("table-one")
def table_one(
    connection: Connection,
    study: StudyName,
    columns: Columns,
    options: QuestionOptions,
    by: By = "",
    out: TableOut = None,
) -> VerbAnswer:
    """Table 1 by group and site: means, spreads, quartiles, shares, standardised differences, missing values."""
    return VerbAnswer(*described(connection[study], "table_one", columns, out=out, by=by, **options.query_arguments))


@verb()
def monitor(
    connection: Connection,
    study: StudyName,
    question: Annotated[str, typer.Argument(help="Name of a planned analysis, or the whole question.")],
    pooling: PoolingOptions,
    term: Term = "",
    spending: Spending = "obrien-fleming",
    out: Annotated[Path | None, typer.Option("--out", help="Also draw the looks: .svg, .pdf or .png.")] = None,
) -> VerbAnswer:
    """Look at a question as of each wave: boundaries spend one error rate over all waves of the plan."""
    found = connection[study].monitor(question, term=term, spending=spending, **pooling.how)
    if out is not None:
        found.figure(out)
    return VerbAnswer(found.document, found.show)


@verb()
def harmonise(
    connection: Connection,
    study: StudyName,
    column: Annotated[str, typer.Argument(help="What hospitals measure differently; chol,hdl: together.")],
    to: Annotated[str, typer.Option("--to", help="The site whose scale counts.")],
    options: QuestionOptions,
    question: Annotated[
        str, typer.Option("--question", help="As of query; the one planned analysis with the column if left out.")
    ] = "",
    densities: Annotated[
        str, typer.Option("--densities", help="Study of densities; STUDY-densities if left out.")
    ] = "",
) -> VerbAnswer:
    """Ask as released and with a column on one site's scale, side by side; nothing is spent, nothing is hidden."""
    found = connection[study].harmonise(column, to=to, formula=question, densities=densities, **options.query_arguments)
    return _answered(found, options)


@verb()
def export(
    connection: Connection,
    study: StudyName,
    subject: Annotated[str, typer.Argument(help="The id of a result, or of a release.")],
    out: Annotated[Path, typer.Option("--out", help="A table, .json or a figure; rows: .csv or .parquet.")],
    look: FigureOptions,
    kind: Annotated[str, drawing_option("--kind", help="Of a figure: as of analyst forest, or curve.")] = "forest",
    subgroup: Annotated[str, drawing_option("--subgroup", help="Of a forest plot: posture; its levels apart.")] = "",
    favours: Favours = "",
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write a result as a table, JSON or a forest plot; or a release's rows, where the plan lets analysts have them."""
    with look.drawing():
        mine = connection[study]
        if any(row["release_id"] == subject for row in mine.releases()):
            return _rows(mine, subject, out, dry_run)
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
    return VerbAnswer(made, f"{'would write' if dry_run else 'wrote'} {out}: result {found.id}")


@verb("sign-in")
def sign_in(
    address: Annotated[str, typer.Argument(help="The coordinator's HTTPS address: https://HOST:PORT.")],
    ca: Annotated[
        Path | None, typer.Option("--ca", exists=True, dir_okay=False, help="PEM file of the authority to believe.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Token's file to write.")] = Path(TOKEN_FILE),
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Sign in by your hospital's provider with any browser; the token's file that it gives lasts half a day."""
    from coordinator.analyst.access.sign_in import signed_in
    from shared.errors import StateRefusal

    if out.exists():
        raise StateRefusal("the file must be new", given=f"{out}", next_step="Choose another --out, or delete it.")
    made: dict[str, Any] = {"address": address, "file": f"{out}", "written": not dry_run}
    if not dry_run:
        found = signed_in(address, ca=ca or "", say=lambda line: typer.echo(line, err=True))
        found.save(out)
        made |= {"name": found.name, "role": found.role, "studies": found.studies, "expires": found.expires}
    words = f"would sign in at {address}" if dry_run else f"wrote {out}: {made['name']}, {made['role']}"
    return VerbAnswer(made, (words, "bold"))


@verb("log-check")
def log_check(
    connection: Connection,
    against: Annotated[
        Path | None,
        typer.Option("--against", exists=True, dir_okay=False, help="A signed head that somebody else was shown."),
    ] = None,
    all_entries: Annotated[
        bool, typer.Option("--all", help="Read every entry (lead, auditor): what it names and no study shows.")
    ] = False,
) -> VerbAnswer:
    """Check the coordinator's log: that it only grew since it was last seen, and is the one that others see."""
    from shared.errors import IntegrityRefusal

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
    hidden, undone, ended = (found.hidden, found.undone, found.ended) if found is not None else ((), (), ())
    taken = "a release of {} that was taken back is shown as if it stood"
    return VerbAnswer(
        answer,
        (f"{head.size} entries, as of {head.day}; it only grew since it was last seen", "bold"),
        (f"root {head.root}", "dim"),
        None if other is None else f"It is the log of {other.size} entries that {against} is of.",
        None if found is None else f"{found.releases} accepted releases in it.",
        *((f"entry {at}: a release of {site} that no study of this token shows", "red") for at, site in hidden),
        *((f"entry {at}: {taken.format(site)}", "red") for at, site in undone),
        *((f"entry {at}: {what} is not shown", "red") for at, what in ended),
        code=IntegrityRefusal.exit_code if undone or hidden or ended else 0,
    )


@verb()
def rows(
    connection: Connection,
    study: StudyName,
    release: Annotated[str, typer.Argument(help="The release's id.")],
    out: Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Download one release's privatised rows, where the plan lets analysts have them; it is recorded."""
    return _rows(connection[study], release, out, dry_run)


@verb()
def synthetic(
    connection: Connection,
    study: StudyName,
    site: Annotated[str, typer.Option("--site", help="Whose figures.")],
    out: Out,
    rows: Rows = 0,
    m: Draws = 1,
    draw: DrawNumber = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Fetch figures, and ask an opened sum, which is recorded; write nothing.")
    ] = False,
) -> VerbAnswer:
    """Draw synthetic rows on this machine from a site's noisy figures, where the plan lets analysts have them.

    The figures are fetched once, and the download is recorded. Fitting costs no ε and asks nobody.
    """
    planned = connection[study].synthetic(site, number=draw, rows=rows, draws=m)
    return run_synthesis(planned, out, dry_run=dry_run)


def _rows(study: Study, release: str, out: Path, dry_run: bool) -> VerbAnswer:
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise ParameterError("the table must end in .csv or .parquet", given=repr(out.name))
    count = None
    if not dry_run:
        found = study.rows(release)
        count = len(found)
        write_table(found, out)
    made = {"file": str(out), "release": release, "rows": count, "written": not dry_run}
    did = "would write" if dry_run else f"wrote {count} privatised rows, not patient records, to"
    return VerbAnswer(made, f"{did} {out}")


def _answered(result: Result, options: QuestionOptions) -> VerbAnswer:
    apart = options.subgroup
    levels = result.by(apart) if apart and apart not in result.document["columns"] else None
    subgroups = apart if levels is None else ""
    if options.forest is not None:
        result.forest(options.forest, subgroups=subgroups)
    more = {name: getattr(options, name) for name in ("bayes", "exact", "diagnostics")} | {"subgroups": subgroups}
    further = result.further(**more) if any(more.values()) else None
    by = {} if levels is None else {"levels": levels.document}
    return VerbAnswer(
        {**result.document, **(further.document if further else {}), **by},
        result.show if isinstance(result, HarmonisedResult) else result.show_whole,  # the first shows its three answers
        further.show if further is not None else None,
        *(("", levels.show) if levels is not None else ()),
    )


def _shown(found: ResultTable | Explanation) -> VerbAnswer:
    return VerbAnswer(found.document, found.show)


# -- pooling a table ----------------------------------------------------------------------------------------------
@verb()
def describe(
    subject: Annotated[str, typer.Argument(help="A study, or a table: .csv, .tsv or .parquet.")],
    column: Annotated[str, typer.Argument(help="Of a study: one column.")] = "",
    yi: Annotated[str, typer.Option("--yi", help="Column of estimates (log scale for ratios).")] = "yi",
    vi: Annotated[str, typer.Option("--vi", help="Column of their variances (squared standard errors).")] = "vi",
    labels: Annotated[str, typer.Option("--labels", help="Column that names the rows.")] = "",
    token: Token = Path(TOKEN_FILE),
) -> VerbAnswer:
    """Show a study's dictionary with missing shares, or say what a table holds that could be pooled."""
    if not Path(subject).suffix:
        with connect(token) as connection:
            return _shown(connection[subject].dictionary(column))
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

    return VerbAnswer(answer, show)


@verb()
def pool(
    own: OwnTable,
    pooling: PoolingOptions,
    further: FurtherOptions,
    together: TogetherOptions,
    mods: Mods = None,
    subgroup: Subgroup = "",
    profiles: Profiles = False,
) -> VerbAnswer:
    """Pool: fixed effect and random effects, heterogeneity, prediction interval, and what was left out."""
    from coordinator.pooling.document import pooled_data
    from coordinator.pooling.further import analyses

    if profiles or together.terms:
        if profiles and together.terms:
            raise ParameterError("a table must be of likelihoods or of several coefficients", given="both")
        if mods or subgroup or further.exact or further.diagnostics or (together.terms and further.bayes):
            what = "of likelihoods (--profiles)" if profiles else "of several coefficients (--terms)"
            raise ParameterError("further analyses must be of one estimate for each study", given=f"a table {what}")
        if profiles:
            return likelihoods(own, level=pooling.level, bayes=further.bayes, scale=further.scale)
        return pooled_together(own, together, **pooling.how)
    result = own.pooled(**pooling.how)
    facts = own.facts([*(mods or []), *([subgroup] if subgroup else [])])
    by = {name: facts[name] for name in mods or []}
    request = analyses.AnalysisRequest(
        mods=by, group=(subgroup, facts[subgroup]) if subgroup else None, **asdict(further)
    )
    answers = analyses.analyse(result, request)
    return VerbAnswer(
        {**pooled_data(result), **answers},
        lambda out: show_pooled(out, result),
        lambda out: analyses.show(out, result, answers),
    )


@verb()
def tables(
    file: Annotated[Path, typer.Argument(help="Table with one row per study: .csv, .tsv or .parquet.")],
    measure: Annotated[str, typer.Option("--measure", help="OR, RR or RD.")] = "OR",
    method: Annotated[
        str, typer.Option("--method", help="MH (Mantel-Haenszel), Peto or likelihood (odds ratio).")
    ] = "MH",
    cells: Annotated[str, typer.Option("--cells", help="Columns: events, none; the same in the second group.")] = (
        "ai,bi,ci,di"
    ),
    labels: Annotated[str, typer.Option("--labels", help="Column that names the rows.")] = "",
    level: Annotated[float, typer.Option("--level", help="Coverage of every interval.")] = 0.95,
) -> VerbAnswer:
    """Pool 2×2 tables of counts; nothing is added to a zero. Rows and random effects: `analyst pool --cells`."""
    from coordinator.pooling.further.two_by_two import mantel_haenszel, peto

    given = read_table(file)
    found = counts(given, cells, OwnTable(file=file, labels=labels).names(given))
    if method not in ("MH", "Peto", "likelihood"):
        raise ParameterError("method must be one of MH, Peto, likelihood", given=repr(method))
    if method != "MH" and measure != "OR":
        raise ParameterError(f"the method {method} must have the measure OR", given=measure)
    if method == "likelihood":
        return conditional(found, level)
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

    return VerbAnswer(result, show)


@verb()
def forest(
    own: OwnTable,
    pooling: PoolingOptions,
    look: FigureOptions,
    out: Annotated[
        Path, typer.Option("--out", help="Figure to write: .svg, .pdf, .png, .eps or .tif; its numbers: .csv.")
    ],
    title: Annotated[str, drawing_option("--title", help="Title of the figure.")] = "",
    kind: Annotated[
        str, drawing_option("--kind", help="forest, leave-one-out, cumulative, funnel, baujat, influence or bubble.")
    ] = "forest",
    subgroup: Subgroup = "",
    favours: Favours = "",
    sort: Annotated[
        str, drawing_option("--sort", help="Rows by name, estimate, weight, or a column such as year.")
    ] = "",
    column: Annotated[
        list[str] | None, drawing_option("--column", help="A column to show beside the rows; repeatable.")
    ] = None,
    mods: Annotated[str, drawing_option("--mods", help="Of a bubble plot: the column of the moderator.")] = "",
    contours: Annotated[
        bool, drawing_option("--contours", help="Of a funnel: shade by the p-value of a study.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Pool, but write no file.")] = False,
) -> VerbAnswer:
    """Draw the forest plot of a table, or one of the figures beside it."""
    result = own.pooled(**pooling.how)
    check_figure(out, kind)
    by = [] if sort in ("", "name", "estimate", "weight") else [sort]
    facts = own.facts([*([subgroup] if subgroup else []), *(column or []), *by, *([mods] if mods else [])])
    content = FigureContent(
        title=title,
        columns={name: {row: str(value) for row, value in facts[name].items()} for name in column or []},
        group=(subgroup, facts[subgroup]) if subgroup else None,
        favours=sides(favours),
        sort=sort,
        ranked=facts[sort] if by else None,
        contours=contours,
        moderator=(mods, facts[mods]) if mods else None,
    )
    with look.drawing():
        draw(result, kind, content, path=None if dry_run else out)
    made = {"figure": str(out), "kind": kind, "rows": result.k, "written": not dry_run}
    return VerbAnswer(made, f"{'would write' if dry_run else 'wrote'} {out}")


def main(argv: Sequence[str] | None = None) -> int:
    """The `analyst` command; returns its exit code."""
    return run(app, name="analyst", argv=argv)


if __name__ == "__main__":
    raise SystemExit(main())
