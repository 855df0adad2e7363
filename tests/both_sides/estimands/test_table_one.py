"""Table 1: R's numbers on plain data, intervals that hold, the release's variance inside them, and both doors."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.models import LEVELS, made, reference

from coordinator.analyst.table_one import POOLED, TableOne, described
from coordinator.pooling.intervals import Draw, with_release_variance
from coordinator.pooling.pool import pool_estimates
from shared.errors import ParameterError
from shared.estimands.answer import estimate, influence, parse_estimand
from shared.estimands.columns import TableCell
from shared.estimands.effects import effect_name, shown

BY_ARM = "table_one(age, smoking, by = arm)"


def cells(table, text, **more):
    return {row.term: row for row in estimate(table, parse_estimand(text), levels={**LEVELS, "arm": (0, 1)}, **more)}


def test_the_question_reads_back_and_names_its_numbers():
    question = parse_estimand(BY_ARM)
    assert str(question) == BY_ARM
    assert question.columns == ("age", "smoking", "arm")
    assert effect_name(question, "sd(age) | 1") == "Standard deviation"
    for wrong in ("table_one()", "table_one(age > 5)", "table_one(age, by = arm > 1)", "mean(age, by = arm)"):
        with pytest.raises(ParameterError):
            parse_estimand(wrong)
    with pytest.raises(ParameterError):
        TableCell.read("median age")


def test_its_numbers_are_those_of_r():
    table, answers = reference()
    theirs, ours = answers["table_one"], cells(table, BY_ARM)
    for group, name in (("", "all"), (" | 1", "group")):
        for statistic, value in theirs[name].items():
            row = ours[f"{statistic}(age){group}"]
            assert shown(row.yi, row.scale) == pytest.approx(value, rel=1e-9)
    assert ours["smd(age) | 1"].yi == pytest.approx(theirs["smd"], rel=1e-9)
    assert shown(ours["share(smoking[former]) | 1"].yi, "logit") == pytest.approx(theirs["share"], rel=1e-9)
    assert ours["smd(smoking[former]) | 1"].yi == pytest.approx(theirs["smd_share"], rel=1e-9)
    assert ours["mean(age)"].vi == pytest.approx(theirs["se_mean"] ** 2, rel=1e-9)
    assert ours["share(smoking[former]) | 1"].vi == pytest.approx(theirs["se_share"] ** 2, rel=1e-9)


def test_the_influence_on_each_number_is_what_leaving_a_row_out_changes():
    table = made(300, 5)
    whole, pushes = cells(table, BY_ARM), influence(table, parse_estimand(BY_ARM), levels={**LEVELS, "arm": (0, 1)})
    for label in ("mean(age)", "sd(age) | 1", "share(smoking[never])", "smd(age) | 1", "smd(smoking[former]) | 1"):
        for i in (int(np.argmax(pushes[label])), int(np.argmin(pushes[label]))):
            left = cells(table.drop(index=i), BY_ARM)[label]
            assert whole[label].yi - left.yi == pytest.approx(pushes[label][i], rel=0.05, abs=1e-4)
    assert all(found.sum() == pytest.approx(0, abs=1e-7) for found in pushes.values())


def test_intervals_hold_the_truth_as_often_as_they_say():
    truth = {"q1": 0.2877, "median": 0.6931, "q3": 1.3863, "mean": 1.0}
    held, columns = dict.fromkeys(truth, 0), [f"x{k}" for k in range(50)]
    rng = np.random.default_rng(17)
    for _ in range(16):
        table = pd.DataFrame(rng.exponential(1.0, (200, 50)), columns=columns)
        for row in estimate(table, parse_estimand(f"table_one({', '.join(columns)})")):
            statistic = TableCell.read(row.term).statistic
            if statistic in truth:
                held[statistic] += abs(row.yi - truth[statistic]) <= 1.96 * math.sqrt(row.vi)
    assert all(0.92 <= count / 800 <= 0.98 for count in held.values()), held


def test_intervals_of_spreads_and_standardised_differences_hold_the_truth_as_often_as_they_say():
    held, columns = {"sd": 0, "smd": 0}, [f"x{k}" for k in range(50)]
    rng = np.random.default_rng(18)
    for _ in range(8):
        g = rng.integers(0, 2, 200)
        table = pd.DataFrame(rng.normal(0.4 * g[:, None], 1, (200, 50)), columns=columns).assign(g=g)
        rows = {row.term: row for row in estimate(table, parse_estimand(f"table_one({', '.join(columns)}, by = g)"))}
        for name in columns:
            held["sd"] += abs(rows[f"sd({name}) | 0"].yi) <= 1.96 * math.sqrt(rows[f"sd({name}) | 0"].vi)
            held["smd"] += abs(rows[f"smd({name}) | 1"].yi - 0.4) <= 1.96 * math.sqrt(rows[f"smd({name}) | 1"].vi)
    assert all(0.92 <= count / 400 <= 0.98 for count in held.values()), held


def test_missing_values_are_a_share_and_what_cannot_be_told_has_a_reason():
    table = made(200, 2).assign(one=3.0)
    table.loc[:39, "age"] = np.nan
    table.loc[table.arm == 1, "smoking"] = "never"
    table.loc[:195, "w"] = 2.0
    ours = cells(table, "table_one(age, one, smoking, w, by = arm)")
    assert shown(ours["missing(age)"].yi, "logit") == pytest.approx(0.2)
    assert (ours["mean(age)"].n, ours["mean(age)"].n_missing) == (160, 40)
    assert ours["mean(one)"].reason == ours["smd(one) | 1"].reason == "the column is constant at this site"
    assert ours["median(w)"].reason == "the rows around it share one value, 2"
    few = cells(table[table.arm == 0].iloc[:30].reset_index(drop=True), "table_one(smoking, by = arm)")
    assert few["share(smoking[never]) | 1"].reason == "the level has no rows at this site"
    assert all((row.yi is None) == bool(row.reason) for row in [*ours.values(), *few.values()])


def test_a_site_without_a_level_says_how_small_its_share_is_and_stays_in_the_pool():
    """Values of R's metafor 3.8.1: escalc("PLO", xi = c(0, 30, 100), ni = c(100, 120, 100)), and rma(method = "FE")."""
    sites = {"none": (0, 100), "some": (30, 120), "all": (100, 100)}
    theirs = {"none": (-5.30330490806, 2.00995024876), "some": (-1.09861228867, 0.0444444444444)}
    theirs["all"] = (5.30330490806, 2.00995024876)
    rows = {}
    for site, (cases, n) in sites.items():
        table = pd.DataFrame({"sex": ["f"] * cases + ["m"] * (n - cases), "age": np.arange(n)})
        question = parse_estimand("table_one(sex, age)")
        found = {row.term: row for row in estimate(table, question, site=site, levels={"sex": ("m", "f")})}
        rows[site] = found["share(sex[f])"]
        assert (rows[site].yi, rows[site].vi) == pytest.approx(theirs[site], rel=1e-9)
        missing = found["missing(age)"]
        assert (missing.yi, missing.vi) == pytest.approx((math.log(0.5 / (n + 0.5)), 2 + 1 / (n + 0.5)))
    pooled = pool_estimates([rows["none"], rows["some"]], method="FE", test="z")
    assert (pooled.beta, pooled.se) == pytest.approx((-1.189575932678, 0.208525635067), rel=1e-9)


