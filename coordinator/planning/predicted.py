r"""Predicted half-width of a pooled interval: the product's own mechanisms and pooling, on made-up tables.

One *setting* is a mechanism with its ε. Its site variance is found by running it: tables with the published margins are
made up for a few sites, privatised by the plan's own `release` with seeded noise, and answered as a study is answered.
Noisy figures (moments, tables) are drawn and read whole. Latent noise is not: its interval is that of the records times
what `coordinator.pooling.intervals` says of the noise and the fit, so the made-up records stand in for rows of a flow
that draws well. The site's variance is split,

.. math:: v(n, \varepsilon) = S \, \frac{n_0}{n} + P \, \Bigl(\frac{n_0}{n}\Bigr)^2
          \Bigl(\frac{\sigma(\varepsilon)}{\sigma(\varepsilon_0)}\Bigr)^2

for noise on sums (of latent noise P falls as 1/n), and the pooled half-width is the median over meta-analyses of K
sites whose estimates spread by v and by what is between sites, each pooled by `coordinator.pooling.pool`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.planning.published import Published, made_up
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, PlanRefusal
from shared.estimands.answer import Estimate, Origin, estimate
from shared.estimands.questions import parse_estimand

if TYPE_CHECKING:
    import pandas as pd

    from shared.estimands.questions import Estimand
    from shared.plans.dictionary import Dictionary
    from shared.plans.plan import StudyPlan

__all__ = ["COVERED", "SETTINGS", "Setting", "SiteVariance", "half_width", "plainly", "plan_of", "power", "records"]
__all__ += ["found_on", "simulated"]

POOLED = 400
"""Meta-analyses behind a median half-width."""
REAL_SITES = 1.06
"""Ratio of intervals of real sites to those of made-up ones, which are all alike; real ones differ in rates, means and
shape. Chosen on the tuning half of the hard worlds (tests/benchmarks/design_accuracy.py), reported on the other."""
COVERED: Mapping[str, str] = {
    "everyone": "everybody, and all that looks at a record",
    "released": "everybody released, given the flow; who trains it is never released, and not covered",
    "given_flow": "each released row, given the flow; the flow's own fit on the same records is not covered",
}
"""Persons and computations that the ε of a setting covers, in words, from most to least."""
SETTINGS: Mapping[str, str] = {
    "moments": "everyone",
    "tables": "everyone",
    "latent_noise_holdout": "released",
    "latent_noise_local": "given_flow",
}
"""Settings that can be predicted before anything runs, to what their ε covers."""
UNKNOWN: Mapping[str, str] = {
    "latent noise, flow trained with noise": "how well such a flow draws is known after its training, not before",
    "latent noise, public flow": "its rows hold an association only as far as the published start does",
}
"""Settings that no prediction is made of, and why."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to release: its name in `SETTINGS` and the ε of one release of one person."""

    name: str
    epsilon: float

    @property
    def covered(self) -> str:
        """Persons and computations that its ε covers, in words."""
        return COVERED[SETTINGS[self.name]]

    @property
    def rows(self) -> bool:
        """True if rows are released, to which any question may be put, and not figures of planned columns."""
        return self.name.startswith("latent_noise")


@dataclass(frozen=True, kw_only=True)
class SiteVariance:
    """Variance of one site's estimate, on the analysis scale, at `n` persons and an ε.

    Args:
        sampling, privacy: its two parts. common: variance of the error that all sites share.
        unlike: variances of the simulated sites as multiples of it: with noise, sites that are alike differ.
        sums: True if the noise is on sums (it falls as 1/n²), False if on rows.
        lost: reason why there is no number; blank where there is one.
    """

    n: int
    epsilon: float
    sampling: float
    privacy: float
    common: float = 0.0
    sums: bool = True
    unlike: tuple[float, ...] = (1.0,)
    lost: str = ""

    def at(self, n: float, epsilon: float | None = None) -> tuple[float, float]:
        """(variance, variance in common) with other numbers of persons, or another ε (noise on sums alone).

        >>> SiteVariance(n=1000, epsilon=1.0, sampling=0.01, privacy=0.04).at(2000, 2.0)
        (0.0075, 0.0)
        """
        times = self.n / n
        louder = 1.0
        if epsilon is not None and self.sums:
            louder = math.exp(2 * (math.log(self.epsilon) - math.log(epsilon)))
        return self.sampling * times + self.privacy * times ** (2 if self.sums else 1) * louder, self.common


