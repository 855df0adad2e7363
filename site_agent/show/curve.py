"""The curve of the weight w at this hospital: the price, the attacks we tried, and the planned estimates.

One flow is fitted on four fifths of the records; for each w on a grid it then releases them several times, the first
of these releases is attacked, and the planned analyses are run on all of them and on the real rows. **These draws are
outside the ledger**: they are made, measured and forgotten in memory, and nothing of them is stored or sent. What is
kept is the curve, a few dozen aggregates, at the site.

Aggregates of real records are a look at the data all the same. A w chosen from them is fitted on the records like the
flow is, so this is for posture ``local`` (whose receipt says so), or for made-up data, which is about nobody.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import ParameterError, PolicyRefusal
from shared.estimands.answer import Estimate
from shared.mechanisms.latent_noise.noise import LatentNoise
from shared.mechanisms.latent_noise.plan import carried_column, mechanism
from shared.plans.encoding import Encoder
from shared.plans.outcomes import planned_outcomes
from shared.plans.plan import StudyPlan
from shared.privacy import accountant as privacy
from shared.privacy.stated import FLOW
from site_agent.release.audit.attacks import HELD_BACK
from site_agent.release.audit.distances import linkage, membership_auc, whitening
from site_agent.release.audit.likelihood import trade_off, weighed
from site_agent.release.audit.rates import Rate, rate
from site_agent.release.audit.report import FALSE_ALARMS
from site_agent.release.audit.view import recoded, seen
from site_agent.show.preview import answers

__all__ = ["GRID", "Point", "PriceCurve", "Step", "price_curve", "require_allowed"]

GRID: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
DRAWS = 5
"""Releases at each w on which the planned analyses are run."""
CLEAR = 2.0
"""A coefficient nearer to 0 than this many standard errors has no relative error worth reading."""


class Step(StrEnum):
    """A step of `price_curve`; the value is what a person reads."""

    FIT = "fitting the flow"
    DRAW = "drawing and attacking"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of the curve, at one w.

    Attributes:
        epsilon: exact ε at the plan's δ, given the flow; None at w = 0, where nothing but the flow tells of a record.
        bound: most hits that any attacker can have at 1 % false alarms, given the flow.
        hits, false_alarms: of the likelihood-ratio attack (`site_agent.release.audit.report.LikelihoodAttack`).
        flow_auc: its AUC.
        distance_auc: AUC of the nearest released row, whitened.
        own_row: share of records linked to their own row.
        errors: term to |released - real| / |real|, the median over draws; None where no draw gave an estimate.
        in_se: the same in standard errors of the real estimate.
    """

    w: float
    epsilon: float | None
    bound: float
    hits: Rate
    false_alarms: Rate
    flow_auc: Rate
    distance_auc: Rate
    own_row: Rate
    errors: Mapping[str, float | None]
    in_se: Mapping[str, float | None]

    @property
    def error(self) -> float | None:
        """Median relative error over the terms."""
        known = [value for value in self.errors.values() if value is not None]
        return float(np.median(known)) if known else None


