"""The airlock: every decision a person takes about a release, in one place for the command line and the local page.

Computed is not released. A person approves the exact bytes, rejects them, sends them back with a question, or takes
them back later; each decision is signed with that person's own key, noted in the ledger before it has an effect, and
safe to repeat. What was approved may have left, even where no answer came back: taking it back therefore stops the
sending here at once, with or without a network, and then asks the coordinator whether there is something to bury.

Nothing here prints or asks; a caller hands over how to open a key, and gets a value or a `Refusal`.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.base.clock import utc_now
from shared.errors import (
    ApprovalRefusal,
    IntegrityRefusal,
    LedgerRefusal,
    NetworkRefusal,
    PlanChanged,
    PlanRefusal,
    PolicyRefusal,
    StateRefusal,
    UsageRefusal,
)
from shared.privacy.stated import shown_delta
from site_agent.decide import reconciliation

if TYPE_CHECKING:
    import pandas as pd

    from shared.base.keys import Envelope, SigningKey
    from shared.plans.plan import StudyPlan
    from shared.plans.standing import Standing
    from site_agent.desk import Desk
    from site_agent.ledger.book import AnchoredHead, Hold, Noted
    from site_agent.release.checks import Check
    from site_agent.release.outbox import Outbox
    from site_agent.release.pipeline.opened import SealedRelease

__all__ = [
    "Approved",
    "Deleted",
    "Earlier",
    "StandingUse",
    "Vanished",
    "approve",
    "approve_by_standing",
    "bury",
    "compare",
    "confirm_persons",
    "consent_withdrawn",
    "decline",
    "deliver_revocations",
    "gated",
    "history",
    "leave",
    "pause",
    "planned",
    "require_approved_ahead",
    "require_author",
    "require_no_copies",
    "require_ticks",
    "resend",
    "resume",
    "revoke_plan",
    "revoke_standing",
    "send",
    "send_revocations",
    "shown",
    "sign_standing",
    "standing_lines",
    "totals",
    "vanished",
    "withdraw",
    "witnessed",
]

OpenKey = Callable[[], "SigningKey"]
WITNESS_SECONDS = 2.0
"""Longest wait for one answer when a decision is witnessed: a person waits, and the next round of `run` tries again."""
SHIFTS = 3
"""Columns that are named when two releases are held side by side."""
_STANDING_ADD = "site-agent standing add {study} --as NAME --max-epsilon E --until DATE"


STEPS = {
    "genesis": "ledger begun",
    "reserve": "charged",
    "anchor": "charge witnessed",
    "carry": "charge carried over",
    "drawing": "drawing begun",
    "seal": "sealed",
    "hold": "put in the outbox",
    "send_back": "sent back",
    "approve": "approved",
    "commit": "delivered",
    "reject": "rejected",
    "burn": "burnt",
    "withdraw": "withdrawn",
    "tombstone": "withdrawal settled",
    "standing": "approved in advance",
    "standing_revoked": "standing approval ended",
    "standing_told": "coordinator told of it",
    "persons_withdrew": "consent withdrawn",
    "persons_confirmed": "other persons confirmed",
    "left": "study left",
    "lost": "lost charges counted",
    "recovered": "ledger recovered",
    "study_granted": "study granted by the lead",
    "study_ungranted": "study taken away by the lead",
    "leads_changed": "leads changed",
    "keys_changed": "keys changed",
    "keys_told": "coordinator told of it",
    "persons_apart": "persons told apart",
}
"""The ledger's entries in a steward's words; the others are words already."""


@dataclass(frozen=True, kw_only=True)
class Approved:
    """Outcome of an approval.

    Args:
        hold: the release now.
        sent: place in the coordinator's log and day of acceptance, when it was delivered by this call.
    """

    hold: Hold
    sent: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class StandingUse:
    """Outcome of the attempt to approve a release by a standing approval.

    Args:
        used: the approver whose standing approval approved it; blank for none.
        limit: why none did, in words; blank where one did, and where there is none in force to speak of.
    """

    hold: Hold
    used: str = ""
    limit: str = ""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier release of the study beside the one that waits.

    Args:
        rows, rows_now: released rows, then and now.
        added, removed: columns only one of the two has.
        shifts: the columns that moved most, in words.
    """

    release_id: str
    wave: int
    state: str
    plan_version: int
    epsilon: float | None
    epsilon_given: str
    rows: int
    rows_now: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    shifts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """One file that was deleted when the site left a study."""

    release_id: str
    name: str
    sha256: str
    size: int


# -- approving --------------------------------------------------------------------------------------------------
def require_author(desk: Desk, plan: StudyPlan, author: str | None) -> str:
    """Author of a release, for its statement: a registered approver, or the agent where nobody is named.

    Raises: ConfigRefusal (not registered); ApprovalRefusal (the two must be different people, and nobody is named).
    """
    from shared.releases.receipt import AGENT

    if author is not None:
        desk.config.approver_key(author)
        return author
    if _apart(desk, plan):
        raise ApprovalRefusal(
            "whoever has the release made must be named, because somebody else must approve it",
            given="nobody",
            next_step="Add --by NAME, one of this site's approvers.",
        )
    return AGENT


def shown(desk: Desk, release_id: str) -> SealedRelease:
    """A sealed release for a person to look at.

    Raises: PolicyRefusal, before it is delivered, where its plan wants it approved before the draw: whoever saw it
        could choose by it; and as `opened.open_release`.
    """
    from site_agent.release.pipeline import opened

    made = opened.open_release(desk.outbox, release_id)
    plan = desk.plans.plan(made.hold.study, made.receipt.plan_version)
    if plan.floors.approval == "before" and made.hold.state != "delivered":
        raise PolicyRefusal(
            "a release that was approved before its draw must not be looked at before it is delivered",
            given=made.hold.state.replace("_", " "),
            next_step="site-agent run sends it. Give it up unseen with site-agent withdraw; it stays charged.",
        )
    return made


_ENDED = {"withdrawn": "was withdrawn", "rejected": "was rejected", "burnt": "was never sealed"}
"""States that nothing follows, in words."""


