"""Write docs/zoo.md from what the zoo's benchmarks have recorded: no figure of the page is typed.

python -m tests.benchmarks.zoo_page   (`make bench` measures its records again)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.answers.record_gap import MEASURED_TO
from tests.benchmarks import worlds
from tests.benchmarks.pages.write import older
from tests.benchmarks.worlds import laws
from tests.benchmarks.zoo_words import (
    AFTER,
    AS_NEW,
    CATCH,
    COMPARED,
    HEAD,
    LONGER,
    RUN_AFTER,
    SPREADS,
    TAILS,
    TOGETHER,
    WORDS,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "zoo.md"
RESULTS = Path(__file__).parent / "results"

KEPT = (4, 12, 48)
"""Numbers of sites, of simulated worlds."""
LATENT_SIZES = {300: "zoo_n300", 1000: "zoo_n1000", 5000: "zoo_n5000", 20000: "zoo_n20000"}
LATENT_NOISE = ("zoo_n300", "zoo_n1000", "zoo", "zoo_n5000", "zoo_n20000", "zoo_fewer", "zoo_joint", "zoo_heavy_tails")
"""Records of `tests.benchmarks.zoo`; each names the command that made it."""
CROSS_PRODUCTS = ("zoo_cross_products_k4", "zoo_cross_products", "zoo_cross_products_k48")
"""The same of cross-products, by number of sites."""
FIGURES = (
    "zoo_moments",
    "zoo_moments_alone",
    "zoo_moments_signals",
    "zoo_tables",
    "zoo_moments_none_declared_after",
    "zoo_moments_all_declared_after",
    "zoo_moments_k4",
    "zoo_moments_k12",
    "zoo_moments_k48",
    "zoo_moments_tuning_k48",
    "zoo_moments_logged",
    "zoo_tables_logged",
    "zoo_slicing",
    "zoo_densities",
    *CROSS_PRODUCTS,
    *(f"zoo_{mechanism}_k{k}" for mechanism in ("tables", "densities", "slicing") for k in KEPT),
)
"""The same of `tests.benchmarks.zoo_moments`."""
LATER = ("zoo_trial", "zoo_packaged", "zoo_others")
LATER_FIGURES = (
    "zoo_moments_none_declared",
    "zoo_moments_none_declared_again",
    "zoo_moments_all_declared",
    "zoo_moments_all_declared_again",
    "zoo_moments_cut",
    "zoo_moments_packaged",
    "zoo_moments_others",
    "zoo_moments_long_tails",
    "zoo_moments_nominal",
    "zoo_tables_packaged",
)
"""Records of the tables that belong to neither half."""
UNSEEN = "zoo_unseen"
"""The record of `tests.benchmarks.zoo_unseen`: tables that the project had never used."""
FRESH = (
    "zoo_fresh",
    "zoo_fresh_again",
    "zoo_fresh_draws",
    "zoo_moments_fresh",
    "zoo_moments_fresh_after",
    "zoo_moments_fresh_levels",
    "zoo_moments_fresh_nominal",
    "zoo_moments_fresh_none",
    "zoo_tables_fresh",
)
"""Those of tables that were picked before any result was seen (`tests.benchmarks.zoo_fresh_page`)."""
BLIND = ("zoo_blind", "zoo_moments_blind", "zoo_tables_blind")
"""Those of tables that were taken by a rule (`tests.benchmarks.zoo_blind_page`)."""
HEART = "zoo_heart"
"""That of `tests.benchmarks.zoo_heart`: four real hospitals."""
DOUBTS = "zoo_doubts"
"""That of `tests.benchmarks.zoo_doubts`: what refusing pools, and correcting them, would do."""
NAMES = {
    "zoo_moments": "noisy moments, as a new plan has them",
    "zoo_tables": "noisy tables",
    "zoo_densities": "densities (a mean)",
}
DECLARED = {
    "zoo_moments_none_declared": "noisy moments, nothing declared",
    "zoo_moments_all_declared": "noisy moments, every coefficient declared",
}
DECLARED_AGAIN = {
    "zoo_moments_none_declared_again": DECLARED["zoo_moments_none_declared"],
    "zoo_moments_all_declared_again": DECLARED["zoo_moments_all_declared"],
}
DECLARED_AFTER = {
    "zoo_moments_none_declared_after": DECLARED["zoo_moments_none_declared"],
    "zoo_moments_all_declared_after": DECLARED["zoo_moments_all_declared"],
}
LATER_NAMES = {
    "zoo_moments_packaged": "noisy moments, as a new plan has them, real tables",
    "zoo_moments_nominal": "noisy moments, as a new plan has them, two tables with a nominal covariate",
    "zoo_tables_packaged": "noisy tables, real tables",
}


def results(name: str) -> dict[str, Any] | None:
    """What a benchmark recorded, or of ``name/part`` a part of it; None where it has not run."""
    name, _, part = name.partition("/")
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    return found.get(part) if part else found


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(found: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """A figure, or a dash."""
    return f"{found[name]:.{digits}f}" if found.get(name) is not None else "–"


def share(found: Mapping[str, Any], name: str, of: int) -> str:
    """A percentage of so many with its 95 % interval (Wilson 1927)."""
    if found.get(name) is None or not of:
        return "–"
    p, z = found[name] / 100, 1.96
    middle, scale = (p + z * z / (2 * of)), 1 + z * z / of
    half = z * math.sqrt(p * (1 - p) / of + (z / (2 * of)) ** 2)
    low, high = max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
    return f"{100 * p:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def answers(found: Mapping[str, Any]) -> int:
    """Number of pooled answers behind a summary: coefficients times draws."""
    return int(found.get("right", 0)) + int(found.get("wrong", 0))


def cautioned(name: str, found: Mapping[str, Any]) -> str:
    """Of wrong and of right answers of a record, how many a caution stands by; † where that is of older code."""
    wrong, right = int(found.get("wrong", 0)), int(found.get("right", 0))
    stood = round(wrong * found.get("wrong_cautioned", 0.0) / 100)
    dagger = " †" if name and older(name.partition("/")[0], "summaries/all/right_cautioned") else ""
    return f"{stood} of {wrong}; {number(found, 'right_cautioned', 1) if right else '–'} %{dagger}"


LATENT = (
    "draws",
    "answers",
    "bias, median",
    "95th percentile",
    "holds the records, %",
    "holds the law, %",
    "width",
    "I²",
    "distance holds, %",
    "cautioned: wrong; right",
)


def latent(name: str, found: Mapping[str, Any], draws: int) -> list[str]:
    """A summary of a record of latent noise as cells of a line."""
    return [
        f"{draws}",
        f"{answers(found)}",
        number(found, "bias_median"),
        number(found, "bias_p95"),
        share(found, "held", answers(found)),
        by_the_law(found),
        number(found, "width"),
        number(found, "I2_excess", 1),
        share(found, "told", answers(found)),
        cautioned(name, found),
    ]


def by_size() -> str:
    """Latent noise by n, K and w."""
    rows = []
    for name in ("zoo_n300", "zoo_n1000", "zoo", "zoo_n5000", "zoo_n20000"):
        record = results(name)
        for w, parts in (record or {"summaries": {}})["summaries"].items():
            # Real tables have numbers of sites of their own.
            for key in [f"sites={k}" for k in ((12,) if name == "zoo" else KEPT) if f"sites={k}" in parts]:
                n = sorted({one["n"] for one in record["cells"] if one["n"] < 10**9})  # type: ignore[index]
                line = latent(name, parts[key], record["draws"])  # type: ignore[index]
                rows.append((n[0], int(key.removeprefix("sites=")), w, name, line))
    lines = [
        [f"{n:,}", f"{k}", w.removeprefix("w="), "all" if name == "zoo" else "two of each world", *line]
        for n, k, w, name, line in sorted(rows, key=lambda row: (row[2] != "w=0.8", row[0], row[1], row[3]))
    ]
    return table(("n", "K", "w", "outcomes", *LATENT), lines)


def by_size_and_outcome() -> str:
    """Latent noise at w = 0.8 by n and type of outcome, of 4, 12 and 48 sites together."""
    rows = []
    for n, name in LATENT_SIZES.items():
        record = results(name)
        for key, found in (record or {"summaries": {"w=0.8": {}}})["summaries"]["w=0.8"].items():
            if key.startswith("kind=") and found.get("terms"):
                rows.append([f"{n:,}", key.removeprefix("kind="), *latent(name, found, record["draws"])])  # type: ignore[index]
    return table(("n", "outcome", *LATENT), rows)


def by_part(name: str, part: str, w: str = "w=0.8") -> str:
    """Latent noise at one size, by `kind` or `world`."""
    record = results(name)
    if record is None:
        return "Not measured.\n"
    parts = record["summaries"][w]
    chosen = [(key.removeprefix(f"{part}="), found) for key, found in parts.items() if key.startswith(f"{part}=")]
    rows = [[_titled(key), *latent(name, found, record["draws"])] for key, found in chosen if found.get("terms")]
    return table((part.replace("kind", "outcome"), *LATENT), rows)


def _titled(name: str) -> str:
    hard = laws.WORLDS[name].hard if name in laws.WORLDS else ""
    return f"{name.replace('_', ' ')}{f': {hard}' if hard else ''}"


def later() -> str:
    """Latent noise on the tables that belong to neither half."""
    rows = []
    for name, words in (("zoo_trial", "two simulated trials"), ("zoo_packaged", "nine real tables")):
        record = results(name)
        for w, parts in (record or {"summaries": {}})["summaries"].items():
            assert record is not None
            rows.append([words, w.removeprefix("w="), *latent(name, parts["all"], record["draws"])])
    return table(("tables", "w", *LATENT), rows)


def by_the_law(found: Mapping[str, Any]) -> str:
    """Share of intervals that hold the law's answer, in brackets of the records' own; a dash where none is known."""
    return f"{number(found, 'law_held', 1)} ({number(found, 'law_held_real', 1)})" if "law_held" in found else "–"


OWN = ["their own"]
"""Sizes of real tables."""


def by_mechanism(names: Mapping[str, str] = NAMES, own_sites: bool = False) -> str:
    """The mechanisms that release figures."""
    heads = ("mechanism", "ε", "K", "n", "answers", "bias in own standard errors, median", "95th percentile")
    heads += ("in the records', median", "holds the records, %", "holds the law, %", "width", "I²", "refused")
    heads += ("cautioned: wrong; right",)
    rows = []
    for name in names:
        record = results(name)
        summaries = (record or {"summaries": {}})["summaries"]
        for epsilon in sorted(summaries, key=lambda one: float(one.removeprefix("epsilon="))):
            assert record is not None
            parts = summaries[epsilon]
            found, cells = dict(parts["all"]), record["cells"]
            told = [one for one in cells if "refused" not in one]
            found |= _counted(cells, epsilon, record["draws"])
            sizes = sorted({f"{one['n']:,}" for one in told if one["n"] < 10**9})
            sizes += OWN if any(one["n"] >= 10**9 for one in told) else []
            rows.append(
                [
                    names[name] + _older(name),
                    epsilon.removeprefix("epsilon="),
                    "their own" if own_sites else f"{record['sites']}{'; their own' if sizes[1:] == OWN else ''}",
                    "; ".join(sizes),
                    f"{answers(found)}",
                    number(found, "bias_own_median"),
                    number(found, "bias_own_p95"),
                    number(found, "bias_real_median"),
                    share(found, "held", answers(found)),
                    by_the_law(found),
                    number(found, "width"),
                    number(found, "I2_excess", 1),
                    f"{len(cells) - len(told)} of {len(cells)} models",
                    cautioned(name, found) if "mechanism" in record else "–",
                ]
            )
    return table(heads, rows)


def _older(name: str) -> str:
    """A mark of a record whose moments were read by each hospital's own histograms."""
    file, _, part = name.partition("/")
    return " ‡" if results(name) and older(file, f"{part}/summaries/all/held".lstrip("/")) else ""


