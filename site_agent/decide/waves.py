"""The plan's calendar, lived by: which wave is due, once each, and what the agent does about it unattended.

What is due follows from three things only: the plan, the ledger's holds, and the UTC date. No state is kept beside the
ledger, so there is nothing that could disagree with it after a crash, a month without power or a restored folder. Two
rules make that safe under a clock that lies:

* a wave that has a hold of its own, whatever became of it, is never due again; drawing it anew is a person's decision
  (`site-agent release`) and another charge. Only an open reservation and an unaudited seal are taken up again;
* waves go forward: once a later wave has a hold, an earlier one without has merged into it. What came first is the
  ledger's order; a date only opens and closes.

So a clock that is wrong may make a wave early or leave it out, and never makes one twice. A date is a day in UTC: a
plan's day does not begin earlier in another time zone, nor twice in a year of summer time.

The agent never approves by itself. `attend` makes what is due, puts it in the outbox, uses a standing approval that an
approver has signed where every limit of it holds, sends what is approved, and says one line about each.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import (
    ApprovalRefusal,
    CertificateRefusal,
    IntegrityRefusal,
    LockedRefusal,
    NetworkRefusal,
    Refusal,
    SmallN,
)
from shared.plans.federated import PREFIX
from shared.plans.plan import StudyPlan, Wave
from site_agent.decide import reconciliation

if TYPE_CHECKING:
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.ledger.book import Hold, Ledger
    from site_agent.release.site import WorkingSite

__all__ = ["AttendEvent", "PlanTotals", "Planned", "attend", "by_lot", "calendar", "cost", "due"]

_OPEN = {
    "reserved": "reserved",
    "anchored": "reserved",
    "drawing": "being drawn",
    "sealed": "sealed, not yet checked",
    "held": "waits for a person",
    "sent_back": "sent back",
    "approved": "approved, not yet sent",
    "delivered": "delivered",
    "withdrawn": "withdrawn",
    "burnt": "burnt",
    "rejected": "rejected",
}
_VERBS = {
    "no plan": "plan fetch",
    "not sent": "send",
    "not approved": "approve",
    "not released": "release",
    "withdrawal not told": "withdraw",
    "revocation not told": "standing revoke",
    "no part in the training": "federate",
    "not compared": "resend",
    "certificate not renewed": "renew",
}
"""Verb of each attempt for the log of refusals, by the event that `attend` reports; ``run`` of all others."""
_RESUMED = ("due", "reserved", "sealed, not yet checked")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One wave of a plan and where it stands.

    Args:
        state: ``not yet open``, ``due``, ``missed``, ``merged``, or what became of its release.
        release_id: of its last hold; blank while it has none.
        into: the wave that took it over, where it is merged.
    """

    number: int
    opens: dt.date
    closes: dt.date
    state: str
    release_id: str = ""
    into: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlanTotals:
    """Privacy loss of a plan's waves for the person who is charged most.

    Args:
        totals: ε after 1, 2, … waves, as the cap is held against it.
        affordable: the last wave whose total is within the cap; 0 for none.
    """

    totals: tuple[float, ...]
    affordable: int


@dataclass(frozen=True, kw_only=True)
class AttendEvent:
    """One thing that `attend` did, or could not do."""

    study: str
    what: str
    wave: int | None = None
    detail: str = ""
    code: str = ""


