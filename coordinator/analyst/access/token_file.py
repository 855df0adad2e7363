"""The token's file: what an analyst connects with, to be kept like a password."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from shared.base.canonical import closed, parse_json
from shared.base.clock import utc_now
from shared.errors import AccessRefusal, DataFileRefusal, Refusal

__all__ = ["Pass"]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Credentials of an analyst: one file, to be kept like a password.

    Args:
        address: ``host:port`` to dial.
        server_name: the name in the coordinator's certificate.
        ca_pem: the only authority that is trusted.
        name, role, studies, expires: properties of the token; the coordinator decides by its own record.
        token: the secret.
        witness: the public key (hexadecimal) of the coordinator's signed log; blank in files of earlier versions.
    Raises: AccessRefusal, at reading: it is expired or not a token's file.
    """

    address: str
    server_name: str
    ca_pem: str = field(repr=False)
    name: str
    role: str
    studies: tuple[str, ...]
    expires: str
    token: str = field(repr=False)
    witness: str = ""

    def save(self, path: Path) -> None:
        """Write it to a new file that its owner alone can read. Raises: StateRefusal (it is there), StorageRefusal."""
        from shared.base.keys import write_private

        write_private(path, (json.dumps(asdict(self), indent=2) + "\n").encode(), new=True)

    @classmethod
    def load(cls, path: Path) -> Pass:
        """Read it. Raises: DataFileRefusal (no such file), AccessRefusal (not a token's file, or expired)."""
        try:
            data = path.read_bytes()
        except OSError:
            raise DataFileRefusal(
                "the token's file must exist",
                given=f"{path}",
                next_step="The study lead makes it (coordinator analyst add); name it with --token.",
            ) from None
        try:
            given = parse_json(data)
            closed(given, {item.name for item in fields(cls)}, where="a token's file", refusal=AccessRefusal)
            made = cls(**{**given, "studies": tuple(given["studies"])})
            expires = dt.date.fromisoformat(made.expires)
        except (Refusal, TypeError, ValueError, KeyError, AttributeError):
            raise AccessRefusal(
                "a token's file must be as coordinator analyst add wrote it",
                given=f"{path.name}: another file",
                next_step="Name it with --token, or TRIBUTARY_ANALYST_TOKEN; the study lead makes a new one.",
            ) from None
        if utc_now().date() > expires:
            raise AccessRefusal(
                "a token must not be expired",
                given=f"last day {made.expires}",
                next_step="Ask the study lead for a new one (coordinator analyst add).",
            )
        return made
