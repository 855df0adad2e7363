"""Noise that depends on records: what it does to rows, that nothing is promised, and that everybody is told so."""

from __future__ import annotations

import datetime as dt
import math
import re
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from stage.browser.budget_page import budget_page, shown
from stage.coordinator_side.delivered import cohort as people
from stage.coordinator_side.delivered import cohort_plan, deliver, join
from stage.mechanisms.postures import TODAY, cohort, encoded, fitted, released, site, study
from stage.processes.theatre import plan_toml

from coordinator.analyst.remote import Study
from coordinator.answers.release_selection import DeliveredSites
from coordinator.answers.site_answers import _source
from coordinator.answers.spending import spending
from coordinator.cli import main
from coordinator.planning.price import cost
from coordinator.planning.review import _price
from coordinator.services.analysis import AnalysisService
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import BudgetRefusal, ParameterError, PlanRefusal, PolicyRefusal, StateRefusal
from shared.estimands.answer import parse_estimand
from shared.flows.base import Identity
from shared.mechanisms.latent_noise.noise import (
    VARIED,
    LatentNoise,
    default_radius,
    kept_weight,
    least_matched,
    matched,
    varied,
)
from shared.mechanisms.latent_noise.plan import LatentNoisePlan, mechanism
from shared.plans.plan import Floors, StudyPlan, Wave, sign_plan
from shared.plans.standing import Standing, broken_limit
from shared.privacy import accountant as privacy
from shared.privacy.accountant import NoGuarantee
from shared.privacy.composition import StudyCharges, least_total
from shared.releases.bundle import read_bundle
from shared.releases.receipt import Receipt, coverage, in_words, planned_event
from site_agent.config import SiteBudget, TableSource
from site_agent.decide.airlock.overview import totals
from site_agent.decide.plan_facts import _price as _price_of
from site_agent.ledger.charge import Reservation
from site_agent.ledger.holds import price_of
from site_agent.release.audit.distances import linkage
from site_agent.release.audit.likelihood import weighed
from site_agent.release.pipeline.making import make_release
from site_agent.release.sealed_state import fitted_by
from site_agent.show import screens
from site_agent.show.curve import require_allowed

N, D, W = 4000, 4, 0.6


def varying(vary: str = "weight", w: float = 0.02, **changes) -> StudyPlan:
    return study("local", release=LatentNoisePlan(w=w, vary=vary), **changes)


def noised(vary: str, *, w: float = W, n: int = N, seed: int = 1, radius: float | None = None):
    """Standard normal latents, and the rows that come of them."""
    z = np.random.default_rng(seed).normal(size=(n, D))
    m = LatentNoise(flow=Identity(d=D), w=w, radius=radius or default_radius(D, inside=0.9), vary=vary)
    return z, m.release(z, seeded_rng(seed)), m


# -- what it does to rows ---------------------------------------------------------------------------------------
def test_a_weight_of_each_record_s_own_keeps_less_of_those_beyond_the_radius_and_gives_them_more_noise():
    z, y, m = noised("weight", n=40_000)
    norm = np.linalg.norm(z, axis=1)
    for near, far in ((0.0, m.radius), (1.1 * m.radius, 1.3 * m.radius)):
        rows = (norm >= near) & (norm < far)
        own = W * np.minimum(1, m.radius / norm[rows]) ** 4
        noise = (y[rows] - np.sqrt(own)[:, None] * z[rows]) / np.sqrt(1 - own)[:, None]
        assert noise.std() == pytest.approx(1, abs=4 / math.sqrt(2 * noise.size))
        assert abs((noise * z[rows]).mean()) < 5 / math.sqrt(noise.size)


def test_a_turned_direction_keeps_every_distance_and_the_law_of_the_rows():
    z, y, _ = noised("rotation", n=20_000, radius=9.0)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(z, axis=1))
    assert (y**2).mean() == pytest.approx(1, abs=0.03)
    assert (y**4).mean() == pytest.approx(3, abs=0.2)
    np.testing.assert_allclose(np.corrcoef(y.T), np.eye(D), atol=0.03)
    # As far for everybody: those at the edge are turned as much as those in the middle.
    cosine = (z * y).sum(axis=1) / (z**2).sum(axis=1)
    far = np.linalg.norm(z, axis=1) > 3
    assert cosine[far].mean() == pytest.approx(cosine[~far].mean(), abs=0.02)
    assert cosine.mean() < 0.9
    cut = np.linalg.norm(varied(z, y, w=W, radius=2.0, vary="rotation"), axis=1)
    assert cut.max() == pytest.approx(2.0)


