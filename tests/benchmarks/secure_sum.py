"""Twelve full-size cohorts behind one ε, pooled by a secure sum: the adjusted hazard ratio beside the real records'.

Every repetition draws fresh cohorts, as `tests.benchmarks.honest` has them, in the world that the models fit and in one
that has nothing of what they assume. Each site releases a pilot (moments, no declared coefficient) and the level of its
events by itself; then one sum is taken, through every message of the protocol, each in its bytes, and read as the
coordinator reads it. Terms, bounds and noise are those of the plan that a study would sign. The pilots' pooled answer
stands beside it as the arm that needs no sum, and what a user's own Cox regressions on the synthetic rows that follow
the sum pool to, with the intervals that anybody would take. The plan has one end of follow-up for all cohorts. Shares
and bounds were chosen on seeds from 1001 on, the level in the place of a count of events on seeds from 2001 on; what
is reported has seeds from 12001 on.

`cost` takes sums of 12 and 50 sites and counts bytes and time.

With `--outcome binary` the same patients' event is a yes or no and the question a logistic regression: where the models
fit it is drawn anew from that model, with each cohort's own share of events; where they do not, it is the event of that
world whenever it came.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.secure_sum [repetitions] [first seed] [--epsilon 0.5,1] [--world fits|misfit]
  [--outcome survival|binary] [--folder FOLDER] [--no-rows] [--pilot SHARE] [--tau T] [--held centred]
  [--sites N] [--scale S] [--name NAME] [--summary]
"""

import argparse
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, special

from coordinator.pooling.pool import pool, pool_estimates
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.reading import read_sum
from coordinator.pooling.secure_sum.row_effects import row_effects
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised
from shared.mechanisms.secure_sum.coordinator import SumCoordinator
from shared.mechanisms.secure_sum.messages import Lists
from shared.mechanisms.secure_sum.price import trust_rows
from shared.mechanisms.secure_sum.site import SumSite
from shared.releases.receipt import planned_event
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables
from tests.benchmarks.honest import COVARIATES, TRUTH, UNITS, misfit, real
from tests.stage.mechanisms.sums import Parts, cohorts_plan

DELTA = 1e-6
DROP_OUTS, COLLUDERS = 2, 1
CLOSE = 0.01


def plan_of(keys, epsilon, given, **release):
    """The plan that is measured: what a study would sign, its sites by their names."""
    made: dict[str, Any] = {"drop_outs": DROP_OUTS, "colluders": COLLUDERS}
    made |= {"pilot": given.pilot} if given.pilot else {}
    made |= {"held": given.held} if given.held else {}
    return cohorts_plan(keys, epsilon, outcome=given.outcome, **made, **release)


def yes_or_no(tables, rng, given):
    """The tables without their times; where the models fit, with events of a logistic regression."""
    out = {}
    for name, table in tables.items():
        found = table.drop(columns="time")
        if given.world == "fits":
            x = found[list(COVARIATES)].to_numpy(float) / UNITS
            eta = (x - x.mean(axis=0)) @ [0.6, 0.2, -0.2, TRUTH + given.tau * rng.standard_normal()]
            chance = special.expit(level_of(eta, found["cvd"].mean()) + eta)
            found["cvd"] = (rng.random(len(found)) < chance).astype(np.int64)
        out[name] = found
    return out


def level_of(eta, share):
    """The log odds at which predictors make that share of events."""
    return optimize.brentq(lambda level: special.expit(level + eta).mean() - share, -20, 20)


def records_own(table, outcome):
    """Log hazard or odds ratio of 10 mmHg, and its variance, of the planned regression on a table."""
    if outcome == "survival":
        return real(table)
    x = table[list(COVARIATES)].to_numpy(float) / UNITS
    columns = np.column_stack([np.ones(len(x)), x - x.mean(axis=0)])
    y = table["cvd"].to_numpy(float)
    found = generalised(columns, y, FAMILIES["logistic"], np.ones(len(x)), np.zeros(len(x)))
    return found.beta[4], found.cov[4, 4]


