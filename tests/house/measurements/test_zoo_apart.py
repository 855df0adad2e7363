"""The rows of the zoo for what outside readers found false: their worlds are so, and the page says what was found."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimate, parse_estimand
from tests.benchmarks import worlds, zoo_apart, zoo_apart_page, zoo_page
from tests.benchmarks.worlds import apart
from tests.benchmarks.zoo_apart import ROWS, Figures, Study

BOTH = [(row, half) for row in ROWS for half in ("tuning", "reporting")]


def studied(row: str, half: str, sites: int = 3, kind: str = "", n: int = 2000) -> Study:
    return Study.of(worlds.world(ROWS[row].worlds[half]), kind or ROWS[row].kinds[0], n, 0, sites)


def numbers(study: Study) -> list:
    """Its columns of numbers."""
    return [column for column in study.world.dictionary(study.kind).columns if not column.levels]


@pytest.mark.parametrize(("row", "half"), BOTH)
def test_a_world_is_of_the_half_that_its_name_says_and_answers_what_its_row_asks(row, half):
    for kind in ROWS[row].kinds:
        study = studied(row, half, 2, kind)
        assert study.world.tunes == (half == "tuning")
        for table in study.tables:
            dictionary = study.world.dictionary(kind)
            dictionary.check(table[list(dictionary.names)])
        for text in ROWS[row].asked[half]:
            rows = [one for site in study.real(study.parsed(text)) for one in site]
            assert rows
            assert [one.term for one in rows if one.yi is None] == [], text


def test_the_worlds_are_in_no_list_of_another_record_and_each_is_asked():
    assert {world for row in ROWS.values() for world in row.worlds.values()} == {*apart.WORLDS}
    assert not {*apart.WORLDS} & {*worlds.TUNING, *worlds.REPORTING}


@pytest.mark.parametrize("half", ["tuning", "reporting"])
def test_hospitals_lie_apart_the_other_way_than_their_patients_do(half):
    study = studied("centres", half, 12, "linear")
    x, y = study.world.columns[0].name, study.world.outcomes["linear"][0].name
    within = [np.polyfit(table[x], table[y], 1)[0] for table in study.tables]
    centres = pd.DataFrame([table[[x, y]].mean() for table in study.tables])
    assert min(within) > 0
    assert np.polyfit(centres[x], centres[y], 1)[0] < -max(within)


@pytest.mark.parametrize("half", ["tuning", "reporting"])
def test_bounds_are_sixteen_standard_deviations_wide_and_a_tail_is_long(half):
    study = studied("bounds", half, kind="linear")
    spreads = {column.name: study.tables[0][column.name].std() for column in numbers(study)}
    for column in numbers(study):
        assert (column.upper - column.lower) / spreads[column.name] > 16
    study = studied("means", half, n=20_000)
    for column in numbers(study):
        values = study.tables[0][column.name]
        assert values.mean() > 1.2 * values.median()
        assert values.max() > values.mean() + 8 * values.std()


@pytest.mark.parametrize("half", ["tuning", "reporting"])
def test_two_years_hold_most_of_a_school_and_one_level_of_each_factor_is_rare(half):
    (school, *_) = studied("heaps", half).tables
    assert school["school"].value_counts(normalize=True).iloc[:2].sum() > 0.5
    study = studied("levels", half, n=20_000)
    factors = [column for column in study.world.columns if column.kind == "nominal"]
    assert sorted(len(column.levels) for column in factors) == [3, 5]
    for column in factors:
        assert study.tables[0][column.name].value_counts(normalize=True).min() < 0.06


def figures(release: object) -> Figures:
    made = Figures.__new__(Figures)
    made.plan, made.study = SimpleNamespace(release=release), SimpleNamespace(levels={})
    made.figures = {"s0": [], "s1": [], "s2": []}
    return made


class Alone:
    """Figures of which s1 has no answer by itself."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def together(self, *_: object, **__: object) -> dict[str, list[Estimate]]:
        raise self.error

    def answer(self, plan: object, given: object, question: object, *, levels: object, **origin: object):
        if origin["site"] == "s1":
            raise EstimateRefusal("s1 must have rows", given="none")
        return [Estimate(term="x", yi=0.1, vi_sampling=0.1, n=9, **origin)]


