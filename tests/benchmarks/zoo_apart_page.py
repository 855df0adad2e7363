"""Of docs/zoo.md the part about what outside readers found false: `tests.benchmarks.zoo_apart` asks it since.

What is said of a table follows from the record that the table is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks import zoo_page
from tests.benchmarks.pages.write import older
from tests.benchmarks.worlds.apart import WORLDS
from tests.benchmarks.zoo_page import share, spread, table

__all__ = ["APART", "section", "targets"]

BAR = 92.0
"""Percent of intervals that are to hold the records' answer."""
MECHANISMS = {
    "slicing": "slicing",
    "moments": "noisy moments",
    "tables": "noisy tables",
    "cross_products": "cross-products",
    "latent_noise": "latent noise",
}
PLANNED = "planned"


@dataclass(frozen=True)
class Part:
    """How a row is shown.

    Args:
        title: of its section. of: what it is called among the targets. lines, across: what a line of its table is of,
            and a column.
    """

    title: str
    of: str
    lines: tuple[str, ...]
    across: str


PARTS = {
    "means": Part("Means of long tails, and shares of levels", "means and shares", ("asked", "n"), "sites"),
    "centres": Part(
        "Hospitals that lie apart in both columns",
        "hospitals that lie apart in both columns",
        ("mechanism", "at", "term"),
        "sites",
    ),
    "bounds": Part(
        "Numbers within bounds of sixteen standard deviations and more",
        "numbers within far wider bounds",
        ("mechanism", "at", "term"),
        "sites",
    ),
    "covariates": Part(
        "Covariates beside each other, of which no planned question has one as its outcome",
        "covariates beside each other",
        ("asked", "term"),
        "n",
    ),
    "heaps": Part("Heaped whole numbers", "heaped whole numbers", ("at", "asked", "term"), "n"),
    "levels": Part(
        "Nominal covariates of three and of five levels, one of each rare",
        "nominal covariates with a rare level",
        ("at", "asked", "term"),
        "n",
    ),
}
APART = {row: f"zoo_apart_{row}" for row in PARTS}
"""Row to its record."""
TRIED = {"covariates": "zoo_apart_covariates_tuning"}
"""The same of a world to try it on, where that is shown, too."""

MENDED = {"centres": {"tables": "zoo_apart_centres_tables"}}
"""Row to mechanisms that were measured once more after a change, and the record of that."""


@dataclass(frozen=True)
class Group:
    """Answers that are counted together.

    Args:
        of: what they have in common, by name. asked: how many there could be. terms: figures of each coefficient.
    """

    of: Mapping[str, Any]
    asked: int
    terms: Sequence[Mapping[str, float]]

    def total(self, name: str) -> int:
        """Number of answers of which something is so."""
        return round(sum(one.get(name, 0.0) for one in self.terms))

    @property
    def answered(self) -> int:
        """Number of pooled answers."""
        return self.total("answered")

    @property
    def right(self) -> int:
        """Number of answers whose interval holds the records' own."""
        return sum(round(one["held"] * one["answered"]) for one in self.terms if one["answered"])

    @property
    def held(self) -> float:
        """Those in percent."""
        return 100 * self.right / self.answered

    @property
    def width(self) -> float:
        """Of the intervals, as a multiple of the records'; median of coefficients."""
        widths = sorted(one["width"] for one in self.terms if one["answered"])
        middle = len(widths) // 2
        return widths[middle] if len(widths) % 2 else (widths[middle - 1] + widths[middle]) / 2

    @property
    def cell(self) -> str:
        """It in a table."""
        if not self.answered:
            return "no answer"
        wrong, lacking = self.answered - self.right, self.asked - self.answered
        answered = f"{self.answered}{f' ({lacking} more without an answer)' if lacking else ''}"
        cautions = f"{self.total('wrong_cautioned')} of {wrong}; {self.total('right_cautioned')} of {self.right}"
        return f"{self.right} of {answered}; {self.width:.1f}; {cautions}"

    @property
    def where(self) -> str:
        """It in words."""
        return ", ".join(_words(name, self.of) for name in self.of if _words(name, self.of))

    @property
    def below(self) -> bool:
        """True if less are right than should be."""
        return bool(self.answered) and self.held < BAR

    @property
    def beyond_chance(self) -> bool:
        """True if that is no chance: the share's own interval ends below the bar."""
        return self.below and float(self._share.partition(" to ")[2].rstrip(")")) < BAR

    @property
    def _share(self) -> str:
        return share({"held": self.held}, "held", self.answered)

    @property
    def said(self) -> str:
        """How many are right, and how many of the wrong ones a caution stands by."""
        wrong = self.answered - self.right
        return (
            f"{self._share} % of {self.answered} hold, a caution stands by {self.total('wrong_cautioned')} of {wrong}"
        )


def _words(name: str, of: Mapping[str, Any]) -> str:
    """What a group has in common, in words; blank where a term says no more than its question."""
    value = of[name]
    if name == "mechanism":
        return MECHANISMS[value]
    if name == "at":
        return f"{'w' if of.get('mechanism', '') == 'latent_noise' else 'ε'} = {value:g}"
    if name in ("sites", "n"):
        return f"{'K' if name == 'sites' else 'n'} = {value:,}"
    if name == "asked":
        return "planned model" if value == PLANNED else f"`{value}`"
    return "" if value == of.get("asked") else f"`{value}`"


