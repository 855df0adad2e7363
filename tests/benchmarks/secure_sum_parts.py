"""What of a secure sum's distance to the records' answer which part of the sites' public models makes.

Every repetition draws the twelve cohorts of `tests.benchmarks.secure_sum`, their pilots and levels, and takes the sum
as a plan of today has it. Then one part of what each site is looked at with is replaced by the records' own: slopes of
the other covariates, risk-set means, level and course of the hazard, what drawing in takes, how fast the sum falls with
the coefficient, the weights, the place that all are looked at from. Beside it the same pilots with vectors drawn in
about 0 (`SecureSumPlan.held`), and the sum without noise. No message is sent: each distance is the mean over draws of
the sum's noise, the same for all, so that two of them differ by what was replaced alone.

python -m tests.benchmarks.secure_sum_parts [repetitions] [first seed] [--epsilon 1] [--folder FOLDER]
"""

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from coordinator.pooling.pool import pool
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.vectors import summed_vector
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.estimands.fits.cox import SurvivalOutcome, cox
from shared.mechanisms.moments.copula import CUT
from shared.mechanisms.secure_sum.influences import level_of, noisy_level
from shared.mechanisms.secure_sum.sent_look import look_sent
from shared.mechanisms.secure_sum.vectors import vector_look
from tests.benchmarks import record
from tests.benchmarks.cohorts_gap import cvd_tables
from tests.benchmarks.honest import misfit
from tests.benchmarks.secure_sum import CLOSE, plan_of

PARTS = (
    "as planned",
    "drawn in about 0",
    "start",
    "slopes",
    "means",
    "level",
    "hazard",
    "cut",
    "fall",
    "weights",
    "weights and cut",
    "means, hazard, weights and cut",
)
STATED = ("noise", "cut", "pilots", "weights")
DRAWS = np.random.default_rng(5).standard_normal((32, 2))
DRAWS = np.concatenate([np.zeros((1, 2)), DRAWS, -DRAWS])
"""Of the noise in the sum and in the products, in its standard deviations; the first has none."""


class Site:
    """One site's records and the look at them, of which parts can be replaced by the records' own."""

    def __init__(self, x, y, look):
        self.x, self.y, self.look = x, y, look
        scaled = np.array([1.0, 1.0, 1.0, 10.0])
        fitted = cox((x - x.mean(axis=0)) / scaled, SurvivalOutcome(time=y[:, 0], event=y[:, 1]))
        self.slopes, self.estimate, self.variance = fitted.beta[:3], fitted.beta[3], fitted.cov[3, 3]

    def _risk(self):
        """Of each event, the last first: its interval, the mean of d'x of those at risk, and Breslow's step."""
        look = self.look
        standard = np.clip((self.x - look.centre) / look.scale, -CUT, CUT)
        order = np.argsort(-self.y[:, 0], kind="stable")
        time, event = self.y[order].T
        risk = np.exp(look.effects[0, 0] + standard @ look.effects[0, 1:])[order]
        last = np.searchsorted(-time, -time, side="right") - 1
        there = np.cumsum(risk)[last]
        means = np.cumsum(risk * (standard @ look.along[0])[order])[last] / there
        interval = np.searchsorted(look.outcome.edges, time, side="right") - 1
        kept = event > 0
        return np.clip(interval, 0, look.means.shape[1] - 1)[kept], means[kept], 1 / there[kept]

    def slopes_replaced(self):
        effects = self.look.effects.copy()
        effects[0, 1:4] = self.slopes * self.look.scale[:3]
        self.look = replace(self.look, effects=effects)

    def means_replaced(self):
        interval, means, _ = self._risk()
        size = self.look.means.shape[1]
        events, total = np.bincount(interval, minlength=size), np.bincount(interval, means, minlength=size)
        seen = events > 0
        own = np.interp(np.arange(size), np.flatnonzero(seen), total[seen] / events[seen])
        self.look = replace(self.look, means=own[None])

    def hazard_replaced(self, course=True):
        """Its level, and its course as well."""
        look, outcome = self.look, self.look.outcome
        cumulative = outcome.cumulative
        if course:
            interval, _, steps = self._risk()
            cumulative = np.r_[0.0, np.cumsum(np.bincount(interval, steps, minlength=look.means.shape[1]))]
        standard = np.clip((self.x - look.centre) / look.scale, -CUT, CUT)
        charges = np.exp(look.effects[0, 0] + standard @ look.effects[0, 1:])
        charges = float(charges @ np.interp(self.y[:, 0], outcome.edges, cumulative))
        cumulative = cumulative * self.y[:, 1].sum() / charges
        self.look = replace(look, outcome=replace(outcome, cumulative=cumulative))


