r"""Curves as columns, with their knots, as in R: natural cubic splines, B-splines, powers; and edges of bins.

    ns(age, df = 3)     bs(age, knots = c(50, 65), Boundary.knots = c(18, 90))     poly(age, 2, raw = TRUE)

Knots must be the same at every site, or coefficients of one name are of different columns. A term with ``df`` names no
knots: on one table they are that table's quantiles, as in R; whoever asks several puts them in first (`settled`).
So are the edges of a histogram's bins, which follow from a column's public bounds (`edges_of`).
R's default `poly` is refused for the same reason: its columns are made orthogonal on each table by itself.

Source: the columns are those of R's splines package (W. Venables, D. Bates), after C. de Boor (1978), A Practical
Guide to Splines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError
from shared.estimands.formulas import CATEGORY, Node, check_arithmetic, names, parse, right_side

__all__ = ["CURVES", "CurveBasis", "TimeSteps", "basis_of", "edges_of", "edges_text", "settled"]
__all__ += ["steps_of", "unsettled"]

Array = NDArray[np.float64]
CURVES = ("ns", "bs", "poly")
MOST_KNOTS = 12
MOST_BINS = 50
TAILS = (0.05, 0.95)
"""Quantiles between which several tables' natural splines bend; beyond they are straight lines (Harrell 2015)."""


@dataclass(frozen=True, kw_only=True)
class CurveBasis:
    """Columns of one curve.

    Attributes:
        kind: ``ns``, ``bs`` or ``poly``.
        of: what it is a curve of.
        df: number of columns.
        knots, ends: inner knots and the two boundary ones; empty where a table's own quantiles are meant.
        degree: of the pieces, or the highest power.
    """

    kind: str
    of: Node
    df: int
    knots: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    degree: int = 3

    @property
    def inner(self) -> int:
        """Number of inner knots."""
        return {"ns": self.df - 1, "bs": self.df - self.degree}.get(self.kind, 0)

    @property
    def settled(self) -> bool:
        """True if its columns do not hang on a table."""
        return self.kind == "poly" or (len(self.ends) == 2 and len(self.knots) == self.inner)

    def quantiled(self, quantile: Callable[[Sequence[float]], Array], *, tails: tuple[float, float]) -> CurveBasis:
        """The same with the knots that it lacks at quantiles: (k,) shares -> (k,) values."""
        if self.settled:
            return self
        shares = np.linspace(0, 1, self.inner + 2)[1:-1].tolist()
        at = quantile([*tails, *shares])
        ends = self.ends or tuple(map(float, at[:2]))
        knots = self.knots or tuple(map(float, at[2:]))
        return replace(self, knots=knots, ends=ends)

    def columns(self, x: Array) -> Array:
        """(n, df) columns of (n,) values; NaN where the value is missing."""
        if self.kind == "poly":
            return np.asarray(x[:, None] ** np.arange(1, self.degree + 1))
        from scipy.interpolate import BSpline
        from scipy.linalg import qr

        low, high = self.ends
        order = self.degree + 1
        knots = np.r_[[low] * order, np.sort(self.knots), [high] * order]
        spline = BSpline(knots, np.eye(len(knots) - order), self.degree)
        out = np.full((len(x), len(knots) - order), np.nan)
        seen = np.isfinite(x)
        if self.kind == "bs":
            out[seen] = spline(x[seen])
            return out[:, 1:]
        inside = np.clip(x[seen], low, high)
        out[seen] = spline(inside) + (x[seen] - inside)[:, None] * spline(inside, 1)
        bends = spline(np.array(self.ends), 2)[:, 1:]  # straight at both ends: no second derivative
        return np.asarray(out[:, 1:] @ qr(bends.T)[0][:, 2:])

    def node(self) -> Node:
        """The term."""
        if self.kind == "poly":
            return Node("call", "poly", (self.of, Node("number", float(self.df)), Node("name", "TRUE")), ("raw",))

        def numbers(values: Sequence[float]) -> Node:
            return Node("call", "c", tuple(_number(value) for value in values))

        parts: list[tuple[str, Node]] = []
        if not self.settled or not self.knots:
            parts.append(("df", Node("number", float(self.df))))
        if self.knots:
            parts.append(("knots", numbers(self.knots)))
        if self.ends:
            parts.append(("Boundary.knots", numbers(self.ends)))
        if self.kind == "bs" and self.degree != 3:
            parts.append(("degree", Node("number", float(self.degree))))
        return Node("call", self.kind, (self.of, *(part for _, part in parts)), tuple(key for key, _ in parts))


