"""What differs between mechanisms is asked of their settings (`shared.mechanisms.base`): who names one says why."""

from __future__ import annotations

import ast
import re

import pytest

from shared.mechanisms.kinds import KINDS
from tests.stage.house.sources import ROOT, production

CLASSES = {where.rpartition(":")[2] for where in KINDS.values()}
IS_FOR_ONE = "is for this mechanism alone, and refuses others"
NAMING = {
    "coordinator/answers/harmonise.py": IS_FOR_ONE,
    "coordinator/answers/queries.py": IS_FOR_ONE,
    "coordinator/figures/frontier.py": "words and a dash for each setting whose precision is forecast",
    "coordinator/planning/plan_form.py": "a form with the fields of some mechanisms",
    "coordinator/planning/predicted.py": "a case of each mechanism whose precision is forecast",
    "coordinator/planning/price.py": "the price list: a line of each mechanism beside the plan's own",
    "coordinator/pooling/secure_sum/looks.py": IS_FOR_ONE,
    "coordinator/pooling/secure_sum/row_effects.py": IS_FOR_ONE,
    "coordinator/services/collect/sum_queue.py": IS_FOR_ONE,
    "coordinator/training/secure_sum/walk.py": IS_FOR_ONE,
    "shared/mechanisms/kinds.py": "the list of them all",
    "site_agent/decide/airlock/overview.py": "what receipts of version 0.1.0 said of the mechanisms of then",
    "site_agent/release/drawing.py": "where a plan's drawing is chosen",
    "site_agent/show/verifier.py": "one file that a stranger takes along: it has no class to ask",
    "site_agent/training/secure_sum/member.py": IS_FOR_ONE,
}
"""Module outside the mechanisms' own folders that tells one from the others: why."""


def _about(node: ast.AST) -> bool:
    """True of what holds a mechanism's name: `plan.release.mechanism`, `setting.name`, `kind`."""
    return "mechanism" in ast.unparse(node) or ast.unparse(node) in ("setting.name", "kind")


def _names(node: ast.AST) -> set[str]:
    """Mechanisms whose names stand in an expression or a pattern as text."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value in KINDS}


def _names_one(node: ast.AST) -> bool:
    """True where mechanisms are told apart.

    That is `x == "moments"`, `x in ("grand", …)`, `x.startswith("latent_noise")`, `isinstance(x, MomentsPlan)`, a case
    of a `match` by a name or a class, and a table with two mechanisms' names before its values.
    """
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        parts = [part for side in sides for part in getattr(side, "elts", [side])]
        named = any(isinstance(part, ast.Constant) and part.value in KINDS for part in parts)
        return named and any(_about(side) for side in sides)
    if isinstance(node, ast.Match):
        patterns = [case.pattern for case in node.cases]
        classes = {ast.unparse(one.cls) for top in patterns for one in ast.walk(top) if isinstance(one, ast.MatchClass)}
        return bool({name.rpartition(".")[2] for name in classes} & CLASSES) or (
            _about(node.subject) and any(map(_names, patterns))
        )
    if isinstance(node, ast.Dict):
        return len({key.value for key in node.keys if isinstance(key, ast.Constant)} & {*KINDS}) > 1
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return bool({one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & CLASSES)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
        return any(map(_names, node.args))
    return False


def test_outside_their_folders_mechanisms_are_asked_and_not_told_apart():
    found = {
        path
        for path, tree in production()
        if not (path.startswith("shared/mechanisms/") and path.split("/")[2] in KINDS)
        and any(_names_one(node) for node in ast.walk(tree))
    }
    assert found == {*NAMING}


def test_the_page_of_changes_counts_them():
    page = (ROOT / "docs" / "changes.md").read_text(encoding="utf-8")
    said = re.search(r"(\d+) modules outside their folders tell mechanisms apart", page)
    assert said is not None
    assert int(said[1]) == len(NAMING)


@pytest.mark.parametrize(
    "planted",
    [
        'plan.release.mechanism == "moments"',
        'kind in ("grand", "tables")',
        'setting.name != "slicing"',
        "isinstance(plan.release, MomentsPlan | GrandPlan)",
        'match plan.release.mechanism:\n    case "moments" | "tables":\n        pass',
        "match plan.release:\n    case GrandPlan(epsilon=1.0):\n        pass",
        "match plan:\n    case StudyPlan(release=plans.MomentsPlan()):\n        pass",
        'WORDS = {"moments": "sums", "grand": "a network"}',
        'name.startswith("latent_noise")',
        'name.startswith(("latent_noise", "other"))',
    ],
)
def test_each_form_of_telling_them_apart_is_seen(planted):
    assert any(_names_one(node) for node in ast.walk(ast.parse(planted)))


@pytest.mark.parametrize(
    "planted",
    [
        'asked["tables"] == "moments"',
        "isinstance(plan.release, Answering)",
        'match step:\n    case "tables":\n        pass',
        "match plan.release:\n    case Answering():\n        pass",
        'document = {"tables": 3, "sites": 4}',
        'name.startswith("grandmother")',
    ],
)
def test_what_names_no_mechanism_is_left_alone(planted):
    assert not any(_names_one(node) for node in ast.walk(ast.parse(planted)))
