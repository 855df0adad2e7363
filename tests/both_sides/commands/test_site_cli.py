"""The steward's commands, run as a steward runs them: what they show, what they refuse, and with which exit code."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_table
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401
from stage.hospital_side.ticks import ticks

from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import CertificateRefusal
from shared.plans.plan import Budget, PrivateTraining, Wave, sign_plan
from shared.releases.statement import STATEMENT_TYPE
from site_agent import cli
from site_agent.release.pipeline import stages

ROOT = Path(__file__).resolve().parents[3]
CANARY = "CANARY-7319"
READING = [
    "status",
    "doctor",
    "budget",
    "history",
    "audit verify",
    "audit-verify",
    "ledger verify",
    "outbox list",
    "plan show mini",
    "waves mini",
    "standing list",
    "data check mini",
]


def test_help_imports_nothing_heavy():
    code = """
import sys
from shared.terminal import run
from site_agent.cli import app
for words in (["--help"], ["data", "--help"], ["plan", "approve", "--help"], ["release", "--help"]):
    assert run(app, name="site-agent", argv=words) == 0
heavy = {"torch", "grpc", "pandas", "numpy", "scipy", "pyarrow", "cryptography", "sqlite3", "google"} & set(sys.modules)
print("heavy:", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "heavy: []" in done.stdout, done.stdout[-200:] + done.stderr


def commands() -> dict[str, set[str]]:
    """Every command and its options."""
    import typer

    def walk(group, before):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, f"{before}{name} ")
            else:
                yield before + name, {option for item in command.params for option in item.opts}

    return dict(walk(typer.main.get_command(cli.app), ""))


def test_every_command_answers_in_json_and_every_changing_one_can_be_tried():
    reading = {" ".join(word for word in line.split() if word != "mini") for line in READING}
    reading |= {"outbox show", "audit export", "log", "drill"}
    found = commands()
    assert set(found) == reading | {
        *(
            "init",
            "join",
            "backup",
            "restore",
            "passphrase",
            "data add",
            "data map",
            "data frame",
            "data omop",
            "data quality",
            "plan fetch",
            "plan approve",
            "try",
            "release",
        ),
        *("approve", "reject", "send-back", "withdraw", "pause", "resume", "ledger recover", "leave", "plan revoke"),
        *("curve", "outbox figures", "synthetic"),
        *("run", "withdraw-person", "data confirm-persons", "federate", "consent"),
        *("standing add", "standing revoke"),
        *("grants", "approver add", "approver replace", "approver retire", "rotate-key", "data apart"),
        "resend",
        "renew",
        "page",
        "outbox export",
        "outbox import",
        "ig-pack",
    }
    for name, options in found.items():
        assert {"--json", "--home"} <= options, name
        assert ("--dry-run" in options) == (name not in reading), name


def test_a_command_line_that_cannot_be_read_leaves_with_2(hospital):
    hospital("release", expect=2)
    hospital("nonsense", expect=2)


# -- joining ----------------------------------------------------------------------------------------------------
def test_a_site_is_made_shows_its_fingerprint_and_joins_in_two_calls(hospital):
    made = hospital.json("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind")
    hospital.hub.accepted = False
    first = hospital.json("join")
    assert first["state"] == "pending"
    assert first["fingerprint"] == made["fingerprint"]
    hospital.hub.accepted = True
    assert hospital.json("join")["state"] == "joined"
    assert hospital.json("join")["state"] == "joined"
    assert not (hospital.home / "keys" / "invitation.json").exists(), "the token has done its work"


def test_no_secret_is_readable_by_others_or_shown(hospital):
    text = hospital("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind")
    text += (hospital.home / "site.toml").read_text()
    for secret in ("t" * 43, "correct horse", "PRIVATE"):
        assert secret not in text
    for path in (hospital.home / "keys").rglob("*"):
        assert path.is_dir() or path.stat().st_mode & 0o077 == 0, path
    assert b"ENCRYPTED" in (hospital.home / "keys" / "approvers" / "dr-lind.pem").read_bytes()


def test_a_dry_init_writes_nothing(hospital):
    hospital("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind", "--dry-run")
    assert not hospital.home.exists()


