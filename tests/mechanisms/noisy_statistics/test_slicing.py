"""Slicing: what a row becomes, what a release costs, and its way through a site and a coordinator."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats
from stage.both_sides.service import SMALL, Hub
from stage.hospital_side.pipeline import release, site, source  # noqa: F401

from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, ParameterError, PlanRefusal, SchemaRefusal, TooLarge
from shared.estimands.answer import parse_estimand
from shared.mechanisms.slicing import projections
from shared.mechanisms.slicing.noise import ROW_STEP, RowCode, SlicingMechanism, event, noise_for
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.dictionary import Column, Dictionary
from shared.plans.plan import Budget, StudyPlan
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from site_agent.release.pipeline.stages import estimate
from tests.benchmarks.paper.bounds import theorem1_epsilon

TINY = Dictionary(
    name="tiny",
    version=1,
    columns=(
        Column(name="years", kind="time", upper=4, event="died"),
        Column(name="died", kind="event"),
        Column(name="dose", kind="continuous", lower=0, upper=3, missing="level"),
        Column(name="visits", kind="integer", lower=0, upper=2),
        Column(name="clinic", kind="nominal", levels=("north", "south", "west"), missing="level"),
    ),
)
CODE = RowCode(dictionary=TINY)


def corners() -> pd.DataFrame:
    """Every record whose numbers lie at a bound, in the middle or nowhere."""
    parts = ([0.0, 2.0, 4.0], [0.0, 1.0], [0.0, 1.5, 3.0, np.nan], [0.0, 2.0], [0.0, 1.0, 2.0, np.nan])
    names = ("years", "died", "dose", "visits", "clinic")
    return pd.DataFrame([dict(zip(names, one, strict=True)) for one in itertools.product(*parts)])


@pytest.fixture(scope="module")
def study(plan) -> StudyPlan:
    return replace(plan, release=SlicingPlan(epsilon=5.1), posture="private", budget=Budget(epsilon=8.0, delta=1e-6))


# -- rows --------------------------------------------------------------------------------------------------------
def test_no_two_records_are_further_apart_than_the_diameter_and_some_are_that_far():
    rows = CODE.encode(corners()) * ROW_STEP
    assert rows.shape[1] == CODE.d == 1 + 2 + 2 + 1 + 4
    apart = max(float(((rows - row) ** 2).sum(axis=1).max()) for row in rows)
    assert apart == pytest.approx(CODE.distance**2, rel=1e-12)
    assert apart <= CODE.distance**2
    assert (rows**2).sum(axis=1).max() <= 1
    levels = Dictionary(name="levels", version=1, columns=(TINY.columns[1], TINY.columns[4]))
    assert RowCode(dictionary=levels).distance == pytest.approx(math.sqrt(2), rel=1e-3)  # one level on in each


def test_a_value_past_its_bounds_is_taken_at_the_bound_and_a_code_that_is_no_level_is_refused():
    frame = corners().iloc[:2].copy()
    frame["years"] = [-1e9, 1e300]
    np.testing.assert_array_equal(CODE.encode(frame)[:, 0] * ROW_STEP, [-CODE.unit, CODE.unit])
    for name, value in (("died", 2.0), ("clinic", 0.5), ("years", np.nan)):
        with pytest.raises(ParameterError, match=name):
            CODE.encode(frame.assign(**{name: value}))


def test_longer_rows_are_scaled_to_length_one_and_counted():
    mechanism = SlicingMechanism(d=3, slices=3, sigma=1.0)
    rows = np.array([[0.6, 0.8, 0.0], [0.3, 0.0, 0.0], [3.0, -4.0, 0.0], [1e300, 1e300, 1e300]])
    steps, clipped = mechanism.clip(rows)
    assert clipped == 2
    assert (steps**2).sum(axis=1).max() <= ROW_STEP**-2
    np.testing.assert_allclose(steps * ROW_STEP, [*rows[:2], [0.6, -0.8, 0], [3**-0.5] * 3], atol=2 * ROW_STEP)
    many = np.random.default_rng(1).normal(size=(5000, 3))
    assert (mechanism.clip(many)[0] ** 2).sum(axis=1).max() <= ROW_STEP**-2
    with pytest.raises(ParameterError, match="finite"):
        mechanism.clip(np.array([[np.nan, 0.0, 0.0]]))
    assert mechanism.release(np.ones((0, 3)), seeded_rng(1))[1].shape == (0, 3)


def test_where_the_distance_is_a_code_s_diameter_other_rows_are_refused():
    mechanism = SlicingMechanism(d=CODE.d, slices=2 * CODE.d, sigma=1.0, distance=CODE.distance)
    rows = CODE.encode(corners())
    assert mechanism.release(rows, seeded_rng(1))[1].shape == (len(rows), 2 * CODE.d)
    for other in (rows * ROW_STEP, rows * 3):
        with pytest.raises(ParameterError, match="of a code"):
            mechanism.release(other, seeded_rng(1))


# -- what it costs -----------------------------------------------------------------------------------------------
def silent() -> object:
    """A source whose noise is zero and whose directions are drawn: what is left is the signal."""

    class Source:
        inner = seeded_rng(5)
        drawn = 0

        def lattice_gaussian_steps(self, sigma, shape, grid):
            self.drawn += 1
            return self.inner.lattice_gaussian_steps(sigma, shape, grid) * (self.drawn == 1)

    return Source()


def test_given_the_directions_no_replacement_moves_a_line_further_than_rows_are_apart_along_them():
    """Over all pairs of records: what the signal moves by, against U's longest stretch of the diameter."""
    mechanism = SlicingMechanism(d=CODE.d, slices=8 * CODE.d, sigma=2.0**-9, distance=CODE.distance)
    rows = CODE.encode(corners())
    directions, lines = mechanism.release(rows, silent())
    np.testing.assert_allclose(lines, rows @ directions * ROW_STEP, atol=mechanism.grid)
    moved = max(float(((lines - line) ** 2).sum(axis=1).max()) ** 0.5 for line in lines)
    reach = CODE.distance * np.linalg.norm(directions, 2)
    assert 0.3 * reach < moved <= reach + mechanism.grid * math.sqrt(mechanism.slices)


