"""A mapping proposed from the names, units and levels of the dictionary; nothing of it is applied unasked.

Of the file's values only words that anybody knows are repeated (yes, männlich, unknown): one that is not in this file
of ours is counted and left to the steward.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from shared.errors import Refusal
from shared.plans.dictionary import LEVELLED, NUMERIC
from site_agent.records.mapping.declared import DateForm, FollowUp, Recoding, Steps
from site_agent.records.mapping.evaluating import blank
from site_agent.records.mapping.preparing import dates
from site_agent.records.mapping.recoding import with_point
from site_agent.records.mapping.units import conversion, known, known_spelling

if TYPE_CHECKING:
    from shared.plans.dictionary import Column, Dictionary

__all__ = ["Proposal", "analyte_of", "date_forms", "no_dates", "proposed", "recoding_of", "strays", "suggestions"]

FORMS = ("iso", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d.%m.%Y %H:%M")
# 8507 and 8532 are OMOP's concepts of male and female.
WORDS: Sequence[frozenset[str]] = tuple(
    frozenset(words.split())
    for words in (
        "8507 m male man men mann männlich maennlich masculin masculino homme hombre uomo",
        "8532 f w female woman women frau weiblich feminin féminin femenino femme mujer donna",
        "yes y ja j oui o si sí true wahr vrai positive positiv",
        "no n nein non false falsch faux negative negativ",
    )
)
UNKNOWN = frozenset(
    [
        "na",
        "n/a",
        "n.a.",
        "k.a.",
        "nan",
        "null",
        "none",
        "unknown",
        "unbekannt",
        "inconnu",
        "missing",
        "fehlt",
        "?",
        ".",
        "-",
        "--",
        "nd",
        "n.d.",
        "n.b.",
    ]
)
_DAY = re.compile(r"(\d{1,4})[-./](\d{1,2})[-./](\d{1,4})(?:[ T]00:00(?::00(?:\.0+)?)?)?")
_NO_YEARS = ("2099", "2199", "2299", "2999", "9999")
_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("alter", "âge", "edad", "age_years"), "age"),
    **dict.fromkeys(("geschlecht", "gender", "gender_concept_id", "sexe", "sexo"), "sex"),
    **dict.fromkeys(("rrsys", "rr_syst", "systolic", "sysbp", "pas", "trestbps"), "sbp"),
    **dict.fromkeys(("cholesterin", "cholesterol", "cholesterol_total", "tc"), "chol"),
    **dict.fromkeys(("gewicht", "poids", "wt"), "weight"),
    **dict.fromkeys(("größe", "groesse", "taille", "ht"), "height"),
    **dict.fromkeys(
        ("patient", "patient_id", "pat_id", "pid", "person_id", "fallnummer", "record_id", "subject_id", "id"), "person"
    ),
}
_ANALYTE_NAMES: Mapping[str, str] = {
    **{
        "chol": "cholesterol",
        "ldl": "cholesterol",
        "hdl": "cholesterol",
        "trig": "triglycerides",
        "tg": "triglycerides",
    },
    **{"gluc": "glucose", "crea": "creatinine", "krea": "creatinine", "urea": "urea", "bun": "urea nitrogen"},
    **{"uric": "uric acid", "bili": "bilirubin", "lact": "lactate", "hba1c": "hba1c", "hemoglobin": "hemoglobin"},
    **{"haemoglobin": "hemoglobin", "calcium": "calcium", "phosph": "phosphate", "magnes": "magnesium"},
}


_INDEX = r"index|admi|aufn|baseline|incl|visit|entry|besuch|entree|entrée"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A mapping that was not asked for yet.

    Args:
        mapped: as `site_agent.records.mapping.document.text` takes it.
        open: what the steward must say: column to a question, in words.
    """

    mapped: Mapping[str, Any]
    open: Mapping[str, str] = field(default_factory=dict)


