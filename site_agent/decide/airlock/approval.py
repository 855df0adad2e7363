"""Exact bytes approved, sent, rejected, or sent back with a question."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import (
    ApprovalRefusal,
    AwaitsCourier,
    LedgerRefusal,
    NetworkRefusal,
    PlanChanged,
    PolicyRefusal,
    StateRefusal,
    UsageRefusal,
)
from site_agent.decide import reconciliation

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan
    from site_agent.decide.plans import AgentNow
    from site_agent.desk import Desk
    from site_agent.ledger.book import AnchoredHead, Hold
    from site_agent.release.checks import Check
    from site_agent.release.pipeline.opened import SealedRelease
from site_agent.decide.airlock.signing import Approver, author_must_differ, witnessed
from site_agent.decide.airlock.standing_approval import STANDING_ADD, stands, still_standing

__all__ = [
    "Approved",
    "approve",
    "decline",
    "require_author",
    "require_ticks",
    "resend",
    "send",
    "shown",
]


@dataclass(frozen=True, kw_only=True)
class Approved:
    """Outcome of an approval.

    Args:
        sent: place in the coordinator's log and day of acceptance, when it was delivered by this call.
    """

    hold: Hold
    sent: Mapping[str, Any] | None = None


# -- approving --------------------------------------------------------------------------------------------------
def require_author(desk: Desk, plan: StudyPlan, author: str | None) -> str:
    """Author of a release, for its statement: a registered approver, or the agent where nobody is named.

    Raises: ConfigRefusal (not registered); ApprovalRefusal (the two must be different people, and nobody is named).
    """
    from shared.releases.statement import AGENT

    if author is not None:
        desk.config.approver_key(author)
        return author
    if author_must_differ(desk, plan):
        raise ApprovalRefusal(
            "whoever has the release made must be named, because somebody else must approve it",
            given="nobody",
            next_step="Add --by NAME, one of this site's approvers.",
        )
    return AGENT


def shown(desk: Desk, release_id: str) -> SealedRelease:
    """A sealed release for a person to look at.

    Raises: PolicyRefusal, before it is delivered, where its plan wants it approved before the draw: whoever saw it
        could choose by it; and as `opened.open_release`.
    """
    from site_agent.release.pipeline import opened

    made = opened.open_release(desk.outbox, release_id)
    plan = desk.plans.plan(made.hold.study, made.receipt.plan_version)
    if plan.floors.approval == "before" and made.hold.state != "delivered":
        raise PolicyRefusal(
            "a release that was approved before its draw must not be looked at before it is delivered",
            given=made.hold.state.replace("_", " "),
            next_step="site-agent run sends it. Give it up unseen with site-agent withdraw; it stays charged.",
        )
    return made


_ENDED = {"withdrawn": "was withdrawn", "rejected": "was rejected", "burnt": "was never sealed"}
"""States that nothing follows, in words."""


def require_ticks(made: SealedRelease, ticked: Sequence[str]) -> tuple[Check, ...]:
    """The warnings that are not ticked yet. Raises: UsageRefusal, for a tick on no warning of this release."""
    names = [check.name for check in made.warnings]
    unknown = [name for name in ticked if name not in names]
    if unknown:
        step = f"Its warnings: {', '.join(names)}." if names else "It has none: leave --tick out."
        raise UsageRefusal("a tick must name a warning of this release", given=", ".join(unknown), next_step=step)
    return tuple(check for check in made.warnings if check.name not in ticked)


def approve(
    desk: Desk,
    release_id: str,
    *,
    by: Approver,
    ticked: Sequence[str],
    now: AgentNow,
    dry_run: bool = False,
) -> Approved:
    """Sign exactly these bytes as `by` and, when enough people have signed, send them. Safe to repeat.

    Args:
        ticked: names of the warnings that the approver has looked at; it must be all of them.
    Raises: PausedRefusal; PlanRefusal and its kinds (the plan is not the approved, current one, also for bytes that
        were approved before and are only sent again); ApprovalRefusal; NetworkRefusal (the approval is kept).
    """
    from site_agent.release.pipeline import opened

    desk.require_running()
    desk.config.approver_key(by.name)
    known = desk.outbox.get(release_id)
    if known.state in _ENDED:
        raise StateRefusal(
            "a release must wait for a decision to be approved",
            given=f"one that {_ENDED[known.state]}, which is for good",
            next_step="Nothing is left to do with it; site-agent status says what is next. Its charge stays.",
        )
    made = opened.open_release(desk.outbox, release_id)
    hold, ahead = made.hold, False
    if hold.state != "delivered":
        plan, _ = desk.plans.approved(hold.study, now)
        ahead = plan.floors.approval == "before"
        if ahead and hold.state != "approved":
            raise ApprovalRefusal(
                "a release of this plan must be approved before it is drawn, by nobody who has seen it",
                given="a signature on drawn bytes",
                next_step=f"Run {STANDING_ADD.format(study=hold.study)}, then site-agent run.",
            )
        if plan.hash != hold.plan_hash:
            raise PlanChanged(
                "a release must be of the plan that is approved now",
                given="a release of an earlier plan",
                next_step=f"site-agent outbox show {release_id[:8]} has the difference; give it up with "
                f"site-agent withdraw {release_id[:8]} --as NAME --reason policy, and release again.",
            )
        if not ahead and (hold.state != "approved" or stands(hold)):
            _require_another_person(desk, hold, plan, by.name)
            left = require_ticks(made, ticked)
            if left:
                ticks = "".join(f" --tick {check.name}" for check in made.warnings)
                raise ApprovalRefusal(
                    "every warning must be ticked by the approver",
                    given="; ".join(f"{check.name} ({check.detail})" for check in left),
                    next_step=f"Look at site-agent outbox show {release_id[:8]}, then add{ticks}.",
                )
    if dry_run:
        return Approved(hold=hold)
    with desk.locked():
        # Asked again: another person may have decided while this one was reading.
        hold = desk.outbox.get(release_id)
        if hold.state not in ("approved", "delivered") or (stands(hold) and not ahead):
            key = by.open_key()
            # Asked again: the plan's approval may have been taken back while the passphrase was typed.
            desk.ledger.require_plan(hold)
            opened.record_decision(desk.outbox, release_id, name=by.name, key=key, ticked=ticked, today=now.today)
            desk.outbox.approve(release_id, key, by.name)
            hold = desk.outbox.get(release_id)
        if hold.state != "approved":
            return Approved(hold=hold)
        return _sent(desk, hold, today=now.today, command=f"site-agent approve {release_id[:8]} --as {by.name}")


def send(desk: Desk, release_id: str, now: AgentNow) -> Approved:
    """Send what is approved, or send it again. It signs nothing. Safe to repeat.

    Raises: as `approve`; ApprovalRefusal also where a standing approval has ended since it was used.
    """
    desk.require_running()
    hold = desk.outbox.get(release_id)
    plan, _ = desk.plans.approved(hold.study, now)
    if plan.hash != hold.plan_hash:
        raise PlanChanged("a release must be of the plan that is approved now", given="a release of an earlier plan")
    with desk.locked():
        return _sent(desk, desk.outbox.get(release_id), today=now.today, command="site-agent run")


def resend(desk: Desk, study: str, *, dry_run: bool = False) -> reconciliation.Settled:
    """Compare a study's deliveries with the coordinator's word, and send again what it has forgotten. Safe to repeat.

    Raises: PausedRefusal; LedgerRefusal (the ledger here is an old copy); NetworkRefusal; IntegrityRefusal.
    """
    desk.require_running()
    with desk.egress() as egress:
        answer = egress.held(study)
        _require_no_old_copy(desk, answer.anchored)
        if dry_run:
            return reconciliation.Settled(mended=(), left=reconciliation.compare(desk, study, answer))
        with desk.locked():
            settled = reconciliation.settle(desk, egress, study, answer)
            settled.require_carried()
            return settled


def _sent(desk: Desk, hold: Hold, *, today: dt.date, command: str) -> Approved:
    desk.require_running()
    standing = still_standing(desk, hold, today)
    envelope, bundle = desk.outbox.envelope(hold.release_id), desk.outbox.bundle(hold.release_id)
    try:
        with desk.egress(allowed=lambda: desk.ledger.require_plan(hold)) as egress:
            desk.ledger.require_plan(hold)
            answer = egress.held(hold.study)
            _require_no_old_copy(desk, answer.anchored)
            # What it has forgotten goes first: this release may rest on it.
            settled = reconciliation.settle(desk, egress, hold.study, answer)
            settled.require_carried(but=reconciliation.ARRIVED)
            if standing is None:
                acceptance = egress.send(envelope, bundle)
            else:
                acceptance = egress.send(envelope, bundle, standing=standing)
    except AwaitsCourier:  # it says itself what comes next; the approval is kept
        raise
    except NetworkRefusal as refusal:
        raise NetworkRefusal(
            refusal.must,
            given=refusal.given,
            next_step=f"The approval is kept. Run {command} again: the same bytes are sent on from where they stopped.",
        ) from None
    hold = desk.outbox.delivered(hold.release_id, acceptance)
    return Approved(hold=hold, sent={"log_index": acceptance.log_index, "accepted_day": acceptance.accepted_day})


def _require_no_old_copy(desk: Desk, last: AnchoredHead | None) -> None:
    """Refuse to send by a ledger that was put back: a pause or a rejection since then would be forgotten."""
    if last is not None and not desk.ledger.holds_head(last):
        raise LedgerRefusal(
            f"the ledger must hold entry {last.seq}, which the coordinator has witnessed",
            given="an old copy, or another history",
            next_step="Nothing is sent. Run site-agent ledger recover, and read what was decided since then.",
        )


def decline(desk: Desk, release_id: str, *, by: Approver, reason: str, for_good: bool, tell: bool = False) -> Hold:
    """Reject sealed bytes for good, or send them back with a question; the charge stays either way.

    Args:
        tell: whether the study lead is told the reason; else it stays here, and that it was declined as well.
    Raises: UsageRefusal (no reason); SignatureRefusal (only who can open the key may decide in its name);
    ApprovalRefusal (a key that is not the registered one); StateRefusal; LedgerRefusal (a restored ledger that is not
    settled yet may lack that these bytes were sent).
    """
    from site_agent.ledger.files import require_settled

    desk.config.approver_key(by.name)
    if not reason.strip():
        raise UsageRefusal("a reason must say something", given="blank text", next_step="Add --reason.")
    desk.outbox.get(release_id)
    if for_good:
        require_settled(desk.ledger.path)
    key = by.open_key()
    with desk.locked():
        recipient = desk.config.coordinator if tell else ""
        hold = desk.outbox.decline(release_id, key, by.name, reason=reason, for_good=for_good, tell=recipient)
    witnessed(desk)
    return hold


def _require_another_person(desk: Desk, hold: Hold, plan: StudyPlan, name: str) -> None:
    """The site may have become stricter since the seal; the stricter of then and now holds. A deputy and the one for
    whom they stand in are one."""
    deputies = {who: given[0] for who, given in desk.ledger.membership().deputies.items()}
    signed = {deputies.get(one.name, one.name) for one in hold.approvals if not one.standing}
    if name not in {one.name for one in hold.approvals} and deputies.get(name, name) in signed:
        raise ApprovalRefusal(
            f"{hold.approvals_needed} different approvers must sign, and a deputy signs in another's place",
            given=f"{name}, beside {deputies.get(name, name)} or a deputy of theirs",
            next_step="Another approver decides.",
        )
    if (hold.author_apart or author_must_differ(desk, plan)) and name == hold.author:
        raise ApprovalRefusal(
            "whoever had the release made must not approve it",
            given=name,
            next_step="Another approver decides: "
            f"{', '.join(n for n in desk.config.approvers if n != name) or 'none'}.",
        )
