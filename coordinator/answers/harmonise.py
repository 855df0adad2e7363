r"""Harmonised columns, mapped onto one hospital's scale: from noisy densities, and never silently.

Two laboratories report the same quantity on different scales. Where their patients are alike, the increasing map that
carries one laboratory's distribution onto the other's is the conversion between them. Each site releases its noisy
histogram once (`shared.mechanisms.densities.noise`); everything here is made of those figures, so it costs nothing
more.

What a site's figures say of a distribution is in `coordinator.answers.densities`, the maps between two in
`coordinator.answers.maps`.
Here they become answers: asked with a question, on every site's rows, beside what would have come out without them.

A map made of two distributions cannot tell a laboratory's scale from its patients. Where the patients really differ it
does harm: it takes the difference away. So the view says what it did beside what would have come out without it, and
warns where columns that no laboratory distorts, such as age, differ between the sites by more than can be ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator.answers import queries, release_selection, resolving, site_answers
from coordinator.answers.densities import Density, Joint, alike_warnings, case_mix_warning, density_of, joint_warning
from coordinator.answers.maps import ColumnsMap, mixed_scales, require_another, require_told_apart
from coordinator.pooling.intervals import with_release_variance
from coordinator.pooling.pool import PooledResult, Pooling, pool_estimates
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands.answer import Estimate, estimate
from shared.estimands.effects import shown
from shared.estimands.fits.cox import alone
from shared.estimands.formulas import QuestionRows
from shared.mechanisms.base import Answering, require_addable
from shared.mechanisms.densities.plan import DensitiesPlan

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from coordinator.store.store import AcceptedRelease, Store
    from shared.estimands.questions import Estimand

__all__ = [
    "ARMS",
    "Harmonisation",
    "Harmonised",
    "Known",
    "beside",
    "densities",
    "draw",
    "harmonised",
    "named",
    "said_of",
]

Floats = NDArray[np.float64]
_DEFAULT = Pooling()


@dataclass(frozen=True, kw_only=True)
class Harmonised:
    """One question three times, side by side: nothing is harmonised without showing what it changed.

    Args:
        densities: the study that the densities came from.
        columns, to: the mapped columns, and the reference site.
        answer: the question as it stands, each site by itself, then pooled: every site has an intercept and its own
            scale. Also who asked what of which releases.
        raw: all rows of the mapped sites in one table, as if one laboratory had measured them.
        estimates: one per site with its rows mapped first, excluded ones with their reason.
        harmonised: those pooled; the variance of the maps is in its interval.
        map_variance: of the pooled estimate, by the densities' noise and size (bootstrap).
        site_map_variance: the same of each site's estimate.
        maps: site to its map.
        bands: site to column to (4, points): values on its scale, mapped values, and their band (95 %);
            of several columns mapped together, the others in their middle.
        outside: site to the number of rows outside its bounds, which are mapped as the bounds.
        warnings: reasons not to harmonise (`case_mix_warning`).
        notes: sentences on the method that a reader must see.
        used: SHA-256 of the bundles with densities, with their site.
    """

    densities: str
    columns: tuple[str, ...]
    to: str
    answer: queries.PooledAnswer
    raw: Estimate
    estimates: tuple[Estimate, ...]
    harmonised: PooledResult
    map_variance: float
    site_map_variance: Mapping[str, float]
    maps: Mapping[str, ColumnsMap]
    bands: Mapping[str, Mapping[str, Floats]]
    outside: Mapping[str, int]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    used: Mapping[str, str]

    @property
    def column(self) -> str:
        """The mapped columns, as requested: ``chol``, or ``chol,hdl``."""
        return ",".join(self.columns)

    @property
    def _said(self) -> str:
        return " and ".join(self.columns)

    @property
    def intercepts(self) -> PooledResult:
        """The answer as released, site by site."""
        return self.answer.result

    @property
    def query(self) -> dict[str, Any]:
        """The question as plain values."""
        return {**self.answer.query, "harmonised": self.column, "to": self.to, "densities": self.densities}

    @property
    def document(self) -> dict[str, Any]:
        """The whole answer: that of the question as released, and beside it what harmonising makes of it."""
        from coordinator.pooling.document import pooled_data
        from shared.terminal import plain

        document = {name: getattr(self, name) for name in ("densities", "column", "to", "raw", "outside", "used")}
        document |= {"warnings": self.warnings, "about": self.notes, "lines": self.lines, "estimates": self.estimates}
        document |= {"map_variance": self.map_variance, "site_map_variance": self.site_map_variance}
        document |= pooled_data(self.harmonised)
        document["rows"] = [{**row, "vi_map": self.site_map_variance.get(row["label"])} for row in document["rows"]]
        names = ("value", "mapped", "lower", "upper")
        bands = {
            site: {name: dict(zip(names, band, strict=True)) for name, band in by_column.items()}
            for site, by_column in self.bands.items()
        }
        # Of one column the band stands by itself; of several, each under its name.
        document["maps"] = bands if len(self.columns) > 1 else {s: band[self.column] for s, band in bands.items()}
        return {**self.answer.document, "harmonised": plain(document)}

    @property
    def lines(self) -> tuple[str, ...]:
        """The three answers, the warnings and the notes, in words."""
        said = said_of(self.raw, self.intercepts, self.harmonised)
        share = 100 * self.map_variance / self.harmonised.se**2
        return (
            f"{self.harmonised.effect or 'Estimate'} of {self.answer.term} in {self.answer.estimand}, "
            f"{self._said} mapped onto the scale of {self.to}",
            *(f"{what}: {words}" for what, words in said.items()),
            f"privacy noise and size of the densities: {share:.0f} % of the variance of the harmonised one",
            *(f"warning: {text}" for text in self.warnings),
            *self.notes,
        )

    def figure(self, path: str | Path, *, title: str = "") -> None:
        """Draw the three answers in one forest plot. Raises: ParameterError: an unknown suffix."""
        draw(
            self.intercepts,
            self.harmonised,
            self.raw,
            title=title or f"{self.answer.study}: {self.answer.term}, {self._said} on the scale of {self.to}",
            question=self.answer.estimand,
            map_variance=self.site_map_variance,
            warnings=self.warnings,
            path=path,
        )


ARMS = ("all rows in one table", "site by site", "harmonised")
"""Names of the three answers, in the order of their display."""


def said_of(raw: Estimate, intercepts: PooledResult, mapped: PooledResult) -> dict[str, str]:
    """The three answers on the scale that people read, each with its interval, by the name of its arm."""
    said = {ARMS[0]: f"none: {raw.reason}"}
    results = {ARMS[1]: intercepts, ARMS[2]: mapped}
    if raw.yi is not None:
        results = {ARMS[0]: pool_estimates([raw], level=mapped.level), **results}
    for what, row in results.items():
        value, low, high = (shown(y, mapped.scale) for y in (row.beta, row.ci_lb, row.ci_ub))
        said[what] = f"{value:.4g} ({low:.4g} to {high:.4g})"
    return said


def draw(
    intercepts: PooledResult,
    mapped: PooledResult,
    raw: Estimate,
    *,
    title: str,
    question: str,
    map_variance: Mapping[str, float],
    warnings: tuple[str, ...],
    path: str | Path,
) -> None:
    """One forest plot: every site as released and harmonised, both pooled, and all rows in one table below them.

    Args:
        map_variance: site to the variance that its map adds to its harmonised estimate: a column beside the sites.
        warnings: stand under the figure.
    Raises: ParameterError: an unknown suffix.
    """
    from coordinator.figures import forest as figures

    shown = {site: f"{math.sqrt(value):.2g}" for site, value in map_variance.items()}
    figures.forest(
        intercepts,
        title=title,
        note=f"{question}; the pooled harmonised intervals hold the maps' uncertainty",
        name=ARMS[1],
        compare={ARMS[2]: mapped},
        columns={"Map SE": shown},
        whole={} if raw.yi is None else {ARMS[0]: pool_estimates([raw], level=mapped.level)},
        warnings=warnings,
        path=path,
    )


def beside(study: str) -> str:
    """Name of the densities study that goes with a study of rows."""
    return f"{study}-densities"


@dataclass(frozen=True, kw_only=True)
class Known:
    """Densities of one site: densities of single columns by name, of several together by their names in order."""

    single: Mapping[str, Density]
    joint: Mapping[tuple[str, ...], Joint]


def densities(
    store: Store, study: str, held: release_selection.ReleaseSelection | None = None
) -> tuple[dict[str, Known], tuple[str, ...]]:
    """Site to densities of the accepted releases of a study of densities, and the columns measured alike.

    Args:
        held: result of `release_selection.holding` for it, if there is one already.
    Raises: EstimateRefusal: the study releases something else, or a site's releases have different noise.
    """
    held = held or release_selection.holding(store, study)
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    out: dict[str, Known] = {}
    alike: tuple[str, ...] = ()
    for site, releases in held.parts.items():
        plans = [store.plan(study, one.plan_version).plan for one in releases]
        plan = plans[-1]
        if not isinstance(plan.release, DensitiesPlan):
            raise EstimateRefusal(
                f"study {study} must release densities",
                given=plan.release.title,
                next_step='Plan a study of its own with release.mechanism = "densities" beside the one with rows.',
            )
        require_addable(plans)
        alike = tuple(plan.release.alike)
        tables = [release_selection.rows_of(store, [release], taken) for release in releases]
        persons = [release.receipt.n for release in releases]
        single: dict[str, Density] = {}
        joint: dict[tuple[str, ...], Joint] = {}
        for i, group in enumerate(plan.release.groups(plan)):
            figures = [(plan.release.figures(plan, table)[i], n) for table, n in zip(tables, persons, strict=True)]
            try:
                found = density_of(group, figures)
            except EstimateRefusal:
                continue  # nobody there has a value: as if it were not measured
            if isinstance(found, Joint):
                joint[tuple(column.name for column in group.columns)] = found
            else:
                single[group.columns[0].name] = found
        out[site] = Known(single=single, joint=joint)
    return out, alike


def named(column: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of a question to be harmonised: one, or several parted by commas.

    >>> named("chol"), named("chol, hdl"), named(["chol", "hdl"])
    (('chol',), ('chol', 'hdl'), ('chol', 'hdl'))
    """
    parts = column.split(",") if isinstance(column, str) else column
    return tuple(str(part).strip() for part in parts)


