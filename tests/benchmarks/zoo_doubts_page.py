"""Of docs/zoo.md the part about refusing doubted pools and taking estimated biases off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tests.benchmarks import zoo_page
from tests.benchmarks.zoo_page import number, share, table

__all__ = ["section"]

REFUSED = {
    "rows deny": "rows deny the model at most of its sites",
    "caution": "a caution stands by the answer",
}
CORRECTED = {"again": "what flows fitted on the release move", "shrinkage": "a share of the answer"}


def section() -> str:
    """The section; empty where nothing was measured."""
    found = zoo_page.results(zoo_page.DOUBTS)
    if found is None:
        return ""
    head, words = (text.format(**found) for text in (HEAD, WORDS))
    parts = [head, _refused(found), CAUTIONED, _cautioned(), CORRECT, _corrected(found), MISFIT, _misfit()]
    return "\n".join([*parts, DRAWN, _drawn(), words])


def _refused(found: dict[str, Any]) -> str:
    rows = []
    for name, words in REFUSED.items():
        row = [words]
        for half in HALVES:
            one = found["rules"]["refuse"][name][half]
            row.append(f"{one['wrong_refused']} of {one['wrong']}; {one['right_refused']} of {one['right']}")
            row.append(f"{number(one, 'held_before', 1)}; {number(one, 'held_after', 1)}")
        rows.append(row)
    heads = ["refused where"]
    for words in HALVES.values():
        heads += [f"{words}: refused of the wrong; of the right", "holds the records, %; of what is left"]
    return table(heads, rows)


def _corrected(found: dict[str, Any]) -> str:
    rows = [["nothing", "–", *_cells(found["rules"]["as it is"], "")]]
    for name, words in CORRECTED.items():
        of = found["rules"]["correct"][name]
        if "whole" in of["tuning"]:
            rows.append([words, "1", *_cells(of, "whole")])
        rows.append([words, f"{of['slope']:.3f} ± {of['slope_error']:.3f}", *_cells(of, "slope")])
    heads = ["taken off", "times"]
    for words in HALVES.values():
        heads += [f"{words}: distance in own errors, root mean square", "in the records', median / 95th percentile"]
        heads += ["holds the records, %"]
    return table(heads, rows)


def _cells(of: dict[str, Any], name: str) -> list[str]:
    out = []
    for half in HALVES:
        one = of[half][name] if name else of[half]
        out += [number(one, "own_rms"), f"{number(one, 'records_median')} / {number(one, 'records_p95')}"]
        out += [number(one, "held", 1)]
    return out


def _terms(names: Iterable[str], at: str, n: int | None = None) -> Iterator[tuple[dict[str, float], int]]:
    """Every coefficient of these records at a w or ε, with how many draws it is of; of one n alone."""
    for record in filter(None, map(zoo_page.results, names)):
        for one in record["cells"]:
            for key, figures in one.get("terms", {}).items() if n in (None, one["n"]) else ():
                if key.endswith(at):
                    found = {name: float(value) for name, value in (word.split("=") for word in figures.split())}
                    yield found, record["draws"]


def _cautioned() -> str:
    """What refusing every answer that carries a caution would do, over all records of the reported half."""
    rows = []
    for words, (names, ats) in REPORTED.items():
        for at in ats:
            count = dict.fromkeys(("right", "wrong", "right_cautioned", "wrong_cautioned"), 0.0)
            for found, draws in _terms(names, at):
                right = round(found["held"] * draws)
                told = {"right": right, "wrong": draws - right} | {key: found[key] for key in count if "_" in key}
                count = {key: value + told[key] for key, value in count.items()}
            kept = {name: count[name] - count[f"{name}_cautioned"] for name in ("right", "wrong")}
            row = [words, at.replace("epsilon=", "ε = ").replace("w=", "w = ")]
            for name in ("wrong", "right"):
                row.append(f"{count[f'{name}_cautioned']:.0f} of {count[name]:.0f}")
            for one in (count, kept):
                of = one["right"] + one["wrong"]
                row.append(share({"held": 100 * one["right"] / of}, "held", round(of)) if of else "–")
            rows.append(row)
    heads = ("mechanism", "", "refused of the wrong", "of the right", "holds the records, %", "of what is left, %")
    return table(heads, rows)


def _misfit() -> str:
    """What taking off a share of what flows without noise are off by would do; the share is of the other tables."""
    rows = []
    for at in ("w=0.8", "w=0"):
        elsewhere, here = (
            np.array([(found["bias"], found["flow"]) for found, _ in _terms(names, at)]) for names in (NEITHER, LATENT)
        )
        by = float(elsewhere[:, 0] @ elsewhere[:, 1] / (elsewhere[:, 1] @ elsewhere[:, 1]))
        before, after = here[:, 0], here[:, 0] - by * here[:, 1]
        sizes = [f"{np.sqrt(np.mean(off**2)):.2f}; {np.median(np.abs(off)):.2f}" for off in (before, after)]
        rows.append([at.replace("w=", "w = "), f"{len(elsewhere)}", f"{by:.2f}", f"{len(here)}", *sizes])
    heads = ("", "coefficients of the other tables", "share that they give", "of the reported half")
    size = "in the records' errors, root mean square; median"
    return table((*heads, f"distance {size}", f"with it taken off {size}"), rows)


def _drawn() -> str:
    """By how much coefficients of noisy moments lie towards none, and what is left with the other tables' mean off."""
    elsewhere = float(np.mean([_towards(found) for found, _ in _terms(OTHERS, "epsilon=1")]))
    rows = []
    for name in (*OTHERS, *MOMENTS):
        record = zoo_page.results(name) or {"cells": []}
        for n in dict.fromkeys(one["n"] for one in record["cells"]):
            found = [figures for figures, _ in _terms((name,), "epsilon=1", n)]
            if not found:
                continue
            off = np.array([_towards(one) for one in found])
            size = f"{n:,}" if n < WHOLE else "their own"
            line = ["other tables" if name in OTHERS else "reported half", size]
            line += [f"{record['sites']}" if n < WHOLE else "their own", f"{len(off)}"]
            line += [f"{off.mean():.2f} ± {off.std(ddof=1) / np.sqrt(len(off)):.2f}", f"{np.sqrt(np.mean(off**2)):.2f}"]
            rows.append([*line, "–" if name in OTHERS else f"{np.sqrt(np.mean((off - elsewhere) ** 2)):.2f}"])
    heads = ("", "n", "K", "coefficients", "mean distance towards none", "root mean square")
    return table((*heads, "the same with the other tables' mean taken off"), rows)


