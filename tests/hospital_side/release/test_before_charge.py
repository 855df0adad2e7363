"""What is refused before anything is charged: δ against the persons, the coordinator's caps, this machine's memory."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from stage.both_sides.service import SMALL, Hub
from stage.hospital_side.pipeline import release, site, source  # noqa: F401
from stage.hospital_side.shipped import Bench
from stage.hospital_side.site_desk import hospital  # noqa: F401
from stage.plans.repeated import FIRST, VISITS
from stage.plans.repeated import counted as counted_visits

from shared.base.process import available_cores, available_mb
from shared.errors import ChecksRefusal, ConfigRefusal, Refusal, SchemaRefusal, StorageRefusal, TooLarge
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.plans.dictionary import Dictionary
from shared.plans.plan import Budget, StudyPlan
from shared.wire.site_messages import CoordinatorLimits
from site_agent.config import SiteConfig, TableSource
from site_agent.desk import open_desk, working_site
from site_agent.records.mapping.declared import Combination, Steps
from site_agent.release.pipeline.before_charge import WITHIN, fewest_persons, require_able
from site_agent.release.pipeline.opened import TABLE_CAP
from site_agent.release.pipeline.stages import most_memory
from tests.benchmarks import estimates

AMPLE = CoordinatorLimits(max_bundle=1 << 40, max_table=1 << 40)


@pytest.fixture
def study(plan) -> StudyPlan:
    return replace(plan, release=SlicingPlan(epsilon=5.1), posture="private", budget=Budget(epsilon=8.0, delta=1e-6))


def refused(kind, plan, site, where):  # noqa: F811
    """The refusal of a release that has charged nothing and told nobody."""
    with pytest.raises(kind) as found:
        release(plan, site, where)
    assert [entry.kind for entry in site.ledger.entries() if entry.kind == "reserve"] == []
    assert site.ledger.holds() == []
    assert "Nothing was charged" in found.value.next_step or kind is ChecksRefusal
    return found.value


# -- δ -----------------------------------------------------------------------------------------------------------
def test_a_delta_too_large_for_the_rows_is_refused_uncharged_and_the_next_smaller_is_not(tmp_path, study, site, table):  # noqa: F811
    where = source(tmp_path, table)
    least = 1 / (10 * len(table))
    at = replace(study, budget=Budget(epsilon=8.0, delta=least))
    assert f"with {len(table)} persons" in refused(ChecksRefusal, at, site, where).given
    below = replace(study, budget=Budget(epsilon=8.0, delta=math.nextafter(least, 0)))
    assert require_able(below, where, site) == ()


def test_where_records_say_how_many_are_complete_a_delta_is_noted_and_left_to_them(tmp_path, study, site, table):  # noqa: F811
    where = source(tmp_path, table)
    columns = tuple(
        replace(column, missing="complete_case") if column.name == "sbp" else column
        for column in study.dictionary.columns
    )
    dictionary = replace(study.dictionary, columns=columns)
    some = replace(study, dictionary=dictionary, budget=Budget(epsilon=8.0, delta=1 / (10 * len(table))))
    [note] = require_able(some, where, site)
    assert f"for all {len(table)} rows" in note
    with pytest.raises(ChecksRefusal):  # none is incomplete here: the records are counted, and refuse it undrawn
        release(some, site, where)
    assert [hold.drawn for hold in site.ledger.holds()] == [False]


def test_the_fewest_persons_are_no_more_than_there_can_be(plan, study):
    assert fewest_persons(study, 1000) == 1000
    assert fewest_persons(study, 1000, withdrawn=10) == 990
    assert fewest_persons(study, 3, withdrawn=10) == 0
    halved = replace(plan, posture="holdout", holdout=0.5) if plan.posture != "holdout" else plan
    few = fewest_persons(halved, 10_000)
    assert 10_000 * (1 - halved.holdout) - 6 * 50 - 1 <= few < 10_000 * (1 - halved.holdout)


# -- persons with several rows -----------------------------------------------------------------------------------
def visited(folder, last: int) -> TableSource:
    """A hundred persons, one of whom has so many rows; all others but one have three."""
    rows = [(f"p{k}", "drug", visit, 120 + k) for k in range(98) for visit in (0, 6, 12)]
    rows += [("p98", "control", visit, 140) for visit in (0, 6)]
    rows += [("p99", "drug", visit, 150) for visit in (0, 6, 12)[:last]]
    folder.mkdir()
    return source(folder, pd.DataFrame(rows, columns=["person", "arm", "visit", "sbp"]))


@pytest.mark.parametrize("text", [VISITS, FIRST])
def test_how_many_persons_so_many_rows_are_is_left_to_the_records(text):
    assert fewest_persons(counted_visits(text), 1000) == 0


COMBINED = Steps(persons=Combination(take={"sbp": "mean"}))
"""A mapping that makes a person's rows one."""