def figures_by_size(names: Sequence[str], epsilon: str = "epsilon=1") -> str:
    """Noisy figures at one ε, by n and K."""
    heads = ("n", "K", "answers", "bias in own standard errors, median", "95th percentile", "holds the records, %")
    heads += ("holds the law, %", "width", "I²", "of single sites, %", "refused")
    rows = []
    for record in filter(None, map(results, names)):
        for n in dict.fromkeys(one["n"] for one in record["cells"]):
            cells = [one for one in record["cells"] if one["n"] == n]
            found = record["summaries"][epsilon][f"n={n}"] | _counted(cells, epsilon, record["draws"])
            line = [f"{answers(found)}", number(found, "bias_own_median"), number(found, "bias_own_p95")]
            line += [share(found, "held", answers(found)), by_the_law(found), number(found, "width")]
            line += [number(found, "I2_excess", 1)]
            refused = sum("refused" in one for one in cells)
            line += [number(found, "site_held", 1), f"{refused} of {len(cells)} models"]
            rows.append((n, record["sites"], line))
    return table(heads, [[f"{n:,}", f"{k}", *line] for n, k, line in sorted(rows)])


def figures_by_outcome(names: Sequence[str], epsilon: str = "epsilon=1") -> str:
    """Noisy figures at one ε, by K and type of outcome, of all n together."""
    heads = ("K", "outcome", "answers", "bias in own standard errors, median", "95th percentile")
    heads += ("holds the records, %", "width", "cautioned: wrong; right")
    rows = []
    for record in filter(None, map(results, names)):
        for kind in dict.fromkeys(one["kind"] for one in record["cells"]):
            cells = [one for one in record["cells"] if one["kind"] == kind]
            found = record["summaries"][epsilon].get(f"kind={kind}", {}) | _counted(cells, epsilon, record["draws"])
            line = [
                f"{answers(found)}{refusal(cells)}",
                number(found, "bias_own_median"),
                number(found, "bias_own_p95"),
            ]
            line += [share(found, "held", answers(found)), number(found, "width"), cautioned("", found)]
            rows.append([f"{record['sites']}", kind, *line])
    return table(heads, rows)


