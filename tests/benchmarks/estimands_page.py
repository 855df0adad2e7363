"""What each answer is checked against: ``python -m tests.benchmarks.estimands_page`` writes docs/estimands-checked.md.

`estimands_checked.csv` has a row for every model that a biostatistician asks for by name: its kind of question, whose
numbers it is held to and by which test, and under which names `*_coverage.json` have how often its pooled interval held
the truth (file, and how the names begin). What lacks is worked out from that and said, too.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from tests.benchmarks.pages.write import RESULTS, ROOT

PAGE = ROOT / "docs" / "estimands-checked.md"
WEIGHTS = ("w=1", "w=0.8", "w=0")
LOW, HIGH, FEWEST = 92.0, 97.0, 200
HEAD = (
    "# What each answer is checked against",
    "",
    "Written by `python -m tests.benchmarks.estimands_page`; [estimands.md](estimands.md) says how each is asked.",
    "",
    "Every kind goes through five doors (Python, command line, HTTPS, the browser's form, R) with the same figures: "
    "`tests/coordinator_side/analyst/test_r_package.py`.",
    "A plan that names any of these questions is read, checked and priced: "
    "`tests/house/measurements/test_estimands_page.py`.",
    "Numbers of a table of patients are held to those of another program by the test named here.",
    "",
    "The last three columns are how often the pooled 95 % interval held the truth, in percent, by fixed effects with "
    "z, which is the sharp test: the lowest and the highest of a model's terms.",
    "At w = 1 rows are the patients' own; at w = 0.8 and 0 they are released through a flow.",
    f"Asked: {LOW:g} to {HIGH:g}, of {FEWEST} repetitions or more.",
    "Bold is what is outside by more than chance: of so many repetitions the exact interval of the percentage does not "
    "reach that range.",
    "[benchmarks/pooling.md](benchmarks/pooling.md) has each term, and says why where it is known.",
    "[benchmarks/latent-noise.md](benchmarks/latent-noise.md) has linear and Cox regression on the paper's own "
    "designs, through flows that were trained.",
    "Mechanisms with an ε of their own (noisy tables, moments, slicing) have their coverage in [zoo.md](zoo.md), of "
    "four kinds of outcome and not of each model.",
    "",
    "| model | question | its numbers are those of | test | w = 1 | w = 0.8 | w = 0 |",
    "|---|---|---|---|---|---|---|",
)
NOT_BUILT = (
    "Of repeated rows: waves of one person in one model, random slopes, working correlations other than exchangeable "
    "and independence, clusters of persons with several rows.",
    "Columns that vary with time; `exact` ties.",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model; as the columns of the file."""

    model: str
    kind: str
    numbers_of: str
    test: str
    cells: str


@dataclass(frozen=True, kw_only=True)
class Covered:
    """Lowest and highest percentage at one w, and whether one of them is outside by more than chance."""

    lowest: float
    highest: float
    outside: bool

    @property
    def text(self) -> str:
        low, high = f"{self.lowest:.1f}", f"{self.highest:.1f}"
        shown = low if low == high else f"{low} to {high}"
        return f"**{shown}**" if self.outside else shown


def rows() -> list[Row]:
    with Path(__file__).with_name("estimands_checked.csv").open(encoding="utf-8", newline="") as file:
        return [Row(**one) for one in csv.DictReader(file)]


def covered(cells: str, others: list[str]) -> list[Covered] | None:
    """By w, of the cells whose names begin so and not as others that say more; None where it was not measured."""
    file, _, begins = cells.partition(":")
    if not cells:
        return None
    results = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))["results"]
    times = results["repetitions"]
    more = [other.partition(":")[2] for other in others if other.startswith(cells) and other != cells]
    names = [name for name in results["cells"] if name.startswith(begins) and not any(map(name.startswith, more))]
    if not names or times < FEWEST:
        raise ValueError(f"{file}.json has no cells {begins!r} of {FEWEST} repetitions")
    found = []
    for w in WEIGHTS:
        of = [results["cells"][name][w]["fixed_z"] for name in names]
        percents = [one["percent"] if isinstance(one, dict) else one for one in of]
        ends = [stats.binomtest(round(times * p / 100), times).proportion_ci(method="exact") for p in percents]
        beyond = any(100 * end.high < LOW or 100 * end.low > HIGH for end in ends)
        found.append(Covered(lowest=min(percents), highest=max(percents), outside=beyond))
    return found


def misfit() -> str:
    """What a law of times that is not the patients' answers of released rows."""
    cells = json.loads((RESULTS / "everyday_coverage.json").read_text(encoding="utf-8"))["results"]["cells"]
    off = [[100 * row[w]["bias_over_truth"] for name, row in cells.items() if name.startswith("aft(")] for w in WEIGHTS]
    of = "; ".join(f"{min(one):.0f} to {max(one):.0f} % at {w}" for w, one in zip(WEIGHTS, off, strict=True))
    return (
        "The patients' times are Weibull's. Of log-normal and log-logistic laws, which are not theirs, coefficients of "
        f"released rows are further from 0 than those of the patients' own: {of}."
    )


def page() -> str:
    """The page."""
    listed = rows()
    others, lines = [row.cells for row in listed], []
    lack, outside = [], []
    for row in listed:
        found = covered(row.cells, others)
        if found is None:
            lack.append(row.model)
        elif any(one.outside for one in found):
            outside.append(row.model)
        texts = ["not measured"] * len(WEIGHTS) if found is None else [one.text for one in found]
        lines.append("| " + " | ".join([row.model, f"`{row.kind}`", row.numbers_of, f"`{row.test}`", *texts]) + " |")
    said = [
        f"Coverage was not measured: {'; '.join(lack)}.",
        f"Outside {LOW:g} to {HIGH:g}: {'; '.join(outside)}.",
        misfit(),
    ]
    files = sorted({cells.partition(":")[0] for cells in others if cells})
    links = [f"- [{file}.json](../tests/benchmarks/results/{file}.json)" for file in files]
    below = ["", "## What lacks", "", *(f"- {one}" for one in (*said, *NOT_BUILT)), "", "Figures from:", "", *links]
    return "\n".join([*HEAD, *lines, *below]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
