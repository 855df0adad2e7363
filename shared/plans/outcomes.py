"""Outcome columns of a plan, and the properties of all columns that a flow needs to draw the outcomes last.

Outcomes are the columns on the left of a planned question, and those that the dictionary declares an event or a time.
The column that a question compares between groups is an outcome too; the column of the groups is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.base.canonical import canonical_json, sha256_hex
from shared.errors import ParameterError

if TYPE_CHECKING:
    from shared.estimands.questions import Estimand
    from shared.plans.dictionary import Column
    from shared.plans.plan import StudyPlan

__all__ = ["PlannedOutcomes", "between_covariates", "drawn_last", "fitted_by", "planned_outcomes"]

_MOST_LEFT_OUT = 30
"""Pairs that are kept apart at most: each is a term more of every law."""


@dataclass(frozen=True, kw_only=True)
class PlannedOutcomes:
    """Outcomes as encoded columns, and what all encoded columns are.

    Args:
        d: encoded columns.
        groups: in the order in which they are drawn, each of one column, or of a time and its event.
        covariates: how many of the first groups are no outcomes: numbers that may be missing, and whether they are. In
            a missing one's place stands what the encoder draws, of which a flow would make values.
        levels: encoded column to its levels, of levelled ones.
        whole: columns of whole numbers that are no levels.
        gates: column to the one that says that its value is missing.
        bounds: column to the least and the largest code that a released value may have.
        products: pairs of columns whose product a planned question reads; a column with itself for its square.
        curves: columns of which a planned question reads a curve (`shared.estimands.splines.CURVES`): no digest has
            them, and flows that were sealed before they were read are still the plan's.
        left_out: pairs of a column whose last level is that a value is missing, so that a planned question leaves its
            record out, and a column that the question reads beside it.
    """

    d: int
    groups: tuple[tuple[int, ...], ...]
    levels: Mapping[int, int]
    whole: frozenset[int]
    gates: Mapping[int, int]
    bounds: Mapping[int, tuple[float, float]]
    products: tuple[tuple[int, int], ...] = ()
    curves: tuple[int, ...] = ()
    left_out: tuple[tuple[int, int], ...] = ()
    covariates: int = 0

    @property
    def outcomes(self) -> tuple[tuple[int, ...], ...]:
        """Groups of outcomes."""
        return self.groups[self.covariates :]

    @property
    def drawn(self) -> tuple[int, ...]:
        """All columns that are drawn last, ascending."""
        return tuple(sorted(column for group in self.groups for column in group))

    def kind(self, group: tuple[int, ...]) -> str:
        """``levels``, ``hazard``, ``count`` or ``linear``: which law a group has."""
        if len(group) == 2:
            return "hazard"
        if group[0] in self.levels:
            return "levels"
        return "count" if group[0] in self.whole else "linear"


def planned_outcomes(plan: StudyPlan) -> PlannedOutcomes | None:
    """Outcomes of a plan; None where its flow does not draw them last, or the plan names none.

    None as well for a plan without a covariate.
    """
    if plan.training.outcomes != "last":
        return None
    return _named(plan)


def drawn_last(plan: StudyPlan) -> frozenset[str]:
    """Names of the outcomes that are drawn last, by laws that read every other column; none where no outcome is."""
    from shared.plans.encoding import Encoder

    outcomes = planned_outcomes(plan)
    if outcomes is None:
        return frozenset()
    columns = Encoder(dictionary=plan.dictionary).columns
    return frozenset(columns[j].removesuffix(" missing") for group in outcomes.outcomes for j in group)


def between_covariates(question: Estimand, last: Collection[str]) -> tuple[str, ...]:
    """Columns that a question relates to each other though none of them is drawn last; none where it relates none so.

    How such columns hang together only the flow says, and no law is put right on the records for it.

    Args:
        last: the columns that are drawn last (`drawn_last`).

    >>> from shared.estimands.questions import parse_estimand
    >>> between_covariates(parse_estimand("ols(children) ~ age + died"), {"died"})
    ('children', 'age')
    >>> between_covariates(parse_estimand("ols(age) ~ died"), {"died"})
    ()
    """
    columns = question.columns
    if question.kind == "correlation":
        loose = tuple(name for name in columns if name not in last)
        return loose if len(loose) > 1 else ()
    if question.kind in ("table_one", "crosstab", "histogram"):
        left = set(columns) - set(_names(question.by, question.subset)) if question.kind != "crosstab" else {columns[0]}
    else:
        left = set(_names(question.outcome, question.event, question.competing, question.duration))
        if (long := question.long) is not None:  # of a repeated column every one
            left |= {wide for name in left & set(long.columns) for wide in long.wide(name)}
    own = [name for name in columns if name in left and name not in last]
    beside = [name for name in columns if name not in left and name not in last]
    return (*own, *beside) if own and len(own) + len(beside) > 1 else ()


def fitted_by(plan: StudyPlan) -> str:
    """Digest of everything in a plan that decides how a flow is fitted, and so what its receipt says of it."""
    body = plan.to_canonical()
    said = {key: body[key] for key in ("posture", "training", "private", "holdout", "reference")}
    # What latents are, and where their noise is centred, besides w and R: absent where a plan does not say it.
    # Absent likewise: which outcomes are drawn last follows from the planned questions; which covariates, from the
    # dictionary, and flows that were sealed before that are still the plan's.
    if plan.training.outcomes != "joint":
        last = planned_outcomes(plan)
        asked = (last.outcomes, last.products) if last is not None and last.outcomes else None
        said["outcomes"] = asked and [[list(one) for one in part] for part in asked]
    release = body["release"]
    said |= {key: release[key] for key in ("shrink", "carry", "vary") if key in release}
    return sha256_hex(canonical_json({**said, "flow": plan.flow} if plan.flow else said))


def _named(plan: StudyPlan) -> PlannedOutcomes | None:
    from shared.plans.encoding import Encoder

    encoder = Encoder(dictionary=plan.dictionary)
    place = {name: j for j, name in enumerate(encoder.columns)}
    columns = {column.name: column for column in plan.dictionary.released}
    reads = _PlannedReads.of(plan, columns, place)
    asked = _placed(_ordered(reads, columns), place)
    own = {j for group in asked for j in group}
    lacking = [name for name in columns if place[name] not in own and f"{name} missing" in place]
    before = _placed([(name,) for name in lacking], place)
    if len(own) + len(before) == encoder.d:
        before = []  # something must be there that laws can read
    groups = [*before, *asked]
    if not groups or len(own) == encoder.d:
        return None
    levels: dict[int, int] = {}
    whole, gates, bounds = [], {}, {}
    for name, column in columns.items():
        j = place[name]
        if column.levels:
            levels[j] = len(column.levels) + (column.missing == "level")
            continue
        if column.kind == "integer":
            whole.append(j)
            bounds[j] = (0.0, column.span[1] - column.span[0])
        elif column.kind == "continuous":
            bounds[j] = (-1.0, 1.0)
        if f"{name} missing" in place:
            levels[place[f"{name} missing"]] = 2
            gates[j] = place[f"{name} missing"]
    return PlannedOutcomes(
        d=encoder.d,
        groups=tuple(groups),
        covariates=len(before),
        levels=levels,
        whole=frozenset(whole),
        gates=gates,
        bounds=bounds,
        products=tuple(reads.products),
        curves=tuple(reads.curves),
        left_out=tuple(reads.left_out)[:_MOST_LEFT_OUT],
    )


def _placed(names: list[tuple[str, ...]], place: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Each group's encoded columns, after whether its value is missing."""
    groups: list[tuple[int, ...]] = []
    for group in names:
        groups += [(place[f"{name} missing"],) for name in group if f"{name} missing" in place]
        groups.append(tuple(place[name] for name in group))
    return groups


