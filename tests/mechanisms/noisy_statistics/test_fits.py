"""The paper's fits of generators to a slicing release, which benchmarks compare ours with: gradients and files."""

from __future__ import annotations

import io
import itertools
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stage.hospital_side.pipeline import release, site, source  # noqa: F401
from stage.hospital_side.site_desk import hospital  # noqa: F401

from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError, SchemaRefusal
from shared.mechanisms.slicing.noise import RowCode, SlicingMechanism
from shared.plans.dictionary import Column, Dictionary
from tests.benchmarks.paper.divergence import Divergence, Wasserstein
from tests.benchmarks.paper.fits import FITS, Settings, generator, is_checkpoint
from tests.benchmarks.paper.network import GeneratorNetwork

PAIR = Dictionary(
    name="pair",
    version=1,
    columns=(
        Column(name="sbp", kind="continuous", lower=70, upper=270),
        Column(name="sex", kind="binary"),
        Column(name="clinic", kind="nominal", levels=("north", "south", "west"), missing="level"),
        Column(name="parity", kind="integer", lower=0, upper=15, missing="level"),
    ),
)
CODE = RowCode(dictionary=PAIR)
NEURAL = [name for name in FITS if name != "moments"]
SHORT = {"steps": 100, "batch": 64, "groups": 6}


def pairs(n: int) -> pd.DataFrame:
    """Checked records in which men have higher pressure and two thirds go to one clinic."""
    rng = np.random.default_rng(4)
    sex = rng.integers(0, 2, n).astype(float)
    clinic = rng.choice([0.0, 1.0, 2.0, np.nan], n, p=[0.6, 0.2, 0.1, 0.1])
    parity = np.where(sex == 1, np.nan, rng.integers(0, 4, n))
    return pd.DataFrame({"sbp": 120 + 60 * sex + 5 * rng.standard_normal(n), "sex": sex, "clinic": clinic}).assign(
        parity=parity
    )


def lines(n: int, sigma: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    mechanism = SlicingMechanism(d=CODE.d, slices=3 * CODE.d, sigma=sigma, distance=CODE.distance)
    return mechanism.release(CODE.encode(pairs(n)), seeded_rng(6))


@pytest.fixture(scope="module")
def released() -> tuple[np.ndarray, np.ndarray]:
    return lines(900)


# -- gradients ---------------------------------------------------------------------------------------------------
def plainly(real, seen, k, groups, kind, widths):
    """The f-divergence as the paper writes it, one slice and one bandwidth at a time, in float64."""
    total = 0.0
    for s in range(groups):
        o, y = real[:, s * k : (s + 1) * k], seen[:, s * k : (s + 1) * k]
        apart = ((o[:, None] - o[None]) ** 2).sum(-1), ((o[:, None] - y[None]) ** 2).sum(-1)
        r = np.zeros(len(o))
        for width in (2 * widths[s], widths[s], widths[s] / 2):
            own, across = (np.exp(-d / (2 * width**2)) for d in apart)
            r += np.linalg.solve(own + 0.1 * np.eye(len(o)), across.sum(axis=1)) * len(o) / len(y) / 3
        r = np.maximum(r, 0)
        f = (r - 1) ** 2 if kind == "chi2" else r * np.log(np.maximum(r, 1e-6)) - r + 1
        total += f.mean() / groups
    return total


@pytest.mark.parametrize(("k", "kind", "drawn"), [(1, "chi2", 12), (2, "kl", 12), (3, "chi2", 9)])
def test_the_divergence_is_the_paper_s_and_its_gradient_is_the_slope(k, kind, drawn):
    rng = np.random.default_rng(1)
    real, groups = rng.normal(size=(12, 8)), 2
    objective = Divergence(real, [np.arange(12)], k=k, groups=groups, kind=kind)
    widths = []
    for s in range(groups):
        o = real[:, s * k : (s + 1) * k]
        widths.append(np.median([np.linalg.norm(a - b) for a, b in itertools.combinations(o, 2)]))
    seen = rng.normal(size=(drawn, 8)).astype(np.float32)
    loss, slope = objective(0, seen)
    assert loss == pytest.approx(plainly(real, seen.astype(float), k, groups, kind, widths), rel=1e-4)
    along = rng.normal(size=seen.shape)
    step = 1e-5
    ends = [plainly(real, seen + sign * step * along, k, groups, kind, widths) for sign in (1, -1)]
    assert float((slope * along).sum()) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-3, abs=1e-5)
    assert not slope[:, k * groups :].any()


