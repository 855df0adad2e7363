"""This site as a member of the sum that its plan has: its place and release, and the records that it adds up.

The records are those of the pilot, of the same table. Whoever has withdrawn since is a row that says nothing: what is
added is within the bounds all the same, and the number of records stays the public one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import PlanRefusal, StateRefusal
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.secure_sum.sent_look import look_sent
from shared.mechanisms.secure_sum.steps import SumStep
from shared.mechanisms.secure_sum.terms import SumTerms
from shared.plans.plan import StudyPlan

if TYPE_CHECKING:
    from shared.mechanisms.secure_sum.influences import SumLook
    from shared.mechanisms.secure_sum.sent_look import AnySentLook
    from shared.mechanisms.secure_sum.vectors import VectorLook
    from site_agent.config import TableSource
    from site_agent.ledger.book import Hold, Ledger
    from site_agent.release.site import WorkingSite

__all__ = [
    "NEXT_SUM",
    "ORDER",
    "PASSED",
    "OwnRecords",
    "SiteSumPart",
    "SumMember",
    "awaited",
    "member_of",
    "over",
    "part_in_sum",
    "passed_by",
    "sum_of",
    "what_it_costs",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SumMember:
    """A site in the sum of a plan.

    Args:
        place: of the site among the terms' members. hold: of its delivered pilot.
    """

    plan: StudyPlan
    release: SecureSumPlan
    terms: SumTerms
    place: int
    hold: Hold


@dataclass(frozen=True, kw_only=True)
class SiteSumPart:
    """Progress of this site in the secure sum of a plan.

    Args:
        release_id: of its pilot; blank before there is one. state: of that release, or ``no pilot yet``.
        answered, given_up: steps that were answered; steps begun without an answer.
        passed_by: True if the coordinator said that the sum went on without this site.
        waits: True if the sum waits for an approver's consent. finished: True if no further step is possible.
        consents: names of those who have consented. needed: consents required.
        epsilon: of pilot, level and sum together, with the plan's colluders. seen_by: the same by colluding parties.
    """

    study: str
    epsilon: float
    delta: float
    seen_by: dict[str, float]
    release_id: str = ""
    state: str = "no pilot yet"
    answered: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    passed_by: bool = False
    waits: bool = False
    finished: bool = False
    consents: tuple[str, ...] = ()
    needed: int = 1


def sum_of(plan: StudyPlan) -> SecureSumPlan:
    """Settings of the plan's secure sum. Raises: PlanRefusal, where it has none."""
    if not isinstance(plan.release, SecureSumPlan):
        raise PlanRefusal(
            "the approved plan must have a secure sum for the site to take part in one",
            given=plan.release.mechanism,
            next_step=f"See site-agent plan show {plan.study}.",
        )
    return plan.release


def _pilot(ledger: Ledger, plan: StudyPlan) -> Hold | None:
    """The release under this plan that counts, the last one; None where there is none."""
    own = [hold for hold in ledger.holds(plan.study) if hold.follow and hold.plan_hash == plan.hash]
    return own[-1] if own else None


def member_of(ledger: Ledger, site: str, plan: StudyPlan) -> SumMember:
    """This site as a member, its pilot delivered.

    Raises: PlanRefusal (no sum, no member, or under another key), StateRefusal (no delivered pilot).
    """
    release = sum_of(plan)
    release.require_site(site, ledger.signer.public.hex)
    hold = _pilot(ledger, plan)
    if hold is None or hold.state != "delivered":
        raise StateRefusal(
            "a site's pilot must be delivered for it to take part in the sum",
            given="none" if hold is None else hold.state,
            next_step=f"See site-agent waves {plan.study}.",
        )
    place = tuple(release.members).index(site)
    return SumMember(plan=plan, release=release, terms=release.terms(plan), place=place, hold=hold)


def part_in_sum(ledger: Ledger, plan: StudyPlan) -> SiteSumPart:
    """Progress of the site in the plan's sum. Raises: PlanRefusal (its plan has no sum)."""
    release, hold = sum_of(plan), _pilot(ledger, plan)
    facts: dict[str, Any] = {
        "study": plan.study,
        "epsilon": release.epsilon if hold is None or hold.epsilon is None else hold.epsilon,
        "delta": plan.budget.delta,
        "seen_by": dict(release.seen_by(plan)),
    }
    if hold is None:
        return SiteSumPart(**facts)
    begun = sorted(hold.begun.items())
    consented = len(hold.consents) >= hold.approvals_needed
    asked = max(hold.begun, default=0) == SumStep.LEVEL and (ledger.folder(hold) / ORDER).exists()
    return SiteSumPart(
        **facts,
        release_id=hold.release_id,
        state=hold.state,
        answered=tuple(SumStep(number).title for number, one in begun if one.answer),
        given_up=tuple(SumStep(number).title for number, one in begun if not one.answer),
        passed_by=passed_by(ledger, hold),
        waits=asked and not consented and not passed_by(ledger, hold),
        finished=over(hold) or passed_by(ledger, hold),
        consents=hold.consents,
        needed=hold.approvals_needed,
    )