def _towards(found: Mapping[str, float]) -> float:
    """How far an answer lies towards none, in its own standard errors; negative beyond the records."""
    return -found["bias_own"] * (1 if found["real"] > 0 else -1)


WHOLE = 10**9
OTHERS = ("zoo_moments_packaged", "zoo_moments_others")
LATENT = ("zoo", "zoo_n300", "zoo_n1000", "zoo_n5000", "zoo_n20000")
NEITHER = ("zoo_trial", "zoo_packaged", "zoo_others")
MOMENTS = ("zoo_moments", *(f"zoo_moments_k{k}" for k in zoo_page.KEPT))
REPORTED = {
    "latent noise": (LATENT, ("w=0.8", "w=0")),
    "latent noise, counts and yes or no beside a heavy tail": (("zoo_heavy_tails",), ("w=0.8", "w=0")),
    "noisy moments, every coefficient declared": (MOMENTS, ("epsilon=1", "epsilon=3")),
    "noisy moments, nothing declared": (("zoo_moments_none_declared_after",), ("epsilon=1", "epsilon=3")),
}
"""Mechanism to records of the reported half, and which w or ε they have."""
HALVES = {"tuning": "tuning half", "reporting": "reported half"}
HEAD = """## Refusing a pool that most of its sites doubt

It was asked that pools correct a bias that their sites share, or are refused where most sites carry the doubt.
Neither is done, because of the figures below ([decision 54](decisions/0054-a-doubted-pool-is-answered.md)).
They are of latent noise, w = {w}, {sites} sites of {n:,}: each simulated world with one type of outcome in rotation, \
on patients and noise of its own, one draw (`python -m tests.benchmarks.zoo_doubts`).
The table compares what a refusal takes of the wrong answers with what it takes of the right ones, where rows deny the \
model at sites with more than half of the pool's weight, and where a caution stands by the answer:
"""
CAUTIONED = """
The same for all records of the reported half above, if every answer that carries a caution were refused.
For noisy moments a caution says that two figures contradict each other, or that a coefficient is not declared, and is \
about all sites together:
"""
CORRECT = """
## Taking an estimated bias off a pool

In the same answers, a coordinator can estimate a shared bias from released rows alone in two ways.
It takes the released rows for records, and flows fitted on them draw them again, four times.
Or it takes a share of the answer itself, which would be lacking.
The estimate is taken off whole, and times the slope that the tuning half gives it (± its standard error, by leaving \
out one world at a time); intervals move with it, as wide as before:
"""
MISFIT = """
A coordinator cannot know how far from the records so many rows drawn from the flows lie that no noise is left.
Of this distance a share is taken off that the tables of neither half give:
"""
DRAWN = """
What noisy moments at ε = 1, every coefficient declared, draw towards none, over coefficients, in their own standard \
errors (± as if coefficients were independent):
"""
WORDS = """
Of the few answers of latent noise that lie outside their interval a refusal takes some, together with many right ones.
What is left holds hardly more often, because nearly all answers held before.
Of counts beside a [heavy tail](#counts-beside-a-heavy-tail) a refusal would take all wrong answers at 5,000 patients \
a hospital, with all right ones there; the tuning half offers no sign by which to choose such pools \
([decision 54](decisions/0054-a-doubted-pool-is-answered.md)).
Among declared coefficients the answers that carry a caution are right ones.
Refusing all undeclared ones, right and wrong, is not needed where a plan declares them.

What flows fitted on the released rows move says nothing about what the first flows moved: taken off, it adds its own \
error.
A better estimate would not help.
Next to no share of the flows' true misfit, which only hospitals could report, is in the answers of the other tables, \
because outcomes are drawn last and their laws are put right on the records.
(The marker of `heavy tails` at 20,000 patients is an exception on the reported half: answer and misfit are both far \
off there, in opposite directions, so that taking a share off would make it worse.)

Noisy moments lie towards none by a fraction of their own error, most where 48 sites of 1,000 patients are pooled.
The other tables, by which a share to take off would be chosen, show no such drift.
A bias that would show in rows drawn of the released model was not measured.
"""