def calendar(plan: StudyPlan, holds: Iterable[Hold], today: dt.date) -> tuple[Planned, ...]:
    """Every planned wave and where it stands on a day.

    Args:
        plan: whichever version holds now; waves are known by their number.
        holds: the ledger's holds of this study, in its order.
        today: UTC date.
    """
    own = [hold for hold in holds if hold.study == plan.study and hold.wave > 0]
    last = {hold.wave: hold for hold in own}
    taken_over = {number: hold.wave for hold in own for number in hold.merged}
    latest = max(last, default=0)
    out = []
    for wave in plan.waves:
        hold, into = last.get(wave.number), None
        if hold is not None:
            state = _OPEN[hold.state]
        elif wave.number < latest:
            state, into = "merged", taken_over.get(wave.number, min(n for n in last if n > wave.number))
        elif today < wave.opens:
            state = "not yet open"
        else:
            state = "due" if today <= wave.closes else "missed"
        out.append(
            Planned(
                number=wave.number,
                opens=wave.opens,
                closes=wave.closes,
                state=state,
                release_id=hold.release_id if hold is not None else "",
                into=into,
            )
        )
    return tuple(out)


def due(plan: StudyPlan, holds: Iterable[Hold], today: dt.date) -> Wave | None:
    """The one wave to work on today, the earliest first; None where there is none.

    After days off the waves that closed meanwhile are not made up for: under ``append`` and ``frozen`` whoever would
    have been in them is new in the next one, and under ``refresh`` it draws everybody anyway.
    """
    lines = calendar(plan, holds, today)
    latest = max((line.number for line in lines if line.release_id), default=0)
    for line in lines:
        if line.number >= latest and line.opens <= today <= line.closes and line.state in _RESUMED:
            return plan.wave(line.number)
    return None


def cost(plan: StudyPlan, events: Sequence[Any]) -> PlanTotals:
    """What waves of a plan cost, by Rényi composition or the pure sum.

    A person is drawn in every wave under ``refresh``, and in one at most under ``append`` and ``frozen``. A training
    that the plan asks for comes before them, and is charged to everybody.

    Args:
        events: what each wave is charged as (`shared.releases.receipt.planned_events`).
    """
    from shared.privacy import accountant as privacy
    from shared.privacy.composition import Charge, StudyCharges
    from site_agent.ledger.holds import curve_of, price_of
    from site_agent.release.pipeline.making import touches

    prices = {event: price_of(event.to_canonical(), plan.budget.delta) for event in set(events)}
    before = []
    if plan.federated is not None:
        training = plan.federated.event
        before = [Charge(rdp=tuple(float(v) for v in privacy.rdp(training)), pure=privacy.pure_epsilon(training))]
    beside = frozenset(range(len(before))) if touches(plan) == "new" else None
    charges = {
        event: Charge(rdp=curve_of(price), pure=price["epsilon_pure"], beside=beside) for event, price in prices.items()
    }
    composed = StudyCharges([*before, *(charges[event] for event in events)])
    totals = tuple(composed.total(plan.budget.delta, len(before) + k) for k in range(1, len(events) + 1))
    return PlanTotals(totals=totals, affordable=_within(totals, plan.budget.epsilon))


def by_lot(ledger: Ledger, study: str, leaving: Collection[str], *, others: int, floor: int) -> frozenset[str]:
    """Persons drawn by lot to leave with those who withdrew, so that a wave need not wait until enough have.

    The lot looks at pseudonyms only: who goes along depends on no record. They stay away like those who withdrew, or
    the table without them would be compared with the one that has both.

    Args:
        leaving: pseudonyms of all who withdrew.
        others: with how many others each of them must leave the table as of the last release.
        floor: fewest persons that a release may hold.
    Returns: nobody where no person of that table leaves, or enough do already.
    Raises: SmallN, when too few would stay; IntegrityRefusal (whose the released rows are is lost).
    """
    from site_agent.release.sealed_state import read_rows

    table = frozenset[str]()
    for hold in ledger.holds(study):
        if hold.may_be_out and hold.files:
            own = frozenset(read_rows(ledger.folder(hold), hold).persons)
            table = own if own & table else own | table
    withdrawn = table & frozenset(leaving)
    if not withdrawn or len(withdrawn) > others:
        return frozenset()
    stay = sorted(table - withdrawn)
    more = others + 1 - len(withdrawn)
    if len(stay) - more < floor:
        raise SmallN(
            f"at least {floor} persons must stay in the table",
            given=f"{len(stay)} others, of whom {more} would leave by lot",
            next_step="Let the wave wait, or take the earlier releases back: site-agent withdraw --reason consent.",
        )
    return frozenset(secrets.SystemRandom().sample(stay, more))


