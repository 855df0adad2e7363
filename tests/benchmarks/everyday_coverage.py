"""How often the pooled 95 % interval of the everyday answers holds the truth: means, shares, 2 × 2 tables, a Table 1,
linear, logistic, Poisson and ordinal regression, flexible and stratified hazards, log-rank, RMST, laws of a time.

Sites, patients per site, releases and figures are those of `model_coverage`. Truth is what made the patients; of an
answer that no parameter of theirs is, the same answer from two million of them.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.everyday_coverage [repetitions] [folder]
"""

import functools

import numpy as np
import pandas as pd
from scipy import special

from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.formulas import QuestionRows
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import PlannedOutcomes
from tests.benchmarks import record, survival_coverage
from tests.benchmarks.model_coverage import ARM, PERSONS, X, at_weights, measure, repetition

SEED, EVERYBODY = 9191, record.sized(2_000_000, 5000)
STAGES, CUTS = ("a", "b", "c"), (-0.5, 1.0)
DICTIONARY = Dictionary(
    name="everyday",
    version=1,
    columns=(
        Column(name="x", kind="continuous", lower=-5, upper=5),
        Column(name="arm", kind="binary", levels=(0, 1)),
        Column(name="stage", kind="ordered", levels=STAGES),
        Column(name="odds", kind="binary", levels=(0, 1)),
        Column(name="k", kind="integer", lower=0, upper=60),
        Column(name="y", kind="continuous", lower=-8, upper=10),
        Column(name="years", kind="time", upper=6, event="died"),
        Column(name="died", kind="event"),
    ),
)
LEVELS = {"arm": (0, 1), "stage": STAGES}


def patients(rng: np.random.Generator, n: int = PERSONS) -> pd.DataFrame:
    x, arm = rng.standard_normal(n).clip(-3, 3), rng.integers(0, 2, n)
    eta = X * x + ARM * arm
    stage = (special.logit(rng.random(n))[:, None] + eta[:, None] > np.array(CUTS)).sum(axis=1)
    along = survival_coverage.X * x + survival_coverage.ARM * arm
    years, ends = survival_coverage.weibull(along, rng.random(n)), rng.uniform(1, 6, n)
    return pd.DataFrame(
        {
            "x": x,
            "arm": arm,
            "stage": np.array(STAGES)[stage],
            "odds": (rng.random(n) < special.expit(eta - 0.5)).astype(int),
            "k": rng.poisson(np.exp(eta + 0.7)).clip(0, 60),
            "y": (3 + eta + rng.standard_normal(n)).clip(-8, 10),
            "years": np.minimum(years, ends),
            "died": (years <= ends).astype(int),
        }
    )


KNOWN = {
    "mean(y)": {"mean(y)": 3 + ARM / 2},
    "difference(y) ~ arm": {"arm": ARM},
    "ols(y) ~ x + arm": {"x": X, "arm": ARM},
    "ols(y, robust = HC3) ~ x + arm": {"arm": ARM},
    "logistic(odds) ~ x + arm": {"x": X, "arm": ARM},
    "poisson(k) ~ x + arm": {"x": X, "arm": ARM},
    "ordinal(stage) ~ x + arm": {"x": X, "arm": ARM},
    "flexible(years, died) ~ x + arm": {
        "x": -survival_coverage.X / survival_coverage.SCALE,
        "arm": -survival_coverage.ARM / survival_coverage.SCALE,
    },
    "cox(years, died) ~ x + strata(arm)": {"x": -survival_coverage.X / survival_coverage.SCALE},
}
OF_EVERYBODY = {
    "ratio(k) ~ arm": ("arm",),
    "proportion(odds)": ("proportion(odds)",),
    "two_by_two(odds) ~ arm": ("arm",),
    "two_by_two(odds, measure = RR) ~ arm": ("arm",),
    "two_by_two(odds, measure = RD) ~ arm": ("arm",),
    "correlation(x, y)": ("correlation(x, y)",),
    "standardised(odds, of = arm, contrast = OR) ~ x + arm": ("arm",),
    "standardised(odds, of = x, contrast = slope) ~ x + arm": ("x",),
    "rmst(years, died, tau = 4) ~ arm": ("arm",),
    "logrank(years, died) ~ arm": ("arm",),
    "aft(years, died, dist = loglogistic) ~ x + arm": ("x", "arm"),
    "aft(years, died, dist = lognormal) ~ x + arm": ("x", "arm"),
    "table_one(y, stage, by = arm)": (
        "mean(y) | 1",
        "sd(y)",
        "q1(y)",
        "median(y) | 1",
        "smd(y) | 1",
        "share(stage[b]) | 1",
        "smd(stage[b]) | 1",
    ),
}


@functools.cache
def truths() -> dict[str, dict[str, float]]:
    """By question and term."""
    table = QuestionRows(patients(np.random.default_rng(SEED), EVERYBODY))
    found = dict(KNOWN)
    for text, terms in OF_EVERYBODY.items():
        rows = {row.term.replace("[1]", ""): row.yi for row in estimate(table, parse_estimand(text), levels=LEVELS)}
        found[text] = {term: float(rows[term]) for term in terms}
    return found


def released(table: pd.DataFrame, encoder: Encoder, rng) -> dict[float, pd.DataFrame]:
    place = {name: j for j, name in enumerate(encoder.columns)}
    outcomes = PlannedOutcomes(
        d=encoder.d,
        groups=tuple(
            tuple(place[name] for name in group) for group in (("stage",), ("odds",), ("k",), ("y",), ("years", "died"))
        ),
        levels={place["arm"]: 2, place["stage"]: len(STAGES), place["odds"]: 2, place["died"]: 2},
        whole=frozenset({place["k"]}),
        gates={},
        bounds={place["k"]: (0.0, 60.0), **{place[name]: (-1.0, 1.0) for name in ("x", "y")}},
    )
    return at_weights(table, encoder, outcomes, rng)


def one(b: int) -> np.ndarray:
    """As of `model_coverage.repetition`."""
    encoder = Encoder(dictionary=DICTIONARY)
    return repetition(b, SEED, lambda rng, chance: released(patients(chance), encoder, rng), truths(), LEVELS)


if __name__ == "__main__":
    measure("everyday_coverage", one, truths(), SEED)
