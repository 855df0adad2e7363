"""No circle among the modules of the product: imports inside functions count, those for types alone are listed here.

Two modules that import each other are one module in two files: neither can be read, tested or moved without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.stage.house.sources import parsed

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("shared", "site_agent", "coordinator")

Graph = Mapping[str, frozenset[str]]


def _for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _imports(node: ast.AST, types: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import below a node, at whatever depth, and whether it stands under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, types
        elif isinstance(child, ast.If) and _for_types(child.test):
            for line in child.body:
                yield from _imports(ast.Module([line], []), True)
            for line in child.orelse:
                yield from _imports(ast.Module([line], []), types)
        else:
            yield from _imports(child, types)


def _named(tree: ast.AST) -> set[str]:
    """Modules that a table names as "module:Name", to be imported when they are asked for."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text.partition(":")[0] for text in texts if ":" in text and " " not in text}


def _targets(statement: ast.Import | ast.ImportFrom, module: str, is_package: bool, known: frozenset[str]) -> set[str]:
    """The modules of ours that one import statement names; `from room import name` means the file where it is one."""
    if isinstance(statement, ast.Import):
        named = {alias.name for alias in statement.names}
    else:
        base = statement.module or ""
        if statement.level:
            parts = module.split(".")
            parts = parts[: len(parts) - statement.level + is_package]
            base = ".".join([*parts, *([base] if base else [])])
        named = {inner if (inner := f"{base}.{alias.name}") in known else base for alias in statement.names}
    lost = {name for name in named - known if name.split(".")[0] in PACKAGES}
    assert not lost, f"{module} imports {lost}, which is not there"
    return {name for name in named if name in known and name != module}


def arrows(sources: Mapping[str, tuple[str | ast.Module, bool]]) -> tuple[Graph, Graph]:
    """Who imports whom at run time, and who names whom for types alone.

    Args:
        sources: text or syntax tree by dotted name, and whether it is the `__init__` of a folder.
    """
    known = frozenset(sources)
    at_run_time: dict[str, set[str]] = {name: set() for name in sources}
    for_types: dict[str, set[str]] = {name: set() for name in sources}
    for name, (text, is_package) in sources.items():
        tree = ast.parse(text) if isinstance(text, str) else text
        at_run_time[name] |= _named(tree) & known - {name}
        for statement, types in _imports(tree):
            (for_types if types else at_run_time)[name] |= _targets(statement, name, is_package, known)
    return (
        {name: frozenset(found) for name, found in at_run_time.items()},
        {name: frozenset(found - at_run_time[name]) for name, found in for_types.items()},
    )


def components(graph: Graph) -> list[frozenset[str]]:
    """The strongly connected components of two nodes or more (Tarjan 1972), sorted by their first name."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(frozenset(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(found, key=min)


@cache
def product() -> tuple[Graph, Graph]:
    sources = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            sources[".".join(parts[:-1] if is_package else parts)] = (parsed(path), is_package)
    return arrows(sources)


def room(module: str) -> str:
    """Where a module lives: its folder, or the file itself where it stands on a package's own floor."""
    is_folder = (ROOT / Path(*module.split("."))).is_dir()
    return module if is_folder or module.count(".") == 1 else module.rsplit(".", 1)[0]


