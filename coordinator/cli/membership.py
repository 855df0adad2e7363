"""Authorisations signed by leads: ``grant``, ``ungrant``, ``rekey``; ``lead add`` …; analysts: ``analyst add`` …"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.options import (
    DryRun,
    Keys,
    Site,
    Study,
    analyst_app,
    app,
    labelled,
    lead_app,
    lead_key,
    lead_keys,
    plan_app,
    show_facts,
    today,
    verb,
)
from coordinator.config import FILE_NAME, CoordinatorConfig
from shared.errors import ParameterError, PlanRefusal, StateRefusal
from shared.terminal import VerbAnswer, plain, table, tabled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from coordinator.services.analysts import Account
    from coordinator.store.rows import StoredPlan
    from coordinator.store.store import Store
    from shared.base.keys import Envelope, SigningKey
    from shared.membership.grants import Grant
    from shared.membership.leads import Leads

__all__ = [
    "analyst_add",
    "analyst_list",
    "analyst_replace",
    "analyst_revoke",
    "declined",
    "grant",
    "grants",
    "lead_add",
    "lead_list",
    "lead_retire",
    "plan_cosign",
    "rekey",
    "ungrant",
]

Fingerprint = Annotated[str, typer.Option("--fingerprint", help="What the site's steward read to you.")]
InStudy = Annotated[str, typer.Option("--study", help="The study.")]
Lead = Annotated[str, typer.Argument(help="Name of the lead.")]


def signing_keys(config: CoordinatorConfig, names: Sequence[str] | None, least: int = 1) -> list[SigningKey]:
    """The opened keys of as many leads as must sign. Raises: PlanRefusal (too few), PassphraseRefusal."""
    known = lead_keys(config)
    chosen = list(dict.fromkeys(names or [*known][: max(config.threshold, least)]))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ParameterError("the lead must have a key here", given=unknown[0], next_step=f"Leads: {', '.join(known)}.")
    if len(chosen) < max(config.threshold, least):
        raise PlanRefusal(
            f"it must carry {max(config.threshold, least)} lead signatures",
            given=f"{len(chosen)}",
            next_step="Repeat --key.",
        )
    return [lead_key(config, name) for name in chosen]


def next_grant(store: Store, config: CoordinatorConfig, site: str, study: str, *, granted: bool) -> Grant:
    """The next line of a site's studies, which follows from those before it; unsigned.

    Args:
        granted: True to grant the study to the site, False to withdraw it.
    Raises: StateRefusal: a site that does not take part, or that is where it is to be already.
    """
    from coordinator.services.membership import Members
    from shared.base.chain import GENESIS
    from shared.membership.grants import Grant

    store.plan(study)
    found = store.enrolment(site)
    if found.state != "accepted":
        raise StateRefusal(
            "a site must take part to be granted a study, or taken out of one",
            given=f"one that is {found.state}",
            next_step="coordinator invite names the studies of a site that joins anew.",
        )
    if (study in found.studies) == granted:
        raise StateRefusal(
            f"the site must {'not take part in the study yet' if granted else 'take part in the study'}",
            given=f"{site}, in {', '.join(found.studies) or 'no study'}",
            next_step="Nothing was changed. See coordinator grants.",
        )
    known = Members(store, config.name).grants(site)
    return Grant(
        number=len(known) + 1,
        previous=known[-1][0].digest if known else GENESIS,
        day=today().isoformat(),
        coordinator=config.name,
        site=site,
        study=study,
        granted=granted,
    )


def _granted(
    store: Store, config: CoordinatorConfig, site: str, study: str, key: list[str] | None, dry_run: bool, granted: bool
) -> VerbAnswer:
    from coordinator.services.membership import Members

    said = next_grant(store, config, site, study, granted=granted)
    index = None
    if not dry_run:
        envelope = said.signed(signing_keys(config, key))
        members = Members(store, config.name)
        index = members.grant(envelope, members.leads(config.home))
    answer = {
        "site": site,
        "study": study,
        "granted": granted,
        "number": said.number,
        "log_index": index,
        "signed": not dry_run,
    }

    def show(out: Console) -> None:
        would = "would " if dry_run else ""
        if granted:
            out.print(f"{would}let {site} into {study}", style="bold")
            out.print("Its steward sees it at the agent's next round. Nothing happens before they approve the plan.")
        else:
            out.print(f"{would}take {site} out of {study}", style="bold")
            out.print("Nothing more is taken of it in this study; what it delivered stays.")
        if index is not None:
            show_facts(out, ("log entry", f"{index}"), ("number", f"{said.number} of this site"))

    return VerbAnswer(answer, show)


@verb(app, rich_help_panel="Sites")
def grant(
    store: Store, config: CoordinatorConfig, site: Site, study: InStudy, key: Keys = None, dry_run: DryRun = False
) -> VerbAnswer:
    """Let an accepted site into a further study, by the lead's signature. Its steward still approves that plan."""
    return _granted(store, config, site, study, key, dry_run, granted=True)