@pytest.mark.parametrize("w", [0.0, 0.3, 0.8])
def test_matched_noise_keeps_the_sample_s_mean_and_covariance_and_plain_noise_does_not(w):
    z, y, _ = noised("matched", w=w, n=300, radius=30.0)
    np.testing.assert_allclose(y.mean(axis=0), z.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(np.cov(y.T), np.cov(z.T), atol=1e-9)
    plain = LatentNoise(flow=Identity(d=D), w=w, radius=30.0).release(z, seeded_rng(1))
    assert np.abs(np.cov(plain.T) - np.cov(z.T)).max() > 0.01
    assert np.abs(y - z).mean() > 0.1


def test_matched_noise_needs_rows_enough_and_survives_a_column_that_does_not_vary():
    z = np.random.default_rng(1).normal(size=(least_matched(D), D))
    with pytest.raises(ParameterError, match="matched"):
        matched(z[:-1], z[:-1] ** 2, w=0.5)
    z[:, 0] = 1.0
    y = math.sqrt(0.5) * z + math.sqrt(0.5) * matched(z, np.random.default_rng(2).normal(size=z.shape), w=0.5)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y.mean(axis=0), z.mean(axis=0))


@pytest.mark.parametrize("vary", VARIED)
def test_rows_that_no_flow_can_place_are_placed(vary):
    z = np.random.default_rng(1).normal(size=(50, D))
    z[0], z[1, 0], z[2, 1] = np.nan, np.inf, -1e300
    y = LatentNoise(flow=Identity(d=D), w=W, radius=2.0, vary=vary).release(z, seeded_rng(2))
    assert np.isfinite(y).all()
    assert np.abs(y).max() < 12


@pytest.mark.parametrize("vary", ["weight", "rotation"])
def test_a_row_comes_from_its_own_record_alone(vary):
    z, y, m = noised(vary, n=50)
    other = z.copy()
    other[7] = 9.0
    again = m.release(other, seeded_rng(1))
    np.testing.assert_array_equal(np.delete(y, 7, axis=0), np.delete(again, 7, axis=0))


def test_unusual_records_are_found_less_with_a_weight_of_their_own_than_clipped():
    z, weighted, m = noised("weight", w=0.8, n=1500)
    plain = LatentNoise(flow=Identity(d=D), w=0.8, radius=m.radius).release(z, seeded_rng(1))
    far = np.linalg.norm(z, axis=1) > np.quantile(np.linalg.norm(z, axis=1), 0.95)
    found = [linkage(z, rows)[far].mean() for rows in (plain, weighted)]
    assert found[1] < 0.6 * found[0]


@pytest.mark.parametrize("vary", VARIED)
def test_an_attacker_weighs_each_candidate_by_the_noise_that_it_would_have_got(vary):
    z, y, m = noised(vary, w=0.97, n=600)
    strangers = np.random.default_rng(9).normal(size=z.shape)
    knows = weighed(m, members=z, held_back=strangers, released=y, bounded=True)
    plain = weighed(replace(m, vary=""), members=z, held_back=strangers, released=y)
    assert knows.bound == 1.0  # no price bounds anybody here
    assert knows.auc.value > plain.auc.value - 0.01
    assert knows.auc.value > 0.6


@pytest.mark.parametrize("vary", VARIED)
def test_intervals_count_how_much_a_row_tells_of_its_record(vary):
    told = kept_weight(0.8, default_radius(5, inside=0.9), 1.0, 5, vary)
    assert told == 0.8 if vary == "matched" else 0 < told <= 0.8


@pytest.mark.parametrize(
    "given", [{"vary": "more"}, {"vary": "weight", "shrink": 2.0}, {"vary": "weight", "carried": (1,)}]
)
def test_what_means_nothing_is_refused(given):
    with pytest.raises(ParameterError, match="vary must be one of"):
        LatentNoise(flow=Identity(d=D), w=W, radius=2.0, **given)
    with pytest.raises(ParameterError, match="two columns"):
        LatentNoise(flow=Identity(d=1), w=W, radius=2.0, vary="rotation")
    with pytest.raises(ParameterError, match="vary must be one of"):
        varied(np.ones((3, D)), np.ones((3, D)), w=W, radius=2.0, vary="more")


