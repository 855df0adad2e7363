"""Facts of a plan at this site, as plain values: one page for the screen, the local page and the export."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.privacy.stated import all_given, shown_epsilon, shown_price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.plans.plan import StudyPlan
    from site_agent.desk import Desk
    from site_agent.release.pipeline.opened import SealedRelease

__all__ = [
    "approving",
    "burnt_numbers",
    "charged",
    "charged_words",
    "due_numbers",
    "looking_ahead",
    "plan_changes",
    "plan_facts",
    "require_due",
]


def plan_facts(desk: Desk, plan: StudyPlan, day: dt.date) -> dict[str, Any]:
    """Everything a steward agrees to, as plain values."""
    from dataclasses import asdict

    from shared.releases.receipt import coverage, planned_event
    from shared.terminal import plain
    from site_agent.config import Limits
    from site_agent.decide.plans import difference

    event = planned_event(plan)
    approval = desk.plans.approval(plan.study, plan.version)
    before = desk.plans.last_approved(plan.study)
    covered, not_covered = coverage(plan)
    columns = []
    for column in plan.dictionary.released:
        if column.levels:
            values = " · ".join(map(str, column.levels))
        else:
            values = f"{column.span[0]:g} to {column.span[1]:g} {column.unit}".rstrip()
        columns.append({"name": column.name, "kind": column.kind, "values": values, "missing": column.missing})
    page: dict[str, Any] = plain(
        {
            "study": plan.study,
            "version": plan.version,
            "title": plan.title,
            "purpose": plan.purpose,
            "hash": plan.hash,
            "dictionary_hash": plan.dictionary.hash,
            "recipient": plan.coordinator,
            "expires": plan.expires,
            "retention": None if plan.retention is None else asdict(plan.retention),
            "afterwards": _afterwards(plan),
            "eligibility": plan.eligibility,
            "row_download": plan.row_download,
            "waves": [asdict(wave) for wave in plan.waves],
            "price": _price(plan, event),
            "training": _training(plan),
            "flow": plan.flow,
            "charged": charged(desk, plan, day),
            "posture": plan.posture,
            "covered": covered,
            "not_covered": not_covered,
            "keys": _keys(desk, plan),
            "columns": columns,
            "figures": f"{plan.release.title}, {plan.release.details(plan)}" if _of_figures(plan) else "",
            "floors": asdict(Limits.of(plan.floors, desk.config.floors)),
            "quasi_identifiers": dict(plan.quasi_identifiers),
            "approval": plan.floors.approval,
            "approved_by": approval.approver if approval and approval.plan_hash == plan.hash else None,
            "changes": difference(before, plan) if before is not None and before.hash != plan.hash else [],
        }
    )
    return page


def _of_figures(plan: StudyPlan) -> bool:
    """True if the plan releases noisy statistics and no person's row."""
    from shared.mechanisms.base import Aggregates

    return isinstance(plan.release, Aggregates)


def _afterwards(plan: StudyPlan) -> str:
    """Retention of the releases, in words."""
    if plan.retention is None:
        return "the plan does not say until when releases are kept"
    given = plan.retention
    return f"kept until {given.until}, then deleted: {given.keep} Read by: {given.readers}"


def _price(plan: StudyPlan, event: Any) -> dict[str, Any]:
    from shared.privacy import accountant as privacy
    from shared.releases.receipt import given, in_words, planned_events
    from site_agent.decide.waves import cost

    delta, cap = plan.budget.delta, plan.budget.epsilon
    planned, promised = cost(plan, planned_events(plan)), privacy.guaranteed(event)
    return {
        "epsilon": float(privacy.epsilon(event, delta)) if promised else None,
        "epsilon_given": given(plan),
        "delta": delta,
        "all_waves": planned.totals[-1] if promised else None,
        "cap": cap,
        "affordable": planned.affordable,
        "translation": in_words(plan, event),
        "seen_by": dict(plan.release.seen_by(plan)),
    }


def _keys(desk: Desk, plan: StudyPlan) -> dict[str, Any] | None:
    """Fingerprints of the keys that the price rests on, and what to do about them; None where it rests on none."""
    from shared.base.keys import PublicKey

    if not plan.release.keys:
        return None
    worst = shown_epsilon(max(plan.release.seen_by(plan).values()))
    own = (desk.config.site, desk.release_key.public.hex)
    return {
        "of": [
            {
                "site": site,
                "fingerprint": PublicKey(key).fingerprint,
                "own": (site, key) == own,
                "another": site == own[0] and key != own[1],
            }
            for site, key in plan.release.keys.items()
        ],
        "said": [
            "Whoever holds a key knows its share of the noise. Were the keys of all others the coordinator's own, what "
            f"holds would be ε = {worst}, the last of the rows by who looks together, though no hospital tells it "
            "anything.",
            "This site checks its own key alone. Compare each of the others by telephone, at a number that neither the "
            "coordinator nor the study lead gave you, with what that hospital's own site-agent status shows.",
        ],
    }


def _training(plan: StudyPlan) -> dict[str, Any] | None:
    """A training that the sites run together: what a steward agrees to with the plan."""
    if plan.federated is None:
        return None
    from site_agent.training.part import uncovered

    return {
        "rounds": plan.federated.rounds,
        "steps": plan.federated.steps,
        "quorum": plan.federated.quorum,
        "epsilon": plan.federated.epsilon(plan.budget.delta),
        "not_covered": uncovered(plan),
    }


