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
    BARS,
    CATCH,
    COMPARED,
    HEAD,
    LONGER,
    RUN_AFTER,
    SLICING,
    SPREADS,
    TAILS,
    TOGETHER,
    WORDS,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "zoo.md"
RESULTS = Path(__file__).parent / "results"

LATENT_NOISE = ("zoo_n300", "zoo_n1000", "zoo", "zoo_n5000", "zoo_n20000", "zoo_fewer", "zoo_joint")
"""Records of `tests.benchmarks.zoo`; each names the command that made it."""
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
    "zoo_slicing",
    "zoo_densities",
)
"""The same of `tests.benchmarks.zoo_moments`."""
LATER = ("zoo_trial", "zoo_packaged", "zoo_others")
LATER_FIGURES = (
    "zoo_moments_none_declared",
    "zoo_moments_all_declared",
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
    "zoo_moments_fresh",
    "zoo_moments_fresh_after",
    "zoo_moments_fresh_levels",
    "zoo_moments_fresh_nominal",
    "zoo_moments_fresh_none",
    "zoo_tables_fresh",
)
"""Those of tables that were picked before any result was seen (`tests.benchmarks.zoo_fresh_page`)."""
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


KEPT = (4, 12, 48)
SIZED = ("zoo_n300", "zoo_n1000", "zoo_n5000", "zoo_n20000")


def by_size_and_outcome() -> str:
    """Latent noise at w = 0.8 by n and type of outcome, of 4, 12 and 48 sites together."""
    rows = []
    for name in SIZED:
        record = results(name)
        for key, found in (record or {"summaries": {"w=0.8": {}}})["summaries"]["w=0.8"].items():
            if key.startswith("kind=") and found.get("terms"):
                n = min(one["n"] for one in record["cells"])  # type: ignore[index]
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
            rows.append(
                [
                    names[name] + _older(name),
                    epsilon.removeprefix("epsilon="),
                    "their own" if own_sites else f"{record['sites']}",
                    ", ".join(sorted({f"{one['n']:,}" for one in told if one["n"] < 10**9})) or "their own",
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
            line = [f"{answers(found)}", number(found, "bias_own_median"), number(found, "bias_own_p95")]
            line += [share(found, "held", answers(found)), number(found, "width"), cautioned("", found)]
            rows.append([f"{record['sites']}", kind, *line])
    return table(heads, rows)


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
        "zoo_fewer",
        "zoo_trial",
        "zoo_packaged",
    ),
    "noisy moments, every coefficient declared": ("zoo_moments", "zoo_moments_packaged", "zoo_moments_others"),
    "noisy moments, nothing declared": ("zoo_moments_none_declared", "zoo_moments_none_declared_after"),
    "noisy tables": ("zoo_tables", "zoo_tables_packaged"),
}
"""Mechanism to the records whose wrong answers are held against chance."""


def by_reach() -> str:
    """How many answers lie outside, how many would by chance alone, and what a caution could catch of them."""
    rows = []
    for words, names in REACH.items():
        count = dict.fromkeys(("right", "wrong", "right_cautioned", "wrong_cautioned"), 0.0)
        chance = 0.0
        for record in filter(None, map(results, names)):
            draws = record["draws"]
            for line in (line for one in record["cells"] for line in one.get("terms", {}).values()):
                found = {name: float(value) for name, value in (word.split("=") for word in line.split())}
                right = round(found["held"] * draws)
                count["right"] += right
                count["wrong"] += draws - right
                count |= {name: count[name] + found[name] for name in ("right_cautioned", "wrong_cautioned")}
                chance += draws * by_chance(found["width"])
        right, wrong = count["right"], count["wrong"]
        beyond = max(wrong - chance, 0.0)
        reach = f"{100 * min(1.0, (beyond + 0.2 * (wrong - beyond)) / wrong):.0f} %" if wrong else "–"
        caught = f"{count['wrong_cautioned']:.0f} of {wrong:.0f}"
        said = f"{100 * count['right_cautioned'] / right:.1f} %" if right else "–"
        said += " †" if any(older(name, "summaries/all/right_cautioned") for name in names if results(name)) else ""
        rows.append([words, f"{right + wrong:.0f}", f"{wrong:.0f}", f"{chance:.1f}", reach, caught, said])
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


