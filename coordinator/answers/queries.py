"""Queries of the accepted releases: a typed question in, an answer with its receipts out.

A release was paid for once, so a question costs nothing and contacts no site. Three rules hold for every answer. Only
*accepted* releases are read; what is quarantined does not exist here. One site's failure (an unreadable bundle, a
column its plan version did not have, a term its table cannot support) excludes that site or that term with the
reason, and never hides another's. And a question that is wrong at every site alike (an unknown column) is
refused before any table is opened, with the nearest names.

A question is put to *the table as of wave k*, site by site. What that table is follows from what each release did with
persons released before: under ``append`` a release adds rows to the earlier ones, under ``refresh`` and ``frozen`` it
replaces them (a frozen release holds the earlier rows itself). A wave that was closed can also be asked as of one of
its revisions: then nothing counts that the log took up after it, and the answer stays what it was. What was withdrawn
counts in no answer; the answer says what is lacking.
"""

from __future__ import annotations

import difflib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.pooling.cautions import theorem3
from coordinator.pooling.gaps import Gap, pooled_gap, released_flow, reperturbed
from coordinator.pooling.intervals import Draw, SurrogateSampler, inflation, with_release_variance
from coordinator.pooling.pool import Method, PooledResult, Test, pool_estimates
from shared.errors import EstimateRefusal, ParameterError, Refusal, StateRefusal
from shared.estimands.answer import Estimand, Estimate, estimate, parse_estimand, parse_formula
from shared.estimands.effects import effect_name, shown
from shared.estimands.formulas import QuestionRows
from shared.estimands.questions import SURVIVAL
from shared.estimands.words import asked, asked_of, in_words, time_unit
from shared.mechanisms.base import Answering
from shared.mechanisms.latent_noise.plan import TRAINED_BEFORE
from shared.privacy.stated import shown_price
from shared.terminal import plain

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.store.store import AcceptedRelease, Store, Tombstone
    from shared.plans.dictionary import Dictionary
    from shared.plans.federated import FederatedFlow
    from shared.plans.plan import StudyPlan
    from shared.releases.receipt import Receipt

__all__ = [
    "AnswerSource",
    "EstimateCache",
    "PooledAnswer",
    "ReleaseSelection",
    "ask",
    "holding",
    "lacking",
    "moved",
    "newest",
    "pooled",
    "question",
    "resolve",
    "uncompared",
    "uncompared_caution",
]
__all__ += ["absent", "draws_of", "no_column", "released_inflation", "rows_of", "site_answer", "site_estimates"]


@dataclass(frozen=True, kw_only=True)
class AnswerSource:
    """One release behind one site's estimate: what a reader of the number must know about it.

    Args:
        wave: the wave it was released in; earlier than the question's where a site has nothing newer.
        bundle_sha256: its bytes.
        log_index: its place in the coordinator's log.
        epsilon: of the release; None where it has no formal guarantee.
        study_epsilon: the cap on what the study may cost a person at this site, by the receipt's version of the plan;
            None where `epsilon` is.
        epsilon_given: what `epsilon` takes as given, or what nothing bounds where there is none; blank for nothing.
        censoring: of a question about time to an event, in words: the wave at which follow-up ended.
        hospitals: how many stand behind a site that speaks for several; 0 for a site that is one.
    """

    site: str
    wave: int
    release_id: str
    bundle_sha256: str
    log_index: int
    receipt: str
    plan_version: int
    n: int
    epsilon: float | None
    study_epsilon: float | None
    delta: float
    posture: str
    mechanism: str
    censoring: str = ""
    epsilon_given: str = ""
    hospitals: int = 0

    @property
    def price(self) -> tuple[float | None, str]:
        """ε and what it takes as given, as `shared.privacy.stated` prints them."""
        return self.epsilon, self.epsilon_given


