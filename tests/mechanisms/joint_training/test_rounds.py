"""Rounds of a training that the sites run together: what is asked, what is answered, and that each is said once.

Letter boxes, door and ledger are the real ones, over mutual TLS on loopback; what trains is not needed here.
"""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pytest
from stage.both_sides.service import LEAD, Hub
from stage.coordinator_side.collect import plan
from stage.hospital_side.ledger import DELTA, DIGEST, Anchored, acknowledge, reserve

from coordinator.services.collect.round_queue import RoundQueue
from coordinator.services.membership import Members
from shared.base.canonical import canonical_json, sha256_hex
from shared.base.chain import GENESIS
from shared.base.keys import SigningKey
from shared.errors import (
    BudgetRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    PausedRefusal,
    ReplayRefusal,
    RoleRefusal,
    RoundsRefusal,
    SchemaRefusal,
    SignatureRefusal,
    StateRefusal,
    TooLarge,
    TrainingRefusal,
)
from shared.membership.key_changes import KeyChange
from shared.privacy import accountant as privacy
from shared.wire.message_limits import ROUND_CAP
from shared.wire.rounds import Answered, RoundOrder, node_id, open_answer, open_order, pack, unpack
from shared.wire.site_messages import RoundAnswer
from site_agent.ledger.book import Ledger
from site_agent.show import verifier

__all__ = ["plan"]  # the fixture
WEIGHTS = np.linspace(-1, 1, 50)
MINE, OTHER = pack(WEIGHTS, {"n": 60, "steps": 2}), pack(2 * WEIGHTS, {"n": 60, "steps": 2})
TRAINING = privacy.SubsampledGaussian(rate=0.1, noise_multiplier=1.2, steps=40)


# -- what travels ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_weights_come_back_as_they_were_sent(kind):
    weights, numbers = unpack(pack(WEIGHTS.astype(kind), {"steps": 4, "rate": 0.5}))
    assert weights.dtype == kind
    assert (weights == WEIGHTS.astype(kind)).all()
    assert numbers == {"steps": 4, "rate": 0.5}


def described(**changes) -> bytes:
    header = {"dtype": "<f8", "count": 2, "numbers": {}} | changes
    return b"tributary-weights/1\n" + canonical_json(header) + b"\n" + bytes(16)


@pytest.mark.fault("F11", offered=1)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04]",
        described()[:-1],
        described(count=10 << 30),  # ten billion numbers, in 16 bytes
        described(count=-1),
        described(count=2.0),
        described(dtype="|O"),
        described(code="import os"),
        described(numbers={"steps": "4"}),
        described(numbers={"../steps": 4}),
        described(numbers={"n": 2**53}),
        described().replace(b'"numbers":{}', b'"numbers":{"n":1' + b"0" * 400 + b"}"),  # larger than any double
        described().replace(b'"numbers":{}', b'"numbers":{"n":1e999}'),
        described().replace(b'"numbers":{}', b'"numbers":{"n":' + b"[" * 2000 + b"]" * 2000 + b"}"),
        b"tributary-weights/1\n" + b" " * 5000 + b"\n",
    ],
)
def test_what_is_not_the_weights_that_it_claims_is_refused_before_room_is_made(content):
    with pytest.raises(SchemaRefusal):
        unpack(content)


