"""What refusing doubted pools, or taking an estimated bias off them, would do to pooled answers of latent noise.

Each pooled answer stands beside what a coordinator could know of its error from the released rows alone. Of refusing
(`refuse`) it is the share of a pool's weight at sites that carry a doubt; a pool is refused where that is above a half:

* rows deny: sites whose own rows vary `DENIED` times as much as their model says;
* caution: all, where a caution stands by the answer, else none.

Of correcting (`correct`) it is an estimate of the bias that all sites share:

* again: flows fitted on the released rows draw them again, four times: the mean change;
* shrinkage: the answer itself, of which a share would be lacking.

An estimate is taken off whole, and times the slope that the tuning half gives it (weighted least squares of the errors
on it; its own error by leaving out one world at a time). Intervals move with it and are as wide as before, which is in
favour of correcting. Slopes are of the tuning half and reported of both; real tables are in neither here.

python -m tests.benchmarks.zoo_doubts [--halves tuning,reporting] [--name zoo_doubts]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from coordinator.pooling.cautions import DENIED
from coordinator.pooling.intervals import Draw, with_release_variance
from shared.base.randomness import Noise, seeded_rng
from shared.errors import Refusal
from shared.estimands.answer import Estimand, Estimate, estimate
from shared.plans.encoding import Encoder
from shared.plans.plan import StudyPlan, Training
from site_agent.release.fitting import fit
from tests.benchmarks import record, worlds, zoo
from tests.benchmarks.worlds import laws
from tests.benchmarks.zoo import listed, seed_of

SEED = 20261202
HALVES = ("tuning", "reporting")
W = 0.8
AGAIN = 4
N, SITES = record.sized((1000, 12), (300, 2))
SIMULATED = record.sized(None, 1)
"""How many worlds of each half; None: all that are simulated."""
KINDS = record.sized(("binary", "count", "linear", "survival"), ("binary",))
Answer = dict[str, Any]


def pooled(name: str, kind: str) -> Iterator[Answer]:
    """The pooled answers of one world through latent noise."""
    world = worlds.world(name)
    question = zoo.asked_for(world, kind)
    encoder = Encoder(dictionary=world.dictionary(kind))
    levels = {column.name: column.levels for column in encoder.dictionary.columns if column.levels}
    plan = zoo.plan_of(world, kind, W, Training(outcomes="last"))
    real: list[list[Estimate]] = []
    released: list[list[Estimate]] = []
    moved: list[dict[str, float]] = []
    for site in range(SITES):
        table = world(N, np.random.default_rng(seed_of(name, N, site, seed=SEED)), site)
        rng = seeded_rng(seed_of(name, kind, N, site, seed=SEED))
        x = encoder.encode(encoder.dictionary.check(table[list(encoder.dictionary.names)]), rng)
        origin: dict[str, Any] = {"study": "zoo", "site": f"s{site}", "wave": 1, "levels": levels}
        real.append(estimate(table, question, **origin))
        rows = encoder.decode(fit(plan, encoder, x, None, rng).mechanism.release(x, rng))
        drawn = [Draw(rows=len(rows), w=W, fitted_on=len(rows), outcomes_last=True)]
        found = estimate(rows, question, **origin)
        released.append(with_release_variance(found, rows, question, drawn, levels=levels, postures=("local",)))
        moved.append(_again(plan, encoder, rows, question, origin, rng))
    for term in dict.fromkeys(row.term for rows in real for row in rows):
        got, truly = (zoo._pooled(several, term) for several in (released, real))
        if got is None or truly is None:
            continue
        weights = {row.site: w / 100 for row, w in zip(got.estimates, got.weights, strict=True)}
        changes = [(weights.get(f"s{site}", 0.0), change[term]) for site, change in enumerate(moved) if term in change]
        known = sum(weight for weight, _ in changes)
        again = sum(weight * change for weight, change in changes) / known if known else 0.0
        yield {
            "term": got.term,
            "off": got.beta - truly.beta,
            "se": got.se,
            "half": got.critical * got.se,
            "records": truly.se,
            "refuse": {
                "rows deny": float(sum(weights[row.site] for row in got.estimates if _ratio(row) >= DENIED)),
                "caution": float(bool(got.doubts)),
            },
            "correct": {"again": float(again), "shrinkage": got.beta},
        }


def _ratio(row: Estimate) -> float:
    """Sandwich over model variance of one site's rows, their common dispersion taken out."""
    if not row.vi_naive:
        return 1.0
    return (row.vi_sandwich or row.vi_naive) / (row.vi_naive * max(row.dispersion, 1.0))


