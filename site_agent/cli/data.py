"""The table: ``data add``, ``map``, ``check``, ``quality``, ``omop``."""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import StateRefusal, UsageRefusal
from shared.terminal import VerbAnswer
from site_agent.cli.frame import Dry, Study, data_app, screen, verb
from site_agent.desk import Desk, today

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray
    from rich.console import Console

    from shared.plans.dictionary import Dictionary
    from shared.terminal import ChecklistLine
    from site_agent.config import TableSource
    from site_agent.records.quasi_identifiers import SmallClasses
    from site_agent.records.table import Records

__all__ = ["data_add", "data_check", "data_map", "data_omop", "data_quality"]

# The lists under which ``--help`` shows options of a table.
file_option = partial(typer.Option, rich_help_panel="The file")
network_option = partial(typer.Option, rich_help_panel="A network")
values_option = partial(typer.Option, rich_help_panel="Values")


@verb(data_app, "add")
def data_add(
    desk: Desk,
    file: Annotated[
        Path,
        typer.Argument(
            help="A file of CSV, JSON lines, Parquet, Arrow, Excel, SPSS, Stata, SAS, GraphML or SQLite, a query "
            "(.sql), or what is read of a FHIR export (.fhir); in place, never copied."
        ),
    ],
    study: Annotated[str, typer.Option("--as", metavar="STUDY", help="The study it is for.")],
    encoding: Annotated[
        str | None,
        file_option(help="Of text: of CSV utf-8 where it can be, else cp1252; else as the file says."),
    ] = None,
    delimiter: Annotated[str | None, file_option(help="Of a CSV file; by its first line: , ; | or a tab.")] = None,
    edges: Annotated[
        Path | None, network_option(help="Of a study of a network: the edge list; a file as above.")
    ] = None,
    start: Annotated[str, network_option("--from", help="Column of the edge list: the person an edge starts at.")] = (
        "from"
    ),
    end: Annotated[str, network_option("--to", help="Column of the edge list: the person it ends at.")] = "to",
    table: Annotated[
        str, file_option(help="Of a SQLite file: the table or view; of a workbook: the sheet, if it has several.")
    ] = "",
    edges_table: Annotated[str, network_option(help="The same of the edge list; alone, of the same SQLite file.")] = "",
    database: Annotated[
        str,
        file_option(metavar="VARIABLE", help="Of a query: the environment variable that holds the database's address."),
    ] = "",
    hospitals: Annotated[
        str,
        typer.Option(
            "--hospitals",
            metavar="COLUMN",
            help="Of several small hospitals in one table, under one steward's agreement: the column that says whose "
            "row it is. It never leaves; how many they are stands on every receipt.",
        ),
    ] = "",
    of: Annotated[
        list[str] | None, typer.Option("--of", metavar="NAME", help="A hospital of the agreement; repeat.")
    ] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Say where a study's table lies, and see its columns beside the dictionary's."""
    from site_agent.config import Edges, TableSource
    from site_agent.decide.airlock import tables

    placed = partial(tables.placed, encoding=encoding, delimiter=delimiter, database=database)
    if database and ".sql" not in {path.suffix.lower() for path in (file, edges) if path is not None}:
        raise UsageRefusal("--database must go with a .sql file", given="none", next_step="See site-agent data add -h.")
    if edges is None and edges_table:
        edges = file
    listed = None if edges is None else Edges(**placed(edges, edges_table), start=start, end=end)
    if edges is not None:
        from site_agent.records.contacts import must_be_a_file

        must_be_a_file(edges.expanduser())
    source = TableSource(**placed(file, table), edges=listed, hospital=hospitals, hospitals=tuple(of or ()))
    if study in desk.config.data:
        source = tables.newer(desk.config.source(study), source)
    return _mapping(desk, study, source, dry_run=dry_run)


def _repeated(metavar: str, text: str) -> Any:
    """An option about values, which is repeated."""
    return values_option(metavar=metavar, help=f"{text}; repeat.")


Words = list[str] | None
Pairs = Annotated[Words, typer.Argument(metavar="FILE_NAME=NAME", help="Which column is which.")]
Ignore = Annotated[Words, typer.Option("--ignore", help="A column the study does not use; repeat.")]
IgnoreRest = Annotated[bool, typer.Option("--ignore-rest", help="Ignore, by name, all that are left.")]
Accept = Annotated[bool, typer.Option("--accept-suggestions", help="Take the proposals of data add.")]
Level = Annotated[
    Words,
    _repeated(
        "NAME:VALUE=LEVEL",
        "A value of the file, and its level, as in sex:m=1; sex:k.A.= or Tod:31.12.9999= for one not known",
    ),
]
DecimalComma = Annotated[
    Words, values_option(metavar="NAME", help="Its decimals are written with a comma; repeat, or all.")
]
Factor = Annotated[Words, _repeated("NAME=NUMBER", "From the file's unit to the dictionary's, as in chol=38.67")]
Offset = Annotated[Words, _repeated("NAME=NUMBER", "Added after the factor")]
Unit = Annotated[Words, _repeated("NAME=UNIT", "The file's unit, as in chol=mmol/L")]
Analyte = Annotated[Words, _repeated("NAME=WORD", "What is measured, as in chol=cholesterol")]
Date = Annotated[Words, _repeated("NAME=FORM", "How dates are written: %d.%m.%Y, iso, excel or file")]
Derive = Annotated[Words, _repeated("NAME=FORMULA", "As in 'age=completed years between birth and admission'")]
AsIs = Annotated[Words, _repeated("NAME", "Take its values as they stand again")]
FromFile = Annotated[Path | None, typer.Option("--file", help="Take the whole mapping from a file.")]
Suggest = Annotated[bool, typer.Option("--suggest", help="Propose a mapping of this extract; nothing is kept.")]
Guide = Annotated[bool, typer.Option("--guide", help="Ask for it, one thing after the other, each checked.")]
Out = Annotated[Path | None, typer.Option(help="Of --suggest: the file to write, for --file.")]


@verb(data_app, "map")
def data_map(
    desk: Desk,
    study: Study,
    pairs: Pairs = None,
    ignore: Ignore = None,
    ignore_rest: IgnoreRest = False,
    accept: Accept = False,
    level: Level = None,
    decimal_comma: DecimalComma = None,
    factor: Factor = None,
    offset: Offset = None,
    unit: Unit = None,
    analyte: Analyte = None,
    date: Date = None,
    derive: Derive = None,
    as_is: AsIs = None,
    file: FromFile = None,
    suggest: Suggest = False,
    guide: Guide = False,
    out: Out = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Map the file's columns and values to the dictionary's: names, levels, commas, units, dates, formulas."""
    from site_agent.records import table as records
    from site_agent.records.mapping import editing

    source = desk.config.source(study)
    planned = desk.plans.plan(study).dictionary
    words = {"factor": factor, "offset": offset, "unit": unit, "analyte": analyte}
    said = [pairs, ignore, ignore_rest, accept, level, decimal_comma, *words.values(), date, derive, as_is, file]
    if guide and any([*said, suggest, out]):
        raise UsageRefusal(
            "--guide must stand alone: it asks for all of the mapping",
            given="other words beside it",
            next_step=f"site-agent data map {study} --guide",
        )
    if suggest or out:
        return _suggested(study, source, planned, out, dry_run=dry_run)
    if guide:
        return _mapping(desk, study, _guided(source, planned), dry_run=dry_run)
    dictionary = planned.source
    source = source if file is None else _of_file(file, source)
    every = [column.name for column in dictionary.columns if column.lower is not None]
    commas = every if decimal_comma == ["all"] else decimal_comma or []
    formulas = editing.split(derive, "--derive NAME=FORMULA")
    forms = editing.split(date, "--date NAME=FORM")
    steps, levels = editing.steps(source.steps, forms, formulas, as_is or [], level or [])
    values = editing.values(source.values, dictionary, as_is or [], levels, commas, words)
    source = replace(source, values=values, steps=steps)
    columns = dict(source.columns)
    for pair in pairs or []:
        name, sign, to = pair.rpartition("=")
        if not sign or not name or not to:
            raise UsageRefusal("a mapping must be FILE_NAME=NAME", given=repr(pair), next_step="As in Alter=age.")
        columns = {k: v for k, v in columns.items() if v != to} | {name: to}
    editing.require_planned({**source.mapped, "columns": columns}, dictionary)
    source = replace(source, ignore=tuple(name for name in source.ignore if name not in columns))
    ignored = [*source.ignore, *(ignore or [])]
    typed = [*(pair.rpartition("=")[0] for pair in pairs or []), *(ignore or [])]
    typed += [*source.columns, *source.ignore] if file else []
    _require_in_file(typed, replace(source, columns=columns), study, dictionary)
    if accept or ignore_rest:
        known = {column.name for column in dictionary.columns} | set(source.steps.reads)
        _, sure = records.named(replace(source, columns=columns), dictionary)
        free = [n for n in sure if n not in columns and n not in known and n not in ignored]
        if accept:
            taken = {*columns.values(), *(n for n in sure if n in known), *source.steps.made}
            columns |= {n: to for n, to in records.suggestions(free, dictionary).items() if to not in taken}
        if ignore_rest:
            ignored += [n for n in free if n not in columns]
    return _mapping(
        desk,
        study,
        replace(source, columns=columns, ignore=tuple(dict.fromkeys(n for n in ignored if n not in columns))),
        dry_run=dry_run,
    )


def _guided(source: TableSource, dictionary: Dictionary) -> TableSource:
    """The source as its steward says, question by question, on standard error."""
    from shared.terminal.prompts import terminal_prompt
    from site_agent.records.mapping import asking

    table = _shown(source, dictionary)
    known: dict[str, Any] = {"values": source.values, "steps": source.steps}
    mapped = asking.guided(table, dictionary, source.columns, source.ignore, terminal_prompt, _say, **known)
    return replace(source, **mapped)


def _say(text: str) -> None:
    typer.secho(text, bold=True, err=True)


def _shown(source: TableSource, dictionary: Dictionary) -> pd.DataFrame:
    """The whole table, whose names may be shown: asked first where its first line might be a patient."""
    from shared.terminal.prompts import terminal_prompt
    from site_agent.records import table as records
    from site_agent.records.mapping import asking

    if not records.named(source, dictionary)[0]:
        _say("Few names of the file's first line are the plan's, and none of them was shown: it might be a patient.")
        asking.require_header(terminal_prompt)
    return records.whole(source)


def _of_file(file: Path, source: TableSource) -> TableSource:
    """The source as a mapping's file says; its salt stays. Raises: ConfigRefusal, UsageRefusal."""
    from site_agent.records.mapping import document

    mapped = document.read(file.expanduser())
    return replace(source, **mapped | {"salt": source.salt or mapped["salt"]})


def _suggested(
    study: str, source: TableSource, dictionary: Dictionary, out: Path | None, *, dry_run: bool
) -> VerbAnswer:
    """A proposal of how the extract could be mapped, and what only the steward can say."""
    from site_agent.records.mapping import document, suggesting

    found = suggesting.proposed(_shown(source, dictionary), dictionary, source.columns, source.ignore)
    text = document.text(found.mapped, found.open)
    if out is not None and not dry_run:
        if out.exists():
            raise StateRefusal("the file must be new", given=f"{out}", next_step="Choose another --out.")
        out.write_text(text, encoding="utf-8")
    answer = {"study": study, "mapping": text, "open": dict(found.open), "file": out, "dry_run": dry_run}

    place = out or "FILE"
    return VerbAnswer(
        answer,
        screen.heading(f"A mapping of {source.path.name}", "proposed, not kept"),
        lambda console: console.print(text, markup=False, highlight=False),
        screen.next_step(f"edit {place}, then site-agent data map {study} --file {place}"),
    )


def _require_in_file(typed: Sequence[str], source: TableSource, study: str, dictionary: Dictionary) -> None:
    """Refuse names that the file does not have, all at once. Raises: UsageRefusal."""
    from site_agent.records import table as records

    names = records.header(source)
    absent = [name for name in typed if name not in names]
    if not absent:
        return
    # The first line's names are shown where it is a header: half of the plan's columns were found in it.
    shown = records.named(source, dictionary)[1]
    near = [match for name in absent for match in difflib.get_close_matches(name, shown, n=1)]
    raise UsageRefusal(
        "a column that is mapped or ignored must be in the file",
        given=", ".join(map(repr, absent)),
        next_step=f"Did you mean {', '.join(map(repr, near))}?"
        if near
        else "Type the names as the file's first line has them. How it is read: "
        f"site-agent data add FILE --as {study} --dry-run.",
    )


@verb(data_app, "quality")
def data_quality(
    desk: Desk,
    study: Study,
    rule: Annotated[Words, _repeated("NAME=FORMULA", "What must hold in every row, as in 'pressure=sbp > dbp'")] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Look for what is possible in the table and still unlikely to be true; writes a page that stays here."""
    from shared.base.keys import write_private
    from site_agent.records import quality
    from site_agent.records import table as records
    from site_agent.records.mapping import editing
    from site_agent.show import quality_page

    plan, source = desk.plans.plan(study), desk.config.source(study)
    how: dict[str, Any] = {"rules": plan.release.edges, "as_written": desk.ledger.as_written(study)}
    found = records.problems(source, plan.dictionary, **how)
    key = desk.snapshot_key(study)
    checked = None if found else records.read(source, plan.dictionary, key=key, **how)
    report = quality.assess(
        None if checked is None else checked.table,
        plan.dictionary,
        problems=found,
        dates=records.days(source),
        rules=editing.split(rule, "--rule NAME=FORMULA"),
        today=today(),
        earlier=None if checked is None else _released_before(desk, study, checked, plan.dictionary),
    )
    place = None if dry_run else desk.config.home / "quality" / f"{study}.html"
    if place is not None:
        text = quality_page.page(report, study=study, file=source.path.name, day=f"{today()}")
        write_private(place, text.encode())
    answer = {
        "study": study,
        "state": report.state,
        "rows": report.rows,
        "findings": report.findings,
        "missing_together": [{"columns": names, "rows": rows} for names, rows in report.patterns.items()],
        "page": place,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import ChecklistLine, checklist
        from site_agent.show import screens

        screens.heading(out, f"Quality of {study}", "counts are shown here and nowhere else")
        lines = [
            ChecklistLine(
                name=one.column or "rows",
                state=one.state,
                detail=f"expected {one.rule}; not so in {one.count:,} of {one.rows:,} rows" if one.count else one.rule,
            )
            for one in report.findings
        ]
        checklist(out, lines)
        if place is not None:
            screens.note(out, f"Pictures of each column are in {place}. It stays here: the agent sends none of it.")

    return VerbAnswer(answer, show, code=found[0].exit_code if found else 0)


def _released_before(desk: Desk, study: str, checked: Records, dictionary: Dictionary) -> NDArray[np.bool_] | None:
    """(n,) rows of persons whom a release of the study holds; None where there is none, or no person column."""
    import numpy as np

    from site_agent.records.table import row_pseudonyms

    lists = [desk.ledger.persons(hold) for hold in desk.ledger.holds(study) if hold.persons_sha256]
    known: frozenset[str] = frozenset().union(*(some for some in lists if some))
    persons = row_pseudonyms(checked, dictionary, key=desk.snapshot_key(study)) if known else None
    return None if persons is None else np.array([person in known for person in persons])


@verb(data_app, "omop")
def data_omop(
    definition: Annotated[Path, typer.Argument(help="A cohort and its covariates, as TOML (docs/first-mile.md).")],
    out: Annotated[Path, typer.Option("--out", help="The .sql file to write.")],
    dialect: Annotated[str, typer.Option(help="sqlite or postgresql.")] = "postgresql",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Write the one SELECT of a cohort in an OMOP CDM, to be read, and added with data add."""
    from site_agent.records.standards import omop

    text = omop.select(omop.read(definition), dialect)
    if out.exists() or out.suffix != ".sql":
        raise StateRefusal("the file must be new, and end in .sql", given=f"{out}", next_step="Choose another --out.")
    if not dry_run:
        out.write_text(text, encoding="utf-8")
    answer = {"file": out, "select": text, "dry_run": dry_run}

    return VerbAnswer(
        answer,
        lambda console: console.print(text, markup=False, highlight=False),
        screen.next_step(f"site-agent data add {out} --database VARIABLE --as STUDY"),
    )


def _between(delimiter: str) -> str:
    return {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}.get(delimiter, repr(delimiter))


def _mapping(desk: Desk, study: str, source: Any, *, dry_run: bool) -> VerbAnswer:
    from site_agent.decide.airlock import tables
    from site_agent.records import table as records

    plan = desk.plans.plan(study)
    beside = tables.matching(source, plan.dictionary, edges=plan.release.edges)
    trusted, target, free, open_columns = beside.trusted, beside.target, beside.free, beside.missing
    known = {column.name: column for column in plan.dictionary.source.columns}
    steps, proposed = source.steps, beside.proposed
    config = desk.config.with_source(study, source)
    if not dry_run:
        config.save()
    answer = {
        "study": study,
        "file": source.path,
        "edges": None if source.edges is None else source.edges.path,
        "columns": {name: to for name, to in target.items() if to},
        "ignored": source.ignore,
        "not_mapped": free,
        "missing": open_columns,
        "suggestions": proposed,
        "values": {name: how.to_canonical() for name, how in source.values.items()},
        "steps": steps.to_canonical(),
        "mapping_hash": config.source(study).mapping_hash,
        "hospitals": source.hospitals,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        screens.heading(
            out,
            f"{source.path.name} for {study}",
            "dry run, nothing kept" if dry_run else "path kept, data not copied",
        )
        if source.format == "csv":
            out.print(f"Read as {source.encoding}, with {_between(source.delimiter)} between fields.", style="dim")
        if not trusted:
            read = len(records.header(source))
            how = f" between fields that {_between(source.delimiter)} separates" if source.format == "csv" else ""
            screens.note(
                out,
                f"Too few of the {read} names{how} are in the dictionary. Has the file a header, and is that the "
                "delimiter (--delimiter)? Names are not shown: the first line might be a patient.",
            )
        back = {to: name for name, to in target.items() if to}
        ignored = [name for name in open_columns if name in source.ignore and name in target]
        rows = []
        for name, column in known.items():
            hint = "the file has one, which this mapping ignores" if name in ignored else None
            hint = next((f"{n}?" for n, to in proposed.items() if to == name), hint)
            said = source.values[name].words if name in source.values else None
            made = steps.derive.get(name) or ("follow-up, of dates" if name in steps.made else None)
            rows.append((name, back.get(name) or made or hint, column.kind, column.unit or None, said))
        heads = ("dictionary", "column in the file", "kind", "unit", "its values")
        # Kind and unit help to find a column; once each is found, they stand in the plan alone.
        keep = [0, 1, *([2, 3] if open_columns else []), *([4] if source.values else [])]
        out.print(table([heads[i] for i in keep], [[row[i] for i in keep] for row in rows]))
        left = [name for name in free if name not in proposed]
        if left:
            out.print(f"In the file, not in the study: {', '.join(left)}")
        if proposed:
            screens.next_step(
                out, f"site-agent data map {study} --accept-suggestions", f"site-agent data check {study}"
            )
        elif ignored:
            screens.next_step(out, f"site-agent data map {study} {' '.join(f'{name}={name}' for name in ignored)}")
        elif open_columns:
            asked = f"site-agent data map {study} --guide"
            screens.next_step(out, asked, f"site-agent data map {study} FILE_NAME=NAME … --ignore-rest")
        elif left:
            screens.next_step(out, f"site-agent data map {study} --ignore-rest")
        else:
            screens.next_step(out, f"site-agent data check {study}")

    return VerbAnswer(answer, show)


def _small(found: SmallClasses, decides: bool) -> ChecklistLine:
    """`decides`: whether what reads a record may decide what leaves; elsewhere nobody is to be told either."""
    from shared.terminal import ChecklistLine

    if not found.persons:
        return ChecklistLine(name="quasi-identifiers", detail=f"each combination is of at least {found.k} persons")
    said = f"{found.persons} of {found.of} persons are in {found.classes} combinations of fewer than {found.k}"
    if not decides:
        rest = "This decides nothing where an ε covers everybody, and is for nobody beyond this site."
        return ChecklistLine(name="quasi-identifiers", detail=f"{said}. {rest}")
    fix = "Who knows these of a patient may recognise the row: ask the study lead for wider bands or fewer columns."
    return ChecklistLine(name="quasi-identifiers", state="warn", detail=said, fix=fix)


@verb(data_app, "check")
def data_check(desk: Desk, study: Study) -> VerbAnswer:
    """Hold the table against the dictionary: every problem, by column, rule and count."""
    from site_agent.decide.airlock import tables

    source, table = desk.config.source(study), tables.found(desk, study)
    found, rows, left_out, unseen = table.problems, table.rows, table.left_out, table.unseen
    network, hospitals, small = table.network, table.hospitals, table.small
    answer = {
        "study": study,
        "rows": rows,
        "left_out": left_out,
        "missing": dict(table.missing),
        "network": network,
        "hospitals": hospitals,
        "recoded_never_seen": unseen,
        "small_classes": None if small is None else {"k": small.k, "persons": small.persons, "classes": small.classes},
        "problems": [
            {"code": p.code, "must": p.must, "given": p.given, "next_step": p.next_step, "fixer": p.fixer}
            for p in found
        ],
    }

    def show(out: Console) -> None:
        from shared.terminal import ChecklistLine, checklist
        from site_agent.show import screens

        screens.heading(out, f"{source.path.name} for {study}", "counts are shown here and nowhere else")
        if found:
            checklist(out, [ChecklistLine.of(problem.code, problem) for problem in found])
            out.print(
                f"{len(found)} {'problem' if len(found) == 1 else 'problems'}, all that there are.", style="bold red"
            )
            return
        lines = [ChecklistLine(name="within the dictionary", detail=f"{rows} rows, {left_out} incomplete left out")]
        if table.missing:
            said = ", ".join(f"{name} {count}" for name, count in table.missing.items())
            lines.append(ChecklistLine(name="missing values", detail=said))
        if network is not None:
            said = ", ".join(f"{count} {what}" for what, count in network.items())
            lines.append(ChecklistLine(name="a network by the plan's rules", detail=said))
        if hospitals:
            said = ", ".join(f"{name} {count}" for name, count in hospitals.items())
            lines.append(ChecklistLine(name=f"rows of {len(hospitals)} hospitals", detail=said))
        if small is not None:
            lines.append(_small(small, desk.plans.plan(study).records_decide))
        for name, count in unseen.items():
            said = f"{name}: {count} of {len(source.values[name].levels)} recoded values never occur"
            fix = f"If they are misspelt: site-agent data map {study} --as-is {name}, then --level again."
            lines.append(ChecklistLine(name="recoded values", state="warn", detail=said, fix=fix))
        checklist(out, lines)
        screens.next_step(out, f"site-agent plan show {study}", f"site-agent try {study}")

    return VerbAnswer(answer, show, code=found[0].exit_code if found else 0)
