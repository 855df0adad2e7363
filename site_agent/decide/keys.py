"""Changes of this site's keys and approvers: signed by the old key and the new, by those who approve, noted, told.

The ledger comes first: what it notes the coordinator is told at the next contact, and again until it has it in force.
Before the entry nothing has changed; after it, whatever a crash leaves is brought to an end when the folder is next
opened (`site_agent.decide.key_files`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.base.chain import GENESIS
from shared.base.failpoints import reach
from shared.base.keys import Envelope, PublicKey, SigningKey, write_private
from shared.errors import (
    ApprovalRefusal,
    LedgerRefusal,
    NetworkRefusal,
    ParameterError,
    PlanRefusal,
    Refusal,
    StateRefusal,
)
from shared.membership.key_changes import KeyChange, SiteKeyring, open_key_change, snapshot_mark
from site_agent.decide import key_files, membership

if TYPE_CHECKING:
    import datetime as dt

    from site_agent.desk import Desk

__all__ = [
    "ChangedKey",
    "add_approver",
    "adopt_forgotten",
    "awaiting_lead",
    "keyring",
    "lead_asked",
    "needed",
    "replace_approver",
    "replace_release",
    "retire_approver",
    "rotate_release",
    "rotate_snapshot",
    "signed_for",
]

Openers = Mapping[str, Callable[[], SigningKey]]
"""Signers' names, each with the function that opens their key."""


@dataclass(frozen=True, kw_only=True)
class ChangedKey:
    """Outcome of a change.

    Args:
        in_force: whether the coordinator has it in force.
        waits: whether it waits there for the study lead, who compares `fingerprint` on the telephone.
        fingerprint: of the new key; blank where there is none.
        lapsed: standing approvals that ended with it.
    """

    said: KeyChange
    in_force: bool
    waits: bool = False
    fingerprint: str = ""
    lapsed: int = 0


def keyring(desk: Desk) -> SiteKeyring:
    """The keys of this site that are in force here."""
    known = desk.ledger.membership()
    approvers = {name: PublicKey(key) for name, key in desk.config.approvers.items()}
    deputies = {name: given for name, given in known.deputies.items() if name in approvers}
    return SiteKeyring(release=known.current, approvers=approvers, deputies=deputies)


def awaiting_lead(desk: Desk) -> tuple[KeyChange, ...]:
    """Keys that took a lost one's place and are not in force at the coordinator, as far as this site has heard."""
    known = desk.ledger.membership()
    return tuple(said for said, _ in known.keys[known.acknowledged :] if said.lost)


def lead_asked(said: KeyChange) -> str:
    """What the study lead runs to put a lost key's successor in force, with the fingerprint to read out."""
    return f'coordinator rekey {said.site} --fingerprint "{PublicKey(said.new).fingerprint}"'


def needed(desk: Desk) -> int:
    """Approvers who must sign a change: as many as the strictest plan that was ever here asks for, if there are."""
    most = desk.config.floors.approvals or 1
    for study in desk.plans.studies():
        most = max([most, *(plan.floors.approvals for plan in desk.plans.filed(study))])
    ring = keyring(desk)
    return min(most, len(ring.approvers) - len(ring.deputies))


def _next(desk: Desk, today: dt.date, *, role: str, action: str, **values: str) -> KeyChange:
    known, entries = desk.ledger.membership().keys, desk.ledger.entries()
    return KeyChange(
        number=len(known) + 1,
        previous=known[-1][0].digest if known else GENESIS,
        day=today.isoformat(),
        coordinator=desk.config.coordinator,
        site=desk.config.site,
        role=role,
        action=action,
        seq=entries[-1].seq,
        head=entries[-1].hash,
        **{"name": "", "old": "", "new": "", **values},
    )


def _opened(desk: Desk, by: Openers) -> list[SigningKey]:
    """The opened keys of all who sign, each the registered one. Raises: ApprovalRefusal, PassphraseRefusal."""
    keys = []
    for name, open_key in by.items():
        desk.config.approver_key(name)
        key = open_key()
        if desk.config.approvers.get(name) != key.public.hex:
            raise ApprovalRefusal("an approver must be registered at this site with this key", given=repr(name))
        keys.append(key)
    return keys


