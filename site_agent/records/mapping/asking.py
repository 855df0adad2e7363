"""A mapping by question and answer: what ``site-agent data map STUDY --guide`` asks, one thing after the other.

It begins from what could be proposed (`site_agent.records.mapping.suggesting`) and asks about each part of it, and then
about what only the steward can say. Of the file's values counts are shown, as everywhere, and none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.errors import Refusal, UsageRefusal
from shared.plans.dictionary import LEVELLED, NUMERIC
from site_agent.records.mapping import editing
from site_agent.records.mapping.declared import DateForm, FollowUp, Recoding, Steps
from site_agent.records.mapping.evaluating import blank
from site_agent.records.mapping.formulas import SPANS, columns_of, parsed
from site_agent.records.mapping.recoding import recoded
from site_agent.records.mapping.suggesting import analyte_of, date_forms, no_dates, proposed, recoding_of, strays
from site_agent.records.mapping.units import conversion, known_spelling

if TYPE_CHECKING:
    import pandas as pd

    from shared.plans.dictionary import Column, Dictionary
    from shared.terminal.prompts import Prompt

__all__ = ["guided", "require_header"]

_UNITS = {"d": "days", "wk": "weeks", "mo": "months", "a": "years"}
MOST_VALUES = 20
"""Values of one column that are asked for; more of them are written in a file, for --file."""


def guided(
    table: pd.DataFrame,
    dictionary: Dictionary,
    columns: Mapping[str, str],
    ignore: Sequence[str],
    prompt: Prompt,
    say: Callable[[str], None],
    *,
    values: Mapping[str, Recoding] | None = None,
    steps: Steps | None = None,
) -> dict[str, Any]:
    """A mapping as `site_agent.records.mapping.document.text` takes it, salt apart.

    Args:
        table: as the file has it, under its names. columns, ignore, values, steps: what is mapped already.
        prompt: asks the steward. say: tells them something.
    """
    guide = _Guide(table, dictionary.source, prompt, say)
    start = proposed(table, dictionary, columns, ignore)
    guide.names(start.mapped["columns"], known=columns)
    known = steps or Steps()
    guide.made(_before(known, start.mapped["steps"]))
    guide.recoded(values or {})
    guide.unused(tuple(ignore))
    if known.persons is not None:
        reads = (known.persons.order, *known.persons.take)
        guide.dates |= {of: form for of, form in known.dates.items() if of in reads}
    elif dictionary.repeated is None and dictionary.person is not None:
        guide.persons(dictionary.person)
    made = Steps(dates=guide.dates, persons=known.persons, derive=guide.derive, follow_up=guide.follow)
    return {"columns": guide.columns, "ignore": guide.ignore, "values": guide.values, "steps": made}


def require_header(prompt: Prompt) -> None:
    """Have the steward say that a file's first line holds names, before any is shown. Raises: UsageRefusal."""
    answer = prompt("Does its first line hold the names of columns? yes or no", "no", check=_yes_or_no)
    if answer[0].lower() != "y":
        raise UsageRefusal(
            "the first line of the file must hold the names of its columns",
            given="a line of which that was not said",
            next_step="Write them there, or say how the file is read: site-agent data add FILE --delimiter.",
        )


