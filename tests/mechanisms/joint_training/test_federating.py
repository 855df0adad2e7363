"""A training over the sites' own channel, whole: real service, real ledgers, Flower's strategy and app, real DP-SGD.

Three hospitals of sixty patients and a flow of a few weights: what is tested is who was charged, what left, and that a
fault anywhere ends in a trained flow or in a typed reason, never in a charge too few.
"""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import dataclasses
import json
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from stage.both_sides.service import Hub
from stage.training.shared_flow import (
    DELTA,
    NAMES,
    PERSONS,
    PLAN,
    TODAY,
    WHOLE,
    Hospital,
    ask,
    hub,  # noqa: F401
)

import coordinator.services.collect.round_queue
from coordinator.services.collect.round_queue import RoundQueue
from coordinator.services.collect.service import CollectionService
from coordinator.training import dialled
from coordinator.training.dialled import train
from coordinator.training.dialled_grid import DialledGrid
from shared.base.canonical import sha256_hex
from shared.base.keys import SigningKey
from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    LockedRefusal,
    NetworkRefusal,
    PlanRefusal,
    ReplayRefusal,
    RoundsRefusal,
    SignatureRefusal,
    SmallN,
    StateRefusal,
)
from shared.plans.federated import FederatedFlow
from shared.plans.plan import Floors, StudyPlan
from shared.privacy import accountant as privacy
from shared.privacy.stated import CHARGED_BEFORE
from shared.wire.rounds import Answered, open_order, pack, unpack
from shared.wire.site_messages import RoundAnswer
from site_agent.config import SiteBudget, SiteFloors, TableSource
from site_agent.release import trained_flow
from site_agent.release.sealed_state import read_fit
from site_agent.release.trained_flow import federated_flow
from site_agent.training import rounds


@pytest.fixture
def hospitals(hub):
    return [Hospital(hub, name) for name in NAMES]


def coordinate(hub: Hub, timeout: float = 20.0) -> FederatedFlow:
    return train(home=hub.home, store=hub.store, plan=PLAN, key=hub.authority.witness, timeout=timeout)


def together(hub: Hub, hospitals: list[Hospital], timeout: float = 20.0) -> FederatedFlow:
    threads = [hospital.start() for hospital in hospitals]
    try:
        return coordinate(hub, timeout)
    finally:
        for thread in threads:
            thread.join()


def test_three_hospitals_train_one_flow_and_each_is_charged_once_before_it(hub, hospitals):
    flow = together(hub, hospitals)
    flow.require_true(PLAN)
    assert {site: (said["n"], said["answered"]) for site, said in flow.sites.items()} == dict.fromkeys(NAMES, (60, 3))
    for hospital in hospitals:
        assert hospital.failed is None
        assert hospital.said == [("charged", 0), ("answered", 1), ("answered", 2), ("answered", 3), ("finished", 3)]
        assert hospital.charged >= WHOLE
        assert hospital.hold.state == "trained"
        assert hospital.hold.flow == flow.digest
        assert hospital.hold.persons == 60
        assert hospital.ledger.verify() == len(hospital.ledger.entries())
        assert trained_flow.kept_flow(hospital.home, flow.name).canonical == flow.canonical
        kinds = [entry.kind for entry in hospital.ledger.entries()]
        assert kinds == ["genesis", "reserve", "anchor", "train", *["round", "witnessed", "answer"] * 3, "trained"]
        # What left is what the ledger names, and nothing was sent that it does not.
        sealed = {number: one.answer for number, one in hospital.hold.begun.items()}
        boxes = RoundQueue(hub.store)
        left = {k: boxes.answers(PLAN.study, PLAN.hash, k)[hospital.name].content for k in (1, 2, 3)}
        assert {k: sha256_hex(content) for k, content in left.items()} == sealed
        assert hospital.ledger.holds()[0].begun[3].asked
    # Again is free: the coordinator has its flow, and a site has nothing to do.
    assert coordinate(hub).digest == flow.digest
    before = [len(hospital.ledger.entries()) for hospital in hospitals]
    hospitals[0].take_part(wait=0)
    assert [len(hospital.ledger.entries()) for hospital in hospitals] == before


