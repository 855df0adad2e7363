r"""What hospitals measure differently, mapped onto one hospital's scale: from noisy densities, and never silently.

Two laboratories report the same quantity on different scales. Where their patients are alike, the increasing map that
carries one laboratory's distribution onto the other's is the conversion between them. Each site releases its noisy
histogram once (`shared.mechanisms.density`); everything here is made of those figures, so it costs nothing more.

*Density.* The noise of each count is known, so the coefficients of the histogram in a cosine basis are shrunk shell by
shell (James and Stein, positive part) as far as noise and sampling explain them, and the result is projected onto the
densities (non-negative, adding up to 1). *Map.* On one axis the map is exact: one cumulative sum, then the other's
quantiles; of two or three columns together it is entropic transport on a grid. *Uncertainty.* On one axis, all of it
is repeated on figures drawn anew from the estimate, with fresh noise.

A map made of two distributions cannot tell a laboratory's scale from its patients. Where the patients really differ it
does harm: it takes the difference away. So the view says what it did beside what would have come out without it, and
warns where columns that no laboratory distorts, such as age, differ between the sites by more than can be ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from coordinator import queries
from coordinator.intervals import with_release_variance
from coordinator.pooling import Method, PooledResult, Test, pool_estimates
from shared.errors import EstimateRefusal, ParameterError, Refusal
from shared.estimands import Estimate, estimate
from shared.mechanisms.density import rounded_laplace_variance
from shared.prescriptions import Answering
from shared.prescriptions.densities import DensitiesPlan

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from coordinator.store import Release, Store
    from shared.questions import Estimand

__all__ = [
    "ARMS",
    "GridMap",
    "Harmonised",
    "Map",
    "Noisy",
    "beside",
    "bootstrap",
    "case_mix_warning",
    "densities",
    "distance",
    "draw",
    "harmonised",
    "on_simplex",
    "said_of",
]

Floats = NDArray[np.float64]
ALIKE = 1.0
"""How far apart two sites' patients may lie, in standard deviations, before harmonising them is warned of."""
_OVER = 1.5  # each step of Sinkhorn's iteration goes so much further


@dataclass(frozen=True, kw_only=True)
class Noisy:
    """A released histogram of one column: what is known of it before anything is made of it.

    Args:
        counts: (bins,) noisy whole counts, those of missing values left out.
        edges: (bins + 1,) increasing.
        persons: how many have a value: n where none may be missing, else n less the noisy count of those without.
        noise: variance of the noise of each count; 0 for a histogram without noise.
        scale: of the Laplace noise, for drawing it again; `noise` is its variance where it is not given.
        releases: how many releases were added up.
    Raises: ParameterError (shapes, no number), EstimateRefusal (nobody has a value).
    """

    counts: Floats
    edges: Floats
    persons: float
    scale: float = 0.0
    releases: int = 1

    def __post_init__(self) -> None:
        counts, edges = np.asarray(self.counts, dtype=np.float64), np.asarray(self.edges, dtype=np.float64)
        if counts.ndim != 1 or len(counts) < 2 or edges.shape != (len(counts) + 1,):
            raise ParameterError("a histogram must have two or more bins, and an edge more", given=f"{counts.shape}")
        if not (np.isfinite(counts).all() and np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
            raise ParameterError("a histogram must have finite counts and increasing edges", given="others")
        if not (self.scale >= 0 and math.isfinite(self.scale)):
            raise ParameterError(
                "the noise of a histogram must have a finite scale of at least 0", given=f"{self.scale}"
            )
        if not (math.isfinite(self.persons) and self.persons >= 1):
            raise EstimateRefusal(
                "a density must have somebody with a value, as far as the noise lets see",
                given=f"{self.persons:g} persons",
                next_step="Ask the site whether it measures the column at all.",
            )
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "edges", edges)

    @property
    def noise(self) -> float:
        """Variance of the noise of each count."""
        return self.releases * rounded_laplace_variance(self.scale) if self.scale else 0.0

    @cached_property
    def shares(self) -> Floats:
        """(bins,) the estimated probabilities: shrunk, on the simplex, and none of them 0.

        Half a person of the uniform law is added, so that a map has neither flat pieces nor jumps.
        """
        return _shares(self.counts, self.persons, self.noise)

    @cached_property
    def cumulative(self) -> Floats:
        """(bins + 1,) from 0 to 1, strictly increasing."""
        total = np.concatenate([[0.0], np.cumsum(self.shares)])
        total[-1] = 1.0
        return total

    @property
    def mean(self) -> float:
        """Of the estimated density."""
        return float(self.shares @ (self.edges[:-1] + self.edges[1:])) / 2

    @property
    def sd(self) -> float:
        """Of the estimated density, its bins spread evenly."""
        middle = (self.edges[:-1] + self.edges[1:]) / 2
        return math.sqrt(float(self.shares @ ((middle - self.mean) ** 2 + np.diff(self.edges) ** 2 / 12)))

    def quantile(self, u: Floats) -> Floats:
        """Values below which shares `u` lie."""
        return np.interp(u, self.cumulative, self.edges)

    def again(self, rng: np.random.Generator) -> Noisy:
        """Figures as they might have come out: persons and noise drawn anew from the estimate."""
        whole = max(1, round(self.persons))
        counts = rng.multinomial(whole, self.shares / self.shares.sum()).astype(np.float64)
        for _ in range(self.releases if self.scale else 0):
            counts += np.round(rng.laplace(scale=self.scale, size=counts.shape))
        return Noisy(counts=counts, edges=self.edges, persons=float(whole), scale=self.scale, releases=self.releases)


