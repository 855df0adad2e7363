"""Selection of the releases that a question is answered from: the table as of a wave, site by site.

The table depends on how releases treat persons released before: under ``append`` a release adds rows to the earlier
ones, under ``refresh`` and ``frozen`` it replaces them (a frozen release holds the earlier rows itself). A closed wave
can also be queried as of one of its revisions: releases that entered the log after it are then left out, and the answer
stays what it was. A withdrawn release counts in no answer; the answer names what is missing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.answers.spending import ReleasePrices
from shared.base.canonical import canonical_json
from shared.errors import ParameterError, StateRefusal
from shared.mechanisms.kinds import kind
from shared.plans.outcomes import drawn_last
from shared.privacy.stated import all_given
from shared.terminal import plain

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.store.rows import AcceptedRelease, ReleaseLine, StoredSum, Tombstone
    from coordinator.store.store import Store
    from shared.wire.analyst_messages import ReleasesRequest

__all__ = [
    "Delivered",
    "DeliveredSites",
    "ReleaseSelection",
    "holding",
    "last_of",
    "moved",
    "page_of",
    "rows_of",
    "uncompared",
    "uncompared_caution",
]

STUDIES_KEPT = 64
PAGE_BYTES = 900 << 10  # of a list: what stands around it goes into a megabyte, too


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Deliveries of a study.

    Args:
        sites: site to its waves, persons by wave, posture and ε.
        last_day: day of the last delivery; None before the first.
        held: site to the ids of the releases that make up its current table.
        uncovered: each `not_covered` sentence of the sites' newest receipts, to the sites whose receipt has it.
    """

    sites: Mapping[str, dict[str, Any]]
    last_day: str | None
    held: Mapping[str, list[str]]
    uncovered: Mapping[str, list[str]]