class Dies(Exception):
    """As if the process had been killed here: nothing after it runs."""


def dying(monkeypatch, hospital: Hospital, place: str, time: int = 1) -> None:
    """Stop one hospital's thread at a failpoint, like a kill: no handler of ours knows the exception."""
    import site_agent.egress
    from site_agent.ledger import chain, drawing, files, state

    seen: list[str] = []

    def reach(name: str) -> None:
        if threading.current_thread() is hospital.thread:
            seen.append(name)
            if name == place and seen.count(name) == time:
                raise Dies(name)

    for module in (rounds, site_agent.egress, chain, drawing, files, state):
        monkeypatch.setattr(module, "reach", reach)


QUICK = {
    "federate.reserved",
    "federate.begun",
    "federate.answer.before_rename",
    "federate.sealed",
    "federate.after_send",
}


@pytest.mark.fault("F1")
@pytest.mark.parametrize(
    ("place", "time", "lost"),
    [
        pytest.param(place, time, lost, marks=() if place in QUICK else pytest.mark.soak)
        for place, time, lost in (
            ("federate.reserved", 1, ()),
            ("federate.anchored", 1, ()),
            ("federate.bound", 1, ()),
            ("federate.begun", 2, (2,)),
            ("federate.anchored_round", 2, (2,)),
            ("federate.witnessed", 2, (2,)),
            ("federate.answer.before_write", 2, (2,)),
            ("federate.answer.before_fsync", 2, (2,)),
            ("federate.answer.before_rename", 2, (2,)),
            ("federate.answer.after_rename", 2, (2,)),
            ("federate.answer.after_fsync", 2, (2,)),
            ("federate.sealed", 2, ()),
            ("federate.before_send", 2, ()),
            ("federate.after_send", 2, ()),
            ("federate.flow.before_write", 1, ()),
            ("federate.flow.before_fsync", 1, ()),
            ("federate.flow.before_rename", 1, ()),
            ("federate.flow.after_rename", 1, ()),
            ("federate.flow.after_fsync", 1, ()),
            ("federate.ended", 1, ()),
        )
    ],
)
def test_a_site_killed_anywhere_answers_with_the_same_bytes_or_not_at_all(
    monkeypatch, hub, hospitals, place, time, lost, tally
):
    victim, *others = hospitals
    threads = [other.start() for other in others]
    runner, flows = running(hub)
    victim.thread = threading.Thread(target=lambda: attempt(victim))
    dying(monkeypatch, victim, place, time)
    victim.thread.start()
    victim.thread.join()
    assert isinstance(victim.failed, Dies), place
    assert victim.charged >= WHOLE  # from the first moment on, whatever becomes of it
    monkeypatch.undo()
    left = answers(hub, victim)
    victim.ledger.recover()
    victim.take_part()
    for thread in (*threads, runner):
        thread.join()
    [flow] = flows
    assert flow.sites[victim.name]["answered"] == 3 - len(lost)
    assert victim.hold.state == "trained"
    assert tuple(k for k, one in victim.hold.begun.items() if not one.answer) == lost
    after = answers(hub, victim)
    assert {k: after[k] for k in left} == left  # nothing that had left was changed
    assert victim.charged == pytest.approx(others[0].charged)
    assert victim.ledger.verify()
    tally(cases=1, sites=3, undercounted=0, second_draws=0, failpoints=[place], failpoints_written=[place])


def attempt(hospital: Hospital) -> None:
    try:
        hospital.take_part()
    except Exception as error:
        hospital.failed = error


def running(hub: Hub, timeout: float = 20.0) -> tuple[threading.Thread, list[FederatedFlow]]:
    """The coordinator's part in a thread; run again where too few answered in time, as a study lead would."""
    flows: list[FederatedFlow] = []

    def run() -> None:
        for _ in range(10):
            try:
                flows.append(coordinate(hub, timeout))
                return
            except NetworkRefusal:
                continue

    thread = threading.Thread(target=run)
    thread.start()
    return thread, flows


