"""CPU seconds of one site's answer by every model: 100,000 rows beside statsmodels where it has it, and a million.

Ten covariates. Ours reads the formula, tells which terms the table supports, and says what each row moves each estimate
by; statsmodels is given ready matrices, and by its own formulas a table, and asked for its standard errors.

python -m tests.benchmarks.model_speed
"""

import time
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd

from shared.estimands.answer import estimate, parse_estimand
from tests.benchmarks import record

SEED = 77
SHARED, MANY, REPEATS = record.sized((100_000, 1_000_000, 3), (500, 500, 1))
COLUMNS = "abcdefghij"
RIGHT = " + ".join(COLUMNS)
QUESTIONS = {
    "ols": f"ols(y) ~ {RIGHT}",
    "ols, HC3": f"ols(y, robust = HC3) ~ {RIGHT}",
    "logistic": f"logistic(ill) ~ {RIGHT}",
    "poisson": f"poisson(k) ~ {RIGHT}",
    "quasipoisson": f"quasipoisson(k) ~ {RIGHT}",
    "negbin": f"negbin(k) ~ {RIGHT}",
    "risk_ratio": f"risk_ratio(rare) ~ {RIGHT}",
    "log_binomial": f"log_binomial(rare) ~ {RIGHT}",
    "probit": f"probit(ill) ~ {RIGHT}",
    "cloglog": f"cloglog(ill) ~ {RIGHT}",
    "gamma": f"gamma(cost) ~ {RIGHT}",
    "ordinal": f"ordinal(stage) ~ {RIGHT}",
    "multinomial": f"multinomial(stage) ~ {RIGHT}",
    "quantile": f"quantile(y, tau = 0.5) ~ {RIGHT}",
    "standardised": f"standardised(ill, of = arm) ~ arm + {RIGHT}",
    "splines": f"logistic(ill) ~ ns(a, df = 3) + {RIGHT.removeprefix('a + ')}",
    "cox": f"cox(years, died) ~ {RIGHT}",
    "cox, late entry": f"cox(years, died, entry = entry) ~ {RIGHT}",
    "schoenfeld": f"schoenfeld(years, died) ~ {RIGHT}",
    "finegray": f"finegray(years, died, competing = other) ~ {RIGHT}",
    "aft": f"aft(years, died) ~ {RIGHT}",
    "flexible": f"flexible(years, died) ~ {RIGHT}",
    "rmst_regression": f"rmst_regression(years, died, tau = 1) ~ {RIGHT}",
    "km": "km(years, died, at = 1) ~ arm",
    "cumhaz": "cumhaz(years, died, at = 1) ~ arm",
    "cuminc": "cuminc(years, died, competing = other, at = 1) ~ arm",
    "rmst": "rmst(years, died, tau = 1) ~ arm",
    "logrank": "logrank(years, died) ~ arm",
    "table_one": "table_one(a, b, y, stage, by = arm)",
}


def rows(n: int) -> pd.DataFrame:
    rng = np.random.default_rng((SEED, n))
    table = pd.DataFrame(rng.normal(size=(n, len(COLUMNS))), columns=list(COLUMNS))
    eta = table.to_numpy() @ np.r_[0.3, 0.2, -0.1, np.zeros(len(COLUMNS) - 3)]
    stage = np.digitize(eta + rng.logistic(size=n), [-0.5, 1.0])
    died = rng.random(n) < 0.7
    years = rng.exponential(np.exp(-eta))
    made = {
        "arm": (rng.random(n) < 0.5).astype(int),
        "y": eta + rng.normal(size=n),
        "ill": (rng.random(n) < 1 / (1 + np.exp(1 - eta))).astype(int),
        "rare": (rng.random(n) < np.exp(0.3 * eta - 2.5).clip(0, 1)).astype(int),
        "k": rng.poisson(np.exp(0.5 * eta) * rng.gamma(2.0, 0.5, n)),
        "cost": np.exp(eta) * rng.gamma(2.0, 0.5, n),
        "stage": pd.Categorical(np.array(["x", "y", "z"])[stage], categories=["x", "y", "z"], ordered=True),
        "years": years,
        "entry": years * rng.random(n) * (rng.random(n) < 0.5),
        "died": died.astype(int),
        "other": (~died & (rng.random(n) < 0.5)).astype(int),
    }
    return table.assign(**made)


