"""How often the pooled 95 % interval of cross-tables, histograms, multinomial and quantile regression holds the truth.

Sites, patients per site, releases and figures are those of `model_coverage`; here the outcomes are a stage of three
levels, by a multinomial law, and a measurement, whose quantiles all have one slope. Truth is what made them; of shares
their integral over the covariate.

python -m tests.benchmarks.described_coverage [repetitions] [folder]
"""

import itertools

import numpy as np
import pandas as pd
from scipy import special, stats

from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import PlannedOutcomes
from tests.benchmarks.model_coverage import ARM, PERSONS, X, at_weights, measure, repetition

SEED = 7070
STAGES = ("a", "b", "c")
DICTIONARY = Dictionary(
    name="described",
    version=1,
    columns=(
        Column(name="x", kind="continuous", lower=-5, upper=5),
        Column(name="arm", kind="binary", levels=(0, 1)),
        Column(name="stage", kind="nominal", levels=STAGES),
        Column(name="y", kind="continuous", lower=-8, upper=10),
    ),
)
EDGES = (-8.0, -1.0, 0.0, 1.0, 2.0, 3.0, 10.0)


def chances(x: np.ndarray, arm: np.ndarray) -> np.ndarray:
    """(n, 3): of each stage. The one rises with x as the other falls."""
    eta = X * x + ARM * arm
    return special.softmax(np.column_stack([np.zeros(len(x)), 0.3 + eta, -0.2 - eta]), axis=1)


def patients(rng: np.random.Generator) -> pd.DataFrame:
    x, arm = rng.standard_normal(PERSONS).clip(-3, 3), rng.integers(0, 2, PERSONS)
    stage = (rng.random(PERSONS)[:, None] > np.cumsum(chances(x, arm), axis=1)[:, :2]).sum(axis=1)
    y = 1 + X * x + ARM * arm + rng.standard_normal(PERSONS)
    return pd.DataFrame({"x": x, "arm": arm, "stage": np.array(STAGES)[stage], "y": y.clip(-8, 10)})


def truths() -> dict[str, dict[str, float]]:
    """By question and term."""
    x = np.linspace(-3, 3, 1201)
    share = np.diff(stats.norm.cdf(np.r_[-np.inf, (x[1:] + x[:-1]) / 2, np.inf]))
    stage = np.array([share @ chances(x, np.full(len(x), arm)) for arm in (0, 1)])
    below = [np.mean([share @ stats.norm.cdf(edge - 1 - X * x - ARM * arm) for arm in (0, 1)]) for edge in EDGES[1:-1]]
    bins = np.diff([0.0, *below, 1.0])
    table = {
        f"share(stage[{level}]) | {arm}": special.logit(stage[arm, k])
        for arm in (0, 1)
        for k, level in enumerate(STAGES)
    }
    for k, level in enumerate(STAGES[1:], start=1):
        table[f"odds_ratio(stage[{level}]) | 1"] = float(np.log(stage[1, k] * stage[0, 0] / stage[0, k] / stage[1, 0]))
    levels = [f"share(y[{low:g} to {high:g}])" for low, high in itertools.pairwise(EDGES)]
    return {
        "multinomial(stage) ~ x + arm": {"x | b": X, "arm | b": ARM, "x | c": -X, "arm | c": -ARM},
        "quantile(y, tau = 0.5) ~ x + arm": {"x": X, "arm": ARM},
        "quantile(y, tau = 0.8) ~ x + arm": {"x": X, "arm": ARM},
        "crosstab(stage, arm)": {term: float(value) for term, value in table.items()},
        f"histogram(y, breaks = c({', '.join(f'{edge:g}' for edge in EDGES)}))": dict(
            zip(levels, special.logit(bins).tolist(), strict=True)
        ),
    }


QUESTIONS = truths()


def released(table: pd.DataFrame, encoder: Encoder, rng) -> dict[float, pd.DataFrame]:
    place = {name: j for j, name in enumerate(encoder.columns)}
    outcomes = PlannedOutcomes(
        d=encoder.d,
        groups=tuple((place[name],) for name in ("stage", "y")),
        levels={place["arm"]: 2, place["stage"]: len(STAGES)},
        whole=frozenset(),
        gates={},
        bounds={place["x"]: (-1.0, 1.0), place["y"]: (-1.0, 1.0)},
    )
    return at_weights(table, encoder, outcomes, rng)


def one(b: int) -> np.ndarray:
    """As of `model_coverage.repetition`."""
    encoder, levels = Encoder(dictionary=DICTIONARY), {"arm": (0, 1), "stage": STAGES}
    return repetition(b, SEED, lambda rng, chance: released(patients(chance), encoder, rng), QUESTIONS, levels)


if __name__ == "__main__":
    measure("described_coverage", one, QUESTIONS, SEED)