def answers(hub: Hub, hospital: Hospital) -> dict[int, bytes]:
    boxes = RoundQueue(hub.store)
    given = {k: boxes.answers(PLAN.study, PLAN.hash, k).get(hospital.name) for k in (1, 2, 3)}
    return {k: answer.content for k, answer in given.items() if answer is not None}


@pytest.mark.fault("F2")
@pytest.mark.parametrize(
    "place", ["rounds.before_ask", pytest.param("rounds.after_ask", marks=pytest.mark.soak)], ids=str
)
def test_a_coordinator_killed_in_a_round_goes_on_with_it_and_nobody_pays_twice(monkeypatch, hub, hospitals, place):
    threads = [hospital.start() for hospital in hospitals]
    seen: list[str] = []

    def reach(name: str) -> None:
        seen.append(name)
        if name == place and seen.count(name) == 2:
            raise Dies(name)

    monkeypatch.setattr(coordinator.services.collect.round_queue, "reach", reach)
    with pytest.raises(Dies):
        coordinate(hub)
    monkeypatch.undo()
    flow = coordinate(hub)
    for thread in threads:
        thread.join()
    assert {said["answered"] for said in flow.sites.values()} == {3}
    for hospital in hospitals:
        assert [round_ for what, round_ in hospital.said if what == "answered"] == [1, 2, 3]
        assert len(hospital.ledger.holds()) == 1


def test_a_training_goes_on_with_the_sites_that_are_there_when_it_does(hub, hospitals):
    """Too few came to round 1; one site has joined when it is run again, and is asked the open round as well."""
    with pytest.raises(NetworkRefusal, match="at least 2 of 3"):
        coordinate(hub, 0.1)
    hub.join("east")
    with dialled.alone(hub.home / "federated" / PLAN.study / PLAN.hash[:16]), pytest.raises(LockedRefusal):
        coordinate(hub)
    flow = together(hub, [hospitals[0], Hospital(hub, "east")], 4.0)
    assert {site: said["answered"] for site, said in flow.sites.items() if said["answered"]} == {"north": 3, "east": 3}


def test_the_quorum_is_waited_for_and_a_minute_for_others_and_nobody_who_never_comes(monkeypatch, hub):
    """Of three sites one never answers: from the fourth round on it costs no time. What was read is not read again."""
    from shared.wire import flower

    flower.prepare()
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    boxes, joined, now = RoundQueue(hub.store), {site.site: site for site in hub.store.sites()}, [0.0]
    nodes = dialled.nodes(hub.store, PLAN.study)
    read: list[set[str]] = []
    answered = boxes.answers
    monkeypatch.setattr(
        boxes, "answers", lambda *given, among: read.append(set(among)) or answered(*given, among=among)
    )

    def sleep(seconds: float) -> None:
        """Two seconds go by, and two sites answer what is open."""
        now[0] += 10 * seconds
        for site in NAMES[:2]:
            asked = boxes.next(joined[site], PLAN.study)
            if asked.envelope:
                said = open_order(asked.envelope, asked.content, hub.authority.witness.public)
                content = pack(np.full(3, len(site)), {"n": 60, "steps": 2})
                answer = Answered(
                    study=PLAN.study,
                    plan_hash=PLAN.hash,
                    site=site,
                    round=said.round,
                    asked=said.digest,
                    content_sha256=sha256_hex(content),
                    content_bytes=len(content),
                )
                envelope = answer.sign(hub.sites[site].release).to_bytes()
                boxes.answer(joined[site], RoundAnswer(envelope=envelope, content=content))

    by_node = {node: site for site, node in nodes.items()}
    key = hub.authority.witness
    grid = DialledGrid(boxes, PLAN, by_node, key, sleep=sleep, clock=lambda: now[0])
    lengths = []
    for number in (1, 2, 3, 4):
        arrays = ArrayRecord({flower.WEIGHTS: flower.vector(np.full(3, float(number)))})
        config = ConfigRecord({"plan": PLAN.hash, "server-round": number})
        content = RecordDict({flower.ARRAYS: arrays, flower.CONFIG: config})
        began, asked = now[0], [grid.create_message(content, "train", node, str(number)) for node in by_node]
        assert len(list(grid.send_and_receive(asked, timeout=3600.0))) == 2
        lengths.append(now[0] - began)
    assert all(60 < length < 70 for length in lengths[:3]), lengths
    assert lengths[3] < 5
    assert read.count(set(NAMES)) == 8  # before and after the answers of each round
    assert {frozenset(among) for among in read} == {frozenset(NAMES), frozenset({"west"})}


