"""Keys on disk and signed envelopes."""

from __future__ import annotations

import base64
import errno
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.base import keys
from shared.base.keys import Envelope, PublicKey, SigningKey, write_private
from shared.base.locked import KeyCost, unlock
from shared.errors import (
    ParameterError,
    PassphraseRefusal,
    Refusal,
    SchemaRefusal,
    SignatureRefusal,
    StateRefusal,
    StorageRefusal,
)


def test_a_key_survives_the_disk_and_only_its_passphrase_opens_it(tmp_path):
    key = SigningKey.generate()
    path = tmp_path / "keys" / "release.pem"
    key.save(path, "correct horse")
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path, "correct horse").public == key.public
    for wrong in ("wrong horse", None):
        with pytest.raises(SignatureRefusal, match="passphrase"):
            SigningKey.load(path, wrong)


def test_a_key_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "release.pem"
    SigningKey.generate().save(path)
    path.chmod(0o640)
    with pytest.raises(StorageRefusal, match="chmod 600"):
        SigningKey.load(path)
    with pytest.raises(StateRefusal):
        SigningKey.load(tmp_path / "absent.pem")


def test_the_secret_is_not_in_the_text_form():
    key = SigningKey.generate()
    assert repr(key) == f"SigningKey({key.public.key_id})"


def test_the_signature_covers_the_type():
    key = SigningKey.generate()
    envelope = Envelope.sign("a/b", b"payload", [key])
    moved = Envelope(payload_type="a/c", payload=b"payload", signatures=envelope.signatures)
    assert moved.verified_by({key.public.key_id: key.public}) == set()
    # "a/b" + "payload" must not be confused with "a" + "/bpayload": lengths are signed
    assert Envelope.encoding("a/b", b"payload") != Envelope.encoding("a", b"/bpayload")


def test_one_key_cannot_count_twice():
    key = SigningKey.generate()
    envelope = Envelope.sign("a/b", b"payload", [key, key])
    with pytest.raises(SignatureRefusal, match="2 signature"):
        envelope.require("a/b", {key.public.key_id: key.public}, threshold=2)


@pytest.mark.fault("F9")
def test_every_flipped_bit_of_an_envelope_is_found():
    key = SigningKey.generate()
    pinned = {key.public.key_id: key.public}
    data = Envelope.sign("a/b", b"payload", [key]).to_bytes()
    for place in range(len(data)):
        for bit in (1, 32, 128):
            changed = bytearray(data)
            changed[place] ^= bit
            with pytest.raises(Refusal):
                Envelope.from_bytes(bytes(changed)).require("a/b", pinned)


def test_an_envelope_has_one_form_only():
    key = SigningKey.generate()
    data = Envelope.sign("a/b", b"payload", [key]).to_bytes()
    assert data.count(b'"payload":"cGF5bG9hZA=="') == 1
    spare = data.replace(b"cGF5bG9hZA==", b"cGF5bG9hZB==")  # the same bytes, were spare bits ignored
    with pytest.raises(SchemaRefusal, match="canonical"):
        Envelope.from_bytes(spare)


@pytest.mark.fault("F9")
def test_malformed_envelopes_and_keys_are_refused():
    for data in (b"", b"[]", b"{}", b'{"payload":"","payloadType":"","signatures":[]}', b"\xff", b"[" * 100_000):
        with pytest.raises(SchemaRefusal):
            Envelope.from_bytes(data)
    with pytest.raises(SchemaRefusal):
        PublicKey("00")


def test_a_guess_at_a_passphrase_costs_128_megabytes_and_the_price_stands_in_the_file(tmp_path, monkeypatch):
    script = "from shared.base.keys import COST; print(COST.memory >> 20, COST.work >> 20)"
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["128", "2"]  # what the product has where no test has put another in its place
    path = tmp_path / "ada.pem"
    SigningKey.generate().save(path, "correct horse", cost=KeyCost(n=64, r=2, p=3))
    assert unlock(path.read_bytes(), "correct horse")[1] == KeyCost(n=64, r=2, p=3)
    assert b"PRIVATE" not in path.read_bytes()


