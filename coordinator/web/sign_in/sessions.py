"""Who is signed in with a browser: a session per sign-in, in memory, behind a cookie that no script can read.

The cookie is 256 random bits, sent to this host alone and by this site's own pages alone (``__Host-``, Secure,
HttpOnly, SameSite=Strict); only its SHA-256 is kept. A session ends after half an hour without a page, after twelve
hours in any case, when it is left, and when what it rests on ends: a token is looked up again for every page.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.base.canonical import sha256_hex
from shared.errors import AccessRefusal, NetworkRefusal

if TYPE_CHECKING:
    from coordinator.web.sign_in.provider import Person

__all__ = ["BEARER", "COOKIE", "Sessions", "SignedIn"]

COOKIE = "__Host-tributary"
BEARER = "session."
"""Before the random bits of a program's session; no token that the coordinator makes begins so."""
IDLE, LONGEST = 1800.0, 43_200.0
MOST, OF_ONE = 4096, 16
LEEWAY = 60.0  # seconds that a provider's clock may differ
CONFIRM = 60.0  # seconds after which the provider is asked again
UNCONFIRMED = 300.0  # seconds for which a session is believed that it could not be asked about
AT_ONCE = 16  # questions to the provider


@dataclass(kw_only=True)
class SignedIn:
    """One sign-in.

    Args:
        name, role: of whoever signed in, to be shown.
        token: what was shown, to be looked up again at every page; blank for who came by a provider.
        person: who came by a provider.
        program: it signed in without a browser.
        confirmed: when the provider last said that it holds.
        csrf: stands in every form of this session's pages.
    """

    name: str
    role: str
    token: str = field(repr=False)
    person: Person | None = None
    program: bool = False
    began: float
    last: float
    confirmed: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


class Sessions:
    """All sessions. Safe for many threads.

    Args:
        clock: gives seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._open: OrderedDict[str, SignedIn] = OrderedDict()

    def enter(self, name: str, role: str, token: str, person: Person | None = None, *, program: bool = False) -> str:
        """A new session; the cookie's value, or a program's token. Of one person's too many the oldest ends."""
        cookie, now = f"{BEARER if program else ''}{secrets.token_urlsafe(32)}", self._clock()
        own: dict[str, Any] = {"name": name, "role": role, "token": token, "person": person, "program": program}
        with self._guard:
            others = [place for place, one in self._open.items() if one.name == name]
            for place in others[: max(0, len(others) - OF_ONE + 1)]:
                del self._open[place]
            while len(self._open) >= MOST:
                self._open.popitem(last=False)
            self._open[_place(cookie)] = SignedIn(**own, began=now, last=now, confirmed=now)
        return cookie

    def find(self, cookie: str, *, program: bool = False) -> SignedIn | None:
        """The session of a cookie, or of a program's token, if it has not ended."""
        place, now = _place(cookie), self._clock()
        with self._guard:
            found = self._open.get(place)
            if found is None or found.program != program:
                return None
            over = found.person is not None and time.time() > found.person.until + LEEWAY
            idle = LONGEST if found.program else IDLE
            if over or now - found.last > idle or now - found.began > LONGEST:
                del self._open[place]
                return None
            if found.person is not None and now - found.confirmed > UNCONFIRMED:
                return None
            found.last = now
            return found

    async def confirm(self, ask: Callable[[Person], Awaitable[Person]]) -> None:
        """Ask the provider about everyone who came by it: who was taken back is out, others are as it says now.

        Args:
            ask: `coordinator.web.sign_in.provider.Provider.confirmed`.
        """
        with self._guard:
            known = [(place, one, one.person) for place, one in self._open.items() if one.person is not None]
        room = asyncio.Semaphore(AT_ONCE)

        async def one(place: str, session: SignedIn, person: Person) -> None:
            try:
                async with room:
                    now = await ask(person)
            except AccessRefusal:
                with self._guard:
                    self._open.pop(place, None)
            except NetworkRefusal:
                return  # believed for a while, see `find`
            else:
                with self._guard:
                    session.person, session.role, session.confirmed = now, now.role, self._clock()

        await asyncio.gather(*(one(*each) for each in known))

    def leave(self, cookie: str) -> None:
        """End a session."""
        with self._guard:
            self._open.pop(_place(cookie), None)


def _place(cookie: str) -> str:
    return sha256_hex(cookie.encode("utf-8", "surrogateescape"))
