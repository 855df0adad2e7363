"""Capped counts of networks: what one person moves them by, what that costs, what they answer, and how they leave."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import itertools
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, sparse
from stage.both_sides.noise import Scaled
from stage.coordinator_side.delivered import STUDIES
from stage.mechanisms.contacts import contacts_plan, ward  # noqa: F401
from stage.mechanisms.network_counts import counting, drawn, measured, records
from stage.processes.theatre import Theatre

from coordinator.planning.price import prices
from coordinator.planning.review import review
from shared.base.randomness import seeded_rng
from shared.errors import EstimateRefusal, PlanRefusal, ReceiptRefusal, SchemaRefusal
from shared.estimands.answer import parse_estimand
from shared.mechanisms.grand import edges
from shared.mechanisms.grand.answer import figure
from shared.mechanisms.grand.counts import degrees, simple
from shared.mechanisms.grand.edges import NEIGHBOURS
from shared.mechanisms.network_counts import capped, packing
from shared.mechanisms.network_counts.plan import COLUMNS, NetworkCountsPlan, noised
from shared.plans.plan import StudyPlan
from shared.privacy import accountant as privacy
from shared.releases.bundle import read_bundle
from shared.releases.receipt import ReceiptDraft, write_receipt
from shared.simulated import contact_networks
from tests.benchmarks.worlds.networks import WORLDS

TOLD = {"study": "contacts", "site": "north", "wave": 1}


def replaced(ties: np.ndarray, place: int, others: np.ndarray) -> np.ndarray:
    """The network with one person's edges to these and to nobody else."""
    out = ties.copy()
    out[place], out[:, place] = 0, 0
    out[place, others] = out[others, place] = 1
    out[place, place] = 0
    return out


