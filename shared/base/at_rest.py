"""Private keys of programs that run unattended: in standard PEM files, which a secret of the machine may encrypt.

``TRIBUTARY_KEY_FILE`` names a file with that secret, which lies outside the program's folder: a credential of the
service manager, for instance, that the machine's TPM unseals. Whoever has a copy of the folder, of its disk or of a
backup then has no key. Nobody types such a secret: it is drawn by chance, and so long that a guess need not be dear.
PKCS#8 as the library writes it is enough, and ``openssl pkey`` opens it too. Keys of people are `shared.base.locked`.

A file may also name a key that a token keeps (PKCS#11) and never gives out, by its URI of RFC 7512:
``pkcs11:token=site;object=release?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/run/credentials/pin``.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared.errors import ParameterError, PassphraseRefusal, StateRefusal, StorageRefusal, require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

__all__ = ["KEY_FILE_VARIABLE", "clear_pem", "finding", "machine_secret", "pem_of", "private_key", "relocked"]
__all__ += ["CLEAR_BLOCK", "TOKEN_SCHEME", "key_state", "named_or_new"]

KEY_FILE_VARIABLE = "TRIBUTARY_KEY_FILE"
FEWEST_BYTES, MOST_BYTES = 32, 1023  # OpenSSL takes no more
HIDDEN = "-----BEGIN ENCRYPTED PRIVATE KEY-----"
CLEAR_BLOCK = re.compile(rb"-----BEGIN (EC )?PRIVATE KEY-----.*?-----END (EC )?PRIVATE KEY-----\n?", re.DOTALL)
_BLOCK = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----.*?-----END ENCRYPTED PRIVATE KEY-----\n?", re.DOTALL)


TOKEN_SCHEME = "pkcs11:"
_TOKEN = threading.Lock()  # a token has one login, whoever asks


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
    """A private key as PEM, PKCS#8; encrypted where the machine has a secret. Of a token's key, its URI."""
    from cryptography.hazmat.primitives import serialization as form

    if hasattr(key, "token_uri"):
        return f"{key.token_uri}\n".encode()

    secret = machine_secret()
    lock = form.NoEncryption() if secret is None else form.BestAvailableEncryption(secret)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)


def private_key(data: bytes, name: str) -> PrivateKeyTypes:
    """The private key in the bytes of a file.

    Args:
        name: of the file, for a refusal.
    Raises: PassphraseRefusal (encrypted, and not with this machine's secret), ValueError (no private key);
        StorageRefusal (a token that does not answer, or does not have it), PackageRefusal (no python-pkcs11).
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if data.startswith(TOKEN_SCHEME.encode()):
        return _token_key(data.decode().strip())
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

    def reencrypted(found: re.Match[bytes]) -> bytes:
        try:
            key = form.load_pem_private_key(found[0], old)
        except ValueError:
            return found[0]
        return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock)

    return _BLOCK.sub(reencrypted, data)


def clear_pem(pem: str, name: str) -> str:
    """The same key as PEM in the clear, for a library that asks for that; blank where there is none.

    Raises: PassphraseRefusal.
    """
    if HIDDEN not in pem:
        return pem
    from cryptography.hazmat.primitives import serialization as form

    key = private_key(pem.encode(), name)
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()


def key_state(data: bytes) -> Literal["", "not encrypted", "encrypted", "in a token"]:
    """Protection of the private keys in a file; ``not encrypted`` if any of them is in clear, blank without a key.

    >>> key_state(b"pkcs11:token=site;object=release"), key_state(b"-----BEGIN CERTIFICATE-----")
    ('in a token', '')
    """
    if data.startswith(TOKEN_SCHEME.encode()):
        return "in a token"
    if CLEAR_BLOCK.search(data):
        return "not encrypted"
    return "encrypted" if HIDDEN.encode() in data else ""


def finding(files: Sequence[Path], home: Path, again: str) -> tuple[Literal["ok", "warn"], str, str]:
    """A line of ``doctor`` about keys at rest: state, how each file lies and who may read it, what to do.

    Args:
        files: those that may hold a private key.
        home: the folder that holds them; a secret in it goes wherever they go.
        again: the command that encrypts them where there is a secret.
    Raises: as of `machine_secret`.
    """
    kept: dict[str, list[str]] = {}
    loose = []
    for path in filter(Path.is_file, files):
        if state := key_state(path.read_bytes()):
            name, mode = path.relative_to(home).as_posix(), stat.S_IMODE(path.stat().st_mode)
            kept.setdefault(state, []).append(f"{name} (mode {mode:o})")
            loose += [name] if mode & 0o077 else []
    clear = ", ".join(kept.pop("not encrypted", ()))
    others = "".join(f"; {state}: {', '.join(names)}" for state, names in sorted(kept.items()))
    if loose:
        return (
            "warn",
            f"not their owner alone may open {', '.join(loose)}",
            f"In {home.name}/: chmod 600 {' '.join(loose)}",
        )
    if machine_secret() is None:
        fix = f"Keep {home.name}/ on an encrypted disk, or set {KEY_FILE_VARIABLE}: the manual, Keys at rest."
        return (
            ("warn", f"not encrypted: {clear}{others}", fix) if clear else ("ok", f"none lies in the clear{others}", "")
        )
    secret = Path(os.environ[KEY_FILE_VARIABLE]).resolve()
    if secret.stat().st_mode & stat.S_IRWXO:
        return "warn", "every user of this machine may read their secret", f"chmod o= {secret.name}"
    if secret.is_relative_to(home.resolve()):
        return "warn", "their secret lies in the same folder as they do", f"Move it, and set {KEY_FILE_VARIABLE} anew."
    if clear:
        return "warn", f"there is a secret for them, and not encrypted: {clear}{others}", f"Run {again}."
    return "ok", f"encrypted by the secret that {KEY_FILE_VARIABLE} names{others}", ""


def named_or_new(path: Path) -> EllipticCurvePrivateKey:
    """The P-256 key that a file names (of a token, by its URI), or a new one where there is no such file.

    Raises: as of `private_key`; ParameterError (another kind of key).
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    if not path.exists():
        return ec.generate_private_key(ec.SECP256R1())
    key = private_key(path.read_bytes(), path.name)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise ParameterError(f"the key of {path.name} must be of the curve P-256", given="another")
    return key


