"""The samplers' law, exactly; the stream's secrecy; and what must never repeat."""

import ast
import copy
import json
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from shared.base.randomness import Noise, secure_rng, seeded_rng
from shared.errors import ParameterError
from shared.mechanisms.latent_noise.noise import LatentNoise, default_radius
from shared.privacy.accountant import Laplace, Slicing
from shared.privacy.calibration import calibrate, w_for_epsilon
from shared.privacy.grids import grid_for, rounding_reach
from tests.stage.house.sources import parsed

ALPHA = 1e-6
ROOT = Path(__file__).resolve().parents[3]


def gaussian_pmf(k, ratio):
    k = np.abs(k)
    return stats.norm.sf((k - 0.5) / ratio) - stats.norm.sf((k + 0.5) / ratio)


def laplace_pmf(k, ratio):
    return np.where(k == 0, -np.expm1(-0.5 / ratio), np.exp(-np.abs(k) / ratio) * np.sinh(0.5 / ratio))


def chi_square_p(steps, pmf, ratio):
    """p-value of the counts against the exact probabilities, cells of at least 10 expected draws."""
    reach = np.arange(-int(40 * ratio) - 3, int(40 * ratio) + 4)
    expected = pmf(reach, ratio) * steps.size
    counts = np.array([(steps == k).sum() for k in reach[expected >= 10]])
    cells = expected[expected >= 10]
    rest = steps.size - cells.sum()
    if rest >= 10:
        counts, cells = np.append(counts, steps.size - counts.sum()), np.append(cells, rest)
    return stats.chi2.sf(((counts - cells) ** 2 / cells).sum(), counts.size - 1)


SAMPLERS = {
    "gaussian": (Noise.lattice_gaussian_steps, gaussian_pmf, stats.norm),
    "laplace": (Noise.lattice_laplace_steps, laplace_pmf, stats.laplace),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.7, 20.0])
def test_every_probability_on_a_coarse_grid_is_that_of_rounded_noise(name, ratio):
    draw, pmf, _ = SAMPLERS[name]
    assert chi_square_p(draw(seeded_rng(1), ratio, 20_000, 1.0), pmf, ratio) > ALPHA


@pytest.mark.parametrize("name", SAMPLERS)
def test_on_a_fine_grid_the_noise_has_the_continuous_law(name):
    draw, _, law = SAMPLERS[name]
    value = draw(seeded_rng(2), 1.3, 20_000, grid_for(1.3)) * grid_for(1.3)
    assert stats.kstest(value, law(scale=1.3).cdf).pvalue > ALPHA
    assert stats.kstest(value, law(scale=1.3 * 1.1).cdf).pvalue < ALPHA


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("ratio", [0.3, 2.7])
def test_ties_between_deviates_are_settled_by_more_digits(width, ratio):
    # With 63 digits at once no test would ever meet a tie; with one or two, most comparisons are ties.
    rng = seeded_rng(3)
    rng._width = width
    assert chi_square_p(rng.lattice_gaussian_steps(ratio, 20_000, 1.0), gaussian_pmf, ratio) > ALPHA


def test_rounding_a_gaussian_asks_for_more_digits_when_the_known_ones_do_not_decide():
    rng = seeded_rng(4)
    rng._width = 8
    value = rng.lattice_gaussian_steps(1.0, 20_000, 2.0**-20) * 2.0**-20
    assert stats.kstest(value, stats.norm.cdf).pvalue > ALPHA
    assert np.unique(value).size > 19_000  # eight digits alone would give at most a few thousand values


