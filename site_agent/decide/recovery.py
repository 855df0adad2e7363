"""Charges that a ledger restored from a backup must count as spent before it may go on.

The coordinator knows two things of the time that is missing here: the last head that it witnessed, and the releases
that it holds. Both are turned into charges that are never too few:

* each release that it holds (accepted or quarantined) and this ledger does not know, once, in its study;
* each further draw that the missing entries can have held, in *every* study of the site, because nobody can tell in
  which. A draw needs a reservation, and the agent notes an acknowledged anchor and the start of the drawing before the
  next reservation is anchored: `g` missing entries hold at most ⌊(g + 2) / 3⌋ draws.

A release that the coordinator holds is priced by the plan that its statement names, which this site signed. A draw that
nobody can name may have been of any version: it is charged the largest of their Rényi curves, order by order, and the
largest pure ε. Whichever plan each draw was of, it lost no more than that at any order, and composition adds order by
order, so that the sum bounds every mixture. No version by itself need be the dearest at all orders. Where a plan is not
known, nothing is counted, because any price would be a guess.

Nothing is taken on the coordinator's word: plans count with the study lead's signature, the last head and every release
with the one of this site's own release key, so that a hostile coordinator cannot invent a release or a later head. It
can hide some. One ledger takes more on its word: that of a site which joined anew with new keys, and which nobody has
witnessed yet. It cannot know what its predecessor signed, so every entry that was witnessed counts as if nothing were
known of it: an invented head makes that more, never less. A hidden release is counted among the draws that nobody can
name, in every study. Two things cannot be detected here: a hidden last head (the ledger then does not look like an old
copy), and a more expensive plan version hidden together with every release made under it. So the versions are shown,
and the study lead, who signed them, confirms them before the site may go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from shared.base.canonical import parse_json
from shared.base.failpoints import reach
from shared.base.keys import Envelope
from shared.errors import IntegrityRefusal, LedgerRefusal, PlanRefusal, Refusal, StateRefusal, TooLarge
from shared.releases.statement import STATEMENT_TYPE, Statement
from shared.wire.signed_messages import ANCHOR_TYPE, AnchorHead
from shared.wire.site_messages import AnchorReceipt, Holding, Holdings
from site_agent.ledger.book import Ledger, Lost
from site_agent.ledger.files import RESTORED
from site_agent.ledger.holds import LOST_CAP, undelivered

if TYPE_CHECKING:
    from pathlib import Path

    from shared.base.keys import PublicKey
    from shared.plans.plan import StudyPlan
    from site_agent.decide.plans import Plans
    from site_agent.egress import AcknowledgedReplies

__all__ = ["CoordinatorView", "Recovery", "draws_within", "own_releases", "recover", "survey"]


MISSING_CAP = 100_000
"""More missing entries than any site ever writes: a coordinator's word must not decide how much is counted here."""


