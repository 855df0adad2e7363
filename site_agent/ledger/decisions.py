"""Decisions of persons, each an entry: on releases, plans, standing approvals, the pause, leaving a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shared.base.keys import Envelope, PublicKey, SigningKey
from shared.errors import ApprovalRefusal, IntegrityRefusal, ParameterError, PlanChanged, PlanRollback, StateRefusal
from site_agent.ledger.drawing import require_same_bundle
from site_agent.ledger.files import require_digest
from site_agent.ledger.holds import Hold, require_word
from site_agent.ledger.state import Book, Noted

__all__ = [
    "StoredBundle",
    "add_standing",
    "approve",
    "approve_plan",
    "approved_plan",
    "burn",
    "commit",
    "deleted",
    "in_force",
    "leave",
    "left_study",
    "pause",
    "paused",
    "plan_revoked",
    "reject",
    "require_registered",
    "resume",
    "revoke_plan",
    "revoke_standing",
    "send_back",
    "show",
    "standing",
    "standing_told",
    "tombstone",
    "withdraw",
]


def require_registered(approvers: Mapping[str, Any], name: str, key: Any) -> None:
    """Raises: ApprovalRefusal, unless `name` is registered with this key: as a `PublicKey` or its hex, as both are."""
    if approvers.get(name) != key:
        raise ApprovalRefusal(
            "an approver must be registered at this site with this key",
            given=repr(name),
            next_step=f"Approvers here: {', '.join(approvers) or 'none'}.",
        )


class StoredBundle(Protocol):
    """The coordinator's word that it has stored a bundle."""

    @property
    def release_id(self) -> str: ...  # noqa: D102
    @property
    def bundle_sha256(self) -> str: ...  # noqa: D102
    @property
    def log_index(self) -> int: ...  # noqa: D102
    @property
    def log_root(self) -> str: ...  # noqa: D102


def show(book: Book, hold: Hold, documents: Mapping[str, str]) -> Hold:
    """Note that the sealed bytes are put before an approver, with these documents (name to SHA-256).

    Approvals given on other documents lapse.
    """
    found = book.hold(hold.release_id)
    if found.state == "held" and dict(found.documents) == dict(documents):
        return found
    return book.move(hold.release_id, "hold", {"documents": dict(documents)})


def approve(
    book: Book, hold: Hold, *, name: str, key: PublicKey, signature: bytes, bundle_sha256: str, standing: str = ""
) -> Hold:
    """Note an approver's signature over the release statement of exactly these bytes.

    Args:
        standing: digest of the standing approval that stands in for the signature, which is empty then. A person's
            own signature takes its place later.
    Raises: StateRefusal; IntegrityRefusal (other bytes); ApprovalRefusal (this approver has already signed, or
    had the release made where the two must be different people, or the standing approval is not in force); and
    what `require_plan` raises.
    """
    found = book.hold(hold.release_id)
    book.require_running()
    book.require_plan(found)
    require_same_bundle(found, bundle_sha256)
    signed = [given for given in found.approvals if standing or not given.standing]
    if any(given.name == name or given.key == key for given in signed):
        raise ApprovalRefusal(f"{found.approvals_needed} different approvers must sign", given=f"{name} a second time")
    if found.author_apart and name == found.author:
        raise ApprovalRefusal(
            "whoever had the release made must not approve it",
            given=name,
            next_step="Another approver decides.",
        )
    body = {"name": name, "key": key.hex, "signature": signature.hex(), "bundle_sha256": bundle_sha256}
    if standing:
        made = book.standing.get(standing)
        if made is None or made.revoked or (made.study, made.name) != (found.study, name) or signature:
            raise ApprovalRefusal("a standing approval must be in force", given="one that is not")
        if any(given.standing for given in found.approvals):
            raise ApprovalRefusal("a release must need one person at least", given="two standing approvals")
        body["standing"] = standing
    return book.move(hold.release_id, "approve", body)


def reject(book: Book, hold: Hold, reason: str, *, by: str, **signed: str) -> Hold:
    """A person declines the sealed bytes: they will never be sent, and stay paid for.

    Args:
        signed: key and signature of that person (`site_agent.release.outbox.Outbox.decline`).
    """
    return _decide(book, hold, "reject", reason, by, signed)


