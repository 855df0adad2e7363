"""The desk of one site: its folder and everything a decision works with, each part opened when it is first used.

Commands, page and calendar work at the same desk: where the ledger is, how a key is opened and for whom, whether the
site is paused, and where a refused attempt is noted.

The day is the machine's, in UTC. ``TRIBUTARY_TODAY`` (an ISO date) replaces it for rehearsals and tests of calendars;
`doctor` says so when it is set. It gives nobody a power they lack: who can set it can set the clock.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

import typer

from shared import software_version as agent_version
from shared.base.clock import utc_now
from shared.errors import ApprovalRefusal, PausedRefusal, Refusal, StateRefusal, UsageRefusal

if TYPE_CHECKING:
    from shared.base.keys import Envelope, SigningKey
    from site_agent.config import SiteConfig
    from site_agent.decide.plans import AgentNow, Plans
    from site_agent.egress import AcknowledgedReplies, Egress, RetryPolicy, SendingRules
    from site_agent.egress.courier import Courier
    from site_agent.egress.sending import Retries
    from site_agent.ledger.book import Ledger
    from site_agent.release.outbox import Outbox
    from site_agent.release.site import WorkingSite
    from site_agent.show.refusals import Refusals

__all__ = [
    "Desk",
    "agent_now",
    "agent_version",
    "attempted",
    "confirmed",
    "courier",
    "door",
    "kept_replies",
    "open_desk",
    "today",
    "working_site",
]

TODAY_VARIABLE = "TRIBUTARY_TODAY"


@dataclass(frozen=True)
class Desk:
    """One site's folder, its parts opened on first use."""

    home: Path

    @cached_property
    def config(self) -> SiteConfig:
        """site.toml."""
        from site_agent.config import SiteConfig

        return SiteConfig.load(self.home)

    @cached_property
    def release_key(self) -> SigningKey:
        """The agent's key."""
        from site_agent.decide import key_files

        return key_files.release_key(self.config)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, verified."""
        from shared.base.keys import SigningKey
        from site_agent.ledger.book import Ledger

        tagger = SigningKey.load(self.config.tag_key) if self.config.tag_key.exists() else None
        return Ledger(self.config.ledger, self.release_key, site=self.config.site, tagger=tagger)

    @cached_property
    def outbox(self) -> Outbox:
        """The outbox."""
        from shared.base.keys import PublicKey
        from site_agent.release.outbox import Outbox

        approvers = {name: PublicKey(key) for name, key in self.config.approvers.items()}
        return Outbox(self.home, self.ledger, approvers=approvers)

    @cached_property
    def plans(self) -> Plans:
        """The book of plans."""
        from shared.base.keys import PublicKey
        from site_agent.decide.plans import Plans

        return Plans(
            folder=self.home / "plans",
            coordinator=self.config.coordinator,
            leads=self.config.pinned_leads,
            threshold=self.config.threshold,
            approvers={name: PublicKey(key) for name, key in self.config.approvers.items()},
            signers=self.config.signers,
            # What was taken while others led, or fewer had to sign, is read as it was taken.
            every_lead=self.config.every_lead if self.ledger.membership().leads or self.config.retired_leads else {},
            memory=self.ledger,
        )

    @property
    def begun_under(self) -> dict[str, bytes]:
        """Secrets of the studies that began under another one than that in force. Raises: IntegrityRefusal (lost)."""
        from site_agent.decide import key_files

        return key_files.snapshot_keys(self.config, self.ledger.snapshot_marks())

    def snapshot_key(self, study: str) -> bytes:
        """The secret with which a study's tables and persons are hashed. Raises: IntegrityRefusal (lost)."""
        return self.begun_under.get(study) or self.newest_snapshot_key

    @property
    def newest_snapshot_key(self) -> bytes:
        """The secret of studies that have not begun; an interrupted change to it is brought to its end."""
        from site_agent.decide import key_files

        named = [said.new for said, _ in self.ledger.membership().keys if said.role == "snapshot"]
        if named:
            key_files.put_snapshot_in_force(self.config, named[-1])
        return self.config.snapshot_key.read_bytes()

    def forget(self) -> None:
        """Read settings, keys and ledger anew when they are next asked for: something has changed them."""
        for name in ("config", "release_key", "ledger", "plans", "outbox", "refusals"):
            self.__dict__.pop(name, None)

    @cached_property
    def refusals(self) -> Refusals:
        """The site's log of refusals."""
        from site_agent.show.refusals import Refusals

        former = [key for _, key in self.ledger.membership().release]
        return Refusals(self.config.refused, self.release_key, site=self.config.site, former=former)

    @property
    def paused(self) -> bool:
        """True if the site is paused: by the file that stops it at once, or by the ledger, which no hand unlinks."""
        return self.config.pause_file.exists() or self.ledger.paused()

    def stopped(self) -> Callable[[], bool]:
        """Function that says whether the site is paused; it reads the ledger again only when its head has changed.

        What asks while it works must hear of both: a hand that unlinks the file ends no pause.
        """
        known: dict[bytes, bool] = {}

        def paused() -> bool:
            if self.config.pause_file.exists():
                return True
            try:
                head = self.ledger.head_path.read_bytes()
            except OSError:  # the ledger itself says what is wrong
                return self.ledger.paused()
            if head not in known:
                known.clear()
                known[head] = self.ledger.paused()
            return known[head]

        return paused

    @property
    def replies(self) -> AcknowledgedReplies | None:
        """The coordinator's signed answers as they are kept here; None where no key of its is pinned."""
        return kept_replies(self.config)

    def acknowledged(self) -> frozenset[str]:
        """Heads of the ledger that the coordinator has acknowledged, by the answers kept here."""
        from site_agent.egress import AcknowledgedReplies

        replies = AcknowledgedReplies(
            self.release_key.public, self.config.site, self.config.home / "acknowledged.jsonl"
        ).replies()
        return frozenset(str(said["head"]) for said in replies if said["kind"] == "AnchorReceipt")

    def note_refusal(
        self,
        verb: str,
        refusal: Refusal,
        *,
        study: str = "",
        release_id: str = "",
        who: str = "",
        agent: bool = False,
    ) -> None:
        """Note that something was refused, by names that are known here and nothing else that was given.

        What stops this as well (no site here, a ledger that is not whole, a full disk) must not hide the refusal.

        Args:
            release_id: or its first characters.
        """
        with suppress(Refusal, OSError, ValueError):
            holds = self.ledger.holds()
            found = [hold for hold in holds if release_id and hold.release_id.startswith(release_id)]
            known = {*self.config.studies, *self.config.data, *(hold.study for hold in holds)}
            one = found[0] if len(found) == 1 else None
            self.refusals.note(
                verb,
                refusal.code,
                study=one.study if one else study if study in known else "",
                release_id=one.release_id if one else "",
                who=who if who in self.config.approvers else "",
                after=len(self.ledger.entries()),
                agent=agent,
            )

    def require_running(self) -> None:
        """Raises: PausedRefusal."""
        if self.paused:
            raise PausedRefusal(
                "this site must not be paused",
                given="a pause",
                next_step="Run site-agent resume --as NAME when it may go on.",
            )

    def egress(
        self,
        *,
        allowed: Callable[[], None] = lambda: None,
        cert_pem: str = "",
        key_pem: str = "",
        **retries: Unpack[Retries],
    ) -> Egress:
        """The one door.

        Args:
            allowed: refuses what must not be sent any more.
            cert_pem, key_pem: shown instead of the certificate that is in force, and its key.
            retries: as of `site_agent.egress.RetryPolicy`.
        Raises: StateRefusal (not joined), CertificateRefusal.
        """
        from site_agent.egress import RetryPolicy, SendingRules

        if not self.config.certificate.exists():
            raise StateRefusal("this site must have joined", given="no certificate", next_step="Run site-agent join.")
        return door(
            self.config,
            identity=(cert_pem, key_pem) if cert_pem else None,
            retries=RetryPolicy(**retries),
            rules=SendingRules(paused=self.stopped(), allowed=allowed, sealed=self.ledger.sealed_round),
            first=self.ledger.membership().untold,
        )

    def approver(self, name: str, *, beside: Iterable[str] = ()) -> SigningKey:
        """An approver's key, opened with the passphrase.

        Args:
            beside: people who must be somebody else: one shared variable must not open a second person's key.
        """
        from shared.base.passphrases import opened

        self.require_in_time(name)
        return opened(self.config.approver_key(name), name, beside=beside)

    def require_in_time(self, name: str) -> None:
        """Refuse a deputy whose days are over, and a key that the ledger has ended. Raises: ApprovalRefusal."""
        if not self.config.release_key.exists():  # its replacement is the one thing left to sign, and no deputy's
            return
        known = self.ledger.membership()
        if self.config.approvers.get(name) in known.ended:
            # A crash, or a hand, has left it in the settings; the agent's next look takes it out of them.
            raise ApprovalRefusal(
                "an approver must approve here by the ledger", given=name, next_step="Another approver decides."
            )
        deputy_of, until = known.deputies.get(name, ("", ""))
        if until and today().isoformat() > until:
            raise ApprovalRefusal(
                f"a deputy must act for {deputy_of} within the days that were signed",
                given=f"{name}, until {until}",
                next_step=f"Retire {name}, and add them again: site-agent approver add --deputy-of {deputy_of}.",
            )

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
        """Hold the folder as its only agent, with its settings as they are now, and settle what a crash left."""
        from site_agent.config import SiteConfig
        from site_agent.lock import StateLock

        with StateLock(self.home):
            known, now = self.config.approvers, SiteConfig.load(self.home)
            if now != self.config:
                self.forget()
            if now.approvers != known:  # while a person typed a passphrase, say
                raise StateRefusal(
                    "who approves here must stay the same while a command runs",
                    given="a change by another command",
                    next_step="Nothing was signed. Run it again.",
                )
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


