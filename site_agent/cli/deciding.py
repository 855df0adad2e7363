"""Decisions about releases: ``approve``, ``standing``, ``reject``, ``send-back``, ``withdraw``, ``leave``."""

from __future__ import annotations

import datetime as dt
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import Refusal, StateRefusal, UsageRefusal
from shared.privacy.stated import shown_epsilon
from shared.terminal import VerbAnswer, tabled
from site_agent.cli.frame import As, Dry, Json, Reason, ReleaseId, Study, app, screen, standing_app, verb
from site_agent.desk import Desk, agent_now, confirmed, today

if TYPE_CHECKING:
    from rich.console import Console

    from site_agent.ledger.book import Hold

TellLead = Annotated[
    bool, typer.Option("--tell-lead", help="Send the reason to the study lead. Without it the reason stays here.")
]
__all__ = ["approve", "leave", "reject", "send_back", "standing_add", "standing_list", "standing_revoke", "withdraw"]


@verb(app, noted="approve")
def approve(
    desk: Desk,
    release_id: ReleaseId,
    name: As,
    tick: Annotated[list[str] | None, typer.Option("--tick", help="A warning you have looked at; repeat.")] = None,
    json: Json = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Sign exactly these bytes and, when enough people have signed, send them. Safe to repeat."""
    from site_agent.decide.airlock import approval
    from site_agent.decide.airlock.signing import Approver
    from site_agent.show import screens

    desk.require_running()
    full = desk.release_id(release_id)
    before = desk.outbox.get(full)
    done = approval.approve(
        desk,
        full,
        ticked=_ticked(desk, full, list(tick or []), quiet=json),
        by=Approver.at(desk, name, beside=_others(before)),
        now=agent_now(),
        dry_run=dry_run,
    )
    hold, sent = done.hold, done.sent
    answer = {
        "release_id": full,
        "state": hold.state,
        "approvals": [given.name for given in hold.approvals],
        "approvals_needed": hold.approvals_needed,
        "bundle_sha256": hold.bundle_sha256,
        "accepted": sent,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        screens.heading(out, f"Release {full[:8]}", "dry run, not signed" if dry_run else hold.state)
        screens.settings(
            out,
            [
                ("bytes", f"SHA-256 {hold.bundle_sha256}"),
                ("approvals", f"{len(hold.approvals)} of {hold.approvals_needed}"),
                (
                    "sent",
                    f"accepted as entry {sent['log_index']} of the coordinator's log"
                    if sent
                    else "no"
                    if hold.state != "delivered"
                    else "earlier",
                ),
            ],
        )
        if hold.state == "delivered":
            step = f"site-agent federate {hold.study} --wait 60" if hold.follow else "site-agent budget"
            screens.next_step(out, step)
        elif not dry_run:
            screens.next_step(out, f"site-agent approve {full[:8]} --as ANOTHER_NAME")

    return VerbAnswer(answer, show)


@verb(standing_app, "add", noted="standing add")
def standing_add(
    desk: Desk,
    study: Study,
    name: As,
    max_epsilon: Annotated[float, typer.Option("--max-epsilon", metavar="E", help="ε of the dearest release.")],
    until: Annotated[str, typer.Option("--until", metavar="DATE", help="Last day, as 2026-12-31.")],
    dry_run: Dry = False,
) -> VerbAnswer:
    """Sign in advance for later releases of the approved plan: whatever is outside the limits waits for a person."""
    from dataclasses import asdict

    from shared.plans.standing import NO_RELEASE
    from site_agent.decide.airlock import standing_approval
    from site_agent.decide.airlock.signing import Approver
    from site_agent.show import screens

    try:
        last = dt.date.fromisoformat(until)
    except ValueError:
        raise UsageRefusal("--until must be a day", given=repr(until), next_step="Write it as 2027-03-31.") from None
    document, digest = standing_approval.sign_standing(
        desk,
        study,
        max_epsilon=max_epsilon,
        until=last,
        by=Approver.at(desk, name),
        now=agent_now(),
        dry_run=dry_run,
    )

    def show(out: Console) -> None:
        screens.heading(out, f"Standing approval of {study}", "dry run, not signed" if dry_run else f"signed by {name}")
        screens.settings(
            out,
            [
                ("plan", document.plan_hash),
                ("agent version", document.agent_version),
                ("one release", f"at most ε = {shown_epsilon(document.max_epsilon)}"),
                ("until", document.until),
                *(
                    [("rows", f"less than 20 % from the last release that a person approved, now {document.n}")]
                    if document.release_id != NO_RELEASE
                    else []
                ),
            ],
        )
        if document.release_id == NO_RELEASE:
            out.print("A release within these limits is sent as it is drawn: by this plan nobody sees it before.")
        else:
            out.print("A release within these limits, of which nothing needs a tick, is sent without asking again.")
            out.print("Every other one waits for a person, as before. The coordinator checks the limits too.")
        short = digest[:8] if digest else "ID"
        screens.next_step(out, "site-agent run", f"site-agent standing revoke {short} --as NAME --reason …")

    return VerbAnswer({"id": digest, **asdict(document), "dry_run": dry_run}, show)


@verb(standing_app, "list")
def standing_list(
    desk: Desk, study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None
) -> VerbAnswer:
    """Every standing approval, its limits, and how often it was used."""
    from site_agent.decide.airlock import standing_approval

    rows = standing_approval.standing_lines(desk, today(), study)

    cells = [
        (
            row["id"][:8],
            row["study"],
            row["approver"],
            shown_epsilon(row["max_epsilon"]),
            row["until"],
            row["used"],
            row["state"],
        )
        for row in rows
    ]
    heads = ("id", "study", "approver", "ε of one release", "until", "used", "state")
    return VerbAnswer(
        {"standing": rows},
        screen.heading("Standing approvals", f"{sum(row['state'] == 'in force' for row in rows)} in force"),
        tabled(heads, cells, right=("ε of one release", "used")),
    )


@verb(standing_app, "revoke", noted="standing revoke")
def standing_revoke(
    desk: Desk,
    standing_id: Annotated[str, typer.Argument(metavar="ID", help="From the list, or its first characters.")],
    name: As,
    reason: Reason = "",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Take a standing approval back: from now on it approves nothing. Any approver may. The coordinator is told."""
    from site_agent.decide.airlock import standing_approval
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    found = [noted for noted in desk.ledger.standing() if noted.digest.startswith(standing_id)]
    if len(found) != 1:
        raise StateRefusal(
            "an id must name one standing approval",
            given=f"{len(found)} that start with {standing_id!r}",
            next_step="See site-agent standing list.",
        )
    delivered = False
    if not dry_run:
        standing_approval.revoke_standing(desk, found[0].digest, reason=reason, by=Approver.at(desk, name))
        delivered = standing_approval.deliver_revocations(desk)
    answer = {"id": found[0].digest, "study": found[0].study, "by": name, "told": delivered, "dry_run": dry_run}

    delivered_note = "The coordinator has been told, and takes nothing under it any more."
    pending_note = screen.note("The coordinator could not be told yet; site-agent run tells it. Here it is over now.")
    return VerbAnswer(
        answer,
        screen.heading(
            f"Standing approval {found[0].digest[:8]}",
            "dry run, nothing changed" if dry_run else f"revoked by {name}",
        ),
        "Releases wait for a person again. What was sent under it was sent: site-agent withdraw takes it back.",
        delivered_note if delivered else None if dry_run else pending_note,
        screen.next_step("site-agent standing list"),
    )


def _ticked(desk: Desk, full: str, ticked: list[str], *, quiet: bool) -> list[str]:
    """The ticks that were given, and those that a person on the terminal adds when asked."""
    from site_agent.decide.airlock import approval
    from site_agent.release.pipeline import opened

    if quiet or not sys.stdin.isatty() or desk.outbox.get(full).state not in ("held", "sent_back"):
        return ticked
    for check in approval.require_ticks(opened.open_release(desk.outbox, full), ticked):
        if confirmed(f"Warning {check.name}: {check.detail}. Release all the same?"):
            ticked.append(check.name)
    return ticked


def _others(hold: Hold) -> list[str]:
    """Persons who have acted on a release and may not act on it again."""
    return [approval.name for approval in hold.approvals] + ([hold.author] if hold.author_apart else [])


def _declined(
    desk: Desk, release_id: str, done: str, *, name: str, reason: str, for_good: bool, tell: bool, dry_run: bool
) -> VerbAnswer:
    from site_agent.decide import membership
    from site_agent.decide.airlock import approval
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    full = desk.release_id(release_id)
    hold = desk.outbox.get(full)
    if not dry_run:
        hold = approval.decline(desk, full, reason=reason, by=Approver.at(desk, name), for_good=for_good, tell=tell)
        if tell and desk.config.certificate.exists():
            with suppress(Refusal), desk.egress() as egress:  # where it cannot be told now, the next round tells it
                membership.look(desk, egress)
    return VerbAnswer(
        {"release_id": full, "state": hold.state, "by": name, "dry_run": dry_run},
        screen.heading(f"Release {full[:8]}", "dry run, nothing changed" if dry_run else done),
        screen.next_step("site-agent budget" if for_good else f"site-agent outbox show {full[:8]}"),
    )


@verb(app, noted="reject")
def reject(
    desk: Desk, release_id: ReleaseId, name: As, reason: Reason = "", tell_lead: TellLead = False, dry_run: Dry = False
) -> VerbAnswer:
    """Decline sealed bytes for good. They are never sent; their charge stays."""
    done = "rejected: never sent, the charge stays"
    return _declined(desk, release_id, done, name=name, reason=reason, for_good=True, tell=tell_lead, dry_run=dry_run)


@verb(app, "send-back", noted="send-back")
def send_back(
    desk: Desk, release_id: ReleaseId, name: As, reason: Reason = "", tell_lead: TellLead = False, dry_run: Dry = False
) -> VerbAnswer:
    """Ask a question first: the bytes stay sealed, approvals given so far lapse."""
    done = "sent back: sealed, not approved"
    return _declined(desk, release_id, done, name=name, reason=reason, for_good=False, tell=tell_lead, dry_run=dry_run)


@verb(app, noted="withdraw")
def withdraw(
    desk: Desk,
    release_id: Annotated[str, typer.Argument(metavar="ID", help="Of a release, or of a reservation that blocks.")],
    name: As,
    reason: Annotated[
        str, typer.Option("--reason", metavar="KIND", help="consent, error, policy or other: all the hub is told.")
    ],
    note: Annotated[str, typer.Option("--note", help="Why, in a few words; kept in the ledger, sent nowhere.")] = "",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Take a release back: stop it here at once, and have the coordinator bury what it has. The charge stays."""
    from shared.wire.signed_messages import REASONS
    from site_agent.decide.airlock import taking_back
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    if reason not in REASONS:
        raise UsageRefusal(
            f"--reason must be one of {', '.join(REASONS)}",
            given=repr(reason),
            next_step="Say more with --note; it stays here.",
        )
    full = desk.release_id(release_id, sealed=False)
    hold = desk.ledger.hold(full)
    if dry_run:
        taking_back.require_no_copies(desk, hold)
    else:
        hold = taking_back.withdraw(desk, full, reason_code=reason, note=note, by=Approver.at(desk, name))
    buried = hold.withdrawal.log_index if hold.withdrawal else None
    answer = {
        "release_id": full,
        "study": hold.study,
        "wave": hold.wave,
        "state": hold.state,
        "by": name,
        "reason_code": reason,
        "log_index": buried,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"Release {full[:8]}", "dry run, nothing changed" if dry_run else "withdrawn")
        if dry_run:
            far = "it was delivered: the coordinator would be told" if hold.state == "delivered" else "it stays here"
            out.print(f"State now: {hold.state.replace('_', ' ')}; {far}.")
        elif buried is not None:
            out.print(f"The coordinator has buried it, as entry {buried} of its log. Analysts no longer see it.")
        elif hold.withdrawal is not None and hold.withdrawal.settled:
            out.print("It will not be sent. The coordinator has nothing of it.")
        elif hold.bundle_sha256:
            out.print("It will not be sent. Whether the coordinator has anything of it, site-agent run asks.")
        else:
            out.print("It will not be drawn or sent.")
        out.print("Its charge stays: what was drawn was drawn.")
        screens.next_step(out, "site-agent budget")

    return VerbAnswer(answer, show)


@verb(app, noted="leave")
def leave(desk: Desk, study: Study, name: As, note: Reason = "", dry_run: Dry = False) -> VerbAnswer:
    """Leave a study: bury what was delivered, revoke its plan, delete what was sealed. The audit log stays."""
    from site_agent.decide.airlock import taking_back
    from site_agent.decide.airlock.signing import Approver

    before = {hold.release_id for hold in desk.ledger.holds(study) if hold.withdrawal and hold.withdrawal.settled}
    deleted = taking_back.leave(desk, study, by=Approver.at(desk, name), note=note, dry_run=dry_run)
    gone = [hold.release_id for hold in desk.ledger.holds(study) if hold.state == "withdrawn"]
    buried = [release_id for release_id in gone if release_id not in before]
    head = desk.ledger.entries()[-1]
    answer = {
        "study": study,
        "by": name,
        "buried": buried,
        "deleted": deleted,
        "noted": {"seq": head.seq, "hash": head.hash},
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        screens.heading(out, f"Leaving {study}", "dry run, nothing changed" if dry_run else "done")
        cells = [(one.release_id[:8], one.name, f"{one.size:,}", one.sha256[:32] + "…") for one in deleted]
        if cells:
            out.print(table(("release", "file", "bytes", "SHA-256 of what was there"), cells, right=("bytes",)))
        if not dry_run:
            count = "1 release" if len(buried) == 1 else f"{len(buried)} releases"
            out.print(f"{len(deleted)} files deleted, {count} buried at the coordinator.")
            out.print("Proof of deletion: the list above stands in this site's ledger, signed and chained.")
            screens.settings(out, [("entry", head.seq), ("hash", head.hash)])
            out.print("Ledger, plans and approvals stay. Tell the study lead, who takes this site out of the study:")
            out.print(f"coordinator ungrant {desk.config.site} --study {study}. Other studies go on as they are.")
        screens.next_step(out, f"site-agent audit export {study} --out FOLDER")

    return VerbAnswer(answer, show)