def test_sites_are_answered_as_the_coordinator_answers_them():
    question = parse_estimand("ols(y) ~ x")
    refused = figures(Alone(EstimateRefusal("bins must show x", given="none")))
    assert refused.answers(question, 3) == []
    assert "bins must show x" in refused.why
    apart_ = figures(Alone(ParameterError("figures must fit", given="none")))
    assert [row.site for row in apart_.answers(question, 3)] == ["s0", "s2"]
    assert "s1 must have rows" in apart_.why


def test_what_the_flow_alone_draws_carries_its_caution_and_no_distance():
    study = studied("covariates", "tuning", 2, n=150)
    asked = [zoo_apart.PLANNED, "correlation(age, married)"]
    found = {key[2]: terms for key, terms, _ in zoo_apart.once(study, {zoo_apart.LATENT: (0.8,)}, asked, (2,))}
    [loose] = found[asked[1]]["correlation(age, married)"]
    assert (loose["between"], loose["distance"]) == (1.0, 0.0)
    [planned] = found[zoo_apart.PLANNED]["age/10"]
    assert (planned["between"], planned["distance"]) == (0.0, 1.0)


def cell(held: float, answered: int = 12, cautioned: int = 0, sites: int = 4) -> dict:
    line = f"draws=12 answered={answered}"
    if answered:
        line += f" held={held} width=3 right_cautioned=0 wrong_cautioned={cautioned}"
    place = {"mechanism": "tables", "at": 1.0, "world": "own_centres", "kind": "linear", "n": 1000, "sites": sites}
    return {**place, "asked": "planned", "terms": {"load/10": line}}


def test_the_page_names_what_holds_too_seldom_and_whether_a_caution_stood_by(monkeypatch):
    cells = [cell(0.25, cautioned=2), cell(0.9, 10, sites=12), cell(0.0, 0, sites=48)]
    record = {"draws": 12, "cells": cells}
    monkeypatch.setattr(zoo_page, "results", lambda name: record if name == "zoo_apart_centres" else None)
    page = zoo_apart_page.section()
    assert (
        "| noisy tables | ε = 1 | `load/10` | 3 of 12; 3.0; 2 of 9; 0 of 3 | 9 of 10 (2 more without an answer)" in page
    )
    assert "Of 1 lines with answers 1 hold in less than 92 % by more than chance, and 0 in less within chance" in page
    assert (
        "- noisy tables, ε = 1, `load/10`: 54.5 (35 to 73) % of 22 hold, a caution stands by 2 of 10; "
        "least at K = 4, 3 of 12.\n" in page
    )
    [(what, asked, measured, reached)] = zoo_apart_page.targets()
    assert what.endswith("lowest: ε = 1, `load/10`, K = 4")
    assert (asked, measured) == ("≥ 92", "25.0 (9 to 53)")
    assert reached == "no; 9 of 12 outside, a caution stands by 2; 2 of 2 are below, 1 by more than chance"


def test_a_cell_that_holds_too_seldom_is_named_also_where_its_line_is_right(monkeypatch):
    cells = [cell(0.5, cautioned=6), *(cell(1.0, sites=k) for k in (12, 24, 36, 48, 60, 72))]
    record = {"draws": 12, "cells": cells}
    monkeypatch.setattr(zoo_page, "results", lambda name: record if name == "zoo_apart_centres" else None)
    page = zoo_apart_page.section()
    assert "Of 1 lines with answers 0 hold in less" in page
    assert "; of the single cells of the others 1 do by more than chance.\n" in page
    assert (
        "- noisy tables, ε = 1, `load/10`, K = 4: 50.0 (25 to 75) % of 12 hold, a caution stands by 6 of 6.\n" in page
    )


def test_a_mechanism_that_was_measured_once_more_stands_with_those_answers_and_says_what_was_before(monkeypatch):
    records = {
        "zoo_apart_centres": {"draws": 12, "cells": [cell(0.25)]},
        "zoo_apart_centres_tables": {"draws": 12, "cells": [cell(1.0)]},
    }
    monkeypatch.setattr(zoo_page, "results", records.get)
    page = zoo_apart_page.section()
    assert "| noisy tables | ε = 1 | `load/10` | 12 of 12; 3.0; 0 of 0; 0 of 12 |" in page
    assert "(`zoo_apart_centres_tables.json`): before it 3 of 12 held.\n" in page
    assert [line[2] for line in zoo_apart_page.targets()] == ["100.0 (76 to 100)"]
