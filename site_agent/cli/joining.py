"""Becoming a site and seeing how it stands: ``init``, ``join``, ``passphrase``, ``doctor``, ``status``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.base.clock import utc_now
from shared.errors import (
    ApprovalRefusal,
    NetworkRefusal,
    RateRefusal,
    Refusal,
    StorageRefusal,
    StoreAway,
)
from shared.terminal import VerbAnswer
from site_agent.cli.frame import As, Dry, app, screen, verb
from site_agent.decide import reconciliation
from site_agent.decide.plan_facts import burnt_numbers, charged, due_numbers
from site_agent.desk import Desk, agent_now, agent_version, today

if TYPE_CHECKING:
    from rich.console import Console

    from shared.membership.key_changes import KeyChange
    from shared.plans.plan import StudyPlan

__all__ = ["doctor", "init", "join", "passphrase", "status"]

ASKING_SECONDS = 5.0
"""Longest that `status` waits for the coordinator: whoever asks where the site stands must not wait for a network."""


@verb(app)
def init(
    desk: Desk,
    invitation: Annotated[Path, typer.Option("--invitation", exists=True, dir_okay=False, help="File from the lead.")],
    approver: Annotated[list[str] | None, typer.Option("--approver", help="A person who may approve; repeat.")] = None,
    courier: Annotated[
        bool, typer.Option("--courier", help="There is no line out: files are carried (outbox export, outbox import).")
    ] = False,
    dry_run: Dry = False,
) -> VerbAnswer:
    """Make this site's folder and keys from an invitation. Nothing is sent."""
    from shared.base import at_rest
    from shared.base.passphrases import chosen, opened
    from site_agent.decide.joining import first_run
    from site_agent.decide.key_files import unattended

    place = desk.home
    invited = first_run.invitation_of(invitation, today())
    config = first_run.intended(place, invited, approver or [], courier=courier)
    fingerprint = "" if dry_run else first_run.make(config, invited, opened=opened, chosen=chosen)
    names = list(config.approvers)
    state, detail, fix = at_rest.finding(unattended(config), place, "site-agent run --once")
    lying = None if dry_run else {"state": state, "detail": detail, "fix": fix}
    answer = {
        "site": config.site,
        "home": place,
        "coordinator": config.coordinator,
        "address": config.address,
        "studies": invited.studies,
        "approvers": names,
        "fingerprint": fingerprint,
        "ca_fingerprint": config.ca_fingerprint,
        "keys_at_rest": lying,
        "dry_run": dry_run,
    }

    rows = [
        ("studies", ", ".join(invited.studies)),
        ("coordinator", f"{config.coordinator} at {config.address}"),
        ("its authority", config.ca_fingerprint),
        ("approvers", ", ".join(names)),
        *([("fingerprint", fingerprint)] if fingerprint else []),
        *([("keys at rest", f"{detail}. {fix}".rstrip())] if lying else []),
    ]
    aloud = ("", "Read the fingerprint to the study lead on the telephone. The lead accepts this site by it.")
    return VerbAnswer(
        answer,
        screen.heading(f"Site {config.site}", "dry run, nothing written" if dry_run else f"made in {place}"),
        screen.settings(rows),
        *(aloud if fingerprint else ()),
        screen.next_step("site-agent doctor", "site-agent join"),
    )


@verb(app)
def join(desk: Desk, dry_run: Dry = False) -> VerbAnswer:
    """Ask the coordinator to accept this site; run it again to fetch the certificate."""
    from site_agent.decide.joining import first_run

    config = desk.config
    asked = first_run.ask(desk, today(), dry_run=dry_run)
    state, fingerprint = asked.state, asked.fingerprint

    def show(out: Console) -> None:
        from site_agent.show import screens

        if state == "joined":
            screens.heading(out, f"Site {config.site} has joined {config.coordinator}.")
            study = next(iter(config.studies), "STUDY")
            screens.next_step(out, f"site-agent plan fetch {study}", f"site-agent data add FILE --as {study}")
            return
        detail = "dry run, nothing sent" if dry_run else "asked; waiting for the study lead"
        screens.heading(out, f"Site {config.site}", detail)
        screens.settings(out, [("fingerprint", fingerprint)])
        out.print()
        out.print("The lead compares this fingerprint with you and runs coordinator accept.")
        screens.next_step(out, "site-agent join        (again, when the lead has accepted)")

    return VerbAnswer({"site": config.site, "state": state, "fingerprint": fingerprint}, show)


