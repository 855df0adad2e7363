"""Who is signed in with a browser: a session per sign-in, in memory, behind a cookie that no script can read.

The cookie is 256 random bits, sent to this host alone and by this site's own pages alone (``__Host-``, Secure,
HttpOnly, SameSite=Strict); only its SHA-256 is kept. A session ends after half an hour without a page, after twelve
hours in any case, when it is left, and when what it rests on ends: a token is looked up again for every page.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.base.canonical import sha256_hex

if TYPE_CHECKING:
    from coordinator.web.oidc import Person

__all__ = ["COOKIE", "Sessions", "SignedIn"]

COOKIE = "__Host-tributary"
IDLE, LONGEST = 1800.0, 43_200.0
MOST, OF_ONE = 4096, 16
LEEWAY = 60.0  # seconds that a provider's clock may differ


@dataclass(kw_only=True)
class SignedIn:
    """One sign-in.

    Args:
        name, role: of whoever signed in, to be shown.
        token: what was shown, to be looked up again at every page; blank for who came by a provider.
        person: who came by a provider.
        csrf: stands in every form of this session's pages.
    """

    name: str
    role: str
    token: str = field(repr=False)
    person: Person | None = None
    began: float
    last: float
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

    def enter(self, name: str, role: str, token: str, person: Person | None = None) -> str:
        """A new session; the cookie's value. Of one person's too many the oldest ends."""
        cookie, now = secrets.token_urlsafe(32), self._clock()
        with self._guard:
            own = [place for place, one in self._open.items() if one.name == name]
            for place in own[: max(0, len(own) - OF_ONE + 1)]:
                del self._open[place]
            while len(self._open) >= MOST:
                self._open.popitem(last=False)
            self._open[_place(cookie)] = SignedIn(name=name, role=role, token=token, person=person, began=now, last=now)
        return cookie

    def find(self, cookie: str) -> SignedIn | None:
        """The session of a cookie, if it has not ended."""
        place, now = _place(cookie), self._clock()
        with self._guard:
            found = self._open.get(place)
            if found is None:
                return None
            over = found.person is not None and time.time() > found.person.until + LEEWAY
            if over or now - found.last > IDLE or now - found.began > LONGEST:
                del self._open[place]
                return None
            found.last = now
            return found

    def leave(self, cookie: str) -> None:
        """End a session."""
        with self._guard:
            self._open.pop(_place(cookie), None)


def _place(cookie: str) -> str:
    return sha256_hex(cookie.encode("utf-8", "surrogateescape"))
