r"""Three fits to one slicing release behind one interface: all free of budget, any number of times.

=====================  =================================================================================  ==========
fit                    what is fitted                                                                     takes
=====================  =================================================================================  ==========
``moments``            a mixture of products to the lines' deconvolved moments (`projections`): default    < 1 s
``f_divergence``       a small network by the smoothed-sliced f-divergence (`divergence.Divergence`)        minutes
``sliced_wasserstein`` the same network by sorted projections (`divergence.Wasserstein`)                    minutes
=====================  =================================================================================  ==========

Each gives a generator with ``rows(n, rng)``, whose rows decode to the study's dictionary. The last two are the source
paper's; by this repository's own measurements they are worse and slower than the first (docs/benchmarks.md), which is
the product's only one. They are here for who wants to see that, or another architecture.

Training is deterministic: the same lines, settings and seed give the same weights, whether or not it was stopped in
between. A tenth of the batches is held out, and judged now and then with the same noise each time; the weights that did
best there are the fit's, and when none has been better for a while it ends. As the held-out lines are as noised as all
others, looking at them costs nothing either.

A fit with a *checkpoint* file writes it at every such look, and goes on from there when it is started again. The file
holds arrays and no code; one of other lines or settings is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.base.keys import write_private
from shared.errors import EstimateRefusal, ParameterError, SchemaRefusal
from shared.mechanisms.slicing.noise import RowCode
from shared.mechanisms.slicing.projections import fit, moments
from tests.benchmarks.paper.divergence import Divergence, Wasserstein
from tests.benchmarks.paper.network import GeneratorNetwork, Trained, VectorAdam

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FITS", "FitProgress", "FittedGenerator", "Generator", "Settings", "generator", "is_checkpoint"]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Release = tuple[Array, Array]

FITS = ("moments", "f_divergence", "sliced_wasserstein")
_LOOK = 50
"""Steps between two looks at the held-out lines."""
_PATIENCE = 16
"""Looks without a better one until a fit ends."""
_HELD = 4
"""Held-out batches, at most."""
_MOST = 1 << 26
"""Bytes of a checkpoint."""


class Generator(Protocol):
    """A fitted generator of rows."""

    def rows(self, n: int, draws: np.random.Generator) -> tuple[Array, pd.DataFrame]:
        """((n, d) coded rows in units of a level, the same as a table of the dictionary)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the fit of a generator.

    Args:
        fit: one of `FITS`; ``moments`` reads nothing of the rest.
        seed: of everything random in the fit.
        steps: at most; the step length falls to nothing over them.
        batch: lines compared at a time. rate: of the first steps.
        k: dimension of a slice. groups: slices looked at, at most. divergence: ``chi2`` or ``kl``. These three are the
            f-divergence's.
    Raises: ParameterError.
    """

    fit: str = "moments"
    seed: int = 0
    steps: int = 3000
    batch: int = 128
    rate: float = 1e-3
    k: int = 2
    groups: int = 50
    divergence: str = "chi2"

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise ParameterError(f"fit must be one of {', '.join(FITS)}", given=repr(self.fit)[:60])
        if self.divergence not in ("chi2", "kl"):
            raise ParameterError("divergence must be chi2 or kl", given=repr(self.divergence)[:60])
        limits = {"seed": (0, 2**63), "steps": (1, 10**6), "batch": (2, 4096), "k": (1, 8), "groups": (1, 4096)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ParameterError(f"{name} must be a whole number in {low}..{high}", given=repr(value)[:40])
        if not 0 < self.rate <= 1:
            raise ParameterError("rate must be in (0, 1]", given=repr(self.rate)[:40])


@dataclass(frozen=True, kw_only=True)
class FitProgress:
    """Progress of a fit: `loss` of the held-out lines, `best` so far, and about how many seconds are left at most."""

    step: int
    steps: int
    loss: float
    best: float
    seconds_left: float


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedGenerator:
    """A fitted generator, and how it came about.

    Args:
        steps: that were made, over all starts. best_step: whose weights these are.
        losses: of the held-out lines at every look.
        finished: False where it was stopped before its end.
    """

    generator: Generator
    settings: Settings
    steps: int = 0
    best_step: int = 0
    losses: tuple[float, ...] = ()
    finished: bool = True


def generator(
    code: RowCode,
    releases: Sequence[Release],
    sigma: float,
    settings: Settings,
    *,
    checkpoint: Path | None = None,
    watch: Callable[[FitProgress], bool | None] | None = None,
) -> FittedGenerator:
    """Fit a generator to the lines of one or more releases of different persons.

    Args:
        releases: (directions (d, m'), lines (n, m')) of each. sigma: of the noise on a line.
        checkpoint: a file to go on from where there is one, and to write. ``moments`` needs none.
        watch: told at every look; where it returns False, the fit stops there, and the file keeps where it was.
    Raises: EstimateRefusal (no lines), SchemaRefusal (a checkpoint of something else), and what `moments` raises.
    """
    if settings.fit == "moments":
        return FittedGenerator(generator=fit(code, moments(code, releases, sigma)), settings=settings)
    return _Training(code, [one for one in releases if len(one[1])], sigma, settings, checkpoint).run(watch)


class _Training:
    def __init__(
        self, code: RowCode, releases: Sequence[Release], sigma: float, settings: Settings, checkpoint: Path | None
    ) -> None:
        if not releases:
            raise EstimateRefusal("there must be released lines", given="none")
        self.settings, self.sigma, self.checkpoint = settings, np.float32(sigma), checkpoint
        self.network = GeneratorNetwork(code)
        self.digest = _digest(code, releases, sigma, settings)
        self.directions = [(code.unit * directions).astype(np.float32) for directions, _ in releases]
        order = np.random.default_rng([settings.seed, 1])
        self.train: list[tuple[int, int]] = []
        self.held: list[tuple[int, int]] = []
        self.objectives: list[tuple[Any, Any]] = []
        for part, (_, lines) in enumerate(releases):
            persons = order.permutation(len(lines))
            batches = np.array_split(persons, math.ceil(len(lines) / settings.batch))
            # Too few to hold any out: the lines are judged by themselves, with noise of their own.
            out = min(_HELD, len(batches) // 10)
            training, held = (
                (batches[: len(batches) - out], batches[len(batches) - out :]) if out else (batches, batches)
            )
            self.objectives.append((self._objective(lines, training), self._objective(lines, held[:_HELD])))
            self.train += [(part, k) for k in range(len(training))]
            self.held += [(part, k) for k in range(min(len(held), _HELD))]
        self.sizes = [min(settings.batch, len(lines)) for _, lines in releases]
        mixed = order.permutation(len(self.train))
        self.train = [self.train[k] for k in mixed]
        self.rng = np.random.default_rng([settings.seed, 2])
        self.theta = self.network.start(self.rng)
        self.adam = VectorAdam(self.network.size)
        self.best, self.best_step, self.step = self.theta, 0, 0
        self.losses: list[float] = []
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)

    def _objective(self, lines: Array, batches: Sequence[NDArray[np.int64]]) -> Any:
        if self.settings.fit == "sliced_wasserstein":
            return Wasserstein(lines, batches)
        k = min(self.settings.k, lines.shape[1])
        groups = min(self.settings.groups, lines.shape[1] // k)
        kind: Any = self.settings.divergence
        return Divergence(lines, batches, k=k, groups=groups, kind=kind)

    def run(self, watch: Callable[[FitProgress], bool | None] | None) -> FittedGenerator:
        began, first = time.monotonic(), self.step
        while not self._over:
            self._make_step()
            if self.step % _LOOK == 0 or self.step == self.settings.steps:
                loss = self._judged()
                if not self.losses or loss < min(self.losses):
                    self.best, self.best_step = self.theta, self.step
                self.losses.append(loss)
                self._save()
                each = (time.monotonic() - began) / (self.step - first)
                progress = FitProgress(
                    step=self.step,
                    steps=self.settings.steps,
                    loss=loss,
                    best=min(self.losses),
                    seconds_left=0.0 if self._over else each * (self.settings.steps - self.step),
                )
                if watch is not None and watch(progress) is False:
                    break
        return FittedGenerator(
            generator=Trained(network=self.network, theta=self.best),
            settings=self.settings,
            steps=self.step,
            best_step=self.best_step,
            losses=tuple(self.losses),
            finished=self._over,
        )

    @property
    def _over(self) -> bool:
        stale = len(self.losses) - 1 - int(np.argmin(self.losses)) if self.losses else 0
        return self.step >= self.settings.steps or stale >= _PATIENCE

    def _seen(self, part: int, rows: Single, rng: np.random.Generator) -> Single:
        sums: Single = rows @ self.directions[part]
        sums += self.sigma * rng.standard_normal(sums.shape, dtype=np.float32)
        return sums

    def _make_step(self) -> None:
        part, batch = self.train[self.step % len(self.train)]
        tape = self.network.forward(self.theta, self.sizes[part], self.rng)
        _, push = self.objectives[part][0](batch, self._seen(part, tape.rows, self.rng))
        gradient = self.network.backward(self.theta, tape, push @ self.directions[part].T)
        rate = self.settings.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * self.step / self.settings.steps)))
        self.theta = self.adam.step(self.theta, gradient, rate, self.step + 1)
        self.step += 1

    def _judged(self) -> float:
        rng = np.random.default_rng([self.settings.seed, 3])  # the same noise at every look
        found = []
        for part, batch in self.held:
            rows = self.network.forward(self.theta, self.sizes[part], rng).rows
            found.append(self.objectives[part][1](batch, self._seen(part, rows, rng))[0])
        loss = float(np.mean(found))
        if not math.isfinite(loss):
            raise EstimateRefusal("a fit must stay finite", given="a loss that is not", next_step="Lower the rate.")
        return loss

    # -- the file ----------------------------------------------------------------------------------------------
    def _save(self) -> None:
        if self.checkpoint is None:
            return
        state = {"digest": self.digest, "step": self.step, "best_step": self.best_step, "losses": self.losses}
        state["rng"] = self.rng.bit_generator.state
        out = io.BytesIO()
        np.savez(
            out,
            told=np.frombuffer(json.dumps(state).encode(), dtype=np.uint8),
            weights=np.stack([self.theta, self.best, self.adam.mean, self.adam.square]),
        )
        write_private(self.checkpoint, out.getvalue())

    def _resume(self, path: Path) -> None:
        wrong = SchemaRefusal(
            "a checkpoint must be of these lines and settings",
            given="another file",
            next_step="Name another file, or start anew with --restart.",
        )
        try:
            if path.stat().st_size > _MOST:
                raise wrong
            data = path.read_bytes()
            _require_plain(data)
            with np.load(io.BytesIO(data), allow_pickle=False) as held:
                state, weights = json.loads(held["told"].tobytes()), held["weights"]
            if state["digest"] != self.digest or weights.shape != (4, self.network.size):
                raise wrong
            if weights.dtype != np.float32 or not np.isfinite(weights).all():
                raise wrong
            step, best, losses = int(state["step"]), int(state["best_step"]), [float(x) for x in state["losses"]]
            if not 0 <= best <= step <= self.settings.steps or not losses or not np.isfinite(losses).all():
                raise wrong
            self.rng.bit_generator.state = state["rng"]
        except (*_SPOILT, OSError, KeyError, TypeError):
            raise wrong from None
        self.theta, self.best, self.adam.mean, self.adam.square = (np.array(one) for one in weights)
        self.step, self.best_step, self.losses = step, best, losses


_SPOILT = (ValueError, OverflowError, EOFError, MemoryError, RecursionError, zipfile.BadZipFile, NotImplementedError)


def _require_plain(data: bytes) -> None:
    """Refuse a file whose arrays are not stored as they are, in the bytes that are there: before any is unpacked.

    Raises: ValueError, or what `zipfile` raises.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as held:
        members = held.infolist()
        if sorted(one.filename for one in members) != ["told.npy", "weights.npy"]:
            raise ValueError
        for one in members:
            if one.compress_type != zipfile.ZIP_STORED or not one.file_size == one.compress_size <= len(data):
                raise ValueError
            with held.open(one) as member:
                version = np.lib.format.read_magic(member)
                if version != (1, 0):
                    raise ValueError
                shape, _, dtype = np.lib.format.read_array_header_1_0(member)
                if dtype.hasobject or math.prod(shape) * dtype.itemsize > one.file_size:
                    raise ValueError


def is_checkpoint(path: Path) -> bool:
    """True if a file is a fit's checkpoint, of whatever lines and settings."""
    try:
        if path.stat().st_size > _MOST:
            return False
        _require_plain(path.read_bytes())
    except (*_SPOILT, OSError):
        return False
    return True


def _digest(code: RowCode, releases: Sequence[Release], sigma: float, settings: Settings) -> str:
    """Of everything that a fit depends on."""
    digest = hashlib.sha256(repr((code.dictionary, sigma, sorted(asdict(settings).items()))).encode())
    for directions, lines in releases:
        for array in (directions, lines):
            digest.update(repr(array.shape).encode() + np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return digest.hexdigest()