def test_init_refuses_a_second_site_no_approver_and_a_spent_invitation(hospital, monkeypatch):
    words = ("init", "--invitation", str(hospital.invitation))
    hospital.refused(*words, expect=2)
    monkeypatch.setenv("TRIBUTARY_TODAY", "2999-02-01")
    hospital.refused(*words, "--approver", "a", expect=21)
    monkeypatch.delenv("TRIBUTARY_TODAY")
    hospital(*words, "--approver", "a")
    hospital.refused(*words, "--approver", "a", expect=2)


def test_an_interrupted_init_is_run_again_with_the_keys_it_made(hospital):
    words = ("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind")
    first = hospital.json(*words)["fingerprint"]
    (hospital.home / "site.toml").unlink()
    assert hospital.json(*words)["fingerprint"] == first


def test_a_certificate_of_another_key_is_refused(hospital):
    from cryptography.hazmat.primitives.asymmetric import ec
    from stage.hospital_side.site_desk import certificate

    hospital("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind")
    key = ec.generate_private_key(ec.SECP256R1())
    from shared.wire.site_messages import Enrolment

    foreign = Enrolment(state="accepted", certificate_pem=certificate("north", key.public_key(), key))
    hospital.hub.enrol = lambda **_: foreign
    hospital.refused("join", expect=21)
    assert not (hospital.home / "certificates" / "site.pem").exists()


def test_before_init_every_command_says_to_run_it(hospital):
    for line in READING:
        body = hospital.refused(*line.split(), expect=2)
        assert body["code"] == "E_STATE"
        assert "init" in body["next_step"]


def test_doctor_is_green_and_names_the_one_firewall_rule(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table)
    text = hospital("doctor")
    assert "hub.example.org:8443" in text
    assert "✗" not in text


@pytest.mark.parametrize(
    ("harm", "code", "word"),
    [
        (lambda h: (h.home / "keys" / "tls.pem").chmod(0o644), 30, "chmod 600"),
        (lambda h: setattr(h.hub, "down", True), 20, "answer"),
        (
            lambda h: (h.home / "certificates" / "ca.pem").write_text(
                (h.home / "certificates" / "site.pem").read_text()
            ),
            21,
            "authority of the invitation",
        ),
        (lambda h: (h.home / "ledger.db").unlink(), 30, "ledger"),
        (lambda h: (h.folder / "cohort.csv").unlink(), 40, "not there"),
    ],
    ids=["mode", "unreachable", "authority", "ledger", "table"],
)
def test_doctor_finds_what_is_wrong_and_says_how_to_mend_it(hospital, plan, table, harm, code, word):
    hospital.joined().approved(plan).with_table(table)
    harm(hospital)
    text = hospital("doctor", expect=code)
    assert "✗" in text
    assert "→" in text
    assert word in text


# -- plans ------------------------------------------------------------------------------------------------------
def test_a_plan_is_one_page_with_price_words_and_what_is_not_covered(hospital, plan):
    hospital.joined().publish(plan)
    hospital("plan", "fetch", "mini")
    page = hospital.json("plan", "show", "mini")
    text = hospital("plan", "show", "mini")
    assert "Not covered by this price" in text
    assert text.index("\none wave") < text.index("\nin words") < text.index("\nall waves"), "the words are of one wave"
    assert "not a meaningful formal guarantee" in " ".join(text.split())
    for column in plan.dictionary.released:
        assert column.name in text
    assert page["price"]["delta"] == 1e-6
    assert page["price"]["affordable"] == 1
    assert page["not_covered"]
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("posture", ["local", "holdout"])
def test_a_posture_that_leaves_persons_uncovered_is_approved_only_with_the_tick(hospital, plan, posture):
    plan = replace(plan, posture=posture)
    hospital.joined().publish(plan)
    hospital("plan", "fetch", "mini")
    body = hospital.refused("plan", "approve", "mini", "--as", "dr-lind", expect=12)
    assert f"--understood {posture}" in body["next_step"]
    hospital("plan", "approve", "mini", "--as", "dr-lind", "--understood", posture, "--dry-run")
    assert hospital.json("plan", "show", "mini")["approved_by"] is None
    answer = hospital.json("plan", "approve", "mini", "--as", "dr-lind", "--understood", posture)
    assert (answer["plan_hash"], answer["dictionary_hash"]) == (plan.hash, plan.dictionary.hash)
    assert hospital.json("plan", "show", "mini")["approved_by"] == "dr-lind"


