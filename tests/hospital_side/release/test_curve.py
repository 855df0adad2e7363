"""The curve of w: true figures, one fit, no charge, nothing kept but aggregates; and the figures that stay here."""

from __future__ import annotations

import dataclasses
import json
import re
import stat

import numpy as np
import pytest
from conftest import make_table
from scipy import stats
from stage.hospital_side.site_desk import Hospital, hospital  # noqa: F401
from stage.hospital_side.small_curve import quick

from shared.base.randomness import seeded_rng
from shared.errors import ParameterError, PolicyRefusal
from shared.mechanisms.latent_noise.noise import default_radius
from shared.plans.encoding import Encoder
from shared.plans.plan import Floors, StudyPlan, Training
from shared.privacy import accountant as privacy
from site_agent.models import flow as flows
from site_agent.release.audit.rates import Rate
from site_agent.release.audit.report import LikelihoodAttack
from site_agent.show import curve as curves
from site_agent.show.curve import PriceCurve, price_curve, require_allowed
from site_agent.show.figures import attack_figure, curve_figure, figure_bytes, margins_figure

ESTIMANDS = {"pressure": "mean(sbp)", "models": "ols(sbp) ~ visits + C(grade)", "none": "correlation(sbp, visits)"}


@pytest.fixture(scope="module")
def study(plan) -> StudyPlan:
    usual = dataclasses.replace(plan.release, radius=None)
    training = Training(flows=1, hidden=8, epochs=1)
    return dataclasses.replace(plan, release=usual, training=training, estimands=ESTIMANDS)


def drawn(study, n=160, seed=1, **more) -> PriceCurve:
    """sbp depends on visits here, so that one term has a relative error."""
    source = make_table(n)
    source["sbp"] = (110 + 3 * source["visits"] + (source["sbp"] - 130) / 5).clip(71, 269).round(1)
    return price_curve(plan=study, table=study.dictionary.check(source), rng=seeded_rng(seed), draws=2, **more)


@pytest.fixture(scope="module")
def one(study) -> PriceCurve:
    return drawn(study, grid=(0.0, 0.1, 0.95))


def test_the_price_and_the_bound_are_the_exact_ones(one, study):
    assert one.radius == default_radius(Encoder(dictionary=study.dictionary).d)
    for point in one.points:
        event = privacy.Gaussian(sigma=np.sqrt(1 - point.w), sensitivity=2 * one.radius * np.sqrt(point.w))
        if point.w > 0:
            assert point.epsilon == pytest.approx(privacy.epsilon(event, study.budget.delta), rel=1e-9)
        else:
            assert point.epsilon is None  # nothing but the flow tells of a record, and nothing bounds that
        assert point.bound == pytest.approx(stats.norm.cdf(stats.norm.ppf(0.01) + event.mu), rel=1e-9)
    assert one.points[0].bound == pytest.approx(0.01)


def test_the_plans_own_w_is_among_the_weights(one):
    assert [point.w for point in one.points] == [0.0, 0.1, 0.8, 0.95]
    assert one.planned == 0.8


def test_attacks_do_nothing_at_0_and_much_near_1(one):
    first, last = one.points[0], one.points[-1]
    assert first.flow_auc.value == 0.5
    assert first.own_row.low <= 1 / 128
    # Not chance: the flow itself has seen the members, and at 128 of them it shows.
    assert first.distance_auc.value < 0.65
    assert last.own_row.low > 0.5
    assert last.flow_auc.low > 0.6
    for point in one.points:
        assert point.hits.low <= stats.norm.cdf(stats.norm.ppf(point.false_alarms.high) + _mu(one, point))


def _mu(one, point):
    return 2 * one.radius * np.sqrt(point.w / (1 - point.w))


def test_estimates_come_nearer_to_the_real_ones_and_noise_terms_are_left_out_with_the_reason(one):
    visits = [point.errors["models: visits"] for point in one.points]
    assert visits[-1] < 0.1
    assert set(one.points[0].errors) >= {"pressure", "models: visits"}
    assert all(error < 0.05 for error in (point.errors["pressure"] for point in one.points))
    assert any("standard errors of 0" in reason for reason in one.left_out.values())
    assert not set(one.left_out) & set(one.points[0].errors)


def test_one_flow_is_fitted_progress_grows_and_a_seed_decides_everything(study, monkeypatch):
    fits, told = [], []
    real = flows.fit_flow
    monkeypatch.setattr(flows, "fit_flow", lambda *a, **k: fits.append(1) or real(*a, **k))
    one = drawn(study, n=80, grid=(0.5,), progress=lambda step, share, left: told.append((step, share)))
    assert fits == [1]
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert {step for step, _ in told} == set(curves.Step)
    assert drawn(study, n=80, grid=(0.5,)) == one


def test_the_words_say_what_it_is_not(one, study):
    text = " ".join(one.sentences())
    assert "a look at the data" in text
    assert "outside the ledger" in text
    assert "others may do better" in text
    made_up = dataclasses.replace(one, made_up=True)
    assert "nothing about any patient" in " ".join(made_up.sentences())
    assert json.loads(json.dumps(one.to_canonical()))["points"][0]["w"] == 0.0


def test_other_postures_may_not_look_at_their_records(study):
    public = dataclasses.replace(study, posture="public")
    require_allowed(public, made_up=True)
    with pytest.raises(PolicyRefusal, match="posture 'local'") as refusal:
        require_allowed(public, made_up=False)
    assert "--made-up" in refusal.value.next_step


def test_too_few_records_are_refused(study):
    with pytest.raises(ParameterError, match="at least 10 records"):
        drawn(study, n=9)


