"""A coordinator, its sites and their releases, for the tests of the wire: loopback, with real mutual TLS."""

from __future__ import annotations

import atexit
import copy
import dataclasses
import datetime as dt
import io
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from coordinator.services.authority import Authority
from coordinator.services.collect.server import CoordinatorServer, ServerSettings
from coordinator.store.store import Store
from shared.base.canonical import canonical_json, sha256_hex
from shared.base.chain import GENESIS, extend_head
from shared.base.keys import Envelope, SigningKey
from shared.plans.dictionary import Column, Dictionary
from shared.plans.invitation import Invitation
from shared.plans.plan import StudyPlan, sign_plan
from shared.releases.bundle import write_bundle
from shared.releases.receipt import Receipt, ReceiptDraft, write_receipt
from shared.releases.statement import Statement
from shared.wire.messages import COLLECTION, SERVICE
from shared.wire.signed_messages import ANCHOR_TYPE, AnchorHead, EnrolmentRequest
from shared.wire.transport import Client, Credentials
from site_agent.egress import AcknowledgedReplies, Egress, RetryPolicy, SendingRules, new_tls_identity

LEAD = SigningKey.generate()
SMALL = Dictionary(
    name="small",
    version=1,
    columns=(
        Column(name="sbp", kind="continuous", lower=70, upper=270),
        Column(name="sex", kind="binary", levels=("female", "male")),
    ),
)


def small_table(n: int = 60, seed: int = 1) -> pd.DataFrame:
    """A released table that fits `SMALL`."""
    rng = np.random.default_rng(seed)
    sex = pd.Categorical(rng.choice(["female", "male"], n), categories=["female", "male"])
    return pd.DataFrame({"sbp": rng.uniform(80, 200, n), "sex": sex})


def anchor_head(site: str, seq: int, *, after: int = 0, branch: str = "", since: int = 0) -> AnchorHead:
    """An anchor of a made-up ledger of `seq` entries; `branch` names another history after entry `since`."""
    links = [sha256_hex(f"{branch if k > since else ''} {k}".encode()) for k in range(1, seq + 1)]
    return AnchorHead(site=site, seq=seq, head=extend_head(GENESIS, links), after=after, links=tuple(links[after:]))


def started(home: Path, **settings) -> CoordinatorServer:
    """A coordinator that serves on a free port; settings as of `ServerSettings` and of `CoordinatorServer`."""
    own = {name: settings.pop(name) for name in ("apart", "today", "now") if name in settings}
    return CoordinatorServer(home, "127.0.0.1:0", ServerSettings(**settings), **own)


@dataclass
class SiteKeys:
    """What a hospital holds."""

    site: str
    release: SigningKey = field(default_factory=SigningKey.generate)
    steward: SigningKey = field(default_factory=SigningKey.generate)
    identity: tuple[str, str] = ("", "")
    certificate: str = ""

    def __post_init__(self) -> None:
        self.identity = new_tls_identity(self.site)


@dataclass(frozen=True)
class Sealed:
    """A release as it lies in an outbox."""

    envelope: Envelope
    path: Path
    statement: Statement
    receipt: Receipt


_FIRST: dict[tuple[str, tuple[str, ...]], Hub] = {}