def drawn(tables, epsilon, seed):
    """Plan, places, levels and each site's records."""
    keys = {name: SigningKey.generate() for name in tables}
    given = SimpleNamespace(pilot=None, held="centred", outcome="survival")
    plan, noise = plan_of(keys, epsilon, given), seeded_rng(seed)
    release = plan.release
    pilots = {
        at: (release.draw(plan, plan.dictionary.check(tables[name]), noise), len(tables[name]))
        for at, name in enumerate(release.members)
    }
    design, bounds = release.first(plan.budget.delta).design(plan), release.bounds(plan)
    data = {at: design.matrices(plan.dictionary.check(tables[name])) for at, name in enumerate(release.members)}
    places, sigma = pilot_places(plan, pilots), release.level_event(plan).sigma
    levels = {
        at: noisy_level(look_sent(look, len(data[at][0]), bounds, design), *data[at], sigma, noise)
        for at, look in places.before().items()
    }
    return plan, places, levels, data


def answers(plan, sites, start, replaced):
    """Answers over the draws of noise, the first without any.

    Args:
        sites: with looks that are weighed. replaced: "cut" and "fall" among it are the records' own.
    """
    looks, release = [site.look for site in sites], plan.release
    sigma = release.terms(plan).share_sigma * math.sqrt(len(sites))
    expected, a = [look.drawn_in() for look in looks], np.array([float(look.weights[0]) for look in looks])
    back = 1 / float(looks[0].whitening[0, 0])
    total = sum(site.look.rows(site.x, site.y).sum(axis=0) for site in sites)
    moved = back * (total[0] + sum(look.n * float(look.offset[0]) for look in looks) + sigma * DRAWS[:, 0])
    seen = back**2 * math.sqrt(2) * release.reach * (total[1] + sigma * DRAWS[:, 1])
    squares = np.maximum(seen / sum(a**2 * [float(one.squares[0]) for one in expected]), 0.5)
    slope, beyond = (np.array([float(getattr(one, name)[0]) for one in expected]) for name in ("slope", "beyond"))
    if "cut" in replaced:
        whole = [float(site.look.influences(site.x, site.y, site.look.along, site.look.means).sum()) for site in sites]
        held = back * (total[0] + sum(look.n * float(look.offset[0]) for look in looks))
        moved = moved - (held - a @ whole)
    else:
        moved = moved - a @ beyond
    if "fall" in replaced:
        own = np.array([1 / site.variance for site in sites])
        slope, squares = slope / [float(look.precision[0]) for look in looks] * own, 1.0
    return start + moved / ((a @ slope) * squares)


