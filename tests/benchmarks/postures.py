"""What each posture costs in utility: log odds ratio per 10 mmHg at ε = 8, released beside real, simulated hospitals.

python -m tests.benchmarks.postures
"""

from pathlib import Path

import numpy as np

from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.plans.encoding import Encoder
from shared.plans.plan import StudyPlan
from shared.simulated import small_hospitals
from site_agent.release.fitting import fit
from tests.benchmarks import record

SEED = 12
DRAWS, SITES, N = record.sized((4, 3, 1500), (1, 2, 300))
STUDIES = Path(__file__).parents[2] / "deploy" / "studies"


def plans():
    """The shipped example of each posture; `local` is the holdout's at the same w, its fit not covered by ε."""
    texts = {name: (STUDIES / f"first-{name}.toml").read_text() for name in ("holdout", "public", "private")}
    texts["local"] = texts["holdout"].replace('posture = "holdout"', 'posture = "local"')
    return {name: StudyPlan.from_toml(text) for name, text in texts.items()}


def coefficient(plan, table):
    """The planned analysis on one table: the coefficient of pressure."""
    question = parse_estimand(plan.estimands["adjusted"])
    answers = estimate(table, question, study=plan.study, site="site", wave=1)
    return next(answer.yi for answer in answers if answer.term == "sbp/10")


def main():
    found = {"real": [], **{name: [] for name in plans()}}
    rng = np.random.default_rng(SEED)
    tables = [table for _ in range(DRAWS) for table in small_hospitals(rng, sites=SITES, n=N).values()]
    for k, table in enumerate(tables):
        for name, plan in plans().items():
            encoder = Encoder(dictionary=plan.dictionary)
            checked = plan.dictionary.check(table)
            x = encoder.encode(checked, seeded_rng(SEED + k))
            if name == "local":
                found["real"].append(coefficient(plan, encoder.decode(x)))
            fitted = fit(plan, encoder, x, tuple(table["person"]), seeded_rng(SEED + 100 + k))
            noisy = fitted.mechanism.release(x[fitted.released], seeded_rng(SEED + 200 + k))
            found[name].append(coefficient(plan, encoder.decode(noisy)))
    real = np.array(found["real"])
    results = {"hospitals": len(tables), "records": N, "epsilon": 8.0, "unit": "log odds ratio per 10 mmHg"}
    for name, values in found.items():
        gap = np.array(values) - real
        results[name] = {"mean": float(np.mean(values)), "mean_absolute_gap": float(np.abs(gap).mean())}
        print(f"{name:8s} mean {results[name]['mean']:+.3f}  mean gap {results[name]['mean_absolute_gap']:.3f}")
    print(record.write("postures", results, SEED))


if __name__ == "__main__":
    main()
