"""The site's side of a federated training: steps of DP-SGD on its own records, from weights the coordinator sends.

`client_app` makes a Flower `ClientApp` that knows one message, ``train``, and the order of its work is the guarantee:

1. the message is checked for form, plan, round and weights: a bad one is refused before anything is claimed or read;
2. if this round was answered before, to these weights, the stored answer goes out again: no noise is drawn twice;
3. `TrainingSource.allow` claims the round: it refuses what is not approved or not reserved, and the claim is on disk
   before
4. a record is read, and the plan's number of steps is taken;
5. the answer is kept, and only then sent.

Nothing in a message can change what a step costs: rate, noise, clip and the number of steps come from the approved
plan. What a site sends is its weights after the steps, the public number of its records, and the number of steps.

The weights may be chosen by a coordinator that wants to learn about one person; the accountant allows for that. Asking
the same round twice with different weights would be a step nobody has paid for, and is refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shared.base.randomness import Noise
from shared.errors import (
    BudgetRefusal,
    PlanChanged,
    PlanRefusal,
    Refusal,
    ReplayRefusal,
    SchemaRefusal,
    TrainingRefusal,
)
from shared.flows.chain import Composed
from shared.plans.encoding import Encoder
from shared.plans.federated import Shape, pack, unpack, usable
from shared.plans.plan import StudyPlan
from shared.plans.public_start import public_start
from shared.wire import flower
from site_agent.models.fast_flow import FusedFlow
from site_agent.models.private_flow import Ahead, noisy_gradient, require_room

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

__all__ = ["TrainingSource", "client_app", "local_round", "start_of"]

Array = NDArray[np.float64]


class TrainingSource(Protocol):
    """Interface of a site in a federated training. Everything that has to survive a crash is behind this."""

    @property
    def plan(self) -> StudyPlan:
        """The plan that the site's steward has approved, with [federated]."""
        ...

    @property
    def site(self) -> str:
        """The site's id, as the plan's published figures name it."""
        ...

    def answered(self, round_: int) -> tuple[str, Array] | None:
        """The kept answer of a round: digest of the weights it started from, and the answer. None: not answered."""
        ...

    def allow(self, round_: int) -> None:
        """Claim a round, on disk, before a record is read.

        Raises: a Refusal, if the plan is not approved or expired, the site is paused, or the round is not reserved.
        """
        ...

    def records(self) -> Array:
        """(n, d) encoded records; n is public. The same ones in every round.

        A row that is not a number is a person who has withdrawn since: counted, and no part of any step.
        """
        ...

    def noise(self) -> Noise:
        """A secure source of samples and noise."""
        ...

    def keep(self, round_: int, start_digest: str, weights: Array) -> None:
        """Keep an answer, on disk, before it is sent; `start_digest` is the digest of the weights it started from."""
        ...


def client_app(source: TrainingSource) -> ClientApp:
    """A Flower app that trains on this site's records, and answers whatever it refuses with a typed reason.

    It works on one message at a time. An error that is no refusal is answered with its class alone.
    """
    flower.prepare()
    from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()
    busy = threading.Lock()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        del context
        try:
            with busy:
                round_, start_digest, weights, n = _answer(source, message)
        except Refusal as error:
            return Message(flower.refused(error), reply_to=message)
        except Exception as error:
            # Its text might tell of records.
            return Message(Error(code=flower.ERROR, reason=f"E_REFUSED {type(error).__name__}"), reply_to=message)
        assert source.plan.federated is not None
        content = RecordDict(
            {
                flower.ARRAYS: ArrayRecord({flower.WEIGHTS: flower.vector(weights)}),
                flower.METRICS: MetricRecord({"n": n, "steps": source.plan.federated.local_steps}),
                flower.CONFIG: ConfigRecord({"plan": source.plan.hash, "server-round": round_, "asked": start_digest}),
            }
        )
        return Message(content, reply_to=message)

    return app


