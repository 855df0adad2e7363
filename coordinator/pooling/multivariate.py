r"""Pool several coefficients of one question together: the levels of a factor, the columns of a spline.

Pooled one by one, coefficients lose that they were estimated from the same rows, and no test holds for all of them.
With y_i the p_i coefficients that site i could estimate, V_i their covariance and Psi that between sites,

.. math:: y_i \sim N(X_i \beta, \; V_i + \Psi_i), \qquad X_i, \Psi_i: \text{ the rows of } I, \Psi \text{ in } y_i

Psi by restricted or full maximum likelihood, as `metafor::rma.mv` and `mixmeta::mixmeta` do.
A site that lacks a coefficient gives the others.

Few sites cannot tell p (p + 1) / 2 variances and covariances. Then Psi is a multiple of the typical within-site
covariance, ``prop``: one number, and neither the reference level of a factor nor the coding of a spline matters to it.

Source: D. Jackson, R. Riley, I. R. White (2011), Multivariate meta-analysis: potential and promise, Statistics in
Medicine 30:2481; the tests of few sites: D. Jackson, R. Riley (2014), A refined method for multivariate meta-analysis
and meta-regression, Statistics in Medicine 33:541.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coordinator.pooling import Test
from coordinator.pooling.rows import by_reason
from shared.errors import EstimateRefusal, ParameterError
from shared.estimands.formulas import parse
from shared.estimands.questions import MODELS
from shared.estimands.splines import CURVES, CurveBasis, basis_of

if TYPE_CHECKING:
    from coordinator.pooling.pool import Pooling
    from shared.estimands.answer import Estimate
    from shared.estimands.questions import Estimand

__all__ = ["STRUCTURES", "JointResult", "JointRow", "Structure", "dose_response", "joint_of_terms", "joint_rows"]
__all__ += ["pool_joint"]

Array = NDArray[np.float64]
Structure = Literal["un", "diag", "cs", "prop"]
STRUCTURES: Mapping[str, str] = {
    "un": "every variance and covariance between sites free",
    "diag": "variances between sites free, no covariances",
    "cs": "one variance between sites and one correlation",
    "prop": "between sites as within them, up to a factor",
}
"""Structures of Psi, in words."""
MOST_TOGETHER = 12
"""Coefficients that are pooled together, at most."""
_NO_COVARIANCES = "its answer has no covariances of its terms"
_APART = "its coefficients are not pooled together, as releases of this kind give no covariances of them"
"""Why no site has any: noisy figures, which tell of each coefficient alone."""
_LEVEL = re.compile(r"\[[^\[\]]*\]")
"""Level in the label of a coefficient, in brackets; without it, labels of one term are equal."""
JOINTLY = ("FE", "ML", "REML")
_FOR_EACH = 3
"""Residual degrees of freedom that each free number of an unstructured Psi must have, to be the default."""
_STARTS = (1.0, 0.1, 0.01)
_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class JointRow:
    """Estimates of one site: (p,) coefficients, NaN where it has none, and (p, p) their covariance."""

    label: str
    yi: Array
    cov: Array


@dataclass(frozen=True, kw_only=True)
class JointResult:
    """Coefficients pooled together.

    Attributes:
        terms: the p coefficients. labels: the sites used.
        method, structure, test, level: settings of the pooling.
        beta: (p,) pooled, on the analysis scale.
        vcov: (p, p) their covariance under `test`.
        psi: (p, p) covariance between sites; 0 under FE.
        s2: residual mean square in units of the model's: the Knapp-Hartung factor.
        QE: Cochran's multivariate Q on `df` degrees of freedom: coefficients less p.
        loglik: of the fit, as metafor has it; None under FE.
        excluded: sites that were not used, with the reason.
        notes: sentences a reader must see.
    """

    terms: tuple[str, ...]
    labels: tuple[str, ...]
    method: str
    structure: str
    test: Test
    level: float
    beta: Array
    vcov: Array
    psi: Array
    s2: float
    QE: float
    df: int
    loglik: float | None
    excluded: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def se(self) -> Array:
        """(p,) standard errors."""
        return np.sqrt(np.diag(self.vcov))

    @property
    def QEp(self) -> float:
        """p-value of Q."""
        from scipy.special import chdtrc

        return float(chdtrc(self.df, self.QE)) if self.df else 1.0

    @property
    def critical(self) -> float:
        """Half the width of an interval in standard errors."""
        from scipy.special import ndtri, stdtrit

        tail = (1 - self.level) / 2
        return -float(ndtri(tail) if self.test == "z" else stdtrit(self.df, tail))

    @property
    def critical_together(self) -> float:
        """The same of all contrasts of the coefficients at once (Scheffé 1953): sqrt(m F), or sqrt(χ²) under ``z``."""
        from scipy.special import chdtri, fdtri

        m = len(self.terms)
        return math.sqrt(chdtri(m, 1 - self.level) if self.test == "z" else m * fdtri(m, self.df, self.level))

    def wald(self, contrasts: ArrayLike | None = None) -> tuple[float, int, float]:
        """The joint test that C beta = 0: statistic, degrees of freedom, p. All coefficients where C is left out.

        Chi-square under ``z``; otherwise F, the statistic over its degrees of freedom, on those of the residuals.
        """
        from scipy.special import chdtrc, fdtrc

        c = np.eye(len(self.beta)) if contrasts is None else np.atleast_2d(np.asarray(contrasts, dtype=float))
        found, m = c @ self.beta, len(c)
        q = float(found @ np.linalg.solve(c @ self.vcov @ c.T, found))
        if self.test == "z":
            return q, m, float(chdtrc(m, q))
        return q / m, m, float(fdtrc(m, self.df, q / m))

    @property
    def sentence(self) -> str:
        """The joint test of all coefficients, in words."""
        statistic, m, p = self.wald()
        said = f"χ² {statistic:.2f} on {m} df" if self.test == "z" else f"F {statistic:.2f} on {m} and {self.df} df"
        shown = "< 0.001" if p < 0.001 else f"{p:.3f}"
        how = f"{self.method}, {self.structure}, {self.test}" if self.structure else f"FE, {self.test}"
        return f"{m} coefficients pooled together ({how}; {len(self.labels)} sites): {said}, p {shown}"

    @property
    def data(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        statistic, m, p = self.wald()
        half = self.critical * self.se
        names = ("terms", "labels", "method", "structure", "test", "level", "beta", "se", "vcov", "psi", "QE", "df")
        out = {name: getattr(self, name) for name in (*names, "QEp", "loglik", "notes")}
        out |= {"ci_lb": self.beta - half, "ci_ub": self.beta + half}
        out |= {"statistic": statistic, "statistic_df": [m] if self.test == "z" else [m, self.df], "p": p}
        out["sentence"] = self.sentence
        return {**out, "excluded": [{"label": label, "reason": reason} for label, reason in self.excluded]}


def joint_rows(estimates: Sequence[Estimate], terms: Sequence[str]) -> tuple[list[JointRow], dict[str, str]]:
    """Sites' estimates of several terms with their covariances, and why a site has none.

    The covariance of two is their correlation times both standard errors: those of the patients behind a release, its
    noise included. What all may be off by alike is counted at each site: a joint test is too sure of it by so much.
    """
    sites: dict[str, dict[str, Estimate]] = {}
    for row in estimates:
        if row.term in terms:
            sites.setdefault(row.site, {})[row.term] = row
    rows, lost = [], {}
    for site, found in sites.items():
        known = [found[term] for term in terms if term in found and found[term].yi is not None]
        if not known:
            lost[site] = next(iter(found.values())).reason
            continue
        if any(b.term not in a.correlations for a, b in itertools.permutations(known, 2)):
            lost[site] = _NO_COVARIANCES
            continue
        yi, cov = np.full(len(terms), np.nan), np.full((len(terms), len(terms)), np.nan)
        for one, other in itertools.product(known, repeat=2):
            j, k = terms.index(one.term), terms.index(other.term)
            r = 1.0 if j == k else one.correlations[other.term]
            whole = [(row.vi or 0.0) + row.vi_common for row in (one, other)]
            yi[j], cov[j, k] = one.yi, r * math.sqrt(whole[0] * whole[1])
        rows.append(JointRow(label=site, yi=yi, cov=cov))
    return rows, lost


def joint_of_terms(
    estimates: Sequence[Estimate],
    question: Estimand,
    pooling: Pooling,
    *,
    spans: Mapping[str, tuple[float, float]] | None = None,
) -> list[dict[str, Any]]:
    """Every term of a model that has several coefficients, these pooled together: as `JointResult.data`, or a reason.

    Of a test of proportional hazards all coefficients, too, as ``GLOBAL``; of a cross-table its log odds ratios, whose
    joint test is that of independence.

    Each has its ``term``, its ``terms`` (coefficients) and the ``sites`` that were pooled: label, yi and cov; a curve
    also the ``curve`` (`dose_response`).

    Args:
        spans: column to its public bounds: where a curve without boundary knots is drawn.
    """
    labels = list(dict.fromkeys(row.term for row in estimates))
    if (question.kind not in MODELS and question.kind != "crosstab") or question.kind == "standardised":
        return []
    out: list[dict[str, Any]] = []
    bare = {label: _LEVEL.sub("", label.partition(" | ")[0]) for label in labels}
    together = {
        term: [label for label in labels if bare[label] in (term, question.label(term))] for term in question.terms
    }
    if question.kind == "crosstab":
        together = {str(question): [label for label in labels if label.startswith("odds_ratio(")]}
    if question.kind == "schoenfeld" and len(question.terms) > 1:
        together["GLOBAL"] = labels
    for term, mine in together.items():
        if len(mine) < 2:
            continue
        one: dict[str, Any] = {"term": term, "terms": mine}
        if len(mine) > MOST_TOGETHER:
            out.append(
                {**one, "reason": f"{len(mine)} coefficients: more than {MOST_TOGETHER} are not pooled together"}
            )
            continue
        rows, lost = joint_rows(estimates, mine)
        try:
            found = pool_joint(rows, mine, **pooling.how, excluded=lost)
        except EstimateRefusal as refusal:
            apart = not rows and set(lost.values()) == {_NO_COVARIANCES}
            out.append({**one, "reason": _APART if apart else str(refusal)})
            continue
        used = [{"label": row.label, "yi": row.yi, "cov": row.cov} for row in rows if row.label in found.labels]
        out.append({**found.data, **one, "reason": "", "sites": used})
        basis = basis_of(parse(term)) if term.startswith(tuple(f"{name}(" for name in CURVES)) else None
        if basis is not None and question.kind != "multinomial" and (basis.ends or str(basis.of) in (spans or {})):
            out[-1]["curve"] = dose_response(found, basis, basis.ends or (spans or {})[str(basis.of)])
    return out


def dose_response(found: JointResult, basis: CurveBasis, span: tuple[float, ...]) -> dict[str, Any]:
    """The pooled curve against its value at the middle knot, with its two bands, on the analysis scale.

    Returns: ``of`` (the column), ``reference``, (61,) ``x``, ``estimate``, ``se``, ``ci_lb``, ``ci_ub`` (pointwise),
        ``band_lb``, ``band_ub`` (simultaneous: at the level the whole curve is between them).
    """
    x = np.linspace(span[0], span[1], 61)
    reference = basis.knots[len(basis.knots) // 2] if basis.knots else float(x[30])
    apart = basis.columns(x) - basis.columns(np.array([reference]))
    y, se = apart @ found.beta, np.sqrt(np.einsum("ij,jk,ik->i", apart, found.vcov, apart))
    half, wide = found.critical * se, found.critical_together * se
    ends = {"x": x, "estimate": y, "se": se, "ci_lb": y - half, "ci_ub": y + half}
    ends |= {"band_lb": y - wide, "band_ub": y + wide}
    return {"of": str(basis.of), "reference": reference, **ends}


def pool_joint(
    rows: Sequence[JointRow],
    terms: Sequence[str],
    *,
    method: str = "REML",
    structure: Structure | Literal[""] = "",
    test: Test = "adhoc",
    level: float = 0.95,
    excluded: Mapping[str, str] | None = None,
) -> JointResult:
    """Pool coefficients together.

    Args:
        rows: one per site.
        method: FE, ML or REML; another estimator of tau2 has no likelihood and is REML here, with a note.
        structure: of Psi, as `STRUCTURES`; blank for ``un`` where the sites tell so many numbers, else ``prop``.
        test: ``z``; ``t`` the same on t; ``knha`` the covariance times s2, on t; ``adhoc`` never below the model.
        excluded: site to why it has no row.
    Raises: EstimateRefusal: no site, a coefficient that no site has, one row for two coefficients or more under a
        random-effects method; ParameterError: no such structure.

    >>> rows = [JointRow(label=str(i), yi=np.array([0.1 * i, 0.2]), cov=np.diag([0.01, 0.02])) for i in range(4)]
    >>> found = pool_joint(rows, ("a", "b"), method="FE", test="z")
    >>> found.beta.round(3), found.wald()[1]
    (array([0.15, 0.2 ]), 2)
    """
    if structure and structure not in STRUCTURES:
        raise ParameterError(f"structure must be one of {', '.join(STRUCTURES)}", given=repr(structure))
    p, lost, notes = len(terms), dict(excluded or {}), []
    used = []
    for row in rows:
        seen = np.isfinite(row.yi)
        inside = row.cov[np.ix_(seen, seen)]
        if not seen.any():
            lost.setdefault(row.label, "no estimate")
        elif not np.isfinite(inside).all() or np.linalg.eigvalsh(_correlation(inside)).min() < 1e-10:
            lost[row.label] = "the covariance of its terms is singular"
        else:
            used.append(row)
    absent = [term for j, term in enumerate(terms) if not any(np.isfinite(row.yi[j]) for row in used)]
    if absent or not used:
        why = by_reason(lost)
        raise EstimateRefusal("each coefficient must have an estimate at a site", given=why or ", ".join(absent))
    if method not in JOINTLY:
        notes.append(f"{method} has no likelihood of several coefficients: variances between sites are by REML.")
        method = "REML"
    fit = _Likelihood(used, p, method)
    if len(used) == 1:
        method, notes = "FE", ["One site: nothing is known of differences between sites."]
    psi, chosen, loglik = np.zeros((p, p)), structure, None
    if method != "FE":
        free = p * (p + 1) // 2
        chosen = structure or ("un" if fit.df >= _FOR_EACH * free else "prop")
        if not structure and chosen == "prop":
            notes.append(
                f"{len(used)} sites cannot tell {free} variances and covariances between them: they are taken to be as "
                "those within sites, up to a factor."
            )
        psi, loglik = fit.best(chosen)
    beta, vcov, s2 = fit.solved(psi)
    factor = {"knha": s2, "adhoc": max(1.0, s2)}.get(test, 1.0) if fit.df else 1.0
    shown: Test = test if fit.df else "z"
    return JointResult(
        terms=tuple(terms),
        labels=tuple(row.label for row in used),
        method=method,
        structure=chosen if method != "FE" else "",
        test=shown,
        level=level,
        beta=beta,
        vcov=vcov * factor,
        psi=psi,
        s2=s2,
        QE=fit.solved(np.zeros((p, p)))[2] * fit.df,
        df=fit.df,
        loglik=loglik,
        excluded=tuple(lost.items()),
        notes=tuple(notes),
    )


def _correlation(cov: Array) -> Array:
    spread = np.sqrt(np.diag(cov))
    if not (spread > 0).all():
        return np.full_like(cov, -1.0)
    return np.asarray(cov / np.outer(spread, spread))


class _Likelihood:
    """The likelihood of Psi, in units of the typical standard error of each coefficient.

    A coefficient that a site lacks has variance 1, no covariance and no weight: all sites are one stack of matrices.
    """

    def __init__(self, rows: Sequence[JointRow], p: int, method: str) -> None:
        self.method, self.p = method, p
        yi = np.array([row.yi for row in rows])
        self._seen = np.isfinite(yi)
        spread = np.sqrt([[row.cov[j, j] for j in range(p)] for row in rows])
        self.unit = np.exp(np.nanmean(np.log(spread), axis=0))
        self._pairs = self._seen[:, :, None] & self._seen[:, None, :]
        scaled = np.array([row.cov for row in rows]) / np.outer(self.unit, self.unit)
        self._v = np.where(self._pairs, scaled, np.eye(p))
        self._y = np.where(self._seen, yi / self.unit, 0.0)
        self.df = int(self._seen.sum()) - p
        self.typical = np.linalg.inv(self._weights(np.zeros((p, p)))[0].sum(axis=0)) * len(rows)

    def _weights(self, psi: Array) -> tuple[Array, float]:
        """(K, p, p) inverse covariances, and the sum of the covariances' log-determinants."""
        whole = self._v + np.where(self._pairs, psi, 0.0)
        return np.where(self._pairs, np.linalg.inv(whole), 0.0), float(np.linalg.slogdet(whole)[1].sum())

    def solved(self, psi: Array) -> tuple[Array, Array, float]:
        """beta, its model covariance and the residual mean square at a Psi in the coefficients' own units."""
        beta, cov, rss, *_ = self._at(psi / np.outer(self.unit, self.unit))
        return beta * self.unit, cov * np.outer(self.unit, self.unit), rss / self.df if self.df else 1.0

    def _at(self, psi: Array) -> tuple[Array, Array, float, float, float, Array, Array]:
        weights, spread = self._weights(psi)
        total = weights.sum(axis=0)
        cov = np.asarray(np.linalg.inv(total))
        beta = cov @ np.einsum("kij,kj->i", weights, self._y)
        residual = np.where(self._seen, self._y - beta, 0.0)
        pull = np.einsum("kij,kj->ki", weights, residual)
        rss = float((residual * pull).sum())
        return beta, cov, rss, spread, float(np.linalg.slogdet(total)[1]), weights, pull

    def value(self, psi: Array) -> tuple[float, Array]:
        """-2 log-likelihood up to a constant, and its (p, p) derivative by Psi."""
        _, cov, rss, spread, inside, weights, pull = self._at(psi)
        slope = weights.sum(axis=0) - pull.T @ pull
        if self.method == "REML":
            slope -= np.einsum("kij,jl,klm->im", weights, cov, weights)
        return rss + spread + (inside if self.method == "REML" else 0.0), slope

    def best(self, structure: str) -> tuple[Array, float]:
        """Psi at the maximum, in the coefficients' own units, and metafor's log-likelihood there."""
        from scipy.optimize import minimize

        shape = _shape(structure, self.p, self.typical, self.unit)

        def aim(at: Array) -> tuple[float, Array]:
            psi, back = shape(at)
            value, slope = self.value(psi)
            return value, back(slope)

        first, size = _start(structure, self.p)
        found = [
            minimize(
                aim, first * math.sqrt(start), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 500 + size}
            )
            for start in _STARTS
        ]
        best = min(found, key=lambda one: float(one.fun))
        psi = shape(np.asarray(best.x))[0]
        psi[np.abs(psi) < _TINY] = 0.0
        free = self.df if self.method == "REML" else self.df + self.p
        held = self._seen.sum(axis=0)  # of each coefficient
        logs = 2 * float(held @ np.log(self.unit))
        if self.method == "REML":  # metafor counts log|X'X| to the restricted likelihood
            logs += -2 * float(np.log(self.unit).sum()) - float(np.log(held).sum())
        loglik = -0.5 * (free * math.log(2 * math.pi) + float(best.fun) + logs)
        return psi * np.outer(self.unit, self.unit), loglik


