"""The moments release: what it costs, that no two records can move it further, and what a hostile site may send."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from shared import privacy
from shared.dictionary import Column, Dictionary
from shared.errors import DictionaryRefusal, MissingRefusal, PlanRefusal, SchemaRefusal
from shared.generators.cohort import fit, pilot
from shared.mechanisms.moments import (
    Design,
    MomentsRelease,
    MomentsSpec,
    Shares,
    event,
    moments,
    noised,
    product_steps,
    read,
    score_steps,
    squared_diameter,
)
from shared.randomness import seeded_rng

COLUMNS = {
    "time": Column(name="time", kind="time", upper=20, event="died", decimals=2),
    "died": Column(name="died", kind="event"),
    "cured": Column(name="cured", kind="binary"),
    "visits": Column(name="visits", kind="integer", lower=0, upper=40),
    "score": Column(name="score", kind="continuous", lower=-50, upper=150),
    "age": Column(name="age", kind="continuous", lower=16, upper=100, decimals=1),
    "sbp": Column(name="sbp", kind="integer", lower=60, upper=280),
    "male": Column(name="male", kind="binary"),
    "stage": Column(name="stage", kind="ordered", levels=("I", "II", "III", "IV")),
}
OUTCOMES = {"survival": ("time", "died"), "binary": ("cured",), "count": ("visits",), "linear": ("score",)}
COVARIATES = ("age", "sbp", "male", "stage")


def planned(outcome="survival", declared=(), epsilon=1.0, **more):
    covariates = more.pop("covariates", COVARIATES)
    spec = MomentsSpec(
        outcome=outcome,
        responses=OUTCOMES[outcome],
        covariates=covariates,
        declared=declared,
        epsilon=epsilon,
        delta=1e-6,
        **more,
    )
    columns = tuple(COLUMNS[name] for name in (*OUTCOMES[outcome], *covariates))
    return Design(spec=spec, dictionary=Dictionary(name="trial", version=1, columns=columns))


def cohort(n, rng, beta=(0.3, 0.25, 0.4, -0.3)):
    """Every outcome of the same people, levels as codes: what `Dictionary.check` returns."""
    latent = rng.standard_normal((n, 4)) @ np.linalg.cholesky(0.25 + 0.75 * np.eye(4)).T
    age = np.clip(58 + 11 * latent[:, 0], 16, 100).round(1)
    sbp = np.clip(128 * np.exp(0.14 * latent[:, 1]), 60, 280).round()
    male = (latent[:, 2] > 0.2).astype(float)
    stage = np.searchsorted([-0.7, 0.4, 1.3], latent[:, 3]).astype(float)
    x = np.column_stack([(age - 58) / 11, (sbp - 128) / 18, male, stage])
    eta = x @ np.array(beta)
    failure = rng.exponential(1, n) * 25 * np.exp(-eta)
    leaving = np.minimum(20 - 6 * rng.random(n), rng.exponential(60, n))
    return pd.DataFrame(
        {
            "time": np.clip(np.minimum(failure, leaving), 0.01, 20).round(2),
            "died": (failure <= leaving).astype(float),
            "cured": (rng.random(n) < 1 / (1 + np.exp(0.8 - eta))).astype(float),
            "visits": np.minimum(rng.poisson(np.exp(0.6 + 0.5 * eta)), 40).astype(float),
            "score": np.clip(50 + 12 * eta + 15 * rng.standard_normal(n), -50, 150),
            "age": age,
            "sbp": sbp,
            "male": male,
            "stage": stage,
        }
    )


@pytest.fixture(scope="module")
def people():
    return cohort(2500, np.random.default_rng(11))


def released(people, **more):
    design = planned(**more)
    return design, moments(people, design, seeded_rng(5))


# -- price -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("declared", [(), ("sbp",), ("sbp", "male")])
def test_the_event_costs_the_epsilon_of_the_plan_and_never_more(epsilon, declared):
    spec = planned(declared=declared, epsilon=epsilon).spec
    price = privacy.epsilon(event(spec), spec.delta)
    assert spec.epsilon * (1 - 1e-6) < price <= spec.epsilon
    parts = event(spec).events
    mu2 = [part.mu**2 for part in parts]
    np.testing.assert_allclose(np.array(mu2) / sum(mu2), [part for part in spec.split.parts if part])


def test_the_price_stands_before_a_record_is_read_and_survives_being_written_down():
    spec = planned(declared=("age",), horizon=15.0).spec
    again = MomentsSpec.from_canonical(json.loads(json.dumps(spec.to_canonical())))
    assert again == spec
    assert privacy.from_canonical(event(spec).to_canonical()) == event(again)


class Watching:
    """A source that tells what was asked of it."""

    def __init__(self, scale=1.0):
        self.asked, self.scale, self.inner = [], scale, seeded_rng(8)

    def lattice_gaussian_steps(self, sigma, shape, grid):
        self.asked.append((sigma, shape, grid))
        return np.rint(self.scale * self.inner.lattice_gaussian_steps(sigma, shape, grid)).astype(np.int64)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_number_that_leaves_has_the_noise_of_its_block(outcome, people):
    design, source = planned(outcome, ("sbp", "male")), Watching()
    release = moments(people, design, source)
    sigmas = [part.sigma for part in event(design.spec).events]
    assert [sigma for sigma, _, _ in source.asked] == [sigmas[0]] * 5 + sigmas[1:]
    shapes = [table.shape for table in release.histograms]
    assert [shape for _, shape, _ in source.asked] == [
        *shapes,
        release.moments.shape,
        release.products.shape,
        release.score.shape,
    ]
    # The grid times the steps is the unit in which the event states its sensitivity.
    assert [grid for _, _, grid in source.asked] == [1.0] * 5 + [2.0**-22, 2.0**-20, 2.0**-22]


def test_the_same_noise_gives_the_same_bytes_and_the_table_is_untouched(people):
    design, before = planned(declared=("sbp",)), people.copy()
    one, two = (moments(people, design, seeded_rng(3)).to_bytes() for _ in range(2))
    assert one == two != moments(people, design, seeded_rng(4)).to_bytes()
    pd.testing.assert_frame_equal(people, before)


# -- sensitivity: the domain is searched for a violation ---------------------------------------------------------
def domain(design, rng, n=150):
    """Records at the corners of the dictionary, near the lens's own cuts, and anywhere between."""
    columns = [design.dictionary.column(name) for name in (*design.spec.covariates, *design.spec.responses)]
    ends = [c.span if not c.levels else (0.0, len(c.levels) - 1.0) for c in columns]
    low, high = np.array(ends).T
    corners = np.array(list(itertools.product(*np.column_stack([low, high]))))
    inside = low + (high - low) * rng.random((n, len(columns)))
    near = low + (high - low) * np.clip(rng.normal(0.4, 0.15, (n, len(columns))), 0, 1)
    mixed = np.where(rng.random((n, len(columns))) < 0.5, inside, corners[rng.integers(0, len(corners), n)])
    rows = np.concatenate([corners, inside, near, mixed])
    whole = [k for k, column in enumerate(columns) if column.kind not in ("continuous", "time")]
    rows[:, whole] = np.rint(rows[:, whole])
    names = [column.name for column in columns]
    return design.matrices(pd.DataFrame(rows, columns=names))