def test_more_weights_than_a_message_holds_are_refused_on_both_sides():
    with pytest.raises(TooLarge):
        pack(np.zeros(ROUND_CAP // 8), {})
    with pytest.raises(TooLarge):
        unpack(bytes(ROUND_CAP + 1))
    with pytest.raises(TooLarge):
        asked(content_bytes=10 << 30)


def test_a_site_never_sends_a_weight_that_is_not_a_number():
    with pytest.raises(TrainingRefusal, match="finite"):
        pack(np.array([1.0, np.nan]), {})


def asked(content: bytes = b"w", **changes) -> RoundOrder:
    given = {"study": "heart", "plan_hash": "a" * 64, "kind": "train", "round": 1}
    given |= {"content_sha256": sha256_hex(content), "content_bytes": len(content)}
    return RoundOrder(**{**given, **changes})


def test_a_round_is_the_pinned_coordinators_and_names_its_weights():
    key = SigningKey.generate()
    envelope = asked().sign(key).to_bytes()
    assert open_order(envelope, b"w", key.public) == asked()
    with pytest.raises(IntegrityRefusal):
        open_order(envelope, b"v", key.public)
    with pytest.raises(SignatureRefusal):
        open_order(envelope, b"w", LEAD.public)
    with pytest.raises(SignatureRefusal):  # an answer is no question
        open_answer(envelope, b"w", key.public)


# -- the letter boxes, over the wire ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def service(tmp_path_factory, plan):
    hub = Hub(tmp_path_factory.mktemp("rounds") / "hub", plan, "north", "south", "west")
    with hub.serve():
        yield hub
    hub.store.close()


class Training:
    """One training at a coordinator, under a plan hash of its own."""

    made = 0

    def __init__(self, hub: Hub) -> None:
        Training.made += 1
        self.hub, self.boxes = hub, RoundQueue(hub.store)
        self.plan_hash = sha256_hex(str(Training.made).encode())

    def ask(
        self, number: int = 1, content: bytes = b"weights", kind: str = "train", sites=("north", "south")
    ) -> RoundOrder:
        said = asked(content, study=self.hub.plan.study, plan_hash=self.plan_hash, round=number, kind=kind)
        self.boxes.ask(said, content, sites, self.hub.authority.witness)
        return said

    def answer(self, said: RoundOrder, content: bytes = MINE, site: str = "north", **changes):
        given = {"study": said.study, "plan_hash": said.plan_hash, "site": site, "round": said.round}
        given |= {"asked": said.digest, "content_sha256": sha256_hex(content), "content_bytes": len(content)}
        return Answered(**{**given, **changes}).sign(self.hub.sites[site].release)

    def send(self, envelope, content: bytes = MINE, site: str = "north"):
        with self.hub.egress(site, attempts=1) as egress:
            return egress.answer_round(envelope, content, self.hub.sites[site].release.public)

    def next(self, site: str = "north"):
        with self.hub.egress(site) as egress:
            return egress.next_round(self.hub.plan.study)


@pytest.fixture
def training(service):
    return Training(service)


def test_a_round_goes_out_comes_back_once_and_the_flow_reaches_every_site(training):
    said = training.ask()
    assert training.next() == training.next("south") == (said, b"weights")
    assert training.next("west") is None  # not asked
    receipt = training.send(training.answer(said))
    assert training.send(training.answer(said)) == receipt  # a lost receipt: the same bytes again
    assert training.next() is None
    assert training.boxes.progress(said.study).waiting == ("south",)
    [(site, answer)] = training.boxes.answers(said.study, said.plan_hash, 1).items()
    assert (site, answer.content, answer.said.site) == ("north", MINE, "north")
    done = training.ask(1, b"flow", "finished", sites=())
    assert {training.next(site) for site in ("north", "south", "west")} == {(done, b"flow")}
    assert training.boxes.progress(said.study).finished == sha256_hex(b"flow")


def test_a_finished_flow_is_had_by_its_name_also_while_another_training_asks(training, service):
    trained = b"a flow of its own"
    training.ask(1, trained, "finished", sites=())
    second = Training(service)
    said = second.ask()
    assert second.next() == (said, b"weights")
    with service.egress("west") as egress:  # which joined later, or has lost its file
        found, content = egress.next_round(said.study, sha256_hex(trained))
        assert (found.kind, found.plan_hash, content) == ("finished", training.plan_hash, trained)
        assert egress.next_round(said.study, sha256_hex(b"another")) is None
        assert egress.next_round(said.study) is None


def test_a_site_that_has_no_answer_says_by_which_code(training):
    said = training.ask()
    training.send(training.answer(said, b"", code="E_STATE"), b"")
    assert training.boxes.progress(said.study).answered == {"north": "E_STATE"}
    with pytest.raises(ReplayRefusal, match="once"):  # it cannot think better of it
        training.send(training.answer(said))


def test_an_answer_is_the_same_under_the_key_that_followed_the_one_it_was_sent_with(service):
    training = Training(service)
    said = training.ask(sites=("west",))
    receipt = training.send(training.answer(said, site="west"), site="west")
    keys, new = service.sites["west"], SigningKey.generate()
    change = KeyChange(
        number=1, previous=GENESIS, day="2026-05-01", coordinator=service.plan.coordinator, site="west", seq=1,
        head="ab" * 32, role="release", action="rotate", name="", old=keys.release.public.hex, new=new.public.hex,
    )  # fmt: skip
    signed = change.signed([keys.release, new, keys.steward])
    Members(service.store, service.plan.coordinator).change_key("west", signed, dt.date(2026, 5, 1))
    with pytest.raises(SignatureRefusal):
        training.send(training.answer(said, site="west"), site="west")
    keys.release = new
    assert training.send(training.answer(said, site="west"), site="west") == receipt, "the receipt was lost"
    with pytest.raises(ReplayRefusal, match="once"):
        training.send(training.answer(said, OTHER, site="west"), OTHER, site="west")
    assert training.boxes.answers(said.study, said.plan_hash, 1)["west"].content == MINE
    again = Training(service)
    unsent = again.ask(sites=("west",))
    assert again.send(again.answer(unsent, site="west"), site="west"), "sealed before the change, sent after it"


@pytest.mark.fault("F8", offered=1)
def test_other_bytes_for_an_answered_round_are_a_replay(training):
    said = training.ask()
    training.send(training.answer(said))
    with pytest.raises(ReplayRefusal, match="once"):
        training.send(training.answer(said, OTHER), OTHER)
    [answer] = training.boxes.answers(said.study, said.plan_hash, 1).values()
    assert answer.content == MINE


@pytest.mark.fault("F8", offered=1)
def test_an_answer_is_worth_nothing_elsewhere(training, service):
    first = training.ask()
    early = training.answer(first)
    training.send(early)
    second = training.ask(2, b"more weights")
    for envelope, refusal in (
        (training.answer(second, asked=first.digest), ReplayRefusal),  # of the weights of another round
        (training.answer(second, plan_hash="f" * 64), ReplayRefusal),
        (training.answer(second, round=3), RoundsRefusal),
        (training.answer(second, site="south"), SignatureRefusal),
    ):
        with pytest.raises(refusal):
            training.send(envelope, site="north")
    with service.client("south") as client, pytest.raises(SignatureRefusal):  # another site's envelope
        client.call("UploadRound", RoundAnswer(envelope=early.to_bytes(), content=MINE), timeout=60.0)
    with pytest.raises(RoleRefusal):
        training.send(training.answer(second, site="west"), site="west")
    with pytest.raises(StateRefusal, match="next"):  # the round it slept through
        training.send(training.answer(first, site="south"), site="south")
    assert training.boxes.progress(second.study).waiting == ("north", "south")


def test_a_round_is_asked_once_with_one_content(training):
    said = training.ask()
    assert training.ask() == said  # whoever runs it was killed, and asks again
    with pytest.raises(ReplayRefusal, match="asked once"):
        training.ask(content=b"other")
    assert training.next() == (said, b"weights")
    # Sites come and go: one that has joined since is asked the same, and nobody loses a box.
    assert training.next("west") is None
    training.ask(sites=("north", "west"))
    assert training.next("west") == (said, b"weights")
    assert training.boxes.progress(said.study).waiting == ("north", "south", "west")


def test_an_answer_stays_that_of_the_key_it_came_under_and_a_damaged_one_hides_no_other(training, service):
    import sqlalchemy as sa

    said = training.ask()
    for site in ("north", "south"):
        training.send(training.answer(said, site=site), site=site)
    row = f"site = '{{}}' AND asked = (SELECT number FROM round_asked WHERE plan_hash = '{said.plan_hash}')"
    service.store.write(
        lambda c: c.execute(sa.text(f"UPDATE round_of SET content = X'78' WHERE {row.format('south')}"))
    )
    found = training.boxes.answers(said.study, said.plan_hash, 1)
    assert found["north"].content == MINE
    assert isinstance(found["south"], IntegrityRefusal)
    assert set(training.boxes.answers(said.study, said.plan_hash, 1, among=["south"])) == {"south"}
    other = SigningKey.generate().public.hex  # a site that has enrolled anew signs with another key from then on
    mine = service.sites["north"].release.public.hex
    service.store.write(
        lambda c: c.execute(
            sa.text(f"UPDATE round_of SET key = '{other}' WHERE key = '{mine}' AND {row.format('north')}")
        )
    )
    assert isinstance(training.boxes.answers(said.study, said.plan_hash, 1)["north"], SignatureRefusal)


@pytest.mark.fault("F11", offered=1)
def test_an_answer_of_ten_gigabytes_does_not_get_through_the_door(training, service):
    said = training.ask()
    with pytest.raises(TooLarge):
        training.answer(said, content_bytes=10 << 30)
    body = json.loads(training.answer(said).payload) | {"content_bytes": 10 << 30}
    from shared.base.keys import Envelope
    from shared.wire.rounds import ANSWER_TYPE

    forged = Envelope.sign(ANSWER_TYPE, canonical_json(body), [service.sites["north"].release])
    with service.client("north") as client:
        with pytest.raises(TooLarge):
            client.call("UploadRound", RoundAnswer(envelope=forged.to_bytes(), content=b"x"), timeout=60.0)
        huge = RoundAnswer(envelope=forged.to_bytes(), content=b"x")
        object.__setattr__(huge, "content", bytes(6 << 20))
        with pytest.raises(TooLarge):
            client.call("UploadRound", huge, timeout=60.0)
    assert training.boxes.progress(said.study).answered == {}


def test_what_cannot_be_read_is_refused_at_the_door_and_leaves_the_box_open(training):
    said = training.ask()
    for content in (b"mine", MINE.replace(b'"n":60', b'"n":1' + b"0" * 400)):
        with pytest.raises(SchemaRefusal):
            training.send(training.answer(said, content), content)
    assert training.boxes.progress(said.study).answered == {}
    training.send(training.answer(said))


def test_a_paused_site_answers_nothing(training, service):
    said = training.ask()
    with service.egress("north", paused=lambda: True) as egress, pytest.raises(PausedRefusal):
        egress.answer_round(training.answer(said), MINE, service.sites["north"].release.public)
    assert training.boxes.progress(said.study).answered == {}


def test_an_older_acknowledgement_is_none_of_this_head(service):
    """Genuine, and worth nothing: with it nobody would have seen the entry before the noise that follows it."""
    with service.egress("west") as egress:
        first = egress.anchor(service.anchor("west", 3))
        ask = egress._ask
        egress._ask = lambda method, request: first if method == "Anchor" else ask(method, request)
        assert egress.anchor(service.anchor("west", 3)) == first
        with pytest.raises(IntegrityRefusal, match="very head"):
            egress.anchor(service.anchor("west", 5))


def test_flowers_number_of_a_site_is_its_keys(service):
    keys = [keys.release.public for keys in service.sites.values()]
    numbers = [node_id(key) for key in keys]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 << 63 for number in numbers)
    assert numbers == [node_id(key) for key in keys]


# -- the ledger -------------------------------------------------------------------------------------------------------
@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "ledger.db", SigningKey.generate(), site="north")


