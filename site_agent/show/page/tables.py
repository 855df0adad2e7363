"""Tables of the studies on the page: where each lies, which column is which, and whether it holds the dictionary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import Response

from shared.errors import DataFileRefusal, Refusal, UsageRefusal
from shared.plans.dictionary import NUMERIC
from site_agent.show.page.frame import Frame

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from shared.plans.dictionary import Column, Dictionary
    from site_agent.config import TableSource
    from site_agent.desk import Desk
    from site_agent.records.mapping.declared import Recoding
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
        from site_agent.records import table as records

        study = request.path_params["study"]
        plan = desk.plans.plan(study)
        address = f"/data/{study}"
        values: dict[str, Any] = {"study": study, "source": None, "rows": (), "beside": None, "found": None}
        if study in desk.config.data:
            source = desk.config.source(study)
            shown: TableSource = source
            questions: dict[str, str] = {}
            trusted, names = records.named(source, plan.dictionary)
            if request.query_params.get("proposals") == "yes" and trusted:
                shown, questions = _proposed(source, plan.dictionary)
            beside = tables.matching(shown, plan.dictionary, edges=plan.release.edges)
            check = request.query_params.get("check") == "yes"
            values |= {
                "source": source,
                "beside": beside,
                "proposed": shown is not source,
                "questions": questions,
                "names": names,
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
        """Keep the mapping as the form has it: columns, levels, units, decimal commas, and what is left out."""
        from site_agent.decide.airlock import tables
        from site_agent.records import table as records
        from site_agent.records.mapping import editing

        study = request.path_params["study"]
        dictionary, source = desk.plans.plan(study).dictionary.source, desk.config.source(study)
        names, columns = records.named(source, dictionary)[1], {}
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
        editing.require_planned({"columns": columns, "values": values, "steps": source.steps}, dictionary)
        known = {column.name for column in dictionary.columns} | {*source.steps.reads}
        ignored = [name for name in source.ignore if name not in columns]
        if form.get("ignore") == "yes":
            ignored += [name for name in names if name not in columns and name not in known]
        kept = replace(source, columns=columns, values=values, ignore=tuple(dict.fromkeys(ignored)))
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
        "made": steps.derive.get(column.name, "") if column.name in steps.made else "",
        "numeric": column.kind in NUMERIC,
        "levels": "" if how is None else ", ".join(f"{value}={level}" for value, level in how.levels.items()),
        "comma": how is not None and how.decimal == ",",
        "unit": "" if how is None else how.unit,
        "analyte": "" if how is None else how.analyte,
    }


def _recoding(column: Column, source: TableSource, form: QueryParams) -> Recoding:
    """How a column is recoded by the form; a factor that the command line has set stays where no unit is typed."""
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


def _proposed(source: TableSource, dictionary: Dictionary) -> tuple[TableSource, dict[str, str]]:
    """The source with the mapping that looks right, not kept, and what only the steward can say."""
    from site_agent.records import table as records
    from site_agent.records.mapping import suggesting

    found = suggesting.proposed(records.whole(source), dictionary, source.columns, source.ignore)
    try:
        return replace(source, **{**found.mapped, "salt": source.salt}), dict(found.open)
    except Refusal:
        return source, dict(found.open)
