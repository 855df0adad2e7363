"""The attacks find what was planted, and the gate says so."""

import dataclasses
import json

import numpy as np
import pytest
from scipy import stats

from shared.errors import AuditRefusal, ParameterError
from shared.mechanisms.latent_noise import LatentNoise, default_radius
from shared.randomness import seeded_rng
from shared.simulated import gaussian_table
from site_agent.audit import AuditLimits, AuditReport, Rate, gate, linkage, membership_auc, run_audit
from site_agent.models.flow import FlowSettings, fit_flow, refit_flow

SETTINGS = FlowSettings(flows=2, hidden=16, epochs=3, patience=2, margins="none")
LIMITS = AuditLimits(membership_auc=0.58, own_row_linkage=0.05, extreme_linkage=0.20)


def table(n=1500, seed=1):
    return gaussian_table(np.random.default_rng(seed), n, 5, 0.9)


def attacked(x, release, rng, held_back=0.2):
    """Attack `release(records) -> rows`, on all records and on four fifths."""
    order = rng.generator.permutation(len(x))
    cut = round(held_back * len(x))
    held, inside = x[order[:cut]], x[order[cut:]]
    return run_audit(x=x, released=release(x), latents=x, fitted_on=inside, held_back=held, probe=release(inside))


def latent_noise_report(w, n=1500, seed=1):
    """A latent-noise release of `table`, attacked as the site attacks it."""
    x, rng = table(n), seeded_rng(seed)
    fitted = fit_flow(x, SETTINGS, rng)
    mechanism = LatentNoise(flow=fitted.flow, w=w, radius=default_radius(5))
    order = rng.generator.permutation(n)
    held, inside = x[order[: n // 5]], x[order[n // 5 :]]
    stand_in = refit_flow(inside, SETTINGS, rng, epochs=fitted.epochs)
    return run_audit(
        x=x,
        released=mechanism.release(x, rng),
        latents=fitted.flow.inverse(x),
        fitted_on=inside,
        held_back=held,
        probe=dataclasses.replace(mechanism, flow=stand_in.flow).release(inside, rng),
    )


def copies(records):
    """A planted over-fit: the 'synthetic' rows are the records, barely moved."""
    return records + 1e-3 * np.random.default_rng(3).normal(size=records.shape)


def fresh(records):
    """A release that owes nothing to its records."""
    return gaussian_table(np.random.default_rng(len(records)), len(records), 5, 0.9)


def test_a_release_that_samples_the_flow_passes():
    report = latent_noise_report(w=0.0)
    gate(report, LIMITS)
    assert report.own_row.value < 0.01
    assert report.membership.low < 0.52
    assert report.twin_probability == pytest.approx(0.5, abs=0.03)
    assert report.median_rank == pytest.approx(750, rel=0.1)


def test_a_planted_over_fit_release_is_refused():
    report = attacked(table(), copies, seeded_rng(1))
    assert report.membership.value > 0.99
    assert report.own_row.value > 0.99
    assert report.twin_probability < 0.01
    with pytest.raises(AuditRefusal, match="limits are exceeded") as refusal:
        gate(report, LIMITS)
    assert refusal.value.next_step


def test_a_flow_that_copies_its_records_is_refused_even_if_the_release_is_not_linked():
    x = table()
    order = np.random.default_rng(1).permutation(len(x))
    inside, held = x[order[:1200]], x[order[1200:]]
    report = run_audit(
        x=x, released=fresh(x), latents=x, fitted_on=inside, held_back=held, probe=np.roll(copies(inside), 1, axis=0)
    )
    assert report.own_row.value < 0.01
    with pytest.raises(AuditRefusal, match="membership AUC"):
        gate(report, LIMITS)


def test_linkage_catches_what_membership_lets_pass():
    report = latent_noise_report(w=0.8)
    assert report.membership.value < 0.58
    assert 0.10 < report.own_row.value < 0.22
    assert report.extreme.value > 3 * report.own_row.value
    with pytest.raises(AuditRefusal, match="linkage"):
        gate(report, LIMITS)


def test_limits_of_the_plan_decide():
    gate(latent_noise_report(w=0.8), AuditLimits(membership_auc=0.58, own_row_linkage=0.25, extreme_linkage=0.9))


def test_a_release_independent_of_its_records_is_at_chance():
    report = attacked(table(), fresh, seeded_rng(2))
    assert report.membership.low < 0.5 < report.membership.high
    assert report.own_row.low <= report.own_row.chance <= report.own_row.high


def test_too_few_records_to_tell_are_refused():
    report = attacked(table(60), fresh, seeded_rng(3), held_back=0.1)
    with pytest.raises(AuditRefusal, match="too small to tell") as refusal:
        gate(report, AuditLimits(membership_auc=1.0, own_row_linkage=1.0, extreme_linkage=1.0))
    assert "more persons" in refusal.value.next_step


def rate(value, half=0.01):
    return Rate(value=value, low=value - half, high=value + half, chance=0.001)


def report_of(auc=0.5, plain=0.5, own=0.01, extreme=0.05, half=0.01):
    return AuditReport(
        membership=rate(auc, half),
        membership_plain=rate(plain),
        own_row=rate(own),
        extreme=rate(extreme),
        twin_probability=0.4,
        median_rank=300.0,
        n=1000,
        n_fitted=800,
        n_held_back=200,
    )


@pytest.mark.parametrize(
    "figures", [{}, {"auc": 0.58}, {"own": 0.05}, {"extreme": 0.20}, {"half": 0.199}], ids=lambda f: str(f)
)
def test_figures_within_their_limits_pass(figures):
    gate(report_of(**figures), LIMITS)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"auc": 0.581}, "membership AUC must be at most 0.58"),
        ({"plain": 0.60}, "standardised"),
        ({"own": 0.051}, "own-row linkage must"),
        ({"extreme": 0.21}, "most extreme"),
        ({"half": 0.21}, "too small to tell"),
        ({"auc": 0.9, "own": 0.9}, "2 limits"),
    ],
)
def test_each_figure_beyond_its_limit_is_refused(figures, message):
    with pytest.raises(AuditRefusal, match=message):
        gate(report_of(**figures), LIMITS)


