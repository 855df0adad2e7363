"""What people decide: who may approve, how a release is taken back, and how a site leaves a study."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.base.canonical import parse_json
from shared.base.keys import Envelope, PublicKey, SigningKey, write_private
from shared.errors import ApprovalRefusal, PausedRefusal
from shared.plans.plan import Budget, Floors
from shared.releases.statement import STATEMENT_TYPE, Statement
from shared.wire.signed_messages import WITHDRAWAL_TYPE
from site_agent.config import SiteConfig
from site_agent.decide.airlock import approval, switch, taking_back
from site_agent.decide.airlock.signing import Approver
from site_agent.desk import Desk, agent_now
from site_agent.release import drawing
from site_agent.release.pipeline import opened


@pytest.fixture
def ready(hospital, plan, table, monkeypatch) -> Hospital:
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2))
    two = replace(plan, waves=waves, budget=Budget(epsilon=5000.0), returning="refresh")
    site = hospital.joined("dr-lind", "dr-berg").approved(two).with_table(table)
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", PASSPHRASE)
    return site


def stricter(site: Hospital, line: str) -> None:
    toml = site.home / "site.toml"
    toml.write_text(toml.read_text().replace("[floors]\n", f"[floors]\n{line}\n"))


def released(site: Hospital, *words: str, wave: int = 1) -> str:
    return site.json("release", "mini", "--wave", str(wave), *words)["release_id"]


def approve(site: Hospital, release_id: str, name: str = "dr-lind", *, expect: int = 0):
    warned = site.json("outbox", "show", release_id)["warnings"]
    ticks = [word for warning in warned for word in ("--tick", warning["name"])]
    return site.json("approve", release_id, "--as", name, *ticks, expect=expect)


def key_of(site: Hospital, name: str) -> SigningKey:
    return SigningKey.load(site.home / "keys" / "approvers" / f"{name}.pem", PASSPHRASE)


def state(site: Hospital, release_id: str) -> str:
    return next(r["state"] for r in site.json("outbox", "list")["releases"] if r["release_id"] == release_id)


# -- author and approver --------------------------------------------------------------------------------------------
def test_the_author_does_not_approve_where_the_two_must_be_different_people(ready):
    stricter(ready, "author_apart = true")
    assert "--by" in ready.refused("release", "mini", "--wave", "1", expect=12)["next_step"]
    ready.refused("release", "mini", "--wave", "1", "--by", "mallory", expect=2)
    release_id = released(ready, "--by", "dr-lind")
    body = approve(ready, release_id, "dr-lind", expect=12)["refused"]
    assert "dr-berg" in body["next_step"]
    assert ready.hub.sent == []
    assert approve(ready, release_id, "dr-berg")["state"] == "delivered"
    ((envelope, _),) = ready.hub.sent
    assert Statement.from_bytes(envelope.payload).author == "dr-lind"


def test_the_author_is_whoever_can_open_the_key(ready, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", "not the passphrase")
    ready.refused("release", "mini", "--wave", "1", "--by", "dr-lind", expect=30)
    assert ready.json("budget")["lines"] == [], "nothing was charged"


def test_a_site_may_ask_for_two_people_and_a_stranger_to_both(ready):
    stricter(ready, "author_apart = true\napprovals = 2")
    release_id = released(ready, "--by", "dr-lind")
    assert approve(ready, release_id, "dr-berg")["state"] == "held"
    approve(ready, release_id, "dr-lind", expect=12)
    assert ready.hub.sent == []


def test_a_plan_can_ask_for_it_and_a_site_cannot_undo_it(hospital, plan, table):
    apart = replace(plan, floors=replace(plan.floors, author_apart=True))
    site = hospital.joined("dr-lind", "dr-berg").approved(apart).with_table(table)
    stricter(site, "author_apart = false")
    site.refused("release", "mini", "--wave", "1", expect=12)
    assert SiteConfig.load(site.home).floors.author_apart is False


def test_a_site_that_became_stricter_after_the_seal_is_as_strict_as_it_is_now(ready):
    release_id = released(ready, "--by", "dr-lind")
    stricter(ready, "author_apart = true")
    approve(ready, release_id, "dr-lind", expect=12)
    assert approve(ready, release_id, "dr-berg")["state"] == "delivered"


def test_one_shared_passphrase_is_not_two_people(ready, monkeypatch):
    stricter(ready, "author_apart = true")
    release_id = released(ready, "--by", "dr-lind")
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.delenv(f"TRIBUTARY_PASSPHRASE_{name}")
    body = approve(ready, release_id, "dr-berg", expect=12)["refused"]
    assert "TRIBUTARY_PASSPHRASE_DR_BERG" in body["next_step"]


def test_settings_with_author_apart_read_back(ready):
    stricter(ready, "author_apart = true")
    config = SiteConfig.load(ready.home)
    assert SiteConfig.from_toml(config.to_toml(), home=ready.home) == config
    assert config.floors.author_apart is True


# -- withdrawing ----------------------------------------------------------------------------------------------------
def test_a_delivered_release_is_buried_under_two_signatures_and_stays_charged(ready):
    release_id = released(ready)
    approve(ready, release_id)
    spent = ready.json("budget")["totals"][0]["epsilon"]
    answer = ready.json("withdraw", release_id[:8], "--as", "dr-berg", "--reason", "consent", "--note", "two persons")
    assert (answer["state"], answer["log_index"]) == ("withdrawn", 1000)
    (envelope,) = ready.hub.buried
    release_key = SigningKey.load(ready.home / "keys" / "release.pem").public
    keys = {key.key_id: key for key in (release_key, key_of(ready, "dr-berg").public)}
    payload = envelope.require(WITHDRAWAL_TYPE, keys, threshold=2)
    assert json.loads(payload) == {
        "study": "mini",
        "site": "north",
        "wave": 1,
        "release_id": release_id,
        "bundle_sha256": json.loads(ready.hub.sent[0][0].payload)["bundle_sha256"],
        "reason_code": "consent",
    }
    assert "two persons" not in payload.decode(), "the words stay here"
    assert ready.json("budget")["totals"][0]["epsilon"] == spent
    assert ready.json("withdraw", release_id, "--as", "dr-berg", "--reason", "consent")["log_index"] == 1000
    assert len(ready.hub.buried) == 1
    ready.refused("release", "mini", "--wave", "1", expect=2)


def test_an_approved_release_that_never_arrived_is_stopped_and_nothing_is_buried(ready):
    release_id = released(ready)
    ready.hub.down = True
    approve(ready, release_id, expect=20)
    body = ready.refused("withdraw", release_id, "--as", "dr-lind", "--reason", "error", expect=20)
    assert "withdrawn here" in body["next_step"]
    assert state(ready, release_id) == "burnt"
    approve(ready, release_id, expect=2)
    assert ready.json("status")["next"][0].startswith("site-agent withdraw")
    ready.hub.down = False
    answer = ready.json("withdraw", release_id, "--as", "dr-lind", "--reason", "error")
    assert (answer["state"], answer["log_index"]) == ("burnt", None)
    assert ready.hub.buried == []
    assert ready.hub.sent == []
    assert not ready.json("status")["next"][0].startswith("site-agent withdraw")


def test_a_release_that_arrived_without_an_answer_is_buried(ready, monkeypatch):
    release_id = released(ready)
    send = ready.hub.send

    def lost(*words):
        send(*words)
        ready.hub.down = True
        ready.hub._up()

    with monkeypatch.context() as patched:
        patched.setattr(ready.hub, "send", lost)
        approve(ready, release_id, expect=20)
    ready.hub.down = False
    answer = ready.json("withdraw", release_id, "--as", "dr-lind", "--reason", "error")
    assert (answer["state"], answer["log_index"]) == ("withdrawn", 1000)


def test_an_interrupted_withdrawal_is_taken_up_again(ready):
    release_id = released(ready)
    approve(ready, release_id)
    ready.hub.down = True
    ready("withdraw", release_id, "--as", "dr-lind", "--reason", "policy", expect=20)
    assert state(ready, release_id) == "withdrawn"
    ready.hub.down = False
    ready("withdraw", release_id, "--as", "dr-lind", "--reason", "policy")
    assert len(ready.hub.buried) == 1


def test_the_calendar_tells_the_coordinator_of_a_withdrawal_that_it_has_not_heard_of(ready):
    release_id = released(ready)
    approve(ready, release_id)
    ready.hub.down = True
    ready("withdraw", release_id, "--as", "dr-lind", "--reason", "policy", expect=20)
    ready.hub.down = False
    said = [json.loads(line)["what"] for line in ready("run", "--once", "--json").splitlines() if line[:1] == "{"]
    assert said[0] == "told of a withdrawal"
    assert len(ready.hub.buried) == 1
    again = [json.loads(line)["what"] for line in ready("run", "--once", "--json").splitlines() if line[:1] == "{"]
    assert "told of a withdrawal" not in again
    assert len(ready.hub.buried) == 1


def test_only_an_approver_withdraws_and_only_for_a_reason_on_the_list(ready, monkeypatch):
    release_id = released(ready)
    ready.refused("withdraw", release_id, "--as", "mallory", "--reason", "error", expect=2)
    ready.refused("withdraw", release_id, "--as", "dr-lind", "--reason", "Mrs Smith asked", expect=2)
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_LIND", "something else")
    ready.refused("withdraw", release_id, "--as", "dr-lind", "--reason", "error", expect=30)
    assert state(ready, release_id) == "held"
    ready("withdraw", release_id, "--as", "dr-berg", "--reason", "error", "--dry-run")
    assert state(ready, release_id) == "held"


def test_a_reservation_of_an_old_plan_that_blocks_its_wave_is_withdrawn(ready, plan):
    # Three rows are refused before the draw, and the reservation is kept.
    ready.with_table(make_table(3))
    ready("release", "mini", "--wave", "1", expect=10)
    ready.with_table(make_table(300))
    ready.approved(replace(plan, version=2, waves=plan.waves, title="Another", budget=Budget(epsilon=5000.0)))
    body = ready.refused("release", "mini", "--wave", "1", expect=2)
    (blocking,) = ready.json("budget")["lines"]
    assert f"site-agent withdraw {blocking['release_id'][:8]}" in body["next_step"]
    ready("withdraw", blocking["release_id"][:8], "--as", "dr-lind", "--reason", "policy")
    assert released(ready)
    assert [line["state"] for line in ready.json("budget")["lines"]] == ["burnt", "sealed"]


def test_the_persons_of_what_may_have_left_still_count_for_the_next_release(ready):
    """Withdrawn is not unseen: a release that differs by two persons from one that left is refused."""
    first = released(ready)
    approve(ready, first)
    ready("withdraw", first, "--as", "dr-lind", "--reason", "consent")
    ready.with_table(make_table(298))
    body = ready.refused("release", "mini", "--wave", "2", expect=10)
    assert body["code"] == "E_DIFFERENCING"


def test_a_frozen_release_is_withdrawn_after_the_later_ones_that_hold_its_rows(hospital, plan):
    """Three waves: two delivered, one that still waits for a person."""
    calendar = tuple(replace(plan.waves[0], number=k) for k in (1, 2, 3))
    site = hospital.joined().approved(replace(plan, waves=calendar, returning="frozen"))
    made = []
    for wave in (1, 2, 3):
        tables = [make_table(size, seed) for seed, size in enumerate((300, 60, 60)[:wave], start=1)]
        site.with_table(pd.concat(tables, ignore_index=True))
        made.append(released(site, wave=wave))
        if wave < 3:
            approve(site, made[-1])
    taking = ("--as", "dr-lind", "--reason", "consent")
    body = site.refused("withdraw", made[0], *taking, expect=2)
    steps = [f"site-agent withdraw {release_id[:8]}" for release_id in (made[2], made[1])]
    assert "; ".join(steps) in body["next_step"]
    assert "copies the rows" in body["next_step"]
    assert site.refused("withdraw", made[0], *taking, "--dry-run", expect=2)["next_step"] == body["next_step"]
    assert steps[1] not in site.refused("withdraw", made[1], *taking, expect=2)["next_step"]
    assert [line["state"] for line in site.json("budget")["lines"]] == ["delivered", "delivered", "sealed"]
    assert site.hub.buried == []
    for release_id in reversed(made):
        site("withdraw", release_id, *taking)
    assert len(site.hub.buried) == 2, "the third was never sent"


def test_leaving_a_frozen_study_takes_the_latest_release_back_first(hospital, plan):
    calendar = tuple(replace(plan.waves[0], number=k) for k in (1, 2))
    site = hospital.joined().approved(replace(plan, waves=calendar, returning="frozen")).with_table(make_table(300))
    made = [released(site)]
    approve(site, made[0])
    site.with_table(pd.concat([make_table(300), make_table(60, 2)], ignore_index=True))
    made.append(released(site, wave=2))
    approve(site, made[1])
    site("leave", "mini", "--as", "dr-lind")
    assert [parse_json(one.payload)["release_id"] for one in site.hub.buried] == made[::-1]


# -- plans ----------------------------------------------------------------------------------------------------------
def test_an_approved_release_is_not_sent_again_under_a_plan_that_is_not_current(ready, plan):
    release_id = released(ready)
    ready.hub.down = True
    approve(ready, release_id, expect=20)
    ready.hub.down = False
    ready.approved(replace(plan, version=2, title="Another"))
    assert approve(ready, release_id, expect=10)["refused"]["code"] == "E_PLAN_CHANGED"
    assert ready.hub.sent == []


def test_a_revoked_plan_makes_and_sends_nothing_until_it_is_approved_again(ready):
    release_id = released(ready)
    ready("plan", "revoke", "mini", "--as", "dr-berg", "--dry-run")
    assert ready.json("plan", "show", "mini")["approved_by"] == "dr-lind"
    ready("plan", "revoke", "mini", "--as", "dr-berg", "--reason", "the ethics board asks")
    assert ready.json("plan", "show", "mini")["approved_by"] is None
    approve(ready, release_id, expect=12)
    ready.refused("release", "mini", "--wave", "2", expect=12)
    ready.refused("plan", "revoke", "mini", "--as", "dr-berg", expect=2)
    assert "the ethics board asks" in ready("history")
    ready("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    assert approve(ready, release_id)["state"] == "delivered"


def revoke(site: Hospital) -> None:
    """Take the plan's approval back at a desk of its own, as another process would."""
    at = Desk(site.home)
    taking_back.revoke_plan(at, "mini", by=Approver("dr-berg", lambda: key_of(site, "dr-berg")), reason="stop")


