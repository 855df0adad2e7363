"""Becoming a site and seeing how it stands: ``init``, ``join``, ``passphrase``, ``doctor``, ``status``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.base.clock import utc_now
from shared.errors import (
    ApprovalRefusal,
    CertificateRefusal,
    IntegrityRefusal,
    Refusal,
    SchemaRefusal,
    StateRefusal,
    UsageRefusal,
)
from shared.terminal import VerbAnswer
from site_agent.cli.frame import As, Dry, app, screen, verb
from site_agent.decide import reconciliation
from site_agent.decide.plan_facts import burnt_numbers, due_numbers
from site_agent.desk import Desk, agent_version, today
from site_agent.desk import courier as carrier

if TYPE_CHECKING:
    from rich.console import Console

    from shared.base.keys import SigningKey
    from shared.plans.invitation import Invitation
    from site_agent.config import SiteConfig

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
    from shared.plans.invitation import Invitation, is_plain_word, plain_word_of
    from site_agent.config import SiteConfig

    place = desk.home
    try:
        invited = Invitation.from_bytes(invitation.read_bytes())
    except SchemaRefusal as refusal:
        raise SchemaRefusal(
            refusal.must, given=f"{invitation.name}: {refusal.given}", next_step=refusal.next_step
        ) from None
    invited.require_current(today())
    _require_new(place)
    names = approver or []
    if not names:
        raise UsageRefusal(
            "a site must have at least one approver", given="none", next_step="Add --approver NAME, once per person."
        )
    odd = next((name for name in names if not is_plain_word(name)), None)
    if odd is not None:
        raise UsageRefusal(
            "an approver's name must be a plain word: ASCII letters, digits, - and _, without spaces",
            given=repr(odd),
            next_step=f"For example --approver {plain_word_of(odd)}. It stands under every approval of that person.",
        )

    config = SiteConfig(
        home=place,
        site=invited.site,
        coordinator=invited.coordinator,
        address=invited.address,
        server_name=invited.server_name,
        ca_fingerprint=invited.ca_fingerprint,
        leads=tuple(key.hex for key in invited.leads),
        threshold=invited.threshold,
        studies=invited.studies,
        approvers=dict.fromkeys(names, "00" * 32),
        leads_since=invited.leads_since,
        grants_since=invited.grants_since,
        courier=courier,
    )
    fingerprint = "" if dry_run else _make_site(config, invited)
    answer = {
        "site": config.site,
        "home": place,
        "coordinator": config.coordinator,
        "address": config.address,
        "studies": invited.studies,
        "approvers": names,
        "fingerprint": fingerprint,
        "ca_fingerprint": config.ca_fingerprint,
        "dry_run": dry_run,
    }

    rows = [
        ("studies", ", ".join(invited.studies)),
        ("coordinator", f"{config.coordinator} at {config.address}"),
        ("its authority", config.ca_fingerprint),
        ("approvers", ", ".join(names)),
        *([("fingerprint", fingerprint)] if fingerprint else []),
    ]
    aloud = ("", "Read the fingerprint to the study lead on the telephone. The lead accepts this site by it.")
    return VerbAnswer(
        answer,
        screen.heading(f"Site {config.site}", "dry run, nothing written" if dry_run else f"made in {place}"),
        screen.settings(rows),
        *(aloud if fingerprint else ()),
        screen.next_step("site-agent doctor", "site-agent join"),
    )


def _require_new(place: Path) -> None:
    if (place / "site.toml").exists():
        raise StateRefusal(
            "the folder must not hold a site yet", given=f"{place}", next_step="Run site-agent status there."
        )


def _make_site(config: SiteConfig, invited: Invitation) -> str:
    """Make the keys, the ledger and the settings; returns the fingerprint of the release key."""
    from shared.base.passphrases import chosen, opened
    from site_agent.lock import StateLock

    # Asked for first: one that is too short leaves no half-made folder.
    there = {name: opened(path, name) for name in config.approvers if (path := config.approver_key(name)).exists()}
    new = {name: chosen(name) for name in config.approvers if name not in there}
    config.home.mkdir(parents=True, exist_ok=True)
    with StateLock(config.home):
        return _made_alone(config, invited, there, new)


def _made_alone(
    config: SiteConfig, invited: Invitation, there: dict[str, SigningKey], new: dict[str, str | None]
) -> str:
    """As `_make_site` says, where nobody else writes in the folder."""
    import secrets
    from dataclasses import replace

    from shared.base.keys import SigningKey, write_private
    from site_agent.egress import new_tls_identity
    from site_agent.ledger.book import Ledger

    _require_new(config.home)
    # site.toml is written last: an interrupted init is simply run again, and finds the keys it made.
    key = SigningKey.load(config.release_key) if config.release_key.exists() else SigningKey.generate()
    if not config.release_key.exists():
        key.save(config.release_key, of_machine=True)
    approvers = {}
    for name in config.approvers:
        signer = there.get(name) or SigningKey.generate()
        if name in new:
            signer.save(config.approver_key(name), new[name], new=True)
        approvers[name] = signer.public.hex
    if not config.tls_key.exists():
        key_pem, csr_pem = new_tls_identity(config.site)
        write_private(_csr(config), csr_pem.encode())
        write_private(config.tls_key, key_pem.encode())
    if not config.snapshot_key.exists():
        if config.ledger.exists():
            raise IntegrityRefusal(
                "snapshot.key must stand beside the ledger",
                given="a ledger without it",
                next_step="Restore it from a backup: with another key every person would look new.",
            )
        write_private(config.snapshot_key, secrets.token_bytes(32))
    write_private(config.ca, invited.ca_pem.encode())
    write_private(config.ca.with_name("witness.pub"), f"{invited.witness.hex}\n".encode())
    write_private(config.invitation, invited.to_bytes())
    Ledger.create(config.ledger, key, site=config.site)
    replace(config, approvers=approvers).save()
    return key.public.fingerprint


def _csr(config: SiteConfig) -> Path:
    return config.home / "certificates" / "request.pem"


@verb(app)
def join(desk: Desk, dry_run: Dry = False) -> VerbAnswer:
    """Ask the coordinator to accept this site; run it again to fetch the certificate."""
    from shared.base.keys import PublicKey, write_private
    from shared.plans.invitation import Invitation
    from site_agent.egress import Egress

    config = desk.config
    fingerprint = desk.release_key.public.fingerprint
    if config.certificate.exists():
        state, reason = "joined", ""
        known = sorted({*config.studies, *desk.plans.studies()})
        if known and not dry_run:  # a certificate in the folder may have been revoked, or have expired
            with desk.egress() as egress:
                egress.status(known[0])
    elif not config.invitation.exists():
        raise StateRefusal(
            "the invitation must be here until the site has joined", given="none", next_step="Ask for a new one."
        )
    elif dry_run:
        state, reason = "would ask", ""
    else:
        invited = Invitation.from_bytes(config.invitation.read_bytes())
        invited.require_current(today())
        approvers = {name: PublicKey(key) for name, key in config.approvers.items()}
        carried = {"courier": carrier(config)} if config.courier else {}
        with Egress.from_invitation(invited, **carried) as egress:
            answered = egress.enrol(
                token=invited.token,
                site=config.site,
                csr_pem=_csr(config).read_text(),
                signer=desk.release_key,
                approvers=approvers,
            )
        state, reason = answered.state, answered.reason
        if state == "refused":
            raise CertificateRefusal(
                "the study lead must accept this site", given=f"refused: {reason}", next_step="Call the study lead."
            )
        if state == "accepted":
            _require_own_certificate(config, answered.certificate_pem)
            write_private(config.certificate, answered.certificate_pem.encode())
            # The token and the bootstrap key have done their work.
            config.invitation.unlink(missing_ok=True)
            state = "joined"
        elif answered.fingerprint and answered.fingerprint != fingerprint:
            raise IntegrityRefusal(
                "the coordinator must have received this site's key",
                given="another fingerprint",
                next_step="Do not go on. Call the study lead.",
            )

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


def _require_own_certificate(config: SiteConfig, pem: str) -> None:
    from cryptography import x509

    from shared.base.at_rest import private_key

    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        ours = private_key(config.tls_key.read_bytes(), config.tls_key.name).public_key()
    except ValueError:
        raise CertificateRefusal("the certificate must be readable", given="another text") from None
    if certificate.public_key() != ours:
        raise CertificateRefusal(
            "the certificate must be of this site's key", given="another key", next_step="Call the study lead."
        )


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
    asked_for, found, heard = _asked(desk, known) if joined else ([], (), False)
    if not heard:
        found = reconciliation.noted(desk)
    waiting = [h for h in desk.outbox.list() if h.state in ("held", "sent_back", "approved")]
    life = certificate_life(config, utc_now())
    steps = _pressing(desk, steps, differing=bool(found), over=life is not None and life.state == "over")
    answer = {
        "site": config.site,
        "certificate": None if life is None else life.facts,
        "coordinator": config.coordinator,
        "agent_version": agent_version(),
        "fingerprint": desk.release_key.public.fingerprint,
        "joined": joined,
        "paused": desk.paused,
        "studies": studies,
        "outbox": len(waiting),
        "reminders": asked_for if heard else None,
        "discrepancies": [asdict(one) for one in found],
        "log": reconciliation.last_look(desk) or None,
        "next": steps[:1],
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent.show import screens

        state = "PAUSED" if desk.paused else "joined" if joined else "not joined"
        screens.heading(out, f"Site {config.site}", f"{state} · coordinator {config.coordinator}")
        screens.settings(out, [("fingerprint", answer["fingerprint"]), *screens.certificate(life)])
        rows = []
        for row in studies:
            plan = "none" if row["plan"] is None else f"version {row['plan']}"
            # That there is no plan, or no approval yet, the table says itself.
            explained = row["plan"] is None or row.get("refused") == ApprovalRefusal.code
            approved = "yes" if row["approved"] else "no" if explained else f"no ({row['refused']})"
            if not row.get("granted", True):
                approved = "taken away by the study lead"
            elif row.get("granted") and not row["approved"]:
                approved = "no (granted by the study lead)"
            due = ", ".join(map(str, row["due"])) or "none"
            rows.append((row["study"], plan, approved, "yes" if row["table"] else "no", due))
        if rows:
            out.print(table(("study", "plan", "approved", "table", "waves due"), rows))
        waits = {0: "Nothing waits", 1: "1 release waits"}.get(len(waiting), f"{len(waiting)} releases wait")
        out.print(f"{waits} in the outbox.")
        for row in studies:
            for number in row.get("burnt", ()):
                screens.note(
                    out, f"{row['study']}, wave {number}: its draw is burnt. Nothing was sent; the charge stays."
                )
        for one in asked_for:
            screens.note(out, f"The study lead reminds you of {one['study']}, wave {one['wave']} (on {one['day']}).")
        if found:
            screens.note(out, f"{reconciliation.sentence(found)}. Sending it again is free of charge.")
        if joined and not heard:
            out.print("The coordinator does not answer now; what is shown is what this site knows.", style="dim")
        screens.next_step(out, *(steps[:1] or ["nothing to do"]))

    return VerbAnswer(answer, show)


def _study_row(desk: Desk, study: str, day: dt.date, granted: bool | None) -> tuple[dict[str, Any], str]:
    """Where one study stands here, and the command that comes next; blank where there is none.

    Args:
        granted: whether the leads let the site into it after it joined; None where its invitation named it.
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
    try:
        plan = desk.plans.plan(study)
        row["plan"] = plan.version
        row["due"], row["burnt"] = due_numbers(desk, plan, day), burnt_numbers(desk, plan, day)
        desk.plans.approved(study, agent_version=agent_version(), today=day)
        row["approved"] = True
    except Refusal as refusal:
        row["refused"] = refusal.code
    steps = (
        (row["plan"] is None, f"site-agent plan fetch {study}"),
        (not row["table"], f"site-agent data add FILE --as {study}"),
        (not row["approved"], f"site-agent plan show {study}"),
        (bool(row["due"]), f"site-agent release {study} --wave {next(iter(row['due']), 0)}"),
        (bool(row["burnt"]), f"site-agent waves {study}"),
    )
    return row, next((step for asked, step in steps if asked), "")


