"""Every parser that reads what a stranger wrote, each with inputs that it takes: what `faults.fuzz` is let loose on."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from stage.both_sides.service import LEAD, Hub, anchor_head
from stage.both_sides.wire_values import VALUES
from stage.training.federation import PLAN as FEDERATED

from coordinator.services.backup import BackupFacts
from faults.answers import answers
from faults.carried import carried
from faults.extracts import extracts
from faults.fuzz import CAP, Target
from faults.handed import handed
from faults.released import released
from faults.statements import statements
from shared.base.archive import BACKUP_TYPE, BackupHeader, Contents
from shared.base.canonical import canonical_json, parse_json, sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import SchemaRefusal
from shared.estimands.questions import parse_estimand, parse_formula
from shared.plans.dictionary import Dictionary
from shared.plans.invitation import Invitation
from shared.plans.plan import StudyPlan, open_plan, sign_plan
from shared.plans.standing import Revocation, Standing
from shared.releases.bundle import _write_archive, read_bundle
from shared.releases.receipt import Receipt
from shared.releases.statement import Statement
from shared.wire import messages as wire
from shared.wire import signed_messages
from shared.wire.clocks import CLOCK_TYPE, ClockReading, open_reading, utc_now
from shared.wire.rounds import ANSWER_TYPE, ORDER_TYPE, Answered, RoundOrder, open_answer, open_order, pack, unpack
from shared.wire.tree_heads import TREE_HEAD_TYPE, RestoredLog, TreeHead, open_head
from site_agent.config import SiteConfig

__all__ = ["targets"]

MEMORY = Path("/dev/shm")
"""What is parsed may be written to disk first, and a case must not wait for that."""
STUDIES = Path(__file__).resolve().parents[2] / "deploy" / "studies"
KEY = SigningKey.generate()
QUESTIONS = (
    "mean(sbp)",
    "cox(years, died, subset = sex == 1) ~ sbp/10 + C(arm)",
    "logistic(num > 0, subset = age >= 60) ~ age/10 + C(cp)",
    "km(time, cvd, at = 5)",
    "correlation(sbp, age)",
    "ols(sbp, robust = HC3) ~ log(age) + I(age^2)",
)
MAPPING = """
site = "north"
coordinator = "hub"
address = "hub.example.org:8443"
server_name = "tributary-coordinator"
ca_fingerprint = "ab cd"
leads = ["{key}"]
studies = ["cvd"]
[approvers]
steward = "{key}"
[floors]
persons = 60
[budget]
site_epsilon = 20.0
[data.cvd]
path = "/srv/cohort.csv"
encoding = "utf-8"
[data.cvd.columns]
sbp = "systolic"
[data.cvd.values.sex]
levels = {{ "1" = "male", "0" = "female" }}
"""


def targets() -> Iterator[Target]:
    """One after the other; each knows at least one input that is taken."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    plan = StudyPlan.from_toml((STUDIES / "cvd.toml").read_text())
    small = _small()
    hub = Hub(folder / "hub", small, "north")
    sealed = hub.seal("north")
    yield from _plans(plan, small)
    yield from _releases(folder, sealed.path.read_bytes(), sealed.receipt, sealed.statement, small)
    yield from _joining(hub)
    yield from _wire(hub)
    yield from _trainings()
    yield from released(folder, sealed.path.read_bytes(), small)
    yield from handed(folder, KEY)
    yield from statements(folder, hub, KEY)
    yield from carried(folder, hub, sealed.path, sealed.envelope)
    yield from answers(folder)
    yield from extracts(folder)
    hub.store.close()


def _small() -> StudyPlan:
    """The plan of `service`'s small tables."""
    from stage.coordinator_side.sandbox import PLAN

    return PLAN


def _signed(kind: str, data: bytes) -> Envelope:
    """What a stranger signed with the right key: so that its words are read at all."""
    return Envelope.sign(kind, data, [KEY])


def _again(read: Callable[[bytes], Any]) -> Callable[[bytes], object]:
    """Read a signed document, and hold it to its one form: what is taken is written as it came."""

    def run(data: bytes) -> object:
        value = read(data)
        if value.to_bytes() != data:
            assert read(value.to_bytes()) == value, "what is written is read as it was"
        return value

    return run


