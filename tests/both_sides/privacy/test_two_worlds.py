"""Level 2: an attacker who sees only what leaves does not beat the ε on the receipt.

Two neighbouring worlds: one person's record is at one extreme of the domain, or at the other. The mechanism runs 5,000
times in each; the attacker says "the second" when the output is above one threshold, fixed before anything is drawn.
Clopper-Pearson bounds at 5e-7 a side on both error rates give a lower bound on the loss. It must not exceed the claim;
with the noise halved, or a bound not enforced, it must: each test is run both ways, or it would prove nothing.

Claims lie between ε = 0.25 and 2, at a δ at which such an ε can be told from twice the loss. At ε = 100 the bound of
any number of runs is far below any claim. A Gaussian mechanism's whole curve follows from one number, so that the claim
may be read off at the δ that suits the test.

Latent noise treats rows one by one, so that 5,000 rows that hold the same record are 5,000 runs. What sees more than
one row (shuffling, sealing) is in the path here as well: the last tests run encode, release, decode, bundle, and read.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.both_sides.noise import Scaled

from shared.base.randomness import seeded_rng
from shared.flows.base import Identity
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.mechanisms.latent_noise.plan import LatentNoisePlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder
from shared.plans.plan import Budget, PrivateTraining, StudyPlan, Training, Wave
from shared.privacy import calibration
from shared.privacy.accountant import Gaussian, Laplace, SubsampledGaussian, epsilon, pure_epsilon
from shared.privacy.calibration import w_for_epsilon
from shared.privacy.grids import grid_for
from shared.releases.bundle import read_bundle, write_bundle
from shared.releases.receipt import ReceiptDraft, planned_event, write_receipt

RUNS = 5_000
QUIET = 20_000
"""For claims below 0.5, where 5,000 runs would tell halved noise apart only most of the time."""
SIDE = 5e-7
DELTA = 1e-2
PLAN_DELTA = 1e-3
"""The largest that a plan may have."""
CLAIMS = (0.25, 0.5, 1.0, 2.0)


def rates(second: np.ndarray, first: np.ndarray) -> tuple[float, float]:
    """Bounds, each wrong once in two million: the attacker's hits at least, the false alarms at most."""
    n, hits, alarms = second.size, int(second.sum()), int(first.sum())
    power = float(stats.beta.ppf(SIDE, hits, n - hits + 1)) if hits else 0.0
    alarm = float(stats.beta.isf(SIDE, alarms + 1, n - alarms)) if alarms < n else 1.0
    return power, alarm


def bound_on_mu(second: np.ndarray, first: np.ndarray) -> float:
    """A lower bound on μ of a Gaussian mechanism, from one threshold."""
    power, alarm = rates(second, first)
    return max(0.0, float(stats.norm.ppf(power) - stats.norm.ppf(alarm)))


def bound_on_pure_epsilon(second: np.ndarray, first: np.ndarray) -> float:
    """A lower bound on the pure ε, from one threshold."""
    power, alarm = rates(second, first)
    return max(0.0, math.log(power / alarm)) if power > 0 else 0.0


def bound_on_epsilon(second: np.ndarray, first: np.ndarray, delta: float = DELTA) -> float:
    """The ε at `delta` that a Gaussian mechanism with the bound's μ has."""
    return epsilon(Gaussian(sigma=1.0, sensitivity=bound_on_mu(second, first)), delta)


