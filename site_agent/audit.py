"""Attacks we tried on a release, at the site, before anyone is asked to approve it.

An audit is evidence, never a guarantee: it says how well these attacks did, with intervals, and nothing about better
ones. Its values are computed from records, stay at the site, and are never on a receipt; that a release passed is
visible by its delivery and is listed there as not covered.

The paper's rule alone is not enough. At w = 0.8, five columns and 2,500 records its membership attack scores an AUC of
0.52 and would pass, while the nearest released row is the record's own for one record in seven. So both are gates.

======================  ========================================================================================
membership AUC          score min_j |x - x̃_j|; records the flow was fitted on against records held back
                        (eq. 24-25; ties count one half), in whitened and in standardised distance
own-row linkage         share of records whose nearest released row is their own; also among the 5 % most extreme
twin probability        chance that another record is nearer than one's own released row (eq. 22)
median rank             other records nearer than one's own released row, the median (eq. 26)
======================  ========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import solve_triangular
from scipy.spatial import cKDTree

from shared.dictionary import NUMERIC
from shared.encoding import Encoder
from shared.errors import AuditRefusal, ParameterError

__all__ = ["AuditLimits", "AuditReport", "Rate", "gate", "linkage", "membership_auc", "run_audit", "seen"]

Array = NDArray[np.float64]

EXTREME_SHARE = 0.05
"""The records with the largest latent norms that are looked at separately."""
WIDEST_HALF_WIDTH = 0.20
"""An AUC known no better than ±0.20 cannot tell a leak from chance; about 25 records must be held back."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A measured rate with its 95 % interval and what chance alone would give."""

    value: float
    low: float
    high: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class AuditLimits:
    """Highest rates that pass the gate: the plan's floors, tightened by the site."""

    membership_auc: float
    own_row_linkage: float
    extreme_linkage: float


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What the attacks achieved on one release.

    Attributes:
        membership: AUC in whitened distance.
        membership_plain: AUC in standardised Euclidean distance, the paper's.
        own_row: share of records linked to their own row.
        extreme: the same among the records with the 5 % largest latent norms.
        twin_probability: eq. 22, over all pairs.
        median_rank: eq. 26.
        n: records in the release; n_fitted, n_held_back: of the membership attack.
    """

    membership: Rate
    membership_plain: Rate
    own_row: Rate
    extreme: Rate
    twin_probability: float
    median_rank: float
    n: int
    n_fitted: int
    n_held_back: int

    def to_canonical(self) -> dict[str, Any]:
        """Plain values for a JSON file that stays at the site."""
        return asdict(self)

    @classmethod
    def from_canonical(cls, given: Mapping[str, Any]) -> AuditReport:
        """Read what `to_canonical` wrote."""
        rates = {name: Rate(**value) for name, value in given.items() if isinstance(value, Mapping)}
        return cls(**{**given, **rates})

    def sentences(self) -> tuple[str, ...]:
        """The report for a steward, in words."""
        m, own, extreme = self.membership, self.own_row, self.extreme
        return (
            f"Attacks we tried on {self.n:,} released rows; others may do better.",
            f"Telling who was in the training data: AUC {m.value:.2f} (95 % interval {m.low:.2f} to {m.high:.2f}); "
            "0.50 is guessing.",
            f"Someone who holds a record finds its own row for {own.value:.1%} of records "
            f"({own.low:.1%} to {own.high:.1%}; guessing finds {own.chance:.2%}).",
            f"Among the {EXTREME_SHARE:.0%} most unusual records: {extreme.value:.0%} "
            f"({extreme.low:.0%} to {extreme.high:.0%}).",
            f"For the median record {self.median_rank:,.0f} other records are nearer than its own released row; "
            f"for a random pair the chance is {self.twin_probability:.1%}.",
        )


def run_audit(
    *,
    x: Array,
    released: Array,
    latents: Array,
    fitted_on: Array,
    held_back: Array,
    probe: Array,
    view: Callable[[Array], Array] | None = None,
) -> AuditReport:
    """Attack a release.

    Args:
        x: (n, d) encoded records of the release.
        released: (n, d) its rows before shuffling: row i belongs to record i.
        latents: (n, d) f⁻¹(x), for finding the most extreme records.
        fitted_on: (n1, d) records that a second flow was fitted on, for the membership attack.
        held_back: (n0, d) records that it never saw.
        probe: (n1, d) a release of `fitted_on` by that flow.
        view: what an attacker sees of encoded rows, (n, d) to (n, k); `seen(encoder)`. None compares encoded rows,
            and then the fractions and fills that an encoder draws at random link rows that nobody could link.
    Raises: ParameterError, if shapes disagree.
    """
    d = x.shape[1]
    shapes_fit = released.shape == x.shape == latents.shape and probe.shape == fitted_on.shape
    if not shapes_fit or held_back.shape[1] != d or len(held_back) < 2 or len(x) < 2:
        raise ParameterError("records, their release and the held-back records must fit together", given=f"d = {d}")
    if view is not None:
        x, released, fitted_on, held_back, probe = (view(rows) for rows in (x, released, fitted_on, held_back, probe))
    whiten, standardise = _whitening(x), _standardising(x)
    flags = linkage(whiten(x), whiten(released))
    norms = np.linalg.norm(latents, axis=1)
    extreme = norms >= np.quantile(norms, 1 - EXTREME_SHARE)
    twin, rank = _twins(whiten(x), whiten(released))
    return AuditReport(
        membership=membership_auc(whiten(fitted_on), whiten(held_back), whiten(probe)),
        membership_plain=membership_auc(standardise(fitted_on), standardise(held_back), standardise(probe)),
        own_row=_rate(flags, chance=1 / len(x)),
        extreme=_rate(flags[extreme], chance=1 / len(x)),
        twin_probability=twin,
        median_rank=rank,
        n=len(x),
        n_fitted=len(fitted_on),
        n_held_back=len(held_back),
    )


def seen(encoder: Encoder) -> Callable[[Array], Array]:
    """What an attacker sees of encoded rows: decoded values, no fractions of levels, no fills of missing values.

    Numeric columns become their values, a missing one the middle of its bounds and an indicator; ordered levels and
    events become their place, nominal levels an indicator for each but the first.

    >>> from shared.dictionary import Column, Dictionary
    >>> from shared.encoding import Encoder
    >>> columns = (Column(name="cvd", kind="event"), Column(name="visits", kind="integer", lower=2, upper=9))
    >>> seen(Encoder(dictionary=Dictionary(name="mini", version=1, columns=columns)))(np.array([[1.7, 3.2]]))
    array([[1., 5.]])
    """

    def view(rows: Array) -> Array:
        table = encoder.decode(rows)
        out: list[Array] = []
        for column in encoder.dictionary.released:
            values = table[column.name]
            if column.kind in NUMERIC:
                number = values.to_numpy(dtype=np.float64, na_value=np.nan)
                absent = np.isnan(number)
                out.append(np.where(absent, sum(column.span) / 2, number))
                if column.missing == "level":
                    out.append(absent.astype(np.float64))
                continue
            place = np.full(len(values), float(len(column.levels)))
            for k, level in enumerate(column.levels):
                place[(values == level).fillna(False).to_numpy(dtype=bool)] = k
            if column.kind == "nominal":
                out += [(place == k).astype(np.float64) for k in range(1, len(column.levels) + 1)]
            else:
                out.append(place)
        return np.column_stack(out)

    return view


def gate(report: AuditReport, limits: AuditLimits) -> None:
    """Refuse a release on which an attack does better than the limits allow, or on which too little can be told.

    The point estimate is held against the limit: with few records the interval is wide, and a rule on its upper end
    would refuse every small hospital. So that wide intervals do not pass unseen, an AUC known no better than
    ±0.20 is refused as "too small to tell".
    Raises: AuditRefusal.
    """
    half_width = (report.membership.high - report.membership.low) / 2
    if half_width > WIDEST_HALF_WIDTH:
        raise AuditRefusal(
            f"the membership attack must be known to ±{WIDEST_HALF_WIDTH:.2f}",
            given=f"±{half_width:.2f} from {report.n_held_back} held-back records: too small to tell",
            next_step="Wait for more persons (about 125 in the table).",
        )
    measured = {
        "membership AUC": (report.membership.value, limits.membership_auc),
        "membership AUC (standardised distance)": (report.membership_plain.value, limits.membership_auc),
        "own-row linkage": (report.own_row.value, limits.own_row_linkage),
        "own-row linkage of the most extreme 5 %": (report.extreme.value, limits.extreme_linkage),
    }
    beyond = {name: pair for name, pair in measured.items() if pair[0] > pair[1]}
    if beyond:
        name, (value, limit) = max(beyond.items(), key=lambda item: item[1][0] - item[1][1])
        raise AuditRefusal(
            f"{name} must be at most {limit:.2f}",
            given=_beyond(value, limit) + (f" ({len(beyond)} limits are exceeded)" if len(beyond) > 1 else ""),
            next_step="Ask the study lead for a smaller w.",
        )


def _beyond(value: float, limit: float) -> str:
    """The value with as many digits as show that it is beyond the limit.

    >>> _beyond(0.71, 0.60), _beyond(0.6004, 0.60)
    ('0.71', '0.6004')
    """
    return next(text for k in range(2, 18) if float(text := f"{value:.{k}f}") > limit)


def membership_auc(inside: Array, outside: Array, release: Array) -> Rate:
    """AUC of "the nearest released row is nearer for records the flow was fitted on", ties one half.

    Args:
        inside: (n1, d) records the flow was fitted on; outside: (n0, d) records held back; release: (n1, d).
    Returns: the AUC with DeLong's interval; chance is 0.5.
    Source: latent-noise-injection, eq. 24-25; DeLong, DeLong and Clarke-Pearson (1988).

    >>> rng = np.random.default_rng(1)
    >>> a, b = rng.normal(size=(300, 2)), rng.normal(size=(100, 2))
    >>> membership_auc(a, b, a).value
    1.0
    """
    tree = cKDTree(release)
    near_in, near_out = tree.query(inside)[0], tree.query(outside)[0]
    n1, n0 = len(near_in), len(near_out)
    ranks = stats.rankdata(np.concatenate([near_in, near_out]))
    # Share of held-back records farther away, for each inside record, and the reverse (ties one half).
    farther = 1 - (ranks[:n1] - stats.rankdata(near_in)) / n0
    nearer = (ranks[n1:] - stats.rankdata(near_out)) / n1
    auc = float(farther.mean())
    # With every pair ordered alike DeLong's variance is 0; one discordant pair is the least that can be told apart.
    variance = float(farther.var(ddof=1) / n1 + nearer.var(ddof=1) / n0)
    half = stats.norm.ppf(0.975) * math.sqrt(max(variance, 1 / (12 * n1 * n0)))
    return Rate(value=auc, low=max(0.0, auc - half), high=min(1.0, auc + half), chance=0.5)


def linkage(x: Array, released: Array) -> NDArray[np.bool_]:
    """For each record: is its nearest released row its own? Ties count for the attacker.

    Args:
        x, released: (n, d), row i of one belonging to row i of the other.
    """
    nearest = cKDTree(released).query(x)[0]
    own = np.linalg.norm(x - released, axis=1)
    return np.asarray(own <= nearest * (1 + 1e-12))


def _twins(x: Array, released: Array) -> tuple[float, float]:
    """Twin probability (eq. 22) and median rank (eq. 26)."""
    own = np.linalg.norm(x - released, axis=1)
    closer = cKDTree(x).query_ball_point(x, np.nextafter(own, 0), return_length=True) - 1  # not oneself
    closer = np.maximum(closer, 0)
    return float(closer.mean() / (len(x) - 1)), float(np.median(closer))


def _rate(flags: NDArray[np.bool_], *, chance: float) -> Rate:
    """A share with its Clopper-Pearson interval."""
    n, k = len(flags), int(flags.sum())
    interval = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    return Rate(value=k / n, low=float(interval.low), high=float(interval.high), chance=chance)


def _whitening(x: Array) -> Any:
    """Map to coordinates in which x has unit covariance; a ridge keeps a constant column harmless."""
    mean = x.mean(axis=0)
    covariance = np.atleast_2d(np.cov(x, rowvar=False, bias=True))
    scale = np.where(np.diag(covariance) > 0, np.diag(covariance), 1.0)
    factor = np.linalg.cholesky(covariance + np.diag(1e-9 * scale))
    return lambda values: solve_triangular(factor, (values - mean).T, lower=True).T


def _standardising(x: Array) -> Any:
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return lambda values: (values - mean) / scale