def _checked(desk: Desk, said: KeyChange, keys: Sequence[SigningKey]) -> Envelope:
    envelope = said.signed(keys)
    _learn(desk, said.day)
    open_key_change(envelope, keyring(desk), needed=needed(desk))
    return envelope


def _learn(desk: Desk, day: str) -> None:
    """Fetch plans that may ask for more approvers: noted with too few, a change would be refused there for ever."""
    import datetime as dt

    ring = keyring(desk)
    if not desk.config.certificate.exists() or needed(desk) >= len(ring.approvers) - len(ring.deputies):
        return
    with suppress(Refusal), desk.egress(attempts=1) as egress:
        for study in desk.config.studies:
            with suppress(StateRefusal, PlanRefusal):
                desk.plans.receive(study, egress.fetch_plan(study), today=dt.date.fromisoformat(day))


def _reported_change(desk: Desk, said: KeyChange, *, new: PublicKey | None, lapsed: int = 0) -> ChangedKey:
    """Tell the coordinator, if it can be reached: `run` tells it otherwise."""
    fingerprint = "" if new is None else new.fingerprint
    waits = False
    if desk.config.certificate.exists():
        try:
            with desk.egress() as egress:
                membership.look(desk, egress)
                reach("keys.told")
                if desk.ledger.membership().acknowledged == len(desk.ledger.membership().keys):
                    egress.anchor(desk.ledger.anchor_envelope())
                else:
                    waits = said.lost
        except NetworkRefusal:
            pass
        except Refusal:
            if not said.lost:
                raise
            waits = True
    known = desk.ledger.membership()
    done = known.acknowledged == len(known.keys)
    return ChangedKey(said=said, in_force=done, waits=waits and not done, fingerprint=fingerprint, lapsed=lapsed)


# -- approvers --------------------------------------------------------------------------------------------------------
def add_approver(
    desk: Desk,
    name: str,
    *,
    by: Openers,
    new: Callable[[], SigningKey],
    today: dt.date,
    deputy_of: str = "",
    until: str = "",
) -> ChangedKey:
    """Let another person approve here: their own key, and the signatures of those who approve already.

    Args:
        by: who signs; as many as `needed`.
        new: makes, or opens, the new person's key; its file is in place afterwards.
        deputy_of, until: for whom the person stands in, and the last day; blank for an approver of their own right.
    Raises: ApprovalRefusal (too few; somebody who approves here already), PassphraseRefusal, ParameterError.
    """
    from shared.base.canonical import is_word

    if not is_word(name) or name == "agent":
        raise ParameterError("an approver's name must be a plain word", given=repr(name))
    membership.settle_approvers(desk)
    if name in desk.config.approvers:
        raise ApprovalRefusal("an approver must be added once", given=f"{name}, who approves here")
    key = new()
    if key.public.hex in {
        *desk.config.approvers.values(),
        *(k for keys in desk.config.retired_approvers.values() for k in keys),
    }:
        raise ApprovalRefusal("a new key must be nobody's yet", given="one that is or was an approver's here")
    named = {"name": name, "new": key.public.hex, "deputy_of": deputy_of, "until": until}
    with desk.locked():
        said = _next(desk, today, role="approver", action="add", **named)
        desk.ledger.change_keys(_checked(desk, said, [desk.release_key, key, *_opened(desk, by)]))
        reach("approver.noted")
        membership.settle_approvers(desk)
    return _reported_change(desk, said, new=key.public)


def retire_approver(desk: Desk, name: str, *, by: Openers, today: dt.date) -> ChangedKey:
    """Let a person approve no more. What they approved stays; their standing approvals end, and so does the approval
    of a plan that they signed, until somebody who approves here confirms it.

    Raises: ApprovalRefusal (too few sign, or would be left), PassphraseRefusal.
    """
    membership.settle_approvers(desk)
    desk.config.approver_key(name)
    lapsed = sum(noted.name == name and not noted.revoked for noted in desk.ledger.standing())
    with desk.locked():
        said = _next(desk, today, role="approver", action="retire", name=name, old=desk.config.approvers[name])
        desk.ledger.change_keys(_checked(desk, said, [desk.release_key, *_opened(desk, by)]))
        reach("approver.noted")
        membership.settle_approvers(desk)
    return _reported_change(desk, said, new=None, lapsed=lapsed)


