"""Federated training: what a site refuses and what it sends, what the coordinator takes, the price, crashes, liars."""

from __future__ import annotations

import copy
import logging
import math
import os
import tomllib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from stage.training.federation import FEDERATED, NAMES, PLAN, answering, made, network, records, source, trained
from stage.training.memory_federation import MemorySource, memory_grid

from coordinator.training import federation as hub
from shared.base.canonical import canonical_json, parse_json
from shared.base.randomness import seeded_rng
from shared.errors import (
    BudgetRefusal,
    NetworkRefusal,
    ParameterError,
    PausedRefusal,
    PlanChanged,
    PlanRefusal,
    ReceiptRefusal,
    SchemaRefusal,
    TooLarge,
    TrainingRefusal,
)
from shared.plans.dictionary import Dictionary
from shared.plans.encoding import Encoder
from shared.plans.federated import (
    Federated,
    FederatedFlow,
    Shape,
    first_weights,
    from_text,
    pack,
    to_text,
    unpack,
)
from shared.plans.plan import Reference, StudyPlan, Training
from shared.privacy import accountant as privacy
from shared.privacy.accountant import SubsampledGaussian
from shared.wire import flower
from site_agent.models.private_flow import LARGEST_BATCH
from site_agent.release.trained_flow import federated_flow
from site_agent.training import federation
from site_agent.training.federation import local_round, start_of

ENCODER = Encoder(dictionary=PLAN.dictionary)
SHAPE = Shape.of(ENCODER.d, PLAN.training)
START = first_weights(SHAPE, hub.seed_of(PLAN))


class Untouched(MemorySource):
    """A site at which nothing may be claimed or read."""

    def allow(self, round_):
        raise AssertionError("a round was claimed")

    def records(self):
        raise AssertionError("records were read")


def question(round_=1, weights=START, plan: str = PLAN.hash, kind: str = "train"):
    flower.prepare()
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    content = RecordDict(
        {
            "arrays": ArrayRecord({"weights": flower.vector(weights)}),
            "config": ConfigRecord({"plan": plan, "server-round": round_}),
        }
    )
    return flower.addressed(content, message_type=kind, source=0, target=7, name="m1", group=str(round_))


def refusal(message):
    assert message.has_error()
    return flower.refusal(message.error)


# -- the price ----------------------------------------------------------------------------------------------------
def test_the_price_is_that_of_all_steps_of_all_rounds_to_everybody(tmp_path):
    assert FEDERATED.event == SubsampledGaussian(rate=0.5, noise_multiplier=1.2, steps=6)
    flow = trained(tmp_path)
    assert privacy.from_canonical(flow.event) == FEDERATED.event
    assert flow.epsilon == privacy.epsilon(FEDERATED.event, PLAN.budget.delta)
    flow.require_true(PLAN)


def test_a_site_takes_as_many_steps_as_are_charged_at_the_planned_rate_and_noise(tmp_path, monkeypatch):
    taken = []
    real = federation.noisy_gradient

    def counted(flow, y, private, rng, noise):
        taken.append((len(y), private.rate, private.noise_multiplier, private.clip))
        return real(flow, y, private, rng, noise)

    monkeypatch.setattr(federation, "noisy_gradient", counted)
    trained(tmp_path)
    for k in range(len(NAMES)):
        assert taken.count((40 + 10 * k, 0.5, 1.2, 1.0)) == FEDERATED.event.steps
    assert len(taken) == len(NAMES) * FEDERATED.event.steps


def test_a_record_moves_a_step_by_no_more_than_the_event_says(monkeypatch):
    """Without the noise: exchanging one of n records moves a round of one step by at most 2 C / (q n) step sizes."""
    monkeypatch.setattr(federation, "Ahead", lambda rng, portions: Silent())
    plan = made(replace(FEDERATED, local_steps=1, rate=1.0, clip=0.3, step_size=0.7))
    n, largest = 12, 0.0
    for seed in range(15):
        y = 3 * np.random.default_rng(seed).standard_normal((n, ENCODER.d))
        other = y.copy()
        other[0] = -20 * y[1]
        one, two = (local_round(plan, SHAPE, START, 1, rows, seeded_rng(1)) for rows in (y, other))
        largest = max(largest, float(np.linalg.norm(one - two)) * n / 0.7)
    assert 0.3 < largest <= 2 * 0.3


def test_a_round_of_more_records_than_the_room_for_rounding_was_calculated_for_is_refused():
    plan = made(replace(FEDERATED, rate=0.6))
    y = np.zeros((2 * LARGEST_BATCH, ENCODER.d))
    with pytest.raises(TrainingRefusal, match="at most 40000 records"):
        local_round(plan, SHAPE, START, 1, y, seeded_rng(1))


