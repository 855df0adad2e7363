r"""Predicted distance of an estimate from released rows to the one on the records, without the records.

Nobody outside the site can look the distance up; but a release can be released again. Its rows are taken for records,
put through the same flow with the same noise, and the question is asked again (`reperturbed`): what changes from one to
the next is what changed from the records to the first. The first time, though, the flow's misfit took 1 − a of what the
records had beyond the flow, with a the share of itself that an influence keeps; the second time only 1 − a of the a
that was left. So the mean of the change is divided by a. The share is seen in the rows themselves: it is the
correlation of a row's influence with that of the same row released again
(`coordinator.pooling.intervals.kept_shares`). So it is lower than the order of the question says where the flow draws
badly. (It would be near 1 where a column that matters is carried over; only the benchmark has such a flow, because one
of posture ``local`` never leaves its site.) That needs the flow, and a release of it.

Where there is no flow, the noise's own part of the variance is what is known (`coordinator.pooling.intervals`), and
the flow's bias as far as it was measured (`gap`, `pooled_gap`).

A number is told only where it was seen to hold: `WITHIN` makes nine distances of ten lie within what is said, over the
half of the hard worlds that settings are chosen by; docs/zoo.md says how many do over the other half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from coordinator.pooling.intervals import kept_shares
from shared.errors import ParameterError, PlanChanged, Refusal
from shared.estimands.answer import Estimand, Estimate, Scale, estimate
from shared.estimands.effects import SCALES

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.pooling.pool import PooledResult
    from shared.base.randomness import Noise
    from shared.flows.chain import Composed
    from shared.mechanisms.latent_noise.noise import LatentNoise
    from shared.plans.encoding import Encoder
    from shared.plans.federated import FederatedFlow
    from shared.plans.plan import StudyPlan

__all__ = ["Gap", "gap", "pooled_gap", "released_flow", "reperturbed"]

WITHIN = 1.9
"""Root mean squares within which nine distances of ten lie: 1.645 if noise were all of it and normal."""
_FIRST = 20261122


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Predicted distance of an estimate from released rows to the one from the records, on the analysis scale.

    Args:
        bias: mean change by a draw; 0 where it is not known.
        sd: standard deviation of the rest.
        how: method of its computation, in words.
    """

    bias: float
    sd: float
    how: str

    @property
    def rms(self) -> float:
        """Root mean square of the distance."""
        return math.hypot(self.bias, self.sd)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the distance in nine cases of ten."""
        return 0.0, WITHIN * self.rms

    def sentence(self, *, scale: Scale = "identity") -> str:
        """Sentence for a reader of an answer. The direction of the gap is unknown, and the sentence gives none.

        Args:
            scale: of the analysis; a distance of logarithms is told as a factor.

        >>> Gap(bias=0.0, sd=0.05, how="the noise alone").sentence().partition(" lies ")[2]
        'within 0.095 of this one in nine cases of ten; by the noise alone.'
        >>> Gap(bias=0.0, sd=0.05, how="the noise alone").sentence(scale="log").partition(" lies ")[2]
        'within a factor of 1.100 of this one, up or down, in nine cases of ten; by the noise alone.'
        """
        far = self.interval[1]
        if scale == "log":
            where = f"within a factor of {math.exp(far):.3f} of this one, up or down,"
        else:
            where = f"within {far:.2g}{f' (on the {SCALES[scale]} scale)' if SCALES[scale] else ''} of this one"
        return f"The estimate from the records themselves lies {where} in nine cases of ten; by {self.how}."


def gap(row: Estimate, *, fitted_on: float | None = None) -> Gap | None:
    """The gap of one site's estimate by what is known without the flow; None for a row without a number of its own.

    The records' estimate and the released one share what the patients brought. They differ by the noise of the release
    (E in `coordinator.pooling.intervals`), and where the flow was fitted on other persons by its error against theirs,
    (1 − a)(F − S).

    Args:
        row: with the variance of a release in it (`with_release_variance`).
        fitted_on: persons, as a multiple of the rows, that the flow was fitted on where these are others (``holdout``).

    >>> row = Estimate(study="s", site="a", wave=1, term="x", yi=0.2, vi_sampling=0.01, vi_privacy=0.0036,
    ...                vi_naive=0.01, n=500)
    >>> round(gap(row).sd, 3), round(gap(row, fitted_on=1.0).sd, 3)
    (0.06, 0.066)
    """
    if row.yi is None or row.vi_naive is None or row.vi_naive <= 0:
        return None
    variance, own = row.vi_privacy, row.vi_naive * row.sandwich_ratio
    if fitted_on is not None:
        weight = math.sqrt(max(0.0, 1 - variance / own))
        variance += (1 - weight) ** 2 * own * (1 + 1 / fitted_on)
    return Gap(bias=row.attenuation * abs(row.yi), sd=math.sqrt(variance), how="linearisation of the release's noise")


def released_flow(
    plan: StudyPlan, encoder: Encoder, site: str, trained: FederatedFlow | None = None
) -> Composed | None:
    """The flow that a site's rows were drawn through, if it is public; else None.

    Under posture ``public`` it follows from the plan; where the plan names a flow that several sites trained, from
    `trained` and the site's public start. Other flows stay at their site.

    Raises: PlanChanged, if `trained` is not the flow that the plan names.
    """
    from shared.flows.affine import AffineAutoregressiveFlow
    from shared.flows.chain import Composed
    from shared.plans.public_start import public_start

    if not plan.release.draws_rows:
        return None
    if plan.posture == "public":
        return public_start(encoder, plan.reference)
    if not plan.flow or trained is None or plan.posture == "local":
        return None  # under `local` it is where a site may begin, and what it fits stays there
    if trained.name != plan.flow or trained.dictionary_hash != encoder.dictionary.hash:
        raise PlanChanged(
            "the trained flow must be the one that the plan names",
            given=trained.name[:26],
            next_step="Give the flow of that digest.",
        )
    start = public_start(encoder, trained.references(site))
    affine = AffineAutoregressiveFlow(mean=np.zeros(encoder.d), scale=np.eye(encoder.d), layers=trained.layers())
    return Composed(first=affine, second=start.second)


def pooled_gap(
    result: PooledResult, fitted_on: Mapping[str, float | None], known: Mapping[str, Gap] | None = None
) -> Gap | None:
    """The gap of a pooled estimate: noises of the sites are independent, and a bias of their flows has one sign.

    Args:
        fitted_on: site to what `gap` takes; a site that is not in it has rows of its own that were not released so.
        known: site to the gap that releasing its rows again gave (`reperturbed`).
    Returns: None where no row is of such a release.
    """
    variance = bias = 0.0
    how: dict[str, None] = {}
    for row, weight in zip(result.estimates, result.weights, strict=True):
        one = (known or {}).get(row.site)
        if one is None and row.site in fitted_on:
            one = gap(row, fitted_on=fitted_on[row.site])
        if one is not None:
            how[one.how] = None
            variance += (weight / 100 * one.sd) ** 2
            bias += weight / 100 * one.bias
    return Gap(bias=bias, sd=math.sqrt(variance), how=" and ".join(how)) if how else None


def reperturbed(
    mechanism: LatentNoise,
    encoder: Encoder,
    table: pd.DataFrame,
    question: Estimand,
    *,
    levels: Mapping[str, Sequence[Any]] | None = None,
    times: int = 8,
    number: int = _FIRST,
) -> dict[str, Gap]:
    """The gap of every term of a question, from released rows and the released flow alone.

    Args:
        mechanism: the release's own flow, w, R and what else it does.
        encoder: of the study.
        table: (n, …) rows as they were released.
        times: number of times that they are released again; more than one.
        number: of the draws, which protect nobody: the rows are public where they are.
    Returns: term to its gap; terms that too few of the draws can answer are left out.
    Raises: ParameterError (times below 2); what `estimate` raises of the table itself.
    """
    if times < 2:
        raise ParameterError("rows must be released again at least twice", given=f"{times}")
    rng = cast("Noise", _PublicNoise(np.random.default_rng(number)))
    x = encoder.encode(encoder.dictionary.check(_with_person(table, encoder)), rng)
    origin: dict[str, Any] = {"study": "", "site": "", "wave": 1, "levels": levels}
    first = {row.term: row for row in estimate(table, question, **origin) if row.yi is not None}
    found: dict[str, list[float]] = {term: [] for term in first}
    shares: dict[str, list[float]] = {}
    looked = 0
    for _ in range(times):
        rows = encoder.decode(mechanism.release(x, rng))
        try:
            redrawn = estimate(rows, question, **origin)
        except Refusal:
            continue
        for row in redrawn:
            one = first.get(row.term)
            if row.yi is not None and one is not None and one.yi is not None:
                found[row.term].append(row.yi - one.yi)
        if mechanism.w and looked < _SHARES:
            looked += 1
            for term, share in kept_shares(table, rows, question, levels=levels).items():
                shares.setdefault(term, []).append(share)
    out = {}
    for term, moved in found.items():
        if len(moved) < max(2, times // 2):
            continue
        seen, own = float(np.var(moved, ddof=1)), first[term].vi_sampling
        known = shares.get(term) or shares.get("")
        weight = max(0.0, float(np.mean(known))) if known else mechanism.w
        # Two figures for one variance, that of the draws and that of the linearisation, are steadier than either.
        variance = seen if own is None or not known else (seen + (1 - weight * weight) * own) / 2
        # The mean of the change is not the flow's misfit alone: few draws have a mean of their own, and a flow that
        # fits takes back 1 − a of what the first release's noise had added.
        chance = variance * (1 / len(moved) + (1 - weight) ** 2)
        bias = math.sqrt(max(0.0, float(np.mean(moved)) ** 2 - chance)) / weight if weight > _LEAST_KEPT else 0.0
        out[term] = Gap(bias=bias, sd=math.sqrt(variance), how=f"releasing its rows again {len(moved)} times")
    return out


_SHARES = 2
"""Releases in which the share that an influence keeps is looked for: over all rows it hardly differs between two."""
_LEAST_KEPT = 0.05
"""Below this the rows have forgotten what the records had beyond the flow, and its misfit cannot be seen in them."""


def _with_person(table: pd.DataFrame, encoder: Encoder) -> pd.DataFrame:
    person = encoder.dictionary.person
    return table if person is None else table.assign(**{person: [str(k) for k in range(len(table))]})


class _PublicNoise:
    """Noise on rows that are public: repeatable and in floating point, hence good for this and for no record."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def lattice_gaussian_steps(self, sigma: float, shape: int | tuple[int, ...], grid: float) -> Any:
        return np.rint(self.generator.normal(0.0, sigma / grid, shape)).astype(np.int64)
