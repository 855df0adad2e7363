"""The site's book of study plans: which versions it has seen, and which one its own steward approved.

A plan arrives signed by the study lead. That makes it genuine, not approved: an approval is a second signed
document, made here by a named approver, over the exact triple (plan hash, dictionary hash, agent version). Whatever
of the three changes, the approval is void and the steward is asked again. The book remembers every version it ever
saw, so that a valid signature on an *older* plan is refused; both documents are verified again each time they are
read, because the disk may have been edited in between. Each approval is noted in the ledger as well: deleting the
files does not make an old plan the newest again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import Envelope, PublicKey, SigningKey, write_private
from shared.errors import (
    ApprovalRefusal,
    IntegrityRefusal,
    PlanChanged,
    PlanRefusal,
    PlanRollback,
    Refusal,
    SchemaRefusal,
    StateRefusal,
    meant,
)
from shared.plans.plan import PLAN_TYPE, StudyPlan, open_plan
from site_agent.ledger.decisions import require_registered

__all__ = ["APPROVAL_TYPE", "AgentNow", "PlanApproval", "Plans", "difference"]

APPROVAL_TYPE = "application/vnd.tributary.plan-approval+json"


@dataclass(frozen=True, kw_only=True)
class AgentNow:
    """The agent as it acts: an approval holds for one version of it, up to a day."""

    version: str
    today: dt.date


@dataclass(frozen=True, kw_only=True)
class PlanApproval:
    """Approval of a plan, signed by an approver.

    Args:
        understood: the sentences about what is not covered that were ticked.
        reason: why, in the person's words; may be blank.
        day: UTC date, for people.
    """

    study: str
    plan_hash: str
    plan_version: int
    dictionary_hash: str
    agent_version: str
    posture: str
    understood: tuple[str, ...]
    approver: str
    reason: str
    day: str

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> PlanApproval:
        """Read canonical JSON. Raises: SchemaRefusal."""
        body = parse_json(data)
        known = {item.name for item in fields(cls)}
        if not isinstance(body, dict) or set(body) != known or not isinstance(body["understood"], list):
            raise SchemaRefusal("a plan approval must have exactly its fields")
        return cls(**{**body, "understood": tuple(body["understood"])})


class ApprovalMemory(Protocol):
    """Memory of approved plan versions beside the files (`site_agent.ledger.book.Ledger`)."""

    def approved_plan(self, study: str) -> tuple[int, str] | None: ...
    def approve_plan(
        self, *, study: str, version: int, plan_hash: str, approver: str, envelope: Envelope | None = None
    ) -> None:
        """Remember that a version was approved.

        Args:
            study, version, plan_hash: which plan; SHA-256, hex, of its canonical form.
            approver: name of the person who decided.
            envelope: the signed approval, if it is kept as well.
        """

    def revoke_plan(
        self, *, study: str, version: int, plan_hash: str, approver: str, reason: str, key: SigningKey | None = None
    ) -> None:
        """Remember that an approval was taken back.

        Args:
            study, version, plan_hash: which plan; SHA-256, hex, of its canonical form.
            approver: name of the person who decided.
            reason: why, in that person's words.
            key: of that person; it signs the entry.
        """

    def plan_revoked(self, study: str, version: int) -> bool: ...
    def left_study(self, study: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Plans:
    """The plans of one site, in `folder`.

    Args:
        folder: ``plans/`` of the site's home.
        coordinator: the only recipient that a plan may name.
        leads: pinned lead keys by handle.
        threshold: lead signatures a plan must carry.
        approvers: this site's approvers, name to key.
        memory: where approvals are noted beside their files.
        signers: every key under which an approval was ever good here, by name; the approvers' where none are given.
        every_lead: the leads' keys and those of former leads, for plans that are filed; `leads` where none are given.
    """

    folder: Path
    coordinator: str
    leads: Mapping[str, PublicKey]
    threshold: int
    approvers: Mapping[str, PublicKey]
    memory: ApprovalMemory
    signers: Mapping[str, Sequence[PublicKey]] = field(default_factory=dict)
    every_lead: Mapping[str, PublicKey] = field(default_factory=dict)

    # -- plans --------------------------------------------------------------------------------------------------
    def receive(self, study: str, envelope: Envelope, *, today: dt.date, keep: bool = True) -> StudyPlan:
        """Verify a plan that arrived and, unless `keep` is false, file it.

        Raises: SignatureRefusal (not the lead's), PlanRefusal (another study or recipient), PlanRollback (older than
        one seen), PlanChanged (the same version with other content), PlanExpired.
        """
        highest = self.highest(study)
        path = self._plan_path(study, highest)
        # What was taken already is not asked anew for the signatures of those who lead now.
        filed = bool(self.every_lead) and path.exists() and Envelope.from_bytes(path.read_bytes()).payload
        plan = self.opened(study, envelope, filed=filed == envelope.payload)
        if plan.version < highest:
            raise PlanRollback(
                "a plan must not be older than one this site has seen",
                given=f"version {plan.version} after version {highest}",
                next_step="Ask the study lead which version holds; report it if nobody sent an old one.",
            )
        if path.exists() and plan.version > highest:
            # One lead alone does not end that two must sign: the version before says how many let another follow it.
            envelope.require(PLAN_TYPE, self.leads, threshold=self.plan(study, highest).floors.leads)
        plan.require_current(today)
        path = self._plan_path(study, plan.version)
        noted = self.memory.approved_plan(study)
        if path.exists() or (noted is not None and noted[0] == plan.version):
            before = noted[1] if noted and noted[0] == plan.version else self.plan(study, plan.version).hash
            if before != plan.hash:
                raise PlanChanged(
                    "a plan version must have one content",
                    given=f"version {plan.version} with another hash than before",
                    next_step="Ask the study lead to sign the change as a new version.",
                )
        if keep and not path.exists():
            write_private(path, envelope.to_bytes())
        return plan

    def studies(self) -> tuple[str, ...]:
        """Studies of which a plan is filed."""
        return tuple(sorted(path.name for path in self.folder.glob("*") if path.is_dir()))

    def highest(self, study: str) -> int:
        """Highest version seen, whether by its plan, by an approval of it or in the ledger; 0 for none."""
        versions = [
            int(path.stem.split("-")[-1])
            for path in (self.folder / study).glob("*.json")
            if path.stem.split("-")[-1].isdigit()
        ]
        noted = self.memory.approved_plan(study)
        return max([*versions, noted[0]] if noted else versions, default=0)

    def filed(self, study: str) -> tuple[StudyPlan, ...]:
        """Every filed version, verified, lowest first. Raises: PlanChanged."""
        known = range(1, self.highest(study) + 1)
        return tuple(self.plan(study, version) for version in known if self._plan_path(study, version).exists())

    def plan(self, study: str, version: int | None = None) -> StudyPlan:
        """A filed plan, verified again; the highest version seen unless another is asked for.

        Raises: StateRefusal (none filed), PlanChanged (edited on disk), SignatureRefusal.
        """
        wanted = version or self.highest(study)
        path = self._plan_path(study, wanted)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            fetch = f"Run site-agent plan fetch {study}."
            if wanted:
                step = f"The newest that is here: {self.highest(study)}. {fetch}"
                raise StateRefusal(
                    "the study's plan must be here", given=f"no version {wanted} of {study!r}", next_step=step
                ) from None
            others = self.studies()
            step = f"{meant(study, others, what='Studies here')} If it is another: {fetch}" if others else fetch
            raise StateRefusal("the study's plan must be here", given=f"none of {study!r}", next_step=step) from None
        try:
            plan = self.opened(study, Envelope.from_bytes(data), filed=True)
        except IntegrityRefusal:
            raise PlanChanged(
                "a filed plan must be as the study lead signed it",
                given=f"version {wanted} of {study!r}, changed since",
                next_step=f"Delete nothing. Run site-agent plan fetch {study} after asking who edited the file.",
            ) from None
        if plan.version != wanted:
            raise PlanChanged("a filed plan must have its file's version", given=f"{plan.version}, not {wanted}")
        return plan

    def opened(self, study: str, envelope: Envelope, *, filed: bool = False) -> StudyPlan:
        """A signed plan, verified and not filed. Raises: SignatureRefusal, PlanRefusal (another study's or hub's).

        Args:
            filed: whether it was taken before: then it may be signed by somebody who led then.
        """
        leads = {**self.every_lead, **self.leads} if filed else self.leads
        # One who led alone may have been joined by others since: what was taken then is not asked for more now.
        plan = open_plan(envelope, leads, threshold=1 if filed and self.every_lead else self.threshold)
        if plan.study != study:
            raise PlanRefusal(
                "the plan must be of the study asked for",
                given=f"study {plan.study!r} for {study!r}",
                next_step="Tell the study lead: the coordinator answered with another study's plan.",
            )
        if plan.coordinator != self.coordinator:
            raise PlanRefusal(
                f"the plan's recipient must be {self.coordinator!r}",
                given=repr(plan.coordinator),
                next_step="Ask the study lead: releases for another coordinator are not made here.",
            )
        return plan

    # -- approvals ----------------------------------------------------------------------------------------------
    def approve(
        self,
        plan: StudyPlan,
        *,
        name: str,
        key: SigningKey,
        now: AgentNow,
        understood: tuple[str, ...],
        reason: str = "",
    ) -> PlanApproval:
        """File the approval of `plan` by `name`.

        Args:
            understood: what is not covered, as it was shown; must be all of it under ``local`` and ``holdout``.
        Raises: PlanExpired, PlanRollback, ApprovalRefusal (not a registered approver, or nothing ticked).
        """
        from shared.releases.receipt import LEAVES_PERSONS_OPEN, coverage

        plan.require_current(now.today)
        if plan.version < self.highest(plan.study):
            raise PlanRollback("only the highest version seen can be approved", given=f"version {plan.version}")
        require_registered(self.approvers, name, key.public)
        if plan.posture in LEAVES_PERSONS_OPEN and tuple(understood) != coverage(plan)[1]:
            raise ApprovalRefusal(
                f"posture {plan.posture!r} must be approved with a tick on what is not covered",
                given="no tick",
                next_step=f"Read site-agent plan show {plan.study}, then add --understood {plan.posture}.",
            )
        approval = PlanApproval(
            study=plan.study,
            plan_hash=plan.hash,
            plan_version=plan.version,
            dictionary_hash=plan.dictionary.hash,
            agent_version=now.version,
            posture=plan.posture,
            understood=tuple(understood),
            approver=name,
            reason=reason,
            day=now.today.isoformat(),
        )
        envelope = Envelope.sign(APPROVAL_TYPE, approval.to_bytes(), [key])
        # The ledger first: an approval that it does not remember could be made undone by deleting a file.
        self.memory.approve_plan(
            study=plan.study, version=plan.version, plan_hash=plan.hash, approver=name, envelope=envelope
        )
        write_private(self._approval_path(plan.study, plan.version), envelope.to_bytes())
        return approval

    def revoke(self, study: str, *, name: str, key: SigningKey, reason: str) -> StudyPlan:
        """Take the approval of the newest plan back, as the approver `name`: nothing more is made or sent under it.

        Raises: StateRefusal (nobody approved it), ApprovalRefusal (not a registered approver).
        """
        plan = self.plan(study)
        require_registered(self.approvers, name, key.public)
        self.memory.revoke_plan(
            study=study, version=plan.version, plan_hash=plan.hash, approver=name, reason=reason, key=key
        )
        return plan

    def approval(self, study: str, version: int, *, current: bool = False) -> PlanApproval | None:
        """The filed approval of a version, verified; None where nobody approved it, or somebody revoked it.

        Args:
            current: whether it must be of somebody who approves here today: only then may it be acted upon.
        Raises: ApprovalRefusal.
        """
        if self.memory.plan_revoked(study, version):
            return None
        try:
            data = self._approval_path(study, version).read_bytes()
        except FileNotFoundError:
            return None
        own = {name: (key,) for name, key in self.approvers.items()}
        signers = own if current else {**own, **self.signers}
        trusted = {key.key_id: key for keys in signers.values() for key in keys}
        try:
            envelope = Envelope.from_bytes(data)
            approval = PlanApproval.from_bytes(envelope.require(APPROVAL_TYPE, trusted))
            signed = {key.key_id for key in signers[approval.approver]} & {*envelope.verified_by(trusted)}
            if not signed or approval.study != study:
                raise SchemaRefusal("an approval must be signed by the approver it names")
        except (Refusal, KeyError, TypeError, ValueError):
            raise ApprovalRefusal(
                "the plan's approval must be signed by an approver of this site",
                given="a file that is not",
                next_step=f"Run site-agent plan approve {study} --as NAME again.",
            ) from None
        return approval

    def approved(self, study: str, now: AgentNow) -> tuple[StudyPlan, PlanApproval]:
        """The plan that may be acted upon: the highest version seen, approved as it is, by this software, unexpired.

        Raises: ApprovalRefusal (not approved), PlanChanged (approved in another form, or by another agent version),
        PlanExpired, and what `plan` raises.
        """
        plan = self.plan(study)
        plan.require_current(now.today)
        approval = self.approval(study, plan.version, current=True)
        step = f"Run site-agent plan show {study}, then plan approve {study} --as NAME."
        if approval is None and self.memory.left_study(study):
            raise ApprovalRefusal(
                "this site must take part in the study",
                given="a study that it has left",
                next_step=f"Nothing was charged. What it delivered stays taken back. To take part again: {step}",
            )
        if approval is None:
            raise ApprovalRefusal(
                "the plan must be approved at this site",
                given=f"version {plan.version}, not approved",
                next_step=step,
            )
        for what, then, current in (
            ("plan", approval.plan_hash, plan.hash),
            ("dictionary", approval.dictionary_hash, plan.dictionary.hash),
            ("agent version", approval.agent_version, now.version),
        ):
            if then != current:
                raise PlanChanged(
                    f"the {what} must be the one that was approved",
                    given=f"{current[:12]}, approved {then[:12]}",
                    next_step=step,
                )
        from shared.releases.receipt import LEAVES_PERSONS_OPEN, coverage

        if plan.posture in LEAVES_PERSONS_OPEN and tuple(approval.understood) != coverage(plan)[1]:
            raise PlanChanged(
                "what a receipt leaves open must be what was ticked with the plan's approval",
                given="other sentences, by an earlier version of this software",
                next_step=step,
            )
        return plan, approval

    def last_approved(self, study: str) -> StudyPlan | None:
        """The highest version that somebody approved here, for a comparison; None for none."""
        for version in range(self.highest(study), 0, -1):
            if self._approval_path(study, version).exists() and self._plan_path(study, version).exists():
                return self.plan(study, version)
        return None

    def _plan_path(self, study: str, version: int) -> Path:
        return self.folder / study / f"plan-{version}.json"

    def _approval_path(self, study: str, version: int) -> Path:
        return self.folder / study / f"approval-{version}.json"


def difference(old: StudyPlan, new: StudyPlan) -> tuple[tuple[str, str, str], ...]:
    """Changes between two plans.

    Returns: (where, before, after) per changed setting, columns by name; an absent side is an empty text.
    """
    before, after = _flat(old), _flat(new)
    keys = [*before, *(key for key in after if key not in before)]
    return tuple(
        (key, before.get(key, ""), after.get(key, "")) for key in keys if before.get(key, "") != after.get(key, "")
    )


def _flat(plan: StudyPlan) -> dict[str, str]:
    body: dict[str, Any] = plan.to_canonical()
    dictionary = body.pop("dictionary")
    out: dict[str, str] = {}

    def put(where: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                put(f"{where}.{key}" if where else str(key), item)
        else:
            out[where] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    waves = body.pop("waves")
    put("", body)
    for wave in waves:
        more = [", refit"] * wave["refit"] + [f", quorum {wave['quorum']}"] * bool(wave["quorum"])
        out[f"wave {wave['number']}"] = f"{wave['opens']} to {wave['closes']}{''.join(more)}"
    for column in dictionary["columns"]:
        put(f"column {column['name']}", {key: value for key, value in column.items() if key != "name"})
    return out