class _Guide:
    """The mapping as far as it has been said."""

    def __init__(self, table: pd.DataFrame, dictionary: Dictionary, prompt: Prompt, say: Callable[[str], None]) -> None:
        self.table, self.dictionary, self.prompt, self.say = table, dictionary, prompt, say
        self.columns: dict[str, str] = {}
        self.ignore: tuple[str, ...] = ()
        self.values: dict[str, Recoding] = {}
        self.dates: dict[str, DateForm] = {}
        self.derive: dict[str, str] = {}
        self.follow: FollowUp | None = None

    @property
    def there(self) -> dict[str, str]:
        """Dictionary column to the file's."""
        wanted = set(self.dictionary.names) | {self.dictionary.person}
        own = {name: name for name in self.table.columns if name in wanted and name not in self.columns}
        return own | {to: name for name, to in self.columns.items()}

    @property
    def lacking(self) -> list[Column]:
        made = {*self.derive, *((self.follow.time, self.follow.event) if self.follow else ())}
        return [c for c in self.dictionary.columns if c.name not in self.there and c.name not in made]

    @property
    def free(self) -> list[str]:
        """Columns of the file that are nothing yet."""
        used = {*self.there.values(), *self.dates, *(_dated(self.follow) if self.follow else ())}
        used |= {of for name, formula in self.derive.items() for of in columns_of(formula, name)}
        return [name for name in self.table.columns if name not in used]

    def yes(self, question: str) -> bool:
        return self.prompt(f"{question} yes or no", "yes", check=_yes_or_no)[0].lower() == "y"

    # -- which column is which ------------------------------------------------------------------------------------
    def names(self, suggested: Mapping[str, str], *, known: Mapping[str, str]) -> None:
        self.columns = dict(known)
        if found := len(self.there):
            self.say(f"Found by name: {found} of {len(self.dictionary.columns)} columns")
        for name, to in suggested.items():
            if name not in known and self.yes(f"{_named(self.dictionary.column(to))}: is it the file's {name!r}?"):
                self.columns[name] = to

    # -- what is made of others -----------------------------------------------------------------------------------
    def made(self, suggested: Steps) -> None:
        """Columns that the file lacks: another column of it, a formula, or a follow-up of dates."""
        for name, formula in suggested.derive.items():
            if self.yes(f"{name}: is it made as {formula}?"):
                self.derive[name] = formula
                self.dates |= {of: form for of, form in suggested.dates.items() if of in columns_of(formula, name)}
        follow = suggested.follow_up
        if follow is not None and self.yes(
            f"{follow.time} from {follow.start}, to {follow.end} or {follow.last}, in {follow.unit}: is that so?"
        ):
            self.follow = follow
            self.dates |= {of: form for of, form in suggested.dates.items() if of in _dated(follow)}
        for column in self.lacking:
            if column in self.lacking:  # a follow-up makes two of them
                self._lacking(column)

    def _lacking(self, column: Column) -> None:
        among = f" Columns left: {', '.join(self.free)}." if self.free else ""
        dated = f"{_named(column)} is not in the file. Is it counted between dates?"
        if column.kind == "time" and self.yes(dated) and self._follow_up(column):
            return
        self.say(f"{_named(column)} is not in the file.{among}")

        def known(text: str) -> None:
            if text.startswith("="):
                formula = text[1:].strip()
                parsed(formula, column.name)
                _in_file(
                    columns_of(formula, column.name),
                    [*self.table.columns, *self.there],
                    "a formula must read columns that there are",
                )
            elif text:
                _in_file([text], self.free, "it must be one of the file's columns that is nothing yet")

        text = self.prompt("Its name in the file, or = and a formula; nothing leaves it open", "", check=known)
        if text.startswith("="):
            self.derive[column.name] = text[1:].strip()
            for name in columns_of(self.derive[column.name], column.name):
                if name not in self.there:
                    self._date(name, asked=False)
        elif text:
            self.columns[text] = column.name

    def _follow_up(self, time: Column) -> bool:
        """Ask for its dates. Returns: whether they were said."""

        def date(text: str) -> None:
            if not text:
                return
            _in_file([text], [*self.dates, *self.free], "a date must be one of the columns")
            if not self._forms(text):
                raise UsageRefusal("its values must be dates in one form", given="others", next_step="Name another.")

        start = self.prompt("Column of the date from which it counts; nothing if there is none", "", check=date)
        if not start:
            return False
        event_date = "Column of the date of the event, empty where it did not happen; nothing if there is none"
        end = self.prompt(event_date, "", check=date)
        if not end:
            return False
        last = self.prompt("Column of the last date without it; nothing for one day for all", "", check=date)
        until = ""
        if not last:
            until = self.prompt("The day until which all are followed (YYYY-MM-DD); nothing if none is", "", check=_day)
            if not until:
                return False
        unit = _UNITS.get(known_spelling(time.unit)) or self.prompt(
            f"{time.name} is in", "days", among=dict.fromkeys(SPANS, "")
        )
        event = time.event if time.event in [column.name for column in self.lacking] else ""
        self.follow = FollowUp(time=time.name, event=event, start=start, end=end, last=last, until=until, unit=unit)
        for name in _dated(self.follow):
            self._date(name)
        return True

    def _forms(self, name: str) -> list[str]:
        """Date formats that fit a column; ``iso`` where it has no value, as of an event that nobody had."""
        return date_forms(self.table[name], name) or (["iso"] if blank(self.table[name]).all() else [])

    def _date(self, name: str, *, asked: bool = True) -> None:
        """Note the date format of a column; ask for it unless exactly one fits.

        Args:
            asked: False to skip a column that no format fits.
        """
        forms = self._forms(name)
        if name in self.dates or not (forms or asked):
            return
        form = forms[0] if len(forms) == 1 else self.prompt(f"{name} writes its dates as", "", among=_among(forms))
        gone = no_dates(self.table[name])
        if gone and not self.yes(f"{name}: {', '.join(gone)} means that there is none. Is that so?"):
            gone = ()
        self.dates[name] = DateForm(form=form, missing=gone)

    # -- values ---------------------------------------------------------------------------------------------------
    def recoded(self, known: Mapping[str, Recoding]) -> None:
        for column in self.dictionary.columns:
            name = self.there.get(column.name)
            if name is None or column.kind == "person":
                continue
            how = known.get(column.name) or recoding_of(self.table[name], name, column)[0]
            if how.words and not self.yes(f"{column.name}: {how.words}. Is that so?"):
                how = Recoding()
            self._values(column, name, how)

    def _values(self, column: Column, name: str, how: Recoding) -> None:
        """Ask for the values that the dictionary does not have, until none is left or nothing is said."""
        which = f"one of {', '.join(map(str, column.levels))}" if column.kind in LEVELLED else "a number"
        for _ in range(MOST_VALUES):
            rows, different = _unread(self.table[name], how, column)
            if not rows:
                break

            def level(text: str, how: Recoding = how) -> None:
                if text:
                    editing.values({column.name: how}, self.dictionary, [], [f"{column.name}:{text}"], [], {})

            self.say(f"{column.name}: {strays(rows, different)} not {which}.")
            text = self.prompt("VALUE=LEVEL, VALUE= for one that is missing; nothing leaves them", "", check=level)
            if not text:
                break
            pair = [f"{column.name}:{text}"]
            how = editing.values({column.name: how}, self.dictionary, [], pair, [], {})[column.name]
        if column.kind in NUMERIC and column.unit and not how.unit:
            how = self._unit(column, name, how)
        if how.words:
            self.values[column.name] = how

    def _unit(self, column: Column, name: str, how: Recoding) -> Recoding:
        """Ask for the file's unit where most values are impossible in the dictionary's."""
        values = column.compare(recoded(self.table[name], how, column))[0].dropna()
        low, high = column.span
        outside = int((~values.between(low, high)).sum())
        if 2 * outside <= len(values):
            return how
        self.say(f"{column.name}: {outside} of {len(values)} values are outside {low:g} to {high:g} {column.unit}.")

        def known(text: str) -> None:
            if text and analyte_of(text, name, column) is None:
                conversion(text, column.unit)  # which says why

        unit = self.prompt("The file's unit, as mmol/L; nothing leaves it", "", check=known)
        return replace(how, unit=unit, analyte=analyte_of(unit, name, column) or "") if unit else how

    # -- the rest -------------------------------------------------------------------------------------------------
    def unused(self, ignore: Sequence[str]) -> None:
        left = [name for name in self.free if name not in ignore]
        self.ignore = tuple(ignore)
        if left and self.yes(f"Not in the study: {', '.join(left)}. Leave them out?"):
            self.ignore = (*ignore, *left)

    def persons(self, person: str) -> None:
        name = self.there.get(person)
        if name is not None and (rows := int(self.table[name].duplicated().sum())):
            self.say(f"{rows} rows of persons who have several: which counts is said under [persons] of the mapping.")


