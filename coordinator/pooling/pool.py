"""Pool one estimate per site into one answer, and say what that answer is worth.

Two models stand side by side in every result: one common effect (inverse variance, ``FE``), and effects that
vary between sites with variance tau2. The default, REML with the ad hoc Knapp-Hartung interval, is chosen for
federations: few sites, one of them large, where the normal interval covers too little and the plain
Knapp-Hartung interval can collapse.

Names follow metafor: ``beta se zval pval ci_lb ci_ub tau2 I2 H2 QE QEp weights``; I2 and weights are
percentages. Three traps shaped the code. Q is a sum of centred squares, because the textbook difference of
sums cancels when estimates share a large offset. tau2 is truncated at 0 and found by a bracketing root finder,
because iterations with an absolute stopping rule stop at their start on small scales. And a row that cannot be
used leaves with its label and its reason in ``excluded``; a NaN or an interval of width zero never gets through.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coordinator.pooling.cautions import doubts, drawn_in, in_common, lacking, left_out
from coordinator.pooling.heterogeneity import (
    Method,
    Test,
    estimate_tau2,
    fit,
    likelihood_interval,
    q_profile,
    se_tau2,
    tau2_dl,
    typical_v,
)
from coordinator.pooling.rows import (
    UNLIKE,
    Excluded,
    Interval,
    check,
    nothing_left,
    reason_out,
    usable,
)
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.answer import Estimate, Scale

if TYPE_CHECKING:
    from coordinator.pooling.moderators import RegressionResult
    from coordinator.pooling.secure_sum.answer import SummedAnswer

__all__ = ["Method", "PooledResult", "Pooling", "Test", "pool", "pool_estimates", "refit", "tau2_dl"]

Array = NDArray[np.float64]
_DOMINANT, _HETEROGENEOUS, _FEW = 50.0, 75.0, 5  # percent of weight, percent of variance, sites
_OF_ONE = ("Cumulative hazard", "Restricted mean survival time")
"""How effects begin that are read of one group and compare nothing, on scales on which others do."""


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """Settings of a pooling: the model and estimator of τ², the test and interval, and its coverage, as of `pool`."""

    method: Method = "REML"
    test: Test = "adhoc"
    level: float = 0.95

    @property
    def how(self) -> dict[str, Any]:
        """Keyword arguments of `pool` and `pool_estimates`."""
        return {"method": self.method, "test": self.test, "level": self.level}


@dataclass(frozen=True, kw_only=True)
class PooledResult:
    """Result of pooling K estimates; immutable, and every derived quantity is a property.

    Attributes:
        labels, yi, vi: the K rows used: label, estimate on the analysis scale, its variance.
        method, test, level: settings of the pooling; `test` is the one applied (with one row it is always ``z``).
        beta: pooled estimate on the analysis scale.
        se_model: standard error from the weights alone, before any Knapp-Hartung scaling.
        s2w: weighted mean square of the residuals, the Knapp-Hartung factor (1 when K = 1).
        tau2: variance between sites, in squared units of yi; 0 under ``FE``.
        QE: Cochran's Q with fixed-effect weights, K - 1 degrees of freedom.
        typical_v: the typical within-site variance that I2 and H2 compare tau2 with.
        weights: percent, summing to 100, of the chosen model.
        excluded: rows that were not used, each with its reason.
        notes: sentences a reader of the result must see.
        doubts: those of the notes that are cautions: what the interval may not hold (`coordinator.pooling.cautions`).
        term, scale, estimates: set when the rows came from `shared.estimands.answer`.
        effect: name of the effect measure (`shared.estimands.effects`); blank where it is not known.
        shared: variance of the pooled estimate that all rows have in common, as by a map onto one site's scale; it
            is in no row, in no weight and not in tau2, and no further site would lower it.
        summed: the answer of a secure sum to the same question, where there is one: nearer to the records' own than
            the pooled rows, which are then what each site released by itself.
    """

    labels: tuple[str, ...]
    yi: tuple[float, ...]
    vi: tuple[float, ...]
    method: Method
    test: Test
    level: float
    beta: float
    se_model: float
    s2w: float
    tau2: float
    QE: float
    typical_v: float
    weights: tuple[float, ...]
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()
    term: str = ""
    scale: Scale = "identity"
    estimates: tuple[Estimate, ...] = ()
    shared: float = 0.0
    effect: str = ""
    doubts: tuple[str, ...] = ()
    summed: SummedAnswer | None = None

    @property
    def k(self) -> int:
        """Number of rows pooled."""
        return len(self.yi)

    @property
    def unit(self) -> str:
        """Unit of a row: ``site`` in the answer of a study, ``study`` in an analyst's own table."""
        return "site" if self.estimates else "study"

    @property
    def units(self) -> str:
        """Several of `unit`."""
        return "sites" if self.estimates else "studies"

    @property
    def df(self) -> int:
        """Degrees of freedom of Q, and of t where it is used."""
        return self.k - 1

    @property
    def tau(self) -> float:
        """Standard deviation between sites, in units of yi."""
        return math.sqrt(self.tau2)

    @property
    def se(self) -> float:
        """Standard error under `test`."""
        factor = {"knha": self.s2w, "adhoc": max(1.0, self.s2w)}.get(self.test, 1.0)
        own = self.se_model * math.sqrt(factor)
        return math.hypot(own, math.sqrt(self.shared)) if self.shared else own

    @property
    def zval(self) -> float:
        """The test statistic beta / se, whichever the reference distribution."""
        return self.beta / self.se

    @property
    def compares(self) -> bool:
        """True if 0 on the analysis scale is a value of no effect: not of a share, a mean or a density.

        Nobody asks whether half of the patients survive, or whether a mean age is 0.
        """
        density = self.scale == "log" and self.term.startswith("network(")
        level = self.scale == "logit" or self.term.startswith("mean(") or self.effect.startswith(_OF_ONE)
        return not (density or level)

    @property
    def pval(self) -> float:
        """Two-sided p-value of no effect; not a number where it `compares` with none."""
        if not self.compares:
            return math.nan
        below = -abs(self.zval)
        return float(2 * (special.ndtr(below) if self.test == "z" else special.stdtr(self.df, below)))

    @property
    def ci_lb(self) -> float:
        """Lower confidence limit of beta."""
        return self.beta - self.critical * self.se

    @property
    def ci_ub(self) -> float:
        """Upper confidence limit of beta."""
        return self.beta + self.critical * self.se

    @property
    def QEp(self) -> float:
        """p-value of Q: chi-square with K - 1 degrees of freedom (1 when K = 1)."""
        return float(special.chdtrc(self.df, self.QE)) if self.df else 1.0

    @property
    def I2(self) -> float:
        """Percent of the total variance that lies between sites."""
        if self.method == "FE":
            return 100 * max(0.0, 1 - self.df / self.QE) if self.QE > 0 else 0.0
        return _i2(self.tau2, self.typical_v)

    @property
    def H2(self) -> float:
        """Total variance over typical within-site variance (Q / df under FE)."""
        if self.method == "FE":
            return self.QE / self.df if self.df else 1.0
        return _h2(self.tau2, self.typical_v)

    @cached_property
    def tau2_interval(self) -> Interval:
        """Q-profile interval of tau2 (Viechtbauer 2007): where Q(tau2) stays between its chi-square quantiles."""
        if self.df == 0:
            return Interval(None, None, "needs at least two sites")
        if self.method == "FE":
            return Interval(None, None, "the fixed-effect model has no variance between sites")
        lb, ub = q_profile(np.array(self.yi), np.array(self.vi), self.level)
        if math.isnan(lb):
            return Interval(None, None, "estimates agree more closely than their variances allow")
        return Interval(float(lb), float(ub))

    @cached_property
    def tau2_likelihood_interval(self) -> Interval:
        """Profile-likelihood interval of tau2 (Hardy and Thompson 1996), under ML or REML."""
        if self.method not in ("ML", "REML") or self.df == 0:
            return Interval(None, None, "needs two sites and the method ML or REML")
        y, v = np.array(self.yi), np.array(self.vi)
        return Interval(*likelihood_interval(y, v, self.tau2, self.method, self.level))

    @cached_property
    def se_tau2(self) -> float | None:
        """Standard error of tau2, a large-sample figure; None under ``FE`` and for one site."""
        if self.method == "FE" or self.df == 0:
            return None
        return float(se_tau2(np.array(self.yi), np.array(self.vi), np.array(self.tau2), self.method))

    @property
    def tau_interval(self) -> Interval:
        """`tau2_interval` in units of yi."""
        return self.tau2_interval.map(math.sqrt)

    @property
    def I2_interval(self) -> Interval:
        """I2 at both ends of `tau2_interval`."""
        ends = self.tau2_interval.map(lambda tau2: _i2(tau2, self.typical_v))
        if ends.lb is not None and ends.ub is not None and ends.ub <= ends.lb and ends.ub > 0:
            return Interval(None, None, "both ends are 100 % to the last digit")
        return ends

    @property
    def H2_interval(self) -> Interval:
        """H2 at both ends of `tau2_interval`."""
        return self.tau2_interval.map(lambda tau2: _h2(tau2, self.typical_v))

    @property
    def prediction_interval(self) -> Interval:
        """Prediction interval of a new site's effect: t with K - 1 df (normal for ``z``), this test's se, tau2."""
        return self.prediction("default")

    def prediction(self, kind: Literal["default", "riley", "simple"]) -> Interval:
        """The same by other conventions: ``riley`` takes t with K - 2 df, ``simple`` the normal and tau alone.

        Source: Riley, Higgins and Deeks 2011, BMJ 342:d549; the default is metafor's.
        """
        if self.method == "FE":
            return Interval(None, None, "the fixed-effect model has no variance between sites")
        if self.k < 3:
            return Interval(None, None, "needs at least three sites")
        tail = (1 - self.level) / 2
        spread, critical = math.hypot(self.se, self.tau), self.critical
        if kind == "riley":
            critical = -float(special.stdtrit(self.k - 2, tail))
        elif kind == "simple":
            critical, spread = -float(special.ndtri(tail)), self.tau
        lb, ub = self.beta - critical * spread, self.beta + critical * spread
        if not lb < ub:
            return Interval(None, None, "τ² is 0, or next to it: an interval of τ alone has no width")
        return Interval(lb, ub)

    @property
    def row_errors(self) -> tuple[float, ...]:
        """Standard error of each row by itself, with what all may be off by alike; weights go by `vi`, without."""
        alike = [row.vi_common for row in self.estimates] or [0.0] * len(self.vi)
        return tuple(math.sqrt(v + more) for v, more in zip(self.vi, alike, strict=True))

    @cached_property
    def fixed(self) -> PooledResult:
        """The fixed-effect result on the same rows, with its normal interval."""
        return self if self.method == "FE" else refit(self, method="FE", test="z")

    @property
    def sensitivity(self) -> tuple[PooledResult, ...]:
        """The same fit under z, Knapp-Hartung and its ad hoc floor, those that give an interval with width."""
        tests: tuple[Test, ...] = ("z",) if self.k == 1 else ("z", "knha", "adhoc")
        rows = (replace(self, test=test) for test in tests)
        return tuple(row for row in rows if row.test != "knha" or not _collapses(row))

    @property
    def noise_share(self) -> tuple[float, ...]:
        """Percent of each row's variance that is privacy noise (0 where the rows did not come as estimates)."""
        if not self.estimates:
            return (0.0,) * self.k
        return tuple(100 * row.vi_privacy / vi for row, vi in zip(self.estimates, self.vi, strict=True))

    @property
    def pooled_noise_share(self) -> float:
        """Percent of the pooled estimate's model variance that is privacy noise: what no larger sample would lower."""
        if not self.estimates:
            return 0.0
        noise = sum((w / 100) ** 2 * row.vi_privacy for w, row in zip(self.weights, self.estimates, strict=True))
        return 100 * noise / self.se_model**2

    @property
    def spread(self) -> tuple[float, float, float]:
        """Percent of the variance of a typical site's estimate: between hospitals, of the releases' noise, of sampling.

        What two releases of one hospital differ by is the second, and no heterogeneity; the three sum to 100.
        """
        between = _i2(self.tau2, self.typical_v)
        noise = (100 - between) * float(np.mean(self.noise_share)) / 100
        return between, noise, 100 - between - noise

    @property
    def naive(self) -> PooledResult | None:
        """The same pooling by somebody who takes released rows for patients; None where no row is of a release."""
        if not any(row.vi_naive is not None for row in self.estimates):
            return None
        try:
            return pool(
                self.yi, [row.naive for row in self.estimates], method=self.method, test=self.test, level=self.level
            )
        except EstimateRefusal:  # no row claims a variance
            return None

    @property
    def receipts(self) -> tuple[str, ...]:
        """Every receipt behind the rows used, in order, each once."""
        return tuple(dict.fromkeys(receipt for row in self.estimates for receipt in row.receipts))

    @property
    def critical(self) -> float:
        """Half the width of an interval in standard errors: a quantile of t or of the normal."""
        tail = (1 - self.level) / 2
        return -float(special.ndtri(tail) if self.test == "z" else special.stdtrit(self.df, tail))


