"""Disclosure checks: planted leaks are found, harmless tables pass, and no floor can be argued with."""

from __future__ import annotations

import functools
import json

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.hospital_side.shipped import study

from shared.base.randomness import seeded_rng
from shared.errors import ChecksRefusal, DifferencingRefusal, SchemaRefusal, SmallN
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import Floors
from site_agent.config import Limits, SiteFloors
from site_agent.release.checks import CheckReport, check_rows
from site_agent.release.equal_rows import ChanceHits
from site_agent.release.pipeline.before_draw import before_draw, require_apart

LIMITS = Limits.of(Floors(), SiteFloors())


def in_released_form(dictionary, source: pd.DataFrame, seed: int = 1) -> pd.DataFrame:
    encoder = Encoder(dictionary=dictionary)
    return encoder.decode(encoder.encode(dictionary.check(source), seeded_rng(seed)))


@functools.cache
def others(dictionary, like, n: int) -> pd.DataFrame:
    """Rows of nobody, `like` the source: the same for every table that is held against so many."""
    return in_released_form(dictionary, like(n=n, seed=1000))


def report(dictionary, released, source, clipped=0, like=make_table) -> CheckReport:
    """What is found in a table; chance draws others `like` the source."""
    real = dictionary.check(source)

    def draw(places: np.ndarray) -> pd.DataFrame:
        return others(dictionary, like, len(places))

    found = check_rows(
        study(LatentNoisePlan(w=0.5), dictionary),
        released,
        real=real,
        limits=LIMITS,
        clipped=lambda: clipped,
        chance=lambda tables, _: ChanceHits.simulated(real, np.zeros(len(real)), dictionary, draw, tables=tables),
    )
    return CheckReport.of("ab" * 16, "cd" * 32, found, limits=LIMITS, agent_version="0.1.0")


def outcome(made: CheckReport, name: str) -> str:
    return next(check.outcome for check in made.checks if check.name == name)


def test_an_unrelated_table_passes(dictionary):
    made = report(dictionary, in_released_form(dictionary, make_table(200, seed=2)), make_table(200, seed=1))
    assert made.failed == ()
    made.require_passed()


def test_every_planted_row_is_found(dictionary):
    """One real row among 200 fresh ones, 100 times."""
    real = make_table(200, seed=1)
    copies = in_released_form(dictionary, real)
    fresh = in_released_form(dictionary, make_table(200, seed=2))
    chance = ChanceHits.simulated(
        dictionary.check(real),
        np.zeros(len(real)),
        dictionary,
        lambda places: in_released_form(dictionary, make_table(len(places), seed=3)),
    )
    found = 0
    for i in range(100):
        leaked = fresh.copy()
        leaked.iloc[i] = copies.iloc[2 * i]
        found += chance.of(leaked.astype(fresh.dtypes), dictionary).beyond_chance
    assert found == 100


def test_a_copied_row_is_found_through_the_rounding_of_the_arithmetic(dictionary):
    real = make_table(120)
    copied = in_released_form(dictionary, real)
    copied["time"] *= 1 + 1e-13
    with pytest.raises(ChecksRefusal, match="exactly one person"):
        report(dictionary, copied, real).require_passed()


COARSE = Dictionary(
    name="coarse",
    version=1,
    columns=(
        Column(name="sex", kind="binary"),
        Column(name="grade", kind="ordered", levels=("a", "b", "c", "d")),
        Column(name="age", kind="integer", lower=0, upper=9),
    ),
)


