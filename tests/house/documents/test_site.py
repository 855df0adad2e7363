"""The documentation site: every document is in it, and no link of a document is dead."""

from __future__ import annotations

import ast
import importlib.util
import re
from types import ModuleType

import pytest

from tests.stage.house.sources import ROOT, parsed


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "deploy" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = loaded("pages")


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def anchors(path: str) -> set[str]:
    """The names of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```", "", text(path)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES.documents())
def test_every_link_of_a_document_leads_somewhere(page):
    for link in PAGES.links(text(page)):
        assert (ROOT / PAGES.target(page, link)).exists(), link


@pytest.mark.parametrize("page", PAGES.documents())
def test_every_link_to_a_heading_finds_it(page):
    for link, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", PAGES.CODE.sub("", text(page))):
        if not link.startswith("http"):
            assert heading in anchors(PAGES.target(page, link) if link else page), f"{link}#{heading}"


NAMED = re.compile(r"(?<![\w./@-])(?:shared|site_agent|coordinator|tests)(?:\.(?!py\b|toml\b)[A-Za-z_]\w*)+(?![\w/@-])")
OF_THEIR_DAY = ("docs/decisions/", "CHANGELOG.md")
TO_BE_MADE = {"shared.mechanisms.prevalence"}  # by who follows the recipe


def is_there(name: str) -> bool:
    """True of a folder or module of the repository, and of what one defines or imports, as its source says."""
    module, beyond = ROOT, name.split(".")
    while beyond and (module / beyond[0]).is_dir():
        module /= beyond.pop(0)
    file = module / "__init__.py"
    if beyond and (module / f"{beyond[0]}.py").is_file():
        file = module / f"{beyond.pop(0)}.py"
    inside: ast.AST | None = parsed(file) if beyond and file.is_file() else None
    for part in beyond:
        inside = next((node for node in getattr(inside, "body", ()) if part in defined(node)), None)
    return inside is not None or not beyond


def defined(node: ast.AST) -> set[str]:
    """The names to which one statement gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {one.asname or one.name for one in node.names}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


@pytest.mark.parametrize("page", [page for page in PAGES.documents() if not page.startswith(OF_THEIR_DAY)])
def test_what_a_document_names_of_the_code_is_there(page):
    assert {name for name in NAMED.findall(text(page)) if not is_there(name)} <= TO_BE_MADE


def test_a_name_that_is_not_there_is_found():
    for name in ("tests.benchmarks", "coordinator.figures.over_time.waves_figure", "shared.plans.plan.StudyPlan.hash"):
        assert is_there(name)
    for name in ("coordinator.time_figures", "coordinator.figures.over_time.wave_figure", "shared.plans.plan.Plan.x"):
        assert not is_there(name)


SENTENCE_END = re.compile(r"[.!?][)*\"”’]*\s+(?=\W*[^\W\d_])")
ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|et al|vs|cf|[A-Z])\.")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
NOT_A_SENTENCE_A_LINE = ("docs/decisions/", "docs/architecture.md", "docs/estimands-checked.md")


def wrapped_or_joined(page: str) -> list[str]:
    """Lines of prose that hold the end of a sentence within, or end before their sentence does."""
    found, before = [], ""
    for line in re.sub(r"(?ms)^```.*?^```", "", page).splitlines():
        prose = line.strip() and not line.startswith(("|", "#", "<", "    "))
        plain = ABBREVIATED.sub("x", re.sub(r"`[^`]*`|\]\([^)]*\)", "x", line)) if prose else ""
        if SENTENCE_END.search(ITEM.sub("", plain, count=1)):
            found.append(line)
        if before and plain and not ITEM.match(line) and not re.search(r"[.:;!?…][)*\"”’]*$", before):
            found.append(line)
        before = line if prose else ""
    return found


@pytest.mark.parametrize("page", [page for page in PAGES.documents() if not page.startswith(NOT_A_SENTENCE_A_LINE)])
def test_each_sentence_of_a_document_has_a_line_of_its_own(page):
    assert wrapped_or_joined(text(page)) == []


def test_a_line_of_two_sentences_and_one_that_is_wrapped_are_found():
    assert wrapped_or_joined("One. Two.") == ["One. Two."]
    assert wrapped_or_joined("One is\nwrapped.") == ["wrapped."]
    assert wrapped_or_joined("- One (Smith et al. 2020).\n  Two, of `a. B`:\n\n| a. B |\n\nThree.") == []


def test_every_document_has_a_place_in_the_navigation():
    listed = set(re.findall(r"(?m)^ +- (\S+\.md)$", text("mkdocs.yml")))
    inside = {PAGES.in_site(path) for path in PAGES.documents() if not path.startswith("docs/decisions/")}
    assert inside == listed


def test_a_link_of_the_repository_becomes_one_of_the_site():
    for page, link, turned in (
        ("README.md", "docs/privacy.md", "privacy.md"),
        ("docs/decisions/0001-x.md", "../privacy.md", "../privacy.md"),
        ("docs/privacy.md", "../SECURITY.md", "project/security.md"),
        ("docs/benchmarks/moments.md", "../../tests/benchmarks/results/honest.json", None),
        ("CONTRIBUTING.md", "docs/decisions/", "../decisions/index.md"),
        ("docs/privacy.md", "https://example.org/a", "https://example.org/a"),
    ):
        turned = turned or "../files/tests/benchmarks/results/honest.json"
        assert PAGES.rewritten(f"[x]({link})", page) == f"[x]({turned})"
    assert PAGES.rewritten("`a[0](x.md)`", "README.md") == "`a[0](x.md)`"


def test_every_module_is_in_the_reference():
    modules = [module for room in PAGES.rooms().values() for module in room]
    assert len(modules) == len(set(modules)) > 200
    assert "coordinator.pooling.pool" in modules


def test_docstrings_become_markdown():
    pytest.importorskip("griffe", reason="of the extra `docs`")
    written = loaded("docstrings").as_markdown(
        "One.\n\n.. math:: a = b,\n   c = d\n\nRaises: ParameterError, if not.\n\n>>> 1 + 1\n2\n\nBy :func:`x`."
    )
    assert "```latex\na = b,\nc = d\n```" in written
    assert "**Raises:** ParameterError" in written
    assert "```pycon\n>>> 1 + 1\n2\n```" in written
    assert written.endswith("By `x`.")
