r"""The masked affine layers of nflows, forward and backward by hand, in numpy alone.

At 256 records a step, nflows spends its time between the matrix products: on masks multiplied anew, on modules, on
the tape of autograd, on one optimiser call per tensor. Here there is none of that.

* **Masks and orders are folded into the matrices.** A layer that reads its columns backwards has its mask backwards;
  nothing is permuted while it runs. Every matrix carries its bias as a last column, and every input a row of ones.
* **All weights are one vector**, and so is their gradient: matrices are views of it, and Adam is a dozen operations on
  the whole.
* **The backward pass is written down.** With ``y = s x + t`` and ``s = softplus(a) + floor``, the gradient of
  ``|z|^2 / 2 - sum log s`` by a is ``(g x - 1/s) sigmoid(a)``, by t it is g, and what goes on to the input is
  ``g s`` and what comes back through the network. The loss itself is not needed for a step, so no logarithm is taken.
* **Several flows of one shape stand in a stack**: sites, folds, candidates. Each operation then serves all of them.

Parameters are nflows' own (`MaskedAffineAutoregressiveTransform`, blocks without residuals): `layers` and `load`
convert both ways through `shared.flows.affine.MaskedLayer`. nflows stays the reference that this is tested
against, and `site_agent.models.flow` falls back on it for what is not written here.

The inputs and output gradients of every linear map of the last `forward` and `backward` are at hand (`linears`): the
clipping of `site_agent.models.private_flow` is made of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.flows.affine import SCALE_FLOOR, MaskedLayer, first_layers, masks

__all__ = ["Adam", "DenseLayer", "FusedFlow", "first_layers", "masks"]

Array = NDArray[Any]

_CHUNK = 1024
"""Records at a time where no gradient is asked for: what a step works on then stays in the processor's cache."""


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """One linear map of the last pass. Leading axis: the stack.

    Attributes:
        given: its input, (m, units in + 1, n), the last row ones.
        back: gradient of the loss by its output, (m, units out, n).
        mask: 1 where there is a weight, 0 where it is masked, (units out, units in + 1); biases are weights.
        gradient: view of the flow's gradient, (m, units out, units in + 1).
    """

    given: Array
    back: Array
    mask: Array
    gradient: Array


