r"""Latent space models of a network: coordinates of one released node at a time, and ties drawn of coordinates.

=================  ==========================================================  =======================
model              probability of a tie                                        coordinates of a node
=================  ==========================================================  =======================
inner_product      σ(α_i + α_j + Z_i · Z_j)                                    α, Z: d + 1
rdpg               Z_i · Z_j, cut to [0, 1]                                    Z: d
grdpg              Z_i · S Z_j, S = diag(±1), cut to [0, 1]                    Z: d
directed           σ(α_i + β_j + X_i · Y_j);   X_i · Y_j, cut to [0, 1]        α, X, β, Y: 2d + 2;  2d
=================  ==========================================================  =======================

*Nodes.* A model is fitted to the hold-out block alone (`site_agent.models.latent_fit`). :meth:`LatentSpace.nodes`
estimates each released node from its own row of A¹² alone: Newton's method for all nodes at once, every node stopping
by itself, or least squares. The block A¹¹ between released nodes is never asked for. The arithmetic of a row is the
same whatever the other rows hold, to the last bit: nothing is compacted or reordered by what has converged.
Where many are held out, sums over those that a node is not tied to are over a sample of them, one for all nodes, chosen
without a look at any row (`site_agent.models.controls`).

*Draw.* :meth:`LatentSpace.draw` makes a sparse network out of coordinates, tile by tile. Whether i and j are tied is
decided by a keyed pseudo-random number of the *pair*, whoever else is there: in a later wave a tie moves only where its
probability does.

Source: Ma, Ma & Yuan (2020) for the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from shared.errors import ParameterError
from shared.mechanisms.grand.clusters import clusters
from shared.mechanisms.grand.noise import coordinates
from site_agent.models.controls import LARGE, NodeStrata, controls_of, reaches

__all__ = ["Communities", "LatentSpace", "communities", "draw_pairs"]

Array = NDArray[np.float64]
Singles = NDArray[np.float32]
Words = NDArray[np.uint64]
Places = NDArray[np.int64]
Sums = NDArray[np.floating[Any]]
Matrix: TypeAlias = sparse.csr_array

ROWS, _TILE = 256, 1 << 16
LOGIT = 30.0
_RIDGE = 1e-6
_PRIOR = 1.0
"""Precision of each latent position; of α none."""
_STEPS, _STRIDE, _STILL = 25, 3.0, 1e-5
_ROUNDS = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentSpace:
    """A fitted model: what it says of the hold-out nodes, and how it reads and draws others.

    Args:
        model: one of `shared.mechanisms.grand.noise.MODELS`.
        d: latent dimension.
        directed: whether a tie has a direction.
        positions: (m, p) coordinates of the hold-out nodes, in the order of the module's table.
        signs: (d,) of the directions, all 1 but in the generalised model.
    """

    model: str
    d: int
    directed: bool
    positions: Array
    signs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "signs", tuple(self.signs) or (1,) * self.d)
        positions = np.asarray(self.positions, dtype=np.float64)
        if positions.ndim != 2 or positions.shape[1] != self.p or not np.isfinite(positions).all():
            raise ParameterError(f"positions must be finite, in {self.p} columns", given=f"shape {positions.shape}")
        if len(self.signs) != self.d or not set(self.signs) <= {-1, 1}:
            raise ParameterError("signs must be d times 1 or -1", given=str(self.signs)[:40])
        object.__setattr__(self, "positions", positions)

    @property
    def p(self) -> int:
        """Coordinates of a node, attributes left out."""
        return coordinates(self.model, self.d, directed=self.directed)

    @property
    def m(self) -> int:
        """Hold-out nodes."""
        return len(self.positions)

    def nodes(self, rows: Matrix, columns: Matrix | None = None, *, rng: np.random.Generator | None = None) -> Array:
        """(n, p) coordinates of other nodes, each from its own ties to the hold-out nodes.

        Args:
            rows: (n, m), 1 where node i is tied to hold-out node j; directed: from i to j.
            columns: (n, m), directed only: 1 where hold-out node j has a tie to i.
            rng: chooses those who stand for a large hold-out (`site_agent.models.controls`), the same for all nodes.
        Raises: ParameterError, for shapes that do not fit, or a large hold-out without a generator.
        """
        given = [rows] if columns is None else [rows, columns]
        if len(given) != 1 + self.directed or any(one.ndim != 2 or one.shape[1] != self.m for one in given):
            raise ParameterError(
                f"ties must be given as {1 + self.directed} tables of {self.m} columns",
                given=f"{[tuple(one.shape) for one in given]}",
            )
        found = []
        # A node's coordinates as a source come from the targets that it is tied to, and the other way round.
        for ties, met in zip(given, (1, 0), strict=False):
            other = self.positions[:, self._sides[met]]
            if self.model == "inner_product":
                found.append(_logistic(ties, other[:, 1:], other[:, 0], self._standing_for(met, rng)))
            else:
                found.append(_least_squares(ties, other * self._signed))
        return np.hstack(found)

    @property
    def _sides(self) -> list[slice]:
        """Coordinates of a node as a source and as a target: the same ones where ties have no direction."""
        half = self.p // 2 if self.directed else self.p
        return [slice(0, half), slice(self.p - half, self.p)]

    def _standing_for(self, side: int, rng: np.random.Generator | None) -> Places | None:
        """Hold-out nodes that stand for all of them, so many each: None where every one stands for itself.

        How many they are follows from the hold-out, as everything about them.

        Args:
            side: 0 where they are met as sources, 1 as targets.
        """
        if self.m <= LARGE:
            return None
        if rng is None:
            raise ParameterError(
                f"of more than {LARGE} hold-out nodes some must stand for all, chosen by a generator", given="none"
            )
        own, other = (self.positions[:, self._sides[at]] for at in (side, 1 - side))
        coordinates = reaches(own, other)
        few = NodeStrata(coordinates, controls_of(0.0)).draw(rng)
        degree = self.m * float(self.probabilities(self.positions[few[::16]], self.positions[few]).mean())
        controls = controls_of(degree)
        return None if self.m <= 2 * controls else NodeStrata(coordinates, controls).draw(rng)

    def deconvolved(self, groups: NDArray[np.int64] | None = None, *, rng: np.random.Generator | None = None) -> Array:
        """(m, p): the hold-out positions without the spread that estimating each from m ties has added.

        Estimates scatter about their nodes, so that a network drawn from them is more uneven than the one they came
        from, and has more triangles. Here each position moves towards the mean by what its own precision asks for,
        until all have the covariance of the law behind them (a normal law, by the EM algorithm); α is then shifted
        until the expected density is again the fit's. Made of the hold-out nodes alone: private coordinates are placed
        in it for free. For the dot product graphs it made networks worse: there positions are returned as they are.

        Args:
            groups: (m,) a group of each, known and not read off the positions, such as a ward. Positions then move
                towards the mean of their own group, and what lies between groups is kept: a mean of many estimates has
                next to no error. Towards one mean for all, each group would lose a part of what sets it apart.
            rng: chooses those who stand for a large hold-out in its sums (`site_agent.models.controls`).
        Raises: ParameterError, for a large hold-out without a generator.
        """
        if self.model != "inner_product":
            return self.positions
        x, noise = self.positions, self.errors(rng)
        mean = x.mean(axis=0)
        if groups is not None:
            own = np.zeros((int(groups.max()) + 1, self.p))
            np.add.at(own, groups, x)
            mean = (own / np.maximum(np.bincount(groups), 1)[:, None])[groups]
        centred, least = x - mean, 1e-9 * np.eye(self.p)
        law = centred.T @ centred / self.m + least
        for _ in range(_ROUNDS):
            gain = law @ np.linalg.inv(law + noise)
            guess = (gain @ centred[:, :, None])[:, :, 0]
            new = guess.T @ guess / self.m + (law - gain @ law).mean(axis=0) + least
            new, before = (new + new.T) / 2, law
            law = new
            if np.abs(new - before).max() < 1e-4 * np.abs(new).max():
                break
        values, axes = np.linalg.eigh(law)
        root = axes * np.sqrt(np.maximum(values, 1e-12)) @ axes.T
        white = np.linalg.inv(root)
        # In units of the law an estimate has covariance 1 + N; its inverse root takes that back to 1.
        spread, turns = np.linalg.eigh(np.eye(self.p) + white @ noise @ white)
        y = np.einsum("iba,ib->ia", turns, centred @ white) / np.sqrt(np.maximum(spread, 1.0))
        return self._at_density(mean + np.einsum("iab,ib->ia", turns, y) @ root, self._standing_for(1, rng))

    def errors(self, rng: np.random.Generator | None = None, *, prior: Array | float = _PRIOR) -> Array:
        """(m, p, p): covariance of each position's estimation error, given the others; logistic models only.

        Args:
            rng: as of :meth:`deconvolved`.
            prior: precision of a coordinate without any ties: of α too, or an isolate's error would not be finite.
        Raises: ParameterError, for a large hold-out without a generator.
        """
        half = self.p // 2 if self.directed else self.p
        out = np.zeros((self.m, self.p, self.p))
        upper, diagonal = np.triu_indices(half), np.arange(half)
        for side, (own, other) in list(enumerate(zip(self._sides, self._sides[::-1], strict=True)))[
            : 1 + self.directed
        ]:
            chosen = self._standing_for(1 - side, rng)
            met = self.positions if chosen is None else self.positions[chosen]
            offset, design = met[:, other][:, 0], met[:, other].copy()
            design[:, 0] = 1
            products = (design[:, upper[0]] * design[:, upper[1]]).astype(np.float32)
            left = np.column_stack([self.positions[:, own], np.ones(self.m)]).astype(np.float32)
            right = np.ascontiguousarray(np.column_stack([design, offset]).T.astype(np.float32))
            found = np.empty((self.m, half, half))
            for start in range(0, self.m, ROWS):
                rows = slice(start, start + ROWS)
                t = self._linked(left[rows] @ right)
                t -= t * t
                found[rows][:, upper[0], upper[1]] = found[rows][:, upper[1], upper[0]] = t @ products
            if chosen is not None:
                found *= self.m / len(chosen)
            found[:, diagonal, diagonal] += prior
            out[:, own, own] = np.linalg.inv(found)
        return out

    def _at_density(self, latents: Array, some: Places | None) -> Array:
        """The same coordinates with α shifted, in Newton's steps on the logit scale, to the fit's expected density."""
        target, out = self._mean_probability(self.positions, some), latents.copy()
        for _ in range(8):
            now = self._mean_probability(out, some)
            shift = np.log(target / (1 - target)) - np.log(now / (1 - now))
            out[:, 0] += shift / 2
            if self.directed:
                out[:, self.p // 2] += shift / 2
            if abs(shift) < 1e-4:
                break
        return out

    def _mean_probability(self, latents: Array, some: Places | None) -> float:
        left, right = self._designs(latents)
        right = right if some is None else right[some]
        total = sum(
            float(self._linked(left[start : start + ROWS] @ right.T).sum(dtype=np.float64))
            for start in range(0, len(left), ROWS)
        )
        return float(np.clip(total / (len(left) * len(right)), 1e-9, 1 - 1e-9))

    @property
    def _signed(self) -> Array:
        return np.asarray(self.signs, dtype=np.float64)

    def _designs(self, latents: Array) -> tuple[Singles, Singles]:
        """Two (n, k) tables whose inner products are the logits, or the probabilities, of a tie."""
        latents = np.asarray(latents, dtype=np.float64)[:, : self.p]
        half = self.p // 2 if self.directed else self.p
        source, target = latents[:, :half], latents[:, -half:]
        if self.model == "inner_product":
            one = np.ones(len(latents))
            left = np.column_stack([source[:, 0], one, source[:, 1:]])
            right = np.column_stack([one, target[:, 0], target[:, 1:]])
        else:
            left, right = source, target * self._signed
        return np.ascontiguousarray(left, np.float32), np.ascontiguousarray(right, np.float32)

    def probabilities(self, left: Array, right: Array) -> Array:
        """(a, b) probabilities of a tie from each of `left` (a, ≥ p) to each of `right` (b, ≥ p)."""
        return self._linked(self._designs(left)[0] @ self._designs(right)[1].T).astype(np.float64)

    def _linked(self, t: Singles) -> Singles:
        """Probabilities in place of inner products."""
        if self.model != "inner_product":
            return np.clip(t, 0, 1, out=t)
        np.clip(t, -LOGIT, LOGIT, out=t)
        np.negative(t, out=t)
        np.exp(t, out=t)
        t += 1
        return np.reciprocal(t, out=t)

    def draw(
        self,
        latents: Array,
        key: bytes,
        names: Sequence[str] | None = None,
        *,
        first: int = 0,
        among: Places | None = None,
    ) -> Matrix:
        """A network of n nodes: (n, n) sparse, 0 and 1, no loops, symmetric unless directed.

        Args:
            latents: (n, ≥ p) coordinates; columns after the first p are attributes, and are not looked at.
            key: 16 to 64 bytes. The same key, names and coordinates draw the same ties.
            names: (n,) different, lasting names of the nodes; their numbers by default.
            first: pairs of nodes before this one are left out: an earlier wave drew them.
            among: (k,) places of nodes, ascending. The network is of these alone, (k, k), with the ties that they have
                in the whole one; only these are kept.
        """
        left, right = self._designs(latents)
        return draw_pairs(
            lambda i, j: self._linked(left[i] @ right[j].T),
            len(left),
            key,
            names,
            directed=self.directed,
            first=first,
            among=among,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Communities:
    """Communities of a network as places in its latent space: a node's is that of the nearest centre.

    Made by :func:`communities`. Which one a node has depends on that node's own coordinates and on the hold-out alone.

    Args:
        space: the model of the hold-out nodes.
        centres: (k, q) in the order of size.
    """

    space: LatentSpace
    centres: Array

    @property
    def k(self) -> int:
        """Number of communities: fewer than requested where some were too small."""
        return len(self.centres)

    def of(self, latents: Array) -> NDArray[np.int64]:
        """(n,) communities 0 … k − 1 of (n, ≥ p) coordinates; what is no number counts as 0."""
        return _nearest(_places(self.space, latents), self.centres)


def communities(space: LatentSpace, k: int, rng: np.random.Generator, *, least: int = 1) -> Communities:
    """Communities of the hold-out nodes, by k-means on what of their positions says whom they are tied to.

    A community that has fewer than `least` of the hold-out nodes is given up, the smallest first, and its nodes go to
    the nearest of the others.

    Args:
        k: how many to look for, 2 or more.
        least: fewest hold-out nodes of each.
        rng: starting points: no guarantee rests on it.
    Raises: ParameterError, where the hold-out nodes are fewer than `least` for each.

    >>> from site_agent.models.latent_fit import fit
    >>> square = np.kron(np.eye(2), np.ones((30, 30))) - np.eye(60)
    >>> space = fit(sparse.csr_array(square), model="rdpg", d=2, rng=np.random.default_rng(1))
    >>> np.bincount(communities(space, 2, np.random.default_rng(1)).of(space.positions)).tolist()
    [30, 30]
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 2 or k * least > space.m:
        raise ParameterError(
            f"communities must be two or more, of at least {least} hold-out nodes each",
            given=f"{k!r} of {space.m} hold-out nodes",
            next_step="Hold out more nodes, or look for fewer communities.",
        )
    places = _places(space, space.positions)
    found = clusters(places, int(k), rng)
    centres = np.array([places[found == label].mean(axis=0) for label in np.unique(found)])
    while True:
        sizes = np.bincount(_nearest(places, centres), minlength=len(centres))
        smallest = int(sizes.argmin())
        if sizes[smallest] >= least or len(centres) == 1:
            return Communities(space=space, centres=centres[np.argsort(-sizes, kind="stable")])
        centres = np.delete(centres, smallest, axis=0)