@overload
def pool(
    yi: ArrayLike | Sequence[float | None],
    vi: ArrayLike | Sequence[float | None],
    *,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    labels: Sequence[str] | None = None,
    mods: None = None,
) -> PooledResult: ...
@overload
def pool(
    yi: ArrayLike | Sequence[float | None],
    vi: ArrayLike | Sequence[float | None],
    *,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    labels: Sequence[str] | None = None,
    mods: Mapping[str, Sequence[Any]] | ArrayLike,
) -> RegressionResult: ...
def pool(
    yi: ArrayLike | Sequence[float | None],
    vi: ArrayLike | Sequence[float | None],
    *,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    labels: Sequence[str] | None = None,
    mods: Mapping[str, Sequence[Any]] | ArrayLike | None = None,
) -> PooledResult | RegressionResult:
    """Pool one meta-analysis.

    Args:
        yi: (K,) estimates on the analysis scale (log for ratios). None, NaN and infinities are rows to exclude.
        vi: (K,) variances of the estimates, in squared units of yi.
        method: ``FE``, or the estimator of tau2 (`coordinator.pooling.METHODS`).
        test: ``z``, ``t`` (K - 1 df), ``knha`` (Knapp-Hartung), ``adhoc`` (Knapp-Hartung, never below the model).
        level: coverage of every interval.
        labels: (K,) names of the rows, used in messages and figures.
        mods: moderators make it a meta-regression: see `coordinator.pooling.moderators.regress`.
    Raises:
        ParameterError: unknown method or test, level outside [0.5, 1), or arguments of different lengths.
        EstimateRefusal: no row can be used.
    Source: metafor's ``rma.uni``; DerSimonian and Laird 1986; Paule and Mandel 1982; Sidik and Jonkman 2005;
        Knapp and Hartung 2003; Roever, Knapp and Friede 2015 (the ad hoc floor).

    >>> result = pool([0.10, 0.30, 0.35, 0.65], [0.03, 0.03, 0.05, 0.01], labels=["A", "B", "C", "D"])
    >>> round(result.beta, 3), round(result.tau2, 4), result.test, round(result.fixed.beta, 3)
    (0.377, 0.0429, 'adhoc', 0.457)
    """
    if mods is not None:
        from coordinator.pooling.moderators import regress

        return regress(yi, vi, mods, method=method, test=test, level=level, labels=labels)
    check(method, test, level)
    keep, names, estimates, variances, excluded = usable(yi, vi, labels)
    blank = PooledResult(
        labels=tuple(names[i] for i in keep),
        yi=tuple(estimates[keep].tolist()),
        vi=tuple(variances[keep].tolist()),
        excluded=excluded,
        method=method,
        test=test,
        level=level,
        beta=0.0,
        se_model=1.0,
        s2w=1.0,
        tau2=0.0,
        QE=0.0,
        typical_v=1.0,
        weights=(),
    )
    return _announce(refit(blank, method=method, test=test))


