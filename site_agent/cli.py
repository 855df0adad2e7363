"""``site-agent``: the data steward's commands.

A command is one library call and one page of answer. Reading commands take ``--json``; whatever changes something
takes ``--dry-run``; a refusal becomes one panel and its exit code in one place (`shared.terminal.run`). Everything
but typer is imported inside the commands, so that ``--help`` is instant and asking for help touches nothing.

The day is the machine's, in UTC. ``TRIBUTARY_TODAY`` (an ISO date) replaces it for rehearsals and tests of calendars;
`doctor` says so when it is set. It gives nobody a power they lack: who can set it can set the clock.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import (
    ApprovalRefusal,
    BudgetRefusal,
    CertificateRefusal,
    IntegrityRefusal,
    PausedRefusal,
    Refusal,
    StateRefusal,
    UsageRefusal,
)
from shared.terminal import application, emit, run

if TYPE_CHECKING:
    from rich.console import Console

    from shared.keys import SigningKey
    from shared.plan import StudyPlan
    from site_agent.config import Config
    from site_agent.egress import Egress
    from site_agent.ledger import Hold, Ledger, Noted
    from site_agent.outbox import Outbox
    from site_agent.pipeline import Progress, Release, Site
    from site_agent.plans import Plans

__all__ = ["Desk", "agent_version", "app", "desk", "main", "plan_changes", "plan_facts", "today"]

TODAY_VARIABLE = "TRIBUTARY_TODAY"
PASSPHRASE_VARIABLE = "TRIBUTARY_PASSPHRASE"

app = application(
    "The hospital's agent: it trains here, asks a person, and sends privatised rows. Nothing else leaves."
)
data_app = application("The study's table: where it lies, and which column is which.")
plan_app = application("The study plan: what leaves, how often, to whom, at which price.")
outbox_app = application("Sealed releases that wait for a person.")
ledger_app = application("The book of charges: is it whole, and what to do when it was put back.")
audit_app = application("The whole record of this site: is it true, and a copy that a stranger can check.")
standing_app = application("Approvals that a person signs once, in advance, for releases within limits.")
app.add_typer(data_app, name="data")
app.add_typer(plan_app, name="plan")
app.add_typer(outbox_app, name="outbox")
app.add_typer(standing_app, name="standing")
app.add_typer(ledger_app, name="ledger")
app.add_typer(audit_app, name="audit")

Home = Annotated[Path | None, typer.Option("--home", help="The site's folder; TRIBUTARY_SITE_HOME, or ./site-home.")]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing, send nothing.")]
Study = Annotated[str, typer.Argument(help="Name of the study.")]
ReleaseId = Annotated[str, typer.Argument(metavar="ID", help="Release id, or its first characters.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="The approver who decides.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, in a few words; kept in the ledger.")]


def main(argv: list[str] | None = None) -> None:
    """Entry point of ``site-agent``."""
    raise SystemExit(run(app, name="site-agent", argv=argv))


def agent_version() -> str:
    """Version of this software; plan approvals are bound to it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tributary")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"


# -- the desk: everything a command works with, opened when first used ------------------------------------------
@dataclass(frozen=True)
class Desk:
    """One site's folder, its parts opened on first use."""

    home: Path

    @cached_property
    def config(self) -> Config:
        """site.toml."""
        from site_agent.config import Config

        return Config.load(self.home)

    @cached_property
    def release_key(self) -> SigningKey:
        """The agent's key."""
        from shared.keys import SigningKey

        return SigningKey.load(self.config.release_key)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, verified."""
        from site_agent.ledger import Ledger

        return Ledger(self.config.ledger, self.release_key, site=self.config.site)

    @cached_property
    def outbox(self) -> Outbox:
        """The outbox."""
        from shared.keys import PublicKey
        from site_agent.outbox import Outbox

        approvers = {name: PublicKey(key) for name, key in self.config.approvers.items()}
        return Outbox(self.home, self.ledger, approvers=approvers)

    @cached_property
    def plans(self) -> Plans:
        """The book of plans."""
        from shared.keys import PublicKey
        from site_agent.plans import Plans

        return Plans(
            folder=self.home / "plans",
            coordinator=self.config.coordinator,
            leads=self.config.pinned_leads,
            threshold=self.config.threshold,
            approvers={name: PublicKey(key) for name, key in self.config.approvers.items()},
            memory=self.ledger,
        )

    @property
    def paused(self) -> bool:
        """Whether the steward has paused the site."""
        return self.config.pause_file.exists()

    def require_running(self) -> None:
        """Raises: PausedRefusal."""
        if self.paused:
            raise PausedRefusal(
                "this site must not be paused", given="a pause", next_step="Run site-agent resume when it may go on."
            )

    def egress(self) -> Egress:
        """The one door. Raises: StateRefusal (not joined), CertificateRefusal."""
        if not self.config.certificate.exists():
            raise StateRefusal("this site must have joined", given="no certificate", next_step="Run site-agent join.")
        return door(self.config)

    def approver(self, name: str, *, beside: Iterable[str] = ()) -> SigningKey:
        """An approver's key, opened with the passphrase.

        Args:
            beside: people who must be somebody else: one shared variable must not open a second person's key.
        """
        from shared.keys import SigningKey

        path = self.config.approver_key(name)
        return SigningKey.load(path, passphrase(name, beside=beside))

    def release_id(self, prefix: str, *, sealed: bool = True) -> str:
        """The one release whose id starts with `prefix`; a mere reservation only where `sealed` is false.

        Raises: StateRefusal.
        """
        holds = self.outbox.list() if sealed else self.ledger.holds()
        found = [hold.release_id for hold in holds if hold.release_id.startswith(prefix)]
        if len(found) != 1:
            raise StateRefusal(
                f"an id must name one {'sealed release' if sealed else 'release or reservation'}",
                given=f"{len(found)} that start with {prefix!r}",
                next_step="See site-agent outbox list.",
            )
        return found[0]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder as its only agent, and settle what a crash left."""
        from site_agent.lock import StateLock

        with StateLock(self.home):
            before = {hold.release_id for hold in self.ledger.holds() if hold.phase == "burnt"}
            self.outbox.recover()
            burnt = [h for h in self.ledger.holds() if h.phase == "burnt" and h.release_id not in before]
            if burnt:
                raise StateRefusal(
                    "a draw must not have been interrupted",
                    given=f"{len(burnt)} that was, now burnt: its charge stays and nothing was sent",
                    next_step="See site-agent budget; running the same command again is a new charge.",
                )
            yield


def door(config: Config) -> Egress:
    """The connection of a site that has joined."""
    from shared.keys import PublicKey
    from site_agent.egress import Egress, Witness

    pinned = config.ca.with_name("witness.pub")
    witness = None
    if pinned.exists():
        key = PublicKey(pinned.read_text().strip())
        witness = Witness(key, config.site, config.home / "acknowledged.jsonl")
    return Egress(
        witness=witness,
        address=config.address,
        server_name=config.server_name,
        ca_pem=config.ca.read_text(),
        cert_pem=config.certificate.read_text(),
        key_pem=config.tls_key.read_text(),
        paused=config.pause_file.exists,
    )


def desk(home: Path | None) -> Desk:
    """The desk of the folder that was named, or of the default one."""
    from site_agent.config import default_home

    return Desk((home or default_home()).absolute())


def today() -> dt.date:
    """The day, in UTC; see the module's text."""
    given = os.environ.get(TODAY_VARIABLE)
    if not given:
        return dt.datetime.now(dt.UTC).date()
    try:
        return dt.date.fromisoformat(given)
    except ValueError:
        raise UsageRefusal(f"{TODAY_VARIABLE} must be an ISO date", given=repr(given)) from None


def passphrase(name: str, *, new: bool = False, beside: Iterable[str] = ()) -> str:
    """An approver's passphrase: from the environment, or asked for on the terminal without an echo.

    ``TRIBUTARY_PASSPHRASE_DR_LIND`` is dr-lind's own variable. ``TRIBUTARY_PASSPHRASE`` opens anybody's key, and
    therefore not a second person's where two different people must act: whoever knows it would be both.

    Args:
        beside: the other people who have acted on the same release.
    Raises: UsageRefusal; ApprovalRefusal.
    """
    own = f"{PASSPHRASE_VARIABLE}_{name.upper().replace('-', '_')}"
    given = os.environ.get(own)
    if given is not None:
        return given
    given = os.environ.get(PASSPHRASE_VARIABLE)
    others = sorted({other for other in beside if other != name})
    if given is not None and others:
        raise ApprovalRefusal(
            "two different people must act, each with a passphrase of their own",
            given=f"one shared {PASSPHRASE_VARIABLE} for {name} and {', '.join(others)}",
            next_step=f"Unset it and let {name} type the passphrase, or set {own} for this one command.",
        )
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise UsageRefusal(
            f"the passphrase of {name} must be given",
            given="no terminal to ask on",
            next_step=f"Run it on a terminal, or set {own} for this one command.",
        )
    return str(typer.prompt(f"Passphrase of {name}", hide_input=True, confirmation_prompt=new, err=True))