def _cells(row: str, name: str = "") -> list[dict[str, Any]]:
    """Of a row's record, or of another of its; of a mechanism that was measured once more, those in their place."""
    cells = list((zoo_page.results(name or APART[row]) or {"cells": []})["cells"])
    for mechanism, file in ({} if name else MENDED.get(row, {})).items():
        if record := zoo_page.results(file):
            at = next((k for k, one in enumerate(cells) if one["mechanism"] == mechanism), len(cells))
            before = [one for one in cells[:at] if one["mechanism"] != mechanism]
            cells = [*before, *record["cells"], *(one for one in cells[at:] if one["mechanism"] != mechanism)]
    return cells


def _mended(row: str) -> str:
    """Which mechanisms were measured once more, and what their answers were before; blank where none was."""
    said = ""
    for mechanism, file in MENDED.get(row, {}).items():
        before = [one for one in (zoo_page.results(APART[row]) or {"cells": []})["cells"] if zoo_page.results(file)]
        terms = [spread(line) for one in before if one["mechanism"] == mechanism for line in one["terms"].values()]
        if terms:
            whole = Group({}, 0, terms)
            said += (
                f"What stands here of {MECHANISMS[mechanism]} was measured once more after a change, on the same "
                f"patients (`{file}.json`): before it {whole.right} of {whole.answered} held.\n"
            )
    return said


def _groups(row: str, name: str = "") -> list[Group]:
    """Of a row's record, or of another of its, by lines and columns of its table; none where it was not measured."""
    found: dict[tuple[Any, ...], tuple[dict[str, Any], list[dict[str, float]]]] = {}
    for one in _cells(row, name):
        for term, line in one["terms"].items():
            cell = {**one, "term": term}
            of = {name: cell[name] for name in (*PARTS[row].lines, PARTS[row].across)}
            found.setdefault((*of.values(),), (of, []))[1].append(spread(line))
    return [Group(of, round(sum(one["draws"] for one in terms)), terms) for of, terms in found.values()]


def _table(row: str, groups: Sequence[Group]) -> str:
    part = PARTS[row]
    columns = sorted({group.of[part.across] for group in groups})
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for group in groups:
        names = tuple(_words(name, group.of) for name in part.lines)
        lines.setdefault(names, {})[group.of[part.across]] = group.cell
    heads = [{"at": "ε or w", "asked": "question", "term": "coefficient"}.get(name, name) for name in part.lines]
    cells = "holds; width; cautioned: of the wrong; of the right"
    heads += [f"{_words(part.across, {part.across: column})}: {cells}" for column in columns]
    rows = [
        [*(name or "–" for name in names), *(of.get(column, "–") for column in columns)] for names, of in lines.items()
    ]
    return table(heads, rows)


def _lines(row: str, groups: Sequence[Group]) -> list[tuple[Group, list[Group]]]:
    """Each line of a row's table with answers: all of it together, and its cells."""
    cells: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        if group.answered:
            cells.setdefault(tuple(group.of[name] for name in PARTS[row].lines), []).append(group)
    out = []
    for several in cells.values():
        of = {name: several[0].of[name] for name in PARTS[row].lines}
        terms = [term for one in several for term in one.terms]
        out.append((Group(of, sum(one.asked for one in several), terms), several))
    return out


def _said(row: str, groups: Sequence[Group]) -> str:
    """Which lines, or single cells of the others, hold too seldom, and whether a caution stands by."""
    lines, across = _lines(row, groups), PARTS[row].across
    far = [(line, cells) for line, cells in lines if line.beyond_chance]
    near = sum(line.below for line, _ in lines) - len(far)
    single = [one for line, cells in lines if not line.beyond_chance for one in cells if one.beyond_chance]
    said = f"Of {len(lines)} lines with answers {len(far)} hold in less than {BAR:g} % by more than chance, "
    said += (
        f"and {near} in less within chance; of the single cells of the others {len(single)} do by more than chance.\n"
    )
    silent = len({tuple(group.of[name] for name in PARTS[row].lines) for group in groups}) - len(lines)
    said += f"Lines without any answer: {silent}.\n" if silent else ""
    bullets = []
    for line, cells in far:
        least = min(cells, key=lambda one: one.held)
        where = f"; least at {_words(across, least.of)}, {least.right} of {least.answered}" if len(cells) > 1 else ""
        bullets.append(f"- {line.where}: {line.said}{where}.\n")
    bullets += [f"- {one.where}: {one.said}.\n" for one in single]
    return f"{said}Those beyond chance:\n\n{''.join(bullets)}" if bullets else said