@dataclass(frozen=True)
class Map:
    """The increasing map that carries one density onto another; a site onto itself stays where it is.

    >>> flat = Noisy(counts=np.full(4, 25.0), edges=np.linspace(0, 1, 5), persons=100)
    >>> twice = Noisy(counts=np.full(4, 25.0), edges=np.linspace(0, 2, 5), persons=100)
    >>> Map(flat, twice)(np.array([0.25, 1.0])).round(12).tolist(), Map(flat, twice).slope
    ([0.5, 2.0], 2.0)
    """

    source: Noisy
    target: Noisy

    def __call__(self, values: Floats) -> Floats:
        """(n,) values on the target's scale; outside the source's bounds as at them, missing ones stay missing."""
        values = np.asarray(values, dtype=np.float64)
        share = np.interp(values, self.source.edges, self.source.cumulative)
        return np.where(np.isnan(values), np.nan, self.target.quantile(share))

    @property
    def inverse(self) -> Map:
        """The way back."""
        return Map(self.target, self.source)

    @property
    def slope(self) -> float:
        """From the middle 80 % of the source to that of the target: a change of unit, roughly."""
        low, high = self.source.quantile(np.array([0.1, 0.9]))
        to = self.target.quantile(np.array([0.1, 0.9]))
        return float((to[1] - to[0]) / (high - low))

    def outside(self, values: Floats) -> int:
        """How many values lie outside the source's bounds, and are mapped as its bounds are."""
        values = np.asarray(values, dtype=np.float64)
        return int(((values < self.source.edges[0]) | (values > self.source.edges[-1])).sum())


class GridMap:
    """The transport map between two densities of two or three columns together, on a grid of the unit square or cube.

    Entropic transport for the squared distance of rescaled columns, its blur made smaller step by step, read off as the
    mean place to which a place's mass goes, less what the same does from the source to itself: so that a site mapped
    onto itself stays where it is.

    Args:
        source, target: (k, ...) noisy counts on equal bins of [0, 1], of the same number of columns.
        persons: of each.
        scale: of the Laplace noise on both; 0 for none.
        side: cells of the grid along a column.
        blur: the last one, in squared units of a rescaled column.
    Raises: ParameterError: one column, more than three, or another number in the target.
    """

    def __init__(
        self,
        source: Floats,
        target: Floats,
        *,
        persons: tuple[float, float],
        scale: float,
        side: int = 0,
        blur: float = 5e-4,
    ) -> None:
        d = np.ndim(source)
        if d not in (2, 3) or np.ndim(target) != d:
            raise ParameterError(
                "a map on a grid must be of two or three columns on both sides",
                given=f"{d} and {np.ndim(target)}",
                next_step="One column has an exact map (Map); four have more cells than a study has persons.",
            )
        side = side or (64 if d == 2 else 32)
        noise = rounded_laplace_variance(scale) if scale else 0.0
        both = [
            _refined(_shares(np.asarray(counts, dtype=np.float64), n, noise), side)
            for counts, n in zip((source, target), persons, strict=True)
        ]
        self._solve(both[0], both[1], blur)

    @classmethod
    def between(cls, source: Floats, target: Floats, *, blur: float = 5e-4) -> GridMap:
        """The map between two densities as they are: positive cells of one grid, each adding up to 1."""
        made = cls.__new__(cls)
        made._solve(np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64), blur)
        return made

    def _solve(self, source: Floats, target: Floats, blur: float) -> None:
        self._centres = (np.arange(len(source)) + 0.5) / len(source)
        there, stay = (_barycentric(source, onto, self._centres, blur) for onto in (target, source))
        self._moves = there - stay

    def __call__(self, points: Floats) -> Floats:
        """(n, d) places in [0, 1]^d to where they go, within it; linear between the cells' centres and beyond them."""
        from scipy.interpolate import RegularGridInterpolator

        points = np.clip(np.asarray(points, dtype=np.float64), 0.0, 1.0)
        d = points.shape[1]
        beyond: dict[str, Any] = {"bounds_error": False, "fill_value": None}
        moves = RegularGridInterpolator((self._centres,) * d, np.moveaxis(self._moves, 0, -1), **beyond)(points)
        return np.asarray(np.clip(points + moves, 0.0, 1.0))


