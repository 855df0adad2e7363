r"""Attacks we tried on a release, at the site, before anyone else could.

Four figures, because the paper's own (an AUC below 0.55) is not enough: at w = 0.8 it says 0.53 while the nearest
released row is the person's own for one record in seven, and for two in three of the most unusual ones.

* **Membership**: does a record lie nearer to the release if the flow was fitted on it and its row released? The flow
  is fitted again without a held-back fifth, and members are told from the held-back by their distance to the nearest
  released row (paper, eq. 24–25, ties one half), in whitened and in standardised distance.
* **Own-row linkage**: how often the released row nearest to a record is the record's own, over all records and over
  the 5 % with the largest latent norms, whitened distance, against a chance of 1/n.
* **Twin probability** (eq. 22): that another person's record lies nearer to a record than its own released row.
* **Median rank** (eq. 26): how many persons stand between a record and its own released row.

**What is attacked.** Linkage, twins and rank are measured on the very rows that are about to leave, if they are given
(`release`). Only membership needs another fit; it is *one* fit per held-back part with the stopping point already
chosen, about half the time of the first (`FlowSettings.repeated`). One part is held back; where that leaves fewer than
400 records to tell members from, up to five disjoint parts are, and their areas are averaged.

**When it refuses.** Each figure has a limit from the plan. It *exceeds* when the estimate is above the limit. It is
*too uncertain* when the estimate is below, but the 95 % interval reaches further above the limit than the tolerance:
the records are then too few to tell a release that keeps the limit from one that clearly does not. Either refuses.

None of this is a guarantee: it says what these attacks could do, and a cleverer one may do more. The figures stay at
the site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.spatial import cKDTree

from shared.errors import AuditRefusal, ParameterError
from shared.flows import Bijection
from shared.randomness import Noise

__all__ = [
    "AuditLimits",
    "AuditReport",
    "Estimate",
    "Finding",
    "FitRelease",
    "Replica",
    "audit_pair",
    "findings",
    "gate",
    "membership_auc",
    "own_row_linkage",
    "rehearsal",
    "run_audit",
]

Array = NDArray[np.float64]

_EXTREME = 0.05
_ENOUGH_HELD_BACK = 400
_MOST_PARTS = 5
_MOST_RANKED = 4000
"""Records whose rank is computed: it costs n per record, and a median over 4,000 is known to a percent or two."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Replica:
    """A release before it is decoded, row by row beside the records it came from.

    Args:
        released: (n, d) encoded; row i comes from record i.
        latents: (n, d), f⁻¹ of the records, before clipping.
    """

    released: Array
    latents: Array


