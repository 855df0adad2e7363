"""Review of a plan before it is signed: line by line, each green or with its fix; and what changed since the last.

Nothing here reads a record, and of the store no more than what is signed of a study (`KnownStudy`);
`coordinator.planning.price` has what it costs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from coordinator.planning.attack_limits import attack_line
from coordinator.planning.price import conditions, cost
from shared.errors import PlanRefusal, Refusal, StateRefusal
from shared.mechanisms.base import Aggregates, Answering
from shared.plans.outcomes import fitted_by
from shared.plans.plan import Floors, StudyPlan
from shared.privacy.stated import shown_delta, shown_epsilon, shown_price, shown_room
from shared.terminal import FORMULA, ChecklistLine

if TYPE_CHECKING:
    from coordinator.store.store import Store
    from shared.estimands.questions import Estimand
    from shared.plans.dictionary import Column

__all__ = ["SIGNED", "KnownStudy", "changes", "review", "reviewed"]

MEANINGFUL = 10.0
"""Above this ε a guarantee is called what it is: none worth the name."""
_SPREAD = 50.0
"""Above so many times its smallest, a column's largest value makes its logarithm a matter of its smallest."""
SIGNED = "signed"
"""Name of the line on a plan that is signed already."""


# -- is it complete? ----------------------------------------------------------------------------------------------
def review(
    text: str, *, today: dt.date, recipient: str = "", signed: Callable[[str], StudyPlan | None] = lambda study: None
) -> tuple[StudyPlan | None, tuple[ChecklistLine, ...]]:
    """Read a study.toml and hold it against what a plan must be.

    Args:
        text: the file.
        today: the day on which it is judged.
        recipient: this coordinator's name, where there is one.
        signed: from a study's name to its last signed plan, where one is known: what it has may stay.
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
    last = signed(plan.study)
    lines = [
        ChecklistLine(name="plan", detail=f"{plan.study}, version {plan.version}, hash {plan.hash[:12]}"),
        *_version(plan, last),
        _recipient(plan, recipient),
        ChecklistLine(name="posture", detail=f"{plan.posture}: {_posture(plan)}"),
        *_dictionary(plan),
        *(_estimand(plan, name, formula) for name, formula in plan.estimands.items()),
        *_calendar(plan, today),
        *_price(plan),
        *_theorem3(plan),
        *plan.release.review(plan, None if last is None else last.release),
        _floors(plan),
    ]
    lines += [*_training(plan, last), *_sealed(plan, last)]
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


# -- may it be signed here? ---------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class KnownStudy:
    """What a coordinator's store knows of a study.

    Args:
        last: its last signed plan; None where none is signed.
        ended: the red line where its leads have ended it.
    """

    last: StudyPlan | None = None
    ended: ChecklistLine | None = None

    @classmethod
    def of(cls, store: Store, study: str) -> KnownStudy:
        """What is known of a study by this name."""
        from coordinator.store.membership import require_open

        ended = None
        try:
            store.read(lambda c: require_open(c, study))
        except StateRefusal as refusal:
            ended = ChecklistLine.of("study", refusal)
        try:
            return cls(last=store.plan(study).plan, ended=ended)
        except PlanRefusal:
            return cls(ended=ended)

    def to_plain(self) -> dict[str, Any]:
        """The same in plain values, for a worker."""
        last, ended = self.last, self.ended
        return {"last": last and last.to_canonical(), "ended": ended and asdict(ended)}

    @classmethod
    def from_plain(cls, given: Mapping[str, Any]) -> KnownStudy:
        """What `to_plain` gave."""
        last, ended = given["last"], given["ended"]
        return cls(last=last and StudyPlan.from_canonical(last), ended=ended and ChecklistLine(**ended))


def reviewed(
    text: str, *, today: dt.date, recipient: str = "", known: Callable[[str], KnownStudy] = lambda study: KnownStudy()
) -> tuple[StudyPlan | None, tuple[ChecklistLine, ...]]:
    """Review of a plan as `plan sign` would do it: by the study's last version, and by whether it has ended.

    Args:
        text, today, recipient: as of `review`.
        known: from a study's name to what is known of it.
    """
    ended: list[ChecklistLine] = []

    def last(study: str) -> StudyPlan | None:
        found = known(study)
        ended.extend([found.ended] if found.ended else [])
        return found.last

    plan, checks = review(text, today=today, recipient=recipient, signed=last)
    return plan, (*checks, *ended)


_POSTURES: Mapping[str, str] = {
    "local": "the flow is fitted on the released records; ε does not cover that fit",
    "holdout": "the flow is fitted on persons who are never released; ε does not cover those",
    "public": "nothing is fitted on records; ε covers everyone",
    "private": "the flow is trained with noise; ε covers that and everyone",
}


def _posture(plan: StudyPlan) -> str:
    if isinstance(plan.release, Aggregates):
        return "nothing is fitted at a site, every figure has its noise; ε covers everyone"
    return _POSTURES[plan.posture].replace("flow", plan.release.fits)


def _version(plan: StudyPlan, last: StudyPlan | None) -> list[ChecklistLine]:
    """A red line where another plan of this version, or of a later one, is signed; a warning where this very one is."""
    if last is None or plan.version > last.version:
        return []
    if plan.hash == last.hash:
        fix = f"Nothing is left to sign; a change to it is version = {last.version + 1}."
        return [ChecklistLine(name=SIGNED, state="warn", detail="this very plan is signed already", fix=fix)]
    detail = f"{plan.version}, and version {last.version} is signed already"
    return [ChecklistLine(name="version", state="fail", detail=detail, fix=f"Set version = {last.version + 1}.")]


def _training(plan: StudyPlan, last: StudyPlan | None) -> list[ChecklistLine]:
    """A red line on a search among networks; a warning where the study's last version has it."""
    try:
        plan.training.require_one_network()
    except Refusal as refusal:
        if last is None or not last.training.search:
            return [ChecklistLine.of("training", refusal)]
        fix = "Leave training.search out if the further waves fit a new flow: they refresh with refit = true."
        detail = "with training.search a site draws through the flow of an earlier release, and fits none"
        return [ChecklistLine(name="training", state="warn", detail=detail, fix=fix)]
    return []


