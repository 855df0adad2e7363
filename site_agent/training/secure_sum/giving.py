"""This site's steps in a secure sum: what is verified, consented to, begun, sealed and sent, in order.

The site asks; what it is asked with is verified before anything is begun. Then, step by step:

1. `LEVEL`: two noisy counts, charged with the pilot; their noise is drawn when the step's beginning is witnessed;
2. `OFFER`: the order says from where the site's records will be looked at, from which all that it will add follows. It
   lies beside the release until as many approvers have consented in the ledger as the release needed;
3. the six messages of `shared.mechanisms.secure_sum.site`. `MASK` begins in the ledger, witnessed, before the noise of
   its numbers is drawn: from there on the sum counts as released by this site.

Each answer is on disk and sealed in the ledger before it leaves, and the same bytes go out again after a lost reply.
The secrets are in this process alone: where it ends before the last step, its site is a drop-out of this sum, charged.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.failpoints import reach
from shared.base.randomness import secure_rng
from shared.errors import (
    IntegrityRefusal,
    LockedRefusal,
    NetworkRefusal,
    Refusal,
    ReplayRefusal,
    SchemaRefusal,
    StateRefusal,
    TrainingRefusal,
    machine_failures,
    require,
)
from shared.mechanisms.secure_sum.influences import noisy_level
from shared.mechanisms.secure_sum.messages import Agreement, Roster, SealedShares, Survivors, ToldLevel
from shared.mechanisms.secure_sum.site import SumSite
from shared.mechanisms.secure_sum.steps import LookOrder, SiteAnswer, SumStep
from shared.wire.rounds import PASSED_BY, RoundOrder, number_of, place_of, step_of
from site_agent.ledger.files import private_folder, sealed_answer, write_whole
from site_agent.training.secure_sum.member import (
    NEXT_SUM,
    ORDER,
    PASSED,
    OwnRecords,
    SumMember,
    member_of,
    what_it_costs,
)

if TYPE_CHECKING:
    from shared.base.randomness import Noise
    from shared.plans.plan import StudyPlan
    from site_agent.config import TableSource
    from site_agent.release.site import WorkingSite
    from site_agent.training.rounds import Participant, RoundDoor

__all__ = ["HELD", "SumStepProgress", "SumWork", "give"]

HELD = 4200.0
"""Seconds that a process waits for the next step while its secrets are in memory: the coordinator's hour, and more."""
SOONEST, LATEST = 0.1, 5.0
DROPPED_OUT = TrainingRefusal.code
"""Reply for a step that this site cannot answer any more: its secrets are gone."""

SumStepProgress = Callable[[str, SumStep], None]
"""Called with what was done (``answered``, ``sent again``, ``waits for consent``, ``dropped out``, ``too
late``) and the step."""


@machine_failures()
def give(
    own: Participant,
    *,
    wait: float = 0.0,
    held: float = HELD,
    progress: SumStepProgress = lambda what, step: None,
) -> None:
    """Answer what is asked, until this site has given all, or nothing new has been asked for `wait` seconds.

    From the offer of its keys until its opening a process waits `held` seconds instead.

    Raises: StateRefusal (the sum went on without this site; noted beside the release), any other `Refusal`; nothing is
        lost by it while the process lives and no keys were offered.
    """
    plan, door = own.plan, own.door
    require(*plan.release.needs)
    work = SumWork(plan, own.source, own.site, door, own.rng, progress)
    began = time.monotonic()
    asked, pause = began, SOONEST
    known: set[str] = set()
    while True:
        own.site.require_running()
        plan.require_current(own.today + dt.timedelta(seconds=time.monotonic() - began))
        end = asked + (max(wait, held) if work.holding else wait)
        try:
            found = work.next_order()
            if found is not None and found[0].plan_hash == plan.hash:
                with own.locked():
                    over = work.answer(*found)
                if over:
                    return
                if found[0].digest not in known:
                    known.add(found[0].digest)
                    asked, pause = time.monotonic(), SOONEST
                    continue
        except (NetworkRefusal, LockedRefusal):
            if time.monotonic() >= end:
                raise
        if time.monotonic() >= end:
            return
        time.sleep(pause)
        pause = min(1.5 * pause, LATEST)


