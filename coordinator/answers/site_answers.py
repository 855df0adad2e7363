"""Estimates of each site from its releases, with their variances and cautions, and a cache of them.

No estimate is fitted again for another pooling, or for another site's new release.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from coordinator.pooling.intervals import Draw, SurrogateSampler, inflation, releasing
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands.answer import Estimand, Estimate, Origin, estimating
from shared.estimands.fits.cox import Fitting, side_by_side
from shared.estimands.formulas import QuestionRows
from shared.estimands.questions import SURVIVAL
from shared.mechanisms.base import Answering, may_share_persons, require_addable
from shared.mechanisms.latent_noise.plan import TRAINED_BEFORE

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.store.store import AcceptedRelease, Store
    from shared.plans.plan import StudyPlan
    from shared.releases.receipt import Receipt
from coordinator.answers.release_selection import ReleaseSelection, last_of, moved, rows_of
from coordinator.answers.resolving import absent, lacking, reason_of, resolve

__all__ = [
    "AnswerSource",
    "EstimateCache",
    "answers_of_sites",
    "copies",
    "draws_of",
    "released_inflation",
    "require_askable",
    "site_answer",
]


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
        epsilon_given: condition that `epsilon` takes as given, or without an ε what is not bounded; blank for none.
        censoring: of a question about time to an event, in words: the wave at which follow-up ended.
        hospitals: number of hospitals that a site reports for; 0 for a single one.
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


LOOKED_AT = 64
"""Small tables that are taken in between two looks at what all of them hold."""


@dataclass(kw_only=True)
class _Known:
    """Cached data of one site's table: its surrogate sampler and its rows, each None until a question needs it."""

    surrogate: SurrogateSampler | None = None
    rows: QuestionRows | None = None

    @property
    def cells(self) -> int:
        """Numbers that it holds, about."""
        return sum(one.cells for one in (self.surrogate, self.rows) if one is not None)


Place = tuple[str, ...]
"""Site (blank for several together), and what names the table that it answers from."""


class KeptAnswers(Protocol):
    """Store of sites' estimates shared between processes: `coordinator.services.compute.kept_estimates`."""

    def of(self, about: Sequence[str], places: Collection[Place]) -> dict[Place, list[Estimate]]:
        """Stored estimates of a question at these places; a place without any is left out."""

    def add(
        self, about: Sequence[str], study: str, made: Mapping[Place, Sequence[Estimate]], used: Collection[str]
    ) -> None:
        """Keep answers to a question, which rest on the bundles `used`."""


