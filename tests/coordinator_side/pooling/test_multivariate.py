"""Coefficients pooled together: metafor's numbers on published sets, the sites' covariances, and the joint test.

tests/reference/multivariate_make.R writes the reference.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.multivariate import JointRow, joint_of_terms, joint_rows, pool_joint
from coordinator.pooling.pool import Pooling, pool
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand

HERE = Path(__file__).parents[2] / "reference"
STRUCTURE = {"FE": "", "UN": "un", "DIAG": "diag", "CS": "cs"}
REFERENCE = json.loads((HERE / "multivariate.json").read_text(encoding="utf-8"))
SETS = [name for name in REFERENCE if name != "versions"]
AT_THE_EDGE = {("kalaian1996", "UN"), ("kalaian1996", "CS")}
"""Where the most likely correlation between sites is 1 or -1: metafor's transformed one stops short of it."""


def published(name: str) -> tuple[list[JointRow], list[str]]:
    found = REFERENCE[name]
    terms, v = sorted(set(found["term"])), np.array(found["V"])
    rows = []
    for site in dict.fromkeys(found["site"]):
        at = [i for i, one in enumerate(found["site"]) if one == site]
        place = [terms.index(found["term"][i]) for i in at]
        yi, cov = np.full(len(terms), np.nan), np.full((len(terms), len(terms)), np.nan)
        yi[place] = [found["yi"][i] for i in at]
        cov[np.ix_(place, place)] = v[np.ix_(at, at)]
        rows.append(JointRow(label=site, yi=yi, cov=cov))
    return rows, terms


@pytest.mark.parametrize(("name", "fit"), [(name, fit) for name in SETS for fit in REFERENCE[name]["fits"]])
def test_coefficients_pooled_together_are_those_of_rma_mv(name, fit):
    rows, terms = published(name)
    struct, _, method = fit.partition("_")
    theirs = REFERENCE[name]["fits"][fit]
    ours = pool_joint(rows, terms, method=method or "FE", structure=STRUCTURE[struct], test="z")
    assert ours.beta == pytest.approx(theirs["beta"], rel=1e-6)
    assert pytest.approx(theirs["QE"], rel=1e-9) == ours.QE
    if struct != "FE":
        assert ours.loglik >= theirs["loglik"] - 1e-8
    if (name, struct) in AT_THE_EDGE:
        assert np.linalg.eigvalsh(ours.psi)[0] / ours.psi.max() == pytest.approx(0, abs=1e-6)
        assert ours.vcov == pytest.approx(np.array(theirs["vcov"]), rel=2e-4)
        return
    statistic, df, p = ours.wald()
    vcov = np.array(theirs["vcov"])
    assert ours.vcov == pytest.approx(vcov, rel=2e-6)  # rma.mv knows a maximum by its values alone
    assert (statistic, p) == (pytest.approx(theirs["QM"], rel=2e-6), pytest.approx(theirs["QMp"], rel=1e-5, abs=1e-12))
    assert df == len(terms)
    if struct == "FE":
        return
    psi = np.array(theirs["psi"])
    assert ours.psi == pytest.approx(psi, rel=1e-5, abs=1e-6 * psi.max())
    assert ours.loglik == pytest.approx(theirs["loglik"], abs=1e-7)
    on_t = replace(ours, test="t").wald()
    assert on_t[0] == pytest.approx(theirs["QM_t"]["QM"], rel=2e-6)
    assert on_t[2] == pytest.approx(theirs["QM_t"]["QMp"], rel=1e-5, abs=1e-12)


def test_one_coefficient_pooled_together_is_pooled_alone():
    rng = np.random.default_rng(3)
    yi, vi = rng.normal(0.2, 0.4, 9), rng.uniform(0.01, 0.1, 9)
    rows = [JointRow(label=str(i), yi=yi[[i]], cov=np.array([[vi[i]]])) for i in range(9)]
    for method in ("FE", "ML", "REML"):
        for structure in ("un", "prop", "diag"):
            for test in ("z", "knha", "adhoc"):
                alone = pool(yi, vi, method=method, test=test)
                ours = pool_joint(rows, ["x"], method=method, structure=structure, test=test)
                assert float(ours.beta[0]) == pytest.approx(alone.beta, rel=1e-6)
                assert float(ours.se[0]) == pytest.approx(alone.se, rel=1e-6)
                if structure != "prop" and method != "FE":
                    assert float(ours.psi[0, 0]) == pytest.approx(alone.tau2, rel=1e-5)


def test_as_within_sites_the_reference_level_of_a_factor_does_not_matter():
    rng = np.random.default_rng(4)
    turn = np.array([[-1.0, 0.0], [-1.0, 1.0]])  # to contrasts with the second level
    rows = []
    for i in range(4):
        half = rng.normal(size=(2, 2))
        rows.append(JointRow(label=f"{i}", yi=rng.normal(0, 0.5, 2), cov=0.05 * (half @ half.T + np.eye(2))))
    turned = [replace(row, yi=turn @ row.yi, cov=turn @ row.cov @ turn.T) for row in rows]
    one, other = (pool_joint(these, ["a", "b"]) for these in (rows, turned))
    assert one.structure == "prop"
    assert "4 sites cannot tell 3 variances" in one.notes[0]
    assert other.beta == pytest.approx(turn @ one.beta, rel=1e-6)
    assert other.vcov == pytest.approx(turn @ one.vcov @ turn.T, rel=1e-6)
    assert other.wald() == pytest.approx(one.wald(), rel=1e-6)


