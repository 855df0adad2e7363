r"""Cox regression: the partial likelihood, its maximum, and what each row moves that by.

With θ_i = w_i exp(x_i'β) the partial likelihood needs, at each event time, the sum of θ over those still at risk.
Sorted by falling time within a stratum these sums are cumulative sums, so one Newton step costs O(n p²) without a
loop over event times. Breslow's likelihood uses the same risk set for each of d tied deaths; Efron's takes away
l/d of the tied deaths themselves from the l-th (l = 0 … d−1), so both are one formula with the shares l/d set to 0
or not (Therneau and Grambsch 2000, chapter 3). With weights, each tied death counts with their mean weight, as in R.

A model of a thousand rows is some two hundred calls of numpy, which take longer than what they compute. Small tables
are fitted side by side (`cox_of_each`): one below the other, each filled up to the size of the largest with rows that
are in no risk set, and each Newton step is one for all. What is summed is summed table by table, so a table's fit is
the same to the last bit whichever others it is beside, and alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import Refusal
from shared.estimands.fits.blocks import gram, scaled_product
from shared.estimands.fits.regression import RegressionFit, newton, newton_of_each

__all__ = ["CoxRows", "Fitting", "SurvivalOutcome", "Ties", "alone", "cox", "cox_of_each", "ended", "side_by_side"]

Array = NDArray[np.float64]
Ties = Literal["efron", "breslow"]
T = TypeVar("T")
_SOME = 1 << 16
"""Numbers that are summed over risk sets at once, of several columns: half a megabyte."""
_BESIDE = 1 << 14
"""Rows that are fitted side by side: what a step makes of them stays in a core's cache."""
_FILLED = 1.5
"""Rows of a stack, those that fill tables up among them, over the tables' own: at most."""
_FEW_ROWS, _FEW_COLUMNS = 4096, 8
"""Of a table that is small: with more, the calls of numpy are no large part of the time, and BLAS is faster."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SurvivalOutcome:
    """Follow-up time and event indicator of each row: R's `Surv(time, event)`, or `Surv(entry, time, event)`.

    Args:
        time: (n,), end of follow-up.
        event: (n,), 1 where follow-up ends with the event, 0 where it is censored.
        entry: (n,) times after which each row is at risk (left truncation), before its time; None for the beginning.
    """

    time: Array
    event: Array
    entry: Array | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CoxRows:
    """What a Cox regression is fitted to.

    Args:
        x: (n, p) of full rank, columns centred and scaled.
        outcome: of each row.
        ties: whose partial likelihood, where several events are at one time.
        strata: (n,) integers; baseline hazards are apart, coefficients are shared.
        weights, offset: (n,); 1 and 0 if left out.
        falling: (n,) the rows by falling time, those of one time as they stand, where that is known.
    """

    x: Array
    outcome: SurvivalOutcome
    ties: Ties = "efron"
    strata: NDArray[np.int64] | None = None
    weights: Array | None = None
    offset: Array | None = None
    falling: NDArray[np.int64] | None = None

    @property
    def order(self) -> NDArray[np.int64]:
        """(n,) the rows by falling time."""
        return np.argsort(-self.outcome.time, kind="stable") if self.falling is None else self.falling

    @property
    def small(self) -> bool:
        """Whether it is fitted beside others, where there are any."""
        (n, p), plain = self.x.shape, self.outcome.entry is None and (self.strata is None or not self.strata.any())
        return plain and n <= _FEW_ROWS and 1 <= p <= _FEW_COLUMNS and bool(self.outcome.event.any())


Fitting = Generator[CoxRows, RegressionFit, T]
"""Work that waits for fits of Cox models, so that those of many works are made side by side."""


def cox(
    x: Array,
    outcome: SurvivalOutcome,
    *,
    ties: Ties = "efron",
    strata: NDArray[np.int64] | None = None,
    weights: Array | None = None,
    offset: Array | None = None,
    trend: Callable[[Array], Array] | None = None,
) -> RegressionFit:
    """Cox regression, R's `coxph(Surv(time, event) ~ x + strata(s) + offset(o), weights, ties)`.

    Args:
        x, outcome, ties, strata, weights, offset: as of `CoxRows`.
        trend: of times what each coefficient is asked to change by (`_drift`), instead of the coefficients.
    Returns: `converged` is False when the partial likelihood has no maximum.
    """
    rows = CoxRows(x=x, outcome=outcome, ties=ties, strata=strata, weights=weights, offset=offset)
    return cox_of_each([rows])[0] if trend is None else _alone(rows, trend)


def cox_of_each(tables: Sequence[CoxRows]) -> list[RegressionFit]:
    """`cox` of several tables: small ones side by side."""
    fits: dict[int, RegressionFit] = {}
    alike: dict[tuple[int, Ties], list[int]] = {}
    for k, table in enumerate(tables):
        if table.small:
            alike.setdefault((table.x.shape[1], table.ties), []).append(k)
        else:
            fits[k] = _alone(table)
    for places in alike.values():
        for some in _stacks([(len(tables[k].x), k) for k in places]):
            fits |= zip(some, _stacked([tables[k] for k in some]), strict=True)
    return [fits[k] for k in range(len(tables))]


def ended(work: Generator[Any, RegressionFit, T], fit: RegressionFit) -> T:
    """What work comes to that waits for this fit, and for no other."""
    try:
        work.send(fit)
    except StopIteration as end:
        found: T = end.value
        return found
    raise RuntimeError("the work waits for another fit")


def alone(work: Fitting[T]) -> T:
    """What work comes to whose fits are made one by one."""
    try:
        rows = next(work)
        while True:
            rows = work.send(cox_of_each([rows])[0])
    except StopIteration as end:
        found: T = end.value
        return found


def side_by_side(works: Iterable[Fitting[T]]) -> list[T | Refusal]:
    """What each work comes to, or its refusal; works are begun until enough rows wait for their fits."""
    ends: dict[int, T | Refusal] = {}
    waiting: list[tuple[int, Fitting[T], CoxRows]] = []

    def go_on(place: int, work: Fitting[T], fit: RegressionFit | None) -> None:
        try:
            waiting.append((place, work, next(work) if fit is None else work.send(fit)))
        except StopIteration as end:
            ends[place] = end.value
        except Refusal as refusal:
            ends[place] = refusal

    def fit_all() -> None:
        now = list(waiting)
        waiting.clear()
        for (place, work, _), fit in zip(now, cox_of_each([rows for *_, rows in now]), strict=True):
            go_on(place, work, fit)

    for place, work in enumerate(works):
        go_on(place, work, None)
        if sum(len(rows.x) for *_, rows in waiting) >= _BESIDE:
            fit_all()
    while waiting:
        fit_all()
    return [ends[place] for place in range(len(ends))]


def _stacks(sized: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Places of tables that are fitted side by side, of (rows, place) each: of about one size, and not too many.

    >>> _stacks([(1000, 0), (40, 1), (990, 2), (41, 3)])
    [[1, 3], [2, 0]]
    """
    stacks: list[list[int]] = []
    own = 0
    for rows, place in sorted(sized):
        filled = rows * (len(stacks[-1]) + 1 if stacks else 1)
        if not stacks or filled > _BESIDE or filled > _FILLED * (own + rows):
            stacks.append([])
            own = 0
        stacks[-1].append(place)
        own += rows
    return stacks


