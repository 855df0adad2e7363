"""Who takes part here: ``grants``, ``approver add``, ``retire``, ``replace``, ``rotate-key``; ``data apart``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import StateRefusal, UsageRefusal
from shared.terminal import VerbAnswer
from site_agent.cli.frame import Dry, Reason, Study, app, approver_app, data_app, screen, verb
from site_agent.desk import Desk, today

if TYPE_CHECKING:
    from rich.console import Console

    from shared.base.keys import SigningKey
    from site_agent.decide.keys import ChangedKey

__all__ = ["approver_add", "approver_replace", "approver_retire", "data_apart", "grants", "rotate_key"]


By = Annotated[list[str], typer.Option("--as", metavar="NAME", help="Who signs; repeat where two must.")]


@verb(app, noted="grants")
def grants(desk: Desk, dry_run: Dry = False) -> VerbAnswer:
    """Ask which studies the leads have let this site into since it joined, and note them. Nothing acts by it."""
    from site_agent.decide import membership

    with desk.egress() as egress:
        news = membership.look(desk, egress, dry_run=dry_run)
    known = desk.ledger.membership()
    rows = [
        {"number": said.number, "study": said.study, "granted": said.granted, "day": said.day}
        for said, _ in known.grants
    ]
    answer = {
        "studies": list(desk.config.studies),
        "grants": rows,
        "new": {"granted": news.granted, "ungranted": news.ungranted, "leads": news.leads},
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        screens.heading(out, "Studies", ", ".join(desk.config.studies) or "none")
        if rows:
            cells = [(row["number"], row["study"], "in" if row["granted"] else "out", row["day"]) for row in rows]
            out.print(table(("number", "study", "let", "day"), cells, right=("number",)))
        for study in news.granted:
            screens.note(
                out, f"The study lead has let this site into {study}. Nothing happens before you approve its plan."
            )
        for study in news.ungranted:
            screens.note(out, f"The study lead has taken this site out of {study}: nothing more is made or sent of it.")
        screens.next_step(out, *(f"site-agent plan fetch {study}" for study in news.granted), "site-agent status")

    return VerbAnswer(answer, show)


@verb(data_app, "apart", noted="data apart")
def data_apart(
    desk: Desk,
    study: Study,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The other study.")],
    by: By,
    reason: Reason = "",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Sign that two studies are about different people. Without it they count as the same, whatever they are called."""
    from site_agent.decide import approvers

    openers = _openers(desk, by)
    before, after = approvers.tell_apart(desk, study, other, by=openers, reason=reason, dry_run=dry_run)
    answer = {"study": study, "other": other, "by": by, "total_before": before, "total": after, "dry_run": dry_run}

    return VerbAnswer(
        answer,
        screen.heading(f"{study} and {other}", "dry run, not signed" if dry_run else f"told apart by {', '.join(by)}"),
        "From now on nobody is taken to be in both: their charges are not added up, and their releases not held",
        "against each other. It cannot be taken back: what was allowed by it has left.",
        screen.next_step("site-agent budget"),
    )


# -- approvers --------------------------------------------------------------------------------------------------------
Person = Annotated[str, typer.Argument(metavar="NAME", help="The person.")]


def _openers(desk: Desk, by: list[str]) -> dict[str, Callable[[], SigningKey]]:
    """Each person's key, opened with their own passphrase."""
    for name in by:
        desk.config.approver_key(name)
    people = list(dict.fromkeys(by))
    return {name: partial(desk.approver, name, beside=[one for one in people if one != name]) for name in people}


def _new_key(desk: Desk, name: str) -> Callable[[], SigningKey]:
    """Makes a person's key under a passphrase that they choose; the one that an interrupted command made is kept."""

    def made() -> SigningKey:
        from shared.base.keys import SigningKey
        from shared.base.passphrases import chosen, opened

        path = desk.config.home / "keys" / "approvers" / f"{name}.pem"
        if path.exists():
            return opened(path, name)
        key, words = SigningKey.generate(), chosen(name)
        if path.exists():
            raise StateRefusal("a person's key must be made once", given=f"{name}'s, made meanwhile by another command")
        key.save(path, words)
        return key

    return made


