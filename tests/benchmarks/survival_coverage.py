"""How often the pooled 95 % interval of the survival models holds the truth.

Four sites of 400 patients, one covariate, one arm, and three follow-ups: Weibull times with censoring; times to an
event beside a competing one, by the model of Fine and Gray; and times that are followed from a late entry on. Truth is
what made them; of a curve's point and of a mean, what those laws say of everybody. Releases, variance and pooling are
the product's own, as in `tests.benchmarks.model_coverage`.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.survival_coverage [repetitions] [folder]
"""

import math

import numpy as np
import pandas as pd
from scipy import special, stats

from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import PlannedOutcomes
from tests.benchmarks.model_coverage import PERSONS, at_weights, measure, repetition

SEED = 8181
CAUSES = ("none", "event", "other")
DICTIONARY = Dictionary(
    name="survival",
    version=1,
    columns=(
        Column(name="x", kind="continuous", lower=-5, upper=5),
        Column(name="arm", kind="binary", levels=(0, 1)),
        Column(name="entry", kind="continuous", lower=0, upper=2),
        Column(name="years", kind="time", upper=6, event="died"),
        Column(name="died", kind="event"),
        Column(name="time", kind="time", upper=6),
        Column(name="cause", kind="nominal", levels=CAUSES),
        Column(name="late", kind="time", upper=6, event="gone"),
        Column(name="gone", kind="event"),
    ),
)
X, ARM, SCALE, MIDDLE = 0.3, 0.4, 0.8, 1.2
"""Of log times: the coefficients, the scale of the Weibull law's error, the constant."""
SUB_X, SUB_ARM, SHARE = 0.3, -0.5, 0.5
"""Of subdistribution hazards; and the share with the event in the end, at the reference."""
AT, TAU = 2.0, 4.0


def weibull(eta: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The time that this share outlives, where log times have mean `MIDDLE` + eta but for the error's own."""
    return np.exp(MIDDLE + eta + SCALE * np.log(-np.log(uniform)))


def outlived(time: float | np.ndarray, eta: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.exp(-np.exp((np.log(time) - MIDDLE - eta) / SCALE))


def patients(rng: np.random.Generator) -> pd.DataFrame:
    n = PERSONS
    x, arm = rng.standard_normal(n).clip(-3, 3), rng.integers(0, 2, n)
    eta = X * x + ARM * arm
    entry = np.where(rng.random(n) < 0.5, 0.0, rng.uniform(0, 2, n))
    years, late = weibull(eta, rng.random(n)), weibull(eta, rng.random(n) * outlived(entry, eta))
    ends, ends_late = rng.uniform(1, 6, n), rng.uniform(entry, 6, n)
    ratio = np.exp(SUB_X * x + SUB_ARM * arm)
    whole = 1 - (1 - SHARE) ** ratio
    has = rng.random(n) < whole
    first = -np.log(1 - (1 - (1 - rng.random(n) * whole) ** (1 / ratio)) / SHARE)
    when, ends_first = np.where(has, first, rng.exponential(1.0, n)), rng.uniform(0.5, 6, n)
    cause = np.where(when > ends_first, "none", np.where(has, "event", "other"))
    return pd.DataFrame(
        {
            "x": x,
            "arm": arm,
            "entry": entry,
            "years": np.minimum(years, ends),
            "died": (years <= ends).astype(int),
            "time": np.minimum(when, ends_first).clip(1e-6, 6),
            "cause": cause,
            "late": np.minimum(late, ends_late).clip(entry + 1e-6),
            "gone": (late <= ends_late).astype(int),
        }
    )


def everybody() -> tuple[np.ndarray, np.ndarray]:
    """A covariate on a grid, and the share of the patients at each point."""
    x = np.linspace(-3, 3, 601)
    return x, np.diff(stats.norm.cdf(np.r_[-np.inf, (x[1:] + x[:-1]) / 2, np.inf]))


def truths() -> dict[str, dict[str, float]]:
    x, share = everybody()
    outlive = [float(share @ outlived(AT, X * x + ARM * arm)) for arm in (0, 1)]
    cumulative = {f"arm[{arm}]": math.log(-math.log(value)) for arm, value in enumerate(outlive)}
    ratio = [np.exp(SUB_X * x + SUB_ARM * arm) for arm in (0, 1)]
    events = [float(share @ (1 - (1 - SHARE * (1 - math.exp(-AT))) ** one)) for one in ratio]
    grid = np.linspace(0, TAU, 2001)
    means = [np.trapezoid([outlived(t, X * x + ARM * arm) for t in grid], grid, axis=0) for arm in (0, 1)]
    matrix = np.vstack([np.column_stack([np.ones(len(x)), x, np.full(len(x), arm)]) for arm in (0, 1)])
    weights = np.r_[share, share]
    fitted = np.linalg.solve((matrix * weights[:, None]).T @ matrix, matrix.T @ (weights * np.concatenate(means)))
    hazard = {"x": -X / SCALE, "arm": -ARM / SCALE}
    steps = {f"by_time(arm, {AT:g})[{when}]": -ARM / SCALE for when in (f"0 to {AT:g}", f"after {AT:g}")}
    competing = 'time, cause == "event", competing = cause == "other"'
    return {
        f"cumhaz(years, died, at = {AT:g}) ~ arm": cumulative,
        f"km(years, died, at = {AT:g}) ~ arm": {f"arm[{arm}]": special.logit(p) for arm, p in enumerate(outlive)},
        f"cuminc({competing}, at = {AT:g}) ~ arm": {f"arm[{arm}]": special.logit(p) for arm, p in enumerate(events)},
        f"finegray({competing}) ~ x + arm": {"x": SUB_X, "arm": SUB_ARM},
        "schoenfeld(years, died) ~ x + arm": {"x": 0.0, "arm": 0.0},
        "aft(years, died) ~ x + arm": {"x": X, "arm": ARM},
        f"rmst_regression(years, died, tau = {TAU:g}) ~ x + arm": {"x": fitted[1], "arm": fitted[2]},
        "cox(years, died) ~ x + arm": hazard,
        "cox(years, died, robust = HC0) ~ x + arm": hazard,
        f"cox(years, died) ~ by_time(arm, {AT:g}) + x": {**steps, "x": hazard["x"]},
        "cox(late, gone, entry = entry) ~ x + arm": hazard,
        "cox(years, died, start = 1) ~ x + arm": hazard,
    }


QUESTIONS = truths()


def released(table: pd.DataFrame, encoder: Encoder, rng) -> dict[float, pd.DataFrame]:
    place = {name: j for j, name in enumerate(encoder.columns)}
    levels = {"arm": 2, "died": 2, "gone": 2, "cause": len(CAUSES)}
    groups = (("cause",), ("years", "died"), ("late", "gone"), ("time",))
    outcomes = PlannedOutcomes(
        d=encoder.d,
        groups=tuple(tuple(place[name] for name in group) for group in groups),
        levels={place[name]: count for name, count in levels.items()},
        whole=frozenset(),
        gates={},
        bounds={place[name]: (-1.0, 1.0) for name in ("x", "entry")},
    )
    return at_weights(table, encoder, outcomes, rng)


def one(b: int) -> np.ndarray:
    """As of `model_coverage.repetition`."""
    encoder, levels = Encoder(dictionary=DICTIONARY), {"arm": (0, 1), "cause": CAUSES}
    return repetition(b, SEED, lambda rng, chance: released(patients(chance), encoder, rng), QUESTIONS, levels)


if __name__ == "__main__":
    measure("survival_coverage", one, QUESTIONS, SEED)
