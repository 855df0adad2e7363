"""How far the records' own estimate is, told without the records: against simulations in which they are there."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.answers.record_gap import MEASURED_TO, unknown_gap
from coordinator.pooling.cautions import DENIED
from coordinator.pooling.gaps import Gap, gap, pooled_gap, reperturbed
from coordinator.pooling.intervals import BENT_TERM, BETWEEN, Draw, kept_shares, with_release_variance
from coordinator.pooling.pool import pool_estimates
from shared.base.randomness import seeded_rng
from shared.errors import ParameterError
from shared.estimands.answer import Estimate, estimate, parse_estimand
from shared.flows.affine import AffineAutoregressiveFlow
from shared.flows.chain import Beside
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.plans.dictionary import Column, Dictionary
from shared.plans.encoding import Encoder

QUESTION = parse_estimand("ols(y) ~ x")
ENCODER = Encoder(
    dictionary=Dictionary(
        name="line",
        version=1,
        columns=tuple(Column(name=name, kind="continuous", lower=-8, upper=8) for name in ("x", "y")),
    )
)
W, N = 0.5, 400


def table(seed, n=N):
    """Rows of y = x / 2 + noise, as encoded and as they are."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=n)
    encoded = np.column_stack([x, x / 2 + draws.normal(size=n)]) / 8
    return encoded, ENCODER.decode(encoded)


def gaussian(encoded, *, slope=None):
    """The flow of maximum likelihood; or one that believes in another slope."""
    covariance = np.cov(encoded.T)
    if slope is not None:
        covariance = np.array([[1.0, slope], [slope, 1.25]]) / 64
    return AffineAutoregressiveFlow(mean=encoded.mean(axis=0), scale=np.linalg.cholesky(covariance))


def slope(rows):
    (found,) = (row for row in estimate(rows, QUESTION, study="s", site="a", wave=1) if row.term == "x")
    return found


@pytest.fixture(scope="module")
def drawn():
    """Of 40 tables: actual distances, and the predictions with and without the flow, by a right and a wrong flow."""
    out = {}
    for name, wrong in (("right", None), ("wrong", 0.0)):
        rows = []
        for seed in range(40):
            encoded, real = table(seed)
            m = LatentNoise(flow=gaussian(encoded, slope=wrong), w=W, radius=9.0)
            released = ENCODER.decode(m.release(encoded, seeded_rng(seed)))
            one = slope(released)
            told = with_release_variance([one], released, QUESTION, [Draw(rows=N, w=W, fitted_on=N)])[0]
            again = reperturbed(m, ENCODER, released, QUESTION, times=6, number=seed)["x"]
            rows.append((one.yi - slope(real).yi, again.rms, gap(told).rms, again.bias))
        out[name] = np.array(rows)
    return out


def rms(values):
    return math.sqrt(float(np.mean(np.square(values))))


def test_both_predictions_have_the_size_of_the_distance_where_the_flow_is_right(drawn):
    actual, again, linear, _ = drawn["right"].T
    # 40 distances tell their size to a ninth; the bounds are three times that.
    assert 0.7 < rms(again) / rms(actual) < 1.4
    assert 0.7 < rms(linear) / rms(actual) < 1.4


def test_what_a_flow_that_is_wrong_takes_away_is_seen_by_releasing_again_and_not_without_it(drawn):
    actual, again, linear, bias = drawn["wrong"].T
    assert abs(actual.mean()) > 0.2
    assert 0.7 < rms(again) / rms(actual) < 1.4
    assert rms(linear) / rms(actual) < 0.5
    assert bias.mean() == pytest.approx(abs(actual.mean()), rel=0.3)


def test_an_interval_holds_nine_in_ten_distances(drawn):
    for name in ("right", "wrong"):
        actual, again = drawn[name][:, 0], drawn[name][:, 1]
        inside = [low <= abs(far) <= high for far, (low, high) in zip(actual, map(interval, again), strict=True)]
        assert np.mean(inside) > 0.75


def interval(size):
    return Gap(bias=0.0, sd=size, how="").interval


def test_the_same_rows_give_the_same_prediction_and_the_rows_stay_as_they_were():
    encoded, real = table(1)
    m = LatentNoise(flow=gaussian(encoded), w=W, radius=9.0)
    before = real.copy()
    first, again = (reperturbed(m, ENCODER, real, QUESTION, times=3) for _ in range(2))
    assert first == again
    assert real.equals(before)


