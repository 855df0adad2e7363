"""Diagnosis of the network path to the coordinator: name, route, the hospital's proxy, or TLS inspection; whom to ask.

`doctor` runs it when a call has failed. It follows the path of gRPC, step by step: the address or the proxy, its answer
to CONNECT, and the certificate that is then shown. It sends no certificate, no message and nothing of the site; a
proxy's password is sent to that proxy and never shown.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import ssl
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from cryptography import x509

from shared.wire.certificates import require_issued_by

__all__ = ["PathFinding", "proxy_for", "walk"]

SECONDS = 5.0
ANSWER = 16 << 10
Step = Literal["way", "name", "route", "proxy", "tunnel", "password", "tls", "inspection", "authority"]
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # as gRPC reads them, in this order
_DIRECT = ("no_grpc_proxy", "no_proxy")


@dataclass(frozen=True, kw_only=True)
class PathFinding:
    """Result of following the path: the step at which it fails; ``way`` if none does.

    Args:
        step: the step that fails, or ``way``.
        given: finding at that step.
        ask: remedy, or a request and the person to send it to.
    """

    step: Step
    given: str
    ask: str


def proxy_for(address: str, environ: Mapping[str, str]) -> str:
    """The proxy that gRPC asks for a tunnel to ``host:port``, as a URL; blank where it dials itself.

    >>> proxy_for("hub.example.org:8443", {"https_proxy": "http://proxy:3128"})
    'http://proxy:3128'
    >>> proxy_for("hub.example.org:8443", {"https_proxy": "http://proxy:3128", "no_proxy": ".example.org"})
    ''
    """
    found = next((environ[name] for name in _PROXIES if environ.get(name)), "")
    host = address.rpartition(":")[0].strip("[]")
    direct = next((environ[name] for name in _DIRECT if environ.get(name)), "")
    spared = any(host.endswith(one.strip()) for one in direct.split(",") if one.strip())
    return "" if spared else found


def walk(address: str, authorities: Sequence[str], environ: Mapping[str, str] = os.environ) -> PathFinding:
    """Go the way to the coordinator until something is in it.

    Args:
        address: ``host:port`` of the coordinator.
        authorities: the pinned certificate authorities, as PEM.
        environ: the agent's environment: ``https_proxy`` and the like, ``SSL_CERT_FILE``.
    """
    found = _followed(address, authorities, environ)
    if found.step not in ("inspection", "authority"):
        return found
    # After a change of authority the chain that is shown leads to the pinned one by a signature across: TLS follows it.
    led = _followed(address, authorities, environ, whole=True)
    return led if led.step == "way" else found


def _followed(
    address: str, authorities: Sequence[str], environ: Mapping[str, str], *, whole: bool = False
) -> PathFinding:
    """As `walk`; with `whole`, the chain that is shown must lead to an authority, else its first certificate alone."""
    proxy = proxy_for(address, environ)
    dialled = urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc.rpartition("@")[2] if proxy else address
    host, _, port = dialled.rpartition(":")
    try:
        line = socket.create_connection((host.strip("[]"), int(port)), SECONDS)
    except (socket.gaierror, ValueError):
        asked = "the proxy's name, as https_proxy has it," if proxy else "the coordinator's name"
        return PathFinding(
            step="name",
            given=f"{dialled} is not known to the name server",
            ask=f"Ask the network team: must {asked} be resolved here? With a proxy only the proxy need know it.",
        )
    except OSError as error:
        return _no_route(dialled, address, proxy, error)
    with closing(line):
        line.settimeout(SECONDS)
        if proxy:
            refused = _tunnel(line, address, proxy)
            if refused is not None:
                return refused
        if whole:
            return _chained(line, address, authorities)
        return _handshake(line, address, authorities, environ)


def _no_route(dialled: str, address: str, proxy: str, error: OSError) -> PathFinding:
    silent = isinstance(error, TimeoutError)
    given = f"{dialled} {'says nothing (dropped on the way)' if silent else 'refuses, or is not reached'}"
    if proxy:
        return PathFinding(step="proxy", given=given, ask="Ask the network team for the proxy's address and port.")
    return PathFinding(
        step="route",
        given=given,
        ask=f"Ask the firewall team to allow outbound TCP to {address} from this machine, uninspected; or, where all "
        "goes through a proxy, for its address, and set https_proxy. Ask the study lead whether the service runs.",
    )


def _tunnel(line: socket.socket, address: str, proxy: str) -> PathFinding | None:
    """Ask the proxy for a tunnel; None if there is one."""
    known = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if known.username is not None:
        pair = f"{unquote(known.username)}:{unquote(known.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
    said = b""
    try:
        line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        # One byte at a time: what follows the answer is the tunnel's.
        while b"\r\n\r\n" not in said and len(said) < ANSWER and (byte := line.recv(1)):
            said += byte
    except OSError:
        said = b""
    first = re.match(rb"HTTP/1\.[01] (\d{3})", said)
    code = int(first[1]) if first else 0
    if 200 <= code < 300:
        return None
    place = known.netloc.rpartition("@")[2]
    if code == 407:
        offered = sorted({one.decode("ascii", "replace").lower() for one in _SCHEMES.findall(said)})
        ways = ", ".join(offered) or "none named"
        if known.username is None:
            ask = "Ask the network team for an account, and set https_proxy=http://name:password@proxy:port "
            ask += "(encode @ : / in the password as %40 %3A %2F)."
        else:
            ask = "The account or its password is wrong or locked, or the proxy does not take Basic."
        if offered and "basic" not in offered:
            ask = (
                f"The proxy takes {ways} only, which the agent cannot speak: ask the network team for an exception for "
            )
            ask += f"{address}, or for an account by Basic."
        had = "with" if known.username is not None else "without"
        return PathFinding(step="password", given=f"{place} answers 407 to CONNECT {had} a password ({ways})", ask=ask)
    if code:
        why = "its rules forbid it" if code in (403, 405) else "it did not get through"
        return PathFinding(
            step="tunnel",
            given=f"{place} answers {code} to CONNECT {address}: {why}",
            ask=f"Ask the proxy's team to allow CONNECT to {address}, a port other than 443 maybe, without inspection.",
        )
    return PathFinding(
        step="proxy", given=f"{place} does not answer as an HTTP proxy", ask="Check https_proxy: http://proxy:port."
    )


_SCHEMES = re.compile(rb"(?im)^proxy-authenticate:\s*([A-Za-z]+)")


def _handshake(
    line: socket.socket, address: str, authorities: Sequence[str], environ: Mapping[str, str]
) -> PathFinding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what is shown is looked at here
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # a box in the middle may speak no newer one
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(line, server_hostname=address.rpartition(":")[0].strip("[]")) as secure:
            shown, version = secure.getpeercert(binary_form=True) or b"", secure.version() or ""
    except (ssl.SSLError, OSError, ValueError):
        return PathFinding(
            step="tls",
            given="TCP passes, and no TLS handshake comes of it",
            ask=f"Ask the firewall team whether a filter by protocol or by name (SNI) stands before {address}, and the "
            "study lead whether something else answers there.",
        )
    found = x509.load_der_x509_certificate(shown)
    pem = ssl.DER_cert_to_PEM_cert(shown)
    try:
        require_issued_by(pem, tuple(authorities))
    except Exception:
        return _stranger(found, address, environ)
    if version != "TLSv1.3":
        return PathFinding(
            step="tls",
            given=f"the coordinator's certificate by {version}",
            ask="Ask the firewall team what holds TLS back: both ends speak 1.3.",
        )
    return PathFinding(step="way", given="the way is free, to the coordinator's own certificate", ask="")


def _chained(line: socket.socket, address: str, authorities: Sequence[str]) -> PathFinding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name in the coordinator's certificate is not its address
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata="".join(authorities))
        with context.wrap_socket(line, server_hostname=address.rpartition(":")[0].strip("[]")):
            return PathFinding(step="way", given="the way is free, to a chain that leads to a pinned authority", ask="")
    except (OSError, ValueError):
        return PathFinding(step="authority", given="the chain leads to no pinned authority", ask="")


def _stranger(shown: x509.Certificate, address: str, environ: Mapping[str, str]) -> PathFinding:
    """A certificate of another authority: a box that opens TLS, or another server."""
    issuer = _readable(shown.issuer.rfc4514_string())
    bundle, known = environ.get("SSL_CERT_FILE", ""), False
    if bundle:
        try:
            with open(bundle, "rb") as file:
                known = shown.issuer in _subjects(file.read())
        except OSError:
            known = False
    if known:
        return PathFinding(
            step="inspection",
            given=f"TLS is opened on the way: the certificate shown is of {issuer}, an authority of SSL_CERT_FILE",
            ask=f"Ask the firewall team to exempt {address} from TLS inspection. Trusting that authority does not "
            "help: the coordinator asks for this site's certificate, which the box cannot show.",
        )
    return PathFinding(
        step="authority",
        given=f"the certificate shown is of {issuer}, which this site has not pinned",
        ask=f"Ask the firewall team whether {address} is inspected, and have it exempted; if it is not, call the study "
        "lead at a number that you know. Either the authority was replaced (site-agent renew --late --out FILE), or "
        "another server answers there. Nothing was sent to it.",
    )


def _subjects(bundle: bytes) -> list[x509.Name]:
    """Subjects of a bundle's certificates; public bundles hold some that cannot be read, or only with a warning."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for pem in _PEM.findall(bundle):
            with suppress(ValueError):
                found.append(x509.load_pem_x509_certificate(pem).subject)
    return found


_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def _readable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)[:120]
