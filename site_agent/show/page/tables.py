"""Tables of the studies on the page: where each lies, which column is which, and whether it holds the dictionary."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import Response

from shared.errors import DataFileRefusal, Refusal, UsageRefusal
from shared.plans.dictionary import NUMERIC
from site_agent.records.mapping.formulas import SPANS
from site_agent.show.page.frame import Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from shared.plans.dictionary import Column, Dictionary
    from site_agent.config import TableSource
    from site_agent.desk import Desk
    from site_agent.records.mapping.declared import Recoding, Steps
    from site_agent.show.page.access import Session
    from site_agent.show.page.language import Language

__all__ = ["Tables"]


class Tables(Frame):
    """Tables: a file in place, its mapping, and what was found in it."""

    def tables(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        """The studies, and whether each has its table."""
        rows = [
            {"study": study, "file": desk.config.data[study].path.name if study in desk.config.data else ""}
            for study in sorted({*desk.plans.studies(), *desk.config.data})
        ]
        return self.draw("tables.html", desk, session, lang, here="/data", address="/data", rows=rows)

    def table(self, desk: Desk, session: Session, request: Request, lang: Language) -> Response:
        """One study's table: its file, its mapping with proposals where they are asked for, and what is found in it."""
        from site_agent.decide.airlock import tables
        from site_agent.records.mapping.suggesting import FORMS

        study = request.path_params["study"]
        plan = desk.plans.plan(study)
        address = f"/data/{study}"
        values: dict[str, Any] = {"study": study, "source": None, "rows": (), "beside": None, "found": None}
        if study in desk.config.data:
            source = desk.config.source(study)
            shown: TableSource = source
            questions: dict[str, str] = {}
            header = request.query_params.get("names") == "yes"
            names = _names(source, plan.dictionary, header=header)
            if request.query_params.get("proposals") == "yes" and names:
                shown, questions = _proposed(source, plan.dictionary)
            beside = tables.matching(shown, plan.dictionary, edges=plan.release.edges, header=header)
            check = request.query_params.get("check") == "yes"
            values |= {
                "source": source,
                "beside": beside,
                "proposed": shown is not source,
                "questions": questions,
                "names": names,
                "header": header,
                "steps": shown.steps,
                "dates": [*((name, how.form) for name, how in shown.steps.dates.items()), *[("", "")] * 3],
                "forms": ("file", "excel", *FORMS),
                "spans": tuple(SPANS),
                "times": [column.name for column in plan.dictionary.source.columns if column.kind == "time"],
                "rows": [_row(column, shown, beside.target) for column in plan.dictionary.source.columns],
                "found": tables.found(desk, study) if check else None,
            }
        return self.draw("table.html", desk, session, lang, here="/data", address=address, **values)

    def place(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Say where the table lies; the file is read in place and never copied."""
        from site_agent.config import TableSource
        from site_agent.decide.airlock import tables

        study, path = request.path_params["study"], Path(form.get("path", "").strip()).expanduser()
        if not path.is_file():
            raise DataFileRefusal("the table must be a file on this machine", given="none of that name")
        how = tables.placed(
            path,
            form.get("table", "").strip(),
            encoding=form.get("encoding") or None,
            delimiter=form.get("delimiter") or None,
            database="",
        )
        source = TableSource(**how)
        if study in desk.config.data:
            source = tables.newer(desk.config.source(study), source)
        plan = desk.plans.plan(study)
        tables.matching(source, plan.dictionary, edges=plan.release.edges)
        desk.config.with_source(study, source).save()
        return f"/data/{study}"

    def map(self, desk: Desk, request: Request, form: QueryParams) -> str:
        """Keep the mapping as the form has it: which column is which, values, what is made, and what is left out."""
        from site_agent.decide.airlock import tables
        from site_agent.records.mapping import editing

        study = request.path_params["study"]
        dictionary, source = desk.plans.plan(study).dictionary.source, desk.config.source(study)
        names, columns = _names(source, dictionary, header=form.get("names") == "yes"), {}
        chosen = {form.get(f"from {column.name}", "") for column in dictionary.columns}
        for column in dictionary.columns:
            name = form.get(f"from {column.name}", "")
            if name and name not in names:
                raise UsageRefusal("a column that is mapped must be in the file", given=repr(name))
            if name and name != column.name:
                columns[name] = column.name
        values = dict(source.values)
        for column in dictionary.columns:
            if f"from {column.name}" in form:
                recoded = _recoding(column, source, form)
                values = {name: how for name, how in values.items() if name != column.name}
                values |= {column.name: recoded} if recoded.words else {}
        steps = _steps(source.steps, dictionary, names, form) if "made" in form else source.steps
        editing.require_planned({"columns": columns, "values": values, "steps": steps}, dictionary)
        known = {column.name for column in dictionary.columns} | {*steps.reads}
        ignored = [name for name in source.ignore if name not in chosen]
        if form.get("ignore") == "yes":
            ignored += [name for name in names if name not in columns and name not in known]
        ignored = [name for name in ignored if name not in steps.reads]
        kept = replace(source, columns=columns, values=values, steps=steps, ignore=tuple(dict.fromkeys(ignored)))
        tables.matching(kept, dictionary, edges=desk.plans.plan(study).release.edges)
        desk.config.with_source(study, kept).save()
        return f"/data/{study}?check=yes"


# -- inside -----------------------------------------------------------------------------------------------------
def _row(column: Column, source: TableSource, target: Any) -> dict[str, Any]:
    """One column of the dictionary as the form has it."""
    how = source.values.get(column.name)
    steps = source.steps
    return {
        "column": column,
        "span": " · ".join(map(str, column.levels)) if column.levels else "",
        "from": next((name for name, to in target.items() if to == column.name), ""),
        "made": steps.derive.get(column.name, ""),
        "followed": column.name in steps.made and column.name not in steps.derive,
        "person": column.kind == "person",
        "numeric": column.kind in NUMERIC,
        "levels": "" if how is None else ", ".join(f"{value}={level}" for value, level in how.levels.items()),
        "comma": how is not None and how.decimal == ",",
        "unit": "" if how is None else how.unit,
        "analyte": "" if how is None else how.analyte,
    }


def _recoding(column: Column, source: TableSource, form: QueryParams) -> Recoding:
    """Recoding of a column as entered in the form; where no unit is typed, a factor set on the command line stays."""
    from site_agent.records.mapping.declared import Recoding

    how = source.values.get(column.name, Recoding())
    if column.kind in NUMERIC:
        unit = form.get(f"unit {column.name}", "").strip()
        decimal: Literal["", ","] = "," if form.get(f"comma {column.name}") else ""
        factor, offset = (1.0, 0.0) if unit else (how.factor, how.offset)
        analyte = form.get(f"analyte {column.name}", "").strip() if unit else ""
        return replace(how, factor=factor, offset=offset, unit=unit, analyte=analyte, decimal=decimal)
    levels = {}
    for pair in filter(None, map(str.strip, form.get(f"levels {column.name}", "").split(","))):
        value, sign, level = pair.rpartition("=")
        if not (sign and value):
            raise UsageRefusal("a level must be VALUE=LEVEL", given=repr(pair), next_step="As in m=1, w=0.")
        levels[value.strip()] = level.strip()
    return replace(how, levels=levels)


def _names(source: TableSource, dictionary: Dictionary, *, header: bool) -> tuple[str, ...]:
    """The names of the file's columns, none where its first line might be a patient and nobody said that it is not."""
    from site_agent.records import table as records

    return records.header(source) if header else records.named(source, dictionary)[1]


def _steps(before: Steps, dictionary: Dictionary, names: Sequence[str], form: QueryParams) -> Steps:
    """Dates, derived columns and follow-up as entered in the form; all other steps stay as before. Raises: Refusal."""
    from site_agent.records.mapping.declared import DateForm, FollowUp

    dates: dict[str, DateForm] = {}
    for place in takewhile(lambda place: f"date {place}" in form, count()):
        name, written = form[f"date {place}"], form.get(f"form {place}", "").strip()
        if not name:
            continue
        if name not in names:
            raise UsageRefusal("a date must be one of the file's columns", given=repr(name))
        missing = before.dates[name].missing if name in before.dates else ()
        dates[name] = DateForm(form=written, missing=missing)
    said = {
        column.name: form.get(f"formula {column.name}", "").strip()
        for column in dictionary.columns
        if column.kind != "person"
    }
    order = dict.fromkeys([*before.derive, *said])
    derive = {name: said[name] for name in order if said.get(name)}
    given = {name: form.get(f"follow {name}", "").strip() for name in ("time", "start", "end", "last", "until", "unit")}
    if not (given["time"] and given["start"]):
        return replace(before, dates=dates, derive=derive, follow_up=None)
    if wrong := [given[name] for name in ("start", "end", "last") if given[name] and given[name] not in names]:
        raise UsageRefusal("a date must be one of the file's columns", given=repr(wrong[0]))
    kept = before.follow_up
    horizon = kept.horizon if kept is not None and kept.time == given["time"] else None
    event = dictionary.column(given["time"]).event
    taken = {column for column in form if column.startswith("from ") and form[column]}
    follow = FollowUp(**given, horizon=horizon, event="" if f"from {event}" in taken else event)
    return replace(before, dates=dates, derive=derive, follow_up=follow)


def _proposed(source: TableSource, dictionary: Dictionary) -> tuple[TableSource, dict[str, str]]:
    """The source with the mapping that looks right, not kept, and what only the steward can say."""
    from site_agent.records import table as records
    from site_agent.records.mapping import suggesting

    found = suggesting.proposed(records.whole(source), dictionary, source.columns, source.ignore)
    try:
        return replace(source, **{**found.mapped, "salt": source.salt}), dict(found.open)
    except Refusal:
        return source, dict(found.open)
