"""Keys that programs open unattended lie encrypted where the machine has a secret, and nowhere else in the clear."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from stage.both_sides.membership import Clock, Membership
from stage.processes.theatre import Theatre, plan_toml

from coordinator import cli
from coordinator.services.authority import Authority, encrypt_keys, rotate, unattended
from shared.base.at_rest import KEY_FILE_VARIABLE, clear_pem, finding, pem_of, private_key
from shared.base.keys import SigningKey
from shared.errors import ParameterError, PassphraseRefusal, StateRefusal, StorageRefusal
from shared.wire.certificates import RENEW_DAYS, SITE_DAYS
from site_agent import cli as site_cli
from site_agent.decide import key_files

CLEAR = b"BEGIN PRIVATE KEY"


@pytest.fixture
def secret(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_text("5f" * 32 + "\n")
    path.chmod(0o600)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(path))
    return path


def in_the_clear(*folders) -> list[str]:
    """Every file below that holds a private key unencrypted."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return sorted(path.name for path in files if CLEAR in path.read_bytes())


def test_a_key_is_opened_by_this_machines_secret_and_by_nothing_else(tmp_path, secret, monkeypatch):
    key, path = SigningKey.generate(), tmp_path / "release.pem"
    key.save(path, of_machine=True)
    pem = pem_of(ec.generate_private_key(ec.SECP256R1()))
    assert CLEAR not in path.read_bytes() + pem
    assert SigningKey.load(path).public == key.public
    assert CLEAR.decode() in clear_pem(pem.decode(), "tls.pem")
    secret.write_text("60" * 32)
    for opened in (lambda: SigningKey.load(path), lambda: private_key(pem, "tls.pem")):
        with pytest.raises(PassphraseRefusal, match="one that does not"):
            opened()
    monkeypatch.delenv(KEY_FILE_VARIABLE)
    with pytest.raises(PassphraseRefusal, match=f"release.pem, got no {KEY_FILE_VARIABLE}"):
        SigningKey.load(path)


def test_a_secret_that_is_short_or_gone_leaves_no_key_in_the_clear(tmp_path, secret):
    path = tmp_path / "release.pem"
    for wrong in ("too short", "5f" * 512):
        secret.write_text(wrong)
        with pytest.raises(ParameterError, match="32 to 1023 bytes"):
            SigningKey.generate().save(path, of_machine=True)
    secret.unlink()
    with pytest.raises(StateRefusal, match="must be readable"):
        SigningKey.generate().save(path, of_machine=True)
    assert not path.exists()


def test_whoever_sets_up_a_coordinator_is_told_how_each_key_lies_and_what_to_do(tmp_path, monkeypatch, capsys):
    home = tmp_path / "hub"
    setting_up = ["--home", str(home), "init", "--json"]
    assert cli.main(setting_up) == 0
    said = json.loads(capsys.readouterr().out)["keys_at_rest"]
    clear = "ca/ca.key (mode 600), ca/server.pem (mode 600), ca/witness.pem (mode 600)"
    assert (said["state"], said["detail"]) == ("warn", f"not encrypted: {clear}")
    assert f"set {KEY_FILE_VARIABLE}" in said["fix"]
    assert finding(unattended(home), home, "coordinator serve") == tuple(said.values())
    (home / "ca" / "server.pem").chmod(0o640)
    state, detail, fix = finding(unattended(home), home, "coordinator serve")
    assert (state, "ca/server.pem" in detail, fix) == ("warn", True, "In hub/: chmod 600 ca/server.pem")
    (home / "ca" / "server.pem").chmod(0o600)
    path = tmp_path / "secret"
    path.write_text("5f" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(path))
    assert finding(unattended(home), home, "coordinator serve")[2] == "Run coordinator serve."
    encrypt_keys(home)
    state, detail, _ = finding(unattended(home), home, "coordinator serve")
    assert (state, detail[-len(clear) :]) == ("ok", clear)


def test_whoever_sets_up_a_site_is_told_how_each_key_lies(tmp_path, monkeypatch, capsys):
    made = Authority.create(tmp_path / "hub", coordinator="hub")
    invited = made.invite("north", ["storm"], address="localhost:1", leads=[SigningKey.generate().public])
    (tmp_path / "north.json").write_bytes(invited.to_bytes())
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", "a passphrase of twelve")
    given = ["--invitation", str(tmp_path / "north.json"), "--approver", "steward", "--json"]
    with pytest.raises(SystemExit, match=r"^0$"):
        site_cli.main(["init", "--home", str(tmp_path / "north"), *given])
    said = json.loads(capsys.readouterr().out)["keys_at_rest"]
    assert (said["state"], said["detail"]) == (
        "warn",
        "not encrypted: keys/release.pem (mode 600), keys/tls.pem (mode 600)",
    )


