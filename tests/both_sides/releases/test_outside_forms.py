"""What is written for tools of others is read by tools of others: schemas, envelopes, checkpoints, crates."""

from __future__ import annotations

import base64
import copy
import dataclasses
import datetime as dt
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jsonschema import Draft202012Validator, FormatChecker
from stage.both_sides.joined import Joined
from stage.both_sides.service import small_table
from stage.hospital_side.recovery import PLAN

from coordinator.cli import main as coordinator
from coordinator.config import CoordinatorConfig, WebConfig
from coordinator.operations import governance
from coordinator.services.analysts import Analysts
from coordinator.store.store import Store
from shared.base.canonical import canonical_json
from shared.base.keys import Envelope, SigningKey
from shared.mechanisms.kinds import KINDS
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import StudyPlan
from shared.wire.tree_heads import TreeHead, checkpoint_note, note_verifier
from site_agent.config import TableSource
from site_agent.desk import Desk
from site_agent.show import governance as site_governance
from tests.stage.house.sources import ROOT

SCHEMAS = ROOT / "docs" / "schemas"
TABLES = dataclasses.replace(PLAN, release=TablesPlan(epsilon=2.0), posture="private")


def validator(name: str) -> Draft202012Validator:
    body = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(body)
    return Draft202012Validator(body, format_checker=FormatChecker())