def _again(
    plan: StudyPlan,
    encoder: Encoder,
    rows: pd.DataFrame,
    question: Estimand,
    origin: Mapping[str, Any],
    rng: Noise,
) -> dict[str, float]:
    """Term to what it changes by where released rows are taken for records, and go the same way."""
    x = encoder.encode(encoder.dictionary.check(rows), rng)
    try:
        first = {row.term: row.yi for row in estimate(rows, question, **origin)}
        mechanism = fit(plan, encoder, x, None, rng).mechanism
        redrawn = [estimate(encoder.decode(mechanism.release(x, rng)), question, **origin) for _ in range(AGAIN)]
    except Refusal:
        return {}
    changes: dict[str, list[float]] = {}
    for row in (row for found in redrawn for row in found):
        before = first.get(row.term)
        if row.yi is not None and before is not None:
            changes.setdefault(row.term, []).append(row.yi - before)
    return {term: float(np.mean(several)) for term, several in changes.items() if len(several) == AGAIN}


def slope(answers: Sequence[Answer], name: str) -> float:
    """What of an estimated bias is one, by weighted least squares of the errors on it; 0 where there is nothing.

    >>> slope([{"off": off, "se": 1.0, "correct": {"b": 2 * off}} for off in (0.25, -0.5)], "b")
    0.5
    """
    off, se = (np.array([one[key] for one in answers]) for key in ("off", "se"))
    estimates = np.array([one["correct"][name] for one in answers])
    squares = float((estimates / se) @ (estimates / se))
    return float((off / se) @ (estimates / se)) / squares if squares else 0.0


def slope_error(answers: Sequence[Answer], name: str) -> float:
    """Standard error of `slope` by the jackknife over worlds."""
    names = sorted({one["world"] for one in answers})
    left = np.array([slope([one for one in answers if one["world"] != name_], name) for name_ in names])
    k = len(names)
    return float(np.sqrt((k - 1) / k * ((left - left.mean()) ** 2).sum())) if k > 1 else 0.0


def judged(answers: Sequence[Answer], moved: NDArray[np.float64] | float = 0.0) -> dict[str, float]:
    """Bias and coverage of answers, each less what it is `moved` by."""
    off, se, half, records = (np.array([one[key] for one in answers]) for key in ("off", "se", "half", "records"))
    off = off - moved
    far = np.abs(off / records)
    return {
        "answers": len(answers),
        "held": 100 * float((np.abs(off) <= half).mean()),
        "own_rms": float(np.sqrt(np.mean((off / se) ** 2))),
        "own_p95": float(np.quantile(np.abs(off / se), 0.95)),
        "records_median": float(np.median(far)),
        "records_p95": float(np.quantile(far, 0.95)),
    }


def refused(answers: Sequence[Answer], name: str) -> dict[str, float]:
    """Of answers what a refusal would take where most sites carry a doubt, and how often the others hold."""
    wrong = np.array([abs(one["off"]) > one["half"] for one in answers])
    out = np.array([one["refuse"][name] > 0.5 for one in answers])
    return {
        "wrong": int(wrong.sum()),
        "wrong_refused": int((wrong & out).sum()),
        "right": int((~wrong).sum()),
        "right_refused": int((~wrong & out).sum()),
        "held_before": 100 * float((~wrong).mean()),
        "held_after": 100 * float((~wrong)[~out].mean()) if (~out).any() else 100.0,
    }