def _within(totals: Sequence[float], cap: float) -> int:
    # Totals never fall, so that the ones within the cap come first.
    return sum(math.isfinite(total) and total <= cap for total in totals)


def _compare_clocks(desk: Desk, egress: Egress, say: Callable[[AttendEvent], None]) -> None:
    """Say by how much this clock differs from the coordinator's: windows open and certificates expire by it."""
    try:
        offset = egress.clock(desk.config.site, desk.release_key)
    except Refusal:  # an earlier version, or no pinned key: `doctor` says so
        return
    if offset.state != "agree":
        detail = f"{offset.words} of what the coordinator signs. Set the clock (NTP), or tell the study lead."
        code = CertificateRefusal.code if offset.state == "wrong" else ""
        say(AttendEvent(study="", what="clock differs", detail=detail, code=code))


def attend(
    desk: Desk,
    *,
    site: Callable[[Egress], WorkingSite],
    agent_version: str,
    today: dt.date,
    say: Callable[[AttendEvent], None],
    dry_run: bool = False,
) -> None:
    """One round: fetch plans, send what is approved, make what is due. A refusal is said, and the round goes on.

    Nothing is reserved while the coordinator does not answer: the draw could not be witnessed. A pause ends the
    round at its next step, which is within a second or two also while a flow is fitted.
    """
    from site_agent.decide import renewal
    from site_agent.decide.airlock import approval, standing_approval, taking_back
    from site_agent.release.pipeline import making

    def refused(study: str, what: str, refusal: Refusal, wave: int | None = None, release_id: str = "") -> None:
        say(AttendEvent(study=study, what=what, wave=wave, detail=str(refusal), code=refusal.code))
        # That nobody answers is the weather, and refuses nothing.
        if not dry_run and not isinstance(refusal, NetworkRefusal):
            desk.note_refusal(_VERBS.get(what, "run"), refusal, study=study, release_id=release_id, agent=True)

    unseen = None if dry_run else _unwitnessed(desk)
    if unseen is not None:
        refused("", "decision not witnessed", unseen)
    if desk.paused:
        say(AttendEvent(study="", what="paused", detail="Nothing is drawn or sent until site-agent resume --as NAME."))
        return
    studies = _studies(desk)
    renewal.in_round(desk, AttendEvent, say=say, refused=refused, dry_run=dry_run)
    try:
        with desk.egress() as egress:
            _look_at_membership(desk, egress, say=say, refused=refused, dry_run=dry_run)
            studies = _studies(desk)
            _reconcile(desk, egress, studies, today=today, say=say, refused=refused, dry_run=dry_run)
            for study in studies:
                known = desk.plans.highest(study)
                try:
                    plan = desk.plans.receive(study, egress.fetch_plan(study), today=today, keep=not dry_run)
                except NetworkRefusal:
                    raise
                except Refusal as refusal:
                    refused(study, "no plan", refusal)
                    continue
                if plan.version > known:
                    step = f"Read site-agent plan show {study}."
                    say(AttendEvent(study=study, what=f"plan version {plan.version} has come", detail=step))
            _compare_clocks(desk, egress, say)
            renewal.follow_in_round(desk, egress, AttendEvent, say=say, refused=refused, dry_run=dry_run)
    except NetworkRefusal as refusal:
        refused("", "offline", refusal)
        return
    except Refusal as refusal:
        refused("", "not connected", refusal)
        return

    def advance(hold: Hold) -> str:
        """Approve what a standing approval is good for, and send it; or the limit that failed."""
        found = standing_approval.approve_by_standing(desk, hold.release_id, agent_version=agent_version, today=today)
        if found.limit:
            desk.note_refusal("standing approval", ApprovalRefusal(found.limit), release_id=hold.release_id, agent=True)
        if found.used:
            detail = f"{hold.release_id[:8]}, by the standing approval of {found.used}"
            say(AttendEvent(study=hold.study, what="approved", wave=hold.wave, detail=detail))
        if found.hold.state == "approved":
            send(found.hold)
        return found.limit

    def send(hold: Hold) -> None:
        try:
            approval.send(desk, hold.release_id, agent_version=agent_version, today=today)
            say(AttendEvent(study=hold.study, what="sent", wave=hold.wave, detail=hold.release_id[:8]))
        except Refusal as refusal:
            refused(hold.study, "not sent", refusal, hold.wave, hold.release_id)

    if not dry_run:
        try:
            for noted in standing_approval.send_revocations(desk):
                detail = f"standing approval {noted.digest[:8]}"
                say(AttendEvent(study=noted.study, what="told of a revocation", detail=detail))
        except Refusal as refusal:
            refused("", "revocation not told", refusal)

    for hold in desk.outbox.list():
        if hold.withdrawal is None or hold.withdrawal.settled or not hold.left or desk.paused:
            continue
        if dry_run:
            say(
                AttendEvent(
                    study=hold.study, what="would tell of a withdrawal", wave=hold.wave, detail=hold.release_id[:8]
                )
            )
            continue
        try:
            taking_back.bury(desk, hold.release_id)
            say(AttendEvent(study=hold.study, what="told of a withdrawal", wave=hold.wave, detail=hold.release_id[:8]))
        except Refusal as refusal:
            refused(hold.study, "withdrawal not told", refusal, hold.wave, hold.release_id)

    for hold in desk.outbox.list():
        if hold.state not in ("held", "approved") or desk.paused:
            continue
        if hold.state == "held":
            try:
                if not dry_run:
                    advance(hold)
            except Refusal as refusal:
                refused(hold.study, "not approved", refusal, hold.wave, hold.release_id)
            continue
        if dry_run:
            say(AttendEvent(study=hold.study, what="would send", wave=hold.wave, detail=hold.release_id[:8]))
            continue
        send(hold)

    def prepare(study: str, what: Callable[[StudyPlan], bool]) -> None:
        """Fetch the flow of a plan, or take part in its training."""
        try:
            plan, _ = desk.plans.approved(study, agent_version=agent_version, today=today)
        except Refusal:
            return  # said below, where a wave is due
        try:
            if what(plan):
                _train(desk, plan, site=site, today=today, say=say, dry_run=dry_run)
        except Refusal as refusal:
            refused(study, "no part in the training", refusal)

    for study in studies:
        if desk.paused:
            return
        prepare(study, lambda plan: bool(plan.flow))

    for study in studies:
        if desk.config.frame_key(study).exists():
            try:
                _forget(desk, study, today=today, say=say, dry_run=dry_run)
            except Refusal as refusal:
                refused(study, "no plan", refusal)

    for study in studies:
        if desk.paused:
            return
        wave: int | None = None
        try:
            plan, _ = desk.plans.approved(study, agent_version=agent_version, today=today)
            found = due(plan, desk.ledger.holds(study), today)
            if found is None:
                continue
            wave = found.number
            source = desk.config.source(study)
            standing_approval.require_approved_ahead(desk, plan, agent_version=agent_version, today=today)
            if dry_run:
                say(AttendEvent(study=study, what="would release", wave=wave))
                continue
            with desk.locked(), desk.egress() as egress:
                made = making.make_release(plan=plan, wave=wave, source=source, site=site(egress), today=today)
            limit = advance(made.hold)
            hold = desk.outbox.get(made.hold.release_id)
            if hold.state == "held":
                why = f"The standing approval was not used: {limit}. " if limit else ""
                step = f"{why}Run site-agent outbox show {hold.release_id[:8]}."
                say(AttendEvent(study=study, what="waits for a person", wave=wave, detail=step))
        except Refusal as refusal:
            refused(study, "not released", refusal, wave)

    # Last: a training takes as long as its coordinator likes, and nothing that is due waits for it.
    for study in studies:
        if desk.paused:
            return
        prepare(study, lambda plan: plan.federated is not None)


