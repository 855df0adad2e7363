"""Reminders by mail or to a webhook, as set in notify.toml in the home folder.

A reminder is the text that `coordinator wave remind` shows: a study, a wave, a day, nothing secret. Whoever receives it
decides nothing by it. What cannot be sent is said and forgotten: nothing waits for a mail server, and no run stops.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import resource
import smtplib
import ssl
import subprocess
import sys
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.base.canonical import closed
from shared.errors import ConfigRefusal

if TYPE_CHECKING:
    from coordinator.store.store import Store

__all__ = ["FILE_NAME", "PASSWORD_VARIABLE", "Notify", "SentReminder", "remind_due", "send"]

FILE_NAME = "notify.toml"
PASSWORD_VARIABLE = "TRIBUTARY_SMTP_PASSWORD"
SECONDS, EACH = 15.0, 5.0  # of silence, and of all that a server says for each reminder beyond that
MEMORY = 1 << 30
BEFORE_END = (14, 7, 1)
"""Days before a wave's deadline on which its sites are reminded by themselves; and once a week after it."""
_log = logging.getLogger(__name__)


def _must(holds: object, rule: str, given: object) -> None:
    if not holds:
        raise ConfigRefusal(rule, given=f"{given}", next_step=f"Correct {FILE_NAME}.")


def _here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")