class Through:
    """A hospital's door, to be told otherwise in one thing."""

    def __init__(self, egress, change=None) -> None:
        self.egress, self.change = egress, change

    def __getattr__(self, name: str):
        return getattr(self.egress, name)


class Lying(Through):
    """A door of the hospital's own making: what leaves is changed first."""

    def answer_round(self, envelope, content, key):
        content = self.change(content)
        said = dataclasses.replace(
            Answered(**json.loads(envelope.payload)),
            content_sha256=sha256_hex(content),
            content_bytes=len(content),
        )
        return self.egress.answer_round(said.sign(self.key), content, self.key.public)


@pytest.mark.fault("F20", offered=2)
def test_a_lie_is_refused_by_name_and_the_others_train_on(hub, hospitals):
    """Not a number, far too many numbers, and an old answer signed anew: each costs the site that sent it."""
    liar, *others = hospitals
    first: list[bytes] = []

    def change(content: bytes) -> bytes:
        weights, numbers = unpack(content)
        first.append(content)
        if len(first) == 1:
            spoilt = weights.tobytes()[:-8] + np.array([np.nan]).tobytes()
            return content[: -weights.nbytes] + spoilt
        return pack(np.zeros(300_000), numbers) if len(first) == 2 else first[2]

    def door(egress):
        lying = Lying(egress, change)
        lying.key = liar.keys.release
        return lying

    threads = [liar.start(door=door), *(other.start() for other in others)]
    flow = coordinate(hub)
    for thread in threads:
        thread.join()
    assert flow.sites[liar.name]["answered"] == 1
    assert flow.sites[liar.name]["refused"] == ["E_SCHEMA", "E_TOO_LARGE"]
    assert {flow.sites[other.name]["answered"] for other in others} == {3}
    assert np.isfinite(flow.weights).all()
    assert liar.charged >= WHOLE


def test_an_answer_sent_before_is_no_answer_to_the_next_round(hub, hospitals):
    liar, *others = hospitals
    first: list[bytes] = []

    def door(egress):
        lying = Lying(egress, lambda content: first.append(content) or first[0])
        lying.key = liar.keys.release
        return lying

    threads = [liar.start(door=door), *(other.start() for other in others)]
    flow = coordinate(hub)
    for thread in threads:
        thread.join()
    assert (flow.sites[liar.name]["answered"], flow.sites[liar.name]["refused"]) == (1, ["E_REPLAY"])


def test_a_site_without_a_network_for_two_rounds_is_back_for_the_third(hub, hospitals):
    cut, *others = hospitals
    boxes = RoundQueue(hub.store)

    class Cut(Lying):
        def _up(self) -> None:
            found = boxes.progress(PLAN.study)
            if found is None or found.round < 3:
                raise NetworkRefusal("the coordinator must be reachable", given="no connection")

        def next_round(self, study):
            self._up()
            return self.egress.next_round(study)

        def anchor(self, envelope):
            self._up()
            return self.egress.anchor(envelope)

        def answer_round(self, envelope, content, key):
            self._up()
            return self.egress.answer_round(envelope, content, key)

    threads = [cut.start(door=lambda egress: Cut(egress, None), wait=60.0), *(one.start(wait=60.0) for one in others)]
    runner, flows = running(hub, timeout=4.0)
    for thread in (*threads, runner):
        thread.join()
    [flow] = flows
    assert flow.sites[cut.name]["answered"] <= 1
    assert cut.hold.state == "trained"
    assert min(flow.sites[other.name]["answered"] for other in others) >= 2
    assert [hospital.charged for hospital in hospitals] == pytest.approx([cut.charged] * 3)


