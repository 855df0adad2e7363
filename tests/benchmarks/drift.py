"""Which figures moved since they were committed: ``python -m tests.benchmarks.drift``, at the end of `make bench`.

Every number of every file that was measured anew is put beside the one at the same place of the committed file; what
moved by more than a fifth (``--beyond``) is listed, figures that a page shows first. A figure near zero moves by a
fifth easily: one on a page counts only where it moved by more than one unit of the last place that the page shows. What
no page shows is counted, and listed with ``--all``. Seconds and megabytes are the machine's too: they stand apart.

The pages of `pages/` name their places; of the zoo's own page it is taken that it shows each file's summaries.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import zoo_page
from tests.benchmarks.pages import write
from tests.benchmarks.record import COMMITTED

ROOT = write.ROOT
PRODUCT = ("shared", "site_agent", "coordinator", "tributary_meta.py")
_COST = "s|ms|us|mb|kb|cpu|seconds|milliseconds|minutes|memory|load|cores|busy|speed|per_s|a_second"
COSTS = re.compile(rf"(?:_|\b)(?:{_COST})(?:_|\b)")
"""What the places of seconds, megabytes and loads have in their names."""


@dataclass(frozen=True)
class Figure:
    """A number that moved, appeared or went.

    Args:
        file, place: as `pages.write` names it. before, now: None where there is none.
        pages: those that show it. cost: true for seconds and memory, which depend on the machine.
    """

    file: str
    place: str
    before: float | None
    now: float | None
    pages: tuple[str, ...]
    cost: bool

    @property
    def ratio(self) -> float | None:
        """now / before; None where there is no such number."""
        if self.before is None or self.now is None or not self.before:
            return None
        return self.now / self.before


@dataclass(frozen=True)
class Age:
    """A file that was not measured anew: the day of its last commit, and how many touched the product since."""

    file: str
    day: str
    product_commits: int


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number below, by place; true is 1.

    >>> dict(numbers({"gap": {"w=0": 0.5}, "met": [True], "unit": "s"}))
    {'gap/w=0': 0.5, 'met/0': 1.0}
    """
    if isinstance(value, int | float):
        yield place, float(value)
    elif isinstance(value, Mapping | list):
        for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from numbers(one, f"{place}/{key}" if place else str(key))


class _Read(write.Section):
    """A section that notes what it would show."""

    def figure(self, file: str, place: str, form: str) -> str:
        self.shown.append((file, place, form))
        return ""

    def __init__(self) -> None:
        super().__init__("")
        self.shown: list[tuple[str, str, str]] = []


def shown() -> dict[tuple[str, str], dict[str, str]]:
    """(file, place) → page → the format in which it shows the number there."""
    out: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for template in sorted(write.HERE.rglob("*.md")):
        section = _Read()
        section.lines(template.read_text(encoding="utf-8"))
        for file, place, form in section.shown:
            if form.startswith("?"):  # a word on a target that the figure beside it reaches or not
                continue
            out[file, place][template.relative_to(write.HERE).as_posix()] = form
    return out


def last_place(form: str) -> float:
    """One unit of the last place that a format shows.

    >>> last_place(".3f"), last_place(".1%"), last_place(",.0f")
    (0.001, 0.001, 1.0)
    """
    found = re.search(r"\.(\d+)([f%])", form)
    return 10.0 ** -(int(found[1]) + 2 * (found[2] == "%")) if found else 0.0


def moved(before: float, now: float, beyond: float, least: float = 0.0) -> bool:
    """True if a number changed by more than the share `beyond` of what it was, and by more than `least`."""
    if math.isnan(before) or math.isnan(now):
        return math.isnan(before) != math.isnan(now)
    # A number with few digits that moved by just one unit of the last differs from it by rounding.
    return abs(now - before) > beyond * abs(before) and abs(now - before) > least * (1 + 1e-9)


def compared(
    file: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    on_pages: Mapping[tuple[str, str], Mapping[str, str]],
    beyond: float = 0.2,
) -> list[Figure]:
    """Figures of a file's results that moved, appeared or went."""
    one, other = dict(numbers(before)), dict(numbers(now))
    costly = bool(re.search(r"seconds|\bms\b", f"{now.get('unit', '')}"))
    out = []
    for place in dict.fromkeys((*one, *other)):
        where = on_pages.get((file, place), {})
        pages = tuple(where) or (("zoo.md",) if file in _OF_THE_ZOO and place.startswith("summaries/") else ())
        if place in one and place in other:
            least = min(map(last_place, where.values()), default=0.0)
            if not moved(one[place], other[place], beyond, least):
                continue
        cost = costly or bool(COSTS.search(place))
        out.append(Figure(file, place, one.get(place), other.get(place), pages, cost))
    return out


_OF_THE_ZOO = {
    *zoo_page.LATENT_NOISE,
    *zoo_page.FIGURES,
    *zoo_page.LATER,
    *zoo_page.LATER_FIGURES,
    *zoo_page.FRESH,
    *zoo_page.BLIND,
    zoo_page.UNSEEN,
}