class DeliveredSites:
    """Cache of the deliveries of each study, and of the prices of releases. Safe for many threads.

    A cached study is valid as long as the log has not grown: nothing is delivered, withdrawn or deleted without an
    entry.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._guard = store, threading.Lock()
        self.prices = ReleasePrices(store)
        self._found: OrderedDict[str, tuple[int, Delivered]] = OrderedDict()

    def of(self, study: str) -> Delivered:
        """Deliveries of a study, read anew if the log has grown."""
        size = self._store.entries()
        with self._guard:
            known = self._found.get(study)
        if known is None or known[0] != size:
            known = (size, self._read(study))
            with self._guard:
                self._found[study] = known
                while len(self._found) > STUDIES_KEPT:
                    self._found.popitem(last=False)
        return known[1]

    def _read(self, study: str) -> Delivered:
        lines = self._store.release_lines(study)
        newest = {line.site: line.bundle_sha256 for line in lines}  # by wave
        receipts = {digest: found.receipt for digest, found in self._store.releases_of(newest.values()).items()}
        every = self._store.release_lines(study, withdrawn=True)
        prices = self.prices.of(every)
        paid: dict[str, list[tuple[float | None, str]]] = {}
        for line in every:
            price = prices[line.bundle_sha256]
            paid.setdefault(line.site, []).append((price.epsilon, price.given_in_total))
        sites: dict[str, dict[str, Any]] = {}
        for line in lines:
            facts = sites.setdefault(line.site, {"waves": [], "n": {}})
            facts["waves"].append(line.wave)
            facts["n"][str(line.wave)] = line.n
        uncovered: dict[str, list[str]] = {}
        for site, digest in sorted(newest.items()):
            receipt = receipts[digest]
            sites[site] |= {"posture": receipt.posture, "study_epsilon": receipt.stated_study_epsilon}
            # The study's total still depends on the conditions of a withdrawn release.
            given = all_given(paid[site]) if receipt.stated_epsilon is not None else receipt.given
            sites[site]["epsilon_given"] = given
            for sentence in receipt.not_covered:
                uncovered.setdefault(sentence, []).append(site)
        last = max((line.accepted_day for line in lines), default=None)
        newest_wave = max((line.wave for line in lines), default=0)
        parts = _as_of_wave(self._store, study, newest_wave, lines, _Cut())
        held = {site: [line.release_id for line in own] for site, own in sorted(parts.items())}
        return Delivered(sites=sites, last_day=last, held=held, uncovered=uncovered)


@dataclass(frozen=True, kw_only=True)
class ReleaseSelection:
    """The releases that a question would be answered from, before it is asked.

    Args:
        study: the study of the releases.
        wave: the table as of this wave.
        as_of, combined: as of `PooledAnswer`.
        parts: site to the releases whose rows together are its table.
        behind: site to its further releases whose receipts tell where these rows came from (`_behind`).
        withdrawn: releases of waves up to it that their sites took back.
        revisions: as of `PooledAnswer`.
        opened: the secure sum that was opened under the plan of these releases; None before it.
    """

    study: str
    wave: int
    as_of: int | None
    combined: bool
    parts: Mapping[str, tuple[AcceptedRelease, ...]]
    behind: Mapping[str, tuple[AcceptedRelease, ...]]
    withdrawn: tuple[Tombstone, ...]
    revisions: Mapping[int, int | None]
    opened: StoredSum | None = None

    @property
    def used(self) -> dict[str, str]:
        """SHA-256 of every bundle, with its site."""
        return {release.bundle_sha256: site for site, releases in self.parts.items() for release in releases}

    @property
    def rests(self) -> dict[str, str]:
        """SHA-256 of every bundle that an answer depends on, be it for its receipt alone, with its site."""
        behind = {release.bundle_sha256: site for site, releases in self.behind.items() for release in releases}
        return behind | self.used


def page_of(
    store: Store, asked: ReleasesRequest, said: Callable[[AcceptedRelease], dict[str, Any]]
) -> tuple[list[AcceptedRelease], list[dict[str, Any]], int | None]:
    """Releases of one page, the documents that `said` makes of them, and the log index after which there are more.

    A page ends early where it would be larger than `PAGE_BYTES`; the index is None for the last page, and for a list
    without pages.
    """
    names = ("after", "newest", "site", "wave")
    most = asked.most + 1 if asked.most else 0  # one beyond the page tells whether there are more
    found = store.logged_releases(asked.study, most=most, **{name: getattr(asked, name) for name in names})
    listed, size = list[dict[str, Any]](), 0
    for release in found:
        listed.append(said(release))
        size += len(canonical_json(plain(listed[-1]))) if asked.most else 0
        if asked.most and len(listed) > 1 and (len(listed) > asked.most or size > PAGE_BYTES):
            listed.pop()
            break
    more = found[len(listed) - 1].log_index if len(listed) < len(found) else None
    return list(found[: len(listed)]), listed, more


def uncompared(store: Store, used: Collection[str]) -> tuple[str, ...]:
    """Sites of these bundles that have not compared since the coordinator was put back (`Store.uncompared`)."""
    return tuple(sorted({site for bundle, site in store.uncompared().items() if bundle in used}))


def uncompared_caution(sites: Sequence[str]) -> str:
    """Caution on an answer after a restore from a backup, while these sites have not compared their releases."""
    have = "have" if len(sites) > 1 else "has"
    return (
        f"The coordinator was put back from a backup, and {', '.join(sites)} {have} not compared since: "
        "a release that was withdrawn after the backup may be in this answer."
    )


def _newest(accepted: Sequence[ReleaseLine], study: str) -> int:
    if not accepted:
        raise StateRefusal(
            f"study {study} must have an accepted release",
            given="none",
            next_step=f"Wait until a site delivers; coordinator wave status {study} shows which are awaited.",
        )
    return max(release.wave for release in accepted)


def holding(
    store: Store, study: str, wave: int = 0, *, as_of: int | None = None, combine: bool = False
) -> ReleaseSelection:
    """Releases that a question is answered from (`coordinator.answers.queries.ask`).

    Args:
        wave: the table as of this wave; of the newest with a release when none is named.
        as_of: a revision of the wave; all there is now when left out.
        combine: put the rows of all refreshes of a site together. They are noisy copies of the same persons,
            whose errors are taken to be the same in each (`intervals.parts`).
    Raises: PlanRefusal (no such wave), ParameterError (no such revision), StateRefusal (no release at all).
    """
    accepted = store.release_lines(study)
    wave = wave or _newest(accepted, study)
    cut = _cut(store, study, wave, as_of, combine)
    lines = _as_of_wave(store, study, wave, accepted, cut)
    if combine:
        _require_no_copies(store, study, lines)
    known = store.releases_of(line.bundle_sha256 for own in lines.values() for line in own)
    parts = {site: tuple(known[line.bundle_sha256] for line in own) for site, own in sorted(lines.items())}
    return ReleaseSelection(
        study=study,
        wave=wave,
        as_of=as_of,
        combined=combine,
        parts=parts,
        behind=_behind(store, study, parts, cut),
        withdrawn=tuple(stone for stone in store.withdrawals(study) if stone.wave <= wave),
        revisions=cut.revisions,
        opened=_opened(store, parts, cut),
    )


def _opened(store: Store, parts: Mapping[str, tuple[AcceptedRelease, ...]], cut: _Cut) -> StoredSum | None:
    """Secure sum opened under a plan of these releases; None if there is none, or the log has it only after `cut`."""
    every = [release for releases in parts.values() for release in releases]
    for plan in sorted({release.plan_hash for release in every if kind(release.receipt.mechanism).follow}):
        found = store.opened_sum(plan)
        if found is not None and (cut.last is None or found.log_index <= cut.last):
            return found
    return None


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


def _as_of_wave(
    store: Store, study: str, wave: int, accepted: Sequence[ReleaseLine], cut: _Cut
) -> dict[str, list[ReleaseLine]]:
    """The releases whose rows together are each site's table as of the wave."""
    replaces = {
        stored.plan.hash: stored.plan.returning != "append" for stored in store.plans() if stored.plan.study == study
    }
    parts: dict[str, list[ReleaseLine]] = {}
    for release in accepted:  # by wave
        if release.wave > wave or (cut.last is not None and release.log_index > cut.last):
            continue
        own = parts.setdefault(release.site, [])
        if replaces[release.plan_hash] and not cut.combine:
            own.clear()
        own.append(release)
    return parts


