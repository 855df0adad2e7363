"""A node-private network at work: split before anything is fitted, fitted on persons who never leave, drawn once.

Three blocks of one matrix are told apart. Ties among the persons held out (A²²) are what the model is fitted to. Ties
of a released person to those (A¹²) are what that person's coordinates are read off, person by person. Ties among the
released (A¹¹) are looked at by nothing that leaves: only the figures for the steward, which are made after the seal and
stay here, hold the released network beside them.

By default nothing of the fit is kept. Whoever is held out has no guarantee, so that what the model says of them is
deleted with the run; a run that was killed after its seal fits once more for the steward's figures alone. Where the
plan says ``keep = "sealed"``, a wave that appends goes on from the first one's fit (`site_agent.release.embeddings`):
its persons are placed by their ties to those held out then, and edges are drawn among them and to everybody released
before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.base.canonical import canonical_json, parse_json
from shared.errors import EstimateRefusal, TrainingRefusal
from shared.mechanisms.grand.counts import MOTIFS
from shared.mechanisms.grand.edges import MOST_EDGES, NEIGHBOURS, NUMBER, REACHED, adjacency
from shared.mechanisms.grand.labels import LEAST_OF_A_LABEL, LabelPrivate
from shared.mechanisms.grand.noise import Labelled
from shared.mechanisms.grand.plan import GrandPlan
from shared.plans.encoding import Encoder, typed
from site_agent.models.controls import LARGE
from site_agent.release import sealed_state
from site_agent.release.embeddings import EMBEDDING, Embedding, EmbeddingBase, placed_by
from site_agent.release.protocol import Drawing, Progress, unread

if TYPE_CHECKING:
    from shared.base.randomness import Noise
    from shared.plans.plan import StudyPlan
    from site_agent.config import Limits
    from site_agent.ledger.book import Hold
    from site_agent.models.latent_space import LatentSpace
    from site_agent.records.table import Records
    from site_agent.release.checks import Check
    from site_agent.release.protocol import Chosen

__all__ = ["HELD", "LEAST_HELD_OUT", "MOST_COMPARED", "drawing"]

Codes = NDArray[np.int64]

HELD = "held.json"
LEAST_HELD_OUT = 50
"""Fewer persons held out, and what the release says of each of them would be too near to themselves."""
_LIKENESS, _LIKE = ("edge", "triangle", "transitivity"), 4
MOST_COMPARED = 2000
"""Larger networks are compared on so many persons of each, because shortest paths are counted."""

_TRIED = (
    "No attack was tried on the persons who are released: the price that is stated bounds what any attack can learn of "
    "one of them, those alike that nobody has thought of yet.",
    "No attack was tried on the persons who are held out either: no guarantee is theirs, and the model is of them.",
)


def drawing(plan: StudyPlan, release: GrandPlan, base: EmbeddingBase | None = None) -> Drawing:
    """The drawing of a network: see `site_agent.release.drawing`."""
    return NetworkRelease(plan, release, base)


class NetworkRelease(Drawing):
    """GRAND on the persons who are released, with a model of those who are not."""

    unattacked: ClassVar[Mapping[str, Any]] = {
        "tried": False,
        "sentences": [*_TRIED, "A comparison with the real network could not be carried out on these records."],
    }

    def __init__(self, plan: StudyPlan, release: GrandPlan, base: EmbeddingBase | None) -> None:
        super().__init__(plan)
        self._release = release
        self._base = base
        self._state: Embedding | None = None if base is None else base.embedding
        self._encoder = Encoder(dictionary=release.coordinates_of(plan.dictionary))
        self._labels: Labels | None = None

    def take(
        self, table: Records, persons: Sequence[str] | None, chosen: Chosen, base: sealed_state.SealedFlow | None
    ) -> None:
        assert persons is not None, "posture holdout has a person column"
        held = list(chosen.train)
        if self._state is not None:
            # Held out then and here now; whoever was held out since has no place in the frame, and is not looked at.
            place = {person: k for k, person in enumerate(self._state.held)}
            held = [row for row in held if persons[row] in place]
            self._present = [place[persons[row]] for row in held]
            self.flow_of = self._state.frame_of
        self._split(table, list(chosen.rows), held)
        self._names = [persons[i] for i in chosen.rows]
        self._held_names = [persons[i] for i in held]
        self._chosen, self._snapshot = chosen, table.snapshot
        self.drawn = self.n = len(chosen.rows)
        self.left_out = table.rows - table.n

    def _split(self, table: Records, rows: list[int], held: list[int]) -> None:
        assert table.contacts is not None, "records.read with the plan's rules"
        if len(held) < LEAST_HELD_OUT:
            raise TrainingRefusal(
                f"a network must have at least {LEAST_HELD_OUT} persons who are held out",
                given=f"{len(held)} at a share of {self.plan.holdout:g}",
                next_step="Wait for more records, or ask the study lead for a larger holdout.",
            )
        whole = table.contacts.matrix
        from_held = whole[held]
        self._held = from_held[:, held]
        self._ties = whole[rows][:, held]
        self._back = from_held[:, rows].T.tocsr() if self._release.directed else None
        self._whole, self._own_rows, self._held_rows = whole, rows, held
        self._real = table.table.iloc[rows].reset_index(drop=True)
        self._beside = table.table.iloc[held].reset_index(drop=True)
        if not self._held.nnz:
            raise TrainingRefusal(
                "the persons who are held out must have an edge among themselves",
                given="none",
                next_step="Ask the study lead for a larger holdout, or whether this network is too sparse for one.",
            )
        n, m = len(rows), len(held)
        before = 0 if self._state is None else len(self._state.numbers)
        # Told by the hold-out alone, before anything is charged; an eighth less, for the draw has more or fewer.
        pairs = n * (n - 1) + 2 * n * before
        expected = self._held.nnz / (1 if self._release.directed else 2) * pairs / (m * (m - 1))
        if expected > MOST_EDGES * 7 / 8:
            raise TrainingRefusal(
                f"a released network must have at most {MOST_EDGES} edges, or no reader could take it",
                given=f"about {expected:.2g} expected of {n} persons",
                next_step="Ask the study lead for a larger holdout, or for edges that mean more.",
            )

    def encode(self, rng: Noise) -> None:
        self._x, self._held_attributes = (self._encoded(table, rng) for table in (self._real, self._beside))

    def _encoded(self, table: pd.DataFrame, rng: Noise) -> Any:
        return self._encoder.encode(table, rng) if self._encoder.d else np.empty((len(table), 0))

    def rehearse(self) -> None:
        """Checks of a network are notes: none refuses."""

    def fit(self, rng: Noise, progress: Progress) -> None:
        from site_agent.models import latent_fit

        release, state = self._release, self._state
        if state is not None:
            # Placed by ties to those who are still here, among all who were.
            self._space: LatentSpace = state.space
            reader = replace(state.space, positions=state.positions[self._present])
            self._placed(reader, rng)
            self._reference = np.hstack([state.positions, state.attributes])
            self._into = np.hstack([state.into, state.attributes])
            # Found anew among the same persons held out: what an earlier wave called them is told nowhere.
            self._labels = self._labelled(rng)
            self._likeness = self._like_their_own(rng)
            progress(1.0)
            return
        self._space = latent_fit.fit(
            self._held,
            model=release.model,
            d=release.d,
            directed=release.directed,
            rng=rng.generator,
            most=release.most,
        )
        progress(0.7)
        self._placed(self._space, rng)
        self._reference = np.hstack([self._space.positions, self._held_attributes])
        self._labels = self._labelled(rng)
        # Where private ranks are placed: the same persons, without what estimating each of them has added. Levels of a
        # column are known; communities were read off the very positions, and their means hold some of the errors.
        groups = self._labels.reference if self._labels is not None and release.by else None
        self._into = np.hstack([self._space.deconvolved(groups, rng=rng.generator), self._held_attributes])
        self._likeness = self._like_their_own(rng)
        progress(1.0)

    def _labelled(self, rng: Noise) -> Labels | None:
        """Labels that are released before the coordinates, found in the hold-out alone; None if the plan has none."""
        if self._release.by:
            return _by_column(self._release, self.plan, self._real, self._beside)
        if self._release.communities is None:
            return None
        return _by_community(self._release.communities, self._space, self._reference, self._latents, rng)

    def _placed(self, reader: LatentSpace, rng: Noise) -> None:
        """Each released person's coordinates, from that person's ties to those held out and own attributes."""
        ties = (self._ties,) if self._back is None else (self._ties, self._back)
        self._latents = np.hstack([reader.nodes(*ties, rng=rng.generator), self._x])

    def _like_their_own(self, rng: Noise) -> dict[str, tuple[float, float]]:
        """Log density in networks drawn from the hold-out's model over that in its own, and the draws' spread.

        Made of the persons held out alone: whether it passes says nothing of anybody who is released.
        """
        from shared.mechanisms.grand.counts import motifs, simple

        def logs(network: Any) -> Any:
            values = motifs(simple(network)).values
            return np.log(np.maximum(values[[MOTIFS.index(name) for name in _LIKENESS]], 1e-12))

        own = logs(self._held)
        drawn = np.array([logs(self._space.draw(self._into, rng.generator.bytes(32))) for _ in range(_LIKE)])
        over, spread = drawn.mean(axis=0) - own, drawn.std(axis=0, ddof=1)
        return {name: (float(over[k]), float(spread[k])) for k, name in enumerate(_LIKENESS) if np.isfinite(over[k])}

    def draw(self, rng: Noise) -> None:
        mechanism = self._release.mechanism_of(self.plan, latent=self._space.d)
        noise = mechanism.noise(self._names, rng)
        labelled = None
        if self._labels is not None:
            response = LabelPrivate(epsilon=self._release.parts()[0], counts=self._labels.counts)
            released = response.release(self._labels.own, self._names, rng)
            labelled = Labelled(reference=self._labels.reference, own=self._labels.own, released=released)
        self._private = mechanism.privatise(self._latents, self._reference, noise, self._into, labelled)
        self._released_labels = labelled

    def released(self, rng: Noise) -> pd.DataFrame:
        # Shuffled before the edges are drawn, so that a row, and a place in a list of edges, says nothing.
        order = [int(k) for k in rng.generator.permutation(self.n)]
        z = self._private[order]
        table = pd.DataFrame(index=range(self.n))
        if self._encoder.d:
            table = self._encoder.decode(z[:, self._space.p :])
        if self._release.by and self._labels is not None and self._released_labels is not None:
            column = self.plan.dictionary.column(self._release.by)
            codes = self._labels.levels(self._released_labels.released[order], rng.generator)
            table[column.name] = typed(column, np.where(codes == len(column.levels), np.nan, codes))
            table = table[list(self.plan.dictionary.names)]
        if self._base is None:
            network = self._space.draw(z, rng.generator.bytes(32))
            table[NEIGHBOURS] = _lists(network, directed=self._release.directed)
        else:
            self._join(table, z, self._base.first, rng)
        self.rows = sealed_state.ReleasedRows(
            snapshot=self._snapshot,
            source=tuple(self._chosen.rows[k] for k in order),
            persons=tuple(self._names[k] for k in order),
        )
        return table

    def _join(self, table: pd.DataFrame, z: Any, first: int, rng: Noise) -> None:
        """Number the released, and draw their edges among themselves and with everybody of the waves before.

        Both ends of every edge are private coordinates. Which pairs have one is decided by their numbers and the
        frame's key: the same whichever wave asks.
        """
        numbers = np.arange(first, first + self.n, dtype=np.int32)
        before = self._started(rng.generator.bytes(32)) if self._state is None else self._state
        everybody = np.concatenate([before.numbers, numbers])
        network = self._space.draw(
            np.vstack([before.private, z]), before.key, [str(k) for k in everybody], first=len(before.numbers)
        )
        k = len(before.numbers)
        table[NUMBER] = numbers
        if self._release.directed:
            table[NEIGHBOURS] = _named(network[k:], everybody)
            table[REACHED] = _named(network[:k, k:].T.tocsr(), everybody)
        else:
            from scipy.sparse import coo_array, csr_array

            # An edge stands once: with the later of two waves, and within a wave with the smaller number.
            mine = coo_array(network[k:])
            once = (mine.col < k) | (mine.col > mine.row + k)
            ones = np.ones(int(once.sum()), dtype=np.int8)
            table[NEIGHBOURS] = _named(csr_array((ones, (mine.row[once], mine.col[once])), shape=mine.shape), everybody)
        self._next = (before, numbers, z)

    def _started(self, key: bytes) -> Embedding:
        """The frame of a first wave, before anybody is in it."""
        space = self._space
        return Embedding(
            model=space.model,
            d=space.d,
            directed=space.directed,
            signs=space.signs,
            positions=space.positions,
            into=self._into[:, : space.p],
            attributes=self._held_attributes,
            held=tuple(self._held_names),
            numbers=np.empty(0, dtype=np.int32),
            private=np.empty((0, self._private.shape[1])),
            owners=np.empty(0, dtype=np.int32),
            releases=(),
            key=key,
            frame_of="",
            placed_by=placed_by(self.plan),
            dictionary=self.plan.dictionary.hash,
        )

    def files(self, release_id: str) -> Mapping[str, bytes]:
        # Who was held out, by place: a run that is killed after the seal compares with the same persons.
        said: dict[str, list[int]] = {"held": [int(row) for row in self._held_rows]}
        found = {sealed_state.ROWS: self.rows.to_bytes()}
        if self._base is not None:
            before, numbers, z = self._next
            found[EMBEDDING] = self._base.store.seal(before.with_wave(release_id, numbers, z), release_id)
            said["places"] = list(range(len(said["held"]))) if self._state is None else self._present
        return {**found, HELD: canonical_json(said)}

    def resume(self, table: Records, hold: Hold, folder: Any, rng: Noise) -> None:
        self.rows = sealed_state.read_rows(folder, hold)
        body = parse_json(sealed_state.read_sealed(folder, hold, HELD), cap=sealed_state.CAP)
        if self._base is not None:
            embedding = self._base.store.open(sealed_state.read_sealed(folder, hold, EMBEDDING), hold.release_id)
            self._state = embedding.without((), set(embedding.releases) - {hold.release_id})
            self._present = [int(place) for place in body["places"]]
        self._split(table, sorted(self.rows.source), [int(row) for row in body["held"]])
        self.drawn = self.n = len(self.rows.source)
        self.left_out = table.rows - table.n
        self.encode(rng)
        self.fit(rng, lambda share: None)

    def without_records(self, hold: Hold, folder: Any) -> None:
        self.rows = sealed_state.read_rows(folder, hold)
        body = parse_json(sealed_state.read_sealed(folder, hold, HELD), cap=sealed_state.CAP)
        self.drawn = self.n = len(self.rows.source)
        self._real, self._beside = unread(self.n), unread(len(body["held"]))
        self._ties = self._back = self._likeness = self._labels = unread(0)

    def checks(self, table: pd.DataFrame, limits: Limits) -> tuple[Check, ...]:
        from site_agent.release.checks import check_network

        self._sealed = table
        return check_network(
            self.plan,
            table,
            real=self._real,
            beside=self._beside,
            ties=lambda: self._ties.nnz + (0 if self._back is None else self._back.nnz),
            likeness=self._likeness,
            limits=limits,
        )

    def attack(self, limits: Limits, rng: Noise, progress: Progress) -> dict[str, Any]:
        """No attack: the price bounds all of them. What the network is worth, beside what it could be."""
        labels = self._labels
        try:
            found = self._utility(rng, progress)
        finally:
            # Whoever is held out has no guarantee: what the model says of them ends here.
            del self._space, self._reference, self._into, self._latents, self._held_attributes
            self._labels = self._released_labels = None
            del self._held, self._ties, self._back, self._whole, self._beside
            self._state = self._base = None
        return {
            "tried": False,
            "sentences": [
                *_TRIED,
                *(labels.in_words if labels is not None else ()),
                *_in_words(found),
                *_densities_in_words(self._densities),
            ],
            "utility": found,
            "densities": self._densities,
        }

    def _utility(self, rng: Noise, progress: Progress) -> dict[str, dict[str, float]]:
        """Statistic to arm to the distance of the arm's network from the real one of the released persons."""
        from shared.mechanisms.grand.counts import compare, node_statistics, simple

        draws = rng.generator
        space, reference, latents = self._space, self._reference, self._latents
        n, m = self.n, len(reference)
        size = min(n, MOST_COMPARED)

        def chosen(n: int, count: int) -> Any:
            """So many places out of n, ascending; None where they are all."""
            places = np.sort(draws.permutation(n)[:count])
            return None if count == n else places

        def some(network: Any, count: int) -> dict[str, Any]:
            """Statistics of a network, of so many of its persons."""
            places = chosen(network.shape[0], count)
            return node_statistics(simple(network if places is None else network[places][:, places]))

        real = self._whole[self._own_rows][:, self._own_rows]
        mechanism = self._release.mechanism_of(self.plan, latent=space.d)
        low, high = reference.min(axis=0), reference.max(axis=0)
        # As if each coordinate were released by itself within the range of the held-out: what adding noise costs.
        plain = np.clip(latents, low, high) + draws.laplace(size=latents.shape) * (high - low) * mechanism.scale

        def few(z: Any) -> Any:
            """Persons to draw: of a large network no more than are compared."""
            return z if n <= LARGE else z[np.sort(draws.permutation(n)[:size])]

        released = adjacency(self._sealed, directed=self._release.directed)
        made = {
            "without noise": (few(latents), draws.bytes(32)),
            "from the held-out alone": (few(self._into[draws.integers(0, m, n)]), draws.bytes(32)),
            "plain noise": (few(plain), draws.bytes(32)),
        }
        truth = some(real, size)
        self._densities = _over(released, real, m)
        found: dict[str, dict[str, float]] = {}
        for place, arm in enumerate(("released", *made)):
            if arm == "released":
                statistics = some(released, size)
            else:  # drawn of those alone who are compared: plain noise ties half of all pairs
                z, key = made[arm]
                statistics = node_statistics(simple(space.draw(z, key, among=chosen(len(z), size))))
            for statistic, distance in compare(statistics, truth).items():
                found.setdefault(statistic, {})[arm] = float(f"{distance:.4g}")
            progress((place + 1) / (2 + len(made)))
        # Two parts of the real network: what no release can be nearer than, but by chance.
        both = min(size, self._held.shape[0])
        for statistic, distance in compare(some(self._held, both), some(real, both)).items():
            found[statistic]["two parts of the real one"] = float(f"{distance:.4g}")
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Label of each person, released before the coordinates: 0 … k − 1, each that of at least one held-out person.

    Args:
        reference: (m,) labels of the persons held out.
        own: (n,) labels of the persons who are released.
        rows: (m,) the column's level of each person held out, from which a level is drawn for a label of several
            levels; of communities the labels themselves.
        in_words: sentences about them for the steward.
    """

    reference: Codes
    own: Codes
    rows: Codes
    in_words: tuple[str, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of persons held out with each label."""
        return tuple(int(count) for count in np.bincount(self.reference))

    def levels(self, released: Codes, draws: np.random.Generator) -> Codes:
        """(n,) levels of released labels: each that of a uniformly drawn held-out person with the label. Costs no ε."""
        order = np.argsort(self.reference, kind="stable")
        ends = np.cumsum(self.counts)
        at = ends[released] - 1 - draws.integers(0, np.asarray(self.counts)[released])
        return self.rows[order][at]


