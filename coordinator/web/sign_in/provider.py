"""Sign-in by a hospital's own provider: OpenID Connect, authorization code with PKCE, device flow for notebooks.

Who somebody is, the provider says in an ID token, which is checked here: its signature by a key of the provider's set,
issuer, audience, nonce, and times with a minute's leeway (joserfc). What they may do is in two claims: a role, and the
studies. A sign-in that was begun is good once, for ten minutes, in the browser that began it: its state, nonce and
verifier stay in the store, sealed by a cookie of that browser.

The provider's own tokens stay here too, for one thing: to ask whether a sign-in still holds. It is asked at its
introspection endpoint, else at userinfo; where it gave a refresh token, a sign-in that ends is renewed by it, with the
claims that the provider says then.

Sources: OpenID Connect Core 1.0; RFC 7636 (PKCE); RFC 9207 (issuer in the answer); RFC 8628 (device flow); RFC 7662
(introspection); RFC 6749, 6 (refresh).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from coordinator.web.sign_in.kept import SignInStore
from shared.base.canonical import is_word, sha256_hex
from shared.errors import AccessRefusal, NetworkRefusal, StateRefusal

__all__ = ["BEGUN", "ROLES", "DeviceCode", "Person", "Provider"]

BEGUN = "__Host-tributary-begun"
ROLES = ("analyst", "lead", "auditor", "reader")
"""``reader`` reads what an analyst does, and asks nothing."""
ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
LEEWAY = 60  # seconds that two clocks may differ
TIME, MOST = 600.0, 1024
REPLY_CAP = 1 << 20
T = TypeVar("T")
SECONDS = 15.0
RENEW = 120.0  # seconds before its end in which a sign-in is renewed
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True, kw_only=True)
class Person:
    """Person who signed in, as stated by the provider.

    Args:
        serial: identifies issuer and subject, for rate limits. name: for the record.
        until: the time (seconds since 1970) at which the ID token ends.
        access, refresh: the provider's tokens, by which it is asked again; blank where it gave none.
    """

    serial: str
    name: str
    role: str
    studies: tuple[str, ...]
    until: float
    access: str = field(default="", repr=False)
    refresh: str = field(default="", repr=False)

    def peer(self, make: Callable[..., T]) -> T:
        """The caller that this person is, made by `coordinator.services.analysts.Analyst`."""
        return make(role=self.role, site=self.name, serial=self.serial, studies=self.studies)


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """A device sign-in that was begun (RFC 8628, 3.2).

    Args:
        device_code: secret of the program that polls. user_code: code that the person types, or compares.
        uri, whole_uri: addresses to do so at; the second has the code in it, and may be blank.
        seconds: until it ends. interval: seconds between two polls.
    """

    device_code: str = field(repr=False)
    user_code: str
    uri: str
    whole_uri: str
    seconds: float
    interval: float


class Provider:
    """The provider of one coordinator.

    Args:
        issuer: its address, as it names itself. client_id, client_secret: as it knows this coordinator; without a
            secret the exchange rests on PKCE alone.
        redirect: address of this coordinator's callback.
        role_claim, studies_claim: claims of the ID token.
        kept: storage of the sign-ins that were begun.
        now: gives the time in seconds since 1970.
    """

    def __init__(
        self,
        *,
        issuer: str,
        client_id: str,
        redirect: str,
        kept: SignInStore,
        client_secret: str = "",
        role_claim: str = "tributary_role",
        studies_claim: str = "tributary_studies",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._issuer, self._client, self._secret, self._redirect = issuer, client_id, client_secret, redirect
        self._role_claim, self._studies_claim, self._now = role_claim, studies_claim, now
        self._kept = kept
        self._known: Mapping[str, Any] | None = None

    async def begin(self) -> tuple[str, str]:
        """A cookie for the browser that begins, and the provider's address to send it to. Raises: NetworkRefusal."""
        known = await self._discovered()
        cookie = secrets.token_urlsafe(32)
        now = self._now()
        begun = {name: secrets.token_urlsafe(32) for name in ("state", "nonce")}
        begun["verifier"] = secrets.token_urlsafe(48)
        kept: dict[str, Any] = {"name": "", "now": now, "ends": now + TIME, "most": MOST}
        await asyncio.to_thread(self._kept.put, "begun", cookie, begun, **kept)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun["verifier"].encode()).digest()).rstrip(b"=").decode()
        from httpx import URL

        asked = {"response_type": "code", "client_id": self._client, "redirect_uri": self._redirect}
        asked |= {"scope": "openid profile", "state": begun["state"], "nonce": begun["nonce"]}
        asked |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        return cookie, str(URL(known["authorization_endpoint"]).copy_merge_params(asked))

    async def finish(self, cookie: str, given: Mapping[str, str]) -> Person:
        """Person who signed in, once the provider has sent their browser back.

        Args:
            cookie: cookie that the browser was given at the beginning. given: query parameters of the redirect.
        Raises: AccessRefusal (not begun here, begun long ago, used already, or a token that is not right);
            NetworkRefusal.
        """
        row = await asyncio.to_thread(self._kept.take, "begun", cookie)
        begun = {} if row is None else row.content
        same = hmac.compare_digest(begun.get("state", "").encode(), given.get("state", "").encode())
        if row is None or not same or self._now() > row.ends:
            raise _wrong("a sign-in must be one that this browser began, a moment ago and once", "another")
        if "error" in given or not given.get("code"):
            raise _wrong("the provider must let you in", repr(given.get("error", "no code")[:40]))
        if given.get("iss", self._issuer) != self._issuer:
            raise _wrong("the provider must be the one that was asked", "another")
        known = await self._discovered()
        form = {"grant_type": "authorization_code", "code": given["code"], "redirect_uri": self._redirect}
        form |= {"client_id": self._client, "code_verifier": begun["verifier"]}
        return await self._of_answer(await self._fetched(known["token_endpoint"], form), begun["nonce"])

    # -- device flow ------------------------------------------------------------------------------------------------
    async def device(self) -> DeviceCode:
        """Begin a sign-in for a program without a browser. Raises: StateRefusal (none offered), NetworkRefusal."""
        place = (await self._discovered()).get("device_authorization_endpoint")
        if not isinstance(place, str):
            raise StateRefusal(
                "the provider must offer the device flow",
                given="none",
                next_step="Use a token (coordinator analyst add), or a browser.",
            )
        said = await self._fetched(place, {"client_id": self._client, "scope": "openid profile"})
        try:
            return DeviceCode(
                device_code=str(said["device_code"]),
                user_code=str(said["user_code"])[:64],
                uri=_web_address(said["verification_uri"]),
                whole_uri=_web_address(said.get("verification_uri_complete", "")),
                seconds=min(float(said["expires_in"]), TIME),
                interval=min(max(float(said.get("interval", 5)), 1.0), 60.0),
            )
        except (KeyError, TypeError, ValueError):
            raise _unreadable() from None

    async def device_person(self, device_code: str) -> Person | float | None:
        """Person who signed in with a device code.

        Returns: the person; None while nobody has signed in; seconds to add to the interval of polling.
        Raises: AccessRefusal: refused there, or ended.
        """
        known = await self._discovered()
        form = {"grant_type": DEVICE, "device_code": device_code, "client_id": self._client}
        try:
            answer = await self._fetched(known["token_endpoint"], form)
        except _ProviderRefused as refused:
            if refused.error == "authorization_pending":
                return None
            if refused.error == "slow_down":
                return 5.0
            raise
        return await self._of_answer(answer)

    # -- whether it still holds -------------------------------------------------------------------------------------
    async def confirmed(self, person: Person) -> Person:
        """The same person, as long as the provider says that the sign-in holds; renewed where it is about to end.

        Raises: AccessRefusal: taken back. NetworkRefusal: it cannot be asked now.
        """
        known = await self._discovered()
        if person.refresh and self._now() > person.until - RENEW:
            return await self._renewed(known, person)
        if not person.access or await self._active(known, person.access):
            return person
        if person.refresh:  # the access token alone may have ended
            return await self._renewed(known, person)
        raise _wrong("the provider must still know the sign-in", "one that it took back")

    async def _active(self, known: Mapping[str, Any], access: str) -> bool:
        if isinstance(place := known.get("introspection_endpoint"), str):
            form = {"token": access, "token_type_hint": "access_token", "client_id": self._client}
            return (await self._fetched(place, form)).get("active") is True
        if isinstance(place := known.get("userinfo_endpoint"), str):
            try:
                await self._fetched(place, bearer=access)
            except _ProviderRefused:
                return False
        return True  # it says nowhere; the ID token's end ends the sign-in

    async def _renewed(self, known: Mapping[str, Any], person: Person) -> Person:
        form = {"grant_type": "refresh_token", "refresh_token": person.refresh, "client_id": self._client}
        found = await self._of_answer(await self._fetched(known["token_endpoint"], form))
        if found.serial != person.serial:
            raise _wrong("the provider must renew the same person's sign-in", "another's")
        return found if found.refresh else replace(found, refresh=person.refresh)

    async def _of_answer(self, answer: Mapping[str, Any], nonce: str = "") -> Person:
        """Person named by the ID token of a token endpoint's answer. Raises: AccessRefusal, NetworkRefusal."""
        known = await self._discovered()
        person = self._person(answer.get("id_token"), await self._fetched(known["jwks_uri"]), nonce)
        access, refresh = (answer.get(f"{name}_token") for name in ("access", "refresh"))
        texts = [text if isinstance(text, str) else "" for text in (access, refresh)]
        return replace(person, access=texts[0], refresh=texts[1])

    def _person(self, token: Any, keys: Mapping[str, Any], nonce: str) -> Person:
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        def exact(value: str) -> Any:
            return {"essential": True, "value": value}

        rules: dict[str, Any] = {"iss": exact(self._issuer), "aud": exact(self._client)}
        if nonce:  # one that is asked for is there; without a browser none was
            rules["nonce"] = exact(nonce)
        rules |= {name: {"essential": True} for name in ("exp", "iat", "sub")}
        try:
            found = jwt.decode(token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))  # type: ignore[arg-type]
            claims = found.claims
            jwt.JWTClaimsRegistry(now=int(self._now()), leeway=LEEWAY, **rules).validate(claims)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise _wrong("the provider's token must be right", type(error).__name__) from None
        others = [one for one in _listed(claims["aud"]) if one != self._client]
        if (others or "azp" in claims) and claims.get("azp") != self._client:
            raise _wrong("the provider's token must be for this coordinator", "one for another")
        return self._of_claims(claims)

    def _of_claims(self, claims: Mapping[str, Any]) -> Person:
        roles = [role for role in ROLES if role in _listed(claims.get(self._role_claim))]
        studies = tuple(dict.fromkeys(one for one in _listed(claims.get(self._studies_claim)) if is_word(one)))
        if len(roles) != 1 or not studies:
            step = (
                f"Ask whoever runs the provider for {self._role_claim} ({', '.join(ROLES)}) and {self._studies_claim}."
            )
            raise _wrong("the provider must say one role and the studies", "none, or several", step)
        subject = str(claims["sub"])
        said = str(claims.get("preferred_username") or subject)[:64]
        name = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in said)
        serial = "oidc-" + sha256_hex(f"{self._issuer}\n{subject}".encode())[:16]
        return Person(serial=serial, name=name, role=roles[0], studies=studies, until=float(claims["exp"]))

    async def _discovered(self) -> Mapping[str, Any]:
        if self._known is None:
            found = await self._fetched(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            if found.get("issuer") != self._issuer or not all(map(_is_address, map(found.get, needed))):
                raise NetworkRefusal("the provider must name itself as in coordinator.toml", given="another name")
            self._known = found
        return self._known

    async def _fetched(self, url: str, form: Mapping[str, str] | None = None, *, bearer: str = "") -> dict[str, Any]:
        """A JSON document of the provider. Raises: NetworkRefusal, AccessRefusal (it refuses)."""
        import httpx

        proof: dict[str, Any] = {"auth": (self._client, self._secret)} if form is not None and self._secret else {}
        shown = {"authorization": f"Bearer {bearer}"} if bearer else {}
        try:
            async with httpx.AsyncClient(timeout=SECONDS, follow_redirects=False, headers=shown) as client:
                answer = await (client.get(url) if form is None else client.post(url, data=dict(form), **proof))
                if (form is not None or bearer) and answer.status_code in (400, 401, 403):
                    raise _ProviderRefused(answer.status_code, _error_of(answer.content))
                if answer.status_code != 200 or len(answer.content) > REPLY_CAP:
                    raise ValueError
                found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            raise _unreadable() from None
        return dict(found) if isinstance(found, dict) else {}


class _ProviderRefused(AccessRefusal):
    """The provider refuses.

    Args:
        status: of HTTP. error: its code, as of RFC 6749, 5.2; blank for none that can be read.
    """

    def __init__(self, status: int, error: str) -> None:
        super().__init__("the provider must let you in", given=error or f"status {status}", next_step="Begin again.")
        self.error = error


def _error_of(body: bytes) -> str:
    import json

    try:
        said = json.loads(body[:4096])
    except ValueError:
        return ""
    error = said.get("error") if isinstance(said, dict) else None
    return error if isinstance(error, str) and len(error) <= 40 and is_word(error) else ""


def _is_address(text: Any) -> bool:
    """True of a text that is an address, wherever it leads."""
    import httpx

    try:
        return isinstance(text, str) and bool(httpx.URL(text).host)
    except httpx.InvalidURL:
        return False


def _web_address(text: Any) -> str:
    """An address that a person may be sent to; blank for none. Raises: ValueError."""
    said = str(text or "")[:2000]
    if said and not (said.startswith(("https://", "http://127.0.0.1:")) and said.isprintable()):
        raise ValueError(said)
    return said


def _unreadable() -> NetworkRefusal:
    return NetworkRefusal(
        "the provider must answer", given="no answer that can be read", next_step="Try again; else use a token."
    )


def _listed(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _wrong(must: str, given: str, step: str = "Begin again.") -> AccessRefusal:
    return AccessRefusal(must, given=given, next_step=step)