def over(hold: Hold) -> bool:
    """True if a site's part has ended: the last step is begun, or a step was begun without an answer."""
    return any(not one.answer for one in hold.begun.values()) or SumStep.OPEN in hold.begun


def awaited(ledger: Ledger, plan: StudyPlan) -> bool:
    """True if the sum may still send orders to this site; unlike `part_in_sum` it computes no price."""
    hold = _pilot(ledger, plan)
    return hold is not None and hold.state == "delivered" and not over(hold) and not passed_by(ledger, hold)


def passed_by(ledger: Ledger, hold: Hold) -> bool:
    """True if the coordinator said that the sum went on without this site."""
    return (ledger.folder(hold) / PASSED).exists()


def what_it_costs(hold: Hold) -> str:
    """What a sum that goes on without this site has of it, and costs it, in a few sentences."""
    answers = {step for step, one in hold.begun.items() if one.answer}
    if SumStep.MASK in answers:
        given = "Its masked numbers were given, and are added up if they came in time"
    elif SumStep.LEVEL in answers:
        given = "Nothing of its records is added up; two noisy counts, the level of its events, were given"
    else:
        given = "Nothing of its records was given to it"
    return (
        f"{given}. It costs this site nothing more: the price was charged with the pilot, once, and its pilot counts "
        "among the releases as before."
    )


NEXT_SUM = "There is nothing to run here. The study lead can sum again under a new version of the plan."
PASSED = "sum-passed-by.json"
"""Note beside the release that the sum went on without this site; nothing more is asked of it under this plan."""
ORDER = "sum-order.json"
"""The order of the step to which an approver consents, beside the release: signed words and content."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnRecords:
    """The pilot's records as a sum reads them.

    Args:
        x: (present, p) covariates. y: (present, columns) outcomes. n: public number of records.
    """

    member: SumMember
    x: Array
    y: Array
    n: int

    @staticmethod
    def read(member: SumMember, source: TableSource, site: WorkingSite) -> OwnRecords:
        """The pilot's records that are still there.

        Raises: StateRefusal (another table than the pilot's), IntegrityRefusal (its list is lost), DataRefusal.
        """
        from site_agent.records import table as records
        from site_agent.release.sealed_state import read_rows

        plan, ledger, hold = member.plan, site.ledger, member.hold
        table = records.read(
            source, plan.dictionary, key=site.secret(plan.study), as_written=ledger.as_written(plan.study)
        )
        rows = read_rows(ledger.folder(hold), hold)
        if table.snapshot != rows.snapshot:
            raise StateRefusal(
                "a sum must be of the table that the pilot was of",
                given="one that has changed since",
                next_step="Put that table back, of which the audit log tells the day, until the sum is taken.",
            )
        withdrawn = ledger.persons_withdrawn(plan.study)
        whose = rows.persons or ("",) * len(rows.source)
        chosen = [row for row, person in zip(rows.source, whose, strict=True) if person not in withdrawn]
        design = member.release.first(plan.budget.delta).design(plan)
        x, y = design.matrices(table.table.iloc[chosen].reset_index(drop=True))
        return OwnRecords(member=member, x=x, y=y, n=len(rows.source))

    def look(self, sent: AnySentLook) -> SumLook | VectorLook:
        """The look at these records that was sent, within the plan's bounds. Raises: SchemaRefusal."""
        release, plan = self.member.release, self.member.plan
        return look_sent(sent, self.n, release.bounds(plan), release.first(plan.budget.delta).design(plan))

    def steps(self, sent: AnySentLook) -> NDArray[np.int64]:
        """(coordinates,) what the records add to the sum, in whole steps, without noise; withdrawn ones say nothing."""
        look = self.look(sent)
        return self.member.terms.whole_steps(np.vstack([look.rows(self.x, self.y), look.gone(self.n - len(self.x))]))