def bootstrap(source: Noisy, target: Noisy, *, draws: int, rng: np.random.Generator) -> list[Map]:
    """Maps as they might have come out, both densities drawn anew (`Noisy.again`).

    Raises: ParameterError: fewer than two draws.
    """
    if draws < 2:
        raise ParameterError("a bootstrap must have at least two draws", given=f"{draws}")
    return [Map(source.again(rng), target.again(rng)) for _ in range(draws)]


def on_simplex(values: Floats) -> Floats:
    """The nearest point (Euclidean) that is nowhere negative and adds up to 1.

    Source: Held, Wolfe & Crowder (1974). Whatever finite numbers go in, a probability comes out.

    >>> on_simplex(np.array([0.9, 0.4, -0.3])).round(12).tolist(), on_simplex(np.array([-5.0, -5.0])).tolist()
    ([0.75, 0.25, 0.0], [0.5, 0.5])
    """
    down = np.sort(np.ravel(values))[::-1]
    above = (np.cumsum(down) - 1) / np.arange(1, len(down) + 1)
    last = int(np.flatnonzero(down > above)[-1])
    out = np.maximum(values - above[last], 0.0)
    return np.asarray(out / out.sum())


def distance(one: Noisy, other: Noisy) -> float:
    """How far apart two densities lie: the mean distance of their quantiles, in their common standard deviation."""
    u = (np.arange(400) + 0.5) / 400
    spread = math.sqrt((one.sd**2 + other.sd**2) / 2)
    return float(np.abs(one.quantile(u) - other.quantile(u)).mean()) / spread


def case_mix_warning(
    densities: Mapping[str, Mapping[str, Noisy]], column: str, to: str, *, limit: float = ALIKE
) -> tuple[str, ...]:
    """What speaks against harmonising `column` to the site `to`, in sentences; empty where nothing is seen.

    Args:
        densities: site to column to density: the column itself, and columns that no laboratory distorts.
        limit: distance (see `distance`) from which patients count as different.

    Where other columns are given, they judge: they are measured alike everywhere, so that a difference in them is one
    of patients. Where none is, the column itself does, and the sentence says that its scale may be the reason.
    """
    if to not in densities or column not in densities[to]:
        raise ParameterError(f"the reference must have a density of {column}", given=to)
    out = []
    for site, has in sorted(densities.items()):
        if site == to:
            continue
        alike = sorted(name for name in has if name != column and name in densities[to])
        for name in alike or [column]:
            if name not in has:
                continue
            apart = distance(has[name], densities[to][name])
            if apart <= limit:
                continue
            why = (
                f"{name} is measured alike, so its patients differ: harmonising takes away a part of what is real"
                if name != column
                else "this may be its laboratory or its patients: no column that should not differ was released to tell"
            )
            out.append(f"{site} and {to} lie {apart:.1f} standard deviations apart in {name}; {why}.")
    return tuple(out)