FRESH_AT = "seventeen-tables-that-were-picked-before-any-result-was-seen"


def bars() -> str:
    """What was asked for, beside what is measured; of no record that is not there."""
    rows = []
    if latent_noise := results("zoo"):
        found = latent_noise["summaries"]["w=0.8"]["all"]
        bias = f"{number(found, 'bias_median')} / {number(found, 'bias_p95')}"
        rows += [
            ["latent noise, w = 0.8: bias of a pooled coefficient, median / 95th percentile", "≤ 0.4 / ≤ 1.2", bias],
            ["its pooled interval holds the records' answer, %", "≥ 92", share(found, "held", answers(found))],
            ["I² released less real, points, mean", "≤ 10", number(found, "I2_excess", 1)],
            ["distance given for nine cases of ten holds, %", "85 to 95", share(found, "told", answers(found))],
            ["right answers that carry a caution, %", "≤ 20", number(found, "right_cautioned", 1)],
            ["wrong answers that carry one", "≥ 80 %", cautioned("zoo", found).partition(";")[0]],
            *_least("latent noise, w = 0.8", _latent_sizes(), {"held": "≥ 92"}),
            *_least("latent noise, w = 0.8", _latent_sizes(MEASURED_TO), {"told": "85 to 95"}),
            *_farthest(_latent_sizes()),
        ]
    for name, which in {"zoo_moments": "every", "zoo_moments_none_declared_after": "no"}.items():
        if record := results(name):
            found = dict(record["summaries"]["epsilon=1"]["all"])
            found |= _counted(record["cells"], "epsilon=1", record["draws"])
            of = f"noisy moments, ε = 1, {which} coefficient declared"
            own = f"{number(found, 'bias_own_median')} / {number(found, 'bias_own_p95')}"
            draws = "one draw" if record["draws"] == 1 else f"mean of {record['draws']} draws"
            rows += [
                [f"{of}: holds the records' answer, %", "≥ 92", share(found, "held", answers(found))],
                [f"{of}: bias in own standard errors, {draws}, median / 95th percentile", "≤ 0.7", own],
            ]
    rows += _least("noisy moments, ε = 1, every coefficient declared", _moments_sizes(), {"held": "≥ 92"})
    if record := results("zoo_moments"):
        worlds_ = [
            (f"of {key.removeprefix('world=').replace('_', ' ')}", found, 0)
            for key, found in record["summaries"]["epsilon=1"].items()
            if key.startswith("world=")
        ]
        rows += _least("the same, by world, n = 2,000, K = 12", worlds_, {"held": "≥ 92"})
    rows += _fresh_bars()
    if record := results("equal_rows"):
        of, found = record["all"], {name: 100 * part for name, part in record["shares"].items()}
        harmless = f"{number(found, 'refused')}: {of['refused']} of {of['releases']:,}"
        rows += [
            ["equal rows: harmless releases that are refused, %", "≤ 1", harmless],
            ["equal rows: planted copies that are found, %", "100", share(found, "copies found", of["copies"])],
            ["the same, ten copies in one release, %", "100", share(found, "together found", of["together"])],
        ]
    return table(("what", "target", "measured"), rows) + BARS


def _fresh_bars() -> list[list[str]]:
    """Of the tables that were picked before any result was seen."""
    rows = []
    named = {
        "zoo_fresh": ("w=0.8", "latent noise, w = 0.8"),
        "zoo_tables_fresh": ("epsilon=1", "noisy tables, ε = 1, seven models"),
    }
    named["zoo_moments_fresh"] = ("epsilon=1", "noisy moments, ε = 1, every coefficient declared")
    for name, (at, words) in named.items():
        if record := results(name):
            found = dict(record["summaries"][at]["all"])
            found |= _counted(record["cells"], at, record["draws"]) if at != "w=0.8" else {}
            of = f"seventeen [tables that were picked before any result was seen](#{FRESH_AT}): {words}"
            bias, most = ("bias_median", "≤ 0.4 / ≤ 1.2") if at == "w=0.8" else ("bias_own_median", "≤ 0.7")
            both = f"{number(found, bias)} / {number(found, bias.replace('median', 'p95'))}"
            own = "" if at == "w=0.8" else " in own standard errors"
            rows += [
                [f"{of}: holds the records' answer, %", "≥ 92", share(found, "held", answers(found))],
                [f"the same: bias{own}, median / 95th percentile", most, both],
            ]
    return rows