def charged(ledger, rounds: int = 4, cap: float = 100.0, **other):
    return reserve(ledger, 0, event=TRAINING, rounds=rounds, cap=cap, release_id="training", **other)


def begun(ledger, persons=("ann", "bob")):
    hold = ledger.mark_anchored(charged(ledger), acknowledge(ledger))
    return ledger.start_training(hold, persons, space="file", snapshot="s" * 64)


def test_the_whole_training_is_charged_before_its_first_round(ledger):
    charged(ledger)
    whole = ledger.study_total("heart", DELTA)
    assert whole.epsilon >= privacy.epsilon(TRAINING, DELTA) > 0
    hold = begun(ledger)
    for number in (1, 2, 3, 4):
        ledger.begin_round(hold, number, DIGEST)
        ledger.witness_round(hold, number, acknowledge(ledger))
        ledger.seal_round(hold, number, DIGEST)
    assert ledger.anchored() == len(ledger.entries()) - 2  # a backup lacks what came since, and no round before it
    assert len(json.loads(ledger.anchor_payload())["links"]) == 2
    ledger.end_training(hold, "f" * 64)
    assert ledger.study_total("heart", DELTA).epsilon == whole.epsilon
    assert ledger.verify() == len(ledger.entries())


def test_a_round_is_written_without_folding_all_rounds_before_it_and_verify_folds_all(ledger, monkeypatch):
    from site_agent.ledger import state as module

    hold = begun(ledger)
    seen: list[int] = []
    real = module.fold
    monkeypatch.setattr(module, "fold", lambda holds, entry: (seen.append(entry.seq), real(holds, entry)))
    for number in (1, 2, 3, 4):
        seen.clear()
        ledger.begin_round(hold, number, DIGEST)
        ledger.witness_round(hold, number, acknowledge(ledger))
        ledger.seal_round(hold, number, DIGEST)
        assert len(seen) <= 2 * 4, seen  # each entry when it is written, and once when it is read
    seen.clear()
    assert ledger.verify() == 16
    assert seen[:16] == [*range(1, 17)]
    # What is remembered is of that very chain: another ledger of as many entries is folded on its own.
    seen.clear()
    other = Ledger.create(ledger.path.parent / "other" / "ledger.db", ledger.signer, site="north")
    begun(other)
    assert {1, 2, 3, 4} <= set(seen)
    assert other.holds()[0].begun == {}


