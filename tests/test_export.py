"""The audit export convinces a stranger: one small script re-checks everything, and finds whatever was changed."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import ast
import copy
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.canonical import canonical_json, sha256_hex
from shared.errors import IntegrityRefusal
from shared.keys import Envelope, SigningKey
from shared.plan import Budget
from shared.wire import Acceptance, countersigned
from site_agent import verifier
from site_agent.egress import Witness
from site_agent.export import EXPORT_TYPE

CANARY = "CANARY-88172"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> dict:
    """Where the first test leaves its hospital for the others: three releases take their time."""
    return {"folder": tmp_path_factory.mktemp("shelf")}


@pytest.fixture
def ready(hospital, plan, monkeypatch, shelf) -> Hospital:
    for name in ("DR_LIND", "DR_BERG"):
        monkeypatch.setenv(f"TRIBUTARY_PASSPHRASE_{name}", PASSPHRASE)
    if "lead" in shelf:
        shutil.copytree(shelf["folder"] / "site", hospital.home)
        shutil.copy(shelf["folder"] / "cohort.csv", hospital.folder)
        toml = hospital.home / "site.toml"
        toml.write_text(toml.read_text().replace(str(shelf["from"]), str(hospital.folder)))
        hospital.lead = shelf["lead"]
        vars(hospital.hub).update(copy.deepcopy(shelf["hub"]))
        return hospital
    site = three_releases(hospital, plan)
    shutil.copytree(site.home, shelf["folder"] / "site")
    shutil.copy(site.folder / "cohort.csv", shelf["folder"])
    heard = {name: value for name, value in vars(site.hub).items() if name != "ca"}
    shelf |= {"from": site.folder, "lead": site.lead, "hub": copy.deepcopy(heard)}
    return site


def three_releases(hospital: Hospital, plan) -> Hospital:
    """One delivered, one rejected, one withdrawn."""
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2, 3))
    table = make_table(300)
    table["person"] = [f"{CANARY}-{i}" for i in range(300)]
    two = replace(plan, waves=waves, budget=Budget(epsilon=5000.0), returning="refresh")
    site = hospital.joined("dr-lind", "dr-berg").approved(two).with_table(table.assign(notes=CANARY))
    site("data", "map", "mini", "--ignore-rest")
    first = site.json("release", "mini", "--wave", "1", "--by", "dr-lind")
    site("approve", first["release_id"], "--as", "dr-berg", *ticks(first))
    second = site.json("release", "mini", "--wave", "2")
    site("reject", second["release_id"], "--as", "dr-lind", "--reason", "too soon")
    third = site.json("release", "mini", "--wave", "3")
    site("approve", third["release_id"], "--as", "dr-lind", *ticks(third))
    site("withdraw", third["release_id"], "--as", "dr-berg", "--reason", "consent")
    return site


def ticks(made: dict) -> list[str]:
    return [word for warning in made["warnings"] for word in ("--tick", warning["name"])]


@pytest.fixture
def exported(ready, tmp_path) -> Path:
    out = tmp_path / "record"
    ready("audit", "export", "mini", "--out", str(out))
    return out


def verified(folder: Path, *bundles: Path) -> str:
    """What is wrong; empty when everything holds."""
    try:
        verifier.check(folder, list(bundles))
    except verifier.Wrong as wrong:
        return str(wrong)
    except (KeyError, ValueError):
        return "damaged"
    return ""


def test_a_stranger_is_convinced_by_the_script_alone(exported, tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", str(exported / "verify.py")], capture_output=True, text=True, cwd=tmp_path, env={}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 releases" in done.stdout
    for whose in ("site: ", "study lead ", "approver dr-lind: ", "coordinator: "):
        assert f"\n  {whose}" in done.stdout
    (exported / "keys.json").write_bytes(b"{}")
    done = subprocess.run([sys.executable, "-I", str(exported / "verify.py")], capture_output=True, text=True, env={})
    assert done.returncode == 1
    assert "✗" in done.stdout


def test_the_script_needs_the_standard_library_and_cryptography_only(exported):
    tree = ast.parse((exported / "verify.py").read_text())
    roots = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")])
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert roots <= set(sys.stdlib_module_names) | {"cryptography", "__future__"}


def test_any_changed_file_is_found(exported):
    assert verified(exported) == ""
    for path in sorted(p for p in exported.rglob("*") if p.is_file()):
        data = path.read_bytes()
        at = len(data) // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert verified(exported), path
        path.write_bytes(data)
    (exported / "extra.txt").write_text("x")
    assert "exactly the files" in verified(exported)
    (exported / "extra.txt").unlink()
    (exported / "ledger.json").unlink()
    assert "exactly the files" in verified(exported)


def resigned(site: Hospital, folder: Path, change) -> str:
    """What the script says of a record that the site itself falsified: listed and signed anew."""
    key = SigningKey.load(site.home / "keys" / "release.pem")
    change(folder)
    body = json.loads(Envelope.from_bytes((folder / "manifest.json").read_bytes()).payload)
    body["files"] = {
        path.relative_to(folder).as_posix(): sha256_hex(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    (folder / "manifest.json").write_bytes(Envelope.sign(EXPORT_TYPE, canonical_json(body), [key]).to_bytes())
    return verified(folder)


def rewritten(name: str, change):
    def work(folder: Path) -> None:
        (path,) = sorted(folder.glob(name))[:1]
        body = json.loads(path.read_bytes())
        change(body)
        path.write_bytes(canonical_json(body))

    return work


def of_kind(entries: list, kind: str) -> dict:
    return next(entry for entry in entries if entry.get("kind") == kind)


FALSIFIED = [
    (rewritten("ledger.json", lambda e: e.pop()), "head that was signed"),
    (rewritten("ledger.json", lambda e: e.pop(3)), "must follow"),
    (rewritten("ledger.json", lambda e: of_kind(e, "approve")["body"].update(name="eve")), "must follow"),
    (rewritten("ledger.json", lambda e: of_kind(e, "reject").update(time="2020-01-01T00:00:00Z")), "must follow"),
    (rewritten("ledger.json", lambda e: e[2].update(signature=e[1]["signature"])), "signed by the site"),
    (rewritten("releases/*/receipt.json", lambda r: r.update(epsilon=0.1)), "receipt must be the sealed one"),
    (rewritten("releases/*/checks.json", lambda c: c["content"].update(left_out=9)), "checks must be those shown"),
    (rewritten("releases/*/statement.json", lambda s: s["signatures"].pop(0)), "signed by the site"),
    (rewritten("releases/*/decision-*.json", lambda s: s["signatures"].clear()), "signed by the person"),
    (rewritten("releases/*/withdrawal.json", lambda s: s["signatures"].pop()), "two signatures"),
    (rewritten("plans/plan-1.json", lambda s: s["signatures"].clear()), "study lead"),
    (rewritten("plans/approval-1.json", lambda s: s["signatures"].clear()), "signed approval"),
    (rewritten("keys.json", lambda k: k.update(approvers={})), "signed approval"),
    (lambda f: shutil.rmtree(sorted((f / "releases").glob("*"))[0]), "every sealed release"),
]


def test_a_record_falsified_by_the_site_itself_is_found(ready, exported, tmp_path):
    assert resigned(ready, exported, lambda folder: None) == ""
    for number, (change, said) in enumerate(FALSIFIED):
        falsified = tmp_path / f"falsified-{number}"
        shutil.copytree(exported, falsified)
        assert said in resigned(ready, falsified, change), said


def test_no_value_of_a_record_is_in_it(ready, exported):
    table = make_table(300)
    forms = [CANARY.encode(), CANARY.encode().hex().encode()]
    forms += [f"{value:.12f}"[:10].encode() for value in table["time"]]
    for path in (p for p in exported.rglob("*") if p.is_file()):
        data = path.read_bytes()
        assert not [form for form in forms if form in data], path
        assert b"PAR1" not in data
    bundle = next((ready.home / "sealed").glob("*/bundle.zip"))
    from shared.release import read_bundle

    released = read_bundle(bundle, cap=1 << 30).table["time"]
    assert np.isfinite(released).all()
    text = b"".join(p.read_bytes() for p in exported.rglob("*") if p.is_file())
    assert not [value for value in released if f"{value:.12f}"[:10].encode() in text], "nor a released row"


def test_other_studies_are_links_only(ready, plan, tmp_path):
    other = replace(plan, study="other", title="CONFIDENTIAL-STUDY")
    ready.approved(other)
    ready("data", "add", str(ready.folder / "cohort.csv"), "--as", "other")
    ready("data", "map", "other", "--ignore-rest")
    ready("release", "other", "--wave", "1")
    out = tmp_path / "both"
    ready("audit", "export", "mini", "--out", str(out))
    assert verified(out) == ""
    for path in (p for p in out.rglob("*") if p.is_file() and p.name != "verify.py"):
        assert b'"other"' not in path.read_bytes().replace(b'"reason_code":"other"', b""), path
        assert b"CONFIDENTIAL" not in path.read_bytes()
    entries = json.loads((out / "ledger.json").read_bytes())
    assert sum("link" in entry for entry in entries) >= 4


def test_what_the_coordinator_signed_is_in_it_and_checked(ready, tmp_path):
    hub = SigningKey.generate()
    (ready.home / "certificates" / "witness.pub").write_text(hub.public.hex + "\n")
    witness = Witness(hub.public, "north", ready.home / "acknowledged.jsonl")
    for envelope, data in ready.hub.sent:
        said = json.loads(envelope.payload)
        names = ("study", "wave", "site", "release_id")
        answer = Acceptance(
            **{name: said[name] for name in names},
            bundle_sha256=sha256_hex(data),
            log_index=0,
            log_root="ab" * 32,
            accepted_day="2026-01-05",
        )
        witness.keep(countersigned(answer, hub, "north"), lambda old, new: ())
    out = tmp_path / "signed"
    ready("audit", "export", "mini", "--out", str(out))
    assert f"{len(ready.hub.sent)} of {len(ready.hub.sent)} deliveries" in " ".join(verifier.check(out, []))
    changed = rewritten("acknowledged.json", lambda said: said[0].update(accepted_day="2026-01-04"))
    assert "pinned key" in resigned(ready, out, changed)
    other = replace(answer, log_root="cd" * 32)
    with pytest.raises(IntegrityRefusal):
        witness.keep(countersigned(other, hub, "north"), lambda old, new: ())
    ready("audit", "export", "mini", "--out", str(tmp_path / "fork"))
    assert "two histories" in verified(tmp_path / "fork")


def test_bundles_are_checked_when_they_are_named(ready, exported, tmp_path):
    bundles = sorted((ready.home / "sealed").glob("*/bundle.zip"))
    assert verified(exported, *bundles) == ""
    forged = tmp_path / "forged.zip"
    forged.write_bytes(bundles[0].read_bytes() + b"x")
    assert "sealed bundles" in verified(exported, forged)


def test_the_checks_are_bound_to_the_bytes_with_thresholds_and_tools(exported):
    for path in exported.glob("releases/*/checks.json"):
        body = json.loads(path.read_bytes())
        statement = json.loads(Envelope.from_bytes((path.parent / "statement.json").read_bytes()).payload)
        assert body["bundle_sha256"] == statement["bundle_sha256"]
        assert body["content"]["limits"]["persons"] == 50
        assert body["content"]["versions"]


def test_the_summary_says_who_approved_what_and_what_is_not_covered(exported):
    text = (exported / "summary.html").read_text()
    for part in ("dr-berg", "delivered", "rejected", "withdrawn", "Not covered", "python verify.py"):
        assert part in text, part
    assert "http" not in text
    assert "&lt;" not in text


def test_an_export_after_leaving_still_verifies_and_a_full_folder_is_not_overwritten(ready, exported, tmp_path):
    ready.refused("audit", "export", "mini", "--out", str(exported), expect=2)
    ready.refused("audit", "export", "nothing", "--out", str(tmp_path / "x"), expect=2)
    ready("leave", "mini", "--as", "dr-lind")
    ready("audit", "export", "mini", "--out", str(tmp_path / "left"))
    assert verified(tmp_path / "left") == ""


def test_a_record_that_does_not_verify_here_is_not_handed_out(ready, tmp_path):
    path = next((ready.home / "sealed").glob("*/bundle.zip"))
    path.write_bytes(path.read_bytes()[:-1])
    ready.refused("audit", "export", "mini", "--out", str(tmp_path / "x"), expect=30)
    assert not (tmp_path / "x").exists()


def test_a_reservation_that_waited_is_told_as_the_wave_it_became(hospital, plan, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2, 3))
    many = replace(plan, waves=waves, budget=Budget(epsilon=5000.0))
    table = make_table(300, 1)
    site = hospital.joined("dr-lind").approved(many).with_table(table)
    first = site.json("release", "mini", "--wave", "1")
    site("approve", first["release_id"], "--as", "dr-lind", *ticks(first))
    later = make_table(90, 2)
    where = site.folder / "cohort.csv"
    where.write_text(pd.concat([table, later.head(20)]).to_csv(index=False))
    assert site.refused("release", "mini", "--wave", "2", expect=10)["code"] == "E_SMALL_N"
    where.write_text(pd.concat([table, later]).to_csv(index=False))
    third = site.json("release", "mini", "--wave", "3")
    site("approve", third["release_id"], "--as", "dr-lind", *ticks(third))
    site("audit", "export", "mini", "--out", str(tmp_path / "record"))
    assert verified(tmp_path / "record") == ""


@pytest.mark.parametrize("name", ["receipt.json", "checks.json"])
def test_a_document_that_the_site_left_out_is_missed(ready, exported, name):
    def change(folder: Path) -> None:
        next(folder.glob(f"releases/*/{name}")).unlink()

    assert "must be here" in resigned(ready, exported, change)


def test_nobody_declines_in_the_name_of_a_person_whose_key_is_another(hospital, plan, monkeypatch):
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
    site = hospital.joined("dr-lind").approved(plan).with_table(make_table(300))
    made = site.json("release", "mini", "--wave", "1")
    path = next((site.home / "keys" / "approvers").iterdir())
    path.unlink()
    SigningKey.generate().save(path, PASSPHRASE)
    for verb in ("reject", "send-back"):
        argv = (verb, made["release_id"], "--as", "dr-lind", "--reason", "no")
        assert site.refused(*argv, expect=12)["code"] == "E_NOT_APPROVED"