def asked(question: str) -> bool:
    """A yes or no on the terminal; no where there is none."""
    return sys.stdin.isatty() and bool(typer.confirm(question, default=False, err=True))


# -- joining ----------------------------------------------------------------------------------------------------
@app.command()
def init(
    invitation: Annotated[Path, typer.Option("--invitation", exists=True, dir_okay=False, help="File from the lead.")],
    home: Home = None,
    approver: Annotated[list[str] | None, typer.Option("--approver", help="A person who may approve; repeat.")] = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Make this site's folder and keys from an invitation. Nothing is sent."""
    import secrets

    from shared.invitation import Invitation
    from shared.keys import SigningKey, write_private
    from site_agent.config import Config
    from site_agent.ledger import Ledger

    place = desk(home).home
    invited = Invitation.from_bytes(invitation.read_bytes())
    invited.require_current(today())
    if (place / "site.toml").exists():
        raise StateRefusal(
            "the folder must not hold a site yet", given=f"{place}", next_step="Run site-agent status there."
        )
    names = approver or []
    if not names:
        raise UsageRefusal(
            "a site must have at least one approver", given="none", next_step="Add --approver NAME, once per person."
        )

    def settings(approvers: dict[str, str]) -> Config:
        return Config(
            home=place,
            site=invited.site,
            coordinator=invited.coordinator,
            address=invited.address,
            server_name=invited.server_name,
            ca_fingerprint=invited.ca_fingerprint,
            leads=tuple(key.hex for key in invited.leads),
            threshold=invited.threshold,
            studies=invited.studies,
            approvers=approvers,
        )

    config = settings(dict.fromkeys(names, "00" * 32))
    fingerprint = ""
    if not dry_run:
        from site_agent.egress import new_tls_identity

        # site.toml is written last: an interrupted init is simply run again, and finds the keys it made.
        key = SigningKey.load(config.release_key) if config.release_key.exists() else SigningKey.generate()
        if not config.release_key.exists():
            key.save(config.release_key)
        approvers = {}
        for name in names:
            path = config.approver_key(name)
            secret = passphrase(name, new=not path.exists())
            signer = SigningKey.load(path, secret) if path.exists() else SigningKey.generate()
            if not path.exists():
                signer.save(path, secret)
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
        settings(approvers).save()
        fingerprint = key.public.fingerprint

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

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"Site {config.site}", "dry run, nothing written" if dry_run else f"made in {place}")
        rows = [
            ("studies", ", ".join(invited.studies)),
            ("coordinator", f"{config.coordinator} at {config.address}"),
            ("its authority", config.ca_fingerprint),
            ("approvers", ", ".join(names)),
        ]
        if fingerprint:
            rows.append(("fingerprint", fingerprint))
        screens.settings(out, rows)
        if fingerprint:
            out.print()
            out.print("Read the fingerprint to the study lead on the telephone. The lead accepts this site by it.")
        screens.next_step(out, "site-agent doctor", "site-agent join")

    emit(answer, as_json=json, show=show)


def _csr(config: Config) -> Path:
    return config.home / "certificates" / "request.pem"


