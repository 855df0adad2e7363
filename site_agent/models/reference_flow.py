"""The same masked layers as nflows modules, by autograd: the reference, and the engine for what is not written by hand.

torch and nflows stay in this file, and are loaded only where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.flows.affine import SPLINE_BOUND, MaskedLayer

__all__ = ["NflowsFlow", "torch_session"]

Array = NDArray[np.float64]
Records = NDArray[np.floating[Any]]


@contextmanager
def torch_session(threads: int) -> Iterator[None]:
    """Torch with so many threads, and its global generator and thread count as they were afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)


class NflowsFlow:
    """Masked layers as nflows modules.

    Args:
        layers: from data to noise, as they start.
        activation: ``tanh`` or ``relu``.
        double: doubles in place of single precision.

    Attributes:
        modules: one nflows transform per layer; each reads its columns in the order that the layer says.
    """

    def __init__(self, layers: tuple[MaskedLayer, ...], *, activation: str = "tanh", double: bool = False) -> None:
        import torch
        from nflows.transforms.autoregressive import (
            MaskedAffineAutoregressiveTransform,
            MaskedPiecewiseRationalQuadraticAutoregressiveTransform,
        )

        self.orders, self.bins = [np.array(layer.order) for layer in layers], [layer.bins for layer in layers]
        self.d = self.orders[0].size
        self.dtype = torch.float64 if double else torch.float32
        self.modules = torch.nn.ModuleList()
        for layer in layers:
            shape = {
                "features": self.d,
                "hidden_features": len(layer.biases[0]),
                "num_blocks": len(layer.weights) - 2,
                "use_residual_blocks": False,
                "activation": torch.tanh if activation == "tanh" else torch.relu,
            }
            spline = {"num_bins": layer.bins, "tails": "linear", "tail_bound": SPLINE_BOUND}
            self.modules.append(
                MaskedPiecewiseRationalQuadraticAutoregressiveTransform(**shape, **spline)
                if layer.bins
                else MaskedAffineAutoregressiveTransform(**shape)
            )
        self.modules.to(self.dtype)
        with torch.no_grad():
            for layer, linears in zip(layers, self.linears(), strict=True):
                for linear, weight, bias in zip(linears, layer.weights, layer.biases, strict=True):
                    linear.weight.copy_(torch.tensor(weight))
                    linear.bias.copy_(torch.tensor(bias))
        self._index = [torch.tensor(order) for order in self.orders]
        self._back = [torch.tensor(np.argsort(order)) for order in self.orders]
        self.begin()

    def linears(self) -> list[list[Any]]:
        """The masked linear maps of every layer, first to last."""
        nets: list[Any] = [module.autoregressive_net for module in self.modules]
        return [[net.initial_layer, *(block.linear for block in net.blocks), net.final_layer] for net in nets]

    def loss(self, y: Any) -> Any:
        """Negative log-likelihood of a tensor of records (n, d), in nats: a tensor (n,) that can be differentiated."""
        import torch

        log_det: Any = 0.0
        for index, back, module in zip(self._index, self._back, self.modules, strict=True):
            u, step = module(y[:, index])
            y, log_det = u[:, back], log_det + step
        return 0.5 * (y**2).sum(dim=1) + 0.5 * self.d * float(torch.log(torch.tensor(2 * torch.pi))) - log_det

    def nll(self, y: Records) -> Array:
        """Negative log-likelihood of records (n, d) in nats, (n,)."""
        import torch

        with torch.no_grad():
            return np.asarray(self.loss(torch.tensor(y, dtype=self.dtype)).double().numpy())

    def begin(self) -> None:
        """Start Adam anew."""
        import torch

        self.parameters: list[Any] = list(self.modules.parameters())
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [torch.tensor(0.0) for _ in self.parameters]

    def step(self, y: Records, rate: float) -> None:
        """One step of Adam along the mean gradient of these records."""
        import torch

        # torch's own function, not `torch.optim.Adam`: the first use of that class imports torch's compiler, a second
        # of CPU in every process.
        from torch.optim.adam import adam

        for parameter in self.parameters:
            parameter.grad = None
        self.loss(torch.tensor(y, dtype=self.dtype)).mean().backward()
        with torch.no_grad():
            adam(
                self.parameters,
                [p.grad for p in self.parameters if p.grad is not None],
                self.means,
                self.squares,
                [],
                self.steps,
                foreach=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )

    def copy(self) -> Any:
        """The weights as they are, for `restore`."""
        return {name: value.detach().clone() for name, value in self.modules.state_dict().items()}

    def restore(self, state: Any) -> None:
        """Put weights back."""
        self.modules.load_state_dict(state)

    def layers(self) -> tuple[MaskedLayer, ...]:
        """The layers as plain arrays, masks applied."""
        return tuple(
            MaskedLayer(
                order=order,
                weights=tuple((m.weight * m.mask).detach().double().numpy() for m in linears),
                biases=tuple(m.bias.detach().double().numpy() for m in linears),
                bins=bins,
            )
            for order, bins, linears in zip(self.orders, self.bins, self.linears(), strict=True)
        )