# -- the plan of a setting ---------------------------------------------------------------------------------------
def plan_of(plan: StudyPlan, setting: Setting, questions: Mapping[str, str]) -> StudyPlan:
    """The plan with a setting's release; of noisy figures with the columns of its questions alone.

    Args:
        questions: planned questions that it shall answer, the first one the model of noisy moments.
    Raises: PlanRefusal: the setting cannot serve this study.
    """
    from coordinator.planning.price import moments_of
    from shared.mechanisms.latent_noise.plan import LatentNoisePlan
    from shared.mechanisms.tables.plan import TablesPlan

    bare = replace(
        plan,
        estimands=dict(questions),
        release=LatentNoisePlan(w=0.0),
        posture="local",
        private=None,
        reference={},
        flow="",
        federated=None,
        training=replace(plan.training, outcomes="joint", transfer=False),
        floors=replace(plan.floors, approval="after"),
    )
    if setting.name == "latent_noise_local":
        return replace(bare, release=LatentNoisePlan(epsilon=setting.epsilon), floors=plan.floors)
    if setting.name == "latent_noise_holdout":
        return replace(bare, release=LatentNoisePlan(epsilon=setting.epsilon), posture="holdout", floors=plan.floors)
    asked = {name for formula in questions.values() for name in parse_estimand(formula).columns}
    columns = tuple(one for one in plan.dictionary.columns if one.name in asked or one.name == plan.dictionary.person)
    narrow = replace(bare, dictionary=replace(plan.dictionary, columns=columns))
    if setting.name == "tables":
        return replace(narrow, release=TablesPlan(epsilon=setting.epsilon), posture="private", floors=plan.floors)
    release = moments_of(narrow, setting.epsilon)
    if release is None:
        raise PlanRefusal("noisy moments must have a planned model that uses every released column", given="none")
    return replace(
        narrow,
        release=replace(release, declared=release.covariates),
        posture="private",
        floors=plan.floors,
    )


# -- running it --------------------------------------------------------------------------------------------------
def simulated(
    plan: StudyPlan,
    setting: Setting,
    questions: Mapping[str, str],
    published: Published,
    *,
    n: int,
    sites: int,
    seed: int,
) -> dict[str, SiteVariance]:
    """Term of each question (``name: term``) to the variance of a site's estimate, by running the setting.

    Args:
        n: persons of a site. sites: number of simulated sites.
        seed: the same seed, the same answer.
    """
    generators = [np.random.default_rng([seed, site]) for site in range(sites)]
    union = _every(questions)
    tables = [made_up(published, union, plan.dictionary, n, rng) for rng in generators]
    return found_on(tables, plan, setting, questions, seed=seed)