class EstimateCache:
    """Sites' estimates that were worked out lately: another pooling, or another site's new release, fits none again.

    And what was worked out of their tables for any question, so that the next one finds it. A question reads the sites
    in turn: were the oldest to go where room is short, no site would ever find its table again. So what is there mostly
    stays, and a new table takes the place of another by lot; what is drawn like one, which is drawn again sooner than a
    table is read, goes first.

    Args:
        most: number of sites' answers that are cached.
        cells: numbers that may be kept of their tables, and of what is drawn like them; eight bytes each, and as much
            again for what questions make of them.

    >>> cache = EstimateCache(most=1)
    >>> for site in ("a", "b"):
    ...     cache.keep(["mean(sbp)"], "heart", {(site,): []}, used=())
    >>> cache.answers(["mean(sbp)"], [("a",), ("b",)])
    {('b',): []}
    """

    def __init__(self, most: int = 1 << 15, cells: int = 1 << 24) -> None:
        self._most, self._cells, self._lots = most, cells, random.Random(0)
        self._answers: OrderedDict[tuple[tuple[str, ...], Place], Sequence[Estimate]] = OrderedDict()
        self._tables: dict[tuple[str, ...], _Known] = {}
        self._latest: list[tuple[str, ...]] = []
        self._lock = threading.Lock()
        self.kept: KeptAnswers | None = None
        """Store shared with other processes; None if there is none."""

    def answers(self, about: Sequence[str], places: Collection[Place]) -> dict[Place, Sequence[Estimate]]:
        """Cached estimates of a question at these places, of this process or shared; others are left out."""
        found, keys = dict[Place, Sequence[Estimate]](), {place: (tuple(about), place) for place in places}
        with self._lock:
            for place, key in keys.items():
                if key in self._answers:
                    self._answers.move_to_end(key)
                    found[place] = self._answers[key]
        if self.kept is not None and (lacking := keys.keys() - found.keys()):
            read = self.kept.of(about, lacking)
            self._remember(about, read)
            found |= read
        return found

    def keep(
        self, about: Sequence[str], study: str, made: Mapping[Place, Sequence[Estimate]], used: Collection[str]
    ) -> None:
        """Keep answers to a question, which rest on the bundles `used`."""
        self._remember(about, made)
        with self._lock:
            self._make_room()
        if self.kept is not None and made:
            self.kept.add(about, study, made, used)

    def _remember(self, about: Sequence[str], made: Mapping[Place, Sequence[Estimate]]) -> None:
        with self._lock:
            self._answers |= {(tuple(about), place): rows for place, rows in made.items()}
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)

    def surrogate(self, bundles: tuple[str, ...]) -> SurrogateSampler:
        """The surrogate of the table that is made of these bundles."""
        with self._lock:
            known = self._tables.setdefault(bundles, _Known())
            if known.surrogate is None:
                known.surrogate = SurrogateSampler()
            return known.surrogate

    def rows(self, bundles: tuple[str, ...], read: Callable[[], pd.DataFrame]) -> QuestionRows:
        """The table that is made of these bundles, as questions read it; `read` gives it where it is not kept."""
        with self._lock:
            known = self._tables.get(bundles)
            if known is not None and known.rows is not None:
                return known.rows
        found = QuestionRows(read())
        with self._lock:
            self._tables.setdefault(bundles, _Known()).rows = found
            self._latest.append(bundles)
            if len(self._latest) >= LOOKED_AT or found.cells > self._cells // LOOKED_AT:
                self._make_room()
        return found

    def _make_room(self) -> None:
        """Let go of what is drawn like some tables, then of tables, until the others fit.

        By lot; of the latest tables seven times as readily as of the others.
        """
        held = {key: known.cells for key, known in self._tables.items()}
        latest, total = [key for key in dict.fromkeys(self._latest) if key in held], sum(held.values())
        others = [key for key in held if key not in self._latest]
        self._latest.clear()
        for key in self._lots.sample([*held], len(held) if total > self._cells else 0):
            if total > self._cells and (surrogate := self._tables[key].surrogate) is not None:
                surrogate.forget_drawn()
                total += self._tables[key].cells - held[key]
                held[key] = self._tables[key].cells
        self._lots.shuffle(latest)
        self._lots.shuffle(others)
        while total > self._cells:
            gone = latest if latest and (not others or self._lots.random() < 7 / 8) else others
            total -= held[gone[-1]]
            del self._tables[gone.pop()]

    def forget(self, taken: Collection[str]) -> None:
        """Keep nothing of tables with a bundle that its site took back."""
        if not taken:
            return
        with self._lock:
            for bundles in [key for key in self._tables if not set(taken).isdisjoint(key)]:
                del self._tables[bundles]


def _censoring(store: Store, release: AcceptedRelease, question: Estimand) -> str:
    """Wave at which follow-up ended for a release's rows, in words; blank for a question that is not of survival."""
    if question.kind not in SURVIVAL:
        return ""
    if release.wave > 1 and store.plan(release.study, release.plan_version).plan.returning == "frozen":
        return f"each row at its own first wave, 1 to {release.wave}"
    return f"wave {release.wave}"


