"""Write docs/zoo.md from what the zoo's benchmarks have recorded: no figure of the page is typed.

python -m tests.benchmarks.zoo_page
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import worlds
from tests.benchmarks.worlds import laws

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "zoo.md"
RESULTS = Path(__file__).parent / "results"

SIZES = ("zoo_n300", "zoo_n1000", "zoo", "zoo_n5000", "zoo_n20000")
"""Records of latent noise, by number of patients; `zoo` is of all types of outcome and holds the real tables."""
FIGURES = ("zoo_moments", "zoo_tables", "zoo_slicing", "zoo_densities")
NAMES = {
    "zoo_moments": "noisy moments",
    "zoo_tables": "noisy tables",
    "zoo_slicing": "slicing",
    "zoo_densities": "densities (a mean)",
}

HEAD = """# The zoo: what is true on data that nobody tuned to

Written by `python -m tests.benchmarks.zoo_page` from the files in `tests/benchmarks/results/`; each names the command
that made it. Nineteen simulated worlds and four real tables, each hard in its own way, go through the product: plan,
fit, release, estimates, pooling. Settings are chosen on one half (by the last byte of a name's digest) and reported
here on the other. What is held against the records:

* **bias**: the released pooled coefficient less that of the records, in standard errors of the records' pooled
  coefficient, averaged over draws. Noise alone makes about 0.5 of a single draw, and less of the mean of several.
* **holds the records / the law**: of released pooled 95 % intervals, the share that holds the records' own pooled
  coefficient, and the law's that the worlds are drawn from (in brackets: of the records' own intervals, the share that
  holds the law's).
* **width**: of the interval, as a multiple of the records'. **I²**: released less real, points, mean.
* **told**: how often the records' coefficient lay within the distance that an answer tells "in nine cases of ten".
* **cautioned**: answers that a caution stands by, of those whose interval does not hold the records' coefficient, and
  of those whose does.

After ± stands 1.96 binomial standard errors of a share: coefficients of one model are not independent, so it is a
little more. A dash is a figure that was not measured, or of which there is no case.
"""


def results(name: str) -> dict[str, Any] | None:
    """What a benchmark recorded; None where it has not run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else None


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(found: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """A figure, or a dash."""
    return f"{found[name]:.{digits}f}" if found.get(name) is not None else "–"


def share(found: Mapping[str, Any], name: str, of: int) -> str:
    """A percentage with its binomial error, of so many."""
    if found.get(name) is None or not of:
        return "–"
    p = found[name] / 100
    return f"{100 * p:.1f} ± {196 * math.sqrt(p * (1 - p) / of):.1f}"


def answers(found: Mapping[str, Any]) -> int:
    """Number of pooled answers behind a summary: coefficients times draws."""
    return int(found.get("right", 0)) + int(found.get("wrong", 0))


def cautioned(found: Mapping[str, Any]) -> str:
    """Of wrong and of right answers, how many a caution stands by."""
    wrong, right = int(found.get("wrong", 0)), int(found.get("right", 0))
    stood = round(wrong * found.get("wrong_cautioned", 0.0) / 100)
    return f"{stood} of {wrong}; {number(found, 'right_cautioned', 1) if right else '–'} %"


LATENT = (
    "answers",
    "bias, median",
    "95th percentile",
    "holds the records, %",
    "holds the law, %",
    "width",
    "I²",
    "told, %",
    "cautioned: wrong; right",
)


def latent(found: Mapping[str, Any]) -> list[str]:
    """A summary of latent noise as cells of a line."""
    law = f"{number(found, 'law_held', 1)} ({number(found, 'law_held_real', 1)})" if "law_held" in found else "–"
    return [
        f"{answers(found)}",
        number(found, "bias_median"),
        number(found, "bias_p95"),
        share(found, "held", answers(found)),
        law,
        number(found, "width"),
        number(found, "I2_excess", 1),
        share(found, "told", answers(found)),
        cautioned(found),
    ]


def by_size() -> str:
    """Latent noise by n, K and w."""
    rows = []
    for name in SIZES:
        record = results(name)
        for w, parts in (record or {"summaries": {}})["summaries"].items():
            # Real tables have numbers of sites of their own.
            for key in [f"sites={k}" for k in ((12,) if name == "zoo" else KEPT) if f"sites={k}" in parts]:
                n = sorted({one["n"] for one in record["cells"] if one["n"] < 10**9})  # type: ignore[index]
                rows.append((n[0], int(key.removeprefix("sites=")), w, name, parts[key]))
    lines = [
        [f"{n:,}", f"{k}", w.removeprefix("w="), "all" if name == "zoo" else "two of each world", *latent(found)]
        for n, k, w, name, found in sorted(rows, key=lambda row: (row[2] != "w=0.8", row[0], row[1], row[3]))
    ]
    return table(("n", "K", "w", "outcomes", *LATENT), lines)


KEPT = (4, 12, 48)


def by_part(name: str, part: str, w: str = "w=0.8") -> str:
    """Latent noise at one size, by `kind` or `world`."""
    record = results(name)
    parts = (record or {"summaries": {w: {}}})["summaries"][w]
    chosen = [(key.removeprefix(f"{part}="), found) for key, found in parts.items() if key.startswith(f"{part}=")]
    rows = [[_titled(key), *latent(found)] for key, found in chosen if found.get("terms")]
    return table((part.replace("kind", "outcome"), *LATENT), rows)


def _titled(name: str) -> str:
    hard = laws.WORLDS[name].hard if name in laws.WORLDS else ""
    return f"{name.replace('_', ' ')}{f': {hard}' if hard else ''}"


def by_mechanism() -> str:
    """The mechanisms that release figures."""
    heads = ("mechanism", "ε", "K", "n", "answers", "bias in own standard errors, median", "95th percentile")
    heads += ("in the records', median", "holds the records, %", "width", "I²", "refused", "cautioned: wrong; right")
    rows = []
    for name in FIGURES:
        record = results(name)
        for epsilon, parts in (record or {"summaries": {}})["summaries"].items():
            assert record is not None
            found, cells = dict(parts["all"]), record["cells"]
            told = [one for one in cells if "refused" not in one]
            found |= _counted(cells, epsilon, record["draws"])
            rows.append(
                [
                    NAMES[name],
                    epsilon.removeprefix("epsilon="),
                    f"{record['sites']}",
                    ", ".join(sorted({f"{one['n']:,}" for one in told if one["n"] < 10**9})),
                    f"{answers(found)}",
                    number(found, "bias_own_median"),
                    number(found, "bias_own_p95"),
                    number(found, "bias_real_median"),
                    share(found, "held", answers(found)),
                    number(found, "width"),
                    number(found, "I2_excess", 1),
                    f"{len(cells) - len(told)} of {len(cells)} models",
                    cautioned(found) if "mechanism" in record else "–",
                ]
            )
    return table(heads, rows)


def _counted(cells: Sequence[Mapping[str, Any]], epsilon: str, draws: int) -> dict[str, int]:
    """Right and wrong answers, from the cells' shares held."""
    terms = [pair for one in cells for pair in one.get("terms", {}).items() if pair[0].endswith(epsilon)]
    held = [float(dict(word.split("=") for word in figures.split())["held"]) for _, figures in terms]
    right = sum(round(one * draws) for one in held)
    return {"right": right, "wrong": draws * len(held) - right}


def page() -> str:
    """The whole page."""
    tuned = ", ".join(name.replace("_", " ") for name in worlds.TUNING)
    parts = [
        HEAD,
        f"Settings were chosen on: {tuned}.\n",
        "## Latent noise, by patients, sites and w\n",
        "Posture `local`, outcomes drawn last. The first 4 and 12 of the 48 sites are sites of their own rows.\n",
        by_size(),
        "## Latent noise by type of outcome: n = 1,000, K = 12, w = 0.8, real tables at their own size\n",
        by_part("zoo", "kind"),
        "## And by world\n",
        by_part("zoo", "world"),
        "## The same with outcomes and covariates in one flow\n",
        'What plans signed before have, and `training.outcomes = "joint"`: no distance is told of it.\n',
        by_part("zoo_joint", "kind"),
        "## Mechanisms that release figures\n",
        by_mechanism(),
        WORDS,
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


WORDS = """## What to make of it

Decision [35](decisions/0035-cautions-that-mean-something.md) says how cautions were chosen, and what cannot be told.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
