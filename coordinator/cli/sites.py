"""Member sites: ``invite``, ``sites``, ``accept``, ``refuse``, ``revoke``, ``reanchor``; ``import``, ``post-box``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.membership import Fingerprint
from coordinator.cli.options import DryRun, Site, app, labelled, require_still_open, today, verb
from coordinator.config import CoordinatorConfig
from shared.base.canonical import is_word
from shared.base.clock import utc_now
from shared.errors import ParameterError, StateRefusal, meant
from shared.terminal import Part, VerbAnswer, table

if TYPE_CHECKING:
    from rich.console import Console

    from coordinator.store.site_certificates import SiteOutlook
    from coordinator.store.store import RegisteredSite as Enrolled
    from coordinator.store.store import Store

__all__ = ["accept", "import_", "invite", "post_box", "reanchor", "refuse", "revoke", "sites"]


@verb(app, rich_help_panel="Sites")
def invite(
    config: CoordinatorConfig,
    store: Store,
    site: Site,
    study: Annotated[list[str], typer.Option("--study", help="Study it may take part in; repeat for several.")],
    out: Annotated[Path, typer.Option("--out", help="File to write. It holds a secret: hand it over in person.")],
    days: Annotated[int | None, typer.Option("--days", help="Days it may be used.")] = None,
    plan_later: Annotated[
        bool,
        typer.Option(
            "--plan-later", help="The plan is not signed yet: a secure sum's names the keys of all who joined."
        ),
    ] = False,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write one site's invitation: the coordinator's fingerprint, a single-use token, the lead's public keys."""
    from coordinator.services.authority import Authority
    from coordinator.services.clocks import SeenClocks
    from coordinator.services.membership import Members
    from shared.base.keys import write_private
    from shared.plans.invitation import plain_word_of

    if not is_word(site):
        raise ParameterError(
            "a site's name must be a plain word: ASCII letters, digits, - and _, at most 64",
            given=repr(site),
            next_step=f"For example {plain_word_of(site)!r}. It stands in every release, and never changes.",
        )
    if out.exists():
        raise StateRefusal("the invitation's file must be new", given=f"{out}", next_step="Choose another --out.")
    for name in study:
        require_still_open(store, name)
        if not plan_later:
            store.plan(name)  # refused here, not at the site, when there is no such plan
    authority = Authority.load(config.home)
    SeenClocks(store, authority.certificate).verdict(authority.now()).require()
    members = Members(store, config.name)
    members.settle_leads(config.home)
    leads, (leads_since, grants_since) = members.leads(config.home), members.places(site)
    invitation = authority.invite(
        site,
        members.takes_part(site, study),
        config.invitation_days if days is None else days,
        address=config.address,
        leads=list(leads.trusted.values()),
        threshold=leads.threshold,
        leads_since=leads_since,
        grants_since=grants_since,
    )
    if not dry_run:
        store.add_invitation(invitation)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_private(out, invitation.to_bytes(), new=True)
    there = any(one.site == site and one.state == "accepted" for one in store.sites())
    answer = {
        "site": site,
        "studies": invitation.studies,
        "address": invitation.address,
        "ca_fingerprint": invitation.ca_fingerprint,
        "expires": invitation.expires,
        "file": str(out),
        "written": not dry_run,
        "takes_part": there,
    }

    grant = f"coordinator grant {site} --study {study[0]}"
    again = [(f"{site} takes part already and needs no invitation: {grant}", "yellow")] if there else []
    return VerbAnswer(
        answer,
        (f"{'would write' if dry_run else 'wrote'} {out}", "bold"),
        labelled(
            ("site", f"{site}, for {', '.join(invitation.studies)}"),
            ("site dials", invitation.address),
            ("use by", f"{invitation.expires}, once"),
            ("CA fingerprint", invitation.ca_fingerprint),
        ),
        ("It holds a secret: hand it over in person or encrypted, never by plain mail.", "yellow"),
        *again,
        (f"next, when {site} has joined: coordinator sites", "cyan"),
    )


