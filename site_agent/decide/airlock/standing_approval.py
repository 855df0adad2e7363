"""Approving in advance: within limits that hold for a release, signed by a person, until it is taken back."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import (
    ApprovalRefusal,
    IntegrityRefusal,
    PlanRefusal,
    PolicyRefusal,
    StateRefusal,
    UsageRefusal,
)

if TYPE_CHECKING:
    from shared.base.keys import Envelope, SigningKey
    from shared.plans.plan import StudyPlan
    from shared.plans.standing import Standing
    from site_agent.decide.plans import AgentNow
    from site_agent.desk import Desk
    from site_agent.ledger.book import Hold, Noted
    from site_agent.release.pipeline.opened import SealedRelease
from site_agent.decide.airlock.signing import Approver, author_must_differ, witnessed

__all__ = [
    "STANDING_ADD",
    "StandingUse",
    "approve_by_standing",
    "deliver_revocations",
    "require_approved_ahead",
    "revoke_one",
    "revoke_standing",
    "send_revocations",
    "sign_standing",
    "standing_lines",
    "stands",
    "still_standing",
]

STANDING_ADD = "site-agent standing add {study} --as NAME --max-epsilon E --until DATE"


@dataclass(frozen=True, kw_only=True)
class StandingUse:
    """Outcome of the attempt to approve a release by a standing approval.

    Args:
        used: the approver whose standing approval approved it; blank for none.
        limit: why none did, in words; blank where one did, and where there is none in force to speak of.
    """

    hold: Hold
    used: str = ""
    limit: str = ""


def require_approved_ahead(desk: Desk, plan: StudyPlan, now: AgentNow) -> None:
    """Refuse what a plan wants approved before it is drawn, and is not: asked before the charge and before the draw.

    Raises: ApprovalRefusal (no standing approval in force is good for the release as it is planned); PolicyRefusal
        (this site wants more than the one approver that such a plan has).
    """
    from shared.plans.standing import broken_limit
    from shared.privacy import accountant as privacy
    from shared.releases.receipt import planned_event
    from site_agent.config import Limits

    if plan.floors.approval != "before":
        return
    limits = Limits.of(plan.floors, desk.config.floors)
    if limits.approvals > 1 or limits.author_apart:
        raise PolicyRefusal(
            "a plan that is approved before the draw must be enough for this site: one approver, whoever has it made",
            given=f"approvals = {limits.approvals}, author_apart = {str(limits.author_apart).lower()} in force here",
            next_step="Loosen [floors] in site.toml for it, or ask the study lead for approval = 'after'.",
        )
    price = privacy.epsilon(planned_event(plan), plan.budget.delta)
    for noted in desk.ledger.standing(plan.study):
        signed = None if noted.revoked else _standing(desk, noted)
        if signed is None or signed.agent_version != now.version:
            continue
        if not broken_limit(signed, plan_hash=plan.hash, today=now.today, epsilon=price, n=None, last_n=None):
            return
    raise ApprovalRefusal(
        "a release of this plan must be approved before it is drawn",
        given="no standing approval in force that is good for it",
        next_step=f"Run {STANDING_ADD.format(study=plan.study)}. Nothing was drawn.",
    )


# -- approving in advance ---------------------------------------------------------------------------------------
def sign_standing(
    desk: Desk,
    study: str,
    *,
    by: Approver,
    max_epsilon: float,
    until: dt.date,
    now: AgentNow,
    dry_run: bool = False,
) -> tuple[Standing, str]:
    """Sign in advance, as `by`, for later releases of the plan that is approved now, within limits.

    Args:
        desk: the site's folder.
        study: whose releases may be approved so.
        by: the approver who signs.
        max_epsilon: most ε of one such release, above 0.
        until: last day of the approval.
        now: of this software, which the plan may bound.
        dry_run: sign and note nothing; the digest is blank then.
    Returns: the document and its digest.
    Raises: PlanRefusal (the plan does not allow it) and its kinds; ApprovalRefusal (no release was approved yet);
        UsageRefusal (a limit that means nothing).
    """

    from shared.plans.standing import NO_RELEASE, Standing

    desk.config.approver_key(by.name)
    key = desk.outbox.approvers[by.name]
    registered = {key.key_id: key}
    plan, _ = desk.plans.approved(study, now)
    if not plan.floors.standing:
        raise PlanRefusal(
            "the plan must allow a standing approval",
            given="standing = false",
            next_step="Ask the study lead for a version with standing = true under [floors].",
        )
    if not (math.isfinite(max_epsilon) and max_epsilon > 0):
        raise UsageRefusal("--max-epsilon must be a positive number", given=f"{max_epsilon}")
    if not now.today <= until <= plan.expires:
        raise UsageRefusal(f"--until must be a day from today to the plan's last, {plan.expires}", given=f"{until}")
    ahead = plan.floors.approval == "before"
    before = None if ahead else _last_approved(desk, study)
    if before is None and not ahead:
        raise ApprovalRefusal(
            "the first release of a study must be approved by a person",
            given="no approved release",
            next_step=f"site-agent release {study} --wave 1, then site-agent approve.",
        )
    standing = Standing(
        study=study,
        site=desk.config.site,
        plan_hash=plan.hash,
        agent_version=now.version,
        max_epsilon=max_epsilon,
        until=until.isoformat(),
        n=1 if before is None else before.receipt.n,
        release_id=NO_RELEASE if before is None else before.hold.release_id,
        approver=by.name,
        number=len(desk.ledger.standing(study)) + 1,
        day=now.today.isoformat(),
    )
    if not dry_run:
        with desk.locked():
            envelope = standing.sign(by.open_key())
            if not envelope.verified_by(registered):
                raise ApprovalRefusal("an approver must be registered at the site, with this key", given=repr(by.name))
            return standing, desk.ledger.add_standing(study=study, name=by.name, envelope=envelope).digest
    return standing, ""


def revoke_standing(desk: Desk, digest: str, *, by: Approver, reason: str) -> Noted:
    """Take a standing approval back for good, as the approver `by`; the coordinator is told by `send_revocations`.

    Raises: StateRefusal (not in force); SignatureRefusal; ApprovalRefusal (not the registered key).
    """
    desk.config.approver_key(by.name)
    found = [noted for noted in desk.ledger.standing() if noted.digest == digest and not noted.revoked]
    if not found:
        raise StateRefusal(
            "only a standing approval in force can be revoked",
            given="one that is not",
            next_step="See site-agent standing list.",
        )
    key = by.key(desk)
    revoked = revoke_one(desk, found[0], name=by.name, reason=reason, key=key)
    witnessed(desk)
    return revoked


def revoke_one(desk: Desk, noted: Noted, *, name: str, reason: str, key: SigningKey) -> Noted:
    """Sign that a standing approval is over, and note it in the ledger; the coordinator is told later.

    Args:
        desk: the site's folder.
        noted: the standing approval, as the ledger has it.
        name: of the approver who ends it.
        reason: why it is over, in a person's words; it stays at the site.
        key: opened key of that approver, which signs.
    Returns: the approval as it is noted now, revoked.
    """
    from shared.plans.standing import Revocation

    said = Revocation(study=noted.study, site=desk.config.site, standing=noted.digest, approver=name)
    return desk.ledger.revoke_standing(noted.digest, name=name, reason=reason, key=key, envelope=said.sign(key))


def send_revocations(desk: Desk) -> tuple[Noted, ...]:
    """Tell the coordinator which standing approvals are over. Safe to repeat; nothing is signed.

    Returns: those it has acknowledged now.
    Raises: PausedRefusal, NetworkRefusal, StateRefusal (not joined yet): they are over here all the same.
    """
    pending = [
        (one, one.revocation) for one in desk.ledger.standing() if one.revocation is not None and not one.acknowledged
    ]
    if not pending:
        return ()
    desk.require_running()
    with desk.egress() as egress:
        for noted, revocation in pending:
            egress.revoke_standing(revocation)
            desk.ledger.standing_told(noted.digest)
    return tuple(noted for noted, _ in pending)


def deliver_revocations(desk: Desk) -> bool:
    """Deliver pending revocations. Returns: True if none is left."""
    from shared.errors import Refusal

    try:
        send_revocations(desk)
    except Refusal:
        return False
    return True


def standing_lines(desk: Desk, today: dt.date, study: str | None = None) -> list[dict[str, Any]]:
    """Every standing approval, verified: its limits, whether it is in force, and how often it was used."""
    from dataclasses import asdict

    out = []
    for noted in desk.ledger.standing(study):
        document = _standing(desk, noted)
        over = today > dt.date.fromisoformat(document.until)
        given = [approval for hold in desk.ledger.holds(noted.study) for approval in hold.approvals]
        before = _last_approved(desk, noted.study)
        out.append(
            {
                "id": noted.digest,
                "state": "revoked" if noted.revoked else "ended" if over else "in force",
                "used": sum(approval.standing == noted.digest for approval in given),
                "measure": before.receipt.n if before else None,
                "told": noted.acknowledged if noted.revocation is not None else None,
                **asdict(document),
            }
        )
    return out


def approve_by_standing(desk: Desk, release_id: str, now: AgentNow) -> StandingUse:
    """Approve a held release by a standing approval in force, if every one of its limits holds. It sends nothing.

    Raises: PlanRefusal and its kinds; IntegrityRefusal (the bytes or what was shown of them are not as they were).
    """
    from site_agent.release.pipeline import opened

    hold = desk.outbox.get(release_id)
    noted = [made for made in desk.ledger.standing(hold.study) if not made.revoked]
    if hold.state != "held" or not noted:
        return StandingUse(hold=hold)
    desk.require_running()
    plan, _ = desk.plans.approved(hold.study, now)
    made = opened.open_release(desk.outbox, release_id)
    limits = []
    for one in reversed(noted):
        limit = _limit(desk, one, made, plan, now)
        if not limit:
            with desk.locked():
                hold = desk.outbox.approve_by_standing(release_id, one.digest, name=one.name)
            return StandingUse(hold=hold, used=one.name)
        limits.append(limit)
    return StandingUse(hold=hold, limit=limits[0])


def _limit(desk: Desk, noted: Noted, made: SealedRelease, plan: StudyPlan, now: AgentNow) -> str:
    """The first limit of a standing approval that a held release does not keep; blank for none."""
    from shared.plans.standing import broken_limit

    hold = made.hold
    if not plan.floors.standing:
        return "the plan must allow it (standing under [floors])"
    standing = _standing(desk, noted)
    ahead = plan.floors.approval == "before"
    before = None if ahead else _last_approved(desk, hold.study)
    limit = broken_limit(
        standing,
        plan_hash=hold.plan_hash if hold.plan_hash == plan.hash else "",
        today=now.today,
        epsilon=math.inf if made.receipt.stated_epsilon is None else made.receipt.epsilon,
        n=None if ahead else made.receipt.n,
        last_n=None if before is None else before.receipt.n,
    )
    if limit:
        return limit
    if standing.agent_version != now.version or made.receipt.agent_version != now.version:
        return "the agent's version must be the one it was signed for"
    if ahead:
        # Nothing that is in the bytes decides: but whoever signs after the draw could have looked at them.
        drawn = next(
            (e.seq for e in desk.ledger.entries() if e.kind == "drawing" and e.body["release_id"] == hold.release_id), 0
        )
        return "" if noted.seq < drawn else "it must have been signed before the draw"
    if not made.audit or not made.checks or any(check.outcome == "failed" for check in made.checks):
        return "the checks and the audit must have passed"
    if made.warnings:
        return f"no warning may need a tick ({', '.join(check.name for check in made.warnings)})"
    if any(given.standing for given in hold.approvals):
        return "one person at least must sign"
    if any(given.name == standing.approver for given in hold.approvals):
        return f"{standing.approver} must not have signed already"
    if (hold.author_apart or author_must_differ(desk, plan)) and hold.author == standing.approver:
        return f"whoever had it made ({hold.author}) must not approve it"
    return ""


def _standing(desk: Desk, noted: Noted) -> Standing:
    """The document, verified again. Raises: SignatureRefusal, IntegrityRefusal."""
    from shared.plans.standing import open_standing

    standing = open_standing(noted.envelope, desk.outbox.approvers)
    if (standing.approver, standing.study, standing.site) != (noted.name, noted.study, desk.config.site):
        raise IntegrityRefusal("a standing approval must be of this site, study and approver", given="another")
    return standing


def _last_approved(desk: Desk, study: str) -> SealedRelease | None:
    """The last release of the study that a person approved with their own signature, and nobody took back since.

    What a standing approval let through is no measure for the next: size could creep by a fifth each wave.
    """
    from site_agent.release.pipeline import opened

    for hold in reversed(desk.ledger.holds(study)):
        by_hand = any(not given.standing for given in hold.approvals)
        if hold.state in ("approved", "delivered") and hold.bundle_sha256 and by_hand:
            return opened.open_release(desk.outbox, hold.release_id)
    return None


def stands(hold: Hold) -> bool:
    """True if a release is approved, and a person may still sign in place of a standing approval."""
    return hold.state == "approved" and any(given.standing for given in hold.approvals)


def still_standing(desk: Desk, hold: Hold, today: dt.date) -> Envelope | None:
    """The standing approval to send along, if one was used. Raises: ApprovalRefusal: it is over."""
    used = {given.standing for given in hold.approvals if given.standing}
    for noted in desk.ledger.standing(hold.study):
        if noted.digest not in used:
            continue
        if noted.revoked or today > dt.date.fromisoformat(_standing(desk, noted).until):
            raise ApprovalRefusal(
                "the standing approval of a release must be in force when it is sent",
                given="one that was revoked" if noted.revoked else "one that has ended",
                next_step="A person signs in its place, where the plan lets them: site-agent approve "
                f"{hold.release_id[:8]} --as NAME. Else give it up, charged as it is: site-agent withdraw "
                f"{hold.release_id[:8]} --as NAME --reason policy.",
            )
        return noted.envelope
    return None