def require_ticks(made: SealedRelease, ticked: Sequence[str]) -> tuple[Check, ...]:
    """The warnings that are not ticked yet. Raises: UsageRefusal, for a tick on no warning of this release."""
    names = [check.name for check in made.warnings]
    unknown = [name for name in ticked if name not in names]
    if unknown:
        raise UsageRefusal("a tick must name a warning of this release", given=", ".join(unknown))
    return tuple(check for check in made.warnings if check.name not in ticked)


def approve(
    desk: Desk,
    release_id: str,
    *,
    name: str,
    ticked: Sequence[str],
    open_key: OpenKey,
    agent_version: str,
    today: dt.date,
    dry_run: bool = False,
) -> Approved:
    """Sign exactly these bytes as `name` and, when enough people have signed, send them. Safe to repeat.

    Args:
        ticked: names of the warnings that the approver has looked at; it must be all of them.
        open_key: opens the approver's key; called only when a signature is needed.
    Raises: PausedRefusal; PlanRefusal and its kinds (the plan is not the approved, current one, also for bytes that
        were approved before and are only sent again); ApprovalRefusal; NetworkRefusal (the approval is kept).
    """
    from site_agent.release.pipeline import opened

    desk.require_running()
    desk.config.approver_key(name)
    known = desk.outbox.get(release_id)
    if known.state in _ENDED:
        raise StateRefusal(
            "a release must wait for a decision to be approved",
            given=f"one that {_ENDED[known.state]}, which is for good",
            next_step="Nothing is left to do with it; site-agent status says what is next. Its charge stays.",
        )
    made = opened.open_release(desk.outbox, release_id)
    hold, ahead = made.hold, False
    if hold.state != "delivered":
        plan, _ = desk.plans.approved(hold.study, agent_version=agent_version, today=today)
        ahead = plan.floors.approval == "before"
        if ahead and hold.state != "approved":
            raise ApprovalRefusal(
                "a release of this plan must be approved before it is drawn, by nobody who has seen it",
                given="a signature on drawn bytes",
                next_step=f"Run {_STANDING_ADD.format(study=hold.study)}, then site-agent run.",
            )
        if plan.hash != hold.plan_hash:
            raise PlanChanged(
                "a release must be of the plan that is approved now",
                given="a release of an earlier plan",
                next_step=f"site-agent outbox show {release_id[:8]} has the difference; give it up with "
                f"site-agent withdraw {release_id[:8]} --as NAME --reason policy, and release again.",
            )
        if not ahead and (hold.state != "approved" or _stands(hold)):
            _require_another_person(desk, hold, plan, name)
            left = require_ticks(made, ticked)
            if left:
                ticks = "".join(f" --tick {check.name}" for check in made.warnings)
                raise ApprovalRefusal(
                    "every warning must be ticked by the approver",
                    given="; ".join(f"{check.name} ({check.detail})" for check in left),
                    next_step=f"Look at site-agent outbox show {release_id[:8]}, then add{ticks}.",
                )
    if dry_run:
        return Approved(hold=hold)
    with desk.locked():
        # Asked again: another person may have decided while this one was reading.
        hold = desk.outbox.get(release_id)
        if hold.state not in ("approved", "delivered") or (_stands(hold) and not ahead):
            key = open_key()
            # Asked again: the plan's approval may have been taken back while the passphrase was typed.
            desk.ledger.require_plan(hold)
            opened.record_decision(desk.outbox, release_id, name=name, key=key, ticked=ticked, today=today)
            desk.outbox.approve(release_id, key, name)
            hold = desk.outbox.get(release_id)
        if hold.state != "approved":
            return Approved(hold=hold)
        return _sent(desk, hold, today=today, command=f"site-agent approve {release_id[:8]} --as {name}")


def send(desk: Desk, release_id: str, *, agent_version: str, today: dt.date) -> Approved:
    """Send what is approved, or send it again. It signs nothing. Safe to repeat.

    Raises: as `approve`; ApprovalRefusal also where a standing approval has ended since it was used.
    """
    desk.require_running()
    hold = desk.outbox.get(release_id)
    plan, _ = desk.plans.approved(hold.study, agent_version=agent_version, today=today)
    if plan.hash != hold.plan_hash:
        raise PlanChanged("a release must be of the plan that is approved now", given="a release of an earlier plan")
    with desk.locked():
        return _sent(desk, desk.outbox.get(release_id), today=today, command="site-agent run")


def require_approved_ahead(desk: Desk, plan: StudyPlan, *, agent_version: str, today: dt.date) -> None:
    """Refuse what a plan wants approved before it is drawn, and is not: asked before the charge and before the draw.

    Raises: ApprovalRefusal (no standing approval in force is good for the release as it is planned); PolicyRefusal
        (this site wants more than the one approver that such a plan has).
    """
    from shared.plans.standing import broken_limit
    from shared.privacy import accountant as privacy
    from shared.releases.receipt import planned_event
    from site_agent.config import Limits

    if plan.floors.approval != "before":
        return
    limits = Limits.of(plan.floors, desk.config.floors)
    if limits.approvals > 1 or limits.author_apart:
        raise PolicyRefusal(
            "a plan that is approved before the draw must be enough for this site: one approver, whoever has it made",
            given=f"approvals = {limits.approvals}, author_apart = {str(limits.author_apart).lower()} in force here",
            next_step="Loosen [floors] in site.toml for it, or ask the study lead for approval = 'after'.",
        )
    price = privacy.epsilon(planned_event(plan), plan.budget.delta)
    for noted in desk.ledger.standing(plan.study):
        signed = None if noted.revoked else _standing(desk, noted)
        if signed is None or signed.agent_version != agent_version:
            continue
        if not broken_limit(signed, plan_hash=plan.hash, today=today, epsilon=price, n=None, last_n=None):
            return
    raise ApprovalRefusal(
        "a release of this plan must be approved before it is drawn",
        given="no standing approval in force that is good for it",
        next_step=f"Run {_STANDING_ADD.format(study=plan.study)}. Nothing was drawn.",
    )


