"""A machine that lacks modules."""

from __future__ import annotations

from shared import errors


def without(monkeypatch, *modules: str) -> None:
    """This machine as it would be without them."""
    found = errors.find_spec
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name in modules else found(name))