@pytest.mark.parametrize("claimed", [1.0, 0.9, 1.1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_ten_percent_error_of_scale_is_found_with_ten_thousand_draws(name, claimed):
    draw, _, _ = SAMPLERS[name]
    e = draw(seeded_rng(5), 1.0, 10_000, 2.0**-10) * 2.0**-10 / claimed
    statistic, df = ((e**2).sum(), e.size) if name == "gaussian" else (2 * np.abs(e).sum(), 2 * e.size)
    p = 2 * min(stats.chi2.sf(statistic, df), stats.chi2.cdf(statistic, df))
    assert (p > ALPHA) == (claimed == 1.0)


def test_opendp_draws_from_the_same_laplace_law():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    theirs = np.array(dp.m.make_laplace(*space, scale=1.0)([0.0] * 2_000))
    ours = seeded_rng(6).lattice_laplace_steps(1.0, 20_000, 2.0**-10) * 2.0**-10
    assert stats.ks_2samp(theirs, ours).pvalue > ALPHA


def test_a_fair_bounded_integer_and_the_odds_of_each_run_are_exact():
    rng = seeded_rng(7)
    counts = np.bincount(rng._below(np.full(60_000, 6)), minlength=6)
    assert stats.chisquare(counts).pvalue > ALPHA
    assert abs(rng._bernoulli_exp(np.full(60_000, 3), 4).mean() - np.exp(-0.75)) < 5 * 0.5 / np.sqrt(60_000)
    assert abs(rng._bernoulli_root_e(60_000).mean() - np.exp(-0.5)) < 5 * 0.5 / np.sqrt(60_000)


@pytest.mark.parametrize("scale", [1 / 3, 0.1, np.pi, 1e-200, 1e200])
@pytest.mark.parametrize("name", ["lattice_gaussian_steps", "lattice_laplace_steps"])
def test_noise_is_an_exact_multiple_of_the_grid(name, scale):
    grid = grid_for(scale)
    steps = getattr(seeded_rng(8), name)(scale, (50, 4), grid)
    assert steps.dtype == np.int64
    assert steps.shape == (50, 4)
    np.testing.assert_array_equal(steps * grid / grid, steps)


@pytest.mark.parametrize("name", ["lattice_gaussian_steps", "lattice_laplace_steps"])
@pytest.mark.parametrize("ratio", [2.0**-9, 2.0**39 * 1.1])
def test_grids_as_coarse_and_as_fine_as_allowed_give_finite_noise(name, ratio):
    value = getattr(seeded_rng(9), name)(ratio, 500, 1.0)
    assert np.all(np.abs(value) <= 60 * ratio)
    assert (np.abs(value).max() > 0) == (ratio > 1)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    first, again, other = (seeded_rng(s).lattice_gaussian_steps(1.0, 100, 2.0**-10).tobytes() for s in (11, 11, 12))
    assert first == again != other


def test_using_the_generator_does_not_move_the_noise():
    plain, shuffling = seeded_rng(13), seeded_rng(13)
    shuffling.generator.permutation(1000)
    np.testing.assert_array_equal(
        plain.lattice_laplace_steps(1.0, 10, 2.0**-10), shuffling.lattice_laplace_steps(1.0, 10, 2.0**-10)
    )
    assert seeded_rng(13).generator.random() == seeded_rng(13).generator.random()


def test_the_generator_goes_on_where_it_stopped():
    rng = seeded_rng(14)
    assert rng.generator.random() != rng.generator.random()


def test_two_secure_sources_never_agree():
    assert secure_rng()._take(32) != secure_rng()._take(32)


def test_the_text_form_shows_no_key():
    for rng in (secure_rng(), seeded_rng(15)):
        shown = repr(rng) + str(rng) + f"{rng}"
        assert rng._key.hex() not in shown
        assert repr(rng._key) not in shown
        assert len(repr(rng)) < 20


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_source_can_be_neither_pickled_nor_copied(duplicate):
    with pytest.raises(TypeError, match="drawn twice"):
        duplicate(secure_rng())


def test_the_key_is_overwritten_when_the_buffer_is_refilled():
    rng = seeded_rng(16)
    before = rng._key
    rng._take(1)
    assert rng._key != before
    assert before not in rng._buffer


def test_long_draws_do_not_repeat_across_refills():
    words = seeded_rng(17)._words(3 << 18)
    assert np.unique(words).size == words.size


def test_a_forked_process_draws_other_noise():
    rng = secure_rng()
    rng._take(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # leave without any clean-up: this is a copy of the test runner
        try:
            os.write(write, rng._take(32) + rng.generator.bytes(32))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 64)
    os.close(read)
    os.close(write)
    ours = rng._take(32) + rng.generator.bytes(32)
    assert len(theirs) == 64
    assert theirs[:32] != ours[:32]
    assert theirs[32:] != ours[32:]


def test_a_process_that_was_given_an_ancestor_s_number_draws_other_noise(monkeypatch):
    """A number is free again once its process has ended, and a child of a child may be given it."""
    rng = secure_rng()
    monkeypatch.setattr(os, "getpid", lambda: 7)
    rng._take(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, rng._take(32))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 32)
    os.close(read)
    os.close(write)
    assert theirs != rng._take(32)


def test_threads_sharing_a_source_never_get_the_same_bytes():
    rng, seen = seeded_rng(18), []

    def work():
        for _ in range(200):
            seen.append(rng._take(24))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1600


@pytest.mark.parametrize(
    ("scale", "grid"),
    [
        (0.0, 1.0),
        (-1.0, 1.0),
        (np.nan, 1.0),
        (np.inf, 1.0),
        (1.0, 0.3),
        (1.0, 0.0),
        (1.0, 1e5),
        (1.0, 2.0**-41),
    ],
)
@pytest.mark.parametrize("name", ["lattice_gaussian_steps", "lattice_laplace_steps"])
def test_impossible_scales_and_grids_are_refused(name, scale, grid):
    with pytest.raises(ParameterError):
        getattr(seeded_rng(1), name)(scale, 3, grid)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_a_seed_is_a_non_negative_integer(seed):
    with pytest.raises(ParameterError, match="seed"):
        seeded_rng(seed)


@pytest.mark.parametrize("sigma", [1.0, 0.999, 1.001, 3e-5, 7e10])
def test_the_grid_is_the_largest_power_of_two_within_a_1024th(sigma):
    grid = grid_for(sigma)
    assert np.frexp(grid)[0] == 0.5
    assert grid <= sigma / 1024 < 2 * grid


def test_empty_shapes_are_allowed():
    assert seeded_rng(1).lattice_gaussian_steps(1.0, (0, 3), 2.0**-10).shape == (0, 3)
    assert seeded_rng(1).lattice_laplace_steps(1.0, (), 2.0**-10).shape == ()


# -- OpenDP as the oracle of the Gaussian law too -----------------------------------------------------------------
def test_opendp_draws_from_the_same_gaussian_law():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, scale=1.5)([0.0] * 1_000))
    assert stats.ks_2samp(theirs, seeded_rng(6).lattice_gaussian_steps(1.5, 20_000, 2.0**-10) * 2.0**-10).pvalue > ALPHA
    assert stats.ks_2samp(theirs, seeded_rng(6).lattice_gaussian_steps(3.0, 20_000, 2.0**-10) * 2.0**-10).pvalue < ALPHA


