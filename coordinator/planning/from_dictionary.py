"""A first plan around a dictionary that is there already: REDCap's, or another study's."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

from coordinator.planning.template import template

if TYPE_CHECKING:
    from shared.plans.dictionary import Dictionary

__all__ = ["template_of"]


def template_of(dictionary: Dictionary, study: str, *, coordinator: str, today: dt.date, file: str) -> str:
    """The commented template of a plan with a dictionary's columns in the place of the example's.

    For the planned analyses stands one: the mean of the first column, or the share of its last level.

    Args: as of `coordinator.planning.template.template`.
    """
    text = template(study, coordinator=coordinator, today=today, file=file)
    first = dictionary.released[0]
    measured, level = first.lower is not None, json.dumps(first.levels[-1]) if first.levels else ""
    asked = f"mean({first.name})" if measured else f"proportion({first.name} == {level})"
    head, tail = text.split("[estimands]\n")
    about = tail[tail.index("# The dictionary: the only") : tail.index("[dictionary]")]
    return f"{head}[estimands]\nfirst = {json.dumps(asked)}\n\n{about}{dictionary.to_toml()}\n"