def test_a_pooled_distance_averages_noise_and_not_bias():
    def row(site, yi=0.4, attenuation=0.0):
        return Estimate(
            study="s",
            site=site,
            wave=1,
            term="x",
            yi=yi,
            vi_sampling=0.01,
            vi_privacy=0.005,
            vi_naive=0.01,
            n=500,
            attenuation=attenuation,
        )

    four = pool_estimates([row(name) for name in "abcd"], method="FE", test="z")
    assert pooled_gap(four, dict.fromkeys("abcd")).sd == pytest.approx(math.sqrt(0.005) / 2)
    biased = pool_estimates([row(name, attenuation=0.1) for name in "abcd"], method="FE", test="z")
    assert pooled_gap(biased, dict.fromkeys("abcd")).bias == pytest.approx(0.04)
    assert pooled_gap(four, {}) is None


def test_a_flow_of_other_persons_brings_its_own_distance_and_few_persons_more():
    row = Estimate(
        study="s", site="a", wave=1, term="x", yi=0.2, vi_sampling=0.02, vi_privacy=0.01, vi_naive=0.01, n=50
    )
    # At w = 0 nothing is kept: two independent means of as many persons, and the noise.
    assert gap(row, fitted_on=1.0).sd == pytest.approx(math.sqrt(0.03))
    assert gap(row, fitted_on=0.1).sd > gap(row, fitted_on=1.0).sd > gap(row).sd


def test_what_has_no_number_or_was_not_released_has_no_distance():
    none = Estimate(study="s", site="a", wave=1, term="x", yi=None, vi_sampling=None, n=0, reason="no")
    patients = Estimate(study="s", site="a", wave=1, term="x", yi=0.1, vi_sampling=0.1, n=9)
    assert gap(none) is None
    assert gap(patients) is None


def test_one_draw_tells_no_spread():
    encoded, real = table(1, n=60)
    with pytest.raises(ParameterError, match="twice"):
        reperturbed(LatentNoise(flow=gaussian(encoded), w=W, radius=9.0), ENCODER, real, QUESTION, times=1)


# -- what an influence keeps of itself ------------------------------------------------------------------------------
def test_a_share_is_one_for_the_same_rows_and_none_for_others_and_w_for_a_product_of_two_columns():
    encoded, real = table(3, n=4000)
    assert kept_shares(real, real, QUESTION) == pytest.approx({"intercept": 1.0, "x": 1.0})
    assert abs(kept_shares(real, table(4, n=4000)[1], QUESTION)["x"]) < 0.06
    m = LatentNoise(flow=gaussian(encoded), w=W, radius=9.0)
    again = ENCODER.decode(m.release(encoded, seeded_rng(1)))
    assert kept_shares(real, again, QUESTION)["x"] == pytest.approx(W, abs=0.06)
    # Of a mean it is √w, under the blank name; and a curve has no influence to look at.
    mean = kept_shares(real, again, parse_estimand("mean(y)"))
    assert mean[""] == pytest.approx(math.sqrt(W), abs=0.06)
    assert kept_shares(real.iloc[:3], again.iloc[:3], QUESTION) == {}


def test_a_carried_column_is_not_counted_as_noised():
    """A flow that does not know the group takes 1 − √w of the difference, where it would take 1 − w were all noised."""
    encoder = Encoder(
        dictionary=Dictionary(
            name="groups",
            version=1,
            columns=(
                Column(name="died", kind="event"),
                Column(name="y", kind="continuous", lower=-8, upper=8),
            ),
        )
    )
    question = parse_estimand("ols(y) ~ died")
    inner = AffineAutoregressiveFlow(mean=np.zeros(1), scale=np.array([[1.25 / 8]]))
    m = LatentNoise(flow=Beside(columns=(0,), inner=inner), w=W, radius=9.0, carried=(0,))
    told = []
    for seed in range(12):
        draws = np.random.default_rng(seed)
        died = draws.random(3000) < 0.4
        x = np.column_stack([died + draws.random(3000), (1.5 * died + draws.normal(size=3000)) / 8])
        rows = encoder.decode(m.release(x, seeded_rng(seed)))
        near, far = (
            next(r.yi for r in estimate(part, question, study="s", site="a", wave=1) if r.term.startswith("died"))
            for part in (encoder.decode(x), rows)
        )
        found = reperturbed(m, encoder, rows, question, times=4, number=100 + seed)
        told.append((far - near, next(gap_.bias for term, gap_ in found.items() if term.startswith("died"))))
    actual, bias = np.array(told).T
    assert actual.mean() == pytest.approx(-1.5 * (1 - math.sqrt(W)), rel=0.05)
    assert bias.mean() == pytest.approx(-actual.mean(), rel=0.1)


def released(*rows, mechanism="latent_noise", posture="local", outcomes_last=1.0):
    """A selection of one release a site, as far as `unknown_gap` reads it."""
    receipts = [
        SimpleNamespace(mechanism=mechanism, posture=posture, parameters={"outcomes_last": outcomes_last}, n=n)
        for n in rows
    ]
    return SimpleNamespace(parts={f"s{k}": [SimpleNamespace(receipt=one)] for k, one in enumerate(receipts)})


