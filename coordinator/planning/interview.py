"""A plan by question and answer: what ``coordinator plan new --guide`` asks, one thing after the other.

Each answer is checked before the next question, and the form that comes of it is that of the workbench's designer
(`coordinator.planning.plan_form`). Who is asked stands behind one function, so that a terminal is one way among others.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.planning.plan_form import MECHANISMS, toml_of
from shared.errors import ParameterError, Refusal
from shared.mechanisms.kinds import kind

if TYPE_CHECKING:
    from shared.terminal.prompts import Prompt

__all__ = ["interview"]

OUTCOMES = {
    "event": "yes or no, as death within 30 days",
    "time": "time to an event, as years to a stroke",
    "measurement": "a measurement, as blood pressure",
    "count": "a count, as visits in a year",
}
KINDS = {
    "groups": "yes or no, treatment arms, stages",
    "measurement": "a number with a unit, as age",
}
_MODELS = {"event": "logistic", "time": "cox", "measurement": "ols", "count": "poisson"}
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}")


def interview(form: dict[str, Any], prompt: Prompt, say: Callable[[str], None]) -> dict[str, Any]:
    """The form, filled in.

    Args:
        form: its initial values (`coordinator.planning.plan_form.first_form`).
        prompt: asks the person. say: tells them something.
    """
    filled = dict(form)
    say("What it is")
    for name, question in (
        ("title", "Title, one line"),
        ("purpose", "Purpose, as the ethics approval has it"),
        ("eligibility", "Who is in it, by a rule that needs no judgement"),
    ):
        filled[name] = prompt(question, "", check=_something)
    say("What is asked. Names of columns, bounds and levels are public: no look at a record.")
    outcome = prompt("The outcome is", "event", among=OUTCOMES)
    columns, left = _outcome(outcome, prompt)
    terms = []
    say("What it is compared by, the exposure first; then what is adjusted for. An empty name ends it.")
    for place in range(15):
        if place == 0:
            name = prompt("Exposure", "treated", check=_both(_something, _new(columns)))
        elif not (name := prompt("Adjusted for", "", check=_new(columns))):
            break
        term, column = _covariate(name, prompt)
        terms.append(term)
        columns.append(column)
    filled["estimands"] = f"main = {_MODELS[outcome]}({left}) ~ {' + '.join(terms)}"
    person = prompt("Column that tells persons apart (none: each row is its own)", "person", check=_new(columns))
    person = "" if person == "none" else person
    if person:
        columns.insert(0, {"name": person, "kind": "person", "label": "patient"})
    filled["columns"] = [{**dict.fromkeys(form["columns"][0], ""), **one} for one in columns]
    say("Who brings it, and when")
    filled["sites"] = prompt("How many hospitals", "4", check=_whole(1, 10_000))
    filled["persons"] = prompt("Patients of an average hospital", "1000", check=_whole(1, 10**9))
    filled["waves"] = prompt("How many waves", "1", check=_whole(1, 200 if person else 1))
    filled["first"] = prompt("The first opens (YYYY-MM-DD)", form["first"], check=_day)
    filled["open"] = prompt("Days that a wave is open", form["open"], check=_whole(1, 3650))
    if int(filled["waves"]) > 1:
        filled["every"] = prompt("Days from one wave to the next", form["every"], check=_whole(1, 3650))
    last = dt.date.fromisoformat(filled["first"]) + dt.timedelta(
        days=int(filled["every"]) * (int(filled["waves"]) - 1) + int(filled["open"])
    )
    filled["expires"] = prompt("Sites act on the plan until", f"{last + dt.timedelta(days=180)}", check=_day)
    kept = dt.date.fromisoformat(filled["expires"]) + dt.timedelta(days=5 * 365)
    filled["until"] = prompt("Releases are kept until", f"{kept}", check=_day)
    for name, question in (("keep", "Kept for"), ("readers", "Who may read them")):
        filled[name] = prompt(question, form[name], check=_something)
    say("What leaves a hospital, and its price")
    filled["mechanism"] = prompt("Mechanism", "moments", among=MECHANISMS)
    filled["epsilon"] = prompt(
        "ε of one release", "6" if kind(filled["mechanism"]).draws_rows else "1", check=_positive
    )
    filled["cap"] = prompt("ε that a person may be charged in all", _needed(filled), check=_positive)
    return filled


def _needed(form: dict[str, Any]) -> str:
    """The least budget, to a tenth, that pays for all waves; twice the ε of one where the plan has no price yet."""
    from coordinator.planning.price import cost
    from shared.plans.plan import StudyPlan

    try:
        total = cost(StudyPlan.from_toml(toml_of({**form, "cap": "1e6"}))).waves[-1].total
    except Refusal:
        total = 2 * float(form["epsilon"])
    return f"{math.ceil(total * 10) / 10:g}"


def _outcome(kind: str, prompt: Prompt) -> tuple[list[dict[str, str]], str]:
    """Columns of the outcome, and how it stands in the formula."""
    if kind == "time":
        time = prompt("Column of the time to the event or the end of follow-up", "time", check=_new([]))
        unit = prompt("Its unit", "years", check=_something)
        upper = prompt(f"End of follow-up, {unit}", "10", check=_positive)
        event = prompt("Column of the event, 1 where it happened", "died", check=_new([{"name": time}]))
        label = prompt("What the event is", "death from any cause", check=_something)
        return [
            {"name": time, "kind": "time", "label": f"time to {label}", "unit": unit, "upper": upper},
            {"name": event, "kind": "event", "label": label},
        ], f"{time}, {event}"
    first = {"event": "died", "measurement": "sbp", "count": "visits"}[kind]
    name = prompt("Its column", first, check=_new([]))
    label = prompt("What it is", name, check=_something)
    if kind == "event":
        return [{"name": name, "kind": "binary", "label": label}], name
    return [{"name": name, "label": label, **_bounds(prompt, "integer" if kind == "count" else "continuous")}], name


def _bounds(prompt: Prompt, kind: str) -> dict[str, str]:
    """Kind, unit and public bounds of a column of numbers."""
    unit = "" if kind == "integer" else prompt("Its unit", "", check=_anything)
    lower = prompt("Lowest value that there can be", "0", check=_number)

    def above(text: str) -> None:
        _number(text)
        if float(text) <= float(lower):
            raise ParameterError("it must be above the lowest", given=text)

    upper = prompt("Highest value that there can be", "", check=above)
    return {"kind": kind, "unit": unit, "lower": lower, "upper": upper}


def _covariate(name: str, prompt: Prompt) -> tuple[str, dict[str, str]]:
    """A term of the formula, and its column."""
    label = prompt("What it is", name, check=_something)
    if prompt("It is", "groups", among=KINDS) == "measurement":
        bounds = _bounds(prompt, "continuous")
        span = float(bounds["upper"]) - float(bounds["lower"])
        units = prompt(
            f"Its effect is told per how many {bounds['unit'] or 'units'}", "10" if span >= 50 else "1", check=_positive
        )
        return (name if float(units) == 1 else f"{name}/{units}"), {"name": name, "label": label, **bounds}
    levels = [
        one.strip() for one in prompt("Its groups, the one compared with first", "no, yes", check=_groups).split(",")
    ]
    numbers = all(level.lstrip("-").isdigit() for level in levels)
    kind = "binary" if len(levels) == 2 else "nominal"
    return (f"C({name})" if numbers and levels != ["0", "1"] else name), {
        "name": name,
        "kind": kind,
        "label": label,
        "levels": ", ".join(levels),
    }


# -- what an answer must be -----------------------------------------------------------------------------------------
def _anything(_: str) -> None:
    return


def _something(text: str) -> None:
    if not text.strip():
        raise ParameterError("it must be said", given="nothing")


def _both(*checks: Callable[[str], None]) -> Callable[[str], None]:
    def check(text: str) -> None:
        for one in checks:
            one(text)

    return check


def _new(columns: Sequence[dict[str, str]]) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text and not _WORD.fullmatch(text):
            raise ParameterError(
                "a column's name must be a plain word: letters, digits, _ and .", given=repr(text)[:60]
            )
        if text in [one["name"] for one in columns]:
            raise ParameterError("a column must have one role", given=text)

    return check


def _groups(text: str) -> None:
    levels = [one.strip() for one in text.split(",") if one.strip()]
    if len(set(levels)) < 2 or len(set(levels)) < len(text.split(",")):
        raise ParameterError("there must be two groups or more, each once, parted by commas", given=repr(text)[:60])


def _number(text: str) -> None:
    try:
        finite = abs(float(text)) < float("inf")
    except ValueError:
        finite = False
    if not finite:
        raise ParameterError("it must be a number, with a point for decimals", given=repr(text)[:40])


def _positive(text: str) -> None:
    _number(text)
    if float(text) <= 0:
        raise ParameterError("it must be above 0", given=text)


def _whole(least: int, most: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ParameterError(f"it must be a whole number from {least} to {most}", given=repr(text)[:40])

    return check


def _day(text: str) -> None:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        raise ParameterError("it must be a day, as 2027-05-31", given=repr(text)[:40]) from None