def whole(site: Hospital, folder) -> None:
    """The site's own audit, and what a stranger makes of its export."""
    assert site.json("audit", "verify")["ok"] is True
    site("audit", "export", "mini", "--out", str(folder))


def test_a_plan_revoked_while_the_passphrase_is_typed_is_not_approved_under(ready, tmp_path):
    release_id = released(ready)
    at = Desk(ready.home)

    def typing():
        revoke(ready)
        return key_of(ready, "dr-lind")

    words = {"now": agent_now()}
    ticks = [check.name for check in opened.open_release(at.outbox, release_id).warnings]
    with pytest.raises(ApprovalRefusal, match="taken back"):
        approval.approve(at, release_id, ticked=ticks, by=Approver("dr-lind", typing), **words)
    assert (ready.hub.sent, state(ready, release_id)) == ([], "held")
    with pytest.raises(ApprovalRefusal, match="taken back"):
        at.outbox.approve(release_id, key_of(ready, "dr-lind"), "dr-lind")
    whole(ready, tmp_path / "record")


def test_a_pause_that_is_noted_while_the_passphrase_is_typed_stops_the_approval(ready, tmp_path):
    release_id = released(ready)
    at = Desk(ready.home)

    def typing():
        switch.pause(Desk(ready.home), "a doubt")
        return key_of(ready, "dr-lind")

    words = {"now": agent_now()}
    ticks = [check.name for check in opened.open_release(at.outbox, release_id).warnings]
    with pytest.raises(PausedRefusal):
        approval.approve(at, release_id, ticked=ticks, by=Approver("dr-lind", typing), **words)
    assert (ready.hub.sent, state(ready, release_id)) == ([], "held")
    whole(ready, tmp_path / "record")