@dataclass(frozen=True)
class _PlannedReads:
    """Roles of the columns in the plan's questions and dictionary, in the order of first mention.

    Attributes:
        reads: outcome to the columns that its questions read beside it.
        events: time to the event that ends it.
        products: pairs of encoded columns that a term multiplies.
        curves: encoded columns of which a term is a curve.
        left_out: of `PlannedOutcomes`.
    """

    reads: dict[str, set[str]]
    events: dict[str, str]
    products: dict[tuple[int, int], None]
    left_out: dict[tuple[int, int], None]
    curves: dict[int, None]

    @classmethod
    def of(cls, plan: StudyPlan, columns: Mapping[str, Column], place: Mapping[str, int]) -> _PlannedReads:
        from shared.estimands.splines import CURVES

        found = cls({}, {}, {}, {}, {})
        for one in _column_questions(plan):
            for name, earlier in _row_by_row(one).items():
                found.reads.setdefault(name, set()).update(earlier)
            own = [name for name in _names(one.outcome, one.event, one.competing, one.duration) if name in columns]
            read = [name for name in one.columns if name in columns and name not in own]
            for name in own:
                found.reads.setdefault(name, set()).update(read)
            if one.duration in columns and one.duration not in found.events:
                events = [name for name in own if name != one.duration]
                if len(events) == 1:
                    found.events[one.duration] = events[0]
            for term in one.terms:
                found.products.update(dict.fromkeys(_products(term, place)))
                if term.startswith(tuple(f"{name}(" for name in CURVES)):
                    bent = [name for name in _names(term) if name in columns and not columns[name].levels]
                    found.curves.update(dict.fromkeys(place[name] for name in bent))
            lacking = {
                name: place.get(f"{name} missing", place[name]) for name in read if columns[name].missing == "level"
            }
            pairs = [(gate, place[other]) for name, gate in lacking.items() for other in read if other != name]
            found.left_out.update(dict.fromkeys(pairs))
        for name, column in columns.items():
            if column.kind in ("event", "time"):
                found.reads.setdefault(name, set())
                if column.kind == "time" and column.event in columns:
                    found.events.setdefault(name, column.event)
        return found


