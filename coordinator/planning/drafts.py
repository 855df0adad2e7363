"""Everything that is wrong with a draft of a plan, at once: each fault with its place and its fix.

A plan is read strictly, and reading stops at the first fault. A lead who writes one wants them all. So a draft that
cannot be read is taken apart here: each part is read by itself, each fault is told, and is then mended as the fix
says, or by a placeholder, until the part can be read; what is wrong behind it comes to light as well. The mended plan
is good for looking further and for nothing else: only a plan that was read as it stands is ever signed.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from shared.errors import Refusal
from shared.mechanisms.kinds import KINDS as MECHANISMS
from shared.mechanisms.kinds import kind as mechanism_kind
from shared.plans.dictionary import KINDS, LEVELLED, NUMERIC, Column, kind_step, nearest_kind
from shared.plans.plan import NEEDED, Budget, Expected, Floors, PrivateTraining, StudyPlan, Training, Wave, read_section
from shared.plans.repeated_rows import released_columns
from shared.terminal import ChecklistLine

__all__ = ["faults"]

_LIKE = {
    **dict.fromkeys(("type", "class", "dtype"), "kind"),
    **dict.fromkeys(("min", "minimum", "low", "from", "least"), "lower"),
    **dict.fromkeys(("max", "maximum", "high", "to", "most", "bound"), "upper"),
    **dict.fromkeys(("categories", "values", "choices", "options", "level", "codes"), "levels"),
    **dict.fromkeys(("description", "meaning", "title", "text"), "label"),
    **dict.fromkeys(("digits", "precision", "round"), "decimals"),
    **dict.fromkeys(("na", "nan", "missings", "missing_values", "missing_value"), "missing_codes"),
    "units": "unit",
}
"""Words of other tools for the settings of a column."""
_SECTIONS: Mapping[str, Any] = {
    "training": Training,
    "budget": Budget,
    "floors": Floors,
    "private": PrivateTraining,
    "expected": Expected,
}
_INSTEAD: Mapping[str, Mapping[str, Any]] = {
    "release": {"mechanism": "latent_noise", "w": 0.005},
    "budget": tomllib.loads("epsilon = 8.0\ndelta = 1e-6"),  # of no release: it stands in for what cannot be read
    "column": {"lower": 0.0, "upper": 1.0, "kind": "binary", "levels": [0, 1]},
}
"""Placeholders for parts that cannot be read, so that the rest can still be checked."""
_TRIES = 12
_VAGUE = ("Correct the plan.", "Correct the dictionary of the plan.")


def faults(text: str, *, today: dt.date, recipient: str = "") -> tuple[StudyPlan | None, tuple[ChecklistLine, ...]]:
    """The faults of a draft, one line each, and the plan as it would be without them; None where nothing can be made.

    Args: as of `coordinator.planning.review.review`.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fix = "Correct that place: quote texts, write lists in [ ], and each name once in its table."
        return None, (ChecklistLine(name="file", state="fail", detail=f"it must be TOML ({error})", fix=fix),)
    lines: list[ChecklistLine] = []
    known = [item.name for item in fields(StudyPlan)]
    for key in [key for key in given if key not in known]:
        near = difflib.get_close_matches(key, known, n=1)
        fix = f"Did you mean {near[0]!r}?" if near else f"Leave it out. Known: {', '.join(known)}."
        lines.append(_line("plan", f"{key!r} is no part of a plan", fix))
        value = given.pop(key)
        if near and near[0] not in given:
            given[near[0]] = value
    for name, example in NEEDED.items():
        if name not in given:
            lines.append(_line("plan", f"{name} is missing", f"Add {example}."))
    lines += _top(given, today, recipient)
    lines += _columns(given)
    lines += _release(given)
    for name, kind in _SECTIONS.items():
        if name in given:
            lines += _section(given, name, kind)
    lines += _waves(given, today)
    return _whole(given, lines), tuple(lines)


def _line(name: str, detail: str, fix: str) -> ChecklistLine:
    return ChecklistLine(name=name, state="fail", detail=detail, fix=fix)