def test_the_law_of_what_a_replacement_moves_is_the_one_that_is_charged():
    """‖(x − x')U‖² d / D² over 2,000 groups of directions follows χ² with their number; half of it does not."""
    mechanism = SlicingMechanism(d=4, slices=12_000, sigma=4.0)
    far = np.array([[0.5] * 4, [-0.5] * 4])
    directions, _ = mechanism.release(far[:0], seeded_rng(7))
    along = ((far[0] - far[1]) @ directions) ** 2 * mechanism.d / mechanism.distance**2
    moved = along.reshape(-1, 6).sum(axis=1)
    assert stats.kstest(moved, stats.chi2(6).cdf).pvalue > 1e-6
    assert stats.kstest(moved / 2, stats.chi2(6).cdf).pvalue < 1e-6


def test_rounded_directions_cost_what_is_charged_for_them_and_hardly_anything():
    d, slices, distance = 51, 408, math.sqrt(2)
    charged = event(d=d, slices=slices, sigma=5.0, distance=distance)
    formula = privacy.Slicing(d=d, slices=slices, sigma=5.0, distance=distance)
    assert 1 < privacy.epsilon(charged, 1e-5) / privacy.epsilon(formula, 1e-5) < 1.001
    # The bound behind it, at the law's own small, usual and large r.
    step = 2.0**-20
    c = distance * math.sqrt(d * slices) * step / 2
    sliced, rounding = charged.events
    for quantile in (1e-12, 0.5, 1 - 1e-12):
        share = stats.chi2(slices).ppf(quantile) / d
        assert (distance * math.sqrt(share) + c) ** 2 <= sliced.distance**2 * share + rounding.sensitivity**2


@pytest.mark.parametrize(("slices", "bar"), [(30, 0.75), (3000, 0.85)])
def test_the_integral_needs_less_noise_than_the_paper_s_theorem(slices, bar):
    """Under the paper's own neighbours (rows replaced by nothing: distance 1), at its ε of 5.1."""
    for d in (30, 40):
        if slices < d:
            continue
        exact = noise_for(5.1, 1e-5, d=d, slices=slices, distance=1.0)
        scale = math.sqrt(slices / d)
        paper = optimize.brentq(
            lambda s, d=d: theorem1_epsilon(d=d, slices=slices, sigma=s, delta=1e-5) - 5.1, 0.3 * scale, 50 * scale
        )
        assert 0.5 < exact / paper <= bar


