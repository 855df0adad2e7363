"""The study plans that ship with the product can be used as they stand."""

import os
from pathlib import Path

import pandas as pd
import pytest

from shared.errors import DictionaryRefusal
from shared.plans.dictionary import Column
from shared.plans.plan import StudyPlan

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def plan(name: str) -> StudyPlan:
    return StudyPlan.from_toml((STUDIES / f"{name}.toml").read_text())


def hospital(name: str) -> pd.DataFrame:
    folder = os.environ.get("TRIBUTARY_HEART_DATA")
    if not folder:
        pytest.skip("TRIBUTARY_HEART_DATA is not set: the hospitals' files are not part of the repository")
    return pd.read_csv(Path(folder) / f"{name}.csv")


@pytest.mark.parametrize("name", ["cvd", "heart"])
def test_a_shipped_study_reads_and_its_canonical_bytes_read_back(name):
    read = plan(name)
    assert StudyPlan.from_bytes(read.canonical) == read
    assert 0 < read.release.w < 1


@pytest.mark.parametrize("name", ["cvd", "heart"])
def test_a_shipped_study_at_w_0_8_says_plainly_that_it_guarantees_nothing(name):
    opening = " ".join((STUDIES / f"{name}.toml").read_text().replace("\n#", " ").split())
    assert "NO MEANINGFUL FORMAL GUARANTEE" in opening[:700]


@pytest.mark.parametrize("name", ["cvd", "heart"])
def test_every_numeric_column_of_a_shipped_study_has_a_label_and_the_public_bounds_are_wide(name):
    for column in plan(name).dictionary.released:
        assert column.label
        if column.kind in ("continuous", "time"):
            assert column.unit


def test_the_federated_study_fits_its_budget_and_its_next_version_names_a_flow():
    from coordinator.demo.federated import named
    from shared.releases.receipt import planned_events
    from site_agent.decide.waves import cost

    first = plan("federated")
    assert first.federated.epsilon(first.budget.delta) == pytest.approx(2.0, rel=0.01)
    totals = cost(first, planned_events(first)).totals
    assert 2.9 < totals[-1] <= first.budget.epsilon == 3.0  # the training and one wave
    second = StudyPlan.from_toml(named((STUDIES / "federated.toml").read_text(), "federated:" + "ab" * 32))
    assert (second.version, second.posture, second.federated) == (2, "private", None)
    assert second.dictionary == first.dictionary
    assert len(totals) == len(second.waves)


def test_the_cohort_study_encodes_to_six_columns():
    assert plan("cvd").dictionary.names == ("time", "cvd", "age", "chol", "hdl", "sbp")


@pytest.mark.parametrize("name", HOSPITALS)
def test_every_hospital_passes_the_heart_dictionary_without_losing_a_row(name):
    table, dictionary = hospital(name), plan("heart").dictionary
    assert len(dictionary.check(table[list(dictionary.names)])) == len(table)


def test_a_cholesterol_of_0_is_missing_in_all_of_switzerland_and_49_rows_of_va():
    column = plan("heart").dictionary.column("chol")
    assert column.check(hospital("switzerland")["chol"]).isna().all()
    va = hospital("va")["chol"]
    assert column.check(va).isna().sum() == 49 + va.isna().sum()


def test_released_with_levels_0_to_3_the_stray_ca_of_budapest_would_be_refused_by_its_count():
    ca = Column(name="ca", kind="nominal", levels=(0, 1, 2, 3), missing="level")
    with pytest.raises(DictionaryRefusal, match="1 row that does not"):
        ca.check(hospital("hungarian")["ca"])


def test_the_demo_s_table_says_what_an_interval_does_not_hold_and_says_each_sentence_once(tmp_path, capsys):
    from dataclasses import replace
    from types import SimpleNamespace

    from coordinator.demo.answers import show
    from coordinator.demo.play import REAL, DemoAnswer
    from coordinator.pooling.intervals import _OPEN
    from coordinator.pooling.pool import pool

    plain = pool([0.1, 0.3, 0.6], [0.03, 0.03, 0.01])
    warned = replace(plain, notes=(*plain.notes, f"north: {_OPEN['private']}", "Another note."))
    given = {"term": "x", "epsilon": {"north": (1.0, "")}, "posture": {"north": "private"}, "question": "y ~ x"}
    answers = {name: DemoAnswer(title=name, arms={"released": warned, REAL: plain}, **given) for name in ("a", "b")}
    show(answers, SimpleNamespace(note=""), tmp_path, 1.0)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("warning: a (released), b (released): north: The flow was trained with noise from a") == 1
    assert "Another note" not in said
    assert all(" not in this interval" in " ".join(sentence.split()) for sentence in _OPEN.values())