def resend(desk: Desk, study: str, *, dry_run: bool = False) -> reconciliation.Settled:
    """Compare a study's deliveries with the coordinator's word, and send again what it has forgotten. Safe to repeat.

    Raises: PausedRefusal; LedgerRefusal (the ledger here is an old copy); NetworkRefusal; IntegrityRefusal.
    """
    desk.require_running()
    with desk.egress() as egress:
        answer = egress.held(study)
        _require_no_old_copy(desk, answer.anchored)
        if dry_run:
            return reconciliation.Settled(mended=(), left=reconciliation.compare(desk, study, answer))
        with desk.locked():
            return reconciliation.settle(desk, egress, study, answer)


def _sent(desk: Desk, hold: Hold, *, today: dt.date, command: str) -> Approved:
    desk.require_running()
    standing = _still_standing(desk, hold, today)
    envelope, bundle = desk.outbox.envelope(hold.release_id), desk.outbox.bundle(hold.release_id)
    try:
        with desk.egress(allowed=lambda: desk.ledger.require_plan(hold)) as egress:
            desk.ledger.require_plan(hold)
            answer = egress.held(hold.study)
            _require_no_old_copy(desk, answer.anchored)
            # What it has forgotten goes first: this release may rest on it.
            reconciliation.settle(desk, egress, hold.study, answer)
            if standing is None:
                acceptance = egress.send(envelope, bundle)
            else:
                acceptance = egress.send(envelope, bundle, standing=standing)
    except NetworkRefusal as refusal:
        raise NetworkRefusal(
            refusal.must,
            given=refusal.given,
            next_step=f"The approval is kept. Run {command} again: the same bytes are sent on from where they stopped.",
        ) from None
    hold = desk.outbox.delivered(hold.release_id, acceptance)
    return Approved(hold=hold, sent={"log_index": acceptance.log_index, "accepted_day": acceptance.accepted_day})


def _require_no_old_copy(desk: Desk, last: AnchoredHead | None) -> None:
    """Refuse to send by a ledger that was put back: a pause or a rejection since then would be forgotten."""
    if last is not None and not desk.ledger.holds_head(last):
        raise LedgerRefusal(
            f"the ledger must hold entry {last.seq}, which the coordinator has witnessed",
            given="an old copy, or another history",
            next_step="Nothing is sent. Run site-agent ledger recover, and read what was decided since then.",
        )


def decline(
    desk: Desk, release_id: str, *, name: str, reason: str, open_key: OpenKey, for_good: bool, tell: bool = False
) -> Hold:
    """Reject sealed bytes for good, or send them back with a question; the charge stays either way.

    Args:
        tell: whether the study lead is told the reason; else it stays here, and that it was declined as well.
    Raises: UsageRefusal (no reason); SignatureRefusal (only who can open the key may decide in its name);
    ApprovalRefusal (a key that is not the registered one); StateRefusal.
    """
    desk.config.approver_key(name)
    if not reason.strip():
        raise UsageRefusal("a reason must say something", given="blank text", next_step="Add --reason.")
    desk.outbox.get(release_id)
    key = open_key()
    with desk.locked():
        recipient = desk.config.coordinator if tell else ""
        hold = desk.outbox.decline(release_id, key, name, reason=reason, for_good=for_good, tell=recipient)
    witnessed(desk)
    return hold


def _apart(desk: Desk, plan: StudyPlan) -> bool:
    from site_agent.config import Limits

    return Limits.of(plan.floors, desk.config.floors).author_apart


def _require_another_person(desk: Desk, hold: Hold, plan: StudyPlan, name: str) -> None:
    """The site may have become stricter since the seal; the stricter of then and now holds. A deputy and the one for
    whom they stand in are one."""
    deputies = {who: given[0] for who, given in desk.ledger.membership().deputies.items()}
    signed = {deputies.get(one.name, one.name) for one in hold.approvals if not one.standing}
    if name not in {one.name for one in hold.approvals} and deputies.get(name, name) in signed:
        raise ApprovalRefusal(
            f"{hold.approvals_needed} different approvers must sign, and a deputy signs in another's place",
            given=f"{name}, beside {deputies.get(name, name)} or a deputy of theirs",
            next_step="Another approver decides.",
        )
    if (hold.author_apart or _apart(desk, plan)) and name == hold.author:
        raise ApprovalRefusal(
            "whoever had the release made must not approve it",
            given=name,
            next_step="Another approver decides: "
            f"{', '.join(n for n in desk.config.approvers if n != name) or 'none'}.",
        )


def _signer(desk: Desk, name: str, open_key: OpenKey) -> SigningKey:
    """The opened key of `name`. Raises: ApprovalRefusal, unless it is the registered one."""
    key = open_key()
    if desk.outbox.approvers.get(name) != key.public:
        raise ApprovalRefusal(
            "an approver must be registered at this site with this key",
            given=repr(name),
            next_step=f"Approvers here: {', '.join(desk.config.approvers) or 'none'}.",
        )
    return key


def revoke_plan(desk: Desk, study: str, *, name: str, reason: str, open_key: OpenKey) -> StudyPlan:
    """Take the approval of the study's newest plan back, and with it every standing approval, as the approver `name`.

    Raises: StateRefusal (nobody approved it); SignatureRefusal; ApprovalRefusal (not the registered key).
    """
    desk.config.approver_key(name)
    plan = desk.plans.plan(study)
    if desk.plans.approval(study, plan.version) is None:
        raise StateRefusal(
            "the plan must be approved here to be revoked", given=f"version {plan.version}, not approved"
        )
    key = _signer(desk, name, open_key)
    for noted in desk.ledger.standing(study):
        if not noted.revoked:
            _revoke_standing(desk, noted, name=name, reason=reason, key=key)
    revoked = desk.plans.revoke(study, name=name, key=key, reason=reason)
    witnessed(desk)
    return revoked


