"""Membership and keys: ``grants``, ``approver …``, ``rotate-key``; ``data apart``, ``confirm-persons``, ``frame``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import StateRefusal, UsageRefusal
from shared.terminal import VerbAnswer, tabled
from site_agent.cli.frame import As, Dry, Json, Reason, Study, app, approver_app, data_app, screen, verb
from site_agent.desk import Desk, today

if TYPE_CHECKING:
    from rich.console import Console

    from shared.base.keys import SigningKey
    from site_agent.decide.keys import ChangedKey

__all__ = ["approver_add", "approver_replace", "approver_retire", "data_apart", "data_confirm_persons"]
__all__ += ["data_frame", "grants", "rotate_key"]


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

    cells = [(row["number"], row["study"], "in" if row["granted"] else "out", row["day"]) for row in rows]
    let = "The study lead has let this site into {}. Nothing happens before you approve its plan."
    taken = "The study lead has taken this site out of {}: nothing more is made or sent of it."
    return VerbAnswer(
        answer,
        screen.heading("Studies", ", ".join(desk.config.studies) or "none"),
        tabled(("number", "study", "let", "day"), cells, right=("number",)) if cells else None,
        *(screen.note(let.format(study)) for study in news.granted),
        *(screen.note(taken.format(study)) for study in news.ungranted),
        screen.next_step(*(f"site-agent plan fetch {study}" for study in news.granted), "site-agent status"),
    )


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
        key = SigningKey.generate()
        key.save(path, chosen(name), new=True)
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
        from site_agent.decide.joining import renewal

        keys.signed_for(desk, openers)
        renewal.renew(desk)
    return _change(done, f"Key {which}", dry_run=dry_run, key=which, by=by)


_CONFIRMED = (
    "Sign only if the table holds other persons. The same ones under other identifiers would be charged as if they "
    "were new, and could be released where they have trained: where identifiers were rewritten, map them back to what "
    "they were, or ask the study lead for a new study."
)


@verb(data_app, "confirm-persons", noted="data confirm-persons")
def data_confirm_persons(
    desk: Desk, study: Study, name: As, reason: Reason, json: Json = False, dry_run: Dry = False
) -> VerbAnswer:
    """Sign that a table without the persons of earlier releases holds other persons: for one wave."""
    from site_agent.decide.airlock import person_changes
    from site_agent.decide.airlock.signing import Approver

    desk.config.approver_key(name)
    found = person_changes.vanished(desk, study)
    counted = f"{found.there} of {found.earlier} persons of earlier releases are in the table."
    if not dry_run:
        if not json:
            # Before the key is opened: it is what the signature says.
            typer.echo(f"{counted} {_CONFIRMED}", err=True)
        person_changes.confirm_persons(desk, found, reason=reason, by=Approver.at(desk, name))
    answer = {
        "study": study,
        "wave": found.hold.wave,
        "release_id": found.hold.release_id,
        "earlier": found.earlier,
        "in_the_table": found.there,
        "by": name,
        "reason": reason,
        "dry_run": dry_run,
    }

    said = "dry run, nothing signed" if dry_run else f"signed by {name}, for wave {found.hold.wave} alone"
    return VerbAnswer(
        answer,
        screen.heading(f"Other persons in {study}", said),
        f"{counted} {_CONFIRMED}" if dry_run else None,
        screen.next_step(f"site-agent release {study} --wave {found.hold.wave}"),
    )


def _require_settled(desk: Desk, study: str) -> None:
    """No wave is under way that its frame would be missed by. Raises: StateRefusal."""
    for hold in desk.ledger.holds(study):
        if hold.phase in ("held", "sealed") and not hold.rounds:
            short = hold.release_id[:8]
            act = f"Run site-agent approve {short} --as NAME, or site-agent reject {short} --as NAME"
            raise StateRefusal(
                "every wave must be delivered or rejected before the frame of its network is deleted: it was charged, "
                "and could not be taken up again",
                given=f"wave {hold.wave}, which is {hold.state}",
                next_step=f"{act if hold.phase == 'sealed' else f'Run site-agent release {study} --wave {hold.wave}'}; "
                "then run this again.",
            )


@verb(data_app, "frame")
def data_frame(
    desk: Desk,
    study: Study,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it for good; nobody can be added to the network then.")
    ] = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Show whether the model of a network's held-out persons is kept here, or delete it."""
    from site_agent.release.embeddings import EmbeddingStore

    planned = desk.plans.plan(study).release.sealed
    store = EmbeddingStore(desk.home, study)
    count = len(store.files(desk.ledger))
    there = store.path.exists()
    done = delete and not dry_run
    if delete:
        _require_settled(desk, study)
    if done:
        with desk.locked():
            _require_settled(desk, study)
            store.forget(desk.ledger)
    answer = {
        "study": study,
        "planned": "sealed" if planned else "deleted",
        "frames": 0 if done else count,
        "key": there and not done,
        "deleted": count if delete else 0,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent.show import screens

        screens.heading(out, f"The frame of {study}", "dry run, nothing deleted" if dry_run and delete else "")
        if delete:
            would = "would be deleted" if dry_run else "are deleted, with their key: no copy of them can be read"
            out.print(f"{count} sealed frames {would}.")
        elif not there:
            said = "no release was made yet, or it was deleted" if planned else "the plan deletes it with each run"
            out.print(f"Nothing is kept: {said}.")
        else:
            out.print(f"{count} sealed frames are kept, encrypted: what the model says of persons held out.")
            screens.next_step(out, f"site-agent data frame {study} --delete")

    return VerbAnswer(answer, show)