def pool_estimates(
    estimates: Sequence[Estimate], *, method: Method = "REML", test: Test = "adhoc", level: float = 0.95
) -> PooledResult:
    """Pool the estimates of one term; a site that has none is listed with its own reason.

    Args:
        estimates: one per site, of one term on one scale; vi is sampling plus privacy noise.
        method, test, level: as in `pool`.
    Raises:
        ParameterError: several terms or scales, or the same site twice in a wave.
        EstimateRefusal: no estimate can be used.
    """
    check(method, test, level)
    for what in ("term", "scale"):
        values = sorted({str(getattr(row, what)) for row in estimates})
        if len(values) > 1:
            raise ParameterError(f"all estimates must share one {what}", given=", ".join(values))
    seen = [(row.site, row.wave) for row in estimates]
    if len(set(seen)) < len(seen):
        raise ParameterError(
            "each site may appear once per wave",
            given=", ".join(sorted({site for site, _ in seen if sum(s == site for s, _ in seen) > 1})),
            next_step="Pooling one site's persons twice would understate the error.",
        )
    waves = len({row.wave for row in estimates}) > 1
    labels = [f"{row.site}, wave {row.wave}" if waves else row.site for row in estimates]
    absent = {i: Excluded(labels[i], row.reason) for i, row in enumerate(estimates) if row.yi is None}
    present = [i for i in range(len(estimates)) if i not in absent]
    if not present:
        raise nothing_left(tuple(absent.values()))
    chosen = [estimates[i] for i in present]
    try:
        result = pool(
            [row.yi for row in chosen],
            [row.vi for row in chosen],
            method=method,
            test=test,
            level=level,
            labels=[labels[i] for i in present],
        )
    except EstimateRefusal:
        rejected = [Excluded(labels[i], reason_out(estimates[i].yi, estimates[i].vi) or UNLIKE) for i in present]
        raise nothing_left((*absent.values(), *rejected)) from None
    used = dict(zip(labels, estimates, strict=True))
    order = {label: i for i, label in enumerate(labels)}
    notes = [note for note in result.notes if note not in _announcement(result)]
    if waves and len({row.site for row in chosen}) < len(chosen):
        notes.append("A site contributes more than one wave: the rows are not independent if they share persons.")
    behind = tuple(used[label] for label in result.labels)
    result = replace(result, term=estimates[0].term, scale=estimates[0].scale, estimates=behind)
    # What all sites may be off by alike is the weighted mean of what each may be.
    result = replace(result, shared=alike(result))
    cautions = (*left_out(estimates), *doubts(result, chosen))
    return _announce(
        replace(
            result,
            excluded=tuple(sorted((*absent.values(), *result.excluded), key=lambda row: order[row.label])),
            notes=(*notes, *filter(None, [_incomplete(behind), lacking(result)]), *cautions),
            doubts=cautions,
        )
    )


