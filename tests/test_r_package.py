"""The R package of `deploy/r`, run by R itself: what it pools, and how its formulas are read.

The package's own tests are run by `R CMD check` (.ci/run); here R stands beside Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from pages import ROOT

from coordinator.pooling.pool import pool
from shared.estimands.questions import parse_formula

NEEDED = ("httr2", "jsonlite", "generics", "metafor")


def _lacking() -> str:
    if shutil.which("Rscript") is None:
        return "Rscript is not installed"
    asked = f"cat(setdiff(c({', '.join(map(repr, NEEDED))}), rownames(installed.packages())))"
    lacking = subprocess.run(["Rscript", "-e", asked], capture_output=True, text=True, check=True).stdout
    return f"R lacks {lacking}" if lacking else ""


@pytest.fixture(scope="module")
def r(tmp_path_factory):
    """Runs a script with the package installed; what it printed."""
    if lacking := _lacking():
        pytest.skip(lacking)
    library = tmp_path_factory.mktemp("library")
    how = ["--no-docs", "--no-test-load", "--no-byte-compile", "--no-staged-install", f"--library={library}"]
    subprocess.run(["R", "CMD", "INSTALL", *how, ROOT / "deploy" / "r"], check=True, capture_output=True)

    def run(script: str, **variables: str) -> str:
        given = {**os.environ, "R_LIBS": str(library), "LC_ALL": "C.UTF-8", **variables}
        done = subprocess.run(
            ["Rscript", "-e", f"library(tributarymeta)\n{script}"],
            env=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


FORMULAS = {
    "Surv(time, cvd) ~ sbp + strata(sex)": ("cox", "Surv(time, cvd) ~ sbp + strata(sex)"),
    "Surv(time = years, event = num > 0) ~ sbp/10": ("cox", "Surv(years, num > 0) ~ sbp/10"),
    "died ~ chol.total/40 + as.factor(z) * age + offset(log(years)) - 1": (
        "logistic",
        "died ~ chol_total/40 + C(z) * age + offset(log(years)) - 1",
    ),
    "y ~ I(-x^2 + 3 * (a - 2)/b) + a:b": ("ols", "y ~ I(-(x^2) + ((3 * (a - 2)) / b)) + a:b"),
    "~ sbp > 140 & !(arm == 'drug' | age < 1e-7)": (
        "proportion",
        "~ (sbp > 140) & !((arm == 'drug') | (age < 0.0000001))",
    ),
}


def test_r_formulas_are_read_as_the_questions_that_they_are_in_r(r):
    said = json.loads(
        r(
            f"formulas <- list({', '.join(FORMULAS)})\n"
            "cat(jsonlite::toJSON(vapply(formulas, tributarymeta:::question_text, '')))"
        )
    )
    for text, (kind, meant) in zip(said, FORMULAS.values(), strict=True):
        # factor() and C() are two names of one thing.
        found, expected = (str(parse_formula(kind, formula)) for formula in (text, meant))
        assert found.replace("factor(", "C(") == expected


def test_r_pools_a_table_of_ones_own_as_analyst_pool_does(r, tmp_path):
    rng = np.random.default_rng(7)
    tables = [
        {"yi": rng.normal(0.3, spread, k).tolist(), "vi": rng.uniform(0.01, 0.2, k).tolist()}
        for k, spread in ((1, 0), (2, 0.5), (3, 0.05), (6, 0.6), (40, 0.2))
    ]
    tables.append({"yi": [0.1, 0.4, None, 0.2, 0.9], "vi": [0.05, 0.02, 0.1, 0.0, 0.04]})
    (tmp_path / "tables.json").write_text(json.dumps(tables))
    said = r(
        f"""tables <- jsonlite::fromJSON({str(tmp_path / "tables.json")!r}, simplifyDataFrame = FALSE)
        for (one in tables) for (how in list(c("REML", "adhoc"), c("DL", "knha"), c("ML", "z"))) {{
          found <- pool_table(as.data.frame(one), method = how[1], test = how[2])
          fit <- found$random
          numbers <- c(fit$beta, fit$se, fit$ci.lb, fit$ci.ub, fit$tau2, fit$I2, fit$QE)
          numbers <- c(numbers, found$fixed$beta, found$fixed$se)
          cat(sprintf("%.17g", numbers), nrow(found$excluded), "\\n")
        }}"""
    )
    lines = iter(said.splitlines())
    for one in tables:
        for method, test in (("REML", "adhoc"), ("DL", "knha"), ("ML", "z")):
            result = pool(one["yi"], one["vi"], method=method, test=test)
            names = ("beta", "se", "ci_lb", "ci_ub", "tau2", "I2", "QE")
            expected = [*(getattr(result, name) for name in names), result.fixed.beta, result.fixed.se]
            found = [float(word) for word in next(lines).split()]
            assert found[-1] == len(result.excluded)
            if result.k == 1:  # one row has no heterogeneity: R says 100 %
                del expected[4:7], found[4:7]
            assert found[:-1] == pytest.approx(expected, rel=1e-6, abs=1e-7), (method, test, one)
