"""The simulation of a large coordinator: queues with a known answer, nothing lost, and the product's own limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.benchmarks.pages import write
from tests.benchmarks.scale_events import Clock, Cores, Places, Turns
from tests.benchmarks.scale_model import KINDS, Asking, Costs, Machines, simulated

COSTS = Costs(
    fit={"cox": 1.0},
    cold={"cox": 3.0},
    lost={"cox": 2.0},
    kept=1.0,
    pooled=0.05,
    serving={"repeated": 0.02, "pooled otherwise": 0.05, "new": 0.1},
    write=0.005,
    bundle=1e8,
    deliver=0.03,
    open=0.05,
    commit=0.004,
)
ASKING = Asking(analysts=40, seconds=1800.0, thinks=60.0, mix=(0.4, 0.2, 0.4))


def mean_seconds(rate, seconds, serve, arrivals=40_000, seed=3):
    """Mean time in a system of customers that arrive by chance, `seconds(rng)` of work each."""
    clock, rng, took = Clock(), np.random.default_rng(seed), []
    steps = serve(clock)

    def customer(begins, work):
        yield clock.sleep(begins)
        yield from steps(work)
        took.append(clock.now - begins)

    for begins in np.cumsum(rng.exponential(1 / rate, arrivals)):
        clock.begin(customer(float(begins), seconds(rng)))
    clock.run()
    assert len(took) == arrivals
    return np.mean(took[arrivals // 10 :])


def in_order(count):
    def serve(clock):
        places, cores = Places(clock, count), Cores(clock, count)
        return lambda work: places.within(cores.work(work))

    return serve


def shared(clock):
    cores = Cores(clock, 1)

    def steps(work):
        yield cores.work(work)

    return steps


def erlang_c(servers, load):
    """Probability that who arrives must wait, in an M/M/c queue of so many servers and erlangs."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


def test_a_queue_of_one_server_waits_as_its_formula_says():
    found = mean_seconds(0.7, lambda rng: float(rng.exponential(1.0)), in_order(1))
    assert found == pytest.approx(1 / (1 - 0.7), rel=0.05)


def test_work_that_is_always_as_long_waits_half_as_much():
    found = mean_seconds(0.7, lambda rng: 1.0, in_order(1))
    assert found == pytest.approx(1 + 0.7 / (2 * (1 - 0.7)), rel=0.05)


def test_a_queue_of_four_servers_waits_as_erlangs_formula_says():
    found = mean_seconds(3.2, lambda rng: float(rng.exponential(1.0)), in_order(4))
    assert found == pytest.approx(1 + erlang_c(4, 3.2) / (4 - 3.2), rel=0.05)


def test_a_core_that_is_shared_takes_what_its_formula_says_whatever_the_work_is_like():
    for seconds in (lambda rng: 1.0, lambda rng: float(rng.exponential(1.0))):
        assert mean_seconds(0.7, seconds, shared) == pytest.approx(1 / (1 - 0.7), rel=0.07)


def test_who_waits_for_a_place_is_served_in_turn_and_has_a_spare_one_after_half_a_second():
    clock, order = Clock(), []
    turns = Turns(clock, 1, 1, patience=30.0)

    def asks(owner, name, seconds):
        got = yield turns.take(owner)
        order.append((round(clock.now, 2), name, got))
        if got:
            yield clock.sleep(seconds)
            turns.leave(owner)

    for owner, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        clock.begin(asks(owner, name, 2.0))
    clock.run()
    assert order == [(0.0, "a1", True), (0.6, "b1", True), (2.0, "a2", True)]


def test_who_waits_for_longer_than_the_patience_has_no_place():
    clock, got = Clock(), []
    turns = Turns(clock, 1, 0, patience=3.0)

    def asks(owner):
        found = yield turns.take(owner)
        got.append((clock.now, found))
        if found:
            yield clock.sleep(5.0)
            turns.leave(owner)

    clock.begin(asks("a"))
    clock.begin(asks("b"))
    clock.run()
    assert got == [(0.0, True), (3.0, False)]


@pytest.mark.parametrize(
    "machines",
    [
        Machines(cores=2),
        Machines(cores=4, places=4, threads=64),
        Machines(cores=2, elsewhere=4, places=4, threads=64),
        Machines(cores=8, places=8, processes=2, in_pieces=True),
        Machines(cores=2, seconds=2.0),
    ],
)
def test_every_question_is_answered_or_refused_and_every_bundle_acknowledged(machines):
    found = simulated(machines, COSTS, ASKING, bundles=50, within=600.0)
    assert sum(found.asked.values()) == found.answered + sum(found.refused.values()) > 500
    assert found.delivered["count"] == 50
    assert set(found.seconds) <= set(KINDS)
    assert 0 < found.use["cores"] <= 1
    assert all(0 <= share <= 1 for share in found.use.values())


def test_the_same_seed_gives_the_same_and_another_one_another():
    machines = Machines(cores=2)
    assert simulated(machines, COSTS, ASKING) == simulated(machines, COSTS, ASKING)
    assert simulated(machines, COSTS, ASKING).seconds != simulated(machines, COSTS, ASKING, seed=2).seconds