def suggestions(names: Iterable[str], dictionary: Dictionary) -> dict[str, str]:
    """Names of a file that look like a dictionary column, by name: a proposal for `data map`, never applied unasked.

    >>> from shared.plans.dictionary import Column, Dictionary
    >>> suggestions(["SBP (mmHg)", "ward"], Dictionary(name="m", version=1, columns=(
    ...     Column(name="sbp", kind="continuous", lower=70, upper=270),)))
    {'SBP (mmHg)': 'sbp'}
    """
    open_names = {column.name.lower(): column.name for column in dictionary.columns}
    labels = {column.label.lower(): column.name.lower() for column in dictionary.columns if column.label}
    out: dict[str, str] = {}
    for name in names:
        bare = re.sub(r"\(.*?\)|\[.*?\]", "", name).strip().lower()
        plain = bare.replace(" ", "_")
        other = _NAMES.get(plain, labels.get(bare, ""))
        near = [other] if other in open_names else difflib.get_close_matches(plain, list(open_names), n=1, cutoff=0.8)
        if near:
            out[name] = open_names.pop(near[0])
    return out


def proposed(
    table: pd.DataFrame, dictionary: Dictionary, columns: Mapping[str, str], ignore: Sequence[str] = ()
) -> Proposal:
    """Proposed mapping of an extract that does not match the dictionary, with the questions it leaves open.

    Args:
        table: the extract, under the file's own column names.
        columns, ignore: the columns already mapped (file's name to dictionary's), and those to leave out.
    """
    repeated, dictionary = dictionary.repeated, dictionary.source
    wanted = {column.name: column for column in dictionary.columns}
    columns = dict(columns)
    taken = {*columns.values(), *(name for name in table.columns if name in wanted and name not in columns)}
    free = [name for name in table.columns if name not in columns and name not in wanted and name not in ignore]
    columns |= {name: to for name, to in suggestions(free, dictionary).items() if to not in taken}
    values: dict[str, Recoding] = {}
    questions: dict[str, str] = {}
    for name in table.columns:
        to = columns.get(name, name)
        if to in wanted and name not in ignore and wanted[to].kind != "person":
            recoding, question = recoding_of(table[name], name, wanted[to])
            if recoding.words:
                values[to] = recoding
            if question:
                questions[to] = question
    free = [name for name in free if name not in columns]
    found, unclear = _dates(table, free)
    questions |= unclear
    there = {columns.get(name, name) for name in table.columns}
    lacking = [name for name in wanted if name not in there]
    derive = _age(found, wanted, lacking)
    follow = _follow_up(found, dictionary, lacking)
    used = {name for name in found if any(name in formula for formula in derive.values())}
    used |= {follow.start, follow.end, follow.last} if follow else set()
    made = {*derive, *((follow.time, follow.event) if follow else ())}
    questions |= {
        name: "made of others? Name the column, or write its formula under [derive]"
        for name in lacking
        if name not in made
    }
    questions |= {
        name: "not in the study: under ignore, if it is not needed" for name in free if name not in {*used, *unclear}
    }
    if dictionary.person in there and repeated is None:
        persons = next(table[name] for name in table.columns if columns.get(name, name) == dictionary.person)
        if rows := int(persons.duplicated().sum()):
            questions[str(dictionary.person)] = (
                f"{rows} rows of persons who have several: say under [persons] which count"
            )
    steps = Steps(dates={name: found[name] for name in found if name in used}, derive=derive, follow_up=follow)
    return Proposal(
        mapped={"columns": columns, "ignore": tuple(ignore), "values": values, "steps": steps}, open=questions
    )