# -- in a token -----------------------------------------------------------------------------------------------------
def _token_uri(uri: str) -> dict[str, str]:
    """The attributes of a PKCS#11 URI. Raises: ParameterError."""
    parts = re.split(r"[;?&]", uri.removeprefix(TOKEN_SCHEME))
    plain = functools.partial(re.sub, r"%([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)))
    found = {name: plain(value) for name, mark, value in (part.partition("=") for part in parts) if mark}
    lacking = [name for name in ("token", "object", "module-path", "pin-source") if not found.get(name)]
    if lacking:
        raise ParameterError(
            "a key in a token must be named by token, object, module-path and pin-source",
            given=f"none of {', '.join(lacking)}",
            next_step="pkcs11:token=…;object=…?module-path=…&pin-source=file:…",
        )
    return found


def _in_token(uri: str, work: Callable[[Any], Any]) -> Any:
    """Result of `work` on the token's private key, in a session of the token. Raises: StorageRefusal, StateRefusal."""
    require("pkcs11")
    import pkcs11

    said = _token_uri(uri)
    try:
        pin = Path(said["pin-source"].removeprefix("file:")).read_text().strip()
    except OSError as error:
        raise StateRefusal(
            "the file with the token's PIN must be readable", given=error.strerror or "an error"
        ) from None
    try:
        with _TOKEN:
            token = pkcs11.lib(said["module-path"]).get_token(token_label=said["token"])
            with token.open(user_pin=pin) as session:
                kind = pkcs11.ObjectClass.PRIVATE_KEY
                return work(session.get_key(object_class=kind, label=said["object"]))
    except (pkcs11.PKCS11Error, RuntimeError) as error:
        raise StorageRefusal(
            f"the token {said['token']} must be there, opened by its PIN, with the key {said['object']}",
            given=type(error).__name__,
            next_step="See that its module and slot answer (pkcs11-tool -L), and that the PIN is right.",
        ) from None


def _token_key(uri: str) -> PrivateKeyTypes:
    """A token's private key, of Ed25519 or P-256, as the library's own kinds: it signs, and gives nothing out."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    def public(key: Any) -> Any:
        import pkcs11
        from pkcs11.util.ec import encode_ec_public_key

        pair = key.session.get_key(object_class=pkcs11.ObjectClass.PUBLIC_KEY, label=_token_uri(uri)["object"])
        if key.key_type == pkcs11.KeyType.EC_EDWARDS:
            return Ed25519PublicKey.from_public_bytes(bytes(pair[pkcs11.Attribute.EC_POINT])[-32:])
        return form.load_der_public_key(encode_ec_public_key(pair))

    found = _in_token(uri, public)
    ed25519, curve = _token_kinds()
    made: PrivateKeyTypes = (ed25519 if isinstance(found, Ed25519PublicKey) else curve)(uri, found)
    return made


@functools.cache
def _token_kinds() -> tuple[Any, Any]:
    """The two kinds of a token's keys, as the library knows private keys."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils

    class TokenKey:
        """Private key that stays in its PKCS#11 token: it has a public key, and its private bytes cannot be read."""

        def __init__(self, uri: str, public: Any) -> None:
            self.token_uri, self._public = uri, public

        def public_key(self) -> Any:
            return self._public

        def private_bytes(self, *_: Any, **__: Any) -> bytes:
            raise StateRefusal("a key in a token must stay there", given="a wish to read it")

        private_bytes_raw = private_numbers = exchange = private_bytes

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, _: Any) -> Any:
            return self

    class TokenEd25519(TokenKey, ed25519.Ed25519PrivateKey):  # type: ignore[misc]
        def sign(self, data: bytes) -> bytes:  # type: ignore[override]
            import pkcs11

            return bytes(_in_token(self.token_uri, lambda key: key.sign(data, mechanism=pkcs11.Mechanism.EDDSA)))

    class TokenCurve(TokenKey, ec.EllipticCurvePrivateKey):  # type: ignore[misc]
        @property
        def curve(self) -> Any:
            return self._public.curve

        @property
        def key_size(self) -> int:
            return int(self._public.key_size)

        def sign(self, data: bytes, signature_algorithm: Any) -> bytes:  # type: ignore[override]
            import pkcs11

            digest = hashes.Hash(signature_algorithm.algorithm)
            digest.update(data)
            hashed = digest.finalize()
            raw = bytes(_in_token(self.token_uri, lambda key: key.sign(hashed, mechanism=pkcs11.Mechanism.ECDSA)))
            half = len(raw) // 2
            return utils.encode_dss_signature(int.from_bytes(raw[:half]), int.from_bytes(raw[half:]))

    return TokenEd25519, TokenCurve
