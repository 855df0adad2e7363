"""How true the half-widths are that `coordinator plan design` predicts: predicted against achieved, design by design.

A design is a type of outcome, n, K and a mechanism on one hard world. What is published of the world comes from other
patients of it: means, SDs, shares and shares missing to three digits, effects to one digit, correlations to a tenth,
the spread of the effect between sites to one digit. The prediction sees nothing else
(`coordinator.planning.predicted`). What is achieved is the median half-width of the pooled interval over studies of K
of the world's sites, released from the world's own records and pooled by the product; latent noise through flows that
the sites fit; figures read K sites at a time.

That median is itself an estimate, from so many sites as release. How often chance alone takes it 15 % away from the
median of endless sites is simulated (`attainable`): more than that no prediction can count on.

What a prediction could not know is told beside: `law` makes up no tables but takes other patients of the world's own
sites, `spread` takes the spread of the effect that all sites pooled say, not the published one.

python -m tests.benchmarks.design_accuracy [--half tuning|reporting] [--seed 20261207] [--n 600,1500] [--jobs 1]
    [--name design_accuracy]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from coordinator.planning.design import MORE_SITES
from coordinator.planning.predicted import Setting, found_on, half_width, plan_of, simulated
from coordinator.planning.published import Published, PublishedMargin
from coordinator.pooling.further.many import pool_many
from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import Refusal
from shared.estimands.answer import Estimand, Estimate, estimate, parse_estimand
from shared.plans.dictionary import NUMERIC, Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import StudyPlan, Training
from site_agent.release.fitting import fit
from tests.benchmarks import record, worlds
from tests.benchmarks.worlds.laws import WORLDS
from tests.benchmarks.zoo import listed, seed_of
from tests.benchmarks.zoo import plan_of as world_plan

SEED = 20261207
PILOT, PILOT_SITES = record.sized((2000, 6), (300, 2))
KINDS = record.sized(("binary", "count", "linear", "survival"), ("binary",))
SETTINGS = {"latent_noise_local": 2.0, "tables": 4.0, "latent_noise_holdout": 2.0, "moments": 3.0}
K = record.sized((5, 10), (2,))
TERM = "arm"
WITHIN = 0.15
SITES, STUDIES = record.sized((60, 200), (4, 2))
"""Sites of a world that release, and studies of K of them: one study of few sites says little of the next one."""
FEW = 12
"""Sites that released before 60 did; what can be attained with them is told beside."""
RUNS = record.sized(40, 2)


def rounded(value: float, digits: int) -> float:
    """To so many significant digits, as a paper prints it."""
    return float(f"{value:.{digits}g}")


def published_of(world: worlds.HardWorld, kind: str, dictionary: Dictionary, *, seed: int = SEED) -> Published:
    """What is published of a world: of other patients than any study has."""
    question = parse_estimand(world.question(kind))
    levels = {c.name: c.levels for c in dictionary.columns if c.levels}
    tables = [
        world(PILOT, np.random.default_rng(seed_of("pilot", world.name, s, seed=seed)), s) for s in range(PILOT_SITES)
    ]
    margins = {}
    for name in question.columns:
        column = dictionary.column(name)
        missing = rounded(float(np.mean([table[name].isna().mean() for table in tables])), 3)
        values = [table[name].dropna() for table in tables]
        if column.kind in NUMERIC:
            mean = float(np.mean([v.mean() for v in values]))
            sd = float(np.mean([v.std() for v in values]))
            margins[name] = PublishedMargin(
                mean=rounded(mean, 3), sd=0.0 if column.kind == "time" else rounded(sd, 3), missing=missing
            )
        else:
            shares = [float(np.mean([(v == level).mean() for v in values])) for level in column.levels]
            shares = [max(rounded(share, 3), 0.001) for share in shares]
            margins[name] = PublishedMargin(shares=tuple(share / sum(shares) for share in shares), missing=missing)
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


def site_estimates(
    world: worlds.HardWorld,
    plan: StudyPlan,
    setting: Setting,
    kind: str,
    n: int,
    *,
    sites: int,
    sizes: Sequence[int],
    seed: int = SEED,
) -> dict[int, list[Estimate]]:
    """Of each size of a study the answer of every site, from its own records' release.

    Args:
        sites: that release. sizes: figures are read so many sites together; rows alone, whatever the size.
    Raises: Refusal.
    """
    question = parse_estimand(world.question(kind))
    changed = plan_of(plan, setting, {"planned": world.question(kind)})
    dictionary = changed.dictionary
    levels = {c.name: c.levels for c in dictionary.columns if c.levels}
    rows: list[Estimate] = []
    figures: dict[str, Any] = {}
    for site in range(sites):
        table = world(n, np.random.default_rng(seed_of("study", world.name, n, site, seed=seed)), site)
        table = table.assign(person=[f"{row}" for row in range(n)])
        records = dictionary.check(table[[c.name for c in dictionary.columns]])
        noise = seeded_rng(seed_of(world.name, kind, setting.name, site, seed=seed))
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
    read = {size: _read(changed, figures, question, size) if figures else rows for size in sizes}
    return {size: [row for row in several if row.term == TERM] for size, several in read.items()}


def _read(plan: StudyPlan, figures: Mapping[str, Any], question: Estimand, size: int) -> list[Estimate]:
    """Sites' figures, so many read together as a study of that size reads them."""
    levels = {c.name: c.levels for c in plan.dictionary.columns if c.levels}
    release: Any = plan.release
    rows: list[Estimate] = []
    for first in range(0, len(figures) - size + 1, size):
        group = {site: figures[site] for site in list(figures)[first : first + size]}
        origins = {site: {"study": "z", "site": site, "wave": 1, "receipts": ()} for site in group}
        found = release.together(plan, group, question, origins=origins)
        for site, tables in group.items():
            alone = {"levels": levels, **origins[site]}
            rows += found.get(site) or release.answer(plan, tables, question, **alone)
    return rows


