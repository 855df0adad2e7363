"""Review of a plan before it is signed: completeness, privacy loss, changes.

Nothing here reads a record or the store. A plan is checked line by line, each line green or with its fix, and the
cost is a function of the mechanism's parameters: what the sites' ledgers will charge, wave by wave, and the last wave
the budget affords. The paper's own figure stands beside it, because readers of the paper will look for it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator.planning.attack_limits import attack_line
from coordinator.pooling.cautions import Condition, theorem3
from shared.errors import ParameterError, Refusal
from shared.plans.plan import Floors, StudyPlan
from shared.privacy.stated import shown_delta, shown_epsilon, shown_price, shown_room
from shared.terminal import ChecklistLine

__all__ = ["PlanCost", "Price", "WaveCost", "changes", "conditions", "cost", "moments_of", "prices", "review"]

MEANINGFUL = 10.0
"""Above this ε a guarantee is called what it is: none worth the name."""
MANY = 1_000_000
"""Limit of the search for the last affordable wave: rows that use no record have no privacy loss."""


# -- is it complete? ----------------------------------------------------------------------------------------------
def review(text: str, *, today: dt.date, recipient: str = "") -> tuple[StudyPlan | None, tuple[ChecklistLine, ...]]:
    """Read a study.toml and hold it against what a plan must be.

    Args:
        text: the file.
        today: the day on which it is judged.
        recipient: this coordinator's name, where there is one.
    Returns: the plan (None when it cannot be read) and one `ChecklistLine` per line; nothing is raised.
    """
    try:
        plan = StudyPlan.from_toml(text)
    except Refusal as refusal:
        from coordinator.planning.drafts import faults

        mended, found = faults(text, today=today, recipient=recipient)
        found = found or (ChecklistLine.of("plan", refusal),)
        if mended is None:
            return None, found
        # What the mended draft would be told next, as far as it rests on what the lead wrote.
        further = [
            *(
                [_recipient(mended, recipient)]
                if f"coordinator = {mended.coordinator!r}".replace("'", '"') in text
                else []
            ),
            *(_estimand(mended, name, formula) for name, formula in mended.estimands.items()),
            *_calendar(mended, today),
        ]
        return None, (*found, *(line for line in further if line.state == "fail"))
    lines = [
        ChecklistLine(name="plan", detail=f"{plan.study}, version {plan.version}, hash {plan.hash[:12]}"),
        _recipient(plan, recipient),
        ChecklistLine(
            name="posture", detail=f"{plan.posture}: {_POSTURES[plan.posture].replace('flow', plan.release.fits)}"
        ),
        *_dictionary(plan),
        *(_estimand(plan, name, formula) for name, formula in plan.estimands.items()),
        *_calendar(plan, today),
        *_price(plan),
        *_theorem3(plan),
        *_declared(plan),
        _floors(plan),
    ]
    try:
        plan.training.require_one_network()
    except Refusal as refusal:
        lines.append(ChecklistLine.of("training", refusal))
    carried = getattr(plan.release, "carry", "")
    if carried:
        fix = "Leave release.carry out: the column is then drawn from its law given the noisy others."
        detail = f"every true {carried} is released as it is: no formal guarantee"
        lines.append(ChecklistLine(name="carried", state="warn", detail=detail, fix=fix))
    if not plan.estimands:
        lines.append(
            ChecklistLine(name="estimands", state="warn", detail="none planned", fix="Name the planned analyses.")
        )
    if not plan.eligibility.strip():
        fix = "Write the rule that says who is in the table; by it, n is public."
        lines.append(ChecklistLine(name="eligibility", state="warn", detail="no rule", fix=fix))
    if plan.row_download:
        fix = "Set row_download = false unless every site's approval covers rows."
        lines.append(
            ChecklistLine(name="rows", state="warn", detail="analysts may download the released rows", fix=fix)
        )
    return plan, tuple(lines)


_POSTURES: Mapping[str, str] = {
    "local": "the flow is fitted on the released records; ε does not cover that fit",
    "holdout": "the flow is fitted on persons who are never released; ε does not cover those",
    "public": "nothing is fitted on records; ε covers everyone",
    "private": "the flow is trained with noise; ε covers that and everyone",
}


def _recipient(plan: StudyPlan, recipient: str) -> ChecklistLine:
    if recipient and plan.coordinator != recipient:
        return ChecklistLine(
            name="recipient",
            state="fail",
            detail=f"{plan.coordinator!r} is not this coordinator",
            fix=f"Set coordinator = {recipient!r}.",
        )
    return ChecklistLine(name="recipient", detail=plan.coordinator)


_FORMULA = re.compile(r"[=@\t\r]|[+-].*[|!=]|[+-][^0-9.].*\(")
"""Begins what a spreadsheet reads as a formula; a sign alone, or before a number, is none."""


def _dictionary(plan: StudyPlan) -> list[ChecklistLine]:
    released = plan.dictionary.released
    person = plan.dictionary.person or "none: ε is for one row"
    lines = [ChecklistLine(name="dictionary", detail=f"{len(released)} released columns; person column: {person}")]
    unlabelled = [column.name for column in released if not column.label]
    if unlabelled:
        fix = "Give each column a label in a few words."
        lines.append(ChecklistLine(name="labels", state="warn", detail=f"none for {', '.join(unlabelled)}", fix=fix))
    numeric = [column for column in released if column.lower is not None]
    unitless = [c.name for c in numeric if c.kind in ("continuous", "time") and not c.unit]
    if unitless:
        fix = "Set unit, for example unit = 'mmHg'; 'none' for a pure number."
        lines.append(ChecklistLine(name="units", state="warn", detail=f"none for {', '.join(unitless)}", fix=fix))
    bounds = ", ".join(f"{column.name} {column.lower:g}–{column.upper:g}" for column in numeric)
    lines.append(ChecklistLine(name="bounds", detail=bounds or "no numeric column"))
    lines += [
        ChecklistLine(
            name="event",
            state="warn",
            detail=f"time column {column.name} names no event",
            fix="Set event to the name of its 0/1 column.",
        )
        for column in released
        if column.kind == "time" and not column.event
    ]
    cells = {c.name: [c.name, *(level for level in c.levels if isinstance(level, str))] for c in released}
    if formulas := [name for name, texts in cells.items() if any(map(_FORMULA.match, texts))]:
        fix = "Begin it with a letter: a spreadsheet runs such a cell of an exported table as a formula."
        detail = f"a name or level that is a formula, in {', '.join(map(repr, formulas))}"
        lines.append(ChecklistLine(name="levels", state="fail", detail=detail, fix=fix))
    dropped = [column.name for column in released if column.missing == "complete_case"]
    if dropped:
        fix = "Prefer missing = 'level': the number of rows left out is not covered by ε."
        lines.append(
            ChecklistLine(name="missing", state="warn", detail=f"complete cases of {', '.join(dropped)}", fix=fix)
        )
    return lines


def _estimand(plan: StudyPlan, name: str, formula: str) -> ChecklistLine:
    from shared.estimands.questions import parse_estimand

    label = f"estimand {name}"
    try:
        question = parse_estimand(formula)
        columns = {column: plan.dictionary.column(column) for column in question.columns}
    except Refusal as refusal:
        return ChecklistLine.of(label, refusal)
    for column, declared in columns.items():
        if not declared.released:
            fix = "Leave it out: the person column never leaves a site."
            return ChecklistLine(name=label, state="fail", detail=f"{column} is not released", fix=fix)
        # A column of words that stands alone is a factor, as in R; with units, or correlated, it must be numbers.
        words = declared.kind == "nominal" or any(isinstance(level, str) for level in declared.levels)
        if words and column in question.terms and (column in question.per or question.kind == "correlation"):
            fix = f"Write {column} without units." if column in question.per else "Name columns of numbers."
            return ChecklistLine(name=label, state="fail", detail=f"{column} holds categories, not numbers", fix=fix)
    if question.kind == "km" and question.at is None:
        fix = "Write km(time, event, at = 5), the same time at every site."
        return ChecklistLine(name=label, state="fail", detail="km without a time is a curve, not one number", fix=fix)
    if question.kind == "cox":
        follow_up = columns[question.duration]
        if follow_up.kind != "time":
            fix = f"Declare {question.duration} with kind = 'time'."
            return ChecklistLine(name=label, state="warn", detail=f"{question.duration} is no follow-up time", fix=fix)
    return ChecklistLine(name=label, detail=formula)


def _calendar(plan: StudyPlan, today: dt.date) -> list[ChecklistLine]:
    lines = []
    first, last = plan.waves[0], plan.waves[-1]
    many = "1 wave" if len(plan.waves) == 1 else f"{len(plan.waves)} waves"
    lines.append(ChecklistLine(name="waves", detail=f"{many}, from {first.opens} to {last.closes}"))
    for before, after in zip(plan.waves, plan.waves[1:], strict=False):
        if after.opens < before.opens:
            fix = "Order the waves by the day they open."
            detail = f"wave {after.number} opens before wave {before.number}"
            lines.append(ChecklistLine(name=f"wave {after.number}", state="fail", detail=detail, fix=fix))
    late = [str(wave.number) for wave in plan.waves if wave.closes > plan.expires]
    if late:
        detail = f"{plan.expires}, before wave {', '.join(late)} closes"
        lines.append(
            ChecklistLine(name="expiry", state="fail", detail=detail, fix="Let the plan expire after its last wave.")
        )
    elif plan.expires < today:
        fix = "Set a later day; sites refuse an expired plan."
        lines.append(ChecklistLine(name="expiry", state="fail", detail=f"{plan.expires} has passed", fix=fix))
    else:
        lines.append(ChecklistLine(name="expiry", detail=f"{plan.expires}"))
    return [*lines, _retention(plan)]


def _retention(plan: StudyPlan) -> ChecklistLine:
    """What the plan says of the releases' end: a new study's must say something."""
    if plan.retention is not None:
        return ChecklistLine(name="retention", detail=f"releases are deleted after {plan.retention.until}")
    fix = 'Add [retention] with until = 2031-12-31, keep = "…" and readers = "…".'
    detail = "the plan does not say until when releases are kept, for what, and who may read them"
    return ChecklistLine(name="retention", state="fail" if plan.version == 1 else "warn", detail=detail, fix=fix)


def _price(plan: StudyPlan) -> list[ChecklistLine]:
    try:
        price = cost(plan)
    except Refusal as refusal:
        return [ChecklistLine.of("budget", refusal)]
    if price.epsilon is None:
        lower = "Raise release.w above 0" if price.epsilon_given else "Leave release.vary out"
        fix = f"{lower}, or say in the purpose why not."
        detail = f"{shown_price(None, price.epsilon_given)}, for any row"
        lines = [ChecklistLine(name="guarantee", state="warn", detail=detail, fix=fix)]
        if plan.floors.standing:
            detail = "a standing approval is good for a price, and these releases have none"
            fix = "Leave floors.standing out."
            lines.append(ChecklistLine(name="standing", state="fail", detail=detail, fix=fix))
        return lines
    condition = f", given {price.epsilon_given}" if price.epsilon_given else ""
    total = shown_epsilon(price.waves[-1].total)
    each = (
        f"ε {shown_epsilon(price.epsilon)} for a wave alone, {total} charged for all{condition}, budget "
        f"{shown_epsilon(price.cap)}"
    )
    lines = []
    if price.last_affordable < len(plan.waves):
        paid = price.last_affordable
        detail = f"{each}; it affords {paid or 'no'} wave{'s' if paid != 1 else ''} of {len(plan.waves)}"
        lines.append(
            ChecklistLine(
                name="budget", state="fail", detail=detail, fix="Lower release.w, plan fewer waves, or raise it."
            )
        )
    else:
        lines.append(ChecklistLine(name="budget", detail=each))
    fewer = f"{1 / (10 * plan.budget.delta):,.0f}"
    lines.append(
        ChecklistLine(name="delta", detail=f"{shown_delta(plan.budget.delta)}, for sites of fewer than {fewer} persons")
    )
    if price.waves[-1].total > MEANINGFUL:
        lower = "Lower release.epsilon"
        if price.w_for_8 is not None:
            lower = f"Lower release.w (ε 8 for one wave{condition}: w ≈ {shown_room(price.w_for_8, 2)})"
        fix = f"{lower}, or say in the purpose why not."
        if plan.private is not None:
            fix = "Raise private.noise_multiplier, lower its rate or steps, or lower release.w or release.epsilon."
        detail = f"ε {total} in total{condition and condition + ','} is not a meaningful formal guarantee"
        lines.append(ChecklistLine(name="guarantee", state="warn", detail=detail, fix=fix))
    return [*lines, *attack_line(plan, price.w, price.d)]


def conditions(plan: StudyPlan) -> tuple[Condition, ...] | None:
    """Violated conditions of Theorem 3 at the expected size; None without expectations or released rows.

    That sites differ (τ₀ > 0) no plan can state: an answer is held to it
    (`coordinator.answers.queries.PooledAnswer.cautions`).
    """
    if plan.expected is None or plan.release.mechanism != "latent_noise":
        return None
    return theorem3(plan.expected.sites, plan.expected.persons)


def _theorem3(plan: StudyPlan) -> list[ChecklistLine]:
    found = conditions(plan)
    if found is None or plan.expected is None:
        return []
    if not found:
        size = f"{plan.expected.sites} sites of about {plan.expected.persons:,} persons"
        return [ChecklistLine(name="theorem 3", detail=f"{size}; that sites differ (τ₀ > 0) is seen with the answers")]
    return [
        ChecklistLine(name="theorem 3", state="warn", detail=f"{one.given}; it asks that {one.must}", fix=one.fix)
        for one in found
    ]


def _declared(plan: StudyPlan) -> list[ChecklistLine]:
    """Which coefficients of noisy moments rest on the model of everything; nothing of other mechanisms."""
    if plan.release.mechanism != "moments":  # whose module loads pandas, which other plans have no use for
        return []
    from shared.mechanisms.moments.plan import MomentsPlan

    assert isinstance(plan.release, MomentsPlan)
    found = plan.release.doubtful(plan)
    if not found:
        return [ChecklistLine(name="declared", detail="every coefficient is the regression's own")]
    return [ChecklistLine(name="declared", state="warn", detail=detail, fix=fix) for detail, fix in found]


def _floors(plan: StudyPlan) -> ChecklistLine:
    usual, given = Floors(), plan.floors
    looser = [
        f"{name} {getattr(given, name):g} (usual {getattr(usual, name):g})"
        for name in ("membership_auc", "own_row_linkage", "extreme_linkage")
        if getattr(given, name) > getattr(usual, name)
    ]
    people = "1 approval" if given.approvals == 1 else f"{given.approvals} approvals"
    if looser:
        fix = "Attacks that succeed this often will pass; lower them if the mechanism allows."
        return ChecklistLine(name="floors", state="warn", detail="looser than usual: " + ", ".join(looser), fix=fix)
    return ChecklistLine(name="floors", detail=f"{given.persons} persons, {people}, attack limits as usual or tighter")


# -- what does it cost? -------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class WaveCost:
    """One wave: what the person who was charged most has been charged when it is over.

    Args:
        number: the wave.
        total: composed ε of all waves so far, by RDP, as the sites' ledgers charge it.
        left: what remains of the budget; negative when the wave cannot be paid.
        affordable: whether the ledgers will let it happen.
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
        mechanism: what it is called.
        details: its settings, in half a line.
        d: columns the noise is added to.
        w: weight of the data; None, like the other four below, but for latent noise.
        radius: norm to which latents are clipped.
        delta: δ of every ε here.
        cap: the plan's budget.
        posture: what may be fitted on which records.
        epsilon: exact ε of one wave alone, training included; None where there is no formal guarantee. Then no total
            is told either, and `waves` is empty.
        epsilon_given: what every ε here takes as given, or what nothing bounds where there is none; blank for nothing.
        rows: exact ε of the noise on the rows alone; less than `epsilon` under posture ``private`` only.
        paper: the ε the paper's Theorem 2 gives for the rows; looser, never used for charging.
        w_for_8: the w at which the rows of one wave cost ε = 8.
        training: exact ε of the training by all sites that the plan has, which is charged before its first round to
            every person of a site; None where it has none. A plan that names a trained flow does not say its price.
        redraws: whether each wave draws a person again.
        waves: composed totals, wave by wave, of a person who takes part in the training as well.
        last_affordable: number of the last wave the budget affords; 0 for none, `MANY` for practically all.
        translation: one wave in plain words.
        conditions: of Theorem 3, those that the sizes which the plan expects do not meet.
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