class FusedFlow:
    """A stack of m flows of masked affine layers, all of one shape.

    Args:
        stack: per flow its layers, from data to noise. Orders must agree across the stack, and every network must be
            masked as `masks` says.
        activation: ``tanh`` or ``relu``.
        dtype: float32, or float64.

    Attributes:
        theta: all weights, (m, p); masked ones are 0 and stay so.
        gradient: of the last `differentiate`, (m, p).
        used: which entries of a row of `theta` are no masked ones, (p,).

    >>> start = first_layers(3, flows=2, hidden=8, layers=1, generator=np.random.default_rng(1))
    >>> flow = FusedFlow([start], dtype=np.float64)
    >>> y = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 2.0]])
    >>> np.round(flow.nll(y[None]), 6)
    array([[2.756816, 5.756816]])
    """

    def __init__(
        self, stack: Sequence[tuple[MaskedLayer, ...]], *, activation: str = "tanh", dtype: Any = np.float32
    ) -> None:
        first = stack[0]
        self.m, self.d, self.flows = len(stack), first[0].order.size, len(first)
        self.hidden, self.depth = len(first[0].biases[0]), len(first[0].weights) - 1
        self.activation, self.dtype = activation, np.dtype(dtype)
        self.orders = [layer.order for layer in first]
        # Beyond it softplus(a) is a, in this precision; below it exp cannot overflow.
        self._cap = 16.0 if self.dtype == np.float32 else 38.0
        plain = [
            np.pad(part, ((0, 0), (0, 1)), constant_values=True) for part in masks(self.d, self.hidden, self.depth)
        ]
        folded = [self._folded(plain, order) for order in self.orders]
        self._masks: list[list[Array]] = [[mask.astype(self.dtype) for mask in layer] for layer in folded]
        sizes = [[mask.shape for mask in layer] for layer in folded]
        self.used = np.concatenate([mask.ravel() for layer in folded for mask in layer])
        self.theta = np.zeros((self.m, self.used.size), dtype=self.dtype)
        self.gradient = np.zeros_like(self.theta)
        self._weights, self._gradients = (_views(flat, sizes) for flat in (self.theta, self.gradient))
        self._turned = [[w[:, :, :-1].transpose(0, 2, 1) for w in layer] for layer in self._weights]
        self._keep = self.used.astype(self.dtype)
        self._rooms: dict[int, _Room] = {}
        for place, layers in enumerate(stack):
            self.load(place, layers)

    # -- conversion ---------------------------------------------------------------------------------------------
    def _folded(self, parts: Sequence[Array], order: NDArray[np.int64]) -> list[Array]:
        """Matrices (bias column last) of a network that reads `columns[order]`, as those of one that reads all columns.

        The rows of the last one are sorted too: all scales, then all shifts, each in the order of the columns.
        """
        back = np.argsort(order)
        out = list(parts)
        out[0] = out[0][:, np.append(back, self.d)]
        out[-1] = out[-1][np.concatenate([2 * back, 2 * back + 1])]
        return out

    def load(self, place: int, layers: tuple[MaskedLayer, ...]) -> None:
        """Put these layers in that place of the stack."""
        for k, layer in enumerate(layers):
            if layer.bins:
                raise ValueError("the layers must be affine")
            if not np.array_equal(layer.order, self.orders[k]):
                raise ValueError("the flows of a stack must read their columns in the same orders")
            joined = [np.column_stack([w, b]) for w, b in zip(layer.weights, layer.biases, strict=True)]
            folded = self._folded(joined, layer.order)
            for view, mask, value in zip(self._weights[k], self._masks[k], folded, strict=True):
                if (value[mask == 0] != 0).any():
                    raise ValueError("a network must be masked as nflows masks it")
                view[place] = value

    def layers(self, place: int = 0) -> tuple[MaskedLayer, ...]:
        """The flow in that place as plain arrays in doubles: the reverse of `load`."""
        out = []
        for order, views in zip(self.orders, self._weights, strict=True):
            parts = [view[place].astype(np.float64) for view in views]
            parts[0] = parts[0][:, np.append(order, self.d)]
            last = np.empty_like(parts[-1])
            last[0::2], last[1::2] = parts[-1][order], parts[-1][self.d + order]
            parts[-1] = last
            out.append(
                MaskedLayer(order=order, weights=tuple(p[:, :-1] for p in parts), biases=tuple(p[:, -1] for p in parts))
            )
        return tuple(out)

    # -- passes -------------------------------------------------------------------------------------------------
    def nll(self, y: Array) -> Array:
        """Negative log-likelihood of records under the layers and a standard normal, in nats.

        Args:
            y: (m, n, d), each flow's own records.
        Returns: (m, n).
        """
        y = np.asarray(y, dtype=self.dtype)
        out = np.empty(y.shape[:2], dtype=self.dtype)
        for start in range(0, y.shape[1], _CHUNK):
            part = slice(start, start + _CHUNK)
            room = self._forward(y[:, part])
            noise = room.columns[-1]
            value = 0.5 * np.einsum("mdn,mdn->mn", noise, noise)
            for scale in room.scale:
                value -= np.log(scale).sum(axis=1)
            out[:, part] = value
        return out + self.dtype.type(0.5 * self.d * math.log(2 * math.pi))

    def differentiate(self, y: Array) -> Array:
        """`gradient` of the mean negative log-likelihood of records (m, n, d), by every weight: (m, p)."""
        for linear in self.linears(y, 1 / y.shape[1]):
            np.matmul(linear.back, linear.given.transpose(0, 2, 1), out=linear.gradient)
        self.gradient *= self._keep
        return self.gradient

    def normalise(self) -> None:
        """Divide every matrix (not its biases) by its largest singular value where that is above 1."""
        for views in self._weights:
            for view in views:
                matrix = view[:, :, :-1]
                largest = np.linalg.norm(matrix, 2, axis=(1, 2))
                matrix /= np.maximum(largest, 1)[:, None, None]

    def linears(self, y: Array, weight: float = 1.0) -> list[DenseLayer]:
        """Every linear map's input and output gradient, the loss being `weight` times the sum over records.

        The arrays are those the flow works in: the next pass writes over them.
        """
        y = np.asarray(y, dtype=self.dtype)
        room = self._forward(y)
        self._backward(room, weight)
        return [
            DenseLayer(given, back, mask, gradient)
            for k in range(self.flows)
            for given, back, mask, gradient in zip(
                (room.x[k], *room.hidden[k]), room.back[k], self._masks[k], self._gradients[k], strict=True
            )
        ]

    def _forward(self, y: Array) -> _Room:
        n = y.shape[1]
        room = self._rooms.get(n)
        if room is None:
            # Few sizes are met in a fit: a step's, a chunk's, a last chunk's. Poisson batches have many.
            if len(self._rooms) > 7:
                self._rooms.clear()
            room = self._rooms[n] = _Room(self, n)
        room.columns[0][:] = y.transpose(0, 2, 1)
        tanh, floor = self.activation == "tanh", self.dtype.type(SCALE_FLOOR)
        for k in range(self.flows):
            scale, slope = room.scale[k], room.slope[k]
            below = room.x[k]
            for w, hidden, units in zip(self._weights[k], room.hidden[k], room.units[k], strict=False):
                np.matmul(w, below, out=units)
                if tanh:
                    np.tanh(units, out=units)
                else:
                    np.maximum(units, 0, out=units)
                below = hidden
            np.matmul(self._weights[k][-1], below, out=room.out)
            # softplus is log(1 + e^a) and its slope e^a / (1 + e^a): they share what they are made of.
            np.minimum(room.a, self._cap, out=slope)
            np.exp(slope, out=slope)
            np.add(slope, 1, out=scale)
            np.divide(slope, scale, out=slope)
            np.log(scale, out=scale)
            np.maximum(scale, room.a, out=scale)
            np.add(scale, floor, out=scale)
            np.multiply(scale, room.columns[k], out=room.columns[k + 1])
            np.add(room.columns[k + 1], room.t, out=room.columns[k + 1])
        return room

    def _backward(self, room: _Room, weight: float) -> None:
        tanh = self.activation == "tanh"
        np.multiply(room.columns[-1], weight, out=room.by_shift[-1])
        for k in reversed(range(self.flows)):
            back, scale, by_scale, by_shift = room.back[k], room.scale[k], room.by_scale[k], room.by_shift[k]
            np.multiply(by_shift, room.columns[k], out=by_scale)
            np.divide(weight, scale, out=room.small)
            np.subtract(by_scale, room.small, out=by_scale)
            np.multiply(by_scale, room.slope[k], out=by_scale)
            for j in reversed(range(self.depth)):
                np.matmul(self._turned[k][j + 1], back[j + 1], out=back[j])
                units = room.units[k][j]
                if tanh:
                    np.multiply(units, units, out=room.wide)
                    np.subtract(1, room.wide, out=room.wide)
                    np.multiply(back[j], room.wide, out=back[j])
                else:
                    np.multiply(back[j], units > 0, out=back[j])
            if k:
                below = room.by_shift[k - 1]
                np.matmul(self._turned[k][0], back[0], out=below)
                np.multiply(scale, by_shift, out=scale)
                np.add(below, scale, out=below)