def pooled(*sandwich, term="x"):
    """A pool of two sites whose rows vary so many times as much as their model says, one figure for both or each."""
    sandwich = sandwich * 2 if len(sandwich) == 1 else sandwich
    rows = [
        Estimate(
            study="s",
            site=f"s{k}",
            wave=1,
            term=term,
            yi=0.4,
            vi_sampling=0.01,
            vi_privacy=0.005,
            vi_naive=0.01,
            vi_sandwich=0.01 * sandwich[k] if sandwich else None,
            n=500,
        )
        for k in range(2)
    ]
    return pool_estimates(rows)


def test_no_distance_is_told_of_more_rows_than_it_was_seen_to_hold_for():
    half = MEASURED_TO // 2
    assert unknown_gap(released(half, half), (), QUESTION, pooled()) == ""
    assert "100,001 rows are pooled" in unknown_gap(released(half, half + 1), (), QUESTION, pooled())
    assert (
        unknown_gap(released(half, half + 1), ("s1",), QUESTION, pooled()) == ""
    )  # released again: what the flow takes away is known
    assert unknown_gap(released(10**6, mechanism="tables"), (), QUESTION, pooled()) == ""


def test_no_distance_is_told_of_flows_that_draw_outcomes_with_covariates_or_saw_no_record_as_it_is():
    assert "draws outcomes together" in unknown_gap(released(500, outcomes_last=0.0), (), QUESTION, pooled())
    assert "was not fitted on the records" in unknown_gap(released(500, posture="public"), (), QUESTION, pooled())


def test_no_distance_is_told_where_the_rows_deny_the_model():
    """Of wages half of such distances held, and on all worlds fewer than elsewhere: a flow draws such rows worst."""
    two, doubted, well = released(500, 500), pooled(DENIED + 0.01), pooled(DENIED - 0.01)
    (caution,) = doubted.doubts
    assert "deny the model behind x" in caution
    assert "not known: the rows deny the model behind x" in unknown_gap(two, (), QUESTION, doubted)
    assert well.doubts == ()
    assert unknown_gap(two, (), QUESTION, well) == ""
    for described in ("share(crp[3 to 42.7])", "q1(age)", "sd(age)", "smd(sex[male]) | drug"):
        assert pooled(DENIED + 0.01, term=described).doubts == (), "a description has no model and no covariate"
    for term, logarithm in (("sex[male]", False), ("sex[male]:arm[drug: 2]", False), ("age:sex[male]", True)):
        [caution] = pooled(DENIED + 0.01, term=term).doubts
        assert ("logarithmic covariate" in caution) is logarithm, term
    assert (
        unknown_gap(two, ("s0", "s1"), QUESTION, doubted) == ""
    )  # released again: what the flow does to such rows is known
    assert unknown_gap(released(500, mechanism="tables"), (), QUESTION, doubted) == ""


def test_where_some_sites_were_released_again_a_distance_is_withheld_for_what_the_others_rows_say():
    """It was withheld for a site whose flow was measured, and told where such a site outweighed one that denies."""
    two, one_denies = released(500, 500), pooled(2 * DENIED, 1.0)
    assert one_denies.doubts
    assert unknown_gap(two, ("s0",), QUESTION, one_denies) == "", "s0 was released again, and s1 denies nothing"
    why = unknown_gap(two, ("s1",), QUESTION, one_denies)
    assert "the rows of s0, which could not be released again, deny the model behind x" in why
    hardly = pooled(1.2 * DENIED, 0.5)
    assert hardly.doubts == ()
    assert "the rows of s0," in unknown_gap(two, ("s1",), QUESTION, hardly)
    many = unknown_gap(released(MEASURED_TO + 1, 500), ("s1",), QUESTION, pooled())
    assert "100,001 rows of s0, which could not be released again, are pooled" in many


def test_no_distance_is_told_of_what_the_flow_alone_draws_of_a_curved_term_or_of_curves_by_group():
    for words, said in ((BETWEEN, "the flow alone says how"), (BENT_TERM, "a curved function of a column")):
        result = replace(pooled(), doubts=(f"Something: {words}.",))
        assert said in unknown_gap(released(500), (), QUESTION, result)
    by_group = parse_estimand("km(time, died, at = 5) ~ arm")
    assert "one hazard is drawn for all groups" in unknown_gap(released(500), (), by_group, pooled())
    assert unknown_gap(released(500), (), parse_estimand("km(time, died, at = 5)"), pooled()) == ""