def _unwitnessed(desk: Desk) -> Refusal | None:
    """Why a decision of this site is not witnessed; the round itself says that nobody answers, or who works here."""
    from site_agent.decide.airlock import signing

    try:
        signing.require_witnessed(desk)
    except Refusal as refusal:
        return refusal if isinstance(refusal, IntegrityRefusal) and not isinstance(refusal, LockedRefusal) else None
    return None


def _studies(desk: Desk) -> list[str]:
    """Studies that a round looks at: not those out of which the study lead has taken this site."""
    known = desk.ledger.membership().studies
    found = {*desk.config.studies, *desk.config.data, *desk.plans.studies()}
    return sorted(study for study in found if known.get(study, True))


def _look_at_membership(
    desk: Desk, egress: Egress, *, say: Callable[[AttendEvent], None], refused: Callable[..., None], dry_run: bool
) -> None:
    """Take what the leads have signed of this site, and say what is new. Raises: NetworkRefusal."""
    from site_agent.decide import membership

    try:
        news = membership.look(desk, egress, dry_run=dry_run)
    except NetworkRefusal:
        raise
    except Refusal as refusal:
        refused("", "membership not taken", refusal)
        return
    for study in news.granted:
        step = f"Nothing of it happens before somebody approves its plan: site-agent plan show {study}."
        say(AttendEvent(study=study, what="granted by the study lead", detail=step))
    for study in news.ungranted:
        say(AttendEvent(study=study, what="taken away by the study lead", detail="Nothing more is made or sent of it."))
    for name in news.leads:
        say(AttendEvent(study="", what="the study's leads have changed", detail=name))


