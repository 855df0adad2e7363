"""Domain adaptation between two sites' noisy tables: a classifier for a hospital that never recorded the outcome.

python -m tests.benchmarks.tables_adaptation [--seeds 5]

The idea of the source paper's section 4.3, on tables instead of images (those are out of scope): the source site
releases all one- and two-way tables with the outcome, the target site those of everything but the outcome, both by
Gaussian noise, replace-one. At the coordinator, latent classes are fitted to each, and rows are drawn from both. From
there on nothing costs anything. Two ways in which the target may differ:

instrument  the target measures the two numbers differently: what the paper's two sets of handwritten digits are to each
            other
mix         the target's persons are of another mix of the law's three classes, 0.1, 0.2, 0.7 instead of 0.5, 0.3, 0.2

A logistic regression of the outcome is fitted to rows of the source and judged on real persons of the target, by F1, by
the area under the ROC curve, by log loss and by the gap between the mean prediction and the share of outcomes:

source      rows as they are
mapped      each number moved by the monotone map from the source's to the target's drawn quantiles
weighted    rows weighted by how much likelier each is under the target's mixture, at most 20 times
labelled    rows of the target's own tables with its outcome, at the same price: what cannot be had
"""

import argparse

import numpy as np
from scipy import stats

from shared.base.randomness import seeded_rng
from shared.estimands.fits.families import FAMILIES
from shared.estimands.fits.regression import generalised
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.mechanisms.tables.one_step import Released, fitted, synthetic
from shared.plans.dictionary import Dictionary
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from tests.benchmarks import record
from tests.benchmarks.tables_quality import DELTA, DICTIONARY, NUMBERS, N, census_like, design, summary

EPSILONS = record.sized((1.0, 5.1), (5.1,))
SHARES = (0.1, 0.2, 0.7)
SHIFTS = record.sized(("instrument", "mix"), ("mix",))
MOST = 20.0
UNLABELLED = Dictionary(
    name="census-like without outcome",
    version=1,
    columns=tuple(column for column in DICTIONARY.columns if column.name != "outcome"),
)


def released(dictionary, persons, epsilon, seed):
    """The model of a site's noisy tables."""
    columns = attributes(dictionary)
    count = len(CountTables(attributes=columns, sigma=1.0).tables)
    sigma = calibration.calibrate(privacy.Gaussian, epsilon, DELTA, sensitivity=sensitivity(count)).sigma
    mechanism = CountTables(attributes=columns, sigma=sigma)
    checked = dictionary.check(persons[[column.name for column in dictionary.columns]])
    return fitted(
        Released(tables=mechanism, counts=tuple(mechanism.release(checked, seeded_rng(seed))), n=len(checked))
    )


def log_density(model, checked):
    """(n,) of the columns that the target has, by a model of at least those."""
    wanted = {column.name for column in UNLABELLED.columns}
    total = np.log(model.weights)[None, :]
    for place, one in enumerate(model.attributes):
        if one.name in wanted:
            total = total + np.log(model.profile(place)[:, one.codes(checked)].T + 1e-12)
    most = total.max(axis=1)
    return most + np.log(np.exp(total - most[:, None]).sum(axis=1))


def people(n, seed, shift):
    """Persons of the target."""
    if shift == "mix":
        return census_like(n, seed, SHARES)
    table = census_like(n, seed)
    table["age"] = 95 - 0.6 * (95 - table["age"])
    table["income"] = 120 * (table["income"] / 120) ** 0.5
    return table


def mapped(rows, like):
    """Rows whose numbers have the law of another table's, each order kept."""
    out = rows.copy()
    grid = np.linspace(0, 1, 201)
    for name in NUMBERS:
        ends = np.quantile(rows[name], grid) + 1e-9 * grid
        out[name] = np.interp(rows[name], ends, np.quantile(like[name], grid))
    return out


def judged(rows, persons, weights=None):
    """A logistic regression of the outcome on rows, among real persons."""
    x, y = design(rows), rows["outcome"].to_numpy(dtype=float)
    found = generalised(x, y, FAMILIES["logistic"], np.ones(len(x)) if weights is None else weights, np.zeros(len(x)))
    score, true = design(persons) @ found.beta, persons["outcome"].to_numpy() == 1
    share = np.clip(1 / (1 + np.exp(-score)), 1e-9, 1 - 1e-9)
    ranks = stats.rankdata(score)
    area = (ranks[true].sum() - true.sum() * (true.sum() + 1) / 2) / (true.sum() * (~true).sum())
    return {
        "f1": 2 * ((score > 0) & true).sum() / ((score > 0).sum() + true.sum()),
        "auc": float(area),
        "log_loss": float(-np.where(true, np.log(share), np.log(1 - share)).mean()),
        "calibration_gap": float(abs(share.mean() - true.mean())),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=record.sized(5, 1))
    seeds = parser.parse_args().seeds
    results = {"n": N, "delta": DELTA, "seeds": seeds, "target_shares": SHARES}
    for shift in SHIFTS:
        for epsilon in EPSILONS:
            found = {"source": [], "mapped": [], "weighted": [], "labelled": []}
            for seed in range(seeds):
                source = census_like(N, 5 * seed)
                target, others = (people(n, 5 * seed + k, shift) for k, n in ((1, N), (2, N // 2)))
                ours = released(DICTIONARY, source, epsilon, 3 * seed)
                theirs = released(UNLABELLED, target, epsilon, 3 * seed + 1)
                best = released(DICTIONARY, target, epsilon, 3 * seed + 2)
                [rows] = synthetic(ours, DICTIONARY, draws=1, rng=np.random.default_rng(seed))
                [like] = synthetic(theirs, UNLABELLED, draws=1, rng=np.random.default_rng(seed))
                [ideal] = synthetic(best, DICTIONARY, draws=1, rng=np.random.default_rng(seed))
                checked = DICTIONARY.check(rows)
                ratio = np.exp(np.minimum(log_density(theirs, checked) - log_density(ours, checked), np.log(MOST)))
                found["source"].append(judged(rows, others))
                found["mapped"].append(judged(mapped(rows, like), others))
                found["weighted"].append(judged(rows, others, ratio / ratio.mean()))
                found["labelled"].append(judged(ideal, others))
            name = f"{shift}, epsilon={epsilon:g}"
            results[name] = {way: summary(each) for way, each in found.items()}
            print(name, {way: round(row["log_loss"]["mean"], 3) for way, row in results[name].items()}, flush=True)
    print(record.write("tables_adaptation", results, seed=0))


if __name__ == "__main__":
    main()
