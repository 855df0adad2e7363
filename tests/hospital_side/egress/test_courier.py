"""A site that never has a line, beside one that has: files go there and back, and everything else is as over gRPC."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import io
import json
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stage.both_sides.joined import Joined, JoinedSite
from stage.both_sides.service import small_table
from stage.hospital_side.recovery import PLAN

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.keys import Envelope, SigningKey
from shared.errors import AwaitsCourier, IntegrityRefusal, SchemaRefusal, TooLarge
from shared.mechanisms.tables.plan import TablesPlan
from shared.releases import courier
from shared.wire.site_messages import Chunk, OfferRequest
from site_agent.decide import reconciliation
from site_agent.desk import Desk
from site_agent.egress.courier import Courier

TABLES = dataclasses.replace(PLAN, release=TablesPlan(epsilon=2.0), posture="private")
ALONE: set[int] = set()
"""Threads in which no connection may be opened."""


def _no_line(event: str, _: Any) -> None:
    if event in ("socket.connect", "socket.getaddrinfo") and threading.get_ident() in ALONE:
        raise AssertionError(f"{event} by a site that has no line")


sys.addaudithook(_no_line)


class Island(JoinedSite):
    """A site whose folder meets the coordinator's only through files."""

    def __init__(self, hub: Joined, name: str) -> None:
        self.hub, self.name, self.home, self.count = hub, name, hub.folder / name, 0
        invitation = hub.folder / f"{name}.invitation"
        hub.lead("invite", name, "--study", hub.plan.study, "--out", invitation)
        self("init", "--invitation", invitation, "--approver", "dr-lind", "--courier")

    def __call__(self, *argv: Any, expect: int | None = 0) -> Any:
        ALONE.add(threading.get_ident())
        try:
            return super().__call__(*argv, expect=expect)
        finally:
            ALONE.discard(threading.get_ident())

    def _file(self, kind: str) -> Path:
        self.count += 1
        return self.hub.folder / f"{self.name}-{self.count}.{kind}"

    def export(self) -> Path:
        out = self._file("out")
        self("outbox", "export", out)
        return out

    def post_box(self) -> Path:
        back = self._file("back")
        self.hub.lead("post-box", self.name, back)
        return back

    def trip(self) -> tuple[Any, Any]:
        """There and back; what the coordinator made of it, and what the site did."""
        taken = self.hub.lead("import", self.export())
        return taken, self("outbox", "import", self.post_box())

    def joins(self) -> None:
        assert self("join", expect=20)["refused"]["code"] == "E_NETWORK"
        self.hub.lead("import", self.export())
        self.hub.lead("accept", self.name, "--fingerprint", self("status")["fingerprint"])
        self("outbox", "import", self.post_box())
        assert self("join")["state"] == "joined"

    def adopts(self) -> None:
        study = self.hub.plan.study
        table = self.hub.folder / f"{self.name}.csv"
        small_table(300, seed=len(self.name)).to_csv(table, index=False)
        self("plan", "fetch", study)
        self("data", "add", table, "--as", study)
        self("plan", "approve", study, "--as", "dr-lind", "--understood", "private")

    def held(self) -> str:
        return Desk(self.home).ledger.holds("mini")[-1].release_id

    def released(self) -> str:
        """A release, approved, and in the courier's hands from now on."""
        self("release", "mini", "--wave", 1, expect=20)
        taken, _ = self.trip()
        assert {"method": "Anchor", "refused": ""} in taken["calls"]
        self("release", "mini", "--wave", 1)
        full = self.held()
        self("approve", full, "--as", "dr-lind", expect=20)
        return full


@pytest.fixture
def hub(tmp_path, monkeypatch, capsys):
    # With a server at work beside every import.
    with Joined(tmp_path, monkeypatch, capsys, TABLES) as made:
        yield made


def test_a_site_that_never_has_a_line_takes_part_beside_one_that_has(hub):
    north = hub.site("north")
    island = Island(hub, "island")
    island.joins()
    island.adopts()
    full = island.released()
    state = lambda: Desk(island.home).ledger.hold(full).state  # noqa: E731
    assert state() == "approved"
    box = island.trip()[1]
    assert {"method": "Offer", "refused": ""} in box["answered"]
    assert state() == "approved", "what an answer means is found out by the command that had asked"
    island("run", "--once", expect=20)
    assert state() == "delivered"
    [release] = hub.store.releases()
    assert (release.site, release.release_id) == ("island", full)
    # Anchored in the one log, as north's heads are: every answer is kept, and all of one history.
    kinds = [said["kind"] for said in Desk(island.home).replies.replies()]
    assert kinds.count("Acceptance") == 1
    assert "AnchorReceipt" in kinds
    assert "Fork" not in kinds
    # The *drawing* entry went along with the release, and is witnessed too.
    entries = Desk(island.home).ledger.entries()
    seen = Desk(island.home).acknowledged()
    assert next(one.hash for one in entries if one.kind == "drawing") in seen
    assert "no line" in json.dumps(island("doctor"))
    assert north("status")["site"] == "north"
    # Once more there and back: nothing is sent twice, and the same file again changes nothing.
    again = island.export()
    for _ in range(2):
        hub.lead("import", again)
    island("outbox", "import", island.post_box())
    assert [one.release_id for one in hub.store.releases()] == [full]