# -- that nothing is promised -----------------------------------------------------------------------------------
@pytest.mark.parametrize("posture", ["holdout", "public", "private"])
@pytest.mark.parametrize("vary", VARIED)
def test_it_is_refused_where_somebody_is_promised_something(posture, vary):
    with pytest.raises(PlanRefusal, match="posture 'local' only"):
        study(posture, release=LatentNoisePlan(w=0.02, vary=vary))


def test_a_plan_that_would_state_or_mix_prices_is_refused():
    first, second = dt.date(2000, 1, 1), dt.date(2001, 1, 1)
    waves = (Wave(number=1, opens=first, closes=second), Wave(number=2, opens=second, closes=dt.date(2999, 1, 1)))
    with pytest.raises(PlanRefusal, match="one wave"):
        varying(waves=waves, returning="append")
    with pytest.raises(PlanRefusal, match="no ε is stated"):
        study("local", release=LatentNoisePlan(epsilon=6.0, vary="weight"))
    for more in ({"shrink": 2.0}, {"carry": "died"}):
        with pytest.raises(PlanRefusal, match="without release"):
            study("local", release=LatentNoisePlan(w=0.02, vary="weight", **more))
    with pytest.raises(PlanRefusal, match="standing"):
        varying(floors=Floors(membership_auc=0.8, own_row_linkage=0.5, extreme_linkage=1.0, standing=True))
    with pytest.raises(PlanRefusal, match="must be one of"):
        LatentNoisePlan(w=0.02, vary="everything")


def test_plans_without_it_keep_the_hash_they_were_approved_by():
    plain = study("local")
    assert "vary" not in plain.to_canonical()["release"]
    for vary in VARIED:
        plan = varying(vary)
        assert StudyPlan.from_bytes(plan.canonical) == plan
        assert fitted_by(plan) != fitted_by(plain)
        assert mechanism(plan).vary == vary


def test_no_epsilon_is_stated_anywhere(tmp_path):
    for vary in VARIED:
        plan = varying(vary)
        said = " ".join([in_words(plan, planned_event(plan)), *coverage(plan)[0], *coverage(plan)[1]])
        assert "no formal guarantee" in said.lower()
        assert coverage(plan)[1][0].startswith("Every person: no formal guarantee.")
        assert "at most" not in in_words(plan, planned_event(plan))
        assert not [word for word in said.split() if word.startswith("ε") and any(c.isdigit() for c in word)]
        told = cost(plan)
        assert (told.epsilon, told.rows, told.paper, told.w_for_8, told.waves) == (None, None, None, None, ())
        (refused,) = [line for line in [*_price(plan), *plan.release.review(plan)] if line.name == "guarantee"]
        assert refused.state == "fail"
        assert "no formal guarantee" in refused.detail
    _, made = released(varying(), tmp_path, cohort(500))
    receipt = made.receipt
    assert (receipt.epsilon, receipt.epsilon_pure, receipt.epsilon_paper) == (None, None, None)
    assert set(receipt.rdp) == {None}
    assert receipt.parameters == {"w": 0.02, "radius": mechanism(varying()).radius, "vary_weight": 1.0}
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt
    (warned,) = [one for one in made.checks if one.name == "no-guarantee"]
    assert warned.outcome == "warning"


@pytest.mark.parametrize("vary", VARIED)
def test_the_whole_path_takes_it(tmp_path, vary):
    plan = varying(vary, w=0.3)
    at, made = released(plan, tmp_path, cohort(500))
    bundle = read_bundle(at.outbox.bundle(made.hold.release_id), cap=1 << 26)
    bundle.receipt.require_true(plan)
    plan.dictionary.validate_release(bundle.table)
    assert bundle.receipt.event == {"event": "no_guarantee"}
    assert least_total([(plan, planned_event(plan))], plan.budget.delta) == 0.0
    assert made.audit["own_row"]["value"] < 0.5


def test_no_total_holds_it_and_every_total_says_so(tmp_path):
    plan = varying()
    at, _ = released(plan, tmp_path, cohort(500))
    spent = at.ledger.study_total(plan.study, plan.budget.delta)
    assert (spent.epsilon, spent.open, spent.releases) == (0.0, 1, 1)
    (line,) = at.ledger.statement(plan.study)
    assert line.epsilon is None
    at.ledger.verify()
    # What else is charged counts as ever.
    gaussian = privacy.Gaussian(sigma=1.0, sensitivity=1.0)
    at.ledger.reserve(
        Reservation(
            study="other",
            plan_hash="a" * 64,
            wave=1,
            release_id="b" * 32,
            event=gaussian.to_canonical(),
            delta=1e-6,
            cap_epsilon=20.0,
            touches="everybody",
            uncovered=(),
        )
    )
    assert at.ledger.site_total(1e-6) == pytest.approx(privacy.epsilon_from_rdp(privacy.rdp(gaussian), 1e-6))


