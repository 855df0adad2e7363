"""This site's part in a training that the sites run together: what is charged, begun, sealed and answered, in order.

The site asks; the coordinator only ever answers with numbers. When the first question of a training comes, the *whole*
training is charged and witnessed before a record is read. Then, round by round:

1. the question is verified: the pinned coordinator's signature, study, plan, and that its round was paid for;
2. the round is *begun* in the ledger, and the coordinator witnesses that very entry, which the ledger notes: a ledger
   that was put back could not begin the same round unnoticed;
3. the steps are taken (`site_agent.training.federation`), and the answer is written to disk whole and *sealed* in the
ledger;
4. it leaves by the one door, signed by the site's release key.

A process that is killed before 3 is done gives its round up: nobody can tell whether its noise was drawn, and the
charge stands. One that is killed after 3 sends the same bytes again. So a round has one answer at most, and nothing
leaves that the ledger does not name. All rounds are of one table: it must not change while a training runs.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shared.base.canonical import sha256_hex
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey
from shared.base.randomness import secure_rng
from shared.errors import (
    ApprovalRefusal,
    LockedRefusal,
    NetworkRefusal,
    Refusal,
    ReplayRefusal,
    RoundsRefusal,
    StateRefusal,
    TrainingRefusal,
    machine_failures,
    require,
)
from shared.wire.rounds import RoundOrder, node_id, pack, unpack
from site_agent.config import Limits, TableSource
from site_agent.ledger.charge import Reservation
from site_agent.ledger.files import private_folder, sealed_answer, write_whole
from site_agent.release.trained_flow import flow_path, kept_flow
from site_agent.training.part import charged, training_of, uncovered

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.base.randomness import Noise
    from shared.plans.plan import StudyPlan
    from shared.wire.site_messages import RoundReceipt
    from site_agent.ledger.book import AnchoredHead, Hold
    from site_agent.release.site import WorkingSite

__all__ = ["Participant", "fetch", "take_part"]

GIVEN_UP = TrainingRefusal.code
"""Reply for a round that was begun and has no answer: without a reason."""
SOONEST, LATEST = 0.1, 5.0
"""Seconds between two looks into the queue: soon after a round, less and less often while nothing comes."""


class RoundDoor(Protocol):
    """The part of `Egress` that a training needs."""

    def anchor(self, envelope: Envelope) -> AnchoredHead:
        """Have the coordinator acknowledge the ledger's head."""
        ...

    def next_round(self, study: str, flow: str = "") -> tuple[RoundOrder, bytes] | None:
        """The current order, or the finished flow of that digest, verified."""
        ...

    def answer_round(self, answer: Envelope, content: bytes, key: PublicKey) -> RoundReceipt:
        """Send an answer."""
        ...