def _sealed(plan: StudyPlan, last: StudyPlan | None) -> list[ChecklistLine]:
    """A warning where further waves are to be drawn through flows that are sealed, and the plan wants other ones."""
    if last is None or plan.version <= last.version or isinstance(plan.release, Aggregates | Answering):
        return []
    through = [str(w.number) for w in plan.waves[1:] if plan.returning != "refresh" or not w.refit]
    changed = [
        what
        for what, differs in (
            ("the columns", plan.dictionary.hash != last.dictionary.hash),
            ("how a flow is fitted or which outcomes it draws", fitted_by(plan) != fitted_by(last)),
        )
        if differs
    ]
    if not through or not changed:
        return []
    detail = (
        f"{' and '.join(changed)} changed, and wave {', '.join(through)} is drawn through the {plan.release.fits} that "
        "a site sealed with its first release: a site that has released is refused"
    )
    fix = "Begin a new study for it, or let the waves refresh and fit anew (returning = 'refresh', refit = true)."
    return [ChecklistLine(name="sealed flow", state="warn", detail=detail, fix=fix)]


def _recipient(plan: StudyPlan, recipient: str) -> ChecklistLine:
    if recipient and plan.coordinator != recipient:
        return ChecklistLine(
            name="recipient",
            state="fail",
            detail=f"{plan.coordinator!r} is not this coordinator",
            fix=f"Set coordinator = {recipient!r}.",
        )
    return ChecklistLine(name="recipient", detail=plan.coordinator)


