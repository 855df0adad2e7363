"""Browser sessions: one per sign-in, in the store, behind a cookie that no script can read.

The cookie is 256 random bits, sent to this host alone and by this site's own pages alone (``__Host-``, Secure,
HttpOnly, SameSite=Strict); the content of the session is sealed by it (`coordinator.web.sign_in.kept`), so that any
process that serves can open the session it is shown the cookie of, and no reader of the database can. A session ends
after half an hour without a page, after twelve hours in any case, at sign-out, and with the token or sign-in that it
rests on: a token is looked up again for every page, and a process asks the provider about everyone who has shown it a
cookie. A person about whom no process has asked for five minutes, since none that served them runs, signs in again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from coordinator.web.sign_in.kept import KeptSignIn, SignInStore
from coordinator.web.sign_in.provider import Person
from shared.errors import AccessRefusal, NetworkRefusal

__all__ = ["BEARER", "COOKIE", "Sessions", "SignedIn"]

COOKIE = "__Host-tributary"
BEARER = "session."
"""Prefix of the random bits of a program's session; no token that the coordinator makes begins so."""
IDLE, LONGEST = 1800.0, 43_200.0
MOST, OF_ONE = 4096, 16
LEEWAY = 60.0  # seconds that a provider's clock may differ
CONFIRM = 60.0  # seconds after which the provider is asked again
UNCONFIRMED = 300.0  # seconds for which a session is believed that it could not be asked about
AT_ONCE = 16  # questions to the provider
STEP = 30.0  # seconds between two writings of when a session was last used


@dataclass(frozen=True, kw_only=True)
class SignedIn:
    """One sign-in.

    Args:
        name, role: of whoever signed in, to be shown.
        token: the analyst's token, looked up again at every page; blank for sign-in by a provider.
        person: the person, for sign-in by a provider.
        program: True if a program signed in, without a browser.
        csrf: token in every form of this session's pages.
    """

    name: str
    role: str
    token: str = field(repr=False)
    person: Person | None = None
    program: bool = False
    csrf: str = field(repr=False)


class Sessions:
    """All sessions. Safe for many threads, and for several processes.

    Args:
        kept: their storage.
        clock: gives seconds since 1970.
    """

    def __init__(self, kept: SignInStore, clock: Callable[[], float] = time.time) -> None:
        self._kept, self._clock = kept, clock
        self._guard = threading.Lock()
        self._shown: OrderedDict[str, bool] = OrderedDict()
        """Cookies of people who came by a provider, and whether each is a program's: by these they are asked about."""

    def enter(self, name: str, role: str, token: str, person: Person | None = None, *, program: bool = False) -> str:
        """A new session; the cookie's value, or a program's token. Of one person's too many the oldest ends.

        Args:
            name, role: of the analyst.
            token: the analyst's, with which the session's calls are made.
            person: the person, for sign-in by a provider; None for sign-in with a token.
            program: True for the session of a program, which sends the value with each call; False for a browser's.
        """
        cookie, now = f"{BEARER if program else ''}{secrets.token_urlsafe(32)}", self._clock()
        content: dict[str, Any] = {"role": role, "token": token, "csrf": secrets.token_urlsafe(32)}
        content |= {"person": None if person is None else _written(person)}
        limits = {"most": MOST, "of_one": OF_ONE}
        self._kept.put(_kind(program), cookie, content, name=name, now=now, ends=now + LONGEST, **limits)
        self._remember(cookie, person, program)
        return cookie

    def find(self, cookie: str, *, program: bool = False) -> SignedIn | None:
        """The session of a cookie, or of a program's token, if it has not ended."""
        kind, now = _kind(program), self._clock()
        row = self._kept.find(kind, cookie) if cookie else None
        if row is None:
            return None
        found = _session(row, program)
        over = found.person is not None and time.time() > found.person.until + LEEWAY
        if over or now - row.last > (LONGEST if program else IDLE) or now > row.ends:
            self.leave(cookie)
            return None
        self._remember(cookie, found.person, program)
        if found.person is not None and now - row.confirmed > UNCONFIRMED:
            return None
        if now - row.last > STEP:
            self._kept.change(kind, cookie, last=now)
        return found

    def _remember(self, cookie: str, person: Person | None, program: bool) -> None:
        if person is not None:
            with self._guard:
                self._shown[cookie] = program
                self._shown.move_to_end(cookie)
                while len(self._shown) > MOST:
                    self._shown.popitem(last=False)

    async def confirm(self, ask: Callable[[Person], Awaitable[Person]], *, since: float = 0.0) -> None:
        """Ask the provider about everyone who came by it: who was taken back is out, others are as it says now.

        Args:
            ask: `coordinator.web.sign_in.provider.Provider.confirmed`.
            since: seconds for which an answer that another process got is enough.
        """
        with self._guard:
            known = list(self._shown.items())
        room = asyncio.Semaphore(AT_ONCE)

        async def one(cookie: str, program: bool) -> None:
            async with room:
                person, was = await asyncio.to_thread(self._claimed, cookie, program, since)
                if person is None:
                    return
                kind = _kind(program)
                try:
                    now = await ask(person)
                except AccessRefusal:
                    await asyncio.to_thread(self.leave, cookie)
                except NetworkRefusal:  # believed for a while, see `find`
                    await asyncio.to_thread(self._kept.change, kind, cookie, confirmed=was)
                else:
                    await asyncio.to_thread(self._renew, cookie, program, now)

        await asyncio.gather(*(one(*each) for each in known))

    def _claimed(self, cookie: str, program: bool, since: float) -> tuple[Person | None, float]:
        """Person to confirm with the provider, and the time last confirmed; (None, 0.0) if there is nothing to do."""
        kind, now = _kind(program), self._clock()
        row = self._kept.find(kind, cookie)
        if row is None:
            with self._guard:
                self._shown.pop(cookie, None)
            return None, 0.0
        if now - row.confirmed < since or not self._kept.change(kind, cookie, was=row.confirmed, confirmed=now):
            return None, 0.0
        return _session(row, program).person, row.confirmed

    def _renew(self, cookie: str, program: bool, person: Person) -> None:
        kind = _kind(program)
        row = self._kept.find(kind, cookie)
        if row is not None:
            content = {**row.content, "role": person.role, "person": _written(person)}
            self._kept.change(kind, cookie, content=content, confirmed=self._clock())

    def leave(self, cookie: str) -> None:
        """End a session."""
        with self._guard:
            self._shown.pop(cookie, None)
        self._kept.leave(cookie)


def _kind(program: bool) -> Literal["session", "program"]:
    return "program" if program else "session"


def _written(person: Person) -> dict[str, Any]:
    return {**dataclasses.asdict(person), "studies": list(person.studies)}


def _session(row: KeptSignIn, program: bool) -> SignedIn:
    said = row.content["person"]
    person = None if said is None else Person(**{**said, "studies": tuple(said["studies"])})
    texts = {name: row.content[name] for name in ("role", "token", "csrf")}
    return SignedIn(name=row.name, person=person, program=program, **texts)
