"""Queries of the accepted releases: a typed question in, an answer with its receipts out.

A release was paid for once, so a question costs nothing and contacts no site. Three rules hold for every answer. Only
*accepted* releases are read; what is quarantined does not exist here. One site's failure (an unreadable bundle, a
column its plan version did not have, a term its table cannot support) excludes that site or that term with the
reason, and never hides another's. And a question that is wrong at every site alike (an unknown column) is
refused before any table is opened, with the nearest names.

Which releases are asked is `release_selection`'s to say, what one site answers `site_answers`', and how far the answer
lies from the one that the records would give `record_gap`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from coordinator.pooling.cautions import theorem3
from coordinator.pooling.further.simple_slopes import simple_slopes
from coordinator.pooling.gaps import Gap, pooled_gap
from coordinator.pooling.multivariate import joint_of_terms
from coordinator.pooling.pool import PooledResult, Pooling, pool_estimates
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands.answer import Estimand, Estimate
from shared.estimands.effects import asked_of, effect_name, exact_question, in_words, shown, time_unit
from shared.estimands.kinds import DESCRIBED
from shared.mechanisms.kinds import kind
from shared.privacy.stated import shown_price
from shared.terminal import plain

if TYPE_CHECKING:
    from coordinator.pooling.secure_sum.answer import SummedAnswer
    from coordinator.store.store import Store, Tombstone
    from shared.plans.dictionary import Dictionary
    from shared.plans.federated import FederatedFlow
from coordinator.answers.record_gap import fitted_elsewhere, released_again, unknown_gap
from coordinator.answers.release_selection import ReleaseSelection, rows_of, uncompared_caution
from coordinator.answers.site_answers import AnswerSource, EstimateCache, answers_of_sites

__all__ = [
    "PooledAnswer",
    "ask",
]


_IN_A_SUM = (
    " The answer is a secure sum of {} of {} sites, of which nobody saw a site's part; each site's own row, the rows "
    "pooled, Q, I² and τ² are of what it released by itself."
)
_ALONE = "This answer is of what each site released by itself."
_DEFAULT = Pooling()


@dataclass(frozen=True, kw_only=True)
class PooledAnswer:
    """A pooled answer with everything it rests on.

    Args:
        study: the study.
        wave: the wave k; the answer is from the table as of it.
        as_of: the revision of wave k that was asked for; None for all there is now.
        revisions: wave to its revision in force for this answer; None while a wave is open.
        combined: True if the rows of several refreshes of one site were put together.
        withdrawn: releases of waves up to k that their sites took back: not in the answer.
        gap: predicted distance of the pooled estimate from the records to this one; None without released rows.
        flows_known: sites whose rows were released again for it, so that it includes the bias of their flows.
        untold: reason why the gap is not stated: it would be wrong, or was never validated; empty where it is stated.
        estimand: the question in one spelling.
        planned: name of the planned analysis, or empty: then the question is exploratory.
        term: the term that was pooled.
        terms: all terms the question has.
        estimates: one per site of `term`, excluded ones with their reason.
        result: both models, and what was left out.
        sources: one per release that the table as of the wave holds.
        words: the term in the dictionary's words; detail: the rest of the model, and the persons that it is of.
        others: the other terms of the question, each pooled in the same way, or why it was not.
        uncompared: sites that have not compared since the coordinator was put back from a backup. Whoever tells the
            answer sets it: it is not kept with the answer.
        every: of a Table 1, a cross-table or a histogram, the estimates of all its terms.
        joint: of every term with several coefficients, these pooled together (`multivariate.joint_of_terms`); of an
            interaction its simple slopes, too (`simple_slopes`).
        unsummed: under a plan of a secure sum, why this answer is none of it, or what is known to be wrong with its
            interval; blank where `result.summed` is one that nothing is known against.
    """

    study: str
    wave: int
    estimand: str
    planned: str
    term: str
    terms: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    result: PooledResult
    sources: tuple[AnswerSource, ...]
    as_of: int | None = None
    revisions: Mapping[int, int | None] = field(default_factory=dict)
    combined: bool = False
    withdrawn: tuple[Tombstone, ...] = ()
    gap: Gap | None = None
    flows_known: tuple[str, ...] = ()
    untold: str = ""
    words: str = ""
    detail: str = ""
    others: Mapping[str, PooledResult | str] = field(default_factory=dict)
    uncompared: tuple[str, ...] = ()
    every: tuple[Estimate, ...] = ()
    joint: tuple[Mapping[str, Any], ...] = ()
    unsummed: str = ""

    @property
    def used(self) -> dict[str, str]:
        """SHA-256 of every bundle it rests on, with its site."""
        return {source.bundle_sha256: source.site for source in self.sources}

    @property
    def query(self) -> dict[str, Any]:
        """The question as plain values: two answers to it are answers to the same question."""
        return {
            "wave": self.wave,
            "as_of": self.as_of,
            "combined": self.combined,
            "estimand": self.estimand,
            "term": self.term,
            "method": self.result.method,
            "test": self.result.test,
            "level": self.result.level,
        }

    @property
    def numbers(self) -> dict[str, Any]:
        """The pooled figures, as they are remembered."""
        found = {name: getattr(self.result, name) for name in ("k", "beta", "se", "ci_lb", "ci_ub", "tau2")}
        if (total := self.result.summed) is not None:
            found |= {name: getattr(total, name) for name in ("se", "ci_lb", "ci_ub")}
            found |= {"k": len(total.sites), "beta": total.estimate}
        return dict(plain(found))

    @property
    def title(self) -> str:
        """Title of its figure."""
        return self.words or exact_question(self.term, self.estimand)

    @property
    def caption(self) -> str:
        """Caption below the title: the exact question and the provenance of its numbers."""
        exact = f"{self.study}, wave {self.wave}: {exact_question(self.term, self.estimand)}."
        return " ".join(filter(None, (f"{self.detail}." if self.detail else "", exact, self.provenance)))

    @property
    def table(self) -> list[dict[str, Any]]:
        """Every term of the question, pooled: a line each, as a paper's table of coefficients has it."""
        lines = []
        for term in self.terms:
            found = self.result if term == self.term else self.others.get(term, "not asked")
            lines.append(term_line(term, found))
            # Of a Table 1 the cells say it themselves; there would be one for each cell.
            if not isinstance(found, str) and found.excluded and not self.every:
                lines[-1]["left_out"] = {row.label: row.reason for row in found.excluded}
        return lines

    @property
    def columns(self) -> dict[str, dict[str, str]]:
        """ε and posture of each site that is in it, as text."""
        used = {row.site for row in self.estimates if row.yi is not None}
        # Under append a site has several releases of different persons: each person pays for one.
        dearest: dict[str, tuple[float | None, str]] = {}
        for source in self.sources:
            dearest[source.site] = max(source.price, dearest.get(source.site, (0.0, "")), key=_by_cost)
        return {
            "ε": {site: shown_price(*price) for site, price in dearest.items() if site in used},
            "posture": {source.site: source.posture for source in self.sources if source.site in used},
        }

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings for the reader of the pooled answer, in sentences.

        Of whom a restored coordinator has not heard yet; how far the records' own may lie, and the conditions of
        Theorem 3 that do not hold. Of released rows alone: the theorem speaks of no other release.
        """
        drawn = {source.site for source in self.sources if kind(source.mechanism).draws_rows}
        used = [row for row in self.result.estimates if row.site in drawn]
        first = [uncompared_caution(self.uncompared)] if self.uncompared else []
        first += filter(None, [self.unsummed])
        if not used:
            return tuple(first)
        persons = sum(row.n for row in used) / len(used)
        # Of one site nothing is known about differences between sites.
        tau2, common = (self.result.tau2, self.result.method == "FE") if self.result.k > 1 else (None, False)
        found = theorem3(len(used), persons, tau2=tau2, common=common)
        said = [condition.sentence for condition in found]
        if self.gap is not None:
            said.insert(0, self.untold or self.gap.sentence(scale=self.result.scale))
        return (*first, *said)

    @property
    def provenance(self) -> str:
        """Provenance, in a sentence."""
        count = len({source.site for source in self.sources})
        versions = ", ".join(str(version) for version in sorted({source.plan_version for source in self.sources}))
        kind = f"planned analysis {self.planned}" if self.planned else "exploratory: not in the plan"
        waves = sorted({source.wave for source in self.sources})
        many = "s" if len(waves) > 1 else ""
        rows = "" if waves == [self.wave] else f" of wave{many} {', '.join(map(str, waves))}"
        revision = self.revisions.get(self.wave)
        state = "" if revision is None else f", wave {self.wave} as of revision {revision}"
        both = (
            "; several refreshes put together, a person's errors taken to be the same in each" if self.combined else ""
        )
        sites = f"{count} site{'s' * (count != 1)}"
        summed = "" if self.result.summed is None else _IN_A_SUM.format(len(self.result.summed.sites), count)
        return f"Privatised releases of {sites}{rows}, plan version {versions}{state}; {kind}{both}.{summed}"

    def _cells(self) -> list[dict[str, Any]]:
        """Every number of a Table 1, off its scale: those of the sites, and the pooled ones."""
        z = NormalDist().inv_cdf((1 + self.result.level) / 2)
        counts: dict[str, tuple[int, int]] = {}
        reasons: dict[str, set[str]] = {}
        cells = []
        for row in self.every:
            reasons.setdefault(row.term, set()).add(row.reason)
            before = counts.get(row.term, (0, 0))
            counts[row.term] = before[0] + row.n, before[1] + row.n_missing
            ends: dict[str, float | None] = dict.fromkeys(("estimate", "ci_lb", "ci_ub"))
            if row.yi is not None and row.vi is not None:
                at = {"estimate": 0.0, "ci_lb": -z, "ci_ub": z}
                ends = {
                    name: shown(row.yi + by * math.sqrt(row.vi + row.vi_common), row.scale) for name, by in at.items()
                }
            said = {"n": row.n, "n_missing": row.n_missing, "reason": row.reason}
            cells.append({"site": row.site, "term": row.term, **_of_table_one(row.term), **ends, **said})
        for line in self.table:
            term, names = line["term"], ("estimate", "ci_lb", "ci_ub", "reason")
            n, missing = counts[term]
            said = {name: line[name] for name in names} | {"n": n, "n_missing": missing}
            if said["estimate"] is None:  # in a cell stands what lacks, and not what to do about it
                (why,) = reasons[term] if len(reasons[term]) == 1 else ("no site has a number",)
                said["reason"] = why
            cells.append({"site": "all sites", "term": term, **_of_table_one(term), **said})
        return cells

    @property
    def document(self) -> dict[str, Any]:
        """The whole answer: what ``--json`` prints and the analysts' service sends."""
        from coordinator.pooling.document import pooled_data

        names = ("study", "wave", "estimand", "planned", "as_of", "revisions", "combined", "withdrawn", "terms")
        document = {name: getattr(self, name) for name in names}
        document |= {"planned": self.planned or None, "estimates": self.estimates, "sources": self.sources}
        document |= {"title": self.title, "columns": self.columns, "told": self.provenance, "cautions": self.cautions}
        document |= {"caption": self.caption, "table": self.table, "joint": self.joint}
        far = None
        if self.gap is not None and not self.untold:
            far = {"rms": self.gap.rms, "interval": self.gap.interval, "how": self.gap.how}
        document |= {"gap": far}
        if self.every:
            document |= {"cells": self._cells()}
        return {**document, **pooled_data(self.result)}


