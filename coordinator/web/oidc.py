"""Sign-in by a hospital's own provider: OpenID Connect, authorization code with PKCE.

Who somebody is, the provider says in an ID token, which is checked here: its signature by a key of the provider's set,
issuer, audience, nonce, and times with a minute's leeway (joserfc). What they may do is in two claims: a role, and the
studies. A sign-in that was begun is good once, for ten minutes, in the browser that began it: its state, nonce and
verifier stay here, behind a cookie of that browser.

Sources: OpenID Connect Core 1.0; RFC 7636 (PKCE); RFC 9207 (issuer in the answer).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.base.canonical import sha256_hex
from shared.errors import AccessRefusal, NetworkRefusal
from shared.wire.message_limits import is_word

__all__ = ["BEGUN", "ROLES", "Person", "Provider"]

BEGUN = "__Host-tributary-begun"
ROLES = ("analyst", "lead", "auditor", "reader")
"""``reader`` reads what an analyst does, and asks nothing."""
ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
LEEWAY = 60  # seconds that two clocks may differ
TIME, MOST = 600.0, 1024
REPLY_CAP = 1 << 20
SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who signed in, as the provider says.

    Args:
        serial: stands for issuer and subject, for limits. name: for the record.
        until: the time (seconds since 1970) at which the ID token ends.
    """

    serial: str
    name: str
    role: str
    studies: tuple[str, ...]
    until: float


@dataclass(frozen=True, kw_only=True)
class _Begun:
    state: str
    nonce: str
    verifier: str
    until: float


class Provider:
    """The provider of one coordinator.

    Args:
        issuer: its address, as it names itself. client_id, client_secret: as it knows this coordinator; without a
            secret the exchange rests on PKCE alone.
        redirect: address of this coordinator's callback.
        role_claim, studies_claim: claims of the ID token.
        now: gives the time in seconds since 1970.
    """

    def __init__(
        self,
        *,
        issuer: str,
        client_id: str,
        redirect: str,
        client_secret: str = "",
        role_claim: str = "tributary_role",
        studies_claim: str = "tributary_studies",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._issuer, self._client, self._secret, self._redirect = issuer, client_id, client_secret, redirect
        self._role_claim, self._studies_claim, self._now = role_claim, studies_claim, now
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._known: Mapping[str, Any] | None = None

    async def begin(self) -> tuple[str, str]:
        """A cookie for the browser that begins, and the provider's address to send it to. Raises: NetworkRefusal."""
        known = await self._discovered()
        cookie = secrets.token_urlsafe(32)
        begun = _Begun(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            until=self._now() + TIME,
        )
        while len(self._begun) >= MOST:
            self._begun.popitem(last=False)
        self._begun[sha256_hex(cookie.encode())] = begun
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
        from httpx import URL

        asked = {"response_type": "code", "client_id": self._client, "redirect_uri": self._redirect}
        asked |= {"scope": "openid profile", "state": begun.state, "nonce": begun.nonce}
        asked |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        return cookie, str(URL(known["authorization_endpoint"]).copy_merge_params(asked))

    async def finish(self, cookie: str, given: Mapping[str, str]) -> Person:
        """Who signed in.

        Args:
            cookie: of the browser that comes back. given: the query that it brings.
        Raises: AccessRefusal (not begun here, begun long ago, used already, or a token that is not right);
            NetworkRefusal.
        """
        begun = self._begun.pop(sha256_hex(cookie.encode("utf-8", "surrogateescape")), None)
        same = begun is not None and hmac.compare_digest(begun.state.encode(), given.get("state", "").encode())
        if begun is None or not same or self._now() > begun.until:
            raise _wrong("a sign-in must be one that this browser began, a moment ago and once", "another")
        if "error" in given or not given.get("code"):
            raise _wrong("the provider must let you in", repr(given.get("error", "no code")[:40]))
        if given.get("iss", self._issuer) != self._issuer:
            raise _wrong("the provider must be the one that was asked", "another")
        known = await self._discovered()
        form = {"grant_type": "authorization_code", "code": given["code"], "redirect_uri": self._redirect}
        form |= {"client_id": self._client, "code_verifier": begun.verifier}
        answer = await self._fetched(known["token_endpoint"], form)
        return self._person(answer.get("id_token"), await self._fetched(known["jwks_uri"]), begun.nonce)

    def _person(self, token: Any, keys: Mapping[str, Any], nonce: str) -> Person:
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        def exact(value: str) -> Any:
            return {"essential": True, "value": value}

        rules: dict[str, Any] = {"iss": exact(self._issuer), "aud": exact(self._client), "nonce": exact(nonce)}
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
            if found.get("issuer") != self._issuer or not all(isinstance(found.get(name), str) for name in needed):
                raise NetworkRefusal("the provider must name itself as in coordinator.toml", given="another name")
            self._known = found
        return self._known

    async def _fetched(self, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A JSON document of the provider. Raises: NetworkRefusal, AccessRefusal (it refuses)."""
        import httpx

        proof: dict[str, Any] = {"auth": (self._client, self._secret)} if form is not None and self._secret else {}
        try:
            async with httpx.AsyncClient(timeout=SECONDS, follow_redirects=False) as client:
                answer = await (client.get(url) if form is None else client.post(url, data=dict(form), **proof))
                if form is not None and answer.status_code in (400, 401, 403):
                    raise _wrong("the provider must exchange the code", f"status {answer.status_code}")
                if answer.status_code != 200 or len(answer.content) > REPLY_CAP:
                    raise ValueError
                found = answer.json()
        except (httpx.HTTPError, ValueError):
            raise NetworkRefusal(
                "the provider must answer", given="no answer that can be read", next_step="Try again; else use a token."
            ) from None
        return dict(found) if isinstance(found, dict) else {}


def _listed(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _wrong(must: str, given: str, step: str = "Begin again.") -> AccessRefusal:
    return AccessRefusal(must, given=given, next_step=step)