# -- what a site refuses ------------------------------------------------------------------------------------------


@pytest.mark.fault("F20", offered=1)
def test_a_round_beyond_the_charge_is_refused_before_anything_is_charged(hub, hospitals):
    ask(hub, 4)
    with pytest.raises(RoundsRefusal, match="at most the 3 rounds"):
        hospitals[0].take_part(wait=0)
    assert hospitals[0].ledger.holds() == []


@pytest.mark.fault("F20", offered=1)
def test_a_round_that_was_answered_is_not_answered_again_to_other_weights(hub, hospitals):
    """A coordinator that begins anew, or wants to hear twice, hears nothing: the second draw is not paid for."""
    [hospital] = hospitals[:1]
    ask(hub, 1)
    hospital.take_part(wait=0)
    import sqlalchemy as sa

    hub.store.write(lambda c: [c.execute(sa.text(f"DELETE FROM {name}")) for name in ("round_of", "round_asked")])
    ask(hub, 1, seed=1)
    before = len(hospital.ledger.entries())
    with pytest.raises(ReplayRefusal, match="asked with before"):
        hospital.take_part(wait=0)
    assert len(hospital.ledger.entries()) == before


@pytest.mark.fault("F20", offered=1)
def test_a_question_that_the_pinned_key_did_not_sign_is_not_answered(monkeypatch, hub, hospitals):
    ask(hub, key=SigningKey.generate())
    with pytest.raises(SignatureRefusal):
        hospitals[0].take_part(wait=0)
    assert hospitals[0].ledger.holds() == []


@pytest.mark.fault("F20", offered=1)
def test_what_the_site_does_not_allow_is_not_charged(hub, hospitals):
    ask(hub)
    [hospital] = hospitals[:1]
    with pytest.raises(PlanRefusal, match="federated"):
        hospital.take_part(dataclasses.replace(PLAN, federated=None), wait=0)
    assert hospital.ledger.holds() == []


def test_a_table_that_has_changed_since_the_first_round_trains_no_further(hub, hospitals):
    [hospital] = hospitals[:1]
    ask(hub, 1)
    hospital.take_part(wait=0)
    hospital.table.write_text(hospital.table.read_text().replace("north-1,", "north-x,"))
    ask(hub, 2)
    with pytest.raises(StateRefusal, match="must not change"):
        hospital.take_part(wait=0)
    assert list(hospital.hold.begun) == [1]


def test_a_site_of_few_persons_takes_no_part_and_keeps_its_reservation(hub, hospitals):
    [hospital] = hospitals[:1]
    hospital.table.write_text("\n".join(hospital.table.read_text().splitlines()[:31]) + "\n")
    ask(hub)
    with pytest.raises(SmallN):
        hospital.take_part(wait=0)
    assert hospital.hold.state == "anchored"
    assert hospital.charged >= WHOLE


def test_a_budget_that_does_not_hold_the_whole_training_holds_none_of_it(hub, hospitals):
    [hospital] = hospitals[:1]
    ask(hub)
    with hub.egress(hospital.name) as egress:
        site = dataclasses.replace(hospital.site(egress), budget=SiteBudget(epsilon=WHOLE / 2, delta=DELTA))
        with pytest.raises(BudgetRefusal):
            rounds.take_part(
                rounds.Participant(
                    plan=PLAN,
                    source=TableSource(path=hospital.table),
                    site=site,
                    door=egress,
                    today=TODAY,
                    locked=nullcontext,
                ),
                home=hospital.home,
            )
    assert hospital.ledger.holds() == []


@pytest.mark.fault("F20", offered=1)
def test_an_old_acknowledgement_begins_no_round(hub, hospitals):
    """Two copies of a home and a coordinator that shows both one receipt: without this, two draws for one charge."""
    [hospital] = hospitals[:1]
    ask(hub)

    class Shows(Through):
        def anchor(self, envelope):
            self.change.append(self.egress.anchor(envelope))
            return self.change[0]

    with pytest.raises(LedgerRefusal, match="include the beginning of round 1"):
        hospital.take_part(wait=0, door=lambda egress: Shows(egress, []))
    assert not hospital.hold.begun[1].witnessed
    assert answers(hub, hospital) == {}
    assert hospital.charged >= WHOLE


