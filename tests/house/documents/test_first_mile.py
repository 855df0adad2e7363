"""docs/first-mile.md is true: its blocks run, and two made-up OMOP databases end in a pooled estimate."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stage.plans.redcap import redcap
from stage.processes.theatre import Theatre

from shared.plans.plan import StudyPlan
from shared.plans.redcap import from_redcap
from tests.stage.house.sources import ROOT

PAGE = (ROOT / "docs" / "first-mile.md").read_text(encoding="utf-8")
BLOCKS = {title: text for title, text in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.M | re.S)}
PLAN = (ROOT / "deploy" / "studies" / "registries.toml").read_text(encoding="utf-8")
DICTIONARY = """
[estimands]
adjusted = "logistic(diabetes) ~ sbp/10 + age/10 + C(sex)"

[dictionary]
name = "pressure"
version = 1
columns.person.kind = "person"
columns.age = { kind = "integer", unit = "years", lower = 18, upper = 100 }
columns.sex = { kind = "binary", levels = ["female", "male"] }
columns.sbp = { kind = "continuous", unit = "mmHg", lower = 60, upper = 260, codes = ["OMOP:3004249"] }
columns.diabetes = { kind = "binary" }
"""


def words(title: str) -> list[list[str]]:
    """The commands of a block, without the program's name."""
    return [shlex.split(line, comments=True)[1:] for line in BLOCKS[title].splitlines()]


def cdm(path: Path, seed: int, n: int = 400) -> None:
    rng = np.random.default_rng(seed)
    person = np.arange(1, n + 1)
    birth = rng.integers(1930, 1985, n)
    sbp = rng.normal(140, 15, n).clip(90, 220).round()
    sick = rng.random(n) < 1 / (1 + np.exp(-(sbp - 150) / 15))
    day = [f"201{year}-0{month}-15" for year, month in zip(rng.integers(1, 5, n), rng.integers(1, 10, n), strict=True)]
    ill = pd.DataFrame({"person_id": person, "condition_concept_id": 316866, "condition_start_date": day})
    more = pd.DataFrame({"person_id": person[sick], "condition_concept_id": 201820})
    more["condition_start_date"] = "2010-02-01"
    conditions = pd.concat([ill, more], ignore_index=True)
    measured = pd.DataFrame({"person_id": person, "measurement_concept_id": 3004249, "measurement_date": day})
    tables = {
        "person": pd.DataFrame(
            {"person_id": person, "year_of_birth": birth, "gender_concept_id": rng.choice([8507, 8532], n)}
        ),
        "condition_occurrence": conditions.assign(condition_occurrence_id=range(len(conditions))),
        "measurement": measured.assign(value_as_number=sbp, unit_concept_id=8876, measurement_id=person),
        "concept_ancestor": pd.DataFrame(
            {"ancestor_concept_id": [316866, 201820, 3004249], "descendant_concept_id": [316866, 201820, 3004249]}
        ),
        "observation_period": pd.DataFrame(
            {
                "person_id": person,
                "observation_period_start_date": "2009-01-01",
                "observation_period_end_date": "2018-01-01",
            }
        ),
    }
    with sqlite3.connect(path) as db:
        for name, table in tables.items():
            table.to_sql(name, db, index=False)
    db.close()


@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path / "stage")
    yield stage
    stage.close()


def test_two_omop_databases_go_from_nothing_to_a_pooled_estimate(theatre, tmp_path):
    plan = PLAN[: PLAN.index("[estimands]")].replace('study = "registry"', 'study = "pressure"') + DICTIONARY
    theatre.open(plan.replace("epsilon = 1.0", "epsilon = 8.0"))
    for seed, site in enumerate(("north", "south")):
        folder = tmp_path / site
        folder.mkdir()
        (folder / "cohort.toml").write_text(BLOCKS["cohort.toml"])
        cdm(folder / "cdm.sqlite", seed)
        env = {"CDM": f"sqlite:///{folder / 'cdm.sqlite'}"}
        invitation = theatre.invite(site, "pressure")
        made = theatre.agent(site, "init", "--invitation", invitation, "--approver", "steward").json
        theatre.agent(site, "join")
        theatre.coordinator("accept", site, "--fingerprint", made["fingerprint"])
        theatre.agent(site, "join")
        theatre.agent(site, "plan", "fetch", "pressure")
        for line in words("omop"):
            placed = [str(folder / word) if re.search(r"\.(toml|sql)$", word) else word for word in line]
            said = theatre.agent(site, *placed, env=env).json
            assert said.get("problems", []) == []
        assert said["rows"] == 400
        theatre.agent(site, "plan", "approve", "pressure", "--as", "steward")
        release = theatre.agent(site, "release", "pressure", "--wave", 1, env=env).json
        ticks = [word for warning in release.get("warnings", []) for word in ("--tick", warning["name"])]
        theatre.agent(site, "approve", release["release_id"], "--as", "steward", *ticks)
        shown = theatre.coordinator("release", "show", release["release_id"]).json
        assert len(shown["receipt"]["mapping"]) == 64
    pooled = theatre.coordinator("pool", "pressure", "--wave", 1, "--estimand", "adjusted", "--term", "sbp/10").json
    assert [source["site"] for source in pooled["sources"]] == ["north", "south"]
    assert pooled["sources"][0]["n"] == 400


def test_a_redcap_project_goes_from_its_dictionary_to_a_plan(theatre, tmp_path):
    """What a site does with the export is in test_standards.py."""
    (tmp_path / "dictionary.csv").write_text(redcap())
    theatre.coordinator("init", "--address", "localhost:1", "--listen", "127.0.0.1:1", "--name", "hub")
    [line] = words("redcap, the lead")
    placed = [str(tmp_path / word) if word.endswith(".csv") else word for word in line]
    made = theatre.coordinator(*placed, "--out", tmp_path / "ward.toml").json
    assert set(made["left_out"]) == {"name", "birth", "lab", "note"}
    assert theatre.coordinator("plan", "check", tmp_path / "ward.toml").json["ok"]
    theatre.coordinator("plan", "redcap", tmp_path / "ward.toml", "--out", tmp_path / "back.csv")
    planned = StudyPlan.from_toml((tmp_path / "ward.toml").read_text()).dictionary
    assert from_redcap((tmp_path / "back.csv").read_text(), name="ward").dictionary == planned
