r"""Bijections between encoded records and latents, from plain arrays and numpy alone.

Training lives at the site (`site_agent.models.flow`) and needs torch; what it leaves behind is arrays. This module
is what a sealed flow *is*: it can be stored without pickle, read anywhere, and run without torch.

A fitted flow is a chain, from latents to records:

    z ── AffineAutoregressiveFlow ──► v ── Levels ──► y ── Strata ──► s ── Margins ──► x

`Margins` undoes normal scores column by column. `Levels` gives each dequantised column (a code plus U(0, 1)) its own
law given the other columns, so that neither its frequencies nor its associations depend on how well an affine flow
draws a staircase; an affine flow alone moves a 4 % event to 10 %. `Strata` gives a column that is another one in
each level of a third (a time to event or to censoring) a margin and a regression per level. What is left to the flow
is smooth. Where a column is carried over as it is, every other column is another one in each of its levels, and the
flow stands `Beside` it.

Every bijection treats rows one by one and has a closed array form: `to_arrays` gives named arrays, `from_arrays`
reads them and refuses what no fit could have written.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shared.errors import ParameterError, SchemaRefusal
from shared.flows.outcomes import HazardLaw, LevelLaw, OutcomeInputs, TiltLaw

__all__ = [
    "SCALE_FLOOR",
    "SPLINE_BOUND",
    "AffineAutoregressiveFlow",
    "Beside",
    "Bijection",
    "Composed",
    "Identity",
    "LevelModel",
    "Levels",
    "Margins",
    "MaskedLayer",
    "OutcomesLast",
    "Strata",
    "StratumModel",
    "first_layers",
    "from_arrays",
    "masks",
    "to_arrays",
]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

SCALE_FLOOR = 1e-3
"""Least scale of a masked layer: softplus(a) + 1e-3, as in nflows 0.14."""

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_EDGE = 8.0
"""Normal score at which the outermost level begins: Φ(−8) = 6e-16, so no draw falls outside the levels."""
_BLOCK = 8192
"""Rows at a time: bounds the memory of a pass through the networks."""


@runtime_checkable
class Bijection(Protocol):
    """x = f(z): latents z and encoded records x, both (n, d), dimensionless."""

    @property
    def d(self) -> int:
        """Number of columns."""
        ...

    def forward(self, z: Array) -> Array:
        """x = f(z), (n, d) to (n, d)."""
        ...

    def inverse(self, x: Array) -> Array:
        """z = f⁻¹(x), (n, d) to (n, d)."""
        ...

    def log_prob(self, x: Array) -> Array:
        """log N(f⁻¹(x); 0, I) + log |det ∂f⁻¹/∂x|, (n,), in nats."""
        ...


@runtime_checkable
class _Part(Bijection, Protocol):
    """A bijection that can also be chained and stored."""

    kind: ClassVar[str]

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]: ...

    def to_arrays(self) -> Arrays: ...


class _Base(ABC):
    """What all bijections of this module share: everything follows from two methods."""

    @abstractmethod
    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""

    def inverse(self, x: Array) -> Array:
        """z = f⁻¹(x), (n, d) to (n, d), a new array."""
        return self.inverse_with_log_det(x)[0]

    def log_prob(self, x: Array) -> Array:
        """log N(f⁻¹(x); 0, I) + log |det ∂f⁻¹/∂x|, (n,), in nats."""
        z, log_det = self.inverse_with_log_det(x)
        return -0.5 * (z**2).sum(axis=1) - z.shape[1] * _HALF_LOG_2PI + log_det


def _matrix(x: Array, d: int) -> Array:
    x = np.array(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != d:
        raise ParameterError(f"records must be a matrix with {d} columns", given=f"shape {x.shape}")
    return x


def _frozen(value: Any, name: str, ndim: int) -> Array:
    out = np.array(value, dtype=np.float64)
    if out.ndim != ndim or not np.isfinite(out).all():
        raise SchemaRefusal(f"{name} must be {ndim}-dimensional and finite", given=f"shape {out.shape}")
    out.setflags(write=False)
    return out


@dataclass(frozen=True, kw_only=True)
class Identity(_Base):
    """The bijection that changes nothing: x = z.

    >>> Identity(d=2).forward(np.ones((1, 2)))
    array([[1., 1.]])
    """

    kind: ClassVar[str] = "identity"
    d: int

    def forward(self, z: Array) -> Array:
        """x = z."""
        return _matrix(z, self.d)

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(x, 0)."""
        z = _matrix(x, self.d)
        return z, np.zeros(len(z))

    def to_arrays(self) -> Arrays:
        """The number of columns."""
        return {"d": np.array(self.d, dtype=np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Identity:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        _closed(arrays, {"d"}, cls.kind)
        d = int(np.asarray(arrays["d"]).reshape(-1)[0]) if np.asarray(arrays["d"]).size == 1 else 0
        if d < 1:
            raise SchemaRefusal("a bijection must have at least one column")
        return cls(d=d)


# -- the flow ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedLayer:
    r"""One masked autoregressive step, from data to noise: u_i is an increasing function of v_i, chosen by v_{<i}.

    Affine (no bins): u_i = s_i v_i + t_i with

    .. math:: s_i = \mathrm{softplus}(a_i) + 10^{-3}, \qquad (a_i, t_i) = \text{rows } 2i, 2i + 1 \text{ of a network}

    With B bins it is nflows' rational-quadratic spline on [-5, 5], the identity beyond; 3B - 1 rows of the network are
    its widths, heights and slopes.

    Args:
        order: the permutation in which the layer reads the columns; v is `columns[order]`.
        weights: matrices of the network, (units out, units in), masks already applied.
        biases: one vector per matrix.
        bins: of a spline; 0 is affine.
    Raises: SchemaRefusal, if the shapes do not fit, or if the function of v_i could depend on v_i or a later column.
    """

    order: NDArray[np.int64]
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    bins: int = 0
    _steps: tuple[tuple[_ReverseStep, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        order = np.array(self.order, dtype=np.int64)
        d = order.size
        if order.ndim != 1 or d == 0 or not np.array_equal(np.sort(order), np.arange(d)):
            raise SchemaRefusal("a variable order must be a permutation")
        order.setflags(write=False)
        weights = tuple(_frozen(w, "a weight", 2) for w in self.weights)
        biases = tuple(_frozen(b, "a bias", 1) for b in self.biases)
        widths = [d, *(len(b) for b in biases)]
        if self.bins not in (0, *range(2, 65)):
            raise SchemaRefusal("the bins of a spline must be 2 to 64, or 0 for none")
        each = 3 * self.bins - 1 if self.bins else 2
        if len(weights) != len(biases) or len(weights) < 2 or widths[-1] != each * d:
            raise SchemaRefusal(f"a masked network must have a hidden layer and {each * d} outputs")
        if any(w.shape != (widths[k + 1], widths[k]) for k, w in enumerate(weights)):
            raise SchemaRefusal("the matrices of a masked network must fit one another")
        # reads[u]: how many leading variables a unit can see (0: none), followed along non-zero weights.
        reads = [np.arange(1, d + 1)]
        for w in weights:
            reads.append(np.where(w != 0, reads[-1][None, :], 0).max(axis=1, initial=0))
        if (reads[-1] > np.repeat(np.arange(d), each)).any():
            raise SchemaRefusal("a masked network must be autoregressive")
        for name, value in (
            ("order", order),
            ("weights", weights),
            ("biases", biases),
            ("_steps", _steps(weights, biases, reads)),
        ):
            object.__setattr__(self, name, value)

    def to_noise(self, v: Array, activation: str) -> tuple[Array, Array]:
        """One step towards noise, columns first: (d, n) to (d, n), and log |det| (n,)."""
        act = _ACTIVATIONS[activation]
        hidden = v[self.order]
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = w @ hidden
            hidden += b[:, None]
            act(hidden, out=hidden)
        out = self.weights[-1] @ hidden + self.biases[-1][:, None]
        u = np.empty_like(v)
        if self.bins:
            u[self.order], log_slope = _spline(out.reshape(len(v), -1, v.shape[1]), v[self.order], self.bins)
            return u, log_slope.sum(axis=0)
        scale = _softplus(out[0::2]) + SCALE_FLOOR
        u[self.order] = scale * v[self.order] + out[1::2]
        return u, np.log(scale).sum(axis=0)

    def to_data(self, u: Array, activation: str) -> Array:
        """The reverse step: column i needs the columns before it, and each unit of the network is evaluated once."""
        act = _ACTIVATIONS[activation]
        d, n = u.shape
        v = np.zeros((d, n))
        hidden = [np.zeros((len(b), n)) for b in self.biases[:-1]]
        for i, steps in enumerate(self._steps):
            below = v
            for step, units in zip(steps[:-1], hidden, strict=True):
                if len(step.weight):
                    new = units[step.start : step.start + len(step.weight)]
                    np.matmul(step.weight, below[: step.weight.shape[1]], out=new)
                    new += step.bias
                    act(new, out=new)
                below = units
            last = steps[-1]
            rows = last.weight @ below[: last.weight.shape[1]] + last.bias
            if self.bins:
                v[i] = _spline(rows, u[self.order[i]], self.bins, back=True)[0]
            else:
                v[i] = (u[self.order[i]] - rows[1]) / (_softplus(rows[0]) + SCALE_FLOOR)
        out = np.empty_like(v)
        out[self.order] = v
        return out


@dataclass(frozen=True, eq=False)
class _ReverseStep:
    """What the reverse step evaluates of one matrix once another column is known.

    Units stand sorted by how many columns they read: what is new is a slice, and what it reads are the first rows.
    """

    start: int
    weight: Array
    bias: Array


def _steps(
    weights: tuple[Array, ...], biases: tuple[Array, ...], reads: list[NDArray[np.int64]]
) -> tuple[tuple[_ReverseStep, ...], ...]:
    d = len(reads[0])
    sorts = [np.argsort(read, kind="stable") for read in reads[:-1]]
    out = []
    for i in range(d):
        parts = []
        for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
            seen = sorts[k][: int((reads[k] <= i).sum())]
            last = k == len(weights) - 1
            each = len(w) // d
            new = np.arange(each * i, each * (i + 1)) if last else np.flatnonzero(reads[k + 1] == i)
            start = 0 if last else int((reads[k + 1] < i).sum())
            parts.append(_ReverseStep(start, np.ascontiguousarray(w[np.ix_(new, seen)]), b[new, None]))
        out.append(tuple(parts))
    return tuple(out)


SPLINE_BOUND, _LEAST = 5.0, 1e-3
"""A spline bends within ±5; least share of a bin, least slope at a knot: as nflows 0.14 has them."""


def _spline(rows: Array, v: Array, bins: int, back: bool = False) -> tuple[Array, Array]:
    """Rational-quadratic splines and the logarithm of their slope at v.

    Args:
        rows: (…, 3 bins - 1, n), what the network says of widths, heights and inner slopes.
        v: (…, n).
        back: the reverse: v is the spline's value, and what it is the value of is returned.
    Source: Durkan et al. 2019, equations 4 to 8 and appendix A.2.
    """

    def knots(part: Array) -> Array:
        from scipy import special

        share = special.softmax(part, axis=-2)
        share = _LEAST + (1 - _LEAST * bins) * share
        edges = np.zeros((*part.shape[:-2], bins + 1, part.shape[-1]))
        np.cumsum(share, axis=-2, out=edges[..., 1:, :])
        edges[..., -1, :] = 1.0
        return (2 * edges - 1) * SPLINE_BOUND

    x, y = knots(rows[..., :bins, :]), knots(rows[..., bins : 2 * bins, :])
    inner = _LEAST + _softplus(rows[..., 2 * bins :, :])
    ends = np.ones_like(inner[..., :1, :])
    slopes = np.concatenate([ends, inner, ends], axis=-2)
    inside = np.abs(v) <= SPLINE_BOUND
    at = np.where(inside, v, 0.0)
    place = ((y if back else x)[..., 1:-1, :] <= at[..., None, :]).sum(axis=-2, keepdims=True)

    def take(values: Array, after: int = 0) -> Array:
        return np.take_along_axis(values, place + after, axis=-2)[..., 0, :]

    left, bottom = take(x), take(y)
    width, height = take(x, 1) - left, take(y, 1) - bottom
    first, second = take(slopes), take(slopes, 1)
    rise = height / width
    bend = first + second - 2 * rise
    if back:
        above = at - bottom
        b = height * first - above * bend
        a, c = above * bend + height * (rise - first), -rise * above
        part = 2 * c / (-b - np.sqrt(np.maximum(b * b - 4 * a * c, 0.0)))
        value = left + part * width
    else:
        part = (at - left) / width
        value = bottom + height * (rise * part**2 + first * part * (1 - part)) / (rise + bend * part * (1 - part))
    mixed = part * (1 - part)
    slope = rise**2 * (second * part**2 + 2 * rise * mixed + first * (1 - part) ** 2) / (rise + bend * mixed) ** 2
    return np.where(inside, value, v), np.where(inside, np.log(slope), 0.0)


def _softplus(a: Array) -> Array:
    """log(1 + e^a), to about 1e-16: what is lost of a small value is nothing beside the floor that is added to it.

    `np.logaddexp` would be exact there too, and takes ten times as long.
    """
    out = np.exp(np.minimum(a, 38.0))
    out += 1
    np.log(out, out=out)
    return np.maximum(out, a, out=out)


def _relu(a: Array, out: Array | None = None) -> Array:
    return np.maximum(a, 0.0, out=out)


_ACTIVATIONS: dict[str, Callable[..., Array]] = {"tanh": np.tanh, "relu": _relu}


def masks(d: int, hidden: int, layers: int, each: int = 2) -> tuple[NDArray[np.bool_], ...]:
    """Which weights of a masked network are used, inputs in the order in which they are read: as nflows has them.

    Returns: per linear map (units out, units in); the last has `each` rows per variable, scale and shift if it is 2.

    >>> [mask.astype(int).tolist() for mask in masks(2, 2, 1)]
    [[[1, 0], [1, 0]], [[0, 0], [0, 0], [1, 1], [1, 1]]]
    """
    inputs = np.arange(1, d + 1)
    # No hidden unit may see the last variable; with one variable, none sees any.
    unit = np.arange(hidden) % max(1, d - 1) + min(1, d - 1)
    degrees = [inputs, *(unit,) * layers]
    inside = [above[:, None] >= below[None, :] for below, above in itertools.pairwise(degrees)]
    return (*inside, np.repeat(inputs, each)[:, None] > unit[None, :])


def first_layers(
    d: int, *, flows: int, hidden: int, layers: int, generator: np.random.Generator, bins: int = 0
) -> tuple[MaskedLayer, ...]:
    """Layers to start from: each is the identity, its hidden units drawn as torch draws those of a linear map.

    Every second layer reads the columns backwards. With `bins` they are splines.
    """
    each = 3 * bins - 1 if bins else 2
    drawn = masks(d, hidden, layers, each)
    # Affine: softplus(a) + floor = 1 and a shift of 0. A spline: even bins, slopes of 1.
    unit = math.log(math.expm1(1 - SCALE_FLOOR))
    last = [*(0.0,) * 2 * bins, *(unit,) * (bins - 1)] if bins else [unit, 0.0]
    out = []
    for k in range(flows):
        weights, biases = [], []
        for mask in drawn:
            reach = 1 / math.sqrt(mask.shape[1])
            weights.append(generator.uniform(-reach, reach, mask.shape) * mask)
            biases.append(generator.uniform(-reach, reach, len(mask)))
        weights[-1] = np.zeros_like(weights[-1])
        biases[-1] = np.tile(last, d)
        order = np.arange(d) if k % 2 == 0 else np.arange(d)[::-1]
        out.append(MaskedLayer(order=order, weights=tuple(weights), biases=tuple(biases), bins=bins))
    return tuple(out)


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineAutoregressiveFlow(_Base):
    r"""A masked autoregressive flow on top of an affine whitening.

    .. math:: x = L y + m, \qquad z = (T_K \circ \dots \circ T_1)(y)

    with `T_k` the masked layers (`MaskedLayer`), affine or splines, parametrised as in nflows 0.14.

    Args:
        mean: m, (d,).
        scale: L, (d, d), lower triangular with a positive diagonal.
        layers: T_1 … T_K, from data to noise; none makes a Gaussian.
        activation: ``tanh`` or ``relu``, of every hidden unit.
    Raises: SchemaRefusal, if the arrays do not form such a flow.
    Source: latent-noise-injection 2.1.1; Papamakarios et al. 2017.

    >>> flow = AffineAutoregressiveFlow(mean=np.array([1.0, 2.0]), scale=np.array([[2.0, 0.0], [1.0, 3.0]]))
    >>> flow.forward(np.array([[1.0, 1.0]]))
    array([[3., 6.]])
    >>> flow.inverse(np.array([[3.0, 6.0]]))
    array([[1., 1.]])
    """

    kind: ClassVar[str] = "affine_autoregressive"
    mean: Array
    scale: Array
    layers: tuple[MaskedLayer, ...] = ()
    activation: str = "tanh"

    def __post_init__(self) -> None:
        mean, scale = _frozen(self.mean, "mean", 1), _frozen(self.scale, "scale", 2)
        if mean.size == 0 or scale.shape != (mean.size, mean.size):
            raise SchemaRefusal("a whitening must be square and as wide as its mean", given=f"shape {scale.shape}")
        if np.triu(scale, 1).any() or (np.diag(scale) <= 0).any():
            raise SchemaRefusal("a whitening must be lower triangular with a positive diagonal")
        if self.activation not in _ACTIVATIONS:
            raise SchemaRefusal("the activation must be 'tanh' or 'relu'", given=repr(self.activation))
        if any(layer.order.size != mean.size for layer in self.layers):
            raise SchemaRefusal("every layer must have as many columns as the whitening")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "layers", tuple(self.layers))

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(self.mean.size)

    def forward(self, z: Array) -> Array:
        """x = f(z), (n, d) to (n, d)."""
        z = _matrix(z, self.d)
        out = np.empty_like(z)
        for start in range(0, len(z), _BLOCK):
            v = np.ascontiguousarray(z[start : start + _BLOCK].T)
            for layer in reversed(self.layers):
                v = layer.to_data(v, self.activation)
            out[start : start + _BLOCK] = (self.scale @ v).T + self.mean
        return out

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        x = _matrix(x, self.d)
        z, log_det = np.empty_like(x), np.full(len(x), -np.log(np.diag(self.scale)).sum())
        # Whitening by substitution in numpy: a stored L⁻¹ would make forward and inverse differ by its rounding.
        for start in range(0, len(x), _BLOCK):
            rows = slice(start, start + _BLOCK)
            centred = (x[rows] - self.mean).T
            v = np.empty_like(centred)
            for i in range(self.d):
                v[i] = (centred[i] - self.scale[i, :i] @ v[:i]) / self.scale[i, i]
            for layer in self.layers:
                v, step = layer.to_noise(v, self.activation)
                log_det[rows] += step
            z[rows] = v.T
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Named arrays: whitening, activation as a code, and per layer its order, weights and biases."""
        out: Arrays = {
            "mean": self.mean,
            "scale": self.scale,
            "activation": np.array(sorted(_ACTIVATIONS).index(self.activation), dtype=np.int64),
            "depths": np.array([len(layer.weights) for layer in self.layers], dtype=np.int64),
        }
        if any(layer.bins for layer in self.layers):
            out["bins"] = np.array([layer.bins for layer in self.layers], dtype=np.int64)
        for k, layer in enumerate(self.layers):
            out[f"order{k}"] = layer.order
            for j, (w, b) in enumerate(zip(layer.weights, layer.biases, strict=True)):
                out[f"weight{k}_{j}"], out[f"bias{k}_{j}"] = w, b
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> AffineAutoregressiveFlow:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if not {"mean", "scale", "activation", "depths"} <= set(arrays):
            raise SchemaRefusal("an autoregressive flow must name its mean, scale, activation and depths")
        depths = [int(depth) for depth in np.asarray(arrays["depths"]).reshape(-1)]
        if len(depths) > 64 or any(not 2 <= depth <= 16 for depth in depths):
            raise SchemaRefusal("a flow must have at most 64 layers of 2 to 16 matrices")
        names = {"mean", "scale", "activation", "depths"} | {f"order{k}" for k in range(len(depths))}
        names |= {
            f"{kind}{k}_{j}" for k, depth in enumerate(depths) for j in range(depth) for kind in ("weight", "bias")
        }
        bins = [0] * len(depths)
        if "bins" in arrays:
            names, bins = names | {"bins"}, [int(count) for count in np.asarray(arrays["bins"]).reshape(-1)]
        _closed(arrays, names, cls.kind)
        if len(bins) != len(depths):
            raise SchemaRefusal("every layer must say how many bins it has")
        code = np.asarray(arrays["activation"]).reshape(-1)
        if code.size != 1 or int(code[0]) not in (0, 1):
            raise SchemaRefusal("the activation code must be 0 or 1")
        layers = tuple(
            MaskedLayer(
                order=np.asarray(arrays[f"order{k}"]),
                weights=tuple(np.asarray(arrays[f"weight{k}_{j}"]) for j in range(depth)),
                biases=tuple(np.asarray(arrays[f"bias{k}_{j}"]) for j in range(depth)),
                bins=bins[k],
            )
            for k, depth in enumerate(depths)
        )
        activation = sorted(_ACTIVATIONS)[int(code[0])]
        return cls(mean=arrays["mean"], scale=arrays["scale"], layers=layers, activation=activation)


# -- margins ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class Margins(_Base):
    """A monotone piecewise-linear map per column, with linear tails: scores (latent side) to records.

    Args:
        knots: per column None (the column is left as it is) or a pair (scores, values), both increasing, of two
            points or more; the first and last piece go on as straight lines.
    Raises: SchemaRefusal, if a column's knots do not increase.

    >>> margins = Margins(knots=((np.array([-1.0, 0.0, 1.0]), np.array([0.0, 1.0, 5.0])), None))
    >>> margins.forward(np.array([[0.5, 7.0], [2.0, 7.0]]))
    array([[3., 7.],
           [9., 7.]])
    """

    kind: ClassVar[str] = "margins"
    knots: tuple[tuple[Array, Array] | None, ...]

    def __post_init__(self) -> None:
        if not self.knots:
            raise SchemaRefusal("margins must have at least one column")
        checked: list[tuple[Array, Array] | None] = []
        for pair in self.knots:
            if pair is None:
                checked.append(None)
                continue
            scores, values = _frozen(pair[0], "scores", 1), _frozen(pair[1], "values", 1)
            if scores.size < 2 or scores.size != values.size:
                raise SchemaRefusal("a margin must have two knots or more, as many scores as values")
            if (np.diff(scores) <= 0).any() or (np.diff(values) <= 0).any():
                raise SchemaRefusal("the knots of a margin must increase")
            checked.append((scores, values))
        object.__setattr__(self, "knots", tuple(checked))

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.knots)

    def forward(self, z: Array) -> Array:
        """Scores to records, (n, d) to (n, d)."""
        x = _matrix(z, self.d)
        for j, pair in enumerate(self.knots):
            if pair is not None:
                x[:, j] = _piecewise(x[:, j], *pair)[0]
        return x

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(scores, log |det|): (n, d) and (n,)."""
        z = _matrix(x, self.d)
        log_det = np.zeros(len(z))
        for j, pair in enumerate(self.knots):
            if pair is not None:
                z[:, j], slope = _piecewise(z[:, j], pair[1], pair[0])
                log_det += np.log(slope)
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Knots of all columns end to end, and how many each column has."""
        pairs = [pair for pair in self.knots if pair is not None]
        empty = [np.zeros(0)]
        return {
            "counts": np.array([0 if pair is None else pair[0].size for pair in self.knots], dtype=np.int64),
            "scores": np.concatenate([pair[0] for pair in pairs] or empty),
            "values": np.concatenate([pair[1] for pair in pairs] or empty),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Margins:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        _closed(arrays, {"counts", "scores", "values"}, cls.kind)
        counts, scores, values = (np.asarray(arrays[name]) for name in ("counts", "scores", "values"))
        if counts.ndim != 1 or (counts < 0).any() or scores.shape != (counts.sum(),) or values.shape != scores.shape:
            raise SchemaRefusal("margins must have as many scores and values as their counts say")
        ends = np.cumsum(counts)
        pieces = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        pairs = tuple((scores[p], values[p]) if p.stop > p.start else None for p in pieces)
        return cls(knots=pairs)


def _piecewise(x: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Piecewise-linear map through (start, end) with linear tails: values and slopes."""
    piece = np.clip(np.searchsorted(start, x, side="right") - 1, 0, start.size - 2)
    slope = np.diff(end) / np.diff(start)
    return end[piece] + (x - start[piece]) * slope[piece], slope[piece]


# -- levels -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class LevelModel:
    """The law of one dequantised column given others: a multinomial logistic regression.

    Args:
        column: the column it is about.
        given: the other columns it reads: smooth ones as they are, levelled ones by their level.
        counts: per column of `given`, 0 for a smooth column, else its number of levels.
        coefficients: (features, levels), in the order of `features`; logits are features @ coefficients.
    """

    HINGES: ClassVar[tuple[float, ...]] = (-1.5, -0.75, 0.0, 0.75, 1.5)
    REACH: ClassVar[float] = 4.0

    column: int
    given: tuple[int, ...]
    counts: tuple[int, ...]
    coefficients: Array

    def __post_init__(self) -> None:
        coefficients = _frozen(self.coefficients, "coefficients", 2)
        if coefficients.shape[1] < 1 or coefficients.shape[0] != self.width(self.counts):
            raise SchemaRefusal("a level model must have one coefficient per feature and level")
        if len(self.given) != len(self.counts) or self.column in self.given or min(self.counts, default=0) < 0:
            raise SchemaRefusal("a level model must read other columns only")
        object.__setattr__(self, "coefficients", coefficients)

    @property
    def levels(self) -> int:
        """Number of levels of the column."""
        return int(self.coefficients.shape[1])

    @classmethod
    def width(cls, counts: tuple[int, ...]) -> int:
        """Number of features: an intercept, a line and hinges per smooth column, all levels but one per levelled."""
        return 1 + sum(count - 1 if count else 1 + len(cls.HINGES) for count in counts)

    @classmethod
    def features(cls, y: Array, given: tuple[int, ...], counts: tuple[int, ...]) -> Array:
        """(n, width): what the regression reads. Smooth columns are held within ±4 so that no tail extrapolates."""
        out = [np.ones(len(y))]
        for column, count in zip(given, counts, strict=True):
            value = y[:, column]
            if count:
                level = np.clip(np.floor(value), 0, count - 1)
                out += [(level == k).astype(np.float64) for k in range(1, count)]
            else:
                value = np.clip(value, -cls.REACH, cls.REACH)
                out += [value, *(np.maximum(value - knot, 0.0) for knot in cls.HINGES)]
        return np.column_stack(out)

    def cumulative(self, y: Array) -> Array:
        """(n, levels + 1): P(level < k | given), k = 0 … levels."""
        logits = self.features(y, self.given, self.counts) @ self.coefficients
        from scipy import special

        share = special.softmax(logits, axis=1)
        # No level vanishes: a width of 1e-12 keeps the map strictly increasing.
        share = np.maximum(share, 1e-12)
        share /= share.sum(axis=1, keepdims=True)
        out = np.zeros((len(y), self.levels + 1))
        np.cumsum(share, axis=1, out=out[:, 1:])
        out[:, -1] = 1.0
        return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Levels(_Base):
    r"""Dequantised columns by their law given the others: y_j = level + fraction, and v_j its normal score.

    .. math:: v_j = \Phi^{-1}( F(k - 1 \mid y_{-j}) + p(k \mid y_{-j}) u ),
              \quad k = \lfloor y_j \rfloor, \; u = y_j - k

    If the fitted law is right, v_j is standard normal *and independent of the other columns*: nothing about the
    column is left for the flow to learn. Columns are taken in turn, each given the smooth columns and the levelled
    ones before it, so the Jacobian is triangular. Beyond score ±8 (outside the levels) the map goes on as a line.

    Args:
        d: number of columns; those without a model are left as they are.
        models: in the order in which the columns are drawn.
    Raises: SchemaRefusal, if a model reads a levelled column that comes later.
    Source: ours; the handbook's "conditional of the event", made a bijection.

    >>> half = LevelModel(column=1, given=(), counts=(), coefficients=np.zeros((1, 2)))
    >>> Levels(d=2, models=(half,)).forward(np.array([[0.3, 0.0], [0.3, -9.0]]))
    array([[ 0.3,  1. ],
           [ 0.3, -1. ]])
    """

    kind: ClassVar[str] = "levels"
    d: int
    models: tuple[LevelModel, ...]

    def __post_init__(self) -> None:
        columns = [model.column for model in self.models]
        if self.d < 1 or len(set(columns)) != len(columns) or any(not 0 <= c < self.d for c in columns):
            raise SchemaRefusal("each level model must have a column of its own")
        for place, model in enumerate(self.models):
            if any(not 0 <= c < self.d or c in columns[place:] for c in model.given):
                raise SchemaRefusal("a level model must read smooth columns and earlier levelled ones only")

    def forward(self, z: Array) -> Array:
        """Scores to levels plus fractions, (n, d) to (n, d)."""
        from scipy import special

        y = _matrix(z, self.d)
        rows = np.arange(len(y))
        for model in self.models:
            v = y[:, model.column].copy()
            inside = np.abs(v) < _EDGE
            cumulative = model.cumulative(y)
            u = special.ndtr(np.where(inside, v, 0.0))
            level = (u[:, None] >= cumulative[:, 1:-1]).sum(axis=1)
            low, high = cumulative[rows, level], cumulative[rows, level + 1]
            fraction = np.clip((u - low) / (high - low), 0.0, np.nextafter(1.0, 0.0))
            # In doubles 2 + 0.99…9 is 3: hold the value below the next level.
            value = np.minimum(level + fraction, np.nextafter(level + 1.0, 0.0))
            y[:, model.column] = np.where(inside, value, np.where(v < 0, v + _EDGE, v - _EDGE + model.levels))
        return y

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(scores, log |det|): (n, d) and (n,)."""
        from scipy import special

        y = _matrix(x, self.d)
        z = y.copy()
        log_det = np.zeros(len(y))
        rows = np.arange(len(y))
        for model in self.models:
            value = y[:, model.column]
            inside = (value >= 0) & (value < model.levels)
            level = np.clip(np.floor(np.where(inside, value, 0.0)), 0, model.levels - 1).astype(np.int64)
            cumulative = model.cumulative(y)
            low, high = cumulative[rows, level], cumulative[rows, level + 1]
            v = special.ndtri(low + (high - low) * np.clip(value - level, 0.0, 1.0))
            v = np.clip(v, -_EDGE, _EDGE)
            log_det += np.where(inside, np.log(high - low) + 0.5 * v**2 + _HALF_LOG_2PI, 0.0)
            z[:, model.column] = np.where(inside, v, np.where(value < 0, value - _EDGE, value - model.levels + _EDGE))
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Per model its column, what it reads and its coefficients."""
        out: Arrays = {
            "d": np.array(self.d, dtype=np.int64),
            "columns": np.array([model.column for model in self.models], dtype=np.int64),
        }
        for k, model in enumerate(self.models):
            out[f"given{k}"] = np.array([model.given, model.counts], dtype=np.int64).reshape(2, -1)
            out[f"coefficients{k}"] = model.coefficients
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Levels:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if not {"d", "columns"} <= set(arrays) or np.asarray(arrays["d"]).size != 1:
            raise SchemaRefusal("levels must name their columns")
        columns = [int(c) for c in np.asarray(arrays["columns"]).reshape(-1)]
        names = {"d", "columns"} | {f"{part}{k}" for k in range(len(columns)) for part in ("given", "coefficients")}
        _closed(arrays, names, cls.kind)
        models = []
        for k, column in enumerate(columns):
            given = np.asarray(arrays[f"given{k}"])
            if given.ndim != 2 or given.shape[0] != 2:
                raise SchemaRefusal("a level model must say what it reads")
            read, counts = (tuple(int(v) for v in row) for row in given)
            models.append(LevelModel(column=column, given=read, counts=counts, coefficients=arrays[f"coefficients{k}"]))
        return cls(d=int(np.asarray(arrays["d"]).reshape(-1)[0]), models=tuple(models))


# -- strata -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class StratumModel:
    """The law of one smooth column in each level of another: a margin, and a regression of its score.

    Args:
        column: the column it is about.
        level_column: the dequantised column whose floor is the stratum.
        given: smooth columns that the regression reads.
        knots: per level (scores, values), as in `Margins`.
        coefficients: (levels, 1 + columns of `given`): intercept and slopes of the score.
        spread: (levels,), positive: standard deviation about the regression.
    """

    column: int
    level_column: int
    given: tuple[int, ...]
    knots: tuple[tuple[Array, Array], ...]
    coefficients: Array
    spread: Array

    def __post_init__(self) -> None:
        coefficients, spread = _frozen(self.coefficients, "coefficients", 2), _frozen(self.spread, "spread", 1)
        levels = len(self.knots)
        if not levels or coefficients.shape != (levels, 1 + len(self.given)) or spread.shape != (levels,):
            raise SchemaRefusal("a stratum model must have knots, coefficients and a spread per level")
        if (spread <= 0).any() or self.column in (*self.given, self.level_column):
            raise SchemaRefusal("a stratum model must have a positive spread and read other columns only")
        object.__setattr__(self, "knots", Margins(knots=self.knots).knots)
        object.__setattr__(self, "coefficients", coefficients)
        object.__setattr__(self, "spread", spread)

    def stratum(self, y: Array) -> NDArray[np.int64]:
        """(n,): each row's level, codes beyond the known ones taken for the nearest."""
        return np.clip(np.floor(y[:, self.level_column]), 0, len(self.knots) - 1).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Strata(_Base):
    r"""Columns whose law changes with the level of another: residual scores (latent side) to values.

    .. math:: r = ( s_k(x_j) - \alpha_k - \gamma_k^\top y_{given} ) / \sigma_k

    with `k` the level and `s_k` that level's margin. Every model reads columns that no model changes, so the
    Jacobian is triangular.

    Args:
        d: number of columns; those without a model are left as they are.
        models: in any order.
    Raises: SchemaRefusal, if a model reads a column that a model changes.
    """

    kind: ClassVar[str] = "strata"
    d: int
    models: tuple[StratumModel, ...]

    def __post_init__(self) -> None:
        changed = [model.column for model in self.models]
        read = {c for model in self.models for c in (model.level_column, *model.given)}
        if self.d < 1 or len(set(changed)) != len(changed) or read & set(changed):
            raise SchemaRefusal("a stratum model must read columns that no stratum model changes")
        if any(not 0 <= c < self.d for c in (*changed, *read)):
            raise SchemaRefusal(f"the columns of strata must be in 0..{self.d - 1}")

    def forward(self, z: Array) -> Array:
        """Residual scores to values, (n, d) to (n, d)."""
        y = _matrix(z, self.d)
        for model in self.models:
            stratum = model.stratum(y)
            mean = self._mean(model, y, stratum)
            score = y[:, model.column] * model.spread[stratum] + mean
            for k, pair in enumerate(model.knots):
                rows = stratum == k
                y[rows, model.column] = _piecewise(score[rows], *pair)[0]
        return y

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(residual scores, log |det|): (n, d) and (n,)."""
        y = _matrix(x, self.d)
        log_det = np.zeros(len(y))
        for model in self.models:
            stratum = model.stratum(y)
            score = np.empty(len(y))
            for k, (scores, values) in enumerate(model.knots):
                rows = stratum == k
                score[rows], slope = _piecewise(y[rows, model.column], values, scores)
                log_det[rows] += np.log(slope)
            y[:, model.column] = (score - self._mean(model, y, stratum)) / model.spread[stratum]
            log_det -= np.log(model.spread[stratum])
        return y, log_det

    @staticmethod
    def _mean(model: StratumModel, y: Array, stratum: NDArray[np.int64]) -> Array:
        slopes = model.coefficients[stratum]
        return slopes[:, 0] + (slopes[:, 1:] * y[:, list(model.given)]).sum(axis=1)

    def to_arrays(self) -> Arrays:
        """Per model what it reads, its knots, coefficients and spreads."""
        out: Arrays = {"d": np.array(self.d, dtype=np.int64), "models": np.array(len(self.models), dtype=np.int64)}
        for k, model in enumerate(self.models):
            out[f"columns{k}"] = np.array([model.column, model.level_column, *model.given], dtype=np.int64)
            out[f"coefficients{k}"], out[f"spread{k}"] = model.coefficients, model.spread
            out |= {f"{name}{k}": value for name, value in Margins(knots=model.knots).to_arrays().items()}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Strata:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if any(np.asarray(arrays.get(name, np.zeros(0))).size != 1 for name in ("d", "models")):
            raise SchemaRefusal("strata must say how many models they have")
        count = int(np.asarray(arrays["models"]).reshape(-1)[0])
        parts = ("columns", "coefficients", "spread", "counts", "scores", "values")
        if not 0 <= count <= 4096:
            raise SchemaRefusal("strata must have at most 4096 models")
        _closed(arrays, {"d", "models"} | {f"{part}{k}" for k in range(count) for part in parts}, cls.kind)
        models = []
        for k in range(count):
            columns = [int(c) for c in np.asarray(arrays[f"columns{k}"]).reshape(-1)]
            margins = Margins.from_arrays({name: arrays[f"{name}{k}"] for name in parts[3:]})
            if len(columns) < 2 or any(pair is None for pair in margins.knots):
                raise SchemaRefusal("a stratum model must name its columns and have knots in every level")
            models.append(
                StratumModel(
                    column=columns[0],
                    level_column=columns[1],
                    given=tuple(columns[2:]),
                    knots=tuple(pair for pair in margins.knots if pair is not None),
                    coefficients=arrays[f"coefficients{k}"],
                    spread=arrays[f"spread{k}"],
                )
            )
        return cls(d=int(np.asarray(arrays["d"]).reshape(-1)[0]), models=tuple(models))


# -- outcomes ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomesLast(_Base):
    """Outcomes by their laws given everything else: latents of their columns to values, all others left as they are.

    Args:
        d: number of columns.
        laws: in the order in which outcomes are drawn (`shared.flows.outcomes`).
    Raises: SchemaRefusal, if a law reads an outcome that is not drawn before, or two laws draw one column.
    """

    kind: ClassVar[str] = "outcomes_last"
    d: int
    laws: tuple[LevelLaw | TiltLaw | HazardLaw, ...]

    def __post_init__(self) -> None:
        drawn = [column for law in self.laws for column in law.columns]
        if self.d < 1 or len(set(drawn)) != len(drawn) or any(not 0 <= c < self.d for c in drawn):
            raise SchemaRefusal("each outcome must have a column of its own, and one law")
        left = set(drawn)
        for law in self.laws:
            if any(not 0 <= c < self.d or c in left for c in law.inputs.reads):
                raise SchemaRefusal("an outcome's law must read covariates and earlier outcomes only")
            left -= set(law.columns)

    def forward(self, z: Array) -> Array:
        """Latents of the outcomes to values, (n, d) to (n, d)."""
        x = _matrix(z, self.d)
        for start in range(0, len(x), _BLOCK):
            part = x[start : start + _BLOCK]
            for law in self.laws:
                law.draw(part)
        return x

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(latents of the outcomes, log |det|): (n, d) and (n,)."""
        x = _matrix(x, self.d)
        z, log_det = x.copy(), np.zeros(len(x))
        for start in range(0, len(x), _BLOCK):
            rows = slice(start, start + _BLOCK)
            for law in self.laws:
                log_det[rows] += law.undraw(x[rows], z[rows])
        return z, log_det

    def to_arrays(self) -> Arrays:
        """Per law its kind, what it reads and its figures."""
        out: Arrays = {
            "d": np.array(self.d, dtype=np.int64),
            "laws": np.array([law.kind for law in self.laws], dtype=np.int64),
        }
        for k, law in enumerate(self.laws):
            out |= {f"{name}{k}": value for name, value in (law.inputs.to_arrays() | law.to_arrays()).items()}
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> OutcomesLast:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        kinds = [int(kind) for kind in np.asarray(arrays.get("laws", np.zeros(0))).reshape(-1)]
        if np.asarray(arrays.get("d", np.zeros(0))).size != 1 or len(kinds) > 4096 or not set(kinds) <= set(_LAWS):
            raise SchemaRefusal("outcomes must say how many columns there are, and of which kind their laws are")
        parts = [(*OutcomeInputs.NAMES, *_LAWS[kind].NAMES) for kind in kinds]
        _closed(arrays, {"d", "laws"} | {f"{name}{k}" for k, names in enumerate(parts) for name in names}, cls.kind)
        laws = []
        for k, (kind, names) in enumerate(zip(kinds, parts, strict=True)):
            own = {name: arrays[f"{name}{k}"] for name in names}
            laws.append(_LAWS[kind].from_arrays(OutcomeInputs.from_arrays(own), own))
        return cls(d=int(np.asarray(arrays["d"]).reshape(-1)[0]), laws=tuple(laws))


_LAWS: dict[int, Any] = {law.kind: law for law in (LevelLaw, TiltLaw, HazardLaw)}


# -- chains and storage -----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class Composed(_Base):
    """x = second(first(z)).

    >>> one = AffineAutoregressiveFlow(mean=np.array([1.0]), scale=np.array([[2.0]]))
    >>> Composed(first=one, second=one).forward(np.array([[1.0]]))
    array([[7.]])
    """

    kind: ClassVar[str] = "composed"
    first: _Part
    second: _Part

    def __post_init__(self) -> None:
        if self.first.d != self.second.d:
            raise ParameterError(
                "the two bijections must have as many columns", given=f"{self.first.d} and {self.second.d}"
            )

    @property
    def d(self) -> int:
        """Number of columns."""
        return self.first.d

    def forward(self, z: Array) -> Array:
        """x = second(first(z)), (n, d) to (n, d)."""
        return self.second.forward(self.first.forward(z))

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        y, outer = self.second.inverse_with_log_det(x)
        z, inner = self.first.inverse_with_log_det(y)
        return z, outer + inner

    def to_arrays(self) -> Arrays:
        """Both parts, each name with `first.` or `second.` before it."""
        return {
            f"{side}.{name}": value
            for side, part in (("first", self.first), ("second", self.second))
            for name, value in to_arrays(part).items()
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Composed:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        if any(not name.startswith(("first.", "second.")) for name in arrays):
            raise SchemaRefusal("a chain must consist of a first and a second part")
        if max((name.count(".") for name in arrays), default=0) > 8:
            raise SchemaRefusal("a chain must not be nested deeper than 8")
        first, second = (
            from_arrays({n.removeprefix(side): a for n, a in arrays.items() if n.startswith(side)})
            for side in ("first.", "second.")
        )
        return cls(first=first, second=second)


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside(_Base):
    """A bijection of some columns, beside others that are left as they are: neither side reads the other.

    Args:
        columns: those that are left alone, ascending.
        inner: of all others, in their order.
    Raises: SchemaRefusal, if the columns are none, repeated or not there.

    >>> inner = AffineAutoregressiveFlow(mean=np.array([1.0]), scale=np.array([[2.0]]))
    >>> Beside(columns=(0,), inner=inner).forward(np.array([[5.0, 3.0]]))
    array([[5., 7.]])
    """

    kind: ClassVar[str] = "beside"
    columns: tuple[int, ...]
    inner: _Part

    def __post_init__(self) -> None:
        columns = tuple(self.columns)
        if not columns or columns != tuple(sorted(set(columns))) or not 0 <= columns[0] <= columns[-1] < self.d:
            raise SchemaRefusal("columns that a flow leaves alone must be some of its columns", given=f"{columns}")

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.columns) + self.inner.d

    @property
    def others(self) -> list[int]:
        """The columns of the inner bijection."""
        return [j for j in range(self.d) if j not in self.columns]

    def forward(self, z: Array) -> Array:
        """x = f(z), (n, d) to (n, d)."""
        x = _matrix(z, self.d)
        x[:, self.others] = self.inner.forward(x[:, self.others])
        return x

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        z = _matrix(x, self.d)
        z[:, self.others], log_det = self.inner.inverse_with_log_det(z[:, self.others])
        return z, log_det

    def to_arrays(self) -> Arrays:
        """The columns, and the inner bijection with `inner.` before its names."""
        inner = {f"inner.{name}": value for name, value in to_arrays(self.inner).items()}
        return {"columns": np.array(self.columns, dtype=np.int64), **inner}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Beside:
        """The reverse of `to_arrays`. Raises: SchemaRefusal."""
        inner = {name.removeprefix("inner."): value for name, value in arrays.items() if name.startswith("inner.")}
        if set(arrays) - {f"inner.{name}" for name in inner} != {"columns"} or any(n.count("inner.") for n in inner):
            raise SchemaRefusal(
                "the arrays of a bijection of kind 'beside' must be its columns and one inner bijection"
            )
        columns = tuple(int(c) for c in np.asarray(arrays["columns"]).reshape(-1))
        return cls(columns=columns, inner=from_arrays(inner))


_KINDS: dict[str, type[Any]] = {
    c.kind: c for c in (Identity, AffineAutoregressiveFlow, Margins, Levels, Strata, OutcomesLast, Composed, Beside)
}
_CODES: list[str] = sorted(_KINDS)


def to_arrays(bijection: _Part) -> Arrays:
    """Any bijection of this module as named arrays, ready for an npz file without pickle.

    >>> sorted(to_arrays(Identity(d=2)))
    ['d', 'kind']
    """
    return {"kind": np.frombuffer(bijection.kind.encode(), dtype=np.uint8), **bijection.to_arrays()}


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The reverse of `to_arrays`: the kind decides the class, and an unknown kind is refused.

    Raises: SchemaRefusal.

    >>> from_arrays(to_arrays(Identity(d=2)))
    Identity(d=2)
    """
    code = np.asarray(arrays.get("kind", np.zeros(0, dtype=np.uint8)))
    name = code.tobytes().decode("ascii", errors="replace") if code.dtype == np.uint8 and code.size < 64 else ""
    if name not in _KINDS:
        raise SchemaRefusal(f"the kind of a bijection must be one of {', '.join(_CODES)}")
    return _KINDS[name].from_arrays({key: value for key, value in arrays.items() if key != "kind"})


def _closed(arrays: Mapping[str, NDArray[Any]], names: set[str], kind: str) -> None:
    if set(arrays) != names:
        raise SchemaRefusal(f"the arrays of a bijection of kind '{kind}' must be exactly {', '.join(sorted(names))}")