class CoordinatorView(Protocol):
    """Calls to the coordinator that a recovery makes (`site_agent.egress.Egress`)."""

    def fetch_plan(self, study: str) -> Envelope: ...  # noqa: D102
    def holdings(self, study: str) -> Holdings: ...  # noqa: D102
    def anchor(self, envelope: Envelope) -> AnchorReceipt: ...  # noqa: D102
    def watch(self) -> object: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Entries missing from a restored ledger, and the charges counted for them.

    Args:
        state: ``whole`` (nothing is missing), ``to count``, ``counted`` (the study lead must allow it), ``done``.
        witnessed: the last head that the coordinator has witnessed; None before the first.
        known: number of the last entry that this ledger knows to be anchored.
        missing: number of entries between the two.
        unknown: most draws that they can have held beyond the releases that the coordinator holds.
        accepted: log place of each release that is known here as well, by id, and that the coordinator accepted; of a
            whole ledger only of those of which it says otherwise.
        fingerprint: of the ledger's head once counted, for the study lead.
        priced: the plan versions of each study that the charges were priced by.
    """

    state: str
    witnessed: AnchorReceipt | None
    known: int
    missing: int = 0
    unknown: int = 0
    lost: tuple[Lost, ...] = ()
    accepted: tuple[tuple[str, int], ...] = ()
    fingerprint: str = ""
    priced: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def draws_within(entries: int) -> int:
    """Most draws that so many consecutive entries of a ledger can have paid for and that may have been made.

    >>> [draws_within(g) for g in (0, 1, 2, 3, 4, 7, 8)]
    [0, 1, 1, 1, 2, 3, 3]
    """
    return (entries + 2) // 3 if entries > 0 else 0


def survey(ledger: Ledger, plans: Plans, door: CoordinatorView, studies: Iterable[str]) -> Recovery:
    """Compare the ledger with the coordinator's record; change nothing.

    Args:
        studies: all studies that the site was invited to; those of the ledger are added.
    Raises: LedgerRefusal, when the copy is from before an earlier recovery: its charges cannot be bounded by counting;
        IntegrityRefusal, when the last head shown is not signed by this site; StateRefusal, when the plan of a release
        or of a study is not known, so that it cannot be priced; any refusal of the coordinator or of a plan.
    """
    names = sorted({*studies, *plans.studies(), *(hold.study for hold in ledger.holds())})
    if not names:
        raise StateRefusal("a site must take part in a study", given="none", next_step="See site-agent status.")
    answers = {study: door.holdings(study) for study in names}
    first = answers[names[0]]
    known = ledger.anchored()
    witnessed = _own_head(ledger, first, unwitnessed=known == 0)
    here = {hold.release_id: hold for hold in ledger.holds()}
    held = [one for study in names for one in own_releases(ledger, study, answers[study])]
    accepted = [
        (one.release_id, one.log_index)
        for one, _ in held
        if one.log_index is not None and one.release_id in here and undelivered(here[one.release_id])
    ]
    if witnessed is None or ledger.holds_head(witnessed):
        # Not every step from the seal to the delivery is witnessed: a copy from before them lacks none of the heads.
        # What stands approved is sent again, and acknowledged then.
        unknown_here = tuple(one for one in accepted if here[one[0]].state != "approved")
        return Recovery(state="whole", witnessed=witnessed, known=known, accepted=unknown_here)
    done = ledger.recovered(witnessed)
    if done:
        return Recovery(state="counted", witnessed=witnessed, known=known, fingerprint=done)
    anew = not _signed_here(ledger, first)
    if (ledger.recoveries() != first.reanchored and not anew) or witnessed.seq <= known:
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
    away = [(holding, said) for holding, said in held if holding.release_id not in here]
    unknown = max(draws_within(witnessed.seq - known) - len(away), 0)
    lost: list[Lost] = []
    priced: dict[str, tuple[int, ...]] = {}
    for study in names:
        by_hash = _known(plans, door, study)
        _require_known(ledger, study, by_hash, [said for _, said in held if said.study == study])
        lost += [_named(by_hash[said.plan_hash], holding) for holding, said in away if said.study == study]
        if unknown and not by_hash:
            raise StateRefusal(
                "what the missing entries may have drawn must be charged in every study, at the price of its plan",
                given=f"no plan of {study} here, and none from the coordinator",
                next_step=f"{_by_hand(study, None)} Only if it never had one: take {study} out of `studies` in "
                "site.toml.",
            )
        if by_hash:
            own = [hold.event for hold in here.values() if hold.study == study]
            lost += _unnamed(list(by_hash.values()), own, unknown)
            priced[study] = tuple(sorted(plan.version for plan in by_hash.values()))
    return Recovery(
        state="to count",
        witnessed=witnessed,
        known=known,
        missing=witnessed.seq - known,
        unknown=unknown,
        lost=tuple(lost),
        accepted=tuple(accepted),
        priced=priced,
    )


def _signed_here(ledger: Ledger, answer: Holdings) -> bool:
    """True if a release key of this ledger has signed exactly the last witnessed head."""
    try:
        envelope = Envelope.from_bytes(answer.anchor)
        head = AnchorHead.from_bytes(envelope.require(ANCHOR_TYPE, _release_key(ledger)))
    except Refusal:
        return False
    anchored = answer.anchored
    return anchored is not None and (head.site, head.seq, head.head) == (ledger.site, anchored.seq, anchored.head)


def _own_head(ledger: Ledger, answer: Holdings, *, unwitnessed: bool) -> AnchorReceipt | None:
    """The last witnessed head, when this site itself has signed exactly it, or it is of the site before this ledger.

    Raises: IntegrityRefusal.
    """
    anchored = answer.anchored
    if anchored is not None and not unwitnessed and not _signed_here(ledger, answer):
        raise IntegrityRefusal(
            "the last witnessed head must be shown as this site signed it",
            given="one without this site's signature",
            next_step="Nothing is counted on the coordinator's word. Call the study lead.",
        )
    return anchored


def own_releases(ledger: Ledger, study: str, answer: Holdings) -> list[tuple[Holding, Statement]]:
    """The releases that this site has signed, each once; what cannot be shown so is not counted as one of them."""
    found: dict[str, tuple[Holding, Statement]] = {}
    for holding in answer.holdings:
        try:
            envelope = Envelope.from_bytes(holding.statement)
            said = Statement.from_bytes(envelope.require(STATEMENT_TYPE, _release_key(ledger)))
        except Refusal:
            continue
        named = (ledger.site, study, holding.study, holding.wave, holding.release_id)
        if (said.site, said.study, said.study, said.wave, said.release_id) == named:
            earlier = found.get(said.release_id)
            if earlier is None or earlier[0].log_index is None:
                found[said.release_id] = (holding, said)
    return list(found.values())


def _release_key(ledger: Ledger) -> dict[str, PublicKey]:
    return {key.key_id: key for _, key in ledger.membership().release}


def recover(
    ledger: Ledger,
    plans: Plans,
    door: CoordinatorView,
    studies: Iterable[str],
    replies: AcknowledgedReplies | None = None,
) -> Recovery:
    """Count what is missing, and have the new head witnessed if the study lead has allowed it; safe to repeat.

    Args:
        replies: what this site keeps of the coordinator's answers, for a home that was put back.
    Raises: what `survey` raises; LedgerRefusal (this site and the coordinator were put back, and what was charged
        between is known to nobody); StorageRefusal.
    """
    mark = ledger.path.with_name(RESTORED)
    found = survey(ledger, plans, door, studies)
    if mark.exists():
        _require_remembered(mark, found.witnessed, door, replies)
    found = _counted(ledger, door, found)
    if found.state == "whole":
        ledger.note_arrived(dict(found.accepted))
    if mark.exists():
        if found.state == "whole":
            # Whether it was drawn after the backup, nobody can tell: its charge has bought what it could.
            for hold in ledger.holds():
                if hold.phase == "held":
                    ledger.burn(hold, "open in the backup that was put back")
        reach("recovery.before_settled")
        mark.unlink()
    return found


def _require_remembered(
    mark: Path, witnessed: AnchorReceipt | None, door: CoordinatorView, replies: AcknowledgedReplies | None
) -> None:
    """Refuse the heads of a coordinator that was put back itself since, and has seen none of this ledger after that."""
    door.watch()
    known = parse_json(mark.read_bytes()).get("restored", 0)
    words = [said for said in (() if replies is None else replies.replies()) if said["kind"] == "Restored"]
    since = max((int(said["size"]) for said in words[known:]), default=-1)
    if since >= (-1 if witnessed is None else witnessed.index) and since >= 0:
        raise LedgerRefusal(
            "what was charged since the backup must be known to this site or to the coordinator",
            given="both were put back",
            next_step="Restore a later backup of this site, or of the coordinator. Without one the site releases "
            "nothing more in its studies: the study lead revokes it (coordinator revoke), and may invite it to new "
            "ones, with another folder.",
        )


def _counted(ledger: Ledger, door: CoordinatorView, found: Recovery) -> Recovery:
    if found.witnessed is None:
        return found
    if found.state == "whole":
        if found.known > found.witnessed.seq:  # the coordinator was put back: prove the rest from what it has
            door.anchor(ledger.anchor_envelope(after=found.witnessed.seq))
        return found
    fingerprint = found.fingerprint
    if found.state == "to count":
        fingerprint = ledger.count_lost(found.witnessed, found.lost, accepted=dict(found.accepted))
    state = "counted"
    # A coordinator that was put back as well may lack the head that is known here: then the whole chain shows it.
    ways: tuple[tuple[int | None, tuple[type[Refusal], ...]], ...] = ((None, ()), (0, (TooLarge,)))
    for after, too_many in ways:
        with contextlib.suppress(LedgerRefusal, *too_many):
            door.anchor(ledger.anchor_envelope(after=after))
            state = "done"
            break
    return replace(found, state=state, fingerprint=fingerprint)


def _known(plans: Plans, door: CoordinatorView, study: str) -> dict[str, StudyPlan]:
    """Every version of a study's plan that lies here or that the coordinator offers, by hash, lowest first."""
    found = list(plans.filed(study))
    with contextlib.suppress(PlanRefusal):  # what needs a plan is refused without one
        found.append(plans.opened(study, door.fetch_plan(study)))
    return {plan.hash: plan for plan in sorted(found, key=lambda plan: plan.version)}