class Hub:
    """A coordinator's home folder, and the sites that have joined it."""

    def __init__(self, home: Path, plan: StudyPlan, *sites: str, url: str = "", bundles: str = "") -> None:
        self.home, self.plan, self.url, self.bundles = home, plan, url, bundles
        self.authority = Authority.create(home, coordinator=plan.coordinator, names=["127.0.0.1"])
        self.sites: dict[str, SiteKeys] = {}
        self.store = Store.open(home, url, bundles)
        self.store.add_plan(sign_plan(plan, [LEAD]), plan)
        self.port = 0
        self.drafts = home / "drafts"
        self.drafts.mkdir()
        for site in sites:
            self.join(site)

    @classmethod
    def alike(cls, home: Path, plan: StudyPlan, *sites: str) -> Hub:
        """A hub for a test that has one: all of a process with this plan and these sites are copies of the first.

        They have the same keys. Where stores lie in a database server, each is made anew.
        """
        if hasattr(Store.open, "elsewhere"):
            return cls(home, plan, *sites)
        if (plan.hash, sites) not in _FIRST:
            folder = tempfile.mkdtemp(prefix="hub-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            _FIRST[plan.hash, sites] = cls(Path(folder) / "hub", plan, *sites)
            _FIRST[plan.hash, sites].store.close()
        return _FIRST[plan.hash, sites].copied(home)

    def copied(self, home: Path) -> Hub:
        """The same in another folder, as this one was when its store was closed."""
        shutil.copytree(self.home, home)
        made = copy.copy(self)
        made.home, made.drafts, made.sites = home, home / "drafts", {k: copy.copy(v) for k, v in self.sites.items()}
        made.authority, made.store = Authority.load(home), Store.open(home)
        return made

    def serve(self, **settings) -> CoordinatorServer:
        self.running = started(self.home, **{"url": self.url, "bundles": self.bundles, **settings})
        self.port = self.running.port
        return self.running

    def invite(self, site: str, *studies: str, days: int = 14) -> Invitation:
        invitation = self.authority.invite(
            site, studies or [self.plan.study], days, address=f"127.0.0.1:{self.port}", leads=[LEAD.public]
        )
        self.store.add_invitation(invitation)
        return invitation

    def join(self, site: str) -> SiteKeys:
        """Take a site in without a server: what `Enrol` and `accept` do, in one go."""
        keys = self.sites.setdefault(site, SiteKeys(site))
        invitation = self.invite(site)
        self.token = invitation.token
        request = EnrolmentRequest(
            site=site,
            csr_pem=keys.identity[1],
            release_key=keys.release.public,
            approvers={"steward": keys.steward.public},
        )
        digest = sha256_hex(canonical_json(request.to_canonical()))
        self.store.enrol(token=invitation.token, site=site, request=request, digest=digest, today=dt.date.today())
        self.store.accept_site(site, keys.release.public.fingerprint)
        keys.certificate = self.authority.issue(keys.identity[1], site)
        self.store.set_certificate(site, keys.identity[1], keys.certificate)
        return keys

    def credentials(self, site: str) -> Credentials:
        keys = self.sites[site]
        return Credentials(ca_pem=self.authority.ca_pem, cert_pem=keys.certificate, key_pem=keys.identity[0])

    def egress(self, site: str, **settings) -> Egress:
        """A site's door; settings as of `Egress`, `RetryPolicy` and `SendingRules`."""
        given = {"address": f"127.0.0.1:{self.port}", "timeout": 20.0, "witness": self.witness(site), **settings}
        retries = {name: given.pop(name) for name in ("timeout", "attempts", "sleep") if name in given}
        rules = {name: given.pop(name) for name in ("paused", "allowed", "sealed") if name in given}
        return Egress(
            server_name="tributary-coordinator",
            credentials=self.credentials(site),
            retries=RetryPolicy(**retries),
            rules=SendingRules(**rules),
            **given,
        )

    def witness(self, site: str) -> AcknowledgedReplies:
        return AcknowledgedReplies(self.authority.witness.public, site, self.home / f"acknowledged.{site}.jsonl")

    def client(self, site: str) -> Client:
        """The bare channel, for what `Egress` would never send."""
        return Client(
            address=f"127.0.0.1:{self.port}",
            server_name="tributary-coordinator",
            credentials=self.credentials(site),
            service=SERVICE,
            methods=COLLECTION,
        )

    def anchor(self, site: str, seq: int, *, key: SigningKey | None = None, **history) -> Envelope:
        return Envelope.sign(
            ANCHOR_TYPE, anchor_head(site, seq, **history).to_bytes(), [key or self.sites[site].release]
        )

    def seal(
        self,
        site: str,
        *,
        wave: int = 1,
        release_id: str = "ab" * 16,
        table: pd.DataFrame | None = None,
        plan: StudyPlan | None = None,
        signers: list[SigningKey] | None = None,
        receipt_changes: dict | None = None,
        statement_changes: dict | None = None,
        data: bytes | None = None,
    ) -> Sealed:
        """A release, right unless it is told to be wrong."""
        plan, keys = plan or self.plan, self.sites[site]
        if table is None:
            table = small_table()
        receipt = write_receipt(
            plan,
            ReceiptDraft(
                wave=wave,
                site=site,
                release_id=release_id,
                agent_version="0.1.0",
                n=len(table),
                previous=sha256_hex(f"{site} {release_id} {wave}".encode()),
            ),
        )
        receipt = dataclasses.replace(receipt, **(receipt_changes or {}))
        data = write_bundle(receipt, table) if data is None else data
        values = {
            "study": plan.study,
            "plan_hash": plan.hash,
            "plan_version": plan.version,
            "wave": wave,
            "site": site,
            "release_id": release_id,
            "recipient": plan.coordinator,
            "bundle_sha256": sha256_hex(data),
            "bundle_bytes": len(data),
            "receipt_sha256": receipt.hash,
            "ledger_head": "0" * 64,
        }
        statement = Statement(**{**values, **(statement_changes or {})})
        envelope = statement.sign(signers if signers is not None else [keys.release, keys.steward])
        path = self.drafts / f"{sha256_hex(data)}.zip"
        path.write_bytes(data)
        return Sealed(envelope=envelope, path=path, statement=statement, receipt=receipt)

    def contents(self) -> set[str]:
        """Names of all files that an ingest may leave behind."""
        folders = ("bundles", "staging", "quarantine")
        there = {f"{folder}/{path.name}" for folder in folders for path in (self.home / folder).glob("*")}
        return there | {f"bundles/{digest}.zip" for digest in self.store.bundles.names()}


def rezip(data: bytes, change: dict[str, bytes]) -> bytes:
    """A bundle with other members."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, change.get(name, old.read(name)))
    return out.getvalue()