def test_a_discrete_gaussian_of_opendp_agrees_where_rounding_does_not_show():
    """Rounded and discrete Gaussian laws differ by less than their sampling error at sixteen steps."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, scale=16.0)([0] * 2_000))
    ours = seeded_rng(6).lattice_gaussian_steps(16.0, 20_000, 1.0)
    assert stats.ks_2samp(theirs, ours).pvalue > ALPHA


@pytest.mark.parametrize("name", SAMPLERS)
def test_exactness_is_at_least_twenty_times_cheaper_than_opendps(name):
    """The ratio that `make bench` measured; no clock is asked here."""
    measured = json.loads((ROOT / "tests" / "benchmarks" / "results" / "noise_speed.json").read_text())["results"]
    assert measured["opendp"][name]["min"] >= 20 * measured["ours"][name]["max"]


# -- low bits -----------------------------------------------------------------------------------------------------
def lowest_bit(values):
    """Exponent of the last binary digit that is set in each double: what an attacker reads off a textbook release."""
    mantissa, exponent = np.frexp(values[values != 0])
    whole = (mantissa * 2.0**53).astype(np.int64)
    return exponent - 53 + np.log2((whole & -whole).astype(np.float64)).astype(np.int64)


@pytest.mark.parametrize("name", ["lattice_gaussian_steps", "lattice_laplace_steps"])
def test_low_bits_tell_nothing_of_the_data_while_those_of_textbook_noise_do(name):
    """x + noise in doubles: which doubles can be reached depends on x. On the grid, the same ones for every x."""
    n, grid = 4_000, 2.0**-10
    near, far = 0.0, 1024.0
    bits = [lowest_bit(x + getattr(seeded_rng(31), name)(1.0, n, grid) * grid) for x in (near, far)]
    np.testing.assert_array_equal([b.min() for b in bits], [-10, -10])
    assert stats.ks_2samp(*bits).pvalue > ALPHA
    draw = np.random.default_rng(31)
    textbook = [lowest_bit(x + draw.normal(size=n)) for x in (near, far)]
    assert textbook[0].min() < textbook[1].min() - 5  # the attack works where it should
    assert stats.ks_2samp(*textbook).pvalue < ALPHA


@pytest.mark.parametrize("name", ["lattice_gaussian_steps", "lattice_laplace_steps"])
def test_noise_never_comes_from_the_floating_point_generator(name):
    class Untouchable(Noise):
        @property
        def generator(self):
            raise AssertionError("noise was drawn from numpy")

    rng = Untouchable(_key=b"k" * 32)
    rng._generator_key = b""
    assert getattr(rng, name)(1.0, 50, 2.0**-10).any()


# -- rounding stays inside the sensitivity ------------------------------------------------------------------------
@pytest.mark.parametrize("d", [1, 2, 9, 50, 200])
@pytest.mark.parametrize("target", [0.25, 1, 8, 200])
def test_rounding_adds_nothing_to_the_sensitivity_of_latent_noise(d, target):
    """It rounds towards zero: measured on the two most distant rows there are."""
    radius = default_radius(d)
    m = LatentNoise(flow=_Identity(d), w=w_for_epsilon(target, 1e-6, radius), radius=radius)
    grid = grid_for(m.event.sigma)
    direction = np.random.default_rng(d).normal(size=(200, d))
    far = 1e6 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    apart = m._signal_steps(far.copy(), grid) - m._signal_steps(-far, grid)
    assert np.sqrt((apart.astype(float) ** 2).sum(axis=1)).max() * grid <= m.event.sensitivity * (1 + 1e-15)


class _Identity:
    def __init__(self, d):
        self.d = d

    def forward(self, z):
        return z

    inverse = forward


@pytest.mark.parametrize("slices", [1, 100, 1000, 10_000])
@pytest.mark.parametrize("target", [0.5, 1, 8])
def test_rounding_to_nearest_adds_at_most_one_percent_to_a_sliced_row(slices, target):
    event = calibrate(Slicing, target, 1e-5, slices=slices, d=50, distance=2.0)
    moved = event.distance * np.sqrt(slices / event.d)  # a row's change in the slices, root mean square
    grid = grid_for(event.sigma, sensitivity=moved, coordinates=slices)
    assert rounding_reach(grid, slices) <= 0.01 * moved
    assert grid <= event.sigma / 1024
    # Without the sensitivity the grid is too coarse for many slices: why it has to be given.
    if slices == 1000:
        assert rounding_reach(grid_for(event.sigma), slices) > 0.01 * moved


@pytest.mark.parametrize("coordinates", [1, 64, 4096])
def test_rounding_to_nearest_adds_at_most_one_percent_in_the_sum_of_sizes(coordinates):
    event = calibrate(Laplace, 1.0, 0.0, sensitivity=2.0)
    grid = grid_for(event.scale, sensitivity=2.0, coordinates=coordinates, norm=1)
    assert rounding_reach(grid, coordinates, norm=1) <= 0.02
    values = np.random.default_rng(1).uniform(-1, 1, (2, 500, coordinates)) / coordinates
    apart = np.abs(np.diff(np.round(values / grid) * grid, axis=0)).sum(axis=-1)
    assert np.all(apart <= np.abs(np.diff(values, axis=0)).sum(axis=-1) + rounding_reach(grid, coordinates, norm=1))


@pytest.mark.parametrize(
    "given",
    [
        {"sensitivity": 0.0},
        {"sensitivity": np.nan},
        {"sensitivity": 1.0, "coordinates": 0},
        {"sensitivity": 1.0, "norm": 3},
        {"sensitivity": 1e-20},
    ],
)
def test_a_grid_for_an_impossible_sensitivity_is_refused(given):
    with pytest.raises(ParameterError):
        grid_for(1.0, **given)


# -- substreams ---------------------------------------------------------------------------------------------------
def test_substreams_are_independent_of_each_other_and_of_their_parent():
    parent = seeded_rng(41)
    sources = [*parent.spawn(20), *parent.spawn(20), parent]
    assert len({source._take(32) for source in sources}) == 41
    assert len({source._key for source in sources}) == 41
    draws = np.array([source.lattice_gaussian_steps(1.0, 2_000, 2.0**-10) for source in sources[:8]])
    correlation = np.corrcoef(draws)[np.triu_indices(8, 1)]
    assert np.all(np.abs(correlation) < 5.5 / np.sqrt(2_000))


def test_substreams_of_a_seed_follow_from_it_and_do_not_move_the_parents_noise():
    one, two, plain = seeded_rng(42), seeded_rng(42), seeded_rng(42)
    first, again = ([child._take(16) for child in rng.spawn(3)] for rng in (one, two))
    assert first == again
    assert [child._take(16) for child in one.spawn(3)] != first
    assert one._take(64) == plain._take(64)
    assert seeded_rng(43).spawn(1)[0]._take(16) not in first


def test_substreams_of_a_secure_source_are_secure_and_never_repeat():
    children = [child for _ in range(2) for child in secure_rng().spawn(5)]
    assert {repr(child) for child in children} == {"Noise(secure)"}
    assert len({child._take(32) for child in children}) == 10
    assert repr(seeded_rng(1).spawn(1)[0]) == "Noise(seeded)"


def test_a_forked_process_draws_other_noise_from_its_substreams_and_spawns_others():
    rng = secure_rng()
    child_source = rng.spawn(1)[0]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # leave without any clean-up: this is a copy of the test runner
        try:
            os.write(write, child_source._take(32) + rng.spawn(1)[0]._take(32))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 64)
    os.close(read)
    os.close(write)
    assert len(theirs) == 64
    assert theirs[:32] != child_source._take(32)
    assert theirs[32:] != rng.spawn(1)[0]._take(32)


def test_a_substream_per_node_of_a_large_network_costs_little_memory():
    children = seeded_rng(44).spawn(500)
    for child in children:
        child._take(8)
    assert sum(len(child._buffer) for child in children) <= 500 * 4096
    long = children[0]._words(1 << 18)  # past many refills, which grow
    assert np.unique(long).size == long.size


@pytest.mark.parametrize("count", [-1, 1.5, True, None])
def test_a_number_of_substreams_is_a_whole_number(count):
    with pytest.raises(ParameterError, match="substreams"):
        seeded_rng(1).spawn(count)


# -- no seed in production ----------------------------------------------------------------------------------------
def test_only_tests_and_examples_use_a_seeded_source():
    """A release whose noise follows from a number is a release without noise, for whoever knows the number."""
    found = []
    for package in ("shared", "site_agent", "coordinator"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(parsed(path)):  # docstrings are no code: examples may be seeded
                used = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
                hidden = isinstance(node, ast.Constant) and node.value == "seeded_rng"
                if used == "seeded_rng" or hidden:
                    found.append((path.relative_to(ROOT).as_posix(), type(node).__name__))
                if isinstance(node, ast.keyword) and node.arg == "_key":
                    found.append((path.relative_to(ROOT).as_posix(), "_key"))
    # A design makes up hospitals from published margins; no record is near it, and nothing of it leaves.
    assert {place for place, _ in found} == {"shared/base/randomness.py", "coordinator/planning/predicted.py"}
    own = [kind for place, kind in found if place == "shared/base/randomness.py"]
    assert sorted(own) == ["Constant", "FunctionDef", "_key", "_key", "_key", "_key"]


@pytest.mark.parametrize("package", ["shared", "site_agent", "coordinator"])
def test_no_command_setting_or_argument_offers_a_seed(package):
    # Simulated hospitals have no person behind them: the demo may repeat them.
    allowed = {
        "shared/base/randomness.py",
        "shared/simulated.py",
        "coordinator/demo/__init__.py",
        "coordinator/demo/play.py",
        "coordinator/planning/predicted.py",
    }
    for path in sorted((ROOT / package).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place in allowed or place.startswith("site_agent/models/"):  # torch wants a number: one drawn from a source
            continue
        for node in ast.walk(parsed(path)):
            assert not (isinstance(node, ast.arg) and node.arg == "seed"), place
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "--seed" not in node.value, place
                assert "_SEED" not in node.value, place
