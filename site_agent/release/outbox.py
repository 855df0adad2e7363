"""The outbox: sealed bytes wait here until a person has approved, rejected or sent back exactly these bytes.

Each release has a folder ``sealed/<release_id>/``: ``bundle.zip`` (what would leave), ``checks.json`` and
``audit.json`` (what the approver is shown; they never leave), ``outcomes.json`` (the checks without their counts, for
an audit export), ``population.json``, ``rows.json`` and ``fit.npz`` (who
was charged, whose row is which, the flow; they never leave either), ``statement.json`` (the signed statement, for
people to read). What a release's state is, who approved it and what they signed stands in the ledger; the envelope that
leaves is rebuilt from there, so a lost or edited ``statement.json`` changes nothing.

Bytes reach the disk before the seal: part file, fsync, rename, fsync of the folder, then the ledger's seal entry with
their digest. A process killed between the last two leaves a whole file without a seal. Recovery burns that charge and
deletes the file, where it could also have sealed it: only the seal entry says which bytes are the one draw, and a
file that merely lies there may be put there by anybody. So a charge yields the same sealed bytes or none, never two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import canonical_json, sha256_hex
from shared.base.durable import fsync_folder
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, Signature, SigningKey
from shared.errors import ApprovalRefusal, IntegrityRefusal, ParameterError, StateRefusal, StorageRefusal
from shared.membership.declined import DeclinedNotice
from site_agent.ledger.book import Hold, Ledger, StoredBundle
from site_agent.ledger.decisions import require_registered
from site_agent.ledger.drawing import SealTerms
from site_agent.ledger.files import private_folder, write_whole
from site_agent.release.sealed_state import FIT, ROWS

if TYPE_CHECKING:
    from shared.releases.receipt import Receipt
    from shared.releases.statement import Statement

__all__ = ["Outbox", "outcomes"]

DOCUMENTS = ("checks.json", "audit.json", "outcomes.json")
OUTCOMES = "tributary-outcomes/1"
DECLINE_TYPE = "application/vnd.tributary.decline+json"
NO_BYTES = "0" * 64
"""Stands for the digest where a reservation without bytes is given up; it is never sent."""


class Outbox:
    """The sealed releases of a site.

    Args:
        home: the state folder; the outbox lives in ``sealed/``.
        ledger: the site's ledger; its signer is the agent's release key.
        approvers: registered approvers, name to public key.

    A release is returned as its `Hold`: ``state`` is sealed, held, sent_back, approved, delivered, withdrawn, rejected
    or burnt.
    """

    def __init__(self, home: Path, ledger: Ledger, *, approvers: Mapping[str, PublicKey] | None = None) -> None:
        self.root = home / "sealed"
        self.ledger = ledger
        self.approvers = dict(approvers or {})

    # -- in -------------------------------------------------------------------------------------------------------
    def seal(
        self,
        hold: Hold,
        bundle: bytes,
        receipt: Receipt,
        *,
        approvals: int = 1,
        files: Mapping[str, bytes] | None = None,
        author: str = "agent",
        author_apart: bool = False,
    ) -> Hold:
        """Put the one draw of `hold` on disk and bind it to its charge.

        Args:
            hold: in state drawing.
            bundle: the bytes that would leave.
            approvals: approvers who must sign, from the plan's floors.
            files: what later waves and the audit need (`site_agent.release.sealed_state`), by name; it never leaves.
            author: who had it made.
            author_apart: whether the author must not approve it.
        Raises: StateRefusal; IntegrityRefusal (the receipt is not of this hold, or other bytes are there already);
            StorageRefusal: then nothing half-written is left, and sealing the same bytes may be tried again.
        """
        current = self.ledger.hold(hold.release_id)
        _require_receipt(current, receipt, self.ledger.site)
        digest = sha256_hex(bundle)
        if current.state == "drawing":
            folder = self.folder(hold.release_id)
            path = folder / "bundle.zip"
            try:
                reach("seal.before_folder")
                private_folder(self.root)
                private_folder(folder)
                reach("seal.after_folder")
                there = path.read_bytes() if path.exists() else None
            except OSError as error:
                raise _storage(f"the folder of release {hold.release_id}", error) from error
            if there is None:
                for name, data in (files or {}).items():
                    write_whole(folder / name, data, f"seal.{name.partition('.')[0]}")
                write_whole(path, bundle, "seal.bundle")
            elif there != bundle:
                raise IntegrityRefusal(
                    "a charge must be drawn once",
                    given="other bytes on disk",
                    next_step="Burn this reservation; a second draw is a second charge.",
                )
        reach("seal.before_entry")
        current = self.ledger.seal(
            hold,
            digest,
            SealTerms(
                bundle_bytes=len(bundle),
                receipt_sha256=receipt.hash,
                plan_version=receipt.plan_version,
                recipient=receipt.recipient,
                approvals=approvals,
                files={name: sha256_hex(data) for name, data in (files or {}).items()},
                author=author,
                author_apart=author_apart,
            ),
        )
        reach("seal.after_entry")
        self._write_statement(current)
        return current

    def hold(self, release_id: str, *, checks: Mapping[str, Any], audit: Mapping[str, Any]) -> Hold:
        """Put sealed bytes before an approver, with the checks and the audit of these bytes.

        Both documents stay at the site and carry the bundle's digest. Other documents than before void approvals. What
        an audit export may tell of them is written now, under the same entry: later it could be told otherwise.
        """
        current = self.ledger.hold(release_id)
        if current.state not in ("sealed", "held", "sent_back"):
            raise StateRefusal("a release must be sealed before it is held for approval", given=current.state)
        self._require_bytes(current)
        digests: dict[str, str] = {}
        for name in DOCUMENTS:
            content = checks if name == "checks.json" else audit
            if name == "outcomes.json":
                content = outcomes(checks, audit, digests["checks.json"])
            data = canonical_json(
                {"release_id": release_id, "bundle_sha256": current.bundle_sha256, "content": dict(content)}
            )
            digests[name] = sha256_hex(data)
            path = self.folder(release_id) / name
            if not (path.exists() and path.read_bytes() == data):
                # The outcomes are the checks once more: one place at which a test kills the writing of both.
                place = "outbox.audit" if name == "audit.json" else "outbox.checks"
                write_whole(path, data, place)
        return self.ledger.show(current, digests)

    # -- decisions --------------------------------------------------------------------------------------------------
    def approve(self, release_id: str, approver: SigningKey, name: str) -> Envelope:
        """Sign the statement over the exact sealed bytes as the registered approver `name`.

        Returns: the envelope with the agent's signature and every approver's so far; `envelope` gives it out for
            sending once there are enough.
        Raises: ApprovalRefusal (not a registered approver, the agent itself, the same person twice, or the author
                where author and approver must be two people);
            IntegrityRefusal (bundle, checks or audit are not the bytes that were sealed or shown);
            StateRefusal (rejected, burnt, delivered, or not yet held).
        """
        current = self.ledger.hold(release_id)
        self._require_registered(name, approver)
        if approver.public == self.ledger.signer.public:
            raise ApprovalRefusal("a release must be approved by a person", given="the agent's own release key")
        if current.author_apart and approver.public == self.approvers.get(current.author):
            raise ApprovalRefusal(
                "whoever had the release made must not approve it", given=name, next_step="Another approver decides."
            )
        signed = any(
            given.name == name and given.key == approver.public and not given.standing for given in current.approvals
        )
        instead = current.state == "approved" and any(given.standing for given in current.approvals)
        if not (current.state == "approved" and (signed or instead)):
            self._require_open(current)
        self._require_bytes(current)
        self._require_documents(current)
        statement = self._statement(current)
        if not (signed and current.state == "approved"):
            message = Envelope.encoding(_statement_type(), statement.to_bytes())
            reach("outbox.approve.before_entry")
            current = self.ledger.approve(
                current,
                name=name,
                key=approver.public,
                signature=approver.sign(message),
                bundle_sha256=current.bundle_sha256,
            )
            reach("outbox.approve.after_entry")
        self._write_statement(current)
        return self._envelope(current)

    def approve_by_standing(self, release_id: str, digest: str, *, name: str) -> Hold:
        """Approve by the standing approval `digest` of the registered approver `name`, if the ledger has it in force.

        Whether the release is within its limits is for the caller (`site_agent.decide.airlock`).

        Raises: as `approve`.
        """
        current = self.ledger.hold(release_id)
        self._require_open(current)
        self._require_bytes(current)
        self._require_documents(current)
        current = self.ledger.approve(
            current,
            name=name,
            key=self.approvers[name],
            signature=b"",
            bundle_sha256=current.bundle_sha256,
            standing=digest,
        )
        self._write_statement(current)
        return current

    def reject(self, release_id: str, reason: str, *, by: str) -> Hold:
        """Decline sealed bytes. They are never sent; their charge stays. The folder is kept as evidence."""
        return self.ledger.reject(self.ledger.hold(release_id), reason, by=by)

    def send_back(self, release_id: str, reason: str, *, by: str) -> Hold:
        """Ask a question first: the bytes stay, approvals lapse, and a later approval is possible."""
        return self.ledger.send_back(self.ledger.hold(release_id), reason, by=by)

    def decline(
        self, release_id: str, approver: SigningKey, name: str, *, reason: str, for_good: bool, tell: str = ""
    ) -> Hold:
        """Reject or send back as the registered approver `name`, signed over the bytes, the decision and its reason.

        Args:
            tell: id of the coordinator whose study lead is to hear of the reason; blank: it stays here.
        Raises: ApprovalRefusal (not a registered approver); StateRefusal.
        """
        current = self.ledger.hold(release_id)
        require_registered(self.approvers, name, approver.public)
        decision = "reject" if for_good else "send_back"
        said = {
            "release_id": release_id,
            "bundle_sha256": current.bundle_sha256,
            "decision": decision,
            "by": name,
            "reason_sha256": sha256_hex(reason.encode()),
        }
        signature = approver.sign(Envelope.encoding(DECLINE_TYPE, canonical_json(said)))
        move = self.ledger.reject if for_good else self.ledger.send_back
        passed_on = {}
        if tell:
            notice = DeclinedNotice(
                coordinator=tell,
                site=self.ledger.site,
                study=current.study,
                wave=current.wave,
                release_id=release_id,
                decision=decision,
                reason=reason,
                approver=name,
            )
            passed_on["notice"] = notice.signed(approver).to_bytes().decode()
        return move(current, reason, by=name, key=approver.public.hex, signature=signature.hex(), **passed_on)

    def withdraw(
        self,
        release_id: str,
        approver: SigningKey,
        name: str,
        *,
        reason_code: str,
        reason: str,
        bundle_sha256: str = "",
    ) -> Hold:
        """Take a release back as the registered approver `name`. Nothing of it is sent from now on; the charge stays.

        A reservation that holds a wave without bytes is given up in the same way. What was approved may have left,
        and `tombstone` is what the coordinator must be told then.

        Args:
            approver: that person's opened key.
            reason_code: one of `shared.wire.signed_messages.REASONS`; the coordinator is told this.
            reason: why, in a person's words; it stays at the site.
            bundle_sha256: of the bytes that the coordinator has, where this ledger has forgotten them.
        Raises: ApprovalRefusal (not a registered approver); StateRefusal (over already).
        """
        current = self.ledger.hold(release_id)
        self._require_registered(name, approver)
        from shared.wire.signed_messages import WITHDRAWAL_TYPE

        digest = current.bundle_sha256 or bundle_sha256
        message = Envelope.encoding(WITHDRAWAL_TYPE, self._withdrawal(current, reason_code, digest))
        return self.ledger.withdraw(
            current,
            name=name,
            key=approver.public,
            signature=approver.sign(message),
            reason_code=reason_code,
            reason=reason,
            bundle_sha256=digest,
        )

    def tombstone(self, release_id: str) -> Envelope:
        """The signed withdrawal for the coordinator; the same bytes each time. Raises: StateRefusal."""
        from shared.wire.signed_messages import WITHDRAWAL_TYPE

        current = self.ledger.hold(release_id)
        given = current.withdrawal
        if given is None or not given.bundle_sha256:
            raise StateRefusal("a release must be withdrawn to have a tombstone", given=current.state)
        payload = self._withdrawal(current, given.reason_code, given.bundle_sha256)
        envelope = Envelope.sign(WITHDRAWAL_TYPE, payload, [self.ledger.signer])
        return replace(envelope, signatures=(*envelope.signatures, Signature(given.key.key_id, given.signature)))

    def _withdrawal(self, hold: Hold, reason_code: str, digest: str) -> bytes:
        from shared.wire.signed_messages import REASONS, Withdrawal

        if reason_code not in REASONS:
            raise ParameterError(
                f"a withdrawal's reason must be one of {', '.join(REASONS)}",
                given=repr(reason_code),
                next_step="--reason names the kind; --note says more, and stays here.",
            )
        return Withdrawal(
            study=hold.study,
            site=self.ledger.site,
            wave=hold.wave,
            release_id=hold.release_id,
            bundle_sha256=digest or NO_BYTES,
            reason_code=reason_code,
        ).to_bytes()

    # -- out --------------------------------------------------------------------------------------------------------
    def envelope(self, release_id: str) -> Envelope:
        """The signed statement to send with the bundle; the same bytes each time.

        Raises: ApprovalRefusal (not approved); IntegrityRefusal (the bundle is not the bytes that were approved);
            StateRefusal (burnt or rejected).
        """
        current = self.ledger.hold(release_id)
        if current.state not in ("approved", "delivered"):
            if current.phase == "burnt":
                raise StateRefusal("a rejected or burnt release must not be sent", given=current.state)
            raise ApprovalRefusal(
                f"{current.approvals_needed} registered approver(s) must approve these exact bytes",
                given=f"{len(current.approvals)}, release {current.state}",
                next_step=f"site-agent approve {release_id[:8]} --as NAME",
            )
        self._require_bytes(current)
        return self._envelope(current)

    def standing(self, release_id: str) -> Envelope | None:
        """The standing approval that goes beside the envelope; None where people signed."""
        current = self.ledger.hold(release_id)
        used = {approval.standing for approval in current.approvals if approval.standing}
        return next((made.envelope for made in self.ledger.standing(current.study) if made.digest in used), None)

    def statement(self, release_id: str) -> Envelope:
        """The statement with the signatures it has, for the record; `envelope` gives the one that may be sent."""
        return self._envelope(self.get(release_id))

    def bundle(self, release_id: str) -> Path:
        """The bundle file. Raises: IntegrityRefusal, unless it holds the sealed bytes."""
        self._require_bytes(self.ledger.hold(release_id))
        return self.folder(release_id) / "bundle.zip"

    def delivered(self, release_id: str, acceptance: StoredBundle) -> Hold:
        """Note the coordinator's acceptance. Raises: see `Ledger.commit`."""
        reach("outbox.delivered.before_entry")
        done = self.ledger.commit(self.ledger.hold(release_id), acceptance)
        reach("outbox.delivered.after_entry")
        return done

    # -- reading ----------------------------------------------------------------------------------------------------
    def list(self) -> list[Hold]:
        """Every release that was ever sealed, in order of reservation."""
        return [hold for hold in self.ledger.holds() if hold.bundle_sha256]

    def get(self, release_id: str) -> Hold:
        """One sealed release. Raises: StateRefusal."""
        hold = self.ledger.hold(release_id)
        if not hold.bundle_sha256:
            raise StateRefusal("a release must be sealed to be in the outbox", given=hold.state)
        return hold

    def folder(self, release_id: str) -> Path:
        """Folder of a release's files. Raises: StateRefusal, for a release the ledger does not know."""
        # Release ids in the ledger are plain words, so that none of them can lead out of the outbox.
        return self.root / self.ledger.hold(release_id).release_id

    def recover(self) -> Sequence[Hold]:
        """Settle what a crash left, on start: burn what was drawn and not sealed, delete its bytes and part files.

        Running it again, or being killed in it, changes nothing more. Returns: the holds that are open now.
        """
        still_open = self.ledger.recover()
        for hold in self.ledger.holds():
            folder = self.root / hold.release_id
            if not folder.is_dir():
                continue
            try:
                for part in folder.glob("*.part"):
                    reach("outbox.recover.before_part")
                    part.unlink()
                if hold.phase == "burnt" and not hold.bundle_sha256:
                    reach("outbox.recover.before_delete")
                    # The list of persons stays: it says who was charged.
                    for name in ("bundle.zip", FIT, ROWS):
                        (folder / name).unlink(missing_ok=True)
                    reach("outbox.recover.after_delete")
                    fsync_folder(folder)
            except OSError as error:
                raise _storage(f"the folder of release {hold.release_id}", error) from error
            if hold.bundle_sha256:
                self._write_statement(hold)
        return still_open

    # -- inside -----------------------------------------------------------------------------------------------------
    def _require_registered(self, name: str, approver: SigningKey) -> None:
        if self.approvers.get(name) != approver.public:
            raise ApprovalRefusal(
                "an approver must be registered at the site, with this key",
                given=f"{name!r} with key {approver.public.key_id}",
                next_step="Register approvers at enrolment, or use the registered key.",
            )

    def _statement(self, hold: Hold) -> Statement:
        from shared.releases.statement import Statement

        return Statement(
            study=hold.study,
            plan_hash=hold.plan_hash,
            plan_version=hold.plan_version,
            wave=hold.wave,
            site=self.ledger.site,
            release_id=hold.release_id,
            recipient=hold.recipient,
            bundle_sha256=hold.bundle_sha256,
            bundle_bytes=hold.bundle_bytes,
            receipt_sha256=hold.receipt_sha256,
            ledger_head=hold.sealed_head,
            author=hold.author,
        )

    def _envelope(self, hold: Hold) -> Envelope:
        """Ed25519 is deterministic and the approvals stand in the ledger: the same bytes each time."""
        envelope = self._statement(hold).sign([self.ledger.signer])
        given = [Signature(one.key.key_id, one.signature) for one in hold.approvals if not one.standing]
        return replace(envelope, signatures=(*envelope.signatures, *given))

    def _write_statement(self, hold: Hold) -> None:
        path = self.root / hold.release_id / "statement.json"
        data = self._envelope(hold).to_bytes()
        if not (path.exists() and path.read_bytes() == data):
            write_whole(path, data, "outbox.statement")

    def _require_open(self, hold: Hold) -> None:
        if hold.state not in ("held", "sent_back"):
            steps = {"sealed": "Wait for its checks and audit.", "approved": "It has all the approvals it needs."}
            raise StateRefusal(
                "a release must be held, or sent back, to be approved",
                given=hold.state,
                next_step=steps.get(hold.state, "A new release is a new reservation."),
            )

    def _require_bytes(self, hold: Hold) -> None:
        path = self.root / hold.release_id / "bundle.zip"
        try:
            digest = sha256_hex(path.read_bytes())
        except FileNotFoundError:
            digest = ""
        except OSError as error:
            raise _storage(f"the bundle of release {hold.release_id}", error) from error
        if not hold.bundle_sha256 or digest != hold.bundle_sha256:
            raise IntegrityRefusal(
                f"bundle.zip of release {hold.release_id} must be the bytes that were sealed",
                given="other bytes" if digest else "no file",
                next_step="Restore the file from a backup, or reject the release: another draw is another charge.",
            )

    def _require_documents(self, hold: Hold) -> None:
        for name, digest in hold.documents.items():
            path = self.root / hold.release_id / name
            if not path.exists() or sha256_hex(path.read_bytes()) != digest:
                raise IntegrityRefusal(
                    f"{name} of release {hold.release_id} must be what was put before the approver",
                    given="other bytes",
                    next_step="Run the checks again; the sealed bytes stay as they are.",
                )