# -- the samplers alone: the bound is what the text says it is ---------------------------------------------------
@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_gaussian_noise_keeps_its_claim_and_half_of_it_does_not(claim, factor):
    event = calibration.calibrate(Gaussian, claim, DELTA, sensitivity=1.0)
    grid = grid_for(event.sigma)
    rng, runs = Scaled(factor, 61), RUNS if claim >= 0.5 else QUIET
    draws = [rng.lattice_gaussian_steps(event.sigma, runs, grid) * grid + sign / 2 > 0 for sign in (1, -1)]
    assert (bound_on_epsilon(*draws) <= epsilon(event, DELTA)) == (factor == 1.0)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_laplace_noise_keeps_its_claim_and_half_of_it_does_not(claim, factor):
    event = calibration.calibrate(Laplace, claim, 0.0, sensitivity=1.0)
    grid = grid_for(event.scale)
    rng, runs = Scaled(factor, 62), RUNS if claim >= 0.5 else QUIET
    # The upper point: beyond it the ratio of the two densities is as large as it gets.
    second, first = (rng.lattice_laplace_steps(event.scale, runs, grid) * grid + value >= 1.0 for value in (1.0, 0.0))
    assert (bound_on_pure_epsilon(second, first) <= pure_epsilon(event)) == (factor == 1.0)


def test_coordinates_that_move_together_are_charged_together():
    """Seven values at ε = 0.25 each: an attacker who looks at all of them finds more than one of them costs."""
    event = Laplace(scale=4.0, sensitivity=1.0, coordinates=7)
    grid = grid_for(event.scale)
    rng = seeded_rng(63)
    second, first = (
        ((rng.lattice_laplace_steps(4.0, (RUNS, 7), grid) * grid + value) >= 1.0).sum(axis=1) >= 6
        for value in (1.0, 0.0)
    )
    bound = bound_on_pure_epsilon(second, first)
    assert 0.25 < bound <= pure_epsilon(event)


# -- latent noise injection -------------------------------------------------------------------------------------
def latent_noise(claim: float, radius: float, d: int = 2) -> LatentNoise:
    return LatentNoise(flow=Identity(d=d), w=w_for_epsilon(claim, DELTA, radius), radius=radius)


def attacked(m: LatentNoise, rng: Any, runs: int = 0) -> float:
    """The bound on ε from one coordinate of a record that is far outside the ball, on one side or the other."""
    runs = runs or (RUNS if epsilon(m.event, DELTA) >= 0.5 else QUIET)
    x = np.zeros((runs, m.flow.d))
    x[:, 0] = 1e3
    second, first = (m.release(sign * x, rng)[:, 0] > 0 for sign in (1, -1))
    return bound_on_epsilon(second, first)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("radius", [0.25, 3.0])
def test_latent_noise_keeps_its_claim(claim, radius):
    m = latent_noise(claim, radius)
    assert epsilon(m.event, DELTA) == pytest.approx(claim)
    assert attacked(m, seeded_rng(64)) <= claim


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("radius", [0.25, 3.0])
def test_latent_noise_with_half_the_noise_is_caught(claim, radius):
    assert attacked(latent_noise(claim, radius), Scaled(0.5, 65)) > claim


class HalfDiameter(LatentNoise):
    @property
    def event(self):
        return Gaussian(sigma=self._sigma, sensitivity=self._reach)


class Unclipped(LatentNoise):
    def _signal_steps(self, z, grid):
        return np.trunc(z * math.sqrt(self.w) / grid).astype(np.int64)


class NoRoot(LatentNoise):
    def release(self, x, rng):
        grid = grid_for(self._sigma)
        steps = self._signal_steps(self.latents(x), grid)
        return (steps + rng.lattice_gaussian_steps(1 - self.w, steps.shape, grid)) * grid


class SameNoiseForAll(LatentNoise):
    def release(self, x, rng):
        grid = grid_for(self._sigma)
        return (self._signal_steps(self.latents(x), grid) + 0 * len(x)) * grid + rng.lattice_gaussian_steps(
            self._sigma, (1, x.shape[1]), grid
        ) * grid


@pytest.mark.parametrize("kind", [HalfDiameter, Unclipped, NoRoot])
def test_a_broken_mechanism_is_caught(kind):
    # A small radius makes w large, so that 1 − w and its root differ enough to be told apart.
    m = kind(flow=Identity(d=2), w=w_for_epsilon(2.0, DELTA, 0.25), radius=0.25)
    assert attacked(m, seeded_rng(66)) > epsilon(m.event, DELTA)


