"""Sign in from a notebook by the hospital's provider: a code to type in any browser (RFC 8628)."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.analyst.access.token_file import Pass
from shared.base.canonical import parse_json
from shared.errors import AccessRefusal, DataFileRefusal, NetworkRefusal, ParameterError, RateRefusal, StateRefusal

__all__ = ["signed_in"]

SECONDS = 30.0
REPLY_CAP = 1 << 20


def signed_in(address: str, *, ca: str | Path = "", say: Callable[[str], None] = print) -> Pass:
    """Sign in by the hospital's provider: what to open, and the code there, is said at once.

    The session ends after twelve hours at the latest, and within minutes once the provider takes the account back.

    Args:
        address: of the coordinator's HTTPS interface, as in ``"https://hub.example.org:8445"``.
        ca: the authority that is believed, a PEM file; those of this computer if blank.
        say: is given what the person is to do.
    Returns: what a token's file holds.
    Raises: AccessRefusal (refused at the provider, or too late), StateRefusal (the coordinator has no provider),
        NetworkRefusal.
    """
    if not address.startswith("https://"):
        raise ParameterError("the address must begin with https://", given=repr(address))
    trust, place = _trust(ca), f"{address.rstrip('/')}/v1/sign-in"
    _, begun = _posted(place, {}, trust)
    where = begun["verification_uri_complete"] or begun["verification_uri"]
    say(f"Open {where} and sign in there. The code is {begun['user_code']}.")
    ends = time.monotonic() + float(begun["expires_in"])
    while time.monotonic() < ends:
        status, said = _posted(f"{place}/ask", {"sign_in": begun["sign_in"]}, trust)
        if status == 200:
            if not said["address"]:
                raise StateRefusal(
                    "the coordinator must have an address for analysts", given="HTTPS alone", next_step="Ask from R."
                )
            return Pass(**{**said, "studies": tuple(said["studies"])})
        time.sleep(float(begun["interval"]))
    raise AccessRefusal("the person must sign in in time", given="nobody", next_step="Begin again.")


def _trust(ca: str | Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=f"{ca}" or None)
    except (OSError, ssl.SSLError):
        raise DataFileRefusal("ca must be a PEM file of an authority", given=f"{ca}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _posted(place: str, body: dict[str, str], trust: ssl.SSLContext) -> tuple[int, dict[str, Any]]:
    """Status and document of a call. Raises: the coordinator's refusal, NetworkRefusal."""
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(place, data=json.dumps(body).encode(), headers=headers, method="POST")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), _NoRedirect())
    try:
        with opener.open(asked, timeout=SECONDS) as answer:
            return answer.status, dict(parse_json(answer.read(REPLY_CAP), cap=REPLY_CAP))
    except urllib.error.HTTPError as error:
        raise _refusal(error) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        step = "Check the address, the network and ca."
        raise NetworkRefusal("the coordinator must be reached", given=f"{why}"[:200], next_step=step) from None


def _refusal(error: urllib.error.HTTPError) -> AccessRefusal | StateRefusal | RateRefusal | NetworkRefusal:
    try:
        said = dict(parse_json(error.read(REPLY_CAP), cap=REPLY_CAP))
        texts = {name: str(said[name]) for name in ("must", "given", "next_step")}
    except (OSError, ValueError, KeyError, TypeError):
        return NetworkRefusal("a coordinator must answer here", given=f"HTTP {error.code}")
    known = (AccessRefusal, StateRefusal, RateRefusal)
    kind = next((one for one in known if one.code == said.get("code")), NetworkRefusal)
    return kind(texts["must"], given=texts["given"], next_step=texts["next_step"])