def _line_of_refusal(name: str, refusal: Refusal) -> ChecklistLine:
    """A refusal as a line: its rule without the place that the line names, and a fix that says what to change."""
    place = re.match(r"column '([^']*)':? |\[\w+\] ", refusal.must)
    named = place is not None and (place[1] is None or f"column {place[1]}" == name)
    rule = refusal.must[place.end() :] if place and named else refusal.must
    fix = refusal.next_step
    if not fix or fix in _VAGUE:
        listed = re.search(r"one of ([\w, ]+)", rule)
        near = difflib.get_close_matches(refusal.given.strip("'"), listed[1].split(", "), n=1) if listed else []
        fix = f"Did you mean {near[0]!r}?" if near else "Change it so that this holds, or leave it out if it may be."
    return _line(name, rule + (f" (got {refusal.given})" if refusal.given else ""), fix)


def _top(given: dict[str, Any], today: dt.date, recipient: str) -> list[ChecklistLine]:
    """Names, texts and dates that stand by themselves."""
    instead = {"study": "study", "title": "title", "purpose": "purpose", "coordinator": recipient or "hub"}
    lines = []
    for name, value in instead.items():
        if name in given and not isinstance(given[name], str):
            lines.append(
                _line("plan", f"{name} must be text (got {type(given[name]).__name__})", f"Quote it: {name} =")
            )
        if not isinstance(given.get(name), str):
            given[name] = value
    if "version" in given and (not isinstance(given["version"], int) or isinstance(given["version"], bool)):
        lines.append(_line("plan", "version must be a whole number", "Write version = 1."))
    if not isinstance(given.get("version"), int):
        given["version"] = 1
    if "expires" in given and not _is_date(given["expires"]):
        lines.append(_line("plan", "expires must be a date", "Write it without quotes, as in expires = 2028-12-31."))
    if not _is_date(given.get("expires")):
        given["expires"] = today + dt.timedelta(days=365)
    estimands = given.get("estimands", {})
    if not (isinstance(estimands, dict) and all(isinstance(one, str) for one in estimands.values())):
        fix = 'Write [estimands] and below it: adjusted = "logistic(died) ~ age/10".'
        lines.append(_line("estimands", "planned analyses must be names with formulas in quotes", fix))
        given["estimands"] = {}
    return lines


def _is_date(value: Any) -> bool:
    if type(value) is dt.date:
        return True
    try:
        return isinstance(value, str) and bool(dt.date.fromisoformat(value))
    except ValueError:
        return False


def _columns(given: dict[str, Any]) -> list[ChecklistLine]:
    """Faults of the dictionary, column by column; each column is left as it can be read."""
    lines = []
    dictionary = given.get("dictionary")
    if "dictionary" in given and not isinstance(dictionary, dict):
        lines.append(_line("dictionary", "[dictionary] must be a table", f"Write {NEEDED['dictionary']}."))
    dictionary = dict(dictionary) if isinstance(dictionary, dict) else {}
    lines += _repeated(dictionary)
    for key in [key for key in dictionary if key not in ("name", "version", "columns", "repeated")]:
        where = "Columns stand as [dictionary.columns.NAME]." if isinstance(dictionary[key], dict) else "Leave it out."
        lines.append(_line("dictionary", f"{key!r} is no part of a dictionary", where))
        del dictionary[key]
    columns = dictionary.get("columns")
    if not isinstance(columns, dict) or not columns:
        if "dictionary" in given:
            fix = 'Write one table for each: [dictionary.columns.age], kind = "integer", lower = 18, upper = 110.'
            lines.append(_line("dictionary", "it must have columns", fix))
        columns = {"placeholder": _INSTEAD["column"]}
    mended = []
    for name, column in columns.items():
        found, body = _column(name, column)
        lines += found
        mended.append(body)
    given["dictionary"] = {"name": "draft", "version": 1, **dictionary, "columns": mended}
    return lines


def _repeated(dictionary: dict[str, Any]) -> list[ChecklistLine]:
    """Make the columns those that are released, where some are repeated; a fault leaves each of them once."""
    columns = dictionary.get("columns")
    columns = columns if isinstance(columns, dict) and all(isinstance(one, dict) for one in columns.values()) else {}
    if "repeated" not in dictionary and not any("repeated" in one for one in columns.values()):
        return []
    try:
        found = released_columns({**dictionary, "columns": [{"name": name, **one} for name, one in columns.items()]})
    except Refusal as refusal:
        dictionary.pop("repeated", None)
        dictionary["columns"] = {
            name: {key: value for key, value in one.items() if key != "repeated"} for name, one in columns.items()
        }
        return [_line_of_refusal("dictionary", refusal)]
    columns = {one["name"]: {key: value for key, value in one.items() if key != "name"} for one in found["columns"]}
    dictionary |= {"columns": columns} | ({"repeated": found["repeated"]} if "repeated" in found else {})
    return []


