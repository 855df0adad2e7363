"""One question after the other: what a guided command asks, and how a terminal asks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shared.errors import Refusal, UsageRefusal

__all__ = ["Prompt", "terminal_prompt"]


class Prompt(Protocol):
    """One question to a person, until `check` accepts the answer."""

    def __call__(
        self,
        question: str,
        default: str,
        *,
        among: Mapping[str, str] | None = None,
        check: Callable[[str], None] | None = None,
    ) -> str:
        """The answer as it was typed; `default` where nothing was.

        Args:
            among: the only answers that there are, with a word on each.
            check: refuses an answer by a `Refusal`, which is shown, and the question asked again.
        """


def terminal_prompt(
    question: str, default: str, *, among: Mapping[str, str] | None = None, check: Callable[[str], None] | None = None
) -> str:
    """`Prompt` on standard error: a choice is given by its name or its number.

    Raises: UsageRefusal (nobody is there to answer: the input has ended).
    """
    import sys

    import typer

    names = list(among or ())
    for place, (name, words) in enumerate((among or {}).items(), 1):
        typer.echo(f"  {place}  {name}{f': {words}' if words else ''}", err=True)
    while True:
        try:
            text = str(typer.prompt(question, default=default, err=True, show_default=bool(default))).strip()
        except typer.Abort:
            if sys.stdin is not None and sys.stdin.isatty():  # Ctrl-C, or Ctrl-D
                raise
            raise UsageRefusal(
                "what a command asks must be answered",
                given="no further line of input",
                next_step="Run it at a terminal, or give it a line for each question.",
            ) from None
        if text.isdecimal() and 1 <= int(text) <= len(names):
            text = names[int(text) - 1]
        try:
            if names and text not in names:
                raise UsageRefusal(f"it must be one of {', '.join(names)}", given=repr(text)[:60])
            if check is not None:
                check(text)
            return text
        except Refusal as refusal:
            typer.secho(f"  {refusal}", fg="red", err=True)