@dataclass(frozen=True, kw_only=True)
class PooledAnswer:
    """A pooled answer with everything it rests on.

    Args:
        study: the study.
        wave: the wave k; the answer is from the table as of it.
        as_of: the revision of wave k that was asked for; None for all there is now.
        revisions: wave to its revision in force for this answer; None while a wave is open.
        combined: whether the rows of several refreshes of one site were put together.
        withdrawn: releases of waves up to k that their sites took back: not in the answer.
        gap: how far the pooled estimate from the records is predicted to lie from this one; None without released rows.
        flows_known: sites whose rows were released again for it, so that it holds what their flows take away.
        untold: why no number is told of it: it would not hold, or was never seen to; empty where one is.
        estimand: the question in one spelling.
        planned: name of the planned analysis, or empty: then the question is exploratory.
        term: the term that was pooled.
        terms: all terms the question has.
        estimates: one per site of `term`, excluded ones with their reason.
        result: both models, and what was left out.
        sources: one per release that the table as of the wave holds.
        words: what it is of, as the dictionary calls it; detail: what else stands in the model, and of whom it is.
        others: the other terms of the question, each pooled in the same way, or why it was not.
        uncompared: sites that have not compared since the coordinator was put back from a backup. Whoever tells the
            answer sets it: it is not kept with the answer.
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
        return dict(plain({name: getattr(self.result, name) for name in ("k", "beta", "se", "ci_lb", "ci_ub", "tau2")}))

    @property
    def title(self) -> str:
        """Title of its figure."""
        return self.words or asked(self.term, self.estimand)

    @property
    def caption(self) -> str:
        """What stands under the title: the exact question and where its numbers come from."""
        exact = f"{self.study}, wave {self.wave}: {asked(self.term, self.estimand)}."
        return " ".join(filter(None, (f"{self.detail}." if self.detail else "", exact, self.provenance)))

    @property
    def table(self) -> list[dict[str, Any]]:
        """Every term of the question, pooled: a line each, as a paper's table of coefficients has it."""
        return [
            term_line(term, self.result if term == self.term else self.others.get(term, "not asked"))
            for term in self.terms
        ]

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
        drawn = {source.site for source in self.sources if source.mechanism == "latent_noise"}
        used = [row for row in self.result.estimates if row.site in drawn]
        restored = (uncompared_caution(self.uncompared),) if self.uncompared else ()
        if not used:
            return restored
        persons = sum(row.n for row in used) / len(used)
        found = theorem3(len(used), persons, tau2=self.result.tau2, common=self.result.method == "FE")
        said = [condition.sentence for condition in found]
        if self.gap is not None:
            said.insert(0, self.untold or self.gap.sentence(scale=self.result.scale))
        return (*restored, *said)

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
        both = "; several refreshes put together, and their persons counted once" if self.combined else ""
        sites = f"{count} site{'s' * (count != 1)}"
        return f"Privatised releases of {sites}{rows}, plan version {versions}{state}; {kind}{both}."

    @property
    def document(self) -> dict[str, Any]:
        """The whole answer: what ``--json`` prints and the analysts' service sends."""
        from coordinator.pooling.pool import pooled_data

        names = ("study", "wave", "estimand", "planned", "as_of", "revisions", "combined", "withdrawn", "terms")
        document = {name: getattr(self, name) for name in names}
        document |= {"planned": self.planned or None, "estimates": self.estimates, "sources": self.sources}
        document |= {"title": self.title, "columns": self.columns, "told": self.provenance, "cautions": self.cautions}
        document |= {"caption": self.caption, "table": self.table}
        far = None
        if self.gap is not None and not self.untold:
            far = {"rms": self.gap.rms, "interval": self.gap.interval, "how": self.gap.how}
        document |= {"gap": far}
        return {**document, **pooled_data(self.result)}


@dataclass(frozen=True, kw_only=True)
class ReleaseSelection:
    """The releases that a question would be answered from, before it is asked.

    Args:
        wave: the table as of this wave.
        as_of, combined: as of `PooledAnswer`.
        parts: site to the releases whose rows together are its table.
        behind: site to its further releases whose receipts tell where these rows came from (`_behind`).
        withdrawn: releases of waves up to it that their sites took back.
        revisions: as of `PooledAnswer`.
    """

    wave: int
    as_of: int | None
    combined: bool
    parts: Mapping[str, tuple[AcceptedRelease, ...]]
    behind: Mapping[str, tuple[AcceptedRelease, ...]]
    withdrawn: tuple[Tombstone, ...]
    revisions: Mapping[int, int | None]

    @property
    def used(self) -> dict[str, str]:
        """SHA-256 of every bundle, with its site."""
        return {release.bundle_sha256: site for site, releases in self.parts.items() for release in releases}

    @property
    def rests(self) -> dict[str, str]:
        """SHA-256 of every bundle that an answer depends on, be it for its receipt alone, with its site."""
        behind = {release.bundle_sha256: site for site, releases in self.behind.items() for release in releases}
        return behind | self.used


