"""A folder from which Tributary is installed without a network, with hashes, a bill of materials and a signature.

    python deploy/release.py OUT [--extras site,coordinator,client] [--wheels FOLDER] [--key release.pem] [--tag]

`OUT/wheels` has our wheel and all that it needs on this platform, `OUT/requirements.txt` each with its SHA-256,
`OUT/sbom.cdx.json` the same as CycloneDX, `OUT/tributary-meta-VERSION.tar.gz` the source with its documents, service
units and container builds, `OUT/man` the manual pages, `OUT/SHA256SUMS` every file, and with a key (Ed25519, PEM)
`SHA256SUMS.sig`.
The wheel is built from what git has committed, at the commit's time: the same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.releases.governance import component

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def git(*words: str) -> str:
    """Output of a git command in the repository, stripped."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def version() -> str:
    """The version that pyproject.toml has."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return found


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def metadata(wheel: Path) -> Any:
    """The METADATA of a wheel, as its fields."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return email.message_from_string(archive.read(name).decode("utf-8"))


@contextmanager
def committed() -> Iterator[Path]:
    """The source as git has it, in a folder: nothing that lies about in the working tree is in it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive("tar"), check=True)
        # The rights of files are in the wheel, and git keeps no more than one bit of them.
        subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(tree)], check=True)
        yield tree


def archive(form: str, prefix: str = "") -> bytes:
    """Archive of the commit that is checked out: ``tar`` or ``tar.gz``."""
    words = ["git", "-C", str(ROOT), "archive", f"--format={form}", f"--prefix={prefix}", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True).stdout


def build(tree: Path, out: Path) -> Path:
    """Our wheel."""
    out.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct"), "PYTHONHASHSEED": "0"}
    env.pop("PYTHONPATH", None)
    made = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(tree)]
    subprocess.run(made, check=True, env=env, umask=0o022)  # and what is built from it takes ours
    (wheel,) = out.glob("tributary_meta-*.whl")
    return wheel


def documents(tree: Path, out: Path) -> None:
    """Write what is part of a release beside the wheels: the source archive and the manual pages."""
    name = f"tributary-meta-{version()}"
    (out / f"{name}.tar.gz").write_bytes(archive("tar.gz", f"{name}/"))
    man = [sys.executable, str(tree / "deploy" / "man.py"), str(out / "man")]
    subprocess.run(man, check=True, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.DEVNULL)


def collect(wheel: Path, extras: str, source: Path | None = None) -> list[Path]:
    """All that the wheel needs with these extras, beside it, in the versions of constraints.txt.

    Args:
        source: a folder of wheels, of an earlier release for example, to take them from; None: the index.
    """
    words = [
        "download",
        "--only-binary",
        ":all:",
        "--constraint",
        str(ROOT / "constraints.txt"),
        "--dest",
        str(wheel.parent),
    ]
    words += ["--no-index", "--find-links", str(source)] if source else []
    subprocess.run([*PIP, *words, f"{wheel}[{extras}]"], check=True)
    return sorted(wheel.parent.glob("*.whl"))


def requirements(wheels: list[Path], ours: Path, extras: str) -> str:
    """A requirements file for ``pip install --no-index --require-hashes --find-links wheels``."""
    lines = ["# python -m pip install --no-index --require-hashes --find-links wheels -r requirements.txt"]
    for wheel in wheels:
        found = metadata(wheel)
        name = f"{found['Name']}[{extras}]" if wheel == ours else found["Name"]
        lines.append(f"{name}=={found['Version']} --hash=sha256:{sha256(wheel)}")
    return "\n".join(lines) + "\n"


def bill(wheels: list[Path], ours: Path, time: str) -> dict[str, Any]:
    """The bill of materials (CycloneDX 1.6): every wheel with its version, licence and hash."""
    parts = {wheel: _component(wheel) for wheel in wheels}
    main = parts.pop(ours)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, "".join(sha256(wheel) for wheel in wheels))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"timestamp": time, "component": {**main, "type": "application"}},
        "components": list(parts.values()),
        "dependencies": [{"ref": main["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts.values()]}],
    }


def _component(wheel: Path) -> dict[str, Any]:
    return {**component(metadata(wheel)), "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}]}


def sign(sums: Path, key: Path) -> None:
    """An Ed25519 signature of the sums beside them, and the public key that openssl verifies it by."""
    from cryptography.hazmat.primitives import serialization

    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    (sums.with_name("SHA256SUMS.sig")).write_bytes(private.sign(sums.read_bytes()))  # type: ignore[call-arg,union-attr]
    form, kind = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (sums.with_name("release.pub")).write_bytes(private.public_key().public_bytes(form, kind))


def release(out: Path, extras: str, key: Path | None, source: Path | None = None) -> None:
    """Write the folder."""
    with committed() as tree:
        ours = build(tree, out / "wheels")
        documents(tree, out)
    wheels = collect(ours, extras, source)
    (out / "requirements.txt").write_text(requirements(wheels, ours, extras), encoding="utf-8")
    time = git("log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ")
    text = json.dumps(bill(wheels, ours, time), indent=1, sort_keys=True) + "\n"
    (out / "sbom.cdx.json").write_text(text, encoding="utf-8")
    files = sorted(path for path in out.rglob("*") if path.is_file())
    sums = "".join(f"{sha256(path)}  {path.relative_to(out).as_posix()}\n" for path in files)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    if key is not None:
        sign(out / "SHA256SUMS", key)


def main() -> None:
    """The command line."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path, help="a new folder")
    asked.add_argument("--extras", default="site,coordinator,client", help="what the folder can install")
    asked.add_argument("--wheels", type=Path, help="take the others' wheels from this folder, and not from the index")
    asked.add_argument("--key", type=Path, help="the release key, Ed25519 as PEM")
    asked.add_argument("--tag", action="store_true", help="only from the version's tag, and only with a key")
    given = asked.parse_args()
    os.environ["TZ"] = "UTC"
    if given.out.exists() and any(given.out.iterdir()):
        raise SystemExit(f"{given.out} must be a new folder, or an empty one")
    if given.tag:
        if f"v{version()}" not in git("tag", "--points-at", "HEAD").split():
            raise SystemExit(f"the commit must have the tag v{version()}. git tag v{version()}")
        if given.key is None:
            raise SystemExit("a release must be signed. --key FILE; openssl genpkey -algorithm ed25519 -out FILE")
    release(given.out, given.extras, given.key, given.wheels)
    sys.stdout.write(f"{given.out}: {len(list((given.out / 'wheels').iterdir()))} wheels\n")


if __name__ == "__main__":
    main()