def theirs(table: pd.DataFrame) -> dict[str, Callable[[], object]]:
    """statsmodels' own fit of the same model, where it has it."""
    import statsmodels.api as sm
    from statsmodels.discrete.discrete_model import MNLogit, NegativeBinomial
    from statsmodels.duration.hazard_regression import PHReg
    from statsmodels.miscmodels.ordinal_model import OrderedModel
    from statsmodels.regression.quantile_regression import QuantReg

    bare = table[list(COLUMNS)].to_numpy()
    x, codes, family = sm.add_constant(bare), table["stage"].cat.codes.to_numpy(), sm.families
    links = family.links

    def glm(outcome: str, law: object, cov: str = "nonrobust") -> Callable[[], object]:
        return lambda: sm.GLM(table[outcome].to_numpy(), x, family=law).fit(cov_type=cov).bse

    return {
        "ols": lambda: sm.OLS(table["y"].to_numpy(), x).fit().bse,
        "ols, HC3": lambda: sm.OLS(table["y"].to_numpy(), x).fit(cov_type="HC3").bse,
        "logistic": lambda: sm.Logit(table["ill"].to_numpy(), x).fit(disp=0).bse,
        "poisson": glm("k", family.Poisson()),
        "quasipoisson": lambda: sm.GLM(table["k"].to_numpy(), x, family=family.Poisson()).fit(scale="X2").bse,
        "negbin": lambda: NegativeBinomial(table["k"].to_numpy(), x).fit(disp=0).bse,
        "risk_ratio": glm("rare", family.Poisson(), "HC0"),
        "log_binomial": glm("rare", family.Binomial(links.Log())),
        "probit": lambda: sm.Probit(table["ill"].to_numpy(), x).fit(disp=0).bse,
        "cloglog": glm("ill", family.Binomial(links.CLogLog())),
        "gamma": glm("cost", family.Gamma(links.Log())),
        "ordinal": lambda: OrderedModel(codes, bare, distr="logit").fit(method="bfgs", disp=0).bse,
        "multinomial": lambda: MNLogit(codes, x).fit(disp=0).bse,
        "quantile": lambda: QuantReg(table["y"].to_numpy(), x).fit(q=0.5).bse,
        "cox": lambda: PHReg(table["years"].to_numpy(), bare, table["died"].to_numpy(), ties="efron").fit().bse,
    }


def by_formula(table: pd.DataFrame) -> dict[str, Callable[[], object]]:
    """The same from a table and a formula, as we are asked."""
    import statsmodels.formula.api as smf

    coded = table.assign(stage=table["stage"].cat.codes)
    return {
        "ols": lambda: smf.ols(f"y ~ {RIGHT}", table).fit().bse,
        "ols, HC3": lambda: smf.ols(f"y ~ {RIGHT}", table).fit(cov_type="HC3").bse,
        "logistic": lambda: smf.logit(f"ill ~ {RIGHT}", table).fit(disp=0).bse,
        "poisson": lambda: smf.poisson(f"k ~ {RIGHT}", table).fit(disp=0).bse,
        "negbin": lambda: smf.negativebinomial(f"k ~ {RIGHT}", table).fit(disp=0).bse,
        "probit": lambda: smf.probit(f"ill ~ {RIGHT}", table).fit(disp=0).bse,
        "multinomial": lambda: smf.mnlogit(f"stage ~ {RIGHT}", coded).fit(disp=0).bse,
        "quantile": lambda: smf.quantreg(f"y ~ {RIGHT}", table).fit(q=0.5).bse,
    }


def timed(work: Callable[[], object], repeats: int) -> float:
    """The least CPU seconds of some calls: what else the machine does adds to the others."""
    took = []
    for _ in range(repeats):
        at = time.process_time()
        work()
        took.append(time.process_time() - at)
    return min(took)


def main() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, float]] = {name: {} for name in QUESTIONS}
    table = rows(SHARED)
    others, formulas = theirs(table), by_formula(table)
    for name, text in QUESTIONS.items():
        question = parse_estimand(text)
        assert all(row.yi is not None for row in estimate(table, question)), text
        found[name]["ours"] = timed(lambda question=question: estimate(table, question), REPEATS)
        if name in others:
            found[name]["statsmodels"] = timed(others[name], REPEATS if name != "cox" else 1)
        if name in formulas:
            found[name]["formula"] = timed(formulas[name], REPEATS)
        print(name, found[name], flush=True)
    table = rows(MANY)
    for name, text in QUESTIONS.items():
        found[name]["million"] = timed(lambda text=text: estimate(table, parse_estimand(text)), REPEATS)
        print(name, round(found[name]["million"], 2), flush=True)
    results = {"rows": SHARED, "covariates": len(COLUMNS), "cpu_seconds": found}
    print(record.write("model_speed", results, SEED))


if __name__ == "__main__":
    main()
