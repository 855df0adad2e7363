"""What the rest of the product asks of a mechanism by its name; it should ask the mechanism instead."""

from __future__ import annotations

import ast
import re
from functools import cache

from shared.mechanisms.kinds import KINDS
from tests.stage.house.sources import ROOT, production

ASKING = {
    "coordinator/answers/harmonise.py": "maps are made of densities alone",
    "coordinator/answers/queries.py": "a secure sum's answer stands beside that of its pilots",
    "coordinator/planning/plan_form.py": "a form in the browser has fields for what it offers",
    "coordinator/planning/predicted.py": "a rehearsal's figures, for moments and tables alone",
    "coordinator/planning/price.py": "the comparison of prices, where each mechanism's settings vary in their own way",
    "coordinator/pooling/secure_sum/looks.py": "of the secure sum itself",
    "coordinator/pooling/secure_sum/row_effects.py": "of the secure sum itself",
    "coordinator/services/collect/sum_queue.py": "of the secure sum itself",
    "coordinator/training/secure_sum/walk.py": "of the secure sum itself",
    "site_agent/decide/airlock/overview.py": "rows are compared with records, released figures are not",
    "site_agent/release/drawing.py": "a network is drawn in another way than a table",
    "site_agent/show/verifier.py": "one file that a stranger takes along: it has no class to ask",
    "site_agent/training/secure_sum/member.py": "of the secure sum itself",
}
"""Modules outside `shared/mechanisms` that ask which mechanism it is, and why; the list may only shrink."""


def _specs() -> set[str]:
    """Names of the classes of all mechanisms: `TablesPlan`, …."""
    return {path.partition(":")[2] for path in KINDS.values()}


def asks(tree: ast.AST) -> int:
    """How often a module asks which mechanism it is: its class by `isinstance`, or its name by a comparison.

    >>> asks(ast.parse("isinstance(plan.release, TablesPlan | MomentsPlan); receipt.mechanism == 'tables'"))
    2
    >>> asks(ast.parse("isinstance(plan.release, Aggregates); heading == 'tables'; 'densities' in query"))
    0
    """
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            found += bool({one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & _specs())
        elif isinstance(node, ast.Compare) and not isinstance(node.left, ast.Constant):
            words = {
                one.value for right in node.comparators for one in ast.walk(right) if isinstance(one, ast.Constant)
            }
            left = ast.unparse(node.left)
            found += bool(words & KINDS.keys() and re.search(r"mechanism|\bway\b|setting\.name", left))
    return found


@cache
def asking() -> dict[str, int]:
    """Modules outside `shared/mechanisms` that ask, and how often."""
    found = {path: asks(tree) for path, tree in production() if not path.startswith("shared/mechanisms/")}
    return {path: count for path, count in found.items() if count}


def test_no_other_module_asks_which_mechanism_it_is():
    assert {*asking()} - {*ASKING} == set(), "ask the plan's mechanism: a method or a fact of `MechanismPlan`"


def test_who_no_longer_asks_is_no_longer_listed():
    assert {*ASKING} - {*asking()} == set()


def test_the_page_of_changes_counts_them():
    page = (ROOT / "docs" / "changes.md").read_text(encoding="utf-8")
    said = re.search(r"(\d+) modules outside `shared/mechanisms/` ask which mechanism it is", page)
    assert said is not None
    assert int(said[1]) == len(asking())