def consent_withdrawn(desk: Desk, study: str, persons: Collection[str], *, name: str, open_key: OpenKey) -> int:
    """Note, as the approver `name`, that persons withdrew from a study.

    The coordinator witnesses it with the next anchor that something else asks for: a head that came alone, at that
    minute, would tell of it.

    Args:
        persons: their pseudonyms.
    Returns: how many were not noted before.
    Raises: SignatureRefusal; ApprovalRefusal (not the registered key); IntegrityRefusal; StorageRefusal.
    """
    desk.config.approver_key(name)
    key = _signer(desk, name, open_key)
    with desk.locked():
        return desk.ledger.note_persons(study, persons, name=name, key=key)


@dataclass(frozen=True, kw_only=True)
class Vanished:
    """A reservation that waits because earlier persons are not in the table.

    Args:
        hold: the reservation.
        there: of the persons of earlier releases, how many the table has.
        earlier: how many there are.
        snapshot: keyed hash of the table.
    """

    hold: Hold
    there: int
    earlier: int
    snapshot: str


def vanished(desk: Desk, study: str) -> Vanished:
    """Read the study's table, and find that earlier persons are not in it.

    Raises: StateRefusal (no reservation waits, or they are in it); DifferencingRefusal (told apart by something else);
        DataRefusal; IntegrityRefusal.
    """
    from site_agent.config import Limits
    from site_agent.records import table as records

    plan, source, key = desk.plans.plan(study), desk.config.source(study), desk.snapshot_key(study)
    waiting = [hold for hold in desk.ledger.holds(study) if hold.state in ("reserved", "anchored") and not hold.rounds]
    if not waiting:
        raise StateRefusal(
            "a release must wait for its persons to be confirmed",
            given="no reservation that waits",
            next_step=f"Run site-agent release {study} first: it says whether earlier persons have vanished.",
        )
    as_written = desk.ledger.as_written(study)
    table = records.read(source, plan.dictionary, key=key, rules=plan.release.edges, as_written=as_written)
    space = records.person_space(source, plan.dictionary, key=key, as_written=as_written)
    roles = plan.posture == "holdout"
    desk.ledger.require_same_persons(waiting[-1], space, roles=roles)
    persons = records.row_pseudonyms(table, plan.dictionary, key=key) or ()
    there, earlier = desk.ledger.still_present(waiting[-1], persons)
    must_confirm = roles or waiting[-1].touches == "new"
    if not must_confirm or there >= Limits.of(plan.floors, desk.config.floors).still_present * earlier:
        raise StateRefusal(
            "persons must be confirmed only where those of earlier releases have vanished from the table, and matter",
            given=f"{there} of {earlier} who are there",
            next_step=f"Run site-agent release {study}.",
        )
    return Vanished(hold=waiting[-1], there=there, earlier=earlier, snapshot=table.snapshot)


def confirm_persons(desk: Desk, found: Vanished, *, name: str, reason: str, open_key: OpenKey) -> Hold:
    """Sign, as the approver `name`, that this table holds other persons than earlier releases: for this wave alone.

    Raises: SignatureRefusal; ApprovalRefusal (not the registered key); ParameterError; StateRefusal; StorageRefusal.
    """
    desk.config.approver_key(name)
    key = _signer(desk, name, open_key)
    with desk.locked():
        return desk.ledger.confirm_persons(
            found.hold,
            there=found.there,
            earlier=found.earlier,
            snapshot=found.snapshot,
            name=name,
            reason=reason,
            key=key,
        )


def witnessed(desk: Desk) -> bool:
    """Have the coordinator witness the last decision, if it can be reached within seconds; also during a pause.

    What was witnessed, no older copy of the ledger can undo unnoticed. It sends the ledger's head, digests alone, and
    decides nothing: the decision holds either way, and `site-agent run` asks again. Never while another agent holds the
    folder, or a head could overtake the one that a draw is about to have witnessed, and burn its charge.

    Returns: whether no decision waits to be witnessed.
    """
    from shared.errors import Refusal

    try:
        require_witnessed(desk)
    except (Refusal, OSError):
        return False
    return True


def require_witnessed(desk: Desk) -> None:
    """Have the coordinator witness the ledger's head, or refuse.

    Raises: NetworkRefusal, LedgerRefusal (this ledger is an old copy), LockedRefusal, StateRefusal (not joined).
    """
    from site_agent.ledger.holds import WITNESSED_AT_ONCE
    from site_agent.lock import StateLock

    entries = desk.ledger.entries()
    last = max((entry.seq for entry in entries if entry.kind in WITNESSED_AT_ONCE), default=0)
    # By its hash: a ledger that was put back has other entries of the same numbers.
    seen = desk.acknowledged()
    if last <= max((entry.seq for entry in entries if entry.hash in seen), default=0):
        return
    with StateLock(desk.home), desk.egress(timeout=WITNESS_SECONDS, attempts=1) as egress:
        egress.anchor(desk.ledger.anchor_envelope())


