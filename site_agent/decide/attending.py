"""Unattended rounds of the agent: fetch plans, send what is approved, make due releases, take part in trainings.

The agent never approves by itself. An `AgentRound` makes the releases that are due, puts them in the outbox, uses a
standing approval that an approver has signed if every limit of it holds, sends what is approved, and reports each in
one line.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from shared.errors import (
    ApprovalRefusal,
    AwaitsCourier,
    CertificateRefusal,
    IntegrityRefusal,
    LockedRefusal,
    NetworkRefusal,
    Refusal,
    RoleRefusal,
    StateRefusal,
    StoreAway,
)
from shared.plans.federated import PREFIX
from shared.plans.plan import StudyPlan
from shared.wire.rounds import PASSED_BY
from site_agent.decide import reconciliation

if TYPE_CHECKING:
    from shared.mechanisms.secure_sum.steps import SumStep
    from site_agent.decide.plans import AgentNow
    from site_agent.desk import Desk
    from site_agent.egress import Egress
    from site_agent.ledger.book import Hold
    from site_agent.release.site import WorkingSite
    from site_agent.training.rounds import Participant

from site_agent.decide.waves import due

__all__ = ["AgentRound", "AttendEvent", "RoundSettings", "attend"]

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
LONGEST = 900.0
"""Seconds that a training may take of one round of the agent: the calendar of all studies is looked at after it."""
PATIENCE = 60.0
"""Seconds for which one round of the agent waits for the next round of a training; the others' work takes time too."""

_GRACE = dt.timedelta(days=30)
"""Time from the close of a plan's last wave until its frame is deleted.

Nothing brings a frame back, and nobody is asked. A clock that is some days ahead, or an amendment with a further wave
that comes late, must not cost the network; persons held out wait a month longer for the deletion."""


@dataclass(frozen=True, kw_only=True)
class AttendEvent:
    """One thing that `attend` did, or could not do."""

    study: str
    what: str
    wave: int | None = None
    detail: str = ""
    code: str = ""


class RoundSettings(TypedDict):
    """Settings of one round of the agent: the arguments of `AgentRound` except `desk` and `dry_run`."""

    site: Callable[[Egress], WorkingSite]
    now: AgentNow
    say: Callable[[AttendEvent], None]


def attend(desk: Desk, *, dry_run: bool = False, **settings: Unpack[RoundSettings]) -> None:
    """One round of the agent; its settings are those of `AgentRound`.

    Nothing is reserved while the coordinator does not answer: the draw could not be witnessed. A pause ends the
    round at its next step, which is within a second or two also while a flow is fitted.
    """
    AgentRound(desk, dry_run=dry_run, **settings).take()