def longest(parts):
    """The change between the two records that are furthest apart in a sum, whole numbers."""
    flat = parts.reshape(len(parts), -1).astype(float)
    norms = (flat**2).sum(axis=1)
    squared = norms[:, None] + norms[None, :] - 2 * flat @ flat.T
    i, j = np.unravel_index(squared.argmax(), squared.shape)
    return (parts[i] - parts[j]).ravel()


def furthest(parts):
    """The largest squared distance between two records' parts of a sum; exact."""
    return sum(int(k) ** 2 for k in longest(parts))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_no_two_records_are_further_apart_than_the_event_says(outcome, people):
    design = planned(outcome, ("sbp", "age"), score_clip=0.5)
    release = moments(people, design, seeded_rng(2))
    lens, score = design.lens(release), pilot(release, design)
    x, y = domain(design, np.random.default_rng(3))
    parts = event(design.spec).events
    tables = [np.concatenate([t.ravel() for t in design.counts(x[k : k + 1], y[k : k + 1])]) for k in range(len(x))]
    found = furthest(np.array(tables))
    assert found <= parts[0].sensitivity ** 2
    assert found == 2 * len(release.histograms)  # and attained
    found = furthest(lens.moment_steps(x, y)) / 2**44
    assert 0.97 < found <= parts[1].sensitivity ** 2
    products = np.array([product_steps(row[None]) for row in lens.wide_steps(x)])
    found = furthest(products) / 2**40
    assert 0.9 * 16 < found <= parts[2].sensitivity ** 2
    found = furthest(score_steps(score.rows(x, y))) / 2**44
    assert 0.4 < found <= parts[3].sensitivity ** 2