class EstimateCache:
    """Sites' estimates that were worked out lately: another pooling, or another site's new release, fits none again.

    And what was worked out of their tables for any question, so that the next one finds it.

    Args:
        most: how many sites' answers are kept.
        tables: of how many sites' tables something is kept.
        cells: rows times columns of the tables that are kept themselves, at most.

    >>> kept = EstimateCache(most=1)
    >>> kept(("a",), list), kept(("b",), list), len(kept)
    ([], [], 1)
    """

    def __init__(self, most: int = 4096, tables: int = 64, cells: int = 1 << 24) -> None:
        self._most, self._tables, self._cells = most, tables, cells
        self._known: OrderedDict[tuple[str, ...], list[Estimate]] = OrderedDict()
        self._surrogates: OrderedDict[tuple[str, ...], SurrogateSampler] = OrderedDict()
        self._rows: OrderedDict[tuple[str, ...], QuestionRows] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, key: tuple[str, ...], work: Callable[[], list[Estimate]]) -> list[Estimate]:
        """Cached estimates under `key`, else the result of `work`, which is cached unless it raises."""
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        found = work()
        with self._lock:
            self._known[key] = found
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return found

    def surrogate(self, bundles: tuple[str, ...]) -> SurrogateSampler:
        """The surrogate of the table that is made of these bundles."""
        with self._lock:
            found = self._surrogates.setdefault(bundles, SurrogateSampler())
            self._surrogates.move_to_end(bundles)
            while len(self._surrogates) > self._tables:
                self._surrogates.popitem(last=False)
        return found

    def rows(self, bundles: tuple[str, ...], read: Callable[[], pd.DataFrame]) -> QuestionRows:
        """The table that is made of these bundles, as questions read it; `read` gives it where it is not kept."""
        with self._lock:
            known = self._rows.get(bundles)
            if known is not None:
                self._rows.move_to_end(bundles)
                return known
        found = QuestionRows(read())
        with self._lock:
            self._rows[bundles] = found
            while len(self._rows) > self._tables or sum(rows.cells for rows in self._rows.values()) > self._cells:
                self._rows.popitem(last=False)
        return found

    def forget(self, taken: Collection[str]) -> None:
        """Keep nothing of tables with a bundle that its site took back."""
        if not taken:
            return
        with self._lock:
            for cache in (self._surrogates, self._rows):
                for bundles in [key for key in cache if not set(taken).isdisjoint(key)]:
                    del cache[bundles]


def uncompared(store: Store, used: Collection[str]) -> tuple[str, ...]:
    """Sites of these bundles that have not compared since the coordinator was put back (`Store.uncompared`)."""
    return tuple(sorted({site for bundle, site in store.uncompared().items() if bundle in used}))


def uncompared_caution(sites: Sequence[str]) -> str:
    """What a reader must know of an answer from before these sites have compared."""
    have = "have" if len(sites) > 1 else "has"
    return (
        f"The coordinator was put back from a backup, and {', '.join(sites)} {have} not compared since: "
        "a release that was withdrawn after the backup may be in this answer."
    )


def newest(store: Store, study: str) -> int:
    """The newest wave that has an accepted release. Raises: EstimateRefusal (none has)."""
    waves = [release.wave for release in store.releases(study)]
    if not waves:
        raise EstimateRefusal(f"study {study} must have an accepted release", given="none")
    return max(waves)


def holding(
    store: Store, study: str, wave: int = 0, *, as_of: int | None = None, combine: bool = False
) -> ReleaseSelection:
    """Releases that `ask` would read; of the newest wave with a release when none is named.

    Raises: PlanRefusal (no such wave), ParameterError (no such revision), EstimateRefusal (no release at all).
    """
    wave = wave or newest(store, study)
    cut = _cut(store, study, wave, as_of, combine)
    parts = {site: tuple(releases) for site, releases in sorted(_as_of_wave(store, study, wave, cut).items())}
    known = [
        release
        for release in store.releases(study, withdrawn=True)
        if cut.last is None or release.log_index <= cut.last
    ]
    return ReleaseSelection(
        wave=wave,
        as_of=as_of,
        combined=combine,
        parts=parts,
        behind={site: _behind(releases, [r for r in known if r.site == site]) for site, releases in parts.items()},
        withdrawn=tuple(stone for stone in store.withdrawals(study) if stone.wave <= wave),
        revisions=cut.revisions,
    )


