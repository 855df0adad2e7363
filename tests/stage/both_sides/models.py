"""Tables of models, and the numbers that other programs give for them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parents[2] / "reference"
LEVELS = {"smoking": ["never", "former", "current"]}


def made(n: int = 300, seed: int = 7) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, arm = rng.normal(60, 9, n).round(1), rng.integers(0, 2, n)
    smoking = rng.integers(0, 3, n)
    eta = 0.02 * (age - 60) - 0.3 * arm + 0.2 * smoking
    years = rng.uniform(0.5, 4, n).round(2)
    return pd.DataFrame(
        {
            "age": age,
            "arm": arm,
            "smoking": np.array(LEVELS["smoking"])[smoking],
            "died": (rng.random(n) < np.minimum(0.25 * np.exp(eta), 0.95)).astype(int),
            "k": rng.poisson(years * np.exp(eta) * rng.gamma(1.5, 1 / 1.5, n)),
            "cost": (np.exp(1 + eta) * rng.gamma(2.0, 0.5, n)).round(4) + 0.001,
            "years": years,
            "w": rng.integers(1, 5, n),
        }
    )


@functools.cache
def reference() -> tuple[pd.DataFrame, dict]:
    return pd.read_csv(HERE / "generalised.csv"), json.loads((HERE / "generalised.json").read_text(encoding="utf-8"))


def agrees(ours: pd.DataFrame, theirs: dict, errors: str) -> None:
    assert list(ours.index) == list(theirs["beta"])
    np.testing.assert_allclose(ours.beta, list(theirs["beta"].values()), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ours.se, list(theirs["se"][errors].values()), rtol=1e-6)