def _require_no_copies(store: Store, study: str, lines: Mapping[str, Sequence[ReleaseLine]]) -> None:
    """Refuse to put together releases that hold one another's very rows."""
    for site, own in sorted(lines.items()):
        versions = {line.plan_version for line in own[1:]}
        if any(store.plan(study, version).plan.returning == "frozen" for version in versions):
            raise ParameterError(
                "releases that are put together must not hold one another's rows",
                given=f"{site}: {len(own)} releases, of which the later hold the earlier rows (frozen)",
                next_step="Ask without --combine: the newest release holds them all.",
            )


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


def last_of(
    store: Store, held: ReleaseSelection, site: str, lasts: dict[int, frozenset[str]] | None = None
) -> frozenset[str]:
    """Columns that every release of a site draws last.

    Args:
        lasts: what is known by plan version; more is added.
    """
    known = {} if lasts is None else lasts
    for version in {release.plan_version for release in held.parts[site]} - known.keys():
        known[version] = drawn_last(store.plan(held.study, version).plan)
    return frozenset.intersection(*(known[release.plan_version] for release in held.parts[site]))


def _behind(
    store: Store, study: str, parts: Mapping[str, tuple[AcceptedRelease, ...]], cut: _Cut
) -> dict[str, tuple[AcceptedRelease, ...]]:
    """Each site's earlier releases whose receipts are needed for the variance, by wave, withdrawn ones included.

    Those whose flow drew the rows, and under ``frozen`` those whose rows were copied.
    """
    held = {release.release_id for releases in parts.values() for release in releases}
    receipts = [release.receipt for releases in parts.values() for release in releases]
    if all(one.flow_of in held and one.returning != "frozen" for one in receipts):
        return dict.fromkeys(parts, ())
    known: dict[str, list[AcceptedRelease]] = {site: [] for site in parts}
    for release in store.releases(study, withdrawn=True):
        if release.site in known and (cut.last is None or release.log_index <= cut.last):
            known[release.site].append(release)
    return {site: _behind_one(releases, known[site]) for site, releases in parts.items()}


def _behind_one(releases: Sequence[AcceptedRelease], known: Sequence[AcceptedRelease]) -> tuple[AcceptedRelease, ...]:
    held = {release.release_id for release in releases}
    copied = [
        earlier
        for earlier in known
        for release in releases
        if release.receipt.returning == "frozen" and earlier.wave < release.wave
    ]
    flows = {release.receipt.flow_of for release in (*releases, *copied)} | {other.release_id for other in copied}
    return tuple(other for other in known if other.release_id in flows and other.release_id not in held)
