"""Whether intervals from noisy tables hold the truth: adjusted log odds ratios of one hospital, at three prices.

python -m tests.benchmarks.tables_coverage

Fresh patients and fresh noise each time. The law is known: 0.2 per 10 mmHg, 0.5 per 10 years, 0 for sex.
"""

from pathlib import Path

import numpy as np

from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.mechanisms.tables.one_step import Released, answer, fitted
from shared.plans.plan import StudyPlan
from shared.privacy import accountant as privacy
from shared.privacy import calibration
from shared.simulated import small_hospitals
from tests.benchmarks import record

DELTA = 1e-6
TIMES, N, EPSILONS = record.sized((60, 1500, (1.0, 3.0, 8.0)), (2, 1500, (3.0,)))
TRUTH = {"sbp/10": ("pressure", 0.2), "age/10": ("age", 0.5), "C(sex)[male]": ("sex", 0.0)}
STUDY = Path(__file__).parents[2] / "deploy" / "studies" / "first-private.toml"
PLAN = StudyPlan.from_toml(STUDY.read_text())
QUESTION = parse_estimand(PLAN.estimands["adjusted"])
LEVELS = {column.name: column.levels for column in PLAN.dictionary.released if column.levels}


def covered(answers, *, times, n):
    """How often the interval of each term holds the truth, over `times` hospitals of n patients.

    Args:
        answers: (checked records, which time) to the estimates of the release that is drawn from them.
    """
    seen = {term: [] for term in TRUTH}
    for k in range(times):
        [table] = small_hospitals(np.random.default_rng(k), sites=1, n=n).values()
        found = answers(PLAN.dictionary.check(table), k)
        for row, real in zip(found, estimate(table, QUESTION, levels=LEVELS), strict=True):
            if row.yi is not None:
                seen[row.term].append((row.yi, row.vi + row.vi_common, row.vi_naive, real.vi))
    out = {}
    for term, (name, truth) in TRUTH.items():
        yi, vi, naive, real = np.array(seen[term]).T
        out[name] = {
            "covered": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(vi))),
            "covered_if_rows_were_patients": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(naive))),
            "answered": len(yi) / times,
            "bias": float(yi.mean() - truth),
            "sd": float(yi.std()),
            "mean_se": float(np.sqrt(vi).mean()),
            "mean_se_of_the_real_table": float(np.sqrt(real).mean()),
        }
        print(name, {k: round(v, 3) for k, v in out[name].items()}, flush=True)
    return out


def main():
    columns = attributes(PLAN.dictionary)
    tables = len(CountTables(attributes=columns, sigma=1.0).tables)
    results = {"n": N, "times": TIMES, "delta": DELTA}
    for epsilon in EPSILONS:
        sigma = calibration.calibrate(privacy.Gaussian, epsilon, DELTA, sensitivity=sensitivity(tables)).sigma
        mechanism = CountTables(attributes=columns, sigma=sigma)

        def answers(records, k, mechanism=mechanism):
            counts = tuple(mechanism.release(records, seeded_rng(k)))
            released = Released(tables=mechanism, counts=counts, n=len(records))
            return answer(released, fitted(released), PLAN.dictionary, QUESTION, levels=LEVELS)

        print(f"epsilon = {epsilon:g}")
        results[f"epsilon={epsilon:g}"] = covered(answers, times=TIMES, n=N)
    print(record.write("tables_coverage", results, seed=0))


if __name__ == "__main__":
    main()
