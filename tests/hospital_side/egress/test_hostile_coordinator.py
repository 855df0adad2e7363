"""A coordinator that lies, over real sockets: nothing leaves, nothing is counted on its word, and it leaves traces."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import dataclasses
import datetime as dt
import logging

import pytest
from stage.both_sides.log import root
from stage.both_sides.lying_coordinator import agent  # noqa: F401
from stage.both_sides.service import LEAD, anchor_head, small_table
from stage.coordinator_side.collect import refused
from stage.coordinator_side.taken_back import taken_back
from stage.hospital_side.recovery import PLAN

from shared.base.keys import Envelope, SigningKey
from shared.base.merkle.tree import MerkleTree, leaf_hash
from shared.errors import (
    ApprovalRefusal,
    IntegrityRefusal,
    NetworkRefusal,
    PlanExpired,
    PlanRefusal,
    PlanRollback,
    ReplayRefusal,
    SchemaRefusal,
    SignatureRefusal,
    UnknownMethod,
)
from shared.plans.plan import sign_plan
from shared.wire import message_limits, site_messages
from shared.wire import messages as wire
from shared.wire.messages import Method
from shared.wire.signed_messages import countersigned, require_countersigned
from shared.wire.site_messages import (
    Acceptance,
    AnchorReceipt,
    Growth,
    Holding,
    Holdings,
    Offered,
    SignedDocument,
    StudyRequest,
)
from shared.wire.transport import Client
from site_agent.decide.recovery import survey

TODAY = dt.date(2026, 5, 1)


# -- asking for what nobody approved -----------------------------------------------------------------------------
@pytest.mark.fault("F20", offered=1)
def test_there_is_no_method_by_which_a_coordinator_starts_work_and_an_unknown_one_is_refused(agent):
    more = {"RunTask": Method(request=StudyRequest, reply=SignedDocument)}
    client = Client(
        address=f"127.0.0.1:{agent.hub.port}",
        server_name="tributary-coordinator",
        credentials=agent.hub.credentials("north"),
        service=wire.SERVICE,
        methods=more,
    )
    with client:
        refused(UnknownMethod, lambda: client.call("RunTask", StudyRequest(study="mini"), timeout=10))


@pytest.mark.fault("F20", offered=1)
def test_a_request_for_work_hidden_in_an_answer_is_refused_and_noted(agent, monkeypatch, caplog):
    plain = wire.encode
    hidden = b"\xfa\x07\x08run this"  # a field that no version has

    def encode(value):
        return plain(value) + (hidden if isinstance(value, Holdings) else b"")

    monkeypatch.setattr(wire, "encode", encode)
    with caplog.at_level(logging.INFO, logger="tributary.egress"):
        refused(SchemaRefusal, lambda: agent.door.status("mini"))
    assert "Status: E_SCHEMA" in caplog.text
    assert "run this" not in caplog.text


@pytest.mark.fault("F8", "F19", offered=1)
@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        ("older", PlanRollback),
        ("another study's", PlanRefusal),
        ("forged", SignatureRefusal),
        ("for another coordinator", PlanRefusal),
        ("expired", PlanExpired),
        ("not a plan", SignatureRefusal),
    ],
)
def test_a_plan_that_is_not_the_leads_newest_for_this_study_is_refused(agent, shown, kind):
    newer = dataclasses.replace(PLAN, version=3)
    plans = agent.plans
    plans.receive("mini", sign_plan(newer, [LEAD]), today=TODAY)
    agent.ledger.approve_plan(study="mini", version=3, plan_hash=newer.hash, approver="steward")
    stranger = SigningKey.generate()
    envelope = {
        "older": sign_plan(PLAN, [LEAD]),
        "another study's": sign_plan(dataclasses.replace(newer, study="other", version=4), [LEAD]),
        "forged": sign_plan(dataclasses.replace(newer, version=4), [stranger]),
        "for another coordinator": sign_plan(dataclasses.replace(newer, version=4, coordinator="elsewhere"), [LEAD]),
        "expired": sign_plan(dataclasses.replace(newer, version=4, expires=dt.date(2026, 4, 1)), [LEAD]),
        "not a plan": Envelope.sign("text/plain", newer.canonical, [LEAD]),
    }[shown]
    agent.lies["FetchPlan"] = lambda call, request: SignedDocument(envelope=envelope.to_bytes())
    refused(kind, lambda: plans.receive("mini", agent.door.fetch_plan("mini"), today=TODAY))
    assert [plan.version for plan in plans.filed("mini")] == [3]


@pytest.mark.fault("F19", "I7")
def test_without_an_approval_no_byte_leaves_whatever_the_coordinator_answers(agent):
    asked = []
    agent.lies["Offer"] = lambda call, request: asked.append("Offer") or Offered(offset=0)
    agent.lies["Upload"] = lambda call, chunks: asked.append("Upload")
    sealed = agent.hub.seal("north", signers=[agent.keys.release])
    refused(ApprovalRefusal, lambda: agent.door.send(sealed.envelope, sealed.path))
    twice = dataclasses.replace(sealed.envelope, signatures=sealed.envelope.signatures * 2)
    refused(ApprovalRefusal, lambda: agent.door.send(twice, sealed.path))
    assert asked == []


@pytest.mark.fault("F19")
def test_an_offset_or_acceptance_of_other_bytes_takes_nothing_more_out(agent):
    sealed = agent.hub.seal("north")
    taken = []
    agent.lies["Upload"] = lambda call, chunks: taken.append(1)
    agent.lies["Offer"] = lambda call, request: Offered(offset=sealed.statement.bundle_bytes + 1)
    refused(IntegrityRefusal, lambda: agent.door.send(sealed.envelope, sealed.path))
    other = Acceptance(
        study="mini",
        wave=2,
        site="north",
        release_id=sealed.statement.release_id,
        bundle_sha256=sealed.statement.bundle_sha256,
        log_index=0,
        log_root="0" * 64,
        accepted_day="2026-05-01",
    )
    agent.lies["Offer"] = lambda call, request: Offered(acceptance=other)
    refused(IntegrityRefusal, lambda: agent.door.send(sealed.envelope, sealed.path))
    unsigned = dataclasses.replace(other, wave=1)
    agent.lies["Offer"] = lambda call, request: Offered(acceptance=unsigned)
    refused(SignatureRefusal, lambda: agent.door.send(sealed.envelope, sealed.path))
    assert taken == []
    assert agent.hub.witness("north").replies() == ()


# -- what it has acknowledged --------------------------------------------------------------------------------------
@pytest.mark.fault("F19")
def test_an_acknowledgement_that_is_hidden_later_is_still_signed_at_the_site(agent):
    sealed = agent.hub.seal("north")
    acceptance = agent.door.send(sealed.envelope, sealed.path)
    agent.lies["Status"] = lambda call, request: Holdings()
    assert agent.door.status("mini") == ()
    [said] = agent.hub.witness("north").replies()
    values = {name: said[name] for name in Acceptance.__dataclass_fields__ if name != "signature"}
    kept = Acceptance(**values, signature=bytes.fromhex(said["signature"]))
    assert kept == acceptance
    require_countersigned(kept, agent.hub.authority.witness.public, "north")


def test_an_acknowledgement_withheld_costs_a_second_delivery_of_the_same_bytes_and_nothing_else(agent):
    sealed = agent.hub.seal("north")
    sent = []

    def swallow(call, chunk):
        data = b""
        while chunk is not None:
            data += chunk.data
            chunk = yield
        sent.append(data)
        raise NetworkRefusal("the connection must last", given="a broken one")

    agent.lies["Upload"] = swallow
    with agent.hub.egress("north", attempts=3, sleep=lambda seconds: None) as egress:
        refused(NetworkRefusal, lambda: egress.send(sealed.envelope, sealed.path))
        agent.lies.clear()
        egress.send(sealed.envelope, sealed.path)
    assert set(sent) == {sealed.path.read_bytes()}
    assert len(agent.hub.store.releases()) == 1


@pytest.mark.fault("F19", log_lies=1)
def test_two_histories_are_found_by_the_next_answer_and_both_are_kept(agent, caplog):
    """The coordinator forks its log after the site has seen two entries, and signs what it says of the other one."""
    hub, key = agent.hub, agent.hub.authority.witness
    agent.door.anchor(hub.anchor("north", 1))
    agent.door.anchor(hub.anchor("north", 2, after=1))
    other = [leaf_hash(b"%d" % k) for k in range(8)]
    head = anchor_head("north", 3, after=2)
    told = AnchorReceipt(seq=3, head=head.head, index=5, log_root=root(other[:6]).hex())
    agent.lies["Anchor"] = lambda call, request: countersigned(told, key, "north")
    for proof in (MerkleTree(other).growth(2, 6), (), tuple(other[:3])):
        agent.lies["Growth"] = lambda call, request, proof=proof: Growth(proof=proof)
        with caplog.at_level(logging.ERROR, logger="tributary.egress"):
            refused(IntegrityRefusal, lambda: agent.door.anchor(hub.anchor("north", 3, after=2)))
    assert "not the one seen before" in caplog.text
    kinds = [said["kind"] for said in hub.witness("north").replies()]
    assert kinds == ["AnchorReceipt", "AnchorReceipt", "Fork"], "once, however often it is told"
    # The same size with another root, and a log that is shorter than the one already seen.
    for size, tree in ((2, other), (1, other)):
        short = AnchorReceipt(seq=3, head=head.head, index=size - 1, log_root=root(tree[:size]).hex())
        agent.lies["Anchor"] = lambda call, request, short=short: countersigned(short, key, "north")
        refused(IntegrityRefusal, lambda: agent.door.anchor(hub.anchor("north", 3, after=2)))
    # The honest log goes on where it was.
    agent.lies.clear()
    assert agent.door.anchor(hub.anchor("north", 3, after=2)).index == 2


def test_an_honest_log_is_followed_over_everybodys_entries(agent):
    hub = agent.hub
    agent.door.anchor(hub.anchor("north", 1))
    with hub.egress("south") as south:
        for seq in range(1, 6):
            south.anchor(hub.anchor("south", seq))
    sealed = hub.seal("north")
    agent.door.send(sealed.envelope, sealed.path)
    agent.door.withdraw(taken_back(hub, sealed))
    witness = hub.witness("north")
    assert witness.checkpoint() == (8, hub.store.log()[-1].root)
    first = agent.door.anchor(hub.anchor("north", 1))  # told again, from when the log was shorter
    assert first.index == 0
    assert len(witness.replies()) == 3


# -- what it says of the site ------------------------------------------------------------------------------------
def old_copy(agent) -> None:
    """Two deliveries of which the ledger here has forgotten the second."""
    agent.delivered(1)
    agent.back_up()
    agent.delivered(2)
    agent.put_back()


def said(agent, **changes) -> Holdings:
    receipt, envelope, again = agent.hub.store.witnessed("north")
    honest = Holdings(
        holdings=agent.hub.store.holdings("mini", "north"), anchored=receipt, reanchored=again, anchor=envelope
    )
    return dataclasses.replace(honest, **changes)


@pytest.mark.fault("F19")
def test_invented_releases_are_not_counted(agent):
    old_copy(agent)
    honest = survey(agent.ledger, agent.plans, agent.door, ["mini"])
    held = agent.hub.store.holdings("mini", "north")
    foreign = agent.hub.seal("south", wave=3, release_id="77" * 16).envelope.to_bytes()
    elsewhere = agent.hub.seal("north", wave=9, release_id="88" * 16, signers=[SigningKey.generate()])
    elsewhere = elsewhere.envelope.to_bytes()
    invented = [
        Holding(study="mini", wave=3, release_id="99" * 16, state="accepted", log_index=50),
        Holding(study="mini", wave=3, release_id="77" * 16, state="accepted", log_index=50, statement=foreign),
        Holding(study="mini", wave=9, release_id="88" * 16, state="accepted", log_index=50, statement=elsewhere),
        # The site's own statement under other names, and a hundred times.
        *(dataclasses.replace(held[1], wave=k, release_id=f"{k:032d}") for k in range(3, 50)),
        *(held[1] for _ in range(100)),
    ]
    agent.lies["Status"] = lambda call, request: said(agent, holdings=(*held, *invented))
    assert survey(agent.ledger, agent.plans, agent.door, ["mini"]) == honest


@pytest.mark.fault("F19", log_lies=1)
def test_a_later_head_than_the_site_signed_is_refused(agent):
    old_copy(agent)
    receipt, envelope, _ = agent.hub.store.witnessed("north")
    stranger = agent.hub.anchor("north", 4000, key=SigningKey.generate()).to_bytes()
    for lie in (
        {"anchored": dataclasses.replace(receipt, seq=receipt.seq + 3000)},
        {"anchored": dataclasses.replace(receipt, head="0" * 64)},
        {"anchor": b""},
        {"anchored": AnchorReceipt(seq=4000, head=anchor_head("north", 4000).head, index=9), "anchor": stranger},
        {"anchor": agent.hub.seal("north", wave=5, release_id="66" * 16).envelope.to_bytes()},
    ):
        agent.lies["Status"] = lambda call, request, lie=lie: said(agent, **lie)
        refused(IntegrityRefusal, lambda: agent.recover())
    assert agent.ledger.recoveries() == 0
    assert len(envelope) > 0


@pytest.mark.fault("F19")
def test_releases_that_are_hidden_make_the_site_count_more_never_less(agent):
    old_copy(agent)
    honest = survey(agent.ledger, agent.plans, agent.door, ["mini"])
    agent.lies["Status"] = lambda call, request: said(agent, holdings=())
    wary = survey(agent.ledger, agent.plans, agent.door, ["mini"])
    assert sum(one.count for one in wary.lost) >= sum(one.count for one in honest.lost)
    assert wary.unknown > honest.unknown


def test_more_releases_than_an_answer_may_name_are_refused(agent, monkeypatch):
    one = Holding(study="mini", wave=1, release_id="a", state="accepted", log_index=1)
    plain = wire.encode

    def encode(value):
        data = plain(value)
        return data * (message_limits.HOLDINGS_CAP + 1) if isinstance(value, Holdings) else data

    agent.lies["Status"] = lambda call, request: Holdings(holdings=(one,))
    monkeypatch.setattr(wire, "encode", encode)
    refused(SchemaRefusal, lambda: agent.door.status("mini"))


@pytest.mark.fault("F19")
def test_a_withdrawal_that_is_dropped_has_no_signed_answer(agent):
    sealed = agent.hub.seal("north", table=small_table(seed=3))
    agent.door.send(sealed.envelope, sealed.path)
    stone = site_messages.Withdrawn(
        study="mini",
        wave=1,
        site="north",
        release_id=sealed.statement.release_id,
        bundle_sha256=sealed.statement.bundle_sha256,
        log_index=1,
        log_root="0" * 64,
        withdrawn_day="2026-05-01",
    )
    for told, kind in (
        (stone, SignatureRefusal),
        (dataclasses.replace(stone, release_id="ff" * 16), IntegrityRefusal),
        (countersigned(stone, agent.hub.authority.witness, "north"), IntegrityRefusal),  # signed, but in no log
    ):
        agent.lies["Withdraw"] = lambda call, request, told=told: told
        refused(kind, lambda: agent.door.withdraw(taken_back(agent.hub, sealed)))
    agent.lies.clear()
    agent.door.withdraw(taken_back(agent.hub, sealed))
    refused(IntegrityRefusal, lambda: agent.door.send(sealed.envelope, sealed.path))  # what was signed is in no log
    with agent.hub.egress("north", witness=None) as egress:
        refused(ReplayRefusal, lambda: egress.send(sealed.envelope, sealed.path))