FitRelease = Callable[[Array, Noise], Replica]
"""Fit on these records and release them: (m, d) encoded records -> `Replica` of m rows."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval and the number of records it rests on."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What the attacks we tried achieved. Kept at the site.

    Attributes:
        n: records released.
        parts: how often the flow was fitted again for the membership attack.
        membership_whitened: AUC in whitened distance; 0.5 is chance.
        membership_standardised: AUC in standardised Euclidean distance, the paper's.
        linkage: share of records whose nearest released row is their own.
        extreme_linkage: the same among the 5 % with the largest latent norms.
        chance: 1/n.
        twin_probability: eq. 22, in [0, 1]; 0.5 if a release had nothing of the record.
        median_rank: eq. 26, records nearer than the own released row.
    """

    n: int
    parts: int
    membership_whitened: Estimate
    membership_standardised: Estimate
    linkage: Estimate
    extreme_linkage: Estimate
    chance: float
    twin_probability: float
    median_rank: float

    @property
    def membership(self) -> Estimate:
        """The attack that did better."""
        return max(self.membership_whitened, self.membership_standardised, key=lambda e: e.value)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON for the site's own files."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class AuditLimits:
    """Highest figures that pass, as the plan sets them (`Floors`), and how unsure a passing figure may be.

    Args:
        membership_auc: limit of the membership AUC.
        own_row_linkage: limit of the linkage rate over all records.
        extreme_linkage: limit among the most extreme 5 %.
        tolerance: how far above its limit the upper end of an interval may reach (AUC and linkage).
        extreme_tolerance: the same for extremes, which are few.
    """

    membership_auc: float = 0.55
    own_row_linkage: float = 0.05
    extreme_linkage: float = 0.20
    tolerance: float = 0.10
    extreme_tolerance: float = 0.25

    def __post_init__(self) -> None:
        if not 0.5 <= self.membership_auc <= 1:
            raise ParameterError("membership_auc must be in [0.5, 1]", given=repr(self.membership_auc))
        for name in ("own_row_linkage", "extreme_linkage"):
            if not 0 < getattr(self, name) <= 1:
                raise ParameterError(f"{name} must be in (0, 1]", given=repr(getattr(self, name)))
        for name in ("tolerance", "extreme_tolerance"):
            if not 0 < getattr(self, name) <= 1:
                raise ParameterError(f"{name} must be in (0, 1]", given=repr(getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure that does not pass: `exceeds` its limit, or is too `uncertain` to be held against it."""

    figure: str
    kind: str
    limit: float
    estimate: Estimate

    def __str__(self) -> str:
        e = self.estimate
        seen = f"{self.figure} {e.value:.3f} (95 % interval {e.low:.3f} to {e.high:.3f}, limit {self.limit:g})"
        return seen if self.kind == "exceeds" else f"{seen}: too few records to tell"


# -- the audit --------------------------------------------------------------------------------------------------
def run_audit(
    x: Array,
    fit_release: FitRelease,
    rng: Noise,
    *,
    release: Replica | None = None,
    integer_columns: Sequence[int] = (),
    held_back: float = 0.2,
    progress: Callable[[str, float, float | None], None] | None = None,
) -> AuditReport:
    """Try the attacks on a release of x.

    Args:
        x: (n, d) encoded records.
        fit_release: fits and releases a subset of them, as the release was made (`rehearsal`).
        rng: draws the split and what `fit_release` needs.
        release: the rows about to leave, before decoding and shuffling. None attacks a rehearsal on the members of
            the first part instead.
        integer_columns: codes plus U(0, 1); the attacker knows levels, so their floors are compared.
        held_back: share of records that the refitted flow does not see.
        progress: `(stage, share done, seconds left)`.
    Returns: the report. It does not judge: see `gate`.
    Raises: ParameterError, for shapes that do not fit; whatever `fit_release` refuses.
    """
    x = np.array(x, dtype=np.float64)
    if x.ndim != 2 or len(x) < 20:
        raise ParameterError("the records to audit must be a matrix of at least 20 rows", given=f"shape {x.shape}")
    if not 0.05 <= held_back <= 0.5:
        raise ParameterError("held_back must be in [0.05, 0.5]", given=repr(held_back))
    n = len(x)
    size = round(held_back * n)
    parts = int(np.clip(math.ceil(_ENOUGH_HELD_BACK / size), 1, min(_MOST_PARTS, n // size)))
    order = rng.generator.permutation(n)
    whitened, standardised = [], []
    attacked = None if release is None else (x, _checked(release, n, x.shape[1]))
    for part in range(parts):
        if progress is not None:
            progress("audit", part / (parts + 1), None)
        out = order[part * size : (part + 1) * size]
        members = np.setdiff1d(order, out)
        replica = _checked(fit_release(x[members], rng), len(members), x.shape[1])
        views = _Views(replica.released, x, integer_columns)
        for kind, into in (("whitened", whitened), ("standardised", standardised)):
            tree = cKDTree(views.of(replica.released, kind))
            near_members = tree.query(views.of(x[members], kind))[0]
            near_others = tree.query(views.of(x[out], kind))[0]
            into.append(membership_auc(near_members, near_others))
        attacked = attacked or (x[members], replica)
    assert attacked is not None
    if progress is not None:
        progress("audit", parts / (parts + 1), None)
    linkage, extremes, twins, rank = audit_pair(*attacked, rng, integer_columns=integer_columns)
    if progress is not None:
        progress("audit", 1.0, 0.0)
    return AuditReport(
        n=len(attacked[0]),
        parts=parts,
        membership_whitened=_averaged(whitened),
        membership_standardised=_averaged(standardised),
        linkage=linkage,
        extreme_linkage=extremes,
        chance=1 / len(attacked[0]),
        twin_probability=twins,
        median_rank=rank,
    )


def rehearsal(
    settings: Any, report: Any, *, w: float, radius: float, integer_columns: Sequence[int] = ()
) -> FitRelease:
    """What `run_audit` needs for a latent-noise release: the same fit, stopping point known, and the same noise.

    Args:
        settings: the `FlowSettings` of the release's own fit.
        report: its `FlowReport`.
        w: the release's weight.
        radius: its clipping radius.
        integer_columns: its dequantised columns.
    """
    from shared.mechanisms.latent_noise import LatentNoise
    from site_agent.models.flow import fit_flow

    def fit_release(records: Array, rng: Noise) -> Replica:
        flow: Bijection = fit_flow(records, settings.repeated(report), rng, integer_columns=integer_columns).flow
        released = LatentNoise(flow=flow, w=w, radius=radius).release(records, rng)
        return Replica(released=released, latents=flow.inverse(records))

    return fit_release


def audit_pair(
    x: Array, release: Replica, rng: Noise, *, integer_columns: Sequence[int] = ()
) -> tuple[Estimate, Estimate, float, float]:
    """Attacks that need no second fit: linkage, linkage of extremes, twin probability, median rank.

    Args:
        x: (n, d) encoded records.
        release: their released rows, in the same order.
        rng: chooses 4,000 records to rank where there are more.
        integer_columns: codes plus U(0, 1).
    """
    n = len(x)
    views = _Views(release.released, x, integer_columns)
    own = own_row_linkage(views.of(x, "whitened"), views.of(release.released, "whitened"))
    norms = np.linalg.norm(np.nan_to_num(release.latents), axis=1)
    extreme = np.argsort(-norms, kind="stable")[: max(1, round(_EXTREME * n))]

    real, made = views.of(x, "standardised"), views.of(release.released, "standardised")
    moved = np.linalg.norm(real - made, axis=1)
    chosen = np.arange(n) if n <= _MOST_RANKED else np.sort(rng.generator.permutation(n)[:_MOST_RANKED])
    ranks = np.empty(chosen.size)
    for start in range(0, chosen.size, 256):
        rows = chosen[start : start + 256]
        # |a - b|² = |a|² + |b|² - 2ab, by one matrix product.
        squared = (real[rows] ** 2).sum(1)[:, None] + (real**2).sum(1)[None, :] - 2 * real[rows] @ real.T
        nearer = squared < moved[rows, None] ** 2 * (1 - 1e-12)
        nearer[np.arange(rows.size), rows] = False
        ranks[start : start + 256] = nearer.sum(axis=1)
    return _share(own), _share(own[extreme]), float(ranks.mean() / (n - 1)), float(np.median(ranks))


def own_row_linkage(real: Array, released: Array) -> Array:
    """(n,): 1 where the nearest released row is the record's own, 1/k where k rows are equally near, else 0.

    >>> own_row_linkage(np.array([[0.0], [1.0]]), np.array([[0.1], [0.2]])).tolist()
    [1.0, 1.0]
    """
    tree = cKDTree(released)
    nearest = tree.query(real)[0]
    own = np.linalg.norm(real - released, axis=1)
    slack = 1e-9 * (1 + nearest)
    hit = own <= nearest + slack
    out = np.zeros(len(real))
    if hit.any():
        out[hit] = 1 / tree.query_ball_point(real[hit], own[hit] + slack[hit], return_length=True)
    return out


def membership_auc(members: Array, others: Array) -> Estimate:
    """P(member nearer than other) with ties one half, and DeLong's 95 % interval.

    Args:
        members: distances to the nearest released row of records that were released.
        others: the same of records that were not.
    Source: latent-noise-injection, eq. 25; DeLong, DeLong & Clarke-Pearson 1988.

    >>> membership_auc(np.array([1.0, 2.0]), np.array([2.0, 3.0])).value
    0.875
    """
    members, others = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    sorted_members, sorted_others = np.sort(members), np.sort(others)
    # Share of others farther than each member (ties one half), and of members nearer than each other.
    farther = 1 - 0.5 * sum(np.searchsorted(sorted_others, members, side) for side in ("left", "right")) / others.size
    nearer = 0.5 * sum(np.searchsorted(sorted_members, others, side) for side in ("left", "right")) / members.size
    value = float(farther.mean())
    variance = sum(float(v.var(ddof=1)) / v.size if v.size > 1 else 0.25 for v in (farther, nearer))
    # A perfect separation has no observed variance; the interval keeps at least what one record could change.
    reach = 1.959964 * math.sqrt(variance) + 1 / min(members.size, others.size) * (variance == 0)
    low, high = max(0.0, value - reach), min(1.0, value + reach)
    return Estimate(value=value, low=low, high=high, n=int(others.size))


# -- the gate ---------------------------------------------------------------------------------------------------
def findings(report: AuditReport, limits: AuditLimits) -> list[Finding]:
    """Which figures do not pass; an empty list if all do."""
    figures = (
        ("membership AUC", report.membership, limits.membership_auc, limits.tolerance),
        ("own-row linkage", report.linkage, limits.own_row_linkage, limits.tolerance),
        ("own-row linkage of extremes", report.extreme_linkage, limits.extreme_linkage, limits.extreme_tolerance),
    )
    out = []
    for figure, estimate, limit, tolerance in figures:
        if estimate.value > limit:
            out.append(Finding(figure=figure, kind="exceeds", limit=limit, estimate=estimate))
        elif estimate.high > limit + tolerance:
            out.append(Finding(figure=figure, kind="uncertain", limit=limit, estimate=estimate))
    return out


def gate(report: AuditReport, limits: AuditLimits) -> None:
    """Let the release pass, or refuse it.

    Raises: AuditRefusal, naming every figure that exceeds its limit or is too uncertain.
    """
    found = findings(report, limits)
    if not found:
        return
    if any(finding.kind == "exceeds" for finding in found):
        step = "Ask the study lead for a lower w, or for limits that admit it; the draw is not repeated."
    else:
        step = "Wait for more records, or ask the study lead for limits that fit a site of this size."
    raise AuditRefusal(
        "the attacks we tried must stay within the plan's limits",
        given="; ".join(str(finding) for finding in found),
        next_step=step,
    )


# -- parts ------------------------------------------------------------------------------------------------------
class _Views:
    """Rows as an attacker sees them: levels without fractions, in a distance that the release alone determines."""

    def __init__(self, released: Array, x: Array, integer_columns: Sequence[int]) -> None:
        self.integers = [int(j) for j in integer_columns]
        # Codes outside the known levels are decoded to the nearest one.
        self.top = {j: max(0.0, float(np.floor(x[:, j].max()))) for j in self.integers}
        made = self._levels(released)
        self.centre = made.mean(axis=0)
        spread = made.std(axis=0)
        # A column that the release holds constant tells an attacker nothing and has no unit: it is left out.
        self.kept = np.flatnonzero(spread > 1e-12 * (1 + np.abs(self.centre)))
        if not self.kept.size:
            raise ParameterError("a release to audit must have a column that varies")
        spread = spread[self.kept]
        centred = (made[:, self.kept] - self.centre[self.kept]) / spread
        correlation = centred.T @ centred / len(made) + 1e-6 * np.eye(self.kept.size)
        self.maps = {
            "standardised": np.diag(1 / spread),
            "whitened": np.linalg.inv(np.linalg.cholesky(correlation)) @ np.diag(1 / spread),
        }

    def _levels(self, x: Array) -> Array:
        x = np.array(x, dtype=np.float64)
        for j in self.integers:
            x[:, j] = np.clip(np.floor(x[:, j]), 0.0, self.top[j])
        return x

    def of(self, x: Array, kind: str) -> Array:
        return (self._levels(x)[:, self.kept] - self.centre[self.kept]) @ self.maps[kind].T


def _checked(replica: Replica, n: int, d: int) -> Replica:
    for name in ("released", "latents"):
        if np.shape(getattr(replica, name)) != (n, d):
            raise ParameterError(f"{name} must have one row per record", given=f"shape {np.shape(getattr(replica, name))}")
    return replica


def _averaged(areas: Sequence[Estimate]) -> Estimate:
    """Mean over disjoint held-back parts. They share most members, so the interval is an approximation."""
    value = float(np.mean([a.value for a in areas]))
    reach = math.sqrt(sum(((a.high - a.low) / 2) ** 2 for a in areas)) / len(areas)
    return Estimate(
        value=value, low=max(0.0, value - reach), high=min(1.0, value + reach), n=sum(a.n for a in areas)
    )


def _share(hits: Array) -> Estimate:
    """A share with its Clopper-Pearson interval; ties count in parts."""
    n, k = hits.size, float(hits.sum())
    low = 0.0 if k <= 0 else float(stats.beta.ppf(0.025, k, n - k + 1))
    high = 1.0 if k >= n else float(special.betaincinv(k + 1, n - k, 0.975))
    return Estimate(value=k / n, low=low, high=high, n=n)