def replace_approver(
    desk: Desk, name: str, *, by: Openers, new: Callable[[], SigningKey], today: dt.date
) -> ChangedKey:
    """Give a person another key whose old one is lost: it counts once the study lead has compared its fingerprint.

    Args:
        desk: the site's folder.
        name: the person, a registered approver.
        by: the others who sign, and what opens the key of each.
        new: makes the new key, under a passphrase of that person; called once.
        today: UTC date of the change.
    Raises: ApprovalRefusal (the others who approve here must sign, as far as there are any), PassphraseRefusal.
    """
    membership.settle_approvers(desk)
    old = desk.config.approvers.get(name)
    if old is None:
        raise ApprovalRefusal("the approver must be registered at this site", given=repr(name))
    key = new()
    with desk.locked():
        said = _next(desk, today, role="approver", action="replace", name=name, old=old, new=key.public.hex)
        desk.ledger.change_keys(_checked(desk, said, [desk.release_key, key, *_opened(desk, by)]))
        reach("approver.noted")
        membership.settle_approvers(desk)
    return _reported_change(desk, said, new=key.public)


# -- a ledger that was put back ---------------------------------------------------------------------------------------
def adopt_forgotten(desk: Desk) -> int:
    """Note changes of keys that a ledger put back from a backup has forgotten, as the coordinator has kept them.

    Each was signed by the key before it, from one that this ledger knows on, and by the one that is here now.

    Returns: how many were noted; 0 where none was forgotten.
    Raises: LedgerRefusal (the keys here do not follow from those of the ledger), SignatureRefusal, NetworkRefusal.
    """
    from site_agent.desk import door
    from site_agent.ledger.book import Ledger

    config = desk.config
    here = SigningKey.load(config.release_key)
    tagger = SigningKey.load(config.tag_key) if config.tag_key.exists() else None
    book = Ledger.without_key(config.ledger, here, site=config.site, tagger=tagger)
    known = book.membership()
    with door(config) as egress:
        shown = [Envelope.from_bytes(data) for data in egress.membership().keys]
    own = [envelope.payload for _, envelope in known.keys]
    forgotten = shown[len(own) :]
    if not forgotten or [one.payload for one in shown[: len(own)]] != own:
        return 0
    said = [KeyChange.said(envelope) for envelope in forgotten]
    released = [one.new for one in said if one.role == "release"]
    if (released[-1] if released else known.current.hex) != here.public.hex:
        raise LedgerRefusal(
            "the release key here must be the one to which the changes of this site lead",
            given="another",
            next_step="Restore keys/ as it was with the newest ledger. A key that is lost is replaced: site-agent "
            "rotate-key release --lost.",
        )
    book.forgotten_keys(forgotten, signer=here)
    reach("keys.adopted")
    desk.forget()
    return len(forgotten)


# -- the agent's keys -------------------------------------------------------------------------------------------------
def rotate_release(desk: Desk, *, by: Openers, today: dt.date) -> ChangedKey:
    """Give the agent another signing key, cross-signed: what the old one signed stays signed, and it signs no more.

    Raises: ApprovalRefusal (too few sign), PassphraseRefusal, StorageRefusal.
    """
    with desk.locked():
        old, keys = desk.release_key, _opened(desk, by)
        new = SigningKey.generate()
        new.save(desk.config.next_release_key, of_machine=True)
        reach("keys.made")
        key_files.keep_tag_key(desk.config)
        said = _next(desk, today, role="release", action="rotate", old=old.public.hex, new=new.public.hex)
        desk.ledger.change_keys(_checked(desk, said, [old, new, *keys]), signer=new)
        reach("keys.noted")
        key_files.put_in_force(desk.config)
        desk.forget()
    return _reported_change(desk, said, new=new.public)


