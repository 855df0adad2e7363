r"""A small neural generator of coded records: normal numbers in, rows of a `RowCode` out, gradients by hand.

Two hidden layers, and one output per entry of a row. A levelled column's outputs are log weights, of which one level is
*drawn* (the largest after Gumbel noise): a row that leaves here is a row that a record could have given, never a blend
of levels. A draw has no slope, so the way back takes that of the softmax at temperature `_HEAT` in its place, which is
the usual straight-through gradient. A number is the tanh of its output, a missing value a draw of its own.

Everything is float32 and numpy. The coordinator, where such a fit is made, needs no torch.

All weights lie in one vector, which is what is optimised, stored, and compared in tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shared.mechanisms.slicing.noise import RowCode
from shared.mechanisms.slicing.projections import decoded

__all__ = ["GeneratorNetwork", "Tape", "Trained", "VectorAdam"]

Single = NDArray[np.float32]

_HEAT = 0.7
_WIDTH, _NOISE = 128, 32
"""Of the hidden layers, and how many normal numbers a row is made from."""
_ROWS = 4096


@dataclass(frozen=True)
class Tape:
    """Intermediate values of a forward pass, for the gradient."""

    noise: Single
    first: Single
    second: Single
    soft: Single
    rows: Single


class GeneratorNetwork:
    """The shape of a generator for one code; weights are passed in."""

    def __init__(self, code: RowCode) -> None:
        self.code, self.d = code, code.d
        self.shapes = ((_NOISE, _WIDTH), (_WIDTH,), (_WIDTH, _WIDTH), (_WIDTH,), (_WIDTH, self.d), (self.d,))
        self.size = sum(math.prod(shape) for shape in self.shapes)
        self._levels = [block.place for block in code.blocks if not block.numeric]
        self._numbers = [block for block in code.blocks if block.numeric]

    def start(self, rng: np.random.Generator) -> Single:
        """Weights before the first step: of variance 2/inputs, those of the last layer a tenth as long."""
        parts = []
        for k, shape in enumerate(self.shapes):
            scale = 0.0 if len(shape) == 1 else math.sqrt(2 / shape[0]) * (0.1 if k == 4 else 1.0)
            parts.append(scale * rng.standard_normal(math.prod(shape), dtype=np.float32))
        return np.concatenate(parts).astype(np.float32)

    def split(self, theta: Single) -> list[Single]:
        """Views of the layers."""
        out, at = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            out.append(theta[at : at + size].reshape(shape))
            at += size
        return out

    def forward(self, theta: Single, n: int, rng: np.random.Generator) -> Tape:
        """n drawn rows, (n, d) in units of a level, and what led to them."""
        w1, b1, w2, b2, w3, b3 = self.split(theta)
        noise = rng.standard_normal((n, _NOISE), dtype=np.float32)
        first = np.maximum(noise @ w1 + b1, 0)
        second = np.maximum(first @ w2 + b2, 0)
        out = second @ w3 + b3
        uniforms = np.maximum(rng.random((n, self.d), dtype=np.float32), np.float32(1e-12))
        soft, rows = np.empty_like(out), np.zeros_like(out)
        everyone = np.arange(n)
        for place in self._levels:
            lifted = out[:, place] - np.log(-np.log(uniforms[:, place]) + np.float32(1e-12))
            chosen = lifted.argmax(axis=1)
            raised = np.exp((lifted - lifted[everyone, chosen][:, None]) / _HEAT)
            soft[:, place] = raised / raised.sum(axis=1, keepdims=True)
            rows[everyone, place.start + chosen] = 1
        for block in self._numbers:
            value = np.tanh(out[:, block.at])
            soft[:, block.at] = value
            rows[:, block.at] = value
            if block.size == 2:
                u = np.minimum(uniforms[:, block.at + 1], np.float32(1 - 1e-6))
                lifted = out[:, block.at + 1] + np.log(u / (1 - u))
                absent = lifted > 0
                soft[:, block.at + 1] = 0.5 * (1 + np.tanh(lifted / (2 * _HEAT)))
                rows[:, block.at + 1] = absent
                rows[absent, block.at] = 0
        return Tape(noise, first, second, soft, rows)

    def backward(self, theta: Single, tape: Tape, by_rows: Single) -> Single:
        """The gradient of the weights, of a loss with gradient `by_rows` (n, d) in the rows."""
        _, _, w2, _, w3, _ = self.split(theta)
        by_out = np.empty_like(tape.soft)
        for place in self._levels:
            soft, push = tape.soft[:, place], by_rows[:, place]
            by_out[:, place] = soft * (push - (soft * push).sum(axis=1, keepdims=True)) / _HEAT
        for block in self._numbers:
            value, push = tape.soft[:, block.at], by_rows[:, block.at]
            if block.size == 2:
                gone, here = tape.soft[:, block.at + 1], 1 - tape.rows[:, block.at + 1]
                by_out[:, block.at + 1] = gone * (1 - gone) * (by_rows[:, block.at + 1] - push * value) / _HEAT
                push = push * here
            by_out[:, block.at] = push * (1 - value**2)
        by_second = (by_out @ w3.T) * (tape.second > 0)
        by_first = (by_second @ w2.T) * (tape.first > 0)
        parts = (
            (tape.noise.T @ by_first, by_first.sum(axis=0)),
            (tape.first.T @ by_second, by_second.sum(axis=0)),
            (tape.second.T @ by_out, by_out.sum(axis=0)),
        )
        return np.concatenate([one.ravel() for part in parts for one in part]).astype(np.float32)


class VectorAdam:
    """Kingma and Ba's steps, on one vector."""

    def __init__(self, size: int) -> None:
        self.mean, self.square = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)

    def step(self, theta: Single, gradient: Single, rate: float, count: int) -> Single:
        """The next weights.

        Args:
            count: which step this is, from 1.
        """
        self.mean = 0.5 * self.mean + 0.5 * gradient  # of a loss whose noise is new each step, little is remembered
        self.square = 0.99 * self.square + 0.01 * gradient**2
        length = rate / (1 - 0.5**count)
        root = np.sqrt(self.square / (1 - 0.99**count)) + 1e-8
        return np.asarray(theta - length * self.mean / root, dtype=np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A network with its weights."""

    network: GeneratorNetwork
    theta: Single

    def rows(self, n: int, draws: np.random.Generator) -> tuple[NDArray[np.float64], pd.DataFrame]:
        """((n, d) coded rows in units of a level, the same as a table of the dictionary). Raises: ParameterError."""
        parts = [self.network.forward(self.theta, min(_ROWS, n - at), draws).rows for at in range(0, n, _ROWS)]
        rows = np.concatenate([np.empty((0, self.network.d)), *parts]).astype(np.float64)
        return rows, decoded(self.network.code, rows)
