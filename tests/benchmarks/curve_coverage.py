"""How often the band of a pooled curve, and the joint test of its coefficients, hold the truth.

The sites, patients and releases of `tests.benchmarks.model_coverage`: the log odds are a straight line in x, which a
natural spline holds exactly. Asked: the curve at two values against its reference, and all its coefficients together.

python -m tests.benchmarks.curve_coverage [repetitions]
"""

import sys

import numpy as np
from scipy import stats

from coordinator.pooling.intervals import Draw, SurrogateSampler, with_release_variance
from coordinator.pooling.multivariate import joint_rows, pool_joint
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.formulas import QuestionRows, parse
from shared.estimands.splines import basis_of
from shared.plans.encoding import Encoder
from tests.benchmarks import record
from tests.benchmarks.model_coverage import DICTIONARY, PERSONS, SITES, WEIGHTS, X, patients, released

SEED, REPETITIONS = 6161, record.sized(200, 2)
TERM = "ns(x, knots = 0, Boundary.knots = c(-1.5, 1.5))"
QUESTION = parse_estimand(f"logistic(odds) ~ {TERM} + arm")
BASIS = basis_of(parse(TERM))
assert BASIS is not None
TERMS = tuple(f"{TERM}[{k}]" for k in range(1, BASIS.df + 1))
AT = np.array([-1.0, 1.0])
_GRID = np.linspace(-1.5, 1.5, 50)
LINE = np.linalg.lstsq(BASIS.columns(_GRID) - BASIS.columns(np.zeros(1)), X * _GRID, rcond=None)[0]
"""Coefficients of the spline that is the true line."""
WAYS = {"fixed_z": ("FE", "z"), "default": ("REML", "adhoc")}


def one(b: int) -> dict[str, dict[str, list[bool]]]:
    """w -> way -> whether the band holds the truth at both values, and the joint region the coefficients."""
    rng, generator = seeded_rng(1000 * SEED + b), np.random.default_rng(2000 * SEED + b)
    encoder, rows = Encoder(dictionary=DICTIONARY), {w: [] for w in WEIGHTS}
    for s in range(SITES):
        for w, made in released(patients(generator), encoder, rng).items():
            table = QuestionRows(made.reset_index(drop=True))
            found = estimate(table, QUESTION, site=f"{s}", levels={"arm": (0, 1)})
            if w < 1:
                draws = [Draw(rows=len(made), w=w, fitted_on=len(made), outcomes_last=True)]
                how = {"levels": {"arm": (0, 1)}, "surrogate": SurrogateSampler()}
                found = with_release_variance(found, table, QUESTION, draws, **how)
            rows[w] += found
    out: dict[str, dict[str, list[bool]]] = {}
    apart = BASIS.columns(AT) - BASIS.columns(np.zeros(1))
    for w, found in rows.items():
        sites, lost = joint_rows(found, TERMS)
        for way, (method, test) in WAYS.items():
            pooled = pool_joint(sites, TERMS, method=method, test=test, excluded=lost)
            error = pooled.beta - LINE
            half = pooled.critical * np.sqrt(np.einsum("ij,jk,ik->i", apart, pooled.vcov, apart))
            q, m = float(error @ np.linalg.solve(pooled.vcov, error)), len(TERMS)
            most = stats.chi2.ppf(0.95, m) if test == "z" else m * stats.f.ppf(0.95, m, pooled.df)
            held = [bool(one) for one in np.abs(apart @ error) <= half]
            out.setdefault(f"w={w:g}", {})[way] = [*held, bool(q <= most)]
    return out


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    raw = []
    for b in range(repetitions):
        raw.append(one(b))
        if b % 20 == 19:
            print(b + 1, flush=True)
    names = ("band at -1", "band at 1", "joint region")
    cells = {
        name: {w: {way: 100 * float(np.mean([row[w][way][k] for row in raw])) for way in WAYS} for w in raw[0]}
        for k, name in enumerate(names)
    }
    results = {"repetitions": repetitions, "sites": SITES, "persons": PERSONS, "cells": cells}
    print(record.write("curve_coverage", results, SEED, "python -m tests.benchmarks.curve_coverage"))
    print(cells)


if __name__ == "__main__":
    main()