def date_forms(values: pd.Series, name: str) -> list[str]:
    """The forms in which all of (n,) values can be read as dates: ``file`` where the file says that they are.

    >>> date_forms(pd.Series(["03.04.2024"]), "seen"), date_forms(pd.Series(["03/04/2024"]), "seen")
    (['%d.%m.%Y'], ['%d/%m/%Y', '%m/%d/%Y'])
    """
    if blank(values).all() or values.dtype.kind in "iufb":
        return []
    if values.dtype.kind == "M":
        return ["file"]
    gone = no_dates(values)
    if values[~blank(values)].astype("string").str.strip().isin(gone).all():
        gone = ()  # then the form is that of the texts which stand for none
    fit = []
    for form in ("file", *FORMS):
        try:
            dates(values, DateForm(form=form, missing=gone), name)
        except Refusal:
            continue
        fit.append(form)
    return ["file"] if "file" in fit else fit


def no_dates(values: pd.Series) -> tuple[str, ...]:
    """Texts among (n,) values that anybody knows to stand for no date, as they are written there.

    >>> no_dates(pd.Series(["31.12.9999", "17.05.2024", "00.00.0000", "k.A."]))
    ('00.00.0000', '31.12.9999', 'k.A.')
    """
    texts = values.astype("string").str.strip()
    return tuple(sorted(text for text in texts[~blank(values)].unique() if _is_no_date(text)))


def recoding_of(values: pd.Series, name: str, column: Column) -> tuple[Recoding, str]:
    """Proposed recoding of a column, and the question that only the steward can answer; blank for none."""
    text = values.astype("string").str.strip()
    known_text = text[~blank(values)]
    if column.kind in LEVELLED:
        return _levels(known_text, column)
    missing = {word: "" for word in _unknown(known_text)} if column.missing != "refuse" else {}
    rest = known_text[~known_text.isin(list(missing))]
    unread = pd.to_numeric(rest, errors="coerce").isna()
    decimal: Any = ""
    question = ""
    if unread.any():
        read = pd.to_numeric(with_point(rest), errors="coerce")
        if read.notna().all():
            decimal = ","
        else:
            lost = int(read.isna().sum())
            which = "1 row holds no number: what does it" if lost == 1 else f"{lost} rows hold no number: what do they"
            question = f"{which} say? (--level {column.name}:VALUE=)"
    unit, analyte = _unit(name, column)
    return Recoding(decimal=decimal, levels=missing, unit=unit, analyte=analyte), question


def analyte_of(unit: str, name: str, column: Column) -> str | None:
    """Analyte by which a file's unit converts to the column's: blank if the units suffice, None if none is known."""
    said = f"{column.name} {column.label} {name}".lower()
    for analyte in ("", *(of for part, of in _ANALYTE_NAMES.items() if part in said)):
        try:
            conversion(unit, column.unit, analyte)
        except Refusal:
            continue
        return analyte
    return None


def strays(rows: int, values: int) -> str:
    """How many rows hold values that are not what they should be, as a sentence begins.

    >>> strays(1, 1), strays(12, 2)
    ('1 row holds a value that is', '12 rows hold 2 values that are')
    """
    which = "a value that is" if values == 1 else f"{values} values that are"
    return f"{rows} row{'s hold' if rows > 1 else ' holds'} {which}"


# -- inside -----------------------------------------------------------------------------------------------------
def _is_no_date(text: str) -> bool:
    parts = _DAY.fullmatch(text)
    if parts is None:
        return text.lower() in UNKNOWN
    *days, year = sorted(parts.groups(), key=len)
    shown = sorted(map(int, days))
    return (year, shown) == ("0000", [0, 0]) or (year in _NO_YEARS and shown in ([1, 1], [12, 31]))


def _unknown(text: pd.Series) -> list[str]:
    return sorted(word for word in text.unique() if word.lower() in UNKNOWN)