@dataclass(frozen=True, kw_only=True)
class Harmonised:
    """One question three times, side by side: nothing is harmonised without showing what it changed.

    Args:
        densities: the study that the densities came from.
        column, to: what was mapped, onto which site's scale.
        answer: the question as it stands, each site by itself, then pooled: every site has an intercept and its own
            scale. Also who asked what of which releases.
        raw: all rows in one table, as if one laboratory had measured them.
        estimates: one per site with its rows mapped first, excluded ones with their reason.
        harmonised: those pooled; the variance of the maps is in its interval.
        map_variance: of the pooled estimate, by the densities' noise and size (bootstrap).
        site_map_variance: the same of each site's estimate.
        maps: site to its map.
        bands: site to (3, points): values on its scale, and between what its map lies there (95 %).
        outside: site to how many rows were mapped as its bounds are.
        warnings: what speaks against harmonising (`case_mix_warning`).
        notes: what a reader must know of the way it was made.
        used: SHA-256 of the bundles with densities, with their site.
    """

    densities: str
    column: str
    to: str
    answer: queries.Answer
    raw: Estimate
    estimates: tuple[Estimate, ...]
    harmonised: PooledResult
    map_variance: float
    site_map_variance: Mapping[str, float]
    maps: Mapping[str, Map]
    bands: Mapping[str, Floats]
    outside: Mapping[str, int]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    used: Mapping[str, str]

    @property
    def intercepts(self) -> PooledResult:
        """The answer as released, site by site."""
        return self.answer.result

    @property
    def asked(self) -> dict[str, Any]:
        """The question as plain values."""
        return {**self.answer.asked, "harmonised": self.column, "to": self.to, "densities": self.densities}

    @property
    def document(self) -> dict[str, Any]:
        """The whole answer: that of the question as released, and beside it what harmonising makes of it."""
        from coordinator.client import pooled_data
        from shared.terminal import plain

        told = {name: getattr(self, name) for name in ("densities", "column", "to", "raw", "outside", "used")}
        told |= {"warnings": self.warnings, "about": self.notes, "lines": self.lines, "estimates": self.estimates}
        told |= {"map_variance": self.map_variance, "site_map_variance": self.site_map_variance}
        told |= pooled_data(self.harmonised)
        told["maps"] = {
            site: {"value": band[0], "mapped": self.maps[site](band[0]), "lower": band[1], "upper": band[2]}
            for site, band in self.bands.items()
        }
        return {**self.answer.document, "harmonised": plain(told)}

    @property
    def lines(self) -> tuple[str, ...]:
        """The three answers, the warnings and the notes, in words."""
        said = said_of(self.raw, self.intercepts, self.harmonised)
        return (
            f"{self.answer.term} in {self.answer.estimand}, {self.column} mapped onto the scale of {self.to}",
            *(f"{what}: {words}" for what, words in said.items()),
            f"of the last one's standard error {math.sqrt(self.map_variance):.2g} is the maps'",
            *(f"warning: {text}" for text in self.warnings),
            *self.notes,
        )

    def figure(self, path: str | Path, *, title: str = "") -> None:
        """Draw the three answers in one forest plot. Raises: ParameterError: an unknown suffix."""
        draw(
            self.intercepts,
            self.harmonised,
            self.raw,
            title=title or f"{self.answer.study}: {self.answer.term}, {self.column} on the scale of {self.to}",
            question=self.answer.estimand,
            map_variance=self.site_map_variance,
            warnings=self.warnings,
            path=path,
        )


ARMS = ("all rows in one table", "site by site", "harmonised")
"""The three answers, in the order in which they are told."""


def said_of(raw: Estimate, intercepts: PooledResult, mapped: PooledResult) -> dict[str, str]:
    """The three answers on the scale that people read, each with its interval, by the name of its arm."""
    view: Callable[[float], float] = math.exp if mapped.scale == "log" else float
    said = {ARMS[0]: f"none: {raw.reason}"}
    results = {ARMS[1]: intercepts, ARMS[2]: mapped}
    if raw.yi is not None:
        results = {ARMS[0]: pool_estimates([raw], level=mapped.level), **results}
    for what, row in results.items():
        said[what] = f"{view(row.beta):.4g} ({view(row.ci_lb):.4g} to {view(row.ci_ub):.4g})"
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
    from coordinator import figures

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
    """What the study of densities is called that stands beside a study with rows."""
    return f"{study}-densities"