def test_a_training_beyond_the_cap_is_refused_whole(ledger):
    with pytest.raises(BudgetRefusal):
        charged(ledger, cap=0.9 * privacy.epsilon(TRAINING, DELTA))
    assert ledger.holds() == []


def test_no_round_goes_beyond_the_charge_or_back(ledger):
    hold = begun(ledger)
    ledger.begin_round(hold, 3, DIGEST)
    for number in (1, 2, 3):
        with pytest.raises(ReplayRefusal):
            ledger.begin_round(hold, number, "d" * 64)
    for number in (0, 5, 10**6):
        with pytest.raises(RoundsRefusal):
            ledger.begin_round(hold, number, DIGEST)
    ledger.begin_round(hold, 4, DIGEST)


def test_a_round_is_sealed_once_and_only_when_its_beginning_was_witnessed(ledger):
    hold = begun(ledger)
    earlier = acknowledge(ledger)
    with pytest.raises(StateRefusal):
        ledger.seal_round(hold, 1, DIGEST)
    with pytest.raises(StateRefusal):
        ledger.witness_round(hold, 1, earlier)
    ledger.begin_round(hold, 1, "d" * 64)
    with pytest.raises(StateRefusal, match="witnessed"):
        ledger.seal_round(hold, 1, DIGEST)
    with pytest.raises(LedgerRefusal, match="include the beginning of round 1"):
        ledger.witness_round(hold, 1, earlier)  # genuine, and of before
    with pytest.raises(LedgerRefusal, match="agree with the anchor"):
        ledger.witness_round(hold, 1, Anchored(seq=len(ledger.entries()), head="e" * 64))
    ledger.witness_round(hold, 1, acknowledge(ledger))
    assert ledger.recover()[0].begun[1].answer == ""  # killed in between: not burnt, and not drawn again
    with pytest.raises(ReplayRefusal):
        ledger.begin_round(hold, 1, "d" * 64)
    ledger.seal_round(hold, 1, DIGEST)
    with pytest.raises(StateRefusal):
        ledger.seal_round(hold, 1, "c" * 64)
    assert ledger.hold("training").begun[1].answer == DIGEST