# -- approving in advance ---------------------------------------------------------------------------------------
def sign_standing(
    desk: Desk,
    study: str,
    *,
    name: str,
    max_epsilon: float,
    until: dt.date,
    open_key: OpenKey,
    agent_version: str,
    today: dt.date,
    dry_run: bool = False,
) -> tuple[Standing, str]:
    """Sign in advance, as `name`, for later releases of the plan that is approved now, within limits.

    Returns: the document and its digest.
    Raises: PlanRefusal (the plan does not allow it) and its kinds; ApprovalRefusal (no release was approved yet);
        UsageRefusal (a limit that means nothing).
    """

    from shared.plans.standing import NO_RELEASE, Standing

    desk.config.approver_key(name)
    key = desk.outbox.approvers[name]
    registered = {key.key_id: key}
    plan, _ = desk.plans.approved(study, agent_version=agent_version, today=today)
    if not plan.floors.standing:
        raise PlanRefusal(
            "the plan must allow a standing approval",
            given="standing = false",
            next_step="Ask the study lead for a version with standing = true under [floors].",
        )
    if not (math.isfinite(max_epsilon) and max_epsilon > 0):
        raise UsageRefusal("--max-epsilon must be a positive number", given=f"{max_epsilon}")
    if not today <= until <= plan.expires:
        raise UsageRefusal(f"--until must be a day from today to the plan's last, {plan.expires}", given=f"{until}")
    ahead = plan.floors.approval == "before"
    before = None if ahead else _last_approved(desk, study)
    if before is None and not ahead:
        raise ApprovalRefusal(
            "the first release of a study must be approved by a person",
            given="no approved release",
            next_step=f"site-agent release {study} --wave 1, then site-agent approve.",
        )
    standing = Standing(
        study=study,
        site=desk.config.site,
        plan_hash=plan.hash,
        agent_version=agent_version,
        max_epsilon=max_epsilon,
        until=until.isoformat(),
        n=1 if before is None else before.receipt.n,
        release_id=NO_RELEASE if before is None else before.hold.release_id,
        approver=name,
        number=len(desk.ledger.standing(study)) + 1,
        day=today.isoformat(),
    )
    if not dry_run:
        with desk.locked():
            envelope = standing.sign(open_key())
            if not envelope.verified_by(registered):
                raise ApprovalRefusal("an approver must be registered at the site, with this key", given=repr(name))
            return standing, desk.ledger.add_standing(study=study, name=name, envelope=envelope).digest
    return standing, ""


def revoke_standing(desk: Desk, digest: str, *, name: str, reason: str, open_key: OpenKey) -> Noted:
    """Take a standing approval back for good, as the approver `name`; the coordinator is told by `send_revocations`.

    Raises: StateRefusal (not in force); SignatureRefusal; ApprovalRefusal (not the registered key).
    """
    desk.config.approver_key(name)
    found = [noted for noted in desk.ledger.standing() if noted.digest == digest and not noted.revoked]
    if not found:
        raise StateRefusal(
            "only a standing approval in force can be revoked",
            given="one that is not",
            next_step="See site-agent standing list.",
        )
    key = _signer(desk, name, open_key)
    revoked = _revoke_standing(desk, found[0], name=name, reason=reason, key=key)
    witnessed(desk)
    return revoked


def _revoke_standing(desk: Desk, noted: Noted, *, name: str, reason: str, key: SigningKey) -> Noted:
    from shared.plans.standing import Revocation

    said = Revocation(study=noted.study, site=desk.config.site, standing=noted.digest, approver=name)
    return desk.ledger.revoke_standing(noted.digest, name=name, reason=reason, key=key, envelope=said.sign(key))


def send_revocations(desk: Desk) -> tuple[Noted, ...]:
    """Tell the coordinator which standing approvals are over. Safe to repeat; nothing is signed.

    Returns: those it has acknowledged now.
    Raises: PausedRefusal, NetworkRefusal, StateRefusal (not joined yet): they are over here all the same.
    """
    pending = [
        (one, one.revocation) for one in desk.ledger.standing() if one.revocation is not None and not one.acknowledged
    ]
    if not pending:
        return ()
    desk.require_running()
    with desk.egress() as egress:
        for noted, revocation in pending:
            egress.revoke_standing(revocation)
            desk.ledger.standing_told(noted.digest)
    return tuple(noted for noted, _ in pending)


def deliver_revocations(desk: Desk) -> bool:
    """Deliver pending revocations. Returns: True if none is left."""
    from shared.errors import Refusal

    try:
        send_revocations(desk)
    except Refusal:
        return False
    return True


def standing_lines(desk: Desk, today: dt.date, study: str | None = None) -> list[dict[str, Any]]:
    """Every standing approval, verified: its limits, whether it is in force, and how often it was used."""
    from dataclasses import asdict

    out = []
    for noted in desk.ledger.standing(study):
        document = _standing(desk, noted)
        over = today > dt.date.fromisoformat(document.until)
        given = [approval for hold in desk.ledger.holds(noted.study) for approval in hold.approvals]
        before = _last_approved(desk, noted.study)
        out.append(
            {
                "id": noted.digest,
                "state": "revoked" if noted.revoked else "ended" if over else "in force",
                "used": sum(approval.standing == noted.digest for approval in given),
                "measure": before.receipt.n if before else None,
                "told": noted.acknowledged if noted.revocation is not None else None,
                **asdict(document),
            }
        )
    return out


def approve_by_standing(desk: Desk, release_id: str, *, agent_version: str, today: dt.date) -> StandingUse:
    """Approve a held release by a standing approval in force, if every one of its limits holds. It sends nothing.

    Raises: PlanRefusal and its kinds; IntegrityRefusal (the bytes or what was shown of them are not as they were).
    """
    from site_agent.release.pipeline import opened

    hold = desk.outbox.get(release_id)
    noted = [made for made in desk.ledger.standing(hold.study) if not made.revoked]
    if hold.state != "held" or not noted:
        return StandingUse(hold=hold)
    desk.require_running()
    plan, _ = desk.plans.approved(hold.study, agent_version=agent_version, today=today)
    made = opened.open_release(desk.outbox, release_id)
    limits = []
    for one in reversed(noted):
        limit = _limit(desk, one, made, plan, agent_version=agent_version, today=today)
        if not limit:
            with desk.locked():
                hold = desk.outbox.approve_by_standing(release_id, one.digest, name=one.name)
            return StandingUse(hold=hold, used=one.name)
        limits.append(limit)
    return StandingUse(hold=hold, limit=limits[0])