def test_sorted_sums_are_compared_as_wasserstein_does():
    rng = np.random.default_rng(3)
    real, seen = rng.normal(size=(50, 3)), rng.normal(1, 2, size=(50, 3)).astype(np.float32)
    objective = Wasserstein(real, [np.arange(20), np.arange(20, 50)])
    loss, slope = objective(0, seen)
    assert loss == pytest.approx(((np.sort(real, axis=0) - np.sort(seen, axis=0)) ** 2).mean(), rel=1e-5)
    ends = [objective(0, seen + sign * np.float32(1e-2) * slope)[0] for sign in (1, -1)]
    assert ends[0] - ends[1] == pytest.approx(2e-2 * float((slope**2).sum()), rel=0.02)
    # As many drawn as there are quantiles of another number of lines: no distance from a law to itself, but for ends.
    wide = stats.norm.ppf((np.arange(200) + 0.5) / 200)[:, None].repeat(3, axis=1).astype(np.float32)
    assert Wasserstein(wide.astype(float), [np.arange(200)])(0, wide[::2])[0] < 1e-3


def test_the_network_s_way_back_is_the_slope_of_its_way_forward():
    """Of the parts that have one: numbers, where no draw of a missing value is near."""
    code = RowCode(dictionary=replace(PAIR, columns=(PAIR.columns[0], replace(PAIR.columns[0], name="dbp"))))
    network, rng = GeneratorNetwork(code), np.random.default_rng(5)
    theta = 2 * network.start(rng)
    push = rng.normal(size=(40, code.d)).astype(np.float32)
    slope = network.backward(theta, network.forward(theta, 40, np.random.default_rng(1)), push)
    along = rng.normal(size=theta.shape).astype(np.float32)
    step = np.float32(1e-3)
    ends = [
        float((network.forward(theta + sign * step * along, 40, np.random.default_rng(1)).rows * push).sum())
        for sign in (1, -1)
    ]
    assert float(slope @ along) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02)


# -- fits --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("n", [900, 5, 1])
def test_every_fit_gives_rows_of_the_dictionary(name, n, released):
    found = generator(CODE, [released if n == 900 else lines(n)], 0.5, Settings(fit=name, **SHORT))
    rows, table = found.generator.rows(50, np.random.default_rng(1))
    PAIR.validate_release(table)
    assert rows.shape == (50, CODE.d)
    assert found.finished
    with pytest.raises(ParameterError, match="at least one row"):
        found.generator.rows(0, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("name", "more"), [("f_divergence", {}), ("f_divergence", {"divergence": "kl", "k": 1}), ("sliced_wasserstein", {})]
)
def test_a_network_learns_from_noisy_lines_how_columns_hang_together(name, more):
    """Of two releases of different persons; by 300 steps, the records' gap of 60 is there in part."""
    settings = Settings(fit=name, **{**SHORT, "steps": 300, "groups": 9, "rate": 1e-2, **more})
    both = [lines(600, 0.1), lines(300, 0.1)]
    table = generator(CODE, both, 0.1, settings).generator.rows(4000, np.random.default_rng(1))[1]
    men, women = (table[table["sex"] == level] for level in (1, 0))
    assert men["sbp"].mean() - women["sbp"].mean() > 15
    assert men["parity"].isna().mean() > women["parity"].isna().mean() + 0.1
    assert (table["clinic"] == "north").mean() == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize("name", NEURAL)
