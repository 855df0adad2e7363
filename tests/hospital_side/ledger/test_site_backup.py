"""A hospital is lost and put back from a backup: nothing that was spent since can be spent again."""

from __future__ import annotations

import json
import shutil
import signal
import threading

import numpy as np
import pandas as pd
import pytest
from stage.processes.theatre import PASSPHRASE, Theatre, plan_toml

from shared.base.archive import read_archive, recipient_key


@pytest.fixture(scope="module")
def theatre(tmp_path_factory):
    """A coordinator, and a study of six waves that hospitals may join."""
    made = Theatre(tmp_path_factory.mktemp("theatre"))
    try:
        made.open(plan_toml(waves=6))
        rng = np.random.default_rng(7)
        columns = {"sbp": rng.uniform(100, 200, 120), "chol": rng.uniform(150, 300, 120)}
        frame = pd.DataFrame({"person": [f"p{i}" for i in range(120)], **columns, "died": rng.integers(0, 2, 120)})
        frame.to_csv(made.folder / "cohort.csv", index=False)
        yield made
    finally:
        made.close()


@pytest.fixture
def north(theatre):
    """A hospital that has joined."""
    site = f"north-{theatre.count}"
    theatre.join(site, theatre.folder / "cohort.csv", "storm")
    return site


def drawn(theatre, north, wave: int, **how):
    return theatre.agent(north, "release", "storm", "--wave", wave, "--by", "steward", **how)


def deliver(theatre, north, wave: int) -> str:
    made = drawn(theatre, north, wave).json
    ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
    theatre.agent(north, "approve", made["release_id"], "--as", "steward", *ticks)
    return made["release_id"]


def lose(theatre, north):
    shutil.rmtree(theatre.home(north))


def put_back(theatre, north, archive, *more, **how):
    argv = ("restore", archive, "--as", "steward", *more)
    told = theatre.agent(north, *argv, "--check").json
    return theatre.agent(north, *argv, "--fingerprint", told["fingerprint"], **how)


def spent(theatre, north) -> float:
    return theatre.agent(north, "budget").json["totals"][0]["epsilon"]


def reserved(theatre, north) -> int:
    return [kind for kind, _ in theatre.entries(north)].count("reserve")


@pytest.mark.fault("F17")
def test_a_site_lost_and_put_back_spends_nothing_before_it_has_counted_what_it_forgot(theatre, north, tmp_path):
    """Backed up while it delivers; whatever the age of the backup, its budget is never under-counted."""
    deliver(theatre, north, 1)
    archives = [tmp_path / f"{number}.backup" for number in range(3)]
    working = threading.Thread(target=deliver, args=(theatre, north, 2))
    working.start()
    for archive in archives:
        made = theatre.agent(north, "backup", archive).json
        assert (made["verified"], made["for"]) == (True, ["steward"])
    working.join()
    third = deliver(theatre, north, 3)
    before, entries = spent(theatre, north), theatre.entries(north)

    found = theatre.agent(north, "drill", archives[0], "--as", "steward").json
    assert [part["state"] for part in found["parts"]] == ["ok"] * 5
    assert found["parts"][-1]["detail"].startswith("goes on from the backup")
    lose(theatre, north)
    theatre.agent(north, "restore", archives[0], "--as", "steward", expect=2)
    put_back(theatre, north, archives[0])
    assert len(theatre.entries(north)) < len(entries)
    assert spent(theatre, north) < before, "what it remembers"
    # Nothing is charged or drawn, by hand or by the agent, and `status` and `doctor` say what to do.
    assert theatre.agent(north, "status").json["next"] == ["site-agent ledger recover"]
    said = drawn(theatre, north, 4, expect=None)
    assert (said.refused, said.json["refused"]["next_step"].split(":")[0]) == (
        "E_LEDGER",
        "Run site-agent ledger recover",
    )
    theatre.agent(north, "run", "--once", expect=None)
    [line] = [one for one in theatre.agent(north, "doctor", expect=None).json["checks"] if one["name"] == "ledger"]
    assert "settled" in line["detail"]
    assert reserved(theatre, north) == sum(kind == "reserve" for kind, _ in theatre.entries(north))

    dying = {"TRIBUTARY_FAILPOINT": "recovery.before_settled"}
    assert theatre.agent(north, "ledger", "recover", env=dying, expect=None).code == -signal.SIGKILL
    found = theatre.agent(north, "ledger", "recover").json
    assert found["state"] == "counted"
    lost = [body for kind, body in theatre.entries(north) if kind == "lost"]
    assert third in json.dumps(lost)
    assert spent(theatre, north) >= before
    assert drawn(theatre, north, 4, expect=None).refused == "E_LEDGER", "the lead has not allowed it"
    theatre.coordinator("reanchor", north, "--fingerprint", found["fingerprint"])
    assert theatre.agent(north, "ledger", "recover").json["state"] == "done"
    deliver(theatre, north, 5)
    # What it knows from the coordinator alone can be taken back all the same.
    assert theatre.agent(north, "withdraw", third, "--as", "steward", "--reason", "error").json["log_index"] is not None
    assert third not in released(theatre)
    assert theatre.coordinator("log", "verify").json["verified"]
    assert theatre.agent(north, "ledger", "verify").json["ok"]


