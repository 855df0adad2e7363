"""A hospital on a table top: an invitation, a folder, and a coordinator that is a Python object.

The real connection is tested elsewhere; here only the order of things at the site matters.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shared.base.canonical import parse_json, sha256_hex
from shared.base.chain import GENESIS, head_fingerprint, heads
from shared.base.keys import Envelope, SigningKey
from shared.errors import LedgerRefusal, NetworkRefusal, UnknownMethod
from shared.flows.affine import AffineAutoregressiveFlow
from shared.mechanisms.latent_noise.plan import mechanism
from shared.plans.invitation import Invitation, certificate_fingerprint
from shared.plans.plan import StudyPlan, sign_plan
from shared.terminal import run
from shared.wire.clocks import ClockOffset
from shared.wire.signed_messages import AnchorHead
from shared.wire.site_messages import (
    Acceptance,
    AnchorReceipt,
    CoordinatorLimits,
    Enrolment,
    Holding,
    Holdings,
    MembershipReply,
    Reminder,
)
from site_agent import cli
from site_agent.release import drawing
from site_agent.release.fitting import FittedMechanism, released_rows
from site_agent.release.pipeline import stages

PASSPHRASE = "correct horse battery"


def quick_fit(plan, encoder, x, persons, rng, progress):
    """x = mean + scale z: a flow that needs no training."""
    progress(0.5)
    flow = AffineAutoregressiveFlow(mean=x.mean(axis=0), scale=np.diag(x.std(axis=0) + 1e-9))
    return FittedMechanism(mechanism=mechanism(plan, flow), released=released_rows(plan, len(x), persons))


@dataclass
class Hub:
    """A coordinator that keeps what it is given."""

    envelopes: dict[str, Envelope] = field(default_factory=dict)
    anchored: list[dict[str, Any]] = field(default_factory=list)
    sent: list[tuple[Envelope, bytes]] = field(default_factory=list)
    buried: list[Envelope] = field(default_factory=list)
    stood: list[Envelope | None] = field(default_factory=list)
    revoked: list[Envelope] = field(default_factory=list)
    accepted: bool = True
    down: bool = False
    allowed: str = ""
    ahead: float = 0.0
    renewed: int = 0
    reminders: tuple[Reminder, ...] = ()
    signed: bytes = b""
    ca: tuple[Any, Any] | None = None
    asked: list[tuple[Any, bytes]] = field(default_factory=list)
    answered: list[tuple[Envelope, bytes]] = field(default_factory=list)
    grants: list[bytes] = field(default_factory=list)
    leads: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    takes: CoordinatorLimits | None = field(default_factory=CoordinatorLimits)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def _up(self):
        if self.down:
            raise NetworkRefusal("the coordinator must answer", given="no answer")

    def enrol(self, *, token, site, csr_pem, signer, approvers):
        self._up()
        if not self.accepted:
            return Enrolment(state="pending", fingerprint=signer.public.fingerprint)
        request = x509.load_pem_x509_csr(csr_pem.encode())
        key, authority = self.ca
        pem = certificate(site, request.public_key(), key, authority.subject)
        return Enrolment(state="accepted", certificate_pem=pem)

    def fetch_plan(self, study):
        self._up()
        return self.envelopes[study]

    def status(self, study):
        self._up()
        said = [parse_json(envelope.payload) for envelope, _ in self.sent]
        return tuple(
            Holding(
                study=study,
                wave=one["wave"],
                release_id=one["release_id"],
                state="accepted",
                log_index=place,
                statement=self.sent[place][0].to_bytes(),
            )
            for place, one in enumerate(said)
            if one["study"] == study
        )

    def witnessed(self, study):
        self._up()
        if not self.anchored:
            return None
        last = self.anchored[-1]
        return AnchorReceipt(seq=last["seq"], head=last["head"], index=len(self.anchored))

    def reanchored(self, study):
        return self.renewed

    def holdings(self, study):
        return Holdings(
            holdings=self.status(study),
            anchored=self.witnessed(study),
            reanchored=self.renewed,
            anchor=self.signed,
            reminders=self.reminders,
        )

    held = holdings

    def authorities(self):
        return ()

    def watch(self):
        return None

    def report_gap(self, study, lacking):
        return len(lacking)

    def anchor(self, envelope):
        self._up()
        body = parse_json(envelope.payload)
        said = AnchorHead.from_bytes(envelope.payload)
        last = self.witnessed("")
        if last is None or (last.seq, last.head) != (said.seq, said.head):
            if not said.extends(*((0, GENESIS) if last is None else (last.seq, last.head))):
                known = {0: GENESIS} | {one["seq"]: one["head"] for one in self.anchored}
                passed = heads(known[said.after], said.links)
                if not self.allowed or self.allowed not in [head_fingerprint(head) for head in passed]:
                    raise LedgerRefusal("the ledger must go on", next_step="Run site-agent ledger recover.")
                self.renewed, self.allowed = self.renewed + 1, ""
            self.anchored.append(body)
            self.signed = envelope.to_bytes()
        return AnchorReceipt(seq=body["seq"], head=body["head"], index=len(self.anchored))

    def send(self, envelope, bundle, progress=None, standing=None):
        self._up()
        data = Path(bundle).read_bytes()
        self.sent.append((envelope, data))
        self.stood.append(standing)
        said = parse_json(envelope.payload)
        return Acceptance(
            study=said["study"],
            wave=said["wave"],
            site=said["site"],
            release_id=said["release_id"],
            bundle_sha256=sha256_hex(data),
            log_index=len(self.sent) - 1,
            log_root="ab" * 32,
            accepted_day="2026-01-05",
        )

    def limits(self):
        self._up()
        if self.takes is None:
            raise UnknownMethod("the coordinator must know the method", given="an earlier version")
        return self.takes

    def membership(self, statements=()):
        self._up()
        self.shown = [*getattr(self, "shown", []), *statements]
        return MembershipReply(grants=tuple(self.grants), leads=tuple(self.leads), keys=tuple(self.keys))

    def clock(self, site, key, now=None):
        self._up()
        return ClockOffset(seconds=self.ahead, within=0.1)

    def next_round(self, study):
        self._up()
        return self.asked[0] if self.asked else None

    def answer_round(self, envelope, content, key):
        self._up()
        self.answered.append((envelope, content))
        self.asked.pop(0)

    def revoke_standing(self, envelope):
        self._up()
        self.revoked.append(envelope)

    def withdraw(self, envelope):
        self._up()
        if envelope not in self.buried:
            self.buried.append(envelope)
        return SimpleNamespace(log_index=1000 + self.buried.index(envelope))


def certificate(name: str, public: Any, signer: Any, issuer: x509.Name | None = None) -> str:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365))
        .sign(signer, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM).decode()


@dataclass
class Hospital:
    """A site's folder and its coordinator, driven through the command line."""

    folder: Path
    home: Path
    lead: SigningKey
    hub: Hub
    invitation: Path
    capsys: Any

    def __call__(self, *argv: str, expect: int = 0) -> str:
        """Run a command; its output, standard error last."""
        self.capsys.readouterr()
        code = run(cli.app, name="site-agent", argv=[*argv, "--home", str(self.home)])
        out, err = self.capsys.readouterr()
        assert code == expect, f"{argv}: {code}\n{out}\n{err}"
        return out + err

    def json(self, *argv: str, expect: int = 0) -> Any:
        return json.loads(self(*argv, "--json", expect=expect))

    def refused(self, *argv: str, expect: int) -> dict[str, Any]:
        """The refusal of a command, as JSON and as a panel; both say what to do next."""
        body = self.json(*argv, expect=expect)["refused"]
        assert body["code"] in self(*argv, expect=expect)
        assert body["exit_code"] == expect
        return body

    def publish(self, plan: StudyPlan, key: SigningKey | None = None) -> None:
        self.hub.envelopes[plan.study] = sign_plan(plan, [key or self.lead])

    def joined(self, *approvers: str) -> Hospital:
        names = [word for name in approvers or ("dr-lind",) for word in ("--approver", name)]
        self("init", "--invitation", str(self.invitation), *names)
        self("join")
        return self

    def approved(self, plan: StudyPlan, name: str = "dr-lind") -> Hospital:
        self.publish(plan)
        self("plan", "fetch", plan.study)
        self("plan", "approve", plan.study, "--as", name, "--understood", "local")
        return self

    def with_table(self, table: Any, study: str = "mini") -> Hospital:
        path = self.folder / "cohort.csv"
        table.to_csv(path, index=False)
        self("data", "add", str(path), "--as", study)
        return self


