"""What an attack proves of a record's ε in all that a site gives to a secure sum: pilot, level and sum, looked at once.

python -m tests.benchmarks.secure_sum_attack [RUNS]

Two worlds differ in one record of one site. Whoever looks knows every other record, and sends the looks: one at which
one of the two records has all of the level's events and the other all of its charges, and at which their influences
are drawn in to opposite ends of the sum's bound. In the pilot the two are as far apart as records of the plan's
dictionary with and without an event are (a search over its ends, and over where the site's scales cut). What leaves is
made by the product: the blocks' noise, the level's, and the shares that are left in the sum to whoever looks, masks
taken off, two sites declared lost, and the shares of those who look along known to them. Of a run the best test is
one number, the log-likelihood ratio of all three, and its threshold, half way, is fixed before anything is drawn.

Of RUNS (300,000) runs of each world come bounds on the hits and the false alarms, each wrong once in two million
(Clopper-Pearson), from these a bound on μ, and from it the ε at the plan's δ that a Gaussian mechanism of that μ has.
It must not exceed what the row charges, and must with half the noise. The same of each part alone, beside what is
charged for it alone where whoever looks has the plan's one colluder.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.mechanisms.moments.draw import moments, noised
from shared.mechanisms.moments.noise import Design, Lens, product_steps
from shared.mechanisms.moments.spec import grids_of, sigma_of
from shared.mechanisms.secure_sum.influences import _GRID as LEVEL_GRID
from shared.mechanisms.secure_sum.price import trust_rows
from shared.mechanisms.secure_sum.sent_look import SentVectorLook, look_sent
from shared.mechanisms.secure_sum.site import noise_share
from shared.mechanisms.secure_sum.terms import SumTerms
from shared.plans.plan import StudyPlan
from shared.privacy.accountant import epsilon
from shared.privacy.gaussian import gaussian_epsilon
from shared.releases.receipt import planned_event
from tests.benchmarks import record
from tests.stage.mechanisms import sums

SEED = 923
RUNS = record.sized(300_000, 2_000)
AT_ONCE = 50_000
SIDE = 5e-7
EPSILON = 1.0
WHO = ("coordinator alone", "with the plan's colluder", "with half", "with all others")
PARTS = ("pilot", "level", "sum")
Array = NDArray[np.float64]


class Many:
    """A source of so many draws at once where one is asked for, each too small by a factor."""

    def __init__(self, runs: int, factor: float, seed: int) -> None:
        self.runs, self.factor, self.inner = runs, factor, seeded_rng(seed)

    def lattice_gaussian_steps(self, sigma: float, shape: int | tuple[int, ...], grid: float) -> Any:
        """(runs, *shape)."""
        shape = shape if isinstance(shape, tuple) else (shape,)
        return self.inner.lattice_gaussian_steps(sigma * self.factor, (self.runs, *shape), grid)


@dataclass(frozen=True, eq=False)
class Site:
    """One site under the plan, and its two records that are furthest apart, the one with an event first.

    Args:
        x: (2, p) covariates. y: (2, 2) outcomes. sent: the look of whoever attacks.
    """

    plan: StudyPlan
    design: Design
    lens: Lens
    x: Array
    y: Array
    sent: SentVectorLook

    @property
    def release(self) -> Any:
        """Of the plan."""
        return self.plan.release

    @property
    def terms(self) -> SumTerms:
        """Of the sum."""
        return self.release.terms(self.plan)

    @property
    def rows(self) -> tuple[Any, ...]:
        """By who looks together: how many, and the ε that is charged."""
        return trust_rows(planned_event(self.plan).events[:2], [self.terms], self.plan.budget.delta)

    def left(self, colluders: int) -> int:
        """Sites whose shares are left in the sum to whoever looks with so many others."""
        return max(len(self.terms.members) - self.terms.drop_outs - colluders, 1)

    def pilot_steps(self, x: Array, y: Array) -> list[NDArray[np.int64]]:
        """(records, figures) of each block, in steps."""
        counted = [self.design.counts(x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
        tables = [np.concatenate([table.ravel() for table in one]) for one in counted]
        wide = [product_steps(row[None]) for row in self.lens.wide_steps(x)]
        parts = [np.array(tables), self.lens.moment_steps(x, y), np.array(wide)]
        return [np.asarray(part).reshape(len(x), -1) for part in parts]

    def look(self) -> Any:
        """As the site has it of what was sent."""
        return look_sent(self.sent, 2, self.release.bounds(self.plan), self.design)

    def level_steps(self) -> NDArray[np.int64]:
        """(records, 2) events and charges."""
        return np.rint(self.look().level(self.x, self.y) / LEVEL_GRID).astype(np.int64)

    def sum_steps(self) -> NDArray[np.int64]:
        """(records, coordinates) of the sum."""
        rows = self.look().rows(self.x, self.y)
        return np.array([self.terms.whole_steps(row[None]) for row in rows])


def attacked_site() -> Site:
    """A site of twelve under the plan at ε = 1, and the records that an attack on it would choose."""
    keys = {f"site-{k:02}": SigningKey.generate() for k in range(12)}
    plan = sums.cohorts_plan(keys, EPSILON, drop_outs=2, colluders=1)
    release: Any = plan.release
    design = release.first(plan.budget.delta).design(plan)
    table = next(iter(sums.cohorts(SEED).values()))
    lens = design.lens(moments(plan.dictionary.check(table), design, seeded_rng(SEED)))
    site = Site(plan, design, lens, np.zeros((2, design.p)), np.zeros((2, 2)), sent_look(design))
    x, y = candidates(site)
    parts = zip(site.pilot_steps(x, y), grids_of(design.spec), itertools.count(), strict=False)
    moved = np.hstack([steps * (grid / sigma_of(design.spec, block)) for steps, grid, block in parts])
    half = len(x) // 2
    one, other = moved[:half], moved[half:]
    apart = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
    i, j = np.unravel_index(apart.argmax(), apart.shape)
    chosen = [int(i), half + int(j)]
    return Site(plan, design, lens, x[chosen], y[chosen], site.sent)


def candidates(site: Site) -> tuple[Array, Array]:
    """Records with an event at once, then as many without one until the end; covariates at ends, and at the cut."""
    spans = [column.span for column in site.design.covariates]
    scales = zip(spans, site.lens.centre, site.lens.scale, strict=True)
    places = [np.clip([low, c - 1.001 * s, c + 1.001 * s, high], low, high) for (low, high), c, s in scales]
    x = np.array(list(itertools.product(*places)))
    y = [np.tile(outcome, (len(x), 1)) for outcome in ([0.0, 1.0], [site.design.horizon, 0.0])]
    return np.vstack([x, x]), np.vstack(y)


def sent_look(design: Design) -> SentVectorLook:
    """A look as a coordinator would send it to tell the two worlds apart; a site gives by it what it gives by any."""
    edges = tuple(float(edge) for edge in design.outcome_edges)
    along, apart = (0.0,) * design.p, (-1.0,) * (len(edges) - 1)
    return SentVectorLook(
        level=0.0,
        centre=tuple(float(low) for low, _ in (column.span for column in design.covariates)),
        scale=(1.0,) * design.p,
        effects=((0.0,) * (1 + design.p),) * 2,
        edges=edges,
        cumulative=tuple(2.0 * edge / edges[-1] for edge in edges),
        base=0.0,
        start=(0.0,),
        weights=(1.0,),
        whitening=((1e6,),),
        along=(along,),
        means=(apart,),
    )


@cache
def ratios(site: Site, part: str, shares: int, runs: int, factor: float) -> Array:
    """(2, runs) log-likelihood ratios of one part, of the world of the first record and of the second.

    Args:
        shares: of sites in the sum's noise, 0 of another part. factor: of the noise that is drawn; whoever looks knows.
    """
    seed = [SEED, PARTS.index(part), shares, round(100 * factor)]
    found = np.zeros((2, runs))
    for world, start in itertools.product((0, 1), range(0, runs, AT_ONCE)):
        count = min(AT_ONCE, runs - start)
        source = Many(count, factor, int(np.random.SeedSequence([*seed, world, start]).generate_state(1)[0]))
        for steps, drawn, sigma in noise_of(site, part, shares, source):
            change = (steps[0] - steps[1]).astype(float)
            seen = (steps[world] + drawn) - (steps[0] + steps[1]) / 2
            found[world, start : start + count] += seen @ change / (factor * sigma) ** 2
    return found


def noise_of(site: Site, part: str, shares: int, source: Any) -> Sequence[tuple[Any, Any, float]]:
    """Of each block of a part: (2, figures) steps of the two records, (runs, figures) its noise, its σ in steps."""
    if part == "pilot":
        found = []
        for block, steps in enumerate(site.pilot_steps(site.x, site.y)):
            steps = steps[:, steps[0] != steps[1]]
            spec = site.design.spec
            drawn = noised(spec, block, np.zeros(steps.shape[1], dtype=np.int64), source)
            found.append((steps, drawn, sigma_of(spec, block) / grids_of(spec)[block]))
        return found
    if part == "level":
        sigma = site.release.level_event(site.plan).sigma
        return [(site.level_steps(), source.lattice_gaussian_steps(sigma, 2, LEVEL_GRID), sigma / LEVEL_GRID)]
    terms = site.terms
    drawn = sum(noise_share(terms, source) for _ in range(shares))
    return [(site.sum_steps(), drawn, terms.share_sigma * math.sqrt(shares) / terms.grid)]


def bound(found: Array) -> float:
    """A lower bound on μ from one threshold at 0: (2, runs), wrong once in a million."""
    runs = found.shape[1]
    hits, alarms = ((found > 0).sum(axis=1)).tolist()
    power = float(stats.beta.ppf(SIDE, hits, runs - hits + 1)) if hits else 0.0
    alarm = float(stats.beta.isf(SIDE, alarms + 1, runs - alarms)) if alarms < runs else 1.0
    return max(0.0, float(stats.norm.ppf(power) - stats.norm.ppf(alarm)))


def proved(site: Site, colluders: int, runs: int, halved: Sequence[str] = (), parts: Sequence[str] = PARTS) -> float:
    """The ε at the plan's δ that is proved by whoever looks with so many colluders.

    Args:
        halved: parts whose noise is half of what the plan says. parts: that are looked at.
    """
    shares = site.left(colluders)
    found = sum(
        ratios(site, part, shares if part == "sum" else 0, runs, 0.5 if part in halved else 1.0) for part in parts
    )
    return gaussian_epsilon(bound(np.asarray(found)), site.plan.budget.delta)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    site = attacked_site()
    results: dict[str, Any] = {"runs": runs, "wrong": 2 * SIDE, "rows": {}}
    for who, row in zip(WHO, site.rows, strict=True):
        results["rows"][who] = {
            "colluders": row.colluders,
            "charged": row.epsilon,
            "proved": proved(site, row.colluders, runs),
            "half_of_all": proved(site, row.colluders, runs, PARTS),
        }
    one, delta = site.terms.colluders, site.plan.budget.delta
    results["parts"] = {
        part: {
            "charged": epsilon(event, delta),
            "proved": proved(site, one, runs, (), [part]),
            "half_of_it": proved(site, one, runs, [part], [part]),
        }
        for part, event in zip(PARTS, site.release.event(site.plan).events, strict=True)
    }
    print(record.write("secure_sum_attack", results, SEED))


if __name__ == "__main__":
    main()