def committed(revision: str, name: str) -> dict[str, Any] | None:
    """A file as of a revision; None where there was none."""
    path = f"{revision}:{COMMITTED.relative_to(ROOT).as_posix()}/{name}.json"
    found = subprocess.run(["git", "show", path], cwd=ROOT, capture_output=True, text=True, check=False)
    return None if found.returncode else json.loads(found.stdout)


def ages(names: Sequence[str]) -> list[Age]:
    """Of files that were not measured anew, the longest untouched by the most commits first."""
    where = COMMITTED.relative_to(ROOT).as_posix()
    command = ["git", "log", "--format=%x00%cs", "--name-only", "--", where, *PRODUCT]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    out: dict[str, Age] = {}
    product = 0
    for commit in log.split("\0")[1:]:
        day, *paths = commit.split()
        for path in paths:
            if path.startswith(f"{where}/"):
                out.setdefault(Path(path).stem, Age(Path(path).stem, day, product))
        product += any(not path.startswith(f"{where}/") for path in paths)
    return sorted((out[name] for name in names if name in out), key=lambda age: -age.product_commits)


def report(revision: str, folder: Path, names: Sequence[str], beyond: float) -> dict[str, Any]:
    """What moved, appeared and went in the files of a folder, what was measured anew, and how old the others are."""
    on_pages, figures, anew, same, commands = shown(), list[Figure](), dict[str, int](), list[str](), list[str]()
    for path in sorted(folder.glob("*.json")):
        if names and path.stem not in names:
            continue
        now, before = json.loads(path.read_text(encoding="utf-8")), committed(revision, path.stem)
        if now == before:
            same.append(path.stem)
            continue
        anew[path.stem] = sum(1 for _ in numbers(now["results"]))
        if before is not None and before["command"] != now["command"]:
            commands.append(f"{path.stem}: {before['command']} → {now['command']}")
        figures += compared(path.stem, before["results"] if before else {}, now["results"], on_pages, beyond)
    return {"beyond": beyond, "anew": anew, "figures": figures, "commands": commands, "ages": ages(same)}


def said(found: Mapping[str, Any], everything: bool) -> list[str]:
    """The report, line by line."""
    out = [f"measured anew: {len(found['anew'])} files with {sum(found['anew'].values()):,} numbers"]
    out += [f"  by another command: {line}" for line in found["commands"]]
    both = [one for one in found["figures"] if one.before is not None and one.now is not None]
    for cost, kind in ((False, "figures"), (True, "seconds and memory, which are the machine's too")):
        mine = [one for one in both if one.cost == cost]
        paged = [one for one in mine if one.pages]
        many = f"{len(paged)} on pages, {len(mine) - len(paged)} that no page shows"
        out.append(f"moved by more than {found['beyond']:.0%}, {kind}: {many}")
        for one in paged + [one for one in mine if not one.pages] * everything:
            ratio = "" if one.ratio is None else f", {one.ratio:.2f} times"
            where = f" ({', '.join(one.pages)})" if one.pages else ""
            out.append(f"  {one.file}:{one.place}  {one.before:.6g} → {one.now:.6g}{ratio}{where}")
    for word, mine in (
        ("gone", [one for one in found["figures"] if one.now is None]),
        ("new", [one for one in found["figures"] if one.before is None]),
    ):
        paged = [one for one in mine if one.pages]
        out.append(f"{word}: {len(paged)} on pages, {len(mine) - len(paged)} that no page shows")
        out += [f"  {one.file}:{one.place}" for one in (mine if everything else paged)]
    if found["ages"]:
        out.append(f"not measured anew: {len(found['ages'])} files, and how many commits touched the product since")
        out += [f"  {age.file} {age.day} {age.product_commits}" for age in found["ages"][: None if everything else 10]]
    return out


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.drift", description="Which figures moved.")
    parser.add_argument("names", nargs="*", help="files, without .json; all where none is named")
    parser.add_argument("--against", default="HEAD", metavar="REV", help="the revision that was committed before")
    parser.add_argument("--results", type=Path, default=COMMITTED, help="the folder of what was measured anew")
    parser.add_argument("--beyond", type=float, default=0.2, help="the share by which a figure moves")
    parser.add_argument("--all", action="store_true", help="list what no page shows, too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true", help="exit status 1 where a figure on a page moved or is gone")
    given = parser.parse_args()
    found = report(given.against, given.results, given.names, given.beyond)
    if given.json:
        kept = {"figures": [asdict(one) | {"ratio": one.ratio} for one in found["figures"]]}
        print(json.dumps(found | kept | {"ages": [asdict(age) for age in found["ages"]]}, indent=1))
    else:
        print("\n".join(said(found, given.all)))
    if given.strict and any(one.pages and one.before is not None for one in found["figures"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