def answers_of_sites(
    store: Store, held: ReleaseSelection, estimand: str | Estimand, cache: EstimateCache | None = None
) -> tuple[list[Estimate], Estimand, str, tuple[AnswerSource, ...]]:
    """Every site's line for every term, the question as parsed, its planned name, and the releases behind it.

    A site that fails has a line for each term without a number, and the reason.
    Raises: what `resolve` raises; PlanRefusal (no such study); EstimateRefusal (no accepted release in this wave).
    """
    study, wave = held.study, held.wave
    plan = store.plan(study).plan
    question, planned = resolve(plan, estimand, lack=lambda name: lacking(store, study, name))
    if question.unsettled:
        question = question.with_knots(_quantiles(store, held, plan))
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
    unanswerable: dict[str, EstimateRefusal] = {}
    beside = _together(store, held, question, taken, cache, unanswerable)
    about = (plan.hash, str(question), f"{held.combined}")  # the plan's hash is its levels
    places = {site: _place(held, site) for site in held.parts if site not in beside}
    known = {} if cache is None else cache.answers(about, places.values())
    made: dict[Place, Sequence[Estimate]] = {}
    lasts: dict[int, frozenset[str]] = {}

    def answering(site: str, releases: Sequence[AcceptedRelease]) -> Fitting[list[Estimate]]:
        answer = beside.get(site) or known.get(places.get(site, ()))
        for release in releases:  # a kept number is no reason to look away from its bundle
            store.check(release, withdrawn=taken, read=answer is None)
        if site in unanswerable:
            raise unanswerable[site]
        if answer is None:
            of_site = plans[releases[-1].plan_version]
            answer = yield from _working_out(store, held, site, question, of_site, levels, taken, cache, lasts)
            made[places[site]] = answer
        return [row if row.wave == wave else replace(row, wave=wave) for row in answer]

    answers = side_by_side(answering(site, releases) for site, releases in held.parts.items())
    for (site, releases), found in zip(held.parts.items(), answers, strict=True):
        sources += [_source(store, release, question) for release in releases]
        if isinstance(found, Refusal):
            failed[site] = reason_of(found)
        else:
            answered[site] = found
    if any(stone.bundle_sha256 in held.used for stone in store.withdrawals(study)):
        raise moved()  # what a site took back in the meantime answers nothing
    if cache is not None:
        cache.keep(about, study, made, held.used)
    first = next(iter(answered.values()), [])
    terms = [row.term for row in first] or list(question.labels)
    for site, reason in failed.items():
        answered[site] = [absent(study, site, wave, term, question, reason) for term in terms]
    return [row for site in sorted(answered) for row in answered[site]], question, planned, tuple(sources)


def _place(held: ReleaseSelection, *sites: str) -> Place:
    """Cache key of a site's answer to a question, or of the joint answer of several sites.

    The digests of the bundles identify the table, and those of the releases behind them its variance. Withdrawn bundles
    are part of it because an answer's id depends on them.
    """
    place = [*sites] if len(sites) == 1 else [""]
    for site in sites:
        for releases in (held.parts[site], held.behind[site]):
            place += [part for one in releases for part in (one.bundle_sha256, one.receipt.hash)] + ["behind"]
    return (*place, *(stone.bundle_sha256 for stone in held.withdrawn if stone.site in sites))


def _quantiles(store: Store, held: ReleaseSelection, plan: StudyPlan) -> Callable[[str, Sequence[float]], list[float]]:
    """Quantiles of a column of all sites' released rows, by their number; of figures, of the public bounds."""
    taken = {stone.bundle_sha256 for stone in store.withdrawals(held.study)}
    tables: list[QuestionRows] = []
    if not isinstance(plan.release, Answering):
        for releases in held.parts.values():
            try:
                tables.append(QuestionRows(rows_of(store, releases, taken)))
            except Refusal as refusal:
                reason_of(refusal)  # of one site's bundle, which answers for itself

    def at(name: str, shares: Sequence[float]) -> list[float]:
        repeated = plan.dictionary.repeated
        visits = [one for one in repeated.visits if isinstance(one, int)] if repeated is not None else []
        if repeated is not None and visits and name == repeated.order:
            return [float(value) for value in np.quantile(visits, shares)]
        every = (name, *repeated.names(name)) if repeated is not None else (name,)
        values = [table.numbers(one) for table in tables for one in every if one in table]
        values = [one[np.isfinite(one)] for one in values]
        values = [one for one in values if len(one)]
        if values:
            found = np.average([np.quantile(one, shares) for one in values], axis=0, weights=[*map(len, values)])
            return [float(value) for value in found]
        column = plan.dictionary.source.column(name)
        if column.lower is None or column.upper is None:
            raise ParameterError(
                "a curve without knots must be of a column of numbers", given=name, next_step="Name the knots."
            )
        return [column.lower + share * (column.upper - column.lower) for share in shares]

    return at