@verb(app, rich_help_panel="Sites")
def sites(config: CoordinatorConfig, store: Store) -> VerbAnswer:
    """List the sites: state, fingerprint, days left on the certificate, releases."""
    from coordinator.services.health import alarms
    from coordinator.store.log_watch import LogWatch
    from coordinator.store.site_certificates import outlook

    watch = LogWatch(store)
    gaps, returned, restored = watch.gaps(), watch.returned(), watch.restorations()
    compared = {one.site: one for one in watch.comparisons()}
    known = store.sites()
    lives = {one.site: one for one in outlook(known, utc_now())}
    near = alarms(config, store)
    counts = {site.site: [0, 0] for site in known}
    for release in store.releases():
        counts[release.site][0] += 1
    for apart in store.quarantined():
        counts[apart.site][1] += 1
    answer = [
        {
            "site": site.site,
            "state": site.state,
            "studies": site.studies,
            "fingerprint": site.fingerprint,
            "release_key": site.release_key.hex,
            **_certificate(lives.get(site.site)),
            "releases": counts[site.site][0],
            "quarantined": counts[site.site][1],
            "lacking": [one.release_id for one in gaps if one.site == site.site],
            "returned": returned.get(site.site, 0),
            "compared": compared[site.site].day if site.site in compared else None,
        }
        for site in known
    ]
    last = restored[-1] if restored else None
    silent = [
        site.site
        for site in known
        if last is not None
        and site.state == "accepted"
        and (site.site not in compared or compared[site.site].size <= last[0])
    ]

    if not answer:
        first = ("next: coordinator invite SITE --study STUDY --out SITE.invitation", "cyan")
        return VerbAnswer(answer, "No site has asked to join yet.", first)
    lost = "of a log that was lost. Its agent sends it again."
    return VerbAnswer(
        answer,
        lambda out: _show_sites(out, answer),
        *(
            (
                f"{one.site} misses wave {one.wave} of {one.study}, acknowledged here as entry {one.log_index} {lost}",
                "red",
            )
            for one in gaps
        ),
        *(
            (f"{site} has sent {count} release(s) again that were lost with a restore.", "green")
            for site, count in sorted(returned.items())
        ),
        (f"Not compared yet since the restore of {last[1].day} (log entry {last[0]}): {', '.join(silent)}.", "yellow")
        if last is not None and silent
        else None,
        *(part for row in answer if row["state"] == "pending" for part in _waits(str(row["site"]))),
        *((f"{one.warning}. {one.mend}", "bold red") for one in lives.values() if one.warning),
        *((f"near its quota: {use.words}", "yellow") for use in near),
    )


def _show_sites(out: Console, answer: list[dict[str, Any]]) -> None:
    from rich.text import Text

    styles = {"accepted": "green", "pending": "yellow", "revoked": "red"}
    rows = [
        [
            row["site"],
            Text(str(row["state"]), style=styles.get(str(row["state"]), "")),
            row["fingerprint"] or None,
            row["certificate_days"],
            row["releases"],
            row["quarantined"] or None,
        ]
        for row in answer
    ]
    heads = ["site", "state", "fingerprint of its release key", "cert days", "releases", "quarantined"]
    out.print(table(heads, rows, right=heads[3:]))


def _waits(site: str) -> tuple[Part, ...]:
    """Instructions for a site that waits to be accepted."""
    # Not filled in on purpose: pasted from here, the comparison would compare nothing.
    command = (f'  coordinator accept {site} --fingerprint "…"', "cyan")
    return "", f"{site} waits. Telephone its steward, and type the fingerprint you hear:", command


@verb(app, rich_help_panel="Sites")
def accept(store: Store, site: Site, fingerprint: Fingerprint, dry_run: DryRun = False) -> VerbAnswer:
    """Let a site in, if the fingerprint its steward read out is that of the key that asked."""
    if dry_run:
        enrolment = _enrolment(store, site)
        same = "".join(fingerprint.lower().split()) == "".join(enrolment.fingerprint.split())
        answer = {"site": site, "matches": same, "accepted": False}
    else:
        store.accept_site(site, fingerprint)
        answer = {"site": site, "matches": True, "accepted": True}

    def show(out: Console) -> None:
        if not dry_run:
            out.print(f"{site} is accepted. It receives its certificate when it asks again (site-agent join).")
        elif answer["matches"]:
            out.print(f"would accept {site}: the fingerprints agree")
        else:
            out.print(f"would refuse {site}: the fingerprints differ", style="red")

    return VerbAnswer(answer, show)


