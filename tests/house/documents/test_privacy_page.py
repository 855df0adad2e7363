"""docs/privacy.md names tests that exist, answers every question, and explains the receipt that is really written.

``python -m tests.house.documents.test_privacy_page`` writes the values of the receipt into the page and keeps the words
beside them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import PlanRefusal
from shared.mechanisms.cross_products.plan import CrossProductsPlan
from shared.mechanisms.densities.plan import DensitiesPlan
from shared.mechanisms.grand.plan import GrandPlan
from shared.mechanisms.kinds import KINDS
from shared.mechanisms.moments.plan import MomentsPlan
from shared.mechanisms.network_counts.plan import NetworkCountsPlan
from shared.mechanisms.secure_sum.plan import SecureSumPlan
from shared.mechanisms.slicing.plan import SlicingPlan
from shared.mechanisms.tables.plan import TablesPlan
from shared.plans.plan import POSTURES, PrivateTraining, StudyPlan
from shared.privacy.stated import shown_epsilon
from shared.releases.receipt import Receipt, ReceiptDraft, planned_event, write_receipt

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "privacy.md"
BEGIN, END = "<!-- receipt -->\n", "<!-- end of receipt -->\n"


def _asked() -> str:
    return PAGE.read_text(encoding="utf-8").split("\n## One receipt")[0]


def questions() -> list[tuple[int, str]]:
    """(number, text under it) of every question."""
    parts = re.split(
        r"^### (\d+)\. ", PAGE.read_text(encoding="utf-8").split("\n## One receipt")[0], flags=re.MULTILINE
    )
    return [(int(number), text) for number, text in zip(parts[1::2], parts[2::2], strict=True)]


def receipt() -> Receipt:
    """The receipt that the page explains."""
    plan = StudyPlan.from_toml((ROOT / "deploy" / "studies" / "first.toml").read_text())
    planned_event(plan)
    made = write_receipt(
        plan,
        ReceiptDraft(
            wave=1,
            site="north",
            release_id="3f9c" * 8,
            agent_version=tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
            n=400,
            previous="0" * 64,
        ),
    )
    made.require_true(plan)
    return made


def shown(value: Any, name: str = "") -> str:
    """A value of the receipt as the page prints it."""
    if isinstance(value, float) and "epsilon" in name:
        return shown_epsilon(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {shown(item)}" for key, item in value.items())
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return "<br>".join(value)
    if isinstance(value, tuple):
        finite = [item for item in value if item is not None]
        return f"{len(value)} values, from {shown(finite[0])} to {shown(finite[-1])}"
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return "64 hexadecimal digits"
    return "none" if value is None else str(value)


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Line of the receipt to (value, words), as they stand in the page."""
    table = text.split(BEGIN)[1].split(END)[0]
    found = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", table, flags=re.MULTILINE)
    return {name: (value, words) for name, value, words in found}


def rewritten(text: str) -> str:
    """The page with today's values; a new line of the receipt comes without words, which the test below refuses."""
    known, made = rows(text), receipt()
    lines = ["| line | value | what it means |", "|---|---|---|"]
    for item in fields(made):
        words = known.get(item.name, ("", ""))[1]
        lines.append(f"| `{item.name}` | {shown(getattr(made, item.name), item.name)} | {words} |")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n".join(lines) + "\n" + rest[rest.index(END) :]


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_all_twenty_two_questions_are_asked_and_answered_in_order():
    assert [number for number, _ in questions()] == list(range(1, 23))
    for number, text in questions():
        title, _, answer = text.partition("\n")
        assert title.rstrip().endswith("?"), number
        assert len(answer.split("Shown by")[0].split()) >= 20, f"question {number} needs an answer"


@pytest.mark.parametrize(("number", "text"), questions())
def test_every_answer_names_tests_that_exist(number, text):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text.partition("Shown by")[2])
    assert named, f"question {number} names no test"
    for path, test in named:
        assert test in functions(ROOT / path), f"{path}::{test}"


def test_the_receipt_is_the_one_that_is_written_today_and_every_line_is_explained():
    text = PAGE.read_text(encoding="utf-8")
    assert rewritten(text) == text, "run python -m tests.house.documents.test_privacy_page"
    found = rows(text)
    assert list(found) == [item.name for item in fields(Receipt)]
    assert [name for name, (_, words) in found.items() if len(words.split()) < 4] == []


def test_the_page_says_of_each_posture_and_mechanism_whether_it_is_offered():
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[0]
    said = {
        (posture, mechanism): offered
        for posture, mechanism, offered in re.findall(
            r"^\| `(\w+)` \| `(\w+)` \|.*\| (yes|no) \|$", text, flags=re.MULTILINE
        )
    }
    written = (ROOT / "deploy" / "studies" / "first.toml").read_text()
    # In the order of drawing that every posture and mechanism knows.
    plan = StudyPlan.from_toml('training = {outcomes = "joint"}\n' + written)
    training = PrivateTraining(rate=0.1, noise_multiplier=2.0, steps=10)
    moments = MomentsPlan(epsilon=1.0, outcome="binary", responses=["died"], covariates=["age", "sex", "sbp"])
    members = {f"site-{k}": f"{k:064x}" for k in range(6)}
    settings = {"outcome": "binary", "responses": ["died"], "covariates": ["age", "sex", "sbp"], "coefficient": "sbp"}
    summed = SecureSumPlan(epsilon=1.0, members=members, **settings)
    releases = {
        "latent_noise": (plan.release, training),
        "tables": (TablesPlan(epsilon=1.0), None),
        "densities": (DensitiesPlan(densities=[["sbp"]], epsilon=1.0, persons=300), None),
        "moments": (moments, None),
        "cross_products": (
            CrossProductsPlan(epsilon=1.0, columns=("age", "sbp"), typical={"age": (50, 15), "sbp": (130, 20)}),
            None,
        ),
        "secure_sum": (summed, None),
        "slicing": (SlicingPlan(epsilon=5.0), None),
        "network_counts": (NetworkCountsPlan(epsilon=1.0, most_contacts=40), None),
        "grand": (GrandPlan(epsilon=1.0, d=2), None),
    }
    assert set(releases) == set(KINDS)
    assert {mechanism for _, mechanism in said} == set(releases)
    assert {posture for posture, _ in said} == set(POSTURES)
    for mechanism, (release, fitted) in releases.items():
        for posture in POSTURES:
            private = fitted if posture == "private" else None
            try:
                replace(plan, posture=posture, private=private, release=release)
            except PlanRefusal:
                offered = "no"
            else:
                offered = "yes"
            assert said.get((posture, mechanism), "no") == offered, (posture, mechanism)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
