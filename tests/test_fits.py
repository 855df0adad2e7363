"""Fits of generators to a slicing release: their gradients, their files, and that they cost nothing."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import zipfile
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from delivered import deliver, join, take_back
from scipy import stats
from service import SMALL, Hub
from site_desk import hospital  # noqa: F401
from test_analysis import Desk
from test_pipeline import release, site, source  # noqa: F401

from coordinator.analyst import commands as client
from coordinator.analyst.commands import connect
from coordinator.answers.synthesis import synthesis
from coordinator.cli import main
from coordinator.config import FILE_NAME, CoordinatorConfig
from coordinator.store.store import Store
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError, SchemaRefusal, StateRefusal
from shared.mechanisms.slicing.divergence import Divergence, Wasserstein
from shared.mechanisms.slicing.fits import FITS, Settings, generator, is_checkpoint
from shared.mechanisms.slicing.network import GeneratorNetwork
from shared.mechanisms.slicing.noise import RowCode, SlicingMechanism
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget
from shared.releases.receipt import read_bundle

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
    monkeypatch.setattr("shared.mechanisms.slicing.fits._PATIENCE", 2)
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


def test_fits_of_a_site_s_release_leave_its_ledger_where_it_was(tmp_path, plan, site, table):  # noqa: F811
    """Fitted, stopped, taken up again and begun anew from a sealed bundle."""
    study = replace(plan, release=SlicingPlan(sigma=6.0), posture="private", budget=Budget(epsilon=50.0, delta=1e-6))
    made = release(study, site, source(tmp_path, table))
    before = list(site.ledger.entries())
    assert [entry.kind for entry in before].count("seal") == 1
    held = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).table
    for name, goes_on, seed in itertools.product(FITS, (False, True), (0, 1)):
        settings = Settings(fit=name, seed=seed, steps=100, batch=100, groups=6)
        file = tmp_path / f"{name}-{seed}.npz"
        fitted = study.release.generator(
            study, [(held, 300)], settings, checkpoint=file, watch=lambda progress, answer=goes_on: answer
        )
        assert fitted.finished == (goes_on or name == "moments")
        assert file.exists() == (name != "moments")
        study.dictionary.validate_release(fitted.generator.rows(20, np.random.default_rng(1))[1])
    assert list(site.ledger.entries()) == before


# -- at the coordinator ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def homes(tmp_path_factory, plan):
    """A coordinator with a site's slicing release, under a plan that lets rows leave and under one that does not."""
    out = {}
    for name, leave in (("open", True), ("closed", False)):
        study = replace(
            plan, dictionary=SMALL, release=SlicingPlan(sigma=1.0), posture="private", estimands={}, row_download=leave
        )
        hub = Hub(tmp_path_factory.mktemp("hub") / name, study)
        records = pd.DataFrame({"sbp": np.linspace(80, 200, 50), "sex": [0.0, 1.0] * 25})
        invitation = hub.invite("north")
        key = join(hub.store, invitation)
        deliver(hub.store, study, "north", key, study.release.draw(study, records, seeded_rng(2)), n=50)
        hub.store.close()
        settings = CoordinatorConfig(home=hub.home, name="hub", address="localhost:9443")
        (hub.home / FILE_NAME).write_text(settings.to_toml())
        out[name] = (hub.home, key)
    return out


