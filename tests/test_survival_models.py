"""Survival beyond the plain Cox model: late entry, robust and clustered errors, effects that change with time.

tests/reference/survival_make.R writes the reference; `python -m tests.test_survival_models` the table that it reads.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.multivariate import joint_of_terms
from shared.errors import ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand, parse_formula

HERE = Path(__file__).parent / "reference"
LATE, PLAIN = "Surv(entry, time, event) ~ age + arm", "Surv(time, event) ~ age + arm"
STEPS = "Surv(entry, time, event) ~ age + by_time(arm, c(2, 5))"
ASKED = {
    "truncated": (LATE, {}),
    "truncated_breslow": (LATE, {"ties": "breslow"}),
    "truncated_strata": (f"{LATE} + strata(stage)", {}),
    "truncated_weights": (LATE, {"weights": "w"}),
    "robust": (PLAIN, {"robust": "HC0"}),
    "robust_truncated": (LATE, {"robust": "HC0"}),
    "cluster": (f"{PLAIN} + strata(stage)", {"cluster": "hospital"}),
    "steps": (STEPS, {}),
    "steps_cluster": (STEPS, {"cluster": "hospital"}),
}
CLUSTERED = {
    "logistic": "died ~ age + arm",
    "poisson": "k ~ age + arm + offset(log(years))",
    "ols": "cost ~ age + arm",
}


def made(n: int = 300, seed: int = 11) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, arm = rng.normal(60, 9, n).round(1), rng.integers(0, 2, n)
    stage, hospital = rng.integers(1, 4, n), rng.integers(0, 25, n)
    frailty = np.exp(0.4 * rng.normal(size=25))[hospital]
    rate = 0.12 * np.exp(0.03 * (age - 60) - 0.5 * arm) * frailty
    first, second = rng.weibull(1.3, n) / rate, rng.exponential(1 / 0.06, n)
    censored = rng.uniform(2, 12, n)
    time = np.minimum(np.minimum(first, second), censored).round(1).clip(0.1)
    event, other = (first <= second) & (first <= censored), (second < first) & (second <= censored)
    entry = np.where(rng.random(n) < 0.5, 0.0, time * rng.uniform(0, 0.9, n)).round(1)
    return pd.DataFrame(
        {
            "id": range(n),
            "entry": np.minimum(entry, (time - 0.1).round(1)).clip(0),
            "time": time,
            "event": event.astype(int),
            "other": other.astype(int),
            "age": age,
            "arm": arm,
            "stage": stage,
            "hospital": hospital,
            "w": rng.integers(1, 4, n),
        }
    )


@functools.cache
def reference() -> tuple[pd.DataFrame, dict]:
    return pd.read_csv(HERE / "survival.csv"), json.loads((HERE / "survival.json").read_text(encoding="utf-8"))


def agrees(ours: pd.DataFrame, theirs: dict) -> None:
    np.testing.assert_allclose(ours.beta, list(theirs["beta"].values()), rtol=1e-6)
    np.testing.assert_allclose(ours.se, list(theirs["se"].values()), rtol=1e-6)


def test_the_table_is_the_one_that_r_read():
    pd.testing.assert_frame_equal(made(), reference()[0], check_dtype=False)


@pytest.mark.parametrize("name", ASKED)
def test_cox_models_are_those_of_r(name):
    table, answers = reference()
    formula, options = ASKED[name]
    agrees(estimate(table, "cox", formula, **options), answers["cox"][name])


@pytest.mark.parametrize("kind", CLUSTERED)
def test_errors_by_cluster_are_those_of_r(kind):
    table = pd.read_csv(HERE / "generalised.csv")
    agrees(estimate(table, kind, CLUSTERED[kind], cluster="k"), reference()[1]["clustered"][kind])


@pytest.mark.parametrize(("formula", "options"), [(LATE, {}), (STEPS, {"cluster": "hospital"})])
def test_what_a_late_row_moves_is_what_leaving_it_out_shows(formula, options):
    table = reference()[0]
    question = parse_formula("cox", formula, **options)
    pushes = influence(table, question)
    whole = {row.term: row.yi for row in estimate(table, question)}
    for i in (3, 40, 171, 250):
        without = {row.term: row.yi for row in estimate(table.drop(i), question)}
        for term, push in pushes.items():
            assert whole[term] - without[term] == pytest.approx(push[i], rel=0.25, abs=3e-3)


def test_a_release_of_late_rows_counts_fit_and_noise():
    table = reference()[0]
    question = parse_estimand("cox(time, event, entry = entry, cluster = hospital) ~ age + by_time(arm, c(2, 5))")
    assert str(question) == "cox(time, event, cluster = hospital, entry = entry) ~ age + by_time(arm, c(2, 5))"
    own = estimate(table, question, site="A")
    told = with_release_variance(own, table, question, [Draw(rows=300, w=0.8, fitted_on=300)])
    for before, after in zip(own, told, strict=True):
        assert after.vi > before.vi
        assert after.vi_privacy > 0
        assert any("errors by cluster" in one for one in after.warnings)
    [joint] = joint_of_terms(told, question, method="FE", test="z", level=0.95)
    assert joint["terms"] == [f"by_time(arm, c(2, 5))[{name}]" for name in ("0 to 2", "2 to 5", "after 5")]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("cox(time, event, robust = HC3) ~ age", "robust errors of a Cox model must be HC0"),
        ("logistic(died) ~ by_time(arm, c(2, 5))", "by_time must be a term of a Cox model"),
        ("cox(time, event) ~ by_time(arm, c(2, 5)):age", "by_time must be a term of a Cox model, by itself"),
        ("cox(time, event) ~ by_time(arm)", "by_time must be of a column and the times"),
        ("cox(time, event) ~ by_time(arm, 0)", "times of steps must be above 0"),
        ("cox(time, event, cluster = log(w)) ~ age", "must be columns"),
        ("km(time, event, at = 2, cluster = w) ~ arm", "takes the options"),
    ],
)
def test_what_no_model_has_is_refused_when_it_is_read(question, said):
    with pytest.raises(ParameterError, match=said):
        parse_estimand(question)


def test_rows_that_enter_after_their_time_are_not_used_and_few_clusters_tell_no_error():
    table = reference()[0]
    late = table.assign(entry=np.where(table.id < 20, table.time + 1, table.entry))
    rows = estimate(late, parse_formula("cox", LATE))
    assert {row.n_missing for row in rows} == {20}
    agree = estimate(table.iloc[20:], parse_formula("cox", LATE))
    assert [row.yi for row in rows] == pytest.approx([row.yi for row in agree])
    few = estimate(table, parse_estimand("cox(time, event, cluster = stage) ~ age"))
    assert few[0].reason == "3 clusters: fewer than 10 tell no error"


def test_steps_of_a_factor_have_its_levels_and_a_stretch_without_events_has_its_reason():
    table = reference()[0].assign(stage=lambda t: t.stage.map({1: "a", 2: "b", 3: "c"}))
    rows = estimate(
        table, parse_estimand("cox(time, event) ~ by_time(stage, 4) + age"), levels={"stage": ["a", "b", "c"]}
    )
    labels = [f"by_time(stage, 4)[{level}, {when}]" for level in "bc" for when in ("0 to 4", "after 4")]
    assert [row.term for row in rows] == [*labels, "age"]
    assert all(row.yi is not None for row in rows)
    empty = estimate(table, parse_estimand("cox(time, event) ~ by_time(arm, 100) + age"))
    assert {row.term: bool(row.reason) for row in empty} == {
        "by_time(arm, 100)[0 to 100]": False,
        "by_time(arm, 100)[after 100]": True,
        "age": False,
    }


if __name__ == "__main__":
    made().to_csv(HERE / "survival.csv", index=False)