def refusal(cells: Sequence[Mapping[str, Any]]) -> str:
    """Where all of these models are refused, why."""
    why = {one["refused"].partition(", got")[0] for one in cells if "refused" in one}
    return f": all {len(cells)} refused, {'; '.join(sorted(why))}" if all("refused" in one for one in cells) else ""


def by_term(name: str) -> str:
    """Bias in the records' standard errors of every coefficient of a record, by ε."""
    record = results(name)
    if record is None:
        return ""
    told: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for one in record["cells"]:
        for key, figures in one.get("terms", {}).items():
            term, epsilon = key.split(", epsilon=")
            found = dict(word.split("=") for word in figures.split())
            told.setdefault((f"{one['world']}, {one['kind']}", term), {})[epsilon] = found
    levels = sorted({epsilon for found in told.values() for epsilon in found}, key=float)
    rows = [
        [model, term, *(f"{float(found[e]['bias_real']):.1f}; {float(found[e]['width']):.1f}" for e in levels)]
        for (model, term), found in told.items()
    ]
    heads = ("model", "coefficient", *(f"ε = {e}: bias in the records' errors; width" for e in levels))
    return table(heads, rows)


SIGNALS = {
    "doubt": "share of its variance that is doubt about the model",
    "unlike": "how unlike its sites are (Q over degrees of freedom)",
    "strong": "its distance from 0, in its standard errors",
}