def _reconcile(
    desk: Desk,
    egress: Egress,
    studies: Sequence[str],
    *,
    today: dt.date,
    say: Callable[[AttendEvent], None],
    refused: Callable[..., None],
    dry_run: bool,
) -> None:
    """Hold what was delivered against the coordinator's word, mend what it has forgotten; once a day, see its log.

    Raises: NetworkRefusal.
    """
    answers, replies = {}, desk.replies
    before = len(replies.restorations()) if replies is not None else 0
    for study in studies:
        if not desk.ledger.holds(study):
            continue
        try:
            answers[study] = answer = egress.held(study)
            found = reconciliation.compare(desk, study, answer)
            if dry_run:
                for one in found:
                    say(AttendEvent(study=study, what=one.what, wave=one.wave, detail=one.release_id[:8]))
                continue
            left = reconciliation.last_look(desk).get("left", {}).get(study)
            if not found and not left and not reconciliation.heads_forgotten(desk, answer):
                continue
            with desk.locked():
                settled = reconciliation.settle(desk, egress, study, answer)
        except NetworkRefusal:
            raise
        except Refusal as refusal:
            refused(study, "not compared", refusal)
            continue
        if settled.proven:
            say(AttendEvent(study=study, what="ledger proven anew", detail="the coordinator had forgotten heads of it"))
        for one in settled.mended:
            say(AttendEvent(study=study, what=f"mended: {one.what}", wave=one.wave, detail=one.release_id[:8]))
        for one in settled.left:
            detail = f"{one.release_id[:8]}. {one.why}" if one.why else f"{one.release_id[:8]}. Tell the study lead."
            say(AttendEvent(study=study, what=one.what, wave=one.wave, detail=detail, code=IntegrityRefusal.code))
    if dry_run or not answers or reconciliation.looked(desk, today):
        return
    try:
        for one in reconciliation.watch(desk, egress, answers, today):
            say(
                AttendEvent(
                    study=one.study,
                    what=one.what,
                    wave=one.wave,
                    detail=f"{one.release_id[:8]}. Tell the study lead.",
                    code=IntegrityRefusal.code,
                )
            )
    except NetworkRefusal:
        raise
    except Refusal as refusal:
        refused("", "log not followed", refusal)
    for restored in (replies.restorations() if replies is not None else ())[before:]:
        detail = f"to {restored.size} entries, on {restored.day}: {restored.reason}"
        say(AttendEvent(study="", what="the coordinator was put back from a backup", detail=detail))


