"""An analyst's own table of studies: read from a spreadsheet's export, and pooled without a server.

A row is a study: an estimate with its variance or standard error, or the four counts of a 2×2 table. A file that says
on which scale its estimates are (``scale``) and what they are called (``effect``), as `coordinator pool --out` and
`analyst export` write it, is read so. Such a file also has what all of its sites may be off by alike (``vi_common``),
and their cautions. That of a harmonised answer has the same of its mapped estimates, and the error of the maps, which
is common to all (``vi_common_map``).
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import DataFileRefusal, ParameterError, require

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from coordinator.pooling.further.two_by_two import TwoByTwoTables
    from coordinator.pooling.pool import PooledResult

    Array = NDArray[np.float64]

__all__ = ["OwnTable", "column", "counts", "read_table", "table_option"]

_MEASURES = {"OR": ("log", "Odds ratio"), "RR": ("log", "Risk ratio"), "RD": ("identity", "Risk difference")}


def read_table(path: str | Path) -> pd.DataFrame:
    """A table from .csv, .tsv or .parquet; semicolons and decimal commas are read as such. Raises: DataFileRefusal."""
    import pandas as pd

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".tsv", ".parquet"):
        step = "In the spreadsheet: File, Save as, CSV UTF-8." if suffix.startswith((".xls", ".ods")) else ""
        raise DataFileRefusal("the file must end in .csv, .tsv or .parquet", given=repr(path.name), next_step=step)
    if not path.is_file():
        raise DataFileRefusal("the file must exist", given=path.name, next_step="Check the path.")
    if suffix == ".parquet":
        require("pyarrow")
    try:
        given = pd.read_parquet(path) if suffix == ".parquet" else _csv(path, "\t" if suffix == ".tsv" else "")
    except Exception as error:  # a damaged file fails in a dozen classes, KeyError of pandas' metadata among them
        raise DataFileRefusal(f"{path.name} must be readable", given=type(error).__name__) from None
    if given.empty:
        raise DataFileRefusal(f"{path.name} must have at least one row", given="none")
    return given


def _csv(path: Path, delimiter: str) -> pd.DataFrame:
    import pandas as pd

    data = path.read_bytes()
    try:
        text, encoding = data.decode("utf-8-sig"), "utf-8-sig"
    except UnicodeDecodeError:
        text, encoding = data.decode("cp1252", errors="replace"), "cp1252"
    first = next(iter(text.splitlines()), "")
    found = delimiter or max(",;\t", key=next(csv.reader([first]), [first])[0].count if ";" in first else first.count)
    return pd.read_csv(path, sep=found, encoding=encoding, decimal="," if found == ";" else ".")


def _require_columns(given: pd.DataFrame, *names: str) -> None:
    """Refuse a table without these columns, all at once. Raises: ParameterError."""
    known = [str(name) for name in given.columns]
    absent = [name for name in names if name not in known]
    if len(absent) > 1:
        listed = ", ".join(known[:20])
        raise ParameterError(
            f"the table must have the columns {' and '.join(map(repr, names))}",
            given="none of them",
            next_step=f"Name its own with --yi and --vi or --sei. Columns: {listed}.",
        )


def column(given: pd.DataFrame, name: str) -> pd.Series:
    """A column by its name. Raises: ParameterError, with the nearest one."""
    if name not in given.columns:
        names = [str(known) for known in given.columns]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)  # below, vi would be told yi
        step = f"Did you mean {near[0]!r}?" if near else f"Columns: {', '.join(names[:20])}."
        raise ParameterError("the table must have the column", given=repr(name), next_step=step)
    return given[name]


def counts(given: pd.DataFrame, cells: str, labels: Sequence[str]) -> TwoByTwoTables:
    """The counts of 2×2 tables, from four columns. Raises: ParameterError."""
    from coordinator.pooling.further.two_by_two import TwoByTwoTables

    names = [name.strip() for name in cells.split(",")]
    if len(names) != 4:
        raise ParameterError("--cells must name four columns", given=f"{len(names)}", next_step="As in ai,bi,ci,di.")
    ai, bi, ci, di = (_numbers(given, name) for name in names)
    return TwoByTwoTables(ai=ai, bi=bi, ci=ci, di=di, labels=tuple(labels))


table_option = partial(typer.Option, rich_help_panel="The table")


@dataclass(frozen=True, kw_only=True)
class OwnTable:
    """Columns of a table of study results, by their role; options of the commands that pool one.

    Args:
        file: the table.
        yi, vi, sei: columns of estimates, and of their variances or standard errors.
        cells: four columns of counts instead: events and none, then the same in the second group.
        measure: effect measure computed from counts: OR, RR or RD.
        labels: the column that names the rows; the first column of words when blank.
        exp: True if the estimates are logarithms of ratios.
        effect: name of the estimates' effect measure, such as "Hazard ratio".
    """

    file: Annotated[Path, typer.Argument(help="Table with one row per study: .csv, .tsv or .parquet.")]
    yi: Annotated[str, table_option("--yi", help="Column of estimates (log scale for ratios).")] = "yi"
    vi: Annotated[str, table_option("--vi", help="Column of their variances (squared standard errors).")] = "vi"
    sei: Annotated[str, table_option("--sei", help="Column of their standard errors, in place of --vi.")] = ""
    cells: Annotated[
        str, table_option("--cells", help="Four columns of 2×2 counts instead: ai,bi,ci,di (events, none; twice).")
    ] = ""
    measure: Annotated[str, table_option("--measure", help="Of counts: OR, RR or RD.")] = "OR"
    labels: Annotated[str, table_option("--labels", help="Column that names the rows.")] = ""
    exp: Annotated[
        bool, table_option("--exp", help="The estimates are logarithms of ratios; a column scale says so too.")
    ] = False
    effect: Annotated[str, table_option("--effect", help='What the estimates are called, as in "Hazard ratio".')] = ""

    def pooled(self, *, method: Any, test: Any, level: float) -> PooledResult:
        """The rows pooled, under their scale and the name of their effect. Raises: ParameterError, DataFileRefusal."""
        from coordinator.pooling.pool import pool
        from coordinator.pooling.rows import require_known

        given = read_table(self.file)
        names = self.names(given)
        scale, effect = self.scale(given)
        if self.cells:
            from coordinator.pooling.further.two_by_two import effect_sizes

            require_known(self.measure, _MEASURES, "measure")
            tables = counts(given, self.cells, names)
            sizes = effect_sizes(tables, self.measure)  # type: ignore[arg-type]
            found = pool(sizes.yi, sizes.vi, method=method, test=test, level=level, labels=names)
            reasons = {row.label: row for row in sizes.excluded}
            found = replace(found, excluded=tuple(reasons.get(row.label, row) for row in found.excluded))
            found = replace(found, notes=(*found.notes, *([f"{sizes.rule}."] if sizes.rule else [])))
        else:
            yi, vi = self.estimates(given)
            of = _OF_AN_ANSWER.get((self.yi, self.vi, self.sei))
            if of is not None and f"vi_common{of}" in given.columns:
                found = self._answered(given, names, (yi, vi), of, method=method, test=test, level=level)
                return replace(found, effect=effect)
            found = pool(yi, vi, method=method, test=test, level=level, labels=names)
            if beside := [name for name in ("vi_common", "attenuation", "cautions") if name in given.columns]:
                what = f"The file's {', '.join(beside)} are of its yi and vi, and not read for other columns."
                found = replace(found, notes=(*found.notes, what))
        return replace(found, scale=scale, effect=effect)

    def _answered(
        self, given: pd.DataFrame, names: Sequence[str], values: tuple[Array, Array], of: str, **pooling: Any
    ) -> PooledResult:
        """The rows of a study's answer pooled as there: with what its sites may be off by alike, and its cautions.

        Args:
            of: end of the names of the columns beside the estimates (`_OF_AN_ANSWER`).
        Raises: ParameterError.
        """
        import pandas as pd

        from coordinator.pooling.pool import pool_estimates
        from coordinator.pooling.rows import reason_out
        from shared.estimands.answer import Estimate

        def said(name: str) -> list[str]:
            found = given[name].tolist() if name in given.columns else [""] * len(given)
            return ["" if pd.isna(text) else str(text) for text in found]

        outs = [reason_out(y, v) for y, v in zip(*values, strict=True)]
        used = [not out for out in outs]
        (common, noise, lost, n, maps), notes = _figures(given, names, used, of)
        reasons, cautions, scale = said(f"reason{of}"), said(f"cautions{of}"), self.scale(given)[0]
        rows = []
        for i, (label, out, y, v) in enumerate(zip(names, outs, *values, strict=True)):
            part = 0.0 if out else min(noise[i], v)
            rows.append(
                Estimate(
                    study="",
                    site=label,
                    wave=1,
                    term=_one(given, "term"),
                    scale=scale,
                    n=int(n[i]),
                    yi=None if out else float(y),
                    vi_sampling=None if out else float(v - part),
                    vi_privacy=float(part),
                    vi_common=float(common[i]),
                    attenuation=float(lost[i]),
                    reason=(reasons[i] or out) if out else "",
                    warnings=tuple(line for line in cautions[i].split("\n") if line),
                )
            )
        found = pool_estimates(rows, **pooling)  # what it can tell from the rows again is among their cautions
        found = replace(found, shared=found.shared + float(maps.max(initial=0.0)))
        every = (*notes, *found.notes)
        return replace(found, doubts=tuple(dict.fromkeys(found.doubts)), notes=tuple(dict.fromkeys(every)))

    def estimates(
        self, given: pd.DataFrame, *, variances: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(rows,) estimates and their variances; these NaN where they are not asked for. Raises: ParameterError."""
        import numpy as np

        _require_columns(given, self.yi, *([self.sei or self.vi] if variances else []))
        if not variances:
            return _numbers(given, self.yi), np.full(len(given), np.nan)
        return _numbers(given, self.yi), _numbers(given, self.sei) ** 2 if self.sei else _numbers(given, self.vi)

    def named_by(self, given: pd.DataFrame) -> str:
        """The column that names the studies, where each has several rows. Raises: ParameterError."""
        found = next((name for name in (self.labels, "study", "trial", "site") if name and name in given.columns), "")
        if not found:
            raise ParameterError(
                "a table with several rows for each study must say which study a row is of",
                given=self.labels or "no column study, trial or site",
                next_step="Name the column with --labels.",
            )
        return found

    def scale(self, given: pd.DataFrame) -> tuple[Any, str]:
        """Scale and name of the effect: as was said, as the counts give it, or as the file says."""
        from shared.estimands.effects import SCALES

        if self.cells:
            scale, effect = _MEASURES.get(self.measure, ("log", ""))
            return scale, self.effect or effect
        said = {name: _one(given, name) for name in ("scale", "effect")}
        scale = "log" if self.exp else said["scale"] if said["scale"] in SCALES else "identity"
        return scale, self.effect or said["effect"] or ("Ratio" if scale == "log" else "")

    def names(self, given: pd.DataFrame) -> list[str]:
        """Names of the rows, each once: a second row of the same name is numbered.

        They are of the column of words that tells every row apart, the first of several; else of the first.
        """
        import pandas as pd

        words = [name for name in given.columns if not pd.api.types.is_numeric_dtype(given[name])]
        words = [name for name in words if name not in ("scale", "effect", "term") or len(words) == 1]
        apart = [name for name in words if given[name].nunique() == len(given)]
        # Where nothing tells the rows apart: a study is one for all rows of a table that came from an answer.
        chosen = self.labels or next(iter([*apart, *(name for name in words if name != "study"), *words]), "")
        if not chosen:
            return [f"study {i + 1}" for i in range(len(given))]
        seen: dict[str, int] = {}
        out = []
        for value in column(given, chosen):
            name = str(value)
            seen[name] = seen.get(name, 0) + 1
            out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
        return out

    def facts(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Column -> (name of the row -> value); missing values are left out."""
        import pandas as pd

        if not names:
            return {}
        given = read_table(self.file)
        rows = self.names(given)
        facts: dict[str, dict[str, Any]] = {}
        for name in names:
            found = column(given, name)
            values = found.tolist() if pd.api.types.is_numeric_dtype(found) else found.astype("string").tolist()
            facts[name] = {row: value for row, value in zip(rows, values, strict=True) if not pd.isna(value)}
        return facts


_OF_AN_ANSWER = {("yi", "vi", ""): "", ("yi_harmonised", "vi_harmonised", ""): "_harmonised"}
"""Columns of estimates in the file of an answer, and the end of the names of the columns beside them."""
_BESIDE = {
    "vi_common": (0.0, 1e100),
    "vi_privacy": (0.0, 1e100),
    "attenuation": (-1.0, 1.0),
    "n": (0.0, 1e15),
    "vi_common_map": (0.0, 1e100),
}
"""Columns of an answer beside yi and vi, with the least and the greatest value of a cell."""
_ALIKE = ("n", "vi_common_map")
"""Those of them whose names have no end: the map's error is that of mapped estimates alone."""


def _figures(given: pd.DataFrame, names: Sequence[str], used: Sequence[bool], of: str) -> tuple[list[Array], list[str]]:
    """The columns of `_BESIDE`, and notes of blank cells, which are 0, as all are of rows that are not used.

    Args:
        of: end of their names.
    Raises: ParameterError: a cell of a used row that is no number, or none that its column can have.
    """
    import numpy as np
    import pandas as pd

    found, notes = [], []
    for column_, (least, greatest) in _BESIDE.items():
        figures, blanks = np.zeros(len(given)), []
        name = column_ if column_ in _ALIKE else f"{column_}{of}"
        if name in given.columns and (of or column_ != "vi_common_map"):
            for i, (cell, value) in enumerate(zip(given[name], _numbers(given, name), strict=True)):
                if not used[i]:
                    continue
                if pd.isna(cell) or not str(cell).strip():
                    blanks.append(names[i])
                elif least <= value <= greatest:
                    figures[i] = value
                else:
                    raise ParameterError(
                        f"each {name} of the table must be a number of at least {least:g} and at most {greatest:g}",
                        given=f"{str(cell)!r} at {names[i]}",
                        next_step="Put the cell right (a number with a decimal point), or leave it blank for 0.",
                    )
        if blanks and name != "n":
            notes.append(f"{name} is blank, and taken as 0: {', '.join(blanks)}.")
        found.append(figures)
    return found, notes


def _one(given: pd.DataFrame, name: str) -> str:
    """The one value of a column of words; blank where it has several or is not there."""
    values = set(given[name].dropna().astype(str)) if name in given.columns else set()
    return values.pop() if len(values) == 1 else ""


def _numbers(given: pd.DataFrame, name: str) -> Array:
    """(rows,) float64; what is no number is NaN, and will be listed as left out."""
    import pandas as pd

    return pd.to_numeric(column(given, name), errors="coerce").to_numpy(dtype="float64", na_value=float("nan"))