@pytest.fixture
def afloat(hub):
    """An island that has joined and waits with an approved release; nothing of it is with the coordinator."""
    island = Island(hub, "island")
    island.joins()
    island.adopts()
    island.released()
    return island


def flipped(path: Path, place: int) -> Path:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    other = path.with_suffix(f".{place}")
    other.write_bytes(data)
    return other


def test_what_is_altered_cut_or_for_somebody_else_is_refused_on_both_sides_and_nothing_of_it_is_taken(hub, afloat):
    out = afloat.export()
    size = out.stat().st_size
    before = hub.store.entries()
    for place in (3, 40, size // 2, size - 1):
        code = hub.lead("import", flipped(out, place), expect=30)["refused"]["code"]
        assert code in ("E_INTEGRITY", "E_SCHEMA", "E_REPLAY"), place
    cut = out.with_suffix(".cut")
    for length in (0, 30, 400, size - 1):
        cut.write_bytes(out.read_bytes()[:length])
        assert hub.lead("import", cut, expect=30)["refused"]["code"] in ("E_INTEGRITY", "E_SCHEMA")
    cut.write_bytes(out.read_bytes() + b"x")
    hub.lead("import", cut, expect=30)
    for name in ("coordinator", "site"):  # the first line says another than what is signed
        head, rest = out.read_bytes().split(b"\n", 1)
        cut.write_bytes(json.dumps({**json.loads(head), name: "other"}, sort_keys=True, separators=(",", ":")).encode())
        cut.write_bytes(cut.read_bytes() + b"\n" + rest)
        assert hub.lead("import", cut, expect=30)["refused"]["code"] in ("E_REPLAY", "E_INTEGRITY")
    assert hub.store.entries() == before
    assert not hub.store.releases()
    hub.lead("import", out)
    back = afloat.post_box()
    state = (afloat.home / "courier" / "state.json").read_bytes()
    for place in (3, 40, 400, back.stat().st_size - 1):
        afloat("outbox", "import", flipped(back, place), expect=30)
    cut.write_bytes(back.read_bytes()[:-1])
    assert afloat("outbox", "import", cut, expect=30)["refused"]["code"] == "E_INTEGRITY"
    assert afloat("outbox", "import", out, expect=30)["refused"]["code"] == "E_REPLAY", "its own file"
    assert hub.lead("import", back, expect=30)["refused"]["code"] == "E_REPLAY"
    assert (afloat.home / "courier" / "state.json").read_bytes() == state
    afloat("outbox", "import", back)


@pytest.mark.parametrize(
    "listed",
    [
        {"method": "Status"},
        {"method": "Status", "sha256": "0" * 64, "bytes": 0, "more": 1},
        {"method": ["Status"], "sha256": "0" * 64, "bytes": 0},
        {"method": "Upload", "sha256": "0" * 64, "bytes": 0},
        {"method": "Status", "sha256": 7, "bytes": "0"},
        {"method": "Offer", "sha256": sha256_hex(b""), "bytes": 0, "bundle_sha256": None, "bundle_bytes": -1},
        "Status",
    ],
)
def test_a_list_of_calls_in_another_form_is_refused_by_type_whoever_signed_it(tmp_path, listed):
    key = ec.generate_private_key(ec.SECP256R1())
    named, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anybody")]), dt.datetime(2026, 1, 1)
    made = x509.CertificateBuilder().subject_name(named).issuer_name(named).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + dt.timedelta(days=9))
    header = courier.CourierHeader(to=courier.TO_COORDINATOR, coordinator="hub", site="north", number=1)
    said = canonical_json({"coordinator": "hub", "site": "north", "number": 1, "seen": [], "calls": [listed]})
    signature = key.sign(Envelope.encoding(courier.CALLS_TYPE, said), ec.ECDSA(hashes.SHA256()))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    first = {"certificate": certificate, "calls": said.decode(), "signature": base64.b64encode(signature).decode()}
    hub, path = SigningKey.generate(), tmp_path / "calls"
    courier._written(path, header, io.BytesIO(canonical_json(first) + b"\n"), hub.public)
    with (
        pytest.raises((SchemaRefusal, IntegrityRefusal, TooLarge)),
        courier.SiteParcel.opened(path, key=hub, coordinator="hub", room=tmp_path),
    ):
        pass


