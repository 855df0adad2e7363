"""The masked affine autoregressive flow: layers of masked weights, and their inverse column by column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import SchemaRefusal
from shared.flows.base import BLOCK, Array, ArrayBijection, Arrays, as_matrix, frozen_array, require_arrays

__all__ = ["SCALE_FLOOR", "SPLINE_BOUND", "AffineAutoregressiveFlow", "MaskedLayer", "first_layers", "masks"]


SCALE_FLOOR = 1e-3
"""Least scale of a masked layer: softplus(a) + 1e-3, as in nflows 0.14."""


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
        weights = tuple(frozen_array(w, "a weight", 2) for w in self.weights)
        biases = tuple(frozen_array(b, "a bias", 1) for b in self.biases)
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
    """Weights and biases of one layer's units that can be evaluated once one more column is known, in the reverse pass.

    Units are sorted by how many columns they read: the new ones are a slice, and their inputs are the first rows.
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
    """Connectivity masks of a masked autoregressive network (MADE), inputs in reading order: the same as nflows' masks.

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

    Every second layer reads the columns backwards.

    Args:
        d: columns.
        flows: layers of the flow.
        hidden: units of each hidden layer of a network.
        layers: hidden layers of a network.
        generator: draws the weights of hidden units.
        bins: of splines; 0 for affine layers.
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
class AffineAutoregressiveFlow(ArrayBijection):
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
        mean, scale = frozen_array(self.mean, "mean", 1), frozen_array(self.scale, "scale", 2)
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
        z = as_matrix(z, self.d)
        out = np.empty_like(z)
        for start in range(0, len(z), BLOCK):
            v = np.ascontiguousarray(z[start : start + BLOCK].T)
            for layer in reversed(self.layers):
                v = layer.to_data(v, self.activation)
            out[start : start + BLOCK] = (self.scale @ v).T + self.mean
        return out

    def inverse_with_log_det(self, x: Array) -> tuple[Array, Array]:
        """(f⁻¹(x), log |det ∂f⁻¹/∂x|): (n, d) and (n,)."""
        x = as_matrix(x, self.d)
        z, log_det = np.empty_like(x), np.full(len(x), -np.log(np.diag(self.scale)).sum())
        # Whitening by substitution in numpy: a stored L⁻¹ would make forward and inverse differ by its rounding.
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
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
        require_arrays(arrays, names, cls.kind)
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
