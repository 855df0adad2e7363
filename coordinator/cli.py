"""`coordinator`: the study lead's command line.

Each verb is one library call and a way of showing its answer. Verbs that read take ``--json``; verbs that change
something take ``--dry-run`` as well. Everything heavy is imported inside the verb that needs it, so that help is
instant. There is no verb that starts work at a site or sends one code: a site acts on a plan its steward approved.
"""

from __future__ import annotations

import datetime as dt
import difflib
import os
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.config import FILE_NAME, HOME_VARIABLE, Config, default_home
from shared.errors import IntegrityRefusal, ParameterError, PlanRefusal, PlanRollback, StateRefusal
from shared.prescriptions import UNGUARANTEED
from shared.terminal import application, checklist, console, emit, plain, run, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console

    from coordinator.queries import Answer
    from coordinator.store import Release, SavedResult, Store
    from coordinator.store import Site as Enrolled
    from shared.federated import FederatedFlow
    from shared.generators.fits import Progress
    from shared.keys import PublicKey, SigningKey
    from shared.plan import StudyPlan

__all__ = ["app", "main"]

PASSPHRASE_VARIABLE = "TRIBUTARY_PASSPHRASE"

app = application("Collect privatised releases from hospitals, and pool them.")
plan_app = application("Write, check, price and sign study plans.")
release_app = application("Look at one release.")
wave_app = application("The calendar of a study, and who has delivered. Nothing here starts work at a site.")
federate_app = application("A flow that all sites of a study train together. The sites dial in; no record moves.")
analyst_app = application("Analysts' tokens: who may ask, in which studies, until when.")
log_app = application("The append-only log of accepted releases.", bare=True)
app.add_typer(plan_app, name="plan", rich_help_panel="Set up")
app.add_typer(release_app, name="release", rich_help_panel="Releases")
app.add_typer(wave_app, name="wave", rich_help_panel="Releases")
app.add_typer(federate_app, name="federate", rich_help_panel="Releases")
app.add_typer(analyst_app, name="analyst", rich_help_panel="Answers")
app.add_typer(log_app, name="log", rich_help_panel="Releases")

Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
SITE_LIST_TYPE = "application/vnd.tributary.site-list+json"
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
PlanFile = Annotated[Path, typer.Argument(help="The study plan, a TOML file.")]
Site = Annotated[str, typer.Argument(help="The site's name.")]


@app.callback()
def _home(
    context: typer.Context,
    home: Annotated[Path | None, typer.Option("--home", help=f"Home folder (or {HOME_VARIABLE}).")] = None,
) -> None:
    context.obj = home or default_home()


def main(argv: Sequence[str] | None = None) -> int:
    """The `coordinator` command; returns its exit code."""
    return run(app, name="coordinator", argv=argv)