@verb(app, rich_help_panel="Sites")
def refuse(
    store: Store,
    site: Site,
    reason: Annotated[str, typer.Option("--reason", help="Why, in a few words; the site is told.")] = "",
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Turn away a site that waits to be let in; its invitation has served. Another one lets it ask again."""
    found = _enrolment(store, site)
    if found.state != "pending":
        raise StateRefusal(
            "a site must be waiting to be turned away",
            given=f"one that is {found.state}",
            next_step=f"Shut an accepted site out with coordinator revoke {site}.",
        )
    if not dry_run:
        found = store.refuse_site(site, reason)
    answer = {"site": site, "refused": not dry_run, "reason": found.reason if not dry_run else reason}
    words = f"{'would turn' if dry_run else 'turned'} {site} away; coordinator invite lets it ask again"
    return VerbAnswer(answer, words)


@verb(app, rich_help_panel="Sites")
def revoke(
    config: CoordinatorConfig,
    store: Store,
    site: Site,
    since: Annotated[
        str, typer.Option("--since", metavar="DATE", help="Day from which its keys may have been in other hands.")
    ] = "",
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Shut a site out: its certificate and keys count for nothing from now on. --since: nor does what came after it."""
    import datetime as dt

    from coordinator.services.membership import Members

    try:
        first = dt.date.fromisoformat(since) if since else None
    except ValueError:
        raise ParameterError("--since must be a day", given=repr(since), next_step="Write it as 2027-03-31.") from None
    _enrolment(store, site)
    own = [release for release in store.releases() if release.site == site]
    after = [release.release_id for release in own if first is not None and release.accepted_day >= since]
    stale = [
        result.id
        for result in store.results()
        if not result.withdrawn and {r.bundle_sha256 for r in own if r.release_id in after} & set(result.used)
    ]
    if not dry_run:
        store.revoke_site(site)
        if first is not None:
            Members(store, config.name).distrust(site, first, today())
    answer = {
        "site": site,
        "revoked": not dry_run,
        "releases_kept": len(own) - len(after),
        "distrusted": after,
        "results_stale": stale,
    }
    words = f"{'would revoke' if dry_run else 'revoked'} {site}; {len(own) - len(after)} accepted releases stay"

    return VerbAnswer(
        answer,
        words,
        f"{len(after)} of {since} or later count for nothing any more; {len(stale)} results are stale."
        if first is not None
        else None,
    )


@verb(app, rich_help_panel="Sites")
def reanchor(
    store: Store,
    site: Site,
    fingerprint: Annotated[str, typer.Option("--fingerprint", help="What site-agent ledger recover showed there.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Let a site's ledger go on after a restored backup, from the one head its steward read out; kept in the log."""
    _enrolment(store, site)
    left = store.anchor(site)
    if left is None:
        raise StateRefusal(
            "a ledger must have been witnessed to begin anew", given="no anchor", next_step="Nothing to allow."
        )
    index = None if dry_run else store.allow_reanchor(site, fingerprint)
    answer = {"site": site, "allowed": not dry_run, "left_seq": left.seq, "left_head": left.head, "log_index": index}

    return VerbAnswer(
        answer,
        f"{'would let' if dry_run else 'lets'} the ledger of {site} go on from the head with this fingerprint, "
        f"and leave entry {left.seq} behind",
        f"Log entry {index}. Once, and for this head only. The site runs site-agent ledger recover."
        if index is not None
        else None,
    )


def _enrolment(store: Store, site: str) -> Enrolled:
    known = {row.site: row for row in store.sites()}
    if site not in known:
        raise ParameterError("the site must be known", given=repr(site), next_step=meant(site, known, what="Sites"))
    return known[site]


def _certificate(one: SiteOutlook | None) -> dict[str, Any]:
    """Certificate fields of a site's JSON: days left, facts and warning; None and blank without a certificate."""
    life = None if one is None else one.life
    known = {"certificate_days": life.days, "certificate": life.facts} if life is not None else {}
    return {"certificate_days": None, "certificate": None, **known, "certificate_warning": one.warning if one else ""}


@verb(app, "import", rich_help_panel="Sites")
def import_(
    config: CoordinatorConfig,
    store: Store,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What site-agent outbox export wrote.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Take what a courier brought from a site without a line: the calls it would make, by the same rules."""
    from coordinator.services.collect.courier import CourierDesk

    taken = CourierDesk(config, store).take(file, dry_run=dry_run)
    site = taken.header.site
    answer = {
        "site": site,
        "number": taken.header.number,
        "calls": [{"method": method, "refused": code} for method, code in taken.outcomes],
        "newest": taken.newest,
        "taken": not dry_run,
    }
    return VerbAnswer(
        answer,
        (f"{'would take' if dry_run else 'took'} number {taken.header.number} of {site}", "bold"),
        labelled(*((method, code or "done") for method, code in taken.outcomes)),
        (f"next: coordinator post-box {site} FILE", "cyan"),
    )


@verb(app, "post-box", rich_help_panel="Sites")
def post_box(
    config: CoordinatorConfig,
    store: Store,
    site: Site,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, on what is carried.", dir_okay=False)],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write the answers for a site without a line: to what it asked, its plans, acknowledgements and the log's head."""
    from coordinator.services.collect.courier import CourierDesk

    box = CourierDesk(config, store).post_box(site, out, dry_run=dry_run)
    answer = {
        "site": site,
        "file": str(out),
        "number": box.header.number,
        "answers_to": box.answers_to,
        "answers": [{"method": one.method, "refused": one.code} for one in box.answers],
        "written": not dry_run,
    }
    return VerbAnswer(
        answer,
        (f"{'would write' if dry_run else 'wrote'} {out}: {len(box.answers)} answers, signed", "bold"),
        labelled(("answers", f"number {box.answers_to} of {site}"), ("number", f"{box.header.number}")),
        ("next, at the site: site-agent outbox import FILE", "cyan"),
    )