def scores(near, far):
    """`membership_auc` on given distances: a release of one row at the origin."""
    return membership_auc(near[:, None], far[:, None], np.zeros((1, 1)))


def test_auc_counts_ties_one_half_and_matches_the_rank_test():
    rng = np.random.default_rng(1)
    near, far = rng.integers(0, 20, 80).astype(float), rng.integers(3, 25, 50).astype(float)
    expected = np.mean([(a < b) + 0.5 * (a == b) for a in near for b in far])
    assert scores(near, far).value == pytest.approx(expected, abs=1e-12)
    assert scores(near, far).value == pytest.approx(stats.mannwhitneyu(far, near).statistic / 4000, abs=1e-12)


def test_auc_interval_covers_the_truth_at_its_rate():
    rng = np.random.default_rng(2)
    truth = stats.norm.cdf(0.5 / np.sqrt(2))
    draws = [scores(np.exp(rng.normal(size=120)), np.exp(rng.normal(0.5, 1, 60))) for _ in range(600)]
    assert 0.92 < np.mean([e.low <= truth <= e.high for e in draws]) < 0.98


def test_auc_of_a_perfect_separation_still_has_an_interval():
    perfect = scores(np.zeros(30), np.ones(20))
    assert perfect.value == perfect.high == 1.0
    assert perfect.low < 1.0


def test_linkage_finds_own_rows_and_counts_ties_for_the_attacker():
    real = np.array([[0.0], [4.0], [9.0]])
    released = np.array([[1.0], [1.0], [9.0]])
    assert linkage(real, released).tolist() == [True, True, True]
    assert linkage(real, released[::-1]).tolist() == [False, True, False]


def test_linkage_interval_is_clopper_pearsons():
    x = table(400)
    released = fresh(x)
    released[:40] = x[:40]
    report = run_audit(x=x, released=released, latents=x, fitted_on=x[:300], held_back=x[300:], probe=fresh(x[:300]))
    reference = stats.binomtest(round(report.own_row.value * 400), 400).proportion_ci(method="exact")
    assert (report.own_row.low, report.own_row.high) == pytest.approx((reference.low, reference.high))
    assert report.own_row.value >= 0.1


def test_extremes_are_those_with_the_largest_latent_norms():
    x = table(1000)
    norms = np.linalg.norm(x, axis=1)
    far = norms >= np.sort(norms)[-50]
    released = fresh(x)
    released[far] = x[far]
    report = run_audit(x=x, released=released, latents=x, fitted_on=x[:800], held_back=x[800:], probe=fresh(x[:800]))
    assert report.extreme.value == 1.0
    assert report.own_row.value < 0.1


def test_ranks_agree_with_a_direct_count():
    x = table(120)
    released = x + np.random.default_rng(1).normal(0, 0.5, x.shape)
    report = run_audit(x=x, released=released, latents=x, fitted_on=x[:90], held_back=x[90:], probe=released[:90])
    factor = np.linalg.inv(np.linalg.cholesky(np.cov(x, rowvar=False, bias=True)))
    real, made = x @ factor.T, released @ factor.T
    nearer = [
        (np.linalg.norm(np.delete(real, i, axis=0) - real[i], axis=1) < np.linalg.norm(real[i] - made[i])).sum()
        for i in range(120)
    ]
    assert report.median_rank == np.median(nearer)
    assert report.twin_probability == pytest.approx(np.mean(nearer) / 119)


def test_a_constant_column_does_no_harm():
    x = np.column_stack([table(200), np.zeros(200)])
    released = np.column_stack([fresh(table(200)), np.zeros(200)])
    report = run_audit(x=x, released=released, latents=x, fitted_on=x[:150], held_back=x[150:], probe=released[:150])
    assert report.own_row.value < 0.1


def test_a_report_reads_back_from_json():
    report = report_of()
    assert AuditReport.from_canonical(json.loads(json.dumps(report.to_canonical()))) == report


def test_the_words_promise_nothing():
    text = " ".join(report_of(auc=0.6).sentences())
    assert "Attacks we tried" in text
    assert "others may do better" in text
    assert "safe" not in text


def test_records_are_left_alone():
    x = table(200)
    kept = x.copy()
    attacked(x, fresh, seeded_rng(1))
    assert np.array_equal(x, kept)


@pytest.mark.parametrize("wrong", ["released", "latents", "probe", "held_back"])
def test_shapes_that_do_not_fit_are_refused(wrong):
    x = table(100)
    given = {"x": x, "released": x, "latents": x, "fitted_on": x[:80], "held_back": x[80:], "probe": x[:80]}
    given[wrong] = given[wrong][:1]
    with pytest.raises(ParameterError, match="fit together"):
        run_audit(**given)
