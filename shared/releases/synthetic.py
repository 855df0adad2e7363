"""Synthetic rows of one site, from the noisy figures that it released: post-processing, as often as anybody likes.

A release of figures (tables, slicing, moments) holds no rows, but a model can be fitted to it and rows drawn from that,
at the site that made it, at the coordinator, or on an analyst's own machine: the figures are the same, and so is the
code. Nothing of it is seen by a record, and no ledger moves.

The number of a draw decides every value, and stands in the record beside the bundles, the settings and the table's own
digest: who has the record and the figures can make the same table again.

Several tables of one fit (`draws`, five at least) can be combined, and the record says how. What noise did to the fit
is in no number of draws: questions are answered with that by the coordinator (`shared.mechanisms.tables.one_step`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from shared import software_version
from shared.errors import EstimateRefusal, ParameterError
from shared.terminal import VerbAnswer, write_table

if TYPE_CHECKING:
    import pandas as pd

    from shared.mechanisms.base import ReleasedTables
    from shared.plans.plan import StudyPlan

Drawing: TypeAlias = "Callable[..., list[pd.DataFrame]]"

__all__ = ["LEAST_DRAWS", "MOST_DRAWS", "MOST_ROWS", "Synthesis", "SyntheticTables", "run_synthesis", "versions"]
__all__ += ["DrawNumber", "Draws", "Out", "Rows"]

MOST_ROWS = 1_000_000
LEAST_DRAWS, MOST_DRAWS = 5, 100
_RULE = (
    "Estimate: the mean of the tables' estimates. Variance: v rows / persons + b / tables, with v the mean of the "
    "variances that the tables claim and b the variance between their estimates (Raab, Nowok and Dibben 2016). It "
    "holds the patients and the draw, and nothing of what noise did to the fit: a question to the coordinator is "
    "answered with that."
)
_ALONE = (
    f"One table cannot be combined with others; draw at least {LEAST_DRAWS}. What it claims by itself is too narrow."
)

# What every command that draws is asked.
Out = Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet; its record goes beside it.")]
Rows = Annotated[int, typer.Option("--rows", help="How many; as many as persons if left out.")]
Draws = Annotated[
    int, typer.Option("--m", help="Tables of one fit: 1, or at least 5 to be combined; they are numbered then.")
]
DrawNumber = Annotated[int, typer.Option("--draw", help="The same number gives the same rows; kept in the record.")]


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticTables:
    """Tables, and the record of where they came from."""

    tables: tuple[pd.DataFrame, ...]
    record: dict[str, Any]


class Synthesis:
    """Plan of a synthesis, before anything is fitted.

    Args:
        plan: that the figures were released under.
        figures: (released figures, persons) of releases of different persons.
        about: of them, for the record: study, site, release ids, digests.
        still: raises where the figures are no longer to be used; asked after the fit.
        number: of the draw, the seed of fit and rows. rows: how many, as many as there are persons if 0.
        draws: tables of one fit.
        drawn: draws them where that takes more than the figures; the mechanism's own `synthetic` if left out.
    Raises: ParameterError; EstimateRefusal (no figures).
    """

    def __init__(
        self,
        plan: StudyPlan,
        figures: ReleasedTables,
        *,
        about: Mapping[str, Any],
        still: Callable[[], None] = lambda: None,
        number: int = 0,
        rows: int = 0,
        draws: int = 1,
        drawn: Drawing | None = None,
    ) -> None:
        from shared.mechanisms.base import Aggregates

        if not isinstance(plan.release, Aggregates):
            raise ParameterError(
                "the release must be of noisy figures",
                given=f"rows by {plan.release.title}",
                next_step="Its rows are there already: analyst rows.",
            )
        if not figures:
            raise EstimateRefusal("there must be released figures", given="none")
        if not 0 <= number < 1 << 63:
            raise ParameterError("the number of a draw must be in 0..2**63 - 1", given=f"{number}"[:40])
        if not 0 <= rows <= MOST_ROWS:
            raise ParameterError(f"rows must be in 1..{MOST_ROWS}", given=f"{rows}")
        if draws != 1 and not LEAST_DRAWS <= draws <= MOST_DRAWS:
            raise ParameterError(
                f"tables of one fit must be 1, or {LEAST_DRAWS} to {MOST_DRAWS} to be combined", given=f"{draws}"
            )
        self.plan, self.number = plan, number
        self._figures, self._still, self._draws = figures, still, draws
        self._drawn = drawn or plan.release.synthetic
        persons = sum(n for _, n in figures)
        self._rows = rows or persons
        self.record: dict[str, Any] = {
            **about,
            "mechanism": plan.release.mechanism,
            "rows": self._rows,
            "draws": draws,
            "persons": persons,
            "seed": number,
            "combining": _RULE if draws > 1 else _ALONE,
            "code": versions(),
        }

    def draw(self) -> SyntheticTables:
        """Fit, and draw. Raises: what `still` raises, and the mechanism's `synthetic`."""
        import numpy as np
        import pandas as pd

        rng = np.random.default_rng([self.number, 4])
        each = -(-self._rows // sum(n for _, n in self._figures))
        made = self._drawn(self.plan, self._figures, draws=each * self._draws, rng=rng)
        parts = [made[k * each : (k + 1) * each] for k in range(self._draws)]
        tables = tuple(pd.concat(part, ignore_index=True).iloc[: self._rows] for part in parts)
        self._still()
        digests = [hashlib.sha256(table.to_csv(index=False).encode()).hexdigest() for table in tables]
        return SyntheticTables(tables=tables, record=self.record | {"csv_sha256": digests})


def run_synthesis(planned: Synthesis, out: Path, *, dry_run: bool, note: str = "") -> VerbAnswer:
    """The view of a synthesis that was run: fitted, its tables and their record written.

    Args:
        out: a table, or what numbered ones are called after. note: a last line for a person.
    Raises: ParameterError (files that are there and not this command's too, before the fit); as `Synthesis.draw`.
    """
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise ParameterError("the table must end in .csv or .parquet", given=repr(out.name))
    draws = int(planned.record["draws"])
    files = [out] if draws == 1 else [out.with_name(f"{out.stem}.{k + 1}{out.suffix}") for k in range(draws)]
    beside = out.with_name(f"{out.name}.record.json")
    _require_own(files, beside)
    answer = {**planned.record, "files": [str(file) for file in files], "written": not dry_run}
    if not dry_run:
        from shared.base.canonical import canonical_json

        drawn = planned.draw()
        for table, file in zip(drawn.tables, files, strict=True):
            write_table(table, file)
        written = {"file_sha256": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}}
        beside.write_bytes(canonical_json(drawn.record | written))
        answer |= drawn.record
    each = f"{answer['rows']} synthetic rows, not patient records" + (f", {draws} times" if draws > 1 else "")
    where = files[0] if draws == 1 else f"{files[0]} to {files[-1].name}"

    return VerbAnswer(answer, f"{'would write' if dry_run else 'wrote'} {each}, to {where}", note or None)


def _require_own(files: Sequence[Path], beside: Path) -> None:
    """Refuse a folder that holds tables other than those its record names. Raises: ParameterError."""
    import json

    written: Any = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads(beside.read_bytes())["file_sha256"] if beside.exists() else {}
    own = isinstance(written, dict)
    foreign = [] if own else [beside]
    for file in files:
        if file.exists():
            known = own and file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == written.get(file.name)
            foreign += [] if known else [file]
    if foreign:
        raise ParameterError(
            "--out must name a new file, or one that this command has written and nobody has changed since",
            given=f"{foreign[0].name}, which is there and is not that",
            next_step="Nothing was written. Give another --out, or move that file away.",
        )


def versions() -> dict[str, str]:
    """The code that fits and answers: its name to its version."""
    return dict(_versions())


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    out = [("python", platform.python_version()), ("tributary", software_version())]
    for name in ("numpy", "scipy", "pandas"):
        try:
            out.append((name, version(name)))
        except PackageNotFoundError:
            out.append((name, "not installed as a package"))
    return tuple(out)
