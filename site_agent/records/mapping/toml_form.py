"""Words and marks of the settings' files: what must hold in them, their quoted texts, their sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shared.base.canonical import closed
from shared.errors import ConfigRefusal

__all__ = ["FILE_NAME", "must", "quoted", "section"]

FILE_NAME = "site.toml"


def must(holds: bool, rule: str, given: object, step: str = f"Correct {FILE_NAME}.") -> None:
    """Refuse what does not hold, as a fault of the settings. Raises: ConfigRefusal."""
    if not holds:
        raise ConfigRefusal(rule, given=f"{given}", next_step=step)


def section(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    """A dataclass from plain values, of which an unknown key is refused. Raises: ConfigRefusal."""
    closed(given, {item.name for item in fields(kind)}, where=where, refusal=ConfigRefusal)
    return kind(**given)


def quoted(text: str) -> str:
    """A TOML basic string."""
    import json

    # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