def test_a_plan_that_trains_with_noise_is_one_page_that_says_so(hospital, plan):
    private = PrivateTraining(rate=0.1, noise_multiplier=2.0, steps=20)
    hospital.joined().publish(replace(plan, posture="private", private=private))
    hospital("plan", "fetch", "mini")
    text = " ".join(hospital("plan", "show", "mini").split())
    assert "posture private" in text
    assert "trained with noise (DP-SGD) from a public start" in text
    assert "Rounding in the arithmetic of the training" in text
    hospital("plan", "approve", "mini", "--as", "dr-lind")


def test_only_a_registered_approver_with_the_passphrase_approves(hospital, plan, monkeypatch):
    hospital.joined().publish(plan)
    hospital("plan", "fetch", "mini")
    words = ("plan", "approve", "mini", "--understood", "local", "--as")
    hospital.refused(*words, "mallory", expect=2)
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "something else")
    hospital.refused(*words, "dr-lind", expect=30)


def test_a_plan_nobody_signed_or_another_study_or_recipient_is_refused(hospital, plan):
    hospital.joined()
    for wrong, key, code in (
        (plan, SigningKey.generate(), "E_SIGNATURE"),
        (replace(plan, study="other"), hospital.lead, "E_PLAN"),
        (replace(plan, coordinator="elsewhere"), hospital.lead, "E_PLAN"),
        (replace(plan, expires=dt.date(2020, 1, 1)), hospital.lead, "E_PLAN_EXPIRED"),
    ):
        hospital.hub.envelopes["mini"] = sign_plan(wrong, [key])
        body = hospital.json("plan", "fetch", "mini", expect=30 if code == "E_SIGNATURE" else 10)["refused"]
        assert body["code"] == code
    assert hospital.json("status")["studies"][0]["plan"] is None


def test_an_older_plan_is_refused_even_with_a_valid_signature(hospital, plan):
    hospital.joined().approved(replace(plan, version=2))
    hospital.publish(plan)
    assert hospital.refused("plan", "fetch", "mini", expect=10)["code"] == "E_PLAN_ROLLBACK"


def test_one_version_has_one_content(hospital, plan):
    hospital.joined().approved(plan)
    hospital.publish(replace(plan, title="Another study"))
    assert hospital.refused("plan", "fetch", "mini", expect=10)["code"] == "E_PLAN_CHANGED"


def test_a_new_version_voids_the_approval_and_the_difference_is_shown(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table)
    hospital.publish(replace(plan, version=2, title="A larger study"))
    hospital("plan", "fetch", "mini")
    hospital.refused("release", "mini", "--wave", "1", expect=12)
    page = hospital.json("plan", "show", "mini")
    assert ["title", "A small study", "A larger study"] in page["changes"]
    assert "A larger study" in hospital("plan", "show", "mini")


def test_any_changed_byte_of_a_filed_plan_is_refused(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table)
    path = hospital.home / "plans" / "mini" / "plan-1.json"
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 25)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        body = hospital.json("release", "mini", "--wave", "1", expect=10)["refused"]
        assert body["code"] == "E_PLAN_CHANGED"


def test_another_agent_version_asks_for_approval_again(hospital, plan, table, monkeypatch):
    hospital.joined().approved(plan).with_table(table)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    assert hospital.refused("release", "mini", "--wave", "1", expect=10)["code"] == "E_PLAN_CHANGED"


def test_an_approval_that_nobody_here_signed_is_worth_nothing(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table)
    path = hospital.home / "plans" / "mini" / "approval-1.json"
    forged = Envelope.from_bytes(path.read_bytes())
    path.write_bytes(Envelope.sign(forged.payload_type, forged.payload, [SigningKey.generate()]).to_bytes())
    hospital.refused("release", "mini", "--wave", "1", expect=12)


# -- the table --------------------------------------------------------------------------------------------------
def test_columns_are_proposed_mapped_and_the_rest_ignored_by_name(hospital, plan, table):
    hospital.joined().approved(plan)
    hospital.with_table(table.rename(columns={"sbp": "SBP (mmHg)"}).assign(ward=CANARY))
    assert hospital.json("data", "check", "mini", expect=40)["problems"]
    answer = hospital.json("data", "map", "mini", "--accept-suggestions", "--ignore-rest")
    assert answer["columns"]["SBP (mmHg)"] == "sbp"
    assert answer["ignored"] == ["ward"]
    assert hospital.json("data", "check", "mini")["rows"] == 300


