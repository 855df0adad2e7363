"""The pages by which people come in: by a token, by the provider, or, the first of all, by the code of who serves."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from coordinator.web.interface.api import Api, connection_of
from coordinator.web.interface.problems import problem
from coordinator.web.sign_in.provider import BEGUN
from coordinator.web.sign_in.sessions import COOKIE, Sessions
from shared.base.canonical import sha256_hex
from shared.errors import AccessRefusal, ParameterError, Refusal, SchemaRefusal, TooLarge

if TYPE_CHECKING:
    from starlette.requests import Request

    from coordinator.web.sign_in.provider import Provider
    from shared.wire.door import GuardedConnection

__all__ = ["SignInPages"]


class SignInPages:
    """Sign-in of a browser.

    Args:
        api: the HTTP interface, which identifies tokens.
        sessions: the sessions.
        provider: by which people sign in; None for tokens alone.
        house: gives this coordinator's fields of a token file, see `coordinator.web.sign_in.device`.
        first_code: SHA-256, hex, of the code by which the first token may be made; blank for none.
        draw: makes a page of a template. form: reads the fields of a form that a page of this site sent.
    """

    def __init__(
        self,
        api: Api,
        sessions: Sessions,
        provider: Provider | None,
        *,
        house: Callable[[], Mapping[str, str]],
        first_code: str,
        draw: Callable[..., Response],
        form: Callable[[Request], Awaitable[list[tuple[str, str]]]],
    ) -> None:
        self._api, self._sessions, self._provider, self._draw, self._form = api, sessions, provider, draw, form
        self._house, self._first_code = house, first_code

    def routes(self) -> list[Route]:
        """Routes of the sign-in pages."""
        return [
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-in/first", self._first_token, methods=["POST"]),
            Route("/sign-in/away", self._away, methods=["GET"]),
            Route("/sign-in/back", self._back, methods=["GET"]),
        ]

    async def _sign_in(self, request: Request) -> Response:
        connection, first = _connection(request), await self._studies_at_first(request)
        if request.method != "POST":
            return self.page(first)
        try:
            token = dict(await self._form(request)).get("token", "").strip()
            who = await self._api.identified(request, token or "none")
        except (AccessRefusal, SchemaRefusal, TooLarge) as refusal:
            if connection is not None:
                connection.strike()
            return self.page(first, refusal, 401)
        except Refusal as refusal:
            return self.page(first, refusal, problem(refusal)["status"])
        return await self._with_session(RedirectResponse("/", status_code=303), who.site, who.role, token)

    def page(self, first: Any, refusal: Refusal | None = None, status: int = 200, name: str = "") -> Response:
        """The page of signing in.

        Args:
            first: studies of a coordinator that nobody has been let in to yet; None for any other.
            refusal: of the form that was sent. name: the name in that form.
        """
        values = {"refusal": refusal, "first": first, "by_code": bool(self._first_code), "given_name": name}
        return self._draw("sign_in.html", None, status=status, **values)

    async def _with_session(self, answer: Response, *who: Any) -> Response:
        """The answer, with a cookie of a new session."""
        cookie = await self._api.places.looked_up(functools.partial(self._sessions.enter, *who))
        answer.set_cookie(COOKIE, cookie, secure=True, httponly=True, samesite="strict", path="/")
        return answer

    async def _first_token(self, request: Request) -> Response:
        """The first token, for who sits at this machine and has read the code where `coordinator serve` printed it."""
        connection, first = _connection(request), await self._studies_at_first(request)
        if first is None or not self._first_code:
            return RedirectResponse("/sign-in", status_code=303)
        name = ""
        try:
            given = dict(await self._form(request))
            name = given.get("name", "").strip()[:65]
            shown = sha256_hex("".join(given.get("code", "").lower().split()).encode())
            if not secrets.compare_digest(shown, self._first_code):
                raise ParameterError(
                    "the code must be the one that coordinator serve printed",
                    given="another",
                    next_step="It is a new one at each start.",
                )
            house = self._house()  # before the token: it is shown once
            make = functools.partial(self._api.derived.first_token, name)
            account, token = await self._api.places.looked_up(make)
        except Refusal as refusal:
            if connection is not None:
                connection.strike()
            return self.page(first, refusal, problem(refusal)["status"], name)
        own = {"name": account.name, "role": account.role, "studies": list(account.studies)}
        own |= {"expires": account.expires.isoformat(), "token": token}
        page = self._draw("first_token.html", None, account=account, file=json.dumps({**house, **own}, indent=1))
        return await self._with_session(page, account.name, account.role, token)

    async def _away(self, request: Request) -> Response:
        """Redirect to the provider, if there is one."""
        if self._provider is None:
            return RedirectResponse("/sign-in", status_code=303)
        try:
            cookie, place = await self._provider.begin()
        except Refusal as refusal:
            return self.page(None, refusal, problem(refusal)["status"])
        answer = RedirectResponse(place, status_code=303)
        # The provider sends the browser back from another site: a stricter cookie would not come along.
        answer.set_cookie(BEGUN, cookie, max_age=600, secure=True, httponly=True, samesite="lax", path="/")
        return answer

    async def _back(self, request: Request) -> Response:
        """Return from the provider: a session, or the reason why there is none."""
        if self._provider is None:
            return RedirectResponse("/sign-in", status_code=303)
        try:
            found = await self._provider.finish(request.cookies.get(BEGUN, ""), request.query_params)
        except Refusal as refusal:
            status = 401 if isinstance(refusal, AccessRefusal) else problem(refusal)["status"]
            return self.page(None, refusal, status)
        # A page of this site that goes on by itself: a strict cookie does not follow a redirect from another site.
        answer = await self._with_session(self._draw("entered.html", None), found.name, found.role, "", found)
        answer.delete_cookie(BEGUN, path="/", secure=True, httponly=True, samesite="lax")
        return answer

    async def _studies_at_first(self, request: Request) -> Any:
        """Studies for a first token; None except on this machine, while nobody holds a token and no provider is set."""
        connection = connection_of(request)
        if self._provider is not None or connection is None or connection.address != "127.0.0.1":
            return None
        return await self._api.places.looked_up(self._api.derived.first)


def _connection(request: Request) -> GuardedConnection | None:
    """The connection of who has no name yet, counted by its address."""
    connection = connection_of(request)
    if connection is not None:
        connection.proved(f"address {connection.address}", named=False)
    return connection