def question(kind: str, formula: str, options: Mapping[str, str] | None = None) -> str | Estimand:
    """A kind and a formula as in R; without a kind, the formula is the whole question or a planned analysis' name.

    Raises: ParameterError: outside the grammar.

    >>> str(question("cox", "Surv(time, cvd) ~ sbp/10 + age", {"subset": "age >= 60"}))
    'cox(time, cvd, subset = age >= 60) ~ sbp/10 + age'
    """
    if kind:
        return parse_formula(kind, formula, **(options or {}))
    if options:
        raise ParameterError("a question without a kind must hold its own options", given=", ".join(options))
    return formula.strip()


def no_column(plan: StudyPlan, name: str, lack: str = "") -> ParameterError:
    """The refusal of a column that the study does not have; `lack` names the sites without it (`lacking`)."""
    columns = [column.name for column in plan.dictionary.released]
    near = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
    return ParameterError(
        f"study {plan.study} must have the column",
        given=repr(name) + lack,
        next_step=f"Nearest: {', '.join(near)}." if near else f"Columns: {', '.join(columns)}.",
    )


def lacking(store: Store, study: str, name: str) -> str:
    """Sites whose newest release lacks the column, in words."""
    known = {release.site: release for release in store.releases(study)}  # by wave: the newest stays
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
            raise no_column(plan, name, lack(name))
    if found.kind == "km" and found.at is None:
        raise ParameterError(
            "km must have a time to be one number",
            given=str(found),
            next_step=f"Write {replace(found, at=5.0)!s}, with the time you ask about: the same at every site.",
        )
    return found, names.get(str(found), "")


def site_estimates(store: Store, study: str, wave: int, estimand: str | Estimand) -> list[Estimate]:
    """Answer one question at every site with an accepted release: sites by name, terms in the question's order.

    A site that fails has one `Estimate` per term without a number, and the reason.
    Raises: what `resolve` raises; PlanRefusal (no such study); EstimateRefusal (no accepted release in this wave).
    """
    return _estimates(store, study, holding(store, study, wave), estimand)[0]


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
    as_of: int | None = None,
    combine: bool = False,
    term: str = "",
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    held: ReleaseSelection | None = None,
    cache: EstimateCache | None = None,
    perturbations: int = 0,
    trained: FederatedFlow | None = None,
) -> PooledAnswer:
    """`pooled`, with the estimates and the releases it rests on.

    Args:
        held: what `holding` gave for this study, wave, revision and choice, when the caller has asked it already.
        cache: sites' estimates from earlier questions.
        as_of: a revision of the wave; all there is now when left out.
        perturbations: how often rows whose flow is public are released again, to see what drawing did to them; 0 for
            not.
        trained: the flow that the plan names, for that.
        combine: put the rows of all refreshes of a site together. They are noisy copies of the same persons, who
            are counted once; say so with the result.
    Raises: what `site_estimates` raises; ParameterError (no such term, method, test or revision); StateRefusal (a
        release was taken back while it was read).
    """
    held = held or holding(store, study, wave, as_of=as_of, combine=combine)
    plan = store.plan(study).plan
    rows, question, planned, sources = _estimates(store, study, held, estimand, cache)
    terms = tuple(dict.fromkeys(row.term for row in rows))
    chosen = _term(terms, term)
    estimates = tuple(row for row in rows if row.term == chosen)
    found = {term: _pooled(rows, question, term, method, test, level, plan.dictionary) for term in terms}
    result = found.pop(chosen)
    if isinstance(result, Refusal):
        raise result
    known = _released_again(store, study, held, question, chosen, perturbations, trained) if perturbations else {}
    return PooledAnswer(
        study=study,
        wave=wave,
        estimand=str(question),
        planned=planned,
        term=chosen,
        terms=terms,
        estimates=estimates,
        result=result,
        gap=pooled_gap(result, _fitted_elsewhere(held), known),
        flows_known=tuple(known),
        untold=_untold(held, known),
        sources=sources,
        as_of=held.as_of,
        revisions=held.revisions,
        combined=held.combined,
        withdrawn=held.withdrawn,
        words=in_words(question, chosen, plan.dictionary),
        detail=asked_of(question, chosen, plan.dictionary),
        others={term: str(one) if isinstance(one, Refusal) else one for term, one in found.items()},
    )


def _pooled(
    rows: Sequence[Estimate],
    question: Estimand,
    term: str,
    method: Method,
    test: Test,
    level: float,
    dictionary: Dictionary,
) -> PooledResult | Refusal:
    """One term of a question over the sites, or why none can be pooled."""
    try:
        result = pool_estimates([row for row in rows if row.term == term], method=method, test=test, level=level)
    except EstimateRefusal as refusal:
        return refusal
    return replace(result, effect=effect_name(question, term, time_unit(question, dictionary)))