@dataclass(frozen=True, kw_only=True)
class Harmonisation:
    """Settings of a harmonisation: the columns to map, the reference site, and the study of the densities.

    Args:
        column: one column, or two or three whose density was released together: then they are mapped together.
        to: the reference site, onto whose scale the others are mapped.
        source: the study of densities; `beside` the study of rows if blank.
        draws: bootstrap draws of the maps.
    """

    column: str | Sequence[str]
    to: str
    source: str = ""
    draws: int = 20


def harmonised(
    store: Store,
    held: release_selection.ReleaseSelection,
    estimand: str | Estimand,
    by: Harmonisation,
    *,
    term: str = "",
    pooling: Pooling = _DEFAULT,
    cache: site_answers.EstimateCache | None = None,
) -> Harmonised:
    """Put a question to the released rows as they are, and with columns mapped onto the scale of one site.

    Args:
        held: of a study with released rows.
        estimand, term, pooling, cache: as of `queries.ask`.
        by: the columns to map, the reference site and the densities.
    Raises: EstimateRefusal (no density of the column at the reference, no site with both, a question about the mapped
        column alone, a reference onto which no map is told apart), ParameterError, and what `queries.ask` raises.
    """
    columns, to, study = _mappable(by), by.to, held.study
    source = by.source or beside(study)
    drawn = release_selection.holding(store, source)
    known, alike = densities(store, source, drawn)
    here_known = _having(known, columns, to)
    question = _question_about(store, study, columns, estimand)
    require_another(here_known, [site for site in held.parts if site != to], to, columns)
    answer = queries.ask(store, held, question, cache=cache, term=term, pooling=pooling)
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    levels = {one.name: one.levels for one in store.plan(study).plan.dictionary.released if one.levels}
    rng = np.random.default_rng(1)  # public: the noise that is drawn here hides nothing
    scale = _Scale(to, here_known[to], tuple(here_known[to].redraw(rng) for _ in range(by.draws)), columns)
    sites: dict[str, _SiteMapped] = {}
    tables: dict[str, pd.DataFrame] = {}
    found: list[Estimate] = []
    for site, releases in held.parts.items():
        try:
            tables[site] = _rows(store, releases, taken, columns)
            here, redrawn = scale.maps(site, _known_of(here_known, site, columns, source), rng)
            plan = store.plan(study, releases[-1].plan_version).plan
            site_answers.require_askable(question, releases, plan)
            rows = QuestionRows(_mapped(tables[site], columns=columns, through=here))
            mapped = alone(site_answers.site_answer(store, held, site, question, rows, levels=levels))
        except Refusal as refusal:
            found.append(resolving.absent(study, site, held.wave, answer.term, question, resolving.reason_of(refusal)))
            continue
        found.append(next(row for row in mapped if row.term == answer.term))
        sites[site] = _SiteMapped.of(scale, here, redrawn, tables[site], found[-1], question, levels)
    outside = {site: one.outside for site, one in sites.items()}
    through = {site: one.through for site, one in sites.items()}
    variance = _pooled_variance(list(sites.values()), by.draws, pooling)
    pooled = pool_estimates(found, **pooling.how)
    if not {stone.bundle_sha256 for stone in store.withdrawals(source)}.isdisjoint(drawn.used):
        raise release_selection.moved()
    return Harmonised(
        densities=source,
        columns=columns,
        to=to,
        answer=answer,
        raw=_stacked(store, held, {site: tables[site] for site in sites}, question, answer.term, levels),
        estimates=tuple(found),
        harmonised=replace(pooled, shared=pooled.shared + variance, effect=answer.result.effect),
        map_variance=variance,
        site_map_variance={site: one.variance(reference=site == to) for site, one in sites.items() if one.moved},
        maps=through,
        bands={site: one.bands for site, one in sites.items()},
        outside=outside,
        warnings=(*_warned(known, columns, alike, to), *joint_warning(question.columns, columns, to)),
        notes=(*_notes(columns, to, source, alike, outside), *mixed_scales(through, columns[0], to)),
        used=drawn.used,
    )


