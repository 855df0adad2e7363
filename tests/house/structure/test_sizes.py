"""No file, and no function, longer or more tangled than a reader holds in mind; exceptions may only shrink.

`python tests/house/structure/test_sizes.py` lowers and drops what has become smaller in `sizes.json`; it raises and
adds nothing.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.stage.house.sources import ROOT, production

LISTED = Path(__file__).with_name("sizes.json")
PARAMETERS = "parameters of a public function"
UNEXPLAINED = "parameters of a public function without Args"
UNWARNED = "parameters of a public function that raises, without Raises"
MOST = {
    "lines of a file": 600,
    "lines of a function": 80,
    "complexity of a function": 20,
    PARAMETERS: 8,
    UNEXPLAINED: 4,
    UNWARNED: 4,
}
"""Complexity is McCabe's: one, and one more for each branch, loop, handler and function inside.

Parameters are counted without `self` and `cls`, of constructors too where they are written out. The verbs of the
command line are left out: their parameters are the options that a person types, one each, and `--help` groups them.
Of those that have more, `forest` and `km_figure` stay: `tributary_meta` promises their keywords to analysts.
"""
STEP = {"lines of a file": 50, "lines of a function": 10, "complexity of a function": 5, PARAMETERS: 1}
STEP |= {UNEXPLAINED: 1, UNWARNED: 1}
"""Exceptions are rounded up to these, so that a line more in a long file is no change of this list."""
WHY = {
    "site_agent/show/verifier.py": "one file that a stranger takes along: it checks an export without the agent's code",
    "site_agent/release/pipeline/making.py:make_release": "the order of a release's steps is its guarantee: it is read "
    "once, from top to bottom, and each step has a function of its own",
}
"""Why a file or a function is longer, or more tangled, than all others may be."""
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def complexity(function: ast.AST) -> int:
    """McCabe's number of independent ways through a function.

    >>> complexity(ast.parse("for x in y:\\n  if x:\\n    pass\\n  elif y:\\n    pass").body[0])
    3
    """
    inside = [node for node in ast.walk(function) if node is not function]
    found = sum(isinstance(node, (*_BRANCHES, *_FUNCTIONS)) for node in inside)
    return 1 + found + sum(isinstance(node, ast.Try) and bool(node.orelse) for node in inside)


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = f"{inside}{node.name}"
            if isinstance(node, _FUNCTIONS):
                yield name, node
            yield from _functions(node, f"{name}.")


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller may give.

    >>> parameters(ast.parse("def f(self, x, /, y, *more, z=1, **rest): ...").body[0])
    5
    """
    given = function.args
    named = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"])) + (given.vararg is not None) + (given.kwarg is not None)


