"""What may be asked of the accepted releases: a typed question in, an answer with its receipts out.

A release was paid for once, so a question costs nothing and contacts no site. Three rules hold for every answer. Only
*accepted* releases are read; what is quarantined does not exist here. One site's failure (an unreadable bundle, a
column its plan version did not have, a term its table cannot support) excludes that site or that term with the
reason, and never hides another's. And a question that is wrong at every site alike (an unknown column) is
refused before any table is opened, with the nearest names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.pooling import Method, PooledResult, Test, pool_estimates
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands import Estimand, Estimate, estimate, parse_estimand

if TYPE_CHECKING:
    from coordinator.store import Store
    from shared.plan import StudyPlan

__all__ = ["Answer", "Source", "ask", "pooled", "resolve", "site_estimates"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The release behind one site's estimate: what a reader of the number must know about it."""

    site: str
    release_id: str
    receipt: str
    plan_version: int
    n: int
    epsilon: float
    study_epsilon: float
    delta: float
    posture: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A pooled answer with everything it rests on.

    Args:
        study: the study.
        wave: the wave.
        estimand: the question in one spelling.
        planned: name of the planned analysis, or empty: then the question is exploratory.
        term: the term that was pooled.
        terms: all terms the question has.
        estimates: one per site of `term`, excluded ones with their reason.
        result: both models, and what was left out.
        sources: one per accepted release of the wave.
    """

    study: str
    wave: int
    estimand: str
    planned: str
    term: str
    terms: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    result: PooledResult
    sources: tuple[Source, ...]


def resolve(plan: StudyPlan, question: str | Estimand) -> tuple[Estimand, str]:
    """The estimand that a text means: the name of a planned analysis, or a formula; and that name, if it has one.

    Raises: ParameterError (neither a name nor a formula, or a column the study does not have).
    """
    names = {str(parse_estimand(formula)): name for name, formula in plan.estimands.items()}
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
    columns = {column.name: column for column in plan.dictionary.released}
    for name in found.columns:
        if name not in columns:
            near = difflib.get_close_matches(name, list(columns), n=3, cutoff=0.4)
            raise ParameterError(
                f"study {plan.study} must have the column",
                given=repr(name),
                next_step=f"Nearest: {', '.join(near)}." if near else f"Columns: {', '.join(columns)}.",
            )
    return found, names.get(str(found), "")


def site_estimates(store: Store, study: str, wave: int, estimand: str | Estimand) -> list[Estimate]:
    """Answer one question at every site with an accepted release: sites by name, terms in the question's order.

    A site that fails has one `Estimate` per term without a number, and the reason.
    Raises: what `resolve` raises; PlanRefusal (no such study); EstimateRefusal (no accepted release in this wave).
    """
    return _estimates(store, study, wave, estimand)[0]


def pooled(
    store: Store,
    study: str,
    wave: int,
    estimand: str | Estimand,
    *,
    term: str = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
) -> PooledResult:
    """Pool one term of a question over the sites; `result.receipts` are the hashes of the receipts it rests on.

    Args:
        term: as the question writes it (``sbp/10``), or its column (``sbp``); the first term when empty.
    """
    return ask(store, study, wave, estimand, term=term, method=method, test=test, level=level).result


def ask(
    store: Store,
    study: str,
    wave: int,
    estimand: str | Estimand,
    *,
    term: str = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
) -> Answer:
    """`pooled`, with the estimates and the releases it rests on.

    Raises: what `site_estimates` raises; ParameterError (no such term, method or test).
    """
    rows, question, planned, sources = _estimates(store, study, wave, estimand)
    terms = tuple(dict.fromkeys(row.term for row in rows))
    chosen = _term(terms, term)
    estimates = tuple(row for row in rows if row.term == chosen)
    return Answer(
        study=study,
        wave=wave,
        estimand=str(question),
        planned=planned,
        term=chosen,
        terms=terms,
        estimates=estimates,
        result=pool_estimates(estimates, method=method, test=test, level=level),
        sources=sources,
    )


def _term(terms: tuple[str, ...], wanted: str) -> str:
    if not wanted:
        return terms[0]
    plain = {term.split("/")[0]: term for term in reversed(terms)}
    if wanted in terms or wanted in plain:
        return wanted if wanted in terms else plain[wanted]
    raise ParameterError(
        "the term must be in the question", given=repr(wanted), next_step=f"Terms: {', '.join(terms)}."
    )


def _estimates(
    store: Store, study: str, wave: int, estimand: str | Estimand
) -> tuple[list[Estimate], Estimand, str, tuple[Source, ...]]:
    plan = store.plan(study).plan
    plan.wave(wave)
    question, planned = resolve(plan, estimand)
    levels: Mapping[str, Any] = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    answered: dict[str, list[Estimate]] = {}
    failed: dict[str, str] = {}
    sources = []
    for release in sorted(store.releases(study, wave), key=lambda release: release.site):
        receipt = release.receipt
        sources.append(
            Source(
                site=release.site,
                release_id=release.release_id,
                receipt=receipt.hash,
                plan_version=receipt.plan_version,
                n=receipt.n,
                epsilon=receipt.epsilon,
                study_epsilon=receipt.study_epsilon,
                delta=receipt.delta,
                posture=receipt.posture,
            )
        )
        try:
            table = store.table(release)
            absent = [name for name in question.columns if name not in table.columns]
            if absent:
                failed[release.site] = f"its plan version {receipt.plan_version} has no column {', '.join(absent)}"
                continue
            answered[release.site] = estimate(
                table,
                question,
                study=study,
                site=release.site,
                wave=wave,
                receipts=(receipt.hash,),
                levels=levels,
            )
        except Refusal as refusal:
            failed[release.site] = str(refusal)
    if not answered and not failed:
        raise EstimateRefusal(
            f"wave {wave} of {study} must have an accepted release",
            given="none",
            next_step="See coordinator releases.",
        )
    first = next(iter(answered.values()), [])
    terms = [row.term for row in first] or list(question.labels)
    for site, reason in failed.items():
        answered[site] = [_absent(study, site, wave, term, question, reason) for term in terms]
    return [row for site in sorted(answered) for row in answered[site]], question, planned, tuple(sources)


def _absent(study: str, site: str, wave: int, term: str, question: Estimand, reason: str) -> Estimate:
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
