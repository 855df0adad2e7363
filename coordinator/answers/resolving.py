"""Resolution of a question for each site: its columns and levels are checked against the site's version of the plan."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import ParameterError, Refusal, StorageRefusal
from shared.estimands.answer import Estimand, Estimate, parse_estimand, parse_formula
from shared.estimands.kinds import KINDS

if TYPE_CHECKING:
    from coordinator.store.store import Store
    from shared.plans.plan import StudyPlan

__all__ = [
    "absent",
    "lacking",
    "no_column",
    "question",
    "reason_of",
    "resolve",
]


def question(
    kind: str, formula: str, options: Mapping[str, str] | None = None, *, planned: Mapping[str, str] | None = None
) -> str | Estimand:
    """A kind and a formula as in R; without a kind, the formula is the whole question or a planned analysis' name.

    Args:
        options: of the question; without a kind only a subset, which takes the place of its own.
        planned: planned analyses by name.
    Raises: ParameterError: outside the grammar.

    >>> str(question("cox", "Surv(time, cvd) ~ sbp/10 + age", {"subset": "age >= 60"}))
    'cox(time, cvd, subset = age >= 60) ~ sbp/10 + age'
    >>> str(question("", "crude", {"subset": "age >= 60"}, planned={"crude": "cox(time, cvd) ~ sbp/10"}))
    'cox(time, cvd, subset = age >= 60) ~ sbp/10'
    """
    if kind:
        return parse_formula(kind, formula, **(options or {}))
    asked = formula.strip()
    if not options:
        return asked
    if set(options) != {"subset"}:
        raise ParameterError("a question without a kind must hold its own options", given=", ".join(options))
    return replace(parse_estimand((planned or {}).get(asked, asked)), subset=options["subset"])


def no_column(plan: StudyPlan, name: str, lack: str = "") -> ParameterError:
    """The refusal of a column that the study does not have; `lack` names the sites without it (`lacking`)."""
    repeated = plan.dictionary.repeated
    if repeated is not None and name in (*repeated.columns, repeated.order):
        one = f", or of one row: {repeated.names(name)[0]}" if name in repeated.columns else ""
        return ParameterError(
            "a repeated column must be asked of by gee or mixed",
            given=repr(name),
            next_step=f"Write gee({repeated.columns[0]}) ~ …{one}.",
        )
    columns = [column.name for column in plan.dictionary.released]
    near = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
    return ParameterError(
        f"study {plan.study} must have the column",
        given=repr(name) + lack,
        next_step=f"Nearest: {', '.join(near)}." if near else f"Columns: {', '.join(columns)}.",
    )


def lacking(store: Store, study: str, name: str) -> str:
    """Sites whose newest release lacks the column, in words."""
    known = {release.site: release for release in store.release_lines(study)}  # by wave: the newest stays
    without = []
    for site, release in sorted(known.items()):
        columns = store.plan(study, release.plan_version).plan.dictionary.released
        without += [] if name in {column.name for column in columns} else [site]
    if not known or not without:
        return ""
    return f", which {f'all {len(known)} sites' if len(without) == len(known) else ', '.join(without)} lack"


def resolve(
    plan: StudyPlan, question: str | Estimand, *, lack: Callable[[str], str] = lambda name: ""
) -> tuple[Estimand, str]:
    """The estimand that a text means: the name of a planned analysis, or a formula; and that name, if it has one.

    Args:
        lack: says in words which sites lack a column (`lacking`).
    Raises: ParameterError (neither a name nor a formula, a column the study does not have, or km without its time).
    """
    names = {}
    for name, formula in plan.estimands.items():
        with contextlib.suppress(ParameterError):  # one of an older version's that is none today answers for itself
            names[str(_settled(formula, plan))] = name
    columns = {column.name: column for column in plan.dictionary.released}
    if isinstance(question, Estimand):
        found = question
    elif question in plan.estimands:
        found = parse_estimand(plan.estimands[question])
    elif "(" not in question:
        near = difflib.get_close_matches(question, list(plan.estimands), n=1)
        known = ", ".join(plan.estimands) or "none"
        raise ParameterError(
            "an estimand must be the name of a planned analysis, or a formula",
            given=repr(question),
            next_step=f"Did you mean {near[0]!r}?" if near else f"Planned: {known}.",
        )
    else:
        found = parse_estimand(question)
    found = _undotted(found, columns).with_rows(plan.dictionary.repeated)
    for name in found.columns:
        if name not in columns:
            raise no_column(plan, name, lack(name))
    if "at" in KINDS[found.kind].must and found.at is None:
        raise ParameterError(
            f"{found.kind} must have a time to be one number",
            given=str(found),
            next_step=f"Write {replace(found, at=5.0)!s}, with the time you ask about: the same at every site.",
        )
    settled = found.with_breaks(lambda name: _bounds(plan, name))
    return settled, names.get(str(found), "") or names.get(str(settled), "")


def _settled(formula: str, plan: StudyPlan) -> Estimand:
    """A planned question with the plan's repeated rows applied, or unchanged where that cannot be done."""
    question = parse_estimand(formula)
    with contextlib.suppress(ParameterError):
        question = question.with_rows(plan.dictionary.repeated)
    return question


def _bounds(plan: StudyPlan, name: str) -> tuple[float, float]:
    """The public bounds of a column of numbers. Raises: ParameterError: it has none."""
    column = plan.dictionary.column(name)
    lower = 0.0 if column.kind == "time" and column.lower is None else column.lower
    if column.levels or lower is None or column.upper is None:
        raise ParameterError(
            "a histogram must be of a column of numbers with public bounds, or name its bins",
            given=name,
            next_step=f"Write crosstab({name}, …)." if column.levels else f"Write histogram({name}, breaks = c(…)).",
        )
    return float(lower), float(column.upper)


def _undotted(question: Estimand, columns: Collection[str]) -> Estimand:
    """The question with R's dotted names as a dictionary has them: ``chol.total`` is ``chol_total``."""
    dotted = [name for name in question.columns if "." in name and name not in columns]
    dotted = [name for name in dotted if name.replace(".", "_") in columns]
    text = str(question)
    for name in dotted:
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", name.replace(".", "_"), text)
    return parse_estimand(text) if dotted else question


def reason_of(refusal: Refusal) -> str:
    """Reason why a site has no answer. Raises: StorageRefusal: storage failed for all sites; a retry may succeed."""
    if isinstance(refusal, StorageRefusal):
        raise refusal
    return str(refusal).rstrip(".")


def absent(study: str, site: str, wave: int, term: str, question: Estimand, reason: str) -> Estimate:
    """A site without an answer to a term, and why.

    Args:
        study, site, wave: of the answer that is absent.
        question, term: the question, and one of its terms.
        reason: in words; a full stop at its end is left out.
    """
    return Estimate(
        study=study,
        site=site,
        wave=wave,
        term=term,
        yi=None,
        vi_sampling=None,
        n=0,
        reason=reason.rstrip("."),
        scale=question.scale,
    )
