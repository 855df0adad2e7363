"""Mechanism specs: ``[release]`` of a study plan, one frozen dataclass of settings per mechanism.

A *mechanism* (`shared.mechanisms`) is mathematics: records, parameters and noise in, an object out. A *mechanism spec*
is the same thing as a plan promises it: which event a release is charged as, what its receipt says, which sentences
tell a steward what is covered, and which tables the coordinator may take for such a release. What differs between
mechanisms is asked of it, so that plan, receipt, ledger, outbox and egress know none by name. Where rows are looked at
as rows, figures as figures and networks as networks (checks, attacks, planning, queries), their kinds are told apart.

A release is a receipt and one table, always. A `MechanismPlan` of rows (latent noise) releases synthetic rows of the
dictionary, for which flows are fitted at the site. What releases something else is `Answering`: what is made of it
afterwards (`synthetic`, `answer`) is post-processing and free. `Aggregates` are noisy figures, one per row, drawn in
one step from the checked records; a network is fitted and drawn from its edges, by its site.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, Unpack

from shared.errors import EstimateRefusal, ParameterError, PlanRefusal

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.plans.plan import StudyPlan
    from shared.privacy.accountant import Event
    from shared.terminal import ChecklistLine

__all__ = [
    "HIDDEN",
    "Aggregates",
    "Answering",
    "EdgeRules",
    "Effort",
    "Extent",
    "Facts",
    "MechanismPlan",
    "balanced",
    "by_plan",
    "may_share_persons",
    "must",
    "other_record",
    "require_addable",
    "unit",
    "widest",
]

ReleasedTables: TypeAlias = "Sequence[tuple[pd.DataFrame, int]]"
"""Released tables, each with its number of persons."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Mechanism parameters that a receipt states beside the price.

    Args:
        d: columns the noise is added to.
        parameters: name to value.
        neighbours: the relation of which the price speaks.
        model: ``local`` (noise on each row by itself) or ``central`` (noise on sums).
        conditional_on: what the price takes as given.
        epsilon_paper: the source paper's figure, where its bound is a looser one; readers look for it.
    """

    d: int
    parameters: Mapping[str, float]
    conditional_on: str
    model: str
    neighbours: str = "replace_one"
    epsilon_paper: float | None = None


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Largest size of a released table, from its plan and its number of persons alone.

    Args:
        texts: text column to the most bytes (UTF-8) of one value.
        lists: columns whose values are lists of whole numbers.
        numbers: columns of one number each.
    """

    rows: int
    texts: Mapping[str, int]
    lists: tuple[str, ...] = ()
    numbers: int = 0

    @property
    def bytes(self) -> int:
        """Most bytes of its numbers and words, as they are opened.

        >>> Extent(rows=10, texts={"sex": 6}, numbers=2).bytes
        220
        """
        return self.rows * (8 * self.numbers + sum(self.texts.values()))


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Cost of making one release: seconds of CPU, megabytes of memory, megabytes of the bundle.

    Measured on one core (`tests/benchmarks/estimates.py`): the constants are fitted to half of its sizes.
    """

    seconds: float
    memory_mb: float
    bundle_mb: float


@dataclass(frozen=True, kw_only=True)
class EdgeRules:
    """Settings of the network between the rows of a table.

    Args:
        directed: whether an edge from a to b differs from one from b to a.
        strangers: an edge with an end outside the node table is refused, or left out and counted.
    """

    directed: bool = False
    strangers: Literal["refuse", "leave_out"] = "refuse"


@dataclass(frozen=True, kw_only=True)
class MechanismPlan(ABC):
    """Settings of one mechanism, as a plan fixes them.

    `mechanism` is its name in plans and receipts, `title` what people call it.
    """

    mechanism: str
    title: ClassVar[str] = ""
    follow: ClassVar[int] = 0
    """Rounds that follow a release's delivery under the same charge."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that not everybody installs, as they are imported (`shared.errors.require`)."""
    draws_rows: ClassVar[bool] = False
    """True if the released table holds synthetic rows of the dictionary."""
    later: ClassVar[tuple[str, ...]] = ()
    """Fields added after plans were first signed: omitted from canonical JSON at their default, so that the hash of an
    older plan stays what was approved."""
    before: ClassVar[Mapping[str, Any]] = {}
    """Fields whose default has changed, with the old default: it is read where a plan omits the field, because the
    plan was signed before the change. New plans spell these fields out."""
    retired: ClassVar[tuple[str, ...]] = ()
    """Sentences of `not_covered` that receipts of earlier versions have, and that no longer hold."""
    bundle_of: ClassVar[tuple[float, float]] = (0.006, 3.6e-4)
    """Of a bundle of figures: megabytes of the least one, and for each pair of columns."""
    fits: ClassVar[str] = "flow"
    """Noun for the fitted object ("flow" or "model") in the receipt's sentence on hold-out persons."""

    @classmethod
    def today(cls, written: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults of `before`'s settings in a plan that is written now, where `written` is all that it says."""
        return {item.name: item.default for item in fields(cls) if item.name in cls.before}

    @property
    def edges(self) -> EdgeRules | None:
        """The network that is read beside the table; None where there is none."""
        return None

    @property
    def unseen(self) -> str:
        """Errors of an answer that leave no trace in the release, in sentences for the price list; blank if none."""
        return ""

    @property
    def sealed(self) -> bool:
        """True if the fitted embedding of a network is kept, encrypted, and later waves build on it."""
        return False

    @property
    def keys(self) -> Mapping[str, str]:
        """Sites to release keys that must be these sites' own for the price to hold; empty where none need be."""
        return {}

    def require(self, plan: StudyPlan) -> None:
        """Refuse a plan that this mechanism cannot serve. Raises: PlanRefusal."""
        return

    def require_site(self, site: str, key: str) -> None:
        """Refuse a site for which the plan is not meant, by its release key (hexadecimal). Raises: PlanRefusal."""
        return

    @abstractmethod
    def event(self, plan: StudyPlan) -> Event:
        """Privacy event that one release is charged as; known before it runs."""

    def seen_by(self, plan: StudyPlan) -> Mapping[str, float]:
        """Colluding parties, in words, to the ε against them; empty where the ε is the same against everybody."""
        return {}

    def most_seen(self, plan: StudyPlan) -> tuple[str, Event] | None:
        """The colluding parties that see most, in words, and the release's event against them.

        None where the event is the same against everybody.
        """
        return None

    def reused(self, plan: StudyPlan) -> MechanismPlan:
        """The settings of a release that is drawn through what an earlier release of the study has fitted and paid for.

        Returns: itself, where that changes neither the price nor what it covers.
        """
        return self

    @abstractmethod
    def facts(self, plan: StudyPlan) -> Facts:
        """The receipt's facts."""

    @abstractmethod
    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Sentences for a steward: what the privacy guarantee covers."""

    def not_covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Sentences for a steward: what this mechanism does not cover, beyond what no release covers."""
        return ()

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """Lines of a lead's checklist that only this mechanism has: what its answers will not be sure of, and a fix.

        Args:
            signed: the mechanism of the study's last signed plan; None where there is none, or it is not known.
        """
        return []

    @abstractmethod
    def extent(self, plan: StudyPlan, n: int) -> Extent:
        """Largest size of a released table of `n` persons' records: known before a byte of it is read."""

    def effort(self, plan: StudyPlan, n: int, d: int) -> Effort:
        """Cost of a release of n persons in d encoded columns; where rows are released, without fitting the flow."""
        cells = n * d
        return Effort(
            seconds=1.6 + 1e-6 * cells + 2e-3 * d**2,
            memory_mb=215 + 7.6e-6 * cells + 3.2e-5 * n,  # the table once, and of each person name and pseudonym
            bundle_mb=self.bundle_of[0] + self.bundle_of[1] * d**2,
        )

    @abstractmethod
    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """Refuse a released table that this mechanism could not have made of `n` persons' records.

        Raises: DictionaryRefusal, SchemaRefusal. The agent asks before it seals, the coordinator before it accepts.
        """

    @abstractmethod
    def details(self, plan: StudyPlan) -> str:
        """The settings in half a line."""


@dataclass(frozen=True, kw_only=True)
class Answering(MechanismPlan):
    """A mechanism whose releases answer questions themselves: no regression on released rows would be right."""

    def synthetic(
        self, plan: StudyPlan, tables: ReleasedTables, *, draws: int, rng: np.random.Generator
    ) -> list[pd.DataFrame]:
        """Synthetic tables of the dictionary, fitted to released figures: post-processing.

        Args:
            tables: released figures and their n, of releases of different persons.
            draws: how many tables.
        Raises: EstimateRefusal, where the figures hold no rows.
        """
        raise EstimateRefusal(
            f"release.mechanism {self.mechanism!r} must hold enough to draw rows from",
            given="figures of single columns or groups",
            next_step="Ask for rows from a study of tables, moments or latent noise.",
        )

    @abstractmethod
    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """A question answered from released figures, one estimate per term, with its whole variance.

        Args:
            tables: as of `synthetic`.
            levels: levels of the dictionary's columns.
            origin: study, site, wave and receipts for the estimates.
        Raises: EstimateRefusal.
        """

    def require_answerable(self, question: Estimand) -> None:
        """Refuse a question that no release under this plan answers. Raises: EstimateRefusal."""

    def together(
        self, plan: StudyPlan, sites: Mapping[str, ReleasedTables], question: Estimand, *, origins: Mapping[str, Origin]
    ) -> dict[str, list[Estimate]]:
        """Site to its answer, where sites that released under one plan say more of each other; empty where not.

        Args:
            sites: site to its released figures and their n. origins: site to study, site, wave and receipts.
        Raises: EstimateRefusal.
        """
        return {}


HIDDEN = "room for association that noise hides"
"""Of a caution beside an answer that is found from released figures: what most of its interval is."""


def balanced(persons: Mapping[str, int]) -> tuple[str, ...]:
    """The sites of which none has more persons than all others together: none, or at least two.

    How many persons a site has is its own word, and a larger one would decide by itself how the others' figures are
    read (`Answering.together`).

    >>> balanced({"a": 900, "b": 800, "c": 700}), balanced({"a": 900, "b": 200, "c": 200}), balanced({"a": 2, "b": 1})
    (('a', 'b', 'c'), ('b', 'c'), ())
    """
    left = dict(persons)
    while left:
        largest = max(left, key=lambda site: left[site])
        if 2 * left[largest] <= sum(left.values()):
            break
        del left[largest]
    return tuple(left)


def may_share_persons(plans: Sequence[StudyPlan]) -> bool:
    """True if releases under these plans may be of the same persons, though each wave took new ones.

    Where versions of a plan name persons by different columns, a site could not tell whom its new ones were beside.
    """
    return len({plan.dictionary.person for plan in plans}) > 1


def require_addable(plans: Sequence[StudyPlan], *, redrawn: bool = False) -> None:
    """See that figures of a site's releases may be added up: of one ``[release]``, and of different persons.

    Args:
        plans: under which the releases were made, one of each.
        redrawn: whether each wave is of everybody anew.
    Raises: EstimateRefusal.
    """
    if any(plan.release != plans[-1].release for plan in plans):
        raise EstimateRefusal(
            "a site's releases must be of one [release] to be added up",
            given="several",
            next_step="Ask as of a wave before the plan changed.",
        )
    if len(plans) > 1 and (redrawn or may_share_persons(plans)):
        raise EstimateRefusal(
            "figures of the same persons must not be put together",
            given=f"{len(plans)} waves",
            next_step="Ask as of the first wave alone.",
        )


@dataclass(frozen=True, kw_only=True)
class Aggregates(Answering):
    """A mechanism that releases noisy figures instead of rows; nothing is fitted at the site.

    Its posture is ``private``: whatever looks at a record is in the price.
    """

    straight: ClassVar[bool] = False
    """True if the figures contain no product of covariates and no curve: `require_shapes` refuses questions on these.
    """

    def require_shapes(self, question: Estimand) -> None:
        """Raises: EstimateRefusal: an interaction or a curve where the figures hold none."""
        if self.straight and question.shapes:
            raise EstimateRefusal(
                f"a question to {self.title} must have no interaction, no curve and no change with time: their figures "
                "hold none, and none would be found",
                given=", ".join(question.shapes),
                next_step="Ask without it, or plan a mechanism that keeps rows.",
            )

    def require(self, plan: StudyPlan) -> None:
        """Posture ``private``, nothing that only a flow would need, and waves that append or refresh."""
        must(plan.private is None, f"[private] must not be given with release.mechanism {self.mechanism!r}", "one")
        must(not plan.reference, f"[reference] must not be given with release.mechanism {self.mechanism!r}", "one")
        if plan.posture != "private":
            raise PlanRefusal(
                f"release.mechanism {self.mechanism!r} must have posture 'private': all it says of a record is noised",
                given=repr(plan.posture),
                next_step='Write posture = "private".',
            )
        if plan.returning == "frozen" and len(plan.waves) > 1:
            raise PlanRefusal(
                f"release.mechanism {self.mechanism!r} must append or refresh: there are no rows to copy",
                given="returning = 'frozen'",
                next_step='Write returning = "append" or "refresh".',
            )

    def plans(self, plan: StudyPlan, question: Estimand) -> bool:
        """True if the figures answer a question themselves; otherwise it is estimated on rows drawn from their fit."""
        return True

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Everybody, and everything that looks at them."""
        person = unit(plan) == "patient"
        everyone = "Every person in the table" if person else "Every row of the hospital's table"
        record = "one person's record" if person else "one row of the hospital's table"
        return (
            f"{everyone}: replacing {record} by {other_record(plan)} changes the probability of any released figures "
            "by at most the stated (ε, δ). Everything that looks at a record is noised and priced; bounds, bins and "
            "weights come from the plan. What is made of the figures afterwards costs nothing more.",
        )

    def measure(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> Any:
        """Input of `draw`, computed from checked records (`Dictionary.check`): by default the records themselves.

        No noise is drawn here, and it runs before the draw, so that it may refuse without a loss.

        Args:
            records: with their edges in the column ``neighbours`` where the mechanism reads any. Their order may depend
                on their values: a database returns them sorted.
            rng: for a random order.
        """
        return records

    @abstractmethod
    def draw(self, plan: StudyPlan, records: Any, rng: Noise) -> pd.DataFrame:
        """The noisy figures of what `measure` gave: the one draw."""

    def clipped(self, plan: StudyPlan, records: pd.DataFrame) -> int | None:
        """Number of checked records with a value beyond this mechanism's own bounds; None where it has none.

        For the hospital's approver alone: it is counted exactly, and is in no price.
        """
        return None

    def doubt(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> str:
        """Warning that so few persons under so much noise leave little signal, in a sentence; empty where enough is
        left.

        It is read from the released figures alone, and costs nothing.
        """
        return ""


def unit(plan: StudyPlan) -> str:
    """Unit of privacy: "patient", or "row" where no column says which rows are one person's."""
    return "patient" if plan.dictionary.person is not None else "row"


def other_record(plan: StudyPlan) -> str:
    """Neighbouring record, in words: any other, or any other complete one where the plan drops incomplete records.

    A record with a missing value would be left out, and n, which is public, would move.
    """
    left_out = any(column.missing == "complete_case" for column in plan.dictionary.released)
    return "any other complete record" if left_out else "any other"


def widest(words: Iterable[object]) -> int:
    """Bytes of the longest of some words, in UTF-8.

    >>> widest(["no", "où"])
    3
    """
    return max((len(str(word).encode()) for word in words), default=0)


@contextmanager
def by_plan() -> Iterator[None]:
    """Within it a refusal of a mechanism's parameters is one of the plan that gives them. Raises: PlanRefusal."""
    try:
        yield
    except ParameterError as error:
        raise PlanRefusal(error.must, given=error.given, next_step=error.next_step or "Correct the plan.") from None


def must(holds: bool, rule: str, given: object, step: str = "Correct the plan.") -> None:
    """Refuse a plan unless `holds`. Raises: PlanRefusal."""
    if not holds:
        raise PlanRefusal(rule, given=f"{given}", next_step=step)
