"""Price of a plan before it is signed, and what other mechanisms would cost in its place.

Nothing here reads a record or the store: a cost is a function of the mechanism's parameters, what the sites' ledgers
will charge, wave by wave, and the last wave that the budget affords. The paper's own figure stands beside it, because
readers of the paper will look for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.errors import ParameterError, Refusal
from shared.plans.plan import StudyPlan
from shared.privacy.stated import shown_delta, shown_epsilon, shown_room

if TYPE_CHECKING:
    from coordinator.pooling.cautions import Condition
    from shared.mechanisms.cross_products.plan import CrossProductsPlan
    from shared.mechanisms.moments.plan import MomentsPlan
    from shared.mechanisms.secure_sum.plan import SecureSumPlan

__all__ = ["MANY", "PlanCost", "Price", "WaveCost", "abridged", "conditions", "cost", "moments_of", "prices"]

MANY = 1_000_000
"""Limit of the search for the last affordable wave: rows that use no record have no privacy loss."""


# -- what does it cost? -------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class WaveCost:
    """One wave: what the person who was charged most has been charged when it is over.

    Args:
        number: the wave.
        total: composed ε of all waves so far, by RDP, as the sites' ledgers charge it.
        left: remaining budget; negative if the wave exceeds it.
        affordable: True if the sites' ledgers will allow it.
    """

    number: int
    total: float
    left: float
    affordable: bool


@dataclass(frozen=True, kw_only=True)
class PlanCost:
    """Privacy loss of one person under a plan.

    Args:
        study: the plan's study.
        version: its version.
        mechanism: its title.
        details: its settings, in half a line.
        d: columns the noise is added to.
        w: weight of the data; None, like the other four below, but for latent noise.
        radius: norm to which latents are clipped.
        delta: δ of every ε here.
        cap: the plan's budget.
        posture: the records that a flow may be fitted on.
        epsilon: exact ε of one wave alone, training included; None where there is no formal guarantee. Then no total
            is told either, and `waves` is empty.
        epsilon_given: condition that every ε here takes as given, or without an ε what is not bounded; blank for none.
        rows: exact ε of the noise on the rows alone; less than `epsilon` under posture ``private`` only.
        paper: the ε the paper's Theorem 2 gives for the rows; looser, never used for charging.
        w_for_8: the w at which the rows of one wave cost ε = 8.
        training: exact ε of the training by all sites that the plan has, which is charged before its first round to
            every person of a site; None where it has none. A plan that names a trained flow does not say its price.
        redraws: True if each wave draws a person again.
        waves: composed totals, wave by wave, of a person who takes part in the training as well.
        last_affordable: number of the last wave the budget affords; 0 for none, `MANY` for practically all.
        translation: one wave in plain words.
        conditions: of Theorem 3, those that the sizes which the plan expects do not meet.
        seen_by: colluding parties, in words, to the ε of one wave against them, where that differs; one is `epsilon`.
    """

    study: str
    version: int
    mechanism: str
    details: str
    d: int
    w: float | None
    radius: float | None
    posture: str
    delta: float
    cap: float
    epsilon: float | None
    rows: float | None
    paper: float | None
    w_for_8: float | None
    training: float | None
    redraws: bool
    waves: tuple[WaveCost, ...]
    last_affordable: int
    translation: str
    conditions: tuple[Condition, ...] = ()
    epsilon_given: str = ""
    seen_by: Mapping[str, float] = field(default_factory=dict)


def abridged(waves: Sequence[WaveCost], last: int) -> list[WaveCost | None]:
    """At most about a dozen waves: the first, those around the last affordable one, the final one; None for a gap."""
    if len(waves) <= 14:
        return list(waves)
    keep = {*range(1, 7), *range(last - 1, last + 3), len(waves)}
    out: list[WaveCost | None] = []
    for wave in waves:
        if wave.number in keep:
            out.append(wave)
        elif out[-1] is not None:
            out.append(None)
    return out


def cost(plan: StudyPlan, *, waves: int | None = None, persons: int | None = None) -> PlanCost:
    """Price a plan.

    Args:
        plan: the plan.
        waves: number of waves to price; None for the plan's calendar.
        persons: persons at the largest site; δ is then held against it.
    Raises: ParameterError (waves or persons not positive, δ too large for that many persons).
    """
    from shared.mechanisms.latent_noise.plan import mechanism
    from shared.privacy import accountant as privacy
    from shared.privacy import calibration
    from shared.privacy.composition import composed
    from shared.releases.receipt import given, in_words, planned_event, planned_events

    count = len(plan.waves) if waves is None else waves
    if not 1 <= count <= 10_000:
        raise ParameterError("waves must be in 1..10000", given=f"{count}")
    delta, cap = plan.budget.delta, plan.budget.epsilon
    if persons is not None:
        if persons < 1:
            raise ParameterError("persons must be positive", given=f"{persons}")
        if delta * 10 * persons > 1 - 1e-9:  # in floats 1e-6 · 10 · 100000 falls below 1
            raise ParameterError(
                "delta must be below 1 / (10 n)",
                given=f"{shown_delta(delta)} with n = {persons}",
                next_step=f"Set budget.delta below {shown_room(1 / (10 * persons), 1)}.",
            )
    event, facts = planned_event(plan), plan.release.facts(plan)
    mechanism_ = mechanism(plan) if plan.release.draws_rows else None
    promised = privacy.guaranteed(event)
    noise = mechanism_ if promised else None
    federated = plan.federated
    before = [] if federated is None else [federated.event]

    def total(number: int) -> float:
        """Composed ε after `number` waves, as in a site's ledger; all waves beyond the plan's cost the same."""
        # Under `append` and `frozen` nobody is drawn twice: whoever comes with the third wave pays for the third alone.
        events = planned_events(plan, min(number, len(plan.waves) + 1) if plan.redraws else 1)
        times = Counter([*before, *events])
        times[events[-1]] += number - len(events) if plan.redraws else 0
        return composed(times, delta)

    totals = [total(number) for number in range(1, count + 1 if promised else 1)]
    return PlanCost(
        study=plan.study,
        version=plan.version,
        mechanism=plan.release.title,
        details=plan.release.details(plan),
        d=facts.d,
        w=None if mechanism_ is None else mechanism_.w,
        radius=None if mechanism_ is None else mechanism_.radius,
        posture=plan.posture,
        delta=delta,
        cap=cap,
        epsilon=privacy.epsilon(event, delta) if promised else None,
        rows=None if noise is None else privacy.epsilon(noise.event, delta),
        paper=None if noise is None else calibration.theorem2_epsilon(w=noise.w, C=2 * noise.radius, delta=delta),
        w_for_8=None if noise is None else calibration.w_for_epsilon(8.0, delta, noise.radius),
        training=None if federated is None else federated.epsilon(delta),
        redraws=plan.redraws,
        waves=tuple(
            WaveCost(number=number, total=total, left=cap - total, affordable=total <= cap)
            for number, total in enumerate(totals, start=1)
        ),
        last_affordable=MANY
        if not promised
        else _last_affordable(total, cap)
        if plan.redraws
        else MANY * (totals[0] <= cap),
        translation=in_words(plan, event),
        conditions=conditions(plan) or (),
        epsilon_given=given(plan),
        seen_by=plan.release.seen_by(plan),
    )


def conditions(plan: StudyPlan) -> tuple[Condition, ...] | None:
    """Violated conditions of Theorem 3 at the expected size; None without expectations or released rows.

    That sites differ (τ₀ > 0) no plan can state: an answer is held to it
    (`coordinator.answers.queries.PooledAnswer.cautions`).
    """
    if plan.expected is None or not plan.release.draws_rows:
        return None
    from coordinator.pooling.cautions import theorem3

    return theorem3(plan.expected.sites, plan.expected.persons)


def _last_affordable(total: Callable[[int], float], cap: float) -> int:
    """The largest number of waves whose composed ε fits; totals grow, so a doubling and a bisection find it."""

    def fits(number: int) -> bool:
        return total(number) <= cap

    if not fits(1):
        return 0
    if fits(MANY):
        return MANY
    high = 2
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# -- what would the other mechanisms cost? -----------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Price:
    """One way to release a study, beside the others.

    Args:
        name: the mechanism and its setting.
        epsilon: exact ε of one wave; None where the study cannot be released so, and `covered` says why.
        epsilon_given: condition that ε takes as given, or without an ε what is not bounded; blank for none.
        covered: persons and computations that the ε covers, in words.
        width: an interval of a regression coefficient, in widths of the same interval on the records, where that can be
            known before anything runs; else None.
        unseen: error of its answers that leaves no trace in the release, so that no caution can report it.
        buys: improvement that a larger ε would bring, where that is not simply the width.
    """

    name: str
    epsilon: float | None
    covered: str
    width: float | None
    epsilon_given: str = ""
    unseen: str = ""
    buys: str = ""


PAPER_W = 0.8
_STEPS = (0.1, 2.2, 150)
"""Rate, noise multiplier and steps of the training in the price list, where the plan has none: those of
deploy/studies/first-private.toml."""
_OUTCOMES = {"binary": "binary", "count": "count", "number": "linear", "positive": "linear", "event": "survival"}


def prices(plan: StudyPlan, *, figures: float = 1.0, private: float = 8.0) -> tuple[Price, ...]:
    """The study's price list, by mechanism: what one wave would cost a person, and what that covers.

    Args:
        figures: ε of the mechanisms that release noisy figures; a plan's own is taken where it prescribes one.
        private: ε of latent noise with everything covered.
    """
    from shared.mechanisms.cross_products.plan import CrossProductsPlan
    from shared.mechanisms.latent_noise.plan import LatentNoisePlan, mechanism
    from shared.mechanisms.moments.plan import MomentsPlan
    from shared.mechanisms.secure_sum.plan import SecureSumPlan
    from shared.mechanisms.tables.plan import TablesPlan
    from shared.plans.plan import PrivateTraining

    own = plan.release
    if own.edges is not None:
        return _network_prices(plan)
    w = PAPER_W
    if isinstance(own, LatentNoisePlan):
        # What a plan prices by its ε it must be shown at the w that follows from it, and not at another.
        w = mechanism(replace(plan, posture="local", private=None, reference={}, flow="")).w
        private = private if own.epsilon is None else own.epsilon
    if isinstance(own, MomentsPlan | TablesPlan | SecureSumPlan | CrossProductsPlan) and own.epsilon is not None:
        figures = own.epsilon
    everything = "every person, and all that looks at a record"
    bare: dict[str, Any] = {"private": None, "reference": {}, "posture": "private"}
    rate, noise, steps = _STEPS
    training = plan.private or PrivateTraining(rate=rate, noise_multiplier=noise, steps=steps)
    lines = [
        _priced(
            f"latent noise, w = {w:.4g}",
            plan,
            {"release": LatentNoisePlan(w=w), "posture": "local", "private": None, "reference": {}},
            "each released row, given the flow; the flow's own fit is not covered",
            _latent_width(w),
        ),
        _priced(
            "latent noise, flow trained with noise",
            plan,
            {**bare, "release": LatentNoisePlan(epsilon=private), "private": training},
            everything,
        ),
        _priced("noisy tables", plan, {**bare, "release": TablesPlan(epsilon=figures)}, everything),
    ]
    model = own if isinstance(own, MomentsPlan) else moments_of(plan, figures)
    crossed = own if isinstance(own, CrossProductsPlan) else _cross_products_of(plan, model)
    if crossed is not None:
        lines.append(_priced("cross-products", plan, {**bare, "release": crossed}, everything))
    if model is None:
        why = "no planned model uses every column of the dictionary"
        lines.append(Price(name="noisy moments", epsilon=None, covered=why, width=None))
        return *lines, *([_priced_by_who(plan, {**bare, "release": own})] if isinstance(own, SecureSumPlan) else [])
    focus = model.declared or model.covariates
    which = "every coefficient" if set(focus) == set(model.covariates) else " and ".join(focus)
    for name, declared in (("noisy moments", ()), (f"noisy moments, {which} declared", focus)):
        release = replace(model, declared=declared, shares={})
        lines.append(_priced(name, plan, {**bare, "release": release}, everything))
    summed = own if isinstance(own, SecureSumPlan) else _sum_of(plan, model)
    if isinstance(summed, str):
        return *lines, Price(name="secure sum", epsilon=None, covered=f"not for this study: {summed}", width=None)
    return *lines, _priced_by_who(plan, {**bare, "release": summed})


def _cross_products_of(plan: StudyPlan, model: MomentsPlan | None) -> CrossProductsPlan | None:
    """Cross-products of a planned linear model's columns, on scales of the public bounds: the price knows no other."""
    from shared.mechanisms.cross_products.plan import CrossProductsPlan

    if model is None or model.outcome != "linear":
        return None
    columns = [plan.dictionary.column(name) for name in (*model.responses, *model.covariates)]
    if not all(column.kind in ("continuous", "integer", "binary") for column in columns):
        return None
    spans = {column.name: column.span for column in columns if column.kind != "binary"}
    typical = {name: ((low + high) / 2, (high - low) / 6) for name, (low, high) in spans.items()}
    return CrossProductsPlan(epsilon=model.epsilon, columns=[column.name for column in columns], typical=typical)


