"""Mechanism spec of capped network counts: some counts of everybody's network, each with Laplace noise, at a pure ε.

Posture ``private``: everybody is covered, with all edges and attributes together, and nobody is held out. What may be
asked is planned: edges always, paths of two edges and triangles where `figures` names them, and how far a column with
levels stays with the edges where `by` names it. A count is of the network in which nobody has more than the plan's
caps (`shared.mechanisms.network_counts.capped`), and equals the real one where nobody has.

The released table has a line per count. A second, smaller cap of edges, paths and triangles tells how much a cap may
have left out: where halving it takes a lot away, there are persons beyond it.

What each block is worth (:data:`WEIGHTS`) was chosen on eight worlds of networks and is reported on eight others
(docs/benchmarks.md). A wave that appends is a network of its own persons, and edges to those of other waves are not
counted: they would charge these again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from shared.base.canonical import is_list, is_number, is_whole
from shared.errors import SchemaRefusal
from shared.mechanisms.base import EdgeRules, Effort, Facts, ReleasedTables, must, other_record
from shared.mechanisms.grand.edges import adjacency
from shared.mechanisms.labelled import LabelledFigures, Layout, arrays_of
from shared.mechanisms.network_counts import capped
from shared.plans.dictionary import LEVELLED
from shared.privacy.stated import shown_epsilon

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from shared.base.randomness import Noise
    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.mechanisms.base import MechanismPlan
    from shared.plans.plan import StudyPlan
    from shared.privacy.accountant import Event, Laplace
    from shared.terminal import ChecklistLine

__all__ = ["COLUMNS", "FIGURES", "CappedCount", "NetworkCountsPlan", "noised"]

COLUMNS = ("count", "of", "value")
"""Of the released table: which count, of which column and level, and its noisy value."""
FIGURES = ("paths", "triangles")
"""Statistics that a plan may count beside edges."""
WEIGHTS = {"edges": 2.0, "paths": 3.0, "triangles": 6.0, "alike": 1.5, "apart": 1.5, "ends": 2.0}
"""A block's part of ε, before they are made to add up; its smaller cap, half as large, has a quarter of that beside."""
_BESIDE = 0.25
_LEAST, _MOST = 4, 10_000
_CERTAIN = 60.0
"""Scales of noise that no draw exceeds: less likely than 2⁻⁸⁶."""


@dataclass(frozen=True, kw_only=True)
class CappedCount:
    """One block of counts under one cap.

    Args:
        name: as the released table names it. of: the column whose levels are counted apart, or "".
        cap: what a person counts for at most. sensitivity: ℓ₁, of all its values together, replacing one person.
        scale: b of the Laplace noise on each value.
        labels: a value's `of` in the released table, value by value.
    """

    name: str
    of: str
    cap: int
    sensitivity: int
    scale: float
    labels: tuple[str, ...]

    @property
    def event(self) -> Laplace:
        """The privacy event of the block."""
        from shared.privacy.accountant import Laplace

        return Laplace(scale=self.scale, sensitivity=float(self.sensitivity))