def achieved(rows: Sequence[Estimate], sites: int, seed: int = SEED) -> list[float]:
    """Half-widths of the pooled intervals of studies of K of the sites, drawn by lot."""
    rng = np.random.default_rng(seed)
    halves = []
    for _ in range(STUDIES):
        chosen = rng.choice(len(rows), sites, replace=False)
        result = pool_estimates([rows[k] for k in chosen])
        halves.append((result.ci_ub - result.ci_lb) / 2)
    return halves


def attainable(rows: Sequence[Estimate], sites: int, released: int, seed: int = SEED) -> float:
    """Share of runs of this benchmark, of so many sites, in which the true median is within 15 % of the achieved one.

    Sites have the variances that were found, and true effects as far apart as all of them pooled say.
    """
    rng = np.random.default_rng(seed)
    have = [row for row in rows if row.yi is not None]
    vi = rng.choice(np.array([row.vi for row in have]), (RUNS, released))
    yi = np.sqrt(vi + pool_estimates(have).tau2) * rng.standard_normal((RUNS, released))
    chosen = np.array([[rng.choice(released, sites, replace=False) for _ in range(STUDIES)] for _ in range(RUNS)])
    run = np.arange(RUNS)[:, None, None]
    halves = _halves(yi[run, chosen], vi[run, chosen])
    # Every study of sites of its own: the median of endless sites, near enough.
    free = rng.choice(vi.ravel(), (RUNS * STUDIES, sites))
    spread = np.sqrt(free + pool_estimates(have).tau2) * rng.standard_normal(free.shape)
    truth = float(np.median(_halves(spread, free)))
    return float(np.mean(np.abs(truth / np.median(halves, axis=1) - 1) <= WITHIN))


def _halves(yi: Any, vi: Any) -> Any:
    """Half-widths of many pooled intervals; the last axis is the sites of one."""
    found = pool_many(yi.reshape(-1, yi.shape[-1]), vi.reshape(-1, yi.shape[-1]))
    return (found.ci_ub - found.beta).reshape(yi.shape[:-1])