def _mappable(by: Harmonisation) -> tuple[str, ...]:
    """The columns that are mapped together. Raises: ParameterError."""
    if by.draws < 2:
        raise ParameterError("the bootstrap of the maps must have at least two draws", given=f"{by.draws}")
    columns = named(by.column)
    if not 1 <= len(set(columns)) == len(columns) <= 3 or not all(columns):
        raise ParameterError("one to three different columns must be harmonised together", given=", ".join(columns))
    return columns


def _question_about(store: Store, study: str, columns: Sequence[str], estimand: str | Estimand) -> Estimand:
    """The question, resolved against the study.

    Raises: ParameterError, where it is not about the mapped columns; EstimateRefusal, where it is about a single
    mapped column, of which every site's answer is the reference's own.
    """
    plan = store.plan(study).plan
    question, _ = resolving.resolve(plan, estimand, lack=lambda name: resolving.lacking(store, study, name))
    if not set(columns) <= set(question.columns):
        raise ParameterError(f"the question must be about the mapped {_columns(columns)}", given=str(question))
    if len(columns) == 1 and set(question.columns) == set(columns):
        raise EstimateRefusal(
            f"a harmonised question must be about more than {columns[0]}: a map carries a site's distribution of it "
            "onto the reference's, so that every site would answer with the reference's own",
            given=str(question),
            next_step="Ask it as released, site by site; or ask how the mapped column goes with another one.",
        )
    return question