@pytest.fixture
def hospital(tmp_path, monkeypatch, capsys):
    """A hospital that has received an invitation; training and attacks are replaced by something quick."""
    lead = SigningKey.generate()
    key = ec.generate_private_key(ec.SECP256R1())
    ca_pem = certificate("ca", key.public_key(), key)
    hub = Hub(ca=(key, x509.load_pem_x509_certificate(ca_pem.encode())))
    invited = Invitation(
        coordinator="hub",
        address="hub.example.org:8443",
        server_name="hub.example.org",
        ca_pem=ca_pem,
        ca_fingerprint=certificate_fingerprint(ca_pem),
        site="north",
        studies=("mini",),
        token="t" * 43,
        expires=dt.date(2999, 1, 1),
        leads=(lead.public,),
        witness=lead.public,
        bootstrap_cert_pem=ca_pem,
        bootstrap_key_pem="KEY",
    )
    path = tmp_path / "invitation.json"
    path.write_bytes(invited.to_bytes())
    monkeypatch.setenv("TRIBUTARY_PASSPHRASE", PASSPHRASE)
    monkeypatch.delenv("TRIBUTARY_TODAY", raising=False)
    monkeypatch.setattr("site_agent.desk.door", lambda config, **_: hub)
    monkeypatch.setattr("site_agent.desk.kept_replies", lambda config: None)  # this hub signs nothing
    monkeypatch.setattr("site_agent.egress.Egress.from_invitation", lambda invitation, **_: hub)
    monkeypatch.setattr(drawing, "_fit", quick_fit)
    monkeypatch.setattr(
        drawing, "_attack", lambda **_: {"sentences": ["Attacks we tried on 300 released rows; others may do better."]}
    )
    monkeypatch.setattr(
        stages,
        "estimate",
        lambda plan, source: stages.RunEstimate(seconds=1.0, memory_mb=200.0, bundle_mb=0.1, n=300, d=13),
    )
    monkeypatch.setenv("COLUMNS", "100")
    return Hospital(folder=tmp_path, home=tmp_path / "site", lead=lead, hub=hub, invitation=path, capsys=capsys)
