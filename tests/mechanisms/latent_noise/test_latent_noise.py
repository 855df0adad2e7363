"""Latent noise injection: its law, its bound, and an attack that must not beat the receipt."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shared.base.randomness import Noise, seeded_rng
from shared.errors import ParameterError
from shared.flows.base import Identity
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius, kept_weight, shrunk
from shared.privacy.accountant import Gaussian, epsilon
from shared.privacy.calibration import w_for_epsilon
from shared.privacy.grids import grid_for

DELTA = 1e-5
RUNS = 5_000


def mechanism(w=0.5, radius=2.0, d=3, shrink=1.0):
    return LatentNoise(flow=Identity(d=d), w=w, radius=radius, shrink=shrink)


# -- the law -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("w", [0.0, 0.1, 0.5, 0.9])
def test_the_release_is_the_blend_of_equation_12(w):
    z = np.tile([0.5, -1.0, 0.25], (RUNS, 1))
    noise = (mechanism(w=w).release(z, seeded_rng(1)) - math.sqrt(w) * z) / math.sqrt(1 - w)
    statistic = (noise**2).sum()
    p = 2 * min(stats.chi2.sf(statistic, noise.size), stats.chi2.cdf(statistic, noise.size))
    assert p > 1e-6
    assert np.all(np.abs(noise.mean(axis=0)) < 5 / math.sqrt(RUNS))
    assert stats.kstest(noise[:, 1], stats.norm.cdf).pvalue > 1e-6


def test_without_data_weight_the_records_are_not_used():
    near, far = np.zeros((20, 3)), np.full((20, 3), 1e9)
    a, b = (mechanism(w=0.0).release(x, seeded_rng(2)) for x in (near, far))
    np.testing.assert_array_equal(a, b)
    assert mechanism(w=0.0).event.sensitivity == 0
    assert epsilon(mechanism(w=0.0).event, DELTA) == 0


def test_the_same_seed_gives_the_same_bytes_and_the_input_is_untouched():
    x = np.random.default_rng(3).normal(size=(40, 3)) * 3
    x[0, 0], x[1, 1] = np.nan, np.inf
    before = x.copy()
    first, again = (mechanism().release(x, seeded_rng(4)) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 0.0, -1e-300])
def test_changing_one_row_changes_no_other_row(value):
    x = np.random.default_rng(5).normal(size=(30, 3))
    y = x.copy()
    y[7] = [value, 0.0, 1.0]
    a, b = (mechanism().release(v, seeded_rng(6)) for v in (x, y))
    np.testing.assert_array_equal(np.delete(a, 7, axis=0), np.delete(b, 7, axis=0))


def test_the_flow_is_applied_on_both_sides_of_the_noise():
    @dataclass(frozen=True)
    class Shifted:
        d: int = 2

        def forward(self, z):
            return 2 * z + 10

        def inverse(self, x):
            return (x - 10) / 2

        def log_prob(self, x):
            raise NotImplementedError

    x = np.full((RUNS, 2), 10.0)
    released = LatentNoise(flow=Shifted(), w=0.5, radius=1.0).release(x, seeded_rng(7))
    assert abs(released.mean() - 10) < 0.1
    assert abs(released.std() - 2 * math.sqrt(0.5)) < 0.05


# -- the bound ---------------------------------------------------------------------------------------------
def signal(m, z):
    grid = grid_for(m.event.sigma)
    return m._signal_steps(np.array(z, dtype=float), grid), grid


@given(
    w=st.floats(0, 0.999),
    radius=st.floats(1e-3, 50),
    shrink=st.floats(1, 8),
    rows=st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 3), min_size=1, max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_no_signal_is_longer_than_the_event_says_exactly(w, radius, shrink, rows):
    m = mechanism(w=w, radius=radius, shrink=shrink)
    steps, grid = signal(m, rows)
    for row in steps:
        square = sum(int(k) ** 2 for k in row) * Fraction(grid) ** 2
        assert 4 * square <= Fraction(m.event.sensitivity) ** 2


def test_rows_on_the_sphere_stay_within_the_ball_where_doubles_overshoot():
    z = np.random.default_rng(8).normal(size=(20_000, 3)) * 100
    z[:200] = [[100.0, 0, 0], [0, -100.0, 0]] * 100
    m = mechanism(w=0.25, radius=1.5)
    steps, grid = signal(m, z)
    length = np.sqrt((steps**2).sum(axis=1)) * grid
    assert np.all(length <= m.radius * 0.5)
    assert np.all(length > m.radius * 0.5 - 3 * grid)


def test_a_signal_beyond_the_bound_is_pulled_back_whatever_the_doubles_said():
    # No input was found for which the doubles overshoot, so the bound is lowered under them instead.
    class Strict(LatentNoise):
        @property
        def _reach(self):
            return super()._reach * (1 - 1e-3)

    m = Strict(flow=Identity(d=3), w=0.25, radius=1.5)
    z = np.random.default_rng(11).normal(size=(500, 3)) * 100
    steps, grid = signal(m, z)
    bound = (Fraction(m.event.sensitivity) / 2 / Fraction(grid)) ** 2
    assert all(sum(int(k) ** 2 for k in row) <= bound for row in steps)
    assert (signal(mechanism(w=0.25, radius=1.5), z)[0] ** 2).sum(axis=1).min() > bound


def test_rounding_is_towards_zero_and_loses_less_than_a_step():
    z = np.random.default_rng(9).normal(size=(500, 3)) * 0.3
    m = mechanism(w=0.5, radius=5.0)
    steps, grid = signal(m, z)
    lost = math.sqrt(0.5) * np.abs(z) - np.abs(steps) * grid
    assert np.all(lost > -1e-12)
    assert np.all(lost < grid * (1 + 1e-9))


def test_latents_that_are_not_numbers_follow_a_fixed_rule():
    m = mechanism(w=0.25, radius=2.0)
    steps, grid = signal(
        m,
        [
            [np.nan, 5, np.inf],
            [np.inf, 3, -4],
            [-np.inf, np.inf, 1e300],
            [1e308, 1e308, 1e308],
            [5e-324, 0, 0],
        ],
    )
    got = steps * grid
    half = math.sqrt(0.5)
    np.testing.assert_array_equal(got[0], [0, 0, 0])
    np.testing.assert_allclose(got[1], [1, 0, 0], atol=2 * grid)
    np.testing.assert_allclose(got[2], [-half, half, 0], atol=2 * grid)
    np.testing.assert_allclose(got[3], [1 / math.sqrt(3)] * 3, atol=2 * grid)
    np.testing.assert_array_equal(got[4], [0, 0, 0])


def test_clipped_count_counts_rows_outside_the_ball():
    x = np.array([[1.0, 0, 0], [2.0, 0, 0], [2.1, 0, 0], [np.nan, 0, 0], [np.inf, 0, 0]])
    assert mechanism(radius=2.0).clipped_count(x) == 3


def test_the_default_radius_holds_99_percent_of_normal_latents():
    z = np.random.default_rng(10).normal(size=(100_000, 5))
    m = mechanism(radius=default_radius(5), d=5)
    assert abs(m.clipped_count(z) / 100_000 - 0.01) < 0.002


# -- pulled in -------------------------------------------------------------------------------------------------
@given(
    shrink=st.floats(1, 8),
    one=st.tuples(*[st.floats(-1e3, 1e3)] * 3),
    two=st.tuples(*[st.floats(-1e3, 1e3)] * 3),
    scale=st.sampled_from([1e-2, 1.0, 1e2]),
)
@settings(max_examples=300, deadline=None)
def test_no_two_records_that_are_pulled_in_differ_by_more_than_the_sensitivity(shrink, one, two, scale):
    """A search for a pair that breaks C = 2 sup a(r) r √w; on the sphere itself the bound is reached."""
    m = mechanism(w=0.6, radius=1.5, shrink=shrink)
    (a, b), grid = signal(m, np.array([one, two]) * scale)
    square = sum(int(k) ** 2 for k in a - b) * Fraction(grid) ** 2
    assert square <= Fraction(m.event.sensitivity) ** 2
    (a, b), _ = signal(m, [[1.5, 0, 0], [-1.5, 0, 0]])
    assert np.linalg.norm(a - b) * grid == pytest.approx(m.event.sensitivity, rel=1e-2)


def test_the_longest_signal_has_the_length_that_the_price_is_for_whatever_the_shrinking():
    r = np.linspace(0, 100, 100_001)
    for shrink in (1.0, 1.5, 2.0, 3.0, 8.0):
        length = shrunk(r, 2.0, shrink)
        assert length.max() == 2.0
        inside = r <= 2.0
        np.testing.assert_array_equal(length[inside], r[inside])
        np.testing.assert_allclose(length[~inside], 2.0 * (2.0 / r[~inside]) ** (shrink - 1))
        assert mechanism(shrink=shrink).event == mechanism().event


def test_a_record_at_infinity_is_drawn_at_the_centre_where_others_are_pulled_in():
    steps, _ = signal(mechanism(shrink=2.0), [[np.inf, 1, 2], [1e308, -1e308, 1e308], [np.nan, 1, 1]])
    np.testing.assert_array_equal(steps, 0)


@pytest.mark.parametrize(("d", "w"), [(1, 0.5), (2, 0.9), (5, 0.8), (20, 0.2)])
def test_the_rows_of_normal_latents_that_were_pulled_in_are_normal_again(d, w):
    m = LatentNoise(flow=Identity(d=d), w=w, radius=default_radius(d, inside=0.9), shrink=2.0)
    z = np.random.default_rng(30).normal(size=(40_000, d))
    y = m.release(z, seeded_rng(31))
    short = m.unrestored(y)
    assert (short**2).mean() < (y**2).mean() < 1.02
    assert abs((y**2).mean() - 1) < 0.02
    assert abs((y**4).mean() - 3) < 0.25  # five standard errors at d = 1
    # The law of a length is the χ law, to the error of a map with a hundred knots.
    assert stats.kstest((y**2).sum(axis=1), stats.chi2(d).cdf).statistic < 0.012
    np.testing.assert_allclose(m.restored(short), y, atol=1e-9)


def test_putting_lengths_right_looks_at_no_record():
    """Post-processing: the same noisy latents give the same rows, whatever they were drawn from."""
    m = mechanism(shrink=2.0)
    far, farther = (m.release(x, seeded_rng(32)) for x in (np.full((50, 3), np.nan), np.full((50, 3), np.inf)))
    np.testing.assert_array_equal(far, farther)
    assert mechanism(w=0.0, shrink=2.0).release(np.ones((9, 3)), seeded_rng(1)).tobytes() == (
        mechanism(w=0.0).release(np.ones((9, 3)), seeded_rng(1)).tobytes()
    )


def test_what_is_told_of_records_that_are_pulled_in_falls_with_the_shrinking_and_is_w_without():
    radius = default_radius(5, inside=0.9)
    told = [kept_weight(0.8, radius, shrink, 5) for shrink in (1.0, 2.0, 4.0)]
    assert told[0] == 0.8
    assert 0.7 < told[1] < 0.8
    assert told[2] < told[1]
    assert kept_weight(0.0, radius, 2.0, 5) == 0.0


@pytest.mark.parametrize(
    ("w", "radius", "d"),
    [(0.999999, 0.01, 1), (0.9999999, 0.5, 3), (0.9999, 1.0, 2), (0.5, 1e-6, 2), (0.999, 31.0, 999)],
)
def test_lengths_that_are_much_alike_are_put_back_too(w, radius, d):
    """Where the law of the lengths was narrower than a step between two knots, every row was 0/0 and charged."""
    m = mechanism(w=w, radius=radius, d=d, shrink=2.0)
    z = np.random.default_rng(1).standard_normal((400, d))
    rows = m.release(z, seeded_rng(2))
    assert np.isfinite(rows).all()
    assert np.linalg.norm(rows, axis=1).mean() == pytest.approx(stats.chi.mean(d), rel=0.1)
    np.testing.assert_allclose(m.restored(m.unrestored(rows)), rows, rtol=1e-6)


@pytest.mark.parametrize("shrink", [0.5, 9.0, math.nan, math.inf, None])
def test_a_shrinking_that_would_push_out_or_means_nothing_is_refused(shrink):
    with pytest.raises(ParameterError, match="shrink must be"):
        mechanism(shrink=shrink)


# -- the event ---------------------------------------------------------------------------------------------
def test_the_event_is_known_before_anything_runs():
    assert mechanism(w=0.8, radius=3.0).event == Gaussian(
        sigma=math.sqrt(1 - 0.8), sensitivity=2 * 3.0 * math.sqrt(0.8)
    )


@pytest.mark.parametrize("target", [0.5, 1, 4, 8])
def test_a_weight_solved_from_a_target_epsilon_costs_that_epsilon(target):
    m = mechanism(w=w_for_epsilon(target, DELTA, 3.0), radius=3.0)
    assert epsilon(m.event, DELTA) == pytest.approx(target, rel=1e-9)


@pytest.mark.parametrize("w", [1.0, 1.2, -0.1, math.nan, "0.5", True])
def test_a_weight_outside_its_domain_is_refused(w):
    with pytest.raises(ParameterError, match="w must be"):
        mechanism(w=w)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan, None])
def test_a_radius_that_bounds_nothing_is_refused(radius):
    with pytest.raises(ParameterError, match="radius must be"):
        mechanism(radius=radius)


def test_noise_that_hides_nothing_is_refused_at_construction():
    with pytest.raises(ParameterError, match="visible"):
        mechanism(w=1 - 1e-14, radius=1.0)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 4), (1, 3, 3)])
def test_records_of_another_shape_are_refused(shape):
    with pytest.raises(ParameterError, match="3 columns"):
        mechanism().release(np.zeros(shape), seeded_rng(1))


# -- the attack: level 2 -----------------------------------------------------------------------------------
def attacked_epsilon(m, rng):
    """A lower bound on a release's ε at DELTA, from what an attacker sees of two extreme neighbours.

    5,000 rows a side, one threshold fixed beforehand (the midpoint), Clopper-Pearson at 5e-7 a side; the
    bound on both error rates gives one on μ, and μ gives ε.
    """
    x = np.zeros((RUNS, 2))
    # Far outside the ball, where missing clipping shows; but what is pulled in is longest on the sphere itself.
    x[:, 0] = 100.0 if m.shrink == 1 else m.radius
    hits = int((m.release(x, rng)[:, 0] > 0).sum())
    alarms = int((m.release(-x, rng)[:, 0] > 0).sum())
    power = stats.beta.ppf(5e-7, hits, RUNS - hits + 1) if hits else 0.0
    false_alarm = stats.beta.isf(5e-7, alarms + 1, RUNS - alarms) if alarms < RUNS else 1.0
    mu = stats.norm.ppf(power) - stats.norm.ppf(false_alarm)
    return epsilon(Gaussian(sigma=1.0, sensitivity=max(mu, 0.0)), DELTA)


def weight_for(mu, radius):
    return mu**2 / (mu**2 + 4 * radius**2)


# A small radius makes w large, so that 1 - w and its root differ enough to be told apart.
RADIUS = 0.25


@pytest.mark.parametrize(("mu", "shrink"), [(0.5, 1.0), (0.75, 1.0), (1.0, 1.0), (0.75, 2.0)])
def test_the_best_attack_stays_under_the_receipt(mu, shrink):
    m = mechanism(w=weight_for(mu, RADIUS), radius=RADIUS, d=2, shrink=shrink)
    claim = epsilon(m.event, DELTA)
    bound = attacked_epsilon(m, seeded_rng(20))
    assert bound <= claim
    assert bound > 0.3 * claim  # the attack is not a blunt one


class Tampered:
    """A source whose noise is too small by a factor."""

    def __init__(self, factor):
        self.factor, self.inner = factor, seeded_rng(21)

    def lattice_gaussian_steps(self, sigma, shape, grid):
        return Noise.lattice_gaussian_steps(self.inner, sigma * self.factor, shape, grid)


class HalfDiameter(LatentNoise):
    @property
    def event(self):
        return Gaussian(sigma=self._sigma, sensitivity=self._reach)


class Unclipped(LatentNoise):
    def _signal_steps(self, z, grid):
        return np.trunc(z * math.sqrt(self.w) / grid).astype(np.int64)


class NoRootOnTheNoise(LatentNoise):
    @property
    def event(self):
        return Gaussian(sigma=math.sqrt(1 - self.w), sensitivity=2 * self._reach)

    @property
    def _sigma(self):
        return 1 - self.w


MUTANTS = {
    "noise halved": (LatentNoise, lambda: Tampered(0.5)),
    "radius charged for the diameter": (HalfDiameter, lambda: seeded_rng(22)),
    "no clipping": (Unclipped, lambda: seeded_rng(23)),
    "1 - w for its root": (NoRootOnTheNoise, lambda: seeded_rng(24)),
}


@pytest.mark.parametrize(("name", "shrink"), [*((name, 1.0) for name in MUTANTS), ("noise halved", 2.0)])
def test_the_attack_beats_the_receipt_of_a_broken_mechanism(name, shrink):
    kind, rng = MUTANTS[name]
    m = kind(flow=Identity(d=2), w=weight_for(0.75, RADIUS), radius=RADIUS, shrink=shrink)
    assert attacked_epsilon(m, rng()) > epsilon(m.event, DELTA)