# -- one fit -----------------------------------------------------------------------------------------------
def alike(result: PooledResult) -> float:
    """Variance of what all of its rows may be off by alike, at its weights; 0 where their estimates are not known."""
    return in_common(result.estimates, result.weights) + drawn_in(result) ** 2 if result.estimates else 0.0


def refit(rows: PooledResult, *, method: Method, test: Test) -> PooledResult:
    """Fit the rows of `rows`; its other numbers are ignored, but for what is `shared` beside its rows, as by a map."""
    y, v = np.array(rows.yi), np.array(rows.vi)
    k, tau2, several = len(y), 0.0, False
    if k > 1:
        found, more = estimate_tau2(y, v, method)
        tau2, several = float(found), bool(more)
    model = fit(y, v, np.array(tau2))
    result = replace(
        rows,
        method=method,
        test=test,
        beta=float(model.beta[0]),
        se_model=math.sqrt(float(model.vcov[0, 0])),
        s2w=float(model.Q) / (k - 1) if k > 1 else 1.0,
        tau2=tau2,
        QE=float(fit(y, v).Q) if k > 1 else 0.0,
        typical_v=float(typical_v(v)) if k > 1 else float(v[0]),
        weights=tuple((100 * model.hat).tolist()),
        notes=(),
        doubts=(),
    )
    beside = max(rows.shared - alike(rows), 0.0)
    result = replace(result, shared=alike(result) + beside)
    notes = []
    if k == 1:
        result = replace(result, test="z")
    elif test == "knha" and _collapses(result):
        result = replace(result, test="adhoc")
        notes.append("Knapp-Hartung would give an interval without width: its ad hoc floor is used.")
    if several:
        notes.append("The likelihood of τ² has more than one maximum; the highest is reported.")
    return replace(result, notes=tuple(_notes(result) + notes))