@verb(app, rich_help_panel="Sites")
def ungrant(
    store: Store, config: CoordinatorConfig, site: Site, study: InStudy, key: Keys = None, dry_run: DryRun = False
) -> VerbAnswer:
    """Take a site out of a study, by the lead's signature: nothing more is taken of it there. What it sent stays."""
    return _granted(store, config, site, study, key, dry_run, granted=False)


@verb(app, rich_help_panel="Sites")
def grants(config: CoordinatorConfig, store: Store) -> VerbAnswer:
    """List which site was let into which study, and taken out of it, in order."""
    from coordinator.services.membership import Members

    found = [(site, Members(store, config.name).grants(site.site)) for site in store.sites()]
    rows = [
        {"site": said.site, "number": said.number, "study": said.study, "granted": said.granted, "day": said.day}
        for _, own in found
        for said, _ in own
    ]
    takes_part = {site.site: list(site.studies) for site, _ in found}

    cells = [(row["site"], row["number"], row["study"], "in" if row["granted"] else "out", row["day"]) for row in rows]
    return VerbAnswer(
        {"grants": rows, "studies": takes_part},
        tabled(("site", "number", "study", "let", "day"), cells, right=("number",)) if cells else None,
        *(f"{site} takes part in {', '.join(studies) or 'no study'}" for site, studies in takes_part.items()),
    )


@verb(app, rich_help_panel="Sites")
def rekey(
    config: CoordinatorConfig, store: Store, site: Site, fingerprint: Fingerprint, dry_run: DryRun = False
) -> VerbAnswer:
    """Put a new key of a site in force whose old one is lost, by the fingerprint that its steward read out."""
    from coordinator.services.membership import Members

    members = Members(store, config.name)
    waiting = members.waiting(site)
    if dry_run or not waiting:
        said = waiting[0][0] if waiting else members.allow(site, fingerprint, today())
    else:
        said = members.allow(site, fingerprint, today())
    answer = {"site": site, "role": said.role, "name": said.name, "new": said.new, "in_force": not dry_run}

    whose = f"of {said.name} at {site}" if said.name else f"of {site}"
    return VerbAnswer(
        answer,
        (f"{'would put' if dry_run else 'put'} another {said.role} key {whose} in force", "bold"),
        "The old key has not signed this: every later export of the site says so, and so does the log.",
    )


@verb(app, rich_help_panel="Releases")
def declined(
    config: CoordinatorConfig,
    store: Store,
    study: Annotated[str, typer.Option("--study", help="One study; all without it.")] = "",
) -> VerbAnswer:
    """List what stewards chose to tell of releases that they rejected or sent back."""
    from coordinator.services.membership import Members

    rows = Members(store, config.name).declined(study)

    def show(out: Console) -> None:
        if not rows:
            out.print("Nothing was told. A steward tells it by --tell-lead, and need not.")
            return
        names = ("day", "site", "study", "wave", "decision", "reason")
        cells = [tuple(row[name] for name in names) for row in rows]
        out.print(table(names, cells, right=("wave",)))

    return VerbAnswer({"declined": rows}, show)


# -- leads ------------------------------------------------------------------------------------------------------------
def _changed(
    config: CoordinatorConfig, store: Store, name: str, after: Leads, key: list[str] | None, joins: SigningKey | None
) -> tuple[Envelope, int]:
    """Sign and log a change from those who lead now to `after`."""
    from coordinator.services.membership import Members
    from shared.base.chain import GENESIS
    from shared.membership.leads import LeadChange

    members = Members(store, config.name)
    now = members.leads(config.home)
    known = members.lead_changes()
    said = LeadChange(
        number=len(known) + 1,
        previous=known[-1][0].digest if known else GENESIS,
        day=today().isoformat(),
        coordinator=config.name,
        name=name,
        before=now.keys,
        after=after.keys,
        threshold_before=now.threshold,
        threshold=after.threshold,
    )
    envelope = said.signed([*signing_keys(config, key), *([joins] if joins is not None else [])])
    return envelope, members.change_leads(envelope, now)