def test_a_training_is_reserved_once_and_needs_a_witness(ledger):
    hold = charged(ledger)
    assert charged(ledger) == hold
    with pytest.raises(StateRefusal, match="anchored"):
        ledger.start_training(hold, ["ann"], space="file", snapshot="s" * 64)
    with pytest.raises(StateRefusal):  # it is no release
        ledger.start_drawing(ledger.mark_anchored(hold, acknowledge(ledger)), ["ann"], space="file")


def test_whoever_trained_may_be_released_and_pays_for_both(ledger):
    begun(ledger, ["ann", "bob"])
    hold = reserve(ledger, 1, touches="new", cap=1000.0)
    waiting = ledger.study_total("heart", DELTA).epsilon
    hold = ledger.mark_anchored(hold, acknowledge(ledger))
    ledger.start_drawing(hold, ["ann", "eve"], space="file")
    total = ledger.study_total("heart", DELTA).epsilon
    both = privacy.epsilon_from_rdp(privacy.rdp([TRAINING, privacy.Gaussian(sigma=4.0, sensitivity=1.0)]), DELTA)
    assert total == pytest.approx(both)
    assert waiting == pytest.approx(both)


def test_a_pause_or_a_person_ends_the_rounds(ledger):
    hold = begun(ledger)
    ledger.pause(name="", reason="stop")
    with pytest.raises(PausedRefusal):
        ledger.begin_round(hold, 1, DIGEST)
    ledger.resume(name="", reason="go on")
    key = SigningKey.generate()
    ledger.withdraw(hold, name="lind", key=key.public, signature=b"s" * 64, reason_code="policy", reason="enough")
    with pytest.raises(StateRefusal):
        ledger.begin_round(hold, 1, DIGEST)
    assert ledger.study_total("heart", DELTA).epsilon >= privacy.epsilon(TRAINING, DELTA)


