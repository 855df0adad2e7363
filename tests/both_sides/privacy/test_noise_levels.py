"""Level 1: the noise that is really drawn has the scale that its event claims, found at 10 % with 10,000 draws.

The input is known, so the noise is known: what comes out minus what went in. It is measured in units of the scale that
the *event* states, the one that ε is computed from, so that event and sampler cannot drift apart. For Gaussian noise
Σe²/σ² follows χ²(n), for Laplace noise 2Σ|e|/b follows χ²(2n). Two-sided at one in a million; every test is run a
second time with a wrong scale, and must fail then: a test that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.both_sides.noise import Scaled
from stage.mechanisms.ring import terms_of

from shared.base.randomness import Noise, seeded_rng
from shared.flows.base import Identity
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.mechanisms.cross_products.plan import noised as noised_products
from shared.mechanisms.densities.groups import Histogram
from shared.mechanisms.densities.local import LocalCounts
from shared.mechanisms.densities.noise import Grid
from shared.mechanisms.densities.scaling import Basis, Coefficients
from shared.mechanisms.grand.noise import NodePrivate
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.mechanisms.moments import spec as moments_spec
from shared.mechanisms.moments.draw import noised
from shared.mechanisms.moments.spec import MomentsSpec
from shared.mechanisms.network_counts.plan import NetworkCountsPlan
from shared.mechanisms.network_counts.plan import noised as noised_counts
from shared.mechanisms.secure_sum.site import noise_share
from shared.mechanisms.slicing.noise import SlicingMechanism, noise_for
from shared.mechanisms.tables.noise import CountTables, attributes, sensitivity
from shared.plans.dictionary import Column, Dictionary
from shared.plans.federated import Federated, Shape
from shared.plans.plan import PrivateTraining, Training
from shared.privacy import accountant as privacy
from shared.privacy import calibration, events
from shared.privacy.accountant import Composition, Event, Gaussian, Laplace, SubsampledGaussian
from shared.privacy.grids import grid_for
from tests.stage.house.sources import production

ALPHA = 1e-6
BAR = 10_000
NIGHTLY = 1_000_000


@dataclass(frozen=True)
class Drawn:
    """Noise as it came out, the scale that its event claims, and the law."""

    noise: np.ndarray
    scale: float
    law: str

    def statistic(self, claimed: float = 1.0) -> tuple[float, int]:
        """The statistic and its degrees of freedom, if the scale were `claimed` times the event's."""
        e = self.noise.ravel() / (self.scale * claimed)
        if self.law == "gaussian":
            return float((e**2).sum()), e.size
        return float(2 * np.abs(e).sum()), 2 * e.size

    def p(self, claimed: float = 1.0) -> float:
        """Two-sided p-value."""
        value, df = self.statistic(claimed)
        return float(2 * min(stats.chi2.sf(value, df), stats.chi2.cdf(value, df)))


