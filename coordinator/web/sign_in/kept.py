"""Storage of sign-ins in the database, so that each of several serving processes knows them.

Each row is found by the SHA-256 of a secret that its browser, or its program, alone has, and sealed (ChaCha20-Poly1305)
by a key from that secret (HKDF-SHA256). A reader of the database learns who is signed in, but cannot sign in as any of
them: no token, no cookie and nothing of the provider's is readable there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coordinator.store.engine import Database
from coordinator.store.schema import sign_ins as _rows
from shared.base.canonical import canonical_json, parse_json, sha256_hex

__all__ = ["KeptSignIn", "SignInStore"]

Kind = Literal["session", "program", "begun", "device"]
CAP = 1 << 16
_NONCE = 12


@dataclass(frozen=True, kw_only=True)
class KeptSignIn:
    """One row, opened.

    Args:
        name: whose it is, or from which address. content: what was sealed.
        began, last, confirmed, ends: seconds since 1970.
    """

    name: str
    content: Mapping[str, Any]
    began: float
    last: float
    confirmed: float
    ends: float


class SignInStore:
    """The rows of one coordinator. Safe for many threads, and for several processes.

    Args:
        store: the coordinator's.
    """

    def __init__(self, store: Database) -> None:
        self._store = store

    def put(
        self,
        kind: Kind,
        secret: str,
        content: Mapping[str, Any],
        *,
        name: str,
        now: float,
        ends: float,
        most: int,
        of_one: int = 0,
    ) -> bool:
        """Keep one; where there are `most` of its kind already, the oldest ends.

        Args:
            of_one: most of one name, of which the oldest ends; negative: so many are a reason to keep none.
        Returns: whether it is kept.
        """
        place = _place(secret)
        row: dict[str, Any] = {"place": place, "kind": kind, "name": name, "sealed": _sealed(kind, secret, content)}
        row |= {"began": now, "last": now, "confirmed": now, "ends": ends}
        kinds = _rows.c.kind == kind

        def write(c: sa.Connection) -> bool:
            c.execute(_rows.delete().where(_rows.c.ends < now))
            mine = c.execute(sa.select(sa.func.count()).where(kinds & (_rows.c.name == name))).scalar_one()
            if of_one < 0 and mine >= -of_one:
                return False
            self._shorten(c, kinds & (_rows.c.name == name), mine - of_one + 1 if of_one > 0 else 0)
            there = c.execute(sa.select(sa.func.count()).where(kinds)).scalar_one()
            self._shorten(c, kinds, there - most + 1)
            c.execute(_rows.insert().values(row))
            return True

        return self._store.write(write)

    @staticmethod
    def _shorten(c: sa.Connection, which: sa.ColumnElement[bool], count: int) -> None:
        if count > 0:
            oldest = sa.select(_rows.c.place).where(which).order_by(_rows.c.began).limit(count)
            places = [row.place for row in c.execute(oldest)]
            c.execute(_rows.delete().where(_rows.c.place.in_(places)))

    def find(self, kind: Kind, secret: str) -> KeptSignIn | None:
        """The row of a secret; None where there is none, or it is of another kind."""
        query = sa.select(_rows).where((_rows.c.place == _place(secret)) & (_rows.c.kind == kind))
        row = self._store.read(lambda c: c.execute(query).first())
        return None if row is None else _opened(kind, secret, row)

    def take(self, kind: Kind, secret: str) -> KeptSignIn | None:
        """Remove and return the row of a secret, as `find`; of several callers only one gets it."""
        where = (_rows.c.place == _place(secret)) & (_rows.c.kind == kind)

        def write(c: sa.Connection) -> Any:
            row = c.execute(sa.select(_rows).where(where)).first()
            return row if row is not None and c.execute(_rows.delete().where(where)).rowcount == 1 else None

        row = self._store.write(write)
        return None if row is None else _opened(kind, secret, row)

    def change(
        self,
        kind: Kind,
        secret: str,
        *,
        content: Mapping[str, Any] | None = None,
        was: float | None = None,
        **at: float,
    ) -> bool:
        """Set `last`, `confirmed` or `ends`, and seal another content; False where there is no such row any more.

        Args:
            was: only if `confirmed` is still this: of several that ask at once, one goes on.
        """
        values: dict[str, Any] = {**at, **({} if content is None else {"sealed": _sealed(kind, secret, content)})}
        where = (_rows.c.place == _place(secret)) & (_rows.c.kind == kind)
        if was is not None:
            where &= _rows.c.confirmed == was
        return self._store.write(lambda c: c.execute(_rows.update().where(where).values(values)).rowcount == 1)

    def leave(self, secret: str) -> None:
        """Keep it no longer."""
        self._store.write(lambda c: c.execute(_rows.delete().where(_rows.c.place == _place(secret))))


def _place(secret: str) -> str:
    return sha256_hex(_bytes(secret))


def _bytes(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogateescape")


def _cipher(kind: Kind, secret: str) -> ChaCha20Poly1305:
    info = f"tributary sign-in {kind}".encode()
    return ChaCha20Poly1305(HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(_bytes(secret)))


def _sealed(kind: Kind, secret: str, content: Mapping[str, Any]) -> bytes:
    nonce = os.urandom(_NONCE)
    return nonce + _cipher(kind, secret).encrypt(nonce, canonical_json(dict(content)), _place(secret).encode())


def _opened(kind: Kind, secret: str, row: Any) -> KeptSignIn | None:
    """The row, decrypted; None if it was changed without the secret."""
    data = bytes(row.sealed)
    try:
        content = _cipher(kind, secret).decrypt(data[:_NONCE], data[_NONCE:], _place(secret).encode())
    except InvalidTag:
        return None
    at = {name: float(getattr(row, name)) for name in ("began", "last", "confirmed", "ends")}
    return KeptSignIn(name=row.name, content=parse_json(content, cap=CAP), **at)