def measured(seed, world, epsilon):
    """One repetition, in plain numbers: of each part the hazard ratios that there may be, less the records' own."""
    rng = np.random.default_rng(10_000 + seed)
    plan, places, levels, data = drawn(cvd_tables(rng) if world == "fits" else misfit(rng), epsilon, seed)
    given, differing = places.weighed(places.looks(levels))
    sigma, bounds = plan.release.level_event(plan).sigma, plan.release.bounds(plan)
    sites = {at: Site(*data[at], look) for at, look in given.items()}
    estimates, variances = zip(*((site.estimate, site.variance) for site in sites.values()), strict=True)
    own = pool(list(estimates), list(variances), method="REML", test="adhoc")
    weights = 1 / (np.array(variances) + own.tau2) * variances
    weights /= weights.max()
    out = {"seed": seed, "start": math.exp(places.start[0]) - math.exp(own.beta), "cells": {}}
    for part in PARTS:
        start, now = own.beta if part == "start" else places.start[0], []
        for (at, look), weight in zip(given.items(), weights, strict=True):
            site = sites[at]
            if part == "start":
                place = vector_look(places.places[at], (start,), level_of(*levels[at], sigma), bounds)
                look = replace(place, weights=look.weights, whitening=look.whitening).centred()
            if "weights" in part:
                look = replace(look, weights=np.array([weight])).centred()
            if part == "drawn in about 0":
                look = replace(look, offset=np.zeros(1))
            site.look = look
            if "slopes" in part:
                site.slopes_replaced()
            if "hazard" in part or part == "level":
                site.hazard_replaced(course="hazard" in part)
            if "means" in part:
                site.means_replaced()
            now.append(site)
        found = answers(plan, now, start, part)
        out["cells"][part] = (np.exp(found) - math.exp(own.beta)).tolist()
        if part in PARTS[:2]:
            answer = stated(plan, now, start, differing)
            assert abs(answer.estimate - found[0]) < 1e-9, "what is measured is what the product answers"
            out["stated " + part] = {name: getattr(answer, name) for name in STATED}
            out["stated " + part]["width"] = (answer.ci_ub - answer.ci_lb) / (own.ci_ub - own.ci_lb)
    return out


def stated(plan, sites, start, differing):
    """The answer without noise, with what it says of itself."""
    total = sum(site.look.rows(site.x, site.y).sum(axis=0) for site in sites)
    sigma = plan.release.terms(plan).share_sigma * math.sqrt(len(sites))
    [answer] = summed_vector(
        [site.look for site in sites], total, sigma, (start,), differing, sites=list(plan.release.members)
    )
    return answer


def summary(runs):
    """Of each part the distances, and how far they are from those as planned, on the same seeds."""
    out = {"start of all": {"gap": float(np.abs([run["start"] for run in runs]).mean())}}
    planned = np.abs([run["cells"]["as planned"][1:] for run in runs]).mean(axis=1)
    for part in PARTS:
        gaps = np.array([run["cells"][part] for run in runs])
        each = np.abs(gaps[:, 1:]).mean(axis=1)
        out[part] = {
            "gap": float(each.mean()),
            "less": float((each - planned).mean()),
            "less_standard_error": float((each - planned).std(ddof=1) / math.sqrt(len(runs))) if len(runs) > 1 else 0.0,
            "signed_gap": float(gaps[:, 1:].mean()),
            "within_0.01": float((np.abs(gaps[:, 1:]) < CLOSE).mean()),
            "without_noise": float(np.abs(gaps[:, 0]).mean()),
        }
        if f"stated {part}" in runs[0]:
            said = {name: np.array([run[f"stated {part}"][name] for run in runs]) for name in (*STATED, "width")}
            # To first order a distance of hazard ratios is that of their logarithms times the ratio.
            whole = sum(said[name] for name in STATED).mean()
            out[part] |= {name: float(np.sqrt(said[name].mean())) for name in STATED}
            out[part] |= {"stated": float(np.sqrt(whole)), "width": float(said["width"].mean())}
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("repetitions", nargs="?", type=int, default=record.sized(40, 1))
    parser.add_argument("first", nargs="?", type=int, default=20001)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="keep every repetition here, and go on from what is there")
    parser.add_argument("--name", default="secure_sum_parts", help="of the result's file")
    given = parser.parse_args()
    cells = {}
    for world in ("fits", "misfit"):
        runs = []
        for seed in range(given.first, given.first + given.repetitions):
            kept = given.folder / f"{world}-{given.epsilon:g}-{seed}.json" if given.folder else None
            if kept is not None and kept.is_file():
                runs.append(json.loads(kept.read_text()))
                continue
            runs.append(measured(seed, world, given.epsilon))
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(runs[-1]))
        cells[world] = summary(runs)
    results = {"repetitions": given.repetitions, "epsilon": given.epsilon, "cells": cells}
    print(record.write(given.name, results, seed=given.first))


if __name__ == "__main__":
    main()
