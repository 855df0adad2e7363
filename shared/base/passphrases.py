"""Passphrases: whence a program has one, what it says before it asks, and how often it asks.

A passphrase comes from the environment, else from the terminal, without an echo. ``TRIBUTARY_PASSPHRASE_DR_LIND`` is
dr-lind's own variable; ``TRIBUTARY_PASSPHRASE`` opens anybody's key, and therefore not a second person's where two
different people must act: whoever knows it would be both. A new one, in the place of an old one, has variables of its
own (``TRIBUTARY_NEW_PASSPHRASE``, alone or with the name), so that no file is ever rewritten by a word left behind.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from shared.base.keys import PASSPHRASE_LETTERS, SigningKey, require_length
from shared.errors import ApprovalRefusal, ParameterError, PassphraseRefusal, UsageRefusal

__all__ = ["NEW_VARIABLE", "VARIABLE", "changed", "chosen", "given", "opened"]

VARIABLE, NEW_VARIABLE = "TRIBUTARY_PASSPHRASE", "TRIBUTARY_NEW_PASSPHRASE"
TRIES = 3


def given(name: str, *, beside: Iterable[str] = (), variable: str = VARIABLE) -> str | None:
    """The passphrase that the environment gives for the key of `name`; None where it gives none.

    Args:
        beside: people who have acted on the same thing, and must be somebody else.
    Raises: ApprovalRefusal, when one shared variable would be two people.
    """
    own = _own(name, variable)
    if own in os.environ:
        return os.environ[own]
    shared = os.environ.get(variable)
    others = sorted({other for other in beside if other != name})
    if shared is not None and others:
        raise ApprovalRefusal(
            "two different people must act, each with a passphrase of their own",
            given=f"one shared {variable} for {name} and {', '.join(others)}",
            next_step=f"Unset it and let {name} type the passphrase, or set {own} for this one command.",
        )
    return shared


def chosen(name: str, *, optional: bool = False, variable: str = VARIABLE) -> str | None:
    """A new passphrase for the key of `name`, long enough, typed twice where it is typed.

    Args:
        optional: nothing may be given (an empty variable, an empty line, no terminal): then the key has none.
    Raises: ParameterError (too short), PassphraseRefusal (not typed the same twice), UsageRefusal (nowhere to ask).
    """
    found = given(name, variable=variable)
    if found is None and not sys.stdin.isatty():
        if optional:
            return None
        raise _nowhere(name, variable)
    if found is not None:
        if optional and not found:
            return None
        require_length(found)
        return found
    for left in reversed(range(TRIES)):
        empty = ", empty for none" if optional else ""
        typed = getpass.getpass(
            f"New passphrase of {name} (at least {PASSPHRASE_LETTERS} characters{empty}): ", stream=sys.stderr
        )
        if optional and not typed:
            return None
        try:
            require_length(typed)
            if getpass.getpass("Once more: ", stream=sys.stderr) == typed:
                return typed
            wrong: ParameterError | PassphraseRefusal = PassphraseRefusal(
                "a new passphrase must be typed the same twice", given="two that differ"
            )
        except ParameterError as short:
            wrong = short
        if not left:
            raise wrong
        sys.stderr.write(f"{wrong}\n")
    raise AssertionError("unreachable")


def opened(path: Path, name: str, *, beside: Iterable[str] = ()) -> SigningKey:
    """The key of `name` in a file that a passphrase protects; where it is typed, a wrong one may be typed again.

    Raises: UsageRefusal (nowhere to ask), PassphraseRefusal, and whatever `SigningKey.load` raises.
    """
    return _unlocked_key(path, name, beside=beside)[0]


def changed(path: Path, name: str, *, dry_run: bool = False) -> SigningKey:
    """Give a key another passphrase, at today's price of a guess; the key in it.

    A copy of the old file stays open to the old passphrase wherever it lies.
    Args:
        dry_run: open it only.
    """
    encrypted = b"ENCRYPTED" in path.read_bytes() if path.is_file() else True
    key, old = _unlocked_key(path, name) if encrypted else (SigningKey.load(path), None)
    if dry_run:
        return key
    new = chosen(name, variable=NEW_VARIABLE)
    if new == old:
        raise ParameterError("a new passphrase must be another one", given="the one that it has")
    key.save(path, new)
    return key


def _unlocked_key(path: Path, name: str, *, beside: Iterable[str] = ()) -> tuple[SigningKey, str]:
    found = given(name, beside=beside)
    if found is not None:
        return SigningKey.load(path, found), found
    if not sys.stdin.isatty():
        raise _nowhere(name, VARIABLE)
    for left in reversed(range(TRIES)):
        typed = getpass.getpass(f"Passphrase of {name}: ", stream=sys.stderr)
        try:
            return SigningKey.load(path, typed), typed
        except PassphraseRefusal:
            if not left:
                raise
            sys.stderr.write("This one does not open the key.\n")
    raise AssertionError("unreachable")


def _nowhere(name: str, variable: str) -> UsageRefusal:
    what = "new passphrase" if variable == NEW_VARIABLE else "passphrase"
    return UsageRefusal(
        f"the {what} of {name} must be given",
        given="no terminal to ask on",
        next_step=f"Run it on a terminal, or set {_own(name, variable)} for this one command.",
    )


def _own(name: str, variable: str) -> str:
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
    return f"{variable}_{plain.upper()}"