def cell(name: str, kind: str, n: int, setting: Setting, seed: int = SEED) -> list[dict[str, Any]]:
    """Designs of one world, outcome, n and mechanism, for each K: predicted and achieved."""
    world = WORLDS[name]
    person = Column(name="person", kind="person")
    plan = world_plan(world, kind, 0.5, Training())
    plan = replace(plan, dictionary=replace(plan.dictionary, columns=(person, *plan.dictionary.columns)))
    said = {"world": name, "kind": kind, "n": n, "mechanism": setting.name, "epsilon": setting.epsilon}
    published = published_of(world, kind, world.dictionary(kind), seed=seed)
    questions = {"planned": world.question(kind)}
    label = f"planned: {TERM}"
    began = time.process_time()
    made = {}
    for k in K:
        found = simulated(plan, setting, questions, published, n=n, sites=min(MORE_SITES, k), seed=seed)
        made[k] = found.get(label)
    lost = [(one.lost if one else "no answer")[:160] for one in made.values() if one is None or one.lost]
    if lost:
        return [said | {"sites": k, "refused": lost[0]} for k in K]
    middle = time.process_time()
    try:
        rows = site_estimates(world, plan, setting, kind, n, sites=SITES, sizes=K, seed=seed)
    except Refusal as refusal:
        return [said | {"sites": k, "refused_achieved": str(refusal)[:160]} for k in K]
    seconds = [round(middle - began, 1), round(time.process_time() - middle, 1)]
    out = []
    for sites, one in made.items():
        assert one is not None
        variance, common = one.at(n)
        told = half_width(variance, common, sites=sites, between=published.between, unlike=one.unlike)
        halves = achieved(rows[sites], sites, seed)
        middling = float(np.median(halves))
        tau = pool_estimates(rows[sites]).tau2 ** 0.5
        law = found_on(_others(world, kind, n, min(MORE_SITES, sites), seed), plan, setting, questions, seed=seed)
        known = law.get(label, one)
        at, alike = known.at(n)
        ratios = {
            "spread": half_width(variance, common, sites=sites, between=tau, unlike=one.unlike) / middling,
            "law": half_width(at, alike, sites=sites, between=published.between, unlike=known.unlike) / middling,
            "law_spread": half_width(at, alike, sites=sites, between=tau, unlike=known.unlike) / middling,
        }
        out.append(
            said
            | {
                "sites": sites,
                "predicted": round(told, 4),
                "achieved": round(middling, 4),
                "of_single_within": round(float(np.mean([abs(told / half - 1) <= WITHIN for half in halves])), 3),
                "ratio": round(told / middling, 3),
                "ratio_knowing": {name: round(value, 3) for name, value in ratios.items()},
                "variance": [variance, float(np.mean([row.vi or 0.0 for row in rows[sites]]))],
                "between": [published.between, tau],
                "attainable": attainable(rows[sites], sites, SITES, seed),
                "attainable_few": attainable(rows[sites], sites, FEW, seed),
                "seconds": seconds,
            }
        )
    return out


def _others(world: worlds.HardWorld, kind: str, n: int, sites: int, seed: int) -> list[Any]:
    """Tables of other patients of a world's sites."""
    dictionary = world.dictionary(kind)
    made = [world(n, np.random.default_rng(seed_of("law", world.name, n, s, seed=seed)), s) for s in range(sites)]
    dtypes = {column.name: column.dtype for column in dictionary.columns}
    return [table[list(dtypes)].astype(dtypes) for table in made]


def _cell(asked: tuple[str, str, int, Setting], seed: int) -> list[dict[str, Any]]:
    return cell(*asked, seed=seed)


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

    def of(rows: list[dict[str, Any]]) -> dict[str, Any]:
        have = [row for row in rows if "ratio" in row]
        ratios = [row["ratio"] for row in have]
        near = [abs(ratio - 1) <= WITHIN for ratio in ratios]
        each = [row["of_single_within"] for row in have]
        return {
            "designs": len(ratios),
            "within": 100 * float(np.mean(near)) if near else 0.0,
            "within_knowing": {
                what: 100 * float(np.mean([abs(row["ratio_knowing"][what] - 1) <= WITHIN for row in have]))
                for what in ("spread", "law", "law_spread")
                if have
            },
            "within_single": 100 * float(np.mean(each)) if each else 0.0,
            "ratio_median": float(np.median(ratios)) if ratios else 0.0,
            "ratio_least": min(ratios, default=0.0),
            "ratio_most": max(ratios, default=0.0),
            **{
                key: 100 * float(np.mean([row[key] for row in have])) if have else 0.0
                for key in ("attainable", "attainable_few")
            },
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
    asked.add_argument("--seed", type=int, default=SEED)
    asked.add_argument("--n", type=listed(int), default=record.sized((600, 1500), (300,)))
    asked.add_argument("--jobs", type=int, default=1, help="processes")
    asked.add_argument("--name", default="", help="writes tests/benchmarks/results/<name>.json")
    given = asked.parse_args()
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for several in pool.map(partial(_cell, seed=given.seed), cells(given.half, given.n)):
            found += several
            print(several, flush=True)
    told = summary(found)
    print(told)
    if given.name:
        results = {"half": given.half, "released": SITES, "few": FEW, "summary": told, "designs": found}
        print(record.write(given.name, results, seed=given.seed))


if __name__ == "__main__":
    main()