def results_of(halves: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """What rules do to the answers of both halves."""
    tuning = halves["tuning"]
    out: dict[str, Any] = {"as it is": {half: judged(answers) for half, answers in halves.items()}}
    out["refuse"] = {
        name: {half: refused(answers, name) for half, answers in halves.items()} for name in tuning[0]["refuse"]
    }
    out["correct"] = {}
    for name in tuning[0]["correct"]:
        by = slope(tuning, name)
        out["correct"][name] = found = {"slope": by, "slope_error": slope_error(tuning, name)}
        for half, answers in halves.items():
            estimates = np.array([one["correct"][name] for one in answers])
            found[half] = {"slope": judged(answers, by * estimates), "slope_here": slope(answers, name)}
            if name == "again":
                found[half]["whole"] = judged(answers, estimates)
    rounded: dict[str, Any] = _rounded(out)
    return rounded


def _rounded(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return round(found, 3) if isinstance(found, float) else found


def cells_of(half: str) -> list[tuple[str, str]]:
    """Each simulated world of a half with one type of outcome, in rotation."""
    named = [world.name for world in laws.WORLDS.values() if world.tunes == (half == "tuning")]
    return [(name, KINDS[place % len(KINDS)]) for place, name in enumerate(named[:SIMULATED])]


def measured(half: str) -> Iterator[Answer]:
    """The answers of a half."""
    for name, kind in cells_of(half):
        began = time.process_time()
        found = [one | {"world": name, "kind": kind} for one in pooled(name, kind)]
        wrong = sum(abs(one["off"]) > one["half"] for one in found)
        took = time.process_time() - began
        print(half, name, kind, f"{took:.1f} s, {len(found)} answers, {wrong} outside", flush=True)
        yield from found


def main() -> None:
    """Measure halves, keep their answers, and put what rules do to them into the record."""
    asked = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo_doubts")
    asked.add_argument("--halves", type=listed(str), default=HALVES)
    asked.add_argument("--name", default="zoo_doubts")
    given = asked.parse_args()
    path = record.RESULTS / f"{given.name}.json"
    for half in given.halves:
        kept: dict[str, list[str]] = {half: [line(one) for one in measured(half)]}
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))["results"]["answers"] | kept
        halves = {name: [read_line(told) for told in kept.get(name, [])] for name in HALVES}
        rules = results_of(halves) if all(halves.values()) else {}
        print(json.dumps(rules, indent=1))
        results = {"n": N, "sites": SITES, "w": W, "answers": kept, "rules": rules}
        record.write(given.name, results, seed=SEED, command="python -m tests.benchmarks.zoo_doubts")


WORDS = ("world", "kind", "term")
NUMBERS = ("off", "se", "half", "records")


def line(one: Answer) -> str:
    """An answer as it is kept.

    >>> one = dict.fromkeys(WORDS, "a") | dict.fromkeys(NUMBERS, 0.5) | {"refuse": {}, "correct": {"again": 2.0}}
    >>> read_line(line(one)) == one
    True
    """
    numbers = [f"{name}={one[name]:.4g}" for name in NUMBERS]
    told = [f"{what}/{name}={value:.4g}" for what in ("refuse", "correct") for name, value in one[what].items()]
    return "; ".join([*(one[name] for name in WORDS), *numbers, *told])


def read_line(told: str) -> Answer:
    """The answer that a line keeps."""
    words = told.split("; ")
    out: Answer = dict(zip(WORDS, words, strict=False)) | {"refuse": {}, "correct": {}}
    for word in words[len(WORDS) :]:
        name, _, value = word.rpartition("=")
        what, _, which = name.rpartition("/")
        (out[what] if what else out)[which] = float(value)
    return out


if __name__ == "__main__":
    main()
