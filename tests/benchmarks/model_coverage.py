"""How often the pooled 95 % interval of the generalised linear models and standardised contrasts holds the truth.

Four sites of 400 patients, one covariate, one arm, and four outcomes: a risk, odds, a count and a cost. Truth is what
made them; of a model that is not the outcome's own law (probit, cloglog) what it tends to with ever more patients.
Each repetition goes through the product's own release (a flow by its closed-form start, outcomes drawn last, as plans
have them by default), estimate, variance and pooling, at every w and on the patients themselves (w = 1). No site
differs from another, so fixed effects with z is the sharp test; the default (REML, ad hoc Knapp-Hartung) is wider.

With a folder, every repetition is kept there, and a run that was stopped goes on where it was.

python -m tests.benchmarks.model_coverage [repetitions] [folder]
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from coordinator.pooling.intervals import Draw, SurrogateSampler, with_release_variance
from coordinator.pooling.pool import pool
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.formulas import QuestionRows
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.outcomes import PlannedOutcomes
from site_agent.models.flow import FlowSettings, fit_flow
from tests.benchmarks import record

SEED, REPETITIONS, SITES, PERSONS = 6060, record.sized(200, 1), record.sized(4, 2), 400
WEIGHTS = (1.0, 0.8, 0.0)
START = FlowSettings(epochs=0)
LOW, HIGH = 92.0, 97.0
BINARY = ("risk", "odds")
DICTIONARY = Dictionary(
    name="models",
    version=1,
    columns=(
        Column(name="x", kind="continuous", lower=-5, upper=5),
        Column(name="arm", kind="binary", levels=(0, 1)),
        *(Column(name=name, kind="binary", levels=(0, 1)) for name in BINARY),
        Column(name="k", kind="integer", lower=0, upper=60),
        Column(name="cost", kind="continuous", lower=0.001, upper=100),
    ),
)
X, ARM = 0.3, -0.4
"""True coefficients."""


def patients(rng: np.random.Generator) -> pd.DataFrame:
    x, arm = rng.standard_normal(PERSONS).clip(-3, 3), rng.integers(0, 2, PERSONS)
    eta = X * x + ARM * arm
    return pd.DataFrame(
        {
            "x": x,
            "arm": arm,
            "risk": (rng.random(PERSONS) < np.exp(eta - 1.2)).astype(int),
            "odds": (rng.random(PERSONS) < special.expit(eta - 0.5)).astype(int),
            "k": rng.poisson(np.exp(eta + 0.7) * rng.gamma(2.0, 0.5, PERSONS)).clip(0, 60),
            "cost": (np.exp(eta + 1.0) * rng.gamma(2.0, 0.5, PERSONS)).clip(0.001, 100),
        }
    )


def everybody() -> pd.DataFrame:
    """All patients there are: a row for each x on a grid, arm and outcome, with its share as weight."""
    x = np.linspace(-3, 3, 601)
    share = np.diff(stats.norm.cdf(np.r_[-np.inf, (x[1:] + x[:-1]) / 2, np.inf]))
    parts = []
    for arm in (0, 1):
        for y in (0, 1):
            eta = X * x + ARM * arm
            risk, odds = np.exp(eta - 1.2), special.expit(eta - 0.5)
            parts.append(pd.DataFrame({"x": x, "arm": arm, "risk": y, "odds": y, "by_risk": share * abs(1 - y - risk)}))
            parts[-1]["by_odds"] = share * abs(1 - y - odds)
    return pd.concat(parts, ignore_index=True)


def truth(text: str, weights: str) -> dict[str, float]:
    asked = text.replace(")", f", weights = {weights})", 1)
    return {row.term: float(row.yi or math.nan) for row in estimate(everybody(), parse_estimand(asked))}


QUESTIONS = {
    "risk_ratio(risk) ~ x + arm": {"x": X, "arm": ARM},
    "log_binomial(risk) ~ x + arm": {"x": X, "arm": ARM},
    "quasipoisson(k) ~ x + arm": {"x": X, "arm": ARM},
    "negbin(k) ~ x + arm": {"x": X, "arm": ARM},
    (probit := "probit(odds) ~ x + arm"): truth(probit, "by_odds"),
    (cloglog := "cloglog(risk) ~ x + arm"): truth(cloglog, "by_risk"),
    "gamma(cost) ~ x + arm": {"x": X, "arm": ARM},
    (difference := "standardised(odds, of = arm) ~ x + arm"): truth(difference, "by_odds"),
    (ratio := "standardised(odds, of = arm, contrast = RR) ~ x + arm"): truth(ratio, "by_odds"),
}


def released(table: pd.DataFrame, encoder: Encoder, rng) -> dict[float, pd.DataFrame]:
    place = {name: j for j, name in enumerate(encoder.columns)}
    names = (*BINARY, "k", "cost")
    outcomes = PlannedOutcomes(
        d=encoder.d,
        groups=tuple((place[name],) for name in names),
        levels={place[name]: 2 for name in ("arm", *BINARY)},
        whole=frozenset({place["k"]}),
        gates={},
        bounds={place["k"]: (0.0, 60.0), place["x"]: (-1.0, 1.0), place["cost"]: (-1.0, 1.0)},
    )
    return at_weights(table, encoder, outcomes, rng)


def at_weights(
    table: pd.DataFrame, encoder: Encoder, outcomes: PlannedOutcomes | None, rng
) -> dict[float, pd.DataFrame]:
    """The patients' own table at w = 1, and what one flow of it releases at each smaller w."""
    encoded = encoder.encode(encoder.dictionary.check(table), rng)
    flow = fit_flow(encoded, START, rng, integer_columns=encoder.integer_columns, outcomes=outcomes).flow
    radius = default_radius(encoder.d)
    out = {w: LatentNoise(flow=flow, w=w, radius=radius).release(encoded, rng) for w in WEIGHTS if w < 1}
    return {1.0: table, **{w: encoder.decode(one) for w, one in out.items()}}


