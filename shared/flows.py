"""Bijections between encoded records and latents, from plain arrays and numpy alone.

Training lives at the site (`site_agent.models.flow`) and needs torch; what it leaves behind is arrays. This module
is what a sealed flow *is*: it can be stored without pickle, read anywhere, and run without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from shared.errors import ParameterError, SchemaRefusal

__all__ = ["Bijection", "Composed", "Identity", "Margins", "MaskedAffine", "Whitening", "from_arrays", "to_arrays"]

Array = NDArray[np.float64]


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


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The bijection that changes nothing: x = z.

    >>> Identity(d=2).forward(np.ones((1, 2)))
    array([[1., 1.]])
    """

    d: int

    def forward(self, z: Array) -> Array:
        """x = z."""
        return np.array(z, dtype=np.float64)

    def inverse(self, x: Array) -> Array:
        """z = x."""
        return np.array(x, dtype=np.float64)

    def log_prob(self, x: Array) -> Array:
        """Standard normal log-density, (n,)."""
        x = np.asarray(x, dtype=np.float64)
        return -0.5 * (x**2).sum(axis=1) - 0.5 * self.d * np.log(2 * np.pi)


def _standard_normal_log_density(z: Array) -> Array:
    return -0.5 * (z**2).sum(axis=1) - 0.5 * z.shape[1] * np.log(2 * np.pi)


class _Step:
    """What every step below shares: `inverse_and_log_det` is the one computation, the rest follows from it."""

    def inverse_and_log_det(self, x: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def inverse(self, x: Array) -> Array:
        """z = f⁻¹(x), (n, d) to (n, d)."""
        return self.inverse_and_log_det(x)[0]

    def log_prob(self, x: Array) -> Array:
        """log N(f⁻¹(x); 0, I) + log |det ∂f⁻¹/∂x|, (n,), in nats."""
        z, log_det = self.inverse_and_log_det(x)
        return _standard_normal_log_density(z) + log_det


@dataclass(frozen=True, kw_only=True, eq=False)
class Whitening(_Step):
    r"""x = m + L z: the Gaussian maximum likelihood when m and L L^T are a sample's mean and covariance.

    Args:
        mean: (d,).
        factor: (d, d), lower triangular with a positive diagonal.

    >>> step = Whitening(mean=np.array([1.0, 2.0]), factor=np.array([[2.0, 0.0], [1.0, 1.0]]))
    >>> step.forward(np.array([[1.0, 1.0]]))
    array([[3., 4.]])
    """

    mean: Array
    factor: Array

    def __post_init__(self) -> None:
        d = len(self.mean)
        lower = self.factor.shape == (d, d) and bool((np.triu(self.factor, 1) == 0).all())
        if not lower or not bool((np.diag(self.factor) > 0).all()) or not np.isfinite(self.factor).all():
            raise ParameterError("factor must be (d, d), lower triangular, with a positive diagonal")

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.mean)

    def forward(self, z: Array) -> Array:
        """x = m + L z."""
        return self.mean + z @ self.factor.T

    def inverse_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """z = L⁻¹(x - m), and -log det L for every row."""
        z = solve_triangular(self.factor, (x - self.mean).T, lower=True).T
        return z, np.full(len(x), -np.log(np.diag(self.factor)).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedAffine(_Step):
    r"""One masked autoregressive layer: with u = x[:, order], z_i = s_i(u_{<i}) u_i + m_i(u_{<i}).

    Scale and shift come from one masked network; s = softplus(a) + 0.001, as in nflows 0.14, whose
    `MaskedAffineAutoregressiveTransform` this evaluates. Its output stays in permuted order, as there.

    Args:
        order: (d,), a permutation of the input's columns.
        weights: (H, d), (H, H), …, (2 d, H): masks already applied. Rows 2i and 2i + 1 of the last give a_i and m_i.
        biases: (H,), …, (2 d,).
        degrees: (H,) per hidden layer: a unit of degree k sees inputs 1..k.
        activation: ``tanh`` or ``relu``.
    Source: latent-noise-injection, eq. 3–4 (Papamakarios et al. 2017).
    """

    order: NDArray[np.int64]
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    degrees: tuple[NDArray[np.int64], ...]
    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self) -> None:
        d, hidden = len(self.order), [len(degree) for degree in self.degrees]
        shapes = [(rows, columns) for rows, columns in zip([*hidden, 2 * d], [d, *hidden], strict=True)]
        fits = [weight.shape for weight in self.weights] == shapes and sorted(self.order.tolist()) == list(range(d))
        if not fits or [bias.shape for bias in self.biases] != [(rows,) for rows, _ in shapes]:
            raise ParameterError("weights, biases, degrees and order must fit together", given=f"d = {d}")
        if self.activation not in ("tanh", "relu"):
            raise ParameterError("activation must be tanh or relu", given=repr(self.activation))
        sees = [np.arange(1, d + 1), *self.degrees, np.repeat(np.arange(1, d + 1), 2)]
        for i, weight in enumerate(self.weights):
            last = i == len(self.weights) - 1
            allowed = sees[i + 1][:, None] > sees[i] if last else sees[i + 1][:, None] >= sees[i]
            if not (weight[~allowed] == 0).all():
                raise ParameterError("a masked weight must be zero", given=f"layer {i + 1}")

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.order)

    def _act(self, values: Array) -> Array:
        return np.tanh(values) if self.activation == "tanh" else np.maximum(values, 0)

    def inverse_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """z and Σ log s, all columns at once."""
        u = x[:, self.order]
        h = u
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = self._act(h @ weight.T + bias)
        out = h @ self.weights[-1].T + self.biases[-1]
        scale = _softplus(out[:, 0::2]) + _SCALE_FLOOR
        return scale * u + out[:, 1::2], np.log(scale).sum(axis=1)

    def forward(self, z: Array) -> Array:
        """x by one column after the other; every hidden unit is computed once, when the inputs it sees are known."""
        n, d = z.shape
        u = np.zeros((n, d))
        hidden = [np.zeros((n, len(degree))) for degree in self.degrees]

        def complete(degree: int) -> None:
            """Compute the hidden units that see exactly the first `degree` inputs."""
            before = u
            for h, weight, bias, degrees in zip(hidden, self.weights, self.biases, self.degrees, strict=False):
                ready = np.flatnonzero(degrees == degree)
                h[:, ready] = self._act(before @ weight[ready].T + bias[ready])
                before = h

        complete(0)
        last_weight, last_bias = self.weights[-1], self.biases[-1]
        for i in range(d):
            seen = np.flatnonzero(self.degrees[-1] <= i)
            out = hidden[-1][:, seen] @ last_weight[2 * i : 2 * i + 2, seen].T + last_bias[2 * i : 2 * i + 2]
            u[:, i] = (z[:, i] - out[:, 1]) / (_softplus(out[:, 0]) + _SCALE_FLOOR)
            complete(i + 1)
        x = np.empty_like(u)
        x[:, self.order] = u
        return x