def _number(value: float) -> Node:
    return Node("unary", "-", (Node("number", -value),)) if value < 0 else Node("number", float(value))


def basis_of(node: Node) -> CurveBasis | None:
    """The curve that a term is; None for another term.

    Raises: ParameterError: arguments that no curve has.
    """
    if node.kind != "call" or node.value not in CURVES:
        return None
    free = len(node.parts) - len(node.keys)
    given = dict(zip(node.keys, node.parts[free:], strict=True))
    kind = str(node.value)
    _must(free >= 1, f"{kind} must be of a column", node)
    check_arithmetic(node.parts[0])
    _must(any(True for _ in names(node.parts[0])), f"{kind} must be of a column", node)
    if kind == "poly":
        raw = node.keys == ("raw",) and str(given["raw"]) in ("TRUE", "T", "1")
        _must(
            raw and free == 2 and _whole(node.parts[1], 1, 5),
            "poly must be raw, of degree 1 to 5",
            node,
            "Write poly(age, 2, raw = TRUE): R's other columns are made orthogonal on each table by itself.",
        )
        degree = int(node.parts[1].value)
        return CurveBasis(kind="poly", of=node.parts[0], df=degree, degree=degree)
    takes = ("df", "knots", "Boundary.knots", *(["degree"] if kind == "bs" else []))
    known = free == 1 and set(given) <= set(takes) and len(given) == len(node.keys)
    _must(known and bool({"df", "knots"} & set(given)), f"{kind} takes a column, df or knots, and Boundary.knots", node)
    degree = 3
    if "degree" in given:
        _must(_whole(given["degree"], 1, 5), "degree must be in 1..5", node)
        degree = int(given["degree"].value)
    knots, ends = (_listed(given[name]) if name in given else () for name in ("knots", "Boundary.knots"))
    own = len(knots) + (1 if kind == "ns" else degree)
    df = own
    if "df" in given:
        least = 1 if kind == "ns" else degree
        _must(_whole(given["df"], least, MOST_KNOTS), f"df of {kind} must be in {least}..{MOST_KNOTS}", node)
        df = int(given["df"].value)
    _must("knots" not in given or df == own, f"{len(knots)} knots give {own} columns: df must be left out", node)
    _must(len(ends) in (0, 2), "Boundary.knots must be two numbers", node)
    inside = not (knots and ends) or (ends[0] < knots[0] and knots[-1] < ends[1])
    _must(inside, "knots must lie between the boundary knots", node)
    return CurveBasis(kind=kind, of=node.parts[0], df=df, knots=knots, ends=ends, degree=degree)


@dataclass(frozen=True, kw_only=True)
class TimeSteps:
    """An effect that is another in each stretch of time: of which column or factor, and where one ends."""

    of: Node
    cuts: tuple[float, ...]

    @property
    def windows(self) -> list[tuple[str, tuple[float, float]]]:
        """Name and ends of each stretch; it holds its own end, as an event there belongs to it."""
        ends = [0.0, *self.cuts, np.inf]
        names_ = [f"{low:g} to {high:g}" for low, high in pairwise(ends[:-1])] + [f"after {self.cuts[-1]:g}"]
        return list(zip(names_, pairwise(ends), strict=True))


def steps_of(node: Node) -> TimeSteps | None:
    """The steps that a term is, ``by_time(arm, c(2, 5))``; None for another term.

    Raises: ParameterError: arguments that no step function has.
    """
    if node.kind != "call" or node.value != "by_time":
        return None
    step = "Write for example: by_time(arm, c(2, 5))."
    _must(len(node.parts) == 2 and not node.keys, "by_time must be of a column and the times of its steps", node, step)
    of, cuts = node.parts[0], _listed(node.parts[1])
    factor = of.kind == "call" and of.value in CATEGORY
    if not factor:
        check_arithmetic(of)
    _must(any(True for _ in names(of)), "by_time must be of a column", node, step)
    _must(cuts[0] > 0, "the times of steps must be above 0", node, step)
    return TimeSteps(of=of, cuts=cuts)