@pytest.mark.parametrize("epsilon", [0.01, 5.1, 50.0])
def test_the_noise_of_a_price_costs_that_price_and_no_more(epsilon):
    sigma = noise_for(epsilon, 1e-6, d=20, slices=160, distance=2.0)
    assert 0.998 * epsilon < privacy.epsilon(event(d=20, slices=160, sigma=sigma, distance=2.0), 1e-6) <= epsilon


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 1.0, "sigma": 2.0}, "either epsilon or sigma"),
        ({}, "either epsilon or sigma"),
        ({"epsilon": 0.0}, r"in \(0, 50\]"),
        ({"epsilon": 50.1}, r"in \(0, 50\]"),
        ({"epsilon": "1"}, r"in \(0, 50\]"),
        ({"sigma": math.inf}, "release.sigma"),
        ({"sigma": 1e9}, "sigma must be in"),
        ({"epsilon": 1.0, "slices": 0}, "1..4095"),
        ({"epsilon": 1.0, "slices": 5000}, "1..4095"),
        ({"epsilon": 1.0, "slices": 10}, "at least as many slices"),
        ({"epsilon": 1e-9}, "within what can be drawn"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_plan(plan, settings, words):
    with pytest.raises(PlanRefusal, match=words):
        replace(plan, release=SlicingPlan(**settings), posture="private")


# -- its way -----------------------------------------------------------------------------------------------------
def test_a_release_that_nobody_could_open_is_refused_before_the_charge(tmp_path, study, site, table):  # noqa: F811
    wide = replace(study, release=replace(study.release, slices=4095))
    rows = pd.concat([table] * math.ceil(40_000 / len(table)), ignore_index=True)
    with pytest.raises(TooLarge, match="at most 1024 MB when it is opened") as refusal:
        release(wide, site, source(tmp_path, rows))
    assert f"MB of {len(rows)} rows" in refusal.value.given
    assert site.ledger.holds() == []


def test_a_site_releases_noisy_sums_in_no_order(tmp_path, study, site, table):  # noqa: F811
    table = table.sort_values("sbp").reset_index(drop=True)
    told = estimate(study, source(tmp_path, table))
    made = release(study, site, source(tmp_path, table))
    assert made.hold.state == "held"
    size = site.outbox.bundle(made.hold.release_id).stat().st_size / 1e6
    assert told.bundle_mb / 3 < size < 3 * told.bundle_mb
    receipt = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 26).receipt
    receipt.require_true(study)
    assert (receipt.mechanism, receipt.n, receipt.posture, receipt.model) == ("slicing", 300, "private", "local")
    assert receipt.neighbours == "replace_one"
    assert 5.09 < receipt.epsilon <= 5.1
    assert {check.outcome for check in made.checks} == {"passed"}
    directions, lines = study.release.projections(study, made.table)
    code = study.release.code(study)
    signal = code.encode(study.dictionary.check(table)) * ROW_STEP @ directions
    sigma = receipt.parameters["sigma"]
    # In the order of the records there would be no more than the noise; shuffled, the signal's own spread is added.
    spread = float((signal - signal.mean(axis=0)).std())
    assert (lines - signal).std() == pytest.approx(math.sqrt(sigma**2 + 2 * spread**2), rel=0.02)
    assert lines.std() == pytest.approx(math.sqrt(sigma**2 + float(signal.var())), rel=0.02)
    assert StudyPlan.from_bytes(study.canonical) == study
    assert any("in no order" in sentence for sentence in study.release.covered(study))


def test_a_coordinator_accepts_the_release_of_a_plan_and_no_other(tmp_path, plan):
    small = replace(plan, dictionary=SMALL, release=SlicingPlan(epsilon=2.0), posture="private", estimands={})
    records = pd.DataFrame({"sbp": np.linspace(80, 200, 50), "sex": [0.0, 1.0] * 25})
    table = small.release.draw(small, records, seeded_rng(2))
    hub = Hub(tmp_path / "hub", small, "north")
    people = {"n": 50, "drawn": 50}
    with hub.serve(), hub.egress("north") as egress:
        wrong = hub.seal(
            "north", table=table.assign(p1=table["p1"] + 0.1), release_id="cd" * 16, receipt_changes=people
        )
        with pytest.raises(SchemaRefusal, match="grid"):
            egress.send(wrong.envelope, wrong.path)
        sealed = hub.seal("north", table=table, receipt_changes=people)
        egress.send(sealed.envelope, sealed.path)
        [(_, receipt, held)] = hub.store.tables("mini", 1)
        assert receipt.mechanism == "slicing"
        pd.testing.assert_frame_equal(held, table)
    hub.store.close()