def _pressing(desk: Desk, steps: list[str], *, differing: bool, over: bool) -> list[str]:
    """What is to be done, the most pressing first.

    Args:
        steps: what the studies ask for.
        differing: the coordinator says something else than this site knows.
        over: the certificate has ended.
    """
    waiting = [h for h in desk.outbox.list() if h.state in ("held", "sent_back", "approved")]
    steps = [*(f"site-agent outbox show {h.release_id[:8]}" for h in waiting), *steps]
    for h in desk.outbox.list():
        if h.left and h.withdrawal is not None and not h.withdrawal.settled:
            command = f"--as {h.withdrawal.name} --reason {h.withdrawal.reason_code}"
            steps.insert(0, f"site-agent withdraw {h.release_id[:8]} {command}")
    if differing:
        steps.insert(0, "site-agent resend")
    if desk.paused:
        steps = ["site-agent resume --as NAME"]
    return ["site-agent renew --late --out FILE", *steps] if over else steps


def _asked(desk: Desk, studies: list[str]) -> tuple[list[dict[str, Any]], tuple[reconciliation.Discrepancy, ...], bool]:
    """What the study lead reminds this site of, where the coordinator's word differs from the ledger, and whether it
    could be asked; it is not awaited."""
    found: list[dict[str, Any]] = []
    differing: list[reconciliation.Discrepancy] = []
    try:
        with desk.egress(timeout=ASKING_SECONDS) as egress:
            for study in studies:
                answer = egress.holdings(study)
                found += [{"study": study, "wave": one.wave, "day": one.day} for one in answer.reminders]
                differing += reconciliation.compare(desk, study, answer)
    except Refusal:
        return found, tuple(differing), False
    return found, tuple(differing), True
