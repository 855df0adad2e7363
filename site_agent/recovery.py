"""What a ledger restored from a backup must count as spent before it may go on.

The coordinator knows two things of the time that is missing here: the last head that it witnessed, and the releases
that it holds. Both are turned into charges that are never too few:

* each release that it holds (accepted or quarantined) and this ledger does not know, once, in its study;
* each further draw that the missing entries can have held, in *every* study of the site, because nobody can tell in
  which. A draw needs a reservation, and the agent notes an acknowledged anchor and the start of the drawing before the
  next reservation is anchored: `g` missing entries hold at most ⌊(g + 2) / 3⌋ draws.

The price is the full one of the study's plan, at its dearest version known. Nothing is taken on the coordinator's
word: the last head and every release count only with the signature of this site's own release key under them, so a
hostile coordinator cannot invent a release or a later head. It can hide some. A hidden release is then counted among
the draws that nobody can name, at the full price in every study: the site only spends more carefully. A hidden last
head hides that the ledger is an old copy; against that stands only the log that other people keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from shared.errors import IntegrityRefusal, LedgerRefusal, PlanRefusal, Refusal, StateRefusal
from shared.keys import Envelope
from shared.release import STATEMENT_TYPE, Statement
from shared.wire import ANCHOR_TYPE, AnchorHead, AnchorReceipt, Holding, Holdings
from site_agent.holds import LOST_CAP
from site_agent.ledger import Ledger, Lost

if TYPE_CHECKING:
    from shared.keys import PublicKey
    from shared.plan import StudyPlan
    from shared.privacy import Event
    from site_agent.plans import Plans

__all__ = ["Coordinator", "Recovery", "draws_within", "recover", "survey"]


MISSING_CAP = 100_000
"""More missing entries than any site ever writes: a coordinator's word must not decide how much is counted here."""


