"""Slicing at several sites: one model of all their lines, and a step from it to each one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.slicing.projections import fit, margins_of, moments
from shared.plans.dictionary import Column, Dictionary

DOSED = Dictionary(
    name="dosed",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="dose", kind="continuous", lower=-4, upper=4, decimals=2),
        Column(name="age", kind="continuous", lower=-4, upper=4, decimals=2),
        Column(name="ill", kind="binary"),
    ),
)
SITES, N = 12, 400
QUESTION = parse_estimand("logistic(ill) ~ dose + age")


def records(seed: int) -> pd.DataFrame:
    """Patients of one site: sites differ in their dose and in how many are ill."""
    rng = np.random.default_rng(seed)
    dose, age = rng.standard_normal((2, N)).clip(-3.9, 3.9)
    ill = rng.random(N) < 1 / (1 + np.exp(1.2 + 0.3 * np.sin(seed) - 0.7 * dose - 0.4 * age))
    columns = {"dose": dose + 0.2 * np.cos(seed), "age": age, "ill": ill.astype(float)}
    return DOSED.check(pd.DataFrame({"person": np.arange(N).astype(str), **columns}).round(2))


def study_of(plan, sigma):
    return replace(plan, dictionary=DOSED, release=SlicingPlan(sigma=sigma), posture="private", estimands={})


def released(study, noise: int = 1):
    """Site to its records, and to what it released."""
    tables = {f"s{seed:02}": records(seed) for seed in range(SITES)}
    drawn = {
        site: [(study.release.draw(study, table, seeded_rng(100 * noise + k)), N)]
        for k, (site, table) in enumerate(tables.items())
    }
    return tables, drawn


def origins(sites):
    return {site: {"study": "mini", "site": site, "wave": 1, "receipts": (f"of {site}",)} for site in sites}


def pooled(answers, term="dose"):
    return pool_estimates([row for rows in answers.values() for row in rows if row.term == term])


@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_the_pool_holds_the_records_of_one_model_and_of_sites_by_themselves_that_are_alike_wrong(plan, sigma):
    study = study_of(plan, sigma)
    tables, drawn = released(study)
    truly = pooled({s: estimate(one, QUESTION, study="mini", site=s, wave=1) for s, one in tables.items()})
    found = pooled(study.release.together(study, drawn, QUESTION, origins=origins(drawn)))
    assert found.ci_lb <= truly.beta <= found.ci_ub
    alone = {s: study.release.answer(study, one, QUESTION, levels={}, **origins(drawn)[s]) for s, one in drawn.items()}
    apart = pooled(alone)
    assert apart.ci_lb <= truly.beta <= apart.ci_ub, "what each lacks is common to them here, too"
    if sigma < 1:
        assert abs(found.beta - truly.beta) < 0.1
        assert found.se < 3 * truly.se
    else:
        assert apart.shared > 0.9 * apart.se**2


def test_what_the_model_may_lack_is_common_and_each_site_is_named(plan):
    study = study_of(plan, 3.0)
    _, drawn = released(study)
    answers = study.release.together(study, drawn, QUESTION, origins=origins(drawn))
    rows = [row for found in answers.values() for row in found if row.term == "dose"]
    assert [(row.site, row.receipts) for row in rows] == [(site, (f"of {site}",)) for site in drawn]
    assert min(row.vi_common for row in rows) > 0
    assert pool_estimates(rows).shared >= min(row.vi_common for row in rows) * 0.99
    assert len({row.warnings for row in rows}) == 1, "a pool says it once"
    assert all(0 < row.vi_naive <= row.vi_sampling for row in rows)
    # Both variances of a logistic model's rows are of so many rows as the site has: together they say if it holds.
    assert all(row.vi_sandwich == pytest.approx(row.vi_naive, rel=0.2) for row in rows)
    assert {row.n for row in rows} == {N}
    assert len({row.yi for row in rows}) == SITES


def test_a_site_of_more_persons_than_all_others_is_its_own(plan):
    study = study_of(plan, 3.0)
    _, drawn = released(study)
    few = dict(list(drawn.items())[:3])
    given = {"origins": origins(few)}
    assert study.release.together(study, dict(list(few.items())[:1]), QUESTION, **given) == {}
    [(first, [(table, _)]), *others] = few.items()
    lines = table[table["line"] != "direction"]
    many = pd.concat([table[table["line"] == "direction"], *[lines] * 3], ignore_index=True)
    assert set(study.release.together(study, {first: [(many, 3 * N)], **dict(others)}, QUESTION, **given)) == {
        site for site, _ in others
    }


SKEWED = Dictionary(
    name="skewed",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="lab", kind="continuous", lower=0.01, upper=20, decimals=3),
        Column(name="age", kind="continuous", lower=-4, upper=4, decimals=3),
        Column(name="ill", kind="binary"),
    ),
)


def skewed(share: float, n: int, seed: int) -> pd.DataFrame:
    """A laboratory value with a long tail within wide bounds, and a yes or no."""
    rng = np.random.default_rng(seed)
    age = rng.standard_normal(n).clip(-4, 4)
    lab = np.exp(0.5 * age + 0.85 * rng.standard_normal(n)).clip(0.01, 20)
    columns = {"lab": lab, "age": age, "ill": (rng.random(n) < share).astype(float)}
    return SKEWED.check(pd.DataFrame({"person": np.arange(n).astype(str), **columns}).round(3))


def drawn_of(plan, dictionary, tables, sigma):
    study = replace(plan, dictionary=dictionary, release=SlicingPlan(sigma=sigma), posture="private", estimands={})
    drawn = {
        site: [(study.release.draw(study, table, seeded_rng(k)), len(table))]
        for k, (site, table) in enumerate(tables.items())
    }
    return study, drawn


def answers_of(study, tables, drawn, question, term=None):
    """(pool of the records, pool of the lines)"""
    levels = {column.name: column.levels for column in study.dictionary.released if column.levels}
    real = {s: estimate(one, question, study="m", site=s, wave=1, levels=levels) for s, one in tables.items()}
    found = study.release.together(study, drawn, question, origins=origins(drawn))
    term = term or question.labels[0]
    return pooled({s: [row for row in rows if row.yi is not None] for s, rows in real.items()}, term), pooled(
        found, term
    )


@pytest.mark.parametrize("asked", ["mean(lab)", "proportion(ill)"])
def test_a_mean_of_a_long_tail_and_a_share_are_the_lines_own(plan, asked):
    tables = {f"s{k:02}": skewed(0.15, 1500, 40 + k) for k in range(12)}
    study, drawn = drawn_of(plan, SKEWED, tables, 4.0)
    real, found = answers_of(study, tables, drawn, parse_estimand(asked))
    assert found.ci_lb <= real.beta <= found.ci_ub
    assert found.shared == 0, "nothing is left to a model"
    assert found.ci_ub - found.ci_lb < 1.2, "of the mean the model leaves three times as much open"
    [alone] = study.release.answer(
        study, drawn["s00"], parse_estimand(asked), levels={"ill": (0, 1)}, **origins(drawn)["s00"]
    )
    assert alone.yi is None or abs(alone.yi - real.yi[0]) < 3 * alone.vi**0.5


def test_a_share_that_noise_hides_is_refused_and_its_mean_is_not(plan):
    tables = {f"s{k:02}": skewed(0.05, 400, 60 + k) for k in range(4)}
    study, drawn = drawn_of(plan, SKEWED, tables, 5.0)
    found = study.release.together(study, drawn, parse_estimand("proportion(ill)"), origins=origins(drawn))
    assert {row.reason.split(";")[1] for rows in found.values() for row in rows} == {" mean(ill) is pooled as it is"}
    real, mean = answers_of(study, tables, drawn, parse_estimand("mean(ill)"))
    assert mean.ci_lb <= real.beta <= mean.ci_ub


REGIONS = Dictionary(
    name="regions",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="region", kind="nominal", levels=("a", "b", "c", "d", "e"), missing="level"),
        Column(name="stage", kind="ordered", levels=(1, 2, 3)),
        Column(name="age", kind="continuous", lower=-4, upper=4, decimals=3),
    ),
)


def living(seed: int, n: int) -> pd.DataFrame:
    """Patients of five regions, one rare, some unknown, and of three stages."""
    rng = np.random.default_rng(seed)
    region = rng.choice([*"abcde", None], n, p=[0.4, 0.25, 0.17, 0.1, 0.04, 0.04])
    columns = {"region": region, "stage": rng.choice([1, 2, 3], n, p=[0.5, 0.3, 0.2])}
    columns |= {"age": rng.standard_normal(n).clip(-4, 4).round(3)}
    return pd.DataFrame({"person": np.arange(n).astype(str), **columns})


def lived(plan, sites: int, n: int, sigma: float):
    """(study, site to records, site to lines)"""
    tables = {f"s{k:02}": living(k, n) for k in range(sites)}
    study, drawn = drawn_of(plan, REGIONS, {s: REGIONS.check(one) for s, one in tables.items()}, sigma)
    return study, tables, drawn


@pytest.mark.parametrize(
    "asked", ['proportion(region == "e")', 'proportion(region == "a" | region == "b")', "proportion(stage >= 2)"]
)
def test_a_share_of_levels_is_the_lines_own(plan, asked):
    study, tables, drawn = lived(plan, 12, 1200, 0.4)
    real, found = answers_of(study, tables, drawn, parse_estimand(asked))
    assert found.ci_lb <= real.beta <= found.ci_ub
    assert found.shared == 0, "nothing is left to a model"
    assert abs(found.beta - real.beta) < 0.1, "a model draws a rare level towards none"
    assert [row.n_missing for row in found.estimates] == pytest.approx(
        [row.n_missing for row in real.estimates], abs=25
    )


def test_the_mean_of_an_ordered_column_is_the_lines_own(plan):
    study, tables, drawn = lived(plan, 6, 1200, 0.4)
    real, found = answers_of(study, tables, drawn, parse_estimand("mean(stage)"))
    assert found.ci_lb <= real.beta <= found.ci_ub
    assert found.shared == 0
    assert found.se < 1.5 * real.se
    with pytest.raises(EstimateRefusal, match="must be 0 or 1"):
        study.release.together(study, drawn, parse_estimand("proportion(stage)"), origins=origins(drawn))


def test_a_share_of_sites_whose_differences_noise_hides_has_what_these_make_of_the_curve_in_its_interval(plan):
    study, tables, drawn = lived(plan, 12, 400, 8.0)
    real, found = answers_of(study, tables, drawn, parse_estimand('proportion(region == "a")'))
    assert found.ci_lb <= real.beta <= found.ci_ub
    assert 0 < found.shared < found.se**2
    refused = study.release.together(study, drawn, parse_estimand('proportion(region == "e")'), origins=origins(drawn))
    assert {row.reason for rows in refused.values() for row in rows} == {
        "noise hides how far sites' shares are from 0, which logits need; the mean of a 0/1 column of it that sites "
        "compute is pooled as it is"
    }


def test_levels_that_sum_to_one_halve_the_noise_of_a_yes(plan):
    tables = {"s00": skewed(0.4, 800, 3), "s01": skewed(0.4, 800, 4)}
    study, drawn = drawn_of(plan, SKEWED, tables, 4.0)
    found = study.release.together(study, drawn, parse_estimand("mean(ill)"), origins=origins(drawn))
    for rows, (site, [(table, n)]) in zip(found.values(), drawn.items(), strict=True):
        directions, lines = study.release.projections(study, table)
        code = study.release.code(study)
        noise = moments(code, [(directions, lines)], study.release.slicing(study).sigma).noise
        assert rows[0].vi_privacy == pytest.approx(noise[-1, -1] / 2 / n, rel=0.2)
        assert abs(rows[0].yi - tables[site]["ill"].mean()) < 3 * rows[0].vi_privacy ** 0.5


def shifted(seed: int, n: int) -> pd.DataFrame:
    """The same slope at every site; sites whose dose is higher have lower outcomes."""
    rng = np.random.default_rng(seed)
    at = np.sin(3 * seed)
    dose, age = rng.standard_normal((2, n))
    dose = (dose + 0.7 * at).clip(-4, 4)
    y = (0.4 * (dose - 0.7 * at) - 1.0 * at + 0.3 * age + 0.5 * rng.standard_normal(n)).clip(-4, 4)
    columns = {"dose": dose, "age": age.clip(-4, 4), "y": y}
    return SHIFTED.check(pd.DataFrame({"person": np.arange(n).astype(str), **columns}).round(3))


SHIFTED = Dictionary(
    name="shifted",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        *(Column(name=name, kind="continuous", lower=-4, upper=4, decimals=3) for name in ("dose", "age", "y")),
    ),
)


def test_hospitals_that_lie_apart_in_both_columns_do_not_make_a_slope(plan):
    """Of all records together, without hospitals, the slope is .1; within each it is .4."""
    tables = {f"s{k:02}": shifted(k, 1000) for k in range(12)}
    study, drawn = drawn_of(plan, SHIFTED, tables, 0.3)
    real, found = answers_of(study, tables, drawn, parse_estimand("ols(y) ~ dose + age"), "dose")
    everybody = pd.concat(tables.values(), ignore_index=True)
    x = np.column_stack([np.ones(len(everybody)), everybody["dose"], everybody["age"]])
    stacked = np.linalg.lstsq(x, everybody["y"], rcond=None)[0][1]
    assert real.beta - stacked > 0.2
    assert found.ci_lb <= real.beta <= found.ci_ub
    assert abs(found.beta - real.beta) < abs(found.beta - stacked)


def narrow(seed: int, spread: float, n: int = 1000) -> pd.DataFrame:
    """A number within bounds that are far wider than it varies."""
    rng = np.random.default_rng(seed)
    z, age = rng.standard_normal((2, n))
    y = (0.5 * z + 0.3 * age + 0.8 * rng.standard_normal(n)).clip(-4, 4)
    columns = {"dose": (4 * spread * z).clip(-4, 4), "age": age.clip(-4, 4), "y": y}
    return SHIFTED.check(pd.DataFrame({"person": np.arange(n).astype(str), **columns}).round(3))


def test_where_lines_do_not_show_how_a_number_is_spread_the_answer_says_from_which_spread_on_it_holds(plan):
    tables = {f"s{k:02}": narrow(80 + k, 0.13) for k in range(12)}
    study, drawn = drawn_of(plan, SHIFTED, tables, 9.0)
    real, found = answers_of(study, tables, drawn, parse_estimand("ols(y) ~ dose + age"), "dose")
    assert found.ci_lb <= real.beta <= found.ci_ub
    [said] = [note for note in found.notes if "how dose is spread" in note]
    assert "holds where its standard deviation is 0.48 or more" in said


def test_sites_differ_in_a_frequent_level_as_far_as_its_variance_lets_them(plan):
    """Held to the second moment, which is no variance, shares of .885 and .915 were taken for noise."""
    tables = {f"s{k:02}": skewed(0.885 if k % 2 else 0.915, 1500, k) for k in range(12)}
    study, drawn = drawn_of(plan, SKEWED, tables, 0.3)
    found = {site: study.release._moments(study, one) for site, one in drawn.items()}
    everybody = study.release._moments(study, [one for several in drawn.values() for one in several])
    code = study.release.code(study)
    margins = margins_of(fit(code, everybody), everybody, found)
    at = next(block.at for block in code.blocks if block.column.name == "ill") + 1
    shares = np.array([float(one.weights @ one.means[:, at]) for one in margins.values()])
    assert shares[::2].mean() - shares[1::2].mean() > 0.015