@pytest.mark.parametrize("made_one", ["by the plan", "by the mapping"])
@pytest.mark.parametrize("limit", ["delta", "between", "less"])
def test_how_many_rows_a_person_has_decides_nothing_of_the_charge(tmp_path, limit, made_one):
    """297 rows are 99 persons at least, 299 a hundred: whether a reservation is made is seen by the coordinator."""
    plan, rows = replace(counted_visits(), release=SlicingPlan(epsilon=5.1)), 100
    if made_one == "by the mapping":
        columns = tuple(column for column in plan.dictionary.source.columns if column.name != "visit")
        plan, rows = replace(plan, dictionary=Dictionary(name="one", version=1, columns=columns)), 298
    if limit == "delta":
        plan = replace(plan, budget=Budget(epsilon=600.0, delta=1 / (10 * rows)))
    slicing = plan.release.slicing(plan)
    most = 8 * slicing.slices * (slicing.d + {"delta": 10_000, "between": 298, "less": 99}[limit])
    told = []
    for last in (1, 3):
        where, bench = visited(tmp_path / f"{last}", last), Bench(tmp_path / f"{last}" / "home")
        if made_one == "by the mapping":
            where = replace(where, steps=COMBINED, ignore=("visit",))
        bench.site = replace(bench.site, coordinator_takes=replace(AMPLE, max_table=most))
        try:
            release(plan, bench.site, where)
        except Refusal as refusal:
            told.append((type(refusal), refusal.given, refusal.next_step))
        told.append([entry.kind for entry in bench.site.ledger.entries()])
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    refusals = {"delta": [ChecksRefusal][: rows == 100], "between": [], "less": [TooLarge]}[limit]
    assert [one[0] for one in told if isinstance(one, tuple)] == 2 * refusals
    assert "reserve" in told[-1]
    if limit == "less":
        assert "the reservation is kept" in told[0][2]
        [note] = require_able(plan, where, bench.site)
        assert "once the table is read" in note


# -- the coordinator ---------------------------------------------------------------------------------------------
def test_a_bundle_beyond_the_coordinator_s_cap_is_refused_uncharged_and_one_of_the_cap_is_not(
    tmp_path,
    study,
    site,  # noqa: F811
    table,
):
    where = source(tmp_path, table)
    size = study.release.effort(study, len(table), 1).bundle_mb * 1e6
    small = replace(site, coordinator_takes=CoordinatorLimits(max_bundle=math.ceil(size) - 1, max_table=1 << 40))
    found = refused(TooLarge, study, small, where)
    assert "max_bundle_mb" in found.next_step
    just = replace(site, coordinator_takes=CoordinatorLimits(max_bundle=math.ceil(size), max_table=1 << 40))
    [note] = require_able(study, where, just)
    assert "the coordinator takes" in note
    room = replace(site, coordinator_takes=CoordinatorLimits(max_bundle=math.ceil(WITHIN * size), max_table=1 << 40))
    assert require_able(study, where, room) == ()