class Silent:
    def lattice_gaussian_steps(self, sigma, shape, grid):
        return np.zeros(shape, dtype=np.int64)


# -- the site -----------------------------------------------------------------------------------------------------
def bad_array(**parts):
    from flwr.app import Array

    good = flower.vector(START)
    return Array(**({"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data} | parts))


def bad_questions():
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    broken = START.copy()
    broken[3] = math.nan
    huge = START.copy()
    huge[0] = 1e7
    more, empty, other = question(), question(), question()
    more.content["extra"] = MetricRecord({"rate": 1.0})
    empty.content = RecordDict()
    other.content["config"] = ConfigRecord({"plan": PLAN.hash, "server-round": 1, "noise_multiplier": 0.0})
    found = {
        "another plan": (question(plan="0" * 64), PlanChanged),
        "round 0": (question(round_=0), BudgetRefusal),
        "a round beyond the reservation": (question(round_=4), BudgetRefusal),
        "a round that is a text": (question(round_="1"), BudgetRefusal),
        "a weight that is no number": (question(weights=broken), SchemaRefusal),
        "a weight out of reach": (question(weights=huge), SchemaRefusal),
        "too few weights": (question(weights=START[1:]), SchemaRefusal),
        "too many weights": (question(weights=np.zeros(5000)), TooLarge),
        "a record more": (more, SchemaRefusal),
        "nothing": (empty, SchemaRefusal),
        "a setting": (other, SchemaRefusal),
    }
    data = flower.vector(START).data
    for name, array, kind in (
        ("single precision", bad_array(data=data.replace(b"<f8", b"<f4")), SchemaRefusal),
        ("objects", bad_array(data=data.replace(b"'<f8'", b"'|O' ")), SchemaRefusal),
        (
            "a shape of terabytes",
            bad_array(data=data.replace(b"(%d,)" % len(START), b"(9e9,)"[: len(b"(%d,)" % len(START))])),
            SchemaRefusal,
        ),
        ("bytes after the end", bad_array(data=data + b"x"), TooLarge),
    ):
        message = question()
        message.content["arrays"] = ArrayRecord({"weights": array})
        found[name] = (message, kind)
    return found


@pytest.mark.fault("F20", offered=1)
@pytest.mark.parametrize("name", list(bad_questions()))
def test_a_bad_question_is_refused_before_a_round_is_claimed_or_a_record_is_read(name):
    message, kind = bad_questions()[name]
    one = Untouched(plan=PLAN, site="north", encoded=records(), rng=seeded_rng(1))
    assert type(refusal(answering(one)(message))) is kind


def test_a_site_takes_no_part_under_a_plan_without_federated():
    plan = made(None)
    one = Untouched(plan=plan, site="north", encoded=records(), rng=seeded_rng(1))
    assert isinstance(refusal(answering(one)(question(plan=plan.hash))), PlanRefusal)


def test_a_site_knows_one_message_and_no_other():
    app = answering(source())
    for kind in ("evaluate", "query", "train.other", "query.release"):
        with pytest.raises(ValueError, match=r"No .* function registered"):
            app(question(kind=kind))


def test_an_answer_holds_the_weights_and_public_figures_and_nothing_else():
    one = source()
    answer = answering(one)(question())
    content = answer.content
    assert {name: sorted(record) for name, record in content.items()} == {
        "arrays": ["weights"],
        "config": ["asked", "plan", "server-round"],
        "metrics": ["n", "steps"],
    }
    assert content["config"]["asked"] == flower.digest(START)
    assert (content["metrics"]["n"], content["metrics"]["steps"]) == (40, 2)
    weights = flower.weights(content["arrays"]["weights"], SHAPE.weights)
    assert one.claimed == [1]
    assert one.answers[1][0] == flower.digest(START)
    assert np.array_equal(one.answers[1][1], weights)
    assert np.count_nonzero(weights != START) > 0.9 * START.size


def test_a_round_asked_again_gets_the_same_answer_and_with_other_weights_none():
    """A second answer would be a step that nobody has paid for."""
    one = source()
    app = answering(one)
    first, again = app(question()), app(question())
    assert first.content["arrays"]["weights"].data == again.content["arrays"]["weights"].data
    assert one.claimed == [1]
    refused = refusal(app(question(weights=START + 1e-9)))
    assert refused.code == "E_REPLAY"
    assert one.claimed == [1]


def test_an_answer_is_kept_before_it_is_sent_and_a_claim_stands_before_records_are_read():
    order = []

    class Told(MemorySource):
        def allow(self, round_):
            order.append("allow")

        def records(self):
            order.append("records")
            return super().records()

        def keep(self, round_, start_digest, weights):
            order.append("keep")
            raise OSError("the disk is full: /secret/path")

    answer = answering(Told(plan=PLAN, site="north", encoded=records(), rng=seeded_rng(1)))(question())
    assert order == ["allow", "records", "keep"]
    # No refusal of ours: the class alone leaves, and no answer.
    assert answer.error.reason == "E_REFUSED OSError"


def test_what_the_site_refuses_arrives_at_the_coordinator_with_its_type(tmp_path):
    class Paused(Untouched):
        def allow(self, round_):
            raise PausedRefusal("this site must not be paused", given="a pause by the steward")

    _, sites, apps = network()
    apps[sites["east"]] = answering(Paused(plan=PLAN, site="east", encoded=records(), rng=seeded_rng(1)))
    seen = {}
    flow = hub.run(memory_grid(apps), PLAN, sites, tmp_path, report=lambda k, sites: seen.update(sites))
    assert flow.sites["east"] == {"n": 0, "answered": 0, "refused": ["E_PAUSED"]}
    assert seen["east"].refused["2"][1].startswith("this site must not be paused")


def test_records_of_other_columns_are_refused():
    one = source()
    one.encoded = np.zeros((10, 2))
    assert isinstance(refusal(answering(one)(question())), TrainingRefusal)


# -- the coordinator ----------------------------------------------------------------------------------------------
def test_fedavg_is_the_mean_of_the_sites_weights_by_their_numbers_of_records(tmp_path):
    plan = made(replace(FEDERATED, strategy="fedavg", rounds=1))
    flow = trained(tmp_path, plan)
    start = first_weights(SHAPE, hub.seed_of(plan))
    n = np.array([40, 50, 60, 70])
    answers = []
    for k, name in enumerate(NAMES):
        one = source(plan, name, int(n[k]), seed=k + 1)
        y = start_of(plan, ENCODER, name).inverse(one.encoded)
        answers.append(local_round(plan, SHAPE, start, 1, y, one.rng))
    np.testing.assert_allclose(flow.weights, np.average(answers, axis=0, weights=n), rtol=1e-12, atol=1e-14)
    assert {site: said["n"] for site, said in flow.sites.items()} == dict(zip(NAMES, n, strict=True))


def test_a_site_counts_as_the_plan_allows_however_many_records_it_says_that_it_has(tmp_path):
    plan = made(replace(FEDERATED, strategy="fedavg", rounds=1, most_records=40))
    _, sites, apps = network(plan)
    sent = []

    def kept(app):
        def answer(message):
            found = app(message)
            sent.append(flower.weights(found.content["arrays"]["weights"], SHAPE.weights))
            return found

        return answer

    flow = hub.run(memory_grid({node: kept(app) for node, app in apps.items()}), plan, sites, tmp_path)
    assert {said["n"] for said in flow.sites.values()} == {40, 50, 60, 70}
    np.testing.assert_allclose(flow.weights, np.mean(sent, axis=0), rtol=1e-12, atol=1e-14)


def test_fedadam_is_adam_on_the_way_to_the_mean(asked, tmp_path):
    """Against the formula of Reddi et al. (2021), algorithm 2, with Flower's correction of the first rounds."""
    sources, sites, apps = network()
    flow = hub.run(memory_grid(apps), PLAN, sites, tmp_path)
    n = [len(one.encoded) for one in sources.values()]
    m, v = 0.0, 0.0
    for round_ in (1, 2, 3):
        weights = asked[sources["north"].answers[round_][0]]
        answers = [one.answers[round_][1] for one in sources.values()]
        delta = np.average(answers, axis=0, weights=n) - weights
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        eta = FEDERATED.server_step(round_) * math.sqrt(1 - 0.99 ** (round_ + 1)) / (1 - 0.9 ** (round_ + 1))
        moved = weights + eta * m / (np.sqrt(v) + FEDERATED.floor)
        after = asked[sources["north"].answers[round_ + 1][0]] if round_ < 3 else flow.weights
        np.testing.assert_allclose(after, moved, rtol=1e-9, atol=1e-12)


@pytest.fixture
def asked(monkeypatch) -> dict[str, np.ndarray]:
    """Every vector of weights by its digest."""
    real, seen = flower.digest, {}

    def kept(weights):
        seen[real(weights)] = weights
        return real(weights)

    monkeypatch.setattr(flower, "digest", kept)
    return seen


def test_only_the_named_sites_are_asked(tmp_path):
    _, sites, apps = network()

    def stranger(message):
        raise AssertionError("a node was asked that is nobody's")

    hub.run(memory_grid({**apps, 999: stranger}), PLAN, sites, tmp_path)


def test_with_hardly_any_noise_the_flow_finds_what_the_columns_have_to_do_with_one_another(tmp_path):
    plan = made(Federated(rounds=25, local_steps=1, rate=0.5, noise_multiplier=0.3, clip=3.0, server_rate=0.15))
    _, sites, apps = network(plan, NAMES[:2], n=300)
    flow = federated_flow(hub.run(memory_grid(apps), plan, sites, tmp_path), ENCODER, "north")
    fresh = records(500, seed=99)
    gain = flow.log_prob(fresh).mean() - start_of(plan, ENCODER, "north").log_prob(fresh).mean()
    assert gain > 0.4
    np.testing.assert_allclose(flow.forward(flow.inverse(fresh)), fresh, atol=1e-8)


def test_two_hundred_sites_train_in_one_process(tmp_path):
    plan = made(replace(FEDERATED, rounds=1, local_steps=1, quorum=190), training=Training(flows=1, hidden=3))
    names = [f"site-{k:03d}" for k in range(200)]
    shared = records(30)
    sites, apps = {name: 5000 + k for k, name in enumerate(names)}, {}
    for k, name in enumerate(names):
        one = MemorySource(plan=plan, site=name, encoded=shared, rng=seeded_rng(k))
        apps[sites[name]] = answering(one) if k % 20 else lambda message: None  # ten never answer
    flow = hub.run(memory_grid(apps), plan, sites, tmp_path)
    assert sorted(said["answered"] for said in flow.sites.values()) == [0] * 10 + [1] * 190
    assert flow.epsilon == privacy.epsilon(plan.federated.event, plan.budget.delta)  # whatever the number of sites


# -- crashes ------------------------------------------------------------------------------------------------------
@pytest.mark.fault("F2", answers=1)
@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_a_training_that_is_killed_goes_on_to_the_very_flow_of_one_that_is_not(strategy, tmp_path):
    plan = made(replace(FEDERATED, strategy=strategy))
    whole = trained(tmp_path / "whole", plan)
    sources, sites, apps = network(plan)
    grid, folder = memory_grid(apps), tmp_path / "killed"
    real, asked = apps[sites["east"]], []

    def dying(message):
        asked.append(message.content["config"]["server-round"])
        if asked.count(2) == 1 and asked[-1] == 2:
            raise KeyboardInterrupt
        return real(message)

    apps[sites["east"]] = dying
    with pytest.raises(KeyboardInterrupt):
        hub.run(grid, plan, sites, folder)
    assert not (folder / hub.FLOW).exists()
    assert sources["north"].claimed == [1, 2]  # and its answer was lost with the coordinator
    again = hub.run(grid, plan, sites, folder)
    assert asked == [1, 2, 2, 3]
    assert all(one.claimed == [1, 2, 3] for one in sources.values())
    assert again.canonical == whole.canonical
    # Once it is done, nobody is asked again.
    assert hub.run(memory_grid({}), plan, sites, folder).canonical == whole.canonical


def test_a_site_that_loses_its_unsent_round_takes_it_again_and_one_that_is_away_misses_it(tmp_path):
    sources, sites, apps = network()
    real = apps[sites["west"]]
    apps[sites["west"]] = lambda message: None if message.content["config"]["server-round"] == 2 else real(message)
    flow = hub.run(memory_grid(apps), PLAN, sites, tmp_path)
    assert sources["west"].claimed == [1, 3]
    assert flow.sites["west"] == {"n": 70, "answered": 2, "refused": []}


def test_a_round_below_the_quorum_stops_with_a_reason_and_the_next_run_goes_on_with_it(tmp_path):
    plan = made(replace(FEDERATED, quorum=3))
    sources, sites, apps = network(plan)
    cut = {"yes": True}
    for name in ("south", "west"):
        real = apps[sites[name]]
        apps[sites[name]] = lambda message, real=real: (
            None if cut["yes"] and message.content["config"]["server-round"] > 1 else real(message)
        )
    told = []
    for _ in range(2):
        with pytest.raises(NetworkRefusal, match="round 2 must be answered by at least 3 of 4 sites, got 2"):
            hub.run(memory_grid(apps), plan, sites, tmp_path, report=lambda k, _: told.append(k))
    cut["yes"] = False
    flow = hub.run(memory_grid(apps), plan, sites, tmp_path, report=lambda k, _: told.append(k))
    assert told == [1, 2, 3]
    assert sources["north"].claimed == [1, 2, 3]
    assert flow.canonical == trained(tmp_path / "whole", plan).canonical


def test_a_state_of_another_plan_or_a_broken_one_is_refused(tmp_path):
    plan = made(replace(FEDERATED, quorum=4))
    _, sites, apps = network(plan)
    late = {**apps, sites["west"]: lambda m: apps[sites["west"]](m) if m.metadata.group_id == "1" else None}
    with pytest.raises(NetworkRefusal):
        hub.run(memory_grid(late), plan, sites, tmp_path)
    with pytest.raises(PlanChanged):
        hub.run(memory_grid(apps), made(replace(FEDERATED, quorum=3)), sites, tmp_path)
    state = tmp_path / hub.STATE
    for broken in (b"", b"{}", state.read_bytes().replace(b'"round":1', b'"round":[]')):
        state.write_bytes(broken)
        with pytest.raises(SchemaRefusal):
            hub.run(memory_grid(apps), plan, sites, tmp_path)
    with pytest.raises(ParameterError, match="a node of its own"):
        hub.run(memory_grid(apps), plan, dict.fromkeys(sites, 100), tmp_path)
    with pytest.raises(PlanRefusal, match=r"\[federated\]"):
        hub.run(memory_grid(apps), made(None), sites, tmp_path)


# -- liars --------------------------------------------------------------------------------------------------------
def spoiled(answer, **parts):
    """The answer with other weights, or other figures."""
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

    if "array" in parts:
        answer.content["arrays"] = ArrayRecord({"weights": parts["array"]})
    if "config" in parts:
        answer.content["config"] = ConfigRecord({**answer.content["config"], **parts["config"]})
    if "metrics" in parts:
        answer.content["metrics"] = MetricRecord({**answer.content["metrics"], **parts["metrics"]})
    return answer


def lies():
    """Name to (what becomes of an honest answer, the code it is refused with)."""
    from flwr.app import Array, Error, Message

    def moved(answer, by):
        weights = flower.weights(answer.content["arrays"]["weights"], SHAPE.weights)
        return flower.vector(weights + by)

    def nan(answer):
        weights = flower.weights(answer.content["arrays"]["weights"], SHAPE.weights)
        weights[5] = math.nan
        return flower.vector(weights)

    def long(answer):
        good = answer.content["arrays"]["weights"]
        return Array(dtype=good.dtype, shape=good.shape, stype=good.stype, data=good.data + bytes(1 << 20))

    return {
        "not a number": (lambda a: spoiled(a, array=nan(a)), "E_SCHEMA"),
        "too many bytes": (lambda a: spoiled(a, array=long(a)), "E_TOO_LARGE"),
        "another length": (lambda a: spoiled(a, array=flower.vector(np.zeros(3))), "E_SCHEMA"),
        "further than the training can go": (lambda a: spoiled(a, array=moved(a, 50.0)), "E_TOO_LARGE"),
        "another plan": (lambda a: spoiled(a, config={"plan": "1" * 64}), "E_PLAN_CHANGED"),
        "another round": (lambda a: spoiled(a, config={"server-round": 1}), "E_REPLAY"),
        "to other weights": (lambda a: spoiled(a, config={"asked": "2" * 64}), "E_REPLAY"),
        "another number of records": (lambda a: spoiled(a, metrics={"n": 10_000}), "E_SCHEMA"),
        "no records": (lambda a: spoiled(a, metrics={"n": 0}), "E_SCHEMA"),
        "fewer steps": (lambda a: spoiled(a, metrics={"steps": 1}), "E_SCHEMA"),
        "a figure more": (lambda a: spoiled(a, metrics={"loss": 0.1}), "E_SCHEMA"),
        "an error of its own making": (
            lambda a: Message(Error(code=3, reason="E_NOSUCH \x1b[31m" + "x" * 9999), reply_to=a),
            "E_REFUSED",
        ),
    }


@pytest.fixture(scope="module")
def away(tmp_path_factory) -> FederatedFlow:
    """The flow if one site answers the first round and is away after that."""
    _, sites, apps = network()
    real = apps[sites["south"]]
    apps[sites["south"]] = lambda message: real(message) if message.metadata.group_id == "1" else None
    return hub.run(memory_grid(apps), PLAN, sites, tmp_path_factory.mktemp("away"))


@pytest.mark.fault("F20", offered=1)
@pytest.mark.parametrize("name", list(lies()))
def test_an_answer_that_cannot_be_one_is_refused_with_a_reason_and_the_others_train_on(name, away, tmp_path):
    lie, code = lies()[name]
    _, sites, apps = network()
    real = apps[sites["south"]]

    def lying(message):
        answer = real(message)
        if message.metadata.group_id == "1":
            return answer
        spoilt = lie(answer)
        if spoilt.has_error():
            return flower.addressed(spoilt.error, message_type="train", source=sites["south"], target=0)
        return spoilt

    apps[sites["south"]] = lying
    seen = {}
    flow = hub.run(memory_grid(apps), PLAN, sites, tmp_path, report=lambda k, sites: seen.update(sites))
    assert {r: c for r, (c, _) in seen["south"].refused.items()} == {"2": code, "3": code}
    assert all(text.isprintable() and len(text) < 600 for _, text in seen["south"].refused.values())
    assert flow.sites["south"]["answered"] == 1
    # What was refused has left no trace: the same flow as if that site had been away.
    assert np.array_equal(flow.weights, away.weights)


def test_a_question_that_is_sent_back_is_no_answer(asked, tmp_path):
    _, sites, apps = network()
    real = apps[sites["south"]]

    def lazy(message):
        answer = real(message)
        return spoiled(answer, array=flower.vector(asked[answer.content["config"]["asked"]]))

    apps[sites["south"]] = lazy
    flow = hub.run(memory_grid(apps), PLAN, sites, tmp_path)
    assert flow.sites["south"] == {"n": 0, "answered": 0, "refused": ["E_REPLAY"]}


def test_an_answer_that_was_sent_before_is_refused_though_it_claims_to_be_new(tmp_path):
    _, sites, apps = network()
    real, kept = apps[sites["south"]], {}

    def replaying(message):
        answer = real(message)
        kept.setdefault("first", answer.content["arrays"]["weights"])
        return spoiled(answer, array=kept["first"])

    apps[sites["south"]] = replaying
    flow = hub.run(memory_grid(apps), PLAN, sites, tmp_path)
    assert flow.sites["south"] == {"n": 50, "answered": 1, "refused": ["E_REPLAY"]}


def test_a_second_answer_and_one_from_a_stranger_are_not_counted(tmp_path):
    class Doubled:
        def __init__(self, grid):
            self.grid = grid

        def __getattr__(self, name):
            return getattr(self.grid, name)

        def send_and_receive(self, messages, *, timeout=None):
            answers = list(self.grid.send_and_receive(messages, timeout=timeout))
            strangers = [
                flower.addressed(copy.deepcopy(a.content), message_type="train", source=4242, target=0) for a in answers
            ]
            return [*strangers, *answers, *copy.deepcopy(answers)]

    _, sites, apps = network()
    flow = hub.run(Doubled(memory_grid(apps)), PLAN, sites, tmp_path)
    assert flow.canonical == trained(tmp_path / "plain").canonical


def test_an_honest_answer_is_within_reach_at_every_size():
    """The bound must never turn away a site that did what it was asked to."""
    for n, rate, steps in ((20, 0.05, 1), (20, 1.0, 4), (3000, 0.02, 2)):
        plan = made(replace(FEDERATED, rate=rate, local_steps=steps))
        y = 10 * np.random.default_rng(n).standard_normal((n, ENCODER.d))
        for seed in range(5):
            moved = np.linalg.norm(local_round(plan, SHAPE, START, 1, y, seeded_rng(seed)) - START)
            assert moved <= plan.federated.furthest(1, n, SHAPE.weights)


# -- what comes out -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def flow(tmp_path_factory) -> FederatedFlow:
    return trained(tmp_path_factory.mktemp("flow"))


def test_the_flow_is_one_document_that_reads_back_byte_for_byte(flow):
    again = FederatedFlow.from_bytes(flow.canonical, name=flow.name)
    assert again.canonical == flow.canonical
    assert again.name == f"federated:{flow.digest}"
    assert np.array_equal(again.weights, flow.weights)
    assert all(np.array_equal(a, b) for a, b in zip(again.layers()[0].weights, flow.layers()[0].weights, strict=True))


def test_a_flow_that_is_not_the_named_one_or_not_a_flow_is_refused(flow):
    with pytest.raises(PlanChanged, match="the one that the plan names"):
        FederatedFlow.from_bytes(flow.canonical, name="federated:" + "0" * 64)
    body = parse_json(flow.canonical)
    broken = np.array(flow.weights)
    broken[0] = math.inf
    for change in (
        {"format": "tributary-federated-flow/2"},
        {"extra": 1},
        {"weights": body["weights"][:-8]},
        {"weights": to_text(broken)},
        {"weights": "not base64"},
        {"shape": {**body["shape"], "hidden": 7}},
        {"shape": {**body["shape"], "hidden": 10**9}},
        {"plan_hash": "short"},
        {"sites": []},
    ):
        with pytest.raises(SchemaRefusal):
            FederatedFlow.from_bytes(canonical_json({**body, **change}))
    with pytest.raises(SchemaRefusal, match="canonical form"):
        FederatedFlow.from_bytes(flow.canonical.replace(b'":', b'": ', 1))


@pytest.mark.parametrize("part", ["epsilon", "event", "delta", "plan", "reference"])
def test_a_receipt_that_claims_another_price_is_refused(flow, part):
    wrong = {
        "epsilon": lambda: replace(flow, epsilon=flow.epsilon / 2),
        "event": lambda: replace(flow, event={**flow.event, "steps": 1}),
        "delta": lambda: replace(flow, delta=1e-3),
        "plan": lambda: replace(flow, plan_hash="3" * 64),
        "reference": lambda: replace(flow, reference={"*": {"age": (50.0, 1.0)}}),
    }[part]()
    with pytest.raises(ReceiptRefusal):
        wrong.require_true(PLAN)


def test_a_flow_of_other_columns_is_refused(flow):
    other = Dictionary(name="mini", version=2, columns=PLAN.dictionary.columns)
    with pytest.raises(PlanChanged, match="the plan's own dictionary"):
        federated_flow(flow, Encoder(dictionary=other), "north")


def test_published_figures_of_a_site_shift_its_start_and_travel_with_the_flow(tmp_path):
    plan = made(
        replace(FEDERATED, rounds=1, reference={"north": {"age": Reference(mean=30.0, sd=5.0)}}),
        posture="public",
        reference={"age": Reference(mean=60.0, sd=10.0), "died": Reference(mean=0.1)},
    )
    ages = {site: float(start_of(plan, ENCODER, site).forward(np.zeros((1, 3)))[0, 0]) for site in ("north", "south")}
    assert ages["north"] < ages["south"]
    flow = FederatedFlow.from_bytes(trained(tmp_path, plan).canonical)
    flow.require_true(plan)
    assert flow.references("north") == {"age": Reference(mean=30.0, sd=5.0), "died": Reference(mean=0.1)}
    assert flow.references("south")["age"] == Reference(mean=60.0, sd=10.0)
    x = records(20)
    u = start_of(plan, ENCODER, "north").inverse(x)
    np.testing.assert_allclose(federated_flow(flow, ENCODER, "north").second.inverse(x), u, atol=1e-12)


def test_packing_keeps_every_weight_that_is_no_masked_one():
    for shape in (SHAPE, Shape(d=1, flows=3, hidden=2, layers=2), Shape(d=7, flows=1, hidden=5, layers=3)):
        values = np.random.default_rng(1).standard_normal(shape.weights)
        assert np.array_equal(pack(unpack(values, shape), shape), values)
    with pytest.raises(SchemaRefusal, match="at most 360000 weights"):
        Shape(d=5000, flows=20, hidden=1024, layers=4)
    with pytest.raises(SchemaRefusal):
        from_text("AAAA")


# -- the plan -----------------------------------------------------------------------------------------------------
def test_a_plan_with_federated_survives_being_written_down_and_one_without_keeps_its_hash():
    plan = made(replace(FEDERATED, reference={"north": {"age": Reference(mean=50.0, sd=9.0)}}))
    plan = StudyPlan.from_canonical(plan.to_canonical())
    assert StudyPlan.from_bytes(plan.canonical) == plan
    assert plan.federated.reference["north"]["age"].sd == 9.0
    assert not {"federated", "flow"} & set(made(None).to_canonical())


def test_the_example_of_the_page_is_a_plan():
    page = (Path(__file__).parents[3] / "docs" / "federated.md").read_text(encoding="utf-8")
    given = tomllib.loads(page.split("```toml")[1].split("```")[0])
    plan = StudyPlan.from_canonical({**made(None).to_canonical(), **given})
    assert plan.federated.event.steps == 200
    assert plan.federated.reference["north"]["age"] == Reference(mean=54.0, sd=6.0)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rounds": 0}, "federated.rounds must be in 1..10000"),
        ({"rounds": True}, "federated.rounds must be in"),
        ({"rounds": 10_000, "local_steps": 11}, "at most 100000"),
        ({"rate": 0.0}, r"federated.rate must be in \(0, 1\]"),
        ({"noise_multiplier": 0.0}, "must be positive"),
        ({"noise_multiplier": 101.0}, "at most 100"),
        ({"floor": math.inf}, "must be positive"),
        ({"strategy": "krum"}, "'fedavg' or 'fedadam'"),
        ({"quorum": 0}, "federated.quorum"),
        ({"reference": {"a/b": {}}}, "sites by their ids"),
        ({"reference": {"north": {"weight": Reference(mean=1.0, sd=1.0)}}}, "columns of the dictionary"),
        ({"reference": {"north": {"age": Reference(mean=1.0, sd=1.0)}}}, "federated.reference.north.age.mean"),
    ],
)
def test_an_impossible_federated_is_refused_with_the_reason(changed, says):
    with pytest.raises(PlanRefusal, match=says):
        made(replace(FEDERATED, **changed))


def test_a_flow_that_no_round_can_carry_is_refused_in_the_plan():
    from shared.plans.federated import MOST_WEIGHTS
    from shared.wire.message_limits import ROUND_CAP
    from shared.wire.rounds import pack

    with pytest.raises(SchemaRefusal, match="smaller training"):
        replace(made(), training=Training(flows=20, hidden=1024, layers=4))
    # The largest flow fits into one message, as weights and as the finished document with room for its sites.
    largest = np.zeros(MOST_WEIGHTS)
    assert len(pack(largest, {"n": 1, "steps": 1})) * 4 // 3 + (1 << 18) <= ROUND_CAP


def test_a_plan_names_a_trained_flow_by_its_digest_under_posture_private_and_in_the_place_of_private():
    name = "federated:" + "a" * 64
    assert made(None, posture="private", flow=name).flow == name
    for changed, says in (
        ({"flow": name}, "posture 'private' only"),
        ({"flow": "federated:abc", "posture": "private"}, "the digest of a trained flow"),
        ({"posture": "private"}, r"\[private\] must be given"),
        ({"training": Training(family="spline")}, "affine"),
    ):
        with pytest.raises(PlanRefusal, match=says):
            made(FEDERATED if "training" in changed else None, **changed)


# -- the contract with Flower -------------------------------------------------------------------------------------
def test_flower_is_one_of_the_versions_that_this_was_run_with():
    """Both ends of the range have passed this file, test_federating, test_site_federate and test_flower_runtime."""
    assert version("flwr").rpartition(".")[0] in ("1.41", "1.42")
    assert '"flwr>=1.41,<1.43"' in (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")


def test_a_message_made_outside_of_flower_s_runtime_is_what_the_runtime_would_have_made():
    """All that is used beyond Flower's public interface: the metadata argument of a message."""
    flower.prepare()
    from flwr.app import Error, Message, RecordDict

    with pytest.raises(RuntimeError):  # else `addressed` would not be needed any more
        Message(RecordDict(), dst_node_id=7, message_type="train")
    message = flower.addressed(RecordDict(), message_type="train", source=3, target=7, name="m9", group="2", ttl=60.0)
    seen = message.metadata
    assert (seen.run_id, seen.src_node_id, seen.dst_node_id, seen.message_id) == (0, 3, 7, "m9")
    assert (seen.group_id, seen.ttl, seen.message_type, seen.reply_to_message_id) == ("2", 60.0, "train", "")
    answer = Message(RecordDict(), reply_to=message)
    assert (answer.metadata.src_node_id, answer.metadata.dst_node_id) == (7, 3)
    assert answer.metadata.reply_to_message_id == "m9"
    error = flower.addressed(Error(code=1, reason="x"), message_type="train", source=7, target=3)
    assert error.has_error()
    assert not error.has_content()


def test_what_the_strategies_take_from_flower_s_is_still_there():
    flower.prepare()
    from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

    from coordinator.training.strategies import STRATEGIES

    adam = FedAdam(eta=0.1, tau=0.2)
    assert (adam.eta, adam.tau, adam.m_t, adam.v_t, adam.beta_1, adam.beta_2) == (0.1, 0.2, None, None, 0.9, 0.99)
    kept = STRATEGIES["fedadam"]
    order = [kind.__name__ for kind in kept.__mro__]
    assert order[:6] == ["FedAdamStrategy", "Resumable", "FedAdam", "FedOpt", "Checked", "FedAvg"]
    assert issubclass(STRATEGIES["fedavg"], FedAvg)
    assert issubclass(FedAvg, Strategy)


def test_flower_reports_to_nobody_and_says_only_what_is_wrong():
    flower.prepare()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert logging.getLogger("flwr").level == logging.WARNING
