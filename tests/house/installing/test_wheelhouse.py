"""The folder for machines without a network: the same bytes twice, and an installation from it alone that works."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from stage.house.light_verbs import PROGRAMS

from tests.stage.house.sources import ROOT

WITHOUT_A_ROUTE = """
set -eu
ip link set lo up
test -z "$(ip route)"
python3 -m venv there
there/bin/python -m pip install --quiet --disable-pip-version-check --no-index --require-hashes \
  --find-links "$1/wheels" -r "$1/requirements.txt"
export PATH="$PWD/there/bin:$PATH"
"""
IN_A_ROOT = """
set -eu
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount --bind "$2" "$1/state"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
ip link set lo up
test -z "$(ip route)"
cd "$1/state"
exec chroot "$1" setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  env -i PATH=/opt/tributary/bin:/usr/bin:/bin HOME=/state OMP_NUM_THREADS=1 bash -c "cd; $3"
"""
"""A root filesystem, read-only, as nobody in particular, without a line: as deploy/containers/try.sh."""
SERVE = """
coordinator serve > serve.log 2>&1 &
trap "kill $!" EXIT
until grep -q "answers on" serve.log; do kill -0 $!; sleep 0.2; done
"""


def first_ten_minutes() -> str:
    """The page as one script: its blocks in order, the server beside them."""
    page = (ROOT / "docs" / "first-ten-minutes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(SERVE if block.strip() == "coordinator serve" else block for block in blocks)


@pytest.fixture(scope="module")
def folders():
    spec = importlib.util.spec_from_file_location("release_folder", ROOT / "deploy" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, licence: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name.replace('_', '-')}\nVersion: 1.0\n{licence}\n")
    return path


def test_the_others_wheels_come_from_a_folder_that_is_named_and_from_no_index(folders, tmp_path, monkeypatch):
    """Of a second folder, that is: the same bytes, without the index a second time."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/nobody")
    monkeypatch.setattr(folders, "ROOT", tmp_path)
    (tmp_path / "constraints.txt").write_text("Other-part==1.0\n")
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    needs = "Metadata-Version: 2.1\nProvides-Extra: site\nRequires-Dist: other-part; extra == 'site'"
    ours, other = wheel(out, "tributary_meta", needs), wheel(source, "Other_part", "Metadata-Version: 2.1")
    for one in (ours, other):
        with zipfile.ZipFile(one, "a") as archive:
            name = one.name.removesuffix("-py3-none-any.whl")
            archive.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{name}.dist-info/RECORD", "")
    assert [one.name for one in folders.collect(ours, "site", source)] == [other.name, ours.name]
    assert (out / other.name).read_bytes() == other.read_bytes()
    with pytest.raises(subprocess.CalledProcessError):
        folders.collect(ours, "site", tmp_path)


def test_each_wheel_is_pinned_by_its_hash_and_stands_in_the_bill(folders, tmp_path):
    ours = wheel(tmp_path, "tributary_meta", "License-Expression: Apache-2.0")
    other = wheel(tmp_path, "Other_part", "License: MIT\n")
    lines = folders.requirements([other, ours], ours, "site").splitlines()
    assert lines[1] == f"Other-part==1.0 --hash=sha256:{folders.sha256(other)}"
    assert lines[2].startswith("tributary-meta[site]==1.0 --hash=sha256:")
    bill = folders.bill([other, ours], ours, "2026-01-01T00:00:00Z")
    assert bill["metadata"]["component"]["name"] == "tributary-meta"
    assert bill["components"][0]["purl"] == "pkg:pypi/other-part@1.0"
    assert bill["components"][0]["licenses"] == [{"license": {"name": "MIT"}}]
    assert bill == folders.bill([other, ours], ours, "2026-01-01T00:00:00Z")
    assert bill["serialNumber"] != folders.bill([ours], ours, "2026-01-01T00:00:00Z")["serialNumber"]


def test_a_licence_is_its_name_and_not_the_first_line_of_its_text(folders, tmp_path):
    """As kiwisolver, scipy and cycler have it, whose field is the whole text; Jinja2 has classifiers alone."""
    osi = "Classifier: License :: OSI Approved ::"
    text = f"License: =====\n        The Kiwi terms\n{osi} BSD License\nClassifier: Typing :: Typed"
    for name, said, names in [
        ("text", text, ["BSD License"]),
        ("two", f"{osi} BSD License\n{osi} MIT License", ["BSD License", "MIT License"]),
        ("field", f"License: BSD-3-Clause\n{osi} BSD License", ["BSD-3-Clause"]),
        ("none", "Classifier: Typing :: Typed", []),
    ]:
        ours = wheel(tmp_path, name, said)
        part = folders.bill(
            [ours, wheel(tmp_path, "tributary_meta", "")], tmp_path / "tributary_meta-1.0-py3-none-any.whl", ""
        )
        assert [one["license"]["name"] for one in part["components"][0].get("licenses", [])] == names