def rooms(graph: Graph) -> Graph:
    """The same arrows between rooms; those inside a room are left out."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        found.setdefault(room(name), set()).update(room(other) for other in others)
    return {name: frozenset(others - {name}) for name, others in found.items()}


def both(at_run_time: Graph, for_types: Graph) -> Graph:
    return {name: others | for_types[name] for name, others in at_run_time.items()}


def closing(at_run_time: Graph, for_types: Graph) -> set[tuple[str, str]]:
    """The arrows for types alone without which there would be no circle."""
    inside = components(both(at_run_time, for_types))
    return {
        (name, other)
        for name, others in for_types.items()
        for other in others
        if any({name, other} <= circle for circle in inside)
    }


DESK = "a desk opens what a decision works with, and is asked by it"
SETTINGS = "a plan holds the settings of its mechanism, and these are asked with the whole plan"
TIES: Mapping[tuple[str, str], str] = {
    ("shared.mechanisms.base", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.cross_products.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.densities.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.grand.answer", "shared.mechanisms.grand.plan"): "answers are typed by the settings they are of",
    ("shared.mechanisms.grand.answer", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.grand.edges", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.grand.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.labelled", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.latent_noise.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.moments.plan", "shared.plans.plan"): SETTINGS,
    (
        "shared.mechanisms.network_counts.answer",
        "shared.mechanisms.network_counts.plan",
    ): "answers are typed by the settings they are of",
    ("shared.mechanisms.network_counts.answer", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.network_counts.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.secure_sum.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.slicing.plan", "shared.plans.plan"): SETTINGS,
    ("shared.mechanisms.tables.plan", "shared.plans.plan"): SETTINGS,
    (
        "shared.plans.federated",
        "shared.plans.plan",
    ): "a plan holds its training; a trained flow is held to it",
    ("site_agent.decide.airlock.signing", "site_agent.desk"): DESK,
    ("site_agent.decide.airlock.standing_approval", "site_agent.desk"): DESK,
    ("coordinator.figures.over_time", "coordinator.answers.spending"): "a budget draws itself: `Budget.figure`",
    ("coordinator.demo.play", "coordinator.demo.stage"): "a play is asked with the stage it is played on",
    ("coordinator.demo.stage", "coordinator.demo.play"): "a stage is set for a play",
}
"""Types that close a circle: who names whom, and why neither can do without the other."""
CIRCLING_ROOMS: Mapping[frozenset[str], str] = {
    frozenset(
        {
            "shared.plans",
            "shared.mechanisms",
            "shared.mechanisms.cross_products",
            "shared.mechanisms.densities",
            "shared.mechanisms.grand",
            "shared.mechanisms.latent_noise",
            "shared.mechanisms.moments",
            "shared.mechanisms.network_counts",
            "shared.mechanisms.secure_sum",
            "shared.mechanisms.slicing",
            "shared.mechanisms.tables",
        }
    ): "the plan stands above the mechanisms, and in one room with the dictionary and the encoding, which stand below",
    frozenset(
        {
            "site_agent.decide",
            "site_agent.decide.airlock",
            "site_agent.decide.joining",
            "site_agent.desk",
            "site_agent.show",
            "site_agent.training",
        }
    ): "the app that Flower starts opens the desk itself, and `deploy/flower` promises where it lies",
}
"""Rooms that import each other, though no two of their files do, and why. This may only shrink: a room that joins one
is a mistake, and whoever cuts one strikes it off."""


def test_no_two_modules_import_each_other_not_even_inside_a_function():
    assert components(product()[0]) == []


def test_types_alone_close_the_circles_that_are_listed_and_no_other():
    ties = closing(*product())
    assert ties - set(TIES) == set(), "name the type without the import, or move it below both"
    assert set(TIES) - ties == set(), "no longer needed: strike it off the list"


def test_the_rooms_that_import_each_other_only_grow_fewer():
    assert set(components(rooms(product()[0]))) == set(CIRCLING_ROOMS)


def test_what_is_imported_by_a_name_in_a_table_is_seen_too():
    """Modules that load others by a name hold these names as "module:Name", which counts as an import above."""
    callers = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        in ("import_module", "__import__")
    }
    # A fork server loads what its callers name: theirs are the names, and the imports.
    named = {"coordinator/services/compute/fork_server.py", "coordinator/demo/warm.py"}
    named |= {"shared/base/process.py"}  # `deferred`, of which the next test says what it may load
    assert callers == {"shared/mechanisms/kinds.py", "coordinator/demo/catalogue.py"} | named
    at_run_time = product()[0]
    assert "shared.mechanisms.moments.plan" in at_run_time["shared.mechanisms.kinds"]
    assert "coordinator.demo.network" in at_run_time["coordinator.demo.catalogue"]


def test_what_is_imported_when_it_is_first_used_is_no_module_of_ours():
    names = [
        node.args[0].value
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "deferred"
    ]
    assert {"pandas", "scipy.special"} <= set(names)
    assert not {name.split(".")[0] for name in names} & set(PACKAGES)


# -- the walk and the search find what is planted -----------------------------------------------------------------
def graph_of(**sources: str) -> tuple[Graph, Graph]:
    """Modules `a.x`, `a.y` … of one folder `a`."""
    return arrows({"a": ("", True), **{f"a.{name}": (text, False) for name, text in sources.items()}})


def test_strongly_connected_nodes_are_found_and_no_others():
    graph = {name: frozenset(others) for name, others in {"a": "b", "b": "c", "c": "ad", "d": "e", "e": ""}.items()}
    assert components(graph) == [frozenset("abc")]
    assert components({**graph, "e": frozenset("d")}) == [frozenset("abc"), frozenset("de")]
    assert components({**graph, "e": frozenset("a")}) == [frozenset("abcde")]
    assert components({**graph, "c": frozenset("d")}) == []


@pytest.mark.parametrize(
    "back",
    [
        "import a.x",
        "from a import x",
        "from a.x import f",
        "from . import x",
        "from .x import f",
        "def f():\n    from a.x import g",
        "class C:\n    def f(self):\n        if self:\n            import a.x as other",
        "try:\n    import a.x\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import a.x",
        'KINDS = {"x": "a.x:Kind"}',
    ],
)
def test_a_planted_circle_is_found_however_it_is_imported(back):
    at_run_time, _ = graph_of(x="from a.y import f", y=back)
    assert components(at_run_time) == [frozenset({"a.x", "a.y"})]


def test_a_circle_that_types_close_is_told_from_one_at_run_time():
    lines = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.x import X\n    from a.z import Z"
    at_run_time, for_types = graph_of(x="from a.y import f", y=lines, z="")
    assert components(at_run_time) == []
    assert closing(at_run_time, for_types) == {("a.y", "a.x")}


def test_a_module_planted_into_the_product_would_close_a_circle():
    """The real graph with one more line: the refusals, at the bottom of the house, ask the command line."""
    at_run_time = product()[0]
    planted = {**at_run_time, "shared.errors": frozenset({"coordinator.analyst.commands"})}
    (circle,) = components(planted)
    assert {"shared.errors", "coordinator.analyst.commands"} <= circle