def changed(place: tuple[int, int], value: float):
    def spoil(table: pd.DataFrame) -> pd.DataFrame:
        table = table.copy()
        table.iloc[place] = value
        return table

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.rename(columns={"p1": "q1"}), "columns"),
        (lambda t: t.iloc[:-1], "lines"),
        (lambda t: t.assign(q9=0.0), "columns"),
        (lambda t: t.iloc[::-1].reset_index(drop=True), "directions"),
        (lambda t: t.assign(p2=t["p2"].astype("float32")), "numbers"),
        (changed((0, 1), math.nan), "finite"),
        (changed((-1, 1), math.inf), "finite"),
        (changed((0, 1), 64.0), "possible"),
        (changed((-1, 1), 2.0**20), "possible"),
        (changed((0, 1), 2.0**-30), "grid"),
        (changed((-1, 1), 2.0**-30), "grid"),
    ],
)
def test_the_coordinator_takes_no_other_lines_than_the_plan_s(study, table, spoil, words):
    drawn = study.release.draw(study, study.dictionary.check(table.iloc[:30]), seeded_rng(1))
    study.release.validate(study, drawn, 30)
    with pytest.raises(SchemaRefusal, match=words):
        study.release.validate(study, spoil(drawn), 30)


# -- afterwards --------------------------------------------------------------------------------------------------
PAIR = Dictionary(
    name="pair",
    version=1,
    columns=(
        Column(name="sbp", kind="continuous", lower=70, upper=270),
        Column(name="sex", kind="binary"),
        Column(name="clinic", kind="nominal", levels=("north", "south", "west"), missing="level"),
        Column(name="never", kind="ordered", levels=("no", "rarely", "always")),
        Column(name="parity", kind="integer", lower=0, upper=15, missing="level"),
    ),
)


def pairs(n: int) -> pd.DataFrame:
    """Checked records in which men have higher pressure; one level is never seen, and one column is constant."""
    rng = np.random.default_rng(4)
    sex = (rng.random(n) < 0.4).astype(float)
    clinic = np.where(rng.random(n) < 0.3 + 0.4 * sex, 2.0, 0.0)
    parity = np.where(rng.random(n) < 0.5 * sex, np.nan, rng.integers(0, 4, n))
    sbp = (140 + 40 * sex + rng.normal(0, 20, n)).clip(70, 270)
    return pd.DataFrame({"sbp": sbp, "sex": sex, "clinic": clinic, "never": 0.0, "parity": parity})


@pytest.mark.parametrize("classes", [1, 3])
def test_the_gradient_of_the_fit_is_the_derivative_of_its_distance(classes):
    code = RowCode(dictionary=PAIR)
    rows = code.encode(pairs(200)) * ROW_STEP / code.unit
    problem = projections._ProjectionLoss(code, projections.of_rows(rows, np.eye(code.d)), classes)
    theta = np.random.default_rng(1).normal(size=problem.start().size)
    gap = optimize.check_grad(lambda t: problem(t)[0], lambda t: problem(t)[1], theta)
    assert gap < 1e-4 * np.linalg.norm(problem(theta)[1])


def test_moments_are_freed_of_the_noise():
    """Every mean and second moment within six of its own standard errors, of 20,000 records."""
    code, records = RowCode(dictionary=PAIR), pairs(20_000)
    mechanism = SlicingMechanism(d=code.d, slices=2 * code.d, sigma=1.0, distance=code.distance)
    rows = code.encode(records)
    found = projections.moments(code, [mechanism.release(rows, seeded_rng(6))], 1.0)
    with pytest.raises(EstimateRefusal, match="noise of"):
        projections.moments(code, [mechanism.release(rows, seeded_rng(6))], 1.1)
    x = rows * ROW_STEP / code.unit
    se = np.sqrt(np.diag(found.noise) / found.n)
    assert np.all(np.abs(found.mean - x.mean(axis=0)) < 6 * se)
    own = np.sqrt(np.diag(found.noise) + 1)
    assert np.all(np.abs(found.second - x.T @ x / found.n) < 6 * 1.5 * np.outer(own, own) / math.sqrt(found.n))


@pytest.mark.parametrize("n", [20_000, 50, 3])
def test_synthetic_rows_have_the_dictionary_s_columns_and_the_records_dependence(plan, n):
    study = replace(plan, dictionary=PAIR, release=SlicingPlan(sigma=1.0), posture="private", estimands={})
    records = pairs(n)
    table = study.release.draw(study, records, seeded_rng(8))
    one, other = study.release.synthetic(study, [(table, n)], draws=2, rng=np.random.default_rng(1))
    for made in (one, other):
        PAIR.validate_release(made)
        assert len(made) == n
    assert not one.equals(other)
    if n == 20_000:
        gap = one.loc[one["sex"] == 1, "sbp"].mean() - one.loc[one["sex"] == 0, "sbp"].mean()
        assert gap == pytest.approx(40, abs=8)
        assert (one["never"] == "no").mean() > 0.9
        assert one.loc[one["sex"] == 1, "parity"].isna().mean() == pytest.approx(0.5, abs=0.12)