# -- what one person moves ------------------------------------------------------------------------------------------
def test_counts_are_the_real_ones_where_nobody_has_more_than_the_caps():
    rng = np.random.default_rng(1)
    ties, level = drawn(rng, 40, 0.2), rng.integers(0, 3, 40)
    plan, k = counting(), ties.sum(axis=0)
    found = {(c.name, c.cap): v for c, v in zip(plan.release.counts(plan), measured(plan, ties, level), strict=True)}
    triangles = int(np.trace(ties @ ties @ ties)) // 6
    caps = plan.release.caps()
    assert found["edges", 40] == [k.sum() // 2]
    assert found["paths", caps["paths"]] == [(k * (k - 1) // 2).sum()]
    assert found["triangles", caps["triangles"]] == [triangles]
    alike = int(np.triu(ties * (level[:, None] == level), 1).sum())
    assert (found["alike", 40], found["apart", 40]) == ([alike], [k.sum() // 2 - alike])
    assert found["ends", 40].tolist() == [int(k[level == one].sum()) for one in range(3)]


@pytest.mark.parametrize(("motif", "closed"), [(capped.capped_triangles, True), (capped.capped_paths, False)])
def test_a_capped_count_is_the_optimum_of_the_whole_linear_program(motif, closed):
    """All copies one by one, without the sets that the module puts them into."""
    rng = np.random.default_rng(2)
    for share, cap in itertools.product((0.3, 0.7), (1, 4, 9)):
        ties = drawn(rng, 10, share)
        copies = []
        for three in itertools.combinations(range(10), 3):
            met = ties[np.ix_(three, three)].sum() // 2
            copies += [three] * (int(met == 3) if closed else {3: 3, 2: 1}.get(int(met), 0))
        member = np.array([[u in three for three in copies] for u in range(10)], dtype=float)
        best = -optimize.linprog(-np.ones(len(copies)), A_ub=member, b_ub=[cap] * 10, bounds=(0, 1)).fun
        assert motif(simple(sparse.csr_array(ties)), cap) == math.floor(best + 1e-6)


def test_persons_far_above_a_cap_count_at_the_cap():
    cap, persons = 99_990_000, 200
    alone = (np.arange(persons),), np.full(persons, 40.0 * cap)
    low, high = packing.Packing(persons=persons, cap=cap, few=[alone]).bounds(capped.slack(cap))
    assert low * (1 - 1e-12) <= persons * cap <= high <= low + capped.slack(cap)


def test_nobody_moves_a_block_by_more_than_its_sensitivity_and_somebody_moves_each_by_nearly_as_much():
    """Random persons replaced by random ones, and the worst of each kind: everybody's friend for nobody's."""
    plan = counting(most_contacts=6, most_paths=30, most_triangles=8)
    blocks = plan.release.counts(plan)
    most = np.zeros(len(blocks))

    def compare(one: tuple, other: tuple) -> None:
        first, second = measured(plan, *one), measured(plan, *other)
        for k, (a, b) in enumerate(zip(first, second, strict=True)):
            most[k] = max(most[k], np.abs(a - b).sum())

    rng = np.random.default_rng(3)
    for _ in range(25):
        ties, level = drawn(rng, 24, rng.choice([0.1, 0.3, 0.5])), rng.integers(0, 3, 24)
        changed = level.copy()
        changed[0] = rng.integers(0, 3)
        others = np.flatnonzero(rng.random(24) < rng.choice([0.0, 0.5, 1.0]))
        compare((ties, level), (replaced(ties, 0, others), changed))
    # Person 0 leaves a full ward for another: the first ward's persons have room for others no more, or again.
    clique = np.kron(np.eye(4, dtype=np.int64), 1 - np.eye(6, dtype=np.int64))
    alone, wards = replaced(clique, 0, np.arange(0)), np.repeat([0, 0, 1, 2], 6)
    for others, level in ((np.arange(1, 24), 0), (np.arange(6, 12), 0), (np.arange(12, 18), 0), (np.arange(1, 6), 1)):
        compare((alone, wards), (replaced(clique, 0, others), np.concatenate([[level], wards[1:]])))
    shift = np.zeros((13, 13), dtype=np.int64)
    level = np.array([0] + [0] * 6 + [1] * 6)
    compare(
        (replaced(shift, 0, np.arange(1, 7)), level),
        (replaced(shift, 0, np.arange(7, 13)), np.concatenate([[1], level[1:]])),
    )
    reach = np.array([block.sensitivity for block in blocks])
    assert (most <= reach).all()
    # Of edges and mixing the whole of it is met; of motifs all but the solver's room of one.
    assert dict(zip([f"{b.name} {b.cap}" for b in blocks], (most / reach).tolist(), strict=True)) == pytest.approx(
        {
            "edges 6": 1.0,
            "edges 3": 1.0,
            "paths 30": 30 / 31,
            "paths 15": 13 / 16,
            "triangles 8": 8 / 9,
            "triangles 4": 4 / 5,
            "alike 6": 1.0,
            "apart 6": 1.0,
            "ends 6": 1.0,
        }
    )


def test_leaving_out_whoever_has_too_many_edges_would_move_by_any_number():
    """Why an order of edges: thirty people with just the cap, and one more person who knows them all."""
    ring = np.roll(np.eye(30, dtype=np.int64), 1, axis=1)
    before = np.zeros((31, 31), dtype=np.int64)
    before[:30, :30] = ring + ring.T
    after = replaced(before, 30, np.arange(30))

    def truncated(ties: np.ndarray) -> int:
        few = ties.sum(axis=0) <= 2
        return int(ties[few][:, few].sum()) // 2

    assert truncated(before) - truncated(after) == 30
    kept = [int(capped.kept_degrees(simple(sparse.csr_array(t)), 2).sum()) // 2 for t in (before, after)]
    assert abs(kept[0] - kept[1]) <= 2


def test_where_a_person_stands_in_the_table_moves_no_count_by_more_than_the_price_says():
    """A database gives rows sorted: who has another age moves everybody between, and by it the edges that are kept."""
    ties = drawn(np.random.default_rng(11), 300, 0.05)
    ties = replaced(ties, 0, np.arange(0))
    plan = counting(most_contacts=4, figures=(), by=())
    moved = [np.r_[np.arange(1, k + 1), 0, np.arange(k + 1, 300)] for k in (0, 40, 120, 299)]

    def kept(order: np.ndarray) -> int:
        return int(capped.kept_degrees(simple(sparse.csr_array(ties[np.ix_(order, order)])), 4).sum()) // 2

    assert np.ptp([kept(order) for order in moved]) > 4  # by the places in the table one person moves too many
    by_chance = [
        [int(plan.release.measure(plan, table, seeded_rng(k))[0][0]) for k in range(60)]
        for table in (records(ties[np.ix_(order, order)], np.zeros(300)) for order in moved)
    ]
    assert min(len(set(each)) for each in by_chance) > 5
    means, spread = np.mean(by_chance, axis=1), np.std(by_chance)
    assert np.ptp(means) < 5 * spread / math.sqrt(60)


def test_how_many_edges_a_hospital_has_refuses_no_count(monkeypatch):
    """One person's contacts may be the last that a released network could hold: a refusal would tell of them."""
    plan, ties = counting(), drawn(np.random.default_rng(1), 30, 0.2)
    level, before = np.arange(30) % 3, measured(plan, ties, np.arange(30) % 3)
    monkeypatch.setattr(edges, "MOST_EDGES", int(ties.sum()) // 2 - 1)
    for one, other in zip(measured(plan, ties, level), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert plan.release.clipped(plan, records(ties, level)) == 0
    with pytest.raises(SchemaRefusal, match="must have at most"):
        edges.adjacency(records(ties, level), directed=False)


def test_an_edge_list_in_another_order_gives_the_same_counts():
    """The order of the pairs is that of their places, and not of the file."""
    ties = drawn(np.random.default_rng(4), 30, 0.5)
    matrix = simple(sparse.csr_array(ties))
    other = sparse.csr_array(matrix)
    for row in range(30):
        part = slice(other.indptr[row], other.indptr[row + 1])
        other.indices[part] = other.indices[part][::-1].copy()
    other.has_sorted_indices = False
    assert capped.kept_degrees(matrix, 4).tolist() == capped.kept_degrees(other, 4).tolist()
    assert int(capped.kept_degrees(matrix, 4).max()) <= 4


def of_five() -> tuple[np.ndarray, np.ndarray]:
    """All 1,024 networks of five persons as sets of pairs, and for each the first of those that are like it."""
    pairs = list(itertools.combinations(range(5), 2))
    networks = np.arange(1 << len(pairs))
    like = networks.copy()
    for order in itertools.permutations(range(5)):
        moved = [pairs.index((min(order[a], order[b]), max(order[a], order[b]))) for a, b in pairs]
        like = np.minimum(like, sum(((networks >> k) & 1) << to for k, to in enumerate(moved)))
    return networks, like


@pytest.mark.parametrize(("motif", "cap"), [(capped.capped_triangles, 2), (capped.capped_paths, 4)])
def test_of_all_networks_of_five_persons_no_two_that_differ_in_one_are_further_apart_than_the_price_says(motif, cap):
    networks, like = of_five()
    pairs = list(itertools.combinations(range(5), 2))
    values = {}
    for one in np.unique(like):
        ties = np.zeros((5, 5), dtype=np.int64)
        for k, (a, b) in enumerate(pairs):
            ties[a, b] = ties[b, a] = (one >> k) & 1
        values[one] = motif(simple(sparse.csr_array(ties)), cap)
    told = np.array([values[one] for one in like])
    others = sum(1 << k for k, pair in enumerate(pairs) if 0 not in pair)  # without person 0, who may be anybody
    moved = max(np.ptp(told[(networks & others) == rest]) for rest in np.unique(networks & others))
    assert moved == cap  # reached, and the solver's room is not used
    assert moved <= capped.sensitivity(cap)


@pytest.mark.parametrize(("motif", "cap"), [(capped.capped_triangles, 12), (capped.capped_paths, 60)])
def test_a_count_is_the_same_however_much_fits_into_memory_and_whatever_solves_it(motif, cap, monkeypatch):
    """A crowd, and one person more or less: nothing is refused, and neighbours stay within the price."""
    crowd = drawn(np.random.default_rng(12), 16, 0.7)
    neighbours = [crowd, replaced(crowd, 0, np.arange(0)), replaced(crowd, 0, np.arange(1, 16))]
    matrices = [simple(sparse.csr_array(one)) for one in neighbours]
    found = [motif(one, cap) for one in matrices]
    assert 0 < np.ptp(found) <= capped.sensitivity(cap)
    monkeypatch.setattr(packing, "FEW", 10)
    monkeypatch.setattr(capped, "BLOCK", 100)
    monkeypatch.setattr(packing, "DENSE", 0)
    assert np.abs(np.subtract([motif(one, cap) for one in matrices], found)).max() <= 1


def optimum(ties: np.ndarray, closed: bool, cap: int) -> float:
    """Of the whole linear program, all copies one by one, as a library finds it."""
    n = len(ties)
    upper = np.triu(ties, 1)
    if closed:
        members = [(a, b, c) for a, b in np.argwhere(upper) for c in np.flatnonzero(upper[a] & upper[b])]
    else:
        members = [(m, a, b) for m in range(n) for a, b in itertools.combinations(np.flatnonzero(ties[m]), 2)]
    three = np.array(members)
    at = np.repeat(np.arange(len(three)), 3)
    member = sparse.csr_array((np.ones(at.size), (three.ravel(), at)), shape=(n, len(three)))
    return -optimize.linprog(-np.ones(len(three)), A_ub=member, b_ub=[cap] * n, bounds=(0, 1)).fun


MOTIFS = [(capped.capped_triangles, True), (capped.capped_paths, False)]


@pytest.mark.parametrize("working", ["some sets", "too many sets", "rounding"])
@pytest.mark.parametrize(("motif", "closed"), MOTIFS)
def test_a_count_among_persons_whom_all_know_is_the_optimum_whatever_solves_it(motif, closed, working, monkeypatch):
    """With some of the sets, with all gone through anew each time, and with those that the first pass left undone."""
    monkeypatch.setattr(packing, "FEW", 100)
    if working == "too many sets":
        monkeypatch.setattr(packing, "MOST", 0)
    if working == "rounding":
        monkeypatch.setattr(packing, "DENSE", 0)
    rng = np.random.default_rng(14)
    for hubs, share, cap in ((1, 0.1, 15), (3, 0.15, 25), (6, 0.05, 40)):
        ties = drawn(rng, 36, share)
        for hub in range(hubs):
            ties = replaced(ties, hub, np.flatnonzero(rng.random(36) < 0.9))
        best = optimum(ties, closed, cap)
        assert math.floor(best + 1e-6) <= motif(simple(sparse.csr_array(ties)), cap) <= best + 0.5


@pytest.mark.parametrize("broken", ["no steps", "no number"])
@pytest.mark.parametrize(("motif", "closed"), MOTIFS)
def test_where_doubles_do_not_get_there_decimals_do(motif, closed, broken, monkeypatch):
    """A count whose bounds have not met has no proven sensitivity: none is given, and no release refused."""
    if broken == "no steps":
        monkeypatch.setattr(packing, "STEPS", 2)
    else:
        monkeypatch.setattr(packing, "cho_factor", lambda matrix, **_: (matrix * np.nan, True))
    ties = drawn(np.random.default_rng(15), 9, 0.6)
    assert motif(simple(sparse.csr_array(ties)), 4) == math.floor(optimum(ties, closed, 4) + 1e-6)


def test_a_matrix_without_a_root_ends_and_says_so():
    """Rounding may leave it none, and a loop that adds to it would go on for ever where it is no number."""
    one = [((np.arange(2),), np.full(2, np.nan))]
    assert np.isnan(packing._by_cholesky(one, np.ones(2), np.ones(2))).all()


def test_newtons_equation_is_solved_where_persons_stand_in_a_long_line(monkeypatch):
    """Where it was left unsolved after 2,000 rounds, a longer line took ever more steps: 27, 33, 186 of 1,000."""
    solve, rests = packing._by_gradients, []

    def watched(bends, diagonal, slope, tolerance):
        step = solve(bends, diagonal, slope, tolerance)
        rest, whole = slope + diagonal * step, diagonal.copy()
        for members, change in bends():
            flow = change * sum(step[one] for one in members)
            for one in members:
                rest += np.bincount(one, flow, len(slope))
                whole += np.bincount(one, change, len(slope))
        rests.append(np.square(rest) @ (1 / whole) * tolerance / (np.square(slope) @ (1 / whole)))
        return step

    monkeypatch.setattr(packing, "_by_gradients", watched)
    monkeypatch.setattr(packing, "DENSE", 0)
    persons = 1_200
    places = np.arange(persons - 1)
    line = simple(sparse.csr_array((np.ones(persons - 1), (places, places + 1)), shape=(persons, persons)))
    assert capped.capped_paths(line, 2) in (799, 800)
    assert rests
    assert max(rests) < 1.01


def test_one_person_who_knows_everybody_takes_neither_time_nor_memory():
    """A machine that runs out of memory after the charge would be a refusal by one record, and a wave that closes."""
    persons = 12_000
    hub = simple(
        sparse.csr_array((np.ones(persons), (np.zeros(persons, int), np.arange(persons))), shape=[persons] * 2)
    )
    tracemalloc.start()
    try:
        assert capped.capped_paths(hub, 100) == 100
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < persons**2 / 4, "bytes"


def test_bounds_hold_what_a_library_finds_and_lie_as_near_as_asked():
    rng = np.random.default_rng(13)
    for _ in range(20):
        k, cap = int(rng.integers(3, 30)), int(rng.integers(1, 200))
        sizes, sets = [1, 2, 3], []
        for size in sizes:
            members = np.array([rng.permutation(k)[:size] for _ in range(60)])
            sets.append((tuple(members.T), rng.integers(1, 40 * cap if size == 1 else cap + 1, 60).astype(float)))
        copies = np.concatenate([one for _, one in sets])
        member = np.hstack([sum(np.equal.outer(np.arange(k), side) for side in sides) for sides, _ in sets])
        solved = optimize.linprog(
            -np.ones(180), A_ub=member.astype(float), b_ub=[cap] * k, bounds=np.c_[np.zeros(180), copies]
        )
        low, high = packing.Packing(persons=k, cap=cap, few=sets).bounds(0.01)
        assert low - 1e-6 <= -solved.fun <= high + 1e-6
        assert high - low <= 0.01


# -- what it costs ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("changes", [{}, {"by": ()}, {"figures": ()}, {"figures": ("paths",)}, {"most_triangles": 90}])
def test_the_blocks_cost_epsilon_together_and_no_more(epsilon, changes):
    plan = counting(epsilon=epsilon, **changes)
    whole = privacy.pure_epsilon(plan.release.event(plan))
    assert whole <= epsilon
    assert whole == pytest.approx(epsilon, rel=1e-6)
    assert StudyPlan.from_bytes(plan.canonical) == plan


def found(worlds: list[np.ndarray], scale: float, cut: float) -> float:
    """A lower bound on ε from draws of two worlds: how much likelier one exceeds a cut, wrong once in a million."""
    from scipy import stats

    over = [int((world > cut).sum()) for world in worlds]
    n = len(worlds[0])
    low = stats.beta.ppf(5e-7, over[0], n - over[0] + 1)
    high = stats.beta.ppf(1 - 5e-7, over[1] + 1, n - over[1])
    return math.log(low / high)


@pytest.mark.parametrize("name", ["edges", "paths", "triangles", "alike"])
def test_an_attacker_who_knows_all_but_one_person_finds_nearly_the_charge_and_more_with_half_the_noise(name):
    """The worst pair of networks: two cliques' worth of edges, of which one person has all or nothing."""
    caps = {"most_contacts": 12, "most_paths": 60, "most_triangles": 30}
    plan = counting(epsilon=4.0, **caps)
    full = np.zeros((60, 60), dtype=np.int64)
    full[:13, :13] = 1 - np.eye(13, dtype=np.int64)
    if name == "paths":  # the person alone has paths: in the middle of a star
        full = replaced(np.zeros_like(full), 0, np.arange(1, 13))
    if name == "triangles":
        full[:13, :13] = drawn(np.random.default_rng(9), 13, 0.7)
        full = replaced(full, 0, np.arange(1, 13))
    worlds = [measured(plan, ties, np.zeros(60)) for ties in (full, replaced(full, 0, np.arange(0)))]
    at, block = next((k, c) for k, c in enumerate(plan.release.counts(plan)) if c.name == name)
    charged = privacy.pure_epsilon(block.event)
    moved = float(worlds[0][at][0] - worlds[1][at][0])
    assert moved >= 0.9 * block.sensitivity
    for factor in (1.0, 0.5):
        draws = [
            noised(block, np.full(40_000, exact[at][0], dtype=np.int64), Scaled(factor, 70 + k))
            for k, exact in enumerate(worlds)
        ]
        bound = found(draws, block.scale, float(worlds[0][at][0]))
        if factor == 1.0:
            assert 0.75 * charged < bound <= charged
        else:
            assert bound > charged


# -- what it answers ----------------------------------------------------------------------------------------------
QUESTIONS = (
    "network(edge)",
    "network(mean_degree)",
    "network(v_shape)",
    "network(triangle)",
    "network(transitivity)",
    "network(assortativity) ~ ward",
)


def far(plan: StudyPlan, ties: sparse.csr_array, level: np.ndarray, text: str, seeds: int) -> list[float | None]:
    """Errors in standard errors; None where the answer was refused."""
    upper = sparse.triu(ties, k=1, format="csr")
    upper.sort_indices()
    table = pd.DataFrame({"ward": level.astype(float)})
    table[NEIGHBOURS] = np.split(upper.indices.astype(np.int32), upper.indptr[1:-1])
    names = pd.DataFrame({"ward": pd.Categorical.from_codes(level, plan.dictionary.column("ward").levels)})
    question = parse_estimand(text)
    truth, _ = figure(ties, names, question, plan.dictionary)
    exact, out = plan.release.measure(plan, table, seeded_rng(0)), []
    for seed in range(seeds):
        released = plan.release.draw(plan, exact, seeded_rng(seed))
        plan.release.validate(plan, released, len(level))
        try:
            [row] = plan.release.answer(plan, [(released, len(level))], question, levels={}, **TOLD)
        except EstimateRefusal:
            out.append(None)
        else:
            out.append((row.yi - truth) / math.sqrt(row.vi))
    return out


@pytest.mark.parametrize("text", QUESTIONS)
def test_answers_hold_the_real_network_s_figure_or_are_refused(text):
    world = next(world for world in WORLDS if world.name == "geometric, crowded")
    ties, level = world.draw(1000, np.random.default_rng(6))
    plan = counting(most_contacts=80)
    found = far(plan, ties, level, text, 40)
    said = [abs(one) for one in found if one is not None]
    assert len(said) > 30
    assert not said or np.mean([one < 1.96 for one in said]) >= 0.85


def test_more_epsilon_buys_a_narrower_answer():
    ties, level = WORLDS[12].draw(1500, np.random.default_rng(7))
    table, question = records(ties.toarray(), level), parse_estimand("network(transitivity)")
    spread = []
    for epsilon in (2.0, 20.0):
        plan = counting(epsilon=epsilon)
        released = plan.release.draw(plan, plan.release.measure(plan, table, seeded_rng(0)), seeded_rng(8))
        [row] = plan.release.answer(plan, [(released, 1500)], question, levels={}, **TOLD)
        spread.append(math.sqrt(row.vi))
        assert row.vi_sampling == 0
        assert "own network" in row.warnings[0]
    assert spread[0] > 5 * spread[1]


def test_a_cap_below_what_people_have_is_put_back_or_refused_and_never_passed_over():
    ties, level = WORLDS[9].draw(1500, np.random.default_rng(8))
    assert degrees(ties).max() > 150
    generous = [one for one in far(counting(most_contacts=150), ties, level, "network(edge)", 20) if one is not None]
    assert np.mean([abs(one) < 1.96 for one in generous]) >= 0.85
    tight = far(counting(epsilon=20.0, most_contacts=20, figures=()), ties, level, "network(edge)", 10)
    assert tight == [None] * 10


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("network(edge)", "network(edge) is then too low, by"),
        ("network(v_shape)", "network(v_shape) is then too low, by"),
        ("network(transitivity)", "and too high where they do not"),
        ("network(assortativity) ~ ward", "and too high where they meet all"),
    ],
)
def test_persons_far_beyond_the_cap_are_cautioned_of_with_the_direction(text, direction):
    rng = np.random.default_rng(4)
    n, ties, level = 800, drawn(rng, 800, 0.006), rng.integers(0, 3, 800)
    room = np.arange(n) // 4
    ties |= room[:, None] == room[None, :]
    for hub in (5, 300, 600):
        met = rng.choice(n, 150, replace=False)
        ties[hub, met] = ties[met, hub] = 1
    np.fill_diagonal(ties, 0)
    plan = counting(epsilon=10.0)
    names = pd.DataFrame({"ward": pd.Categorical.from_codes(level, plan.dictionary.column("ward").levels)})
    real, _ = figure(sparse.csr_array(ties), names, parse_estimand(text), plan.dictionary)
    released = plan.release.draw(plan, measured(plan, ties, level), seeded_rng(3))
    [row] = plan.release.answer(plan, [(released, n)], parse_estimand(text), levels={}, **TOLD)
    own, said = row.warnings
    assert "own network" in own
    assert said.startswith("Whoever has more than 40 contacts"), "the noise hides three persons"
    assert direction in said
    if text != "network(assortativity) ~ ward":
        assert abs(row.yi - real) > 1.96 * math.sqrt(row.vi), "no interval includes it"


def test_the_caution_says_what_the_counts_near_the_cap_show():
    rng = np.random.default_rng(5)
    ties, level = drawn(rng, 300, 0.1), rng.integers(0, 3, 300)

    def said(epsilon, most):
        plan = counting(epsilon=epsilon, most_contacts=most, figures=())
        released = plan.release.draw(plan, measured(plan, ties, level), seeded_rng(3))
        [row] = plan.release.answer(plan, [(released, 300)], parse_estimand("network(edge)"), levels={}, **TOLD)
        return row.warnings[1:]

    [hidden], [seen] = said(3.0, 120), said(30.0, 45)
    assert hidden.startswith("Whoever has more than 120 contacts")
    assert seen.startswith("A count at half its cap is lower by more than its noise")
    assert said(3.0, 299) == (), "nobody can have more"
    assert said(500.0, 120) == (), "one person at the cap would be seen"


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("network(star3)", {}, "must be asked network"),
        ("network(degree_cv)", {}, "what the caps cut"),
        ("mean(age)", {}, "must be asked network"),
        ("network(transitivity)", {"figures": ("paths",)}, "must have been planned"),
        ("network(assortativity) ~ staff", {}, "must have been planned"),
        ("network(triangle)", {"epsilon": 0.01}, "must be more than its noise"),
        ("network(assortativity) ~ ward", {"epsilon": 0.01}, "edges by level must be more than its noise"),
    ],
)
def test_what_was_not_planned_or_is_drowned_has_a_typed_reason(text, changes, words):
    plan = counting(**changes)
    ties, level = WORLDS[6].draw(300, np.random.default_rng(9))
    released = plan.release.draw(plan, measured(plan, ties.toarray(), level), seeded_rng(1))
    with pytest.raises(EstimateRefusal, match=words):
        plan.release.answer(plan, [(released, 300)], parse_estimand(text), levels={}, **TOLD)


def test_the_checklist_warns_of_planned_questions_that_no_release_would_answer():
    written = (STUDIES / "network-counts.toml").read_text()
    # Another figure than is counted, and one that needs a count which is not planned.
    counts = written.replace('"network(edge)"', '"network(degree_cv)"').replace(', "triangles"]', "]")
    ours = {"contacts": "warn", "closure": "warn", "wards": "ok"}
    network = (STUDIES / "network.toml").read_text().replace('"network(edge)"', '"network(transitivity)"')
    theirs = {"contacts": "warn", "paths": "ok", "unevenness": "ok"}
    for text, expected in ((counts, ours), (network, theirs)):
        lines = {line.name: line for line in review(text, today=dt.date(2026, 6, 1))[1]}
        assert {name: lines[f"estimand {name}"].state for name in expected} == expected
        assert lines["estimand contacts"].fix
        if expected is ours:
            assert (lines["cap"].state, lines["cap"].detail[:31]) == ("ok", "at most 60 contacts a person: a")


# -- the plan -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0.0}, "positive"),
        ({"most_contacts": 2}, "whole number in 4"),
        ({"most_triangles": 1.5}, "whole number in 4"),
        ({"figures": ("stars",)}, "some of paths, triangles"),
        ({"by": "ward"}, "different columns"),
        ({"by": ("age",)}, "columns with levels"),
        ({"by": ("bed",)}, "no such column"),
        ({"strangers": "keep"}, "one of refuse"),
        ({"epsilon": 1e-8}, "drawn exactly"),
    ],
)
def test_settings_that_no_site_could_follow_are_refused_in_the_plan(changes, words):
    with pytest.raises(PlanRefusal, match=words):
        counting(**changes)


def test_nobody_is_held_out():
    plan = counting()
    with pytest.raises(PlanRefusal, match="posture 'private'"):
        replace(plan, posture="holdout")
    said = " ".join((*plan.release.covered(plan), *plan.release.not_covered(plan)))
    assert "Every person in the table, with all edges" in said
    assert "Nobody is held out" in said
    assert "no release" not in said, "nothing is refused by what the network is"


def test_a_receipt_of_a_version_that_refused_crowded_networks_is_still_true_and_no_other_sentence_is():
    plan = counting()
    now = write_receipt(
        plan, ReceiptDraft(wave=1, site="north", release_id="r" * 8, agent_version="0.2.0", n=300, previous="0" * 64)
    )
    before = replace(now, not_covered=(now.not_covered[0], *NetworkCountsPlan.retired, *now.not_covered[1:]))
    before.require_true(plan)
    for wrong in (before.not_covered[1:], (*now.not_covered, "Nothing else.")):
        with pytest.raises(ReceiptRefusal):
            replace(now, not_covered=wrong).require_true(plan)


def test_a_table_that_the_plan_could_not_have_made_is_refused():
    plan = counting()
    exact = measured(plan, drawn(np.random.default_rng(3), 60, 0.2), np.zeros(60))
    table = plan.release.draw(plan, exact, seeded_rng(1))
    plan.release.validate(plan, table, 60)
    for wrong in (
        table.iloc[1:],
        table.assign(value=table["value"].astype(float)),
        table.assign(of="ward"),
        table.assign(value=table["value"] + 10**9),
    ):
        with pytest.raises(SchemaRefusal):
            plan.release.validate(plan, wrong.reset_index(drop=True), 60)


# -- the price list -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", ["network.toml", "network-counts.toml"])
def test_the_price_list_of_a_network_has_both_ways_and_says_what_a_larger_epsilon_buys(file):
    plan = StudyPlan.from_toml((STUDIES / file).read_text())
    drawn_anew, counted = prices(plan)
    assert [one.name for one in (drawn_anew, counted)] == ["node-private network", "capped network counts"]
    for one in (drawn_anew, counted):
        assert one.epsilon == pytest.approx(plan.release.epsilon, rel=1e-3)
    assert "those held out not at all" in drawn_anew.covered
    assert "not how edges close or mix" in drawn_anew.buys
    assert "nobody is held out" in counted.covered
    assert "narrower" in counted.buys


# -- the way out --------------------------------------------------------------------------------------------------
@pytest.fixture
def theatre(tmp_path):
    stage = Theatre(tmp_path)
    yield stage
    stage.close()


def test_two_files_at_a_hospital_become_counts_and_an_estimate_through_the_command_lines(theatre, tmp_path):
    text = (STUDIES / "network-counts.toml").read_text()
    nodes, edges = contact_networks(np.random.default_rng(3), sites=1, n=240, mean_degree=24)["harbour"]
    files = {name: tmp_path / f"{name}.csv" for name in ("nodes", "contacts")}
    nodes[["person", "ward"]].to_csv(files["nodes"], index=False)
    edges.to_csv(files["contacts"], index=False)
    text = text.replace("epsilon = 3.0 ", "epsilon = 30.0 ").replace("epsilon = 3.5", "epsilon = 40.0")
    theatre.open(text)
    invitation = theatre.invite("north", "network_counts")
    made = theatre.agent("north", "init", "--invitation", invitation, "--approver", "steward").json
    theatre.agent("north", "join")
    theatre.coordinator("accept", "north", "--fingerprint", made["fingerprint"])
    theatre.agent("north", "join")
    theatre.agent("north", "plan", "fetch", "network_counts")
    add = ("data", "add", files["nodes"], "--as", "network_counts", "--edges")
    missing = theatre.agent("north", *add, theatre.folder / "none.csv", expect=40)
    assert "the edge list must be a file on this machine" in str(missing.json)
    theatre.agent("north", *add, files["contacts"])
    said = str(theatre.agent("north", "plan", "show", "network_counts").json)
    assert "Nobody is held out" in said
    theatre.agent("north", "plan", "approve", "network_counts", "--as", "steward")
    release = theatre.agent("north", "release", "network_counts", "--wave", 1).json
    ticks = [word for warning in release.get("warnings", []) for word in ("--tick", warning["name"])]
    theatre.agent("north", "approve", release["release_id"], "--as", "steward", *ticks)
    pooled = theatre.coordinator("pool", "network_counts", "--wave", 1, "--estimand", "contacts").json
    [row] = pooled["estimates"]
    real = math.log(2 * len(edges) / (240 * 239))
    assert row["yi"] == pytest.approx(real, abs=5 * math.sqrt(row["vi_privacy"]))
    assert row["vi_sampling"] == 0
    # No network leaves: counts in a table of a dozen lines, and no person's name.
    [bundle] = (theatre.hub / "bundles").iterdir()
    released = read_bundle(bundle, cap=1 << 20).table
    assert tuple(released.columns) == COLUMNS
    assert len(released) == 11
    assert b"harbour" not in bundle.read_bytes()


def test_a_site_releases_everybody_and_its_approver_alone_sees_how_many_are_above_a_cap(ward):
    plan = counting(most_contacts=12)
    site = ward.site()
    made = ward.release(plan, site)
    receipt = read_bundle(site.outbox.bundle(made.hold.release_id), cap=1 << 20).receipt
    assert (receipt.n, receipt.posture, receipt.mechanism) == (300, "private", "network_counts")
    [above] = [check for check in made.checks if check.measured and "records;" in check.detail]
    k = np.bincount(pd.Index(ward.nodes["person"]).get_indexer(ward.edges.to_numpy().ravel()), minlength=300)
    assert above.measured >= (k > 12).sum() > 0
