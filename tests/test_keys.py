"""Keys on disk and signed envelopes."""

from __future__ import annotations

import pytest

from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import Refusal, SchemaRefusal, SignatureRefusal, StateRefusal, StorageRefusal


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


def test_malformed_envelopes_and_keys_are_refused():
    for data in (b"", b"[]", b"{}", b'{"payload":"","payloadType":"","signatures":[]}', b"\xff", b"[" * 100_000):
        with pytest.raises(SchemaRefusal):
            Envelope.from_bytes(data)
    with pytest.raises(SchemaRefusal):
        PublicKey("00")
