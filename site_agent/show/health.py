"""`doctor`: what could stop a release, looked at before it does; every finding is green or comes with its fix."""

from __future__ import annotations

import datetime as dt
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shared.base import at_rest
from shared.base.clock import CLOCK_VARIABLE, utc_now
from shared.base.keys import require_private
from shared.errors import CertificateRefusal, NetworkRefusal, Refusal, StorageRefusal, StoreAway
from shared.terminal import ChecklistLine
from site_agent.decide.key_files import unattended
from site_agent.ledger.files import require_settled

if TYPE_CHECKING:
    from shared.wire.clocks import ClockOffset
    from site_agent.desk import Desk

__all__ = ["diagnose"]

Finding = tuple[Literal["ok", "warn", "fail"], str, str]
COMPARING_SECONDS = 5.0
LITTLE_SPACE, TOO_LITTLE_SPACE = 2 << 30, 200 << 20


def diagnose(desk: Desk, today: dt.date) -> tuple[list[ChecklistLine], int]:
    """Every check of a site, in the order in which a person would mend them.

    Returns: the checks, and 0 or the exit code of the first that failed.
    """
    config = desk.config
    code = 0
    found: list[ChecklistLine] = []

    def look(name: str, work: Callable[[Desk, dt.date], Finding]) -> None:
        nonlocal code
        try:
            state, detail, fix = work(desk, today)
            found.append(ChecklistLine(name=name, state=state, detail=detail, fix=fix))
        except Refusal as refusal:
            found.append(ChecklistLine.of(name, refusal))
            code = code or refusal.exit_code
        except OSError as error:
            failed = StorageRefusal(f"{name} must be readable", given=error.strerror or "an error")
            found.append(ChecklistLine.of(name, failed))
            code = code or failed.exit_code

    contact = _contacted(desk)
    look("clock", lambda desk, today: _clock(desk, today, contact))
    look("disk", _disk)
    look("permissions", _permissions)
    look("keys at rest", _keys_at_rest)
    look("pinned authority", _authority)
    look("coordinator's key", _witness)
    look("keys in force", _keys_in_force)
    look("certificate", _certificate)
    look("ledger", _ledger)
    look("tables", _tables)
    look("coordinator", lambda desk, today: _reach(desk, contact))
    look("deliveries", _deliveries)
    look("coordinator's log", _log)
    found.append(
        ChecklistLine(
            name="firewall rule",
            detail="none: files are carried"
            if config.courier
            else f"allow outbound TCP to {config.address} (TLS 1.3, mutual, not to be inspected); nothing inbound",
        )
    )
    return found, code


@dataclass(frozen=True, kw_only=True)
class Contact:
    """Result of a call to the coordinator: the offset of its clock, and refusals of the clock or of the call."""

    offset: ClockOffset | None = None
    clock: Refusal | None = None
    reach: Refusal | None = None


def _contacted(desk: Desk) -> Contact:
    """Ask the coordinator, by whatever this site may ask with: its certificate, or its invitation before that."""
    from shared.plans.invitation import Invitation
    from site_agent.egress import AcknowledgedReplies, Egress

    try:
        config, key = desk.config, desk.release_key
        if config.courier:
            return Contact(clock=NetworkRefusal("a clock must have a line to be compared over", given="a courier"))
        if config.certificate.exists():
            opened = desk.egress()
        else:
            invited = Invitation.from_bytes(config.invitation.read_bytes())
            pinned = AcknowledgedReplies(invited.witness, config.site, config.home / "acknowledged.jsonl")
            opened = Egress.from_invitation(invited, witness=pinned)
        with opened as egress:
            try:
                egress.status(next(iter(config.data), "doctor"))
            except (NetworkRefusal, CertificateRefusal):
                raise
            except Refusal:  # an invitation may ask to join and nothing else: being told so is an answer, too
                pass
            try:
                return Contact(offset=egress.clock(config.site, key))
            except Refusal as refusal:
                return Contact(clock=refusal)
    except OSError as error:
        failed = StorageRefusal("what the coordinator is asked with must be readable", given=error.strerror or "no")
        return Contact(clock=failed, reach=failed)
    except Refusal as refusal:
        return Contact(clock=refusal, reach=refusal)