def _column(name: str, given: Any) -> tuple[list[ChecklistLine], dict[str, Any]]:
    where = f"column {name}"
    known = {item.name for item in fields(Column)}
    if not isinstance(given, dict):
        fix = f'Write [dictionary.columns.{name}] and below it: kind = "binary".'
        return [_line(where, "a column must be a table of settings", fix)], {"name": name, "kind": "binary"}
    lines, body = [], {"name": name, **given}
    for key in [key for key in body if key not in known]:
        near = _LIKE.get(key.lower()) or next(iter(difflib.get_close_matches(key, known, n=1)), "")
        fix = f"Did you mean {near!r}?" if near else f"Leave it out. Known: {', '.join(sorted(known - {'name'}))}."
        lines.append(_line(where, f"{key!r} is no setting of a column", fix))
        value = body.pop(key)
        if near and near not in body:
            body[near] = value
    if body.get("kind") not in KINDS:
        near = nearest_kind(body.get("kind"))
        shown = f"kind must be one of {', '.join(KINDS)} (got {body.get('kind', 'none')!r})"
        lines.append(_line(where, shown, kind_step(body.get("kind"))))
        body["kind"] = near or ("nominal" if "levels" in body else "continuous" if "upper" in body else "binary")
    for _ in range(_TRIES):
        try:
            Column.from_canonical(body)
            return lines, body
        except Refusal as refusal:
            lines.append(_line_of_refusal(where, refusal))
            if not _mend_column(body, refusal.must.rpartition("': ")[2]):
                break
    return lines, {"name": name if name.isidentifier() else "placeholder", "kind": "binary"}


def _mend_column(body: dict[str, Any], rule: str) -> bool:
    """Take a fault out of a column's settings; False where it is not known how."""
    before = dict(body)
    if "bounds lower and upper" in rule or "lower must be below" in rule or "whole numbers" in rule:
        body["lower"], body["upper"] = 0, 1
    elif "start at 0" in rule:
        body["lower"] = 0
    elif "levels" in rule or "coded 0 and 1" in rule:
        _ = body.pop("levels", None) if body["kind"] in NUMERIC else body.update(levels=[0, 1])
    else:
        named = re.match(r"(\w+) must", rule)
        if named and named[1] != "name":
            body.pop(named[1], None)
    if body["kind"] in LEVELLED and body["kind"] not in ("binary", "event"):
        body.setdefault("levels", [0, 1])
    return body != before


def _release(given: dict[str, Any]) -> list[ChecklistLine]:
    """Faults of [release]: the mechanism first, by whose settings the rest is read."""
    release = given.get("release")
    if "release" not in given or not isinstance(release, dict):
        absent = (
            [] if "release" not in given else [_line("[release]", "it must be a table", f"Write {NEEDED['release']}.")]
        )
        given["release"] = dict(_INSTEAD["release"])
        return absent
    lines = []
    name = release.get("mechanism", "latent_noise")
    try:
        mechanism_kind(name)
    except Refusal as refusal:
        lines.append(_line_of_refusal("[release]", refusal))
        near = difflib.get_close_matches(re.sub(r"\W+", "_", str(name)), list(MECHANISMS), n=1)
        name = near[0] if near else "latent_noise"
    found = mechanism_kind(name)
    given["release"] = {**found.today(release), **release, "mechanism": name}
    return lines + _section(given, "release", found)


def _section(given: dict[str, Any], name: str, kind: Any) -> list[ChecklistLine]:
    """Faults of a table of settings; it is left as it can be read."""
    if given[name] is None:
        return []
    body = dict(given[name]) if isinstance(given[name], Mapping) else given[name]
    lines, body = _settled(f"[{name}]", body, kind, name, _INSTEAD.get(name, {}))
    given[name] = body
    return lines


