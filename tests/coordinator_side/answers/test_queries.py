"""A question to the accepted releases: every site answers for itself, and the answer names its receipts."""

import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from stage.coordinator_side.delivered import STUDIES, cohort, cohort_plan, deliver, join, quarantine, site_estimates

from coordinator.answers.queries import ask
from coordinator.answers.release_selection import holding
from coordinator.answers.resolving import resolve
from coordinator.answers.site_answers import LOOKED_AT, EstimateCache, draws_of
from coordinator.pooling.cautions import theorem3
from coordinator.pooling.gaps import released_flow
from coordinator.pooling.pool import Pooling
from coordinator.services.authority import Authority
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError, PlanChanged, PlanRefusal, StateRefusal
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.latent_noise.noise import default_radius, kept_weight
from shared.plans.encoding import Encoder
from shared.plans.plan import StudyPlan, sign_plan

SITES = {"alpha": 1200, "beta": 900, "gamma": 700, "delta": 500}
UNADJUSTED = "cox(time, cvd) ~ sbp/10"


@pytest.fixture(scope="module")
def filled(tmp_path_factory, database):
    """(store, plan, tables, keys): four sites of the cohort study, all accepted."""
    home = tmp_path_factory.mktemp("hub")
    lead = SigningKey.generate()
    authority = Authority.create(home, coordinator="tributary-hub", names=("localhost",))
    store = Store.open(home)
    plan = cohort_plan()
    store.add_plan(sign_plan(plan, [lead]), plan)
    tables, keys = {}, {}
    for seed, (site, n) in enumerate(SITES.items()):
        invitation = authority.invite(site, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
        store.add_invitation(invitation)
        keys[site] = join(store, invitation)
        tables[site] = cohort(n, seed)
        deliver(store, plan, site, keys[site], tables[site])
    yield store, plan, tables, keys
    store.close()


@pytest.fixture
def other(tmp_path, database):
    """A store of its own, for tests that change it: a function that adds a site with a table."""
    lead = SigningKey.generate()
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    store = Store.open(tmp_path)

    def add(plan, site, table, *, put=deliver):
        store.add_plan(sign_plan(plan, [lead]), plan)
        invitation = authority.invite(site, ["cvd"], address="localhost:1", leads=[lead.public], days=300)
        store.add_invitation(invitation)
        return put(store, plan, site, join(store, invitation), table)

    yield store, add
    store.close()


def test_a_dotted_name_as_in_r_is_the_dictionarys(filled):
    known = replace(filled[1].dictionary.columns[-1], name="sbp_1")
    plan = replace(filled[1], dictionary=replace(filled[1].dictionary, columns=(*filled[1].dictionary.columns, known)))
    assert str(resolve(plan, "ols(sbp) ~ sbp.1/10 + age")[0]) == "ols(sbp) ~ sbp_1/10 + age"
    with pytest.raises(ParameterError, match="must have the column"):
        resolve(plan, "ols(sbp) ~ sbp.2")


def test_every_site_is_asked_of_a_curve_with_the_same_knots(filled):
    store, _, tables, _ = filled
    answer = ask(store, holding(store, "cvd", 1), "logistic(cvd) ~ ns(age, df = 2)")
    assert answer.estimand.startswith("logistic(cvd) ~ ns(age, knots = ")
    [joint] = answer.document["joint"]
    assert [site["label"] for site in joint["sites"]] == sorted(tables)
    middle = np.average([table.age.median() for table in tables.values()], weights=[*map(len, tables.values())])
    assert joint["curve"]["reference"] == pytest.approx(middle, rel=1e-3)
    with pytest.raises(ParameterError, match="must name its knots"):
        ask(store, holding(store, "cvd", 1), "logistic(cvd) ~ ns(log(age), df = 2)")


def test_a_survival_curve_without_its_time_is_refused_before_any_table_is_read(filled):
    with pytest.raises(ParameterError, match="a time to be one number") as caught:
        resolve(filled[1], "km(time, cvd)")
    assert "Write km(time, cvd, at = 5)" in caught.value.next_step
    assert resolve(filled[1], "km(time, cvd, at = 5)")[0].at == 5


def test_each_site_answers_as_its_own_table_does(filled):
    store, _, tables, _ = filled
    rows = site_estimates(store, "cvd", 1, UNADJUSTED)
    assert [row.site for row in rows] == sorted(SITES)
    for row in rows:
        (alone,) = estimate(tables[row.site], parse_estimand(UNADJUSTED), study="cvd", site=row.site, wave=1)
        assert (row.yi, row.vi_naive, row.n) == (alone.yi, alone.vi, alone.n)


def test_the_pooled_answer_names_the_receipt_of_every_site_it_rests_on(filled):
    store, _, _, _ = filled
    result = ask(store, holding(store, "cvd", 1), "unadjusted").result
    assert result.receipts == tuple(release.receipt.hash for release in store.releases("cvd", 1))
    assert result.k == 4
    assert result.ci_lb < 0.15 < result.ci_ub


def test_a_planned_analysis_is_known_by_name_and_by_formula_in_any_spelling(filled):
    store, plan, _, _ = filled
    by_name = ask(store, holding(store, "cvd", 1), "adjusted")
    by_formula = ask(store, holding(store, "cvd", 1), "cox( time,cvd ) ~ sbp/10+age/10 + chol/40+ hdl/15")
    assert (by_name.planned, by_formula.planned) == ("adjusted", "adjusted")
    assert by_name.result == by_formula.result
    assert by_name.terms == ("sbp/10", "age/10", "chol/40", "hdl/15")
    assert resolve(plan, "cox(time, cvd) ~ age")[1] == ""


def test_a_term_is_found_by_its_column_too(filled):
    store, *_ = filled
    assert ask(store, holding(store, "cvd", 1), "adjusted", term="age").term == "age/10"
    assert ask(store, holding(store, "cvd", 1), "adjusted", term="hdl/15").term == "hdl/15"
    with pytest.raises(ParameterError, match="sbp/10, age/10"):
        ask(store, holding(store, "cvd", 1), "adjusted", term="bmi")


@pytest.mark.parametrize(
    ("question", "refusal", "words"),
    [
        ("cox(time, cvd) ~ spb/10", ParameterError, "Nearest: sbp"),
        ("cox(time, cvd) ~ person", ParameterError, "Columns|Nearest"),
        ("ols(sbp) ~ sbp/10 * age", ParameterError, r"units cannot be crossed, got sbp/10. Write I\(sbp/10\)"),
        ("unadjust", ParameterError, "Did you mean 'unadjusted'"),
        ("import os", ParameterError, "Planned: adjusted, unadjusted"),
        ("__import__('os')", ParameterError, "kind"),
    ],
)
def test_a_question_that_is_wrong_everywhere_is_refused_with_what_is_near(filled, question, refusal, words):
    with pytest.raises(refusal, match=words):
        site_estimates(filled[0], "cvd", 1, question)


def test_an_unknown_study_or_wave_or_a_wave_without_releases_is_refused(filled):
    store, *_ = filled
    with pytest.raises(PlanRefusal):
        site_estimates(store, "other", 1, UNADJUSTED)
    with pytest.raises(PlanRefusal):
        site_estimates(store, "cvd", 9, UNADJUSTED)
    with pytest.raises(EstimateRefusal, match="accepted release"):
        site_estimates(store, "cvd", 2, UNADJUSTED)


def test_before_any_delivery_a_question_waits_and_needs_no_other_model(other):
    store, _ = other
    with pytest.raises(StateRefusal, match="Wait until a site delivers"):
        holding(store, "cvd")


def test_a_damaged_bundle_excludes_its_site_with_the_reason_and_hides_no_other(other):
    store, add = other
    plan = cohort_plan()
    for seed, site in enumerate(("alpha", "beta", "gamma")):
        add(plan, site, cohort(400, seed))
    kept = EstimateCache()
    assert ask(store, holding(store, "cvd", 1), "adjusted", cache=kept).result.labels == ("alpha", "beta", "gamma")
    victim = next(release for release in store.releases() if release.site == "beta")
    store.bundles.file(victim.bundle_sha256).write_bytes(b"damaged" * 100)
    answer = ask(
        store, holding(store, "cvd", 1), "adjusted", cache=kept
    )  # an estimate that was kept stands for no other bytes
    assert answer.result.labels == ("alpha", "gamma")
    (left_out,) = answer.result.excluded
    assert left_out.label == "beta"
    assert "zip" in left_out.reason
    assert len(answer.sources) == 3
    store.bundles.file(victim.bundle_sha256).unlink()
    assert "where bundles are kept" in ask(store, holding(store, "cvd", 1), "unadjusted").result.excluded[0].reason


def test_a_question_to_more_sites_than_have_room_finds_the_tables_that_do():
    """Sites are read in turn: if the oldest made room, no table would ever be found again."""
    kept, read = EstimateCache(cells=60 * 100), []

    def table(site: int) -> pd.DataFrame:
        read.append(site)
        return pd.DataFrame({"sbp": np.arange(100.0)})

    for _ in range(5):
        for site in range(200):
            kept.rows((f"{site}",), lambda site=site: table(site))
    assert read[:200] == list(range(200)), "the first time none is there"
    assert 200 + 4 * 130 < len(read) < 200 + 4 * 170, "of the 60 that have room most are found each time"
    assert sum(known.cells for known in kept._tables.values()) <= (60 + LOOKED_AT) * 100


def test_what_is_drawn_like_a_table_takes_room_as_the_table_does():
    kept, wide = EstimateCache(cells=2000), pd.DataFrame({"sbp": np.arange(900.0)})
    alpha = kept.rows(("alpha",), lambda: wide)
    kept.rows(("beta",), lambda: wide)
    assert kept._tables.keys() == {("alpha",), ("beta",)}
    drawn = kept.surrogate(("alpha",)).rows(alpha, ["sbp"], 0.5)
    assert kept._tables["alpha",].cells == alpha.cells + len(wide) // 2 + drawn.cells > 2000
    kept.rows(("gamma",), lambda: wide)
    assert sum(known.cells for known in kept._tables.values()) <= 2000


def test_what_is_drawn_like_a_table_goes_when_answers_are_kept_and_before_any_table():
    """A question draws after it has read its tables: what it drew last is bounded though no further table comes."""
    kept, wide = EstimateCache(cells=4000), pd.DataFrame({"sbp": np.arange(900.0)})
    for site in ("alpha", "beta"):
        drawn = kept.surrogate((site,)).rows(kept.rows((site,), lambda: wide), ["sbp"], 0.5)
    each = len(wide) + len(wide) // 2 + drawn.cells  # the table, the order of its rows, what was drawn
    assert sum(known.cells for known in kept._tables.values()) == 2 * each > 4000
    kept.keep(["mean(sbp)"], "cvd", {}, used=())
    assert all(known.rows is not None for known in kept._tables.values())
    assert sum(known.cells for known in kept._tables.values()) == 2 * each - drawn.cells <= 4000


def test_when_every_bundle_is_gone_the_refusal_names_them_all(other):
    store, add = other
    for seed, site in enumerate(("alpha", "beta")):
        add(cohort_plan(), site, cohort(300, seed))
    for release in store.releases():
        store.bundles.file(release.bundle_sha256).unlink()
    assert {row.term for row in site_estimates(store, "cvd", 1, "adjusted")} == {
        "sbp/10",
        "age/10",
        "chol/40",
        "hdl/15",
    }
    with pytest.raises(EstimateRefusal):
        ask(store, holding(store, "cvd", 1), "adjusted")


def test_a_site_whose_table_cannot_support_the_model_is_left_out_by_itself(other):
    store, add = other
    quiet = cohort(300, 9)
    quiet["cvd"] = quiet["cvd"] * 0
    add(cohort_plan(), "alpha", cohort(400, 1))
    add(cohort_plan(), "quiet", quiet)
    result = ask(store, holding(store, "cvd", 1), "unadjusted").result
    assert result.labels == ("alpha",)
    assert [row.label for row in result.excluded] == ["quiet"]


def test_a_column_added_by_a_later_plan_version_excludes_the_sites_of_the_earlier_one(other):
    store, add = other
    add(cohort_plan(), "early", cohort(400, 1))
    bmi = "[dictionary.columns.bmi]\nkind = 'continuous'\nlower = 10\nupper = 80\n\n[dictionary.columns.sbp]"
    later = cohort_plan(**{"version = 1": "version = 2", "[dictionary.columns.sbp]": bmi})
    table = cohort(400, 2)
    table["bmi"] = table["sbp"] / 5
    add(later, "late", table[list(later.dictionary.names)])
    result = ask(store, holding(store, "cvd", 1), "cox(time, cvd) ~ bmi").result
    assert result.labels == ("late",)
    assert result.excluded[0].reason == "its plan version 1 has no column bmi"


def test_a_quarantined_release_is_read_by_nobody(other):
    store, add = other
    add(cohort_plan(), "good", cohort(400, 1))
    add(cohort_plan(), "bad", cohort(400, 2), put=quarantine)
    answer = ask(store, holding(store, "cvd", 1), "unadjusted")
    assert {row.site for row in answer.estimates} == {"good"}
    assert {source.site for source in answer.sources} == {"good"}


def test_the_four_hospitals_pool_to_the_published_figures_when_rows_pass_through_unchanged(tmp_path, heart_data):
    plan = StudyPlan.from_toml((STUDIES / "heart.toml").read_text())
    encoder = Encoder(dictionary=plan.dictionary)
    lead = SigningKey.generate()
    authority = Authority.create(tmp_path, coordinator="tributary-hub", names=("localhost",))
    with closing(Store.open(tmp_path)) as store:
        store.add_plan(sign_plan(plan, [lead]), plan)
        for site in ("cleveland", "hungarian", "switzerland", "va"):
            source = pd.read_csv(heart_data / f"{site}.csv")[list(plan.dictionary.names)]
            table = encoder.decode(encoder.encode(plan.dictionary.check(source), seeded_rng(1)))
            invitation = authority.invite(site, ["heart"], address="localhost:1", leads=[lead.public], days=300)
            store.add_invitation(invitation)
            deliver(store, plan, site, join(store, invitation), table)
        published = Pooling(method="DL", test="z")
        # The published figures are of the patients themselves: these rows are, and are no draws to be paid for.
        age = ask(store, holding(store, "heart", 1), "disease", pooling=published).result.naive
        exang = ask(store, holding(store, "heart", 1), "disease", term="exang", pooling=published).result.naive
        sex = ask(store, holding(store, "heart", 1), "disease", term="sex").result
    assert (round(age.fixed.beta, 4), round(age.fixed.se, 4)) == (0.0430, 0.0110)
    assert (round(age.beta, 4), round(age.se, 4)) == (0.0396, 0.0156)
    assert (round(exang.fixed.beta, 4), round(exang.beta, 4), round(exang.se, 4)) == (2.1176, 2.0619, 0.3461)
    assert round(exang.I2) == 60
    assert [row.label for row in sex.excluded] == ["switzerland"]
    assert "separates" in sex.excluded[0].reason


def test_rows_whose_unusual_records_were_pulled_in_count_for_the_weight_that_is_left(other):
    """Their noise is larger than w says, and intervals have to hold it."""
    store, add = other
    plan = cohort_plan(**{"w = 0.8  ": "shrink = 2.0\nw = 0.8  "})
    assert plan.release.shrink == 2.0
    add(plan, "near", cohort(400, 1))
    (release,) = store.releases("cvd")
    (draw,) = draws_of([release], [])
    assert draw.w == kept_weight(0.8, default_radius(6, inside=0.9), 2.0, 6) < 0.8
    assert release.receipt.parameters["shrink"] == 2.0


def test_rows_whose_flow_follows_from_the_plan_are_released_again_to_tell_how_far_the_records_may_be(other):
    store, add = other
    add(cohort_plan(), "closed", cohort(400, 1))
    public = cohort_plan(**{"version = 1": "version = 2", 'posture = "local"': 'posture = "public"'})
    add(public, "open", cohort(400, 2))
    fixed = Pooling(method="FE", test="z")
    plain = ask(store, holding(store, "cvd", 1), "unadjusted", pooling=fixed)
    assert plain.gap.how == "linearisation of the release's noise"
    assert plain.flows_known == ()
    assert "flow of open was not fitted on the records" in plain.cautions[0]
    assert plain.document["gap"] is None  # a number that would not hold is told nobody
    again = ask(store, holding(store, "cvd", 1), "unadjusted", perturbations=3, pooling=fixed)
    assert again.flows_known == ("open",)
    assert "releasing its rows again 3 times" in again.gap.how
    assert "linearisation" in again.gap.how
    assert again.gap.rms > 0
    assert "lies within a factor of" in again.cautions[0]
    assert again.document["gap"]["rms"] == again.gap.rms
    assert again.result.beta == plain.result.beta  # a caution moves no number


def test_a_trained_flow_is_taken_for_the_rows_of_the_plan_that_names_it_and_for_no_other(filled):
    from types import SimpleNamespace

    plan = filled[1]
    encoder = Encoder(dictionary=plan.dictionary)
    assert released_flow(plan, encoder, "alpha") is None  # posture local: its flow stays at the site
    named = SimpleNamespace(release=plan.release, posture="private", flow="federated:" + "a" * 64)
    assert released_flow(named, encoder, "alpha") is None
    other = SimpleNamespace(name="federated:" + "b" * 64, dictionary_hash=plan.dictionary.hash)
    with pytest.raises(PlanChanged, match="the one that the plan names"):
        released_flow(named, encoder, "alpha", other)


def test_an_answer_says_which_conditions_of_the_paper_s_theorem_it_does_not_meet(filled):
    """Four sites of a few hundred: too few sites for a limit in them, whatever else holds."""
    store = filled[0]
    answer = ask(store, holding(store, "cvd", 1), "unadjusted")
    persons = np.mean([row.n for row in answer.estimates])
    assert persons / 50 > 4
    far, many, *rest = answer.cautions
    assert far.startswith("The estimate from the records themselves lies within a factor of 1.")
    assert "many sites" in many
    assert "there are 4" in many
    assert len(rest) == (answer.result.tau2 == 0)
    common = ask(store, holding(store, "cvd", 1), "unadjusted", pooling=Pooling(method="FE"))
    assert any("τ₀ > 0" in sentence and "common" in sentence for sentence in common.cautions)
    assert common.document["cautions"] == common.cautions


@pytest.mark.parametrize(("sites", "persons"), [(0, 10.0), (3, 0.0), (3, math.nan), (3, math.inf)])
def test_theorem_3_of_no_site_or_no_person_is_no_question(sites, persons):
    with pytest.raises(ParameterError, match="positive"):
        theorem3(sites, persons)


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("cox(Surv(time, cvd) ~ sbp/10 + log(age), subset = age >= 40 & sbp < 180)", ("sbp/10", "log(age)")),
        ("rmst(time, cvd, tau = 5) ~ I(sbp > 140)", ("I(sbp > 140)[1]",)),
        ("km(time, cvd, at = 5)", ("km(time, cvd, at = 5)",)),
        ("rmst_regression(time, cvd, tau = 5) ~ sbp/10 + age", ("sbp/10", "age")),
        ("schoenfeld(time, cvd) ~ sbp/10 + age", ("sbp/10", "age")),
        ("finegray(time, cvd, competing = age > 65) ~ sbp/10", ("sbp/10",)),
        ("aft(time, cvd, dist = loglogistic) ~ sbp/10 + age", ("sbp/10", "age")),
        ("flexible(time, cvd, df = 2) ~ sbp/10 + age", ("sbp/10", "age")),
        ("cumhaz(time, cvd, at = 5)", ("cumhaz(time, cvd, at = 5)",)),
        ("cuminc(time, cvd, competing = sbp > 150, at = 5) ~ I(age > 55)", ("I(age > 55)[0]", "I(age > 55)[1]")),
        ("two_by_two(cvd, measure = RR) ~ I(sbp > 140)", ("I(sbp > 140)[1]",)),
        ("poisson(cvd) ~ sbp/10 + offset(log(time))", ("sbp/10",)),
        ("risk_ratio(cvd) ~ sbp/10", ("sbp/10",)),
        ("log_binomial(cvd, robust = HC3) ~ sbp/10", ("sbp/10",)),
        ("quasipoisson(cvd) ~ sbp/10 + offset(log(time))", ("sbp/10",)),
        ("negbin(cvd) ~ sbp/10 + offset(log(time))", ("sbp/10",)),
        ("probit(cvd) ~ sbp/10", ("sbp/10",)),
        ("cloglog(sbp > 140) ~ age/10", ("age/10",)),
        ("gamma(sbp) ~ age/10", ("age/10",)),
        ("ordinal(cvd) ~ age/10", ("age/10",)),
        ("multinomial(cvd) ~ age/10", ("age/10 | 1",)),
        ("quantile(sbp, tau = 0.5) ~ age/10", ("age/10",)),
        ("gee(sbp, cluster = hdl) ~ age/10", ("age/10",)),
        ("mixed(sbp, cluster = hdl) ~ age/10", ("age/10",)),
        ("standardised(cvd, of = sbp) ~ sbp/10 + age", ("sbp/10",)),
        ("standardised(cvd, of = sbp, contrast = slope, model = probit) ~ sbp/10 + age", ("sbp/10",)),
    ],
)
def test_the_newer_kinds_pool_over_the_sites_as_each_table_answers_alone(filled, question, terms):
    store, _, tables, _ = filled
    answer = ask(store, holding(store, "cvd", 1), question)
    assert answer.terms == terms
    assert answer.result.k == 4, [row.reason for row in answer.estimates]
    for row in answer.estimates:
        alone = estimate(tables[row.site], parse_estimand(question))[0]
        assert (row.yi, row.vi_naive, row.n, row.n_outside) == (alone.yi, alone.vi, alone.n, alone.n_outside)


def test_a_planned_formula_that_is_none_today_hides_no_other_question():
    plan = cohort_plan()
    older = replace(plan, estimands={"old": "once(time) ~ sbp", **plan.estimands})
    for name, formula in plan.estimands.items():
        assert resolve(older, formula) == resolve(plan, formula) == (parse_estimand(formula), name)
    with pytest.raises(ParameterError, match="once"):
        resolve(older, "old")