_SCALE_FLOOR = 1e-3


def _softplus(values: Array) -> Array:
    return np.logaddexp(values, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Margins(_Step):
    """One increasing piecewise-linear map per column: encoded value x to score z, with linear tails.

    Args:
        knots: per column (k,), increasing x values.
        scores: per column (k,), increasing z values, the same length.

    >>> step = Margins(knots=(np.array([0.0, 1.0, 3.0]),), scores=(np.array([-1.0, 0.0, 1.0]),))
    >>> step.inverse(np.array([[2.0], [5.0]])).ravel()
    array([0.5, 2. ])
    """

    knots: tuple[Array, ...]
    scores: tuple[Array, ...]

    def __post_init__(self) -> None:
        for knots, scores in zip(self.knots, self.scores, strict=True):
            rising = len(knots) >= 2 and bool((np.diff(knots) > 0).all() and (np.diff(scores) > 0).all())
            if len(knots) != len(scores) or not rising or not np.isfinite(knots).all() or not np.isfinite(scores).all():
                raise ParameterError("knots and scores must rise together", given=f"{len(knots)} and {len(scores)}")

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.knots)

    def forward(self, z: Array) -> Array:
        """Scores to encoded values."""
        return np.column_stack([_linear(z[:, j], self.scores[j], self.knots[j])[0] for j in range(self.d)])

    def inverse_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """Encoded values to scores, and the sum of log slopes."""
        pairs = [_linear(x[:, j], self.knots[j], self.scores[j]) for j in range(self.d)]
        return np.column_stack([value for value, _ in pairs]), np.log([slope for _, slope in pairs]).sum(axis=0)


