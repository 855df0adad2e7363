"""Hard worlds through noisy figures: how far the pooled released coefficients are from those of the records.

The same cells as `tests.benchmarks.zoo`, the product's way: a plan whose planned model is the question, each site's
figures drawn under its ε, the coordinator's answer of all sites together where the mechanism has one, else each site's,
its pooling. The mechanism is noisy moments, or by `--mechanism` noisy tables, slicing, cross-products of a linear
model's columns, or the density of the outcome, of which the mean is asked. Worlds whose columns the mechanism does not
take are listed with the refusal. What is held against the records, by term and ε:

* bias_own, bias_real: released less real pooled estimate, averaged over the draws, in the released pooled standard
  error and in the real one;
* held: how often the released 95 % interval holds the records' pooled estimate; width: over that of the records';
* doubt, unlike, strong: how well each tells wrong answers from right ones: the share of its variance that is doubt
  about the model, how unlike its sites are (Q over its degrees of freedom), its distance from 0 in its own errors;
* site_held, site_apart, site_lost: of single sites, as in `tests.benchmarks.zoo`;
* I2, I2_real; cautioned: how often a caution stood by (`PooledResult.doubts`), where the interval held and where it
  did not.

python -m tests.benchmarks.zoo_moments [--half tuning|reporting] [--worlds a,b] [--kinds binary,…] [--some K]
    [--n 2000] [--sites 12] [--epsilon 1,3] [--mechanism moments|tables|slicing|densities|cross_products]
    [--declared] [--alone] [--largest 1]
    [--draws 4] [--seed 20261123] [--name zoo_moments]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from coordinator.pooling.pool import PooledResult, pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import Refusal
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.mechanisms.base import Aggregates
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.moments.plan import MomentsPlan
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import Budget, StudyPlan, Wave
from tests.benchmarks import record, worlds
from tests.benchmarks.zoo import (
    LAW,
    SEED,
    by_law,
    by_site,
    cells_of,
    law,
    laws_held,
    listed,
    seed_of,
    sites_alone,
    told_apart,
)

KINDS = ("binary", "count", "linear", "survival")
MECHANISMS = ("moments", "tables", "slicing", "densities", "cross_products")
MEANT = 8
"""Times as many patients as for a law's regression, by whom its mean is found: a mean costs little."""
OFF = 0.15
"""Of a column's spread, how far the centre that a plan of cross-products gives may be off, and of itself the spread."""
WIDE_FROM = 1000
"""Patients of a site from which a plan of cross-products has the wider radius."""


def asked(world: worlds.HardWorld, kind: str, mechanism: str) -> str:
    """The question of a cell: the world's own, or of a density the mean of its outcome."""
    if mechanism == "densities":
        return f"mean({world.outcomes[kind][0].name})"
    return world.question(kind)


