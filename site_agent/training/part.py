"""A site's part in a training by all sites: its plan, its charge, how far it has come, and what no guarantee covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import (
    PlanRefusal,
)

if TYPE_CHECKING:
    from shared.plans.federated import Federated
    from shared.plans.plan import StudyPlan
    from site_agent.ledger.book import Hold, Ledger

__all__ = ["Part", "charged", "ended", "part", "training_of", "uncovered"]

_ALWAYS = (
    "The number of persons who train: it follows from the plan's eligibility rule and is public.",
    "A person who is a patient of several hospitals: losses add up, and no hospital can see it.",
    "Rounding in the arithmetic of the training: its gradients are floating-point numbers. Its noise is drawn exactly.",
    "How long a round's steps take: it grows with the size of the sample, and an answer comes when they are done.",
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """State of this site in a training.

    Args:
        release_id: of its charge; blank before there is one.
        state: ``not asked yet``, or the charge's.
        rounds: how many the plan has.
        answered: rounds with an answer here.
        given_up: rounds that were begun and have none.
        epsilon: of the whole training, at the plan's δ.
        day: of the charge, UTC; approver: of the plan.
        flow: SHA-256 of the flow that came back; blank before.
    """

    study: str
    rounds: int
    epsilon: float
    delta: float
    approver: str = ""
    release_id: str = ""
    state: str = "not asked yet"
    answered: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()
    day: str = ""
    flow: str = ""


def part(ledger: Ledger, plan: StudyPlan, approver: str = "") -> Part:
    """State of the site in the training of an approved plan. Raises: PlanRefusal (it has none)."""
    federated = training_of(plan)
    facts: dict[str, Any] = {
        "study": plan.study,
        "rounds": federated.rounds,
        "epsilon": federated.epsilon(plan.budget.delta),
        "delta": plan.budget.delta,
        "approver": approver,
    }
    hold = charged(ledger, plan)
    if hold is None:
        return Part(**facts)
    return Part(
        **facts,
        release_id=hold.release_id,
        state=hold.state,
        answered=tuple(number for number, one in sorted(hold.begun.items()) if one.answer),
        given_up=tuple(number for number, one in sorted(hold.begun.items()) if not one.answer),
        day=hold.day,
        flow=hold.flow,
    )


def ended(ledger: Ledger, plan: StudyPlan) -> bool:
    """True if the training has ended at this site. Unlike `part` it prices nothing, which an idle agent need not."""
    hold = charged(ledger, plan)
    return hold is not None and bool(hold.flow)


def uncovered(plan: StudyPlan) -> tuple[str, ...]:
    """Sentences for a steward: what the guarantee of a plan's training does not cover."""
    from shared.releases.receipt import left_out, unit

    rows = () if unit(plan) == "patient" else (_ROWS,)
    return _ALWAYS + rows + left_out(plan)


_ROWS = "A person with several rows: the study has no person column, so the guarantee is for one row."


def training_of(plan: StudyPlan) -> Federated:
    """Settings of the plan's training by all sites. Raises: PlanRefusal, where it has none."""
    if plan.federated is None:
        raise PlanRefusal(
            "the approved plan must have [federated] for the site to take part in a training",
            given="none",
            next_step=f"See site-agent plan show {plan.study}.",
        )
    return plan.federated


def charged(ledger: Ledger, plan: StudyPlan) -> Hold | None:
    """The training's charge under this plan, the last one; None where there is none."""
    own = [hold for hold in ledger.holds(plan.study) if hold.rounds and hold.plan_hash == plan.hash]
    return own[-1] if own else None