def through_messages(terms, keys, values, noises):
    """The coordinator of an opened sum, each message through its bytes; bytes and CPU seconds of the busiest site."""
    up, down, cpu = np.zeros(len(keys)), np.zeros(len(keys)), np.zeros(len(keys))
    coordinator = SumCoordinator(terms)
    sites = [SumSite(terms, k, key, os.urandom) for k, key in enumerate(keys)]

    def asked(k, step, *given):
        read = []
        for message in given:
            data = message.to_bytes(terms)
            down[k] += len(data)
            read.append((type(message), data))
        began = time.process_time()
        answer = step(*(kind.from_bytes(data, terms) for kind, data in read))
        data = answer.to_bytes(terms)
        cpu[k] += time.process_time() - began
        up[k] += len(data)
        return type(answer).from_bytes(data, terms)

    places_ = range(len(keys))
    for k in places_:
        coordinator.take_offer(asked(k, sites[k].offer))
    for k in places_:
        coordinator.take_shares(asked(k, sites[k].seal, coordinator.roster()))
    for k in places_:
        coordinator.take_assent(asked(k, sites[k].join, coordinator.boxes_for(k)))
    for k in places_:
        agreed = coordinator.agreement(Lists.MEMBERS)
        coordinator.take_masked(asked(k, lambda it, k=k: sites[k].mask(it, values[k], noises[k]), agreed))
    for k in places_:
        coordinator.take_assent(asked(k, sites[k].agree, coordinator.survivors()))
    for k in places_:
        coordinator.take_opening(asked(k, sites[k].open, coordinator.agreement(Lists.SURVIVORS)))
    cost = {"bytes_sent": up.max(), "bytes_read": down.max(), "cpu_seconds": cpu.max()}
    return coordinator, {name: float(value) for name, value in cost.items()}


def arm(tables, epsilon, seed, given):
    """One repetition behind one ε: the answer, the pilots', the price, what it took."""
    keys = {name: SigningKey.generate() for name in tables}
    plan, noise = plan_of(keys, epsilon, given), seeded_rng(seed)
    release, terms = plan.release, plan.release.terms(plan)
    drawn = [release.draw(plan, plan.dictionary.check(tables[name]), noise) for name in release.members]
    pilots = {
        at: (table, len(tables[name])) for (at, table), name in zip(enumerate(drawn), release.members, strict=True)
    }
    walk = Parts.of(plan, [tables[name] for name in release.members], pilots, noise)
    signing = [keys[name] for name in release.members]
    coordinator, cost = through_messages(terms, signing, walk.values, noise.spawn(len(keys)))
    opened = walk.opened(plan, coordinator, {at: f"{at:064x}" for at in pilots})
    [answer], places = read_sum(plan, opened, pilots), pilot_places(plan, pilots)
    own, bounds = places.pooled(tuple(pilots)), release.bounds(plan)
    noises = [float(places.places[at].effects.privacy[bounds.columns[0]]) * bounds.units[0] ** 2 for at in pilots]
    pilot = {
        "pilot": [own.beta, own.ci_lb, own.ci_ub],
        "pilot_stated": sum((w / 100) ** 2 * noise for w, noise in zip(own.weights, noises, strict=True)),
    }
    if isinstance(answer, EstimateRefusal):
        return pilot | {"refused": str(answer)}
    rows = on_rows(plan, pilots, answer, seed) if given.rows else None
    return (
        ({} if rows is None else {"on_rows": [rows.beta, rows.ci_lb, rows.ci_ub]})
        | pilot
        | {
            "sum": [answer.estimate, answer.ci_lb, answer.ci_ub],
            "variance": answer.variance,
            "noise": answer.noise,
            "cut": answer.cut,
            "pilots": answer.pilots,
            "weights": answer.weights,
            "tau2": answer.tau2,
            "rows": [
                [row.colluders, row.epsilon] for row in trust_rows(planned_event(plan).events[:2], [terms], DELTA)
            ],
            "cost": cost,
        }
    )


