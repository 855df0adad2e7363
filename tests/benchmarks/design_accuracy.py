"""How true the half-widths are that `coordinator plan design` predicts: predicted against achieved, design by design.

A design is a type of outcome, n, K and a mechanism on one hard world. What is published of the world comes from other
patients of it: means, SDs and shares to three digits, effects to one digit, correlations to a tenth, the spread of the
effect between sites to one digit. The prediction sees nothing else (`coordinator.planning.predicted`). What is achieved
is the median half-width of the pooled interval over studies of K of the world's sites, released from the world's own
records and pooled by the product; latent noise through flows that the sites fit.

python -m tests.benchmarks.design_accuracy [--half tuning|reporting] [--n 600,1500] [--jobs 1] [--name design_accuracy]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.planning.predicted import Setting, half_width, plan_of, simulated
from coordinator.planning.published import Published, PublishedMargin
from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import Refusal
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.plans.dictionary import NUMERIC, Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import StudyPlan, Training
from site_agent.release.fitting import fit
from tests.benchmarks import record, worlds
from tests.benchmarks.worlds.laws import WORLDS
from tests.benchmarks.zoo import listed, seed_of
from tests.benchmarks.zoo import plan_of as world_plan

SEED = 20261207
PILOT, PILOT_SITES = 2000, 6
KINDS = ("binary", "count", "linear", "survival")
SETTINGS = {"latent_noise_local": 2.0, "tables": 4.0, "latent_noise_holdout": 2.0, "moments": 3.0}
K = (5, 10)
PREDICTED = 4
"""Sites that a prediction makes up."""
TERM = "arm"
WITHIN = 0.15
SITES, STUDIES = 12, 200
"""Sites of a world that release, and studies of K of them: one study of few sites says little of the next one."""


def rounded(value: float, digits: int) -> float:
    """To so many significant digits, as a paper prints it."""
    return float(f"{value:.{digits}g}")


def published_of(world: worlds.HardWorld, kind: str, dictionary: Dictionary) -> Published:
    """What is published of a world: of other patients than any study has."""
    question = parse_estimand(world.question(kind))
    levels = {c.name: c.levels for c in dictionary.columns if c.levels}
    tables = [
        world(PILOT, np.random.default_rng(seed_of("pilot", world.name, s, seed=SEED)), s) for s in range(PILOT_SITES)
    ]
    margins = {}
    for name in question.columns:
        column, values = dictionary.column(name), [table[name] for table in tables]
        if column.kind in NUMERIC:
            mean = float(np.mean([v.mean() for v in values]))
            sd = float(np.mean([v.std() for v in values]))
            margins[name] = PublishedMargin(mean=rounded(mean, 3), sd=0.0 if column.kind == "time" else rounded(sd, 3))
        else:
            shares = [float(np.mean([(v == level).mean() for v in values])) for level in column.levels]
            shares = [max(rounded(share, 3), 0.001) for share in shares]
            margins[name] = PublishedMargin(shares=tuple(share / sum(shares) for share in shares))
    fits = [
        {
            r.term: r.yi
            for r in estimate(table, question, study="z", site="s", wave=1, levels=levels)
            if r.yi is not None
        }
        for table in tables
    ]
    terms = [term for term in fits[0] if all(term in one for one in fits)]
    effects = {term: rounded(float(np.mean([one[term] for one in fits])), 1) for term in terms}
    own = [r for r in estimate(tables[0], question, study="z", site="s", wave=1, levels=levels) if r.term == TERM]
    spread = float(np.var([one[TERM] for one in fits], ddof=1)) - (own[0].vi or 0.0)
    numbers = [name for name in question.columns if name not in (question.outcome, question.duration, question.event)]
    numbers = [
        name for name in numbers if dictionary.column(name).kind in NUMERIC or len(dictionary.column(name).levels) == 2
    ]
    ranks = np.mean([table[numbers].rank().corr().to_numpy() for table in tables], axis=0)
    pairs = {
        (numbers[i], numbers[j]): round(float(ranks[i, j]), 1)
        for i, j in itertools.combinations(range(len(numbers)), 2)
        if abs(round(float(ranks[i, j]), 1)) > 0
    }
    return Published(columns=margins, effects=effects, correlations=pairs, between=rounded(max(spread, 0.0) ** 0.5, 1))


def site_estimates(world: worlds.HardWorld, plan: StudyPlan, setting: Setting, kind: str, n: int) -> list[Estimate]:
    """The answer of each of `SITES` sites, from its own records' release; figures are read together.

    Raises: Refusal.
    """
    question = parse_estimand(world.question(kind))
    changed = plan_of(plan, setting, {"planned": world.question(kind)})
    dictionary = changed.dictionary
    levels = {c.name: c.levels for c in dictionary.columns if c.levels}
    rows: list[Estimate] = []
    figures: dict[str, Any] = {}
    for site in range(SITES):
        table = world(n, np.random.default_rng(seed_of("study", world.name, n, site, seed=SEED)), site)
        table = table.assign(person=[f"{row}" for row in range(n)])
        records = dictionary.check(table[[c.name for c in dictionary.columns]])
        noise = seeded_rng(seed_of(world.name, kind, setting.name, site, seed=SEED))
        if not setting.name.startswith("latent_noise"):
            release: Any = changed.release
            figures[f"s{site}"] = [(release.draw(changed, release.measure(changed, records, noise), noise), n)]
            continue
        encoder = Encoder(dictionary=dictionary)
        x = encoder.encode(records, noise)
        persons = [f"{site}-{row}" for row in range(n)] if changed.posture == "holdout" else None
        fitted = fit(changed, encoder, x, persons, noise)
        out = encoder.decode(fitted.mechanism.release(x[fitted.released], noise))
        found = estimate(out, question, study="z", site=f"s{site}", wave=1, levels=levels)
        apart = changed.posture == "holdout"
        on = n - len(out) if apart else n
        draw = Draw(rows=len(out), w=fitted.mechanism.w, fitted_on=on, among=not apart)
        rows += with_release_variance(found, out, question, [draw], levels=levels, postures=(changed.posture,))
    if figures:
        origins = {site: {"study": "z", "site": site, "wave": 1, "receipts": ()} for site in figures}
        answer = changed.release.together(changed, figures, question, origins=origins)  # type: ignore[attr-defined]
        rows = [row for site in figures for row in answer[site]]
    return [row for row in rows if row.term == TERM]


def achieved(rows: Sequence[Estimate], sites: int) -> list[float]:
    """Half-widths of the pooled intervals of studies of K of the sites, drawn by lot."""
    rng = np.random.default_rng(SEED)
    halves = []
    for _ in range(STUDIES):
        chosen = rng.choice(len(rows), sites, replace=False)
        result = pool_estimates([rows[k] for k in chosen])
        halves.append((result.ci_ub - result.ci_lb) / 2)
    return halves


def cell(name: str, kind: str, n: int, setting: Setting) -> list[dict[str, Any]]:
    """Designs of one world, outcome, n and mechanism, for each K: predicted and achieved."""
    world = WORLDS[name]
    person = Column(name="person", kind="person")
    plan = world_plan(world, kind, 0.5, Training())
    plan = replace(plan, dictionary=replace(plan.dictionary, columns=(person, *plan.dictionary.columns)))
    said = {"world": name, "kind": kind, "n": n, "mechanism": setting.name, "epsilon": setting.epsilon}
    began = time.process_time()
    published = published_of(world, kind, world.dictionary(kind))
    questions = {"planned": world.question(kind)}
    found = simulated(plan, setting, questions, published, n=n, sites=PREDICTED, seed=SEED).get(f"planned: {TERM}")
    if found is None or found.lost:
        return [said | {"sites": k, "refused": (found.lost if found else "no answer")[:160]} for k in K]
    variance, common = found.at(n)
    middle = time.process_time()
    try:
        rows = site_estimates(world, plan, setting, kind, n)
    except Refusal as refusal:
        return [said | {"sites": k, "refused_achieved": str(refusal)[:160]} for k in K]
    seconds = [round(middle - began, 1), round(time.process_time() - middle, 1)]
    out = []
    for sites in K:
        told = half_width(variance, common, sites=sites, between=published.between, unlike=found.unlike)
        halves = achieved(rows, sites)
        out.append(
            said
            | {
                "sites": sites,
                "predicted": round(told, 4),
                "achieved": round(float(np.median(halves)), 4),
                "of_single_within": round(float(np.mean([abs(told / half - 1) <= WITHIN for half in halves])), 3),
                "ratio": round(told / float(np.median(halves)), 3),
                "variance": [variance, float(np.mean([row.vi or 0.0 for row in rows])), published.between],
                "seconds": seconds,
            }
        )
    return out


def _cell(asked: tuple[str, str, int, Setting]) -> list[dict[str, Any]]:
    return cell(*asked)


def cells(half: str, sizes: Sequence[int]) -> Iterator[tuple[str, str, int, Setting]]:
    """Every type of outcome, n and mechanism, worlds in turn."""
    names = [name for name, world in WORLDS.items() if world.tunes == (half == "tuning")]
    turn = itertools.cycle(names)
    for n in sizes:
        for name, epsilon in SETTINGS.items():
            for kind in KINDS:
                yield next(turn), kind, n, Setting(name=name, epsilon=epsilon)


def summary(found: list[dict[str, Any]]) -> Mapping[str, Any]:
    """Share of designs within 15 %, of all and by what they differ in."""

    def of(rows: list[dict[str, Any]]) -> dict[str, float]:
        ratios = [row["ratio"] for row in rows if "ratio" in row]
        near = [abs(ratio - 1) <= WITHIN for ratio in ratios]
        each = [row["of_single_within"] for row in rows if "ratio" in row]
        return {
            "designs": len(ratios),
            "within": 100 * float(np.mean(near)) if near else 0.0,
            "within_single": 100 * float(np.mean(each)) if each else 0.0,
            "ratio_median": float(np.median(ratios)) if ratios else 0.0,
            "ratio_least": min(ratios, default=0.0),
            "ratio_most": max(ratios, default=0.0),
            "refused": sum("refused" in row for row in rows),
            "refused_achieved": sum("refused_achieved" in row for row in rows),
        }

    out: dict[str, Any] = {"all": of(found)}
    for key in ("kind", "mechanism", "n", "sites"):
        for value in dict.fromkeys(row[key] for row in found):
            out[f"{key}={value}"] = of([row for row in found if row[key] == value])
    return out


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m tests.benchmarks.design_accuracy")
    asked.add_argument("--half", choices=("tuning", "reporting"), default="tuning")
    asked.add_argument("--n", type=listed(int), default=(600, 1500))
    asked.add_argument("--jobs", type=int, default=1, help="processes")
    asked.add_argument("--name", default="", help="writes tests/benchmarks/results/<name>.json")
    given = asked.parse_args()
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for several in pool.map(_cell, cells(given.half, given.n)):
            found += several
            print(several, flush=True)
    told = summary(found)
    print(told)
    if given.name:
        results = {"half": given.half, "summary": told, "designs": found}
        print(record.write(given.name, results, seed=SEED))


if __name__ == "__main__":
    main()