@pytest.mark.parametrize("seed", range(6))
def test_the_diameter_of_the_moments_is_that_of_all_pairs_of_corners(seed):
    rng = np.random.default_rng(seed)
    v, u = rng.integers(1, 9, rng.integers(2, 4)), rng.integers(1, 9, rng.integers(2, 5))
    signs = [np.array(s) for s in itertools.product((-1, 1), repeat=len(v) + len(u) - 2)]
    corners = np.array([np.outer(v * np.append(s[: len(v) - 1], 1), u * np.append(1, s[len(v) - 1 :])) for s in signs])
    assert furthest(corners) == squared_diameter(v, u)


@pytest.mark.parametrize("p", range(2, 9))
def test_the_diameter_of_the_products_is_that_of_all_pairs_of_corners(p):
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=p))) * 1024
    pairs = np.array([product_steps(row[None])[p:] for row in corners])
    assert furthest(pairs) == 4 * (p * p // 4) * 1024**4
    assert set(product_steps(np.full((1, p), 1024.0))[:p]) == {5 * 1024**2 // 8}


def test_records_outside_the_dictionary_move_it_no_further():
    design = planned()
    release = moments(cohort(300, np.random.default_rng(4)), design, seeded_rng(2))
    lens = design.lens(release)
    names = [*COVARIATES, "time", "died"]
    wild = pd.DataFrame([[1e12, -1e12, 9, -9, 1e9, 7], [-1e12, 1e12, -9, 9, -5, -7]], columns=names)
    x, y = design.matrices(wild)
    assert furthest(lens.moment_steps(x, y)) <= 2**44
    assert furthest(np.array([product_steps(row[None]) for row in lens.wide_steps(x)])) <= 2**40 * 17.6


# -- level 2: the best attacker on the whole release, given every other record -----------------------------------
def changes(design, people):
    """Of every block the longest change that two records of the domain make in it."""
    release = moments(people, design, seeded_rng(2))
    lens, score = design.lens(release), pilot(release, design)
    x, y = domain(design, np.random.default_rng(3))
    tables = [np.concatenate([t.ravel() for t in design.counts(x[k : k + 1], y[k : k + 1])]) for k in range(len(x))]
    products = [product_steps(row[None]) for row in lens.wide_steps(x)]
    parts = np.array(tables), lens.moment_steps(x, y), np.array(products), score_steps(score.rows(x, y))
    return [change[change != 0] for change in map(longest, parts)]


def attacked(people, releases, seed, understated):
    """ε at δ = 1e-6 that an attacker proves, at one in a million, who knows every other record: one per `understated`.

    Neighbours differ by the longest change of each block at once, further than two records need be, and the attacker
    looks along the change, the best test there is. `understated`: blocks whose sensitivity was taken for half of what
    it is, so that the change is twice as long beside the noise. One draw of the noise serves all.
    """
    design, rng = planned(declared=("sbp",)), seeded_rng(seed)
    looks = []
    for block, change in enumerate(changes(design, people)):
        unit = ((1.0, 2.0**-22, 2.0**-20, 2.0**-22)[block] / event(design.spec).events[block].sigma) ** 2
        sums = np.stack([np.tile(side * change, (releases, 1)) for side in (0, 1)])
        along = noised(design.spec, block, sums, rng) @ change.astype(float)
        looks.append((unit * along, unit * float(change.astype(float) @ change)))
    found = []
    for blocks in understated:
        seen = np.zeros((2, releases))
        for block, (along, length) in enumerate(looks):
            seen += 2 * (along + np.array([[0.0], [length]])) if block in blocks else along
        gap = (seen[1].mean() - seen[0].mean()) / math.sqrt(seen.var(axis=1, ddof=1).mean())
        mu = max(gap - stats.norm.isf(1e-6) * math.sqrt(2 / releases), 0.0)
        found.append(privacy.epsilon(privacy.Gaussian(sigma=1.0, sensitivity=mu), 1e-6))
    return found


def test_an_attack_on_the_whole_release_finds_no_more_than_its_epsilon(people):
    right, wrong = attacked(people, 4000, 71, [(), range(4)])
    assert right <= 1.0 < wrong  # the same attack can find more


@pytest.mark.soak
def test_the_attack_finds_most_of_epsilon_one_and_every_understated_sensitivity(people, record_property):
    right, *wrong = attacked(people, 200_000, 72, [(), (0,), (1,), (2,), (3,)])
    record_property("lower_bound", round(right, 3))
    for block, found in zip(("histograms", "moments", "products", "score"), wrong, strict=True):
        record_property(f"half_of_{block}", round(found, 3))
    assert 0.8 < right <= 1.0
    assert min(wrong) > 1.0


# -- what a site may send ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_release_comes_back_from_its_bytes(outcome, people):
    design, release = released(people, outcome=outcome, declared=("male",))
    again = read(release.to_bytes(), design)
    assert again.to_bytes() == release.to_bytes()
    for one, two in zip([*again.histograms, again.moments], [*release.histograms, release.moments], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    "harm",
    [
        lambda r: r.pop("score"),
        lambda r: r.update(extra=1),
        lambda r: r.update(mechanism="slicing"),
        lambda r: r.update(version=2),
        lambda r: r.update(n=0),
        lambda r: r.update(n=True),
        lambda r: r.update(n=2500.0),
        lambda r: r.update(n=10**12),
        lambda r: r.update(histograms=r["histograms"][:-1]),
        lambda r: r["histograms"][0].append(3),
        lambda r: r["histograms"][0].__setitem__(0, 0.5),
        lambda r: r["histograms"][0].__setitem__(0, True),
        lambda r: r["histograms"][0].__setitem__(0, 10**7),
        lambda r: r["histograms"][0].__setitem__(0, 2**70),
        lambda r: r["moments"].pop(),
        lambda r: r["moments"][0].__setitem__(1, 2**60),
        lambda r: r["products"].__setitem__(0, "x"),
        lambda r: r.update(products=None),
        lambda r: r.update(score=[[1]]),
    ],
)
def test_what_is_not_a_release_of_this_plan_is_refused(harm, people):
    design, release = released(people, declared=("sbp",))
    given = json.loads(release.to_bytes())
    harm(given)
    with pytest.raises(SchemaRefusal):
        read(json.dumps(given).encode(), design)
    with pytest.raises(SchemaRefusal):
        read(b"[" + release.to_bytes()[1:], design)


@pytest.mark.parametrize(
    "changed",
    [
        {"outcome": "cox"},
        {"responses": ("time",)},
        {"covariates": ("age",)},
        {"covariates": ("age", "age")},
        {"covariates": ("age", "time")},
        {"covariates": tuple(f"x{k}" for k in range(16))},
        {"declared": ("bmi",)},
        {"exposures": ("bmi",)},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": True},
        {"delta": 0.5},
        {"bins": 1},
        {"time_bins": 4.5},
        {"horizon": -1.0},
        {"score_clip": 0.0},
        {"shares": Shares(histograms=0.2, moments=0.2, products=0.2, score=0.4)},
    ],
)
def test_a_spec_that_cannot_be_kept_is_refused(changed):
    with pytest.raises(PlanRefusal):
        replace(planned().spec, **changed)


def test_a_spec_from_json_is_closed():
    good = planned().spec.to_canonical()
    for harm in ({"bin": 3}, {"version": 9}, {"mechanism": "lni"}, {"shares": {"histograms": 1.0}}, {"delta": None}):
        with pytest.raises(PlanRefusal):
            MomentsSpec.from_canonical({**good, **harm})
    with pytest.raises(PlanRefusal):
        MomentsSpec.from_canonical({k: v for k, v in good.items() if k != "epsilon"})
    with pytest.raises(PlanRefusal):
        Shares(histograms=0.5, moments=0.1, products=0.1)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"age": Column(name="age", kind="nominal", levels=("a", "b", "c"))}, "to be a covariate"),
        ({"age": Column(name="age", kind="continuous", lower=0, upper=9, missing="level")}, "missing"),
        ({"extra": Column(name="extra", kind="binary")}, "role"),
        ({"died": Column(name="died", kind="binary")}, "kind event"),
        ({"time": Column(name="time", kind="time", upper=5)}, "horizon"),
    ],
)
def test_a_dictionary_that_does_not_fit_the_roles_is_refused(columns, said):
    spec = planned(horizon=15.0).spec
    all_of_them = {name: COLUMNS[name] for name in ("time", "died", *COVARIATES)} | columns
    with pytest.raises(PlanRefusal, match=said):
        Design(spec=spec, dictionary=Dictionary(name="trial", version=1, columns=tuple(all_of_them.values())))