def _settled(
    where: str, body: Any, kind: Any, section: str, instead: Mapping[str, Any]
) -> tuple[list[ChecklistLine], dict[str, Any] | None]:
    lines: list[ChecklistLine] = []
    names = [item.name for item in fields(kind)]
    for _ in range(_TRIES):
        try:
            read_section(kind, body, section)
            return lines, body
        except Refusal as refusal:
            lines.append(_line_of_refusal(where, refusal))
            rule, given = refusal.must, refusal.given.strip("'")
        except (TypeError, ValueError) as error:
            absent = re.findall(r"'(\w+)'", str(error)) if isinstance(error, TypeError) else []
            wrong = f"{', '.join(absent)} is missing" if absent else "a setting has another type"
            lines.append(
                _line(where, wrong, f"Add {' and '.join(f'{n} = …' for n in absent)}." if absent else "Correct it.")
            )
            rule, given = " ".join(absent), ""
        if not isinstance(body, dict):
            break
        culprit = given if given in body else next((word for word in re.findall(r"\w+", rule) if word in names), "")
        before = dict(body)
        value = body.pop(culprit, None)
        near = [] if culprit in names else difflib.get_close_matches(culprit, names, n=1)
        if near and near[0] not in body:
            body[near[0]] = value  # as the fix says
        elif culprit in instead:
            body[culprit] = instead[culprit]
        if body == before:
            break
    return lines, dict(instead) or None


def _waves(given: dict[str, Any], today: dt.date) -> list[ChecklistLine]:
    """Faults of the calendar."""
    waves = given.get("waves")
    lines: list[ChecklistLine] = []
    if "waves" in given and not (isinstance(waves, list) and all(isinstance(wave, dict) for wave in waves)):
        lines.append(_line("waves", "waves must be tables", f"Write {NEEDED['waves']}."))
        waves = None
    mended = []
    for place, wave in enumerate(waves or [{}], start=1):
        body = dict(wave)
        for name in ("opens", "closes"):
            if not _is_date(body.get(name)):
                if waves:
                    fix = f"Write {name} = {today}, without quotes."
                    lines.append(_line(f"wave {place}", f"{name} must be a date", fix))
                body[name] = body["closes"] if name == "opens" and _is_date(body.get("closes")) else today
        if not isinstance(body.get("number"), int):
            if waves:
                lines.append(_line(f"wave {place}", "a wave must have its number", f"Write number = {place}."))
            body["number"] = place
        found, settled = _settled(f"wave {place}", body, Wave, "waves", {"opens": today, "closes": today})
        lines += found
        mended.append({"number": place, "opens": today, "closes": today} if settled is None else settled)
    given["waves"] = mended
    return lines


def _whole(given: dict[str, Any], lines: list[ChecklistLine]) -> StudyPlan | None:
    """Plan of the mended parts; adds lines on faults between them as far as they can be mended. None if they cannot."""
    ways: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...] = (
        ("study must be a plain word", lambda plan: plan.update(study="study")),
        ("coordinator must be a plain word", lambda plan: plan.update(coordinator="hub")),
        ("version must be at least", lambda plan: plan.update(version=1)),
        ("title and purpose", lambda plan: plan.update(title="title", purpose="purpose")),
        ("posture", lambda plan: plan.pop("posture", None)),
        ("returning is unknown", lambda plan: plan.pop("returning", None)),
        ("several waves", lambda plan: plan.update(returning="refresh")),
        ("waves must be numbered", lambda plan: [wave.update(number=k) for k, wave in enumerate(plan["waves"], 1)]),
        ("reference", lambda plan: plan.pop("reference", None)),
        ("holdout", lambda plan: plan.pop("holdout", None)),
        ("training", lambda plan: plan.pop("training", None)),
        ("federated", lambda plan: plan.pop("federated", None)),
        ("private", lambda plan: plan.pop("private", None)),
        ("flow", lambda plan: plan.pop("flow", None)),
        ("its event must be", lambda plan: [c.pop("event", None) for c in plan["dictionary"]["columns"]]),
    )
    for _ in range(_TRIES):
        try:
            return StudyPlan.from_canonical(given)
        except Refusal as refusal:
            lines.append(_line_of_refusal("plan", refusal))
            way = next((mend for words, mend in ways if words in refusal.must), None)
            if way is None:
                return None
            before = repr(given)
            way(given)
            if repr(given) == before:
                return None
    return None
