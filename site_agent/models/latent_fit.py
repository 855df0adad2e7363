"""A latent space model fitted to the ties between hold-out nodes; of other nodes it is told nothing.

`fit` sees the block A²² between hold-out nodes and nothing else. The random dot product graphs are leading
eigenvectors (singular vectors); a direction that a graph does not have stays 0. The inner-product model starts from the
spectrum of the degree-corrected adjacency matrix and goes on by L-BFGS on the likelihood, in units of each node's own
curvature. Everything of size m × m is made in tiles and thrown away. An isolate's α would run to −∞, a complete graph's
to +∞: a ridge of 10⁻⁶ per pair, too weak to pull anything else, and logits cut at ±30 keep them finite.

Of a large hold-out only a sample of the pairs is gone through, beside all that are tied (`site_agent.models.controls`):
first the best positions for one sample, then Newton's steps on new ones (:func:`_settled`).

Sources: Li, Levina & Zhu (2020) for the choice of d by edge cross-validation; Raftery, Niu, Hoff & Yeung (2012) for the
likelihood of a sample.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh, svds

from shared.errors import ParameterError
from shared.mechanisms.grand.noise import coordinates
from site_agent.models.controls import LARGE, NodeStrata, controls_of, reaches
from site_agent.models.latent_space import LOGIT, ROWS, Array, LatentSpace, Matrix, ridge_of

__all__ = ["choose_dimension", "fit"]

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

_PASSES = 60
_NEWTON = 12
_AT_ONCE, _SET = 1 << 16, 64
_TESTED, _MOST_TESTED = 0.05, 200_000


def fit(
    holdout: Matrix, *, model: str, d: int | None, directed: bool = False, rng: np.random.Generator, most: int = 8
) -> LatentSpace:
    """Fit a model to the ties between hold-out nodes; of other nodes it is told nothing.

    Args:
        holdout: (m, m) 0 and 1, no loops; symmetric unless directed.
        model: one of `shared.mechanisms.grand.noise.MODELS`.
        d: latent dimension, below m; None chooses 1 to `most` by :func:`choose_dimension`.
        directed: whether a tie has a direction.
        rng: starting points, the pairs of the cross-validation, and of a large hold-out those that are gone through: no
            guarantee rests on it.
        most: largest dimension to choose from.
    Raises: ParameterError.

    >>> ties = sparse.csr_array(np.ones((30, 30), np.int32) - np.eye(30, dtype=np.int32))
    >>> space = fit(ties, model="rdpg", d=1, rng=np.random.default_rng(1))
    >>> round(float(space.probabilities(space.positions, space.positions).mean()), 2)
    0.97
    """
    holdout = _checked(holdout, directed)
    m = holdout.shape[0]
    if d is None:
        d = choose_dimension(holdout, model=model, directed=directed, rng=rng, most=most)
    coordinates(model, d, directed=directed)
    if d >= m:
        raise ParameterError(
            "the latent dimension must be below the number of hold-out nodes",
            given=f"d = {d}, m = {m}",
            next_step="Hold out more nodes, or plan a smaller dimension.",
        )
    return _fitted(holdout, model, d, directed, rng, None, 1.0)


def choose_dimension(
    holdout: Matrix, *, model: str, directed: bool = False, rng: np.random.Generator, most: int = 8
) -> int:
    """The dimension, 1 to `most`, that predicts left-out pairs of hold-out nodes best.

    One pair in twenty (200,000 at most) is left out of the fit; a dimension is judged by the deviance of those pairs,
    for the dot product graphs by their squared error. A larger one must be better by a thousandth, and the search ends
    after two that are not.

    Args:
        holdout: (m, m) adjacency of the network among hold-out nodes.
        model: one of `shared.mechanisms.grand.noise.MODELS`.
        directed: whether an edge has a direction.
        rng: chooses the pairs that are left out.
        most: largest dimension, in 1..32.
    Raises: ParameterError.
    """
    holdout = _checked(holdout, directed)
    m = holdout.shape[0]
    if not 1 <= most <= 32:
        raise ParameterError("the largest dimension must be in 1..32", given=repr(most))
    coordinates(model, 1, directed=directed)
    pairs = m * (m - 1) // (1 if directed else 2)
    count = min(int(_TESTED * pairs), _MOST_TESTED)
    if count < 1 or m < 4:
        return 1
    i, j = rng.integers(0, m, 2 * count), rng.integers(0, m, 2 * count)
    i, j = (i, j) if directed else (np.minimum(i, j), np.maximum(i, j))
    code = np.unique((i * m + j)[i != j])
    code = rng.permutation(code)[:count]
    i, j = np.divmod(np.sort(code), m)
    tie = np.asarray(holdout[i, j], dtype=np.float64).ravel()
    left_out = sparse.csr_array((tie, (i, j)), shape=(m, m))
    training = sparse.csr_array(holdout - (left_out if directed else left_out + left_out.T))
    training.eliminate_zeros()
    best, chosen = np.inf, 1
    for d in range(1, min(most, m - 1) + 1):
        space = _fitted(training, model, d, directed, rng, (i, j), 1 - len(i) / pairs)
        half = space.p // 2 if directed else space.p
        source, target = space.positions[i, :half], space.positions[j, -half:]
        if model == "inner_product":
            t = np.clip(source[:, 0] + target[:, 0] + (source[:, 1:] * target[:, 1:]).sum(1), -LOGIT, LOGIT)
            loss = float((np.logaddexp(0, t) - tie * t).mean())
        else:
            guess = np.clip((source * space._signed * target).sum(1), 0, 1)
            loss = float(((tie - guess) ** 2).mean())
        if loss < best * (1 - 1e-3):
            best, chosen = loss, d
        elif d >= chosen + 2:
            break
    return chosen


def _checked(holdout: Matrix, directed: bool) -> Matrix:
    holdout = sparse.csr_array(holdout, dtype=np.float64, copy=True)
    holdout.eliminate_zeros()
    rows, columns = holdout.shape
    if rows != columns or rows < 2:
        raise ParameterError(
            "the hold-out block must be square, of at least two nodes",
            given=f"shape {holdout.shape}",
            next_step="Hold out more nodes.",
        )
    if not (holdout.data == 1).all() or holdout.diagonal().any():
        raise ParameterError("the hold-out block must hold ties of 1 and no loops", given="other values")
    if not directed and (holdout != holdout.T).nnz:
        raise ParameterError("the ties of an undirected network must be symmetric", given="some that are not")
    return holdout


def _fitted(
    ties: Matrix, model: str, d: int, directed: bool, rng: np.random.Generator, hidden: Pairs | None, share: float
) -> LatentSpace:
    """Fit with the pairs `hidden` left out; `share` is the share of all pairs that is left."""
    if model == "inner_product":
        return LatentSpace(model=model, d=d, directed=directed, positions=_likelihood(ties, d, directed, rng, hidden))
    scaled = ties / share
    if directed:
        u, s, v = _singular(scaled, d, rng)
        return LatentSpace(model=model, d=d, directed=True, positions=np.hstack([u * np.sqrt(s), v * np.sqrt(s)]))
    values, vectors = _eigen(scaled, d, "LA" if model == "rdpg" else "LM", rng)
    if model == "rdpg":
        values = np.maximum(values, 0)
    signs = tuple(-1 if value < 0 else 1 for value in values)
    return LatentSpace(
        model=model, d=d, directed=False, positions=_oriented(vectors * np.sqrt(np.abs(values))), signs=signs
    )


def _eigen(operator: Matrix | LinearOperator, d: int, which: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """The d leading eigenvalues, largest first (in size, for "LM"), and their vectors."""
    m = operator.shape[0]
    if d >= m - 1 or m <= 32:
        dense = operator @ np.eye(m)
        values, vectors = np.linalg.eigh((dense + dense.T) / 2)
    else:
        try:
            values, vectors = eigsh(operator, k=d, which=which, v0=rng.standard_normal(m), tol=1e-6)
        except ArpackError as error:  # a network without ties, or with eigenvalues too alike to be told apart
            values, vectors = (
                getattr(error, "eigenvalues", np.zeros(0)),
                getattr(error, "eigenvectors", np.zeros((m, 0))),
            )
            lack = d - len(values)
            values, vectors = np.append(values, np.zeros(lack)), np.hstack([vectors, np.zeros((m, lack))])
    order = np.argsort(-np.abs(values) if which == "LM" else -values, kind="stable")[:d]
    return values[order], vectors[:, order]


def _singular(operator: Matrix | LinearOperator, d: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """The d leading singular values, and both sides' vectors, oriented together."""
    m = operator.shape[0]
    if d >= m - 1 or m <= 32:
        u, s, vt = np.linalg.svd(operator @ np.eye(m))
    else:
        try:
            u, s, vt = svds(operator, k=d, v0=rng.standard_normal(m))
        except ArpackError:
            u, s, vt = np.zeros((m, d)), np.zeros(d), np.zeros((d, m))
    order = np.argsort(-s, kind="stable")[:d]
    u, v = u[:, order], vt[order].T
    flip = np.where((u**3).sum(axis=0) + (v**3).sum(axis=0) < 0, -1.0, 1.0)
    return u * flip, s[order], v * flip