def densities(
    store: Store, study: str, held: queries.Holding | None = None
) -> tuple[dict[str, dict[str, Noisy]], tuple[str, ...]]:
    """Site to column to density of the accepted releases of a study of densities, and the columns measured alike.

    Args:
        held: what `queries.holding` gave for it, when it was asked already.
    Raises: EstimateRefusal: the study releases something else.
    """
    held = held or queries.holding(store, study)
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    out: dict[str, dict[str, Noisy]] = {}
    alike: tuple[str, ...] = ()
    for site, releases in held.parts.items():
        plan = store.plan(study, releases[-1].plan_version).plan
        if not isinstance(plan.release, DensitiesPlan):
            raise EstimateRefusal(
                f"study {study} must release densities",
                given=plan.release.title,
                next_step='Plan a study of its own with release.mechanism = "densities" beside the one with rows.',
            )
        alike = tuple(plan.release.alike)
        mechanism = plan.release.mechanism_of(plan)
        tables = [queries.rows_of(store, [release], taken) for release in releases]
        n = sum(release.receipt.n for release in releases)
        for i, grid in enumerate(mechanism.grids):
            if len(grid.columns) > 1:
                continue
            counts = np.sum([plan.release.counts(plan, table)[i] for table in tables], axis=0).astype(np.float64)
            here = n - counts[-1] if grid.missing else float(n)
            try:
                found = Noisy(
                    counts=counts[: len(grid.edges[0]) - 1],
                    edges=grid.edges[0],
                    persons=here,
                    scale=mechanism.scale,
                    releases=len(tables),
                )
            except EstimateRefusal:
                continue  # nobody there has a value: as if it were not measured
            out.setdefault(site, {})[grid.columns[0].name] = found
    return out, alike


def harmonised(
    store: Store,
    study: str,
    column: str,
    *,
    to: str,
    estimand: str | Estimand,
    term: str = "",
    source: str = "",
    wave: int = 0,
    held: queries.Holding | None = None,
    kept: queries.Kept | None = None,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    draws: int = 20,
) -> Harmonised:
    """Put a question to the released rows as they are, and with `column` mapped onto the scale of the site `to`.

    Args:
        study: with released rows.
        source: the study of densities; `beside` the study if it is not given.
        held, kept: as of `queries.ask`.
        draws: of the bootstrap of the maps.
    Raises: EstimateRefusal (no density of the column at the reference, no site with both), ParameterError,
        and what `queries.ask` raises.
    """
    if draws < 2:
        raise ParameterError("the bootstrap of the maps must have at least two draws", given=f"{draws}")
    source = source or beside(study)
    drawn = queries.holding(store, source)
    known, alike = densities(store, source, drawn)
    if column not in known.get(to, {}):
        having = ", ".join(sorted(site for site, has in known.items() if column in has)) or "none"
        raise EstimateRefusal(
            f"the reference must have released a density of {column}", given=to, next_step=f"Sites that have: {having}."
        )
    held = held or queries.holding(store, study, wave)
    plan = store.plan(study).plan
    question, _ = queries.resolve(plan, estimand, lack=lambda name: queries.lacking(store, study, name))
    if column not in question.columns:
        raise ParameterError("the question must be about the mapped column", given=str(question))
    pooling: dict[str, Any] = {"method": method, "test": test, "level": level}
    answer = queries.ask(store, study, held.wave, question, held=held, kept=kept, term=term, **pooling)
    taken = {stone.bundle_sha256 for stone in store.withdrawals(study)}
    levels = {one.name: one.levels for one in plan.dictionary.released if one.levels}
    rng = np.random.default_rng(1)  # public: the noise that is drawn here hides nothing
    target = known[to][column]
    targets = [target.again(rng) for _ in range(draws)]
    maps: dict[str, Map] = {}
    bands: dict[str, Floats] = {}
    outside: dict[str, int] = {}
    tables: dict[str, pd.DataFrame] = {}
    found: list[Estimate] = []
    moved: list[list[Estimate]] = [[] for _ in range(draws)]
    spreads: dict[str, float] = {}
    for site, releases in held.parts.items():
        told: dict[str, Any] = {"study": study, "site": site, "wave": held.wave, "levels": levels}
        told["receipts"] = tuple(release.receipt.hash for release in releases)
        try:
            tables[site] = rows = _rows(store, releases, taken, column)
            if column not in known.get(site, {}):
                raise EstimateRefusal(f"{site} must have released a density of {column}", given=f"none in {source}")
            here = Map(known[site][column], target)
            again = [Map(known[site][column].again(rng), one) for one in targets]
            if site == to:  # it is its own scale, whatever the noise
                again = [here] * draws
            through = partial(_mapped, column=column, through=here)
            how: dict[str, Any] = {"behind": held.behind[site], "combined": held.combined, "stand_in": None}
            mapped = queries.site_answer(store, releases, taken, question, **how, told=told, through=through)
        except Refusal as refusal:
            found.append(_lacks(study, site, held.wave, answer.term, question, str(refusal).rstrip(".")))
            continue
        maps[site], outside[site] = here, here.outside(rows[column].to_numpy(dtype=np.float64, na_value=np.nan))
        points = np.linspace(here.source.edges[0], here.source.edges[-1], 65)
        spread = np.quantile([one(points) for one in again], [0.025, 0.975], axis=0)
        bands[site] = np.vstack([points, spread])
        mine = next(row for row in mapped if row.term == answer.term)
        found.append(mine)
        if mine.yi is None:
            continue
        values: list[float] = []
        for row, one in zip(moved, again, strict=True):
            redone = estimate(_mapped(rows, column=column, through=one), question, levels=levels)
            value = next(each.yi for each in redone if each.term == mine.term)
            values.append(mine.yi if value is None else value)
            row.append(replace(mine, yi=values[-1]))
        spreads[site] = 0.0 if site == to else float(np.var(values, ddof=1))
    judged = {site: {name: has[name] for name in (column, *alike) if name in has} for site, has in known.items()}
    pools = [pool_estimates(row, **pooling).beta for row in moved if row]
    variance = float(np.var(pools, ddof=1)) if pools else 0.0
    if not {stone.bundle_sha256 for stone in store.withdrawals(source)}.isdisjoint(drawn.used):
        raise queries.moved()
    return Harmonised(
        densities=source,
        column=column,
        to=to,
        answer=answer,
        raw=_stacked(held, tables, question, answer.term, study, levels),
        estimates=tuple(found),
        harmonised=replace(pool_estimates(found, **pooling), shared=variance),
        map_variance=variance,
        site_map_variance=spreads,
        maps=maps,
        bands=bands,
        outside=outside,
        warnings=case_mix_warning(judged, column, to),
        notes=_notes(column, to, source, alike, outside),
        used=drawn.used,
    )