def test_another_sites_post_box_and_another_coordinators_are_refused(hub, afloat, tmp_path, monkeypatch, capsys):
    hub.lead("import", afloat.export())
    other = Island(hub, "atoll")
    other.joins()
    hub.lead("import", other.export())
    assert afloat("outbox", "import", other.post_box(), expect=30)["refused"]["code"] == "E_REPLAY"
    # Of the same name and with a line of its own: only the pinned key tells it from the right one.
    with Joined(tmp_path / "elsewhere", monkeypatch, capsys, TABLES) as elsewhere:
        assert elsewhere.lead("import", afloat.export(), expect=30)["refused"]["code"] == "E_INTEGRITY"
        stranger = Island(elsewhere, "island")
        stranger.joins()
        elsewhere.lead("import", stranger.export())
        assert afloat("outbox", "import", stranger.post_box(), expect=30)["refused"]["code"] == "E_SIGNATURE"


def test_couriers_that_cross_lose_nothing_and_repeat_nothing(hub, afloat):
    first = afloat.export()
    second = afloat.export()
    hub.lead("import", second)
    early = afloat.post_box()
    assert not hub.lead("import", first)["newest"]
    late = afloat.post_box()
    full = afloat.held()
    afloat("outbox", "import", late)
    refused = afloat("outbox", "import", early, expect=30)["refused"]
    assert refused["code"] == "E_REPLAY"
    assert "newer" in refused["must"]
    afloat("outbox", "import", late)
    afloat("run", "--once", expect=20)
    assert Desk(afloat.home).ledger.hold(full).state == "delivered"
    assert [one.release_id for one in hub.store.releases()] == [full]


def test_a_pause_a_refusal_and_a_revocation_are_as_over_a_line(hub, afloat):
    afloat("pause", "--as", "dr-lind", "--reason", "a question")
    assert afloat("outbox", "export", hub.folder / "held-back", expect=10)["refused"]["code"] == "E_PAUSED"
    assert not (hub.folder / "held-back").exists()
    afloat("resume", "--as", "dr-lind")
    hub.publish("mini", version=2, title="Amended meanwhile")
    taken, back = afloat.trip()
    [code] = {one["refused"] for one in taken["calls"] if one["method"] == "Offer"}
    assert code == "E_PLAN_CHANGED"
    assert {"method": "Offer", "refused": code} in back["answered"]
    assert Desk(afloat.home).ledger.hold(afloat.held()).state == "approved"
    out = afloat.export()
    hub.lead("revoke", "island")
    assert hub.lead("import", out, expect=21)["refused"]["code"] == "E_CERT"
    assert hub.lead("post-box", "island", out.with_suffix(".back"), expect=21)["refused"]["code"] == "E_CERT"
    assert not hub.store.releases()


def test_of_two_draws_by_a_folder_that_was_copied_the_coordinator_takes_one(hub, monkeypatch):
    """A courier cannot be waited for in the middle of a draw: the frontier that the threat model names."""
    island = Island(hub, "island")
    island.joins()
    island.adopts()
    island("release", "mini", "--wave", 1, expect=20)
    island.trip()
    copy = hub.folder / "copy"
    shutil.copytree(island.home, copy)
    files = []
    for home in (island.home, copy):
        island.home = home
        island("release", "mini", "--wave", 1)
        island("approve", island.held(), "--as", "dr-lind", expect=20)
        files.append(island.export())
    first, second = (hub.lead("import", one) for one in files)
    codes = lambda taken: [one["refused"] for one in taken["calls"] if one["method"] == "Offer"]  # noqa: E731
    assert codes(first) == [""]
    assert codes(second) != [""]
    assert "E_LEDGER" in {one["refused"] for one in second["calls"]}
    assert len(hub.store.releases()) == 1