def test_a_table_that_the_coordinator_would_not_open_is_refused_uncharged(tmp_path, study, site, table):  # noqa: F811
    where, slicing = source(tmp_path, table), study.release.slicing(study)
    size = 8 * slicing.slices * (slicing.d + len(table))
    small = replace(site, coordinator_takes=replace(AMPLE, max_table=size - 1))
    assert "when the coordinator opens it" in refused(TooLarge, study, small, where).must
    assert require_able(study, where, replace(site, coordinator_takes=replace(AMPLE, max_table=size))) == ()


def test_an_older_coordinator_that_does_not_say_refuses_nothing_here(tmp_path, study, site):  # noqa: F811
    where = counted(tmp_path, 60_000)
    wide = replace(study, release=replace(study.release, slices=1500))
    notes = require_able(wide, where, site)
    assert any("has not said what it takes, by default 512 MB at most" in note for note in notes)
    with pytest.raises(TooLarge):
        require_able(wide, where, replace(site, coordinator_takes=CoordinatorLimits()))


def test_a_coordinator_says_what_it_takes(tmp_path, plan):
    hub = Hub(tmp_path / "hub", replace(plan, dictionary=SMALL, estimands={}), "north")
    with hub.serve(max_bundle=5000), hub.egress("north") as egress:
        assert egress.limits() == CoordinatorLimits(max_bundle=5000, max_table=10_000)
    hub.store.close()
    for wrong in ({"max_bundle": 0}, {"max_table": -1}, {"max_bundle": 1 << 60}):
        with pytest.raises(SchemaRefusal):
            CoordinatorLimits(**wrong)


# -- memory ------------------------------------------------------------------------------------------------------
def counted(tmp_path, rows: int) -> TableSource:
    """A file of so many rows, which nobody gets to read."""
    path = tmp_path / f"{rows}.csv"
    path.write_text("person\n" + "1\n" * rows)
    return TableSource(path=path)


def test_more_memory_than_the_settings_give_is_refused_uncharged(tmp_path, study, site, table):  # noqa: F811
    where = source(tmp_path, table)
    needs = study.release.effort(study, len(table), 1).memory_mb
    found = refused(StorageRefusal, study, replace(site, memory_mb=math.floor(needs)), where)
    assert "memory_mb in site.toml" in found.must
    assert f"about {needs:.0f} MB" in found.given
    [note] = require_able(study, where, replace(site, memory_mb=math.ceil(needs)))
    assert "more than" in note
    assert require_able(study, where, replace(site, memory_mb=math.ceil(WITHIN * needs))) == ()


def test_more_memory_than_the_machine_has_left_is_refused_uncharged(tmp_path, study, site, table, monkeypatch):  # noqa: F811
    monkeypatch.setattr("site_agent.release.pipeline.before_charge.available_mb", lambda: 100.0)
    assert "this machine has left" in refused(StorageRefusal, study, site, source(tmp_path, table)).must
    monkeypatch.setattr("site_agent.release.pipeline.before_charge.available_mb", lambda: None)
    assert require_able(study, source(tmp_path, table), site) == ()


def test_memory_of_fitting_what_a_question_asks_for_is_counted_where_a_flow_is_fitted(tmp_path, site, monkeypatch):  # noqa: F811
    where = counted(tmp_path, 50_000)
    asked, plain = (StudyPlan.from_toml(estimates.study(kind, 10)) for kind in ("logistic", "latent_noise"))
    own = asked.release.effort(asked, 50_000, 10)
    needs = most_memory(asked, 50_000, own)
    assert own.memory_mb <= most_memory(plain, 50_000, own) < needs / 1.2
    short = replace(site, memory_mb=math.floor(needs))
    assert f"about {needs:.0f} MB" in refused(StorageRefusal, asked, short, where).given
    require_able(plain, where, short)
    monkeypatch.setattr(site.ledger, "holds", lambda study=None: [SimpleNamespace(drawn=True)])
    require_able(asked, where, short)  # through the flow of an earlier release