def pointed(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all objects in a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    here = [place] if isinstance(value, dict) else []
    return here + [one for key, part in inside for one in pointed(part, (*place, key))]


OPEN = {"parameters", "event", "estimands", "reference", "versions", "by", "trained", "shares", "bins", "zeros"}
"""Objects whose keys the study names, or the mechanism."""


def accepts_this_and_nothing_more(schema: Draft202012Validator, document: dict[str, Any]) -> None:
    assert [error.message for error in schema.iter_errors(document)] == []
    closed = [place for place in pointed(document) if not OPEN & set(place) and not {*range(1, 500)} & set(place)]
    for place in closed:
        other = copy.deepcopy(document)
        inner = other
        for key in place:
            inner = inner[key]
        inner["something_else"] = 1
        assert not schema.is_valid(other), place
    for key in document:
        lacking = {name: value for name, value in document.items() if name != key}
        optional = key not in schema.schema["required"]
        assert schema.is_valid(lacking) == optional, key


def test_the_published_schemas_are_those_of_the_types():
    spec = importlib.util.spec_from_file_location("schemas", ROOT / "deploy" / "schemas.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    written = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    assert written == json.loads(json.dumps(made.schemas())), "python deploy/schemas.py writes them anew"


def test_every_shipped_plan_is_one_by_the_schema_and_none_with_a_word_more():
    schema = validator("plan")
    seen = set()
    for path in sorted((ROOT / "deploy" / "studies").glob("*.toml")):
        plan = StudyPlan.from_toml(path.read_text())
        accepts_this_and_nothing_more(schema, json.loads(canonical_json(plan.to_canonical())))
        seen.add(plan.release.mechanism)
    assert seen >= {"latent_noise", "moments", "tables", "densities", "network_counts"} <= set(KINDS)
    one = json.loads(canonical_json(PLAN.to_canonical()))
    for wrong in ({"version": "1"}, {"expires": "soon"}, {"posture": "open"}, {"budget": {"epsilon": "1", "delta": 0}}):
        assert not schema.is_valid({**one, **wrong}), wrong


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A hub and a site that has delivered one release; the site's exported record."""
    folder = tmp_path_factory.mktemp("released")
    patch, capture = pytest.MonkeyPatch(), Silence()
    with patch.context() as context, Joined(folder, context, capture, TABLES) as hub:
        small_table(200).to_csv(folder / "north.csv", index=False)
        site = hub.site("north")
        site("plan", "fetch", "mini")
        site("data", "add", folder / "north.csv", "--as", "mini")
        site("plan", "approve", "mini", "--as", "dr-lind", "--understood", "private")
        site("release", "mini", "--wave", 1)
        site("approve", Desk(site.home).ledger.holds("mini")[0].release_id, "--as", "dr-lind")
        site("audit", "export", "mini", "--out", folder / "record")
        yield hub, site, folder / "record"


class Silence:
    """Reads what a command has printed, as capsys does, for a fixture of a module."""

    def __init__(self) -> None:
        import io
        import sys

        self.out, self.err = io.StringIO(), io.StringIO()
        self._sys = sys

    def readouterr(self) -> tuple[str, str]:
        import io

        found = self.out.getvalue(), self.err.getvalue()
        self.out, self.err = io.StringIO(), io.StringIO()
        self._sys.stdout, self._sys.stderr = self.out, self.err
        return found


def test_receipt_statement_and_checks_are_as_their_schemas_say(released):
    _, site, record = released
    [folder] = (record / "releases").iterdir()
    accepts_this_and_nothing_more(validator("receipt"), json.loads((folder / "receipt.json").read_text()))
    statement = Envelope.from_bytes((folder / "statement.json").read_bytes()).payload
    accepts_this_and_nothing_more(validator("statement"), json.loads(statement))
    checks = next((site.home / "sealed").glob("*/checks.json"))
    accepts_this_and_nothing_more(validator("checks"), json.loads(checks.read_text()))


def test_envelopes_are_dsse_by_securesystemslib(released):
    from securesystemslib.dsse import Envelope as Dsse
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    hub, site, record = released
    signers = {"agent": Desk(site.home).release_key.public}
    signers |= {name: key for name, key in Desk(site.home).outbox.approvers.items()}
    keys = [SSlibKey(key.key_id, "ed25519", "ed25519", {"public": key.hex}) for key in signers.values()]
    [folder] = (record / "releases").iterdir()
    statement = Dsse.from_dict(json.loads((folder / "statement.json").read_text()))
    assert set(statement.verify(keys, threshold=2)) == {key.key_id for key in signers.values()}
    statement.payload = statement.payload.replace(b'"wave":1', b'"wave":2')
    with pytest.raises(VerificationError):
        statement.verify(keys, threshold=1)
    head = Dsse.from_dict(json.loads(hub.lead("log", "head")["head"]))
    witness = hub.server.service._authority.witness.public
    head.verify([SSlibKey(witness.key_id, "ed25519", "ed25519", {"public": witness.hex})], threshold=1)


def opened_note(note: str, verifier: str) -> list[str]:
    """A signed note, read by https://c2sp.org/signed-note alone; its lines. Knows nothing of how ours are made."""
    name, hashed, key = verifier.split("+", 2)
    public = base64.b64decode(key)
    assert public[:1] == b"\x01", "Ed25519"
    assert hashlib.sha256(name.encode() + b"\n" + public).digest()[:4].hex() == hashed
    text, signatures = note.rsplit("\n\n", 1)
    text += "\n"
    for line in signatures.splitlines():
        mark, signer, signed = line.split(" ")
        raw = base64.b64decode(signed)
        if (mark, signer, raw[:4].hex()) == ("\u2014", name, hashed):
            Ed25519PublicKey.from_public_bytes(public[1:]).verify(raw[4:], text.encode())
            return text.splitlines()
    raise AssertionError("nobody known has signed")


def test_the_reader_of_notes_reads_the_vector_that_the_format_is_known_by():
    """From the documentation of Go's package sumdb/note, which C2SP's signed-note describes."""
    verifier = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    note = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n\n"
        "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJ"
        "nAM=\n"
    )
    assert len(opened_note(note, verifier)) == 2


def test_a_checkpoint_of_the_log_is_a_signed_note(released):
    hub, *_ = released
    said = hub.lead("log", "head", "--note")
    origin, size, root = opened_note(said["note"], said["note_key"])
    assert coordinator(["--home", str(hub.home), "log", "head", "--note"]) == 0
    assert "--out FILE writes the note" in hub.capsys.readouterr()[0]  # a screen would break its lines
    assert (origin, int(size)) == ("tributary-log/hub", said["size"])
    assert base64.b64decode(root).hex() == said["root"]
    key, head = SigningKey.generate(), TreeHead(coordinator="hub", size=7, root="ab" * 32, day="2026-01-05")
    note = checkpoint_note(head, key)
    opened_note(note, note_verifier("hub", key.public))
    with pytest.raises(InvalidSignature):
        opened_note(note.replace("\n7\n", "\n8\n"), note_verifier("hub", key.public))
    with pytest.raises(AssertionError):
        opened_note(note, note_verifier("other", key.public))


OPENS_NOTES = """
package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/mod/sumdb/note"
)

func main() {
	verifier, err := note.NewVerifier(os.Args[1])
	if err == nil {
		var text []byte
		text, _ = io.ReadAll(os.Stdin)
		var opened *note.Note
		if opened, err = note.Open(text, note.VerifierList(verifier)); err == nil {
			fmt.Print(opened.Text)
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
"""
GOCODE = Path("/usr/share/gocode")
"""Where Debian's golang-golang-x-mod-dev lies."""


@pytest.mark.skipif(
    shutil.which("go") is None or not (GOCODE / "src/golang.org/x/mod/sumdb/note").is_dir(),
    reason="Go and its golang.org/x/mod are not installed",
)
def test_a_checkpoint_of_the_log_is_opened_by_go_as_one_of_its_checksum_database(released, tmp_path):
    hub, *_ = released
    said = hub.lead("log", "head", "--note")
    (tmp_path / "opens.go").write_text(OPENS_NOTES)
    env = {**os.environ, "GO111MODULE": "off", "GOPATH": f"{GOCODE}", "GOCACHE": f"{tmp_path}", "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", "opens", "opens.go"], cwd=tmp_path, env=env, check=True, timeout=240)

    def opened(note: str, key: str = said["note_key"]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([tmp_path / "opens", key], input=note, capture_output=True, text=True)

    root = base64.b64encode(bytes.fromhex(said["root"])).decode()
    assert opened(said["note"]).stdout == f"tributary-log/hub\n{said['size']}\n{root}\n"
    altered = said["note"].replace(f"\n{said['size']}\n", f"\n{said['size'] + 1}\n")
    other = note_verifier("hub", SigningKey.generate().public)
    for refused in (opened(altered), opened(said["note"], other)):
        assert (refused.returncode, refused.stdout) == (1, "")


def test_an_audit_export_is_a_five_safes_crate(released):
    _, _, record = released
    body = json.loads((record / "ro-crate-metadata.json").read_text())
    graph = {one["@id"]: one for one in body["@graph"]}
    assert len(graph) == len(body["@graph"]), "each is said once"
    root = graph["./"]
    assert root["conformsTo"] == {"@id": "https://w3id.org/5s-crate/0.4"}
    assert {one["@id"] for one in root["hasPart"]} == {
        path.relative_to(record).as_posix() for path in record.rglob("*") if path.is_file()
    } - {"ro-crate-metadata.json", "manifest.json"}

    def named(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [value["@id"]] if set(value) == {"@id"} else [one for part in value.values() for one in named(part)]
        return [one for part in value for one in named(part)] if isinstance(value, list) else []

    outside = "https://w3id.org/shp#", "https://w3id.org/ro/crate/"
    assert [one for one in named(body["@graph"]) if one not in graph and not one.startswith(outside)] == []
    kinds = {graph[one["@id"]].get("additionalType", {}).get("@id", "run").rsplit("#")[-1] for one in root["mentions"]}
    assert kinds == {"run", "SignOff", "DisclosureCheck"}
    assert graph["#person-dr-lind"]["@type"] == "Person"


@pytest.fixture(scope="module")
def packs(released):
    hub, site, record = released
    site("ig-pack", "--out", record.with_name("site-pack"))
    hub.lead("ig-pack", "--out", record.with_name("hub-pack"))
    return record.with_name("site-pack"), record.with_name("hub-pack")


def test_a_sites_risk_appetite_is_by_its_schema_and_its_settings(released, packs):
    _, site, _ = released
    appetite = json.loads((packs[0] / "risk-appetite.json").read_text())
    accepts_this_and_nothing_more(validator("risk-appetite"), appetite)
    [study] = appetite["studies"]
    desk = Desk(site.home)
    assert (study["epsilon_cap"], study["approved_by"]) == (TABLES.budget.epsilon, ["dr-lind"])
    assert study["spent_epsilon"] == desk.ledger.study_total("mini", TABLES.budget.delta).stated
    assert study["plan_hash"] == desk.plans.plan("mini").hash
    assert appetite["approvers"] == ["dr-lind"]


def test_a_pack_is_of_the_settings_in_force(released, packs):
    hub, site, _ = released
    address = f"127.0.0.1:{hub.server.port}"
    for pack in packs:
        names = {path.name for path in pack.iterdir()}
        assert names >= {"data-flow.mmd", "ports.md", "roles.md", "retention.md", "dpia.md", "threat-model.md"}
        assert names >= {"controls.md", "sbom.cdx.json", "README.md"}
        assert address in (pack / "ports.md").read_text()
        dpia = (pack / "dpia.md").read_text()
        assert TABLES.purpose in dpia
        assert f"Columns: {', '.join(TABLES.dictionary.names)}." in dpia
        assert ".." not in dpia
        flow = (pack / "data-flow.mmd").read_text()
        assert flow.startswith("flowchart LR\n")
        assert "north" in flow
        controls = (pack / "controls.md").read_text()
        assert "in part" in controls
        assert "Not assessed" in controls
    assert "2.0" in (packs[0] / "dpia.md").read_text() or "ε = 2" in (packs[0] / "dpia.md").read_text()
    text = (site.home / "site.toml").read_text()
    (site.home / "site.toml").write_text(text.replace(address, "elsewhere.example:99"))
    try:
        site("ig-pack", "--out", packs[0].with_name("again"))
    finally:
        (site.home / "site.toml").write_text(text)
    assert "elsewhere.example:99" in (packs[0].with_name("again") / "ports.md").read_text()
    assert site("ig-pack", "--out", packs[0], expect=2)["refused"]["code"] == "E_STATE"


def test_a_sites_pack_has_the_hospitals_database_and_its_proxy(released, packs, monkeypatch):
    _, site, _ = released
    (site.home / "table.sql").write_text("SELECT 1")
    config = site.desk.config
    config.with_source("mini", TableSource(path=site.home / "table.sql", database="HOSPITAL_DB")).save()
    monkeypatch.setenv("https_proxy", "http://agent:hidden-word@proxy.example:3128")
    try:
        ports = site_governance.pack(site.desk, dt.date(2026, 1, 1))["ports.md"]
    finally:
        config.save()
    assert "| out | as HOSPITAL_DB says |" in ports
    assert "through the proxy proxy.example:3128" in ports
    assert "hidden-word" not in ports


def test_a_coordinators_pack_has_every_port_every_other_machine_and_no_secret(tmp_path, postgres):
    url = postgres.database("pack").replace("://hub@", "://hub:hidden-word@")
    (tmp_path / "notify.toml").write_text(
        'webhook = "https://hook.example/hidden-word"\nsmtp = "mail.example:587"\nsender = "hub@example.org"\n'
    )
    config = CoordinatorConfig(
        home=tmp_path,
        name="hub",
        address="hub.example:8443",
        listen="0.0.0.0:8443",
        analysts="hub.example:8444",
        health="127.0.0.1:9464",
        bundles="s3://hub/x?endpoint=https://objects.example",
        compute="dask://cluster.example:8786",
        web=WebConfig(address="hub.example:443", issuer="https://people.example/realm", client_id="hub"),
    )
    with closing(Store.open(tmp_path, url)) as store:
        for name, days in (("grace", 100), ("henry", 200)):
            Analysts(store).add(name, studies=["mini"], days=days, today=dt.date(2026, 1, 1))
        Analysts(store).revoke("henry", today=dt.date(2026, 1, 2))
        made = governance.pack(config, store, {}, Analysts(store).accounts())
    assert "| analyst, until 2026-04-11 | grace | mini |" in made["roles.md"]
    assert "henry" not in made["roles.md"]
    lines = [line.split(" | ") for line in made["ports.md"].splitlines() if line.startswith("| ")]
    ways = {(line[0].removeprefix("| "), line[2]) for line in lines[2:]}
    assert ways == {
        *(("in", f"{host}:{port}") for host, port in [("0.0.0.0", 8443), ("0.0.0.0", 8444), ("0.0.0.0", 443)]),
        ("in", "127.0.0.1:9464"),
        *(
            ("out", host)
            for host in (f"{postgres.folder}", "objects.example", "cluster.example:8786", "people.example")
        ),
        *(("out", host) for host in ("mail.example:587", "hook.example")),
    }
    assert all(
        name in made["data-flow.mmd"] for name in (f"{postgres.folder}", "objects.example", "cluster.example:8786")
    )
    assert not any("hidden-word" in str(text) for text in made.values())


def test_the_bill_of_materials_is_of_what_is_installed(packs):
    from importlib.metadata import version

    bill = json.loads((packs[0] / "sbom.cdx.json").read_text())
    parts = {one["name"]: one for one in bill["components"]}
    assert parts["numpy"]["version"] == version("numpy")
    assert parts["cryptography"]["purl"] == f"pkg:pypi/cryptography@{version('cryptography')}"
    refs = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert len(refs) == len(bill["components"]) + 1
    assert {one["ref"] for one in bill["dependencies"]} == refs
    assert {to for one in bill["dependencies"] for to in one["dependsOn"]} <= refs


def test_the_schemas_are_found_by_who_looks_for_them():
    page = (ROOT / "docs" / "operators-manual.md").read_text()
    assert [path.name for path in SCHEMAS.glob("*.json") if f"schemas/{path.name}" not in page] == []
    assert all(json.loads(path.read_text())["$id"] for path in map(Path, SCHEMAS.glob("*.json")))
