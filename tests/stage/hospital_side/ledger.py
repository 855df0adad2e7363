"""A ledger with one charge, a forked process that may be killed, and a coordinator that accepts all."""

from __future__ import annotations

import gc
import json
import os
import traceback
from dataclasses import dataclass

import pytest

from shared.base.keys import SigningKey
from shared.privacy import accountant as privacy
from site_agent.ledger.book import Ledger
from site_agent.ledger.charge import Reservation

DELTA = 1e-6
GAUSSIAN = privacy.Gaussian(sigma=4.0, sensitivity=1.0)
KEY = SigningKey.generate()
PERSON = SigningKey.generate()
DIGEST = "b" * 64


@dataclass(frozen=True)
class Anchored:
    seq: int
    head: str
    index: int = 0


@dataclass(frozen=True)
class Accepted:
    release_id: str
    bundle_sha256: str = DIGEST
    log_index: int = 7
    log_root: str = "c" * 64


def reserve(ledger, wave=1, *, event=GAUSSIAN, cap=1000.0, study="heart", **other):
    given = {
        "study": study,
        "plan_hash": "a" * 64,
        "wave": wave,
        "release_id": f"{study}-{wave}",
        "event": event.to_canonical(),
        "delta": DELTA,
        "cap_epsilon": cap,
    }
    return ledger.reserve(Reservation(**{**given, **other}))


def acknowledge(ledger) -> Anchored:
    body = json.loads(ledger.anchor_payload())
    return Anchored(body["seq"], body["head"])


def drawing(ledger, wave=1, **other):
    hold = reserve(ledger, wave, **other)
    return ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)))


def deliver(ledger, hold, digest=DIGEST):
    hold = ledger.show(ledger.seal(hold, digest), {})
    hold = ledger.approve(hold, name="ada", key=PERSON.public, signature=b"s" * 64, bundle_sha256=digest)
    return ledger.commit(hold, Accepted(hold.release_id, digest))


def at_once(*works) -> list[int]:
    """Run each in a forked process of its own; their exit codes, or minus the signals that ended them."""
    children = []
    for work in works:
        children.append(os.fork())
        if children[-1] == 0:
            gc.freeze()  # what gRPC left of other tests in this process must not be collected in a fork of it
            code = 1
            try:
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def forked(work) -> int:
    """Run `work` in a forked process; its exit code, or minus the signal that ended it."""
    return at_once(work)[0]


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger.create(tmp_path / "home" / "ledger.db", KEY, site="north")