def test_a_table_without_a_column_or_with_a_hole_is_refused_before_anything_is_drawn(people):
    design, source = planned(), Watching()
    with pytest.raises(DictionaryRefusal, match="stage"):
        moments(people.drop(columns="stage"), design, source)
    with pytest.raises(MissingRefusal, match="1 rows"):
        moments(people.assign(age=people["age"].where(people.index > 0)), design, source)
    with pytest.raises(MissingRefusal):
        moments(people.iloc[:0], design, source)
    assert source.asked == []


# -- poor tables: an answer, with a variance that says how poor --------------------------------------------------
POOR = {
    "one patient": lambda t: t.iloc[:1],
    "three patients": lambda t: t.iloc[:3],
    "no events": lambda t: t.assign(died=0.0, cured=0.0, visits=0.0, score=-50.0),
    "all events": lambda t: t.assign(died=1.0, cured=1.0, visits=40.0, score=150.0),
    "all leave at once": lambda t: t.assign(time=0.01, died=0.0),
    "a constant column": lambda t: t.assign(age=60.0, male=1.0),
    "everyone at a bound": lambda t: t.assign(age=100.0, sbp=60.0, stage=3.0),
    "two columns in step": lambda t: t.assign(sbp=(60 + 2 * (t["age"] - 16)).round()),
}