def _stacked(tables: Sequence[CoxRows]) -> list[RegressionFit]:
    sizes, p = np.array([len(table.x) for table in tables]), tables[0].x.shape[1]
    shape, orders = (len(tables), int(sizes.max())), [table.order for table in tables]
    # A row that fills up has left before all others, without an event.
    x, time, shift = np.zeros((p, *shape)), np.full(shape, -np.inf), np.full(shape, -np.inf)
    event, w = np.zeros(shape), None if all(table.weights is None for table in tables) else np.ones(shape)
    for i, (table, order) in enumerate(zip(tables, orders, strict=True)):
        n = len(order)
        x[:, i, :n] = table.x.T.take(order, axis=1)
        time[i, :n], event[i, :n] = table.outcome.time.take(order), table.outcome.event.take(order)
        shift[i, :n] = 0.0 if table.offset is None else table.offset.take(order)
        if w is not None and table.weights is not None:
            w[i, :n] = table.weights.take(order)
    group, flat = np.arange(shape[0]).repeat(shape[1]), (np.ones(shape) if w is None else w).ravel()
    sets = _RiskSets(time.ravel(), event.ravel(), group, flat, tables[0].ties)
    likelihood = _LikelihoodOfEach(x.reshape(p, -1), None if w is None else flat, shift.ravel(), sets, sizes)
    fits = []
    with np.errstate(all="ignore"):
        start = np.zeros((shape[0], p))
        found = newton_of_each(likelihood.values, likelihood.derivatives_of_each, start, iterations=40)
        scores = likelihood.scores(found[0]).T.reshape(p, *shape)
        for i, (beta, cov, reached, converged) in enumerate(zip(*found, strict=True)):
            residual = np.empty(tables[i].x.shape, order="F")
            residual.T[:, orders[i]] = scores[:, i, : len(orders[i])]
            influence = scaled_product(residual, None, cov, out=residual)
            fits.append(
                RegressionFit(
                    beta=beta,
                    cov=cov,
                    converged=bool(converged),
                    fitted=tables[i].x @ beta,
                    loglik=float(reached),
                    influence=influence,
                )
            )
    return fits


