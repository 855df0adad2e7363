"""`coordinator doctor`: what could stop the service, looked at before it does; each finding is green or has its fix."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa

from coordinator.store.schema.homes import claim, lies_in
from shared.base import at_rest
from shared.base.clock import CLOCK_VARIABLE
from shared.errors import CertificateRefusal, IntegrityRefusal, Refusal, StorageRefusal, StoreAway
from shared.terminal import ChecklistLine
from shared.wire.certificates import SITE_DAYS

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography import x509

    from coordinator.config import CoordinatorConfig
    from coordinator.services.authority import Authority
    from coordinator.services.quotas import QuotaUse
    from coordinator.store.store import RegisteredSite, Store
    from shared.plans.plan import StudyPlan

__all__ = [
    "alarms",
    "authority_line",
    "diagnose",
    "misdated",
    "plan_lines",
    "repair",
    "require_home",
    "require_whole",
    "without_store",
]

TOO_LITTLE_SPACE = 1 << 30
FULL = 0.8
Finding = tuple[Literal["ok", "warn", "fail"], str, str]


def diagnose(config: CoordinatorConfig, authority: Authority, store: Store) -> tuple[list[ChecklistLine], int]:
    """Every check of a coordinator's home folder; the server need not run.

    Returns: the checks, and 0 or the exit code of the first that failed.
    """
    code = 0
    found: list[ChecklistLine] = []

    def look(name: str, work: Callable[[], Iterable[Finding]]) -> None:
        nonlocal code
        try:
            found.extend(ChecklistLine(name=name, state=s, detail=detail, fix=fix) for s, detail, fix in work())
        except Refusal as refusal:
            found.append(ChecklistLine.of(name, refusal))
            code = code or refusal.exit_code

    look("clock", lambda: _clock(authority, store))
    look("certificates", lambda: _certificates(authority, store))
    look("keys at rest", lambda: _keys_at_rest(config))
    look("database", lambda: _database(store))
    look("disk", lambda: _disk(config))
    look("bundles", lambda: _bundles(store))
    look("quotas", lambda: _quotas(config, store))
    return found, code


def without_store(
    config: CoordinatorConfig, authority: Authority, refusal: StoreAway
) -> tuple[list[ChecklistLine], int]:
    """What can be looked at while the database is away, after the red line that says so.

    Returns: as of `diagnose`.
    """
    code = refusal.exit_code
    found = [ChecklistLine.of("database", refusal), authority_line(authority, authority.now())]
    for name, work in (("keys at rest", _keys_at_rest), ("disk", _disk)):
        try:
            found += [ChecklistLine(name=name, state=state, detail=said, fix=fix) for state, said, fix in work(config)]
        except Refusal as other:
            found.append(ChecklistLine.of(name, other))
    return found, code


def _clock(authority: Authority, store: Store) -> Iterable[Finding]:
    from coordinator.services.clocks import SeenClocks

    clocks, now = SeenClocks(store, authority.certificate), authority.now()
    verdict = clocks.verdict(now)
    verdict.require()
    if os.environ.get(CLOCK_VARIABLE):
        yield "warn", f"{now:%Y-%m-%d %H:%M} UTC is what {CLOCK_VARIABLE} makes of it", "Unset it, outside tests."
    else:
        yield "ok", f"{now:%Y-%m-%d %H:%M} UTC: {verdict.why}", ""
    for one in clocks.readings():
        if one.state != "agrees":
            yield (
                "warn",
                f"{one.site} is {one.words}, by its reading of {one.day}",
                f"Tell {one.site} to set its clock.",
            )


def misdated(authority: Authority, store: Store) -> list[tuple[str, str]]:
    """Certificates in use whose dates are wrong: (whose, what is wrong).

    A site's that has come to its end is not among them: the site renews it late
    (`coordinator.store.site_certificates.outlook`).
    """
    from cryptography import x509

    from coordinator.services.authority import SERVER_DAYS, SITE_DAYS

    now = authority.now()
    made: list[tuple[str, x509.Certificate, int]] = [("the server", authority.server_certificate, SERVER_DAYS)]
    for site in store.sites():
        if site.state == "accepted" and site.certificate_pem:
            certificate = x509.load_pem_x509_certificate(site.certificate_pem.encode())
            if now <= certificate.not_valid_after_utc:
                made.append((site.site, certificate, SITE_DAYS))
    named = [(whose, authority.misdated(certificate, days, now)) for whose, certificate, days in made]
    return [(whose, wrong) for whose, wrong in named if wrong]


def repair(whose: str, authority: Authority, store: Store, *, dry_run: bool = False) -> bool:
    """Make a misdated certificate anew; False if that is not for this side to do (its site has it in use).

    A site's is issued anew when it next asks (``site-agent join``).
    """
    if whose == "the server":
        if not dry_run:
            authority.renew_server(authority.server_names)
        return True
    return store.forget_certificate(whose, dry_run=dry_run)


def require_whole(store: Store, *, thorough: bool = False) -> None:
    """Raises: IntegrityRefusal, when the database's file is damaged."""
    damage = store.damage(thorough=thorough)
    if damage:
        raise IntegrityRefusal(
            "the coordinator's database must be whole",
            given=damage,
            next_step="Stop the server, keep a copy of the file, and restore it from a backup (coordinator restore).",
        )


def require_home(store: Store, home: Path, authority: Authority) -> None:
    """Claim a database and the place of its bundles for this home. Raises: StateRefusal (another's), StorageRefusal."""
    store.bundles.claim(authority.witness.public.hex)
    url = sa.make_url(store.place[0])
    if not lies_in(url, home):
        store.write(lambda c: claim(c, url, home, store.bundles))