def _oriented(z: Array) -> Array:
    """Columns turned so that their third moment is not negative: an eigenvector's sign is an accident."""
    return z * np.where((z**3).sum(axis=0) < 0, -1.0, 1.0)


def _start(ties: Matrix, d: int, directed: bool, rng: np.random.Generator) -> tuple[Array, Array]:
    """(m, d + 1) tables of sources and targets to begin with: log degrees, and what ties exceed them by."""
    m = ties.shape[0]
    degrees = [np.asarray(ties.sum(axis=axis)).ravel() for axis in (1, 0)]
    total = max(float(degrees[0].sum()), 1.0)
    alphas, roots = [], []
    for degree in degrees:
        share = np.clip(degree, 0.5, m - 1.5) / (m - 1)
        alphas.append(np.log(share / (1 - share)))
        roots.append(1 / np.sqrt(degree + degree.mean() + 1))
    overall = np.log(min(total / (m * (m - 1)), 1 - 0.5 / m) / (1 - min(total / (m * (m - 1)), 1 - 0.5 / m)))
    alphas = [alpha - overall / 2 for alpha in alphas]
    left, right = roots

    def forward(x: Array) -> Array:
        x = np.asarray(x).ravel()
        return left * (ties @ (right * x) - degrees[0] * float(degrees[1] @ (right * x)) / total)

    def backward(x: Array) -> Array:
        x = np.asarray(x).ravel()
        return right * (ties.T @ (left * x) - degrees[1] * float(degrees[0] @ (left * x)) / total)

    # A tie beyond the product of degrees, in units of that product; less where most pairs are tied anyway.
    weight = total / max(1 - total / (m * (m - 1)), 0.5)
    excess = LinearOperator((m, m), matvec=forward, rmatvec=backward, dtype=np.float64)
    if directed:
        u, s, v = _singular(excess, d, rng)
    else:
        s, u = _eigen(excess, d, "LA", rng)
        v = u
    size = np.sqrt(np.maximum(s, 0) * weight)
    x, y = u * size * left[:, None], v * size * right[:, None]
    # A direction that starts at zero has no gradient and would stay there.
    dead = size <= 1e-6
    x[:, dead] = y[:, dead] = 1e-2 * rng.standard_normal((m, int(dead.sum())))
    limit = np.maximum(1.0, np.sqrt((x**2).sum(1)))[:, None] / 3
    x, y = x / np.maximum(1, limit), y / np.maximum(1, limit)
    return np.column_stack([alphas[0], x]), np.column_stack([alphas[1], y])