def _address(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable() and 2 < len(text) < 255 and "@" in text[1:-1]


@dataclass(frozen=True, kw_only=True)
class Notify:
    """Destinations of reminders: a webhook, and addresses at a mail server.

    Args:
        webhook: address that takes a POST of JSON; https, or this machine. It may hold a secret, and is shown nowhere.
        smtp: ``host:port`` of the mail server; blank for no mail. A password stands in `PASSWORD_VARIABLE` alone.
        tls: ``starttls``, ``tls`` (from the first byte), or ``none``, with this machine's own server only.
        ca: file of the authority of the mail server or webhook; blank for those of the system.
        user: name at the mail server; blank for none.
        sender: address that mails are from.
        lead: addresses that every mail goes to.
        sites: site to its steward's address; of a site without one, only `lead` is notified.
    Raises: ConfigRefusal, at construction.
    """

    webhook: str = field(default="", repr=False)
    smtp: str = ""
    tls: str = "starttls"
    ca: str = ""
    user: str = ""
    sender: str = ""
    lead: tuple[str, ...] = ()
    sites: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = all(isinstance(getattr(self, item.name), str) for item in fields(self) if item.type == "str")
        _must(texts, "settings must be texts", "another type")
        if self.webhook:
            try:
                place = urllib.parse.urlsplit(self.webhook)
                known = place.hostname and (place.port is None or place.port > 0) and place.username is None
            except ValueError:
                known = False
            safe = known and (place.scheme == "https" or (place.scheme == "http" and _here(place.hostname or "")))
            _must(safe, "webhook must be an https address, without a name or password in it", "another")
        _must(self.tls in ("starttls", "tls", "none"), "tls must be starttls, tls or none", repr(self.tls))
        if self.smtp:
            host, _, port = self.smtp.rpartition(":")
            _must(host and port.isdigit() and int(port) < 65536, "smtp must be host:port", repr(self.smtp))
            open_ok = self.tls != "none" or (_here(host) and not self.user)
            _must(open_ok, "mail must travel encrypted, but to this machine without a password", "tls = none")
            _must(_address(self.sender), "sender must be an address", "another form")
        every = [*self.lead, *self.sites.values()]
        _must(all(map(_address, every)), "lead and sites must name addresses", "another form")

    @classmethod
    def load(cls, home: Path) -> Notify:
        """Read `home`/notify.toml; nothing is sent where there is none. Raises: ConfigRefusal."""
        try:
            given = tomllib.loads((home / FILE_NAME).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            raise ConfigRefusal(f"{FILE_NAME} must be TOML", given="another form") from None
        closed(given, {item.name for item in fields(cls)}, where=FILE_NAME, refusal=ConfigRefusal)
        lead, sites = given.get("lead", []), given.get("sites", {})
        _must(isinstance(lead, list) and isinstance(sites, dict), "lead must be a list, and [sites] a table", "another")
        return cls(**{**given, "lead": tuple(lead)})

    @property
    def configured(self) -> bool:
        """True if anything is sent anywhere."""
        return bool(self.webhook or self.smtp)


@dataclass(frozen=True, kw_only=True)
class SentReminder:
    """One reminder on one way.

    Args:
        way: ``mail`` or ``webhook``.
        failed: kind of the error if it was not sent, without its text, which may quote a password; else blank.
    """

    site: str
    way: str
    failed: str = ""


def send(notify: Notify, study: str, wave: int, texts: Mapping[str, str]) -> tuple[SentReminder, ...]:
    """Send each site's reminder on every way that is configured. Nothing is raised, whatever the servers do.

    Each way has a process of its own, which ends in time: a server may speak for ever, or send what fits in no memory.
    """
    out: list[SentReminder] = []
    ways = {"mail": notify.smtp, "webhook": notify.webhook}
    for way in (way for way, address in ways.items() if address and texts):
        given = {"way": way, "notify": asdict(notify), "study": study, "wave": wave, "texts": dict(texts)}
        command = [sys.executable, "-c", f"import {__name__}; {__name__}.main()"]
        quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        done, why = b"", "ChildProcessError"
        try:
            most = SECONDS + EACH * len(texts)
            done = subprocess.run(command, input=json.dumps(given).encode(), timeout=most, check=False, **quiet).stdout
        except subprocess.TimeoutExpired as over:
            done, why = over.stdout or b"", "TimeoutError"
        except OSError as error:
            why = type(error).__name__
        said = dict(json.loads(line) for line in done.splitlines())
        out += [SentReminder(site=site, way=way, failed=said.get(site, why)) for site in texts]
    return tuple(out)


def main() -> None:
    """Send what standard input says, in a process of its own; a line for each site says what became of it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    given = json.load(sys.stdin)
    notify = Notify(**{**given["notify"], "lead": tuple(given["notify"]["lead"])})
    work = _mail if given["way"] == "mail" else _post
    for site, text in given["texts"].items():
        about = {"study": given["study"], "wave": given["wave"], "site": site}
        failed = ""
        try:
            work(notify, site, f"Study {given['study']}, wave {given['wave']}: {site} is awaited", text, about)
        except Exception as error:  # of whatever kind a server may cause; its text may quote a secret
            failed = type(error).__name__
        sys.stdout.write(json.dumps([site, failed]) + "\n")
        sys.stdout.flush()


def _context(notify: Notify) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=notify.ca or None)


def _mail(notify: Notify, site: str, subject: str, text: str, about: Mapping[str, Any]) -> None:
    recipients = [*dict.fromkeys([*([notify.sites[site]] if site in notify.sites else []), *notify.lead])]
    if not recipients:
        return
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = subject, notify.sender, ", ".join(recipients)
    message.set_content(text)
    host, _, port = notify.smtp.rpartition(":")
    if notify.tls == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, int(port), timeout=SECONDS, context=_context(notify))
    else:
        server = smtplib.SMTP(host, int(port), timeout=SECONDS)
    with server:
        if notify.tls == "starttls":
            server.starttls(context=_context(notify))
        if notify.user:
            server.login(notify.user, os.environ.get(PASSWORD_VARIABLE, ""))
        server.send_message(message)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows none, so that nothing is sent to an address other than the configured one."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(notify: Notify, site: str, subject: str, text: str, about: Mapping[str, Any]) -> None:
    body = json.dumps({"text": f"{subject}\n\n{text}", **about}).encode()
    request = urllib.request.Request(notify.webhook, data=body, headers={"Content-Type": "application/json"})
    secure = urllib.request.HTTPSHandler(context=_context(notify))
    # What goes to this machine in the clear goes to no proxy.
    proxies = {name: place for name, place in urllib.request.getproxies().items() if name == "https"}
    proxy = urllib.request.ProxyHandler(proxies)
    with urllib.request.build_opener(_Stay, secure, proxy).open(request, timeout=SECONDS) as answered:
        answered.read(1 << 16)


def remind_due(store: Store, home: Path, today: dt.date) -> tuple[SentReminder, ...]:
    """Remind the sites of every wave whose deadline is near or over, on its days, once a day; what was sent.

    Without notify.toml nothing is noted either: then a person reminds. Raises: ConfigRefusal, StorageRefusal.
    """
    from coordinator.answers.waves import grid, reminder

    notify = Notify.load(home)
    out: list[SentReminder] = []
    for plan in {stored.plan.study: stored.plan for stored in store.plans()}.values() if notify.configured else ():
        for line in grid(store, plan.study, today).waves:
            left = (line.closes - today).days
            due = left in BEFORE_END if line.state == "open" else line.state == "overdue" and left % 7 == 0
            seen = {one.site for one in line.cells if one.reminded == today.isoformat()}
            texts = {site: reminder(plan, line, site, today) for site in line.awaited if due and site not in seen}
            if texts:
                store.remind(plan.study, line.number, list(texts), today)
                out += send(notify, plan.study, line.number, texts)
    for one in out:
        if one.failed:
            _log.warning("a reminder to %s by %s was not sent: %s", one.site, one.way, one.failed)
    return tuple(out)
