"""Latent classes fitted to noisy tables, and the questions that they answer, from the model to the forest plot."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.pipeline import release, site, source  # noqa: F401

from coordinator.answers import queries, site_answers
from coordinator.answers.curves import curves
from coordinator.answers.release_selection import holding
from coordinator.figures.forest import forest
from coordinator.services.authority import Authority
from coordinator.services.compute.kept_estimates import KeptEstimates
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, IntegrityRefusal, ParameterError
from shared.estimands.answer import estimate, parse_estimand
from shared.mechanisms.tables.latent_class import consistent, fit
from shared.mechanisms.tables.noise import CountTables, Zero, attributes
from shared.mechanisms.tables.one_step import Released, answer, fitted, synthetic
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan, sign_plan
from shared.releases.bundle import read_bundle
from tests.stage.coordinator_side.delivered import deliver, join

MIXED = Dictionary(
    name="mixed",
    version=1,
    columns=(
        Column(name="years", kind="time", upper=10, event="died", decimals=2),
        Column(name="died", kind="event"),
        Column(name="dose", kind="continuous", lower=-4, upper=4, decimals=2, missing="level"),
        Column(name="visits", kind="integer", lower=0, upper=9),
        Column(name="arm", kind="binary", levels=("control", "drug")),
        Column(name="grade", kind="ordered", levels=("low", "middle", "high"), missing="level"),
    ),
)
LEVELS = {column.name: column.levels for column in MIXED.released if column.levels}


def records(n: int, seed: int, *, effect: float = 0.5) -> pd.DataFrame:
    """Checked records in which dose, visits, grade and death hang together."""
    rng = np.random.default_rng(seed)
    dose = rng.standard_normal(n).clip(-4, 4)
    arm = rng.integers(0, 2, n)
    time = rng.exponential(6 * np.exp(-effect * dose - 0.4 * arm))
    end = rng.uniform(2, 10, n)
    grade = np.digitize(dose + rng.standard_normal(n), [-0.5, 0.8]).astype(float)
    return pd.DataFrame(
        {
            "years": np.minimum(time, end).clip(0, 10),
            "died": (time <= end).astype(float),
            "dose": np.where(rng.random(n) < 0.1, np.nan, dose),
            "visits": rng.poisson(np.exp(0.8 + 0.3 * dose)).clip(0, 9).astype(float),
            "arm": arm.astype(float),
            "grade": np.where(rng.random(n) < 0.05, np.nan, grade),
        }
    )


def released(n: int, sigma: float, seed: int = 1, **how: float) -> Released:
    mechanism = CountTables(attributes=attributes(MIXED, {"years": 10, "dose": 20}), sigma=sigma)
    return Released(tables=mechanism, counts=tuple(mechanism.release(records(n, seed, **how), seeded_rng(seed))), n=n)


@pytest.fixture(scope="module")
def clean() -> Released:
    return released(8000, 0.5)


def test_every_two_way_table_is_recovered_where_there_is_hardly_noise_and_better_than_by_margins(clean):
    model = fitted(clean)
    apart = {"model": [], "margins": []}
    for table, count, expected in zip(clean.tables.tables, clean.counts, model.expected(clean.tables), strict=True):
        assert expected.sum() == pytest.approx(clean.n)
        apart["model"].append(np.abs(expected - count).sum() / (2 * clean.n))
        if len(table.of) == 2:
            margins = np.outer(clean.counts[table.of[0]], clean.counts[table.of[1]]) / clean.n
            apart["margins"].append(np.abs(margins - count).sum() / (2 * clean.n))
    assert max(apart["model"]) < 0.06
    assert np.mean(apart["model"]) < 0.45 * np.mean(apart["margins"])


def test_a_planted_dependence_survives_noise(clean):
    noisy = replace(
        clean,
        counts=tuple(c + seeded_rng(4).lattice_gaussian_steps(20.0, c.shape, 1.0) for c in clean.counts),
        tables=replace(clean.tables, sigma=20.0),
    )
    rows = pd.concat(synthetic(fitted(noisy), MIXED, draws=5, rng=np.random.default_rng(3)))
    assert np.corrcoef(rows.dose.fillna(0), rows.visits)[0, 1] > 0.2


def test_consistent_tables_share_their_margins_and_no_margin_is_negative():
    given = released(300, 15.0)
    margins, tables = consistent(given.tables, given.counts, given.n)
    for table, count in zip(given.tables.tables, tables, strict=True):
        for axis, place in enumerate(table.of):
            own = count if count.ndim == 1 else count.sum(axis=1 - axis)
            np.testing.assert_allclose(own, margins[place], atol=1e-8)
    assert all(margin.min() >= 0 and margin.sum() == pytest.approx(given.n) for margin in margins)


def test_the_gradient_is_that_of_the_loss():
    from scipy.optimize import check_grad

    from shared.mechanisms.tables.latent_class import CountLoss

    given = released(400, 5.0)
    problem = CountLoss(given.tables, given.counts, given.n, 25.0, 3)
    theta = problem.start() + 0.1 * np.random.default_rng(2).standard_normal(len(problem.start()))
    size = np.linalg.norm(problem(theta)[1])
    assert check_grad(lambda t: problem(t)[0], lambda t: problem(t)[1], theta) < 1e-4 * size


def test_the_same_release_has_the_same_rows_and_they_fit_the_dictionary(clean):
    twice = [
        synthetic(fit(clean.tables, clean.counts, clean.n), MIXED, draws=2, rng=np.random.default_rng(7), rows=500)
        for _ in range(2)
    ]
    for one, other in zip(*twice, strict=True):
        pd.testing.assert_frame_equal(one, other)
        MIXED.validate_release(one)
        assert one[["dose", "grade"]].isna().any().all()
    assert not twice[0][0].equals(twice[0][1])


def test_structural_zeros_are_never_drawn_and_leave_the_rest(clean):
    arm, grade = 3, 4
    zero = Zero(of=(arm, grade), rows=(1,), columns=(2,))  # nobody on the drug is of high grade
    counts = [c.copy() for c in clean.counts]
    place = [table.of for table in clean.tables.tables].index((arm, grade))
    counts[place][1, 2] = 40  # as noise has it
    tables = replace(clean.tables, zeros=(zero,))
    model = fit(tables, counts, clean.n)
    [rows] = synthetic(model, MIXED, draws=1, rng=np.random.default_rng(1), rows=4000)
    both = pd.crosstab(rows.arm, rows.grade)
    assert both.loc["drug", "high"] == 0
    assert both.loc["control", "high"] > 200
    nowhere = {(arm, grade): np.ones((2, 4), dtype=bool)}
    with pytest.raises(EstimateRefusal, match="structural zeros"):
        replace(model, zeros=nowhere).codes(10, np.random.default_rng(1))
    # Another declaration is another fit, for whoever keeps fits by what was released.
    digests = {Released(tables=one, counts=tuple(counts), n=clean.n).digest for one in (tables, clean.tables)}
    assert len(digests) == 2
    with pytest.raises(ParameterError, match="every level possible"):
        replace(clean.tables, zeros=(zero, Zero(of=(arm, grade), rows=(1,), columns=(0, 1, 3))))
    for wrong in (
        Zero(of=(grade, arm), rows=(1,), columns=(1,)),
        Zero(of=(arm, grade), rows=(), columns=(1,)),
        Zero(of=(arm, grade), rows=(2,), columns=(1,)),
    ):
        with pytest.raises(ParameterError, match="cells of two attributes"):
            replace(clean.tables, zeros=(wrong,))


def test_a_number_follows_its_histogram_within_a_bin_and_an_integer_stays_whole(clean):
    [rows] = synthetic(fitted(clean), MIXED, draws=1, rng=np.random.default_rng(5), rows=8000)
    inside = rows.dose[(rows.dose > 0.8) & (rows.dose < 1.6)]
    # The normal density falls by half over this bin: its mean lies left of the middle.
    assert inside.mean() < 1.19
    assert rows.visits.dtype == np.dtype("int64")


@pytest.mark.parametrize(
    "text",
    [
        "mean(visits)",
        "proportion(died)",
        "correlation(dose, visits)",
        "difference(visits) ~ arm",
        "two_by_two(died, measure = RR) ~ arm",
        "ols(visits) ~ dose + C(grade)",
        "logistic(died) ~ dose + C(arm)",
        "cox(years, died) ~ dose + C(arm)",
        "km(years, died, at = 3)",
    ],
)
def test_with_hardly_any_noise_an_answer_is_that_of_the_records(clean, text):
    question = parse_estimand(text)
    levels = {**LEVELS, "arm": (0, 1), "grade": (0, 1, 2)}
    real = estimate(records(8000, 1), question, levels=levels)
    found = answer(clean, fitted(clean), MIXED, question, levels=LEVELS)
    assert len(found) == len(real)
    for one, other in zip(found, real, strict=True):
        assert one.yi is not None
        assert one.how
        # Both are of the same persons: what is between them is binning, drawing and the little noise.
        assert abs(one.yi - other.yi) < 2.5 * np.sqrt(one.vi + one.vi_common), (
            text,
            one.term,
            one.yi,
            other.yi,
            one.vi,
        )
        assert 0.5 < one.vi_sampling / other.vi_sampling < 2


def test_more_synthetic_tables_do_not_narrow_an_interval():
    given = released(400, 6.0)
    for text in ("ols(visits) ~ dose", "km(years, died, at = 3)"):
        question = parse_estimand(text)
        few, many = (answer(given, fitted(given), MIXED, question, draws=m)[0] for m in (5, 15))
        assert many.vi > 0.75 * few.vi
        assert many.vi_sampling > 0.75 * many.vi_naive
    with pytest.raises(ParameterError, match="at least 5"):
        answer(given, fitted(given), MIXED, question, draws=4)


def test_more_noise_widens_an_interval_and_never_narrows_it():
    question = parse_estimand("ols(visits) ~ dose")
    widths = []
    for sigma in (0.5, 5.0, 50.0):
        given = released(1000, sigma)
        widths.append(answer(given, fitted(given), MIXED, question)[0].vi_privacy)
    assert widths == sorted(widths)


def test_what_tables_of_two_columns_do_not_say_is_told():
    given = released(2000, 2.0)
    plain, product = (
        answer(given, fitted(given), MIXED, parse_estimand(text))[-1]
        for text in ("ols(visits) ~ dose", "ols(visits) ~ dose + died + dose:died")
    )
    assert not plain.warnings
    assert any("three columns" in words for words in product.warnings)
    partly = CountTables(attributes=given.tables.attributes, pairs=((0, 1),), sigma=2.0)
    counts = tuple(partly.release(records(2000, 1), seeded_rng(1)))
    [found] = answer(
        Released(tables=partly, counts=counts, n=2000),
        fitted(Released(tables=partly, counts=counts, n=2000)),
        MIXED,
        parse_estimand("ols(visits) ~ dose"),
    )
    assert "dose × visits" in found.warnings[0]


MEAN_AND_SLOPE = ("mean(visits)", "ols(visits) ~ dose")


def coverage(times: int, sigma: float = 4.0, n: int = 500) -> list[float]:
    """Of each question, the share of 95 % intervals that hold the law's value, over fresh persons and fresh noise."""
    questions = list(map(parse_estimand, MEAN_AND_SLOPE))
    law = records(200_000, 0)
    truths = [estimate(law, question)[0].yi for question in questions]
    held = np.zeros(len(questions))
    for k in range(times):
        given = released(n, sigma, seed=100 + k)
        model = fitted(given)
        for place, question in enumerate(questions):
            [row] = answer(given, model, MIXED, question, levels=LEVELS)
            held[place] += abs(row.yi - truths[place]) < 1.96 * np.sqrt(row.vi)
    return list(held / times)