LONGEST = 900.0
"""Seconds that a training may take of one round of the agent: the calendar of all studies is looked at after it."""
PATIENCE = 60.0
"""Seconds for which one round of the agent waits for the next round of a training; the others' work takes time too."""


_GRACE = dt.timedelta(days=30)
"""Time from the close of a plan's last wave until its frame is deleted.

Nothing brings a frame back, and nobody is asked. A clock that is some days ahead, or an amendment with a further wave
that comes late, must not cost the network; persons held out wait a month longer for the deletion."""


def _forget(desk: Desk, study: str, *, today: dt.date, say: Callable[[AttendEvent], None], dry_run: bool) -> None:
    """Delete the frames of a network whose last planned wave has been closed for longer than `_GRACE`.

    By this machine's own clock: where that is further ahead than `_GRACE`, the frames are deleted too early, for good.

    Raises: any `Refusal`.
    """
    if any(today <= wave.closes + _GRACE for wave in desk.plans.plan(study).waves):
        return
    if not dry_run:
        from site_agent.release.embeddings import EmbeddingStore

        with desk.locked():
            EmbeddingStore(desk.home, study).forget(desk.ledger)
    what = "would delete the frame of its network" if dry_run else "deleted the frame of its network"
    say(AttendEvent(study=study, what=what, detail=f"its last wave closed more than {_GRACE.days} days ago"))


def _train(
    desk: Desk,
    plan: StudyPlan,
    *,
    site: Callable[[Egress], WorkingSite],
    today: dt.date,
    say: Callable[[AttendEvent], None],
    dry_run: bool,
) -> None:
    """Answer what a training asks, or fetch the flow that a plan names. Raises: any `Refusal`."""
    from site_agent.release import trained_flow
    from site_agent.training import rounds

    if plan.flow:
        if trained_flow.flow_path(desk.home, plan.flow.removeprefix(PREFIX)).exists():
            return
        if not dry_run:
            with desk.locked(), desk.egress() as egress:
                rounds.fetch(plan, egress, desk.home)
        say(AttendEvent(study=plan.study, what="would fetch its flow" if dry_run else "fetched its flow"))
        return
    if rounds.ended(desk.ledger, plan):
        return
    if dry_run:
        say(AttendEvent(study=plan.study, what="would take part in its training"))
        return
    began: set[tuple[str, int]] = set()
    limit = time.monotonic() + LONGEST

    def progress(what: str, number: int) -> None:
        began.add((what, number))  # the same thing again is no progress, whatever the coordinator asks
        detail = f"round {number}" if number else f"all {plan.federated.rounds if plan.federated else 0} rounds"
        say(AttendEvent(study=plan.study, what=f"training {what}", detail=detail))

    while True:
        known = len(began)
        with desk.egress() as egress:
            rounds.take_part(
                plan=plan,
                source=desk.config.source(plan.study),
                site=site(egress),
                door=egress,
                home=desk.home,
                today=today,
                locked=desk.locked,
                # Nothing asked at all: the calendar goes on at once.
                wait=min(PATIENCE, max(0.0, limit - time.monotonic())) if began else 0.0,
                progress=progress,
                until=limit,
            )
        if len(began) == known or time.monotonic() >= limit or rounds.ended(desk.ledger, plan):
            return
