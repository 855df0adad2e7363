"""Whether intervals from noisy tables hold the truth: adjusted log odds ratios of one hospital, at three prices.

python -m tests.benchmarks.tables_coverage

Fresh patients and fresh noise each time. The law is known: 0.2 per 10 mmHg, 0.5 per 10 years, 0 for sex.
"""

from pathlib import Path

import numpy as np

from shared import privacy
from shared.estimands import estimate, parse_estimand
from shared.generators.one_step import Released, answer, fitted
from shared.mechanisms.tables import Tables, attributes, sensitivity
from shared.plan import StudyPlan
from shared.randomness import seeded_rng
from shared.simulated import small_hospitals
from tests.benchmarks import record

TIMES, N, DELTA, EPSILONS = 60, 1500, 1e-6, (1.0, 3.0, 8.0)
TRUTH = {"sbp/10": ("pressure", 0.2), "age/10": ("age", 0.5), "C(sex)[male]": ("sex", 0.0)}
STUDY = Path(__file__).parents[2] / "deploy" / "studies" / "first-private.toml"


def main():
    plan = StudyPlan.from_toml(STUDY.read_text())
    question = parse_estimand(plan.estimands["adjusted"])
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    columns = attributes(plan.dictionary)
    tables = len(Tables(attributes=columns, sigma=1.0).tables)
    results = {"n": N, "times": TIMES, "delta": DELTA}
    for epsilon in EPSILONS:
        sigma = privacy.calibrate(privacy.Gaussian, epsilon, DELTA, sensitivity=sensitivity(tables)).sigma
        mechanism = Tables(attributes=columns, sigma=sigma)
        seen = {term: [] for term in TRUTH}
        for k in range(TIMES):
            [table] = small_hospitals(np.random.default_rng(k), sites=1, n=N).values()
            counts = tuple(mechanism.release(plan.dictionary.check(table), seeded_rng(k)))
            released = Released(tables=mechanism, counts=counts, n=N)
            found = answer(released, fitted(released), plan.dictionary, question, levels=levels)
            for row, real in zip(found, estimate(table, question, levels=levels), strict=True):
                if row.yi is not None:
                    seen[row.term].append((row.yi, row.vi, row.vi_naive, real.vi))
        here = results[f"epsilon={epsilon:g}"] = {}
        for term, (name, truth) in TRUTH.items():
            yi, vi, naive, real = np.array(seen[term]).T
            here[name] = {
                "covered": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(vi))),
                "covered_if_rows_were_patients": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(naive))),
                "answered": len(yi) / TIMES,
                "bias": float(yi.mean() - truth),
                "sd": float(yi.std()),
                "mean_se": float(np.sqrt(vi).mean()),
                "mean_se_of_the_real_table": float(np.sqrt(real).mean()),
            }
            print(epsilon, name, here[name], flush=True)
    print(record.write("tables_coverage", results, seed=0))


if __name__ == "__main__":
    main()