def by_signal() -> str:
    """How well what a pool of noisy moments knows of itself tells its wrong answers from its right ones."""
    record = results("zoo_moments_signals")
    if record is None:
        return "Not measured.\n"
    rows = []
    for epsilon, parts in record["summaries"].items():
        wrong = _counted(record["cells"], epsilon, record["draws"])
        for name, words in SIGNALS.items():
            found = parts["all"].get(name, {})
            row = [epsilon.removeprefix("epsilon="), words, f"{wrong['wrong']} of {sum(wrong.values())}"]
            rows.append([*row, number(found, "roc_area"), number(found, "caught_at_20", 0)])
    heads = ("ε", "signal", "wrong answers", "area under the ROC curve", "wrong ones caught at 20 % of the right, %")
    return table(heads, rows)


def _counted(cells: Sequence[Mapping[str, Any]], epsilon: str, draws: int) -> dict[str, int]:
    """Right and wrong answers, from the cells' shares held."""
    terms = [pair for one in cells for pair in one.get("terms", {}).items() if pair[0].endswith(epsilon)]
    held = [float(dict(word.split("=") for word in figures.split())["held"]) for _, figures in terms]
    right = sum(round(one * draws) for one in held)
    return {"right": right, "wrong": draws * len(held) - right}


REACH = {
    "latent noise": (
        "zoo",
        "zoo_n300",
        "zoo_n1000",
        "zoo_n5000",
        "zoo_n20000",
        "zoo_heavy_tails",
        "zoo_fewer",
        "zoo_trial",
        "zoo_packaged",
    ),
    "noisy moments, every coefficient declared": ("zoo_moments", "zoo_moments_packaged", "zoo_moments_others"),
    "noisy moments, nothing declared": ("zoo_moments_none_declared_again", "zoo_moments_none_declared_after"),
    "noisy tables, simulated worlds": ("zoo_tables", *(f"zoo_tables_k{k}" for k in KEPT)),
    "noisy tables, real tables": ("zoo_tables_packaged", "zoo_tables_fresh"),
    "densities (a mean)": ("zoo_densities", *(f"zoo_densities_k{k}" for k in KEPT)),
    "slicing": ("zoo_slicing", *(f"zoo_slicing_k{k}" for k in KEPT)),
    "cross-products": CROSS_PRODUCTS,
}
"""Mechanism to the records whose wrong answers are held against chance.

Answers of `zoo_moments_none_declared` are from before an undeclared coefficient carried a caution: the same were asked
again.
"""