def test_a_proportion_keeps_the_sites_that_have_none_and_is_nearer_the_exact_likelihood_for_it():
    """Values of R's metafor 3.8.1, xi = c(0, 3, 1, 5, 0, 8), ni = c(100, 120, 80, 200, 150, 160), as

    rma(yi, vi, data = escalc("PLO", xi = xi, ni = ni), test = "adhoc") and rma.glmm(measure = "PLO", xi = xi, ni = ni).
    """
    counts = [(0, 100), (3, 120), (1, 80), (5, 200), (0, 150), (8, 160)]
    question, rows = parse_estimand("proportion(died)"), []
    for k, (cases, n) in enumerate(counts):
        rows += estimate(pd.DataFrame({"died": [1] * cases + [0] * (n - cases)}), question, site=f"{k}")
    kept, exact = pool_estimates(rows), -4.189169033066
    assert (kept.k, kept.excluded) == (6, ())
    assert (kept.beta, kept.se) == pytest.approx((-3.655321602664, 0.330613452511), rel=1e-4)
    without = pool_estimates([row for row, (cases, _) in zip(rows, counts, strict=True) if cases])
    assert without.beta == pytest.approx(-3.4078956373752, rel=1e-4)
    assert abs(kept.beta - exact) < abs(without.beta - exact)
    assert kept.ci_lb < exact < kept.ci_ub < without.ci_ub
    (everybody,) = estimate(pd.DataFrame({"died": [1] * 100}), question)
    assert (everybody.yi, everybody.vi) == pytest.approx((5.30330490806, 2.00995024876), rel=1e-9)


@pytest.mark.parametrize("asked", ["table_one(smoking)", 'proportion(smoking == "former")'])
def test_the_noise_of_a_share_of_none_is_counted_in_full(asked):
    table = made(400, 8).assign(smoking="never")
    question, draws = parse_estimand(asked), [Draw(rows=400, w=0.8, fitted_on=400)]
    rows = estimate(table, question, levels=LEVELS)
    if question.kind == "table_one":
        assert "share(smoking[former])" not in influence(table, question, levels=LEVELS)
    for row in with_release_variance(rows, table, question, draws, levels=LEVELS):
        assert row.vi == pytest.approx(2 * row.vi_naive)


def test_the_variance_of_a_release_is_in_every_number():
    table = made(400, 8)
    question = parse_estimand(BY_ARM)
    rows = estimate(table, question, levels={**LEVELS, "arm": (0, 1)})
    draws = [Draw(rows=400, w=0.0, fitted_on=400)]
    for row in with_release_variance(rows, table, question, draws, levels={**LEVELS, "arm": (0, 1)}):
        if row.yi is not None:
            assert row.vi == pytest.approx(2 * row.vi_naive)
    kept = with_release_variance(rows, table, question, [Draw(rows=400, w=0.8, fitted_on=400)], levels=LEVELS)
    by_term = {row.term: row.vi / row.vi_naive for row in kept if row.yi is not None}
    # A mean is of order 1 and keeps more of itself than its noise counted in full would (2.0).
    assert 1.1 < by_term["mean(age)"] < 1.35


