r"""One noisy release of a table's moments: an ε small enough to promise each patient, enough to fit a hazard ratio.

A site releases no row. It releases a few dozen sums over its rows, each row's part of a sum bounded, each sum with
Gaussian noise, all under one ε. From the sums `shared.mechanisms.moments.cohort` makes effects with honest variances
and synthetic rows, at no further cost. The blocks, in the order they are drawn (a later one may look where an earlier
one
points: what it looks *at* depends on released numbers alone):

1. **Histograms** of every covariate and of the outcome (survival: time × event) on the dictionary's public bounds.
2. **Moments** Σ V(y) ⊗ U(x), whole numbers: U = (G, B_j clip((x_j − m_j)/s_j, ±1)), V = (2 A_k times the features of
   the outcome, which lie in [-½, ½]; W). Centre m, scale s, the time scale and the weights come from block 1.
3. **Products** Σ U_i U_j (i < j) and Σ ⌊5U_i²/8⌋ of U = round(1024 clip((x − m)/(s k), ±1)), whole numbers; k is 1.72,
   or less where the bounds are nearer (1 for a binary column).
4. **Score** of the declared coefficients (optional): Σ of records' influences, one vector cut at the length C
   (`influence`), or in plans from before Σ r(y, x) clip(a(x), ±c), r in [-1, 1] the residual; at the fit to blocks 1–3.

**Why the sensitivities hold.** Neighbours are replace-one, n is public, and a block's sum changes by φ(x') − φ(x).
First each block by itself, then all of them together, which is what is charged.

*Histograms.* A record is in one cell of each of the H tables; another one moves at most two cells of each by 1:
Δ² ≤ 2H.

*Moments.* v and u are made whole: V = (V_1 … V_a, W) and U = (G, U_1 … U_p) with |V_k| ≤ A_k, |U_j| ≤ B_j, and W, G
constant; held there in integers, whatever the floating-point arithmetic before did. ‖V⊗U − V'⊗U'‖² is convex in each
single V_k, U_j, V'_k, U'_j, so its maximum lies where all are at an end of their range. There let the features that
differ in sign between the two records have Σ A_k² = f out of F, and the covariates Σ B_j² = g out of H. The entries
V_k G differ for the former, W U_j for the latter, V_k U_j where exactly one of the two does, each by twice its size:

    Δ² = 4 [f G² + W² g + f (H − g) + (F − f) g],

which is linear in f and in g, hence largest at f ∈ {0, F}, g ∈ {0, H}:

    Δ² ≤ 4 max(F (G² + H), H (W² + F), F G² + H W²).

The whole numbers are chosen as large as Δ ≤ 2²² allows, and 2²² steps of the grid 2⁻²² are 1. (F G² ≤ H W² costs
nothing; G is as large as that.)

*Score.* A record's L coordinates are a vector of at most 2²¹ whole steps in length, cut towards zero and held there in
integers: Δ² ≤ (2·2²¹)². (The ``residual``'s within b steps each: Δ² ≤ L (2b)², b the largest that keeps it at 2⁴⁴.)

*Products.* Write U = 1024 w with w ∈ [-1, 1]^p, and q = (5/8)² < 1/2. With a = ‖w‖², a' = ‖w'‖², r = w·w' the change is

    T = Σ_{i<j} (w_i w_j − w'_i w'_j)² + q Σ (w_i² − w'_i²)² = (a² + a'²)/2 − r² − (1/2 − q) Σ (w_i² − w'_i²)²,

and Q, the same without its last term, is no less. Along s w, Q is convex in s²: largest at w = 0, where it is p²/2 at
most, or where some |w_i| = 1. Then it is convex in every other w_j alone (a ≥ 1 + w_j² there), so these are ±1 too; the
same of w'. There Q = p² − r² with r ≡ p (mod 2): T ≤ 4⌊p²/4⌋. Each ⌊5U²/8⌋ is off by less than 1 in 1024², which adds
less than 2⁻¹⁹ a column: Δ² ≤ 4⌊p²/4⌋ + 2⁻¹⁹ p. (Plans of sensitivity ``blocks`` are charged q p more.) That is for
p ≥ 2, where 4⌊p²/4⌋ is no less than the p²/2 of w = 0. One column has its square alone, a whole number from 0 to
5/8 · 1024²: Δ² ≤ q.

**Together.** No two records are the furthest apart in every block: moments differ most where all signs do, products
where half of them do. With the blocks' noise σ_b = D_b / (μ √share_b), D_b the lengths above, what is charged is the
largest Σ_b ‖change in block b‖² / σ_b² over pairs of records. Block 1 says which weights A, W, G, B block 2 looks
through, and these are made as large as the sum stays within μ²: the noise is the plan's, and whatever block 1 said, two
records are μ apart at most. (For ``blocks`` each block is held within D_b by itself.)

The largest sum is found at corners. A column j of a record has a place x = U_j/B_j in block 2 and w = W_j/1024 in
block 3; both are held, in whole numbers, in the parallelogram |x| ≤ 1, |w − κx| ≤ 1 − κ with κ = (1 + c)/2, c = 37/64
(block 3 cuts at 1.72, so that rounding alone could lead out of it). Its corners are ±(1, 1) and ±(1, c). Fix all else:

- The sum is convex in each V_k: they are at their ends, ‖V‖² = F + W².
- It is convex in x alone: (x, w) is on the edge. On |x| = 1, where |w| ≥ c, it is convex in w, for T has the second
  derivative 2 Σ_{i≠j} w_i² + q (12w² − 4w'²) ≥ q (12c² − 4) > 0. Along the other edges T may curve downwards by 4q κ²
  at most, and block 2 curves upwards by 2 B_j² (F + W²): where that is more, beside their noise, the ends are largest.
  Where it is not (strange weights or shares alone), each block is held within D_b by itself.

At corners the sum depends on how many columns differ in sign, of which sizes B_j (two, and two kinds), and which w are
c: a finite search (`room`). A binary column is at ±(1, 1) alone, and where it does not differ in sign it is in the same
cell of its histogram; every other histogram may change. The score is taken to change by all it can.

**Why the composition holds.** Fix two neighbours. Given what the blocks before said, block b is a Gaussian mechanism
with a shift of μ_b standard deviations, which may depend on them, but Σ μ_b² ≤ μ² whatever they said. Let one more
block, with nothing in it but a shift of √(μ² − Σ μ_b²), follow: who sees it too knows no less. The log-likelihood ratio
of all blocks is Σ (μ_b N_b − μ_b²/2) with N_b standard normal given the past. As Σ μ_b² is constant now,

.. math:: E \exp(i t \sum \mu_b N_b) = e^{-t^2 \mu^2 / 2} \; E \prod_b E[e^{i t \mu_b N_b + t^2 \mu_b^2 / 2} \mid past]
          = e^{-t^2 \mu^2 / 2},

it is exactly that of one Gaussian mechanism with μ, and so are ε and δ (Smith & Thakurta 2022; of fixed μ_b, Dong, Roth
& Su 2022). Noise is sampled on each block's grid (`shared.base.randomness`), and sums of whole steps are exact in
int64: no floating-point number is ever noised.

*Covered*: every column of every record, all that is fitted afterwards included. *Public*: the number of records, the
dictionary, the plan. *Not covered*: that a table was refused (`Dictionary.check`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import canonical_json, parse_json
from shared.base.process import deferred
from shared.errors import DictionaryRefusal, MissingRefusal, PlanRefusal, SchemaRefusal
from shared.mechanisms.moments.margins import Margin, bin_edges, fitted_margin
from shared.mechanisms.moments.outcomes import Outcome, fitted_survival, from_margin
from shared.mechanisms.moments.spec import (
    LATTICE,
    SQUARE,
    STEPS,
    VERSION,
    Factor,
    MomentsSpec,
    ScoreKind,
    block_lengths,
    grids_of,
    sigma_of,
)
from shared.mechanisms.row_blocks import row_blocks
from shared.plans.dictionary import NUMERIC, Column, Dictionary

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

__all__ = [
    "Design",
    "Lens",
    "MomentsRelease",
    "product_steps",
    "read",
    "room",
    "score_reach",
    "score_steps",
    "squared_diameter",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_WIDE = {"joint": 1.72, "blocks": 1.75}
_CORNER = 37 / 64
"""c of the corners ±(1, c): 12c² > 4."""
_BESIDE = 0.55
"""Gain of a covariate that is not the study's exposure."""