@dataclass(frozen=True, kw_only=True)
class NetworkCountsPlan(LabelledFigures):
    """Counts of everybody's network, under caps that are public.

    Args:
        epsilon: of one person with all edges and attributes; pure: δ plays no part.
        most_contacts: D. Whoever has more edges counts as if some of them were not there. It makes the noise.
        most_paths: paths of two edges that one person is part of; D (D − 1) if left out, which is enough where who has
            D contacts knows people of half as many.
        most_triangles: triangles of one person; D (D − 1) / 8 if left out: one pair of contacts in four is connected.
        figures: which of :data:`FIGURES` are counted beside edges; transitivity needs both.
        by: columns with levels whose mixing over edges is counted.
        strangers: an edge with an end outside the node table is refused, or left out and counted.
    """

    epsilon: float
    most_contacts: int
    most_paths: int | None = None
    most_triangles: int | None = None
    figures: Sequence[str] = FIGURES
    by: Sequence[str] = ()
    strangers: str = "refuse"
    mechanism: Literal["network_counts"] = "network_counts"
    title: ClassVar[str] = "capped network counts"
    retired: ClassVar[tuple[str, ...]] = (
        "That there is no release: where persons above the caps share more than 500000 sets of two or three, their "
        "counts cannot be found, and the site stops before anything is drawn or charged.",
    )

    def __post_init__(self) -> None:
        epsilon = self.epsilon
        must(
            is_number(epsilon) and 0 < epsilon < math.inf,
            "release.epsilon must be positive and finite",
            repr(epsilon)[:40],
        )
        object.__setattr__(self, "epsilon", float(epsilon))
        for name in ("most_contacts", "most_paths", "most_triangles"):
            value = getattr(self, name)
            most = _MOST if name == "most_contacts" else _MOST**2
            whole = is_whole(value) and _LEAST <= value <= most
            left_out = value is None and name != "most_contacts"
            must(whole or left_out, f"release.{name} must be a whole number in {_LEAST}..{most}", repr(value)[:40])
        for name, known in (("figures", FIGURES), ("by", None)):
            value = getattr(self, name)
            listed = is_list(value) and len(set(value)) == len(value) and all(isinstance(one, str) for one in value)
            listed = listed and (known is None or set(value) <= set(known))
            rule = "different columns" if known is None else f"some of {', '.join(known)}"
            must(listed, f"release.{name} must be a list of {rule}", repr(value)[:60])
            object.__setattr__(self, name, tuple(value))
        known = ("refuse", "leave_out")
        must(self.strangers in known, f"release.strangers must be one of {', '.join(known)}", repr(self.strangers)[:40])

    @property
    def edges(self) -> EdgeRules:
        """The network that is read beside the node table: without directions."""
        return EdgeRules(strangers="refuse" if self.strangers == "refuse" else "leave_out")

    def require(self, plan: StudyPlan) -> None:
        """Posture ``private``, persons, and columns with levels."""
        super().require(plan)
        must(plan.dictionary.person is not None, "a network must have a person column: edges name persons", "none")
        known = {column.name: column for column in plan.dictionary.released}
        for name in self.by:
            kind = known[name].kind if name in known else "no such column"
            must(
                kind in LEVELLED,
                "release.by must name released columns with levels",
                f"{name!r}, {kind}",
                "Name a column with levels, or put the number into bands in the dictionary.",
            )
            must(known[name].missing != "level", "release.by must name columns without missing values as a level", name)
        must(len(self.by) <= 8, "release.by must name at most 8 columns", len(self.by))
        scales = [count.scale for count in self.counts(plan)]
        drawn = min(scales) >= 2**-8 and max(scales) <= 2**38
        must(drawn, "release.epsilon must leave noise that can be drawn exactly", shown_epsilon(self.epsilon))

    def caps(self) -> dict[str, int]:
        """The cap of each count."""
        most = self.most_contacts
        return {
            "edges": most,
            "paths": self.most_paths or most * (most - 1),
            "triangles": self.most_triangles or max(_LEAST, most * (most - 1) // 8),
        }

    def counts(self, plan: StudyPlan) -> tuple[CappedCount, ...]:
        """The blocks of a plan in the order of the released table; their ε add up to the plan's."""
        caps = self.caps()
        made: list[tuple[str, str, int, int, float, tuple[str, ...]]] = []
        for name in ("edges", *(one for one in FIGURES if one in self.figures)):
            for cap, weight in ((caps[name], 1.0), (caps[name] // 2, _BESIDE)):
                reach = cap if name == "edges" else capped.sensitivity(cap)
                made.append((name, "", cap, reach, WEIGHTS[name] * weight, ("",)))
        for name in self.by:
            levels = tuple(str(level) for level in plan.dictionary.column(name).levels)
            for count, times, labels in (("alike", 1, ("",)), ("apart", 1, ("",)), ("ends", 4, levels)):
                made.append((count, name, self.most_contacts, times * self.most_contacts, WEIGHTS[count], labels))
        whole = sum(weight for *_, weight, _ in made)
        return tuple(
            CappedCount(
                name=name,
                of=of,
                cap=cap,
                sensitivity=reach,
                # Up to the next of 2⁻²⁰: never less noise than the price says, and the same on every machine.
                scale=math.ceil(reach * whole / (weight * self.epsilon) * 2**20 + 1) / 2**20,
                labels=tuple(f"{of} = {label}" if label else of for label in labels),
            )
            for name, of, cap, reach, weight, labels in made
        )

    def event(self, plan: StudyPlan) -> Event:
        """One Laplace mechanism per block: together the plan's ε."""
        from shared.privacy.accountant import Composition

        return Composition(events=tuple(count.event for count in self.counts(plan)))

    def facts(self, plan: StudyPlan) -> Facts:
        """The caps, and the noise on each count."""
        found = self.counts(plan)
        scales = {f"scale_{one.name}{f'_{one.of}' if one.of else ''}": one.scale for one in reversed(found)}
        return Facts(
            d=sum(len(one.labels) for one in found),
            parameters={**{f"most_{name}": float(cap) for name, cap in self.caps().items()}, **scales},
            conditional_on="nothing: nothing was fitted on records",
            model="central",
        )

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Everybody, with all edges and attributes."""
        return (
            "Every person in the table, with all edges and attributes together (replace-one node): replacing the edges "
            f"and the attributes of one of them by {other_record(plan)} changes the probability of any released counts "
            "by a factor of at most e^ε, with δ = 0. Nobody is held out. A count is of the network in which nobody has "
            f"more than {self.most_contacts} edges and the plan's other caps; each has Laplace noise of its cap's size "
            "over its part of ε, and the parts add up to the stated ε.",
        )

    def not_covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Sentence that the number of persons is not protected."""
        return (
            "How many persons are in the network: two networks of the same size are compared, with one person "
            "replaced; their number is told without noise.",
        )

    def details(self, plan: StudyPlan) -> str:
        """Counts, caps and noise, in half a line."""
        edges = self.counts(plan)[0]
        named = ", ".join(("edges", *self.figures, *(f"mixing by {name}" for name in self.by)))
        return f"{named}; at most {self.most_contacts} contacts a person, noise of scale {edges.scale:.4g} on edges"

    def review(self, plan: StudyPlan, signed: MechanismPlan | None = None) -> list[ChecklistLine]:
        """Checklist: what the cap on contacts leaves out, by which a lead can tell whether it is high enough."""
        from shared.terminal import ChecklistLine

        detail = (
            f"at most {self.most_contacts} contacts a person: a few who have many more, as staff, are in no answer "
            "with more, and answers carry a caution. Edges, V-shapes and triangles are then too low, transitivity and "
            "mixing most often too high"
        )
        return [ChecklistLine(name="cap", detail=detail)]

    # -- the released table --------------------------------------------------------------------------------------
    def measure(self, plan: StudyPlan, records: pd.DataFrame, rng: Noise) -> tuple[NDArray[np.int64], ...]:
        """The exact counts of checked records with their edges."""
        ties = adjacency(records, directed=False, released=False).astype(np.int64)
        # A table sorted by what it holds would move many persons' places, and so which edges are kept, for one.
        order = rng.spawn(1)[0].order(len(records))
        ties = ties[order][:, order]
        ties.sort_indices()
        kept = capped.kept_degrees(ties, self.most_contacts)
        out = []
        for count in self.counts(plan):
            if count.name == "edges":
                found = [int(capped.kept_degrees(ties, count.cap).sum()) // 2]
            elif count.name == "paths":
                found = [capped.capped_paths(ties, count.cap)]
            elif count.name == "triangles":
                found = [capped.capped_triangles(ties, count.cap)]
            else:
                found = _mixing(count, ties, kept, records[count.of].to_numpy(dtype=np.int64)[order])
            out.append(np.asarray(found, dtype=np.int64))
        return tuple(out)

    def draw(self, plan: StudyPlan, records: Any, rng: Noise) -> pd.DataFrame:
        """The noisy counts, a line each, of what `measure` found."""
        blocks = self.counts(plan)
        return self.layout(plan).table(
            [noised(block, exact, rng) for block, exact in zip(blocks, records, strict=True)]
        )

    def clipped(self, plan: StudyPlan, records: pd.DataFrame) -> int:
        """Persons above one of the caps."""
        from shared.mechanisms.grand.counts import degrees, triangles

        ties, caps = adjacency(records, directed=False, released=False).astype(np.int64), self.caps()
        above = degrees(ties) > caps["edges"]
        if "paths" in self.figures:
            above |= capped.paths_of(ties) > caps["paths"]
        if "triangles" in self.figures:
            above |= triangles(ties) > caps["triangles"]
        return int(above.sum())

    def effort(self, plan: StudyPlan, n: int, d: int) -> Effort:
        """As of `MechanismPlan`."""
        # Of about ten contacts a person; where many are above a cap, minutes to hours: docs/decisions/0037.
        return Effort(seconds=2.0 + 2e-5 * n, memory_mb=230 + 2.3e-3 * n, bundle_mb=0.01)

    def layout(self, plan: StudyPlan) -> Layout:
        """Count and column of every line. The smaller cap is told by its number."""
        named = [(f"{block.name}, at most {block.cap}", label) for block in self.counts(plan) for label in block.labels]
        return Layout(columns=COLUMNS, first=[name for name, _ in named], second=[of for _, of in named])

    def require_possible(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """As of `LabelledFigures`."""
        pairs, triples = n * (n - 1) / 2, n * (n - 1) * (n - 2) / 6
        most = {"paths": 3 * triples, "triangles": triples, "ends": 2 * pairs}
        wrong = 0
        for block, values in self.read(plan, table):
            room = _CERTAIN * block.scale
            wrong += int(((values < -room) | (values > most.get(block.name, pairs) + room)).sum())
        if wrong:
            raise SchemaRefusal("counts must be possible for the noise of the plan", given=f"{wrong} are not")

    def read(self, plan: StudyPlan, table: pd.DataFrame) -> list[tuple[CappedCount, NDArray[np.float64]]]:
        """Each block of a released table, with its values."""
        blocks = self.counts(plan)
        values = arrays_of(table, [(len(block.labels),) for block in blocks])
        return [(block, one.astype(np.float64)) for block, one in zip(blocks, values, strict=True)]

    def require_answerable(self, question: Estimand) -> None:
        """As of `Answering.require_answerable`."""
        from shared.mechanisms.network_counts.answer import require_answerable

        require_answerable(self, question)

    def answer(
        self,
        plan: StudyPlan,
        tables: ReleasedTables,
        question: Estimand,
        *,
        levels: Mapping[str, Any],
        **origin: Unpack[Origin],
    ) -> list[Estimate]:
        """A ``network`` question of the planned counts.

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal.
        """
        from shared.mechanisms.network_counts.answer import answer

        return answer(plan, self, tables, question, **origin)


def noised(count: CappedCount, exact: NDArray[np.int64], rng: Noise) -> NDArray[np.int64]:
    """Whole counts with rounded Laplace noise of the block's scale, exactly drawn."""
    return exact + rng.lattice_laplace_steps(count.scale, exact.shape, 1.0)


def _mixing(count: CappedCount, ties: Any, kept: Any, code: NDArray[np.int64]) -> list[int]:
    """Kept edges of the network within levels, or between two; or kept degrees of all of it by level."""
    from scipy import sparse

    if count.name == "ends":
        return [int(kept[code == level].sum()) for level in range(len(count.labels))]
    pairs = sparse.coo_array(ties)
    meant = (code[pairs.row] == code[pairs.col]) == (count.name == "alike")
    network = sparse.csr_array((pairs.data[meant], (pairs.row[meant], pairs.col[meant])), shape=pairs.shape)
    return [int(capped.kept_degrees(network, count.cap).sum()) // 2]