def _limit(
    desk: Desk, noted: Noted, made: SealedRelease, plan: StudyPlan, *, agent_version: str, today: dt.date
) -> str:
    """The first limit of a standing approval that a held release does not keep; blank for none."""
    from shared.plans.standing import broken_limit

    hold = made.hold
    if not plan.floors.standing:
        return "the plan must allow it (standing under [floors])"
    standing = _standing(desk, noted)
    ahead = plan.floors.approval == "before"
    before = None if ahead else _last_approved(desk, hold.study)
    limit = broken_limit(
        standing,
        plan_hash=hold.plan_hash if hold.plan_hash == plan.hash else "",
        today=today,
        epsilon=math.inf if made.receipt.stated_epsilon is None else made.receipt.epsilon,
        n=None if ahead else made.receipt.n,
        last_n=None if before is None else before.receipt.n,
    )
    if limit:
        return limit
    if standing.agent_version != agent_version or made.receipt.agent_version != agent_version:
        return "the agent's version must be the one it was signed for"
    if ahead:
        # Nothing that is in the bytes decides: but whoever signs after the draw could have looked at them.
        drawn = next(
            (e.seq for e in desk.ledger.entries() if e.kind == "drawing" and e.body["release_id"] == hold.release_id), 0
        )
        return "" if noted.seq < drawn else "it must have been signed before the draw"
    if not made.audit or not made.checks or any(check.outcome == "failed" for check in made.checks):
        return "the checks and the audit must have passed"
    if made.warnings:
        return f"no warning may need a tick ({', '.join(check.name for check in made.warnings)})"
    if any(given.standing for given in hold.approvals):
        return "one person at least must sign"
    if any(given.name == standing.approver for given in hold.approvals):
        return f"{standing.approver} must not have signed already"
    if (hold.author_apart or _apart(desk, plan)) and hold.author == standing.approver:
        return f"whoever had it made ({hold.author}) must not approve it"
    return ""


def _standing(desk: Desk, noted: Noted) -> Standing:
    """The document, verified again. Raises: SignatureRefusal, IntegrityRefusal."""
    from shared.plans.standing import open_standing

    standing = open_standing(noted.envelope, desk.outbox.approvers)
    if (standing.approver, standing.study, standing.site) != (noted.name, noted.study, desk.config.site):
        raise IntegrityRefusal("a standing approval must be of this site, study and approver", given="another")
    return standing


def _last_approved(desk: Desk, study: str) -> SealedRelease | None:
    """The last release of the study that a person approved with their own signature, and nobody took back since.

    What a standing approval let through is no measure for the next: size could creep by a fifth each wave.
    """
    from site_agent.release.pipeline import opened

    for hold in reversed(desk.ledger.holds(study)):
        by_hand = any(not given.standing for given in hold.approvals)
        if hold.state in ("approved", "delivered") and hold.bundle_sha256 and by_hand:
            return opened.open_release(desk.outbox, hold.release_id)
    return None


def _stands(hold: Hold) -> bool:
    """True if a release is approved, and a person may still sign in place of a standing approval."""
    return hold.state == "approved" and any(given.standing for given in hold.approvals)


def _still_standing(desk: Desk, hold: Hold, today: dt.date) -> Envelope | None:
    """The standing approval to send along, if one was used. Raises: ApprovalRefusal: it is over."""
    used = {given.standing for given in hold.approvals if given.standing}
    for noted in desk.ledger.standing(hold.study):
        if noted.digest not in used:
            continue
        if noted.revoked or today > dt.date.fromisoformat(_standing(desk, noted).until):
            raise ApprovalRefusal(
                "the standing approval of a release must be in force when it is sent",
                given="one that was revoked" if noted.revoked else "one that has ended",
                next_step="A person signs in its place, where the plan lets them: site-agent approve "
                f"{hold.release_id[:8]} --as NAME. Else give it up, charged as it is: site-agent withdraw "
                f"{hold.release_id[:8]} --as NAME --reason policy.",
            )
        return noted.envelope
    return None


# -- taking back ------------------------------------------------------------------------------------------------
def withdraw(desk: Desk, release_id: str, *, name: str, reason_code: str, note: str, open_key: OpenKey) -> Hold:
    """Take a release back: stop it here at once, then have the coordinator bury what it may have. Safe to repeat.

    A reservation without bytes that holds its wave (for instance of an earlier plan) is given up in the same way.

    Raises: ParameterError (unknown reason); StateRefusal (over already, or a later release still holds its rows);
        NetworkRefusal: it is withdrawn here, and the coordinator must still be told.
    """
    desk.config.approver_key(name)
    with desk.locked():
        hold = desk.ledger.hold(release_id)
        require_no_copies(desk, hold)
        if hold.withdrawal is None:
            reason = note.strip() or reason_code
            hold = desk.outbox.withdraw(release_id, open_key(), name, reason_code=reason_code, reason=reason)
    witnessed(desk)
    with desk.locked():
        return _bury(desk, desk.ledger.hold(release_id))


def bury(desk: Desk, release_id: str) -> Hold:
    """Tell the coordinator of a withdrawal that it has not heard of. It signs nothing new. Safe to repeat.

    Raises: NetworkRefusal, StateRefusal (a pause).
    """
    with desk.locked():
        return _bury(desk, desk.ledger.hold(release_id))


def require_no_copies(desk: Desk, hold: Hold) -> None:
    """Hold a withdrawal back while the rows it takes away stay readable in a later release under ``frozen``.

    Raises: StateRefusal, naming what must be taken back first.
    """
    frozen = {plan.version for plan in desk.plans.filed(hold.study) if plan.returning == "frozen"}
    copies = [
        other
        for other in desk.ledger.holds(hold.study)
        if other.wave > hold.wave
        and other.bundle_sha256
        and other.plan_version in frozen
        and other.state not in ("burnt", "rejected")
        and not (other.withdrawal is not None and (other.withdrawal.settled or not other.left))
    ]
    if copies and hold.bundle_sha256:
        copies.sort(key=lambda other: -other.wave)
        raise StateRefusal(
            "a release must be taken back after those that hold its rows",
            given=", ".join(f"wave {other.wave} ({other.release_id[:8]}, {other.state})" for other in copies),
            next_step="Under this plan a wave copies the rows of the one before. Take these back first, in this order: "
            + "; ".join(f"site-agent withdraw {other.release_id[:8]}" for other in copies)
            + ".",
        )


