"""Mechanism spec of GRAND: a node-private network, of the persons who are released, and none of the others.

Posture ``holdout`` is what this mechanism is: a share of the persons, drawn for life by a keyed hash of the identifier,
shapes a latent space model and is never released, and no noise is promised to them. Each other person's coordinates are
read off their own ties to those persons (and their own attributes), go through noise of scale b = p/ε each, and a new
network is drawn among them. Ties between released persons are never read.

A release is one table with a row per released person: the dictionary's columns, and ``neighbours``, the places of the
rows that the row has an edge to. An undirected edge stands once, at the smaller place. Places are shuffled before the
draw, so that a row says nothing by where it stands.

How many persons were held out is not told: a reader takes what the plan's share gives (`held_out`), which changes the
(1 + n/m) of a standard error by little. Nor is the latent dimension told, where the plan lets the hold-out choose it:
noise is made for the largest one, so that price and receipt follow from the plan.

Where the plan asks for it, one label of a person is told before the coordinates, by randomised response at a share of
ε: the community (`communities`), which a model of the persons held out gives it, or the level of a column (`by`). The
coordinates follow within it, at what is left of ε: see `shared.mechanisms.grand.labels`, and decision 0017 for why.

With ``keep = "sealed"`` a hospital keeps what the model says of the persons held out (the *frame*), the private
coordinates of the released and one key for all pairs of them, encrypted, and a wave that appends goes on from there:
its persons pay once, nobody else pays anything, and edges between its persons and those of earlier waves are drawn.
Such a table has a column ``number``: each released person's for life, counted on from wave to wave, and what
``neighbours`` are then told by. An edge to a person of an earlier wave stands with the later one; of a directed
network, one *from* a person of an earlier wave stands in ``reached_by``. `union` puts the waves together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from shared.base.canonical import is_number, is_whole
from shared.errors import EstimateRefusal, SchemaRefusal
from shared.mechanisms.base import (
    Answering,
    EdgeRules,
    Effort,
    Extent,
    Facts,
    ReleasedTables,
    by_plan,
    must,
    other_record,
)
from shared.mechanisms.grand.edges import NEIGHBOURS, NUMBER, REACHED, first_number, flat, unsorted
from shared.plans.dictionary import LEVELLED, Dictionary
from shared.privacy.stated import shown_epsilon

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from shared.estimands.answer import Estimand, Estimate, Origin
    from shared.mechanisms.grand.noise import NodePrivate
    from shared.plans.plan import StudyPlan
    from shared.privacy.accountant import Event

__all__ = ["GrandPlan"]

MOST_COMMUNITIES = 20
_KEPT = ("deleted", "sealed")
_MODELS = ("inner_product", "rdpg", "grdpg")
_MODEL_WORDS = {
    "inner_product": "inner-product latent space model",
    "rdpg": "random dot product graph",
    "grdpg": "generalised random dot product graph",
}


_SEALED_OPEN = (
    " What the model says of them (positions and attributes, one row each) is kept at the hospital until 30 days "
    "after the close of the plan's last wave, or until a steward deletes it: encrypted, under a key in the site's own "
    "folder. It protects copies of the sealed file, not against somebody who can read the whole folder."
)
_SEALED_COVERED = (
    " A later wave places new persons through the kept model and charges them alone: edges to persons of earlier waves "
    "are drawn from what is private of those already, and cost them nothing more."
)


@dataclass(frozen=True, kw_only=True)
class GrandPlan(Answering):
    """A node-private network by GRAND.

    Args:
        epsilon: of one released person, all p coordinates together; pure, exactly what is charged.
        model: ``inner_product``, ``rdpg`` or ``grdpg`` (`site_agent.models.latent_space`).
        d: latent dimension; None lets each site choose it on its hold-out persons, up to `most`.
        most: the largest dimension that may be chosen; noise is made for it.
        directed: whether an edge from a to b differs from one from b to a.
        strangers: an edge with an end outside the node table is refused, or left out and counted.
        communities: how many communities are looked for among the persons held out; a released person's is told first.
            None tells none.
        by: a column with levels that is told first, in the place of a community; "" for none.
        label_share: the part of ε at which the first is told; the coordinates have the rest.
        keep: what becomes of the model when a release is made: ``deleted``, so that later waves start anew; or
            ``sealed``, encrypted at the hospital, so that a wave that appends goes on from it.
    """

    epsilon: float
    model: str = "inner_product"
    d: int | None = None
    most: int = 6
    directed: bool = False
    strangers: str = "refuse"
    communities: int | None = None
    by: str = ""
    label_share: float = 0.5
    keep: str = "deleted"
    mechanism: Literal["grand"] = "grand"
    later: ClassVar[tuple[str, ...]] = ("communities", "by", "label_share", "keep")
    title: ClassVar[str] = "node-private network"
    fits: ClassVar[str] = "model"

    def __post_init__(self) -> None:
        positive = is_number(self.epsilon) and 0 < self.epsilon < math.inf
        must(positive, "release.epsilon must be positive and finite", self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        must(self.model in _MODELS, f"release.model must be one of {', '.join(_MODELS)}", repr(self.model)[:40])
        for name, value in (("d", self.d), ("most", self.most)):
            whole = is_whole(value) and 1 <= value <= 32
            must(whole or (name == "d" and value is None), f"release.{name} must be a whole number in 1..32", value)
        must(isinstance(self.directed, bool), "release.directed must be true or false", self.directed)
        must(
            self.model != "grdpg" or not self.directed,
            "release.model must not be 'grdpg' for a directed network: its two positions have signs of their own",
            "grdpg, directed",
            'Write model = "rdpg".',
        )
        known = ("refuse", "leave_out")
        must(self.strangers in known, f"release.strangers must be one of {', '.join(known)}", repr(self.strangers)[:40])
        must(self.keep in _KEPT, f"release.keep must be one of {', '.join(_KEPT)}", repr(self.keep)[:40])
        self._check_label()

    def _check_label(self) -> None:
        must(
            self.communities is None or (is_whole(self.communities) and 2 <= self.communities <= MOST_COMMUNITIES),
            f"release.communities must be a whole number in 2..{MOST_COMMUNITIES}",
            repr(self.communities)[:40],
            "Leave it out where persons are to be released without a community.",
        )
        must(isinstance(self.by, str), "release.by must be a column's name", type(self.by).__name__)
        must(
            self.communities is None or not self.by,
            "release.communities and release.by must not both be given: one label is told first",
            f"{self.communities} and {self.by!r}",
        )
        must(
            not (self.by and self.sealed),
            'release.keep = "sealed" must not come with release.by',
            f"by = {self.by!r}",
            "A kept frame has positions and no levels: look for communities, or let each wave be a network of its own.",
        )
        share = self.label_share
        must(
            is_number(share) and 0.05 <= share <= 0.95,
            "release.label_share must be in [0.05, 0.95]",
            repr(share)[:40],
        )
        object.__setattr__(self, "label_share", float(share))
        must(
            self.labelled or self.label_share == 0.5,
            "release.label_share must come with release.communities or release.by",
            self.label_share,
        )

    @property
    def labelled(self) -> bool:
        """True if a label of each person is released before the coordinates."""
        return self.communities is not None or bool(self.by)

    @property
    def sealed(self) -> bool:
        """True if the embedding is kept sealed, and all waves form one network."""
        return self.keep == "sealed"

    @property
    def public_columns(self) -> tuple[str, ...]:
        """Public columns of a released table beside the dictionary's, in their order."""
        if not self.sealed:
            return (NEIGHBOURS,)
        return (NUMBER, NEIGHBOURS, REACHED) if self.directed else (NUMBER, NEIGHBOURS)

    @property
    def edges(self) -> EdgeRules:
        """The network that is read beside the node table."""
        return EdgeRules(directed=self.directed, strangers="refuse" if self.strangers == "refuse" else "leave_out")

    def require(self, plan: StudyPlan) -> None:
        """Posture ``holdout``, persons, and waves of which each is a fit of its own."""
        must(plan.private is None, f"[private] must not be given with release.mechanism {self.mechanism!r}", "one")
        must(not plan.reference, f"[reference] must not be given with release.mechanism {self.mechanism!r}", "one")
        must(
            plan.posture == "holdout",
            "release.mechanism 'grand' must have posture 'holdout': its model is fitted on persons who are not "
            "released, and no noise is promised to them",
            repr(plan.posture),
            'Write posture = "holdout" and a holdout, the share of the persons who are held out.',
        )
        names = plan.dictionary.names
        for own in self.public_columns:
            must(own not in names, f"a column must not be called {own!r}: it holds the edges", own)
        for column in plan.dictionary.released:
            must(
                column.kind not in ("continuous", "time") or column.decimals is not None,
                f"column {column.name!r} must be rounded: released values lie on or between those of persons held out, "
                "and unrounded ones could be told to be theirs",
                "no decimals",
                "Give the column its decimals in the dictionary.",
            )
        must(plan.returning != "frozen" or len(plan.waves) == 1, "a network must append or refresh", "frozen")
        must(
            not self.sealed or plan.returning == "append",
            "release.keep = 'sealed' must go with returning = 'append': a refresh fits anew and charges everybody",
            repr(plan.returning),
            'Write returning = "append", or keep = "deleted".',
        )
        sealed = [wave.number for wave in plan.waves if wave.number > 1 and not wave.refit]
        must(
            plan.returning != "refresh" or not sealed,
            "every later wave of a network that refreshes must have refit = true: what the model knew of the persons "
            "held out is deleted with each run, and no later wave can go on from it",
            f"wave {sealed[0] if sealed else ''} without",
            'Write refit = true for each later wave, which charges everybody again; or returning = "append".',
        )
        if self.by:
            known = {column.name: column for column in plan.dictionary.released}
            must(
                self.by in known and known[self.by].kind in LEVELLED,
                "release.by must be a released column with levels",
                f"{self.by!r}, {known[self.by].kind if self.by in known else 'no such column'}",
            )
        with by_plan():
            noise = self.mechanism_of(plan)
        must(noise.p <= 200, "a network must have at most 200 coordinates", noise.p)

    @property
    def widest(self) -> int:
        """The latent dimension that noise is made for."""
        return self.most if self.d is None else self.d

    def parts(self) -> tuple[float, float]:
        """ε of a person's label, 0 where none is told, and of the coordinates; they add up to ε exactly."""
        from shared.mechanisms.grand.labels import parted

        return parted(self.epsilon, self.label_share) if self.labelled else (0.0, self.epsilon)

    def labels_of(self, plan: StudyPlan) -> int:
        """Number of possible labels: communities, or the column's levels and one more where it may be missing."""
        if not self.by:
            return self.communities or 1
        column = plan.dictionary.column(self.by)
        return len(column.levels) + (column.missing == "level")

    def coordinates_of(self, dictionary: Dictionary) -> Dictionary:
        """The dictionary without the column that is released first: the columns that become coordinates."""
        from dataclasses import replace

        return replace(dictionary, columns=tuple(one for one in dictionary.columns if one.name != self.by))

    def mechanism_of(self, plan: StudyPlan, *, latent: int | None = None) -> NodePrivate:
        """The mechanism of a plan's coordinates: its noise is made for the largest dimension that the plan allows.

        Args:
            latent: the dimension that was chosen on the hold-out; fewer coordinates then pay less than the plan's ε,
                under the same noise on each.
        Raises: ParameterError.
        """
        from shared.mechanisms.grand.noise import NodePrivate, coordinates
        from shared.plans.encoding import Encoder

        attributes = Encoder(dictionary=self.coordinates_of(plan.dictionary)).d
        total = self.parts()[1]
        p, fewer = (
            coordinates(self.model, d, directed=self.directed, attributes=attributes)
            for d in (self.widest, self.widest if latent is None else latent)
        )
        # Fewer coordinates have the very scale that the receipt states: dividing anew can round to less.
        stated = NodePrivate(epsilon=total, p=p).scale
        return NodePrivate(epsilon=total * fewer / p, p=fewer, attributes=attributes, fixed=stated)

    def event(self, plan: StudyPlan) -> Event:
        """p coordinates, each moved by at most 1, under Laplace noise of scale p/ε: exactly ε; a label's part of it."""
        from shared.privacy.accountant import Composition, RandomisedResponse

        coordinates = self.mechanism_of(plan).event
        if not self.labelled:
            return coordinates
        return Composition(events=(RandomisedResponse(epsilon=self.parts()[0]), coordinates))

    def facts(self, plan: StudyPlan) -> Facts:
        """p, the scale of the noise, the latent dimension, and the share that is held out."""
        noise = self.mechanism_of(plan)
        return Facts(
            d=noise.p,
            parameters={
                "p": float(noise.p),
                "scale": noise.scale,
                "latent": float(self.widest),
                "directed": float(self.directed),
                "holdout": plan.holdout,
                **({"labels": float(self.labels_of(plan)), "label_share": self.label_share} if self.labelled else {}),
            },
            conditional_on="nothing: the model was fitted on other persons, who are not covered",
            model="local",
        )

    def covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """Released persons, with all their edges and attributes."""
        noise = self.mechanism_of(plan)
        others = (
            other_record(plan).replace("any other", "any others", 1).replace(" complete record", " that are complete")
        )
        if self.labelled:
            parts = map(shown_epsilon, self.parts())
            return (_COVERED_IN_TWO.format(others, self._label_in_words(plan), *parts, noise.scale, noise.p),)
        return (
            "Every person who is released, with all edges and attributes together (replace-one node): replacing the "
            f"edges and the attributes of one of them by {others} changes the probability of any released network "
            f"by a factor of at most e^ε, with δ = 0. Laplace noise of scale {noise.scale:.4g}, which is p/ε, is added "
            f"to each of p = {noise.p} coordinates of a person, and together they cost exactly the stated ε. Edges "
            "between released persons are read by nothing that is released: the released ones are drawn anew."
            + (_SEALED_COVERED if self.sealed else ""),
        )

    def not_covered(self, plan: StudyPlan) -> tuple[str, ...]:
        """The persons held out, membership; and what such a network does not say."""
        noise = self.mechanism_of(plan)
        return (
            f"The persons who are held out, about {100 * plan.holdout:g} % of the table: they have NO guarantee at "
            "all. Their edges and attributes shape the model without noise, and released values lie between theirs: "
            "single values can be exact copies of theirs. Who is held out is decided by a keyed hash of the person's "
            "identifier, for life; whoever is held out is never released in this study."
            + (_SEALED_OPEN if self.sealed else ""),
            "That a person is in the network at all: two networks of the same size are compared, with one person "
            "replaced; who is a member, and how many there are, is not hidden.",
            f"That a row means somebody: with noise of scale {noise.scale:.3g} on values between 0 and 1, "
            + f"a released row says {_says(noise.scale)} of the person behind it"
            + (f" beyond {self._label_in_words(plan)}. " if self.labelled else ". ")
            + "The release keeps the distribution of the network; at small ε individual correspondence is gone, and no "
            "row may be read as a person's.",
        )

    def details(self, plan: StudyPlan) -> str:
        """Model, dimension, coordinates and noise."""
        noise = self.mechanism_of(plan)
        latent = f"d = {self.d}" if self.d is not None else f"d chosen on the hold-out, at most {self.most}"
        kind = "directed, " if self.directed else ""
        first = f", {self._label_in_words(plan)} told first" if self.labelled else ""
        return (
            f"{kind}{_MODEL_WORDS[self.model]}, {latent}, p = {noise.p}, noise of scale {noise.scale:.4g} on each rank"
            f"{first}"
        )

    def _label_in_words(self, plan: StudyPlan) -> str:
        if self.by:
            return f"the column {self.by!r} ({self.labels_of(plan)} levels)"
        return f"one of {self.communities} communities"

    def extent(self, plan: StudyPlan, n: int) -> Extent:
        """A row per person, with lists of neighbours."""
        lists = tuple(name for name in self.public_columns if name != NUMBER)
        return Extent(rows=n, texts=plan.dictionary.widths, lists=lists)

    def effort(self, plan: StudyPlan, n: int, d: int) -> Effort:
        """As of `MechanismPlan`."""
        # Every pair of persons is gone through to draw; to fit, and for the steward's figures, up to 10,000 held out.
        large = plan.holdout * n > 10_000
        compared = min((1 - plan.holdout) * n, 2000)  # at most; of those half of all pairs are tied by plain noise
        return Effort(
            seconds=0.7 + (1.6e-3 * n + 5e-9 * n**2 if large else 1.15e-3 * n + 3e-8 * n**2),
            memory_mb=240 + 5e-3 * n if large else 225 + 2.7e-5 * compared**2 + 2e-3 * n,
            bundle_mb=0.0145 + 7.3e-6 * n,
        )

    def validate(self, plan: StudyPlan, table: pd.DataFrame, n: int) -> None:
        """A row for each of n persons: the dictionary's columns, and sorted places of other rows, each edge once."""
        if tuple(table.columns) != (*plan.dictionary.names, *self.public_columns) or len(table) != n:
            raise SchemaRefusal(
                f"a released network must have the dictionary's columns, {' and '.join(self.public_columns)}, and one "
                "row per "
                "person",
                given=f"{len(table)} rows for {n}",
            )
        plan.dictionary.validate_release(table[list(plan.dictionary.names)])
        first = first_number(table)
        _, places, owners = flat(table)
        own = owners + first
        # What was released before has the smaller numbers; where no frame is kept there is nobody before.
        if self.directed:
            wrong = int(((places < 0) | (places >= first + n) | (places == own)).sum())
        else:
            wrong = int(((places < 0) | ((places >= first) & (places <= own)) | (places >= first + n)).sum())
        wrong += unsorted(places, owners)
        if REACHED in self.public_columns:
            _, earlier, owners = flat(table, REACHED)
            wrong += int(((earlier < 0) | (earlier >= first)).sum()) + unsorted(earlier, owners)
        if wrong:
            raise SchemaRefusal(
                "neighbours must be places of other rows, ascending, each edge once",
                given=f"{wrong} that are not",
            )

    def require_answerable(self, question: Estimand) -> None:
        """As of `Answering.require_answerable`."""
        from shared.mechanisms.grand.answer import require_answerable

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
        """A ``network`` question of the released networks, and no other.

        The release is a draw from a distribution that m persons gave: every variance is multiplied by 1 + n/m
        (`shared.mechanisms.grand.answer`).

        Args: as of `shared.mechanisms.base.Answering.answer`.
        Raises: EstimateRefusal.
        """
        from shared.mechanisms.grand.answer import answer

        return answer(plan, self, tables, question, levels=levels, **origin)

    def synthetic(
        self, plan: StudyPlan, tables: ReleasedTables, *, draws: int, rng: np.random.Generator
    ) -> list[pd.DataFrame]:
        """The released attributes themselves, without their edges: there is nothing to draw anew."""
        import pandas as pd

        if not plan.dictionary.names:
            raise EstimateRefusal("rows must have attributes", given="a network of persons without any")
        rows = pd.concat([table[list(plan.dictionary.names)] for table, _ in tables], ignore_index=True)
        return [rows.copy() for _ in range(draws)]


_COVERED_IN_TWO = (
    "Every person who is released, with all edges and attributes together (replace-one node): replacing the edges and "
    "the attributes of one of them by {} changes the probability of any released network by a factor of at "
    "most e^ε, with δ = 0. The price has two parts, which add up to exactly the ε of the plan. First {} is told, by "
    "randomised response: it is either the person's own, or that of a person held out at random, and no label is more "
    "than e^x times as probable for one person as for another, with x = {}, the first part. Then the coordinates "
    "follow within it, for x = {}: Laplace noise of scale {:.4g}, which is p/x, is added to each of p = {} "
    "coordinates of a person. Edges between released persons are read by nothing that is released: the released ones "
    "are drawn anew."
)


def _says(scale: float) -> str:
    """Word for the information that a rank in [0, 1] keeps about a person under noise of this scale."""
    return "next to nothing" if scale >= 3 else "little" if scale >= 1 else "something"
