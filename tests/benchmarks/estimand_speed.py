"""CPU milliseconds of one site's answer, from a table and a formula, beside statsmodels and R on the same rows.

Ours reads the formula, leaves incomplete rows out, tells which terms the table supports, and says what each row moves
the estimate by; so the rival is the formula interface of each. `arrays` is statsmodels given ready matrices, without
any of that. R measures itself (`proc.time`), after one call that warms it up.

python -m tests.benchmarks.estimand_speed
"""

import statistics
import subprocess
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from shared.estimands.answer import estimate, parse_estimand
from tests.benchmarks import record

SEED = 24
SIZES, REPEATS = record.sized(((10_000, 100_000, 1_000_000), 7), ((300,), 1))
QUESTIONS = {
    "ols": "ols(y) ~ a + b + c + d",
    "logistic": "logistic(ill) ~ a + b + c + d",
    "cox": "cox(years, died) ~ a + b + c + d",
    "km": "km(years, died, at = 1)",
}
R = """
library(survival)
table <- read.csv(commandArgs(TRUE)[1]); repeats <- as.integer(commandArgs(TRUE)[2])
timed <- function(work) {
  work(); gc(FALSE)
  median(sapply(seq_len(repeats), function(k) { at <- proc.time(); work(); sum((proc.time() - at)[1:2]) })) * 1000
}
cat(timed(function() summary(lm(y ~ a + b + c + d, table))),
    timed(function() summary(glm(ill ~ a + b + c + d, binomial, table))),
    timed(function() summary(coxph(Surv(years, died) ~ a + b + c + d, table))),
    timed(function() summary(survfit(Surv(years, died) ~ 1, table), times = 1)))
"""


def rows(n):
    """Four covariates, an outcome of each type."""
    rng = np.random.default_rng((SEED, n))
    table = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    eta = table.to_numpy() @ np.array([0.3, 0.2, -0.1, 0.0])
    table["y"] = eta + rng.normal(size=n)
    table["ill"] = (rng.uniform(size=n) < 1 / (1 + np.exp(1 - eta))).astype(int)
    table["years"], table["died"] = rng.exponential(np.exp(-eta)), (rng.uniform(size=n) < 0.7).astype(int)
    return table


def timed(work, repeats):
    """Median CPU milliseconds, after one call that is not counted."""
    work()
    took = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        took.append(1000 * (time.process_time() - start))
    return statistics.median(took)


def rivals(table, repeats):
    """Statsmodels by formula, and by ready matrices; no Cox regression of it, which takes seconds."""
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    warnings.simplefilter("ignore")
    ready = sm.add_constant(table[list("abcd")].to_numpy())
    y, ill, years, died = (table[name].to_numpy() for name in ("y", "ill", "years", "died"))
    by_formula = {
        "ols": lambda: smf.ols("y ~ a + b + c + d", table).fit().bse,
        "logistic": lambda: smf.logit("ill ~ a + b + c + d", table).fit(disp=0).bse,
    }
    by_arrays = {
        "ols": lambda: sm.OLS(y, ready).fit().bse,
        "logistic": lambda: sm.Logit(ill, ready).fit(disp=0).bse,
        "km": lambda: sm.SurvfuncRight(years, died).surv_prob_se,
    }
    return {
        "statsmodels": {name: timed(work, repeats) for name, work in by_formula.items()},
        "arrays": {name: timed(work, repeats) for name, work in by_arrays.items()},
    }


def in_r(table, repeats):
    """R's `lm`, `glm`, `coxph` and `survfit`, each with its summary."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.to_csv(path, index=False)
        command = ["Rscript", "-e", R, str(path), str(repeats)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(zip(QUESTIONS, map(float, out.split()), strict=True))


def main():
    results = {}
    for n in SIZES:
        table, repeats = rows(n), REPEATS if n < 1_000_000 else 3
        questions = {name: parse_estimand(text) for name, text in QUESTIONS.items()}
        ours = {name: timed(partial(estimate, table, question), repeats) for name, question in questions.items()}
        results[str(n)] = {"ours": ours, **rivals(table, repeats), "r": in_r(table, repeats)}
        for name in QUESTIONS:
            figures = {who: round(found[name], 1) for who, found in results[str(n)].items() if name in found}
            print(n, name, figures, flush=True)
    version = subprocess.run(
        ["Rscript", "-e", "cat(R.version.string, 'survival', format(packageVersion('survival')))"],
        check=True,
        capture_output=True,
        text=True,
    )
    print(record.write("estimand_speed", {"rows": results, "unit": "ms of CPU, medians", "r": version.stdout}, SEED))


if __name__ == "__main__":
    main()