def cost(plan: StudyPlan, *, waves: int | None = None, persons: int | None = None) -> PlanCost:
    """Price a plan.

    Args:
        plan: the plan.
        waves: how many waves to price; None takes the plan's calendar.
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
        """After that many waves, of which all beyond the plan's cost alike: as a site's ledger composes them."""
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
    )


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
        epsilon_given: what it takes as given, or what nothing bounds where there is none; blank for nothing.
        covered: what the ε is about.
        width: an interval of a regression coefficient, in widths of the same interval on the records, where that can be
            known before anything runs; else None.
        unseen: what makes its answers wrong and leaves no trace in what is released, so that no caution can tell.
        buys: what more ε would make better, where that is not simply the width.
    """

    name: str
    epsilon: float | None
    covered: str
    width: float | None
    epsilon_given: str = ""
    unseen: str = ""
    buys: str = ""


_UNSEEN = {
    "noisy moments": "A bend or an interaction that the planned model lacks leaves no trace in the sums: no caution "
    "can tell such an answer from a right one, and no larger ε does. Intervals allow for a small one: where groups "
    "of an outcome differ in spread, that of a coefficient that is not declared is too sure. A declared coefficient "
    "is the regression's own all the same, the nearer the larger ε and the site: declare each one that will be "
    "read (docs/zoo.md).",
    "noisy tables": "A coefficient hangs on where persons lie within their bins, which no count shows: with more than "
    "70 % of them in one bin it is not answered, below that it may be drawn towards zero by a little more than its "
    "interval allows. A hospital alone is drawn towards zero by the noise as well; several are read together and are "
    "not (docs/zoo.md).",
}
"""Mechanism to what its release cannot show of a wrong answer."""
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
    from shared.mechanisms.latent_noise.plan import LatentNoisePlan, mechanism
    from shared.mechanisms.moments.plan import MomentsPlan
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
    if isinstance(own, MomentsPlan | TablesPlan) and own.epsilon is not None:
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
    if model is None:
        why = "no planned model uses every column of the dictionary"
        return *lines, Price(name="noisy moments", epsilon=None, covered=why, width=None)
    focus = model.declared or model.covariates
    which = "every coefficient" if set(focus) == set(model.covariates) else " and ".join(focus)
    for name, declared in (("noisy moments", ()), (f"noisy moments, {which} declared", focus)):
        release = replace(model, declared=declared, shares={})
        lines.append(_priced(name, plan, {**bare, "release": release}, everything))
    return tuple(lines)


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
        unseen = _UNSEEN.get(changed.release.title, "")
        return Price(
            name=name, epsilon=price, covered=covered, width=width, epsilon_given=given(changed), unseen=unseen
        )
    except Refusal as refusal:
        return Price(name=name, epsilon=None, covered=f"not for this study: {refusal.must}", width=None)