def term_line(term: str, found: PooledResult | str) -> dict[str, Any]:
    """One line of `PooledAnswer.table`: both scales, or the reason."""
    blank = dict.fromkeys(("effect", "k", "estimate", "ci_lb", "ci_ub", "pval", "tau2", "I2", "beta", "se"))
    if isinstance(found, str):
        return {"term": term, **blank, "reason": found}
    ends = {name: shown(getattr(found, name), found.scale) for name in ("ci_lb", "ci_ub")}
    own = {name: getattr(found, name) for name in ("effect", "k", "pval", "tau2", "I2", "beta", "se")}
    return {"term": term, **blank, **own, "estimate": shown(found.beta, found.scale), **ends, "reason": ""}


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """Filter of releases: those that the log took up until `last`."""

    last: int | None = None
    combine: bool = False
    revisions: Mapping[int, int | None] = field(default_factory=dict)


def _cut(store: Store, study: str, wave: int, as_of: int | None, combine: bool) -> _Cut:
    store.plan(study).plan.wave(wave)
    records = {number: store.wave_record(study, number) for number in range(1, wave + 1)}
    revisions = {number: record.revision for number, record in records.items()}
    if as_of is None:
        return _Cut(combine=combine, revisions=revisions)
    known = {revision.number: revision for revision in records[wave].revisions}
    if as_of not in known:
        step = f"Revisions: 0 to {max(known)}." if known else "It has not been closed yet (coordinator wave close)."
        raise ParameterError(f"wave {wave} must have the revision", given=f"{as_of}", next_step=step)
    last = known[as_of].log_index
    then: dict[int, int | None] = {}
    for number, record in records.items():
        before = [revision.number for revision in record.revisions if revision.log_index <= last]
        then[number] = before[-1] if before else None
    return _Cut(last=last, combine=combine, revisions=then)


def _as_of_wave(store: Store, study: str, wave: int, cut: _Cut) -> dict[str, list[AcceptedRelease]]:
    """The releases whose rows together are each site's table as of the wave."""
    replaces = {
        stored.plan.hash: stored.plan.returning != "append" for stored in store.plans() if stored.plan.study == study
    }
    parts: dict[str, list[AcceptedRelease]] = {}
    for release in store.releases(study):  # by wave
        if release.wave > wave or (cut.last is not None and release.log_index > cut.last):
            continue
        own = parts.setdefault(release.site, [])
        if replaces[release.plan_hash] and not cut.combine:
            own.clear()
        own.append(release)
    return parts


def moved() -> StateRefusal:
    """The refusal of a question whose releases changed while it was answered."""
    return StateRefusal(
        "the releases must stay the same while a question is answered", given="others", next_step="Ask again."
    )


