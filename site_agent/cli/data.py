"""The table: ``data add``, ``map``, ``check``, ``confirm-persons``; what is kept of a network: ``data frame``."""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import DictionaryRefusal, StateRefusal, UsageRefusal, meant
from shared.terminal import VerbAnswer
from site_agent.cli.frame import As, Dry, Json, Reason, Study, data_app, screen, verb
from site_agent.desk import Desk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from shared.plans.dictionary import Column, Dictionary
    from site_agent.config import Recoding, TableSource

__all__ = ["data_add", "data_check", "data_confirm_persons", "data_frame", "data_map"]


@verb(data_app, "add")
def data_add(
    desk: Desk,
    file: Annotated[
        Path,
        typer.Argument(
            help="A file of CSV, JSON lines, Parquet, Arrow, Excel, SPSS, Stata, SAS, GraphML or SQLite, or a query "
            "(.sql); read in place, never copied."
        ),
    ],
    study: Annotated[str, typer.Option("--as", metavar="STUDY", help="The study it is for.")],
    encoding: Annotated[
        str | None,
        typer.Option(help="Of text: of CSV utf-8 where it can be, else cp1252; else as the file says."),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Of a CSV file; by its first line: , ; | or a tab.")] = None,
    edges: Annotated[Path | None, typer.Option(help="Of a study of a network: the edge list; a file as above.")] = None,
    start: Annotated[str, typer.Option("--from", help="Column of the edge list: the person an edge starts at.")] = (
        "from"
    ),
    end: Annotated[str, typer.Option("--to", help="Column of the edge list: the person it ends at.")] = "to",
    table: Annotated[
        str, typer.Option(help="Of a SQLite file: the table or view; of a workbook: the sheet, if it has several.")
    ] = "",
    edges_table: Annotated[str, typer.Option(help="The same of the edge list; alone, of the same SQLite file.")] = "",
    database: Annotated[
        str,
        typer.Option(
            metavar="VARIABLE", help="Of a query: the environment variable that holds the database's address."
        ),
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
    from site_agent.records import table as records

    placed = partial(_placed, encoding=encoding, delimiter=delimiter, database=database)
    if database and ".sql" not in {path.suffix.lower() for path in (file, edges) if path is not None}:
        raise UsageRefusal("--database must go with a .sql file", given="none", next_step="See site-agent data add -h.")
    if edges is None and edges_table:
        edges = file
    listed = None if edges is None else Edges(**placed(edges, edges_table), start=start, end=end)
    source = TableSource(**placed(file, table), edges=listed, hospital=hospitals, hospitals=tuple(of or ()))
    if study in desk.config.data:
        # A newer extract, or the same one read otherwise: what was mapped stays mapped where it is still there.
        before, names = desk.config.source(study), records.header(source)
        columns = {name: to for name, to in before.columns.items() if name in names}
        ignored = tuple(name for name in before.ignore if name in names)
        agreed = source if source.hospital else before
        source = replace(
            source,
            columns=columns,
            ignore=ignored,
            values=before.values,
            hospital=agreed.hospital,
            hospitals=agreed.hospitals,
        )
    return _mapping(desk, study, source, dry_run=dry_run)


def _placed(path: Path, table: str, *, encoding: str | None, delimiter: str | None, database: str) -> dict[str, Any]:
    """Where a file lies and how it is read, of `data add`'s options and of what the file tells."""
    from site_agent.records import table as records
    from site_agent.records.source import FORMATS

    csv = FORMATS.get(path.suffix.lower()) == "csv"
    seen = records.dialect(path.expanduser()) if csv else ("utf-8", ",")
    return {
        "path": path.expanduser().absolute(),
        "encoding": encoding or seen[0],
        "delimiter": (delimiter or seen[1]).replace("\\t", "\t"),
        "table": table,
        "database": database if path.suffix.lower() == ".sql" else "",
    }


@verb(data_app, "map")
def data_map(
    desk: Desk,
    study: Study,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="FILE_NAME=NAME", help="Which column is which.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="A column the study does not use; repeat.")
    ] = None,
    ignore_rest: Annotated[bool, typer.Option("--ignore-rest", help="Ignore, by name, all that are left.")] = False,
    suggest: Annotated[bool, typer.Option("--accept-suggestions", help="Take the proposals of data add.")] = False,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:VALUE=LEVEL",
            help="A value of the file, and its level, as in sex:m=1, or sex:k.A.= for one not known; repeat.",
        ),
    ] = None,
    decimal_comma: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Its decimals are written with a comma; repeat, or all.")
    ] = None,
    factor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="From the file's unit to the dictionary's, as in chol=38.67; repeat."),
    ] = None,
    offset: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Added after the factor; repeat.")
    ] = None,
    as_is: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Take its values as they stand again; repeat.")
    ] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Map the file's column names to the dictionary's, and say how values are written there: levels, commas, units."""
    from site_agent.records import table as records

    source = desk.config.source(study)
    if level or decimal_comma or factor or offset or as_is:
        dictionary = desk.plans.plan(study).dictionary
        every = [column.name for column in dictionary.columns if column.lower is not None]
        commas = every if decimal_comma == ["all"] else decimal_comma or []
        source = replace(
            source,
            values=_recodings(
                source.values, dictionary, as_is or [], level or [], commas, {"factor": factor, "offset": offset}
            ),
        )
    columns = dict(source.columns)
    for pair in pairs or []:
        name, sign, to = pair.rpartition("=")
        if not sign or not name or not to:
            raise UsageRefusal("a mapping must be FILE_NAME=NAME", given=repr(pair), next_step="As in Alter=age.")
        columns = {k: v for k, v in columns.items() if v != to} | {name: to}
    _require_planned([pair.rpartition("=")[2] for pair in pairs or []], desk.plans.plan(study).dictionary)
    ignored = [*source.ignore, *(ignore or [])]
    typed = [*(pair.rpartition("=")[0] for pair in pairs or []), *(ignore or [])]
    _require_in_file(typed, replace(source, columns=columns), study, desk.plans.plan(study).dictionary)
    if suggest or ignore_rest:
        plan = desk.plans.plan(study)
        known = {column.name for column in plan.dictionary.columns}
        _, sure = records.named(replace(source, columns=columns), plan.dictionary)
        free = [n for n in sure if n not in columns and n not in known and n not in ignored]
        if suggest:
            taken = {*columns.values(), *(n for n in sure if n in known)}
            columns |= {n: to for n, to in records.suggestions(free, plan.dictionary).items() if to not in taken}
        if ignore_rest:
            ignored += [n for n in free if n not in columns]
    return _mapping(
        desk,
        study,
        replace(source, columns=columns, ignore=tuple(dict.fromkeys(n for n in ignored if n not in columns))),
        dry_run=dry_run,
    )


def _require_planned(names: Sequence[str], dictionary: Dictionary) -> None:
    """Refuse names that the plan does not have, all at once. Raises: DictionaryRefusal."""
    known = [column.name for column in dictionary.columns]
    absent = [name for name in names if name not in known]
    if absent:
        said = [meant(name, known, what="Columns") for name in absent]
        raise DictionaryRefusal(
            "a column of the file must be mapped to one of the plan's dictionary",
            given=", ".join(map(repr, absent)),
            next_step=" ".join(dict.fromkeys(said)),
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


def _recodings(
    before: Mapping[str, Recoding],
    dictionary: Dictionary,
    as_is: Sequence[str],
    levels: Sequence[str],
    commas: Sequence[str],
    numbers: Mapping[str, Sequence[str] | None],
) -> dict[str, Recoding]:
    """How columns are recoded after these options. Raises: UsageRefusal; DictionaryRefusal (no such column)."""
    from site_agent.config import Recoding

    def one(name: str) -> Column:
        column = dictionary.column(name)
        if column.kind == "person":
            raise UsageRefusal(
                "persons must be told apart as the file names them",
                given=f"a recoding of {name!r}",
                next_step="Correct identifiers where the extract is made.",
            )
        return column

    def numeric(name: str) -> None:
        if one(name).lower is None:
            step = f"Its levels are named instead: --level {name}:VALUE=LEVEL."
            given = f"{name!r}, of levels"
            raise UsageRefusal("a number is read otherwise only in a column of numbers", given=given, next_step=step)

    out = {name: how for name, how in before.items() if name not in as_is}
    for name in as_is:
        dictionary.column(name)
    for text in levels:
        name, colon, pair = text.partition(":")
        value, sign, to = pair.rpartition("=")
        if not (colon and sign and value):
            raise UsageRefusal("a level must be NAME:VALUE=LEVEL", given=repr(text), next_step="As in sex:m=1.")
        known = [str(known) for known in one(name).levels]
        if to and to not in known:
            near = difflib.get_close_matches(to, known, n=1)
            listed = f"Levels: {', '.join(known) or 'none, it holds numbers'}. None at all: {name}:{value}= is missing."
            step = f"Did you mean {near[0]!r}? {listed}" if near else listed
            raise UsageRefusal(f"{name!r} must have the level", given=repr(to), next_step=step)
        how = out.get(name, Recoding())
        out[name] = replace(how, levels={**how.levels, value: to})
    for name in commas:
        numeric(name)
        out[name] = replace(out.get(name, Recoding()), decimal=",")
    for what, texts in numbers.items():
        for text in texts or ():
            name, _, value = text.partition("=")
            numeric(name)
            try:
                changed: dict[str, Any] = {what: float(value)}
                out[name] = replace(out.get(name, Recoding()), **changed)
            except ValueError:
                step = "As in chol=38.67."
                raise UsageRefusal(f"--{what} must be NAME=NUMBER", given=repr(text), next_step=step) from None
    return out


def _between(delimiter: str) -> str:
    return {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}.get(delimiter, repr(delimiter))


def _mapping(desk: Desk, study: str, source: Any, *, dry_run: bool) -> VerbAnswer:
    from site_agent.records import table as records

    plan = desk.plans.plan(study)
    records.require_edges(source, plan.release.edges)
    trusted, names = records.named(source, plan.dictionary)
    known = {column.name: column for column in plan.dictionary.columns}
    target = {name: source.columns.get(name, name if name in known else "") for name in names}
    open_columns = [name for name in known if name not in target.values()]
    free = [name for name in names if not target[name] and name not in source.ignore]
    proposed = {n: to for n, to in records.suggestions(free, plan.dictionary).items() if to in open_columns}
    if not dry_run:
        desk.config.with_source(study, source).save()
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
        rows = []
        for name, column in known.items():
            hint = next((f"{n}?" for n, to in proposed.items() if to == name), None)
            said = source.values[name].words if name in source.values else None
            rows.append((name, back.get(name) or hint, column.kind, column.unit or None, said))
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
        elif left or open_columns:
            screens.next_step(out, f"site-agent data map {study} FILE_NAME=NAME … --ignore-rest")
        else:
            screens.next_step(out, f"site-agent data check {study}")

    return VerbAnswer(answer, show)


@verb(data_app, "check")
def data_check(desk: Desk, study: Study) -> VerbAnswer:
    """Hold the table against the dictionary: every problem, by column, rule and count."""
    from site_agent.records import table as records

    plan = desk.plans.plan(study)
    source = desk.config.source(study)
    rules = plan.release.edges
    as_written = desk.ledger.as_written(study)
    found = [
        type(problem)(problem.must, given=problem.given, next_step=problem.next_step.replace(" STUDY", f" {study}"))
        for problem in records.problems(source, plan.dictionary, rules=rules, as_written=as_written)
    ]
    rows = left_out = 0
    network: dict[str, int] | None = None
    unseen: dict[str, int] = {}
    hospitals: dict[str, int] = {}
    if not found:
        key = desk.snapshot_key(study)
        table = records.read(source, plan.dictionary, key=key, rules=rules, as_written=as_written)
        rows, left_out, unseen = table.rows, table.rows - table.n, dict(table.unseen)
        network = None if table.contacts is None else table.contacts.counts
        hospitals = dict(table.hospitals)
    answer = {
        "study": study,
        "rows": rows,
        "left_out": left_out,
        "network": network,
        "hospitals": hospitals,
        "recoded_never_seen": unseen,
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
        if network is not None:
            said = ", ".join(f"{count} {what}" for what, count in network.items())
            lines.append(ChecklistLine(name="a network by the plan's rules", detail=said))
        if hospitals:
            said = ", ".join(f"{name} {count}" for name, count in hospitals.items())
            lines.append(ChecklistLine(name=f"rows of {len(hospitals)} hospitals", detail=said))
        for name, count in unseen.items():
            said = f"{name}: {count} of {len(source.values[name].levels)} recoded values never occur"
            fix = f"If they are misspelt: site-agent data map {study} --as-is {name}, then --level again."
            lines.append(ChecklistLine(name="recoded values", state="warn", detail=said, fix=fix))
        checklist(out, lines)
        screens.next_step(out, f"site-agent plan show {study}", f"site-agent try {study}")

    return VerbAnswer(answer, show, code=found[0].exit_code if found else 0)


_CONFIRMED = (
    "Sign only if the table holds other persons. The same ones under other identifiers would be charged as if they "
    "were new, and could be released where they have trained: where identifiers were rewritten, map them back to what "
    "they were, or ask the study lead for a new study."
)


@verb(data_app, "confirm-persons", noted="data confirm-persons")
def data_confirm_persons(
    desk: Desk, study: Study, name: As, reason: Reason, json: Json = False, dry_run: Dry = False
) -> VerbAnswer:
    """Sign that a table without the persons of earlier releases holds other persons: for one wave."""
    from site_agent.decide.airlock import person_changes

    desk.config.approver_key(name)
    found = person_changes.vanished(desk, study)
    counted = f"{found.there} of {found.earlier} persons of earlier releases are in the table."
    if not dry_run:
        if not json:
            # Before the key is opened: it is what the signature says.
            typer.echo(f"{counted} {_CONFIRMED}", err=True)
        person_changes.confirm_persons(desk, found, name=name, reason=reason, open_key=lambda: desk.approver(name))
    answer = {
        "study": study,
        "wave": found.hold.wave,
        "release_id": found.hold.release_id,
        "earlier": found.earlier,
        "in_the_table": found.there,
        "by": name,
        "reason": reason,
        "dry_run": dry_run,
    }

    said = "dry run, nothing signed" if dry_run else f"signed by {name}, for wave {found.hold.wave} alone"
    return VerbAnswer(
        answer,
        screen.heading(f"Other persons in {study}", said),
        f"{counted} {_CONFIRMED}" if dry_run else None,
        screen.next_step(f"site-agent release {study} --wave {found.hold.wave}"),
    )


def _require_settled(desk: Desk, study: str) -> None:
    """No wave is under way that its frame would be missed by. Raises: StateRefusal."""
    for hold in desk.ledger.holds(study):
        if hold.phase in ("held", "sealed") and not hold.rounds:
            short = hold.release_id[:8]
            act = f"Run site-agent approve {short} --as NAME, or site-agent reject {short} --as NAME"
            raise StateRefusal(
                "every wave must be delivered or rejected before the frame of its network is deleted: it was charged, "
                "and could not be taken up again",
                given=f"wave {hold.wave}, which is {hold.state}",
                next_step=f"{act if hold.phase == 'sealed' else f'Run site-agent release {study} --wave {hold.wave}'}; "
                "then run this again.",
            )


@verb(data_app, "frame")
def data_frame(
    desk: Desk,
    study: Study,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it for good; nobody can be added to the network then.")
    ] = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Whether the model of a network's held-out persons is kept here, and delete it."""
    from site_agent.release.embeddings import EmbeddingStore

    planned = desk.plans.plan(study).release.sealed
    store = EmbeddingStore(desk.home, study)
    count = len(store.files(desk.ledger))
    there = store.path.exists()
    done = delete and not dry_run
    if delete:
        _require_settled(desk, study)
    if done:
        with desk.locked():
            _require_settled(desk, study)
            store.forget(desk.ledger)
    answer = {
        "study": study,
        "planned": "sealed" if planned else "deleted",
        "frames": 0 if done else count,
        "key": there and not done,
        "deleted": count if delete else 0,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"The frame of {study}", "dry run, nothing deleted" if dry_run and delete else "")
        if delete:
            would = "would be deleted" if dry_run else "are deleted, with their key: no copy of them can be read"
            out.print(f"{count} sealed frames {would}.")
        elif not there:
            said = "no release was made yet, or it was deleted" if planned else "the plan deletes it with each run"
            out.print(f"Nothing is kept: {said}.")
        else:
            out.print(f"{count} sealed frames are kept, encrypted: what the model says of persons held out.")
            screens.next_step(out, f"site-agent data frame {study} --delete")

    return VerbAnswer(answer, show)