def outcomes(checks: Mapping[str, Any], audit: Mapping[str, Any], sha256: str) -> dict[str, Any]:
    """Public part of a check report: each rule, its threshold and its outcome, and no count of records.

    A threshold here is policy's, never what the table at hand made of it: 5 % of the records is a count.

    Args:
        checks, audit: contents of ``checks.json`` and ``audit.json``; of the second only whether an attack was tried.
        sha256: of the whole ``checks.json``.

    >>> check = {"name": "clipped", "rule": "few", "outcome": "passed", "threshold": 9.0, "policy": 0.05}
    >>> outcomes({"checks": [check]}, {}, "ab")["checks"]
    [{'name': 'clipped', 'outcome': 'passed', 'rule': 'few', 'threshold': 0.05}]
    """
    limits = dict(checks.get("limits", {}))
    lines = [
        {**{name: check[name] for name in ("name", "outcome", "rule")}, "threshold": check.get("policy")}
        for check in checks.get("checks", ())
    ]
    if audit and not audit.get("tried", True):
        none = "no attack was tried: the price of the release bounds every one"
        lines.append({"name": "audit", "outcome": "passed", "rule": none, "threshold": None})
    elif audit and not audit.get("decides", True):
        seen = "attacks were tried for the approver to see; what they found decides nothing"
        lines.append({"name": "audit", "outcome": "note", "rule": seen, "threshold": None})
    elif audit:
        # An audit that failed burns its release: what is held has passed.
        rule = "no attack tried on the release may do better than the limits allow"
        lines.append({"name": "audit", "outcome": "passed", "rule": rule, "threshold": limits.get("membership_auc")})
    return {
        "format": OUTCOMES,
        "checks_sha256": sha256,
        "checks": lines,
        "limits": limits,
        "versions": dict(checks.get("versions", {})),
    }


def _statement_type() -> str:
    from shared.releases.statement import STATEMENT_TYPE

    return STATEMENT_TYPE


def _require_receipt(hold: Hold, receipt: Receipt, site: str) -> None:
    expected = {
        "study": hold.study,
        "wave": hold.wave,
        "release_id": hold.release_id,
        "plan_hash": hold.plan_hash,
        "site": site,
        "event": dict(hold.event),
        "delta": hold.delta,
    }
    for name, value in expected.items():
        given = getattr(receipt, name)
        if (dict(given) if isinstance(given, Mapping) else given) != value:
            raise IntegrityRefusal(f"the receipt's {name} must be that of the reservation", given="another")


def _storage(what: str, error: OSError) -> StorageRefusal:
    return StorageRefusal(
        f"{what} must be readable and writable",
        given=error.strerror or os.strerror(error.errno or 0),
        next_step="Free space, or restore write permission; then run the command again.",
    )
