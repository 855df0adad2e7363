"""A study's mapping as one file, ``mappings/STUDY.toml``: readable, diffable, and its hash on each receipt.

The hash is SHA-256 of the file as it is written here, so ``sha256sum`` gives it too. A salt in the file keeps the hash
from telling what the mapping says: the words that it recodes were seen among the records.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.base.canonical import closed, sha256_hex
from shared.errors import ConfigRefusal
from site_agent.records.mapping.declared import Combination, DateForm, FollowUp, Recoding, Steps
from site_agent.records.mapping.toml_form import must, quoted, section

__all__ = ["FOLDER", "MAPPED", "digest", "read", "text"]

FOLDER = "mappings"
FORMAT = "tributary-mapping/1"
MAPPED = ("columns", "values", "ignore", "steps", "salt")
"""Fields of a table's source that stand in this file."""
_STEP = "Correct the file, or write it anew: site-agent data map STUDY --suggest --out FILE."
_KEYS = {"format", "salt", "ignore", "columns", "values", "dates", "persons", "derive", "follow_up"}


def text(mapped: Mapping[str, Any], unanswered: Mapping[str, str] | None = None) -> str:
    """The file of what is mapped.

    Args:
        mapped: of `MAPPED`, those that are there. unanswered: questions that stand above it as comments, by column.
    """
    steps: Steps = mapped.get("steps") or Steps()
    lines = ["# How this hospital's extract becomes the study's table. `site-agent data map` rewrites it."]
    if unanswered:
        lines += ["#", "# Only you can say:"]
        lines += [line for name, question in unanswered.items() for line in _comment(f"{name}: {question}")]
    lines += [f"format = {quoted(FORMAT)}"]
    if mapped.get("salt"):
        lines += [f"salt = {quoted(mapped['salt'])}        # so that the hash of this file tells nothing of it"]
    if mapped.get("ignore"):
        lines += [f"ignore = {_list(mapped['ignore'])}"]
    if mapped.get("columns"):
        lines += ["", "[columns]        # name in the file = name in the dictionary", *_pairs(mapped["columns"])]
    for name, recoding in sorted((mapped.get("values") or {}).items()):
        lines += ["", f"[values.{quoted(name)}]        # how the file's values are read"]
        lines += _pairs(recoding.to_canonical())
    if steps.dates:
        lines += ["", "[dates]        # how the file writes dates", *_pairs(steps.to_canonical()["dates"])]
    if steps.persons:
        lines += ["", "[persons]        # a person's rows become one", *_pairs(steps.persons.to_canonical())]
    if steps.derive:
        lines += ["", "[derive]        # columns that are made of others, in this order", *_pairs(steps.derive)]
    if steps.follow_up:
        lines += ["", "[follow_up]        # time and event, of dates", *_pairs(steps.follow_up.to_canonical())]
    return "\n".join(lines) + "\n"


def digest(mapped: Mapping[str, Any]) -> str:
    """SHA-256 of the file; blank where it has no salt yet."""
    return sha256_hex(text(mapped).encode()) if mapped.get("salt") else ""


def read(path: Path) -> dict[str, Any]:
    """Values of `MAPPED` from a file. Raises: ConfigRefusal, UsageRefusal (a formula)."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigRefusal(
            f"the mapping {path.name} must be there",
            given="no such file",
            next_step="Put it back, or map the table anew: site-agent data add FILE --as STUDY.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__
        raise ConfigRefusal(f"the mapping {path.name} must be TOML", given=said, next_step=_STEP) from None
    closed(given, _KEYS, where=path.name, refusal=ConfigRefusal)
    must(given.get("format") == FORMAT, f'a mapping must say format = "{FORMAT}"', "another, or none", _STEP)
    return from_plain({name: value for name, value in given.items() if name != "format"}, path.name)


def from_plain(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values of `MAPPED` from the plain ones of a file. Raises: as of `read`."""
    for name in ("columns", "values", "dates", "persons", "derive", "follow_up"):
        must(isinstance(given.get(name, {}), dict), f"[{name}] of {where} must be a table", "something else", _STEP)
    ignore, columns = given.get("ignore", []), given.get("columns", {})
    must(
        isinstance(ignore, list) and all(isinstance(k, str) for k in ignore), "ignore must be a list", "another", _STEP
    )
    texts = all(isinstance(to, str) for to in columns.values())
    must(texts, f"[columns] of {where} must map names to names", "something else", _STEP)
    must(isinstance(given.get("salt", ""), str), "salt must be text", "something else", _STEP)
    values = given.get("values", {})
    must(all(isinstance(one, dict) for one in values.values()), "[values] must be a table for each column", "another")
    forms = {
        name: section(DateForm, one if isinstance(one, dict) else {"form": one}, f"[dates] {name}")
        for name, one in given.get("dates", {}).items()
    }
    persons, follow = given.get("persons"), given.get("follow_up")
    if follow is not None:
        lacking = [name for name in ("time", "start", "end", "unit") if name not in follow]
        must(not lacking, "[follow_up] must set time, start, end and unit", f"no {', '.join(lacking)}", _STEP)
    return {
        "columns": dict(columns),
        "ignore": tuple(ignore),
        "values": {name: section(Recoding, one, f"[values.{name}]") for name, one in values.items()},
        "salt": given.get("salt", ""),
        "steps": Steps(
            dates=forms,
            persons=None if persons is None else section(Combination, persons, "[persons]"),
            derive=dict(given.get("derive", {})),
            follow_up=None if follow is None else section(FollowUp, follow, "[follow_up]"),
        ),
    }


# -- inside -----------------------------------------------------------------------------------------------------
def _comment(said: str) -> list[str]:
    """Lines of a comment; a file's column may have any name, with a line's end in it."""
    printed = "".join(char if char.isprintable() else " " for char in said)
    return textwrap.wrap(printed, 95, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False)


def _list(values: Any) -> str:
    return f"[{', '.join(map(_value, values))}]"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}"
    return _list(value) if isinstance(value, (list, tuple)) else str(value)


def _pairs(given: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in given.items()]


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else quoted(name)