def _unplanned(groups: Iterable[Group]) -> str:
    """Whether the caution stands by what the flow alone draws, and no distance is told."""
    parts: dict[bool, list[Group]] = {True: [], False: []}
    for group in groups:
        parts[group.of["asked"] == PLANNED].append(group)
    count = {
        planned: {name: sum(group.total(name) for group in of) for name in ("answered", "between", "distance", "told")}
        for planned, of in parts.items()
    }
    loose, planned = count[False], count[True]
    return (
        "The caution that the flow alone says how the columns hang together stands by "
        f"{loose['between']} of the {loose['answered']} answers about covariates, and a distance to the records is "
        f"told for {loose['distance']} of them.\n"
        f"Of the planned model's {planned['answered']} answers that caution stands by {planned['between']}; "
        f"{planned['distance']} have a distance, of which {planned['told']} hold.\n"
    )


def _world(name: str) -> str:
    """The world of a record, its size, and whether code has changed since."""
    record = zoo_page.results(name) or {}
    world = record["cells"][0]["world"]
    sizes = " and ".join(f"{n:,}" for n in dict.fromkeys(one["n"] for one in record["cells"]))
    sites = ", ".join(f"{k}" for k in dict.fromkeys(one["sites"] for one in record["cells"]))
    why = older(name, "cells")
    return (
        f"World `{world}`: {WORLDS[world].hard}; n = {sizes}, K = {sites}, {record['draws']} draws of fresh patients "
        f"(`{name}.json`).\n" + (f"Measured with older code: {why}\n" if why else "")
    )


def section() -> str:
    """The section; empty where nothing was measured."""
    parts = []
    for row, part in PARTS.items():
        if groups := _groups(row):
            parts += [f"### {part.title}\n", ASKED[row] + _world(APART[row]) + _mended(row), *_shown(row, groups)]
        if tried := _groups(row, TRIED[row]) if row in TRIED else []:
            parts += [TO_TRY + _world(TRIED[row]), *_shown(row, tried)]
    return "\n".join([HEAD, *parts]) if parts else ""


def _shown(row: str, groups: Sequence[Group]) -> list[str]:
    """A table, and what follows from it."""
    found = [_table(row, groups), _said(row, groups)]
    return [*found, _unplanned(groups)] if row == "covariates" else found


def targets() -> list[list[str]]:
    """Of each row and mechanism the cell that holds least often, as a line of the table of targets."""
    rows = []
    for row, part in PARTS.items():
        groups = _groups(row)
        for mechanism in dict.fromkeys(one["mechanism"] for one in _cells(row)):
            own = [g for g in groups if g.answered and g.of.get("mechanism", mechanism) == mechanism]
            if own:
                one = min(own, key=lambda group: group.held)
                what = f"{MECHANISMS[mechanism]}, {part.of}: holds the records' answer, %, lowest: "
                where = one.where.removeprefix(f"{MECHANISMS[mechanism]}, ")
                wrong = one.answered - one.right
                reached = "no" if one.beyond_chance else "no, within chance" if one.below else "yes"
                if one.below:
                    reached += (
                        f"; {wrong} of {one.answered} outside, a caution stands by {one.total('wrong_cautioned')}"
                    )
                    reached += f"; {sum(g.below for g in own)} of {len(own)} are below, "
                    reached += f"{sum(g.beyond_chance for g in own)} by more than chance"
                rows.append([what + where, f"≥ {BAR:g}", share({"held": one.held}, "held", one.answered), reached])
    return rows


HEAD = """## What outside readers found false, and no row above asks

Readers from outside found false answers on data that nobody tuned to.
The product was changed for them, by another answer or by a caution, but no row above would have seen them: these ask \
models and no means, of hospitals that are nearly alike, within narrow bounds, and the questions of the plan.
Each of the rows below has a world to try it on and another one, which is reported here.
Laws and questions of both were written down before any of the reported ones was answered \
(`tests/benchmarks/worlds/apart.py`, `tests/benchmarks/zoo_apart.py`), and every draw has fresh patients.
Most sizes are smaller than were written down there, because time was short; each was settled before a result of its \
row was seen.
Whoever mends a fault by these tables needs other worlds to report.

Cells say how many pooled answers *hold* the records' own, the median *width* as a multiple of the records', and by \
how many of the wrong and of the right answers a caution stands.
What stands below each table follows from its record.
"""
TO_TRY = """The world to try it on, in which the same is asked; nothing was chosen by it, and it is no report.
"""
ASKED = {
    "means": """Slicing at ε = 3, asked for means and shares alone; a share is pooled on the logit scale.
""",
    "centres": """Every hospital has a centre of its own in the covariate and in the outcome, and between hospitals \
the association is of the other sign than within them.
Linear and logistic models together, of cross-products the linear one; scales of cross-products are those of all \
hospitals together.
""",
    "bounds": """Linear and logistic models together, of cross-products the linear one; every number has such \
bounds.
""",
    "covariates": """Latent noise at w = 0.8, outcomes last, of a plan that names one model of who died; the other \
questions are of its covariates beside each other.
""",
    "heaps": """Noisy moments, every coefficient declared: the mean of such a column, and linear and logistic models \
that have it as a covariate.
""",
    "levels": """Noisy moments, every coefficient declared: linear and logistic models with both columns, shares of \
levels, and how age differs by level.
""",
}