def _likelihood(ties: Matrix, d: int, directed: bool, rng: np.random.Generator, hidden: Pairs | None) -> Array:
    """(m, p) coordinates that maximise the likelihood of all pairs but the hidden ones."""
    m = ties.shape[0]
    source, target = _start(ties, d, directed, rng)
    sides = [source, target] if directed else [source]
    degrees = [np.asarray(ties.sum(axis=axis)).ravel() for axis in ((1, 0) if directed else (1,))]
    # Newton's step of a node is about its gradient over d_i (1 - d_i / m): in these units all nodes are alike.
    units = np.concatenate(
        [np.repeat(1 / np.sqrt(degree * (1 - degree / m) + 1)[:, None], d + 1, axis=1).ravel() for degree in degrees]
    )
    pairs = m * (m - 1) / (1 if directed else 2)
    ridge = ridge_of(m, d + 1)

    def best(tables: Array, deviance: Callable[[Array], tuple[float, list[Array]]], passes: int) -> Array:
        def objective(scaled: Array) -> tuple[float, Array]:
            tables = (scaled * units).reshape(len(sides), m, d + 1)
            loss, gradients = deviance(tables)
            loss += 0.5 * float((ridge * tables**2).sum())
            gradient = np.concatenate([(one + ridge * own).ravel() for one, own in zip(gradients, tables, strict=True)])
            return loss / pairs, gradient * units / pairs

        found = optimize.minimize(
            objective,
            tables.ravel() / units,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": passes, "maxcor": 10, "ftol": 1e-8, "gtol": 1e-12},
        )
        return np.asarray((found.x * units).reshape(len(sides), m, d + 1))

    tables, controls = np.array(sides), controls_of(ties.nnz / m)
    if m <= max(LARGE, 2 * controls):
        return _principal(best(tables, lambda tables: _deviance(ties, tables, hidden), _PASSES))
    first = PairSample(ties, tables, hidden, rng, controls=controls // 2)
    tables = best(tables, first.deviance, _PASSES)
    return _principal(_settled(ties, tables, hidden, rng, controls))


def _settled(ties: Matrix, tables: Array, hidden: Pairs | None, rng: np.random.Generator, controls: int) -> Array:
    """Positions that are best for one sample of pairs, made those that are best for all of them, but for little chance.

    What is best for a sample takes advantage of it: pairs that are in it get too small a probability, those that are
    not too large a one. Here every node takes Newton's steps, each on a new sample, of which the gradient is right on
    average; the mean of the last steps has a small part of one sample's chance. Half steps: both ends of a pair move,
    and a full step would take one for the other's share as well.
    """
    width = tables.shape[2]
    space = LatentSpace(
        model="inner_product", d=width - 1, directed=len(tables) == 2, positions=np.hstack(list(tables))
    )
    ridge, mean = ridge_of(space.m, width), np.zeros(tables.shape)
    errors = space.errors(rng, prior=ridge)
    inverses = [errors[:, at : at + width, at : at + width] for at in range(0, space.p, width)]
    for number in range(_NEWTON):
        _, gradients = PairSample(ties, tables, hidden, rng, controls=controls).deviance(tables)
        tables = tables.copy()
        for table, gradient, inverse in zip(tables, gradients, inverses, strict=True):
            step = 0.5 * np.einsum("iab,ib->ia", inverse, gradient + ridge * table)
            table -= step / np.maximum(1, np.sqrt((step**2).sum(axis=1)))[:, None]
        if number >= _NEWTON // 2:
            mean += tables / (_NEWTON - _NEWTON // 2)
    return mean


def _principal(tables: Array) -> Array:
    """The same probabilities in coordinates that are determined: centred, on principal axes, signs settled."""
    source, target = tables[0].copy(), tables[-1].copy()
    x, y = source[:, 1:], target[:, 1:]
    cx, cy = x.mean(axis=0), y.mean(axis=0)
    source[:, 0] += x @ cy - cx @ cy / 2
    target[:, 0] += y @ cx - cx @ cy / 2
    x, y = x - cx, y - cy
    if len(tables) == 1:
        _, _, axes = np.linalg.svd(x, full_matrices=False)
        axes = axes[: x.shape[1]]
        return np.column_stack([source[:, 0], _oriented(x @ axes.T)])
    # X Yᵀ = U S Vᵀ through two thin factorisations: both sides get the root of S.
    qx, rx = np.linalg.qr(x)
    qy, ry = np.linalg.qr(y)
    u, s, vt = np.linalg.svd(rx @ ry.T)
    x, y = qx @ u * np.sqrt(s), qy @ vt.T * np.sqrt(s)
    flip = np.where((x**3).sum(0) + (y**3).sum(0) < 0, -1.0, 1.0)
    gap = (source[:, 0].mean() - target[:, 0].mean()) / 2
    return np.column_stack([source[:, 0] - gap, x * flip, target[:, 0] + gap, y * flip])


def _deviance(ties: Matrix, tables: Array, hidden: Pairs | None) -> tuple[float, list[Array]]:
    """Minus the log likelihood, and its gradients: (1 or 2, m, d + 1) tables of intercepts and positions.

    Logits in single precision and tiles of rows; for an undirected network only the tiles on and above the diagonal.
    """
    symmetric = len(tables) == 1
    source, target = tables[0], tables[-1]
    m = len(source)
    one = np.ones(m)
    left = np.column_stack([source[:, 0], one, source[:, 1:]]).astype(np.float32)
    right = np.column_stack([one, target[:, 0], target[:, 1:]]).astype(np.float32)
    across = np.ascontiguousarray(right.T)
    # What multiplies a residual in the gradient: 1 for an intercept, the other side's position.
    by_source = np.column_stack([one, target[:, 1:]])
    by_target = np.column_stack([one, source[:, 1:]])
    by_source32, by_target32 = by_source.astype(np.float32), by_target.astype(np.float32)
    expected = [np.zeros((m, source.shape[1])), np.zeros((m, source.shape[1]))]
    loss = 0.0
    for start in range(0, m, ROWS):
        stop = min(m, start + ROWS)
        first, width, diagonal = (start if symmetric else 0), stop - start, np.arange(stop - start)
        t = left[start:stop] @ across[:, first:]
        np.clip(t, -LOGIT, LOGIT, out=t)
        np.exp(t, out=t)
        t += 1
        t[diagonal, diagonal + start - first] = 1
        terms = np.log(t)
        if symmetric:
            loss += float(terms[:, width:].sum(dtype=np.float64)) + float(terms[:, :width].sum(dtype=np.float64)) / 2
        else:
            loss += float(terms.sum(dtype=np.float64))
        np.reciprocal(t, out=t)
        np.subtract(1, t, out=t)
        expected[0][start:stop] += t @ by_source32[first:]
        if symmetric:
            expected[0][stop:] += t[:, width:].T @ by_target32[start:stop]
        else:
            expected[1] += t.T @ by_target32[start:stop]
    if hidden is not None:
        i, j = hidden
        t = source[i, 0] + target[j, 0] + (source[i, 1:] * target[j, 1:]).sum(axis=1)
        t = np.clip(t, -LOGIT, LOGIT)
        loss -= float(np.logaddexp(0, t).sum())
        chance = sparse.csr_array((1 / (1 + np.exp(-t)), (i, j)), shape=(m, m))
        expected[0] -= chance @ by_source
        expected[0 if symmetric else 1] -= chance.T @ by_target
    seen = ties @ by_source
    loss -= float((seen[:, 0] * source[:, 0]).sum())
    loss -= float((seen[:, 1:] * source[:, 1:]).sum()) / (2 if symmetric else 1)
    if symmetric:
        return loss, [expected[0] - seen]
    back = ties.T @ by_target
    loss -= float((back[:, 0] * target[:, 0]).sum())
    return loss, [expected[0] - seen, expected[1] - back]


class PairSample:
    """The likelihood of all tied pairs and of a sample of the others, each with the weight of those it stands for.

    Sources go at random into small sets, and each set meets a stratified sample of targets of its own: a source meets a
    target with probability 1 / c, whoever the two are, and the pair's weight is c; of an undirected network either may
    be the source, and the weight is half of that. What is met of tied and hidden pairs, and of a node with itself, is
    taken away again, so that the sample speaks of the other pairs alone.

    Sets must be small. Were a good part of the nodes never to meet another part, ties between the two would be held
    back by nothing, and the best positions would tie all of them.

    Args:
        ties: (m, m) adjacency; symmetric where there is one table.
        tables: (1 or 2, m, d + 1) intercepts and positions that strata are made of, as good as they are known.
        hidden: pairs that are left out.
        rng: which nodes meet.
        controls: other nodes that each meets.
    """

    def __init__(
        self, ties: Matrix, tables: Array, hidden: Pairs | None, rng: np.random.Generator, *, controls: int
    ) -> None:
        symmetric = len(tables) == 1
        m = ties.shape[0]
        self._strata = NodeStrata(reaches(tables[-1], tables[0]), max(1, controls // 2 if symmetric else controls))
        self._sources = rng.permutation(m)
        self._offsets = self._strata.offsets(rng, -(-m // _SET))
        self.weight = self._strata.c / (2 if symmetric else 1)
        number = np.empty(m, np.int64)
        number[self._sources] = np.arange(m) // _SET
        tied = sparse.coo_array(sparse.triu(ties, k=1) if symmetric else ties)
        every, none = np.arange(m), np.empty(0, dtype=np.int64)
        known = [(tied.row, tied.col), (none, none) if hidden is None else hidden, (every, every)]
        i, j = (np.concatenate([pairs[side] for pairs in known]).astype(np.int64) for side in (0, 1))
        met = self._strata.has(self._offsets, number[i], j).astype(np.float64)
        if symmetric:
            met += self._strata.has(self._offsets, number[j], i) & (i != j)
        tie = np.arange(len(i)) < len(tied.row)
        weight = tie - self.weight * met
        used = np.flatnonzero(tie | (weight != 0))
        used = used[np.argsort(i[used], kind="stable")]
        self._tie, self._weights = tie[used], weight[used]
        self._i, self._j = i[used].astype(np.int32), j[used].astype(np.int32)
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(self._i, minlength=m))])

    def deviance(self, tables: Array) -> tuple[float, list[Array]]:
        """Minus the log likelihood, as the sample has it, and its gradients, as those of all pairs."""
        source, target = tables[0], tables[-1]
        m = len(source)
        one = np.ones(m)
        left = np.column_stack([source[:, 0], one, source[:, 1:]]).astype(np.float32)
        right = np.column_stack([one, target[:, 0], target[:, 1:]]).astype(np.float32)
        by_source, by_target = np.column_stack([one, target[:, 1:]]), np.column_stack([one, source[:, 1:]])
        by_source32, by_target32 = by_source.astype(np.float32), by_target.astype(np.float32)
        gradients = [np.zeros(table.shape) for table in tables]
        loss = 0.0
        for number, offsets in enumerate(self._offsets):
            sources, targets = self._sources[number * _SET : (number + 1) * _SET], self._strata.sample(offsets)
            t = left[sources] @ np.ascontiguousarray(right[targets].T)
            np.clip(t, -LOGIT, LOGIT, out=t)
            np.exp(t, out=t)
            odds = t + 1
            t /= odds
            loss += self.weight * float(np.log(odds, out=odds).sum(dtype=np.float64))
            gradients[0][sources] += self.weight * (t @ by_source32[targets])
            gradients[-1][targets] += self.weight * (t.T @ by_target32[sources])
        residual = np.empty(len(self._i))
        for start in range(0, len(residual), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            i, j, tie, weight = self._i[some], self._j[some], self._tie[some], self._weights[some]
            t = source[i, 0] + target[j, 0] + (source[i, 1:] * target[j, 1:]).sum(axis=1)
            cut = np.clip(t, -LOGIT, LOGIT)
            loss += float((weight * np.logaddexp(0, cut)).sum() - t[tie].sum())
            residual[some] = weight / (1 + np.exp(-cut)) - tie
        known = sparse.csr_array((residual, self._j, self._starts), shape=(m, m))
        gradients[0] += known @ by_source
        gradients[-1] += known.T @ by_target
        return loss, gradients