def _row_by_row(question: Estimand) -> dict[str, set[str]]:
    """Of repeated columns: each to what is drawn before it, which is earlier rows, and in its row what is no outcome.

    What only one of them has, that a visit did not take place, is then drawn once, and the others follow it.
    """
    long = question.long
    if long is None:
        return {}
    own = [name for name in _names(question.outcome) if name in long.columns]
    same = {name for name in question.row_columns if name not in (*long.columns, long.visit)}
    order = [name for name in long.columns if name not in own] + own
    drawn = [long.wide(name)[row] for row in range(long.rows) for name in order]
    return {column: same | set(drawn[:k]) for k, column in enumerate(drawn)}


def _column_questions(plan: StudyPlan) -> Iterator[Estimand]:
    """The questions of a plan that are of columns."""
    from shared.estimands.questions import parse_estimand

    for text in plan.estimands.values():
        try:
            one = parse_estimand(text).with_rows(plan.dictionary.repeated)
        except ParameterError:
            continue  # a note in words, or a question of another mechanism
        if one.kind not in ("network", "correlation"):
            yield one


def _ordered(reads: _PlannedReads, columns: Mapping[str, Column]) -> list[tuple[str, ...]]:
    """Outcomes in the order in which they are drawn, a time with its event.

    Times last; and what another outcome's question reads comes before that outcome.
    """
    paired = {
        time: event
        for time, event in reads.events.items()
        if columns[time].kind == "time"
        and columns[time].missing != "level"
        and len(columns[event].levels) == 2
        and columns[event].missing != "level"
        and list(reads.events.values()).count(event) == 1
    }
    order: list[tuple[str, ...]] = []
    waiting = [name for name in reads.reads if name not in paired.values()]
    waiting.sort(key=lambda name: (name in paired, list(columns).index(name)))
    while waiting:
        now = [name for name in waiting if name not in paired] or waiting
        free = [name for name in now if not (reads.reads[name] - {name}) & set(now)]
        chosen = (free or now)[0]
        waiting.remove(chosen)
        order.append((chosen, paired[chosen]) if chosen in paired else (chosen,))
    return order


def _names(*texts: str) -> list[str]:
    from shared.estimands.formulas import names, parse

    return list(dict.fromkeys(name for text in texts if text for name in names(parse(text))))


def _products(term: str, place: Mapping[str, int]) -> list[tuple[int, int]]:
    """Pairs of encoded columns that a term multiplies; a square where a term of one column is no plain column."""
    found = [name for name in _names(term) if name in place]
    if ":" in term or "*" in term:
        return [(place[a], place[b]) for i, a in enumerate(found) for b in found[i + 1 :]]
    return [(place[found[0]], place[found[0]])] if "^" in term and len(found) == 1 else []
