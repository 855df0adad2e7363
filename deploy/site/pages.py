"""Pages of the documentation site beyond docs/: the README, the decisions' list, the code's reference, linked files.

Documents link to each other, and to files of the repository, by their paths there, so that the links also work on a
host of the repository. Mkdocs loads this module as a hook: it adds pages for documents outside docs/, copies every
other file that a document links to, and turns links into those of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "docs/decisions": "decisions/index.md",
}
"""Document or folder outside docs/, to its path in the site."""
PACKAGES = ("shared", "site_agent", "coordinator")
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
CODE = re.compile(r"(?ms)^```.*?^```|`[^`\n]*`")


def links(text: str) -> Iterator[str]:
    """Every link of a page to a file of the repository, as written there."""
    for found in LINK.findall(CODE.sub("", text)):
        if not re.match(r"\w+:", found):
            yield found


def target(page: str, link: str) -> str:
    """The path in the repository that a link of a page (a path there too) leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def in_site(path: str) -> str:
    """Path in the site of a file of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def rewritten(text: str, page: str) -> str:
    """A page with its links turned into those of the site; code is left alone."""
    here = posixpath.dirname(in_site(page))

    def turned(link: re.Match[str]) -> str:
        if re.match(r"\w+:", link[1]):
            return link[1]
        return posixpath.relpath(in_site(target(page, link[1])), here or ".")

    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(turned, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(turned, text[end:])])


def documents() -> list[str]:
    """Every document of the site that is a file of the repository."""
    inside = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return [*(name for name in OUTSIDE if name.endswith(".md")), *inside]


def linked() -> set[str]:
    """Files of the repository that a document links to and that are no documents themselves."""
    pages = documents()
    found = {target(page, link) for page in pages for link in links((ROOT / page).read_text(encoding="utf-8"))}
    return {path for path in found - {*pages, *OUTSIDE} if (ROOT / path).is_file()}


def decisions() -> str:
    """The list of decisions, each by its heading."""
    lines = ["# Decisions", "", "Why something is as it is, where others would have decided otherwise.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        heading = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{int(path.name[:4])}. {heading}]({path.name})")
    return "\n".join(lines) + "\n"


def rooms() -> dict[str, list[str]]:
    """Every folder of the packages with the modules in it, by their dotted names."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.stem not in ("__init__", "__main__") and "_pb2" not in path.stem:
                room = path.parent.relative_to(ROOT).as_posix()
                found.setdefault(room, []).append(f"{room}/{path.stem}".replace("/", "."))
    return found


def reference(room: str, modules: list[str]) -> str:
    """The page of one folder: each module's docstring and public names."""
    return "\n".join([f"# {room}/", "", *(f"::: {module}\n" for module in modules)])


def on_config(config: Any) -> Any:
    """Put the decisions and the reference into the navigation."""
    paths = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "decisions").glob("*.md")]
    config.nav.append({"Decisions": ["decisions/index.md", *sorted(paths)]})
    config.nav.append(
        {
            "Reference": [
                {
                    package: [
                        {room.partition("/")[2] or package: f"reference/{room}.md"}
                        for room in sorted(rooms())
                        if room.split("/")[0] == package
                    ]
                }
                for package in PACKAGES
            ]
        }
    )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and files that lie outside docs/."""
    from mkdocs.structure.files import File

    made = {name: (ROOT / path).read_text(encoding="utf-8") for path, name in OUTSIDE.items() if path.endswith(".md")}
    made[OUTSIDE["docs/decisions"]] = decisions()
    made |= {f"reference/{room}.md": reference(room, modules) for room, modules in rooms().items()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted(linked()):
        files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn the links of a document into those of the site."""
    source = page.file.src_uri
    if source.startswith("reference/") or source == OUTSIDE["docs/decisions"]:
        return markdown
    back = {name: path for path, name in OUTSIDE.items()}
    return rewritten(markdown, back.get(source, f"docs/{source}"))
