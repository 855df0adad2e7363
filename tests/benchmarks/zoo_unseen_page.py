"""Of docs/zoo.md the part about tables that the project had never used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.benchmarks import zoo_page
from tests.benchmarks.zoo_page import LATENT, by_mechanism, latent, number, share, table

__all__ = ["section"]

NAMES = {
    "zoo_unseen/declared": "noisy moments, every coefficient declared",
    "zoo_unseen/none": "noisy moments, nothing declared",
    "zoo_unseen/tables": "noisy tables",
}
LITTLE = {"zoo_unseen/nominal": "noisy moments, next to no noise, five tables with a nominal covariate"}


def section() -> str:
    """The section; empty where nothing was measured."""
    if zoo_page.results(zoo_page.UNSEEN) is None:
        return ""
    figures = by_mechanism(NAMES | LITTLE, own_sites=True)
    parts = [HEAD, _latent(), BENT, _bent(), ALONE, _alone(), FIGURES, figures, _refused(), _rows(), WORDS]
    return "\n".join(part for part in parts if part)


def _part(name: str) -> dict[str, Any]:
    return zoo_page.results(f"zoo_unseen/{name}") or {"summaries": {}, "cells": [], "draws": 0}


def _latent() -> str:
    found = _part("latent")
    rows = [
        [key.removeprefix("world=").replace("all", "**all**"), at.removeprefix("w="), *latent("", one, found["draws"])]
        for at, parts in found["summaries"].items()
        for key, one in parts.items()
        if key == "all" or (at == "w=0.8" and key.startswith("world="))
    ]
    return table(("table", "w", *LATENT), rows)


def _bent() -> str:
    rows = []
    for words, part in (("two that it was mended by", "curves_tuning"), ("five others", "curves")):
        found = _part(part)
        for at, parts in found["summaries"].items():
            rows.append([words, at.removeprefix("w="), *latent("", parts["all"], found["draws"])])
    return table(("tables", "w", *LATENT), rows)


def _alone() -> str:
    rows = []
    for words, part in (("latent noise", "latent"), *((words, key.split("/")[1]) for key, words in NAMES.items())):
        for at, parts in _part(part)["summaries"].items():
            one: Mapping[str, Any] = parts["all"]
            rows.append([words, at.replace("epsilon", "ε"), number(one, "site_held", 1), number(one, "site_apart")])
            rows[-1].append(number(one, "site_lost", 1))
    heads = ("mechanism", "at", "holds the hospital's records, %", "distance in the records' errors, median")
    return table((*heads, "no answer where the records have one, %"), rows)


def _refused() -> str:
    said = Counter(
        one["refused"].split(". ")[0]
        for part in ("latent", "declared", "none", "tables", "planned")
        for one in _part(part)["cells"]
        if "refused" in one
    )
    rows = [[text.replace("|", "\\|"), f"{count}"] for text, count in said.items()]
    return "What was refused:\n\n" + table(("refusal", "models"), rows) if rows else ""


def _rows() -> str:
    total: Counter[str] = Counter()
    for one in _part("rows")["cells"]:
        total += Counter(one.get("counts", {}))
    if not total["releases"]:
        return ""
    found = {"refused": 100 * total["refused"] / total["releases"]}
    return (
        f"The equal-rows check refused {total['refused']} of {total['releases']} harmless releases "
        f"({share(found, 'refused', total['releases'])} %), and found {total['copies found']} of {total['copies']} "
        "copied rows.\n"
    )


HEAD = """## Tables that the project had never used

Twelve real tables of R packages: trials of colon cancer and of gums in pregnancy, plasma cells, transplants, prostate \
cancer, days in American hospitals, smokers who stop, births, children in Botswana, contraception in Bangladesh, \
pupils, and tests for COVID-19.
Columns, bounds, parts and questions were written down, and committed, before any of the tables was looked at \
(`tests/benchmarks/worlds/unseen.py`); parts are clinics, hospitals, districts or schools where the table has them.
They have what an epidemiologist plans and the worlds above have little of: nominal factors, squares, an interaction, \
counts less spread than a Poisson law, parts of 100 to 900 patients.
No setting was chosen by them: this is the first look.
`python -m tests.benchmarks.zoo_unseen` makes every figure of this part, with three draws of each model.

Latent noise, outcomes last, the planned questions with their squares and products:
"""
BENT = """
When a polynomial or a spline was asked in place of a square, flows got both it and the covariates that go with it \
wrong, by up to three of the records' errors.
A law of the outcome had the squares that a plan writes out, and curves only where the records ask for one loudly.
Laws have a planned curve as well since ([decision 28](decisions/0028-outcomes-last.md)).
Two tables showed what to do; the figures of the others are from after that.
Of those one more, a spline of mgus, had been seen to fail before: births, nhefs, schools and covid alone were wholly \
unseen.
Nothing else of this part moved because of it.
"""
ALONE = """
One hospital by itself, beside what its own records say.
For noisy figures these are parts of a few hundred patients at ε = 1, and for numeric covariates their noise is many \
times as large as their patients' error.
The hospital is told so before such a release leaves (*too small a site*, [choosing.md](choosing.md#noisy-moments)):
"""
FIGURES = """
Pooled answers of noisy figures.
Noisy moments hold no square and no product, and in tables a square drowns in noise, so the same models are asked \
without them.
"""
WORDS = """
These tables showed four faults, and each led to a change:

- Curves came out wrong, as said above.
- Asked a planned square, noisy moments and slicing said that there is none, in a narrow interval, because rows drawn \
from their fit have none.
  Both refuse a square since, as they refuse an interaction (`tests/mechanisms/moments/test_moments_study.py`).
- An effect by stretches of time (`by_time`) is drawn towards its mean by latent noise, and carries a caution since.
- Where most persons have one value of a covariate (cigarettes, creatinine) within wide bounds, noisy moments have no \
answer, which is known only after the release is paid for.
  The refusal said to take more bins, with which hospitals of this size learn nothing; it says bands since, and \
`plan check` warns of whole numbers from 0.

Nothing else was changed because of them, and this is left:

- With next to no noise, noisy moments are the records' own answer in four of five tables with a nominal covariate.
  They miss it in contraception, where the first of four levels is not the commonest and age bends: the planned model \
let levels overlap then, and no caution told it (`plan check` says which level to write first).
- A single hospital's interval of a declared coefficient holds too seldom.
- With latent noise a square, a curve or a product that the plan names carries the caution that it is the flow's, the \
right ones too.
- In tables of few coarse columns a copied row may equal a stranger's row, so that few copies are found.
"""