def coarse(seed: int, n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "sex": rng.integers(0, 2, n),
            "grade": rng.choice(list("abcd"), n, p=[0.6, 0.3, 0.08, 0.02]),
            "age": rng.binomial(9, 0.5, n),
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_fresh_rows_of_common_kinds_are_chance_and_pass(seed):
    made = report(COARSE, in_released_form(COARSE, coarse(seed + 100)), coarse(seed), like=coarse)
    assert outcome(made, "equal-rows") == "passed"


def test_rare_levels_are_a_warning_that_names_column_and_count_and_no_level(dictionary):
    source = make_table(200, seed=2)
    source["grade"] = ["low"] * 150 + ["middle"] * 41 + ["high"] * 9
    made = report(dictionary, in_released_form(dictionary, source), make_table(200, seed=1))
    assert outcome(made, "rare-levels") == "warning"
    warned = next(check for check in made.warnings)
    assert "grade: 1 rare" in warned.detail
    assert "high" not in warned.detail
    made.require_passed()


def test_many_outliers_beyond_the_clip_are_a_warning(dictionary):
    source, released = make_table(200, seed=1), in_released_form(dictionary, make_table(200, seed=2))
    assert outcome(report(dictionary, released, source, clipped=10), "clipped") == "passed"
    assert outcome(report(dictionary, released, source, clipped=11), "clipped") == "warning"


def test_a_table_outside_the_dictionary_fails(dictionary):
    released = in_released_form(dictionary, make_table(200, seed=2))
    released.loc[0, "sbp"] = 7319.0
    made = report(dictionary, released, make_table(200, seed=1))
    assert outcome(made, "dictionary") == "failed"
    assert "7319" not in made.to_bytes().decode()


def test_a_row_for_every_person_and_no_more(dictionary):
    released = in_released_form(dictionary, make_table(200, seed=2))
    assert outcome(report(dictionary, released, make_table(201)), "persons") == "failed"


def test_the_report_carries_thresholds_and_versions_and_comes_back_from_its_bytes(dictionary):
    made = report(dictionary, in_released_form(dictionary, make_table(120, seed=2)), make_table(120))
    body = json.loads(made.to_bytes())
    assert body["limits"]["persons"] == 50
    assert body["versions"].keys() >= {"tributary", "numpy", "pandas", "python"}
    assert body["bundle_sha256"] == "cd" * 32
    assert CheckReport.from_bytes(made.to_bytes()).to_bytes() == made.to_bytes()
    with pytest.raises(SchemaRefusal):
        CheckReport.from_bytes(b'{"format":"another"}')


def test_no_value_of_a_record_is_in_the_report(dictionary):
    source = make_table(120)
    source["person"] = [f"CANARY-{i}" for i in range(120)]
    source.loc[0, "sbp"] = 173.19
    text = report(dictionary, in_released_form(dictionary, source), source).to_bytes().decode()
    assert "CANARY" not in text
    assert "173.19" not in text


@pytest.mark.parametrize("n", [0, 3, 49])
def test_too_few_persons_are_refused_before_anything_is_drawn(n):
    with pytest.raises(SmallN) as caught:
        before_draw(n=n, delta=1e-6, limits=LIMITS)
    assert "reservation is kept" in caught.value.next_step


def test_fifty_persons_are_enough_unless_a_floor_is_tightened():
    before_draw(n=50, delta=1e-6, limits=LIMITS)
    with pytest.raises(SmallN):
        before_draw(n=50, delta=1e-6, limits=Limits.of(Floors(), SiteFloors(persons=51)))


def test_a_delta_too_large_for_the_table_is_refused():
    before_draw(n=99_999, delta=1e-6, limits=LIMITS)
    with pytest.raises(ChecksRefusal):
        before_draw(n=100_000, delta=1e-6, limits=LIMITS)


@pytest.mark.parametrize(("differ", "refused"), [(0, False), (1, True), (9, True), (10, False)])
def test_two_populations_that_differ_by_a_handful_are_refused(differ, refused):
    persons = {f"p{i}" for i in range(100)}
    now = {f"p{i}" for i in range(differ, 100)}
    if refused:
        with pytest.raises(DifferencingRefusal, match=f"got {differ} "):
            require_apart(100, LIMITS, persons=now, earlier={"e" * 32: persons})
    else:
        require_apart(100, LIMITS, persons=now, earlier={"e" * 32: persons})


@given(
    persons=st.none() | st.integers(50, 10_000),
    rare=st.none() | st.integers(10, 1000),
    auc=st.none() | st.floats(0.01, 1),
    planned=st.integers(50, 10_000),
)
@settings(max_examples=200)
def test_no_configuration_lowers_a_floor(persons, rare, auc, planned):
    plan = Floors(persons=planned)
    limits = Limits.of(plan, SiteFloors(persons=persons, rare_level=rare, membership_auc=auc))
    assert limits.persons >= max(50, planned)
    assert limits.rare_level >= 10
    assert limits.membership_auc <= plan.membership_auc
    assert limits.difference == 10