class _Room:
    """Work arrays of a pass over n records, allocated once per n. A backward pass overwrites `scale`.

    Half of the names are views of the other half: slicing them anew in each step would cost as much as a product.
    """

    def __init__(self, flow: FusedFlow, n: int) -> None:
        m, d, width, depth, dtype = flow.m, flow.d, flow.hidden, flow.depth, flow.dtype
        flows = range(flow.flows)
        self.x = [np.ones((m, d + 1, n), dtype) for _ in range(flow.flows + 1)]
        self.columns = [x[:, :d] for x in self.x]
        self.hidden = [[np.ones((m, width + 1, n), dtype) for _ in range(depth)] for _ in flows]
        self.units = [[hidden[:, :-1] for hidden in layer] for layer in self.hidden]
        self.scale, self.slope = ([np.empty((m, d, n), dtype) for _ in flows] for _ in range(2))
        self.out = np.empty((m, 2 * d, n), dtype)
        self.a, self.t = self.out[:, :d], self.out[:, d:]
        self.back = [[np.empty((m, rows, n), dtype) for rows in (*(width,) * depth, 2 * d)] for _ in flows]
        self.by_scale = [layer[-1][:, :d] for layer in self.back]
        self.by_shift = [layer[-1][:, d:] for layer in self.back]
        self.small, self.wide = (np.empty((m, rows, n), dtype) for rows in (d, width))


def _views(flat: Array, sizes: list[list[tuple[int, ...]]]) -> list[list[Array]]:
    out: list[list[Array]] = []
    at = 0
    for layer in sizes:
        out.append([])
        for shape in layer:
            size = math.prod(shape)
            out[-1].append(flat[:, at : at + size].reshape(len(flat), *shape))
            at += size
    return out


class Adam:
    """Adam's step on one array of weights, in place, as `torch.optim.Adam` takes it with its default settings.

    The averages are kept without their constant factors (1 - beta), which saves a fifth of the operations.
    """

    FIRST, SECOND, FLOOR = 0.9, 0.999, 1e-8

    def __init__(self, theta: Array) -> None:
        self.theta, self.steps = theta, 0
        self._mean, self._square, self._work = (np.zeros_like(theta) for _ in range(3))

    def step(self, gradient: Array, rate: float) -> None:
        """Move `theta` along the gradient."""
        self.steps += 1
        work = self._work
        self._mean *= self.FIRST
        self._mean += gradient
        self._square *= self.SECOND
        np.multiply(gradient, gradient, out=work)
        self._square += work
        # mean (1-b1)/(1-b1^t) / (root(square (1-b2)/(1-b2^t)) + floor), with one factor taken out of the fraction.
        root = math.sqrt((1 - self.SECOND) / (1 - self.SECOND**self.steps))
        np.sqrt(self._square, out=work)
        work += self.FLOOR / root
        np.divide(self._mean, work, out=work)
        work *= rate * (1 - self.FIRST) / (1 - self.FIRST**self.steps) / root
        self.theta -= work
