"""The part of a command line that its words can reach: of a program of 70 commands Typer would make all, to run one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from shared.errors import UsageRefusal

if TYPE_CHECKING:
    import typer

__all__ = ["reached", "with_home"]


def with_home(app: typer.Typer, words: Sequence[str]) -> list[str]:
    """The words with ``--home FOLDER`` where the program reads it: one has it before its verbs, another after them.

    People who run both write it in either place. What follows a ``--`` is no option and stays.
    Raises: UsageRefusal (no folder, or two different ones).
    """
    end = words.index("--") if "--" in words else len(words)
    folders: list[str] = []
    left: list[str] = []
    open_ones = iter(words[:end])
    for word in open_ones:
        if word == "--home":
            folders.append(next(open_ones, ""))
        elif word.startswith("--home="):
            folders.append(word.removeprefix("--home="))
        else:
            left.append(word)
    if any(not folder or folder.startswith("--") for folder in folders) or len(set(folders)) > 1:
        given = " and ".join(dict.fromkeys(folders)) if all(folders) else "no folder after it"
        raise UsageRefusal("--home must name one folder", given=given, next_step="Write --home FOLDER once.")
    said = ["--home", folders[0]] if folders else []
    root = app.registered_callback
    if root is not None and root.callback is not None and "home" in signature(root.callback).parameters:
        return [*said, *left, *words[end:]]
    if _first(left) is None:  # no verb that could read it: help, or nothing
        return [*left, *words[end:]]
    return [*left, *said, *words[end:]]


def reached(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The program with the one command that the words run; all of it where they ask for help or name none.

    What is refused is refused as by the whole program: where a name is wrong, all names beside it are known.
    """
    if not {"-h", "--help"}.isdisjoint(words):
        return app
    path: list[str] = []
    here, left = app, list(words)
    while (place := _first(left)) is not None:
        word = left[place]
        if [name for name, _ in _named(here)].count(word) != 1:
            break
        path.append(word)
        found = dict(_named(here))[word]
        if not hasattr(found, "typer_instance"):
            break
        here, left = found.typer_instance, left[place + 1 :]
    return _part(app, tuple(path))


def _first(words: Sequence[str]) -> int | None:
    """Place of the first word that is no option and no option's value, as far as can be told without knowing them."""
    for place, word in enumerate(words):
        after_option = place and words[place - 1].startswith("-") and "=" not in words[place - 1]
        if not word.startswith("-") and not after_option:
            return place
    return None


def _named(app: typer.Typer) -> list[tuple[str, Any]]:
    """Commands and groups, by the name that each is called by."""
    from typer.main import get_command_name

    return [
        *(
            (one.name or get_command_name(one.callback.__name__), one)
            for one in app.registered_commands
            if one.callback
        ),
        *((one.name, one) for one in app.registered_groups if isinstance(one.name, str)),
    ]


@cache  # one object for one command, which the command made of it may be kept by
def _part(app: typer.Typer, path: tuple[str, ...]) -> typer.Typer:
    if not path:
        return app
    found = dict(_named(app))[path[0]]
    part = copy(app)
    if hasattr(found, "typer_instance"):
        group = copy(found)
        group.typer_instance = _part(found.typer_instance, path[1:])
        part.registered_commands, part.registered_groups = [], [group]
    else:
        # Typer makes a program of one command into that command.
        part.registered_commands = [found, *(one for one in app.registered_commands if one is not found)][:2]
        part.registered_groups = []
    return part