def test_a_copy_of_the_ledger_cannot_begin_the_same_round_unnoticed(ledger):
    """Both copies go on from one head; the salt makes their next entries different, and the coordinator keeps one."""
    hold = begun(ledger)
    heads = []
    before = ledger.path.read_bytes(), ledger.head_path.read_bytes()
    for _ in range(2):
        ledger.path.write_bytes(before[0])
        ledger.head_path.write_bytes(before[1])
        ledger.path.with_name("ledger.db-wal").unlink(missing_ok=True)
        Ledger(ledger.path, ledger.signer, site="north").begin_round(hold, 1, DIGEST)
        heads.append(acknowledge(ledger))
    assert heads[0].seq == heads[1].seq
    assert heads[0].head != heads[1].head
    assert isinstance(heads[0], Anchored)


def test_a_stranger_with_the_record_finds_a_round_too_many_out_of_turn_or_answered_twice(ledger):
    hold = begun(ledger)
    for number in (1, 3):
        ledger.begin_round(hold, number, DIGEST)
        ledger.witness_round(hold, number, acknowledge(ledger))
        ledger.seal_round(hold, number, DIGEST)
    told = [{"seq": one.seq, "kind": one.kind, "body": dict(one.body)} for one in ledger.entries()]
    assert verifier.lives(told) == []

    def more(kind: str, **body) -> list[dict]:
        return [*told, {"seq": len(told) + 1, "kind": kind, "body": {"release_id": "training", **body}}]

    assert verifier.lives(more("round", number=4)) == []
    for number, entry in enumerate(told):  # each round begun, and witnessed at or after that entry
        if entry["kind"] in ("round", "witnessed"):
            early = {**entry, "body": {**entry["body"], "seq": entry["body"].get("seq", 0) - 1}}
            for instead in ([], [early][: entry["kind"] == "witnessed"]):
                with pytest.raises(verifier.Wrong):
                    verifier.lives([*told[:number], *instead, *told[number + 1 :]])
    for wrong in (
        more("round", number=2),
        more("round", number=3),
        more("round", number=5),
        more("answer", number=3),
        more("answer", number=4),
        more("drawing"),
        more("seal", approvals=1),
    ):
        with pytest.raises(verifier.Wrong):
            verifier.lives(wrong)
