"""Slicing at several sites: one model of all their lines, and a step from it to each one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.slicing.plan import SlicingPlan
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
def test_the_pool_holds_the_records_where_sites_by_themselves_are_alike_wrong(plan, sigma):
    study = study_of(plan, sigma)
    tables, drawn = released(study)
    truly = pooled({s: estimate(one, QUESTION, study="mini", site=s, wave=1) for s, one in tables.items()})
    found = pooled(study.release.together(study, drawn, QUESTION, origins=origins(drawn)))
    assert found.ci_lb <= truly.beta <= found.ci_ub
    alone = {s: study.release.answer(study, one, QUESTION, levels={}, **origins(drawn)[s]) for s, one in drawn.items()}
    apart = pooled(alone)
    if sigma > 1:
        assert apart.ci_ub < truly.beta
    else:
        assert abs(found.beta - truly.beta) < 0.1
        assert found.se < 3 * truly.se


def test_what_the_model_may_lack_is_common_and_each_site_is_named(plan):
    study = study_of(plan, 3.0)
    _, drawn = released(study)
    answers = study.release.together(study, drawn, QUESTION, origins=origins(drawn))
    rows = [row for found in answers.values() for row in found if row.term == "dose"]
    assert [(row.site, row.receipts) for row in rows] == [(site, (f"of {site}",)) for site in drawn]
    assert len({row.vi_common for row in rows}) == 1
    assert rows[0].vi_common > 0
    assert pool_estimates(rows).shared >= rows[0].vi_common * 0.99
    assert all(0 < row.vi_naive <= row.vi_sampling for row in rows)
    # Both variances of a logistic model's rows are of so many rows as the site has: together they say if it holds.
    assert all(row.vi_sandwich == pytest.approx(row.vi_naive, rel=0.2) for row in rows)
    assert {row.n for row in rows} == {N}
    assert len({row.yi for row in rows}) == SITES


def test_a_mean_is_each_sites_own_and_so_is_a_site_of_more_persons_than_all_others(plan):
    study = study_of(plan, 3.0)
    _, drawn = released(study)
    few = dict(list(drawn.items())[:3])
    given = {"origins": origins(few)}
    assert study.release.together(study, few, parse_estimand("mean(dose)"), **given) == {}
    assert study.release.together(study, dict(list(few.items())[:1]), QUESTION, **given) == {}
    [(first, [(table, _)]), *others] = few.items()
    lines = table[table["line"] != "direction"]
    many = pd.concat([table[table["line"] == "direction"], *[lines] * 3], ignore_index=True)
    assert set(study.release.together(study, {first: [(many, 3 * N)], **dict(others)}, QUESTION, **given)) == {
        site for site, _ in others
    }
