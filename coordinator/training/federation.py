"""The coordinator's side of a federated training: Flower's strategies, named sites, a state on disk, typed refusals.

`run` drives Flower's own `FedAvg` or `FedAdam` over any `Grid`. What is added is what a network of hospitals needs:

* **Named sites.** A round goes to the nodes of the given sites, by id, and never to "all that are connected".
* **Nothing believed.** An answer is taken only if it is of this plan and round, to these weights, one vector of the
  right length with finite entries, no further away than the training can move it, and was not sent before. The reason
  of every refusal is kept by site and round. A site's weight in the mean is its number of records, said once and for
  all, and no more than the plan lets a site count for.
* **Quorum.** A round that fewer sites answer stops the training with a reason; stragglers are asked again in the next.
* **A state on disk**, whole after every round. `run` goes on where it stopped, after a crash of either side: a site
  that has answered the round gives the same answer again, and nothing is charged twice.

The coordinator holds no record and is trusted with nobody's privacy: every answer has its noise in it already. A site
that lies can spoil the flow, by no more per round than the bound above; it cannot learn more than the flow.

There is no early stopping: a loss on records would be one more release to pay for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from shared.base.canonical import canonical_json, parse_json
from shared.base.keys import write_private
from shared.errors import (
    NetworkRefusal,
    ParameterError,
    PlanChanged,
    PlanRefusal,
    Refusal,
    ReplayRefusal,
    SchemaRefusal,
    StorageRefusal,
    TooLarge,
)
from shared.plans.encoding import Encoder
from shared.plans.federated import (
    FLOW_CAP,
    MOST_RECORDS,
    FederatedFlow,
    Shape,
    first_weights,
    from_text,
    price,
    stated,
    to_text,
    usable,
)
from shared.plans.plan import StudyPlan
from shared.wire import flower

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid

__all__ = ["FLOW", "STATE", "SiteProgress", "run", "seed_of"]

Array = NDArray[np.float64]

STATE, FLOW = "training.json", "flow.json"
"""Files in the training's folder: the state after the last whole round, and the flow when all are done."""
FORMAT = "tributary-federated-state/1"
_REMEMBERED = 16
"""Hexadecimal digits of an answer's digest that are kept, to know it again."""


