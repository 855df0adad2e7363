"""The zoo's cautions, counted again where nothing but a caution has changed since a record was made.

A caution decides no answer, so the same draws give the answers that the record has. The cells of some types of outcome
are drawn again by the record's own command, each held against its answers, and their cautions take the places of the
old ones. Where an answer is another today the record stays as it was: it must be measured anew.

python -m tests.benchmarks.zoo_again [--kinds count,…] NAME …
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tests.benchmarks import record, zoo, zoo_moments
from tests.benchmarks.zoo import listed

RESULTS = record.RESULTS
CAUTIONED = ("right_cautioned", "wrong_cautioned")


def figures(term: str) -> dict[str, str]:
    """Name to figure of a term's line, as it is kept.

    >>> figures("bias=0.1 held=1")
    {'bias': '0.1', 'held': '1'}
    """
    return dict(word.split("=") for word in term.split())


def same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two kept cells have the same answers, whatever their cautions are."""
    if old.get("refused") != new.get("refused") or old["terms"].keys() != new["terms"].keys():
        return False
    apart = [(figures(old["terms"][term]), figures(new["terms"][term])) for term in old["terms"]]
    return all(one.get(name) == other.get(name) for one, other in apart for name in one if name not in CAUTIONED)


def counted(cells: Sequence[Mapping[str, Any]], key: str, at: str, draws: int) -> dict[str, float]:
    """Percent of right and of wrong answers that carry a caution, of the cells of one summary.

    Args:
        key: of the summary, such as ``kind=count``; "all". at: of the terms, such as ``w=0.8``.
    """
    name, _, value = key.partition("=")
    lines = [
        figures(line)
        for one in cells
        if key == "all" or str(one[name]) == value
        for term, line in one.get("terms", {}).items()
        if term.endswith(f", {at}")
    ]
    out = {}
    for side, share in (("right", lambda held: held), ("wrong", lambda held: 1 - held)):
        of = sum(round(share(float(line["held"])) * draws) for line in lines)
        if of:
            out[f"{side}_cautioned"] = round(100 * sum(float(line[f"{side}_cautioned"]) for line in lines) / of, 3)
    return out


def again(name: str, kinds: Sequence[str]) -> None:
    """Put today's cautions of some types of outcome into a record. Raises: ValueError, where an answer is another."""
    path = RESULTS / f"{name}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    words = kept["command"].split()
    module: ModuleType = zoo_moments if words[2].endswith("zoo_moments") else zoo
    given = module.options().parse_args(words[3:])
    given.kinds = tuple(kind for kind in given.kinds if kind in kinds)
    results = kept["results"]
    places = {_place(one): k for k, one in enumerate(results["cells"])}
    for one in module.measured(given):
        new, k = module.brief(one), places[_place(one)]
        print(name, *_place(one), flush=True)
        if not same(results["cells"][k], new):
            raise ValueError(f"{name}: the answers of {_place(one)} are others today; measure it anew")
        results["cells"][k] = new
    for at, parts in results["summaries"].items():
        for key, found in parts.items():
            found |= counted(results["cells"], key, at, results["draws"])
    results["cautions"] = f"python -m tests.benchmarks.zoo_again --kinds {','.join(kinds)} {name}"
    print(record.write(name, results, seed=kept["seed"], command=kept["command"]))


def _place(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["world"], one["kind"], one["n"], one["sites"]


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo_again")
    asked.add_argument("--kinds", type=listed(str), default=("count",))
    asked.add_argument("names", nargs="+")
    given = asked.parse_args()
    for name in given.names:
        again(name, given.kinds)


if __name__ == "__main__":
    main()