def rows_of(store: Store, releases: Sequence[AcceptedRelease], withdrawn: Collection[str]) -> pd.DataFrame:
    """The rows of several releases of one site, those of `withdrawn` (bundles that were taken back) left out."""
    import pandas as pd

    tables = [store.table(release, withdrawn=withdrawn) for release in releases]
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _censoring(store: Store, release: AcceptedRelease, question: Estimand) -> str:
    """At which wave follow-up ended for a release's rows; of other questions nothing."""
    if question.kind not in SURVIVAL:
        return ""
    if release.wave > 1 and store.plan(release.study, release.plan_version).plan.returning == "frozen":
        return f"each row at its own first wave, 1 to {release.wave}"
    return f"wave {release.wave}"


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
    store: Store, study: str, held: ReleaseSelection, estimand: str | Estimand, cache: EstimateCache | None = None
) -> tuple[list[Estimate], Estimand, str, tuple[AnswerSource, ...]]:
    plan = store.plan(study).plan
    wave = held.wave
    question, planned = resolve(plan, estimand, lack=lambda name: lacking(store, study, name))
    levels: Mapping[str, Any] = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    answered: dict[str, list[Estimate]] = {}
    failed: dict[str, str] = {}
    sources = []
    if not any(release.wave == wave for releases in held.parts.values() for release in releases):
        withdrawn = sum(stone.wave == wave for stone in held.withdrawn)
        raise EstimateRefusal(
            f"wave {wave} of {study} must have an accepted release",
            given=f"none but {withdrawn} withdrawn" if withdrawn else "none",
            next_step="See coordinator releases.",
        )
    versions = {releases[-1].plan_version for releases in held.parts.values()}
    plans = {version: store.plan(study, version).plan for version in versions}
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    if not taken.isdisjoint(held.used):
        raise moved()
    if cache is not None:
        cache.forget(taken)
    beside: dict[str, list[Estimate]] = {}
    unanswerable: EstimateRefusal | None = None
    try:
        beside = _together(store, study, held, question, taken, cache)
    except EstimateRefusal as refusal:
        unanswerable = refusal
    except Refusal:
        pass  # of one site's bundle, which answers for itself below
    for site, releases in held.parts.items():
        sources += [_source(store, release, question) for release in releases]
        origin = {
            "study": study,
            "site": site,
            "wave": wave,
            "receipts": tuple(release.receipt.hash for release in releases),
            "levels": levels,
        }
        behind = held.behind[site]
        digests = tuple(release.bundle_sha256 for release in releases)
        surrogate = None if cache is None else cache.surrogate(digests)
        how: dict[str, Any] = {"behind": behind, "combined": held.combined, "surrogate": surrogate, "origin": origin}
        how |= {"plan": plans[releases[-1].plan_version]}
        if cache is not None:
            how |= {"rows": partial(cache.rows, digests, partial(rows_of, store, releases, taken))}
        work = partial(site_answer, store, releases, taken, question, **how)
        # The bundles' digests are the table, the plan's hash its levels, what is behind them its variance; what was
        # taken back, and whether refreshes are put together, is what else an answer's own id holds.
        back = [stone.bundle_sha256 for stone in held.withdrawn if stone.site == site]
        further = [release.bundle_sha256 for release in behind]
        key = (plan.hash, str(question), f"{wave}", f"{held.combined}", site, *digests, "behind", *further)
        try:
            for release in releases:  # a kept number is no reason to look away from its bundle
                store.check(release, withdrawn=taken)
            if unanswerable is not None:
                raise unanswerable
            if site in beside:
                answered[site] = beside[site]
                continue
            answered[site] = cache((*key, "without", *back), work) if cache is not None else work()
        except Refusal as refusal:
            failed[site] = str(refusal)
    if any(stone.bundle_sha256 in held.used for stone in store.withdrawals(study)):
        raise moved()  # what a site took back in the meantime answers nothing
    first = next(iter(answered.values()), [])
    terms = [row.term for row in first] or list(question.labels)
    for site, reason in failed.items():
        answered[site] = [absent(study, site, wave, term, question, reason) for term in terms]
    return [row for site in sorted(answered) for row in answered[site]], question, planned, tuple(sources)


def _together(
    store: Store,
    study: str,
    held: ReleaseSelection,
    question: Estimand,
    taken: Collection[str],
    cache: EstimateCache | None,
) -> dict[str, list[Estimate]]:
    """Site to its answer beside the other sites', where they released figures under one plan; empty where not."""
    every = [release for releases in held.parts.values() for release in releases]
    plans = [store.plan(study, version).plan for version in sorted({one.plan_version for one in every})]
    plan = plans[-1]
    mine = (plan.release, plan.dictionary, plan.budget.delta)  # the noise follows from δ
    same = all((one.release, one.dictionary, one.budget.delta) == mine for one in plans)
    if not isinstance(plan.release, Answering) or not same or held.combined:
        return {}
    release = plan.release
    origins = {
        site: {
            "study": study,
            "site": site,
            "wave": held.wave,
            "receipts": tuple(one.receipt.hash for one in releases),
        }
        for site, releases in held.parts.items()
    }

    def work() -> list[Estimate]:
        figures = {
            site: [(rows_of(store, [one], taken), one.receipt.n) for one in releases]
            for site, releases in held.parts.items()
        }
        found = release.together(plan, figures, question, origins=origins)
        return [row for rows in found.values() for row in rows]

    key = ("together", plan.hash, str(question), f"{held.wave}", *sorted(held.used))
    rows = cache(key, work) if cache is not None else work()
    return {site: [row for row in rows if row.site == site] for site in {row.site for row in rows}}