@pytest.mark.parametrize("kind", [LatentNoise, SameNoiseForAll])
def test_the_difference_of_two_rows_is_as_noisy_as_two_rows(kind):
    """Noise shared between rows cancels in their difference, whatever it looks like row by row."""
    m = kind(flow=Identity(d=1), w=0.3, radius=1.0)
    x = np.full((RUNS, 1), 5.0)
    x[::2] = -5.0
    out = m.release(x, seeded_rng(67))
    apart = (out[1::2] - out[::2]).std()
    assert (apart > 1.3 * math.sqrt(0.7)) == (kind is LatentNoise)


# -- the path that a release takes ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Narrow:
    """x = z / 100: a flow whose latents of ordinary records are far outside the ball, and whose output is within
    the dictionary's bounds, so that decoding cuts nothing off."""

    d: int

    def forward(self, z):
        return z / 100

    def inverse(self, x):
        return x * 100

    def log_prob(self, x):
        return np.zeros(len(x))


def two_columns(claim: float) -> StudyPlan:
    radius = 0.25
    return StudyPlan(
        study="extremes",
        version=1,
        title="Two extremes",
        purpose="To attack what leaves.",
        coordinator="hub",
        expires=dt.date(2999, 12, 31),
        release=LatentNoisePlan(w=w_for_epsilon(claim, PLAN_DELTA, radius), radius=radius),
        budget=Budget(epsilon=10.0, delta=PLAN_DELTA),
        waves=(Wave(number=1, opens=dt.date(2000, 1, 1), closes=dt.date(2999, 1, 1)),),
        dictionary=Dictionary(
            name="extremes",
            version=1,
            columns=(
                Column(name="sbp", kind="continuous", lower=0, upper=200),
                Column(name="chol", kind="continuous", lower=0, upper=200),
            ),
        ),
    )


def world(plan: StudyPlan, value: float, rng: Any, folder: Any) -> tuple[float, pd.DataFrame]:
    """5,000 people with one extreme record, all the way into a bundle and out of it: the receipt's ε, and the table."""
    encoder = Encoder(dictionary=plan.dictionary)
    table = plan.dictionary.check(pd.DataFrame({"sbp": np.full(RUNS, value), "chol": np.full(RUNS, 100.0)}))
    source = seeded_rng(68)
    x = encoder.encode(table, source)
    m = LatentNoise(flow=Narrow(encoder.d), w=plan.release.w, radius=plan.release.radius)
    released = encoder.decode(m.release(x, rng)[source.generator.permutation(RUNS)])
    receipt = write_receipt(
        plan, ReceiptDraft(wave=1, site="north", release_id="ab" * 16, agent_version="0.1.0", n=RUNS, previous="0" * 64)
    )
    path = folder / f"{value:g}.zip"
    path.write_bytes(write_bundle(receipt, released))
    bundle = read_bundle(path, cap=1 << 26)
    bundle.receipt.require_true(plan)
    return bundle.receipt.epsilon, bundle.table


@pytest.mark.parametrize("claim", [1.0, 2.0])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_what_stands_in_a_bundle_keeps_the_epsilon_that_its_receipt_prints(tmp_path, claim, factor):
    plan = two_columns(claim)
    rng = Scaled(factor, 69)
    (printed, high), (_, low) = (world(plan, value, rng, tmp_path) for value in (200.0, 0.0))
    assert printed == pytest.approx(claim)
    assert printed == epsilon(planned_event(plan), PLAN_DELTA)
    found = bound_on_epsilon(high["sbp"].to_numpy() > 100, low["sbp"].to_numpy() > 100, PLAN_DELTA)
    assert (found <= printed) == (factor == 1.0)


def test_a_column_in_which_the_worlds_agree_shows_nothing(tmp_path):
    plan = two_columns(2.0)
    (_, high), (_, low) = (world(plan, value, seeded_rng(70), tmp_path) for value in (200.0, 0.0))
    assert stats.ks_2samp(high["chol"], low["chol"]).pvalue > 1e-6
    assert stats.ks_2samp(high["sbp"], low["sbp"]).pvalue < 1e-6