def _alone(table: CoxRows, trend: Callable[[Array], Array] | None = None) -> RegressionFit:
    x, ties, strata, weights, offset = table.x, table.ties, table.strata, table.weights, table.offset
    (n, p), time, event, entry = x.shape, table.outcome.time, table.outcome.event, table.outcome.entry
    if not (event > 0).any():
        none, nowhere = np.full((p, p), np.nan), np.zeros((n, p))
        return RegressionFit(
            beta=np.zeros(p), cov=none, converged=False, fitted=np.zeros(n), loglik=0.0, influence=nowhere
        )
    w, whose = np.ones(n) if weights is None else weights, np.arange(n)
    alike = weights is None and entry is None
    if entry is not None:
        # A row that has not entered is taken out of each risk set by a shadow of itself that leaves at its entry,
        # without an event and with the negative weight: sums over risk sets stay running sums.
        late = np.flatnonzero(np.isfinite(entry))
        whose, w = np.concatenate([whose, late]), np.concatenate([w, -w[late]])
        time, event = np.concatenate([time, entry[late]]), np.concatenate([event, np.zeros(len(late))])
    if strata is None or not strata.any():
        order, group = table.order if entry is None else np.argsort(-time, kind="stable"), None
    else:  # strata of one size lie together: their sums are of one array
        _, group, size = np.unique(strata[whose], return_inverse=True, return_counts=True)
        order = np.lexsort((-time, group, size[group]))
        group = group[order]
    whose, time = whose.take(order), time.take(order)
    w = w if alike else w.take(order)
    sets = _RiskSets(time, event.take(order), group, w, ties)
    shift = None if offset is None else offset.take(whose)
    likelihood = _PartialLikelihood(x.T.take(whose, axis=1), None if alike else w, shift, sets)
    with np.errstate(all="ignore"):
        beta, cov, reached, converged = newton(likelihood.value, likelihood.derivatives, np.zeros(p), iterations=40)
        residual = likelihood.scores(beta)
        fitted = x @ beta
        if trend is not None:
            beta, cov, pushes = _drift(likelihood, beta, cov, residual, trend(time))
        else:
            pushes = scaled_product(residual, None, cov, out=residual)
    for j in range(p):
        pushes[:n, j] = np.bincount(whose, pushes[:, j], minlength=n)
    return RegressionFit(beta=beta, cov=cov, converged=converged, fitted=fitted, loglik=reached, influence=pushes[:n])