def ask(
    store: Store,
    held: ReleaseSelection,
    estimand: str | Estimand,
    *,
    term: str = "",
    pooling: Pooling = _DEFAULT,
    cache: EstimateCache | None = None,
    perturbations: int = 0,
    trained: FederatedFlow | None = None,
) -> PooledAnswer:
    """Pool one term of a question over the sites, with the estimates and the releases that the answer rests on.

    Args:
        held: the releases that are asked, as `release_selection.holding` chooses them.
        estimand: the question, or the name of a planned one.
        term: as the question writes it (``sbp/10``), or its column (``sbp``); the first term when empty.
        pooling: of the sites' estimates.
        cache: sites' estimates from earlier questions.
        perturbations: number of times that rows whose flow is public are released again, to measure the flow's bias; 0
            for none.
        trained: the flow that the plan names, for that.
    Raises: what `answers_of_sites` raises; ParameterError (no such term, method or test); StateRefusal (a release was
        taken back while it was read).
    """
    plan = store.plan(held.study).plan
    rows, question, planned, sources = answers_of_sites(store, held, estimand, cache)
    terms = tuple(dict.fromkeys(row.term for row in rows))
    found = {term: _pooled(rows, question, term, pooling, plan.dictionary) for term in terms}
    chosen = _term(terms, term)
    if question.kind in DESCRIBED and not term:  # no one number is its answer: the first that there is
        chosen = next((one for one in (chosen, *terms) if not isinstance(found[one], Refusal)), chosen)
    estimates = tuple(row for row in rows if row.term == chosen)
    totals, unsummed, lacking = _summed(store, held, question, pooling.level)
    for label, answer in totals.items():
        pilots = found[label]  # whose cautions are of what each site released, and notes beside a sum
        if not isinstance(pilots, Refusal):
            notes = answer.beside(pilots.notes, pilots.doubts)
            found[label] = replace(pilots, summed=answer, notes=notes, doubts=())
    for label, why in lacking.items():  # beside lines of the sum one of the releases says that it is none
        pilots = found[label]
        if label != chosen and not isinstance(pilots, Refusal):
            found[label] = replace(pilots, doubts=(*pilots.doubts, why))
    if chosen in lacking:
        unsummed = lacking[chosen]
    elif chosen not in totals and (totals or lacking):
        unsummed = f"The plan's secure sum is of {' and '.join([*totals, *lacking])}. {_ALONE}"
    result = found.pop(chosen)
    if isinstance(result, Refusal):
        raise _beside_a_sum(result, totals.get(chosen), unsummed)
    known = released_again(store, held, question, chosen, perturbations, trained) if perturbations else {}
    return PooledAnswer(
        study=held.study,
        wave=held.wave,
        estimand=str(question),
        planned=planned,
        term=chosen,
        terms=terms,
        estimates=estimates,
        result=result,
        gap=pooled_gap(result, fitted_elsewhere(held), known),
        flows_known=tuple(known),
        untold=unknown_gap(held, known, question, result),
        sources=sources,
        as_of=held.as_of,
        revisions=held.revisions,
        combined=held.combined,
        withdrawn=held.withdrawn,
        words=in_words(question, chosen, plan.dictionary),
        detail=asked_of(question, chosen, plan.dictionary),
        every=tuple(rows) if question.kind in DESCRIBED else (),
        joint=(
            *joint_of_terms(rows, question, pooling, spans=_spans(plan.dictionary)),
            *simple_slopes(rows, question, plan.dictionary, pooling),
        ),
        others={term: str(one) if isinstance(one, Refusal) else one for term, one in found.items()},
        unsummed=unsummed,
    )


