"""The documentation site: every document is in it, and no link of a document is dead."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from tests.sources import ROOT


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