def pseudonyms(hospital: Hospital) -> list[str]:
    from site_agent.records import table as records

    table = records.read(TableSource(path=hospital.table), PERSONS, key=hospital.secret)
    return records.row_pseudonyms(table, PERSONS, key=hospital.secret)


def test_whoever_withdraws_trains_no_further_and_no_number_tells_of_it(monkeypatch, hub, hospitals):
    """In the process that has read the table, and in the next one: 60 is said in every round, and fewer train."""
    [hospital] = hospitals[:1]
    used: list[tuple[int, int]] = []
    seen = rounds._Source.records

    def records_of(self):
        found = seen(self)
        used.append((len(found), int(np.isfinite(found).all(axis=1).sum())))
        return found

    monkeypatch.setattr(rounds._Source, "records", records_of)
    people = pseudonyms(hospital)
    ask(hub, 1)
    hospital.take_part(wait=0)
    hospital.ledger.note_persons(PLAN.study, people[:1])
    ask(hub, 2)

    class Later(Through):
        """Two more withdraw while the process that answered round 2 waits for round 3."""

        def next_round(self, study):
            found = self.egress.next_round(study)
            if found is None and len(used) == 2:
                hospital.ledger.note_persons(study, people[:3])
                ask(hub, 3)
                return self.egress.next_round(study)
            return found

    hospital.take_part(wait=0, door=lambda egress: Later(egress))
    assert used == [(60, 60), (60, 59), (60, 57)]
    assert [unpack(content)[1]["n"] for content in answers(hub, hospital).values()] == [60, 60, 60]
    assert hospital.hold.persons == 60


def test_two_people_must_approve_a_plan_whose_rounds_no_person_sees(hub, hospitals):
    [hospital] = hospitals[:1]
    ask(hub)

    def take_part(floors: SiteFloors) -> None:
        with hub.egress(hospital.name) as egress:
            rounds.take_part(
                rounds.Participant(
                    plan=PLAN,
                    source=TableSource(path=hospital.table),
                    site=dataclasses.replace(hospital.site(egress), floors=floors),
                    door=egress,
                    today=TODAY,
                    locked=nullcontext,
                ),
                home=hospital.home,
            )

    noted = {"study": PLAN.study, "version": 1, "plan_hash": PLAN.hash}
    hospital.ledger.approve_plan(**noted, approver="lind")
    hospital.ledger.approve_plan(**noted, approver="lind")
    for floors in (SiteFloors(approvals=2), SiteFloors(author_apart=True)):
        with pytest.raises(ApprovalRefusal, match="2 people"):
            take_part(floors)
    hospital.ledger.revoke_plan(**noted, approver="lind", reason="not yet")
    hospital.ledger.approve_plan(**noted, approver="berg")
    with pytest.raises(ApprovalRefusal, match="1: berg"):
        take_part(SiteFloors(approvals=2))
    assert hospital.ledger.holds() == []
    hospital.ledger.approve_plan(**noted, approver="lind")
    take_part(SiteFloors(approvals=2, author_apart=True))
    assert len(answers(hub, hospital)) == 1


def test_no_answer_leaves_that_the_ledger_does_not_name(hub, hospitals):
    [hospital] = hospitals[:1]
    ask(hub)

    def door(egress):
        egress._rules = dataclasses.replace(egress._rules, sealed=hospital.ledger.sealed_round)
        lying = Lying(egress, lambda content: pack(2 * unpack(content)[0], unpack(content)[1]))
        lying.key = hospital.keys.release
        return lying

    with pytest.raises(IntegrityRefusal, match="ledger names"):
        hospital.take_part(wait=0, door=door)
    assert answers(hub, hospital) == {}
    hospital.take_part(wait=0)
    assert len(answers(hub, hospital)) == 1