def _before(known: Steps, proposal: Steps) -> Steps:
    """The steps already declared, and the proposed ones for columns that those do not make."""
    follow = known.follow_up
    if (
        follow is None
        and proposal.follow_up
        and not {proposal.follow_up.time, proposal.follow_up.event} & {*known.made}
    ):
        follow = proposal.follow_up
    derive = {name: formula for name, formula in proposal.derive.items() if name not in known.made} | dict(known.derive)
    return Steps(dates={**proposal.dates, **known.dates}, derive=derive, follow_up=follow)


def _named(column: Column) -> str:
    more = ", ".join(part for part in (column.label, column.unit or ", ".join(map(str, column.levels))) if part)
    return f"{column.name} ({more})" if more else column.name


def _dated(follow: FollowUp) -> list[str]:
    return [name for name in (follow.start, follow.end, follow.last) if name]


def _among(forms: Sequence[str]) -> dict[str, str]:
    words = {"%d": "day", "%m": "month", "%Y": "year"}
    return {form: "".join(words.get(f"%{part[:1]}", part[:1]) + part[1:] for part in form.split("%")) for form in forms}


def _in_file(names: Sequence[str], there: Sequence[str], rule: str) -> None:
    absent = [name for name in names if name not in there]
    if absent:
        raise UsageRefusal(f"{rule}: {', '.join(there)}", given=", ".join(map(repr, absent)), next_step="Type one.")


def _yes_or_no(text: str) -> None:
    if text.lower() not in ("yes", "y", "no", "n"):
        raise UsageRefusal("it must be yes or no", given=repr(text)[:60])


def _day(text: str) -> None:
    if text:
        FollowUp(time="t", start="s", end="e", unit="days", until=text)


def _unread(values: pd.Series, how: Recoding, column: Column) -> tuple[int, int]:
    """Rows, and different values in them, that are no value of the column as they are read."""
    import pandas as pd

    try:
        read = recoded(values, how, column)
    except Refusal:
        read = values
    # Bounds and missing values are no question of how it is read: `data check` speaks of those.
    known = replace(column, missing="level").compare(read)[0].notna()
    text = values.astype("string").str.strip().fillna("")
    codes = [code for code in column.missing_codes if isinstance(code, float)]
    gone = text.isin(["", "NA", "NaN", "nan", *column.missing_codes, *(v for v, to in how.levels.items() if not to)])
    wrong = ~known & ~gone & ~pd.to_numeric(text, errors="coerce").isin(codes)
    return int(wrong.sum()), int(text[wrong].nunique())