# -- a step of private training -----------------------------------------------------------------------------------
TRAINING = Training(flows=1, hidden=4)


def step_sums(private: PrivateTraining) -> tuple[np.ndarray, np.ndarray]:
    """Clipped sums of two neighbouring tables: one record is at +1 or at -1, where its gradients are opposite."""
    from site_agent.models.private_flow import ROOM, clipped_sum, start

    flow = start(1, TRAINING, 7)
    rest = np.random.default_rng(75).normal(size=(20, 1))
    sums = [clipped_sum(flow, np.vstack([rest, [[value]]]), private.clip * (1 - ROOM))[0] for value in (1.0, -1.0)]
    return sums[0], sums[1]


def attacked_step(private: PrivateTraining, rng: Any) -> float:
    """The bound on ε from one step that takes everybody, along the line between the two sums."""
    from site_agent.models.private_flow import noisy

    sums = step_sums(private)
    line = (sums[0] - sums[1]) / np.linalg.norm(sums[0] - sums[1])
    middle = line @ (sums[0] + sums[1]) / 2
    second, first = (noisy(np.tile(one, RUNS), private, rng).reshape(RUNS, -1) @ line > middle for one in sums)
    return bound_on_epsilon(second, first)


@pytest.mark.parametrize("claim", [0.5, 2.0])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_training_step_keeps_its_claim_at_two_opposite_records(claim, factor):
    event = calibration.calibrate(SubsampledGaussian, claim, DELTA, rate=1.0, steps=1)
    private = PrivateTraining(rate=1.0, noise_multiplier=event.noise_multiplier, steps=1, clip=0.05)
    apart = np.linalg.norm(np.subtract(*step_sums(private)))
    assert 1.9 * private.clip < apart <= 2 * private.clip  # the worst that one record can do, nearly
    bound = attacked_step(private, Scaled(factor, 76))
    assert (bound <= epsilon(event, DELTA)) == (factor == 1.0)


def steps_of(private: PrivateTraining, monkeypatch: Any, noise: Any = None) -> list[np.ndarray]:
    """What each step of a real training hands to the optimiser."""
    from site_agent.models import private_flow

    seen: list[np.ndarray] = []
    used = private_flow.start(2, TRAINING, 0).used
    step = private_flow.Adam.step
    monkeypatch.setattr(private_flow.Adam, "step", lambda self, g, rate: (seen.append(g[0, used]), step(self, g, rate)))
    if noise is not None:
        monkeypatch.setattr(private_flow, "noisy", noise)
    y = np.random.default_rng(77).normal(size=(40, 2))
    private_flow.private_layers(y, TRAINING, private, seeded_rng(78))
    return seen


def test_a_training_step_divides_by_the_expected_batch(monkeypatch):
    """The realised one is how many were drawn, which nobody may know."""
    private = PrivateTraining(rate=0.5, noise_multiplier=1.0, steps=6)
    steps = steps_of(private, monkeypatch, noise=lambda total, *_: np.ones_like(total))
    assert len(steps) == 6
    np.testing.assert_array_equal(steps, np.full_like(steps, 1 / (0.5 * 40)))


def test_a_training_step_that_draws_nobody_is_noise_all_the_same(monkeypatch):
    private = PrivateTraining(rate=1e-12, noise_multiplier=1.5, steps=40, clip=0.3)
    noise = np.concatenate(steps_of(private, monkeypatch)) * (1e-12 * 40) / (1.5 * 0.3)
    assert np.all(noise != 0)
    p = stats.chi2(noise.size).cdf((noise**2).sum())
    assert 5e-7 < p < 1 - 5e-7


