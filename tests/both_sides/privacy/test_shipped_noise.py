"""What the sampler hands out is what leaves: element by element, through the plan, the drawing and the released table.

Ten thousand draws tell a variance and never a tail. Here the source is one that returns chosen values, thirty scales on
either side among them, and each of them must arrive in the release unchanged: nothing cut off, shared, halved or left
out. The noise that is asked for must have the scale that the plan's event is charged by, and with a source that is
silent the release must not move by more than the event's sensitivity when one record is exchanged, and for the worst
pair by as much. Together these three say that the release is the mechanism that the accountant is asked about.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.hospital_side.shipped import Asked, Bench, Given, far, silent, study
from stage.mechanisms.contacts import contacts, contacts_study

from shared.flows.affine import AffineAutoregressiveFlow
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.grand import noise as grand
from shared.mechanisms.grand.edges import NEIGHBOURS
from shared.mechanisms.grand.plan import GrandPlan
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.mechanisms.moments import noise as moments
from shared.mechanisms.moments import spec as moments_spec
from shared.mechanisms.moments.copula import pilot
from shared.mechanisms.moments.plan import MomentsPlan
from shared.mechanisms.network_counts.plan import NetworkCountsPlan
from shared.mechanisms.slicing.noise import ROW_STEP
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.federated import Federated, Shape, pack
from shared.plans.plan import PrivateTraining, StudyPlan, Training
from shared.privacy.accountant import Composition, Gaussian, Laplace
from shared.privacy.grids import grid_for
from site_agent.models import private_flow
from site_agent.release import drawing, fitting
from site_agent.training import federation

Noises = list[tuple[Asked, np.ndarray]]
N = 60
PLACES = np.linspace(-1, 1, 33)
NUMBERS = Dictionary(
    name="numbers",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="x", kind="continuous", lower=-1, upper=1),
        Column(name="y", kind="continuous", lower=-1, upper=1),
    ),
)
MIXED = Dictionary(
    name="mixed",
    version=1,
    columns=(
        Column(name="person", kind="person"),
        Column(name="died", kind="binary"),
        Column(name="age", kind="continuous", lower=16, upper=100),
        Column(name="male", kind="binary"),
        Column(name="stage", kind="ordered", levels=(1, 2, 3, 4)),
    ),
)


def numbers(n: int = N, seed: int = 1) -> pd.DataFrame:
    """Persons in the order of x."""
    draws = np.random.default_rng(seed).uniform(-0.9, 0.9, (n, 2))
    table = pd.DataFrame({"person": [f"p{i}" for i in range(n)], "x": np.sort(draws[:, 0]), "y": draws[:, 1]})
    return table


def mixed(n: int = N, seed: int = 1) -> pd.DataFrame:
    """Persons in the order of age."""
    draws = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "person": [f"p{i}" for i in range(n)],
            "died": draws.integers(0, 2, n),
            "age": np.sort(draws.uniform(17, 99, n)),
            "male": draws.integers(0, 2, n),
            "stage": draws.integers(1, 5, n),
        }
    )


# -- figures ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A mechanism's plan and table, and how its released table is read: in steps, one array per request for noise.

    Args:
        scales: law and scale of the noise that the event is charged by, and how many values of it are drawn.
        reach: how far out the values that are handed out lie, in scales; they are multiples of `multiple`.
        whole: through `make_release`, or, where its price takes seconds or a reader refuses such noise, the one draw.
    """

    plan: StudyPlan
    table: pd.DataFrame
    scales: dict[tuple[str, float], int]
    reach: float = 30.0
    multiple: int = 1
    whole: bool = True

    def released(self, rng: Given, folder: Path) -> pd.DataFrame:
        if self.whole:
            return Bench(folder).release(self.plan, self.table, rng).table
        return self.drawn(rng)

    def drawn(self, rng: Given, table: pd.DataFrame | None = None) -> pd.DataFrame:
        records = self.plan.dictionary.check(self.table if table is None else table)
        return self.plan.release.draw(self.plan, records, rng)

    def read(self, table: pd.DataFrame, noise: Noises) -> list[np.ndarray]:
        """Figures stand in the order in which their noise is drawn."""
        flat, at, out = table.iloc[:, -1].to_numpy(), 0, []
        for _, handed in noise:
            out.append(flat[at : at + self.seen(handed).size].reshape(self.seen(handed).shape))
            at += out[-1].size
        assert at == len(flat), "every figure has noise of its own"
        return out

    def seen(self, handed: np.ndarray) -> np.ndarray:
        """What can be seen of the values that were handed out."""
        return handed // self.multiple