@pytest.mark.fault("F23")
def test_a_key_of_an_earlier_version_is_encrypted_anew_at_its_next_use(tmp_path):
    key, path = Ed25519PrivateKey.generate(), tmp_path / "ada.pem"
    lock = serialization.BestAvailableEncryption(b"eight888")  # what was long enough then still opens
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    path.chmod(0o600)
    with pytest.raises(PassphraseRefusal):
        SigningKey.load(path, "another8")
    assert b"ENCRYPTED PRIVATE KEY" in path.read_bytes()
    loaded = SigningKey.load(path, "eight888")
    assert b"TRIBUTARY ENCRYPTED KEY" in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path, "eight888").public == loaded.public


def test_a_key_that_is_cheaper_to_guess_at_than_today_is_encrypted_anew(tmp_path, monkeypatch):
    path = tmp_path / "ada.pem"
    SigningKey.generate().save(path, "correct horse")
    first = path.read_bytes()
    SigningKey.load(path, "correct horse")
    assert path.read_bytes() == first
    monkeypatch.setattr(keys, "COST", KeyCost(n=16, r=2))
    SigningKey.load(path, "correct horse")
    assert unlock(path.read_bytes(), "correct horse")[1] == KeyCost(n=16, r=2)
    monkeypatch.setattr(keys, "COST", KeyCost(n=2, r=1))
    SigningKey.load(path, "correct horse")
    assert unlock(path.read_bytes(), "correct horse")[1] == KeyCost(n=16, r=2), "a dearer one stays"


def test_a_passphrase_that_is_changed_while_its_key_is_encrypted_anew_stays_changed(tmp_path, monkeypatch):
    path, key = tmp_path / "ada.pem", SigningKey.generate()
    key.save(path, "correct horse", cost=KeyCost(n=2, r=1))
    monkeypatch.setattr(keys, "COST", KeyCost(n=16, r=2))
    real, slow = SigningKey._file, [True]

    def changing(self, passphrase, cost):
        made = real(self, passphrase, cost)
        if slow.pop() if slow else False:  # while the price is paid, somebody else changes the passphrase
            key.save(path, "another horse")
        return made

    monkeypatch.setattr(SigningKey, "_file", changing)
    SigningKey.load(path, "correct horse")
    assert SigningKey.load(path, "another horse").public == key.public
    with pytest.raises(PassphraseRefusal):
        SigningKey.load(path, "correct horse")


def test_a_passphrase_is_changed_when_whoever_holds_the_file_has_written_it(tmp_path):
    path, key = tmp_path / "ada.pem", SigningKey.generate()
    key.save(path, "correct horse")
    changing = threading.Thread(target=key.save, args=(path, "another horse"))
    with keys._held(path, required=True):
        changing.start()
        changing.join(0.3)
        assert changing.is_alive(), "it waits"
        write_private(path, path.read_bytes())  # a new file takes the name: the lock on the old one is worth nothing
    changing.join()
    assert SigningKey.load(path, "another horse").public == key.public


@pytest.mark.parametrize("n", [0, 1, 3, 6, 1000])
def test_scrypt_is_asked_for_a_power_of_two_alone(n):
    with pytest.raises(ParameterError, match="a power of two"):
        KeyCost(n=n)


def test_a_locked_file_whose_price_or_bytes_were_edited_does_not_open(tmp_path):
    path = tmp_path / "ada.pem"
    SigningKey.generate().save(path, "correct horse", cost=KeyCost(n=4, r=1))
    head, *body, foot = path.read_text().strip().splitlines()
    text = base64.b64decode("".join(body))
    for wrong in (text.replace(b'"p":1', b'"p":2'), text.replace(b'"n":4', b'"n":8')):
        path.write_text("\n".join([head, base64.b64encode(wrong).decode(), foot]))
        with pytest.raises(PassphraseRefusal):
            SigningKey.load(path, "correct horse")
    for wrong in (
        text.replace(b'"n":4', b'"n":1e9'),
        text.replace(b'"n":4', b'"n":1125899906842624'),
        text[:-1],
        b"[]",
    ):
        path.write_text("\n".join([head, base64.b64encode(wrong).decode(), foot]))
        with pytest.raises(SchemaRefusal):
            SigningKey.load(path, "correct horse")


