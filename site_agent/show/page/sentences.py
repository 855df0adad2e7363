"""Translation of English sentences that other parts of the site produce, matched to the forms of a catalogue.

A check, an attack's finding and a refusal are sentences with figures in them; those of a sealed release are kept as
they were written. A catalogue has each as a form, ``a release must hold at least {0} persons``, and its translation
with the same places; the text in a place is translated where it is a sentence itself, and its numbers and dates are
formatted as in the language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

__all__ = ["PLACE", "Sentences"]

PLACE = re.compile(r"\{(\d+)\}")
_VALUE = re.compile(r"[-+−]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?%)?|\d{4}-\d{2}-\d{2}")
_AFTER_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-ZÄÖÜ])")


class Sentences:
    """The sentences of one catalogue.

    Args:
        pairs: form to its translation; ``{0}``, ``{1}``, … are places in both.
        value: writes a number or an ISO date as the language does.

    >>> found = Sentences({"at least {0} rows": "mindestens {0} Zeilen"}, lambda text: text.replace(".", ","))
    >>> found("at least 2.5 rows"), found("at least 3 rows; at least 4 rows"), found("something else")
    ('mindestens 2,5 Zeilen', 'mindestens 3 Zeilen; mindestens 4 Zeilen', None)
    """

    def __init__(self, pairs: Mapping[str, str], value: Callable[[str], str]) -> None:
        self._value = value
        self._exact = {form.rstrip("."): said for form, said in pairs.items() if said and not PLACE.search(form)}
        forms = [form for form, said in pairs.items() if said and PLACE.search(form)]
        # The form that says most by itself first: one with fewer words of its own would swallow it.
        forms.sort(key=lambda form: -len(PLACE.sub("", form)))
        self._forms = [(_expression(form), pairs[form]) for form in forms]
        self.__call__ = lru_cache(maxsize=4096)(self.__call__)  # type: ignore[method-assign]

    def __call__(self, text: str) -> str | None:
        """The sentence in the catalogue's language; None where a part of it is not there."""
        text = text.strip()
        several = self._parts(text) if "; " in text else None
        return several or self._whole(text) or self._parts(text)

    def _whole(self, text: str) -> str | None:
        if not text or _VALUE.fullmatch(text):
            return self._value(text)
        stop = "." if text.endswith(".") else ""
        exact = self._exact.get(text.rstrip("."))
        if exact is not None:
            return exact.rstrip(".") + stop
        for expression, said in self._forms:
            if found := expression.fullmatch(text):
                values = {place: self._place(text) for place, text in found.groupdict().items()}
                filled = PLACE.sub(lambda place, values=values: values[f"_{place[1]}"], said)  # type: ignore[misc]
                return filled if not stop or filled.endswith(".") else f"{filled}."
        return None

    def _place(self, text: str) -> str:
        """Translation of the text in a place; the text itself where there is none (a name), or where it is blank."""
        return (self(text) or text) if text.strip() else text

    def _parts(self, text: str) -> str | None:
        for split, joined in ((_AFTER_SENTENCE, " "), (re.compile("; "), "; "), (re.compile(", "), ", ")):
            parts = split.split(text)
            if len(parts) > 1:
                said = [self(part) for part in parts]
                if None not in said:
                    return joined.join(map(str, said))
        return None


def _expression(form: str) -> re.Pattern[str]:
    """Regular expression of a form: its literal text, and a non-greedy group for each place."""
    out, seen, end = "", set(), 0
    for place in PLACE.finditer(form):
        out += re.escape(form[end : place.start()])
        out += f"(?P=_{place[1]})" if place[1] in seen else f"(?P<_{place[1]}>.*?)"
        seen.add(place[1])
        end = place.end()
    rest = form[end:]
    return re.compile(out + (re.escape(rest[:-1]) + r"\.?" if rest.endswith(".") else re.escape(rest)), re.DOTALL)