@pytest.mark.parametrize("name", ["ca.key", "server.pem", "witness.pem"])
def test_a_coordinator_whose_keys_others_may_read_is_refused(tmp_path, name):
    made = Authority.create(tmp_path, coordinator="hub")
    path = tmp_path / "ca" / name
    path.chmod(0o660)
    with pytest.raises(StorageRefusal, match=f"{name} must be readable by its owner only, got 0o660. chmod 600"):
        Authority.load(tmp_path)
    path.chmod(0o600)
    assert Authority.load(tmp_path).fingerprint == made.fingerprint


def test_a_secret_that_everybody_may_read_is_told(tmp_path, secret):
    for mode, state in ((0o400, "ok"), (0o440, "ok"), (0o444, "warn")):
        secret.chmod(mode)
        assert finding([], tmp_path / "home", "coordinator serve")[0] == state


def test_keys_from_before_are_encrypted_once_there_is_a_secret_and_everything_goes_on(tmp_path, monkeypatch):
    clock = Clock(tmp_path, monkeypatch)
    member = Membership(tmp_path / "all", clock, "north", "south")
    try:
        ca, keys = member.hub.home / "ca", member.homes["north"] / "keys"
        config = member.desk().config
        assert in_the_clear(ca, keys) == ["ca.key", "release.pem", "server.pem", "tls.pem", "witness.pem"]
        assert key_files.encrypt_keys(config) == encrypt_keys(member.hub.home) == [], "without a secret"
        path = tmp_path / "secret"
        path.write_text("5f" * 32)
        monkeypatch.setenv(KEY_FILE_VARIABLE, str(path))
        key_files.encrypt_keys(config)
        encrypt_keys(member.hub.home)
        assert in_the_clear(ca, keys) == []
        member.serve_anew()
        assert member.connects()
        rotate(Authority.load(member.hub.home, now=member.hub.authority.now))
        member.round()  # pins the next authority
        clock.turn(SITE_DAYS - RENEW_DAYS + 1)  # the server's key and the site's are made anew
        assert member.round()["renewed its certificate"]
        assert member.connects()
        assert in_the_clear(ca, keys) == []
    finally:
        member.close()


def test_a_study_runs_and_its_backup_holds_the_keys_where_they_are_encrypted(tmp_path, secret, monkeypatch):
    """Real processes from nothing to a delivery; the coordinator is lost and put back without its keys apart."""
    theatre = Theatre(tmp_path / "all")
    try:
        theatre.open(plan_toml())
        rng, table = np.random.default_rng(7), tmp_path / "cohort.csv"
        columns = {"sbp": rng.uniform(100, 200, 120), "chol": rng.uniform(150, 300, 120)}
        frame = pd.DataFrame({"person": [f"p{i}" for i in range(120)], **columns, "died": rng.integers(0, 2, 120)})
        frame.to_csv(table, index=False)
        theatre.join("north", table, "storm")
        made = theatre.agent("north", "release", "storm", "--by", "steward").json
        ticks = [word for warning in made["warnings"] for word in ("--tick", warning["name"])]
        theatre.agent("north", "approve", made["release_id"], "--as", "steward", *ticks)
        homes = (theatre.hub / "ca", theatre.home("north") / "keys")
        assert in_the_clear(*homes) == []
        assert said(theatre.agent("north", "doctor").json) == ("ok", "encrypted by the secret")
        assert said(theatre.coordinator("doctor").json) == ("ok", "encrypted by the secret")
        theatre.coordinator("backup", tmp_path / "b.tar")
        theatre.agent("north", "backup", tmp_path / "n.tar")
        theatre.stop()
        shutil.rmtree(theatre.hub)
        secret.write_text("60" * 32)  # another machine: the first one is lost, and its secret with it
        theatre.coordinator("restore", tmp_path / "b.tar", "--as", "lead", "--reason", "a fire")
        theatre.serve()
        again = ("restore", tmp_path / "n.tar", "--as", "steward", "--replace")
        # What this machine cannot read is put aside, and it cannot tell that it is the same site's.
        told = theatre.agent("north", *again, "--check").json
        theatre.agent("north", *again, "--fingerprint", told["fingerprint"])
        assert in_the_clear(*homes) == []
        for side in (theatre.agent("north", "doctor", expect=None), theatre.coordinator("doctor", expect=None)):
            assert said(side.json) == ("ok", "encrypted by the secret")
        assert theatre.agent("north", "status").json["discrepancies"] == []
        monkeypatch.delenv(KEY_FILE_VARIABLE)
        refused = theatre.agent("north", "doctor", expect=None)
        assert f"Set {KEY_FILE_VARIABLE} as for the service" in json.dumps(refused.json)
    finally:
        theatre.close()


def said(answer) -> tuple[str, str]:
    [line] = [one for one in answer["checks"] if one["name"] == "keys at rest"]
    return line["state"], line["detail"][:23]