def on_rows(plan, pilots, answer, seed):
    """The planned regression on each site's synthetic rows, which follow the sum, pooled as anybody would."""
    release, names = plan.release, tuple(plan.release.members)
    question = release.question(plan)
    [(label, term)] = release.summed_terms(plan, question).items()
    sites = {names[at]: [pilot] for at, pilot in pilots.items()}
    origins = {site: {"study": "cvd", "site": site, "wave": 1} for site in sites}
    found = release.together(plan, sites, question, origins=origins)
    seen = pool_estimates([row for rows in found.values() for row in rows if row.term == label])
    effects = row_effects(replace(seen, summed=answer.per(term.per)))
    rng = np.random.default_rng([seed, 5])
    own = []
    for site, figures in sites.items():
        # A site whose pilot settles on nothing has no place among the others: its rows are the pilot's.
        own_effect = {term.column: effects[site] / term.units} if site in effects else None
        [rows] = release.synthetic(plan, figures, draws=1, rng=rng, effects=own_effect)
        own.append(records_own(rows, release.outcome))
    yi, vi = zip(*own, strict=True)
    return pool(list(yi), list(vi), method="REML", test="adhoc")


def measured(seed, epsilons, world, given):
    """One repetition, in plain numbers."""
    rng = np.random.default_rng(10_000 + seed)
    tables = cvd_tables(rng, given.scale, apart=given.tau) if world == "fits" else misfit(rng)
    tables = dict(list(tables.items())[: given.sites])
    if given.outcome == "binary":
        tables = yes_or_no(tables, rng, given)
    yi, vi = zip(*(records_own(table, given.outcome) for table in tables.values()), strict=True)
    theirs = pool(list(yi), list(vi), method="REML", test="adhoc")
    out = {"seed": seed, "real": [theirs.beta, theirs.ci_lb, theirs.ci_ub], "tau2": theirs.tau2, "cells": {}}
    for epsilon in epsilons:
        out["cells"][f"epsilon={epsilon:g}"] = arm(tables, epsilon, seed, given)
    return out


def summary(runs):
    theirs = np.array([run["real"] for run in runs])
    out = {"real": {"coverage": held(theirs), "tau": float(np.mean([run["tau2"] ** 0.5 for run in runs]))}}
    for name in runs[0]["cells"]:
        cells = [run["cells"][name] for run in runs]
        answered = np.array(["refused" not in cell for cell in cells])
        pilots = _arm(cells, "pilot", theirs)
        squared = (np.array([cell["pilot"][0] for cell in cells]) - theirs[:, 0]) ** 2
        pilots["squared_error_over_stated"] = float(squared.mean() / np.mean([cell["pilot_stated"] for cell in cells]))
        out |= {f"{name} pilot": pilots, f"{name} sum": {"refused": int((~answered).sum())}}
        cells = [cell for cell in cells if "refused" not in cell]
        if not cells:
            continue
        for which in ("sum", *(["on_rows"] if "on_rows" in cells[0] else [])):
            out[f"{name} {which}"] = out.get(f"{name} {which}", {}) | _arm(cells, which, theirs[answered])
        squared = (np.array([cell["sum"][0] for cell in cells]) - theirs[answered, 0]) ** 2
        stated = sum(np.array([cell[part] for cell in cells]) for part in ("noise", "cut", "pilots", "weights"))
        out[f"{name} sum"] |= {
            "squared_error_over_stated": float(squared.mean() / stated.mean()),
            "rows": cells[0]["rows"],
            "noise": float(np.sqrt(np.mean([cell["noise"] for cell in cells]))),
            "cut": float(np.sqrt(np.mean([cell["cut"] for cell in cells]))),
            "pilots": float(np.sqrt(np.mean([cell["pilots"] for cell in cells]))),
            "weights": float(np.sqrt(np.mean([cell["weights"] for cell in cells]))),
            "tau": float(np.mean([cell["tau2"] ** 0.5 for cell in cells])),
        }
    return out


