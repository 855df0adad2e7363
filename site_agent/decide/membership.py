"""What the leads say of this site: studies granted, leads changed. Verified, noted in the ledger, shown to the steward.

Nothing acts by it. A granted study is one more of which the site may fetch a plan; until an approver has approved that
plan, nothing of it is read, charged or drawn. A study that was taken away stops here at once, whatever else arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.base.keys import Envelope
from shared.errors import IntegrityRefusal, LedgerRefusal, Refusal, UnknownMethod
from shared.membership.grants import Grant, open_grant
from shared.membership.leads import Leads, follow

if TYPE_CHECKING:
    from shared.wire.messages import MembershipReply
    from site_agent.desk import Desk
    from site_agent.egress import Egress

__all__ = ["MembershipNews", "look", "own_leads", "settle_approvers", "settle_studies"]


NOTICES = 20
"""Reasons that are shown again at each look, in case an earlier one did not arrive."""


@dataclass(frozen=True, kw_only=True)
class MembershipNews:
    """What a look at the coordinator brought.

    Args:
        granted, ungranted: studies that this look brought, or took.
        leads: names of leads who joined or left.
    """

    granted: tuple[str, ...] = ()
    ungranted: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()


def own_leads(desk: Desk) -> Leads:
    """The leads that this site has pinned, changes that it has followed included."""
    return Leads(keys=desk.config.leads, threshold=desk.config.threshold)


def look(desk: Desk, egress: Egress, *, dry_run: bool = False) -> MembershipNews:
    """Ask what the leads have signed of this site, and note what is new. Safe to repeat, and after a crash.

    Raises: SignatureRefusal (not the leads'), ReplayRefusal (shown before, or out of its place), IntegrityRefusal
        (another history than the one noted here): nothing of it is noted then; NetworkRefusal.
    """
    try:
        reply = egress.membership([*desk.ledger.membership().untold, *_notices(desk)])
    except UnknownMethod:
        return MembershipNews()
    if dry_run:
        return _new(desk, reply)
    with desk.locked():
        known = desk.ledger.membership()
        in_force = _in_force(desk, reply)
        if in_force > known.acknowledged:
            desk.ledger.keys_told(in_force)
        leads = _follow_leads(desk, reply)
        granted, ungranted = _note_grants(desk, reply)
        settle_studies(desk)
        settle_approvers(desk)
    _show_again(desk, egress, reply)
    return MembershipNews(granted=granted, ungranted=ungranted, leads=leads)


def _notices(desk: Desk) -> list[Envelope]:
    """The last reasons that a person chose to tell; what the coordinator has already it takes once."""
    said = [entry.body["notice"] for entry in desk.ledger.entries() if "notice" in entry.body]
    return [Envelope.from_bytes(str(text).encode()) for text in said[-NOTICES:]]


def settle_studies(desk: Desk) -> None:
    """Write the studies that the ledger knows of into site.toml; a crash may have come between the two."""
    config = desk.config
    said = desk.ledger.membership().studies
    studies = [study for study in config.studies if said.get(study, True)]
    studies += [study for study, granted in said.items() if granted and study not in studies]
    if tuple(studies) != config.studies:
        replace(config, studies=tuple(studies)).save()
        desk.forget()


def settle_approvers(desk: Desk) -> None:
    """Write into site.toml who approves here by the ledger; a crash may have come between the two.

    Whom somebody has moved to the retired ones by hand stays there.
    """
    config = desk.config
    approvers = dict(config.approvers)
    retired = {name: [*keys] for name, keys in config.retired_approvers.items()}

    def end(name: str) -> None:
        key = approvers.pop(name, None)
        if key is not None:
            retired[name] = [*retired.get(name, []), key]

    for said, _ in desk.ledger.membership().keys:
        if said.role != "approver":
            continue
        if said.old and approvers.get(said.name) == said.old:
            end(said.name)
        if said.action == "retire":
            for name, (deputy_of, _) in _deputies(desk, upto=said.number).items():
                if deputy_of == said.name:
                    end(name)
        gone = {key for keys in retired.values() for key in keys}
        if said.new and said.new not in gone:
            approvers[said.name] = said.new
    if (approvers, retired) != (dict(config.approvers), {n: [*keys] for n, keys in config.retired_approvers.items()}):
        replace(config, approvers=approvers, retired_approvers=retired).save()
        desk.forget()


def _deputies(desk: Desk, upto: int) -> dict[str, tuple[str, str]]:
    known = desk.ledger.membership()
    return replace(known, keys=known.keys[: upto - 1]).deputies


def _in_force(desk: Desk, reply: MembershipReply) -> int:
    """How many of this site's changes of keys the coordinator has in force: those that it shows as they were signed."""
    own = [envelope.payload for _, envelope in desk.ledger.membership().keys]
    shown = [Envelope.from_bytes(data).payload for data in reply.keys]
    if len(shown) > len(own) and shown[: len(own)] == own:
        raise LedgerRefusal(
            "the ledger must hold every change of this site's keys",
            given="an old copy",
            next_step="Nothing is sent. Run site-agent ledger recover.",
        )
    if shown != own[: len(shown)]:
        raise _another("changes of this site's keys")
    return len(shown)


def _another(what: str) -> IntegrityRefusal:
    return IntegrityRefusal(
        f"the {what} that the coordinator shows must be those noted here",
        given="another history",
        next_step="Nothing is taken of it. Call the study lead: the coordinator may have been put back from a backup.",
    )


def _offered(data: Sequence[bytes], known: Sequence[Envelope], what: str) -> list[Envelope]:
    """What is new in a chain that must begin as the one known here; nothing where it is shorter."""
    shown = [Envelope.from_bytes(one) for one in data]
    same = min(len(shown), len(known))
    if [one.payload for one in shown[:same]] != [one.payload for one in known[:same]]:
        raise _another(what)
    return shown[len(known) :]


def _new(desk: Desk, reply: MembershipReply) -> MembershipNews:
    known = [envelope for _, envelope in desk.ledger.membership().grants]
    said = _verified(desk, _offered(reply.grants, known, "grants"))
    return MembershipNews(
        granted=tuple(grant.study for grant, _ in said if grant.granted),
        ungranted=tuple(grant.study for grant, _ in said if not grant.granted),
    )


def _verified(desk: Desk, envelopes: Sequence[Envelope]) -> list[tuple[Grant, Envelope]]:
    leads, config = own_leads(desk), desk.config
    grants = desk.ledger.membership().grants
    last = grants[-1][0] if grants else None
    out = []
    for envelope in envelopes:
        last = open_grant(
            envelope,
            last=last,
            leads=leads.trusted,
            threshold=leads.threshold,
            coordinator=config.coordinator,
            site=config.site,
        )
        out.append((last, envelope))
    return out


def _note_grants(desk: Desk, reply: MembershipReply) -> tuple[tuple[str, ...], tuple[str, ...]]:
    before = desk.ledger.membership().studies
    known = [envelope for _, envelope in desk.ledger.membership().grants]
    for _, envelope in _verified(desk, _offered(reply.grants, known, "grants")):
        desk.ledger.note_grant(envelope)
    now = desk.ledger.membership().studies
    changed = {study: granted for study, granted in now.items() if before.get(study) != granted}
    return (
        tuple(study for study, granted in changed.items() if granted),
        tuple(study for study, granted in changed.items() if not granted),
    )


def _follow_leads(desk: Desk, reply: MembershipReply) -> tuple[str, ...]:
    """Follow changes of leads from those pinned here: into the ledger first, then into site.toml."""
    envelopes = [Envelope.from_bytes(data) for data in reply.leads]
    names = []
    for change, envelope in follow(envelopes, leads=own_leads(desk), coordinator=desk.config.coordinator):
        noted = [one.digest for one, _ in desk.ledger.membership().leads]
        if change.digest not in noted:
            desk.ledger.note_leads(envelope)
        retired = {*desk.config.retired_leads, *([change.leaves] if change.leaves else [])} - set(change.after)
        config = replace(
            desk.config, leads=change.after, threshold=change.threshold, retired_leads=tuple(sorted(retired))
        )
        config.save()
        desk.forget()
        names.append(change.name)
    return tuple(names)


def _show_again(desk: Desk, egress: Egress, reply: MembershipReply) -> None:
    """Show a coordinator that was put back what it has forgotten: the leads' word on this site, and its own."""
    known = desk.ledger.membership()
    grants, keys = known.grants[len(reply.grants) :], known.keys[len(reply.keys) :]
    lacking = [envelope for _, envelope in (*keys, *grants)]
    if lacking and not (len(keys) == len(lacking) and known.acknowledged < len(known.keys)):
        try:
            egress.membership(lacking)
        except Refusal:  # a lead who has left signed it, or a replacement waits: the study lead is told there
            return