Size = tuple[str, Mapping[str, Any], int]
"""In words, a summary, and the answers behind it (0 where they are not counted)."""


def _latent_sizes(most: float = math.inf) -> list[Size]:
    """Latent noise by size, of at most so many patients of all hospitals together."""
    found: list[Size] = []
    for name in SIZED:
        record = results(name)
        for k in KEPT if record else ():
            n = min(one["n"] for one in record["cells"])  # type: ignore[index]
            part = record["summaries"]["w=0.8"].get(f"sites={k}")  # type: ignore[index]
            found += [(f"at n = {n:,}, K = {k}", part, answers(part))] if part and n * k <= most else []
    return found


def _moments_sizes() -> list[Size]:
    found: list[Size] = []
    for k in KEPT:
        record = results(f"zoo_moments_k{k}") or {"cells": [], "draws": 1}
        for n in dict.fromkeys(one["n"] for one in record["cells"]):
            cells = [one for one in record["cells"] if one["n"] == n]
            part = record["summaries"]["epsilon=1"][f"n={n}"] | _counted(cells, "epsilon=1", record["draws"])
            found.append((f"at n = {n:,}, K = {k}", part, answers(part)))
    return found


WORDS_OF = {"held": "holds the records' answer, %", "told": "distance holds, %"}


def _least(of: str, sizes: Sequence[Size], asked: Mapping[str, str]) -> list[list[str]]:
    """The lowest of all sizes or worlds of each figure that has a bar, with where it is."""
    rows = []
    for name, bar in asked.items():
        there = [size for size in sizes if size[1].get(name) is not None]
        if there:
            where, found, count = min(there, key=lambda size: size[1][name])
            figure = share(found, name, count) if count else number(found, name, 1)
            rows.append([f"{of}: {WORDS_OF[name]}, lowest: {where}", bar, figure])
    return rows


def _farthest(sizes: Sequence[Size]) -> list[list[str]]:
    """The size at which latent noise lies farthest from the records."""
    if not sizes:
        return []
    where, found, _ = max(sizes, key=lambda size: float(size[1]["bias_p95"]))
    what = f"latent noise, w = 0.8: bias of one draw, 95th percentile, highest: {where}"
    return [[what, "≤ 1.2", number(found, "bias_p95")]]


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
        f"outcomes no less than {min(others):.0f} %: coefficients in the world of heavy tails lie far off, and "
        f"{sum('wrong_cautioned=1' in one for one in wrong)} of the {len(wrong)} wrong answers carry a caution.\n"
        f"No distance is given where more than {MEASURED_TO:,} rows are pooled, "
        "those of sites that were released again aside.\n"
        "That limit was chosen on the answers of this page: the lowest share above, of what is below the limit, is no "
        "evidence for fresh data.\n"
    )


def page() -> str:
    """The whole page."""
    from tests.benchmarks import zoo_denied_page, zoo_doubts_page, zoo_fresh_page, zoo_heart_page, zoo_unseen_page

    tuned = ", ".join(name.replace("_", " ") for name in worlds.TUNING)
    parts = [
        HEAD,
        f"Settings were chosen on: {tuned}.\n",
        "## Targets\n",
        bars(),
        "## Latent noise, by patients, sites and w\n",
        "Posture `local`, outcomes drawn last.\nRows with K = 4 and 12 are of the first 4 and 12 of the 48 sites.\n",
        by_size(),
        "The same at w = 0.8 by type of outcome, of 4, 12 and 48 sites together:\n",
        by_size_and_outcome(),
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
        "The half that settings are chosen by:\n",
        figures_by_size(["zoo_moments_tuning_k48"]),
        "## Slicing of small hospitals\n",
        SLICING,
        figures_by_size(["zoo_slicing"], "epsilon=3"),
        "## Tables that came after\n",
        AFTER,
        later(),
        by_mechanism(LATER_NAMES, own_sites=True),
        zoo_unseen_page.section(),
        zoo_fresh_page.section(),
        zoo_heart_page.section(),
        "## Declaring every coefficient\n",
        SPREADS,
        by_mechanism(DECLARED),
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