def latent_noise(w: float) -> Callable[[int, Any], Drawn]:
    """The whole mechanism, records inside the ball; the signal is computed here, by another formula."""

    def draw(n: int, rng: Any) -> Drawn:
        d = 5
        m = LatentNoise(flow=Identity(d=d), w=w, radius=4.0)
        x = np.random.default_rng(3).uniform(-1, 1, (n // d, d))
        event = m.event
        assert isinstance(event, Gaussian)
        return Drawn(m.release(x, rng) - x * w**0.5, event.sigma, "gaussian")

    return draw


def clipped_latent_noise(n: int, rng: Any) -> Drawn:
    """Records far outside the ball: the signal is the point of the ball that the event's sensitivity allows."""
    m = LatentNoise(flow=Identity(d=2), w=0.3, radius=1.5)
    event = m.event
    assert isinstance(event, Gaussian)
    x = np.tile([300.0, 400.0], (n // 2, 1))
    # Truncation on the grid is the only other difference, below a thousandth of the noise.
    return Drawn(m.release(x, rng) - np.array([0.6, 0.8]) * event.sensitivity / 2, event.sigma, "gaussian")


def pulled_in_latent_noise(n: int, rng: Any) -> Drawn:
    """Records twice as far out as the radius, pulled in to a quarter of it: what is left when lengths are put back."""
    m = LatentNoise(flow=Identity(d=2), w=0.3, radius=1.5, shrink=3.0)
    event = m.event
    assert isinstance(event, Gaussian)
    x = np.tile([1.8, 2.4], (n // 2, 1))
    # R (R/r)² is a quarter of R; the event's sensitivity is the whole diameter.
    return Drawn(
        m.unrestored(m.release(x, rng)) - np.array([0.6, 0.8]) * event.sensitivity / 8, event.sigma, "gaussian"
    )


def plain_gaussian(n: int, rng: Any) -> Drawn:
    event = calibration.calibrate(Gaussian, 1.0, 1e-6, sensitivity=0.7)
    grid = grid_for(event.sigma)
    return Drawn(rng.lattice_gaussian_steps(event.sigma, n, grid) * grid, event.sigma, "gaussian")


def plain_laplace(n: int, rng: Any) -> Drawn:
    event = calibration.calibrate(Laplace, 0.5, 0.0, sensitivity=2.0, coordinates=3)
    grid = grid_for(event.scale)
    return Drawn(rng.lattice_laplace_steps(event.scale, n, grid) * grid, event.scale, "laplace")


def training_step(n: int, rng: Any) -> Drawn:
    """A step of DP-SGD: what is added to a clipped sum, against the event that posture ``private`` charges."""
    from shared.mechanisms.latent_noise.plan import _training
    from site_agent.models.private_flow import noisy

    plan = SimpleNamespace(private=PrivateTraining(rate=0.1, noise_multiplier=1.3, steps=7, clip=0.6))
    event = _training(plan)
    assert isinstance(event, SubsampledGaussian)
    total = np.random.default_rng(4).normal(size=n)
    return Drawn(noisy(total, plan.private, rng) - total, event.noise_multiplier * plan.private.clip, "gaussian")


def federated_round(n: int, rng: Any) -> Drawn:
    """What a site sends in a round, when no record was sampled: against the event that the whole training charges."""
    from site_agent.training.federation import local_round

    federated = Federated(
        rounds=5, local_steps=2, rate=1e-9, noise_multiplier=1.4, clip=0.6, step_size=1e-9, strategy="fedavg"
    )
    event = federated.event
    assert isinstance(event, SubsampledGaussian)
    assert event.steps == 10
    plan = SimpleNamespace(federated=federated, training=Training(flows=4, hidden=64))
    shape = Shape.of(5, plan.training)
    start, y, noise = np.zeros(shape.weights), np.zeros((100, 5)), []
    while sum(map(len, noise)) < n:
        noise.append(local_round(plan, shape, start, 1, y, rng) - start)
    # Two steps, each divided by the expected sample of 1e-7 records and multiplied by the step size.
    scale = event.noise_multiplier * federated.clip * math.sqrt(2) * 1e-9 / 1e-7
    return Drawn(np.concatenate(noise)[:n], scale, "gaussian")


def noisy_tables(n: int, rng: Any) -> Drawn:
    """Every count of two columns crossed, against the true counts, at the noise that a small price asks for."""
    side = math.ceil(math.sqrt(n))
    columns = tuple(Column(name=name, kind="continuous", lower=0, upper=1) for name in ("a", "b"))
    found = attributes(Dictionary(name="square", version=1, columns=columns), side)
    event = calibration.calibrate(Gaussian, 0.2, 1e-6, sensitivity=sensitivity(3))
    m = CountTables(attributes=found, sigma=event.sigma)
    records = pd.DataFrame(np.random.default_rng(5).random((1000, 2)), columns=["a", "b"])
    pairs = zip(m.release(records, rng), m.counts(records), strict=True)
    assert m.event == event
    noise = np.concatenate([np.ravel(drawn - true) for drawn, true in pairs])[::-1][:n]
    return Drawn(noise.astype(np.float64), event.sigma, "gaussian")


def shares_of_a_sum(n: int, rng: Any) -> Drawn:
    """Each site's share of the noise of a secure sum, against what the price takes of it."""
    terms = terms_of(coordinates=100, sensitivity=20.0)
    noise = np.concatenate([noise_share(terms, rng) * terms.grid for _ in range(math.ceil(n / 100))])[:n]
    return Drawn(noise.astype(np.float64), terms.share_sigma, "gaussian")


def sliced_rows(n: int, rng: Any) -> Drawn:
    """Every noisy sum of a hundred rows, against the sums along the released directions, as NumPy has them."""
    m = SlicingMechanism(d=5, slices=100, sigma=noise_for(2.0, 1e-6, d=5, slices=100, distance=2.0))
    x = np.random.default_rng(6).uniform(-0.4, 0.4, (n // 100, 5))
    directions, lines = m.release(x, rng)
    charged = m.event.events[0]
    assert isinstance(charged, privacy.Slicing)
    # A row's own rounding to its grid is the only other difference, below a ten-thousandth of the noise.
    return Drawn(lines - x @ directions, charged.sigma, "gaussian")


def noisy_densities(n: int, rng: Any) -> Drawn:
    """Every count of two columns' grid, against the true counts, at the noise that a small price asks for."""
    columns = tuple(Column(name=name, kind="continuous", lower=0, upper=1) for name in ("a", "b"))
    event = calibration.calibrate(Laplace, 0.01, 0.0, sensitivity=1.0, coordinates=2)
    m = Histogram(grid=Grid(columns=columns, level=math.ceil(math.log2(n) / 2)), scale=event.scale)
    assert m.event == event
    records = pd.DataFrame(np.random.default_rng(5).random((1000, 2)), columns=["a", "b"])
    noise = (m.draw(records, rng) - m.grid.counts(records))[::-1][:n]
    return Drawn(noise.astype(np.float64), event.scale, "laplace")


def smooth_densities(n: int, rng: Any) -> Drawn:
    """Every noisy sum of a three-column basis, against the true sums; its scale is in steps of 2⁻²⁴."""
    basis = Basis(order=2, level=5 if n <= BAR else 7)
    sensitivity = Coefficients(basis=basis, columns=3, scale=1.0).sensitivity
    event = calibration.calibrate(Laplace, 8.0, 0.0, sensitivity=float(sensitivity))
    m = Coefficients(basis=basis, columns=3, scale=event.scale)
    assert m.event == event
    points = np.random.default_rng(5).random((50, 3))
    return Drawn((m.release(points, rng) - m.sums(points)).ravel()[:n].astype(np.float64), event.scale, "laplace")


def local_reports(n: int, rng: Any) -> Drawn:
    """Every cell of one record's report under local privacy, against its true cell."""
    m = LocalCounts(
        grid=Grid(columns=(Column(name="a", kind="continuous", lower=0, upper=1),), level=math.ceil(math.log2(n))),
        epsilon=0.01,
    )
    event = m.event
    assert isinstance(event, Laplace)
    assert privacy.pure_epsilon(event) == pytest.approx(0.01)
    noise = m.report(np.zeros(1, dtype=np.int64), rng)[1 : n + 1]
    return Drawn(noise.astype(np.float64), event.scale, "laplace")


def node_coordinates(n: int, rng: Any) -> Drawn:
    """Every released node's noise, in ranks, at the scale by which its event divides."""
    m = NodePrivate(epsilon=3.0, p=100)
    noise = m.noise([str(name) for name in range(math.ceil(n / 100))], rng).ravel()[:n]
    return Drawn(noise, m.event.scale / m.event.sensitivity, "laplace")


def moments_block(block: int) -> Callable[[int, Any], Drawn]:
    """One block of a moments release; from its noise the module proves that all of them cost the event."""

    def draw(n: int, rng: Any) -> Drawn:
        spec = MomentsSpec(
            outcome="binary", responses=("died",), covariates=("a", "b", "c"), declared=("b",), epsilon=1.0, delta=1e-6
        )
        share = (spec.split.histograms, spec.split.moments, spec.split.products, spec.split.score)[block]
        length = (math.sqrt(8), 1.0, math.sqrt(8 + 3 * 2.0**-19), 1.0)[block]
        sigma = length / (moments_spec.event(spec).mu * math.sqrt(share))
        sums = np.random.default_rng(5).integers(-(10**9), 10**9, n)
        # Counts; steps of which 2²² are the diameter; products of two numbers of at most 2¹⁰; steps again.
        unit = (1.0, 2.0**-22, 2.0**-20, 2.0**-22)[block]
        return Drawn((noised(spec, block, sums, rng) - sums) * unit, sigma, "gaussian")

    return draw


NETWORK_BLOCKS = (
    "edges",
    "fewer edges",
    "paths",
    "fewer paths",
    "triangles",
    "fewer triangles",
    "alike",
    "apart",
    "ends",
)


def network_counts(block: int) -> Callable[[int, Any], Drawn]:
    """One block of a plan's counts, whose event stands in the composition that is charged."""

    def draw(n: int, rng: Any) -> Drawn:
        release = NetworkCountsPlan(epsilon=3.0, most_contacts=40, by=("ward",))
        columns = (Column(name="ward", kind="nominal", levels=("a", "b", "c")),)
        plan: Any = SimpleNamespace(dictionary=Dictionary(name="mini", version=1, columns=columns))
        event = release.event(plan).events[block]
        count = release.counts(plan)[block]
        return Drawn(noised_counts(count, np.zeros(n, dtype=np.int64), rng), event.scale, "laplace")

    return draw


def cross_products(square: bool) -> Callable[[int, Any], Drawn]:
    """Sums of squares, or of products, which count √2 times in the distance that is charged."""

    def draw(n: int, rng: Any) -> Drawn:
        release = CrossProductsPlan(epsilon=1.0, columns=("a", "b"), typical={"a": (0, 1), "b": (0, 1)})
        plan: Any = SimpleNamespace(budget=SimpleNamespace(delta=1e-6))
        event = release.event(plan)
        sums = np.random.default_rng(5).integers(-(10**12), 10**12, n)
        steps = noised_products(sums, np.full(n, square), event.sigma, rng) - sums
        return Drawn(steps * 2.0**-20 * (1.0 if square else math.sqrt(2)), event.sigma, "gaussian")

    return draw


MECHANISMS: dict[str, Callable[[int, Any], Drawn]] = {
    "latent noise, w = 0": latent_noise(0.0),
    "latent noise, w = 0.02": latent_noise(0.02),
    "latent noise, w = 0.5": latent_noise(0.5),
    "latent noise, w = 0.9": latent_noise(0.9),
    "latent noise, clipped": clipped_latent_noise,
    "latent noise, pulled in": pulled_in_latent_noise,
    "DP-SGD, one step": training_step,
    "federated training, one round": federated_round,
    "noisy tables": noisy_tables,
    "slicing": sliced_rows,
    "one share of a secure sum": shares_of_a_sum,
    "cross-products, squares": cross_products(True),
    "cross-products, products": cross_products(False),
    "noisy densities": noisy_densities,
    "smooth densities": smooth_densities,
    "local reports": local_reports,
    "coordinates of nodes": node_coordinates,
    **{f"network counts, {name}": network_counts(k) for k, name in enumerate(NETWORK_BLOCKS)},
    "moments, histograms": moments_block(0),
    "moments, moments": moments_block(1),
    "moments, products": moments_block(2),
    "moments, score": moments_block(3),
    "Gaussian": plain_gaussian,
    "Laplace": plain_laplace,
}
names = pytest.mark.parametrize("name", MECHANISMS)


@names
def test_ten_thousand_draws_have_the_scale_that_the_event_claims(name):
    drawn = MECHANISMS[name](BAR, seeded_rng(51))
    assert drawn.noise.size == BAR
    assert drawn.p() > ALPHA


@names
@pytest.mark.parametrize("claimed", [0.5, math.sqrt(0.5), 0.9, 1.1, math.sqrt(2), 2.0])
def test_a_claim_that_is_ten_percent_off_is_refuted(name, claimed):
    assert MECHANISMS[name](BAR, seeded_rng(52)).p(claimed) < ALPHA


@names
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1])
def test_noise_that_is_ten_percent_off_is_found_though_the_event_still_claims_the_same(name, factor):
    assert MECHANISMS[name](BAR, Scaled(factor, 53)).p() < ALPHA


@pytest.mark.parametrize(("law", "per_value"), [("gaussian", 1), ("laplace", 2)])
def test_the_test_has_the_power_to_find_ten_percent_and_rarely_cries_wolf(law, per_value):
    """Computed exactly from the χ² law: with 10,000 draws, power above 0.999 for 10 %; with a million, for 1 %."""
    for n, factor in ((BAR, 0.9), (BAR, 1.1), (NIGHTLY, 0.99), (NIGHTLY, 1.01)):
        df = n * per_value
        low, high = stats.chi2.ppf(ALPHA / 2, df), stats.chi2.isf(ALPHA / 2, df)
        stretch = factor**2 if law == "gaussian" else factor
        power = stats.chi2.cdf(low / stretch, df) + stats.chi2.sf(high / stretch, df)
        assert power > 0.999


@names
def test_the_shape_of_the_noise_is_the_law_and_not_only_its_scale(name):
    drawn = MECHANISMS[name](BAR, seeded_rng(54))
    laws = {"gaussian": stats.norm(scale=drawn.scale), "laplace": stats.laplace(scale=drawn.scale)}
    right = laws.pop(drawn.law)
    wrong = (
        stats.laplace(scale=drawn.scale / math.sqrt(2))
        if drawn.law == "gaussian"
        else stats.norm(scale=drawn.scale * math.sqrt(2))
    )
    values = drawn.noise.ravel()
    assert stats.kstest(values, right.cdf).pvalue > ALPHA
    assert stats.kstest(values, wrong.cdf).pvalue < ALPHA  # same variance, another law


@names
def test_no_noise_is_drawn_twice(name):
    """Between releases, rows, and columns of one source."""
    rng = seeded_rng(55)
    one, two = (MECHANISMS[name](BAR, rng).noise for _ in range(2))
    assert not np.array_equal(one, two)
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 5.5 / math.sqrt(BAR)
    half = one.ravel()[: BAR // 2], one.ravel()[BAR // 2 :]
    assert abs(np.corrcoef(*half)[0, 1]) < 5.5 / math.sqrt(BAR // 2)


@pytest.mark.soak
@names
def test_a_million_draws_have_the_scale_that_the_event_claims(name, record_property):
    drawn = MECHANISMS[name](NIGHTLY, seeded_rng(56))
    record_property("draws", drawn.noise.size)
    record_property("p", round(drawn.p(), 6))
    assert drawn.p() > ALPHA
    for claimed in (0.99, 1.01):
        assert drawn.p(claimed) < ALPHA


# -- nothing draws, and nothing is charged, that is not tested here -----------------------------------------------
DRAWN_IN = {
    "shared/mechanisms/cross_products/plan.py",
    "shared/mechanisms/densities/groups.py",
    "shared/mechanisms/grand/noise.py",
    "shared/mechanisms/latent_noise/noise.py",
    "shared/mechanisms/densities/local.py",
    "shared/mechanisms/densities/scaling.py",
    "shared/mechanisms/tables/noise.py",
    "shared/mechanisms/slicing/noise.py",
    "shared/mechanisms/moments/draw.py",
    "shared/mechanisms/network_counts/plan.py",
    "shared/mechanisms/secure_sum/influences.py",  # the level of events beside a sum
    "shared/mechanisms/secure_sum/site.py",
    "site_agent/models/private_flow.py",
}
"""Production files that draw noise; each has an entry in MECHANISMS."""
MADE_IN: dict[type[Event], set[str]] = {
    Gaussian: {
        "shared/mechanisms/latent_noise/noise.py",
        "shared/mechanisms/moments/spec.py",
        "shared/mechanisms/slicing/noise.py",
        "shared/mechanisms/tables/noise.py",
        "shared/mechanisms/latent_noise/plan.py",  # there to solve for w
        "shared/mechanisms/secure_sum/terms.py",
        "shared/mechanisms/secure_sum/plan.py",  # the level's alone, which test_secure_sum_plan holds to its share of ε
    },
    Laplace: {
        "shared/mechanisms/densities/groups.py",
        "shared/mechanisms/grand/noise.py",
        "shared/mechanisms/densities/local.py",
        "shared/mechanisms/densities/scaling.py",
        "shared/mechanisms/network_counts/plan.py",
    },
    # Choices have no scale: test_choices.py goes through all of them, and holds their odds against their price.
    privacy.RandomisedResponse: {
        "shared/mechanisms/grand/labels.py",
        "shared/mechanisms/densities/local.py",
        "shared/mechanisms/grand/plan.py",  # the event alone, which test_network_release holds to the mechanism's
    },
    privacy.ExponentialMechanism: {"shared/mechanisms/densities/quantiles.py"},
    # No level is claimed for it: tests/mechanisms/latent_noise/test_varied.py holds what it does and what it says.
    # The last three say that there is no guarantee where the flow alone is released: no noise is drawn.
    privacy.NoGuarantee: {
        "shared/mechanisms/latent_noise/noise.py",
        "shared/mechanisms/latent_noise/plan.py",
        "shared/releases/receipt.py",
        "site_agent/release/drawing.py",
    },
    SubsampledGaussian: {"shared/plans/federated.py", "shared/mechanisms/latent_noise/plan.py"},
    # The mechanism of that name is made beside its event and in the prescription.
    privacy.Slicing: {"shared/mechanisms/slicing/noise.py", "shared/mechanisms/slicing/plan.py"},
    # The site's own class of that name, which adds up charges, is made in the last three.
    Composition: {
        "shared/mechanisms/secure_sum/plan.py",  # pilot, level and sum: three of the above
        "shared/mechanisms/moments/spec.py",
        "shared/mechanisms/densities/quantiles.py",
        "shared/mechanisms/slicing/noise.py",
        "shared/mechanisms/densities/plan.py",
        "shared/mechanisms/grand/plan.py",
        "shared/mechanisms/network_counts/plan.py",
        "shared/mechanisms/latent_noise/plan.py",
        "shared/privacy/composition.py",
        "site_agent/decide/waves.py",
    },
}
"""Kinds of event that production code makes, and where; each is the scale of an entry in MECHANISMS."""


@cache
def called() -> dict[str, set[str]]:
    """Production files that call a function or method, by its name."""
    found: dict[str, set[str]] = {}
    for place, tree in production():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
                found.setdefault(name, set()).add(place)
    return found


def calls(*wanted: str) -> dict[str, set[str]]:
    """Production files that call a function or method of one of these names."""
    return {name: places for name, places in called().items() if name in wanted}


def test_noise_is_drawn_only_where_level_one_looks():
    """A new mechanism has to be put into MECHANISMS before this passes again."""
    drawn = calls("lattice_gaussian_steps", "lattice_laplace_steps")
    assert set().union(*drawn.values()) - {"shared/base/randomness.py"} == DRAWN_IN


def test_every_kind_of_event_that_is_made_is_one_whose_noise_is_tested():
    """The accountant knows more kinds than the product draws; the others are made by no production code."""
    made = calls(*(kind.__name__ for kind in events.REGISTRY.values()))
    for kind in events.REGISTRY.values():
        places = made.get(kind.__name__, set()) - {
            f"shared/privacy/{name}.py" for name in ("accountant", "calibration", "meaning", "renyi")
        }
        assert places <= MADE_IN.get(kind, set()), f"{kind.__name__} is drawn by nothing that is tested here"


def test_a_source_is_a_noise_and_nothing_else_has_its_samplers():
    assert {name for name in vars(Noise) if name.startswith("lattice_")} == {
        "lattice_gaussian_steps",
        "lattice_laplace_steps",
    }


@pytest.mark.parametrize("w", [0.0, 0.02, 0.5, 0.9])
def test_what_comes_out_of_the_mechanism_lies_on_the_grid_whatever_went_in(w):
    """A latent's own low bits are gone: with noise on the grid they would stand in the release untouched."""
    m = LatentNoise(flow=Identity(d=3), w=w, radius=2.0)
    x = np.random.default_rng(57).normal(size=(500, 3)) / 3
    steps = m.release(x, seeded_rng(58)) / grid_for(m.event.sigma)
    np.testing.assert_array_equal(steps, np.round(steps))