@lru_cache(maxsize=256)
def law_of_mean(name: str, column: str, sites: int) -> dict[str, float]:
    """Term to the mean of a law's column: over sites, by far more patients than a cell has; empty for real tables."""
    world = worlds.world(name)
    if world.sites:
        return {}
    rngs = [np.random.default_rng(seed_of("law", name, site)) for site in range(sites)]
    means = [float(world(MEANT * LAW // sites, rng, site)[column].mean()) for site, rng in enumerate(rngs)]
    return {f"mean({column})": float(np.mean(means))}


def typical(world: worlds.HardWorld, column: str) -> tuple[float, float]:
    """What a lead knows of a column from what is published: centre and scale of other patients, up to 15 % off."""
    others = world(LAW, np.random.default_rng(seed_of("published", world.name)))[column].astype(float)
    off, wider = np.random.default_rng(seed_of("published", world.name, column)).uniform(-OFF, OFF, 2)
    return float(others.mean() + off * others.std()), float(others.std() * (1 + wider))


def plan_of(
    world: worlds.HardWorld,
    kind: str,
    epsilon: float,
    mechanism: str = "moments",
    declared: bool = False,
    n: int = 2000,
) -> StudyPlan:
    """The plan of a study of one outcome, at sites of about n. Raises: PlanRefusal, where a column is not taken."""
    day = dt.date(2026, 1, 1)
    question = parse_estimand(asked(world, kind, mechanism))
    dictionary = world.dictionary(kind)
    used = tuple(column for column in dictionary.columns if column.name in question.columns)
    release: Aggregates
    if mechanism == "moments":
        covariates = question.terms
        release = MomentsPlan(
            epsilon=epsilon,
            outcome=kind,
            responses=(question.duration, question.event) if kind == "survival" else (question.outcome,),
            covariates=covariates,
            declared=covariates if declared else (),
        )
    elif mechanism == "tables":
        release = TablesPlan(epsilon=epsilon)
    elif mechanism == "slicing":
        release = SlicingPlan(epsilon=epsilon)
    elif mechanism == "cross_products":
        columns = (question.outcome, *dict.fromkeys(name for name in question.columns if name != question.outcome))
        scales = {column.name: typical(world, column.name) for column in used if column.kind != "binary"}
        radius = math.sqrt(2 * len(columns)) if n >= WIDE_FROM else None
        release = CrossProductsPlan(epsilon=epsilon, columns=columns, typical=scales, radius=radius)
    else:
        release = DensitiesPlan(densities=((question.outcome,),), epsilon=epsilon)
    return StudyPlan(
        study="zoo",
        version=1,
        title="A hard world",
        purpose="To see what is true on it.",
        coordinator="hub",
        expires=day,
        release=release,
        posture="private",
        budget=Budget(epsilon=1e3, delta=1e-6),
        waves=(Wave(number=1, opens=day, closes=day),),
        dictionary=type(dictionary)(name=dictionary.name, version=1, columns=used),
        estimands={"planned": str(question)},
    )


def cell(
    name: str,
    kind: str,
    n: int,
    sites: int,
    epsilons: Sequence[float],
    draws: int,
    mechanism: str = "moments",
    declared: bool = False,
    alone: bool = False,
    seed: int = SEED,
    largest: int = 1,
) -> dict[str, Any]:
    """One world, outcome, n and number of sites: what was pooled at every ε, and what the records say."""
    world = worlds.world(name)
    sites = world.sites or sites
    told: dict[str, Any] = {"world": name, "kind": kind, "n": n, "sites": sites}
    question = parse_estimand(asked(world, kind, mechanism))
    try:
        plans = {epsilon: plan_of(world, kind, epsilon, mechanism, declared, n) for epsilon in epsilons}
        dictionary = plans[epsilons[0]].dictionary
        sizes = [n * largest if site == 0 else n for site in range(sites)]
        tables = [
            world(size, np.random.default_rng(seed_of(name, n, site, seed=seed)), site)
            for site, size in enumerate(sizes)
        ]
        checked = [dictionary.check(table[list(dictionary.names)]) for table in tables]
        levels = {column.name: column.levels for column in dictionary.columns if column.levels}
        real = [
            estimate(table, question, study="zoo", site=f"s{site}", wave=1, levels=levels)
            for site, table in enumerate(tables)
        ]
        origins = {f"s{site}": {"study": "zoo", "site": f"s{site}", "wave": 1} for site in range(sites)}
        found: dict[float, list[list[Estimate]]] = {epsilon: [] for epsilon in epsilons}
        for epsilon, plan in plans.items():
            for draw in range(draws):
                rngs = [seeded_rng(seed_of(name, kind, epsilon, site, draw, seed=seed)) for site in range(sites)]
                figures = {
                    f"s{site}": [(plan.release.draw(plan, table, rng), len(table))]
                    for site, (table, rng) in enumerate(zip(checked, rngs, strict=True))
                }
                answer = {} if alone else plan.release.together(plan, figures, question, origins=origins)
                for site in figures.keys() - answer.keys():
                    answer[site] = plan.release.answer(plan, figures[site], question, levels=levels, **origins[site])
                found[epsilon].append([row for site in figures for row in answer[site]])
    except Refusal as refusal:
        return told | {"refused": str(refusal)[:200]}
    terms: list[dict[str, Any]] = []
    truth = law_of_mean(name, question.outcome, sites) if mechanism == "densities" else law(name, kind, sites)
    for term in dict.fromkeys(row.term for rows in real for row in rows):
        truly = pooled([row for rows in real for row in rows], term)
        for epsilon in epsilons if truly is not None else ():
            got = [one for rows in found[epsilon] if (one := pooled(rows, term)) is not None]
            if got and truly is not None:
                sites_own = by_site(found[epsilon], [row for rows in real for row in rows], term)
                laws = by_law(got, truly, truth[term]) if term in truth else {}
                terms.append({"term": term, "epsilon": epsilon, **held_against(got, truly), **sites_own, **laws})
    return told | {"terms": terms}


def pooled(rows: Sequence[Estimate], term: str) -> PooledResult | None:
    """The pool of a term's estimates; None where it has none."""
    try:
        return pool_estimates([row for row in rows if row.term == term])
    except (Refusal, IndexError):
        return None


def held_against(got: Sequence[PooledResult], truly: PooledResult) -> dict[str, Any]:
    """What the draws' pooled answers are beside that of the records."""
    held = np.array([one.ci_lb <= truly.beta <= one.ci_ub for one in got])
    cautioned = np.array([bool(one.doubts) for one in got])
    bias = float(np.mean([one.beta for one in got])) - truly.beta
    return {
        "real": truly.beta,
        "real_se": truly.se,
        "bias_own": bias / float(np.mean([one.se for one in got])),
        "bias_real": bias / truly.se,
        "held": float(held.mean()),
        "width": float(np.mean([(one.ci_ub - one.ci_lb) / (truly.ci_ub - truly.ci_lb) for one in got])),
        "I2": float(np.mean([one.I2 for one in got])),
        "I2_real": float(truly.I2),
        "right": float(held.sum()),
        "wrong": float((~held).sum()),
        "right_cautioned": float((held & cautioned).sum()),
        "wrong_cautioned": float((~held & cautioned).sum()),
        "missed": [not one for one in held],
        "signals": {name: [of(one) for one in got] for name, of in SIGNALS.items()},
    }


SIGNALS: Mapping[str, Callable[[PooledResult], float]] = {
    "doubt": lambda one: one.shared / one.se**2,
    "unlike": lambda one: one.QE / max(one.df, 1),
    "strong": lambda one: abs(one.zval),
}


def summary(cells: Sequence[dict[str, Any]], epsilon: float) -> dict[str, Any]:
    """What the bars are about: all terms of all cells at one ε, or of some."""
    rows = [term for one in cells for term in one.get("terms", ()) if term["epsilon"] == epsilon]
    if not rows:
        return {"terms": 0}

    def total(name: str) -> float:
        return float(sum(row[name] for row in rows))

    out: dict[str, float] = {"terms": len(rows), "held": 100 * float(np.mean([row["held"] for row in rows]))}
    for name in ("bias_own", "bias_real"):
        size = np.abs([row[name] for row in rows])
        out |= {f"{name}_median": float(np.median(size)), f"{name}_p95": float(np.quantile(size, 0.95))}
    out["width"] = float(np.median([row["width"] for row in rows]))
    out["I2_excess"] = float(np.mean([row["I2"] - row["I2_real"] for row in rows]))
    out |= sites_alone(rows) | laws_held(rows)
    for name in ("right", "wrong"):
        if total(name):
            out[f"{name}_cautioned"] = 100 * total(f"{name}_cautioned") / total(name)
    missed = [one for row in rows for one in row["missed"]]
    apart = {
        name: told_apart([one for row in rows for one in row["signals"][name]], missed)
        for name in SIGNALS
        if 0 < sum(missed) < len(missed)
    }
    rounded: dict[str, Any] = {key: round(value, 3) for key, value in out.items()}
    return rounded | {name: {k: round(v, 3) for k, v in found.items()} for name, found in apart.items()}


def summaries(cells: Sequence[dict[str, Any]], epsilons: Sequence[float]) -> dict[str, Any]:
    """Of all cells, and by outcome, world and n."""
    out: dict[str, Any] = {}
    for epsilon in epsilons:
        told = {"all": summary(cells, epsilon)}
        for key in ("kind", "world", "n"):
            for value in dict.fromkeys(one[key] for one in cells):
                told[f"{key}={value}"] = summary([one for one in cells if one[key] == value], epsilon)
        out[f"epsilon={epsilon:g}"] = told
    return out


KEPT = (
    "real",
    "real_se",
    "bias_own",
    "bias_real",
    "held",
    "width",
    "I2",
    "I2_real",
    "right_cautioned",
    "wrong_cautioned",
)
KEPT += ("site_held", "site_apart", "site_lost", "law_held", "law_held_real")


def brief(one: dict[str, Any]) -> dict[str, Any]:
    """A cell as it is kept: per term its figures, to three digits."""
    terms = {
        f"{row['term']}, epsilon={row['epsilon']:g}": " ".join(
            f"{name}={row[name]:.3g}" for name in KEPT if name in row
        )
        for row in one.get("terms", ())
    }
    return {key: value for key, value in one.items() if key != "terms"} | {"terms": terms}


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo_moments")
    parser.add_argument("--half", choices=("tuning", "reporting"), default="tuning")
    parser.add_argument("--worlds", type=listed(str), default=())
    parser.add_argument("--kinds", type=listed(str), default=KINDS)
    parser.add_argument("--n", type=listed(int), default=(2000,))
    parser.add_argument("--sites", type=int, default=12)
    parser.add_argument("--epsilon", type=listed(float), default=(1.0,))
    parser.add_argument("--some", type=int, help="two types of outcome of each world, which by this number")
    parser.add_argument("--mechanism", choices=MECHANISMS, default="moments")
    parser.add_argument("--declared", action="store_true", help="every coefficient has a score")
    parser.add_argument("--alone", action="store_true", help="each site by its own fit, as a site alone is answered")
    parser.add_argument("--largest", type=int, default=1, help="times as many patients at the first site of a law")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--seed", type=int, default=SEED, help="of patients and noise")
    parser.add_argument("--name", default="", help="writes tests/benchmarks/results/<name>.json")
    return parser


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cells of a command line, in order."""
    settings = (given.draws, given.mechanism, given.declared, given.alone, given.seed, given.largest)
    for name, kind, n in cells_of(given):
        yield cell(name, kind, n, given.sites, given.epsilon, *settings)


def main() -> None:
    given = options().parse_args()
    found = []
    for one in measured(given):
        found.append(one)
        seen = {f"{epsilon:g}": summary([one], epsilon) for epsilon in given.epsilon}
        print(one["world"], one["kind"], one["n"], one.get("refused", ""), json.dumps(seen), flush=True)
    told = summaries(found, given.epsilon)
    for epsilon, parts in told.items():
        print(epsilon, json.dumps({k: v for k, v in parts.items() if not k.startswith("world=")}, indent=1))
    if given.name:
        kept = ("half", "sites", "draws", "mechanism", "declared", "alone", "largest")
        results = {key: getattr(given, key) for key in kept}
        print(
            record.write(
                given.name, results | {"summaries": told, "cells": [brief(one) for one in found]}, seed=given.seed
            )
        )


if __name__ == "__main__":
    main()
