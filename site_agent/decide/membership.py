"""Signed statements of the leads about this site: studies granted, leads changed; verified and noted in the ledger.

They are shown to the steward and start nothing. A granted study is one more of which the site may fetch a plan; until
an approver has approved that plan, nothing of it is read, charged or drawn. A study whose grant is withdrawn stops here
at once, whatever else arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.base.canonical import sha256_hex
from shared.base.keys import Envelope, PublicKey
from shared.errors import IntegrityRefusal, LedgerRefusal, Refusal, ReplayRefusal, UnknownMethod
from shared.membership.grants import Grant, open_grant
from shared.membership.leads import LeadChange, Leads, follow, follow_from
from shared.membership.statements import ChainPlace

if TYPE_CHECKING:
    from shared.wire.site_messages import MembershipReply
    from site_agent.desk import Desk
    from site_agent.egress import Egress

__all__ = ["MembershipNews", "lead_news", "look", "own_leads", "settle_approvers", "settle_leads", "settle_studies"]


NOTICES = 20
"""Reasons that are shown again at each look, in case an earlier one did not arrive."""


@dataclass(frozen=True, kw_only=True)
class MembershipNews:
    """Changes of membership found in one call to the coordinator.

    Args:
        granted, ungranted: studies that the site was admitted to, or removed from.
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
    shown = [*desk.ledger.membership().untold, *_notices(desk)]
    try:
        reply = egress.membership(shown)
    except UnknownMethod:
        return MembershipNews()
    except ReplayRefusal:  # a coordinator that was put back lacks what came before
        _show_again(desk, egress, egress.membership(), untold=True)
        reply = egress.membership(shown)
    if dry_run:
        return _new(desk, reply)
    with desk.locked():
        known = desk.ledger.membership()
        in_force = _in_force(desk, reply)
        if in_force > known.acknowledged:
            desk.ledger.keys_told(in_force)
        settle_leads(desk)
        said, before = _news(desk, reply), known.studies
        for one, envelope in said:
            if isinstance(one, Grant):
                desk.ledger.note_grant(envelope)
            else:
                desk.ledger.note_leads(envelope)
        leads = tuple(one.name for one in settle_leads(desk))
        now = desk.ledger.membership().studies
        settle_studies(desk)
        settle_approvers(desk)
    _show_again(desk, egress, reply)
    changed = {study: granted for study, granted in now.items() if before.get(study) != granted}
    return MembershipNews(
        granted=tuple(study for study, granted in changed.items() if granted),
        ungranted=tuple(study for study, granted in changed.items() if not granted),
        leads=leads,
    )


def _notices(desk: Desk) -> list[Envelope]:
    """The last reasons that a person who approves here chose to tell; what the coordinator has already it takes once.

    Of somebody who has left none would be taken, nor what is shown beside it.
    """
    from site_agent.desk import today

    deputies, day = desk.ledger.membership().deputies, today().isoformat()
    keys = [PublicKey(key) for name, key in desk.config.approvers.items() if deputies.get(name, ("", day))[1] >= day]
    notices = [entry.body["notice"] for entry in desk.ledger.entries() if "notice" in entry.body]
    said = [Envelope.from_bytes(str(text).encode()) for text in notices[-NOTICES:]]
    return [one for one in said if one.verified_by({key.key_id: key for key in keys})]


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
    """Number of this site's key changes that the coordinator has in force; it shows them as they were signed.

    Raises: LedgerRefusal (it shows more than the ledger has: an old copy), IntegrityRefusal (it shows other changes).
    """
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


def _since(shown: Sequence[Envelope], start: ChainPlace | None, what: str) -> list[Envelope]:
    """The part of a chain that came after this site was invited; nothing of one that is shorter, as one put back is."""
    if start is None or len(shown) < start.number:
        return [] if start else list(shown)
    if sha256_hex(shown[start.number - 1].payload) != start.digest:
        raise _another(what)
    return list(shown[start.number :])


def _offered(shown: Sequence[Envelope], known: Sequence[Envelope]) -> list[Envelope]:
    """New grants of a chain that must begin with the known one; none where it is shorter. Raises: IntegrityRefusal."""
    same = min(len(shown), len(known))
    if [one.payload for one in shown[:same]] != [one.payload for one in known[:same]]:
        raise _another("grants")
    return list(shown[len(known) :])