def test_a_mapping_that_is_only_tried_is_not_kept(hospital, plan, table):
    hospital.joined().approved(plan).with_table(table.rename(columns={"sbp": "pressure"}))
    before = (hospital.home / "site.toml").read_bytes()
    hospital("data", "map", "mini", "pressure=sbp", "--dry-run")
    assert (hospital.home / "site.toml").read_bytes() == before
    hospital("data", "map", "mini", "pressure=sbp")
    assert hospital.json("data", "check", "mini")["problems"] == []


def test_the_table_is_not_copied(hospital, plan, table):
    table["person"] = [f"{CANARY}-{i}" for i in range(300)]
    hospital.joined().approved(plan).with_table(table)
    hospital("data", "check", "mini")
    hospital("release", "mini", "--wave", "1")
    for path in hospital.home.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path


def spoilt(what: str):
    table = make_table(300)
    table["grade"] = table["grade"].astype(object)
    table["sbp"] = table["sbp"].astype(object)
    if what == "level":
        table.loc[[0, 1], "grade"] = CANARY
    elif what == "bounds":
        table.loc[[0, 1, 2], "sbp"] = "7319.5"
    elif what == "text":
        table.loc[0, "sbp"] = CANARY
    elif what == "empty column":
        table["sbp"] = None
    elif what == "twice":
        table.loc[[0, 1], "person"] = CANARY
    elif what == "unknown column":
        table["ward"] = CANARY
    elif what == "three rows":
        table = table.head(3)
    return table


@pytest.mark.parametrize(
    ("what", "code", "exit_code", "said"),
    [
        ("level", "E_DICTIONARY", 40, "grade"),
        ("bounds", "E_DICTIONARY", 40, "sbp"),
        ("text", "E_DICTIONARY", 40, "sbp"),
        ("empty column", "E_MISSING", 40, "sbp"),
        ("twice", "E_DUPLICATE_PERSON", 40, "person"),
        ("unknown column", "E_DICTIONARY", 40, "ward"),
        ("three rows", "E_SMALL_N", 10, "50 persons"),
    ],
)
def test_a_spoilt_table_is_refused_in_words_without_a_value(hospital, plan, what, code, exit_code, said):
    table = spoilt(what)
    hospital.joined().approved(plan).with_table(table)
    body = hospital.refused("release", "mini", "--wave", "1", expect=exit_code)
    text = json.dumps(body) + hospital("release", "mini", "--wave", "1", expect=exit_code)
    assert body["code"] == code
    assert said in body["must"] + body["given"]
    assert body["next_step"]
    for value in (CANARY, "7319", *table["person"].head(20)):
        assert value not in text
    history = hospital("history") + hospital("budget")
    assert CANARY not in history
    assert hospital.hub.sent == []


# -- releases ---------------------------------------------------------------------------------------------------
@pytest.fixture
def ready(hospital, plan, table) -> Hospital:
    return hospital.joined("dr-lind", "dr-berg").approved(plan).with_table(table)


def only(site: Hospital) -> str:
    (row,) = site.json("outbox", "list")["releases"]
    return row["release_id"]


def test_a_release_is_held_shown_approved_and_sent_as_exactly_those_bytes(ready):
    text = ready("release", "mini", "--wave", "1")
    assert "Nothing has been sent" in text
    assert ready.hub.sent == []
    release_id = only(ready)
    shown = ready.json("outbox", "show", release_id[:8])
    assert shown["rows"] == 300
    assert len(shown["first_rows"]) == 8
    answer = ready.json("approve", release_id[:8], "--as", "dr-lind", *ticks(ready, release_id))
    assert answer["state"] == "delivered"
    ((envelope, data),) = ready.hub.sent
    assert sha256_hex(data) == shown["bundle_sha256"]
    assert envelope.payload_type == STATEMENT_TYPE
    assert len(envelope.signatures) == 2
    total = ready.json("budget")["totals"][0]
    assert 0 < total["epsilon"] < total["cap"]
    assert "Not in this total" in ready("budget")


def test_the_screen_shows_the_rows_that_would_leave_within_its_width(ready):
    ready("release", "mini", "--wave", "1")
    text = ready("outbox", "show", only(ready)[:8], "--rows", "3")
    assert "not patient records" in text
    assert "Not covered" in text
    assert max(map(len, text.splitlines())) <= 100
    row = ready.json("outbox", "show", only(ready)[:8], "--rows", "1")["first_rows"][0]
    assert f"{row['sbp']:.6g}" in text