def _sum_of(plan: StudyPlan, model: MomentsPlan) -> SecureSumPlan | str:
    """A secure sum of the planned model's first coefficient over as many sites as are expected; else why not."""
    from shared.mechanisms.secure_sum.plan import SecureSumPlan
    from shared.mechanisms.secure_sum.terms import FEWEST

    if model.outcome not in ("survival", "binary"):
        return "its outcome is neither survival nor yes or no"
    if plan.expected is None or plan.expected.sites < FEWEST:
        return f"{FEWEST} sites must be expected"
    given = ("epsilon", "responses", "covariates", "horizon", "bins", "time_bins")
    nominal = {column.name for column in plan.dictionary.columns if column.kind == "nominal"}
    focus = [name for name in (*model.exposures, *model.declared, *model.covariates) if name not in nominal]
    if not focus:
        return "every covariate is nominal"
    return SecureSumPlan(
        **{name: getattr(model, name) for name in given},
        outcome="binary" if model.outcome == "binary" else "survival",
        coefficient=focus[0],
        # Whose keys these are no price depends on.
        members={f"site-{k:03}": f"{k:064x}" for k in range(plan.expected.sites)},
    )


def _priced_by_who(plan: StudyPlan, changes: Mapping[str, Any]) -> Price:
    """A price that hangs on who looks together, each with its own."""
    price = _priced("secure sum", plan, changes, "")
    if price.epsilon is None:
        return price
    changed = replace(plan, training=replace(plan.training, outcomes="joint"), **changes)
    rows = "; ".join(f"{who} ε {shown_epsilon(epsilon)}" for who, epsilon in changed.release.seen_by(changed).items())
    return replace(price, covered=f"every person, and all that looks at a record, by who looks together: {rows}")