def test_a_plan_revoked_between_the_approval_and_the_first_byte_sends_nothing(ready, tmp_path, monkeypatch):
    release_id = released(ready)
    opened, asked = Desk.egress, []

    def opening(at, **settings):
        asked.append(settings["allowed"])
        revoke(ready)
        return opened(at, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Desk, "egress", opening)
        approve(ready, release_id, expect=12)
    assert (ready.hub.sent, state(ready, release_id)) == ([], "approved")
    with pytest.raises(ApprovalRefusal):
        asked[0]()  # what the door asks before each piece
    whole(ready, tmp_path / "record")


def test_a_plan_revoked_while_the_flow_is_fitted_draws_nothing(ready, tmp_path, monkeypatch):
    fit = drawing._fit

    def fitting(*words):
        revoke(ready)
        return fit(*words)

    with monkeypatch.context() as patch:
        patch.setattr(drawing, "_fit", fitting)
        ready.refused("release", "mini", "--wave", "1", expect=12)
    at = Desk(ready.home)
    assert "drawing" not in [entry.kind for entry in at.ledger.entries()]
    assert [hold.state for hold in at.ledger.holds()] == ["anchored"], "charged, and kept for when it is approved again"
    whole(ready, tmp_path / "record")
    ready("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    assert state(ready, released(ready)) == "held"


# -- leaving --------------------------------------------------------------------------------------------------------
def test_leaving_buries_deletes_and_keeps_the_log(ready):
    first = released(ready)
    approve(ready, first)
    ready.with_table(make_table(300, seed=2))
    second = released(ready, wave=2)
    there = {path for path in (ready.home / "sealed").rglob("*") if path.is_file()}
    would = ready.json("leave", "mini", "--as", "dr-lind", "--dry-run")
    assert len(would["deleted"]) == len(there)
    assert there == {path for path in (ready.home / "sealed").rglob("*") if path.is_file()}
    frames = ready.home / "keys" / "frames"
    write_private(frames / "mini.key", bytes(32))
    write_private(frames / "other.key", bytes(32))
    answer = ready.json("leave", "mini", "--as", "dr-lind", "--reason", "the study is over")
    assert [path.name for path in frames.iterdir()] == ["other.key"], "another study's frames can still be read"
    assert answer["deleted"] == would["deleted"]
    assert answer["buried"] == [first]
    assert {one["release_id"] for one in answer["deleted"]} == {first, second}
    assert not [path for path in (ready.home / "sealed").rglob("*") if path.is_file()]
    assert len(ready.hub.buried) == 1
    assert ready.json("plan", "show", "mini")["approved_by"] is None
    assert ready.json("audit", "verify")["ok"]
    assert len(ready.json("budget")["lines"]) == 2, "the charges stay"
    entry = json.loads(json.dumps(ready.json("history", "--last", "1")["entries"][0]))
    assert (entry["kind"], entry["seq"]) == ("left", answer["noted"]["seq"])


def test_nothing_is_deleted_before_the_coordinator_has_buried_what_it_has(ready):
    approve(ready, released(ready))
    ready.hub.down = True
    ready("leave", "mini", "--as", "dr-lind", expect=20)
    assert [path for path in (ready.home / "sealed").rglob("bundle.zip")]
    ready.hub.down = False
    said = ready("leave", "mini", "--as", "dr-lind")
    assert "1 release buried" in said
    assert "coordinator ungrant north --study mini" in said
    assert "0 files deleted, 0 releases buried" in ready("leave", "mini", "--as", "dr-lind")
    assert not [path for path in (ready.home / "sealed").rglob("bundle.zip")]


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_release_for_a_study_that_was_left_is_refused_as_that_before_anything_is_charged(ready, dry):
    """It was told to approve the plan, as if nobody had decided."""
    ready("leave", "mini", "--as", "dr-lind")
    before = ready.json("budget")["lines"], ready.json("history")["entries"]
    said = ready.json("release", "mini", "--wave", "1", *dry, expect=12)["refused"]
    assert (said["must"], said["given"]) == ("this site must take part in the study", "a study that it has left")
    assert "Nothing was charged" in said["next_step"]
    entries = [entry for entry in ready.json("history")["entries"] if entry["kind"] != "refused"]
    assert (ready.json("budget")["lines"], entries) == before


def test_a_study_that_was_left_asks_for_nothing_until_its_plan_is_approved_again(ready, plan):
    approve(ready, released(ready))
    ready("leave", "mini", "--as", "dr-lind")
    (row,) = ready.json("status")["studies"]
    assert (row["left"], row["approved"], row["due"]) == (True, False, [])
    assert "mini" not in ready.json("status")["next"]
    assert "not released" not in ready("run", "--once")
    ready("plan", "approve", "mini", "--as", "dr-lind", "--understood", "local")
    (row,) = ready.json("status")["studies"]
    assert row["approved"]
    assert "left" not in row


# -- beside earlier releases ----------------------------------------------------------------------------------------
def test_a_release_is_shown_beside_every_earlier_one(ready):
    first = released(ready)
    approve(ready, first)
    ready.with_table(make_table(400, seed=2))
    shown = ready.json("outbox", "show", released(ready, wave=2))
    (before,) = shown["earlier"]
    assert (before["release_id"], before["rows"], before["rows_now"]) == (first, 300, 400)
    assert (before["added"], before["removed"]) == ([], [])
    assert len(before["shifts"]) == 3
    assert "300 → 400" in ready("outbox", "show", shown["release_id"])


def test_floors_only_tighten_who_may_approve():
    from site_agent.config import Limits, SiteFloors

    for plan, site in ((True, None), (True, False), (False, True), (None, True)):
        floors = Floors(author_apart=bool(plan))
        assert Limits.of(floors, SiteFloors(author_apart=site)).author_apart


def test_the_statement_of_the_approved_bytes_names_its_author(ready):
    release_id = released(ready, "--by", "dr-berg")
    approve(ready, release_id)
    envelope = Envelope.from_bytes((ready.home / "sealed" / release_id / "statement.json").read_bytes())
    public = PublicKey(SigningKey.load(ready.home / "keys" / "release.pem").public.hex)
    statement = Statement.from_bytes(envelope.require(STATEMENT_TYPE, {public.key_id: public}))
    assert statement.author == "dr-berg"
