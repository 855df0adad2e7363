"""A disk that is full, or read-only, at any moment: a typed refusal, nothing half, and on with room."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hurry import soak
from stage.both_sides.service import Hub
from stage.hospital_side.agent_life import assert_settled

from coordinator.store.store import Store
from faults.disk import READ_ONLY, WHOLE, Room, faulty
from faults.served import ROOT, fast, sealed_of, served, small_plan, template
from shared.errors import StorageRefusal
from shared.wire.site_messages import Acceptance

__all__ = ["fast", "template"]  # the fixtures
PLENTY = 1 << 40


@pytest.mark.fault("F5", "F6")
def test_a_site_whose_disk_fills_up_or_turns_read_only_refuses_and_goes_on_with_room(fast, template, tally):
    """At any number of bytes; then read-only in whatever state that left; then whole again."""
    room, rng = Room(fast / "room"), random.Random(6)
    disk, elsewhere = fast / "disk", fast / "elsewhere"
    disk.mkdir()
    (fast / "receipt.json").write_bytes(template.to_bytes())
    agents = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "stage" / "hospital_side" / "agent_life.py"), str(fast / "receipt.json")],
        env={**os.environ, **faulty(disk, room=room), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def live(home: Path, left: int) -> str:
        room.set(left)
        agents.stdin.write(f"{home}\n")
        agents.stdin.flush()
        return agents.stdout.readline().strip()

    def made(number: int) -> Path:
        home = disk / f"{number}"
        home.mkdir()
        (elsewhere / f"{number}").mkdir(parents=True)
        (home / "hub").symlink_to(elsewhere / f"{number}")
        return home

    try:
        assert live(made(0), PLENTY) == "done"
        whole = PLENTY - room.left
        turns, refused = soak(4, 30, usual=30), 0
        for turn in range(1, turns + 1):
            home = made(turn)
            said = live(home, rng.randrange(whole))
            assert said in ("E_STORAGE", "done"), said
            refused += said == "E_STORAGE"
            said = live(home, READ_ONLY)
            assert said == "E_STORAGE", said
            assert live(home, WHOLE) == "done"
            assert_settled(home, template)
            shutil.rmtree(home)
        assert refused > turns // 2
    finally:
        agents.stdin.close()
        agents.wait(30)
        agents.stdout.close()
    tally(cases=2 * turns, sites=1, bundles=turns, lost=0, second_draws=0, undercounted=0)


@pytest.mark.fault("F5", "F6")
def test_a_coordinator_whose_disk_fills_up_or_turns_read_only_acknowledges_nothing_that_is_not_safe(fast, plan, tally):
    """The same release, refused while there is no room, is taken once there is; nothing of it lies about."""
    turns, room, rng = soak(4, 60, usual=30), Room(fast / "room"), random.Random(7)
    hub = Hub(fast / "hub", small_plan(plan, turns), "north")
    hub.store.close()
    refused = 0
    with served(hub, hub.home, **faulty(hub.home, room=room)), hub.egress("north", sleep=lambda s: None) as egress:
        for wave in range(1, turns + 1):
            sealed = sealed_of(hub, "north", wave)
            room.set(READ_ONLY if wave % 3 == 0 else rng.randrange(40_000))
            try:
                first = egress.send(sealed.envelope, sealed.path)
            except StorageRefusal:
                first, refused = None, refused + 1
            room.set(WHOLE)
            answer = egress.send(sealed.envelope, sealed.path)
            assert isinstance(answer, Acceptance)
            assert first in (None, answer)
    assert refused > turns // 2
    with closing(Store.open(hub.home)) as store:
        found = [release.wave for release in store.releases()]
        assert store.verify_log() == turns
        assert all(len(store.table(release)) == 400 for release in store.releases())
    assert sorted(found) == list(range(1, turns + 1))
    names = {name for name in hub.contents() if not name.startswith("bundles/")}
    assert names == set()
    tally(cases=turns, sites=1, bundles=turns, lost=turns - len(found), duplicated=0)