def site_answer(
    store: Store,
    releases: Sequence[AcceptedRelease],
    taken: Collection[str],
    question: Estimand,
    *,
    behind: Sequence[AcceptedRelease],
    combined: bool,
    surrogate: SurrogateSampler | None,
    origin: dict[str, Any],
    through: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
    plan: StudyPlan | None = None,
    rows: Callable[[], QuestionRows] | None = None,
) -> list[Estimate]:
    """One site's estimates, one per term, from its table or from its noisy figures.

    Args:
        through: what is done to its rows first; figures have none.
        plan: of the last of the releases, where the caller has it.
        rows: gives the releases' rows, where the caller keeps them.
    Raises: EstimateRefusal (a column its plan version did not have, figures beside rows), and what `estimate` raises.
    """
    plan = plan or store.plan(releases[-1].study, releases[-1].plan_version).plan
    absent = [name for name in question.columns if name not in plan.dictionary.names]
    if absent:
        raise EstimateRefusal(f"its plan version {releases[-1].receipt.plan_version} has no column {', '.join(absent)}")
    kinds = {release.receipt.mechanism for release in releases}
    if len(kinds) > 1:
        raise EstimateRefusal("a site's releases must be of one mechanism", given=", ".join(sorted(kinds)))
    if isinstance(plan.release, Answering):
        if combined and len(releases) > 1 and plan.redraws:
            raise EstimateRefusal("several refreshes of figures must not be put together", given=f"{len(releases)}")
        if any(store.plan(one.study, one.plan_version).plan.release != plan.release for one in releases):
            raise EstimateRefusal("a site's releases must be of one [release] to be added up", given="several")
        figures = [(rows_of(store, [release], taken), release.receipt.n) for release in releases]
        return plan.release.answer(plan, figures, question, **origin)
    if through is not None:
        table = QuestionRows(through(rows_of(store, releases, taken)))
    else:
        table = rows() if rows is not None else QuestionRows(rows_of(store, releases, taken))
    return with_release_variance(
        estimate(table, question, **origin),
        table,
        question,
        draws_of(releases, behind),
        levels=origin["levels"],
        copies=_copies(releases, combined),
        postures=[release.receipt.posture for release in releases],
        surrogate=surrogate,
    )


def released_inflation(releases: Sequence[AcceptedRelease], behind: Sequence[AcceptedRelease], combined: bool) -> float:
    """Variance inflation of a share of a site's released rows (`intervals.inflation`)."""
    return inflation(draws_of(releases, behind), copies=_copies(releases, combined))


def _copies(releases: Sequence[AcceptedRelease], combined: bool) -> bool:
    """True if a site's rows hold the same persons more than once."""
    return combined and len(releases) > 1 and any(release.receipt.returning != "append" for release in releases)


def _behind(releases: Sequence[AcceptedRelease], known: Sequence[AcceptedRelease]) -> tuple[AcceptedRelease, ...]:
    """Earlier releases whose receipts are needed for the variance, by wave, withdrawn ones included.

    Those whose flow drew the rows, and under ``frozen`` those whose rows were copied.
    """
    held = {release.release_id for release in releases}
    copied = [
        earlier
        for earlier in known
        for release in releases
        if release.receipt.returning == "frozen" and earlier.wave < release.wave
    ]
    flows = {release.receipt.flow_of for release in (*releases, *copied)} | {other.release_id for other in copied}
    return tuple(other for other in known if other.release_id in flows and other.release_id not in held)


def draws_of(releases: Sequence[AcceptedRelease], behind: Sequence[AcceptedRelease]) -> list[Draw]:
    """Through which flows the rows of a site's table were drawn, by the receipts.

    A copied row (``frozen``) was drawn at the w of the release it was drawn for; receipts of earlier releases say how
    many there are.
    """
    all_of_it = sorted((*releases, *behind), key=lambda release: release.wave)
    known = {found.release_id: found.receipt for found in all_of_it}
    out = []
    for release in releases:
        receipt = release.receipt
        left = receipt.n
        copied = [found.receipt for found in all_of_it if found.wave < release.wave]
        for earlier in copied if receipt.returning == "frozen" else []:
            if earlier.mechanism != receipt.mechanism:
                continue
            rows = min(earlier.drawn, receipt.n - receipt.drawn, left - receipt.drawn)
            if rows > 0:
                out.append(_draw(earlier, rows, known))
                left -= rows
        if left > 0:
            out.append(_draw(receipt, left, known))
    return out


def _draw(receipt: Receipt, rows: int, known: Mapping[str, Receipt]) -> Draw:
    fitted = known.get(receipt.flow_of, receipt)
    persons: int | None = max(1, fitted.drawn)
    if receipt.posture == "public" or receipt.conditional_on == TRAINED_BEFORE:
        # Under a plan that names a flow of several sites its error is theirs together, and no part of this site's
        # interval: a warning says so (`intervals`).
        persons = None
    elif receipt.posture == "holdout":
        share = float(receipt.parameters["holdout"])
        persons = max(1, round(fitted.drawn * share / (1 - share)))
    return Draw(
        rows=rows,
        w=_weight(receipt),
        flow=receipt.flow_of,
        fitted_on=persons,
        among=receipt.posture != "holdout",
        outcomes_last=receipt.parameters.get("outcomes_last") == 1.0,
    )


