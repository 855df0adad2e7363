"""The made-up studies look like the published ones they stand for."""

import numpy as np
import pytest

from shared.errors import ParameterError
from shared.simulated import COHORTS, CVD_HAZARD_RATIO, cvd_cohorts, small_hospitals
from tests.benchmarks.paper.studies import gaussian_table, linear_studies


@pytest.fixture(scope="module", params=[1, 2])
def cohorts(request):
    return cvd_cohorts(np.random.default_rng(request.param))


def test_twelve_cohorts_have_the_published_sizes(cohorts):
    assert {name: len(table) for name, table in cohorts.items()} == {c.name: c.n for c in COHORTS}
    assert sum(map(len, cohorts.values())) == 38_781


@pytest.mark.parametrize("cohort", COHORTS, ids=lambda c: c.name)
def test_each_cohort_has_the_figures_of_table_3(cohorts, cohort):
    table = cohorts[cohort.name]
    assert abs(table["cvd"].mean() - cohort.events) < 0.015
    for column in ("time", "age", "chol", "hdl", "sbp"):
        mean, sd = getattr(cohort, column)
        assert table[column].mean() == pytest.approx(mean, rel=0.02), column
        assert table[column].std() == pytest.approx(sd, rel=0.10), column


def test_cohorts_have_people_once_and_values_in_range(cohorts):
    for name, table in cohorts.items():
        assert list(table.columns) == ["person", "time", "cvd", "age", "chol", "hdl", "sbp"]
        assert table["person"].is_unique
        assert set(table["cvd"]) == {0, 1}
        assert table["time"].between(0.01, 60).all(), name
        assert table["age"].between(16, 100).all()
        assert table["sbp"].between(60, 280).all()
        assert table["chol"].between(60, 600).all()
        assert table["hdl"].between(10, 200).all()
        assert table["sbp"].corr(table["age"]) > 0.15


def test_hazard_ratio_of_ten_mmhg_is_near_the_truth(cohorts):
    from statsmodels.duration.hazard_regression import PHReg

    weights, slopes = [], []
    for table in cohorts.values():
        x = table[["sbp", "age", "chol", "hdl"]].to_numpy() / [10, 10, 40, 15]
        fit = PHReg(table["time"].to_numpy(), x - x.mean(axis=0), status=table["cvd"].to_numpy()).fit()
        slopes.append(fit.params[0])
        weights.append(fit.bse[0] ** -2)
    assert np.exp(np.average(slopes, weights=weights)) == pytest.approx(CVD_HAZARD_RATIO, abs=0.05)


def test_the_same_seed_gives_the_same_cohorts():
    one, two = (cvd_cohorts(np.random.default_rng(9), scale=0.05) for _ in range(2))
    assert all(one[name].equals(two[name]) for name in one)


def test_cohorts_shrink_by_scale_down_to_twenty():
    assert len(cvd_cohorts(np.random.default_rng(1), scale=0.1)["ARIC-F"]) == 810
    with pytest.raises(ParameterError, match="at least 20"):
        cvd_cohorts(np.random.default_rng(1), scale=0.01)


def test_linear_studies_have_the_printed_sizes_and_slopes():
    studies = linear_studies(np.random.default_rng(1), studies=40)
    assert all(750 <= len(t) <= 1000 and t.shape[1] == 5 for t in studies)
    slopes = [np.linalg.lstsq(np.column_stack([np.ones(len(t)), t[:, :4]]), t[:, 4], rcond=None)[0] for t in studies]
    assert np.allclose(np.mean(slopes, axis=0), [0, 1, 1, 1, 1], atol=0.05)
    residual = studies[0][:, 4] - np.column_stack([np.ones(len(studies[0])), studies[0][:, :4]]) @ slopes[0]
    assert residual.var() == pytest.approx(0.5, rel=0.15)


def test_gaussian_table_has_the_printed_correlation():
    x = gaussian_table(np.random.default_rng(1), 20_000, 5, 0.9)
    assert np.allclose(np.corrcoef(x.T), 0.1 * np.eye(5) + 0.9, atol=0.01)
    assert np.allclose(x.std(axis=0), 1, atol=0.03)


def test_small_hospitals_have_deaths_and_both_sexes():
    tables = small_hospitals(np.random.default_rng(1))
    assert list(tables) == ["north", "south", "east"]
    for table in tables.values():
        assert len(table) == 400
        assert set(table["sex"]) == {"female", "male"}
        assert 0.05 < table["died"].mean() < 0.5
        assert table["person"].is_unique
