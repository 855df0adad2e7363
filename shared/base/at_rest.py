"""Private keys of programs that run unattended: in standard PEM files, which a secret of the machine may encrypt.

``TRIBUTARY_KEY_FILE`` names a file with that secret, which lies outside the program's folder: a credential of the
service manager, for instance, that the machine's TPM unseals. Whoever has a copy of the folder, of its disk or of a
backup then has no key. Nobody types such a secret: it is drawn by chance, and so long that a guess need not be dear.
PKCS#8 as the library writes it is enough, and ``openssl pkey`` opens it too. Keys of people are `shared.base.locked`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shared.errors import ParameterError, PassphraseRefusal, StateRefusal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

__all__ = ["KEY_FILE_VARIABLE", "clear_pem", "finding", "machine_secret", "pem_of", "private_key", "relocked"]

KEY_FILE_VARIABLE = "TRIBUTARY_KEY_FILE"
FEWEST_BYTES, MOST_BYTES = 32, 1023  # OpenSSL takes no more
HIDDEN = "-----BEGIN ENCRYPTED PRIVATE KEY-----"
_BLOCK = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----.*?-----END ENCRYPTED PRIVATE KEY-----\n?", re.DOTALL)


def machine_secret() -> bytes | None:
    """The content of the file that ``TRIBUTARY_KEY_FILE`` names, without blanks around it; None where it names none.

    Raises: StateRefusal (it cannot be read: nothing is then written in the clear instead), ParameterError (its length).
    """
    named = os.environ.get(KEY_FILE_VARIABLE)
    if not named:
        return None
    try:
        found = Path(named).read_bytes().strip()
    except OSError as error:
        raise StateRefusal(
            f"the file that {KEY_FILE_VARIABLE} names must be readable",
            given=error.strerror or "an error",
            next_step="The operators' manual says under Keys at rest who may read it, and when.",
        ) from None
    if not FEWEST_BYTES <= len(found) <= MOST_BYTES:
        raise ParameterError(
            f"the secret that {KEY_FILE_VARIABLE} names must have {FEWEST_BYTES} to {MOST_BYTES} bytes",
            given=f"{len(found)}",
            next_step="Draw one by chance: openssl rand -hex 32",
        )
    return found


def pem_of(key: PrivateKeyTypes) -> bytes:
    """A private key as PEM, PKCS#8; encrypted where the machine has a secret."""
    from cryptography.hazmat.primitives import serialization as form

    secret = machine_secret()
    lock = form.NoEncryption() if secret is None else form.BestAvailableEncryption(secret)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)


def private_key(data: bytes, name: str) -> PrivateKeyTypes:
    """The private key in the bytes of a file.

    Args:
        name: of the file, for a refusal.
    Raises: PassphraseRefusal (encrypted, and not with this machine's secret), ValueError (no private key).
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if HIDDEN.encode() not in data:
        return load_pem_private_key(data, None)
    secret = machine_secret()
    try:
        if secret is not None:
            return load_pem_private_key(data, secret)
    except ValueError:
        pass
    raise PassphraseRefusal(
        f"this machine's secret must open the key file {name}",
        given=f"no {KEY_FILE_VARIABLE}" if secret is None else "one that does not",
        next_step=f"Set {KEY_FILE_VARIABLE} as for the service that runs here: the operators' manual, Keys at rest.",
    )


def relocked(data: bytes, old: bytes, new: bytes | None) -> bytes:
    """The bytes of a file in which every private key that the secret `old` opens is encrypted by `new`.

    Args:
        new: None for in the clear. What `old` does not open stays as it is: it is a person's.
    """
    from cryptography.hazmat.primitives import serialization as form

    lock = form.NoEncryption() if new is None else form.BestAvailableEncryption(new)

    def again(found: re.Match[bytes]) -> bytes:
        try:
            key = form.load_pem_private_key(found[0], old)
        except ValueError:
            return found[0]
        return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)

    return _BLOCK.sub(again, data)


def clear_pem(pem: str, name: str) -> str:
    """The same key as PEM in the clear, for a library that asks for that; blank where there is none.

    Raises: PassphraseRefusal.
    """
    if HIDDEN not in pem:
        return pem
    from cryptography.hazmat.primitives import serialization as form

    key = private_key(pem.encode(), name)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()


def finding(clear: Sequence[Path], home: Path, again: str) -> tuple[Literal["ok", "warn"], str, str]:
    """A line of ``doctor`` about keys at rest: state, what was found, what to do.

    Args:
        clear: files with a private key that lie unencrypted.
        home: the folder that holds them; a secret in it goes wherever they go.
        again: the command that encrypts them where there is a secret.
    Raises: as of `machine_secret`.
    """
    names = ", ".join(path.relative_to(home).as_posix() for path in clear)
    if machine_secret() is None:
        fix = f"Keep {home.name}/ on an encrypted disk, or set {KEY_FILE_VARIABLE}: the manual, Keys at rest."
        return ("warn", f"not encrypted: {names}", fix) if clear else ("ok", "none lies in the clear", "")
    if Path(os.environ[KEY_FILE_VARIABLE]).resolve().is_relative_to(home.resolve()):
        return "warn", "their secret lies in the same folder as they do", f"Move it, and set {KEY_FILE_VARIABLE} anew."
    if clear:
        return "warn", f"there is a secret for them, and not encrypted: {names}", f"Run {again}."
    return "ok", f"encrypted by the secret that {KEY_FILE_VARIABLE} names", ""
