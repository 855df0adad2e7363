"""What differs between mechanisms is asked of their settings (`shared.mechanisms.base`): who names one says why."""

from __future__ import annotations

import ast

from shared.mechanisms.kinds import KINDS
from tests.sources import production

CLASSES = {where.rpartition(":")[2] for where in KINDS.values()}
IS_FOR_ONE = "is for this mechanism alone, and refuses others"
NAMING = {
    "coordinator/answers/harmonise.py": IS_FOR_ONE,
    "coordinator/answers/queries.py": IS_FOR_ONE,
    "coordinator/planning/plan_form.py": "a form with the fields of some mechanisms",
    "coordinator/planning/predicted.py": "a case of each mechanism whose precision is forecast",
    "coordinator/planning/price.py": "the price list: a line of each mechanism beside the plan's own",
    "coordinator/pooling/secure_sum/looks.py": IS_FOR_ONE,
    "coordinator/pooling/secure_sum/row_effects.py": IS_FOR_ONE,
    "coordinator/services/collect/sum_queue.py": IS_FOR_ONE,
    "coordinator/training/secure_sum/walk.py": IS_FOR_ONE,
    "site_agent/decide/airlock/overview.py": "what receipts of version 0.1.0 said of the mechanisms of then",
    "site_agent/release/drawing.py": "where a plan's drawing is chosen",
    "site_agent/training/secure_sum/member.py": IS_FOR_ONE,
}
"""Module outside the mechanisms' own folders that tells one from the others: why."""


def _names_one(node: ast.AST) -> bool:
    """True of `x == "moments"`, `x in ("grand", …)` and `isinstance(x, MomentsPlan)`."""
    if isinstance(node, ast.Compare):
        sides = [part for side in (node.left, *node.comparators) for part in getattr(side, "elts", [side])]
        about = any("mechanism" in ast.unparse(side) for side in (node.left, *node.comparators))
        named = any(isinstance(part, ast.Constant) and part.value in KINDS for part in sides)
        return named and (about or ast.unparse(node.left) in ("setting.name", "kind"))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return bool({one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & CLASSES)
    return False


def test_outside_their_folders_mechanisms_are_asked_and_not_told_apart():
    found = {
        path
        for path, tree in production()
        if not (path.startswith("shared/mechanisms/") and path.split("/")[2] in KINDS)
        and any(_names_one(node) for node in ast.walk(tree))
    }
    assert found == {*NAMING}
