"""Whatever a coordinator puts into a training's question: refused before a file of records is opened."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hurry import soak
from stage.training.shared_flow import NAMES, PLAN, Hospital, ask, hub  # noqa: F401

from coordinator.services.collect.round_queue import RoundQueue
from shared.base.canonical import canonical_json, sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import Refusal
from shared.wire.rounds import ORDER_TYPE, RoundOrder
from shared.wire.site_messages import RoundReply

_watching = threading.local()


def _opened(event: str, arguments: tuple) -> None:
    names = getattr(_watching, "names", None)
    if names is not None and event == "open":
        names.append(str(arguments[0]))


sys.addaudithook(_opened)  # for the rest of the process: it says nothing where nobody watches


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Names of all files that this thread opens."""
    _watching.names = []
    try:
        yield _watching.names
    finally:
        _watching.names = None


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Other bytes: flipped, cut, longer, or with a piece put twice."""
    kind, place = rng.randrange(5), rng.randrange(max(1, len(data)))
    if kind == 0:
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :] if data else b"x"
    if kind == 1:
        return data[:place]
    if kind == 2:
        return data + rng.randbytes(rng.randrange(1, 200))
    if kind == 3:
        return data[:place] + data[max(0, place - 40) : place + 1] + data[place:]
    return rng.randbytes(rng.randrange(300))


def hostile(hub, good: RoundReply) -> dict[str, RoundReply]:  # noqa: F811
    """Questions that are wrong in one thing each, signed by the coordinator's own key where a signature can help."""
    key, said = hub.authority.witness, RoundOrder(**json.loads(Envelope.from_bytes(good.envelope).payload))

    def order(content: bytes = good.content, signer: SigningKey = key, **changes: object) -> RoundReply:
        parts = {"content_sha256": sha256_hex(content), "content_bytes": len(content), **changes}
        body = canonical_json({**json.loads(said.to_bytes()), **parts})  # also what no honest order can hold
        return RoundReply(envelope=Envelope.sign(ORDER_TYPE, body, [signer]).to_bytes(), content=content)

    return {
        "another study": order(study="lungs"),
        "a plan that nobody approved": order(plan_hash="0" * 64),
        "a round that was not charged": order(round=99),
        "a pickle": order(content=b"\x80\x04cposix\nsystem\n(S'id'\ntR."),
        "nothing": order(content=b""),
        "code to run": order(run="import os"),
        "a round that is a text": order(round="1"),
        "a round below the first": order(round=-1),
        "a kind nobody knows": order(kind="run"),
        "a huge one": order(content=b"\0" * (4 << 20)),
        "a stranger's key": order(signer=SigningKey.generate()),
        "other content": RoundReply(envelope=good.envelope, content=good.content + b"x"),
        "another kind of document": RoundReply(
            envelope=Envelope.sign("text/plain", Envelope.from_bytes(good.envelope).payload, [key]).to_bytes(),
            content=good.content,
        ),
    }


@pytest.mark.fault("F20")
def test_no_hostile_question_has_a_site_open_its_records_or_charge_anything(hub, tally):  # noqa: F811
    hospital = Hospital(hub, NAMES[0])
    ask(hub, 1)
    joined = {site.site: site for site in hub.store.sites()}
    good = RoundQueue(hub.store).next(joined[hospital.name], PLAN.study)
    rng, questions = random.Random(5), list(hostile(hub, good).items())
    while len(questions) < soak(60, 400, usual=400):
        spoilt = RoundReply(envelope=good.envelope, content=mutated(good.content, rng))
        if rng.random() < 0.7:
            spoilt = RoundReply(envelope=mutated(good.envelope, rng), content=good.content)
        if spoilt != good:
            questions.append(("mutated", spoilt))
    answered, codes = [], set()

    def lying(egress, reply: RoundReply):
        """The site's own connection, with this in the place of what the coordinator said."""
        asked = egress._ask
        egress._ask = lambda method, request: reply if method == "NextRound" else asked(method, request)
        egress.answer_round = lambda envelope, content, key: answered.append(content)
        return egress

    for name, reply in questions:
        with opened_files() as names:
            try:
                hospital.take_part(wait=0, door=lambda egress, reply=reply: lying(egress, reply), attempts=1)
            except Refusal as refusal:
                codes.add(refusal.code)
        assert not [one for one in names if Path(one).name == hospital.table.name], name
    assert "E_REFUSED" not in codes
    assert all(not content for content in answered), "a refusal at most is said"
    assert hospital.ledger.holds() == [] or hospital.hold.begun == {}
    assert all(hold.state in ("reserved", "anchored") for hold in hospital.ledger.holds())
    tally(cases=len(questions), offered=len(questions), accepted=0, sites=1)
