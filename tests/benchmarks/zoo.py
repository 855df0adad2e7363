"""Hard worlds through latent noise: how far the pooled released answer is from the pooled answer of the records.

Every cell is a world, a type of outcome, a number of patients and of sites (the first of a larger number: several are
looked at for the price of the largest). Each site's table goes the product's way:
a plan with the planned question, the posture's fit (`site_agent.release.fitting.fit`), the noise, the decoder; the
coordinator's estimate, variance and pooling. What is held against the records is one number per term:

* bias: released less real pooled estimate, in standard errors of the real pooled estimate, averaged over the draws;
* apart: the same distance draw by draw, noise included; noise alone makes it about .6 at the orders of a product;
* flow: the same distance for so many rows drawn from the sites' flows that no noise is left: their misfit alone;
* held: how often the released 95 % interval holds the records' pooled estimate, and the law's own answer;
* width: of the released interval over that of the records'; I², released and real;
* site_held, site_apart: of single sites' answers, how often the interval holds the site's own records' answer, and how
  far from it they lie in its standard errors (median); site_lost: how often the records have an answer and the release
  has none;
* cautioned, of answers whose interval holds the records' and of those whose does not: how often a caution stood by
  (`PooledResult.doubts`); told: how often the records' answer lay within the distance that the answer tells.

python -m tests.benchmarks.zoo [--quick] [--half tuning|reporting] [--worlds a,b] [--kinds binary,…] [--some K]
    [--n 1000,5000] [--sites 4,12] [--w 0.8,0] [--draws 6] [--jobs 2] [--outcomes last|joint] [--fewer] [--name zoo]

`--fewer` asks the planned model on every second covariate: a question that the plan does not name.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from coordinator.pooling.cautions import denial
from coordinator.pooling.gaps import pooled_gap
from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.pool import PooledResult, pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import Refusal
from shared.estimands.answer import Estimand, Estimate, estimate, parse_estimand
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.encoding import Encoder
from shared.plans.plan import Budget, StudyPlan, Training, Wave
from site_agent.release.fitting import fit
from tests.benchmarks import record, worlds

SEED = 20261123
FLOW = 4
"""Rows drawn from a flow for each of its records, to see what it draws without noise."""
LAW = record.sized(150_000, 2000)
"""Patients by whom a law's own answer is found: a large-sample fit, over as many sites as a cell may have."""


def plan_of(world: worlds.HardWorld, kind: str, w: float, training: Training) -> StudyPlan:
    """The plan of a study of one outcome."""
    day = dt.date(2026, 1, 1)
    return StudyPlan(
        study="zoo",
        version=1,
        title="A hard world",
        purpose="To see what is true on it.",
        coordinator="hub",
        expires=day,
        release=LatentNoisePlan(w=w),
        training=training,
        budget=Budget(epsilon=1e6, delta=1e-6),
        waves=(Wave(number=1, opens=day, closes=day),),
        dictionary=world.dictionary(kind),
        estimands={"planned": world.question(kind)},
    )


def seed_of(*parts: Any, seed: int = SEED) -> int:
    """The seed of a part of the run, by its name."""
    return zlib.crc32(repr((seed, *parts)).encode())