def _change(done: ChangedKey | None, what: str, *, dry_run: bool, **facts: object) -> VerbAnswer:
    answer = {
        "number": done.said.number if done else None,
        "fingerprint": done.fingerprint if done else "",
        "in_force": bool(done and done.in_force),
        "waits_for_lead": bool(done and done.waits),
        "standing_ended": done.lapsed if done else 0,
        "dry_run": dry_run,
        **facts,
    }

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, what, "dry run, nothing changed" if dry_run else "signed, and in the ledger")
        if done is None:
            return
        if done.fingerprint:
            screens.settings(out, [("fingerprint", done.fingerprint)])
        if done.waits:
            out.print("The old key has not signed it: read this fingerprint to the study lead on the telephone.")
            out.print(f"There: coordinator rekey {done.said.site} --fingerprint …")
        elif done.in_force:
            out.print("The coordinator has it in force.")
        else:
            screens.note(out, "The coordinator could not be told yet; the next contact tells it.")
        if done.lapsed:
            screens.note(out, f"{done.lapsed} standing approval(s) ended: somebody who approves here signs them anew.")
        screens.next_step(out, "site-agent status")

    return VerbAnswer(answer, show)


@verb(approver_app, "add", noted="approver add")
def approver_add(
    desk: Desk,
    person: Person,
    by: By,
    deputy_of: Annotated[str, typer.Option("--deputy-of", metavar="NAME", help="For whose absence.")] = "",
    until: Annotated[str, typer.Option("--until", metavar="DATE", help="A deputy's last day.")] = "",
    dry_run: Dry = False,
) -> VerbAnswer:
    """Let another person approve here, signed by those who do. With --deputy-of: only until a day, for somebody."""
    from site_agent.decide import keys

    openers = _openers(desk, by)
    done = None
    if not dry_run:
        made = _new_key(desk, person)
        done = keys.add_approver(desk, person, by=openers, new=made, today=today(), deputy_of=deputy_of, until=until)
    return _change(done, f"Approver {person}", dry_run=dry_run, approver=person, by=by, needed=keys.needed(desk))


@verb(approver_app, "retire", noted="approver retire")
def approver_retire(desk: Desk, person: Person, by: By, dry_run: Dry = False) -> VerbAnswer:
    """Let a person approve no more. What they approved stays; their standing approvals end."""
    from site_agent.decide import keys

    desk.config.approver_key(person)
    openers = _openers(desk, by)
    done = None if dry_run else keys.retire_approver(desk, person, by=openers, today=today())
    return _change(done, f"Approver {person}", dry_run=dry_run, approver=person, by=by, needed=keys.needed(desk))


@verb(approver_app, "replace", noted="approver replace")
def approver_replace(
    desk: Desk,
    person: Person,
    by: Annotated[list[str] | None, typer.Option("--as", metavar="NAME", help="The others who approve here.")] = None,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Give a person another key whose old one is lost: the study lead compares the new one on the telephone."""
    from site_agent.decide import keys

    path = desk.config.approver_key(person)
    openers = _openers(desk, by or [])
    done = None
    if not dry_run:
        lost = path.with_suffix(".lost")
        if path.exists() and not lost.exists():
            path.rename(lost)
        done = keys.replace_approver(desk, person, by=openers, new=_new_key(desk, person), today=today())
    return _change(done, f"Approver {person}", dry_run=dry_run, approver=person, by=by or [])


@verb(app, "rotate-key", noted="rotate-key")
def rotate_key(
    desk: Desk,
    which: Annotated[str, typer.Argument(metavar="KEY", help="release, tls or snapshot.")],
    by: By,
    lost: Annotated[bool, typer.Option("--lost", help="The release key is lost: without its word.")] = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Give this site another key, signed by the old one and the new: what the old one signed stays signed."""
    from site_agent.decide import keys

    openers = _openers(desk, by)
    if which not in ("release", "tls", "snapshot") or (lost and which != "release"):
        raise UsageRefusal(
            "the key must be release, tls or snapshot, and only the release key can be lost",
            given=f"{which}{' --lost' if lost else ''}",
            next_step="A lost tls or snapshot key comes back with a backup of the folder, or by joining anew.",
        )
    done = None
    if not dry_run and which == "release":
        done = (keys.replace_release if lost else keys.rotate_release)(desk, by=openers, today=today())
    elif not dry_run and which == "snapshot":
        done = keys.rotate_snapshot(desk, by=openers, today=today())
    elif not dry_run:
        from site_agent.decide import renewal

        keys.signed_for(desk, openers)
        renewal.renew(desk)
    return _change(done, f"Key {which}", dry_run=dry_run, key=which, by=by)
