"""What the commands that repeat the paper's experiments rest on says what it is said to say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shared.flows.affine import AffineAutoregressiveFlow
from shared.mechanisms.latent_noise.noise import LatentNoise
from site_agent.release.audit.distances import membership_auc
from tests.benchmarks import lni_311, lni_312
from tests.benchmarks.lni_repeat import FALSE_ALARMS, Common, attacked, distance, matched, repeated
from tests.benchmarks.paper.studies import gaussian_table, linear_studies


def test_the_attack_is_the_audits_and_its_curve_has_its_area():
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(size=(600, 3)), rng.normal(size=(500, 3))
    released = inside + 0.2 * rng.normal(size=inside.shape)
    auc, hits = attacked(inside, outside, released)
    assert auc == pytest.approx(membership_auc(inside, outside, released).value, abs=1e-12)
    assert np.trapezoid(hits, FALSE_ALARMS) == pytest.approx(auc, abs=0.01)
    assert attacked(inside, outside, inside)[0] == 1


def test_common_noise_is_the_mechanisms_formula_with_one_noise_for_every_w():
    rng = np.random.default_rng(2)
    flow = AffineAutoregressiveFlow(mean=np.array([1.0, -2.0]), scale=np.array([[2.0, 0.0], [0.5, 0.3]]))
    x, z = rng.normal(size=(50, 2)), rng.normal(size=(50, 2))
    for w in (0.0, 0.5, 0.8, 0.99):
        released = LatentNoise(flow=flow, w=w, radius=30.0).release(x, Common(z))
        wanted = flow.forward(math.sqrt(w) * flow.inverse(x) + math.sqrt(1 - w) * z)
        assert np.abs(released - wanted).max() < 5e-3


def test_matched_noise_has_the_moments_that_make_a_release_keep_its_own():
    rng = np.random.default_rng(3)
    latents, z = rng.normal(size=(200, 3)), rng.normal(size=(200, 3))
    noise = matched(latents, z)
    assert np.abs(noise.mean(axis=0)).max() < 1e-12
    assert np.abs(noise.T @ noise / 200 - np.eye(3)).max() < 1e-12
    assert np.abs(noise.T @ latents).max() < 1e-9


def test_a_flow_without_error_is_as_far_off_as_theory_says():
    draws = [gaussian_table(np.random.default_rng(k), 400) for k in range(300)]
    noise = [np.random.default_rng(1000 + k).standard_normal((400, 5)) for k in range(300)]
    for w in (0.0, 0.75):
        off = []
        for x, z in zip(draws, noise, strict=True):
            factor = np.linalg.cholesky(np.cov(x, rowvar=False, ddof=0))
            latents = np.linalg.solve(factor, (x - x.mean(axis=0)).T).T
            off.append(lni_311.rho((math.sqrt(w) * latents + math.sqrt(1 - w) * z) @ factor.T))
        # The error of a mean distance of 300 draws is 4.4 %: five of them, and what n = 400 leaves of the theory.
        assert np.abs(off).mean() == pytest.approx(lni_311.expected(400, w), rel=0.25)
    sites = [[1.0, 0.5 / 875]] * 10
    assert lni_312.expected([{"sites": sites}], 0.8) == pytest.approx(
        math.sqrt(2 / math.pi) * 0.6 * math.sqrt(0.5 / 8750)
    )


def test_a_stopped_run_goes_on_and_other_settings_are_refused(tmp_path):
    calls = []

    def one(b):
        calls.append(b)
        return {"value": b * b}

    first = repeated(tmp_path / "kept", 2, {"w": (0.0, 0.8)}, one)
    again = repeated(tmp_path / "kept", 3, {"w": (0.0, 0.8)}, one)
    assert calls == [0, 1, 2]
    assert again[:2] == first
    with pytest.raises(SystemExit, match="other settings"):
        repeated(tmp_path / "kept", 1, {"w": (0.0, 0.5)}, one)


def test_a_distance_stands_beside_the_papers():
    row = distance(np.array([0.001, -0.003] * 50), 0.004)
    assert row["mad"] == pytest.approx(0.002)
    assert row["ratio"] == pytest.approx(0.5)
    assert row["bias"] == pytest.approx(-0.001)
    assert row["mad_low"] < row["mad"] < row["mad_high"]


def test_the_second_half_of_a_doubled_study_is_the_same_study():
    for table in linear_studies(np.random.default_rng(4), studies=3, copies=2):
        n = len(table) // 2
        assert 750 <= n <= 1000
        assert len(table) == 2 * n
        slopes = [
            np.linalg.lstsq(np.column_stack([np.ones(n), half[:, :4]]), half[:, 4], rcond=None)[0]
            for half in np.split(table, 2)
        ]
        assert np.abs(slopes[0] - slopes[1]).max() < 6 * math.sqrt(2 * 0.5 / n)