def test_the_quantile_of_all_contrasts_at_once_is_scheffes():
    """Of R: sqrt(2 * qf(.95, 2, 6)) and sqrt(qchisq(.95, 2))."""
    rows = [JointRow(label=f"{k}", yi=np.array([0.1 * k, 0.2]), cov=np.diag([0.01, 0.02])) for k in range(4)]
    found = [pool_joint(rows, ("a", "b"), method="FE", test=test) for test in ("adhoc", "z")]
    assert [one.critical_together for one in found] == pytest.approx([3.207258283888, 2.447746830681], rel=1e-9)


def test_what_cannot_be_pooled_together_has_its_reason():
    rows, terms = published("berkey1998")
    with pytest.raises(ParameterError, match="structure must be one of un, diag, cs, prop"):
        pool_joint(rows, terms, structure="ar")
    blind = [replace(row, yi=np.array([row.yi[0], np.nan])) for row in rows]
    with pytest.raises(EstimateRefusal, match="each coefficient must have an estimate"):
        pool_joint(blind, terms)
    alone = pool_joint(rows[:1], terms)
    assert (alone.method, alone.test, alone.df) == ("FE", "z", 0)
    same = replace(rows[0], cov=np.ones((2, 2)))
    assert pool_joint([same, *rows[1:]], terms).excluded == (("1", "the covariance of its terms is singular"),)
    assert "DL has no likelihood" in pool_joint(rows, terms, method="DL").notes[0]


# -- the sites' covariances ------------------------------------------------------------------------------------
def made(n: int = 400, seed: int = 7) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    stage, age = rng.integers(0, 3, n), rng.normal(60, 9, n)
    chance = 1 / (1 + np.exp(1 - 0.5 * (stage == 1) - 0.9 * (stage == 2) - 0.03 * (age - 60)))
    return pd.DataFrame(
        {"stage": np.array(["a", "b", "c"])[stage], "age": age, "died": (rng.random(n) < chance).astype(int)}
    )


QUESTION = "logistic(died{}) ~ age/10 + stage"


@pytest.mark.parametrize("robust", ["", "HC0"])
def test_a_sites_covariances_are_those_of_its_model(robust):
    table = made()
    rows = estimate(table, parse_estimand(QUESTION.format(f", robust = {robust}" if robust else "")), site="A")
    theirs = smf.logit("died ~ I(age / 10) + stage", table).fit(disp=0, cov_type=robust or "nonrobust").cov_params()
    [one], lost = joint_rows(rows, ["age/10", "stage[b]", "stage[c]"])
    assert not lost
    assert one.cov == pytest.approx(theirs.to_numpy()[[3, 1, 2]][:, [3, 1, 2]], rel=1e-6)
    assert all(
        row.yi is None or row.correlations.keys() == {r.term for r in rows} - {row.term} | {"intercept"} for row in rows
    )


def test_a_factors_levels_are_pooled_together_with_the_releases_variance():
    question, rows = parse_estimand(QUESTION.format("")), []
    draws = [Draw(rows=400, w=0.8, fitted_on=400)]
    for seed, site in enumerate("ABCD"):
        table = made(seed=seed)
        own = estimate(table, question, site=site)
        rows += with_release_variance(own, table, question, draws)
        pushes = influence(table, question)
        r = np.corrcoef(pushes["stage[b]"], pushes["stage[c]"])[0, 1]
        assert next(row for row in own if row.term == "stage[b]").correlations["stage[c]"] == pytest.approx(r, abs=0.1)
    [found] = joint_of_terms(rows, question, Pooling(method="REML", test="z"))
    assert (found["term"], found["terms"], found["reason"]) == ("stage", ["stage[b]", "stage[c]"], "")
    for site, here in zip("ABCD", found["sites"], strict=True):
        vi = [row.vi for row in rows if row.site == site and row.term.startswith("stage")]
        assert np.diag(here["cov"]) == pytest.approx(vi)
    assert found["p"] < 0.001
    assert found["sentence"].startswith("2 coefficients pooled together (REML, prop, z; 4 sites)")
    blind = [replace(row, correlations={}) for row in rows]
    [refused] = joint_of_terms(blind, question, Pooling(method="REML", test="z"))
    assert "releases of this kind give no covariances of them" in refused["reason"]
    some = [replace(row, correlations={}) if row.site == "A" else row for row in rows]
    [found] = joint_of_terms(some, question, Pooling(method="REML", test="z"))
    assert {"label": "A", "reason": "its answer has no covariances of its terms"} in found["excluded"]