def _beside_a_sum(refusal: Refusal, total: SummedAnswer | None, doubt: str) -> Refusal:
    """A refusal of the sites' own answers, with the secure sum's where there is one: it has no rows to stand beside.

    Args:
        doubt: what is known to be wrong with the sum's interval.
    """
    if total is None:
        return refusal
    ends = f"{100 * total.level:g} % interval {total.ci_lb:.4g} to {total.ci_ub:.4g}"
    said = f"{total.estimate:.4g} ({ends}, on the scale of the analysis)"
    return EstimateRefusal(
        refusal.must,
        given=refusal.given,
        next_step=f"The secure sum of {len(total.sites)} sites says {said}, per unit of the term. {doubt}".rstrip(),
    )


def _summed(
    store: Store, held: ReleaseSelection, question: Estimand, level: float
) -> tuple[dict[str, SummedAnswer], str, dict[str, str]]:
    """The secure sum's answer to each term that it is of, and what is known to be wrong with it, or why there is none;
    of terms that it is of and does not answer why.

    Blank under any other plan.
    """
    releases = [release for several in held.parts.values() for release in several]
    if not all(kind(release.receipt.mechanism).follow for release in releases):
        return {}, "", {}
    from coordinator.pooling.secure_sum.reading import read_sum
    from shared.mechanisms.secure_sum.plan import SecureSumPlan

    stored = held.opened
    plan_hash = releases[-1].plan_hash if stored is None else stored.document.terms.plan
    plan = next(one.plan for one in store.plans() if one.plan.hash == plan_hash)
    assert isinstance(plan.release, SecureSumPlan)
    terms = plan.release.summed_terms(plan, question)
    if not terms:
        return {}, f"The plan's secure sum is of another question. {_ALONE}", {}
    if stored is None:
        return {}, f"The secure sum is not opened yet. {_ALONE}", {}
    sites, there = tuple(plan.release.members), {release.bundle_sha256: release for release in releases}
    gone = ", ".join(sites[at] for at, digest in stored.document.pilots.items() if digest not in there)
    if gone:
        return {}, f"The secure sum was taken over a release of {gone} that is not in this answer. {_ALONE}", {}
    taken = {stone.bundle_sha256 for stone in store.withdrawals(plan.study)}
    pilots = {at: there[digest] for at, digest in stored.document.pilots.items()}
    tables = {at: (rows_of(store, [one], taken), one.receipt.n) for at, one in pilots.items()}
    try:
        answers = read_sum(plan, stored.document, tables, level=level)
    except EstimateRefusal as refusal:
        return {}, f"The secure sum cannot be read: {refusal} {_ALONE}", {}
    found = {label: (answers[of.place], of.per) for label, of in terms.items()}
    refused = {label: one for label, (one, _) in found.items() if isinstance(one, EstimateRefusal)}
    lacking = {label: f"The secure sum does not answer it: {one} {_ALONE}" for label, one in refused.items()}
    answered = {label: one.per(per) for label, (one, per) in found.items() if not isinstance(one, EstimateRefusal)}
    return answered, plan.release.interval_doubt if answered else "", lacking


