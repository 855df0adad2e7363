"""Taking back: a release, a plan's approval, or all of a study; it stops here first, and is buried there after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.errors import (
    IntegrityRefusal,
    NetworkRefusal,
    Refusal,
    StateRefusal,
    meant,
)

if TYPE_CHECKING:
    from shared.plans.plan import StudyPlan
    from site_agent.desk import Desk
    from site_agent.ledger.book import Hold
from site_agent.decide.airlock.signing import WITNESS_SECONDS, Approver, witnessed
from site_agent.decide.airlock.standing_approval import revoke_one

__all__ = [
    "Deleted",
    "bury",
    "leave",
    "require_no_copies",
    "revoke_plan",
    "withdraw",
]


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """One file that was deleted when the site left a study."""

    release_id: str
    name: str
    sha256: str
    size: int


def revoke_plan(desk: Desk, study: str, *, by: Approver, reason: str) -> StudyPlan:
    """Take the approval of the study's newest plan back, and with it every standing approval, as the approver `by`.

    Raises: StateRefusal (nobody approved it); SignatureRefusal; ApprovalRefusal (not the registered key).
    """
    desk.config.approver_key(by.name)
    plan = desk.plans.plan(study)
    if desk.plans.approval(study, plan.version) is None:
        raise StateRefusal(
            "the plan must be approved here to be revoked", given=f"version {plan.version}, not approved"
        )
    key = by.key(desk)
    for noted in desk.ledger.standing(study):
        if not noted.revoked:
            revoke_one(desk, noted, name=by.name, reason=reason, key=key)
    revoked = desk.plans.revoke(study, name=by.name, key=key, reason=reason)
    witnessed(desk)
    return revoked


# -- taking back ------------------------------------------------------------------------------------------------
def withdraw(desk: Desk, release_id: str, *, by: Approver, reason_code: str, note: str) -> Hold:
    """Take a release back: stop it here at once, then have the coordinator bury what it may have. Safe to repeat.

    A reservation without bytes that holds its wave (for instance of an earlier plan) is given up in the same way.

    Args:
        desk: the site's folder.
        reason_code: one of `shared.wire.signed_messages.REASONS`; the coordinator is told this.
        note: why, in a person's words; it stays at the site.
    Raises: ParameterError (unknown reason); StateRefusal (over already, or a later release still holds its rows);
        LedgerRefusal (a restored ledger that is not settled yet, and may lack that these bytes exist); NetworkRefusal:
        it is withdrawn here, and the coordinator must still be told.
    """
    desk.config.approver_key(by.name)
    with desk.locked():
        hold = desk.ledger.hold(release_id)
        require_no_copies(desk, hold)
        if hold.withdrawal is None:
            digest, reason = _digest_there(desk, hold), note.strip() or reason_code
            key = by.open_key()
            hold = desk.outbox.withdraw(
                release_id, key, by.name, reason_code=reason_code, reason=reason, bundle_sha256=digest
            )
    witnessed(desk)
    with desk.locked():
        return _bury(desk, desk.ledger.hold(release_id))


def _digest_there(desk: Desk, hold: Hold) -> str:
    """Digest of a release's bytes at the coordinator, where a restored ledger has forgotten them; blank elsewhere.

    Raises: LedgerRefusal (not settled yet), StateRefusal (the coordinator does not show it), NetworkRefusal.
    """
    from site_agent.decide.recovery import own_releases
    from site_agent.ledger.files import require_settled

    if hold.bundle_sha256:
        return ""
    require_settled(desk.ledger.path)
    if not hold.left:
        return ""
    with desk.egress() as egress:
        answer = egress.held(hold.study)
    for holding, said in own_releases(desk.ledger, hold.study, answer):
        if holding.release_id == hold.release_id:
            return said.bundle_sha256
    raise StateRefusal(
        "the coordinator must show a release, as this site signed it, to bury it",
        given="a release that was counted when the ledger was put back, and that it does not show",
        next_step="Call the study lead.",
    )


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
    if given is None or given.settled:
        return hold
    if not hold.left:
        return _bury_unsent(desk, hold)
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


def _bury_unsent(desk: Desk, hold: Hold) -> Hold:
    """Ask within seconds whether the coordinator has what was never sent by the ledger, which may have been put back.

    Where it does not answer, `reconciliation.compare` asks in each later round.
    """
    if not hold.bundle_sha256 or desk.config.courier or not desk.config.certificate.exists():
        return hold
    try:
        with desk.egress(timeout=WITNESS_SECONDS, attempts=1) as egress:
            held = any(one.release_id == hold.release_id for one in egress.status(hold.study))
    except Refusal:
        return hold
    place = None
    if held:
        with desk.egress() as egress:
            place = egress.withdraw(desk.outbox.tombstone(hold.release_id)).log_index
    return desk.ledger.tombstone(hold, log_index=place)


def leave(desk: Desk, study: str, *, by: Approver, note: str = "", dry_run: bool = False) -> tuple[Deleted, ...]:
    """Leave a study: bury what was delivered, give up what is open, revoke the plan, delete what was sealed.

    The ledger, the plans and their approvals stay: they are the audit log. The site's keys stay, because they may serve
    other studies, and that of the study's frames goes with what it encrypts; the study lead revokes the site's
    certificate. Safe to repeat after a lost connection.

    Args:
        desk: the site's folder.
        study: one of this site's.
        note: why, in a person's words; it stays at the site.
        dry_run: tell what would be deleted, and change nothing.
    Returns: every deleted file with its SHA-256 and size, as the ledger has noted it *before* the deletion.
    Raises: NetworkRefusal, before anything is deleted, when a delivered release could not be buried.
    """
    import shutil

    from shared.base.canonical import sha256_hex
    from site_agent.release.embeddings import EmbeddingStore

    desk.config.approver_key(by.name)
    holds = desk.ledger.holds(study)
    if not holds and study not in desk.plans.studies():
        step = meant(study, desk.plans.studies(), what="Studies here")
        raise StateRefusal("the study must be one of this site's", given=repr(study), next_step=step)
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
    key = by.key(desk)
    opened = Approver(by.name, lambda: key)  # one passphrase for all that follows
    for hold in reversed(holds):  # a later one may hold the rows of an earlier one
        unsettled = hold.withdrawal is not None and not hold.withdrawal.settled
        if hold.state not in ("burnt", "rejected", "withdrawn", "trained") or (hold.left and unsettled):
            withdraw(
                desk,
                hold.release_id,
                by=opened,
                reason_code="other",
                note=note or "left the study",
            )
    version = desk.plans.highest(study)
    if version and desk.plans.approval(study, version) is not None:
        revoke_plan(desk, study, by=opened, reason=note or "left the study")
    with desk.locked():
        # Noted first: a deletion that is not in the log would look like a loss.
        desk.ledger.leave(
            study=study,
            name=by.name,
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
