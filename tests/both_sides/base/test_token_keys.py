"""Keys that a token keeps (PKCS#11, here SoftHSM): the authority's and a site's release key sign and are never read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from stage.both_sides.joined import Joined
from stage.hospital_side.recovery import PLAN

from shared.base.at_rest import pem_of, private_key
from shared.base.keys import SigningKey, unencrypted
from shared.errors import ParameterError, StateRefusal, StorageRefusal
from site_agent.desk import Desk

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
pkcs11 = pytest.importorskip("pkcs11")


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    """URIs of a token's keys, by name."""
    if shutil.which("softhsm2-util") is None or not MODULE.exists():
        pytest.skip("SoftHSM is not installed")
    from pkcs11.util.ec import encode_named_curve_parameters

    folder = tmp_path_factory.mktemp("token")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\n")
    (folder / "pin").write_text("4711\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", f"{folder / 'softhsm2.conf'}")
        words = ["softhsm2-util", "--init-token", "--free", "--label", "site", "--pin", "4711", "--so-pin", "4711"]
        subprocess.run(words, check=True, capture_output=True)
        curves = {"ca": encode_named_curve_parameters("secp256r1"), "release": b"\x13\x0cedwards25519"}
        with pkcs11.lib(f"{MODULE}").get_token(token_label="site").open(rw=True, user_pin="4711") as session:
            for name, curve in curves.items():
                kind = pkcs11.KeyType.EC if name == "ca" else pkcs11.KeyType.EC_EDWARDS
                made = session.create_domain_parameters(kind, {pkcs11.Attribute.EC_PARAMS: curve}, local=True)
                how = {} if name == "ca" else {"mechanism": pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN}
                made.generate_keypair(store=True, label=name, **how)
        where = f"module-path={MODULE}&pin-source=file:{folder / 'pin'}"
        yield {name: f"pkcs11:token=site;object={name}?{where}" for name in curves}


def test_a_coordinator_and_a_site_work_by_keys_that_a_token_keeps(token, tmp_path, monkeypatch, capsys):
    (tmp_path / "hub" / "ca").mkdir(parents=True)
    (tmp_path / "hub" / "ca" / "ca.key").write_text(token["ca"])
    with Joined(tmp_path, monkeypatch, capsys, PLAN) as hub:
        assert (hub.home / "ca" / "ca.key").read_text().startswith("pkcs11:token=site;object=ca?")
        keys = tmp_path / "north" / "keys"
        keys.mkdir(parents=True)
        (keys / "release.pem").write_text(token["release"])
        (keys / "release.pem").chmod(0o600)
        # The folder moves aside when a site joins anew: here it is the site's own, with its reference in it.
        monkeypatch.setattr(Path, "rename", lambda self, to: self)
        site = hub.site("north")
        assert site("status")["site"] == "north"
        assert "ok" in {check["state"] for check in site("doctor")["checks"] if check["name"] == "coordinator"}
        assert Desk(site.home).ledger.verify() >= 1
        assert unencrypted([keys / "release.pem", hub.home / "ca" / "ca.key"]) == []
        assert (keys / "release.pem").read_text() == token["release"]


def test_what_a_token_keeps_signs_and_is_not_given_out(token, tmp_path):
    path = tmp_path / "key.pem"
    path.write_text(token["release"])
    path.chmod(0o600)
    key = SigningKey.load(path)
    assert key.public.verifies(key.sign(b"text"), b"text")
    assert not key.public.verifies(key.sign(b"text"), b"other")
    with pytest.raises(StateRefusal, match="stay there"):
        key.openssh()
    assert pem_of(private_key(path.read_bytes(), "key.pem")).decode().strip() == token["release"]


def test_a_token_that_is_not_there_a_wrong_pin_and_half_a_name_are_refused(token, tmp_path):
    uri = token["release"]
    wrong = tmp_path / "pin"
    wrong.write_text("0000")
    with pytest.raises(StorageRefusal):
        private_key(uri.replace("token=site", "token=other").encode(), "release.pem")
    with pytest.raises(StorageRefusal):
        private_key(uri.replace("object=release", "object=none").encode(), "release.pem")
    with pytest.raises(StorageRefusal):
        private_key(f"{uri.partition('file:')[0]}file:{wrong}".encode(), "release.pem")
    with pytest.raises(StateRefusal):
        private_key(f"{uri.partition('file:')[0]}file:{tmp_path / 'nowhere'}".encode(), "release.pem")
    with pytest.raises(ParameterError):
        private_key(b"pkcs11:token=site", "release.pem")