def test_a_new_passphrase_has_twelve_characters(tmp_path):
    with pytest.raises(ParameterError, match="12 characters, got 11"):
        SigningKey.generate().save(tmp_path / "ada.pem", "eleven-char")
    assert not (tmp_path / "ada.pem").exists()


def of_two_processes(work, rounds: int) -> list[list[str]]:
    """What two processes say that do `work(process, round)` at the same moment, round after round."""
    fork = multiprocessing.get_context("fork")
    together, said = fork.Barrier(2), [fork.SimpleQueue() for _ in range(2)]

    def one(number: int) -> None:
        for k in range(rounds):
            together.wait(60)
            try:
                said[number].put(work(number, k))
            except (OSError, Refusal) as error:
                said[number].put(f"{error}")

    both = [fork.Process(target=one, args=(number,)) for number in range(2)]
    for process in both:
        process.start()
    heard = [[queue.get() for _ in range(rounds)] for queue in said]
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    return heard


def test_of_two_processes_that_make_a_key_of_one_name_one_has_made_it_and_the_other_is_told(tmp_path):
    def save(_: int, k: int) -> str:
        key = SigningKey.generate()
        try:
            key.save(tmp_path / f"{k}.pem", new=True)
        except StateRefusal as refusal:
            return refusal.code
        return key.public.hex

    for k, answers in enumerate(zip(*of_two_processes(save, 200), strict=True)):
        made = [answer for answer in answers if answer != StateRefusal.code]
        assert made == [SigningKey.load(tmp_path / f"{k}.pem").public.hex], answers
    assert not list(tmp_path.glob("*.part"))


def test_of_two_processes_that_write_one_file_each_has_written_it_whole(tmp_path):
    """Under one name for both's parts the second emptied what the first was about to give its name."""
    path = tmp_path / "release.pem"

    def write(number: int, k: int) -> str:
        write_private(path, b"%d" % number * (1 << 16))
        found = path.read_bytes()
        return "whole" if found in (b"0" * (1 << 16), b"1" * (1 << 16)) else f"{len(found)} bytes"

    assert of_two_processes(write, 200) == [["whole"] * 200] * 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["release.pem"]


def test_a_part_that_a_crash_left_is_taken_up_and_one_that_has_its_name_already_is_not_emptied(tmp_path):
    path, part = tmp_path / "release.pem", tmp_path / "release.pem.part"
    part.write_bytes(b"the longer half of another key")
    write_private(path, b"key")
    assert path.read_bytes() == b"key"
    part.hardlink_to(path)  # killed between the new name and the end of the old one
    with pytest.raises(StateRefusal, match="new"):
        write_private(path, b"another", new=True)
    assert path.read_bytes() == b"key"
    assert not part.exists()


def test_a_name_is_taken_once_where_there_are_no_links(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("shared.base.durable.os.link", refused)
    path = tmp_path / "release.pem"
    write_private(path, b"key", new=True)
    with pytest.raises(StateRefusal, match="new"):
        write_private(path, b"another", new=True)
    assert path.read_bytes() == b"key"


@pytest.mark.parametrize("what", ["mkdir", "fsync"])
def test_a_private_file_that_a_full_disk_does_not_take_is_a_refusal_with_a_next_step(what, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "folder" / "paused"
    monkeypatch.setattr(os, what, full)
    with pytest.raises(StorageRefusal, match="paused must be writable") as refused:
        write_private(path, b"now\n")
    assert refused.value.given == "No space left on device"
    assert refused.value.next_step.startswith("Free space")
    assert not path.exists()
