r"""Training one flow by all sites together: what a plan fixes, what it costs a person, and what comes out.

A flow trained at one small hospital is a poor one, and a flow trained on released rows has their noise in it. Here no
row travels: in each of a fixed number of *rounds* every site takes a few steps of DP-SGD from the same weights on its
own records (`site_agent.training.federation`), and the coordinator averages what the sites send back
(`coordinator.training.federation`).

**Price.** Every step of a site is the noisy clipped sum of `site_agent.models.private_flow`, with rate, noise and clip
from the plan. A site takes `rounds · local_steps` of them at most, so that what one person can be charged is known
before the first:

.. math:: \text{SubsampledGaussian}(q, \sigma, \text{rounds} \cdot \text{local steps}), \quad \text{replace-one}

The weights a site starts a round from come from the coordinator, and may depend on everything sent before, even on
purpose. The accountant's composition holds for steps that are chosen like that, so the guarantee does not rest on the
coordinator. Averaging, and whatever the coordinator does with the weights, is post-processing.

**The space.** The layers are trained behind each site's *public start* (`site_agent.release.fitting.public_start`):
bounds from the dictionary, means and standard deviations from published figures, for all sites or for each one. So no
statistic of the records is needed, and sites that differ in their margins agree on what is left to learn.

**What travels** is one vector of doubles: every weight that is no masked one (`pack`).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from shared.base.canonical import canonical_json, is_digest, is_whole, parse_json, sha256_hex
from shared.errors import PlanChanged, ReceiptRefusal, SchemaRefusal
from shared.mechanisms.base import must
from shared.plans.training import PrivateTraining, Reference, Training

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.flows.affine import MaskedLayer
    from shared.plans.plan import StudyPlan
    from shared.privacy.accountant import Event

    Array = NDArray[np.float64]

__all__ = [
    "PREFIX",
    "Federated",
    "FederatedFlow",
    "Shape",
    "first_weights",
    "from_text",
    "pack",
    "price",
    "stated",
    "to_text",
    "unpack",
    "usable",
]


FORMAT = "tributary-federated-flow/1"
PREFIX = "federated:"
"""A plan that uses a trained flow names it by this and the SHA-256 of its canonical bytes."""
MOST_WEIGHTS = 360_000
"""Most weights of one message (`shared.wire.message_limits.ROUND_CAP`), written down as the finished flow."""
MOST_RECORDS = 100_000_000
FLOW_CAP = 32 << 20
LARGEST_WEIGHT = 1e6
"""A weight beyond it is no weight of a usable flow; the sites and the coordinator both refuse it."""
_WORD = re.compile("[A-Za-z0-9_-]{1,64}")
_LAST_SHARE = 0.02


# -- the plan -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Federated:
    """``[federated]`` of a plan: DP-SGD at every site, averaged by the coordinator; all of it fixed in advance.

    Args:
        rounds: how often weights go out and come back.
        local_steps: steps of DP-SGD that a site takes in a round.
        rate: probability with which each person of the site enters a step's sample (Poisson).
        noise_multiplier: standard deviation of a step's noise, in units of `clip`.
        clip: norm C to which each person's gradient is clipped.
        step_size: of a site's steps, plain gradient descent.
        strategy: ``fedavg`` takes the mean of the sites' weights, each by its number of records; ``fedadam`` moves
            towards that mean by Adam.
        server_rate: Adam's step size at the coordinator; falls by a cosine to 2 %. Not used by ``fedavg``.
        floor: of Adam's divisor, so that weights which hardly move are not moved by noise alone.
        quorum: sites whose answers a round needs.
        most_records: as how many records a site counts in the mean at most, however many it says that it has.
        reference: site to column to what is published about that site; goes before the plan's ``[reference]``.

    >>> Federated(rounds=20, local_steps=10, rate=0.1, noise_multiplier=1.5).event.steps
    200
    """

    rounds: int
    local_steps: int = 1
    rate: float
    noise_multiplier: float
    clip: float = 1.0
    step_size: float = 0.5
    strategy: Literal["fedavg", "fedadam"] = "fedadam"
    server_rate: float = 0.01
    floor: float = 1e-3
    quorum: int = 1
    most_records: int = MOST_RECORDS
    reference: Mapping[str, Mapping[str, Reference]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, most in (
            ("rounds", 10_000),
            ("local_steps", 10_000),
            ("quorum", 10_000),
            ("most_records", MOST_RECORDS),
        ):
            value = getattr(self, name)
            must(is_whole(value) and 1 <= value <= most, f"federated.{name} must be in 1..{most}", value)
        must(self.steps <= 100_000, "federated.rounds times federated.local_steps must be at most 100000", self.steps)
        must(0 < self.rate <= 1, "federated.rate must be in (0, 1]", self.rate)
        for name in ("noise_multiplier", "clip", "step_size", "server_rate", "floor"):
            value = getattr(self, name)
            must(0 < value < math.inf, f"federated.{name} must be positive", value)
        must(self.noise_multiplier <= 100, "federated.noise_multiplier must be at most 100", self.noise_multiplier)
        must(self.strategy in ("fedavg", "fedadam"), "federated.strategy must be 'fedavg' or 'fedadam'", self.strategy)
        for site in self.reference:
            must(bool(_WORD.fullmatch(site)), "federated.reference must name sites by their ids", repr(site)[:40])

    @property
    def steps(self) -> int:
        """Steps of DP-SGD that a site takes in all."""
        return self.rounds * self.local_steps

    @property
    def event(self) -> Event:
        """Privacy event of the whole training, charged to every person of a site's table before round 1."""
        from shared.privacy.accountant import SubsampledGaussian

        return SubsampledGaussian(rate=self.rate, noise_multiplier=self.noise_multiplier, steps=self.steps)

    def epsilon(self, delta: float) -> float:
        """ε of the whole training at δ: what is charged before round 1."""
        from shared.privacy import accountant as privacy

        return privacy.epsilon(self.event, delta)

    @property
    def private(self) -> PrivateTraining:
        """The same, as a site's trainer takes it."""
        return PrivateTraining(rate=self.rate, noise_multiplier=self.noise_multiplier, steps=self.steps, clip=self.clip)

    def server_step(self, round_: int) -> float:
        """Adam's step size at the coordinator in a round."""
        return self.server_rate * _falling((round_ - 1) / self.rounds)

    def local_step(self, round_: int) -> float:
        """A site's step size in a round. Under ``fedadam`` it does not fall: the coordinator's does."""
        return self.step_size * (_falling((round_ - 1) / self.rounds) if self.strategy == "fedavg" else 1.0)

    def furthest(self, round_: int, n: int, weights: int) -> float:
        """Bound on a site's update of the weights in one round, with n records, at confidence 1 - 1e-9.

        Every clipped gradient is at most C long, a sample has hardly more than q n + 7 √(q n) + 30 records, and the
        noise of p weights is hardly longer than σ C (√p + 7). All of that is public, so an answer from further away
        was not made by this training.
        """
        expected = self.rate * n
        sample = min(n, expected + 7 * math.sqrt(expected) + 30)
        one = self.clip * (sample + self.noise_multiplier * (math.sqrt(weights) + 7)) / expected
        return self.local_steps * self.local_step(round_) * one