def kept_replies(config: SiteConfig) -> AcknowledgedReplies | None:
    """The coordinator's signed answers, verified by the key that the invitation pinned; None without one."""
    from shared.base.keys import PublicKey
    from site_agent.egress import AcknowledgedReplies

    pinned = config.ca.with_name("witness.pub")
    if not pinned.exists():
        return None
    key = PublicKey(pinned.read_text().strip())
    return AcknowledgedReplies(key, config.site, config.home / "acknowledged.jsonl")


def door(
    config: SiteConfig,
    *,
    identity: tuple[str, str] | None = None,
    retries: RetryPolicy | None = None,
    rules: SendingRules | None = None,
    first: Sequence[Envelope] = (),
) -> Egress:
    """The connection of a site that has joined.

    Args:
        config: the site's settings.
        identity: certificate and key (PEM) that are shown; those in force when None.
        retries, first: as of `site_agent.egress.Egress`.
        rules: what is asked before anything is sent; when None, whether there is a pause file.
    Raises: CertificateRefusal, when the certificate is expired.
    """
    from shared.wire.certificates import trusted
    from shared.wire.transport import Credentials
    from site_agent.egress import Egress, SendingRules
    from site_agent.identity import identity as in_force
    from site_agent.identity import pinned

    certificate, key = identity or in_force(config)
    try:
        chain = pinned(config)
    except Refusal:  # the invitation's own stands whatever became of the others
        chain = (config.ca.read_text(),)
    replies = kept_replies(config)
    return Egress(
        address=config.address,
        server_name=config.server_name,
        credentials=Credentials(ca_pem=trusted(chain, utc_now()), cert_pem=certificate, key_pem=key),
        retries=retries,
        rules=rules or SendingRules(paused=config.pause_file.exists),
        witness=replies,
        first=first,
        courier=courier(config, replies) if config.courier else None,
    )


