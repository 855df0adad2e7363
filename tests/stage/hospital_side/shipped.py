"""A small hospital whose agent is asked for releases, and a noise source that hands out values that a test chose.

Mechanisms are driven here by what ships: a plan, a table on disk, `make_release`, and the released table read back.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from stage.hospital_side.site_desk import Hub

from shared.base.keys import SigningKey
from shared.base.randomness import Noise
from shared.plans.plan import Budget, StudyPlan, Wave
from site_agent.config import Edges, SiteFloors, TableSource
from site_agent.ledger.book import Ledger
from site_agent.release import sealed_state
from site_agent.release.outbox import Outbox
from site_agent.release.pipeline.making import make_release
from site_agent.release.pipeline.opened import SealedRelease
from site_agent.release.site import WorkingSite

TODAY = dt.date(2026, 1, 5)
KEY = b"k" * 32
ALWAYS = {"opens": dt.date(2000, 1, 1), "closes": dt.date(2999, 1, 1)}


# -- what the sampler hands out -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Asked:
    """What a mechanism asked its source for: the `place`-th time, counted over all substreams.

    `law` is gaussian, laplace, chosen or uniform; `scale` the noise's, or the rate, or the bound; `name` that of the
    substream.
    """

    place: int
    law: str
    scale: float
    shape: tuple[int, ...]
    grid: float = 1.0
    name: str = ""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


Values = Callable[[Asked], Any]


def silent(asked: Asked) -> Any:
    """No noise at all."""
    return np.zeros(asked.shape, dtype=np.int64)


def far(reach: float = 30.0, multiple: int = 1) -> Values:
    """Whole steps spread over ±`reach` scales, both ends among them, no two requests alike."""

    def values(asked: Asked) -> Any:
        most = int(reach * asked.scale / asked.grid) // multiple
        seed = hashlib.sha256(f"{asked.place} {asked.name}".encode()).digest()
        out = np.random.default_rng(list(seed)).integers(-most, most + 1, asked.size)
        out[0] = -most if asked.place % 2 else most
        out[-1] = most if asked.place % 2 else -most
        return out.reshape(asked.shape) * multiple

    return values


class Given(Noise):
    """A seeded source whose lattice noise is chosen by the test, and which notes whatever it is asked for.

    Args:
        seed: of everything that is not given: samples, choices, shuffles.
        values: noise in steps of the grid, for each request; None leaves it to the real sampler.
    """

    def __init__(self, seed: int = 1, values: Values | None = None) -> None:
        super().__init__(_key=hashlib.sha256(b"given %d" % seed).digest())
        self.values, self.name = values, ""
        self.asked: list[Asked] = []
        self.drawn: list[Any] = []

    def _note(self, law: str, scale: float, shape: Any, grid: float, draw: Callable[[], Any]) -> Any:
        shape = (int(shape),) if isinstance(shape, int | np.integer) else tuple(shape)
        asked = Asked(len(self.asked), law, float(scale), shape, grid, self.name)
        drawn = draw() if self.values is None or law in ("chosen", "uniform") else self.values(asked)
        self.asked.append(asked)
        self.drawn.append(np.array(drawn))
        return drawn

    def lattice_gaussian_steps(self, sigma: float, shape: Any, grid: float) -> Any:
        return self._note(
            "gaussian", sigma, shape, grid, lambda: Noise.lattice_gaussian_steps(self, sigma, shape, grid)
        )

    def lattice_laplace_steps(self, scale: float, shape: Any, grid: float) -> Any:
        return self._note("laplace", scale, shape, grid, lambda: Noise.lattice_laplace_steps(self, scale, shape, grid))

    def chosen(self, rate: float, count: int) -> Any:
        return self._note("chosen", rate, count, 1.0, lambda: Noise.chosen(self, rate, count))

    def uniform(self, bound: int, count: int) -> Any:
        return self._note("uniform", bound, count, 1.0, lambda: Noise.uniform(self, bound, count))

    def named(self, names: Sequence[str]) -> list[Noise]:
        out: list[Noise] = []
        for name, source in zip(names, super().named(names), strict=True):
            child = Given(0, self.values)
            child._rekey(source._key)
            child.name, child.asked, child.drawn = name, self.asked, self.drawn
            out.append(child)
        return out

    def noise(self) -> list[tuple[Asked, Any]]:
        """The requests for noise, and what was handed out."""
        pairs = zip(self.asked, self.drawn, strict=True)
        return [(asked, drawn) for asked, drawn in pairs if asked.law in ("gaussian", "laplace")]


# -- a hospital ---------------------------------------------------------------------------------------------------
def study(release: Any, dictionary: Any, *, waves: int = 1, **more: Any) -> StudyPlan:
    """A plan of one mechanism, whose waves are always open."""
    settings = {
        "study": "gate",
        "version": 1,
        "title": "A study",
        "purpose": "To see what leaves.",
        "coordinator": "hub",
        "expires": dt.date(2999, 1, 1),
        "budget": Budget(epsilon=1000.0, delta=1e-6),
        "waves": tuple(Wave(number=k + 1, **ALWAYS) for k in range(waves)),
    }
    return StudyPlan(release=release, dictionary=dictionary, **{**settings, **more})


@dataclass
class Bench:
    """A site's folder, its coordinator and its table."""

    folder: Path
    hub: Hub = field(default_factory=Hub)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        home = self.folder / "home"
        ledger = Ledger.create(home / "ledger.db", SigningKey.generate(), site="north")
        self.site = WorkingSite(
            name="north",
            agent_version="0.1.0",
            ledger=ledger,
            outbox=Outbox(home, ledger),
            witness=self.hub,
            snapshot_key=KEY,
            floors=SiteFloors(),
            paused=lambda: False,
        )

    def source(self, table: pd.DataFrame, edges: pd.DataFrame | None = None) -> TableSource:
        path = self.folder / "cohort.csv"
        table.to_csv(path, index=False)
        if edges is None:
            return TableSource(path=path)
        edges.to_csv(self.folder / "edges.csv", index=False)
        return TableSource(path=path, edges=Edges(path=self.folder / "edges.csv"))

    def release(
        self, plan: StudyPlan, table: pd.DataFrame, rng: Noise, *, edges: pd.DataFrame | None = None, wave: int = 1
    ) -> SealedRelease:
        """The whole path, from the table on disk to what waits in the outbox."""
        where = self.source(table, edges)
        return make_release(plan=plan, wave=wave, source=where, site=self.site, today=TODAY, rng=rng)

    def deliver(self, made: SealedRelease) -> None:
        """Approved by a person and accepted by the coordinator, as far as the ledger can tell."""
        hold, ledger = made.hold, self.site.ledger
        person = SigningKey.generate()
        ledger.approve(hold, name="ada", key=person.public, signature=b"s" * 64, bundle_sha256=hold.bundle_sha256)
        said = {
            "release_id": hold.release_id,
            "bundle_sha256": hold.bundle_sha256,
            "log_index": 7,
            "log_root": "c" * 64,
        }
        ledger.commit(hold, SimpleNamespace(**said))

    def places(self, made: SealedRelease) -> np.ndarray:
        """Whose row each released one is, by the row of the table."""
        return np.array(sealed_state.read_rows(self.site.ledger.folder(made.hold), made.hold).source)