def spread(line: str) -> dict[str, float]:
    """Figures of a coefficient, as a record keeps them in a line."""
    return {name: float(value) for name, value in (word.split("=") for word in line.split())}


def reach(names: Iterable[str]) -> dict[str, float]:
    """Right and wrong answers of some records, which of them carry a caution, how many would be wrong by chance alone,
    and what share of the wrong ones a caution could stand by at `most`; a cell that two records have counts once.
    """
    count = dict.fromkeys(("right", "wrong", "right_cautioned", "wrong_cautioned", "chance"), 0.0)
    lines: dict[tuple[Any, ...], int] = {}
    for record in filter(None, map(results, names)):
        for one in record["cells"]:
            cell = tuple(one[name] for name in ("world", "kind", "n", "sites"))
            lines |= {(*cell, *term): record["draws"] for term in one.get("terms", {}).items()}
    for (*_, line), draws in lines.items():
        found = spread(line)
        right = round(found["held"] * draws)
        count["right"] += right
        count["wrong"] += draws - right
        count |= {name: count[name] + found[name] for name in ("right_cautioned", "wrong_cautioned")}
        count["chance"] += draws * by_chance(found["width"])
    wrong = count["wrong"]
    beyond = max(wrong - count["chance"], 0.0)
    return count | {"most": min(1.0, (beyond + 0.2 * (wrong - beyond)) / wrong) if wrong else 0.0}


def daggers(names: Iterable[str]) -> str:
    """A mark where a record's cautions were counted by older code."""
    return " †" if any(older(name, "summaries/all/right_cautioned") for name in names if results(name)) else ""


def by_reach() -> str:
    """How many answers lie outside, how many would by chance alone, and what a caution could catch of them."""
    rows = []
    for words, names in REACH.items():
        found = reach(names)
        right, wrong = found["right"], found["wrong"]
        if not right + wrong:
            continue
        most = f"{100 * found['most']:.0f} %" if wrong else "–"
        caught = f"{found['wrong_cautioned']:.0f} of {wrong:.0f}"
        said = f"{100 * found['right_cautioned'] / right:.1f} %{daggers(names)}" if right else "–"
        rows.append([words, f"{right + wrong:.0f}", f"{wrong:.0f}", f"{found['chance']:.1f}", most, caught, said])
    heads = ("mechanism", "answers", "outside", "outside by chance", "most that cautions can catch")
    return table((*heads, "wrong ones cautioned", "right ones cautioned"), rows)


def by_chance(width: float) -> float:
    """Chance that an exact 95 % interval does not hold the records' own answer.

    It holds the law's. Where it is `width` times as wide as the records' own interval, the released answer is the
    records' and an error besides that has the variance by which its own is larger.

    >>> round(by_chance(1.3), 4), round(by_chance(4.0), 3), by_chance(1.0)
    (0.0022, 0.043, 0.0)
    """
    return math.erfc(1.96 * width / math.sqrt(2 * (width**2 - 1))) if width > 1 else 0.0