@dataclass(kw_only=True)
class SiteProgress:
    """Progress of one site in a training.

    Attributes:
        node: its id in the grid.
        n: its number of records, as its first answer said; 0 before that.
        answered: rounds whose answer was taken.
        missed: rounds without an answer in time.
        refused: round to (code, reason): by the site itself, or of what it sent.
        seen: digests of the answers taken.
    """

    node: int
    n: int = 0
    answered: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class _State:
    """After `round` whole rounds."""

    round: int
    weights: Array
    mean: Array | None
    square: Array | None
    sites: dict[str, SiteProgress]

    def to_bytes(self, plan: StudyPlan) -> bytes:
        return canonical_json(
            {
                "format": FORMAT,
                "plan": plan.hash,
                "round": self.round,
                "weights": to_text(self.weights),
                "mean": None if self.mean is None else to_text(self.mean),
                "square": None if self.square is None else to_text(self.square),
                "sites": {site: vars(progress) for site, progress in self.sites.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, plan: StudyPlan, shape: Shape) -> _State:
        body = parse_json(data, cap=4 * FLOW_CAP)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise SchemaRefusal(f"the state of a training must be of format {FORMAT}")
        if body.get("plan") != plan.hash:
            raise PlanChanged(
                "a training must go on under the plan that it began with",
                given=f"a state of plan {str(body.get('plan'))[:12]}…",
                next_step="Give the training of another plan a folder of its own.",
            )
        try:
            vectors = {
                name: None if body[name] is None else usable(from_text(body[name]), shape)
                for name in ("weights", "mean", "square")
            }
            sites = {str(site): SiteProgress(**said) for site, said in body["sites"].items()}
            state = cls(round=int(body["round"]), sites=sites, **cast(Any, vectors))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SchemaRefusal("the state of a training must have every field, each of its type") from None
        if state.weights is None:
            raise SchemaRefusal("the state of a training must have weights")
        return state


def seed_of(plan: StudyPlan) -> int:
    """The public seed of the first weights: the plan's hash."""
    return int.from_bytes(hashlib.sha256(b"tributary federated start\0" + plan.hash.encode()).digest()[:8], "big")


def run(
    grid: Grid,
    plan: StudyPlan,
    sites: Mapping[str, int],
    folder: Path,
    *,
    timeout: float = 3600.0,
    report: Callable[[int, Mapping[str, SiteProgress]], None] | None = None,
) -> FederatedFlow:
    """Train the plan's flow with these sites, or go on with a training that was interrupted.

    Args:
        grid: brings messages to nodes and answers back.
        plan: with [federated].
        sites: site to node id; these are asked, and no others.
        folder: of this training's state and result; made if it is not there.
        timeout: seconds that a round waits for answers.
        report: called after every round with its number and what each site has done.
    Returns: the flow, which is also in the folder.
    Raises: NetworkRefusal, if fewer sites than the quorum answered a round: the state before that round is kept, and
        the same call goes on from it. PlanRefusal, PlanChanged, ParameterError, StorageRefusal, SchemaRefusal.
    """
    flower.prepare()
    from flwr.app import ArrayRecord

    if plan.federated is None:
        raise PlanRefusal("a training by all sites must have [federated] in its plan", given="none")
    if len(set(sites.values())) != len(sites) or len(sites) < plan.federated.quorum:
        raise ParameterError(
            f"a training must have at least {plan.federated.quorum} sites, each with a node of its own",
            given=f"{len(sites)} sites and {len(set(sites.values()))} nodes",
        )
    folder.mkdir(parents=True, exist_ok=True)
    shape = Shape.of(Encoder(dictionary=plan.dictionary).d, plan.training)
    done = folder / FLOW
    if done.exists():
        flow = FederatedFlow.from_bytes(_read(done))
        flow.require_true(plan)
        return flow
    state = _opened(folder, plan, shape)
    for site, node in sites.items():
        state.sites.setdefault(site, SiteProgress(node=node)).node = node

    def keep() -> None:
        write_private(folder / STATE, state.to_bytes(plan))
        if report is not None:
            report(state.round, state.sites)

    left = plan.federated.rounds - state.round
    if left:
        strategy = _strategies()[plan.federated.strategy](plan, shape, dict(sites), state, keep)
        strategy.start(
            grid, ArrayRecord({flower.WEIGHTS: flower.vector(state.weights)}), num_rounds=left, timeout=timeout
        )
    flow = _flow(plan, shape, state)
    write_private(done, flow.canonical)
    return flow


def _opened(folder: Path, plan: StudyPlan, shape: Shape) -> _State:
    path = folder / STATE
    if path.exists():
        return _State.from_bytes(_read(path), plan, shape)
    return _State(round=0, weights=first_weights(shape, seed_of(plan)), mean=None, square=None, sites={})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageRefusal(f"{path.name} must be readable", given=error.strerror or "an error") from error


def _flow(plan: StudyPlan, shape: Shape, state: _State) -> FederatedFlow:
    assert plan.federated is not None
    event = plan.federated.event
    return FederatedFlow(
        study=plan.study,
        plan_hash=plan.hash,
        dictionary_hash=plan.dictionary.hash,
        shape=shape,
        weights=state.weights,
        reference=stated(plan),
        rounds=state.round,
        event=event.to_canonical(),
        delta=plan.budget.delta,
        epsilon=price(event, plan.budget.delta),
        sites={
            site: {
                "n": progress.n,
                "answered": len(progress.answered),
                "refused": sorted({code for code, _ in progress.refused.values()}),
            }
            for site, progress in state.sites.items()
        },
    )


# -- what is taken of an answer -----------------------------------------------------------------------------------
def _taken(plan: StudyPlan, shape: Shape, start: Array, round_: int, progress: SiteProgress, answer: Message) -> Array:
    """The weights in an answer, if it is one to this question; `progress.n` is set by the first.

    Raises: whatever the site refused with; SchemaRefusal, TooLarge, ReplayRefusal, PlanChanged.
    """
    federated = plan.federated
    assert federated is not None
    if answer.has_error():
        raise flower.refusal(answer.error)
    content = answer.content
    arrays, config = content.array_records.get(flower.ARRAYS), content.config_records.get(flower.CONFIG)
    figures = content.metric_records.get(flower.METRICS)
    if (
        set(content) != {flower.ARRAYS, flower.CONFIG, flower.METRICS}
        or arrays is None
        or config is None
        or figures is None
        or set(arrays) != {flower.WEIGHTS}
        or set(config) != {"plan", "server-round", "asked"}
        or set(figures) != {"n", "steps"}
    ):
        raise SchemaRefusal("an answer must hold one vector, what it answers and the number of records", given="others")
    if config["plan"] != plan.hash:
        raise PlanChanged("an answer must be to a question of this plan", given="another plan")
    if config["server-round"] != round_ or config["asked"] != flower.digest(start):
        raise ReplayRefusal(
            "an answer must be to the question that was asked", given=f"another one than round {round_}"
        )
    n = figures["n"]
    if (
        isinstance(n, bool)
        or not isinstance(n, int)
        or not 1 <= n <= MOST_RECORDS
        or figures["steps"] != (federated.local_steps)
    ):
        raise SchemaRefusal("an answer must say its number of records and the plan's number of steps", given="others")
    if progress.n not in (0, n):
        raise SchemaRefusal(
            "a site's number of records must stay what it was in its first answer", given=f"{n} for {progress.n}"
        )
    weights = usable(flower.weights(arrays[flower.WEIGHTS], shape.weights), shape)
    mark = flower.digest(weights)[:_REMEMBERED]
    if mark in progress.seen or np.array_equal(weights, start):
        raise ReplayRefusal("an answer must have noise of its own", given="weights that were seen before")
    moved, most = float(np.linalg.norm(weights - start)), federated.furthest(round_, n, shape.weights)
    if moved > most:
        raise TooLarge(
            f"an answer must be at most {most:.4g} away from the question, as far as a round can move it",
            given=f"{moved:.4g}",
        )
    progress.n = n
    progress.seen.append(mark)
    return weights


@lru_cache(maxsize=1)
def _strategies() -> Mapping[str, Callable[..., Any]]:
    """Flower's strategies with the checks below them and the state above; made once Flower is imported."""
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAdam, FedAvg

    class Checked(FedAvg):
        """Below: whom to ask, and which answers reach Flower's mean."""

        plan: StudyPlan
        shape: Shape
        nodes: dict[int, str]
        state: _State

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            content = RecordDict(
                {
                    flower.ARRAYS: arrays,
                    flower.CONFIG: ConfigRecord({"plan": self.plan.hash, "server-round": server_round}),
                }
            )
            return [grid.create_message(content, "train", node, str(server_round)) for node in self.nodes]

        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return []

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            federated = self.plan.federated
            assert federated is not None
            start, found = self.state.weights, {}
            reasons: dict[str, Refusal] = {}
            for reply in replies:
                site = self.nodes.get(reply.metadata.src_node_id)
                if site is None or site in found or site in reasons:
                    continue  # nobody asked it, or not twice
                progress = self.state.sites[site]
                try:
                    weights = _taken(self.plan, self.shape, start, server_round, progress, reply)
                except Refusal as error:
                    reasons[site] = error
                    continue
                reply.content = RecordDict(
                    {
                        flower.ARRAYS: ArrayRecord({flower.WEIGHTS: flower.vector(weights)}),
                        flower.METRICS: MetricRecord({"n": min(progress.n, federated.most_records)}),
                    }
                )
                found[site] = reply
            if len(found) < federated.quorum:
                raise _too_few(self.plan, server_round, len(found), len(self.nodes), reasons)
            for site in self.nodes.values():
                progress = self.state.sites[site]
                if site in found:
                    progress.answered.append(server_round)
                elif site in reasons:
                    progress.refused[str(server_round)] = [reasons[site].code, str(reasons[site])]
                else:
                    progress.missed.append(server_round)
            # By name: a sum of doubles depends on the order, and who answers first must not matter.
            return super().aggregate_train(server_round, [found[site] for site in sorted(found)])

    class Resumable(FedAvg):
        """Above: rounds go on from the state, and each is written down when Flower has its result."""

        def __init__(
            self, plan: StudyPlan, shape: Shape, sites: dict[str, int], state: _State, keep: Callable[[], None]
        ) -> None:
            assert plan.federated is not None
            super().__init__(weighted_by_key="n", arrayrecord_key=flower.ARRAYS, configrecord_key=flower.CONFIG)
            self.plan, self.shape, self.state, self.keep = plan, shape, state, keep
            self.nodes = {node: site for site, node in sites.items()}
            self.before = state.round

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            return super().configure_train(self.before + server_round, arrays, config, grid)

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, figures = super().aggregate_train(self.before + server_round, replies)
            assert arrays is not None
            self.state.weights = usable(arrays[flower.WEIGHTS].numpy(), self.shape)
            self.state.round = self.before + server_round
            self.remember()
            self.keep()
            return arrays, figures

        def remember(self) -> None:
            """Store the optimiser's state for the next round."""

    class Averaging(Resumable, Checked):
        """FedAvg: the mean of the sites' weights."""

    class FedAdamStrategy(Resumable, FedAdam, Checked):
        """FedAdam: Adam at the coordinator, on the way from the old weights to the mean."""

        def __init__(
            self, plan: StudyPlan, shape: Shape, sites: dict[str, int], state: _State, keep: Callable[[], None]
        ) -> None:
            super().__init__(plan, shape, sites, state, keep)
            assert plan.federated is not None
            self.tau = plan.federated.floor
            if state.mean is not None and state.square is not None:
                self.m_t, self.v_t = {flower.WEIGHTS: state.mean}, {flower.WEIGHTS: state.square}

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            assert self.plan.federated is not None
            self.eta = self.plan.federated.server_step(self.before + server_round)
            return super().aggregate_train(server_round, replies)

        def remember(self) -> None:
            assert self.m_t is not None
            assert self.v_t is not None
            self.state.mean, self.state.square = self.m_t[flower.WEIGHTS], self.v_t[flower.WEIGHTS]

    return {"fedavg": Averaging, "fedadam": FedAdamStrategy}


def _too_few(plan: StudyPlan, round_: int, found: int, sites: int, reasons: Mapping[str, Refusal]) -> NetworkRefusal:
    assert plan.federated is not None
    codes = ", ".join(f"{site}: {error.code}" for site, error in sorted(reasons.items())[:12])
    return NetworkRefusal(
        f"round {round_} must be answered by at least {plan.federated.quorum} of {sites} sites",
        given=f"{found} answers that could be taken" + (f"; refused: {codes}" if codes else ""),
        next_step="Run the training again when the sites are back: it goes on with this round.",
    )
