"""The audit export convinces a stranger: one small script re-checks everything, and finds whatever was changed."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import ast
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import make_table
from stage.hospital_side.exports import STATED, key_of, resigned, rewritten, verified
from stage.hospital_side.site_desk import PASSPHRASE, Hospital, hospital  # noqa: F401

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.chain import GENESIS, extend_head
from shared.base.keys import Envelope, SigningKey
from shared.base.merkle import leaf_hash, node_hash
from shared.errors import ConfigRefusal, IntegrityRefusal
from shared.plans.plan import Budget
from shared.wire.signed_messages import countersigned
from shared.wire.site_messages import Acceptance, AnchorReceipt
from site_agent import cli
from site_agent.config import SiteConfig
from site_agent.egress import AcknowledgedReplies
from site_agent.ledger import chain, holds, state
from site_agent.ledger.book import HEAD_TYPE, Ledger
from site_agent.ledger.entries import Entry, link_of
from site_agent.show import verifier
from site_agent.show.export import _line

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
    waves = tuple(replace(plan.waves[0], number=number) for number in (1, 2, 3, 4))
    table = make_table(300)
    table["person"] = [f"{CANARY}-{i}" for i in range(300)]
    # Every level is rare at this floor, so that every release has a warning to tick.
    floors = replace(plan.floors, rare_level=1000)
    two = replace(plan, waves=waves, budget=Budget(epsilon=5000.0), returning="refresh", floors=floors)
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


def test_a_stranger_is_convinced_by_the_script_alone(exported, tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", str(exported / "verify.py")], capture_output=True, text=True, cwd=tmp_path, env={}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 releases" in done.stdout
    for whose in ("site: ", "study lead ", "approver dr-lind: ", "coordinator: "):
        assert f"\n  {whose}" in done.stdout
    for damage in (b"{}", b"[" * 100_000, b'{"release_key":"' + b"0" * 64 + b'"}', b"\xff"):
        (exported / "keys.json").write_bytes(damage)
        done = subprocess.run(
            [sys.executable, "-I", str(exported / "verify.py")], capture_output=True, text=True, env={}
        )
        assert (done.returncode, done.stdout[:1], done.stderr) == (1, "✗", ""), damage[:20]


def test_the_script_checks_the_export_of_another_folder_and_says_where_there_is_none(exported, tmp_path):
    """A folder was read as a bundle: the untouched export of it was called damaged."""
    script = tmp_path / "elsewhere" / "verify.py"
    script.parent.mkdir()
    script.write_bytes((exported / "verify.py").read_bytes())

    def run(*named: Path) -> subprocess.CompletedProcess:
        argv = [sys.executable, "-I", str(script), *map(str, named)]
        return subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env={})

    own = subprocess.run([sys.executable, "-I", str(exported / "verify.py")], capture_output=True, text=True, env={})
    assert (run(exported).returncode, run(exported).stdout) == (0, own.stdout)
    path = exported / "keys.json"
    path.write_bytes(path.read_bytes() + b"\n")
    done = run(exported)
    assert (done.returncode, done.stdout[0]) == (1, "✗")
    done = run()
    assert (done.returncode, "elsewhere must be the folder of an audit export" in done.stdout) == (1, True)


def test_the_script_ends_without_a_word_where_nobody_reads_its_lines(exported):
    """`python verify.py | head -1` wrote that a file is damaged."""
    pipe = subprocess.PIPE
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-I", str(exported / "verify.py")]
    done = subprocess.run(argv, stdout=write, stderr=pipe, env={})
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b""), "a shell says 141"


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


def forged(change):
    """The ledger changed, and chained and signed anew from there: the site has the key, and the hashes are public."""
    work = rewritten("ledger.json", change)
    work.chained = True
    return work


def relived(change):
    """The ledger changed as an agent that lies would have written it on the day: heads, statements, signatures fit."""
    work = rewritten("ledger.json", change) if change.__code__.co_varnames[0] == "e" else change
    work.relived = True
    return work


def put(kind: str, where: str, body, *, tags: list[str] | None = None, turned: int = 1):
    """Insert an entry of `kind` before the first one of kind `where` (turned: the last), about the same release."""

    def change(e: list) -> None:
        first = of_kind(e[::turned], where)
        said = body(first) if callable(body) else body
        said = said if tags is not None else {"release_id": first["body"]["release_id"], **said}
        made = {"kind": kind, "time": first["time"], "body": {**said, "salt": "00" * 16}, "hash": ""}
        e.insert(e.index(first), made | {"tags": first["tags"] if tags is None else tags})

    return relived(change)


def rejected(first: dict) -> dict:
    """What dr-lind signs who rejects."""
    key, named = (
        key_of(PEOPLE[0] / "dr-lind.pem"),
        {name: first["body"][name] for name in ("release_id", "bundle_sha256")},
    )
    said = {**named, "decision": "reject", "by": "dr-lind", "reason_sha256": sha256_hex(b"no")}
    signature = key.sign(Envelope.encoding("application/vnd.tributary.decline+json", canonical_json(said)))
    return {**named, "by": "dr-lind", "reason": "no", "key": key.public.hex, "signature": signature.hex()}


def again(*kinds: str, before: str):
    """Entries of the first drawn release, once more before its entry of kind `before`."""

    def change(e: list) -> None:
        place = e.index(of_kind(e, before))
        for kind in kinds:
            made = copy.deepcopy(of_kind(e, kind)) | {"hash": ""}
            made["body"] |= {"receipt_sha256": "", "bundle_sha256": "cd" * 32} if kind == "seal" else {}
            e.insert(place, made)
            place += 1

    return relived(change)


def approval_kept_out(folder: Path) -> None:
    rewritten("ledger.json", lambda e: of_kind(e, "plan_approved")["body"].pop("envelope"))(folder)
    (folder / "plans" / "approval-1.json").unlink()


def outcomes_invented(folder: Path) -> None:
    entries = json.loads((folder / "ledger.json").read_bytes())
    shown = of_kind(entries, "hold")["body"]
    del shown["documents"]["outcomes.json"]
    (folder / "ledger.json").write_bytes(canonical_json(entries))
    where = folder / "releases" / shown["release_id"]
    said = json.loads((where / "outcomes.json").read_bytes())
    for check in said["content"]["checks"]:
        check["outcome"] = "passed"
    (where / "outcomes.json").write_bytes(canonical_json(said))
    path = next(where.glob("decision-*.json")).relative_to(folder).as_posix()
    signed_again(path, "decision", lambda d: d.update(documents=shown["documents"], ticked=[]))(folder)


def withdrawn_first(e: list) -> None:
    entry = of_kind(e, "withdraw")
    e.remove(entry)
    e.insert(
        next(
            place
            for place, one in enumerate(e)
            if one["kind"] == "commit" and one["body"]["release_id"] == entry["body"]["release_id"]
        ),
        entry,
    )


def put_back(e: list, **more) -> None:
    """A delivery taken out, and a recovery made up that is to excuse it."""
    entry = of_kind(e, "commit")
    e.remove(entry)
    body = {"seq": 1, "head": "ab" * 32, "after": 0, "prices": [], "charges": [], "accepted": {}, "burnt": []}
    e.append(entry | {"kind": "recovered", "tags": [], "hash": "", "body": {**body, **more, "salt": "00" * 16}})


def of_kind(entries: list, kind: str) -> dict:
    return next(entry for entry in entries if entry.get("kind") == kind)


def hidden(entry: dict, tags: list[str] | None = None) -> None:
    """Show an entry as one of another study would be shown."""
    said = {name: entry.pop(name) for name in ("time", "kind", "body")}
    entry |= {"told": sha256_hex(canonical_json(said)), "tags": entry["tags"] if tags is None else tags}


def before(kind: str, made: str):
    """Insert an entry about the plan before the last one of `kind`."""

    def change(entries: list) -> None:
        at = max(place for place, entry in enumerate(entries) if entry["kind"] == kind)
        approved = of_kind(entries, "plan_approved")
        entries.insert(at, copy.deepcopy(approved) | {"kind": made})

    return change


def without(name: str):
    def work(folder: Path) -> None:
        next(folder.glob(f"releases/*/{name}")).unlink()

    return work


def signed_again(name: str, kind: str, change):
    """A document of a person, changed and signed again by that person."""

    def work(folder: Path) -> None:
        path = sorted(folder.glob(name))[0]
        body = json.loads(Envelope.from_bytes(path.read_bytes()).payload)
        change(body)
        key = SigningKey.load(PEOPLE[0] / f"{body['approver']}.pem", PASSPHRASE)
        path.write_bytes(
            Envelope.sign(f"application/vnd.tributary.{kind}+json", canonical_json(body), [key]).to_bytes()
        )

    return work


PEOPLE: list[Path] = []
OTHER = ["ab" * 32]
FALSIFIED = [
    (rewritten("ledger.json", lambda e: e.pop(3)), "must follow"),
    (rewritten("ledger.json", lambda e: of_kind(e, "approve")["body"].update(name="eve")), "must follow"),
    (rewritten("ledger.json", lambda e: of_kind(e, "reject").update(time="2020-01-01T00:00:00Z")), "must follow"),
    (rewritten("ledger.json", lambda e: e[2].update(tags=OTHER)), "must follow"),
    (rewritten("ledger.json", lambda e: e[2].update(signature=e[1]["signature"])), "signed by the site"),
    (rewritten("ledger.json", lambda e: hidden(of_kind(e, "reject"))), "is about this study, and must be told"),
    (rewritten("ledger.json", lambda e: hidden(e[0])), "entry 1 is about this study, and must be told"),
    (forged(lambda e: of_kind(e, "plan_approved").update(tags=OTHER)), "must carry the tag of its study"),
    (forged(lambda e: e[0]["body"].update(format="tributary-ledger/9")), "a format that this script knows"),
    (forged(lambda e: of_kind(e, "anchor")["body"].update(seq=0)), "must name a witnessed head"),
    (forged(before("approve", "plan_revoked")), "approval must not have been revoked before"),
    (forged(lambda e: e.remove(of_kind(e[::-1], "approve"))), "enough people must have approved"),
    (forged(lambda e: of_kind(e[::-1], "approve")["body"].update(signature="ab" * 64)), "registered person, over the"),
    (rewritten("keys.json", lambda k: k.update(study_tag="ab" * 64)), "tag must be signed by the site"),
    (rewritten("releases/*/receipt.json", lambda r: r.update(epsilon=0.1)), "receipt must be the sealed one"),
    (rewritten("releases/*/outcomes.json", lambda c: c["content"].update(limits={})), "those of the checks shown"),
    (rewritten("releases/*/statement.json", lambda s: s["signatures"].pop(0)), "signed by the site"),
    (rewritten("releases/*/decision-*.json", lambda s: s["signatures"].clear()), "signed by the person"),
    (signed_again("releases/*/decision-*.json", "decision", lambda d: d["ticked"].clear()), "ticked every warning"),
    (signed_again("releases/*/decision-*.json", "decision", lambda d: d["documents"].clear()), "the documents shown"),
    (without("decision-*.json"), "must be here"),
    (without("receipt.json"), "its receipt must be here"),
    (without("outcomes.json"), "the outcomes of its checks must be here"),
    (without("withdrawal.json"), "its withdrawal must be here"),
    (rewritten("releases/*/withdrawal.json", lambda s: s["signatures"].pop()), "two signatures"),
    (rewritten("plans/plan-1.json", lambda s: s["signatures"].clear()), "study lead"),
    (rewritten("plans/approval-1.json", lambda s: s["signatures"].clear()), "signed approval"),
    (
        signed_again("plans/approval-1.json", "plan-approval", lambda a: a.update(reason="because")),
        "an approval that the ledger has noted",
    ),
    (rewritten("keys.json", lambda k: k.update(approvers={})), "signed by the person"),
    (lambda f: shutil.rmtree(sorted((f / "releases").glob("*"))[0]), "every sealed release"),
    (forged(lambda e: of_kind(e, "plan_approved")["body"].update(study="other")), "the study whose tag it carries"),
    (relived(approval_kept_out), "must hold what the person signed"),
    (relived(outcomes_invented), "outcomes of its checks must be among the documents shown"),
    (relived(lambda e: of_kind(e, "reserve")["body"].update(cap_epsilon=1e9)), "held to the plan's budget"),
    (again("reserve", before="anchor"), "must be charged once"),
    (again("drawing", before="drawing"), "(drawing) must not follow when it is drawing"),
    (again("seal", "drawing", before="seal"), "(drawing) must not follow when it is sealed"),
    (
        put("burn", "approve", {"reason": "refused after sealing: E_AUDIT"}),
        "(approve) must not follow when it is burnt",
    ),
    (put("reject", "approve", rejected), "(approve) must not follow when it is rejected"),
    (put("reject", "commit", rejected), "(reject) must not follow when it is approved"),
    (again("approve", before="commit"), "it must need no further approval"),
    (relived(withdrawn_first), "(commit) must not follow when it is burnt"),
    (put("tombstone", "reject", {"log_index": 9}), "(tombstone) must not follow when it is held"),
    (put("paused", "drawing", {"name": "", "reason": "stop"}, tags=[]), "(drawing) must not stand in a pause"),
    (put("paused", "approve", {"name": "", "reason": "stop"}, tags=[]), "(approve) must not stand in a pause"),
    (relived(lambda e: put_back(e)), "a ledger that was put back must count what it lacks"),
]


def test_a_record_falsified_by_the_site_itself_is_found(ready, exported, tmp_path):
    assert resigned(ready, exported, lambda folder: None) == ""
    PEOPLE[:] = [ready.home / "keys" / "approvers"]
    for number, (change, said) in enumerate(FALSIFIED):
        falsified = tmp_path / f"falsified-{number}"
        shutil.copytree(exported, falsified)
        found = resigned(ready, falsified, change)
        assert said in found, (number, said, found)


def test_the_script_replays_a_charge_by_the_moves_that_the_agent_allows():
    assert {kind: (set(allowed), following) for kind, (allowed, following) in holds._MOVES.items()} == verifier.MOVES


def test_a_delivery_acknowledged_after_the_site_was_paused_is_told_as_that(ready, exported):
    assert resigned(ready, exported, lambda folder: None) == ""
    paused = put("paused", "commit", {"name": "", "reason": "stop"}, tags=[], turned=-1)
    assert resigned(ready, exported, paused) == "", "what was sent before may be acknowledged after"
    assert any("its delivery was noted during a pause" in line for line in verifier.check(exported, []))


def test_no_value_of_a_record_is_in_it(ready, exported):
    table = make_table(300)
    forms = [CANARY.encode(), CANARY.encode().hex().encode()]
    forms += [f"{value:.12f}"[:10].encode() for value in table["time"]]
    for path in (p for p in exported.rglob("*") if p.is_file()):
        data = path.read_bytes()
        assert not [form for form in forms if form in data], path
        assert b"PAR1" not in data
    bundle = next((ready.home / "sealed").glob("*/bundle.zip"))
    from shared.releases.bundle import read_bundle

    released = read_bundle(bundle, cap=1 << 30).table["time"]
    assert np.isfinite(released).all()
    text = b"".join(p.read_bytes() for p in exported.rglob("*") if p.is_file())
    assert not [value for value in released if f"{value:.12f}"[:10].encode() in text], "nor a released row"


def test_no_count_of_records_is_in_it_but_the_n_of_a_receipt(ready, exported):
    table = make_table(300)
    for path in exported.glob("releases/*/outcomes.json"):
        content = json.loads(path.read_bytes())["content"]
        whole = json.loads((ready.home / "sealed" / path.parent.name / "checks.json").read_bytes())["content"]
        for check, known in zip(content["checks"], [*whole["checks"], None], strict=True):
            assert set(check) == {"name", "rule", "threshold", "outcome"}
            assert known is None or check["outcome"] == known["outcome"]
        assert {check["threshold"] for check in content["checks"]} == {None, 50.0, 1e-3, 1000.0, 0.05, 0.75}
        assert not {"left_out", "snapshot"} & set(content)
        assert content["limits"]["persons"] == 50
        assert content["versions"]

    def numbers(value) -> list:
        if isinstance(value, dict):
            return [n for key, item in value.items() if key not in ("n", "drawn") for n in numbers(item)]
        return [n for item in value for n in numbers(item)] if isinstance(value, list) else [value]

    for path in [*exported.glob("*.json"), *exported.glob("releases/*/*.json")]:
        assert len(table) not in numbers(json.loads(path.read_bytes())), path
    entries = json.loads((exported / "ledger.json").read_bytes())
    assert len(of_kind(entries, "drawing")["body"]["kept"]) == 64


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
    assert sum("told" in entry for entry in entries) >= 4


def append_as_before(book, kind: str, body: dict, kept=None) -> None:
    """An entry as a ledger of format 2 wrote it: without tags."""
    seq, time, body = len(book.entries) + 1, "2026-01-01T00:00:00Z", {**body, "salt": "ab" * 16}
    previous = book.entries[-1].hash if book.entries else GENESIS
    head = extend_head(previous, [link_of(seq, time, kind, body)])
    payload = canonical_json({"site": book.site, "seq": seq, "head": head})
    signature = book.signer.sign(Envelope.encoding(HEAD_TYPE, payload))
    row = (seq, time, kind, canonical_json(body), previous, head, signature)
    book.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    names = ("seq", "time", "kind", "body", "previous", "hash", "signature")
    book.entries.append(Entry(**dict(zip(names, row, strict=True)) | {"body": body}))


def test_a_ledger_from_before_tags_is_read_and_goes_on_with_them(tmp_path, monkeypatch):
    key = SigningKey.generate()
    with monkeypatch.context() as before:
        before.setattr(state.Book, "append", append_as_before)
        before.setattr(chain, "FORMAT", "tributary-ledger/2")
        made = Ledger.create(tmp_path / "ledger.db", key, site="north")
        for study in ("mini", "other"):
            made.approve_plan(study=study, version=1, plan_hash="ab" * 32, approver="dr-lind")
    for study in ("mini", "other"):
        made.approve_plan(study=study, version=2, plan_hash="cd" * 32, approver="dr-lind")
    assert Ledger(made.path, key, site="north").verify() == 5
    keys = {"site": "north", "release_key": key.public.hex, "study_tag": made.tag_proof("mini").hex()}
    lines = [_line(entry, made.tag("mini"), "mini", {}) for entry in made.entries()]
    assert [("body" in line, "link" in line, "told" in line) for line in lines] == [
        (True, False, False),
        (True, False, False),
        (False, True, False),
        (True, False, False),
        (False, False, True),
    ]
    verifier.ledger({"ledger.json": canonical_json(lines)}, keys, "mini")
    last = made.entries()[-1]
    lines[-1] = {name: lines[-1][name] for name in ("seq", "hash", "signature")} | {"link": last.link}
    with pytest.raises(verifier.Wrong, match="entry 5 must say which studies it is about"):
        verifier.ledger({"ledger.json": canonical_json(lines)}, keys, "mini")


def test_what_the_coordinator_signed_is_in_it_and_checked(ready, tmp_path):
    hub = SigningKey.generate()
    (ready.home / "certificates" / "witness.pub").write_text(hub.public.hex + "\n")
    witness = AcknowledgedReplies(hub.public, "north", ready.home / "acknowledged.jsonl")
    leaves = [leaf_hash(bytes([place])) for place in range(2)]
    roots = [leaves[0], node_hash(*leaves)]
    for place, (envelope, data) in enumerate(ready.hub.sent):
        said = json.loads(envelope.payload)
        names = ("study", "wave", "site", "release_id")
        answer = Acceptance(
            **{name: said[name] for name in names},
            bundle_sha256=sha256_hex(data),
            log_index=place,
            log_root=roots[place].hex(),
            accepted_day="2026-01-05",
        )
        witness.keep(countersigned(answer, hub, "north"), lambda old, new: leaves[1:])
    out = tmp_path / "signed"
    ready("audit", "export", "mini", "--out", str(out))
    assert f"{len(ready.hub.sent)} of {len(ready.hub.sent)} deliveries" in " ".join(verifier.check(out, []))
    changed = rewritten("acknowledged.json", lambda said: said[0].update(accepted_day="2026-01-04"))
    assert "pinned key" in resigned(ready, out, changed)
    nowhere = countersigned(AnchorReceipt(seq=0, head="ab" * 32, index=0, log_root=roots[0].hex()), hub, "north")
    line = {"kind": "AnchorReceipt", **asdict(nowhere), "signature": nowhere.signature.hex()}
    for study, said in (("mini", ""), ("other", "every delivery that the coordinator acknowledged")):
        charges = [{"release_id": "", "study": study, "count": 1, "log_index": None}]
        ready("audit", "export", "mini", "--out", str(tmp_path / study))
        excused = relived(lambda e, charges=charges: put_back(e, charges=charges))
        found = resigned(ready, tmp_path / study, excused)
        assert found.partition(" must")[0] == said, "one draw counted excuses one delivery"
    ready("audit", "export", "mini", "--out", str(tmp_path / "none"))
    added = rewritten("acknowledged.json", lambda said: said.append(line))
    assert "must be one of this ledger" in resigned(ready, tmp_path / "none", added)
    other = replace(answer, log_root="cd" * 32)
    with pytest.raises(IntegrityRefusal):
        witness.keep(countersigned(other, hub, "north"), lambda old, new: ())
    ready("audit", "export", "mini", "--out", str(tmp_path / "fork"))
    assert "two histories" in verified(tmp_path / "fork")


def coordinators(site: Hospital, path: Path, change=lambda body: None, key: SigningKey | None = None) -> Path:
    """What the coordinator signs of the site: every head, every release."""
    taken = {json.loads(envelope.payload)["release_id"] for envelope in site.hub.buried}
    sent = [(json.loads(envelope.payload), data) for envelope, data in site.hub.sent]
    body = {
        "format": "tributary-site-list/1",
        "site": "north",
        "study": "mini",
        "day": "2026-01-05",
        "size": 99,
        "studies": 1,
        "anchors": [{"line": 0, "seq": one["seq"], "head": one["head"]} for one in site.hub.anchored],
        "releases": [
            {
                "release_id": said["release_id"],
                "wave": said["wave"],
                "bundle_sha256": sha256_hex(data),
                "log_index": place,
                "accepted_day": "2026-01-05",
                "withdrawn": said["release_id"] in taken,
            }
            for place, (said, data) in enumerate(sent)
        ],
        "quarantined": [],
    }
    change(body)
    kind = "application/vnd.tributary.site-list+json"
    path.write_bytes(Envelope.sign(kind, canonical_json(body), [key or site.lead]).to_bytes())
    return path


def approved_and_forgotten(site: Hospital, made: dict, backup: Path) -> Path:
    """Approve and deliver, put the ledger back as in `backup`, count what is missing; the record of it."""
    site("approve", made["release_id"], "--as", "dr-lind", *ticks(made))
    site.hub.anchor(cli.open_desk(site.home).ledger.anchor_envelope())
    for name in ("ledger.db", "ledger.head"):
        shutil.copy(backup / name, site.home)
    site.hub.allowed = site.json("ledger", "recover")["fingerprint"]
    site("ledger", "recover")
    assert site.json("audit", "verify")["ok"]
    site("audit", "export", "mini", "--out", str(backup / "record"))
    return backup / "record"


def test_what_was_reserved_here_and_drawn_in_the_time_that_was_forgotten_is_told(ready, tmp_path):
    ready.hub.down = True
    ready("release", "mini", "--wave", "4", expect=20)
    for name in ("ledger.db", "ledger.head"):
        shutil.copy(ready.home / name, tmp_path)
    ready.hub.down = False
    out = approved_and_forgotten(ready, ready.json("release", "mini", "--wave", "4"), tmp_path)
    listed = coordinators(ready, tmp_path / "list.json", lambda body: body["anchors"][-1].update(line=1))
    assert any("told here, and no other" in line for line in verifier.check(out, [], listed))


def test_what_the_coordinator_has_and_a_ledger_put_back_has_not_is_no_fault_of_the_sites(ready, tmp_path):
    made = ready.json("release", "mini", "--wave", "4")
    for name in ("ledger.db", "ledger.head"):
        shutil.copy(ready.home / name, tmp_path)
    out = approved_and_forgotten(ready, made, tmp_path)
    sent, _ = ready.hub.sent[-1]
    unknown = f"{made['release_id']}: the ledger was put back, and nothing here shows who approved it"
    assert any(unknown in line for line in verifier.check(out, []))

    def told(*statements, witnessed=True):
        def change(body: dict) -> None:
            body["anchors"][-1]["line"] = 1
            if not witnessed:
                body["anchors"].pop(-2)
            for statement in statements:
                body["releases"][-1]["statement"] = statement.to_bytes().decode()

        return coordinators(ready, tmp_path / "list.json", change)

    assert any(unknown in line for line in verifier.check(out, [], told()))
    assert not any(unknown in line for line in verifier.check(out, [], told(sent)))
    other = json.loads(sent.payload) | {"wave": 3}
    with pytest.raises(verifier.Wrong, match="must be the sealed statement"):
        verifier.check(out, [], told(Envelope.sign(STATED, canonical_json(other), [ready.lead])))
    with pytest.raises(verifier.Wrong, match="must name a head that the coordinator has witnessed"):
        verifier.check(out, [], told(witnessed=False))


def test_what_an_approver_signed_who_has_left_or_has_a_new_key_stays_verified(ready, tmp_path):
    toml = ready.home / "site.toml"
    config = SiteConfig.load(ready.home)
    lind, berg = config.approvers["dr-lind"], config.approvers["dr-berg"]
    newer = SigningKey.generate().public.hex
    left = replace(config, approvers={"dr-berg": newer}, retired_approvers={"dr-lind": [lind], "dr-berg": [berg]})
    replace(left, retired_approvers={}).save()
    ready.refused("audit", "verify", expect=12)
    left.save()
    assert SiteConfig.load(ready.home) == left
    toml.write_text(toml.read_text().replace(f'"dr-lind" = ["{lind}"]', f'"dr-lind" = "{lind}"'))
    assert SiteConfig.load(ready.home) == left, "one key need not be a list"
    assert ready.json("audit", "verify")["signatures"] == 4
    ready("audit", "export", "mini", "--out", str(tmp_path / "record"))
    lines = verifier.check(tmp_path / "record", [])
    for whose, key in {
        "former approver dr-lind": lind,
        "former approver dr-berg": berg,
        "approver dr-berg": newer,
    }.items():
        assert f"  {whose}: {verifier.mark(key)}" in lines
    body = ready.refused("release", "mini", "--wave", "4", expect=12)
    assert "signed by an approver of this site" in body["must"], (
        "nothing goes on under the approval of one who has left"
    )
    with pytest.raises(ConfigRefusal):
        replace(config, retired_approvers={"dr-lind": [lind]})


def last_release(entries: list) -> list:
    name = next(entry for entry in entries[::-1] if entry["kind"] == "seal")["body"]["release_id"]
    return [entry for entry in entries if entry["body"].get("release_id") == name]


def forgotten(entries: list) -> None:
    for entry in last_release(entries):
        entries.remove(entry)


def given_to_another_study(entries: list) -> None:
    for entry in last_release(entries):
        hidden(entry, OTHER)


@pytest.mark.parametrize("change", [forgotten, given_to_another_study])
def test_a_release_that_the_site_hides_from_its_ledger_is_found_by_the_coordinators_list(
    ready, exported, tmp_path, change
):
    listed = coordinators(ready, tmp_path / "list.json")
    assert any("told here, and no other" in line for line in verifier.check(exported, [], listed))
    name = max((ready.home / "sealed").iterdir(), key=lambda folder: (folder / "bundle.zip").stat().st_mtime).name

    def falsify(folder: Path) -> None:
        rewritten("ledger.json", change)(folder)
        shutil.rmtree(folder / "releases" / name)

    falsify.chained = True
    assert resigned(ready, exported, falsify) == "", "by itself it is a record like any other"
    with pytest.raises(verifier.Wrong, match="every head that the coordinator witnessed"):
        verifier.check(exported, [], listed)
    with pytest.raises(verifier.Wrong, match="what the coordinator has of this study must be told here"):
        verifier.check(exported, [], coordinators(ready, listed, lambda body: body.update(anchors=[], size=0)))


LISTED = [
    (lambda b: b["releases"].pop(), "must be one that the coordinator has logged"),
    (lambda b: b["releases"][0].update(withdrawn=True), "its withdrawal at the coordinator must be told"),
    (lambda b: b["releases"][0].update(bundle_sha256="ab" * 32), "must be told here"),
    (lambda b: b["quarantined"].append({"release_id": "other", "bundle_sha256": "ab" * 32}), "must be told here"),
    (lambda b: b["anchors"][0].update(head="ab" * 32), "every head that the coordinator witnessed"),
    (lambda b: b["anchors"][0].update(seq=0), "every head that the coordinator witnessed"),
    (lambda b: b["anchors"].clear(), "must name a head that the coordinator has witnessed"),
    (lambda b: b.update(anchors=[], size=0), "its drawing must have been witnessed"),
    (lambda b: b.update(studies=0), "no more studies than the site takes part in"),
    (lambda b: b.update(site="south"), "of this site and study"),
    (lambda b: b.update(study="other"), "of this site and study"),
]


def test_the_coordinators_list_is_held_against_the_record_item_by_item(ready, exported, tmp_path):
    for change, said in LISTED:
        with pytest.raises(verifier.Wrong, match=said):
            verifier.check(exported, [], coordinators(ready, tmp_path / "list.json", change))
    with pytest.raises(verifier.Wrong, match="signed by the key that the site has pinned"):
        verifier.check(exported, [], coordinators(ready, tmp_path / "list.json", key=SigningKey.generate()))


def test_bundles_are_checked_when_they_are_named(ready, exported, tmp_path):
    bundles = sorted((ready.home / "sealed").glob("*/bundle.zip"))
    assert verified(exported, *bundles) == ""
    forged = tmp_path / "forged.zip"
    forged.write_bytes(bundles[0].read_bytes() + b"x")
    assert "sealed bundles" in verified(exported, forged)


def test_the_summary_says_who_approved_what_and_what_is_not_covered(exported):
    text = (exported / "summary.html").read_text()
    for part in (
        "dr-berg",
        "delivered",
        "rejected",
        "withdrawn",
        "rare-levels: warning",
        "Not covered",
        "python verify.py",
    ):
        assert part in text, part
    assert "http" not in text.replace("http-equiv", "")
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


def test_what_the_approvers_signed_is_checked_on_the_spot_as_a_stranger_would(ready):
    assert ready.json("audit", "verify")["signatures"] == 4, "two approvals, a rejection, a withdrawal"
    made = ready.json("release", "mini", "--wave", "4")
    at = cli.open_desk(ready.home)
    hold = at.ledger.hold(made["release_id"])
    key = at.outbox.approvers["dr-lind"]
    at.ledger.approve(hold, name="dr-lind", key=key, signature=bytes(64), bundle_sha256=hold.bundle_sha256)
    at.ledger.verify()
    refused = ready.refused("audit", "verify", expect=30)
    assert "each approval must be of a registered person, over the statement" in refused["given"]


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