def test_a_dry_release_charges_nothing_and_says_what_it_will_take(ready):
    answer = ready.json("release", "mini", "--wave", "1", "--dry-run")
    assert answer["estimate"]["seconds"] > 0
    assert answer["estimate"]["bundle_mb"] > 0
    assert answer["spent"] == 0
    assert "bundle" in ready("release", "mini", "--wave", "1", "--dry-run")
    assert ready.json("budget")["lines"] == []
    assert ready.hub.anchored == []


def test_two_people_approve_where_the_site_asks_for_two(ready, monkeypatch):
    toml = ready.home / "site.toml"
    toml.write_text(toml.read_text().replace("[floors]\n", "[floors]\napprovals = 2\n"))
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    words = ticks(ready, release_id)
    first = ready.json("approve", release_id, "--as", "dr-lind", *words)
    assert (first["state"], first["approvals"]) == ("held", ["dr-lind"])
    assert ready.hub.sent == []
    ready.refused("approve", release_id, "--as", "dr-lind", *words, expect=12)
    shared = ready.refused("approve", release_id, "--as", "dr-berg", *words, expect=12)
    assert "TRIBUTARY_PASSPHRASE_DR_BERG" in shared["next_step"], "one shared word must not be two people"
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE_DR_BERG", PASSPHRASE)
    assert ready.json("approve", release_id, "--as", "dr-berg", *words)["state"] == "delivered"
    assert len(ready.hub.sent) == 1


def test_a_lost_connection_keeps_the_approval_and_the_same_bytes_are_sent_on(ready, monkeypatch):
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    words = ticks(ready, release_id)
    ready.hub.down = True
    body = ready.json("approve", release_id, "--as", "dr-lind", *words, expect=20)["refused"]
    assert "approval is kept" in body["next_step"]
    ready.hub.down = False
    monkeypatch.delenv("TRIBUTARY_PASSPHRASE")  # the signature is there: nobody is asked again
    assert ready.json("approve", release_id, "--as", "dr-lind")["state"] == "delivered"
    assert ready.json("approve", release_id, "--as", "dr-lind")["state"] == "delivered"
    assert len(ready.hub.sent) == 1


def test_a_warning_must_be_ticked(hospital, plan, table):
    # Two columns, so that a draw with no rare level in either is one in a thousand.
    table["grade"] = ["low"] * 220 + ["middle"] * 78 + ["high"] * 2
    table["clinic"] = ["north"] * 220 + ["south"] * 78 + ["west"] * 2
    ready = hospital.joined().approved(plan).with_table(table)
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    body = ready.refused("approve", release_id, "--as", "dr-lind", expect=12)
    assert "rare-levels" in body["given"]
    ready.refused("approve", release_id, "--as", "dr-lind", "--tick", "nonsense", expect=2)
    assert ready.json("approve", release_id, "--as", "dr-lind", *ticks(ready, release_id))["state"] == "delivered"
    decided = Envelope.from_bytes((ready.home / "sealed" / release_id / "decision-dr-lind.json").read_bytes())
    assert json.loads(decided.payload)["ticked"] == ["rare-levels"]


def test_bytes_that_changed_in_the_outbox_are_not_approved(ready):
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    words = ticks(ready, release_id)
    for name in ("bundle.zip", "checks.json", "audit.json"):
        path = ready.home / "sealed" / release_id / name
        data = path.read_bytes()
        path.write_bytes(data.replace(b"a", b"b", 1))
        ready("approve", release_id, "--as", "dr-lind", *words, expect=30)
        assert ready.hub.sent == [], name
        path.write_bytes(data)
    ready("approve", release_id, "--as", "dr-lind", *words)


def test_rejected_bytes_are_never_sent_and_stay_charged(ready):
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    ready.refused("reject", release_id, "--as", "dr-lind", expect=2)
    ready("reject", release_id, "--as", "dr-lind", "--reason", "too soon")
    ready("approve", release_id, "--as", "dr-lind", *ticks(ready, release_id), expect=2)
    assert ready.hub.sent == []
    assert ready.json("budget")["totals"][0]["burnt"] == 1
    assert "too soon" in ready("history")


