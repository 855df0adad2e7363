"""The languages of the airlock page: which one a reader is shown, its catalogue, and its habits of numbers and dates.

English is the source; every other language is one GNU gettext catalogue in ``languages/``, read as it stands. It holds
the texts of the templates and, under the context `SENTENCE`, the sentences that other parts of the site say
(`site_agent.show.page.sentences`). What has been signed, or will be, is shown in the words of the signature: a
translation of those would be another text than the one that somebody agrees to.
"""

from __future__ import annotations

import datetime as dt
import io
import re
from dataclasses import dataclass, field
from functools import cache
from gettext import GNUTranslations, NullTranslations
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from site_agent.show.page.sentences import Sentences

__all__ = ["COOKIE", "FOLDER", "NAMES", "SENTENCE", "Language", "chosen", "language", "marked", "read"]

FOLDER = Path(__file__).parent / "languages"
COOKIE = "tributary-airlock-language"
SENTENCE = "sentence"
"""Context of the entries that are sentences of other parts of the site."""
NAMES = {"en": "English", "de": "Deutsch"}
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)Z?)?")


@dataclass(frozen=True)
class Language:
    """One language of the page.

    Args:
        code: as HTML says it.
        translations: of the texts of templates and pages.
        pairs: of the sentences of others.
    """

    code: str
    translations: NullTranslations
    pairs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sentences", Sentences(self.pairs, self.value))

    def __call__(self, text: str, **values: object) -> str:
        """A text of a page: ``language("%(count)s rows", count="1,000")``."""
        said = self.translations.gettext(text)
        return said % values if values else said

    def translated(self, text: object) -> str:
        """A sentence of another part of the site, as text: in this language where the catalogue has it."""
        return self._found(f"{text}") or f"{text}"

    def said(self, text: object) -> Markup:
        """The same as mark-up: what is not in the catalogue says that it is English."""
        found = self._found(f"{text}")
        return escape(found) if found is not None else Markup('<span class="as-said" lang="en">{}</span>').format(text)

    def _found(self, text: str) -> str | None:
        if self.code == "en":
            return text
        found: str | None = self._sentences(text)  # type: ignore[attr-defined]
        return found

    def number(self, value: float, form: str = "") -> str:
        """A number in this language's habit; whole numbers in groups of three, others as `form` of Python says."""
        return self.value(format(value, form or (",d" if isinstance(value, int) else "g")))

    def value(self, text: str) -> str:
        """A number or a date as the rest of the site writes it, in this language's habit.

        >>> language("en").value("12,345.6")
        '12,345.6'
        """
        if found := _DAY.fullmatch(text):
            return self.day(text) if found[2] is None else f"{self.day(found[1])} {found[2]}"
        group, point = _signs(self.code)
        return text.translate({ord(","): group, ord("."): point})

    def day(self, value: dt.date | str) -> str:
        """A date; English pages have it as ISO 8601, which nobody misreads."""
        from babel.dates import format_date

        day = value if isinstance(value, dt.date) else dt.date.fromisoformat(value)
        return day.isoformat() if self.code == "en" else format_date(day, format="medium", locale=self.code)


def marked(text: str) -> str:
    """A text that is told in the reader's language later; the catalogues have it."""
    return text


@cache
def _signs(code: str) -> tuple[str, str]:
    """Group separator and decimal separator of a language's numbers."""
    from babel.numbers import get_decimal_symbol, get_group_symbol

    return get_group_symbol(code), get_decimal_symbol(code)


@cache
def language(code: str) -> Language:
    """A language by its code. Raises: KeyError, for one that the page does not have."""
    if code == "en":
        return Language(code, NullTranslations())
    from babel.messages.mofile import write_mo

    catalogue = read(code)
    pairs = {str(one.id): str(one.string) for one in catalogue if one.context == SENTENCE and one.id}
    for one in [one for one in catalogue if one.context == SENTENCE]:
        catalogue.delete(one.id, one.context)
    compiled = io.BytesIO()
    write_mo(compiled, catalogue)
    compiled.seek(0)
    return Language(code, GNUTranslations(compiled), pairs)


def read(code: str) -> Any:
    """The catalogue of a language, as it stands in its file."""
    from babel.messages.pofile import read_po

    with (FOLDER / f"{code}.po").open("rb") as file:
        return read_po(file, locale=code)


def chosen(cookie: str, accepted: str) -> Language:
    """The language of a reader: the one they chose, else the best that their browser asks for, else English.

    Args:
        cookie: value of `COOKIE`.
        accepted: the header ``Accept-Language``.

    >>> chosen("", "fr, en-GB;q=0.5").code, chosen("", "fr").code
    ('en', 'en')
    """
    if cookie in NAMES:
        return language(cookie)
    asked = []
    for part in accepted[:400].split(","):
        tag, _, weight = part.partition(";q=")
        try:
            asked.append((-float(weight or 1), tag.strip().lower().partition("-")[0]))
        except ValueError:
            continue
    best = next((tag for weight, tag in sorted(asked, key=lambda one: one[0]) if tag in NAMES and weight < 0), "en")
    return language(best)