def test_the_cores_work_as_long_as_the_questions_cost():
    """The utilisation law: rate times seconds of work."""
    asking = Asking(analysts=20, seconds=36_000.0, thinks=100.0)
    found = simulated(Machines(cores=8, places=8, threads=64), COSTS, asking)
    work = found.answered * (COSTS.fit["cox"] + COSTS.serving["new"])
    assert found.core_seconds == pytest.approx(work, rel=0.02)


def test_a_place_is_in_use_for_as_long_as_it_is_held():
    clock = Clock()
    places = Places(clock, 2)
    for seconds in (1.0, 3.0, 2.0):  # the last one waits for the first
        clock.begin(places.within(clock.sleep(seconds)))
    clock.run()
    assert (clock.now, places.busy, places.waited) == (3.0, 6.0, 1.0)


def test_a_question_that_is_pooled_otherwise_costs_its_worker_little_while_that_knows_it():
    asking = Asking(analysts=1, each=400, mix=(0.0, 0.8, 0.2))
    found = simulated(Machines(cores=2), COSTS, asking)
    assert found.seconds["pooled otherwise"]["p95"] == pytest.approx(0.05 + 0.05, abs=0.01)
    assert found.seconds["new"]["p50"] == pytest.approx(1.0 + 0.1, abs=0.02)


def test_beyond_what_it_can_hold_a_coordinator_refuses_and_says_why():
    found = simulated(Machines(cores=1, places=1), COSTS, Asking(analysts=200, seconds=120.0))
    assert found.refused["no room for a call"] > 0
    assert simulated(Machines(cores=2, seconds=0.5), COSTS, Asking(analysts=1, each=3)).refused == {
        "more computing than a question may take": 3
    }


def test_limits_are_the_products_own():
    from coordinator.analyst import remote
    from coordinator.config import CoordinatorConfig
    from coordinator.services.compute import engine, workers
    from shared.wire import message_limits
    from tests.benchmarks import scale_model

    settings = {name: field.default for name, field in CoordinatorConfig.__dataclass_fields__.items()}
    machines = Machines(cores=1)
    assert scale_model.IN_THE_MAKING == message_limits.ASKED_WAITING
    assert scale_model.PATIENCE == engine.PATIENCE
    assert scale_model.CLIENT == remote.PATIENCE
    assert (Turns.SPARE_AFTER, Turns.LOOK) == (workers.SPARE_AFTER, workers.LOOK)
    assert (machines.places, machines.threads, machines.seconds) == (
        settings["analyst_places"],
        settings["workers"],
        settings["analyst_seconds"],
    )


# -- the page ---------------------------------------------------------------------------------------------------------
TEMPLATE = (write.HERE / "scale.md").read_text(encoding="utf-8")
RESULTS = write.record("scale")["results"]


def rows_under(place):
    """Name and cells of each row of the table that is filled from a place."""
    table = TEMPLATE.split(f"<!-- cells {place} -->\n")[1].split("\n\n")[0].splitlines()
    columns = [write.name(cell) for cell in table[0].strip("|").split("|")[1:]]
    for line in table[2:]:
        head, *cells = line.strip("|").split("|")
        yield write.name(head).strip(), dict(zip(columns, (cell.strip() for cell in cells), strict=True))


def at(place):
    found = RESULTS
    for part in place.split("/"):
        found = found[part]
    return found


def test_the_page_says_none_where_no_number_of_cores_was_found_and_nowhere_else():
    for place, count in (
        ("sizes/{row}/smallest/{column}", 10),
        ("busy/{row}/{column}", 10),
        ("sizes/{row}/in pieces/smallest/{column}", 2),
    ):
        rows = list(rows_under(f"scale:{place}"))
        assert len(rows) == count
        for name, cells in rows:
            for target, cell in cells.items():
                cores = at(place.replace("{row}", name).replace("{column}", target))
                assert (cell == "none") == (cores == 0), f"{name} {target}"


def test_the_smallest_configuration_is_the_smallest_that_was_simulated_to_answer_in_time():
    for rows in RESULTS["sizes"].values():
        for cell in (*rows["cells"].values(), rows["in pieces"]):
            for target, cores in cell["smallest"].items():
                good = [
                    int(tried)
                    for tried, said in cell["rungs"].items()
                    if said["answered_share"] >= 0.999 and said["seconds"]["new"]["p95"] <= float(target)
                ]
                assert cores == min(good, default=0)


@pytest.mark.parametrize("size", ["1000", "20000"])
def test_the_page_names_what_is_waited_for_most(size):
    place = f"sizes/{size}/cells/ordinary day, mixed/rungs"
    rows = list(rows_under(f"scale:{place}/{{row}}/{{column}}"))
    assert {cores: cells["most is waited for"] for cores, cells in rows} == {
        cores: at(f"{place}/{cores}/bottleneck") for cores, _ in rows
    }


def test_paper_and_simulation_have_about_as_many_cores_in_use():
    for name, _ in rows_under("scale:sizes/{row}/{column}"):
        said = at(f"sizes/{name}")
        assert 0.5 < said["cores_used"] / said["on_paper_cores"] < 2


def test_what_is_simulated_is_near_what_was_measured():
    for name in ("16 sites of 1,000", "121 sites of 5,000", "analysis_load", "load sqlite_1"):
        assert all(0.6 < one["ratio"] < 1.5 for one in RESULTS["compared"][name].values())