def _having(known: Mapping[str, Known], columns: tuple[str, ...], to: str) -> dict[str, Density | Joint]:
    """The sites with a density of these columns. Raises: EstimateRefusal, if the reference is not among them."""
    having = {site: found for site, has in known.items() if (found := _of(has, columns)) is not None}
    if to not in having:
        raise EstimateRefusal(
            f"the reference must have released a density of {' and '.join(columns)}",
            given=to,
            next_step=f"Sites that have: {', '.join(sorted(having)) or 'none'}.",
        )
    return having


def _known_of(known: Mapping[str, Density | Joint], site: str, columns: Sequence[str], source: str) -> Density | Joint:
    """A site's density. Raises: EstimateRefusal, where it has released none."""
    if site not in known:
        what = " and ".join(columns)
        raise EstimateRefusal(f"{site} must have released a density of {what}", given=f"none in {source}")
    return known[site]


@dataclass(frozen=True)
class _Scale:
    """The scale of the site `to`: its density, and the same drawn anew within its noise."""

    to: str
    density: Density | Joint
    redrawn: tuple[Density | Joint, ...]
    columns: tuple[str, ...]

    def maps(
        self, site: str, density: Density | Joint, rng: np.random.Generator
    ) -> tuple[ColumnsMap, list[ColumnsMap]]:
        """The map of a site onto this scale, and those between densities that are drawn anew.

        Raises: EstimateRefusal, where a density lies in so few cells that they hide its scale.
        """
        if site != self.to:
            require_told_apart(density, self.density, self.columns, f"{site} and {self.to}")
        here = ColumnsMap(density, self.density)
        # The reference is its own scale, whatever the noise.
        return here, [here if site == self.to else ColumnsMap(density.redraw(rng), one) for one in self.redrawn]