def _places(space: LatentSpace, latents: Array) -> Array:
    """(n, q): positions without α, whose length says how often a node is tied; of dot products the direction alone."""
    latents = np.clip(np.nan_to_num(np.asarray(latents, dtype=np.float64)[:, : space.p]), -1e30, 1e30)
    half = space.p // 2 if space.directed else space.p
    sides = [latents[:, :half], latents[:, half:]][: 1 + space.directed]
    if space.model == "inner_product":
        return np.hstack([side[:, 1:] for side in sides])
    lengths = [np.sqrt((side**2).sum(axis=1, keepdims=True)) for side in sides]
    return np.hstack([side / np.where(own > 0, own, 1) for side, own in zip(sides, lengths, strict=True)])


def _nearest(places: Array, centres: Array) -> NDArray[np.int64]:
    # One centre after the other: the arithmetic of a row is then the same whatever the other rows hold.
    squares = np.column_stack([((places - centre) ** 2).sum(axis=1) for centre in centres])
    return squares.argmin(axis=1).astype(np.int64)


def draw_pairs(
    probability: Callable[[slice, slice], Singles],
    n: int,
    key: bytes,
    names: Sequence[str] | None = None,
    *,
    directed: bool = False,
    first: int = 0,
    among: Places | None = None,
) -> Matrix:
    """Independent ties with the probabilities of a function of two slices, decided by each pair's own keyed number.

    Args:
        probability: (rows, columns) float32 of two slices of nodes.
        key, names, directed, first, among: as in :meth:`LatentSpace.draw`.
    Raises: ParameterError, for a key of another length or names that are not n different ones.

    >>> draw_pairs(lambda i, j: np.ones((i.stop - i.start, j.stop - j.start), np.float32), 3, bytes(16)).toarray()
    array([[0, 1, 1],
           [1, 0, 1],
           [1, 1, 0]], dtype=int32)
    """
    names = [str(number) for number in range(n)] if names is None else names
    if len(names) != n or len(set(names)) != n:
        raise ParameterError("each node must have a name of its own", given=f"{len(set(names))} names of {n} nodes")
    if not 16 <= len(key) <= 64:
        raise ParameterError("a key must have 16 to 64 bytes", given=f"{len(key)}")
    left = _hashed(names, key, b"source" if directed else b"both")
    right = _hashed(names, key, b"target") if directed else left
    found: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
    places = np.arange(n) if among is None else np.full(n, -1)
    if among is not None:
        places[among] = np.arange(len(among))
    side = max(1, min(n, 1024))
    high = max(1, _TILE // side)
    # Rows before the first new node meet the new ones alone.
    for top in range(0, n, high):
        i = slice(top, min(n, top + high))
        least = max(0 if directed else top - top % side, first if i.stop <= first else 0)
        for start in range(least - least % side, n, side):
            j = slice(start, min(n, start + side))
            hit = np.flatnonzero(_uniform(left[i], right[j]) < probability(i, j))
            row, column = np.divmod(hit, j.stop - j.start)
            row, column = row + i.start, column + j.start
            keep = row != column if directed else row < column
            if first:
                keep &= np.maximum(row, column) >= first
            if among is not None:  # tile by tile: half of all pairs may be tied
                keep &= (places[row] >= 0) & (places[column] >= 0)
            found.append((places[row[keep]].astype(np.int32), places[column[keep]].astype(np.int32)))
    row = np.concatenate([one for one, _ in found]) if found else np.empty(0, np.int32)
    column = np.concatenate([one for _, one in found]) if found else np.empty(0, np.int32)
    found.clear()
    size = n if among is None else len(among)
    made = sparse.csr_array((np.ones(len(row), np.int32), (row, column)), shape=(size, size))
    return made if directed else sparse.csr_array(made + made.T)


def _hashed(names: Sequence[str], key: bytes, purpose: bytes) -> Words:
    digests = (hashlib.blake2b(name.encode(), key=key, person=purpose, digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _uniform(left: Words, right: Words) -> Singles:
    """(a, b) numbers strictly between 0 and 1, each of its pair: the sum of two keyed hashes, thoroughly mixed.

    The sum makes it symmetric. What decides a tie carries no guarantee (a released network is post-processing of
    private coordinates), so that a mixer of two multiplications does.
    """
    x = left[:, None] + right[None, :]
    y = x >> np.uint64(32)
    x ^= y
    x *= np.uint64(0xD6E8FEB86659FD93)
    np.right_shift(x, np.uint64(32), out=y)
    x ^= y
    x *= np.uint64(0xD6E8FEB86659FD93)
    x >>= np.uint64(24)
    # 40 bits, and never 0: of 24, one in 2²⁴ pairs would be tied, or none, where hardly a tie is likely. Nor ever 1, to
    # which a float rounds: a complete network stays complete.
    u = x.astype(np.float32)
    u += np.float32(0.5)
    u *= np.float32(2.0**-40)
    np.minimum(u, np.float32(1 - 2.0**-24), out=u)
    return u


# -- one released node at a time -----------------------------------------------------------------------------------
def _logistic(ties: Matrix, design: Array, offset: Array, some: Places | None = None) -> Array:
    """(n, d + 1) intercepts and slopes of n logistic regressions on the same (m, d) design: row i from row i alone.

    Args:
        some: rows of the design that stand for all where a node is not tied (`site_agent.models.controls`).
    """
    n, m = ties.shape
    x = np.column_stack([np.ones(m), design])
    k = x.shape[1]
    cases = None if some is None else _Cases(x, offset, some)
    met = slice(None) if some is None else some
    single = np.ascontiguousarray(x[met], np.float32)
    across = np.ascontiguousarray(single.T)
    upper = np.triu_indices(k)
    products = np.ascontiguousarray(single[:, upper[0]] * single[:, upper[1]])
    shift = offset[met].astype(np.float32)
    sums, ridge = np.asarray(ties @ x), ridge_of(m, k)
    out = np.zeros((n, k))
    degree = np.clip(sums[:, 0], 0.5, m - 0.5)
    out[:, 0] = np.log(degree / (m - degree)) - np.mean(offset)
    for start in range(0, n, ROWS):
        rows = slice(start, min(n, start + ROWS))
        beta, moving = out[rows], np.ones(len(out[rows]), dtype=bool)
        if cases is not None:
            cases.take(ties[rows])
        for _ in range(_STEPS):
            t = beta.astype(np.float32) @ across
            t += shift
            np.clip(t, -LOGIT, LOGIT, out=t)
            np.negative(t, out=t)
            np.exp(t, out=t)
            t += 1
            np.reciprocal(t, out=t)
            expected = t @ single
            t -= t * t
            curvature = t @ products
            if cases is not None:
                expected, curvature = cases.joined(beta, expected, curvature)
            gradient = sums[rows] - expected - ridge * beta
            hessian = np.empty((len(beta), k, k))
            hessian[:, upper[0], upper[1]] = hessian[:, upper[1], upper[0]] = curvature
            hessian[:, np.arange(k), np.arange(k)] += ridge
            step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            length = np.sqrt((step**2).sum(axis=1))
            step *= np.minimum(1, _STRIDE / np.maximum(length, 1e-12))[:, None]
            # Each node stops by itself. A common criterion would let one node's ties move another's last digits.
            beta += np.where(moving[:, None], step, 0.0)
            moving &= length > _STILL
            if not moving.any():
                break
    np.clip(out, -LOGIT, LOGIT, out=out)
    return out


class _Cases:
    """The ties of a block of nodes, each counted as itself: controls stand for those alone that are not tied.

    Args:
        x, offset: (m, k) design and (m,) offsets of all hold-out nodes.
        some: the controls.
    """

    def __init__(self, x: Array, offset: Array, some: Places) -> None:
        self._x, self._offset = x, offset
        upper = np.triu_indices(x.shape[1])
        self._products = x[:, upper[0]] * x[:, upper[1]]
        self._weight = len(x) / len(some)
        # A control that is tied after all stands for itself alone, and has been counted as many.
        self._kept = np.ones(len(x))
        self._kept[some] -= self._weight

    def take(self, ties: Matrix) -> None:
        """Go over to the (b, m) ties of another block."""
        self._ties, self._rows = ties, np.repeat(np.arange(ties.shape[0]), np.diff(ties.indptr))

    def joined(self, beta: Array, expected: Sums, curvature: Sums) -> tuple[Array, Array]:
        """Sums over all hold-out nodes: those of the controls, so many times, with each tie in its own place.

        Args:
            beta: (b, k) the block's coefficients.
            expected: (b, k) Σ p x over the controls.
            curvature: (b, k (k + 1) / 2) Σ p (1 − p) x xᵀ over the controls.
        """
        at = self._ties.indices
        t = (beta[self._rows] * self._x[at]).sum(axis=1) + self._offset[at]
        p = 1 / (1 + np.exp(-np.clip(t, -LOGIT, LOGIT)))
        # Row by row: a row's sums come from its own ties in their order, whatever the other rows hold.
        first = sparse.csr_array((self._kept[at] * p, at, self._ties.indptr), shape=self._ties.shape)
        second = sparse.csr_array((first.data * (1 - p), at, self._ties.indptr), shape=self._ties.shape)
        return self._weight * expected + first @ self._x, self._weight * curvature + second @ self._products


def ridge_of(m: int, k: int) -> Array:
    """(k,) weights of the squares of (α, Z): next to nothing on α, a unit normal prior on each position.

    A node without ties is expected to have as many as α's weight times |α|: it no longer grows in a large hold-out.
    """
    return np.array([_RIDGE * min(m, LARGE)] + [_PRIOR] * (k - 1))


def _least_squares(ties: Matrix, design: Array) -> Array:
    """(n, d) coefficients of n regressions on the same (m, d) design; a direction without extent gets 0."""
    return np.asarray(ties @ np.linalg.pinv(design, rcond=1e-9).T)
