"""A hub on loopback, so that SuperNodes can check who signed the app that they are sent.

Flower 1.41 knows signatures of an app only from a hub: an app that is submitted from a folder is refused by every node
that has trusted entities. Beside the SuperLink this file is that hub. It holds one app and its signatures, nothing
else, and answers the SuperLink alone. The signatures are made elsewhere, by the people whose keys the hospitals have
listed:

    python hub.py sign training.fab signer.key fpk_lead > lead.json     # on the signer's machine
    python hub.py serve training.fab lead.json                          # beside the SuperLink

A key is an Ed25519 private key in OpenSSH form (``ssh-keygen -t ed25519``), without a passphrase or asked for it.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import hashlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key


def signed(fab: bytes, key: Ed25519PrivateKey, name: str, at: int) -> dict[str, Any]:
    """Verification in Flower's format: a signature of the time and the app's SHA-256."""
    signature = key.sign(at.to_bytes(8, "big") + hashlib.sha256(fab).digest())
    return {
        "public_key_id": name,
        "signed_at": at,
        "signature": base64.urlsafe_b64encode(signature).rstrip(b"=").decode(),
    }


def server(fab: bytes, verifications: list[dict[str, Any]], port: int) -> ThreadingHTTPServer:
    """The hub, on loopback. Whatever app is asked for, it has the one."""

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 16))
            if self.path != "/hub/fetch-fab":
                self.send_error(404)
                return
            where = f"http://127.0.0.1:{self.server.server_address[1]}/app.fab"
            self._give("application/json", json.dumps({"fab_url": where, "verifications": verifications}).encode())

        def do_GET(self) -> None:
            if self.path != "/app.fab":
                self.send_error(404)
                return
            self._give("application/octet-stream", fab)

        def _give(self, kind: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: the SuperLink logs."""

    return ThreadingHTTPServer(("127.0.0.1", port), Hub)


def main() -> None:
    """Sign, or serve."""
    parser = argparse.ArgumentParser(description="One app and its signatures, on loopback.")
    verbs = parser.add_subparsers(required=True, dest="verb")
    sign = verbs.add_parser("sign")
    sign.add_argument("fab", type=Path)
    sign.add_argument("key", type=Path)
    sign.add_argument("name", help="as the hospitals' trusted-entities.yaml has it")
    serve = verbs.add_parser("serve")
    serve.add_argument("fab", type=Path)
    serve.add_argument("signatures", type=Path, nargs="+")
    serve.add_argument("--port", type=int, default=8500)
    given = parser.parse_args()
    fab = given.fab.read_bytes()
    if given.verb == "sign":
        data = given.key.read_bytes()
        try:
            key = load_ssh_private_key(data, None)
        except (TypeError, ValueError):
            key = load_ssh_private_key(data, getpass.getpass("passphrase: ").encode())
        if not isinstance(key, Ed25519PrivateKey):
            sys.exit("the key must be an Ed25519 key")
        sys.stdout.write(json.dumps(signed(fab, key, given.name, int(time.time()))) + "\n")
    else:
        server(fab, [json.loads(path.read_text()) for path in given.signatures], given.port).serve_forever()


if __name__ == "__main__":
    main()