def released(theatre) -> list[str]:
    """The releases that the coordinator shows to readers."""
    return [one["release_id"] for one in theatre.coordinator("releases").json["accepted"]]


def sent_after_its_backup(theatre, north, archive) -> str:
    """A release that waits in the backup and was delivered since; the site is put back."""
    made = drawn(theatre, north, 1).json
    ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
    theatre.agent(north, "backup", archive)
    theatre.agent(north, "approve", made["release_id"], "--as", "steward", *ticks)
    assert made["release_id"] in released(theatre)
    return str(made["release_id"])


@pytest.mark.fault("F17")
def test_what_was_delivered_after_the_backup_is_known_as_delivered_and_can_be_taken_back(theatre, north, tmp_path):
    """No head was witnessed in between, and none is missing: by its heads the old ledger is whole."""
    one = sent_after_its_backup(theatre, north, tmp_path / "b")
    put_back(theatre, north, tmp_path / "b", "--replace")
    [line] = [x for x in theatre.agent(north, "doctor", expect=None).json["checks"] if x["name"] == "deliveries"]
    assert "accepted by the coordinator, not delivered by the ledger" in line["detail"]
    said = theatre.agent(north, "reject", one, "--as", "steward", "--reason", "no", expect=30)
    assert (said.refused, "ledger recover" in said.json["refused"]["next_step"]) == ("E_LEDGER", True)
    assert theatre.agent(north, "ledger", "recover", "--dry-run").json["delivered"] == [one]
    found = theatre.agent(north, "ledger", "recover").json
    assert (found["state"], found["delivered"]) == ("whole", [one])
    [row] = theatre.agent(north, "outbox", "list").json["releases"]
    assert row["state"] == "delivered"
    assert theatre.agent(north, "ledger", "recover").json["delivered"] == []
    theatre.agent(north, "resend")  # and its acknowledgement is asked for again
    assert theatre.agent(north, "status").json["discrepancies"] == []
    assert theatre.agent(north, "audit", "verify").json["ok"]
    done = theatre.agent(north, "withdraw", one, "--as", "steward", "--reason", "consent").json
    assert (done["state"], done["log_index"] is None) == ("withdrawn", False)
    assert one not in released(theatre)
    assert theatre.agent(north, "audit", "verify").json["ok"]


def test_what_was_delivered_after_the_backup_is_buried_before_the_ledger_is_settled(theatre, north, tmp_path):
    one = sent_after_its_backup(theatre, north, tmp_path / "b")
    put_back(theatre, north, tmp_path / "b", "--replace")
    said = theatre.agent(north, "withdraw", one, "--as", "steward", "--reason", "consent", as_json=False)
    assert "The coordinator has buried it" in said.out
    assert one not in released(theatre)
    theatre.agent(north, "ledger", "recover")
    [row] = theatre.agent(north, "outbox", "list").json["releases"]
    assert row["state"] == "withdrawn"
    # Taken back while the coordinator was away: a later round asks.
    other = f"{north}-2"
    theatre.join(other, theatre.folder / "cohort.csv", "storm")
    one = sent_after_its_backup(theatre, other, tmp_path / "c")
    put_back(theatre, other, tmp_path / "c", "--replace")
    theatre.stop()
    said = theatre.agent(other, "withdraw", one, "--as", "steward", "--reason", "consent", as_json=False)
    assert "has nothing of it" not in said.out
    theatre.serve()
    theatre.agent(other, "run", "--once", expect=None)
    assert one not in released(theatre)


@pytest.mark.fault("F17")
def test_the_acknowledgement_of_a_counted_delivery_is_asked_for_again(theatre, north, tmp_path):
    """Approved after the backup: by its own word the ledger must not send it, and it needs no more than the word."""
    sent_after_its_backup(theatre, north, tmp_path / "b")
    drawn(theatre, north, 2)
    put_back(theatre, north, tmp_path / "b", "--replace")
    found = theatre.agent(north, "ledger", "recover").json
    theatre.coordinator("reanchor", north, "--fingerprint", found["fingerprint"])
    assert theatre.agent(north, "ledger", "recover").json["state"] == "done"
    settled = theatre.agent(north, "resend").json
    assert "its acknowledgement is not kept here" in json.dumps(settled)
    assert theatre.agent(north, "status").json["discrepancies"] == []
    assert theatre.agent(north, "audit", "verify").json["ok"]