def test_a_question_that_is_asked_for_ever_keeps_nobody(hub, hospitals):
    [hospital] = hospitals[:1]
    ask(hub)
    asked: list[object] = []

    class Again(Through):
        def next_round(self, study):
            asked.append(self.egress.next_round(study) or asked[0])
            assert len(asked) < 5
            return asked[-1]

    hospital.take_part(wait=0, door=lambda egress: Again(egress))
    assert hospital.said == [("charged", 0), ("answered", 1), ("sent again", 1)]


# -- afterwards ---------------------------------------------------------------------------------------------------
def test_a_later_plan_releases_through_the_flow_and_its_receipt_names_the_trainings_charge(hub, hospitals):
    from coordinator.answers.site_answers import draws_of
    from shared.errors import PlanChanged, ReceiptRefusal
    from shared.plans.encoding import Encoder
    from shared.releases.receipt import TRAINED, Receipt
    from site_agent.release.pipeline.making import make_release

    victim = hospitals[0]
    victim.ledger.approve_plan(study=PLAN.study, version=1, plan_hash=PLAN.hash, approver="lind")
    flow = together(hub, hospitals)
    later = dataclasses.replace(
        PLAN,
        version=2,
        posture="private",
        federated=None,
        flow=flow.name,
        floors=Floors(membership_auc=1.0, own_row_linkage=1.0),
    )

    def released(hospital: Hospital, plan: StudyPlan):
        source = TableSource(path=hospital.table)
        with hub.egress(hospital.name) as egress:
            return make_release(plan=plan, wave=1, source=source, site=hospital.site(egress), today=TODAY)

    victim.ledger.approve_plan(study=PLAN.study, version=2, plan_hash=later.hash, approver="lind")
    made = released(victim, later)
    charge = made.receipt.trained
    assert set(charge) == set(TRAINED)
    assert (charge["approver"], charge["rounds"], charge["plan_hash"]) == ("lind", 3, PLAN.hash)
    assert (charge["day"], charge["release_id"]) == (victim.ledger.holds()[0].day, victim.ledger.holds()[0].release_id)
    assert charge["epsilon"] == pytest.approx(WHOLE)
    assert made.receipt.conditional_on.startswith("nothing: the flow was trained with noise")
    # The price of the rows is theirs alone; the study's total holds both.
    assert made.receipt.epsilon == pytest.approx(privacy.epsilon(later.release.event(later), DELTA))
    assert victim.ledger.study_total(later.study, DELTA).epsilon > max(made.receipt.epsilon, WHOLE)
    assert (made.receipt.given, made.hold.given) == (CHARGED_BEFORE, CHARGED_BEFORE)
    assert victim.ledger.study_total(later.study, DELTA).given == ""
    assert Receipt.from_bytes(made.receipt.to_bytes()) == made.receipt
    made.receipt.require_true(later)
    forms = ({"epsilon": 0.0}, {"by": "x"}, {"approver": "a b"}, {"rounds": -5}, {"plan_hash": "nonsense"})
    for wrong in ({**charge, **form} for form in forms):
        with pytest.raises(ReceiptRefusal):
            dataclasses.replace(made.receipt, trained=wrong).require_true(later)
    # The coordinator knows the training: what is told of it is held against that, and it must be told.
    service = CollectionService(home=hub.home, store=hub.store, authority=hub.authority)
    service._ingest.require_trained(made.receipt, later)
    lies = ({"epsilon": 1e-12}, {"rounds": 2}, {"plan_hash": "a" * 64}, {"delta": 1e-9})
    for wrong in ({}, *({**charge, **lie} for lie in lies)):
        with pytest.raises(ReceiptRefusal):
            service._ingest.require_trained(dataclasses.replace(made.receipt, trained=wrong), later)
    service._ingest.require_trained(
        dataclasses.replace(made.receipt, trained={}, site="guest"), later
    )  # it took no part
    # Its rows were drawn through a flow of all sites: its error is no part of this site's own variance.
    assert [
        draw.fitted_on
        for draw in draws_of([SimpleNamespace(wave=1, release_id=made.hold.release_id, receipt=made.receipt)], [])
    ] == [None]
    # The sealed flow is the trained one, behind this site's own public start.
    fitted = read_fit(victim.ledger.folder(made.hold), made.hold).flow
    same = federated_flow(flow, Encoder(dictionary=PERSONS), victim.name)
    rows = np.random.default_rng(1).normal(size=(5, 2))
    assert np.allclose(fitted.forward(rows), same.forward(rows))
    # A flow of the same training that is not the one it ended with here is not this charge's.
    for change in ({"weights": np.full(flow.shape.weights, 9.0)}, {"epsilon": 1e-9}):
        forged = dataclasses.replace(flow, **change)
        trained_flow.flow_path(victim.home, forged.digest).write_bytes(forged.canonical)
        before = len(victim.ledger.entries())
        with pytest.raises(PlanChanged, match="ended with"):
            released(victim, dataclasses.replace(later, flow=forged.name))
        assert len(victim.ledger.entries()) == before
    # Another file under that name is another flow, and one that is not there is fetched first.
    other = hospitals[1]
    path = trained_flow.flow_path(other.home, flow.digest)
    path.write_bytes(flow.canonical.replace(b'"rounds":3', b'"rounds":4'))
    with pytest.raises(PlanChanged):
        released(other, later)
    path.unlink()
    with pytest.raises(StateRefusal, match="federate"):
        released(other, later)
    assert len(other.ledger.holds()) == 1  # nothing but the training was charged
    with hub.egress(other.name) as egress:
        assert rounds.fetch(later, egress, other.home)
        assert not rounds.fetch(later, egress, other.home)


