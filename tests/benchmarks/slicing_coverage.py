"""Whether intervals from slicing releases hold the truth: adjusted log odds ratios of one hospital, at two prices.

python -m tests.benchmarks.slicing_coverage [--times 40]

Fresh patients, directions and noise each time; replace-one, eight directions per entry. The law is known: 0.2 per
10 mmHg, 0.5 per 10 years, 0 for sex.
"""

import argparse

import numpy as np

from shared.estimands import estimate, parse_estimand
from shared.generators.projections import answer, moments
from shared.mechanisms.slicing import RowCode, Slicing, noise_for
from shared.plan import StudyPlan
from shared.randomness import seeded_rng
from shared.simulated import small_hospitals
from tests.benchmarks import record
from tests.benchmarks.tables_coverage import DELTA, STUDY, TRUTH, N

EPSILONS = (3.0, 8.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=40)
    times = parser.parse_args().times
    plan = StudyPlan.from_toml(STUDY.read_text())
    question = parse_estimand(plan.estimands["adjusted"])
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    code = RowCode(dictionary=plan.dictionary)
    results = {"n": N, "times": times, "delta": DELTA, "slices": 8 * code.d}
    for epsilon in EPSILONS:
        sigma = noise_for(epsilon, DELTA, d=code.d, slices=8 * code.d, distance=code.distance)
        mechanism = Slicing(d=code.d, slices=8 * code.d, sigma=sigma, distance=code.distance)
        seen = {term: [] for term in TRUTH}
        for k in range(times):
            [table] = small_hospitals(np.random.default_rng(k), sites=1, n=N).values()
            release = mechanism.release(code.encode(plan.dictionary.check(table)), seeded_rng(k))
            found = answer(code, moments(code, [release], sigma), question, levels=levels)
            for row, real in zip(found, estimate(table, question, levels=levels), strict=True):
                if row.yi is not None:
                    seen[row.term].append((row.yi, row.vi, row.vi_naive, real.vi))
        here = results[f"epsilon={epsilon:g}"] = {}
        for term, (name, truth) in TRUTH.items():
            yi, vi, naive, real = np.array(seen[term]).T
            here[name] = {
                "covered": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(vi))),
                "covered_if_rows_were_patients": float(np.mean(np.abs(yi - truth) < 1.96 * np.sqrt(naive))),
                "answered": len(yi) / times,
                "bias": float(yi.mean() - truth),
                "sd": float(yi.std()),
                "mean_se": float(np.sqrt(vi).mean()),
                "mean_se_of_the_real_table": float(np.sqrt(real).mean()),
            }
            print(epsilon, name, {k: round(v, 3) for k, v in here[name].items()}, flush=True)
    print(record.write("slicing_coverage", results, seed=0))


if __name__ == "__main__":
    main()
