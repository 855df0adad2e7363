"""Catalogues of the airlock page's languages: `make catalogues` writes what is new in the sources into each ``.po``.

Texts are those of the templates and those that the page's modules mark; sentences, under a context of their own, are
what other parts of the site say on the page: each refusal's words, each check, the findings of attacks. What a source
no longer says leaves the catalogue; what it says anew stands there untranslated, which a test refuses.
"""

from __future__ import annotations

import ast
import re
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.pofile import write_po
from jinja2.ext import babel_extract

from shared.privacy.stated import CHARGED_BEFORE, FLOW
from site_agent.show.page.language import FOLDER, NAMES, SENTENCE, read

ROOT = Path(__file__).resolve().parents[1]
PAGE = "site_agent/show/page"
SAYING = (
    "shared/base/keys.py",
    "shared/errors.py",
    "shared/privacy/stated.py",
    "site_agent/decide/airlock",
    "site_agent/decide/joining/first_run.py",
    "site_agent/decide/plan_facts.py",
    "site_agent/desk.py",
    "site_agent/ledger/decisions.py",
    "site_agent/release/audit/report.py",
    "site_agent/release/checks.py",
    "site_agent/release/pipeline/before_draw.py",
    "site_agent/release/pipeline/stages.py",
    "site_agent/show/page",
    "site_agent/show/preview.py",
)
"""Modules whose sentences a reader of the page may be shown."""
PRICES = (
    "ε = {0} at δ = {1}",
    *(f"{price} given {given}" for price in ("{0}", "ε = {0} at δ = {1},") for given in (FLOW, CHARGED_BEFORE)),
)
"""Prices as `shared.privacy.stated.shown_price` says them, whose source has a place for the condition."""
WORDS = re.compile(r"[A-Za-zé]{2,}")


def messages() -> Catalog:
    """Every text and sentence of the sources, with where it stands."""
    found = Catalog(charset="utf-8", project="tributary-meta", header_comment="# Texts of the airlock page.")
    options = {"encoding": "utf-8", "newstyle_gettext": "true", "trim_blocks": "true"}
    for path in sorted((ROOT / PAGE / "templates").glob("*.html")):
        if path.name == "summary.html":  # a record for strangers, who check it by its English words
            continue
        with path.open("rb") as file:
            for _, _, message, _ in babel_extract(file, ("gettext", "ngettext", "_"), [], options):
                forms = [message] if isinstance(message, str) else [one for one in message if one]
                if forms:
                    found.add(forms[0] if len(forms) == 1 else tuple(forms), locations=[(_place(path), None)])
    for path in sorted((ROOT / PAGE).glob("*.py")):
        for text in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            found.add(text, locations=[(_place(path), None)])
    for path in _files():
        for text in _sentences(ast.parse(path.read_text(encoding="utf-8"))):
            found.add(text, locations=[(_place(path), None)], context=SENTENCE)
    for text in PRICES:
        found.add(text, locations=[("shared/privacy/stated.py", None)], context=SENTENCE)
    return found


def updated(code: str) -> Catalog:
    """The catalogue of a language with what the sources say now: translations are kept, nothing is guessed."""
    known: dict[Any, Any] = {}
    if (FOLDER / f"{code}.po").exists():
        known = {(one.id, one.context): one.string for one in read(code) if one.id}
    made = Catalog(
        locale=code,
        charset="utf-8",
        project="tributary-meta",
        fuzzy=False,
        header_comment="# Texts of the airlock page.",
    )
    for one in messages():
        if one.id:
            made.add(one.id, known.get((one.id, one.context), ""), one.locations, one.flags, context=one.context)
    return made


def written(code: str) -> bytes:
    """The file of a language, as it should stand."""
    import io

    out = io.BytesIO()
    catalogue = updated(code)
    write_po(out, catalogue, width=120, sort_output=False, omit_header=True, include_lineno=False)
    plural = catalogue.plural_forms
    head = f'# Texts of the airlock page in {NAMES[code]}; `make catalogues` writes what is new.\nmsgid ""\nmsgstr ""\n'
    fields = {
        "Language": code,
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": plural,
    }
    return (
        head + "".join(f'"{name}: {value}\\n"\n' for name, value in fields.items()) + "\n"
    ).encode() + out.getvalue()


# -- inside -----------------------------------------------------------------------------------------------------
def _files() -> Iterator[Path]:
    for name in SAYING:
        path = ROOT / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _marked(tree: ast.Module) -> Iterator[str]:
    """Texts that a module of the page tells in the reader's language."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        asked = isinstance(node.func, ast.Call) and getattr(node.func.func, "id", "") == "reader"
        if (name in ("lang", "marked") or asked) and isinstance(node.args[0].value, str):
            yield node.args[0].value


def _sentences(tree: ast.Module) -> Iterator[str]:
    """Forms of the sentences that a module says to people: of refusals, checks, and whatever else is prose in it."""
    skipped = _documents(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "STEPS" for one in node.targets):
            # Words of a list that a page shows one of: too short to be told from keys.
            yield from (part.value for part in node.value.values)  # type: ignore[attr-defined]
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in skipped:
            form = _form(node)
            if form is not None and _prose(form):
                yield form


def _documents(tree: ast.Module) -> set[int]:
    """Strings that nobody is shown: docstrings, parts of formatted ones, keys, comparisons, annotations, logs."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            # An expression in a place may hold texts of its own: those are found by themselves.
        elif isinstance(node, (ast.Subscript, ast.Compare)):
            skipped |= {id(part) for part in ast.walk(node) if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ("marked", "lang", "getLogger", "warning", "info", "debug", "compile", "TypeVar", "Literal"):
                skipped |= {id(part) for part in ast.walk(node)}
            if name in ("replace", "get", "getattr", "startswith", "endswith", "partition", "rpartition", "strftime"):
                skipped |= {id(argument) for argument in node.args}
        elif isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "__all__" for one in node.targets):
            skipped |= {id(part) for part in ast.walk(node.value)}
        elif isinstance(node, ast.AnnAssign):
            skipped |= {id(part) for part in ast.walk(node.annotation)}
        elif isinstance(node, ast.Assert) and node.msg is not None:
            skipped |= {id(part) for part in ast.walk(node.msg)}
    return skipped


def _form(node: ast.Constant | ast.JoinedStr) -> str | None:
    """A text with its places numbered; None of what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and "{" not in node.value else None
    out, place = "", 0
    for part in node.values:
        if isinstance(part, ast.Constant):
            out += str(part.value)
        else:
            out, place = f"{out}{{{place}}}", place + 1
    return (
        None if any(name is not None and not name.isdigit() for _, name, _, _ in string.Formatter().parse(out)) else out
    )


def _prose(form: str) -> bool:
    """True if a text is prose for people: at least two words with a space between them."""
    bare = re.sub(r"\{\d+\}", " ", form)
    return len(WORDS.findall(bare)) >= 2 and " " in form.strip() and not re.fullmatch(r"[\w.]+( [\w.]+)?", form)


def main() -> None:
    """Write every catalogue."""
    for code in NAMES:
        if code != "en":
            (FOLDER / f"{code}.po").write_bytes(written(code))
            lacking = [one for one in read(code) if one.id and not one.string]
            sys.stdout.write(f"{code}: {len(read(code))} entries, {len(lacking)} to translate\n")


if __name__ == "__main__":
    sys.exit(main())