def test_what_is_sent_back_may_still_be_approved(ready):
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    ready("send-back", release_id, "--as", "dr-berg", "--reason", "why so many rows?")
    assert ready.json("outbox", "list")["releases"][0]["state"] == "sent_back"
    assert ready.json("approve", release_id, "--as", "dr-lind", *ticks(ready, release_id))["state"] == "delivered"


def test_a_pause_is_effective_at_once_and_works_with_the_network_down(ready):
    ready("release", "mini", "--wave", "1")
    release_id = only(ready)
    ready.hub.down = True
    ready("pause", "--reason", "audit week")
    assert ready.json("status")["paused"] is True
    for words in (("release", "mini", "--wave", "1"), ("approve", release_id, "--as", "dr-lind")):
        assert ready.refused(*words, expect=10)["code"] == "E_PAUSED"
    ready("resume", "--as", "dr-lind")
    assert ready.json("status")["paused"] is False


def test_a_rehearsal_costs_nothing_and_says_what_it_does_not_show(hospital, plan):
    hospital.joined().publish(plan)
    hospital("plan", "fetch", "mini")
    text = hospital("try", "mini")
    assert "cost 0" in text
    assert "nothing about how your table" in " ".join(text.split())
    assert hospital.json("budget")["lines"] == []
    assert hospital.hub.anchored == []


def test_a_wave_outside_its_window_is_refused(hospital, plan, table, monkeypatch):
    window = (Wave(number=1, opens=dt.date(2026, 1, 1), closes=dt.date(2026, 1, 31)),)
    hospital.joined().approved(replace(plan, waves=window)).with_table(table)
    monkeypatch.setenv("TRIBUTARY_TODAY", "2026-02-01")
    assert "Ask the study lead" in hospital.refused("release", "mini", "--wave", "1", expect=10)["next_step"]
    monkeypatch.setenv("TRIBUTARY_TODAY", "2026-01-31")
    hospital("release", "mini", "--wave", "1")


def test_an_interrupted_draw_is_burnt_and_said_before_another_is_charged(ready, monkeypatch):
    from shared.mechanisms.latent_noise.noise import LatentNoise

    def die(self, x, rng):
        raise SystemExit(137)

    with monkeypatch.context() as patched:
        patched.setattr(LatentNoise, "release", die)
        ready("release", "mini", "--wave", "1", expect=137)
    body = ready.json("release", "mini", "--wave", "1", expect=2)["refused"]
    assert "new charge" in body["next_step"]
    assert ready.json("budget")["totals"][0]["burnt"] == 1


def test_the_status_always_names_one_next_step(hospital, plan, table):
    hospital("init", "--invitation", str(hospital.invitation), "--approver", "dr-lind")

    def following():
        return hospital.json("status")["next"]

    assert following() == ["site-agent join"]
    hospital("join")
    assert following() == ["site-agent plan fetch mini"]
    hospital.publish(plan)
    hospital("plan", "fetch", "mini")
    assert following() == ["site-agent data add FILE --as mini"]
    hospital.with_table(table)
    assert following() == ["site-agent plan show mini"]
    hospital.approved(plan)
    assert following() == ["site-agent release mini --wave 1"]
    hospital("release", "mini", "--wave", "1")
    assert following()[0].startswith("site-agent outbox show")


def test_the_status_says_that_the_coordinator_refuses_this_site(ready):
    def refusing(study):
        raise CertificateRefusal("a certificate must not be revoked", given="one that is", next_step="Call the lead.")

    ready.hub.holdings = refusing
    status = ready.json("status")
    assert (status["refused"], status["next"]) == ("E_CERT", ["site-agent doctor"])
    shown = " ".join(ready("status").split())
    assert "The coordinator refuses this site (E_CERT): a certificate must not be revoked" in shown
    assert "Call the lead." in shown
    assert "does not answer" not in shown
    del ready.hub.holdings
    ready.hub.down = True
    assert ready.json("status")["refused"] is None
    assert "does not answer now" in ready("status")


def test_the_audit_verifies_and_finds_a_flipped_byte(ready):
    ready("release", "mini", "--wave", "1")
    answer = ready.json("audit-verify")
    assert (answer["bundles"], answer["plan_approvals"]) == (1, 1)
    path = ready.home / "sealed" / only(ready) / "bundle.zip"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ready.refused("audit-verify", expect=30)


