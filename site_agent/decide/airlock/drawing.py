"""Having the release of a wave made: what must hold before it is charged, the draw, and a standing approval's use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json
from shared.errors import ApprovalRefusal, NetworkRefusal

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan
    from site_agent.config import TableSource
    from site_agent.decide.airlock.standing_approval import StandingUse
    from site_agent.decide.plans import AgentNow
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.release.pipeline.opened import SealedRelease
    from site_agent.release.pipeline.stages import Progress

__all__ = ["DrawnRelease", "WantedRelease", "ask_limits", "draw", "wanted"]


@dataclass(frozen=True, kw_only=True)
class WantedRelease:
    """A release that may be made now, by whom and of which table."""

    plan: StudyPlan
    wave: int
    author: str
    source: TableSource


@dataclass(frozen=True, kw_only=True)
class DrawnRelease:
    """A release that was made: sealed, and approved or sent already where a standing approval was good for it.

    Args:
        standing: which standing approval was used, or why none was.
        sent: the coordinator's acceptance; None where it was not sent.
    """

    made: SealedRelease
    standing: StandingUse
    sent: Mapping[str, Any] | None


def wanted(desk: Desk, study: str, *, wave: int, by: str | None, now: AgentNow) -> WantedRelease:
    """The release that `draw` would make.

    Args:
        wave: number of the wave; 0 for the one that is due.
        by: the approver who has it made; None for the agent.
    Raises: PausedRefusal, ApprovalRefusal, StateRefusal (no wave is due), PlanRefusal and its kinds.
    """
    from site_agent.decide.airlock import approval, standing_approval
    from site_agent.decide.plan_facts import require_due
    from site_agent.release.pipeline import making

    desk.require_running()
    plan, _ = desk.plans.approved(study, now)
    author = approval.require_author(desk, plan, by)
    standing_approval.require_approved_ahead(desk, plan, now)
    source = desk.config.source(study)
    number = wave or require_due(desk, plan, now.today)
    making.require_open(plan, number, now.today)
    return WantedRelease(plan=plan, wave=number, author=author, source=source)


def ask_limits(desk: Desk, egress: Egress) -> None:
    """Ask how large a release the coordinator takes, and keep it: what it would refuse is then refused uncharged.

    Where nobody answers, or one of an earlier version or a courier that has no such question, what was kept stays.
    """
    from shared.base.keys import write_private

    with suppress(NetworkRefusal):
        said = egress.limits()
        write_private(desk.config.coordinator_limits, canonical_json(asdict(said)))


def draw(
    desk: Desk,
    release: WantedRelease,
    *,
    now: AgentNow,
    progress: Progress | None = None,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> DrawnRelease:
    """Charge, draw, seal and hold the release; only a standing approval sends it. Safe to repeat after a crash.

    Args:
        around: entered before anything is charged.
    """
    from shared.base.process import keep_freed
    from site_agent.decide.airlock import approval, standing_approval
    from site_agent.desk import working_site
    from site_agent.release.pipeline import making

    keep_freed()
    with around(), desk.locked(), desk.egress() as egress:
        ask_limits(desk, egress)
        made = making.make_release(
            plan=release.plan,
            wave=release.wave,
            source=release.source,
            site=working_site(desk, egress),
            today=now.today,
            author=release.author,
            progress=progress,
        )
    full = made.hold.release_id
    found = standing_approval.approve_by_standing(desk, full, now)
    sent = None
    if found.limit:
        desk.note_refusal("standing approval", ApprovalRefusal(found.limit), release_id=full, agent=True)
    if found.hold.state == "approved":
        sent = approval.send(desk, full, now).sent
    return DrawnRelease(made=replace(made, hold=desk.outbox.get(full)), standing=found, sent=sent)