def unexplained(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters of a function whose docstring has no `Args`; a constructor's are told by its class.

    >>> unexplained(ast.parse("def f(x, y): ...").body[0])
    2
    """
    section = re.search(r"^\s*Args", ast.get_docstring(function) or "", flags=re.MULTILINE)
    overload = any(isinstance(one, ast.Name) and one.id == "overload" for one in function.decorator_list)
    return 0 if section or overload or function.name == "__init__" else parameters(function)


def raises(function: ast.AST) -> bool:
    """True if a function itself raises a refusal; what it only hands on, and its inner functions, are left out.

    >>> raises(ast.parse("def f():\\n  if x:\\n    raise ValueError").body[0])
    True
    >>> raises(ast.parse("def f():\\n  def g():\\n    raise ValueError\\n  if x:\\n    raise").body[0])
    False
    """
    inside = [node for node in ast.iter_child_nodes(function) if not isinstance(node, (*_FUNCTIONS, ast.ClassDef))]
    return any((isinstance(node, ast.Raise) and node.exc is not None) or raises(node) for node in inside)


def unwarned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters of a function that raises, and does not say what.

    >>> unwarned(ast.parse("def f(x, y):\\n  raise ValueError").body[0])
    2
    """
    said = "Raises:" in (ast.get_docstring(function) or "")
    return 0 if said or function.name == "__init__" or not raises(function) else parameters(function)


def _public(place: str, name: str) -> bool:
    path = [*Path(place).with_suffix("").parts, *name.split(".")]
    return not any(part.startswith("_") for part in path if part not in ("__init__", "__call__"))


def _verb(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True of a command: `@verb(app)`, or `@app.command()`."""
    called = [one.func for one in function.decorator_list if isinstance(one, ast.Call)]
    return any(
        (isinstance(one, ast.Name) and one.id == "verb") or (isinstance(one, ast.Attribute) and one.attr == "command")
        for one in called
    )


@cache
def measured() -> dict[str, dict[str, int]]:
    """What is beyond the limits: measure to name to size."""
    found: dict[str, dict[str, int]] = {name: {} for name in MOST}
    for place, tree in production():
        sizes = {("lines of a file", place): len((ROOT / place).read_text(encoding="utf-8").splitlines())}
        for name, node in _functions(tree):
            sizes["lines of a function", f"{place}:{name}"] = node.end_lineno - node.lineno + 1
            sizes["complexity of a function", f"{place}:{name}"] = complexity(node)
            if _public(place, name) and not _verb(node):
                sizes[PARAMETERS, f"{place}:{name}"] = parameters(node)
                sizes[UNEXPLAINED, f"{place}:{name}"] = unexplained(node)
                sizes[UNWARNED, f"{place}:{name}"] = unwarned(node)
        for (measure, name), size in sizes.items():
            if size > MOST[measure]:
                found[measure][name] = max(size, found[measure].get(name, 0))
    return found


def listed() -> dict[str, dict[str, int]]:
    return json.loads(LISTED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("measure", MOST)
def test_nothing_is_larger_than_its_limit_but_what_is_listed_and_that_does_not_grow(measure):
    known = listed()[measure]
    grown = {name: size for name, size in measured()[measure].items() if size > known.get(name, MOST[measure])}
    assert grown == {}, f"cut it in pieces that have a name each; {MOST[measure]} {measure} at most"


@pytest.mark.parametrize("measure", MOST)
def test_what_has_become_small_is_no_longer_listed(measure):
    assert set(listed()[measure]) - set(measured()[measure]) == set(), (
        "python -m tests.house.structure.test_sizes takes it off the list"
    )


def test_what_is_long_or_tangled_says_why():
    known = listed()
    long = {
        name
        for measure in ("lines of a file", "lines of a function", "complexity of a function")
        for name in known[measure]
    }
    assert long == set(WHY)


def lowered(before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The list with what is smaller now; nothing is added and nothing raised.

    >>> lowered({"lines of a file": {"a": 900, "b": 700}}, {"lines of a file": {"a": 801, "c": 999}})
    {'lines of a file': {'a': 850}}
    """
    return {
        measure: {
            name: min(ceiling, -(-now[measure][name] // STEP[measure]) * STEP[measure])
            for name, ceiling in sorted(known.items())
            if name in now[measure]
        }
        for measure, known in before.items()
    }


def test_a_command_is_not_counted_and_a_constructor_is():
    verb, plain = ast.parse("@verb(app, 'add')\ndef add(): ...\n@machine_failures()\ndef add(): ...").body
    assert _verb(verb)
    assert not _verb(plain)
    assert _public("shared/a.py", "Server.__init__")
    assert not _public("shared/a.py", "_Server.start")


def test_the_list_may_only_shrink():
    assert lowered({"lines of a file": {"a": 900}}, {"lines of a file": {"a": 950, "b": 700}}) == {
        "lines of a file": {"a": 900}
    }


if __name__ == "__main__":
    LISTED.write_text(json.dumps(lowered(listed(), measured()), indent=1) + "\n", encoding="utf-8")
