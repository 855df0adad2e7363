"""Approving a plan: what must hold before a person's signature is asked for, and the signature."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ApprovalRefusal, BudgetRefusal
from shared.privacy.stated import shown_epsilon

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan
    from site_agent.decide.airlock.signing import Approver
    from site_agent.decide.plans import AgentNow
    from site_agent.desk import Desk

__all__ = ["Asking", "approve_plan", "asks_tick", "plan_to_approve"]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A plan that a person is asked to approve.

    Args:
        page: its facts, as `plan_facts` gives them.
        not_covered: the sentences that the approval signs as read.
    """

    plan: StudyPlan
    page: Mapping[str, Any]
    not_covered: tuple[str, ...]


def asks_tick(plan: StudyPlan) -> bool:
    """True if the approver must confirm having read what the plan's guarantee does not cover."""
    from shared.releases.receipt import LEAVES_PERSONS_OPEN

    return plan.posture in LEAVES_PERSONS_OPEN


def plan_to_approve(desk: Desk, study: str, *, name: str, today: dt.date) -> Asking:
    """The newest plan of a study, which `name` may approve now. Raises: ConfigRefusal (nobody of that name),
    PlanRefusal (the plan is not meant for this site, or names no quasi-identifiers where the site asks for them),
    BudgetRefusal (its first wave does not fit its own cap, or somebody would see more of it than this site's cap lets
    them)."""
    from shared.releases.receipt import coverage
    from site_agent.decide.plan_facts import plan_facts

    desk.config.approver_key(name)
    plan = desk.plans.plan(study)
    plan.release.require_site(desk.config.site, desk.release_key.public.hex)
    page = plan_facts(desk, plan, today)
    if page["price"]["affordable"] == 0:
        raise BudgetRefusal(
            f"the plan's first wave must fit its own cap of ε = {shown_epsilon(plan.budget.epsilon)}",
            given=f"ε = {shown_epsilon(page['price']['epsilon'])}",
            next_step="Ask the study lead for an amended plan.",
        )
    desk.config.budget.require_worst(plan)
    desk.config.floors.require_named(plan)
    return Asking(plan=plan, page=page, not_covered=coverage(plan)[1])


def approve_plan(
    desk: Desk,
    asking: Asking,
    *,
    by: Approver,
    understood: bool,
    now: AgentNow,
    reason: str = "",
    dry_run: bool = False,
) -> None:
    """Sign that `by` approves exactly this plan, its dictionary and this version of the agent.

    Args:
        understood: what is not covered was read.
    Raises: ApprovalRefusal (the tick is missing), and whatever `Plans.approve` raises.
    """
    plan = asking.plan
    if asks_tick(plan) and not understood:
        raise ApprovalRefusal(
            f"posture {plan.posture!r} must be approved with a tick on what is not covered",
            given="no tick",
            next_step=f"Read site-agent plan show {plan.study}, then add --understood {plan.posture}.",
        )
    if not dry_run:
        desk.plans.approve(
            plan,
            name=by.name,
            key=by.open_key(),
            now=now,
            understood=asking.not_covered,
            reason=reason,
        )