def _bury(desk: Desk, hold: Hold) -> Hold:
    """Tell the coordinator of a withdrawal, where it may hold the release."""
    given = hold.withdrawal
    if given is None or given.settled or not hold.left:
        return hold
    command = f"site-agent withdraw {hold.release_id[:8]} --as {given.name} --reason {given.reason_code}"
    if desk.paused:
        raise StateRefusal(
            "the coordinator must be told of a withdrawal",
            given="a pause; the release is withdrawn here",
            next_step=f"After site-agent resume --as NAME, run {command} again.",
        )
    try:
        with desk.egress() as egress:
            held = hold.state == "withdrawn" or any(
                one.release_id == hold.release_id for one in egress.status(hold.study)
            )
            place = egress.withdraw(desk.outbox.tombstone(hold.release_id)).log_index if held else None
    except NetworkRefusal as refusal:
        raise NetworkRefusal(
            refusal.must,
            given=refusal.given,
            next_step=f"The release is withdrawn here and will not be sent. Run {command} again to tell the "
            "coordinator.",
        ) from None
    return desk.ledger.tombstone(hold, log_index=place)


def leave(
    desk: Desk, study: str, *, name: str, open_key: OpenKey, note: str = "", dry_run: bool = False
) -> tuple[Deleted, ...]:
    """Leave a study: bury what was delivered, give up what is open, revoke the plan, delete what was sealed.

    The ledger, the plans and their approvals stay: they are the audit log. The site's keys stay, because they may serve
    other studies, and that of the study's frames goes with what it encrypts; the study lead revokes the site's
    certificate. Safe to repeat after a lost connection.

    Returns: every deleted file with its SHA-256 and size, as the ledger has noted it *before* the deletion.
    Raises: NetworkRefusal, before anything is deleted, when a delivered release could not be buried.
    """
    import shutil

    from shared.base.canonical import sha256_hex
    from site_agent.release.embeddings import EmbeddingStore

    desk.config.approver_key(name)
    holds = desk.ledger.holds(study)
    if not holds and study not in desk.plans.studies():
        raise StateRefusal("the study must be one of this site's", given=repr(study))
    files = [
        Deleted(
            release_id=hold.release_id,
            name=path.relative_to(desk.outbox.root / hold.release_id).as_posix(),
            sha256=sha256_hex(path.read_bytes()),
            size=path.stat().st_size,
        )
        for hold in holds
        for path in sorted((desk.outbox.root / hold.release_id).rglob("*"))
        if path.is_file()
    ]
    if dry_run:
        return tuple(files)
    key = _signer(desk, name, open_key)
    for hold in reversed(holds):  # a later one may hold the rows of an earlier one
        unsettled = hold.withdrawal is not None and not hold.withdrawal.settled
        if hold.state not in ("burnt", "rejected", "withdrawn", "trained") or (hold.left and unsettled):
            withdraw(
                desk,
                hold.release_id,
                name=name,
                reason_code="other",
                note=note or "left the study",
                open_key=lambda: key,
            )
    version = desk.plans.highest(study)
    if version and desk.plans.approval(study, version) is not None:
        revoke_plan(desk, study, name=name, reason=note or "left the study", open_key=lambda: key)
    with desk.locked():
        # Noted first: a deletion that is not in the log would look like a loss.
        desk.ledger.leave(
            study=study,
            name=name,
            deleted=[
                {"release_id": one.release_id, "name": one.name, "sha256": one.sha256, "bytes": one.size}
                for one in files
            ],
            key=key,
        )
        # With its key, so that a copy of a folder that is deleted here is noise.
        EmbeddingStore(desk.home, study).forget(desk.ledger)
        for hold in holds:
            shutil.rmtree(desk.outbox.root / hold.release_id, ignore_errors=True)
        shutil.rmtree(desk.home / "rehearsal" / study, ignore_errors=True)
        remains = [h.release_id for h in holds if (desk.outbox.root / h.release_id).exists()]
    if remains:
        raise IntegrityRefusal(
            "every sealed folder of the study must be gone",
            given=f"{len(remains)} left",
            next_step=f"Check the permissions in sealed/, then run site-agent leave {study} again.",
        )
    witnessed(desk)
    return tuple(files)


# -- what the approver is shown ---------------------------------------------------------------------------------
def planned(plan: StudyPlan, made: SealedRelease) -> tuple[tuple[str, bool], ...]:
    """The release held against its plan: sentences, and whether each is true of these bytes."""
    from shared.errors import Refusal

    columns = [column.name for column in plan.dictionary.released]
    try:
        plan.release.validate(plan, made.table, made.receipt.n)
        within = True
    except Refusal:
        within = False
    if plan.release.draws_rows:
        same = list(made.table.columns) == columns
        form: tuple[tuple[str, bool], ...] = (
            (f"exactly the {len(columns)} planned columns, in the plan's order, and no other", same),
            ("every value within the dictionary's bounds and levels", within),
        )
    else:
        form = (("exactly the planned figures, each possible for the plan's noise", within),)
    return (
        *form,
        (f"sent to {plan.coordinator} and nobody else", made.receipt.recipient == plan.coordinator),
        (
            f"priced by the plan's event at δ = {shown_delta(plan.budget.delta)}",
            made.receipt.delta == plan.budget.delta,
        ),
    )


def compare(desk: Desk, made: SealedRelease) -> tuple[Earlier, ...]:
    """The release beside every earlier one of its study that left, or still may, the latest first."""
    from site_agent.release.pipeline import opened

    out: list[Earlier] = []
    gone = desk.ledger.deleted()
    for hold in desk.ledger.holds(made.hold.study):
        if hold.release_id == made.hold.release_id:
            break
        over = hold.phase == "burnt" and not hold.left
        if over or not hold.bundle_sha256 or hold.release_id in gone:
            continue
        before = opened.open_release(desk.outbox, hold.release_id)
        then, now = before.table, made.table
        rows = made.receipt.mechanism == "latent_noise"
        out.append(
            Earlier(
                release_id=hold.release_id,
                wave=hold.wave,
                state=hold.state,
                plan_version=hold.plan_version,
                epsilon=hold.epsilon,
                epsilon_given=hold.given,
                rows=len(then),
                rows_now=len(now),
                added=tuple(name for name in now.columns if name not in then.columns),
                removed=tuple(name for name in then.columns if name not in now.columns),
                shifts=_shifts(then, now) if rows else (),
            )
        )
    return tuple(reversed(out))