def test_a_stopped_fit_goes_on_to_the_same_weights_and_a_seed_decides_them(name, tmp_path, released):
    settings, file, told = Settings(fit=name, **SHORT), tmp_path / "fit.npz", []
    whole = generator(CODE, [released], 0.5, settings, watch=told.append)
    assert [(one.step, one.steps) for one in told] == [(50, 100), (100, 100)]
    assert told[0].seconds_left > 0 == told[-1].seconds_left
    half = generator(CODE, [released], 0.5, settings, checkpoint=file, watch=lambda progress: False)
    assert (half.steps, half.finished) == (50, False)
    rest = generator(CODE, [released], 0.5, settings, checkpoint=file)
    again = generator(CODE, [released], 0.5, settings, checkpoint=file)
    for one in (rest, again):
        np.testing.assert_array_equal(one.generator.theta, whole.generator.theta)
        assert (one.losses, one.best_step) == (whole.losses, whole.best_step)
    other = generator(CODE, [released], 0.5, replace(settings, seed=1))
    assert not np.array_equal(other.generator.theta, whole.generator.theta)


def test_a_fit_ends_early_where_the_held_out_lines_get_no_nearer(released, monkeypatch):
    monkeypatch.setattr("tests.benchmarks.paper.fits._PATIENCE", 2)
    settings = Settings(fit="sliced_wasserstein", steps=5000, batch=64, rate=1e-12)
    found = generator(CODE, [released], 0.5, settings)
    assert found.finished
    assert found.steps < 5000
    assert found.losses[-1] >= min(found.losses)
    assert found.best_step == 50 * (1 + int(np.argmin(found.losses)))


def packed(kind: int = zipfile.ZIP_STORED, **arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if kind == zipfile.ZIP_DEFLATED else np.savez)(out, **arrays)
    return out.getvalue()


def claiming(values: int) -> bytes:
    head, out = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (values,)})
    with zipfile.ZipFile(out, "w") as held:
        for name in ("told.npy", "weights.npy"):
            held.writestr(name, head.getvalue())
    return out.getvalue()


def test_a_checkpoint_of_something_else_is_refused(tmp_path, released):
    settings, file = Settings(fit="sliced_wasserstein", **SHORT), tmp_path / "fit.npz"
    generator(CODE, [released], 0.5, settings, checkpoint=file)
    good = file.read_bytes()
    assert is_checkpoint(file)
    others = [
        (packed(told=np.frombuffer(b"[" * 200_000, dtype=np.uint8), weights=np.zeros(3)), settings),  # a deep nest
        (packed(zipfile.ZIP_DEFLATED, told=np.zeros(9), weights=np.zeros(1 << 20)), settings),  # small, and large
        (claiming(1 << 44), settings),  # 64 TiB in 300 bytes
        (good[: len(good) // 2], settings),
        (b"", settings),
        (b"\x80\x04N.", settings),  # a pickle
        (good.replace(b'"step": 100', b'"step": 999'), settings),
        (good, replace(settings, seed=5)),
    ]
    for k, (data, asked) in enumerate(others):
        file.write_bytes(data)
        assert is_checkpoint(file) == (k in (0, len(others) - 1))
        with pytest.raises(SchemaRefusal, match="lines and settings"):
            generator(CODE, [released], 0.5, asked, checkpoint=file)
    file.write_bytes(good)
    with pytest.raises(SchemaRefusal, match="lines and settings"):
        generator(CODE, [lines(901)], 0.5, settings, checkpoint=file)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fit": "gan"}, "one of moments"),
        ({"divergence": "js"}, "chi2 or kl"),
        ({"k": 0}, "k must"),
        ({"steps": 0}, "steps"),
        ({"batch": 1}, "batch"),
        ({"seed": -1}, "seed"),
        ({"rate": float("nan")}, "rate"),
    ],
)
def test_settings_out_of_reason_are_refused(wrong, words):
    with pytest.raises(ParameterError, match=words):
        Settings(**wrong)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_without_lines_is_refused(name):
    with pytest.raises(EstimateRefusal, match="released lines"):
        generator(CODE, [(np.eye(CODE.d), np.empty((0, CODE.d)))], 0.5, Settings(fit=name, **SHORT))