def ask(capsys, home, *more):
    code = main(["--home", str(home), "synthetic", "mini", "--site", "north", *map(str, more), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", FITS)
def test_the_coordinator_draws_the_same_rows_by_any_fit_from_a_seed_in_the_record(name, homes, tmp_path, capsys):
    home, _ = homes["open"]
    out, file = tmp_path / "rows.csv", tmp_path / "fit.npz"
    more = ("--fit", name, "--steps", 50, "--checkpoint", file, "--rows", 30)
    assert ask(capsys, home, "--out", out, *more, "--dry-run")[1]["written"] is False
    assert not out.exists()
    code, told = ask(capsys, home, "--out", out, *more)
    assert (code, told["fit"]["fit"], told["rows"], told["seed"]) == (0, name, 30, 0)
    assert set(pd.read_csv(out)["sex"]) <= {"female", "male"}
    record = json.loads(out.with_name("rows.csv.record.json").read_text())
    assert record["csv_sha256"] == [hashlib.sha256(out.read_bytes()).hexdigest()]
    assert [len(one["bundle_sha256"]) for one in record["releases"]] == [64]
    again = ask(capsys, home, "--out", out, *more, "--restart")[1]
    other = ask(capsys, home, "--out", out, *more[:-4], "--rows", 30, "--draw", 1)[1]
    assert again["csv_sha256"] == record["csv_sha256"] != other["csv_sha256"]
    # Nor is a table overwritten that this command has not written, or its record.
    for kept in (out, out.with_name("rows.csv.record.json")):
        before = kept.read_bytes()
        kept.write_bytes(b"the only copy")
        for last in ((), ("--dry-run",)):
            code, told = ask(capsys, home, "--out", out, *more, *last)
            assert (code, told["refused"]["code"]) == (2, "E_PARAMETER")
            assert kept.name in told["refused"]["given"]
        assert kept.read_bytes() == b"the only copy"
        kept.write_bytes(before)
    # A file that no fit has written is not deleted, whatever was named.
    file.write_bytes(b"the only copy")
    code, told = ask(capsys, home, "--out", out, *more, "--restart")
    assert file.read_bytes() == b"the only copy"
    assert code == 0 if name == "moments" else told["refused"]["code"] == "E_PARAMETER"


def test_several_tables_of_one_fit_are_numbered_and_say_how_they_are_combined(homes, tmp_path, capsys):
    out = tmp_path / "rows.csv"
    code, told = ask(capsys, homes["open"][0], "--out", out, "--m", 5, "--rows", 30)
    tables = [tmp_path / f"rows.{k}.csv" for k in range(1, 6)]
    assert (code, told["files"], told["draws"], told["persons"]) == (0, [str(file) for file in tables], 5, 50)
    assert told["csv_sha256"] == [hashlib.sha256(file.read_bytes()).hexdigest() for file in tables]
    assert len(set(told["csv_sha256"])) == 5
    assert "v rows / persons + b / tables" in json.loads((tmp_path / "rows.csv.record.json").read_text())["combining"]
    # One table is the first of the five, and says that it stands alone.
    alone = ask(capsys, homes["open"][0], "--out", out, "--rows", 30)[1]
    assert alone["csv_sha256"] == told["csv_sha256"][:1]
    assert "at least 5" in alone["combining"]


@pytest.mark.parametrize(
    ("which", "more", "code"),
    [
        ("closed", (), "E_POLICY"),
        ("open", ("--site", "south"), "E_ESTIMATE"),
        ("open", ("--fit", "gan"), "E_PARAMETER"),
        ("open", ("--rows", -1), "E_PARAMETER"),
        ("open", ("--m", 2), "E_PARAMETER"),
        ("open", ("--wave", 9), "E_PLAN"),
        ("open", ("--out", "rows.txt"), "E_PARAMETER"),
    ],
)
def test_rows_that_must_not_or_cannot_be_drawn_are_refused(which, more, code, homes, tmp_path, capsys):
    exit_code, told = ask(capsys, homes[which][0], "--out", tmp_path / "rows.csv", *more)
    assert exit_code
    assert told["refused"]["code"] == code
    assert not list(tmp_path.iterdir())


def test_a_release_that_is_taken_back_while_a_fit_runs_gives_no_rows(homes):
    home, key = homes["open"]
    with closing(Store.open(home)) as store:
        planned = synthesis(store, "mini", "north", fit="sliced_wasserstein", steps=50)
        with pytest.raises(StateRefusal, match="stay the same"):
            planned.draw(watch=lambda progress: take_back(store, "north", key) and None)
        with pytest.raises(EstimateRefusal):
            synthesis(store, "mini", "north")


# -- at the site, and on an analyst's machine ----------------------------------------------------------------------
def test_a_site_draws_rows_from_its_sealed_release_and_its_ledger_does_not_move(hospital, plan, table, tmp_path):  # noqa: F811
    """From the bytes that would leave, with progress and a file to go on from; nothing is sent."""
    study = replace(plan, release=SlicingPlan(sigma=6.0), posture="private", budget=Budget(epsilon=50.0, delta=1e-6))
    hospital.joined().approved(study).with_table(table)
    made = hospital.json("release", "mini", "--wave", "1")["release_id"]
    budget = hospital.json("budget")
    history = hospital.json("history", "--last", "0")
    out, file = tmp_path / "rows.csv", tmp_path / "fit.npz"
    how = ("--fit", "sliced_wasserstein", "--out", str(out), "--rows", "20", "--steps", "50", "--checkpoint", str(file))
    assert hospital.json("synthetic", "mini", *how, "--dry-run")["written"] is False
    first = hospital.json("synthetic", made[:8], *how)
    again = hospital.json("synthetic", "mini", *how)  # goes on from the checkpoint, which is at its end
    assert first["csv_sha256"] == again["csv_sha256"]
    assert [one["release_id"] for one in first["releases"]] == [made]
    assert len(pd.read_csv(out)) == 20
    assert "at most 0 s left" in hospital("synthetic", "mini", *how, "--restart")
    assert "The ledger did not move" in hospital("synthetic", "mini", "--out", str(out), "--m", "5")
    assert hospital.json("budget") == budget
    assert hospital.json("history", "--last", "0") == history
    assert not hospital.hub.sent
    assert hospital.refused("synthetic", "other", "--out", str(out), expect=2)["code"] == "E_STATE"
    assert hospital.refused("synthetic", "mini", "--out", "rows.txt", expect=2)["code"] == "E_PARAMETER"
    # What was rejected is not fitted, by its study's name or its own.
    hospital("reject", made[:8], "--as", "dr-lind", "--reason", "other")
    for name in ("mini", made[:8]):
        refused = hospital.refused("synthetic", name, "--out", str(tmp_path / "no.csv"), expect=2)
        assert (refused["code"], refused["given"]) == ("E_STATE", f"{made[:8]}, which is rejected")
    assert not (tmp_path / "no.csv").exists()


def test_an_analyst_draws_the_rows_that_the_coordinator_draws(tmp_path, capsys, plan):
    """Over the network, from figures fetched once: the same bytes, and a line of the record for the download."""
    hub = Desk(tmp_path / "hub")
    for name, leave in (("mini", True), ("shut", False)):
        shape = {"dictionary": SMALL, "release": SlicingPlan(sigma=1.0), "posture": "private", "estimands": {}}
        study = replace(plan, study=name, coordinator="tributary-hub", row_download=leave, **shape)
        hub.publish(study)
        records = pd.DataFrame({"sbp": np.linspace(80, 200, 50), "sex": [0.0, 1.0] * 25})
        north = f"{name}-north"
        invitation = hub.authority.invite(north, [name], address="localhost:1", leads=[hub.lead.public], days=300)
        hub.store.add_invitation(invitation)
        hub.keys[north] = join(hub.store, invitation)
        deliver(hub.store, study, north, hub.keys[north], study.release.draw(study, records, seeded_rng(2)), n=50)
    file = hub.start().save(hub.admit(studies=("mini", "shut")))
    try:
        out, common = tmp_path / "mine.csv", ("--fit", "sliced_wasserstein", "--steps", "50", "--m", "5", "--json")
        mine = ["synthetic", "mini", "--site", "mini-north", "--token", str(file), "--out"]
        assert client.main([*mine, str(out), *common]) == 0
        told = json.loads(capsys.readouterr().out)
        theirs = [
            "--home",
            str(hub.home),
            "synthetic",
            "mini",
            "--site",
            "mini-north",
            "--out",
            str(tmp_path / "t.csv"),
        ]
        assert main([*theirs, *common]) == 0
        lead = json.loads(capsys.readouterr().out)
        assert told["csv_sha256"] == lead["csv_sha256"]
        assert (told["releases"], told["fit"], told["wave"]) == (lead["releases"], lead["fit"], lead["wave"])
        assert len(pd.read_csv(tmp_path / "mine.5.csv")) == 50
        lines = hub.analysts.record("mini")
        assert [(one.kind, one.subject) for one in lines] == [("rows", told["releases"][0]["release_id"])]
        # Where rows may not leave, and of a site that released nothing.
        shut = ["synthetic", "shut", "--site", "shut-north", "--token", str(file), "--out", str(out), "--json"]
        assert client.main(shut) == 10
        assert json.loads(capsys.readouterr().out)["refused"]["code"] == "E_POLICY"
        assert client.main([*mine[:3], "south", *mine[4:], str(out), "--json"]) == 40
        assert json.loads(capsys.readouterr().out)["refused"]["code"] == "E_ESTIMATE"
        # A release that is taken back while its copy is fitted gives no rows here either.
        with connect(file) as connection:
            planned = connection["mini"].synthetic("mini-north", fit="sliced_wasserstein", steps=50)
            with pytest.raises(StateRefusal, match="stay the same"):
                planned.draw(watch=lambda progress: take_back(hub.store, "mini-north", hub.keys["mini-north"]) and None)
    finally:
        hub.stop()