@dataclass(frozen=True)
class _SiteMapped:
    """Effect of a site's map on its rows and on its estimate.

    Attributes:
        through, bands, outside: the map, its bootstrap bands (95 %), and the number of rows outside its bounds.
        moved: the site's estimate through each redrawn map; empty where it has none.
    """

    through: ColumnsMap
    bands: dict[str, Floats]
    outside: int
    moved: tuple[Estimate, ...]

    @classmethod
    def of(
        cls,
        scale: _Scale,
        here: ColumnsMap,
        redrawn: Sequence[ColumnsMap],
        rows: pd.DataFrame,
        row_here: Estimate,
        question: Estimand,
        levels: Mapping[str, Sequence[Any]],
    ) -> _SiteMapped:
        moved: list[Estimate] = []
        for other in redrawn if row_here.yi is not None else ():
            redone = estimate(_mapped(rows, columns=scale.columns, through=other), question, levels=levels)
            value = next(each.yi for each in redone if each.term == row_here.term)
            moved.append(replace(row_here, yi=row_here.yi if value is None else value))
        outside = here.outside(_values(rows, scale.columns))
        return cls(here, _bands(here, list(redrawn), scale.columns), outside, tuple(moved))

    def variance(self, *, reference: bool) -> float:
        """Variance that the noise of the map adds to the site's estimate; none of the reference's."""
        return 0.0 if reference else _variance([float(row.yi) for row in self.moved if row.yi is not None])


def _pooled_variance(sites: Sequence[_SiteMapped], draws: int, pooling: Pooling) -> float:
    """Variance of the pooled estimate over the redrawn maps."""
    moved = [[one.moved[k] for one in sites if one.moved] for k in range(draws)]
    return _variance([pool_estimates(row, **pooling.how).beta for row in moved if row])


def _variance(draws: Sequence[float]) -> float:
    """Variance of a bootstrap's draws; 0 where there are none."""
    return float(np.var(draws, ddof=1)) if draws else 0.0


def _columns(columns: Sequence[str]) -> str:
    return "column" if len(columns) == 1 else "columns"


def _of(has: Known, columns: tuple[str, ...]) -> Density | Joint | None:
    """The density of these columns, in the order in which they were asked for."""
    if len(columns) == 1:
        return has.single.get(columns[0])
    for names, found in has.joint.items():
        if set(names) == set(columns) and len(names) == len(columns):
            order = [names.index(name) for name in columns]
            edges = tuple(found.edges[i] for i in order)
            return replace(found, counts=np.transpose(found.counts, order), edges=edges)
    return None