def _together(
    store: Store,
    held: ReleaseSelection,
    question: Estimand,
    taken: Collection[str],
    cache: EstimateCache | None,
    unanswerable: dict[str, EstimateRefusal],
) -> dict[str, list[Estimate]]:
    """Site to its answer beside others under plans of the same terms; `unanswerable` gets why such sites have none."""
    versions = {one.plan_version for releases in held.parts.values() for one in releases}
    plans = {version: store.plan(held.study, version).plan for version in versions}
    if not isinstance(plans[max(versions)].release, Answering) or held.combined:
        return {}
    groups: list[tuple[tuple[Any, ...], list[str]]] = []
    for site, releases in held.parts.items():
        # What figures must agree in to be read together; their noise follows from δ.
        used = (plans[one.plan_version] for one in releases)
        first, *others = [(one.release, one.dictionary, one.budget.delta) for one in used]
        if any(one != first for one in others):
            continue  # it answers for itself, or says why it cannot
        sites = next((sites for terms, sites in groups if terms == first), [])
        sites.append(site)
        if len(sites) == 1:
            groups.append((first, sites))
    found: dict[str, list[Estimate]] = {}
    for _, sites in groups:
        plan = plans[max(one.plan_version for site in sites for one in held.parts[site])]
        try:
            found |= _of_one_plan(store, held, plan, sites, question, taken, cache)
        except EstimateRefusal as refusal:
            unanswerable |= dict.fromkeys(sites, refusal)
        except Refusal as refusal:
            reason_of(refusal)  # each answers for itself
    return found


def _of_one_plan(
    store: Store,
    held: ReleaseSelection,
    plan: StudyPlan,
    sites: Sequence[str],
    question: Estimand,
    taken: Collection[str],
    cache: EstimateCache | None,
) -> dict[str, list[Estimate]]:
    """The answers of sites whose plans have the same terms; those whose bundle cannot be read are left out."""
    release = plan.release
    if not isinstance(release, Answering) or len(sites) < 2:
        return {}
    about, place = ("together", plan.hash, str(question)), _place(held, *sites)
    rows: Sequence[Estimate] | None = None if cache is None else cache.answers(about, [place]).get(place)
    if rows is None:
        figures, whole = {}, True
        for site in sites:
            try:
                figures[site] = [(rows_of(store, [one], taken), one.receipt.n) for one in held.parts[site]]
            except Refusal as refusal:
                reason_of(refusal)  # of one site's bundle, which answers for itself
                whole = False
        answers = release.together(plan, figures, question, origins={site: _origin(held, site) for site in figures})
        rows = [row for found in answers.values() for row in found]
        if cache is not None and whole:
            cache.keep(about, held.study, {place: rows}, held.used)
    return {site: [row for row in rows if row.site == site] for site in {row.site for row in rows}}


def _origin(held: ReleaseSelection, site: str) -> Origin:
    receipts = tuple(release.receipt.hash for release in held.parts[site])
    return {"study": held.study, "site": site, "wave": held.wave, "receipts": receipts}