def _start(structure: str, p: int) -> tuple[Array, int]:
    if structure == "un":
        return np.eye(p)[np.tril_indices(p)], p * (p + 1) // 2
    return (
        (np.ones(p), p) if structure == "diag" else (np.array([1.0, 0.0]), 2) if structure == "cs" else (np.ones(1), 1)
    )


_Shape = Callable[[Array], tuple[Array, Callable[[Array], Array]]]


def _shape(structure: str, p: int, typical: Array, unit: Array) -> _Shape:
    """Map from free parameters to Psi in units of `unit`, and from a derivative by Psi to one by the parameters.

    Standard deviations and Cholesky factors, never variances: a boundary at 0 is then an ordinary point.
    """
    low = np.tril_indices(p)

    def unstructured(at: Array) -> tuple[Array, Callable[[Array], Array]]:
        factor = np.zeros((p, p))
        factor[low] = at
        return factor @ factor.T, lambda slope: (2 * slope @ factor)[low]

    def diagonal(at: Array) -> tuple[Array, Callable[[Array], Array]]:
        return np.diag(at**2), lambda slope: 2 * at * np.diag(slope)

    # One variance means one in the coefficients' own units.
    of = np.outer(unit, unit) / float(np.exp(2 * np.log(unit).mean()))

    def alike(at: Array) -> tuple[Array, Callable[[Array], Array]]:
        least = -1 / (p - 1) if p > 1 else 0.0
        share = 1 / (1 + math.exp(-at[1]))
        rho = least + (1 - least) * share
        base = (rho + (1 - rho) * np.eye(p)) / of
        bend = (1 - np.eye(p)) / of * (1 - least) * share * (1 - share)
        return at[0] ** 2 * base, lambda slope: np.array(
            [2 * at[0] * float((slope * base).sum()), at[0] ** 2 * float((slope * bend).sum())]
        )

    def multiple(at: Array) -> tuple[Array, Callable[[Array], Array]]:
        return at[0] ** 2 * typical, lambda slope: np.array([2 * at[0] * float((slope * typical).sum())])

    return {"un": unstructured, "diag": diagonal, "cs": alike, "prop": multiple}[structure]