def _falling(share: float) -> float:
    """Step sizes fall by a cosine to 2 % of the first."""
    return _LAST_SHARE + (1 - _LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * share))


# -- the vector ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of the masked layers: d columns, `flows` layers, `layers` hidden layers of `hidden` units in each.

    >>> Shape(d=2, flows=1, hidden=2, layers=1).weights
    12
    """

    d: int
    flows: int
    hidden: int
    layers: int

    def __post_init__(self) -> None:
        for name, most in (("d", 10_000), ("flows", 20), ("hidden", 1024), ("layers", 4)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise SchemaRefusal(f"a flow's {name} must be in 1..{most}", given=repr(value)[:40])
        if self.weights > MOST_WEIGHTS:
            raise SchemaRefusal(
                f"a flow that is trained by several sites must have at most {MOST_WEIGHTS} weights",
                given=f"{self.weights}",
                next_step="Ask the study lead for a smaller training.hidden.",
            )

    @classmethod
    def of(cls, d: int, training: Training) -> Shape:
        """The network's shape by a plan's ``[training]``, for d encoded columns."""
        return cls(d=d, flows=training.flows, hidden=training.hidden, layers=training.layers)

    @cached_property
    def masks(self) -> tuple[NDArray[np.bool_], ...]:
        """See `shared.flows.affine.masks`."""
        from shared.flows.affine import masks

        return masks(self.d, self.hidden, self.layers)

    @cached_property
    def weights(self) -> int:
        """Number of weights that are not masked: the length of the vector that travels."""
        from shared.flows.affine import masks

        # All masks of the largest shape that a plan can ask for would not fit into memory; two small ones say enough.
        if self.hidden * max(self.hidden, self.d) > 1 << 24:
            return MOST_WEIGHTS + 1
        each = sum(int(mask.sum()) + len(mask) for mask in masks(self.d, self.hidden, self.layers))
        return self.flows * each


def first_weights(shape: Shape, number: int) -> Array:
    """The identity, its hidden units drawn from a public number: what every federated training starts from."""
    import numpy as np

    from shared.flows.affine import first_layers

    generator = np.random.default_rng(number)
    return pack(
        first_layers(shape.d, flows=shape.flows, hidden=shape.hidden, layers=shape.layers, generator=generator), shape
    )


def pack(layers: tuple[MaskedLayer, ...], shape: Shape) -> Array:
    """Every weight that is no masked one, layer by layer: of each matrix its rows, then its biases."""
    import numpy as np

    parts = [
        part
        for layer in layers
        for weight, bias, mask in zip(layer.weights, layer.biases, shape.masks, strict=True)
        for part in (weight[mask], bias)
    ]
    return np.concatenate(parts)


def unpack(weights: Array, shape: Shape) -> tuple[MaskedLayer, ...]:
    """The reverse of `pack`. Raises: SchemaRefusal.

    >>> shape = Shape(d=3, flows=2, hidden=4, layers=1)
    >>> start = first_weights(shape, 1)
    >>> bool((pack(unpack(start, shape), shape) == start).all())
    True
    """
    import numpy as np

    from shared.flows.affine import MaskedLayer

    values = usable(weights, shape)
    at, out = 0, []
    for k in range(shape.flows):
        matrices, biases = [], []
        for mask in shape.masks:
            matrix = np.zeros(mask.shape)
            inside = int(mask.sum())
            matrix[mask] = values[at : at + inside]
            matrices.append(matrix)
            biases.append(values[at + inside : at + inside + len(mask)])
            at += inside + len(mask)
        order = np.arange(shape.d) if k % 2 == 0 else np.arange(shape.d)[::-1]
        out.append(MaskedLayer(order=order, weights=tuple(matrices), biases=tuple(biases)))
    return tuple(out)


def usable(weights: NDArray[Any], shape: Shape) -> Array:
    """The vector, if it can be the weights of such a flow. Raises: SchemaRefusal."""
    import numpy as np

    if weights.dtype != np.float64 or weights.shape != (shape.weights,):
        raise SchemaRefusal(
            f"the weights must be {shape.weights} doubles", given=f"{weights.dtype} of shape {weights.shape}"[:60]
        )
    if not np.isfinite(weights).all() or np.abs(weights).max() > LARGEST_WEIGHT:
        raise SchemaRefusal(f"every weight must be finite and at most {LARGEST_WEIGHT:g}", given="another one")
    return np.array(weights, dtype=np.float64)


def to_text(values: Array) -> str:
    """Doubles as base64 of their little-endian bytes: exact, and the same on every machine.

    >>> import numpy as np
    >>> from_text(to_text(np.array([0.1, -2.0])))
    array([ 0.1, -2. ])
    """
    import numpy as np

    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode()


def from_text(text: Any) -> Array:
    """The reverse of `to_text`. Raises: SchemaRefusal."""
    import numpy as np

    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        data = b"x"
    if len(data) % 8:
        raise SchemaRefusal("stored weights must be base64 of doubles")
    return np.frombuffer(data, dtype="<f8").astype(np.float64)


# -- what comes out -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class FederatedFlow:
    """The trained layers with everything needed to use them, and what they cost: one document, known by its digest.

    Args:
        study: that trained it.
        plan_hash: of the plan that every site approved.
        dictionary_hash: of the columns; a flow is of no use to other ones.
        shape: of the layers.
        weights: as `pack` lays them out.
        reference: site to column to (mean, sd); under ``*`` what the plan says for all. With the dictionary they are
            each site's public start.
        rounds: taken.
        event: what every person of a site was charged, as a `shared.privacy.accountant` event.
        delta: of the plan's budget.
        epsilon: of the event at that δ.
        sites: site to what it had to do with it: ``n``, the number of rounds it ``answered``, and the codes with which
            answers were ``refused``. The price is the same for all, also for a site that missed rounds.
    """

    study: str
    plan_hash: str
    dictionary_hash: str
    shape: Shape
    weights: Array
    reference: Mapping[str, Mapping[str, tuple[float, float]]]
    rounds: int
    event: Mapping[str, Any]
    delta: float
    epsilon: float
    sites: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        if not (is_digest(self.plan_hash) and is_digest(self.dictionary_hash)):
            raise SchemaRefusal("a trained flow must name its plan and dictionary by their hashes")
        weights = usable(self.weights, self.shape)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @cached_property
    def canonical(self) -> bytes:
        """Canonical JSON: what is hashed and signed."""
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        shape = {item.name: getattr(self.shape, item.name) for item in fields(Shape)}
        reference = {site: {c: list(v) for c, v in known.items()} for site, known in self.reference.items()}
        sites = {site: dict(said) for site, said in self.sites.items()}
        plain = {"shape": shape, "reference": reference, "sites": sites, "event": dict(self.event)}
        return canonical_json({"format": FORMAT, **body, **plain, "weights": to_text(self.weights)})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes."""
        return sha256_hex(self.canonical)

    @property
    def name(self) -> str:
        """As a later plan names it: ``federated:<digest>``."""
        return PREFIX + self.digest

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str = "") -> FederatedFlow:
        """Read canonical bytes.

        Args:
            name: as the plan has it; the bytes must be the ones it names.
        Raises: PlanChanged, if they are not; SchemaRefusal.
        """
        if name and name != PREFIX + sha256_hex(data):
            raise PlanChanged(
                "the trained flow must be the one that the plan names",
                given=f"a file with digest {sha256_hex(data)[:12]}… for {name[:26]}…",
                next_step="Fetch the flow of that digest, or ask the study lead.",
            )
        body = parse_json(data, cap=FLOW_CAP)
        names = {"format", *(item.name for item in fields(cls))}
        if not isinstance(body, dict) or set(body) != names or body["format"] != FORMAT:
            raise SchemaRefusal(f"a trained flow must be a document of format {FORMAT}")
        del body["format"]
        try:
            flow = cls(
                **{
                    **body,
                    "shape": Shape(**body["shape"]),
                    "weights": from_text(body["weights"]),
                    "reference": {
                        str(site): {str(c): (float(v[0]), float(v[1])) for c, v in known.items()}
                        for site, known in body["reference"].items()
                    },
                    "sites": {str(site): dict(said) for site, said in body["sites"].items()},
                    "event": dict(body["event"]),
                }
            )
        except (TypeError, ValueError, AttributeError, KeyError, IndexError):
            raise SchemaRefusal("a trained flow must have every field, each of its type") from None
        if flow.canonical != data:
            raise SchemaRefusal("a trained flow must be in canonical form")
        return flow

    def layers(self) -> tuple[MaskedLayer, ...]:
        """From data to noise, as `shared.flows.affine.AffineAutoregressiveFlow` takes them."""
        return unpack(self.weights, self.shape)

    def references(self, site: str) -> dict[str, Reference]:
        """Public reference figures of a site's columns: its own figures, and those for all where it has none."""
        known = {**self.reference.get("*", {}), **self.reference.get(site, {})}
        return {column: Reference(mean=mean, sd=sd) for column, (mean, sd) in known.items()}

    def require_true(self, plan: StudyPlan) -> None:
        """Recompute the price, and everything else that the training's plan decides. Raises: ReceiptRefusal."""
        if plan.federated is None or self.plan_hash != plan.hash:
            raise ReceiptRefusal("the trained flow must be that of this plan", given=f"plan {self.plan_hash[:12]}…")
        event = plan.federated.event
        if (
            dict(self.event) != event.to_canonical()
            or not math.isclose(self.epsilon, price(event, plan.budget.delta), rel_tol=1e-9)
            or self.delta != plan.budget.delta
            or self.dictionary_hash != plan.dictionary.hash
            or {site: dict(known) for site, known in self.reference.items()} != stated(plan)
        ):
            raise ReceiptRefusal("the flow's receipt must be what its plan gives", given="another value")


@lru_cache(maxsize=64)
def price(event: Event, delta: float) -> float:
    """`shared.privacy.accountant.epsilon` of a training, worked out once."""
    from shared.privacy import accountant as privacy

    return privacy.epsilon(event, delta)


def stated(plan: StudyPlan) -> dict[str, dict[str, tuple[float, float]]]:
    """The published figures of a plan as a trained flow keeps them: as doubles, whatever the plan's file had."""
    assert plan.federated is not None
    every = {"*": plan.reference, **plan.federated.reference}
    return {
        site: {c: (float(known.mean), float(known.sd)) for c, known in table.items()} for site, table in every.items()
    }


def read_reference(given: Any, read: Any) -> dict[str, dict[str, Any]]:
    """``[federated.reference.SITE.COLUMN]`` as a plan has it; `read` makes one Reference. Raises: PlanRefusal."""
    must(isinstance(given, Mapping), "[federated.reference] must be a table of sites", type(given).__name__)
    out = {}
    for site, table in given.items():
        must(isinstance(table, Mapping), f"[federated.reference.{site}] must be a table of columns", repr(table)[:40])
        out[str(site)] = {str(c): read(known, f"federated.reference.{site}.{c}") for c, known in table.items()}
    return out