def _plans(plan: StudyPlan, small: StudyPlan) -> Iterator[Target]:
    kind = sign_plan(plan, [LEAD]).payload_type

    def opened(data: bytes) -> object:
        return open_plan(Envelope.sign(kind, data, [LEAD]), {LEAD.public.key_id: LEAD.public})

    others = (FEDERATED, small, *(StudyPlan.from_toml(path.read_text()) for path in sorted(STUDIES.glob("*.toml"))))
    yield Target("plan", tuple({one.canonical for one in (plan, *others)}), opened)
    texts = tuple(path.read_bytes() for path in sorted(STUDIES.glob("*.toml")))
    yield Target("plan in toml", texts, lambda data: StudyPlan.from_toml(data.decode("utf-8", "replace")), "text")

    def dictionary(data: bytes) -> object:
        given = parse_json(data)
        if not isinstance(given, dict):
            raise SchemaRefusal("a dictionary must be an object")
        return Dictionary.from_canonical(given)

    words = {canonical_json(one.dictionary.to_canonical()) for one in (plan, *others)}
    yield Target("dictionary", tuple(sorted(words)), dictionary)

    def question(data: bytes) -> object:
        text = data.decode("utf-8", "replace")
        kind, _, formula = text.partition("|")
        found = parse_formula(kind, formula) if formula else parse_estimand(text)
        assert parse_estimand(str(found)) == found, "one spelling"
        return found

    asked = (*QUESTIONS, *plan.estimands.values(), "cox|Surv(time, cvd) ~ sbp/10 + age/10", "correlation|~ sbp + age")
    yield Target("formula", tuple(text.encode() for text in asked), question, "text")
    site = MAPPING.format(key=KEY.public.hex).encode()
    home = Path("/srv/site")
    yield Target(
        "mapping", (site,), lambda data: SiteConfig.from_toml(data.decode("utf-8", "replace"), home=home), "text"
    )


def _releases(folder: Path, data: bytes, receipt: Receipt, statement: Statement, plan: StudyPlan) -> Iterator[Target]:
    yield Target("receipt", (receipt.to_bytes(),), _again(Receipt.from_bytes))
    yield Target("statement", (statement.to_bytes(),), _again(Statement.from_bytes))
    place = folder / "bundle.zip"

    def bundle(given: bytes) -> object:
        place.write_bytes(given)
        return read_bundle(place, cap=CAP, before=lambda said: plan.release.extent(plan, said.n))

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}

    def around(name: str) -> Callable[[bytes], object]:
        """The bundle with another file of this name, its digests true: as a site would sign it."""

        def run(given: bytes) -> object:
            files = {**parts, name: given}
            if name != "manifest.json":
                said = json.loads(parts["manifest.json"])
                sizes = {one: {"sha256": sha256_hex(files[one]), "bytes": len(files[one])} for one in said["files"]}
                said["files"] = sizes
                files["manifest.json"] = canonical_json(said)
            out = io.BytesIO()
            _write_archive(out, {one: files[one] for one in parts})
            return bundle(out.getvalue())

        return run

    yield Target("bundle", (data,), bundle, "bytes", apart=True)
    yield Target("bundle: table", (parts["table.parquet"],), around("table.parquet"), "table", apart=True)
    yield Target("bundle: manifest", (parts["manifest.json"],), around("manifest.json"))


def _joining(hub: Hub) -> Iterator[Target]:
    yield Target("invitation", (hub.invite("north").to_bytes(),), _again(Invitation.from_bytes))
    keys = hub.sites["north"]
    request = signed_messages.EnrolmentRequest(
        site="north", csr_pem=keys.identity[1], release_key=keys.release.public, approvers={"a": keys.steward.public}
    )
    yield Target(
        "enrolment",
        (canonical_json(request.to_canonical()),),
        lambda data: signed_messages.EnrolmentRequest.from_bytes(data),
    )
    names = {"study": "mini", "site": "north", "wave": 1, "release_id": "ab" * 16, "bundle_sha256": "ab" * 32}
    taken = signed_messages.Withdrawal(**names, reason_code="consent").sign([KEY, LEAD])
    yield Target("withdrawal", (taken.payload,), lambda data: signed_messages.Withdrawal.from_bytes(data))
    links = tuple(anchor_head("north", seq).to_bytes() for seq in (1, 5, 40))
    yield Target("ledger links", links, _again(signed_messages.AnchorHead.from_bytes))
    standing = Standing(**_standing())
    yield Target("standing approval", (standing.to_bytes(),), _again(Standing.from_bytes))
    over = Revocation(study="mini", site="north", standing="ab" * 32, approver="ada")
    yield Target("revocation", (over.to_bytes(),), _again(Revocation.from_bytes))