def _rows(store: Store, releases: tuple[Release, ...], taken: set[str], column: str) -> pd.DataFrame:
    plan = store.plan(releases[-1].study, releases[-1].plan_version).plan
    if isinstance(plan.release, Answering):
        raise EstimateRefusal("only released rows can be mapped", given=plan.release.title)
    if column not in plan.dictionary.names:
        raise EstimateRefusal(f"the released rows must have the column {column}", given="none")
    return queries.rows_of(store, releases, taken)


def _mapped(table: pd.DataFrame, *, column: str, through: Map) -> pd.DataFrame:
    return table.assign(**{column: through(table[column].to_numpy(dtype=np.float64, na_value=np.nan))})


def _lacks(study: str, site: str, wave: int, term: str, question: Estimand, reason: str) -> Estimate:
    return Estimate(
        study=study,
        site=site,
        wave=wave,
        term=term,
        yi=None,
        vi_sampling=None,
        n=0,
        reason=reason,
        scale=question.scale,
    )


def _stacked(
    held: queries.Holding,
    tables: Mapping[str, pd.DataFrame],
    question: Estimand,
    term: str,
    study: str,
    levels: Mapping[str, Any],
) -> Estimate:
    """The answer of all sites' rows in one table, with the variance of the patients behind them."""
    import pandas as pd

    try:
        rows = pd.concat(list(tables.values()), ignore_index=True)
        naive = estimate(rows, question, study=study, site=ARMS[0], wave=held.wave, levels=levels)
        draws = [one for site in tables for one in queries.draws_of(held.parts[site], held.behind[site])]
        known = with_release_variance([row for row in naive if row.term == term], rows, question, draws, levels=levels)
        return known[0]
    except Refusal as refusal:
        return _lacks(study, ARMS[0], held.wave, term, question, str(refusal).rstrip("."))