# -- processes ----------------------------------------------------------------------------------------------------
@pytest.mark.soak
@pytest.mark.parametrize("place", ["rounds.before_answer", "rounds.after_answer"])
def test_real_processes_killed_with_9_in_the_middle_still_train_one_flow(tmp_path, place):
    """A site, the trainer and the server each die by SIGKILL in a round; started again, they end with one flow."""
    from stage.processes.survival import cohort
    from stage.processes.theatre import Theatre, plan_toml

    text = plan_toml("storm").replace("[budget]", FEDERATED + "\n[budget]", 1)
    stage = Theatre(tmp_path)
    try:
        stage.open(text)
        for k, site in enumerate(("north", "south")):
            table = tmp_path / f"{site}.csv"
            cohort(120).iloc[60 * k : 60 * k + 60].to_csv(table, index=False)
            stage.join(site, table, "storm")

        def dial(site: str, failpoint: str = ""):
            env = {"TRIBUTARY_SITE_HOME": str(stage.home(site))}
            env |= {"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {}
            return stage.start("site_agent.cli", "federate", "storm", "--wait", "2", "--json", env=env)

        def trainer(failpoint: str = ""):
            argv = ("--home", stage.hub, "federate", "run", "storm", "--timeout", "2", "--json")
            return stage.start("coordinator.cli", *argv, env={"TRIBUTARY_FAILPOINT": failpoint} if failpoint else {})

        stage.stop()
        server = stage.serve(f"{place}:4")  # the second answer to round 2
        sites = {"north": dial("north", "federate.sealed:2"), "south": dial("south")}
        lead = trainer("rounds.before_ask:3" if place == "rounds.before_answer" else "rounds.after_ask:3")
        assert sites["north"].wait() == -9
        sites["north"] = dial("north")  # sends the sealed bytes again
        assert server.wait() == -9
        stage.serve()
        assert lead.wait() == -9
        lead = trainer()
        assert lead.wait() == 0, lead.err.read_text()
        for site, command in sites.items():
            assert command.wait() == 0, command.err.read_text()
            kinds = [kind for kind, _ in stage.entries(site)]
            assert kinds.count("reserve") == 1
            assert kinds.count("round") == kinds.count("answer") == 3
            assert kinds[-1] == "trained"
        said = json.loads(lead.out.read_text())
        assert {site: one["answered"] for site, one in said["answered"].items()} == {"north": 3, "south": 3}
    finally:
        stage.close()


FEDERATED = """
[federated]
rounds = 3
local_steps = 2
rate = 0.2
noise_multiplier = 1.0
quorum = 2
"""