class Coordinator(Protocol):
    """What is asked of the coordinator (`site_agent.egress.Egress`)."""

    def fetch_plan(self, study: str) -> Envelope: ...  # noqa: D102
    def holdings(self, study: str) -> Holdings: ...  # noqa: D102
    def anchor(self, envelope: Envelope) -> AnchorReceipt: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What is missing, and what it is charged as.

    Args:
        state: ``whole`` (nothing is missing), ``to count``, ``counted`` (the study lead must allow it), ``done``.
        witnessed: the last head that the coordinator has witnessed; None before the first.
        known: number of the last entry that this ledger knows to be anchored.
        missing: entries between the two.
        unknown: draws that they can have held beyond the releases that the coordinator holds.
        lost: the charges.
        accepted: log place of each release that is known here as well, by id, and that the coordinator accepted.
        fingerprint: of the ledger's head once counted, for the study lead.
    """

    state: str
    witnessed: AnchorReceipt | None
    known: int
    missing: int = 0
    unknown: int = 0
    lost: tuple[Lost, ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()
    fingerprint: str = ""


def draws_within(entries: int) -> int:
    """Most draws that so many consecutive entries of a ledger can have paid for and that may have been made.

    >>> [draws_within(g) for g in (0, 1, 2, 3, 4, 7, 8)]
    [0, 1, 1, 1, 2, 3, 3]
    """
    return (entries + 2) // 3 if entries > 0 else 0


def survey(ledger: Ledger, plans: Plans, door: Coordinator, studies: Iterable[str]) -> Recovery:
    """Compare the ledger with the coordinator's record; change nothing.

    Args:
        studies: all studies that the site was invited to; those of the ledger are added.
    Raises: LedgerRefusal, when the copy is from before an earlier recovery: its charges cannot be bounded by counting;
        IntegrityRefusal, when the last head shown is not signed by this site; any refusal of the coordinator or of a
        plan.
    """
    names = sorted({*studies, *(hold.study for hold in ledger.holds())})
    if not names:
        raise StateRefusal("a site must take part in a study", given="none", next_step="See site-agent status.")
    answers = {study: door.holdings(study) for study in names}
    first = answers[names[0]]
    witnessed, known = _own_head(ledger, first), ledger.anchored()
    if witnessed is None or ledger.holds_head(witnessed):
        return Recovery(state="whole", witnessed=witnessed, known=known)
    done = ledger.recovered(witnessed)
    if done:
        return Recovery(state="counted", witnessed=witnessed, known=known, fingerprint=done)
    if ledger.recoveries() != first.reanchored or witnessed.seq <= known:
        raise LedgerRefusal(
            "a ledger to recover must be from after the last recovery",
            given=f"{ledger.recoveries()} recoveries here, {first.reanchored} at the coordinator",
            next_step="Restore a later backup of ledger.db and ledger.head. Without one, what was spent cannot be "
            "bounded: the site releases nothing more in its studies; call the study lead.",
        )
    if witnessed.seq - known > MISSING_CAP:
        raise LedgerRefusal(
            f"at most {MISSING_CAP} entries may be missing to be counted",
            given=f"{witnessed.seq - known}",
            next_step="Restore a later backup of ledger.db and ledger.head; call the study lead.",
        )
    here = {hold.release_id for hold in ledger.holds()}
    held = [holding for study in names for holding in _own(ledger, study, answers[study])]
    away = [holding for holding in held if holding.release_id not in here]
    unknown = max(draws_within(witnessed.seq - known) - len(away), 0)
    lost: list[Lost] = []
    for study in names:
        priced = _dearest(plans, door, study)
        mine = [holding for holding in away if holding.study == study]
        if priced is None:
            if mine:
                raise StateRefusal("the plan of a held release must be known", given=f"none of {study}")
            continue  # without a signed plan nothing was ever reserved
        lost += [_named(priced, holding) for holding in mine]
        lost += [_named(priced, None, count=min(LOST_CAP, unknown - k)) for k in range(0, unknown, LOST_CAP)]
    return Recovery(
        state="to count",
        witnessed=witnessed,
        known=known,
        missing=witnessed.seq - known,
        unknown=unknown,
        lost=tuple(lost),
        accepted=tuple((h.release_id, h.log_index) for h in held if h.release_id in here and h.log_index is not None),
    )


def _own_head(ledger: Ledger, answer: Holdings) -> AnchorReceipt | None:
    """The last witnessed head, when this site itself has signed exactly it. Raises: IntegrityRefusal."""
    told = answer.anchored
    if told is None:
        return None
    try:
        envelope = Envelope.from_bytes(answer.anchor)
        head = AnchorHead.from_bytes(envelope.require(ANCHOR_TYPE, _release_key(ledger)))
    except Refusal:
        head = None
    if head is None or (head.site, head.seq, head.head) != (ledger.site, told.seq, told.head):
        raise IntegrityRefusal(
            "the last witnessed head must be shown as this site signed it",
            given="one without this site's signature",
            next_step="Nothing is counted on the coordinator's word. Call the study lead.",
        )
    return told


def _own(ledger: Ledger, study: str, answer: Holdings) -> list[Holding]:
    """The releases that this site has signed, each once; what cannot be shown so is not counted as one of them."""
    found: dict[str, Holding] = {}
    for holding in answer.holdings:
        try:
            envelope = Envelope.from_bytes(holding.statement)
            said = Statement.from_bytes(envelope.require(STATEMENT_TYPE, _release_key(ledger)))
        except Refusal:
            continue
        named = (ledger.site, study, holding.study, holding.wave, holding.release_id)
        if (said.site, said.study, said.study, said.wave, said.release_id) == named:
            kept = found.get(said.release_id)
            found[said.release_id] = holding if kept is None or kept.log_index is None else kept
    return list(found.values())


def _release_key(ledger: Ledger) -> dict[str, PublicKey]:
    return {ledger.signer.public.key_id: ledger.signer.public}


def recover(ledger: Ledger, plans: Plans, door: Coordinator, studies: Iterable[str]) -> Recovery:
    """Count what is missing, and have the new head witnessed if the study lead has allowed it; safe to repeat.

    Raises: what `survey` raises; StorageRefusal.
    """
    found = survey(ledger, plans, door, studies)
    if found.witnessed is None:
        return found
    if found.state == "whole":
        if found.known > found.witnessed.seq:  # the coordinator was put back: prove the rest from what it has
            door.anchor(ledger.anchor_envelope(after=found.witnessed.seq))
        return found
    fingerprint = found.fingerprint
    if found.state == "to count":
        fingerprint = ledger.count_lost(found.witnessed, found.lost, accepted=dict(found.accepted))
    try:
        door.anchor(ledger.anchor_envelope())
        state = "done"
    except LedgerRefusal:
        state = "counted"
    return replace(found, state=state, fingerprint=fingerprint)


def _dearest(plans: Plans, door: Coordinator, study: str) -> StudyPlan | None:
    from shared import privacy

    found = list(plans.filed(study))
    try:
        found.append(plans.opened(study, door.fetch_plan(study)))
    except PlanRefusal:
        if not found and plans.highest(study):
            raise
    return max(found, key=lambda plan: privacy.epsilon(_event(plan), plan.budget.delta), default=None)


def _event(plan: StudyPlan) -> Event:
    from shared.release import planned_event

    return planned_event(plan)


def _named(plan: StudyPlan, holding: Holding | None, count: int = 1) -> Lost:
    from shared.release import coverage

    return Lost(
        study=plan.study,
        plan_hash=plan.hash,
        event=_event(plan).to_canonical(),
        delta=plan.budget.delta,
        cap_epsilon=plan.budget.epsilon,
        uncovered=coverage(plan)[1],
        count=count,
        wave=holding.wave if holding else 0,
        release_id=holding.release_id if holding else "",
        log_index=holding.log_index if holding else None,
    )
