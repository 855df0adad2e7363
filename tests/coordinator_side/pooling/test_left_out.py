"""Cautions on sites that a pooled answer leaves out by their outcome, from a site's table to the pool."""

from __future__ import annotations

from string import Formatter

import numpy as np
import pandas as pd
import pytest

from coordinator.pooling.pool import pool_estimates
from shared.estimands.answer import estimate, parse_estimand
from shared.estimands.floors import FAR, FORMS, NO_ROWS, kind_of


def of_site(events: int, of_arm: int | None = None) -> pd.DataFrame:
    """200 persons followed to time 2 or their event; `events` of them have it, of one arm or of both."""
    place = np.arange(200)
    had = (place if of_arm is None else np.where(place % 2 == of_arm, place // 2, 200)) < events
    return pd.DataFrame({"time": np.where(had, 0.2 + place / 500, 2.0), "died": had.astype(int), "arm": place % 2})


def cautions_of(question: str, *tables: pd.DataFrame, term: str = "") -> tuple[str, ...]:
    rows = [
        row
        for k, table in enumerate(tables)
        for row in estimate(table, parse_estimand(question), levels={"arm": (0, 1)}, study="s", site=f"h{k}", wave=1)
        if not term or row.term == term
    ]
    return pool_estimates(rows).doubts


@pytest.mark.parametrize(
    ("question", "direction"),
    [
        ("km(time, died, at = 1)", "survival and its mean are drawn down"),
        ("cumhaz(time, died, at = 1)", "incidence and hazard up"),
        ("cuminc(time, died, competing = arm > 1, at = 1)", "incidence and hazard up"),
        ("rmst(time, died, tau = 1)", "survival and its mean are drawn down"),
        ("rmst(time, died, tau = 1) ~ arm", "difference may be drawn away from none"),
        ("cox(time, died) ~ arm", "answer may be drawn towards no effect"),
        ("logrank(time, died) ~ arm", "answer may be drawn towards no effect"),
        ("risk_ratio(died) ~ arm", "answer may be drawn towards no effect"),
    ],
)
def test_sites_left_out_for_too_few_events_are_a_caution_with_its_direction(question, direction):
    """Of 40 hospitals with 2 % events those with five or more told 5-year survival as .973, and all .981."""
    (said,) = cautions_of(question, of_site(30), of_site(40), of_site(3), of_site(1))
    assert said.startswith("2 of 4 sites are left out for too few events")
    assert direction in said
    assert cautions_of(question, of_site(30), of_site(40)) == ()


def test_sites_without_an_event_or_with_nothing_else_are_left_out_with_their_directions():
    few, none, every = (of_site(events) for events in (2, 0, 200))
    said = cautions_of("km(time, died, at = 1)", of_site(30), of_site(40), few, none, every)
    assert [one[:29] for one in said] == ["2 of 5 sites are left out for", "1 of 5 sites is left out beca"]
    assert "survival is drawn up" in said[1]
    small = of_site(30).head(8)  # for its size, whatever its outcome
    assert not any("left out" in one for one in cautions_of("mean(time)", of_site(30), of_site(40), small))


@pytest.mark.parametrize(
    ("question", "of"),
    [
        ("km(time, died, at = 1)", 1),
        ("rmst(time, died, tau = 1)", 3),
        ("cuminc(time, died, competing = arm > 1, at = 1)", 3),
        ("km(time, died, at = 1)", 200),
        ("cox(time, died) ~ arm", 2),
        ("logrank(time, died) ~ arm", 3),
        ("ratio(died) ~ arm", 0),
        ("two_by_two(died) ~ arm", 200),
        ("ols(died) ~ arm", 200),
        ("mean(died)", 0),
    ],
)
def test_the_words_of_a_reason_may_change_and_its_caution_stays(question, of, monkeypatch):
    """The caution looked for words in the reason: reworded, sites were left out without one."""
    tables = (of_site(30), of_site(40), of_site(of))
    before = cautions_of(question, *tables)
    assert before
    for k, form in enumerate(FORMS):
        fields = [f"{{{name}}}" for _, name, *_ in Formatter().parse(form.words) if name]
        monkeypatch.setattr(form, "words", " ".join([f"form {k} said otherwise", *fields]))
    assert cautions_of(question, *tables) == before


def test_each_form_of_a_reason_is_read_as_its_own_kind_alone():
    for form in FORMS:
        said = form(**{name: 5 for _, name, *_ in Formatter().parse(form.words) if name})
        assert [one for one in FORMS if one.says(said)] == [form], said
        assert kind_of(f"arm[1]: {said}") is form.kind, "a standardised contrast says which coefficient lacks"
        assert kind_of(f"{said}, or so") is None
    for other in (
        "no rows",
        FAR,
        NO_ROWS,
        "follow-up ends before 5 at this site",
        "the column is constant at this site",
    ):
        assert kind_of(other) is None, other


@pytest.mark.parametrize(
    ("question", "direction"),
    [
        ("risk_ratio(died) ~ arm", "towards no effect"),
        ("logistic(died) ~ arm", "towards no effect"),
        ("poisson(died) ~ arm", "towards no effect"),
        ("probit(died) ~ arm", "a probit coefficient towards no effect"),
        ("ols(died) ~ arm", "away from none"),
        ("standardised(died, of = arm) ~ arm", "away from none"),
        ("two_by_two(died, measure = OR) ~ arm", "towards no effect"),
        ("two_by_two(died, measure = RD) ~ arm", "away from none"),
        ("ratio(died) ~ arm", "towards no effect"),
        ("difference(died) ~ arm", "away from none"),
        ("mean(died)", "a mean is drawn up"),
    ],
)
def test_sites_without_any_event_are_a_caution_in_every_kind_that_leaves_them_out(question, direction):
    assert not [one for one in cautions_of(question, of_site(60), of_site(80)) if "left out" in one]
    said = cautions_of(question, of_site(60), of_site(80), of_site(0), of_site(0))
    (said,) = (one for one in said if "left out" in one)
    assert said.startswith("2 of 4 sites are left out")
    assert direction in said


def test_a_site_of_two_waves_is_counted_once():
    question = parse_estimand("risk_ratio(died) ~ arm")
    tables = [of_site(60), of_site(80), of_site(3)]
    rows = [
        row
        for wave in (1, 2)
        for k, table in enumerate(tables)
        for row in estimate(table, question, levels={"arm": (0, 1)}, study="s", site=f"h{k}", wave=wave)
    ]
    (said,) = (one for one in pool_estimates(rows).doubts if "left out" in one)
    assert said.startswith("1 of 3 sites is left out in a wave for too few events")


def test_sites_where_everybody_had_the_event_are_a_caution_and_one_value_of_a_measurement_is_none():
    two = (of_site(60), of_site(80))
    directions = dict.fromkeys(
        ("two_by_two(died) ~ arm", "difference(died) ~ arm", "ratio(died) ~ arm"), "away from none"
    )
    for question, direction in {**directions, "mean(died)": "mean is drawn down"}.items():
        (said,) = (one for one in cautions_of(question, *two, of_site(200)) if "left out" in one)
        assert direction in said
    for question in ("mean(time)", "ols(time) ~ arm", "difference(time) ~ arm", "ratio(time) ~ arm"):
        same = cautions_of(question, *two, of_site(60).assign(time=37.5))
        assert not any("left out" in one for one in same)


@pytest.mark.parametrize("kind", ["ols", "difference", "ratio", "poisson", "negbin"])
def test_an_outcome_that_may_be_no_event_is_not_told_as_one(kind):
    """A cost of 0, or a class of 1, in every row is neither few events nor risks that hardly differ."""
    two = (of_site(60), of_site(80))
    tables = [one.assign(cost=1.0 + np.arange(len(one)) % 7) for one in two]
    term = "" if kind in ("difference", "ratio") else "arm"
    for value in (0.0, 1.0):
        (said,) = cautions_of(f"{kind}(cost) ~ arm", *tables, of_site(60).assign(cost=value), term=term)
        assert said.startswith(
            f"1 of 3 sites is left out because the outcome is {value:g} in every row there. Where it is"
        )
        assert "too few events" not in said


def test_a_group_whose_mean_is_0_is_told_as_a_group():
    (said,) = cautions_of("ratio(died) ~ arm", of_site(60), of_site(80), of_site(20, of_arm=0))
    assert said.startswith("1 of 3 sites is left out because the outcome is 0 in every row of a group there.")
    assert said.endswith("towards no effect.")


@pytest.mark.parametrize("kind", ["logistic(died)", "poisson(died)", "cox(time, died)"])
def test_sites_left_out_by_separation_are_a_caution(kind):
    apart = of_site(20, of_arm=0)
    (said,) = cautions_of(f"{kind} ~ arm", of_site(31), of_site(40), apart, term="arm")
    assert said.startswith("1 of 3 sites is left out because terms separate the outcome there")
    assert said.endswith("drawn towards no effect.")


def test_a_fit_that_found_no_maximum_is_told_as_that_and_not_as_separation():
    apart = of_site(20, of_arm=0)
    (said,) = cautions_of("aft(time, died) ~ arm", of_site(31), of_site(40), apart, term="arm")
    assert said.startswith("1 of 3 sites is left out because no maximum of their likelihood was found, as where")
    assert said.endswith(
        "If they do, these are sites where effects are strong or events few, and the pooled answer is "
        "drawn towards no effect."
    )