RoundProgress = Callable[[str, int], None]
"""Called with what was done (``charged``, ``answered``, ``sent again``, ``given up``, ``too late``, ``finished``) and
the round."""


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A site as it takes part in the rounds of one plan.

    Args:
        plan: approved at this site (`Plans.approved`), with rounds that all sites run together.
        source: the study's table.
        site: ledger, keys and floors.
        today: UTC date at the start.
        locked: holds the folder as its only agent, while a round is worked on and not while one is waited for.
        rng: source of the privacy noise; None takes one of the operating system's, keyed anew for each round.
    """

    plan: StudyPlan
    source: TableSource
    site: WorkingSite
    door: RoundDoor
    today: dt.date
    locked: Callable[[], AbstractContextManager[None]]
    rng: Noise | None = None


@machine_failures()
def take_part(
    own: Participant,
    *,
    home: Path,
    wait: float = 0.0,
    until: float = math.inf,
    progress: RoundProgress = lambda what, round_: None,
) -> None:
    """Answer what is asked, until the training has ended, or nothing has been asked for `wait` seconds.

    Args:
        home: the site's folder; the finished flow is put there.
        wait: how long to wait for the next question; 0 answers what is asked now.
        until: nothing is begun after this time (`time.monotonic`).
    Raises: any `Refusal`; nothing is lost by it: the next call goes on.
    """
    plan, door = own.plan, own.door
    training_of(plan)
    require("flwr")  # before the charge
    work = _Work(plan, own.source, own.site, door, home, own.rng, progress)
    began = time.monotonic()
    end, pause = began + wait, SOONEST
    known: set[str] = set()
    while True:
        own.site.require_running()
        plan.require_current(own.today + dt.timedelta(seconds=time.monotonic() - began))
        try:
            found = door.next_round(plan.study)
            if found is not None and found[0].plan_hash == plan.hash:
                with own.locked():
                    if found[0].kind == "finished":
                        work.finish(*found)
                        return
                    work.answer(*found)
                # A question that was answered is sent its bytes again, but keeps nobody busy: no new time for it.
                if found[0].digest not in known:
                    known.add(found[0].digest)
                    end, pause = time.monotonic() + wait, SOONEST
                    if time.monotonic() < until:
                        continue
        except (NetworkRefusal, LockedRefusal):
            if time.monotonic() >= min(end, until):
                raise
        if time.monotonic() >= min(end, until):
            return
        time.sleep(pause)
        pause = min(1.5 * pause, LATEST)


def fetch(plan: StudyPlan, door: RoundDoor, home: Path) -> bool:
    """Have the flow that a plan names at this site; whether it had to be fetched.

    Raises: PlanChanged (the coordinator has another one); StateRefusal (it has none); NetworkRefusal.
    """
    from shared.plans.federated import PREFIX, FederatedFlow

    path = flow_path(home, plan.flow.removeprefix(PREFIX))
    if path.exists():
        kept_flow(home, plan.flow)
        return False
    found = door.next_round(plan.study, path.stem)
    if found is None or found[0].kind != "finished":
        raise StateRefusal(
            "the coordinator must have the flow that the plan names", given="none yet", next_step="Ask the study lead."
        )
    FederatedFlow.from_bytes(found[1], name=plan.flow)
    private_folder(path.parent)
    write_whole(path, found[1], "federate.flow")
    return True


class _Work:
    """One process's part in one training: it reads the records once."""

    def __init__(
        self,
        plan: StudyPlan,
        source: TableSource,
        site: WorkingSite,
        door: RoundDoor,
        home: Path,
        rng: Noise | None,
        progress: RoundProgress,
    ) -> None:
        self.plan, self.source, self.at, self.door, self.home = plan, source, site, door, home
        self.rng, self.progress, self.ledger = rng, progress, site.ledger
        self._encoded: NDArray[np.float64] | None = None
        self._undrawn: set[int] = set()
        """Rounds begun by this very process that it has surely not drawn: the coordinator did not witness them yet."""

    # -- one question -------------------------------------------------------------------------------------------
    def answer(self, said: RoundOrder, content: bytes) -> None:
        """Answer a verified question, once."""
        federated = training_of(self.plan)
        if said.round > federated.rounds:
            raise RoundsRefusal(
                f"a training must have at most the {federated.rounds} rounds that were charged",
                given=f"round {said.round}",
                next_step="Nothing was drawn. More rounds need a new version of the plan, and a new charge.",
            )
        try:
            weights = _asked_weights(self.plan, content)
        except Refusal as refusal:
            self._send(said, b"", refusal.code)
            raise
        hold = self._paid()
        known = hold.begun.get(said.round)
        if known is not None and known.asked != said.digest:
            raise ReplayRefusal(
                "a round must be asked with the weights that it was asked with before",
                given=f"round {said.round} with others",
                next_step="Nothing was drawn. Tell the study lead.",
            )
        fresh = known is None or said.round in self._undrawn
        what = "answered" if fresh else "sent again" if known and known.answer else "given up"
        if fresh:
            refused = self._train(hold, said, weights)
            hold = self.ledger.hold(hold.release_id)
            known = hold.begun.get(said.round)
            what = what if refused is None else "given up"
            if known is None:  # not even begun: a question that cannot be answered
                assert refused is not None
                self._send(said, b"", refused.code)
                raise refused
        assert known is not None
        self._send(said, self._sealed(hold, said.round) if known.answer else b"", "" if known.answer else GIVEN_UP)
        self.progress(what, said.round)

    def _send(self, said: RoundOrder, content: bytes, code: str) -> None:
        answer = said.answered(self.at.name, content, code)
        signer = self.ledger.signer
        try:
            self.door.answer_round(answer.sign(signer), content, signer.public)
        except StateRefusal:
            # The others went on without it. The charge stands, and the next round is asked of this site as well.
            self.progress("too late", said.round)

    def _paid(self) -> Hold:
        """The training's hold, charged and witnessed, its persons bound: before its first round, and once."""
        plan, ledger = self.plan, self.ledger
        before = charged(ledger, plan)
        if before is not None and before.phase == "burnt":
            raise StateRefusal(
                "this site's part in a training must not have been ended",
                given=f"one that was: {before.reason or before.state}",
                next_step="Its charge stays. To take part again needs a new version of the plan, and a new charge.",
            )
        self._require_approvers()
        hold = self._reserved() if before is None else before
        reach("federate.reserved")
        if hold.state == "reserved":
            hold = ledger.mark_anchored(hold, self.door.anchor(ledger.anchor_envelope()))
            reach("federate.anchored")
        if hold.state == "anchored":
            hold = self._bound(hold)
            self.progress("charged", 0)
        if hold.state != "training":
            raise StateRefusal(
                "a training must be under way for a round to be answered",
                given=hold.state,
                next_step="See site-agent budget.",
            )
        return hold

    def _require_approvers(self) -> None:
        """Refuse a training with fewer approvers of its plan than a release needs: no person sees its rounds.

        The plan's approval is all that a person ever signs for them. Raises: ApprovalRefusal.
        """
        plan, limits = self.plan, self._limits
        needed = max(limits.approvals, 2 if limits.author_apart else 1)
        names: set[str] = set()
        for entry in self.ledger.entries() if needed > 1 else ():
            if entry.kind == "plan_approved" and entry.body["plan_hash"] == plan.hash:
                names.add(entry.body["name"])
            elif entry.kind == "plan_revoked" and entry.body["study"] == plan.study:
                names.clear()
        if 1 < needed > len(names):
            raise ApprovalRefusal(
                f"{needed} people must have approved the plan: it stands for every round of its training",
                given=f"{len(names)}: {', '.join(sorted(names)) or 'nobody'}",
                next_step=f"Another approver runs site-agent plan approve {plan.study} --as NAME.",
            )

    def _reserved(self) -> Hold:
        plan, federated = self.plan, training_of(self.plan)
        return self.ledger.reserve(
            Reservation(
                study=plan.study,
                plan_hash=plan.hash,
                wave=0,
                release_id=secrets.token_hex(16),
                event=federated.event.to_canonical(),
                delta=plan.budget.delta,
                cap_epsilon=plan.budget.epsilon,
                uncovered=uncovered(plan),
                site_cap_epsilon=self.at.budget.epsilon,
                site_delta=self.at.budget.delta,
                rounds=federated.rounds,
            )
        )

    def _bound(self, hold: Hold) -> Hold:
        from site_agent.records import table as records

        self._read(hold)
        as_written = self.ledger.as_written(self.plan.study)
        space = records.person_space(
            self.source, self.plan.dictionary, key=self.at.secret(self.plan.study), as_written=as_written
        )
        hold = self.ledger.start_training(hold, self._persons, space=space, snapshot=self._snapshot)
        reach("federate.bound")
        return hold

    def _read(self, hold: Hold) -> None:
        """Records of everybody who has not withdrawn, encoded. Raises: SmallN, DataRefusal, StateRefusal, …"""
        from shared.plans.encoding import Encoder
        from site_agent.records import table as records
        from site_agent.release.pipeline.before_draw import before_draw

        plan, key = self.plan, self.at.secret(self.plan.study)
        as_written = self.ledger.as_written(plan.study)
        table = records.read(self.source, plan.dictionary, key=key, as_written=as_written)
        if hold.snapshot and hold.snapshot != table.snapshot:
            raise StateRefusal(
                "the table must not change while a training runs",
                given="a table that has changed since its first round",
                next_step=f"Put that table back until the training has ended, or end this site's part: "
                f"site-agent withdraw {hold.release_id[:8]} --as NAME --reason policy. Its charge stays.",
            )
        everyone = records.row_pseudonyms(table, plan.dictionary, key=key)
        bound = self.ledger.persons(hold) if hold.persons_sha256 else None
        if hold.persons_sha256 and (bound is None or everyone is None):
            raise StateRefusal(
                "persons must be told apart as before the first round",
                given="another way, or a list that was deleted",
                next_step="Put mapping and snapshot.key back as they were, or end this site's part.",
            )
        withdrawn = self.ledger.persons_withdrawn(plan.study)
        rows = [i for i in range(table.n) if everyone is None or _belongs(everyone[i], bound, withdrawn)]
        before_draw(n=len(rows), delta=plan.budget.delta, limits=self._limits)
        self._snapshot = table.snapshot
        self._persons: Sequence[str] | None = None if everyone is None else [everyone[i] for i in rows]
        chosen = table.table.iloc[rows].reset_index(drop=True)
        self._encoded = Encoder(dictionary=plan.dictionary).encode(chosen, self.rng or secure_rng())

    def _present(self) -> NDArray[np.float64]:
        """The records as of this round: those of persons who have withdrawn since the first are not a number.

        They stay as rows, so that the number of records that goes out is the same in every round and tells of nobody's
        withdrawal, and what a sampled one adds to a step is nothing (`site_agent.models.private_flow.clipped_sum`).
        Raises: SmallN, where too few are left.
        """
        from site_agent.release.pipeline.before_draw import before_draw

        assert self._encoded is not None
        if self._persons is None:
            return self._encoded
        withdrawn = self.ledger.persons_withdrawn(self.plan.study)
        away = [person in withdrawn for person in self._persons]
        before_draw(n=len(away) - sum(away), delta=self.plan.budget.delta, limits=self._limits)
        present = self._encoded.copy()
        present[away] = float("nan")
        return present

    @property
    def _limits(self) -> Limits:
        return Limits.of(self.plan.floors, self.at.floors)

    def _train(self, hold: Hold, said: RoundOrder, weights: NDArray[np.float64]) -> Refusal | None:
        """Have the Flower app take the round's steps; None, or why there is no answer.

        Raises: what stops the site and not the round: a pause, a plan that was revoked, an offline coordinator, a table
        that cannot be read.
        """
        from shared.wire import flower
        from site_agent.training.federation import client_app

        if self._encoded is None:
            self._read(hold)
        flower.prepare()
        from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

        record_dict = RecordDict(
            {
                flower.ARRAYS: ArrayRecord({flower.WEIGHTS: flower.vector(weights)}),
                flower.CONFIG: ConfigRecord({"plan": said.plan_hash, "server-round": said.round}),
            }
        )
        me = node_id(self.ledger.signer.public)
        message = flower.addressed(
            record_dict, message_type="train", source=0, target=me, name=said.digest, group=str(said.round)
        )
        own = _Source(self, hold, said, self._present())
        context = Context(run_id=0, node_id=me, node_config={}, state=RecordDict(), run_config={})
        reply = client_app(own)(message, context)
        if own.stopped is not None:
            raise own.stopped
        return flower.refusal(reply.error) if reply.has_error() else None

    # -- what is on disk ----------------------------------------------------------------------------------------
    def begin(self, hold: Hold, said: RoundOrder) -> None:
        """The last step before a round's noise: in the ledger, and witnessed."""
        if said.round not in self._undrawn:
            self.ledger.begin_round(hold, said.round, said.digest)
            self._undrawn.add(said.round)
            reach("federate.begun")
        receipt = self.door.anchor(self.ledger.anchor_envelope())
        reach("federate.anchored_round")
        self.ledger.witness_round(hold, said.round, receipt)
        self._undrawn.discard(said.round)
        reach("federate.witnessed")

    def seal(self, hold: Hold, said: RoundOrder, weights: NDArray[np.float64]) -> None:
        """An answer on disk, and in the ledger: only then may it leave."""
        federated = training_of(self.plan)
        assert self._encoded is not None
        content = pack(weights, {"n": len(self._encoded), "steps": federated.local_steps})
        folder = self.ledger.folder(hold)
        private_folder(folder.parent)
        private_folder(folder)
        write_whole(folder / _file(said.round), content, "federate.answer")
        self.ledger.seal_round(hold, said.round, sha256_hex(content))
        reach("federate.sealed")

    def _sealed(self, hold: Hold, number: int) -> bytes:
        return sealed_answer(self.ledger.folder(hold) / _file(number), hold.begun[number].answer, f"round {number}")

    # -- the end ------------------------------------------------------------------------------------------------
    def finish(self, said: RoundOrder, content: bytes) -> None:
        """Keep the flow that came of it, if it is what its plan gives. Raises: SchemaRefusal, ReceiptRefusal."""
        from shared.plans.federated import FederatedFlow

        flow = FederatedFlow.from_bytes(content)
        flow.require_true(self.plan)
        path = flow_path(self.home, flow.digest)
        if not path.exists():
            private_folder(path.parent)
            write_whole(path, content, "federate.flow")
        hold = charged(self.ledger, self.plan)
        if hold is not None and hold.state == "training":
            self.ledger.end_training(hold, flow.digest)
            reach("federate.ended")
        self.progress("finished", said.round)