def repetition(
    b: int,
    seed: int,
    made_by: Callable[[Any, np.random.Generator], Mapping[float, pd.DataFrame]],
    questions: Mapping[str, Mapping[str, float]],
    levels: Mapping[str, Sequence[Any]],
    sites: int = SITES,
) -> np.ndarray:
    """(w, sites, terms, 4): yi, sampling, privacy and naive variance; NaN where there is no answer.

    Args:
        b: which. seed: of the benchmark.
        made_by: a site's table by w, of noise and patients.
        questions, levels: as of `measure`, as of `estimate`.
    """
    rng, generator = seeded_rng(1000 * seed + b), np.random.default_rng(2000 * seed + b)
    out = np.full((len(WEIGHTS), sites, sum(map(len, questions.values())), 4), np.nan)
    for s in range(sites):
        for k, (w, made) in enumerate(made_by(rng, generator).items()):
            rows, surrogate, at = QuestionRows(made.reset_index(drop=True)), SurrogateSampler(), 0
            for text, terms in questions.items():
                question = parse_estimand(text)
                found = estimate(rows, question, levels=levels)
                if w < 1:
                    draws = [Draw(rows=len(made), w=w, fitted_on=len(made), outcomes_last=True)]
                    found = with_release_variance(found, rows, question, draws, levels=levels, surrogate=surrogate)
                by_term = {row.term.replace("[1]", ""): row for row in found} | {row.term: row for row in found}
                for term in terms:
                    row = by_term[term]
                    if row.yi is not None:
                        out[k, s, at] = row.yi, row.vi_sampling, row.vi_privacy, row.naive
                    at += 1
    return out


def one(b: int) -> np.ndarray:
    """As of `repetition`."""
    encoder = Encoder(dictionary=DICTIONARY)
    return repetition(b, SEED, lambda rng, chance: released(patients(chance), encoder, rng), QUESTIONS, {"arm": (0, 1)})