def test_the_folder_has_the_pages_and_units_that_whoever_installs_it_needs_the_same_twice(folders, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with folders.committed() as tree:
            folders.documents(tree, tmp_path / name)
    one, two = (
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in sorted(tmp_path.iterdir())
    )
    assert one == two
    assert {Path("man", "man1", f"{program}.1") for program in PROGRAMS} < one.keys()
    name = f"tributary-meta-{folders.version()}"
    with tarfile.open(tmp_path / "one" / f"{name}.tar.gz") as source:
        names = set(source.getnames())
    here = ("docs/installing.md", "deploy/systemd/tributary-site.service", "deploy/containers/Containerfile", "LICENSE")
    assert {f"{name}/{path}" for path in here} < names


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_signature_is_one_that_openssl_verifies_and_that_another_byte_breaks(folders, tmp_path):
    key, sums = tmp_path / "release.pem", tmp_path / "SHA256SUMS"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
    sums.write_text("00  wheels/a.whl\n")
    folders.sign(sums, key)
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "release.pub", "-rawin", "-in", "SHA256SUMS"]
    check += ["-sigfile", "SHA256SUMS.sig"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0
    sums.write_text("01  wheels/a.whl\n")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode != 0


def test_a_release_is_made_from_the_versions_tag_and_with_a_key_only(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "git", lambda *_: "v0.0.0")
    monkeypatch.setattr(sys, "argv", ["release.py", str(tmp_path), "--tag"])
    with pytest.raises(SystemExit, match="the commit must have the tag v"):
        folders.main()
    monkeypatch.setattr(folders, "git", lambda *_: f"v{folders.version()}")
    with pytest.raises(SystemExit, match="must be signed"):
        folders.main()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory):
    """A folder of what git has, made with an index."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a network namespace wants root")
    return made(tmp_path_factory.mktemp("made") / "one")


def made(out: Path, *more: str, umask: int = 0o022) -> Path:
    words = [sys.executable, str(ROOT / "deploy" / "release.py"), str(out), *more]
    subprocess.run(words, check=True, timeout=3000, umask=umask)
    return out


@pytest.mark.soak
def test_two_folders_of_one_commit_are_the_same_and_install_where_there_is_no_network(
    wheelhouse, tmp_path, record_property
):
    second = made(tmp_path / "two", "--wheels", str(wheelhouse / "wheels"), umask=0o077)  # the index is asked once
    sums = (wheelhouse / "SHA256SUMS").read_bytes()
    assert sums == (second / "SHA256SUMS").read_bytes()
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=wheelhouse, check=True)
    assert json.loads((wheelhouse / "sbom.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
    }
    script = WITHOUT_A_ROUTE + first_ten_minutes()
    alone = ["unshare", "--net", "bash", "-c", script, "-", str(wheelhouse)]
    ran = subprocess.run(alone, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "<svg" in (tmp_path / "first" / "forest.svg").read_text(encoding="utf-8")
    record_property("wheels", len(list((wheelhouse / "wheels").iterdir())))


@pytest.mark.soak
def test_on_a_root_filesystem_without_a_network_the_first_ten_minutes_pass(wheelhouse, record_property):
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    # Devices are made in it, which memory may forbid.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        root, state = Path(folder) / "root", Path(folder) / "state"
        built = ["sh", str(ROOT / "deploy" / "containers" / "root.sh"), str(wheelhouse), str(root), "900"]
        made = subprocess.run(built, capture_output=True, text=True, timeout=1800, check=False)
        assert made.returncode == 0, (made.stdout + made.stderr)[-2000:]
        size = made.stdout.split()[-2]
        state.mkdir(mode=0o700)
        os.chown(state, 10001, 10001)
        alone = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        words = [*alone, "bash", "-c", IN_A_ROOT, "-", str(root), str(state), "set -eu\n" + first_ten_minutes()]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=1800)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        assert "<svg" in (state / "first" / "forest.svg").read_text(encoding="utf-8")
    record_property("mb", int(size))
