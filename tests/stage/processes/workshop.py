"""What tests have worker processes do (`coordinator.services.compute.workers`): break, die, take long, take much."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from shared.errors import ParameterError, StoreAway

KEPT: list[int] = []


def echo(given):
    return given


def pid(given):
    return os.getpid()


def counted(given):
    """How many of these this process has done."""
    KEPT.append(1)
    return len(KEPT)


def broken(given):
    raise RuntimeError("person 17 has sbp 212 in /srv/secret")


def refuse(given):
    raise ParameterError("w must be in [0, 1)", given="1.2", next_step="Lower w.")


def away(given):
    """Find the database away, as the store says it to the coordinator's own people."""
    refusal = StoreAway("the coordinator's database must be reached", given="no connection to db.internal:5432")
    refusal.place = "db.internal:5432"
    raise refusal


def sleep(given):
    """Say who sleeps, in `file`, and sleep: `seconds`, or until the file `until` is there."""
    if "file" in given:
        Path(given["file"]).write_text(f"{os.getpid()}")
    until = time.monotonic() + given.get("seconds", 60)
    while time.monotonic() < until and not Path(given.get("until", "/nowhere")).exists():
        time.sleep(0.02)
    return time.monotonic()


def spin(given):
    while True:
        pass


def hoard(given):
    """Take `bytes` of memory, written to."""
    return len(b"x" * given.get("bytes", 600 << 20))


def abort(given):
    os.kill(os.getpid(), signal.SIGABRT)


def slowly(given):
    """The real answer, when the file beside the database is there."""
    from coordinator.services.compute.tasks import answer

    home = Path(given["store"][1])
    (home / f"asked.{os.getpid()}.{time.monotonic_ns()}").touch()
    sleep({"until": home / "go", "seconds": 300})
    return answer(given)


def open_slowly(given):
    """The real check, of a bundle whose worker says who it is and waits."""
    from coordinator.services.compute.tasks import check_bundle

    sleep({"file": Path(given["path"]).parents[1] / "opening", "seconds": 1.0})
    return check_bundle(given)


def open_greedily(given):
    from coordinator.services.compute.tasks import check_bundle

    hoard({})
    return check_bundle(given)


def fit_nothing(given):
    """The real answer, where no site may be fitted for it."""
    from coordinator.answers import site_answers
    from coordinator.services.compute.tasks import answer

    def fitted(*_, **__):
        raise AssertionError("a site was fitted again")

    real, site_answers.estimating = site_answers.estimating, fitted
    try:
        return answer(given)
    finally:
        site_answers.estimating = real