# -- setting up ---------------------------------------------------------------------------------------------------
@app.command(rich_help_panel="Set up")
def init(
    context: typer.Context,
    name: Annotated[str, typer.Option("--name", help="The coordinator's id; plans name it.")] = "tributary-hub",
    address: Annotated[str, typer.Option("--address", help="host:port that sites dial.")] = "localhost:8443",
    listen: Annotated[str, typer.Option("--listen", help="host:port to bind; the port of --address if left out.")] = "",
    san: Annotated[list[str] | None, typer.Option("--san", help="Further DNS name or IP in the certificate.")] = None,
    lead: Annotated[list[str] | None, typer.Option("--lead", help="Name of a lead's key; repeat for several.")] = None,
    threshold: Annotated[int, typer.Option("--threshold", help="Lead signatures that a plan must carry.")] = 1,
    analysts: Annotated[str, typer.Option("--analysts", help="host:port that analysts dial; none if left out.")] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make the home folder: settings, certificate authority, server certificate and the leads' keys."""
    home: Path = context.obj
    host = address.rpartition(":")[0].strip("[]")
    config = Config(
        home=home,
        name=name,
        address=address,
        listen=listen or f"0.0.0.0:{address.rpartition(':')[2]}",
        names=tuple(dict.fromkeys([host, *(san or [])])),
        threshold=threshold,
        analysts=analysts,
    )
    leads = list(dict.fromkeys(lead or ["lead"]))
    if threshold > len(leads):
        raise ParameterError(
            "there must be at least as many leads as signatures",
            given=f"{len(leads)} and {threshold}",
            next_step="Repeat --lead.",
        )
    if (home / FILE_NAME).exists():
        raise StateRefusal(
            "the home folder must be new",
            given=f"{home}",
            next_step=f"Edit its {FILE_NAME}, or choose another --home.",
        )
    if dry_run:
        made = {"home": str(home), "name": name, "address": address, "names": config.names, "created": False}
        emit(made, as_json=json, show=lambda out: out.print(f"would create {home} for {name} at {address}"))
        return
    from coordinator.authority import Authority
    from shared.keys import SigningKey, write_private

    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    fingerprints: dict[str, str] = {}
    unlocked = []
    for who in leads:
        passphrase = _passphrase(who, confirm=True)
        key = SigningKey.generate()
        key.save(home / "keys" / f"{who}.pem", passphrase)
        write_private(home / "keys" / f"{who}.pub", f"{key.public.hex}\n".encode())
        fingerprints[who] = key.public.fingerprint
        unlocked += [who] if passphrase is None else []
    # The settings are written last: an init that was interrupted is started again, and takes up its authority.
    there = (home / "ca" / "ca.key").exists()
    authority = Authority.load(home) if there else Authority.create(home, coordinator=name, names=config.names)
    with _open(config):
        write_private(home / FILE_NAME, config.to_toml().encode())
    made = {
        "home": str(home),
        "name": name,
        "address": address,
        "names": config.names,
        "ca_fingerprint": authority.fingerprint,
        "leads": fingerprints,
        "threshold": threshold,
        "passphrase": not unlocked,
        "created": True,
    }

    def show(out: Console) -> None:
        out.print(f"{name} is set up in {home}", style="bold")
        _facts(
            out,
            ("sites dial", address),
            ("certificate for", ", ".join(config.names)),
            ("CA fingerprint", authority.fingerprint),
            *((f"key of {who}", fingerprint) for who, fingerprint in fingerprints.items()),
        )
        if unlocked:
            words = f"No passphrase on the key of {', '.join(unlocked)}: whoever reads this folder can sign plans."
            out.print(words, style="yellow")
        out.print("next: coordinator plan new STUDY", style="cyan")

    emit(made, as_json=json, show=show)


@app.command(rich_help_panel="Set up")
def serve(
    context: typer.Context,
    address: Annotated[str, typer.Option("--address", help="host:port to bind, instead of the setting.")] = "",
) -> None:
    """Answer sites and analysts, in the foreground, until it is told to stop (SIGTERM, or Ctrl-C)."""
    config = Config.load(context.obj)
    from coordinator import collect

    listen = address or config.listen
    host = listen.rpartition(":")[0]

    def ready(port: int) -> None:
        console().print(f"{config.name} answers on {host}:{port}; sites dial {config.address}; stop with Ctrl-C")
        if config.analysts:
            console().print(f"analysts are answered on {config.analysts_listen}; they dial {config.analysts}")
        sys.stdout.flush()

    collect.serve(
        config.home,
        listen,
        ready=ready,
        url=config.store,
        max_bundle=config.max_bundle,
        workers=config.workers,
        analysts=config.analysts_listen,
        analysis={"rate": config.analyst_rate, "burst": config.analyst_burst, "at_once": config.analyst_places},
    )


# -- plans --------------------------------------------------------------------------------------------------------
@plan_app.command("new")
def plan_new(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="Short name of the study, a plain word.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY.toml if left out.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a commented study plan with an example dictionary, ready to edit."""
    from coordinator.planning import template

    path = out or Path(f"{study}.toml")
    text = template(study, coordinator=_name(context) or "tributary-hub", today=_today())
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def show(shown: Console) -> None:
        shown.print(f"{'would write' if dry_run else 'wrote'} {path}")
        shown.print(f"next: edit it, then coordinator plan check {path}", style="cyan")

    emit({"file": str(path), "study": study, "written": not dry_run}, as_json=json, show=show)


@plan_app.command("check")
def plan_check(context: typer.Context, file: PlanFile, json: Json = False) -> None:
    """Hold a plan against what a plan must be: each line green, or with its fix."""
    from coordinator.planning import review

    plan, checks = review(_text(file), today=_today(), recipient=_name(context))
    good = all(check.state != "fail" for check in checks)
    answer = {
        "ok": good,
        "study": plan.study if plan else None,
        "hash": plan.hash if plan else None,
        "checks": checks,
    }

    def show(out: Console) -> None:
        checklist(out, checks)
        out.print()
        if good:
            out.print(f"next: coordinator plan cost {file}, then plan sign {file}", style="cyan")
        else:
            out.print("The plan cannot be signed yet.", style="bold red")

    emit(answer, as_json=json, show=show)
    if not good:
        raise typer.Exit(PlanRefusal.exit_code)


@plan_app.command("prices")
def plan_prices(file: PlanFile, json: Json = False) -> None:
    """The study's price list: what each mechanism would cost a person, what that covers, how wide intervals are."""
    from coordinator.client import number
    from coordinator.planning import prices
    from shared.plan import StudyPlan

    plan = StudyPlan.from_toml(_text(file))
    listed = prices(plan)

    def show(out: Console) -> None:
        rows = [
            [
                price.name,
                "–" if price.epsilon is None else number(price.epsilon),
                price.covered,
                "not known before" if price.width is None else f"{price.width:.2f}",
            ]
            for price in listed
        ]
        out.print(table(["mechanism", "ε of one wave", "what it covers", "width"], rows, right=["ε of one wave"]))
        out.print(
            f"ε is exact, at δ {plan.budget.delta:g}. width: of a coefficient's interval, in widths of the same "
            "interval on the records themselves.",
            style="dim",
        )

    found = {"study": plan.study, "delta": plan.budget.delta, "prices": [plain(asdict(one)) for one in listed]}
    emit(found, as_json=json, show=show)


@plan_app.command("cost")
def plan_cost(
    file: PlanFile,
    waves: Annotated[int | None, typer.Option("--waves", help="Waves to price; the plan's own if left out.")] = None,
    persons: Annotated[int | None, typer.Option("--persons", help="Persons at the largest site, to judge δ.")] = None,
    json: Json = False,
) -> None:
    """Price a plan: what each wave costs a person, and the last wave the budget affords."""
    from coordinator.client import number
    from coordinator.planning import MANY, cost
    from shared.plan import StudyPlan

    price = cost(StudyPlan.from_toml(_text(file)), waves=waves, persons=persons)

    def show(out: Console) -> None:
        from rich.text import Text

        out.print(f"{price.study}, version {price.version}", style="bold")
        _facts(
            out,
            ("mechanism", f"{price.mechanism}, {price.details}, d = {price.d} columns"),
            ("posture", price.posture),
            (
                "one wave alone",
                UNGUARANTEED if price.epsilon is None else f"ε {number(price.epsilon)} at δ {price.delta:g} (exact)",
            ),
            *(
                [("the rows alone", f"ε {number(price.rows)}; the rest is training")]
                if price.rows is not None and price.epsilon is not None and price.rows < price.epsilon
                else []
            ),
            *(
                [("by the paper", f"ε {number(price.paper)} for the rows (Theorem 2; looser, never charged)")]
                if price.paper is not None
                else []
            ),
            *(
                [("training first", f"ε {number(price.training)}, once, to everybody; in every line below")]
                if price.training is not None
                else []
            ),
            *([("budget", f"ε {price.cap:g} at δ {price.delta:g}, all waves")] if price.epsilon is not None else []),
        )
        out.print()
        rows: list[list[Any]] = []
        for wave in _abridged(price.waves, price.last_affordable):
            if wave is None:
                rows.append(["…", "", "", ""])
                continue
            paid = Text("yes", style="green") if wave.affordable else Text("no", style="bold red")
            rows.append([wave.number, number(wave.total), number(max(wave.left, 0.0)), paid])
        if rows:
            right = ["wave", "ε charged so far", "left"]
            out.print(table(["wave", "ε charged so far", "left", "affordable"], rows, right=right))
            out.print()
        last = price.last_affordable
        words = f"last affordable wave: {last:,}" if last else "not even one wave is affordable"
        if not price.redraws and len(price.waves) > 1:
            out.print("Nobody is drawn twice: whoever comes with a later wave pays for that wave alone.")
        if rows:
            out.print("every wave is affordable" if last == MANY else words, style="bold")
        out.print(price.translation.replace(": At ", ":\nAt ").replace(". With ", ".\nWith "))
        for condition in price.conditions:
            out.print(f"note  {condition.sentence}", style="yellow")
        if price.rows is not None and price.rows > 8.001:
            out.print(f"For ε 8 in one wave take w = {price.w_for_8:.2g}.", style="cyan")
        if last:
            out.print(f"next: coordinator plan sign {file}", style="cyan")

    emit(price, as_json=json, show=show)


@plan_app.command("sign")
def plan_sign(
    context: typer.Context,
    file: PlanFile,
    key: Annotated[list[str] | None, typer.Option("--key", help="Name of a lead's key; repeat for several.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Sign a plan with the lead's key and publish it to the sites; they act on it once their stewards approve."""
    from coordinator.planning import changes, review
    from shared.plan import sign_plan

    config = Config.load(context.obj)
    plan, checks = review(_text(file), today=_today(), recipient=config.name)
    failed = [check for check in checks if check.state == "fail"]
    warnings = [check for check in checks if check.state == "warn"]
    if plan is None or failed:
        raise PlanRefusal(
            "a plan must pass plan check before it is signed",
            given=f"{failed[0].name}: {failed[0].detail}",
            next_step=failed[0].fix,
        )
    with _open(config) as store:
        last = _last_plan(store, plan.study)
        if last is not None and plan.version <= last.version:
            same = plan.hash == last.hash
            raise PlanRollback(
                f"the version must be above the last signed one, {last.version}",
                given=f"{plan.version}" + (" (this very plan is already signed)" if same else ""),
                next_step=f"Set version = {last.version + 1}.",
            )
        differences = changes(last, plan) if last is not None else ()
        names = list(dict.fromkeys(key or [*_leads(config)][: config.threshold]))
        if len(names) < config.threshold:
            raise PlanRefusal(
                f"a plan must carry {config.threshold} lead signatures",
                given=f"{len(names)}",
                next_step="Repeat --key.",
            )
        if not dry_run:
            keys = [_lead_key(config, name) for name in names]
            store.add_plan(sign_plan(plan, keys), plan)
    answer = {
        "study": plan.study,
        "version": plan.version,
        "hash": plan.hash,
        "signed_by": names,
        "changes": differences,
        "warnings": warnings,
        "signed": not dry_run,
    }

    def show(out: Console) -> None:
        did = "would sign" if dry_run else "signed and published"
        out.print(f"{did} {plan.study}, version {plan.version}", style="bold")
        _facts(out, ("hash", plan.hash), ("signed by", ", ".join(names)), ("expires", f"{plan.expires}"))
        checklist(out, warnings)
        for change in differences:
            out.print(f"  {change}")
        if differences:
            out.print("Every site must approve this version before its next release.", style="yellow")
        out.print(f"next: coordinator invite SITE --study {plan.study} --out SITE.invitation", style="cyan")

    emit(answer, as_json=json, show=show)


@plan_app.command("amend")
def plan_amend(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="The study.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY-vN.toml if left out.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the next version of a study's plan as a draft to edit. It is signed like any plan, and approved anew."""
    from coordinator.waves import draft

    config = Config.load(context.obj)
    with _open(config) as store:
        last = store.plan(study).plan
    plan = replace(last, version=last.version + 1)
    path = _write_draft(draft(plan), out or Path(f"{study}-v{plan.version}.toml"), dry_run=dry_run)

    def show(shown: Console) -> None:
        shown.print(f"{'would write' if dry_run else 'wrote'} {path}: {study}, version {plan.version}, a draft")
        shown.print("Each site sees what changed before it approves; until then it releases nothing.", style="yellow")
        shown.print(f"next: edit {path}, then coordinator plan check {path}", style="cyan")

    emit({"study": study, "version": plan.version, "file": str(path), "written": not dry_run}, as_json=json, show=show)


def _write_draft(text: str, path: Path, *, dry_run: bool) -> Path:
    """Write a draft plan to a file that is not there yet. Raises: StateRefusal."""
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


@plan_app.command("show")
def plan_show(
    context: typer.Context,
    study: Annotated[str, typer.Argument(help="The study.")],
    version: Annotated[int | None, typer.Option("--version", help="Which version; the last if left out.")] = None,
    json: Json = False,
) -> None:
    """Show a signed plan: what leaves the sites, how often, to whom, at which price, what is not covered."""
    from coordinator.planning import cost
    from shared.release import coverage

    with _open(Config.load(context.obj)) as store:
        plan = store.plan(study, version).plan
    covered, not_covered = coverage(plan)
    price = cost(plan)
    charged = UNGUARANTEED
    if price.epsilon is not None:
        waves = "1 wave" if len(price.waves) == 1 else f"{len(price.waves)} waves"
        charged = f"ε {price.epsilon:.4g} for a wave alone; ε {price.waves[-1].total:.4g} charged for {waves}"
    if price.training is not None:
        charged += f" and the training, which alone is ε {price.training:.4g}"
    answer = {"hash": plan.hash, "plan": plan.to_canonical(), "covered": covered, "not_covered": not_covered}

    def show(out: Console) -> None:
        out.print(f"{plan.title}", style="bold")
        out.print(plan.purpose)
        _facts(
            out,
            ("study", f"{plan.study}, version {plan.version}, expires {plan.expires}"),
            ("hash", plan.hash),
            ("recipient", plan.coordinator),
            ("who", plan.eligibility or "–"),
            ("mechanism", f"{price.mechanism}, {price.details}; posture {plan.posture}"),
            ("price", charged),
            ("budget", f"ε {plan.budget.epsilon:g} at δ {plan.budget.delta:g}, for one person"),
            ("in words", price.translation),
            ("rows", "analysts may download them" if plan.row_download else "analysts may not download them"),
        )
        out.print()
        columns = [
            [c.name, c.kind, c.label, c.unit, _range(c), c.missing if c.missing != "refuse" else ""]
            for c in plan.dictionary.columns
        ]
        out.print(table(["column", "kind", "meaning", "unit", "values", "missing"], columns))
        out.print()
        calendar = [[wave.number, wave.opens, wave.closes] for wave in plan.waves]
        out.print(table(["wave", "opens", "closes"], calendar, right=["wave"]))
        out.print()
        for name, formula in plan.estimands.items():
            out.print(f"planned  {name}: {formula}")
        _sentences(out, "not covered by ε:", not_covered, "yellow")

    emit(answer, as_json=json, show=show)


# -- sites --------------------------------------------------------------------------------------------------------
@app.command(rich_help_panel="Sites")
def invite(
    context: typer.Context,
    site: Site,
    study: Annotated[list[str], typer.Option("--study", help="Study it may take part in; repeat for several.")],
    out: Annotated[Path, typer.Option("--out", help="File to write. It holds a secret: hand it over in person.")],
    days: Annotated[int | None, typer.Option("--days", help="Days it may be used.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write one site's invitation: the coordinator's fingerprint, a single-use token, the lead's public keys."""
    from coordinator.authority import Authority
    from shared.keys import write_private

    config = Config.load(context.obj)
    if out.exists():
        raise StateRefusal("the invitation's file must be new", given=f"{out}", next_step="Choose another --out.")
    with _open(config) as store:
        for name in study:
            store.plan(name)  # refused here, not at the site, when there is no such plan
        invitation = Authority.load(config.home).invite(
            site,
            study,
            config.invitation_days if days is None else days,
            address=config.address,
            leads=list(_leads(config).values()),
            threshold=config.threshold,
        )
        if not dry_run:
            store.add_invitation(invitation)
            out.parent.mkdir(parents=True, exist_ok=True)
            write_private(out, invitation.to_bytes())
    answer = {
        "site": site,
        "studies": study,
        "address": invitation.address,
        "ca_fingerprint": invitation.ca_fingerprint,
        "expires": invitation.expires,
        "file": str(out),
        "written": not dry_run,
    }

    def show(shown: Console) -> None:
        shown.print(f"{'would write' if dry_run else 'wrote'} {out}", style="bold")
        _facts(
            shown,
            ("site", f"{site}, for {', '.join(study)}"),
            ("site dials", invitation.address),
            ("use by", f"{invitation.expires}, once"),
            ("CA fingerprint", invitation.ca_fingerprint),
        )
        shown.print("It holds a secret: hand it over in person or encrypted, never by plain mail.", style="yellow")
        shown.print(f"next, when {site} has joined: coordinator sites", style="cyan")

    emit(answer, as_json=json, show=show)


@app.command(rich_help_panel="Sites")
def sites(context: typer.Context, json: Json = False) -> None:
    """List the sites: state, fingerprint, days left on the certificate, releases."""
    from rich.text import Text

    with _open(Config.load(context.obj)) as store:
        known = store.sites()
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
            "certificate_days": _days_left(site.certificate_pem),
            "releases": counts[site.site][0],
            "quarantined": counts[site.site][1],
        }
        for site in known
    ]

    def show(out: Console) -> None:
        if not answer:
            out.print("No site has asked to join yet.")
            out.print("next: coordinator invite SITE --study STUDY --out SITE.invitation", style="cyan")
            return
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
        for row in answer:
            if row["state"] == "pending":
                out.print()
                # Not filled in on purpose: pasted from here, the comparison would compare nothing.
                out.print(f"{row['site']} waits. Telephone its steward, and type the fingerprint you hear:")
                out.print(f'  coordinator accept {row["site"]} --fingerprint "…"', style="cyan")

    emit(answer, as_json=json, show=show)


@app.command(rich_help_panel="Sites")
def accept(
    context: typer.Context,
    site: Site,
    fingerprint: Annotated[str, typer.Option("--fingerprint", help="What the site's steward read to you.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Let a site in, if the fingerprint its steward read out is that of the key that asked."""
    with _open(Config.load(context.obj)) as store:
        if dry_run:
            asked = _enrolment(store, site)
            same = "".join(fingerprint.lower().split()) == "".join(asked.fingerprint.split())
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

    emit(answer, as_json=json, show=show)


@app.command(rich_help_panel="Sites")
def revoke(context: typer.Context, site: Site, dry_run: DryRun = False, json: Json = False) -> None:
    """Shut a site out: its certificate and keys count for nothing from now on; its accepted releases stay."""
    with _open(Config.load(context.obj)) as store:
        kept = len([release for release in store.releases() if release.site == site])
        _enrolment(store, site)
        if not dry_run:
            store.revoke_site(site)
    answer = {"site": site, "revoked": not dry_run, "releases_kept": kept}
    words = f"{'would revoke' if dry_run else 'revoked'} {site}; {kept} accepted releases stay"
    emit(answer, as_json=json, show=lambda out: out.print(words))


@app.command(rich_help_panel="Sites")
def reanchor(
    context: typer.Context,
    site: Site,
    fingerprint: Annotated[str, typer.Option("--fingerprint", help="What site-agent ledger recover showed there.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Let a site's ledger go on after a restored backup, from the one head its steward read out; kept in the log."""
    with _open(Config.load(context.obj)) as store:
        _enrolment(store, site)
        left = store.anchor(site)
        if left is None:
            raise StateRefusal(
                "a ledger must have been witnessed to begin anew", given="no anchor", next_step="Nothing to allow."
            )
        index = None if dry_run else store.allow_reanchor(site, fingerprint)
    answer = {"site": site, "allowed": not dry_run, "left_seq": left.seq, "left_head": left.head, "log_index": index}

    def show(out: Console) -> None:
        out.print(
            f"{'would let' if dry_run else 'lets'} the ledger of {site} go on from the head with this fingerprint, "
            f"and leave entry {left.seq} behind"
        )
        if index is not None:
            out.print(f"Log entry {index}. Once, and for this head only. The site runs site-agent ledger recover.")

    emit(answer, as_json=json, show=show)


# -- releases -----------------------------------------------------------------------------------------------------
@app.command(rich_help_panel="Releases")
def releases(
    context: typer.Context,
    study: Annotated[str, typer.Option("--study", help="Only this study.")] = "",
    wave: Annotated[int | None, typer.Option("--wave", help="Only this wave.")] = None,
    json: Json = False,
) -> None:
    """List what was accepted, and what was quarantined and why."""
    with _open(Config.load(context.obj)) as store:
        accepted = store.releases(study=study or None, wave=wave)
        kept_apart = [row for row in store.quarantined(study=study or None) if wave in (None, row.wave)]
    answer = {"accepted": [_release_data(row) for row in accepted], "quarantined": kept_apart}

    def show(out: Console) -> None:
        if not accepted and not kept_apart:
            out.print("No release has arrived yet.")
            return
        if accepted:
            rows = [[r.study, r.wave, r.site, r.release_id[:12], r.n, r.log_index, r.accepted_day] for r in accepted]
            heads = ["study", "wave", "site", "release", "n", "log", "accepted"]
            out.print(table(heads, rows, right=["wave", "n", "log"], title="Accepted"))
        if kept_apart:
            out.print()
            rows = [[q.study, q.wave, q.site, q.release_id[:12], q.code, q.reason] for q in kept_apart]
            heads = ["study", "wave", "site", "release", "code", "reason"]
            out.print(table(heads, rows, right=["wave"], title="Quarantined: kept, and read by nobody"))

    emit(answer, as_json=json, show=show)


@release_app.command("show")
def release_show(
    context: typer.Context,
    release: Annotated[str, typer.Argument(help="The release's id, or its first digits.")],
    json: Json = False,
) -> None:
    """Show one accepted release: its receipt in words."""
    from coordinator.collect import least_total

    with _open(Config.load(context.obj)) as store:
        found = _release(store, release)
        receipt = found.receipt
        arrived = [
            store.plan(found.study, other.plan_version).plan
            for other in store.releases(found.study, site=found.site, withdrawn=True)
            if other.log_index < found.log_index
        ]
        plan = store.plan(found.study, found.plan_version).plan
    together = least_total(receipt, plan, arrived, together=True)
    note = ""
    if receipt.study_epsilon < together * (1 - 1e-9):
        note = (
            f"Somebody in all {len(arrived) + 1} releases that arrived would have spent ε {together:.4g}. The site's "
            "ledger counts per person, and says that nobody spent more than the total above; only the site can see it."
        )

    def show(out: Console) -> None:
        out.print(f"{found.study}, wave {found.wave}, {found.site}", style="bold")
        _facts(
            out,
            ("release", found.release_id),
            ("bundle", found.bundle_sha256),
            ("accepted", f"{found.accepted_day}, log entry {found.log_index}"),
            ("plan", f"version {receipt.plan_version}, {receipt.plan_hash}"),
            ("rows", f"{receipt.n:,} persons, {receipt.d} encoded columns"),
            ("mechanism", f"{receipt.mechanism.replace('_', ' ')}, {_parameters(receipt.parameters)}"),
            ("posture", receipt.posture),
            *(
                [("this release", UNGUARANTEED)]
                if receipt.epsilon is None
                else [
                    ("this release", f"ε {receipt.epsilon:.4g} at δ {receipt.delta:g}"),
                    ("study so far", f"ε {receipt.study_epsilon:.4g} per person at this site, this release included"),
                ]
            ),
            *([("note", note)] if note else []),
            ("in words", receipt.translation),
            ("neighbours", f"{receipt.neighbours.replace('_', ' ')}; unit {receipt.unit}"),
            ("given", receipt.conditional_on),
        )
        _sentences(out, "covered:", receipt.covered, "green")
        _sentences(out, "not covered:", receipt.not_covered, "yellow")

    emit({**_release_data(found), "receipt": receipt, "note": note}, as_json=json, show=show)


# -- waves --------------------------------------------------------------------------------------------------------
Study = Annotated[str, typer.Argument(help="The study.")]
Number = Annotated[int, typer.Argument(help="The wave's number.")]


@wave_app.command("schedule")
def wave_schedule(
    context: typer.Context,
    study: Study,
    every: Annotated[str, typer.Option("--every", help="month, quarter, week, or as in '10 days'.")],
    count: Annotated[int, typer.Option("--count", help="How many new waves.")],
    window: Annotated[int, typer.Option("--window", help="Days for which each stays open.")],
    start: Annotated[str, typer.Option("--start", help="Day on which the first opens, as in 2026-03-01.")] = "",
    quorum: Annotated[int, typer.Option("--quorum", help="Deliveries below which closing takes a reason.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; STUDY-vN.toml if left out.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a new draft version of the plan with a calendar. Nothing is sent: sign it, and each site approves it."""
    from coordinator.planning import changes, review
    from coordinator.waves import draft, scheduled

    config = Config.load(context.obj)
    try:
        first = dt.date.fromisoformat(start) if start else None
    except ValueError:
        raise ParameterError("--start must be a date, as in 2026-03-01", given=repr(start)) from None
    with _open(config) as store:
        last = store.plan(study).plan
    plan = scheduled(last, every=every, count=count, window=window, start=first, quorum=quorum, today=_today())
    text = draft(plan)
    _, checks = review(text, today=_today(), recipient=config.name)
    path = _write_draft(text, out or Path(f"{study}-v{plan.version}.toml"), dry_run=dry_run)
    concerns = [check for check in checks if check.state != "ok"]
    answer = {
        "study": study,
        "version": plan.version,
        "file": str(path),
        "waves": plan.waves,
        "expires": plan.expires,
        "changes": changes(last, plan),
        "concerns": concerns,
        "written": not dry_run,
    }

    def show(shown: Console) -> None:
        shown.print(f"{'would write' if dry_run else 'wrote'} {path}: {study}, version {plan.version}, a draft")
        rows = [[wave.number, wave.opens, wave.closes, wave.quorum or None] for wave in plan.waves]
        shown.print(table(["wave", "opens", "closes", "quorum"], rows, right=["wave", "quorum"]))
        checklist(shown, concerns)
        shown.print("No site is told. Every site must approve the signed version before it acts on it.", style="yellow")
        shown.print(f"next: coordinator plan cost {path}, then plan sign {path}", style="cyan")

    emit(answer, as_json=json, show=show)


@wave_app.command("status")
def wave_status(context: typer.Context, study: Study, json: Json = False) -> None:
    """Show each site in each wave: who has delivered, who is missing, how long the oldest wait has lasted."""
    from coordinator.waves import STATES, grid

    with _open(Config.load(context.obj)) as store:
        found = grid(store, study, _today())

    def show(out: Console) -> None:
        from rich.text import Text

        out.print(f"{study}, plan version {found.version}", style="bold")
        if not found.sites:
            out.print("No site takes part yet.")
        styles = {"delivered": "green", "late": "green", "quarantined": "red", "withdrawn": "red"}
        marks = {"missing": "bold red", "waiting": "yellow", "held?": "yellow", "planned": "dim"}
        heads = ["wave", "closes", "state", "delivered", *found.sites]
        rows: list[list[Any]] = []
        for line in found.waves:
            state = line.state if line.revision is None else f"closed, revision {line.revision}"
            of = f"{line.delivered} of {len(found.sites)}" + (f", quorum {line.quorum}" if line.quorum else "")
            cells = [
                Text(
                    cell.state if cell.revision is None else f"late, revision {cell.revision}",
                    style=styles.get(cell.state) or marks.get(cell.state, ""),
                )
                for cell in line.cells
            ]
            rows.append([line.number, line.closes, state, of, *cells])
        out.print(table(heads, rows, right=["wave"]))
        shown = {cell.state for line in found.waves for cell in line.cells}
        for state, words in STATES.items():
            if state in shown and state not in ("delivered", "planned"):
                out.print(f"  {state}: {words}", style="dim")
        if found.waiting_days is not None:
            waited = next(line for line in found.waves if line.number == found.waiting_wave)
            names = ", ".join(waited.missing)
            out.print(f"The oldest wait: wave {waited.number}, {found.waiting_days} days, for {names}.", style="bold")
            out.print(f"next: coordinator wave remind {study} {waited.number}", style="cyan")

    emit({**plain(found), "states": STATES}, as_json=json, show=show)


@wave_app.command("remind")
def wave_remind(
    context: typer.Context,
    study: Study,
    wave: Number,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for one text per site.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a text for each site that is missing, for you to send; the site also sees the day when it next asks."""
    from coordinator.waves import grid, reminder

    with _open(Config.load(context.obj)) as store:
        plan = store.plan(study).plan
        plan.wave(wave)
        line = next(line for line in grid(store, study, _today()).waves if line.number == wave)
        if line.state == "planned":
            raise StateRefusal("a wave must be open to remind of it", given=f"wave {wave}, which opens {line.opens}")
        texts = {site: reminder(plan, line, site, _today()) for site in line.missing}
        if not dry_run:
            store.remind(study, wave, list(texts), _today())
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                for site, text in texts.items():
                    (out / f"{study}-wave{wave}-{site}.txt").write_text(text, encoding="utf-8")
    answer = {"study": study, "wave": wave, "texts": texts, "noted": not dry_run, "folder": str(out) if out else None}

    def show(shown: Console) -> None:
        if not texts:
            shown.print(f"Nobody is missing in wave {wave}.")
        for text in texts.values():
            shown.print(text)
        if texts:
            shown.print("The coordinator cannot call a site: send these yourself.", style="yellow")

    emit(answer, as_json=json, show=show)


@wave_app.command("close")
def wave_close(
    context: typer.Context,
    study: Study,
    wave: Number,
    reason: Annotated[str, typer.Option("--reason", help="Why, before the deadline or below the quorum.")] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Close a wave, naming who is missing. For good: what arrives later makes a revision."""
    from coordinator.waves import grid

    with _open(Config.load(context.obj)) as store:
        planned = store.plan(study).plan.wave(wave)
        line = next(line for line in grid(store, study, _today()).waves if line.number == wave)
        if _today() <= planned.closes and line.missing and not reason.strip():
            raise StateRefusal(
                "a wave must have passed its deadline to be closed while a site is missing",
                given=f"{planned.closes}, with {len(line.missing)} missing",
                next_step="Wait, remind the sites, or give a --reason; it stands in the log.",
            )
        index, revision, missing = None, None, line.missing
        if not dry_run:
            members = store.members(study)
            closed = store.close_wave(
                study, wave, expected=members, quorum=planned.quorum, reason=reason, today=_today()
            )
            index, revision, missing = closed.log_index, closed.number, closed.missing
    answer = {
        "study": study,
        "wave": wave,
        "closed": not dry_run,
        "delivered": line.delivered,
        "missing": missing,
        "revision": revision,
        "log_index": index,
    }

    def show(out: Console) -> None:
        did = "would close" if dry_run else f"closed, revision {revision}, log entry {index}:"
        out.print(f"{did} wave {wave} of {study} with {line.delivered} deliveries", style="bold")
        out.print(f"missing: {', '.join(missing) or 'nobody'}")

    emit(answer, as_json=json, show=show)


@wave_app.command("reopen")
def wave_reopen(
    context: typer.Context,
    study: Study,
    wave: Number,
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the log.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Let a closed wave go on, with a reason. Its revisions so far stay what they are."""
    with _open(Config.load(context.obj)) as store:
        store.plan(study).plan.wave(wave)
        record = store.wave_record(study, wave)
        if dry_run and not record.closed:
            raise StateRefusal("a wave must be closed to be reopened", given="an open one")
        if not dry_run:
            record = store.reopen_wave(study, wave, reason=reason, today=_today())
    kept = len(record.revisions)
    answer = {"study": study, "wave": wave, "reopened": not dry_run, "revisions": kept}
    words = f"{'would reopen' if dry_run else 'reopened'} wave {wave} of {study}; its {kept} revisions stay"
    emit(answer, as_json=json, show=lambda out: out.print(words))


# -- questions ----------------------------------------------------------------------------------------------------
Wave = Annotated[int, typer.Option("--wave", help="Which wave: the table as of it, earlier waves included.")]
AsOf = Annotated[int | None, typer.Option("--as-of", help="Revision of a closed wave; all there is now if left out.")]
Combine = Annotated[
    bool, typer.Option("--combine", help="Put all refreshes of a site together: the same persons again, se too small.")
]
Planned = Annotated[str, typer.Option("--estimand", help="Name of a planned analysis.")]
Formula = Annotated[str, typer.Option("--formula", help='A question, as in "cox(time, cvd) ~ sbp/10 + age".')]
Term = Annotated[str, typer.Option("--term", help="Which term to pool; the first if left out.")]
Method = Annotated[str, typer.Option("--method", help="FE, or tau² by DL, HE, HS, HSk, SJ, ML, REML, EB, PM, PMM.")]
Test = Annotated[str, typer.Option("--test", help="z, t, knha (Knapp-Hartung) or adhoc (never below the model).")]
Level = Annotated[float, typer.Option("--level", help="Coverage of every interval.")]


Mods = Annotated[
    list[str] | None, typer.Option("--mods", help="Moderator: n, epsilon, posture, or a column of --facts; repeatable.")
]
Subgroup = Annotated[str, typer.Option("--subgroup", help="Pool each of its levels apart; as --mods.")]
Facts = Annotated[Path | None, typer.Option("--facts", help="Table of facts about the sites, with a column site.")]
Bayes = Annotated[bool, typer.Option("--bayes", help="Also the posterior under a half-normal prior on τ.")]
Scale = Annotated[float, typer.Option("--scale", help="Scale of that prior; 0.5 suits log ratios.")]
Exact = Annotated[bool, typer.Option("--exact", help="Also intervals made for few studies.")]
Diagnostics = Annotated[bool, typer.Option("--diagnostics", help="Also leave-one-out, influence, asymmetry.")]
FigureKind = Annotated[
    str,
    typer.Option(
        "--kind",
        help="forest, leave-one-out, cumulative, funnel, baujat, influence, waves (estimate by wave), km (survival "
        "curves) or budget (ε spent by wave; asks no question).",
    ),
]


@app.command(rich_help_panel="Answers")
def pool(
    context: typer.Context,
    study: Study,
    wave: Wave,
    as_of: AsOf = None,
    combine: Combine = False,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Also write the sites' estimates (.csv, as analyst pool reads them) or the whole answer (.json).",
        ),
    ] = None,
    mods: Mods = None,
    subgroup: Subgroup = "",
    facts: Facts = None,
    bayes: Bayes = False,
    scale: Scale = 0.5,
    exact: Exact = False,
    diagnostics: Diagnostics = False,
    again: Annotated[
        int,
        typer.Option(
            "--again",
            help="Release rows whose flow is public so often again, to tell how far the records' own answer may be.",
        ),
    ] = 0,
    flow: Annotated[
        Path | None, typer.Option("--flow", help="The trained flow that the plan names, for --again.")
    ] = None,
    json: Json = False,
) -> None:
    """Ask one question of a wave, site by site, and pool the answers. No site is contacted; it costs no ε."""
    if again and not 2 <= again <= 1000:
        raise ParameterError("--again must be in 2..1000", given=f"{again}")
    if out is not None and out.suffix.lower() not in (".csv", ".json"):
        raise ParameterError("the table must end in .csv or .json", given=repr(out.name))
    more = {"again": again, "trained": _trained(flow)}
    answer = _ask(context, study, wave, as_of, combine, estimand, formula, term, method, test, level, **more)
    before = _save(context, answer, "pool", figure=str(out or ""))
    further = _analyse(
        answer, mods or [], subgroup, facts, bayes=bayes, scale=scale, exact=exact, diagnostics=diagnostics
    )
    data = {**answer.document, **further, "changed": _changed(before, answer)}
    if out is not None and out.suffix.lower() == ".json":
        import json as writer

        out.write_text(writer.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    elif out is not None:
        # Only the sites' own rows: a table that also held the pooled ones would be pooled with them.
        _estimates(answer).to_csv(out, index=False)

    def show(shown: Console) -> None:
        from coordinator import analyses

        _show_answer(shown, answer, data["changed"])
        analyses.show(shown, answer.result, further, exp=answer.result.scale == "log")

    emit(data, as_json=json, show=show)


@app.command(rich_help_panel="Answers")
def figure(
    context: typer.Context,
    study: Study,
    out: Annotated[
        Path, typer.Option("--out", help="Figure to write: .svg, .pdf or .png; a forest plot's numbers: .csv.")
    ],
    wave: Annotated[int, typer.Option("--wave", help="The table as of this wave; the newest if left out.")] = 0,
    as_of: AsOf = None,
    combine: Combine = False,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    title: Annotated[str, typer.Option("--title", help="Title; the question if left out.")] = "",
    kind: FigureKind = "forest",
    subgroup: Subgroup = "",
    facts: Facts = None,
    site: Annotated[list[str] | None, typer.Option("--site", help="Of km: only this site; repeat for several.")] = None,
    favours: Annotated[
        str, typer.Option("--favours", help='Sides of the null line: "Favours drug|Favours placebo".')
    ] = "",
    sort: Annotated[str, typer.Option("--sort", help="Rows of a forest plot by name, estimate or weight.")] = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Draw the forest plot of a pooled answer, one of the figures beside it, survival curves, or the budget."""
    from coordinator.client import check_figure
    from coordinator.companion_figures import KINDS

    check_figure(out, kind)

    kinds = ("forest", *KINDS, "waves", "km", "budget")
    if kind not in kinds:
        raise ParameterError(f"the figure must be one of {', '.join(kinds)}", given=repr(kind))
    path = None if dry_run else out
    made: dict[str, Any] = {"figure": str(out), "kind": kind, "written": not dry_run}
    words = f"{'would write' if dry_run else 'wrote'} {out}"
    if (subgroup or favours or sort) and kind != "forest":
        raise ParameterError("subgroups, favours and an order must be of a forest plot", given=repr(kind))
    if kind == "budget":
        from coordinator.spending import spending

        with _open(Config.load(context.obj)) as store:
            budget = spending(store, study)
        budget.figure(path, title=title)
        emit({**plain(budget), **made}, as_json=json, show=lambda shown: shown.print(words))
        return
    if not wave:
        from coordinator.queries import newest

        with _open(Config.load(context.obj)) as store:
            wave = newest(store, study)
    if kind == "km":
        from coordinator.curves import curves

        with _open(Config.load(context.obj)) as store:
            asked = _one_question(store, study, estimand, formula)
            found = curves(store, study, wave, asked, as_of=as_of, combine=combine, sites=site or (), level=level)
            found.figure(path, title=title)
            if not dry_run:
                how = {"wave": found.wave, "as_of": as_of, "combined": combine, "term": "curve", "level": level}
                store.save_result(
                    study=study,
                    wave=found.wave,
                    kind="km",
                    question={**how, "estimand": found.estimand, "sites": sorted(site or [])},
                    used=found.used,
                    numbers={"curves": len(found.curves)},
                    figure=str(out),
                    today=_today(),
                )
        emit({**plain(found), **made}, as_json=json, show=lambda shown: shown.print(words))
        return
    answer = _ask(context, study, wave, as_of, combine, estimand, formula, term, method, test, level)
    before = None
    if kind == "waves":
        made["waves"] = _by_wave(context, answer, title or f"{study}: {answer.term} in {answer.estimand}", path)
        before = None if dry_run else _save(context, answer, "figure", figure=str(out))
    elif not dry_run:
        from coordinator.client import draw, sides

        draw(
            answer.result,
            kind,
            title=title or answer.title,
            note=answer.provenance,
            columns=answer.columns,
            group=(subgroup, _known(answer, [subgroup], facts)[subgroup]) if subgroup else None,
            favours=sides(favours),
            sort=sort,
            path=out,
        )
        before = _save(context, answer, "figure", figure=str(out))
    data = {**answer.document, "changed": _changed(before, answer), **made}
    emit(data, as_json=json, show=lambda shown: shown.print(words))


@app.command(rich_help_panel="Answers")
def harmonise(
    context: typer.Context,
    study: Study,
    column: Annotated[str, typer.Argument(help="What hospitals measure differently; chol,hdl: together.")],
    to: Annotated[str, typer.Option("--to", help="The site whose scale counts.")],
    wave: Annotated[int, typer.Option("--wave", help="The table as of this wave; the newest if left out.")] = 0,
    estimand: Planned = "",
    formula: Formula = "",
    term: Term = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: Level = 0.95,
    densities: Annotated[
        str, typer.Option("--densities", help="Study of densities; STUDY-densities if left out.")
    ] = "",
    forest: Annotated[Path | None, typer.Option("--forest", help="Also draw all answers: .svg, .pdf or .png.")] = None,
    json: Json = False,
) -> None:
    """Ask as released and with a column on one site's scale, side by side. No site is contacted; it costs no ε."""
    from coordinator import harmonise as maps

    if forest is not None and forest.suffix.lower() not in (".svg", ".pdf", ".png"):
        raise ParameterError("a figure must end in .svg, .pdf or .png", given=repr(forest.name))
    pooling: Any = {"term": term, "method": method, "test": test, "level": level}
    with _open(Config.load(context.obj)) as store:
        asked = _one_question(store, study, estimand, formula)
        seen = maps.harmonised(store, study, column, to=to, estimand=asked, source=densities, wave=wave, **pooling)
        if forest is not None:
            seen.figure(forest)
        store.save_result(
            study=study,
            wave=seen.answer.wave,
            kind="harmonised",
            question=seen.asked,
            used={**seen.answer.used, **seen.used},
            numbers={**seen.answer.numbers, "harmonised": seen.harmonised.beta},
            figure=str(forest or ""),
            today=_today(),
        )

    def show(out: Console) -> None:
        first, *more = seen.lines
        out.print(first, style="bold")
        for line in more:
            out.print(line, style="yellow" if line.startswith("warning") else None)

    emit(seen.document, as_json=json, show=show)


@app.command(rich_help_panel="Answers")
def synthetic(
    context: typer.Context,
    study: Study,
    site: Annotated[str, typer.Option("--site", help="Whose figures.")],
    out: Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet; its record goes beside it.")],
    wave: Annotated[int, typer.Option("--wave", help="As of this wave; the newest if left out.")] = 0,
    fit: Annotated[
        str,
        typer.Option(
            "--fit",
            help="Of a slicing release: moments (seconds; if left out), f_divergence or sliced_wasserstein (minutes).",
        ),
    ] = "",
    rows: Annotated[int, typer.Option("--rows", help="How many; as many as persons if left out.")] = 0,
    draw: Annotated[int, typer.Option("--draw", help="The same number gives the same rows; kept in the record.")] = 0,
    steps: Annotated[int, typer.Option("--steps", help="Of a fit that takes minutes: at most.")] = 3000,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="File that such a fit is stopped to, and goes on from.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew: do not read the checkpoint.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Draw synthetic rows from a site's noisy figures, where the plan lets rows leave. It costs no ε."""
    from coordinator.remote import write_table
    from coordinator.synthesis import Synthesis
    from shared.canonical import canonical_json
    from shared.generators.fits import is_checkpoint

    if out.suffix.lower() not in (".csv", ".parquet"):
        raise ParameterError("the table must end in .csv or .parquet", given=repr(out.name))
    told = console(stderr=True)

    def watch(progress: Progress) -> None:
        if not json:
            told.print(
                f"step {progress.step} of at most {progress.steps}: distance {progress.loss:.5g}, least "
                f"{progress.best:.5g}, at most {progress.seconds_left:.0f} s left"
            )

    with _open(Config.load(context.obj)) as store:
        planned = Synthesis(store, study, site, wave=wave, fit=fit, number=draw, rows=rows, steps=steps)
        answer = {**planned.record, "file": str(out), "written": not dry_run}
        if not dry_run:
            if restart and checkpoint is not None and fit != "moments" and checkpoint.exists():
                if not is_checkpoint(checkpoint):
                    raise ParameterError(
                        "--restart must be given with a file that a fit has written: it is deleted",
                        given="another file",
                        next_step="Nothing was deleted. Check --checkpoint.",
                    )
                checkpoint.unlink()
            drawn = planned.draw(checkpoint=checkpoint, watch=watch)
            assert drawn.table is not None  # nobody stopped it but by ending the process
            write_table(drawn.table, out)
            answer |= drawn.record
            record = out.with_name(f"{out.name}.record.json")
            record.write_bytes(canonical_json(drawn.record))
    words = f"{'would write' if dry_run else 'wrote'} {answer['rows']} synthetic rows, not patient records, to {out}"
    emit(answer, as_json=json, show=lambda shown: shown.print(words))


@app.command(rich_help_panel="Answers")
def results(
    context: typer.Context,
    study: Annotated[str, typer.Option("--study", help="Only this study.")] = "",
    stale: Annotated[bool, typer.Option("--stale", help="Only those that rest on a withdrawn release.")] = False,
    json: Json = False,
) -> None:
    """List the pooled answers and figures that were handed out, and which of them are stale."""
    with _open(Config.load(context.obj)) as store:
        found = [saved for saved in store.results(study or None) if saved.withdrawn or not stale]
    answer = [{**plain(saved), "stale": bool(saved.withdrawn)} for saved in found]

    def show(out: Console) -> None:
        from rich.text import Text

        if not found:
            out.print("No stale result." if stale else "No result was handed out yet.")
            return
        rows = []
        for saved in found:
            gone = ", ".join(sorted({saved.used[digest] for digest in saved.withdrawn}))
            state = Text(f"stale: {gone} withdrew", style="bold red") if gone else Text("in force", style="green")
            revision = saved.question["as_of"]
            wave = f"{saved.wave}" + ("" if revision is None else f" rev. {revision}")
            asked = f"{saved.question['term']} in {saved.question['estimand']}"
            rows.append([saved.id, saved.study, wave, asked, saved.kind, saved.figure or None, saved.day, state])
        out.print(table(["no", "study", "wave", "question", "kind", "file", "day", "state"], rows, right=["no"]))
        if any(saved.withdrawn for saved in found):
            out.print("Ask a stale question again: the answer says what changed.", style="cyan")

    emit(answer, as_json=json, show=show)


# -- a training that the sites run together -----------------------------------------------------------------------
@federate_app.command("run")
def federate_run(
    context: typer.Context,
    study: Study,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="MINUTES", min=0.01, help="How long a round waits for its last site.")
    ] = 60.0,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train the plan's flow with the sites that dial in; stopped, it goes on where it was. Beside coordinator serve."""
    from coordinator.authority import Authority
    from coordinator.dialled import nodes, train

    config = Config.load(context.obj)
    with _open(config) as store:
        plan = store.plan(study).plan
        if plan.federated is None:
            raise PlanRefusal(
                "the study's newest plan must have [federated] for its sites to train together",
                given=f"version {plan.version} without it",
                next_step="See docs/operators-manual.md, A flow trained by all sites.",
            )
        sites = nodes(store, study)
        answer: dict[str, Any] = {
            "study": study,
            "plan_hash": plan.hash,
            "sites": sorted(sites),
            "quorum": plan.federated.quorum,
            "rounds": plan.federated.rounds,
            "epsilon": plan.federated.epsilon(plan.budget.delta),
            "delta": plan.budget.delta,
            "flow": None,
            "dry_run": dry_run,
        }
        if not dry_run:

            def told(number: int, progress: Any) -> None:
                if not json:
                    here = [site for site, one in progress.items() if number in one.answered]
                    without = sorted(set(progress) - set(here))
                    words = f"round {number} of {answer['rounds']}: {len(here)} of {len(progress)} sites"
                    console(stderr=True).print(words + (f", without {', '.join(without)}" if without else ""))

            key = Authority.load(config.home).witness
            flow = train(home=config.home, store=store, plan=plan, key=key, timeout=60 * timeout, told=told)
            answer |= {"flow": flow.name, "answered": {site: dict(said) for site, said in flow.sites.items()}}

    def show(out: Console) -> None:
        out.print(f"{study}, plan version {plan.version}: a flow in {answer['rounds']} rounds", style="bold")
        _facts(
            out,
            ("sites", ", ".join(sites) or "none has joined"),
            ("a round needs", f"{answer['quorum']} of them"),
            ("each patient pays", f"ε {answer['epsilon']:.4g} at δ {answer['delta']:g}, once, before round 1"),
        )
        if answer["flow"] is None:
            out.print("dry run: nothing was asked")
            return
        counted = ", ".join(f"{site} {said['n']:,}" for site, said in answer["answered"].items())
        _facts(out, ("records, as each site says", counted))
        out.print(f"The flow is trained, and up for the sites: {answer['flow']}", soft_wrap=True)
        words = 'next: a plan version with posture = "private" and this flow, then coordinator plan sign'
        out.print(words, style="cyan")

    emit(answer, as_json=json, show=show)


@federate_app.command("status")
def federate_status(context: typer.Context, study: Study, json: Json = False) -> None:
    """How far the study's newest training is: which round, who has answered it, who is waited for."""
    from coordinator.rounds import LetterBoxes

    with _open(Config.load(context.obj)) as store:
        found = LetterBoxes(store).progress(study)
        plans = {stored.plan.hash: stored.plan for stored in store.plans()}
    plan = None if found is None else plans.get(found.plan_hash)
    rounds = plan.federated.rounds if plan is not None and plan.federated is not None else None
    answer: dict[str, Any] = {
        "study": study,
        "plan_hash": found.plan_hash if found else None,
        "rounds": rounds,
        "round": found.round if found else 0,
        "answered": sorted(site for site, code in found.answered.items() if not code) if found else [],
        "without": {site: code for site, code in found.answered.items() if code} if found else {},
        "waiting": list(found.waiting) if found else [],
        "flow": f"federated:{found.finished}" if found and found.finished else None,
    }

    def show(out: Console) -> None:
        if found is None:
            out.print(f"{study} has begun no training.")
            return
        if answer["flow"]:
            out.print(f"{study}: trained in {found.round} rounds", style="bold")
            out.print(str(answer["flow"]), soft_wrap=True)
            return
        out.print(f"{study}: round {found.round} of {rounds}", style="bold")
        _facts(
            out,
            ("answered", ", ".join(answer["answered"]) or "nobody yet"),
            ("gave none", ", ".join(f"{site} ({code})" for site, code in answer["without"].items()) or "nobody"),
            ("waited for", ", ".join(answer["waiting"]) or "nobody"),
        )

    emit(answer, as_json=json, show=show)


# -- analysts -----------------------------------------------------------------------------------------------------
@analyst_app.command("add")
def analyst_add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The analyst's name, a plain word.")],
    study: Annotated[list[str], typer.Option("--study", help="A study it is for; repeat for several.")],
    role: Annotated[str, typer.Option("--role", help="analyst, lead (also sees downloads) or auditor.")] = "analyst",
    days: Annotated[int, typer.Option("--days", help="Days until it expires.")] = 365,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; NAME.token.json if left out.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make a token and write it to a file, once: only its hash is kept here."""
    config = Config.load(context.obj)
    from coordinator.analysts import Analysts
    from coordinator.authority import Authority
    from coordinator.remote import Pass
    from shared.transport import SERVER_NAME

    if not config.analysts:
        raise StateRefusal(
            "the coordinator must have an address for analysts",
            given="none",
            next_step=f'Set analysts = "host:port" in {FILE_NAME}, and restart coordinator serve.',
        )
    path = out or Path(f"{name}.token.json")
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    with _open(config) as store:
        for known in study:
            store.plan(known)
        made = {"name": name, "role": role, "studies": study, "file": str(path), "created": not dry_run}
        if not dry_run:
            account, token = Analysts(store).add(name, studies=study, role=role, days=days, today=_today())
            Pass(
                address=config.analysts,
                server_name=SERVER_NAME,
                ca_pem=Authority.load(config.home).ca_pem,
                name=account.name,
                role=account.role,
                studies=account.studies,
                expires=account.expires.isoformat(),
                token=token,
            ).save(path)
            made |= {"id": account.id, "expires": account.expires}

    def show(shown: Console) -> None:
        did = "would write" if dry_run else "wrote"
        shown.print(f"{did} {path}: {name}, {role} of {', '.join(study)}", style="bold")
        if not dry_run:
            shown.print(f"good until {made['expires']}; the file is a password: hand it over as one", style="yellow")

    emit(made, as_json=json, show=show)


@analyst_app.command("list")
def analyst_list(context: typer.Context, json: Json = False) -> None:
    """List the tokens: whose they are, what for, until when. The tokens themselves cannot be shown."""
    from coordinator.analysts import Analysts

    with _open(Config.load(context.obj)) as store:
        found = Analysts(store).accounts()
    answer = [{**plain(account), "state": account.state(_today())} for account in found]

    def show(out: Console) -> None:
        if not answer:
            out.print("No analyst has a token yet.")
            return
        heads = ["name", "role", "studies", "id", "expires", "state"]
        rows = [
            [row["name"], row["role"], ", ".join(row["studies"]), *(row[name] for name in heads[3:])] for row in answer
        ]
        out.print(table(heads, rows))

    emit(answer, as_json=json, show=show)


@analyst_app.command("revoke")
def analyst_revoke(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The analyst's name (all tokens), or one token's id.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Take tokens back. The next call with one is refused; what was answered stays in the record."""
    from coordinator.analysts import Analysts

    with _open(Config.load(context.obj)) as store:
        analysts = Analysts(store)
        if dry_run:
            found = [row for row in analysts.accounts() if name in (row.name, row.id) and not row.revoked]
        else:
            found = list(analysts.revoke(name, today=_today()))
    words = f"{'would revoke' if dry_run else 'revoked'} {len(found)} token(s) of {name}"
    answer = {"name": name, "ids": [account.id for account in found], "revoked": not dry_run}
    emit(answer, as_json=json, show=lambda out: out.print(words))


# -- the log ------------------------------------------------------------------------------------------------------
@log_app.callback(invoke_without_command=True)
def log(context: typer.Context, json: Json = False) -> None:
    """Check the whole log, and show its size and root, which a site may keep and hold the coordinator to."""
    if context.invoked_subcommand:
        return
    _verify(context, json)


@log_app.command("verify")
def log_verify(context: typer.Context, json: Json = False) -> None:
    """Check every entry, root, release, anchor, withdrawal and closing, and every signature that is stored."""
    _verify(context, json)


def _verify(context: typer.Context, json: bool) -> None:
    with _open(Config.load(context.obj)) as store:
        size = store.verify_log()
        signed = store.verify_signatures()
        entries = store.log()
    head = entries[-1].root if entries else None
    answer = {"size": size, "signed": signed, "root": head, "verified": True}

    def show(out: Console) -> None:
        out.print(f"{size} entries; every entry, release, anchor and root agrees", style="green")
        out.print(f"{signed} signed documents; every signature is of its site's keys of that time", style="green")
        _facts(out, ("root", head or "none yet"))

    emit(answer, as_json=json, show=show)


@log_app.command("proof")
def log_proof(
    context: typer.Context,
    release: Annotated[str, typer.Argument(help="The release's id, or its first digits.")],
    json: Json = False,
) -> None:
    """Prove that one release stands in the log, in a form that anyone can verify (RFC 9162)."""
    from coordinator.log import leaf_hash, verify_inclusion

    with _open(Config.load(context.obj)) as store:
        found = _release(store, release)
        entries = store.log()
        path = store.prove(found.log_index, len(entries))
    entry, head = entries[found.log_index].entry, entries[-1].root
    leaf = leaf_hash(entry)
    if not verify_inclusion(leaf, found.log_index, len(entries), path, bytes.fromhex(head)):
        raise IntegrityRefusal("the log must prove its releases", given="a proof that does not verify")
    answer = {
        "release_id": found.release_id,
        "index": found.log_index,
        "size": len(entries),
        "entry": entry.decode(),
        "leaf": leaf,
        "proof": path,
        "root": head,
        "verified": True,
    }

    def show(out: Console) -> None:
        where = f"entry {found.log_index} of {len(entries)}, numbered from 0"
        out.print(f"{found.study}, wave {found.wave}, {found.site}: {where}; the proof verifies", style="green")
        _facts(
            out,
            ("entry", entry.decode()),
            ("leaf", leaf.hex()),
            *(("proof", part.hex()) for part in path),
            ("root", head),
        )

    emit(answer, as_json=json, show=show)


@log_app.command("list")
def log_list(
    context: typer.Context,
    site: Site,
    study: Annotated[str, typer.Argument(help="The study.")],
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="A new file for the signed list.")],
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Sign what was witnessed and accepted of a site, for a stranger who checks the site's audit export (verify.py)."""
    from coordinator.authority import Authority
    from shared.canonical import canonical_json
    from shared.keys import Envelope, write_private

    config = Config.load(context.obj)
    if out.exists():
        raise ParameterError("the file must be new", given=f"{out}", next_step="Name another.")
    with _open(config) as store:
        store.verify_log()
        body = store.site_list(study, site, today=_today())
    key = Authority.load(config.home).witness
    if not dry_run:
        write_private(out, Envelope.sign(SITE_LIST_TYPE, canonical_json(body), [key]).to_bytes())
    answer = {
        "out": str(out),
        "anchors": len(body["anchors"]),
        "releases": len(body["releases"]),
        "size": body["size"],
        "fingerprint": key.public.fingerprint,
        "written": not dry_run,
    }

    def show(shown: Console) -> None:
        words = f"{'would write' if dry_run else 'wrote'} {out}: {len(body['anchors'])} heads of {site}'s ledger"
        shown.print(f"{words} and {len(body['releases'])} releases of {study}, as of {body['size']} log entries")
        _facts(shown, ("signed by", key.public.fingerprint))
        shown.print(f"next: python verify.py --coordinator-list {out.name}", style="cyan")

    emit(answer, as_json=json, show=show)


# -- small things the verbs share ----------------------------------------------------------------------------------
def _open(config: Config) -> closing[Store]:
    from coordinator.store import Store

    return closing(Store.open(config.home, config.store))


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _text(file: Path) -> str:
    if not file.is_file():
        raise ParameterError("the file must exist", given=f"{file}", next_step="Write one with coordinator plan new.")
    return file.read_text(encoding="utf-8")


def _name(context: typer.Context) -> str:
    """This coordinator's name, or nothing before init: a plan can be written anywhere."""
    try:
        return Config.load(context.obj).name
    except StateRefusal:
        return ""


def _passphrase(who: str, *, confirm: bool = False) -> str | None:
    """From the environment, else asked for where there is a person, else none."""
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given or None
    if not sys.stdin.isatty():
        return None
    import getpass

    asked = getpass.getpass(f"passphrase of the key of {who} (empty for none): ", stream=sys.stderr)
    if confirm and asked and getpass.getpass("once more: ", stream=sys.stderr) != asked:
        raise ParameterError("the passphrase must be typed the same twice", given="two that differ")
    return asked or None


def _lead_key(config: Config, name: str) -> SigningKey:
    from shared.keys import SigningKey

    path = config.home / "keys" / f"{name}.pem"
    encrypted = path.is_file() and b"ENCRYPTED" in path.read_bytes()
    return SigningKey.load(path, _passphrase(name) if encrypted else None)


def _last_plan(store: Store, study: str) -> StudyPlan | None:
    try:
        return store.plan(study).plan
    except PlanRefusal:
        return None


def _leads(config: Config) -> dict[str, PublicKey]:
    """The leads' public keys, by name; they are what a site pins."""
    from shared.keys import PublicKey

    found = {path.stem: PublicKey(path.read_text().strip()) for path in sorted((config.home / "keys").glob("*.pub"))}
    if not found:
        raise StateRefusal("the coordinator must have a lead's key", given="none", next_step="Run coordinator init.")
    return found


def _enrolment(store: Store, site: str) -> Enrolled:
    known = {row.site: row for row in store.sites()}
    if site not in known:
        near = difflib.get_close_matches(site, list(known), n=1)
        step = f"Did you mean {near[0]!r}?" if near else f"Sites: {', '.join(known) or 'none yet'}."
        raise ParameterError("the site must be known", given=repr(site), next_step=step)
    return known[site]


def _release_data(release: Release) -> dict[str, Any]:
    names = ("release_id", "study", "wave", "site", "n", "plan_version", "bundle_sha256", "bundle_bytes")
    facts = {name: getattr(release, name) for name in (*names, "log_index", "log_root", "accepted_day")}
    return {**facts, "epsilon": release.receipt.epsilon, "posture": release.receipt.posture}


def _release(store: Store, start: str) -> Release:
    found = [release for release in store.releases() if release.release_id.startswith(start)]
    if len(found) != 1:
        raise ParameterError(
            "the id must be that of one accepted release",
            given=f"{start!r}, which fits {len(found)}",
            next_step="See coordinator releases.",
        )
    return found[0]


def _days_left(certificate_pem: str) -> int | None:
    if not certificate_pem:
        return None
    from cryptography import x509

    return (x509.load_pem_x509_certificate(certificate_pem.encode()).not_valid_after_utc.date() - _today()).days


def _ask(
    context: typer.Context,
    study: str,
    wave: int,
    as_of: int | None,
    combine: bool,
    estimand: str,
    formula: str,
    term: str,
    method: Any,
    test: Any,
    level: float,
    **more: Any,
) -> Answer:
    from coordinator.queries import ask

    with _open(Config.load(context.obj)) as store:
        asked = _one_question(store, study, estimand, formula)
        how = {"term": term, "method": method, "test": test, "level": level}
        return ask(store, study, wave, asked, as_of=as_of, combine=combine, **how, **more)


def _trained(path: Path | None) -> FederatedFlow | None:
    """The document of a trained flow. Raises: StateRefusal (no such file), SchemaRefusal."""
    from shared.federated import FederatedFlow

    if path is None:
        return None
    if not path.is_file():
        raise StateRefusal("the trained flow must be a file", given=f"{path}", next_step="See coordinator federate.")
    return FederatedFlow.from_bytes(path.read_bytes())


def _one_question(store: Store, study: str, estimand: str, formula: str) -> str:
    if bool(estimand) == bool(formula):
        plan = store.plan(study).plan
        raise ParameterError(
            "one of --estimand and --formula must be given",
            given="both" if estimand else "neither",
            next_step=f"Planned: {', '.join(plan.estimands) or 'none'}.",
        )
    return estimand or formula


def _by_wave(context: typer.Context, answer: Answer, title: str, path: Path | None) -> dict[str, dict[str, Any]]:
    """Ask the same of every wave up to the answer's, and draw it; the pooled figures by wave."""
    from coordinator.queries import ask
    from coordinator.time_figures import waves_figure
    from shared.errors import EstimateRefusal

    result = answer.result
    how = {"term": answer.term, "method": result.method, "test": result.test, "level": result.level}
    found, missing = {answer.wave: answer}, {}
    with _open(Config.load(context.obj)) as store:
        for wave in store.plan(answer.study).plan.waves:
            if wave.number >= answer.wave:
                continue
            try:
                asked: Any = {"combine": answer.combined, **how}
                found[wave.number] = ask(store, answer.study, wave.number, answer.estimand, **asked)
            except EstimateRefusal as refusal:
                missing[wave.number] = str(refusal).rstrip(".")
    waves_figure(
        {wave: one.result for wave, one in found.items()},
        missing=missing,
        title=title,
        note=answer.provenance,
        path=path,
    )
    return {str(wave): {"sites": one.result.k, **one.numbers} for wave, one in sorted(found.items())}


def _save(context: typer.Context, answer: Answer, kind: str, *, figure: str) -> SavedResult | None:
    """Remember what is handed out; the last answer to the same question, when it was another one."""
    with _open(Config.load(context.obj)) as store:
        return store.save_result(
            study=answer.study,
            wave=answer.wave,
            kind=kind,
            question=answer.asked,
            used=answer.used,
            numbers=answer.numbers,
            figure=figure,
            today=_today(),
        )


def _changed(before: SavedResult | None, answer: Answer) -> list[str]:
    """What is different since the same question was last answered, in sentences."""
    if before is None:
        return []
    gone = {stone.bundle_sha256 for stone in answer.withdrawn}
    left = {digest: site for digest, site in before.used.items() if digest not in answer.used}
    out = [f"{site} has withdrawn a release." for digest, site in left.items() if digest in gone]
    out += [f"A release of {site} was replaced by a later one." for digest, site in left.items() if digest not in gone]
    out += [f"New: a release of {site}." for digest, site in answer.used.items() if digest not in before.used]
    then, now = before.numbers["beta"], answer.numbers["beta"]
    if then != now:
        out.append(f"The pooled estimate was {then:.4g} and is {now:.4g}.")
    return [f"Since the answer of {before.day}:", *out] if out else []


def _analyse(answer: Answer, mods: list[str], subgroup: str, facts: Path | None, **options: Any) -> dict[str, Any]:
    """The further questions of a pooled answer."""
    from coordinator import analyses

    by_label = _known(answer, [*mods, *([subgroup] if subgroup else [])], facts)
    asked = analyses.Asked(
        mods={name: by_label[name] for name in mods},
        group=(subgroup, by_label[subgroup]) if subgroup else None,
        **options,
    )
    return analyses.analyse(answer.result, asked)


def _known(answer: Answer, names: Sequence[str], facts: Path | None) -> dict[str, dict[str, Any]]:
    """Facts about the sites, by label: those of their releases, or of a table of the lead's. Raises: ParameterError."""
    known: dict[str, dict[str, Any]] = {
        name: {source.site: getattr(source, name) for source in answer.sources} for name in ("n", "epsilon", "posture")
    }
    if facts is not None:
        from coordinator.client import read_table

        given = read_table(facts)
        if "site" not in given.columns or given["site"].duplicated().any():
            raise ParameterError("the facts must have a column site, each site once", given=facts.name)
        for name in given.columns.drop("site"):
            rows = zip(given["site"], given[name].tolist(), strict=True)
            known[str(name)] = {str(site): value for site, value in rows if value == value and value is not None}
    for name in names:
        if name not in known:
            raise ParameterError(
                "a moderator must be a fact about the sites", given=repr(name), next_step=f"Known: {', '.join(known)}."
            )
    sites = dict(zip(answer.result.labels, (row.site for row in answer.result.estimates), strict=True))
    return {name: {label: values.get(site) for label, site in sites.items()} for name, values in known.items()}


def _estimates(answer: Answer) -> pd.DataFrame:
    """One row per site for a spreadsheet or `analyst pool`: yi and vi on the scale of the analysis."""
    import pandas as pd

    names = ["site", "study", "wave", "term", "n", "scale", "yi"]
    names += ["vi", "vi_sampling", "vi_privacy", "vi_naive", "reason"]
    return pd.DataFrame([{name: getattr(row, name) for name in names} for row in answer.estimates], columns=list(names))


def _show_answer(out: Console, answer: Answer, changed: Sequence[str] = ()) -> None:
    from coordinator.client import show_pooled

    result = answer.result
    ratio = result.scale == "log"
    title = answer.term if answer.term == answer.estimand else f"{answer.term} in {answer.estimand}"
    out.print(title, style="bold")
    out.print(f"{answer.study}, wave {answer.wave}. {answer.provenance}", style="dim")
    if ratio:
        out.print("Shown as ratios.", style="dim")
    elif result.scale != "identity":
        out.print(f"Shown on the {result.scale.replace('_', ' ')} scale.", style="dim")
    out.print()
    for line in changed:
        out.print(line, style="yellow")
    for stone in answer.withdrawn:
        out.print(
            f"Not in it: the release of {stone.site} in wave {stone.wave}, withdrawn {stone.day}.", style="yellow"
        )
    censored = sorted({source.censoring for source in answer.sources if source.censoring})
    if len(censored) > 1 or any("each row" in words for words in censored):
        out.print(f"Follow-up ends at different waves: {'; '.join(censored)}.", style="yellow")
    n = {"n": {row.site: f"{row.n:,}" for row in answer.estimates if row.yi is not None}}
    show_pooled(out, result, exp=ratio, extra={**n, **answer.columns})
    highest = max((source.epsilon for source in answer.sources if source.epsilon is not None), default=0.0)
    if open_ := sorted({source.site for source in answer.sources if source.epsilon is None}):
        out.print(f"note  The rows of {', '.join(open_)} have {UNGUARANTEED}.", style="dim")
    if highest > 10:
        out.print(
            f"note  ε {highest:.4g} is not a meaningful formal guarantee for the persons behind these rows.",
            style="dim",
        )
    for sentence in answer.cautions:
        out.print(f"note  {sentence}", style="dim")
    others = [term for term in answer.terms if term != answer.term]
    if others:
        out.print()
        out.print(f"other terms: {', '.join(others)} (--term)", style="cyan")


def _parameters(parameters: Any) -> str:
    return ", ".join(f"{name} = {value:.4g}" for name, value in parameters.items())


def _facts(out: Console, *facts: tuple[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(f"  {label}", Text(value))
    out.print(grid)


def _sentences(out: Console, title: str, sentences: Sequence[str], style: str) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row("  ·", Text(sentence))
    out.print()
    out.print(title, style=style)
    out.print(grid)


def _range(column: Any) -> str:
    if column.lower is not None:
        return f"{column.lower:g} to {column.upper:g}"
    return ", ".join(map(str, column.levels))


def _abridged(waves: Sequence[Any], last: int) -> list[Any]:
    """At most about a dozen waves: the first, those around the last affordable one, and the final one."""
    if len(waves) <= 14:
        return list(waves)
    keep = {*range(1, 7), *range(last - 1, last + 3), len(waves)}
    out: list[Any] = []
    for wave in waves:
        if wave.number in keep:
            out.append(wave)
        elif out[-1] is not None:
            out.append(None)
    return out


if __name__ == "__main__":
    raise SystemExit(main())