def _newest(store: Store) -> dict[str, StoredPlan]:
    return {stored.plan.study: stored for stored in store.plans()}


def _resting(store: Store, without: Leads) -> list[str]:
    """Studies whose newest plan lacks a signature of those who lead, once somebody has left."""
    out = []
    for study, stored in _newest(store).items():
        needed = max(without.threshold, stored.plan.floors.leads)
        if len(stored.envelope.verified_by(without.trusted)) < needed:
            out.append(study)
    return sorted(out)


@verb(lead_app, "add")
def lead_add(
    config: CoordinatorConfig,
    store: Store,
    name: Lead,
    threshold: Annotated[int | None, typer.Option("--threshold", help="Leads who must sign from then on.")] = None,
    key: Keys = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Add a lead: a new key, signed by the leads there are. Every site follows by itself."""
    from coordinator.services.membership import Members
    from shared.base.canonical import is_word
    from shared.base.failpoints import reach
    from shared.base.keys import SigningKey
    from shared.base.passphrases import chosen
    from shared.membership.leads import Leads

    public, private = (config.home / "keys" / f"{name}.{kind}" for kind in ("pub", "pem"))
    if not is_word(name) or public.exists() or (public.parent / "retired" / public.name).exists():
        raise ParameterError(
            "a lead's name must be a plain word that nobody here had", given=repr(name), next_step="Choose another."
        )
    least = config.threshold if threshold is None else threshold
    index = None
    fingerprint = ""
    members = Members(store, config.name)
    now = members.leads(config.home)
    if not 1 <= least <= len(now.keys) + 1:
        raise ParameterError("there must be at least as many leads as signatures", given=f"{least}")
    if not dry_run:
        # Kept from a run that was interrupted: only what follows makes it a lead's.
        new = SigningKey.load(private) if private.exists() else SigningKey.generate()
        if not private.exists():
            new.save(private, chosen(name, optional=True), new=True)
        if new.public.hex not in now.keys:
            after = Leads(keys=tuple(sorted({*now.keys, new.public.hex})), threshold=least)
            _, index = _changed(config, store, name, after, key, new)
        reach("leads.before_file")
        members.settle_leads(config.home)
        fingerprint = new.public.fingerprint
    resting = _resting(store, Leads(keys=now.keys, threshold=least))
    answer = {"lead": name, "fingerprint": fingerprint, "threshold": least, "log_index": index, "added": not dry_run}
    answer["to_sign_anew"] = resting

    def show(out: Console) -> None:
        out.print(f"{'would add' if dry_run else 'added'} {name} as a lead; {least} must sign", style="bold")
        if index is not None:
            show_facts(out, ("key", fingerprint), ("log entry", f"{index}"))
            out.print("Sites follow at their agents' next round: those who lead now have signed it.")
        for study in resting:
            out.print(f"The newest plan of {study} carries too few signatures: coordinator plan cosign {study}.")

    return VerbAnswer(answer, show)


@verb(lead_app, "retire")
def lead_retire(
    config: CoordinatorConfig, store: Store, name: Lead, key: Keys = None, dry_run: DryRun = False
) -> VerbAnswer:
    """Retire a lead, signed by the leads: their key signs nothing new. What they signed stays signed."""
    from coordinator.services.membership import Members
    from shared.base.failpoints import reach
    from shared.membership.leads import Leads

    known = lead_keys(config)
    if name not in known:
        raise ParameterError("the lead must have a key here", given=repr(name), next_step=f"Leads: {', '.join(known)}.")
    index = None
    members = Members(store, config.name)
    now = members.leads(config.home)
    after = Leads(keys=tuple(sorted(set(now.keys) - {known[name].hex})), threshold=config.threshold)
    if len(after.keys) < config.threshold:
        raise StateRefusal(
            f"{config.threshold} lead(s) must be left, who must sign",
            given=f"{len(after.keys)} without {name}",
            next_step="Add another first: coordinator lead add NAME.",
        )
    asked = {study: stored.plan.floors.leads for study, stored in _newest(store).items()}
    short = [f"{study} asks for {least}" for study, least in asked.items() if least > len(after.keys)]
    if short:
        raise StateRefusal(
            "as many leads must be left as each study's plan asks for",
            given=f"{len(after.keys)} without {name}, and {', '.join(short)}",
            next_step="Add another first: coordinator lead add NAME. Nothing of those studies could be signed.",
        )
    resting = _resting(store, after)
    if not dry_run:
        if after.keys != now.keys:
            _, index = _changed(config, store, name, after, key, None)
        reach("leads.before_file")
        members.settle_leads(config.home)
    answer = {"lead": name, "retired": not dry_run, "log_index": index, "to_sign_anew": resting}

    def show(out: Console) -> None:
        out.print(f"{'would retire' if dry_run else 'retired'} {name}", style="bold")
        for study in resting:
            words = (
                f"The newest plan of {study} rests on this signature: a site that has not fetched it yet will not take"
            )
            step = f"Add a lead's signature: coordinator plan cosign {study}; no site is asked again."
            out.print(f"{words} it. {step}", style="yellow")

    return VerbAnswer(answer, show)


@verb(plan_app, "cosign")
def plan_cosign(
    config: CoordinatorConfig, store: Store, study: Study, key: Keys = None, dry_run: DryRun = False
) -> VerbAnswer:
    """Add leads' signatures to a study's newest plan: the same plan, which sites need not approve anew."""
    stored = store.plan(study)
    envelope = stored.envelope
    names = list(dict.fromkeys(key or lead_keys(config)))
    if not dry_run:
        for name in names:
            envelope = envelope.also_signed(lead_key(config, name))
        store.add_plan(envelope, stored.plan)
    answer = {"study": study, "version": stored.plan.version, "signed_by": names, "signed": not dry_run}
    words = f"{'would add' if dry_run else 'added'} the signatures of {', '.join(names)} to {study}"
    return VerbAnswer(answer, f"{words}, version {stored.plan.version}")


@verb(lead_app, "list")
def lead_list(config: CoordinatorConfig, store: Store) -> VerbAnswer:
    """List who leads, how many must sign, and every change."""
    from coordinator.services.membership import Members

    changes = [said for said, _ in Members(store, config.name).lead_changes()]
    rows: list[dict[str, Any]] = [
        {"number": one.number, "day": one.day, "name": one.name, "joined": bool(one.joins), "threshold": one.threshold}
        for one in changes
    ]
    leads = {name: public.fingerprint for name, public in lead_keys(config).items()}

    return VerbAnswer(
        {"leads": leads, "threshold": config.threshold, "changes": rows},
        labelled(*leads.items(), ("must sign", f"{config.threshold}")),
        *(
            f"{row['day']}: {row['name']} {'joined' if row['joined'] else 'left'}; {row['threshold']} must sign"
            for row in rows
        ),
    )


# -- analysts' tokens ----------------------------------------------------------------------------------------------
@verb(analyst_app, "add")
def analyst_add(
    config: CoordinatorConfig,
    store: Store,
    name: Annotated[str, typer.Argument(help="The analyst's name, a plain word.")],
    study: Annotated[list[str], typer.Option("--study", help="A study it is for; repeat for several.")],
    role: Annotated[str, typer.Option("--role", help="analyst, lead (also sees downloads) or auditor.")] = "analyst",
    days: Annotated[int, typer.Option("--days", help="Days until it expires.")] = 365,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; NAME.token.json if left out.")] = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Make a token and write it to a file, once: only its hash is kept here."""
    from coordinator.services.analysts import Analysts

    path = _token_file(config, out or Path(f"{name}.token.json"))
    for known in study:
        store.plan(known)
    made = {"name": name, "role": role, "studies": study, "file": str(path), "created": not dry_run}
    if not dry_run:
        account, token = Analysts(store).add(name, studies=study, role=role, days=days, today=today())
        _write_token(config, account, token, path)
        made |= {"id": account.id, "expires": account.expires}

    did = "would write" if dry_run else "wrote"
    return VerbAnswer(
        made,
        (f"{did} {path}: {name}, {role} of {', '.join(study)}", "bold"),
        (f"good until {made['expires']}; the file is a password: hand it over as one", "yellow")
        if not dry_run
        else None,
    )


@verb(analyst_app, "replace")
def analyst_replace(
    config: CoordinatorConfig,
    store: Store,
    name: Annotated[str, typer.Argument(help="The analyst's name, or the id of one of several tokens.")],
    days: Annotated[int, typer.Option("--days", help="Days until the new one expires.")] = 365,
    overlap: Annotated[int, typer.Option("--overlap", help="Days for which the old one is good beside it.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; NAME.token.json if left out.")] = None,
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Write a new token for the same person, studies and role, and end the old one: now, or after some days."""
    from coordinator.services.analysts import Analysts

    analysts = Analysts(store)
    old = analysts.replaceable(name, today=today())
    path = _token_file(config, out or Path(f"{old.name}.token.json"))
    made = {"name": old.name, "replaced": old.id, "file": str(path), "created": not dry_run}
    if dry_run:
        return VerbAnswer(made, f"would write {path} in the place of {old.id}")

    written = []

    def hand_over(account: Account, token: str) -> None:
        _write_token(config, account, token, path)
        written.append(path)

    # The file first: of a token that is good the store knows its digest alone, and the old one would be gone.
    try:
        old, account, _ = analysts.replace(old.id, days=days, overlap=overlap, today=today(), hand_over=hand_over)
    except BaseException:
        for useless in written:
            useless.unlink(missing_ok=True)
        raise
    made |= {"id": account.id, "expires": account.expires, "until": old.revoked or old.expires}
    ended = "revoked" if old.revoked else f"good until {old.expires}, for whatever still uses it"
    return VerbAnswer(
        made,
        (f"wrote {path}: {old.name}, {old.role} of {', '.join(old.studies)}", "bold"),
        f"the old token {old.id} is {ended}",
        (f"good until {account.expires}; the file is a password: hand it over as one", "yellow"),
    )


def _token_file(config: CoordinatorConfig, path: Path) -> Path:
    """`path`, checked as the file of a new token. Raises: StateRefusal: no address for analysts, or the file exists."""
    if not config.analysts:
        raise StateRefusal(
            "the coordinator must have an address for analysts",
            given="none",
            next_step=f'Set analysts = "host:port" in {FILE_NAME}, and restart coordinator serve.',
        )
    if path.exists():
        raise StateRefusal("the file must be new", given=f"{path}", next_step="Choose another --out.")
    return path


def _write_token(config: CoordinatorConfig, account: Account, token: str, path: Path) -> None:
    from coordinator.analyst.remote import Pass
    from coordinator.services.authority import Authority
    from shared.wire.transport import SERVER_NAME

    authority = Authority.load(config.home)
    Pass(
        address=config.analysts,
        server_name=SERVER_NAME,
        ca_pem=authority.ca_pem,
        witness=authority.witness.public.hex,
        name=account.name,
        role=account.role,
        studies=account.studies,
        expires=account.expires.isoformat(),
        token=token,
    ).save(path)


@verb(analyst_app, "list")
def analyst_list(store: Store) -> VerbAnswer:
    """List the tokens: whose they are, what for, until when. The tokens themselves cannot be shown."""
    from coordinator.services.analysts import Analysts

    found = Analysts(store).accounts()
    answer = [{**plain(account), "state": account.state(today())} for account in found]

    def show(out: Console) -> None:
        if not answer:
            out.print("No analyst has a token yet.")
            return
        heads = ["name", "role", "studies", "id", "expires", "state"]
        rows = [
            [row["name"], row["role"], ", ".join(row["studies"]), *(row[name] for name in heads[3:])] for row in answer
        ]
        out.print(table(heads, rows))

    return VerbAnswer(answer, show)


@verb(analyst_app, "revoke")
def analyst_revoke(
    store: Store,
    name: Annotated[str, typer.Argument(help="The analyst's name (all tokens), or one token's id.")],
    dry_run: DryRun = False,
) -> VerbAnswer:
    """Take tokens back. The next call with one is refused; what was answered stays in the record."""
    from coordinator.services.analysts import Analysts

    analysts = Analysts(store)
    if dry_run:
        found = [row for row in analysts.accounts() if name in (row.name, row.id) and not row.revoked]
    else:
        found = list(analysts.revoke(name, today=today()))
    words = f"{'would revoke' if dry_run else 'revoked'} {len(found)} token(s) of {name}"
    answer = {"name": name, "ids": [account.id for account in found], "revoked": not dry_run}
    return VerbAnswer(answer, words)