def test_intervals_hold_the_truth():
    mean, slope = coverage(20)
    assert mean >= 0.8
    assert slope >= 0.7


@pytest.mark.soak
@pytest.mark.parametrize("sigma", [1.0, 4.0, 16.0])
def test_intervals_hold_the_truth_at_every_noise(sigma, record_property):
    """Of a mean as often as they say; of an association this strong, in 500 persons, not: it is still shrunk."""
    mean, slope = coverage(300, sigma)
    record_property("mean", mean)
    record_property("slope", slope)
    assert mean >= 0.91
    assert slope >= 0.75


def svg(figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


# -- from the site to the forest plot -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def study(plan) -> StudyPlan:
    prescribed = TablesPlan(epsilon=3.0, bins={"sbp": 10, "chol": 6, "time": 6})
    return replace(plan, release=prescribed, posture="private", budget=Budget(epsilon=9.0, delta=1e-6))


@pytest.fixture
def hub(tmp_path, study):
    """(store, add): a coordinator of the study; `add` takes a site in with the release of its records."""
    lead = SigningKey.generate()
    authority = Authority.create(tmp_path / "hub", coordinator=study.coordinator, names=("localhost",))
    keys: dict[str, SigningKey] = {}
    signed = {study.version}
    with closing(Store.open(tmp_path / "hub")) as store:
        store.add_plan(sign_plan(study, [lead]), study)

        def add(name: str, figures: pd.DataFrame, n: int, wave: int = 1, under: StudyPlan = study) -> None:
            if name not in keys:
                invitation = authority.invite(name, [study.study], address="localhost:1", leads=[lead.public], days=300)
                store.add_invitation(invitation)
                keys[name] = join(store, invitation)
            if under.version not in signed:
                store.add_plan(sign_plan(under, [lead]), under)
                signed.add(under.version)
            under.release.validate(under, figures, n)
            deliver(store, under, name, keys[name], figures, wave=wave, n=n)

        yield store, add


def figures_of(study: StudyPlan, table: pd.DataFrame, seed: int) -> pd.DataFrame:
    return study.release.draw(study, study.dictionary.check(table), seeded_rng(seed))


def test_three_sites_noisy_tables_are_pooled_and_the_forest_plot_says_posture_and_price(
    tmp_path,
    study,
    site,  # noqa: F811
    hub,
):
    store, add = hub
    # The first site's tables went the whole way through a real site, to the sealed bundle.
    table = make_table(300, seed=1)
    made = release(study, site, source(tmp_path, table))
    add("alpha", read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).table, 300)
    for name, n, seed in (("beta", 400, 2), ("gamma", 200, 3)):
        add(name, figures_of(study, make_table(n, seed=seed), seed), n)
    found = queries.ask(store, holding(store, study.study, 1), "mean(sbp)")
    assert [row.site for row in found.estimates] == ["alpha", "beta", "gamma"]
    for row in found.estimates:
        assert abs(row.yi - 130) < 3.5 * np.sqrt(row.vi), row
        assert row.vi_privacy > 0
        assert row.vi > row.vi_naive
    assert abs(found.result.beta - 130) < 3.5 * found.result.se
    assert found.columns["posture"] == dict.fromkeys(("alpha", "beta", "gamma"), "private")
    assert set(found.columns["ε"].values()) == {"3"}
    drawn = svg(forest(found.result, columns=found.columns))
    assert "private" in drawn
    assert "ε" in drawn
    # The same question is answered from memory, and the same.
    kept = site_answers.EstimateCache()
    first, second = (
        queries.ask(store, holding(store, study.study, 1), "mean(sbp)", cache=kept).estimates for _ in range(2)
    )
    assert first == second == found.estimates
    # And from the store, by processes that have read nothing.
    for read in (3, 0):
        with closing(Store.open(tmp_path / "hub")) as other:
            kept = site_answers.EstimateCache()
            kept.kept = KeptEstimates(other, 1 << 20)
            asked = queries.ask(other, holding(other, study.study, 1), "mean(sbp)", cache=kept)
            assert repr(asked.estimates) == repr(found.estimates)
            assert len(other._tables._tables) == read