def found_on(
    tables: Sequence[pd.DataFrame], plan: StudyPlan, setting: Setting, questions: Mapping[str, str], *, seed: int
) -> dict[str, SiteVariance]:
    """`simulated`, of given tables.

    Args:
        tables: (n, …) one per site, all of the same n: their columns are those of the questions.
        plan, setting, questions, seed: as of `simulated`.
    Returns: term of each question (``name: term``) to the variance of one site's estimate.
    """
    n = len(tables[0])
    try:
        changed = plan_of(plan, setting, questions)
    except (PlanRefusal, EstimateRefusal) as refusal:
        return {f"{name}: ": _lost(n, setting, refusal.must) for name in questions}
    out: dict[str, SiteVariance] = {}
    if setting.rows:
        for name, formula in questions.items():
            out |= _of_rows(changed, setting, name, parse_estimand(formula), tables)
        return out
    figures: dict[str, Any] = {}
    for site, table in enumerate(tables):
        person = changed.dictionary.person
        whole = table if person is None else table.assign(**{person: [f"{row}" for row in range(n)]})
        records = changed.dictionary.check(whole[[column.name for column in changed.dictionary.columns]])
        noise = seeded_rng(seed + 7919 * (site + 1))
        release: Any = changed.release
        figures[f"s{site}"] = [(release.draw(changed, release.measure(changed, records, noise), noise), n)]
    for name, formula in questions.items():
        out |= _of_figures(changed, setting, name, parse_estimand(formula), figures, n)
    return out


def records(
    plan: StudyPlan, questions: Mapping[str, str], published: Published, *, n: int, seed: int
) -> dict[str, float]:
    """Term of each question (``name: term``) to the variance of one site's answer from made-up records themselves.

    Args:
        questions: name to the text of a planned question.
        published: published margins, correlations and effects of such patients.
        n: records. seed: of the made-up ones.
    Raises: ParameterError: margins that no columns can have together.
    """
    table = made_up(published, _every(questions), plan.dictionary, n, np.random.default_rng([seed, 0]))
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    out: dict[str, float] = {}
    for name, formula in questions.items():
        rows = estimate(table, parse_estimand(formula), study=plan.study, site="s0", wave=1, levels=levels)
        out |= {f"{name}: {row.term}": row.vi for row in rows if row.vi is not None}
    return out


def plainly(formula: str, dictionary: Dictionary) -> str:
    """A question with ``C(x)`` as ``x`` where the column's levels are words: the same model, in its plain spelling."""
    question = parse_estimand(formula)
    words = {c.name for c in dictionary.released if any(isinstance(level, str) for level in c.levels)}
    terms = tuple(term[2:-1] if term.startswith("C(") and term[2:-1] in words else term for term in question.terms)
    return str(replace(question, terms=terms))


def _every(questions: Mapping[str, str]) -> Estimand:
    """The first question: tables are made up by its law."""
    return parse_estimand(next(iter(questions.values())))


def _lost(n: int, setting: Setting, why: str) -> SiteVariance:
    return SiteVariance(n=n, epsilon=setting.epsilon, sampling=math.nan, privacy=math.nan, lost=why)


def _of_figures(
    plan: StudyPlan, setting: Setting, name: str, question: Estimand, figures: Mapping[str, Any], n: int
) -> dict[str, SiteVariance]:
    origins: dict[str, Origin] = {
        site: {"study": plan.study, "site": site, "wave": 1, "receipts": ()} for site in figures
    }
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    release: Any = plan.release
    if setting.name == "moments" and not release.plans(plan, question):
        why = "noisy moments answer their planned model alone; this question would be put to rows that are made of them"
        return {f"{name}: {label}": _lost(n, setting, why) for label in question.labels}
    try:
        found = release.together(plan, figures, question, origins=origins) if len(figures) > 1 else {}
        rows = [
            row
            for site, tables in figures.items()
            for row in found.get(site) or release.answer(plan, tables, question, levels=levels, **origins[site])
        ]
    except EstimateRefusal as refusal:
        return {f"{name}: {label}": _lost(n, setting, str(refusal)) for label in question.labels}
    return _averaged(rows, name, n, setting, sums=True)


def _of_rows(
    plan: StudyPlan, setting: Setting, name: str, question: Estimand, tables: Sequence[Any]
) -> dict[str, SiteVariance]:
    from coordinator.pooling.intervals import Draw, with_release_variance
    from shared.mechanisms.latent_noise.plan import mechanism

    w = mechanism(plan).w
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    n, rows = len(tables[0]), []
    apart = plan.posture == "holdout"
    released = max(2, round(n * (1 - plan.holdout))) if apart else n
    draw = Draw(rows=released, w=w, fitted_on=max(1, n - released) if apart else n, among=not apart)
    for site, table in enumerate(tables):
        here = table.iloc[:released]
        found = estimate(here, question, study=plan.study, site=f"s{site}", wave=1, levels=levels)
        rows += with_release_variance(found, here, question, [draw], levels=levels, postures=(plan.posture,))
    return _averaged(rows, name, n, setting, sums=False)