@lru_cache(maxsize=256)
def law(name: str, kind: str, sites: int) -> dict[str, float]:
    """Term to the law's own answer: the mean over sites of large-sample fits; empty for real tables."""
    world = worlds.world(name)
    if world.sites:
        return {}
    found: dict[str, list[float]] = {}
    for site in range(sites):
        table = world(LAW // sites, np.random.default_rng(seed_of("law", name, site)), site)
        for row in asked_of(world, kind, table):
            if row.yi is not None:
                found.setdefault(row.term, []).append(row.yi)
    return {term: float(np.mean(values)) for term, values in found.items()}


def _levels(world: worlds.HardWorld, kind: str) -> dict[str, Sequence[Any]]:
    return {column.name: column.levels for column in world.dictionary(kind).columns if column.levels}


def asked_for(world: worlds.HardWorld, kind: str, fewer: bool = False) -> Estimand:
    """The question of a cell: the planned one, or that on every second covariate."""
    head, _, terms = world.question(kind).partition(" ~ ")
    return parse_estimand(f"{head} ~ {' + '.join(terms.split(' + ')[:: 2 if fewer else 1])}")


def asked_of(world: worlds.HardWorld, kind: str, table: Any, site: str = "s", *, fewer: bool = False) -> list[Estimate]:
    """The records' own answer at one site."""
    question = asked_for(world, kind, fewer)
    return estimate(table, question, study="zoo", site=site, wave=1, levels=_levels(world, kind))


def cell(
    name: str,
    kind: str,
    n: int,
    sizes: Sequence[int],
    weights: Sequence[float],
    draws: int,
    training: Training,
    fewer: bool = False,
) -> list[dict[str, Any]]:
    """One world, outcome and n, at several numbers of sites: what was pooled at every w, and what the records say."""
    world = worlds.world(name)
    sizes = (world.sites,) if world.sites else tuple(sizes)
    question, levels = asked_for(world, kind, fewer), _levels(world, kind)
    encoder = Encoder(dictionary=world.dictionary(kind))
    last = training.outcomes == "last"
    real: list[list[Estimate]] = []
    released: dict[tuple[float, int], list[list[Estimate]]] = {(w, b): [] for w in weights for b in range(draws)}
    drawn_out: list[list[Estimate]] = []
    seconds = 0.0
    for site in range(max(sizes)):
        table = world(n, np.random.default_rng(seed_of(name, n, site)), site)
        checked = encoder.dictionary.check(table[list(encoder.dictionary.names)])
        rng = seeded_rng(seed_of(name, kind, n, site))
        x = encoder.encode(checked, rng)
        try:
            answers = asked_of(world, kind, table, f"s{site}", fewer=fewer)
            began = time.process_time()
            fitted = fit(plan_of(world, kind, 0.8, training), encoder, x, None, rng)
            seconds += time.process_time() - began
        except Refusal as refusal:
            told = {"world": name, "kind": kind, "n": n, "refused": str(refusal)[:200]}
            return [told | {"sites": size} for size in sizes]
        real.append(answers)
        latents = rng.generator.standard_normal((FLOW * len(x), encoder.d))
        alone = encoder.decode(fitted.mechanism.flow.forward(latents))
        drawn_out.append(estimate(alone, question, study="zoo", site=f"s{site}", wave=1, levels=levels))
        for (w, _), rows in released.items():
            mechanism = replace(fitted.mechanism, w=w)
            out = encoder.decode(mechanism.release(x, rng))
            found = estimate(out, question, study="zoo", site=f"s{site}", wave=1, levels=levels)
            drawn = [Draw(rows=len(out), w=w, fitted_on=len(out), outcomes_last=last)]
            rows.append(with_release_variance(found, out, question, drawn, levels=levels, postures=("local",)))
    out = []
    for size in sizes:
        truth, terms = {} if fewer else law(name, kind, size), []
        for term in dict.fromkeys(row.term for answers in real for row in answers):
            for w in weights:
                got = [_pooled(released[w, b][:size], term) for b in range(draws)]
                entry = _held_against([one for one in got if one is not None], _pooled(real[:size], term))
                if entry:
                    entry |= {"term": term, "w": w, "flow": _misfit(drawn_out[:size], real[:size], term)}
                    drawn_rows = [list(chain(*released[w, b][:size])) for b in range(draws)]
                    entry |= by_site(drawn_rows, list(chain(*real[:size])), term)
                    terms.append(entry | (by_law(got, _pooled(real[:size], term), truth[term]) if truth else {}))
        out.append(
            {
                "world": name,
                "kind": kind,
                "n": n,
                "sites": size,
                "fit_seconds_per_site": round(seconds / max(sizes), 2),
                "terms": terms,
            }
        )
    return out


def _held_against(got: Sequence[PooledResult], truly: PooledResult | None) -> dict[str, Any]:
    """What the draws' pooled answers are beside that of the records; empty where there is none."""
    if truly is None or not got:
        return {}
    away = [(one.beta - truly.beta) / truly.se for one in got]
    held = np.array([one.ci_lb <= truly.beta <= one.ci_ub for one in got])
    cautioned = np.array([bool(one.doubts) for one in got])
    gaps = [pooled_gap(one, dict.fromkeys(row.site for row in one.estimates)) for one in got]
    within = [abs(one.beta - truly.beta) <= gap.interval[1] for one, gap in zip(got, gaps, strict=True) if gap]
    return {
        "real": truly.beta,
        "real_se": truly.se,
        "bias": float(np.mean(away)),
        "apart": [round(one, 3) for one in away],
        "held": float(held.mean()),
        "width": float(np.mean([(one.ci_ub - one.ci_lb) / (truly.ci_ub - truly.ci_lb) for one in got])),
        "I2": float(np.mean([one.I2 for one in got])),
        "I2_real": float(truly.I2),
        "right": int(held.sum()),
        "wrong": int((~held).sum()),
        "right_cautioned": int((held & cautioned).sum()),
        "wrong_cautioned": int((~held & cautioned).sum()),
        "told": float(np.mean(within)),
        "alike": float(np.mean([one.tau2 <= 0 for one in got])),
        "denial": [denial(one) for one in got],
        "missed": [not one for one in held],
    }


def by_site(draws: Sequence[Sequence[Estimate]], real: Sequence[Estimate], term: str) -> dict[str, float]:
    """What single sites' answers are beside those of their own records; empty where these have none."""
    truly = {row.site: row for row in real if row.term == term and row.yi is not None}
    got = [row for rows in draws for row in rows if row.term == term and row.site in truly]
    away = [
        (abs(row.yi - one.yi), math.sqrt(row.vi + row.vi_common), math.sqrt(one.vi))
        for row in got
        if row.yi is not None and row.vi is not None and (one := truly[row.site]).yi is not None and one.vi
    ]
    if not away:
        return {}
    return {
        "site_held": float(np.mean([far <= 1.959964 * own for far, own, _ in away])),
        "site_apart": float(np.median([far / records for far, _, records in away])),
        "site_lost": 1 - len(away) / (len(draws) * len(truly)),
    }


def by_law(got: Sequence[PooledResult | None], truly: PooledResult, law: float) -> dict[str, float]:
    """Shares of the released pooled intervals, and of the records' own, that hold the law's answer."""
    held = [one.ci_lb <= law <= one.ci_ub for one in got if one is not None]
    return {"law_held": float(np.mean(held)), "law_held_real": float(truly.ci_lb <= law <= truly.ci_ub)}


def laws_held(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The same of several terms, in percent; empty where no law is known."""
    known = [row for row in rows if "law_held" in row]
    return {name: float(100 * np.mean([row[name] for row in known])) for name in ("law_held", "law_held_real") if known}


def _pooled(answers: Sequence[list[Estimate]], term: str) -> PooledResult | None:
    rows = [row for site in answers for row in site if row.term == term]
    try:
        return pool_estimates(rows)
    except Refusal:
        return None


def _misfit(drawn: Sequence[list[Estimate]], real: Sequence[list[Estimate]], term: str) -> float:
    """How far the flows' own answers are from the records', pooled with the records' weights, in their standard errors.

    Sites of which the records or the flow have no answer are left out.
    """
    both = [
        (a.yi - b.yi, b.vi)
        for one, other in zip(drawn, real, strict=True)
        for a in one
        for b in other
        if a.term == b.term == term and a.yi is not None and b.yi is not None and b.vi
    ]
    weights = np.array([1 / v for _, v in both])
    return float(weights @ np.array([y for y, _ in both]) / np.sqrt(weights.sum())) if both else 0.0


KEPT = (
    "real",
    "real_se",
    "bias",
    "flow",
    "held",
    "width",
    "I2",
    "I2_real",
    "law_held",
    "law_held_real",
    "right_cautioned",
    "wrong_cautioned",
    "told",
    "site_held",
    "site_apart",
    "site_lost",
)


def brief(one: dict[str, Any]) -> dict[str, Any]:
    """A cell as it is kept: per term its figures, to three digits."""
    terms = {
        f"{row['term']}, w={row['w']:g}": " ".join(f"{name}={row[name]:.3g}" for name in KEPT if name in row)
        for row in one.get("terms", ())
    }
    return {key: value for key, value in one.items() if key != "terms"} | {"terms": terms}


def summary(cells: Sequence[dict[str, Any]], w: float) -> dict[str, Any]:
    """What the bars are about: all terms of all cells at one w, or of some."""
    rows = [term for one in cells for term in one.get("terms", ()) if term["w"] == w]
    if not rows:
        return {"terms": 0}
    bias = np.abs([row["bias"] for row in rows])
    apart = np.abs([d for row in rows for d in row["apart"]])
    flow = np.abs([row["flow"] for row in rows])
    held = np.array([row["held"] for row in rows])
    excess = np.array([row["I2"] - row["I2_real"] for row in rows])
    out = {
        "terms": len(rows),
        "bias_median": float(np.median(bias)),
        "bias_p95": float(np.quantile(bias, 0.95)),
        "apart_median": float(np.median(apart)),
        "apart_p95": float(np.quantile(apart, 0.95)),
        "flow_median": float(np.median(flow)),
        "flow_p95": float(np.quantile(flow, 0.95)),
        "held": float(100 * held.mean()),
        "width": float(np.median([row["width"] for row in rows])),
        "I2_excess": float(excess.mean()),
    }
    out |= sites_alone(rows)
    out |= laws_held(rows)
    for name in ("right", "wrong"):
        out[name] = sum(row[name] for row in rows)
        if out[name]:
            out[f"{name}_cautioned"] = 100 * sum(row[f"{name}_cautioned"] for row in rows) / out[name]
    out |= {name: float(100 * np.mean([row[name] for row in rows])) for name in ("told", "alike")}
    out |= told_apart([v for row in rows for v in row["denial"]], [v for row in rows for v in row["missed"]])
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in out.items()}


def sites_alone(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of terms: what single sites' answers are beside their own records', in percent and standard errors."""
    known = [row for row in rows if "site_held" in row]
    if not known:
        return {}
    shares = {name: 100 * float(np.mean([row[name] for row in known])) for name in ("site_held", "site_lost")}
    return {**shares, "site_apart": float(np.median([row["site_apart"] for row in known]))}


def told_apart(signal: Sequence[float], wrong: Sequence[bool]) -> dict[str, float]:
    """How well a signal tells wrong answers from right ones: area under the ROC curve; share of the wrong ones above
    nine tenths and four fifths of the right ones; empty where there are not both.
    """
    of_wrong, of_right = (
        np.array([v for v, w in zip(signal, wrong, strict=True) if w is one]) for one in (True, False)
    )
    if not len(of_wrong) or not len(of_right):
        return {}
    above = (of_wrong[:, None] > of_right).mean() + (of_wrong[:, None] == of_right).mean() / 2
    beyond = {share: float(100 * (of_wrong > np.quantile(of_right, share)).mean()) for share in (0.9, 0.8)}
    return {"roc_area": float(above), "caught_at_10": beyond[0.9], "caught_at_20": beyond[0.8]}


def summaries(cells: Sequence[dict[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    """Of all cells, and by outcome, world and n."""
    out: dict[str, Any] = {}
    for w in weights:
        told: dict[str, Any] = {"all": summary(cells, w)}
        for key in ("kind", "world", "n", "sites"):
            for value in dict.fromkeys(one[key] for one in cells):
                told[f"{key}={value}"] = summary([one for one in cells if one[key] == value], w)
        out[f"w={w:g}"] = told
    return out


def cells_of(given: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """World, outcome and n of every cell that was asked for."""
    half = worlds.TUNING if given.half == "tuning" else worlds.REPORTING
    some = getattr(given, "some", None)
    for place, name in enumerate(given.worlds or half):
        try:
            world = worlds.world(name)
        except FileNotFoundError as absent:
            print(f"left out: {absent}")
            continue
        for other, kind in enumerate(world.kinds):
            # Two types of outcome of each world, others from world to world.
            if kind in given.kinds and (some is None or (place + other + some) % len(worlds.KINDS) in (0, 2)):
                for n in given.n if not world.sites else (10**9,):
                    yield name, kind, n


def _cell(asked: tuple[str, str, int], **settings: Any) -> list[dict[str, Any]]:
    return cell(*asked, **settings)


def listed(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Reader of a command line's list, by commas."""
    return lambda text: tuple(read(part) for part in text.split(","))


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo")
    parser.add_argument("--quick", action="store_true", help="four worlds, 1,000 patients, 4 sites, one draw")
    parser.add_argument("--half", choices=("tuning", "reporting"), default="tuning")
    parser.add_argument("--worlds", type=listed(str), default=())
    parser.add_argument("--kinds", type=listed(str), default=worlds.KINDS)
    parser.add_argument("--n", type=listed(int), default=(1000,))
    parser.add_argument("--sites", type=listed(int), default=(12,))
    parser.add_argument("--some", type=int, help="two types of outcome of each world, which by this number")
    parser.add_argument("--w", type=listed(float), default=(0.8, 0.0))
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--outcomes", choices=("last", "joint"), default="last")
    parser.add_argument("--fewer", action="store_true", help="a question that is not planned: every second covariate")
    parser.add_argument("--name", default="", help="writes tests/benchmarks/results/<name>.json")
    return parser


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cells of a command line, in order; of one world, outcome and n one after the other."""
    training = Training(outcomes=given.outcomes)
    asked_cells = list(cells_of(given))
    work = partial(_cell, sizes=given.sites, weights=given.w, draws=given.draws, training=training, fewer=given.fewer)
    with ProcessPoolExecutor(given.jobs) as pool:
        for several in pool.map(work, asked_cells):
            yield from several


def main() -> None:
    given = options().parse_args()
    if given.quick:
        given.worlds = given.worlds or worlds.TUNING[:4]
        given.sites, given.draws = (4,), 1
    found = []
    for one in measured(given):
        found.append(one)
        told_of = {f"w={w:g}": summary([one], w) for w in given.w}
        seen = {
            w: {k: v.get(k) for k in ("bias_median", "bias_p95", "flow_median", "flow_p95", "held", "told")}
            for w, v in told_of.items()
        }
        print(one["world"], one["kind"], one["n"], one["sites"], one.get("refused", ""), json.dumps(seen), flush=True)
    told = summaries(found, given.w)
    for w, parts in told.items():
        print(w, json.dumps({k: v for k, v in parts.items() if k == "all" or k.startswith("kind=")}, indent=1))
    if given.name:
        code = hashlib.sha256("".join(sorted({one["world"] for one in found})).encode()).hexdigest()[:8]
        results = {
            "half": given.half,
            "outcomes": given.outcomes,
            "fewer": given.fewer,
            "sites": given.sites,
            "draws": given.draws,
            "worlds": code,
            "summaries": told,
            "cells": [brief(one) for one in found],
        }
        print(record.write(given.name, results, seed=SEED))


if __name__ == "__main__":
    main()
