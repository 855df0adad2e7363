"""Local privacy and private quantiles: their draws, which of two ways has less noise, and what is refused.

What they cost is worked out in tests/both_sides/privacy/test_choices.py, answer by answer.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from shared.base.randomness import seeded_rng
from shared.errors import ParameterError
from shared.mechanisms.densities.local import LocalCounts, better
from shared.mechanisms.densities.noise import Grid
from shared.mechanisms.densities.quantiles import Quantiles
from shared.plans.dictionary import Column
from shared.privacy import accountant as privacy
from shared.privacy.accountant import RandomisedResponse

ALPHA = 1e-6


def grid(level: int) -> Grid:
    return Grid(columns=(Column(name="x", kind="continuous", lower=0, upper=1),), level=level)


# -- exact draws ------------------------------------------------------------------------------------------------------
def test_a_choice_has_exactly_the_odds_of_the_exponential_mechanism():
    short, rate = np.array([0, 3, 1, 0, 40]), Fraction(7, 8)
    rng = seeded_rng(3)
    drawn = Counter(rng.likeliest(short, rate) for _ in range(1500))
    weight = np.exp(-float(rate) * short)
    expected = 1500 * weight / weight.sum()
    assert drawn[4] == 0
    seen = np.array([drawn[i] for i in range(4)])
    assert stats.chi2.sf(((seen - expected[:4]) ** 2 / expected[:4]).sum(), 3) > ALPHA


def test_even_draws_are_even_and_what_cannot_be_drawn_is_refused():
    rng = seeded_rng(4)
    seen = np.bincount(rng.uniform(7, 14_000), minlength=7)
    assert stats.chi2.sf(((seen - 2000) ** 2 / 2000).sum(), 6) > ALPHA
    for bound in (0, -1, 2.5, True):
        with pytest.raises(ParameterError, match="bound"):
            rng.uniform(bound, 3)
    for short, rate in (([], 1), ([1, 2], 1), ([0, 1 << 61], 9), ([0, 1], -1)):
        with pytest.raises(ParameterError):
            rng.likeliest(np.array(short, dtype=np.int64), Fraction(rate))


# -- local ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("k", [2, 3, 64])
@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 4.0])
def test_no_report_is_likelier_from_one_person_than_from_another_by_more_than_the_price(k, epsilon):
    made = LocalCounts(grid=grid(int(math.log2(k)) if k != 3 else 2), epsilon=epsilon, how="randomised response")
    truth, other = made.truth, (1 - made.truth) / (made.grid.size - 1)
    assert math.log(truth / other) <= epsilon
    assert math.log(truth / other) > epsilon - 1e-6
    assert privacy.pure_epsilon(made.event) == epsilon
    assert privacy.pure_epsilon(LocalCounts(grid=made.grid, epsilon=epsilon).event) == pytest.approx(epsilon)
    # The whole law of a report costs no more at any Rényi order than it is charged.
    one, two, rest = math.log(truth), math.log(other), math.log(max(made.grid.size - 2, 1e-300) * other)
    for a, charged in zip(privacy.ORDERS, privacy.rdp(made.event), strict=True):
        terms = [a * one + (1 - a) * two, a * two + (1 - a) * one, rest]
        assert np.logaddexp.reduce(terms) / (a - 1) <= charged + 1e-12


@pytest.mark.parametrize("how", ["Laplace", "randomised response"])
def test_counts_put_right_are_unbiased_with_the_noise_that_is_stated(how):
    made = LocalCounts(grid=grid(3), epsilon=1.5, how=how)
    codes = np.repeat(np.arange(8), [160, 120, 40, 32, 24, 16, 8, 0])
    true = np.bincount(codes, minlength=8)
    rng = seeded_rng(5)
    drawn = np.array([made.counts(made.report(codes, rng), len(codes)) for _ in range(100)])
    stated = np.array([made.variance(len(codes), share) for share in true / len(codes)])
    z = (drawn.mean(axis=0) - true) / np.sqrt(stated / 100)
    assert stats.chi2.sf((z**2).sum(), 8) > ALPHA
    ratio = drawn.var(axis=0, ddof=1) / stated
    # A variance of 100 draws is known to 14 %: five of them on the mean of eight, which hang together.
    assert ratio.mean() == pytest.approx(1, abs=0.4)
    if how == "randomised response":
        assert made.report(codes, rng).sum() == len(codes)


def test_the_better_way_is_the_one_with_less_noise():
    for k in (8, 64, 256):
        for epsilon in (0.3, 1.0, 2.0, 3.0, 6.0):
            both = {
                how: LocalCounts(grid=grid(int(math.log2(k))), epsilon=epsilon, how=how).variance(1000)
                for how in ("Laplace", "randomised response")
            }
            chosen = better(epsilon, k)
            # The continuous law decides; rounding adds a twelfth to Laplace's variance.
            assert both[chosen] <= 1.1 * min(both.values()) + 1000 / 12
    # Whatever is asked, an answer: refusing a price is the plan's part.
    assert [better(epsilon, 64) for epsilon in (1e-17, 800.0)] == ["Laplace", "randomised response"]


@pytest.mark.parametrize("wrong", [{"epsilon": 9e-5}, {"epsilon": 41.0}, {"epsilon": math.inf}, {"how": "Gaussian"}])
def test_a_report_that_cannot_be_is_refused(wrong):
    with pytest.raises(ParameterError):
        LocalCounts(**{"grid": grid(3), "epsilon": 1.0, **wrong})


def test_records_are_reported_from_their_cells():
    made = LocalCounts(grid=grid(2), epsilon=40.0, how="randomised response")
    frame = pd.DataFrame({"x": [0.1, 0.1, 0.9]})
    np.testing.assert_array_equal(made.release(frame, seeded_rng(1)), [2, 0, 0, 1])
    assert isinstance(made.event, RandomisedResponse)


@pytest.mark.parametrize("each", [0.2, 1.0, 3.0])
def test_many_reports_of_one_person_cost_no_less_than_the_worst_mechanism_does_and_never_more_than_their_sum(each):
    """Of all ε-DP mechanisms binary responses tell most; k of them have a δ in closed form at every ε."""
    for k in (1, 2, 5, 20):
        events = [RandomisedResponse(epsilon=each)] * k
        ours = privacy.epsilon(events, 1e-6)
        adaptive = min(privacy.epsilon_from_rdp(k * privacy.rdp(events[0]), 1e-6), privacy.pure_epsilon(events))
        own = np.arange(k + 1)
        log_p, log_q = -math.log1p(math.exp(-each)), -math.log1p(math.exp(each))
        mass = stats.binom.pmf(own, k, math.exp(log_p))
        loss = (2 * own - k) * (log_p - log_q)
        for total in (ours, adaptive):
            assert total <= k * each * (1 + 1e-12)
            assert (mass * np.maximum(-np.expm1(total - loss), 0.0)).sum() <= 1e-6 * (1 + 1e-6)
        assert ours <= adaptive + 1e-12


# -- quantiles --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("values", [[], [0.5] * 40, [0.0] * 20 + [1.0] * 20, [-5.0, 9.0, 0.3]], ids=len)
@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_odd_columns_give_borders_in_order_within_the_bounds(values, epsilon):
    made = Quantiles(lower=0.0, upper=1.0, depth=5, epsilon=epsilon)
    drawn = made.release(np.array(values), seeded_rng(8))
    assert drawn.shape == (31,)
    assert (np.diff(drawn) >= 0).all()
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert privacy.pure_epsilon(made.event) <= epsilon


@pytest.mark.parametrize(
    "wrong", [{"lower": 2.0}, {"upper": math.inf}, {"depth": 0}, {"depth": 9}, {"epsilon": 0.0}, {"epsilon": math.nan}]
)
def test_quantiles_that_cannot_be_are_refused(wrong):
    with pytest.raises(ParameterError):
        Quantiles(**{"lower": 0.0, "upper": 1.0, "depth": 3, "epsilon": 1.0, **wrong})
    with pytest.raises(ParameterError, match="numbers"):
        Quantiles(lower=0.0, upper=1.0, depth=3, epsilon=1.0).release(np.array([math.nan]), seeded_rng(1))
