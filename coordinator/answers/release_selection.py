"""Which releases a question is answered from: the table as of a wave, site by site.

What that table is follows from what each release did with persons released before: under ``append`` a release adds
rows to the earlier ones, under ``refresh`` and ``frozen`` it replaces them (a frozen release holds the earlier rows
itself). A wave that was closed can also be asked as of one of its revisions: then nothing counts that the log took up
after it, and the answer stays what it was. What was withdrawn counts in no answer; the answer says what is lacking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import EstimateRefusal, ParameterError, StateRefusal

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.store.store import AcceptedRelease, Store, Tombstone

__all__ = [
    "ReleaseSelection",
    "holding",
    "moved",
    "newest",
    "rows_of",
    "uncompared",
    "uncompared_caution",
]


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
    return _newest(store.releases(study), study)


def _newest(accepted: Sequence[AcceptedRelease], study: str) -> int:
    if not accepted:
        raise EstimateRefusal(f"study {study} must have an accepted release", given="none")
    return max(release.wave for release in accepted)


def holding(
    store: Store, study: str, wave: int = 0, *, as_of: int | None = None, combine: bool = False
) -> ReleaseSelection:
    """Releases that `ask` would read; of the newest wave with a release when none is named.

    Raises: PlanRefusal (no such wave), ParameterError (no such revision), EstimateRefusal (no release at all).
    """
    accepted = store.releases(study)
    wave = wave or _newest(accepted, study)
    cut = _cut(store, study, wave, as_of, combine)
    parts = {site: tuple(releases) for site, releases in sorted(_as_of_wave(store, study, wave, accepted, cut).items())}
    return ReleaseSelection(
        wave=wave,
        as_of=as_of,
        combined=combine,
        parts=parts,
        behind=_behind(store, study, parts, cut),
        withdrawn=tuple(stone for stone in store.withdrawals(study) if stone.wave <= wave),
        revisions=cut.revisions,
    )


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
    store: Store, study: str, wave: int, accepted: Sequence[AcceptedRelease], cut: _Cut
) -> dict[str, list[AcceptedRelease]]:
    """The releases whose rows together are each site's table as of the wave."""
    replaces = {
        stored.plan.hash: stored.plan.returning != "append" for stored in store.plans() if stored.plan.study == study
    }
    parts: dict[str, list[AcceptedRelease]] = {}
    for release in accepted:  # by wave
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