def test_of_a_holdout_the_rows_that_are_released_count():
    whole, half = (StudyPlan.from_toml(estimates.study(kind, 10)) for kind in ("latent_noise", "holdout"))
    ours, theirs = half.release.effort(half, 20_000, 10), whole.release.effort(whole, 10_000, 10)
    assert (ours.memory_mb, ours.bundle_mb) == (theirs.memory_mb, theirs.bundle_mb)
    assert ours.seconds < theirs.seconds  # its flow is fitted once, and not again for the audit


def test_slicing_half_a_million_rows_of_twenty_columns_is_within_two_gigabytes_or_refused(tmp_path, site):  # noqa: F811
    plan = StudyPlan.from_toml(estimates.study("slicing", 20))
    ready = replace(site, memory_mb=2048, coordinator_takes=AMPLE)
    refused(TooLarge, plan, ready, counted(tmp_path, 500_000))
    slicing = plan.release.slicing(plan)
    most = TABLE_CAP // (8 * slicing.slices + 10) - slicing.d
    assert plan.release.extent(plan, most).bytes <= TABLE_CAP
    require_able(plan, counted(tmp_path, most), ready)
    fewer = replace(plan, release=replace(plan.release, slices=160))
    require_able(fewer, counted(tmp_path, 500_000), ready)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  2097152 kB\n"}, 2048),
        ({"sys/fs/cgroup/memory.max": "max\n"}, None),
        (
            {
                "proc/meminfo": "MemAvailable: 2097152 kB\n",
                "sys/fs/cgroup/memory.max": f"{1 << 30}",
                "sys/fs/cgroup/memory.current": f"{600 << 20}",
                "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {100 << 20}\n",
            },
            524,
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 30}",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{600 << 20}",
                "sys/fs/cgroup/memory/memory.stat": "cache 5\n",
            },
            424,
        ),
    ],
)
def test_what_is_left_is_the_less_of_machine_and_container(tmp_path, files, left):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_mb(tmp_path) == left


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "4000000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu.max": "half of it"}, 8),
        ({}, 8),
    ],
)
def test_processors_are_no_more_than_the_container_gives_time_for(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_cores(tmp_path) == cores


# -- at the desk -------------------------------------------------------------------------------------------------
def test_a_dry_run_and_a_release_are_refused_alike_and_warn_alike(hospital, plan, table, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TRIBUTARY_TODAY", "2026-01-05")
    hospital.hub.takes = None  # of an earlier version
    ready = hospital.joined().approved(plan).with_table(table)
    assert ready.json("release", "mini", "--dry-run")["warnings"] == []
    hospital.hub.takes = CoordinatorLimits(max_bundle=40_000, max_table=1 << 30)
    ready("plan", "fetch", "mini")
    [warning] = ready.json("release", "mini", "--dry-run")["warnings"]
    assert warning.split("; ")[0] in " ".join(ready("release", "mini", "--dry-run").split())
    hospital.hub.takes = CoordinatorLimits(max_bundle=1000, max_table=1 << 30)
    assert ready.refused("release", "mini", expect=30)["code"] == "E_TOO_LARGE"  # it asks before it charges
    assert ready.refused("release", "mini", "--dry-run", expect=30)["code"] == "E_TOO_LARGE"
    settings = ready.home / "site.toml"
    hospital.hub.takes = AMPLE
    ready("plan", "fetch", "mini")
    settings.write_text("memory_mb = 256\n" + settings.read_text())
    assert working_site(open_desk(ready.home), None).memory_mb == 256
    assert SiteConfig.from_toml(SiteConfig.load(ready.home).to_toml(), home=ready.home).memory_mb == 256
    with pytest.raises(ConfigRefusal, match="memory_mb"):
        SiteConfig.from_toml(settings.read_text().replace("memory_mb = 256", "memory_mb = 255"), home=ready.home)
    assert [row for row in ready.json("history", "--last", "0")["entries"] if row["kind"] == "reserve"] == []