def _latent_width(w: float) -> float:
    """Of a regression coefficient, whose order is 2 (`coordinator.pooling.intervals`), at posture local."""
    from coordinator.pooling.intervals import Draw, parts

    draw = Draw(rows=1, w=w, fitted_on=1)
    return float(sum(parts(1.0, [draw], 2.0)) ** 0.5)


def moments_of(plan: StudyPlan, epsilon: float) -> Any:
    """The moments release of the first planned model that gives every column a role; None without one."""
    from shared.estimands.questions import MODELS, parse_estimand
    from shared.mechanisms.moments.plan import MomentsPlan

    for formula in plan.estimands.values():
        try:
            question = parse_estimand(formula)
            if question.kind not in MODELS or question.outcome_kind not in _OUTCOMES:
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


# -- what changed? ------------------------------------------------------------------------------------------------
def changes(before: StudyPlan, after: StudyPlan) -> tuple[str, ...]:
    """Changes of a new version, one line per setting: ``budget.epsilon: 8.0 → 6.0``.

    >>> from coordinator.planning.template import template
    >>> old = StudyPlan.from_toml(template("stroke", coordinator="hub", today=dt.date(2026, 1, 1)))
    >>> from dataclasses import replace
    >>> changes(old, replace(old, row_download=True))
    ('row_download: false → true',)
    """
    left, right = dict(_flat(before.to_canonical())), dict(_flat(after.to_canonical()))
    keys = [*left, *(key for key in right if key not in left)]
    return tuple(
        f"{key}: {left.get(key, 'absent')} → {right.get(key, 'absent')}"
        for key in keys
        if key != "version" and left.get(key) != right.get(key)
    )


def _flat(value: Any, at: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flat(item, f"{at}.{key}" if at else str(key))]
    if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[0], dict):
        named = [(str(item.get("name", item.get("number", index))), item) for index, item in enumerate(value)]
        return [pair for name, item in named for pair in _flat(item, f"{at}.{name}")]
    from shared.base.canonical import canonical_json

    return [(at, canonical_json(value).decode())]