def _must(holds: bool, rule: str, node: Node, step: str = "") -> None:
    if not holds:
        raise ParameterError(rule, given=repr(str(node)[:60]), next_step=step or "Write for example: ns(age, df = 3).")


def _whole(node: Node, least: int, most: int) -> bool:
    return node.kind == "number" and node.value == int(node.value) and least <= node.value <= most


def _listed(node: Node) -> tuple[float, ...]:
    """The numbers of ``c(…)``, or one number."""
    parts = node.parts if node.kind == "call" and node.value == "c" and not node.keys else (node,)
    plain = all(_number_like(part) for part in parts)
    few = 0 < len(parts) <= MOST_KNOTS
    _must(few and plain, f"knots must be c(…) of at most {MOST_KNOTS} numbers", node)
    return tuple(sorted({_value(part) for part in parts}))


def edges_of(breaks: str, bounds: tuple[float, float] | None = None) -> tuple[float, ...]:
    """Edges of a histogram's bins; of a number of bins equally far from each other between bounds, or none without.

    Raises: ParameterError: neither edges nor a number of bins.

    >>> edges_of("c(0, 5, 20)"), edges_of("4", (0, 10)), edges_of("4")
    ((0.0, 5.0, 20.0), (0.0, 2.5, 5.0, 7.5, 10.0), ())
    """
    node, step = parse(breaks), "Write for example: histogram(age, breaks = 10)."
    if node.kind == "number":
        _must(_whole(node, 2, MOST_BINS), f"breaks must be 2 to {MOST_BINS} bins", node, step)
        return () if bounds is None else tuple(map(float, np.linspace(*bounds, int(node.value) + 1)))
    listed = node.kind == "call" and node.value == "c" and not node.keys and all(map(_number_like, node.parts))
    _must(listed and 3 <= len(node.parts) <= MOST_BINS + 1, f"breaks must be c(…) of 2 to {MOST_BINS} bins", node, step)
    edges = tuple(map(_value, node.parts))
    _must(all(low < high for low, high in pairwise(edges)), "breaks must grow", node, step)
    return edges


def edges_text(edges: Sequence[float]) -> str:
    """``c(…)`` of the edges."""
    return str(Node("call", "c", tuple(map(_number, edges))))


def _number_like(node: Node) -> bool:
    return node.kind == "number" or (node.kind == "unary" and node.value == "-" and node.parts[0].kind == "number")


def _value(node: Node) -> float:
    return -float(node.parts[0].value) if node.kind == "unary" else float(node.value)


def unsettled(terms: Sequence[str]) -> bool:
    """True if a curve among the terms hangs on the table that it is asked of."""
    pieces = [factor for term in terms for factor in right_side(parse(term)).terms[0]]
    return any(basis is not None and not basis.settled for basis in map(basis_of, pieces))


def settled(terms: Sequence[str], quantile: Callable[[str, Sequence[float]], Array]) -> tuple[str, ...]:
    """The same terms with the knots that their curves lack.

    Args:
        quantile: of a column at shares: what all tables together have.
    Raises: ParameterError: knots of arithmetic on columns, which have no quantiles of their own.

    >>> settled(("ns(age, df = 3)", "sex"), lambda name, shares: 20 + 60 * np.array(shares))
    ('ns(age, knots = c(40, 60), Boundary.knots = c(23, 77))', 'sex')
    """
    return tuple(
        ":".join(str(_with_knots(factor, quantile)) for factor in right_side(parse(term)).terms[0]) for term in terms
    )


def _with_knots(node: Node, quantile: Callable[[str, Sequence[float]], Array]) -> Node:
    basis = basis_of(node)
    if basis is None or basis.settled:
        return node
    _must(
        basis.of.kind == "name",
        "a curve of arithmetic must name its knots",
        node,
        f"Write {basis.kind}({basis.of}, knots = c(…), Boundary.knots = c(…)).",
    )
    name = str(basis.of.value)

    def rounded(shares: Sequence[float]) -> Array:
        found = [float(f"{value:.4g}") for value in quantile(name, shares)]
        _must(len(set(found)) == len(found), f"{name} has too few values for so many knots", node, "Name the knots.")
        return np.array(found)

    return basis.quantiled(rounded, tails=TAILS if basis.kind == "ns" else (0.0, 1.0)).node()
