"""Of docs/zoo.md the parts by number of patients and of sites: latent noise by outcome, and mechanisms of figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator.answers.record_gap import MEASURED_TO
from tests.benchmarks import worlds, zoo, zoo_moments, zoo_page
from tests.benchmarks.zoo_page import KEPT, LATENT_SIZES, figures_by_outcome, figures_by_size, spread, table
from tests.benchmarks.zoo_words import CROSS, DENSITIES, HEAVY, HEAVY_LOGGED, SLICING, TABLES

__all__ = ["by_size_and_type", "figures", "heavy_tails", "latent", "logged"]


def latent() -> str:
    """Latent noise at w = 0.8 by type of outcome, n and K."""
    cells = _cells(LATENT_SIZES.values(), "w=0.8", ("held", "told"))
    if not cells:
        return ""
    least, where = _least(cells, 0)
    far, there = _least({at: of for at, of in cells.items() if math.prod(at) <= MEASURED_TO}, 1)
    beyond = [at for at in cells if math.prod(at) > MEASURED_TO]
    farther, yonder = _least({at: cells[at] for at in beyond}, 1)
    return (
        "By type of outcome, n and K, one draw: % of answers that hold the records'; % whose distance holds; "
        "answers:\n\n"
        + _table(cells, worlds.KINDS)
        + f"\nFewest hold the records' answer where it is {where}: {least[0]:.0f} % of {least[-1]}.\n"
        f"The distance holds least often for {there}: {far[1]:.0f} % of {far[-1]}.\n"
        f"None is given where more than {MEASURED_TO:,} rows are pooled, here at n and K of "
        f"{', '.join(f'{n:,} and {k}' for n, k in beyond)}: there one would hold least often for {yonder}, "
        f"{farther[1]:.0f} % of {farther[-1]}.\n"
        f"The law's own answer is a fit to {zoo.LAW:,} patients and has an error of its own; how much of the lower "
        "shares that hold it at many patients comes from that was not measured.\n"
    )


Found = tuple[float, ...]
"""Shares of the answers in %, and how many answers there are."""


def _cells(names: Iterable[str], at: str, figures: Sequence[str]) -> dict[tuple[int, int], dict[str, Found]]:
    """n and K, and each type of outcome there, to these shares of its answers."""
    lines: dict[tuple[int, int], dict[str, list[dict[str, float]]]] = {}
    draws = 1
    for record in filter(None, map(zoo_page.results, names)):
        draws = record["draws"]
        for one in record["cells"]:
            there = lines.setdefault((one["n"], one["sites"]), {}).setdefault(one["kind"], [])
            there += [spread(line) for key, line in one.get("terms", {}).items() if key.endswith(at)]
    shares = {
        size: {
            kind: (*(100 * sum(one[name] for one in rows) / len(rows) for name in figures), draws * len(rows))
            for kind, rows in of.items()
            if rows
        }
        for size, of in lines.items()
    }
    return {(n, k): shares[n, k] for n, k in sorted(shares)}


def _least(cells: Mapping[tuple[int, int], Mapping[str, Found]], which: int) -> tuple[Found, str]:
    """The lowest of a figure, and where it is."""
    every = [(found, f"{kind} at n = {n:,}, K = {k}") for (n, k), of in cells.items() for kind, found in of.items()]
    return min(every, key=lambda one: one[0][which])


def _table(cells: Mapping[tuple[int, int], Mapping[str, Found]], kinds: Sequence[str]) -> str:
    rows = [
        [
            f"{n:,}",
            f"{k}",
            *("; ".join(f"{one:.0f}" for one in found[kind]) if kind in found else "–" for kind in kinds),
        ]
        for (n, k), found in cells.items()
    ]
    return table(("n", "K", *kinds), rows)


TAILED = "zoo_heavy_tails"
"""The record of the world with a Pareto covariate: counts, and beside them yes or no."""
TAILED_LOGGED = ("zoo_heavy_tails_logged", "zoo_heavy_tails_logged_20000")
"""The same world with the marker's logarithm planned: counts, and beside them survival."""


def heavy_tails() -> str:
    """Counts in a covariate with a Pareto tail, by n, K and w, beside yes or no in the same patients."""
    record = zoo_page.results(TAILED)
    if record is None:
        return ""
    logged = [cell for found in map(zoo_page.results, TAILED_LOGGED) if found for cell in found["cells"]]
    parts = [HEAVY, _tails(record["cells"], ("0.8", "0")), _tails_in_words(record["cells"])]
    return "\n".join([*parts, *([HEAVY_LOGGED, _tails(logged, ("0.8",))] if logged else [])])


def _tails(cells: Sequence[Mapping[str, Any]], widths: Sequence[str]) -> str:
    """A line for each cell and w."""
    rows = []
    for one in sorted(cells, key=lambda cell: (cell["kind"] != "count", cell["n"], cell["sites"])):
        for w in widths:
            of = {key.partition(",")[0]: spread(line) for key, line in one["terms"].items() if key.endswith(f"w={w}")}
            outside = [term for term, found in of.items() if not found["held"]]
            cautions = sum(bool(of[term]["wrong_cautioned"]) for term in outside)
            right = sum(bool(found["right_cautioned"]) for found in of.values())
            far = sorted(of, key=lambda term: -abs(of[term]["bias"]))[:2]
            rows.append(
                [
                    *(one["kind"], f"{one['n']:,}", f"{one['sites']}", w, f"{len(outside)} of {len(of)}"),
                    "; ".join(f"{term} {of[term]['bias']:.1f}".replace("-", "−") for term in far),
                    "; ".join(f"{of[term]['flow']:.1f}".replace("-", "−") for term in far),
                    f"{sum(found['told'] for found in of.values()):.0f} of {len(of)}",
                    f"{cautions} of {len(outside)}; {right} of {len(of) - len(outside)}",
                ]
            )
    heads = (
        "outcome",
        "n",
        "K",
        "w",
        "outside",
        "bias, the two farthest",
        "the flows' own, of these",
        "distance holds",
    )
    return table((*heads, "cautioned: wrong; right"), rows)


