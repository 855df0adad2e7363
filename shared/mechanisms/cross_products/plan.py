r"""Mechanism spec of cross-products: noisy sums of squares and products of columns, on scales that the plan gives.

For hospitals of a few hundred persons who ask a linear model. Histograms, through which noisy moments look at a
column, drown there; what a column's centre and spread are like is published, and the plan says it. With u a person's
columns on these scales, its measurements drawn in where u is longer than R, and v = (1, u), the release is
:math:`\sum v v'` with noise. For two persons

.. math:: |v v' - w w'|_F^2 = |v|^4 + |w|^4 - 2 (v \cdot w)^2 \le 2 (1 + R^2)^2,

with v at right angles to w, which there is for R ≥ 1. In the coordinates (squares, √2 times products) this is the
Euclidean distance, so that a square has noise σ and a product σ / √2: one Gaussian mechanism, and any linear model of
the columns is in it (`shared.mechanisms.cross_products.posterior`). The number of persons, 1 · 1 summed, is public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from shared.base.canonical import is_list, is_number
from shared.base.randomness import MAX_RATIO
from shared.errors import EstimateRefusal, MissingRefusal, SchemaRefusal
from shared.mechanisms.base import Facts, ReleasedTables, must
from shared.mechanisms.labelled import LabelledFigures, Layout
from shared.mechanisms.row_blocks import row_blocks
from shared.plans.dictionary import NUMERIC
from shared.privacy.accountant import Gaussian

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.mechanisms.base import MechanismPlan
    from shared.mechanisms.cross_products.posterior import NoisyProducts
    from shared.plans.plan import StudyPlan
    from shared.terminal import ChecklistLine

__all__ = ["COLUMNS", "CrossProductsPlan", "noised"]

COLUMNS = ("first", "second", "value")
"""Of the released table: two columns of the plan, ``1`` for none, and their products' noisy sum in steps of 2⁻²⁰."""
_FEWEST, _MOST = 2, 20
_GRID = 2.0**-20
"""Of a person's products: sums of 2³⁰ persons are still exact."""
_TWO_LEVELS = (0.5, 0.5)
"""Centre and scale of a column of two levels, which are 0 and 1: they become -1 and 1."""
_LONG = 0.8
"""Mean squared length, over R², from which on many persons are drawn in."""
_SPREAD = (0.1, 1.75)
"""Variances, in squared scales, beyond which the plan's scale is so far off that intervals may miss the truth."""
_NEAR, _FAR = 2.0, 3.0
"""Scales from a column's centre to the nearer and to the further bound within and beyond which it is taken for skewed.
In worlds of other columns than it is reported on (docs/benchmarks/cross-products.md) the error began at the first."""
_FURTHEST = 1e150
"""Of u, in scales: further off its square would overflow, and what is drawn in must be a number."""
_MOST_EPSILON = 50.0