@dataclass(frozen=True, kw_only=True)
class PriceCurve:
    """The curve of one study at one site.

    Attributes:
        study, delta: of the plan; planned: its w.
        made_up: whether the table was made from the dictionary.
        radius: R, the norm to which latents are clipped.
        n, d: records and encoded columns; held_back: records the flow did not see; draws: releases per w.
        points: one for each w, in order.
        left_out: term to the reason why it has no relative error.
    """

    study: str
    delta: float
    planned: float
    made_up: bool
    radius: float
    n: int
    d: int
    held_back: int
    draws: int
    points: tuple[Point, ...]
    left_out: Mapping[str, str]

    def to_canonical(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        points = [{**asdict(point), "error": point.error, "epsilon_given": FLOW} for point in self.points]
        return {**asdict(self), "points": points}

    def sentences(self) -> tuple[str, ...]:
        """Sentences to print beside the figures."""
        whose = (
            "Made-up values: this says how the tool works, and nothing about any patient."
            if self.made_up
            else "Choosing w from this page is a look at the data: under posture 'local' the receipt says that w is "
            "not covered."
        )
        return (
            whose,
            "The draws behind it were outside the ledger and are forgotten: they are no release, and none can be "
            "made from them. Only these aggregates are kept, here.",
            "ε and the bound are given the flow. The attacks are those we tried; others may do better.",
            *(f"No relative error for {term}: {reason}." for term, reason in self.left_out.items()),
        )


def require_allowed(plan: StudyPlan, *, made_up: bool) -> None:
    """Refuse to look at records for a plan that promises not to, and to price what has none. Raises: PolicyRefusal."""
    if getattr(plan.release, "vary", ""):
        raise PolicyRefusal(
            "a curve of prices must be of a plan whose releases have one",
            given="release.vary: no formal guarantee at any w",
            next_step="Leave release.vary out of a copy of the plan to see the curve of plain noise.",
        )
    if not made_up and plan.posture != "local":
        raise PolicyRefusal(
            "a curve on real records must be of a plan with posture 'local'",
            given=f"posture {plan.posture!r}, which takes w from the plan alone",
            next_step=f"site-agent curve {plan.study} --made-up reads no record.",
        )


def price_curve(
    *,
    plan: StudyPlan,
    table: pd.DataFrame,
    rng: Noise,
    made_up: bool = False,
    grid: Sequence[float] = GRID,
    draws: int = DRAWS,
    progress: Callable[[Any, float, float | None], None] | None = None,
) -> PriceCurve:
    """Draw, attack and analyse at every w. Nothing is charged, because nothing leaves and nothing is kept.

    Args:
        plan: its posture must be ``local``, or the table made up.
        table: (n, columns) that `Dictionary.check` returned.
        rng: splits, fits and draws.
        made_up: whether the table was made from the dictionary.
        grid: weights in [0, 1); the plan's is added.
        draws: releases at each.
        progress: called with the step, the share done and the seconds left (None while unknown).
    Raises: PolicyRefusal (posture), TrainingRefusal, ParameterError (fewer than 10 records, no draws).
    """
    from site_agent.models.flow import fit_flow

    require_allowed(plan, made_up=made_up)
    if len(table) < 10 or draws < 1:
        raise ParameterError(
            "a curve must have at least 10 records and one draw", given=f"{len(table)} records, {draws}"
        )
    tell = _timed(progress)
    encoder = Encoder(dictionary=plan.dictionary)
    x = encoder.encode(table, rng)
    order = rng.generator.permutation(len(x))
    cut = round(HELD_BACK * len(x))
    held, inside = x[order[:cut]], x[order[cut:]]
    fitting = 0.3
    fitted = fit_flow(
        inside,
        plan.training,
        rng,
        integer_columns=encoder.integer_columns,
        progress=lambda part, share, left: tell(Step.FIT, fitting * share),
        carried=carried_column(plan),
        outcomes=planned_outcomes(plan),
    )
    planned_mechanism = mechanism(plan)
    radius, planned = planned_mechanism.radius, planned_mechanism.w
    weights = sorted({*(float(w) for w in grid), planned})
    real = _answers(plan, encoder.decode(inside))
    terms, left_out = _terms(real)
    world = _World(encoder, inside, held)
    points = []
    for k, w in enumerate(weights):
        noise = replace(planned_mechanism, flow=fitted.flow, w=w)
        released = [noise.release(inside, rng) for _ in range(draws)]
        errors = _errors(terms, [_answers(plan, encoder.decode(rows)) for rows in released])
        points.append(
            Point(
                w=w,
                epsilon=float(privacy.epsilon(noise.plain_event, plan.budget.delta)) if w > 0 else None,
                bound=trade_off(noise.plain_event.mu, FALSE_ALARMS),
                errors={name: None if e is None else e / abs(terms[name][0]) for name, e in errors.items()},
                in_se={name: None if e is None else e / terms[name][1] for name, e in errors.items()},
                **world.attacked(noise, released[0]),
            )
        )
        tell(Step.DRAW, fitting + (1 - fitting) * (k + 1) / len(weights))
    return PriceCurve(
        study=plan.study,
        delta=plan.budget.delta,
        planned=planned,
        made_up=made_up,
        radius=radius,
        n=len(x),
        d=encoder.d,
        held_back=len(held),
        draws=draws,
        points=tuple(points),
        left_out=left_out,
    )


def _timed(progress: Callable[[Any, float, float | None], None] | None) -> Callable[[Step, float], None]:
    """Tell a step and the share done, with the seconds that are left at the pace so far."""
    began = time.monotonic()

    def tell(step: Step, share: float) -> None:
        if progress is not None:
            spent = time.monotonic() - began
            progress(step, share, spent / share * (1 - share) if share > 0.05 else None)

    return tell


class _World:
    """The records as attackers see them, made once for all weights."""

    def __init__(self, encoder: Encoder, inside: NDArray[np.float64], held: NDArray[np.float64]) -> None:
        self.view, self.codes = seen(encoder), recoded(encoder)
        shown, others = self.view(inside), self.view(held)
        # By all records: coordinates in which only the members are round would bring the members nearer.
        self.whiten = whitening(np.concatenate([shown, others]))
        self.inside, self.held = self.whiten(shown), self.whiten(others)
        self.members, self.others = self.codes(inside), self.codes(held)

    def attacked(self, mechanism: LatentNoise, released: NDArray[np.float64]) -> dict[str, Rate]:
        found = weighed(mechanism, members=self.members, held_back=self.others, released=self.codes(released))
        rows = self.whiten(self.view(released))
        return {
            "hits": found.hits,
            "false_alarms": found.false_alarms,
            "flow_auc": found.auc,
            "distance_auc": membership_auc(self.inside, self.held, rows),
            "own_row": rate(linkage(self.inside, rows), chance=1 / len(rows)),
        }


def _answers(plan: StudyPlan, table: pd.DataFrame) -> dict[str, Estimate | str]:
    """Every term of every planned estimand, by a name that says which; or why a question has no answer."""
    found = answers(plan, table)
    alone = Counter(name for name, _ in found)
    return {name if alone[name] == 1 else f"{name}: {term}": one for (name, term), one in found.items()}


def _terms(real: Mapping[str, Estimate | str]) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Estimate and standard error of the terms that a released table can be held against; the others' reasons."""
    terms: dict[str, tuple[float, float]] = {}
    left_out: dict[str, str] = {}
    for name, one in real.items():
        if isinstance(one, str):
            left_out[name] = one
        elif one.yi is None or one.vi_sampling is None:
            left_out[name] = one.reason
        elif abs(one.yi) < CLEAR * math.sqrt(one.vi_sampling):
            left_out[name] = f"in the table itself it is within {CLEAR:g} standard errors of 0"
        else:
            terms[name] = one.yi, math.sqrt(one.vi_sampling)
    return terms, left_out


def _errors(
    terms: Mapping[str, tuple[float, float]], drawn: Sequence[Mapping[str, Estimate | str]]
) -> dict[str, float | None]:
    """Term to |released - real|, the median over the draws that gave an estimate."""
    out: dict[str, float | None] = {}
    for name, (real, _) in terms.items():
        found = [draw.get(name) for draw in drawn]
        far = [abs(one.yi - real) for one in found if isinstance(one, Estimate) and one.yi is not None]
        out[name] = float(np.median(far)) if far else None
    return out
