"""Meta-regression of the sites' estimates on moderators.

A moderator is a fact about a site (its year, its posture, its share of women), so K stays small and every
coefficient costs a degree of freedom. The design always has an intercept, first. A moderator that is constant, or
collinear with earlier ones, is dropped by name; words become indicator columns against the first level. Names follow
metafor: ``beta se zval pval ci_lb ci_ub vcov QM QMp QE QEp tau2 I2 H2 R2``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coordinator.pooling.heterogeneity import Method, Test, estimate_tau2, fit, q_profile, se_tau2, typical_v
from coordinator.pooling.rows import Excluded, Interval, check, usable
from shared.errors import EstimateRefusal, ParameterError

__all__ = ["RegressionResult", "absent", "regress"]

Array = NDArray[np.float64]
_INTERCEPT = "intercept"


@dataclass(frozen=True, kw_only=True)
class RegressionResult:
    """Result of a meta-regression of K rows on p coefficients.

    Attributes:
        terms: (p,) names of the coefficients; the intercept is first.
        labels, yi, vi: the K rows used.
        X: K rows of p numbers, the design.
        beta, vcov_model: (p,) coefficients and (p, p) covariance by the weights alone, before Knapp-Hartung scaling.
        vcov_common: (p, p) covariance from what all rows may be off by alike; empty where that is not known.
        s2w: the Knapp-Hartung factor: weighted mean square of the residuals.
        tau2: variance between sites that the moderators leave, and `tau2_without` them.
        QE: heterogeneity left, chi-square with `df` = K - p degrees of freedom.
        typical_v: the within-site variance that I2 and H2 compare tau2 with.
        R2: percent of tau2 accounted for (of the weighted sum of squares, adjusted, under ``FE``); 0, with a
            note, when there was none.
        dropped: moderators left out, each with its reason.
        excluded, notes, method, test, level: as in `coordinator.pooling.pool.PooledResult`.
    """

    terms: tuple[str, ...]
    labels: tuple[str, ...]
    yi: tuple[float, ...]
    vi: tuple[float, ...]
    X: tuple[tuple[float, ...], ...]
    beta: tuple[float, ...]
    vcov_model: tuple[tuple[float, ...], ...]
    s2w: float
    tau2: float
    tau2_without: float
    QE: float
    typical_v: float
    R2: float
    method: Method
    test: Test
    level: float
    dropped: tuple[Excluded, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()
    vcov_common: tuple[tuple[float, ...], ...] = ()

    @property
    def k(self) -> int:
        """Rows used."""
        return len(self.yi)

    @property
    def p(self) -> int:
        """Coefficients, the intercept included."""
        return len(self.terms)

    @property
    def df(self) -> int:
        """Residual degrees of freedom, K - p."""
        return self.k - self.p

    @property
    def vcov(self) -> Array:
        """(p, p) covariance of the coefficients under `test`, with what all rows may be off by alike."""
        factor = {"knha": self.s2w, "adhoc": max(1.0, self.s2w)}.get(self.test, 1.0)
        own = np.array(self.vcov_model) * factor
        return own + np.array(self.vcov_common) if self.vcov_common else own

    @property
    def se(self) -> tuple[float, ...]:
        """(p,) standard errors under `test`."""
        return tuple(np.sqrt(np.diagonal(self.vcov)).tolist())

    @property
    def zval(self) -> tuple[float, ...]:
        """(p,) test statistics beta / se, whichever the reference distribution."""
        return tuple(b / s for b, s in zip(self.beta, self.se, strict=True))

    @property
    def pval(self) -> tuple[float, ...]:
        """(p,) two-sided p-values."""
        below = -np.abs(self.zval)
        return tuple((2 * (special.ndtr(below) if self._normal else special.stdtr(self.df, below))).tolist())

    @property
    def ci_lb(self) -> tuple[float, ...]:
        """(p,) lower confidence limits."""
        return tuple(b - self._critical * s for b, s in zip(self.beta, self.se, strict=True))

    @property
    def ci_ub(self) -> tuple[float, ...]:
        """(p,) upper confidence limits."""
        return tuple(b + self._critical * s for b, s in zip(self.beta, self.se, strict=True))

    @property
    def QM_df(self) -> tuple[int, ...]:
        """Degrees of freedom of QM: the moderators, and the residual ones where it is an F statistic."""
        return (self.p - 1,) if self._normal else (self.p - 1, self.df)

    @property
    def QM(self) -> float:
        """Omnibus test of all moderators: chi-square under ``z``, else F."""
        if self.p == 1:
            return 0.0
        moderators = np.array(self.beta[1:])
        wald = float(moderators @ np.linalg.solve(self.vcov[1:, 1:], moderators))
        return wald if self._normal else wald / (self.p - 1)

    @property
    def QMp(self) -> float:
        """p-value of QM."""
        if self.p == 1:
            return 1.0
        if self._normal:
            return float(special.chdtrc(self.p - 1, self.QM))
        return float(special.fdtrc(self.p - 1, self.df, self.QM))

    @property
    def QEp(self) -> float:
        """p-value of the heterogeneity that is left."""
        return float(special.chdtrc(self.df, self.QE)) if self.df else 1.0

    @property
    def I2(self) -> float:
        """Percent of the variance left that lies between sites."""
        if self.method == "FE":
            return 100 * max(0.0, 1 - self.df / self.QE) if self.QE > 0 else 0.0
        return 100 * self.tau2 / (self.tau2 + self.typical_v)

    @property
    def H2(self) -> float:
        """Variance left over typical within-site variance."""
        if self.method == "FE":
            return self.QE / self.df if self.df else 1.0
        return self.tau2 / self.typical_v + 1

    @cached_property
    def se_tau2(self) -> float | None:
        """Standard error of tau2; None under ``FE``."""
        if self.method == "FE":
            return None
        y, v, x = self._arrays
        return float(se_tau2(y, v, np.array(self.tau2), self.method, x))

    @cached_property
    def tau2_interval(self) -> Interval:
        """Q-profile interval of the variance left between sites."""
        if self.method == "FE" or self.df == 0:
            return Interval(None, None, "needs random effects and more rows than coefficients")
        y, v, x = self._arrays
        lb, ub = q_profile(y, v, self.level, x)
        if math.isnan(lb):
            return Interval(None, None, "estimates agree more closely than their variances allow")
        return Interval(float(lb), float(ub))

    def predict(self, **moderators: float) -> tuple[float, Interval, Interval]:
        """The pooled effect of sites with these moderators, its confidence interval and its prediction interval.

        Args:
            moderators: a value for each term but the intercept.
        Raises: ParameterError: a term is missing or unknown.
        """
        if set(moderators) != set(self.terms[1:]):
            raise ParameterError(
                f"every moderator must have a value: {', '.join(self.terms[1:])}", given=", ".join(moderators) or "none"
            )
        at = np.array([1.0, *(float(moderators[term]) for term in self.terms[1:])])
        centre, spread = float(at @ np.array(self.beta)), float(at @ self.vcov @ at)
        ends = [
            Interval(centre - self._critical * math.sqrt(total), centre + self._critical * math.sqrt(total))
            for total in (spread, spread + self.tau2)
        ]
        if self.method == "FE":
            ends[1] = Interval(None, None, "the fixed-effect model has no variance between sites")
        return centre, ends[0], ends[1]

    @property
    def _normal(self) -> bool:
        return self.test == "z" or self.df == 0

    @property
    def _critical(self) -> float:
        tail = (1 - self.level) / 2
        return -float(special.ndtri(tail) if self._normal else special.stdtrit(self.df, tail))

    @property
    def _arrays(self) -> tuple[Array, Array, Array]:
        return np.array(self.yi), np.array(self.vi), np.array(self.X)


def regress(
    yi: ArrayLike | Sequence[float | None],
    vi: ArrayLike | Sequence[float | None],
    mods: Mapping[str, Sequence[Any]] | ArrayLike,
    *,
    method: Method = "REML",
    test: Test = "adhoc",
    level: float = 0.95,
    labels: Sequence[str] | None = None,
) -> RegressionResult:
    """Meta-regression.

    Args:
        yi, vi, method, test, level, labels: as in `coordinator.pooling.pool.pool`; t tests have K - p degrees of
            freedom.
        mods: name -> (K,) numbers or words; or an array (K,) or (K, m). A row with a missing moderator is excluded.
    Raises:
        ParameterError: as `pool`, or moderators of another length.
        EstimateRefusal: as `pool`; or no more rows than coefficients, where tau2 cannot be told from the fit.
    Source: Knapp and Hartung 2003; Raudenbush 2009; R2 as Lopez-Lopez et al. 2014.

    >>> fit = regress([0.1, 0.3, 0.5, 0.8], [0.01] * 4, {"decade": [0, 1, 2, 3]}, method="FE", test="z")
    >>> fit.terms, [round(b, 2) for b in fit.beta]
    (('intercept', 'decade'), [0.08, 0.23])
    """
    check(method, test, level)
    keep, names, estimates, variances, excluded = usable(yi, vi, labels)
    columns = _columns(mods, len(names))
    missing = [i for i in keep if any(absent(values[i]) for values in columns.values())]
    keep = [i for i in keep if i not in missing]
    order = {name: i for i, name in enumerate(names)}
    rows_out = (*excluded, *(Excluded(names[i], "a moderator is missing") for i in missing))
    if not keep:
        raise EstimateRefusal(
            "at least one row must have all moderators", given="none", next_step="Leave a moderator out."
        )
    terms, x, dropped = _design(columns, keep)
    k, p = len(keep), len(terms)
    _require_rows(k, p, method)
    y, v = estimates[keep], variances[keep]
    tau2, several = estimate_tau2(y, v, method, x)
    model = fit(y, v, tau2, x)
    notes = [f"{row.label} is left out: {row.reason}." for row in dropped]
    if excluded or missing:
        notes.insert(0, f"{len(rows_out)} of {len(names)} rows are excluded; each is listed with its reason.")
    if k < 10 * (p - 1):
        notes.append(f"{k} rows for {p - 1} moderators: fewer than ten each, the result is exploratory.")
    if several:
        notes.append("The likelihood of τ² has more than one maximum; the highest is reported.")
    s2w = float(model.Q) / (k - p) if k > p else 1.0
    rounding = (64 * np.finfo(float).eps) ** 2 * float((y**2 / v).max())
    applied, why = _applied(test, exact=k == p, flat=bool(s2w <= rounding))
    notes += why
    bare = float(estimate_tau2(y, v, method)[0]) if k > 1 else 0.0
    left = float(fit(y, v, 0.0, x).Q)
    if method != "FE" and bare <= 0:
        notes.append("R² is 0 because τ² is 0 without moderators: there was nothing to account for.")
    return RegressionResult(
        terms=terms,
        labels=tuple(names[i] for i in keep),
        yi=tuple(y.tolist()),
        vi=tuple(v.tolist()),
        X=tuple(map(tuple, x.tolist())),
        beta=tuple(model.beta.tolist()),
        vcov_model=tuple(map(tuple, model.vcov.tolist())),
        s2w=s2w,
        tau2=float(tau2),
        tau2_without=bare,
        QE=left,
        typical_v=float(typical_v(v, x)) if k > p else float(v.mean()),
        R2=_accounted_for(method, float(tau2), bare, left, float(fit(y, v).Q), (k, p)),
        method=method,
        test=applied,
        level=level,
        dropped=dropped,
        excluded=tuple(sorted(rows_out, key=lambda row: order[row.label])),
        notes=tuple(notes),
    )


def _require_rows(k: int, p: int, method: Method) -> None:
    """Refuse no more rows than coefficients, where τ² is estimated. Raises: EstimateRefusal."""
    if k < p or (k == p and method != "FE"):
        raise EstimateRefusal(
            "a meta-regression must have more rows than coefficients",
            given=f"{k} rows and {p} coefficients",
            next_step="Leave moderators out.",
        )


def _applied(test: Test, *, exact: bool, flat: bool) -> tuple[Test, list[str]]:
    """The test that is used, and why where it is another one than asked for.

    Args:
        exact: True with as many coefficients as rows. flat: True if residuals vary by no more than rounding.
    """
    if exact:
        return "z", ["As many coefficients as rows: the fit is exact, and says nothing about other sites."]
    if test == "knha" and flat:
        return "adhoc", ["Knapp-Hartung would give an interval without width: its ad hoc floor is used."]
    return test, []


def _accounted_for(
    method: Method, tau2: float, without: float, left: float, total: float, size: tuple[int, int]
) -> float:
    """R² in percent: the share of τ² that the moderators account for; of a fixed effect, of the excess of Q.

    Args:
        tau2, without: with the moderators and without. left, total: Q with them and without. size: rows, coefficients.
    """
    k, p = size
    if method != "FE":
        return 100 * max(0.0, (without - tau2) / without) if without > 0 else 0.0
    return 100 * max(0.0, 1 - (left / (k - p)) / (total / (k - 1))) if k > p and total > 0 else 0.0


def _columns(mods: Mapping[str, Sequence[Any]] | ArrayLike, rows: int) -> dict[str, list[Any]]:
    if isinstance(mods, Mapping):
        columns = {str(name): list(values) for name, values in mods.items()}
    else:
        try:
            table = np.asarray(mods, dtype=float)
        except (TypeError, ValueError):
            raise ParameterError("an array of moderators must hold numbers", next_step="Give words by name.") from None
        if table.ndim not in (1, 2):
            raise ParameterError("moderators must be a vector or a table", given=f"shape {table.shape}")
        table = table.reshape(len(table), -1)
        columns = {f"moderator {j + 1}": table[:, j].tolist() for j in range(table.shape[1])}
    for name, values in columns.items():
        if len(values) != rows:
            raise ParameterError(
                f"moderator {name!r} must have a value for every row", given=f"{len(values)} of {rows}"
            )
    if not columns:
        raise ParameterError("there must be a moderator", given="none")
    return columns


def absent(value: Any) -> bool:
    """True where a site has no value of a moderator: None, an empty word, or no finite number."""
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def _design(columns: Mapping[str, list[Any]], keep: list[int]) -> tuple[tuple[str, ...], Array, tuple[Excluded, ...]]:
    """Intercept and moderators; what adds nothing to the columns before it is dropped, with the reason."""
    candidates: list[tuple[str, Array]] = []
    for name, values in columns.items():
        chosen = [values[i] for i in keep]
        if any(isinstance(value, str) for value in chosen):
            levels = list(dict.fromkeys(map(str, chosen)))
            if len(levels) == 1:
                candidates.append((name, np.ones(len(keep))))
            candidates += [
                (f"{name}={level}", np.array([float(str(v) == level) for v in chosen])) for level in levels[1:]
            ]
        else:
            candidates.append((name, np.array([float(value) for value in chosen])))
    terms, used = [_INTERCEPT], [np.ones(len(keep))]
    dropped = []
    for name, column in candidates:
        if np.ptp(column) == 0:
            dropped.append(Excluded(name, "it is the same in every row"))
            continue
        scaled = (column - column.mean()) / np.abs(column - column.mean()).max()
        basis = np.linalg.qr(
            np.stack(
                [(c - c.mean()) / max(np.abs(c - c.mean()).max(), 1e-300) if i else c for i, c in enumerate(used)],
                axis=1,
            )
        )[0]
        rest = scaled - basis @ (basis.T @ scaled)
        if np.abs(rest).max() < 1e-8:
            dropped.append(Excluded(name, "it is collinear with the moderators before it"))
            continue
        terms.append(name)
        used.append(column)
    return tuple(terms), np.stack(used, axis=1), tuple(dropped)