def test_sites_of_the_same_terms_are_read_together_beside_others_and_without_a_bundle_that_cannot_be(
    study, hub, monkeypatch
):
    store, add = hub
    later = replace(study, version=study.version + 1, release=replace(study.release, epsilon=4.0))
    of = {"alpha": study, "beta": study, "gamma": study, "delta": later, "kappa": later, "omega": later}
    for seed, (name, plan) in enumerate(of.items()):
        add(name, figures_of(plan, make_table(300, seed=seed), seed), 300, under=plan)

    def asked(question: str) -> dict[str, str]:
        found = queries.ask(store, holding(store, study.study, 1), question)
        return {row.site: row.reason or row.how for row in found.estimates}

    assert all("all sites' tables" in how for how in asked("ols(sbp) ~ chol").values())
    read = site_answers.rows_of

    def damaged(store, releases, taken):
        if releases[0].site == "gamma":
            raise IntegrityRefusal("a bundle must be the one that arrived", given="another")
        return read(store, releases, taken)

    monkeypatch.setattr(site_answers, "rows_of", damaged)
    how = asked("ols(sbp) ~ chol")
    assert "another" in how.pop("gamma")
    assert all("all sites' tables" in one for one in how.values())


def test_sites_of_other_terms_answer_where_those_of_one_plan_cannot(study, hub):
    store, add = hub
    later = replace(study, version=study.version + 1, release=replace(study.release, epsilon=4.0))
    for seed, name in enumerate(("alpha", "beta")):
        narrow = make_table(300, seed=seed).assign(sbp=130.0)
        add(name, figures_of(study, narrow, seed), 300)
    for seed, name in enumerate(("delta", "kappa", "omega"), 7):
        add(name, figures_of(later, make_table(300, seed=seed), seed), 300, under=later)
    found = queries.ask(store, holding(store, study.study, 1), "ols(sbp) ~ chol")
    reasons = {row.site: row.reason for row in found.estimates}
    assert all("bin" in reasons[name] for name in ("alpha", "beta"))
    assert [reasons[name] for name in ("delta", "kappa", "omega")] == [""] * 3