@app.command()
def join(home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """Ask the coordinator to accept this site; run it again to fetch the certificate."""
    from shared.invitation import Invitation
    from shared.keys import PublicKey, write_private
    from site_agent.egress import Egress

    at = desk(home)
    config = at.config
    fingerprint = at.release_key.public.fingerprint
    if config.certificate.exists():
        state, reason = "joined", ""
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
        with Egress.from_invitation(invited) as egress:
            answered = egress.enrol(
                token=invited.token,
                site=config.site,
                csr_pem=_csr(config).read_text(),
                signer=at.release_key,
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
        from site_agent import screens

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

    emit({"site": config.site, "state": state, "fingerprint": fingerprint}, as_json=json, show=show)


def _require_own_certificate(config: Config, pem: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        ours = serialization.load_pem_private_key(config.tls_key.read_bytes(), None).public_key()
    except ValueError:
        raise CertificateRefusal("the certificate must be readable", given="another text") from None
    if certificate.public_key() != ours:
        raise CertificateRefusal(
            "the certificate must be of this site's key", given="another key", next_step="Call the study lead."
        )


@app.command()
def doctor(home: Home = None, json: Json = False) -> None:
    """Look at everything that could stop a release: each line is green, or says how to mend it."""
    from site_agent.health import diagnose

    found, code = diagnose(desk(home), today())
    from shared.terminal import checklist

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, "Doctor")
        checklist(out, found)
        if not any(check.state == "fail" for check in found):
            screens.next_step(out, "site-agent status")

    emit({"checks": found, "ok": code == 0}, as_json=json, show=show)
    raise typer.Exit(code)


@app.command()
def status(home: Home = None, json: Json = False) -> None:
    """Where this site stands, and what to do next."""
    at = desk(home)
    config = at.config
    joined = config.certificate.exists()
    day = today()
    studies = []
    steps: list[str] = [] if joined else ["site-agent join"]
    for study in sorted({*config.studies, *config.data, *at.plans.studies()}):
        row: dict[str, Any] = {
            "study": study,
            "plan": None,
            "approved": False,
            "table": study in config.data,
            "due": [],
        }
        try:
            plan = at.plans.plan(study)
            row["plan"] = plan.version
            row["due"] = _due(at, plan, day)
            at.plans.approved(study, agent_version=agent_version(), today=day)
            row["approved"] = True
        except Refusal as refusal:
            row["refused"] = refusal.code
        studies.append(row)
        if row["plan"] is None:
            steps.append(f"site-agent plan fetch {study}")
        elif not row["table"]:
            steps.append(f"site-agent data add FILE --as {study}")
        elif not row["approved"]:
            steps.append(f"site-agent plan show {study}")
        elif row["due"]:
            steps.append(f"site-agent release {study} --wave {row['due'][0]}")
    waiting = [h for h in at.outbox.list() if h.state in ("held", "sent_back", "approved")]
    steps = [*(f"site-agent outbox show {h.release_id[:8]}" for h in waiting), *steps]
    for h in at.outbox.list():
        if h.left and h.withdrawal is not None and not h.withdrawal.settled:
            again = f"--as {h.withdrawal.name} --reason {h.withdrawal.reason_code}"
            steps.insert(0, f"site-agent withdraw {h.release_id[:8]} {again}")
    if at.paused:
        steps = ["site-agent resume"]
    answer = {
        "site": config.site,
        "coordinator": config.coordinator,
        "agent_version": agent_version(),
        "fingerprint": at.release_key.public.fingerprint,
        "joined": joined,
        "paused": at.paused,
        "studies": studies,
        "outbox": len(waiting),
        "next": steps[:1],
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        state = "PAUSED" if at.paused else "joined" if joined else "not joined"
        screens.heading(out, f"Site {config.site}", f"{state} · coordinator {config.coordinator}")
        screens.settings(out, [("fingerprint", answer["fingerprint"])])
        rows = []
        for row in studies:
            plan = "none" if row["plan"] is None else f"version {row['plan']}"
            # That there is no plan, or no approval yet, the table says itself.
            told = row["plan"] is None or row.get("refused") == ApprovalRefusal.code
            approved = "yes" if row["approved"] else "no" if told else f"no ({row['refused']})"
            due = ", ".join(map(str, row["due"])) or "none"
            rows.append((row["study"], plan, approved, "yes" if row["table"] else "no", due))
        if rows:
            out.print(table(("study", "plan", "approved", "table", "waves due"), rows))
        waits = {0: "Nothing waits", 1: "1 release waits"}.get(len(waiting), f"{len(waiting)} releases wait")
        out.print(f"{waits} in the outbox.")
        screens.next_step(out, *(steps[:1] or ["nothing to do"]))

    emit(answer, as_json=json, show=show)


def _due(at: Desk, plan: StudyPlan, day: dt.date) -> list[int]:
    from site_agent.waves import due

    found = due(plan, at.ledger.holds(plan.study), day)
    return [] if found is None else [found.number]


# -- the table --------------------------------------------------------------------------------------------------
@data_app.command("add")
def data_add(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file; it is read in place, never copied.")],
    study: Annotated[str, typer.Option("--as", metavar="STUDY", help="The study it is for.")],
    encoding: Annotated[str, typer.Option(help="Of a CSV file.")] = "utf-8",
    delimiter: Annotated[str | None, typer.Option(help="Of a CSV file; tab for .tsv, else a comma.")] = None,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Say where a study's table lies, and see its columns beside the dictionary's."""
    from site_agent.config import Source

    at = desk(home)
    between = delimiter or ("\t" if file.suffix.lower() == ".tsv" else ",")
    source = Source(path=file.expanduser().absolute(), encoding=encoding, delimiter=between.replace("\\t", "\t"))
    _show_mapping(at, study, source, json=json, dry_run=dry_run)


@data_app.command("map")
def data_map(
    study: Study,
    pairs: Annotated[list[str] | None, typer.Argument(metavar="FILE_NAME=NAME", help="Which column is which.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="A column the study does not use; repeat.")
    ] = None,
    ignore_rest: Annotated[bool, typer.Option("--ignore-rest", help="Ignore, by name, all that are left.")] = False,
    suggest: Annotated[bool, typer.Option("--accept-suggestions", help="Take the proposals of data add.")] = False,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Map the file's column names to the dictionary's."""
    from site_agent import records

    at = desk(home)
    source = at.config.source(study)
    columns = dict(source.columns)
    for pair in pairs or []:
        name, sign, to = pair.rpartition("=")
        if not sign or not name or not to:
            raise UsageRefusal("a mapping must be FILE_NAME=NAME", given=repr(pair))
        columns = {k: v for k, v in columns.items() if v != to} | {name: to}
    ignored = [*source.ignore, *(ignore or [])]
    if suggest or ignore_rest:
        plan = at.plans.plan(study)
        known = {column.name for column in plan.dictionary.columns}
        _, sure = records.named(replace(source, columns=columns), plan.dictionary)
        free = [n for n in sure if n not in columns and n not in known and n not in ignored]
        if suggest:
            taken = {*columns.values(), *(n for n in sure if n in known)}
            columns |= {n: to for n, to in records.suggestions(free, plan.dictionary).items() if to not in taken}
        if ignore_rest:
            ignored += [n for n in free if n not in columns]
    _show_mapping(
        at,
        study,
        replace(source, columns=columns, ignore=tuple(dict.fromkeys(n for n in ignored if n not in columns))),
        json=json,
        dry_run=dry_run,
    )


def _show_mapping(at: Desk, study: str, source: Any, *, json: bool, dry_run: bool) -> None:
    from site_agent import records

    plan = at.plans.plan(study)
    trusted, names = records.named(source, plan.dictionary)
    known = {column.name: column for column in plan.dictionary.columns}
    target = {name: source.columns.get(name, name if name in known else "") for name in names}
    open_columns = [name for name in known if name not in target.values()]
    free = [name for name in names if not target[name] and name not in source.ignore]
    proposed = {n: to for n, to in records.suggestions(free, plan.dictionary).items() if to in open_columns}
    if not dry_run:
        at.config.with_source(study, source).save()
    answer = {
        "study": study,
        "file": source.path,
        "columns": {name: to for name, to in target.items() if to},
        "ignored": source.ignore,
        "not_mapped": free,
        "missing": open_columns,
        "suggestions": proposed,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        screens.heading(
            out,
            f"{source.path.name} for {study}",
            "dry run, nothing kept" if dry_run else "path kept, data not copied",
        )
        if not trusted:
            screens.note(
                out, f"None of the {len(names) or 'first line’s'} names is in the dictionary: has the file a header?"
            )
        back = {to: name for name, to in target.items() if to}
        rows = []
        for name, column in known.items():
            hint = next((f"{n}?" for n, to in proposed.items() if to == name), None)
            rows.append((name, column.kind, column.unit or None, back.get(name) or hint))
        out.print(table(("dictionary", "kind", "unit", "column in the file"), rows))
        left = [name for name in free if name not in proposed]
        if left:
            out.print(f"In the file, not in the study: {', '.join(left)}")
        if proposed:
            screens.next_step(
                out, f"site-agent data map {study} --accept-suggestions", f"site-agent data check {study}"
            )
        elif left or open_columns:
            screens.next_step(out, f"site-agent data map {study} FILE_NAME=NAME … --ignore-rest")
        else:
            screens.next_step(out, f"site-agent data check {study}")

    emit(answer, as_json=json, show=show)


@data_app.command("check")
def data_check(study: Study, home: Home = None, json: Json = False) -> None:
    """Hold the table against the dictionary: every problem, by column, rule and count."""
    from site_agent import records

    at = desk(home)
    plan = at.plans.plan(study)
    source = at.config.source(study)
    found = records.problems(source, plan.dictionary)
    rows = left_out = 0
    if not found:
        table = records.read(source, plan.dictionary, key=at.config.snapshot_key.read_bytes())
        rows, left_out = table.rows, table.rows - table.n
    answer = {
        "study": study,
        "rows": rows,
        "left_out": left_out,
        "problems": [
            {"code": p.code, "must": p.must, "given": p.given, "next_step": p.next_step, "fixer": p.fixer}
            for p in found
        ],
    }

    def show(out: Console) -> None:
        from shared.terminal import Check, checklist
        from site_agent import screens

        screens.heading(out, f"{source.path.name} for {study}", "counts are shown here and nowhere else")
        if found:
            checklist(out, [Check.of(problem.code, problem) for problem in found])
            return
        checklist(out, [Check(name="within the dictionary", detail=f"{rows} rows, {left_out} incomplete left out")])
        screens.next_step(out, f"site-agent plan show {study}", f"site-agent try {study}")

    emit(answer, as_json=json, show=show)
    if found:
        raise typer.Exit(found[0].exit_code)


# -- the plan ---------------------------------------------------------------------------------------------------
@plan_app.command("fetch")
def plan_fetch(
    study: Study,
    file: Annotated[Path | None, typer.Option("--file", help="A signed plan that came another way.")] = None,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Fetch the study's plan and verify who signed it. It is not approved by that."""
    from shared.keys import Envelope

    at = desk(home)
    if file is not None:
        envelope = Envelope.from_bytes(file.read_bytes())
    else:
        with at.egress() as egress:
            envelope = egress.fetch_plan(study)
    plan = at.plans.receive(study, envelope, today=today(), keep=not dry_run)

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"{plan.study}: {plan.title}", f"version {plan.version}, signed by the study lead")
        screens.settings(out, [("plan hash", plan.hash), ("expires", plan.expires)])
        screens.next_step(out, f"site-agent plan show {study}")

    emit({"study": study, "version": plan.version, "hash": plan.hash, "dry_run": dry_run}, as_json=json, show=show)


@plan_app.command("show")
def plan_show(
    study: Study,
    version: Annotated[int | None, typer.Option(help="Another version than the newest.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """One page: what leaves, how often, to whom, at which price, and what is not covered."""
    at = desk(home)
    page = plan_facts(at, at.plans.plan(study, version))

    def show(out: Console) -> None:
        from site_agent import screens

        screens.plan_page(out, page)
        if not page["approved_by"]:
            screens.next_step(out, f"site-agent try {study}", f"site-agent plan approve {study} --as NAME")

    emit(page, as_json=json, show=show)


def plan_facts(at: Desk, plan: StudyPlan) -> dict[str, Any]:
    """Everything a steward agrees to, as plain values."""
    from dataclasses import asdict

    from shared.release import coverage, planned_event
    from shared.terminal import plain
    from site_agent.config import Limits
    from site_agent.plans import difference

    event = planned_event(plan)
    approval = at.plans.approval(plan.study, plan.version)
    before = at.plans.last_approved(plan.study)
    covered, not_covered = coverage(plan)
    columns = []
    for column in plan.dictionary.released:
        if column.levels:
            values = " · ".join(map(str, column.levels))
        else:
            values = f"{column.span[0]:g} to {column.span[1]:g} {column.unit}".rstrip()
        columns.append({"name": column.name, "kind": column.kind, "values": values, "missing": column.missing})
    page: dict[str, Any] = plain(
        {
            "study": plan.study,
            "version": plan.version,
            "title": plan.title,
            "purpose": plan.purpose,
            "hash": plan.hash,
            "dictionary_hash": plan.dictionary.hash,
            "recipient": plan.coordinator,
            "expires": plan.expires,
            "eligibility": plan.eligibility,
            "row_download": plan.row_download,
            "waves": [asdict(wave) for wave in plan.waves],
            "price": _price(plan, event),
            "posture": plan.posture,
            "covered": covered,
            "not_covered": not_covered,
            "columns": columns,
            "floors": asdict(Limits.of(plan.floors, at.config.floors)),
            "approved_by": approval.approver if approval and approval.plan_hash == plan.hash else None,
            "changes": difference(before, plan) if before is not None and before.hash != plan.hash else [],
        }
    )
    return page


def _price(plan: StudyPlan, event: Any) -> dict[str, Any]:
    from shared import privacy
    from shared.release import in_words
    from site_agent.waves import cost

    delta, cap = plan.budget.delta, plan.budget.epsilon
    planned = cost(plan, event)
    return {
        "epsilon": float(privacy.epsilon(event, delta)),
        "delta": delta,
        "all_waves": planned.totals[-1],
        "cap": cap,
        "affordable": planned.affordable,
        "translation": in_words(plan, event),
    }


@plan_app.command("approve")
def plan_approve(
    study: Study,
    name: As,
    understood: Annotated[
        str,
        typer.Option("--understood", metavar="POSTURE", help="'local', 'holdout': I have read what is not covered."),
    ] = "",
    reason: Reason = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Agree to exactly this plan, with this dictionary, run by this version of the agent."""
    from shared.release import LEAVES_PERSONS_OPEN, coverage

    at = desk(home)
    at.config.approver_key(name)
    plan = at.plans.plan(study)
    page = plan_facts(at, plan)
    if page["price"]["affordable"] == 0:
        raise BudgetRefusal(
            f"the plan's first wave must fit its own cap of ε = {plan.budget.epsilon:g}",
            given=f"ε = {page['price']['epsilon']:.4g}",
            next_step="Ask the study lead for an amended plan.",
        )
    ticked = understood == plan.posture
    if not ticked and not json and sys.stdin.isatty():
        from shared.terminal import console
        from site_agent import screens

        screens.plan_page(console(stderr=True), page)
        ticked = asked(f"Posture {plan.posture!r}: have you read what is not covered, and agree to it?")
    if plan.posture in LEAVES_PERSONS_OPEN and not ticked:
        raise ApprovalRefusal(
            f"posture {plan.posture!r} must be approved with a tick on what is not covered",
            given="no tick",
            next_step=f"Read site-agent plan show {study}, then add --understood {plan.posture}.",
        )
    if not dry_run:
        at.plans.approve(
            plan,
            name=name,
            key=at.approver(name),
            agent_version=agent_version(),
            understood=coverage(plan)[1],
            today=today(),
            reason=reason,
        )
    answer = {
        "study": study,
        "version": plan.version,
        "plan_hash": plan.hash,
        "dictionary_hash": plan.dictionary.hash,
        "agent_version": agent_version(),
        "approver": name,
        "understood": coverage(plan)[1],
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent import screens

        detail = "dry run, not approved" if dry_run else f"approved by {name}"
        screens.heading(out, f"{study}, version {plan.version}", detail)
        screens.settings(
            out, [("plan", plan.hash), ("dictionary", plan.dictionary.hash), ("agent version", agent_version())]
        )
        out.print("Whatever of these three changes, the approval is void and you will be asked again.")
        due = _due(at, plan, today())
        screens.next_step(out, f"site-agent release {study} --wave {due[0] if due else 1}")

    emit(answer, as_json=json, show=show)


@plan_app.command("revoke")
def plan_revoke(
    study: Study, name: As, reason: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False
) -> None:
    """Take the approval of the plan back: nothing more is made or sent under it. What has left has left."""
    at = desk(home)
    at.config.approver_key(name)
    plan = at.plans.plan(study)
    if at.plans.approval(study, plan.version) is None:
        raise StateRefusal(
            "the plan must be approved here to be revoked", given=f"version {plan.version}, not approved"
        )
    if not dry_run:
        at.plans.revoke(study, name=name, key=at.approver(name), reason=reason)

    def show(out: Console) -> None:
        from site_agent import screens

        detail = "dry run, nothing changed" if dry_run else f"approval revoked by {name}"
        screens.heading(out, f"{study}, version {plan.version}", detail)
        out.print("Nothing is made or sent under this plan until somebody approves it again.")
        screens.next_step(out, "site-agent outbox list", f"site-agent leave {study} --as {name}")

    emit(
        {"study": study, "version": plan.version, "plan_hash": plan.hash, "by": name, "dry_run": dry_run},
        as_json=json,
        show=show,
    )


# -- releases ---------------------------------------------------------------------------------------------------
@contextmanager
def _bar(quiet: bool) -> Iterator[Progress | None]:
    """A progress bar with stage and time left on a terminal; one line per stage in a log; nothing with ``--json``."""
    from shared.terminal import console

    if quiet:
        yield None
        return
    out = console(stderr=True)
    if not out.is_terminal:
        last: list[str] = []

        def line(stage: Any, share: float, left: float | None) -> None:
            if last != [stage.value]:
                last[:] = [stage.value]
                out.print(f"{share:4.0%}  {stage.value}")

        yield line
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=36),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}", style="dim"),
        console=out,
        transient=True,
    ) as drawn:
        task = drawn.add_task("starting", total=1.0, left="")

        def move(stage: Any, share: float, left: float | None) -> None:
            drawn.update(task, description=stage.value, completed=share, left=_left(left))

        yield move


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


@app.command("try")
def try_(study: Study, home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """Rehearse the whole release on made-up data: no record is read, it costs nothing, nothing is sent."""
    from site_agent.pipeline import rehearse

    at = desk(home)
    plan = at.plans.plan(study)
    folder = at.home / "rehearsal" / study
    if dry_run:
        emit(
            {"study": study, "folder": folder, "dry_run": True},
            as_json=json,
            show=lambda out: out.print(f"Would use {folder}."),
        )
        return
    with _bar(json) as progress:
        done = rehearse(
            plan=plan,
            folder=folder,
            name=at.config.site,
            agent_version=agent_version(),
            floors=at.config.floors,
            today=today(),
            progress=progress,
        )
    refused = done.refused and {"code": done.refused.code, "must": done.refused.must, "given": done.refused.given}
    rows = 0 if done.release is None else len(done.release.table)
    answer = {"study": study, "folder": folder, "rows": rows, "cost": 0, "refused": None, "finding": refused}

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"Rehearsal of {study}", "made-up data, cost 0, nothing sent")
        if done.release is not None:
            out.print(f"{rows} made-up rows went all the way to a sandbox outbox in {folder}.")
        if done.refused is not None:
            screens.note(out, f"On the made-up table a gate said no: {done.refused.must}, got {done.refused.given}.")
            out.print("That is about uniform made-up values, not about your patients.")
        out.print("It shows that the steps work here. It says nothing about how your table will fare.")
        screens.next_step(out, f"site-agent data check {study}", f"site-agent plan approve {study} --as NAME")

    emit(answer, as_json=json, show=show)


@app.command()
def release(
    study: Study,
    wave: Annotated[int, typer.Option("--wave", help="Number of the planned wave.")],
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="The approver who has it made.")] = None,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Make the release of one wave, and hold it here for approval. Charged once; only a standing approval sends it."""
    from dataclasses import replace

    from site_agent import airlock, pipeline, screens

    at = desk(home)
    at.require_running()
    plan, _ = at.plans.approved(study, agent_version=agent_version(), today=today())
    author = airlock.require_author(at, plan, by)
    source = at.config.source(study)
    pipeline.require_open(plan, wave, today())
    needs = pipeline.estimate(plan, source)
    if dry_run:
        page = plan_facts(at, plan)
        total = at.ledger.study_total(study, plan.budget.delta)
        answer = {
            "study": study,
            "wave": wave,
            "estimate": needs,
            "price": page["price"],
            "spent": total.epsilon,
            "dry_run": True,
        }

        def show_plan(out: Console) -> None:
            screens.heading(out, f"{study}, wave {wave}", "dry run: rows were counted; nothing charged, drawn or sent")
            screens.settings(
                out,
                [
                    ("rows", f"about {needs.n}"),
                    ("takes", f"about {_left(needs.seconds).removesuffix(' left')} and {needs.memory_mb:.0f} MB"),
                    ("price", screens.epsilon(page["price"]["epsilon"], plan.budget.delta)),
                    ("spent so far", f"ε = {total.epsilon:.4g} of {plan.budget.epsilon:g}"),
                    ("stages", " → ".join(stage.value for stage in pipeline.STAGES)),
                ],
            )

        emit(answer, as_json=json, show=show_plan)
        return
    if by is not None:
        at.approver(by)  # only who can open the key may be named as the author
    with at.locked(), at.egress() as egress, _bar(json) as progress:
        made = pipeline.make_release(
            plan=plan,
            wave=wave,
            source=source,
            site=_site(at, egress),
            today=today(),
            author=author,
            progress=progress,
        )
    full = made.hold.release_id
    found = airlock.stand_in(at, full, agent_version=agent_version(), today=today())
    sent = None
    if found.hold.state == "approved":
        sent = airlock.send(at, full, agent_version=agent_version(), today=today()).sent
    made = replace(made, hold=at.outbox.get(full))

    def show(out: Console) -> None:
        screens.release_page(out, made)
        out.print()
        short = full[:8]
        if sent is not None:
            out.print(f"Approved by the standing approval of {found.used}, and sent: every limit of it holds.")
            out.print(f"The coordinator accepted it as entry {sent['log_index']} of its log.")
            screens.next_step(out, "site-agent budget")
            return
        if found.used:
            out.print(f"Approved by the standing approval of {found.used}; another person must approve it as well.")
        if found.limit:
            out.print(f"The standing approval was not used: {found.limit}.")
        out.print(
            "It is held here. Nothing has been sent. Approving sends these bytes; another draw is another charge."
        )
        screens.next_step(
            out,
            f"site-agent outbox show {short}",
            f"site-agent approve {short} --as NAME{''.join(f' --tick {c.name}' for c in made.warnings)}",
            f"site-agent reject {short} --as NAME --reason …",
        )

    standing = {"used": found.used, "limit": found.limit}
    emit({**_described(made), "standing": standing, "accepted": sent}, as_json=json, show=show)


MADE_UP_ROWS = 600


@app.command()
def curve(
    study: Study,
    made_up: Annotated[
        bool, typer.Option("--made-up", help="On a table made from the dictionary; no plan need be approved.")
    ] = False,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE.svg", help="A name in the site folder's figures; .svg, .png or .pdf.")
    ] = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """True price, attacks and planned estimates against w. Its draws are outside the ledger, forgotten, and never sent.

    It fits one flow and draws from it many times, here, in memory. What is kept is the curve: aggregates, in a file
    that only its owner can read. On real records it needs the approved plan: choosing w by it is a look at the data.
    """
    from shared.encoding import Encoder
    from shared.randomness import secure_rng
    from site_agent import pipeline, records, screens
    from site_agent.curve import DRAWS, GRID, price_curve, require_allowed

    at = desk(home)
    name = out or f"curve-{study}{'-made-up' if made_up else ''}.svg"
    path = _figure_path(at.home, name)
    if made_up:
        plan = at.plans.plan(study)
        rows = MADE_UP_ROWS
    else:
        at.require_running()
        plan, _ = at.plans.approved(study, agent_version=agent_version(), today=today())
        require_allowed(plan, made_up=False)
        rows = records.count(at.config.source(study))
    d = Encoder(dictionary=plan.dictionary).d
    if dry_run:
        answer = {
            "study": study,
            "rows": rows,
            "columns": d,
            "weights": GRID,
            "draws": DRAWS,
            "file": path,
            "dry_run": True,
        }
        emit(
            answer,
            as_json=json,
            show=lambda out: out.print(
                f"Would fit one flow on about {rows} rows, draw {DRAWS} times at {len(GRID)} weights, and write {path}."
            ),
        )
        return
    rng = secure_rng()
    with _bar(json) as progress:
        if made_up:
            table = plan.dictionary.check(pipeline.made_up_table(plan, rows, rng))
        else:
            table = records.read(
                at.config.source(study), plan.dictionary, key=at.config.snapshot_key.read_bytes()
            ).table
        drawn = price_curve(plan=plan, table=table, rng=rng, made_up=made_up, progress=progress)
    _write_figures({path: ("curve", drawn)})

    def show(out: Console) -> None:
        screens.curve_page(out, drawn)
        out.print(f"Drawn in {path}, which only its owner can read.")
        screens.next_step(out, f"site-agent plan show {study}")

    emit(
        {**drawn.to_canonical(), "sentences": drawn.sentences(), "file": path, "dry_run": False},
        as_json=json,
        show=show,
    )


def _figure_path(home: Path, name: str) -> Path:
    """Where a figure of this site is written: within its folder, whatever the name says."""
    folder = (home / "figures").resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(home.resolve()):
        raise UsageRefusal(
            "a figure drawn from records must stay in the site's folder",
            given="a path outside",
            next_step="Give a name.",
        )
    if path.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise UsageRefusal("a figure must end in .svg, .png or .pdf", given=repr(path.suffix))
    return path


def _write_figures(figures: dict[Path, tuple[str, Any]]) -> None:
    """Draw and write, readable by the owner alone."""
    from shared.keys import write_private
    from site_agent.figures import curve_figure, figure_bytes

    for path, (kind, what) in figures.items():
        figure = curve_figure(what) if kind == "curve" else what
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, figure_bytes(figure, path.suffix.lower().lstrip(".")))


def _site(at: Desk, witness: Any) -> Site:
    from site_agent.pipeline import Site

    return Site(
        name=at.config.site,
        agent_version=agent_version(),
        ledger=at.ledger,
        outbox=at.outbox,
        witness=witness,
        snapshot_key=at.config.snapshot_key.read_bytes(),
        floors=at.config.floors,
        paused=lambda: at.paused,
        budget=at.config.budget,
    )


def _described(made: Any) -> dict[str, Any]:
    hold, receipt = made.hold, made.receipt
    return {
        "release_id": hold.release_id,
        "study": hold.study,
        "wave": hold.wave,
        "state": hold.state,
        "rows": len(made.table),
        "columns": list(made.table.columns),
        "bundle_sha256": hold.bundle_sha256,
        "bundle_bytes": hold.bundle_bytes,
        "recipient": receipt.recipient,
        "epsilon": receipt.epsilon,
        "delta": receipt.delta,
        "study_epsilon": receipt.study_epsilon,
        "translation": receipt.translation,
        "not_covered": receipt.not_covered,
        "checks": made.checks,
        "warnings": [{"name": check.name, "detail": check.detail} for check in made.warnings],
        "audit": made.audit,
        "approvals": [approval.name for approval in hold.approvals],
        "approvals_needed": hold.approvals_needed,
        "author": hold.author,
    }


@outbox_app.command("list")
def outbox_list(home: Home = None, json: Json = False) -> None:
    """Every sealed release and its state."""
    at = desk(home)
    rows = [
        {
            "release_id": hold.release_id,
            "study": hold.study,
            "wave": hold.wave,
            "state": hold.state,
            "approvals": len(hold.approvals),
            "approvals_needed": hold.approvals_needed,
            "epsilon": hold.epsilon,
            "day": hold.day,
            "reason": hold.reason,
        }
        for hold in at.outbox.list()
    ]

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, "Outbox")
        screens.outbox(out, rows)
        waiting = [str(row["release_id"]) for row in rows if row["state"] in ("held", "sent_back", "approved")]
        if waiting:
            screens.next_step(out, f"site-agent outbox show {waiting[0][:8]}")

    emit({"releases": rows}, as_json=json, show=show)


@outbox_app.command("show")
def outbox_show(
    release_id: ReleaseId,
    rows: Annotated[int, typer.Option("--rows", help="How many rows to show.")] = 8,
    home: Home = None,
    json: Json = False,
) -> None:
    """The exact rows that would leave, with size, checks, audit, price, and what changed in the plan."""
    from site_agent import airlock, pipeline, screens

    at = desk(home)
    made = pipeline.open_release(at.outbox, at.release_id(release_id))
    changes = plan_changes(at, made)
    earlier = airlock.compare(at, made)
    answer = {
        **_described(made),
        "plan_changes": changes,
        "earlier": earlier,
        "first_rows": _rows(made.table, rows),
    }

    def show(out: Console) -> None:
        screens.release_page(out, made, changes=changes, earlier=earlier, rows=rows)
        short = made.hold.release_id[:8]
        if made.hold.state in ("held", "sent_back"):
            screens.next_step(
                out,
                f"site-agent approve {short} --as NAME{''.join(f' --tick {c.name}' for c in made.warnings)}",
                f"site-agent send-back {short} --as NAME --reason …",
                f"site-agent reject {short} --as NAME --reason …",
            )
        elif made.hold.state == "approved":
            screens.next_step(out, f"site-agent approve {short} --as NAME        (sends the same bytes again)")

    emit(answer, as_json=json, show=show)


@outbox_app.command("figures")
def outbox_figures(
    release_id: ReleaseId,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A folder; figures/ID in the site's folder without it.")
    ] = None,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Draw for the approver: released columns beside the real ones, and what the attack achieved. They stay here."""
    from shared.encoding import Encoder
    from shared.randomness import secure_rng
    from site_agent import pipeline, records, screens
    from site_agent.audit import AuditReport

    at = desk(home)
    full = at.release_id(release_id)
    made = pipeline.open_release(at.outbox, full)
    plan = at.plans.plan(made.hold.study, made.receipt.plan_version)
    folder = (out or at.home / "figures" / full[:8]).expanduser().absolute()
    title = f"{made.hold.study}, wave {made.hold.wave}"
    audited = AuditReport.from_canonical(made.audit) if "membership" in made.audit else None
    source = at.config.source(made.hold.study)
    table = records.read(source, plan.dictionary, key=at.config.snapshot_key.read_bytes())
    drawn: dict[Path, tuple[str, Any]] = {}
    told: list[str] = []
    if made.snapshot and made.snapshot != table.snapshot:
        told.append("The table has changed since this release was drawn; the real columns are those of today.")
    if not dry_run:
        from site_agent.figures import attack_figure, margins_figure

        encoder = Encoder(dictionary=plan.dictionary)
        real = encoder.decode(encoder.encode(table.table, secure_rng()))
        drawn[folder / "columns.svg"] = (
            "columns",
            margins_figure(real, made.table, plan.dictionary, title=f"{title}: released columns"),
        )
        if audited is not None and audited.likelihood is not None:
            drawn[folder / "attack.svg"] = (
                "attack",
                attack_figure(audited.likelihood, title=f"{title}: an attack we tried", detail="others may do better"),
            )
        _write_figures(drawn)
    if audited is None or audited.likelihood is None:
        told.append("This release has no attack to draw.")
    files = sorted(drawn)

    def show(out: Console) -> None:
        screens.heading(out, title, "dry run, nothing written" if dry_run else f"release {full[:8]}")
        for path in files:
            out.print(str(path), soft_wrap=True)
        for line in told:
            screens.note(out, line)
        out.print("Drawn from records: only the owner of these files can read them, and they stay here.")
        screens.next_step(out, f"site-agent outbox show {full[:8]}")

    emit(
        {"release_id": full, "files": files, "folder": folder, "notes": told, "dry_run": dry_run},
        as_json=json,
        show=show,
    )


def _rows(table: Any, rows: int) -> list[dict[str, Any]]:
    import json

    found: list[dict[str, Any]] = json.loads(table.head(rows).to_json(orient="records"))
    return found


def plan_changes(at: Desk, made: Release) -> list[tuple[str, str, str]]:
    """What the newest plan says otherwise than the plan of a release."""
    from site_agent.plans import difference

    now = at.plans.plan(made.hold.study)
    if now.hash == made.hold.plan_hash:
        return []
    return list(difference(at.plans.plan(made.hold.study, made.receipt.plan_version), now))


@app.command()
def approve(
    release_id: ReleaseId,
    name: As,
    tick: Annotated[list[str] | None, typer.Option("--tick", help="A warning you have looked at; repeat.")] = None,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Sign exactly these bytes and, when enough people have signed, send them. Safe to repeat."""
    from site_agent import airlock, screens

    at = desk(home)
    at.require_running()
    full = at.release_id(release_id)
    before = at.outbox.get(full)
    done = airlock.approve(
        at,
        full,
        name=name,
        ticked=_ticked(at, full, list(tick or []), quiet=json),
        open_key=lambda: at.approver(name, beside=_others(before)),
        agent_version=agent_version(),
        today=today(),
        dry_run=dry_run,
    )
    hold, sent = done.hold, done.sent
    answer = {
        "release_id": full,
        "state": hold.state,
        "approvals": [approval.name for approval in hold.approvals],
        "approvals_needed": hold.approvals_needed,
        "bundle_sha256": hold.bundle_sha256,
        "accepted": sent,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        screens.heading(out, f"Release {full[:8]}", "dry run, not signed" if dry_run else hold.state)
        screens.settings(
            out,
            [
                ("bytes", f"SHA-256 {hold.bundle_sha256}"),
                ("approvals", f"{len(hold.approvals)} of {hold.approvals_needed}"),
                (
                    "sent",
                    f"accepted as entry {sent['log_index']} of the coordinator's log"
                    if sent
                    else "no"
                    if hold.state != "delivered"
                    else "earlier",
                ),
            ],
        )
        if hold.state == "delivered":
            screens.next_step(out, "site-agent budget")
        elif not dry_run:
            screens.next_step(out, f"site-agent approve {full[:8]} --as ANOTHER_NAME")

    emit(answer, as_json=json, show=show)


# -- approvals in advance ---------------------------------------------------------------------------------------
def _standing_line(at: Desk, noted: Noted) -> dict[str, Any]:
    from dataclasses import asdict

    from shared.standing import open_standing

    document = open_standing(noted.envelope, at.outbox.approvers)
    over = today() > dt.date.fromisoformat(document.until)
    state = "revoked" if noted.revoked else "ended" if over else "in force"
    used = sum(given.standing == noted.digest for hold in at.ledger.holds(noted.study) for given in hold.approvals)
    return {"id": noted.digest, "state": state, "used": used, **asdict(document)}


@standing_app.command("add")
def standing_add(
    study: Study,
    name: As,
    max_epsilon: Annotated[float, typer.Option("--max-epsilon", metavar="E", help="ε of the dearest release.")],
    until: Annotated[str, typer.Option("--until", metavar="DATE", help="Last day, as 2026-12-31.")],
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Sign in advance for later releases of the approved plan: whatever is outside the limits waits for a person."""
    from dataclasses import asdict

    from site_agent import airlock, screens

    at = desk(home)
    try:
        last = dt.date.fromisoformat(until)
    except ValueError:
        raise UsageRefusal("--until must be an ISO date", given=repr(until)) from None
    document, digest = airlock.sign_standing(
        at,
        study,
        name=name,
        max_epsilon=max_epsilon,
        until=last,
        open_key=lambda: at.approver(name),
        agent_version=agent_version(),
        today=today(),
        dry_run=dry_run,
    )

    def show(out: Console) -> None:
        screens.heading(out, f"Standing approval of {study}", "dry run, not signed" if dry_run else f"signed by {name}")
        screens.settings(
            out,
            [
                ("plan", document.plan_hash),
                ("agent version", document.agent_version),
                ("one release", f"at most ε = {document.max_epsilon:g}"),
                ("until", document.until),
                ("rows", f"less than 20 % from the last approved release, now {document.n}"),
            ],
        )
        out.print("A release within these limits, with its audit passed and no warning, is sent without asking again.")
        out.print("Every other one waits for a person, as before. The coordinator checks the limits too.")
        short = digest[:8] if digest else "ID"
        screens.next_step(out, "site-agent run", f"site-agent standing revoke {short} --as NAME --reason …")

    emit({"id": digest, **asdict(document), "dry_run": dry_run}, as_json=json, show=show)


@standing_app.command("list")
def standing_list(
    study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Every standing approval, its limits, and how often it was used."""
    at = desk(home)
    rows = [_standing_line(at, noted) for noted in at.ledger.standing(study)]

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        screens.heading(out, "Standing approvals", f"{sum(row['state'] == 'in force' for row in rows)} in force")
        cells = [
            (
                row["id"][:8],
                row["study"],
                row["approver"],
                f"{row['max_epsilon']:g}",
                row["until"],
                row["used"],
                row["state"],
            )
            for row in rows
        ]
        heads = ("id", "study", "approver", "ε of one release", "until", "used", "state")
        out.print(table(heads, cells, right=("ε of one release", "used")))

    emit({"standing": rows}, as_json=json, show=show)


@standing_app.command("revoke")
def standing_revoke(
    standing_id: Annotated[str, typer.Argument(metavar="ID", help="From the list, or its first characters.")],
    name: As,
    reason: Reason = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Take a standing approval back: from now on it approves nothing. Any approver may."""
    at = desk(home)
    at.config.approver_key(name)
    found = [noted for noted in at.ledger.standing() if noted.digest.startswith(standing_id)]
    if len(found) != 1:
        raise StateRefusal(
            "an id must name one standing approval",
            given=f"{len(found)} that start with {standing_id!r}",
            next_step="See site-agent standing list.",
        )
    if not dry_run:
        at.approver(name)  # only who can open the key may decide in its name
        with at.locked():
            at.ledger.revoke_standing(found[0].digest, name=name, reason=reason)
    answer = {"id": found[0].digest, "study": found[0].study, "by": name, "dry_run": dry_run}

    def show(out: Console) -> None:
        from site_agent import screens

        detail = "dry run, nothing changed" if dry_run else f"revoked by {name}"
        screens.heading(out, f"Standing approval {found[0].digest[:8]}", detail)
        out.print(
            "Releases wait for a person again. What was sent under it was sent: site-agent withdraw takes it back."
        )
        screens.next_step(out, "site-agent standing list")

    emit(answer, as_json=json, show=show)


def _ticked(at: Desk, full: str, ticked: list[str], *, quiet: bool) -> list[str]:
    """The ticks that were given, and those that a person on the terminal adds when asked."""
    from site_agent import airlock, pipeline

    if quiet or not sys.stdin.isatty() or at.outbox.get(full).state not in ("held", "sent_back"):
        return ticked
    for check in airlock.require_ticks(pipeline.open_release(at.outbox, full), ticked):
        if asked(f"Warning {check.name}: {check.detail}. Release all the same?"):
            ticked.append(check.name)
    return ticked


def _others(hold: Hold) -> list[str]:
    """Who has acted on a release and must be somebody else than who acts now."""
    return [approval.name for approval in hold.approvals] + ([hold.author] if hold.author_apart else [])


def _decide(
    for_good: bool, done: str, release_id: str, name: str, reason: str, home: Path | None, json: bool, dry_run: bool
) -> None:
    from site_agent import airlock

    at = desk(home)
    at.config.approver_key(name)
    full = at.release_id(release_id)
    hold = at.outbox.get(full)
    if not dry_run:
        hold = airlock.decline(
            at, full, name=name, reason=reason, open_key=lambda: at.approver(name), for_good=for_good
        )

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"Release {full[:8]}", "dry run, nothing changed" if dry_run else done)
        screens.next_step(out, "site-agent budget" if for_good else f"site-agent outbox show {full[:8]}")

    emit({"release_id": full, "state": hold.state, "by": name, "dry_run": dry_run}, as_json=json, show=show)


@app.command()
def reject(
    release_id: ReleaseId, name: As, reason: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False
) -> None:
    """Decline sealed bytes for good. They are never sent; their charge stays."""
    done = "rejected: never sent, the charge stays"
    _decide(True, done, release_id, name, reason, home, json, dry_run)


@app.command("send-back")
def send_back(
    release_id: ReleaseId, name: As, reason: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False
) -> None:
    """Ask a question first: the bytes stay sealed, approvals given so far lapse."""
    _decide(False, "sent back: sealed, not approved", release_id, name, reason, home, json, dry_run)


@app.command()
def withdraw(
    release_id: Annotated[str, typer.Argument(metavar="ID", help="Of a release, or of a reservation that blocks.")],
    name: As,
    reason: Annotated[
        str, typer.Option("--reason", metavar="KIND", help="consent, error, policy or other: all the hub is told.")
    ],
    note: Annotated[str, typer.Option("--note", help="Why, in a few words; kept in the ledger, sent nowhere.")] = "",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Take a release back: stop it here at once, and have the coordinator bury what it has. The charge stays."""
    from shared.wire import REASONS
    from site_agent import airlock

    at = desk(home)
    at.config.approver_key(name)
    if reason not in REASONS:
        raise UsageRefusal(
            f"--reason must be one of {', '.join(REASONS)}",
            given=repr(reason),
            next_step="Say more with --note; it stays here.",
        )
    full = at.release_id(release_id, sealed=False)
    hold = at.ledger.hold(full)
    if dry_run:
        airlock.require_no_copies(at, hold)
    else:
        hold = airlock.withdraw(at, full, name=name, reason_code=reason, note=note, open_key=lambda: at.approver(name))
    buried = hold.withdrawal.log_index if hold.withdrawal else None
    answer = {
        "release_id": full,
        "study": hold.study,
        "wave": hold.wave,
        "state": hold.state,
        "by": name,
        "reason_code": reason,
        "log_index": buried,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"Release {full[:8]}", "dry run, nothing changed" if dry_run else "withdrawn")
        if dry_run:
            far = "it was delivered: the coordinator would be told" if hold.state == "delivered" else "it stays here"
            out.print(f"State now: {hold.state.replace('_', ' ')}; {far}.")
        elif buried is not None:
            out.print(f"The coordinator has buried it, as entry {buried} of its log. Analysts no longer see it.")
        else:
            out.print("It will not be sent. The coordinator has nothing of it.")
        out.print("Its charge stays: what was drawn was drawn.")
        screens.next_step(out, "site-agent budget")

    emit(answer, as_json=json, show=show)


@app.command()
def leave(
    study: Study, name: As, note: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False
) -> None:
    """Leave a study: bury what was delivered, revoke its plan, delete what was sealed. The audit log stays."""
    from site_agent import airlock

    at = desk(home)
    deleted = airlock.leave(at, study, name=name, open_key=lambda: at.approver(name), note=note, dry_run=dry_run)
    buried = [hold.release_id for hold in at.ledger.holds(study) if hold.state == "withdrawn"]
    head = at.ledger.entries()[-1]
    answer = {
        "study": study,
        "by": name,
        "buried": buried,
        "deleted": deleted,
        "noted": {"seq": head.seq, "hash": head.hash},
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        screens.heading(out, f"Leaving {study}", "dry run, nothing changed" if dry_run else "done")
        cells = [(one.release_id[:8], one.name, f"{one.size:,}", one.sha256[:32] + "…") for one in deleted]
        if cells:
            out.print(table(("release", "file", "bytes", "SHA-256 of what was there"), cells, right=("bytes",)))
        if not dry_run:
            out.print(f"{len(deleted)} files deleted, {len(buried)} releases buried at the coordinator.")
            out.print("Proof of deletion: the list above stands in this site's ledger, signed and chained.")
            screens.settings(out, [("entry", head.seq), ("hash", head.hash)])
            out.print("Ledger, plans and approvals stay. Tell the study lead, who revokes the certificate.")
        screens.next_step(out, f"site-agent audit export {study} --out FOLDER")

    emit(answer, as_json=json, show=show)


# -- the calendar -----------------------------------------------------------------------------------------------
@app.command()
def waves(
    study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """The calendar: what is due, where each wave stands, what was charged, and the last wave the budget allows."""
    from dataclasses import asdict

    from site_agent import waves as calendars

    at = desk(home)
    day = today()
    studies: list[dict[str, Any]] = []
    for name in [study] if study else sorted({*at.config.studies, *at.plans.studies()}):
        if study is None and not at.plans.highest(name):
            continue
        plan = at.plans.plan(name)
        holds = at.ledger.holds(name)
        lines = calendars.calendar(plan, holds, day)
        found = calendars.due(plan, holds, day)
        spent = at.ledger.study_total(name, plan.budget.delta).epsilon
        ahead = [line.number for line in lines if line.state in ("due", "not yet open")]
        totals = _ahead(at, plan, len(ahead))
        within = [number for number, total in zip(ahead, totals, strict=True) if total <= plan.budget.epsilon]
        studies.append(
            {
                "study": name,
                "returning": plan.returning,
                "waves": [asdict(line) for line in lines],
                "due": None if found is None else found.number,
                "spent": spent,
                "delta": plan.budget.delta,
                "cap": plan.budget.epsilon,
                "all_waves": totals[-1] if totals else spent,
                "last_affordable": within[-1] if within else None,
            }
        )

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        for one in studies:
            due = f"wave {one['due']} is due" if one["due"] else "nothing is due"
            screens.heading(
                out, f"Waves of {one['study']}", f"{due} on {day} (UTC) · returning persons: {plan_word(one)}"
            )
            cells = [
                (
                    line["number"],
                    line["opens"],
                    line["closes"],
                    line["state"] + (f" into wave {line['into']}" if line["into"] else ""),
                    line["release_id"][:8] or None,
                )
                for line in one["waves"]
            ]
            out.print(table(("wave", "opens", "closes", "state", "release"), cells, right=("wave",)))
            out.print(
                f"Charged so far ε = {one['spent']:.4g} of {one['cap']:g} at δ = {one['delta']:g}; "
                f"with all waves to come {one['all_waves']:.4g}."
            )
            if one["last_affordable"]:
                out.print(f"The budget allows the waves to come up to wave {one['last_affordable']}.")
            screens.next_step(
                out, f"site-agent release {one['study']} --wave {one['due']}" if one["due"] else "nothing"
            )

    def plan_word(one: dict[str, Any]) -> str:
        return {
            "append": "only new ones are drawn",
            "refresh": "all are drawn anew",
            "frozen": "earlier rows are copied",
        }[one["returning"]]

    emit({"today": day, "studies": studies}, as_json=json, show=show)


def _ahead(at: Desk, plan: StudyPlan, more: int) -> tuple[float, ...]:
    from shared.release import planned_event
    from site_agent.pipeline import touches

    event = planned_event(plan).to_canonical()
    return at.ledger.forecast(plan.study, event, plan.budget.delta, touches=touches(plan), more=more)


@app.command("run")
def run_(
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="MINUTES", min=0.01, help="Between two rounds.")] = 60.0,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Live by the calendar: make each wave that is due, send what people have approved, now or in advance."""
    import json as plain_json
    import time
    from dataclasses import asdict
    from functools import partial

    from site_agent.waves import Event, attend

    def say(event: Event) -> None:
        if json:
            typer.echo(plain_json.dumps(asdict(event), ensure_ascii=False))
            return
        stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M")
        where = " ".join(part for part in (event.study, f"wave {event.wave}" if event.wave else "") if part)
        typer.echo(f"{stamp}  {': '.join(part for part in (where, event.what) if part)}  {event.detail}".rstrip())

    while True:
        # Opened anew each round: settings and plans may have changed since.
        at = desk(home)
        paused = at.paused
        attend(
            at,
            site=partial(_site, at),
            agent_version=agent_version(),
            today=today(),
            say=say,
            dry_run=dry_run,
        )
        if once or dry_run:
            return
        until = time.monotonic() + 60 * every
        while time.monotonic() < until and at.paused == paused:
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))


@app.command("withdraw-person")
def withdraw_person(
    study: Study,
    id_file: Annotated[
        Path, typer.Option("--id-file", exists=True, dir_okay=False, help="Identifiers as in the table, one a line.")
    ],
    by_lot: Annotated[
        bool,
        typer.Option("--by-lot", help="Let others, drawn by lot, leave with them for good, so that no wave waits."),
    ] = False,
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """Note that persons withdrew their consent: they are drawn no more, and leave the table as the plan allows."""
    from site_agent import waves
    from site_agent.config import Limits
    from site_agent.records import pseudonym

    at = desk(home)
    plan = at.plans.plan(study)
    if plan.dictionary.person is None:
        raise UsageRefusal("the study must have a person column", given="none", next_step="Call the study lead.")
    try:
        names = {line.strip() for line in id_file.read_text(encoding="utf-8-sig").splitlines() if line.strip()}
    except UnicodeDecodeError:
        raise UsageRefusal("the file of identifiers must be UTF-8", given="another encoding") from None
    if not names:
        raise UsageRefusal("the file must hold at least one identifier", given="none")
    key = at.config.snapshot_key.read_bytes()
    persons = {pseudonym(name, key=key) for name in names}
    noted = at.ledger.persons_gone(study)
    added = len(persons - noted)
    lot: frozenset[str] = frozenset()
    if by_lot and plan.returning != "append":  # an append takes nobody out of the table, and waits for nobody
        floors = Limits.of(plan.floors, at.config.floors)
        lot = waves.by_lot(at.ledger, study, persons | noted, others=floors.difference, floor=floors.persons)
    if not dry_run:
        with at.locked():
            added = at.ledger.note_persons(study, persons | lot) - len(lot)
    released = {
        person for hold in at.ledger.holds(study) if hold.may_be_out for person in at.ledger.persons(hold) or ()
    }
    answer = {
        "study": study,
        "given": len(persons),
        "added": added,
        "released_before": len(persons & released),
        "by_lot": len(lot),
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"Withdrawn from {study}", "dry run, nothing noted" if dry_run else f"{added} noted")
        out.print(f"{answer['given']} identifiers, {answer['released_before']} of them in an earlier release.")
        out.print("They are kept as pseudonyms only. Whoever was released leaves the table with a later wave, and only")
        out.print("together with at least 10 others. What was delivered already: site-agent withdraw, with the lead.")
        if lot:
            out.print(f"{len(lot)} others, drawn by lot, leave with them and stay away: the next wave need not wait.")
        elif plan.returning != "append" and not by_lot:
            out.print("Until so many leave, a wave waits. With --by-lot others leave with them, and it does not.")
        screens.next_step(out, f"site-agent waves {study}")

    emit(answer, as_json=json, show=show)


# -- the books --------------------------------------------------------------------------------------------------
@app.command()
def budget(
    study: Annotated[str | None, typer.Argument(help="One study; all without it.")] = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Like a bank statement: every charge, the total, the cap, and what no ε covers."""
    from site_agent import airlock

    at = desk(home)
    lines = at.ledger.statement(study)
    totals = airlock.totals(at, study)
    mine = at.config.budget
    site = {"epsilon": at.ledger.site_total(mine.delta), "delta": mine.delta, "cap": mine.epsilon}

    def show(out: Console) -> None:
        from site_agent import screens

        screens.budget(out, lines, totals)

        capped = "" if site["cap"] is None else f" of {site['cap']:g}"
        out.print(f"All studies of this site together: ε = {site['epsilon']:.4g}{capped} at δ = {site['delta']:g},")
        out.print("for somebody who was charged most in each. " + (_NO_SITE_CAP if site["cap"] is None else ""))

    emit({"lines": lines, "totals": totals, "site": site}, as_json=json, show=show)


_NO_SITE_CAP = "No site budget is set (site_epsilon under [budget] in site.toml)."


@app.command()
def history(
    last: Annotated[int, typer.Option("--last", help="How many entries; 0 for all.")] = 30,
    home: Home = None,
    json: Json = False,
) -> None:
    """The ledger's entries: who did what, when."""
    from site_agent import airlock

    at = desk(home)
    entries = airlock.history(at)
    rows = entries[-last:] if last else entries

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        screens.heading(out, "History", f"{len(entries)} entries; times are UTC, order is the number's")
        cells = [
            (
                r["seq"],
                r["time"].replace("T", " ").rstrip("Z"),
                r["kind"].replace("_", " "),
                r["release_id"][:8] or None,
                r["who"],
                r["reason"] or None,
            )
            for r in rows
        ]
        out.print(table(("no.", "time", "step", "release", "who", "reason"), cells, right=("no.",)))

    emit({"entries": rows}, as_json=json, show=show)


@app.command()
def pause(reason: Reason = "", home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """Stop at once: nothing is drawn, approved or sent until `site-agent resume`. Works without a network."""
    from site_agent import airlock

    at = desk(home)
    if not dry_run:
        airlock.pause(at, reason)

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(
            out, f"Site {at.config.site}", "dry run" if dry_run else "paused: nothing is drawn, approved or sent"
        )
        screens.next_step(out, "site-agent resume")

    emit({"site": at.config.site, "paused": at.paused, "dry_run": dry_run}, as_json=json, show=show)


@app.command()
def resume(home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """End a pause."""
    from site_agent import airlock

    at = desk(home)
    if not dry_run:
        airlock.resume(at)

    def show(out: Console) -> None:
        from site_agent import screens

        screens.heading(out, f"Site {at.config.site}", "dry run" if dry_run else "running")
        screens.next_step(out, "site-agent status")

    emit({"site": at.config.site, "paused": at.paused, "dry_run": dry_run}, as_json=json, show=show)


@audit_app.command("export")
def audit_export(
    study: Study,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="A new folder for the record.")],
    home: Home = None,
    json: Json = False,
) -> None:
    """The study's whole record in a folder that a stranger can check with one small script. No row is in it."""
    from site_agent.export import export

    answer = export(desk(home), study, out, agent_version=agent_version(), today=today())

    def show(page: Console) -> None:
        from site_agent import screens

        screens.heading(page, f"Audit record of {study}", f"{answer['files']} files in {out}")
        screens.settings(
            page,
            [
                ("releases", answer["releases"]),
                ("ledger", f"{answer['entries']} entries; those of other studies as digests only"),
                ("head", answer["head"]),
                ("key of this site", answer["fingerprint"]),
            ],
        )
        page.print("No row is in it, and no count of records but the n of each receipt.")
        screens.next_step(page, f"python {out / 'verify.py'}", f"open {out / 'summary.html'}")

    emit(answer, as_json=json, show=show)


@app.command()
def page(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8777,
    listen: Annotated[str, typer.Option("--listen", help="A loopback address; no other is served.")] = "127.0.0.1",
    home: Home = None,
    json: Json = False,
    dry_run: Dry = False,
) -> None:
    """The airlock in a browser on this machine: read, approve, reject, see the budget, pause. Ctrl-C ends it."""
    from site_agent.page import LOOPBACK, serve

    place = desk(home).home
    desk(place).ledger.entries()
    if dry_run:
        if listen not in LOOPBACK:
            raise UsageRefusal("the page must be served to this machine only", given=repr(listen))
        emit(
            {"listen": listen, "port": port, "dry_run": True}, as_json=json, show=lambda out: out.print("Would serve.")
        )
        return

    def announce(address: str, password: str) -> None:
        def show(out: Console) -> None:
            from site_agent import screens

            screens.settings(out, [("open", address), ("password", password)])
            out.print("It works once. Nobody but you should see this terminal. Ctrl-C ends the page.")

        emit({"address": address, "password": password}, as_json=json, show=show)
        sys.stdout.flush()

    serve(lambda: desk(place), listen=listen, port=port, agent_version=agent_version(), today=today, announce=announce)


@app.command("audit-verify", hidden=True)  # its name before `audit` had verbs
@audit_app.command("verify")
@ledger_app.command("verify")
def audit_verify(home: Home = None, json: Json = False) -> None:
    """Verify every entry, sealed bundle, plan approval and decision of this site, each with its signature."""
    from site_agent import airlock

    answer = airlock.verify(desk(home))

    def show(out: Console) -> None:
        from shared.terminal import Check, checklist
        from site_agent import screens

        screens.heading(out, "Audit")
        checklist(
            out,
            [
                Check(name="ledger", detail=f"{answer['entries']} entries, each chained and signed"),
                Check(name="sealed bundles", detail=f"{answer['bundles']}, each the bytes that were sealed"),
                Check(name="plan approvals", detail=f"{answer['plan_approvals']}, each signed by its approver"),
                Check(name="decisions", detail=f"{answer['signatures']}, each signed by its person over its bytes"),
                Check(name="head", detail=answer["head"]),
            ],
        )

    emit(answer, as_json=json, show=show)


@ledger_app.command("recover")
def ledger_recover(home: Home = None, json: Json = False, dry_run: Dry = False) -> None:
    """After a restored backup: count as spent whatever may be missing, and show what the study lead must allow."""
    from site_agent.lock import StateLock
    from site_agent.recovery import recover, survey

    at = desk(home)
    with StateLock(at.home), at.egress() as egress:
        work = survey if dry_run else recover
        found = work(at.ledger, at.plans, egress, at.config.studies)
    seq = found.witnessed.seq if found.witnessed else 0
    answer = {
        "site": at.config.site,
        "state": found.state,
        "witnessed": seq,
        "known": found.known,
        "missing": found.missing,
        "unknown_draws": found.unknown,
        "charges": [
            {"study": one.study, "count": one.count, "wave": one.wave or None, "release_id": one.release_id or None}
            for one in found.lost
        ],
        "fingerprint": found.fingerprint,
        "dry_run": dry_run,
    }

    def show(out: Console) -> None:
        from shared.terminal import table
        from site_agent import screens

        screens.heading(out, "Ledger", "dry run, nothing counted" if dry_run else found.state)
        if found.state == "whole":
            out.print("Nothing that the coordinator has witnessed is missing here.")
            screens.next_step(out, "site-agent ledger verify")
            return
        if found.missing:
            out.print(
                f"The coordinator has witnessed entry {seq}; here entry {found.known} is the last one it acknowledged. "
                f"The {found.missing} between them can hold {found.unknown} draws beyond the releases it received."
            )
        if found.lost:
            rows = [
                (one.study, one.count, one.wave or None, one.release_id[:8] or "nobody knows which")
                for one in found.lost
            ]
            out.print(table(("charged to study", "times", "wave", "release"), rows, right=("times", "wave")))
            out.print("Each at the full price of the study's plan. Whatever was open here is closed, its charge kept.")
            out.print(
                "Whom they drew nobody knows: each counts against everybody, and an append may draw them once more."
            )
        if found.state == "done":
            screens.next_step(out, "site-agent budget", "site-agent ledger verify")
        elif found.fingerprint:
            screens.settings(out, [("fingerprint", found.fingerprint)])
            out.print("Read the fingerprint to the study lead on the telephone. Until the lead allows it")
            out.print(f'(coordinator reanchor {at.config.site} --fingerprint "…") nothing can be released.')
            screens.next_step(out, "site-agent ledger recover", "site-agent budget")
        else:
            screens.next_step(out, "site-agent ledger recover")

    emit(answer, as_json=json, show=show)


if __name__ == "__main__":
    main()