CASES = [("survival", poor) for poor in POOR] + [
    (outcome, poor) for outcome in ("binary", "count", "linear") for poor in ("one patient", "no events", "all events")
]


@pytest.mark.parametrize(("outcome", "poor"), CASES)
def test_a_poor_table_gets_finite_effects_and_variances_that_say_so(outcome, poor, people):
    epsilon = {"one patient": 1e-3, "no events": 1.0, "two columns in step": 30.0}.get(poor, 1.0)
    design = planned(outcome, ("sbp",), epsilon=epsilon)
    release = moments(POOR[poor](people.iloc[:400]), design, seeded_rng(6))
    found = fit(read(release.to_bytes(), design), design)
    rows = found.estimates(study="trial", site="a", wave=1)
    assert [row.term for row in rows] == list(COVARIATES)
    assert all(row.vi > 0 and row.vi_privacy > 0 and math.isfinite(row.yi) for row in rows)
    design.dictionary.validate_release(found.rows(np.random.default_rng(1), n=60, calibrated=False))


def test_noise_that_drowns_everything_gives_the_prior_back_and_says_that_it_is_noise(people):
    design, release = released(people, epsilon=1e-3)
    found = fit(release, design)
    in_sd = np.abs(found.effects * np.array([11, 18, 0.5, 0.9]))
    assert in_sd.max() < 0.7
    assert isinstance(release, MomentsRelease)
    assert (np.diag(found.privacy) > 0).all()