def test_a_lost_draw_that_may_have_been_priced_counts_as_priced():
    gaussian = privacy.Gaussian(sigma=1.0, sensitivity=1.0)
    alone = price_of(NoGuarantee().to_canonical(), 1e-6)
    assert (alone["epsilon"], alone["epsilon_pure"], set(alone["rdp"])) == (None, 0.0, {0.0})
    either = price_of(NoGuarantee().to_canonical(), 1e-6, [gaussian.to_canonical()])
    assert either["epsilon"] is None
    assert either["rdp"] == price_of(gaussian.to_canonical(), 1e-6)["rdp"]
    assert either["epsilon_pure"] is None
    assert StudyCharges([]).total(1e-6) == 0.0


def test_a_site_with_a_budget_over_all_studies_refuses_it_before_anything_is_drawn(tmp_path):
    cohort(500).to_csv(tmp_path / "cohort.csv", index=False)
    at = replace(site(tmp_path), budget=SiteBudget(epsilon=100.0))
    with pytest.raises(BudgetRefusal, match="budget over all studies"):
        make_release(
            plan=varying(),
            wave=1,
            source=TableSource(path=tmp_path / "cohort.csv"),
            site=at,
            today=TODAY,
            rng=seeded_rng(7),
        )
    assert not at.ledger.holds()


def test_a_site_that_sets_its_budget_later_draws_no_such_release_and_adds_no_total_beside_one(tmp_path):
    at = site(tmp_path)
    ledger = at.ledger
    gaussian = privacy.Gaussian(sigma=5.0, sensitivity=1.0).to_canonical()

    def reserve(study, event=None, **changes):
        return ledger.reserve(
            Reservation(
                study=study,
                plan_hash="a" * 64,
                wave=1,
                release_id=f"{study}-id{len(ledger.holds())}",
                event=event or NoGuarantee().to_canonical(),
                delta=1e-6,
                cap_epsilon=20.0,
                **changes,
            )
        )

    hold = reserve("open")
    assert reserve("open") == hold
    with pytest.raises(BudgetRefusal, match="budget over all studies"):
        reserve("open", site_cap_epsilon=5.0)
    # Nothing of it was drawn, so what has a price goes on under the cap.
    reserve("priced", gaussian, site_cap_epsilon=5.0)
    ledger.start_drawing(ledger.mark_anchored(hold, at.witness.anchor(ledger.anchor_envelope())))
    with pytest.raises(BudgetRefusal, match="one of everything"):
        reserve("more", gaussian, site_cap_epsilon=5.0)
    assert [line.study for line in ledger.statement()] == ["open", "priced"]
    reserve("more", gaussian)
    # A crash lost the draw: nobody will ever see it.
    ledger.recover()
    reserve("last", gaussian, site_cap_epsilon=5.0)


def test_a_study_has_a_price_for_all_its_releases_or_for_none(tmp_path):
    plan = varying(budget=study("local").budget)
    at, _ = released(plan, tmp_path, cohort(500))
    first, second = dt.date(2000, 1, 1), dt.date(2999, 1, 1)
    later = study(
        "local", version=2, waves=tuple(Wave(number=k, opens=first, closes=second, refit=k > 1) for k in (1, 2))
    )
    later = replace(later, returning="refresh")
    source = TableSource(path=tmp_path / "cohort.csv")
    with pytest.raises(PolicyRefusal, match="with a formal guarantee and without one"):
        make_release(plan=later, wave=2, source=source, site=at, today=TODAY, rng=seeded_rng(8))


def test_no_standing_approval_covers_it_and_no_curve_prices_it():
    made = Standing(
        study="small",
        site="north",
        plan_hash=varying().hash,
        agent_version="1",
        max_epsilon=1e9,
        until="2026-03-01",
        n=100,
        release_id="r1",
        approver="dr-lind",
        number=1,
        day="2026-01-05",
    )
    assert broken_limit(made, plan_hash=varying().hash, today=TODAY, epsilon=math.inf, n=100, last_n=100)
    with pytest.raises(PolicyRefusal, match="curve of prices"):
        require_allowed(varying(), made_up=True)