def _answer(source: TrainingSource, message: Message) -> tuple[int, str, Array, int]:
    """Round, digest of the weights asked with, the answer and the number of records."""
    plan = source.plan
    if plan.federated is None:
        raise PlanRefusal("the approved plan must have [federated] for a site to take part", given="none")
    encoder = Encoder(dictionary=plan.dictionary)
    shape = Shape.of(encoder.d, plan.training)
    round_, start = _order(plan, shape, message)
    start_digest = flower.digest(start)
    earlier = source.answered(round_)
    if earlier is not None:
        if earlier[0] != start_digest:
            raise ReplayRefusal(
                "a round must be asked with the weights that it was asked with before: another answer is not paid for",
                given=f"round {round_} with other weights",
            )
        return round_, start_digest, earlier[1], len(source.records())
    source.allow(round_)
    records = source.records()
    if records.ndim != 2 or records.shape[1] != encoder.d or not len(records):
        raise TrainingRefusal("a site must have encoded records of the plan's columns", given=f"{records.shape}")
    y = start_of(plan, encoder, source.site).inverse(records)
    weights = local_round(plan, shape, start, round_, y, source.noise())
    source.keep(round_, start_digest, weights)
    return round_, start_digest, weights, len(records)


def _order(plan: StudyPlan, shape: Shape, message: Message) -> tuple[int, Array]:
    """The round and the weights in a message from the coordinator, who may be anybody by now.

    Raises: SchemaRefusal, TooLarge, PlanChanged, BudgetRefusal.
    """
    assert plan.federated is not None
    content: Any = message.content if message.has_content() else {}
    if set(content) != {flower.ARRAYS, flower.CONFIG}:
        raise SchemaRefusal("a round must be asked with weights and with what they are for", given="another message")
    arrays, config = content.array_records.get(flower.ARRAYS), content.config_records.get(flower.CONFIG)
    if arrays is None or config is None or set(arrays) != {flower.WEIGHTS} or set(config) != {"plan", "server-round"}:
        raise SchemaRefusal("a round must be asked with one vector, a plan and a round", given="something else")
    if config["plan"] != plan.hash:
        raise PlanChanged(
            "the training must be that of the approved plan",
            given=f"plan {str(config['plan'])[:12]!r}",
            next_step="Compare plans: site-agent plan show.",
        )
    round_ = config["server-round"]
    if isinstance(round_, bool) or not isinstance(round_, int) or not 1 <= round_ <= plan.federated.rounds:
        raise BudgetRefusal(
            f"a round must be one of the {plan.federated.rounds} that the plan has and the site has reserved",
            given=repr(round_)[:20],
        )
    return round_, usable(flower.weights(arrays[flower.WEIGHTS], shape.weights), shape)


def local_round(plan: StudyPlan, shape: Shape, start: Array, round_: int, y: Array, rng: Noise) -> Array:
    """A round's steps of DP-SGD: weights in, weights out.

    Args:
        start: (p,) weights.
        y: (n, d) records behind the public start.
        rng: draws samples and noise.
    Raises: TrainingRefusal, if a step would take more records than rounding was calculated for.
    """
    federated = plan.federated
    assert federated is not None
    require_room(len(y), federated.rate)
    private, size = federated.private, federated.local_step(round_)
    flow = FusedFlow([unpack(start, shape)], dtype=np.float64)
    noise = Ahead(rng, federated.local_steps)
    for _ in range(federated.local_steps):
        flow.theta[0, flow.used] -= size * noisy_gradient(flow, y, private, rng, noise)
    # Noise alone can hardly take a weight out of what is usable; if it does, that is no message about a record.
    return usable(pack(flow.layers(), shape), shape)


def start_of(plan: StudyPlan, encoder: Encoder, site: str) -> Composed:
    """The site's public start under a plan with [federated]: no record is read."""
    assert plan.federated is not None
    return public_start(encoder, {**plan.reference, **plan.federated.reference.get(site, {})})