def charged(desk: Desk, plan: StudyPlan, day: dt.date) -> dict[str, Any]:
    """Privacy loss of the study so far, over all versions, and with the coming waves of this plan."""
    from shared.releases.receipt import given
    from site_agent.decide.waves import calendar

    lines = calendar(plan, desk.ledger.holds(plan.study), day)
    ahead = [line.number for line in lines if line.state in ("due", "not yet open")]
    totals = _ahead(desk, plan, ahead)
    so_far = desk.ledger.study_total(plan.study, plan.budget.delta)
    within = [number for number, total in zip(ahead, totals, strict=True) if total <= plan.budget.epsilon]
    return {
        "epsilon": so_far.stated,
        "epsilon_given": so_far.given,
        "to_come": ahead,
        "with_waves_to_come": totals[-1] if totals else so_far.epsilon,
        "total_given": all_given([(so_far.epsilon, so_far.given), *((total, given(plan)) for total in totals)]),
        "last_affordable": within[-1] if within else None,
    }


def _ahead(desk: Desk, plan: StudyPlan, numbers: Sequence[int]) -> tuple[float, ...]:
    """The study's totals after each of these waves, all that is under way having been delivered."""
    from shared.releases.receipt import planned_event, refits
    from site_agent.release.pipeline.making import touches

    mine = desk.ledger.holds(plan.study)
    # One that a recovered ledger knows by its charge alone has left no flow here.
    left = [hold for hold in mine if hold.files or not hold.drawn]
    fitted = any(hold.phase != "burnt" and hold.state != "withdrawn" and not hold.rounds for hold in left)
    events = []
    for number in numbers:
        events.append(planned_event(plan, reused=fitted and not refits(plan, plan.wave(number))).to_canonical())
        fitted = True
    return desk.ledger.forecast(plan.study, events, plan.budget.delta, touches=touches(plan))


def due_numbers(desk: Desk, plan: StudyPlan, day: dt.date) -> list[int]:
    """Number of the wave to work on, if there is one."""
    from site_agent.decide.waves import due

    found = due(plan, desk.ledger.holds(plan.study), day)
    return [] if found is None else [found.number]


def burnt_numbers(desk: Desk, plan: StudyPlan, day: dt.date) -> list[int]:
    """Numbers of the waves that are open and whose last draw was burnt: they are drawn again by a person alone."""
    from site_agent.decide.waves import calendar

    lines = calendar(plan, desk.ledger.holds(plan.study), day)
    return [line.number for line in lines if line.state == "burnt" and line.opens <= day <= line.closes]


def require_due(desk: Desk, plan: StudyPlan, day: dt.date) -> int:
    """Number of the wave to work on. Raises: StateRefusal."""
    from shared.errors import StateRefusal

    if found := due_numbers(desk, plan, day):
        return found[0]
    given, step = (
        "none that is open and has no release here",
        f"See site-agent waves {plan.study}; name one with --wave.",
    )
    if burnt := burnt_numbers(desk, plan, day):
        given = f"wave {burnt[0]}, whose draw is burnt"
        step = f"Another draw is another charge: site-agent release {plan.study} --wave {burnt[0]}."
    raise StateRefusal("a wave must be due, or be named", given=given, next_step=step)


def looking_ahead(plan: StudyPlan) -> list[str]:
    """The command that shows what attacks find before anything is charged, where the plan lets them refuse."""
    varied = bool(getattr(plan.release, "vary", ""))
    if plan.posture != "local" or not plan.release.draws_rows or varied:
        return []
    return [f"site-agent curve {plan.study}        (what attacks find at this w and others; nothing is charged)"]


def approving(plan: StudyPlan) -> str:
    """The command that approves a plan, with the tick that its posture asks for."""
    from shared.releases.receipt import LEAVES_PERSONS_OPEN

    tick = f" --understood {plan.posture}" if plan.posture in LEAVES_PERSONS_OPEN else ""
    return f"site-agent plan approve {plan.study} --as NAME{tick}"


def plan_changes(desk: Desk, made: SealedRelease) -> list[tuple[str, str, str]]:
    """Differences of the newest plan from that of a release."""
    from site_agent.decide.plans import difference

    now = desk.plans.plan(made.hold.study)
    if now.hash == made.hold.plan_hash:
        return []
    return list(difference(desk.plans.plan(made.hold.study, made.receipt.plan_version), now))


def charged_words(page: Mapping[str, Any]) -> str:
    """Charged so far and planned together against the budget, and the last wave it allows; for screen and page."""
    charged, given = page["charged"], page["price"]["epsilon_given"]
    if page["price"]["epsilon"] is None:
        return f"{shown_price(None, given)}; no total holds its releases"
    total, cap = shown_price(charged["with_waves_to_come"], charged["total_given"]), shown_epsilon(page["price"]["cap"])
    if not charged["to_come"]:
        return f"ε = {total}, of {cap}; no wave is to come"
    last = charged["last_affordable"]
    if last is None:
        return f"ε = {total}, of {cap}; the budget allows none of the waves to come"
    first, final = charged["to_come"][0], charged["to_come"][-1]
    if first == final:
        return f"ε = {total}, of {cap} once wave {first} is drawn; the budget allows them up to wave {last}"
    return f"ε = {total}, of {cap} once waves {first} to {final} are drawn; the budget allows them up to wave {last}"
