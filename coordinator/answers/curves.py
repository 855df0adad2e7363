"""Kaplan–Meier of every site as of a wave, read off at public times: what a figure or a table of it is made from.

The times come from the dictionary's bound of the follow-up column, never from rows, so they are the same at every site
and in every wave, and a curve has at most a hundred of them (`shared.estimands.fits.survival.GridCurve` says why).
Which releases count is decided by `coordinator.answers.queries`, as for every other question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coordinator.answers import release_selection, resolving, site_answers
from coordinator.pooling.pool import pool
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands.answer import Estimand, parse_estimand, survival_curves
from shared.estimands.fits.survival import GridCurve, SurvivalCurve, public_times
from shared.mechanisms.base import Answering

if TYPE_CHECKING:
    from coordinator.store.store import AcceptedRelease, Store

__all__ = ["Curves", "curves", "pooled_curve"]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The curves of a study as of a wave, with what they rest on.

    Args:
        study, wave: the table as of wave k.
        estimand: the question in one spelling, without a time.
        curves: one per site and group; their labels name both where both differ.
        pooled: one per group that two sites or more have (`pooled_curve`).
        left_out: site -> why it has no curve.
        used: SHA-256 of every bundle, with its site.
        axis: the follow-up column with its unit, for the axis.
        event: the event; a curve is the share of persons without it.
    """

    study: str
    wave: int
    estimand: str
    curves: tuple[GridCurve, ...]
    pooled: tuple[GridCurve, ...]
    left_out: Mapping[str, str]
    used: Mapping[str, str]
    axis: str
    event: str

    @property
    def title(self) -> str:
        """Title of its figure."""
        return f"Time without {self.event}"

    @property
    def provenance(self) -> str:
        """Provenance, in a sentence."""
        count = len(set(self.used.values()))
        exact = f"{self.study}, wave {self.wave}: {self.estimand}."
        return f"{exact} Privatised releases of {count} site{'s' * (count != 1)}; rows, not patients, are counted."

    def figure(self, path: Any = None, *, title: str = "", bands: bool | None = None) -> Any:
        """Draw them (`coordinator.figures.over_time.km_figure`)."""
        from coordinator.figures.over_time import km_figure

        return km_figure(
            self.curves,
            pooled=self.pooled,
            title=title or self.title,
            note=self.provenance,
            xlabel=self.axis,
            ylabel=f"Share without {self.event}",
            left_out=self.left_out,
            bands=bands,
            path=path,
        )


def curves(
    store: Store,
    study: str,
    wave: int,
    estimand: str | Estimand,
    *,
    as_of: int | None = None,
    combine: bool = False,
    sites: Sequence[str] = (),
    level: float = 0.95,
) -> Curves:
    """The curve of each site and group of a ``km`` question.

    Args:
        wave: the table as of it; 0 for the newest wave with a release.
        estimand: ``km(time, event) ~ 1``, ``~ arm``, or a planned analysis; its time, if any, is not used.
        as_of, combine: as in `coordinator.answers.queries.ask`.
        sites: only these; all when empty.
        level: coverage of the pointwise intervals, which hold the noise of the releases in full.
    Raises: what `resolving.resolve` and `release_selection.holding` raise; ParameterError (another kind of question,
        an unknown site); EstimateRefusal (no site has a curve).
    """
    plan = store.plan(study).plan
    query = estimand if isinstance(estimand, Estimand) else parse_estimand(plan.estimands.get(estimand, estimand))
    if query.kind != "km":
        raise ParameterError(
            "a curve must be asked by km", given=str(query), next_step="As in km(time, event) ~ arm, or ~ 1."
        )
    question = replace(query, at=None)
    # The question of one time is refused or resolved by the same rules: an unknown column, with the nearest names.
    resolving.resolve(plan, replace(question, at=1.0), lack=lambda name: resolving.lacking(store, study, name))
    held = release_selection.holding(store, study, wave, as_of=as_of, combine=combine)
    columns = {column.name: column for column in plan.dictionary.released}
    follow_up = columns[question.duration]
    times = public_times(follow_up.span[1])
    levels = {column.name: column.levels for column in plan.dictionary.released if column.levels}
    releases = held.parts
    unknown = [site for site in sites if site not in releases]
    if unknown:
        raise ParameterError(
            "the site must have a release in this wave",
            given=", ".join(map(repr, unknown)),
            next_step=f"Sites: {', '.join(sorted(releases))}.",
        )
    found: list[GridCurve] = []
    groups: dict[str, list[GridCurve]] = {}
    left_out: dict[str, str] = {}
    for site in sorted(sites or releases):
        try:
            own = _curves_of(store, held, site, question, levels)
        except Refusal as refusal:
            left_out[site] = resolving.reason_of(refusal)
            continue
        more = site_answers.released_inflation(store, releases[site], held.behind[site], held.combined)
        for group, curve in own.items():
            name = f"{site}, {group}" if group else site
            drawn = curve.read_off(times, label=name, level=level, inflation=more)
            found.append(drawn)
            groups.setdefault(group, []).append(drawn)
    if not found:
        raise EstimateRefusal("a site must have a curve", given="; ".join(f"{s}: {w}" for s, w in left_out.items()))
    unit = f" ({follow_up.unit})" if follow_up.unit else ""
    event = columns.get(question.event)
    return Curves(
        study=study,
        wave=held.wave,
        estimand=str(question),
        curves=tuple(found),
        pooled=_pooled(groups),
        left_out=left_out,
        used=held.used,
        axis=_upper(f"{follow_up.label or follow_up.name}{unit}"),
        event=(event.label or event.name) if event else question.event,
    )