def _i2(tau2: float, typical: float) -> float:
    return 100 * tau2 / (tau2 + typical)


def _h2(tau2: float, typical: float) -> float:
    return tau2 / typical + 1


def _notes(result: PooledResult) -> list[str]:
    notes = []
    if result.k == 1:
        return [f"Only {result.labels[0]} has an estimate: nothing was pooled, this is its own result."]
    if result.k == 2:
        notes.append("Two sites cannot tell how sites vary: read fixed and random effects side by side.")
    elif result.k < _FEW and result.method != "FE":
        notes.append(f"With {result.k} sites τ² and the prediction interval are approximate.")
    heaviest = int(np.argmax(result.weights))
    if result.weights[heaviest] > max(_DOMINANT, 150 / result.k):  # of two sites one always has half
        share = f"{result.weights[heaviest]:.0f} %"
        notes.append(f"{result.labels[heaviest]} carries {share} of the weight: the pooled estimate is mostly its own.")
    if result.method == "FE":
        return notes
    if result.test == "knha" and result.s2w < 1:
        notes.append("The Knapp-Hartung interval is narrower than the model's; test adhoc does not allow that.")
    if result.I2 > _HETEROGENEOUS:
        notes.append(f"Sites differ strongly (I² {result.I2:.0f} %): the pooled value describes an average site only.")
    least = float(special.chdtri(result.df, (1 + result.level) / 2))
    if least > result.QE:
        notes.append("Sites agree more closely than their variances allow: the interval of τ² is empty.")
    # The interval holds each τ² whose weighted sum of squares chance explains; s2w is that sum, at the estimate.
    spread, most = result.s2w * result.df, float(special.chdtri(result.df, (1 - result.level) / 2))
    if least <= result.QE and (spread > most or (spread < least and result.tau2 > 0)):
        notes.append(
            f"The interval of τ² does not hold its estimate: it is found from Q, the estimate by {result.method}, and "
            "on these rows the two disagree. Read neither alone."
        )
    return notes


