"""How often the pooled 95 % interval of models of repeated rows holds the truth: GEE, a random intercept.

Two sites of 400 patients with three visits, of which the later ones are missed by a fifth; three studies, of a
measurement with an intercept for each patient, of a yes or no whose marginal odds are exact (a Gaussian copula), and of
a count with a frailty. Rows are released as a plan with `[dictionary.repeated]` has them, one for each patient, visit
after visit drawn last, and made long again by the question. Releases and figures are those of `model_coverage`.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.repeated_coverage [repetitions] [folder]
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special

from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import StudyPlan
from shared.plans.repeated_rows import RepeatedRows
from tests.benchmarks.model_coverage import PERSONS, at_weights, measure, repetition

ROOT = Path(__file__).parents[2]
SEED, SITES, VISITS, MISSED, ALIKE = 4848, 2, (0, 1, 2), 0.2, 0.4
VISIT, ARM = 0.2, -0.4
"""True coefficients, marginal ones."""
REPEATED = RepeatedRows(rows=3, columns=("y", "d", "k"), order="visit", visits=VISITS)
SOURCE = (
    Column(name="y", kind="continuous", lower=-8, upper=12, missing="level"),
    Column(name="d", kind="binary", levels=(0, 1), missing="level"),
    Column(name="k", kind="integer", lower=0, upper=60, missing="level"),
)
PERSON, TREATED = Column(name="person", kind="person"), Column(name="arm", kind="binary", levels=(0, 1))


def study(outcome: Column) -> StudyPlan:
    """A plan of one outcome, three times."""
    repeated = replace(REPEATED, columns=(outcome.name,))
    columns = (PERSON, TREATED, *(replace(outcome, name=name) for name in repeated.names(outcome.name)))
    plan = StudyPlan.from_toml((ROOT / "deploy" / "studies" / "cvd.toml").read_text(encoding="utf-8"))
    dictionary = Dictionary(name="repeated", version=1, columns=columns, repeated=repeated)
    return replace(plan, dictionary=dictionary, estimands={"main": f"gee({outcome.name}) ~ visit + arm"})


def patients(rng: np.random.Generator) -> pd.DataFrame:
    """One row for each, as a site makes it."""
    arm, own = rng.integers(0, 2, PERSONS), rng.standard_normal(PERSONS)
    tied = np.sqrt(ALIKE) * rng.standard_normal((PERSONS, 1))
    uniform = special.ndtr(tied + np.sqrt(1 - ALIKE) * rng.standard_normal((PERSONS, 3)))
    frail = rng.gamma(3.0, 1 / 3, PERSONS)
    out: dict[str, object] = {"person": [f"{i}" for i in range(PERSONS)], "arm": arm}
    for j, visit in enumerate(VISITS):
        eta = VISIT * visit + ARM * arm
        gone = rng.random(PERSONS) < (MISSED if j else 0.0)
        measured = {
            "y": (2 + eta + own + rng.standard_normal(PERSONS)).clip(-8, 12),
            "d": (uniform[:, j] < special.expit(eta)).astype(float),
            "k": rng.poisson(np.exp(0.5 + eta) * frail).clip(0, 60).astype(float),
        }
        out |= {f"{name}_{j + 1}": np.where(gone, np.nan, value) for name, value in measured.items()}
    return pd.DataFrame(out)


def asked(kind: str, outcome: str, options: str = "") -> str:
    return f"{kind}({outcome}{options}, repeated = c({outcome}, visit = c(0, 1, 2))) ~ visit + arm"


TRUTH = {"visit": VISIT, "arm": ARM}
QUESTIONS = {
    asked("gee", "y"): TRUTH,
    asked("gee", "y", ", corstr = independence"): TRUTH,
    asked("mixed", "y"): TRUTH,
    asked("gee", "d", ", family = binomial"): TRUTH,
    asked("gee", "k", ", family = poisson"): TRUTH,
}


def one(b: int) -> np.ndarray:
    """As of `model_coverage.repetition`."""
    parts = []
    for at, outcome in enumerate(SOURCE):
        plan = study(outcome)
        encoder, outcomes = Encoder(dictionary=plan.dictionary), planned_outcomes(plan)
        names = [column.name for column in plan.dictionary.columns]

        def made(rng, chance, encoder=encoder, outcomes=outcomes, names=names):
            return at_weights(patients(chance)[names], encoder, outcomes, rng)

        questions = {text: truth for text, truth in QUESTIONS.items() if f"({outcome.name}," in text}
        parts.append(repetition(b, SEED + at, made, questions, {"arm": (0, 1)}, SITES))
    return np.concatenate(parts, axis=2)


if __name__ == "__main__":
    measure("repeated_coverage", one, QUESTIONS, SEED)