@dataclass(frozen=True, kw_only=True)
class CrossProductsPlan(LabelledFigures):
    """Every square and product of some columns, summed over all persons, with Gaussian noise.

    Args:
        epsilon: ε of one release at the budget's δ; the noise is solved for.
        columns: outcomes and covariates alike: continuous, whole numbers, or of two levels.
        typical: column to (centre, scale), about its mean and standard deviation as published. Off by one standard
            deviation, or by a factor of two, it makes intervals wider; further off they may miss the truth, which
            `doubt` and answers say where the sums tell it. A column of two levels needs none.
        radius: R, the length of u at which a person is drawn in; None for √(1.25 times the columns). Of thousands of
            persons √(2 times the columns) is better: less noise is worth less there than less that is cut.
    """

    epsilon: float
    columns: Sequence[str]
    typical: Mapping[str, Sequence[float]]
    radius: float | None = None
    mechanism: Literal["cross_products"] = "cross_products"
    title: ClassVar[str] = "cross-products"
    bundle_of: ClassVar[tuple[float, float]] = (0.008, 4e-6)

    @property
    def unseen(self) -> str:
        """As of `MechanismPlan.unseen`."""
        return (
            "A bend or an interaction that a model lacks leaves no trace in the sums. Persons far from the plan's "
            "typical values are drawn in, which is put right as far as the columns are normal."
        )

    def __post_init__(self) -> None:
        must(
            is_number(self.epsilon) and 0 < self.epsilon <= _MOST_EPSILON,
            f"release.epsilon must be in (0, {_MOST_EPSILON:g}]",
            repr(self.epsilon)[:40],
        )
        listed = is_list(self.columns) and all(isinstance(name, str) for name in self.columns)
        must(
            listed and _FEWEST <= len(self.columns) <= _MOST and len(set(self.columns)) == len(self.columns),
            f"release.columns must be {_FEWEST} to {_MOST} different columns",
            repr(self.columns)[:60],
        )
        object.__setattr__(self, "columns", tuple(self.columns))
        pairs = isinstance(self.typical, Mapping) and all(
            isinstance(name, str) and isinstance(pair, Sequence) and len(pair) == 2 and all(map(_is_number, pair))
            for name, pair in self.typical.items()
        )
        must(pairs, "release.typical must give a centre and a scale of each column", repr(self.typical)[:60])
        typical = {name: (float(centre), float(scale)) for name, (centre, scale) in sorted(self.typical.items())}
        must(all(scale > 0 for _, scale in typical.values()), "scales in release.typical must be positive", typical)
        object.__setattr__(self, "typical", typical)
        if self.radius is not None:
            must(
                _is_number(self.radius) and 1 <= self.radius <= 100,
                "release.radius must be in 1..100",
                repr(self.radius)[:40],
            )

    # -- what the plan fixes -------------------------------------------------------------------------------------
    @property
    def reach(self) -> float:
        """R."""
        return math.sqrt(1.25 * len(self.columns)) if self.radius is None else float(self.radius)

    def event(self, plan: StudyPlan) -> Gaussian:
        """One Gaussian mechanism, what rounding adds to its sensitivity included."""
        from shared.privacy import calibration

        q = len(self.columns)
        # Of squares q, of products with 1 and with each other q (q + 1) / 2, each of which counts twice.
        sensitivity = math.sqrt(2) * (1 + self.reach**2) * (1 + 1e-9) + math.sqrt(q + q * (q + 1)) * _GRID
        found = calibration.calibrate(Gaussian, self.epsilon, plan.budget.delta, sensitivity=sensitivity)
        assert isinstance(found, Gaussian)
        return found

    def scales(self, plan: StudyPlan) -> tuple[tuple[float, float], ...]:
        """(centre, scale) of each column."""
        return tuple(
            self.typical.get(name, _TWO_LEVELS)  # type: ignore[misc]
            for name in self.columns
        )

    def skewed(self, plan: StudyPlan) -> tuple[str, ...]:
        """Columns with little room on one side of the typical values and much on the other, as skewed ones have."""
        found = []
        for name, (centre, scale) in zip(self.columns, self.scales(plan), strict=True):
            column = plan.dictionary.column(name)
            if name in self.typical and column.kind in NUMERIC:
                near, far = sorted(abs(bound - centre) / scale for bound in column.span)
                if near < _NEAR and far > _FAR:
                    found.append(name)
        return tuple(found)

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """Checklist: a warning for columns whose long tail is drawn in, of which no normal law puts it right."""
        from shared.terminal import ChecklistLine

        names = self.skewed(plan)
        if not names:
            return []
        detail = (
            f"{', '.join(names)}: less than {_NEAR:g} typical scales to one bound and more than {_FAR:g} to the other, "
            "as a skewed column has. Its long tail is drawn in, and what that takes from coefficients is put right for "
            "normal columns alone; answers carry a caution"
        )
        fix = (
            "Record such a column by its logarithm or in bands; or plan noisy moments or latent noise. Leave it where "
            "the bound is known to cut no tail: a normal column, of which nobody is beyond it."
        )
        return [ChecklistLine(name="skewed", state="warn", detail=detail, fix=fix)]

    def require(self, plan: StudyPlan) -> None:
        """Columns of kinds that have products, each with its scale. Raises: PlanRefusal."""
        super().require(plan)
        known = plan.dictionary.names
        for name in (*self.columns, *self.typical):
            must(name in known, "release.columns and release.typical must be of the dictionary", name)
        for name in self.columns:
            column = plan.dictionary.column(name)
            plain = column.kind in ("continuous", "integer", "binary")
            must(plain, "release.columns must be continuous, integer or binary", f"{name}, which is {column.kind}")
            must(column.missing != "level", "release.columns must not have missing values as a level", name)
            must(
                name in self.typical or column.kind == "binary",
                "release.typical must give each numeric column's centre and scale",
                f"none of {name}",
            )
        for name in self.typical:
            must(name in self.columns, "release.typical must be of release.columns", name)
        two = len(self.columns) - len(self.typical)
        least = two + bool(self.typical)
        must(
            self.reach**2 >= least,
            f"release.radius must be at least {math.sqrt(least):.3g}, for {two} columns at -1 or 1 and the others",
            f"{self.reach:g}",
        )
        sigma = self.event(plan).sigma
        must(
            sigma <= MAX_RATIO * _GRID,
            f"release.epsilon must be so large that the noise is at most {MAX_RATIO * _GRID:.4g}",
            f"noise of {sigma:.4g} on a square",
        )

    # -- at the site ---------------------------------------------------------------------------------------------
    def coded(self, plan: StudyPlan, records: pd.DataFrame) -> NDArray[np.float64]:
        """(n, q) u of checked records, before anybody is drawn in."""
        values = np.array(records[list(self.columns)], dtype=np.float64)
        for k, name in enumerate(self.columns):
            column = plan.dictionary.column(name)
            low, high = column.span if column.kind in NUMERIC else (0.0, 1.0)
            values[:, k] = np.clip(values[:, k], low, high)
        centre, scale = np.array(self.scales(plan)).T
        with np.errstate(over="ignore"):
            return np.clip((values - centre) / scale, -_FURTHEST, _FURTHEST)

    def products(self, plan: StudyPlan, records: pd.DataFrame) -> NDArray[np.int64]:
        """(lines,) sums over checked records, in steps of the grid. Raises: MissingRefusal."""
        names = list(self.columns)
        missing = sum(int((~np.isfinite(rows[names])).any(axis=1).sum()) for rows in row_blocks(records))
        if missing:
            raise MissingRefusal("every row must have all columns of the plan", given=f"{missing} rows that do not")
        return np.sum([self._sums(self.coded(plan, rows)) for rows in row_blocks(records)], axis=0, dtype=np.int64)

    def _sums(self, u: NDArray[np.float64]) -> NDArray[np.int64]:
        """(lines,) of a block: whole steps of each person, added up."""
        measured = self._measured
        length = np.sqrt((u[:, measured] ** 2).sum(axis=1, keepdims=True))
        u[:, measured] *= np.minimum(1.0, self._left / np.maximum(length, 1e-300))
        v = np.column_stack([np.ones(len(u)), u])
        return np.array(
            [np.rint(v[:, i] * v[:, j] / _GRID).astype(np.int64).sum() for i, j in self._places()], dtype=np.int64
        )

    def draw(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> pd.DataFrame:
        """The sums with noise, a line each."""
        square = np.array([i == j for i, j in self._places()])
        steps = noised(self.products(plan, records), square, self.event(plan).sigma, rng)
        return self.layout(plan).table([steps])

    def clipped(self, plan: StudyPlan, records: pd.DataFrame) -> int:
        """Records that are drawn in."""
        squares = (np.square(self.coded(plan, rows)[:, self._measured]).sum(axis=1) for rows in row_blocks(records))
        return sum(int((square > self._left**2).sum()) for square in squares)

    @property
    def _measured(self) -> NDArray[np.bool_]:
        """(q,) columns that are drawn in; those at -1 or 1 are not, and take their part of R² from the others."""
        return np.array([name in self.typical for name in self.columns])

    @property
    def _left(self) -> float:
        """Length to which the measured columns are drawn in."""
        return math.sqrt(self.reach**2 - float((~self._measured).sum()))

    def _places(self) -> Iterator[tuple[int, int]]:
        """Squares, then products, as they are noised."""
        places = range(len(self.columns) + 1)
        yield from ((i, i) for i in places[1:])
        yield from ((i, j) for i in places for j in places[i + 1 :])

    def layout(self, plan: StudyPlan) -> Layout:
        """The two columns of every sum, ``1`` for none."""
        names = ("1", *self.columns)
        pairs = list(self._places())
        return Layout(columns=COLUMNS, first=[names[i] for i, _ in pairs], second=[names[j] for _, j in pairs])

    # -- what is said of it --------------------------------------------------------------------------------------
    def facts(self, plan: StudyPlan) -> Facts:
        """The noise on a square, and R."""
        return Facts(
            d=len(self.columns),
            parameters={"sigma": self.event(plan).sigma, "radius": self.reach, "columns": float(len(self.columns))},
            conditional_on="nothing: nothing was fitted on records",
            model="central",
        )

    def details(self, plan: StudyPlan) -> str:
        """Columns and noise, in half a line."""
        sigma = self.event(plan).sigma
        return (
            f"squares and products of {len(self.columns)} columns, noise of {sigma:.4g} on the sum of a square, whose "
            f"mean is about 1 a person, and of {sigma / math.sqrt(2):.4g} on a product's"
        )

    def require_possible(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """As of `LabelledFigures`."""
        values = table["value"].to_numpy(dtype=np.float64) * _GRID
        outside = int((np.abs(values) > n * self.reach**2 + 40 * self.event(plan).sigma).sum())
        if outside:
            raise SchemaRefusal(
                "released cross-products must be possible for n persons and the noise of the plan",
                given=f"{outside} are not",
            )

    # -- what the sums tell --------------------------------------------------------------------------------------
    def noisy(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> NoisyProducts:
        """The sums of a released table."""
        from shared.mechanisms.cross_products.posterior import NoisyProducts

        size = len(self.columns) + 1
        sums = np.zeros((size, size))
        i, j = np.array(list(self._places())).T
        sums[i, j] = sums[j, i] = table["value"].to_numpy(dtype=np.float64) * _GRID
        sums[0, 0] = n
        return NoisyProducts(
            n=n, sums=sums, sigma=self.event(plan).sigma, radius=self._left, measured=tuple(self._measured.tolist())
        )

    def doubt(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> str:
        """Warning that the plan's scales are far off, or that the noise drowns the sums; else empty."""
        from shared.mechanisms.cross_products.posterior import regression

        found = self.noisy(plan, table, n)
        said = [self._off_scale(found)]
        try:
            kept = regression(found, 0, range(1, len(self.columns))).kept
        except EstimateRefusal:
            kept = 0.0
        if kept < 0.5:
            said.append(
                "Too few persons for the plan's price: noise is most of what the sums say, and intervals are wide."
            )
        return " ".join(filter(None, said))

    def _off_scale(self, found: NoisyProducts) -> str:
        """Warning that many persons are drawn in, or that a column spreads by far more or less than its scale."""
        measured = np.flatnonzero(self._measured)
        n, squares, sums = found.n, np.diag(found.sums)[1 + measured], found.sums[0, 1 + measured]
        if squares.sum() > _LONG * found.radius**2 * n + 2 * found.sigma * math.sqrt(len(measured)):
            return (
                "Many persons are longer than the plan's radius, and drawn in, which draws coefficients towards zero: "
                "plan larger scales, or a larger radius."
            )
        spread = squares / n - (sums / n) ** 2
        error = 2 * found.sigma / n * np.sqrt(1 + 2 * (sums / n) ** 2)
        for name, low, high in zip(np.array(self.columns)[measured], spread - error, spread + error, strict=True):
            if low > _SPREAD[1]:
                return (
                    f"{name} spreads far beyond the plan's scale, so that many persons are drawn in, which "
                    "draws coefficients towards zero: plan a larger scale."
                )
            if low < _SPREAD[0]:
                of = "is far below the plan's scale" if high < 0.25 else "is hidden by the noise"
                return (
                    f"The spread of {name} {of}: intervals rest on the plan's scale, and may miss the truth "
                    "where that is far off; plan a scale like its standard deviation, or a larger ε."
                )
        return ""

    def _long_tailed(self, plan: StudyPlan, outcome: int, terms: Sequence[int]) -> str:
        """Caution on a model that has a skewed outcome or covariate; else empty."""
        skewed = self.skewed(plan)
        if self.columns[outcome] in skewed:
            return (
                f"{self.columns[outcome]} lies within {_NEAR:g} typical scales of one bound, as a skewed column does: "
                "who is far out is drawn in, which draws every coefficient of a model of it towards zero where it "
                "grows by factors, or varies the more the larger it is (by 6 to 24 % in made-up worlds; not where the "
                "relation is a straight line of even spread). No interval includes this: read a coefficient as of "
                "persons near the typical values, or plan the column's logarithm, noisy moments or latent noise."
            )
        names = ", ".join(self.columns[place] for place in terms if self.columns[place] in skewed)
        if not names:
            return ""
        return (
            f"{names}, within {_NEAR:g} typical scales of one bound as a skewed column is: who is far out is drawn in, "
            "so that its coefficient, and what is adjusted for it, is that of persons near the typical values: too "
            "large where the relation flattens further out (by 7 to 40 % in made-up worlds), too small where it grows "
            "steeper; right where it is a straight line. No interval includes this: plan the column's logarithm or "
            "bands, noisy moments or latent noise."
        )

    def plans(self, plan: StudyPlan, question: Estimand) -> bool:
        """True if a question is a linear model of the plan's columns."""
        return self.terms(plan, question) is not None

    def terms(self, plan: StudyPlan, question: Estimand) -> tuple[int, list[tuple[int, str, float]]] | None:
        """(place of the outcome, (place, label, units) of each term) of a linear model of the columns; else None."""
        from shared.estimands.questions import Estimand

        plain = Estimand(kind="ols", terms=question.terms, outcome=question.outcome, per=question.per)
        places = {name: k for k, name in enumerate(self.columns)}
        if question.kind != "ols" or question != plain or question.outcome not in places or not question.terms:
            return None
        levels, out = plan.dictionary.column(question.outcome).levels, []
        if any(isinstance(level, str) for level in levels):
            return None
        size = float(levels[1]) - float(levels[0]) if levels else 1.0
        for term in question.terms:
            name = term[2:-1] if term.startswith("C(") and term.endswith(")") else term
            if name not in places or name == question.outcome:
                return None
            column = plan.dictionary.column(name)
            two = column.kind == "binary"
            named = two and (name != term or any(isinstance(level, str) for level in column.levels))
            if (name != term and not two) or (named and term in question.per):
                return None
            label = f"{term}[{column.levels[1]}]" if named else question.label(term)
            step = 1.0 if named or not two else float(column.levels[1]) - float(column.levels[0])
            out.append((places[name], label, question.per.get(term, 1.0) / step * size))
        return places[question.outcome], out

    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """The coefficients of a linear model of the columns.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal, of any other question.
        """
        from shared.estimands.answer import Estimate
        from shared.mechanisms.cross_products.posterior import NoisyProducts, regression

        asked = self.terms(plan, question)
        if asked is None:
            raise EstimateRefusal(
                "a release of cross-products must be asked for a linear model of its columns",
                given=f"{question}",
                next_step=f"Ask ols(OUTCOME ~ TERMS) among {', '.join(self.columns)}, without functions of them.",
            )
        outcome, terms = asked
        found = NoisyProducts.added([self.noisy(plan, table, n) for table, n in tables])
        scales, places = [scale for _, scale in self.scales(plan)], [place for place, _, _ in terms]
        seen = regression(found, outcome, places)
        cautions = tuple(filter(None, (self._off_scale(found), self._long_tailed(plan, outcome, places))))
        out = []
        for k, (place, label, units) in enumerate(terms):
            unit = units * scales[outcome] / scales[place]
            out.append(
                Estimate(
                    term=label,
                    yi=float(seen.effects[k]) * unit,
                    vi_sampling=float(seen.sampling[k]) * unit**2,
                    vi_privacy=float(seen.noise[k]) * unit**2,
                    n=found.n,
                    scale=question.scale,
                    how="posterior over the sums behind the noise",
                    warnings=cautions,
                    **origin,
                )
            )
        return out


def noised(steps: NDArray[np.int64], square: NDArray[np.bool_], sigma: float, rng: Noise) -> NDArray[np.int64]:
    """Sums in steps of the grid, with noise of σ on a square and σ / √2 on a product.

    Args:
        square: (lines,) which of the sums are of squares. sigma: in the sums' unit.
    """
    out = steps.copy()
    out[square] += rng.lattice_gaussian_steps(sigma, int(square.sum()), _GRID)
    out[~square] += rng.lattice_gaussian_steps(sigma / math.sqrt(2), int((~square).sum()), _GRID)
    return out


def _is_number(value: object) -> bool:
    return is_number(value) and math.isfinite(value)