def _pooled(
    rows: Sequence[Estimate], question: Estimand, term: str, pooling: Pooling, dictionary: Dictionary
) -> PooledResult | Refusal:
    """One term of a question over the sites, or why none can be pooled."""
    try:
        result = pool_estimates([row for row in rows if row.term == term], **pooling.how)
    except EstimateRefusal as refusal:
        return refusal
    return replace(result, effect=effect_name(question, term, time_unit(question, dictionary)))


def _spans(dictionary: Dictionary) -> dict[str, tuple[float, float]]:
    return {one.name: (one.lower, one.upper) for one in dictionary.columns if None not in (one.lower, one.upper)}  # type: ignore[misc]


def _of_table_one(term: str) -> dict[str, str]:
    from shared.estimands.columns import TableCell

    return asdict(TableCell.read(term))


def term_line(term: str, found: PooledResult | str) -> dict[str, Any]:
    """One line of `PooledAnswer.table`: both scales, or the reason."""
    blank = dict.fromkeys(("effect", "k", "estimate", "ci_lb", "ci_ub", "pval", "tau2", "I2", "beta", "se"))
    if isinstance(found, str):
        return {"term": term, **blank, "reason": found, "cautions": ()}
    answer = found if found.summed is None else found.summed
    ends = {name: shown(getattr(answer, name), found.scale) for name in ("ci_lb", "ci_ub")}
    own = {name: getattr(found, name) for name in ("effect", "k", "tau2", "I2", "beta")}
    own |= {name: getattr(answer, name) for name in ("pval", "se")}
    own |= {} if found.compares else {"pval": None}
    if found.summed is not None:  # tau2 and I2 stay those of the releases
        own |= {"k": len(found.summed.sites), "beta": found.summed.estimate, "summed": True}
    return {
        "term": term,
        **blank,
        **own,
        "estimate": shown(own["beta"], found.scale),
        **ends,
        "reason": "",
        "cautions": found.doubts,
    }


def _term(terms: tuple[str, ...], wanted: str) -> str:
    if not wanted:  # of a Table 1, what it describes, and not how often that is missing
        return next((term for term in terms if not term.startswith("missing(")), terms[0])
    plain = {term.split("/")[0]: term for term in reversed(terms)}
    if wanted in terms or wanted in plain:
        return wanted if wanted in terms else plain[wanted]
    of_column = [term for term in terms if ":" not in term and term.split("[")[0] == wanted]
    if len(of_column) == 1:  # a column of two levels has one
        return of_column[0]
    raise ParameterError(
        "the term must be in the question", given=repr(wanted), next_step=f"Terms: {', '.join(terms)}."
    )


def _by_cost(price: tuple[float | None, str]) -> float:
    """A release without an ε is the dearest."""
    return math.inf if price[0] is None else price[0]