def _by_community(k: int, space: LatentSpace, reference: Any, latents: Any, rng: Noise) -> Labels:
    from site_agent.models.latent_space import communities

    if k * LEAST_OF_A_LABEL > space.m:
        raise TrainingRefusal(
            f"each community must have at least {LEAST_OF_A_LABEL} persons who are held out",
            given=f"{space.m} held out for {k} communities",
            next_step="Wait for more records, or ask the study lead for a larger holdout or fewer communities.",
        )
    found = communities(space, k, rng.generator, least=LEAST_OF_A_LABEL)
    held = found.of(reference)
    sizes = ", ".join(str(size) for size in np.bincount(held, minlength=found.k))
    said = f"Communities found among the persons held out: {found.k} of {k} that were looked for, of {sizes} persons."
    return Labels(reference=held, own=found.of(latents), rows=held, in_words=(said, _LOST) if found.k < k else (said,))


def _by_column(release: GrandPlan, plan: StudyPlan, real: pd.DataFrame, beside: pd.DataFrame) -> Labels:
    """Levels that few persons held out have make one place together, or join the largest.

    Which do follows from the hold-out alone. A level that nobody held out has would be told of those only who have it.
    """
    many = release.labels_of(plan)
    own, held = (
        np.nan_to_num(table[release.by].to_numpy(dtype=np.float64), nan=many - 1).astype(np.int64)
        for table in (real, beside)
    )
    counts = np.bincount(held, minlength=many)
    rare = counts < LEAST_OF_A_LABEL
    places = np.cumsum(~rare) - 1
    apart = rare.all() or counts[rare].sum() >= LEAST_OF_A_LABEL
    places[rare] = (~rare).sum() if apart else places[int(counts.argmax())]
    said = f"The column {release.by!r} is told as {len(set(places[held]))} of its {many} levels"
    said += "; those of few persons held out are told together." if rare.any() else "."
    return Labels(reference=places[held], own=places[own], rows=held, in_words=(said,))


