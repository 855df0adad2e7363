"""The question of an answer as Python, R and the command line ask it, to be copied from its page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["copies"]

_POOLING = ("term", "method", "test", "level", "wave")


def copies(answer: Mapping[str, Any], host: str) -> list[tuple[str, str]]:
    """How the same question is asked elsewhere: a name, and a text to copy.

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
    opened = f'from tributary_meta import connect\n\nstudy = connect("NAME.token.json")["{study}"]\n'
    estimand = asked["estimand"]
    if "harmonised" in asked:  # R asks no such question
        mapped = {"to": asked["to"], "formula": estimand, "densities": asked["densities"]}
        words = ", ".join(f"{name}={value!r}" for name, value in mapped.items())
        column, to = shlex.quote(asked["harmonised"]), shlex.quote(asked["to"])
        named = f"--to {to} --question {shlex.quote(estimand)} --densities {shlex.quote(asked['densities'])}"
        return [
            ("Python", f"{opened}answer = study.harmonise({asked['harmonised']!r}, {words}, {settings})\nanswer"),
            ("command", f"analyst harmonise {study} {column} {named} {pooling}"),
        ]
    in_r = ", ".join(f"{name} = {json.dumps(value)}" for name, value in how.items())
    return [
        ("Python", f'{opened}answer = study.query("", {estimand!r}, {settings})\nanswer'),
        (
            "R",
            "library(tributarymeta)\n\n"
            f'study <- study(connect({json.dumps(f"https://{host}")}, "NAME.token.json"), {json.dumps(study)})\n'
            f"answer <- ask(study, {json.dumps(estimand)}, {in_r})\nanswer",
        ),
        ("command", f"analyst query {study} {shlex.quote(estimand)} {pooling}"),
    ]