class Reports(Case):
    """One-hot reports of all records, added up."""

    def seen(self, handed: np.ndarray) -> np.ndarray:
        return handed.sum(axis=0)


class Counted(Case):
    """Counts of a network: its edges stand in a file of their own."""

    def released(self, rng: Given, folder: Path) -> pd.DataFrame:
        return Bench(folder).release(self.plan, self.table, rng, edges=met(self.table)).table

    def drawn(self, rng: Given, table: pd.DataFrame | None = None) -> pd.DataFrame:
        table = self.table if table is None else table
        place = {person: k for k, person in enumerate(table["person"])}
        ends = np.sort(met(table).map(place.get).to_numpy(), axis=1)
        records = self.plan.dictionary.check(table)
        records[NEIGHBOURS] = [ends[ends[:, 0] == k, 1].astype(np.int32) for k in range(len(table))]
        return self.plan.release.draw(self.plan, self.plan.release.measure(self.plan, records, Given(1)), rng)


def met(table: pd.DataFrame) -> pd.DataFrame:
    """A ring of these persons, and a chord in every third place: nobody has more contacts than a cap."""
    persons = list(table["person"])
    pairs = [(k, k + 1) for k in range(-1, len(persons) - 1)] + [(k, k - 2) for k in range(0, len(persons), 3)]
    return pd.DataFrame([(persons[a], persons[b]) for a, b in pairs], columns=["from", "to"])


class Lines(Case):
    """Directions, and a line per record, which is put back where its record stands."""

    def read(self, table: pd.DataFrame, noise: Noises) -> list[np.ndarray]:
        slicing = self.plan.release.slicing(self.plan)
        directions, lines = self.plan.release.projections(self.plan, table)
        order = Given(1).generator.permutation(len(lines))
        steps = np.rint(lines / slicing.grid).astype(np.int64)
        return [
            np.rint(directions / slicing.direction_step).astype(np.int64) // self.multiple,
            steps[np.argsort(order)],
        ]


def private(release: Any, dictionary: Dictionary) -> StudyPlan:
    return study(release, dictionary, posture="private")


def charged(plan: StudyPlan) -> list[Any]:
    event = plan.release.event(plan)
    return list(event.events) if isinstance(event, Composition) else [event]


def tables() -> Case:
    plan = private(TablesPlan(epsilon=0.7, bins={"age": 5}), MIXED)
    (event,) = charged(plan)
    return Case(plan, mixed(), {("gaussian", event.sigma): plan.release.tables(plan).cells})


def histograms() -> Case:
    plan = private(DensitiesPlan(densities=[["x"], ["x", "y"]], epsilon=0.7, level=3), NUMBERS)
    (event,) = charged(plan)
    return Case(plan, numbers(), {("laplace", event.scale): 8 + 64})


def smooth(order: int) -> Callable[[], Case]:
    def case() -> Case:
        release = DensitiesPlan(densities=[["x"], ["x", "y"]], epsilon=0.7, basis=f"daubechies{order}", level=3)
        plan = private(release, NUMBERS)
        one, two = charged(plan)
        return Case(plan, numbers(), {("laplace", one.scale): 8, ("laplace", two.scale): 64})

    return case


