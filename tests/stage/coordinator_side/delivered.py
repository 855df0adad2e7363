"""A coordinator's store with releases in it, made without a network: what queries and the lead's verbs read."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd

from coordinator.answers.release_selection import holding
from coordinator.answers.site_answers import answers_of_sites
from coordinator.store.store import Store
from shared.base.keys import SigningKey
from shared.errors import DictionaryRefusal
from shared.estimands.answer import Estimand, Estimate
from shared.plans.invitation import Invitation
from shared.plans.plan import StudyPlan
from shared.releases.bundle import write_bundle
from shared.releases.receipt import ReceiptDraft, write_receipt
from shared.releases.statement import Statement
from shared.wire.signed_messages import EnrolmentRequest, Withdrawal

STUDIES = Path(__file__).parents[3] / "deploy" / "studies"
TODAY = dt.date(2026, 1, 5)
APPROVERS: dict[str, SigningKey] = {}  # by the handle of the site's release key


def cohort_plan(**changes: str) -> StudyPlan:
    """The shipped cohort study; `changes` replace text of its file."""
    text = (STUDIES / "cvd.toml").read_text()
    for before, after in changes.items():
        text = text.replace(before, after)
    return StudyPlan.from_toml(text)


def cohort(n: int, seed: int, *, log_hr: float = 0.15, columns: tuple[str, ...] = ()) -> pd.DataFrame:
    """A simulated release of the cohort study, `log_hr` per 10 mmHg."""
    rng = np.random.default_rng(seed)
    age, sbp = rng.normal(55, 8, n).clip(30, 90), rng.normal(130, 18, n).clip(80, 240)
    rate = 0.02 * np.exp(log_hr * (sbp - 130) / 10 + 0.04 * (age - 55))
    event, censored = rng.exponential(1 / rate), rng.uniform(5, 25, n)
    table = pd.DataFrame(
        {
            "time": np.minimum(event, censored).round(2),
            "cvd": (event <= censored).astype("int64"),
            "age": age.round(1),
            "chol": rng.normal(210, 35, n).clip(100, 500).round(0),
            "hdl": rng.normal(50, 13, n).clip(15, 150).round(0),
            "sbp": sbp.round(0),
        }
    )
    return table[list(columns)] if columns else table


def join(store: Store, invitation: Invitation, *, accepted: bool = True) -> SigningKey:
    """Let a site ask to join with its invitation; returns its release key."""
    key, approver = SigningKey.generate(), SigningKey.generate()
    APPROVERS[key.public.key_id] = approver
    request = EnrolmentRequest(
        site=invitation.site, csr_pem="", release_key=key.public, approvers={"steward": approver.public}
    )
    digest = key.public.key_id * 4
    store.enrol(token=invitation.token, site=invitation.site, request=request, digest=digest, today=TODAY)
    if accepted:
        store.accept_site(invitation.site, key.public.fingerprint)
    return key


def deliver(
    store: Store,
    plan: StudyPlan,
    site: str,
    key: SigningKey,
    table: pd.DataFrame,
    *,
    wave: int = 1,
    drawn: int | None = None,
    flow_of: str = "",
    n: int | None = None,
) -> str:
    """Put one release into the store as if it had been uploaded and verified; returns its id.

    Of noisy figures, `n` says how many persons they are of.
    """
    statement, envelope, receipt, data = _release(plan, site, key, table, wave, drawn, flow_of, n)
    home = Path(store.place[1])
    (home / "bundles").mkdir(parents=True, exist_ok=True)
    (draft := home / "draft").write_bytes(data)
    store.bundles.put(statement.bundle_sha256, draft)
    store.accept_release(statement=statement, envelope=envelope, receipt=receipt, today=TODAY)
    return statement.release_id


def quarantine(store: Store, plan: StudyPlan, site: str, key: SigningKey, table: pd.DataFrame, *, wave: int = 1) -> str:
    """Put one release into quarantine."""
    statement, envelope, _, _ = _release(plan, site, key, table, wave)
    refusal = DictionaryRefusal("column 'sbp' must lie within the dictionary", given="3 outside")
    store.quarantine(statement=statement, envelope=envelope, refusal=refusal, today=TODAY)
    return statement.release_id


def _release(plan, site, key, table, wave, drawn=None, flow_of="", n=None):
    from shared.base.canonical import sha256_hex

    release_id = sha256_hex(f"{plan.hash}{site}{wave}{len(table)}".encode())[:32]
    receipt = write_receipt(
        plan,
        ReceiptDraft(
            wave=wave,
            site=site,
            release_id=release_id,
            agent_version="0.1.0",
            n=len(table) if n is None else n,
            previous="0" * 64,
            drawn=drawn,
            flow_of=flow_of,
        ),
    )
    data = write_bundle(receipt, table)
    statement = Statement(
        study=plan.study,
        plan_hash=plan.hash,
        plan_version=plan.version,
        wave=wave,
        site=site,
        release_id=release_id,
        recipient=plan.coordinator,
        bundle_sha256=sha256_hex(data),
        bundle_bytes=len(data),
        receipt_sha256=receipt.hash,
        ledger_head="0" * 64,
    )
    return statement, statement.sign([key, APPROVERS[key.public.key_id]]), receipt, data


def take_back(
    store: Store, site: str, key: SigningKey, *, wave: int = 1, reason: str = "consent", study: str | None = None
) -> str:
    """Withdraw a site's release as if it had asked; the digest of the bundle."""
    [release] = [found for found in store.releases(study, wave=wave) if found.site == site]
    document = Withdrawal(
        study=release.study,
        site=site,
        wave=wave,
        release_id=release.release_id,
        bundle_sha256=release.bundle_sha256,
        reason_code=reason,
    )
    store.withdraw(withdrawal=document, envelope=document.sign([key, APPROVERS[key.public.key_id]]), today=TODAY)
    store.bundles.delete(release.bundle_sha256)
    return release.bundle_sha256


def site_estimates(store: Store, study: str, wave: int, estimand: str | Estimand) -> list[Estimate]:
    """A line for each term of each site with an accepted release; one that fails has a reason and no number."""
    return answers_of_sites(store, holding(store, study, wave), estimand)[0]