def _curves_of(
    store: Store,
    held: release_selection.ReleaseSelection,
    site: str,
    question: Estimand,
    levels: Mapping[str, Sequence[Any]],
) -> Mapping[str, SurvivalCurve]:
    """A site's curve of each group, of the rows of all its releases. Raises: EstimateRefusal, of noisy figures."""
    import pandas as pd

    releases = held.parts[site]
    if any(_noisy(store, release) for release in releases):
        raise EstimateRefusal(
            "a whole curve must come from released rows",
            given="noisy figures",
            next_step="Ask km(..., at = 5) for one time.",
        )
    tables = [store.table(release) for release in releases]
    table = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
    return survival_curves(table, question, levels)


def pooled_curve(curves: Sequence[GridCurve], *, label: str) -> GridCurve:
    """The random-effects mean of the sites' survival at each public time, with its pointwise interval.

    At each time the logits of the sites' survival are pooled as the question ``km(…, at = time)`` is (REML, ad hoc
    Knapp-Hartung, `coordinator.pooling.pool.pool`), so that the curve passes through its answers. A site without an
    event so far counts with half an event, r + ½ of r + 1, instead of not at all, which would let only sites with early
    events speak for the early times. The curve ends where the first site's follow-up does: a mean over other sites
    would step without an event. It never rises: a rise of the means is levelled to the last lower value.

    Args:
        curves: one per site, at the same times and of one level; two at least.
        label: of the pooled curve.
    Returns: a curve whose rows at risk and events are the sums of the sites'; its inflation is the largest of theirs.
    Raises: EstimateRefusal: fewer than two curves, or no time at which each of them is known.

    >>> from shared.estimands.fits.survival import kaplan_meier
    >>> import numpy as np
    >>> times, events = np.arange(1.0, 11.0), np.ones(10)
    >>> site = kaplan_meier(times, events).read_off((0.0, 2.0, 4.0), label="a")
    >>> [round(share, 3) for share in pooled_curve([site, site], label="pooled").survival]
    [1.0, 0.8, 0.6]
    """
    if len(curves) < 2:
        raise EstimateRefusal("a pooled curve must have at least two curves", given=f"{len(curves)}")
    first, level = curves[0], curves[0].level
    ends = next(
        (k for k in range(len(first.time)) if any(curve.survival[k] is None for curve in curves)), len(first.time)
    )
    survival: list[float | None] = [1.0]
    lower: list[float | None] = [None]
    upper: list[float | None] = [None]
    blank: tuple[float | None, float | None] = (None, None)
    for k in range(1, ends):
        found = [_logit(curve, k) for curve in curves]
        if all(curve.events[k] == 0 for curve in curves):
            estimate, limits = 1.0, blank
        else:
            known = [pair for pair in found if pair is not None]
            if len(known) < len(found):  # nobody is left at a site: its curve has reached 0
                break
            result = pool([y for y, _ in known], [v for _, v in known], level=level)
            estimate, limits = _share(result.beta), (_share(result.ci_lb), _share(result.ci_ub))
        last = survival[-1]
        if last is not None and estimate > last:
            survival, lower, upper = [*survival, last], [*lower, lower[-1]], [*upper, upper[-1]]
            continue
        survival, lower, upper = [*survival, estimate], [*lower, limits[0]], [*upper, limits[1]]
    if len(survival) < 2:
        raise EstimateRefusal("every site must be followed beyond the first time", given="none is")
    rest = [None] * (len(first.time) - len(survival))
    return replace(
        first,
        label=label,
        survival=(*survival, *rest),
        lower=(*lower, *rest),
        upper=(*upper, *rest),
        at_risk=tuple(sum(counts) for counts in zip(*(curve.at_risk for curve in curves), strict=True)),
        events=tuple(sum(counts) for counts in zip(*(curve.events for curve in curves), strict=True)),
        inflation=max(curve.inflation for curve in curves),
    )


def _logit(curve: GridCurve, k: int) -> tuple[float, float] | None:
    """Logit of a curve at a time and its variance, read from its lower limit; None where it has reached 0.

    The upper one is 1 to the last digit where rows claim a thousandth of the variance that they have.
    """
    value, low = curve.survival[k], curve.lower[k]
    if value is None or value <= 0:
        return None
    if low is None:  # no event so far
        rows = curve.at_risk[k]
        return math.log((rows + 0.5) / 0.5), curve.inflation * (1 / 0.5 + 1 / (rows + 0.5))
    if low <= 0:  # wider than a double can say: it weighs nothing
        return math.log(value / (1 - value)), 1e6
    half = math.log(value / (1 - value)) - math.log(low / (1 - low))
    return math.log(value / (1 - value)), (half / _critical(curve.level)) ** 2


def _critical(level: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf((1 + level) / 2)


def _share(logit: float) -> float:
    small = math.exp(-abs(logit))
    return (1.0 if logit >= 0 else small) / (1 + small)


def _pooled(groups: Mapping[str, Sequence[GridCurve]]) -> tuple[GridCurve, ...]:
    pooled = []
    for group, sites in groups.items():
        try:
            pooled.append(pooled_curve(sites, label=f"pooled, {group}" if group else "pooled"))
        except EstimateRefusal:  # one site, or nobody is followed beyond the first time at one
            continue
    return tuple(pooled)


def _noisy(store: Store, release: AcceptedRelease) -> bool:
    return isinstance(store.plan(release.study, release.plan_version).plan.release, Answering)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
