"""Likelihoods of others pooled: R's numbers in each form that EvidenceSynthesis writes, and the verbs that read them.

tests/reference/profiles_make.R writes the reference.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coordinator.analyst.commands import main
from coordinator.analyst.own.profiles import profiles_of
from coordinator.pooling.further.profiles import (
    counts_profile,
    grid_profile,
    normal_profile,
    pool_profiles,
    pool_profiles_random,
)
from coordinator.pooling.pool import pool
from shared.errors import ParameterError

REFERENCE = json.loads((Path(__file__).parents[2] / "reference" / "profiles.json").read_text(encoding="utf-8"))
COX = REFERENCE["cox"]


def answer(capsys, *argv):
    assert main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def long_form(names: tuple[str, ...]) -> pd.DataFrame:
    rows = [
        pd.DataFrame({"inst": site, "point": COX["grid"], **{n: one[n] for n in names}})
        for site, one in COX["sites"].items()
    ]
    return pd.concat(rows, ignore_index=True).sample(frac=1, random_state=1)


def wide_form() -> pd.DataFrame:
    table = pd.DataFrame(
        {f"{x:.17g}": [one["value"][j] for one in COX["sites"].values()] for j, x in enumerate(COX["grid"])}
    )
    table.insert(0, "inst", list(COX["sites"]))
    return table


@pytest.mark.parametrize(
    ("form", "table", "near"),
    [
        ("grid", wide_form(), 1e-6),
        ("adaptive grid", long_form(("value",)), 1e-6),
        ("grid with gradients", long_form(("value", "derivative")), 1e-6),
    ],
)
def test_partial_likelihoods_of_sites_add_to_the_stratified_cox_model(form, table, near):
    said, found, lost = profiles_of(table, list(table["inst"]), "inst")
    assert (said, lost) == (form, [])
    ours = pool_profiles(found)
    assert ours.beta == pytest.approx(COX["beta"], rel=near)
    assert (ours.interval.lb, ours.interval.ub) == pytest.approx(tuple(COX["interval"]), rel=near)


@pytest.mark.parametrize(("name", "form"), [("skew", "skew normal"), ("custom", "custom")])
def test_parametric_forms_add_as_r_adds_them(name, form):
    theirs = REFERENCE[name]
    said, found, _ = profiles_of(pd.DataFrame(theirs["table"]), ["A", "B", "C"], "")
    ours = pool_profiles(found)
    assert said == form
    assert ours.beta == pytest.approx(theirs["beta"], rel=1e-6)
    assert (ours.interval.lb, ours.interval.ub) == pytest.approx(tuple(theirs["interval"]), rel=1e-6)


def test_conditional_likelihoods_of_counts_add_as_r_adds_them():
    theirs = REFERENCE["counts"]
    ours = pool_profiles([counts_profile(f"{i}", *row) for i, row in enumerate(theirs["table"])])
    assert ours.beta == pytest.approx(theirs["beta"], rel=1e-6)
    assert (ours.interval.lb, ours.interval.ub) == pytest.approx(tuple(theirs["interval"]), rel=1e-6)
    assert ours.own[0] is None  # no event in one arm: no finite estimate of its own, and it takes part
    assert ours.QE is None


def test_normal_likelihoods_are_the_fixed_effect():
    yi, se = [0.1, 0.4, -0.2], [0.2, 0.3, 0.25]
    ours = pool_profiles([normal_profile(f"{i}", y, s) for i, (y, s) in enumerate(zip(yi, se, strict=True))])
    theirs = pool(yi, np.square(se), method="FE", test="z")
    assert ours.beta == pytest.approx(theirs.beta, abs=1e-8)
    assert (ours.interval.lb, ours.interval.ub) == pytest.approx((theirs.ci_lb, theirs.ci_ub), abs=1e-8)
    assert (ours.QE, ours.QEp) == (pytest.approx(theirs.QE, rel=1e-6), pytest.approx(theirs.QEp, rel=1e-6))


def test_effects_that_vary_have_the_posterior_that_quadrature_gives():
    yi, se = np.array([0.1, 0.4, -0.2, 0.5]), np.array([0.2, 0.3, 0.25, 0.4])
    ours = pool_profiles_random([normal_profile(f"{i}", y, s) for i, (y, s) in enumerate(zip(yi, se, strict=True))])
    mu, tau = np.linspace(-3, 3, 1201)[:, None], np.linspace(1e-6, 3, 600)
    spread = se[:, None, None] ** 2 + tau**2
    log = -0.5 * (((yi[:, None, None] - mu) ** 2) / spread + np.log(spread)).sum(axis=0) - mu**2 / 8 - tau**2 / 0.5
    post = np.exp(log - log.max())
    post /= post.sum()
    assert ours.mu.mean == pytest.approx(float((post * mu).sum()), abs=2e-3)
    assert ours.tau.mean == pytest.approx(float((post * tau).sum()), abs=2e-3)


def test_what_is_no_profile_is_told():
    with pytest.raises(ParameterError, match="one of EvidenceSynthesis' forms"):
        profiles_of(pd.DataFrame({"a": [1.0], "b": [2.0]}), ["A"], "")
    with pytest.raises(ParameterError, match="one column that names the site"):
        profiles_of(pd.DataFrame({"point": [1.0], "value": [2.0]}), ["A"], "")
    with pytest.raises(ParameterError, match="each point once"):
        grid_profile("A", [0, 1, 1, 2, 3, 4], [1, 2, 2, 3, 2, 1])
    with pytest.raises(ParameterError, match="between two others"):
        grid_profile("A", [0, 1, 2, 3, 4, 5], [1, 2, math.nan, 3, 2, 1])
    found, lost = profiles_of(pd.DataFrame({"logRr": [0.1, math.nan], "seLogRr": [0.2, 0.1]}), ["A", "B"], "")[1:]
    assert [row.label for row in found] == ["A"]
    assert [row.label for row in lost] == ["B"]
    with pytest.raises(ParameterError, match="each site may have one profile"):
        pool_profiles([*found, *found])


def test_likelihoods_without_a_maximum_have_a_reason_and_the_end_that_they_have():
    none = pool_profiles([counts_profile("A", 0, 50, 5, 45)])
    assert none.beta is None
    assert "no finite estimate" in none.reason
    assert none.interval.lb is None
    assert none.interval.ub < 0
    flat = pool_profiles([counts_profile("A", 0, 50, 0, 50)])
    assert flat.interval.empty
    assert "says anything" in flat.reason


def test_the_verbs_read_likelihoods_counts_and_several_coefficients(tmp_path, capsys):
    table = tmp_path / "grid.csv"
    wide_form().to_csv(table, index=False)
    found = answer(capsys, "pool", table, "--profiles", "--bayes")
    assert found["form"] == "grid"
    assert found["beta"] == pytest.approx(COX["beta"], rel=1e-6)
    assert found["bayes"]["prior"].startswith("mean ~ normal(0, 2)")
    counts = tmp_path / "counts.csv"
    counts.write_text("site,ai,bi,ci,di\nA,0,100,4,96\nB,2,98,5,95\nC,3,40,9,33\n")
    assert answer(capsys, "tables", counts, "--method", "likelihood")["beta"] == pytest.approx(
        REFERENCE["counts"]["beta"], rel=1e-6
    )
    together = json.loads((Path(__file__).parents[2] / "reference" / "multivariate.json").read_text())["berkey1998"]
    rows = pd.DataFrame({"trial": together["site"], "outcome": together["term"], "yi": together["yi"]})
    v = np.array(together["V"])
    pairs = [v[i : i + 2, i : i + 2] for i in range(0, len(rows), 2)]
    rows["v1i"], rows["v2i"] = np.concatenate(pairs).T
    berkey = tmp_path / "berkey.csv"
    rows.to_csv(berkey, index=False)
    ours = answer(
        capsys, "pool", berkey, "--terms", "outcome", "--rvars", "v1i,v2i", "--structure", "un", "--test", "z"
    )
    theirs = together["fits"]["UN_REML"]
    assert dict(zip(ours["terms"], ours["beta"], strict=True)) == pytest.approx(
        dict(zip(sorted(ours["terms"]), theirs["beta"], strict=True)), rel=1e-6
    )
    assert ours["statistic"] == pytest.approx(theirs["QM"], rel=2e-6)
