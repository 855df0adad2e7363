"""Pooled coefficients of an opened sum, computed with the pilots that it was taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.pooling.secure_sum.answer import SummedAnswer
from coordinator.pooling.secure_sum.looks import pilot_places
from coordinator.pooling.secure_sum.summed import summed
from coordinator.pooling.secure_sum.vectors import summed_vector
from shared.errors import EstimateRefusal, IntegrityRefusal
from shared.mechanisms.secure_sum.influences import SumLook
from shared.mechanisms.secure_sum.sent_look import AnySentLook, SentLook, SentVectorLook, sent
from shared.mechanisms.secure_sum.vectors import VectorLook

if TYPE_CHECKING:
    import pandas as pd

    from shared.mechanisms.secure_sum.opened import OpenedSum
    from shared.plans.plan import StudyPlan

__all__ = ["read_sum"]

_CLOSE = 1e-5
"""Relative distance of two figures that another computer's arithmetic may make of the same pilots."""
_KNOWN, _NOISY = 0.2, 4.0
"""Largest standard error of a start, per standard deviation of its covariate, and above how much noise it counts: the
noisiest pilot's, in the variance of its patients. What one step leaves grows with the square of how far the start is
off; where there is no more noise, sites differ or patients are few, and the records' own answer is as unsure."""
_MOST_CLAIMED = 3.0
"""Largest information that the sites' models may expect of a coefficient, in events times the variance of its
covariate: models of noise that has got out of hand expect four to twenty thousand times that (docs/decisions/0046)."""
_NEAR = 1e-2
"""Distance of two points, in the reach, at which either is near enough: the steps to it end before they are at it."""


def read_sum(
    plan: StudyPlan, opened: OpenedSum, tables: Mapping[int, tuple[pd.DataFrame, int]], *, level: float = 0.95
) -> tuple[SummedAnswer | EstimateRefusal, ...]:
    """The pooled coefficients in the order of the plan's (`SecureSumPlan.coefficients`), each per its unit there.

    Those of its variants follow, each with what it lacks where too few sites' releases expect anything of it. So is a
    coefficient refused of which noise lets the pilots know so little that one step from their pooled estimate may be
    far off, or of which their models expect the records to tell more than so many events can.

    Args:
        plan: under which the sum was opened.
        tables: of every pilot that the opened sum names, by the place of its site, each with its number of records.
        level: coverage of the intervals.
    Raises: IntegrityRefusal (not a sum of this plan, or looks that these pilots do not give), SignatureRefusal, and
        EstimateRefusal and SchemaRefusal where the pilots' own answer is refused.
    """
    opened.verify(plan)
    if tables.keys() != opened.pilots.keys():
        raise IntegrityRefusal("a sum must be read from the pilots that it was taken over", given="others")
    places, sites = pilot_places(plan, tables), opened.survivors.sites
    found = places.looks({site: (part.events, part.charges) for site, part in opened.parts.items()})
    looks = {}
    for site in sites:
        had = opened.parts[site].look
        looks[site] = _as_sent(found[site], had)
        if not _same(sent(looks[site], places.start, had.level), had):
            raise IntegrityRefusal("a look must be the one that the pilots give", given=f"another of site {site}")
        if not _about_its_point(looks[site], centred=plan.release.held == "centred"):  # type: ignore[attr-defined]
            raise IntegrityRefusal("records must be drawn in about the point that the pilots give", given="another")
    _, between = places.weighed(looks)
    names = tuple(plan.release.members)  # type: ignore[attr-defined]
    shown: Any = {"sites": [names[site] for site in sites], "level": level}
    total, single = np.array(opened.total), [one for one in looks.values() if isinstance(one, SumLook)]
    if single:
        answers: Sequence[SummedAnswer | EstimateRefusal] = [
            summed(single, total, opened.sigma, opened.start[0], between[0], **shown)
        ]
    else:
        several = [one for one in looks.values() if isinstance(one, VectorLook)]
        answers = summed_vector(several, total, opened.sigma, opened.start, between, **shown)
    expected = np.array([np.atleast_1d(look.precision) for look in looks.values()])
    possible = [max(opened.parts[site].events, 1.0) * np.square(places.deviations[site]) for site in sites]
    claimed = expected.sum(axis=0) / np.sum(possible, axis=0)
    noisiest = np.array([np.max(one.more * own) for one, own in zip(between, expected.T, strict=True)])
    errors = np.where(noisiest > _NOISY, places.start_errors(), 0.0)
    return tuple(map(_believed, answers, errors, claimed))


def _believed(answer: SummedAnswer | EstimateRefusal, error: float, claimed: float) -> SummedAnswer | EstimateRefusal:
    """The answer, or why one step from the pilots cannot be believed.

    Args:
        error: standard error of the start, per standard deviation of the covariate.
        claimed: information that the sites' models expect of the records, in what so many events can give.
    """
    if isinstance(answer, EstimateRefusal):
        return answer
    wrong = []
    if error > _KNOWN:
        wrong.append(f"a standard error of {error:.2g} (at most {_KNOWN:g}) per standard deviation of its covariate")
    if claimed > _MOST_CLAIMED:
        wrong.append(f"models that expect {claimed:.2g} times (at most {_MOST_CLAIMED:g}) what their events can tell")
    if not wrong:
        return answer
    return EstimateRefusal(
        "the pilots must know the effect that a sum starts from",
        given=", and ".join(wrong),
        next_step="The pilots' own answer has an interval; of more patients, or at a larger ε, pilots know more.",
    )


def _as_sent(look: SumLook | VectorLook, had: AnySentLook) -> SumLook | VectorLook:
    """`look` with what was sent that rests on all sites that reported a level: weights, and how records are held."""
    if isinstance(look, SumLook) and isinstance(had, SentLook):
        return replace(look, weight=had.weight, cut=had.cut)
    assert isinstance(look, VectorLook)
    assert isinstance(had, SentVectorLook)
    offset = np.array(had.offset or np.zeros(len(had.weights)))
    return replace(look, weights=np.array(had.weights), whitening=np.array(had.whitening), offset=offset)


def _about_its_point(look: SumLook | VectorLook, *, centred: bool) -> bool:
    """True if a look draws in about the point at which its site's model expects nothing to be taken, or about 0."""
    if isinstance(look, SumLook):
        return True
    point = look.centred().offset if centred else np.zeros_like(look.offset)
    return bool(np.abs(point - look.offset).max() <= _NEAR * look.bounds.reach)


def _same(one: AnySentLook, other: AnySentLook) -> bool:
    """True if two looks have the same shapes, and numbers equal to within `_CLOSE`, relative or absolute."""
    parts = zip(astuple(one), astuple(other), strict=True)
    return all(np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=_CLOSE, atol=_CLOSE) for a, b in parts)
