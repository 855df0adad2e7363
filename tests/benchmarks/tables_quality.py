"""What noisy tables keep of a mixed census-like table: margins, pairs, and what a classifier learns from the rows.

python -m tests.benchmarks.tables_quality

The table: ten nominal columns, two numbers and a yes/no outcome, which hang together through three classes and four
normal factors. Its persons differ from seed to seed, its law does not. Metrics, all 1 at best, means over columns or
pairs: `ks` 1 - the Kolmogorov-Smirnov distance of a number; `tv` 1 - the total variation distance of a levelled column;
`contingency` the same of a pair of levelled columns; `correlation` 1 - half the distance of the numbers' correlations;
`f1` of a logistic regression fitted to the rows, predicting the outcome of other persons. `fresh` are as many other
persons of the same law: what no synthetic table can be expected to exceed.
"""

import itertools
import time

import numpy as np
import pandas as pd
from scipy import stats

from shared.base.randomness import seeded_rng
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.mechanisms.tables.one_step import Released, fitted, synthetic
from shared.plans.dictionary import Column, Dictionary
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from tests.benchmarks import record

DELTA, EPSILONS = 1e-5, (1.0, 5.1)
SEEDS, N = record.sized((5, 20_000), (1, 400))
LEVELS = (2, 5, 9, 3, 6, 2, 4, 8, 5, 3)
LAW = 12345
NOMINAL = tuple(f"c{j}" for j in range(len(LEVELS)))
NUMBERS = {"age": (17.0, 95.0), "income": (0.0, 120.0)}
DICTIONARY = Dictionary(
    name="census-like",
    version=1,
    columns=(
        *(
            Column(name=name, kind="nominal" if size > 2 else "binary", levels=tuple(range(size)))
            for name, size in zip(NOMINAL, LEVELS, strict=True)
        ),
        *(Column(name=name, kind="continuous", lower=low, upper=high) for name, (low, high) in NUMBERS.items()),
        Column(name="outcome", kind="binary"),
    ),
)
CODED = {**dict(zip(NOMINAL, LEVELS, strict=True)), "outcome": 2}