def _require_known(ledger: Ledger, study: str, known: Collection[str], said: Iterable[Statement]) -> None:
    """Refuse to price anything while a plan that this site has signed something under is not known."""
    noted = ledger.approved_plan(study)
    used = {statement.plan_hash: statement.plan_version for statement in said}
    for plan_hash, version in used.items() | ({(noted[1], noted[0])} if noted else set()):
        if plan_hash not in known:
            raise StateRefusal(
                "the plan of everything that this site has signed must be known, or its price is not",
                given=f"version {version} of {study} ({plan_hash[:12]}), neither here nor offered by the coordinator",
                next_step=_by_hand(study, version),
            )


def _by_hand(study: str, version: int | None) -> str:
    which, name = (f"version {version} of it", version) if version else ("its newest version", "N")
    return (
        f"Ask the study lead for {which} as signed, put it into plans/{study}/plan-{name}.json, and run "
        "site-agent ledger recover again."
    )


def _named(plan: StudyPlan, holding: Holding) -> Lost:
    """The charge of a release that the coordinator holds, by its own plan."""
    from shared.releases.receipt import coverage, planned_event

    return Lost(
        study=plan.study,
        plan_hash=plan.hash,
        event=planned_event(plan).to_canonical(),
        delta=plan.budget.delta,
        cap_epsilon=plan.budget.epsilon,
        uncovered=coverage(plan)[1],
        wave=holding.wave,
        release_id=holding.release_id,
        log_index=holding.log_index,
    )