def _notes(column: str, to: str, source: str, alike: tuple[str, ...], outside: Mapping[str, int]) -> tuple[str, ...]:
    judged = f"Patients are compared by {', '.join(alike)}" if alike else "No column was named that is measured alike"
    beyond = ", ".join(f"{count} rows of {site}" for site, count in sorted(outside.items()) if count)
    return (
        f"{column} was mapped onto the scale of {to} by the noisy densities of {source}: made of releases that are "
        "charged already. It assumes that the sites' patients are alike in it; where they are not, harmonising harms.",
        f"{judged}.",
        *([f"Outside the bounds of the densities, and mapped as the bounds are: {beyond}."] if beyond else []),
    )


def _refined(shares: Floats, side: int) -> Floats:
    """Probabilities on a finer grid, spread evenly within each cell."""
    for axis, bins in enumerate(shares.shape):
        share = np.zeros((side, bins))
        edges = np.linspace(0, bins, side + 1)
        for k in range(bins):
            share[:, k] = np.clip(np.minimum(edges[1:], k + 1) - np.maximum(edges[:-1], k), 0, None)
        shares = np.moveaxis(np.tensordot(share, shares, axes=(1, axis)), 0, axis)
    return np.asarray(shares / shares.sum())


def _smeared(logs: Floats, kernel: Floats) -> Floats:
    """log of the sum over all cells of exp(logs) times a product of one kernel per axis, line by line from its top."""
    for axis in range(logs.ndim):
        top = logs.max(axis=axis, keepdims=True)
        total = np.moveaxis(np.tensordot(kernel, np.exp(logs - top), axes=(1, axis)), 0, axis)
        logs = np.log(np.maximum(total, 1e-300)) + top
    return logs


def _barycentric(a: Floats, b: Floats, centres: Floats, blur: float) -> Floats:
    """(d, ...) the mean place where mass of each cell of `a` goes in the entropic transport onto `b`.

    Source: Sinkhorn's iteration, over-relaxed, with a blur that is halved from 1; one small matrix per axis.
    """
    log_a, log_b = np.log(a), np.log(b)
    f, g = np.zeros_like(a), np.zeros_like(b)
    steps = [max(blur, 2.0**-k) for k in range(math.ceil(-math.log2(blur)) + 1)]
    apart = (centres[:, None] - centres[None, :]) ** 2 / 2
    now = steps[0]
    for step in steps:
        f, g, now = f * (now / step), g * (now / step), step
        kernel = np.exp(-apart / step)
        for _ in range(40 if step == steps[-1] else 4):
            g = (1 - _OVER) * g - _OVER * _smeared(f + log_a, kernel)
            f = (1 - _OVER) * f - _OVER * _smeared(g + log_b, kernel)
    place = [np.reshape(np.log(centres), [-1 if i == k else 1 for i in range(a.ndim)]) for k in range(a.ndim)]
    return np.stack([np.exp(f + _smeared(g + log_b + where, kernel)) for where in place])


def _shares(counts: Floats, persons: float, noise: float) -> Floats:
    """Noisy counts of any shape to probabilities of that shape: shrunk by shells, projected, none of them 0."""
    even = 1 / counts.size
    raw = counts / persons
    # What is known is worth more than what is noised: the shares add up to 1.
    raw = raw + (1 - raw.sum()) * even
    variance = noise / persons**2 + even / persons
    waves = fft.dctn(raw - even, norm="ortho")
    frequency = sum(np.square(np.indices(counts.shape), dtype=np.float64))
    order = np.argsort(np.ravel(frequency), kind="stable")
    sorted_ = waves.ravel()[order]
    sorted_[0] = 0.0
    for start, stop in _shells(counts.size):
        size = stop - start
        energy = float((sorted_[start:stop] ** 2).sum())
        reach = (size - 2 if size > 2 else size / 2) * variance
        sorted_[start:stop] *= max(0.0, 1 - reach / energy) if energy > 0 else 0.0
    waves.ravel()[order] = sorted_
    shares = on_simplex(even + fft.idctn(waves, norm="ortho"))
    little = min(0.1, max(1e-5, 0.5 / persons))
    return np.asarray((1 - little) * shares + little * even)


def _shells(bins: int) -> list[tuple[int, int]]:
    """Frequencies 1.. in shells of 1, 2, 3, … : low ones, which carry a smooth density, are judged nearly alone."""
    out, start, size = [], 1, 1
    while start < bins:
        out.append((start, min(start + size, bins)))
        start, size = start + size, size + 1
    return out