def _clock(desk: Desk, today: dt.date, contact: Contact) -> Finding:
    """This machine's clock beside the coordinator's, which signs what it says: no clock can vouch for itself."""
    now = utc_now()
    shown = f"{now:%Y-%m-%d %H:%M} UTC"
    offset = contact.offset
    if offset is not None and offset.state == "wrong":
        raise CertificateRefusal(
            "this clock and the coordinator's must agree",
            given=f"{shown}, {offset.words} of the time that the coordinator signs",
            next_step="Set the clock (NTP). If it is right, tell the study lead: coordinator clock.",
        )
    for variable in ("TRIBUTARY_TODAY", CLOCK_VARIABLE):
        if os.environ.get(variable):
            return "warn", f"the day is set to {today} by {variable}", "Unset it, outside tests."
    if offset is None:
        refusal = contact.clock
        why = "it does not answer" if refusal is None or refusal is contact.reach else refusal.must
        if isinstance(refusal, StoreAway):
            why = "its database does not answer"
        fix = "Compare it with another clock, and mend the line about the coordinator."
        return "warn", f"{shown}, compared with nobody's: {why}", fix
    if offset.state == "differ":
        return "warn", f"{shown}, {offset.words} of the coordinator's", "Set the clock (NTP)."
    last = desk.ledger.entries()[-1].time
    if now.strftime("%Y-%m-%dT%H:%M:%SZ") < last:
        # Both sides agree on the time now: the entry was made by a clock that was ahead.
        return (
            "ok",
            f"{shown}, as the coordinator's; the ledger's last entry says {last}, its order is its number's",
            "",
        )
    return "ok", f"{shown}, within {max(1, math.ceil(abs(offset.seconds)))} s of the coordinator's", ""


def _disk(desk: Desk, today: dt.date) -> Finding:
    free = shutil.disk_usage(desk.home).free
    if free < TOO_LITTLE_SPACE:
        raise StorageRefusal(
            f"{TOO_LITTLE_SPACE >> 20} MB must be free", given=f"{free >> 20} MB", next_step="Free space."
        )
    return (
        "warn" if free < LITTLE_SPACE else "ok",
        f"{free / (1 << 30):.1f} GB free",
        "Free space before a large release.",
    )


def _permissions(desk: Desk, today: dt.date) -> Finding:
    if not os.access(desk.home, os.W_OK):
        raise StorageRefusal("the site's folder must be writable", given="read-only", next_step="Check its owner.")
    for path in sorted((desk.home / "keys").rglob("*")):
        if path.is_file():
            require_private(path)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    fix = "Run the agent as a user of its own."
    return ("warn" if root else "ok"), "keys are the owner's only" + (", but this runs as root" if root else ""), fix


def _keys_at_rest(desk: Desk, today: dt.date) -> Finding:
    return at_rest.finding(unattended(desk.config), desk.home, "site-agent run --once")


def _authority(desk: Desk, today: dt.date) -> Finding:
    from shared.plans.invitation import certificate_fingerprint
    from site_agent.identity import pinned

    fingerprint = certificate_fingerprint(desk.config.ca.read_text())
    if fingerprint != desk.config.ca_fingerprint:
        raise CertificateRefusal(
            "certificates/ca.pem must be the authority of the invitation",
            given="another certificate",
            next_step="Do not go on. Call the study lead.",
        )
    newest = certificate_fingerprint(pinned(desk.config)[-1])
    if newest != fingerprint:
        return "ok", f"{newest[:29]} …, which the invitation's ({fingerprint[:9]} …) has signed", ""
    return "ok", fingerprint[:29] + " …", ""


def _witness(desk: Desk, today: dt.date) -> Finding:
    """The key under which the coordinator signs what it acknowledges; without it nothing that it says is checked."""
    from shared.base.keys import PublicKey

    path = desk.config.ca.with_name("witness.pub")
    if not path.exists():
        return (
            "warn",
            "certificates/witness.pub is missing: what the coordinator acknowledges is not checked or kept",
            "Restore it from a backup, or ask the study lead for a new invitation and compare the key on the phone.",
        )
    return "ok", PublicKey(path.read_text().strip()).fingerprint, ""


def _keys_in_force(desk: Desk, today: dt.date) -> Finding:
    """Changes of this site's keys that the coordinator has not in force yet; that of a lost one waits for the lead."""
    from site_agent.decide.keys import awaiting_lead, lead_asked

    known, lost = desk.ledger.membership(), awaiting_lead(desk)
    if lost:
        whose = ", ".join(f"that of {one.name}" if one.name else "this site's" for one in lost)
        fix = f"Read the fingerprint to the study lead on the telephone, who runs: {'; '.join(map(lead_asked, lost))}"
        return "warn", f"{whose}, in a lost one's place, waits for the study lead: what it signs is not taken", fix
    left = len(known.keys) - known.acknowledged
    if left:
        return "warn", f"{left} changes that the coordinator was not told of", "site-agent run"
    return "ok", f"{len(known.keys)} changes, all in force at the coordinator" if known.keys else "as joined", ""


