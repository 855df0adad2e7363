"""The question of an answer as Python, R and the command line ask it, to be copied from its page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from shared.estimands.questions import Estimand, parse_estimand

__all__ = ["copies", "copies_of_looks"]

_OPENED = 'from tributary_meta import connect\n\nstudy = connect("NAME.token.json")["{study}"]\n'
_POOLING = ("term", "method", "test", "level", "wave")


def copies(answer: Mapping[str, Any], host: str) -> list[tuple[str, str]]:
    """Same question in other clients, for Python, R and the command line: (name, text to copy) of each.

    Args:
        answer: the document that was given. host: where this coordinator is dialled over HTTPS.

    >>> asked = {"estimand": "mean(sbp)", "term": "", "method": "REML", "test": "adhoc", "level": 0.95, "wave": 1}
    >>> copies({"asked": asked, "study": "cvd"}, "hub:8445")[2][1]
    "analyst query cvd 'mean(sbp)' --term '' --method REML --test adhoc --level 0.95 --wave 1"
    """
    asked, study = answer["asked"], answer["study"]
    how = {name: asked[name] for name in _POOLING}
    pooling = " ".join(f"--{name} {shlex.quote(str(how[name]))}" for name in how)
    settings = ", ".join(f"{name}={value!r}" for name, value in how.items())
    opened = _OPENED.format(study=study)
    estimand = asked["estimand"]
    if "cells" in answer:
        return _of_table(study, parse_estimand(estimand), {name: how[name] for name in _POOLING[1:]}, host)
    if "harmonised" in asked:
        mapped = {"to": asked["to"], "formula": estimand, "densities": asked["densities"]}
        words = ", ".join(f"{name}={value!r}" for name, value in mapped.items())
        column, to = shlex.quote(asked["harmonised"]), shlex.quote(asked["to"])
        in_r = ", ".join(map(json.dumps, (asked["harmonised"], asked["to"], estimand)))
        named = f"--to {to} --question {shlex.quote(estimand)} --densities {shlex.quote(asked['densities'])}"
        return [
            ("Python", f"{opened}answer = study.harmonise({asked['harmonised']!r}, {words}, {settings})\nanswer"),
            ("R", _in_r(host, study, "harmonise", in_r, {"densities": asked["densities"], **how})),
            ("command", f"analyst harmonise {study} {column} {named} {pooling}"),
        ]
    return [
        ("Python", f'{opened}answer = study.query("", {estimand!r}, {settings})\nanswer'),
        ("R", _in_r(host, study, "ask", json.dumps(estimand), how)),
        ("command", f"analyst query {study} {shlex.quote(estimand)} {pooling}"),
    ]


def copies_of_looks(found: Mapping[str, Any], host: str) -> list[tuple[str, str]]:
    """Same looks in other clients; as `copies`.

    Args:
        found: the document of the looks. host: where this coordinator is dialled over HTTPS.

    >>> asked = {"estimand": "mean(sbp)", "term": "", "method": "REML", "test": "adhoc", "level": 0.95}
    >>> copies_of_looks({"asked": asked, "study": "cvd", "spending": "pocock"}, "hub:8445")[2][1]
    "analyst monitor cvd 'mean(sbp)' --spending pocock --term '' --method REML --test adhoc --level 0.95"
    """
    study, estimand = found["study"], found["asked"]["estimand"]
    how = {"spending": found["spending"], **{name: found["asked"][name] for name in _POOLING[:-1]}}
    settings = ", ".join(f"{name}={value!r}" for name, value in how.items())
    options = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in how.items())
    return [
        ("Python", f"{_OPENED.format(study=study)}looks = study.monitor({estimand!r}, {settings})\nlooks"),
        ("R", _in_r(host, study, "monitor", json.dumps(estimand), how)),
        ("command", f"analyst monitor {study} {shlex.quote(estimand)} {options}"),
    ]


def _of_table(study: str, question: Estimand, how: Mapping[str, Any], host: str) -> list[tuple[str, str]]:
    """A question whose answer is a table of cells, by its own verb: no one of its terms was asked for."""
    verb = question.kind
    given = {"by": question.by, "breaks": question.breaks if verb == "histogram" else "", "subset": question.subset}
    options = {name: text for name, text in given.items() if text}
    columns = ", ".join(map(repr, question.terms))
    settings = ", ".join(f"{name}={value!r}" for name, value in {**options, **how}.items())
    if verb == "histogram":  # a number of bins, or their edges
        edges = question.breaks.replace("c(", "[").replace(")", "]")
        settings = settings.replace(f"breaks={question.breaks!r}", f"breaks={edges}")
    words = " ".join(shlex.quote(f"{word}") for one in {**options, **how}.items() for word in (f"--{one[0]}", one[1]))
    return [
        ("Python", f"{_OPENED.format(study=study)}answer = study.{verb}({columns}, {settings})\nanswer"),
        ("R", _in_r(host, study, verb, f"~ {' + '.join(question.terms)}", {**options, **how})),
        ("command", f"analyst {verb.replace('_', '-')} {study} {' '.join(question.terms)} {words}"),
    ]


def _in_r(host: str, study: str, verb: str, question: str, how: Mapping[str, Any]) -> str:
    name = "looks" if verb == "monitor" else "answer"
    settings = ", ".join(f"{one} = {json.dumps(value)}" for one, value in how.items())
    return (
        "library(tributarymeta)\n\n"
        f'study <- study(connect({json.dumps(f"https://{host}")}, "NAME.token.json"), {json.dumps(study)})\n'
        f"{name} <- {verb}(study, {question}, {settings})\n{name}"
    )