def census_like(n, seed, shares=(0.5, 0.3, 0.2)):
    """n persons; levels as their codes. `shares` are of the three classes."""
    law, rng = np.random.default_rng(LAW), np.random.default_rng(seed)
    centres = 1.2 * law.standard_normal((3, 4))
    factors = 0.8 * rng.standard_normal((n, 4)) + centres[rng.choice(3, n, p=shares)]
    table = {}
    for name, size in zip(NOMINAL, LEVELS, strict=True):
        loads, shift = 1.1 * law.standard_normal((4, size)), 0.8 * law.standard_normal(size)
        table[name] = (factors @ loads + shift + rng.gumbel(size=(n, size))).argmax(axis=1)
    age = 45 + 12 * factors[:, 0] + 5 * factors[:, 1] + 6 * rng.standard_normal(n)
    income = np.exp(3.2 + 0.25 * factors[:, 0] - 0.3 * factors[:, 2] + 0.35 * rng.standard_normal(n))
    for name, value in (("age", age), ("income", income)):
        table[name] = value.clip(*NUMBERS[name])
    eta = 1.2 * factors[:, 0] - factors[:, 2] + 0.03 * (table["age"] - 45) + 0.8 * (table["c0"] == 1) - 0.9
    table["outcome"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    return pd.DataFrame(table)


def share(table, *names):
    """The frequencies of the cells of one or two columns."""
    shape = tuple(CODED[name] for name in names)
    flat = np.ravel_multi_index(tuple(table[name].to_numpy(dtype=int) for name in names), shape)
    return np.bincount(flat, minlength=int(np.prod(shape))) / len(table)


def design(table):
    """An intercept, every level but the first, and the numbers over their range."""
    levels = [np.eye(CODED[name])[table[name].to_numpy(dtype=int)][:, 1:] for name in NOMINAL]
    numbers = [(table[[name]].to_numpy() - low) / (high - low) for name, (low, high) in NUMBERS.items()]
    return np.hstack([np.ones((len(table), 1)), *levels, *numbers])


def f1(rows, others):
    """F1 of the outcome's logistic regression on `rows`, among other persons."""
    x, y = design(rows), rows["outcome"].to_numpy(dtype=float)
    found = generalised(x, y, FAMILIES["logistic"], np.ones(len(x)), np.zeros(len(x)))
    said, true = design(others) @ found.beta > 0, others["outcome"].to_numpy() == 1
    return 2 * (said & true).sum() / (said.sum() + true.sum())


def quality(real, rows, others):
    """The five metrics."""

    def apart(*names):
        return np.abs(share(real, *names) - share(rows, *names)).sum() / 2

    r = [np.corrcoef(table["age"], table["income"])[0, 1] for table in (real, rows)]
    return {
        "ks": 1 - np.mean([stats.ks_2samp(real[name], rows[name]).statistic for name in NUMBERS]),
        "tv": 1 - np.mean([apart(name) for name in CODED]),
        "contingency": 1 - np.mean([apart(*pair) for pair in itertools.combinations(CODED, 2)]),
        "correlation": 1 - abs(r[0] - r[1]) / 2,
        "f1": f1(rows, others),
    }


def summary(found):
    """Mean and standard deviation of each metric over the seeds."""
    return {
        name: {"mean": float(np.mean([one[name] for one in found])), "sd": float(np.std([one[name] for one in found]))}
        for name in found[0]
    }


def independent(real, sigma, rng):
    """Rows from noisy one-way tables alone: what a release without pairs would give at the same noise."""
    mechanism = CountTables(attributes=attributes(DICTIONARY), sigma=sigma, pairs=())
    released = Released(tables=mechanism, counts=tuple(mechanism.release(real, rng)), n=len(real))
    [rows] = synthetic(fitted(released), DICTIONARY, draws=1, rng=np.random.default_rng(1))
    return rows


def main():
    found = {"fresh": [], **{f"epsilon={e:g}": [] for e in EPSILONS}, "margins": []}
    seconds, sigmas = [], {}
    columns = attributes(DICTIONARY)
    tables = len(CountTables(attributes=columns, sigma=1.0).tables)
    for seed in range(SEEDS):
        real, other, others = (census_like(n, 3 * seed + k) for k, n in enumerate((N, N, N // 2)))
        checked = DICTIONARY.check(real)
        found["fresh"].append(quality(real, other, others))
        for epsilon in EPSILONS:
            sigma = calibration.calibrate(privacy.Gaussian, epsilon, DELTA, sensitivity=sensitivity(tables)).sigma
            sigmas[f"epsilon={epsilon:g}"] = sigma
            mechanism = CountTables(attributes=columns, sigma=sigma)
            released = Released(
                tables=mechanism, counts=tuple(mechanism.release(checked, seeded_rng(seed))), n=len(checked)
            )
            start = time.process_time()
            model = fitted(released)
            seconds.append(time.process_time() - start)
            [rows] = synthetic(model, DICTIONARY, draws=1, rng=np.random.default_rng(seed))
            found[f"epsilon={epsilon:g}"].append(quality(real, rows, others))
            if epsilon == EPSILONS[0]:
                alone = calibration.calibrate(
                    privacy.Gaussian, epsilon, DELTA, sensitivity=sensitivity(len(columns))
                ).sigma
                found["margins"].append(quality(real, independent(checked, alone, seeded_rng(seed)), others))
        print(seed, {name: {k: round(v, 3) for k, v in each[-1].items()} for name, each in found.items()}, flush=True)
    results = {name: summary(each) for name, each in found.items()}
    results |= {"n": N, "delta": DELTA, "seeds": SEEDS, "tables": tables, "sigma": sigmas, "neighbours": "replace-one"}
    results["fit_cpu_seconds"] = {"median": float(np.median(seconds)), "most": float(max(seconds))}
    print(record.write("tables_quality", results, seed=0))


if __name__ == "__main__":
    main()
