"""One wave in the life of a site's ledger and outbox, from nothing to delivery, for tests that interrupt it anywhere.

The coordinator is a notebook in files that outlives the agent. As a script (``python
tests/stage/hospital_side/agent_life.py RECEIPT``) it is the agent as processes of their own, one for each home that is
named on a line of standard input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # the stage is read as pytest reads it
    sys.path.insert(0, str(Path(__file__).parents[2]))

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from stage.hospital_side.ledger import Accepted, Anchored

from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import LedgerRefusal, Refusal, StateRefusal
from shared.privacy import accountant as privacy
from shared.releases.receipt import Receipt
from shared.releases.statement import STATEMENT_TYPE, Statement
from shared.wire.signed_messages import ANCHOR_TYPE
from site_agent.ledger.book import Hold, Ledger
from site_agent.ledger.charge import Reservation
from site_agent.lock import StateLock
from site_agent.release.outbox import Outbox
from site_agent.release.sealed_state import FIT, ROWS

# The same in every process that plays a part in one life.
AGENT, ADA, BOB = (SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32)) for k in (1, 2, 3))
PEOPLE = {"ada": ADA.public, "bob": BOB.public}
CAP = 1e9


def reserve(ledger: Ledger, receipt: Receipt, release_id: str):
    return ledger.reserve(
        Reservation(
            study=receipt.study,
            plan_hash=receipt.plan_hash,
            wave=receipt.wave,
            release_id=release_id,
            event=receipt.event,
            delta=receipt.delta,
            cap_epsilon=CAP,
        )
    )


class Notebook:
    """A coordinator that keeps anchors and bundles in files, so that it outlives the agent's process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder.resolve()  # it may lie elsewhere: it is another machine

    def note(self, name: str, line: object) -> None:
        handle = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, json.dumps(line).encode() + b"\n")
        os.close(handle)

    def lines(self, name: str) -> list:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def anchor(self, envelope: Envelope):
        body = json.loads(envelope.require(ANCHOR_TYPE, {AGENT.public.key_id: AGENT.public}))
        for seen in self.lines("anchors"):
            if body["seq"] < seen["seq"] or (body["seq"] == seen["seq"] and body["head"] != seen["head"]):
                raise LedgerRefusal("the head must not go back")
        self.note("anchors", body)
        return Anchored(body["seq"], body["head"])

    def send(self, envelope: Envelope, bundle: bytes) -> Accepted:
        keys = {key.key_id: key for key in (AGENT.public, ADA.public)}
        statement = Statement.from_bytes(envelope.require(STATEMENT_TYPE, keys, threshold=2))
        assert statement.bundle_sha256 == sha256_hex(bundle)
        self.note("bundles", [statement.release_id, statement.bundle_sha256, envelope.digest])
        return Accepted(statement.release_id, statement.bundle_sha256)


def run_agent(home: Path, template: Receipt) -> None:
    """One start of the agent: recover, then bring wave 1 to delivery from wherever it stands."""
    notes = Notebook(home / "hub")
    with StateLock(home):
        ledger = Ledger.create(home / "ledger.db", AGENT, site="north")
        outbox = Outbox(home, ledger, approvers=PEOPLE)
        outbox.recover()
        try:
            hold = reserve(ledger, template, uuid.uuid4().hex)
        except StateRefusal:
            return
        if hold.state in ("reserved", "anchored"):
            hold = ledger.mark_anchored(hold, notes.anchor(ledger.anchor_envelope()))
            hold = ledger.start_drawing(hold, ["a-person"])
            notes.note("draws", hold.release_id)
            receipt = dataclasses.replace(template, release_id=hold.release_id)
            files = {FIT: os.urandom(50), ROWS: os.urandom(50)}
            hold = outbox.seal(hold, os.urandom(2000), receipt, files=files)
        if hold.state in ("sealed", "sent_back"):
            hold = outbox.hold(hold.release_id, checks={"rare": "passed"}, audit={"auc": 0.5})
        if hold.state == "held":
            outbox.approve(hold.release_id, ADA, "ada")
        release = hold.release_id
        accepted = notes.send(outbox.envelope(release), outbox.bundle(release).read_bytes())
        outbox.delivered(release, accepted)