def send_back(book: Book, hold: Hold, reason: str, *, by: str, **signed: str) -> Hold:
    """A person asks a question first: the bytes stay sealed, approvals given so far lapse.

    Args:
        book: the site's ledger.
        hold: of the release.
        reason: the question.
        by: name of that person.
        signed: as of `reject`.
    Raises: ParameterError: a blank question; StateRefusal.
    """
    return _decide(book, hold, "send_back", reason, by, signed)


def _decide(book: Book, hold: Hold, kind: str, reason: str, by: str, signed: Mapping[str, str]) -> Hold:
    if not reason.strip():
        raise ParameterError("a reason must say something", given="blank text")
    found = book.hold(hold.release_id)
    body = {"reason": reason, "by": by, "bundle_sha256": found.bundle_sha256, **signed}
    return book.move(hold.release_id, kind, body)


def commit(book: Book, hold: Hold, acceptance: StoredBundle) -> Hold:
    """Note that the coordinator has accepted the sealed bytes; the same acceptance again changes nothing.

    Raises: ApprovalRefusal (not approved); IntegrityRefusal (the acceptance is of other bytes); StateRefusal.
    """
    found = book.hold(hold.release_id)
    if acceptance.release_id != found.release_id:
        raise IntegrityRefusal("an acceptance must be of this release", given="another release id")
    require_same_bundle(found, acceptance.bundle_sha256)
    if found.state == "delivered":
        return found
    if found.state in ("sealed", "held", "sent_back"):
        raise ApprovalRefusal("a release must be approved before it is delivered", given=found.state)
    body = {
        "bundle_sha256": acceptance.bundle_sha256,
        "log_index": acceptance.log_index,
        "log_root": acceptance.log_root,
    }
    return book.move(hold.release_id, "commit", body)


def burn(book: Book, hold: Hold, reason: str) -> Hold:
    """Give up on a hold; its charge stays. A burnt hold stays burnt, by its first reason."""
    found = book.hold(hold.release_id)
    if found.state in ("burnt", "rejected"):
        return found
    return book.move(hold.release_id, "burn", {"reason": reason})


def withdraw(
    book: Book,
    hold: Hold,
    *,
    name: str,
    key: PublicKey,
    signature: bytes,
    reason_code: str,
    reason: str,
    bundle_sha256: str = "",
) -> Hold:
    """A person takes a release back, wherever it is: it is never sent from now on, and stays paid for.

    Args:
        signature: by `key`, over the withdrawal's payload.
        reason_code: what the coordinator is told.
        reason: in the person's words; it stays here.
        bundle_sha256: of the bytes that the coordinator has, where this ledger has forgotten them.
    Raises: StateRefusal (burnt, rejected or withdrawn already).
    """
    found = book.hold(hold.release_id)
    body = {
        "by": name,
        "key": key.hex,
        "signature": signature.hex(),
        "reason_code": reason_code,
        "reason": reason,
        "bundle_sha256": found.bundle_sha256 or bundle_sha256,
    }
    return book.move(hold.release_id, "withdraw", body)


def tombstone(book: Book, hold: Hold, *, log_index: int | None) -> Hold:
    """Note that the coordinator has taken the release out of its readers' sight; again changes nothing.

    Args:
        log_index: place of the tombstone in its log; None where it says that it never had the release.
    """
    found = book.hold(hold.release_id)
    if found.withdrawal is None:
        raise StateRefusal("a release must be withdrawn before it has a tombstone", given=found.state)
    if found.withdrawal.settled:
        return found
    return book.move(hold.release_id, "tombstone", {"log_index": log_index})


def approve_plan(
    book: Book, *, study: str, version: int, plan_hash: str, approver: str, envelope: Envelope | None = None
) -> None:
    """Remember an approved plan version, so that deleting its file does not forget it.

    Args:
        envelope: the signed approval; it stays here when the plan is approved again and its file is replaced.
    Raises: PlanRollback, PlanChanged.
    """
    require_word(study, "study")
    require_digest(plan_hash, "plan_hash")
    body: dict[str, Any] = {"study": study, "version": version, "plan_hash": plan_hash, "name": approver}
    if envelope is not None:
        body["envelope"] = envelope.to_bytes().decode()
    book.require_granted(study)
    before = book.plans.get(study)
    if before is not None and before[0] > version:
        raise PlanRollback(
            "a plan must not be older than one approved here", given=f"version {version} after {before[0]}"
        )
    if before is not None and before[0] == version and before[1] != plan_hash:
        raise PlanChanged("a plan version must have one content", given=f"version {version} with another hash")
    book.append("plan_approved", body)


