"""Sign-in of a notebook or an R session: the person signs in with a browser anywhere, the program waits (RFC 8628).

The coordinator asks the provider, as the client that it is; no token of the provider's leaves it. What the program gets
is a session of its own behind a random token, good on both of the coordinator's ports until the sign-in ends.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.web.sign_in.provider import Person, Provider
from coordinator.web.sign_in.sessions import LONGEST, Sessions
from shared.base.canonical import sha256_hex
from shared.errors import AccessRefusal, RateRefusal, StateRefusal

__all__ = ["DeviceSignIns"]

MOST, OF_ONE_ADDRESS = 512, 8


@dataclass(kw_only=True)
class _Waiting:
    address: str
    device_code: str
    until: float
    interval: float
    asked: float


class DeviceSignIns:
    """Sign-ins that wait for a person; on one event loop only.

    Args:
        provider: by which people sign in; None where none is set.
        sessions: where whoever signed in is entered.
        house: gives what a token's file says of the coordinator: ``address``, ``server_name``, ``ca_pem``, ``witness``.
        clock: gives seconds that only grow.
    """

    def __init__(
        self,
        provider: Provider | None,
        sessions: Sessions,
        house: Callable[[], Mapping[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider, self._sessions, self._house, self._clock = provider, sessions, house, clock
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    async def begin(self, address: str) -> dict[str, Any]:
        """Begin one: what the person is told, and the secret by which the program asks on.

        Args:
            address: where the program calls from.
        Raises: StateRefusal (no provider, or one without the flow), RateRefusal (too many of this address),
            NetworkRefusal.
        """
        now = self._clock()
        for place in [place for place, one in self._waiting.items() if one.until < now]:
            del self._waiting[place]
        if self._provider is None:
            raise StateRefusal(
                "the coordinator must know a provider by which people sign in",
                given="none",
                next_step="Use a token: the study lead makes it (coordinator analyst add).",
            )
        if (
            sum(one.address == address for one in self._waiting.values()) >= OF_ONE_ADDRESS
            or len(self._waiting) >= MOST
        ):
            raise RateRefusal("few sign-ins must wait at once", given="too many", next_step="Try again in ten minutes.")
        code = await self._provider.device()
        secret = secrets.token_urlsafe(32)
        self._waiting[sha256_hex(secret.encode())] = _Waiting(
            address=address,
            device_code=code.device_code,
            until=now + code.seconds,
            interval=code.interval,
            asked=-math.inf,
        )
        shown = {"user_code": code.user_code, "verification_uri": code.uri, "verification_uri_complete": code.whole_uri}
        return {"sign_in": secret, **shown, "expires_in": code.seconds, "interval": code.interval}

    async def ask(self, secret: str) -> dict[str, Any] | None:
        """What a token's file holds, once the person has signed in; None while they have not.

        Raises: AccessRefusal: no sign-in that waits, one that ended, or one that the provider refused.
        """
        place, now = sha256_hex(secret.encode()), self._clock()
        one = self._waiting.get(place)
        if one is None or one.until < now or self._provider is None:
            self._waiting.pop(place, None)
            raise AccessRefusal(
                "a sign-in must be one that waits", given="one that ended, or none", next_step="Begin again."
            )
        if now - one.asked < one.interval:
            return None
        one.asked = now
        try:
            found = await self._provider.device_person(one.device_code)
        except AccessRefusal:
            self._waiting.pop(place, None)
            raise
        if found is None:
            return None
        if isinstance(found, float):
            one.interval += found
            return None
        self._waiting.pop(place, None)
        return self._entered(found)

    def _entered(self, person: Person) -> dict[str, Any]:
        token = self._sessions.enter(person.name, person.role, "", person, program=True)
        ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LONGEST)
        own = {"name": person.name, "role": person.role, "studies": list(person.studies), "token": token}
        return {**self._house(), **own, "expires": ends.date().isoformat()}
