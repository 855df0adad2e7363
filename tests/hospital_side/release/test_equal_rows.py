"""Rows that one person alone has: hits are held against tables drawn from no record, before the draw and after it."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from stage.mechanisms.postures import TODAY, cohort, site, study

from shared.base.randomness import seeded_rng
from shared.errors import ChecksRefusal
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget
from site_agent.config import TableSource
from site_agent.release import drawing, equal_rows
from site_agent.release.checks import CHANCE, REHEARSALS, require_rehearsed
from site_agent.release.equal_rows import ChanceHits, held_against, hits_on, own_rows
from site_agent.release.pipeline.making import make_release

LIKE = Dictionary(
    name="like",
    version=1,
    columns=tuple(Column(name=f"c{k}", kind="integer", lower=0, upper=40) for k in range(3)),
)


def together(n: int, seed: int) -> pd.DataFrame:
    """Three columns of one cause: far more rows meet than if the columns were independent."""
    rng = np.random.default_rng(seed)
    cause = rng.normal(20, 6, n)
    return LIKE.check(
        pd.DataFrame({f"c{k}": (cause + rng.normal(0, 0.7, n)).round().clip(0, 40).astype(int) for k in range(3)})
    )


def likely(real: pd.DataFrame) -> np.ndarray:
    """Log density of that law: the cause, and each column given the mean of them."""
    values = real[["c0", "c1", "c2"]].to_numpy(dtype=float)
    middle = values.mean(axis=1)
    return -((middle - 20) ** 2) / 72 - ((values - middle[:, None]) ** 2).sum(axis=1) / 0.98


def test_hits_that_columns_have_because_they_hang_together_are_chance():
    refused = {"independent": 0, "simulated": 0}
    for seed in range(40):
        real, released = together(300, seed), together(300, 1000 + seed)
        chance = ChanceHits.simulated(
            real, likely(real), LIKE, lambda places, seed=seed: together(len(places), 2000 + seed)
        )
        refused["independent"] += hits_on(real, released, LIKE, CHANCE).beyond_chance
        refused["simulated"] += chance.of(released, LIKE).beyond_chance
    assert refused["simulated"] <= 1
    assert refused["independent"] >= 4, "this is what the simulation is for"


@pytest.mark.parametrize("copies", [60, 90])
def test_copies_among_hits_that_are_chance_are_found_by_their_number(copies):
    real, released = together(300, 1), together(300, 2)
    chance = ChanceHits.simulated(real, likely(real), LIKE, lambda places: together(len(places), 3))
    alone = real[~real.duplicated(keep=False)]
    leaked = pd.concat([alone.iloc[:copies], released.iloc[copies:]], ignore_index=True)
    hits = chance.of(leaked, LIKE)
    assert hits.beyond_chance
    assert hits.found >= copies
    assert hits.mean == pytest.approx(np.mean(chance.counts))


def test_one_copy_of_somebody_out_of_reach_is_found_where_many_rows_are_hit_by_chance():
    real, released = together(300, 4), together(300, 5)
    real.loc[7, ["c0", "c1", "c2"]] = (18, 20, 23)
    chance = ChanceHits.simulated(real, likely(real), LIKE, lambda places: together(len(places), 6))
    assert min(chance.counts) >= 20
    assert not chance.of(released, LIKE).beyond_chance
    released.iloc[0] = real.iloc[7]
    hits = chance.of(released, LIKE)
    assert (hits.far, hits.beyond_chance) == (1, True)
    assert hits.found < hits.allowed


def test_a_record_that_the_flow_cannot_place_is_out_of_reach():
    real = together(300, 4)
    far = likely(real)
    alone = int(np.flatnonzero(~real.duplicated(keep=False))[0])
    far[alone] = np.nan
    chance = ChanceHits.simulated(
        real, far, LIKE, lambda places: together(len(places), 6).replace(real.iloc[alone].to_dict(), 0)
    )
    assert chance.of(real.iloc[[alone]], LIKE).far == 1


def test_a_large_release_is_held_by_a_part_of_it_against_as_many_tables_as_a_small_one(monkeypatch):
    assert 2 / (equal_rows.CONFIRMED + 1) <= CHANCE
    monkeypatch.setattr(equal_rows, "ROWS", 100)
    real, drawn = together(300, 1), []

    def draw(places: np.ndarray) -> pd.DataFrame:
        drawn.extend(np.split(places, len(places) // 100))
        return together(len(places), len(drawn))

    chance = ChanceHits.simulated(real, likely(real), LIKE, draw)
    assert len(chance.counts) == len(drawn) == 250, "however many records there are"
    assert all(len(np.unique(one)) == 100 for one in [*drawn, chance.places])
    assert len(np.unique([*drawn])) == 300, "each table is of other records, so that what they carry is as in a release"
    assert chance.share == pytest.approx(1 / 3)
    alone = real[~real.duplicated(keep=False)]
    copied = chance.of(pd.concat([alone, together(300 - len(alone), 2)], ignore_index=True), LIKE)
    assert copied.looked_at == 100
    assert copied.beyond_chance
    refused = sum(chance.of(together(300, 5000 + seed), LIKE).beyond_chance for seed in range(100))
    assert refused <= 5
    # What is foreseen for a whole release is held against a part of it by its share.
    enough = 3 * (max(chance.counts) - np.mean(chance.counts))
    require_rehearsed([int(enough) - 3], lambda tables: chance)
    with pytest.raises(ChecksRefusal, match="exactly one person"):
        require_rehearsed([int(enough) + 3], lambda tables: chance)


def test_tables_are_drawn_only_until_a_release_is_within_them_and_the_answer_is_that_of_all(monkeypatch):
    monkeypatch.setattr(equal_rows, "TABLES", 30)
    monkeypatch.setattr(equal_rows, "CONFIRMED", 60)
    monkeypatch.setattr(equal_rows, "TOGETHER", 600)
    drawn = []
    for seed in range(4):
        real, released = together(120, seed), together(120, 1000 + seed)
        if copied := seed % 2:
            alone = real[~real.duplicated(keep=False)]
            released = pd.concat([alone.iloc[:60], released.iloc[60:]], ignore_index=True)
        found = []
        for early in (True, False):
            source = iter(range(2000, 9000))

            def chance(many, enough, early=early, real=real, source=source):
                made = ChanceHits.simulated(
                    real,
                    likely(real),
                    LIKE,
                    lambda places: together(len(places), next(source)),
                    tables=many,
                    enough=enough if early else lambda so_far: False,
                )
                drawn.append((early, len(made.counts)))
                return made

            found.append(held_against(released, LIKE, chance))
        first, every = found
        assert (first.found, first.far, first.beyond_chance) == (every.found, every.far, every.beyond_chance)
        assert every.beyond_chance == bool(copied)
    assert sum(many for early, many in drawn if early) < sum(many for early, many in drawn if not early)


def test_a_release_that_hits_nobody_is_held_against_no_table():
    real, missed = together(120, 1), together(120, 2).assign(c0=40)

    def draw(places):
        raise AssertionError("a table was drawn")

    def chance(many, enough):
        return ChanceHits.simulated(real, likely(real), LIKE, draw, tables=many, enough=enough)

    hits = held_against(missed, LIKE, chance)
    assert (hits.found, hits.beyond_chance) == (0, False)
    require_rehearsed([0, 2, 0, 0, 1], draw)


def release(tmp_path, plan, table):
    table.to_csv(tmp_path / "cohort.csv", index=False)
    at, source = site(tmp_path), TableSource(path=tmp_path / "cohort.csv")
    return at, lambda: make_release(plan=plan, wave=1, source=source, site=at, today=TODAY, rng=seeded_rng(7))


def test_a_table_whose_release_would_be_refused_is_refused_before_the_draw(tmp_path):
    plan = study("local", release=LatentNoisePlan(w=0.9999999), budget=Budget(epsilon=1e12))
    at, make = release(tmp_path, plan, cohort(300))
    with pytest.raises(ChecksRefusal, match="exactly one person") as refused:
        make()
    assert re.search(r"about \d{2,} such rows to be expected at this w", refused.value.given)
    assert "drawing" not in [entry.kind for entry in at.ledger.entries()], "no noise was drawn for anybody"
    assert "the reservation is kept" in refused.value.next_step
    assert [hold.state for hold in at.ledger.holds()] == ["anchored"]


@pytest.mark.parametrize("w", [0.5, 0.9999999])
def test_a_large_table_is_rehearsed_by_a_part_and_whole_only_where_a_row_of_that_stays(tmp_path, monkeypatch, w):
    monkeypatch.setattr(drawing, "REHEARSED", 100)
    sizes, whole = [], drawing.RowRelease._rehearsed

    def noted(self, places):
        assert len(set(places)) == len(places)
        sizes.append(len(places))
        return whole(self, places)

    monkeypatch.setattr(drawing.RowRelease, "_rehearsed", noted)
    plan = study("local", release=LatentNoisePlan(w=w), budget=Budget(epsilon=1e12))
    _, make = release(tmp_path, plan, cohort(300))
    if w == 0.5:
        make()
        assert set(sizes) == {100}
        assert len(sizes) > REHEARSALS // 2
    else:
        with pytest.raises(ChecksRefusal, match="exactly one person") as refused:
            make()
        assert sizes == [100, 300] * REHEARSALS
        expected = int(re.search(r"about (\d+) such rows", refused.value.given)[1])
        assert 150 <= expected <= 300, "those of all rows, not of the part"


def test_by_parts_about_one_release_in_a_hundred_at_most_is_let_pass_that_is_refused_later():
    """Rows that stay are as a Poisson law: few enough to be missed in most parts are seldom among those looked at."""
    most = REHEARSALS // 2
    for n in (2, 4, 10, 40) * np.array(drawing.REHEARSED):
        stay = np.linspace(0.01, 60, 3000)  # of all n rows, in the mean
        missed = binom.sf(most, REHEARSALS, np.exp(-stay * drawing.REHEARSED / n))
        assert (missed * -np.expm1(-stay * equal_rows.ROWS / n)).max() < 0.012


def test_rows_that_stay_as_they_are_count_where_they_are_alone():
    rows = LIKE.check(pd.DataFrame({"c0": [1, 1, 2, 3, 4], "c1": [5, 5, 5, 5, 5], "c2": [0, 0, 0, 0, 0]}))
    assert own_rows(rows, rows, LIKE) == 3, "the first two are alike"
    assert own_rows(rows, rows.assign(c0=[1, 1, 2, 4, 4]), LIKE) == 2
    assert own_rows(rows, rows.assign(c1=6), LIKE) == 0


def test_where_a_price_is_stated_nothing_is_rehearsed(tmp_path):
    plan = study("holdout", release=LatentNoisePlan(w=0.9999999), budget=Budget(epsilon=1e12))
    _, make = release(tmp_path, plan, cohort(600))
    [found] = [check for check in make().checks if check.name == "equal-rows"]
    assert (found.outcome, found.notable) == ("note", True), "the approver is shown it, and it decides nothing"
