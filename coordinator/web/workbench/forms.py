"""The form of a question: what was chosen in it, as the request that any client would send.

Nothing is written as a formula here that the grammar of `shared.estimands` does not read: what a form cannot say, its
field for a formula can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from shared.errors import SchemaRefusal
from shared.estimands.kinds import KINDS, OPTIONS, Kind
from shared.estimands.questions import ACROSS
from shared.wire.analyst_messages import QueryRequest
from shared.wire.message_limits import FORMULA_CAP

__all__ = ["COMPARISONS", "formula", "query_request", "with_repeated"]

COMPARISONS = ("==", "!=", ">=", ">", "<=", "<")
_LISTS = ("adjust",)


def query_request(
    study: str, form: Sequence[tuple[str, str]], columns: Mapping[str, Mapping[str, Any]]
) -> QueryRequest:
    """The question of a form that was sent.

    Args:
        form: its fields. columns: the study's columns by name, as `AnalysisService.describe` says them.
    Raises: SchemaRefusal: a field that says nothing that can be read, or too little for a question.
    """
    given: dict[str, str] = {name: text.strip() for name, text in form if name not in _LISTS}
    chosen = [text for name, text in form if name == "adjust"]
    names = ("term", "method", "test", "label", "harmonise", "to", "densities")
    how: dict[str, Any] = {name: given[name] for name in names if given.get(name)}
    if bool(how.get("harmonise")) != bool(how.get("to")):
        raise SchemaRefusal(
            "a column on one site's scale must come with the site", given="one of them", next_step="Choose both."
        )
    if not how.get("harmonise"):
        how.pop("densities", None)
    for name, number, words in (("level", float, "a number"), ("wave", int, "a whole number")):
        if given.get(name):
            try:
                how[name] = number(given[name])
            except ValueError:
                raise SchemaRefusal(f"{name} must be {words}", given=repr(given[name][:40])) from None
    planned, text = given.get("planned", ""), given.get("formula", "")
    if planned:
        return QueryRequest(study=study, formula=planned, **how)
    kind = given.get("kind", "")
    if kind and kind not in KINDS:
        raise SchemaRefusal("the method must be one of the list", given=repr(kind[:40]))
    if not kind:
        return QueryRequest(study=study, formula=text or " ", **how)
    options = {name: given[name] for name in KINDS[cast("Kind", kind)].options if name in OPTIONS and given.get(name)}
    if subset := given.get("subset") or _subset(given, columns):
        options["subset"] = subset
    made = text or formula(kind, given, chosen, columns)
    return QueryRequest(study=study, kind=kind, formula=made, options=options, **how)


def with_repeated(columns: list[dict[str, Any]], repeated: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The columns of a study, and what a model of repeated rows calls those that are repeated.

    >>> one = {"name": "sbp_1", "kind": "continuous", "label": "pressure, visit 0"}
    >>> shown = with_repeated([one], {"columns": ["sbp"], "order": "visit", "visits": [0, 6]})
    >>> [(column["name"], column["label"]) for column in shown]
    [('sbp_1', 'pressure, visit 0'), ('sbp', 'pressure'), ('visit', '')]
    """
    known, made = {column["name"]: column for column in columns}, []
    for name in repeated["columns"] if repeated else ():
        first = known.get(f"{name}_1")
        made += [{**first, "name": name, "label": first["label"].rpartition(", ")[0]}] if first else []
    if repeated and repeated.get("visits"):
        made.append({"name": repeated["order"], "kind": "ordered", "label": "", "levels": repeated["visits"]})
    return [*columns, *made]


def formula(
    kind: str, given: Mapping[str, str], adjust: Sequence[str], columns: Mapping[str, Mapping[str, Any]]
) -> str:
    """The formula of what was chosen, as in R.

    Args:
        given: ``outcome`` or ``time`` and ``event``, ``exposure``, ``per``, ``group``, ``second``; of a network
            ``statistic``, and ``across`` which column where it needs one.
        adjust: columns to adjust for, or those of a Table 1.
    Raises: SchemaRefusal: what the method needs was not chosen.

    >>> columns = {"sbp": {"kind": "continuous"}, "sex": {"kind": "nominal"}, "age": {"kind": "integer"}}
    >>> formula("cox", {"time": "t", "event": "d", "exposure": "sbp", "per": "10"}, ["age", "sex"], columns)
    'Surv(t, d) ~ sbp/10 + age + C(sex)'
    >>> formula("km", {"time": "t", "event": "d"}, [], columns), formula("mean", {"outcome": "sbp"}, [], columns)
    ('Surv(t, d) ~ 1', 'sbp')
    """
    known = KINDS[cast("Kind", kind)]

    def need(name: str, words: str) -> str:
        if not given.get(name):
            raise SchemaRefusal(f"{kind} must be given {words}", given="none", next_step=f"Choose {words}.")
        return given[name]

    if known.shape == "statistic":
        left = need("statistic", "a statistic")
    elif kind == "table_one":
        if not adjust:
            raise SchemaRefusal("table_one must be given its columns", given="none", next_step="Choose its columns.")
        left = " + ".join(dict.fromkeys(adjust))
    elif known.survival:
        left = f"Surv({need('time', 'a time')}, {need('event', 'an event')})"
    else:
        left = need("outcome", "an outcome")
    if known.shape == "model":
        terms = [_term(need("exposure", "an exposure"), columns, given.get("per", ""))]
        terms += [_term(name, columns) for name in dict.fromkeys(adjust) if name != given["exposure"]]
        made = f"{left} ~ {' + '.join(terms)}"
    elif known.shape == "groups":
        made = f"{left} ~ {need('group', 'a column of groups')}"
    elif known.shape == "columns":
        two = given.get("second") if kind in ("correlation", "crosstab") else ""
        made = f"~ {left}" + (f" + {two}" if two else "")
    elif known.shape == "statistic":
        made = f"{left} ~ {need('across', 'a column')}" if left in ACROSS else left
    elif known.survival:
        made = f"{left} ~ {given.get('group') or '1'}"
    else:
        made = left
    if len(made) > FORMULA_CAP:
        raise SchemaRefusal("a question must be short", given=f"{len(made)} letters")
    return made


def _term(name: str, columns: Mapping[str, Mapping[str, Any]], per: str = "") -> str:
    kind = columns.get(name, {}).get("kind", "")
    if kind in ("nominal", "ordered"):
        return f"C({name})"
    return f"{name}/{per}" if per and per != "1" else name


def _subset(given: Mapping[str, str], columns: Mapping[str, Mapping[str, Any]]) -> str:
    name, sign, value = (given.get(f"subset_{part}", "") for part in ("column", "is", "value"))
    if not name:
        return ""
    if sign not in COMPARISONS or not value:
        raise SchemaRefusal("a subgroup must say which rows", given="no value", next_step="Write the value, or level.")
    levels = columns.get(name, {}).get("levels", ())
    text = any(isinstance(level, str) for level in levels)
    if text and '"' in value:
        raise SchemaRefusal("a level must be one of the column's", given="a quotation mark")
    return f'{name} {sign} "{value}"' if text else f"{name} {sign} {value}"