def _drift(
    likelihood: _PartialLikelihood, beta: Array, inverse: Array, residual: Array, g: Array
) -> tuple[Array, Array, Array]:
    r"""One step from β(t) = β to β_j(t) = β_j + θ_j g(t): θ, its covariance, and the influences of sorted rows.

    For each coefficient by itself, the others constant: the efficient score U_j over its information V_jj, where

    .. math:: U = \sum_i g_i (x_i - \bar x_i), \quad V = I_{gg} - I_{g1} I_{11}^{-1} I_{1g}

    so that θ_j² V_jj is the score test of Grambsch and Therneau (1994) as R's `cox.zph` has it since version 3; of the
    covariance V_jl / (V_jj V_ll) all together have its global test.

    Args:
        g: (n,), of sorted rows; that of events counts.
    """
    g = g[likelihood.deaths]
    g = g - g.mean()
    cross, own = likelihood.information(beta, g), likelihood.information(beta, g * g)
    spread = own - cross @ inverse @ cross
    scores = likelihood.scores(beta, g) - residual @ inverse @ cross
    size = np.diag(spread)
    theta = scores.sum(axis=0) / size
    influence = scores / size
    influence[likelihood.deaths] -= np.outer(g * g / float(g @ g), theta)  # what a death adds to V, about
    return theta, spread / np.outer(size, size), influence


class _RiskSets:
    """Sums over who is still at risk, of rows sorted by falling time within their stratum: running sums of its rows.

    Args:
        time, event, group: (n,), sorted; event 0 or 1, and one at least; group the stratum, None for a single one.
        weights: (n,).
        ties: whether tied deaths leave their risk set one by one (Efron) or together (Breslow).
    """

    def __init__(self, time: Array, event: Array, group: NDArray[np.int64] | None, weights: Array, ties: Ties) -> None:
        n, new_time = len(time), _begins(time)
        self._starts = starts = np.zeros(1, dtype=np.int64) if group is None else _begins(group).nonzero()[0]
        new_time[starts] = True
        self.deaths = (event > 0).nonzero()[0]
        at = new_time.cumsum().take(self.deaths) - 1
        new_times = new_time.nonzero()[0]
        self._last = (new_times + _lengths(new_times, n)).take(at) - 1  # of those at risk at each death
        self._after = n - 1 - self._last  # rows behind it
        heads = _begins(at).nonzero()[0]  # where the deaths at one time begin
        count = _lengths(heads, len(at))
        self.weights = weights.take(self.deaths)
        self.mass = (np.add.reduceat(self.weights, heads) / count).repeat(count)
        count, first = count.repeat(count), heads.repeat(count)
        tied = (count > 1).nonzero()[0]  # deaths that share their time
        self.ties = ties == "efron" and len(tied) > 0
        # To pick out what is a good part of all takes longer than to count single deaths as tied with themselves.
        self.tied = slice(None) if 4 * len(tied) > len(count) else tied
        self.tied_count, first = count[self.tied], first[self.tied]
        self._share = (np.arange(len(count))[self.tied] - first) / self.tied_count
        apart = _begins(first)
        self._knots, self._knot = apart.nonzero()[0], apart.cumsum() - 1  # where those of one time begin
        self._of_tied = self.deaths[self.tied]
        # Summed stratum by stratum: one total over all would lose a small stratum's digits behind a large one's.
        self._size = size = _lengths(starts, n)
        alike = _begins(size)
        ends = pairwise([*starts[alike].tolist(), n])
        self._runs = [(a, b, of) for (a, b), of in zip(ends, size[alike].tolist(), strict=True)]
        self._behind = [(n - b, n - a, of) for a, b, of in reversed(self._runs)]

    @staticmethod
    def _running(values: Array, out: Array, runs: Sequence[tuple[int, int, int]]) -> Array:
        """(…, n) sums within each stratum from its first row on, into `out`."""
        for a, b, size in runs:
            part, sums = values[..., a:b], out[..., a:b]
            if size < b - a:
                part, sums = (one.reshape(*one.shape[:-1], -1, size) for one in (part, sums))
            np.add.accumulate(part, axis=-1, out=sums)
        return out

    def less_largest(self, values: Array) -> None:
        """Take from (n,) values the largest of their stratum."""
        largest = np.maximum.reduceat(values, self._starts)
        values -= largest if len(largest) == 1 else largest.repeat(self._size)

    def at_deaths(self, values: Array, room: Array, out: Array) -> None:
        """(…, deaths): sums over the risk set at each death of (…, n) values; of tied ones, what is left of it.

        Args:
            room: (…, n) that is written over, as in `onwards`.
        """
        self._running(values, room, self._runs).take(self._last, axis=-1, out=out, mode="clip")
        if self.ties:
            out[..., self.tied] -= self._share * self.by_knot(values.take(self._of_tied, axis=-1))

    def onwards(self, values: Array, room: Array) -> Array:
        """(n,): of each row the sum over deaths whose risk set it is in, or is left in, of (deaths,) values; in `room`.

        Summed from the last row on, by the same steps from the first on of rows turned round, which take half as long.
        """
        at = np.asarray(np.bincount(self._after, values, minlength=len(room)), dtype=float)
        sums = self._running(at, room, self._behind)[::-1]
        if self.ties:
            sums[self._of_tied] -= self.by_knot(self._share * values[self.tied])
        return sums

    def by_knot(self, values: Array) -> Array:
        """For each tied death the sum over those it is tied with, of (…, tied) values."""
        return np.add.reduceat(values, self._knots, axis=-1).take(self._knot, axis=-1)


