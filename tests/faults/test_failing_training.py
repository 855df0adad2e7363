"""What training rests on fails: a typed refusal, the charge as is said, and no half bundle."""

from __future__ import annotations

import dataclasses
import errno

import pytest
from hurry import soak
from stage.hospital_side.pipeline import kinds, quick, release, site, source

from shared.errors import ConfigRefusal, PackageRefusal, Refusal, StorageRefusal, TrainingRefusal
from shared.plans.plan import Budget
from site_agent.release import drawing

__all__ = ["quick", "site"]  # the fixtures
FAILURES = {
    "an extra that lacks": (ModuleNotFoundError("No module named 'torch'", name="torch"), PackageRefusal),
    "no library": (ImportError("No module named 'torch'", name="torch._C"), ConfigRefusal),
    "no memory": (MemoryError(), StorageRefusal),
    "no memory, as torch says it": (
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: CANARY"),
        StorageRefusal,
    ),
    "a loss that is no number": (TrainingRefusal("the likelihood must be finite", given="NaN"), TrainingRefusal),
    "no disk": (OSError(errno.ENOSPC, "No space left on device"), OSError),  # the command line names the file
}


def failing(monkeypatch, place: str, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    target = drawing if place == "_fit" else drawing.RowRelease
    monkeypatch.setattr(target, place, fail)


@pytest.mark.fault("F22")
@pytest.mark.parametrize("name", FAILURES)
def test_a_training_that_fails_keeps_its_reservation_and_leaves_nothing_behind(
    quick, tmp_path, plan, site, table, monkeypatch, name, tally
):
    error, kind = FAILURES[name]
    where, times = source(tmp_path, table), soak(2, 20, usual=20)
    for _ in range(times):
        with monkeypatch.context() as patch:
            failing(patch, "_fit", error)
            with pytest.raises(kind) as caught:
                release(plan, site, where)
        assert "CANARY" not in str(caught.value)
        assert kinds(site) == ["genesis", "reserve", "anchor"], "one reservation, however often it fails"
        assert not list(site.outbox.root.glob("*/*"))
    made = release(plan, site, where)
    assert made.hold.state == "held"
    assert kinds(site).count("reserve") == 1
    tally(cases=times, sites=1, bundles=1, second_draws=0, overspends=0, undercounted=0)


@pytest.mark.fault("F22")
@pytest.mark.parametrize("name", ["no memory", "no library"])
def test_a_draw_that_fails_is_burnt_and_never_drawn_again_for_its_charge(
    quick, tmp_path, plan, site, table, monkeypatch, name
):
    error, kind = FAILURES[name]
    plan = dataclasses.replace(plan, budget=Budget(epsilon=1e5, delta=plan.budget.delta))
    with monkeypatch.context() as patch:
        failing(patch, "released", error)
        with pytest.raises(Refusal) as caught:
            release(plan, site, source(tmp_path, table))
    assert type(caught.value) is kind
    assert kinds(site)[-2:] == ["drawing", "burn"]
    left = {path.name for path in site.outbox.root.glob("*/*")}
    assert left <= {"population.json"}, "whom it touched is kept, and nothing of the bundle"
    release(plan, site, source(tmp_path, table))
    assert kinds(site).count("reserve") == kinds(site).count("drawing") == 2