def _fitted_elsewhere(held: ReleaseSelection) -> dict[str, float | None]:
    """Site of released rows to the persons, per row, that its flow was fitted on where these are others; else None."""
    out: dict[str, float | None] = {}
    for site, releases in held.parts.items():
        receipt = releases[-1].receipt
        if receipt.mechanism == "latent_noise":
            share = float(receipt.parameters.get("holdout", 0.0))
            out[site] = share / (1 - share) if receipt.posture == "holdout" else None
    return out


def _untold(held: ReleaseSelection, known: Collection[str]) -> str:
    """Why no number is told of how far the records' own estimate lies; empty where the number was seen to hold."""
    drawn = {site: parts[-1].receipt for site, parts in held.parts.items() if site not in known}
    drawn = {site: receipt for site, receipt in drawn.items() if receipt.mechanism == "latent_noise"}
    unseen = sorted(site for site, receipt in drawn.items() if receipt.posture in ("public", "private"))
    if unseen:
        return _UNTOLD.format(f"the flow of {', '.join(unseen)} was not fitted on the records as they are")
    joint = sorted(site for site, receipt in drawn.items() if receipt.parameters.get("outcomes_last") != 1.0)
    return _UNTOLD.format(f"the flow of {', '.join(joint)} draws outcomes together with covariates") if joint else ""


_UNTOLD = (
    "How far the estimate from the records themselves lies from this one is not known: {}, and what that takes away or "
    "adds may be more than the release's noise."
)


def _released_again(
    store: Store,
    study: str,
    held: ReleaseSelection,
    question: Estimand,
    term: str,
    times: int,
    trained: FederatedFlow | None,
) -> dict[str, Gap]:
    """Site to the gap of its estimate, where its rows' flow is public; a site that cannot answer has none."""
    from shared.mechanisms.latent_noise.plan import mechanism
    from shared.plans.encoding import Encoder

    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    out: dict[str, Gap] = {}
    for site, releases in held.parts.items():
        plan = store.plan(study, releases[-1].plan_version).plan
        encoder = Encoder(dictionary=plan.dictionary)
        flow = released_flow(plan, encoder, site, trained)
        if flow is None:
            continue
        levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
        try:
            rows = rows_of(store, releases, taken)
            found = reperturbed(mechanism(plan, flow), encoder, rows, question, levels=levels, times=times)
        except Refusal:
            continue  # the answer itself says why the site is not in it
        if term in found:
            out[site] = found[term]
    return out


def _by_cost(price: tuple[float | None, str]) -> float:
    """A release without an ε is the dearest."""
    return math.inf if price[0] is None else price[0]


def _weight(receipt: Receipt) -> float:
    """Effective weight: the w of an unmodified release with the same information about a record."""
    w, shrink = float(receipt.parameters["w"]), float(receipt.parameters.get("shrink", 1.0))
    vary = next((name.removeprefix("vary_") for name in receipt.parameters if name.startswith("vary_")), "")
    if shrink == 1 and not vary:
        return w
    from shared.mechanisms.latent_noise.noise import kept_weight

    return kept_weight(w, float(receipt.parameters["radius"]), shrink, receipt.d, vary)


def _source(store: Store, release: AcceptedRelease, question: Estimand) -> AnswerSource:
    receipt = release.receipt
    return AnswerSource(
        site=release.site,
        wave=release.wave,
        release_id=release.release_id,
        bundle_sha256=release.bundle_sha256,
        log_index=release.log_index,
        receipt=receipt.hash,
        plan_version=receipt.plan_version,
        n=receipt.n,
        epsilon=receipt.stated_epsilon,
        study_epsilon=receipt.stated_study_epsilon,
        epsilon_given=receipt.given,
        delta=receipt.delta,
        posture=receipt.posture,
        mechanism=receipt.mechanism,
        hospitals=receipt.hospitals,
        censoring=_censoring(store, release, question),
    )


def absent(study: str, site: str, wave: int, term: str, question: Estimand, reason: str) -> Estimate:
    """A site without an answer to a term, and why."""
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
