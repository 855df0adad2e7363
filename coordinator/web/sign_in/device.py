"""Sign-in of a notebook or an R session: the person signs in with a browser anywhere, the program waits (RFC 8628).

The coordinator asks the provider, as the client that it is; no token of the provider's leaves it. What the program gets
is a session of its own behind a random token, good on both of the coordinator's ports until the sign-in ends.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.web.sign_in.kept import SignInStore
from coordinator.web.sign_in.provider import Person, Provider
from coordinator.web.sign_in.sessions import LONGEST, Sessions
from shared.errors import AccessRefusal, RateRefusal, StateRefusal

__all__ = ["DeviceSignIns"]

MOST, OF_ONE_ADDRESS = 512, 8


class DeviceSignIns:
    """Sign-ins that wait for a person, begun at whichever process and asked for at any.

    Args:
        provider: by which people sign in; None where none is set.
        sessions: the sessions, to which a sign-in adds one.
        house: gives the coordinator's fields of a token file: ``address``, ``server_name``, ``ca_pem``, ``witness``.
        kept: their storage. clock: gives seconds since 1970.
    """

    def __init__(
        self,
        provider: Provider | None,
        sessions: Sessions,
        house: Callable[[], Mapping[str, str]],
        kept: SignInStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._provider, self._sessions, self._house = provider, sessions, house
        self._kept, self._clock = kept, clock

    async def begin(self, address: str) -> dict[str, Any]:
        """Begin one: what the person is told, and the secret by which the program asks on.

        Args:
            address: network address of the program.
        Raises: StateRefusal (no provider, or one without the flow), RateRefusal (too many of this address),
            NetworkRefusal.
        """
        if self._provider is None:
            raise StateRefusal(
                "the coordinator must know a provider by which people sign in",
                given="none",
                next_step="Use a token: the study lead makes it (coordinator analyst add).",
            )
        code, now = await self._provider.device(), self._clock()
        secret = secrets.token_urlsafe(32)
        content = {"device_code": code.device_code, "interval": code.interval, "asked": False}
        limits: dict[str, Any] = {"most": MOST, "of_one": -OF_ONE_ADDRESS}
        kept = {"name": address[:64], "now": now, "ends": now + code.seconds, **limits}
        if not await asyncio.to_thread(self._kept.put, "device", secret, content, **kept):
            raise RateRefusal("few sign-ins must wait at once", given="too many", next_step="Try again in ten minutes.")
        shown = {"user_code": code.user_code, "verification_uri": code.uri, "verification_uri_complete": code.whole_uri}
        return {"sign_in": secret, **shown, "expires_in": code.seconds, "interval": code.interval}

    async def ask(self, secret: str) -> dict[str, Any] | None:
        """Content of a token file, once the person has signed in; None while they have not.

        Raises: AccessRefusal: no sign-in that waits, one that ended, or one that the provider refused.
        """
        now = self._clock()
        row = await asyncio.to_thread(self._kept.find, "device", secret)
        if row is None or row.ends < now or self._provider is None:
            await asyncio.to_thread(self._kept.leave, secret)
            raise AccessRefusal(
                "a sign-in must be one that waits", given="one that ended, or none", next_step="Begin again."
            )
        content = dict(row.content)
        early = content["asked"] and now - row.last < content["interval"]
        content["asked"] = True
        # Of several programs with one secret, or one that asks at two processes, one goes on.
        if early or not await self._changed(secret, content=content, was=row.confirmed, last=now, confirmed=now):
            return None
        try:
            found = await self._provider.device_person(content["device_code"])
        except AccessRefusal:
            await asyncio.to_thread(self._kept.leave, secret)
            raise
        if found is None:
            return None
        if isinstance(found, float):
            content["interval"] += found
            await self._changed(secret, content=content)
            return None
        if await asyncio.to_thread(self._kept.take, "device", secret) is None:
            return None
        return await asyncio.to_thread(self._entered, found)

    async def _changed(self, secret: str, **how: Any) -> bool:
        return await asyncio.to_thread(functools.partial(self._kept.change, "device", secret, **how))

    def _entered(self, person: Person) -> dict[str, Any]:
        token = self._sessions.enter(person.name, person.role, "", person, program=True)
        ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LONGEST)
        own = {"name": person.name, "role": person.role, "studies": list(person.studies), "token": token}
        return {**self._house(), **own, "expires": ends.date().isoformat()}
