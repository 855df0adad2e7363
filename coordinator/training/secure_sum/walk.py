"""Steps of a secure sum, one by one, with the sites that dial in: each is ordered from all that remain.

All that was asked and answered is in the coordinator's database. A process that goes on takes from it who was asked in
the step that came last, and so which answers count; the messages of `shared.mechanisms.secure_sum.coordinator` are
worked out anew from these. A site that gives nothing until a step's time is over is lost to the sum; with fewer than
the terms' threshold the walk ends, and nothing is opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.pooling.secure_sum.looks import PilotPlaces, pilot_places
from coordinator.services.collect.sum_queue import SumQueue
from shared.base.clock import utc_now
from shared.base.failpoints import reach
from shared.errors import PlanRefusal, Refusal, StateRefusal, require
from shared.mechanisms.secure_sum.coordinator import SumCoordinator
from shared.mechanisms.secure_sum.messages import (
    KeyOffer,
    Lists,
    MaskedValue,
    Opening,
    SealedShares,
    SumAssent,
    ToldLevel,
)
from shared.mechanisms.secure_sum.opened import OpenedSum, SumPart
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.secure_sum.steps import LookOrder, SiteAnswer, SumStep

if TYPE_CHECKING:
    from coordinator.store.store import AcceptedRelease, Store
    from shared.base.keys import SigningKey
    from shared.plans.plan import StudyPlan

__all__ = ["StepProgress", "ready", "run_sum", "sum_plan"]

POLL = 0.2
FOLDER = "sums"


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """A step's progress, by the names of sites.

    Args:
        answered: sites with a valid answer. lost: the others, to the code of the reason; ``late`` after its time.
    """

    step: SumStep
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    lost: Mapping[str, str]


def sum_plan(plan: StudyPlan) -> SecureSumPlan:
    """Secure-sum settings of the plan. Raises: PlanRefusal, where it has none."""
    if not isinstance(plan.release, SecureSumPlan):
        raise PlanRefusal(
            "the study's newest plan must have a secure sum for its sites to give one",
            given=f"version {plan.version}, {plan.release.mechanism}",
            next_step="See docs/operators-manual.md, A secure sum.",
        )
    return plan.release


def ready(store: Store, plan: StudyPlan) -> tuple[dict[int, AcceptedRelease], dict[str, str]]:
    """The pilots by the place of their site, and of each member without one that counts why, in a few words."""
    release = sum_plan(plan)
    joined = {site.site: site for site in store.sites() if site.state == "accepted"}
    pilots = {
        one.site: one for one in store.releases(plan.study, plan.waves[0].number) if one.receipt.plan_hash == plan.hash
    }
    found, without = {}, {}
    for place, (name, key) in enumerate(release.members.items()):
        if name not in joined:
            without[name] = "has not joined"
        elif joined[name].release_key.hex != key:
            without[name] = "has another release key than the plan's"
        elif name not in pilots:
            without[name] = "has delivered no pilot under this plan"
        else:
            found[place] = pilots[name]
    return found, without


def run_sum(
    store: Store,
    plan: StudyPlan,
    key: SigningKey,
    *,
    timeout: float = 3600.0,
    without: Collection[str] = (),
    progress: Callable[[StepProgress], None] = lambda step: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> OpenedSum:
    """Take the sum of a plan with the sites that dial in, or go on with it; what was opened is then kept, for good.

    Args:
        store: the coordinator's, in whose home folder one process holds the sum.
        key: the coordinator's witness key, which signs every order.
        timeout: seconds that a step waits for its last site.
        without: members that are not waited for, though their pilots are not here.
        progress: is told each step as answers come in.
        sleep, clock: of the waiting, in seconds.
    Raises: StateRefusal (too few sites in a step: nothing is opened), PlanRefusal, IntegrityRefusal (a false share, or
        another process that runs it), LockedRefusal, EstimateRefusal (the pilots tell nothing together).
    """
    from coordinator.training.dialled import alone

    sum_plan(plan)
    with alone(store.home / FOLDER / plan.study / plan.hash[:16]):
        known = store.opened_sum(plan.hash)
        if known is not None:
            return known.document
        require(*plan.release.needs, part="coordinator")
        return _Walk(store, plan, key, progress, without).whole(timeout, sleep, clock)


class _Walk:
    """One process's part in the walk."""

    def __init__(
        self,
        store: Store,
        plan: StudyPlan,
        key: SigningKey,
        progress: Callable[[StepProgress], None],
        without: Collection[str],
    ) -> None:
        self._store, self._plan, self._key, self._progress, self._without = store, plan, key, progress, without
        self._release = sum_plan(plan)
        self._names = tuple(self._release.members)
        self._terms = self._release.terms(plan)
        self._queue = SumQueue(store, plan)
        self._sum = SumCoordinator(self._terms)
        self._look_orders: dict[int, LookOrder] = {}
        self._levels: dict[int, ToldLevel] = {}

    def whole(self, timeout: float, sleep: Callable[[float], None], clock: Callable[[], float]) -> OpenedSum:
        """All steps, those that were asked before from what is in the database."""
        contents = self._queue.order_contents(SumStep.LEVEL) or self._asked_levels()
        for step in SumStep:
            self._queue.ask(step, contents, self._key)
            reach("sum.asked")
            further = SumStep(step + 1) if step < SumStep.OPEN else None
            after = self._queue.order_contents(further) if further is not None else {}
            answers = self._answered(step, contents, after) or self._waited(step, contents, timeout, sleep, clock)
            self._take(step, contents, answers)
            if further is not None:
                contents = after or self._contents(further, sorted(answers))
        opened = self._opened()
        self._store.keep_opened(self._plan.study, opened, today=utc_now().date())
        return opened

    # -- one step -----------------------------------------------------------------------------------------------
    def _answered(
        self, step: SumStep, contents: Mapping[int, bytes], after: Mapping[int, bytes]
    ) -> dict[int, SiteAnswer]:
        """The answers that count by who was asked in the step after this one; none where it was not asked yet."""
        if not after:
            return {}
        found = self._queue.answers(step)
        here = {place: one for place, one in found.items() if place in after and not isinstance(one, Refusal | str)}
        if here.keys() != after.keys():
            raise StateRefusal(
                f"what the sites of step {step + 1} answered in step {step} must be in the database",
                given="answers that are not readable any more",
                next_step="Restore the database from its backup. Nothing was opened.",
            )
        return here

    def _waited(
        self,
        step: SumStep,
        contents: Mapping[int, bytes],
        timeout: float,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> dict[int, SiteAnswer]:
        """The answers to a step, once all have come or its time is over. Raises: StateRefusal, below the threshold."""
        until, last = clock() + timeout, -1
        while True:
            over = clock() >= until  # before the look: what comes in between is not lost
            found = self._queue.answers(step)
            here = {
                place: one for place, one in found.items() if not isinstance(one, Refusal | str) and self._good(one)
            }
            if len(found) != last or over:
                last = len(found)
                self._report(step, contents, found, here, over)
            if len(found) == len(contents) or over:
                break
            sleep(POLL)
        if len(here) < self._terms.threshold:
            raise StateRefusal(
                f"{self._terms.threshold} of {len(self._names)} sites must give their {step.title}",
                given=f"{len(here)}",
                next_step="Nothing is opened, and what was charged stays charged. Where sites are only late, run it "
                "again while their agents still wait. Else sum again under a new version of the plan.",
            )
        return here

    def _good(self, answer: SiteAnswer) -> bool:
        """True if an answer is valid by itself, as far as signatures show; a site that sends another is lost."""
        try:
            if isinstance(answer, KeyOffer):
                answer.require(self._terms)
            if isinstance(answer, SealedShares):
                self._sum.require_shares(answer)
            if isinstance(answer, SumAssent):
                self._sum.require_assent(answer)
            if isinstance(answer, Opening):
                self._sum.require_opening(answer)
        except Refusal:
            return False
        return True

    def _report(
        self,
        step: SumStep,
        contents: Mapping[int, bytes],
        found: Mapping[int, SiteAnswer | Refusal | str],
        here: Mapping[int, SiteAnswer],
        over: bool,
    ) -> None:
        lost = {
            place: one if isinstance(one, str) else "E_INTEGRITY" for place, one in found.items() if place not in here
        }
        lost |= {place: "late" for place in contents if over and place not in found}
        self._progress(
            StepProgress(
                step=step,
                asked=tuple(self._names[place] for place in sorted(contents)),
                answered=tuple(self._names[place] for place in sorted(here)),
                lost={self._names[place]: code for place, code in sorted(lost.items())},
            )
        )

    def _take(self, step: SumStep, contents: Mapping[int, bytes], answers: Mapping[int, SiteAnswer]) -> None:
        for place, answer in sorted(answers.items()):
            match answer:
                case ToldLevel():
                    self._levels[place] = answer
                case KeyOffer():
                    self._sum.take_offer(answer)
                case SealedShares():
                    self._sum.take_shares(answer)
                case SumAssent():
                    self._sum.take_assent(answer)
                case MaskedValue():
                    self._sum.take_masked(answer)
                case Opening():
                    self._sum.take_opening(answer)
        # Nobody comes to a list after it: who has answered until now is on it.
        if step == SumStep.OFFER:
            self._look_orders = {place: LookOrder.from_bytes(one, self._terms) for place, one in contents.items()}
            self._sum.roster()
        elif step == SumStep.SEAL:
            self._sum.boxes_for(min(answers))
        elif step == SumStep.MASK:
            self._sum.survivors()

    # -- what is asked ------------------------------------------------------------------------------------------
    def _asked_levels(self) -> dict[int, bytes]:
        pilots, lacking = ready(self._store, self._plan)
        # A site that comes after the first step is in no list any more: whoever goes on without it says so.
        if (late := lacking.keys() - self._without) or len(pilots) < self._terms.threshold:
            few = len(pilots) < self._terms.threshold
            raise StateRefusal(
                f"each of {len(self._names)} sites must have its pilot here, or be left out by name, and "
                f"{self._terms.threshold} at least must be there",
                given="; ".join(f"{name} {why}" for name, why in lacking.items()),
                next_step="Wait for their pilots (coordinator wave status)."
                + ("" if few else f" Or go on without them: --without {' --without '.join(sorted(late))}."),
            )
        named = {place: one.bundle_sha256 for place, one in pilots.items()}
        looks = self._places(pilots).before()
        return {place: LookOrder(look=one, pilots=named).to_bytes(self._terms) for place, one in looks.items()}

    def _contents(self, step: SumStep, sites: list[int]) -> dict[int, bytes]:
        """Content of a step's order to each of these sites, which have answered the step before."""
        match step:
            case SumStep.OFFER:
                return self._weighed(sites)
            case SumStep.SEAL:
                content = self._sum.roster().to_bytes(self._terms)
            case SumStep.JOIN:
                return {site: self._sum.boxes_for(site).to_bytes(self._terms) for site in sites}
            case SumStep.MASK:
                content = self._sum.agreement(Lists.MEMBERS).to_bytes(self._terms)
            case SumStep.AGREE:
                content = self._sum.survivors().to_bytes(self._terms)
            case _:
                content = self._sum.agreement(Lists.SURVIVORS).to_bytes(self._terms)
        return dict.fromkeys(sites, content)

    def _weighed(self, sites: list[int]) -> dict[int, bytes]:
        """Looks at the levels that these sites reported, by pilots of the first step that still stand."""
        asked = LookOrder.from_bytes(next(iter(self._queue.order_contents(SumStep.LEVEL).values())), self._terms)
        here, _ = ready(self._store, self._plan)
        pilots = {place: one for place, one in here.items() if asked.pilots.get(place) == one.bundle_sha256}
        sites = [site for site in sites if site in pilots]
        if len(sites) < self._terms.threshold:
            raise StateRefusal(
                f"{self._terms.threshold} of {len(self._names)} sites must still have their pilot here",
                given=f"{len(sites)}",
                next_step="Nothing is opened: pilots were taken back. Sum again under a new version of the plan.",
            )
        named = {place: one.bundle_sha256 for place, one in pilots.items()}
        levels = {site: (self._levels[site].events, self._levels[site].charges) for site in sites}
        looks = self._places(pilots).after(levels)
        return {place: LookOrder(look=one, pilots=named).to_bytes(self._terms) for place, one in looks.items()}

    def _places(self, pilots: Mapping[int, AcceptedRelease]) -> PilotPlaces:
        tables = {place: (self._store.table(one), one.receipt.n) for place, one in pilots.items()}
        return pilot_places(self._plan, tables)

    # -- the end ------------------------------------------------------------------------------------------------
    def _opened(self) -> OpenedSum:
        total = self._sum.total()
        survivors, agreed = self._sum.survivors(), self._sum.agreement(Lists.SURVIVORS)
        parts = {
            place: SumPart(
                look=self._look_orders[place].look,
                events=self._levels[place].events,
                charges=self._levels[place].charges,
            )
            for place in survivors.sites
        }
        opened = OpenedSum(
            terms=self._terms,
            pilots=next(iter(self._look_orders.values())).pilots,
            parts=parts,
            members=self._sum.members_digest,
            signatures=agreed.signatures,
            total=tuple(float(one) for one in total),
        )
        opened.verify(self._plan)
        return opened
