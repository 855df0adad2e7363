"""Rows of the zoo for what outside readers found false and no other row asks.

Each row is a sort of world and of question, by the mechanisms that were false there; of its two worlds one is for
trying, and the other is reported (`worlds.apart`). Sites are answered as the product answers them: together where a
mechanism does so, else each by itself, with what a plan's outcomes are said beside released rows. Answers of few sites
are from the first of the many. Each draw has fresh patients. What is held against the records' own pooled answer is of
`tests.benchmarks.zoo_moments` (held, width, bias_own, right_cautioned, …), means or sums over the draws, and beside it:

* answered: of how many draws there is a pooled answer; refused: what was said where some site has none;
* distance: of how many answers a distance to the records is told; told: of how many of these it holds; between: by how
  many a caution says that the flow alone draws what is asked.

python -m tests.benchmarks.zoo_apart ROW [--half tuning|reporting] [--mechanisms a,b] [--n 300,1000] [--sites 4,12]
    [--draws 4] [--name zoo_apart_ROW]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd

from coordinator.answers.record_gap import unknown_gap
from coordinator.pooling.gaps import pooled_gap
from coordinator.pooling.intervals import BETWEEN, Draw, with_release_variance
from coordinator.pooling.pool import PooledResult
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, Refusal
from shared.estimands.answer import Estimand, Estimate, Origin, estimate, parse_estimand
from shared.mechanisms.base import Aggregates
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.plans.encoding import Encoder
from shared.plans.outcomes import drawn_last
from shared.plans.plan import StudyPlan, Training
from site_agent.release.fitting import fit
from tests.benchmarks import record, worlds, zoo, zoo_moments
from tests.benchmarks.zoo import SEED, listed, seed_of
from tests.benchmarks.zoo_moments import held_against, pooled

LATENT, PLANNED = "latent_noise", "planned"
W = 0.8
MANY = record.sized((4, 12, 48), (2,))
FOUR, TWELVE = record.sized((4, 12), (2,)), record.sized((12,), (2,))
TRAINING = Training(outcomes="last")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is asked of one sort of world.

    Args:
        worlds: half to its world. asked: half to its questions; "planned" is the plan's own.
        kinds: types of the planned outcome.
        mechanisms: to the ε of a release, or of latent noise w.
        n, sites, draws: sizes, of a full run.
    """

    worlds: Mapping[str, str]
    asked: Mapping[str, Sequence[str]]
    kinds: Sequence[str]
    mechanisms: Mapping[str, Sequence[float]]
    n: Sequence[int]
    sites: Sequence[int]
    draws: int


def _worlds(tuning: str, reporting: str) -> dict[str, str]:
    return {"tuning": tuning, "reporting": reporting}


def _both(*questions: str) -> dict[str, Sequence[str]]:
    return {"tuning": questions, "reporting": questions}


