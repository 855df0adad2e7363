"""Terms of several columns: splines and powers with R's numbers, one set of knots for all sites, and the pooled curve.

tests/reference/survival_make.R writes the reference.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coordinator.figures.dose_response import curve_figure, curve_of
from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.multivariate import joint_of_terms
from coordinator.pooling.pool import Pooling
from shared.errors import ParameterError
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.formulas import parse
from shared.estimands.splines import basis_of, settled

HERE = Path(__file__).parents[2] / "reference"
ASKED = {
    "ns_df": ("logistic", "died ~ ns(age, df = 3) + arm"),
    "ns_knots": ("logistic", "died ~ ns(age, knots = c(55, 65), Boundary.knots = c(45, 75)) + arm"),
    "bs_df": ("ols", "cost ~ bs(age, df = 5) + arm"),
    "bs_knots": ("ols", "cost ~ bs(age, knots = 60, degree = 2, Boundary.knots = c(20, 100))"),
    "poly": ("poisson", "k ~ poly(age, 2, raw = TRUE) + offset(log(years))"),
}
KNOTS = "ns(age, knots = c(55, 65), Boundary.knots = c(45, 75))"


@functools.cache
def reference() -> tuple[pd.DataFrame, dict]:
    return pd.read_csv(HERE / "generalised.csv"), json.loads((HERE / "survival.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ASKED)
def test_curves_have_the_coefficients_errors_and_names_of_r(name):
    table, answers = reference()
    ours, theirs = estimate(table, *ASKED[name]), answers["curves"][name]
    assert list(ours.index) == list(theirs["beta"])
    np.testing.assert_allclose(ours.beta, list(theirs["beta"].values()), rtol=1e-6)
    np.testing.assert_allclose(ours.se, list(theirs["se"].values()), rtol=1e-6)


def test_beyond_its_ends_a_natural_spline_is_straight_and_a_missing_value_stays_missing():
    basis = basis_of(parse(KNOTS))
    x = np.array([0.0, 20.0, 40.0, 80.0, 100.0, 120.0, np.nan])
    columns = basis.columns(x)
    assert np.diff(columns[:3], 2, axis=0) == pytest.approx(0, abs=1e-12)
    assert np.diff(columns[3:6], 2, axis=0) == pytest.approx(0, abs=1e-12)
    assert np.isnan(columns[6]).all()


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("poly(age, 2)", "poly must be raw"),
        ("poly(age, 9, raw = TRUE)", "poly must be raw"),
        ("ns(age)", "ns takes a column, df or knots"),
        ("ns(age, df = 0)", "df of ns must be in 1..12"),
        ("ns(age, knots = c(1, 2), df = 5)", "2 knots give 3 columns"),
        ("ns(age, knots = c(40), Boundary.knots = c(50, 60))", "between the boundary knots"),
        ("ns(age, knots = arm)", "knots must be c"),
        ("bs(age, df = 2)", "df of bs must be in 3..12"),
        ("ns(3, df = 2)", "ns must be of a column"),
        ("ns(age, df = 2, centre = 1)", "ns takes a column, df or knots"),
        ("I(ns(age, df = 2))", "arithmetic must be made of"),
    ],
)
def test_a_curve_that_is_none_is_refused_when_it_is_read(term, said):
    with pytest.raises(ParameterError, match=said):
        parse_estimand(f"ols(y) ~ {term}")


def test_a_question_with_a_curve_is_read_back_as_it_was_written():
    text = f"logistic(died) ~ {KNOTS} + bs(log(x), df = 4) + poly(w, 3, raw = TRUE) + arm"
    question = parse_estimand(text)
    assert str(question) == text
    assert str(parse_estimand(text.replace("TRUE", "T"))) == str(parse_estimand(text.replace("TRUE", "1"))) == text
    assert question.columns == ("died", "age", "x", "w", "arm")
    with pytest.raises(ParameterError, match="arithmetic must name its knots"):
        settled(("ns(log(age), df = 3)",), lambda name, shares: np.array(shares))
    with pytest.raises(ParameterError, match="age has too few values"):
        settled(("ns(age, df = 3)",), lambda name, shares: np.ones(len(shares)))


def test_a_curve_that_lacks_a_column_has_no_answer_at_all():
    table = reference()[0]
    flat = table.assign(age=np.where(table.index % 2, 50.0, 52.0))
    rows = {row.term: row for row in estimate(flat, parse_estimand(f"ols(cost) ~ {KNOTS} + arm"))}
    assert rows["arm"].yi is not None
    assert all(rows[f"{KNOTS}[{k}]"].yi is None for k in (1, 2, 3))
    assert all("its curve has no estimate" in rows[f"{KNOTS}[{k}]"].reason for k in (1, 2, 3))


def test_a_standardised_contrast_of_a_curves_column_keeps_its_knots():
    table = reference()[0]
    (fixed,) = estimate(table, parse_estimand(f"standardised(died, of = age, contrast = slope) ~ {KNOTS} + arm"))
    assert fixed.yi is not None
    (loose,) = estimate(table, parse_estimand("standardised(died, of = age, contrast = slope) ~ ns(age, df = 1)"))
    (line,) = estimate(table, parse_estimand("standardised(died, of = age, contrast = slope) ~ age"))
    assert loose.yi == pytest.approx(line.yi, rel=1e-6)


def test_the_pooled_curve_is_the_models_and_has_no_width_at_its_reference(tmp_path):
    table, _ = reference()
    question, rows = parse_estimand(f"logistic(died) ~ {KNOTS} + arm"), []
    for k, site in enumerate("ABCDE"):
        part = table.sample(len(table), replace=True, random_state=k).reset_index(drop=True)
        own = estimate(part, question, site=site)
        rows += with_release_variance(own, part, question, [Draw(rows=len(part), w=0.8, fitted_on=len(part))])
    assert all(
        row.warnings for row in rows if row.term.startswith("ns(")
    )  # rows hold a curve as far as a flow draws it
    [entry] = joint_of_terms(rows, question, Pooling(method="FE", test="z"))
    curve, basis = entry["curve"], basis_of(parse(KNOTS))
    assert (curve["of"], curve["reference"], len(curve["x"])) == ("age", 65.0, 61)
    at = basis.columns(np.array([75.0, 65.0])) @ entry["beta"]
    assert curve["estimate"][-1] == pytest.approx(at[0] - at[1])
    nearest = np.abs(curve["x"] - 65).argmin()
    assert curve["x"][nearest] == pytest.approx(65)
    assert curve["ci_ub"][nearest] - curve["ci_lb"][nearest] == pytest.approx(0, abs=1e-9)
    assert curve["se"][-1] > 0.05
    wide = (curve["band_ub"] - curve["band_lb"])[-1] / (curve["ci_ub"] - curve["ci_lb"])[-1]
    assert wide == pytest.approx(2.795483482915 / 1.959963984540)  # sqrt(qchisq(.95, 3)), qnorm(.975)
    # Of curves with the pooled law, 95 % lie wholly in the simultaneous band and fewer in the pointwise one.
    drawn = np.random.default_rng(1).multivariate_normal(entry["beta"], entry["vcov"], 4000)
    along = (basis.columns(curve["x"]) - basis.columns(np.array([65.0]))) @ drawn.T
    whole = {
        name: np.mean(
            (along >= curve[f"{name}_lb"][:, None] - 1e-9).all(0)
            & (along <= curve[f"{name}_ub"][:, None] + 1e-9).all(0)
        )
        for name in ("ci", "band")
    }
    assert whole["band"] > 0.945 > 0.92 > whole["ci"]
    made = curve_figure(curve_of([entry]), scale="log", effect="Odds ratio", title="Age", path=tmp_path / "dose.svg")
    text = (tmp_path / "dose.svg").read_text()
    assert "Odds ratio against 65" in text
    assert 'id="simultaneous"' in text
    older = {**entry, "curve": {name: value for name, value in curve.items() if not name.startswith("band")}}
    curve_figure(older, scale="log", effect="Odds ratio", path=tmp_path / "older.svg")
    assert 'id="simultaneous"' not in (tmp_path / "older.svg").read_text()
    assert made is not None
    with pytest.raises(ParameterError, match="must be of one curve"):
        curve_of([])