def _begins(values: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) whether a value is another one than that before it; the first is."""
    out = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def _lengths(starts: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """(k,) from each start to the next, or to the end."""
    out = end - starts
    out[:-1] -= out[1:]
    return out


class _PartialLikelihood:
    """The partial likelihood of sorted rows, its derivatives and its score residuals.

    Coefficients must not be written to afterwards: that they are the same array says that they are the same.

    Args:
        x: (p, n), column after column in memory: sums over risk sets are of one column at a time, or of some.
        w, shift: (n,) weights and offsets; None for 1 and 0.
        sets: who is at risk when.
    """

    def __init__(self, x: Array, w: Array | None, shift: Array | None, sets: _RiskSets) -> None:
        self._x, self._w, self._shift, self._sets = x, w, shift, sets
        self._target = sets.weights @ x.T[sets.deaths]
        # Memory that is used again: to be given a million numbers' room takes longer than to add them up.
        (p, n), deaths = x.shape, len(sets.deaths)
        some = max(min(_SOME // n, p), 1)
        self._means, self._product, self._room = np.empty((p, deaths)), np.empty((some, n)), np.empty((some, n))
        self._known: tuple[Array, tuple[Array, Array, Array]] | None = None

    def _at_risk(self, beta: Array) -> tuple[Array, Array, Array]:
        """θ, the logarithm it was divided by, and at each death its risk set's sum of θ."""
        if self._known is None or self._known[0] is not beta:
            # A step's value and its derivatives are one sum.
            eta = self._predicted(beta)
            if self._shift is not None:
                eta += self._shift
            self._sets.less_largest(eta)
            of_deaths, inside = eta.take(self._sets.deaths), np.empty(len(self._sets.deaths))
            theta = np.exp(eta, out=eta)
            if self._w is not None:
                theta *= self._w
            self._sets.at_deaths(theta, self._room[0], inside)
            self._known = beta, (theta, of_deaths, inside)
        return self._known[1]

    def _predicted(self, beta: Array) -> Array:
        """(n,) linear predictors, without the offset."""
        return np.asarray(self._x.T @ beta)

    def _mean(self, beta: Array) -> Array:
        """(p, deaths): means of the columns of x over risk sets; until they are asked for again."""
        theta, _, inside = self._at_risk(beta)
        for j in range(0, len(self._x), len(self._room)):
            x, out = (one[j : j + len(self._room)] for one in (self._x, self._means))
            product = np.multiply(theta, x, out=self._product[: len(x)])
            self._sets.at_deaths(product, self._room[: len(x)], out)
        self._means /= inside
        return self._means

    def _information(self, beta: Array, exposure: Array, mass: Array) -> Array:
        return gram(self._x.T, exposure) - gram(self._mean(beta).T, mass)

    @property
    def deaths(self) -> NDArray[np.int64]:
        """Indices of the sorted rows that have an event."""
        return self._sets.deaths

    def value(self, beta: Array) -> float:
        """Its logarithm."""
        _, eta, inside = self._at_risk(beta)
        return float(self._sets.weights @ eta - self._sets.mass @ np.log(inside))

    def _exposed(self, beta: Array, g: Array | float = 1.0) -> Array:
        """(n,): what each row was exposed to, of the hazard at each death times its g (deaths,)."""
        theta, _, inside = self._at_risk(beta)
        return theta * self._sets.onwards(self._sets.mass / inside * g, self._room[0])

    def derivatives(self, beta: Array) -> tuple[Array, Array]:
        """(p,) and (p, p): its slope, and the information."""
        exposure = self._exposed(beta)
        return self._target - exposure @ self._x.T, self._information(beta, exposure, self._sets.mass)

    def information(self, beta: Array, g: Array) -> Array:
        """(p, p): the information of the deaths, each times its g (deaths,)."""
        return self._information(beta, self._exposed(beta, g), self._sets.mass * g)

    def scores(self, beta: Array, g: Array | float = 1.0) -> Array:
        """(n, p) score residuals: w_i (x_i - mean at its event) less what it was exposed to, (x_i - mean) dH summed.

        Args:
            g: (deaths,) by which each death counts.
        """
        sets, own = self._sets, self._sets.weights * g
        rest = -self._exposed(beta, g)
        rest[sets.deaths] += own
        theta, _, inside = self._at_risk(beta)
        means, hazard, out = self._mean(beta), sets.mass / inside * g, np.empty_like(self._x)
        for mean, x, part in zip(means, self._x, out, strict=True):
            np.multiply(theta, sets.onwards(hazard * mean, self._room[0]), out=part)
            if sets.ties:  # tied deaths share the means of their time: each takes the mean of them
                mean[sets.tied] = sets.by_knot(mean[sets.tied]) / sets.tied_count
            part[sets.deaths] -= own * mean
            part += np.multiply(rest, x, out=self._product[0])
        return out.T