_LOST = "A community of too few persons held out was joined with its neighbours: it is told of nobody."


def _over(released: Any, real: Any, m: int) -> dict[str, dict[str, float]]:
    """Logarithm of each motif's density in the released network over the real one, beside its standard error."""
    from shared.mechanisms.grand.counts import motifs, simple

    if released.shape[0] < 5:
        return {}
    drawn, own = motifs(simple(released), reference_size=m), motifs(simple(real))
    found = {}
    for name in MOTIFS:
        try:
            moment, true = drawn.log(name), own.log(name)
        except EstimateRefusal:
            continue
        found[name] = {"log_ratio": float(f"{moment.yi - true.yi:.4g}"), "se": float(f"{math.sqrt(moment.vi):.4g}")}
    return found


def _densities_in_words(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not found:
        return []
    densities = ", ".join(
        f"{_MOTIFS[name]} {math.exp(one['log_ratio']):.3g} times ({one['log_ratio'] / one['se']:+.1f} standard errors)"
        for name, one in found.items()
    )
    return [f"Densities of the released network over those of the real one: {densities}. These figures stay here."]


_MOTIFS = {
    "edge": "edges",
    "v_shape": "V-shapes",
    "triangle": "triangles",
    "star3": "3-stars",
    "transitivity": "transitivity",
    "degree_cv": "unevenness of degrees",
}


def _in_words(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    said = [
        "How far the released network is from the real one, by five statistics of its persons (1-Wasserstein distance, "
        "counts on a log scale; the smaller the nearer), beside what it could have been. These figures stay here."
    ]
    for statistic, arms in found.items():
        said.append(
            f"{_STATISTICS[statistic]}: " + ", ".join(f"{arm} {value:.3g}" for arm, value in arms.items()) + "."
        )
    return said


_STATISTICS = {
    "degree": "Contacts of a person",
    "v_shape": "Pairs of contacts of a person",
    "triangle": "Triangles of a person",
    "eigenvector": "Eigenvector centrality",
    "harmonic": "Harmonic centrality",
}


def _named(network: Any, numbers: Any) -> list[Any]:
    """Each row's columns, by their persons' numbers."""
    network.sort_indices()
    return np.split(numbers[network.indices].astype(np.int32), network.indptr[1:-1])


def _lists(network: Any, *, directed: bool) -> list[Any]:
    from scipy.sparse import triu

    edges = network if directed else triu(network, k=1, format="csr")
    edges.sort_indices()
    return np.split(edges.indices.astype(np.int32), edges.indptr[1:-1])