def _standing() -> dict[str, Any]:
    names = {"study": "mini", "site": "north", "plan_hash": "ab" * 32, "agent_version": "0.1.0", "release_id": "r"}
    return {
        **names,
        "approver": "ada",
        "max_epsilon": 2.0,
        "until": "2026-12-31",
        "n": 60,
        "number": 1,
        "day": "2026-01-05",
    }


def _wire(hub: Hub) -> Iterator[Target]:
    envelope = _signed("text/plain", b"payload").to_bytes()
    yield Target("envelope", (envelope,), _again(Envelope.from_bytes))

    kinds = list(dict.fromkeys(type(value) for value in VALUES))

    def message(data: bytes) -> object:
        kind = kinds[data[0] % len(kinds)] if data else kinds[0]
        value = wire.decode(kind, data[1:])
        assert wire.decode(kind, wire.encode(value)) == value
        return value

    seeds = tuple(bytes([kinds.index(type(value))]) + wire.encode(value) for value in VALUES)
    yield Target("protobuf", seeds, message, "bytes")
    head = TreeHead(coordinator="hub", size=3, root="ab" * 32, day="2026-01-05")
    body = head.sign(KEY).payload
    yield Target("log's head", (body,), lambda data: open_head(_signed(TREE_HEAD_TYPE, data).to_bytes(), KEY.public))
    word = RestoredLog(size=2, root="ab" * 32, archive="", reason="a fire", day="2026-01-05")
    yield Target("restoration", (canonical_json(word.to_canonical()),), RestoredLog.from_entry)
    reading = ClockReading.question("north", utc_now()).signed(KEY).payload
    yield Target("clock", (reading,), lambda data: open_reading(_signed(CLOCK_TYPE, data), KEY.public))
    contents = {name: {"sha256": "ab" * 32, "bytes": 1} for name in ("coordinator.toml", "store.db", "ca/ca.pem")}
    facts = {"coordinator": "hub", "day": "2026-01-05", "size": 1, "root": "", "head": "", "witness": "", "releases": 0}
    listed = canonical_json({"header": "ab" * 32, "facts": facts, "files": contents})

    def packed(data: bytes) -> object:
        found, _ = Contents.from_envelope(_signed(BACKUP_TYPE, data).to_bytes(), contents.__contains__)
        return BackupFacts.of(found.facts)

    yield Target("backup's contents", (listed,), packed)
    header = BackupHeader(
        side="site", name="north", day="2026-01-05", software="1", recipients={"a": KEY.public.hex}, locked={"a": ""}
    )
    yield Target("backup's first line", (header.to_line(),), BackupHeader.from_line)


def _trainings() -> Iterator[Target]:
    content = pack(np.arange(6.0), {"n": 60, "steps": 2})
    yield Target("round's weights", (content, pack(np.ones(3, dtype=np.float32), {})), unpack, "bytes")
    names: dict[str, Any] = {"study": "mini", "plan_hash": "ab" * 32, "round": 1, "content_bytes": len(content)}
    order = RoundOrder(**names, kind="train", content_sha256=sha256_hex(content))
    answer = Answered(**names, site="north", asked="ab" * 32, content_sha256=sha256_hex(content))

    def asked(data: bytes) -> object:
        return open_order(_signed(ORDER_TYPE, data).to_bytes(), content, KEY.public)

    def answered(data: bytes) -> object:
        return open_answer(_signed(ANSWER_TYPE, data).to_bytes(), content, KEY.public)

    yield Target("round's order", (order.to_bytes(),), asked)
    yield Target("round's answer", (answer.to_bytes(),), answered)
