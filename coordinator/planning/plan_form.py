"""A plan as a form: the TOML that a lead would write by hand, and what review says of it.

The workbench's designer shows the form, `coordinator.planning.interview` asks for it line by line. Nothing is kept or
signed here: the lead saves the file, and signs it on the command line, where the keys are.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shared.errors import Refusal
from shared.plans.dictionary import NUMERIC
from shared.terminal import ChecklistLine

__all__ = ["BLANK", "COLUMN_FIELDS", "MECHANISMS", "first_form", "judged", "toml_of"]

COLUMN_FIELDS = ("name", "kind", "label", "unit", "lower", "upper", "levels")
BLANK = 3  # empty lines of the table of columns
MECHANISMS = {
    "moments": "sums with noise for the planned regressions; everyone is covered, and no row leaves",
    "tables": "counts with noise, and rows drawn from them; everyone is covered",
    "latent_noise": "synthetic rows drawn through a flow, whose own fit ε does not cover",
}
"""Mechanisms that the form can plan, by their name in a plan."""


def first_form(*, coordinator: str, today: dt.date) -> dict[str, Any]:
    """Initial values of the plan form.

    Args:
        coordinator: name of the recipient; blank where none is known yet.
        today: the day on which it is opened.
    """
    columns = [
        {"name": "person", "kind": "person", "label": "patient"},
        {"name": "age", "kind": "integer", "label": "age at admission", "unit": "years", "lower": "18", "upper": "110"},
        {"name": "sex", "kind": "binary", "label": "sex", "levels": "female, male"},
        {"name": "died", "kind": "binary", "label": "death within 30 days"},
    ]
    return {
        "study": "stroke",
        "title": "One line that says what the study is",
        "purpose": "What the releases are for, in words a data steward can hold against the ethics approval.",
        "eligibility": "Everyone admitted with a first event between two dates, aged 18 or over.",
        "coordinator": coordinator or "tributary-hub",
        "expires": f"{today + dt.timedelta(days=548)}",
        "mechanism": "moments",
        "posture": "local",
        "epsilon": "1",
        "w": "",
        "cap": "2",
        "delta": "1e-6",
        "waves": "4",
        "first": f"{today + dt.timedelta(days=30)}",
        "every": "91",
        "open": "28",
        "until": f"{today + dt.timedelta(days=548 + 5 * 365)}",
        "keep": "The releases and the answers made of them, so that what was published can be checked.",
        "readers": "The study lead, and analysts with a token of the study.",
        "sites": "",
        "persons": "",
        "estimands": "death = logistic(died) ~ age/10 + C(sex)",
        "columns": [{name: one.get(name, "") for name in COLUMN_FIELDS} for one in columns],
    }


def toml_of(form: Mapping[str, Any]) -> str:
    """Plan of a form, as TOML; a value that cannot be read is written as it was typed, for `review` to report.

    Args:
        form: as of `first_form`: texts by name, and ``columns``, a list of them.

    >>> form = first_form(coordinator="hub", today=dt.date(2026, 1, 1))
    >>> from shared.plans.plan import StudyPlan
    >>> plan = StudyPlan.from_toml(toml_of(form))
    >>> plan.study, len(plan.waves), plan.dictionary.column("sex").levels
    ('stroke', 4, ('female', 'male'))
    """
    way = form["mechanism"].strip()
    posture = form["posture"] if way == "latent_noise" else "private"
    released = _rows_priced(form)
    if way != "latent_noise":
        released = [f"mechanism = {_text(way)}", f"epsilon = {_number(form['epsilon'])}"]
    if way == "moments":
        released += _model(form)
    return _written(form, posture, released)


def _rows_priced(form: Mapping[str, Any]) -> list[str]:
    priced = f"w = {_number(form['w'])}" if form["w"].strip() else f"epsilon = {_number(form['epsilon'])}"
    return ['mechanism = "latent_noise"', priced]


def _model(form: Mapping[str, Any]) -> list[str]:
    """Settings of noisy moments for the first planned regression that gives each column a role; none without one."""
    from coordinator.planning.price import moments_of
    from shared.plans.plan import StudyPlan

    try:
        found = moments_of(StudyPlan.from_toml(_written(form, "local", _rows_priced(form))), float(form["epsilon"]))
    except (Refusal, ValueError):  # what is wrong with the rest of it, or with ε, is told by review
        return []
    if found is None:
        return []
    listed = {name: ", ".join(map(_text, getattr(found, name))) for name in ("responses", "covariates")}
    return [
        f"outcome = {_text(found.outcome)}",
        *(f"{name} = [{names}]" for name, names in {**listed, "declared": listed["covariates"]}.items()),
    ]


def _written(form: Mapping[str, Any], posture: str, released: Sequence[str]) -> str:
    columns: Sequence[Mapping[str, str]] = [one for one in form["columns"] if one["name"].strip()]
    lines = [
        "# Where the coordinator is: coordinator plan check, plan cost, plan sign.",
        *(f"{name} = {_text(form[name])}" for name in ("study", "title", "purpose", "coordinator")),
        "version = 1",
        f"expires = {_day(form['expires'])}",
        f"posture = {_text(posture)}",
        f"eligibility = {_text(form['eligibility'])}",
        *("", "[retention]", f"until = {_day(form['until'])}"),
        *(f"{name} = {_text(form[name])}" for name in ("keep", "readers")),
        *("", "[release]", *released),
        *("", "[budget]", f"epsilon = {_number(form['cap'])}", f"delta = {_number(form['delta'])}"),
    ]
    if form["sites"].strip() and form["persons"].strip():
        lines += ["", "[expected]", f"sites = {_number(form['sites'])}", f"persons = {_number(form['persons'])}"]
    for number, opens, closes in _waves(form):
        lines += ["", "[[waves]]", f"number = {number}", f"opens = {opens}", f"closes = {closes}"]
    lines += ["", "[estimands]"]
    for line in form["estimands"].splitlines():
        name, sign, formula = line.partition("=")
        if line.strip():
            lines.append(f"{_text(name.strip())} = {_text(formula.strip() if sign else '')}")
    lines += ["", "[dictionary]", f"name = {_text(form['study'])}", "version = 1"]
    event = next((one["name"].strip() for one in columns if one["kind"] == "event"), "")
    for one in columns:
        lines += ["", f"[dictionary.columns.{_text(one['name'].strip())}]", f"kind = {_text(one['kind'])}"]
        lines += [f"{name} = {_text(one[name])}" for name in ("label", "unit") if one[name].strip()]
        lines += [f"{name} = {_number(one[name])}" for name in ("lower", "upper") if one[name].strip()]
        if one["kind"] == "time" and event:
            lines.append(f"event = {_text(event)}")
        levels = [level.strip() for level in one["levels"].split(",") if level.strip()]
        if levels and one["kind"] not in NUMERIC:
            whole = all(level.lstrip("-").isdigit() for level in levels)
            lines.append(f"levels = [{', '.join(levels if whole else map(_text, levels))}]")
    return "\n".join(lines) + "\n"


def _waves(form: Mapping[str, Any]) -> list[tuple[int, dt.date, dt.date]]:
    """The calendar; none where it cannot be read."""
    try:
        first, count = dt.date.fromisoformat(form["first"].strip()), int(form["waves"])
        every, days = int(form["every"]), int(form["open"])
        starts = [first + dt.timedelta(days=every * number) for number in range(min(count, 200))]
        return [(number, start, start + dt.timedelta(days=days)) for number, start in enumerate(starts, 1)]
    except (ValueError, OverflowError):
        return []


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
    return json.dumps(text.strip(), ensure_ascii=False).replace("\x7f", "\\u007F")


def _number(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return _text(text)
    plain = text.strip().lower().lstrip("+")
    return plain if value == value and plain[:1].isdigit() and plain.isascii() and "_" not in plain else _text(text)


def _day(text: str) -> str:
    try:
        return f"{dt.date.fromisoformat(text.strip())}"
    except ValueError:
        return _text(text)


_NO_MODEL = ChecklistLine(
    name="planned analyses",
    state="fail",
    detail="noisy moments must have a planned regression in which every released column has a role, its first the "
    "outcome and the others as they are (age or age/10, no interaction)",
    fix="Write that regression first, and leave out the columns that no analysis uses.",
)


def judged(given: Mapping[str, Any]) -> dict[str, Any]:
    """Results of `coordinator plan check`, `plan prices` and `plan cost` for a form's plan; run in a worker.

    Args:
        given: ``form``, ``today`` (ISO), and what is ``known`` of its study (`coordinator.planning.review.KnownStudy`).
    Returns: ``toml``; ``checks``; ``ok``; and of a plan that can be read ``hash``, ``prices``, ``waves`` (totals),
        ``given`` (the condition that the totals take as given), ``delta``, ``last_affordable`` and ``translation``.
    """
    from coordinator.planning.price import cost, prices
    from coordinator.planning.review import KnownStudy, review, reviewed

    text = toml_of(given["form"])
    form, today = given["form"], dt.date.fromisoformat(given["today"])
    known = KnownStudy.from_plain(given["known"]) if "known" in given else KnownStudy()
    if form["mechanism"].strip() == "moments" and not _model(form):
        # Of everything else what can be said; and this, in place of which settings [release] lacks: the form has none.
        plan, checks = None, (_NO_MODEL, *review(_written(form, "local", _rows_priced(form)), today=today)[1])
    else:
        plan, checks = reviewed(text, today=today, known=lambda study: known)
    said: dict[str, Any] = {"toml": text, "checks": [asdict(one) for one in checks], "prices": [], "waves": []}
    said |= {
        "ok": all(one.state != "fail" for one in checks),
        "hash": "",
        "given": "",
        "translation": "",
        "last_affordable": None,
    }
    if plan is not None:
        try:
            priced, listed = cost(plan), prices(plan)
        except Refusal:  # the checks say why
            return said
        said |= {
            "hash": plan.hash,
            "delta": plan.budget.delta,
            "given": priced.epsilon_given,
            "translation": priced.translation,
            "last_affordable": priced.last_affordable,
        }
        said["waves"] = [asdict(one) for one in priced.waves[:200]]
        said["prices"] = [asdict(one) for one in listed]
    return said