def _working_out(
    store: Store,
    held: ReleaseSelection,
    site: str,
    question: Estimand,
    plan: StudyPlan,
    levels: Mapping[str, Any],
    taken: Collection[str],
    cache: EstimateCache | None,
    lasts: dict[int, frozenset[str]],
) -> Fitting[list[Estimate]]:
    """One site's estimates, one per term, from its table or from its noisy figures; `plan` is its last release's."""
    releases = held.parts[site]
    require_askable(question, releases, plan)
    if isinstance(plan.release, Answering):
        require_addable(_plans(store, releases), redrawn=plan.redraws and held.combined)
        figures = [(rows_of(store, [release], taken), release.receipt.n) for release in releases]
        return plan.release.answer(plan, figures, question, levels=levels, **_origin(held, site))
    read, digests = partial(rows_of, store, releases, taken), tuple(release.bundle_sha256 for release in releases)
    surrogate = None if cache is None else cache.surrogate(digests)
    table = QuestionRows(read()) if cache is None else cache.rows(digests, read)
    last = last_of(store, held, site, lasts)
    return (yield from site_answer(store, held, site, question, table, levels=levels, surrogate=surrogate, last=last))


def require_askable(question: Estimand, releases: Sequence[AcceptedRelease], plan: StudyPlan) -> None:
    """Refuse a question that a site's releases cannot answer, by the plan of the last of them.

    Raises: EstimateRefusal (a column its plan version did not have, figures beside rows, a curve without knots).
    """
    if question.unsettled:
        raise EstimateRefusal(
            "a curve must have the same knots at every site",
            given=str(question),
            next_step="Name them: knots = c(…), Boundary.knots = c(…).",
        )
    absent = [name for name in question.columns if name not in plan.dictionary.names]
    if absent:
        raise EstimateRefusal(f"its plan version {releases[-1].receipt.plan_version} has no column {', '.join(absent)}")
    kinds = {release.receipt.mechanism for release in releases}
    if len(kinds) > 1:
        raise EstimateRefusal("a site's releases must be of one mechanism", given=", ".join(sorted(kinds)))


def site_answer(
    store: Store,
    held: ReleaseSelection,
    site: str,
    question: Estimand,
    table: QuestionRows,
    *,
    levels: Mapping[str, Any],
    surrogate: SurrogateSampler | None = None,
    last: frozenset[str] | None = None,
) -> Fitting[list[Estimate]]:
    """One site's estimates, one per term, from its released rows, with the variance of the patients behind them.

    Args:
        table: the site's rows, as they were released or as they were mapped.
        levels: as of `estimate`.
        surrogate: of the table, where the caller keeps it.
        last: as of `last_of`, where the caller has it.
    Raises: what `shared.estimands.answer.estimate` raises.
    """
    releases, last = held.parts[site], last_of(store, held, site) if last is None else last
    return (
        yield from releasing(
            (yield from estimating(table, question, levels, **_origin(held, site))),
            table,
            question,
            [replace(draw, last=last) for draw in draws_of(releases, held.behind[site])],
            levels=levels,
            copies=copies(store, releases, held.combined),
            postures=[release.receipt.posture for release in releases],
            surrogate=surrogate,
        )
    )


def released_inflation(
    store: Store, releases: Sequence[AcceptedRelease], behind: Sequence[AcceptedRelease], combined: bool
) -> float:
    """Variance inflation of a share of a site's released rows (`intervals.inflation`)."""
    return inflation(draws_of(releases, behind), copies=copies(store, releases, combined))


def copies(store: Store, releases: Sequence[AcceptedRelease], combined: bool) -> bool:
    """True if a site's rows may hold the same persons more than once."""
    if len(releases) < 2:  # each has its persons once
        return False
    redrawn = any(release.receipt.returning != "append" for release in releases)
    return (combined and redrawn) or may_share_persons(_plans(store, releases))


def _plans(store: Store, releases: Sequence[AcceptedRelease]) -> list[StudyPlan]:
    return [store.plan(release.study, release.plan_version).plan for release in releases]


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
