"""A release taken back: hidden at once and for good, its bytes deleted, its digest and the taking back kept."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json

import numpy as np
import pandas as pd
import pytest
from stage.both_sides.service import LEAD, Hub, small_table
from stage.coordinator_side.collect import Servers, failpoints, plan, refused
from stage.coordinator_side.taken_back import taken_back
from stage.processes.theatre import Theatre, plan_toml

from shared.base.canonical import parse_json
from shared.base.keys import Envelope, SigningKey
from shared.errors import (
    ApprovalRefusal,
    CertificateRefusal,
    IntegrityRefusal,
    NetworkRefusal,
    ParameterError,
    Refusal,
    ReplayRefusal,
    RoleRefusal,
    SchemaRefusal,
    SignatureRefusal,
    StateRefusal,
)
from shared.plans.dictionary import Column
from shared.plans.plan import sign_plan
from shared.wire.signed_messages import REASONS, WITHDRAWAL_TYPE, Withdrawal
from shared.wire.site_messages import SignedDocument
from site_agent.egress import AcknowledgedReplies

__all__ = ["plan"]  # the fixture
TODAY = dt.date(2026, 5, 1)


@pytest.fixture
def hub(tmp_path, plan):
    hub = Hub.alike(tmp_path / "hub", plan, "north", "south")
    with hub.serve():
        yield hub
    hub.store.close()


def test_a_withdrawn_release_is_seen_by_nobody_and_its_bytes_are_gone(hub):
    sealed, other = hub.seal("north"), hub.seal("south", table=small_table(seed=2), release_id="cd" * 16)
    with hub.egress("north") as egress, hub.egress("south") as south:
        acceptance = egress.send(sealed.envelope, sealed.path)
        south.send(other.envelope, other.path)
        [release] = [found for found in hub.store.releases() if found.site == "north"]
        done = egress.withdraw(taken_back(hub, sealed))
        assert egress.withdraw(taken_back(hub, sealed)) == done
        assert egress.withdraw(taken_back(hub, sealed, reason_code="other")) == done, "the first reason stands"
        [held] = egress.status("mini")
    assert (held.state, held.log_index) == ("withdrawn", acceptance.log_index)
    assert hub.contents() == {f"bundles/{other.statement.bundle_sha256}.zip"}
    assert [found.site for found in hub.store.releases()] == ["south"]
    assert [site for site, _, _ in hub.store.tables("mini", 1)] == ["south"]
    refused(StateRefusal, lambda: hub.store.table(release))
    [stone] = hub.store.withdrawals("mini")
    assert (stone.reason_code, stone.bundle_sha256) == ("consent", sealed.statement.bundle_sha256)
    entry = parse_json(hub.store.log()[done.log_index].entry)
    assert (entry["kind"], entry["bundle"]) == ("withdrawal", sealed.statement.bundle_sha256)
    assert hub.store.verify_log() == 3
    assert hub.store.verify_signatures() == 3


@pytest.mark.fault("F8", offered=1)
def test_a_withdrawn_release_cannot_come_back(hub):
    sealed = hub.seal("north")
    with hub.egress("north") as egress:
        egress.send(sealed.envelope, sealed.path)
        egress.withdraw(taken_back(hub, sealed))
        refused(ReplayRefusal, lambda: egress.send(sealed.envelope, sealed.path))
        again = hub.seal("north", table=small_table(seed=7))  # the id with other bytes
        refused(ReplayRefusal, lambda: egress.send(again.envelope, again.path))
        twin = hub.seal("north", table=small_table(seed=8), release_id="ee" * 16)  # the place in the wave
        refused(ReplayRefusal, lambda: egress.send(twin.envelope, twin.path))
    accepting = {"envelope": sealed.envelope, "receipt": sealed.receipt, "today": TODAY}
    refused(ReplayRefusal, lambda: hub.store.accept_release(statement=sealed.statement, **accepting))
    assert hub.store.releases() == ()
    assert not any(name.startswith("bundles/") for name in hub.contents())


def test_a_frozen_release_is_taken_back_after_every_later_one_that_copied_its_rows(hub, plan):
    """Else its rows would stay readable: wave 3 holds those of wave 2, and that the rows of wave 1."""
    people = Column(name="person", kind="person")
    dictionary = dataclasses.replace(plan.dictionary, columns=(people, *plan.dictionary.columns))
    frozen = dataclasses.replace(plan, version=2, returning="frozen", dictionary=dictionary)
    hub.store.add_plan(sign_plan(frozen, [LEAD]), frozen)
    rows = small_table(n=180)
    sealed = [
        hub.seal("north", wave=wave, plan=frozen, release_id=f"{wave:02d}" * 16, table=rows[: 60 * wave])
        for wave in (1, 2, 3)
    ]
    other = hub.seal("south", wave=3, plan=frozen, release_id="ee" * 16, table=small_table(seed=5))
    with hub.egress("north") as egress, hub.egress("south") as south:
        south.send(other.envelope, other.path)
        for one in sealed:
            egress.send(one.envelope, one.path)
        answer = refused(StateRefusal, lambda: egress.withdraw(taken_back(hub, sealed[0])))
        assert "wave 3 (03030303), wave 2 (02020202)" in str(answer), "in the order in which to take them back"
        assert "wave 2" not in str(refused(StateRefusal, lambda: egress.withdraw(taken_back(hub, sealed[1]))))
        assert len(hub.store.releases("mini", site="north")) == 3, "a refused withdrawal hides nothing"
        for one in reversed(sealed):
            egress.withdraw(taken_back(hub, one))
    assert [found.site for found in hub.store.releases()] == ["south"]
    assert hub.contents() == {f"bundles/{other.statement.bundle_sha256}.zip"}
    assert hub.store.verify_signatures() == 7


@pytest.mark.fault("F10", offered=1)
def test_only_the_site_with_its_release_key_and_an_approver_takes_a_release_back(hub):
    sealed, keys, south = hub.seal("north"), hub.sites["north"], hub.sites["south"]
    with hub.egress("north") as egress, hub.client("north") as client, hub.egress("south") as stranger:
        egress.send(sealed.envelope, sealed.path)

        def bare(envelope: Envelope) -> None:
            client.call("Withdraw", SignedDocument(envelope=envelope.to_bytes()), timeout=60)

        one = taken_back(hub, sealed, signers=[keys.release])
        refused(ApprovalRefusal, lambda: egress.withdraw(one))
        refused(ApprovalRefusal, lambda: bare(one))
        for signers, kind in (
            ([keys.release, SigningKey.generate()], ApprovalRefusal),
            ([keys.release, south.steward], ApprovalRefusal),
            ([keys.steward, SigningKey.generate()], SignatureRefusal),
            ([south.release, south.steward], SignatureRefusal),
        ):
            refused(kind, lambda signers=signers: bare(taken_back(hub, sealed, signers=signers)))
        refused(SignatureRefusal, lambda: stranger.withdraw(taken_back(hub, sealed)))
        foreign = taken_back(hub, sealed, site="south", signers=[south.release, south.steward])
        refused(StateRefusal, lambda: stranger.withdraw(foreign))
        other_type = Envelope.sign("text/plain", foreign.payload, [keys.release, keys.steward])
        refused(SignatureRefusal, lambda: bare(other_type))
        refused(ParameterError, lambda: egress.withdraw(sealed.envelope))
        for changes, kind in (
            ({"release_id": "ff" * 16}, StateRefusal),
            ({"bundle_sha256": "0" * 64}, ReplayRefusal),
            ({"wave": 2}, ReplayRefusal),
            ({"study": "other"}, ReplayRefusal),
        ):
            refused(kind, lambda changes=changes: egress.withdraw(taken_back(hub, sealed, **changes)))
    assert len(hub.store.releases()) == 1
    assert hub.store.verify_log() == 1


def test_a_withdrawal_says_one_of_four_reasons_and_nothing_else():
    good = Withdrawal(
        study="mini", site="north", wave=1, release_id="ab" * 16, bundle_sha256="0" * 64, reason_code="policy"
    )
    assert Withdrawal.from_bytes(good.to_bytes()) == good
    assert good.sign([SigningKey.generate()]).payload_type == WITHDRAWAL_TYPE
    assert REASONS == ("consent", "error", "policy", "other")
    for changes in ({"reason_code": "patient 4711 asked"}, {"wave": -1}, {"site": "a b"}, {"bundle_sha256": "x"}):
        with pytest.raises(SchemaRefusal):
            dataclasses.replace(good, **changes)
    with pytest.raises(SchemaRefusal):
        Withdrawal.from_bytes(good.to_bytes().replace(b'"wave":1', b'"note":"x","wave":1'))


def test_a_quarantined_release_can_be_taken_back_too(hub):
    sealed = hub.seal("north", receipt_changes={"epsilon": 1.0})
    with hub.egress("north", sleep=lambda seconds: None) as egress:
        with pytest.raises(Refusal):
            egress.send(sealed.envelope, sealed.path)
        egress.withdraw(taken_back(hub, sealed))
    assert hub.contents() == set()
    assert hub.store.verify_signatures() == 1


@pytest.mark.fault("F2")
def test_a_coordinator_killed_at_any_step_of_a_withdrawal_ends_with_it_done(tmp_path, plan, tally):
    hub = Hub(tmp_path / "hub", plan, "north")
    servers = Servers(hub)
    places = failpoints("withdraw")
    tally(cases=len(places), failpoints=places, failpoints_written=places)
    assert len(places) == 3
    killed = []
    try:
        for wave, place in enumerate(places, start=1):
            sealed = hub.seal("north", wave=wave, release_id=f"{wave:02d}" * 16, table=small_table(seed=wave))
            answers = []

            def send(sealed=sealed) -> None:
                with hub.egress("north") as egress:
                    egress.send(sealed.envelope, sealed.path)

            def withdraw(sealed=sealed, answers=answers) -> None:
                with hub.egress("north", attempts=1) as egress:
                    try:
                        answers.append(egress.withdraw(taken_back(hub, sealed)))
                    except (NetworkRefusal, CertificateRefusal) as refusal:
                        answers.append(refusal)

            servers.run("none", send)
            killed += [place] if servers.run(place, withdraw) == "killed" else []
            assert isinstance(answers[-1], Refusal)
            gone = bool(hub.store.withdrawals(bundle_sha256=sealed.statement.bundle_sha256))
            assert gone == (place != "withdraw.before_commit")
            # Whoever reads now sees the release whole, or not at all: also while its bytes are still there.
            assert len(hub.store.releases(wave=wave)) == (0 if gone else 1)
            servers.run("none", withdraw)
            assert not isinstance(answers[-1], Refusal)
    finally:
        servers.close()
    assert killed == places
    assert hub.contents() == set()
    assert hub.store.verify_log() == 2 * len(places)
    hub.store.close()


@pytest.mark.fault("F4")
def test_bytes_that_a_crash_left_after_a_withdrawal_are_deleted_at_the_next_start(hub):
    sealed = hub.seal("north")
    with hub.egress("north") as egress:
        egress.send(sealed.envelope, sealed.path)
        egress.withdraw(taken_back(hub, sealed))
    left = hub.home / "bundles" / f"{sealed.statement.bundle_sha256}.zip"
    left.write_bytes(sealed.path.read_bytes())
    hub.running.service.recover()
    assert not left.exists()


# -- what the coordinator signs -----------------------------------------------------------------------------------
def test_a_site_keeps_every_answer_that_the_coordinator_signed_and_refuses_one_it_did_not(hub, tmp_path):
    sealed = hub.seal("north")
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 3))
        egress.anchor(hub.anchor("north", 3))
        acceptance = egress.send(sealed.envelope, sealed.path)
        egress.send(sealed.envelope, sealed.path)
        egress.withdraw(taken_back(hub, sealed))
    witness = hub.witness("north")
    kept = witness.replies()
    assert [line["kind"] for line in kept] == ["AnchorReceipt", "Acceptance", "Withdrawn"]
    assert kept[1]["log_index"] == acceptance.log_index
    roots = {entry.index: entry.root for entry in hub.store.log()}
    assert [line["log_root"] for line in kept] == [roots[index] for index in (0, 1, 2)]
    # Another key, another site, no signature: not believed, not kept.
    stranger = AcknowledgedReplies(SigningKey.generate().public, "north", tmp_path / "a.jsonl")
    elsewhere = AcknowledgedReplies(hub.authority.witness.public, "south", tmp_path / "b.jsonl")
    for wrong in (stranger, elsewhere):
        with hub.egress("north", witness=wrong) as egress:
            refused(SignatureRefusal, lambda egress=egress: egress.anchor(hub.anchor("north", 4, after=3)))
        assert wrong.replies() == ()

    def never(old: int, new: int):
        raise AssertionError("an unsigned answer is not asked about")

    unsigned = dataclasses.replace(acceptance, signature=b"")
    refused(SignatureRefusal, lambda: witness.keep(unsigned, never))
    refused(SignatureRefusal, lambda: witness.keep(dataclasses.replace(acceptance, log_index=9), never))


@pytest.mark.fault("F3")
def test_half_a_line_left_by_a_power_cut_spoils_no_other(hub):
    witness = hub.witness("north")
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 1))
        whole = witness.path.read_bytes()
        witness.path.write_bytes(whole + whole[: len(whole) // 2])
        egress.anchor(hub.anchor("north", 2, after=1))
    assert [line["seq"] for line in witness.replies()] == [1, 2]


def test_the_key_that_signs_answers_stays_the_same_and_stands_in_the_invitation(hub):
    again = type(hub.authority).load(hub.home)
    assert again.witness.public == hub.authority.witness.public == hub.invite("west").witness
    assert oct((hub.home / "ca" / "witness.pem").stat().st_mode & 0o777) == "0o600"


# -- stored signatures ----------------------------------------------------------------------------------------------
def test_keys_of_an_earlier_enrolment_vouch_for_what_they_signed_and_for_nothing_later(hub):
    first = hub.seal("north")
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 1))
        egress.send(first.envelope, first.path)
    old = hub.sites["north"]
    hub.store.revoke_site("north")
    hub.sites.pop("north")
    hub.join("north")
    second = hub.seal("north", wave=2, release_id="cd" * 16, table=small_table(seed=2))
    with hub.egress("north") as egress:
        egress.send(second.envelope, second.path)
        hub.sites["north"].release, kept = old.release, hub.sites["north"].release
        late = hub.seal("north", wave=3, release_id="ef" * 16, table=small_table(seed=3))
        refused(RoleRefusal, lambda: egress.send(late.envelope, late.path))
        hub.sites["north"].release = kept
    assert hub.store.verify_signatures() == 3
    with hub.store._engine.begin() as connection:
        connection.exec_driver_sql("update releases set envelope = (select envelope from releases where wave = 1)")
    with pytest.raises(IntegrityRefusal):
        hub.store.verify_signatures()


@pytest.mark.fault("I8", log_lies=1)
@pytest.mark.parametrize(
    "edit",
    [
        "update anchors set head = '" + "0" * 64 + "'",
        "update withdrawals set bundle_sha256 = '" + "0" * 64 + "'",
        "update wave_events set missing = '[]'",
        "update wave_events set wave = 2",
    ],
)
def test_an_edited_anchor_withdrawal_or_closing_does_not_verify(hub, edit):
    sealed = hub.seal("north")
    with hub.egress("north") as egress:
        egress.anchor(hub.anchor("north", 1))
        egress.send(sealed.envelope, sealed.path)
        egress.withdraw(taken_back(hub, sealed))
    hub.store.close_wave("mini", 1, expected=["north", "south"], today=TODAY)
    assert hub.store.verify_log() == 4
    with hub.store._engine.begin() as connection:
        connection.exec_driver_sql(edit)
    with pytest.raises(IntegrityRefusal):
        hub.store.verify_log()


# -- from the steward's command to the analyst's answer ------------------------------------------------------------
def test_a_stewards_withdrawal_reaches_the_coordinator_and_every_signature_is_checked(tmp_path):
    rng = np.random.default_rng(5)
    n = 300
    columns = {
        "person": [f"p{i}" for i in range(n)],
        "sbp": rng.normal(130, 15, n).clip(60, 290),
        "chol": rng.normal(220, 30, n).clip(60, 690),
        "died": rng.integers(0, 2, n),
    }
    table = tmp_path / "cohort.csv"
    pd.DataFrame(columns).to_csv(table, index=False)
    theatre = Theatre(tmp_path)
    try:
        theatre.open(plan_toml(waves=2))
        theatre.join("north", table, "storm")
        theatre.agent("north", "release", "storm", "--wave", 1)
        waiting = theatre.waiting("north", 1)
        assert theatre.approve("north", waiting).json["state"] == "delivered"
        assert len(theatre.coordinator("releases").json["accepted"]) == 1
        theatre.agent("north", "withdraw", waiting, "--as", "steward", "--reason", "consent")
        assert theatre.coordinator("releases").json["accepted"] == []
        assert list((theatre.hub / "bundles").iterdir()) == []
        status = theatre.coordinator("wave", "status", "storm").json
        assert [cell["state"] for cell in status["waves"][0]["cells"]] == ["withdrawn"]
        verified = theatre.coordinator("log", "verify").json
        assert verified["verified"]
        assert verified["signed"] == verified["size"] >= 3
        lines = (theatre.home("north") / "acknowledged.jsonl").read_text().splitlines()
        # The decision itself is witnessed first, before the coordinator is asked to bury anything.
        assert [json.loads(line)["kind"] for line in lines][-3:] == ["Acceptance", "AnchorReceipt", "Withdrawn"]
    finally:
        theatre.close()