@contextlib.contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where there is some, else below `otherwise`: a killed process loses the same in either.

    Its name is none of those that are swept up as anybody's temporary files: of an agent whose folder is emptied while
    it runs, the ledger may well outlive the bytes, which looks like the one loss that these tests are for.
    """
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else otherwise
    with tempfile.TemporaryDirectory(dir=place, prefix="agents-killed-") as name:
        yield Path(name)


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder`, by its path in it."""
    return {
        str(path.relative_to(folder)): sha256_hex(path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }


def copied(source: Path, target: Path) -> None:
    """Put a whole copy of `source` in the place of `target`, and see that it is whole and `source` left alone."""
    shutil.rmtree(target, ignore_errors=True)
    before = contents(source)
    shutil.copytree(source, target)
    assert contents(target) == before == contents(source), "not the agent: its folder was changed beside it"


def assert_sealed_bytes_are_there(home: Path, holds: list[Hold]) -> None:
    """Whatever the ledger calls sealed lies on the disk, whole: the bytes come first, and stay while the hold lives."""
    for hold in holds:
        sealed = {**hold.files, "bundle.zip": hold.bundle_sha256} if hold.bundle_sha256 else {}
        folder = home / "sealed" / hold.release_id
        found = contents(folder) if sealed else {}
        lost = sorted(name for name, digest in sealed.items() if found.get(name) != digest)
        assert not lost, f"sealed in the ledger ({hold.state}), and not on the disk: {lost} of {sorted(found)}"


def assert_nothing_is_undercounted(home: Path, scratch: Path, template: Receipt) -> None:
    """Right after a crash, before any recovery: as many charges as draws, or more, and all that was sealed."""
    draws = Notebook(home / "hub").lines("draws")
    if not (home / "ledger.db").exists():
        assert draws == []
        return
    copied(home, scratch)
    ledger = Ledger(scratch / "ledger.db", AGENT, site="north")
    spent = ledger.study_total(template.study, template.delta)
    curve = len(draws) * privacy.rdp(privacy.from_canonical(template.event))
    assert spent.releases >= len(draws)
    assert spent.epsilon >= privacy.epsilon_from_rdp(curve, template.delta) * (1 - 1e-12)
    holds = ledger.holds()
    assert {hold.release_id for hold in holds} >= set(draws)
    assert_sealed_bytes_are_there(home, holds)


def assert_settled(home: Path, template: Receipt) -> None:
    """After the agent has come to an end: I4, I5, I7, I8, and one release delivered."""
    notes = Notebook(home / "hub")
    ledger = Ledger(home / "ledger.db", AGENT, site="north")
    outbox = Outbox(home, ledger, approvers=PEOPLE)
    ledger.verify()
    holds = ledger.holds()
    draws = Counter(notes.lines("draws"))
    assert set(draws.values()) <= {1}, "one charge, one draw"
    assert len(holds) >= len(draws)
    sent = {tuple(line) for line in notes.lines("bundles")}
    assert len(sent) == 1, "one release, always in the same bytes under the same statement"
    release_id, digest, _ = next(iter(sent))
    assert_sealed_bytes_are_there(home, holds)
    delivered = [hold for hold in holds if hold.state == "delivered"]
    assert [(hold.release_id, hold.bundle_sha256) for hold in delivered] == [(release_id, digest)]
    assert sha256_hex(outbox.bundle(release_id).read_bytes()) == digest
    assert all(hold.state == "burnt" for hold in holds if hold not in delivered)
    kinds = [entry.kind for entry in ledger.entries() if entry.body.get("release_id") == release_id]
    assert kinds.index("approve") < kinds.index("commit")
    bundles = [path.parent.name for path in home.glob("sealed/*/bundle.zip")]
    assert bundles == [release_id], "bytes of burnt draws are gone"
    assert not list(home.rglob("*.part"))


def _live() -> None:
    """Forked for each home that is named on a line: live there, and say by which code it was refused."""
    receipt = Receipt.from_bytes(Path(sys.argv[1]).read_bytes())
    for line in sys.stdin:
        child = os.fork()
        if not child:
            said = "done"
            try:
                run_agent(Path(line.strip()), receipt)
            except Refusal as refusal:
                said = refusal.code
            except BaseException as error:
                said = f"{type(error).__name__} {error}"
            os.write(1, f"{said}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _live()
