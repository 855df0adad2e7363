"""A verb's options, worked out when a command line asks for them: of a program's 70 verbs one is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

__all__ = ["VerbCommand"]


class VerbCommand:
    """A verb as Typer calls it, by the name and in the words of the verb.

    Args:
        verb: each of its parameters is an option, a dataclass whose fields are options, or one of `given`.
        shared: the options that the verbs of a program share; ``dry_run`` only for those that take it.
        given: what stands for the type of each thing that is no option, by its name in annotations.
        answered: does it, from this and the values of the options.
    """

    def __init__(
        self,
        verb: Callable[..., Any],
        shared: Sequence[Parameter],
        given: Mapping[str, Any],
        answered: Callable[[VerbCommand, Mapping[str, Any]], None],
    ) -> None:
        update_wrapper(self, verb, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
        self._verb, self._shared, self._given, self._answered = verb, shared, given, answered

    def __call__(self, **said: Any) -> None:
        """Do what the verb is for, with the options' values."""
        self._answered(self, said)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":
            return Signature([item.replace(kind=Parameter.KEYWORD_ONLY) for item in self._options])
        if name == "__annotations__":
            return {item.name: item.annotation for item in self._options}
        raise AttributeError(name)

    @cached_property
    def own(self) -> Mapping[str, Parameter]:
        """The verb's parameters."""
        return signature(self._verb, eval_str=True, locals=self._given).parameters

    @cached_property
    def groups(self) -> dict[str, Any]:
        """The dataclasses among them, whose fields are options."""
        return {item.name: item.annotation for item in self._mine if dataclasses.is_dataclass(item.annotation)}

    @property
    def _mine(self) -> list[Parameter]:
        apart, known = {item.name for item in self._shared}, self._given.values()
        return [item for item in self.own.values() if item.name not in apart and item.annotation not in known]

    @cached_property
    def _options(self) -> list[Parameter]:
        own = self.own
        last = [own.get(item.name, item) for item in self._shared if item.name != "dry_run" or "dry_run" in own]
        return [*(one for item in self._mine for one in _spread(item)), *last]


def _spread(item: Parameter) -> list[Parameter]:
    """The options of a verb's parameter: itself, or the fields of the dataclass that it is."""
    if not dataclasses.is_dataclass(item.annotation):
        return [item]
    types = get_type_hints(item.annotation, include_extras=True)
    own = {one.name: one.default for one in dataclasses.fields(item.annotation)}
    defaults = {name: Parameter.empty if given is dataclasses.MISSING else given for name, given in own.items()}
    return [item.replace(name=name, annotation=types[name], default=defaults[name]) for name in own]