def _incomplete(rows: Sequence[Estimate]) -> str:
    """Sentence on the number of released rows that an answer leaves out; blank where it uses all."""
    lost = [row for row in rows if row.n_missing]
    each = ", ".join(f"{row.n_missing:,} of {row.n_missing + row.n:,} of {row.site}" for row in lost)
    if len(lost) > 4:
        missing, used = (sum(getattr(row, what) for row in lost) for what in ("n_missing", "n"))
        each = f"{missing:,} of {missing + used:,} of {len(lost)} sites"
    why = "a value of the question is missing, has no weight in it, or is no time in it (an entry at or after the end)"
    return f"Rows left out, because {why}: {each}." if lost else ""


def _announcement(result: PooledResult) -> tuple[str, ...]:
    if not result.excluded:
        return ()
    total = len(result.excluded) + result.k
    return (f"{len(result.excluded)} of {total} rows are excluded; each is listed with its reason.",)


def _announce(result: PooledResult) -> PooledResult:
    return replace(result, notes=_announcement(result) + result.notes)


def _collapses(result: PooledResult) -> bool:
    """True if the residuals are rounding noise, so that the Knapp-Hartung interval would have no width."""
    noise = 8 * float(np.finfo(float).eps) * max(abs(y) for y in result.yi)
    return bool(result.se_model * math.sqrt(result.s2w) <= noise)