def revoke_plan(
    book: Book, *, study: str, version: int, plan_hash: str, approver: str, reason: str, key: SigningKey | None = None
) -> None:
    """Note that an approval is taken back; approving the same version again is possible.

    Args:
        key: of the person who decides; it signs the entry.
    Raises: StateRefusal, unless this version is approved.
    """
    body = {"study": study, "version": version, "plan_hash": plan_hash, "name": approver, "reason": reason}
    if book.plans.get(study) != (version, plan_hash) or study in book.revoked:
        raise StateRefusal("only an approved plan can be revoked", given=f"version {version}")
    book.append("plan_revoked", body, person=key)


def plan_revoked(book: Book, study: str, version: int) -> bool:
    """True if the approval of this version was revoked, and not given again since."""
    return book.revoked.get(study) == version


def approved_plan(book: Book, study: str) -> tuple[int, str] | None:
    """(version, hash) of the highest plan version ever approved here; None for none."""
    return book.plans.get(study)


def in_force(book: Book, study: str) -> bool:
    """True if a version of the study's plan is approved here, and its approval was not taken back since."""
    return study in book.plans and study not in book.revoked


def left_study(book: Book, study: str) -> bool:
    """True if this site left the study, and approved none of its plans since."""
    return study in book.left


def add_standing(book: Book, *, study: str, name: str, envelope: Envelope) -> Noted:
    """Note a signed standing approval (`shared.plans.standing`), the document itself included."""
    require_word(study, "study")
    text = envelope.to_bytes().decode()
    if envelope.digest not in book.standing:
        book.append("standing", {"study": study, "name": name, "standing": envelope.digest, "envelope": text})
    return book.standing[envelope.digest]


def revoke_standing(
    book: Book, digest: str, *, name: str, reason: str, key: SigningKey | None = None, envelope: Envelope | None = None
) -> Noted:
    """Note that a standing approval is taken back, for good. Raises: StateRefusal, unless it is in force.

    Args:
        key: of the person who decides; it signs the entry.
        envelope: the revocation for the coordinator (`shared.plans.standing.Revocation`), signed by the same
            person.
    """
    made = book.standing.get(digest)
    if made is None or made.revoked:
        raise StateRefusal(
            "only a standing approval in force can be revoked",
            given="one that is not",
            next_step="See site-agent standing list.",
        )
    body = {"study": made.study, "name": name, "standing": digest, "reason": reason}
    if envelope is not None:
        body["envelope"] = envelope.to_bytes().decode()
    book.append("standing_revoked", body, person=key)
    return book.standing[digest]


def standing_told(book: Book, digest: str) -> None:
    """Note that the coordinator has acknowledged a revocation; again changes nothing."""
    made = book.standing[digest]
    if not made.acknowledged:
        book.append("standing_told", {"study": made.study, "standing": digest})


def standing(book: Book, study: str | None = None) -> tuple[Noted, ...]:
    """Every standing approval that was ever made, of one study or of all, oldest first."""
    return tuple(made for made in book.standing.values() if study in (None, made.study))


def pause(book: Book, *, name: str, reason: str, key: SigningKey | None = None) -> None:
    """Note that the site was paused, by a person where one is named; again changes nothing."""
    if not book.paused:
        book.append("paused", {"name": name, "reason": reason}, person=key)


def resume(book: Book, *, name: str, reason: str, key: SigningKey | None = None) -> None:
    """Note that a pause has ended."""
    book.append("resumed", {"name": name, "reason": reason}, person=key)


def paused(book: Book) -> bool:
    """True if the site is paused: the latest of its *paused* and *resumed* entries is *paused*."""
    return book.paused


def leave(
    book: Book, *, study: str, name: str, deleted: Sequence[Mapping[str, Any]], key: SigningKey | None = None
) -> None:
    """Note what was deleted when the site left a study.

    Args:
        book: the site's ledger.
        study: which it left.
        name: of the approver who decided.
        deleted: release, file, SHA-256 and size (bytes) of each; sizes are kept beside the entry, not in it.
        key: of that person; it signs the entry.
    """
    require_word(study, "study")
    # The size of a list of persons tells how many they are.
    sizes = [item.get("bytes", 0) for item in deleted]
    gone = [{what: value for what, value in item.items() if what != "bytes"} for item in deleted]
    body = {"study": study, "name": name, "deleted": gone}
    book.append("left", body, person=key, record={"bytes": sizes})


def deleted(book: Book) -> frozenset[str]:
    """Releases whose files were deleted when the site left their study."""
    return frozenset(book.deleted)