class _LikelihoodOfEach(_PartialLikelihood):
    """The partial likelihoods of tables that lie one below the other, each a stratum: (tables, p) coefficients.

    Args:
        x, w, shift, sets: as of `_PartialLikelihood`; of each table as many rows as of the largest.
        sizes: (tables,) how many of them are its own.
    """

    def __init__(self, x: Array, w: Array | None, shift: Array, sets: _RiskSets, sizes: NDArray[np.int64]) -> None:
        super().__init__(x, w, shift, sets)
        count = len(sizes)
        starts = np.arange(count) * (x.shape[1] // count)
        self._tables = x.reshape(len(x), count, -1)
        # From each table's first row to its last, and from there to the next table's first.
        ends = np.column_stack([starts, starts + sizes]).ravel()
        self._ends, self._first = ends[: np.searchsorted(ends, x.shape[1])], np.searchsorted(sets.deaths, starts)
        self._targets = self._of_deaths(sets.weights * x.take(sets.deaths, axis=1))

    def _of_rows(self, values: Array) -> Array:
        """(tables,) the sums of (n,) values."""
        return np.asarray(np.add.reduceat(values, self._ends)[::2])

    def _of_deaths(self, values: Array) -> Array:
        """(…, tables) the sums of (…, deaths) values."""
        return np.asarray(np.add.reduceat(values, self._first, axis=-1))

    def _predicted(self, beta: Array) -> Array:
        return sum(x * of[:, None] for x, of in zip(self._tables, beta.T, strict=True)).ravel()

    def values(self, beta: Array) -> Array:
        """(tables,): their logarithms."""
        _, eta, inside = self._at_risk(beta)
        return self._of_deaths(self._sets.weights * eta - self._sets.mass * np.log(inside))

    def derivatives_of_each(self, beta: Array) -> tuple[Array, Array]:
        """(tables, p) and (tables, p, p): their slopes, and the information."""
        exposure, means, p = self._exposed(beta), self._mean(beta), len(self._x)
        slope, information = np.empty((p, len(beta))), np.empty((p, p, len(beta)))
        for j in range(p):
            exposed, massive = exposure * self._x[j], self._sets.mass * means[j]
            slope[j] = self._targets[j] - self._of_rows(exposed)
            for k in range(j, p):
                between = self._of_rows(exposed * self._x[k]) - self._of_deaths(massive * means[k])
                information[j, k] = information[k, j] = between
        return slope.T, information.T
