"""Manual pages of the four programs, from their command trees: `make man` writes build/man/man1/*.1."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = {
    "site-agent": "site_agent.cli",
    "coordinator": "coordinator.cli",
    "analyst": "coordinator.analyst.commands",
    "tributary": "coordinator.demo",
}


def roff(text: str) -> str:
    """Plain text as roff takes it: no markup of rich, no escape, no line that is a request, letters in ASCII.

    >>> roff("a\\\\b")
    'a\\\\eb'
    """
    plain = re.sub(r"\[/?(?:bold|dim|cyan|green|red|yellow)?\]", "", text).replace("\\", "\\e").replace("-", "\\-")
    plain = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in plain)
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.splitlines())


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of a tree that does something, with the words that call it, in the order of --help."""
    inside = getattr(command, "commands", {})
    if not inside:
        yield path, command
    for name, one in inside.items():
        yield from commands(one, (*path, name))


def options(command: Any) -> Iterator[str]:
    """The parameters of a command as roff."""
    for one in command.params:
        words = ", ".join(one.opts) if one.param_type_name == "option" else (one.metavar or one.name).upper()
        yield f".TP\n.B {roff(words)}\n{roff(one.help or '')}"


def page(name: str, app: Any, version: str) -> str:
    """A manual page."""
    import typer

    from shared.errors import CATALOGUE

    root = typer.main.get_command(app)
    parts = [f'.TH {name.upper()} 1 "" "{name} {version}"', ".SH NAME", f"{name} \\- {roff(summary(root))}"]
    parts += [".SH SYNOPSIS", f".B {name}\n.I COMMAND\n[OPTIONS]", ".SH DESCRIPTION", roff(root.help or "")]
    parts += [".SH COMMANDS"]
    for path, one in commands(root, (name,)):
        parts += [f".SS {roff(' '.join(path))}", roff(one.help or ""), *options(one)]
    codes: dict[int, list[str]] = {}
    for code, kind in sorted(CATALOGUE.items()):
        codes.setdefault(kind.exit_code, []).append(f"{code}: {kind.meaning}")
    parts += [".SH EXIT STATUS", ".TP\n.B 0\nDone."]
    parts += [f".TP\n.B {status}\n" + "\n.br\n".join(map(roff, texts)) for status, texts in sorted(codes.items())]
    others = ", ".join(f".BR {other} (1)" for other in PROGRAMS if other != name)
    parts += [".SH SEE ALSO", others.replace(", ", "\n")]
    return "\n".join(parts) + "\n"


def summary(root: Any) -> str:
    """The first sentence of a program's help."""
    return re.split(r"(?<=[.])\s", root.help or "")[0].rstrip(".")


def main(folder: Path) -> None:
    """Write the pages."""
    from shared import software_version

    out = folder / "man1"
    out.mkdir(parents=True, exist_ok=True)
    for name, module in PROGRAMS.items():
        app = importlib.import_module(module).app
        (out / f"{name}.1").write_text(page(name, app, software_version()), encoding="utf-8")
        sys.stdout.write(f"{out / name}.1\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/man"))