def test_an_answer_comes_with_the_noise_and_the_fit_in_its_variance(plan):
    study = replace(plan, dictionary=PAIR, release=SlicingPlan(sigma=1.0), posture="private", estimands={})
    records = pairs(4000)
    table = study.release.draw(study, records, seeded_rng(9))
    told = {"study": "mini", "site": "north", "wave": 1, "receipts": ()}
    [row] = study.release.answer(study, [(table, 4000)], parse_estimand("mean(sbp)"), levels={}, **told)
    assert row.yi == pytest.approx(records["sbp"].mean(), abs=5 * math.sqrt(row.vi))
    assert row.vi > row.vi_naive > 0


@pytest.mark.parametrize("sigma", [0.25, 4.0])
def test_an_answer_is_not_drawn_to_no_association_by_what_noise_drowns(plan, sigma):
    """One straight step to the lines' moments: near the records' own answer, as far as its interval says."""
    study = replace(plan, dictionary=PAIR, release=SlicingPlan(sigma=sigma), posture="private", estimands={})
    records = pairs(4000)
    table = study.release.draw(study, records, seeded_rng(10))
    told = {"study": "mini", "site": "north", "wave": 1, "receipts": ()}
    question = parse_estimand("ols(sbp) ~ sex")
    [row] = study.release.answer(study, [(table, 4000)], question, levels={"sex": (0, 1)}, **told)
    real = np.polyfit(records["sex"], records["sbp"], 1)[0]
    # What noise drowns other sites' models lack alike: it is not in the part that a pool averages away.
    assert row.vi_common > 0
    whole = math.sqrt(row.vi + row.vi_common)
    assert abs(row.yi - real) < 3 * whole
    assert whole < (4 if sigma < 1 else 30)
    assert row.yi > (35 if sigma < 1 else 0)


@pytest.mark.parametrize("question", ["ols(sbp) ~ age * sex", "ols(sbp) ~ age/10 + I((age/10)^2)"])
def test_an_interaction_or_a_curve_is_refused_because_lines_hold_none(plan, table, question):
    study = replace(plan, release=SlicingPlan(sigma=1.0), posture="private", estimands={})
    records = study.dictionary.check(table)
    lines = study.release.draw(study, records, seeded_rng(11))
    told = {"study": "mini", "site": "north", "wave": 1, "receipts": ()}
    with pytest.raises(EstimateRefusal, match="no interaction, no curve"):
        study.release.answer(study, [(lines, len(records))], parse_estimand(question), levels={}, **told)


@pytest.mark.parametrize("n", [30, 3])
@pytest.mark.parametrize("release", [SlicingPlan(sigma=2.0), TablesPlan(sigma=5.0)], ids=["slicing", "tables"])
def test_of_few_persons_an_answer_is_wide_or_says_why_there_is_none(plan, release, n):
    """Fewer persons than entries of a row, a constant column, levels that nobody has."""
    study = replace(plan, dictionary=PAIR, release=release, posture="private", estimands={})
    records = pairs(n)
    table = study.release.draw(study, records, seeded_rng(12))
    study.release.validate(study, table, n)
    told = {"study": "mini", "site": "north", "wave": 1, "receipts": ()}
    levels = {column.name: column.levels for column in PAIR.columns if column.levels}
    found = {}
    for asked in ("mean(sbp)", "ols(sbp) ~ sex", "ols(sbp) ~ C(never)", "logistic(sex) ~ parity"):
        with contextlib.suppress(EstimateRefusal):
            found[asked] = study.release.answer(study, [(table, n)], parse_estimand(asked), levels=levels, **told)
        for row in found.get(asked, ()):
            if row.yi is None:
                assert row.reason
            else:
                assert math.isfinite(row.yi)
                assert row.vi_naive < row.vi + row.vi_common < math.inf
    [mean] = found["mean(sbp)"]
    assert (mean.yi is None) == (n == 3)
    assert mean.yi is None or abs(mean.yi - records["sbp"].mean()) < 3 * math.sqrt(mean.vi)


def test_classes_do_not_stand_further_apart_than_a_number_varies(plan):
    study = replace(plan, dictionary=PAIR, release=SlicingPlan(sigma=8.0), posture="private", estimands={})
    records = pairs(1500)
    table = study.release.draw(study, records, seeded_rng(11))
    model = projections.fit(study.release.code(study), study.release._moments(study, [(table, 1500)]))
    rows, _ = model.rows(20_000, np.random.default_rng(1))
    at = next(block.at for block in model.code.blocks if block.column.name == "sbp")
    assert rows[:, at].std() < 0.5
    assert 0 < model.doubt[at] <= 1