def _arm(cells, which, theirs):
    """One arm beside the real data's answers and intervals (repetitions, 3)."""
    ours = np.array([cell[which] for cell in cells])
    gaps = np.exp(ours[:, 0]) - np.exp(theirs[:, 0])
    widths = (ours[:, 2] - ours[:, 1]) / (theirs[:, 2] - theirs[:, 1])
    return {
        "gap": float(np.abs(gaps).mean()),
        "gap_standard_error": float(np.abs(gaps).std(ddof=1) / math.sqrt(len(gaps))),
        "gap_median": float(np.median(np.abs(gaps))),
        "signed_gap": float(gaps.mean()),
        "gap_worst": float(np.abs(gaps).max()),
        "gap_90_percent": float(np.quantile(np.abs(gaps), 0.9)),
        "within_0.01": float((np.abs(gaps) < CLOSE).mean()),
        "coverage": held(ours),
        "holds_the_records": float(((ours[:, 1] <= theirs[:, 0]) & (ours[:, 2] >= theirs[:, 0])).mean()),
        "width": float(widths.mean()),
        "width_median": float(np.median(widths)),
    }


def held(intervals):
    return float(((intervals[:, 1] <= TRUTH) & (intervals[:, 2] >= TRUTH)).mean())


def costs():
    """Bytes and CPU of the busiest site in a sum of 12 and of 50."""
    out = {}
    for sites in record.sized((12, 50), (12,)):
        keys = {f"site-{k:02}": SigningKey.generate() for k in range(sites)}
        plan = cohorts_plan(keys, 1.0, drop_outs=DROP_OUTS, colluders=COLLUDERS)
        values = [np.array([k, -k], dtype=np.int64) for k in range(sites)]
        given = plan.release.terms(plan), list(keys.values()), values, seeded_rng(1).spawn(sites)
        out[f"{sites} sites"] = through_messages(*given)[1]
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(100, 1))
    parser.add_argument("first", nargs="?", type=int, default=12001)
    parser.add_argument("--epsilon", default=record.sized("0.5,1", "1"))
    parser.add_argument("--world", choices=("fits", "misfit"), default="fits")
    parser.add_argument("--outcome", choices=("survival", "binary"), default="survival")
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    parser.add_argument("--pilot", type=float, help="share of the pilots in μ², for every ε")
    parser.add_argument("--held", choices=("zero", "centred"), help="about which point records are drawn in")
    parser.add_argument("--tau", type=float, default=0.03, help="how the true effects differ where the models fit")
    parser.add_argument("--sites", type=int, default=12, help="so many of the cohorts, the first")
    parser.add_argument("--scale", type=float, default=1.0, help="their sizes, where the models fit")
    parser.add_argument("--name", default="", help="of the result's file, where it is another than the world's")
    parser.add_argument("--no-rows", dest="rows", action="store_false", help="leave out a user's regression on rows")
    parser.add_argument("--summary", action="store_true", help="print, and write no result")
    given = parser.parse_args()
    runs = []
    for seed in range(given.first, given.first + given.repetitions):
        case = given.world if given.outcome == "survival" else f"{given.outcome}-{given.world}"
        kept = given.folder / f"{case}-{seed}.json" if given.folder else None
        if kept is not None and kept.is_file():
            runs.append(json.loads(kept.read_text()))
            continue
        runs.append(measured(seed, [float(text) for text in given.epsilon.split(",")], given.world, given))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(runs[-1]))
    served = plan_of({f"{k}": SigningKey.generate() for k in range(12)}, 1.0, given).release
    rounds = {"pilot": served.pilot, "events": served.level}
    results = {
        "repetitions": len(runs),
        "world": given.world,
        "outcome": given.outcome,
        "tau": given.tau,
        "rounds": rounds,
        "cells": summary(runs),
    }
    if given.summary:
        print(json.dumps(results))
        return
    default = f"secure_sum{'_binary' * (given.outcome == 'binary')}{'_misfit' * (given.world == 'misfit')}"
    name = given.name or default
    if name == "secure_sum":
        results |= {"cost": costs()}
    print(record.write(name, results, seed=given.first))


if __name__ == "__main__":
    main()
