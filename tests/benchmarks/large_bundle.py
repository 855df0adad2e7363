"""A release of random numbers, the process that takes it and the one that sends it, for benchmarks of large bundles.

Random numbers do not compress: the most memory that a bundle of a size can take.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import peaks, reset_peak, resident

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

__all__ = ["COLUMNS", "Taking", "rows_of", "sealed", "sending", "study", "taking"]

COLUMNS = 16


def rows_of(megabytes: float) -> int:
    """Rows of a table of this size."""
    return int(megabytes * 1e6 / 8 / COLUMNS)


def study() -> Any:
    """A plan whose dictionary has only numbers."""
    from shared.mechanisms.latent_noise.plan import LatentNoisePlan
    from shared.plans.dictionary import Column, Dictionary
    from shared.plans.plan import Budget, StudyPlan, Wave

    columns = tuple(Column(name=f"x{k}", kind="continuous", lower=0, upper=1) for k in range(COLUMNS))
    waves = tuple(Wave(number=k, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)) for k in (1, 2))
    return StudyPlan(
        study="big",
        version=1,
        title="A large release",
        purpose="To measure memory.",
        coordinator="hub",
        expires=dt.date(2999, 1, 1),
        release=LatentNoisePlan(w=0.5),
        budget=Budget(epsilon=1e4),
        waves=waves,
        returning="refresh",
        dictionary=Dictionary(name="big", version=1, columns=columns),
    )


def sealed(hub: Any, wave: int, rows: int, rng: Any) -> Any:
    """A release of a site ``north``, ready to be sent."""
    import pandas as pd

    table = pd.DataFrame(rng.random((rows, COLUMNS)), columns=list(hub.plan.dictionary.names))
    return hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=table)


class Taking:
    """The process that takes releases, at the other end of a pipe.

    Args:
        hub: whose coordinator it is. port: where it listens. pid: its process.
    """

    def __init__(self, hub: Any, port: int, pid: int, pipe: Any) -> None:
        self.port, self._hub, self._pid, self._pipe = port, hub, pid, pipe

    @property
    def settings(self) -> dict[str, Any]:
        """What a site's door to it is opened with."""
        address = {"address": f"127.0.0.1:{self.port}", "server_name": "tributary-coordinator"}
        return {**address, "credentials": self._hub.credentials("north")}

    @contextmanager
    def delivery(self) -> Iterator[dict[str, Any]]:
        """What its processes hold while one release is delivered, known once it is: MB.

        ``before_mb`` and ``increase_mb`` are of the process that serves, by the kernel's high-water mark; ``reading``
        is the largest process below it, which opens the bundle (`peaks`).
        """
        found: dict[str, Any] = {}
        self._pipe.send("reset")
        self._pipe.recv()
        with peaks(self._pid) as reading:
            yield found
        self._pipe.send("measure")
        found |= {**self._pipe.recv(), "reading": dict(reading)}


@contextmanager
def taking(hub: Any, deliveries: int) -> Iterator[Taking]:
    """A serving process of a hub's home, for so many deliveries."""
    with _process(_serve, str(hub.home), deliveries) as (process, pipe):
        yield Taking(hub, pipe.recv(), process.pid, pipe)


@contextmanager
def sending(send: Callable[..., None], *given: Any) -> Iterator[Any]:
    """The pipe to a site's process, which runs `send` with what it is given and the pipe's other end."""
    with _process(send, *given) as (_, pipe):
        yield pipe


@contextmanager
def _process(work: Callable[..., None], *given: Any) -> Iterator[tuple[Any, Any]]:
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=work, args=(*given, theirs))
    process.start()
    theirs.close()  # whoever fell over is not waited for
    try:
        yield process, mine
    except BaseException:
        process.kill()
        raise
    process.join()
    assert process.exitcode == 0


def _serve(home: str, deliveries: int, pipe: Any) -> None:
    """The coordinator's process, and what it takes at most for each delivery."""
    from coordinator.services.collect.server import CoordinatorServer

    with CoordinatorServer(Path(home), "127.0.0.1:0") as running:
        pipe.send(running.port)
        for _ in range(deliveries):
            pipe.recv()
            before = reset_peak()
            pipe.send("ready")
            pipe.recv()
            pipe.send({"before_mb": before, "increase_mb": resident(name="VmHWM") - before})