def replace_release(desk: Desk, *, by: Openers, today: dt.date) -> ChangedKey:
    """Give the agent another signing key where the old one is lost, or known to others: without its word.

    Everybody who reads this ledger later is told so; the coordinator takes nothing under the new key before the study
    lead has compared its fingerprint on the telephone.

    Raises: ApprovalRefusal (too few sign), StateRefusal (the old key is here: rotate it), LockedRefusal.
    """
    from site_agent.lock import StateLock

    with StateLock(desk.home):  # without `Desk.locked`, which reads the ledger with the key that is lost
        said, new = _replaced(desk, by, today)
    return _reported_change(desk, said, new=new)


def _replaced(desk: Desk, by: Openers, today: dt.date) -> tuple[KeyChange, PublicKey]:
    from site_agent.ledger.book import Ledger

    config = desk.config
    if config.release_key.exists():
        raise StateRefusal(
            "a key must be lost to be replaced without its word",
            given=f"{config.release_key.name}, which is here",
            next_step="Run site-agent rotate-key release. One that others may have: move it away, then replace it.",
        )
    keys = [opened() for opened in by.values()]
    if not config.next_release_key.exists():
        SigningKey.generate().save(config.next_release_key, of_machine=True, new=True)
    new = SigningKey.load(config.next_release_key)
    for name, key in zip(by, keys, strict=True):
        if config.approvers.get(name) != key.public.hex:
            raise ApprovalRefusal("an approver must be registered at this site with this key", given=repr(name))
    tagger = SigningKey.load(config.tag_key) if config.tag_key.exists() else None
    book = Ledger.without_key(config.ledger, new, site=config.site, tagger=tagger)
    known, entries = book.membership(), book.entries()
    if known.current == new.public:
        said = known.keys[-1][0]
    else:
        said = KeyChange(
            number=len(known.keys) + 1,
            previous=known.keys[-1][0].digest if known.keys else GENESIS,
            day=today.isoformat(),
            coordinator=config.coordinator,
            site=config.site,
            role="release",
            action="replace",
            name="",
            old=known.current.hex,
            new=new.public.hex,
            seq=entries[-1].seq,
            head=entries[-1].hash,
        )
        desk.__dict__["ledger"] = book  # as it is read without its key: who must sign is asked as for every change
        book.change_keys(_checked(desk, said, [new, *keys]), signer=new, tagger=None if tagger is not None else new)
        reach("keys.noted")
    if tagger is None:
        write_private(config.tag_key, config.next_release_key.read_bytes())
    key_files.put_in_force(config)
    desk.forget()
    return said, new.public


def signed_for(desk: Desk, by: Openers) -> None:
    """Ask for the passphrases of those who would have a key changed that the release key alone signs for.

    Raises: ApprovalRefusal, PassphraseRefusal.
    """
    _opened(desk, by)


def rotate_snapshot(desk: Desk, *, by: Openers, today: dt.date) -> ChangedKey:
    """Give keyed hashes another secret, for the studies that have not begun: one that has goes on as it began.

    Raises: ApprovalRefusal (too few sign), PassphraseRefusal, StorageRefusal.
    """
    config = desk.config
    with desk.locked():
        keys = _opened(desk, by)
        noted = [said for said, _ in desk.ledger.membership().keys if said.role == "snapshot"]
        there = snapshot_mark(config.snapshot_key.read_bytes())
        path = config.snapshot_key.with_name("snapshot.next.key")
        if not (noted and noted[-1].new != there and path.exists()):
            write_private(path, secrets.token_bytes(32))
            key_files.keep_snapshot_key(config)
            reach("snapshot.made")
            new = snapshot_mark(path.read_bytes())
            said = _next(desk, today, role="snapshot", action="rotate", old=there, new=new)
            desk.ledger.change_keys(_checked(desk, said, [desk.release_key, *keys]))
            reach("snapshot.noted")
        else:
            said = noted[-1]
        key_files.put_snapshot_in_force(config, said.new)
        desk.forget()
    return _reported_change(desk, said, new=None)