def _dictionary(plan: StudyPlan) -> list[ChecklistLine]:
    released = plan.dictionary.released
    person = plan.dictionary.person or "none: ε is for one row"
    lines = [ChecklistLine(name="dictionary", detail=f"{len(released)} released columns; person column: {person}")]
    if (repeated := plan.dictionary.repeated) is not None:
        lines.append(ChecklistLine(name="repeated rows", detail=f"{repeated.words}; ε is for all of them together"))
        lines += [
            ChecklistLine(
                name="repeated rows",
                state="warn",
                detail=f"a person without all rows is {'refused' if column.missing == 'refuse' else 'left out'}",
                fix=f"Set missing = 'level' for {name}, so that a row may be missing.",
            )
            for name in repeated.columns
            if (column := plan.dictionary.column(repeated.names(name)[-1])).missing != "level"
        ]
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
    if formulas := [name for name, texts in cells.items() if any(map(FORMULA.search, texts))]:
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
    from shared.estimands.kinds import KINDS, SURVIVAL
    from shared.estimands.questions import parse_estimand

    label = f"estimand {name}"
    try:
        question = parse_estimand(formula).with_rows(plan.dictionary.repeated)
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
    if "at" in KINDS[question.kind].must and question.at is None:
        fix = f"Write {question.kind}(time, event, at = 5), the same time at every site."
        detail = f"{question.kind} without a time is a curve, not one number"
        return ChecklistLine(name=label, state="fail", detail=detail, fix=fix)
    if question.kind in SURVIVAL:
        follow_up = columns[question.duration]
        if follow_up.kind != "time":
            fix = f"Declare {question.duration} with kind = 'time'."
            return ChecklistLine(name=label, state="warn", detail=f"{question.duration} is no follow-up time", fix=fix)
    try:
        if isinstance(plan.release, Aggregates):
            plan.release.require_shapes(question)
        if isinstance(plan.release, Answering):
            plan.release.require_answerable(question)
    except Refusal as refusal:
        return replace(ChecklistLine.of(label, refusal), state="warn")
    if isinstance(plan.release, Aggregates) and not plan.release.plans(plan, question):
        detail = (
            "another model than the figures are of: its answers come from rows drawn of the fit, less sure than said"
        )
        fix = "Ask of the planned outcome, with every planned covariate, or name the question's own columns in release."
        return ChecklistLine(name=label, state="warn", detail=detail, fix=fix)
    if not isinstance(plan.release, Aggregates) and (logged := _logged(question, columns)) is not None:
        return replace(logged, name=label)
    return ChecklistLine(name=label, detail=formula)


def _logged(question: Estimand, columns: Mapping[str, Column]) -> ChecklistLine | None:
    """A warning of a logarithm that is taken of drawn rows, where it spreads what is smallest; None without one."""
    from shared.estimands.formulas import Node, names, parse

    def logarithms(node: Node) -> list[Node]:
        own = [node] if node.kind == "call" and str(node.value).startswith("log") else []
        return own + [one for part in node.parts for one in logarithms(part)]

    asked = [parse(text) for text in (question.outcome, *question.terms, question.offset) if text]
    for call in (one for node in asked for one in logarithms(node)):
        for column in (columns[name] for name in names(call)):
            if column.kind not in ("continuous", "integer") or column.lower is None or column.upper is None:
                continue  # a follow-up time is drawn above 0
            low, high = (end + (call.value == "log1p") for end in (column.lower, column.upper))
            if low > 0 and (high <= _SPREAD * low or column.kind != "continuous"):
                continue
            none = "a row drawn at its bound has none, and its site no answer" if low <= 0 else "it is not in intervals"
            detail = (
                f"{call} is taken of rows drawn of {column.name} itself: how small its small values are is mostly noise"
                f"; {none}"
            )
            fix = f"Release it as a column of its own, which sites derive: log_{column.name} = 'log({column.name})'."
            return ChecklistLine(name="", state="warn", detail=detail, fix=fix)
    return None


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
    """Checklist line on the retention of releases: without one a new study fails, a later version is warned."""
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
        if not price.epsilon_given:  # noise that depends on the records, of which the mechanism's own line speaks
            return []
        fix = "Raise release.w above 0, or say in the purpose why not."
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
        lower = "release.w" if price.w_for_8 is not None else "release.epsilon"
        fewer_waves = "plan fewer waves, " if len(plan.waves) > 1 else ""
        fix = f"Lower {lower}, {fewer_waves}or raise budget.epsilon to a little above {total}."
        lines.append(ChecklistLine(name="budget", state="fail", detail=detail, fix=fix))
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