class SumWork:
    """One process's part in one sum: it alone has its secrets."""

    def __init__(
        self,
        plan: StudyPlan,
        source: TableSource,
        site: WorkingSite,
        door: RoundDoor,
        rng: Noise | None,
        progress: SumStepProgress,
    ) -> None:
        self.plan, self.source, self.at, self.door, self.rng, self.progress = plan, source, site, door, rng, progress
        self.ledger = site.ledger
        self._sum: SumSite | None = None
        self._order: LookOrder | None = None
        self._ready: dict[str, Callable[[], SiteAnswer]] = {}
        """Digest of a verified order to the function that makes its answer: a step of the sum cannot be taken twice."""
        self._made: dict[str, bytes] = {}
        """Digest of an order to its answer, as long as the step is not sealed."""
        self._undrawn: set[int] = set()
        """Steps begun by this process for which it has certainly drawn nothing yet."""

    @property
    def holding(self) -> bool:
        """True if this process has secrets that the sum still needs."""
        return self._sum is not None

    def next_order(self) -> tuple[RoundOrder, bytes] | None:
        """What is asked of this site now. Raises: StateRefusal, where the sum went on without it: for good."""
        hold = member_of(self.ledger, self.at.name, self.plan).hold
        folder = self.ledger.folder(hold)
        try:
            found = self.door.next_round(self.plan.study)
            if found is not None:
                (folder / PASSED).unlink(missing_ok=True)
            return found
        except StateRefusal as refusal:
            if not refusal.must.startswith(PASSED_BY):  # by the channel a refusal is one sentence
                raise
            private_folder(folder)
            write_whole(folder / PASSED, canonical_json({"said": refusal.must}), "sum.passed")
            self._sum = None
            raise StateRefusal(
                PASSED_BY, given="one that the sum went on without", next_step=f"{what_it_costs(hold)} {NEXT_SUM}"
            ) from None

    def answer(self, said: RoundOrder, content: bytes) -> bool:
        """Answer a verified order, once. Returns: whether nothing more will be asked of this process."""
        member = member_of(self.ledger, self.at.name, self.plan)
        step = _step(said, member)
        known = member.hold.begun.get(step)
        if known is not None and known.asked != said.digest:
            raise ReplayRefusal(
                "a step of a sum must be asked with what it was asked with before",
                given=f"step {step} with another order",
                next_step="Nothing was given. Tell the study lead.",
            )
        if known is not None and known.answer:
            self._send(
                said,
                sealed_answer(self.ledger.folder(member.hold) / _file(step), known.answer, f"step {step.value}"),
                "",
            )
            self.progress("sent again", step)
            return step == SumStep.OPEN
        gone = step > SumStep.OFFER and self._sum is None
        if (known is not None and step not in self._undrawn and said.digest not in self._made) or gone:
            return self._drop_out(member, said, step)
        if step == SumStep.OFFER and not self._consented(member, said, content):
            self.progress("waits for consent", step)
            return False
        try:
            if said.digest not in self._ready:
                self._ready[said.digest] = self._verified(member, step, content)
        except (IntegrityRefusal, SchemaRefusal, ReplayRefusal) as refusal:
            with suppress(Refusal):  # the reason is what this site has to say, whether or not it can be told
                self._send(said, b"", refusal.code)
            raise
        self._give(member, said, step, self._ready[said.digest])
        self.progress("answered", step)
        return step == SumStep.OPEN

    def _drop_out(self, member: SumMember, said: RoundOrder, step: SumStep) -> bool:
        """The step is begun without an answer, for good: the ledger says that this site has left the sum."""
        if step not in member.hold.begun:
            self.ledger.begin_round(member.hold, step, said.digest)
        self._send(said, b"", DROPPED_OUT)
        self.progress("dropped out", step)
        return True

    # -- before anything is begun -----------------------------------------------------------------------------------
    def _consented(self, member: SumMember, said: RoundOrder, content: bytes) -> bool:
        """True if enough approvers have consented to this order; if not, it is written beside the release for them."""
        LookOrder.from_bytes(content, member.terms)
        hold = member.hold
        if hold.consent == said.digest and len(hold.consents) >= hold.approvals_needed:
            return True
        body = canonical_json({"order": said.to_bytes().decode(), "content": content.decode()})
        path = self.ledger.folder(hold) / ORDER
        if not path.exists() or path.read_bytes() != body:  # asked again and again, until somebody has consented
            private_folder(path.parent)
            write_whole(path, body, "sum.order")
        return False

    def _verified(self, member: SumMember, step: SumStep, content: bytes) -> Callable[[], SiteAnswer]:
        """Verify an order, and return the function that makes its answer: no noise is drawn here, and nothing is sent.

        Raises: refusals of the order, and of reading the records.
        """
        terms, rng = member.terms, self.rng
        if step in (SumStep.LEVEL, SumStep.OFFER):
            order = LookOrder.from_bytes(content, terms)
            records = OwnRecords.read(member, self.source, self.at)
            look = records.look(order.look)
            if step == SumStep.LEVEL:
                sigma = member.release.level_event(self.plan).sigma

                def level() -> SiteAnswer:
                    events, charges = noisy_level(look, records.x, records.y, sigma, rng or secure_rng())
                    return ToldLevel(sender=member.place, events=events, charges=charges)

                return level
            self._order = order

            def offer() -> SiteAnswer:
                self._sum = SumSite(terms, member.place, self.ledger.signer, os.urandom)
                return self._sum.offer()

            return offer
        own, order_ = self._sum, self._order
        assert own is not None
        assert order_ is not None
        match step:
            case SumStep.SEAL:
                sealed = own.seal(Roster.from_bytes(content, terms))
                return lambda: sealed
            case SumStep.JOIN:
                joined = own.join(SealedShares.from_bytes(content, terms))
                return lambda: joined
            case SumStep.MASK:
                agreed = Agreement.from_bytes(content, terms)
                own.require_members(agreed)
                steps = OwnRecords.read(member, self.source, self.at).steps(order_.look)
                return lambda: own.mask(agreed, steps, rng or secure_rng())
            case SumStep.AGREE:
                assent = own.agree(Survivors.from_bytes(content, terms))
                return lambda: assent
        opening = own.open(Agreement.from_bytes(content, terms))
        return lambda: opening

    # -- begun, sealed, sent ----------------------------------------------------------------------------------------
    def _give(self, member: SumMember, said: RoundOrder, step: SumStep, made: Callable[[], SiteAnswer]) -> None:
        self.at.require_running()
        if said.digest not in self._made:
            if step not in member.hold.begun:
                self.ledger.begin_round(member.hold, step, said.digest)
                self._undrawn.add(step)
                reach("sum.begun")
            receipt = self.door.anchor(self.ledger.anchor_envelope())
            reach("sum.anchored")
            self.ledger.witness_round(member.hold, step, receipt)
            reach("sum.witnessed")
            self._undrawn.discard(step)
            self._made[said.digest] = made().to_bytes(member.terms)
        content = self._made[said.digest]
        folder = self.ledger.folder(member.hold)
        private_folder(folder)
        write_whole(folder / _file(step), content, "sum.answer")
        self.ledger.seal_round(member.hold, step, sha256_hex(content))
        reach("sum.sealed")
        del self._made[said.digest]
        self._send(said, content, "")
        if step == SumStep.OPEN:
            self._sum = None

    def _send(self, said: RoundOrder, content: bytes, code: str) -> None:
        signer, answer = self.ledger.signer, said.answered(self.at.name, content, code)
        try:
            self.door.answer_round(answer.sign(signer), content, signer.public)
        except StateRefusal:
            # The others went on without it: a drop-out of this sum. The charge stands.
            self._sum = None
            self.progress("too late", SumStep(step_of(said.round)))


def _step(said: RoundOrder, member: SumMember) -> SumStep:
    """The step of an order to this site. Raises: IntegrityRefusal."""
    steps = {number_of(step, member.place): step for step in SumStep}
    if said.kind != "sum" or said.round not in steps:
        raise IntegrityRefusal(
            "an order of a sum must be one of its steps, for this site",
            given=f"step {step_of(said.round)}, for the site at place {place_of(said.round)}",
            next_step="Nothing was given. Tell the study lead.",
        )
    return steps[said.round]


def _file(step: SumStep) -> str:
    return f"sum-{step.value}.json"
