"""A lead asks on the coordinator's own machine, in Python: the answers and the record are those of a token's holder."""

# ruff: noqa: F811  (fixtures are imported by their names)
from __future__ import annotations

from dataclasses import replace

import pytest
from stage.coordinator_side.analysis import ADJUSTED, desk, own, study  # noqa: F401
from stage.coordinator_side.delivered import cohort

from shared.errors import EstimateRefusal, ParameterError, PlanRefusal, StateRefusal
from tributary_meta import open_home


@pytest.fixture
def home(desk):
    with open_home(desk.home, name="grace") as connection:
        yield connection


def test_the_same_question_has_the_same_answer_with_and_without_a_network(home, study):
    here = home["cvd"]
    assert list(home) == ["cvd", "lungs"]
    assert here.facts() == study.facts()
    assert here.dictionary("sbp").document == study.dictionary("sbp").document
    assert here.releases().document == study.releases().document
    mine, theirs = here.cox(ADJUSTED, term="sbp"), study.cox(ADJUSTED, term="sbp")
    assert mine.document == theirs.document
    assert here.result(mine.document["result"]).document == theirs.document


def test_a_question_at_home_is_a_line_of_the_record_under_the_name_given(home, study):
    home["cvd"].cox("Surv(time, cvd) ~ chol", label="confirmatory")
    with pytest.raises(PlanRefusal):
        home["cvd"].cox("Surv(time, cvd) ~ sbp", wave=7)
    lines = [line for line in study.log().document["lines"] if line["analyst"] == "grace"]
    assert [(line["kind"], line["role"], line["label"]) for line in lines[-2:]] == [
        ("query", "lead", "confirmatory"),
        ("refused", "lead", "exploratory"),
    ]


def test_what_is_no_home_and_nobody_in_particular_is_refused(tmp_path, desk):
    with pytest.raises(StateRefusal, match="coordinator init"):
        open_home(tmp_path, name="grace")
    for name in ("", "  ", "a" * 65, "a\nb", None):
        with pytest.raises(ParameterError, match="who asks must be named"):
            open_home(desk.home, name=name)


def test_the_log_is_audited_by_its_own_verb(home):
    with pytest.raises(StateRefusal, match="coordinator log verify"):
        home.audit_log()


def test_a_closed_home_answers_no_more(desk):
    with open_home(desk.home, name="grace") as connection:
        study = connection["cvd"]
    with pytest.raises(StateRefusal, match="must be open"):
        study.facts()


def test_no_rows_are_drawn_of_figures_that_may_be_of_the_same_persons(own):
    named = replace(own.plans["cvd"], row_download=True)
    others = tuple(column for column in named.dictionary.columns if column.kind != "person")
    nameless = replace(named.dictionary, columns=others)
    own.publish(replace(named, version=2, dictionary=nameless, returning="refresh"))
    own.add("cvd", "north", cohort(300, 1))
    own.publish(replace(named, version=3, returning="append"))
    own.add("cvd", "north", cohort(300, 2), wave=2)
    own.start()
    with (
        open_home(own.home, name="grace") as connection,
        pytest.raises(EstimateRefusal, match="figures of the same persons"),
    ):
        connection["cvd"].synthetic("north")