def document():
    return {
        "study": "s",
        "wave": 1,
        "title": "Table 1: sex by arm",
        "joint": [],
        "asked": {"level": 0.95},
        "term": "share(sex[male]) | drug",
        "doubts": ("it may be outside",),
        "cautions": ("read this",),
        "table": [{"cautions": ("and & that",)}],
        "cells": [
            {
                "site": site,
                "term": "share(sex[male]) | drug",
                "statistic": "share",
                "column": "sex",
                "level": "male",
                "group": "drug",
                "estimate": None if site == "B" else 0.5,
                "ci_lb": None if site == "B" else 0.4,
                "ci_ub": None if site == "B" else 0.61,
                "n": 9,
                "n_missing": 0,
                "reason": "<few>" if site == "B" else "",
            }
            for site in ("A", "B", POOLED)
        ],
    }


def test_where_no_row_lacks_a_value_the_share_is_not_that_of_the_half_row_that_was_counted():
    """Of 12,800 rows none lacked an age, and a Table 1 said 0.1 %."""
    missing = {"statistic": "missing", "column": "age", "level": "", "n": 12_800}
    cells = [{**cell, **missing, "n_missing": lost} for cell in document()["cells"][:1] for lost in (0, 3)]
    for cell, said in zip(cells, ("none of 12,800", "50.0 % (40.0 to 61.0)"), strict=True):
        _, ((_, _, text),) = TableOne({**document(), "cells": [cell]}).wide(["A"])
        assert text == said


def test_no_line_says_that_no_site_knows_what_cannot_be_missing():
    """Rows drawn from noisy moments lack nothing, and so half a row of them tells of no share."""
    none = {"statistic": "missing", "level": "", "estimate": None, "reason": "no site has a number"}
    cells = [{**cell, **none} for cell in document()["cells"]]
    shown = repr(TableOne({**document(), "cells": [*document()["cells"], *cells]}))
    assert "no site has a number" not in shown
    assert "50.0 %" in shown
    cells[0]["n_missing"] = 1
    assert "no site has a number" in repr(TableOne({**document(), "cells": cells}))


def test_a_caution_is_said_once_with_every_site_that_some_cell_says_it_of():
    cells = [{**document()["cells"][0], "site": site} for site in ("A", "B", "C", POOLED)]
    lines = [{"cautions": said} for said in (("C, A: Off: far.", "B: thin", "A, B, C: wide"), ("A: thin", "A: wide"))]
    found = TableOne({**document(), "doubts": ("A: Off: far.", "Other: D"), "cells": cells, "table": lines})
    assert found.cautions == ("A, C: Off: far.", "Other: D", "A, B: thin", "wide")


@pytest.mark.parametrize("suffix", ["html", "csv", "tex", "json"])
def test_every_file_says_that_the_rows_are_privatised_and_its_cautions(tmp_path, suffix):
    file = tmp_path / f"one.{suffix}"
    TableOne(document()).write(file)
    text = file.read_text(encoding="utf-8")
    assert "Privatised rows: estimates from releases, not from records." in text
    assert text.index("read this") < text.index("0.4" if suffix in ("csv", "json") else "50.0") or suffix == "tex"
    if suffix == "html":
        assert "50.0 % (40.0 to 61.0)" in text
        assert "&lt;few&gt;" in text
        assert "<few>" not in text
    if suffix == "tex":
        assert r"50.0 \% (40.0 to 61.0)" in text
        assert r"and \& that" in text
    if suffix == "json":
        assert json.loads(text)["cells"] == document()["cells"]
    with pytest.raises(ParameterError, match="must end in"):
        TableOne(document()).write(tmp_path / "one.xlsx")
    assert (
        text.index("it may be outside") < text.index("0.4" if suffix in ("csv", "json") else "50.0") or suffix == "tex"
    )


def test_a_note_on_one_cell_names_it_and_is_no_caution_on_the_table():
    shown = repr(TableOne(document()))
    assert "caution  it may be outside" in shown
    assert "caution  and & that" in shown
    assert "note  share(sex[male]) | drug: read this" in shown
    assert shown.index("caution  it may") < shown.index("50.0 %") < shown.index("note  share")


def test_an_odds_ratio_shows_its_lower_end_as_exactly_as_its_upper_one():
    cell = {"statistic": "odds_ratio", "estimate": 4.894, "ci_lb": 1.073, "ci_ub": 22.31, "level": "1"}
    one = document()
    one["cells"] = [{**row, **cell} for row in one["cells"]]
    assert "4.894 (1.073 to 22.31)" in repr(TableOne(one))


def test_a_formula_where_columns_belong_is_refused_with_what_to_write():
    with pytest.raises(ParameterError, match="words of their own") as refused:
        described(None, "crosstab", ["died ~ ward"], out=None)
    assert refused.value.next_step == "As in: analyst crosstab STUDY died ward."