def _certificate(desk: Desk, today: dt.date) -> Finding:
    """Remaining life of the certificate; few days left are a warning, as the agent renews it from half of its life."""
    from site_agent.identity import certificate_life

    life = certificate_life(desk.config, utc_now())
    if life is None:
        return "warn", "none yet", "site-agent join"
    if life.state == "over":
        raise CertificateRefusal(
            "the certificate must not be expired",
            given=f"one that {life.words}",
            next_step="Renew it by hand: site-agent renew --late --out FILE, and telephone the study lead.",
        )
    fix = "Does site-agent run? site-agent renew says what is in the way; tell the study lead."
    return ("warn" if life.state == "near" else "ok"), life.words, fix


def _ledger(desk: Desk, today: dt.date) -> Finding:
    entries = desk.ledger.verify()
    require_settled(desk.ledger.path)
    waiting = [hold for hold in desk.ledger.holds() if hold.state == "drawing"]
    if waiting:
        return (
            "warn",
            f"{entries} entries; a draw was interrupted",
            "Run site-agent release: the draw is burnt first.",
        )
    return "ok", f"{entries} entr{'y' if entries == 1 else 'ies'}, chained and signed", ""


def _tables(desk: Desk, today: dt.date) -> Finding:
    from site_agent.records.readers import header

    if not desk.config.data:
        return "warn", "none", "site-agent data add FILE --as STUDY"
    for source in desk.config.data.values():
        header(source)
    return "ok", ", ".join(sorted(desk.config.data)), ""


def _reach(desk: Desk, contact: Contact) -> Finding:
    if contact.reach is not None:
        raise _located(desk, contact.reach)
    if desk.config.courier:
        from site_agent.desk import courier

        last = courier(desk.config).last_day()
        return "ok", f"no line: files are carried, the last post-box is {f'of {last}' if last else 'still to come'}", ""
    return "ok", f"{desk.config.address} answers", ""


def _located(desk: Desk, refusal: Refusal) -> Refusal:
    """The same refusal with the place on the way where it arises, if there is one: the line, the proxy, a box."""
    from site_agent.identity import pinned
    from site_agent.show.network_path import walk

    if isinstance(refusal, StoreAway) or not isinstance(refusal, (NetworkRefusal, CertificateRefusal)):
        return refusal  # the coordinator has answered: the way is free
    try:
        found = walk(desk.config.address, pinned(desk.config))
    except (Refusal, OSError):
        return refusal
    if found.step == "way":
        return refusal
    kind = CertificateRefusal if found.step in ("inspection", "authority") else NetworkRefusal
    must = f"the way to the coordinator at {desk.config.address} must be free"
    return kind(must, given=found.given, next_step=found.ask)


def _deliveries(desk: Desk, today: dt.date) -> Finding:
    """Comparison of the deliveries in the ledger with the files kept here and with the coordinator's holdings."""
    from site_agent.decide import reconciliation

    found = reconciliation.noted(desk)
    studies = sorted({hold.study for hold in desk.ledger.holds()})
    if desk.config.certificate.exists() and studies:
        # That nobody answers, the line above says.
        with suppress(NetworkRefusal, CertificateRefusal), desk.egress(timeout=COMPARING_SECONDS) as egress:
            found = tuple(
                one for study in studies for one in reconciliation.compare(desk, study, egress.holdings(study))
            )
    if found:
        return "warn", reconciliation.sentence(found), "site-agent resend; tell the study lead what it was."
    return "ok", "the coordinator has what it acknowledged", ""


def _log(desk: Desk, today: dt.date) -> Finding:
    """The last look at the coordinator's log, and what it said of restores. Raises: IntegrityRefusal (a fork)."""
    from site_agent.decide import reconciliation

    last, replies = reconciliation.last_look(desk), desk.replies
    if replies is not None:
        replies.require_one_history()
    if last.get("unproven"):
        return "warn", f"{len(last['unproven'])} releases are not proven to stand in it", "site-agent log"
    restored = () if replies is None else replies.restorations()
    words = (
        f"{last['size']} entries, seen to grow, on {last['day']}"
        if "size" in last
        else "not looked at yet (site-agent run)"
    )
    if restored:
        words += f"; put back from a backup {len(restored)} times, last on {restored[-1].day}"
    return "ok", words, ""