def _warned(known: Mapping[str, Known], columns: tuple[str, ...], alike: tuple[str, ...], to: str) -> tuple[str, ...]:
    """The warnings of each column, once; where no column has a density of its own, those measured alike speak."""
    out: dict[str, None] = {}
    for column in columns:
        named_ = (column, *alike)
        judged = {
            site: {name: has.single[name] for name in named_ if name in has.single} for site, has in known.items()
        }
        if column in judged[to]:
            out |= dict.fromkeys(case_mix_warning(judged, column, to))
        else:
            for name in judged[to]:
                out |= dict.fromkeys(alike_warnings(judged, name, to))
    return tuple(out)


def _bands(here: ColumnsMap, redrawn: Sequence[ColumnsMap], columns: tuple[str, ...]) -> dict[str, Floats]:
    """Column to (4, points): its values, their mapped values, and the lower and upper ends of the 95 % bands."""
    out = {}
    for axis, name in enumerate(columns):
        points = here.line_of(axis, 65)
        spread = np.quantile([one(points)[:, axis] for one in redrawn], [0.025, 0.975], axis=0)
        out[name] = np.vstack([points[:, axis], here(points)[:, axis], spread])
    return out


def _rows(
    store: Store, releases: tuple[AcceptedRelease, ...], taken: set[str], columns: tuple[str, ...]
) -> pd.DataFrame:
    plan = store.plan(releases[-1].study, releases[-1].plan_version).plan
    if isinstance(plan.release, Answering):
        raise EstimateRefusal("only released rows can be mapped", given=plan.release.title)
    lacking = [name for name in columns if name not in plan.dictionary.names]
    if lacking:
        raise EstimateRefusal(f"the released rows must have the column {', '.join(lacking)}", given="none")
    return release_selection.rows_of(store, releases, taken)


def _values(table: pd.DataFrame, columns: tuple[str, ...]) -> Floats:
    return np.stack([table[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in columns], axis=1)


def _mapped(table: pd.DataFrame, *, columns: tuple[str, ...], through: ColumnsMap) -> pd.DataFrame:
    return table.assign(**dict(zip(columns, through(_values(table, columns)).T, strict=True)))


def _stacked(
    store: Store,
    held: release_selection.ReleaseSelection,
    tables: Mapping[str, pd.DataFrame],
    question: Estimand,
    term: str,
    levels: Mapping[str, Any],
) -> Estimate:
    """The answer of all sites' rows in one table, with the variance of the patients behind them."""
    import pandas as pd

    try:
        rows = pd.concat(list(tables.values()), ignore_index=True)
        naive = estimate(rows, question, study=held.study, site=ARMS[0], wave=held.wave, levels=levels)
        draws = [one for site in tables for one in site_answers.draws_of(held.parts[site], held.behind[site])]
        copies = any(site_answers.copies(store, held.parts[site], held.combined) for site in tables)
        asked = [row for row in naive if row.term == term]
        return with_release_variance(asked, rows, question, draws, levels=levels, copies=copies)[0]
    except Refusal as refusal:
        return resolving.absent(held.study, ARMS[0], held.wave, term, question, resolving.reason_of(refusal))


def _notes(
    columns: tuple[str, ...], to: str, source: str, alike: tuple[str, ...], outside: Mapping[str, int]
) -> tuple[str, ...]:
    judged = f"Patients are compared by {', '.join(alike)}" if alike else "No column was named that is measured alike"
    beyond = ", ".join(f"{count} rows of {site}" for site, count in sorted(outside.items()) if count)
    said, are = " and ".join(columns), "was" if len(columns) == 1 else "were"
    it = "it" if len(columns) == 1 else "them"
    return (
        f"{said} {are} mapped onto the scale of {to} by the noisy densities of {source}: made of releases that are "
        f"charged already. It assumes that the sites' patients are alike in {it}; where they are not, harmonising "
        "harms.",
        f"{judged}.",
        *(["They were mapped together: a row that lacks one of them has lost the others too."] if it == "them" else []),
        *([f"Outside the bounds of the densities, and mapped as the bounds are: {beyond}."] if beyond else []),
    )
