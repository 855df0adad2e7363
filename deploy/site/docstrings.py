"""The docstrings of the code as Markdown: formulas, examples and sections that stand in one line, for the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|math):`~?([^`]+)`")
SECTION = re.compile(r"(?m)^( *)(Raises|Returns|Source|Attributes|Yields): (?=\S)")
MATH = re.compile(r"(?m)^( *)\.\. math:: *(.*(?:\n(?:\1 +\S.*)?)*)")
EXAMPLE = re.compile(r"(?m)^( *)>>> .*(?:\n\1\S.*)*")


def fenced(language: str, text: str, indent: str) -> str:
    """A block of code at an indent, with blank lines around it."""
    lines = [
        line.strip() if language == "latex" else line.removeprefix(indent) for line in text.strip("\n").split("\n")
    ]
    body = "\n".join(f"{indent}{line}".rstrip() for line in lines if line.strip())
    return f"\n{indent}```{language}\n{body}\n{indent}```\n"


def as_markdown(text: str) -> str:
    """A docstring whose formulas and examples are blocks of code, and whose roles are names."""
    text = MATH.sub(lambda found: fenced("latex", found[2], found[1]), text)
    text = EXAMPLE.sub(lambda found: fenced("pycon", found[0], found[1]), text)
    text = SECTION.sub(r"\1\n\1**\2:** ", text)
    return ROLE.sub(r"`\1`", text)


class AsMarkdown(griffe.Extension):
    """Rewrites each docstring before it is read in sections."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object that has one."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