def test_a_coordinator_put_back_shows_nothing_of_who_has_left(theatre, north, tmp_path):
    """Out of the study as well: the agent looks at every study that its ledger holds a release of."""
    one = deliver(theatre, north, 1)
    theatre.coordinator("backup", tmp_path / "hub")
    theatre.agent(north, "leave", "storm", "--as", "steward")
    theatre.coordinator("ungrant", north, "--study", "storm")
    theatre.agent(north, "run", "--once")
    theatre.stop()
    theatre.coordinator("restore", tmp_path / "hub", "--as", "lead", "--replace", "--reason", "a fire")
    theatre.serve()
    assert one in released(theatre)
    said = theatre.agent(north, "run", "--once", as_json=False)
    assert "mended: withdrawn here, shown by the coordinator" in said.out
    assert one not in released(theatre)


def test_a_backup_opens_for_who_approves_when_it_is_made_and_for_nobody_who_was_retired(theatre, north, tmp_path):
    home = theatre.home(north)
    theatre.agent(north, "approver", "add", "second", "--as", "steward")
    theatre.agent(north, "backup", tmp_path / "with")
    shutil.copy(home / "keys" / "approvers" / "second.pem", tmp_path / "second.pem")
    theatre.agent(north, "approver", "retire", "second", "--as", "steward")
    theatre.agent(north, "backup", tmp_path / "without")
    for name, code in (("with", 0), ("without", 12)):
        argv = ("restore", tmp_path / name, "--as", "second", "--key", tmp_path / "second.pem", "--check")
        assert theatre.agent(north, *argv, expect=code).refused == ("E_NOT_APPROVED" if code else "")
    # Nor does any other way in: the key itself opens what it was made for, and nothing after.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
        key = recipient_key(tmp_path / "with", "second", None)
    data = (tmp_path / "without").read_bytes()
    line, _, sealed = data.partition(b"\n")
    body = json.loads(line)
    body["recipients"]["second"] = key.public.hex
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    (tmp_path / "edited").write_bytes(text + b"\n" + sealed)
    (tmp_path / "into").mkdir()
    with pytest.raises(Exception, match="its beginning"):
        read_archive(tmp_path / "edited", key, tmp_path / "into", lambda name: True)
    assert list((tmp_path / "into").iterdir()) == []
    # What is deleted by its key stays deleted, and no table goes along.
    read_archive(tmp_path / "with", key, tmp_path / "into", lambda name: True)
    names = {path.relative_to(tmp_path / "into").parts[0] for path in (tmp_path / "into").rglob("*") if path.is_file()}
    assert names <= {
        "site.toml",
        "ledger.db",
        "ledger.head",
        "keys",
        "certificates",
        "plans",
        "acknowledged.jsonl",
        "refused.jsonl",
        "watch.json",
    }


def test_who_withdrew_stays_away_after_a_restore_and_a_site_without_that_list_is_not_backed_up(
    theatre, north, tmp_path
):
    deliver(theatre, north, 1)
    (tmp_path / "ids").write_text("p3\np4\n")
    theatre.agent(north, "withdraw-person", "storm", "--as", "steward", "--id-file", tmp_path / "ids")
    [kept] = (theatre.home(north) / "withdrawn").glob("*.json")
    theatre.agent(north, "backup", tmp_path / "b")
    found = theatre.agent(north, "drill", tmp_path / "b", "--as", "steward").json
    assert ["2 persons withdrew" in part["detail"] for part in found["parts"]] == [False, True, False, False, False]
    away = tmp_path / kept.name
    kept.rename(away)
    said = theatre.agent(north, "backup", tmp_path / "lost", expect=30).json["refused"]
    assert said["next_step"].endswith("without it, who may be drawn is unknown.")
    lose(theatre, north)
    put_back(theatre, north, tmp_path / "b")
    assert kept.read_bytes() == away.read_bytes()
    theatre.agent(north, "ledger", "recover")
    # The same persons are known to have withdrawn: nobody is noted again.
    argv = ("withdraw-person", "storm", "--as", "steward", "--id-file", tmp_path / "ids")
    assert theatre.agent(north, *argv).json["added"] == 0