def test_a_site_without_an_answer_has_a_reason_and_the_others_stay(study, hub):
    store, add = hub
    add("alpha", figures_of(study, make_table(300, seed=1), 1), 300)
    add("beta", figures_of(study, make_table(6, seed=2), 2), 6)
    found = queries.ask(store, holding(store, study.study, 1), "ols(sbp) ~ chol")
    alpha, beta = found.estimates
    assert alpha.yi is not None
    assert beta.yi is None
    assert "synthetic tables" in beta.reason
    with pytest.raises(EstimateRefusal, match="released rows"):
        curves(store, study.study, 1, "km(time, cvd)")


def test_releases_of_different_persons_are_added_up(study):
    parts = [make_table(n, seed=n) for n in (500, 300)]
    figures = [(figures_of(study, part, k), len(part)) for k, part in enumerate(parts)]
    both = study.release.released(study, figures)
    assert (both.n, both.releases, both.variance) == (800, 2, 2 * (both.tables.sigma**2 + 1 / 12))
    for total, one, other in zip(both.counts, *(study.release.counts(study, f) for f, _ in figures), strict=True):
        np.testing.assert_array_equal(total, one + other)
    changed = figures[0][0].assign(cell="x")
    with pytest.raises(EstimateRefusal, match="newest plan version"):
        study.release.released(study, [(changed, 500)])