def _shifts(then: pd.DataFrame, now: pd.DataFrame) -> tuple[str, ...]:
    """The columns that moved most between two released tables, in words."""
    import pandas as pd

    found: list[tuple[float, str]] = []
    for name in now.columns:
        if name not in then.columns:
            continue
        if pd.api.types.is_numeric_dtype(then[name].dtype) and then[name].nunique() > 2:
            spread = float(then[name].std()) or 1.0
            moved = (float(now[name].mean()) - float(then[name].mean())) / spread
            found.append((abs(moved), f"{name}: mean {moved:+.2f} standard deviations"))
        else:
            shares = [
                column.astype("string").fillna("missing").value_counts(normalize=True)
                for column in (then[name], now[name])
            ]
            gone = shares[1].sub(shares[0], fill_value=0.0).to_dict()
            level = max(gone, key=lambda each: abs(gone[each]))
            found.append((2 * abs(gone[level]), f"{name}: share of “{level}” {100 * gone[level]:+.1f} points"))
    return tuple(words for _, words in sorted(found, reverse=True)[:SHIFTS])


# -- the switch ------------------------------------------------------------------------------------------------
def pause(desk: Desk, reason: str, *, name: str = "", open_key: OpenKey | None = None) -> bool:
    """Stop at once: nothing is drawn, approved or sent until `resume`. Works without a network, and without a key.

    Stopping waits for nobody: the site stops first. Then the ledger notes it, signed where a person is named, and the
    coordinator witnesses that if it answers within seconds.

    Returns: whether the ledger could note it; where it could not, the pause holds all the same.
    Raises: ConfigRefusal, SignatureRefusal, ApprovalRefusal (the key of `name`); the site is paused by then.
    """
    from shared.base.keys import write_private
    from shared.errors import Refusal

    stamp = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
    write_private(desk.config.pause_file, f"{stamp} {reason}\n".encode())
    key = None
    try:
        if open_key is not None:
            desk.config.approver_key(name)
            key = _signer(desk, name, open_key)
    finally:
        try:
            desk.ledger.pause(name=name if key else "", reason=reason, key=key)
            noted = True
        except Refusal:
            noted = False
        if noted:
            witnessed(desk)
    return noted


def resume(desk: Desk, *, name: str, open_key: OpenKey, reason: str = "") -> None:
    """End a pause, as the approver `name`. Nothing changes where there is none.

    Raises: ConfigRefusal, SignatureRefusal, ApprovalRefusal (the key of `name`); LedgerRefusal.
    """
    desk.config.approver_key(name)
    if not desk.paused:
        return
    desk.ledger.resume(name=name, reason=reason, key=_signer(desk, name, open_key))
    desk.config.pause_file.unlink(missing_ok=True)
    witnessed(desk)


def gated(outbox: Outbox, release_id: str) -> bool:
    """True if a release was selected by checks that read records, outside of the ε that its receipt states.

    Earlier versions refused a sealed table for an exact function of records under every posture, and asked for a tick
    for others. Their receipts say so in the words of that time; what they promised is not rewritten.
    """
    from shared.releases.receipt import EARLIER_GATE, read_bundle
    from site_agent.release.pipeline.opened import TABLE_CAP

    receipt = read_bundle(outbox.bundle(release_id), cap=TABLE_CAP).receipt
    gates = receipt.mechanism in ("latent_noise", "grand") and receipt.posture != "local"
    return gates and EARLIER_GATE in receipt.not_covered


def history(desk: Desk) -> list[dict[str, Any]]:
    """History for readers, in order: the ledger's entries, and between them what was refused.

    A refused attempt has no number (``seq`` is 0) and names its ``verb`` and ``code``. ``step`` is for people, ``kind``
    for programs.
    """
    from shared.errors import CATALOGUE

    def meant(code: str) -> str:
        known = CATALOGUE.get(code)
        return f"{known.meaning.rstrip('.')} ({code})" if known else code

    refused: list[dict[str, Any]] = [
        {
            "seq": 0,
            "time": line.time,
            "kind": "refused",
            "step": "refused",
            "release_id": line.release_id,
            "who": line.who or ("agent" if line.agent else "not named"),
            "reason": " ".join(part for part in (line.verb, line.study) if part) + f": {meant(line.code)}",
            "verb": line.verb,
            "code": line.code,
            "study": line.study,
            "after": line.after,
            "hash": line.hash,
        }
        for line in desk.refusals.lines()
    ]
    rows: list[dict[str, Any]] = []
    for entry in desk.ledger.entries():
        rows.append(
            {
                "seq": entry.seq,
                "time": entry.time,
                "kind": entry.kind,
                "step": STEPS.get(entry.kind, entry.kind.replace("_", " ")),
                "release_id": entry.body.get("release_id", ""),
                "who": entry.body.get("name") or entry.body.get("by") or _nobody(entry.kind),
                "reason": entry.body.get("reason", ""),
                "hash": entry.hash,
            }
        )
        while refused and refused[0]["after"] <= entry.seq:
            rows.append(refused.pop(0))
    return [*rows, *refused]


def _nobody(kind: str) -> str:
    """Actor of an entry that no person has signed."""
    return "not named" if kind == "paused" else "agent"


def totals(desk: Desk, study: str | None = None) -> list[dict[str, Any]]:
    """Privacy loss charged per study, at its δ, under its cap."""
    lines = desk.ledger.statement(study)
    out = []
    for name in dict.fromkeys(line.study for line in lines):
        delta = next(line.delta for line in reversed(lines) if line.study == name)
        spent = desk.ledger.study_total(name, delta)
        out.append(
            {
                "study": name,
                "delta": delta,
                "epsilon": spent.stated,
                "epsilon_given": spent.given,
                "cap": spent.cap,
                "releases": spent.releases,
                "burnt": spent.burnt,
                "open": spent.open,
                "open_words": spent.open_words,
            }
        )
    return out