# -- at the desk --------------------------------------------------------------------------------------------------
@pytest.fixture
def ready(hospital: Hospital, study, table, monkeypatch) -> Hospital:  # noqa: F811
    quick(monkeypatch)
    return hospital.joined("dr-lind").approved(study).with_table(table)


def test_a_curve_is_written_for_its_owner_alone_and_charges_nothing(ready):
    before = ready.json("budget")
    answer = ready.json("curve", "mini")
    (path,) = (ready.home / "figures").iterdir()
    assert answer["file"] == str(path)
    assert path.name == "curve-mini.svg"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert ready.json("budget") == before
    assert ready.hub.sent == []
    assert [point["w"] for point in answer["points"]] == [0.0, 0.5, 0.8]
    assert answer["n"] == 300


def test_made_up_values_need_no_approval_and_real_records_do(hospital, study, table, monkeypatch):  # noqa: F811
    quick(monkeypatch)
    hospital.joined("dr-lind").publish(study)
    hospital("plan", "fetch", "mini")
    hospital.with_table(table)
    hospital.refused("curve", "mini", expect=12)
    flat = re.sub(r"\s+", " ", hospital("curve", "mini", "--made-up", "--out", "w.png"))
    assert "nothing about any patient" in flat
    assert "outside the ledger" in flat
    assert "only its owner can read" in flat
    assert (hospital.home / "figures" / "w.png").read_bytes().startswith(b"\x89PNG")


def test_a_dry_curve_reads_and_writes_nothing(ready):
    answer = ready.json("curve", "mini", "--dry-run")
    assert answer["rows"] == 300
    assert not (ready.home / "figures").exists()


@pytest.mark.parametrize("name", ["../../w.svg", "/tmp/w.svg", "w.txt"])
def test_a_curve_stays_in_the_sites_folder(ready, name):
    ready.refused("curve", "mini", "--out", name, "--dry-run", expect=2)


def test_wide_limits_of_the_audit_are_named_before_a_plan_is_approved(ready, study):
    assert "wider than usual (0.55, 0.05, 0.2)" in ready("plan", "show", "mini")
    usual = dataclasses.replace(study, version=2, floors=Floors())
    ready.publish(usual)
    ready("plan", "fetch", "mini")
    assert "wider than usual" not in ready("plan", "show", "mini")


def test_a_paused_site_draws_no_curve_of_its_records(ready):
    ready("pause", "--reason", "audit week")
    ready.refused("curve", "mini", expect=10)


def test_the_approvers_figures_are_written_for_their_owner_alone(ready):
    made = ready.json("release", "mini", "--wave", "1")
    answer = ready.json("outbox", "figures", made["release_id"][:8])
    assert [path.rpartition("/")[2] for path in answer["files"]] == ["columns.svg"]
    for path in (ready.home / "figures").rglob("*.svg"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert any("no attack to draw" in note for note in answer["notes"])
    elsewhere = ready.folder / "elsewhere"
    assert ready.json("outbox", "figures", made["release_id"][:8], "--out", str(elsewhere), "--dry-run")["files"] == []
    assert not elsewhere.exists()


# -- figures ------------------------------------------------------------------------------------------------------
def texts(figure) -> list[str]:
    import matplotlib.text

    return [found.get_text() for found in figure.findobj(matplotlib.text.Text) if found.get_text()]


def inside_the_page(figure) -> bool:
    """Every text lies on the page."""
    import matplotlib.text

    figure.canvas.draw()
    page = figure.bbox
    for found in figure.findobj(matplotlib.text.Text):
        box = found.get_window_extent()
        within = page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        if found.get_text() and found.get_visible() and box.width > 0 and not within:
            return False
    return True


def attack() -> LikelihoodAttack:
    def rate(value):
        return Rate(value=value, low=value / 2, high=min(1, value * 2), chance=0.01)

    return LikelihoodAttack(
        auc=rate(0.62),
        hits=rate(0.04),
        false_alarms=rate(0.01),
        bound=0.3,
        roc=((0.0, 0.0), (0.01, 0.04), (0.1, 0.2), (1.0, 1.0)),
        n_members=800,
        n_held_back=200,
    )


def test_the_curve_is_drawn_with_its_names_on_the_page(one):
    figure = curve_figure(one)
    shown = " ".join(texts(figure))
    for words in (
        "True ε, given the flow",
        "exact bound",
        "own row nearest",
        "guessing",
        "stays at the site",
        "plan: w",
    ):
        assert words in shown
    assert inside_the_page(figure)


def test_the_attack_is_drawn_with_its_bound_and_names(one):
    figure = attack_figure(attack(), title="mini, wave 1: an attack we tried", detail="others may do better")
    assert "guessing" in texts(figure)
    assert inside_the_page(figure)


def test_columns_of_every_kind_are_drawn_beside_the_real_ones(study):
    encoder = Encoder(dictionary=study.dictionary)
    real, released = (
        encoder.decode(encoder.encode(study.dictionary.check(make_table(90, seed)), seeded_rng(1))) for seed in (1, 2)
    )
    figure = margins_figure(real, released, study.dictionary, title="mini, wave 1")
    shown = texts(figure)
    assert all(any(text.startswith(name) for text in shown) for name in study.dictionary.names)
    assert any("missing" in text for text in shown)
    assert inside_the_page(figure)
    with pytest.raises(ParameterError, match="dictionary's columns"):
        margins_figure(real.drop(columns="sbp"), released, study.dictionary, title="")


def test_the_same_figure_gives_the_same_bytes():
    def drawn_again(kind):
        return figure_bytes(attack_figure(attack(), title="mini"), kind)

    assert drawn_again("svg") == drawn_again("svg")
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert drawn_again(kind).startswith(start)
    with pytest.raises(ParameterError, match="svg"):
        drawn_again("gif")