class _Source:
    """The site as the Flower app sees it (`site_agent.training.federation.TrainingSource`), for one round."""

    def __init__(self, work: _Work, hold: Hold, said: RoundOrder, present: NDArray[np.float64]) -> None:
        self._work, self._hold, self._said, self._present = work, hold, said, present
        self.stopped: Exception | None = None

    @property
    def plan(self) -> StudyPlan:
        return self._work.plan

    @property
    def site(self) -> str:
        return self._work.at.name

    def answered(self, round_: int) -> tuple[str, NDArray[np.float64]] | None:
        return None  # what was answered before is sent again without asking the app

    def allow(self, round_: int) -> None:
        try:
            self._work.at.require_running()
            self._work.begin(self._hold, self._said)
        except Exception as error:
            self.stopped = error
            raise

    def records(self) -> NDArray[np.float64]:
        return self._present

    def noise(self) -> Noise:
        return self._work.rng or secure_rng()  # keyed anew: an image of this process draws nothing of a round twice

    def keep(self, round_: int, start_digest: str, weights: NDArray[np.float64]) -> None:
        try:
            self._work.seal(self._hold, self._said, weights)
        except Exception as error:
            self.stopped = error
            raise


def _asked_weights(plan: StudyPlan, content: bytes) -> NDArray[np.float64]:
    """The weights in a question's content, looked at before anything is charged or a file of records is opened.

    Raises: SchemaRefusal, TooLarge, TrainingRefusal.
    """
    from shared.plans.encoding import Encoder
    from shared.plans.federated import Shape, usable

    weights, numbers = unpack(content)
    if numbers:
        raise TrainingRefusal("a round must be asked with weights alone", given="further numbers")
    return usable(weights.astype("f8"), Shape.of(Encoder(dictionary=plan.dictionary).d, plan.training))


def _belongs(person: str, bound: frozenset[str] | None, withdrawn: frozenset[str]) -> bool:
    """True if the person is in the set fixed at round 1 (or, before it, has not withdrawn)."""
    return person not in withdrawn if bound is None else person in bound


def _file(number: int) -> str:
    return f"round-{number:05d}.bin"