def _tails_in_words(cells: Sequence[Mapping[str, Any]]) -> str:
    """What the table says of the largest hospitals."""

    def at_most(kind: str, w: str) -> list[dict[str, float]]:
        """Coefficients at the largest n."""
        most = max(one["n"] for one in cells)
        of = [one["terms"] for one in cells if one["kind"] == kind and one["n"] == most]
        return [spread(line) for terms in of for key, line in terms.items() if key.endswith(f"w={w}")]

    noisy, alone, other = at_most("count", "0.8"), at_most("count", "0"), at_most("binary", "0.8")
    outside = [sum(not one["held"] for one in some) for some in (noisy, alone, other)]
    carry = sum(bool(one["wrong_cautioned"]) for one in noisy)
    right = [one for one in noisy if one["held"]]
    stood = sum(bool(one["right_cautioned"]) for one in right)
    n = max(one["n"] for one in cells)
    return (
        f"Of counts {outside[0]} of {len(noisy)} answers are outside their interval at {n:,} patients a hospital and "
        f"w = 0.8, {outside[1]} of {len(alone)} at w = 0; of yes or no in the same patients {outside[2]} of "
        f"{len(other)}.\n"
        "So where a covariate has a Pareto tail and the outcome is a count, an interval is false there, and more "
        "often so the more hospitals are pooled.\n"
        f"A caution stands by {carry} of the {outside[0]} wrong answers at w = 0.8, and by {stood} of the "
        f"{len(right)} right ones, so that it says of such a model that it cannot be trusted, and not which "
        "coefficient is off.\n"
    )


def by_size_and_type(names: Sequence[str], epsilon: float = 1.0) -> str:
    """Of a mechanism of figures, each type of outcome at each n and K, where there are several types."""
    cells = _cells(names, f"epsilon={epsilon:g}", ("held",))
    head = "By type of outcome, n and K: % of answers that hold the records'; answers:\n\n"
    return head + _table(cells, zoo_moments.KINDS) + _none(names) if cells else ""


def _none(names: Sequence[str]) -> str:
    """Why there is no answer about a type of outcome, where every model of it is refused."""
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for record in filter(None, map(zoo_page.results, names)):
        for one in record["cells"]:
            cells.setdefault(one["kind"], []).append(one)
    said = [f"\nThe dashes of {kind}{why}.\n" for kind, of in cells.items() if (why := zoo_page.refusal(of))]
    return "".join(said)


def figures() -> str:
    """Mechanisms that release figures, at sizes other than those of the table of mechanisms."""
    parts = []
    for mechanism, epsilon, head in (("tables", 1, TABLES), ("densities", 1, DENSITIES), ("slicing", 3, SLICING)):
        names = [f"zoo_{mechanism}_k{k}" for k in KEPT]
        if any(map(zoo_page.results, names)):
            parts += [head, figures_by_size(names, f"epsilon={epsilon}")]
            if mechanism != "densities":
                parts += ["By type of outcome, of all n together:\n", figures_by_outcome(names, f"epsilon={epsilon}")]
                parts += [by_size_and_type(names, epsilon)]
    if zoo_page.results("zoo_cross_products"):
        parts += [CROSS, _scales(), figures_by_size(zoo_page.CROSS_PRODUCTS), _cautioned_by_n(zoo_page.CROSS_PRODUCTS)]
    return "\n".join(parts)


def _scales() -> str:
    """How a plan of cross-products scales the worlds' columns."""
    return (
        f"Of what is published of a column, by which a plan scales it, the centre is up to {100 * zoo_moments.OFF:.0f} "
        "% of the spread off, and the spread as much of itself.\n"
        f"The plan's radius is √(2 times the columns) from {zoo_moments.WIDE_FROM:,} patients on, and below that the "
        "usual one.\n"
    )


def _cautioned_by_n(names: Sequence[str]) -> str:
    """How many right answers carry a caution, by n."""
    records = [found for found in map(zoo_page.results, names) if found]
    said = []
    for n in dict.fromkeys(one["n"] for record in records for one in record["cells"]):
        right = carry = 0
        for record in records:
            rows = [spread(line) for one in record["cells"] if one["n"] == n for line in one.get("terms", {}).values()]
            right += sum(round(one["held"] * record["draws"]) for one in rows)
            carry += sum(one["right_cautioned"] for one in rows)
        said.append(f"{100 * carry / max(right, 1):.0f} % at n = {n:,}")
    return f"Of the right answers a caution stands by {', '.join(said)}.\n"


def logged() -> str:
    """The refused models of noisy moments and the cautioned ones of tables, with the marker's logarithm planned."""
    return "\n".join(
        (
            LOGGED,
            figures_by_size(["zoo_moments_logged"]),
            "Noisy tables of the same worlds:\n",
            figures_by_size(["zoo_tables_logged"]),
        )
    )


LOGGED = """\
### The marker's logarithm

In three worlds most values of the marker are near one of its bounds, 0 to 60, so that one cell of its histogram has \
most persons.
Their models are refused after the charge, and noisy tables are adjusted for no marker.
With its logarithm planned, which a mapping's formula makes of the same records, moments refuse none; tables refuse \
those of counts as before, whose visits lie in one bin themselves.
The question is then about the logarithm, for the records as well.
No setting was chosen by these figures.
"""
