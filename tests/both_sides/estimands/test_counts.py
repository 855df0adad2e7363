"""Cross-tables and histograms: equal to other programs' numbers, with the release's variance, through the doors."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.coordinator_side.analysis import desk, study  # noqa: F401
from statsmodels.stats.contingency_tables import Table2x2

from coordinator.analyst import commands as client
from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.multivariate import joint_of_terms
from coordinator.pooling.pool import Pooling
from shared.errors import ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand
from shared.estimands.columns import TableCell
from shared.estimands.effects import effect_name, shown

LEVELS = {"stage": ("a", "b", "c"), "arm": (0, 1)}
CROSS = parse_estimand("crosstab(stage, arm)")


def made(n: int, seed: int, effect: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 2, n)
    stage = rng.normal(0.5 * effect * arm, 1, n)
    return pd.DataFrame({"arm": arm, "stage": np.select([stage < 0, stage < 1], ["a", "b"], "c"), "x": stage})


def cells(table, text):
    return {row.term: row for row in estimate(table, parse_estimand(text), levels=LEVELS)}


def test_odds_ratios_and_shares_are_those_of_statsmodels_and_pandas():
    table = made(400, 1)
    ours, counts = cells(table, "crosstab(stage, arm)"), pd.crosstab(table.stage, table.arm)
    for level in ("b", "c"):
        theirs = Table2x2(counts.loc[[level, "a"], [1, 0]].to_numpy())
        row = ours[f"odds_ratio(stage[{level}]) | 1"]
        assert row.yi == pytest.approx(theirs.log_oddsratio, rel=1e-12)
        assert row.vi == pytest.approx(theirs.log_oddsratio_se**2, rel=1e-12)
    for level in "abc":
        for group in (0, 1):
            row = ours[f"share(stage[{level}]) | {group}"]
            assert shown(row.yi, row.scale) == pytest.approx(counts.loc[level, group] / counts[group].sum())
            assert row.n == counts[group].sum()
    assert effect_name(CROSS, "odds_ratio(stage[b]) | 1") == "Odds ratio"
    assert TableCell.read("odds_ratio(stage[b]) | 1").group == "1"


def test_a_histogram_has_numpys_counts_and_a_half_where_there_are_none():
    table = made(300, 2)
    edges = [-4.0, -1.0, 0.0, 0.5, 2.0, 4.0, 9.0]
    ours = list(cells(table, "histogram(x, breaks = c(-4, -1, 0, 0.5, 2, 4, 9))").values())
    known = np.histogram(table.x, edges)[0]
    assert known[-1] == 0
    for row, count in zip(ours, known, strict=True):
        yes, no = (count, 300 - count) if count else (0.5, 300.5)
        assert (row.yi, row.vi) == (pytest.approx(math.log(yes / no)), pytest.approx(1 / yes + 1 / no))


def test_the_test_of_independence_is_near_pearsons_and_holds_its_level():
    table = made(4000, 3)
    (found,) = joint_of_terms(estimate(table, CROSS, site="A", levels=LEVELS), CROSS, Pooling(method="FE", test="z"))
    theirs = stats.chi2_contingency(pd.crosstab(table.stage, table.arm))
    found_chi2, df = found["sentence"].split("χ² ")[1].split(" df")[0].split(" on ")
    assert int(df) == theirs.dof
    assert float(found_chi2) == pytest.approx(theirs.statistic, rel=0.1)
    apart = 0
    for seed in range(200):
        rows = estimate(made(300, 1000 + seed, effect=0.0), CROSS, site="A", levels=LEVELS)
        beta = np.array([row.yi for row in rows if row.term.startswith("odds")])
        se = np.array([row.vi**0.5 for row in rows if row.term.startswith("odds")])
        one, other = [row for row in rows if row.term.startswith("odds")]
        r = one.correlations[other.term]
        cov = np.outer(se, se) * np.array([[1, r], [r, 1]])
        apart += beta @ np.linalg.solve(cov, beta) > stats.chi2.ppf(0.95, 2)
    assert 2 <= apart <= 20


def test_rows_influences_hold_the_variance_and_a_release_widens_it():
    table = made(500, 4)
    rows, pushes = estimate(table, CROSS, levels=LEVELS), influence(table, CROSS, levels=LEVELS)
    for row in rows:
        assert row.vi == pytest.approx(float(pushes[row.term] @ pushes[row.term]))
        assert pushes[row.term].sum() == pytest.approx(0, abs=1e-9)
    for row in with_release_variance(rows, table, CROSS, [Draw(rows=500, w=0.0, fitted_on=500)], levels=LEVELS):
        assert row.vi == pytest.approx(2 * row.vi_naive)


def test_what_cannot_be_told_has_a_reason_and_no_half_hides_an_absent_group():
    table = made(200, 5)
    ours = cells(table[table.arm == 0].reset_index(drop=True), "crosstab(stage, arm)")
    assert ours["share(stage[a]) | 1"].reason == ours["odds_ratio(stage[b]) | 1"].reason
    assert "no rows" in ours["odds_ratio(stage[b]) | 1"].reason
    table.loc[(table.arm == 1) & (table.stage == "b"), "stage"] = "a"
    halved = cells(table, "crosstab(stage, arm)")["odds_ratio(stage[b]) | 1"]
    counts = pd.crosstab(table.stage, table.arm)
    four = [0.5, counts.loc["a", 1] + 0.5, counts.loc["b", 0] + 0.5, counts.loc["a", 0] + 0.5]
    assert halved.yi == pytest.approx(math.log(four[0] * four[3] / (four[1] * four[2])))
    assert halved.vi == pytest.approx(sum(1 / one for one in four))


@pytest.mark.parametrize(
    "wrong",
    [
        "crosstab(a)",
        "crosstab(a, b, c)",
        "crosstab(a > 1, b)",
        "histogram(a, b)",
        "histogram(x, breaks = 1)",
        "histogram(x, breaks = c(3, 2, 1))",
        "histogram(x, breaks = y)",
        "mean(x, breaks = 5)",
    ],
)
def test_what_is_no_cross_table_or_histogram_is_refused(wrong):
    with pytest.raises(ParameterError):
        parse_estimand(wrong)


def test_bins_follow_from_public_bounds_alone():
    question = parse_estimand("histogram(age, breaks = 4)")
    assert question.unsettled
    settled = question.with_breaks(lambda name: (18.0, 90.0))
    assert str(settled) == "histogram(age, breaks = c(18, 36, 54, 72, 90))"
    assert not settled.unsettled
    assert parse_estimand(str(settled)) == settled


def test_both_are_asked_from_python_and_the_command_line_and_written(desk, study, capsys, tmp_path):  # noqa: F811
    file, out = str(desk.save(desk.admit("counts"))), tmp_path / "counts.html"
    bins = study.histogram("age", breaks=5)
    argv = ["histogram", "cvd", "age", "--breaks", "5", "--token", file, "--out", str(out), "--json"]
    assert client.main(argv) == 0
    assert json.loads(capsys.readouterr().out) == bins.document
    assert out.read_text(encoding="utf-8") == bins.html()
    assert "Histogram of cvd" in bins.html()
    assert "Privatised rows" in bins.html()
    pooled = bins.to_frame().query("site == 'all sites'")
    assert len(pooled) == 5
    assert 0.9 < pooled.estimate.sum() < 1.1
