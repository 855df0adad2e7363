"""A server of the small study on a disk with faults, and what is delivered to it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage.both_sides.service import SMALL, Hub, Sealed, small_table
from stage.hospital_side.agent_life import quick_folder
from stage.processes.stopping import started

from shared.plans.plan import Budget, StudyPlan, Wave
from shared.releases.receipt import Receipt, ReceiptDraft, write_receipt

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fast(tmp_path):
    """Memory instead of a disk where there is some: what is lost is chosen, and flushing costs nothing."""
    with quick_folder(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="module")
def template(plan) -> Receipt:
    return write_receipt(
        plan, ReceiptDraft(wave=1, site="north", release_id="r", agent_version="0.1.0", n=120, previous="0" * 64)
    )


SERVER = """
import sys
from pathlib import Path
from coordinator.services.collect.server import serve
serve(Path(sys.argv[1]), "127.0.0.1:0", ready=lambda port: print(port, flush=True))
"""


@contextlib.contextmanager
def served(hub: Hub, home: Path, **env: str) -> Iterator[None]:
    """A server process of this home, on a disk with these faults; `hub` dials it."""
    with started(
        [sys.executable, "-c", SERVER, str(home)],
        env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        hub.port = int(process.stdout.readline())
        yield


@functools.cache
def sealed_of(hub: Hub, site: str, wave: int) -> Sealed:
    """The one set of bytes of this site's wave."""
    number = ["north", "south"].index(site)
    table = small_table(400, seed=10 * wave + number)
    return hub.seal(site, wave=wave, release_id=f"{number}{wave}" * 16, table=table)


def small_plan(plan: StudyPlan, count: int) -> StudyPlan:
    """The small study of `service`, with so many waves that are always open."""
    days = {"opens": dt.date(2000, 1, 1), "closes": dt.date(2999, 1, 1)}
    waves = tuple(Wave(number=k, **days) for k in range(1, count + 1))
    changes = {"dictionary": SMALL, "estimands": {}, "returning": "refresh", "budget": Budget(epsilon=1e5)}
    return dataclasses.replace(plan, waves=waves, **changes)