def test_its_flow_is_fitted_as_any_other_and_its_rows_are_of_the_dictionary():
    plan, table = varying("rotation", w=0.5), cohort(800)
    encoder, x, _ = encoded(plan, table)
    made = fitted(plan, table)
    rows = encoder.decode(made.mechanism.release(x, seeded_rng(1)))
    plan.dictionary.validate_release(rows)
    assert rows["died"].mean() == pytest.approx(table["died"].mean(), abs=0.05)


# -- what people read -------------------------------------------------------------------------------------------


def test_every_screen_of_a_site_says_that_there_is_no_guarantee_in_the_place_of_a_price(tmp_path):
    plan = varying()
    at, made = released(plan, tmp_path, cohort(500))
    texts = [
        shown(lambda out: screens.release_page(out, made)),
        shown(lambda out: screens.budget(out, at.ledger.statement(), totals(at, plan.study))),
        budget_page(at),
    ]
    for text in texts:
        assert "no formal guarantee" in text
        assert "ε = 0" not in text
        assert "inf" not in text.split()
    price = _price_of(plan, planned_event(plan))
    assert (price["epsilon"], price["all_waves"]) == (None, None)
    assert "no total holds" in screens.charged_words({"charged": {}, "price": price})


def test_the_coordinator_prices_it_with_words_and_signs_no_new_plan_of_it(tmp_path, capsys):
    path, home = tmp_path / "varied.toml", ["--home", str(tmp_path / "home")]
    assert main([*home, "init", "--name", "tributary-hub", "--address", "localhost:1"]) == 0
    path.write_text(plan_toml().replace('mechanism = "latent_noise"', 'mechanism = "latent_noise"\nvary = "weight"'))
    plan = StudyPlan.from_toml(path.read_text())
    assert plan.release.vary == "weight"
    capsys.readouterr()
    for verb, code in (("cost", 0), ("check", PlanRefusal.exit_code)):
        assert main([*home, "plan", verb, str(path)]) == code
        said = " ".join(capsys.readouterr().out.split())
        assert "no formal guarantee" in said.lower()
        assert "ε charged so far" not in said
        assert not re.search(r"ε \d", said.split("budget")[0])
        assert "The plan cannot be signed yet." in said
        assert "→ Take release.shrink = 3.0" in said
        assert "plan sign" not in said
    assert main([*home, "plan", "sign", str(path)]) == PlanRefusal.exit_code
    said = " ".join("".join(capsys.readouterr()).split())
    for word in ("E_PLAN", "release.vary must be left out of a new plan", "release.shrink = 3.0"):
        assert word in said
    with pytest.raises(PlanRefusal, match=r"release\.vary must be left out of a new plan"):
        plan.release.require_same_noise()


def test_no_analyst_and_no_budget_figure_is_shown_a_zero_in_the_place_of_a_guarantee(tmp_path):
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    lead = SigningKey.generate()
    priced = replace(cohort_plan(), version=2)
    with closing(Store.open(tmp_path)) as store:
        plan = replace(priced, version=1, release=replace(priced.release, vary="weight"), waves=priced.waves[:1])
        store.add_plan(sign_plan(plan, [lead]), plan)
        for name in ("north", "south"):
            invitation = authority.invite(name, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
            store.add_invitation(invitation)
            key = join(store, invitation)
            if name == "north":
                deliver(store, plan, name, key, people(60, 1))
        (release,) = store.releases("cvd")
        assert (release.receipt.epsilon, release.receipt.stated_study_epsilon) == (None, None)
        assert release.receipt.study_epsilon is not None
        facts = AnalysisService._study(SimpleNamespace(_store=store, delivered=DeliveredSites(store)), "cvd")
        assert facts["sites"]["north"]["study_epsilon"] is None
        source = _source(store, release, parse_estimand("cox(time, cvd) ~ sbp/10"))
        assert (source.epsilon, source.study_epsilon) == (None, None)
        with pytest.raises(StateRefusal, match="formal guarantee"):
            spending(store, "cvd")
        # A site that has a price is drawn, and the other one is named.
        store.add_plan(sign_plan(priced, [lead]), priced)
        deliver(store, priced, "south", key, people(60, 2))
        budget = spending(store, "cvd")
        assert ([course.sites for course in budget.courses], budget.open) == (
            [("south",)],
            {"north": "no formal guarantee"},
        )
        (words,) = [
            text.get_text()
            for axes in budget.figure().figure.axes
            for text in axes.texts
            if "Not drawn" in text.get_text()
        ]
        assert "no formal guarantee" in words
        assert "north" in words

    class Told(Study):
        def facts(self):
            return facts

    assert "no formal guarantee" in shown(Told(None, "cvd").show)