def _new(desk: Desk, reply: MembershipReply) -> MembershipNews:
    said = [one for one, _ in _news(desk, reply) if isinstance(one, Grant)]
    return MembershipNews(
        granted=tuple(grant.study for grant in said if grant.granted),
        ungranted=tuple(grant.study for grant in said if not grant.granted),
    )


def _news(desk: Desk, reply: MembershipReply) -> list[tuple[Grant | LeadChange, Envelope]]:
    """Statements of the leads that this site has not noted, all verified, in an order in which each is valid.

    A grant is valid if it is signed by those who were leads at some point of the chain that begins with the leads
    pinned here: a site that was away is also shown grants of leads who have left since, and what followed.
    """
    changes = lead_news(desk, [Envelope.from_bytes(data) for data in reply.leads])
    leads, config = own_leads(desk), desk.config
    grants = desk.ledger.membership().grants
    start = ChainPlace.read(config.grants_since)
    last: Grant | ChainPlace | None = grants[-1][0] if grants else start
    shown = _since([Envelope.from_bytes(one) for one in reply.grants], start, "grants")
    out: list[tuple[Grant | LeadChange, Envelope]] = []
    for envelope in _offered(shown, [one for _, one in grants]):
        while changes and len(envelope.verified_by(leads.trusted)) < leads.threshold:
            change, _ = changes[0]
            out.append(changes.pop(0))
            leads = Leads(keys=change.after, threshold=change.threshold)
        said = open_grant(
            envelope,
            last=last,
            leads=leads.trusted,
            threshold=leads.threshold,
            coordinator=config.coordinator,
            site=config.site,
        )
        out.append((said, envelope))
        last = said
    return [*out, *changes]


def lead_news(desk: Desk, shown: Sequence[Envelope]) -> list[tuple[LeadChange, Envelope]]:
    """Changes of leads after the last one noted here, or, before the first, from the pinned leads on.

    What was noted is never followed again: one who joined and left since would lead anew.
    """
    coordinator = desk.config.coordinator
    noted = desk.ledger.membership().leads
    start = ChainPlace.read(desk.config.leads_since)
    if not noted and start is not None:
        later = _since(shown, start, "changes of leads")
        last = LeadChange.said(shown[start.number - 1]) if later else None
        return [] if last is None else follow_from(last, later, coordinator=coordinator)
    if not noted:
        return follow(shown, leads=own_leads(desk), coordinator=coordinator)
    last = noted[-1][0]
    if len(shown) <= last.number:  # a coordinator that was put back shows fewer, and nothing new
        return []
    own = shown[noted[0][0].number - 1 : last.number]
    if [one.payload for one in own] != [one.payload for _, one in noted]:
        raise _another("changes of leads")
    return follow_from(last, shown[last.number :], coordinator=coordinator)


def settle_leads(desk: Desk) -> tuple[LeadChange, ...]:
    """Write into site.toml the leads to which the ledger's last change leads; a crash may have come between the two."""
    config, noted = desk.config, [said for said, _ in desk.ledger.membership().leads]
    at = (tuple(sorted(config.leads)), config.threshold)
    places = [k for k, said in enumerate(noted) if (said.before, said.threshold_before) == at]
    behind = noted[places[-1] :] if places and at != (noted[-1].after, noted[-1].threshold) else []
    for said in behind:
        retired = {*desk.config.retired_leads, *([said.leaves] if said.leaves else [])} - set(said.after)
        replace(desk.config, leads=said.after, threshold=said.threshold, retired_leads=tuple(sorted(retired))).save()
        desk.forget()
    return tuple(behind)


def _show_again(desk: Desk, egress: Egress, reply: MembershipReply, *, untold: bool = False) -> None:
    """Show a coordinator that was put back what it has forgotten: who leads, their word on this site, and its own.

    Args:
        untold: show changes of keys beside which some were never acknowledged; else those were shown just now.
    """
    known = desk.ledger.membership()
    keys = known.keys if untold or known.acknowledged == len(known.keys) else ()
    chains = ((known.leads, reply.leads), (keys, reply.keys), (known.grants, reply.grants))
    for own, shown in chains:
        lacking = [envelope for said, envelope in own if said.number > len(shown)]
        if lacking:
            with suppress(Refusal):  # a lead who has left signed it, or it chose otherwise since: its lead is told
                egress.membership(lacking)