def test_killed_on_its_way_back_the_old_home_or_the_new_one_is_there(theatre, north, tmp_path):
    home = theatre.home(north)
    theatre.agent(north, "backup", tmp_path / "b")
    deliver(theatre, north, 1)
    entries = len(theatre.entries(north))
    for point in ("restore.before_place", "restore.placed"):
        env = {"TRIBUTARY_FAILPOINT": point}
        argv = ("restore", tmp_path / "b", "--as", "steward", "--replace")
        assert theatre.agent(north, *argv, env=env, expect=None).code == -signal.SIGKILL
        there = len(theatre.entries(north))
        new = point == "restore.placed"
        assert (there != entries, (home / "restored.json").exists()) == (new, new)
        theatre.agent(north, "ledger", "verify")
    assert len(list(home.parent.glob(f".{home.name}.restore-*/home/ledger.db"))) == 1
    theatre.agent(north, "run", "--once", expect=None)
    assert not list(home.parent.glob(f".{home.name}.restore-*")), "keys lie beside no home"
    assert len(theatre.entries(f"{north}.before-restore-1")) == entries, "the old one is deleted by nobody"
    for point in ("backup.copied", "backup.written"):
        env = {"TRIBUTARY_FAILPOINT": point}
        assert theatre.agent(north, "backup", tmp_path / "again", env=env, expect=None).code == -signal.SIGKILL
        assert not (tmp_path / "again").exists()
    theatre.agent(north, "backup", tmp_path / "again")


def test_a_site_is_replaced_by_its_own_backup_and_a_backup_of_it_by_none_that_is_damaged(theatre, north, tmp_path):
    home = theatre.home(north)
    theatre.join("south", theatre.folder / "cohort.csv", "storm")
    theatre.agent("south", "backup", tmp_path / "south")
    theatre.agent(north, "backup", tmp_path / "b")
    said = theatre.agent(north, "restore", tmp_path / "south", "--as", "steward", "--replace", expect=None)
    assert (said.refused, said.json["refused"]["given"]) == ("E_INTEGRITY", "another site's")
    # Elsewhere nothing vouches for the key in the backup but the lead's voice: its fingerprint is not there to paste.
    shown = theatre.agent(north, "status").json["fingerprint"]
    for heard, given in (((), "no fingerprint"), (("--fingerprint", "ab" * 32), "another fingerprint")):
        home.rename(aside := tmp_path / "aside")
        said = theatre.agent(north, "restore", tmp_path / "b", "--as", "steward", *heard, expect=None)
        assert (said.refused, said.json["refused"]["given"], shown in said.out) == ("E_STATE", given, False)
        assert "the lead reads it out" in said.json["refused"]["next_step"]
        aside.rename(home)
    theatre.coordinator("backup", tmp_path / "hub")
    said = theatre.agent(north, "restore", tmp_path / "hub", "--as", "lead", "--check", expect=None)
    assert said.refused == "E_SCHEMA"
    whole = (tmp_path / "b").read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2):
        (tmp_path / "b").write_bytes(whole[:cut])
        found = theatre.agent(north, "drill", tmp_path / "b", "--as", "steward", expect=30).json
        assert [(part["name"], part["state"]) for part in found["parts"]] == [("archive", "fail")]
    assert "its end" in found["parts"][0]["detail"] or "another" in found["parts"][0]["detail"]
    # A site that is not whole is not backed up, and the backup says which part.
    with (home / "refused.jsonl").open("a") as file:
        file.write("{}\n")
    assert theatre.agent(north, "backup", tmp_path / "c", expect=None).refused
    assert not (tmp_path / "c").exists()


def test_where_both_sides_were_put_back_nobody_knows_what_was_spent_and_nothing_is(theatre, north, tmp_path):
    deliver(theatre, north, 1)
    theatre.agent(north, "backup", tmp_path / "site")
    theatre.coordinator("backup", tmp_path / "hub")
    deliver(theatre, north, 2)
    theatre.stop()
    theatre.coordinator("restore", tmp_path / "hub", "--as", "lead", "--replace", "--reason", "a fire")
    theatre.serve()
    lose(theatre, north)
    put_back(theatre, north, tmp_path / "site")
    said = theatre.agent(north, "ledger", "recover", expect=None)
    assert (said.refused, said.json["refused"]["given"]) == ("E_LEDGER", "both were put back")
    assert drawn(theatre, north, 3, expect=None).refused == "E_LEDGER"
    # Its running studies are over for it, and no others: it joins those with another folder.
    theatre.coordinator("revoke", north)
    theatre.home(north).rename(theatre.home(f"{north}-before"))
    theatre.sign(plan_toml(study="after", waves=1))
    theatre.join(north, theatre.folder / "cohort.csv", "after")
    found = theatre.agent(north, "ledger", "recover").json
    theatre.coordinator("reanchor", north, "--fingerprint", found["fingerprint"])
    assert theatre.agent(north, "ledger", "recover").json["state"] == "done"
    theatre.agent(north, "release", "after", "--wave", "1", "--by", "steward")
    assert drawn(theatre, north, 3, expect=None).refused