def _unnamed(known: Sequence[StudyPlan], charged: Iterable[Mapping[str, Any]], count: int) -> list[Lost]:
    """The charges of draws that may have been of any version of a study's plan, lowest version first.

    Args:
        charged: what the study was charged for here, as canonical events; those are drawn again at no lower price.
    """
    from shared.privacy import accountant as privacy
    from shared.releases.receipt import coverage, planned_event

    delta = min(plan.budget.delta for plan in known)
    trainings = [plan.federated.event for plan in known if plan.federated is not None]
    events = {*(planned_event(plan) for plan in known), *trainings, *map(privacy.from_canonical, charged)}
    # The dearest at one δ stands first, for the eye; the price is that of all of them
    # (`site_agent.ledger.holds.price_of`).
    dearest, *others = sorted(events, key=lambda event: (-privacy.epsilon(event, delta), repr(event)))
    newest = known[-1]
    lost = Lost(
        study=newest.study,
        plan_hash=newest.hash,
        event=dearest.to_canonical(),
        others=tuple(event.to_canonical() for event in others),
        delta=delta,
        cap_epsilon=newest.budget.epsilon,
        uncovered=tuple(dict.fromkeys(line for plan in known for line in coverage(plan)[1])),
    )
    return [replace(lost, count=min(LOST_CAP, count - k)) for k in range(0, count, LOST_CAP)]