def courier(config: SiteConfig, replies: AcknowledgedReplies | None = None) -> Courier:
    """The site's courier folder: calls that wait for a courier, and the answers that one has brought."""
    from site_agent.egress.courier import Courier

    replies = replies or kept_replies(config)
    seen = None if replies is None else replies.checkpoint()
    return Courier(config.home / "courier", seen=0 if seen is None else seen[0])


def open_desk(home: Path | None) -> Desk:
    """The desk of the folder that was named, or of the default one."""
    from site_agent.config import default_home

    return Desk((home or default_home()).absolute())


def today() -> dt.date:
    """The day, in UTC; see the module's text."""
    given = os.environ.get(TODAY_VARIABLE)
    if not given:
        return utc_now().date()
    try:
        return dt.date.fromisoformat(given)
    except ValueError:
        raise UsageRefusal(f"{TODAY_VARIABLE} must be an ISO date", given=repr(given)) from None


def agent_now() -> AgentNow:
    """This software's version and the day, which approvals are held against."""
    from site_agent.decide.plans import AgentNow

    return AgentNow(version=agent_version(), today=today())


_Given = ParamSpec("_Given")


_Made = TypeVar("_Made")


def attempted(verb: str) -> Callable[[Callable[_Given, _Made]], Callable[_Given, _Made]]:
    """A command whose refusal is noted in the site's own log; a dry run attempts nothing."""

    def noting(command: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
        @wraps(command)
        def run_command(*args: _Given.args, **given: _Given.kwargs) -> _Made:
            try:
                return command(*args, **given)
            except Refusal as refusal:
                if not given.get("dry_run"):
                    texts = {name: given.get(name) for name in ("study", "release_id", "name", "by")}
                    words = {name: text if isinstance(text, str) else "" for name, text in texts.items()}
                    home = given.get("home")
                    open_desk(home if isinstance(home, Path) else None).note_refusal(
                        verb,
                        refusal,
                        study=words["study"],
                        release_id=words["release_id"],
                        who=words["name"] or words["by"],
                    )
                raise

        return run_command

    return noting


def confirmed(question: str) -> bool:
    """A yes or no on the terminal; no where there is none."""
    return sys.stdin.isatty() and bool(typer.confirm(question, default=False, err=True))


def working_site(desk: Desk, witness: Any) -> WorkingSite:
    """The site as the pipeline sees it."""
    from site_agent.decide.airlock import standing_approval
    from site_agent.release.site import WorkingSite

    if desk.config.courier:
        from site_agent.egress.courier import CarriedWitness

        witness = CarriedWitness(witness, desk.ledger)
    return WorkingSite(
        name=desk.config.site,
        agent_version=agent_version(),
        ledger=desk.ledger,
        outbox=desk.outbox,
        witness=witness,
        snapshot_key=desk.newest_snapshot_key,
        begun_under=desk.begun_under,
        floors=desk.config.floors,
        paused=desk.stopped(),
        budget=desk.config.budget,
        memory_mb=desk.config.memory_mb,
        coordinator_takes=desk.config.coordinator_takes,
        approved=lambda plan: standing_approval.require_approved_ahead(desk, plan, agent_now()),
    )