def test_every_reading_command_answers_a_person_and_a_program(ready):
    ready("release", "mini", "--wave", "1")
    before = ready.json("history")
    for line in READING:
        assert isinstance(ready.json(*line.split()), dict), line
        text = ready(*line.split())
        assert text.strip(), line
        assert max(map(len, text.splitlines())) <= 100, line
    assert ready.json("history") == before, "reading changes nothing"


@pytest.mark.parametrize("cap", [5000.0, 1000.0])
def test_a_site_put_back_is_refused_counts_what_it_lost_and_goes_on_when_the_lead_allows_it(hospital, plan, table, cap):
    waves = tuple(replace(plan.waves[0], number=number) for number in range(1, 5))
    many = replace(plan, waves=waves, budget=Budget(epsilon=cap), returning="refresh")
    ready = hospital.joined().approved(many).with_table(table)
    ready("release", "mini", "--wave", "1")
    shutil.copytree(ready.home, ready.folder / "backup")
    first = only(ready)
    ready("approve", first, "--as", "dr-lind", *ticks(ready, first))
    ready("release", "mini", "--wave", "2")
    assert ready.json("ledger", "recover")["state"] == "whole"
    before = ready.json("budget")["totals"][0]["epsilon"]

    shutil.rmtree(ready.home)
    shutil.copytree(ready.folder / "backup", ready.home)
    ready("reject", first, "--as", "dr-lind", "--reason", "a day's work on the old copy")
    assert ready.json("ledger", "verify")["ok"], "the two files agree: only the coordinator can tell"
    body = ready.refused("release", "mini", "--wave", "2", expect=30)
    assert (body["code"], "site-agent ledger recover" in body["next_step"]) == ("E_LEDGER", True)

    tried = ready.json("ledger", "recover", "--dry-run")
    assert (tried["state"], tried["fingerprint"]) == ("to count", "")
    counted = ready.json("ledger", "recover")
    assert counted["state"] == "counted"
    assert counted["charges"] == tried["charges"]
    assert counted["fingerprint"] in ready("ledger", "recover")
    assert ready.json("ledger", "recover")["fingerprint"] == counted["fingerprint"], "counted once"
    assert ready.json("budget")["totals"][0]["epsilon"] >= before
    over = cap == 1000.0  # room for both waves, and not for what the lost entries may have held beside them
    ready.refused("release", "mini", "--wave", "2", expect=11 if over else 30)
    status = ready.json("status")
    assert (status["next"], status["unallowed"]) == (["site-agent ledger recover"], counted["fingerprint"])
    assert "has not allowed" in ready("status")

    ready.hub.allowed = counted["fingerprint"]
    assert ready.json("ledger", "recover")["state"] == "done"
    status = ready.json("status")
    assert (status["unallowed"], status["forgotten"]) == ("", False)
    assert ready.json("ledger", "recover")["state"] == "whole"
    if over:
        assert status["next"] == ["site-agent budget mini"]
        assert "leaves no room" in ready("status")
        assert ready.refused("release", "mini", "--wave", "2", expect=11)["code"] == "E_BUDGET"
    else:
        assert status["next"] == ["site-agent release mini --wave 2"]
        ready("release", "mini", "--wave", "2")


def test_a_plan_version_is_remembered_when_its_files_are_gone(hospital, plan):
    second = replace(plan, version=2, title="A second version")
    hospital.joined().approved(plan)
    hospital.approved(second)
    shutil.rmtree(hospital.home / "plans")
    hospital.publish(plan)
    assert hospital.refused("plan", "fetch", "mini", expect=10)["code"] == "E_PLAN_ROLLBACK"
    hospital.publish(replace(second, title="Another second version"))
    assert hospital.refused("plan", "fetch", "mini", expect=10)["code"] == "E_PLAN_CHANGED"
    hospital.approved(second)
    assert hospital.json("plan", "show", "mini")["approved_by"] == "dr-lind"
    rows = hospital.json("history")["entries"]
    assert [row["kind"] for row in rows if row["seq"]] == ["genesis", *["plan_approved"] * 3]
    assert [(row["verb"], row["code"]) for row in rows if not row["seq"]] == [
        *[("plan fetch", "E_PLAN_ROLLBACK")] * 2,
        *[("plan fetch", "E_PLAN_CHANGED")] * 2,
    ]


def test_stages_are_told_in_a_log_and_not_in_json(ready):
    ready.json("release", "mini", "--wave", "1")  # parses: nothing but JSON on the way
    assert stages.ReleaseStage.FIT.value in ready("try", "mini")