def _averaged(rows: Sequence[Estimate], name: str, n: int, setting: Setting, *, sums: bool) -> dict[str, SiteVariance]:
    """The sites' variances of each term: harmonic means, as pooling weighs them."""
    out = {}
    for term in dict.fromkeys(row.term for row in rows):
        have = [row for row in rows if row.term == term and row.vi_sampling is not None]
        if not have:
            out[f"{name}: {term}"] = _lost(n, setting, next(row.reason for row in rows if row.term == term))
            continue
        whole = len(have) / sum(1 / max(row.vi or 0.0, 1e-300) for row in have)
        part = float(np.mean([row.vi_privacy / (row.vi or 1.0) for row in have]))
        out[f"{name}: {term}"] = SiteVariance(
            n=n,
            epsilon=setting.epsilon,
            sampling=whole * (1 - part),
            privacy=whole * part,
            common=float(np.mean([row.vi_common for row in have])),
            sums=sums,
            unlike=tuple(round((row.vi or 0.0) / whole, 3) for row in have),
        )
    return out


# -- pooling -----------------------------------------------------------------------------------------------------
def half_width(
    variance: float,
    common: float,
    *,
    sites: int,
    between: float,
    level: float = 0.95,
    unlike: tuple[float, ...] = (1.0,),
) -> float:
    """Median half-width of the pooled interval (REML, Hartung-Knapp with its floor), on the analysis scale.

    Args:
        variance, common: as of `SiteVariance.at`.
        between: standard deviation of the true effect between sites.
        unlike: as of `SiteVariance`.

    >>> round(half_width(0.04, 0.0, sites=12, between=0.0), 2), round(half_width(0.04, 0.0, sites=4, between=0.0), 2)
    (0.13, 0.34)
    """
    from scipy import special

    if sites == 1:
        return float(-special.ndtri((1 - level) / 2) * math.sqrt(variance + common))
    apart = round(between**2 / variance, 2) if variance > 0 else 0.0
    half = math.sqrt(variance) * _unit_half_width(sites, apart, level, unlike)
    return math.hypot(half, -special.stdtrit(sites - 1, (1 - level) / 2) * math.sqrt(common))


@lru_cache(maxsize=4096)
def _unit_half_width(sites: int, apart: float, level: float, unlike: tuple[float, ...]) -> float:
    """`half_width` of sites of variance 1, whose true effects have variance `apart`."""
    from coordinator.pooling.further.many import pool_many

    rng = np.random.default_rng(20260105)
    vi = rng.choice(np.array(unlike), (POOLED, sites))
    yi = np.sqrt(vi + apart) * rng.standard_normal((POOLED, sites))
    found = pool_many(yi, vi, level=level)
    return REAL_SITES * float(np.median(found.ci_ub - found.beta))


def power(effect: float, half: float, *, sites: int, level: float = 0.95) -> float:
    """Chance that the interval of this half-width leaves out no effect, where the true one is `effect`.

    >>> round(power(0.28, 0.2, sites=1000), 2)
    0.78
    """
    from scipy import stats

    df = max(sites - 1, 1)
    critical = float(stats.t.ppf((1 + level) / 2, df)) if sites > 1 else float(stats.norm.ppf((1 + level) / 2))
    shift = abs(effect) * critical / half
    if sites == 1:
        return float(stats.norm.sf(critical - shift) + stats.norm.cdf(-critical - shift))
    return float(stats.nct.sf(critical, df, shift) + stats.nct.cdf(-critical, df, shift))