def _certificates(authority: Authority, store: Store) -> Iterable[Finding]:
    wrong = dict(misdated(authority, store))
    if "the server" in wrong:
        raise CertificateRefusal(
            "the server's certificate must be of today",
            given=wrong.pop("the server"),
            next_step="Set the clock (NTP), then coordinator clock repair.",
        )
    from coordinator.store.site_certificates import outlook

    now = authority.now()
    left = (authority.server_certificate.not_valid_after_utc - now).days
    yield "ok", f"the server's has {left} days left, and is renewed by itself", ""
    line = authority_line(authority, now)
    yield line.state, line.detail, line.fix
    for one in outlook(store.sites(), now):
        if one.warning:
            yield "warn", one.warning, one.mend
    for whose, what in wrong.items():
        yield "warn", f"that of {whose} is {what}", "coordinator clock repair, or revoke the site and invite it anew."


def _bundles(store: Store) -> Iterable[Finding]:
    place, warning = store.bundles.try_out()
    accepted = {release.bundle_sha256 for release in store.releases()}
    lacking = len(accepted - store.bundles.names())
    if lacking:
        raise IntegrityRefusal(
            "every accepted bundle must be where bundles are kept",
            given=f"{lacking} of {len(accepted)} that are not",
            next_step="Restore them from the backup (coordinator restore).",
        )
    if warning:
        yield "warn", warning, "Turn versions off, or let the bucket expire them: a study's retention ends at its word."
    else:
        yield "ok", f"{len(accepted)} accepted, all in {place}", ""


def _keys_at_rest(config: CoordinatorConfig) -> Iterable[Finding]:
    from coordinator.services.authority import unattended

    yield at_rest.finding(unattended(config.home), config.home, "coordinator serve")


def _database(store: Store) -> Iterable[Finding]:
    require_whole(store, thorough=True)
    yield "ok", f"whole; {store.entries()} entries in its log (coordinator log verify checks them)", ""


def _disk(config: CoordinatorConfig) -> Iterable[Finding]:
    usage = shutil.disk_usage(config.home)
    share = 1 - usage.free / usage.total
    if usage.free < TOO_LITTLE_SPACE:
        raise StorageRefusal("1 GB must be free", given=f"{usage.free >> 20} MB", next_step="Free space.")
    state: Literal["ok", "warn"] = "warn" if share >= FULL else "ok"
    yield state, f"{usage.free / (1 << 30):.1f} GB free, {share:.0%} used", "Free space before the next wave."


def _quotas(config: CoordinatorConfig, store: Store) -> Iterable[Finding]:
    near = alarms(config, store)
    for use in near:
        yield "warn", use.words, "See what is there; coordinator.toml sets how much may be."
    if not near:
        yield "ok", "nobody is near one", ""


def alarms(config: CoordinatorConfig, store: Store) -> list[QuotaUse]:
    """Quotas of which a site or token has used four fifths or more."""
    from coordinator.services.analysts import Analysts
    from coordinator.services.quotas import quota_uses

    answers = Analysts(store, config.quotas).stored_bytes()
    return [use for use in quota_uses(config.home, store, config.quotas, answers) if use.near]


def authority_line(authority: Authority, now: dt.datetime) -> ChecklistLine:
    """Checklist line on the days left of the authority: warns below `WARNED_BEFORE_END`, fails below `SITE_DAYS`."""
    from coordinator.services.authority import WARNED_BEFORE_END

    left = (authority.ends - now) // dt.timedelta(days=1)
    until = authority.ends - dt.timedelta(days=SITE_DAYS)
    detail = f"the authority's has {left} days left; sites renew under it until {until:%Y-%m-%d}"
    state = "ok" if left >= WARNED_BEFORE_END else "warn" if left >= SITE_DAYS else "fail"
    return ChecklistLine(
        name="authority",
        state=state,  # type: ignore[arg-type]
        detail=detail,
        fix="" if state == "ok" else "coordinator ca rotate: sites follow by themselves.",
    )


def plan_lines(
    plan: StudyPlan, sites: Sequence[RegisteredSite], authority: Authority, now: dt.datetime
) -> list[ChecklistLine]:
    """A plan's calendar held against what its sites hold: red where it outlives what does not renew by itself."""
    from coordinator.services.authority import WARNED_BEFORE_END
    from coordinator.store.site_certificates import outlook

    last = max(wave.closes for wave in plan.waves)
    known = [one for one in outlook(sites, now) if one.life is not None]
    members = {one.site for one in sites if plan.study in one.studies}
    lines = [
        ChecklistLine(name="certificates", state="fail", detail=f"{one.warning}; wave until {last}", fix=one.mend)
        for one in known
        if one.site in members and one.warning and one.life is not None and one.life.ends.date() <= last
    ]
    good = [one for one in known if one.site in members and not one.warning]
    if good:
        first = min(good, key=lambda one: one.life.renews if one.life else last)
        assert first.life is not None
        many = f"{len(good)} sites renew by themselves while their agents run"
        many = many if len(good) > 1 else "1 site renews by itself while its agent runs"
        detail = f"{many}; next {first.site}, from {first.life.renews}"
        lines.append(ChecklistLine(name="certificates", state="ok", detail=detail))
    if authority.ends.date() <= last:
        line = authority_line(authority, now)
        late = (authority.ends - now) // dt.timedelta(days=1) < WARNED_BEFORE_END
        by = authority.ends - dt.timedelta(days=SITE_DAYS)
        detail = (
            f"ends on {authority.ends:%Y-%m-%d}, before the last wave closes ({last}); the next one by {by:%Y-%m-%d}"
        )
        lines.append(ChecklistLine(name="authority", state="fail" if late else "ok", detail=detail, fix=line.fix))
    return lines