# -- the plan beside its dictionary ------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Design:
    """A spec beside the dictionary that gives its columns their kinds and public bounds.

    Args:
        factors: nominal covariates, whose binary columns stand in spec and dictionary.
    Raises: PlanRefusal: a column is not in the dictionary, has the wrong kind for its role, may be missing as a level,
        or stands in the dictionary without a role.
    """

    spec: MomentsSpec
    dictionary: Dictionary
    factors: tuple[Factor, ...] = ()

    def __post_init__(self) -> None:
        def must(
            holds: bool,
            column: str,
            rule: str,
            given: str,
            fix: str = "Correct [release], or the dictionary of the plan.",
        ) -> None:
            if not holds:
                raise PlanRefusal(f"column {column!r} of a moments release {rule}", given=given, next_step=fix)

        spec = self.spec
        roles = (*spec.responses, *spec.covariates)
        for name in roles:
            must(name in self.dictionary.names, name, "must be in the dictionary", "no such column")
            column = self.dictionary.column(name)
            must(column.missing != "level", name, "must have no missing values as a level", column.missing)
        for name in self.dictionary.names:
            fix = f"Add {name} to release.covariates, or take it out of the plan's dictionary."
            must(name in roles, name, "must have a role: outcome or covariate", "none", fix)
        linear, binary = ("continuous or integer",), ("binary or event",)
        kinds = {"survival": ("time", "event"), "binary": binary, "count": ("integer",), "linear": linear}
        for name, fitting in zip(spec.responses, kinds[spec.outcome], strict=True):
            kind = self.dictionary.column(name).kind
            must(kind in fitting.split(" or "), name, f"must be of kind {fitting} to be this outcome", kind)
        for name in spec.covariates:
            column = self.dictionary.column(name)
            rule = "must be continuous, integer, binary, ordered or nominal to be a covariate"
            must(column.kind in ("continuous", "integer", "binary", "ordered"), name, rule, column.kind)
        if spec.outcome == "count":
            must(self.response.span[0] == 0, self.response.name, "must count from 0", f"{self.response.lower:g}")
        if spec.outcome == "survival":
            must(self.horizon <= self.response.span[1], self.response.name, "must reach the horizon", f"{self.horizon}")

    @property
    def p(self) -> int:
        """Number of covariates."""
        return len(self.spec.covariates)

    @cached_property
    def covariates(self) -> tuple[Column, ...]:
        """Their columns."""
        return tuple(self.dictionary.column(name) for name in self.spec.covariates)

    @property
    def response(self) -> Column:
        """The outcome's column; for survival the time."""
        return self.dictionary.column(self.spec.responses[0])

    @property
    def horizon(self) -> float:
        """Public end of follow-up."""
        return self.response.span[1] if self.spec.horizon is None else self.spec.horizon

    @cached_property
    def edges(self) -> tuple[Array, ...]:
        """Edges of the covariates' histograms."""
        return tuple(bin_edges(column, self.spec.bins) for column in self.covariates)

    @cached_property
    def outcome_edges(self) -> Array:
        """Edges of the outcome's histogram; for survival of its times."""
        if self.spec.outcome == "survival":
            return np.linspace(0, self.horizon, self.spec.time_bins + 1)
        return bin_edges(self.response, self.spec.bins)

    @property
    def outcome_shape(self) -> tuple[int, ...]:
        """Shape of the outcome's histogram."""
        bins = len(self.outcome_edges) - 1
        return (2, bins) if self.spec.outcome == "survival" else (bins,)

    @property
    def features(self) -> int:
        """Rows of the moments block: features of the outcome, and the constant."""
        return 3 if self.spec.outcome == "survival" else 2

    def matrices(self, checked: pd.DataFrame) -> tuple[Array, Array]:
        """A table that `Dictionary.check` returned, as covariates (n, p) and outcome (n, 1 or 2), within the bounds.

        Raises: as of `require_complete`.
        """
        self.require_complete(checked)
        table = self._numbers(checked)
        for k, name in enumerate((*self.spec.covariates, *self.spec.responses)):
            column = self.dictionary.column(name)
            low, high = column.span if column.kind in NUMERIC else (0.0, len(column.levels) - 1.0)
            table[:, k] = np.clip(table[:, k], low, high)
        x, y = table[:, : self.p], table[:, self.p :]
        if self.spec.outcome == "survival":
            late = y[:, 0] > self.horizon
            y = np.column_stack([np.minimum(y[:, 0], self.horizon), np.where(late, 0.0, y[:, 1])])
        return x, y

    def require_complete(self, checked: pd.DataFrame) -> None:
        """See that there are rows, and in each every column of the plan. Raises: DictionaryRefusal, MissingRefusal."""
        if len(checked) < 1:
            raise MissingRefusal("a table must have at least one row", given="none")
        missing = sum(int((~np.isfinite(self._numbers(block))).any(axis=1).sum()) for block in row_blocks(checked))
        if missing:
            raise MissingRefusal("every row must have all columns of the plan", given=f"{missing} rows that do not")

    def _numbers(self, checked: pd.DataFrame) -> Array:
        """(n, p + 1 or 2) covariates and outcome as they are; an array of its own."""
        for factor in self.factors:
            checked = factor.coded(checked)
        names = [*self.spec.covariates, *self.spec.responses]
        absent = [name for name in names if name not in checked.columns]
        if absent:
            raise DictionaryRefusal("every column of the plan must be in the table", given=", ".join(absent))
        return np.array(checked[names], dtype=np.float64)

    def counts(self, x: Array, y: Array) -> tuple[Integers, ...]:
        """The histograms: one per covariate, then the outcome's."""
        out = [_cells(x[:, j], self.edges[j]) for j in range(self.p)]
        place = _cells(y[:, 0], self.outcome_edges)
        bins = len(self.outcome_edges) - 1
        found = [np.bincount(cell, minlength=len(edges) - 1) for cell, edges in zip(out, self.edges, strict=True)]
        if self.spec.outcome == "survival":
            row = (y[:, 1] < 0.5).astype(np.int64)
            return (*found, np.bincount(row * bins + place, minlength=2 * bins).reshape(2, bins))
        return (*found, np.bincount(place, minlength=bins))

    def lens(self, release: MomentsRelease) -> Lens:
        """Marginal distributions read off the histograms: post-processing, and the same at site and coordinator."""
        return _lens(self, tuple(table.tobytes() for table in release.histograms), release.n)