@verb(app, noted="passphrase")
def passphrase(desk: Desk, name: As, dry_run: Dry = False) -> VerbAnswer:
    """Give an approver's key another passphrase. The key, and all that it signed, stays the same."""
    from shared.base.passphrases import changed

    path = desk.config.approver_key(name)
    key = changed(path, name, dry_run=dry_run)
    answer = {"approver": name, "file": path.name, "fingerprint": key.public.fingerprint, "changed": not dry_run}

    return VerbAnswer(
        answer,
        screen.heading(f"Key of {name}", "dry run, nothing changed" if dry_run else "has a new passphrase"),
        "Copies of the old file, in backups for one, still open with the old one.",
        screen.next_step("site-agent status"),
    )


@verb(app)
def doctor(desk: Desk) -> VerbAnswer:
    """Look at everything that could stop a release: each line is green, or says how to mend it."""
    from site_agent.show.health import diagnose

    found, code = diagnose(desk, today())
    from shared.terminal import checklist

    return VerbAnswer(
        {"checks": found, "ok": code == 0},
        screen.heading("Doctor"),
        lambda out: checklist(out, found),
        screen.next_step("site-agent status") if not any(check.state == "fail" for check in found) else None,
        code=code,
    )


@verb(app)
def status(desk: Desk) -> VerbAnswer:
    """Where this site stands, and what to do next."""
    from dataclasses import asdict

    from shared.base.keys import PublicKey
    from site_agent.decide import keys
    from site_agent.identity import certificate_life

    config = desk.config
    joined = config.certificate.exists()
    day = today()
    said = desk.ledger.membership().studies
    studies = []
    steps: list[str] = [] if joined else ["site-agent join"]
    for study in sorted({*config.studies, *config.data, *desk.plans.studies()}):
        row, step = _study_row(desk, study, day, said.get(study))
        studies.append(row)
        steps += [step] if step else []
    known = [row["study"] for row in studies if row["plan"]]
    account = _account(desk, known) if joined else _Standing()
    found = account.differing if account.heard else reconciliation.noted(desk)
    waiting = [h for h in desk.outbox.list() if h.state in ("held", "sent_back", "approved")]
    forks = 0 if desk.replies is None else desk.replies.forks()
    life = certificate_life(config, utc_now())
    over = life is not None and life.state == "over"
    lost = keys.awaiting_lead(desk)
    refused, differs = account.refused, bool(found) and not forks
    steps = _pressing(desk, steps, differing=differs, over=over, forgotten=account.forgotten, refused=bool(refused))
    steps = [*(f"telephone the study lead, who runs: {keys.lead_asked(one)}" for one in lost), *steps]
    answer = {
        "site": config.site,
        "certificate": None if life is None else life.facts,
        "coordinator": config.coordinator,
        "agent_version": agent_version(),
        "fingerprint": desk.release_key.public.fingerprint,
        "joined": joined,
        "paused": desk.paused,
        "forgotten": account.forgotten if account.heard else None,
        "unallowed": account.unallowed,
        "refused": None if refused is None else refused.code,
        "store_away": account.store_away,
        "studies": studies,
        "outbox": len(waiting),
        "reminders": account.reminders if account.heard else None,
        "discrepancies": [asdict(one) for one in found],
        "log": reconciliation.last_look(desk) or None,
        "forks": forks,
        "keys_waiting": [
            {"role": one.role, "name": one.name, "fingerprint": PublicKey(one.new).fingerprint} for one in lost
        ],
        "next": steps[:1],
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        state = "PAUSED" if desk.paused else "joined" if joined else "not joined"
        screens.heading(out, f"Site {config.site}", f"{state} · coordinator {config.coordinator}")
        screens.settings(out, [("fingerprint", answer["fingerprint"]), *screens.certificate(life)])
        rows = [_cells(row) for row in studies]
        if rows:
            out.print(table(("study", "plan", "approved", "table", "waves due"), rows))
        waits = {0: "Nothing waits", 1: "1 release waits"}.get(len(waiting), f"{len(waiting)} releases wait")
        out.print(f"{waits} in the outbox.")
        if forks:
            screens.note(
                out,
                "The coordinator's log is not the one that this site has seen: no release is sent, and no training "
                "answered. Call the study lead; site-agent doctor says more.",
            )
        for line in (*_waiting_keys(lost), *_notes(config.site, studies, account)):
            screens.note(out, line)
        if found:
            screens.note(out, f"{reconciliation.sentence(found)}. Sending it again is free of charge.")
        _unheard(out, account, joined=joined)
        screens.next_step(out, *(steps[:1] or ["nothing to do"]))

    return VerbAnswer(answer, show)


def _unheard(out: Console, account: _Standing, *, joined: bool) -> None:
    """Say why the coordinator's account is not shown, where it is not."""
    from site_agent.show import screens

    if account.refused is not None:
        screens.note(out, f"The coordinator refuses this site ({account.refused.code}): {account.refused}")
    elif account.store_away:
        screens.note(
            out,
            "The coordinator answers, but its database does not: the line and the proxy are well. What is shown is "
            "what this site knows; nothing is lost, and the agent asks again. Tell the study lead if it lasts.",
        )
    elif joined and not account.heard:
        out.print("The coordinator does not answer now; what is shown is what this site knows.", style="dim")


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A study's line of the table: its name, plan, approval, table and waves due."""
    plan = "none" if row["plan"] is None else f"version {row['plan']}"
    # That there is no plan, or no approval yet, the table says itself.
    explained = row["plan"] is None or row.get("refused") == ApprovalRefusal.code
    approved = "yes" if row["approved"] else "no" if explained else f"no ({row['refused']})"
    if not row.get("granted", True):
        approved = "taken away by the study lead"
    elif row.get("left"):
        plan, approved = "–", "left"
    elif row.get("granted") and not row["approved"]:
        approved = "no (granted by the study lead)"
    return row["study"], plan, approved, "yes" if row["table"] else "no", ", ".join(map(str, row["due"])) or "none"


def _waiting_keys(lost: Sequence[KeyChange]) -> Iterator[str]:
    """What a key in the place of a lost one waits for, a line each."""
    for one in lost:
        whose = f"approver {one.name}" if one.name else "this site's agent"
        yield (
            f"The key of {whose} took a lost one's place and is not in force at the coordinator: nothing that it signs "
            "is taken there. Read its fingerprint to the study lead on the telephone; the next site-agent run hears "
            "that it is done."
        )


def _notes(site: str, studies: Sequence[Mapping[str, Any]], account: _Standing) -> Iterator[str]:
    """What needs a second look, a line each."""
    for row in studies:
        for number in row.get("burnt", ()):
            yield f"{row['study']}, wave {number}: its draw is burnt. Nothing was sent; the charge stays."
        if row.get("over_budget"):
            yield (
                f"{row['study']}, wave {row['due'][0]}: what was counted as spent after the restore leaves no room for "
                "it in the plan's ε. It is refused until the study lead signs a plan with more."
            )
    if account.unallowed:
        yield (
            f"The study lead has not allowed the restored ledger yet (coordinator reanchor {site} --fingerprint "
            f'"{account.unallowed}"). Until then nothing is released.'
        )
    elif account.forgotten:
        yield "The coordinator has witnessed entries that this ledger lacks. Nothing is released."
    for one in account.reminders:
        yield f"The study lead reminds you of {one['study']}, wave {one['wave']} (on {one['day']})."


def _study_row(desk: Desk, study: str, day: dt.date, granted: bool | None) -> tuple[dict[str, Any], str]:
    """State of one study at this site, and the next command to run; blank for none.

    Args:
        granted: whether the leads admit the site to it, by a grant after it joined; None without such a grant.
    """
    row: dict[str, Any] = {
        "study": study,
        "plan": None,
        "approved": False,
        "table": study in desk.config.data,
        "due": [],
        "burnt": [],
    }
    if granted is not None:
        row["granted"] = granted
        if not granted:
            return row, ""
    if desk.ledger.left_study(study):
        return {**row, "left": True}, ""
    try:
        plan = desk.plans.plan(study)
        row["plan"] = plan.version
        row["due"], row["burnt"] = due_numbers(desk, plan, day), burnt_numbers(desk, plan, day)
        row["over_budget"] = _over_budget(desk, plan, day, row["due"])
        desk.plans.approved(study, agent_now())
        row["approved"] = True
        if plan.release.follow:
            from site_agent.training.secure_sum.member import awaited

            row["sum"] = awaited(desk.ledger, plan)
    except Refusal as refusal:
        row["refused"] = refusal.code
    steps = (
        (row["plan"] is None, f"site-agent plan fetch {study}"),
        (not row["table"], f"site-agent data add FILE --as {study}"),
        (not row["approved"], f"site-agent plan show {study}"),
        (row.get("over_budget", False), f"site-agent budget {study}"),
        (bool(row["due"]), f"site-agent release {study} --wave {next(iter(row['due']), 0)}"),
        (bool(row["burnt"]), f"site-agent waves {study}"),
        (row.get("sum", False), f"site-agent federate {study}"),
    )
    return row, next((step for asked, step in steps if asked), "")


def _over_budget(desk: Desk, plan: StudyPlan, day: dt.date, due: list[int]) -> bool:
    """True if what a recovery counted as spent leaves no room for the wave that is due.

    Where nothing was counted so, the plan's approval has shown what its waves add up to.
    """
    if not due or not desk.ledger.recoveries():
        return False
    found = charged(desk, plan, day)
    return due[0] in found["to_come"] and due[0] > (found["last_affordable"] or 0)


def _pressing(
    desk: Desk, steps: list[str], *, differing: bool, over: bool, forgotten: bool, refused: bool
) -> list[str]:
    """Commands to run next, the most urgent first.

    Args:
        steps: commands found before: to join, and the next one of each study.
        differing: the coordinator's account differs from this site's.
        over: the certificate has expired.
        forgotten: the coordinator has witnessed what this ledger lacks.
        refused: the coordinator takes no call of this site.
    """
    from site_agent.ledger.files import RESTORED

    waiting = [h for h in desk.outbox.list() if h.state in ("held", "sent_back", "approved")]
    steps = [*(f"site-agent outbox show {h.release_id[:8]}" for h in waiting), *steps]
    for h in desk.ledger.holds():
        if h.left and h.withdrawal is not None and not h.withdrawal.settled:
            command = f"--as {h.withdrawal.name} --reason {h.withdrawal.reason_code}"
            steps.insert(0, f"site-agent withdraw {h.release_id[:8]} {command}")
    if differing:
        steps.insert(0, "site-agent resend")
    if forgotten or (desk.home / RESTORED).exists():
        steps.insert(0, "site-agent ledger recover")
    if refused:
        steps.insert(0, "site-agent doctor")
    if desk.paused:
        steps = ["site-agent resume --as NAME"]
    return ["site-agent renew --late --out FILE", *steps] if over else steps


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """What the coordinator holds of this site, as it said now.

    Args:
        heard: it answered. store_away: it answered, and its database did not.
        refused: why it takes no call of this site, where it does not.
        reminders: of the study lead. differing: where this site's ledger says otherwise.
        forgotten: it has witnessed a head that this ledger lacks: an old copy.
        unallowed: fingerprint of the head after what is lacking was counted, until the lead has allowed it.
    """

    heard: bool = False
    store_away: bool = False
    refused: Refusal | None = None
    reminders: tuple[dict[str, Any], ...] = ()
    differing: tuple[reconciliation.Discrepancy, ...] = ()
    forgotten: bool = False
    unallowed: str = ""


def _account(desk: Desk, studies: list[str]) -> _Standing:
    """The coordinator's answer about these studies; a call waits for `ASKING_SECONDS` at most."""
    said = _Standing()
    try:
        with desk.egress(timeout=ASKING_SECONDS) as egress:
            for study in studies:
                try:
                    answer = egress.holdings(study)
                except (NetworkRefusal, RateRefusal, StorageRefusal):
                    raise
                except Refusal as refusal:
                    return replace(said, refused=refusal)
                found = tuple({"study": study, "wave": one.wave, "day": one.day} for one in answer.reminders)
                differing = (*said.differing, *reconciliation.compare(desk, study, answer))
                said = replace(said, reminders=(*said.reminders, *found), differing=differing)
                if answer.anchored is not None and not desk.ledger.holds_head(answer.anchored):
                    said = replace(said, forgotten=True, unallowed=desk.ledger.recovered(answer.anchored))
    except StoreAway:
        return replace(said, store_away=True)
    except Refusal:
        return said
    return replace(said, heard=True)