def covered(y: np.ndarray, v: np.ndarray, truth: float, method: str, test: str) -> dict[str, float]:
    held, widths = 0, []
    for some, spread in zip(y, v, strict=True):
        known = np.isfinite(some)
        result = pool(list(some[known]), list(spread[known]), method=method, test=test)
        held += result.ci_lb <= truth <= result.ci_ub
        widths.append(result.ci_ub - result.ci_lb)
    low, high = stats.binomtest(held, len(y)).proportion_ci(method="exact")
    return {"percent": 100 * held / len(y), "from": 100 * low, "to": 100 * high, "width": float(np.mean(widths))}


def summary(raw: np.ndarray, questions: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, dict]]:
    """Cells by question and term, and by w.

    Args:
        raw: (repetitions, w, sites, terms, 4). questions: each with the truth of its terms.
    """
    cells: dict[str, dict[str, dict]] = {}
    at = 0
    for text, truths in questions.items():
        for term, truth in truths.items():
            for k, w in enumerate(WEIGHTS):
                y, sampling, privacy, naive = (raw[:, k, :, at, j] for j in range(4))
                v, error = sampling + privacy, y - truth
                known = np.isfinite(y)
                weights = np.where(known, 1 / np.where(known, v, 1.0), 0.0)
                pooled = (weights * np.where(known, y, 0.0)).sum(axis=1) / weights.sum(axis=1)
                cells.setdefault(f"{text}: {term}", {})[f"w={w:g}"] = {
                    "fixed_z": covered(y, v, truth, "FE", "z"),
                    "default": covered(y, v, truth, "REML", "adhoc"),
                    "naive_fixed_z": covered(y, naive, truth, "FE", "z"),
                    "site": 100 * float((np.abs(error[known]) <= 1.959964 * np.sqrt(v[known])).mean()),
                    "measured_over_ours_variance": float(np.nanmean(error**2) / np.nanmean(v)),
                    "ours_over_naive_variance": float(np.nanmean(v / naive)),
                    "bias": float((pooled - truth).mean()),
                    "bias_over_truth": float((pooled - truth).mean() / abs(truth)) if truth else 0.0,
                    "bias_se": float(pooled.std(ddof=1) / math.sqrt(len(pooled))),
                    "unanswered_percent": 100 * float((~known).mean()),
                }
            at += 1
    return cells


def measure(
    name: str, one: Callable[[int], np.ndarray], questions: Mapping[str, Mapping[str, float]], seed: int
) -> None:
    """Repeat `one` as often as the command line says, say what was covered, and write it down.

    Args:
        name: of the benchmark. one: a repetition to its estimates and variances, (w, sites, terms, 4).
        questions: each with the truth of its terms. seed: as the file has it.
    """
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    kept = Path(sys.argv[2]) / "raw.npy" if len(sys.argv) > 2 else None
    raw = list(np.load(kept)) if kept is not None and kept.exists() else []
    for b in range(len(raw), repetitions):
        raw.append(one(b))
        if kept is not None and b % 5 == 4:
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, np.array(raw))
            print(b + 1, flush=True)
    cells = summary(np.array(raw), questions)
    for cell, rows in cells.items():
        for w, row in rows.items():
            print(cell, w, f"{row['fixed_z']['percent']:.1f} {row['default']['percent']:.1f}", end=" ")
            print(f"site {row['site']:.1f} bias {row['bias']:.4f} ± {row['bias_se']:.4f}")
    results = {
        "asked": [LOW, HIGH],
        "repetitions": len(raw),
        "sites": int(np.shape(raw)[2]),
        "persons": PERSONS,
        "cells": cells,
    }
    print(record.write(name, results, seed, f"python -m tests.benchmarks.{name}"))


if __name__ == "__main__":
    measure("model_coverage", one, QUESTIONS, SEED)