@lru_cache(maxsize=2)
def _lens(design: Design, tables: tuple[bytes, ...], n: int) -> Lens:
    """`Design.lens`; kept, because a site looks through it and then fits the same release."""
    sigma = sigma_of(design.spec, 0)
    counts = [np.frombuffer(table, dtype=np.int64).astype(float) for table in tables]
    margins = tuple(
        fitted_margin(counts[j], n, sigma, design.edges[j], column, design.spec.margins)
        for j, column in enumerate(design.covariates)
    )
    last = counts[-1].reshape(design.outcome_shape)
    if design.spec.outcome == "survival":
        return Lens(design=design, margins=margins, outcome=fitted_survival(last, n, sigma, design.horizon))
    margin = fitted_margin(last, n, sigma, design.outcome_edges, design.response, design.spec.margins)
    low, high = design.response.span if design.response.kind in NUMERIC else (0.0, 1.0)
    return Lens(design=design, margins=margins, outcome=from_margin(design.spec.outcome, margin, low, high))


def _cells(values: Array, edges: Array) -> Integers:
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2).astype(np.int64)


# -- what the later blocks look through --------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Lens:
    """Centres, scales, weights and the outcome's features: made from noisy histograms alone.

    Args:
        margins: of the covariates. outcome: with its baseline.
    """

    design: Design
    margins: tuple[Margin, ...]
    outcome: Outcome

    @cached_property
    def centre(self) -> Array:
        """(p,); a binary column's is one half, so that its two values are −1 and 1."""
        return np.array(
            [0.5 if c.kind == "binary" else m.mean for c, m in zip(self.design.covariates, self.margins, strict=True)]
        )

    @cached_property
    def scale(self) -> Array:
        """(p,), positive."""
        out = []
        for column, margin in zip(self.design.covariates, self.margins, strict=True):
            low, high = column.span if column.kind in NUMERIC else (0.0, len(column.levels) - 1.0)
            out.append(0.5 if column.kind == "binary" else max(margin.sd, 1e-3 * (high - low)))
        return np.array(out)

    @cached_property
    def _whole(self) -> tuple[Integers, Integers]:
        """(A_1 … A_a, W) and (G, B_1 … B_p): as large as the diameter allows."""
        first = set(self.design.spec.exposures) | set(self.design.spec.declared)
        names = self.design.spec.covariates
        size_u = np.array([1.0 if not first or name in first else _BESIDE for name in names])
        size_v = self.outcome.weights / 2
        constant = math.sqrt(0.55 * max(self.outcome.imbalance, 0.05))
        level = constant * math.hypot(*size_u) / math.hypot(*size_v)
        v, u = np.append(size_v, constant), np.append(level, size_u)
        factor = math.sqrt(STEPS / _diameter(v, u))
        spec, binary = self.design.spec, np.array([column.kind == "binary" for column in self.design.covariates])
        if spec.sensitivity == "joint":
            factor *= max(room(spec, binary, factor * v, factor * u), 1.0) ** 0.25
        while True:
            whole_v, whole_u = (np.maximum(np.rint(factor * size), 1).astype(np.int64) for size in (v, u))
            alone = squared_diameter(whole_v, whole_u) <= STEPS**2
            if alone or (spec.sensitivity == "joint" and room(spec, binary, whole_v, whole_u) >= 1):
                return whole_v, whole_u
            factor *= 1 - 2.0**-14

    @cached_property
    def gains(self) -> Array:
        """(1 + p,) G and B: how much the constant and each covariate are stressed."""
        return self._whole[1].astype(float)

    @cached_property
    def weights(self) -> Array:
        """(a + 1,) 2A, W: how much each feature of the outcome, and the constant."""
        return np.append(2.0 * self._whole[0][:-1], self._whole[0][-1])

    def standard(self, x: Array) -> Array:
        """(n, p) in centres and scales."""
        return (x - self.centre) / self.scale

    def u(self, x: Array) -> Array:
        """(n, 1 + p): the constant and the clipped covariates, with their gains."""
        return np.column_stack([np.ones(len(x)), np.clip(self.standard(x), -1, 1)]) * self.gains

    def v(self, features: Array) -> Array:
        """(n, a) features -> (n, a + 1): weighted, with w₀."""
        return np.column_stack([features, np.ones(len(features))]) * self.weights

    def moment_steps(self, x: Array, y: Array) -> Integers:
        """(n, a + 1, 1 + p) each record's part of block 2, in whole steps."""
        most_v = self._whole[0]
        v = np.clip(np.rint(self.v(self.outcome.features(y))).astype(np.int64), -most_v, most_v)
        return v[:, :, None] * self._u_steps(x)[:, None, :]

    def _u_steps(self, x: Array) -> Integers:
        most = self._whole[1]
        return np.clip(np.rint(self.u(x)).astype(np.int64), -most, most)

    def wide_steps(self, x: Array) -> Array:
        """(n, p) U of block 3: whole numbers of at most 1024 in size, as floats."""
        wide = np.rint(self.wide(x) * LATTICE)
        if self.design.spec.sensitivity == "blocks":
            return wide
        # The parallelogram of the module's text, in whole numbers: 1024 κ = 808, 1024 (1 − κ) = 216.
        along = 808 * self._u_steps(x)[:, 1:]
        most = self._whole[1][1:]
        return np.clip(wide, -(-along // most) - 216, along // most + 216)

    @cached_property
    def cut(self) -> Array:
        """(p,) where block 3 cuts a covariate, in scales: 1.72 (7/4), or as far as its bounds allow."""
        reach = []
        for k, column in enumerate(self.design.covariates):
            low, high = column.span if column.kind in NUMERIC else (0.0, len(column.levels) - 1.0)
            reach.append(max(high - self.centre[k], self.centre[k] - low) / self.scale[k])
        return np.minimum(_WIDE[self.design.spec.sensitivity], np.array(reach))

    def wide(self, x: Array) -> Array:
        """(n, p) covariates cut for block 3, in [-1, 1]."""
        return np.clip(self.standard(x) / self.cut, -1, 1)


def squared_diameter(v: Integers, u: Integers) -> int:
    """Δ² of block 2 for ends (A, W) and (G, B), exactly: the formula of the module's text.

    >>> squared_diameter(np.array([1, 0]), np.array([0, 1])), squared_diameter(np.array([1, 1]), np.array([1, 1]))
    (4, 8)
    """
    f, h = sum(int(k) ** 2 for k in v[:-1]), sum(int(k) ** 2 for k in u[1:])
    w2, g2 = int(v[-1]) ** 2, int(u[0]) ** 2
    return 4 * max(f * (g2 + h), h * (w2 + f), f * g2 + h * w2)


def _diameter(v: Array, u: Array) -> float:
    f, h, w2, g2 = float(v[:-1] @ v[:-1]), float(u[1:] @ u[1:]), float(v[-1] ** 2), float(u[0] ** 2)
    return 2 * math.sqrt(max(f * (g2 + h), h * (w2 + f), f * g2 + h * w2))


def room(spec: MomentsSpec, binary: NDArray[np.bool_], v: Array | Integers, u: Array | Integers) -> float:
    """Factor by which the squared weights of block 2 can grow before the joint sensitivity reaches μ.

    At least 1 says that they are not; 0, that the proof of the module's text does not hold for these weights, and each
    block must be held by itself.

    Args:
        binary: (p,) whether a covariate is of kind binary.
        v, u: ends (A, W) and (G, B), in steps.
    """
    p = len(spec.covariates)
    f_all, w2 = float((v[:-1].astype(float) ** 2).sum()), float(v[-1]) ** 2
    sizes, g2 = u[1:].astype(float) ** 2, float(u[0]) ** 2
    first, second, third, fourth = (share / sum(spec.split.parts) for share in spec.split.parts)
    products = third / block_lengths(spec)[2] ** 2
    unit = second / float(STEPS) ** 2
    downwards = 4 * SQUARE**2 * ((1 + _CORNER) / 2) ** 2 * products
    if (2 * unit * sizes[~binary] * (f_all + w2) < downwards).any():
        return 0.0
    h = float(sizes.sum())
    kinds = Counter(zip(sizes.tolist(), binary.tolist(), strict=True))
    found = math.inf
    for counts in itertools.product(*(range(count + 1) for count in kinds.values())):
        g = sum(count * size for count, (size, _) in zip(counts, kinds, strict=True))
        turned = sum(count for count, (_, two) in zip(counts, kinds, strict=True) if two)
        still = int(binary.sum()) - turned
        product = _product_corners(p - int(binary.sum()), int(binary.sum()))[sum(counts) - turned][turned]
        left = 1 - fourth - first * (1 - still / (p + 1)) - products * (product + p * 2.0**-19)
        moved = 4 * unit * max(g * (w2 + f_all), f_all * (g2 + h - g) + w2 * g)
        if moved > 0:
            found = min(found, left / moved)
    return found * (1 - 1e-12)  # what floating-point arithmetic rounds


@lru_cache(maxsize=64)
def _product_corners(p: int, binary: int) -> tuple[tuple[float, ...], ...]:
    """The largest T of block 3 at corners, by how many of p columns and of the binary ones differ in sign.

    Those have corners ±1 and ±c, a binary column ±1 alone.
    """
    sizes = np.array([(1.0, 1.0), (1.0, _CORNER), (_CORNER, 1.0), (_CORNER, _CORNER)])
    square, other = sizes[:, 0] ** 2, sizes[:, 1] ** 2
    out = []
    for k in range(p + 1):
        parts = []
        for count, sign in ((p - k, 1.0), (k, -1.0)):
            ways = np.array([n for n in itertools.product(range(count + 1), repeat=3) if sum(n) <= count])
            ways = np.column_stack([count - ways.sum(axis=1), ways])
            parts.append(ways @ np.column_stack([square, other, sign * sizes.prod(axis=1), (square - other) ** 2]))
        a, b, r, apart = (np.add.outer(one, two) for one, two in zip(parts[0].T, parts[1].T, strict=True))
        found = [
            ((a + binary) ** 2 + (b + binary) ** 2) / 2 - (r + binary - 2 * turned) ** 2 - (0.5 - SQUARE**2) * apart
            for turned in range(binary + 1)
        ]
        out.append(tuple(float(one.max()) for one in found))
    return tuple(out)


def score_steps(rows: Array, kind: ScoreKind) -> Integers:
    """(n, L) a record's part of block 4 in whole steps: from vectors of length 1 at most, or from values in [-1, 1]."""
    most = score_reach(rows.shape[1], kind)
    if kind == "influence":
        steps = np.trunc(np.clip(np.nan_to_num(rows), -1, 1) * most).astype(np.int64)
        return steps * (np.square(steps).sum(axis=1) <= most**2)[:, None]
    return np.clip(np.rint(rows * most).astype(np.int64), -most, most)


def score_reach(declared: int, kind: ScoreKind) -> int:
    """Steps of the longest vector; of ``residual``, the largest b with L (2b)² ≤ 2⁴⁴."""
    return STEPS // 2 if kind == "influence" else math.isqrt(STEPS**2 // (4 * declared))


def product_steps(wide: Array) -> Integers:
    """(n, p) U -> (p + pairs,) sums of ⌊5U²/8⌋ and of U_i U_j: exact, being sums of whole numbers below 2⁵³."""
    squares = (5 * np.square(wide.astype(np.int64))) >> 3
    i, j = np.triu_indices(wide.shape[1], 1)
    return np.concatenate([squares.sum(axis=0), (wide.T @ wide)[i, j].astype(np.int64)])


# -- the release -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class MomentsRelease:
    """The noisy sums, in whole steps of each block's grid; everything the coordinator sees.

    Args:
        n: public number of records.
        histograms: one array of int64 per covariate, then the outcome's.
        moments: (a + 1, 1 + p) block 2. products: (p + pairs,) block 3. score: (declared,) block 4.
    """

    n: int
    histograms: tuple[Integers, ...]
    moments: Integers
    products: Integers
    score: Integers

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(
            {
                "mechanism": "moments",
                "version": VERSION,
                "n": self.n,
                "histograms": [table.tolist() for table in self.histograms],
                "moments": self.moments.tolist(),
                "products": self.products.tolist(),
                "score": self.score.tolist(),
            }
        )


def read(data: bytes, design: Design) -> MomentsRelease:
    """The release a site sent, held against the plan: shapes, whole numbers, and sizes that n records can have.

    A sum may pass what n records can make by twelve standard deviations of its noise, which an honest site exceeds
    less often than once in 10³⁰ releases.

    Raises: SchemaRefusal.
    """

    def must(holds: bool, rule: str, given: str = "") -> None:
        if not holds:
            raise SchemaRefusal(f"a moments release must {rule}", given=given)

    given = parse_json(data, cap=1 << 20)
    must(isinstance(given, dict), "be a JSON object")
    keys = {"mechanism", "version", "n", "histograms", "moments", "products", "score"}
    must(set(given) == keys, "have exactly its fields", f"{sorted(map(str, given))}"[:60])
    must(given["mechanism"] == "moments" and given["version"] == VERSION, f"be of version {VERSION}")
    n = given["n"]
    must(type(n) is int and 1 <= n <= 10**9, "have a whole number of records from 1 to a thousand million")
    p, spec = design.p, design.spec
    shapes: list[tuple[int, ...]] = [(len(edges) - 1,) for edges in design.edges]
    tables = given["histograms"]
    must(isinstance(tables, list) and len(tables) == p + 1, f"have {p + 1} histograms")
    grids = grids_of(spec)
    sigmas = [sigma_of(spec, k) for k in range(len(grids))]
    parts: list[Integers] = []
    for item, shape, block, reach in (
        *((table, shape, 0, 1.0) for table, shape in zip(tables, [*shapes, design.outcome_shape], strict=True)),
        (given["moments"], (design.features, 1 + p), 1, 0.5 / math.sqrt(spec.split.moments)),
        (given["products"], (p + p * (p - 1) // 2,), 2, 1.0),
        (given["score"], (len(spec.declared),), 3, 0.5),
    ):
        must(_is_whole(item, shape), f"have whole numbers in the shape {shape}")
        array = np.array(item, dtype=np.int64).reshape(shape)
        if array.size:
            most = (n * reach + 12 * sigmas[block]) / grids[block] + 1
            must(float(np.abs(array.astype(float)).max()) <= most, "have sums that its records can make")
        array.setflags(write=False)
        parts.append(array)
    return MomentsRelease(
        n=n, histograms=tuple(parts[: p + 1]), moments=parts[p + 1], products=parts[p + 2], score=parts[p + 3]
    )


def _is_whole(item: Any, shape: tuple[int, ...]) -> bool:
    if not shape:
        return type(item) is int and abs(item) < 2**62
    return isinstance(item, list) and len(item) == shape[0] and all(_is_whole(part, shape[1:]) for part in item)