def test_a_site_put_back_from_a_backup_asks_what_it_had_asked_and_believes_no_older_answer(hub, afloat):
    backup, full = hub.folder / "backup", afloat.held()
    early = afloat.post_box()
    afloat("outbox", "import", early)
    afloat("backup", backup)
    out = afloat.export()
    made = courier.read_header(io.BytesIO(early.read_bytes())).number
    while int(time.time()) <= made:  # post-boxes are numbered by the second
        time.sleep(0.05)
    afloat("restore", backup, "--as", "dr-lind", "--replace")
    kept = json.loads((afloat.home / "courier" / "state.json").read_bytes())
    [named] = [one["bundle"] for one in kept["asked"] if one["bundle"]]
    assert sha256_hex((afloat.home / "courier" / f"{named}.zip").read_bytes()) == named
    # Neither the answers in the backup nor a post-box from before it can say that the ledger lacks nothing.
    assert kept["answers"] == {}
    assert afloat("outbox", "import", early, expect=30)["refused"]["code"] == "E_REPLAY"
    assert afloat("ledger", "recover", expect=20)["refused"]["code"] == "E_NETWORK"
    hub.lead("import", out)  # the file that was under way when the disk failed
    afloat.trip()
    assert afloat("ledger", "recover")["state"] == "whole"
    afloat("run", "--once", expect=20)
    assert Desk(afloat.home).ledger.hold(full).state == "delivered"
    assert [one.release_id for one in hub.store.releases()] == [full]


def test_an_acknowledgement_that_is_asked_for_leaves_another_calls_offer_in_its_place(tmp_path):
    line, data = Courier(tmp_path), b"sealed"
    line.call("Offer", OfferRequest(envelope=b"one"), timeout=1.0)
    with pytest.raises(AwaitsCourier):
        line.ask_acknowledgement(OfferRequest(envelope=b"other"))
    with pytest.raises(AwaitsCourier):
        line.call("Upload", iter([Chunk(bundle_sha256=sha256_hex(data), offset=0, data=data)]), timeout=1.0)
    assert (line.waiting(), line.offers()) == (("Offer", "Offer"), (sha256_hex(data),))


def test_of_several_forgotten_acknowledgements_each_is_asked_for_and_a_new_release_may_go(monkeypatch):
    """They come with one post-box; what the coordinator lacks goes before what may rest on it."""
    what = {"first": reconciliation.UNKEPT, "second": reconciliation.FORGOTTEN}
    wanted: list[str] = []

    def mend(desk, egress, one, answer):
        wanted.append(one.release_id)
        raise AwaitsCourier("the coordinator must have answered by courier")

    def compare(desk, study, answer):
        return tuple(
            reconciliation.Discrepancy(study=study, wave=1, release_id=name, what=said) for name, said in what.items()
        )

    plain = {"_require_one_history": None, "_prove_heads": False, "_stored_acceptances": {}, "last_look": {}}
    for name, gives in plain.items():
        monkeypatch.setattr(reconciliation, name, lambda *given, gives=gives: gives)
    monkeypatch.setattr(reconciliation, "_mend", mend)
    monkeypatch.setattr(reconciliation, "compare", compare)
    settled = reconciliation.settle(None, SimpleNamespace(report_gap=lambda *given: None), "mini", None)
    assert wanted == ["first", "second"]
    assert (settled.mended, settled.left) == ((), ())
    settled.require_carried(but=reconciliation.ARRIVED)
    with pytest.raises(AwaitsCourier):
        settled.require_carried()
    what["third"] = reconciliation.SHOWN
    with pytest.raises(AwaitsCourier):
        reconciliation.settle(None, None, "mini", None).require_carried(but=reconciliation.ARRIVED)


def test_an_acknowledgement_that_a_backup_has_forgotten_comes_with_the_next_post_box(hub):
    """The restored ledger lacks the approval, so that by its own word the bytes may not be carried once more."""
    island, backup = Island(hub, "island"), hub.folder / "backup"
    island.joins()
    island.adopts()
    island("release", "mini", "--wave", 1, expect=20)
    island.trip()
    island("release", "mini", "--wave", 1)
    full = island.held()
    island("backup", backup)
    island("approve", full, "--as", "dr-lind", expect=20)
    island.trip()
    island("run", "--once", expect=20)
    assert Desk(island.home).ledger.hold(full).state == "delivered"
    made = int(time.time())
    while int(time.time()) <= made:  # post-boxes are numbered by the second
        time.sleep(0.05)
    island("restore", backup, "--as", "dr-lind", "--replace")
    assert island("ledger", "recover", expect=20)["refused"]["code"] == "E_NETWORK"
    island.trip()
    assert island("ledger", "recover")["delivered"] == [full]
    for _ in range(3):  # no round ends with 30: what is missing is on its way
        island("run", "--once", expect=20)
        island.trip()
    assert Desk(island.home).ledger.hold(full).state == "delivered"
    kept = [one for one in Desk(island.home).replies.replies() if one["kind"] == "Acceptance"]
    assert [one["release_id"] for one in kept] == [full]
    assert island("status")["discrepancies"] == []
    assert [one.release_id for one in hub.store.releases()] == [full]