def many_patients() -> str:
    """Latent noise where the flow's own error is larger than the noise."""
    record = results("zoo_n20000")
    if record is None:
        return ""
    parts = record["summaries"]["w=0.8"]
    found = parts["kind=survival"]
    others = [float(part["held"]) for key, part in parts.items() if key.startswith("kind=") and part is not found]
    cells = [one["terms"] for one in record["cells"] if one["kind"] == "survival"]
    wrong = [
        figures
        for terms in cells
        for name, figures in terms.items()
        if name.endswith("w=0.8") and " held=0 " in figures
    ]
    return (
        "With 20,000 patients a hospital the flow's own error, which does not fall with their number, can be larger "
        "than the noise.\n"
        f"Of survival {share(found, 'held', answers(found))} % of the answers hold the records' there, of the other "
        f"outcomes no less than {min(others):.0f} %.\n"
        "But counts beside a heavy tail were not asked there, and are false [at 5,000](#counts-beside-a-heavy-tail).\n"
        "Coefficients of survival in the world of heavy tails lie far off, and "
        f"{sum('wrong_cautioned=1' in one for one in wrong)} of the {len(wrong)} wrong answers carry a caution.\n"
        f"No distance is given where more than {MEASURED_TO:,} rows are pooled, "
        "those of sites that were released again aside.\n"
        "That limit was chosen on the answers of this page: the lowest share above, of what is below the limit, is no "
        "evidence for fresh data.\n"
    )


def page() -> str:
    """The whole page."""
    from tests.benchmarks import (
        zoo_apart_page,
        zoo_blind_page,
        zoo_denied_page,
        zoo_doubts_page,
        zoo_fresh_page,
        zoo_heart_page,
        zoo_sizes_page,
        zoo_targets_page,
        zoo_unseen_page,
    )

    tuned = ", ".join(name.replace("_", " ") for name in worlds.TUNING)
    parts = [
        HEAD,
        f"Settings were chosen on: {tuned}.\n",
        "## Targets\n",
        zoo_targets_page.section(),
        "## Latent noise, by patients, sites and w\n",
        "Posture `local`, outcomes drawn last.\nRows with K = 4 and 12 are of the first 4 and 12 of the 48 sites.\n",
        by_size(),
        "The same at w = 0.8 by type of outcome, of 4, 12 and 48 sites together:\n",
        by_size_and_outcome(),
        zoo_sizes_page.latent(),
        zoo_sizes_page.heavy_tails(),
        "## Latent noise by type of outcome: n = 1,000, K = 12, w = 0.8, real tables at their own size\n",
        by_part("zoo", "kind"),
        "## And by world\n",
        by_part("zoo", "world"),
        "## Questions that the plan does not name: the same models on every second covariate\n",
        by_part("zoo_fewer", "kind"),
        "## With outcomes and covariates in one flow\n",
        'Plans signed before have this, and so have those with `training.outcomes = "joint"`.\n'
        "No distance is given for it; *distance holds* is how often one would have held.\n",
        by_part("zoo_joint", "kind"),
        "## Mechanisms that release figures\n",
        by_mechanism(),
        AS_NEW,
        "## Noisy moments by patients and sites: ε = 1, every coefficient declared\n",
        TOGETHER,
        figures_by_size([f"zoo_moments_k{k}" for k in KEPT]),
        "By type of outcome, of all n together:\n",
        figures_by_outcome([f"zoo_moments_k{k}" for k in KEPT]),
        zoo_sizes_page.by_size_and_type([f"zoo_moments_k{k}" for k in KEPT]),
        "The half that settings are chosen by:\n",
        figures_by_size(["zoo_moments_tuning_k48"]),
        zoo_sizes_page.logged(),
        zoo_sizes_page.figures(),
        "## Tables that came after\n",
        AFTER,
        later(),
        by_mechanism(LATER_NAMES, own_sites=True),
        zoo_unseen_page.section(),
        zoo_fresh_page.section(),
        zoo_blind_page.section(),
        zoo_heart_page.section(),
        zoo_apart_page.section(),
        "## Declaring every coefficient\n",
        SPREADS,
        by_mechanism(DECLARED),
        "The same patients, answered again by newer code:\n",
        by_mechanism(DECLARED_AGAIN),
        RUN_AFTER,
        by_mechanism(DECLARED_AFTER),
        COMPARED,
        "## Where an influence is cut\n",
        LONGER,
        by_mechanism({"zoo_moments_cut": "noisy moments, every coefficient declared"}),
        "## Long tails\n",
        TAILS,
        by_mechanism({"zoo_moments_long_tails": "noisy moments, every coefficient declared"}, own_sites=True),
        by_term("zoo_moments_long_tails"),
        "## What a pool of noisy moments knows of itself\n",
        by_signal(),
        "## What a caution can catch\n",
        CATCH,
        by_reach(),
        zoo_denied_page.section(),
        zoo_doubts_page.section(),
        WORDS,
        many_patients(),
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