# -- by night ----------------------------------------------------------------------------------------------------
@pytest.mark.soak
@pytest.mark.parametrize("claim", CLAIMS)
def test_latent_noise_keeps_its_claim_in_a_million_runs_a_side(claim, record_property):
    m = latent_noise(claim, 0.25, d=1)
    bound, half = attacked(m, seeded_rng(71), 1_000_000), attacked(m, Scaled(0.9, 72), 1_000_000)
    record_property("claimed epsilon", claim)
    record_property("bound", round(bound, 4))
    record_property("bound with nine tenths of the noise", round(half, 4))
    assert 0.9 * claim < bound <= claim < half


def audited_epsilon(guesses: int, right: int, canaries: int, delta: float, alpha: float = 0.05) -> float:
    """The largest ε that `right` of `guesses` refutes at level alpha, for one run with `canaries` coins.

    Source: Steinke, Nasr & Jagielski (2023), Privacy auditing with one training run, Theorem 5.2.
    """

    def p_value(eps: float) -> float:
        odds = stats.binom(guesses, 1 / (1 + math.exp(-eps)))
        tail, mass, worst = float(odds.sf(right - 1)), 0.0, 0.0
        for i, term in enumerate(odds.pmf(np.arange(right - 1, -1, -1)), start=1):
            mass += float(term)
            worst = max(worst, mass / i)
            if i > 10_000 or term == 0:
                break
        return min(1.0, tail + 2 * canaries * delta * worst)

    low, high = 0.0, 20.0
    if p_value(low) > alpha:
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) < alpha else (low, middle)
    return low


ONE_RUN_DELTA = 1e-6
"""Beside n canaries the theorem pays about 2 n δ."""


def one_run(m: LatentNoise, rng: Any, canaries: int, kept: int, seed: int) -> float:
    """One release in which each canary's coin puts it at one extreme or the other; the surest guesses count."""
    coins = np.random.default_rng(seed).integers(0, 2, canaries) * 2 - 1
    x = np.zeros((canaries, m.flow.d))
    x[:, 0] = coins * 1e3
    score = m.release(x, rng)[:, 0]
    sure = np.argsort(-np.abs(score))[:kept]
    right = int((np.sign(score[sure]) == coins[sure]).sum())
    return audited_epsilon(kept, right, canaries, ONE_RUN_DELTA)


@pytest.mark.soak
@pytest.mark.parametrize("canaries", [1_000, 10_000])
def test_one_run_with_many_canaries_never_refutes_the_claim(canaries, record_property):
    """Weaker than two worlds (it misses halved noise more often than not), and what a single training run allows."""
    m = LatentNoise(flow=Identity(d=2), w=w_for_epsilon(4.0, ONE_RUN_DELTA, 0.25), radius=0.25)
    kept = canaries // 20
    whole, quarter = (
        [one_run(m, Scaled(factor, 80 + k), canaries, kept, k) for k in range(20)] for factor in (1.0, 0.25)
    )
    record_property("claimed epsilon", 4.0)
    record_property("runs", len(whole))
    record_property("largest bound", round(max(whole), 3))
    record_property("largest bound with a quarter of the noise", round(max(quarter), 3))
    record_property("found with a quarter of the noise", sum(bound > 4.0 for bound in quarter))
    assert max(whole) <= 4.0
    assert np.mean(quarter) > np.mean(whole)


def test_the_bound_of_one_run_is_the_exact_binomial_one_without_delta():
    """All of n guesses right refutes every ε with (e^ε / (1 + e^ε))^n < α."""
    n = 200
    exact = -math.log(0.05 ** (-1 / n) - 1)
    assert audited_epsilon(n, n, n, 0.0) == pytest.approx(exact, abs=2e-3)
    assert audited_epsilon(n, n // 2, n, 0.0) == 0.0
    assert audited_epsilon(n, n, n, 1e-5) < audited_epsilon(n, n, n, 0.0)


def test_the_best_attack_on_a_plan_is_not_a_blunt_one():
    """The bound comes within reach of the claim, so that a small breach would show."""
    m = latent_noise(2.0, 0.25)
    assert attacked(m, seeded_rng(73)) > 0.6 * 2.0
    assert replace(m, w=0.0).event.sensitivity == 0