def _linear(at: Array, source: Array, target: Array) -> tuple[Array, Array]:
    """Piecewise-linear interpolation with linear tails: values and slopes."""
    piece = np.clip(np.searchsorted(source, at, side="right") - 1, 0, len(source) - 2)
    slope = np.diff(target)[piece] / np.diff(source)[piece]
    return target[piece] + slope * (at - source[piece]), slope


@dataclass(frozen=True, kw_only=True, eq=False)
class Composed(_Step):
    """x = s_1(s_2(… s_k(z))): the first step is the one nearest to the records.

    >>> half = Whitening(mean=np.zeros(1), factor=np.array([[2.0]]))
    >>> Composed(steps=(half, half)).forward(np.ones((1, 1)))
    array([[4.]])
    """

    steps: tuple[Margins | Whitening | MaskedAffine, ...]

    def __post_init__(self) -> None:
        if not self.steps or len({step.d for step in self.steps}) != 1:
            raise ParameterError("a flow must have at least one step, all with the same d", given=f"{len(self.steps)}")

    @cached_property
    def d(self) -> int:
        """Number of columns."""
        return self.steps[0].d

    def forward(self, z: Array) -> Array:
        """x = f(z), (n, d) to (n, d)."""
        for step in reversed(self.steps):
            z = step.forward(z)
        return z

    def inverse_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """z = f⁻¹(x) and log |det ∂f⁻¹/∂x|."""
        total = np.zeros(len(x))
        for step in self.steps:
            x, log_det = step.inverse_and_log_det(x)
            total += log_det
        return x, total


def to_arrays(flow: Composed) -> dict[str, NDArray[Any]]:
    """A flow as named plain arrays, for a file that holds nothing else (`numpy.savez`, never pickled).

    >>> step = Whitening(mean=np.zeros(1), factor=np.eye(1))
    >>> sorted(to_arrays(Composed(steps=(step,))))
    ['0.whitening.factor', '0.whitening.mean']
    """
    out: dict[str, NDArray[Any]] = {}
    for i, step in enumerate(flow.steps):
        if isinstance(step, Whitening):
            out |= {f"{i}.whitening.mean": step.mean, f"{i}.whitening.factor": step.factor}
        elif isinstance(step, Margins):
            for j, (knots, scores) in enumerate(zip(step.knots, step.scores, strict=True)):
                out |= {f"{i}.margins.knots.{j}": knots, f"{i}.margins.scores.{j}": scores}
        else:
            out[f"{i}.{step.activation}.order"] = step.order
            for name in ("weights", "biases", "degrees"):
                out |= {f"{i}.{step.activation}.{name}.{j}": a for j, a in enumerate(getattr(step, name))}
    return out


def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> Composed:
    """The flow that `to_arrays` wrote; anything else is refused. Raises: SchemaRefusal, ParameterError."""
    kinds: dict[int, str] = {}
    parts: dict[int, dict[str, NDArray[Any]]] = {}
    try:
        for name, array in arrays.items():
            place, kind, part = name.split(".", 2)
            if kinds.setdefault(int(place), kind) != kind or not np.isfinite(array).all():
                raise ValueError
            parts.setdefault(int(place), {})[part] = array
        steps = [_step(kinds[i], parts[i]) for i in range(len(parts))]
    except (ValueError, KeyError, TypeError):
        raise SchemaRefusal("a flow must be the named arrays that to_arrays writes") from None
    return Composed(steps=tuple(steps))


def _step(kind: str, parts: Mapping[str, NDArray[Any]]) -> Margins | Whitening | MaskedAffine:
    def listed(name: str) -> tuple[NDArray[Any], ...]:
        count = sum(part.startswith(f"{name}.") for part in parts)
        return tuple(parts[f"{name}.{j}"] for j in range(count))

    if kind == "whitening":
        return Whitening(mean=parts["mean"], factor=parts["factor"])
    if kind == "margins":
        return Margins(knots=listed("knots"), scores=listed("scores"))
    if kind not in ("tanh", "relu"):
        raise ValueError(kind)
    return MaskedAffine(
        order=parts["order"],
        weights=listed("weights"),
        biases=listed("biases"),
        degrees=listed("degrees"),
        activation="tanh" if kind == "tanh" else "relu",
    )
