"""What a site says of itself comes from a fixed list; an error at any step of a call says nothing to the other side."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import sys
from pathlib import Path

import pytest
from hurry import part_of_today
from stage.both_sides.service import Hub, small_table
from stage.coordinator_side.collect import plan
from stage.coordinator_side.taken_back import taken_back

import site_agent.egress as egress
from shared.errors import ParameterError, Refusal
from shared.plans.invitation import Invitation
from shared.releases.statement import Statement
from shared.wire import messages as wire
from shared.wire import signed_messages, site_messages
from shared.wire.clocks import ClockReading
from shared.wire.rounds import Answered

__all__ = ["plan"]  # the fixture
CANARY = "CANARY-4711-/srv/cohort.csv-sbp=187.25"
WORDS = ("CANARY", "cohort.csv", "187.25")
"""Each of them is no part of a digest, as 4711 is one time in some dozens."""
# Every field of every message that a site sends, and of every document that it signs. A new one is argued for here:
# ids, digests, counts and signatures; no text that anybody could write freely but the approvers' names, at enrolment
# and as a release's author.
SAID = {
    "AuthoritiesRequest": set(),
    "LimitsRequest": set(),
    "MembershipRequest": {
        "statements"
    },  # signed: grants, changes of leads and keys, reasons that a person chose to tell
    "EnrolRequest": {"token", "envelope"},
    "StudyRequest": {"study"},
    "RoundRequest": {"study", "flow"},
    "SignedDocument": {"envelope"},
    "OfferRequest": {"envelope", "standing"},
    "Chunk": {"bundle_sha256", "offset", "data"},
    "GrowthRequest": {"old_size", "size"},
    "WatchRequest": {"sizes", "entries"},
    "GapReport": {"study", "lacking"},  # the coordinator's own signed words, sent back
    "RoundAnswer": {"envelope", "content"},
}
SIGNED = {
    "EnrolmentRequest": {"site", "csr_pem", "release_key", "approvers"},
    "AnchorHead": {"site", "seq", "head", "after", "links"},
    "ClockReading": {"site", "nonce", "time"},
    "Withdrawal": {"study", "site", "wave", "release_id", "bundle_sha256", "reason_code"},
    "Answered": {"study", "plan_hash", "site", "round", "asked", "content_sha256", "content_bytes", "code"},
    "Statement": {
        "study",
        "plan_hash",
        "plan_version",
        "wave",
        "site",
        "release_id",
        "recipient",
        "bundle_sha256",
        "bundle_bytes",
        "receipt_sha256",
        "ledger_head",
        "author",
    },
}


@pytest.fixture
def hub(tmp_path, plan):
    hub = Hub(tmp_path / "hub", plan, "north")
    with hub.serve():
        yield hub
    hub.store.close()


def test_everything_that_a_site_says_of_itself_is_on_the_list():
    sent = {method.request.__name__: method.request for method in wire.COLLECTION.values()}
    assert {name: {item.name for item in dataclasses.fields(kind)} for name, kind in sent.items()} == SAID
    for name, expected in SIGNED.items():
        kind = {"Statement": Statement, "Answered": Answered, "ClockReading": ClockReading}.get(name) or getattr(
            signed_messages, name
        )
        assert {item.name for item in dataclasses.fields(kind)} == expected
    assert Invitation not in sent.values()


class Broken:
    """Raises at the k-th call of a function of the site's side of the wire, in this thread only."""

    FILES = tuple(
        str(Path(module.__file__))
        for module in (egress, wire, site_messages, signed_messages, sys.modules["shared.wire.transport.client"])
    )

    def __init__(self, at: int, error: Exception) -> None:
        self.at, self.error, self.seen, self.where = at, error, 0, ""

    def trace(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename in self.FILES:
            self.seen += 1
            if self.seen == self.at:
                self.where = frame.f_code.co_qualname
                raise self.error
        return None


KINDS = (RuntimeError, OSError, lambda text: ParameterError("a column must be known", given=text))


def talk(hub: Hub, wave: int) -> None:
    """Every call of a site that has joined, once."""
    sealed = hub.seal("north", wave=wave, release_id=f"{wave:04d}" * 8, table=small_table(seed=wave))
    with hub.egress("north", sleep=lambda seconds: None, attempts=1) as door:
        door.fetch_plan("mini")
        door.anchor(hub.anchor("north", 1))
        door.send(sealed.envelope, sealed.path)
        door.holdings("mini")
        door.withdraw(taken_back(hub, sealed))


@pytest.mark.sampled
def test_an_error_at_any_step_of_the_sites_side_says_nothing_to_the_coordinator(hub, caplog):
    """The k-th call of a function raises an error whose words are a canary, until none is left."""
    raised = []
    for step in part_of_today(range(1, 5000), 7):  # no factor of three: each kind of error has its turn every day
        broken = Broken(step, KINDS[step % 3](CANARY))
        with caplog.at_level(logging.DEBUG):
            before = sys.gettrace()
            sys.settrace(broken.trace)
            try:
                talk(hub, 1)
            except (RuntimeError, OSError, Refusal):
                pass
            finally:
                sys.settrace(before)
        if not broken.where:
            break
        raised.append(broken.where)
    assert len(raised) > 6, "the steps were reached"
    assert not any(word in record.getMessage() for record in caplog.records for word in WORDS)
    for path in [path for path in hub.home.rglob("*") if path.is_file()]:
        assert not any(word.encode() in path.read_bytes() for word in WORDS), path.name


def test_an_error_while_the_bundle_is_read_ends_the_upload_without_a_word(hub, caplog, monkeypatch):
    sealed = hub.seal("north", table=small_table(200_000))
    count = [0]

    def reach(name: str) -> None:
        if name == "egress.chunk":
            count[0] += 1
            if count[0] == 3:
                raise RuntimeError(CANARY)

    monkeypatch.setattr(egress, "reach", reach)
    with caplog.at_level(logging.DEBUG), hub.egress("north", attempts=1) as door, pytest.raises(RuntimeError):
        door.send(sealed.envelope, sealed.path)
    assert not any(word in caplog.text for word in WORDS)
    monkeypatch.undo()
    with hub.egress("north") as door:
        door.send(sealed.envelope, sealed.path)


def test_what_the_coordinator_hears_is_what_was_meant_to_be_said(hub, monkeypatch):
    """Requests as they arrive: only ids, digests, counts, signatures and the sealed bytes."""
    heard = []
    plain = wire.encode

    def encode(value):
        heard.append(value)
        return plain(value)

    monkeypatch.setattr(wire, "encode", encode)
    talk(hub, 2)
    names = {type(value).__name__ for value in heard}
    assert names >= {"StudyRequest", "SignedDocument", "Chunk", "WatchRequest"}
    requests = [value for value in heard if type(value).__name__ in SAID]
    for value in requests:
        assert {item.name for item in dataclasses.fields(value)} == SAID[type(value).__name__]
    assert dt.date.today().isoformat().encode() not in b"".join(plain(value) for value in requests)