def _network_prices(plan: StudyPlan) -> tuple[Price, ...]:
    """The two ways to release a network, at the plan's own ε: no mechanism of rows reads its edges."""
    from shared.mechanisms.grand.plan import GrandPlan
    from shared.mechanisms.network_counts.plan import NetworkCountsPlan

    own = plan.release
    assert isinstance(own, GrandPlan | NetworkCountsPlan), "what reads edges"
    counts = own if isinstance(own, NetworkCountsPlan) else NetworkCountsPlan(epsilon=own.epsilon, most_contacts=50)
    drawn = own if isinstance(own, GrandPlan) else GrandPlan(epsilon=own.epsilon)
    lines = (
        (
            drawn,
            "holdout",
            "everybody who is released, with all edges; those held out not at all",
            "a community or a level that is told first; not how edges close or mix, which are refused at every ε",
        ),
        (
            counts,
            "private",
            "everybody, with all edges; nobody is held out",
            "narrower intervals of every planned count: their noise is the caps over ε",
        ),
    )
    return tuple(
        replace(_priced(release.title, plan, {"release": release, "posture": posture}, who), buys=what)
        for release, posture, who, what in lines
    )


def _priced(name: str, plan: StudyPlan, changes: Mapping[str, Any], covered: str, width: float | None = None) -> Price:
    from shared.privacy import accountant as privacy
    from shared.releases.receipt import given, planned_event

    try:
        # Which columns are drawn last has no price, and not every way of releasing has an order of drawing.
        joint = replace(plan.training, outcomes="joint")
        changed = replace(plan, training=joint, **changes)
        event = planned_event(changed)
        price = privacy.epsilon(event, plan.budget.delta) if privacy.guaranteed(event) else None
        unseen = changed.release.unseen
        return Price(
            name=name, epsilon=price, covered=covered, width=width, epsilon_given=given(changed), unseen=unseen
        )
    except Refusal as refusal:
        return Price(name=name, epsilon=None, covered=f"not for this study: {refusal.must}", width=None)


def _latent_width(w: float) -> float:
    """Width of a regression coefficient's interval relative to the records', at posture local; its order is 2."""
    from coordinator.pooling.intervals import Draw, parts

    draw = Draw(rows=1, w=w, fitted_on=1)
    return float(sum(parts(1.0, [draw], 2.0)) ** 0.5)


def moments_of(plan: StudyPlan, epsilon: float) -> Any:
    """The moments release of the first planned model that gives every column a role; None without one."""
    from shared.estimands.questions import MODELS, SURVIVAL, parse_estimand
    from shared.mechanisms.moments.plan import MomentsPlan

    for formula in plan.estimands.values():
        try:
            question = parse_estimand(formula)
            if question.kind not in MODELS or question.outcome_kind not in _OUTCOMES:
                continue
            if question.kind in SURVIVAL and question.kind != "cox":
                continue
            responses = (question.duration, question.event) if question.kind == "cox" else (question.outcome,)
            settings = MomentsPlan(
                epsilon=epsilon,
                outcome=_OUTCOMES[question.outcome_kind],  # type: ignore[arg-type]
                responses=responses,
                covariates=[name for name in question.columns if name not in responses],
            )
            settings.design(plan)
        except Refusal:
            continue
        return settings
    return None
