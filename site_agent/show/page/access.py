"""Access to the local page, and to the approvers' keys there: passwords, sessions, and limits on wrong guesses."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import PassphraseRefusal

if TYPE_CHECKING:
    from shared.base.keys import SigningKey
    from site_agent.desk import Desk

__all__ = ["Gate", "KeyOpener", "Session"]

IDLE_SECONDS = 1800.0
TRIES = 5
"""Wrong passwords after which another one is shown in the terminal; wrong passphrases after which a pause begins."""
PAUSE, LONGEST_PAUSE = 60.0, 3600.0
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(kw_only=True)
class Session:
    """One browser that gave the password. `csrf` stands in each of its forms."""

    csrf: str
    used: float


@dataclass(kw_only=True)
class Gate:
    """Access control: whoever can read the terminal.

    Args:
        announce: shows a password where the agent was started. Each works once; the next is shown when it is used, or
            after `TRIES` wrong ones.
        port: that the page is served on.
        clock: monotonic seconds.
    """

    announce: Callable[[str], None]
    port: int = 0
    clock: Callable[[], float] = time.monotonic
    cookie: str = field(default="", init=False, repr=False)
    password: str = field(default="", init=False, repr=False)
    sessions: dict[str, Session] = field(default_factory=dict, init=False, repr=False)
    wrong: int = field(default=0, init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        # A browser keeps one jar for all ports of an address: the name tells this page's cookie, and this start's,
        # from those of others, so that none can be put in its place.
        self.cookie = f"tributary-airlock-{self.port}-{secrets.token_hex(8)}"
        self._renew()

    def enter(self, password: str) -> str | None:
        """The cookie of a new session, or None for a wrong password."""
        with self.lock:
            if not secrets.compare_digest(password.strip().lower().encode(), self.password.encode()):
                self.wrong += 1
                if self.wrong >= TRIES:
                    self._renew()
                return None
            self._renew()
            cookie = secrets.token_urlsafe(32)
            self.sessions[cookie] = Session(csrf=secrets.token_urlsafe(32), used=self.clock())
            return cookie

    def session(self, cookie: str) -> Session | None:
        """The session of a cookie, unless it has not been used for `IDLE_SECONDS`."""
        with self.lock:
            found = self.sessions.get(cookie)
            if found is None or self.clock() - found.used > IDLE_SECONDS:
                self.sessions.pop(cookie, None)
                return None
            found.used = self.clock()
            return found

    def leave(self, cookie: str) -> None:
        """End a session."""
        with self.lock:
            self.sessions.pop(cookie, None)

    def _renew(self) -> None:
        # 12 letters of 31: 59 bits, and `TRIES` guesses at each.
        drawn = "".join(secrets.choice(LETTERS) for _ in range(12))
        self.password, self.wrong = "-".join(drawn[i : i + 4] for i in range(0, 12, 4)), 0
        self.announce(self.password)


@dataclass(kw_only=True)
class KeyOpener:
    """Opens approvers' keys with what was typed on the page, one at a time; the environment is never asked.

    After `TRIES` wrong passphrases in a row a key is not tried for `PAUSE` seconds, and twice as long after each
    further one. The command line does not know of it: whoever may use that has a copy of the file within reach.

    Args:
        clock: monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    wrong: dict[str, int] = field(default_factory=dict, init=False)
    until: dict[str, float] = field(default_factory=dict, init=False)
    lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def opened(self, desk: Desk, name: str, passphrase: str) -> SigningKey:
        """The key of `name`. Raises: PassphraseRefusal, and whatever `SigningKey.load` raises."""
        from shared.base.keys import SigningKey

        path = desk.config.approver_key(name)
        with self.lock:
            left = self.until.get(name, 0.0) - self.clock()
            if left > 0:
                raise PassphraseRefusal(
                    "a passphrase may be typed again after a pause",
                    given=f"{self.wrong[name]} wrong ones in a row for {name}",
                    next_step=f"Wait {math.ceil(left)} seconds; or decide on the command line.",
                )
            try:
                key = SigningKey.load(path, passphrase)
            except PassphraseRefusal:
                times = self.wrong[name] = self.wrong.get(name, 0) + 1
                if times >= TRIES:
                    self.until[name] = self.clock() + min(PAUSE * 2 ** min(times - TRIES, 10), LONGEST_PAUSE)
                raise
            self.wrong.pop(name, None)
            return key