def _levels(text: pd.Series, column: Column) -> tuple[Recoding, str]:
    levels = {str(level) for level in column.levels}
    stray = sorted(word for word in text.unique() if word not in levels)
    said = {word: "" for word in stray if word.lower() in UNKNOWN and column.missing != "refuse"}
    meant = {str(level): _group(str(level)) for level in column.levels}
    if column.levels == (0, 1):
        meant = {"1": 2, "0": 3}  # yes and no
    for word in stray:
        group = _group(word)
        same = [
            level for level, of in meant.items() if (group is not None and of == group) or level.lower() == word.lower()
        ]
        if len(same) == 1:
            said[word] = same[0]
    left = [word for word in stray if word not in said and not _is_level(word, column)]
    rows = int(text.isin(left).sum())
    question = (
        f"{strays(rows, len(left))} none of {', '.join(sorted(levels))}: which is which? "
        f"(--level {column.name}:VALUE=LEVEL)"
        if left
        else ""
    )
    if said and any(said.values()):  # what stays a level is named as well, so that nothing can pass for another
        said |= {word: word for word in sorted(set(text.unique()) & levels) if word in said.values()}
    return Recoding(levels=said), question


def _is_level(word: str, column: Column) -> bool:
    return bool(column.compare(pd.Series([word]))[0].notna().all())


def _group(word: str) -> int | None:
    return next((k for k, group in enumerate(WORDS) if word.lower() in group), None)


def _unit(name: str, column: Column) -> tuple[str, str]:
    """The unit that a column's name has in brackets, where it is another than the dictionary's and converts."""
    found = re.search(r"[(\[]\s*([^)\]]+?)\s*[)\]]", name)
    if column.kind not in NUMERIC or not found or not column.unit or not known(found[1]):
        return "", ""
    unit = found[1]
    if known_spelling(unit) == known_spelling(column.unit):
        return "", ""
    analyte = analyte_of(unit, name, column)
    return ("", "") if analyte is None else (unit, analyte)


def _dates(table: pd.DataFrame, names: Sequence[str]) -> tuple[dict[str, DateForm], dict[str, str]]:
    """Columns whose values are dates in one form, and those that could be of two."""
    found, unclear = {}, {}
    for name in names:
        fit = date_forms(table[name], name)
        if len(fit) == 1:
            found[name] = DateForm(form=fit[0], missing=no_dates(table[name]))
        elif fit:
            unclear[name] = f"dates, written as {' or '.join(fit)}? (--date {name}=FORM)"
    return found, unclear


def _follow_up(found: Mapping[str, DateForm], dictionary: Dictionary, lacking: Sequence[str]) -> FollowUp | None:
    """Time and event, where three columns of dates look like their start, the event and the last contact."""
    times = [column for column in dictionary.columns if column.kind == "time" and column.name in lacking]
    ends = [name for name in found if re.search(r"event|death|died|tod|deces|décès|muerte", name.lower())]
    last = [name for name in found if re.search(r"end_|last|contact|kontakt|censor|exit|letzt", name.lower())]
    starts = [name for name in found if re.search(_INDEX, name.lower()) and name not in (*ends, *last)]
    unit = {"d": "days", "wk": "weeks", "mo": "months", "a": "years"}
    if [len(times), len(starts), len(ends), len(last)] != [1, 1, 1, 1] or known_spelling(times[0].unit) not in unit:
        return None
    [time] = times
    if time.event not in ("", *lacking) or ends == last:
        return None
    spelled = unit[known_spelling(time.unit)]
    return FollowUp(time=time.name, event=time.event, start=starts[0], end=ends[0], last=last[0], unit=spelled)


def _age(found: Mapping[str, DateForm], wanted: Mapping[str, Column], lacking: Sequence[str]) -> dict[str, str]:
    """An age at the index date, where two columns of dates look like birth and index."""
    ages = [name for name in lacking if wanted[name].kind in NUMERIC and ("age" in name.lower().split("_"))]
    births = [name for name in found if re.search(r"birth|geb|dob|naiss|nacim", name.lower())]
    index = [name for name in found if name not in births and re.search(_INDEX, name.lower())]
    if len(ages) != 1 or len(births) != 1 or len(index) != 1:
        return {}
    years = "completed years" if wanted[ages[0]].kind == "integer" else "years"
    return {ages[0]: f"{years} between [{births[0]}] and [{index[0]}]"}