def local() -> Case:
    plan = private(DensitiesPlan(densities=[["x"]], epsilon=0.7, trust="local", level=6), NUMBERS)
    (event,) = charged(plan)
    assert isinstance(event, Laplace), "at this price each report is noised, cell by cell"
    return Reports(plan, numbers(), {("laplace", event.scale): 64 * N})


def noises(plan: StudyPlan) -> list[float]:
    """The noise of each block of moments: its length over its part of what all blocks cost together."""
    spec = plan.release.spec(1e-6)
    if spec.sensitivity == "blocks":
        return [event.sigma for event in charged(plan)]
    (event,) = charged(plan)
    p = len(spec.covariates)
    lengths = (math.sqrt(2 * (p + 1)), 1.0, math.sqrt(4 * (p * p // 4) + p * 2.0**-19), 1.0)
    mu = event.sensitivity / event.sigma
    return [
        length / (mu * math.sqrt(share)) for length, share in zip(lengths, spec.split.parts, strict=True) if share > 0
    ]


def blocks(reach: float = 11.0, declared: tuple[str, ...] = ("male",), sensitivity: str = "blocks") -> Case:
    """A reader takes no moments beyond twelve scales of the noise."""
    release = MomentsPlan(
        epsilon=0.9,
        outcome="binary",
        responses=("died",),
        covariates=("age", "male", "stage"),
        declared=declared,
        bins=8,
        sensitivity=sensitivity,
    )
    plan = private(release, MIXED)
    sizes = (8 + 2 + 4 + 2, 2 * 4, 6, 1)
    scales = {("gaussian", sigma): size for sigma, size in zip(noises(plan), sizes, strict=False)}
    return Case(plan, mixed(400), scales, reach=reach, whole=reach < 12)


def slices() -> Case:
    plan = private(SlicingPlan(sigma=5.0, slices=20), MIXED)
    slicing = plan.release.slicing(plan)
    coarse = round(slicing.grid / (slicing.direction_step * ROW_STEP))
    u = math.nextafter(1 / math.sqrt(slicing.d), 0)  # a shorter direction costs less
    scales = {("gaussian", u): slicing.d * 20, ("gaussian", charged(plan)[0].sigma): N * 20}
    return Lines(plan, mixed(), scales, multiple=coarse, whole=False)


def network() -> Case:
    plan = private(NetworkCountsPlan(epsilon=2.0, most_contacts=8, by=("stage",)), MIXED)
    scales: dict[tuple[str, float], int] = {}
    for event, many in zip(charged(plan), (1, 1, 1, 1, 1, 1, 1, 1, 4), strict=True):
        key = ("laplace", event.scale)
        scales[key] = scales.get(key, 0) + many
    return Counted(plan, mixed(), scales)


def cross_products() -> Case:
    columns, typical = ("age", "male", "died"), {"age": (50, 15)}
    plan = private(CrossProductsPlan(epsilon=0.7, columns=columns, typical=typical), MIXED)
    (event,) = charged(plan)
    return Case(plan, mixed(), {("gaussian", event.sigma): 3, ("gaussian", event.sigma / math.sqrt(2)): 6})


FIGURES: dict[str, Callable[[], Case]] = {
    "tables": tables,
    "histograms": histograms,
    "smooth densities, order 2": smooth(2),
    "smooth densities, order 4": smooth(4),
    "reports of each record": local,
    "moments": blocks,
    "cross-products": cross_products,
    "moments, further out": lambda: blocks(30.0, declared=()),
    "moments, charged together": lambda: blocks(sensitivity="joint"),
    "slicing": slices,
    "counts of a network": network,
}
figures = pytest.mark.parametrize("name", FIGURES)


@figures
def test_every_released_figure_carries_the_very_value_that_the_sampler_handed_out(name, tmp_path):
    """Request by request, because later ones may look through what the earlier ones released."""
    case = FIGURES[name]()
    values = far(case.reach, case.multiple)
    source = Given(1, values)
    before = case.read(case.released(source, tmp_path), source.noise())
    for at, (one, handed) in enumerate(source.noise()):
        # The same but for one request, which is silent: figures before it stay, its own lose what was handed out.
        less = Given(1, lambda each, one=one: (silent if each.place == one.place else values)(each))
        after = case.read(case.drawn(less), source.noise())
        for k in range(at):
            np.testing.assert_array_equal(after[k], before[k])
        np.testing.assert_array_equal(before[at] - after[at], case.seen(handed))
        assert np.abs(handed).max() > 0.99 * case.reach * one.scale / one.grid - case.multiple


@figures
def test_the_noise_that_is_asked_for_is_what_the_event_is_charged_by(name):
    case = FIGURES[name]()
    source = Given(1)
    case.drawn(source)
    asked: dict[tuple[str, float], int] = {}
    for one in source.asked:
        asked[one.law, one.scale] = asked.get((one.law, one.scale), 0) + one.size
    assert {(law, f"{scale:.12g}"): many for (law, scale), many in asked.items()} == {
        (law, f"{scale:.12g}"): many for (law, scale), many in case.scales.items()
    }


def corners(case: Case) -> list[pd.DataFrame]:
    """The table with its first record at each corner of what the dictionary allows."""
    columns = case.plan.dictionary.released
    ends = [column.levels if column.levels else column.span for column in columns]
    out = []
    for corner in itertools.product(*((values[0], values[-1]) for values in ends)):
        table = case.table.copy()
        for column, value in zip(columns, corner, strict=True):
            table[column.name] = table[column.name].astype(type(value))
            table.loc[0, column.name] = value
        out.append(table)
    return out


@pytest.mark.parametrize(
    "name",
    ["tables", "histograms", "smooth densities, order 2", "smooth densities, order 4", "reports of each record"],
)
def test_exchanging_a_record_moves_the_figures_by_no_more_than_is_charged_and_the_worst_one_by_as_much(name):
    case = FIGURES[name]()
    # Corners for what counts in cells; places all over the range for what overlaps.
    worlds = corners(case)
    if name.startswith("smooth"):
        worlds = [case.table.assign(x=np.r_[a, case.table.x[1:]], y=np.r_[a, case.table.y[1:]]) for a in PLACES]
    sums = []
    for world in worlds:
        source = Given(1, silent)
        sums.append(case.read(case.drawn(source, world), source.noise()))
    for at, event in enumerate(charged(case.plan)):
        parts = [
            np.concatenate([part.ravel() for part in one]) if len(charged(case.plan)) == 1 else one[at].ravel()
            for one in sums
        ]
        order = 2 if isinstance(event, Gaussian) else 1
        claim = event.sensitivity * getattr(event, "coordinates", 1)
        worst = max(np.linalg.norm(one - other, order) for one, other in itertools.combinations(parts, 2))
        assert (0.7 if name.startswith("smooth") else 1 - 1e-12) * claim <= worst <= claim


@pytest.mark.parametrize("sensitivity", ["blocks", "joint"])
def test_exchanging_a_record_moves_moments_by_no_more_than_is_charged_and_the_worst_one_by_nearly_as_much(sensitivity):
    """The lens is made of released histograms: noise makes them the same in all worlds."""
    case = blocks(declared=(), sensitivity=sensitivity)
    sums: list[list[np.ndarray]] = [[], [], []]
    fixed = None
    for world in corners(case):
        source = Given(1, silent)
        counts = case.read(case.drawn(source, world), source.noise())[:4]
        fixed = counts if fixed is None else fixed
        lift = [target - own for target, own in zip(fixed, counts, strict=True)]
        source = Given(1, lambda each, lift=lift: lift[each.place] if each.place < 4 else silent(each))
        *_, inner, products = case.read(case.drawn(source, world), source.noise())
        for block, part in zip(sums, (np.concatenate([one.ravel() for one in counts]), inner, products), strict=True):
            block.append(part.ravel())
    steps = moments_spec.grids_of(case.plan.release.spec(1e-6))
    if sensitivity == "joint":
        (event,) = charged(case.plan)
        pairs = itertools.combinations(range(len(sums[0])), 2)
        # The noise that the mechanism draws, not what follows from the charge: that is held against it here.
        own = [moments_spec.sigma_of(case.plan.release.spec(1e-6), block) for block in range(3)]
        parts = list(zip(sums, steps, own, strict=True))
        # Squares add up over the blocks, each in the unit of its own noise.
        worst = max(
            math.hypot(*(step * np.linalg.norm(block[a] - block[b]) / sigma for block, step, sigma in parts))
            for a, b in pairs
        )
        assert 0.9 * event.sensitivity / event.sigma < worst <= event.sensitivity / event.sigma
        return
    for block, event, step in zip(sums, charged(case.plan), steps, strict=True):
        worst = step * max(np.linalg.norm(one - other) for one, other in itertools.combinations(block, 2))
        assert 0.93 * event.sensitivity < worst <= event.sensitivity


def test_exchanging_a_record_moves_its_line_by_no_more_than_is_charged():
    """Directions that show a row entry by entry, and lines without noise: the rows, as they are noised."""
    case = slices()
    slicing = case.plan.release.slicing(case.plan)
    bare = np.zeros((slicing.d, slicing.slices), dtype=np.int64)
    bare[:, : slicing.d] = np.eye(slicing.d) / slicing.direction_step
    lines = []
    for world in corners(case):
        source = Given(1, lambda each: bare if each.place == 0 else silent(each))
        lines.append(case.read(case.drawn(source, world), source.noise())[1] * slicing.grid)
    apart = [one - other for one, other in itertools.combinations(lines, 2)]
    assert not any(each[1:].any() for each in apart)
    worst = max(np.linalg.norm(each[0]) for each in apart)
    # Released sums are on a grid of a thousandth of the noise.
    assert slicing.distance * (1 - 2e-3) - slicing.grid < worst < slicing.distance + slicing.grid


@pytest.mark.parametrize("seed", [1, 2])
def test_moments_look_at_records_through_nothing_but_what_the_released_figures_say(seed):
    """The reader makes the lens of the released histograms, and where the score looks of the blocks before it. Sums of
    the records through that are what the site released, less the noise: it has looked through no other."""
    case = blocks()
    source = Given(seed, far(2.0))
    checked = case.plan.dictionary.check(mixed(300, seed))
    table = case.plan.release.draw(case.plan, checked, source)
    release, design = case.plan.release.release(case.plan, table, 300), case.plan.release.design(case.plan)
    x, y = design.matrices(checked)
    lens = design.lens(release)
    inner, products, score = (handed for _, handed in source.noise()[4:])
    np.testing.assert_array_equal(release.moments - inner, lens.moment_steps(x, y).sum(axis=0))
    np.testing.assert_array_equal(release.products - products, moments.product_steps(lens.wide_steps(x)))
    rows = pilot(release, design).rows(x, y)
    np.testing.assert_array_equal(release.score - score, moments.score_steps(rows, "influence").sum(axis=0))


# -- rows ---------------------------------------------------------------------------------------------------------
WIDE = 100.0
"""Latents of a record at a bound: in their units, thirty standard deviations of the noise stay within the bounds."""


@pytest.fixture
def wide(monkeypatch):
    """A public flow x = z / 100, through which a released row tells its noisy latent to the last step."""
    flow = AffineAutoregressiveFlow(mean=np.zeros(2), scale=np.eye(2) / WIDE)
    monkeypatch.setattr(fitting, "public_flow", lambda plan, encoder: flow)
    monkeypatch.setattr(drawing, "_attack", lambda **_: {"sentences": ["None."]})


def noisy_latents(plan: StudyPlan, table: pd.DataFrame, values: Any, folder: Path) -> tuple[np.ndarray, Given]:
    """Released rows in the order of their persons, in steps of the noise."""
    source, bench = Given(1, values), Bench(folder)
    made = bench.release(plan, table, source)
    steps = made.table[["x", "y"]].to_numpy() * WIDE / grid_for(plan.release.event(plan).sigma)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-5)
    out = np.empty(steps.shape, dtype=np.int64)
    out[bench.places(made)] = np.rint(steps)
    return out, source


@pytest.mark.parametrize("w", [0.0, 0.02, 0.9])
def test_every_coordinate_of_every_row_carries_the_very_value_that_the_sampler_handed_out(wide, tmp_path, w):
    plan = study(LatentNoisePlan(w=w, radius=2.0), NUMBERS, posture="public")
    loud, source = noisy_latents(plan, numbers(), far(), tmp_path / "loud")
    quiet, _ = noisy_latents(plan, numbers(), silent, tmp_path / "quiet")
    ((asked, handed),) = source.noise()
    assert (asked.law, asked.scale, asked.shape) == ("gaussian", plan.release.event(plan).sigma, (N, 2))
    np.testing.assert_array_equal(loud - quiet, handed)
    assert np.abs(handed).max() == int(30 * asked.scale / asked.grid)


def test_exchanging_a_record_moves_its_row_by_the_diameter_and_no_other_at_all(wide, tmp_path):
    plan = study(LatentNoisePlan(w=0.3, radius=1.5), NUMBERS, posture="public")
    event = plan.release.event(plan)
    table = numbers()
    rows = []
    for end in (-0.8, 0.8):
        table.loc[7, ["x", "y"]] = end
        rows.append(noisy_latents(plan, table, silent, tmp_path / f"{end}")[0] * grid_for(event.sigma))
    apart = np.linalg.norm(rows[1] - rows[0], axis=1)
    assert np.flatnonzero(apart).tolist() == [7]
    assert 0.998 * event.sensitivity < apart[7] <= event.sensitivity


# -- training with noise ------------------------------------------------------------------------------------------
ONE = Dictionary(name="one", version=1, columns=(Column(name="x", kind="continuous", lower=-1, upper=1),))
SMALL = Training(flows=1, hidden=4)


def trained(private: PrivateTraining, x: np.ndarray, values: Any, monkeypatch: Any) -> tuple[list[np.ndarray], Given]:
    """What each step of a planned training hands to the optimiser, times the expected sample: sums over records."""
    plan = study(LatentNoisePlan(w=0.1), ONE, posture="private", private=private, training=SMALL)
    steps: list[np.ndarray] = []
    used = private_flow.start(1, SMALL, 0).used
    step = private_flow.Adam.step
    with monkeypatch.context() as patched:
        patched.setattr(
            private_flow.Adam, "step", lambda self, g, rate: (steps.append(g[0, used].copy()), step(self, g, rate))
        )
        source = Given(1, values)
        fitting.fit(plan, Encoder(dictionary=ONE), x, None, source, lambda share: None)
    return [one * (private.rate * len(x)) for one in steps], source


def answered(private: PrivateTraining, x: np.ndarray, values: Any, monkeypatch: Any) -> tuple[list[np.ndarray], Given]:
    """The same of a round of federated training: by how much the weights that a site sends differ from those it got."""
    federated = Federated(
        rounds=1,
        local_steps=private.steps,
        rate=private.rate,
        noise_multiplier=private.noise_multiplier,
        clip=private.clip,
        step_size=2.0**-20,
        strategy="fedavg",
    )
    plan: Any = SimpleNamespace(federated=federated, training=SMALL)
    shape, source = Shape.of(1, SMALL), Given(1, values)
    start = pack(private_flow.start(1, SMALL, 7).layers(), shape)
    end = federation.local_round(plan, shape, start, 1, x, source)
    return [(start - end) / federated.local_step(1) * (private.rate * len(x))], source


@pytest.mark.parametrize("way", [trained, answered])
def test_every_weight_of_every_training_step_carries_the_very_value_that_the_sampler_handed_out(way, monkeypatch):
    """Steps that sample nobody are noise alone. Each portion that was drawn is used, and each once."""
    private = PrivateTraining(rate=1e-12, noise_multiplier=1.3, steps=3 if way is trained else 1, clip=0.6)
    steps, source = way(private, np.zeros((50, 1)), far(), monkeypatch)
    ((asked, handed),) = source.noise()
    assert (asked.law, asked.scale) == ("gaussian", 1.3 * 0.6)
    assert asked.shape[0] == private.steps
    seen = np.array(steps) / asked.grid
    np.testing.assert_allclose(seen, np.rint(seen), atol=0.05)
    if way is answered:  # weights are sent in an order of their own
        seen, handed = np.sort(seen), np.sort(handed)
    np.testing.assert_array_equal(sorted(np.rint(seen).tolist()), sorted(handed.astype(float).tolist()))


@pytest.mark.parametrize("way", [trained, answered])
@pytest.mark.parametrize("clip", [0.02, 0.3])
def test_exchanging_a_record_moves_a_training_step_by_less_than_twice_the_planned_clip_and_by_nearly_that(
    way, clip, monkeypatch
):
    """Noise is charged against twice the clip of the plan, whatever clip the step really has."""
    private = PrivateTraining(rate=1.0, noise_multiplier=1.0, steps=1, clip=clip)
    rest = np.random.default_rng(5).uniform(-0.5, 0.5, (20, 1))
    sums = []
    for end in (0.9, -0.9, 0.5, -0.5):
        (total,), source = way(private, np.vstack([rest, [[end]]]), silent, monkeypatch)
        assert [(one.law, one.scale) for one in source.asked] == [("chosen", 1.0), ("gaussian", clip)]
        sums.append(total)
    worst = max(np.linalg.norm(one - other) for one, other in itertools.combinations(sums, 2))
    assert 1.9 * clip < worst <= 2 * clip * (1 - 2.0**-21)


@pytest.mark.parametrize("way", [trained, answered])
def test_each_training_step_samples_everybody_anew_at_the_planned_rate(way, monkeypatch):
    private = PrivateTraining(rate=0.3, noise_multiplier=1.0, steps=4, clip=0.3)
    _, source = way(private, np.zeros((50, 1)), silent, monkeypatch)
    samples = [
        (one.scale, one.shape, drawn)
        for one, drawn in zip(source.asked, source.drawn, strict=True)
        if one.law == "chosen"
    ]
    assert [(rate, shape) for rate, shape, _ in samples] == [(0.3, (50,))] * 4
    assert len({drawn.tobytes() for *_, drawn in samples}) == 4


# -- networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [{}, {"directed": True}, {"by": "ward"}], ids=str)
def test_every_rank_of_every_released_person_carries_the_very_value_that_the_sampler_handed_out(
    tmp_path, monkeypatch, told
):
    """Ranks meet their noise in one place, before the smooth map that everything after it is a function of."""
    plan = contacts_study(GrandPlan(epsilon=2.0, d=2, **told))
    seen: list[tuple[np.ndarray, float]] = []
    smoothed = grand.smoothed_uniform
    monkeypatch.setattr(grand, "smoothed_uniform", lambda t, scale: (seen.append((t, scale)), smoothed(t, scale))[1])
    nodes, edges = contacts()
    source, quiet = Given(1, far()), Given(1, silent)
    for each, rng in (("loud", source), ("quiet", quiet)):
        made = Bench(tmp_path / each).release(plan, nodes, rng, edges=edges)
    (loud, scale), (bare, _) = seen[0], seen[1]
    assert len(seen) == 2
    noise = source.noise()
    handed = np.array([drawn * one.grid for one, drawn in noise])
    np.testing.assert_array_equal(loud - bare, handed)
    assert bare.min() == 0
    assert bare.max() == 1
    # A name of its own for every released person, and the noise that is left of ε when the label is told.
    assert len({one.name for one, _ in noise}) == len(noise) == made.receipt.n
    label = plan.release.parts()[0] if {"communities", "by"} & set(told) else 0.0
    p = handed.shape[1]
    assert {(one.law, one.scale, one.shape) for one, _ in noise} == {("laplace", scale, (p,))}
    assert (1 - 1e-9) * 2.0 <= label + p / scale <= 2.0 * (1 + 1e-12)


# -- the order of rows --------------------------------------------------------------------------------------------
def sliced_ages(table: pd.DataFrame, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lines undone, as far as they can be: the entry of the age."""
    case = slices()
    made = case.plan.release.draw(case.plan, case.plan.dictionary.check(table), Given(seed, shy))
    directions, lines = case.plan.release.projections(case.plan, made)
    code = case.plan.release.code(case.plan)
    age = next(block.at for block in code.blocks if block.column.name == "age")
    return (lines @ np.linalg.pinv(directions))[:, age], table["age"].to_numpy()


def shy(asked: Asked) -> Any:
    """Directions as they are drawn, and a hundredth of the noise."""
    generator = np.random.default_rng(asked.place)
    return np.rint(generator.normal(size=asked.shape) * asked.scale / asked.grid / (100 if asked.place else 1)).astype(
        int
    )


def latent_ages(table: pd.DataFrame, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    plan = study(LatentNoisePlan(w=0.9, radius=6.0), MIXED, posture="public")
    return Bench(folder).release(plan, table, Given(seed, silent)).table["age"].to_numpy(), table["age"].to_numpy()


def copied_ages(table: pd.DataFrame, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A second wave that draws the older half, and copies the rows of the younger."""
    plan = study(LatentNoisePlan(w=0.9, radius=6.0), MIXED, posture="public", returning="frozen", waves=2)
    bench, half = Bench(folder), len(table) // 2
    bench.deliver(bench.release(plan, table[:half], Given(seed, silent)))
    made = bench.release(plan, table, Given(seed + 50, silent), wave=2)
    assert made.receipt.n == len(table)
    return made.table["age"].to_numpy(), table["age"].to_numpy()


def network_ages(table: pd.DataFrame, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, edges = contacts()
    plan = contacts_study(GrandPlan(epsilon=1000.0, d=2))
    if table["age"].is_monotonic_decreasing:
        nodes = nodes[::-1].reset_index(drop=True)
    bench = Bench(folder)
    made = bench.release(plan, nodes, Given(seed, silent), edges=edges)
    return made.table["age"].to_numpy(dtype=float), nodes["age"].to_numpy()[np.sort(bench.places(made))]


@pytest.mark.parametrize("ages", [latent_ages, copied_ages, sliced_ages, network_ages])
def test_released_rows_stand_in_no_order_of_their_persons(ages, tmp_path, monkeypatch):
    """Persons come in the order of age. Released ages, nearly without noise, are the table's, and in no order."""
    monkeypatch.setattr(drawing, "_attack", lambda **_: {"sentences": ["None."]})
    found = {}
    for turned in (False, True):
        table = mixed(150)
        table = table[::-1].reset_index(drop=True) if turned else table
        told, own = ages(table, tmp_path / f"{turned}", 1)
        place = np.arange(len(told))
        assert stats.spearmanr(np.sort(told), np.sort(own)).statistic > 0.99, "they are the persons' ages"
        assert stats.spearmanr(told, own).statistic < 5.5 / math.sqrt(len(told)), "and not beside their persons"
        assert abs(stats.spearmanr(told, place).statistic) < 5.5 / math.sqrt(len(told))
        found[turned] = told
    # The order follows from the source alone: with persons turned round, the ages are, place by place.
    assert stats.spearmanr(found[False], -found[True]).statistic > 0.8