ROWS = {
    "means": Row(
        worlds=_worlds("costly_care", "care_costs"),
        asked={
            "tuning": (
                *("mean(cost)", "mean(stay)", "mean(crp)"),
                *("proportion(icu)", 'proportion(ward == "a")', 'proportion(ward == "d")'),
            ),
            "reporting": (
                *("mean(bill)", "mean(ferritin)", "mean(visits)"),
                *("proportion(smoker)", "proportion(readmitted)"),
                *('proportion(region == "a")', 'proportion(region == "d")', 'proportion(region == "e")'),
            ),
        },
        kinds=("linear",),
        mechanisms={"slicing": (3.0,)},
        n=(300, 1000),
        sites=MANY,
        draws=12,
    ),
    "centres": Row(
        worlds=_worlds("lying_apart", "own_centres"),
        asked=_both(PLANNED),
        kinds=("linear", "binary"),
        mechanisms={
            "slicing": (3.0,),
            "moments": (1.0, 3.0),
            "tables": (1.0, 3.0),
            "cross_products": (1.0, 3.0),
            LATENT: (W,),
        },
        n=(1000,),
        sites=FOUR,
        draws=12,
    ),
    "bounds": Row(
        worlds=_worlds("far_bounds", "wide_bounds"),
        asked=_both(PLANNED),
        kinds=("linear", "binary"),
        mechanisms={"slicing": (3.0,), "moments": (1.0, 3.0), "tables": (1.0, 3.0), "cross_products": (1.0, 3.0)},
        n=(1000,),
        sites=FOUR,
        draws=12,
    ),
    "covariates": Row(
        worlds=_worlds("married_years", "body_measures"),
        asked={
            "tuning": (
                PLANNED,
                "ols(married) ~ age/10",
                "correlation(age, married)",
                "mean(age, subset = married > 20)",
            ),
            "reporting": (
                PLANNED,
                "ols(waist) ~ weight/10 + age/10",
                "ols(smoked) ~ age/10",
                "correlation(weight, waist)",
                "mean(waist, subset = male == 1)",
                "logistic(male) ~ weight/10",
            ),
        },
        kinds=("binary",),
        mechanisms={LATENT: (W,)},
        n=(300, 1000),
        sites=TWELVE,
        draws=12,
    ),
    "heaps": Row(
        worlds=_worlds("years_of_school", "schooling"),
        asked=_both("mean(school)", PLANNED),
        kinds=("linear", "binary"),
        mechanisms={"moments": (1.0, 3.0)},
        n=(1000, 3000),
        sites=TWELVE,
        draws=10,
    ),
    "levels": Row(
        worlds=_worlds("named_levels", "stage_ward"),
        asked={
            "tuning": (PLANNED, 'proportion(clinic == "e")', "ols(age) ~ C(grade)"),
            "reporting": (
                PLANNED,
                'proportion(stage == "c")',
                'proportion(ward == "a")',
                'proportion(ward == "e")',
                "ols(age) ~ C(stage)",
            ),
        },
        kinds=("linear", "binary"),
        mechanisms={"moments": (1.0, 3.0)},
        n=(1000, 3000),
        sites=TWELVE,
        draws=6,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A world at one n: its plan's questions, and fresh patients of each site.

    Args:
        world, kind, n, draw: of the cell. tables: the sites' records.
    """

    world: worlds.HardWorld
    kind: str
    n: int
    draw: int
    tables: Sequence[pd.DataFrame]

    @classmethod
    def of(cls, world: worlds.HardWorld, kind: str, n: int, draw: int, sites: int) -> Study:
        """With so many sites."""
        rngs = [np.random.default_rng(seed_of("apart", world.name, n, draw, site)) for site in range(sites)]
        tables = [world(n, rng, site) for site, rng in enumerate(rngs)]
        return cls(world=world, kind=kind, n=n, draw=draw, tables=tables)

    @property
    def levels(self) -> dict[str, Sequence[Any]]:
        """Levels of each column that has some."""
        return {column.name: column.levels for column in self.world.dictionary(self.kind).columns if column.levels}

    def parsed(self, question: str) -> Estimand:
        """A question; the planned one by that name."""
        return parse_estimand(self.world.question(self.kind) if question == PLANNED else question)

    def seed(self, *parts: Any) -> int:
        """Of a part of the noise."""
        return seed_of("apart", self.world.name, self.kind, self.n, self.draw, *parts)

    def real(self, question: Estimand) -> list[list[Estimate]]:
        """The records' own answers, by site."""
        return [estimate(table, question, levels=self.levels, **_origin(k)) for k, table in enumerate(self.tables)]


def _origin(site: int) -> Origin:
    return {"study": "zoo", "site": f"s{site}", "wave": 1}


class Figures:
    """Figures of every site, by which a number of the first sites are answered.

    Attributes:
        why: what was refused last; blank for nothing.
    """

    def __init__(self, study: Study, mechanism: str, epsilon: float) -> None:
        self.study, self.plan = study, _plan(study, mechanism, epsilon)
        release, self.why = cast(Aggregates, self.plan.release), ""
        self.figures = {}
        for site, table in enumerate(study.tables):
            checked = self.plan.dictionary.check(table[list(self.plan.dictionary.names)])
            rng = seeded_rng(study.seed(mechanism, epsilon, site))
            self.figures[f"s{site}"] = [(release.draw(self.plan, checked, rng), len(table))]

    def answers(self, question: Estimand, sites: int) -> list[Estimate]:
        """As `coordinator.answers.site_answers` has them of sites under one plan."""
        release, found = cast(Any, self.plan.release), dict[str, list[Estimate]]()
        origins = {f"s{site}": _origin(site) for site in range(sites)}
        given, self.why = {name: self.figures[name] for name in origins}, ""
        try:
            found |= release.together(self.plan, given, question, origins=origins)
        except EstimateRefusal as refusal:
            self.why = str(refusal)
            return []
        except Refusal as refusal:  # each answers for itself
            self.why = str(refusal)
        for name in sorted(origins.keys() - found.keys()):
            try:
                one = release.answer(self.plan, given[name], question, levels=self.study.levels, **origins[name])
            except Refusal as refusal:
                self.why, one = str(refusal), []
            found[name] = one
        rows = [row for name in origins for row in found[name]]
        self.why = next((row.reason for row in rows if row.yi is None), self.why)
        return rows


def _plan(study: Study, mechanism: str, epsilon: float) -> StudyPlan:
    """The zoo's plan of figures; every coefficient is declared, and scales are those of all hospitals together."""
    plan = zoo_moments.plan_of(study.world, study.kind, epsilon, mechanism, declared=True, n=study.n)
    if not isinstance(plan.release, CrossProductsPlan):
        return plan
    return replace(plan, release=replace(plan.release, typical=_typical(study.world.name, len(study.tables))))


@lru_cache
def _typical(name: str, sites: int) -> dict[str, tuple[float, float]]:
    """Centre and scale of each number of a world's, of other patients of all sites together."""
    world = worlds.world(name)
    rngs = [np.random.default_rng(seed_of("published", name, site)) for site in range(sites)]
    others = pd.concat([world(zoo.LAW // sites, rng, site) for site, rng in enumerate(rngs)])
    numbers = [column.name for column in world.dictionary("linear").columns if not column.levels]
    return {name: (float(others[name].mean()), float(others[name].std())) for name in numbers}


class Rows:
    """Rows of every site through its own flow.

    Attributes:
        why: what was refused last; blank for nothing.
    """

    def __init__(self, study: Study, w: float) -> None:
        plan = zoo.plan_of(study.world, study.kind, w, TRAINING)
        self.study, self.w, self.last, self.why = study, w, drawn_last(plan), ""
        encoder, self.rows = Encoder(dictionary=plan.dictionary), []
        for site, table in enumerate(study.tables):
            rng = seeded_rng(study.seed(LATENT, site))
            x = encoder.encode(encoder.dictionary.check(table[list(encoder.dictionary.names)]), rng)
            mechanism = fit(plan, encoder, x, None, rng).mechanism
            self.rows.append(encoder.decode(mechanism.release(x, rng)))

    def answers(self, question: Estimand, sites: int) -> list[Estimate]:
        """As `coordinator.answers.site_answers` has them of one release a site, posture `local`."""
        out, levels, self.why = [], self.study.levels, ""
        for site, rows in enumerate(self.rows[:sites]):
            drawn = [Draw(rows=len(rows), w=self.w, fitted_on=len(rows), outcomes_last=True, last=self.last)]
            try:
                found = estimate(rows, question, levels=levels, **_origin(site))
            except Refusal as refusal:
                self.why, found = str(refusal), []
            out += with_release_variance(found, rows, question, drawn, levels=levels, postures=("local",))
        return out


Asked = tuple[str, float, str, int]
"""Mechanism, its ε or w, the question, and the number of sites."""
Found = dict[str, list[dict[str, Any]]]
"""Term to what each draw says of it."""


def once(
    study: Study, mechanisms: Mapping[str, Sequence[float]], questions: Sequence[str], sizes: Sequence[int]
) -> Iterator[tuple[Asked, Found, str]]:
    """One draw: what is asked, what is found, and what was refused."""
    real = {text: study.real(study.parsed(text)) for text in questions}
    for mechanism, levels in mechanisms.items():
        for at in levels:
            released = Rows(study, at) if mechanism == LATENT else Figures(study, mechanism, at)
            for text in questions:
                for k in sizes:
                    question = study.parsed(text)
                    rows = released.answers(question, k)
                    truly = [row for site in real[text][:k] for row in site]
                    yield (mechanism, at, text, k), _terms(question, rows, truly, mechanism == LATENT), released.why


def _terms(question: Estimand, rows: Sequence[Estimate], real: Sequence[Estimate], by_rows: bool) -> Found:
    """Each term that the records have an answer of, and what one draw's pool says of it; nothing of one without."""
    out: Found = {}
    for term in dict.fromkeys(row.term for row in real):
        if (truly := pooled(real, term)) is not None:
            one = pooled(rows, term)
            beside = _distance(question, one, truly) if one is not None and by_rows else {}
            out[term] = [] if one is None else [{**held_against([one], truly), **beside}]
    return out


def _distance(question: Estimand, one: PooledResult, truly: PooledResult) -> dict[str, float]:
    """Whether a distance to the records is told, and holds; whether it is said that the flow alone draws this."""
    gap = None if _untold(question, one) else pooled_gap(one, dict.fromkeys(row.site for row in one.estimates))
    within = gap is not None and abs(one.beta - truly.beta) <= gap.interval[1]
    between = any(BETWEEN in said for said in one.doubts)
    return {"distance": float(gap is not None), "told": float(within), "between": float(between)}


def _untold(question: Estimand, one: PooledResult) -> str:
    """Why no distance is told, as the coordinator has it of one release a site, posture `local`, outcomes last."""
    parts = {}
    for row in one.estimates:
        said = {"mechanism": LATENT, "posture": "local", "parameters": {"outcomes_last": 1.0}, "n": row.n}
        parts[row.site] = [SimpleNamespace(receipt=SimpleNamespace(**said))]
    return unknown_gap(cast(Any, SimpleNamespace(parts=parts)), (), question, one)


MEANS = ("real", "real_se", "bias_own", "bias_real", "held", "width", "I2", "I2_real")
SUMS = ("right_cautioned", "wrong_cautioned", "distance", "told", "between")


def brief(draws: Sequence[Found]) -> dict[str, str]:
    """Term to its figures over all draws, to three digits."""
    out = {}
    for term in dict.fromkeys(term for found in draws for term in found):
        each = [one for found in draws for one in found.get(term, [])]
        told: dict[str, float] = {"draws": sum(term in found for found in draws), "answered": len(each)}
        if each:
            told |= {name: float(np.mean([one[name] for one in each])) for name in MEANS}
            told |= {name: sum(one[name] for one in each) for name in SUMS if name in each[0]}
        out[term] = " ".join(f"{name}={value:.3g}" for name, value in told.items())
    return out


def measured(row: Row, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cells of a command line, in order."""
    world, questions = worlds.world(row.worlds[given.half]), row.asked[given.half]
    sizes, draws = given.sites or row.sites, given.draws or record.sized(row.draws, 1)
    for kind in record.sized(row.kinds, row.kinds[:1]):
        # A model of products is of a measurement.
        able = {
            name: record.sized(levels, levels[:1])
            for name, levels in row.mechanisms.items()
            if (not given.mechanisms or name in given.mechanisms) and (name, kind) != ("cross_products", "binary")
        }
        for n in given.n or record.sized(row.n, (300,)):
            found: dict[Asked, list[Found]] = {}
            why: dict[Asked, str] = {}
            for draw in range(draws):
                study = Study.of(world, kind, n, draw, max(sizes))
                for place, terms, refused in once(study, able, questions, sizes):
                    found.setdefault(place, []).append(terms)
                    why[place] = refused or why.get(place, "")
            for place, several in found.items():
                mechanism, at, text, k = place
                one = {"mechanism": mechanism, "at": at, "world": world.name, "kind": kind, "n": n, "sites": k}
                one |= {"asked": text, "question": str(study.parsed(text)), "terms": brief(several)}
                yield one | ({"refused": why[place][:200]} if why[place] else {})


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.zoo_apart")
    parser.add_argument("row", choices=(*ROWS,))
    parser.add_argument("--half", choices=("tuning", "reporting"), default="tuning")
    parser.add_argument("--mechanisms", type=listed(str), default=())
    parser.add_argument("--n", type=listed(int), default=())
    parser.add_argument("--sites", type=listed(int), default=())
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--name", default="", help="writes tests/benchmarks/results/<name>.json")
    return parser


def main() -> None:
    """Measure a row."""
    given = options().parse_args()
    row, found, began = ROWS[given.row], [], time.process_time()
    for one in measured(row, given):
        found.append(one)
        where = [f"{one[key]}" for key in ("mechanism", "at", "kind", "n", "sites", "asked")]
        print(f"{time.process_time() - began:.0f} s", *where, one.get("refused", ""), flush=True)
        print(json.dumps(one["terms"], indent=1), flush=True)
    if given.name:
        draws = given.draws or record.sized(row.draws, 1)
        results = {"row": given.row, "half": given.half, "draws": draws, "cells": found}
        print(record.write(given.name, results, seed=SEED))


if __name__ == "__main__":
    main()