class AgentRound:
    """One round of the agent: fetch plans, send what is approved, make what is due. A refusal is said, and it goes on.

    Args:
        desk: the site's folder.
        site: the site as a release sees it, with a witness behind an open connection.
        now: version of this software, and the day.
        say: hears each thing that was done, or could not be.
        dry_run: only say what would be done.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        site: Callable[[Egress], WorkingSite],
        now: AgentNow,
        say: Callable[[AttendEvent], None],
        dry_run: bool,
    ) -> None:
        self.desk, self.site, self.now = desk, site, now
        self.say, self.dry_run = say, dry_run

    def refused(self, study: str, what: str, refusal: Refusal, wave: int | None = None, release_id: str = "") -> None:
        """Say that something could not be done, and note it where it is a refusal of this site.

        Args:
            study: which it is about; blank for none.
            what: that was to be done, as in ``AttendEvent.what``.
            refusal: why it was not.
            wave, release_id: which, where it is about one.
        """
        self._report(study, what, wave=wave, detail=str(refusal), code=refusal.code)
        # That nobody answers is the weather, and refuses nothing.
        if not self.dry_run and not isinstance(refusal, NetworkRefusal):
            verb = _VERBS.get(what, "run")
            self.desk.note_refusal(verb, refusal, study=study, release_id=release_id, agent=True)

    def _report(self, study: str, what: str, *, wave: int | None = None, detail: str = "", code: str = "") -> None:
        self.say(AttendEvent(study=study, what=what, wave=wave, detail=detail, code=code))

    def take(self) -> None:
        """The round's steps, in order; a pause ends it at the next one."""
        unseen = None if self.dry_run else self._unwitnessed()
        if unseen is not None:
            self.refused("", "decision not witnessed", unseen)
        if self.desk.paused:
            detail = "Nothing is drawn or sent until site-agent resume --as NAME."
            self._report("", "paused", detail=detail)
            return
        studies = self._met()
        if studies is None:
            return
        if not self.dry_run:
            self._send_revocations()
        self._bury_withdrawn()
        self._send_approved()
        for study in studies:
            if self.desk.paused:
                return
            self._prepare(study, lambda plan: bool(plan.flow))
        for study in studies:
            if self.desk.config.frame_key(study).exists():
                try:
                    self._forget(study)
                except Refusal as refusal:
                    self.refused(study, "no plan", refusal)
        for study in studies:
            if self.desk.paused:
                return
            self._release(study)
        # Last: a training takes as long as its coordinator likes, and nothing that is due waits for it.
        for study in studies:
            if self.desk.paused:
                return
            self._prepare(study, lambda plan: plan.federated is not None or plan.release.follow > 0)

    # -- with the coordinator -----------------------------------------------------------------------------------
    def _met(self) -> list[str] | None:
        """The studies of this round, once the coordinator has answered; None where it did not."""
        from site_agent.decide.airlock import drawing
        from site_agent.decide.joining import renewal

        settings: dict[str, Any] = {"say": self.say, "refused": self.refused, "dry_run": self.dry_run}
        renewal.in_round(self.desk, AttendEvent, **settings)
        try:
            with self.desk.egress() as egress:
                self._look_at_membership(egress)
                studies = self._studies()
                self._reconcile(egress, studies)
                for study in studies:
                    self._fetch_plan(egress, study)
                if not self.dry_run:
                    drawing.ask_limits(self.desk, egress)
                self._compare_clocks(egress)
                renewal.follow_in_round(self.desk, egress, AttendEvent, **settings)
        except AwaitsCourier as refusal:  # the round goes on by what has been carried
            self.refused("", "waits for a courier", refusal)
            return self._studies()
        except StoreAway as refusal:
            self.refused("", "the coordinator's database is away", refusal)
            return None
        except NetworkRefusal as refusal:
            self.refused("", "offline", refusal)
            return None
        except Refusal as refusal:
            self.refused("", "not connected", refusal)
            return None
        return studies

    def _fetch_plan(self, egress: Egress, study: str) -> None:
        known = self.desk.plans.highest(study)
        try:
            plan = self.desk.plans.receive(study, egress.fetch_plan(study), today=self.now.today, keep=not self.dry_run)
        except NetworkRefusal:
            raise
        except Refusal as refusal:
            self.refused(study, "no plan", refusal)
            return
        if plan.version > known:
            step = f"Read site-agent plan show {study}."
            self._report(study, f"plan version {plan.version} has come", detail=step)

    def _compare_clocks(self, egress: Egress) -> None:
        """Say by how much this clock differs from the coordinator's: windows open and certificates expire by it."""
        try:
            offset = egress.clock(self.desk.config.site, self.desk.release_key)
        except Refusal:  # an earlier version, or no pinned key: `doctor` says so
            return
        if offset.state != "agree":
            detail = f"{offset.words} of what the coordinator signs. Set the clock (NTP), or tell the study lead."
            code = CertificateRefusal.code if offset.state == "wrong" else ""
            self._report("", "clock differs", detail=detail, code=code)

    def _unwitnessed(self) -> Refusal | None:
        """Why a decision is not witnessed; the round itself says that nobody answers, or who works here."""
        from site_agent.decide.airlock import signing

        try:
            signing.require_witnessed(self.desk)
        except Refusal as refusal:
            return refusal if isinstance(refusal, IntegrityRefusal) and not isinstance(refusal, LockedRefusal) else None
        return None

    def _studies(self) -> list[str]:
        """Studies that a round looks at: not those out of which the study lead has taken this site."""
        known = self.desk.ledger.membership().studies
        found = {*self.desk.config.studies, *self.desk.config.data, *self.desk.plans.studies()}
        return sorted(study for study in found if known.get(study, True))

    def _look_at_membership(self, egress: Egress) -> None:
        """Take what the leads have signed of this site, and say what is new. Raises: NetworkRefusal."""
        from site_agent.decide import membership

        try:
            news = membership.look(self.desk, egress, dry_run=self.dry_run)
        except NetworkRefusal:
            raise
        except Refusal as refusal:
            self.refused("", "membership not taken", refusal)
            return
        for study in news.granted:
            step = f"Nothing of it happens before somebody approves its plan: site-agent plan show {study}."
            approved = self.desk.ledger.in_force(study)
            self._report(study, "granted by the study lead", detail="Its plan is approved." if approved else step)
        for study in news.ungranted:
            self._report(study, "taken away by the study lead", detail="Nothing more is made or sent of it.")
        for name in news.leads:
            self._report("", "the study's leads have changed", detail=name)

    def _reconcile(self, egress: Egress, studies: Sequence[str]) -> None:
        """Hold what was delivered against the coordinator's word, mend what it has forgotten; once a day, see its log.

        Raises: NetworkRefusal.
        """
        answers, replies, settlements = {}, self.desk.replies, list[reconciliation.Settled]()
        before = len(replies.restorations()) if replies is not None else 0
        # Also of what this site has left, or was taken out of: what was withdrawn then must not be shown again.
        for study in sorted({hold.study for hold in self.desk.ledger.holds()}):
            ended = study not in studies
            try:
                answers[study] = answer = egress.held(study)
                found = reconciliation.compare(self.desk, study, answer)
                if self.dry_run:
                    for one in found:
                        self._report(study, one.what, wave=one.wave, detail=one.release_id[:8])
                    continue
                left = reconciliation.last_look(self.desk).get("left", {}).get(study)
                if not found and not left and not reconciliation.heads_forgotten(self.desk, answer):
                    continue
                with self.desk.locked():
                    settled = reconciliation.settle(self.desk, egress, study, answer)
                    settlements.append(settled)
            except NetworkRefusal:
                raise
            except Refusal as refusal:
                if not (ended and isinstance(refusal, RoleRefusal)):  # who knows nothing of it shows nothing of it
                    self.refused(study, "not compared", refusal)
                continue
            if settled.proven:
                self._report(study, "ledger proven anew", detail="the coordinator had forgotten heads of it")
            for one in settled.mended:
                self._report(study, f"mended: {one.what}", wave=one.wave, detail=one.release_id[:8])
            for one in settled.left:
                detail = (
                    f"{one.release_id[:8]}. {one.why}" if one.why else f"{one.release_id[:8]}. Tell the study lead."
                )
                code = "" if ended else IntegrityRefusal.code
                self._report(study, one.what, wave=one.wave, detail=detail, code=code)
        for settled in settlements:  # every study has been asked
            settled.require_carried()
        answers = {study: answer for study, answer in answers.items() if study in studies}
        if self.dry_run or not answers or reconciliation.looked(self.desk, self.now.today):
            return
        try:
            for one in reconciliation.watch(self.desk, egress, answers, self.now.today):
                self._report(
                    one.study,
                    one.what,
                    wave=one.wave,
                    detail=f"{one.release_id[:8]}. Tell the study lead.",
                    code=IntegrityRefusal.code,
                )
        except NetworkRefusal:
            raise
        except Refusal as refusal:
            self.refused("", "log not followed", refusal)
        for restored in (replies.restorations() if replies is not None else ())[before:]:
            detail = f"to {restored.size} entries, on {restored.day}: {restored.reason}"
            self._report("", "the coordinator was put back from a backup", detail=detail)

    # -- what waits in the outbox -------------------------------------------------------------------------------
    def _send_revocations(self) -> None:
        from site_agent.decide.airlock import standing_approval

        try:
            for noted in standing_approval.send_revocations(self.desk):
                detail = f"standing approval {noted.digest[:8]}"
                self._report(noted.study, "told of a revocation", detail=detail)
        except Refusal as refusal:
            self.refused("", "revocation not told", refusal)

    def _bury_withdrawn(self) -> None:
        from site_agent.decide.airlock import taking_back

        for hold in self.desk.ledger.holds():
            if hold.withdrawal is None or hold.withdrawal.settled or not hold.left or self.desk.paused:
                continue
            if self.dry_run:
                self._say_of(hold, "would tell of a withdrawal")
                continue
            try:
                taking_back.bury(self.desk, hold.release_id)
                self._say_of(hold, "told of a withdrawal")
            except Refusal as refusal:
                self.refused(hold.study, "withdrawal not told", refusal, hold.wave, hold.release_id)

    def _send_approved(self) -> None:
        for hold in self.desk.outbox.list():
            if hold.state not in ("held", "approved") or self.desk.paused:
                continue
            if hold.state == "held":
                try:
                    if not self.dry_run:
                        self._advance(hold)
                except Refusal as refusal:
                    self.refused(hold.study, "not approved", refusal, hold.wave, hold.release_id)
            elif self.dry_run:
                self._say_of(hold, "would send")
            else:
                self._send(hold)

    def _say_of(self, hold: Hold, what: str) -> None:
        self._report(hold.study, what, wave=hold.wave, detail=hold.release_id[:8])

    def _advance(self, hold: Hold) -> str:
        """Approve what a standing approval is good for, and send it; or the limit that failed."""
        from site_agent.decide.airlock import standing_approval

        found = standing_approval.approve_by_standing(self.desk, hold.release_id, self.now)
        if found.limit:
            refusal = ApprovalRefusal(found.limit)
            self.desk.note_refusal("standing approval", refusal, release_id=hold.release_id, agent=True)
        if found.used:
            detail = f"{hold.release_id[:8]}, by the standing approval of {found.used}"
            self._report(hold.study, "approved", wave=hold.wave, detail=detail)
        if found.hold.state == "approved":
            self._send(found.hold)
        return found.limit

    def _send(self, hold: Hold) -> None:
        from site_agent.decide.airlock import approval

        try:
            approval.send(self.desk, hold.release_id, self.now)
            self._say_of(hold, "sent")
        except Refusal as refusal:
            self.refused(hold.study, "not sent", refusal, hold.wave, hold.release_id)

    # -- what is due --------------------------------------------------------------------------------------------
    def _release(self, study: str) -> None:
        """Make the release of the wave that is due, if one is."""
        from site_agent.decide.airlock import standing_approval
        from site_agent.release.pipeline import making

        wave: int | None = None
        if self.desk.ledger.left_study(study):
            return
        try:
            plan, _ = self.desk.plans.approved(study, self.now)
            found = due(plan, self.desk.ledger.holds(study), self.now.today)
            if found is None:
                return
            wave = found.number
            source = self.desk.config.source(study)
            standing_approval.require_approved_ahead(self.desk, plan, self.now)
            if self.dry_run:
                self._report(study, "would release", wave=wave)
                return
            with self.desk.locked(), self.desk.egress() as egress:
                made = making.make_release(
                    plan=plan, wave=wave, source=source, site=self.site(egress), today=self.now.today
                )
            limit = self._advance(made.hold)
            hold = self.desk.outbox.get(made.hold.release_id)
            if hold.state == "held":
                why = f"The standing approval was not used: {limit}. " if limit else ""
                step = f"{why}Run site-agent outbox show {hold.release_id[:8]}."
                self._report(study, "waits for a person", wave=wave, detail=step)
        except Refusal as refusal:
            self.refused(study, "not released", refusal, wave)

    def _prepare(self, study: str, what: Callable[[StudyPlan], bool]) -> None:
        """Fetch the flow of a plan, or take part in its training."""
        try:
            plan, _ = self.desk.plans.approved(study, self.now)
        except Refusal:
            return  # said where a wave is due
        try:
            if what(plan):
                self._train(plan)
        except Refusal as refusal:
            self.refused(study, "no part in the training", refusal)

    def _forget(self, study: str) -> None:
        """Delete the frames of a network whose last planned wave was closed longer ago than `_GRACE`.

        By this machine's own clock: where that is further ahead than `_GRACE`, they are deleted too early, for good.

        Raises: any `Refusal`.
        """
        if any(self.now.today <= wave.closes + _GRACE for wave in self.desk.plans.plan(study).waves):
            return
        if not self.dry_run:
            from site_agent.release.embeddings import EmbeddingStore

            with self.desk.locked():
                EmbeddingStore(self.desk.home, study).forget(self.desk.ledger)
        what = "would delete the frame of its network" if self.dry_run else "deleted the frame of its network"
        self._report(study, what, detail=f"its last wave closed more than {_GRACE.days} days ago")

    def _train(self, plan: StudyPlan) -> None:
        """Answer what a training asks, or fetch the flow that a plan names. Raises: any `Refusal`."""
        from site_agent.release import trained_flow
        from site_agent.training import rounds
        from site_agent.training.part import ended

        if plan.release.follow:
            self._give(plan)
            return
        if plan.flow:
            if trained_flow.flow_path(self.desk.home, plan.flow.removeprefix(PREFIX)).exists():
                return
            if not self.dry_run:
                with self.desk.locked(), self.desk.egress() as egress:
                    rounds.fetch(plan, egress, self.desk.home)
            self._report(plan.study, "would fetch its flow" if self.dry_run else "fetched its flow")
            return
        if ended(self.desk.ledger, plan):
            return
        if self.dry_run:
            self._report(plan.study, "would take part in its training")
            return
        began: set[tuple[str, int]] = set()
        limit = time.monotonic() + LONGEST

        def progress(what: str, number: int) -> None:
            began.add((what, number))  # the same thing again is no progress, whatever the coordinator asks
            detail = f"round {number}" if number else f"all {plan.federated.rounds if plan.federated else 0} rounds"
            self._report(plan.study, f"training {what}", detail=detail)

        while True:
            known = len(began)
            with self.desk.egress() as egress:
                rounds.take_part(
                    self._participant(plan, egress),
                    home=self.desk.home,
                    wait=min(PATIENCE, max(0.0, limit - time.monotonic())) if began else 0.0,
                    progress=progress,
                    until=limit,
                )
            if len(began) == known or time.monotonic() >= limit or ended(self.desk.ledger, plan):
                return

    def _participant(self, plan: StudyPlan, egress: Egress) -> Participant:
        """This site in what several sites do together under a plan, while a connection is open."""
        from site_agent.training.rounds import Participant

        return Participant(
            plan=plan,
            source=self.desk.config.source(plan.study),
            site=self.site(egress),
            door=egress,
            today=self.now.today,
            locked=self.desk.locked,
        )

    def _give(self, plan: StudyPlan) -> None:
        """Answer what a sum asks; from the offer of its keys this process stays until it has given all, or is lost."""
        from site_agent.training.secure_sum.giving import give
        from site_agent.training.secure_sum.member import awaited

        if not awaited(self.desk.ledger, plan):
            return
        if self.dry_run:
            self._report(plan.study, "would take part in its sum")
            return

        def progress(what: str, step: SumStep) -> None:
            command = f"site-agent consent {plan.study} --as NAME --dry-run"
            detail = f"Run {command}." if what == "waits for consent" else step.title
            self._report(plan.study, f"sum {what}", detail=detail)

        with self.desk.egress() as egress:
            try:
                give(self._participant(plan, egress), progress=progress)
            except StateRefusal as refusal:
                if refusal.must != PASSED_BY:
                    raise
                self._report(plan.study, "sum went on without this site", detail=refusal.next_step)
