"""Certificates, renewed automatically or by the lead: ``ca``, ``ca rotate``, ``ca replace``, ``renew-late``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.membership import Fingerprint, signing_keys
from coordinator.cli.options import DryRun, Json, Keys, Site, app, ca_app, labelled, open_store, show_facts, today, verb
from coordinator.config import CoordinatorConfig
from shared.errors import DataFileRefusal, ParameterError, StateRefusal
from shared.terminal import VerbAnswer, emit

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.services.authority import Authority
    from coordinator.services.membership import Members
    from coordinator.store.store import Store

__all__ = ["ca", "ca_replace", "ca_rotate", "renew_late"]


@ca_app.callback(invoke_without_command=True)
def ca(context: typer.Context, json: Json = False) -> None:
    """Show the certificate authority in force, those before it, and the server's certificate."""
    if context.invoked_subcommand:
        return
    from cryptography import x509

    from coordinator.services.authority import Authority
    from shared.base.keys import Envelope
    from shared.membership.authorities import AuthorityReplacement
    from shared.plans.invitation import certificate_fingerprint

    config = CoordinatorConfig.load(context.obj)
    authority = Authority.load(config.home)
    before = [
        {
            "fingerprint": certificate_fingerprint(pem),
            "ends": x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc.date(),
        }
        for pem in authority.before
    ]
    server = authority.server_certificate.not_valid_after_utc
    gone = [AuthorityReplacement.said(Envelope.from_bytes(data)) for data in authority.replaced]
    answer: dict[str, Any] = {
        "replaced": [{"before": one.before, "day": one.day, "reason": one.reason} for one in gone],
        "to_come": _to_come(config, authority) if gone else [],
        "fingerprint": authority.fingerprint,
        "ends": authority.ends.date(),
        "before": before,
        "server": {"ends": server.date(), "due": authority.server_due},
    }

    def show(out: Console) -> None:
        out.print(f"authority {authority.fingerprint}", style="bold")
        show_facts(
            out,
            ("until", f"{authority.ends:%Y-%m-%d}; the next one: coordinator ca rotate"),
            ("server's certificate", f"until {server:%Y-%m-%d}, renewed by itself"),
            *(("before it", f"{one['fingerprint']}, believed until {one['ends']}") for one in before),
            *((("to come", f"{', '.join(answer['to_come'])}: coordinator renew-late"),) if answer["to_come"] else ()),
            *(("replaced", f"{one.before} on {one.day}, believed no more: {one.reason}") for one in gone),
        )

    emit(answer, as_json=json, show=show)


def _to_come(config: CoordinatorConfig, authority: Authority) -> list[str]:
    """Accepted sites that have no certificate of an authority that is believed."""
    from coordinator.store.site_certificates import issued_by

    with open_store(config) as store:
        accepted = [site for site in store.sites() if site.state == "accepted" and site.certificate_pem]
    return [one.site for one in accepted if not issued_by(one.certificate_pem, [*authority.before, authority.ca_pem])]


@verb(ca_app, "rotate")
def ca_rotate(config: CoordinatorConfig, store: Store, dry_run: DryRun = False) -> VerbAnswer:
    """Make the next authority, signed by this one. Sites and analysts follow by themselves; nobody has to be asked.

    A server that runs takes it up at the next connection. Both authorities are believed until the older one's end.
    """
    from coordinator.services.authority import Authority, rotate
    from coordinator.services.clocks import SeenClocks

    before = Authority.load(config.home)
    SeenClocks(store, before.certificate).verdict(before.now()).require()
    made, _ = rotate(before, dry_run=dry_run)
    answer = {
        "before": before.fingerprint,
        "believed_until": before.ends.date(),
        "fingerprint": None if dry_run else made.fingerprint,
        "ends": None if dry_run else made.ends.date(),
        "rotated": not dry_run,
    }

    return VerbAnswer(
        answer,
        (f"would make the authority that follows {before.fingerprint}", "bold")
        if dry_run
        else (f"authority {made.fingerprint}, until {made.ends:%Y-%m-%d}", "bold"),
        labelled(("before it", f"believed until {before.ends:%Y-%m-%d}"), ("sites", "follow at their next call")),
        ("Take a backup now: its keys are in no earlier one.", "yellow") if not dry_run else None,
    )


@verb(ca_app, "replace")
def ca_replace(
    config: CoordinatorConfig,
    store: Store,
    reason: Annotated[str, typer.Option("--reason", help="One line; it stands in the log and in every site's record.")],
    key: Keys = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Make another authority in the place of one whose key may be in other hands. The leads sign it, not the old one.

    From the next connection on the old one's certificates open no door here: no site and no analyst connects before a
    person there has pinned the new one. Telephone each site and read the fingerprint out.
    """
    from coordinator.services.authority import Authority, replace_authority
    from coordinator.services.clocks import SeenClocks
    from coordinator.services.membership import Members

    before = Authority.load(config.home)
    members = Members(store, config.name)
    members.note_replacements(before.replaced)  # one whose command was killed before it was logged
    SeenClocks(store, before.certificate).verdict(before.now()).require()
    keys = [] if dry_run else signing_keys(config, key)
    leads = members.leads(config.home)
    made = replace_authority(before, reason=reason, leads=leads, keys=keys, dry_run=dry_run)
    members.note_replacements(made.replaced)
    sites = [site.site for site in store.sites() if site.state == "accepted"]
    answer = {
        "before": before.fingerprint,
        "fingerprint": None if dry_run else made.fingerprint,
        "ends": None if dry_run else made.ends.date(),
        "sites": sites,
        "replaced": not dry_run,
    }
    each = [f"{site}: site-agent renew --late --out FILE; you: coordinator renew-late {site}" for site in sites]
    return VerbAnswer(
        answer,
        (f"would replace the authority {before.fingerprint}", "bold")
        if dry_run
        else (f"authority {made.fingerprint}, until {made.ends:%Y-%m-%d}", "bold"),
        labelled(("before it", f"{before.fingerprint}, believed no more"), ("reason", reason)),
        "Until it has done so, a site believes the old one, and whoever has its key can play this coordinator to it.",
        *each,
        "Invitations that were not used, and analysts' files, hold the old one: make them anew.",
        ("Take a backup now: its keys are in no earlier one.", "yellow") if not dry_run else None,
    )


@verb(app, "renew-late", rich_help_panel="Sites")
def renew_late(
    config: CoordinatorConfig,
    store: Store,
    site: Site,
    request: Annotated[Path, typer.Option("--request", help="The file that the site sent.", dir_okay=False)],
    fingerprint: Fingerprint,
    out: Annotated[Path, typer.Option("--out", help="File to write for the site. It holds no secret.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Give a site that was away for longer than its certificate lives its next one; ledger, keys and history stay.

    Telephone its steward first: the fingerprint is that of the request, which the site's pinned release key has signed.
    """
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks
    from coordinator.services.membership import Members
    from coordinator.store.site_certificates import SiteCertificates
    from shared.base.keys import Envelope, write_private
    from shared.membership.authorities import AuthorityReplacement
    from shared.wire.certificates import CertificateLife, LateAnswer

    if out.exists():
        raise StateRefusal("the answer's file must be new", given=f"{out}", next_step="Choose another --out.")
    try:
        data = request.read_bytes()
    except OSError as error:
        raise DataFileRefusal(f"{request.name} must be readable", given=error.strerror or "an error") from None
    authority = Authority.load(config.home)
    SeenClocks(store, authority.certificate).verdict(authority.now()).require()
    members = Members(store, config.name)
    members.note_replacements(authority.replaced)
    certificates = SiteCertificates(store)
    late = certificates.late_request(data)
    if late.request.site != site:
        raise ParameterError(
            "the request must be of the site that is named",
            given=f"one of {late.request.site}",
            next_step="Telephone the site whose name it bears.",
        )
    made = certificates.answer_late(
        late,
        fingerprint,
        issue=lambda csr_pem, name, serial: authority.issue(csr_pem, name, serial=serial),
        statements=_words(authority, members),
        believed=[*authority.before, authority.ca_pem],
        witness=authority.witness,
        today=today(),
        dry_run=dry_run,
    )
    until = None
    if made is not None:
        write_private(out, made.to_bytes(), new=True)
        answered = LateAnswer.from_bytes(made.payload).certificate_pem
        until = CertificateLife.of(answered, authority.now()).ends.date()
    # The one that began anew, whose word all that follow it are: it is what the site pins.
    aloud = AuthorityReplacement.said(Envelope.from_bytes(authority.replaced[-1])).after if authority.replaced else None
    answer = {"site": site, "file": str(out), "until": until, "renewed": not dry_run, "ledger_behind": late.behind}
    answer["authority"] = aloud

    did = "would write" if dry_run else "wrote"
    return VerbAnswer(
        answer,
        (f"{did} {out} for {site}{'' if until is None else f', until {until}'}", "bold"),
        f"The ledger of {site} is older than the one witnessed here: site-agent ledger recover."
        if late.behind
        else None,
        f"Read to the steward, on the telephone, the fingerprint of the authority: {aloud}" if aloud else None,
        (
            f"next, at {site}: site-agent renew --late --answer FILE{' --authority FINGERPRINT' if aloud else ''}",
            "cyan",
        ),
    )


def _words(authority: Authority, members: Members) -> list[bytes]:
    """Signed statements that lead a site to the current authority.

    After a replacement they include that statement, which leads sign, and the changes of leads.
    """
    if not authority.replaced:
        return [*authority.statements]
    changes = [envelope.to_bytes() for _, envelope in members.lead_changes()]
    return [*changes, authority.replaced[-1], *authority.statements]
